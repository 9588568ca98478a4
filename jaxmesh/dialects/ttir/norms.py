"""Normalisations. Statistics are taken in float32."""

from __future__ import annotations

from typing import Any

from jaxmesh.dialects.op import Call, OpDef, Shape, Trait, attr, define, describe, need
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


def _float32(x: Any) -> Any:
    return None if x is None else convert(x, jnp.float32)


def _scale(x: Any, weight: Any, bias: Any) -> Any:
    x = x if weight is None else jnp.multiply(*vary_together(x, weight))
    return x if bias is None else jnp.add(*vary_together(x, bias))


def _layer_scale(x: Any, dims: Shape, epsilon: float) -> Any:
    centred = x - jnp.mean(x, dims, keepdims=True)
    return centred * lax.rsqrt(jnp.mean(centred * centred, dims, keepdims=True) + epsilon)


def _rms_scale(x: Any, dims: Shape, epsilon: float) -> Any:
    return x * lax.rsqrt(jnp.mean(x * x, dims, keepdims=True) + epsilon)


def _normalized_dims(call: Call, x: Any, scales: list[Any]) -> Shape:
    """Returns the trailing dims that `normalized_shape` names; weight and bias have exactly these."""
    shape = call["normalized_shape"]
    fits = 0 < len(shape) <= x.ndim and x.shape[x.ndim - len(shape) :] == shape
    require(call, fits, f"normalized_shape = {list(shape)} is not the end of the shape of {describe(x)}")
    for scale in scales:
        if scale is not None:
            check_shape(call, scale, shape, "weight or bias")
    return tuple(range(x.ndim - len(shape), x.ndim))


@define(OPS, "layer_norm", (1, 3), need("normalized_shape", "ints", form="i64s"), _EPSILON)
def _layer_norm(call: Call) -> Any:
    x, weight, bias = optional_operands(call, ("input", "weight", "bias"))
    dims = _normalized_dims(call, x, [weight, bias])
    out = _scale(_layer_scale(_float32(x), dims, call["epsilon"]), _float32(weight), _float32(bias))
    return convert(out, x.dtype)


@define(OPS, "rms_norm", (1, 3), need("normalized_shape", "ints", form="i64s"), _EPSILON)
def _rms_norm(call: Call) -> Any:
    x, weight, bias = optional_operands(call, ("input", "weight", "bias"))
    dims = _normalized_dims(call, x, [weight, bias])
    out = _scale(_rms_scale(_float32(x), dims, call["epsilon"]), _float32(weight), _float32(bias))
    return convert(out, x.dtype)


@define(OPS, "batch_norm_inference", 5, attr("dimension", "int", 1, form="i32"), _EPSILON)
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


@define(
    OPS,
    "distributed_rms_norm",
    (1, 3),
    need("cluster_axis", "int", form="ui32"),
    _EPSILON,
    traits=[Trait.COLLECTIVE, Trait.SENDS, Trait.DECOMPOSED],
)
def _distributed_rms_norm(call: Call) -> Any:
    given, weight, residual = optional_operands(call, ("input", "weight", "residual"))
    axis = axis_name(call, call["cluster_axis"])
    _check_scales(call, given, [weight])
    x = _residual(call, given, residual)
    scale = lax.rsqrt(_mean_over(x * x, axis, call.mesh[axis]) + call["epsilon"])
    return convert(_scale(jnp.multiply(*vary_together(x, scale)), _flatten(weight), None), given.dtype)


@define(
    OPS,
    "distributed_layer_norm",
    (1, 4),
    need("cluster_axis", "int", form="ui32"),
    _EPSILON,
    traits=[Trait.COLLECTIVE, Trait.SENDS, Trait.DECOMPOSED],
)
def _distributed_layer_norm(call: Call) -> Any:
    given, weight, bias, residual = optional_operands(call, ("input", "weight", "bias", "residual"))
    axis = axis_name(call, call["cluster_axis"])
    _check_scales(call, given, [weight, bias])
    x = _residual(call, given, residual)
    centred = jnp.subtract(*vary_together(x, _mean_over(x, axis, call.mesh[axis])))
    scale = lax.rsqrt(_mean_over(centred * centred, axis, call.mesh[axis]) + call["epsilon"])
    return convert(_scale(jnp.multiply(*vary_together(centred, scale)), _flatten(weight), _flatten(bias)), given.dtype)
