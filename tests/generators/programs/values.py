"""What the oracle of random programs works on: one NumPy array per mesh coordinate, and how they are cut and joined.

Nothing here uses another part of the package.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import jax.numpy as jnp
import numpy as np

T = TypeVar("T")
Array = np.ndarray[Any, Any]
Coordinate = tuple[int, ...]
Copies = Mapping[Coordinate, Array]
"""What each device holds of a value; of a full value, or of one that is the same everywhere, all hold the same."""
Axes = frozenset[str]
Rows = tuple[tuple[str, ...], ...]
"""A sharding: per dim of a tensor the mesh axes on it, most significant first."""


class Misfit(Exception):
    """A drawn statement has no one meaning here (a number too large, a shape that does not divide): draw another."""


class Draw(Protocol):
    """Where choices come from: a seed, or a search that makes failing programs smaller."""

    def integers(self, low: int, high: int) -> int:
        """A number from low to high, both included; the least is the simplest."""
        ...

    def choice(self, options: Sequence[T]) -> T:
        """One of the options; the first is the simplest."""
        ...

    def boolean(self) -> bool:
        """Yes or no; no is the simpler."""
        ...


class Seeded:
    """Choices from a seed."""

    def __init__(self, seed: int) -> None:
        self._rng = np.random.default_rng(seed)

    def integers(self, low: int, high: int) -> int:
        """A number from low to high, both included."""
        return int(self._rng.integers(low, high + 1))

    def choice(self, options: Sequence[T]) -> T:
        """One of the options."""
        return options[self.integers(0, len(options) - 1)]

    def boolean(self) -> bool:
        """Yes or no."""
        return bool(self.integers(0, 1))


# --- numbers ---------------------------------------------------------------------------------------------------------

FLOATS = ("float32", "bfloat16", "float16")
INTEGERS = ("int32", "uint8", "int8", "uint32", "int16")
# Whole numbers of a float type are exact up to here, and so are their sums in any order.
LIMITS = {"float32": 2.0**22, "bfloat16": 128.0, "float16": 1024.0, "int32": 2.0**26}


def dtype_of(name: str) -> np.dtype[Any]:
    """The NumPy dtype of a name."""
    return np.dtype(jnp.bfloat16) if name == "bfloat16" else np.dtype(name)


def is_float(x: Array) -> bool:
    """Whether an array holds floats."""
    return x.dtype.name in FLOATS


def wide(x: Array) -> Array:
    """Floats in double precision, integers in 64 bits, truth values as they are."""
    if x.dtype == np.bool_:
        return x
    return x.astype(np.float64 if is_float(x) else np.int64)


def narrow(x: Any, dtype: np.dtype[Any]) -> Array:
    """A wide result in its own type.

    Raises:
      Misfit: a number is too large for sums of it to be exact, or wraps.
    """
    found = np.asarray(x)
    if found.dtype != np.bool_ and found.size:
        largest = float(np.abs(found).max())
        if not largest <= LIMITS.get(dtype.name, math.inf):
            raise Misfit(f"{largest} is too large for {dtype}")
        if dtype.kind in "iu":
            held = np.iinfo(dtype)
            if found.max() > held.max or found.min() < held.min:
                raise Misfit(f"numbers do not fit in {dtype}")
    # A zero has no sign here.
    return (found + 0 if found.dtype.kind == "f" else found).astype(dtype)


def whole(shape: tuple[int, ...], dtype: str, seed: int) -> Array:
    """An array of small whole numbers, the same for the same seed."""
    low, high = (0, 1) if dtype == "bool" else (0, 5) if dtype.startswith("u") else (-4, 4)
    return np.asarray(np.random.default_rng(seed).integers(low, high + 1, shape)).astype(dtype_of(dtype))


# --- meshes ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class World:
    """A mesh: names and sizes of its axes."""

    names: tuple[str, ...]
    sizes: tuple[int, ...]

    @property
    def coordinates(self) -> list[Coordinate]:
        """All coordinates, row-major."""
        return list(itertools.product(*map(range, self.sizes)))

    def size(self, axes: Sequence[str]) -> int:
        """How many places there are along some axes."""
        return math.prod(self.sizes[self.names.index(a)] for a in axes)

    def number(self, place: Coordinate, axes: Sequence[str]) -> int:
        """The place along some axes together, the first the most significant."""
        number = 0
        for axis in axes:
            at = self.names.index(axis)
            number = number * self.sizes[at] + place[at]
        return number

    def piece(self, full: Array, rows: Rows, place: Coordinate) -> Array:
        """What the device at a place holds of a full array."""
        window: list[slice] = []
        for dim, axes in enumerate(rows):
            chunk = full.shape[dim] // self.size(axes)
            start = self.number(place, axes) * chunk
            window.append(slice(start, start + chunk))
        return full[(..., *window)]

    def split(self, copies: Copies, rows: Rows) -> dict[Coordinate, Array]:
        """Each device's piece of a full value.

        Raises:
          Misfit: a dim does not divide.
        """
        first = next(iter(copies.values()))
        if any(n % self.size(axes) for n, axes in zip(first.shape, rows, strict=True)):
            raise Misfit(f"{first.shape} does not divide")
        return {c: self.piece(x, rows, c) for c, x in copies.items()}

    def join(self, copies: Copies, rows: Rows) -> Array:
        """The full array of which these are the pieces.

        Raises:
          AssertionError: devices that should hold the same piece do not: the typing of random programs is wrong.
        """
        first = next(iter(copies.values()))
        full = np.zeros([n * self.size(axes) for n, axes in zip(first.shape, rows, strict=True)], first.dtype)
        for c, x in copies.items():
            self.piece(full, rows, c)[...] = x
        if not all(np.array_equal(self.piece(full, rows, c), x) for c, x in copies.items()):
            raise AssertionError("pieces that should be equal are not")
        return full

    def everywhere(self, x: Array) -> dict[Coordinate, Array]:
        """A full value."""
        return dict.fromkeys(self.coordinates, x)

    def groups(self, axes: Sequence[str]) -> dict[Coordinate, list[Coordinate]]:
        """For each device those it communicates with along some axes, in their order, itself among them."""
        still = [i for i, name in enumerate(self.names) if name not in axes]
        made: dict[tuple[int, ...], list[Coordinate]] = {}
        for c in sorted(self.coordinates, key=lambda c: self.number(c, axes)):
            made.setdefault(tuple(c[i] for i in still), []).append(c)
        return {c: made[tuple(c[i] for i in still)] for c in self.coordinates}


def on_each(copies: Sequence[Copies], body: Callable[..., Any], world: World) -> dict[Coordinate, Any]:
    """What each device makes of what it holds."""
    return {c: body(*[x[c] for x in copies]) for c in world.coordinates}


# --- statements ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Body:
    """A function inside of a program: it sees the names around it too."""

    parameters: tuple[str, ...]
    statements: tuple[Statement, ...]
    results: tuple[str, ...]


@dataclass(frozen=True)
class Statement:
    """One statement: names of results, the operation, names of operands, what else it says, the functions it calls."""

    results: tuple[str, ...]
    op: str
    operands: tuple[str, ...]
    params: Mapping[str, Any]
    bodies: tuple[Body, ...] = ()

    @property
    def reads(self) -> set[str]:
        """Every name it needs from around it."""
        return {*self.operands}.union(*[free_names(b) for b in self.bodies])


def free_names(body: Body) -> set[str]:
    """The names that a function takes from around it."""
    found, known = set[str](), set(body.parameters)
    for s in body.statements:
        found |= s.reads - known
        known |= {*s.results}
    return found | ({*body.results} - known)


def spec_text(rows: Rows) -> str:
    """A partition spec as source."""
    shown = [repr(row[0]) if len(row) == 1 else repr(row) if row else "None" for row in rows]
    while shown and shown[-1] == "None":
        shown.pop()
    return f"P({', '.join(shown)})".replace("'", '"')


def axes_text(axes: Sequence[str]) -> str:
    """Axis names as source."""
    return (repr(axes[0]) if len(axes) == 1 else repr(tuple(axes))).replace("'", '"')
