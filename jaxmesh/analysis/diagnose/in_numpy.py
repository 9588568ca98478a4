"""Operations in NumPy whose results are defined to the bit: XLA would compile a program for each of their shapes."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxmesh.frontends.stablehlo.call import enum_of
from jaxmesh.jaxprs import evaluate
from jaxmesh.jaxprs.compat import Eqn

Array = np.ndarray[Any, Any]
Params = Mapping[str, Any]
_ARRAYS: Any = (np.ndarray, np.generic, jax.Array)
_MOST = 1 << 22
"""The most elements of arithmetic; XLA performs more on all cores."""
_BFLOAT16, _FLOAT32 = np.dtype(jnp.bfloat16), np.dtype(np.float32)
_FLOATS = (_BFLOAT16, _FLOAT32, np.dtype(np.float64))


def broadcast(x: Array, shape: Sequence[int], dims: Sequence[int]) -> Array:
    """Returns an array with its dims at some dims of a shape, and repeated along the others.

    >>> broadcast(np.arange(2), (3, 2), (1,)).tolist()
    [[0, 1], [0, 1], [0, 1]]
    """
    sizes = dict(zip(dims, x.shape, strict=True))
    return np.broadcast_to(x.reshape([sizes.get(d, 1) for d in range(len(shape))]), shape)


def cut(x: Array, starts: Sequence[int], limits: Sequence[int], strides: Sequence[int] | None) -> Array:
    """Returns a slice of every dim."""
    return x[tuple(map(slice, starts, limits, strides or [1] * x.ndim))]


def _concatenate(p: Params, *xs: Array) -> Array:
    return np.concatenate(xs, p["dimension"])


def _iota(p: Params) -> Array:
    shape, dim = p["shape"], p["dimension"]
    numbers: Array = np.arange(int(shape[dim]))
    return broadcast(numbers, shape, (dim,)).astype(p["dtype"])


VIEWS: Mapping[str, Callable[[Params, Array], Array]] = {
    "broadcast_in_dim": lambda p, x: broadcast(x, p["shape"], p["broadcast_dimensions"]),
    "reshape": lambda p, x: x.reshape(p["new_sizes"]),
    "rev": lambda p, x: np.flip(x, p["dimensions"]),
    "slice": lambda p, x: cut(x, p["start_indices"], p["limit_indices"], p["strides"]),
    "squeeze": lambda p, x: np.squeeze(x, p["dimensions"]),
    "transpose": lambda p, x: np.transpose(x, p["permutation"]),
}
MOVEMENTS: Mapping[str, Callable[..., Array]] = {**VIEWS, "concatenate": _concatenate, "iota": _iota}
"""By primitive; those of `VIEWS` give views of their operands."""


def _divided(x: Array, y: Array) -> Array:
    if x.dtype.kind == "f":
        return np.divide(x, y)
    # NumPy rounds down, XLA towards zero.
    return x // y + ((x % y != 0) & ((x < 0) != (y < 0))).astype(x.dtype)


def _select(which: Array, no: Array, yes: Array) -> Array:
    return np.where(which, yes, no)


def _same(x: Array) -> Array:
    return x


_ARITHMETIC: Mapping[str, Callable[..., Any]] = {
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "div": _divided, "max": np.maximum, "min": np.minimum,
    "rem": np.fmod, "sqrt": np.sqrt, "neg": np.negative, "abs": np.abs, "floor": np.floor, "ceil": np.ceil,
    "sign": np.sign, "is_finite": np.isfinite, "and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor,
    "not": np.bitwise_not, "eq": operator.eq, "ne": operator.ne, "lt": operator.lt, "le": operator.le,
    "gt": operator.gt, "ge": operator.ge, "select_n": _select,
    "convert_element_type": _same,
}  # fmt: skip
"""By primitive, of elements."""
_OF_BITS = frozenset({"and", "or", "xor", "not", "rem", "sign"})
"""Those that are performed for integers and truth values alone."""


def in_numpy(name: str, operands: Sequence[Any], params: Params, dtype: np.dtype[Any]) -> Array | None:
    """Performs a primitive of JAX with a result of one dtype; None where NumPy is not known to give XLA's bits.

    >>> in_numpy("mul", [np.float32([2, 3])] * 2, {}, np.dtype("float32"))
    array([4., 9.], dtype=float32)
    """
    if not all(isinstance(x, _ARRAYS) and not jax.dtypes.issubdtype(x.dtype, jax.dtypes.extended) for x in operands):
        return None
    if name in MOVEMENTS:
        return MOVEMENTS[name](params, *map(np.asarray, operands))
    if name not in _ARITHMETIC or any(x.size > _MOST for x in operands):
        return None
    xs = [_wide(np.asarray(x)) for x in operands]
    kinds = {x.dtype for x in xs[name == "select_n" :]}
    ordered = len({x.shape for x in xs if x.ndim}) < 2 and len(kinds) == 1 and xs[0].dtype.kind in "biuf"
    if not ordered or (name in _OF_BITS and xs[0].dtype.kind == "f") or not _is_defined(name, xs, dtype):
        return None
    with np.errstate(all="ignore"):
        exact = np.asarray(_ARITHMETIC[name](*xs))
        rounded = exact.astype(dtype, copy=False)
        return rounded if _is_usual(exact) and _is_usual(_wide(rounded)) else None


def bind(eqn: Eqn, operands: Sequence[Any]) -> list[Any]:
    """Evaluates an equation as `evaluate.bind` does, in NumPy where that gives the same bits."""
    aval: Any = eqn.outvars[0].aval if len(eqn.outvars) == 1 else None
    found = None if aval is None else in_numpy(str(eqn.primitive.name), operands, eqn.params, aval.dtype)
    return evaluate.bind(eqn, operands) if found is None else [found]


def _op_params(name: str, op: Any, shape: Sequence[int], dtype: Any) -> Params:
    """Returns the parameters of the primitive that an operation of StableHLO is."""
    match name:
        case "broadcast_in_dim":
            return {"shape": shape, "broadcast_dimensions": list(op.attributes["broadcast_dimensions"])}
        case "reshape":
            return {"new_sizes": shape}
        case "slice":
            return {k: list(op.attributes[k]) for k in ("start_indices", "limit_indices", "strides")}
        case "transpose":
            return {"permutation": list(op.attributes["permutation"])}
        case "reverse":
            return {"dimensions": list(op.attributes["dimensions"])}
        case "iota":
            return {"shape": shape, "dimension": int(op.attributes["iota_dimension"]), "dtype": dtype}
        case "concatenate":
            return {"dimension": int(op.attributes["dimension"])}
        case _:
            return {}


_PRIMITIVES = {
    "subtract": "sub", "multiply": "mul", "divide": "div", "maximum": "max", "minimum": "min", "remainder": "rem",
    "negate": "neg", "select": "select_n", "convert": "convert_element_type", "reverse": "rev",
}  # fmt: skip
"""The primitives of JAX that operations of StableHLO are, where the names differ."""


def primitive_of(op: Any) -> str:
    """Returns the primitive of JAX that an operation of StableHLO is; its own name if that is another."""
    kind = op.name.partition(".")[2]
    return enum_of(op, "comparison_direction").lower() if kind == "compare" else _PRIMITIVES.get(kind) or kind


def perform(op: Any, operands: Sequence[Any], shape: Sequence[int], dtype: np.dtype[Any]) -> Array | None:
    """Performs an operation of StableHLO with a result of a shape and a dtype, as `in_numpy` a primitive."""
    kind, name = op.name.partition(".")[2], primitive_of(op)
    if kind == "select":
        operands = operands[0], operands[2], operands[1]
    if name in MOVEMENTS or name in _ARITHMETIC:
        return in_numpy(name, operands, _op_params(kind, op, shape, dtype), dtype)
    return None


def _wide(x: Array) -> Array:
    return x.astype(_FLOAT32) if x.dtype == _BFLOAT16 else x


def _is_usual(x: Array) -> bool:
    """Returns False for NaN, whose bits are free, and for numbers that XLA takes as zero."""
    if x.dtype.kind != "f" or not x.size:
        return x.dtype.kind in "biuf"
    size = np.abs(x)
    return bool(((size >= np.finfo(x.dtype).tiny) | (size == 0)).all())


def _is_defined(name: str, xs: Sequence[Array], dtype: np.dtype[Any]) -> bool:
    """Returns True if the result is the same in NumPy as in XLA."""
    floats = xs[-1].dtype.kind == "f"
    if floats and (xs[-1].dtype not in _FLOATS or not all(map(_is_usual, xs))):
        return False
    if name == "select_n":
        return len(xs) == 3 and xs[0].dtype.kind == "b"
    if name in ("max", "min") and floats:
        return not bool(((xs[0] == 0) & (xs[1] == 0)).any())
    if name in ("div", "rem") and not floats:
        return xs[1].dtype.kind in "iu" and not bool(((xs[1] == 0) | (xs[1] == -1)).any())
    if name == "convert_element_type" and floats and dtype.kind in "iu":
        return bool((np.abs(xs[0]) < min(np.iinfo(dtype).max, 1 << 24)).all()) and dtype.kind == "i"
    to_truth = name == "convert_element_type" and dtype.kind == "b"
    return (
        not to_truth
        and (dtype.kind in "biu" or dtype in _FLOATS)
        and not (xs[0].dtype.kind == "b" and name in _NUMBERS)
    )


_NUMBERS = frozenset({"add", "sub", "mul", "div", "neg", "abs", "max", "min"})
"""Those that XLA performs for truth values in its own way."""
