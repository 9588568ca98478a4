"""Completes calls: arguments that other functions compute before the op, and defaults that depend on other ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any, cast

from jaxmesh.jaxprs import compat
from jaxmesh.tensor.host_tensor import in_program
from jaxmesh.tensor.mesh_tensor import MeshTensor
from jaxmesh.tensor.tensor_methods import infer_shape
from jaxmesh.ttnn.conversion import integers

Lookup = Callable[[str], Any]
"""Returns the function of a dotted name."""
Arguments = Mapping[str, Any]
"""The arguments of a call by the name of the parameter."""


# --- arguments that other functions compute ---------------------------------------------------------------------------


def _fill_tiles(lookup: Lookup, x: Any) -> Any:
    """Fills the last tile of a tensor's rows with zeros."""
    *front, length, _ = x.shape
    behind = -length % 32
    return lookup("ttnn.pad")(x, [*[(0, 0)] * len(front), (0, behind), (0, 0)], 0.0) if behind else x


def _take_rows(lookup: Lookup, given: Arguments) -> Arguments:
    """Takes as many rows of the caches as the tensor has; the result has whole tiles."""
    names = ("input_tensor", "cos_cache", "sin_cache")
    if any(len(given[n].shape) != 4 for n in names):
        return {}
    filled = {n: _fill_tiles(lookup, given[n]) for n in names}
    rows = filled["input_tensor"].shape[2]
    for name, x in filled.items():
        if x.shape[2] > rows and given.get("token_index") is None:
            filled[name] = lookup("ttnn.slice")(x, [0, 0, 0, 0], [*x.shape[:2], rows, x.shape[3]])
    return {n: x for n, x in filled.items() if x is not given[n]}


def _flatten_norm(lookup: Lookup, given: Arguments) -> Arguments:
    """Makes rows of the parameters of a norm, which may have more dims, and be longer inside of the last tile."""
    width = (1, *given["input_tensor"].shape)[-1]
    changed: dict[str, object] = {}
    for name in ("weight", "bias"):
        shape = (width,) if given[name] is None else tuple(given[name].shape)
        size = prod(shape)
        if shape not in ((width,), (1, width)) and (size == width or (size > width and size == shape[-1])):
            row = lookup("ttnn.reshape")(given[name], [size])
            changed[name] = row if size == width else lookup("ttnn.slice")(row, [0], [width])
    return changed


def _flatten_image(lookup: Lookup, given: Arguments) -> Arguments:
    """Makes a row of each pixel of the images, which may also be [batch, height, width, channels]."""
    names = ("batch_size", "input_height", "input_h", "input_width", "input_w")
    x, pixels = given["input_tensor"], prod(given[n] for n in names if n in given)
    flat = (1, 1, pixels, given["channels" if "channels" in given else "in_channels"])
    if tuple(x.shape) == flat or prod(x.shape) != prod(flat):
        return {}
    return {"input_tensor": lookup("ttnn.reshape")(x, list(flat))}


# --- defaults ---------------------------------------------------------------------------------------------------------


def _reshape(lookup: Lookup, given: Arguments) -> Arguments:
    shape = integers("ttnn.reshape", "shape", given["shape"])
    return {"shape": infer_shape("ttnn.reshape", shape, tuple(given["input_tensor"].shape))} if -1 in shape else {}


def _slice(lookup: Lookup, given: Arguments) -> Arguments:
    if given["slice_step"] is not None:
        return {}
    return {"slice_step": (1,) * len(integers("ttnn.slice", "slice_start", given["slice_start"]))}


def _arange(lookup: Lookup, given: Arguments) -> Arguments:
    return {name: value for name, value in (("start", 0), ("step", 1)) if given[name] is None}


def _reduction(lookup: Lookup, given: Arguments) -> Arguments:
    return {"dim": None} if isinstance(given["dim"], (list, tuple)) and not given["dim"] else {}


def _concat(lookup: Lookup, given: Arguments) -> Arguments:
    # One tensor is the result, whatever the dim.
    return {"dim": 0} if len(given["tensors"]) == 1 else {}


def _repeat_interleave(lookup: Lookup, given: Arguments) -> Arguments:
    # The real function does not look at the dim of a vector, or where it repeats nothing.
    return {"dim": 0} if len(given["input_tensor"].shape) == 1 or given["repeats"] == 1 else {}


def _for_each_dim(name: str, entry: object) -> Callable[[Lookup, Arguments], Arguments]:
    """Returns the completion of a list of one entry per dim, whose first entries may be left out."""

    def complete(lookup: Lookup, given: Arguments) -> Arguments:
        row = cast("Sequence[Any]", given[name])
        missing = len(given["input_tensor"].shape) - len(row)
        return {name: [entry] * missing + list(row)} if missing > 0 else {}

    return complete


COMPLETE: Mapping[str, Callable[[Lookup, Arguments], Arguments]] = {
    "ttnn.experimental.rotary_embedding": _take_rows,
    **dict.fromkeys(("ttnn.layer_norm", "ttnn.rms_norm"), _flatten_norm),
    **dict.fromkeys(("ttnn.conv2d", "ttnn.conv_transpose2d", "ttnn.max_pool2d", "ttnn.avg_pool2d"), _flatten_image),
    "ttnn.reshape": _reshape,
    "ttnn.slice": _slice,
    "ttnn.arange": _arange,
    **dict.fromkeys(("ttnn.sum", "ttnn.mean", "ttnn.max", "ttnn.min"), _reduction),
    "ttnn.concat": _concat,
    "ttnn.repeat_interleave": _repeat_interleave,
    "ttnn.pad": _for_each_dim("padding", (0, 0)),
    "ttnn.repeat": _for_each_dim("repeat_dims", 1),
}
"""By the name of an argument that is not one of the op, or of a function: returns arguments to replace."""


def wide_axes(callee: str, x: object) -> list[int]:
    """Returns the mesh axes of several devices, of a tensor or of a program."""
    sizes: list[int] = []
    if isinstance(x, MeshTensor):
        sizes = list(x.mesh.shape.values())
    elif in_program():
        sizes = list(compat.program_mesh(callee).values())
    return [axis for axis, size in enumerate(sizes) if size > 1]
