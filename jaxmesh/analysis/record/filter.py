"""Selects the values to record: `only=` and `max_bytes=` of `record`."""

from __future__ import annotations

import fnmatch
import pathlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from jaxmesh.analysis.record.entry import MAX_BYTES
from jaxmesh.analysis.record.source_path import Place
from jaxmesh.errors import ArgumentTypeError
from jaxmesh.validate import as_index, as_tuple, quote

Only = str | Sequence[str] | Callable[[Place], bool] | None


@dataclass(frozen=True, slots=True)
class Wanted:
    """A filter of equations (None records all), and the limit of the recording in bytes."""

    test: Callable[[Place], bool] | None
    max_bytes: int

    @staticmethod
    def of(only: Only, max_bytes: int | None) -> Wanted:
        """Checks and converts the arguments of `record`."""
        limit = MAX_BYTES if max_bytes is None else as_index("record", "max_bytes", max_bytes)
        if only is None or (callable(only) and not isinstance(only, type)):
            return Wanted(only, limit)
        rule = "a pattern such as 'dot_general' or 'model.py:1*', a row of patterns, or a function of a Place"
        patterns = (only,) if isinstance(only, str) else as_tuple("record", only, f"as only {rule}")
        if not patterns or not all(isinstance(p, str) for p in patterns):
            raise ArgumentTypeError(f"record takes as only {rule}; got {quote(only)}.")
        return Wanted(lambda place: _matches(place, patterns), limit)

    @property
    def partial(self) -> bool:
        """True if some values may be left out."""
        return self.test is not None

    def __call__(self, place: Place) -> bool:
        """Returns True if the values of an equation are recorded."""
        answer: object = self.test is None or self.test(place)
        if not isinstance(answer, bool):
            raise ArgumentTypeError(f"the function given to record as only returns True or False, got {quote(answer)}.")
        return answer


def _matches(place: Place, patterns: Sequence[str]) -> bool:
    at = place.source
    texts = (place.op, f"{pathlib.PurePath(at.file).name}:{at.line}", at.function, place.line)
    return any(fnmatch.fnmatchcase(text, p) for p in patterns for text in texts)
