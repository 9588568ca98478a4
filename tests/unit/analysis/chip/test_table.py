"""The generator of the table: programs are tried once, a run goes on, and the table has the worst outcome."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from jaxmesh.analysis.chip import trust
from jaxmesh.analysis.chip.environment import CHIP
from tests.generators import chip

CELLS = [("tanh", "float32", "one tile"), ("negative", "bfloat16", "several tiles"), ("exp", "float32", "one tile")]


def test_a_run_is_resumed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, python: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(CHIP.variable, str(python))
    monkeypatch.setenv("SCALE_exp", "1.5")
    monkeypatch.setattr(trust, "TABLE", tmp_path / "trust.txt")
    log = tmp_path / "log"
    for count in (2, 3, 3):
        monkeypatch.setattr(chip, "cells", lambda count=count: iter(CELLS[:count]))
        chip.main([str(log)])
        assert [tuple(json.loads(line)["cell"]) for line in log.read_text().splitlines()] == CELLS[:count]
    assert len(capsys.readouterr().out.splitlines()) == 3
    before = trust.TABLE.read_text()
    chip.main([str(log), "--table"])
    assert trust.TABLE.read_text() == before
    monkeypatch.setattr(trust, "_table", trust._table.__wrapped__)
    assert trust.outcome("ttnn.tanh", "float32", "one tile") == "float32"
    assert trust.outcome("ttnn.neg", "bfloat16", "several tiles") == "exact"
    assert trust.outcome("ttnn.exp", "float32", "one tile") == "wrong"
    assert trust.outcome("ttnn.to_layout", "float32", "one tile") == "exact"
    assert before.splitlines()[:2] == [
        f"# Made by `python -m tests.generators.chip` on {json.loads(log.read_text().splitlines()[0])['date']} with "
        "ttnn 0.81.1, wolfpine 2.2, one Blackhole core,",
        "# of 3 of 3 programs.",
    ]


def test_the_worst_outcome_and_the_most_seconds_stand_in_the_table() -> None:
    outcomes = [("float32", 1.0), ("exact", 3.0), ("stands still", 60.0), ("tf32", 2.0)]
    rows = [["ttnn.exp", "float32", "vectors", outcome, seconds, 0.0, "chip"] for outcome, seconds in outcomes]
    lines = [{"rows": [row], "versions": "v", "date": f"2026-11-0{n}"} for n, row in enumerate(rows, 1)]
    *_, last = chip.table_of(lines).splitlines()
    assert last == "ttnn.exp | float32 | - | - | stands still 60.0 | -"
    assert "on 2026-11-04 with v" in chip.table_of(lines)


def test_every_program_is_tried_in_every_type_and_size() -> None:
    cells = list(chip.cells())
    names = {*chip.FUNCTIONS, *chip.OWN} - chip.COLLECTIVES
    assert len(cells) == len(set(cells)) == len(names) * len(chip.DTYPES) * len(chip.SHAPES)
    assert {trust.size_of([shape]) for shape in chip.SHAPES.values()} == set(chip.SHAPES)
