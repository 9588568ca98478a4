"""Indices of any integer type into a split dim, and the numbers of a split iota."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from jax import lax, numpy as jnp
from jax.sharding import PartitionSpec as P

import jaxmesh as jm

X = np.arange(256, dtype=np.float32)


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "uint32"])
def test_indices_beyond_their_type(dtype: str) -> None:
    """A shard's offset or the last index need not fit the type of the indices."""
    mesh = jm.make_mesh((2, 4), ("y", "x"))
    indices = np.array([[-96], [5], [127], [-1], [100]]).astype(dtype)
    of_gather = lax.GatherDimensionNumbers((), (0,), (0,))
    of_scatter = lax.ScatterDimensionNumbers((), (0,), (0,))

    def fun(x: Any, i: Any) -> Any:
        rows = [lax.gather(x, i, of_gather, (1,), mode=mode, fill_value=-7) for mode in ("clip", "fill")]
        return *rows, lax.scatter_add(x, i, jnp.ones(5), of_scatter, mode="drop")

    at = indices[:, 0].astype(np.int64)
    inside = (at >= 0) & (at < 256)
    clipped = np.clip(at, 0, 255).astype(np.float32)
    for spec in (P(), P(("y", "x"))):
        got = jm.jit(fun, mesh=mesh, in_shardings=(spec, P()))(X, indices)
        np.testing.assert_array_equal(got[0], clipped)
        np.testing.assert_array_equal(got[1], np.where(inside, clipped, -7))
        np.testing.assert_array_equal(got[2], X + np.bincount(at[inside], minlength=256))


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "int8"])
def test_a_split_iota_is_rounded_once(dtype: str) -> None:
    mesh = jm.make_mesh((2, 4), ("y", "x"))
    got = jm.jit(lambda: lax.iota(dtype, 2048), mesh=mesh, out_shardings=P("x"))()
    np.testing.assert_array_equal(np.asarray(got), np.arange(2048).astype(jnp.dtype(dtype)))
