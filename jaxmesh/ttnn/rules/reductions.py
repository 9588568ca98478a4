"""Rules of lookups by indices, of reductions, scans and sorts, and of normalisations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

from jaxmesh.dialects.ttnn.forms import (
    B4,
    B8,
    BF16,
    BLOCKS,
    EVERY,
    F32,
    FLOATS,
    NARROW,
    NOT_I8,
    REALS,
    U8,
    U16,
    U32,
    WORDS,
)
from jaxmesh.ttnn.rules.definitions import defined
from jaxmesh.ttnn.rules.given import ROWS, TILE, Form, Given, Result, Rule, checked, like, tiled

_SUMMED = REALS - {B4}


def _dims(given: Given, form: Form) -> list[int]:
    """Returns the dims of a reduction, counted from the front; all by default."""
    rank, dim = len(form.shape), given["dim"]
    dims: Any = dim
    row: Sequence[int] = () if dim is None else dims if isinstance(dim, (list, tuple)) else [dims]
    return [given.dim(d, max(1, rank), f"Unsupported dim {d}", " to reduce") for d in row] or list(range(rank))


def _check_padding(given: Given, x: Form) -> None:
    good = x.dtype not in NARROW or not x.is_tile
    given.require(good, f"takes no {x.dtype} in TILE layout", f"Unsupported datatype {x.dtype}")


def _reduction(given: Given) -> list[Result]:
    x = given.on_device("input_tensor")
    dims, rank = _dims(given, x), len(x.shape)
    if given.callee == "ttnn.mean":
        given.require(x.dtype not in WORDS, "takes floats", "ttnn.mean does not support integer inputs")
    if rank == 0:
        _check_padding(given, x)
        return like(x)
    if x.is_empty:
        return like(x)
    given.types(x, _SUMMED | WORDS)
    given.require(
        given.callee != "ttnn.min" or x.dtype != F32 or not given["fast_and_approximate_mode"],
        "takes no fast_and_approximate_mode of FLOAT32",
        "does not support fast_and_approximate_mode=True on Float32 input",
    )
    if given["output_layout"] is not None:
        return checked(given, [Result(x.dtype, given["output_layout"])])
    if given.callee in ("ttnn.max", "ttnn.min") or x.is_tile or x.dtype in WORDS:
        return tiled(x)
    # Rows stay rows unless the library goes over tiles: for both last dims alone, and for sums of bfloat16 over others.
    both = rank > 1 and {rank - 1, rank - 2} == set(dims)
    outer = given.callee == "ttnn.sum" and x.dtype == BF16 and any(d < rank - 2 for d in dims)
    return tiled(x) if both or outer else like(x)


def _prod(given: Given) -> list[Result]:
    x = given.on_device("input_tensor")
    rank = len(x.shape)
    _dims(given, x)
    if rank == 0:
        _check_padding(given, x)
        return like(x)
    if x.is_empty and given["dim"] is not None:
        return like(x)
    given.types(x, _SUMMED)
    if given["dim"] is None or rank == 1:
        given.require(
            prod(x.mesh) == 1,
            f"of all elements works on one device, not on {prod(x.mesh)}; reduce dim by dim",
            "Can't get a single buffer from host storage distributed over mesh",
        )
    return tiled(x)


def _argmax(given: Given) -> list[Result]:
    x, dim = given.on_device("input_tensor"), given["dim"]
    rank = len(x.shape)
    if rank == 0:
        given.require(dim in (None, 0, -1), f"has no dim {dim}", "argmax: Dimension out of range for scalar tensor")
        return [Result(U32, x.layout)]
    if x.is_empty:
        return [Result(U32, x.layout)]
    if x.is_tile:
        given.types(x, frozenset({F32, BF16}), "an operand in TILE layout")
        given.require(dim is not None, "takes a dim of a tensor in TILE layout", "TILE: dim is required")
    else:
        inner = dim in (None, -1, rank - 1)
        given.types(x, NOT_I8 - BLOCKS - {U8} if inner else frozenset({F32, BF16}), "an operand in ROW_MAJOR")
    if dim is not None:
        given.dim(dim, rank, "dim out of range")
    return [Result(U32, ROWS)]


def _scan(given: Given) -> list[Result]:
    x = given.tensors()[0]
    given.on_devices(x)
    rank = len(x.shape)
    if rank:
        given.dim(given["dim"], rank, "dim out of range")
        if not x.is_empty:
            given.tiles(x)
    dtype = given["dtype"] or x.dtype
    return checked(given, [Result(x.dtype if x.is_empty or not rank else dtype, x.layout, dtype)])


def _sort(given: Given) -> list[Result]:
    x, dim = given.on_device("input_tensor"), given["dim"]
    rank = len(x.shape)
    given.dim(dim, max(1, rank), "dim out of range")
    size = x.shape[dim] if rank else 1
    index = U32 if x.dtype in (F32, U16) else U16
    if size > 1 and not x.is_empty:
        given.types(x, frozenset({F32, BF16, U16}))
        given.require(
            x.is_tile or size > 16,
            f"takes 17 elements at least of a tensor in ROW_MAJOR, not {size}",
            "Input shape inner dim must be a power of two >= 64",
        )
    return [Result(x.dtype, x.layout), Result(index, x.layout)]


def _topk(given: Given) -> list[Result]:
    values, _ = defined(given)
    return [values, Result(U32 if values.dtype == F32 else U16, values.layout)]


def _embedding(given: Given) -> list[Result]:
    index, weight = given.on_device("input_tensor"), given.on_device("weight")
    given.types(index, frozenset({U32, BF16}), "indices")
    given.types(weight, frozenset({BF16, *BLOCKS}), "weights")
    dtype, layout = given["dtype"], given["layout"] or weight.layout
    shape = (index.shape[0], index.shape[-1], weight.shape[-1]) if len(index.shape) > 2 else None
    if layout == ROWS:
        # Whole tiles are made tiles on the way.
        tiles = weight.shape[-1] % 32 == 0 and (index.is_tile or index.shape[-1] % 32 == 0)
        given.require(
            dtype in (None, BF16) or given["layout"] is not None or not tiles,
            "gives BFLOAT16 in ROW_MAJOR",
            "dtype cannot be different in ROW_MAJOR",
        )
        return [Result(BF16, ROWS, shape=shape)]
    return [Result(dtype or BF16, TILE, shape=shape)]


def _embedding_bw(given: Given) -> list[Result]:
    index, weight, grad = (given[n] for n in ("input_tensor", "weight_tensor", "output_gradient_tensor"))
    given.on_devices(index, grad)
    given.require(len(weight.shape) > 1, "takes weights of two dims at least", "weight must have two dims")
    given.types(index, frozenset({U32, BF16}), "indices")
    given.require(not index.is_tile, "takes indices in ROW_MAJOR", "Index tensor must be ROW_MAJOR")
    given.tiles(grad)
    given.types(grad, frozenset({BF16, B8}), "gradients")
    whole = index.shape[-1] % 32 == 0
    given.require(whole, "takes rows of a multiple of 32 indices", "columns in the index tensor must be divisible by")
    dtype = given["dtype"] or grad.dtype
    given.require(dtype == grad.dtype, "gives the gradients' element type", "Output and input gradient dtypes differ")
    return [Result(dtype, TILE, shape=(1, 1, *weight.shape))]


def _gather(given: Given) -> list[Result]:
    x, index = given.on_device("input"), given.on_device("index")
    rank = len(x.shape)
    if rank == 0:
        return like(x)
    given.dim(given["dim"], rank, "normalized_dim out of range")
    given.require(rank > 1 or not x.is_tile, "takes two dims at least in TILE layout", "Can't convert shape rank")
    several = rank > 1 or min(x.shape[0], index.shape[0]) > 1
    given.require(several, "takes two elements at least of one dim", "Tensor has to be of rank 4!")
    given.types(index, frozenset({U32, U16}), "indices")
    whole = all(n % 32 == 0 for n in (*x.shape[-2:], *index.shape[-2:]))
    good = x.dtype not in NARROW or not x.is_tile or whole
    given.require(good, f"takes whole tiles of {x.dtype}", f"Unsupported datatype {x.dtype}")
    given.require(
        x.layout == index.layout, "takes a tensor and indices in one layout", "input and index layouts must match"
    )
    return like(x)


def _scatter(given: Given) -> list[Result]:
    x, index, src = (given.on_device(n) for n in ("input", "index", "src"))
    given.dim(given["dim"], len(x.shape), "normalized_dim out of range")
    given.require(
        given["reduce"] in (None, "add", "multiply"), "reduces by 'add' and 'multiply' only", "reduction not supported"
    )
    given.require(not (x.dtype == F32 and x.is_tile), "takes FLOAT32 in ROW_MAJOR only", "Scatter doesn't support")
    given.types(index, WORDS | {U16, U8}, "indices")
    given.require(
        x.dtype not in NARROW or not x.is_tile, f"takes {x.dtype} in ROW_MAJOR only", "unsupported data type for tilize"
    )
    given.types(x, EVERY - {B4})
    dtype = BF16 if x.dtype in BLOCKS else x.dtype
    good = src.dtype in (x.dtype, dtype)
    given.require(good, "takes values of the tensor's element type", "src dtype must match")
    return [Result(dtype, x.layout)]


# --- norms and embeddings of positions -------------------------------------------------------------------------------


_MODEL = frozenset({F32, BF16, B8})


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
    good = min(cos.shape[2], sin.shape[2]) >= length
    given.require(good, f"takes caches of {length} rows at least", "Cosine cache must cover the input sequence length")
    return [Result(x.dtype, TILE, F32)]


def _norm(given: Given) -> list[Result]:
    x = given["input_tensor"]
    given.on_devices(*given.tensors())
    if given.callee == "ttnn.rms_norm":
        given.tiles(x)
    if not x.is_empty:
        given.types(x, _MODEL)
    return like(x)


def _batch_norm(given: Given) -> list[Result]:
    given.on_devices(*given.tensors())
    for form in given.tensors():
        if form.shape and not form.is_empty:
            given.tiles(form)
        given.types(form, FLOATS)
    return like(given.tensors()[0])


RULES: Mapping[str, Rule] = {
    **dict.fromkeys(("ttnn.sum", "ttnn.mean", "ttnn.max", "ttnn.min"), _reduction),
    "ttnn.prod": _prod,
    "ttnn.argmax": _argmax,
    "ttnn.cumsum": _scan,
    "ttnn.cumprod": _scan,
    "ttnn.sort": _sort,
    "ttnn.topk": _topk,
    "ttnn.embedding": _embedding,
    "ttnn.embedding_bw": _embedding_bw,
    "ttnn.gather": _gather,
    "ttnn.scatter": _scatter,
    **dict.fromkeys(("ttnn.layer_norm", "ttnn.rms_norm"), _norm),
    "ttnn.batch_norm": _batch_norm,
    "ttnn.experimental.rotary_embedding": _rotary,
}
