"""Checks of what a caller gave, and how a message shows it: a wrong value may be anything, and fail at every touch."""

from __future__ import annotations

import math
import operator
import os
from collections import defaultdict
from collections.abc import Hashable, Iterable, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeVar, cast, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np

from jaxmesh.errors import ArgumentTypeError, ArgumentValueError, JaxmeshError, VerifyError

T = TypeVar("T")
DEEPEST = 200
"""How many lists, tuples and dicts may stand in each other; JAX's own flattening ends in Python's stack."""
MOST_BYTES = 2**63 - 1
"""The size of the largest tensor that XLA can count; for a shape whose size overflows it ends the process."""
_SHOWN = 200
_TRUTH: Any = (bool, np.bool_)


@runtime_checkable
class SupportsArray(Protocol):
    """Anything that NumPy makes an array of by its own method."""

    def __array__(self) -> Any: ...


def quote(value: Any) -> str:
    """A value as a message shows it, also where it has no `repr`: a deleted array, a value of a trace that is over.

    >>> quote([1, "a"])
    "[1, 'a']"
    """
    try:
        text = repr(value)
    except Exception:
        return f"an object of type {type(value).__name__} that cannot be shown"
    # Text that no file can hold would be an error of its own where the message is printed.
    text = text.encode("utf-8", "backslashreplace").decode("utf-8")
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


def as_tuple(what: str, value: Any, of: str) -> tuple[Any, ...]:
    """The entries of a sequence; `what` and `of` say in the message who takes a row of what.

    Raises:
      ArgumentTypeError: it cannot be iterated over.
    """
    try:
        return tuple(value)
    except Exception:
        raise ArgumentTypeError(f"{what} takes {of}, got {quote(value)}.") from None


def as_bool(what: str, name: str, value: Any) -> bool:
    """True or False.

    Raises:
      ArgumentTypeError: something else.
    """
    if not isinstance(value, _TRUTH):
        raise ArgumentTypeError(f"{what} takes True or False as {name}, got {quote(value)}.")
    return bool(value)


def as_index(what: str, name: str, value: Any, least: int = 0) -> int:
    """An integer, not below `least`.

    Raises:
      ArgumentTypeError: something else.
    """
    try:
        number = None if isinstance(value, _TRUTH) else operator.index(value)
    except Exception:
        number = None
    if number is None or number < least:
        raise ArgumentTypeError(f"{what} takes an integer from {least} on as {name}, got {quote(value)}.")
    return number


def as_path(what: str, value: Any) -> Path:
    """The path of a file.

    Raises:
      ArgumentTypeError: it is no path.
    """
    try:
        said = cast("Any", os.fspath(value))
        text = str(said) if isinstance(said, str) and b"\0" not in os.fsencode(said) else ""
    except Exception:
        text = ""
    if not text:
        raise ArgumentTypeError(f"{what} takes the path of a file, as text or pathlib.Path, got {quote(value)}.")
    return Path(text)


def as_instance(kind: type[T] | tuple[type[Any], ...], what: str, name: str, value: Any) -> Any:
    """A value of a class.

    Raises:
      ArgumentTypeError: of another one.
    """
    if not isinstance(value, kind):
        kinds = kind if isinstance(kind, tuple) else (kind,)
        words = " or ".join(k.__name__ for k in kinds)
        raise ArgumentTypeError(f"{what} takes a {words} as {name}, got {quote(value)}.")
    return value


def check_hashable(value: Any) -> bool:
    """Whether a value has a hash; a tuple that holds a list has none."""
    try:
        hash(value)
    except Exception:
        return False
    return isinstance(value, Hashable)


def check_nesting(tree: Any, what: str, depth: int = 0) -> None:
    """Checks that a tree of lists, tuples and dicts ends.

    Raises:
      ArgumentTypeError: one holds itself, or is too deep. JAX would end in a RecursionError, and leave the interpreter
        without a stack.
    """
    if depth > DEEPEST:
        raise ArgumentTypeError(
            f"{what} is nested more than {DEEPEST} levels deep, or holds itself; pass a flat list, or a tree that ends."
        )
    parts: Iterable[Any]
    if isinstance(tree, dict):
        named = cast("dict[Any, Any]", tree)
        parts = named.values()
        # JAX sorts the keys of these two alone.
        if type(cast("Any", tree)) in (dict, defaultdict) and not all(isinstance(k, str) for k in named):
            _check_order(named, what)
    else:
        parts = cast("Sequence[Any]", tree)
    for part in parts:
        if isinstance(part, (list, tuple, dict)):
            check_nesting(part, what, depth + 1)


def _check_order(named: dict[Any, Any], what: str) -> None:
    try:
        sorted(named)
    except Exception:
        raise ArgumentTypeError(
            f"{what} is a dict with the keys {quote(list(named))}, which have no order; use keys of one type, text or "
            "numbers."
        ) from None


def as_array(what: str, value: Any) -> jax.Array:
    """A value as a JAX array, also inside a trace.

    Raises:
      ArgumentTypeError: it is none.
      ArgumentValueError: a number that JAX's default types cannot hold.
    """
    check_nesting((value,), what)
    try:
        return jnp.asarray(value)
    except JaxmeshError:
        raise
    except OverflowError:
        raise ArgumentValueError(
            f"{what} is made of the number {quote(value)}, which JAX's default type of an int, "
            f"{jax.dtypes.canonicalize_dtype(np.int64)}, cannot hold; pass an array of a wider type."
        ) from None
    except Exception as error:
        # Foreign code runs here, such as a class's own `__array__`.
        raise ArgumentTypeError(f"{what} is a JAX or NumPy array or a number, got {quote(value)}.") from error


def check_size(shape: Sequence[int], dtype: Any, what: str) -> None:
    """Checks that the bytes of a tensor can be counted.

    Raises:
      VerifyError: there are too many.

    >>> check_size((2**31, 2**20), np.dtype(np.float32), "x")
    """
    if not all(isinstance(n, (int, np.integer)) for n in shape):
        # Sizes that a trace for `jax.export` does not know yet.
        return
    size = math.prod(map(int, shape)) * max(int(dtype.itemsize), 1)
    if size > MOST_BYTES:
        raise VerifyError(
            f"{what} has the shape {list(shape)} of {dtype}, {size} bytes; a tensor has at most {MOST_BYTES} bytes."
        )
