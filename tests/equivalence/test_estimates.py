"""Estimates beside the published times of tt-metal's model table: each is a bound, as the table in docs/tables says."""

from __future__ import annotations

import pytest

from tests.generators.estimates import Row, faults, row, table
from tests.generators.published_models import MODELS
from tests.generators.readme_tables import stored


@pytest.fixture(scope="module")
def found() -> list[Row]:
    return [row(model) for model in MODELS]


def test_every_estimate_is_below_the_published_time(found: list[Row]) -> None:
    assert faults(found) == []
    assert len({r.model for r in found}) >= 5
    assert {r.cluster for r in found} == {"n150", "n300", "t3000", "galaxy", "p150"}


def test_a_bound_is_of_use(found: list[Row]) -> None:
    """A bound near zero would hold for anything."""
    assert all(r.estimate > r.published / 10 for r in found)


def test_the_table_of_the_readme_is_the_one_that_the_command_writes(found: list[Row]) -> None:
    assert table(found) == stored("estimates")


def test_an_estimate_that_is_no_bound_is_found() -> None:
    wrong = Row("Slow 1B", "n150", 0.002, 0.003, 0.001, 0, 1, 0)
    assert faults([wrong]) == ["Slow 1B on n150: 0.003000 s is not below the published 0.002000 s"]
