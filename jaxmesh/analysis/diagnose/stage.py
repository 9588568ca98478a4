"""A text with local shapes, run on emulated devices, value by value."""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from jax.sharding import AbstractMesh

from jaxmesh.analysis.diagnose import in_numpy
from jaxmesh.analysis.diagnose.source_lines import SourceLines
from jaxmesh.analysis.reference_rules import RULES
from jaxmesh.dialects.definitions import has_trait
from jaxmesh.dialects.op import Trait
from jaxmesh.dialects.program import Op, Port, Program
from jaxmesh.dialects.residency import DEVICE, HOST
from jaxmesh.dialects.textual import check_executable
from jaxmesh.errors import MeshError, UnsupportedError
from jaxmesh.frontends.mlir.decode import decode
from jaxmesh.frontends.mlir.module import BoundaryAttributes, choose, declared_mesh, load_text
from jaxmesh.frontends.mlir.text import PrintedText, Text, fitting_mesh, with_layouts_obeyed
from jaxmesh.frontends.mlir.trace import trace_program
from jaxmesh.frontends.mlir.upgrade import FUNCTIONS
from jaxmesh.frontends.stablehlo.shardings import Sharding, axes_of, count, local_shape, show
from jaxmesh.jaxprs import walk
from jaxmesh.jaxprs.caches import lru_cached, lru_cached_by_config
from jaxmesh.jaxprs.compat import Literal
from jaxmesh.jaxprs.evaluate import literal_value
from jaxmesh.runtime.reference import Shards, run_steps
from jaxmesh.sharding.mesh import default_axis_names

Array = np.ndarray[Any, Any]
Coordinate = tuple[int, ...]
Copies = dict[Coordinate, Array]
"""The value of each device, by its mesh coordinate."""


@dataclass(frozen=True, slots=True, eq=False)
class StageProgram:
    """A stage that can run.

    Attributes:
      name: `ttir` or `ttnn`.
      text: the decoded function.
      mesh: the sizes of the mesh axes, by name.
      locations: the source lines of the text.
      iterations: of operations of loops that are written out, the iteration of each loop, the outermost first.
      given: the values that stand for results of operations that are not read, on every device.
    """

    name: str
    text: Text
    mesh: Mapping[str, int]
    locations: SourceLines
    iterations: Mapping[int, tuple[int, ...]] = field(default_factory=dict[int, tuple[int, ...]])
    given: Mapping[int, Copies] = field(default_factory=dict[int, Copies])

    @property
    def coordinates(self) -> list[Coordinate]:
        """The mesh coordinates of all devices."""
        return list(itertools.product(*map(range, self.mesh.values())))

    def operands(self, op: Op) -> list[int]:
        """Returns the tensors that an operation reads."""
        return [v for v in op.used if self.text.program.types[v].kind == "tensor"]

    def source(self, number: int) -> str:
        """Returns the user's source line of an operation, by number."""
        return self.locations.at(self.text.lines[number])

    def written_name(self, number: int) -> str:
        """Returns the name of an operation in the text, by number; `func.return` after the last operation."""
        return self.text.names[number] if number < len(self.text.names) else "func.return"

    def marks_whole(self, number: int, asked: Sharding, made: Sequence[Op]) -> bool:
        """Returns True if a result that is asked in shards is marked as one array of the host, which none of the
        operations that `made` it joins of shards."""
        last = [o for o in made if o.name.endswith((".mesh_shard", ".aggregate_tensor"))][-1:]
        sizes = [[math.prod(self.text.program.types[v].shape) for v in (o.used[0], o.results[0])] for o in last]
        # One that cuts makes less of its operand.
        joined = any(before <= after for before, after in sizes)
        is_whole = self.text.results[number].status == "unsharded" and bool(made) and not joined
        return is_whole and any(self.mesh.get(a, 1) > 1 for a in axes_of(asked))

    def printed_program(self, program: Program) -> Program | None:
        """Returns the flat program with residencies and layouts; None if an op is not of the text's dialect."""
        text, ports = self.text, self.text.program.arguments
        rows = zip(ports, text.presharded, text.arguments, strict=True)
        arguments = [replace(p, presharded=there, varying=a.varying, role=a.role) for p, there, a in rows]
        kept = [r.status != "unsharded" for r in text.results]
        return PrintedText(program, self.mesh, arguments, kept, public=False).program(self.name)


def read_stage(name: str, written: str, axes: Mapping[str, int] | None) -> StageProgram:
    """Reads the text of a stage; `axes` are the mesh axes of the program with global shapes."""
    return _read_stage(name, written, None if axes is None else tuple(axes.items()))


@lru_cached(2)
def _read_stage(name: str, written: str, named: tuple[tuple[str, int], ...] | None) -> StageProgram:
    axes = None if named is None else dict(named)
    file = load_text(written)
    function = choose(file, None)
    text = with_layouts_obeyed(decode(function, file.named))
    declared = declared_mesh(function, file.run_lines)
    sizes = declared.sizes if declared is not None else text.device_mesh or fitting_mesh(text)
    if sizes is None:
        sizes = tuple(axes.values()) if axes else (1, 1)
    return StageProgram(name, text, _named(sizes, axes or {}), SourceLines.of(written))


def _named(sizes: tuple[int, ...], axes: Mapping[str, int]) -> dict[str, int]:
    """Returns the sizes of the mesh axes with the user's names; upstream writes a mesh of one axis as one row."""
    known = tuple(axes.values())
    if sizes == known:
        return dict(axes)
    if len(sizes) > len(known) and sizes[len(sizes) - len(known) :] == known:
        added = [f"_{i}" for i in range(len(sizes) - len(known))]
        return dict(zip([*added, *axes], sizes, strict=True))
    if np.prod(known, dtype=int) > 1:
        raise MeshError(f"the text with local shapes is for the mesh {sizes}, the program for {dict(axes)}.")
    return dict(zip(default_axis_names(len(sizes)), sizes, strict=True))


def block_of(x: Array, sharding: Sharding, mesh: Mapping[str, int], coordinate: Coordinate) -> Array:
    """Returns a device's block of a global value, in plain slices."""
    at = dict(zip(mesh, coordinate, strict=True))
    index: list[slice] = []
    for size, axes in zip(local_shape(x.shape, sharding, mesh), sharding, strict=True):
        position = 0
        for axis in axes:
            position = position * mesh[axis] + at[axis]
        index.append(slice(position * size, (position + 1) * size))
    return x[(*index, ...)]


def without_equal(x: Array, axes: Sequence[str]) -> tuple[Array, tuple[str, ...]]:
    """Returns an array whose first dims are mesh axes without those along which it has one value, and the others.

    >>> without_equal(np.array([[1, 2], [1, 2]]), ("y", "x"))
    (array([1, 2]), ('x',))
    """
    kept = list(axes)
    for axis in axes:
        rows = np.moveaxis(x, kept.index(axis), 0)
        if all(walk.same_bits(rows[0], row) for row in rows[1:]):
            x = rows[0]
            kept.remove(axis)
    return x, tuple(kept)


def as_pairs(x: Array) -> Array:
    """Returns numbers of 64 bits as pairs of 32 bits, the lower ones first, in a last dim."""
    low, high = x.astype(np.uint32), (x >> np.uint64(32)).astype(np.uint32)
    return np.stack([low, high], -1)


def place_arguments(stage: StageProgram, arrays: Sequence[Array], declared: Sequence[Sharding | None]) -> list[Any]:
    """Returns the arguments of a stage: full arrays, or the blocks of presharded ones by their declared shardings.

    The compiler passes `uint64` as pairs of 32 bits.

    Raises:
      UnsupportedError: the stage has other arguments than the program, or shapes that the shardings do not explain.
    """
    text, placed = stage.text, list[Any]()
    if len(text.avals) != len(arrays):
        raise UnsupportedError(
            f"the {stage.name} text takes {len(text.avals)} arguments, and the program with global shapes "
            f"{len(arrays)}; arguments that the compiler adds or removes are not comparable."
        )
    for number, (x, aval, on_devices) in enumerate(zip(arrays, text.avals, text.presharded, strict=True)):
        sharding = declared[number] or ((),) * x.ndim
        if x.dtype == np.uint64 and aval.dtype == np.uint32 and aval.ndim > x.ndim:
            x, sharding = as_pairs(x), (*sharding, ())
        fits = all(a in stage.mesh for a in axes_of(sharding)) and all(
            n % count(a, stage.mesh) == 0 for n, a in zip(x.shape, sharding, strict=True)
        )
        local = local_shape(x.shape, sharding, stage.mesh) if on_devices and fits else x.shape
        if local != aval.shape or not fits:
            raise UnsupportedError(
                f"argument {number} of the {stage.name} text has the local shape {list(aval.shape)}, but the global "
                f"shape {list(x.shape)} with the sharding {sharding} yields {list(local)}."
            )
        value = x.astype(aval.dtype, copy=False)
        blocks = {c: block_of(value, sharding, stage.mesh, c) for c in stage.coordinates}
        placed.append(blocks if on_devices else value)
    return placed


def placed_otherwise(stage: StageProgram, arrays: Sequence[Array], declared: Sequence[Sharding | None]) -> list[str]:
    """Returns one sentence for each argument that a stage has on its devices in another layout than is asked."""
    found, rows = list[str](), zip(arrays, stage.text.avals, stage.text.presharded, declared, strict=False)
    for number, (x, aval, on_devices, asked) in enumerate(rows):
        axes = axes_of(asked or ())
        if asked is None or x.ndim != aval.ndim or not all(a in stage.mesh for a in axes):
            continue
        is_split, said = any(stage.mesh[a] > 1 for a in axes), f"argument {number} is asked as {show(asked)}"
        local, made = local_shape(x.shape, asked, stage.mesh), aval.shape
        if on_devices and made != local and all(n and m % n == 0 for m, n in zip(x.shape, made, strict=True)):
            found.append(f"{said}, of which a device has the shape {list(local)}, and made with the shape {list(made)}")
        elif not on_devices and is_split and _is_used_whole(stage, number):
            found.append(f"{said} and marked unsharded, which says one whole array of the host; the devices hold P()")
    return found


def _is_used_whole(stage: StageProgram, number: int) -> bool:
    """Returns True if operations read an argument, and none distributes it."""
    program = stage.text.program
    rest, read = {program.arguments[number].value}, list[Op]()
    for op in program.ops:
        if rest & set(op.used) and op.results:
            read.append(op)
            rest |= set(op.results) if has_trait(op.name, Trait.LAYOUT) or has_trait(op.name, Trait.VIEW) else set()
    return bool(read) and not any(has_trait(op.name, Trait.TRANSFERS) for op in read)


@dataclass(frozen=True, slots=True)
class StageTrace:
    """The equations of a stage.

    Attributes:
      jaxpr: the closed jaxpr; its results are all tensors of the text.
      named: by variable, the values of the text that it stands for.
      literals: the values of the text that are numbers of the jaxpr.
    """

    jaxpr: Any
    named: Mapping[Any, Sequence[int]]
    literals: Mapping[int, Array]


@lru_cached_by_config(2)
def trace_stage(stage: StageProgram) -> StageTrace:
    """Traces a stage with every tensor of its text as a result.

    Raises:
      JaxmeshError: an operation has no meaning here, or breaks a rule.
    """
    text = stage.text
    numbers = [v for v, kind in enumerate(text.program.types) if kind.kind == "tensor"]
    ports = [Port(v, False) for v in numbers]
    every = replace(
        text, program=text.program.like(text.program.ops, ports), results=(BoundaryAttributes(None, None),) * len(ports)
    )
    outcome = trace_program(every, AbstractMesh(tuple(stage.mesh.values()), tuple(stage.mesh)), strict=False)
    if outcome.error is not None:
        raise outcome.error
    check_executable(outcome.jaxpr)
    named, literals = defaultdict[Any, list[int]](list), dict[int, Array]()
    for value, out in zip(numbers, walk.open_jaxpr(outcome.jaxpr).outvars, strict=True):
        if isinstance(out, Literal):
            literals[value] = np.asarray(literal_value(out), text.program.types[value].dtype)
        else:
            named[out].append(value)
    return StageTrace(outcome.jaxpr, named, literals)


def run_trace(stage: StageProgram, trace: StageTrace, placed: Sequence[Any]) -> Iterator[tuple[Any, Any]]:
    """Runs the equations of a stage; yields each variable with its value, in order."""
    residencies = [DEVICE if p else HOST for p in stage.text.presharded]
    for variable, value in run_steps(trace.jaxpr, residencies, stage.mesh, placed, RULES["ttir"], in_numpy.bind):
        _share(value)
        yield variable, value


def run_stage(stage: StageProgram, placed: Sequence[Any]) -> Iterator[tuple[int, Copies]]:
    """Runs a stage; yields the number of each value of its text with the value on every device, in program order.

    Raises:
      JaxmeshError: an operation has no meaning here, or breaks a rule.
    """
    trace, everywhere = trace_stage(stage), stage.coordinates
    yield from ((value, dict.fromkeys(everywhere, x)) for value, x in trace.literals.items())
    for variable, value in run_trace(stage, trace, placed):
        if variable in trace.named:
            copies = copies_of(value, everywhere)
            for number in trace.named[variable]:
                yield number, copies


def read_after_free(stage: StageProgram) -> tuple[str, int, int] | None:
    """Returns the name and the line of the first operation that reads a deallocated value, and the line that frees it.

    The functions of loops and branches are looked at, too. Those of calls see to their own values.
    """
    text = stage.text
    rows: list[tuple[Any, int, int]] = [(text, text.function.line + 1, text.end)]
    for op in text.program.ops:
        # The text prints the return of an inner function behind its last operation.
        inner: Sequence[Any] = op.attributes.get(FUNCTIONS, ())
        rows += [(f, f.lines[0], f.lines[-1] + 1) for f in inner if f.lines]
    return next((found for row in rows if (found := _read_after_free(*row)) is not None), None)


def _read_after_free(function: Any, first: int, end: int) -> tuple[str, int, int] | None:
    freed = dict[int, int]()
    for op, line, name in zip(function.program.ops, function.lines, function.names, strict=True):
        if not first <= line <= end:
            continue
        if (value := next((v for v in op.used if v in freed), None)) is not None:
            return name, line, freed[value]
        if op.name == "ttnn.deallocate":
            freed.update((v, line) for v in op.used)
    value = next((p.value for p in function.program.results if p.value in freed), None)
    return None if value is None else ("func.return", end, freed[value])


def _share(value: Any) -> None:
    """Makes equal copies one object, so that what follows is computed once for all of their devices."""
    if not isinstance(value, Shards):
        return
    objects = {id(x): x for x in value.values()}
    if len(objects) == 1:
        return
    contents, first = walk.Contents(), dict[int, Any]()
    shared = {key: first.setdefault(id(contents.first(np.asarray(x))), x) for key, x in objects.items()}
    for c, shard in value.items():
        value[c] = shared[id(shard)]


def copies_of(value: Any, everywhere: Sequence[Coordinate]) -> Copies:
    """Returns the value of each device; equal objects stay one object."""
    if not isinstance(value, Shards):
        return dict.fromkeys(everywhere, np.asarray(value))
    arrays: dict[int, Array] = {}
    for shard in value.values():
        if id(shard) not in arrays:
            arrays[id(shard)] = np.asarray(shard)
    return {c: arrays[id(value[c])] for c in everywhere}


def producers(text: Text) -> dict[int, tuple[int, Op]]:
    """Returns, by value, the operation that makes it, with its number."""
    return {v: (i, op) for i, op in enumerate(text.program.ops) for v in op.results}
