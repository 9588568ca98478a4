"""The attributes of mesh_shard, and the programs that break their rules."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import pytest
from jax.sharding import PartitionSpec as P

import jaxmesh as jm
from jaxmesh.dialects.ttir.mesh_shard import MeshShardAttributes, ShardDirection, ShardType, verify
from jaxmesh.errors import VerifyError
from tests.generators.transfers import SIZES, aggregate, distribute, replicated, traced


@pytest.mark.parametrize(
    ("kind", "pieces", "dims", "words"),
    [
        ("replicate", (2,), (-1,), "shard_shape = [1] (or 2 ones for this tensor of rank 2), got [2]"),
        ("replicate", (1, 2), (-1,), "got [1, 2]"),
        ("replicate", (1, 1, 1), (-1,), "got [1, 1, 1]"),
        ("replicate", (1,), (0,), "shard_dims = [-1] (or one -1 per axis of the mesh y=2, x=4), got [0]"),
        ("replicate", (1,), (-1, 1), "got [-1, 1]"),
        ("replicate", (1,), (-1, -1, -1), "got [-1, -1, -1]"),
        ("devices", (2, 1), (0,), "[0] has 1 entries and the mesh y=2, x=4 has 2 axes; write -1"),
        ("devices", (2,), (0, -1), "[2] has 1 entries and the tensor has rank 2"),
        ("devices", (2, 1), (0, 2), "names dim 2 for mesh axis 'x' of size 4, but the tensor has rank 2; allowed are "
         "-1 (no dim) to 1"),
        ("devices", (2, 1), (-2, -1), "names dim -2 for mesh axis 'y' of size 2"),
        ("devices", (2, 1), (0, 1), "split the dims into [2, 4] pieces; write shard_shape = [2, 4]"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("direction", ShardDirection)
def test_attributes_that_contradict_each_other(
    kind: str, pieces: tuple[int, ...], dims: tuple[int, ...], words: str, direction: ShardDirection
) -> None:
    with pytest.raises(VerifyError, match=re.escape(words)):
        verify(MeshShardAttributes(ShardType(kind), direction, pieces, dims), (16, 8), SIZES)


@pytest.mark.parametrize("pieces", [(1,), (1, 1)])
@pytest.mark.parametrize("dims", [(-1,), (-1, -1)])
@pytest.mark.parametrize("direction", ShardDirection)
def test_replicate_is_written_short_or_long(
    pieces: tuple[int, ...], dims: tuple[int, ...], direction: ShardDirection
) -> None:
    assert verify(MeshShardAttributes(ShardType.REPLICATE, direction, pieces, dims), (3, 5), SIZES) == (3, 5)


@pytest.mark.parametrize(
    "back",
    [
        lambda s, **assumed: jm.shard_to_full(s, P("y"), **assumed),
        lambda s, **assumed: jm.mesh_shard(
            s, shard_type="devices", shard_direction="shard_to_full", shard_shape=[2, 1], shard_dims=[0, -1], **assumed
        ),
    ],
)
def test_copies_are_taken_for_equal_only_when_that_is_said(back: Callable[..., Any]) -> None:
    words = r"with shard_dims \[0, -1\] does not aggregate mesh axis 'x', but .* still varies over it.*psum"
    for said in ({}, {"assume_replicated": False}):
        with pytest.raises(jm.ReplicationError, match=words):
            traced(lambda x, said=said: back(jm.full_to_shard(x, P("y", "x")), **said))
    assert traced(lambda x: back(jm.full_to_shard(x, P("y", "x")), assume_replicated=True)).out_avals[0].shape == (
        16,
        2,
    )


@pytest.mark.parametrize("axes", [("x",), ("y", "x")])
def test_a_shard_is_not_split_again(axes: tuple[str, ...]) -> None:
    said = ", ".join(map(repr, sorted(axes)))
    words = rf"mesh_shard full_to_shard needs a full tensor.*varies over mesh axis {said}; it is a shard already"
    with pytest.raises(jm.ReplicationError, match=words):
        traced(lambda x: jm.full_to_shard(jm.full_to_shard(x, P(*axes)), P()))


def test_a_refused_split_names_its_own_axes() -> None:
    words = "dim 1 has size 6, which 4 devices ('x' of size 4) do not divide; pad the dim to 8 or leave it whole."
    with pytest.raises(VerifyError, match=re.escape(words)):
        traced(lambda x: jm.full_to_shard(x, P("y", "x")), jnp.ones((4, 6)))
    words = "which 8 devices ('y' of size 2 and 'x' of size 4) do not divide; pad the dim to 16"
    with pytest.raises(VerifyError, match=re.escape(words)):
        traced(lambda x: jm.full_to_shard(x, P(("x", "y"))), jnp.ones((9,)))


@pytest.mark.parametrize(
    ("name", "call"),
    [
        ("full_to_shard", lambda: jm.full_to_shard(1.0, P())),
        ("shard_to_full", lambda: jm.shard_to_full(1.0, P())),
        ("mesh_shard", lambda: replicated(1.0)),
        ("distribute_tensor", lambda: distribute(jnp.ones((8, 8)))),
        ("aggregate_tensor", lambda: aggregate(jnp.ones((8, 8)))),
    ],
)
def test_outside_of_a_program_the_operation_is_named(name: str, call: Callable[[], Any]) -> None:
    with pytest.raises(jm.UnloweredError, match=f"^{name} has no execution rule"):
        call()
