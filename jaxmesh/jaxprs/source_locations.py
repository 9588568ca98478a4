"""Where in the user's source an equation was made, to the column: JAX shows only the line."""

from __future__ import annotations

import dis
import os
import re
import sys
from dataclasses import dataclass
from typing import Any

import jax
from jax._src import source_info_util

from jaxmesh.errors import MissingRuleError
from jaxmesh.jaxprs.compat import Eqn

_util: Any = source_info_util
_JAX = os.path.dirname(jax.__file__) + os.sep
_OURS = os.path.dirname(os.path.dirname(__file__)) + os.sep
_TEXT_LINE = re.compile(r"line ([0-9]+): [\w.]+")


@dataclass(frozen=True, slots=True)
class Source:
    """A place in a source: `file` with its folders, `line` and `column` from 1 on; of no known place all are empty.

    Of an imported program `line` is that of its text, and `file` is empty.
    """

    file: str = ""
    line: int = 0
    column: int = 0
    function: str = ""


def source(eqn: Eqn) -> Source:
    """The nearest place outside of JAX and jaxmesh; of an imported program its line in the text.

    >>> import jax
    >>> (eqn,) = jax.make_jaxpr(lambda x: jax.lax.neg(x))(1.0).eqns
    >>> source(eqn).function
    '<lambda>'
    """
    info = eqn.source_info
    said = _TEXT_LINE.search(str(info.name_stack))
    if said:
        return Source(line=int(said[1]))
    frame = _util.user_frame(info.traceback)
    if frame is None:
        return Source()
    return Source(frame.file_name, int(frame.start_line), int(frame.start_column), frame.function_name)


def jax_assertion(error: AssertionError) -> str | None:
    """Where a user's code called what failed in an assertion of JAX's own; None if it is the user's assertion.

    JAX takes its frames out of a traceback, unless it is told not to. The user's assertion is then told by the last
    instruction of the last frame that is left, which raises.
    """
    place: str | None = None
    last: tuple[str, str] | None = None
    tb = error.__traceback__
    while tb is not None:
        code = tb.tb_frame.f_code
        last = code.co_filename, dis.opname[code.co_code[tb.tb_lasti]]
        if not code.co_filename.startswith((_JAX, _OURS)):
            place = f"{code.co_filename}:{tb.tb_lineno}"
        tb = tb.tb_next
    if error.args or last is None or (last[1] == "RAISE_VARARGS" and not last[0].startswith(_JAX)):
        return None
    return place or "in JAX"


def source_line(eqn: Eqn) -> str:
    """`file:line (function)` of the user's code that made an equation."""
    return _util.summarize(eqn.source_info)


def caller_line() -> str:
    """Returns `file:line (function)` of the nearest caller outside of jaxmesh, JAX and Python's library."""
    frame = sys._getframe(1)  # pyright: ignore[reportPrivateUsage]
    while frame.f_back is not None and not _util.is_user_filename(frame.f_code.co_filename):
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno} ({frame.f_code.co_name})"


def missing_rule(eqn: Eqn, what: str, file: str) -> MissingRuleError:
    """The error for an equation that a pass cannot go through; `file` is where its rule belongs."""
    name, line = eqn.primitive.name, source_line(eqn)
    return MissingRuleError(f"no rule for primitive {name!r} ({line}): {what}. Add one in {file}.")
