"""The ops of TTNN about memory, as a text names them: transfers, changes of layout, and the end of a tensor."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax

from jaxmesh.dialects.definitions import DEFINITIONS
from jaxmesh.dialects.op import Trait
from jaxmesh.dialects.program import Op
from jaxmesh.dialects.ttnn.transfers import aggregate_tensor_p, distribute_tensor_p
from jaxmesh.errors import VerifyError


def check_declared(want: jax.ShapeDtypeStruct, out: Any) -> Any:
    """Checks that a result is of the type that the text declares."""
    if out.shape != want.shape or out.dtype != want.dtype:
        raise VerifyError(
            f"the result is {out.dtype}{list(out.shape)}, but the declared type is {want.dtype}{list(want.shape)}."
        )
    return out


def _transfer(op: Op, types: Sequence[jax.ShapeDtypeStruct], *operands: Any) -> list[Any]:
    x, want = _one(operands, types)
    distributes = op.name == "ttnn.distribute_tensor"
    name, primitive = ("mapper_config", distribute_tensor_p) if distributes else ("composer_config", aggregate_tensor_p)
    if name not in op.attributes:
        raise VerifyError(f"needs the attribute {name!r}; it is missing.")
    return [check_declared(want, primitive.bind(x, **{name: op.attributes[name]}))]


def _layout(op: Op, types: Sequence[jax.ShapeDtypeStruct], *operands: Any) -> list[Any]:
    x, want = _one(operands, types)
    return [check_declared(want, x if x.dtype == want.dtype else x.astype(want.dtype))]


def _deallocate(op: Op, types: Sequence[jax.ShapeDtypeStruct], *operands: Any) -> list[Any]:
    return []


def _one(operands: Sequence[Any], types: Sequence[jax.ShapeDtypeStruct]) -> tuple[Any, jax.ShapeDtypeStruct]:
    if len(operands) != 1 or len(types) != 1:
        raise VerifyError(f"takes 1 tensor and gives 1, got {len(operands)} and {len(types)}.")
    return operands[0], types[0]


MEMORY: dict[str, Callable[..., list[Any]]] = {
    "ttnn.distribute_tensor": _transfer,
    "ttnn.aggregate_tensor": _transfer,
    "ttnn.deallocate": _deallocate,
    **{name: _layout for name, d in DEFINITIONS.items() if Trait.LAYOUT in d.traits},
}
"""The results of each op, from the op, the types of its results and its tensors."""
