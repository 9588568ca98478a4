"""Numbers from their bits.

TTIR lacks a cast that keeps the bits, so a float is put together from sign, exponent and mantissa, all steps exact.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from jaxmesh.dialects.program import Value
from jaxmesh.jaxprs.compat import Eqn
from jaxmesh.passes.flatten.builder import Builder, Rule, missing
from jaxmesh.passes.flatten.decompositions import Params
from jaxmesh.passes.flatten.float_bits import cut, from_bits, to_bits
from jaxmesh.passes.flatten.index_arithmetic import is_float, is_integer, width
from jaxmesh.passes.rules import Rules

RULES: Rules[Rule] = Rules()

_FLOAT: Any = np.dtype(np.float32)
_jnp: Any = jax.numpy
_lax: Any = jax.lax


@RULES.add("bitcast_convert_type")
def _bitcast(b: Builder, eqn: Eqn, xs: Sequence[Value]) -> Value | Sequence[Value]:
    (x,), dtype = xs, b.result(eqn)[1]
    old = b.dtype(x)
    if old == dtype:
        return x
    if is_integer(old) and is_integer(dtype):
        if width(old) == width(dtype):
            return b.cast(x, dtype)
        if max(width(old), width(dtype)) <= 32:
            return b.composed(_split if width(old) > width(dtype) else _join, [x], {"new_dtype": dtype})
    has_words = old.itemsize == dtype.itemsize and 8 * old.itemsize in (16, 32)
    if is_float(old) and is_integer(dtype) and has_words:
        (words,) = b.composed(to_bits, [x], {})
        bits = b.cast(b.cast(words, f"uint{8 * old.itemsize}"), dtype)
        b.floats[bits] = x
        return bits
    if not (is_integer(old) and is_float(dtype) and has_words):
        raise missing(eqn, f"TTIR casts numbers, not bits, and {old} to {dtype} cannot be put together from casts")
    known = _known_float(b, x, dtype)
    return known if known is not None else _float(b, b.cast(x, f"uint{8 * old.itemsize}"), dtype)


def _split(params: Params, x: Any) -> Any:
    """Returns the integers packed in each one, lowest bits first, along a new last dim."""
    new, bits = params["new_dtype"], width(params["new_dtype"])
    words = x.astype(f"uint{width(x.dtype)}").astype(_jnp.uint32)
    parts = [words >> _jnp.uint32(bits * i) if i else words for i in range(width(x.dtype) // bits)]
    return _jnp.stack([(p & ((1 << bits) - 1)).astype(f"uint{bits}").astype(new) for p in parts], -1)


def _join(params: Params, x: Any) -> Any:
    """Returns integers joined from the integers along the last dim, lowest bits first."""
    bits, new = width(x.dtype), params["new_dtype"]
    words = x.astype(f"uint{bits}").astype(_jnp.uint32)
    parts = [words[..., i] << _jnp.uint32(bits * i) if i else words[..., i] for i in range(x.shape[-1])]
    return functools.reduce(_lax.bitwise_or, parts).astype(f"uint{width(new)}").astype(new)


def _known_float(b: Builder, x: Value, kind: np.dtype[np.generic]) -> Value | None:
    """Returns the float with these bits, possibly with its last bits cleared; None if it is not known."""
    whole = b.floats.get(x)
    if whole is not None and b.dtype(whole) == kind:
        return whole
    joint = b.maker(x, "bitwise_and")
    if joint is None or kind != _FLOAT:
        return None
    for operand, mask in (tuple(joint.used), tuple(joint.used)[::-1]):
        part, number = b.floats.get(operand), b.fill(mask)
        if part is None or number is None:
            continue
        cleared = (~int(number) & 0xFFFFFFFF).bit_length()
        if int(number) & 0xFFFFFFFF == 0xFFFFFFFF >> cleared << cleared and 0 < cleared < 23 and b.dtype(part) == kind:
            return b.composed(cut, [part], {"bits": cleared})[0]
    return None


def _float(b: Builder, x: Value, dtype: np.dtype[Any]) -> Value:
    info = _jnp.finfo(dtype)
    mantissa, bias = int(info.nmant), int(info.maxexp) - 1
    fraction = _in_one_to_two(b, x, mantissa, bias)
    if fraction is not None:
        return b.cast(b.with_number("add", fraction, 1), dtype)
    return b.composed(from_bits, [x], {"dtype": dtype})[0]


def _in_one_to_two(b: Builder, x: Value, mantissa: int, bias: int) -> Value | None:
    """Returns the fraction of a float of the exponent of 1 and shifted bits, as random numbers have it; else None."""
    joint = b.maker(x, "bitwise_or")
    if joint is None:
        return None
    first, second = joint.used
    if b.fill(first) is not None:
        first, second = second, first
    shift = b.maker(first, "logical_right_shift")
    if b.fill(second) != bias << mantissa or shift is None:
        return None
    _, by = shift.used
    if b.fill(by) != 8 * b.dtype(x).itemsize - mantissa:
        return None
    return b.with_number("multiply", b.cast(first, _FLOAT), 2.0**-mantissa)
