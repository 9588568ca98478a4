"""Static arguments as a part of a cache's key: told apart by type and bits, also inside tuples and dataclasses.

Python takes `1`, `True` and `1.0` for equal, and `0.0` and `-0.0`, and so does JAX's cache where they are inside a
tuple; a program traced for one is not the program of the other.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable
from typing import Any, cast

import numpy as np

from jaxmesh.validate import is_hashable

_NUMBERS = (float, complex, np.inexact)


class Static:
    """A static argument; equal to another one only if a program cannot tell them apart."""

    __slots__ = ("_key", "value")

    def __init__(self, value: Any) -> None:
        self.value = value
        self._key = key_of(value)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Static) and self._key == other._key

    def __hash__(self) -> int:
        return hash(self._key)

    def __repr__(self) -> str:
        return repr(self.value)


def key_of(value: Any) -> Hashable:
    """What stands for a value in a key; it has a hash if the value has one.

    >>> key_of((1, 0.0)) == key_of((True, 0.0)), key_of(0.0) == key_of(-0.0), key_of((1, 2)) == key_of((1, 2))
    (False, False, True)
    """
    kind = cast("type[Any]", type(value))
    if isinstance(value, _NUMBERS):
        return kind, np.asarray(value).tobytes()
    if isinstance(value, tuple):
        return kind, tuple(map(key_of, cast("tuple[Any, ...]", value)))
    if isinstance(value, frozenset):
        return kind, frozenset(map(key_of, cast("frozenset[Any]", value)))
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = tuple(key_of(getattr(value, f.name)) for f in dataclasses.fields(value) if f.compare)
        # A class with a hash of its own may hold what has none.
        return (kind, value, fields) if is_hashable(fields) else (kind, value)
    return kind, value
