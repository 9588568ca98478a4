"""Remarks of passes about their work, collected only on request.

A pass reads `COLLECTED` once and adds no remarks if it is None. A remark is about a value, identified by its variable.
A pass that renames variables reports it; an equation that it removes is listed beside a value that remains.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from jaxmesh.jaxprs.compat import Eqn
from jaxmesh.jaxprs.tracing_state import set_within


@dataclass(frozen=True, slots=True)
class Remark:
    """A remark about one value or equation.

    Attributes:
      kind: `lowered`, `legalised`, `inserted`, `hoisted`, `local`, `cancelled`, `assumed`, `dead`,
        `padded`, `partitioned`.
      text: what happened.
      rule: the rule that was applied.
      bytes: of a padded tensor those of its tiles; else 0.
    """

    kind: str
    text: str
    rule: str
    bytes: int = 0

    def __str__(self) -> str:
        return f"{self.kind}: {self.text} ({self.rule})"


@dataclass(frozen=True, slots=True)
class Removed:
    """An equation that a pass removed, and the value beside which it is listed, if there is one."""

    eqn: Eqn
    beside: Any
    note: Remark


class Remarks:
    """The remarks of the passes that run while they are collected."""

    def __init__(self) -> None:
        self.removed: list[Removed] = []
        self._at: dict[str, list[Remark]] = {}
        self._about: dict[Any, list[Remark]] = {}
        self._origin: dict[object, object] = {}

    def add(self, value: object, kind: str, text: str, rule: str) -> None:
        """Adds a remark about a value; equal remarks are kept once."""
        _once(self._about.setdefault(value, []), Remark(kind, text, rule))

    def add_at(self, line: str, note: Remark) -> None:
        """Adds a remark about the operations at a line."""
        _once(self._at.setdefault(line, []), note)

    def at(self, line: str) -> list[Remark]:
        """Returns the remarks about the operations at a line."""
        return self._at.get(line, [])

    def remove(self, eqn: object, beside: object, text: str, rule: str) -> None:
        """Records that an equation was removed as redundant."""
        self.removed.append(Removed(eqn, beside, Remark("cancelled", text, rule)))

    def rename(self, new: Any, old: object) -> None:
        """Records that a value now has another variable."""
        self._origin[new] = old

    def origins(self, value: Any) -> list[Any]:
        """Returns the variables that a value has had, the newest first."""
        variables = [value]
        while variables[-1] in self._origin:
            variables.append(self._origin[variables[-1]])
        return variables

    def about(self, value: object) -> list[Remark]:
        """Returns the remarks about a value, under any variable that it has had, the oldest first."""
        return [n for v in reversed(self.origins(value)) for n in self._about.get(v, ())]

    def by_origin(self) -> dict[Any, list[Remark]]:
        """Returns all remarks about values, by the first variable of each."""
        remarks: dict[object, list[Remark]] = {}
        for value, notes in self._about.items():
            for note in notes:
                _once(remarks.setdefault(self.origins(value)[-1], []), note)
        return remarks


def _once(notes: list[Remark], note: Remark) -> None:
    if note not in notes:
        notes.append(note)


COLLECTED: ContextVar[Remarks | None] = ContextVar("jaxmesh remarks", default=None)
"""The collector of remarks; None if none are requested."""


def remark(line: str, kind: str, text: str, rule: str) -> None:
    """Adds a remark about the operations at a line, if remarks are collected."""
    log = COLLECTED.get()
    if log is not None:
        log.add_at(line, Remark(kind, text, rule))


@contextmanager
def collect() -> Generator[Remarks]:
    """Collects the remarks of the passes that run inside.

    >>> with collect() as notes:
    ...     notes.add("x", "inserted", "brought over", "a rule")
    >>> [str(note) for note in notes.about("x")]
    ['inserted: brought over (a rule)']
    """
    notes = Remarks()
    with set_within(COLLECTED, notes):
        yield notes
