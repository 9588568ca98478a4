"""Rules of functions that move or create elements."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

from jaxmesh.dialects.ttnn.rules.given import (
    ANY,
    BF16,
    BLOCKS,
    ROWS,
    TILE,
    U8,
    U16,
    Form,
    Given,
    Result,
    Rule,
    checked,
    like,
)

_RESHAPED = ANY - {U8, U16}


def _dim(given: Given, form: Form, dim: int, extra: int = 0) -> int:
    rank = len(form.shape) + extra
    given.require(-rank <= dim < rank, f"has no dim {dim} of {rank}", "index is out of bounds for the rank")
    return dim % rank


def _moved(given: Given) -> list[Result]:
    x = given.tensors()[0]
    given.on_devices(x)
    return like(x)


def _transpose(given: Given) -> list[Result]:
    x = given["input_tensor"]
    given.on_devices(x)
    for name in ("dim1", "dim2"):
        _dim(given, x, given[name])
    return like(x)


def is_view(form: Form, shape: tuple[int, ...]) -> bool:
    """Returns True if a reshape only renames the dims: the rows stay, and the tiles."""
    old = (1, 1, *form.shape)[-2:] if len(form.shape) < 2 else form.shape[-2:]
    new = (1, 1, *shape)[-2:] if len(shape) < 2 else shape[-2:]
    if old[1] != new[1]:
        return False
    return not form.is_tile or old[0] == new[0] or (old[0] % 32 == 0 and new[0] % 32 == 0)


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
    if not x.host and not is_view(x, shape) and x.shape != shape:
        given.types(x, _RESHAPED, "an operand whose rows change")
    return like(x)


def _squeeze(given: Given) -> list[Result]:
    x, dim = given["input_tensor"], given["dim"]
    rank = max(1, len(x.shape))
    row: list[int] = dim if isinstance(dim, list) else [] if dim is None else [dim]
    for d in row:
        given.require(-rank <= d < rank, f"has no dim {d}", "Dimension out of range")
    dropped = {d % rank for d in row} if dim is not None else set(range(rank))
    return _reshaped(given, x, tuple(n for i, n in enumerate(x.shape) if n != 1 or i not in dropped))


def _unsqueeze(given: Given) -> list[Result]:
    x, dim = given["input_tensor"], given["dim"]
    rank = len(x.shape) + 1
    given.require(-rank <= dim < rank, f"has no dim {dim}", "Dimension out of range")
    shape = list(x.shape)
    shape.insert(dim % rank, 1)
    return _reshaped(given, x, tuple(shape))


def _to_4d(given: Given) -> list[Result]:
    x = given["tensor"]
    given.require(len(x.shape) <= 4, "takes at most four dims", "Tensor rank is greater than 4")
    return like(x)


def _repeat(given: Given) -> list[Result]:
    x = given["input_tensor"]
    given.on_devices(x)
    counts = given["repeat_dims"]
    if counts:
        pass
    else:
        given.refuse("takes tensors of one dim at least", "repeat does not support rank 0 tensors")
    if any(n != 1 for n in counts):
        given.types(x, ANY - {U8})
    return like(x)


def _repeat_interleave(given: Given) -> list[Result]:
    x = given["input_tensor"]
    given.on_devices(x)
    if x.shape:
        _dim(given, x, given["dim"])
    return like(x)


def _concat(given: Given) -> list[Result]:
    tensors: list[Form] = given["tensors"]
    given.on_devices(*tensors)
    first = tensors[0]
    _dim(given, first, given["dim"])
    if len(tensors) == 1:
        return like(first)
    for t in tensors[1:]:
        given.require(t.dtype == first.dtype, "takes tensors of one element type", "All tensors must have same dtype")
        given.require(t.layout == first.layout, "takes tensors of one layout", "All tensors must have same layout")
    return like(first)


def _stack(given: Given) -> list[Result]:
    tensors: list[Form] = given["input_tensors"]
    first = tensors[0]
    dim = given["dim"]
    shape = list(first.shape)
    given.require(-len(shape) - 1 <= dim <= len(shape), f"has no dim {dim}", "index is out of bounds for the rank")
    shape.insert(dim % (len(shape) + 1), 1)
    for t in tensors:
        given.require(t.shape == first.shape, "takes tensors of one shape", "tensors must have one shape")
        _reshaped(given, t, tuple(shape))
        given.require(t.dtype == first.dtype, "takes tensors of one element type", "All tensors must have same dtype")
        given.require(t.layout == first.layout, "takes tensors of one layout", "All tensors must have same layout")
    given.on_devices(*tensors)
    return like(first)


def _slice(given: Given) -> list[Result]:
    x = given["input_tensor"]
    given.on_devices(x)
    stepped = given["slice_step"] is not None and any(n != 1 for n in given["slice_step"])
    dtype = BF16 if stepped and x.dtype in BLOCKS else x.dtype
    return [Result(dtype, x.layout)]


def _pad(given: Given) -> list[Result]:
    x = given["input_tensor"]
    given.on_devices(x)
    if x.is_tile:
        front = all(pair[0] == 0 for pair in given["padding"])
        given.require(
            front,
            "pads a tensor in TILE layout behind its elements only; use ROW_MAJOR",
            "ttnn.pad: on device tile padding does not support front padding",
        )
    return like(x)


def _parts(given: Given) -> list[Result]:
    x, dim = given["input_tensor"], given["dim"]
    given.on_devices(x)
    _dim(given, x, dim)
    return like(x)


# --- where and how a tensor is stored --------------------------------------------------------------------------------


def _to_layout(given: Given) -> list[Result]:
    x, layout, dtype = given["tensor"], given["layout"], given["dtype"]
    if x.layout == layout and not x.host:
        given.require(dtype in (None, x.dtype), "changes no element type without the layout", "dtype cannot be changed")
        return like(x)
    if not x.host and layout == TILE:
        given.types(x, ANY - {U8}, "an operand to tilize on the devices")
    kind = dtype or (BF16 if x.dtype in BLOCKS and layout == ROWS else x.dtype)
    return checked(given, [Result(kind, layout, x.dtype)])


def _to_dtype(given: Given) -> list[Result]:
    x = given["tensor"]
    given.require(x.host, "converts tensors in host memory; use ttnn.typecast", "Expected Tensor with HostStorage")
    return checked(given, [Result(given["dtype"], x.layout, x.dtype)])


def _cast_tiles(given: Given) -> list[Result]:
    x, dtype = given.tensors()[0], given["dtype"]
    given.on_devices(x)
    if dtype in (None, x.dtype):
        return like(x)
    given.tiles(x)
    return checked(given, [Result(dtype, x.layout, x.dtype)])


def _copy(given: Given) -> list[Result]:
    a, b = given.tensors()[:2]
    given.on_devices(a, b)
    given.require(a.layout == b.layout, "takes tensors of one layout", "Input tensor layout must equal the output's")
    if a.dtype != b.dtype:
        given.tiles(a, b)
    return like(b)


# --- creation --------------------------------------------------------------------------------------------------------


def _created(given: Given) -> list[Result]:
    dtype, layout = given["dtype"] or BF16, given["layout"] or ROWS
    if dtype in BLOCKS and given.callee == "ttnn.rand":
        return [Result(BF16, layout)]
    return checked(given, [Result(dtype, layout)])


def _like(given: Given) -> list[Result]:
    x = given["tensor"]
    return checked(given, [Result(given["dtype"] or x.dtype, given["layout"] or x.layout)])


RULES: Mapping[str, Rule] = {
    "ttnn.permute": _moved,
    "ttnn.move": _moved,
    "ttnn.reallocate": _moved,
    "ttnn.transpose": _transpose,
    "ttnn.reshape": _reshape,
    "ttnn.squeeze": _squeeze,
    "ttnn.unsqueeze": _unsqueeze,
    "ttnn.unsqueeze_to_4D": _to_4d,
    "ttnn.repeat": _repeat,
    "ttnn.repeat_interleave": _repeat_interleave,
    "ttnn.concat": _concat,
    "ttnn.stack": _stack,
    "ttnn.slice": _slice,
    "ttnn.pad": _pad,
    "ttnn.split": _parts,
    "ttnn.chunk": _parts,
    "ttnn.to_layout": _to_layout,
    "ttnn.to_dtype": _to_dtype,
    "ttnn.to_memory_config": _cast_tiles,
    "ttnn.assign": _cast_tiles,
    "ttnn.clone": _cast_tiles,
    "ttnn.copy": _copy,
    **dict.fromkeys(("ttnn.zeros", "ttnn.ones", "ttnn.full", "ttnn.empty", "ttnn.arange", "ttnn.rand"), _created),
    **dict.fromkeys(("ttnn.zeros_like", "ttnn.ones_like", "ttnn.full_like", "ttnn.empty_like"), _like),
}
