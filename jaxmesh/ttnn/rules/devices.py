"""Rules of communication, pooling, and of moving between host and devices."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

from jaxmesh.dialects.ttnn.forms import (
    B4,
    BF16,
    BLOCKS,
    BYTES,
    F32,
    I8,
    NARROW,
    REALS,
    U8,
    U16,
    U32,
    WORDS,
)
from jaxmesh.ttnn.rules.definitions import defined
from jaxmesh.ttnn.rules.given import ROWS, TILE, Form, Given, Result, Rule, checked, like, tiled


def _axis_size(given: Given, x: Form) -> int:
    axis: int | None = given["cluster_axis"]
    given.require(
        len(x.mesh) == 2, f"runs on a mesh of two axes, such as [1, {max(x.mesh)}]", "expected a 2D mesh device"
    )
    if axis is None:
        return prod(x.mesh)
    given.require(-2 <= axis < 2, f"has no mesh axis {axis} on {list(x.mesh)}", "cluster_axis out of range")
    return x.mesh[axis]


def _dim(given: Given, x: Form) -> int:
    rank, dim = len(x.shape), given["dim"]
    return given.dim(dim, rank, f"Invalid dim {dim} for {rank}D input tensor")


def _all_gather(given: Given) -> list[Result]:
    x = given.on_device("input_tensor")
    dim = _dim(given, x)
    _axis_size(given, x)
    given.require(not x.is_empty, "takes a tensor with elements", "output_chunks_per_stripe must be > 0")
    inside = x.is_tile and dim >= len(x.shape) - 2 and x.shape[dim] % 32 != 0
    # Joined inside of tiles or of unaligned rows, a tensor goes another path.
    unaligned = not x.is_tile and dim == len(x.shape) - 1 and x.shape[dim] * BYTES[x.dtype] % 32 != 0
    given.require(
        given["cluster_axis"] is not None or 1 in x.mesh or inside or unaligned,
        f"without a cluster_axis runs along the only mesh axis of several devices, but the mesh {list(x.mesh)} has "
        "two of them: give cluster_axis",
        "1D fabric on a 2D mesh_device requires cluster_axis to be set",
    )
    given.require(not inside or x.dtype not in NARROW, f"does not tilize {x.dtype}", "unsupported data type for tilize")
    return like(x)


def _mesh_partition(given: Given) -> list[Result]:
    x = given.on_device("input_tensor")
    dim, count = _dim(given, x), _axis_size(given, x)
    size = x.shape[dim]
    given.require(size > 0, "cuts a dim with elements", "Slice start must be less than input tensor shape")
    given.require(
        size % count == 0, f"cuts a dim of {size} into {count} equal parts", "input_shape[dim] % cluster_axis_size == 0"
    )
    inside = x.is_tile and dim >= len(x.shape) - 2 and (size // count % 32 != 0 or len(x.shape) == 1)
    given.require(not inside, "cuts a tensor in TILE layout between tiles only", "slice begins must be tile aligned")
    return like(x)


def _point_to_point(given: Given) -> list[Result]:
    x = given["input_tensor"]
    results = defined(given)
    given.types(x, frozenset(BYTES))
    size = (x.shape[-1] if x.shape else 1) * BYTES[x.dtype]
    given.require(
        x.is_tile or size % 16 == 0,
        f"takes rows of a multiple of 16 bytes, not of {size}; use TILE layout",
        "Tensor page size must be 16 byte aligned",
    )
    return results


# --- images ----------------------------------------------------------------------------------------------------------


def _window(given: Given, x: Form) -> None:
    """Requires the memory for the indices of windows."""
    given.require(
        x.l1_small,
        "needs memory for indices: open the device with l1_small_size=65536",
        "Out of Memory: Not enough space to allocate L1_SMALL buffer",
    )


def _pool(given: Given) -> list[Result]:
    x = given.on_device("input_tensor")
    given.types(x, frozenset({BF16, *BLOCKS, U8}) | WORDS)
    given.require(x.is_tile or x.dtype != U8, "takes no UINT8 in ROW_MAJOR", "Cannot set circular buffer size")
    rank, images = len(x.shape), given["batch_size"]
    ranked = rank == 4 or (images == 1 and (rank == 3 or (rank == 2 and given["channels"] == 1)))
    given.require(ranked, "takes images of four dims", "Pool2D: Input tensor must be rank 2, 3, or 4")
    tiles = -(-x.shape[-1] // 32) == -(-given["channels"] // 32)
    given.require(tiles or rank != 4, f"takes rows of {given['channels']} channels", "Shard width must match physical")
    kernel, padding = given["kernel_size"], given["padding"]
    top, bottom, left = padding[:3] if len(padding) == 4 else (padding[0], padding[0], padding[1])
    # The library does not look at the padding on the right.
    given.require(
        max(top, bottom) <= kernel[0] // 2 and left <= kernel[1] // 2,
        f"pads by half of a window {list(kernel)} at most, not by {list(padding)}",
        "Pool2D: Padding should not exceed half of kernel size",
    )
    _window(given, x)
    return _averaged(given, given["dtype"] or BF16, given["output_layout"] or ROWS)


def _averaged(given: Given, dtype: str, layout: str) -> list[Result]:
    good = given["dtype"] in (None, BF16, *BLOCKS)
    given.require(good, "gives BFLOAT16 and block floats", "Currently only BFLOAT16, BFLOAT8_B, and")
    return checked(given, [Result(dtype, layout, F32)])


def _convolution(given: Given) -> list[Result]:
    x, weight, bias = given["input_tensor"], given["weight_tensor"], given["bias_tensor"]
    rows = not isinstance(bias, Form) or not (bias.is_tile and bias.host)
    given.require(
        rows, "takes a bias of host memory in ROW_MAJOR", "Host conv bias layout should be in row_major layout"
    )
    given.require(
        not weight.is_tile,
        "takes weights in ROW_MAJOR; use ttnn.to_layout",
        "Host conv weights layout should be in row_major layout",
    )
    if given.callee == "ttnn.conv_transpose2d":
        given.require(weight.host, "takes weights in host memory; use ttnn.from_device", "Weights should be in TILE")
    if _is_product(given):
        given.types(weight, frozenset({F32, BF16}), "weights of one pixel")
        given.types(x, REALS)
    given.types(weight, frozenset({F32, BF16, U32}), "weights")
    given.types(x, REALS | WORDS if x.is_tile else REALS | WORDS | {U16})
    given.require(given["dtype"] != I8, "gives no INT8", "Unsupported data format")
    _window(given, x)
    return [Result(given["dtype"] or x.dtype, TILE, F32)]


def _is_product(given: Given) -> bool:
    """Returns True for a convolution by one pixel, which the library computes as a matrix product."""
    sides = ("kernel_size", 1), ("stride", 1), ("padding", 0), ("dilation", 1)
    return all(set(given[name] or [least]) == {least} for name, least in sides)


def _global_pool(given: Given) -> list[Result]:
    x = given.on_device("input_tensor")
    given.types(x, REALS - {B4} | WORDS)
    given.require(1 < len(x.shape) < 5, "takes two to four dims", "Input tensor must be rank 2, 3, or 4")
    pixels = x.shape[-3:-1] if len(x.shape) > 2 else x.shape
    if x.dtype in BLOCKS and prod(pixels) % 32:
        # The rows are made whole tiles on the way.
        return _averaged(given, BF16, TILE)
    return tiled(x)


def _upsample(given: Given) -> list[Result]:
    x = given.on_device("input_tensor")
    whole = not x.is_tile or all(n % 32 == 0 for n in x.shape[-2:])
    given.require(whole, "takes whole tiles, or ROW_MAJOR", "Tiled input must be tile aligned")
    if given["mode"] == "bilinear":
        given.require(
            x.dtype not in (F32, U8) and not x.is_tile and x.shape[-1] % 32 == 0,
            "interpolates BFLOAT16 in ROW_MAJOR, of a multiple of 32 channels",
            "Bilinear upsample requires BFLOAT16 input",
        )
        return [Result(BF16, ROWS)]
    return [Result(BF16 if x.dtype in BLOCKS else x.dtype, ROWS)]


# --- between host and devices ----------------------------------------------------------------------------------------


RULES: Mapping[str, Rule] = {
    "ttnn.all_gather": _all_gather,
    "ttnn.mesh_partition": _mesh_partition,
    "ttnn.point_to_point": _point_to_point,
    # The convolution of the images says the rest.
    "ttnn.conv1d": lambda _: [],
    **dict.fromkeys(("ttnn.conv2d", "ttnn.conv_transpose2d"), _convolution),
    **dict.fromkeys(("ttnn.max_pool2d", "ttnn.avg_pool2d"), _pool),
    "ttnn.global_avg_pool2d": _global_pool,
    "ttnn.upsample": _upsample,
    **dict.fromkeys(("ttnn.to_device", "ttnn.from_device"), lambda given: like(given["tensor"])),
}
