"""Reductions of a split dim from a start that is not the identity equal NumPy's."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import PartitionSpec as P

import jaxmesh as jm

_KINDS: dict[str, tuple[Any, Callable[[Any, Any], Any], tuple[int, ...]]] = {
    "sum": (lax.add, np.add, (1, -1)),
    "prod": (lax.mul, np.multiply, (0, 5)),
    # 1 is the identity of truth values alone.
    "and": (lax.bitwise_and, np.bitwise_and, (1, 5)),
    "or": (lax.bitwise_or, np.bitwise_or, (1, 8)),
    "max": (lax.max, np.maximum, (1, 99)),
    "min": (lax.min, np.minimum, (1, -99)),
}


@pytest.mark.parametrize("dtype", ["int32", "uint8"])
def test_a_start_counts_once(dtype: str) -> None:
    """XLA's partitioner counts it once for each device, or not at all."""
    mesh = jm.make_mesh((2, 4), ("y", "x"))
    x = (np.arange(16).reshape(8, 2) | 3).astype(dtype)
    starts = [(kind, np.asarray(s).astype(dtype)) for kind, (*_, numbers) in _KINDS.items() for s in numbers]
    wanted = [functools.reduce(_KINDS[kind][1], x, start) for kind, start in starts]

    def fun(x: Any) -> list[Any]:
        return [lax.reduce(x, start, _KINDS[kind][0], (0,)) for kind, start in starts]

    for spec in (P(), P("x"), P(("y", "x")), P("x", "y")):
        traced = jm.jit(fun, mesh=mesh, in_shardings=spec).trace(x)
        assert traced.inexpressible is None
        for got, want, (kind, start) in zip(traced.lower().compile()(x), wanted, starts, strict=True):
            np.testing.assert_array_equal(got, want, f"{kind} from {start}, {spec}")


def test_a_start_of_complex_numbers() -> None:
    mesh = jm.make_mesh((2, 4), ("y", "x"))
    x = np.arange(8).astype(np.complex64) * (1 + 2j)
    sums = jm.jit(lambda x: (x.sum(), lax.reduce(x, np.complex64(1j), lax.add, (0,))), mesh=mesh, in_shardings=P("x"))
    np.testing.assert_array_equal(jax.tree.map(np.asarray, sums(x)), [x.sum(), x.sum() + 1j])
    with pytest.raises(jm.errors.InexpressibleError, match="compute with the real and imaginary parts"):
        sums.lower(x).as_text()


def _largest(a: Any, b: Any) -> Any:
    first = (a[0] > b[0]) | ((a[0] == b[0]) & (a[1] < b[1]))
    return jnp.where(first, a[0], b[0]), jnp.where(first, a[1], b[1])


def _largest_and_first(a: Any, b: Any) -> Any:
    return jnp.where(a[0] > b[0], a[0], b[0]), jnp.where(a[1] < b[1], a[1], b[1])


@pytest.mark.filterwarnings("ignore::jaxmesh.errors.ReplicatedProgramWarning")
@pytest.mark.parametrize(
    ("body", "start", "reads_argmax"),
    [(_largest, (-np.inf, 0), True), (_largest, (1.5, 77), False), (_largest_and_first, (-np.inf, 99), False)],
    ids=["argmax", "from a number", "not its index"],
)
def test_only_an_argmax_is_read_as_one(body: Any, start: tuple[float, int], reads_argmax: bool) -> None:
    mesh = jm.make_mesh((2, 4), ("y", "x"))
    x = np.random.default_rng(0).integers(-2, 4, (8, 4)).astype(np.float32)
    starts = np.float32(start[0]), np.int32(start[1])

    def fun(x: Any) -> Any:
        return lax.reduce((x, lax.broadcasted_iota("int32", x.shape, 0)), starts, body, (0,))

    wanted: Any = functools.reduce(body, zip(x, np.arange(8)[:, None] + np.zeros(4, np.int32), strict=True), starts)
    for spec in (P(), P("x"), P(("x", "y"))):
        traced = jm.jit(fun, mesh=mesh, in_shardings=spec).trace(x)
        jax.tree.map(np.testing.assert_array_equal, tuple(traced.lower().compile()(x)), wanted)
        assert ("argmax" in traced.as_text("jaxpr")) == reads_argmax


def test_integers_of_4_bits() -> None:
    """Their sums over devices are computed in int32; the texts of a remainder and a shift are read back."""
    mesh = jm.make_mesh((2, 4), ("y", "x"))
    x = np.arange(-8, 8).astype(jnp.int4)
    y = np.where(x == 0, 3, np.roll(x, 3).astype(int) | 1).astype(jnp.int4)

    def fun(x: Any, y: Any) -> list[Any]:
        shifted = lax.shift_right_arithmetic(x.astype(jnp.uint4), jnp.full(16, 1, jnp.uint4))
        return [x[np.array([1, 5, -1])], x @ y, lax.rem(x, y), shifted]

    wide, other = x.astype(int), y.astype(int)
    wanted = [wide[[1, 5, -1]], (wide @ other + 8) % 16 - 8, np.fmod(wide, other), (wide >> 1) % 16]
    lowered = jm.jit(fun, mesh=mesh, in_shardings=(P("x"), P())).lower(x, y)
    for got in (lowered.compile()(x, y), jm.from_mlir(lowered.as_text(strict=False), mesh).lower().compile()(x, y)):
        for a, b in zip(got, wanted, strict=True):
            np.testing.assert_array_equal(np.asarray(a).astype(int), b)
