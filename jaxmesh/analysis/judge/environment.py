"""The Python environment of ttnn: finds it, checks it, and creates it from a package index."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from jaxmesh.analysis.environments import Library
from jaxmesh.analysis.judge.stand_in_compiler import PROGRAM, install_stand_in
from jaxmesh.errors import TtnnError

_ASK = """
import importlib.util, json, platform
from importlib.metadata import PackageNotFoundError, version
try:
    installed = version("ttnn")
except PackageNotFoundError:
    installed = None
spec = importlib.util.find_spec("ttnn")
folder = spec and spec.submodule_search_locations[0]
print(json.dumps({"python": platform.python_version(), "version": installed, "folder": folder}))
"""

TTNN = Library(
    name="ttnn",
    requirement="ttnn",
    tested="0.81.1",
    pythons=("3.12", "3.10"),
    variable="JAXMESH_TTNN_PYTHON",
    command="ttnn-env",
    megabytes=700,
    options="--ttnn-python, python=",
    error=TtnnError,
    question=_ASK,
)
_COMPILER_FOLDER = Path("runtime", "sfpi", "compiler", "bin")


@dataclass(frozen=True, slots=True)
class Environment:
    """A Python with ttnn.

    Attributes:
      python: the path of its executable.
      version: the version of ttnn.
      stand_in: True if a stand-in replaces the compiler of kernels: only mock devices work.
    """

    python: Path
    version: str
    stand_in: bool


def find_environment(python: str | os.PathLike[str] | None = None) -> Environment:
    """Returns the environment of `python`, else of the Python in `JAXMESH_TTNN_PYTHON`, else the one from `ttnn-env`.

    Raises:
      TtnnError: no Python was found, or it cannot be started, or ttnn is not installed in it.
    """
    return check_python(*TTNN.find(python))


def check_python(python: Path, why: str) -> Environment:
    """Returns the environment of a Python with ttnn.

    Raises:
      TtnnError: the Python cannot be started, or ttnn is not installed in it.
    """
    answer = TTNN.ask(python, why)
    stand_in = (Path(answer["folder"]) / _COMPILER_FOLDER / PROGRAM).exists()
    return Environment(python, str(answer["version"]), stand_in)


def make_environment(
    folder: Path, version: str = TTNN.tested, python: str | os.PathLike[str] | None = None
) -> Environment:
    """Creates a virtual environment with ttnn and a stand-in for the compiler of kernels.

    An environment with this version is kept. So is a compiler of kernels that came with ttnn.

    Raises:
      TtnnError: no supported Python was found, or pip cannot install ttnn; the message has pip's reason.
    """
    own = TTNN.install(folder, version, python, _add_stand_in)
    return check_python(own, "it was made just now")


def _add_stand_in(folder: Path) -> None:
    site = next(folder.glob("lib/python3*/site-packages/ttnn"), None)
    if site is None:
        raise TtnnError(f"pip installed ttnn, but the package ttnn is missing in {str(folder)!r}; try again.")
    compiler = site / _COMPILER_FOLDER
    if not compiler.exists() or (compiler / PROGRAM).exists():
        install_stand_in(compiler)
