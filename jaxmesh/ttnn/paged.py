"""Attention to caches of pages, and to keys that hold the values: functions of `ttnn` without an op that is printed.

A cache is [pages, heads, page size, width]; row `u` of a page table names the pages of user `u`, in order.
"""

from __future__ import annotations

from typing import Any

import jax

from jaxmesh.ttnn.conversion import write_result
from jaxmesh.ttnn.further import composed, each

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

    def compute(cache: Any, x: Any, table: Any) -> Any:
        places = _jnp.arange(x.shape[2])
        pages = table[batch_idx, places // cache.shape[2]]
        return cache.at[pages, :, places % cache.shape[2]].set(_jnp.moveaxis(x[0], 1, 0))

    made = each("ttnn.experimental.paged_fill_cache", (batch_idx,), compute, cache_tensor, input_tensor, page_table)
    return write_result("ttnn.experimental.paged_fill_cache", cache_tensor, made)


@composed("ttnn.transformer.paged_scaled_dot_product_attention_decode")
def paged_scaled_dot_product_attention_decode(
    input_tensor_q: Any, input_tensor_k: Any, input_tensor_v: Any, page_table_tensor: Any, is_causal: Any,
    attn_mask: Any, cur_pos_tensor: Any, scale: Any, memory_config: Any,
) -> Any:  # fmt: skip
    """Computes attention of one position of each user, [1, users, heads, width], to the user's pages."""
    places = cur_pos_tensor if is_causal else None

    def compute(q: Any, k: Any, v: Any, table: Any, *more: Any) -> Any:
        keys, values = _users(k, table), _users(v, table)
        given = iter(more)
        last = None if places is None else next(given)
        seen = None if last is None else _jnp.arange(keys.shape[2]) <= last.reshape(-1, 1, 1, 1)
        # A mask is [users, 1, heads, positions].
        mask = None if attn_mask is None else _jnp.moveaxis(next(given), 2, 1)
        return _attend(q[0][:, :, None], keys, values, scale, seen, mask)[None, :, :, 0]

    tensors = [input_tensor_q, input_tensor_k, input_tensor_v, page_table_tensor, places, attn_mask]
    key = (scale, places is None, attn_mask is None)
    there = [t for t in tensors if t is not None]
    return each("ttnn.transformer.paged_scaled_dot_product_attention_decode", key, compute, *there)


@composed("ttnn.transformer.scaled_dot_product_attention_decode")
def scaled_dot_product_attention_decode(
    input_tensor_q: Any, input_tensor_k: Any, input_tensor_v: Any, is_causal: Any, attn_mask: Any, cur_pos: Any,
    cur_pos_tensor: Any, scale: Any,
) -> Any:  # fmt: skip
    """Computes attention of one position, [1, users, heads, width], to a cache, [users, kv heads, length, width]."""
    users, length = input_tensor_k.shape[0], input_tensor_k.shape[2]
    row = cur_pos_tensor if is_causal else None
    positions = list(cur_pos)[:users] if is_causal and row is None else None

    def compute(q: Any, k: Any, v: Any, *more: Any) -> Any:
        given = iter(more)
        last = positions if row is None else next(given)
        seen = None
        if last is not None:
            seen = _jnp.arange(length) <= _jnp.asarray(last, _jnp.int32).reshape(-1)[:users].reshape(-1, 1, 1, 1)
        # A mask is [users, 1, heads, positions].
        mask = None if attn_mask is None else _jnp.moveaxis(next(given), 2, 1)
        return _attend(q[0][:, :, None], k, v, scale, seen, mask)[None, :, :, 0]

    tensors = [t for t in (input_tensor_q, input_tensor_k, input_tensor_v, row, attn_mask) if t is not None]
    key = (positions, scale, row is None)
    return each("ttnn.transformer.scaled_dot_product_attention_decode", key, compute, *tensors)


@composed("ttnn.transformer.chunked_scaled_dot_product_attention")
def chunked_scaled_dot_product_attention(
    input_tensor_q: Any, input_tensor_k: Any, input_tensor_v: Any, page_table_tensor: Any, chunk_start_idx: Any,
    scale: Any, memory_config: Any,
) -> Any:  # fmt: skip
    """Computes attention of a chunk of positions, [users, heads, length, width], to the pages up to each position."""

    def compute(q: Any, k: Any, v: Any, table: Any) -> Any:
        keys = _users(k, table)
        seen = _jnp.arange(keys.shape[2])[None] <= chunk_start_idx + _jnp.arange(q.shape[2])[:, None]
        return _attend(q, keys, _users(v, table), scale, seen)

    tensors = input_tensor_q, input_tensor_k, input_tensor_v, page_table_tensor
    title = "ttnn.transformer.chunked_scaled_dot_product_attention"
    return each(title, (chunk_start_idx, scale), compute, *tensors)


@composed("ttnn.transformer.flash_mla_prefill")
def flash_mla_prefill(
    input_tensor_q: Any, input_tensor_k: Any, head_dim_v: Any, input_tensor_v: Any, attn_mask: Any, is_causal: Any,
    scale: Any, memory_config: Any,
) -> Any:  # fmt: skip
    """Computes attention to keys whose first `head_dim_v` elements are the values, or to separate values."""
    own = input_tensor_v is not None

    def compute(q: Any, k: Any, *more: Any) -> Any:
        given = iter(more)
        v = next(given) if own else k[..., :head_dim_v]
        mask = next(given, None)
        seen = _jnp.tril(_jnp.ones((q.shape[2], k.shape[2]), bool)) if is_causal else None
        return _attend(q, k, v, scale, seen, mask)

    tensors = [t for t in (input_tensor_q, input_tensor_k, input_tensor_v, attn_mask) if t is not None]
    key = (None if own else head_dim_v, own, bool(is_causal), scale)
    return each("ttnn.transformer.flash_mla_prefill", key, compute, *tensors)
