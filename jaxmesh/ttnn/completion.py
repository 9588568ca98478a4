"""Completes calls: arguments that change operands, and defaults that depend on other arguments or on the operands.

Arguments of the first kind are computed by other functions before the op.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any, cast

from jaxmesh.errors import VerifyError
from jaxmesh.jaxprs import compat
from jaxmesh.tensor.host_tensor import Tensor, in_program
from jaxmesh.tensor.mesh_tensor import MeshTensor
from jaxmesh.tensor.tensor_methods import infer_shape
from jaxmesh.ttnn.conversion import integers

Lookup = Callable[[str], Any]
"""Returns the function of a dotted name."""


def _add_residual(lookup: Lookup, values: list[Any], slots: Mapping[str, int]) -> bool:
    """Adds the residual to the tensor that is normalised."""
    x, residual = slots["input_tensor"], slots["residual_input_tensor"]
    values[x] = lookup("ttnn.add")(values[x], values[residual])
    return True


def _pad_to_shape(lookup: Lookup, values: list[Any], slots: Mapping[str, int]) -> bool:
    """Computes, from the sizes in front of the elements and of the whole, how much stands on either side."""
    x, whole, front = (values[slots[n]] for n in ("input_tensor", "output_padded_shape", "input_tensor_start"))
    values[slots["padding"]] = [(f, w - f - n) for f, w, n in zip(front, whole, x.shape, strict=True)]
    return True


def _write_into(lookup: Lookup, values: list[Any], slots: Mapping[str, int]) -> bool:
    """Assigns the first tensor to the second, the output tensor."""
    for name, other in (("input_tensor", "input_a"), ("output_tensor", "input_b")):
        values[slots[name]] = values[slots[other]]
    return True


def _know(lookup: Lookup, values: list[Any], slots: Mapping[str, int]) -> bool:
    """Moves the value of this argument to another one."""
    return True


def _take_token(lookup: Lookup, values: list[Any], slots: Mapping[str, int]) -> bool:
    """Takes one row of the caches for every row of the tensor."""
    token, length = values[slots["token_index"]], values[slots["cos_cache"]].shape[-2]
    if not 0 <= token < length:
        raise VerifyError(f"ttnn.experimental.rotary_embedding has {length} rows, and no row {token}.")
    rows = _fill_tiles(lookup, values, slots["input_tensor"])
    for slot in (slots["cos_cache"], slots["sin_cache"]):
        *front, _, width = values[slot].shape
        row = lookup("ttnn.slice")(values[slot], [*[0] * len(front), token, 0], [*front, token + 1, width])
        values[slot] = lookup("ttnn.repeat")(row, [*[1] * len(front), rows, 1])
    return True


def _fill_tiles(lookup: Lookup, values: list[Any], slot: int) -> int:
    """Fills the last tile of a tensor's rows with zeros; returns how many rows it has then."""
    *front, length, _ = values[slot].shape
    behind = -length % 32
    if behind:
        values[slot] = lookup("ttnn.pad")(values[slot], [*[(0, 0)] * len(front), (0, behind), (0, 0)], 0.0)
    return length + behind


def _take_rows(lookup: Lookup, values: list[Any], slots: Mapping[str, int]) -> bool:
    """Takes as many rows of the caches as the tensor has; the result has whole tiles."""
    shapes = [values[slots[n]].shape for n in ("input_tensor", "cos_cache", "sin_cache")]
    if any(len(shape) != 4 for shape in shapes):
        return False
    rows = _fill_tiles(lookup, values, slots["input_tensor"])
    for slot in (slots["cos_cache"], slots["sin_cache"]):
        if _fill_tiles(lookup, values, slot) > rows:
            front, width = values[slot].shape[:2], values[slot].shape[3]
            values[slot] = lookup("ttnn.slice")(values[slot], [0, 0, 0, 0], [*front, rows, width])
    return len({shape[2] for shape in shapes}) > 1 or shapes[0][2] != rows


def _flatten_norm(lookup: Lookup, values: list[Any], slots: Mapping[str, int]) -> bool:
    """Makes rows of the parameters of a norm, which may have more dims, and be longer inside of the last tile."""
    width = (1, *values[slots["input_tensor"]].shape)[-1]
    given = [slots[n] for n in ("weight", "bias") if values[slots[n]] is not None]
    other = [slot for slot in given if tuple(values[slot].shape) not in ((width,), (1, width))]
    for slot in other:
        size = prod(values[slot].shape)
        if size == width or (size > width and size == values[slot].shape[-1]):
            row = lookup("ttnn.reshape")(values[slot], [size])
            values[slot] = row if size == width else lookup("ttnn.slice")(row, [0], [width])
    return bool(other)


def _flatten_image(lookup: Lookup, values: list[Any], slots: Mapping[str, int]) -> bool:
    """Makes a row of each pixel of the images, which may also be [batch, height, width, channels]."""
    names = ("batch_size", "input_height", "input_h", "input_width", "input_w")
    x, pixels = values[slots["input_tensor"]], prod(values[slots[n]] for n in names if n in slots)
    flat = (1, 1, pixels, values[slots["channels" if "channels" in slots else "in_channels"]])
    if tuple(x.shape) == flat or prod(x.shape) != prod(flat):
        return False
    values[slots["input_tensor"]] = lookup("ttnn.reshape")(x, list(flat))
    return True


def _name_dims(lookup: Lookup, values: list[Any], slots: Mapping[str, int]) -> bool:
    """Makes [1, height, width, channels] of an image without a batch, or without channels."""
    x = values[slots["input_tensor"]]
    # Without a rule in ttnn/rules, nothing has checked the arguments before.
    sizes = list(x.shape) if isinstance(x, (MeshTensor, Tensor)) else []
    if len(sizes) in (2, 3):
        values[slots["input_tensor"]] = lookup("ttnn.reshape")(x, [1, *sizes, 1][:4])
    return len(sizes) != 4


def _round_factor(lookup: Lookup, values: list[Any], slots: Mapping[str, int]) -> bool:
    """Makes an integer of a factor that is a whole float."""
    slot = slots["scale_factor"]
    given: Any = values[slot]

    def whole(n: Any) -> Any:
        return int(n) if isinstance(n, float) and n.is_integer() else n

    values[slot] = (
        [whole(n) for n in cast("Sequence[Any]", given)] if isinstance(given, (list, tuple)) else whole(given)
    )
    return False


EXTRAS: Mapping[str, Callable[[Lookup, list[Any], Mapping[str, int]], bool]] = {
    "residual_input_tensor": _add_residual,
    "token_index": _take_token,
    "output_padded_shape": _pad_to_shape,
    "input_tensor_start": _know,
    "input_b": _write_into,
    "input_a": _know,
    "ttnn.experimental.rotary_embedding": _take_rows,
    "ttnn.global_avg_pool2d": _name_dims,
    "ttnn.upsample": _round_factor,
    **dict.fromkeys(("ttnn.layer_norm", "ttnn.rms_norm"), _flatten_norm),
    **dict.fromkeys(("ttnn.conv2d", "ttnn.conv_transpose2d", "ttnn.max_pool2d", "ttnn.avg_pool2d"), _flatten_image),
}
"""By the name of the argument or the function: replaces values in their slots; True if the call is of no known form."""


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
