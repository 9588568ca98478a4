"""Attributes in MLIR syntax, in the form declared by the op's definition."""

from __future__ import annotations

import enum
import math
import re
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from jaxmesh.dialects.attributes import reorder_edges
from jaxmesh.dialects.quoting import mlir_string
from jaxmesh.emit.mlir.spelling import Spelling
from jaxmesh.errors import JaxmeshError, VerifyError
from jaxmesh.sharding.configs import MeshComposerConfig, MeshMapperConfig, PlacementShard

_WORD = re.compile(r"[A-Za-z_]\w*", re.ASCII)
_HEAD = re.compile(r'[#@](?:[\w.$]+|"(?:[^"\\]|\\.)*")|(?=\[)')
_BRACKET = re.compile(r'"(?:[^"\\]|\\.)*"|->|[<(\[{]|[>)\]}]')
_LAYOUT = re.compile(r"#ttir<convolution_layout [\w =,\[\]]*>", re.ASCII)
_RANGES = {
    f"{sign}i{bits}": (0, 2**bits - 1) if sign == "u" else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
    for sign in ("", "s", "u")
    for bits in (8, 16, 32, 64)
}

_EXACT = 2**24
"""The largest integer up to which all integers are exact as 32-bit floats."""


def attribute(form: str, value: Any, spelling: Spelling, *, wide: bool = False) -> str:
    """Returns a value in a form of `jaxmesh.dialects.op.Attribute`; `wide` ops write 64-bit floats where 32 bits are
    inexact."""
    value = value.value if isinstance(value, enum.Enum) else value
    try:
        return _format_as(form, value, spelling, wide)
    except JaxmeshError:
        raise
    except (TypeError, ValueError, OverflowError) as error:
        raise VerifyError(f"{value!r:.100} cannot be written as {form} ({error}).") from None


def _format_as(form: str, value: object, spelling: Spelling, wide: bool) -> str:
    if form in _RANGES:
        return _integers_or_one(form, value)
    if form.startswith("#"):
        return f"{form}<{_word(value)}>"
    if form in ("f32", "number"):
        return _number(form, value, spelling, wide)
    if form in ("dense", "dense_i64"):
        return spelling.elements(np.asarray(value, None if form == "dense" else np.int64))
    return _FORMS[form](value)


# --- numbers ---------------------------------------------------------------------------------------------------------


def _integers_or_one(form: str, value: Any) -> str:
    """Returns one integer, or an array for attributes with one integer per dim."""
    if isinstance(value, (tuple, list)):
        return array("i32", value)
    return _integer(form, value)


def _integer(form: str, value: object) -> str:
    return f"{_in_range(form, value)} : {form}"


def _in_range(form: str, value: Any) -> int:
    least, most = _RANGES[form]
    number = int(value)
    if number != value or not least <= number <= most:
        raise VerifyError(f"{value!r} does not fit {form}, whose range is {least} to {most}.")
    return number


def _number(form: str, value: Any, spelling: Spelling, wide: bool) -> str:
    if isinstance(value, (bool, np.bool_)):
        raise VerifyError(f"{value!r} is a truth value; pass a number.")
    if isinstance(value, (int, np.integer)):
        return _whole(form, int(value), spelling)  # pyright: ignore[reportUnknownArgumentType]
    number = float(value)
    with np.errstate(over="ignore", under="ignore"):
        narrow = float(np.float32(number))
    exact = narrow == number or math.isnan(number)
    return spelling.float(number, "f64" if wide and not exact else "f32")


def _whole(form: str, value: int, spelling: Spelling) -> str:
    if form == "f32" and abs(value) <= _EXACT:
        return spelling.float(float(value), "f32")
    fits = (name for name in ("i32", "i64") if _RANGES[name][0] <= value <= _RANGES[name][1])
    return _integer(next(fits, "ui64"), value)


def _integer_list(integer_type: str, values: Any) -> str:
    return "[" + ", ".join(_integer(integer_type, v) for v in values) + "]"


def array(integer_type: str, values: Any) -> str:
    """Returns integers as `array<i64: 2, 4>`."""
    body = ", ".join(str(_in_range(integer_type, v)) for v in values)
    return f"array<{integer_type}: {body}>" if body else f"array<{integer_type}>"


def _bool(value: object) -> str:
    if not isinstance(value, (bool, np.bool_)):
        raise VerifyError(f"{value!r} is not a truth value.")
    return "true" if value else "false"


def _bools(values: Any) -> str:
    body = ", ".join(map(_bool, values))
    return f"array<i1: {body}>" if body else "array<i1>"


# --- keywords --------------------------------------------------------------------------------------------------------


def _word(value: Any) -> str:
    if not isinstance(value, str) or not _WORD.fullmatch(value):
        raise VerifyError(f"{value!r:.100} is not an identifier of a dialect.")
    return value


def by(sizes: Any) -> str:
    """Returns sizes as `2x4`."""
    return "x".join(str(_in_range("i64", n)) for n in sizes)


def _convolution_layout(value: Any) -> str:
    if isinstance(value, Mapping):
        entries = (f"{_word(k)} = {_dims(v)}" for k, v in value.items())  # pyright: ignore[reportUnknownVariableType]
        return f"#ttir<convolution_layout {', '.join(entries)}>"
    if not isinstance(value, str) or not _LAYOUT.fullmatch(value):
        raise VerifyError(f"{value!r:.200} is not a #ttir<convolution_layout ...>.")
    return value


def _text(value: object) -> str:
    """Returns one attribute of a dialect as it was read; a string in its place would be read as code."""
    text, depth = str(value), 0
    head = _HEAD.match(text)
    rest = text[head.end() :] if head else text
    for bracket in _BRACKET.finditer(rest):
        depth += (bracket[0] in "<([{") - (bracket[0] in ">)]}")
        if depth <= 0 and bracket.end() < len(rest):
            depth = -1
            break
    if depth or not head or rest[:1] not in ("", "<", "["):
        raise VerifyError(f"{text!r:.200} is not one attribute of a dialect.")
    return text


def _dims(value: Any) -> str:
    return (by(value) or "[]") if isinstance(value, (tuple, list)) else by((value,))


# --- configs ---------------------------------------------------------------------------------------------------------


def _mapper(config: MeshMapperConfig) -> str:
    words = (f"shard, {p.dim}" if isinstance(p, PlacementShard) else "replicate, -1" for p in config.placements)
    placements = ", ".join(f"<{word} : i32>" for word in words)
    return f"#ttnn.mesh_mapper_config<placements = [{placements}]{_override(config)}>"


def _override(config: MeshMapperConfig | MeshComposerConfig) -> str:
    shape = config.mesh_shape_override
    return "" if shape is None else f", mesh_shape_override = {_integer_list('ui32', shape)}"


_FORMS: Mapping[str, Callable[[Any], str]] = {
    "i32s": lambda value: _integer_list("i32", value),
    "i64s": lambda value: array("i64", value),
    "i32a": lambda value: array("i32", value),
    "edges": lambda value: array("i32", reorder_edges(value)),
    "bool": _bool,
    "bools": _bools,
    "string": lambda value: mlir_string(str(value)),
    "shape": lambda value: f"#ttnn.shape<{by(value)}>",
    "any": lambda value: _integers_or_one("i32", value),
    "text": _text,
    "convolution_layout": _convolution_layout,
    "mapper_config": _mapper,
    "composer_config": lambda config: (
        f"#ttnn.mesh_composer_config<dims = {_integer_list('i32', config.dims)}{_override(config)}>"
    ),
    "mesh_shape": lambda value: f"#ttnn<mesh_shape {by(value)}>",
    "mesh_offset": lambda value: f"#ttnn<mesh_offset {by(value)}>",
}
