"""The bytes of plain programs beside those of XLA's partitioner: the table, and the reasons for what moves more."""

from __future__ import annotations

import re

import jax
import pytest

from tests.generators import plain_traffic
from tests.generators.plain_traffic import REASONS, Row, faults, rows, table
from tests.generators.readme_tables import stored


@pytest.fixture(scope="module")
def found() -> list[Row]:
    return list(rows())


def test_the_table_of_the_readme_is_the_one_that_the_command_writes(found: list[Row]) -> None:
    version = re.search(r"^JAX ([\d.]+)\.", stored("plain_traffic"), re.MULTILINE)
    assert version
    if version[1] != jax.__version__:
        pytest.skip(f"the table is of JAX {version[1]}; Shardy and XLA move other bytes in {jax.__version__}")
    assert table(found) == stored("plain_traffic")


def test_each_program_that_moves_more_has_a_reason_and_each_reason_a_program(found: list[Row]) -> None:
    assert faults(found) == []


def test_a_missing_and_a_stale_reason_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plain_traffic, "REASONS", {"roll": "neighbours"})
    assert faults([Row("pad", 10, 21), Row("roll", 10, 20), Row("sort", 0, 0)]) == [
        "pad: 21 bytes, XLA 10, and no reason",
        "roll: has a reason, and moves at most 2 times as much as XLA's",
    ]
    assert REASONS
