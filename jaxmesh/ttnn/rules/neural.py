"""Rules of products, normalisations, attention and caches."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

from jaxmesh.dialects.ttnn.data_types import B8, BF16, BLOCKS, F32, I8, NARROW, NOT_I8, REALS, U8, U16
from jaxmesh.ttnn.rules.given import TILE, Form, Given, Result, Rule, checked, like, tiled

_MODEL = frozenset({F32, BF16, B8})


def _product(given: Given) -> list[Result]:
    a, b = given["input_tensor_a"], given["input_tensor_b"]
    bias = given["bias"]
    given.on_devices(a, b, bias)
    if a.is_empty or b.is_empty:
        return like(a)
    given.tiles(a, b)
    for form in (a, b):
        given.types(form, REALS)
    batch = a.shape[:-2], b.shape[:-2]
    given.require(
        prod(batch[1]) == 1 or (len(a.shape) == len(b.shape) and (batch[0] == batch[1] or prod(batch[0]) == 1)),
        f"takes operands of one batch, or one of them without, not {list(a.shape)} and {list(b.shape)}",
        "bmm (non-bcast matmul) expects input tensors of shapes BCMK*BCKN=BCMN",
    )
    if isinstance(bias, Form):
        given.tiles(bias)
        # In other memory the library adds the bias to a tensor whose shape it infers without the transposes.
        moved = given["memory_config"] not in (None, a.memory) and (given["transpose_a"] or given["transpose_b"])
        fits = prod(b.shape[:-2]) == 1 and (1 in (bias.shape[-1], b.shape[-1]) or bias.shape[-1] == b.shape[-1])
        given.require(
            not moved or fits,
            "takes no transposed operands beside a bias and a batched second operand in other memory",
            "Broadcast error: Invalid dimension",
        )
    dtype = given["dtype"] or a.dtype
    given.require(dtype != I8, "gives no INT8", "Failed to generate binaries")
    good = dtype not in (U8, U16) or len(a.shape) < 2 or len(b.shape) > 1
    given.require(good, f"gives no vector of {dtype}", "Can only work with bfloat16/float32 or int32/uint32 tensors")
    for form, name in ((a, "transpose_a"), (b, "transpose_b")):
        given.require(
            not given[name] or len(form.shape) > 1 or form.shape == (1,),
            f"takes {name} of two dims at least",
            "The width of the first tensor must be equal to the height of the second tensor",
        )
    return checked(given, [Result(dtype, TILE, F32 if a.dtype != b.dtype else None)])


# --- normalisations --------------------------------------------------------------------------------------------------


def _norm(given: Given) -> list[Result]:
    x = given["input_tensor"]
    rms = given.callee == "ttnn.rms_norm"
    given.on_devices(*given.tensors())
    if rms:
        given.tiles(x)
    if x.is_empty:
        return like(x)
    width = x.shape[-1] if x.shape else 1
    given.require(
        x.is_tile or width % 32 == 0,
        f"takes ROW_MAJOR rows of whole tiles, not of {width} elements",
        "ROW_MAJOR input requires W to be a multiple of TILE_WIDTH",
    )
    given.types(x, _MODEL)
    for name in ("weight", "bias"):
        form = given[name]
        if isinstance(form, Form):
            _norm_parameter(given, x, form, name)
    residual = given["residual_input_tensor"]
    if isinstance(residual, Form):
        given.require(residual.shape == x.shape, "takes a residual of the same shape", "residual shapes must match")
        given.tiles(x, residual)
    return like(x)


def _norm_parameter(given: Given, x: Form, form: Form, name: str) -> None:
    if form.is_tile:
        width = (1, *x.shape)[-1]
        wide = form.shape[-1:] >= (width,) and -(-form.shape[-1] // 32) == -(-width // 32)
        given.require(wide, f"takes a {name} of {width} elements", "Input and gamma padded widths must match")
        return
    # The real library takes rows of the width of a tile.
    given.require(
        form.shape[-1] == 32 and len(form.shape) > 1,
        f"takes a {name} in TILE layout, or in rows of 32 elements",
        "gamma.padded_shape()[-1] == TILE_WIDTH",
    )
    given.types(form, frozenset({F32, BF16}), name)


def _batch_norm(given: Given) -> list[Result]:
    x = given["input"]
    found = [given[n] for n in ("running_mean", "running_var", "weight", "bias")]
    parameters = [p for p in found if isinstance(p, Form)]
    given.on_devices(x, *parameters)
    given.require(
        len({p.dtype for p in parameters}) < 2, "takes parameters of one element type", "param dtypes must match"
    )
    both = isinstance(found[0], Form) and isinstance(found[1], Form)
    given.require(
        both or bool(given["training"]), "takes running_mean and running_var", "running_mean and running_var must be"
    )
    given.tiles(x, *parameters)
    for form in (x, *parameters):
        given.types(form, frozenset({F32, BF16}))
    return tiled(x)


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


# --- attention -------------------------------------------------------------------------------------------------------


def _attention(given: Given) -> list[Result]:
    q, k, v = (given[f"input_tensor_{n}"] for n in "qkv")
    mask = given["attn_mask"]
    given.on_devices(q, k, v, mask)
    given.tiles(q, k, v)
    for form in (q, k, v):
        given.types(form, frozenset({BF16, *BLOCKS}))
    if given["is_causal"]:
        given.require(mask is None, "takes no mask if it is causal", "is_causal and attn_mask exclude each other")
        given.require(
            q.shape[2] == k.shape[2],
            "takes queries and keys of one length if it is causal",
            "Causal SDPA requires Q and K to have the same sequence length",
        )
    if isinstance(mask, Form):
        given.tiles(mask)
        given.types(mask, frozenset({BF16, *BLOCKS}), "the mask")
    return like(q)


def _attention_of_one(given: Given) -> list[Result]:
    q, k, v = (given[f"input_tensor_{n}"] for n in "qkv")
    mask, length = given["attn_mask"], k.shape[2]
    given.on_devices(q, k, v, mask)
    given.tiles(q, k, v)
    for form in (q, k, v):
        given.types(form, frozenset({BF16, *BLOCKS}))
    if k.shape[1] > 1:
        given.types(q, frozenset({BF16}), "queries of several key heads")
    given.require(length % 32 == 0, f"takes keys of whole tiles, not {length}", "Chunk size must be multiple of 32")
    given.require(q.shape[0] == 1, "takes queries of [1, users, heads, width]", "Q tensor batch size must be 1")
    shared = q.shape[2] % k.shape[1] == 0
    given.require(shared, f"shares {k.shape[1]} key heads among {q.shape[2]}", "GQA expects Q to have a multiple of K")
    places, row = given["cur_pos"], given["cur_pos_tensor"]
    given.on_devices(row)
    good = all(0 <= n < 2**32 for n in places)
    given.require(good, f"takes positions from 0 on, not {places}", "incompatible function arguments")
    if given["is_causal"]:
        given.require(mask is None, "takes no mask if it is causal", "attn_mask must not be provided")
        if isinstance(row, Form):
            good = row.shape[-1:] >= k.shape[:1] and prod(row.shape) == row.shape[-1] and not row.is_tile
            given.require(
                good, f"takes positions of {k.shape[0]} users in a row", "cur_pos tensor must hold all positions"
            )
        else:
            good = len(places) >= k.shape[0] and max(places) < length
            rule = f"takes cur_pos for {k.shape[0]} users among {length} keys, not {places}"
            given.require(good, rule, "cur_pos must be <= K sequence dim")
    if isinstance(mask, Form):
        given.types(mask, frozenset({BF16, *BLOCKS}), "the mask")
    return like(q)


def _heads(given: Given) -> list[Result]:
    x = given["input_tensor"]
    given.on_devices(x)
    if given.callee == "ttnn.transformer.concatenate_heads":
        given.require(
            x.shape[-1] % 32 == 0,
            f"takes heads of whole tiles, not of {x.shape[-1]} elements",
            "Head size must be a multiple of 32",
        )
    given.types(x, _MODEL)
    given.tiles(x)
    return like(x)


def _split_heads(given: Given) -> list[Result]:
    x = given["input_tensor"]
    given.on_devices(x)
    given.tiles(x)
    given.types(x, _MODEL)
    return like(x) * 3


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


def _cache(given: Given) -> list[Result]:
    cache, x = given.tensors()[:2]
    given.on_devices(cache, x)
    given.tiles(cache, x)
    for form in (x, cache):
        given.types(form, _MODEL)
    good = (x.shape[1:2], x.shape[-1:]) == (cache.shape[1:2], cache.shape[-1:])
    given.require(good, "takes heads and rows of the cache's", "Input tensor width must equal cache tensor width")
    if given.callee == "ttnn.fill_cache":
        given.require(
            x.dtype == cache.dtype, "takes a tensor of the cache's element type", "Input and cache dtypes must match"
        )
    else:
        users = cache.shape[0]
        given.require(users < 32 or not given["batch_offset"], "takes no offset of 32 users", "Batch offset must be 0")
        room = -(-x.shape[2] // 32) * 32
        given.require(users <= room, f"takes rows of {users} users at once", "must be <= input tensor height")
    return like(cache)


def _dropout(given: Given) -> list[Result]:
    x = given["input_tensor"]
    given.on_devices(x)
    given.tiles(x)
    if given["output_tensor"] is None:
        given.types(x, frozenset({BF16}))
    return like(x)


def _real_row(given: Given, x: Form) -> None:
    given.tiles(x)
    given.types(x, _MODEL)
    given.require(given["dtype"] != I8, "gives no INT8", "Failed to generate binaries")
    good = x.dtype != F32 or given["compute_kernel_config"] is not None
    given.require(good, "takes a compute_kernel_config beside FLOAT32", "FLOAT32 requires fp32_dest_acc_en=true")


def _statistics(given: Given) -> list[Result]:
    x, other = given["input_tensor"], given["residual_input_tensor"]
    given.on_devices(x, other)
    given.require(len(x.shape) == 4 and not x.is_empty, "takes four dims with elements", "index out of range. 3 not in")
    _real_row(given, x)
    if isinstance(other, Form):
        given.require(other.shape == x.shape, "takes a residual of the same shape", "Residual shape must match")
        given.tiles(other)
    return checked(given, [Result(given["dtype"] or BF16, TILE)])


def _normalized(given: Given) -> list[Result]:
    x, stats = given["input_tensor"], given["stats"]
    given.on_devices(*given.tensors())
    _real_row(given, x)
    _real_row(given, stats)
    # The library takes the last dim of three for rows.
    good = 2 < len(x.shape) == len(stats.shape) and x.shape[:-1] == stats.shape[:-1]
    good = good and (len(x.shape) > 3 or -(-x.shape[-1] // 32) == -(-stats.shape[-1] // 32))
    given.require(good, "takes sums of the tensor's rows", "Stats and input batch sizes must match")
    for name in ("weight", "bias"):
        if isinstance(given[name], Form):
            given.types(given[name], frozenset({F32, BF16}), name)
    good = stats.shape[-1] > 0 and stats.shape[-1] % 64 == 0
    given.require(
        good, "takes two tiles of sums for each device", "Number of devices must divide number of stats tiles"
    )
    return checked(given, [Result(given["dtype"] or x.dtype, TILE)])


def _turned(given: Given) -> list[Result]:
    x, cos, sin, matrix = given.tensors()[:4]
    given.on_devices(x, cos, sin, matrix)
    given.tiles(x, cos, sin, matrix)
    for form in (x, cos, sin, matrix):
        given.types(form, frozenset({BF16}))
    given.require(matrix.shape == (1, 1, 32, 32), "takes a trans_mat of [1, 1, 32, 32]", "equal to TILE_WIDTH")
    given.require(len(x.shape) == 4, "takes four dims", "index out of range. 3 not in")
    good = cos.shape == sin.shape and len(cos.shape) == 4 and cos.shape[0] == 1 and cos.shape[1] in (1, x.shape[1])
    good = good and cos.shape[2] >= x.shape[2] and cos.shape[3] == x.shape[3]
    given.require(good, "takes cos and sin for each row of a head", "Cos dims must match input dims")
    return like(x)


def _gelu_bw(given: Given) -> list[Result]:
    grad, x = given.tensors()[:2]
    given.on_devices(grad, x)
    for form in (grad, x):
        given.types(form, _MODEL)
    fast = given["variant"] == "FastLut"
    given.require(not fast, "has no variant FastLut", "GELU_BW does not support GeluVariant::FAST_LUT")
    given.require(grad.layout == x.layout, "takes tensors of one layout", "grad_output and input must have one layout")
    given.require(grad.shape == x.shape, "takes tensors of one shape", "requires the same logical shape")
    return [Result(x.dtype, x.layout, x.dtype)]


RULES: Mapping[str, Rule] = {
    "ttnn.gelu_bw": _gelu_bw,
    "ttnn.layer_norm_pre_all_gather": _statistics,
    "ttnn.rms_norm_pre_all_gather": _statistics,
    "ttnn.layer_norm_post_all_gather": _normalized,
    "ttnn.experimental.rotary_embedding_llama": _turned,
    "ttnn.matmul": _product,
    "ttnn.linear": _product,
    "ttnn.layer_norm": _norm,
    "ttnn.rms_norm": _norm,
    "ttnn.batch_norm": _batch_norm,
    "ttnn.group_norm": _group_norm,
    "ttnn.transformer.scaled_dot_product_attention": _attention,
    "ttnn.transformer.scaled_dot_product_attention_decode": _attention_of_one,
    "ttnn.transformer.concatenate_heads": _heads,
    "ttnn.experimental.nlp_concat_heads": _heads,
    "ttnn.transformer.split_query_key_value_and_split_heads": _split_heads,
    "ttnn.experimental.rotary_embedding": _rotary,
    "ttnn.fill_cache": _cache,
    "ttnn.update_cache": _cache,
    "ttnn.experimental.dropout": _dropout,
}
