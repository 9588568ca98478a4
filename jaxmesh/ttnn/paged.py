"""Attention to caches of pages, and to keys that hold the values: functions of `ttnn` without an op that is printed.

A cache is [pages, heads, page size, width]; row `u` of a page table names the pages of user `u`, in order.
"""

from __future__ import annotations

from typing import Any

import jax

from jaxmesh.ttnn.conversion import write_result
from jaxmesh.ttnn.further import composed, each, on_each_device

_jnp: Any = jax.numpy


def _users(cache: Any, table: Any) -> Any:
    """Returns the cache of each user, [users, heads, positions, width]."""
    found = _jnp.moveaxis(cache[table], 2, 1)
    return found.reshape(*found.shape[:2], -1, found.shape[-1])


def _attend(q: Any, k: Any, v: Any, scale: Any, seen: Any = None, mask: Any = None) -> Any:
    """Computes attention of queries [users, heads, length, width]; `seen` is True where a query sees a key."""
    groups = q.shape[1] // k.shape[1]
    keys, values = (_jnp.repeat(t, groups, axis=1).astype(_jnp.float32) for t in (k, v))
    scores = _jnp.einsum("bhqd,bhkd->bhqk", q.astype(_jnp.float32), keys)
    scores = scores * (q.shape[-1] ** -0.5 if scale is None else scale)
    scores = scores if mask is None else scores + mask.astype(_jnp.float32)
    scores = scores if seen is None else _jnp.where(seen, scores, -_jnp.inf)
    return _jnp.einsum("bhqk,bhkd->bhqd", jax.nn.softmax(scores, axis=-1), values).astype(q.dtype)


@composed("ttnn.experimental.paged_fill_cache")
def paged_fill_cache(cache_tensor: Any, input_tensor: Any, page_table: Any, batch_idx: Any) -> Any:
    """Writes [1, heads, length, width] into the pages of one user."""
    title = "ttnn.experimental.paged_fill_cache"

    def compute(cache: Any, x: Any, table: Any, user: int) -> Any:
        places = _jnp.arange(x.shape[2])
        pages = table[user, places // cache.shape[2]]
        return cache.at[pages, :, places % cache.shape[2]].set(_jnp.moveaxis(x[0], 1, 0))

    given = {"cache": cache_tensor, "x": input_tensor, "table": page_table, "user": batch_idx}
    return write_result(title, cache_tensor, each(title, compute, given))


def _decode(q: Any, keys: Any, values: Any, last: Any, mask: Any, scale: Any) -> Any:
    """Computes attention of one position of each user, [1, users, heads, width]; `last` are the last keys seen."""
    seen = None if last is None else _jnp.arange(keys.shape[2]) <= last.reshape(-1, 1, 1, 1)
    # A mask is [users, 1, heads, positions].
    mask = None if mask is None else _jnp.moveaxis(mask, 2, 1)
    return _attend(q[0][:, :, None], keys, values, scale, seen, mask)[None, :, :, 0]


@on_each_device("ttnn.transformer.paged_scaled_dot_product_attention_decode")
def paged_scaled_dot_product_attention_decode(
    input_tensor_q: Any, input_tensor_k: Any, input_tensor_v: Any, page_table_tensor: Any, is_causal: Any,
    attn_mask: Any, cur_pos_tensor: Any, scale: Any,
) -> Any:  # fmt: skip
    """Computes attention of one position of each user, [1, users, heads, width], to the user's pages."""
    keys, values = _users(input_tensor_k, page_table_tensor), _users(input_tensor_v, page_table_tensor)
    return _decode(input_tensor_q, keys, values, cur_pos_tensor if is_causal else None, attn_mask, scale)


@on_each_device("ttnn.transformer.scaled_dot_product_attention_decode", ignored=())
def scaled_dot_product_attention_decode(
    input_tensor_q: Any, input_tensor_k: Any, input_tensor_v: Any, is_causal: Any, attn_mask: Any, cur_pos: Any,
    cur_pos_tensor: Any, scale: Any,
) -> Any:  # fmt: skip
    """Computes attention of one position, [1, users, heads, width], to a cache, [users, kv heads, length, width]."""
    places = _jnp.asarray(cur_pos if cur_pos_tensor is None else cur_pos_tensor, _jnp.int32).reshape(-1)
    last = places[: input_tensor_k.shape[0]] if is_causal else None
    return _decode(input_tensor_q, input_tensor_k, input_tensor_v, last, attn_mask, scale)


@on_each_device("ttnn.transformer.chunked_scaled_dot_product_attention")
def chunked_scaled_dot_product_attention(
    input_tensor_q: Any, input_tensor_k: Any, input_tensor_v: Any, page_table_tensor: Any, chunk_start_idx: Any,
    scale: Any,
) -> Any:  # fmt: skip
    """Computes attention of a chunk of positions, [users, heads, length, width], to the pages up to each position."""
    keys, values = _users(input_tensor_k, page_table_tensor), _users(input_tensor_v, page_table_tensor)
    seen = _jnp.arange(keys.shape[2])[None] <= chunk_start_idx + _jnp.arange(input_tensor_q.shape[2])[:, None]
    return _attend(input_tensor_q, keys, values, scale, seen)


@on_each_device("ttnn.transformer.flash_mla_prefill")
def flash_mla_prefill(
    input_tensor_q: Any, input_tensor_k: Any, head_dim_v: Any, input_tensor_v: Any, attn_mask: Any, is_causal: Any,
    scale: Any,
) -> Any:  # fmt: skip
    """Computes attention to keys whose first `head_dim_v` elements are the values, or to separate values."""
    values = input_tensor_k[..., :head_dim_v] if input_tensor_v is None else input_tensor_v
    length, keys = input_tensor_q.shape[2], input_tensor_k.shape[2]
    seen = _jnp.tril(_jnp.ones((length, keys), bool)) if is_causal else None
    return _attend(input_tensor_q, input_tensor_k, values, scale, seen, attn_mask)
