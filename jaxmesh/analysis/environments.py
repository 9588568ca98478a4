"""Tenstorrent's libraries in Python environments that hold nothing else: finds, checks and creates them."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jaxmesh.errors import FolderError, JaxmeshError
from jaxmesh.runtime.scratch import temporary_folder
from jaxmesh.validate import alone

_SECONDS = 120
"""The time limit of a query to another Python, in seconds; its first start after an installation reads many files."""
_MARK = "made-by-jaxmesh"
"""The file in an environment that may be replaced."""


@dataclass(frozen=True, slots=True)
class Library:
    """A library that runs in another Python.

    Attributes:
      name: of the library, for messages.
      requirement: the name of its package on an index.
      tested: the version that jaxmesh is tested with.
      pythons: the versions of Python for which it is published, best first.
      variable: the environment variable that names a Python which has it.
      command: the command of jaxmesh that installs it.
      megabytes: the size of its environment.
      error: the class of errors.
      beside: requirements that are installed with it.
      question: a script that prints the version of Python (`python`), and the `version` and `folder` of the library,
        or None, as JSON.
    """

    name: str
    requirement: str
    tested: str
    pythons: tuple[str, ...]
    variable: str
    command: str
    megabytes: int
    error: type[JaxmeshError]
    question: str
    beside: tuple[str, ...] = ()

    @property
    def get(self) -> str:
        """The remedy for a missing library."""
        return (
            f"make one with `jaxmesh {self.command}` (it needs a package index, {self.megabytes} MB, and Python "
            f"{' or '.join(self.pythons)}), or name a Python that has it with {self.variable}"
        )

    @property
    def folder(self) -> Path:
        """The default folder of the environment that the command creates."""
        return cache_folder() / self.command.partition("-")[0]

    # --- finding an environment ---------------------------------------------------------------------------------------

    def find(self, python: str | os.PathLike[str] | None = None) -> tuple[Path, str]:
        """Returns the given Python, the Python in the variable, or the Python of the command, and why it was taken."""
        named = os.environ.get(self.variable)
        if python is not None:
            return Path(python), "it was given"
        if named:
            return Path(named), f"{self.variable} names it"
        own = self.folder / "bin" / "python"
        if not own.exists():
            raise self.error(
                f"{self.name} needs its own Python environment, and {str(own)!r} does not exist; {self.get}."
            )
        return own, f"`jaxmesh {self.command}` made it"

    def ask(self, python: Path, why: str) -> Mapping[str, Any]:
        """Returns what a Python answers to the question: the library's version and folder, and further entries.

        Raises the library's error if the Python cannot be started, or the library is not installed in it.
        """
        problem = f"the Python for {self.name} is {str(python)!r} ({why}), but"
        try:
            done = _start([python, "-c", self.question])
        except (OSError, subprocess.TimeoutExpired) as error:
            raise self.error(f"{problem} it cannot be started: {error}; {self.get}.") from None
        try:
            answer = json.loads(done.stdout)
            version, own, folder = answer["version"], answer["python"], answer["folder"]
        except (ValueError, KeyError, TypeError):
            raise self.error(f"{problem} it does not run Python ({_last_line(done)}); {self.get}.") from None
        if folder is None or version is None:
            fits = any(own.startswith(f"{p}.") for p in self.pythons)
            wheels = "" if fits else f", which is published for Python {' and '.join(self.pythons)} alone"
            raise self.error(f"{problem} {self.name} is not installed in this Python {own}{wheels}; {self.get}.")
        return answer

    # --- creating an environment --------------------------------------------------------------------------------------

    def base_python(self, requested: str | os.PathLike[str] | None = None) -> Path:
        """Returns a Python that can create an environment for the library.

        Raises the library's error if no supported Python is there, or `requested` is of another version.
        """
        wanted = f"{self.name} is published for Python {' and '.join(self.pythons)} alone"
        if requested is not None:
            if not self._fits(Path(requested)):
                raise self.error(f"{wanted}, but {str(requested)!r} is another one; give another with --python.")
            return Path(requested)
        for python in self._candidates():
            if self._fits(python):
                return python
        raise self.error(f"{wanted}, and none is on the path or among pyenv's; install one, or name it with --python.")

    def install(
        self,
        folder: Path,
        version: str,
        python: str | os.PathLike[str] | None = None,
        finish: Callable[[Path], object] = lambda _: None,
    ) -> Path:
        """Creates a virtual environment with the library; returns its Python.

        It is created in a private folder beside the folder, which it replaces once it is whole. An environment with
        this version is kept. `finish` is called with the folder of the new environment.

        Raises the library's error if no supported Python is there, or the folder holds anything but an environment that
        this method created, or pip cannot install the library, with its reason.
        """
        base = None if python is None else self.base_python(python)
        own, target = folder / "bin" / "python", Path(os.path.realpath(folder))
        if target.is_dir():
            check_owner(target)
        if self._has(own, version):
            return own
        if target.exists() and not (target.is_dir() and ((target / _MARK).is_file() or not any(target.iterdir()))):
            raise self.error(
                f"{str(folder)!r} has files, and `jaxmesh {self.command}` did not make it; "
                "name a new folder, or remove it."
            )
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            # In a folder that others may write to, a name that they can guess is theirs to create first.
            with temporary_folder(f".{target.name}.", target.parent) as private:
                self._create(private / "new", base or self.base_python(), version, target.name)
                finish(private / "new")
                with alone(private_folder(cache_folder())):
                    _exchange(private / "new", target, private / "old")
        except OSError as error:
            raise self.error(f"no environment can be made in {str(folder)!r}: {error}; name another folder.") from None
        return own

    def _has(self, own: Path, version: str) -> bool:
        try:
            return own.exists() and str(self.ask(own, "it is there")["version"]).split()[-1] == version
        except self.error:
            return False

    def _create(self, folder: Path, base: Path, version: str, prompt: str) -> None:
        self._run([str(base), "-m", "venv", "--prompt", prompt, str(folder)], "the environment cannot be made")
        pip = [str(folder / "bin" / "python"), "-m", "pip", "install", "-q", "--disable-pip-version-check"]
        wanted = [*self.beside, f"{self.requirement}=={version}"]
        self._run([*pip, *wanted], f"pip cannot install {' and '.join(wanted).replace('==', ' ')}")
        self.ask(folder / "bin" / "python", "it was made just now")

    def _run(self, command: list[str], failure: str) -> None:
        done = _start(command, None)
        if done.returncode:
            raise self.error(f"{failure}: {_last_line(done)}")

    def _candidates(self) -> Iterator[Path]:
        """Yields Pythons of the supported versions: first on the path, then pyenv's, newest first."""

        def numbers(folder: Path) -> list[int]:
            return [int(n) for n in folder.name.split(".") if n]

        pyenv = Path(os.environ.get("PYENV_ROOT") or os.path.expanduser("~/.pyenv")) / "versions"
        for version in self.pythons:
            on_path = shutil.which(f"python{version}")
            if on_path is not None:
                yield Path(on_path)
            folders = [p for p in pyenv.glob(f"{version}*") if re.fullmatch(r"[0-9.]+", p.name)]
            yield from (p / "bin" / "python" for p in sorted(folders, key=numbers, reverse=True))

    def _fits(self, python: Path) -> bool:
        """Returns True for a Python of a supported version; pyenv's links start the selected version, if any."""
        try:
            done = _start([python, "-c", "import sys, venv; print('%d.%d' % sys.version_info[:2])"])
        except (OSError, subprocess.TimeoutExpired):
            return False
        return done.stdout.strip() in self.pythons


def _start(command: list[Any], seconds: float | None = _SECONDS) -> subprocess.CompletedProcess[str]:
    """Runs a Python in the root folder, since Python imports modules from the current one."""
    python = str(command[0])
    command = [os.path.abspath(python) if os.sep in python else python, *command[1:]]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=seconds, check=False, env=clean_environment(), cwd=os.sep
    )


def _exchange(aside: Path, target: Path, old: Path) -> None:
    """Replaces an environment by another one, and the name of its first folder in its texts; moves it to `old`."""
    for path in (aside / "pyvenv.cfg", *(aside / "bin").iterdir()):
        data = b"" if path.is_symlink() or not path.is_file() else path.read_bytes()
        if os.fsencode(aside) in data:
            path.write_bytes(data.replace(os.fsencode(aside), os.fsencode(target)))
    (aside / _MARK).touch()
    if target.exists():
        target.rename(old)
    aside.rename(target)


def _last_line(done: subprocess.CompletedProcess[str]) -> str:
    lines = (done.stderr or done.stdout).strip().splitlines()
    return lines[-1] if lines else f"exit code {done.returncode}"


def cache_folder() -> Path:
    """Returns the folder for files that can be generated again; without a home, one in the folder of temporary files.

    Raises:
      FolderError: it belongs to another user, whose files this user would run, or it is not a folder.
    """
    named = os.environ.get("XDG_CACHE_HOME", "")
    # The specification of XDG has relative paths ignored.
    folder = Path(named) / "jaxmesh" if os.path.isabs(named) else _home_cache()
    check_owner(folder)
    return folder


def _home_cache() -> Path:
    home = os.path.expanduser("~")
    if os.path.isabs(home):
        return Path(home) / ".cache" / "jaxmesh"
    return Path(tempfile.gettempdir(), f"jaxmesh-{os.geteuid()}")


def private_folder(folder: Path) -> Path:
    """Creates a folder that other users cannot read, with its parents, unless it exists; returns it."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    check_owner(folder)
    return folder


def check_owner(folder: Path) -> None:
    """Checks that a folder, if it exists, is one, and belongs to this user.

    Raises:
      FolderError: it does not.
    """
    if not os.path.lexists(folder):
        return
    if not folder.is_dir():
        raise FolderError(f"{str(folder)!r} is not a folder, or a broken link; remove it, or name another folder.")
    owner = folder.stat().st_uid
    if owner != os.geteuid():
        raise FolderError(
            f"{str(folder)!r} belongs to user {owner}, and this process runs as user {os.geteuid()}: it would run "
            "programs that the other user has put there; name a folder of your own."
        )


def clean_environment() -> dict[str, str]:
    """Returns the environment variables of this process, except for the variables that add its packages to another
    Python."""
    return {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")}
