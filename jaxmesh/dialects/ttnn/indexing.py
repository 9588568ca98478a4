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
    accepts=Forms((_IDS, Takes(frozenset({BF16}), "rows")), (Gives(operand=1, layout="tile"),), alike=False),
)


def _embedding_bw(op: Occurrence) -> Forms:
    first = op.operands[0]
    if first is None or first.shape[-1:] == () or first.shape[-1] % 32:
        return refused("It takes rows of a multiple of 32 indices; pad them, and the gradients with zeros")
    return Forms((_IDS, Takes(frozenset({BF16}))), (Gives(operand=1, layout="tile"),), alike=False)


OPS.define("embedding_bw", like="embedding_backward", accepts=_embedding_bw)


def _gather(op: Occurrence) -> Forms:
    rows = op.rank < 2 or op.stored() in NARROW
    if rows and op.row() > 600_000:
        return too_long(op.row())
    layout: Layout = "rows" if rows else "tile" if op.row() > 300_000 else "either"
    index = Takes(frozenset({U32, U16}), layout, {"UINT8": (U32,)})
    return Forms((Takes(ANY, layout, MODULAR), index), alike=False)


OPS.define("gather", accepts=_gather)


def _scatter(op: Occurrence) -> Forms:
    """Returns the forms of a scatter: data in rows, and `reduce` is `add` or `multiply`."""
    combines = op.attributes.get("scatter_reduce_type") in ("max", "min")
    data = Takes(frozenset() if combines else ANY, "rows", {} if combines else MODULAR)
    remedy = "reduce is 'add' or 'multiply' there; take maxima and minima before the scatter"
    return Forms((data, Takes(frozenset({U32, "INT32", U16}), "rows"), data), alike=False, remedy=remedy)


OPS.define("scatter", accepts=_scatter)

OPS.define("fill_cache", accepts=forms(FLOATS), work=(0, 0))
_POSITION = "The position is a number of the call there, not a tensor; use dynamic_update_slice"
OPS.define(
    "update_cache",
    accepts=Forms((Takes(FLOATS), Takes(FLOATS), Takes(frozenset())), alike=False, remedy=_POSITION),
    work=(0, 0),
)
