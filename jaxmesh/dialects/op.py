"""The table of ops: one row ties a TTIR op to its attributes and to its meaning in JAX.

It stands below the rooms, because frontends and emitters both read it and never import each other. A new op is one
`@row(...)` function in one of the files of this folder.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import jax
import numpy as np

from jaxmesh.errors import JaxmeshError, VerifyError
from jaxmesh.validate import check_size

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Attribute:
    """One attribute of an op.

    Kinds: `int`, `float`, `number`, `bool`, `str`, `ints` (a row of integers), `bools`, `array` (a NumPy array),
    `enum` (a dialect's spelling such as `sum`), `any`.

    `form` is how MLIR writes it; empty means by the kind (`FORMS`). Forms: `si32`, `ui32`, `i32`, `i64`, `si64`, `f32`,
    `number` (`f32` or `i32`, as the value is), `bool`, `string`, `i32s` (`[1 : i32, 2 : i32]`), `i64s`
    (`array<i64: 1, 2>`), `i32a` (`array<i32: 1, 2>`), `bools`, `dense`, `dense_i64` (a table of device ids), `shape`
    (`#ttnn.shape<2x1>`), `type`, `convolution_layout`, and for an enum the attribute around it with its dialect, such
    as `#ttcore.reduce_type`. A row of integers where the form is of one, as of kind `any`, is written as `i32a`.
    """

    name: str
    kind: str
    required: bool = False
    default: Any = None
    form: str = ""

    @property
    def written(self) -> str:
        """The form in which MLIR writes it."""
        return self.form or FORMS[self.kind]


FORMS: Mapping[str, str] = {
    "int": "si32", "float": "f32", "number": "number", "bool": "bool", "str": "string", "ints": "i32s",
    "bools": "bools", "array": "dense", "enum": "string", "any": "any",
}  # fmt: skip
"""The form of an attribute by its kind, where the attribute does not say another."""


@dataclass(frozen=True, slots=True)
class Call:
    """One occurrence of an op: operands inside a typed trace, checked attributes, declared result types."""

    row: Row
    operands: tuple[Any, ...]
    attributes: Mapping[str, Any]
    results: tuple[jax.ShapeDtypeStruct, ...]
    mesh: Mapping[str, int]

    @property
    def result(self) -> jax.ShapeDtypeStruct:
        """The declared type of the only result."""
        return self.results[0]

    def __getitem__(self, name: str) -> Any:
        """The value of an attribute, its default where it is not written."""
        return self.attributes[name]


Meaning = Callable[[Call], Any]


@dataclass(frozen=True, slots=True)
class Row:
    """One op of TTIR."""

    name: str
    operands: tuple[int, int | None]
    attributes: tuple[Attribute, ...]
    meaning: Meaning
    results: tuple[int, int | None]
    casts: bool


SEGMENTS = (Attribute("operandSegmentSizes", "ints"), Attribute("resultSegmentSizes", "ints"))
"""What MLIR writes on any op with optional operands, and older TTIR on every op."""

ROWS: dict[str, Row] = {}
"""By TTIR name, without the dialect."""


def row(
    name: str,
    operands: int | tuple[int, int | None],
    *attributes: Attribute,
    results: tuple[int, int | None] = (1, 1),
    casts: bool = False,
) -> Callable[[Meaning], Meaning]:
    """Enters a function as the meaning of an op.

    Args:
      name: the op's TTIR name, without the dialect.
      operands: how many it takes, or the least and the most (None: any number).
      attributes: the attributes it knows.
      results: the least and the most results.
      casts: whether the declared result type may be of another element type than the meaning's, as of comparisons.
    """
    arity = (operands, operands) if isinstance(operands, int) else operands

    def enter(meaning: Meaning) -> Meaning:
        assert name not in ROWS, name
        ROWS[name] = Row(name, arity, attributes, meaning, results, casts)
        return meaning

    return enter


def evaluate(
    row: Row,
    operands: Sequence[Any],
    attributes: Mapping[str, Any],
    results: Sequence[jax.ShapeDtypeStruct],
    mesh: Mapping[str, int],
) -> list[Any]:
    """Performs one occurrence of an op inside a typed trace, and checks its results against the declared types.

    Args:
      row: the op.
      operands: its operands.
      attributes: its attributes as Python values; those with a dialect's prefix (`ttcore.x`) are ignored.
      results: the declared result types.
      mesh: axis names and sizes.

    Raises:
      VerifyError: a wrong number of operands or results, an unknown, missing or ill-typed attribute, arguments that the
        op does not take, or a result whose type is not the declared one; the message holds the rule and both values.
    """
    outs = compute(row, operands, attributes, results, mesh)
    if len(outs) != len(results):
        raise VerifyError(f"ttir.{row.name} gives {len(outs)} results, but {len(results)} are declared.")
    return [_declared(row, out, want) for out, want in zip(outs, results, strict=True)]


def compute(
    row: Row,
    operands: Sequence[Any],
    attributes: Mapping[str, Any],
    results: Sequence[jax.ShapeDtypeStruct],
    mesh: Mapping[str, int],
) -> list[Any]:
    """Performs one occurrence of an op as `evaluate` does; the results may be of other types than the declared ones."""
    _check_count(row, "operands", len(operands), row.operands)
    _check_count(row, "results", len(results), row.results)
    for result in results:
        check_size(result.shape, result.dtype, f"ttir.{row.name}: its result")
    call = Call(row, tuple(operands), _attributes(row, attributes, len(operands)), tuple(results), mesh)
    return _performed(call)


def _check_count(row: Row, what: str, found: int, allowed: tuple[int, int | None]) -> None:
    least, most = allowed
    if found < least or (most is not None and found > most):
        wanted = f"{least}" if least == most else f"at least {least}" if most is None else f"{least} to {most}"
        raise VerifyError(f"ttir.{row.name} takes {wanted} {what}, got {found}.")


def _attributes(row: Row, given: Mapping[str, Any], operands: int) -> dict[str, Any]:
    known = {a.name: a for a in (*row.attributes, *SEGMENTS)}
    for name in given:
        if name not in known and "." not in name:
            allowed = ", ".join(a.name for a in row.attributes) or "none"
            raise VerifyError(f"ttir.{row.name} has no attribute {name!r}; its attributes are: {allowed}.")
    values: dict[str, Any] = {}
    for name, attribute in known.items():
        if name in given:
            values[name] = _checked(row, attribute, given[name])
        elif attribute.required:
            raise VerifyError(f"ttir.{row.name} needs the attribute {name!r} ({attribute.kind}); it is missing.")
        else:
            values[name] = attribute.default
    _check_segments(row, values["operandSegmentSizes"], operands)
    return values


def _check_segments(row: Row, sizes: Shape | None, operands: int) -> None:
    """The written sizes may still count a destination, which was the last operand of the older op and is no more."""
    if sizes is None or (min(sizes, default=0) >= 0 and operands in (sum(sizes), sum(sizes[:-1]))):
        return
    raise VerifyError(f"ttir.{row.name}: operandSegmentSizes {list(sizes)} do not count its {operands} operands.")


def _integer(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _number(value: Any) -> bool:
    return _integer(value) or isinstance(value, float)


_IS_KIND: Mapping[str, Callable[[Any], bool]] = {
    "int": _integer,
    "float": _number,
    "number": _number,
    "bool": lambda value: isinstance(value, bool),
    "str": lambda value: isinstance(value, str),
    "enum": lambda value: isinstance(value, str),
    "ints": lambda value: isinstance(value, tuple) and all(map(_integer, cast("Shape", value))),
    "bools": lambda value: isinstance(value, tuple) and all(type(v) is bool for v in cast("Shape", value)),
    "array": lambda value: isinstance(value, np.ndarray),
    "any": lambda value: True,
}


def _checked(row: Row, attribute: Attribute, value: Any) -> Any:
    known: Any = tuple(cast("list[Any]", value)) if isinstance(value, list) else value
    if not _IS_KIND[attribute.kind](known):
        raise VerifyError(f"ttir.{row.name}: attribute {attribute.name!r} is of kind {attribute.kind}, got {value!r}.")
    return float(known) if attribute.kind == "float" else known


def _performed(call: Call) -> list[Any]:
    """What the op gives; a complaint of JAX becomes one about the op."""
    try:
        made = call.row.meaning(call)
    except JaxmeshError:
        raise
    except (TypeError, ValueError, OverflowError, IndexError) as error:
        types = ", ".join(describe(x) for x in call.operands)
        raise VerifyError(f"ttir.{call.row.name} of ({types}) is impossible: {str(error).strip()}") from error
    return list(cast("Sequence[Any]", made)) if isinstance(made, (list, tuple)) else [made]


def describe(x: Any) -> str:
    """The type of an array as messages show it."""
    return f"{x.dtype}{list(x.shape)}"


def _declared(row: Row, out: Any, want: jax.ShapeDtypeStruct) -> Any:
    # Without JAX's x64 mode a declared i64 is held as i32.
    dtype = jax.dtypes.canonicalize_dtype(want.dtype)
    if out.shape != want.shape or (out.dtype != dtype and not row.casts):
        raise VerifyError(f"ttir.{row.name}: the result is {describe(out)}, but the declared type is {describe(want)}.")
    return out if out.dtype == dtype else out.astype(dtype)
