"""The frame of the user's code in a traceback: the only place that decides whose line a value's source line is.

Frames of JAX, jaxmesh, Python's library and installed packages (Flax, Optax) are passed over. A traceback that has
frames of packages alone gives the outermost one. With JAXMESH_PACKAGE_LINES=1 in the environment, frames of packages
count as the user's.
"""

from __future__ import annotations

import functools
import linecache
import os
import pathlib
import re
import stat
import sys
from collections.abc import Iterable, Iterator
from typing import Any

import jax
import jaxlib
from jax._src import source_info_util

_util: Any = source_info_util
PARSED = re.compile(r'"-":([0-9]+):([0-9]+)')
"""The line and column of an op, in the location that MLIR's parser gives it."""
SWITCH = "JAXMESH_PACKAGE_LINES"
_FOLDERS = frozenset({"site-packages", "dist-packages"})
_PACKAGE = str(pathlib.PurePath(__file__).parents[1]) + os.sep
_DEMO = f"{_PACKAGE}cli{os.sep}"
"""The programs of the demo, which are user code where jaxmesh is installed, too."""
_OWN = (*(os.path.dirname(str(m.__file__)) + os.sep for m in (jax, jaxlib)), _PACKAGE)
_GENERATED = ("<frozen ", "<attrs ", "<@beartype", "<decorator-gen", "<__array_function__")
"""The beginnings of the names of files that packages generate."""
_LONGEST = 1 << 24
"""The bytes of the longest file that is read for a line of code."""

_ESCAPE = re.compile(rb"\\(?:([0-9A-Fa-f]{2})|(.))")
_LETTERS = {b"n": b"\n", b"t": b"\t"}

Frame = Any
"""A frame of JAX: `file_name`, `function_name`, `start_line`, `start_column`."""
Place = tuple[str, int, int]
"""The file, the line and the column of a frame."""


def frame_of(traceback: Any, *, packages: bool = True) -> Frame | None:
    """Returns the innermost frame of the user's code; without one, if `packages`, the outermost frame of a package."""
    user, package = (None, None) if traceback is None else _chosen(traceback, _keeps_packages())
    return user or (package if packages else None)


def _keeps_packages() -> bool:
    return os.environ.get(SWITCH) == "1"


@functools.lru_cache(maxsize=1024)
def _chosen(traceback: object, keeps_packages: bool) -> tuple[Frame | None, Frame | None]:
    return choose(frames(traceback), keeps_packages)


def nearest(traceback: Any, outer: object = None) -> object:
    """Returns a traceback if it has a frame of the user's, else the traceback of its caller.

    `outer` is the traceback of the caller, by default of the equation whose body is traced now.
    """
    if frame_of(traceback, packages=False) is not None:
        return traceback
    around = outer or _util._source_info_context.context.traceback
    return traceback if frame_of(around, packages=False) is None else around


def frames(traceback: Any) -> Iterator[Frame]:
    """Yields the frames outside of JAX, jaxmesh and Python's library, from the innermost on."""
    for code, instruction in zip(*traceback.raw_frames(), strict=True):
        if _is_outside(code.co_filename):
            yield _frame(code, instruction)


@functools.lru_cache(maxsize=4096)
def _is_outside(file: str) -> bool:
    # Where packages are installed in the folder of Python's library, JAX takes them for a part of it.
    return _util.is_user_filename(file) or (is_installed(file) and not file.startswith(_OWN))


@functools.lru_cache(maxsize=4096)
def _frame(code: object, instruction: int) -> Frame:
    return _util.raw_frame_to_frame(code, instruction)


def places(traceback: Any) -> tuple[Place, ...]:
    """Returns the places of the frames of a traceback, as JAX writes them to the locations of MLIR."""
    known = (f for f in frames(traceback) if _util.is_user_filename(f.file_name))
    return tuple((f.file_name, int(f.start_line), int(f.start_column)) for f in known)


def choose(candidates: Iterable[Frame], keeps_packages: bool = False) -> tuple[Frame | None, Frame | None]:
    """Returns the innermost frame of the user's code, and without one the outermost frame of a package.

    Args:
      candidates: frames from the innermost on, without frames of JAX and of Python's library.
      keeps_packages: True to count frames of installed packages as the user's.
    """
    package = None
    for frame in candidates:
        name = frame.file_name
        if name.startswith(_GENERATED) or "__create_fn__" in frame.function_name:
            continue  # Code that a package has generated, such as the __init__ of a dataclass.
        if keeps_packages or not is_installed(name):
            return frame, None
        package = frame
    return None, package


@functools.lru_cache(maxsize=4096)
def is_installed(file: str) -> bool:
    """Returns True if a file belongs to an installed package.

    >>> is_installed("/usr/lib/python3/dist-packages/flax/nnx/nn/linear.py"), is_installed("/home/ada/model.py")
    (True, False)
    """
    if file.endswith("_test.py") or file.startswith(_DEMO):
        return False
    return not _FOLDERS.isdisjoint(pathlib.PurePath(file).parts)


def caller_line() -> str:
    """Returns `file:line (function)` of the nearest caller in the user's code."""
    user, package = choose(_callers(), _keeps_packages())
    frame = user or package
    return "an unknown line" if frame is None else describe(frame)


def _callers() -> Iterator[Frame]:
    raw = sys._getframe(2)  # pyright: ignore[reportPrivateUsage]
    while raw is not None:
        code, line = raw.f_code, raw.f_lineno
        if _is_outside(code.co_filename):
            yield _util.Frame(code.co_filename, code.co_qualname, line, 0, line, 0)
        raw = raw.f_back


_cells: dict[str, str] = {}
"""The files of the cells of Jupyter, by their names."""


def name_of(file: str) -> str:
    """Returns the name of a file; for a cell of Jupyter `In[2]`."""
    python: object = sys.modules.get("IPython")
    shell = None if python is None else python.get_ipython()
    named: Any = None if shell is None else shell.compile.format_code_name(file)
    if not named:
        return file
    _cells[named[1]] = file
    return named[1]


def source_code(file: str, line: int) -> str:
    """Returns a line of the code of a file, or of a cell of Jupyter; empty if it cannot be read.

    A text of a stranger may name any file: a device or a pipe is not read, nor a file larger than code.
    """
    path = _cells.get(file, file)
    return linecache.getline(path, line) if path in linecache.cache or _may_be_code(path) else ""


def _may_be_code(path: str) -> bool:
    try:
        found = os.stat(path)
    except OSError:
        # Python finds the code of modules in an archive.
        return True
    except ValueError:
        return False
    return stat.S_ISREG(found.st_mode) and found.st_size <= _LONGEST


def unescape(text: str) -> str:
    """Returns a string of MLIR without its escapes, which stand for bytes."""
    if "\\" not in text:
        return text
    return _ESCAPE.sub(_character, text.encode("utf-8", "surrogatepass")).decode("utf-8", "replace")


def _character(found: re.Match[bytes]) -> bytes:
    digits, letter = found.groups()
    return bytes([int(digits, 16)]) if digits else _LETTERS.get(letter, letter)


def describe(frame: Frame) -> str:
    """Returns `file:line:column (function)`, without the column if it is unknown."""
    column = f":{frame.start_column}" if frame.start_column else ""
    return f"{name_of(frame.file_name)}:{frame.start_line}{column} ({frame.function_name})"
