"""Completes calls: defaults that depend on other arguments or on the operands."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from jaxmesh.errors import VerifyError
from jaxmesh.jaxprs import compat
from jaxmesh.ttnn.argument_conversion import integers
from jaxmesh.ttnn.host_tensor import in_program
from jaxmesh.ttnn.indexing import infer_shape
from jaxmesh.ttnn.mesh_tensor import MeshTensor

Arguments = Mapping[str, Any]
"""The arguments of a call by the name of the parameter."""


def _axis(callee: str, given: Arguments, operands: Sequence[Any]) -> Arguments:
    if given["cluster_axis"] is not None:
        return {}
    sizes: list[int] = []
    if isinstance(operands[0], MeshTensor):
        sizes = list(operands[0].mesh.shape.values())
    elif in_program():
        sizes = list(compat.program_mesh(callee).values())
    wide = [axis for axis, size in enumerate(sizes) if size > 1]
    if len(wide) > 1:
        raise VerifyError(
            f"{callee} without a cluster_axis runs along the only mesh axis of several devices, but the mesh "
            f"{sizes} has {len(wide)} of them: give cluster_axis, one of {wide}."
        )
    return {"cluster_axis": wide[0] if wide else 0}


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


COMPLETE: Mapping[str, Callable[[str, Arguments, Sequence[Any]], Arguments]] = {
    "all_gather": _axis,
    "all_reduce": _axis,
    "all_reduce_async": _axis,
    "reduce_scatter": _axis,
    "mesh_partition": _axis,
    "reshape": _reshape,
    "slice_static": _slice,
    "arange": _arange,
}
"""By the name of the op: a function that returns arguments to replace."""
