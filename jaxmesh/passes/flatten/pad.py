"""Padding: outside, between elements, and negative."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from jaxmesh.dialects.program import Value
from jaxmesh.jaxprs.compat import Eqn
from jaxmesh.passes.flatten.builder import Builder, Rule
from jaxmesh.passes.rules import Rules

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
