"""Reductions, scans and orders of TTNN.

Indices are int32 here, whatever a program wants of them: a typecast makes them another type.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from jaxmesh.dialects.op import ROWS, Call
from jaxmesh.dialects.ttir import reductions as _reductions
from jaxmesh.dialects.ttir.helpers import attr, jax, jnp, need
from jaxmesh.dialects.ttnn.op import COMPUTE, DTYPE, MEMORY, Param, attribute, by_place, operand, placed, text, ttnn

_ = _reductions
"""The rows these are like must be there first."""

_X = operand("input_tensor")
_DIMS = attribute("dim", "dim_arg", default=None)
_KEEP = attribute("keepdim", "keep_dim", default=False)


for _name in ("sum", "mean", "max", "min"):
    ttnn(
        _name,
        python=[_X, _DIMS, _KEEP, MEMORY, COMPUTE],
        cpp=[_X, replace(_DIMS, form="int32s"), _KEEP, *by_place(MEMORY, COMPUTE)],
    )


def _one_dim(call: Call) -> Call:
    """The call as the row of TTIR has it, whose dims are a list."""
    dim = call["dim_arg"]
    dims = None if dim is None else (dim,)
    return replace(call, attributes={**call.attributes, "dim_arg": dims})


def _prod(call: Call) -> Any:
    return ROWS["prod"].meaning(_one_dim(call))


ttnn(
    "prod",
    operands=1,
    attributes=[attr("dim_arg", "int", form="i64"), need("keep_dim", "bool")],
    meaning=_prod,
    python=[_X, _DIMS, _KEEP, MEMORY],
    cpp=[_X, _DIMS, _KEEP, placed(MEMORY)],
)


def _argmax(call: Call) -> Any:
    dim = call["dim"]
    named = {**call.attributes, "dim_arg": None if dim is None else (dim,)}
    return ROWS["argmax"].meaning(replace(call, attributes=named)).astype(jnp.int32)


_CORES = Param("use_multicore", "text", "False", keyword=True, default=False)
ttnn(
    "argmax",
    operands=1,
    attributes=[attr("dim", "int", form="i32"), attr("keep_dim", "bool", False)],
    meaning=_argmax,
    python=[_X, attribute("dim", default=None), _KEEP, _CORES, MEMORY],
    cpp=[_X, attribute("dim", default=None), _KEEP, text("use_multicore", "false"), placed(MEMORY)],
)

_DIM = attribute("dim")
ttnn("cumsum", python=[_X, _DIM, DTYPE, MEMORY], cpp=[_X, _DIM, *by_place(DTYPE, MEMORY)])

_STABLE = attribute("numeric_stable", "numericStable", keyword=True, default=False)
_DIMENSION = attribute("dim", "dimension")
ttnn(
    "softmax",
    python=[_X, _DIMENSION, MEMORY, COMPUTE, _STABLE],
    cpp=[_X, _DIMENSION, *by_place(MEMORY, COMPUTE, _STABLE)],
)


# --- orders ----------------------------------------------------------------------------------------------------------


def _with_indices(call: Call) -> Any:
    """Values and int32 indices, by the row of TTIR of the same name."""
    (x,) = call.operands
    indices = jax.ShapeDtypeStruct(x.shape, jnp.int32)
    return ROWS[call.row.name].meaning(replace(call, results=(indices, indices)))


_ORDER = (attribute("dim", default=-1), attribute("descending", default=False), attribute("stable", default=False))
ttnn(
    "sort",
    operands=1,
    attributes=[attr("dim", "int", -1, form="si8"), attr("descending", "bool", False), attr("stable", "bool", False)],
    results=(2, 2),
    meaning=_with_indices,
    python=[_X, *_ORDER, MEMORY],
    cpp=[_X, *_ORDER, placed(MEMORY)],
)

_BEST = (
    attribute("k"),
    attribute("dim", default=-1),
    attribute("largest", default=True),
    attribute("sorted", default=True),
)
ttnn(
    "topk",
    operands=1,
    attributes=[
        need("k", "int", form="i32"),
        attr("dim", "int", -1, form="i32"),
        attr("largest", "bool", True),
        attr("sorted", "bool", False),
    ],
    results=(2, 2),
    meaning=_with_indices,
    python=[_X, *_BEST, MEMORY],
    cpp=[_X, *_BEST, placed(MEMORY)],
)
