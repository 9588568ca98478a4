"""Integers as indices: casts that keep what is out of range out of range, positions along dims, masks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from jax.typing import DTypeLike

from jaxmesh.dialects.program import Value
from jaxmesh.errors import UnsupportedError
from jaxmesh.jaxprs.untyped import Array, jnp
from jaxmesh.passes.flatten.builder import Builder

INDEX = np.dtype(np.int32)
MOST = int(np.iinfo(np.int32).max)


def is_float(dtype: DTypeLike) -> bool:
    """Returns True if an element type holds real numbers; NumPy does not know it of the types of `ml_dtypes`."""
    return bool(jnp.issubdtype(dtype, np.floating))


def is_integer(dtype: DTypeLike) -> bool:
    """Returns True if an element type holds integers."""
    return bool(jnp.issubdtype(dtype, np.integer))


def width(dtype: DTypeLike) -> int:
    """Returns the bits of an integer type; NumPy stores 4 and 2 bits in a byte."""
    return int(jnp.iinfo(dtype).bits)


def limits(dtype: DTypeLike) -> tuple[Any, Any]:
    """Returns the smallest and the largest number of an element type, infinities included."""
    if np.dtype(dtype) == np.bool_:
        return False, True
    if is_float(dtype):
        return -np.inf, np.inf
    info = jnp.iinfo(dtype)
    return int(info.min), int(info.max)


def known(b: Builder, x: Value) -> Array | None:
    """Returns the compile-time value of a tensor, also a concatenation of known parts; None if it is not known."""
    joint = b.maker(x, "concat")
    if x in b.known or joint is None:
        return b.known.get(x)
    parts = [b.known.get(v) for v in joint.used]
    present = [p for p in parts if p is not None]
    return np.concatenate(present, joint.attributes["dim"]) if len(present) == len(parts) else None


def reshape(b: Builder, x: Value, shape: Sequence[int]) -> Value:
    """Reshapes `x`; joins it with a reshape before it."""
    before = b.maker(x, "reshape")
    return b.reshape(x if before is None else before.used[0], shape)


def as_index(b: Builder, x: Value) -> Value:
    """Returns integers as int32; numbers that do not fit become its largest or smallest, out of range of any dim."""
    kind = b.dtype(x)
    if kind == INDEX:
        return x
    least, most = limits(kind)
    if most > MOST:
        x = b.with_number("minimum", x, MOST)
    if least < -MOST:
        x = b.with_number("maximum", x, -MOST)
    return b.cast(x, INDEX)


def clamp_indices(b: Builder, x: Value, most: int | Sequence[int]) -> Value:
    """Returns indices clamped to 0 to `most`, which is one number or one for each entry of the last dim."""
    if isinstance(most, int):
        return b.same("clamp_scalar", [x], min=0, max=most)
    top = b.constant(np.asarray(most, INDEX))
    return b.same("minimum", [b.same("maximum", [x, b.full((), 0, INDEX)]), top])


def positions(b: Builder, shape: Sequence[int], dim: int, step: int = 1) -> Value:
    """Returns the numbers from 0 on, in steps, along a dim; the other dims have size 1."""
    count = shape[dim]
    if count * step > MOST:
        raise UnsupportedError(
            f"the places along dim {dim} of {list(shape)} in steps of {step} go up to {count * step}, but they are "
            f"counted in 32 bits, up to {MOST}; index a smaller array."
        )
    made = b.op("arange", [], (count,), INDEX, start=0, end=count * step, step=step, arange_dimension=0)
    return b.reshape(made, [count if d == dim else 1 for d in range(len(shape))])


def compare(b: Builder, name: str, x: Value, y: Value) -> Value:
    """Compares operands that broadcast to each other."""
    return b.binary(name, x, y, np.bool_)


def select(b: Builder, condition: Value, x: Value, y: Value) -> Value:
    """Appends a `where`; all three operands broadcast to each other."""
    shape = np.broadcast_shapes(b.shape(condition), b.shape(x), b.shape(y))
    return b.op("where", [condition, x, y], shape, b.dtype(x))


def broadcast_to(b: Builder, x: Value, shape: Sequence[int], dims: Sequence[int]) -> Value:
    """Broadcasts `x` to a larger shape, with its dims at `dims`."""
    wide = [1] * len(shape)
    for d, at in enumerate(dims):
        wide[at] = b.shape(x)[d]
    return b.broadcast(b.reshape(x, wide), shape)
