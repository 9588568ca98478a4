"""Definitions of operations: name, operands, attributes, results, traits, and what the operation means in JAX.

To add an operation of TTIR, write one `@define(OPS, ...)` function in a file of `dialects/ttir/`. Frontends and
emitters both read the definitions and never import each other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum, auto
from functools import cached_property
from typing import Any, Literal, cast

import jax
import numpy as np

from jaxmesh.errors import JaxmeshError, VerifyError
from jaxmesh.validate import check_size

Shape = tuple[int, ...]
Kind = Literal["int", "float", "number", "bool", "str", "ints", "bools", "array", "enum", "any"]
Form = Literal[
    "si8", "si32", "ui32", "i32", "i64", "si64", "f32", "number", "bool", "string", "i32s", "i64s", "i32a", "bools",
    "dense", "dense_i64", "shape", "type", "any", "text", "convolution_layout", "#ttcore.reduce_type",
    "#ttcore.shard_type", "#ttcore.shard_direction",
]  # fmt: skip


class Trait(Enum):
    """A fact about an operation that passes and tools ask for."""

    MOVES = auto()
    """It only moves or creates data: its results are exact, bit for bit."""
    CREATES = auto()
    """Its result depends on no tensor."""
    VIEW = auto()
    """The result holds the same elements in the same order, in another shape."""
    RETURNS_OPERAND = auto()
    """The real function returns its operand itself if there is nothing to do."""
    ON_HOST = auto()
    """The real `ttnn` performs it in host memory, too."""
    COLLECTIVE = auto()
    """It needs a mesh, and its result is on the devices."""
    TRANSFERS = auto()
    """It splits a tensor over devices or joins its shards."""
    SENDS = auto()
    """Data moves from device to device."""
    IN_FLOAT32 = auto()
    """It computes in float32 and rounds once, whatever the element type."""
    DECOMPOSED = auto()
    """An imported one is kept as the equations of its meaning, in which passes look for it."""
    DECOMPOSED_FOR_TTNN = auto()
    """TTNN has no such operation; an imported one is lowered from the equations of its meaning."""
    NEEDS_DEVICE = auto()
    """It takes the mesh device, and its result is never on the host."""
    TEXTUAL = auto()
    """It is read and printed as MLIR, and has no call in Python and C++."""
    OPAQUE = auto()
    """No meaning of it is known: it cannot be executed."""
    NOT_UPSTREAM = auto()
    """Upstream's dialect has no such operation: one in a text is read, with a warning, and never printed."""


@dataclass(frozen=True, slots=True)
class Attribute:
    """One attribute of an operation.

    Kinds: `number` (whole or not), `ints` and `bools` (sequences), `array` (a NumPy array), `enum` (the dialect's name
    of a value, such as `sum`), `any`; the others are Python's types.

    `form` is the attribute's form in MLIR; by default the one of the kind (`FORMS`). Forms: `number` (`f32` or `i32`,
    as the value is), `i32s` (`[1 : i32, 2 : i32]`), `i64s` (`array<i64: 1, 2>`), `i32a` (`array<i32: 1, 2>`),
    `dense_i64` (a table of device ids), `shape` (`#ttnn.shape<2x1>`), `text` (as the text has it), and for an enum the
    dialect's attribute around it, such as `#ttcore.reduce_type`. A sequence is printed as `i32a` if the form is that of
    a single integer, as of kind `any`.

    `required` is upstream's rule. With `assumed`, a text without the attribute is read with a warning and the default.
    """

    name: str
    kind: Kind
    required: bool = False
    default: Any = None
    form: Form | None = None
    assumed: bool = False

    @property
    def mlir_form(self) -> Form:
        """The form in MLIR."""
        return self.form or FORMS[self.kind]


FORMS: Mapping[Kind, Form] = {
    "int": "si32", "float": "f32", "number": "number", "bool": "bool", "str": "string", "ints": "i32s",
    "bools": "bools", "array": "dense", "enum": "string", "any": "any",
}  # fmt: skip
"""The form of an attribute by its kind, unless the attribute has its own."""


def attr(name: str, kind: Kind, default: Any = None, form: Form | None = None) -> Attribute:
    """Returns an optional attribute."""
    return Attribute(name, kind, default=default, form=form)


def need(name: str, kind: Kind, form: Form | None = None) -> Attribute:
    """Returns a required attribute."""
    return Attribute(name, kind, required=True, form=form)


def expect(name: str, kind: Kind, default: Any = None, form: Form | None = None) -> Attribute:
    """Returns a required attribute that texts of earlier versions leave out: it has the default in them."""
    return Attribute(name, kind, required=True, default=default, form=form, assumed=True)


@dataclass(frozen=True, slots=True)
class Call:
    """One occurrence of an operation: operands inside a typed trace, checked attributes, declared result types."""

    definition: OpDef
    operands: tuple[Any, ...]
    attributes: Mapping[str, Any]
    results: tuple[jax.ShapeDtypeStruct, ...]
    mesh: Mapping[str, int]

    @property
    def name(self) -> str:
        """The operation's name, without the dialect."""
        return self.definition.name

    @property
    def result(self) -> jax.ShapeDtypeStruct:
        """The declared type of the only result."""
        return self.results[0]

    def __getitem__(self, name: str) -> Any:
        """Returns the value of an attribute; its default if it is absent."""
        return self.attributes[name]


Meaning = Callable[[Call], Any]
Arity = tuple[int, int | None]
"""The least and the most values; None for any number."""


@dataclass(frozen=True)
class OpDef:
    """The definition of an operation.

    Attributes:
      name: without the dialect.
      operands: how many it takes.
      attributes: its attributes.
      meaning: computes the results in JAX.
      results: how many it has.
      casts: True if the declared element type of a result may differ from the meaning's, as of comparisons.
      traits: facts about it.
      options: attributes that say how to compute, not what: they are read, and never printed.
      writes: the number of the operand whose memory it writes its result to. In MLIR it has no result then: the
        operand is the result from there on.
      former: the operation of the same name in texts of earlier versions.
    """

    name: str
    operands: Arity
    attributes: tuple[Attribute, ...]
    meaning: Meaning
    results: Arity = (1, 1)
    casts: bool = False
    traits: frozenset[Trait] = frozenset()
    options: frozenset[str] = frozenset()
    writes: int | None = None
    former: OpDef | None = None

    @cached_property
    def by_name(self) -> Mapping[str, Attribute]:
        """The attributes by name."""
        return {a.name: a for a in self.attributes}

    @cached_property
    def assumptions(self) -> Mapping[str, Any]:
        """The values of required attributes that texts of earlier versions leave out, if they are known."""
        return {a.name: a.default for a in self.attributes if a.assumed and a.default is not None}

    def in_form_of(self, attributes: Iterable[str], results: int) -> OpDef:
        """Returns the definition that an occurrence with these attributes and results follows: this or a former one."""
        if self.former is None:
            return self
        has_result = self.writes is not None and results > 0
        own = {*self.by_name, *self.options}
        known = own | self.former.by_name.keys()
        older = any(name in known and name not in own for name in attributes)
        return self.former if has_result or older else self


SEGMENTS = (attr("operandSegmentSizes", "ints"), attr("resultSegmentSizes", "ints"))
"""The attributes that MLIR writes on any op with optional operands, and older TTIR on every op."""


def define(
    ops: dict[str, OpDef],
    name: str,
    operands: int | Arity,
    *attributes: Attribute,
    results: Arity = (1, 1),
    casts: bool = False,
    traits: Sequence[Trait] = (),
    options: Sequence[str] = (),
    writes: int | None = None,
    former: OpDef | None = None,
) -> Callable[[Meaning], Meaning]:
    """Adds an operation to a table, with the decorated function as its meaning; `OpDef` describes the arguments."""

    def enter(meaning: Meaning) -> Meaning:
        assert name not in ops, name
        row = OpDef(name, arity(operands), attributes, meaning, results, casts, frozenset(traits))
        ops[name] = replace(row, options=frozenset(options), writes=writes, former=former)
        return meaning

    return enter


def arity(count: int | Arity) -> Arity:
    """Returns the least and the most of a count that may be one number."""
    return (count, count) if isinstance(count, int) else count


def evaluate(
    op: OpDef,
    operands: Sequence[Any],
    attributes: Mapping[str, Any],
    results: Sequence[jax.ShapeDtypeStruct],
    mesh: Mapping[str, int],
) -> list[Any]:
    """Performs one occurrence of an operation inside a typed trace, and checks its results against the declared types.

    Attributes with a dialect's prefix (`ttcore.x`) are ignored.

    Raises:
      VerifyError: a wrong number of operands or results, an unknown, missing or ill-typed attribute, arguments that the
        op does not take, or a result whose type is not the declared one; the message has the rule and both values.
    """
    return as_declared(op, compute(op, operands, attributes, results, mesh), results)


def as_declared(op: OpDef, outs: Sequence[Any], results: Sequence[jax.ShapeDtypeStruct]) -> list[Any]:
    """Returns results of the declared types; raises a VerifyError where they are of others."""
    if len(outs) != len(results):
        raise VerifyError(f"ttir.{op.name} gives {len(outs)} results, but {len(results)} are declared.")
    return [_check_declared(op, out, want) for out, want in zip(outs, results, strict=True)]


def compute(
    op: OpDef,
    operands: Sequence[Any],
    attributes: Mapping[str, Any],
    results: Sequence[jax.ShapeDtypeStruct],
    mesh: Mapping[str, int],
) -> list[Any]:
    """Performs one occurrence of an op as `evaluate` does; the results may be of other types than the declared ones."""
    _check_count(op, "operands", len(operands), op.operands)
    _check_count(op, "results", len(results), op.results)
    for result in results:
        check_size(result.shape, result.dtype, f"ttir.{op.name}: its result")
    call = Call(op, tuple(operands), _check_attributes(op, attributes, len(operands)), tuple(results), mesh)
    return _perform(call)


def _check_count(op: OpDef, what: str, count: int, allowed: Arity) -> None:
    least, most = allowed
    if count < least or (most is not None and count > most):
        wanted = f"{least}" if least == most else f"at least {least}" if most is None else f"{least} to {most}"
        raise VerifyError(f"ttir.{op.name} takes {wanted} {what}, got {count}.")


def _check_attributes(op: OpDef, given: Mapping[str, Any], operands: int) -> dict[str, Any]:
    known = (*op.attributes, *SEGMENTS)
    names = {a.name for a in known}
    for name in given:
        if name not in names and "." not in name:
            allowed = ", ".join(a.name for a in op.attributes) or "none"
            raise VerifyError(f"ttir.{op.name} has no attribute {name!r}; its attributes are: {allowed}.")
    values: dict[str, Any] = {}
    for attribute in known:
        if attribute.name in given:
            values[attribute.name] = _check_kind(op, attribute, given[attribute.name])
        elif attribute.required and not attribute.assumed:
            named = f"{attribute.name!r} ({attribute.kind})"
            raise VerifyError(f"ttir.{op.name} needs the attribute {named}; it is missing.")
        else:
            values[attribute.name] = attribute.default
    _check_segments(op, values["operandSegmentSizes"], operands)
    return values


def _check_segments(op: OpDef, sizes: Shape | None, operands: int) -> None:
    """Checks segment sizes; they may still count a destination, the last operand of ops of older TTIR."""
    if sizes is None or (min(sizes, default=0) >= 0 and operands in (sum(sizes), sum(sizes[:-1]))):
        return
    raise VerifyError(f"ttir.{op.name}: operandSegmentSizes {list(sizes)} do not count its {operands} operands.")


def _is_integer(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: Any) -> bool:
    return _is_integer(value) or isinstance(value, float)


_IS_KIND: Mapping[Kind, Callable[[Any], bool]] = {
    "int": _is_integer,
    "float": _is_number,
    "number": _is_number,
    "bool": lambda value: isinstance(value, bool),
    "str": lambda value: isinstance(value, str),
    "enum": lambda value: isinstance(value, str),
    "ints": lambda value: isinstance(value, tuple) and all(map(_is_integer, cast("Shape", value))),
    "bools": lambda value: isinstance(value, tuple) and all(type(v) is bool for v in cast("Shape", value)),
    "array": lambda value: isinstance(value, np.ndarray),
    "any": lambda value: True,
}


def _check_kind(op: OpDef, attribute: Attribute, value: Any) -> Any:
    known: Any = tuple(cast("list[Any]", value)) if isinstance(value, list) else value
    if not _IS_KIND[attribute.kind](known):
        raise VerifyError(f"ttir.{op.name}: attribute {attribute.name!r} is of kind {attribute.kind}, got {value!r}.")
    return float(known) if attribute.kind == "float" else known


def _perform(call: Call) -> list[Any]:
    """Computes the results; turns an error of JAX into one about the operation."""
    try:
        made = call.definition.meaning(call)
    except JaxmeshError:
        raise
    except (TypeError, ValueError, OverflowError, IndexError) as error:
        types = ", ".join(describe(x) for x in call.operands)
        raise VerifyError(f"ttir.{call.name} of ({types}) is impossible: {str(error).strip()}") from error
    return list(cast("Sequence[Any]", made)) if isinstance(made, (list, tuple)) else [made]


def describe(x: Any) -> str:
    """Returns the type of an array as messages show it."""
    return f"{x.dtype}{list(x.shape)}"


def _check_declared(op: OpDef, out: Any, want: jax.ShapeDtypeStruct) -> Any:
    # Without JAX's x64 mode a declared i64 becomes i32.
    dtype = jax.dtypes.canonicalize_dtype(want.dtype)
    if out.shape != want.shape or (out.dtype != dtype and not op.casts):
        raise VerifyError(f"ttir.{op.name}: the result is {describe(out)}, but the declared type is {describe(want)}.")
    return out if out.dtype == dtype else out.astype(dtype)
