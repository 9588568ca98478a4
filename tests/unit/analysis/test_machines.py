"""The machines are one table: names are spelled in it alone, in any case, and its facts fit together."""

from __future__ import annotations

import ast
import math
import re
from pathlib import Path
from typing import Any

import pytest

import jaxmesh
from jaxmesh.analysis.machines import MACHINES, Machine, machine_named, one_of
from jaxmesh.cli.main import main
from jaxmesh.errors import ArgumentValueError
from tests.generators.machines import DOCUMENT, NAME, table
from tests.generators.readme_tables import stored

PACKAGE = Path(jaxmesh.__file__).parent
TABLE = PACKAGE / "analysis" / "machines.py"


def test_a_name_is_spelled_in_the_table_alone() -> None:
    """A new machine is one entry: no other module lists names."""
    names = {*MACHINES}
    spelled = {
        (path.name, node.value)
        for path in PACKAGE.rglob("*.py")
        if path != TABLE
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.lower() in names
    }
    assert not spelled


@pytest.mark.parametrize("name", MACHINES)
def test_names_are_accepted_in_any_case(name: str) -> None:
    for spelling in (name, name.upper(), name.title()):
        assert machine_named(spelling) is MACHINES[name]


SPELLINGS = {
    "t3000": ("LoudBox", "quietbox", "TT-QuietBox", "tt loud box", "Wormhole QuietBox", "T3K", "t-3000"),
    "galaxy": ("Wormhole Galaxy", "TT-Galaxy"), "blackhole-galaxy": ("Blackhole Galaxy", "blackhole_galaxy"),
    "p150x2": ("2 x P150", "2xP150", "P150 x 2", "p150-x2"), "p150x4": ("4 x p150", "Blackhole QuietBox"),
    "p150x8": ("8xp150", "TT-LoudBox (Blackhole)", "Blackhole LoudBox"),
    "p300x2": ("2x p300", "quietbox2", "TT-QuietBox 2 (Blackhole)"),
    "p150": ("P 150",), "p100": ("P-100",), "n300": ("N-300", " n300 "),
}  # fmt: skip


@pytest.mark.parametrize("name", SPELLINGS)
def test_names_are_accepted_as_they_are_sold_and_spelled(name: str) -> None:
    assert {spelling: machine_named(spelling).name for spelling in SPELLINGS[name]} == dict.fromkeys(
        SPELLINGS[name], name
    )


@pytest.mark.parametrize("name", ["", " ", "tt", "2x", "x2", "2 x n600", "box", "p150x3", None, 3])
def test_a_name_that_no_machine_has_is_refused_with_the_list(name: Any) -> None:
    with pytest.raises(ArgumentValueError, match=re.escape(f"the machines are {one_of(MACHINES)}, got {name!r}")):
        machine_named(name)


@pytest.mark.parametrize("command", ["estimate", "explain", "run", "diagnose"])
def test_a_command_names_every_machine(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main([command, "--help"])
    shown = capsys.readouterr().out
    assert all(name in shown for name in MACHINES)
    with pytest.raises(SystemExit):
        main([command, "file", "--cluster", "n600"])
    assert f"the machines are {one_of(MACHINES)}, got 'n600'" in capsys.readouterr().err


def test_the_table_of_the_documents_is_made_of_the_machines() -> None:
    """`python -m tests.generators.machines` writes it."""
    assert stored(NAME, DOCUMENT) == table()
    assert "| t3000 | 2x4 | wormhole_b0 | 12.0 GiB, 288 GB/s |" in table()


@pytest.mark.parametrize("machine", MACHINES.values(), ids=MACHINES)
def test_the_facts_of_a_machine_fit_together(machine: Machine) -> None:
    chips = set(range(math.prod(machine.shape)))
    assert sorted(chip for board in machine.boards for chip in board) == sorted(chips)
    assert {*machine.hosts} <= chips
    assert len(machine.positions) in (0, len(chips))
    assert bool(machine.links) == (machine.wire is not None) == (len(chips) > 1)
    assert machine.architecture.l1_for_programs <= machine.l1_bytes / machine.cores.value
    if machine.architecture.name == "wormhole_b0":
        assert machine.cores.value == 8 * (10 - machine.harvest_mask.bit_count())
