"""Ops of TTNN that read or write elements by index."""

from __future__ import annotations

from typing import Any

from jaxmesh.dialects.op import Call, attr, need
from jaxmesh.dialects.ttir.helpers import jnp, lax
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
    ttir_meaning,
    unset,
)

OPS: dict[str, TtnnOp] = {}
_INDEX = operand("input_tensor", 0)
_LOOKUP = (_INDEX, operand("weight", 1))
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
    python=[_INDEX, operand("weight_tensor", 1), operand("output_gradient_tensor", 2), DTYPE, MEMORY],
)


def _gather(call: Call) -> Any:
    """Picks elements along one dim; the index may be shorter than the tensor in the other dims."""
    x, index = call.operands
    dim: int = call["dim"] % x.ndim if x.ndim else 0
    kept = [n if d == dim else index.shape[d] for d, n in enumerate(x.shape)]
    return jnp.take_along_axis(lax.slice(x, [0] * x.ndim, kept), index.astype(jnp.int32), axis=dim)


define(
    OPS,
    "gather",
    operands=2,
    attributes=[need("dim", "int")],
    meaning=_gather,
    python=[
        operand("input", 0),
        attribute("dim"),
        operand("index", 1),
        text("sparse_grad", "False", keyword=True, default=False),
        MEMORY,
    ],
    cpp=positional(operand("input", 0), attribute("dim"), operand("index", 1), text("sparse_grad", "false"), MEMORY),
)


def _scatter(call: Call) -> Any:
    # The real call has no argument for replacing values: it replaces them by default.
    return ttir_meaning(call, scatter_reduce_type=call["scatter_reduce_type"] or "invalid")


_WRITTEN = (operand("input", 0), attribute("dim"), operand("index", 1), operand("src", 2), MEMORY)
define(
    OPS,
    "scatter",
    forms=[attr("scatter_reduce_type", "enum", form="#ttcore.reduce_type")],
    meaning=_scatter,
    python=[
        *_WRITTEN,
        attribute("reduce", "scatter_reduce_type", form="string:ScatterReduction", keyword=True, default=None),
    ],
)

define(
    OPS,
    "fill_cache",
    in_place=0,
    python=[operand("cache_tensor", 0), operand("input_tensor", 1), attribute("batch_idx", "batch_offset")],
)
_UPDATED = (operand("cache", 0), operand("input", 1), operand("update_idx", 2))
_OFFSET = attribute("batch_offset", keyword=True, default=0)
define(OPS, "update_cache", in_place=0, python=[*_UPDATED, _OFFSET], cpp=positional(*_UPDATED, _OFFSET))
