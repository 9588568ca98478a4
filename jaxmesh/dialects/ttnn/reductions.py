"""Reductions, scans and sorts of TTNN.

Indices have their declared type if it is an integer type, else int32.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from jax.typing import DTypeLike

from jaxmesh.dialects.op import Call
from jaxmesh.dialects.ttir.helpers import jax, jnp
from jaxmesh.dialects.ttnn.forms import (
    BF16,
    F32,
    FLOAT,
    FLOATS,
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
)
from jaxmesh.dialects.ttnn.op import TtnnOps, ttir_meaning

OPS = TtnnOps()

for _name in ("sum", "mean", "max", "min"):
    OPS.define(_name, accepts=FLOAT if _name == "mean" else forms(NUMBERS), work=(1, 0))


def _over_one_dim(call: Call, dim: int | None) -> jax.Array:
    """Performs TTIR's op, whose dims are a list."""
    return ttir_meaning(call, dim_arg=None if dim is None else (dim,))


def _multiplied(op: Occurrence) -> Forms:
    whole = not op.single and (op.attributes.get("dim_arg") is None or op.rank == 1)
    return refused("On several devices it reduces dim by dim, of two dims at least") if whole and op.rank else FLOAT


OPS.define("prod", meaning=lambda call: _over_one_dim(call, call["dim_arg"]), accepts=_multiplied, work=(1, 0))


def _index_type(declared: jax.ShapeDtypeStruct) -> DTypeLike:
    return declared.dtype if jnp.issubdtype(declared.dtype, jnp.integer) else jnp.int32


def _argmax(op: Occurrence) -> Forms:
    """Returns the forms: integers in rows, along the last dim alone; a maximum of all elements also in rows."""
    dim = op.attributes.get("dim")
    last = dim is None or dim % op.rank == op.rank - 1
    layout: Layout = "either" if op.stored() in FLOATS and dim is not None else "rows"
    types = WIDE if last else FLOATS
    return Forms((Takes(types, layout),), (Gives(U32, layout="rows"),), remedy="Take it along the last dim")


OPS.define(
    "argmax",
    meaning=lambda call: _over_one_dim(call, call["dim"]).astype(_index_type(call.result)),
    accepts=_argmax,
    work=(1, 0),
)
OPS.define("cumsum", accepts=forms(WIDE, gives="asked"), work=(0, 1))
OPS.define("softmax", accepts=FLOAT, work=(2, 3))


# --- sorts -----------------------------------------------------------------------------------------------------------


def _with_indices(call: Call) -> jax.Array:
    """Returns values and indices, by the TTIR op of the same name."""
    (x,) = call.operands
    indices = jax.ShapeDtypeStruct(x.shape, _index_type(call.results[-1]))
    return ttir_meaning(replace(call, results=(indices, indices)))


def _order(types: frozenset[str]) -> Callable[[Occurrence], Forms]:
    """Returns the forms; indices have 16 bits if the input has, unless the dim is too long for them."""

    def rule(op: Occurrence) -> Forms:
        x = op.operands[0]
        assert x is not None
        dim: int = op.attributes.get("dim", -1)
        length = x.shape[dim] if x.shape else 1
        short = U16 if length < _LONG else U32
        return Forms((Takes(types, casts=_ORDERED),), (Gives(), Gives(by_type={BF16: short, F32: U32, U16: U32})))

    return rule


_LONG = 2**15
"""A dim is padded to a power of two, whose places 16 bits count."""
_ORDERED = {"UINT8": (U16, F32), "INT8": (F32,), "UINT16": (F32,)}

OPS.define("sort", meaning=_with_indices, accepts=_order(frozenset({BF16, F32, U16})), work=(0, 1))
OPS.define("topk", meaning=_with_indices, accepts=_order(FLOATS), work=(0, 1))
