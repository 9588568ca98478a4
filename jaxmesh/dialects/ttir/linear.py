"""Products: matmul, linear, dot_general. They accumulate in the declared result type."""

from __future__ import annotations

from typing import Any

from jaxmesh.dialects.op import Call, OpDef, Trait, attr, define, describe, need
from jaxmesh.dialects.ttir.helpers import (
    broadcast_shape,
    check_dims,
    check_length,
    jax,
    jnp,
    lax,
    optional_operands,
    require,
    vary_together,
)

OPS: dict[str, OpDef] = {}

_TRANSPOSES = (attr("transpose_a", "bool", False), attr("transpose_b", "bool", False))


def _result_dtype(call: Call) -> Any:
    return jax.dtypes.canonicalize_dtype(call.result.dtype)


def _transpose(x: Any, transpose: bool) -> Any:
    return jnp.swapaxes(x, -1, -2) if transpose and x.ndim > 1 else x


def _product(call: Call, a: Any, b: Any) -> Any:
    require(call, min(a.ndim, b.ndim) > 0, f"a scalar has no dim to contract, got {describe(a)} and {describe(b)}")
    a, b = vary_together(_transpose(a, call["transpose_a"]), _transpose(b, call["transpose_b"]))
    inner = b.shape[-2] if b.ndim > 1 else b.shape[0]
    rule = f"the contracted dims differ: {a.shape[-1]} of {describe(a)} and {inner} of {describe(b)}"
    require(call, a.shape[-1] == inner, rule)
    broadcast_shape(call, a.shape[:-2], b.shape[:-2])
    if a.ndim == b.ndim > 1 and a.shape[:-2] == b.shape[:-2]:
        # Directly: jnp.matmul removes batch dims of size 1 and restores them.
        batch = tuple(range(a.ndim - 2))
        numbers = ((a.ndim - 1,), (b.ndim - 2,)), (batch, batch)
        return lax.dot_general(a, b, numbers, preferred_element_type=_result_dtype(call))
    return jnp.matmul(a, b, preferred_element_type=_result_dtype(call))


@define(OPS, "matmul", 2, *_TRANSPOSES)
def _matmul(call: Call) -> Any:
    out = _product(call, *call.operands)
    # Upstream's verifier wants one dim for the product of two vectors.
    return lax.reshape(out, (1,)) if out.ndim == 0 and call.result.shape == (1,) else out


@define(OPS, "linear", (2, 3), *_TRANSPOSES)
def _linear(call: Call) -> Any:
    a, b, bias = optional_operands(call, ("a", "b", "bias"))
    out = _product(call, a, b)
    if bias is None:
        return out
    broadcast_shape(call, out.shape, bias.shape)
    return jnp.add(*vary_together(out, bias))


@define(
    OPS,
    "dot_general",
    2,
    need("batch_dims_lhs", "ints", form="i64s"),
    need("contract_dims_lhs", "ints", form="i64s"),
    need("batch_dims_rhs", "ints", form="i64s"),
    need("contract_dims_rhs", "ints", form="i64s"),
    traits=[Trait.DECOMPOSED_FOR_TTNN],
)
def _dot_general(call: Call) -> Any:
    a, b = vary_together(*call.operands)
    dims = {
        f"{kind}_dims_{side}": check_dims(call, call[f"{kind}_dims_{side}"], x.ndim, f"{kind}_dims_{side}")
        for kind in ("contract", "batch")
        for side, x in (("lhs", a), ("rhs", b))
    }
    for kind in ("contract", "batch"):
        left, right = dims[f"{kind}_dims_lhs"], dims[f"{kind}_dims_rhs"]
        check_length(call, f"{kind}_dims_rhs", right, len(left), f"as {kind}_dims_lhs = {list(left)}")
        sizes = [a.shape[d] for d in left], [b.shape[d] for d in right]
        require(call, sizes[0] == sizes[1], f"the {kind} dims differ in size: {sizes[0]} and {sizes[1]}")
    for side in ("lhs", "rhs"):
        both = set(dims[f"contract_dims_{side}"]) & set(dims[f"batch_dims_{side}"])
        require(call, not both, f"dims {sorted(both)} of {side} are batch and contract dims at once")
    numbers = tuple(tuple(dims[f"{kind}_dims_{side}"] for side in ("lhs", "rhs")) for kind in ("contract", "batch"))
    return lax.dot_general(a, b, numbers, preferred_element_type=_result_dtype(call))
