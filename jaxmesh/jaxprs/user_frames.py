"""The frame of the user's code in a traceback: the only place that decides whose line a value's source line is.

Frames of JAX, jaxmesh, Python's library and installed packages (Flax, Optax) are passed over. A traceback that has
frames of packages alone gives the outermost one. With JAXMESH_PACKAGE_LINES=1 in the environment, frames of packages
count as the user's.
"""

from __future__ import annotations

import functools
import os
import pathlib
import sys
from collections.abc import Iterable, Iterator
from typing import Any

from jax._src import source_info_util

_util: Any = source_info_util
SWITCH = "JAXMESH_PACKAGE_LINES"
_FOLDERS = frozenset({"site-packages", "dist-packages"})
_DEMO = str(pathlib.PurePath(__file__).parents[1] / "cli") + os.sep
"""The programs of the demo, which are user code where jaxmesh is installed, too."""
_GENERATED = ("<frozen ", "<attrs ", "<@beartype", "<decorator-gen", "<__array_function__")
"""The beginnings of the names of files that packages generate."""

Frame = Any
"""A frame of JAX: `file_name`, `function_name`, `start_line`, `start_column`."""


def user_frame(traceback: Any) -> Frame | None:
    """Returns the innermost frame of the user's code, else the outermost frame of a package; None without either."""
    return None if traceback is None else _chosen(traceback, os.environ.get(SWITCH) == "1")


@functools.lru_cache(maxsize=1024)
def _chosen(traceback: Any, keeps_packages: bool) -> Frame | None:
    return choose(_util.user_frames(traceback), keeps_packages)


def choose(frames: Iterable[Frame], keeps_packages: bool = False) -> Frame | None:
    """Returns the user's frame of frames from the innermost on, without frames of JAX and of Python's library.

    Args:
      frames: the frames, from the innermost on.
      keeps_packages: True to count frames of installed packages as the user's.
    """
    fallback = None
    for frame in frames:
        name = frame.file_name
        if name.startswith(_GENERATED) or "__create_fn__" in frame.function_name:
            continue  # Code that a package has generated, such as the __init__ of a dataclass.
        if keeps_packages or not is_installed(name):
            return frame
        fallback = frame
    return fallback


@functools.cache
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
    frame = choose(_callers(), os.environ.get(SWITCH) == "1")
    return "an unknown line" if frame is None else describe(frame)


def _callers() -> Iterator[Frame]:
    raw: Any = sys._getframe(2)  # pyright: ignore[reportPrivateUsage]
    while raw is not None:
        code, line = raw.f_code, raw.f_lineno
        if _util.is_user_filename(code.co_filename):
            yield _util.Frame(code.co_filename, code.co_name, line, 0, line, 0)
        raw = raw.f_back


def file_of(frame: Frame) -> str:
    """Returns the file of a frame; for a cell of Jupyter `In[2]`."""
    return _cell(frame.file_name) or frame.file_name


def _cell(file: str) -> str:
    """Returns `In[2]` for the file of a notebook's cell; empty for other files."""
    python: Any = sys.modules.get("IPython")
    shell = None if python is None else python.get_ipython()
    named: Any = None if shell is None else shell.compile.format_code_name(file)
    return named[1] if named else ""


def describe(frame: Frame) -> str:
    """Returns `file:line:column (function)`, without the column if it is unknown."""
    column = f":{frame.start_column}" if frame.start_column else ""
    return f"{file_of(frame)}:{frame.start_line}{column} ({frame.function_name})"
