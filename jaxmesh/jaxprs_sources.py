"""Where in the user's source an equation was made, to the column: JAX shows only the line."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from jax._src import source_info_util

from jaxmesh.jaxprs import Eqn

_util: Any = source_info_util
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
