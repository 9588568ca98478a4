"""MLIR's tensor types as JAX's: shapes and element types, each converted once."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
from jaxlib.mlir import ir

from jaxmesh.errors import UnsupportedError
from jaxmesh.frontends.mlir.quantization import STORAGE, quantized

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

MAX_RANK = 128
"""JAX takes time quadratic in the rank; no tensor has more than a handful of dims."""

Note = Callable[[str], None]


def dtype_named(name: str, *, wide: bool, narrows: bool = False) -> Any:
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
    config: Any = jax.config
    return bool(config.jax_enable_x64)


@dataclass(slots=True)
class Types:
    """Converts tensor types; MLIR keeps each type once, so its identity is the key.

    With `wide`, 64-bit elements are always taken: the elements of attributes are NumPy's, not JAX's. For `narrows` see
    `dtype_named`.
    """

    note: Note
    wide: bool = False
    narrows: bool = False
    known: dict[Any, jax.ShapeDtypeStruct] = field(default_factory=dict[Any, jax.ShapeDtypeStruct])

    def __call__(self, written: Any) -> jax.ShapeDtypeStruct:
        """Returns the JAX type of a ranked tensor with a static shape; its encoding is left out."""
        found = self.known.get(written)
        if found is None:
            found = self.known[written] = self._convert(written)
        return found

    def _convert(self, written: Any) -> jax.ShapeDtypeStruct:
        if not isinstance(written, ir.RankedTensorType):
            raise UnsupportedError(f"the type {_short(written)} is no ranked tensor; a program takes and gives those.")
        ranked: Any = written
        if not ranked.has_static_shape:
            raise UnsupportedError(f"the type {_short(written)} has dims of unknown size; give every dim its size.")
        shape, element = tuple(ranked.shape), str(ranked.element_type)
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
        return jax.ShapeDtypeStruct(shape, self._block(element) or self._plain(element))

    def _plain(self, name: str) -> Any:
        return dtype_named(name, wide=self.wide, narrows=self.narrows)

    def _block(self, name: str) -> Any:
        """Returns bfloat16 for block floats, which have 7 bits of fraction or less; None for other types."""
        if not _BLOCK.match(name):
            return None
        self.note(
            f"the block-float type {name} is held as bfloat16: same values, but results are not rounded to blocks"
        )
        return jnp.dtype("bfloat16")


def layout_of(written: Any, attributes: Mapping[str, str]) -> str:
    """Returns the layout of TTNN in a type, with the attributes that it names expanded; empty without a layout."""
    encoding = ir.RankedTensorType(written).encoding if isinstance(written, ir.RankedTensorType) else None
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


def _short(written: Any) -> str:
    text = str(written)
    return text if len(text) <= 120 else text[:117] + "..."
