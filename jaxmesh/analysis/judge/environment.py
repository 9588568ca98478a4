"""The Python environment of ttnn: finds it, checks it, and creates it from a package index."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from jaxmesh.analysis.judge.stand_in_compiler import PROGRAM, install_stand_in
from jaxmesh.errors import TtnnError

VARIABLE = "JAXMESH_TTNN_PYTHON"
TESTED = "0.81.1"
"""The version of ttnn that the judge is tested with."""
PYTHONS = ("3.12", "3.10")
"""The versions of Python for which ttnn is published, best first."""
_COMPILER_FOLDER = Path("runtime", "sfpi", "compiler", "bin")
_SECONDS = 120
"""The time limit of a query to another Python, in seconds; its first start after an installation reads many files."""

GET = (
    "make one with `jaxmesh ttnn-env` (it needs a package index, 700 MB, and Python "
    f"{' or '.join(PYTHONS)}), or name a Python that has it with --ttnn-python, python= or {VARIABLE}"
)

_ASK = """
import importlib.util, json, platform, sys
from importlib.metadata import PackageNotFoundError, version
try:
    installed = version("ttnn")
except PackageNotFoundError:
    installed = None
spec = importlib.util.find_spec("ttnn")
folder = spec and spec.submodule_search_locations[0]
print(json.dumps({"python": platform.python_version(), "ttnn": installed, "folder": folder}))
"""


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


def cache_folder() -> Path:
    """Returns the folder for files that can be generated again."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "jaxmesh"


def default_folder() -> Path:
    """Returns the default folder of the environment that `jaxmesh ttnn-env` creates."""
    return cache_folder() / "ttnn"


def find_environment(python: str | os.PathLike[str] | None = None) -> Environment:
    """Returns the environment of `python`, else of the Python in `JAXMESH_TTNN_PYTHON`, else the one from `ttnn-env`.

    Raises:
      TtnnError: no Python was found, or it cannot be started, or ttnn is not installed in it.
    """
    named = os.environ.get(VARIABLE)
    if python is not None:
        return check_python(Path(python), "it was given")
    if named:
        return check_python(Path(named), f"{VARIABLE} names it")
    default_python = default_folder() / "bin" / "python"
    if not default_python.exists():
        raise TtnnError(f"ttnn needs its own Python environment, and {str(default_python)!r} does not exist; {GET}.")
    return check_python(default_python, "`jaxmesh ttnn-env` made it")


def check_python(python: Path, why: str) -> Environment:
    """Returns the environment of a Python with ttnn.

    Raises:
      TtnnError: the Python cannot be started, or ttnn is not installed in it.
    """
    problem = f"the Python for ttnn is {str(python)!r} ({why}), but"
    try:
        done = subprocess.run(
            [python, "-c", _ASK], capture_output=True, text=True, timeout=_SECONDS, check=False, env=clean_environment()
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise TtnnError(f"{problem} it cannot be started: {error}; {GET}.") from None
    try:
        answer = json.loads(done.stdout)
        version, own, folder = answer["ttnn"], answer["python"], answer["folder"]
    except (ValueError, KeyError, TypeError):
        raise TtnnError(f"{problem} it does not run Python ({_last_line(done)}); {GET}.") from None
    if folder is None or version is None:
        fits = any(own.startswith(f"{p}.") for p in PYTHONS)
        wheels = "" if fits else f", which is published for Python {' and '.join(PYTHONS)} alone"
        raise TtnnError(f"{problem} ttnn is not installed in this Python {own}{wheels}; {GET}.")
    return Environment(python, str(version), (Path(folder) / _COMPILER_FOLDER / PROGRAM).exists())


def _last_line(done: subprocess.CompletedProcess[str]) -> str:
    lines = (done.stderr or done.stdout).strip().splitlines()
    return lines[-1] if lines else f"exit code {done.returncode}"


def clean_environment() -> dict[str, str]:
    """Returns the environment variables of this process, except for the variables that add its packages to another
    Python."""
    return {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")}


# --- creating an environment --------------------------------------------------------------------------------------


def _candidates() -> Iterator[Path]:
    """Yields Pythons of the versions that ttnn supports: first on the path, then pyenv's, newest first."""
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv") / "versions"
    for version in PYTHONS:
        on_path = shutil.which(f"python{version}")
        if on_path is not None:
            yield Path(on_path)
        folders = [p for p in pyenv.glob(f"{version}*") if re.fullmatch(r"[0-9.]+", p.name)]
        yield from (p / "bin" / "python" for p in sorted(folders, key=_numbers, reverse=True))


def _numbers(folder: Path) -> tuple[int, ...]:
    return tuple(int(n) for n in folder.name.split(".") if n)


def _runs(python: Path) -> bool:
    """Returns True for a Python of a supported version; pyenv's links start the currently selected version, if any."""
    try:
        done = subprocess.run(
            [python, "-c", "import sys, venv; print('%d.%d' % sys.version_info[:2])"],
            capture_output=True, text=True, timeout=_SECONDS, check=False, env=clean_environment(),
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.stdout.strip() in PYTHONS


def base_python(requested: str | os.PathLike[str] | None = None) -> Path:
    """Returns a Python that can create an environment for ttnn.

    Raises:
      TtnnError: no supported Python was found, or `requested` is of another version.
    """
    wanted = f"ttnn is published for Python {' and '.join(PYTHONS)} alone"
    if requested is not None:
        if not _runs(Path(requested)):
            raise TtnnError(f"{wanted}, but {str(requested)!r} is another one; give another with --python.")
        return Path(requested)
    for python in _candidates():
        if _runs(python):
            return python
    raise TtnnError(f"{wanted}, and none is on the path or among pyenv's; install one, or name it with --python.")


def make_environment(folder: Path, version: str = TESTED, python: str | os.PathLike[str] | None = None) -> Environment:
    """Creates a virtual environment with ttnn and a stand-in for the compiler of kernels.

    An existing environment is completed. A compiler of kernels that came with ttnn is kept.

    Raises:
      TtnnError: no supported Python was found, or pip cannot install ttnn; the message has pip's reason.
    """
    own = folder / "bin" / "python"
    if not own.exists():
        if folder.exists() and any(folder.iterdir()):
            raise TtnnError(f"an environment is made in a new folder, but {str(folder)!r} has files; name another.")
        _run([str(base_python(python)), "-m", "venv", str(folder)], "the environment cannot be made")
    _run(
        [str(own), "-m", "pip", "install", "-q", "--disable-pip-version-check", f"ttnn=={version}"],
        f"pip cannot install ttnn {version} for the Python in {str(folder)!r}",
    )
    site = next(folder.glob("lib/python3*/site-packages/ttnn"), None)
    if site is None:
        raise TtnnError(
            f"pip installed ttnn {version} into {str(folder)!r}, but no package ttnn is there; make a new one."
        )
    compiler = site / _COMPILER_FOLDER
    if not compiler.exists() or (compiler / PROGRAM).exists():
        install_stand_in(compiler)
    return check_python(own, "it was made just now")


def _run(command: list[str], failure: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=clean_environment())
    if done.returncode:
        raise TtnnError(f"{failure}: {_last_line(done)}")
