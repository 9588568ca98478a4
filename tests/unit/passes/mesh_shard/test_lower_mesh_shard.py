"""The pass that replaces each mesh_shard by a distribute_tensor or an aggregate_tensor."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest
from jax import lax
from jax.sharding import PartitionSpec as P

import jaxmesh as jm
from jaxmesh.dialects.residency import HOST
from jaxmesh.jaxprs import walk
from jaxmesh.passes.mesh_shard.cancel_transfers import cancel_transfers
from jaxmesh.passes.mesh_shard.lower_mesh_shard import lower_mesh_shards
from tests.generators.transfers import COPY, SIZES, in_a_loop, lowered, moves, there_and_back, traced


def test_what_joins_nothing_brings_a_device_value_back() -> None:
    """`shard_to_full` over axes of size 1 is folded on the host alone."""
    mesh = jm.make_mesh((1, 4), ("y", "x"))

    def back(x: Any) -> Any:
        said = {"shard_type": "devices", "shard_direction": "shard_to_full", "shard_shape": [1], "shard_dims": [0, -1]}
        return jm.mesh_shard(x, **said)

    def summed(x: Any) -> Any:
        return back(lax.psum(jm.full_to_shard(x, P("x")), "x"))

    def scaled(x: Any) -> Any:
        return back(2 * lax.psum(3 * jm.full_to_shard(x, P("x")), "x"))

    x = np.arange(8, dtype=np.float32)
    want = x.reshape(4, 2).sum(0)
    for body, times in ((summed, 1), (scaled, 6)):
        out = jm.jit(body, mesh=mesh)(x)
        assert isinstance(out, jax.Array)
        np.testing.assert_array_equal(out, times * want)
        names = [e.primitive.name for e in walk.all_eqns(jm.jit(body, mesh=mesh).trace(x).lower().jaxpr)]
        assert names.count("aggregate_tensor") == 1
    folded = jm.jit(lambda x: back(x * 2), mesh=mesh).trace(x).lower().jaxpr
    assert [e.primitive.name for e in walk.all_eqns(folded)] == ["mul"]


@pytest.mark.parametrize("direction", ["full_to_shard", "shard_to_full"])
def test_the_old_identity_is_nothing(direction: str) -> None:
    """Also of a value on the devices, which it does not bring back."""

    def same(x: Any) -> Any:
        said = {"shard_type": "identity", "shard_shape": [1], "shard_dims": [-1]}
        return jm.mesh_shard(x, shard_direction=direction, **said)

    bare = lowered(lambda x: there_and_back(x * 2))
    with_it = lowered(lambda x: there_and_back(same(x * 2)))
    inside = lowered(lambda x: jm.shard_to_full(same(jm.full_to_shard(x * 2, P("y")) * 2), P("y")))
    for program in (with_it, inside):
        assert [e.primitive.name for e in program.eqns] == [e.primitive.name for e in bare.eqns]


def test_copies_are_joined_like_shards() -> None:
    """The composer of TTNN does not know that shards are equal."""
    x = np.arange(12, dtype=np.float32).reshape(3, 4)
    f = jm.jit(lambda x: in_a_loop(x, COPY), mesh=jm.make_mesh((2, 4), ("y", "x")))
    np.testing.assert_array_equal(np.asarray(f(x)), np.concatenate([2 * x] * 2))


def moves_twice(x: Any) -> Any:
    return moves(moves(x))


@pytest.mark.parametrize(
    ("change", "body"),
    [
        (lambda program: lower_mesh_shards(program, [HOST], SIZES), there_and_back),
        (lambda program: cancel_transfers(program, [HOST], SIZES), moves_twice),
    ],
)
def test_a_body_that_is_called_twice_stays_one(change: Any, body: Any) -> None:
    """JAX compiles what is the same object once."""
    half = jax.jit(body)
    program = change(traced(lambda x: half(half(x) + 1)))
    bodies = [e.params["jaxpr"] for e in program.eqns if "jaxpr" in e.params]
    assert len(bodies) == 2
    assert bodies[0] is bodies[1]
    assert bodies[0] is not traced(lambda x: half(x)).eqns[0].params["jaxpr"]
