"""Upgrades a decoded function to the current spelling of its ops: one flat program, which is traced and printed.

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
from jaxmesh.dialects.program import NO_ATTRIBUTES, Op, Port, Program, Type, Value
from jaxmesh.dialects.ttir.images import FLATTENED
from jaxmesh.dialects.ttir.mesh_shard import MeshShardAttributes
from jaxmesh.errors import VerifyError
from jaxmesh.frontends.mlir.attributes import Array, entries
from jaxmesh.frontends.mlir.preprocess import PROPERTIES
from jaxmesh.frontends.mlir.text import add_location, is_integers
from jaxmesh.frontends.mlir.ttnn_attributes import AFTER, CONFIGS, FUSED, LONGEST, activation_of, fused_functions

FUNCTION = "function"
"""The attribute of a decoded call that has its `DecodedFunction`."""
FUNCTIONS = "functions"
"""The attribute of a loop or a branch that has its functions: each a `DecodedFunction`, then an `Upgrade`."""
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


@dataclass(slots=True, eq=False)
class DecodedFunction:
    """A function as its text spells it; a call has the function that it calls as an attribute.

    Attributes:
      program: the flat program. An op that writes to an operand has no result, as in MLIR.
      lines: the line of the file of each op.
      end: the line of `func.return`; 0 if there is none.
      size: the number of its ops, calls inlined.
      written: the arguments that an op writes to.
    """

    program: Program
    lines: list[int] = field(default_factory=list[int])
    end: int = 0
    size: int = 0
    written: set[Value] = field(default_factory=set[Value])


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


def written_operands(op: Op) -> tuple[Value, ...]:
    """Returns the operand that a decoded op writes to instead of giving a result: it is the result from there on."""
    definition = None if op.results else definition_of(current_name(op.name))
    number = None if definition is None else definition.overwritten
    return () if number is None else op.used[number : number + 1]


@dataclass(slots=True)
class Upgrade:
    """A decoded function with its calls inlined and its ops in their current spelling; the fields are as in `Text`."""

    program: Program
    lines: list[int] = field(default_factory=list[int])
    names: list[str] = field(default_factory=list[str])
    is_current: bool = True
    unwritten: set[Value] = field(default_factory=set[Value])
    """The results of ops that allocate a tensor."""
    known: dict[tuple[int, int], _Current] = field(default_factory=dict[tuple[int, int], "_Current"])
    """Spellings by the identity of an op's attributes, which equally written ops share, and its number of operands."""

    @classmethod
    def of(cls, function: DecodedFunction) -> Upgrade:
        """Returns the upgrade of a decoded function.

        Raises:
          VerifyError: a constant, a mesh_shard or a config of a transfer breaks a rule; the message names the line.
        """
        source = function.program
        made = cls(Program(source.name, {}, source.types[: len(source.arguments)], list(source.arguments)))
        values, _ = made.function(function, range(len(source.arguments)))
        made.program.results = [Port(v, presharded=False) for v in values]
        return made

    def function(self, function: DecodedFunction, arguments: Sequence[Value]) -> tuple[list[Value], list[Value]]:
        """Appends the ops of a function; returns the values of its results, and of its arguments at its end."""
        source = function.program
        values: list[Value] = [*arguments, *[-1] * (len(source.types) - len(arguments))]
        for op, line in zip(source.ops, function.lines, strict=True):
            operands = [values[v] for v in op.used]
            callee = op.attributes.get(FUNCTION)
            if isinstance(callee, DecodedFunction):
                values_of, after = self.function(callee, operands)
                for number in callee.written:
                    values[op.used[number]] = after[number]
            elif FUNCTIONS in op.attributes:
                self.is_current = False
                attributes = {**op.attributes, FUNCTIONS: tuple(map(Upgrade.of, op.attributes[FUNCTIONS]))}
                made = Op(op.name, tuple(operands), (), attributes, op.line)
                values_of = self._append(made, [source.types[v] for v in op.results], line, op.name)
            else:
                try:
                    values_of = self._op(op, line, operands, [source.types[v] for v in op.results])
                except Exception as error:
                    raise add_location(line, op.name, error) from None
            for old, new in zip(op.results or written_operands(op), values_of, strict=True):
                values[old] = new
        return [values[port.value] for port in source.results], values[: len(source.arguments)]

    def _op(self, op: Op, line: int, operands: list[Value], types: list[Type]) -> Sequence[Value]:
        if operands and operands[-1] in self.unwritten:
            operands = self._without_destinations(op, operands, types)
        now = self._current(op, operands, types)
        if now.fused:
            return self._unfused(replace(op, attributes=now.attributes), line, operands, types, now.fused)
        placed = tuple([v if v is None else operands[v] for v in now.places])
        results = self._append(Op(now.name, placed, (), now.attributes, op.line), types, line, op.name)
        self.is_current = self.is_current and now.is_current
        if now.activation:
            return self._append(Op(now.activation, results, (), NO_ATTRIBUTES, op.line), types, line, now.activation)
        if op.name in EMPTY:
            self.unwritten.update(results)
        return results

    def _current(self, op: Op, operands: Sequence[Value], types: Sequence[Type]) -> _Current:
        """Returns the current spelling of an op, once for equally written ops."""
        given, key = [self.program.types[v] for v in operands], (id(op.attributes), len(operands))
        if (
            op.name.endswith(".all_to_all_combine")
            and _DIM not in op.attributes
            and min(len(given) - 1, len(types)) > 0
        ):
            # Compilers before tt-mlir 6131dfe97a took the dim from the shapes.
            dim = 1 if given[1].shape[1:2] != types[0].shape[1:2] else 2
            older = replace(op, attributes={**op.attributes, _DIM: dim})
            return _spell(older, [kind.kind for kind in given], types)._replace(is_current=False)
        if (now := self.known.get(key)) is None:
            now = self.known[key] = _spell(op, [kind.kind for kind in given], types)
        return now

    def _unfused(
        self, op: Op, line: int, operands: list[Value], types: list[Type], fused: Mapping[str, Sequence[str]]
    ) -> Sequence[Value]:
        """Appends an op without the functions that it applies to its operands and its result, and these beside it."""
        self.is_current = False

        def apply(value: Value, functions: Sequence[str]) -> Value:
            for name in functions:
                (value,) = self._append(
                    Op(name, (value,), (), NO_ATTRIBUTES, op.line), [self.program.types[value]], line, name
                )
            return value

        given = [apply(v, fused.get(name, ())) for name, v in zip(FUSED, operands, strict=False)]
        results = self._op(op, line, [*given, *operands[len(given) :]], types)
        return [apply(v, fused.get(AFTER, ())) for v in results]

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

    def _without_destinations(self, op: Op, operands: list[Value], types: Sequence[Type]) -> list[Value]:
        """Returns the operands of an op without the tensors that are allocated for its results."""
        self.is_current, definition = False, definition_of(current_name(op.name))
        if op.name == "ttir.mesh_shard":
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


class _Current(NamedTuple):
    """The current spelling of an op.

    Attributes:
      name: of the op, with the dialect.
      attributes: without the functions in `fused`, if there are any.
      places: the numbers of the operands by position; None for one that is left out.
      is_current: True if the text has no other spelling.
      activation: the op that it applies to its result, or empty.
      fused: the ops that it applies to its operands and its result.
    """

    name: str
    attributes: Mapping[str, Any]
    places: Sequence[int | None]
    is_current: bool = False
    activation: str = ""
    fused: Mapping[str, Sequence[str]] = NO_ATTRIBUTES


def _spell(op: Op, kinds: Sequence[str], types: Sequence[Type]) -> _Current:
    """Returns the current spelling of an op on operands of these kinds."""
    if fused := fused_functions(op.attributes):
        return _Current(op.name, {k: v for k, v in op.attributes.items() if k not in fused}, (), fused=fused)
    activation, name = activation_of(op.name, op.attributes), current_name(op.name)
    definition, count = definition_of(name), kinds.count("tensor")
    if definition is not None and definition.in_form_of(op.attributes, len(types)) is not definition:
        name = f"{FORMER}{name.partition('.')[2]}"
    attributes, is_current = _spell_attributes(op, definition, (count, len(kinds)), types)
    places: Sequence[int | None] = range(len(kinds))
    if not has_trait(name, Trait.OPAQUE):
        # Devices and semaphores, which no operand group counts, are the last.
        is_ordered, sizes = "tensor" not in kinds[count:], op.attributes.get(_SIZES)
        is_current = is_current and is_ordered
        if is_ordered:
            places = (*group_operands(sizes if is_integers(sizes) else None, places[:count]), *places[count:])
    return _Current(name, attributes, places, is_current and name == op.name and not activation, activation)


def _spell_attributes(
    op: Op, definition: OpDef | None, counts: tuple[int, int], types: Sequence[Type]
) -> tuple[Mapping[str, object], bool]:
    """Returns the attributes of an op in their current spelling, and True if the text spells them so.

    `counts` are the numbers of its tensors and of all its operands; `types` are those of its results.
    """
    name, written = op.name.partition(".")[2], op.attributes
    attributes = {k: v for k, v in written.items() if k not in _SEGMENTS and "." not in k}
    marks = {HOISTED: True} if HOISTED in written else {}
    if definition is None:
        return attributes, False
    if Trait.BY_ELEMENT_TYPE in definition.traits:
        # The numbers that are stored do not tell the element type of the op.
        return written, False
    if op.name == "ttir.mesh_shard":
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
        sizes, is_opaque = written[_SIZES], has_trait(op.name, Trait.OPAQUE)
        total = sum(sizes) if is_integers(sizes) else -1
        is_known = total in (*counts, counts[0] + 1)
        # Wrong sizes stay, for the meaning of the op to refuse.
        if not is_known or (total == counts[1] and (op.name.startswith("ttir.") or is_opaque)):
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
