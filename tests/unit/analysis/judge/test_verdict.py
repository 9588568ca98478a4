"""The verdict as data, text and HTML."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from jaxmesh.analysis.judge.judge import _Script
from jaxmesh.analysis.judge.verdict import DeviceMemory, Leak, Refusal, ScriptLine, Verdict

EXP = ScriptLine(7, "x = ttnn.exp(<y>)", "model.py:3:8 (f)")


def verdict() -> Verdict:
    memories = (
        DeviceMemory("DRAM", 12, 1000 << 10, 250 << 10, EXP, 100),
        DeviceMemory("L1", 64, 1 << 20, 0, ScriptLine(), 0, kernel=512, kernel_place=EXP),
    )
    operations = {7: {"Unary": 1, "Tilize": 2}, 9: {"Unary": 1, "UntilizeWithUnpadding": 1}}
    leak = Leak(EXP, "x", (32, 32), 4096)
    return Verdict("accepted", "0.0", "n300", (1, 2), None, memories, (leak,), operations, {7: EXP, 9: ScriptLine(9)})


def test_an_accepted_program() -> None:
    v = verdict()
    assert v
    assert v.counts == {"Tilize": 2, "Unary": 2, "UntilizeWithUnpadding": 1}
    assert v.layout_changes == 3
    assert v.memory("DRAM").device_peak == 12 * 250 * 1024  # type: ignore[union-attr]
    lines = str(v).splitlines()
    assert lines[0] == "accepted to its end by ttnn 0.0 on the mesh 1x2 of a described n300"
    text = " ".join(str(v).split())
    place = "model.py:3:8 (f), which is main.py, line 7"
    assert f"DRAM peak 2.9 MiB of 11.7 MiB (25.0%) on each device, at {place}" in text
    assert f"kernels take at most 512 B of 1.0 MiB on a core, at {place}" in text
    assert f"left at the end 4.0 KiB x [32, 32], 4.0 KiB, of {place}" in text
    assert "device operations 5; layout changes: 3" in text
    assert repr(v) == f"Verdict({lines[0]})"
    assert json.loads(json.dumps(v.to_dict()))["leaks"][0]["bytes"] == 4096


def test_a_refused_program_escapes_what_it_shows() -> None:
    refusal = Refusal(EXP, "rule", "a < b", "exp.cpp:1: a < b")
    v = Verdict("refused", "0.0", "board", refusal=refusal, remarks=("another version",))
    assert not v
    assert v.memory("L1") is None
    text = " ".join(str(v).split())
    assert text == (
        "refused by ttnn 0.0 of the board where model.py:3:8 (f), which is main.py, line 7 x = ttnn.exp(<y>) "
        "reason a < b rule exp.cpp:1: a < b remark another version"
    )
    shown = v._repr_html_()
    assert "ttnn.exp(&lt;y&gt;)" in shown
    assert "<y>" not in shown


def test_a_process_that_died() -> None:
    v = Verdict("died", "0.0", "t3000", refusal=Refusal(ScriptLine(), "died", "the process ended with signal SIGABRT"))
    assert str(v).startswith("the process died in ttnn 0.0 of a described t3000\n  where   before the first line\n")


@pytest.mark.parametrize(
    ("text", "remark"),
    [
        ('{"1": "model.py:7"}', ""),
        (None, "has no locations.json: the user's lines are not known"),
        ('{"1": "mod', "locations.json cannot be read (Unterminated string"),
        ("[1]", "locations.json cannot be read ('list' object"),
        ("\xff", "locations.json cannot be read ('utf-8' codec"),
    ],
)
def test_lost_source_lines_are_remarked(text: str | None, remark: str, tmp_path: Path) -> None:
    (tmp_path / "main.py").write_text("x = 1\n")
    if text is not None:
        (tmp_path / "locations.json").write_text(text, encoding="latin-1")
    places = _Script(tmp_path)
    assert places(1).source == ("" if remark else "model.py:7")
    assert remark in "".join(places.remarks)
    assert bool(places.remarks) == bool(remark)
