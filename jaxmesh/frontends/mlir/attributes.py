"""MLIR's attributes as Python values, each converted once."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxlib.mlir import ir

from jaxmesh.errors import ParseError, UnsupportedError
from jaxmesh.frontends.mlir.preprocess import Rewritten
from jaxmesh.frontends.mlir.types import Types, expand

MAX_ITEMS = 1_000_000
"""Aliases can repeat each other: a few lines of `#b = [#a, #a]` stand for more than any memory holds."""

_ENUM = re.compile(r'#[\w.]+<\s*"?([A-Za-z_]\w*)"?\s*>$')
_SHAPE = re.compile(r"#[\w.]+<\s*(?:[A-Za-z_]\w*\s+)?([0-9]+(?:\s*x\s*[0-9]+)*)\s*>$")
_SCALAR_SHAPE = "#ttnn.shape<>"
_DENSE = re.compile(r"dense<(.*)>\s*:\s*tensor<", re.DOTALL)
_RESOURCE = re.compile(r'dense_resource<("?)(.*?)\1>\s*:', re.DOTALL)
_NUMBER = re.compile(r"[^\s,\[\]()]+")
_BUFFERED = frozenset({"float64", "float32", "float16", "bool", "int8", "int16", "int32", "int64",
                       "uint8", "uint16", "uint32", "uint64"})  # fmt: skip
_ARRAYS: Any = tuple(getattr(ir, f"Dense{k}ArrayAttr") for k in ("Bool", "I8", "I16", "I32", "I64", "F32", "F64"))

Array = np.ndarray[Any, Any]
_SPLAT = "value"
"""The attribute of a constant, whose elements may be more than memory holds when they are equal."""


@dataclass(slots=True)
class Values:
    """Converts attributes; MLIR keeps each attribute once, so its identity is the key."""

    types: Types
    source: Rewritten
    known: dict[Any, tuple[Any, int]] = field(default_factory=dict[Any, tuple[Any, int]])

    def __call__(self, written: Any) -> Any:
        """Returns the Python value of an attribute.

        An enum such as `#ttcore.reduce_type<sum>` gives its last word, a shape such as `#ttnn.shape<2x1>` a tuple of
        integers. Lists and arrays give tuples, elements a NumPy array (of rank 0 when all are equal). Other attributes
        stay text.
        """
        return self._value_and_size(written)[0]

    def dictionary(self, written: Any) -> dict[str, Any]:
        """Returns the entries of a dictionary attribute, or of an op's attributes."""
        return {name: self._table(name, entry, self(entry)) for name, entry in entries(written)}

    def _table(self, name: str, written: Any, value: Any) -> Any:
        """Returns a table, such as device ids, in its shape although all its entries are equal."""
        table: Any = value
        if name == _SPLAT or not isinstance(value, np.ndarray) or table.ndim:
            return table
        shape = self.types(written.type).shape
        return table if math.prod(shape) > MAX_ITEMS else np.broadcast_to(table, shape)

    def _value_and_size(self, written: Any) -> tuple[Any, int]:
        found = self.known.get(written)
        if found is None:
            found = self.known[written] = self._convert(written)
            if found[1] > MAX_ITEMS:
                raise ParseError(f"an attribute stands for more than {MAX_ITEMS} items; no TTIR program has one.")
        return found

    def _convert(self, written: Any) -> tuple[Any, int]:
        if isinstance(written, ir.ArrayAttr):
            items = [self._value_and_size(x) for x in _items(written)]
            return tuple(v for v, _ in items), 1 + sum(n for _, n in items)
        if isinstance(written, ir.DictAttr):
            pairs = [(k, x, self._value_and_size(x)) for k, x in entries(written)]
            return {k: self._table(k, x, v) for k, x, (v, _) in pairs}, 1 + sum(n for _, _, (_, n) in pairs)
        if isinstance(written, _ARRAYS):
            return tuple(np.array(written).tolist()), 1
        return self._scalar(written), 1

    def _scalar(self, written: Any) -> Any:
        match written:
            case ir.BoolAttr() | ir.FloatAttr() | ir.StringAttr():
                return written.value
            case ir.IntegerAttr():
                return _integer(written)
            case ir.UnitAttr():
                return True
            case ir.DenseElementsAttr():
                return self._elements(written)
            case _:
                text = str(written)
        if text.startswith("dense_resource<"):
            return self._resource(written, text)
        return _parse_attribute(text if text.startswith("#ttcore") else expand(text, self.source.attributes))

    def _elements(self, written: Any) -> Array:
        tensor_type = self.types(written.type)
        if written.is_splat:
            return np.array(written.get_splat_value().value, tensor_type.dtype)
        if tensor_type.dtype.name in _BUFFERED:
            return np.array(written).astype(tensor_type.dtype, copy=False)
        return _list_of(str(written), tensor_type.dtype, tensor_type.shape)

    def _resource(self, written: Any, text: str) -> Array:
        named = _RESOURCE.match(text)
        key = named.group(2) if named else ""
        if key not in self.source.resources:
            raise ParseError(f"dense_resource<{key}> has no data; the file has no such blob in its dialect_resources.")
        tensor_type = self.types(written.type)
        # The first four bytes say the alignment.
        return _from_hex(self.source.resources[key][8:], tensor_type, f"dense_resource<{key}>")


def entries(written: Any) -> Iterator[tuple[str, Any]]:
    """Names and attributes of a dictionary attribute, or of an op's attributes."""
    for key in written:
        name = key if isinstance(key, str) else key.name
        # By name: reading `key.attr` of such an attribute would end the process.
        try:
            entry = written[name]
        except (TypeError, KeyError):
            raise UnsupportedError(
                f"attribute {name[:60]!r} is of a kind that is not read (complex, or 16-bit array), or its name has a "
                "null byte."
            ) from None
        yield name, entry


def nested(op: Any, name: str) -> dict[str, Any]:
    """Returns the entries of a dictionary attribute of an op; empty without the attribute."""
    return dict(entries(op.attributes[name])) if name in op.attributes else {}


def _items(written: Any) -> list[Any]:
    try:
        return list(written)
    except TypeError:
        raise UnsupportedError(
            "a list holds attributes of a kind that is not read (complex, or 16-bit array)."
        ) from None


def _integer(written: Any) -> int | bool:
    value: int = written.value
    one_bit = isinstance(written.type, ir.IntegerType) and ir.IntegerType(written.type).width == 1
    return bool(value) if one_bit else value


def _parse_attribute(text: str) -> Any:
    """Returns `sum` for `#ttcore.reduce_type<sum>`, `(2, 1)` for `#ttnn.shape<2x1>`, and other attributes unchanged."""
    enum = _ENUM.match(text)
    if enum is not None:
        return enum.group(1)
    if text == _SCALAR_SHAPE:
        return ()
    shape = _SHAPE.match(text)
    return text if shape is None else tuple(int(n) for n in shape.group(1).split("x"))


def _list_of(text: str, dtype: Any, shape: tuple[int, ...]) -> Array:
    """Returns elements of a type without a Python buffer: MLIR prints a list, or hex digits of many elements."""
    body = _DENSE.match(text)
    assert body is not None, text[:80]
    if body.group(1).startswith('"0x'):
        return _from_hex(body.group(1)[3:-1], jax.ShapeDtypeStruct(shape, dtype), "dense elements")
    tokens = _NUMBER.findall(body.group(1))
    if any(t.startswith("0x") for t in tokens):
        bits = np.dtype(f"uint{8 * dtype.itemsize}")
        numbers = [
            np.array(int(t, 16), bits).view(dtype) if t[:2] == "0x" else np.array(float(t), dtype) for t in tokens
        ]
        return np.stack(numbers).reshape(shape)
    read: Any = float if jnp.issubdtype(dtype, jnp.floating) else int
    return np.array([read(t) for t in tokens], dtype).reshape(shape)


def complex_elements(operation: Any, tensor_type: jax.ShapeDtypeStruct) -> Array:
    """Returns the elements of a constant of complex numbers, which the bindings do not read.

    MLIR prints them as pairs of real numbers, one pair where all are equal, or as hex digits.
    """
    found = re.search(r"dense<.*>\s*:\s*tensor<", operation.get_asm(), re.DOTALL)
    assert found is not None
    text, real = found[0], np.dtype(f"float{4 * tensor_type.dtype.itemsize}")
    one = text.startswith("dense<(")
    shape = (1,) * len(tensor_type.shape) if one else tensor_type.shape
    elements = _list_of(text, real, (*shape, 2)).view(tensor_type.dtype).reshape(shape)
    return np.broadcast_to(elements, tensor_type.shape)


def _from_hex(digits: str, declared: jax.ShapeDtypeStruct, what: str) -> Array:
    size = math.prod(declared.shape) * declared.dtype.itemsize
    if len(digits) % 2:
        raise ParseError(f"{what} holds {len(digits)} hex digits; a byte has two.")
    if len(digits) != 2 * size:
        raise ParseError(
            f"{what} holds {len(digits) // 2} bytes, but its type {declared.dtype}{list(declared.shape)} has {size}."
        )
    return np.frombuffer(bytes.fromhex(digits), declared.dtype).reshape(declared.shape)
