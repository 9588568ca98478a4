"""`ragged_all_to_all` by the call, the reference run and the text, against a plain loop over devices."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import PartitionSpec as P

import jaxmesh as jm

DEVICES, WIDE, ROWS, LONGER = 4, 3, 12, 20
MESH = jm.make_mesh((2, DEVICES), ("y", "x"))
SPEC = P(("y", "x"))


def drawn(seed: int, slices: int, groups: Any = None, apart: bool = False) -> tuple[list[Any], Any]:
    """Arguments of all devices, joined along dim 0, and what a plain loop makes of them.

    With `apart` a device sends no row twice and no slice is empty, as JAX's derivative takes for granted.
    """
    rng = np.random.default_rng(seed)
    n = len(groups[0]) if groups else DEVICES
    count = n * slices
    x, out = rng.normal(size=(2, DEVICES, ROWS, WIDE)), rng.normal(size=(2, DEVICES, LONGER, WIDE))
    sent = rng.integers(0, 1 + LONGER // count, (2, DEVICES, count))
    starts = np.stack([[rng.integers(0, ROWS - s + 1) for s in row] for row in sent.reshape(-1, count)])
    if apart:
        sent = np.clip(sent, 1, ROWS // count)
        starts = np.cumsum(sent, -1) - sent
    starts, places = starts.reshape(sent.shape), np.zeros_like(sent)
    received, wanted = np.zeros_like(sent), out.copy()
    for y in range(2):
        for group in groups or [range(DEVICES)]:
            for to, target in enumerate(group):
                at = 0
                for i in range(count):
                    source, number = group[i // slices], to * slices + i % slices
                    size, begin = sent[y, source, number], starts[y, source, number]
                    places[y, source, number], received[y, target, i] = at, size
                    wanted[y, target, at : at + size] = x[y, source, begin : begin + size]
                    at += size
    tables = [t.astype(np.int32).reshape(-1) for t in (starts, sent, places, received)]
    return [x.reshape(-1, WIDE), out.reshape(-1, WIDE), *tables], wanted.reshape(-1, WIDE)


def exchange(*args: Any, groups: Any = None) -> Any:
    return lax.ragged_all_to_all(*args, axis_name="x", axis_index_groups=groups)


def mapped(body: Callable[..., Any], typed: bool = True) -> Any:
    return jax.shard_map(body, mesh=MESH, in_specs=SPEC, out_specs=SPEC, check_vma=typed)


def by_hand(*args: Any) -> Any:
    return jm.shard_to_full(exchange(*(jm.full_to_shard(a, SPEC) for a in args)), SPEC)


def in_a_loop(*args: Any) -> Any:
    """The second trip does the same again."""
    return lax.fori_loop(0, 2, lambda _, out: exchange(args[0], out, *args[2:]), args[1])


PROGRAMS: dict[str, Any] = {
    "shard_map": mapped(exchange),
    "check_vma=False": mapped(exchange, typed=False),
    "by hand": by_hand,
    "in a loop": mapped(in_a_loop),
    "jit inside": mapped(jax.jit(exchange)),
}


@pytest.mark.parametrize("slices", [1, 2])
@pytest.mark.parametrize("dtype", [np.float32, np.int32, jnp.bfloat16])
@pytest.mark.parametrize("name", PROGRAMS)
def test_the_numbers_are_those_of_a_loop(name: str, dtype: Any, slices: int) -> None:
    (x, out, *tables), wanted = drawn(slices, slices)
    args = [(x * 9).astype(dtype), (out * 9).astype(dtype), *tables]
    wanted = (wanted * 9).astype(dtype)
    lowered = jm.jit(PROGRAMS[name], mesh=MESH).lower(*args)
    text = jm.from_mlir(lowered.as_text(), MESH).lower().compile()
    for run in (lowered.compile(), lowered.reference, text):
        np.testing.assert_array_equal(np.asarray(run(*args)), wanted)


def test_beside_the_partitioner_and_in_groups() -> None:
    args, wanted = drawn(5, 1)
    plain = jm.jit(lambda *xs: PROGRAMS["shard_map"](*xs) * 2.0, mesh=MESH, in_shardings=P("y"))
    np.testing.assert_array_equal(np.asarray(plain(*args)), (wanted * 2.0).astype(np.float32))
    groups = [[0, 2], [3, 1]]
    args, wanted = drawn(6, 2, groups)
    grouped = jm.jit(mapped(lambda *xs: exchange(*xs, groups=groups), typed=False), mesh=MESH)
    np.testing.assert_array_equal(np.asarray(grouped(*args)), wanted.astype(np.float32))


def test_gradients() -> None:
    (x, out, *tables), wanted = drawn(7, 1, apart=True)
    weight = np.random.default_rng(8).normal(size=wanted.shape).astype(np.float32)

    def loss(x: Any, out: Any) -> Any:
        return (PROGRAMS["shard_map"](x, out, *tables) * weight).sum()

    # Each row of the result is a row of one of the two.
    for program in (jm.jit(jax.grad(loss, (0, 1)), mesh=MESH), jax.grad(jm.jit(loss, mesh=MESH), (0, 1))):
        down, beside = program(x.astype(np.float32), out.astype(np.float32))
        np.testing.assert_allclose((down * x).sum() + (beside * out).sum(), (wanted * weight).sum(), rtol=1e-4)
