"""What passes say of their work: notes, taken only while somebody asks for them.

A pass asks for `active()` once, and says nothing where that is None. Notes are about values, by the variable that holds
them; a pass that renames variables says so, and what it takes out stands beside a value that is left.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

KINDS = ("lowered", "made legal", "inserted", "hoisted", "local", "cancelled", "assumed", "dead", "no TTNN")
"""What a note tells of."""


@dataclass(frozen=True, slots=True)
class Remark:
    """What happened to one value or equation.

    Attributes:
      kind: one of `KINDS`.
      text: what happened.
      rule: the rule by which it did.
    """

    kind: str
    text: str
    rule: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.text} ({self.rule})"


@dataclass(frozen=True, slots=True)
class Removed:
    """An equation that a pass took out, and the value beside which it stood, if there is one."""

    eqn: Any
    beside: Any
    note: Remark


class Remarks:
    """The notes of the passes that run while they are taken."""

    def __init__(self) -> None:
        self.removed: list[Removed] = []
        self.general: list[Remark] = []
        self._about: dict[Any, list[Remark]] = {}
        self._origin: dict[Any, Any] = {}

    def add(self, value: Any, kind: str, text: str, rule: str) -> None:
        """Notes something of a value; said twice it is kept once."""
        _once(self._about.setdefault(value, []), Remark(kind, text, rule))

    def say(self, kind: str, text: str, rule: str) -> None:
        """Notes something of all that is looked at."""
        _once(self.general, Remark(kind, text, rule))

    def remove(self, eqn: Any, beside: Any, text: str, rule: str) -> None:
        """Notes that an equation was taken out as needless."""
        self.removed.append(Removed(eqn, beside, Remark("cancelled", text, rule)))

    def rename(self, new: Any, old: Any) -> None:
        """Notes that a value now has another variable."""
        self._origin[new] = old

    def origins(self, value: Any) -> list[Any]:
        """The variables that a value has had, the newest first."""
        found = [value]
        while found[-1] in self._origin:
            found.append(self._origin[found[-1]])
        return found

    def about(self, value: Any) -> list[Remark]:
        """The notes of a value, under any variable that it has had; the first one first."""
        return [n for v in reversed(self.origins(value)) for n in self._about.get(v, ())]

    def by_origin(self) -> dict[Any, list[Remark]]:
        """All notes of values, by the first variable of each."""
        found: dict[Any, list[Remark]] = {}
        for value, notes in self._about.items():
            for note in notes:
                _once(found.setdefault(self.origins(value)[-1], []), note)
        return found


def _once(notes: list[Remark], note: Remark) -> None:
    if note not in notes:
        notes.append(note)


_active: ContextVar[Remarks | None] = ContextVar("jaxmesh_notes", default=None)


def active() -> Remarks | None:
    """Where notes go; None if nobody takes them."""
    return _active.get()


def remark(kind: str, text: str, rule: str) -> None:
    """Notes something of all that is looked at, if somebody takes notes."""
    log = _active.get()
    if log is not None:
        log.say(kind, text, rule)


@contextmanager
def collect() -> Generator[Remarks]:
    """Takes the notes of the passes that run inside.

    >>> with collect() as notes:
    ...     notes.add("x", "inserted", "brought over", "a rule")
    >>> [str(note) for note in notes.about("x")]
    ['inserted: brought over (a rule)']
    """
    notes = Remarks()
    token = _active.set(notes)
    try:
        yield notes
    finally:
        _active.reset(token)
