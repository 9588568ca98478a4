"""The English of the package: habits that a reader has to read twice, and names of classes that occur twice."""

from __future__ import annotations

import ast
from collections import Counter
from pathlib import Path

import pytest

from tests.generators.prose import findings_of

PACKAGE = Path(__file__).parents[1] / "jaxmesh"
BASELINE = {
    "": 16,
    "analysis": 5,
    "cli": 0,
    "dialects": 17,
    "drawing": 0,
    "emit": 3,
    "frontends/jax": 3,
    "frontends/mlir": 12,
    "frontends/stablehlo": 3,
    "jaxprs": 0,
    "passes": 18,
    "runtime": 7,
    "sharding": 0,
    "stages": 4,
    "tensor": 8,
    "ttnn": 2,
}
"""The findings of each room; a number may only fall."""
TWICE = {"Call": 2}
"""The names of several classes, a leading underscore ignored, with their numbers; the list may only shrink."""


def room_of(path: Path) -> str:
    *folders, _ = path.relative_to(PACKAGE).parts
    return "/".join(folders[: 2 if folders[:1] == ["frontends"] else 1])


FILES = sorted(PACKAGE.rglob("*.py"))
ROOMS = sorted({room_of(path) for path in FILES} - {"frontends"})


def test_every_room_has_a_baseline() -> None:
    assert list(BASELINE) == ROOMS


@pytest.mark.parametrize("room", ROOMS)
def test_prose_of_a_room(room: str) -> None:
    files = [path for path in FILES if room_of(path) == room]
    listed = [
        f"{path.relative_to(PACKAGE.parent)}:{found.line}: {found.habit}: {found.excerpt}"
        for path in files
        for found in findings_of(path)
    ]
    assert len(listed) <= BASELINE[room], "\n".join(listed)


def test_class_names_occur_once() -> None:
    names = Counter(
        node.name.lstrip("_")
        for path in FILES
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ClassDef)
    )
    assert not {name: count for name, count in names.items() if count > TWICE.get(name, 1)}


@pytest.mark.parametrize(
    ("source", "habits"),
    [
        ('"""A table of one that is none."""', {"a pronoun for a noun", "a negated noun"}),
        ('"""What it knows."""', {"a clause for a noun"}),
        ("# Rows, of which the last is left.", {"of which"}),
        ("# A part\n# of its own.", {"an adverb for a noun"}),
        (f'"""Rows{" and rows" * 16}."""', {"a long sentence"}),
        ('def f():\n    """The row."""', {"no verb first"}),
        ('raise ValueError(f"{1} is no row, " "but a column.")', {"a negated noun"}),
        ('def f():\n    """Returns the row.\n\n    Raises:\n      ValueError: what is no row.\n    """', set()),
        ('class A:\n    @property\n    def row(self):\n        """The row."""', set()),
        ('def f():\n    """Copies a row. Matches another row."""', set()),
        ("x = 1  # noqa: what is no row", set()),
    ],
)
def test_a_habit_is_found(source: str, habits: set[str], tmp_path: Path) -> None:
    file = tmp_path / "module.py"
    file.write_text(source)
    assert {finding.habit for finding in findings_of(file)} == habits
