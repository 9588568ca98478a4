"""Converts the arguments of a call to attributes of the op."""

from __future__ import annotations

import enum
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import numpy as np

from jaxmesh.dialects.op import Attribute
from jaxmesh.dialects.ttnn.op import SPELLINGS, Param
from jaxmesh.errors import ArgumentTypeError, ArgumentValueError, VerifyError
from jaxmesh.tensor.mesh_tensor import MeshTensor
from jaxmesh.tensor.types import StorageType
from jaxmesh.ttnn.finish import in_format_of
from jaxmesh.ttnn.rules.outputs import UNREAD
from jaxmesh.validate import quote

_SCALAR: Any = np.generic
_BOOL: Any = (bool, np.bool_)


def convert_argument(callee: str, param: Param, attribute: Attribute, value: Any) -> Any:
    """Returns the value of an argument as the attribute it stands for."""
    if param.form == "pairs":
        value = _flatten_pairs(callee, param.name, value)
    if attribute.kind in ("enum", "str"):
        return _spelling(callee, param, value)
    convert = _CONVERT.get(attribute.kind)
    return value if convert is None else convert(callee, param.name, value)


def integers(callee: str, name: str, value: Any) -> tuple[int, ...]:
    """Returns integers, or a single integer, as a tuple."""
    try:
        row: list[Any] = [value] if np.ndim(value) == 0 else list(value)
        numbers = tuple(map(operator.index, row))
    except Exception:
        raise ArgumentTypeError(f"{callee} takes integers as {name}, got {quote(value)}.") from None
    for number in numbers:
        _check_int64(callee, name, number)
    return numbers


def _check_int64(callee: str, name: str, number: int) -> None:
    """Checks that an integer has at most 64 bits, as attributes have."""
    if not -(2**63) <= number < 2**63:
        raise ArgumentValueError(f"{callee} takes integers from {-(2**63)} to {2**63 - 1} as {name}, got {number}.")


def _flatten_pairs(callee: str, name: str, value: Any) -> tuple[int, ...]:
    """Returns pairs of a low and a high number as one flat tuple."""
    if not isinstance(value, (list, tuple)):
        raise ArgumentTypeError(f"{callee} takes a list of pairs of integers as {name}, got {quote(value)}.")
    rows: list[tuple[int, ...]] = [integers(callee, name, v) for v in cast("Sequence[Any]", value)]
    if any(len(r) != 2 for r in rows):
        raise ArgumentTypeError(f"{callee} takes a list of pairs of integers as {name}, got {quote(value)}.")
    return tuple(n for row in rows for n in row)


def _integer(callee: str, name: str, value: Any) -> int:
    try:
        number = operator.index(value)
    except Exception:
        raise ArgumentTypeError(f"{callee} takes an integer as {name}, got {quote(value)}.") from None
    _check_int64(callee, name, number)
    return number


def _integer_or_integers(callee: str, name: str, value: Any) -> int | tuple[int, ...]:
    return integers(callee, name, value) if isinstance(value, (list, tuple)) else _integer(callee, name, value)


def _number(callee: str, name: str, value: Any) -> float:
    number = value.item() if isinstance(value, _SCALAR) else value
    if not isinstance(number, (int, float)):
        raise ArgumentTypeError(f"{callee} takes a number as {name}, got {quote(value)}.")
    # True is the number 1, as the real library takes it.
    return int(number) if isinstance(number, bool) else number


def _float(callee: str, name: str, value: Any) -> float:
    return float(_number(callee, name, value))


def _bool(callee: str, name: str, value: Any) -> bool:
    if not isinstance(value, _BOOL):
        raise ArgumentTypeError(f"{callee} takes True or False as {name}, got {quote(value)}.")
    return bool(value)


def _bools(callee: str, name: str, value: Any) -> tuple[bool, ...]:
    if not isinstance(value, (list, tuple)):
        raise ArgumentTypeError(f"{callee} takes a list of truth values as {name}, got {quote(value)}.")
    return tuple(_bool(callee, name, v) for v in cast("Sequence[Any]", value))


def _spelling(callee: str, param: Param, value: Any) -> str:
    """Returns the dialect's spelling of a string or of an enum member of the API."""
    if isinstance(value, enum.Enum):
        name = value.name
    elif isinstance(value, str):
        name = value
    else:
        raise ArgumentTypeError(
            f"{callee} takes a word, or a member of an enum of ttnn, as {param.name}, got {quote(value)}."
        )
    kind = param.form.partition(":")[2].rsplit(".", 1)[-1]
    if kind == "GeluVariant" and name == "FastLut":
        name = "Accurate"
    spellings = {there: here for here, there in SPELLINGS.get(kind, {}).items()}
    return spellings.get(name, name)


def write_result(callee: str, into: Any, result: Any) -> MeshTensor:
    """Writes a result into a tensor, as `output_tensor` asks for, and returns the tensor."""
    if type(into) is not MeshTensor or not isinstance(result, MeshTensor) or into.storage.type is StorageType.HOST:
        raise ArgumentTypeError(f"{callee} writes its result to a tensor on the devices, got {quote(into)}.")
    if callee in UNREAD and (into.get_dtype(), into.layout) != (result.get_dtype(), result.layout):
        return result
    if (into.shape, into.stored_dtype, into.mesh) != (result.shape, result.stored_dtype, result.mesh):
        raise VerifyError(f"{callee} gives {result!r}, which is not what the output tensor can hold, {into!r}.")
    into.overwrite(in_format_of(result, into))
    return into


_CONVERT: Mapping[str, Callable[[str, str, Any], Any]] = {
    "int": _integer,
    "float": _float,
    "number": _number,
    "bool": _bool,
    "ints": integers,
    "bools": _bools,
    "any": _integer_or_integers,
}
