"""The generator of the table: programs are tried once, a run goes on, and the table has the worst outcome."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import jax
import numpy as np
import pytest

import jaxmesh as jm
from jaxmesh.analysis.chip import trust
from jaxmesh.analysis.chip.environment import CHIP
from jaxmesh.dialects.ttnn import OPS
from jaxmesh.tensor import beyond
from tests.generators import chip, chip_calls, chip_edges, chip_faults, chip_printed
from tests.generators.suite.all_programs import PROGRAMS

CELLS = [("tanh", "float32", "one tile"), ("negative", "bfloat16", "several tiles"), ("exp", "float32", "one tile")]


@pytest.mark.slow
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
        "ttnn 0.81.1, wolfpine 2.2, sfpi 7.87.0, one Blackhole core,",
        "# of 3 of 3 programs and calls.",
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


def test_a_reason_stands_in_the_table() -> None:
    """And stays there."""
    place = "refused: AttributeError: type object 'DataType' has no attribute 'INT16'"
    row = ["ttnn.full", "int16", "odd", "refused", 0.0, 0.0, place]
    line = {"cell": CELLS[0], "rows": [row], "versions": "v", "date": "d"}
    text = chip.table_of([line])
    assert text.splitlines()[-1] == "ttnn.full | int16 | - | - | - | refused: ttnn has no INT16 0.0"
    assert chip.table_of([line | {"rows": [[*row[:3], "exact", *row[4:]]]}], chip.rows_of(text)) == text


def test_every_program_is_tried_in_every_type_and_size() -> None:
    cells = list(chip.cells())
    names = {*chip.FUNCTIONS, *chip.OWN} - chip.COLLECTIVES
    count = len(names) * len(chip.DTYPES) * len(chip.SHAPES) + len(chip_calls.CALLS)
    assert len(cells) == len(set(cells)) == count
    assert {trust.size_of([shape]) for shape in chip.SHAPES.values()} == set(chip.SHAPES)


@pytest.mark.slow
def test_the_texts_of_the_suite_print_what_was_tried() -> None:
    printed = {op for e in PROGRAMS for op in re.findall(r"\bttnn\.(\w+)\"?\(", e.lowered.as_text(strict=False))}
    tried = {callee.removeprefix("ttnn.") for callee, *_ in trust._table()}
    boundary = {"get_device", "deallocate", "distribute_tensor", "aggregate_tensor", "from_device", "to_device"}
    names = {OPS[op].python.callee.removeprefix("ttnn.") for op in printed - boundary if op in OPS}
    assert len(names) > 50
    assert names - tried - {"Tensor"} == set(chip.NOT_TRIED)


@pytest.mark.slow
def test_every_call_of_the_suite_was_tried() -> None:
    """With its element types and the class of its shapes, as far as the real ttnn opens its mesh."""
    entries = [e for e in PROGRAMS if len(e.sizes) <= 2]
    keys = {key for e in entries for key in chip_printed.printed(e.lowered, *e.args())}
    assert len(keys) > 100
    assert not {key for key in keys if trust.outcome(*key) == trust.NOT_TRIED}


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
    """What the table has is not tried again, and stays; a chip of other versions is refused."""
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
    trust.TABLE.write_text(trust.TABLE.read_text().replace("wolfpine 2.2", "wolfpine 2.1", 1))
    with pytest.raises(SystemExit):
        chip.main([str(tmp_path / "other"), "--new"])
    assert not (tmp_path / "other").exists()


def test_calls_are_tried_alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, python: Path) -> None:
    """Their operands are as they are described; each is of a kind that no other is of."""
    monkeypatch.setenv(CHIP.variable, str(python))
    monkeypatch.setattr(trust, "TABLE", tmp_path / "trust.txt")
    cells = [cell for cell in chip.cells() if cell[0].startswith(("ttnn.neg", "ttnn.tanh"))]
    assert {cell[2] for cell in cells} == {chip_calls.ALONE}
    monkeypatch.setattr(chip, "cells", lambda: iter(cells))
    chip.main([str(tmp_path / "log")])
    rows = chip.rows_of(trust.TABLE.read_text())
    assert {key: {size: said for size, (said, _) in row.items()} for key, row in rows.items()} == {
        (callee, dtype): {"vectors": said}
        for callee, dtype, said in [
            ("ttnn.neg", "bfloat16", "exact"), ("ttnn.neg", "float32", "exact"),
            ("ttnn.tanh", "bfloat16", "bfloat16"), ("ttnn.tanh", "float32", "float32"),
        ]
    }  # fmt: skip


@pytest.mark.slow
def test_every_call_alone_is_in_the_table() -> None:
    with beyond.enabled():
        made = [chip_calls.made(*call, 0) for call in chip_calls.CALLS]
        keys = [call.key for call in made]
    assert len(keys) == len(set(keys))
    untried = {key for key in keys if trust.outcome(*key) == trust.NOT_TRIED}
    assert not untried
    call = made[0]
    (x,) = call._operands
    assert chip_printed.shown(x) == chip_calls.CALLS[0][1].partition(" ")[2]


def test_calls_of_a_program_are_found() -> None:
    x = np.ones((4, 64), np.float32)
    lowered = jm.jit(lambda x: jax.nn.softmax(x @ x.T), mesh=jm.make_mesh((1, 2), ("y", "x"))).lower(x)
    found = chip_printed.printed(lowered, x)
    assert {callee for callee, *_ in found} >= {"ttnn.matmul", "ttnn.softmax"}
    assert all(chip_calls.made(*call, 0).key == key for key, call in found.items() if key[0] == "ttnn.softmax")


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
    assert "# of 3 of 3 programs and calls." in trust.TABLE.read_text()
    for dtype in ("int32", "uint32"):
        small, large, signed = (np.asarray(chip.argument("abs", dtype, "odd", seed)) for seed in (0, 1, 2))
        assert large.max() > 2**16 > small.max()
        assert large.min() > 0
        assert (signed.min() < -(2**16)) == (dtype == "int32")


# --- edge cases ------------------------------------------------------------------------------------------------------


def test_differences_on_edge_cases_are_rows(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, python: Path) -> None:
    """A chip that takes NaN for a number is told, with the operand; rounding is not. Stored rows stay."""
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
    assert "calls of 2 functions" in text
    assert chip_edges.table_of([line | {"rows": []}], text).splitlines()[4:] == text.splitlines()[4:]
    assert "functions and element types, later 4 others of 1." in chip_edges.table_of([line | {"calls": 4}], text)


def test_what_an_older_table_trusts_is_not_tried_again() -> None:
    older = "# head\nttnn.exp | float32 | float32 1.0 | wrong 2.0 | - | -\n"
    trusted = chip_edges.since(older)
    assert trusted("ttnn.exp", "float32", "one tile") == chip.KNOWN
    assert trusted("ttnn.exp", "float32", "several tiles") == "float32"
    assert trusted("ttnn.sum", "uint32", "vectors") == "wrong"


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
    found, right = chip_faults.ran(name, chip_faults.find_environment()[0])
    assert right == "-1500 -1497 -1494 -1491 ..."
    assert found.endswith(" ...")
    assert found != right
    assert chip_faults.mended([name]) == {name: "right"}


def test_each_fault_has_a_file() -> None:
    """It needs no module of jaxmesh; its numbers are those of the generator."""
    files = {chip_faults.file_of(n): n for n in (chip_faults._DIVISION, *chip_faults.CASES)}
    assert set(chip_faults.FILES.iterdir()) == set(files)
    for path, name in files.items():
        text = path.read_text()
        assert text == chip_faults.text_of(name, trust.versions())
        assert "jaxmesh" not in text
        compile(text, path, "exec")
        assert ("OVERRIDE" in text) == (name in chip_faults.CASES)
    page = chip_faults.TABLE.read_text()
    assert re.findall(r"\((\.\./chip-faults/.*?)\)", page) == [f"../chip-faults/{path.name}" for path in files]


def test_what_a_call_gave_is_shown() -> None:
    x = np.arange(6.0)
    assert chip_faults.shown("", x.astype(np.float32), x) == "right"
    assert chip_faults.shown("", x + 1, x) == "1 2 3 4 ..."
    assert chip_faults.shown("ended: [server] it waits (TypeError: no), for ever", None, x) == "ended: TypeError: no"
