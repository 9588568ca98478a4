"""Ops of TTNN that read or write elements by index."""

from __future__ import annotations

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
from jaxmesh.dialects.ttnn.op import TtnnOps

OPS = TtnnOps()
_IDS = Takes(frozenset({U32}), "rows", dict.fromkeys(("INT32", "UINT16", "UINT8", BF16, "FLOAT32"), (U32,)))
OPS.define(
    "embedding",
    python="(input_tensor:%0, weight:%1, padding_idx=none, layout=@, dtype=@, memory_config=@)",
    cpp="(%0, %1, none, @layout, `::ttnn::prim::EmbeddingsType::GENERIC`, @dtype, @memory_config)",
    accepts=Forms((_IDS, Takes(frozenset({BF16}), "rows")), (Gives(operand=1, layout="tile"),), alike=False),
)


def _embedding_bw(op: Occurrence) -> Forms:
    first = op.operands[0]
    if first is None or first.shape[-1:] == () or first.shape[-1] % 32:
        return refused("It takes rows of a multiple of 32 indices; pad them, and the gradients with zeros")
    return Forms((_IDS, Takes(frozenset({BF16}))), (Gives(operand=1, layout="tile"),), alike=False)


OPS.define(
    "embedding_bw",
    python="(input_tensor:%0, weight_tensor:%1, output_gradient_tensor:%2, dtype=@, memory_config=@)",
    like="embedding_backward",
    accepts=_embedding_bw,
)


def _gather(op: Occurrence) -> Forms:
    rows = op.rank < 2 or op.stored() in NARROW
    if rows and op.row() > 600_000:
        return too_long(op.row())
    layout: Layout = "rows" if rows else "tile" if op.row() > 300_000 else "either"
    index = Takes(frozenset({U32, U16}), layout, {"UINT8": (U32,)})
    return Forms((Takes(ANY, layout, MODULAR), index), alike=False)


OPS.define(
    "gather",
    python="(input:%0, dim, index:%1, sparse_grad=`False`, memory_config=@)",
    cpp="(%0, dim, %1, `false`, @memory_config, none, none)",
    respelled="dim: si32",
    accepts=_gather,
)


def _scatter(op: Occurrence) -> Forms:
    """Returns the forms of a scatter: data in rows, and `reduce` is `add` or `multiply`."""
    combines = op.attributes.get("scatter_reduce_type") in ("max", "min")
    data = Takes(frozenset() if combines else ANY, "rows", {} if combines else MODULAR)
    remedy = "reduce is 'add' or 'multiply' there; take maxima and minima before the scatter"
    return Forms((data, Takes(frozenset({U32, "INT32", U16}), "rows"), data), alike=False, remedy=remedy)


OPS.define(
    "scatter",
    python="(input=%0, dim=, index=%1, src=%2, memory_config=@, reduce=scatter_reduce_type|string:ScatterReduction)",
    cpp="(%0, dim, %1, %2, @memory_config, scatter_reduce_type|string:ScatterReduction, none)",
    respelled="dim: si32",
    accepts=_scatter,
)

OPS.define(
    "fill_cache",
    python="(cache_tensor:%0, input_tensor:%1, batch_idx:batch_offset)",
    accepts=forms(FLOATS),
    work=(0, 0),
)
_POSITION = "The position is a number of the call there, not a tensor; use dynamic_update_slice"
OPS.define(
    "update_cache",
    python="(cache:%0, input:%1, update_idx:%2, batch_offset=)",
    accepts=Forms((Takes(FLOATS), Takes(FLOATS), Takes(frozenset())), alike=False, remedy=_POSITION),
    work=(0, 0),
)
