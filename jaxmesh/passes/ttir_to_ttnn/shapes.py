"""Patterns of shapes, permutations, slices, creation, and of ops with another name in TTNN."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from jaxmesh.dialects.definitions import DEFINITIONS, definition_of, has_trait
from jaxmesh.dialects.op import Trait
from jaxmesh.dialects.program import Type, Value
from jaxmesh.dialects.ttir.elementwise import integer_bound
from jaxmesh.dialects.ttnn.op import TtnnOp
from jaxmesh.passes.flat_builder import Rules
from jaxmesh.passes.ttir_to_ttnn.builder import BOOL, Ops, Pattern, Site, as_number, is_integer, passes_as_int32
from jaxmesh.passes.ttir_to_ttnn.indexing import reverse

PATTERNS: Rules[Pattern] = Rules()

RENAMED: Mapping[str, str] = {
    d.like: d.name
    for d in DEFINITIONS.values()
    if isinstance(d, TtnnOp) and d.like is not None and f"ttnn.{d.like}" not in DEFINITIONS
}
"""The TTNN name of a TTIR op with the same meaning, where it differs."""


def carry_over(o: Ops, site: Site) -> Sequence[Value]:
    """Appends the TTNN op with the same meaning, operands and attributes."""
    name = RENAMED.get(site.name, site.name)
    attributes = site.op.attributes
    if attributes:
        definition = definition_of(f"ttnn.{name}")
        assert definition is not None
        known = definition.by_name
        attributes = {k: v for k, v in attributes.items() if k in known}
    results = [o.tensor_type(t.shape, t.dtype) for t in site.results]
    return o.emit(name, site.operands, results, attributes)


@PATTERNS.add("isfinite", "logical_not")
def _test(o: Ops, site: Site) -> Value:
    # Their calls lack an argument for the element type of the result.
    return o.cast(o.op(site.name, site.operands, site.result.shape, BOOL), site.result.dtype)


@PATTERNS.add("clamp_tensor")
def _clamp_tensor(o: Ops, site: Site) -> Value:
    x, low, high = (o.cast(v, site.result.dtype) for v in site.xs)
    return o.binary("minimum", o.binary("maximum", x, low), high)


@PATTERNS.add("clamp_scalar")
def _clamp_scalar(o: Ops, site: Site) -> Value:
    low, high = site["min"], site["max"]
    if is_integer(site.result.dtype):
        dtype = site.result.dtype
        low, high = integer_bound(low, math.ceil, dtype), integer_bound(high, math.floor, dtype)
    else:
        low, high = float(low), float(high)
    if is_integer(site.result.dtype) and site.result.dtype != np.int32:
        # The real clamp refuses other integers.
        bounds = [o.full((), n, site.result.dtype) for n in (low, high)]
        return o.binary("minimum", o.binary("maximum", site.x, bounds[0]), bounds[1])
    return o.same("clamp_scalar", [site.x], min=low, max=high)


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


@PATTERNS.add("broadcast", "repeat")
def _repeat(o: Ops, site: Site) -> Value:
    return o.repeat(site.x, site[f"{site.name}_dimensions"])


@PATTERNS.add("concat")
def _concat(o: Ops, site: Site) -> Value:
    dim = site["dim"] % len(site.result.shape)
    return o.op("concat", site.operands, site.result.shape, site.result.dtype, dim=dim)


@PATTERNS.add("reverse")
def _reverse(o: Ops, site: Site) -> Value:
    x = site.x
    for dim in site["dimensions"]:
        x = reverse(o, x, dim % len(site.result.shape))
    return x


# --- slices ----------------------------------------------------------------------------------------------------------


def _slice_with_step(o: Ops, x: Value, cuts: Mapping[int, tuple[int, int, int]]) -> Value:
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


def slice_static(o: Ops, site: Site) -> Value:
    """Slices from begins to ends, which may count from the end, by steps, which may be negative."""
    cuts = zip(site["begins"], site["ends"], site["step"], strict=True)
    return _slice_with_step(o, site.x, dict(enumerate(cuts)))


PATTERNS.add("slice_static")(slice_static)


@PATTERNS.add("index")
def _index(o: Ops, site: Site) -> Value:
    dim = site["dim"] % len(site.result.shape)
    return _slice_with_step(o, site.x, {dim: (site["begin"], site["end"], site["step"])})


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
    x = site.x
    # TTNN adds only. A slice may remove more than the dim holds if the other side adds enough.
    wide = [(max(low, 0), max(high, 0)) for low, high in pairs]
    x = o.pad(x, wide, as_number(site["value"], o.dtype(x)))
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
    definition = definition_of(f"ttnn.{site.name}")
    return site.name == "empty" or definition is None or not definition.handles[0]


def create(o: Ops, site: Site, host: bool) -> Value:
    """Creates a tensor on the host, or all of it on each device."""
    result = site.result
    name, attributes = _creation(o, site, result)
    numbers = attributes.get("value", attributes.get("fill_value"))
    as_int32 = numbers is not None and passes_as_int32(result.dtype, numbers)
    if as_int32:
        key, same = ("value", np.asarray) if "value" in attributes else ("fill_value", int)
        attributes[key] = same(np.asarray(numbers, np.uint32).view(np.int32))
    if name == "empty" and host:
        # The real one is on the devices only.
        name = "zeros"
    dtype = np.dtype(np.int32) if as_int32 else result.dtype
    kind = Type(result.shape, dtype, host=host, tile=not host)
    (made,) = o.emit(name, [] if host else [o.handle], [kind], attributes)
    return o.emit("typecast", [made], [replace(kind, dtype=result.dtype)], {})[0] if as_int32 else made


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
            return name, site.shared_attributes(name)
        case "rand":
            return name, site.shared_attributes(name) | {"size": result.shape}
        case _:
            return name, shape


@PATTERNS.add("arange")
def _arange(o: Ops, site: Site) -> Value:
    """Creates the numbers along one dim in TTNN, and repeats them along the others."""
    shape = site.result.shape
    dim = site["arange_dimension"] % len(shape)
    numbers = o.op("arange", [o.handle], shape[dim : dim + 1], site.result.dtype, **site.shared_attributes("arange"))
    column = o.reshape(numbers, [n if d == dim else 1 for d, n in enumerate(shape)])
    return o.repeat(column, [1 if d == dim else n for d, n in enumerate(shape)])
