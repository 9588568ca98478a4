"""Source locations of equations in the user's code, with the column, which JAX does not show."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Generator, Iterable
from dataclasses import dataclass
from typing import Any

import jax
from jax._src import source_info_util

from jaxmesh.errors import JaxmeshError, MissingRuleError
from jaxmesh.jaxprs.compat import Eqn
from jaxmesh.jaxprs.user_frames import describe, file_of, user_frame

_util: Any = source_info_util
_TEXT_LINE = re.compile(r"line ([0-9]+): [\w.]+")
_TRANSFORM = re.compile(r"(\w+)\((.*)\)")
_CALLS = frozenset({"jit", "pjit", "checkpoint", "remat", "custom_jvp_call", "custom_vjp_call", "shard_map"})
"""The wrappers of the names of called functions, which are no scopes."""


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
    """Returns the location in the user's code; for an imported program its line in the text.

    >>> import jax
    >>> (eqn,) = jax.make_jaxpr(lambda x: jax.lax.neg(x))(1.0).eqns
    >>> source_location(eqn).function
    '<lambda>'
    """
    info = eqn.source_info
    text = _TEXT_LINE.search(str(info.name_stack))
    if text:
        return SourceLocation(line=int(text[1]))
    frame = user_frame(info.traceback)
    if frame is None:
        return SourceLocation()
    return SourceLocation(file_of(frame), int(frame.start_line), int(frame.start_column), frame.function_name)


def source_line(eqn: Eqn) -> str:
    """Returns `file:line:column (function)` of the user's code that bound an equation; empty if it is unknown."""
    frame = user_frame(eqn.source_info.traceback)
    return "" if frame is None else describe(frame)


def line_of(eqn: Eqn) -> str:
    """Returns the line in an imported program's text, else the line of source; empty if neither is known."""
    text = _TEXT_LINE.search(str(eqn.source_info.name_stack))
    return text.group() if text else source_line(eqn)


def source_function(eqn: Eqn) -> str:
    """Returns the qualified name of the user's function that bound an equation, such as `Block.__call__`."""
    return source_location(eqn).function


def named_scopes(eqn: Eqn) -> tuple[str, ...]:
    """Returns the names of the `jax.named_scope` blocks around an equation, outermost first.

    Transforms are left out: an equation and its derivative have the same scopes.

    >>> import jax
    >>> @jax.named_scope("block")
    ... def f(x):
    ...     return jax.lax.sin(x)
    >>> [named_scopes(eqn) for eqn in jax.make_jaxpr(jax.grad(f))(1.0).eqns]
    [('block',), ('block',), ('block',)]
    """
    text = str(eqn.source_info.name_stack)
    if not text or _TEXT_LINE.search(text):
        return ()
    names = [name for part in text.split("/") if (name := _without_transforms(part))]
    # JAX repeats the scopes of a derivative that is traced within them.
    return tuple(name for before, name in zip(["", *names], names, strict=False) if name != before)


def _without_transforms(name: str) -> str:
    """Returns the name within `jvp(...)`, `transpose(...)`, `vmap(...)`; empty for the name of a call."""
    while match := _TRANSFORM.fullmatch(name):
        if match[1] in _CALLS:
            return ""
        name = match[2]
    return "" if name == "rematted_computation" else name


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
