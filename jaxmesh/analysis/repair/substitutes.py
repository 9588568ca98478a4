"""Substitutes for operations that Tenstorrent's compiler makes wrongly or refuses on one device."""

from __future__ import annotations

import functools
import itertools
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import metadata
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxmesh.jaxprs import evaluate
from jaxmesh.jaxprs.compat import Eqn
from jaxmesh.jaxprs.untyped import lax

_custom_jvp: Any = functools.partial(jax.custom_jvp, nondiff_argnums=(0, 2))
_UNROLLED = 64
"""Most parts into which a substitute divides a value."""
PLUGIN = "0.1.3"
"""The last version of the compiler that needs the substitutes."""


@dataclass(frozen=True, slots=True)
class Substitute:
    """An equal computation in place of an operation.

    Attributes:
      row: the row of the table of wrong and refused programs, `docs/tables/upstream.md`.
      primitives: the operations, as JAX names them.
      by: what replaces it, in words.
      sign: a pattern of the operation and the cause that a diagnosis names, or of the compiler's refusal.
      perform: computes the results of an equation from its operands; None where the equation stays.
      plugin: the last version of the compiler that needs it.
      exact: whether the results are the same to the bit; another one is used for its sign alone.
    """

    row: str
    primitives: tuple[str, ...]
    by: str
    sign: str
    perform: Callable[[Eqn, Sequence[Any]], list[Any] | None]
    plugin: str = PLUGIN
    exact: bool = True


# --- collectives over several axes -----------------------------------------------------------------------------------


def _reduced(eqn: Eqn, operands: Sequence[jax.Array]) -> list[jax.Array]:
    largest = eqn.primitive.name.startswith("pmax")

    def reduce(x: object, axis: str) -> Any:
        return lax.psum(x, axis) if eqn.primitive.name.startswith("psum") else _extreme(largest, x, axis)

    return [functools.reduce(reduce, reversed(eqn.params["axes"]), x) for x in operands]


@_custom_jvp
def _extreme(largest: bool, x: jax.Array, axis: str) -> jax.Array:
    """Returns the largest or smallest elements along a mesh axis, with the derivative that JAX lacks."""
    return (lax.pmax if largest else lax.pmin)(x, axis)


@_extreme.defjvp
def _(largest: bool, axis: str, primals: Sequence[Any], tangents: Sequence[object]) -> tuple[Any, Any]:
    (x,), (t,) = primals, tangents
    y: Any = _extreme(largest, x, axis)
    found: Any = (x == y).astype(x.dtype)
    # Equal elements share the derivative, as JAX's maximum shares it.
    return y, lax.psum(found * t, axis) / lax.psum(found, axis)


def _gathered(eqn: Eqn, operands: Sequence[jax.Array]) -> list[jax.Array]:
    (x,), p = operands, eqn.params
    dim, to = p["all_gather_dimension"], {"to": "invarying"} if eqn.primitive.name.endswith("invariant") else {}
    for number, axis in enumerate(reversed(p["axis_name"])):
        x = lax.all_gather(x, axis, axis=dim, tiled=p["tiled"] or number > 0, **to)
    return [x]


def _scattered(eqn: Eqn, operands: Sequence[jax.Array]) -> list[jax.Array] | None:
    if not eqn.params["tiled"]:
        return None
    dim = eqn.params["scatter_dimension"]
    return [functools.reduce(lambda x, a: lax.psum_scatter(x, a, scatter_dimension=dim, tiled=True),
                             eqn.params["axis_name"], operands[0])]  # fmt: skip


def _exchanged(eqn: Eqn, operands: Sequence[jax.Array]) -> list[jax.Array] | None:
    (x,), p = operands, eqn.params
    if not p["tiled"]:
        return None
    axes, split, join = p["axis_name"], p["split_axis"], p["concat_axis"]
    sizes = tuple(lax.axis_size(a) for a in axes)
    parts = math.prod(sizes)
    x = lax.reshape(x, (*x.shape[:split], *sizes, x.shape[split] // parts, *x.shape[split + 1 :]))
    for number, axis in enumerate(axes):
        x = lax.all_to_all(x, axis, split + number, split + number)
    # The sources, the major axis first, stand before the dim that they join.
    taken = range(split, split + len(axes))
    rest = [d for d in range(x.ndim) if d not in taken]
    x = lax.transpose(x, (*rest[:join], *taken, *rest[join:]))
    at = join
    return [lax.reshape(x, (*x.shape[:at], parts * x.shape[at + len(axes)], *x.shape[at + len(axes) + 1 :]))]


_SEVERAL = (
    Substitute("sums over two axes", ("psum", "psum_invariant", "pmax", "pmax_invariant", "pmin", "pmin_invariant"),
        "one reduction for each axis", "", _reduced),
    Substitute("gather of two axes", ("all_gather", "all_gather_invariant"),
        "one gather for each axis, the minor axis first", "", _gathered),
    Substitute("sums scattered over two axes", ("reduce_scatter",), "one for each axis, the major axis first", "",
        _scattered),
    Substitute("reshard of two axes", ("all_to_all",), "one exchange for each axis", "", _exchanged),
)  # fmt: skip
_BY_NAME = {p: c for c in _SEVERAL for p in c.primitives}


def sequence_of(eqn: Eqn) -> Substitute | None:
    """Returns what performs a collective of all devices along mesh axes one axis after the other.

    Returns None for collectives over one axis, but for the largest and smallest elements, which get a derivative.
    """
    found = _BY_NAME.get(eqn.primitive.name)
    several = len(axes_of(eqn)) > (0 if eqn.primitive.name.startswith(("pmax", "pmin")) else 1)
    named = several and all(isinstance(a, str) for a in axes_of(eqn))
    return found if named and eqn.params.get("axis_index_groups") is None else None


def axes_of(eqn: Eqn) -> Sequence[Any]:
    """Returns the axes of a collective."""
    axes: Any = eqn.params.get("axes", eqn.params.get("axis_name", ()))
    return (axes,) if isinstance(axes, str) else axes


# --- operations of one device ----------------------------------------------------------------------------------------


def _padded(eqn: Eqn, operands: Sequence[jax.Array]) -> list[jax.Array] | None:
    x, value = operands
    config = eqn.params["padding_config"]
    if any(inner for _, _, inner in config):
        return None
    return [_with_edges(x, value, [(low, high) for low, high, _ in config])]


def _with_edges(x: Any, value: Any, edges: Sequence[tuple[int, int]]) -> jax.Array:
    for dim, (low, high) in enumerate(edges):
        ends = [jnp.broadcast_to(value, (*x.shape[:dim], max(0, n), *x.shape[dim + 1 :])) for n in (low, high)]
        parts = [p for p in (ends[0], x, ends[1]) if p.shape[dim]]
        x = parts[0] if len(parts) == 1 else lax.concatenate(parts, dim) if parts else x
        x = lax.slice_in_dim(x, max(0, -low), x.shape[dim] - max(0, -high), axis=dim)
    return x


def _logical(eqn: Eqn, operands: Sequence[Any]) -> list[object] | None:
    (x,) = operands
    if x.dtype != jnp.bool_:
        return None
    reduce = jnp.max if eqn.primitive.name == "reduce_or" else jnp.min
    return [reduce(x.astype(jnp.float32), axis=eqn.params["axes"]) > 0.5]


def _folded(eqn: Eqn, operands: Sequence[Any]) -> list[Any] | None:
    jaxpr, dims = eqn.params["jaxpr"], eqn.params["dimensions"]
    count = len(operands) // 2
    values, results = list(operands[:count]), list(operands[count:])
    if math.prod(values[0].shape[d] for d in dims) > _UNROLLED:
        return None
    rest = tuple(n for d, n in enumerate(values[0].shape) if d not in dims)
    results = [jnp.broadcast_to(r, rest) for r in results]
    for at in itertools.product(*[range(values[0].shape[d]) for d in dims]):
        index = dict(zip(dims, at, strict=True))
        parts = [v[tuple(index.get(d, slice(None)) for d in range(v.ndim))] for v in values]
        results = evaluate.interpret(jaxpr, [*results, *parts], _of_arrays)
    return results


def _of_arrays(eqn: Eqn, operands: list[Any]) -> Sequence[object]:
    """Performs an equation of scalars on arrays."""
    shape = np.broadcast_shapes(*[jnp.shape(x) for x in operands])
    return evaluate.bind(eqn, [jnp.broadcast_to(x, shape) for x in operands])


def _first_largest(eqn: Eqn, operands: Sequence[Any]) -> list[object] | None:
    (x,), (dim,) = operands, eqn.params["axes"]
    if x.dtype == jnp.bool_:
        x = x.astype(jnp.int32)
    reduce = jnp.max if eqn.primitive.name == "argmax" else jnp.min
    found = x == reduce(x, axis=dim, keepdims=True)
    if jnp.issubdtype(x.dtype, jnp.floating):
        # The first NaN counts as the largest and as the smallest.
        found = jnp.where(jnp.any(jnp.isnan(x), axis=dim, keepdims=True), jnp.isnan(x), found)
    numbers = lax.broadcasted_iota(jnp.float32, x.shape, dim)
    return [jnp.min(jnp.where(found, numbers, jnp.float32(x.shape[dim])), axis=dim).astype(eqn.params["index_dtype"])]


def _windows(eqn: Eqn, operands: Sequence[Any]) -> list[Any] | None:
    (x,), p = operands, eqn.params
    sizes, strides, steps = p["window_dimensions"], p["window_strides"], p["window_dilation"]
    if math.prod(sizes) > _UNROLLED or any(n != 1 for n in p["base_dilation"]):
        return None
    name = eqn.primitive.name.removeprefix("reduce_window_")
    combine = {"max": lax.max, "min": lax.min, "sum": lax.add}[name]
    x = _with_edges(x, _neutral(name, x.dtype), p["padding"])
    shape = [(n - (k - 1) * g - 1) // s + 1 for n, k, s, g in zip(x.shape, sizes, strides, steps, strict=True)]
    parts = [
        lax.slice(x, at, [a + (m - 1) * s + 1 for a, m, s in zip(at, shape, strides, strict=True)], strides)
        for at in itertools.product(*[range(0, k * g, g) for k, g in zip(sizes, steps, strict=True)])
    ]
    return [functools.reduce(combine, parts)]


def _neutral(name: str, dtype: Any) -> object:
    if name == "sum":
        return np.zeros((), dtype)
    if jnp.issubdtype(dtype, jnp.floating):
        return np.asarray(-np.inf if name == "max" else np.inf, dtype)
    return np.asarray(jnp.iinfo(dtype).min if name == "max" else jnp.iinfo(dtype).max, dtype)


def _wrapped(eqn: Eqn, operands: Sequence[Any]) -> list[object] | None:
    dtype = eqn.outvars[0].aval.dtype
    if dtype not in (jnp.int8, jnp.uint8) or any(x.dtype != dtype for x in operands):
        return None
    wide: Any = evaluate.bind(eqn, [x.astype(jnp.int32) for x in operands])[0] & 255
    signed = dtype == jnp.int8
    return [(wide - 256 * (wide > 127).astype(jnp.int32) if signed else wide).astype(dtype)]


def _by_logistic(eqn: Eqn, operands: Sequence[Any]) -> list[object] | None:
    (x,) = operands
    return [2 * lax.logistic(2 * x) - 1] if x.dtype in (jnp.float32, jnp.bfloat16) else None


def _of_magnitudes(eqn: Eqn, operands: Sequence[Any]) -> list[object] | None:
    (x, y), dtype = operands, operands[0].dtype
    if jnp.issubdtype(dtype, jnp.unsignedinteger):
        return None
    # The magnitude of the least integer is unsigned.
    kind = f"uint{8 * dtype.itemsize}" if jnp.issubdtype(dtype, jnp.integer) else dtype
    rest = lax.rem(lax.abs(x).astype(kind), lax.abs(y).astype(kind))
    return [rest.astype(dtype) * lax.sign(x)]


SUBSTITUTES = (
    Substitute("pad that moves", ("pad",), "a slice and a concatenation", r"left out|\bpad\b|\.pad", _padded),
    Substitute("any", ("reduce_or", "reduce_and"), "the largest, or the smallest, of zeros and ones",
        "by or|by and", _logical),
    Substitute("reduction by two operations", ("reduce",), "the operations on the parts, one after the other",
        "another reduction|ttir.prod|stablehlo.reduce\\b", _folded),
    Substitute("argmax over a dim split over two axes", ("argmax", "argmin"),
        "the smallest index of the largest element", "argmax|stablehlo.reduce\\b", _first_largest),
    Substitute("window of one dim", ("reduce_window_max", "reduce_window_min", "reduce_window_sum"),
        "the elements of the windows, as slices", "reduce_window|pool|typecast", _windows),
    Substitute("integers of 8 bits", ("add", "sub", "mul", "neg"), "32 bits, and their low 8 bits", "int8", _wrapped),
    Substitute("remainder of unlike signs", ("rem",), "that of the magnitudes, times the sign of the dividend",
        "remainder", _of_magnitudes),
    Substitute("gelu by tanh", ("tanh",), "tanh by the logistic function", "gelu", _by_logistic,
        exact=False),
)  # fmt: skip
"""What is replaced by what, one entry for each row."""


def needed_here() -> tuple[Substitute, ...]:
    """Returns the substitutes that the compiler of this Python needs; all if its version is not known."""
    try:
        version = metadata.version("jax-tt-plugin")
    except metadata.PackageNotFoundError:
        return SUBSTITUTES
    return tuple(c for c in SUBSTITUTES if _numbers(version) <= _numbers(c.plugin))


def _numbers(version: str) -> list[int]:
    return [int(n) for n in re.findall(r"\d+", version)][:3]
