"""The block of a program that an equation belongs to: its named scopes, and the user's functions around it."""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass
from typing import Any

from jax._src import source_info_util

from jaxmesh.jaxprs.compat import Eqn
from jaxmesh.jaxprs.source_locations import line_of, named_scopes
from jaxmesh.jaxprs.user_frames import is_installed

_util: Any = source_info_util
_TEXT_LINE = re.compile("line [0-9]+: ")
_EINSUM = re.compile(r"[\w.,]*->[\w.]*")
"""The name of the scope around a `jax.numpy.einsum`."""


def origin(eqn: Eqn) -> str:
    """Returns a key that equations of one place, primitive and type share, and all that passes make of them.

    Of an imported program it is the line of its text.
    """
    info = eqn.source_info
    if _TEXT_LINE.search(str(info.name_stack)):
        return line_of(eqn)
    result = eqn.outvars[0].aval if eqn.outvars else ""
    return f"{_frames(info.traceback)} {info.name_stack} {eqn.primitive.name} {result}"


@dataclass(frozen=True, slots=True)
class Surroundings:
    """The surroundings of an equation: True if a transposition has made it, and the names of the `jax.named_scope`
    blocks and of the user's functions around it, outermost first."""

    backward: bool = False
    scopes: tuple[str, ...] = ()
    functions: tuple[str, ...] = ()


def surroundings(eqn: Eqn, caller: Surroundings | None = None) -> Surroundings:
    """Returns the surroundings of an equation, in a body of an equation with the surroundings `caller`.

    >>> import jax
    >>> def layer(x):
    ...     with jax.named_scope("block"):
    ...         return jax.lax.sin(x)
    >>> for eqn in jax.make_jaxpr(jax.grad(layer))(1.0).eqns[1:]:
    ...     print(surroundings(eqn))
    Surroundings(backward=False, scopes=('block',), functions=('layer',))
    Surroundings(backward=True, scopes=('block',), functions=('layer',))
    """
    info, outer = eqn.source_info, caller or Surroundings()
    backward = outer.backward or "transpose(" in str(info.name_stack)
    scopes = tuple(name for name in named_scopes(eqn, outer.scopes) if not _EINSUM.fullmatch(name))
    return Surroundings(backward, scopes, _functions(info.traceback) or outer.functions)


@functools.lru_cache(maxsize=4096)
def _frames(traceback: Any) -> str:
    frames = () if traceback is None else _util.user_frames(traceback)
    return " ".join(f"{f.file_name}:{f.start_line}:{f.start_column}" for f in frames)


@functools.lru_cache(maxsize=4096)
def _functions(traceback: Any) -> tuple[str, ...]:
    """Returns the names of the user's functions, outermost first; lambdas and comprehensions count as what has them."""
    if traceback is None:
        return ()
    frames = [f for f in _util.user_frames(traceback) if not is_installed(f.file_name)]
    names = [f.function_name.rpartition("<locals>.")[2].removesuffix(".__call__") for f in reversed(frames)]
    return tuple(name for name in names if not name.startswith("<"))
