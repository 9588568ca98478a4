"""Random plain programs with random shardings give what they give unsharded, with their gradients."""

from __future__ import annotations

import jax
import pytest

from tests.generators import sharded_programs
from tests.generators.oracles import count_of

PROGRAMS = count_of(300, 60)
PARTS = 6


@pytest.mark.parametrize("part", range(PARTS))
def test_programs(part: int) -> None:
    meshes = sharded_programs.make_meshes()
    for seed in range(part, PROGRAMS, PARTS):
        program = sharded_programs.draw(seed, meshes)
        wrong = sharded_programs.difference(program, seed, gradients=seed % 5 == 0)
        assert wrong is None, f"seed {seed}: {wrong}\n{program}"
    jax.clear_caches()


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
