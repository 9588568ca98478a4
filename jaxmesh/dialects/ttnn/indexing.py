"""Ops of TTNN that pick or place elements by index."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from jaxmesh.dialects.op import ROWS, Call
from jaxmesh.dialects.ttir import indexing as _indexing
from jaxmesh.dialects.ttir.helpers import attr, need
from jaxmesh.dialects.ttnn.op import DTYPE, LAYOUT, MEMORY, attribute, by_place, none, operand, placed, text, ttnn

_ = _indexing
"""The rows these are like must be there first."""

_IDS, _WEIGHT = operand("input_tensor", 0), operand("weight", 1)
_GENERIC = text("embeddings_type", "::ttnn::prim::EmbeddingsType::GENERIC")
ttnn(
    "embedding",
    python=[_IDS, _WEIGHT, none("padding_idx"), LAYOUT, DTYPE, MEMORY],
    cpp=[_IDS, _WEIGHT, none("padding_idx", keyword=False), placed(LAYOUT), _GENERIC, *by_place(DTYPE, MEMORY)],
)

_GRADIENT = operand("output_gradient_tensor", 2)
ttnn(
    "embedding_bw",
    like="embedding_backward",
    python=[_IDS, _WEIGHT, _GRADIENT, DTYPE, MEMORY],
    cpp=[_IDS, _WEIGHT, _GRADIENT, *by_place(DTYPE, MEMORY)],
)


def _scatter(call: Call) -> Any:
    # The real call has no word for putting a value in place of the old one: it is what is done when nothing is said.
    kind = call["scatter_reduce_type"] or "invalid"
    return ROWS["scatter"].meaning(replace(call, attributes={**call.attributes, "scatter_reduce_type": kind}))


_PLACED = (operand("input", 0), attribute("dim"), operand("index", 1), operand("src", 2))
_COMBINED = attribute("reduce", "scatter_reduce_type", form="string:ScatterReduction", keyword=True, default=None)
ttnn(
    "scatter",
    operands=3,
    attributes=[need("dim", "int", form="i32"), attr("scatter_reduce_type", "enum", form="#ttcore.reduce_type")],
    meaning=_scatter,
    python=[*_PLACED, MEMORY, _COMBINED],
    cpp=[*_PLACED, *by_place(MEMORY, _COMBINED)],
)

_CACHE, _NEW = operand("cache", 0), operand("input", 1)
_OFFSET, _BATCH = attribute("batch_offset", default=0), attribute("batch_idx", "batch_offset")
ttnn(
    "fill_cache",
    attributes=[attr("batch_offset", "int", 0, form="i32")],
    python=[_CACHE, _NEW, _BATCH],
    cpp=[_CACHE, _NEW, _BATCH],
    in_place=0,
)
ttnn(
    "update_cache",
    attributes=[attr("batch_offset", "int", 0, form="i32")],
    python=[_CACHE, _NEW, operand("update_index", 2), _OFFSET],
    cpp=[_CACHE, _NEW, operand("update_index", 2), _OFFSET],
    in_place=0,
)
