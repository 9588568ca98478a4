"""Primitives on the bits of integers that TTIR lacks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from jaxmesh.dialects.program import Value
from jaxmesh.jaxprs.compat import Eqn
from jaxmesh.passes.flatten.builder import Builder, Rule, missing
from jaxmesh.passes.flatten.decompositions import Function, Params, decomposed
from jaxmesh.passes.flatten.index_arithmetic import width
from jaxmesh.passes.rules import Rules

RULES: Rules[Rule] = Rules()

_jnp: Any = jax.numpy
_lax: Any = jax.lax


@decomposed(RULES, "shift_right_arithmetic")
def _shift_right_arithmetic(params: Params, x: Any, by: Any) -> Any:
    """Returns shifted numbers; a negative number is shifted as its complement, so that ones enter."""
    dtype = x.dtype
    # The type of the bits counts, not the type of the numbers.
    x, by = (v.astype(f"i{dtype.itemsize}") for v in _jnp.broadcast_arrays(x, by))
    negative = x < 0
    moved = _lax.shift_right_logical(_jnp.where(negative, ~x, x), by)
    return _jnp.where(negative, ~moved, moved).astype(dtype)


def _on_words(*names: str) -> Callable[[Function], Function]:
    """Adds a function of integers of up to 32 bits as the rule of each name."""

    def enter(function: Function) -> Function:
        @RULES.add(*names)
        def rule(b: Builder, eqn: Eqn, xs: Sequence[Value]) -> Sequence[Value]:
            dtype = b.dtype(xs[0])
            if dtype.itemsize > np.dtype(np.uint32).itemsize:
                raise missing(eqn, f"TTIR's ops on bits are composed for words of up to 32 bits, not for {dtype}")
            return b.composed(function, xs, eqn.params)

        return function

    return enter


# --- counting bits ---------------------------------------------------------------------------------------------------


def _as_word(x: Any, bits: int = 0) -> Any:
    """Returns the bits, or the bits of whole bytes, as an unsigned word with leading zeros."""
    return x.astype(f"uint{bits or 8 * x.dtype.itemsize}").astype(_jnp.uint32)


def _ones(x: Any) -> Any:
    """Counts the bits that are set: in pairs, in fours, in eights, which a product adds up."""
    x = x - (x >> 1 & 0x55555555)
    x = (x & 0x33333333) + (x >> 2 & 0x33333333)
    return (x + (x >> 4) & 0x0F0F0F0F) * 0x01010101 >> 24


@_on_words("population_count")
def _population_count(params: Params, x: Any) -> Any:
    # XLA counts the bits of the byte that holds a number of 4 bits.
    return _ones(_as_word(x)).astype(x.dtype)


@_on_words("clz")
def _clz(params: Params, x: Any) -> Any:
    bits = width(x.dtype)
    word = _as_word(x, bits)
    for by in (1, 2, 4, 8, 16):
        if by < bits:
            # Every bit below the highest one is set, too.
            word = word | word >> by
    return (bits - _ones(word)).astype(x.dtype)


# --- wide products ---------------------------------------------------------------------------------------------------


@_on_words("mulhi")
def _mulhi(params: Params, x: Any, y: Any) -> Any:
    dtype = x.dtype
    if dtype.itemsize < 4:
        wide = x.astype(f"{dtype.kind}4") * y.astype(f"{dtype.kind}4")
        return (wide.astype(_jnp.uint32) >> 8 * dtype.itemsize).astype(dtype)
    high = _upper(_as_word(x), _as_word(y)).astype(dtype)
    if dtype.kind == "u":
        return high
    # A negative number is its bits less 2^32.
    return high - _jnp.where(x < 0, y, 0) - _jnp.where(y < 0, x, 0)


def _upper(x: Any, y: Any) -> Any:
    """Returns the upper word of a product of words, by halves of 16 bits."""
    x_low, x_high, y_low, y_high = x & 0xFFFF, x >> 16, y & 0xFFFF, y >> 16
    first = x_high * y_low + (x_low * y_low >> 16)
    second = x_low * y_high + (first & 0xFFFF)
    return x_high * y_high + (first >> 16) + (second >> 16)
