"""Rules of functions that move or create elements."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

from jaxmesh.dialects.ttnn.forms import B4, BF16, BLOCKS, EVERY, I8, NOT_I8, U8, U16
from jaxmesh.dialects.ttnn.layouts import is_view
from jaxmesh.ttnn.rules.given import ROWS, TILE, Form, Given, Result, Rule, checked, like

_RESHAPED = NOT_I8 - {U8, U16}


def _dim(given: Given, form: Form) -> int:
    rank = len(form.shape)
    return given.dim(given["dim"], rank, "index is out of bounds for the rank", f" of {rank}")


def _copied(given: Given, x: Form) -> bool:
    """Returns True if a call that moves no element goes to other memory; the real library looks at the type then."""
    elsewhere = given["memory_config"] not in (None, x.memory)
    if elsewhere:
        given.types(x, NOT_I8, "an operand to copy to other memory")
    return elsewhere


def _reshape(given: Given) -> list[Result]:
    x, shape = given["input_tensor"], given["shape"]
    size, known = prod(x.shape), prod(n for n in shape if n != -1)
    whole = tuple(size // max(known, 1) if n == -1 else n for n in shape)
    given.require(
        prod(whole) == size and list(shape).count(-1) < 2,
        f"keeps {size} elements, which the shape {list(shape)} does not have",
        "Invalid arguments to reshape",
    )
    return _reshaped(given, x, whole)


def _reshaped(given: Given, x: Form, shape: tuple[int, ...]) -> list[Result]:
    elsewhere = not x.host and given["memory_config"] not in (None, x.memory)
    if x.shape == shape and not x.is_tile:
        if elsewhere:
            _copied(given, x)
    elif elsewhere and not x.is_tile and () in (x.shape, shape):
        given.refuse(
            "takes and gives tensors of one dim at least in other memory", "Can't do reshape from rank 0 tensor"
        )
    elif not x.host and not x.is_empty and (elsewhere or (x.shape != shape and not is_view(x.shape, shape, x.is_tile))):
        given.types(x, _RESHAPED, "an operand whose rows change")
    return like(x)


def _joined(given: Given, forms: list[Form], dim: int) -> list[Result]:
    """Returns the result of joining tensors; inside of tiles it goes over rows."""
    first = forms[0]
    rank = len(first.shape)
    inside = first.is_tile and dim >= rank - 2 and any(f.shape[dim] % 32 for f in forms)
    if inside and len(forms) > 1:
        given.types(first, NOT_I8 - {U8, B4}, "operands joined inside of tiles")
        return like(first, BF16 if first.dtype in BLOCKS else first.dtype)
    return like(first)


def _check_alike(given: Given, form: Form, first: Form) -> None:
    given.require(form.dtype == first.dtype, "takes tensors of one element type", "All tensors must have same dtype")
    given.require(form.layout == first.layout, "takes tensors of one layout", "All tensors must have same layout")


def _concat(given: Given) -> list[Result]:
    tensors: list[Form] = given["tensors"]
    given.require(bool(tensors), "takes one tensor at least", "expected a non-empty list of tensors")
    given.on_devices(*tensors)
    first = tensors[0]
    if len(tensors) == 1:
        return like(first)
    dim = _dim(given, first)
    for t in tensors[1:]:
        _check_alike(given, t, first)
    return _joined(given, tensors, dim)


def _slice(given: Given) -> list[Result]:
    x = given.on_device("input_tensor")
    starts, steps = given["slice_start"], given["slice_step"] or [1]
    rank = len(x.shape)
    whole = list(given["slice_end"]) == list(x.shape) and not any(starts) and all(n == 1 for n in steps)
    if whole:
        _copied(given, x)
    if not x.is_tile or not x.shape:
        return like(x)
    inside = any(starts[d] % 32 for d in range(max(0, rank - 2), rank)) or (rank == 1 and not whole)
    if any(n != 1 for n in steps):
        given.types(x, NOT_I8 - BLOCKS, "an operand of a slice with steps")
        inside = inside or any(n % 32 for n in x.shape[-2:]) or rank == 1
    if inside:
        given.types(x, NOT_I8 - {U8, B4}, "an operand in TILE layout cut inside of tiles")
    return like(x, BF16 if inside and x.dtype in BLOCKS else x.dtype)


def _pad(given: Given) -> list[Result]:
    x = given.on_device("input_tensor")
    padding = given["padding"]
    good = all(n >= 0 for pair in padding for n in pair)
    given.require(good, f"only adds elements, not {padding}", "incompatible function arguments")
    if any(any(pair) for pair in padding):
        given.types(x, NOT_I8 - {U8})
    if x.dtype == B4:
        grown = [(-(-n // 32), -(-(n + high) // 32)) for n, (_, high) in zip(x.shape[-2:], padding[-2:], strict=False)]
        inside = not any(map(any, padding[:-2])) and all(old == new for old, new in grown)
        given.require(inside, f"pads {x.dtype} inside of its last tiles", "Cannot pad tilized tensor with specified")
    if x.is_tile:
        front = all(pair[0] == 0 for pair in padding)
        given.require(
            front,
            "pads a tensor in TILE layout behind its elements only; use ROW_MAJOR",
            "ttnn.pad: on device tile padding does not support front padding",
        )
        if len(x.shape) == 1:
            size, more = x.shape[0], padding[0][1]
            good = -(-size // 32) == -(-(size + more) // 32)
            given.require(
                good, "pads one dim in TILE layout inside of its last tile", "MeshBuffer must be large enough"
            )
    return like(x)


# --- where and how a tensor is stored --------------------------------------------------------------------------------


def _to_layout(given: Given) -> list[Result]:
    x, layout, dtype = given["tensor"], given["layout"], given["dtype"]
    if x.layout == layout:
        # The real library does not look at the element type then.
        return like(x)
    if x.host:
        return checked(given, [Result(dtype or x.dtype, layout, x.dtype)])
    if layout == TILE:
        if not x.is_empty:
            given.types(x, NOT_I8 - {U8}, "an operand to tilize on the devices")
        return [Result(dtype or x.dtype, TILE, x.dtype)]
    plain = BF16 if x.dtype in BLOCKS else x.dtype
    given.types(x, EVERY - {B4}, "an operand to untilize on the devices")
    given.require(
        dtype in (None, x.dtype, plain),
        f"keeps the element type in ROW_MAJOR, and cannot give {dtype}",
        "dtype cannot be different from tensor dtype when converting to ROW_MAJOR",
    )
    return [Result(plain, ROWS)]


def _to_dtype(given: Given) -> list[Result]:
    x = given["tensor"]
    given.require(x.host, "converts tensors in host memory; use ttnn.typecast", "Expected Tensor with HostStorage")
    return checked(given, [Result(given["dtype"], x.layout, x.dtype)])


def _cast_tiles(given: Given) -> list[Result]:
    x, dtype = given.tensors()[0], given["dtype"]
    given.on_devices(x)
    if given.callee == "ttnn.to_memory_config" and given["memory_config"] == x.memory:
        # Nothing to move, and the real library does not look at the element type then.
        return like(x)
    given.types(x, NOT_I8)
    if dtype in (None, x.dtype):
        return like(x)
    given.tiles(x)
    given.require(I8 not in (x.dtype, dtype), "gives no INT8", "unsupported output data type")
    return checked(given, [Result(dtype, x.layout, x.dtype)])


# --- creation --------------------------------------------------------------------------------------------------------


def _created(given: Given) -> list[Result]:
    dtype = given["dtype"] or BF16
    filled = given.callee in ("ttnn.zeros", "ttnn.ones", "ttnn.full")
    layout = given["layout"] or (TILE if filled and dtype in BLOCKS else ROWS)
    if given.callee in ("ttnn.arange", "ttnn.rand"):
        excluded = (U8, *BLOCKS, I8) if given.callee == "ttnn.arange" else (U8,)
        given.require(dtype not in excluded, f"makes no {dtype}", f"unsupported data type DataType::{dtype}")
    if dtype in BLOCKS and layout != TILE and given.callee == "ttnn.rand":
        return [Result(BF16, layout)]
    return checked(given, [Result(dtype, layout)])


RULES: Mapping[str, Rule] = {
    "ttnn.reshape": _reshape,
    "ttnn.concat": _concat,
    "ttnn.slice": _slice,
    "ttnn.pad": _pad,
    "ttnn.to_layout": _to_layout,
    "ttnn.to_dtype": _to_dtype,
    "ttnn.to_memory_config": _cast_tiles,
    "ttnn.assign": _cast_tiles,
    **dict.fromkeys(("ttnn.zeros", "ttnn.ones", "ttnn.full", "ttnn.empty", "ttnn.arange", "ttnn.rand"), _created),
}
