"""The generator of the table: programs are tried once, a run goes on, and the table has the worst outcome."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import numpy as np
import pytest

from jaxmesh.analysis.chip import environment, trust
from jaxmesh.analysis.chip.environment import CHIP
from jaxmesh.dialects.ttnn import OPS
from tests.generators import chip, chip_edges, chip_faults
from tests.generators.suite.all_programs import PROGRAMS

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
    lines = [
        {"cell": CELLS[0], "rows": [row], "versions": "v", "date": f"2026-11-0{n}"} for n, row in enumerate(rows, 1)
    ]
    *_, last = chip.table_of(lines).splitlines()
    assert last == "ttnn.exp | float32 | - | - | stands still 60.0 | -"
    assert "on 2026-11-04 with v" in chip.table_of(lines)


def test_what_comes_after_a_wrong_call_is_not_counted() -> None:
    kinds = [("exp", "float32"), ("max", "wrong"), ("tanh", "wrong"), ("exp", "exact")]
    rows = [[f"ttnn.{name}", "float32", "one tile", outcome, 1.0, 0.0, ""] for name, outcome in kinds]
    text = chip.table_of([{"cell": CELLS[0], "rows": rows, "versions": "v", "date": "d"}])
    assert "ttnn.exp | float32 | float32 1.0 |" in text
    assert "ttnn.max | float32 | wrong 1.0 |" in text
    assert "tanh" not in text


def test_every_program_is_tried_in_every_type_and_size() -> None:
    cells = list(chip.cells())
    names = {*chip.FUNCTIONS, *chip.OWN} - chip.COLLECTIVES
    assert len(cells) == len(set(cells)) == len(names) * len(chip.DTYPES) * len(chip.SHAPES)
    assert {trust.size_of([shape]) for shape in chip.SHAPES.values()} == set(chip.SHAPES)


@pytest.mark.slow
def test_the_texts_of_the_suite_print_what_was_tried() -> None:
    printed = {op for e in PROGRAMS for op in re.findall(r"\bttnn\.(\w+)\"?\(", e.lowered.as_text(strict=False))}
    tried = {callee.removeprefix("ttnn.") for callee, *_ in trust._table()}
    boundary = {"get_device", "deallocate", "distribute_tensor", "aggregate_tensor", "from_device", "to_device"}
    names = {OPS[op].python.callee.removeprefix("ttnn.") for op in printed - boundary if op in OPS}
    assert len(names) > 50
    assert names - tried - {"Tensor"} == set(chip.NOT_TRIED)


def test_a_changed_chip_is_tried_again(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, python: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(CHIP.variable, str(python))
    monkeypatch.setattr(trust, "TABLE", tmp_path / "trust.txt")
    monkeypatch.setattr(chip, "cells", lambda: iter(CELLS))
    monkeypatch.setenv("SCALE_exp", "1.5")
    chip.main([str(tmp_path / "log")])
    assert "ttnn.exp | float32 | wrong" in trust.TABLE.read_text()
    monkeypatch.delenv("SCALE_exp")
    chip.main([str(tmp_path / "log"), "--again"])
    assert "ttnn.exp | float32 | float32" in trust.TABLE.read_text()
    assert len(capsys.readouterr().out.splitlines()) == len(CELLS) + 1


def test_new_calls_are_added_to_the_table(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, python: Path) -> None:
    """What the table has is not tried again, and stays."""
    monkeypatch.setenv(CHIP.variable, str(python))
    monkeypatch.setattr(trust, "TABLE", tmp_path / "trust.txt")
    monkeypatch.setattr(chip, "cells", lambda: iter(CELLS[:1]))
    chip.main([str(tmp_path / "log")])
    before = chip.rows_of(trust.TABLE.read_text())
    monkeypatch.setattr(chip, "cells", lambda: iter(CELLS))
    monkeypatch.setenv("SCALE_exp", "1.5")
    chip.main([str(tmp_path / "new"), "--new"])
    after = chip.rows_of(trust.TABLE.read_text())
    assert before
    assert {key: row for key, row in after.items() if key in before} == before
    rows = [row for line in chip.read([tmp_path / "new"]) for row in line["rows"]]
    assert rows
    assert {(row[0], row[1]) for row in rows}.isdisjoint(before)
    assert after.keys() > before.keys()


def test_trusted_calls_are_checked_with_other_values(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, python: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A call that is right for some values and wrong for others is not trusted."""
    monkeypatch.setenv(CHIP.variable, str(python))
    monkeypatch.setattr(trust, "TABLE", tmp_path / "trust.txt")
    monkeypatch.setattr(trust, "_table", trust._table.__wrapped__)
    monkeypatch.setattr(chip, "cells", lambda: iter(CELLS))
    chip.main([str(tmp_path / "log")])
    assert trust.outcome("ttnn.exp", "float32", "one tile") == "float32"
    monkeypatch.setenv("SCALE_exp", "1.5")
    chip.main([str(tmp_path / "log"), "--check", "2"])
    assert trust.outcome("ttnn.exp", "float32", "one tile") == "wrong"
    assert trust.outcome("ttnn.tanh", "float32", "one tile") == "float32"
    assert "'wrong': 1" in capsys.readouterr().out.splitlines()[-1]
    assert "# of 3 of 3 programs." in trust.TABLE.read_text()
    for dtype in ("int32", "uint32"):
        small, large, signed = (np.asarray(chip.argument("abs", dtype, "odd", seed)) for seed in (0, 1, 2))
        assert large.max() > 2**16 > small.max()
        assert large.min() > 0
        assert (signed.min() < -(2**16)) == (dtype == "int32")


# --- edge cases ------------------------------------------------------------------------------------------------------


def test_differences_on_edge_cases_are_rows(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, python: Path) -> None:
    """A chip that takes NaN for a number is told, with the operand; rounding is not."""
    monkeypatch.setenv(CHIP.variable, str(python))
    monkeypatch.setenv("FAULT_exp", "args[0].array = np.nan_to_num(args[0].array, nan=0.0)")
    made = chip_edges._Heard(seconds=60)
    line = chip_edges.line_of(made, "exp", "float32")
    other = chip_edges.line_of(made, "tanh", "float32")
    made.close()
    assert line["rows"] == [["ttnn.exp", "float32", ["nan"], "1", "nan", 1]]
    assert other["calls"] > 0
    assert other["rows"] == []
    text = chip_edges.table_of([line, other])
    assert "| `ttnn.exp` | float32 | nan | 1 | nan | 1 |" in text
    assert "the other sign in no function." in text
    assert "of\n2 functions" in text


def test_edge_cases_of_two_operands_are_pairs() -> None:
    x = np.asarray(chip_edges.edges("add", "float32"))
    assert (np.isnan(x) == np.isnan(x[:, :1])).all()
    assert np.isnan(np.diag(np.asarray(chip_edges.edges("exp", "bfloat16"), np.float32))).sum() == 1
    for dtype in ("int32", "uint32"):
        assert {0, np.iinfo(dtype).max} <= set(np.asarray(chip_edges.edges("abs", dtype)).diagonal().tolist())


# --- faults of the simulator -----------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.skipif(CHIP.variable not in os.environ, reason="no Python with the simulated chip")
def test_the_simulator_has_the_faults_and_the_start_script_mends_them() -> None:
    name = "a product of int32"
    with chip_faults.as_it_is():
        assert chip_faults.results([name])[name] != "right"
    assert chip_faults.results([name]) == {name: "right"}


def test_what_a_call_gave_is_shown() -> None:
    x = np.arange(6.0)
    assert chip_faults.shown("", x.astype(np.float32), x) == "right"
    assert chip_faults.shown("", x + 1, x) == "1 2 3 4 ..."
    assert chip_faults.shown("ended: [server] it waits (TypeError: no), for ever", None, x) == "ended: TypeError: no"
    with chip_faults.as_it_is():
        text = (environment._RUNNER / "__main__.py").read_text()
    assert text.count("    return\n    swap, multiply, load =") == 1
