"""All programs of the hunt: families of operations, the plain programs of other tests, random ones, nested ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

import jaxmesh as jm
from tests.generators import nested_programs, sharded_programs
from tests.generators.plain_programs import CASES
from tests.generators.upstream.families import family_programs
from tests.generators.upstream.program import Candidate
from tests.generators.upstream.rows import ROWS

RANDOM, NESTED = 150, 100
"""How many seeds of random programs are drawn, each of one kind."""


def candidates() -> list[Callable[[], Candidate]]:
    """Returns makers of all programs, in an order in which every part has programs of each kind."""
    found = [*_of_families(), *_of_rows(), *_plain(), *_random(), *_nested()]
    return [found[i] for i in np.random.default_rng(0).permutation(len(found)).tolist()]


def _of_families() -> Iterator[Callable[[], Candidate]]:
    for name, program in family_programs():
        yield lambda name=name, program=program: program.candidate(name)


def _of_rows() -> Iterator[Callable[[], Candidate]]:
    """Yields the smallest programs of the rows that are none of a family."""
    known = {str(program) for _, program in family_programs()}
    for row in ROWS:
        if str(row.program) not in known:
            yield lambda row=row: row.program.candidate("rows")


def _plain() -> Iterator[Callable[[], Candidate]]:
    for case in CASES:
        options = {"mesh": case.mesh, **case.options()}
        made = Candidate("plain programs", case.name, case.fun, case.fun, case.args, options, f"plain {case.name}")
        yield lambda made=made: made


def _random() -> Iterator[Callable[[], Candidate]]:
    """Yields random programs, but for those on meshes of three axes, which the compiler refuses."""
    meshes = sharded_programs.make_meshes()

    def make(seed: int) -> Candidate:
        p = sharded_programs.draw(seed, meshes)
        options = {"mesh": p.mesh, "in_shardings": p.in_specs, "out_shardings": p.out_specs}
        return Candidate("random", f"seed {seed}: {p}", p, p.unsharded, _arguments(p.shapes, seed), options, f"r{seed}")

    for seed in range(RANDOM):
        if len(sharded_programs.draw(seed, meshes).mesh.shape) < 3:
            yield lambda seed=seed: make(seed)


def _nested() -> Iterator[Callable[[], Candidate]]:
    """Yields random nested programs over Auto axes, called with arrays of the host."""
    meshes, explicit = nested_programs.make_meshes(), nested_programs.make_meshes(explicit=True)

    def make(seed: int) -> Candidate:
        p = nested_programs.draw(seed, meshes, explicit)
        options: dict[str, Any] = {"in_shardings": p.in_specs, "out_shardings": p.out_specs, "mesh": p.mesh}
        fun, plain, args = p.function(jm.jit), p.function(None), _arguments(p.shapes, seed)
        return Candidate("nested", f"seed {seed}: {p}", fun, plain, args, options, f"n{seed}")

    for seed in range(NESTED):
        drawn = nested_programs.draw(seed, meshes, explicit)
        if not drawn.explicit and len(drawn.mesh.shape) < 3:
            yield lambda seed=seed: make(seed)


def _arguments(shapes: tuple[tuple[int, ...], ...], seed: int) -> tuple[Any, ...]:
    rng = np.random.default_rng(seed)
    return tuple(rng.standard_normal(s).astype(np.float32) for s in shapes)
