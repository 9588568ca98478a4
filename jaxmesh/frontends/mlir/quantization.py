"""Quantized tensors of a text: values are the whole numbers that are stored, and six ops convert them.

Upstream's types say scale and zero point (`!quant.uniform<i8:f32, 1.0e-01:3>`), TTNN's ops take them as operands. The
values are int32 here, as upstream's backend stores them, and an op is read as the arithmetic that it stands for. Rules
and messages follow the verifiers in tt-mlir's `lib/Dialect/TTIR/IR/TTIROps.cpp`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import jax
from jaxlib.mlir import ir

from jaxmesh.dialects.attributes import Attributes
from jaxmesh.dialects.definitions import DEFINITIONS, has_trait
from jaxmesh.dialects.op import Trait
from jaxmesh.dialects.ttir.helpers import vary_together
from jaxmesh.errors import UnsupportedError, VerifyError
from jaxmesh.jaxprs.untyped import jnp

STORAGE = "int32"
"""The element type of the values."""
ELEMENTS = "jaxmesh.elements"
"""The attribute of a decoded op that has the element types of its tensor and its result."""

_TYPE = re.compile(r"!quant\.uniform<(?:[^<>]|<[^<>]*>)*>")
_PARTS = re.compile(r"!quant\.uniform<([ui])(\d+)(?:<(-?\d+):(-?\d+)>)?:(\w+)(?::(\d+))?,(?:\{(.*)\}|(.*))>$")
_UNIFORM = "UniformQuantizedType or UniformQuantizedPerAxisType"


@dataclass(frozen=True, slots=True)
class Quantized:
    """An element type: the number `q` stands for `(q - zero) * scale`, with one pair for all or one per index of a dim.

    Attributes:
      axis: the dim; None for one pair.
      scales: by index of the dim.
      zeros: the zero points.
      least: the smallest number that is stored.
      most: the largest.
      stored: the type of what is stored, as MLIR names it.
    """

    axis: int | None
    scales: tuple[float, ...]
    zeros: tuple[int, ...]
    least: int
    most: int
    stored: str


def without_spaces(text: str) -> str:
    """Returns a text with the spaces inside of quantized types left out: to MLIR's parser their spelling is all.

    >>> without_spaces("tensor<2x!quant.uniform<i8:f32:0, {0.5:1, 0.25}>>")
    'tensor<2x!quant.uniform<i8:f32:0,{0.5:1,0.25}>>'
    """
    return _TYPE.sub(lambda found: re.sub(r"[ \t]+", "", found[0]), text) if "!quant.uniform" in text else text


@lru_cache(256)
def quantized(element: str) -> Quantized | None:
    """Returns a quantized element type by its name; None for another type.

    >>> quantized("!quant.uniform<i8:f32,0.5:3>")
    Quantized(axis=None, scales=(0.5,), zeros=(3,), least=-128, most=127, stored='i8')
    """
    if not element.startswith("!quant."):
        return None
    parts = _PARTS.match(re.sub(r"\s+", "", element))
    if parts is None:
        raise UnsupportedError(f"the element type {element[:80]} is read as !quant.uniform<i8:f32, scale:zero> only.")
    sign, width, low, high, _, axis, several, one = parts.groups()
    bits = int(width)
    if not 0 < bits <= 32 or (sign == "u" and bits == 32):
        raise UnsupportedError(f"the element type {element[:80]} stores {sign}{width}; {STORAGE} has to hold it.")
    bounds = (0, 2**bits - 1) if sign == "u" else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
    pairs = [pair.partition(":") for pair in (several or one).split(",")]
    try:
        scales, zeros = tuple(float(s) for s, _, _ in pairs), tuple(int(z or 0) for _, _, z in pairs)
    except ValueError:
        raise UnsupportedError(f"the element type {element[:80]} has scales that are not numbers.") from None
    least, most = (int(low), int(high)) if low is not None else bounds
    return Quantized(None if axis is None else int(axis), scales, zeros, least, most, f"{sign}{width}")


def with_elements(op: str, operation: ir.Operation, attributes: Attributes, *, moves: bool) -> Attributes:
    """Returns the attributes of an op, with its element types if it converts quantized numbers.

    Raises:
      UnsupportedError: it is another, reads or makes quantized numbers, and does not only move them.
    """
    read, made = ([_element(v.type) for v in values] for values in (operation.operands, operation.results))
    if has_trait(op, Trait.BY_ELEMENT_TYPE):
        return {**attributes, ELEMENTS: (*read[:1], *made[:1])}
    for element in () if moves else (*read, *made):
        if quantized(element) is not None:
            raise UnsupportedError(
                f"computes on numbers of type {element[:60]}; put a ttir.dequantize in front of it and a ttir.quantize "
                "behind."
            )
    return attributes


def _element(written: ir.Type) -> str:
    """Returns the name of the element type of a tensor type."""
    return str(written.element_type) if isinstance(written, ir.RankedTensorType) else ""


def perform(
    op: str, operands: Sequence[jax.Array], axis: int | None, elements: tuple[str, str], out: jax.ShapeDtypeStruct
) -> jax.Array:
    """Binds the arithmetic of an op that converts quantized numbers.

    Ops that are not by type have scales and zero points, of the dim `axis`, as further operands. `elements` are the
    element types of the tensor and of the result, `out` is the declared type.

    Raises:
      VerifyError: an element type, a rank, a shape, an axis or a zero point that upstream's verifier refuses.
    """
    name, given = op.partition(".")[2].removesuffix("_unrolled"), operands[1:]
    types = (quantized(elements[0]), quantized(elements[1]))
    _verify(op, operands, axis, elements, out)
    wanted = (DEFINITIONS[op].operands[1] or 1) - 1
    if len(given) != wanted:
        raise VerifyError(f"takes {1 + wanted} operands, got {len(operands)}.")
    x = operands[0]
    pairs: list[tuple[jax.Array, jax.Array | None]] = list(zip(given[::2], given[1::2], strict=True))
    if not pairs:
        pairs = [(_of(k.scales), _of(k.zeros) if any(k.zeros) else None) for k in types if k is not None]
    axes = [k.axis for k in types if k is not None] if wanted == 0 else [axis] * len(pairs)
    # A float32 holds every integer below 2^24, and quantized numbers are smaller.
    value = x.astype(jnp.float32)
    if name != "quantize":
        scale, zero = _along(*pairs[0], axes[0], x.ndim)
        value = _join(jnp.multiply, value if zero is None else _join(jnp.subtract, value, zero), scale)
    if name != "dequantize":
        scale, zero = _along(*pairs[-1], axes[-1], x.ndim)
        value = _join(jnp.divide, value, scale)
        value = jnp.round(value if zero is None else _join(jnp.add, value, zero))
        element_type = types[1]
        if element_type is not None and element_type.stored != "i32":
            value = jnp.clip(value, element_type.least, element_type.most)
    return value.astype(out.dtype)


def _join(fun: Callable[..., jax.Array], *operands: jax.Array) -> jax.Array:
    return fun(*vary_together(*operands))


def _of(numbers: Sequence[float]) -> jax.Array:
    return jnp.asarray(numbers, "float32")


def _along(scale: jax.Array, zero: jax.Array | None, axis: int | None, rank: int) -> tuple[jax.Array, jax.Array | None]:
    """Returns scales and zero points in shapes that broadcast to a tensor of a rank."""
    return _spread(scale, axis, rank), None if zero is None else _spread(zero, axis, rank)


def _spread(numbers: jax.Array, axis: int | None, rank: int) -> jax.Array:
    shape = [1] * rank
    if numbers.size > 1 and axis is not None:
        shape[axis] = numbers.size
    elif numbers.size != 1:
        raise VerifyError(f"{numbers.size} scales or zero points are along a dim, but the op does not name an axis.")
    return jnp.reshape(numbers.astype(jnp.float32), shape)


def _verify(
    op: str, operands: Sequence[jax.Array], axis: int | None, elements: tuple[str, str], out: jax.ShapeDtypeStruct
) -> None:
    x = operands[0]
    name = op.partition(".")[2].removesuffix("_unrolled")
    if op.startswith("ttir."):
        for what, element, floats in zip(
            ("Input", "Output"), elements, (name == "quantize", name == "dequantize"), strict=True
        ):
            if floats and not element.startswith(("f", "bf")):
                raise VerifyError(f"{what} element type must be float, but got '{element}'")
            if not floats and quantized(element) is None:
                raise VerifyError(f"{what} element type must be {_UNIFORM}, but got '{element}'")
    if x.ndim != len(out.shape):
        raise VerifyError(f"Input tensor rank of {x.ndim} does not match the output tensor rank of {len(out.shape)}")
    if tuple(x.shape) != tuple(out.shape):
        shapes = [",".join(map(str, s)) for s in (out.shape, x.shape)]
        raise VerifyError(f"Output tensor shape ({shapes[0]}) must match the inferred shape: ({shapes[1]})")
    if axis is not None and not 0 <= axis < x.ndim:
        raise VerifyError(f"Axis value {axis} is out of the range [0, {x.ndim}) for the input tensor of rank {x.ndim}")
    for element_type in filter(None, map(quantized, elements)):
        _verify_type(element_type, x.shape)


def _verify_type(element_type: Quantized, shape: Sequence[int]) -> None:
    if element_type.axis is not None and element_type.axis >= len(shape):
        raise VerifyError(f"the quantized axis {element_type.axis} is out of the range [0, {len(shape)}) of the shape")
    size = None if element_type.axis is None else shape[element_type.axis]
    if size is not None and len(element_type.scales) != size:
        raise VerifyError(
            f"Number of scales ({len(element_type.scales)}) does not match the size of the quantized axis ({size})"
        )
    for zero in element_type.zeros:
        if not element_type.least <= zero <= element_type.most:
            raise VerifyError(f"Zero point {zero} is out of the range for storage type '{element_type.stored}'")
