"""Cuts a program to the operations that lead to its first wrong operation."""

from __future__ import annotations

import functools
import itertools
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from jaxlib.mlir import ir

from jaxmesh.analysis.diagnose.as_jax import as_jax
from jaxmesh.analysis.diagnose.culprit import Culprit, counterparts
from jaxmesh.analysis.diagnose.diagnose import Compile, compile_file, diagnose
from jaxmesh.analysis.diagnose.diagnosis import WRONG, Diagnosis
from jaxmesh.analysis.diagnose.movements import is_collective
from jaxmesh.analysis.diagnose.region import REGION
from jaxmesh.analysis.diagnose.stage import Array
from jaxmesh.analysis.diagnose.tracking import Track
from jaxmesh.dialects.program import Op, Port, Program, Type
from jaxmesh.dialects.quoting import axis_names, mlir_string
from jaxmesh.emit.mlir.printer import mlir_text
from jaxmesh.errors import ArgumentValueError, JaxmeshError
from jaxmesh.frontends.mlir.source import parse
from jaxmesh.frontends.mlir.text import PrintedText
from jaxmesh.frontends.stablehlo.gspmd import replace_operands
from jaxmesh.frontends.stablehlo.shardings import Sharding, axes_of, local_shape
from jaxmesh.jaxprs.compat import undisturbed
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
      compiled: what the compiler makes of it, cut from the text with the error and run again; empty if the program was
        compiled again.
    """

    stablehlo: str
    jax: str | None
    operations: int
    compiled: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Returns the program as data."""
        return {"stablehlo": self.stablehlo, "jax": self.jax, "compiled": self.compiled}

    def __str__(self) -> str:
        state = "run again from the text" if self.compiled else "compiled again"
        program = self.jax or "# an operation has no short form in JAX; take the StableHLO"
        count = "1 operation" if self.operations == 1 else f"{self.operations} operations"
        head = f"reproduction, {count}, {state}, and wrong again"
        text = f"\n\n--- compiled to\n{self.compiled}" if self.compiled else ""
        return f"{head}\n\n--- StableHLO\n{self.stablehlo}{text}\n\n--- JAX\n{program}"


@dataclass(frozen=True, slots=True)
class _Cut:
    """Some operations of the reference, in order: by the numbers of their values."""

    values: tuple[int, ...]
    inputs: tuple[int, ...]
    output: int


def minimize(diagnosis: Diagnosis, *, compiler: Compile | None = None, seed: int = 0) -> Minimized | None:
    """Returns the smallest part of a program that is compiled wrongly; None if no part is seen to have the same error.

    With a compiler, each part is compiled and diagnosed, from the wrong operation alone to the whole program before it;
    then its shapes shrink while it stays wrong. Without one, the part is cut from the text and run.

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
    target, goal = _target(track, culprit)
    moves = is_collective(culprit.op) or track.reference.values[target].op == REGION
    result = None if culprit.value is None or moves else culprit.value.placement

    def is_wrong(text: str, part: str | None = None, args: Sequence[Array] = (), *, alike: bool = False) -> bool:
        try:
            compiled: Any = {"shlo_frontend": text, track.stage.name: part}
            compiled = compile_file(text, compiler) if compiler else compiled
            again = compiled if isinstance(compiled, Diagnosis) else diagnose(compiled, *args, seed=seed)
        except JaxmeshError:
            return False
        # A step of an operation may have another counterpart in a part.
        kinds = {d.expected.partition(" ")[0] for d in (again, diagnosis)}
        return (again.verdict, again.op) == (WRONG, diagnosis.op) and (len(kinds) == 1 or not alike)

    wrong = [n for n, o in zip(track.reference.outputs, track.outputs, strict=True) if not o.is_right]
    with progress("minimize"), undisturbed():
        # Where the wrong operation is a step of a later one, only what leads to a wrong result shows it.
        for number, cut in enumerate(c for end in dict.fromkeys((target, *wrong)) for c in _cuts(track, end)):
            placed = result if number < 2 and cut.output == target else None
            value = goal if cut.output == target else track.outputs[track.reference.outputs.index(cut.output)].value
            part = None if compiler else _part(track, cut, value)
            text = _text(track, cut, placed if compiler else result or _placement(track, cut.output))
            arrays = [track.reference.values[n].array for n in cut.inputs]
            shows = functools.partial(is_wrong, alike=cut.output == target)
            if (compiler or part) and shows(text, part, arrays):
                return _minimized(track, cut, placed, _shrunk(text, shows) if compiler else text, part or "")
    return None


def _target(track: Track, culprit: Culprit) -> tuple[int, int]:
    """Returns the value that a part has to compute, in the reference and in the text; instead of a collective's result
    its reader's, and instead of a value within a region the result of the region."""
    number, value = _target_anywhere(track, culprit)
    values = track.reference.values
    region = (i for i, v in enumerate(values) if v.op == REGION and v.operation is values[number].operation)
    return (next(region) if values[number].manual else number), value


def _target_anywhere(track: Track, culprit: Culprit) -> tuple[int, int]:
    ops, values = track.stage.text.program.ops, set(culprit.op.results)
    if not is_collective(culprit.op) and culprit.expected is not None:
        number = next(i for i, v in enumerate(track.reference.values) if v is culprit.expected)
        return number, culprit.op.results[0]
    for number in range(culprit.number + 1, len(ops)):
        if values.intersection(ops[number].used):
            found = counterparts(track, number, ops[number])
            if not is_collective(ops[number]) and found:
                return found[0], ops[number].results[0]
            values.update(ops[number].results)
    return track.reference.outputs[0], track.outputs[0].value


def _part(track: Track, cut: _Cut, goal: int) -> str | None:
    """Returns the operations of the text that compute a part; None if they read other values than its inputs."""
    stage, same = track.stage, track.pool.same
    numbers = {same[n]: i for i, n in enumerate(cut.inputs)}
    given, taken, rest = dict[int, int](), dict[int, Op](), [goal]
    while rest:
        value = rest.pop()
        held = track.known.get(value)
        whole = held is not None and not held.partial and not held.apart and value != goal
        at = numbers.get(same[held.number]) if held is not None and whole else None
        fits = held is not None and at is not None and held.placement == _placement(track, cut.inputs[at])
        if at is not None and fits and given.setdefault(at, value) == value:
            continue
        if value not in track.producers:
            return None
        number, op = track.producers[value]
        rest += op.used if number not in taken else ()
        taken[number] = op
    program, types = stage.text.program, list[Type]()
    names = dict[int, int]()
    for i, n in enumerate(cut.inputs):
        x = track.reference.values[n].array
        local = local_shape(x.shape, _placement(track, n), stage.mesh)
        types.append(program.types[given[i]] if i in given else Type(local, x.dtype))
        if i in given:
            names[given[i]] = i
    for _, op in sorted(taken.items()):
        for v in op.results:
            names[v] = len(types)
            types.append(program.types[v])
    ops = [
        replace(op, operands=tuple(None if v is None else names[v] for v in op.operands),
                results=tuple(names[v] for v in op.results))
        for _, op in sorted(taken.items())
    ]  # fmt: skip
    ports = [Port(i, True) for i in range(len(cut.inputs))]
    part = Program("main", dict(stage.mesh), types, ports, ops, [Port(names[goal], True)])
    printed = PrintedText(part, stage.mesh, ports, [True], public=False).program(stage.name)
    try:
        return None if printed is None else mlir_text(printed, layouts=stage.name == "ttnn")
    except JaxmeshError:
        return None


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


def _minimized(track: Track, cut: _Cut, result: Sharding | None, text: str, part: str) -> Minimized:
    (piece, *_) = parse(text)
    function = next(o.operation for o in piece.module.body.operations if o.operation.name == "func.func")
    block = function.regions[0].blocks[0]
    *body, end = [o.operation for o in block.operations]
    axes = track.reference.axes or dict(track.stage.mesh)
    places = [_placement(track, n) for n in cut.inputs]
    program = as_jax(body, list(block.arguments), end.operands[0], places, result, axes)
    return Minimized(text, program, len(body), part)
