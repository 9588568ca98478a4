"""Diagnoses of programs for which they were not written: verdicts are true, and planted errors are named.

The tests need Tenstorrent's compiler, as those of `test_upstream.py`. Truth is what the texts yield on emulated
devices, beside the program without shardings. Diagnoses see drawn arguments alone.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator

import pytest

from jaxmesh.analysis.upstream.environment import UPSTREAM
from jaxmesh.analysis.upstream.worker import close_workers
from tests.generators.blind.measure import STAGES, compiled, measure, verdicts
from tests.generators.blind.programs import ALL
from tests.generators.quick_compilation import quick_compilation

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]
REFUSED = {"int8_cache": "has slice size 4 greater than dimension size 2"}
"""The programs that jax-tt-plugin 0.1.3 refuses, and its reasons."""


@pytest.fixture(scope="module", autouse=True)
def _plugin() -> Iterator[None]:
    if not os.environ.get(UPSTREAM.variable) and not UPSTREAM.folder.exists():
        pytest.skip(f"no compiler: {UPSTREAM.variable} is not set, and upstream-env has made no {UPSTREAM.folder}")
    with quick_compilation():
        yield
    close_workers()


@pytest.mark.parametrize("name", ALL)
def test_a_verdict_is_what_the_values_say(name: str) -> None:
    program = compiled(name)
    if isinstance(program, str):
        assert REFUSED[name] in program
        return
    found = verdicts(program)
    assert found["drawn"] == found["own"], found
    assert (found["drawn"] == "wrong") == (found["truth"] == "wrong"), found


def test_planted_errors_are_named() -> None:
    rows = [
        row
        for name in ALL
        if not isinstance(program := compiled(name), str) and program.truth != "wrong"
        for stage in STAGES
        for row in measure(program, stage, seed=0, count=1)
    ]
    # An error that leaves these results as they are may change those of drawn arguments.
    rows = [row for row in rows if row["changes"]]
    counts = Counter(row["named"] for row in rows)
    listing = "\n".join(str({k: v for k, v in row.items() if k != "said"}) for row in rows if row["named"] != "exact")
    total, missed = counts.total(), counts["right"] + counts["less precise"] + counts["not comparable"]
    listing = f"{counts}\n{listing}"
    assert total >= 90, listing
    assert counts["exact"] >= 0.85 * total, listing
    assert counts["exact"] + counts["readers"] >= 0.93 * total, listing
    assert counts["innocent"] <= 0.03 * total, listing
    assert missed <= 0.02 * total, listing
    assert counts["crash"] == 0, listing
