"""Every notebook runs from top to bottom, and is stored with the outputs of such a run."""

from __future__ import annotations

import re
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("nbclient", reason="the tests of notebooks need tt-jaxmesh[dev]")

import nbformat

from tests import ROOT
from tests.generators.notebooks import (
    BY_VERSION,
    NOTEBOOKS,
    differences,
    environment,
    execute,
    missing,
    same,
    text,
    to_store,
)

SCREENS = 120
"""The lines of source before the exercise: two screens of 60 lines, markdown folded at 120 columns."""
UNSAFE = re.compile(r"<(script|iframe|foreignObject|input)\b|\bon\w+=|javascript:|xlink:")
"""What GitHub takes out of the outputs of a notebook."""
each = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in environment().items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("XLA_FLAGS", raising=False)


def read(path: Path) -> Any:
    return nbformat.read(path, as_version=4)


def test_the_notebooks_are_numbered() -> None:
    assert [p.name[:3] for p in NOTEBOOKS] == [f"{n:02}_" for n in range(1, 14)]


@each
def test_a_notebook_says_what_you_will_see_and_ends_with_an_exercise(path: Path) -> None:
    cells = read(path).cells
    first, texts = cells[0], [c.source for c in cells if c.cell_type == "markdown"]
    assert first.cell_type == "markdown"
    assert "You will see" in first.source
    assert "## Exercise" in texts[-1]
    code = [c.source for c in cells if c.cell_type == "code"]
    assert re.match(r"import jaxmesh as jm\njm\.emulate\(8\)\n", code[0])
    before = cells[: next(i for i, c in enumerate(cells) if c.cell_type == "markdown" and "## Exercise" in c.source)]
    assert sum(map(height, before)) <= SCREENS


def height(cell: Any) -> int:
    """The lines of a cell's source."""
    lines = cell.source.split("\n")
    return len(lines) if cell.cell_type == "code" else sum(max(1, len(textwrap.wrap(x, 120))) for x in lines)


@each
def test_a_notebook_is_stored_with_its_outputs(path: Path) -> None:
    notebook = read(path)
    nbformat.validate(notebook)
    code = [c for c in notebook.cells if c.cell_type == "code"]
    assert [c.execution_count for c in code] == list(range(1, len(code) + 1))
    outputs = [o for c in code for o in c.outputs]
    assert outputs
    assert not [o for o in outputs if o.output_type == "error" or o.get("name") == "stderr"]
    # GitHub shows no styles, and a long output hides the text around it.
    shown = [
        text for o in outputs for kind, text in o.get("data", {}).items() if kind in ("text/html", "image/svg+xml")
    ]
    assert not [text for text in shown if UNSAFE.search(text)]
    assert not [o for o in outputs if "<style" in o.get("data", {}).get("text/html", "")]
    assert max(len(text(c).splitlines()) for c in code) <= 60
    stored = path.read_text()
    assert not re.search(r"\d{6,}\.py", stored), "a cell is named by its file"
    for folder in (str(ROOT), str(Path.home()), sys.prefix, "site-packages", "/tmp/"):
        assert folder not in stored


def test_the_notebooks_are_small() -> None:
    assert sum(path.stat().st_size for path in NOTEBOOKS) < 3_000_000


def test_few_outputs_are_of_one_jax_version() -> None:
    """On another version all others are compared."""
    tags = [c.metadata.get("tags", ()) for path in NOTEBOOKS for c in read(path).cells]
    assert sum(BY_VERSION in t for t in tags) == 2


@each
def test_a_fresh_run_gives_the_stored_outputs(path: Path) -> None:
    stored, fresh = read(path), to_store(execute(read(path)))
    if not missing(path):
        assert not differences(stored, fresh), "\n\n".join(differences(stored, fresh))


def test_a_changed_output_is_a_difference() -> None:
    cell = nbformat.v4.new_code_cell(
        "x", outputs=[nbformat.v4.new_output("stream", text="took 1.25 ms at 0xabcdef12, 3\n")]
    )
    other = nbformat.v4.new_code_cell(
        "x", outputs=[nbformat.v4.new_output("stream", text="took 9.75 ms at 0xfedcba98, 3\n")]
    )
    notebooks = [nbformat.v4.new_notebook(cells=[c]) for c in (cell, other)]
    assert differences(*notebooks) == []
    other.outputs[0].text = "took 9.75 ms at 0xfedcba98, 4\n"
    assert len(differences(*notebooks)) == 1
    assert same("1.0001", "1.0")
    assert not same("1.1", "1.0")


def test_the_kernel_is_this_python_and_its_warnings_are_errors() -> None:
    source = """
        import sys, warnings
        print(sys.executable)
        try:
            warnings.warn("x")
        except UserWarning:
            print("raised")
    """
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(textwrap.dedent(source))])
    (output,) = execute(notebook).cells[0].outputs
    assert output.text == f"{sys.executable}\nraised\n"
