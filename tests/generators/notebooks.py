"""Runs the notebooks and writes them with their outputs: `python -m tests.generators.notebooks [NAME...]`.

A name is the beginning of a notebook's, such as `04`; without one all are run, which takes some five minutes on two
cores. Three need the real ttnn, the compiler and the simulated chip, which the variables of `NEEDS` name;
without them they are left as they are.

Stored are texts, SVG, PNG, and tables of HTML, all of which GitHub shows. GitHub takes styles away, so a picture that
only HTML draws is stored as its plain text. Progress bars on stderr are left out, temporary folders are TEMPORARY.
"""

from __future__ import annotations

import html
import math
import os
import re
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import Any

import nbformat
from jupyter_client.kernelspec import KernelSpec, KernelSpecManager
from jupyter_client.manager import AsyncKernelManager
from nbclient import NotebookClient

from tests import ROOT

NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
NEEDS = {
    "09_judge": "JAXMESH_TTNN_PYTHON",
    "12_repair": "JAXMESH_UPSTREAM_PYTHON",
    "13_chip": "JAXMESH_CHIP_PYTHON",
}
"""The notebooks with outputs of the real ttnn, Tenstorrent's compiler and the simulated chip, with their variables."""
# Not PYTHONWARNINGS, and an exception for ipykernel: the kernel itself must start and shut down.
_STRICT = "import warnings\nwarnings.simplefilter('error')\nwarnings.filterwarnings('ignore', module='ipykernel')"
_PLAIN = re.compile(r'<pre class="plain">')
_TEXT = re.compile(r"<pre[^>]*>(.*?)</pre>", re.DOTALL)
_TEMPORARY = re.compile(re.escape(tempfile.gettempdir()) + r"/\w+")
_STYLE = re.compile(r"<style>.*?</style>|<input [^>]*>", re.DOTALL)
"""The parts of HTML that GitHub takes away: styles, and fields that need a script."""


class ThisPython(KernelSpecManager):
    """Gives the running interpreter as the kernel, whatever kernels are installed on the machine."""

    def get_kernel_spec(self, kernel_name: str) -> KernelSpec:
        argv = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
        return KernelSpec(argv=argv, display_name=kernel_name, language="python")


def execute(notebook: Any) -> Any:
    """Runs a notebook from top to bottom, with warnings as errors; its cells get their outputs."""
    manager = AsyncKernelManager(kernel_spec_manager=ThisPython())
    client = NotebookClient(
        notebook, km=manager, timeout=300, resources={"metadata": {"path": str(ROOT / "notebooks")}}
    )
    with client.setup_kernel(cleanup_kc=True):
        assert client.kc is not None
        client.kc.execute(_STRICT, silent=True, store_history=False)
        for number, cell in enumerate(notebook.cells):
            client.execute_cell(cell, number)
    return notebook


def missing(path: Path) -> str:
    """Returns the variable that is not set, and without which a notebook cannot run as it is stored."""
    variable = NEEDS.get(path.stem, "")
    return "" if os.environ.get(variable) else variable


def environment() -> dict[str, str]:
    """Returns the environment of a notebook's kernel."""
    known = {name: text for name, text in os.environ.items() if name != "XLA_FLAGS"}  # a notebook makes its own devices
    path = os.pathsep.join([str(ROOT), known.get("PYTHONPATH", "")]).rstrip(os.pathsep)
    return known | {"PYTHONPATH": path, "PYDEVD_DISABLE_FILE_VALIDATION": "1"}


# --- what is stored ---------------------------------------------------------------------------------------------------


def to_store(notebook: Any) -> Any:
    """Keeps what GitHub shows of the outputs, and joins the pieces of a stream."""
    notebook.metadata["jax"] = version("jax")
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)
        if cell.cell_type == "code":
            cell.outputs = [_stored(output) for output in _joined(cell.outputs)]
    return notebook


def _joined(outputs: Any) -> list[Any]:
    kept: list[Any] = []
    for output in outputs:
        if output.get("name") == "stderr":
            continue
        if output.output_type == "stream" and kept and kept[-1].output_type == "stream":
            kept[-1].text += output.text
        else:
            kept.append(output)
    return kept


def _stored(output: Any) -> Any:
    if "data" not in output:
        output.text = _TEMPORARY.sub("TEMPORARY", output.text)
        return output
    data, text = dict(output.data), output.data.get("text/html", "")
    drawn = _PLAIN.search(text)
    if drawn is not None:
        data["text/plain"] = html.unescape("\n\n".join(_TEXT.findall(text)))
    if drawn is not None or any(kind.startswith("image/") for kind in data):
        data.pop("text/html", None)
    elif text:
        data["text/html"] = _STYLE.sub("", text)
    output.data, output.metadata = data, {}
    return output


# --- what is compared -------------------------------------------------------------------------------------------------

MAY_DIFFER = {
    "a measured time": re.compile(r"\b\d+\.\d+ ms\b"),
    "an address in memory": re.compile(r"0x[0-9a-f]{6,}"),
    "a checksum of floats": re.compile(r"crc32=[0-9a-f]{8}"),
}
"""The parts of a text that a fresh run may print otherwise, by name."""
_LAST = re.compile(r"^(\[\d\] jaxmesh\.errors\.\w+: .*)?\n(?=exit codes)", re.MULTILINE)
"""The error of the process that arrives last, which another one may end before it is printed."""
BY_VERSION = "of one JAX version"
"""The tag of the cells whose outputs have the numbers or the equations of one JAX version."""
_FLOAT = re.compile(r"-?\d+(?:\.\d+(?:e[+-]?\d+)?|e[+-]?\d+)")
_ROUNDING = {"rel_tol": 1e-2, "abs_tol": 1e-4}
"""How far floats may differ: XLA rounds by the processor, and texts print few digits."""


def differences(stored: Any, fresh: Any) -> list[str]:
    """Returns the cells whose texts differ between two runs of a notebook, with both texts."""
    is_other = stored.metadata.get("jax") != fresh.metadata.get("jax")
    code = [(a, b) for a, b in zip(stored.cells, fresh.cells, strict=True) if a.cell_type == "code"]
    pairs = [(a, b) for a, b in code if not (is_other and BY_VERSION in a.metadata.get("tags", ()))]
    return [f"{a.source}\n--- stored\n{x}\n--- fresh\n{y}" for a, b in pairs if not same(x := text(a), y := text(b))]


def text(cell: Any) -> str:
    """Returns the texts of a cell's outputs, without what may differ."""
    texts = [
        part
        for o in cell.outputs
        for part in (
            [o.text] if o.output_type == "stream" else [o.data.get(k, "") for k in ("text/plain", "text/html")]
        )
    ]
    joined = _LAST.sub("", "\n".join(texts))
    for name, pattern in MAY_DIFFER.items():
        joined = pattern.sub(f"<{name}>", joined)
    return joined


def same(stored: str, fresh: str) -> bool:
    """Returns True if two texts are equal but for the rounding of floats.

    >>> same("loss 0.25 of 3", "loss 0.2501 of 3"), same("loss 0.25 of 3", "loss 0.25 of 4")
    (True, False)
    """
    floats = [list(map(float, _FLOAT.findall(t))) for t in (stored, fresh)]
    return _FLOAT.sub("", stored) == _FLOAT.sub("", fresh) and all(
        math.isclose(a, b, **_ROUNDING) for a, b in zip(*floats, strict=True)
    )


def main(names: list[str]) -> None:
    """Runs and writes the notebooks whose names begin so."""
    os.environ.update(environment())
    os.environ.pop("XLA_FLAGS", None)
    for path in NOTEBOOKS:
        if names and not path.name.startswith(tuple(names)):
            continue
        if variable := missing(path):
            print(f"{path.name} needs {variable}; it is left as it is", flush=True)
            continue
        print(path.name, flush=True)
        notebook = to_store(execute(nbformat.read(path, as_version=4)))
        nbformat.write(notebook, path)


if __name__ == "__main__":
    main(sys.argv[1:])
