"""Cuts a program to the operations that lead to its first wrong operation."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from jaxlib.mlir import ir

from jaxmesh.analysis.diagnose.as_jax import as_jax
from jaxmesh.analysis.diagnose.culprit import Culprit, counterparts
from jaxmesh.analysis.diagnose.diagnose import Compile, compile_file, diagnose
from jaxmesh.analysis.diagnose.diagnosis import WRONG, Diagnosis
from jaxmesh.analysis.diagnose.movements import is_collective
from jaxmesh.analysis.diagnose.reference import REGION
from jaxmesh.analysis.diagnose.tracking import Track
from jaxmesh.dialects.quoting import axis_names, mlir_string
from jaxmesh.errors import ArgumentValueError, JaxmeshError
from jaxmesh.frontends.mlir.source import parse
from jaxmesh.frontends.stablehlo.gspmd import replace_operands
from jaxmesh.frontends.stablehlo.shardings import Sharding, axes_of
from jaxmesh.jaxprs.tracing_state import undisturbed
from jaxmesh.runtime.progress import progress
from jaxmesh.validate import as_instance

_ir: Any = ir
_SIZES = re.compile(r"tensor<((?:\d+x)+)")
_SHARDED = re.compile(r"tensor<((?:\d+x)+)\w+> \{sdy\.sharding = #sdy\.sharding<@mesh, \[(.*?)\]>")
_RANGE = re.compile(r"\d+(?=[:\],])|(?<=:)\d+")
_MOST_CHANGED = 2
"""The sizes that shrink together, beside all of them."""


@dataclass(frozen=True, slots=True)
class Minimized:
    """A small program with the error.

    Attributes:
      stablehlo: the program, with global shapes and shardings.
      jax: the same as a JAX program; None if an operation has no short form.
      operations: the number of its operations.
      verified: True if the compiler has compiled it, and the same operation is wrong; False without a compiler.
    """

    stablehlo: str
    jax: str | None
    operations: int
    verified: bool

    def to_dict(self) -> dict[str, Any]:
        """Returns the program as data."""
        return {"stablehlo": self.stablehlo, "jax": self.jax, "verified": self.verified}

    def __str__(self) -> str:
        state = "compiled again, and wrong again" if self.verified else "not compiled again"
        program = self.jax or "# an operation has no short form in JAX; take the StableHLO"
        head = f"reproduction, {self.operations} operations, {state}"
        return f"{head}\n\n--- StableHLO\n{self.stablehlo}\n\n--- JAX\n{program}"


@dataclass(frozen=True, slots=True)
class _Cut:
    """Some operations of the reference, in order: by the numbers of their values."""

    values: tuple[int, ...]
    inputs: tuple[int, ...]
    output: int


def minimize(diagnosis: Diagnosis, *, compiler: Compile | None = None, seed: int = 0) -> Minimized:
    """Returns the smallest part of a program that is compiled wrongly.

    With a compiler, each part is compiled and diagnosed, from the wrong operation alone to the whole program before it;
    then its shapes shrink while it stays wrong. Without one, the part is the wrong operation alone.

    >>> import jax, jax.numpy as jnp, jaxmesh as jm
    >>> f, x = lambda x: jnp.tanh(x) * 2, jnp.ones((4, 8))
    >>> texts = {"shlo_frontend": jax.jit(f).lower(x).as_text("stablehlo"), "ttir": jm.jit(f).trace(x).as_text()}
    >>> found = jm.diagnose({**texts, "ttir": texts["ttir"].replace("ttir.tanh", "ttir.sin")})
    >>> print(jm.minimize(found).jax.partition("def ")[2].partition("\\n\\n")[0])
    f(x0):
        v0 = lax.tanh(x0)
        return v0
    """
    found = as_instance(Diagnosis, "minimize", "diagnosis", diagnosis)
    track, culprit = found.track, found.culprit
    if track is None or culprit is None:
        raise ArgumentValueError(f"a program is minimised if it is wrong; the verdict is {diagnosis.verdict}.")
    target = _target(track, culprit)
    moves = is_collective(culprit.op) or track.reference.values[target].op == REGION
    result = None if culprit.value is None or moves else culprit.value.placement

    def is_wrong(text: str) -> bool:
        try:
            compiled: Any = compile_file(text, compiler) if compiler else {}
            found = compiled if isinstance(compiled, Diagnosis) else diagnose(compiled, seed=seed)
            return (found.verdict, found.op) == (WRONG, diagnosis.op)
        except JaxmeshError:
            return False

    cut, text = _Cut((), (), target), ""
    wrong = [n for n, o in zip(track.reference.outputs, track.outputs, strict=True) if not o.is_right]
    with progress("minimize"), undisturbed():
        # Where the wrong operation is a step of a later one, only what leads to a wrong result shows it.
        for number, cut in enumerate(c for end in dict.fromkeys((target, *wrong)) for c in _cuts(track, end)):
            placed = result if number < 2 and cut.output == target else None
            text = _text(track, cut, placed)
            if compiler is None or is_wrong(text):
                small = _shrunk(text, is_wrong) if compiler else text
                return _minimized(track, cut, placed, small, compiler is not None)
    return _minimized(track, cut, None, text, False)


def _target(track: Track, culprit: Culprit) -> int:
    """Returns the value of the reference that a part has to compute; for a collective, the value of its reader; within
    a region, its result."""
    number, values = _target_anywhere(track, culprit), track.reference.values
    region = (i for i, v in enumerate(values) if v.op == REGION and v.operation is values[number].operation)
    return next(region) if values[number].manual else number


def _target_anywhere(track: Track, culprit: Culprit) -> int:
    ops, values = track.stage.text.program.ops, set(culprit.op.results)
    if not is_collective(culprit.op) and culprit.expected is not None:
        return next(i for i, v in enumerate(track.reference.values) if v is culprit.expected)
    for number in range(culprit.number + 1, len(ops)):
        if values.intersection(ops[number].used):
            found = counterparts(track, number, ops[number])
            if not is_collective(ops[number]) and found:
                return found[0]
            values.update(ops[number].results)
    return track.reference.outputs[0]


def _cuts(track: Track, target: int) -> Iterator[_Cut]:
    """Yields the parts that compute a value, by the number of operations before it."""
    values = track.reference.values
    seen: set[tuple[int, ...]] = set()
    for depth in range(len(values)):
        taken, front = {target}, {target}
        for _ in range(depth):
            front = {o for n in front for o in values[n].operands if values[o].operation is not None} - taken
            taken |= front
        taken |= {o for n in taken for o in values[n].operands if values[o].op == "stablehlo.constant"}
        # A region is taken whole.
        regions = [values[n].operation for n in taken if values[n].op == REGION]
        taken |= {i for i, v in enumerate(values) if any(v.operation is r for r in regions)}
        taken = {n for n in taken if values[n].operation is not None}
        chosen = tuple(sorted(taken))
        if chosen in seen:
            return
        seen.add(chosen)
        yield _Cut(chosen, tuple(sorted({o for n in taken for o in values[n].operands} - taken)), target)


def _placement(track: Track, number: int) -> Sharding:
    """Returns where the devices hold a value of the reference."""
    values, same = track.reference.values, track.pool.same
    if number < len(track.reference.arguments) and track.reference.arguments[number]:
        return track.reference.arguments[number] or ()
    found = [e for e in track.known.values() if e.number == same[number] and not e.partial]
    return max((e.placement for e in found), key=lambda p: len(axes_of(p)), default=((),) * values[number].array.ndim)


def _written(sharding: Sharding) -> str:
    dims = ", ".join("{" + ", ".join(mlir_string(a) for a in axes) + "}" for axes in sharding)
    return f"sdy.sharding = #sdy.sharding<@mesh, [{dims}]>"


def _text(track: Track, cut: _Cut, result: Sharding | None) -> str:
    """Returns a part as a StableHLO module."""
    values, axes = track.reference.values, track.reference.axes or dict(track.stage.mesh)
    inputs = [values[n].value for n in cut.inputs]
    arguments = ", ".join(
        f"%arg{i}: {v.type} {{{_written(_placement(track, n))}}}"
        for i, (v, n) in enumerate(zip(inputs, cut.inputs, strict=True))
    )
    last = values[cut.output].value
    output = last.type
    sharded = "" if result is None else f" {{{_written(result)}}}"
    sizes = ", ".join(f"{mlir_string(a)}={n}" for a, n in axes.items())
    named = {"mesh": f"sdy.mesh @mesh = <[{sizes}]>"}
    # JAX 0.12 names the groups of a region's collectives by a mesh of their own.
    (block,) = track.reference.module.regions[0]
    stated = [o.operation for o in block.operations if o.operation.name == "sdy.mesh"]
    named |= {o.attributes["sym_name"].value: str(o) for o in stated}
    meshes = "".join(f"  {mesh}\n" for mesh in named.values())
    count = math.prod(axes.values())
    head = (
        f"module @part attributes {{mhlo.num_partitions = {count} : i32, mhlo.num_replicas = 1 : i32}} {{\n"
        f"{meshes}  func.func public @main({arguments}) -> ({output}{sharded}) {{\n"
    )
    context = track.reference.module.context
    with context, _ir.Location.unknown(context):
        module = _ir.Module.parse(f"{head}    %stand_in = stablehlo.constant dense<0> : tensor<i32>\n"
                                  f"    %out = builtin.unrealized_conversion_cast %stand_in : tensor<i32> to {output}\n"
                                  f"    return %out : {output}\n  }}\n}}")  # fmt: skip
        _fill(module, [values[n].operation for n in cut.values], inputs, last)
        return str(module)


def _fill(module: Any, ops: Sequence[Any], inputs: Sequence[Any], last: Any) -> None:
    """Adds copies of operations to the function of a module."""
    function = next(o.operation for o in module.body.operations if o.operation.name == "func.func")
    block = function.regions[0].blocks[0]
    stand_in, cast, end = [o.operation for o in block.operations]
    known = dict(zip(inputs, block.arguments, strict=True))
    point = _ir.InsertionPoint(end)
    for op in dict.fromkeys(ops):
        copy = op.clone(point).operation
        replace_operands(copy, known)
        known.update(zip(op.results, copy.results, strict=True))
    cast.results[0].replace_all_uses_with(known[last])
    cast.erase()
    stand_in.erase()


# --- shapes ----------------------------------------------------------------------------------------------------------


def _shrunk(text: str, is_wrong: Callable[[str], bool]) -> str:
    """Returns the program with sizes halved while it stays wrong."""
    while True:
        smaller = next((t for t in _halved(text) if _divides(t) and _is_valid(t) and is_wrong(t)), None)
        if smaller is None:
            return text
        text = smaller


def _halved(text: str) -> Iterator[str]:
    sizes = sorted({int(n) for shape in _SIZES.findall(text) for n in shape.split("x") if n and int(n) > 1})
    even = [n for n in sizes if n % 2 == 0]
    sets = [even, *(c for k in range(1, _MOST_CHANGED + 1) for c in itertools.combinations(even, k))]
    for changed in filter(None, sets):
        smaller = {str(n): str(n // 2) for n in changed}
        yield "\n".join(_smaller(line, smaller) for line in text.split("\n"))


def _smaller(line: str, smaller: Mapping[str, str]) -> str:
    """Returns a line with other sizes in its types, and in the bounds of a slice."""

    def shape(found: re.Match[str]) -> str:
        return "tensor<" + "x".join(smaller.get(n, n) for n in found[1].split("x"))

    def bound(found: re.Match[str]) -> str:
        return smaller.get(found[0], found[0])

    line = _SIZES.sub(shape, line)
    return _RANGE.sub(bound, line) if "stablehlo.slice" in line else line


def _divides(text: str) -> bool:
    """Returns True if every sharding cuts its dims evenly."""
    axes = {a: int(n) for a, n in re.findall(r'"([^"]*)"=(\d+)', text)}
    for shape, dims in _SHARDED.findall(text):
        sizes = [int(n) for n in shape.split("x") if n]
        split = [math.prod(axes[a] for a in axis_names(dim)) for dim in dims.split("}")[: len(sizes)]]
        if any(n % k for n, k in zip(sizes, split, strict=True)):
            return False
    return True


def _is_valid(text: str) -> bool:
    try:
        return all(piece.module.operation.verify() for piece in parse(text))
    except (JaxmeshError, _ir.MLIRError):
        return False


def _minimized(track: Track, cut: _Cut, result: Sharding | None, text: str, verified: bool) -> Minimized:
    (piece, *_) = parse(text)
    function = next(o.operation for o in piece.module.body.operations if o.operation.name == "func.func")
    block = function.regions[0].blocks[0]
    *body, end = [o.operation for o in block.operations]
    axes = track.reference.axes or dict(track.stage.mesh)
    places = [_placement(track, n) for n in cut.inputs]
    program = as_jax(body, list(block.arguments), end.operands[0], places, result, axes)
    return Minimized(text, program, len(body), verified)
