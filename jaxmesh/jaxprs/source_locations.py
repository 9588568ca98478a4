"""Source locations of equations in the user's code, with the column, which JAX does not show."""

from __future__ import annotations

import contextlib
import re
import sys
from collections.abc import Generator, Iterable
from dataclasses import dataclass
from typing import Any

import jax
from jax._src import source_info_util

from jaxmesh.errors import JaxmeshError, MissingRuleError
from jaxmesh.jaxprs.compat import Eqn

_util: Any = source_info_util
_TEXT_LINE = re.compile(r"line ([0-9]+): [\w.]+")


@dataclass(frozen=True, slots=True)
class SourceLocation:
    """A source location: `file` with its folders, `line` and `column` from 1 on; all empty if it is unknown.

    For an imported program, `line` is the line of its text, and `file` is empty.
    """

    file: str = ""
    line: int = 0
    column: int = 0
    function: str = ""


def source_location(eqn: Eqn) -> SourceLocation:
    """Returns the innermost location outside of JAX and jaxmesh; for an imported program its line in the text.

    >>> import jax
    >>> (eqn,) = jax.make_jaxpr(lambda x: jax.lax.neg(x))(1.0).eqns
    >>> source_location(eqn).function
    '<lambda>'
    """
    info = eqn.source_info
    text = _TEXT_LINE.search(str(info.name_stack))
    if text:
        return SourceLocation(line=int(text[1]))
    frame = _util.user_frame(info.traceback)
    if frame is None:
        return SourceLocation()
    return SourceLocation(frame.file_name, int(frame.start_line), int(frame.start_column), frame.function_name)


def source_line(eqn: Eqn) -> str:
    """Returns `file:line (function)` of the user's code that bound an equation."""
    return _util.summarize(eqn.source_info)


def line_of(eqn: Eqn) -> str:
    """Returns the line in an imported program's text, else the line of source; empty if neither is known."""
    text = _TEXT_LINE.search(str(eqn.source_info.name_stack))
    return text.group() if text else source_line(eqn)


def caller_line() -> str:
    """Returns `file:line (function)` of the nearest caller outside of jaxmesh, JAX and Python's library."""
    frame = sys._getframe(1)  # pyright: ignore[reportPrivateUsage]
    while frame.f_back is not None and not _util.is_user_filename(frame.f_code.co_filename):
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno} ({frame.f_code.co_name})"


def missing_rule(eqn: Eqn, what: str, file: str) -> MissingRuleError:
    """Returns the error for an equation without a rule; `file` is where the rule belongs."""
    name, line = eqn.primitive.name, source_line(eqn)
    return MissingRuleError(f"no rule for primitive {name!r} ({line}): {what}. Add one in {file}.")


# --- locations in MLIR -----------------------------------------------------------------------------------------------

_FILE_LINE = re.compile(r'"([^"]+)":([0-9]+):([0-9]+)')


class Sources:
    """The source locations of a jaxpr's equations, looked up by the locations of the MLIR that JAX made of it."""

    def __init__(self, eqns: Iterable[Eqn]) -> None:
        self._tracebacks: dict[tuple[str, int], Any] = {}
        self._found: dict[Any, tuple[Any, str]] = {}
        for eqn in eqns:
            traceback = eqn.source_info.traceback
            frame = None if traceback is None else _util.user_frame(traceback)
            if frame is not None:
                self._tracebacks.setdefault((frame.file_name, int(frame.start_line)), traceback)

    @contextlib.contextmanager
    def at(self, location: Any, op: str) -> Generator[str]:
        """Runs its body, about an op at a location of MLIR, or its text; yields `file:line (function)`, or nothing."""
        del op
        found = self._found.get(location)
        if found is None:
            found = self._found[location] = self._find(str(location))
        traceback, line = found
        if traceback is None:
            yield line
            return
        with source_info_util.user_context(traceback):
            yield line

    def _find(self, location: str) -> tuple[Any, str]:
        places = [(file, int(line)) for file, line, _ in _FILE_LINE.findall(location)]
        for place in places:
            traceback = self._tracebacks.get(place)
            if traceback is not None:
                frame: Any = _util.user_frame(traceback)
                return traceback, f"{frame.file_name}:{frame.start_line} ({frame.function_name})"
        return None, f"{places[0][0]}:{places[0][1]}" if places else ""

    def inexpressible(self, op: str, line: str) -> str:
        """Returns the beginning of an error about an op that TTIR cannot express."""
        return f"{op} ({line}) runs as JAX runs it, but has no TTIR or TTNN text"


_PARSED = re.compile(r'"-":([0-9]+):[0-9]+')


class TextSources(Sources):
    """The lines of a text that MLIR parsed, for ops without locations; `offset` counts the lines before its piece."""

    def __init__(self, offset: int) -> None:
        super().__init__(())
        self._offset = offset

    @contextlib.contextmanager
    def at(self, location: Any, op: str) -> Generator[str]:
        """Runs its body, about an op; yields the line, which stays with what is made of it, and names it in errors."""
        found = _PARSED.search(str(location))
        if found is None:
            yield ""
            return
        line = f"line {int(found[1]) + self._offset}"
        try:
            with jax.named_scope(f"{line}: {op}"):
                yield line
        except JaxmeshError as error:
            raise error if str(error).startswith("line ") else type(error)(f"{line}: {op}: {error}") from None

    def inexpressible(self, op: str, line: str) -> str:
        """Returns the beginning of an error about an op in a form that TTIR cannot express."""
        return f"{line}: {op} has a form that has no TTIR or TTNN text"
