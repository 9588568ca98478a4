"""Arguments that no attribute of an op stands for, and operands in other forms than the op's: they change operands."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any, cast

from jaxmesh.errors import VerifyError
from jaxmesh.tensor.host_tensor import Tensor
from jaxmesh.tensor.mesh_tensor import MeshTensor

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
