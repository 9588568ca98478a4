"""Rules of attention to caches of pages, and to keys that hold the values."""

from __future__ import annotations

from collections.abc import Mapping

from jaxmesh.dialects.ttnn.data_types import BF16, BLOCKS, F32, I32
from jaxmesh.ttnn.rules.given import Form, Given, Result, Rule, like

_BRIEF = frozenset({BF16, *BLOCKS})


def _table(given: Given, table: Form, batch: int | None = None) -> None:
    given.require(table.dtype == I32, "takes a page table of INT32", "Expect page_table_tensor to have datatype INT32")
    given.require(len(table.shape) == 2, "takes a page table of [users, pages]", "ShapeBase[] index out of range")
    if batch is not None:
        given.require(not table.is_tile, "takes a page table in ROW_MAJOR", "Page table must be row major")
        good = table.shape[0] == batch
        given.require(good, f"takes a row of the page table for each of {batch} users", "batch size must match")


def _fill(given: Given) -> list[Result]:
    cache, x, table = given["cache_tensor"], given["input_tensor"], given["page_table"]
    given.on_devices(cache, x, table)
    given.types(cache, _BRIEF | {F32}, "a cache")
    given.require(x.dtype == cache.dtype, "takes a tensor of the cache's element type", "dtype must match cache tensor")
    _table(given, table)
    given.require(len(cache.shape) == len(x.shape) == 4, "takes tensors of four dims", "index out of range. 3 not in")
    same = (x.shape[1], x.shape[3]) == (cache.shape[1], cache.shape[3])
    given.require(same, "takes the cache's heads and width", "paged_fill_cache geometry mismatch")
    whole = cache.is_tile or cache.shape[2] % 32 == 0
    given.require(whole, "takes pages of whole tiles", "effective block_size must be a multiple of TILE_HEIGHT")
    given.require(x.shape[0] == 1, "fills one user's pages at a time", "input_batch must be 1")
    users, pages = table.shape
    given.require(
        0 <= given["batch_idx"] < users, f"has {users} users in its page table", "Batch idx must be within the table"
    )
    room = pages * cache.shape[2]
    given.require(x.shape[2] <= room, f"has pages for {room} positions, not {x.shape[2]}", "Input seq_len must fit in")
    return like(cache)


def _attended(given: Given) -> tuple[Form, Form, Form]:
    q, k, v = (given[f"input_tensor_{n}"] for n in "qkv")
    v = v if isinstance(v, Form) else k
    mask = given["attn_mask"]
    given.on_devices(q, k, v, mask)
    given.tiles(q, k, v)
    for form in (q, k, v):
        given.types(form, _BRIEF)
        given.require(len(form.shape) == 4, "takes tensors of four dims", "index out of range. 3 not in")
    given.require(q.shape[3] == k.shape[3], "takes queries and keys of one width", "Q, K must have same hidden size")
    given.require(not given["is_causal"] or mask is None, "takes no mask if it is causal", "attn_mask must not be")
    return q, k, v


def _of_pages(given: Given) -> list[Result]:
    q, k, v = _attended(given)
    given.require(k.shape == v.shape, "takes keys and values of one shape", "Q, K, V must have same hidden size")
    decodes = given.callee.endswith("_decode")
    heads, batch = q.shape[2 if decodes else 1], q.shape[1 if decodes else 0]
    table = given["page_table_tensor"]
    given.on_devices(table)
    _table(given, table, batch)
    good = heads % k.shape[1] == 0
    given.require(
        good, f"shares {k.shape[1]} key heads among query heads, not {heads}", "Q num_heads must be divisible"
    )
    if not decodes:
        start: int = -1 if given["chunk_start_idx"] is None else given["chunk_start_idx"]
        room: int = table.shape[1] * k.shape[2]
        given.require(start >= 0, "takes a chunk_start_idx from 0 on", "must be non-negative")
        good = start + q.shape[2] <= room
        given.require(good, f"has pages for {room} positions", "K's sequence length must be >= Q's sequence length")
        return like(q)
    if k.shape[1] > 1:
        given.types(q, frozenset({BF16}), "queries of several key heads")
    places = given["cur_pos_tensor"]
    given.on_devices(places)
    if given["is_causal"]:
        given.require(isinstance(places, Form), "takes a cur_pos_tensor", "Must have cur_pos tensor")
        good = places.dtype == I32 and not places.is_tile and places.shape[-1:] == (batch,)
        given.require(good, f"takes INT32 positions of {batch} users in ROW_MAJOR", "Expect cur_pos to be INT32")
    return like(q)


def _latent(given: Given) -> list[Result]:
    q, k, v = _attended(given)
    width = given["head_dim_v"] if isinstance(given["head_dim_v"], int) else v.shape[3]
    given.require(
        0 < width <= q.shape[3], f"takes values at most {q.shape[3]} wide", "Head dimension of V must be less"
    )
    good = not given["is_causal"] or q.shape[2] == k.shape[2]
    given.require(good, "takes queries and keys of one length if it is causal", "Causal SDPA requires Q and K to have")
    return like(q)


RULES: Mapping[str, Rule] = {
    "ttnn.experimental.paged_fill_cache": _fill,
    "ttnn.transformer.paged_scaled_dot_product_attention_decode": _of_pages,
    "ttnn.transformer.chunked_scaled_dot_product_attention": _of_pages,
    "ttnn.transformer.flash_mla_prefill": _latent,
}
