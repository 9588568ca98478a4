"""What holds of a nested program: its values, its shardings and what it moves, beside those of JAX; and how to cut it.

`python -m tests.generators.nested_checks N [SEED] [STEP]` checks N programs and prints the smallest form of those that
fail; with `--whole` as they were drawn.
"""

from __future__ import annotations

import math
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import numpy as np
from jax.sharding import NamedSharding

from jaxmesh import errors
from tests.generators.hlo_traffic import moved
from tests.generators.nested_programs import Block, NestedProgram, draw, make_meshes
from tests.generators.oracles import same_bits
from tests.generators.outcome import Outcome
from tests.generators.plain_traffic import MOST
from tests.generators.quick_compilation import quick_compilation

MOVES = (
    "relu", "max", "transpose", "ravel", "fold", "roll", "flip", "slice", "stride", "pad", "concat", "sort", "gather",
    "update", "dynamic", "repeat", "where", "constraint", "reshard",
)  # fmt: skip
"""Steps that compute nothing that rounds."""

REASON = "XLA permutes shards, for edges of neighbours or an axis that goes to another dim; the import gathers the dim"
"""Why a program may move more than `MOST` times as much as XLA's if XLA's has a collective_permute: as in the table."""

Fault = tuple[str, str]
"""The kind of a fault, and what it is."""

XLA_IS_WRONG = "value of XLA"
"""The kind of a fault of a value that `jax.jit` gives, too, bit for bit, while the reference executor is right."""

LISTED: tuple[tuple[str, Callable[[NestedProgram], bool], str], ...] = (
    (
        XLA_IS_WRONG,
        lambda p: any(n.startswith("update") for n in p.names),
        "in a loop XLA on the CPU writes an update in place over the values that the update is cut from",
    ),
    (
        "sharding",
        lambda p: max(Counter(_asked(p)).values(), default=0) > 1,
        "one value has two requested shardings; of the two, Shardy keeps that which it visits first",
    ),
    (
        "sharding",
        lambda p: len([s for s in p.steps if s.name.startswith("matmul") and len({*s.operands}) == 1]) > 1,
        "both sides of a product of a value with itself ask for the axis; Shardy keeps the side that it visits first, "
        "and XLA visits what the first result needs before what stands earlier",
    ),
    (
        "traffic",
        lambda p: p.gradient and any(n.startswith("matmul out_sharding") for n in p.names),
        "XLA multiplies the vectors of an outer product after it gathered them; the import gathers the product",
    ),
    (
        "traffic",
        lambda p: p.gradient and any(s.name == "where" and len({*s.operands}) == 1 for s in p.steps),
        "the gradient of a choice between a value and itself: the import gathers three times what XLA gathers once",
    ),
    (
        "traffic",
        lambda p: any(n.startswith("matmul") and len({*o}) == 1 for n, o in ((s.name, s.operands) for s in p.steps)),
        "a product of a value with itself: Shardy splits the value for one side; XLA remembers its copy for the other",
    ),
)
"""By the kind of a fault, the programs that may have it, and why."""


def reason(program: NestedProgram, found: Fault) -> str | None:
    """Returns why a program may have a fault; None for a fault that none may have."""
    fits = (why for kind, may, why in LISTED if found[0].startswith(kind) and may(program))
    return next(fits, None)


def _asked(program: NestedProgram) -> Iterator[int]:
    """Returns the numbers of values for which a sharding is requested inside, once per request."""
    for i, s in enumerate(program.steps):
        if s.name.startswith("constraint"):
            yield from (s.operands[0], len(program.shapes) + i)
    blocks = [*program.blocks]
    for block in blocks:
        yield from (i for i, _ in block.specs)
        blocks += block.inner


def arguments_of(program: NestedProgram, seed: int) -> list[Any]:
    """Returns random arguments, on the mesh where they are placed."""
    rng = np.random.default_rng(seed)
    rows = zip(program.shapes, program.placed, strict=True)
    return [
        x if spec is None else jax.device_put(x, NamedSharding(program.mesh, spec))
        for shape, spec in rows
        for x in [rng.standard_normal(shape).astype(np.float32)]
    ]


@dataclass(frozen=True)
class Checked:
    """What a program does: the first thing that does not hold, and the bytes that all devices send, by collective."""

    fault: Fault | None
    xla: Mapping[str, int] | None = None
    ours: Mapping[str, int] | None = None

    @property
    def ratio(self) -> float | None:
        """What it moves, by what XLA's moves; None if it was not measured."""
        if self.xla is None or self.ours is None:
            return None
        theirs, ours = sum(self.xla.values()), sum(self.ours.values())
        return ours / theirs if theirs else math.inf if ours else 0.0

    @property
    def permutes(self) -> bool:
        """Whether XLA's permutes shards, as in `REASON`."""
        return any(name.startswith("collective_permute") for name in self.xla or ())


def fault(program: NestedProgram, seed: int, *, traffic: bool = True, reference: bool = True) -> Fault | None:
    """Runs a program in every way; returns the first thing that does not hold."""
    return check(program, seed, traffic=traffic, reference=reference).fault


def check(program: NestedProgram, seed: int, *, traffic: bool = True, reference: bool = True) -> Checked:
    """Runs a program in every way; with `traffic` it also compares what the optimized HLO moves."""
    try:
        # How well the code of one device is optimized does not change what is moved.
        with quick_compilation():
            return _check(program, seed, traffic, reference)
    except Exception as error:
        return Checked((f"check: {type(error).__name__}", _named(error)))


def _check(program: NestedProgram, seed: int, traffic: bool, reference: bool) -> Checked:
    args = arguments_of(program, seed)
    want = jax.jit(program.function(None))(*map(np.asarray, args))
    with program.context(), warnings.catch_warnings():
        warnings.simplefilter("ignore", errors.ShardingWarning)
        by_jax, failed = _attempt(lambda: _compiled(program.by_jax().lower(*args), args))
        ours, failure = _attempt(lambda: program.by_jaxmesh()(*args))
        if failed is not None or failure is not None:
            same = type(failed) is type(failure)
            return Checked(None if same else ("error", f"JAX: {_named(failed)}; jaxmesh: {_named(failure)}"))
        theirs, text = by_jax
        traced = program.by_jaxmesh().trace(*args)
        if traced.inexpressible is not None:
            return Checked(("inexpressible", str(traced.inexpressible)))
        lowered = traced.lower()
        compiled, compiled_text = _compiled(lowered, args)
        ways = {"jax.jit": theirs, "jm.jit": ours, "compile": compiled}
    if reference:
        ways["reference"] = lowered.reference(*args)
    with program.context():
        found = _differing(program, want, ways)
        if found is not None and found[0] == XLA_IS_WRONG and not reference:
            right = {"jax.jit": theirs, "reference": lowered.reference(*args)}
            found = _differing(program, want, right) or found
    if found is not None or not traffic:
        return Checked(found)
    sizes = dict(program.mesh.shape)
    both = (
        {f"{k} {'.'.join(a)}": sent for (k, a), (_, sent) in moved(t, sizes).items()} for t in (text, compiled_text)
    )
    measured = Checked(None, *both)
    return replace(measured, fault=_lost(measured))


def _compiled(lowered: Any, args: Sequence[Any]) -> tuple[Any, str]:
    """Returns the results of a lowered program, and its optimized HLO."""
    compiled = lowered.compile()
    return compiled(*args), compiled.as_text()


def _attempt(work: Callable[[], Any]) -> tuple[Any, Exception | None]:
    try:
        return work(), None
    except Exception as error:
        return None, error


def _named(error: Exception | None) -> str:
    return "no error" if error is None else f"{type(error).__name__}: {str(error)[:400]}"


def _differing(program: NestedProgram, want: Any, ways: dict[str, Any]) -> Fault | None:
    """Returns the first way whose results are not those of the program unsharded, or do not lie as JAX's do."""
    exact = not program.gradient and all(n.startswith(MOVES) for n in program.names)
    # XLA's partitioner itself is wrong at times: the program unsharded says what is right.
    wrong = {name: w for name in sorted({*ways} - {"jax.jit"}) if (w := _unlike(ways[name], want, exact))}
    for name, what in sorted(wrong.items(), reverse=True):
        alike = name != "reference" and "reference" not in wrong and _same_bits(ways[name], ways["jax.jit"])
        return (XLA_IS_WRONG if alike else f"value by {name}"), what
    for name in [n for n in ("jm.jit", "compile") if n in ways]:
        for i, (x, y) in enumerate(zip(ways[name], ways["jax.jit"], strict=True)):
            if not isinstance(y.sharding, NamedSharding):
                # JAX knows no mesh: no sharding was given.
                continue
            if not x.sharding.is_equivalent_to(y.sharding, x.ndim):
                return f"sharding by {name}", f"result {i} is {_spec(x)}, by JAX {_spec(y)}"
            if program.explicit and x.sharding.mesh != y.sharding.mesh:
                return f"mesh by {name}", f"result {i} is on {x.sharding.mesh}, by JAX on {y.sharding.mesh}"
    return None


def _same_bits(got: Sequence[Any], want: Sequence[Any]) -> bool:
    return all(same_bits(np.asarray(x), np.asarray(y)) for x, y in zip(got, want, strict=True))


def _spec(x: Any) -> Any:
    return getattr(x.sharding, "spec", x.sharding)


def _unlike(got: Sequence[Any], want: Sequence[Any], exact: bool) -> str | None:
    if len(got) != len(want):
        return f"{len(got)} results, not {len(want)}"
    for i, (a, b) in enumerate(zip(got, want, strict=True)):
        x, y = np.asarray(a), np.asarray(b)
        if x.shape != y.shape or x.dtype != y.dtype:
            return f"result {i} is {x.dtype}{x.shape}, unsharded {y.dtype}{y.shape}"
        scale = 1 + float(np.max(np.abs(y), initial=0))
        alike = same_bits(x, y) if exact else np.allclose(x, y, rtol=1e-4, atol=2e-5 * scale, equal_nan=True)
        if not alike:
            return f"result {i} differs by {np.max(np.abs(x - y))} of {scale}"
    return None


def _lost(found: Checked) -> Fault | None:
    """Returns what a program moves more than JAX's, unless it has the `REASON`."""
    if found.permutes or found.ratio is None or found.ratio <= MOST:
        return None
    return "traffic", f"{found.ours} bytes, XLA {found.xla}"


# --- cutting ---------------------------------------------------------------------------------------------------------


def smallest(program: NestedProgram, kind: str, seed: int) -> NestedProgram:
    """Returns a program that still has a fault of the kind, and of which no part can be left out."""
    while True:
        for less in _smaller(program):
            found = fault(less, seed, traffic=kind == "traffic", reference="reference" in kind)
            if found is not None and found[0] == kind:
                program = less
                break
        else:
            return program


def _smaller(program: NestedProgram) -> Iterator[NestedProgram]:
    if program.blocks:
        yield replace(program, blocks=())
    if len(program.blocks) > 1:
        yield from (replace(program, blocks=(b,)) for b in program.blocks)
    for i in range(len(program.steps)):
        if (less := _without(program, i)) is not None:
            yield less
    if program.gradient:
        yield replace(program, gradient=False, out_specs=(None,) * len(program.results))
    if len(program.results) > 1:
        for i in range(len(program.results)):
            outs = program.out_specs if program.gradient else program.out_specs[i : i + 1]
            yield replace(program, results=program.results[i : i + 1], out_specs=outs)
    for blocks in _fewer(program.blocks):
        yield replace(program, blocks=blocks)
    for name in () if program.explicit else ("in_specs", "out_specs", "placed"):
        specs = getattr(program, name)
        for i in [i for i, s in enumerate(specs) if s is not None]:
            yield replace(program, **{name: (*specs[:i], None, *specs[i + 1 :])})
    if program.full_results is not None:
        yield replace(program, full_results=None)


def _fewer(blocks: tuple[Block, ...]) -> Iterator[tuple[Block, ...]]:
    for i, b in enumerate(blocks):
        yield (*blocks[:i], *b.inner, *blocks[i + 1 :])
        for inner in _fewer(b.inner):
            yield (*blocks[:i], replace(b, inner=inner), *blocks[i + 1 :])
        for k in range(len(b.specs)):
            yield (*blocks[:i], replace(b, specs=b.specs[:k] + b.specs[k + 1 :]), *blocks[i + 1 :])


def _without(program: NestedProgram, at: int) -> NestedProgram | None:
    """Returns a program without a step, whose users take its first operand."""
    first = len(program.shapes)
    gone, instead = first + at, program.steps[at].operands[0]

    def renumbered(i: int) -> int:
        i = instead if i == gone else i
        return i - (i > gone)

    def cut(b: Block) -> Block:
        specs = tuple((i - (i > gone), s) for i, s in b.specs if i != gone)
        inner = tuple(c for c in map(cut, b.inner) if c.start < c.stop)
        return replace(b, start=b.start - (b.start > at), stop=b.stop - (b.stop > at), specs=specs, inner=inner)

    steps = [replace(s, operands=tuple(map(renumbered, s.operands))) for s in program.steps]
    steps.pop(at)
    if not steps:
        return None
    blocks = tuple(b for b in map(cut, program.blocks) if b.start < b.stop)
    results = tuple(map(renumbered, program.results))
    outs = program.out_specs
    if len(set(results)) < len(results):
        results, outs = results[:1], outs if program.gradient else outs[:1]
    return replace(program, steps=tuple(steps), blocks=blocks, results=results, out_specs=outs)


def _held(checked: Checked) -> Iterator[str]:
    """Names what a program holds, or the fault that it has."""
    if checked.fault is not None:
        yield checked.fault[0]
    if checked.ratio is None:
        return
    yield "right values and shardings"
    if checked.ratio <= MOST:
        yield "at most XLA's bytes" if checked.ratio <= 1 else f"at most {MOST} times XLA's bytes"
    else:
        yield "more, XLA permutes" if checked.permutes else "more"


# --- the command -----------------------------------------------------------------------------------------------------


def run(count: int, seed: int, say: Callable[[str], None], step: int = 1, cut: bool = True) -> Outcome:
    """Checks random programs and reports those that fail, cut, and how many hold what."""
    meshes, explicit, started = make_meshes(), make_meshes(explicit=True), time.perf_counter()
    failures, kinds = list[str](), Counter[str]()
    for number in range(seed, seed + count * step, step):
        program = draw(number, meshes, explicit)
        checked = check(program, number, reference=number // step % 8 == 1)
        found = checked.fault
        kinds.update(_held(checked))
        if found is not None and reason(program, found) is None:
            small = smallest(program, found[0], number) if cut else program
            shown = fault(small, number, traffic=found[0] == "traffic") if cut else found
            failures.append(f"seed {number}: {shown}\n{small}")
            say(failures[-1])
        if number // step % 40 == 39:
            jax.clear_caches()
            say(f"{number}: {time.perf_counter() - started:.0f} s, {dict(kinds)}")
    proved = f"{count} random nested programs give what they give unsharded, with JAX's shardings and traffic"
    return Outcome("nested programs", proved, count, tuple(failures), time.perf_counter() - started)


def main(arguments: Sequence[str]) -> int:
    from jaxmesh.sharding.mesh import emulate
    from tests.generators.outcome import DEVICES, report, say

    emulate(DEVICES)
    numbers = [a for a in arguments if a != "--whole"]
    count, seed, step = (*map(int, numbers), *(1, 0, 1)[len(numbers) :])
    outcome = run(count, seed, say, step, cut="--whole" not in arguments)
    print(report([outcome]))
    return 0 if outcome.passed else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
