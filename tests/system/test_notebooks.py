"""Every notebook runs from top to bottom, and is stored without outputs."""

from __future__ import annotations

import os
import re
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("nbclient", reason="the tests of notebooks need jaxmesh[dev]")

import nbformat
from jupyter_client.kernelspec import KernelSpec, KernelSpecManager
from jupyter_client.manager import AsyncKernelManager
from nbclient import NotebookClient

from tests import ROOT

NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))


class ThisPython(KernelSpecManager):
    """Gives the running interpreter as the kernel, whatever kernels are installed on the machine."""

    def get_kernel_spec(self, kernel_name: str) -> KernelSpec:
        argv = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
        return KernelSpec(argv=argv, display_name=kernel_name, language="python")


# A cell and not PYTHONWARNINGS, and an exception for ipykernel: the kernel itself must start and shut down.
STRICT = "import warnings\nwarnings.simplefilter('error')\nwarnings.filterwarnings('ignore', module='ipykernel')"


def execute(notebook: Any) -> Any:
    notebook.cells.insert(0, nbformat.v4.new_code_cell(STRICT))
    manager = AsyncKernelManager(kernel_spec_manager=ThisPython())
    client = NotebookClient(
        notebook, km=manager, timeout=120, resources={"metadata": {"path": str(ROOT / "notebooks")}}
    )
    client.execute(cleanup_kc=True)
    return notebook


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch) -> None:
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
    monkeypatch.setenv("PYTHONPATH", path)
    # A notebook makes its own devices.
    monkeypatch.delenv("XLA_FLAGS", raising=False)
    monkeypatch.setenv("PYDEVD_DISABLE_FILE_VALIDATION", "1")


def test_the_notebooks_are_numbered() -> None:
    assert [p.name[:3] for p in NOTEBOOKS] == [f"{n:02}_" for n in range(1, 12)]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_a_notebook_says_what_you_will_see_and_ends_with_an_exercise(path: Path) -> None:
    cells = nbformat.read(path, as_version=4).cells
    first, texts = cells[0], [c.source for c in cells if c.cell_type == "markdown"]
    assert first.cell_type == "markdown"
    assert "You will see" in first.source
    assert "## Exercise" in texts[-1]
    code = [c.source for c in cells if c.cell_type == "code"]
    assert re.match(r"import jaxmesh as jm\njm\.emulate\(8\)\n", code[0])


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_a_notebook_runs(path: Path) -> None:
    done = execute(nbformat.read(path, as_version=4))
    assert [c.id for c in done.cells if c.cell_type == "code" and c.execution_count is None and c.source] == []


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_a_notebook_is_stored_without_outputs(path: Path) -> None:
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    code = [c for c in notebook.cells if c.cell_type == "code"]
    assert [c.id for c in code if c.outputs or c.execution_count is not None] == []


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
    (output,) = execute(notebook).cells[1].outputs
    assert output.text == f"{sys.executable}\nraised\n"
