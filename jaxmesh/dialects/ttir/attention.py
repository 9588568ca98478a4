"""Attention and its heads."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from jaxmesh.dialects.op import Call, OpDef, Trait, attr, define, describe, expect, need
from jaxmesh.dialects.ttir.helpers import (
    broadcast_shape,
    check_rank,
    check_shape,
    jnp,
    lax,
    nn,
    optional_operands,
    require,
    vary_together,
)

OPS: dict[str, OpDef] = {}


@define(
    OPS,
    "scaled_dot_product_attention",
    (3, 5),
    attr("is_causal", "bool", True),
    attr("scale", "float"),
    attr("sliding_window_size", "int", form="ui32"),
)
def _attention(call: Call) -> Any:
    """Returns softmax(query @ key^T * scale + mask) @ value; all are (batch, heads, sequence, head size)."""
    names = ("query", "key", "value", "attention_mask", "attention_sink")
    query, key, value, mask, sink = optional_operands(call, names)
    _check_attention(call, query, key, value)
    causal = call["is_causal"]
    require(call, mask is None or not causal, f"an attention_mask beside is_causal = {causal}; one of them says it")
    scale = 1 / math.sqrt(query.shape[-1]) if call["scale"] is None else call["scale"]
    shared = query.shape[1] // key.shape[1]
    query, key, value = vary_together(query, jnp.repeat(key, shared, axis=1), jnp.repeat(value, shared, axis=1))
    scores = jnp.einsum("bhqd,bhkd->bhqk", query, key, preferred_element_type=jnp.float32) * scale
    if mask is not None:
        rule = f"the attention_mask broadcasts to {list(scores.shape)}, but got {describe(mask)}"
        require(call, broadcast_shape(call, scores.shape, mask.shape) == scores.shape, rule)
        scores = jnp.add(*vary_together(scores, mask))
    if causal or call["sliding_window_size"] is not None:
        scores = jnp.where(_visible(call, scores.shape), scores, -jnp.inf)
    if sink is None:
        return jnp.einsum("bhqk,bhkd->bhqd", nn.softmax(scores).astype(query.dtype), value)
    # A sink is one more key of every query, whose score it is, and whose value is zero.
    check_shape(call, sink, (1, query.shape[1], 1, 1), "attention_sink, a number per head,")
    scores, sink = vary_together(scores, jnp.broadcast_to(sink.astype(scores.dtype), (*scores.shape[:3], 1)))
    weights = nn.softmax(jnp.concatenate([scores, sink], -1))[..., :-1]
    return jnp.einsum("bhqk,bhkd->bhqd", weights.astype(query.dtype), value)


def _visible(call: Call, shape: Sequence[int]) -> Any:
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
    require(call, shape[2] == shape[3], rule)
    return jnp.abs(rows - columns) <= window // 2


def _check_attention(call: Call, query: Any, key: Any, value: Any) -> None:
    for x, name in ((query, "query"), (key, "key"), (value, "value")):
        check_rank(call, x, 4, f"{name} (batch, heads, sequence, head size)")
    check_shape(call, value, key.shape, "value, like key,")
    alike = (query.shape[0], query.shape[3]) == (key.shape[0], key.shape[3])
    require(call, alike, f"query {describe(query)} and key {describe(key)} differ in batch or head size")
    shared = key.shape[1] > 0 and query.shape[1] % key.shape[1] == 0
    rule = f"{query.shape[1]} heads of query are no multiple of the {key.shape[1]} heads of key"
    require(call, shared, rule)


@define(OPS, "concatenate_heads", 1)
def _concatenate_heads(call: Call) -> Any:
    (x,) = call.operands
    check_rank(call, x, 4, "the input (batch, heads, sequence, head size)")
    batch, heads, length, width = x.shape
    return lax.reshape(lax.transpose(x, (0, 2, 1, 3)), (batch, length, heads * width))


@define(
    OPS,
    "split_query_key_value_and_split_heads",
    (1, 2),
    need("num_heads", "int", form="ui32"),
    attr("num_kv_heads", "int", form="ui32"),
    expect("transpose_key", "bool", False),
    results=(3, 3),
)
def _split_heads(call: Call) -> Any:
    """Splits an input of query, key and value side by side; or of query alone, with key and value in a second input."""
    joint, pair = optional_operands(call, ("input_tensor", "kv_input_tensor"))
    check_rank(call, joint, 3, "the input (batch, sequence, hidden)")
    heads, shared = call["num_heads"], call["num_kv_heads"] or call["num_heads"]
    joined = heads if pair is not None else heads + 2 * shared
    rule = f"the hidden size {joint.shape[-1]} of {describe(joint)} does not divide by {joined} heads"
    require(call, joined > 0 and joint.shape[-1] % joined == 0, rule)
    width = joint.shape[-1] // joined
    if pair is None:
        joint, pair = joint[..., : heads * width], joint[..., heads * width :]
    check_shape(call, pair, (*joint.shape[:2], 2 * shared * width), "kv_input_tensor")
    key, value = pair[..., : shared * width], pair[..., shared * width :]
    query, key, value = _heads(joint, heads), _heads(key, shared), _heads(value, shared)
    return query, jnp.swapaxes(key, 2, 3) if call["transpose_key"] else key, value


def _heads(x: Any, count: int) -> Any:
    batch, length, hidden = x.shape
    return lax.transpose(lax.reshape(x, (batch, length, count, hidden // count)), (0, 2, 1, 3))


@define(OPS, "rotary_embedding", 3, traits=[Trait.NOT_UPSTREAM])
def _rotary_embedding(call: Call) -> Any:
    x, cos, sin = vary_together(*call.operands)
    width = x.shape[-1] if x.ndim else 0
    require(call, x.ndim > 0 and width % 2 == 0, f"the last dim is even, but got {describe(x)}")
    for table, name in ((cos, "cos"), (sin, "sin")):
        fits = broadcast_shape(call, x.shape, table.shape) == x.shape
        require(call, fits, f"{name} broadcasts to {list(x.shape)}, but got {describe(table)}")
    turned = lax.concatenate([-x[..., width // 2 :], x[..., : width // 2]], x.ndim - 1)
    y = x * cos + turned * sin
    # The result may have the rows that fill its last tile, as upstream's RotaryEmbeddingOpRewritePattern declares.
    behind = call.result.shape[-2] - y.shape[-2] if call.result.ndim == y.ndim > 1 else 0
    return jnp.pad(y, [*[(0, 0)] * (y.ndim - 2), (0, behind), (0, 0)]) if 0 < behind == -y.shape[-2] % 32 else y
