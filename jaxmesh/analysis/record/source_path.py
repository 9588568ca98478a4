"""Names for what a program makes: the place in the source, and the way there through loops and branches.

The same walk gives the same names at every level of a program. Calls (`jit`, `checkpoint`, custom functions) mean their
bodies and are no part of the way; a loop or a branch is.
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
from jaxmesh.jaxprs.source_locations import Source, source

INLINED = frozenset(CALLS) - {"shard_map"}
"""What means its body, where it stands."""

ARGUMENT = "argument"
"""The op of what a program is given."""


@dataclass(frozen=True, slots=True)
class Place:
    """One equation: where it was made, by which op, and as which of those of this op on this line."""

    source: Source
    op: str
    occurrence: int

    @property
    def line(self) -> str:
        """`file.py:12 (function)`; of an imported program `line 12`; of an argument the program's name."""
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
class Step:
    """One step into a loop or a branch.

    `part` is `"body"` or `"cond"` with the iteration as `index`, or `"branch"` with the branch's number; the iteration
    of a scan is the index of the slice it reads, also of one that runs backwards.
    """

    place: Place
    part: str
    index: int

    def __str__(self) -> str:
        part = "" if self.part == "body" else f" {self.part}"
        return f"{self.place.op}{part}[{self.index}]"


Path = tuple[Step, ...]


def described(path: Sequence[Step]) -> str:
    """The way into loops and branches, e.g. `scan[2] / cond branch[1]`; empty at the top."""
    return " / ".join(map(str, path))


@dataclass(slots=True)
class Walk:
    """One body on the walk: it numbers the equations of one op that were made on one line.

    `around` is where the call stands whose body is walked; inside of JAX's own functions no equation has a line.
    """

    path: Path = ()
    around: Source = field(default_factory=Source)
    _made: collections.Counter[tuple[Any, ...]] = field(
        default_factory=collections.Counter[tuple[Any, ...]], repr=False
    )

    def place(self, eqn: Eqn) -> Place:
        """The place of an equation that is about to be made."""
        at, op = self.source(eqn), str(eqn.primitive.name)
        return Place(at, op, self._made[_line(at, op)])

    def source(self, eqn: Eqn) -> Source:
        """Where an equation was made, or the call around it."""
        at = source(eqn)
        return self.around if at == Source() else at

    def made(self, place: Place) -> None:
        """It is made: the next of its kind has the next number."""
        self._made[_line(place.source, place.op)] += 1

    @contextlib.contextmanager
    def call(self, eqn: Eqn) -> Generator[None]:
        """While the body of a call is walked."""
        before, self.around = self.around, self.source(eqn)
        try:
            yield
        finally:
            self.around = before

    def inside(self, place: Place, part: str, index: int) -> Walk:
        """The walk through one of its bodies."""
        return Walk((*self.path, Step(place, part, index)), place.source)


def _line(at: Source, op: str) -> tuple[Any, ...]:
    return at.file, at.line, at.function, op
