"""Names of the values of a program: the source location, and the path through loops and branches.

The walk gives the same names at every level of a program. Calls (`jit`, `checkpoint`, custom functions) are inlined and
are not part of the path; loops and branches are.
"""

from __future__ import annotations

import collections
import contextlib
import pathlib
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from typing import Any

from jaxmesh.jaxprs.compat import Eqn
from jaxmesh.jaxprs.control_flow import CALLS
from jaxmesh.jaxprs.source_locations import SourceLocation, source_location

INLINED = frozenset(CALLS) - {"shard_map"}
"""Calls that are replaced by their body."""

ARGUMENT = "argument"
"""The op of the arguments of a program."""


@dataclass(frozen=True, slots=True)
class Place:
    """One equation: its source location, its op, and its index among the equations of this op on this line."""

    source: SourceLocation
    op: str
    occurrence: int

    @property
    def line(self) -> str:
        """`file.py:12 (function)`; for an imported program `line 12`; for an argument the program's name."""
        at = self.source
        if not at.file:
            return f"line {at.line}" if at.line else at.function or "unknown line"
        return f"{pathlib.PurePath(at.file).name}:{at.line} ({at.function})"

    def __str__(self) -> str:
        if self.op == ARGUMENT:
            return f"{self.line}: {self.op} {self.occurrence}"
        again = f" #{self.occurrence + 1}" if self.occurrence else ""
        return f"{self.line}: {self.op}{again}"


@dataclass(frozen=True, slots=True)
class PathStep:
    """One step into a loop or a branch.

    `part` is `"body"` or `"cond"` with the iteration as `index`, or `"branch"` with the branch's number; the iteration
    of a scan, forwards or backwards, is the index of the slice it reads.
    """

    place: Place
    part: str
    index: int

    def __str__(self) -> str:
        part = "" if self.part == "body" else f" {self.part}"
        return f"{self.place.op}{part}[{self.index}]"


Path = tuple[PathStep, ...]


def describe_path(path: Sequence[PathStep]) -> str:
    """Describes the path into loops and branches, e.g. `scan[2] / cond branch[1]`; empty at the top."""
    return " / ".join(map(str, path))


@dataclass(slots=True)
class Walk:
    """The walk through one body. It numbers the equations of one op on one line.

    `around` is the source location of the call whose body is walked, for equations inside JAX's own functions.
    """

    path: Path = ()
    around: SourceLocation = field(default_factory=SourceLocation)
    _made: collections.Counter[tuple[Any, ...]] = field(
        default_factory=collections.Counter[tuple[Any, ...]], repr=False
    )

    def place(self, eqn: Eqn) -> Place:
        """Returns the place of the next equation."""
        at, op = self.source(eqn), str(eqn.primitive.name)
        return Place(at, op, self._made[_line(at, op)])

    def source(self, eqn: Eqn) -> SourceLocation:
        """Returns the source location of an equation, or else the location of the call around it."""
        return source_location(eqn, self.around)

    def advance(self, place: Place) -> None:
        """Counts an equation, so that the next equation of its op on its line gets the next index."""
        self._made[_line(place.source, place.op)] += 1

    @contextlib.contextmanager
    def call(self, eqn: Eqn) -> Generator[None]:
        """Enters the body of a call: its equations without a location take the location of the call."""
        before, self.around = self.around, self.source(eqn)
        try:
            yield
        finally:
            self.around = before

    def inside(self, place: Place, part: str, index: int) -> Walk:
        """Returns the walk through a body of a loop or a branch."""
        return Walk((*self.path, PathStep(place, part, index)), place.source)


def _line(at: SourceLocation, op: str) -> tuple[Any, ...]:
    return at.file, at.line, at.function, op
