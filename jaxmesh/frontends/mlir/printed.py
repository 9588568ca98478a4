"""The flat program of an imported text, with the residency and layout of every value, for the printers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from jaxmesh.dialects.definitions import definition_of, has_trait, ttnn_definition
from jaxmesh.dialects.op import Trait
from jaxmesh.dialects.program import Op, Port, Program, Type
from jaxmesh.dialects.ttnn.forms import Occurrence
from jaxmesh.dialects.ttnn.layouts import is_plain
from jaxmesh.errors import JaxmeshError
from jaxmesh.frontends.mlir.decode import DEVICE


@dataclass(frozen=True, slots=True)
class PrintedText:
    """The text of an imported program, which its stages print unchanged.

    Attributes:
      decoded: its flat program, the one that is traced.
      dialects: the dialects of its ops.
      mesh: axis names and sizes.
      arguments: the arguments, in order.
      results: True for each result that is on the devices.
      public: whether the text says of the function that it is public.
    """

    decoded: Program
    dialects: frozenset[str]
    mesh: Mapping[str, int]
    arguments: Sequence[Port]
    results: Sequence[bool]
    public: bool

    def program(self, dialect: str) -> Program | None:
        """Returns the program with residencies and layouts; None if it is of another dialect, or breaks a rule.

        Args:
          dialect: `ttir` or `ttnn`.
        """
        if not self.dialects <= {dialect}:
            return None
        source = self.decoded
        arguments = [
            replace(port, value=own.value, path=own.path or port.path)
            for port, own in zip(self.arguments, source.arguments, strict=True)
        ]
        results = [replace(own, presharded=kept) for own, kept in zip(source.results, self.results, strict=True)]
        try:
            types = _PlacedTypes(source, dialect).of(arguments)
        except JaxmeshError:
            # Texts of other origin leave out what an op of the real library needs.
            return None
        return Program(source.name, dict(self.mesh), types, arguments, list(source.ops), results, self.public)


class _PlacedTypes:
    """The types of the values of a program; residency and layout follow from the ops, unless the text has them."""

    def __init__(self, source: Program, dialect: str) -> None:
        self._source, self._dialect = source, dialect
        self._types = list(source.types)
        self._known: dict[tuple[Type, bool, bool], Type] = {}

    def of(self, arguments: Sequence[Port]) -> list[Type]:
        """Returns the type of every value."""
        for port in arguments:
            self._set(port.value, not port.presharded, port.presharded)
        for op in self._source.ops:
            self._infer(op)
        return self._types

    def _set(self, value: int, host: bool, tile: bool) -> None:
        """Sets the residency and the layout of a value, unless its own layout names them."""
        own = self._types[value]
        key = own, host, tile
        if key not in self._known:
            self._known[key] = _placed(own, host, tile, self._dialect)
        self._types[value] = self._known[key]

    def _infer(self, op: Op) -> None:
        definition = definition_of(op.name)
        number = None if definition is None else definition.overwritten
        if number is not None and op.results:
            into = op.operands[number]
            assert into is not None
            self._types[op.results[0]] = self._types[into]
            return
        results = [self._types[v] for v in op.results]
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
        operands = [None if v is None else self._types[v] for v in op.operands]
        definition = ttnn_definition(op.name)
        on_host = not any(t is not None and t.kind == "tensor" and not t.host for t in operands)
        if definition is None or on_host or Trait.MEMORY in definition.traits:
            return [_of_memory_op(op, [t for t in operands if t is not None])] * len(results)
        tensors = tuple([t for t in operands if t is None or t.kind == "tensor"])
        plain = tuple([replace(t, host=False, tile=False, layout="") if t.layout else t for t in results])
        forms = definition.forms_of(Occurrence(op.attributes, tensors, plain))
        return [(False, forms.result(i, tensors, t.dtype)[1]) for i, t in enumerate(results)]


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
