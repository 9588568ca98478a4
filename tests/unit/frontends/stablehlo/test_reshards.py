"""Reshards by whole axes: every pair of shardings of a matrix is planned, and the plan ends where it should."""

from __future__ import annotations

import itertools

import pytest

from jaxmesh.frontends.stablehlo.reshards import added_axes, plan
from jaxmesh.frontends.stablehlo.shardings import Sharding

SIZES = {"z": 2, "y": 2, "x": 4}


def every_sharding() -> list[Sharding]:
    rows = [p for n in range(3) for p in itertools.permutations(SIZES, n)]
    pairs = itertools.product(rows, repeat=2)
    return [(a, b) for a, b in pairs if not set(a) & set(b)]


def perform(source: Sharding, moves: list[object]) -> Sharding:
    now = [list(row) for row in source]
    for move in moves:
        if move.kind == "slice":
            assert move.axis not in [a for row in now for a in row]
        else:
            start = now[move.source if move.source >= 0 else move.dim]
            assert start.pop() == move.axis
        if move.kind != "all_gather":
            now[move.dim].append(move.axis)
    return tuple(map(tuple, now))


def test_every_plan_ends_in_its_target() -> None:
    for source, target in itertools.product(every_sharding(), repeat=2):
        moves = plan(source, target, (64, 64), SIZES)
        assert perform(source, moves) == target
        assert bool(moves) == (source != target)


@pytest.mark.parametrize(
    ("source", "target", "kinds"),
    [
        ((("x",), ()), ((), ("x",)), ["all_to_all"]),
        (((), ()), (("y",), ("x",)), ["slice", "slice"]),
        ((("y", "x"), ()), (("y",), ()), ["all_gather"]),
        ((("y", "x"), ()), (("y",), ("x",)), ["all_to_all"]),
        ((("x",), ()), (("x", "y"), ()), ["slice"]),
    ],
)
def test_the_cheapest_steps(source: Sharding, target: Sharding, kinds: list[str]) -> None:
    assert [m.kind for m in plan(source, target, (64, 64), SIZES)] == kinds


def test_added_axes() -> None:
    assert added_axes((("y",), ()), (("y",), ("x",))) == [("x", 1)]
    assert added_axes((("y",), ()), ((), ("y",))) is None
