"""What a call gives for an attribute, as the attribute of the op."""

from __future__ import annotations

import enum
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import numpy as np

from jaxmesh.dialects.op import Attribute
from jaxmesh.dialects.ttnn.op import SPELLINGS, Param
from jaxmesh.errors import ArgumentTypeError, ArgumentValueError, VerifyError
from jaxmesh.ttnn.mesh_tensor import MeshTensor
from jaxmesh.ttnn.types import StorageType
from jaxmesh.validate import quote

_SCALAR: Any = np.generic
_TRUTH: Any = (bool, np.bool_)


def convert_argument(callee: str, param: Param, attribute: Attribute, value: Any) -> Any:
    """The value of an argument as the attribute it is for.

    Raises:
      ArgumentTypeError: it is of another type than the attribute's.
    """
    if param.form == "pairs":
        value = _flat(callee, param.name, value)
    if attribute.kind in ("enum", "str"):
        return _word(callee, param, value)
    convert = _CONVERT.get(attribute.kind)
    return value if convert is None else convert(callee, param.name, value)


def integers(callee: str, name: str, value: Any) -> tuple[int, ...]:
    """A row of integers, or a single one as a row.

    Raises:
      ArgumentTypeError: something else.
    """
    try:
        row: list[Any] = [value] if np.ndim(value) == 0 else list(value)
        if any(isinstance(v, _TRUTH) for v in row):
            raise TypeError
        found = tuple(map(operator.index, row))
    except Exception:
        raise ArgumentTypeError(f"{callee} takes integers as {name}, got {quote(value)}.") from None
    for number in found:
        _check_wide(callee, name, number)
    return found


def _check_wide(callee: str, name: str, number: int) -> None:
    """Attributes are integers of 64 bits; Python's own have no end."""
    if not -(2**63) <= number < 2**63:
        raise ArgumentValueError(f"{callee} takes integers from {-(2**63)} to {2**63 - 1} as {name}, got {number}.")


def _flat(callee: str, name: str, value: Any) -> tuple[int, ...]:
    """Pairs of a low and a high number, one after the other."""
    if not isinstance(value, (list, tuple)):
        raise ArgumentTypeError(f"{callee} takes a list of pairs of integers as {name}, got {quote(value)}.")
    rows: list[tuple[int, ...]] = [integers(callee, name, v) for v in cast("Sequence[Any]", value)]
    if any(len(r) != 2 for r in rows):
        raise ArgumentTypeError(f"{callee} takes a list of pairs of integers as {name}, got {quote(value)}.")
    return tuple(n for row in rows for n in row)


def _integer(callee: str, name: str, value: Any) -> int:
    try:
        if isinstance(value, _TRUTH):
            raise TypeError
        number = operator.index(value)
    except Exception:
        raise ArgumentTypeError(f"{callee} takes an integer as {name}, got {quote(value)}.") from None
    _check_wide(callee, name, number)
    return number


def _number(callee: str, name: str, value: Any) -> float:
    number = value.item() if isinstance(value, _SCALAR) else value
    if isinstance(number, bool) or not isinstance(number, (int, float)):
        raise ArgumentTypeError(f"{callee} takes a number as {name}, got {quote(value)}.")
    return number


def _float(callee: str, name: str, value: Any) -> float:
    return float(_number(callee, name, value))


def _truth(callee: str, name: str, value: Any) -> bool:
    if not isinstance(value, _TRUTH):
        raise ArgumentTypeError(f"{callee} takes True or False as {name}, got {quote(value)}.")
    return bool(value)


def _truths(callee: str, name: str, value: Any) -> tuple[bool, ...]:
    if not isinstance(value, (list, tuple)):
        raise ArgumentTypeError(f"{callee} takes a list of truth values as {name}, got {quote(value)}.")
    return tuple(_truth(callee, name, v) for v in cast("Sequence[Any]", value))


def _word(callee: str, param: Param, value: Any) -> str:
    """A word of the dialect, from the word or the enum member of the API."""
    if isinstance(value, enum.Enum):
        word = value.name
    elif isinstance(value, str):
        word = value
    else:
        raise ArgumentTypeError(
            f"{callee} takes a word, or a member of an enum of ttnn, as {param.name}, got {quote(value)}."
        )
    kind = param.form.partition(":")[2].rsplit(".", 1)[-1]
    words = {there: here for here, there in SPELLINGS.get(kind, {}).items()}
    return words.get(word, word)


def write_result(callee: str, into: Any, result: Any) -> MeshTensor:
    """A tensor that holds a result from now on, as an op is asked for with `output_tensor`.

    Raises:
      ArgumentTypeError: no tensor on the devices.
      VerifyError: of another shape, element type or mesh than the result.
    """
    if type(into) is not MeshTensor or not isinstance(result, MeshTensor) or into.storage.type is StorageType.HOST:
        raise ArgumentTypeError(f"{callee} writes its result to a tensor on the devices, got {quote(into)}.")
    if (into.shape, into.dtype, into.mesh) != (result.shape, result.dtype, result.mesh):
        raise VerifyError(f"{callee} gives {result!r}, which is not what the output tensor can hold, {into!r}.")
    into.overwrite(result)
    return into


_CONVERT: Mapping[str, Callable[[str, str, Any], Any]] = {
    "int": _integer,
    "float": _float,
    "number": _number,
    "bool": _truth,
    "ints": integers,
    "bools": _truths,
}
