"""Transfers inside of loops, under vmap and transposed, against NumPy and against their own definition."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import PartitionSpec as P

import jaxmesh as jm
from jaxmesh import ttnn
from jaxmesh.sharding.configs import (
    MeshComposerConfig,
)
from jaxmesh.sharding.shard_attributes import FIRST_DEVICE
from tests.generators.transfers import (
    BOTH,
    COPY,
    JOIN_BOTH,
    JOIN_SECOND,
    ONE,
    ROWS,
    SECOND,
    aggregate,
    by_place,
    crossed,
    distribute,
    in_a_loop,
    raw,
    replicated,
)


def test_transfers_inside_of_a_loop() -> None:
    """A loop that carries a device value: its transfers compile to slices and gathers, and the oracle is by hand."""
    x = np.arange(64, dtype=np.float32).reshape(8, 8)
    numbers = {
        "large": np.arange(8, dtype=np.int32) + (1 << 24),
        "two bits": np.array([-2, -1, 0, 1] * 2).astype(jnp.int2),
        "unsigned": np.array([3, 1, 0, 2] * 2).astype(jnp.uint2),
        "four": np.array([-8, -1, 0, 7] * 2).astype(jnp.int4),
    }

    def apart(v: Any) -> Any:
        full = jm.shard_to_full(by_place(jm.full_to_shard(v, P("x")), "y"), P("x"), assume_replicated=True)
        # Every device reads the copy at coordinate 0, not its own.
        return jm.shard_to_full(2 * jm.full_to_shard(full, P("y")), P("y"))

    def drawn(keys: Any) -> Any:
        own = jax.vmap(lambda k: jax.random.fold_in(k, lax.axis_index("x")))(jm.full_to_shard(keys, P()))
        return jax.random.key_data(jm.shard_to_full(own, P(), assume_replicated=True))

    def body(x: Any, numbers: Any, keys: Any) -> Any:
        def step(c: Any, _: Any) -> Any:
            joined = {k: jm.shard_to_full(jm.full_to_shard(n, P("x")), P("x")) for k, n in numbers.items()}
            return c, (crossed(x), apart(x), drawn(keys), joined)

        _, out = lax.scan(step, distribute(x, COPY), None, length=1)
        return jax.tree.map(lambda v: v[0], out)

    keys = jax.random.split(jax.random.key(3), 2)
    across, one, words, joined = jm.jit(body, mesh=jm.make_mesh((2, 4), ("y", "x")), check_replication=False)(
        x, numbers, keys
    )
    want = x.copy()
    for place in range(8):
        row, column = divmod(place, 2)
        want[2 * row : 2 * row + 2, 4 * column : 4 * column + 4] *= (1 + 10 * (place // 4)) * (1 + place % 4)
    np.testing.assert_array_equal(np.asarray(across), want)
    np.testing.assert_array_equal(np.asarray(one), 2 * x)
    np.testing.assert_array_equal(
        np.asarray(words), jax.random.key_data(jax.vmap(lambda k: jax.random.fold_in(k, 0))(keys))
    )
    for name, n in numbers.items():
        assert joined[name].dtype == n.dtype
        np.testing.assert_array_equal(np.asarray(joined[name]).astype(np.int64), n.astype(np.int64))


def test_an_aggregate_of_nothing_keeps_its_type() -> None:
    for dtype in (np.int8, np.float16):
        x = np.zeros((0, 4), dtype)
        out = jm.jit(lambda x: in_a_loop(x, ROWS), mesh=jm.make_mesh((2, 4), ("y", "x")))(x)
        assert (out.shape, out.dtype) == ((0, 4), dtype)


MOVES = {
    "negative dims": lambda x: aggregate(by_place(distribute(x, BOTH)), JOIN_BOTH),
    "a dropped axis": lambda x: aggregate(by_place(distribute(x, SECOND), "x")[:, :4], JOIN_SECOND),
    "across mesh axes": crossed,
    "rank 1": lambda x: aggregate(by_place(distribute(x[0], ONE), "x")[None], MeshComposerConfig([0, 1], (1, 4))),
    "the copy of device 0": lambda x: aggregate(jnp.flip(distribute(x, COPY)), FIRST_DEVICE),
    "mesh_shard": raw,
    "mesh_shard, replicate": replicated,
}


@pytest.mark.parametrize("name", [n for n in MOVES if n != "across mesh axes"])
def test_vmap_moves_the_batch_along(name: str) -> None:
    mesh = jm.make_mesh((2, 4), ("y", "x"))
    x = np.arange(3 * 8 * 8, dtype=np.float32).reshape(3, 8, 8)
    one = jm.jit(MOVES[name], mesh=mesh)
    want = np.stack([np.asarray(one(row)) for row in x])
    for at in range(3):
        mapped = jm.jit(lambda x, at=at: jax.vmap(MOVES[name], in_axes=at, out_axes=at)(x), mesh=mesh)
        np.testing.assert_array_equal(np.asarray(mapped(np.moveaxis(x, 0, at))), np.moveaxis(want, 0, at))


@pytest.mark.parametrize("name", MOVES)
def test_a_transpose_is_the_adjoint(name: str) -> None:
    """The sum of y * f(x) is the sum of x * f'(y); all numbers are small integers, so both are exact."""
    mesh = jm.make_mesh((2, 4), ("y", "x"))
    rng = np.random.default_rng(0)
    x = rng.integers(-4, 5, (8, 8)).astype(np.float32)
    f = jm.jit(MOVES[name], mesh=mesh)
    y = rng.integers(-4, 5, np.shape(f(x))).astype(np.float32)
    (back,) = jax.linear_transpose(f, x)(y)
    assert float((y * np.asarray(f(x))).sum()) == float((x * np.asarray(back)).sum())
    inside = jm.jit(lambda x, y: jax.vjp(MOVES[name], x)[1](y)[0], mesh=mesh)
    got = inside(x, y)
    for copy_of in ttnn.get_device_tensors(got) if isinstance(got, jm.MeshTensor) else [got]:
        np.testing.assert_array_equal(np.asarray(copy_of), np.asarray(back))
