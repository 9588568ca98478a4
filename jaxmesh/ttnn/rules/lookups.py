"""Rules of lookups by indices."""

from __future__ import annotations

from collections.abc import Mapping

from jaxmesh.dialects.ttnn.forms import B4, B8, BF16, BLOCKS, EVERY, F32, NARROW, U8, U16, U32, WORDS
from jaxmesh.ttnn.rules.given import ROWS, TILE, Given, Result, Rule, like


def _embedding(given: Given) -> list[Result]:
    index, weight = given["input_tensor"], given["weight"]
    given.on_devices(index, weight)
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
    x, index = given["input"], given["index"]
    given.on_devices(x, index)
    rank = len(x.shape)
    if rank == 0:
        return like(x)
    given.require(-rank <= given["dim"] < rank, f"has no dim {given['dim']}", "normalized_dim out of range")
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
    x, index, src = given["input"], given["index"], given["src"]
    given.on_devices(x, index, src)
    rank = len(x.shape)
    good = -rank <= given["dim"] < rank
    given.require(good, f"has no dim {given['dim']}", "normalized_dim out of range")
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


RULES: Mapping[str, Rule] = {
    "ttnn.embedding": _embedding,
    "ttnn.embedding_bw": _embedding_bw,
    "ttnn.gather": _gather,
    "ttnn.scatter": _scatter,
}
