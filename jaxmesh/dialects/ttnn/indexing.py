"""Ops of TTNN that read or write elements by index."""

from __future__ import annotations

from dataclasses import replace

from jaxmesh.dialects.op import need
from jaxmesh.dialects.ttnn.forms import (
    ANY,
    BF16,
    FLOATS,
    MODULAR,
    NARROW,
    U16,
    U32,
    Forms,
    Gives,
    Layout,
    Occurrence,
    Takes,
    forms,
    refused,
    too_long,
)
from jaxmesh.dialects.ttnn.op import (
    DTYPE,
    LAYOUT,
    MEMORY,
    TtnnOp,
    attribute,
    define,
    operand,
    positional,
    text,
    unset,
)

OPS: dict[str, TtnnOp] = {}
_INDEX = operand("input_tensor", 0)
_LOOKUP = (_INDEX, operand("weight", 1))
_IDS = Takes(frozenset({U32}), "rows", dict.fromkeys(("INT32", "UINT16", "UINT8"), (U32,)))
_NO_PADDING = unset("padding_idx")
_GENERIC = text("embeddings_type", "::ttnn::prim::EmbeddingsType::GENERIC")
define(
    OPS,
    "embedding",
    python=[*_LOOKUP, _NO_PADDING, LAYOUT, DTYPE, MEMORY],
    cpp=positional(*_LOOKUP, _NO_PADDING, LAYOUT, _GENERIC, DTYPE, MEMORY),
    accepts=Forms((_IDS, Takes(frozenset({BF16}), "rows")), (Gives(operand=1, layout="tile"),), alike=False),
)


def _embedding_bw(op: Occurrence) -> Forms:
    first = op.operands[0]
    if first is None or first.shape[-1:] == () or first.shape[-1] % 32:
        return refused("It takes rows of a multiple of 32 indices; pad them, and the gradients with zeros")
    return Forms((_IDS, Takes(frozenset({BF16}))), (Gives(operand=1, layout="tile"),), alike=False)


define(
    OPS,
    "embedding_bw",
    like="embedding_backward",
    python=[_INDEX, operand("weight_tensor", 1), operand("output_gradient_tensor", 2), DTYPE, MEMORY],
    accepts=_embedding_bw,
)


def _gather(op: Occurrence) -> Forms:
    rows = op.rank < 2 or op.stored() in NARROW
    if rows and op.row() > 600_000:
        return too_long(op.row())
    layout: Layout = "rows" if rows else "tile" if op.row() > 300_000 else "either"
    index = Takes(frozenset({U32, U16}), layout, {"UINT8": (U32,)})
    return Forms((Takes(ANY, layout, MODULAR), index), alike=False)


_PICKED = (operand("input", 0), attribute("dim"), operand("index", 1))
define(
    OPS,
    "gather",
    respelled=[need("dim", "int")],
    python=[*_PICKED, text("sparse_grad", "False", keyword=True, default=False), MEMORY],
    cpp=[
        *_PICKED,
        text("sparse_grad", "false"),
        *positional(MEMORY, unset("optional_output_tensor"), unset("sub_core_grids")),
    ],
    accepts=_gather,
)


def _scatter(op: Occurrence) -> Forms:
    """Returns the forms of a scatter: data in rows, and `reduce` is `add` or `multiply`."""
    combines = op.attributes.get("scatter_reduce_type") in ("max", "min")
    data = Takes(frozenset() if combines else ANY, "rows", {} if combines else MODULAR)
    remedy = "reduce is 'add' or 'multiply' there; take maxima and minima before the scatter"
    return Forms((data, Takes(frozenset({U32, "INT32", U16}), "rows"), data), alike=False, remedy=remedy)


_REDUCE = attribute("reduce", "scatter_reduce_type", form="string:ScatterReduction", keyword=True, default=None)
_WRITTEN = (operand("input", 0), attribute("dim"), operand("index", 1), operand("src", 2), MEMORY)
define(
    OPS,
    "scatter",
    respelled=[need("dim", "int")],
    python=[*(replace(p, keyword=True) for p in _WRITTEN), _REDUCE],
    cpp=positional(*_WRITTEN, _REDUCE, unset("sub_core_grid")),
    accepts=_scatter,
)

define(
    OPS,
    "fill_cache",
    python=[operand("cache_tensor", 0), operand("input_tensor", 1), attribute("batch_idx", "batch_offset")],
    accepts=forms(FLOATS),
    work=(0, 0),
)
_POSITION = "The position is a number of the call there, not a tensor; use dynamic_update_slice"
_UPDATED = (operand("cache", 0), operand("input", 1), operand("update_idx", 2))
_OFFSET = attribute("batch_offset", keyword=True, default=0)
define(
    OPS,
    "update_cache",
    python=[*_UPDATED, _OFFSET],
    cpp=positional(*_UPDATED, _OFFSET),
    accepts=Forms((Takes(FLOATS), Takes(FLOATS), Takes(frozenset())), alike=False, remedy=_POSITION),
    work=(0, 0),
)
