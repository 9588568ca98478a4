"""Folds primitives of constants: predicates, trip counts and indices known at compile time. Names the storage types."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import jax
import numpy as np

from jaxmesh.dialects.program import Shape
from jaxmesh.errors import InexpressibleError
from jaxmesh.jaxprs import evaluate
from jaxmesh.jaxprs.compat import Aval, Eqn, is_key, words_of
from jaxmesh.jaxprs.primitives import COMBINES
from jaxmesh.jaxprs.typed import typed
from jaxmesh.jaxprs.untyped import Array, DType, numpy as _np
from jaxmesh.passes.flat_builder import Rules

SMALL = 64
"""The largest number of elements of a known value; of larger ones only small slices are known."""


def storage_type(aval: Aval, line: str = "") -> tuple[Shape, DType]:
    """Returns the shape and element type of a value in a flat program: for a key, the shape and type of its words.

    Raises `InexpressibleError`, which names the source line, for complex numbers and other types that TTIR lacks.
    """
    dtype = aval.dtype
    if isinstance(dtype, np.dtype):
        if dtype.kind == "c":
            raise _no_type(aval, line, "TTIR has real numbers only; compute with the real and imaginary parts")
        return tuple(aval.shape), cast("DType", dtype)
    if not is_key(dtype):
        raise _no_type(aval, line, "TTIR has no such elements")
    data = typed.eval_shape(words_of, jax.ShapeDtypeStruct(aval.shape, dtype))
    return tuple(data.shape), np.dtype(data.dtype)


def _no_type(aval: Aval, line: str, why: str) -> InexpressibleError:
    where = f" ({line})" if line else ""
    return InexpressibleError(f"no text for a value of type {aval.dtype}{list(aval.shape)}{where}: {why}.")


def as_array(constant: Any) -> Any:
    """Returns a constant of a jaxpr as an array; for keys, of their words."""
    words = words_of(constant)
    return evaluate.strip_type(constant) if words is constant else words


def is_whole(dtype: DType) -> bool:
    """Returns True for integers, of 4 bits too, and for truth values."""
    return dtype.kind in "iub" or "int" in dtype.name


def converted(array: Array, dtype: DType) -> Array:
    """Converts numbers to another element type, through a wide type: `ml_dtypes` lacks some conversions."""
    wide = np.int32 if is_whole(array.dtype) else np.float32
    return (array.astype(wide) if array.dtype.kind == "V" else array).astype(dtype)


Fold = Callable[[Eqn, Sequence[Array]], Any]
"""Computes a primitive on NumPy arrays of integers or truth values."""
FOLDS: Rules[Fold] = Rules()
"""By the name of the primitive."""


def _div(a: Array, b: Array) -> Array:
    # Rounds towards zero; division by zero sets all bits, as in XLA.
    whole = np.where(b == 0, a.dtype.type(-1) if a.dtype.kind == "i" else np.iinfo(a.dtype).max, a // np.where(b, b, 1))
    inexact = (b != 0) & (a % np.where(b, b, 1) != 0) & ((a < 0) != (b < 0))
    return (whole + inexact).astype(a.dtype)


def _rem(a: Array, b: Array) -> Array:
    return np.where(b == 0, a, np.fmod(a, np.where(b, b, 1)))


def _shift(op: Any) -> Callable[[Array, Array], Array]:
    def shifted(a: Array, b: Array) -> Array:
        bits = 8 * a.dtype.itemsize
        unsigned = a.view(f"u{a.dtype.itemsize}")
        out = np.where(b.view(f"u{b.dtype.itemsize}") < bits, op(unsigned, (b % bits).astype(unsigned.dtype)), 0)
        return out.astype(unsigned.dtype).view(a.dtype)

    return shifted


def _shift_arithmetic(a: Array, b: Array) -> Array:
    # Unsigned numbers are shifted as signed ones too.
    bits, signed = 8 * a.dtype.itemsize, a.view(f"i{a.dtype.itemsize}")
    by = np.where(b.view(f"u{b.dtype.itemsize}") < bits, b, bits - 1).astype(signed.dtype)
    return np.asarray(np.right_shift(signed, by)).view(a.dtype)


def _clamp(low: Array, x: Array, high: Array) -> Array:
    return np.minimum(np.maximum(x, low), high)


ELEMENTWISE: Mapping[str, Callable[..., Any]] = {
    "add": _np.add, "sub": _np.subtract, "mul": _np.multiply, "div": _div, "rem": _rem, "max": _np.maximum,
    "min": _np.minimum, "neg": _np.negative, "abs": _np.abs, "sign": _np.sign, "square": _np.square,
    "eq": _np.equal, "ne": _np.not_equal, "lt": _np.less, "le": _np.less_equal, "gt": _np.greater,
    "ge": _np.greater_equal,
    "and": _np.bitwise_and, "or": _np.bitwise_or, "xor": _np.bitwise_xor, "not": _np.invert,
    "shift_left": _shift(_np.left_shift), "shift_right_logical": _shift(_np.right_shift),
    "shift_right_arithmetic": _shift_arithmetic,
    "clamp": _clamp,
}  # fmt: skip
"""By the primitive's name."""


DECIDES: Mapping[str, bool] = {"and": False, "or": True}
"""By the primitive's name, the truth value that decides the result, whatever the other operand is."""


def fold(eqn: Eqn, xs: Sequence[Array | None]) -> Array | None:
    """Returns the result, if the operands that are known decide it."""
    name: str = eqn.primitive.name
    known = [x for x in xs if x is not None]
    if len(known) == len(xs):
        with np.errstate(all="ignore"):
            return np.asarray(FOLDS[name](eqn, known))
    decided = any(x.dtype.kind == "b" and (x == DECIDES[name]).all() for x in known if name in DECIDES)
    return np.asarray(DECIDES[name]) if decided else None


def _elementwise(function: Callable[..., object]) -> Fold:
    return lambda eqn, xs: function(*xs)


FOLDS.update({name: _elementwise(function) for name, function in ELEMENTWISE.items()})


@FOLDS.add("convert_element_type", "copy", "stop_gradient")
def _convert(eqn: Eqn, xs: Sequence[Array]) -> Array:
    return converted(xs[0], eqn.outvars[0].aval.dtype)


@FOLDS.add("select_n")
def _select_n(eqn: Eqn, xs: Sequence[Array]) -> Array:
    which, *cases = xs
    return np.choose(np.clip(which.astype(np.int64), 0, len(cases) - 1), cases)


@FOLDS.add("integer_pow")
def _integer_pow(eqn: Eqn, xs: Sequence[Array]) -> Array:
    return np.power(xs[0], np.asarray(abs(eqn.params["y"]), xs[0].dtype))


def _reduction(function: Any) -> Fold:
    return lambda eqn, xs: function.reduce(xs[0], axis=eqn.params["axes"], dtype=xs[0].dtype)


FOLDS.update({f"reduce_{kind}": _reduction(ELEMENTWISE[name]) for name, kind in COMBINES.items()})
