"""What moves the elements of a device's arrays in random programs: shapes, slices, indices, constants."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from tests.generators.programs.elementwise import (
    MOST,
    TABLE,
    Compute,
    Params,
    Shape,
    alone,
    of_one,
    of_two,
    plain_text as _plain,
)
from tests.generators.programs.values import Array, Draw, dtype_of, narrow, wide


def _ranked(draw: Draw, xs: Sequence[Array]) -> Params | None:
    """A dim of the first operand."""
    return {"axis": draw.integers(0, xs[0].ndim - 1)} if xs[0].ndim else None


# --- shapes ----------------------------------------------------------------------------------------------------------


def _transpose(draw: Draw, xs: Sequence[Array]) -> Params | None:
    rest, axes = list(range(xs[0].ndim)), list[int]()
    if len(rest) < 2:
        return None
    while rest:
        axes.append(rest.pop(draw.integers(0, len(rest) - 1)))
    return {"axes": tuple(axes)}


TABLE["transpose"] = Compute(
    1, _transpose, _plain("jnp.transpose({0}, {axes})"), of_one(lambda p, x: np.transpose(x, p["axes"]))
)


def _reshape(draw: Draw, xs: Sequence[Array]) -> Params | None:
    (x,) = xs
    options: list[Shape] = [(x.size,), (1, *x.shape), (*x.shape, 1)]
    options += [(*x.shape[:i], x.shape[i] * x.shape[i + 1], *x.shape[i + 2 :]) for i in range(x.ndim - 1)]
    for i, n in enumerate(x.shape):
        options += [(*x.shape[:i], k, n // k, *x.shape[i + 1 :]) for k in (2, 3) if n and n % k == 0]
    return {"shape": draw.choice([s for s in options if len(s) <= 5])}


TABLE["reshape"] = Compute(1, _reshape, _plain("{0}.reshape{shape}"), of_one(lambda p, x: x.reshape(p["shape"])))


def _slice(draw: Draw, xs: Sequence[Array]) -> Params | None:
    (x,) = xs
    if x.ndim == 0 or 0 in x.shape:
        return None
    axis = draw.integers(0, x.ndim - 1)
    start = draw.integers(0, x.shape[axis] - 1)
    stop, step = draw.integers(start + 1, x.shape[axis]), draw.integers(1, 2)
    return {"axis": axis, "start": start, "stop": stop, "step": step}


def _window(p: Params) -> tuple[slice, ...]:
    return (*[slice(None)] * p["axis"], slice(p["start"], p["stop"], p["step"]))


TABLE["slice"] = Compute(
    1, _slice, _plain("lax.slice_in_dim({0}, {start}, {stop}, {step}, {axis})"), of_one(lambda p, x: x[_window(p)])
)
TABLE["flip"] = Compute(1, _ranked, _plain("jnp.flip({0}, {axis})"), of_one(lambda p, x: np.flip(x, p["axis"])))
TABLE["roll"] = Compute(1, _ranked, _plain("jnp.roll({0}, 1, {axis})"), of_one(lambda p, x: np.roll(x, 1, p["axis"])))
TABLE["expand"] = Compute(
    1, _ranked, _plain("jnp.expand_dims({0}, {axis})"), of_one(lambda p, x: np.expand_dims(x, p["axis"]))
)


def _squeeze(draw: Draw, xs: Sequence[Array]) -> Params | None:
    single = [i for i, n in enumerate(xs[0].shape) if n == 1]
    return {"axis": draw.choice(single)} if single else None


TABLE["squeeze"] = Compute(
    1, _squeeze, _plain("jnp.squeeze({0}, {axis})"), of_one(lambda p, x: np.squeeze(x, p["axis"]))
)


def _repeat(draw: Draw, xs: Sequence[Array]) -> Params | None:
    return _ranked(draw, xs) if xs[0].size * 2 <= MOST else None


TABLE["repeat"] = Compute(
    1, _repeat, _plain("jnp.repeat({0}, 2, {axis})"), of_one(lambda p, x: np.repeat(x, 2, p["axis"]))
)
TABLE["broadcast"] = Compute(
    1,
    lambda draw, xs: {"shape": (draw.integers(1, 3), *xs[0].shape)} if xs[0].size * 3 <= MOST else None,
    _plain("jnp.broadcast_to({0}, {shape})"),
    of_one(lambda p, x: np.broadcast_to(x, p["shape"])),
)


def _pad(draw: Draw, xs: Sequence[Array]) -> Params | None:
    (x,) = xs
    if x.ndim == 0 or x.dtype == np.bool_ or x.size * 3 > MOST:
        return None
    rows = [(0, 0, 0)] * x.ndim
    rows[draw.integers(0, x.ndim - 1)] = (draw.integers(0, 2), draw.integers(0, 1), draw.integers(0, 1))
    return {"rows": tuple(rows)}


def _padded(p: Params, x: Array) -> Array:
    out = np.zeros([a + b + n + c * max(n - 1, 0) for n, (a, b, c) in zip(x.shape, p["rows"], strict=True)], x.dtype)
    window = [slice(a, a + n + c * max(n - 1, 0), c + 1) for n, (a, _, c) in zip(x.shape, p["rows"], strict=True)]
    out[tuple(window)] = x
    return out


TABLE["pad"] = Compute(1, _pad, _plain("lax.pad({0}, jnp.zeros((), {0}.dtype), {rows})"), _padded)


# --- several arrays --------------------------------------------------------------------------------------------------


def _concatenate(draw: Draw, xs: Sequence[Array]) -> Params | None:
    x, y = xs
    if x.dtype != y.dtype or x.ndim != y.ndim or x.size + y.size > MOST:
        return None
    apart = [i for i in range(x.ndim) if x.shape[i] != y.shape[i]]
    if x.ndim == 0 or len(apart) > 1:
        return None
    return {"axis": apart[0] if apart else draw.integers(0, x.ndim - 1)}


TABLE["concatenate"] = Compute(
    2,
    _concatenate,
    _plain("jnp.concatenate([{0}, {1}], {axis})"),
    of_two(lambda p, x, y: np.concatenate([x, y], p["axis"])),
)
TABLE["stack"] = Compute(
    2,
    lambda draw, xs: (
        {"axis": draw.integers(0, xs[0].ndim)} if xs[0].dtype == xs[1].dtype and xs[0].shape == xs[1].shape else None
    ),
    _plain("jnp.stack([{0}, {1}], {axis})"),
    of_two(lambda p, x, y: np.stack([x, y], p["axis"])),
)


def _halves(draw: Draw, xs: Sequence[Array]) -> Params | None:
    even = [i for i, n in enumerate(xs[0].shape) if n and n % 2 == 0]
    return {"axis": draw.choice(even)} if even else None


TABLE["halves"] = Compute(
    1, _halves, _plain("jnp.split({0}, 2, {axis})"), of_one(lambda p, x: tuple(np.split(x, 2, p["axis"]))), results=2
)


def _top(draw: Draw, xs: Sequence[Array]) -> Params | None:
    (x,) = xs
    fits = x.ndim and x.shape[-1] and x.dtype in (np.float32, np.int32)
    return {"count": draw.integers(1, min(x.shape[-1], 3))} if fits else None


def _topped(p: Params, x: Array) -> tuple[Array, Array]:
    places = np.argsort(-wide(x), -1, kind="stable")[..., : p["count"]]
    return np.take_along_axis(x, places, -1), places.astype(np.int32)


TABLE["top_k"] = Compute(1, _top, _plain("lax.top_k({0}, {count})"), _topped, settled=True, results=2)


# --- indices ---------------------------------------------------------------------------------------------------------


def _take(draw: Draw, xs: Sequence[Array]) -> Params | None:
    x, index = xs
    fits = x.ndim and index.dtype == np.int32 and index.ndim <= 2 and index.size * x.size <= MOST and x.size
    return {"axis": draw.integers(0, x.ndim - 1)} if fits else None


TABLE["take"] = Compute(
    2,
    _take,
    _plain("jnp.take({0}, jnp.abs({1}) % {0}.shape[{axis}], axis={axis})"),
    of_two(lambda p, x, i: np.take(x, np.abs(i) % x.shape[p["axis"]], p["axis"])),
    settled=True,
)
TABLE["pick"] = Compute(
    1,
    lambda draw, xs: (
        {"axis": draw.integers(0, xs[0].ndim - 1), "index": tuple(draw.integers(0, 9) for _ in range(2))}
        if xs[0].ndim and xs[0].size and xs[0].size * 2 <= MOST
        else None
    ),
    lambda names, p: f"{names[0]}[{':, ' * p['axis']}np.array({list(p['index'])}) % {names[0]}.shape[{p['axis']}]]",
    of_one(lambda p, x: np.take(x, np.array(p["index"]) % x.shape[p["axis"]], p["axis"])),
)


def _started(draw: Draw, xs: Sequence[Array]) -> Params | None:
    x, index = xs
    if x.ndim == 0 or index.dtype != np.int32 or index.ndim or not x.size:
        return None
    axis = draw.integers(0, x.ndim - 1)
    return {"axis": axis, "size": draw.integers(1, x.shape[axis])}


def _start(p: Params, x: Array, index: Array) -> int:
    # As of lax: negatives count from the end once, then the window is moved inside.
    at, size = int(index), x.shape[p["axis"]]
    return min(max(at + size if at < 0 else at, 0), size - p["size"])


def _cut(p: Params, x: Array, index: Array) -> Array:
    at = _start(p, x, index)
    return x[(*[slice(None)] * p["axis"], slice(at, at + p["size"]))]


TABLE["dynamic_slice"] = Compute(
    2, _started, _plain("lax.dynamic_slice_in_dim({0}, {1}, {size}, {axis})"), _cut, settled=True
)


def _updated(p: Params, x: Array, index: Array) -> Array:
    out, at = x.copy(), _start(p, x, index)
    window = (*[slice(None)] * p["axis"], slice(at, at + p["size"]))
    out[window] = 1
    return out


TABLE["dynamic_update"] = Compute(
    2,
    _started,
    # XLA's CPU compiler may update in place an operand that the update is still being read from: the update is new.
    _plain(
        "lax.dynamic_update_slice_in_dim({0}, jnp.ones_like(lax.slice_in_dim({0}, 0, {size}, axis={axis})), {1}, "
        "{axis})"
    ),
    _updated,
    settled=True,
)


def _scattered(p: Params, x: Array) -> Array:
    out = wide(x).copy()
    window = (*[slice(None)] * p["axis"], p["index"])
    out[window] = out[window] * 2 if p["way"] == "multiply(2)" else out[window] + 1 if p["way"] == "add(1)" else 2
    return narrow(out, x.dtype)


def _at(draw: Draw, xs: Sequence[Array]) -> Params | None:
    (x,) = xs
    if not x.ndim or not x.size or x.dtype == np.bool_:
        return None
    axis = draw.integers(0, x.ndim - 1)
    way = draw.choice(["set(2)", "add(1)", "multiply(2)"])
    return {"axis": axis, "index": draw.integers(0, x.shape[axis] - 1), "way": way}


TABLE["at"] = Compute(1, _at, lambda names, p: f"{names[0]}.at[{':, ' * p['axis']}{p['index']}].{p['way']}", _scattered)


# --- from nothing ----------------------------------------------------------------------------------------------------


def _made(draw: Draw, xs: Sequence[Array]) -> Params | None:
    shape = tuple(draw.integers(1, 4) for _ in range(draw.integers(0, 2)))
    return {"shape": shape, "dtype": draw.choice(["float32", "int32", "bfloat16"])}


TABLE["full"] = Compute(
    0, _made, _plain("jnp.full({shape}, 2, jnp.{dtype})"), alone(lambda p: np.full(p["shape"], 2, dtype_of(p["dtype"])))
)
TABLE["iota"] = Compute(
    0,
    lambda draw, xs: {"size": draw.integers(1, 6), "dtype": draw.choice(["int32", "float32"])},
    _plain("jnp.arange({size}, dtype=jnp.{dtype})"),
    alone(lambda p: np.arange(int(p["size"])).astype(p["dtype"])),
)


def _table(p: Params) -> Array:
    return np.asarray(np.arange(math.prod(p["shape"])) % 5 - 2).reshape(p["shape"]).astype(dtype_of(p["dtype"]))


TABLE["constant"] = Compute(
    0,
    _made,
    lambda names, p: f"jnp.array(np.array({_table(p).astype(int).tolist()}), jnp.{p['dtype']})",
    _table,
)
