"""JAX functions, one or two operations each, that every element type is tried on."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import PartitionSpec as P

import jaxmesh as jm

DTYPES = ("float32", "bfloat16", "float16", "int32", "uint32", "bool")
Function = Callable[..., Any]
_nn: Any = jax.nn
_jnp: Any = jnp

_FLOATS = (
    "sin", "cos", "tan", "arcsin", "arccos", "arctan", "sinh", "cosh", "tanh", "arcsinh", "arccosh", "arctanh", "exp",
    "exp2", "expm1", "log", "log1p", "log2", "log10", "sqrt", "cbrt", "reciprocal", "floor", "ceil", "trunc", "round",
)  # fmt: skip
_ANY = (
    "abs", "sign", "negative", "positive", "square", "isfinite", "isnan", "isinf", "logical_not", "invert", "signbit",
)  # fmt: skip
BINARY = (
    "add", "subtract", "multiply", "divide", "floor_divide", "remainder", "power", "maximum", "minimum", "equal",
    "not_equal", "less", "less_equal", "greater", "greater_equal", "logical_and", "logical_or", "logical_xor",
    "bitwise_and", "bitwise_or", "bitwise_xor", "left_shift", "right_shift", "arctan2", "hypot", "copysign",
)  # fmt: skip
_REDUCTIONS = ("sum", "mean", "max", "min", "prod", "all", "any", "argmax", "argmin", "cumsum", "cumprod", "var")
_ACTIVATIONS = (
    "relu", "gelu", "silu", "sigmoid", "softplus", "elu", "softmax", "log_softmax", "leaky_relu", "hard_swish",
)  # fmt: skip


def _indexing() -> dict[str, Function]:
    rows = jnp.array([2, 0, 1])
    return {
        "take": lambda x: jnp.take(x, rows, axis=0),
        "take of columns": lambda x: jnp.take(x, rows, axis=1),
        "take_along_axis": lambda x: jnp.take_along_axis(x, jnp.zeros((4, 2), jnp.int32), axis=1),
        "fancy index": lambda x: x[rows, rows],
        "row": lambda x: x[1],
        "dynamic row": lambda x: lax.dynamic_index_in_dim(x, x.astype(jnp.int32)[0, 0] * 0 + 1, 0),
        "dynamic_slice": lambda x: lax.dynamic_slice(x, (x.astype(jnp.int32)[0, 0] * 0, 1), (2, 3)),
        "dynamic_update_slice": lambda x: lax.dynamic_update_slice(x, x[:2, :3], (1, 2)),
        "at.set": lambda x: x.at[1].set(x[0]),
        "at.add": lambda x: x.at[rows].add(x[rows]),
        "flip": lambda x: jnp.flip(x, 0),
        "flip of columns": lambda x: x[:, ::-1],
        "strided slice": lambda x: x[::2, 1::3],
        "roll": lambda x: jnp.roll(x, 1, axis=1),
        "one_hot": lambda x: _nn.one_hot(x.astype(jnp.int32)[0], 5),
        "where": lambda x: jnp.where(x > x[0, 0], x, jnp.ones((), x.dtype)),
        "clip": lambda x: jnp.clip(x, x[0, 0], x[1, 1]),
        "tril": jnp.tril,
        "diagonal": jnp.diagonal,
    }


def _shapes() -> dict[str, Function]:
    return {
        "reshape": lambda x: x.reshape(2, 16),
        "transpose": lambda x: x.T,
        "broadcast_to": lambda x: jnp.broadcast_to(x[:, None], (4, 3, 8)),
        "concatenate": lambda x: jnp.concatenate([x, x], 1),
        "stack": lambda x: jnp.stack([x, x]),
        "tile": lambda x: jnp.tile(x, (2, 2)),
        "pad": lambda x: jnp.pad(x, ((1, 2), (0, 1))),
        "pad at the end": lambda x: jnp.pad(x, ((0, 2), (0, 1))),
        "iota": lambda x: x + lax.broadcasted_iota(x.dtype, (4, 8), 1) if x.dtype != bool else x,
        "astype float32": lambda x: x.astype(jnp.float32),
        "astype int32": lambda x: x.astype(jnp.int32),
        "astype bool": lambda x: x.astype(bool),
        "full": lambda x: x + jnp.full((4, 8), 2, x.dtype),
    }


def _others() -> dict[str, Function]:
    return {
        "sort": lambda x: jnp.sort(x, axis=1),
        "argsort": lambda x: jnp.argsort(x, axis=1),
        "top_k": lambda x: lax.top_k(x, 3),
        "matmul": lambda x: x @ x.T,
        "batched matmul": lambda x: jnp.einsum("bij,bkj->bik", x.reshape(2, 2, 8), x.reshape(2, 2, 8)),
        "dot": lambda x: jnp.dot(x[0], x[1]),
        "conv": lambda x: lax.conv_general_dilated(x.reshape(1, 4, 8, 1), x[:2, :2].reshape(1, 1, 2, 2), (1, 1), "SAME",
                                                   dimension_numbers=("NHWC", "OIHW", "NHWC")),
        "max_pool": lambda x: lax.reduce_window(x, _least(x.dtype), lax.max, (2, 2), (2, 2), "VALID"),
        "avg_pool": lambda x: lax.reduce_window(x, jnp.zeros((), x.dtype), lax.add, (2, 2), (2, 2), "VALID"),
        "erf": lambda x: lax.erf(x),
        "rsqrt": lambda x: lax.rsqrt(x),
        "bessel_i0e": lambda x: lax.bessel_i0e(x),
        "bessel_i1e": lambda x: lax.bessel_i1e(x),
        "zeta": lambda x: lax.zeta(x, x + 1),
        "polygamma": lambda x: lax.polygamma(x, x + 1),
        "reduce_precision": lambda x: lax.reduce_precision(x, 5, 2),
        "segment_max": lambda x: jax.ops.segment_max(x, x.astype(jnp.int32)[:, 0] % 3, 3),
        "at.min": lambda x: x.at[:, jnp.array([0, 0, 2])].min(x[:, 3:6]),
        "gradient of fft": lambda x: jax.grad(lambda v: jnp.fft.fft(v).real.sum())(x),
        "psum": lambda x: lax.psum(x, "x"),
        "pmax": lambda x: lax.pmax(x, "x"),
        "all_gather": lambda x: lax.all_gather(x, "x", axis=1, tiled=True),
        "psum_scatter": lambda x: lax.psum_scatter(x, "x", scatter_dimension=1, tiled=True),
        "ppermute": lambda x: lax.ppermute(x, "x", [(0, 1), (1, 2)]),
        "all_to_all": lambda x: lax.all_to_all(x, "x", 1, 0, tiled=True),
        "axis_index": lambda x: x + lax.axis_index("x").astype(x.dtype),
        "scan": lambda x: lax.scan(lambda c, row: (c + row, c * row), x[0], x),
        "layer_norm": lambda x: (x - x.mean(-1, keepdims=True)) * lax.rsqrt(x.var(-1, keepdims=True) + 1e-5),
    }  # fmt: skip


def _least(dtype: Any) -> Any:
    if np.dtype(dtype).kind == "b":
        return np.array(False)
    return np.array(-np.inf, dtype) if jnp.issubdtype(dtype, jnp.floating) else np.array(jnp.iinfo(dtype).min, dtype)


def _named(names: tuple[str, ...], module: Any, call: Callable[[Any, Any], Any]) -> dict[str, Function]:
    return {n: partial(call, getattr(module, n)) for n in names}


FUNCTIONS: dict[str, Function] = {
    **_named(_FLOATS, _jnp, lambda f, x: f(x)),
    **_named(_ANY, _jnp, lambda f, x: f(x)),
    **_named(BINARY, _jnp, lambda f, x: f(x, x + x if x.dtype != bool else ~x)),
    **_named(_REDUCTIONS, _jnp, lambda f, x: f(x, axis=1)),
    **_named(_ACTIVATIONS, _nn, lambda f, x: f(x)),
    **_indexing(),
    **_shapes(),
    **_others(),
}
"""By name; each takes one local tensor [4, 8]."""


AXES, SIZES = ("y", "x"), (2, 4)


def argument(dtype: str) -> Any:
    """Returns a full argument [8, 32] of whole numbers."""
    return jnp.asarray(np.arange(256).reshape(8, 32) % 7, dtype)


def program(name: str) -> Function:
    """Returns a function for `jm.jit` that splits its argument, applies one of the functions, and joins the results."""

    def split(x: Any) -> Any:
        local = FUNCTIONS[name](jm.full_to_shard(x, P("y", "x")))
        return jax.tree.map(lambda v: jm.shard_to_full(v if v.ndim else v.reshape(1), P(AXES)), local)

    return split


def is_known(name: str, dtype: str) -> bool:
    """Returns True if JAX has the function for the element type."""
    if (name, dtype) == ("psum_scatter", "bool"):
        # JAX traces it, and compiles it on no platform.
        return False
    mesh = jax.sharding.AbstractMesh(SIZES, AXES)
    local = jax.shard_map(FUNCTIONS[name], mesh=mesh, in_specs=P(), out_specs=P(), check_vma=False)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            jax.eval_shape(local, jax.ShapeDtypeStruct((4, 8), dtype))
    except (TypeError, ValueError):
        return False
    return True


@functools.cache
def lowered_functions(dtype: str) -> tuple[list[str], jm.Lowered]:
    """Returns the functions that JAX has for an element type, and a program of all, each with a split of its own."""
    names = [name for name in FUNCTIONS if is_known(name, dtype)]
    function = jm.jit(lambda x: [program(name)(x) for name in names], mesh=jm.make_mesh(SIZES, AXES))
    return names, function.lower(argument(dtype))
