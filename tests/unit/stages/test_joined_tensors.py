"""MeshTensors as arrays: the joined program computes what the program computes of shards, by a loop over devices."""

from __future__ import annotations

import itertools
from typing import Any

import jax
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import jaxmesh as jm
from jaxmesh.errors import UnsupportedError
from jaxmesh.stages.joined_tensors import join_tensors, tensor_arguments, tensor_results, with_joined_tensors
from jaxmesh.stages.stages import Traced
from tests.generators.suite.entry import on_devices

MESH = jm.make_mesh((2, 4), ("y", "x"))
WIDE = np.arange(128, dtype=np.float32).reshape(8, 16)
TALL = WIDE.T[:8, :3].copy()


@jm.jit(mesh=MESH)
def program(x: Any, w: Any, scale: Any) -> Any:
    full = jm.shard_to_full(jax.lax.psum(x @ w, "x"), P("y"))
    return x * 2, full, w * jm.full_to_shard(scale, P())


ARGUMENTS = on_devices(WIDE, P("y", "x"), MESH), on_devices(np.tile(TALL, (2, 1)), P("x"), MESH), np.float32(3)


def joined() -> tuple[Any, Any]:
    lowered = program.lower(*ARGUMENTS)
    boundary, jaxpr = with_joined_tensors(lowered._boundary, lowered.residency)
    return lowered, Traced(boundary, jaxpr, lowered.out_tree).lower()


def test_tensors_are_known_by_their_numbers() -> None:
    lowered, whole = joined()
    assert tensor_arguments(lowered._boundary) == {0, 1}
    assert tensor_results(lowered._boundary, lowered.residency.results) == {0, 2}
    assert not tensor_arguments(whole._boundary)
    # A shard of 4x4 on each of 2x4 devices, and one of 4x3 on each of the 4 along x.
    assert [a.shape for a in whole.in_avals] == [(32, 4), (16, 3), ()]
    assert [a.shape for a in whole.out_avals] == [(32, 4), (8, 3), (16, 3)]


def test_shards_are_joined_along_the_first_dim_in_the_order_of_the_mesh() -> None:
    x, w, scale = join_tensors(ARGUMENTS)
    for (i, (a, b)), shard in zip(
        enumerate(itertools.product(range(2), range(4))), (s for _, s in ARGUMENTS[0].shards()), strict=True
    ):
        np.testing.assert_array_equal(x[4 * i : 4 * i + 4], WIDE[4 * a : 4 * a + 4, 4 * b : 4 * b + 4])
        np.testing.assert_array_equal(x[4 * i : 4 * i + 4], shard)
    np.testing.assert_array_equal(w, np.tile(TALL, (2, 1)))
    assert scale == 3


def test_the_joined_program_computes_the_same() -> None:
    lowered, whole = joined()
    got = whole.compile()(*join_tensors(ARGUMENTS))
    want = join_tensors(lowered.compile()(*ARGUMENTS))
    for a, b in zip(got, want, strict=True):
        assert isinstance(a, jax.Array)
        np.testing.assert_array_equal(a, b)
    np.testing.assert_array_equal(got[2], np.tile(TALL, (2, 1)) * 3)


def test_a_scalar_that_differs_is_a_named_error() -> None:
    scalars = jm.jit(lambda x: x.reshape(()), mesh=MESH)(on_devices(np.arange(8.0), P(("y", "x")), MESH))
    assert scalars.shape == ()
    lowered = jm.jit(lambda x: jax.lax.psum(x, "x"), mesh=MESH).lower(scalars)
    with pytest.raises(UnsupportedError, match=r"argument x is a MeshTensor of scalars.*y, x.*of the shape \[1\]"):
        lowered.upstream()
