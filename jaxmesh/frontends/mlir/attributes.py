"""MLIR's tensor types as JAX's, and its attributes as Python values, each converted once."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxlib.mlir import ir

from jaxmesh.errors import ParseError, UnsupportedError
from jaxmesh.frontends.mlir.preprocess import Rewritten
from jaxmesh.frontends.mlir.quantization import STORAGE, quantized
from jaxmesh.jaxprs.typed import typed
from jaxmesh.jaxprs.untyped import Array, DType

_FLOATS = {
    "f64": "float64", "f32": "float32", "f16": "float16", "bf16": "bfloat16",
    "f8E3M4": "float8_e3m4", "f8E4M3": "float8_e4m3", "f8E4M3FN": "float8_e4m3fn", "f8E4M3FNUZ": "float8_e4m3fnuz",
    "f8E4M3B11FNUZ": "float8_e4m3b11fnuz", "f8E5M2": "float8_e5m2", "f8E5M2FNUZ": "float8_e5m2fnuz",
    "f8E8M0FNU": "float8_e8m0fnu", "f4E2M1FN": "float4_e2m1fn",
    "complex<f32>": "complex64", "complex<f64>": "complex128",
    "i1": "bool", "si1": "bool", "ui1": "bool", "index": "int64",
}  # fmt: skip
_TT = {
    "f32": "float32", "f16": "float16", "bf16": "bfloat16",
    "u32": "uint32", "u16": "uint16", "u8": "uint8", "si32": "int32", "i32": "int32",
}  # fmt: skip
"""tt-mlir's names of the element types of a tile."""

_INTEGER = re.compile(r"(u|s)?i(2|4|8|16|32|64)$")
_TILE = re.compile(r'!(?:ttcore|tt)\.tile<\s*([0-9]+)\s*x\s*([0-9]+)\s*,\s*"?(\w+)"?\s*>$')
_BLOCK = re.compile(r"!(?:ttcore|tt)\.(?:data_?type)?<?\s*(bfp_\w+)>?$|^bfp_\w+$")
_WIDE = frozenset({"float64", "int64", "uint64", "complex128"})
_WIDE_TYPES = re.compile(r"(?:\dx|tensor<)(?:[su]?i64|f64|index|complex<f64>)\b")

MAX_RANK = 128
"""JAX takes time quadratic in the rank; no tensor has more than a handful of dims."""

Note = Callable[[str], None]


def dtype_named(name: str, *, wide: bool, narrows: bool = False) -> DType:
    """Returns the dtype of an element type's name; 64-bit ones where `wide` or where JAX holds them.

    With `narrows`, integers of 64 bits are held in 32, as JAX holds them outside its x64 mode.
    """
    known = _FLOATS.get(name)
    integer = _INTEGER.match(name)
    if integer is not None:
        known = ("uint" if integer.group(1) == "u" else "int") + integer.group(2)
    if known is None:
        raise UnsupportedError(f"the element type {name[:60]} has no JAX type; cast it to one that has before export.")
    if narrows and known in ("int64", "uint64") and not (wide or _x64()):
        known = known.replace("64", "32")
    if known in _WIDE and not (wide or _x64()):
        raise UnsupportedError(
            f"the element type {name} is 64 bits wide, and JAX holds it only in its x64 mode; switch it on with "
            'jax.config.update("jax_enable_x64", True), or cast to 32 bits before export.'
        )
    return jnp.dtype(known)


def _x64() -> bool:
    return bool(typed.config.jax_enable_x64)


def x64_for(*texts: str) -> AbstractContextManager[object]:
    """Returns JAX's x64 mode, which types of 64 bits need; for texts without such types, the current mode."""
    return jax.enable_x64(any(map(_WIDE_TYPES.search, texts)) or _x64())


@dataclass(slots=True)
class Types:
    """Converts tensor types; MLIR keeps each type once, so its identity is the key.

    With `wide`, 64-bit elements are always taken: the elements of attributes are NumPy's, not JAX's. For `narrows` see
    `dtype_named`.
    """

    note: Note
    wide: bool = False
    narrows: bool = False
    known: dict[ir.Type, jax.ShapeDtypeStruct] = field(default_factory=dict[ir.Type, jax.ShapeDtypeStruct])

    def __call__(self, written: ir.Type) -> jax.ShapeDtypeStruct:
        """Returns the JAX type of a ranked tensor with a static shape; its encoding is left out."""
        found = self.known.get(written)
        if found is None:
            found = self.known[written] = self._convert(written)
        return found

    def _convert(self, written: ir.Type) -> jax.ShapeDtypeStruct:
        if not isinstance(written, ir.RankedTensorType):
            raise UnsupportedError(f"the type {_short(written)} is no ranked tensor; a program takes and gives those.")
        if not written.has_static_shape:
            raise UnsupportedError(f"the type {_short(written)} has dims of unknown size; give every dim its size.")
        shape, element = tuple(written.shape), str(written.element_type)
        if len(shape) > MAX_RANK:
            raise UnsupportedError(f"the type {_short(written)} has rank {len(shape)}; at most {MAX_RANK} is read.")
        if tile := _TILE.match(element):
            rows, columns, element = int(tile.group(1)), int(tile.group(2)), tile.group(3)
            if len(shape) < 2:
                raise UnsupportedError(f"the type {_short(written)} holds tiles, which need two dims.")
            shape = (*shape[:-2], shape[-2] * rows, shape[-1] * columns)
            if element in _TT:
                return jax.ShapeDtypeStruct(shape, jnp.dtype(_TT[element]))
        if quantized(element) is not None:
            return jax.ShapeDtypeStruct(shape, jnp.dtype(STORAGE))
        if _BLOCK.match(element):
            # Block floats have 7 bits of fraction or less.
            held = f"the block-float type {element} is held as bfloat16"
            self.note(f"{held}: same values, but results are not rounded to blocks")
            return jax.ShapeDtypeStruct(shape, jnp.dtype("bfloat16"))
        return jax.ShapeDtypeStruct(shape, dtype_named(element, wide=self.wide, narrows=self.narrows))


def layout_of(written: ir.Type, attributes: Mapping[str, str]) -> str:
    """Returns the layout of TTNN in a type, with the attributes that it names expanded; empty without a layout."""
    encoding = written.encoding if isinstance(written, ir.RankedTensorType) else None
    return "" if encoding is None else expand(str(encoding), attributes)


_NAME = re.compile(r"#([A-Za-z_]\w*)(?![\w.<])")
MAX_LENGTH = 100_000
"""Characters of an attribute: names of names stand for more than any memory holds."""


def expand(text: str, attributes: Mapping[str, str]) -> str:
    """Returns an attribute with the values of the names in it, which MLIR does not expand in attributes of a dialect.

    >>> expand("#ttnn.memory_config<#dram, <interleaved>>", {"dram": "#ttnn.buffer_type<dram>"})
    '#ttnn.memory_config<#ttnn.buffer_type<dram>, <interleaved>>'
    """
    while (longer := _NAME.sub(lambda found: attributes.get(found[1], found[0]), text)) != text:
        if len(longer) > MAX_LENGTH:
            raise UnsupportedError(
                f"an attribute stands for more than {MAX_LENGTH} characters; no TTNN program has one."
            )
        text = longer
    return text


def _short(written: ir.Type) -> str:
    text = str(written)
    return text if len(text) <= 120 else text[:117] + "..."


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
_ARRAYS = tuple(getattr(ir, f"Dense{k}ArrayAttr") for k in ("Bool", "I8", "I16", "I32", "I64", "F32", "F64"))

_SPLAT = "value"
"""The attribute of a constant, whose elements may be more than memory holds when they are equal."""


@dataclass(slots=True)
class Values:
    """Converts attributes; MLIR keeps each attribute once, so its identity is the key."""

    types: Types
    source: Rewritten
    known: dict[ir.Attribute, tuple[Any, int]] = field(default_factory=dict[ir.Attribute, tuple[Any, int]])

    def __call__(self, written: ir.Attribute) -> Any:
        """Returns the Python value of an attribute.

        An enum such as `#ttcore.reduce_type<sum>` gives its last word, a shape such as `#ttnn.shape<2x1>` a tuple of
        integers. Lists and arrays give tuples, elements a NumPy array (of rank 0 when all are equal). Other attributes
        stay text.
        """
        return self._value_and_size(written)[0]

    def dictionary(self, written: Dictionary) -> dict[str, Any]:
        """Returns the entries of a dictionary attribute, or of an op's attributes."""
        return {name: self._table(name, entry, self(entry)) for name, entry in entries(written)}

    def _table(self, name: str, written: ir.Attribute, value: jax.Array) -> Any:
        """Returns a table, such as device ids, in its shape although all its entries are equal."""
        if name == _SPLAT or not isinstance(written, ir.DenseElementsAttr) or value.ndim:
            return value
        shape = self.types(written.type).shape
        return value if math.prod(shape) > MAX_ITEMS else np.broadcast_to(value, shape)

    def _value_and_size(self, written: ir.Attribute) -> tuple[Any, int]:
        found = self.known.get(written)
        if found is None:
            found = self.known[written] = self._convert(written)
            if found[1] > MAX_ITEMS:
                raise ParseError(f"an attribute stands for more than {MAX_ITEMS} items; no TTIR program has one.")
        return found

    def _convert(self, written: ir.Attribute) -> tuple[object, int]:
        if isinstance(written, ir.ArrayAttr):
            items = [self._value_and_size(x) for x in _items(written)]
            return tuple(v for v, _ in items), 1 + sum(n for _, n in items)
        if isinstance(written, ir.DictAttr):
            pairs = [(k, x, self._value_and_size(x)) for k, x in entries(written)]
            return {k: self._table(k, x, v) for k, x, (v, _) in pairs}, 1 + sum(n for _, _, (_, n) in pairs)
        if isinstance(written, _ARRAYS):
            return tuple(np.array(written).tolist()), 1
        return self._scalar(written), 1

    def _scalar(self, written: ir.Attribute) -> object:
        match written:
            case ir.BoolAttr() | ir.FloatAttr() | ir.StringAttr():
                return written.value
            case ir.IntegerAttr():
                return _integer(written)
            case ir.UnitAttr():
                return True
            case ir.DenseElementsAttr():
                return self._elements(written)
            case ir.FlatSymbolRefAttr():
                return str(written)
            case _:
                text = str(written)
        if text.startswith("dense_resource<"):
            return self._resource(written, text)
        return _parse_attribute(text if text.startswith("#ttcore") else expand(text, self.source.attributes))

    def _elements(self, written: ir.Attribute) -> Array:
        tensor_type = self.types(written.type)
        if written.is_splat:
            return np.array(written.get_splat_value().value, tensor_type.dtype)
        if tensor_type.dtype.name in _BUFFERED:
            return np.array(written).astype(tensor_type.dtype, copy=False)
        return _list_of(str(written), tensor_type.dtype, tensor_type.shape)

    def _resource(self, written: ir.Attribute, text: str) -> Array:
        named = _RESOURCE.match(text)
        key = named.group(2) if named else ""
        if key not in self.source.resources:
            raise ParseError(f"dense_resource<{key}> has no data; the file has no such blob in its dialect_resources.")
        tensor_type = self.types(written.type)
        # The first four bytes say the alignment.
        return _from_hex(self.source.resources[key][8:], tensor_type, f"dense_resource<{key}>")


Dictionary = ir.Attribute | ir.OpAttributeMap | Mapping[str, ir.Attribute]
"""A dictionary attribute, or the attributes of an op."""


def entries(written: Dictionary) -> Iterator[tuple[str, ir.Attribute]]:
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


def nested(op: ir.Operation, name: str) -> dict[str, ir.Attribute]:
    """Returns the entries of a dictionary attribute of an op; empty without the attribute."""
    return dict(entries(op.attributes[name])) if name in op.attributes else {}


def _items(written: ir.ArrayAttr) -> list[ir.Attribute]:
    try:
        return list(written)
    except TypeError:
        raise UnsupportedError(
            "a list holds attributes of a kind that is not read (complex, or 16-bit array)."
        ) from None


def _integer(written: ir.IntegerAttr) -> int | bool:
    one_bit = isinstance(written.type, ir.IntegerType) and written.type.width == 1
    return bool(written.value) if one_bit else written.value


def _parse_attribute(text: str) -> str | tuple[int, ...]:
    """Returns `sum` for `#ttcore.reduce_type<sum>`, `(2, 1)` for `#ttnn.shape<2x1>`, and other attributes unchanged."""
    enum = _ENUM.match(text)
    if enum is not None:
        return enum.group(1)
    if text == _SCALAR_SHAPE:
        return ()
    shape = _SHAPE.match(text)
    return text if shape is None else tuple(int(n) for n in shape.group(1).split("x"))


def _list_of(text: str, dtype: DType, shape: tuple[int, ...]) -> Array:
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
    read = float if jnp.issubdtype(dtype, jnp.floating) else int
    return np.array([read(t) for t in tokens], dtype).reshape(shape)


def complex_elements(operation: ir.Operation, tensor_type: jax.ShapeDtypeStruct) -> Array:
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
