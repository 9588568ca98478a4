"""Reshards by whole axes: every pair of shardings of a matrix is planned, and the plan ends where it should."""

from __future__ import annotations

import itertools

import jax
import numpy as np
import pytest

import jaxmesh as jm
from jaxmesh.frontends.stablehlo import values
from jaxmesh.frontends.stablehlo.shardings import Sharding, as_spec
from jaxmesh.frontends.stablehlo.values import added_axes, plan

SIZES = {"z": 2, "y": 2, "x": 4}


def every_sharding() -> list[Sharding]:
    rows = [p for n in range(3) for p in itertools.permutations(SIZES, n)]
    pairs = itertools.product(rows, repeat=2)
    return [(a, b) for a, b in pairs if not set(a) & set(b)]


def perform(source: Sharding, moves: list[object]) -> Sharding:
    now, moving = [list(row) for row in source], list[str]()
    for move in moves:
        if move.kind == "slice":
            assert move.axis not in [a for row in now for a in row]
        else:
            start = now[move.source if move.source >= 0 else move.dim]
            moving = [*moving, move.axis] if move.kind == "all_to_all" and move.axis != start[-1] else moving
            start.remove(move.axis)
            if move.group:
                assert [*moving, move.axis] == list(move.group)
                moving = []
        if move.kind != "all_gather":
            now[move.dim].append(move.axis)
    assert not moving
    return tuple(map(tuple, now))


def test_every_plan_ends_in_its_target() -> None:
    for source, target in itertools.product(every_sharding(), repeat=2):
        moves = plan(source, target, (64, 64), SIZES)
        assert perform(source, moves) == target
        assert bool(moves) == (source != target)


@pytest.mark.slow
def test_axes_that_move_together_keep_their_order() -> None:
    x = np.arange(32 * 32, dtype=np.int32).reshape(32, 32)
    three: list[Sharding] = [(p[:n], p[n:]) for p in itertools.permutations(SIZES) for n in range(4)]
    plans = {(s, t): plan(s, t, x.shape, SIZES) for s, t in itertools.product([*every_sharding(), *three], repeat=2)}
    together = {ends: moves for ends, moves in plans.items() if any(m.group for m in moves)}
    assert len(together) > 20
    mesh = jm.make_mesh((2, 2, 2), ("z", "y", "x"))
    sizes = dict(mesh.shape)

    def run(x: jax.Array) -> list[jax.Array]:
        return [
            jax.shard_map(
                lambda shard, moves=moves: values.perform(shard, moves, sizes),
                mesh=mesh,
                in_specs=as_spec(source),
                out_specs=as_spec(target),
                check_vma=False,
            )(x)
            for (source, target), moves in together.items()
        ]

    for y in jax.jit(run)(x):
        np.testing.assert_array_equal(y, x)


@pytest.mark.parametrize(
    ("source", "target", "kinds"),
    [
        ((("x",), ()), ((), ("x",)), ["all_to_all"]),
        (((), ()), (("y",), ("x",)), ["slice", "slice"]),
        ((("y", "x"), ()), (("y",), ()), ["all_gather"]),
        ((("y", "x"), ()), (("y",), ("x",)), ["all_to_all"]),
        ((("x",), ()), (("x", "y"), ()), ["slice"]),
        ((("y", "x"), ()), ((), ("y", "x")), ["all_to_all", "all_to_all"]),
        ((("z", "y", "x"), ()), (("z",), ("y", "x")), ["all_to_all", "all_to_all"]),
        ((("y", "x"), ()), ((), ("x", "y")), ["all_to_all", "all_to_all"]),
    ],
)
def test_the_cheapest_steps(source: Sharding, target: Sharding, kinds: list[str]) -> None:
    assert [m.kind for m in plan(source, target, (64, 64), SIZES)] == kinds


def test_added_axes() -> None:
    assert added_axes((("y",), ()), (("y",), ("x",))) == [("x", 1)]
    assert added_axes((("y",), ()), ((), ("y",))) is None
