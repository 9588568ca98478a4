"""Primitives that only move elements, and padding: outside, between elements, and negative."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from jaxmesh.dialects.program import Shape, Value
from jaxmesh.errors import VerifyError
from jaxmesh.jaxprs.compat import Eqn
from jaxmesh.passes.flat_builder import Rules
from jaxmesh.passes.flatten.builder import Builder, Rule

RULES: Rules[Rule] = Rules()


@RULES.add("pad")
def _pad(b: Builder, eqn: Eqn, xs: Sequence[Value]) -> Value:
    x, value = xs
    amounts = [tuple(map(int, amount)) for amount in eqn.params["padding_config"]]
    number = b.fill(value)
    if number is not None:
        return pad_tensor(b, x, number, amounts)
    # TTIR pads by a known number only: truth values, padded in the same way, mark the elements.
    dtype = b.dtype(x)
    zeros = pad_tensor(b, x, 0, amounts)
    if b.shape(zeros) == b.shape(x) and not any(low for low, _, _ in amounts):
        return zeros
    inside = pad_tensor(b, b.full(b.shape(x), 1, np.bool_), 0, amounts)
    return b.op("where", [inside, zeros, value], b.shape(zeros), dtype)


def pad_tensor(b: Builder, x: Value, value: float, amounts: Sequence[Sequence[int]]) -> Value:
    """Pads a tensor by per-dim amounts (before, after, between any two elements); negative ones cut off afterwards."""
    shape = b.shape(x)
    if 0 in shape:
        return b.full(_sizes(shape, amounts), value, b.dtype(x))
    x, edges = _insert_numbers(b, x, value, amounts)
    outside = [(max(low, 0), max(high, 0)) for low, high in edges]
    if any(low or high for low, high in outside):
        size = [n + low + high for n, (low, high) in zip(b.shape(x), outside, strict=True)]
        x = b.op("pad", [x], size, b.dtype(x), padding=tuple(n for edge in outside for n in edge), value=value)
    begins = [max(-low, 0) for low, _ in edges]
    ends = [n - max(-high, 0) for n, (_, high) in zip(b.shape(x), edges, strict=True)]
    return b.slice(x, begins, ends)


def _sizes(shape: Sequence[int], amounts: Sequence[Sequence[int]]) -> list[int]:
    return [n + max(n - 1, 0) * between + low + high for n, (low, high, between) in zip(shape, amounts, strict=True)]


def _insert_numbers(
    b: Builder, x: Value, value: float, amounts: Sequence[Sequence[int]]
) -> tuple[Value, list[tuple[int, int]]]:
    """Inserts numbers between elements and behind the last, and returns the rest of the padding."""
    shape = b.shape(x)
    gaps = [between if n > 1 else 0 for n, (_, _, between) in zip(shape, amounts, strict=True)]
    edges = [(low, high - gap) for gap, (low, high, _) in zip(gaps, amounts, strict=True)]
    if any(gaps):
        apart = [m for n, gap in zip(shape, gaps, strict=True) for m in ((n, 1) if gap else (n,))]
        padding = [m for gap in gaps for m in ((0, 0, 0, gap) if gap else (0, 0))]
        wide = [m for n, gap in zip(shape, gaps, strict=True) for m in ((n, 1 + gap) if gap else (n,))]
        spread = b.op("pad", [b.reshape(x, apart)], wide, b.dtype(x), padding=tuple(padding), value=value)
        x = b.reshape(spread, [n * (1 + gap) for n, gap in zip(shape, gaps, strict=True)])
    return x, edges


@RULES.add("reshape")
def _reshape(b: Builder, eqn: Eqn, xs: Sequence[Value]) -> Value:
    (x,), order = xs, eqn.params.get("dimensions")
    before, after = b.shape(x), b.result(eqn)[0]
    if math.prod(before) != math.prod(after):
        # JAX 0.10 traces it, and fails when it compiles.
        raise VerifyError(
            f"reshape ({b.line}): {list(before)} has {math.prod(before)} elements, but {list(after)} has "
            f"{math.prod(after)}; a reshape keeps their number."
        )
    return b.reshape(x if order is None else b.permute(x, order), b.result(eqn)[0])


@RULES.add("squeeze")
def _squeeze(b: Builder, eqn: Eqn, xs: Sequence[Value]) -> Value:
    return b.reshape(xs[0], b.result(eqn)[0])


@RULES.add("broadcast_in_dim", "broadcast_to")
def _broadcast_in_dim(b: Builder, eqn: Eqn, xs: Sequence[Value]) -> Value:
    x, shape = xs[0], b.result(eqn)[0]
    last = range(len(shape) - len(b.shape(x)), len(shape))
    sizes = dict(zip(eqn.params.get("broadcast_dimensions", last), b.shape(x), strict=True))
    return b.broadcast(b.reshape(x, [sizes.get(d, 1) for d in range(len(shape))]), shape)


@RULES.add("transpose")
def _transpose(b: Builder, eqn: Eqn, xs: Sequence[Value]) -> Value:
    return b.permute(xs[0], eqn.params["permutation"])


@RULES.add("concatenate")
def _concatenate(b: Builder, eqn: Eqn, xs: Sequence[Value]) -> Value:
    return b.concat(xs, eqn.params["dimension"])


@RULES.add("stack")
def _stack(b: Builder, eqn: Eqn, xs: Sequence[Value]) -> Value:
    return stack(b, xs, eqn.params["axis"])


def stack(b: Builder, xs: Sequence[Value], axis: int) -> Value:
    """Joins tensors of one shape along a new dim."""
    shape = b.shape(xs[0])
    return b.concat([b.reshape(x, (*shape[:axis], 1, *shape[axis:])) for x in xs], axis)


@RULES.add("unstack")
def _unstack(b: Builder, eqn: Eqn, xs: Sequence[Value]) -> Sequence[Value]:
    (x,), axis = xs, int(eqn.params["axis"])
    return [element(b, x, i, axis) for i in range(b.shape(x)[axis])]


def element(b: Builder, x: Value, number: int, axis: int = 0) -> Value:
    """Returns one element along a dim, without the dim."""
    shape = b.shape(x)
    piece = b.piece(x, axis, number, number + 1)
    return b.reshape(piece, (*shape[:axis], *shape[axis + 1 :]))


@RULES.add("split")
def _split(b: Builder, eqn: Eqn, xs: Sequence[Value]) -> Sequence[Value]:
    (x,), axis, parts, begin = xs, eqn.params["axis"], list[Value](), 0
    sizes: list[int] = [int(n) for n in eqn.params["sizes"]]
    for size in sizes:
        parts.append(b.piece(x, axis, begin, begin + size))
        begin += size
    return parts


@RULES.add("slice")
def _slice(b: Builder, eqn: Eqn, xs: Sequence[Value]) -> Value:
    return b.slice(xs[0], eqn.params["start_indices"], eqn.params["limit_indices"], eqn.params["strides"])


@RULES.add("tile")
def _tile(b: Builder, eqn: Eqn, xs: Sequence[Value]) -> Value:
    (x,), shape = xs, b.result(eqn)[0]
    if 0 in shape:
        return b.full(shape, 0, b.dtype(x))
    rank = len(b.shape(x))
    x = b.reshape(x, (*[1] * (len(shape) - rank), *b.shape(x)))
    counts = tuple(n // old for n, old in zip(shape, b.shape(x), strict=True))
    if b.shape(x) == shape:
        return x
    return b.op("repeat", [x], shape, b.dtype(x), repeat_dimensions=counts)


@RULES.add("rev")
def _rev(b: Builder, eqn: Eqn, xs: Sequence[Value]) -> Value:
    return reverse(b, xs[0], eqn.params["dimensions"])


def reverse(b: Builder, x: Value, dims: Sequence[int]) -> Value:
    """Returns a tensor with reversed dims of more than one element."""
    dims = tuple(d for d in dims if b.shape(x)[d] > 1)
    if not dims or b.fill(x) is not None:
        return x
    if x in b.known:
        return b.constant(np.flip(b.known[x], dims))
    turned = b.maker(x, "reverse")
    if turned is not None and turned.attributes["dimensions"] == dims and turned.operands[0] is not None:
        return turned.operands[0]
    return b.same("reverse", [x], dimensions=dims)


@RULES.add("iota")
def _iota(b: Builder, eqn: Eqn, xs: Sequence[Value]) -> Value:
    shape, dtype = b.result(eqn)
    return iota(b, shape, dtype, eqn.params["dimension"])


LONGEST = 1 << 20
"""The largest range whose numbers are known at compile time; a text may ask for more than memory holds."""


def iota(b: Builder, shape: Shape, dtype: np.dtype[np.generic], dim: int) -> Value:
    """Returns the numbers from 0 along a dim, repeated along the others."""
    count = shape[dim]
    if math.prod(shape) <= 1:
        return b.full(shape, 0, dtype)
    line = b.op("arange", (), (count,), dtype, start=0, end=count, step=1, arange_dimension=0)
    if count <= LONGEST:
        b.remember(line, np.arange(count).astype(dtype))
    placed = b.reshape(line, [count if d == dim else 1 for d in range(len(shape))])
    return b.broadcast(placed, shape)


@RULES.add("empty", "empty2")
def _empty(b: Builder, eqn: Eqn, xs: Sequence[Value]) -> Value:
    shape, dtype = b.result(eqn)
    return b.full(shape, 0, dtype)
