"""A decoded function of a TTIR or TTNN text: signature, mesh, placements on devices, and its program for printers."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TypeGuard, cast

import jax
import numpy as np

from jaxmesh.dialects.definitions import definition_of, has_trait, ttnn_definition
from jaxmesh.dialects.op import Trait
from jaxmesh.dialects.program import NO_ATTRIBUTES, Op, Port, Program, Type
from jaxmesh.dialects.ttnn.forms import Occurrence
from jaxmesh.dialects.ttnn.layouts import is_plain
from jaxmesh.errors import ArgumentTypeError, JaxmeshError, VerifyError
from jaxmesh.frontends.mlir.module import BoundaryAttributes, Function
from jaxmesh.jaxprs.untyped import DType

DEVICE = Type((), np.dtype(np.int32), kind="device")
"""The type of mesh devices, and the base of semaphores' types."""


@dataclass(frozen=True, slots=True)
class Text:
    """A decoded function.

    Attributes:
      function: the function of the file.
      program: its flat program, calls inlined, in the current spelling of each op. Residencies and layouts are those
        that the types of the text name; ports have values alone.
      lines: the line of the file of each op.
      names: the name that the text gives each op, with the dialect.
      end: the line of `func.return`.
      arguments: the boundary attributes of its arguments.
      results: the boundary attributes of its results.
      needs: the first op that needs a mesh, with its line; None if no op does.
      device_mesh: the mesh shape that a `ttnn.get_device` asks for.
      notes: remarks on element types that are read as others.
      deviations: one sentence per op that is not as upstream defines it.
      is_current: True if the text spells every op as the printer does.
    """

    function: Function
    program: Program
    lines: Sequence[int]
    names: Sequence[str]
    end: int
    arguments: tuple[BoundaryAttributes, ...]
    results: tuple[BoundaryAttributes, ...]
    needs: str | None = None
    device_mesh: tuple[int, ...] | None = None
    notes: tuple[str, ...] = ()
    deviations: tuple[str, ...] = ()
    is_current: bool = True

    @property
    def presharded(self) -> tuple[bool, ...]:
        """True for each argument that is on the devices already."""
        return tuple(a.status == "presharded" for a in self.arguments)

    @property
    def avals(self) -> tuple[jax.ShapeDtypeStruct, ...]:
        """The types of the arguments; local types of presharded ones."""
        types = [self.program.types[port.value] for port in self.program.arguments]
        return tuple(jax.ShapeDtypeStruct(t.shape, t.dtype) for t in types)

    @property
    def has_layouts(self) -> bool:
        """True if types of the text have layouts of TTNN."""
        return any(t.layout for t in self.program.types)

    def varying(self, axes: Sequence[str]) -> list[tuple[str, ...] | None]:
        """Returns the mesh axes along which the shards of each argument may differ; None for a full argument."""
        return [self._axes(i, axes) if p else None for i, p in enumerate(self.presharded)]

    def _axes(self, number: int, axes: Sequence[str]) -> tuple[str, ...]:
        declared = self.arguments[number].varying
        if declared is None:
            return tuple(axes)
        if any(i >= len(axes) for i in declared):
            function = self.function
            raise VerifyError(
                f"line {function.line}: argument {number} of @{function.name}: jaxmesh.varying = {list(declared)}, "
                f"but the mesh has {len(axes)} axes; allowed are 0 to {len(axes) - 1}."
            )
        return tuple(axes[i] for i in declared)


def add_location(line: int, op: str, error: Exception) -> JaxmeshError:
    """Returns the error with its line and op in front, unless it names a line; a Python error becomes a VerifyError."""
    ours = isinstance(error, JaxmeshError)
    if ours and str(error).startswith("line "):
        return error
    text = str(error) if ours else " ".join(str(error).split())
    text = text if len(text) <= 2000 else text[:2000] + " ..."
    name = "" if text.startswith(op) else f"{op[:80]}: "
    if ours:
        # An argument in a file is an attribute's spelling.
        error_class = VerifyError if isinstance(error, ArgumentTypeError) else type(error)
        return error_class(f"line {line}: {name}{text}")
    return VerifyError(f"line {line}: {name}impossible ({type(error).__name__}: {text}).")


@contextlib.contextmanager
def located(line: int, op: str) -> Generator[None]:
    """Runs its body, whose errors name a line and an op."""
    try:
        yield
    except Exception as error:
        raise add_location(line, op, error) from None


# --- the mesh that fits -----------------------------------------------------------------------------------------------


_GATHERED = {
    f"{dialect}.{name}": dim
    for dialect in ("ttir", "ttnn")
    for name, dim in (("all_gather", "all_gather_dim"), ("reduce_scatter", "scatter_dim"), ("mesh_partition", "dim"))
}
"""Collectives that change the size of a dim by that of their mesh axis, with the attribute that names the dim."""
_RANK = 2
"""The axes of Tenstorrent's meshes."""


def fitting_mesh(text: Text) -> tuple[int, ...] | None:
    """Returns the axis sizes that the mesh_shards and collectives of a function fix; None if they fix none.

    An axis is fixed by a dim that is split over it alone, or that a collective gathers or scatters. An axis along which
    all values are copies has 1 device, unless a collective names it. Without a mesh_shard there are two axes.

    Raises:
      VerifyError: two ops fix one axis differently.
    """
    ops = text.program.ops
    shards = [op for op in ops if op.name == "ttir.mesh_shard"]
    # Of a copy the dims mean nothing, where others tell how many axes there are.
    ranks = {len(_numbers(op, "shard_dims")) for op in [op for op in shards if _splits(op)] or shards}
    if len(ranks) > 1:
        return None
    fixed: dict[int, tuple[int, int]] = {}
    open_axes: set[int] = set()
    for number, op in enumerate(ops):
        for axis, size in _sizes(op, text):
            if size is None:
                open_axes.add(axis)
                continue
            before, first = fixed.setdefault(axis, (size, number))
            if before != size:
                raise VerifyError(
                    f"line {text.lines[number]}: {text.names[number]} takes mesh axis {axis} to be of size {size}, but "
                    f"{text.names[first]} in line {text.lines[first]} of size {before}; correct one op."
                )
    rank = min(ranks, default=_RANK if fixed else 0)
    if not rank or open_axes - fixed.keys() or any(axis >= rank for axis in fixed):
        return None
    return tuple(fixed[axis][0] if axis in fixed else 1 for axis in range(rank))


def _splits(op: Op) -> bool:
    return op.name == "ttir.mesh_shard" and op.attributes.get("shard_type") == "devices"


def _sizes(op: Op, text: Text) -> Iterator[tuple[int, int | None]]:
    """Yields the mesh axes that an op names, each with the size that the op fixes; None if it fixes none."""
    attributes = op.attributes
    if _splits(op):
        dims, counts = (_numbers(op, name) for name in ("shard_dims", "shard_shape"))
        for axis, dim in enumerate(dims):
            if dim >= 0:
                yield axis, 1 if dim >= len(counts) else counts[dim] if dims.count(dim) == 1 else None
    elif op.name != "ttir.mesh_shard" and has_trait(op.name, Trait.COLLECTIVE):
        dim, axis = attributes.get(_GATHERED.get(op.name, "")), attributes.get("cluster_axis", 0)
        if isinstance(axis, int):
            yield axis, _ratio(op, text, dim) if isinstance(dim, int) else None


def is_integers(value: object) -> TypeGuard[tuple[int, ...]]:
    """Returns True if an attribute is a list of integers."""
    return isinstance(value, tuple) and all(type(v) is int for v in cast("tuple[object, ...]", value))


def _numbers(op: Op, name: str) -> tuple[int, ...]:
    """Returns an attribute of whole numbers; empty if it has another type, which verification names later."""
    found = op.attributes.get(name)
    return found if is_integers(found) else ()


def _ratio(op: Op, text: Text, dim: int) -> int | None:
    """Returns by how much a dim grows or shrinks."""
    operand, result = ([text.program.types[v].shape for v in values[:1]] for values in (op.used, op.results))
    if not operand or not result or not -len(operand[0]) <= dim < len(operand[0]):
        return None
    small, large = sorted((operand[0][dim], result[0][dim]))
    return large // small if small and not large % small else None


# --- what lies on the devices -----------------------------------------------------------------------------------------


def with_layouts_obeyed(text: Text) -> Text:
    """Returns the text with the values on the devices that its types place there, unless it has transfers."""
    program = text.program
    transfers = any(has_trait(op.name, Trait.TRANSFERS) for op in program.ops)
    if transfers or not any(program.types[port.value].layout for port in program.arguments):
        return text
    there = {v for v, known in enumerate(program.types) if known.layout and not known.host}
    arguments, results = (
        tuple(
            replace(a, status="presharded", local=None, varying=()) if a.status is None and p.value in there else a
            for a, p in zip(attributes, ports, strict=True)
        )
        for attributes, ports in ((text.arguments, program.arguments), (text.results, program.results))
    )
    return replace(text, arguments=arguments, results=results)


def with_element_types(text: Text, dtypes: Sequence[DType]) -> Text:
    """Returns the text with arguments of other element types, which it converts to its own first.

    Upstream's runtime converts arguments to the types that devices hold: truth values to bfloat16, for one.
    """
    program, made = text.program, list[Op]()
    for number, dtype in enumerate(dtypes):
        own = program.types[number]
        if dtype != own.dtype:
            inside = program.new(own)
            program.types[number] = replace(own, dtype=dtype, layout="")
            for op in program.ops:
                op.operands = tuple([inside if v == number else v for v in op.operands])
            program.results = [replace(p, value=inside) if p.value == number else p for p in program.results]
            made.append(Op("ttnn.to_layout", (number,), (inside,), NO_ATTRIBUTES))
    if not made:
        return text
    program.ops[:0] = made
    lines, names = [text.function.line] * len(made), [op.name for op in made]
    return replace(text, lines=[*lines, *text.lines], names=[*names, *text.names], is_current=False)


# --- the text as it is printed ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PrintedText:
    """The text of an imported program, which its stages print unchanged.

    Attributes:
      decoded: its flat program, the one that is traced.
      mesh: axis names and sizes.
      arguments: the arguments, in order.
      results: True for each result that is on the devices.
      public: whether the text says of the function that it is public.
      lines: by op, its line in the text and its name.
    """

    decoded: Program
    mesh: Mapping[str, int]
    arguments: Sequence[Port]
    results: Sequence[bool]
    public: bool
    lines: Sequence[str] = ()

    def program(self, dialect: str, rows: Collection[int] = ()) -> Program | None:
        """Returns the program with residencies and layouts; None if it is of another dialect, or breaks a rule.

        Args:
          dialect: `ttir` or `ttnn`.
          rows: the arguments on the devices that are in rows.
        """
        source = self.decoded
        if any(op.name.partition(".")[0] != dialect for op in source.ops):
            return None
        arguments = [
            replace(port, value=own.value, path=own.path or port.path)
            for port, own in zip(self.arguments, source.arguments, strict=True)
        ]
        results = [replace(own, presharded=kept) for own, kept in zip(source.results, self.results, strict=True)]
        try:
            types = _PlacedTypes(source, dialect, arguments, rows).types
        except JaxmeshError:
            # Texts of other origin leave out what an op of the real library needs.
            return None
        return Program(source.name, dict(self.mesh), types, arguments, list(source.ops), results, self.public)

    def marked(self) -> PrintedText | None:
        """Returns the text with the place of each op as its line; None if the text has loops."""
        if any(has_trait(op.name, Trait.CONTROL_FLOW) for op in self.decoded.ops):
            return None
        ops = [replace(op, line=line) for op, line in zip(self.decoded.ops, self.lines, strict=True)]
        return replace(self, decoded=replace(self.decoded, ops=ops))


class _PlacedTypes:
    """The types of the values of a program; residency and layout follow from the ops, unless the text has them."""

    def __init__(self, source: Program, dialect: str, arguments: Sequence[Port], rows: Collection[int]) -> None:
        self._dialect, self.types = dialect, list(source.types)
        for port in arguments:
            self._set(port.value, not port.presharded, port.presharded and port.value not in rows)
        for op in source.ops:
            self._infer(op)

    def _set(self, value: int, host: bool, tile: bool) -> None:
        """Sets the residency and the layout of a value, unless its own layout names them."""
        self.types[value] = _placed(self.types[value], host, tile, self._dialect)

    def _infer(self, op: Op) -> None:
        definition = definition_of(op.name)
        number = None if definition is None else definition.overwritten
        if number is not None and op.results:
            into = op.operands[number]
            assert into is not None
            self.types[op.results[0]] = self.types[into]
            return
        results = [self.types[v] for v in op.results]
        if any(t.kind != "tensor" for t in results):
            return
        for value, (host, tile) in zip(op.results, self._inferred(op, results), strict=True):
            self._set(value, host, tile)

    def _inferred(self, op: Op, results: Sequence[Type]) -> list[tuple[bool, bool]]:
        """Returns, for each result, whether it is on the host, and whether it is in tiles."""
        if self._dialect == "ttir":
            return [(False, False)] * len(results)
        if has_trait(op.name, Trait.TEXTUAL):
            return [(False, True)] * len(results)
        operands = [None if v is None else self.types[v] for v in op.operands]
        definition = ttnn_definition(op.name)
        on_host = not any(t is not None and t.kind == "tensor" and not t.host for t in operands)
        if definition is None or on_host or Trait.MEMORY in definition.traits:
            return [_of_memory_op(op, [t for t in operands if t is not None])] * len(results)
        tensors = tuple([t for t in operands if t is None or t.kind == "tensor"])
        forms = definition.forms_of(Occurrence(op.attributes, tensors, tuple(results)))
        return [(False, forms.result(i, tensors, t.dtype)[1]) for i, t in enumerate(results)]


@lru_cache(4096)
def _placed(own: Type, host: bool, tile: bool, dialect: str) -> Type:
    """Returns a type with its own residency and layout if it has a layout; else with the given ones.

    The layout of a value in host memory or DRAM is left out.
    """
    if not own.layout or dialect == "ttir":
        return replace(own, host=host, tile=tile, layout="")
    return replace(own, layout="") if is_plain(own) else own


def _of_memory_op(op: Op, operands: Sequence[Type]) -> tuple[bool, bool]:
    """Returns where the results of an op are, without definition or operands, and whether they are in tiles."""
    first = operands[0] if operands else DEVICE
    match op.name:
        case "ttnn.distribute_tensor" | "ttnn.aggregate_tensor":
            return True, False
        case "ttnn.to_device" | "ttnn.from_device":
            return op.name == "ttnn.from_device", first.tile
        case "ttnn.to_layout":
            return first.host, op.attributes["layout"] == "tile"
        case _:
            # Made from nothing, it is on the host where no device is named; a reshape leaves it where it is.
            host = all(t.kind == "tensor" and t.host for t in operands)
            return host, not host
