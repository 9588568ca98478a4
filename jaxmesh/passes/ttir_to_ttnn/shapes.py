"""Patterns of shapes, permutations, slices, creation, and of ops with another name in TTNN."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from jaxmesh.dialects import ttnn
from jaxmesh.dialects.definitions import has_trait
from jaxmesh.dialects.op import Trait
from jaxmesh.dialects.program import Type, Value
from jaxmesh.passes.rules import Rules
from jaxmesh.passes.ttir_to_ttnn.builder import BOOL, Ops, Pattern, Site, as_number, iinfo, is_integer

PATTERNS: Rules[Pattern] = Rules()

RENAMED: Mapping[str, str] = {
    op.like: name for name, op in ttnn.OPS.items() if op.like is not None and op.like not in ttnn.OPS
}
"""The TTNN name of a TTIR op with the same meaning, where it differs."""


def carry_over(o: Ops, site: Site) -> Sequence[Value]:
    """Appends the TTNN op with the same meaning, operands and attributes."""
    name = RENAMED.get(site.name, site.name)
    attributes = site.op.attributes
    if attributes:
        known = ttnn.OPS[name].definition.by_name
        attributes = {k: v for k, v in attributes.items() if k in known}
    results = [o.tiled(t.shape, t.dtype) for t in site.results]
    return o.emit(name, site.operands, results, attributes)


@PATTERNS.add("isfinite", "logical_not")
def _test(o: Ops, site: Site) -> Value:
    # Their calls have no argument for the element type of the result.
    return o.cast(o.op(site.name, site.operands, site.result.shape, BOOL), site.result.dtype)


@PATTERNS.add("clamp_tensor")
def _clamp_tensor(o: Ops, site: Site) -> Value:
    x, low, high = (o.cast(v, site.result.dtype) for v in site.xs)
    return o.binary("minimum", o.binary("maximum", x, low), high)


@PATTERNS.add("clamp_scalar")
def _clamp_scalar(o: Ops, site: Site) -> Value:
    low, high = site["min"], site["max"]
    if is_integer(site.result.dtype):
        info = iinfo(site.result.dtype)
        low, high = _integer_bound(low, math.ceil, info), _integer_bound(high, math.floor, info)
    else:
        low, high = float(low), float(high)
    return o.same("clamp_scalar", [site.x], min=low, max=high)


def _integer_bound(value: float, rounded: Callable[[float], int], info: Any) -> int:
    """Returns an integer bound that the element type holds, with the same effect."""
    if not math.isfinite(value):
        return int(info.min if value < 0 else info.max)
    return min(max(rounded(value), int(info.min)), int(info.max))


@PATTERNS.add("upsample2d")
def _upsample(o: Ops, site: Site) -> Value:
    scale = site["scale_factor"]
    pair = (scale, scale) if isinstance(scale, int) else (scale[0], scale[-1])
    result = site.result
    return o.op("upsample", [site.x], result.shape, result.dtype, scale_factor=pair, mode=site["mode"])


# --- shapes and permutations -----------------------------------------------------------------------------------------


@PATTERNS.add("reshape", "squeeze", "unsqueeze")
def _reshape(o: Ops, site: Site) -> Value:
    return o.reshape(site.x, site.result.shape)


@PATTERNS.add("permute")
def _permute(o: Ops, site: Site) -> Value:
    rank = len(site.result.shape)
    return o.permute(site.x, [d % rank for d in site["permutation"]])


@PATTERNS.add("transpose")
def _transpose(o: Ops, site: Site) -> Value:
    order = list(range(len(site.result.shape)))
    first, second = site["dim0"], site["dim1"]
    order[first], order[second] = order[second], order[first]
    return o.permute(site.x, order)


@PATTERNS.add("broadcast")
def _broadcast(o: Ops, site: Site) -> Value:
    return o.repeat(site.x, site["broadcast_dimensions"])


@PATTERNS.add("repeat")
def _repeat(o: Ops, site: Site) -> Value:
    return o.repeat(site.x, site["repeat_dimensions"])


@PATTERNS.add("concat")
def _concat(o: Ops, site: Site) -> Value:
    dim = site["dim"] % len(site.result.shape)
    return o.op("concat", site.operands, site.result.shape, site.result.dtype, dim=dim)


def reverse(o: Ops, x: Value, dim: int) -> Value:
    """Reverses a dim by looking up its rows from the last to the first."""
    shape = o.shape(x)
    size = shape[dim]
    if size < 2 or not math.prod(shape):
        return x
    order = [dim, *(d for d in range(len(shape)) if d != dim)]
    moved = o.permute(x, order)
    table = o.reshape(moved, (size, math.prod(shape) // size))
    reversed_dims = o.embedding(o.constant(np.arange(size - 1, -1, -1, dtype=np.int32)), table)
    return o.permute(o.reshape(reversed_dims, o.shape(moved)), [order.index(d) for d in range(len(shape))])


@PATTERNS.add("reverse")
def _reverse(o: Ops, site: Site) -> Value:
    x = site.x
    for dim in site["dimensions"]:
        x = reverse(o, x, dim % len(site.result.shape))
    return x


# --- slices ----------------------------------------------------------------------------------------------------------


def _strided(o: Ops, x: Value, cuts: Mapping[int, tuple[int, int, int]]) -> Value:
    """Slices dims; begins and ends may count from the end, and steps may be negative."""
    shape = o.shape(x)
    begins, ends, steps = [0] * len(shape), list(shape), [1] * len(shape)
    reversed_dims: list[int] = []
    for dim, (begin, end, step) in cuts.items():
        size = shape[dim]
        first, last = (n + size if n < 0 else n for n in (begin, end))
        if step < 0:
            count = -(-(first - last) // -step)
            first, last, step = (first + (count - 1) * step, first + 1, -step) if count else (0, 0, 1)
            reversed_dims.append(dim)
        begins[dim], ends[dim], steps[dim] = first, last, step
    x = o.slice(x, begins, ends, steps)
    for dim in reversed_dims:
        x = reverse(o, x, dim)
    return x


@PATTERNS.add("slice_static")
def _slice(o: Ops, site: Site) -> Value:
    cuts = zip(site["begins"], site["ends"], site["step"], strict=True)
    return _strided(o, site.x, dict(enumerate(cuts)))


@PATTERNS.add("index")
def _index(o: Ops, site: Site) -> Value:
    dim = site["dim"] % len(site.result.shape)
    return _strided(o, site.x, {dim: (site["begin"], site["end"], site["step"])})


@PATTERNS.add("index_select")
def _select(o: Ops, site: Site) -> Value:
    dim: int = site["dim"] % len(site.result.shape)
    begin, length, stride = site["begin"], site["length"], site["stride"]
    size = o.shape(site.x)[dim]
    starts = range(begin, size, stride or size)
    return o.concat([o.piece(site.x, dim, s, s + length) for s in starts], dim)


@PATTERNS.add("pad")
def _pad(o: Ops, site: Site) -> Value:
    flat = site["padding"]
    pairs = list(zip(flat[::2], flat[1::2], strict=True))
    x, shape = site.x, o.shape(site.x)
    # TTNN adds only. A slice may remove more than the dim holds if the other side adds enough.
    wide = [(max(low, 0), max(high, 0)) for low, high in pairs]
    if any(low or high for low, high in wide):
        padded = [low + n + high for n, (low, high) in zip(shape, wide, strict=True)]
        padding = tuple(n for pair in wide for n in pair)
        x = o.op("pad", [x], padded, o.dtype(x), padding=padding, value=as_number(site["value"], o.dtype(x)))
    now = o.shape(x)
    begins = [max(-low, 0) for low, _ in pairs]
    ends = [n - max(-high, 0) for n, (_, high) in zip(now, pairs, strict=True)]
    return o.slice(x, begins, ends)


# --- creation --------------------------------------------------------------------------------------------------------


def is_created(site: Site) -> bool:
    """Returns True if the result depends on no tensor and can be created on the host and on the devices alike."""
    return has_trait(site.op.name, Trait.CREATES) and (site.name != "arange" or len(site.result.shape) == 1)


def has_host_form(site: Site) -> bool:
    """Returns True if TTNN creates the tensor on the host, too; `empty` is zeros there, as upstream has it."""
    return site.name == "empty" or not has_trait(f"ttnn.{site.name}", Trait.NEEDS_DEVICE)


def create(o: Ops, site: Site, host: bool) -> Value:
    """Creates a tensor on the host, or all of it on each device."""
    result = site.result
    name, attributes = _creation(o, site, result)
    name = "zeros" if host and name == "empty" else name
    kind = Type(result.shape, result.dtype, host=host, tile=not host)
    return o.emit(name, [] if host else [o.handle], [kind], attributes)[0]


def _creation(o: Ops, site: Site, result: Type) -> tuple[str, dict[str, Any]]:
    name, shape = site.name, {"shape": result.shape}
    match name:
        case "full":
            return name, {**shape, "fill_value": as_number(site["fill_value"], result.dtype)}
        case "constant":
            value = np.asarray(site["value"])
            if value.size == 1:
                return "full", {**shape, "fill_value": as_number(value.item(), result.dtype)}
            return name, {"value": value.astype(result.dtype, copy=False)}
        case "arange":
            return name, site.shared(name)
        case "rand":
            return name, site.shared(name) | {"size": result.shape}
        case _:
            return name, shape


@PATTERNS.add("arange")
def _arange(o: Ops, site: Site) -> Value:
    """Creates the numbers along one dim in TTNN, and repeats them along the others."""
    shape = site.result.shape
    dim = site["arange_dimension"] % len(shape)
    numbers = o.op("arange", [o.handle], shape[dim : dim + 1], site.result.dtype, **site.shared("arange"))
    column = o.reshape(numbers, [n if d == dim else 1 for d, n in enumerate(shape)])
    return o.repeat(column, [1 if d == dim else n for d, n in enumerate(shape)])
