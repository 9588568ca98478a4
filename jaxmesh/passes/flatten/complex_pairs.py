"""Complex numbers, which TTIR does not have: a pair of real tensors, and each primitive by what it does with the parts.

Arguments and results of a program are real.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np

from jaxmesh.dialects.program import Shape, Value
from jaxmesh.errors import UnsupportedError
from jaxmesh.jaxprs.compat import Eqn
from jaxmesh.jaxprs.untyped import Array, jnp, lax
from jaxmesh.passes.flat_builder import Rules
from jaxmesh.passes.flatten import collectives, control_flow
from jaxmesh.passes.flatten.builder import COMPLEX, Builder, Rule
from jaxmesh.passes.flatten.decompositions import Params
from jaxmesh.passes.flatten.index_arithmetic import broadcast_to

Pair = tuple[jax.Array, jax.Array]
RULES: Rules[Rule] = Rules()
RULES.update({COMPLEX + name: rule for name, rule in control_flow.RULES.items()})
FFT_LIMIT = 1024
"""The most points of a Fourier transform along a dim: it is a product with a square table of two parts."""


def _parts(*names: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Adds a function of a primitive's parameters and operands, complex ones as pairs, as the rule of each name."""

    def enter(function: Callable[..., Any]) -> Callable[..., object]:
        @RULES.add(*(COMPLEX + n for n in names))
        def rule(b: Builder, eqn: Eqn, xs: Sequence[Value]) -> Value:
            given = [b.pairs.get(x, (x,)) for x in xs]

            def on_parts(*flat: jax.Array) -> jax.Array | Pair:
                parts = iter(flat)
                args = [tuple(next(parts) for _ in g) if len(g) > 1 else next(parts) for g in given]
                return function(eqn.params, *args)

            made = b.composed(on_parts, [part for g in given for part in g])
            return made[0] if len(made) == 1 else b.pair(*made)

        return function

    return enter


def _pair(x: jax.Array | Pair) -> Pair:
    return x if isinstance(x, tuple) else (x, jnp.zeros_like(x))


@_parts("conj")
def _conj(params: Params, x: jax.Array | Pair) -> Pair:
    real, imaginary = _pair(x)
    return real, -imaginary


@_parts("abs")
def _abs(params: Params, x: Pair) -> jax.Array:
    # Scaled, so that squares neither overflow nor vanish.
    large = jnp.maximum(abs(x[0]), abs(x[1]))
    safe = jnp.where(large == 0, 1, large)
    a, b = x[0] / safe, x[1] / safe
    return large * jnp.sqrt(a * a + b * b)


@_parts("mul")
def _mul(params: Params, x: Pair, y: Pair) -> Pair:
    return x[0] * y[0] - x[1] * y[1], x[0] * y[1] + x[1] * y[0]


@_parts("div")
def _div(params: Params, x: Pair, y: Pair) -> Pair:
    size = y[0] * y[0] + y[1] * y[1]
    return (x[0] * y[0] + x[1] * y[1]) / size, (x[1] * y[0] - x[0] * y[1]) / size


_OF_ONE: Mapping[str, Callable[[Params, Any], Any]] = {
    "real": lambda params, x: x[0],
    "imag": lambda params, x: x[1],
    "neg": lambda params, x: (-x[0], -x[1]),
    "square": lambda params, x: _mul(params, x, x),
}
_OF_TWO: Mapping[str, Callable[[Params, Any, Any], Any]] = {
    "complex": lambda params, real, imaginary: (real, imaginary),
    "add": lambda params, x, y: (x[0] + y[0], x[1] + y[1]),
    "add_any": lambda params, x, y: (x[0] + y[0], x[1] + y[1]),
    "sub": lambda params, x, y: (x[0] - y[0], x[1] - y[1]),
    "eq": lambda params, x, y: (x[0] == y[0]) & (x[1] == y[1]),
    "ne": lambda params, x, y: (x[0] != y[0]) | (x[1] != y[1]),
}
for _name, _function in (*_OF_ONE.items(), *_OF_TWO.items()):
    _parts(_name)(_function)


@_parts("integer_pow")
def _integer_pow(params: Params, x: Pair) -> Pair:
    power = functools.reduce(functools.partial(_mul, params), [x] * abs(params["y"]), (jnp.ones_like(x[0]), 0 * x[0]))
    return power if params["y"] >= 0 else _div(params, (jnp.ones_like(x[0]), 0 * x[0]), power)


@_parts("exp")
def _exp(params: Params, x: Pair) -> Pair:
    size = jnp.exp(x[0])
    return size * jnp.cos(x[1]), size * jnp.sin(x[1])


@_parts("convert_element_type")
def _convert(params: Params, x: jax.Array | Pair) -> jax.Array | Pair:
    new = np.dtype(params["new_dtype"])
    if new.kind != "c":
        return x[0].astype(new)
    kind = np.float32 if new.itemsize == np.dtype(np.complex64).itemsize else np.float64
    real, imaginary = _pair(x)
    return real.astype(kind), imaginary.astype(kind)


@_parts("dot_general")
def _dot_general(params: Params, x: Pair, y: Pair) -> Pair:
    def dot(a: jax.Array, b: jax.Array) -> jax.Array:
        return lax.dot_general(a, b, params["dimension_numbers"], precision=params["precision"])

    return dot(x[0], y[0]) - dot(x[1], y[1]), dot(x[0], y[1]) + dot(x[1], y[0])


_MOVES = (
    "broadcast_in_dim", "concatenate", "copy", "dynamic_slice", "dynamic_update_slice", "gather", "pad",
    "reduce_sum", "reshape", "rev", "select_n", "slice", "split", "squeeze", "transpose",
)  # fmt: skip


@RULES.add(*(COMPLEX + name for name in (*_MOVES, *collectives.RULES)))
def _on_each_part(b: Builder, eqn: Eqn, xs: Sequence[Value]) -> Sequence[Value]:
    """Moves, joins and adds up each part by the rule for real numbers."""
    real = eqn.replace(invars=[_as_real(v) for v in eqn.invars], outvars=[_as_real(v) for v in eqn.outvars])
    sides: list[Sequence[Value]] = []
    for side in (0, 1):
        made = b.rules[eqn.primitive.name](b, real, [b.pairs[x][side] if x in b.pairs else x for x in xs])
        sides.append((made,) if isinstance(made, int) else made)
    return [b.pair(*parts) for parts in zip(*sides, strict=True)]


def _as_real(v: Any) -> object:
    """Returns what stands for a complex variable in an equation of its parts; any other one unchanged."""
    dtype = getattr(v.aval, "dtype", None)
    kinds: dict[Any, Any] = {np.dtype(np.complex64): np.float32, np.dtype(np.complex128): np.float64}
    return SimpleNamespace(aval=v.aval.update(dtype=np.dtype(kinds[dtype]))) if dtype in kinds else v


# --- Fourier transforms ----------------------------------------------------------------------------------------------


@RULES.add("fft", COMPLEX + "fft")
def _fft(b: Builder, eqn: Eqn, xs: Sequence[Value]) -> Value:
    """Transforms dim by dim: a product with the table of its roots of unity."""
    kind: str = eqn.params["fft_type"].name.removesuffix("FFT")
    lengths: Sequence[int] = eqn.params["fft_lengths"]
    if max(lengths) > FFT_LIMIT:
        raise UnsupportedError(
            f"fft ({b.line}) of {' x '.join(map(str, lengths))} points is printed as products with tables, and the "
            f"limit is {FFT_LIMIT} points in a dim; split it into shorter ones."
        )
    # A part that is the same everywhere may be a number in no dims.
    shape: Shape = eqn.invars[0].aval.shape
    given = [broadcast_to(b, x, shape, range(len(shape) - len(b.shape(x)), len(shape))) for x in b.pairs.get(xs[0], xs)]

    def transform(*parts: jax.Array) -> jax.Array | Pair:
        return _transform(kind, lengths, *parts)

    made = b.composed(transform, given)
    return made[0] if kind == "IR" else b.pair(*made)


def _transform(kind: str, lengths: Sequence[int], *parts: jax.Array) -> jax.Array | Pair:
    first: int = parts[0].ndim - len(lengths)
    dims: list[int] = list(range(first, parts[0].ndim))
    x: Any = (parts[0], None) if kind == "R" else parts
    # The dim that is a half on one side is the last: of real numbers it goes first, into real numbers last.
    for dim in dims if kind == "IR" else dims[::-1]:
        half = dim == parts[0].ndim - 1
        x = _along(x, dim, lengths[dim - first], kind.startswith("I"), half and kind == "R", half and kind == "IR")
    return x[0] if kind == "IR" else x


def _along(x: jax.Array, dim: int, length: int, inverse: bool, half_out: bool, half_in: bool) -> Any:
    """Transforms one dim of a pair; the imaginary part of real numbers is None.

    `half_out` gives the first half of a result that mirrors itself; `half_in` takes that half, for a real result.
    """
    points, kind = np.arange(length), x[0].dtype
    count = length // 2 + 1
    rows, columns = points[:count] if half_in else points, points[:count] if half_out else points
    angles = (2 if inverse else -2) * math.pi / length * (np.outer(rows, columns) % length)
    scale = np.full((rows.size, 1), 1 / length if inverse else 1.0)
    if half_in:
        # Each number stands for its mirror image, too, but the first, and of an even length the last.
        scale[1 : (length + 1) // 2] *= 2
    cos, sin = ((scale * table).astype(kind) for table in (np.cos(angles), np.sin(angles)))

    def product(part: jax.Array, table: Array) -> jax.Array:
        made = lax.dot_general(part, table, (((dim,), (0,)), ((), ())), precision=lax.Precision.HIGHEST)
        return jnp.moveaxis(made, -1, dim)

    real, imaginary = x
    if imaginary is None:
        return product(real, cos), product(real, sin)
    if half_in:
        return product(real, cos) - product(imaginary, sin), None
    return product(real, cos) - product(imaginary, sin), product(real, sin) + product(imaginary, cos)
