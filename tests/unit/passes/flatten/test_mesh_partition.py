"""A slice of a device's own shard is a mesh_partition, on meshes of any rank; other slices stay slices."""

from __future__ import annotations

import math
from typing import Any

import jax
import numpy as np
import pytest
from jax import lax
from jax.sharding import PartitionSpec as P

import jaxmesh as jm

NAMES = ("z", "y", "x")


@pytest.mark.parametrize("shift", [0, 1])
@pytest.mark.parametrize("sizes", [(8,), (2, 4), (1, 4), (2, 2, 2)])
def test_an_own_shard_is_a_mesh_partition(sizes: tuple[int, ...], shift: int) -> None:
    axes = NAMES[-len(sizes) :]
    mesh = jm.make_mesh(sizes, axes)
    x = np.arange(3.0 * math.prod(sizes), dtype=np.float32)

    def own(x: Any) -> Any:
        return lax.dynamic_slice_in_dim(x, lax.axis_index(axes) * 3 + shift, 3)

    f = jm.jit(jax.shard_map(own, mesh=mesh, in_specs=P(), out_specs=P(axes)), mesh=mesh)
    text = f.trace(x).as_text()
    assert text.count("ttir.mesh_partition") == (0 if shift else sum(n > 1 for n in sizes))
    # The last slice moves inside.
    want = [x[min(k, x.size - 3) :][:3] for k in range(shift, x.size, 3)]
    np.testing.assert_array_equal(f(x), np.concatenate(want))


def test_slices_without_a_mesh_stay_slices() -> None:
    f = jm.jit(lambda x: lax.dynamic_slice(x, (np.int32(3) + lax.clamp(0, lax.max(5, 2), 4),), (8,)))
    x = np.arange(16.0, dtype=np.float32)
    assert "mesh_partition" not in f.trace(x).as_text()
    np.testing.assert_array_equal(f(x), x[7:15])
