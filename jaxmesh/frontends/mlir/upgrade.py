"""The current spelling of ops, and the flat program of them, which is traced and printed.

Texts of earlier versions have destinations as last operands, attributes for memory and layout, products with an
activation, ops of TTIR under TTNN's name, and ops whose definition has changed since. Calls are inlined.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, cast

import numpy as np
from jaxlib.mlir import ir

from jaxmesh.dialects.attributes import reorder_edges
from jaxmesh.dialects.definitions import HOISTED, definition_of, has_trait
from jaxmesh.dialects.imported_op import group_operands
from jaxmesh.dialects.op import SEGMENTS, OpDef, Trait
from jaxmesh.dialects.program import NO_ATTRIBUTES, Op, Program, Type, Value
from jaxmesh.dialects.ttir.images import FLATTENED
from jaxmesh.dialects.ttir.mesh_shard import MeshShardAttributes
from jaxmesh.errors import VerifyError
from jaxmesh.frontends.mlir.attributes import Array, Types, entries
from jaxmesh.frontends.mlir.module import BoundaryAttributes, Function
from jaxmesh.frontends.mlir.preprocess import PROPERTIES
from jaxmesh.frontends.mlir.text import is_integers
from jaxmesh.frontends.mlir.ttnn_attributes import AFTER, CONFIGS, FUSED, LONGEST, activation_of, fused_functions

FUNCTIONS = "functions"
"""The attribute of a loop or a branch that has its functions, each an `Upgrade`."""
EMPTY = frozenset({"ttir.empty", "tensor.empty"})
"""Ops that allocate a tensor, which texts of earlier versions pass as a destination."""
LAYOUT = "jaxmesh.layout"
"""The attribute of a decoded `to_layout` that names the layout of its result."""
FORMER = "former."
"""The dialect of ops whose definition has changed: `former.gather` follows `OpDef.former` of `ttir.gather`."""
_DIM = "output_shard_dim"
FORMER_OPTIONS = frozenset({"memory_config", "layout", "dtype", "cq_id", "use_multicore", "core_grid"})
"""Attributes of earlier versions for where and how a result is stored, which its type says, and how it is computed."""

_OFTEN = frozenset({"operandSegmentSizes", "resultSegmentSizes", *FORMER_OPTIONS})
"""Attributes of any op."""
_SIZES = "operandSegmentSizes"
_SEGMENTS = frozenset(a.name for a in SEGMENTS)
_SHARD = MeshShardAttributes._fields
_PROMISE = "assume_replicated"
_ROUNDING = "rounding_mode"
_BY_NAME = frozenset({Trait.MEMORY, Trait.CALL})
"""Ops that this frontend performs by their names."""


def current_name(op: str) -> str:
    """Returns the name of an op in TTIR if TTNN has it in texts of earlier versions alone; else its own name.

    >>> current_name("ttnn.floor_div"), current_name("ttnn.add")
    ('ttir.floor_div', 'ttnn.add')
    """
    if definition_of(op) is None and op.startswith("ttnn."):
        return op.replace("ttnn.", "ttir.", 1)
    return op


def dropped_attributes(definition: OpDef | None, attributes: ir.OpAttributeMap) -> list[str]:
    """Returns the attributes beside an op's own that it does not define, which upstream carries along and never reads.

    Where a text has them all in one dictionary, as earlier ones have, an unknown one may be a misspelled one.
    """
    if not len(attributes) or definition is None or not definition.traits.isdisjoint(_BY_NAME):
        return []
    if PROPERTIES not in attributes and definition.has_attributes:
        return []
    names = [name for name, _ in entries(attributes)]
    return [name for name in names if name != PROPERTIES and not _is_known(name, definition)]


def blank_attributes(definition: OpDef | None, attributes: Mapping[str, object]) -> list[str]:
    """Returns the attributes of a later upstream, which the definition lacks, at values that ask for nothing."""
    if definition is None or Trait.CALL in definition.traits:
        return []
    return [name for name, value in attributes.items() if not _is_known(name, definition) and _is_blank(value)]


def _is_known(name: str, definition: OpDef) -> bool:
    former = definition.former is not None and name in definition.former.by_name
    return "." in name or name in _OFTEN or name in definition.by_name or name in definition.options or former


def _is_blank(value: object) -> bool:
    empty = isinstance(value, (tuple, str, dict)) and not value
    return value is None or value is False or empty or value in ("none", "None")


def definition_named(name: str) -> OpDef | None:
    """Returns the definition of an op of an upgraded program; None if it is not defined.

    >>> definition_named("former.gather").operands
    (2, 2)
    """
    if not name.startswith(FORMER):
        return definition_of(name)
    definition = definition_of(f"ttir.{name.removeprefix(FORMER)}")
    return None if definition is None else definition.former


class Spelled(NamedTuple):
    """An op apart from its operands, in its current spelling.

    Attributes:
      written: its name in the text.
      name: its current name, with the dialect.
      attributes: without the functions in `fused`, if there are any.
      types: of its results.
      places: the numbers of the operands by position; None for one that is left out.
      is_current: True if the text has no other spelling.
      activation: the op that it applies to its result, or empty.
      fused: the ops that it applies to its operands and its result.
      overwritten: the operand that it writes to instead of giving a result: it is the result from there on.
      callees: the functions that it stands for.
    """

    written: str
    name: str
    attributes: Mapping[str, Any]
    types: Sequence[Type]
    places: Sequence[int | None] = ()
    is_current: bool = False
    activation: str = ""
    fused: Mapping[str, Sequence[str]] = NO_ATTRIBUTES
    overwritten: int | None = None
    callees: Sequence[Function] = ()


@dataclass(slots=True)
class Upgrade:
    """A function with its calls inlined and its ops in their current spelling; the fields are as in `Text`."""

    program: Program
    lines: list[int] = field(default_factory=list[int])
    names: list[str] = field(default_factory=list[str])
    end: int = 0
    is_current: bool = True
    unwritten: set[Value] = field(default_factory=set[Value])
    """The results of ops that allocate a tensor."""

    def add(self, op: Spelled, operands: Sequence[Value], line: int, source: str) -> Sequence[Value]:
        """Appends an op and the functions that it applies; returns its results, or the value of what it writes to."""
        if not op.is_current:
            self.is_current = False
        if op.fused:
            given = [
                self._apply(v, op.fused.get(name, ()), line, source) for name, v in zip(FUSED, operands, strict=False)
            ]
            operands = [*given, *operands[len(given) :]]
        placed = tuple([v if v is None else operands[v] for v in op.places])
        results = self._append(Op(op.name, placed, (), op.attributes, source), op.types, line, op.written)
        if op.activation:
            results = self._append(Op(op.activation, results, (), NO_ATTRIBUTES, source), op.types, line, op.activation)
        if op.written in EMPTY:
            self.unwritten.update(results)
        return [self._apply(v, op.fused.get(AFTER, ()), line, source) for v in results] if op.fused else results

    def _apply(self, value: Value, functions: Sequence[str], line: int, source: str) -> Value:
        for name in functions:
            op = Op(name, (value,), (), NO_ATTRIBUTES, source)
            (value,) = self._append(op, [self.program.types[value]], line, name)
        return value

    def _append(self, op: Op, types: Sequence[Type], line: int, name: str) -> tuple[Value, ...]:
        known = self.program.types
        definition = None if types else definition_named(op.name)
        number = None if definition is None else definition.overwritten
        if number is not None and number < len(op.operands):
            written = op.operands[number]
            types = () if written is None else [known[written]]
        op.results = tuple(range(len(known), len(known) + len(types)))
        known += types
        self.program.ops.append(op)
        self.lines.append(line)
        self.names.append(name)
        return op.results

    def without_destinations(self, name: str, operands: list[Value], types: Sequence[Type]) -> list[Value]:
        """Returns the operands of an op without the tensors that are allocated for its results."""
        self.is_current, definition = False, definition_of(current_name(name))
        if name == "ttir.mesh_shard":
            return operands[:1] if len(operands) == 2 else operands
        if definition is None or not definition.traits.isdisjoint((Trait.MEMORY, Trait.BY_ELEMENT_TYPE)):
            return operands
        kept, left = list(operands), list(types)
        while left and len(kept) > definition.operands[0] and kept[-1] in self.unwritten:
            destination, result = self.program.types[kept[-1]], left.pop()
            if (destination.shape, destination.dtype) != (result.shape, result.dtype):
                break
            kept.pop()
        return kept


def spell(op: str, written: Mapping[str, Any], given: Sequence[Type], types: Sequence[Type]) -> Spelled:
    """Returns the current spelling of an op on operands of the types `given`, with results of the types `types`.

    Raises:
      VerifyError: a constant, a mesh_shard or a config of a transfer breaks a rule.
    """
    fused = fused_functions(written)
    own: dict[str, Any] = {k: v for k, v in written.items() if k not in fused}
    has_no_dim = op.endswith(".all_to_all_combine") and _DIM not in own and min(len(given) - 1, len(types)) > 0
    if has_no_dim:
        # Compilers before tt-mlir 6131dfe97a took the dim from the shapes.
        own[_DIM] = 1 if given[1].shape[1:2] != types[0].shape[1:2] else 2
    activation, name, kinds = activation_of(op, own), current_name(op), [t.kind for t in given]
    definition, count = definition_of(name), kinds.count("tensor")
    number = None if types or definition is None else definition.overwritten
    if definition is not None and definition.in_form_of(own, len(types)) is not definition:
        name = f"{FORMER}{name.partition('.')[2]}"
    attributes, is_current = _spell_attributes(op, own, definition, (count, len(kinds)), types)
    places: Sequence[int | None] = range(len(kinds))
    if not has_trait(name, Trait.OPAQUE):
        # Devices and semaphores, which no operand group counts, are the last.
        is_ordered, sizes = "tensor" not in kinds[count:], own.get(_SIZES)
        is_current = is_current and is_ordered
        if is_ordered:
            places = (*group_operands(sizes if is_integers(sizes) else None, places[:count]), *places[count:])
    is_current = is_current and name == op and not (activation or fused or has_no_dim)
    return Spelled(op, name, attributes, types, places, is_current, activation, fused, number)


def _spell_attributes(
    op: str, written: Mapping[str, Any], definition: OpDef | None, counts: tuple[int, int], types: Sequence[Type]
) -> tuple[Mapping[str, object], bool]:
    """Returns the attributes of an op in their current spelling, and True if the text spells them so.

    `counts` are the numbers of its tensors and of all its operands; `types` are those of its results.
    """
    name = op.partition(".")[2]
    attributes = {k: v for k, v in written.items() if k not in _SEGMENTS and "." not in k}
    marks = {HOISTED: True} if HOISTED in written else {}
    if definition is None:
        return attributes, False
    if Trait.BY_ELEMENT_TYPE in definition.traits:
        # The numbers that are stored do not tell the element type of the op.
        return written, False
    if op == "ttir.mesh_shard":
        _check_names(attributes)
        promise = {_PROMISE: True} if written.get(f"jaxmesh.{_PROMISE}", False) is not False else {}
        return attributes | promise | marks, attributes["shard_type"] != "identity"
    if Trait.MEMORY in definition.traits:
        own = definition.by_name
        layout = {"layout": str(written[LAYOUT])} if name == "to_layout" and LAYOUT in written else {}
        configs = {k: CONFIGS[k](str(v)[:LONGEST]) for k, v in attributes.items() if k in own and k in CONFIGS}
        is_current = attributes.keys() <= own.keys() and (name != "to_layout" or bool(layout))
        return attributes | layout | configs | marks, is_current
    if f"jaxmesh.{_ROUNDING}" in written:
        attributes[_ROUNDING] = written[f"jaxmesh.{_ROUNDING}"]
    followed = definition.in_form_of(written, len(types))
    left_out = (definition.options | FORMER_OPTIONS) - followed.by_name.keys() - {FLATTENED}
    blank = {a.name for a in followed.attributes if a.must_be_empty and a.is_blank(attributes.get(a.name))}
    known = {k: v for k, v in attributes.items() if k not in left_out and k not in blank}
    for edges in [a.name for a in followed.attributes if a.form == "edges" and is_integers(known.get(a.name))]:
        known[edges] = reorder_edges(known[edges])
    is_current = attributes.keys() <= definition.by_name.keys() and Trait.NOT_UPSTREAM not in definition.traits
    if _SIZES in written:
        sizes, is_opaque = written[_SIZES], has_trait(op, Trait.OPAQUE)
        total = sum(sizes) if is_integers(sizes) else -1
        is_known = total in (*counts, counts[0] + 1)
        # Wrong sizes stay, for the meaning of the op to refuse.
        if not is_known or (total == counts[1] and (op.startswith("ttir.") or is_opaque)):
            known[_SIZES] = sizes
        is_current = is_current and (is_known or is_opaque)
    return _with_numbers(name, known, types) | marks, is_current


def _check_names(attributes: Mapping[str, object]) -> None:
    """Checks that a mesh_shard has its attributes and no others."""
    for name in attributes:
        if name not in _SHARD:
            raise VerifyError(f"has no attribute {name!r}; its attributes are: {', '.join(_SHARD)}.")
    for name in _SHARD:
        if name not in attributes:
            raise VerifyError(f"needs the attribute {name!r}; it is missing.")


def _with_numbers(name: str, attributes: dict[str, Any], types: Sequence[Type]) -> dict[str, object]:
    """Returns the attributes of a constant or a pad with numbers of the element type of the result."""
    number = attributes.get("value")
    if name == "constant" and types and isinstance(number, np.ndarray):
        value = cast("Array", number)
        _check_constant(value, types[0])
        # The elements of a splat are kept as one.
        elements = value.astype(types[0].dtype, copy=False)
        is_splat = elements.size == 1
        return {"value": np.broadcast_to(elements.reshape(()), types[0].shape) if is_splat else elements}
    if name == "pad" and types and types[0].dtype.kind in "biu" and isinstance(number, float) and number.is_integer():
        # MLIR writes the number of every element type as a float.
        return {**attributes, "value": int(number)}
    return attributes


def _check_constant(value: Array, declared: Type) -> None:
    if value.shape not in ((), declared.shape):
        raise VerifyError(f"its value has shape {list(value.shape)}, but the declared type has {list(declared.shape)}.")
    # Floating-point types round, with a warning; an integer type would lose the value.
    if np.issubdtype(declared.dtype, np.integer) and value.dtype != declared.dtype:
        with np.errstate(invalid="ignore"):
            lost = value != value.astype(declared.dtype)
        if np.any(lost):
            raise VerifyError(
                f"its value has elements of {value.dtype}, {value[lost].flat[0]} among them, which the declared "
                f"type, {declared.dtype}, does not hold; declare the result as {value.dtype} and add a ttir.typecast."
            )


def set_local_types(program: Program, arguments: Sequence[BoundaryAttributes], types: Types) -> None:
    """Sets the types of presharded values to their local types, where the text has those elsewhere.

    Earlier texts declare the full type of an argument, and pass it to a mesh_shard of the type `identity`, whose result
    is local; of a result, that mesh_shard has the full type. On the way to or from it only the layout changes.
    """
    kept = [op for op in program.ops if len(op.results) == 1 and (_is_identity(op) or has_trait(op.name, Trait.LAYOUT))]
    roots = {i: i for i, a in enumerate(arguments) if a.status == "presharded"}
    found: dict[Value, Type] = {}
    for op in kept:
        root = roots.get(op.used[0])
        if root is not None and _is_identity(op):
            found.setdefault(root, program.types[op.results[0]])
        elif root is not None:
            roots[op.results[0]] = root
    for number, argument in enumerate(arguments):
        known = found.get(number) if argument.local is None else types(argument.local)
        if argument.status != "presharded" or known is None:
            continue
        declared = program.types[number]
        if "ui64" in str(argument.local) and declared.shape == (*known.shape, 2):
            # Upstream passes numbers of 64 unsigned bits as pairs of 32 bits, the lower ones first.
            continue
        # Of a program that is mapped by hand, upstream writes the full type there, and declares the local.
        if len(known.shape) != len(declared.shape) or all(map(int.__le__, known.shape, declared.shape)):
            program.types[number] = replace(declared, shape=known.shape)
    full = set(roots)
    for op in kept:
        if _is_identity(op) or op.used[0] in full:
            result = op.results[0]
            full.add(result)
            program.types[result] = replace(program.types[result], shape=program.types[op.used[0]].shape)


def _is_identity(op: Op) -> bool:
    return op.attributes.get("shard_type") == "identity"
