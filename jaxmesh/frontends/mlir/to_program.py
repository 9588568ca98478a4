"""Converts a decoded text to a flat program, op by op, which prints as the same text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from jaxmesh.dialects.definitions import HOISTED, definition_of, has_trait, ttnn_definition
from jaxmesh.dialects.imported_op import group_operands
from jaxmesh.dialects.op import Trait
from jaxmesh.dialects.program import Op, Port, Program, Type, Value
from jaxmesh.dialects.ttnn.forms import Occurrence
from jaxmesh.dialects.ttnn.layouts import is_plain
from jaxmesh.frontends.mlir import decode as decoded
from jaxmesh.frontends.mlir.ttnn_configs import CONFIGS

_SEGMENTS = "operandSegmentSizes"
_DEVICE = Type((), np.dtype(np.int32), kind="device")
_SHARD = ("shard_type", "shard_direction", "shard_shape", "shard_dims")
_PROMISE = "assume_replicated"
_ROUNDING = "jaxmesh.rounding_mode"


def _dialects(body: decoded.Body, known: dict[int, set[str]]) -> set[str]:
    """The dialects of the ops of a function and of those that it calls."""
    if id(body) not in known:
        known[id(body)] = {op.partition(".")[0] for op in {s.op for s in body.steps if s.callee is None}}
        for callee in {id(s.callee): s.callee for s in body.steps if s.callee is not None}.values():
            known[id(body)] |= _dialects(callee, known)
    return known[id(body)]


def flat_program(
    body: decoded.Body,
    dialect: str,
    mesh: Mapping[str, int],
    arguments: Sequence[Port],
    results: Sequence[bool],
    *,
    public: bool = False,
) -> Program | None:
    """Returns a text of one dialect as a flat program, calls inlined; None if it has a form that is never printed."""
    if not _dialects(body, {}) <= {dialect}:
        return None
    program = Program(body.name, dict(mesh), public=public)
    rows = zip(arguments, body.arguments, body.locations, body.layouts, strict=True)
    for port, kind, location, layout in rows:
        on_device = port.presharded
        known = Type(tuple(kind.shape), np.dtype(kind.dtype), host=not on_device, tile=on_device)
        value = program.new(known if dialect == "ttir" else _with_layout(known, layout))
        program.arguments.append(replace(port, value=value, path=location or port.path))
    try:
        values = _Flat(program, dialect).body(body, [port.value for port in program.arguments])
    except _NotPrinted:
        return None
    program.results = [Port(v, kept) for v, kept in zip(values, results, strict=True)]
    return program


class _NotPrinted(Exception):
    """The text has a form that is never printed: a no-op, a destination, an attribute that means nothing here."""


@dataclass(slots=True)
class _Flat:
    program: Program
    dialect: str
    attributes: dict[Any, tuple[decoded.Step, Mapping[str, Any]]] = field(
        default_factory=dict[Any, "tuple[decoded.Step, Mapping[str, Any]]"]
    )
    """By an op's name and the identity of its attributes, which the step keeps alive."""
    unwritten: set[Value] = field(default_factory=set[Value])
    """Memory that nothing has written: as last operand it may be a destination of the older style."""

    def body(self, body: decoded.Body, arguments: Sequence[Value]) -> list[Value]:
        """Appends the steps of a function; returns the values of its results."""
        values: list[Value] = [*arguments, *[-1] * (body.values - len(arguments))]
        for step in body.steps:
            operands = [values[i] for i in step.operands]
            results = self.body(step.callee, operands) if step.callee is not None else self._step(step, operands)
            for i, value in zip(step.written, results, strict=True):
                values[i] = value
        return [values[i] for i in body.results]

    def _step(self, step: decoded.Step, given: list[Value]) -> Sequence[Value]:
        operands, attributes = self._operands(step, given), self._attributes_of(step)
        kinds = self._types(step, operands, attributes)
        if step.layouts:
            kinds = [_with_layout(*row) for row in zip(kinds, step.layouts, strict=True)]
        results = tuple(map(self.program.new, kinds))
        if given and given[-1] in self.unwritten:
            raise _NotPrinted
        if step.op in decoded.EMPTY:
            self.unwritten.update(results)
        self.program.ops.append(Op(step.op, tuple(operands), results, attributes, step.location))
        return results

    def _operands(self, step: decoded.Step, given: list[Value]) -> list[Value | None]:
        """Returns the operands by position; the device, which no operand group counts, is the last."""
        if has_trait(step.op, Trait.OPAQUE):
            return [*given]
        tensors = [v for v in given if self.program.types[v].kind == "tensor"]
        if given[: len(tensors)] != tensors:
            raise _NotPrinted
        return [*group_operands(step.attributes.get(_SEGMENTS), tensors), *given[len(tensors) :]]

    def _types(self, step: decoded.Step, operands: Sequence[Value | None], attributes: Mapping[str, Any]) -> list[Type]:
        """Returns the types of the results; their residency and layout follow from the ops."""
        if step.handle:
            return [replace(_DEVICE, kind=step.handle)] * len(step.results)
        kinds = [Type(tuple(t.shape), np.dtype(t.dtype)) for t in step.types]
        if step.overwritten:
            return [self.program.types[v] for i in step.overwritten if (v := operands[i]) is not None]
        if self.dialect == "ttir":
            return kinds
        before = [None if v is None else self.program.types[v] for v in operands]
        if has_trait(step.op, Trait.TEXTUAL):
            return [replace(kind, tile=True) for kind in kinds]
        definition = ttnn_definition(step.op)
        named = definition is None or Trait.MEMORY in definition.traits
        if definition is None or named or not any(k is not None and k.kind == "tensor" and not k.host for k in before):
            like = self._type_of_memory(step, [k for k in before if k is not None])
            return [replace(kind, host=like.host, tile=like.tile) for kind in kinds]
        tensors = tuple([k for k in before if k is None or k.kind == "tensor"])
        found = definition.forms_of(Occurrence(attributes, tensors, tuple(kinds)))
        return [replace(kind, tile=found.result(i, tensors, kind.dtype)[1]) for i, kind in enumerate(kinds)]

    def _type_of_memory(self, step: decoded.Step, operands: Sequence[Type]) -> Type:
        """Returns a type with the residency and layout of the results, of an op without definition or operands."""
        before = operands[0] if operands else _DEVICE
        match step.op:
            case "ttnn.distribute_tensor" | "ttnn.aggregate_tensor":
                return replace(before, host=True, tile=False)
            case "ttnn.to_device" | "ttnn.from_device":
                return replace(before, host=step.op == "ttnn.from_device")
            case "ttnn.to_layout":
                return replace(before, tile=_page_layout(step) == "tile")
            case _:
                # Made from nothing, it is on the host where no device is named; a reshape leaves it where it is.
                host = all(k.kind == "tensor" and k.host for k in operands)
                return replace(_DEVICE, host=host, tile=not host)

    def _attributes_of(self, step: decoded.Step) -> Mapping[str, Any]:
        depends = step.types if step.op.endswith((".constant", ".pad")) else len(step.operands)
        key = (step.op, id(step.attributes), depends)
        if key not in self.attributes:
            self.attributes[key] = step, _attributes(step)
        return self.attributes[key][1]


def _with_layout(kind: Type, layout: str) -> Type:
    """Returns a type as its layout says, which is kept where it is another than that of a value in host memory or DRAM.

    A text that comes without layouts has those that follow from its ops.
    """
    if not layout:
        return kind
    kind = replace(kind, host="#ttnn.buffer_type<system_memory>" in layout, tile="!ttcore.tile<" in layout)
    placed = replace(kind, layout=layout)
    return kind if is_plain(placed) else placed


def _page_layout(step: decoded.Step) -> str:
    """Returns the layout that a `to_layout` makes, which it or its type names."""
    named = step.attributes.get(decoded.LAYOUT)
    if named is None:
        raise _NotPrinted
    return str(named)


def _attributes(step: decoded.Step) -> Mapping[str, Any]:
    """Returns the attributes of an op of a text in the form of a flat program."""
    if HOISTED in step.attributes:
        rest = {k: v for k, v in step.attributes.items() if k != HOISTED}
        return {**_attributes(replace(step, attributes=rest)), HOISTED: True}
    dialect, _, name = step.op.partition(".")
    definition = definition_of(step.op)
    # A quantized tensor is stored without its element type.
    if definition is None or not definition.traits.isdisjoint((Trait.NOT_UPSTREAM, Trait.BY_ELEMENT_TYPE)):
        raise _NotPrinted
    attributes = definition.kept(step.attributes)
    if dialect == "ttir" and name == "mesh_shard":
        if attributes["shard_type"] == "identity" or not attributes.keys() <= {*_SHARD}:
            raise _NotPrinted
        promised = step.attributes.get(f"jaxmesh.{_PROMISE}", False) is not False
        return attributes | ({_PROMISE: True} if promised else {})
    if Trait.MEMORY in definition.traits:
        if not attributes.keys() <= definition.by_name.keys():
            raise _NotPrinted
        if name == "to_layout":
            return {"layout": _page_layout(step)}
        return {k: CONFIGS[k](str(v)) if k in CONFIGS else v for k, v in attributes.items()}
    if _ROUNDING in step.attributes:
        attributes["rounding_mode"] = step.attributes[_ROUNDING]
    if not attributes.keys() <= definition.by_name.keys():
        raise _NotPrinted
    sizes = step.attributes.get(_SEGMENTS)
    kept = dialect == "ttir" or Trait.OPAQUE in definition.traits
    if kept and sizes is not None and sum(sizes) == len(step.operands):
        attributes[_SEGMENTS] = sizes
    if name == "constant":
        attributes["value"] = _elements(attributes["value"], step)
    if name == "pad" and step.types[0].dtype.kind in "biu" and float(attributes.get("value", 0.5)).is_integer():
        # MLIR writes the number of every element type as a float.
        attributes["value"] = int(attributes["value"])
    return attributes


def _elements(value: Any, step: decoded.Step) -> Any:
    """The elements of a constant; those of a splat are kept as one."""
    (kind,) = step.types
    elements = np.asarray(value).astype(kind.dtype, copy=False)
    return np.broadcast_to(elements.reshape(()), kind.shape) if elements.size == 1 else elements
