"""Ops that create tensors from attributes alone, the same on every device."""

from __future__ import annotations

import math

from jaxmesh.dialects.op import Call, Trait, describe
from jaxmesh.dialects.ttir.helpers import TtirOps, convert, jax, jnp, lax
from jaxmesh.jaxprs.untyped import Array

OPS = TtirOps()
_CREATES = (Trait.MOVES, Trait.CREATES)


def _fill(call: Call, value: object) -> jax.Array:
    # Broadcast inside the trace: no array of that shape is created here.
    dtype = jax.dtypes.canonicalize_dtype(call.result.dtype)
    return lax.full(call.result.shape, value, dtype)


def _check_shape(call: Call) -> None:
    shape, declared = call["shape"], call.result.shape
    rule = f"shape = {list(shape or ())}, but the declared type is {describe(call.result)}"
    call.require(shape is None or shape == declared, rule)


@OPS.define("ones", traits=_CREATES)
@OPS.define("zeros", traits=_CREATES)
def _zeros(call: Call) -> jax.Array:
    _check_shape(call)
    return _fill(call, int(call.name == "ones"))


@OPS.define("full", traits=_CREATES)
def _full(call: Call) -> jax.Array:
    _check_shape(call)
    dtype = jax.dtypes.canonicalize_dtype(call.result.dtype)
    return _fill(call, call.fit_number("fill_value", call["fill_value"], dtype))


@OPS.define("empty", traits=[*_CREATES, Trait.DECOMPOSED])
def _empty(call: Call) -> jax.Array:
    # Never read: it is only a destination of older ops.
    return _fill(call, 0)


@OPS.define("constant", traits=_CREATES)
def _constant(call: Call) -> jax.Array:
    value = _as_declared(call, call["value"])
    if value.size == 1:
        return _fill(call, value.item())
    declared = call.result.shape
    rule = f"value has the shape {list(value.shape)}, but the declared type is {describe(call.result)}"
    call.require(value.shape == declared, rule)
    return jnp.asarray(value)


def _as_declared(call: Call, value: Array) -> Array:
    """Returns the values in the declared element type; raises if one changes without JAX's x64 mode."""
    dtype = jax.dtypes.canonicalize_dtype(call.result.dtype)
    converted = value.astype(dtype, copy=False)
    whole = jnp.issubdtype(value.dtype, jnp.integer) and jnp.issubdtype(dtype, jnp.integer)
    if whole and (converted.astype(value.dtype) != value).any():
        raise call.rule_error(f"value {value[converted.astype(value.dtype) != value].item(0)} does not fit {dtype}")
    return converted


@OPS.define("arange", traits=_CREATES)
def _arange(call: Call) -> jax.Array:
    start, end, step = call["start"], call["end"], call["step"]
    call.require(step != 0, f"a step of 0 from {start} to {end} never ends")
    shape = call.result.shape
    dim = call.check_dim(call["arange_dimension"], len(shape), "arange_dimension")
    count = len(range(start, end, step))
    rule = f"start {start}, end {end}, step {step} give {count} numbers, but dim {dim} of {describe(call.result)} has"
    call.require(count == shape[dim], f"{rule} {shape[dim]}")
    dtype = jax.dtypes.canonicalize_dtype(call.result.dtype)
    if (start, step) == (0, 1) and jnp.issubdtype(dtype, jnp.number):
        return lax.broadcasted_iota(dtype, shape, dim)
    whole = lax.broadcasted_iota(jnp.int32, shape, dim) * step + start
    return convert(whole, dtype)


@OPS.define("rand", traits=[Trait.CREATES])
def _rand(call: Call) -> jax.Array:
    size, declared = call["size"], call.result
    rule = f"size = {list(size or ())}, but the declared type is {describe(declared)}"
    call.require(size is None or size == declared.shape, rule)
    low, high = call["low"], call["high"]
    if not low <= high:
        raise call.rule_error(f"low = {low} is above high = {high}")
    # The numbers are JAX's; a seed of 0, which asks the hardware for any, gives the same ones each time.
    # They go by the position in row-major order, and XLA takes long for a counter of many dims.
    numbers = jax.random.uniform(jax.random.key(call["seed"]), (math.prod(declared.shape),), jnp.float32, low, high)
    return convert(numbers.reshape(declared.shape), declared.dtype)


@OPS.define("get_dimension_size", traits=[*_CREATES, Trait.DECOMPOSED])
def _get_dimension_size(call: Call) -> jax.Array:
    (x,) = call.operands
    dim = call.check_dim(call["dimension"], x.ndim, "dimension")
    one = math.prod(call.result.shape) == 1
    call.require(one, f"the result is one number, but the declared type is {describe(call.result)}")
    return _fill(call, x.shape[dim])
