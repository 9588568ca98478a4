"""Arguments that may be left out of a call, and then follow from the others."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from jaxmesh import jaxprs
from jaxmesh.errors import ArgumentTypeError, VerifyError
from jaxmesh.runtime.tensor import MeshTensor
from jaxmesh.ttnn.host import in_program
from jaxmesh.ttnn.values import integers

Arguments = Mapping[str, Any]
"""What was given, by the parameter's name."""


def _all_gather(callee: str, given: Arguments, operands: Sequence[Any]) -> Arguments:
    if given["cluster_axis"] is not None:
        return {}
    sizes: list[int] = []
    if isinstance(operands[0], MeshTensor):
        sizes = list(operands[0].mesh.shape.values())
    elif in_program():
        sizes = list(jaxprs.program_mesh(callee).values())
    wide = [axis for axis, size in enumerate(sizes) if size > 1]
    if len(wide) > 1:
        raise VerifyError(
            f"{callee} without a cluster_axis gathers along the only mesh axis of several devices, but the mesh "
            f"{sizes} has {len(wide)} of them: give cluster_axis, one of {wide}."
        )
    return {"cluster_axis": wide[0] if wide else 0}


def _reshape(callee: str, given: Arguments, operands: Sequence[Any]) -> Arguments:
    shape = integers(callee, "shape", given["shape"])
    if -1 not in shape or not hasattr(operands[0], "shape"):
        return {}
    own = tuple(operands[0].shape)
    size, known = math.prod(own), math.prod(n for n in shape if n != -1)
    if shape.count(-1) > 1 or known <= 0 or size % known:
        raise VerifyError(
            f"{callee}: one dim of the shape may be -1, where the others divide the number of elements; got "
            f"{list(shape)} for a tensor of shape {list(own)}, {size} elements."
        )
    return {"shape": tuple(size // known if n == -1 else n for n in shape)}


def _slice(callee: str, given: Arguments, operands: Sequence[Any]) -> Arguments:
    if given["slice_step"] is not None:
        return {}
    return {"slice_step": (1,) * len(integers(callee, "slice_start", given["slice_start"]))}


def _arange(callee: str, given: Arguments, operands: Sequence[Any]) -> Arguments:
    start, end = given["start"], given["end"]
    if start is None and end is None:
        raise ArgumentTypeError(
            f"{callee} needs the argument 'end'; it is called as {callee}(end) or {callee}(start, end)."
        )
    return {"start": 0, "end": start} if end is None else {"start": 0 if start is None else start}


COMPLETE: Mapping[str, Callable[[str, Arguments, Sequence[Any]], Arguments]] = {
    "all_gather": _all_gather,
    "reshape": _reshape,
    "slice_static": _slice,
    "arange": _arange,
}
"""By the name of the op: what is to be taken in the place of what was given."""
