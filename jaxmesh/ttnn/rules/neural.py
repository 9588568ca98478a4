"""Rules of products, normalisations, attention and caches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from jaxmesh.dialects.ttnn.forms import B8, BF16, BLOCKS, F32, FLOATS, NARROW, NOT_I8
from jaxmesh.ttnn.rules.definitions import takes
from jaxmesh.ttnn.rules.given import TILE, Form, Given, Result, Rule, like

_MODEL = frozenset({F32, BF16, B8})
_BRIEF = frozenset({BF16, *BLOCKS})


def _group_norm(given: Given) -> list[Result]:
    x = given["input_tensor"]
    given.on_devices(*given.tensors())
    given.require(not given["inplace"], "takes inplace=False", "In-place operation not supported for this layout")
    given.types(x, frozenset({F32, BF16}))
    rows = x.shape[-2]
    given.require(
        x.is_tile or rows % 32 == 0,
        f"takes a multiple of 32 rows in ROW_MAJOR, not {rows}",
        "H*W must be a multiple of the tile height (32)",
    )
    grid, tiles = given["core_grid"], x.shape[0] * -(-rows // 32)
    given.require(
        grid is None or tiles % grid.y == 0, f"divides {tiles} rows of tiles among the cores", "core_grid is invalid"
    )
    for name in ("weight", "bias"):
        form = given[name]
        if isinstance(form, Form):
            given.require(
                not form.is_tile and form.shape[-1] == 32,
                f"takes a {name} in ROW_MAJOR, in rows of 32 elements",
                "Gamma tensor inner dimension must equal tile width (32)",
            )
            given.types(form, frozenset({F32, BF16}), name)
    kinds = {form.dtype for form in (given["weight"], given["bias"]) if isinstance(form, Form)}
    given.require(len(kinds) < 2, "takes a weight and a bias of one element type", "Gamma and beta must have the same")
    given.require(
        given["dtype"] in (None, x.dtype), "gives the operand's element type", "group_norm output dtype must match"
    )
    return [Result(x.dtype, given["output_layout"] or x.layout)]


def _rotary(given: Given) -> list[Result]:
    x, cos, sin = given.tensors()[:3]
    given.on_devices(x, cos, sin)
    for form in (x, cos, sin):
        narrow = form.dtype in NARROW and not form.is_tile
        given.require(not narrow, f"does not tilize {form.dtype}", "unsupported data type for tilize")
        given.types(form, NOT_I8)
    given.require(cos.dtype == sin.dtype, "takes caches of one element type", "Cos and Sin dtypes must match")
    given.require(len(x.shape) == 4, "takes four dims", "index out of range. 3 not in")
    length, width = x.shape[2:]
    tiles = -(-width // 32)
    halves = tiles == 1 or tiles % 2 == 0
    given.require(halves, f"halves rows of whole tiles, not of {width} elements", "Input X dimension must be either 32")
    for form in (cos, sin):
        good = len(form.shape) == 4 and form.shape[:2] == (1, 1) and -(-form.shape[3] // 32) == tiles
        given.require(
            good, "takes caches of [1, 1, rows, width]", "Cosine cache dimensions must match input dimensions"
        )
    token = given["token_index"]
    given.require(token is None or x.shape[0] == 1, "takes one position with a token_index", "must be 1")
    good = token is not None or min(cos.shape[2], sin.shape[2]) >= length
    given.require(good, f"takes caches of {length} rows at least", "Cosine cache must cover the input sequence length")
    return [Result(x.dtype, TILE, F32)]


def _norm(given: Given) -> list[Result]:
    x, residual = given["input_tensor"], given["residual_input_tensor"]
    given.on_devices(*given.tensors())
    if given.callee == "ttnn.rms_norm":
        given.tiles(x)
    if not x.is_empty:
        given.types(x, _MODEL)
    same = not isinstance(residual, Form) or residual.shape == x.shape
    given.require(same, "takes a residual of the same shape", "residual shapes must match")
    return like(x)


def _statistics(given: Given) -> Sequence[Result]:
    x = given["input_tensor"]
    good = x.dtype != F32 or given["compute_kernel_config"] is not None
    given.require(good, "takes a compute_kernel_config beside FLOAT32", "FLOAT32 requires fp32_dest_acc_en=true")
    if given.callee == "ttnn.layer_norm_post_all_gather":
        return takes(_MODEL, "input_tensor", "stats")(given)
    return takes(_MODEL, gives=BF16)(given)


# --- attention to caches: what lies beyond a cache has no value ------------------------------------------------------

_ATTENDS = takes(_BRIEF, "input_tensor_q", "input_tensor_k", "input_tensor_v", "attn_mask")


def _decoded(given: Given) -> Sequence[Result]:
    k, places = given["input_tensor_k"], given["cur_pos"]
    known = not given["is_causal"] or isinstance(given["cur_pos_tensor"], Form)
    good = known or (len(places) >= k.shape[0] and all(0 <= n < k.shape[2] for n in places))
    rule = f"takes cur_pos for {k.shape[0]} users among {k.shape[2]} keys, not {places}"
    given.require(good, rule, "cur_pos must be <= K sequence dim")
    return _ATTENDS(given)


def _chunked(given: Given) -> Sequence[Result]:
    start = given["chunk_start_idx"]
    room = given["page_table_tensor"].shape[1] * given["input_tensor_k"].shape[2]
    good = start is None or 0 <= start <= room - given["input_tensor_q"].shape[2]
    given.require(good, f"has pages for {room} positions", "K's sequence length must be >= Q's sequence length")
    return _ATTENDS(given)


def _latent(given: Given) -> Sequence[Result]:
    width, most = given["head_dim_v"], given["input_tensor_q"].shape[3]
    good = not isinstance(width, int) or 0 < width <= most
    given.require(good, f"takes values at most {most} wide", "Head dimension of V must be less")
    return _ATTENDS(given)


def _filled(given: Given) -> Sequence[Result]:
    cache, table = given["cache_tensor"], given["page_table"]
    users, room = table.shape[0], table.shape[1] * cache.shape[2]
    good = 0 <= given["batch_idx"] < users
    given.require(good, f"has {users} users in its page table", "Batch idx must be within the table")
    good = given["input_tensor"].shape[2] <= room
    given.require(good, f"has pages for {room} positions", "Input seq_len must fit in")
    return takes(_BRIEF | {F32}, "cache_tensor", tiles=False)(given)


RULES: Mapping[str, Rule] = {
    **dict.fromkeys(("ttnn.layer_norm", "ttnn.rms_norm"), _norm),
    "ttnn.group_norm": _group_norm,
    "ttnn.batch_norm": takes(FLOATS, "input", "running_mean", "running_var", "weight", "bias"),
    **dict.fromkeys(
        ("ttnn.layer_norm_pre_all_gather", "ttnn.rms_norm_pre_all_gather", "ttnn.layer_norm_post_all_gather"),
        _statistics,
    ),
    "ttnn.transformer.scaled_dot_product_attention_decode": _decoded,
    "ttnn.transformer.paged_scaled_dot_product_attention_decode": _ATTENDS,
    "ttnn.transformer.chunked_scaled_dot_product_attention": _chunked,
    "ttnn.transformer.flash_mla_prefill": _latent,
    "ttnn.experimental.paged_fill_cache": _filled,
    "ttnn.experimental.nlp_concat_heads": takes(_MODEL),
    "ttnn.experimental.rotary_embedding": _rotary,
    "ttnn.experimental.rotary_embedding_llama": takes(
        frozenset({BF16}), "input_tensor", "cos_cache", "sin_cache", "trans_mat"
    ),
    "ttnn.experimental.dropout": takes(frozenset({BF16})),
}  # fmt: skip
