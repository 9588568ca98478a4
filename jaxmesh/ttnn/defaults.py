"""Completes calls: defaults that depend on other arguments or on the operands."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

from jaxmesh.jaxprs import compat
from jaxmesh.tensor.host_tensor import in_program
from jaxmesh.tensor.indexing import infer_shape
from jaxmesh.tensor.mesh_tensor import MeshTensor
from jaxmesh.ttnn.argument_conversion import integers

Arguments = Mapping[str, Any]
"""The arguments of a call by the name of the parameter."""


def wide_axes(callee: str, x: Any) -> tuple[list[int], list[int]]:
    """Returns the sizes of the mesh axes of a tensor or a program, and the axes of several devices."""
    sizes: list[int] = []
    if isinstance(x, MeshTensor):
        sizes = list(x.mesh.shape.values())
    elif in_program():
        sizes = list(compat.program_mesh(callee).values())
    return sizes, [axis for axis, size in enumerate(sizes) if size > 1]


def any_axes(callee: str, given: Arguments, operands: Sequence[Any]) -> Arguments:
    """Returns the only mesh axis of several devices; of several, the op runs along one after the other."""
    if given["cluster_axis"] is not None:
        return {}
    return {"cluster_axis": next(iter(wide_axes(callee, operands[0])[1]), 0)}


def _reshape(callee: str, given: Arguments, operands: Sequence[Any]) -> Arguments:
    shape = integers(callee, "shape", given["shape"])
    old = getattr(operands[0], "shape", None)
    if -1 not in shape or old is None:
        return {}
    return {"shape": infer_shape(callee, shape, tuple(old))}


def _slice(callee: str, given: Arguments, operands: Sequence[Any]) -> Arguments:
    if given["slice_step"] is not None:
        return {}
    return {"slice_step": (1,) * len(integers(callee, "slice_start", given["slice_start"]))}


def _arange(callee: str, given: Arguments, operands: Sequence[Any]) -> Arguments:
    return {name: value for name, value in (("start", 0), ("step", 1)) if given[name] is None}


def _reduction(callee: str, given: Arguments, operands: Sequence[Any]) -> Arguments:
    return {"dim": None} if isinstance(given["dim"], (list, tuple)) and not given["dim"] else {}


def _concat(callee: str, given: Arguments, operands: Sequence[Any]) -> Arguments:
    # One tensor is the result, whatever the dim.
    return {"dim": 0} if len(operands) == 1 else {}


def _repeat_interleave(callee: str, given: Arguments, operands: Sequence[Any]) -> Arguments:
    # The real function does not look at the dim of a vector, or where it repeats nothing.
    return {"dim": 0} if len(operands[0].shape) == 1 or given["repeats"] == 1 else {}


def _missing(row: Any, operands: Sequence[Any]) -> int:
    """Returns how many dims in front of a list of one entry per dim are left out."""
    return max(0, len(operands[0].shape) - len(cast("Sequence[Any]", row))) if isinstance(row, (list, tuple)) else 0


def _pad(callee: str, given: Arguments, operands: Sequence[Any]) -> Arguments:
    missing = _missing(given["padding"], operands)
    return {"padding": [(0, 0)] * missing + list(given["padding"])} if missing else {}


def _repeat(callee: str, given: Arguments, operands: Sequence[Any]) -> Arguments:
    missing = _missing(given["repeat_dims"], operands)
    return {"repeat_dims": [1] * missing + list(given["repeat_dims"])} if missing else {}


COMPLETE: Mapping[str, Callable[[str, Arguments, Sequence[Any]], Arguments]] = {
    **dict.fromkeys(("all_gather", "all_reduce", "all_reduce_async", "reduce_scatter", "mesh_partition"), any_axes),
    "reshape": _reshape,
    "slice_static": _slice,
    "arange": _arange,
    **dict.fromkeys(("sum", "mean", "max", "min"), _reduction),
    "concat": _concat,
    "repeat_interleave": _repeat_interleave,
    "pad": _pad,
    "repeat": _repeat,
}
"""By the name of the op: a function that returns arguments to replace."""
