"""Repairs with Tenstorrent's own compiler: each row of the table of wrong and refused programs is right afterwards.

It skips without the compiler, as `test_upstream.py`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from jax.sharding import PartitionSpec as P

from jaxmesh.analysis.upstream.environment import UPSTREAM
from jaxmesh.analysis.upstream.worker import close_workers
from tests.generators.upstream.program import Program
from tests.generators.upstream.repaired import REPAIRED, STAYS, UNCHANGED, judge_repair
from tests.generators.upstream.rows import ROWS, Row


@pytest.fixture(scope="module", autouse=True)
def compiler() -> Iterator[None]:
    if not os.environ.get(UPSTREAM.variable) and not UPSTREAM.folder.exists():
        pytest.skip(f"no compiler: {UPSTREAM.variable} is not set, and upstream-env has made no {UPSTREAM.folder}")
    yield
    close_workers()


@pytest.mark.parametrize("row", ROWS, ids=lambda r: r.name)
def test_each_row_is_repaired_or_stays_for_a_reason(row: Row) -> None:
    found = judge_repair(row.program.candidate())
    if row.stays:
        assert found.outcome == STAYS
        assert row.stays in found.reason
    else:
        assert (found.outcome, found.after) == (REPAIRED, "right"), found


@pytest.mark.parametrize("source", ["x * 2", "x.sum(0)", "x @ x.T"])
def test_right_programs_stay_as_they_are(source: str) -> None:
    found = judge_repair(Program(source, ("f32[8,16]",), (P("y"),)).candidate())
    assert (found.outcome, found.changes) == (UNCHANGED, [])
