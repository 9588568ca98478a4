"""Reductions, scans and sorts of TTNN.

Indices are int32 here, whatever the program asks for: a typecast converts them.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from jaxmesh.dialects.op import Call, attr
from jaxmesh.dialects.ttir.helpers import jax, jnp
from jaxmesh.dialects.ttnn.op import (
    COMPUTE,
    DTYPE,
    MEMORY,
    TtnnOp,
    attribute,
    define,
    operand,
    positional,
    ttir_meaning,
    unset,
)

OPS: dict[str, TtnnOp] = {}
_X = operand("input_tensor")
_DIMS = attribute("dim", "dim_arg", default=None)
_DIM = attribute("dim", default=-1)
_KEEP = attribute("keepdim", "keep_dim", default=False)

for _name in ("sum", "mean", "max", "min"):
    define(
        OPS,
        _name,
        python=[_X, _DIMS, _KEEP, MEMORY, COMPUTE],
        cpp=positional(_X, replace(_DIMS, form="int32s"), _KEEP, MEMORY, COMPUTE),
    )


def _over_one_dim(call: Call, dim: int | None) -> Any:
    """Performs TTIR's op, whose dims are a list."""
    return ttir_meaning(call, dim_arg=None if dim is None else (dim,))


define(
    OPS,
    "prod",
    forms=[attr("dim_arg", "int", form="i64")],
    meaning=lambda call: _over_one_dim(call, call["dim_arg"]),
    python=[_X, _DIMS, _KEEP, MEMORY],
)
_REDUCED = (_X, attribute("dim", default=None), _KEEP)
define(
    OPS,
    "argmax",
    attributes=[attr("dim", "int", form="i32"), attr("keep_dim", "bool", False)],
    meaning=lambda call: _over_one_dim(call, call["dim"]).astype(jnp.int32),
    python=[*_REDUCED, unset("sub_core_grids"), MEMORY],
)
define(OPS, "cumsum", python=[operand("input"), attribute("dim"), DTYPE, MEMORY])
define(
    OPS,
    "softmax",
    python=[
        _X,
        attribute("dim", "dimension"),
        MEMORY,
        COMPUTE,
        attribute("numeric_stable", "numericStable", keyword=True, default=False),
    ],
)


# --- sorts -----------------------------------------------------------------------------------------------------------


def _with_indices(call: Call) -> Any:
    """Returns values and int32 indices, by the TTIR op of the same name."""
    (x,) = call.operands
    indices = jax.ShapeDtypeStruct(x.shape, jnp.int32)
    return ttir_meaning(replace(call, results=(indices, indices)))


define(
    OPS,
    "sort",
    forms=[attr("dim", "int", -1, form="si8")],
    meaning=_with_indices,
    python=[_X, _DIM, attribute("descending", default=False), attribute("stable", default=False), MEMORY],
)
define(
    OPS,
    "topk",
    meaning=_with_indices,
    python=[_X, attribute("k"), _DIM, attribute("largest", default=True), attribute("sorted", default=True), MEMORY],
)
