"""Reports ops of a text that are not as upstream defines them: texts of earlier versions are read, too."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from jaxlib.mlir import ir

from jaxmesh.dialects.attributes import Attribute
from jaxmesh.dialects.definitions import definition_of
from jaxmesh.dialects.op import SEGMENTS, Arity, Trait
from jaxmesh.frontends.mlir.attributes import Dictionary, entries

_GROUPS = "operandSegmentSizes"
_SEGMENTS = frozenset(a.name for a in SEGMENTS)


@dataclass(frozen=True, slots=True)
class WrittenOp:
    """An op as a text writes it, apart from the values of its attributes.

    Attributes:
      name: its name with its dialect.
      attributes: the names of its attributes, each with the type that `attribute_types` gives.
      tensors: how many tensors it reads.
      devices: how many mesh devices it reads.
      results: how many results it has.
    """

    name: str
    attributes: frozenset[tuple[str, str]]
    tensors: int
    devices: int
    results: int


def attribute_types(written: Dictionary) -> Iterator[tuple[str, str]]:
    """Yields the names of the attributes of a dictionary, each with its type.

    That is the type of a number (`si32`), `[i32]` or `array<i32>` for several, `bool`, or the name of an attribute of a
    dialect (`#ttcore.reduce_type`); of the sizes of the operand groups their count; of anything else an empty string.
    """
    for name, attribute in entries(written):
        counted = name == _GROUPS and isinstance(attribute, (ir.DenseI32ArrayAttr, ir.ArrayAttr))
        yield name, f"{len(attribute)} sizes" if counted else _type(attribute)


def _type(attribute: ir.Attribute) -> str:
    match attribute:
        case ir.BoolAttr():
            return "bool"
        case ir.IntegerAttr() | ir.FloatAttr():
            return str(attribute.type)
        case ir.ArrayAttr():
            return "[" + ", ".join({_type(item) for item in attribute}) + "]"
        case ir.DenseI32ArrayAttr():
            return "array<i32>"
        case ir.DenseI64ArrayAttr():
            return "array<i64>"
        case ir.StringAttr() | ir.DenseElementsAttr() | ir.DictAttr() | ir.UnitAttr():
            return ""
        case _:
            text = str(attribute)[:80]
            return text.partition("<")[0] if text.startswith("#") else ""


_TYPES: Mapping[str, tuple[str, ...]] = {
    "bool": ("bool",), "i32s": ("[i32]", "[]"), "i64s": ("array<i64>",), "i32a": ("array<i32>",),
    "edges": ("array<i32>",), "f32": ("f32", "f64"), "shape": ("#ttnn.shape",),
}  # fmt: skip
"""The types of an attribute, by its form in MLIR."""


def _allowed_types(attribute: Attribute) -> tuple[str, ...]:
    form = attribute.form
    if form.startswith("#"):
        return (form,)
    if form in ("si8", "si32", "ui32", "i32", "i64", "si64"):
        return (form, "array<i32>") if attribute.kind == "any" else (form,)
    return _TYPES.get(form, ())


def deviations(op: WrittenOp) -> Iterator[str]:
    """Yields one phrase per rule of upstream's definition that an op does not follow."""
    types = dict(op.attributes)
    given = frozenset(a for a in types.keys() - _SEGMENTS if "." not in a)
    definition = definition_of(op.name)
    later = definition_of(op.name.replace("ttnn.", "ttir.", 1))
    if later is not None and Trait.LATER in later.traits:
        return
    if definition is None or Trait.NOT_UPSTREAM in definition.traits:
        yield "is no op"
        return
    if unknown := sorted(given - definition.by_name.keys() - definition.options):
        yield f"has no attribute {', '.join(map(repr, unknown))}"
    missing = [a.name for a in definition.attributes if a.required and a.name not in given]
    if missing:
        yield f"needs the attribute {', '.join(map(repr, missing))}"
    for attribute in definition.attributes:
        allowed = _allowed_types(attribute)
        if attribute.name in given and allowed and types[attribute.name] not in allowed:
            yield f"has {attribute.name!r} as {' or '.join(allowed)}, not as {types[attribute.name]}"
    least, most = definition.operands
    if not _is_within(op.tensors, definition.operands):
        yield f"reads {least if least == most else f'{least} to {most}'}, not {op.tensors} tensors"
    if not _is_within(op.devices, definition.handles):
        yield f"takes {'a' if definition.handles[0] else 'no'} device"
    if definition.overwritten is not None and op.results:
        yield f"has no result: it writes to operand {definition.overwritten}"
    groups = definition.groups
    if groups is not None and types.get(_GROUPS) != f"{groups} sizes":
        yield f"needs the attribute {_GROUPS!r}, of {groups} sizes"
    if groups is None and _GROUPS in types:
        yield f"has no attribute {_GROUPS!r}"


def _is_within(count: int, allowed: Arity) -> bool:
    least, most = allowed
    return least <= count and (most is None or count <= most)
