"""Random plain programs with random shardings give what they give unsharded, with their gradients."""

from __future__ import annotations

import jax
import pytest

from tests.generators import nested_checks, nested_programs, sharded_programs
from tests.generators.oracles import count_of

PROGRAMS = count_of(100, 60)
NESTED = count_of(80, 24)
PARTS = 6


@pytest.mark.parametrize("part", range(PARTS))
def test_programs(part: int) -> None:
    meshes = sharded_programs.make_meshes()
    for seed in range(part, PROGRAMS, PARTS):
        program = sharded_programs.draw(seed, meshes)
        wrong = sharded_programs.difference(program, seed, gradients=seed % 5 == 0)
        assert wrong is None, f"seed {seed}: {wrong}\n{program}"
    jax.clear_caches()


@pytest.mark.parametrize("part", range(PARTS))
def test_nested_programs(part: int) -> None:
    meshes, explicit = nested_programs.make_meshes(), nested_programs.make_meshes(explicit=True)
    for seed in range(part, NESTED, PARTS):
        program = nested_programs.draw(seed, meshes, explicit)
        wrong = nested_checks.fault(program, seed, traffic=seed // PARTS % 2 == 0, reference=seed // PARTS % 8 == 1)
        assert wrong is None or nested_checks.reason(program, wrong), f"seed {seed}: {wrong}\n{program}"
    jax.clear_caches()


def test_a_wrong_value_and_traffic_of_nested_programs_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The comparison fails if a reshard forgets a slice, and if a program moves half as much as XLA's."""
    from jaxmesh.frontends.stablehlo import values

    def first(x: object, axis: str, dim: int, sizes: dict[str, int]) -> object:
        return jax.lax.slice_in_dim(x, 0, x.shape[dim] // sizes[axis], axis=dim)  # type: ignore[attr-defined]

    meshes, explicit = nested_programs.make_meshes(), nested_programs.make_meshes(explicit=True)

    def kinds(traffic: bool) -> set[str]:
        programs = [(seed, nested_programs.draw(seed, meshes, explicit)) for seed in range(12)]
        faults = [nested_checks.fault(p, seed, traffic=traffic, reference=False) for seed, p in programs]
        return {f[0] for f in faults if f is not None}

    with monkeypatch.context() as planted:
        planted.setattr(values, "own_slice", first)
        assert any(kind.startswith("value") for kind in kinds(False))
    with monkeypatch.context() as planted:
        planted.setattr(nested_checks, "MOST", 0.5)
        assert "traffic" in kinds(True)


def test_a_wrong_value_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The comparison fails if a reshard forgets a slice."""
    from jaxmesh.frontends.stablehlo import values

    def first(x: object, axis: str, dim: int, sizes: dict[str, int]) -> object:
        return jax.lax.slice_in_dim(x, 0, x.shape[dim] // sizes[axis], axis=dim)  # type: ignore[attr-defined]

    meshes = sharded_programs.make_meshes()
    monkeypatch.setattr(values, "own_slice", first)
    found = 0
    for seed in range(12):
        try:
            found += sharded_programs.difference(sharded_programs.draw(seed, meshes), seed) is not None
        except Exception:
            found += 1
    assert found
