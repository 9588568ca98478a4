"""The table of ops: one row ties a TTIR op to its attributes and to its meaning in JAX.

It stands below the rooms, because frontends and emitters both read it and never import each other. A new op is one
`@row(...)` function in one of the files of this folder.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax

from jaxmesh.errors import VerifyError

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Attribute:
    """One attribute of an op.

    Kinds: `int`, `float`, `number`, `bool`, `str`, `ints` (a row of integers), `bools`, `array` (a NumPy array),
    `enum` (a dialect's spelling such as `sum`), `any`.
    """

    name: str
    kind: str
    required: bool = False
    default: Any = None


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
    """Performs one occurrence of an op inside a typed trace.

    Args:
      row: the op.
      operands: its operands.
      attributes: its attributes as Python values; those with a dialect's prefix (`ttcore.x`) are ignored.
      results: the declared result types.
      mesh: axis names and sizes.

    Raises:
      VerifyError: a wrong number of operands or results, an unknown, missing or ill-typed attribute, or a result whose
        type is not the declared one; the message holds the rule and both values.
    """
    _check_count(row, "operands", len(operands), row.operands)
    _check_count(row, "results", len(results), row.results)
    call = Call(row, tuple(operands), _attributes(row, attributes), tuple(results), mesh)
    made = row.meaning(call)
    outs = list(made) if isinstance(made, (list, tuple)) else [made]
    if len(outs) != len(results):
        raise VerifyError(f"ttir.{row.name} gives {len(outs)} results, but {len(results)} are declared.")
    return [_declared(row, out, want) for out, want in zip(outs, results, strict=True)]


def _check_count(row: Row, what: str, found: int, allowed: tuple[int, int | None]) -> None:
    least, most = allowed
    if found < least or (most is not None and found > most):
        wanted = f"{least}" if least == most else f"at least {least}" if most is None else f"{least} to {most}"
        raise VerifyError(f"ttir.{row.name} takes {wanted} {what}, got {found}.")


def _attributes(row: Row, given: Mapping[str, Any]) -> dict[str, Any]:
    known = {a.name: a for a in row.attributes}
    for name in given:
        if name not in known and "." not in name:
            allowed = ", ".join(known) or "none"
            raise VerifyError(f"ttir.{row.name} has no attribute {name!r}; its attributes are: {allowed}.")
    values: dict[str, Any] = {}
    for name, attribute in known.items():
        if name in given:
            values[name] = _checked(row, attribute, given[name])
        elif attribute.required:
            raise VerifyError(f"ttir.{row.name} needs the attribute {name!r} ({attribute.kind}); it is missing.")
        else:
            values[name] = attribute.default
    return values


def _checked(row: Row, attribute: Attribute, value: Any) -> Any:
    integer = isinstance(value, int) and not isinstance(value, bool)
    number = integer or isinstance(value, float)
    items: tuple[Any, ...] = tuple(value) if isinstance(value, (list, tuple)) else ()
    match attribute.kind:
        case "int":
            good = integer
        case "float" | "number":
            good = number
        case "bool":
            good = isinstance(value, bool)
        case "str" | "enum":
            good = isinstance(value, str)
        case "ints":
            good = isinstance(value, (list, tuple)) and all(type(v) is int for v in items)
            value = items
        case "bools":
            good = isinstance(value, (list, tuple)) and all(type(v) is bool for v in items)
            value = items
        case _:
            good = True
    if not good:
        raise VerifyError(f"ttir.{row.name}: attribute {attribute.name!r} is of kind {attribute.kind}, got {value!r}.")
    return float(value) if attribute.kind == "float" else value


def _declared(row: Row, out: Any, want: jax.ShapeDtypeStruct) -> Any:
    if out.shape != want.shape or (out.dtype != want.dtype and not row.casts):
        raise VerifyError(
            f"ttir.{row.name}: the result is {out.dtype}{list(out.shape)}, but the declared type is "
            f"{want.dtype}{list(want.shape)}."
        )
    return out if out.dtype == want.dtype else out.astype(want.dtype)
