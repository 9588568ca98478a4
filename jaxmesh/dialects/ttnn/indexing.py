"""Ops of TTNN that read or write elements by index."""

from __future__ import annotations

from jaxmesh.dialects.op import need
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
_LOOKUP = (operand("input_tensor", 0), operand("weight", 1))
_NO_PADDING = unset("padding_idx")
_GENERIC = text("embeddings_type", "::ttnn::prim::EmbeddingsType::GENERIC")
define(
    OPS,
    "embedding",
    python=[*_LOOKUP, _NO_PADDING, LAYOUT, DTYPE, MEMORY],
    cpp=positional(*_LOOKUP, _NO_PADDING, LAYOUT, _GENERIC, DTYPE, MEMORY),
)
define(
    OPS,
    "embedding_bw",
    like="embedding_backward",
    python=[*_LOOKUP, operand("output_gradient_tensor", 2), DTYPE, MEMORY],
)


_PICKED = (operand("input", 0), attribute("dim"), operand("index", 1))
define(
    OPS,
    "gather",
    forms=[need("dim", "int")],
    python=[*_PICKED, text("sparse_grad", "False", keyword=True, default=False), MEMORY],
    cpp=[
        *_PICKED,
        text("sparse_grad", "false"),
        *positional(MEMORY, unset("optional_output_tensor"), unset("sub_core_grids")),
    ],
)

_REDUCE = attribute("reduce", "scatter_reduce_type", form="string:ScatterReduction", keyword=True, default=None)
_WRITTEN = (operand("input", 0), attribute("dim"), operand("index", 1), operand("src", 2), MEMORY)
define(
    OPS,
    "scatter",
    forms=[need("dim", "int")],
    python=[
        *_WRITTEN,
        _REDUCE,
    ],
    cpp=positional(*_WRITTEN, _REDUCE, unset("sub_core_grid")),
)

_CACHE = (operand("cache", 0), operand("input", 1))
define(OPS, "fill_cache", in_place=0, python=[*_CACHE, attribute("batch_idx", "batch_offset")])
define(
    OPS, "update_cache", in_place=0, python=[*_CACHE, operand("update_index", 2), attribute("batch_offset", default=0)]
)
