"""Ops of TTNN that create tensors, or move elements, also by index; on the devices every device creates the same."""

from __future__ import annotations

from dataclasses import replace

import jax

from jaxmesh.dialects.op import Call, Trait
from jaxmesh.dialects.ttnn.forms import (
    ANY,
    BF16,
    CREATED,
    FLOATS,
    MODULAR,
    MOVED,
    NARROW,
    NUMBERS,
    U16,
    U32,
    WIDE,
    Forms,
    Gives,
    Layout,
    Occurrence,
    Takes,
    forms,
    refused,
    too_long,
)
from jaxmesh.dialects.ttnn.op import TtnnOps, ttir_meaning

OPS = TtnnOps()


def _reshape(op: Occurrence) -> Forms:
    """Returns the forms: long rows in tiles, because the library keeps only parts of tiles in L1."""
    long = op.row() > 300_000
    return forms(WIDE - {U16}, casts=MODULAR) if long else forms(NUMBERS, "either", casts=MODULAR)


OPS.define("reshape", traits=[Trait.ON_HOST, Trait.RETURNS_OPERAND], accepts=_reshape)


def _permute(call: Call) -> jax.Array:
    # The API counts dims from the end, too; TTIR does not.
    rank, order = call.operands[0].ndim, call["permutation"]
    return ttir_meaning(call, permutation=tuple(d + rank if -rank <= d < 0 else d for d in order))


OPS.define("permute", meaning=_permute, traits=[Trait.RETURNS_OPERAND], accepts=MOVED)
OPS.define("transpose", accepts=MOVED)


def _narrow_in_rows(op: Occurrence) -> Forms:
    return forms(ANY, "rows" if op.stored() in NARROW else "either", casts=MODULAR)


def _repeat(op: Occurrence) -> Forms:
    """Returns the forms: elements of 8 bits in rows, of two to four dims."""
    if op.row(results=False) > 690_000:
        return too_long(op.row())
    narrow = op.stored() in NARROW
    types = WIDE if narrow and not 1 < len(op.attributes["repeat_dims"]) < 5 else ANY
    return forms(types, "rows" if narrow else "either", casts=MODULAR)


def _repeated(call: Call) -> jax.Array:
    """Repeats a tensor; extra counts in front make new dims."""
    (x,), counts = call.operands, call["repeat_dims"]
    wide = x.reshape((1,) * (len(counts) - x.ndim) + x.shape)
    return ttir_meaning(replace(call, operands=(wide,)), repeat_dimensions=counts)


OPS.define("repeat", meaning=_repeated, traits=[Trait.RETURNS_OPERAND], accepts=_repeat)
OPS.define("repeat_interleave", accepts=_narrow_in_rows)


def _concat(op: Occurrence) -> Forms:
    """Returns the forms; rows that are joined inside must fit into L1."""
    dim: int = op.attributes["dim"] % max(1, op.rank)
    whole = op.rank > 1 and all(t is not None and t.shape[dim] % 32 == 0 for t in op.operands)
    if op.row() > 1_390_000 and (dim < op.rank - 2 or whole):
        return forms(WIDE, casts=MODULAR)
    return too_long(op.row()) if op.row() > 1_390_000 else _narrow_in_rows(op)


OPS.define("concat", traits=[Trait.RETURNS_OPERAND], accepts=_concat)


def _slice(op: Occurrence) -> Forms:
    """Returns the forms; rows that are cut inside must fit into L1 twice."""
    begins, steps = op.attributes["begins"], op.attributes["step"]
    inside = op.rank > 0 and (begins[-1] % 32 or steps[-1] != 1)
    return too_long(op.row()) if inside and op.row() > 660_000 else _narrow_in_rows(op)


OPS.define("slice_static", traits=[Trait.RETURNS_OPERAND], accepts=_slice)


def _pad(op: Occurrence) -> Forms:
    """Returns the forms: tiles of two dims are padded at the end only; rows must fit into L1, up to three times."""
    if any(n < 0 for n in op.attributes["padding"]):
        return refused("ttnn.pad only adds elements; take a slice of the others before")
    in_front = any(op.attributes["padding"][::2])
    if op.row() > 600_000 and not in_front and op.rank > 1:
        return forms(WIDE, casts=MODULAR)
    if op.row() > (450_000 if in_front else 643_000):
        return too_long(op.row())
    return forms(WIDE, "rows" if in_front else "either", casts=MODULAR)


OPS.define("pad", traits=[Trait.RETURNS_OPERAND], accepts=_pad)
OPS.define(
    "assign",
    meaning=lambda call: call.operands[0],
    traits=[Trait.MOVES, Trait.DECOMPOSED],
    accepts=forms(ANY - {"INT8"}, casts=MODULAR),
)


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


for _name in ("zeros", "ones"):
    OPS.define(_name, accepts=CREATED)
OPS.define("full", accepts=CREATED)
OPS.define("empty", like="zeros", traits=[Trait.DECOMPOSED], accepts=CREATED)

OPS.define("constant", accepts=CREATED)

OPS.define(
    "arange", meaning=lambda call: ttir_meaning(call, arange_dimension=0), accepts=forms(WIDE, "either", gives="asked")
)
OPS.define("rand", accepts=forms(FLOATS, "either", gives="asked"))
