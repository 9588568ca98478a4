"""The layouts of values in the types of TTNN, `#ttnn.ttnn_layout<...>`, as tt-mlir builds them.

A layout says where a tensor is (DRAM of the devices, or the memory of the host), how its dims collapse to rows and
columns, and its tiles or rows.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

import numpy as np

from jaxmesh.dialects.program import Shape, Type
from jaxmesh.dialects.ttnn.forms import as_dtype, stored_as
from jaxmesh.errors import UnsupportedError
from jaxmesh.jaxprs.untyped import DType

_WORDS = {"bool": "i1", "float64": "f64", "float32": "f32", "float16": "f16", "bfloat16": "bf16"}
_SMALL_FLOAT = re.compile(r"float(\d)_(e\d+m\d+)(\w*)$")
_INTEGER = re.compile(r"(u?)int(\d+)$")

TILE = 32
_TILE_NAMES = {"ui32": "u32", "ui16": "u16", "ui8": "u8"}
"""tt-mlir's names of the element types of a tile, where they are not MLIR's."""


def element_type(dtype: DType) -> str:
    """Returns the name of MLIR's element type of a dtype.

    >>> import jax.numpy as jnp
    >>> [element_type(jnp.dtype(t)) for t in ("bool", "int32", "uint8", "bfloat16", "float8_e4m3fn")]
    ['i1', 'i32', 'ui8', 'bf16', 'f8E4M3FN']
    """
    name = dtype.name
    if name in _WORDS:
        return _WORDS[name]
    if integer := _INTEGER.match(name):
        return "{}i{}".format(*integer.groups())
    if small := _SMALL_FLOAT.match(name):
        return "f" + "".join(small.groups()).upper()
    raise UnsupportedError(
        f"a tensor of {name} has no text: TTIR and TTNN hold real numbers, integers and truth values; make those of it "
        "first (complex numbers as real and imaginary parts)."
    )


def stored_type(dtype: DType) -> DType:
    """Returns TTNN's element type for a dtype: a truth value is a bfloat16, 64 bits become 32.

    Upstream takes 16 bits without a sign, which JAX has with one, for unsigned.

    >>> [stored_type(np.dtype(t)).name for t in ("bool", "float64", "int32", "int16")]
    ['bfloat16', 'float32', 'int32', 'uint16']
    """
    if dtype == np.int16:
        return np.dtype(np.uint16)
    name = stored_as(dtype)
    return dtype if name is None else as_dtype(name)


def signed(element: str) -> str:
    """Returns MLIR's name of an element type with the sign that all integers of TTNN have.

    >>> signed("i32"), signed("ui32"), signed("f32")
    ('si32', 'ui32', 'f32')
    """
    return f"s{element}" if element.startswith("i") and element != "i1" else element


def layout_text(kind: Type, element: str) -> str:
    """Returns the layout of a value whose element type is named; its buffer type is an alias.

    >>> print(layout_text(Type((2, 40, 64), np.dtype("float32"), tile=True), "f32"))
    #ttnn.ttnn_layout<(d0, d1, d2) -> (d0 * 64 + d1, d2), <1x1>, \
memref<4x2x!ttcore.tile<32x32, f32>, #dram>, <interleaved>>
    >>> print(layout_text(Type((8,), np.dtype("float32"), host=True), "f32"))
    #ttnn.ttnn_layout<(d0) -> (0, d0), <1x1>, memref<1x8xf32, #system_memory>>
    """
    rows, columns = _collapsed(kind.shape, kind.tile)
    if kind.tile:
        name = _TILE_NAMES.get(element, element)
        element = f"!ttcore.tile<{TILE}x{TILE}, {name}>"
    memory = "" if kind.host else ", <interleaved>"
    held = f"memref<{rows}x{columns}x{element}, {buffer_alias(kind)}>"
    return f"#ttnn.ttnn_layout<{_affine_map(kind.shape, kind.tile)}, <1x1>, {held}{memory}>"


def buffer_alias(kind: Type) -> str:
    """Returns the alias of the memory that a value is in."""
    return "#system_memory" if kind.host else "#dram"


def padded_shape(shape: Shape, tile: bool) -> Shape:
    """Returns the shape that a tensor takes in memory: in tiles, its last two dims are whole tiles.

    >>> padded_shape((2, 1, 40), tile=True)
    (2, 32, 64)
    """
    if not tile:
        return shape
    *outer, rows, last = (1,) * max(0, 2 - len(shape)) + shape
    return (*outer, -(-rows // TILE) * TILE, -(-last // TILE) * TILE)


def is_view(before: Shape, after: Shape, tile: bool) -> bool:
    """Returns True if a reshape moves no element: the rows stay, and the tiles.

    >>> is_view((64, 32), (2, 32, 32), tile=True), is_view((4, 32), (2, 2, 32), tile=True)
    (True, False)
    """
    (rows, last), (rows_after, last_after) = (1, 1, *before)[-2:], (1, 1, *after)[-2:]
    if last != last_after:
        return False
    return not tile or rows == rows_after or (rows % TILE == 0 and rows_after % TILE == 0)


def _collapsed(shape: Shape, tile: bool) -> tuple[int, int]:
    """Returns the rows and columns of a tensor, in tiles or in elements."""
    padded = padded_shape(shape, tile)
    rows, columns = math.prod(padded[:-1]), padded[-1] if padded else 1
    return (-(-rows // TILE), -(-columns // TILE)) if tile else (rows, columns)


def _affine_map(shape: Shape, tile: bool) -> str:
    """Returns the map from the dims of a tensor to its rows and columns."""
    padded = padded_shape(shape, tile)
    dims = ", ".join(f"d{i}" for i in range(len(shape)))
    if not shape:
        return "() -> (0, 0)"
    if not math.prod(shape):
        kept = [f"d{i}" for i in range(len(shape))][-2:]
        return f"({dims}) -> ({', '.join(['0'] * (2 - len(kept)) + kept)})"
    strides = [math.prod(padded[i + 1 : -1]) for i in range(len(shape) - 1)]
    rows = " + ".join(f"d{i}" if n == 1 else f"d{i} * {n}" for i, n in enumerate(strides))
    return f"({dims}) -> ({rows or '0'}, d{len(shape) - 1})"


@dataclass(frozen=True, slots=True)
class Spread:
    """How a layout spreads a tensor over cores.

    Attributes:
      layout: `HEIGHT_SHARDED`, `WIDTH_SHARDED` or `BLOCK_SHARDED`.
      cores: rectangles of cores, each from one to another, as (x, y).
      shape: the rows and columns that one core holds, in elements.
    """

    layout: str
    cores: tuple[tuple[tuple[int, int], tuple[int, int]], ...]
    shape: tuple[int, int]


_SPREAD = re.compile(r"memref<(\d+)x(\d+)x(!?).*<((?:height|width|block)_sharded)>")
_CORES = re.compile(r"core_range<\((\d+), *(\d+)\), *\((\d+), *(\d+)\)>")


def spread(kind: Type) -> Spread | None:
    """Returns how the layout of a value spreads it over cores; None if it is in one piece.

    Raises:
      UnsupportedError: the layout does not say which cores.
    """
    if not kind.layout or kind.layout.endswith("<interleaved>>") or kind.host:
        return None
    found, ranges = _SPREAD.search(kind.layout), [tuple(map(int, r)) for r in _CORES.findall(kind.layout)]
    if found is None or not ranges:
        raise UnsupportedError(
            f"a tensor of the layout {kind.layout[:200]} has no call: it is spread over cores that it does not name. "
            "Name them as core_ranges, or convert it with ttnn.to_memory_config first."
        )
    rows, columns = (int(n) * (TILE if found[3] else 1) for n in found.groups()[:2])
    return Spread(found[4].upper(), tuple(((a, b), (c, d)) for a, b, c, d in ranges), (rows, columns))


def buffer_type(kind: Type) -> str:
    """Returns the memory of the devices that a value is in, `DRAM` or `L1`."""
    return "L1" if "#ttnn.buffer_type<l1>" in kind.layout else "DRAM"


def is_plain(kind: Type) -> bool:
    """Returns True if the layout that a text gives a value agrees with its type: in host memory or in DRAM."""
    alias = buffer_alias(kind)
    plain = layout_text(kind, signed(element_type(stored_type(kind.dtype))))
    return kind.layout in ("", plain.replace(alias, f"#ttnn.buffer_type<{alias[1:]}>"))
