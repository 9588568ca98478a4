"""Reductions, scans and sorts along dims."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import jax
import numpy as np

from jaxmesh.dialects.op import Call, Shape, Trait, describe
from jaxmesh.dialects.ttir.helpers import TtirOps, as_bool, convert, is_bool, is_integer, jnp, lax, nn, vary_together

OPS = TtirOps()


def _sum(x: jax.Array, dims: Shape, *, keepdims: bool) -> jax.Array:
    return jnp.any(x, dims, keepdims=keepdims) if is_bool(x) else jnp.sum(x, dims, dtype=x.dtype, keepdims=keepdims)


def _prod(x: jax.Array, dims: Shape, *, keepdims: bool) -> jax.Array:
    return jnp.all(x, dims, keepdims=keepdims) if is_bool(x) else jnp.prod(x, dims, dtype=x.dtype, keepdims=keepdims)


_OF_BOOLS = {"reduce_and": jnp.all, "reduce_or": jnp.any}
REDUCTIONS: Mapping[str, Callable[..., jax.Array]] = {
    "sum": _sum, "mean": jnp.mean, "max": jnp.max, "min": jnp.min, "prod": _prod, **_OF_BOOLS,
}  # fmt: skip
"""By TTIR name."""


def _reduction(call: Call) -> jax.Array:
    (x,) = call.operands
    x = as_bool(x) if call.name in _OF_BOOLS else x
    out = REDUCTIONS[call.name](x, _reduced_dims(call, x), keepdims=call["keep_dim"])
    # The mean of integers is a float, whatever the declared type.
    return convert(out, call.result.dtype) if call.name == "mean" and is_integer(x) else out


def _reduced_dims(call: Call, x: jax.Array) -> Shape:
    """Returns the reduced dims: by default all."""
    dims = call["dim_arg"]
    return tuple(range(x.ndim)) if dims is None else call.check_dims(dims, x.ndim, "dim_arg")


for _name in REDUCTIONS:
    _traits = (Trait.IN_FLOAT32,) if _name == "mean" else ()
    OPS.define(_name, casts=_name in _OF_BOOLS, traits=_traits)(_reduction)


_BITS = {"reduce_bitwise_and": (-1, lax.bitwise_and), "reduce_bitwise_or": (0, lax.bitwise_or),
         "reduce_bitwise_xor": (0, lax.bitwise_xor)}  # fmt: skip
"""By TTIR name: the number that changes nothing, and the function of two numbers."""


def _bit_reduction(call: Call) -> jax.Array:
    (x,) = call.operands
    call.require(is_integer(x), f"reduces the bits of integers, but got {describe(x)}")
    (start, combine), dims = _BITS[call.name], _reduced_dims(call, x)
    out = lax.reduce(x, np.array(start).astype(x.dtype), combine, dims)
    return jnp.expand_dims(out, dims) if call["keep_dim"] else out


for _name in _BITS:
    _later = (Trait.NOT_UPSTREAM, Trait.LATER)
    OPS.define(_name, traits=_later)(_bit_reduction)


@OPS.define("argmax", casts=True)
def _argmax(call: Call) -> jax.Array:
    (x,) = call.operands
    dims = sorted(_reduced_dims(call, x))
    kept = [d for d in range(x.ndim) if d not in dims]
    # Several dims are counted as a single joined dim (tt-mlir, `lib/Conversion/TTIRToTTIRDecomposition`).
    joined = x if len(dims) == 1 else jnp.transpose(x, (*kept, *dims)).reshape(*(x.shape[d] for d in kept), -1)
    out = jnp.argmax(joined, dims[0] if len(dims) == 1 else -1)
    return jnp.expand_dims(out, dims) if call["keep_dim"] else out


@OPS.define("cumsum")
def _cumsum(call: Call) -> jax.Array:
    (x,) = call.operands
    return jnp.cumsum(x, call.check_dim(call["dim"], x.ndim, "dim"), dtype=x.dtype)


_CUMULATIVE: Mapping[str, Callable[..., jax.Array]] = {
    "sum": lax.cumsum, "prod": lax.cumprod, "max": lax.cummax, "min": lax.cummin, "logsumexp": lax.cumlogsumexp,
}  # fmt: skip


@OPS.define("cumulative", traits=[Trait.NOT_UPSTREAM, Trait.LATER])
def _cumulative(call: Call) -> jax.Array:
    (x,) = call.operands
    if call["reduction"] not in _CUMULATIVE:
        raise call.rule_error(f"reduction is {' or '.join(_CUMULATIVE)}, got {call['reduction']!r}")
    dim = call.check_dim(call["dim"], x.ndim, "dim")
    return _CUMULATIVE[call["reduction"]](x, axis=dim, reverse=call["reverse"])


@OPS.define("softmax")
def _softmax(call: Call) -> jax.Array:
    (x,) = call.operands
    dim = call.check_dim(call["dimension"], x.ndim, "dimension")
    # numericStable is a choice of kernel; the meaning is the same.
    return nn.softmax(x, axis=dim)


# --- sorts -----------------------------------------------------------------------------------------------------------


def _sort_dim(call: Call, x: jax.Array, dim: int, descending: bool) -> tuple[jax.Array, jax.Array]:
    """Sorts a dim and returns the indices, too; equal elements keep their order."""
    iota = lax.broadcasted_iota(jnp.int32, x.shape, dim)
    # JAX types sorted indices like the unsorted ones: by default as equal everywhere.
    both = vary_together(x, iota)
    if descending:
        # Reversed, sorted and reversed again, so that equal elements keep their order.
        both = tuple(lax.rev(y, (dim,)) for y in both)
    values, order = lax.sort(both, dimension=dim, is_stable=True, num_keys=1)
    if descending:
        values, order = lax.rev(values, (dim,)), lax.rev(order, (dim,))
    return values, convert(order, call.results[1].dtype)


@OPS.define("sort")
def _sort(call: Call) -> Sequence[jax.Array]:
    (x,) = call.operands
    return _sort_dim(call, x, call.check_dim(call["dim"], x.ndim, "dim"), call["descending"])


@OPS.define("topk")
def _topk(call: Call) -> Sequence[jax.Array]:
    (x,) = call.operands
    dim, k = call.check_dim(call["dim"], x.ndim, "dim"), call["k"]
    call.require(0 < k <= x.shape[dim], f"k = {k} is not in 1 to {x.shape[dim]}, the size of dim {dim}")
    if call["largest"] and not is_bool(x):
        # As JAX's own, which has 0 above -0, and a NaN with its sign below all.
        values, order = (jnp.moveaxis(y, -1, dim) for y in lax.top_k(jnp.moveaxis(x, dim, -1), k))
        return values, convert(order, call.results[1].dtype)
    values, order = _sort_dim(call, x, dim, call["largest"])
    return lax.slice_in_dim(values, 0, k, axis=dim), lax.slice_in_dim(order, 0, k, axis=dim)
