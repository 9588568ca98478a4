"""Products, normalisations, attention and its heads.

Products accumulate in the declared result type; statistics are taken in float32.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from jaxmesh.dialects.op import Call, Shape, Trait, describe
from jaxmesh.dialects.ttir.collectives import all_reduce_sum
from jaxmesh.dialects.ttir.helpers import TtirOps, convert, jax, jnp, lax, nn, vary_together
from jaxmesh.dialects.ttir.replica_groups import axis_name
from jaxmesh.jaxprs.untyped import DType

OPS = TtirOps()


def _result_dtype(call: Call) -> DType:
    return jax.dtypes.canonicalize_dtype(call.result.dtype)


def _transpose(x: jax.Array, transpose: bool) -> jax.Array:
    return jnp.swapaxes(x, -1, -2) if transpose and x.ndim > 1 else x


def _product(call: Call, a: jax.Array, b: jax.Array) -> jax.Array:
    call.require(min(a.ndim, b.ndim) > 0, f"a scalar has no dim to contract, got {describe(a)} and {describe(b)}")
    a, b = vary_together(_transpose(a, call["transpose_a"]), _transpose(b, call["transpose_b"]))
    inner = b.shape[-2] if b.ndim > 1 else b.shape[0]
    rule = f"the contracted dims differ: {a.shape[-1]} of {describe(a)} and {inner} of {describe(b)}"
    call.require(a.shape[-1] == inner, rule)
    call.broadcast_shape(a.shape[:-2], b.shape[:-2])
    if a.ndim == b.ndim > 1 and a.shape[:-2] == b.shape[:-2]:
        # Directly: jnp.matmul removes batch dims of size 1 and restores them.
        batch = tuple(range(a.ndim - 2))
        numbers = ((a.ndim - 1,), (b.ndim - 2,)), (batch, batch)
        return lax.dot_general(a, b, numbers, preferred_element_type=_result_dtype(call))
    return jnp.matmul(a, b, preferred_element_type=_result_dtype(call))


@OPS.define("matmul")
def _matmul(call: Call) -> jax.Array:
    out = _product(call, *call.operands)
    # Upstream's verifier wants one dim for the product of two vectors.
    return lax.reshape(out, (1,)) if out.ndim == 0 and call.result.shape == (1,) else out


@OPS.define("linear")
def _linear(call: Call) -> jax.Array:
    a, b, bias = call.optional_operands(("a", "b", "bias"))
    out = _product(call, a, b)
    if bias is None:
        return out
    call.broadcast_shape(out.shape, bias.shape)
    return jnp.add(*vary_together(out, bias))


@OPS.define("dot_general", traits=[Trait.DECOMPOSED_FOR_TTNN])
def _dot_general(call: Call) -> jax.Array:
    a, b = vary_together(*call.operands)
    dims = {
        f"{kind}_dims_{side}": call.check_dims(call[f"{kind}_dims_{side}"], x.ndim, f"{kind}_dims_{side}")
        for kind in ("contract", "batch")
        for side, x in (("lhs", a), ("rhs", b))
    }
    for kind in ("contract", "batch"):
        left, right = dims[f"{kind}_dims_lhs"], dims[f"{kind}_dims_rhs"]
        call.check_length(f"{kind}_dims_rhs", right, len(left), f"as {kind}_dims_lhs = {list(left)}")
        sizes = [a.shape[d] for d in left], [b.shape[d] for d in right]
        call.require(sizes[0] == sizes[1], f"the {kind} dims differ in size: {sizes[0]} and {sizes[1]}")
    for side in ("lhs", "rhs"):
        both = set(dims[f"contract_dims_{side}"]) & set(dims[f"batch_dims_{side}"])
        call.require(not both, f"dims {sorted(both)} of {side} are batch and contract dims at once")
    numbers = tuple(tuple(dims[f"{kind}_dims_{side}"] for side in ("lhs", "rhs")) for kind in ("contract", "batch"))
    return lax.dot_general(a, b, numbers, preferred_element_type=_result_dtype(call))


def _float32(x: jax.Array | None) -> Any:
    return None if x is None else convert(x, jnp.float32)


def _scale(x: jax.Array, weight: jax.Array | None, bias: jax.Array | None) -> jax.Array:
    x = x if weight is None else jnp.multiply(*vary_together(x, weight))
    return x if bias is None else jnp.add(*vary_together(x, bias))


def _normalized_dims(call: Call, x: jax.Array, scales: Sequence[jax.Array | None]) -> Shape:
    """Returns the trailing dims that `normalized_shape` names; weight and bias have exactly these."""
    shape = call["normalized_shape"]
    fits = 0 < len(shape) <= x.ndim and x.shape[x.ndim - len(shape) :] == shape
    call.require(fits, f"normalized_shape = {list(shape)} is not the end of the shape of {describe(x)}")
    for scale in scales:
        if scale is not None:
            call.check_shape(scale, shape, "weight or bias")
    return tuple(range(x.ndim - len(shape), x.ndim))


@OPS.define("rms_norm", traits=(Trait.IN_FLOAT32,))
@OPS.define("layer_norm", traits=(Trait.IN_FLOAT32,))
def _norm(call: Call) -> jax.Array:
    given, weight, bias = call.optional_operands(("input", "weight", "bias"))
    dims, x = _normalized_dims(call, given, [weight, bias]), _float32(given)
    if call.name == "layer_norm":
        x = x - jnp.mean(x, dims, keepdims=True)
    x = x * lax.rsqrt(jnp.mean(x * x, dims, keepdims=True) + call["epsilon"])
    return convert(_scale(x, _float32(weight), _float32(bias)), given.dtype)


@OPS.define("batch_norm_inference")
def _batch_norm_inference(call: Call) -> jax.Array:
    x = call.operands[0]
    dim = call.check_dim(call["dimension"], x.ndim, "dimension")
    per_feature = [1] * x.ndim
    per_feature[dim] = x.shape[dim]
    for operand in call.operands[1:]:
        call.check_shape(operand, (x.shape[dim],), "scale, offset, mean or variance")
    wide = [lax.reshape(_float32(p), per_feature) for p in call.operands[1:]]
    value, scale, offset, mean, variance = vary_together(_float32(x), *wide)
    return convert((value - mean) * lax.rsqrt(variance + call["epsilon"]) * scale + offset, x.dtype)


# --- over a mesh axis ------------------------------------------------------------------------------------------------


def _residual(call: Call, x: jax.Array, residual: jax.Array | None) -> jax.Array:
    if residual is None:
        return _float32(x)
    call.check_shape(residual, x.shape, "the residual")
    return jnp.add(*vary_together(_float32(x), _float32(residual)))


def _check_scales(call: Call, x: jax.Array, scales: Sequence[jax.Array | None]) -> None:
    """Checks that weight and bias hold one number per element of the last dim of the shard, after any leading 1s."""
    call.require(x.ndim > 0, f"a scalar has no dim to normalise, got {describe(x)}")
    for scale in scales:
        if scale is not None:
            rule = f"weight or bias has {x.shape[-1]} elements, as the last dim of {describe(x)}"
            call.require(scale.size == x.shape[-1], f"{rule}, but got {describe(scale)}")


def _flatten(scale: jax.Array | None) -> jax.Array | None:
    return None if scale is None else lax.reshape(_float32(scale), (scale.size,))


def _mean_over(x: jax.Array, axis: str, size: int) -> jax.Array:
    """Returns the mean over the last dim, which is split over a mesh axis."""
    return all_reduce_sum(jnp.sum(x, -1, keepdims=True), axis) / (x.shape[-1] * size)


_TRAITS = (Trait.COLLECTIVE, Trait.SENDS, Trait.DECOMPOSED)


@OPS.define("distributed_rms_norm", traits=_TRAITS)
@OPS.define("distributed_layer_norm", traits=_TRAITS)
def _distributed_norm(call: Call) -> jax.Array:
    names = ["input", "weight", *(["bias"] if call.name == "distributed_layer_norm" else []), "residual"]
    found = dict(zip(names, call.optional_operands(names), strict=True))
    given, weight, bias, residual = found["input"], found["weight"], found.get("bias"), found["residual"]
    axis = axis_name(call, call["cluster_axis"])
    _check_scales(call, given, [weight, bias])
    x = _residual(call, given, residual)
    if call.name == "distributed_layer_norm":
        x = jnp.subtract(*vary_together(x, _mean_over(x, axis, call.mesh[axis])))
    scale = lax.rsqrt(_mean_over(x * x, axis, call.mesh[axis]) + call["epsilon"])
    return convert(_scale(jnp.multiply(*vary_together(x, scale)), _flatten(weight), _flatten(bias)), given.dtype)


@OPS.define("scaled_dot_product_attention")
def _attention(call: Call) -> jax.Array:
    """Returns softmax(query @ key^T * scale + mask) @ value; all are (batch, heads, sequence, head size)."""
    names = ("query", "key", "value", "attention_mask", "attention_sink")
    query, key, value, mask, sink = call.optional_operands(names)
    _check_attention(call, query, key, value)
    causal = call["is_causal"]
    call.require(mask is None or not causal, f"an attention_mask beside is_causal = {causal}; one of them says it")
    scale = 1 / math.sqrt(query.shape[-1]) if call["scale"] is None else call["scale"]
    shared = query.shape[1] // key.shape[1]
    query, key, value = vary_together(query, jnp.repeat(key, shared, axis=1), jnp.repeat(value, shared, axis=1))
    scores = jnp.einsum("bhqd,bhkd->bhqk", query, key, preferred_element_type=jnp.float32) * scale
    if mask is not None:
        rule = f"the attention_mask broadcasts to {list(scores.shape)}, but got {describe(mask)}"
        call.require(call.broadcast_shape(scores.shape, mask.shape) == scores.shape, rule)
        scores = jnp.add(*vary_together(scores, mask))
    if causal or call["sliding_window_size"] is not None:
        scores = jnp.where(_visible(call, scores.shape), scores, -jnp.inf)
    if sink is None:
        return jnp.einsum("bhqk,bhkd->bhqd", nn.softmax(scores).astype(query.dtype), value)
    # A sink is one more key of every query, whose score it is, and whose value is zero.
    call.check_shape(sink, (1, query.shape[1], 1, 1), "attention_sink, a number per head,")
    scores, sink = vary_together(scores, jnp.broadcast_to(sink.astype(scores.dtype), (*scores.shape[:3], 1)))
    weights = nn.softmax(jnp.concatenate([scores, sink], -1))[..., :-1]
    return jnp.einsum("bhqk,bhkd->bhqd", weights.astype(query.dtype), value)


def _visible(call: Call, shape: Sequence[int]) -> jax.Array:
    """Returns whether a query sees a key: it is at or before it, or near it.

    A window of N is of the last N keys in front of a causal query, else of N // 2 keys on either side. One query alone
    is the last position (tt-mlir lowers it to the decode form), and sees the last N.
    """
    rows, columns = (lax.broadcasted_iota(jnp.int32, shape, d) for d in (2, 3))
    window, causal = call["sliding_window_size"], call["is_causal"]
    if shape[2] == 1 and not causal:
        return columns >= shape[3] - window
    if causal:
        return (rows >= columns) if window is None else (rows >= columns) & (rows - columns < window)
    rule = f"a sliding window without is_causal needs as many queries as keys, got {shape[2]} and {shape[3]}"
    call.require(shape[2] == shape[3], rule)
    return jnp.abs(rows - columns) <= window // 2


def _check_attention(call: Call, query: jax.Array, key: jax.Array, value: jax.Array) -> None:
    for x, name in ((query, "query"), (key, "key"), (value, "value")):
        call.check_rank(x, 4, f"{name} (batch, heads, sequence, head size)")
    call.check_shape(value, key.shape, "value, like key,")
    alike = (query.shape[0], query.shape[3]) == (key.shape[0], key.shape[3])
    call.require(alike, f"query {describe(query)} and key {describe(key)} differ in batch or head size")
    shared = key.shape[1] > 0 and query.shape[1] % key.shape[1] == 0
    rule = f"{query.shape[1]} heads of query are no multiple of the {key.shape[1]} heads of key"
    call.require(shared, rule)


@OPS.define("concatenate_heads")
def _concatenate_heads(call: Call) -> jax.Array:
    (x,) = call.operands
    call.check_rank(x, 4, "the input (batch, heads, sequence, head size)")
    batch, heads, length, width = x.shape
    return lax.reshape(lax.transpose(x, (0, 2, 1, 3)), (batch, length, heads * width))


@OPS.define("split_query_key_value_and_split_heads")
def _split_heads(call: Call) -> Sequence[jax.Array]:
    """Splits an input of query, key and value side by side; or of query alone, with key and value in a second input."""
    joint, pair = call.optional_operands(("input_tensor", "kv_input_tensor"))
    call.check_rank(joint, 3, "the input (batch, sequence, hidden)")
    heads, shared = call["num_heads"], call["num_kv_heads"] or call["num_heads"]
    joined = heads if pair is not None else heads + 2 * shared
    rule = f"the hidden size {joint.shape[-1]} of {describe(joint)} does not divide by {joined} heads"
    call.require(joined > 0 and joint.shape[-1] % joined == 0, rule)
    width = joint.shape[-1] // joined
    if pair is None:
        joint, pair = joint[..., : heads * width], joint[..., heads * width :]
    call.check_shape(pair, (*joint.shape[:2], 2 * shared * width), "kv_input_tensor")
    key, value = pair[..., : shared * width], pair[..., shared * width :]
    query, key, value = _heads(joint, heads), _heads(key, shared), _heads(value, shared)
    return query, jnp.swapaxes(key, 2, 3) if call["transpose_key"] else key, value


def _heads(x: jax.Array, count: int) -> jax.Array:
    batch, length, hidden = x.shape
    return lax.transpose(lax.reshape(x, (batch, length, count, hidden // count)), (0, 2, 1, 3))


@OPS.define("rotary_embedding", traits=[Trait.NOT_UPSTREAM])
def _rotary_embedding(call: Call) -> jax.Array:
    x, cos, sin = vary_together(*call.operands)
    width = x.shape[-1] if x.ndim else 0
    call.require(x.ndim > 0 and width % 2 == 0, f"the last dim is even, but got {describe(x)}")
    if (row := call["token_index"]) is not None:
        # All rows stand at one place of the sequence.
        least = min(cos.shape[-2], sin.shape[-2])
        call.require(row < least, f"token_index is a row of the caches, which have {least}, got {row}")
        call.require(x.shape[0] == 1, f"with token_index the first dim, of the sequence, is 1, but got {describe(x)}")
        cos, sin = (lax.slice_in_dim(table, row, row + 1, axis=table.ndim - 2) for table in (cos, sin))
    for table, name in ((cos, "cos"), (sin, "sin")):
        fits = call.broadcast_shape(x.shape, table.shape) == x.shape
        call.require(fits, f"{name} broadcasts to {list(x.shape)}, but got {describe(table)}")
    turned = lax.concatenate([-x[..., width // 2 :], x[..., : width // 2]], x.ndim - 1)
    y = x * cos + turned * sin
    # The result may have the rows that fill its last tile, as upstream's RotaryEmbeddingOpRewritePattern declares.
    behind = call.result.shape[-2] - y.shape[-2] if call.result.ndim == y.ndim > 1 else 0
    return jnp.pad(y, [*[(0, 0)] * (y.ndim - 2), (0, behind), (0, 0)]) if 0 < behind == -y.shape[-2] % 32 else y
