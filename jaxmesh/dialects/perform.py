"""Performs one occurrence of an operation by its definition: checks its arguments, computes, checks its results."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import jax
import numpy as np

from jaxmesh.dialects.attributes import Attribute, Attributes, Kind
from jaxmesh.dialects.op import SEGMENTS, UPSTREAM, Arity, Call, OpDef, Shape, describe
from jaxmesh.errors import JaxmeshError, VerifyError
from jaxmesh.validate import check_size


def evaluate(
    op: OpDef,
    operands: Sequence[jax.Array],
    attributes: Attributes,
    results: Sequence[jax.ShapeDtypeStruct],
    mesh: Mapping[str, int],
) -> list[jax.Array]:
    """Performs one occurrence of an operation inside a typed trace, and checks its results against the declared types.

    Attributes with a dialect's prefix (`ttcore.x`) are ignored.

    Raises:
      VerifyError: a wrong number of operands or results, an unknown, missing or ill-typed attribute, arguments that the
        op does not take, or a result whose type is not the declared one; the message has the rule and both values.
    """
    return as_declared(op, compute(op, operands, attributes, results, mesh), results)


def as_declared(op: OpDef, outs: Sequence[jax.Array], results: Sequence[jax.ShapeDtypeStruct]) -> list[jax.Array]:
    """Returns results of the declared types; raises a VerifyError where they are of others."""
    if len(outs) != len(results):
        raise VerifyError(f"{op.full_name} gives {len(outs)} results, but {len(results)} are declared.")
    return [_check_declared(op, out, want) for out, want in zip(outs, results, strict=True)]


def compute(
    op: OpDef,
    operands: Sequence[jax.Array],
    attributes: Attributes,
    results: Sequence[jax.ShapeDtypeStruct],
    mesh: Mapping[str, int],
    title: str = "",
) -> list[jax.Array]:
    """Performs one occurrence of an op as `evaluate` does; the results may be of other types than the declared ones.

    `title` names the operation in messages; by default its full name.
    """
    title = title or op.full_name
    _check_count(title, "operands", len(operands), op.operands)
    _check_count(title, "results", len(results), op.results)
    for result in results:
        check_size(result.shape, result.dtype, f"{title}: its result")
    checked = _check_attributes(op, attributes, len(operands), title)
    return _perform(Call(op, tuple(operands), checked, tuple(results), mesh, title))


def _check_count(title: str, what: str, count: int, allowed: Arity) -> None:
    least, most = allowed
    if count < least or (most is not None and count > most):
        wanted = f"{least}" if least == most else f"at least {least}" if most is None else f"{least} to {most}"
        raise VerifyError(f"{title} takes {wanted} {what}, got {count}.")


def _check_attributes(op: OpDef, given: Attributes, operands: int, title: str) -> dict[str, object]:
    known = (*op.attributes, *SEGMENTS)
    names = {a.name for a in known}
    for name in given:
        if name not in names and "." not in name:
            raise VerifyError(f"{title} has no attribute {name!r} in {UPSTREAM}; {op.listed_attributes}.")
    values: dict[str, Any] = {}
    for attribute in known:
        if attribute.name in given:
            values[attribute.name] = _check_value(attribute, given[attribute.name], title)
        elif attribute.required and not attribute.assumed:
            named = f"{attribute.name!r} ({attribute.kind})"
            raise VerifyError(f"{title} needs the attribute {named}; it is missing.")
        else:
            values[attribute.name] = attribute.default
    _check_segments(values["operandSegmentSizes"], operands, title)
    return values


def _check_segments(sizes: Shape | None, operands: int, title: str) -> None:
    """Checks segment sizes; they may still count a destination, the last operand of ops of older TTIR."""
    if sizes is None or (min(sizes, default=0) >= 0 and operands in (sum(sizes), sum(sizes[:-1]))):
        return
    raise VerifyError(f"{title}: operandSegmentSizes {list(sizes)} do not count its {operands} operands.")


def _is_integer(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: object) -> bool:
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


def _check_value(attribute: Attribute, value: object, title: str) -> object:
    known: Any = tuple(cast("list[object]", value)) if isinstance(value, list) else value
    if not _IS_KIND[attribute.kind](known):
        raise VerifyError(f"{title}: attribute {attribute.name!r} is of kind {attribute.kind}, got {value!r}.")
    if attribute.must_be_empty and not attribute.is_blank(known):
        raise VerifyError(
            f"{title}: attribute {attribute.name!r} must be empty, got {value!r:.100}; write what it does as "
            "operations of their own."
        )
    return float(known) if attribute.kind == "float" else known


def _perform(call: Call) -> list[jax.Array]:
    """Computes the results; turns an error of JAX into one about the operation."""
    meaning = call.definition.meaning
    assert meaning is not None, call.title
    try:
        made: Any = meaning(call)
    except JaxmeshError:
        raise
    except (TypeError, ValueError, OverflowError, IndexError) as error:
        types = ", ".join(describe(x) for x in call.operands)
        raise VerifyError(f"{call.title} of ({types}) is impossible: {str(error).strip()}") from error
    return list(cast("Sequence[jax.Array]", made)) if isinstance(made, (list, tuple)) else [made]


def _check_declared(op: OpDef, out: jax.Array, want: jax.ShapeDtypeStruct) -> jax.Array:
    # Without JAX's x64 mode a declared i64 becomes i32.
    dtype = jax.dtypes.canonicalize_dtype(want.dtype)
    if out.shape != want.shape or (out.dtype != dtype and not op.casts):
        raise VerifyError(f"{op.full_name}: the result is {describe(out)}, but the declared type is {describe(want)}.")
    return out if out.dtype == dtype else out.astype(dtype)
