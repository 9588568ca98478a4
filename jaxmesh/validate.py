"""Checks of arguments, and how a message shows a value."""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import math
import operator
import os
import secrets
import shutil
import stat
import tempfile
from collections.abc import Generator, Hashable, Iterable, Sequence
from pathlib import Path
from typing import IO, Any, TypeVar, cast

import jax
import jax.numpy as jnp
import numpy as np

from jaxmesh.errors import ArgumentTypeError, ArgumentValueError, JaxmeshError, MissingFileError, VerifyError

T = TypeVar("T")
MOST_BYTES = 2**63 - 1
"""The bytes of the largest tensor that XLA can count; it ends the process for a shape whose size overflows."""
_QUOTED = 200
"""The characters of a value that a message shows."""
_MOST_ENTRIES = 1 << 20
"""The entries of the longest row that is read."""
_BOOLS: Any = (bool, np.bool_)
# What iterating over a value, or using it as an integer, raises: also for a traced value, a deleted array, a tensor.
_UNFIT = (TypeError, ValueError, RuntimeError, OverflowError)
# Bytes, on the file systems of Linux and macOS.
_LONGEST_NAME, _LONGEST_PATH = 255, 4095


def quote(value: Any) -> str:
    """Returns a value as a message shows it.

    >>> quote([1, "a"])
    "[1, 'a']"
    """
    try:
        text = repr(value)
    except (RuntimeError, ValueError):
        # A deleted array, a deep list, or an integer of thousands of digits.
        return f"an object of type {type(value).__name__} that cannot be shown"
    # Surrogates cannot be printed.
    text = text.encode("utf-8", "backslashreplace").decode("utf-8")
    return text if len(text) <= _QUOTED else f"{text[:_QUOTED]}..."


def entries(values: Iterable[T]) -> tuple[T, ...]:
    """Returns the entries of an iterable.

    Raises:
      ValueError: it has more than a row of names, sizes or devices has; it may be endless.
    """
    row = tuple(itertools.islice(values, _MOST_ENTRIES + 1))
    if len(row) > _MOST_ENTRIES:
        raise ValueError
    return row


def as_tuple(what: str, value: Any, of: str) -> tuple[Any, ...]:
    """Returns the entries of a sequence; the message reads "`what` takes `of`"."""
    try:
        return entries(value)
    except _UNFIT:
        raise ArgumentTypeError(f"{what} takes {of}, got {quote(value)}.") from None


def as_devices(what: str, name: str, devices: object) -> tuple[Any, ...]:
    """Returns the devices that a caller passes as the argument `name` of the function `what`."""
    checked = as_tuple(what, devices, f"a row of jax.Device as {name}")
    wrong = [d for d in checked if not isinstance(d, cast("Any", jax).Device)]
    if wrong:
        raise ArgumentTypeError(f"{what} takes a row of jax.Device as {name}, got {quote(wrong[0])} in it.")
    return checked


def as_bool(what: str, name: str, value: object) -> bool:
    """Returns True or False; raises for anything else."""
    if not isinstance(value, _BOOLS):
        raise ArgumentTypeError(f"{what} takes True or False as {name}, got {quote(value)}.")
    return bool(value)


def as_index(what: str, name: str, value: int) -> int:
    """Returns an integer, at least 0; raises for anything else."""
    try:
        number = None if isinstance(value, _BOOLS) else operator.index(value)
    except _UNFIT:
        number = None
    if number is None or number < 0:
        raise ArgumentTypeError(f"{what} takes an integer from 0 on as {name}, got {quote(value)}.")
    return number


def as_path(what: str, value: Any, kind: str = "file") -> Path:
    """Returns the path of a file, or of another `kind`; raises for anything else."""
    text = cast("object", os.fspath(value)) if isinstance(value, (str, os.PathLike)) else None
    if not isinstance(text, str) or not text or not _is_system_text(text):
        raise ArgumentTypeError(f"{what} takes the path of a {kind}, as text or pathlib.Path, got {quote(value)}.")
    longest = max(len(os.fsencode(part)) for part in text.split(os.sep))
    if longest > _LONGEST_NAME or len(os.fsencode(text)) > _LONGEST_PATH:
        raise ArgumentTypeError(
            f"{what} takes the path of a {kind} with names of at most {_LONGEST_NAME} bytes, {_LONGEST_PATH} in all, "
            f"got {quote(value)}, whose longest name has {longest}; give another {kind}."
        )
    return Path(text)


def _is_system_text(text: str) -> bool:
    """Returns True if the system takes a text as a path: one without null bytes that it can encode."""
    try:
        return b"\0" not in os.fsencode(text)
    except UnicodeEncodeError:
        return False


def as_instance(kind: type[T] | tuple[type[object], ...], what: str, name: str, value: object) -> Any:
    """Returns a value of a class; raises for one of another class."""
    if not isinstance(value, kind):
        kinds = kind if isinstance(kind, tuple) else (kind,)
        names = " or ".join(k.__name__ for k in kinds)
        raise ArgumentTypeError(f"{what} takes a {names} as {name}, got {quote(value)}.")
    return value


def is_hashable(value: object) -> bool:
    """Returns True if a value has a hash; a tuple that holds a list has none."""
    try:
        hash(value)
    except TypeError:
        return False
    return isinstance(value, Hashable)


def as_array(what: str, value: object) -> jax.Array:
    """Returns a value as a JAX array, also inside a trace; raises for one that JAX's default types cannot hold."""
    try:
        return jnp.asarray(value)
    except JaxmeshError:
        raise
    except OverflowError:
        raise ArgumentValueError(
            f"{what} is made of the number {quote(value)}, which JAX's default type of an int, "
            f"{jax.dtypes.canonicalize_dtype(np.int64)}, cannot hold; pass an array of a wider type."
        ) from None
    except _UNFIT as error:
        raise ArgumentTypeError(f"{what} is a JAX or NumPy array or a number, got {quote(value)}.") from error


def check_size(shape: Sequence[int], dtype: Any, what: str) -> None:
    """Checks that XLA can count the bytes of a tensor.

    >>> check_size((2**31, 2**20), np.dtype(np.float32), "x")
    """
    if not all(isinstance(n, (int, np.integer)) for n in shape):
        # Symbolic sizes, of a trace for `jax.export`.
        return
    size = math.prod(map(int, shape)) * max(int(dtype.itemsize), 1)
    if size > MOST_BYTES:
        raise VerifyError(
            f"{what} has the shape {list(shape)} of {dtype}, {size} bytes; a tensor has at most {MOST_BYTES} bytes."
        )


ASIDE = ".jaxmesh-"
"""The beginning of the names of temporary files and folders, which a killed process leaves."""


@contextlib.contextmanager
def whole_file(path: str | os.PathLike[str]) -> Generator[IO[bytes]]:
    """Opens a new file, which replaces `path` when the block ends; a failure or a kill leaves the old file.

    Raises:
      OSError: the file cannot be written; it names `path`.
    """
    target = Path(os.path.realpath(path))
    if target.exists() and not target.is_file():
        # A device or a pipe is written in place.
        with target.open("wb") as file:
            yield file
        return
    aside = target.with_name(f"{ASIDE}{secrets.token_hex(6)}")
    try:
        with aside.open("xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        if target.exists():
            shutil.copymode(target, aside)
        os.replace(aside, target)
    except OSError as error:
        # Each error of the system names the new file, or none.
        raise OSError(error.errno, error.strerror or str(error), os.fspath(path)) from None
    finally:
        with contextlib.suppress(OSError):
            aside.unlink()


def write_whole(path: str | os.PathLike[str], text: str) -> None:
    """Writes a text file in UTF-8 by `whole_file`."""
    with whole_file(path) as file:
        file.write(text.encode())


@contextlib.contextmanager
def folder_aside(target: Path) -> Generator[Path]:
    """Creates a temporary folder in a folder, whose files move from one to the other in one step each.

    Other processes wait for the end of the block. The folder is created with its parents, and temporary folders of
    killed processes are removed.
    """
    target.mkdir(parents=True, exist_ok=True)
    with alone(target):
        for left in target.glob(f"{ASIDE}*"):
            if left.is_dir():
                shutil.rmtree(left, ignore_errors=True)
        try:
            with tempfile.TemporaryDirectory(dir=target, prefix=ASIDE) as aside:
                yield Path(aside)
        except BaseException:
            # Only an empty folder can be removed so.
            with contextlib.suppress(OSError):
                target.rmdir()
            raise


_OPEN = ("/dev/fd/", "/dev/stdin", "/proc/self/fd/")
"""The beginnings of paths of what the caller has opened, such as a shell's `<(command)`."""


def regular_file(path: Path) -> Path:
    """Returns the path of a file, of a pipe that the caller has opened, or a path without a file.

    Reading anything else may take all memory, or never end.

    Raises:
      MissingFileError: a device, another pipe or a socket has this name.
    """
    try:
        mode = path.stat().st_mode
    except (OSError, ValueError):
        return path
    is_open = stat.S_ISFIFO(mode) and str(path).startswith(_OPEN)
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode) or is_open):
        raise MissingFileError(f"{str(path)!r} is a device, a pipe or a socket; name a file.")
    return path


@contextlib.contextmanager
def alone(folder: str | os.PathLike[str]) -> Generator[None]:
    """Waits until no other process is in such a block for a folder; the system ends the wait for a dead process."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
