"""Every program of the suite runs and equals its unsharded oracle."""

from __future__ import annotations

import math
import re

import jax
import numpy as np
import pytest

import jaxmesh as jm
from tests.generators.oracles import same_bits
from tests.generators.suite.all_programs import BY_NAME, PROGRAMS, Entry

pytestmark = pytest.mark.slow(but_one_in=24)


@pytest.mark.parametrize("entry", PROGRAMS, ids=lambda e: e.name)
def test_equals_its_oracle(entry: Entry) -> None:
    entry.check(jm.jit(entry.function, mesh=entry.mesh)(*entry.args()))


def test_names_are_unique() -> None:
    assert len(BY_NAME) == len(PROGRAMS) > 50


def test_meshes_of_every_rank_are_there() -> None:
    sizes = {e.sizes for e in PROGRAMS}
    assert {len(s) for s in sizes} == {1, 2, 3, 4}
    assert all(math.prod(s) <= 16 for s in sizes)


@pytest.mark.parametrize("entry", PROGRAMS, ids=lambda e: e.name)
def test_arguments_and_oracles_are_reproducible_and_tell_something(entry: Entry) -> None:
    first, again = (jax.tree.leaves(entry.full_args(3)) for _ in range(2))
    assert all(map(same_bits, first, again))
    other = jax.tree.leaves(entry.full_args(4))
    assert not all(map(same_bits, first, other))
    for wanted in entry.expected():
        assert np.isfinite(np.asarray(wanted, np.float64)).all()
        assert wanted.size < 2 or len(np.unique(wanted.astype(np.float64))) > 1


def test_moving_entries_only_move() -> None:
    """No primitive that computes: what remains has equal bits however it is run."""
    computing = re.compile(r"\b(add|sub|mul|div|dot_general|exp|tanh|psum\w*|reduce_sum|max|min)\b")
    for entry in PROGRAMS:
        if entry.moves_only:
            text = entry.traced.as_text()
            assert not computing.search(re.sub(r"\[.*?\]", "", text)), entry.name


def test_a_wrong_result_fails() -> None:
    entry = BY_NAME["2-D matmul"]
    result = np.array(jm.jit(entry.function, mesh=entry.mesh)(*entry.args()))
    entry.check(result)
    result[0, 0] = np.nextafter(result[0, 0], np.inf, dtype=np.float32)
    with pytest.raises(AssertionError):
        entry.check(result)
    loose = BY_NAME["llama block"]
    wanted = loose.expected()
    with pytest.raises(AssertionError):
        loose.check([wanted[0] + np.float32(1e-3)])
    with pytest.raises(AssertionError):
        loose.check([])
