"""Normalisations. Statistics are taken in float32."""

from __future__ import annotations

from typing import Any

from jaxmesh.dialects.op import Call, OpDef, Shape, Trait, attr, define, describe, expect, need
from jaxmesh.dialects.ttir.collectives import all_reduce_sum
from jaxmesh.dialects.ttir.helpers import (
    check_dim,
    check_shape,
    convert,
    jnp,
    lax,
    optional_operands,
    require,
    vary_together,
)
from jaxmesh.dialects.ttir.replica_groups import axis_name

OPS: dict[str, OpDef] = {}

_EPSILON = attr("epsilon", "float", 1e-5)
_NORMALIZED = need("normalized_shape", "ints", form="i64s"), _EPSILON


def _float32(x: Any) -> Any:
    return None if x is None else convert(x, jnp.float32)


def _scale(x: Any, weight: Any, bias: Any) -> Any:
    x = x if weight is None else jnp.multiply(*vary_together(x, weight))
    return x if bias is None else jnp.add(*vary_together(x, bias))


def _normalized_dims(call: Call, x: Any, scales: list[Any]) -> Shape:
    """Returns the trailing dims that `normalized_shape` names; weight and bias have exactly these."""
    shape = call["normalized_shape"]
    fits = 0 < len(shape) <= x.ndim and x.shape[x.ndim - len(shape) :] == shape
    require(call, fits, f"normalized_shape = {list(shape)} is not the end of the shape of {describe(x)}")
    for scale in scales:
        if scale is not None:
            check_shape(call, scale, shape, "weight or bias")
    return tuple(range(x.ndim - len(shape), x.ndim))


@define(OPS, "rms_norm", (1, 3), *_NORMALIZED, traits=(Trait.IN_FLOAT32,))
@define(OPS, "layer_norm", (1, 3), *_NORMALIZED, traits=(Trait.IN_FLOAT32,))
def _norm(call: Call) -> Any:
    given, weight, bias = optional_operands(call, ("input", "weight", "bias"))
    dims, x = _normalized_dims(call, given, [weight, bias]), _float32(given)
    if call.name == "layer_norm":
        x = x - jnp.mean(x, dims, keepdims=True)
    x = x * lax.rsqrt(jnp.mean(x * x, dims, keepdims=True) + call["epsilon"])
    return convert(_scale(x, _float32(weight), _float32(bias)), given.dtype)


@define(
    OPS,
    "batch_norm_inference",
    5,
    expect("dimension", "int", 1, form="i32"),
    expect("epsilon", "float", 1e-5),
)
def _batch_norm_inference(call: Call) -> Any:
    x = call.operands[0]
    dim = check_dim(call, call["dimension"], x.ndim, "dimension")
    per_feature = [1] * x.ndim
    per_feature[dim] = x.shape[dim]
    for operand in call.operands[1:]:
        check_shape(call, operand, (x.shape[dim],), "scale, offset, mean or variance")
    wide = [lax.reshape(_float32(p), per_feature) for p in call.operands[1:]]
    value, scale, offset, mean, variance = vary_together(_float32(x), *wide)
    return convert((value - mean) * lax.rsqrt(variance + call["epsilon"]) * scale + offset, x.dtype)


# --- over a mesh axis ------------------------------------------------------------------------------------------------


def _residual(call: Call, x: Any, residual: Any) -> Any:
    if residual is None:
        return _float32(x)
    check_shape(call, residual, x.shape, "the residual")
    return jnp.add(*vary_together(_float32(x), _float32(residual)))


def _check_scales(call: Call, x: Any, scales: list[Any]) -> None:
    """Checks that weight and bias hold one number per element of the last dim of the shard, after any leading 1s."""
    require(call, x.ndim > 0, f"a scalar has no dim to normalise, got {describe(x)}")
    for scale in scales:
        if scale is not None:
            rule = f"weight or bias has {x.shape[-1]} elements, as the last dim of {describe(x)}"
            require(call, scale.size == x.shape[-1], f"{rule}, but got {describe(scale)}")


def _flatten(scale: Any) -> Any:
    return None if scale is None else lax.reshape(_float32(scale), (scale.size,))


def _mean_over(x: Any, axis: str, size: int) -> Any:
    """Returns the mean over the last dim, which is split over a mesh axis."""
    return all_reduce_sum(jnp.sum(x, -1, keepdims=True), axis) / (x.shape[-1] * size)


_DISTRIBUTED = need("cluster_axis", "int", form="ui32"), _EPSILON
_TRAITS = (Trait.COLLECTIVE, Trait.SENDS, Trait.DECOMPOSED)


@define(OPS, "distributed_rms_norm", (1, 3), *_DISTRIBUTED, traits=_TRAITS)
def _distributed_rms_norm(call: Call) -> Any:
    given, weight, residual = optional_operands(call, ("input", "weight", "residual"))
    return _distribute(call, given, weight, None, residual)


@define(OPS, "distributed_layer_norm", (1, 4), *_DISTRIBUTED, traits=_TRAITS)
def _distributed_layer_norm(call: Call) -> Any:
    return _distribute(call, *optional_operands(call, ("input", "weight", "bias", "residual")))


def _distribute(call: Call, given: Any, weight: Any, bias: Any, residual: Any) -> Any:
    axis = axis_name(call, call["cluster_axis"])
    _check_scales(call, given, [weight, bias])
    x = _residual(call, given, residual)
    if call.name == "distributed_layer_norm":
        x = jnp.subtract(*vary_together(x, _mean_over(x, axis, call.mesh[axis])))
    scale = lax.rsqrt(_mean_over(x * x, axis, call.mesh[axis]) + call["epsilon"])
    return convert(_scale(jnp.multiply(*vary_together(x, scale)), _flatten(weight), _flatten(bias)), given.dtype)
