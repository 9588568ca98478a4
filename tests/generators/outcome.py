"""What one part of the self-test proved."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

Say = Callable[[str], None]
"""Takes a line of progress."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of one part.

    `proved` is one sentence that holds if there is no failure, `checks` how many comparisons stand behind it; each of
    the `failures` names its case and both values.
    """

    name: str
    proved: str
    checks: int
    failures: tuple[str, ...]
    seconds: float

    @property
    def passed(self) -> bool:
        """Whether every check held; nothing checked proves nothing."""
        return self.checks > 0 and not self.failures
