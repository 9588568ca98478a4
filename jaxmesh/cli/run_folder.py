"""Runs an exported folder with the emulated `jaxmesh.ttnn` as its `ttnn`."""

from __future__ import annotations

import contextlib
import os
import re
import runpy
import sys
import threading
from collections.abc import Generator, Sequence
from pathlib import Path

import jax

from jaxmesh import ttnn
from jaxmesh.dialects.ttnn.forms import EVERY
from jaxmesh.emit.export_folder import check_folder
from jaxmesh.errors import MissingFileError, printable
from jaxmesh.tensor import beyond
from jaxmesh.tensor.chains import chained

_WIDE = re.compile(r"ttnn\.DataType\.(FLOAT64|U?INT64|COMPLEX128)\b")
_TYPES = re.compile(r"ttnn\.DataType\.([A-Z]\w*)")
_SOLID = re.compile(r"get_device\(\(\d+, \d+, \d+")
_process_wide = threading.RLock()
"""A lock: the working directory, `sys.argv` and `sys.modules` are shared by all threads, so one folder runs at a
time."""


def run_folder(directory: str | os.PathLike[str], arguments: Sequence[str] = ()) -> int:
    """Runs `main.py` of a folder with the emulated `ttnn`, as `python main.py ARGUMENTS` in that folder would.

    Programs with 64-bit types run in JAX's 64-bit mode, independent of the caller's mode.
    Returns its exit code: 0, 1 if a result differs from the expected result, or 2 for an unreadable file.

    Raises:
      MissingFileError: `main.py` is missing or unreadable, or compared nothing for `--check`.
    """
    folder = Path(directory).resolve()
    script = folder / "main.py"
    if not script.is_file():
        check_folder(folder, tensors=False)
        only = " (it contains a C++ program: compile main.cpp)" if (folder / "main.cpp").is_file() else ""
        raise MissingFileError(
            f"{str(directory)!r} is not an exported folder with a Python program: main.py is missing{only}; give a "
            "folder that lowered.export wrote."
        )
    try:
        text = script.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise MissingFileError(f"{str(script)!r} cannot be read as text ({error}); export the program again.") from None
    check_folder(folder, tensors="--make-inputs" not in arguments)
    wide = jax.enable_x64(True) if _WIDE.search(text) else contextlib.nullcontext()
    further = beyond.enabled() if _is_beyond(text) else contextlib.nullcontext()
    with _process_wide, wide, further, chained(), _process(folder, script, arguments), _modules(folder):
        try:
            runpy.run_path(str(script), run_name="__main__")
        except SystemExit as stop:
            return _exit_code(stop)
    if "--check" in arguments:
        raise MissingFileError(
            f"{str(script)!r} ended without comparing anything, as --check asks; what lowered.export writes ends with "
            "`raise SystemExit(main())`. Export the program again."
        )
    return 0


def _is_beyond(text: str) -> bool:
    """Returns True for a program with element types or a mesh that the real `ttnn` lacks."""
    return bool(set(_TYPES.findall(text)) - EVERY or _SOLID.search(text))


def _exit_code(stop: SystemExit) -> int:
    """Returns Python's exit code: 0 for None; text goes to stderr."""
    if stop.code is None or isinstance(stop.code, int):
        return int(stop.code or 0)
    print(printable(str(stop.code)), file=sys.stderr)
    return 1


@contextlib.contextmanager
def _process(folder: Path, script: Path, arguments: Sequence[str]) -> Generator[None]:
    """Sets the working directory, the command line and the import path of a script; writes no bytecode into the
    folder."""
    before = sys.argv, sys.path, sys.dont_write_bytecode
    sys.argv, sys.path, sys.dont_write_bytecode = [str(script), *arguments], [str(folder), *sys.path], True
    try:
        with contextlib.chdir(folder):
            yield
    finally:
        sys.argv, sys.path, sys.dont_write_bytecode = before


@contextlib.contextmanager
def _modules(folder: Path) -> Generator[None]:
    """Replaces `ttnn` by the emulated `jaxmesh.ttnn`; removes the folder's modules afterwards."""
    own = {path.stem for path in folder.glob("*.py")} - {"main"}
    before = {name: sys.modules.pop(name, None) for name in own}
    before["ttnn"] = sys.modules.get("ttnn")
    sys.modules["ttnn"] = ttnn
    try:
        yield
    finally:
        for name, module in before.items():
            if module is None:
                sys.modules.pop(name, None)
            else:
                sys.modules[name] = module
