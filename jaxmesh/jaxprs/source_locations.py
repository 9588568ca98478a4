"""Source locations of equations in the user's code, with the column, and the scopes and functions around them."""

from __future__ import annotations

import contextlib
import functools
import os
import re
from collections.abc import Generator, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import jax
from jax._src import source_info_util
from jaxlib.mlir import ir

from jaxmesh.errors import JaxmeshError, MissingRuleError
from jaxmesh.jaxprs import user_frames
from jaxmesh.jaxprs.compat import Eqn
from jaxmesh.jaxprs.user_frames import Place, describe, frame_of, frames, is_installed, name_of, places, unescape

_FILE = re.compile(r"^(.*?):(\d+)(?::\d+)?( \(.*\))?$")
_TEXT_LINE = re.compile(r"line ([0-9]+): [\w.]+(?!.*line [0-9]+: )")
"""The line of the innermost operation around an equation of an imported program."""
_TRANSFORM = re.compile(r"(\w+)\((.*)\)")
_CALLS = frozenset({"jit", "pjit", "checkpoint", "remat", "custom_jvp_call", "custom_vjp_call", "shard_map"})
"""The wrappers of the names of called functions, which are no scopes."""
_BODIES = re.compile(
    r"(?<![^/])(?:while/(?:body|cond)|cond/branch_\d+_fun|checkpoint|closed_call|eval_jaxpr|rematted_computation)(?![^/])"
)
"""The names that JAX gives to the bodies of equations."""


@dataclass(frozen=True, slots=True)
class SourceLocation:
    """A source location: `file` with its folders, `line` and `column` from 1 on; all empty if it is unknown.

    For an imported program, `line` is the line of its text, and `file` is empty.
    """

    file: str = ""
    line: int = 0
    column: int = 0
    function: str = ""


def source_location(eqn: Eqn, caller: SourceLocation | None = None) -> SourceLocation:
    """Returns the location in the user's code; for an imported program its line in the text.

    An equation of a package's function has the location of its caller.

    >>> import jax
    >>> (eqn,) = jax.make_jaxpr(lambda x: jax.lax.neg(x))(1.0).eqns
    >>> source_location(eqn).function
    '<lambda>'
    """
    info = eqn.source_info
    text = _TEXT_LINE.search(str(info.name_stack))
    if text:
        return SourceLocation(line=int(text[1]))
    has_caller = caller is not None and caller != SourceLocation()
    frame = frame_of(info.traceback, packages=not has_caller)
    if frame is None:
        return caller or SourceLocation()
    return SourceLocation(name_of(frame.file_name), int(frame.start_line), int(frame.start_column), frame.function_name)


def source_line(eqn: Eqn, caller: str = "") -> str:
    """Returns `file:line:column (function)` of the user's code that bound an equation; empty if it is unknown.

    An equation of a package's function has the location of its caller.
    """
    frame = frame_of(eqn.source_info.traceback, packages=not caller)
    return caller if frame is None else describe(frame)


def line_of(eqn: Eqn, caller: str = "") -> str:
    """Returns the line in an imported program's text, else the line of source; empty if neither is known."""
    text = _TEXT_LINE.search(str(eqn.source_info.name_stack))
    return text.group() if text else source_line(eqn, caller)


def line_key(line: str) -> str:
    """Returns a source line without its column: the name under which equations of one line are added up.

    >>> line_key("/home/ada/model.py:12:8 (f)")
    '/home/ada/model.py:12 (f)'
    """
    return _FILE.sub(lambda match: f"{match[1]}:{match[2]}{match[3] or ''}", line)


def short_location(line: str) -> str:
    """Returns a source line without the folders of its file and without its column.

    >>> short_location("/home/ada/model.py:12:8 (f)")
    'model.py:12 (f)'
    """
    return _FILE.sub(lambda match: f"{os.path.basename(match[1])}:{match[2]}{match[3] or ''}", line)


def named_scopes(eqn: Eqn, caller: tuple[str, ...] = ()) -> tuple[str, ...]:
    """Returns the names of the `jax.named_scope` blocks around an equation, outermost first.

    An equation and its derivative have the same scopes. `caller` is the scopes of the equation in whose body it is.

    >>> import jax
    >>> @jax.named_scope("block")
    ... def f(x):
    ...     return jax.lax.sin(x)
    >>> [named_scopes(eqn) for eqn in jax.make_jaxpr(jax.grad(f))(1.0).eqns]
    [('block',), ('block',), ('block',)]
    """
    text = str(eqn.source_info.name_stack)
    if not text or _TEXT_LINE.search(text):
        return caller
    names = [name for part in _BODIES.sub("/", text).split("/") if (name := _without_transforms(part))]
    # JAX repeats the scopes of a derivative that is traced within them.
    own = tuple(name for before, name in zip(["", *names], names, strict=False) if name != before)
    return own if own[: len(caller)] == caller else caller + own


def scoped_line(eqn: Eqn, caller: str = "") -> str:
    """Returns `source_line`, and behind it the named scopes; `caller` is a scoped line."""
    line, scope = split_scope(caller)
    scopes = "/".join(named_scopes(eqn, tuple(filter(None, scope.split("/")))))
    return source_line(eqn, line) + (f" in {scopes}" if scopes else "")


def split_scope(line: str) -> tuple[str, str]:
    """Returns the source line and the named scopes of a `scoped_line`.

    >>> split_scope("model.py:12:8 (f) in block/dense_1")
    ('model.py:12:8 (f)', 'block/dense_1')
    """
    before, found, scope = line.rpartition(") in ")
    return (f"{before})", scope) if found else (line, "")


def _without_transforms(name: str) -> str:
    """Returns the name within `jvp(...)`, `transpose(...)`, `vmap(...)`; empty for the name of a call."""
    while match := _TRANSFORM.fullmatch(name):
        if match[1] in _CALLS:
            return ""
        name = match[2]
    return name


def missing_rule(eqn: Eqn, what: str, file: str) -> MissingRuleError:
    """Returns the error for an equation without a rule; `file` is where the rule belongs."""
    name, line = eqn.primitive.name, source_line(eqn)
    return MissingRuleError(f"no rule for primitive {name!r} ({line}): {what}. Add one in {file}.")


# --- locations in MLIR -----------------------------------------------------------------------------------------------

_ir: Any = ir

_NAMED = r'(?!")[^"\\]*(?:\\.[^"\\]*)*'
_FILE_LINE = re.compile(rf'"({_NAMED})"(?::([0-9]+):([0-9]+))?')
"""A string, and the line and column of a file. A search for files alone would begin anew at each quote of a string."""
_SCOPE = re.compile(rf'"({_NAMED})"\((?=callsite\(|"{_NAMED}"\()')
"""The name of an op, which stands around the functions of its traceback."""
_INLINED = re.compile(r'"\((?:callsite\(|"[^"]*"\()')
"""What stands behind such a name; most locations of functions have none, which is found fast."""


class Sources:
    """The source locations of a jaxpr's equations, looked up by the locations of the MLIR that JAX made of it."""

    def __init__(self, eqns: Iterable[Eqn]) -> None:
        self._tracebacks: dict[tuple[Place, ...], Any] = {}
        self._found: dict[Any, tuple[Any, Any, str]] = {}
        # Ops of one line differ in their names alone.
        self._places: dict[str, tuple[Any, list[str], str]] = {}
        # Equations of one line have equal tracebacks.
        for traceback in dict.fromkeys(eqn.source_info.traceback for eqn in eqns):
            if traceback is not None:
                self._tracebacks.setdefault(places(traceback), traceback)

    @contextlib.contextmanager
    def at(self, location: Any, op: str) -> Generator[str]:
        """Runs its body, about an op at a location of MLIR, or its text; yields `file:line (function)`, or nothing."""
        del op
        traceback, scopes, line = self._look_up(location)
        if traceback is None:
            yield line
            return
        with source_info_util.user_context(traceback, name_stack=scopes):
            yield line

    def source(self, location: Any, op: str, outer: Any) -> Any:
        """Returns the source location of an op's equations, inside of the source location `outer`."""
        del op
        traceback, scopes, _ = self._look_up(location)
        return outer if traceback is None else outer.replace(traceback=traceback, name_stack=scopes)

    def _look_up(self, location: Any) -> tuple[Any, Any, str]:
        key = location if isinstance(location, str) else location.attr
        found = self._found.get(key)
        if found is None:
            found = self._found[key] = self._find(str(key))
        return found

    def _find(self, location: str) -> tuple[object, object, str]:
        """Returns the traceback, the scopes and the line of a location."""
        head = _SCOPE.match(location, len("loc("))
        names, place = ([], location) if head is None else ([head[1]], location[head.end() :])
        traceback, outer, line = self._places.get(place) or self._places.setdefault(place, self._read(place))
        return traceback, None if traceback is None else _scopes([*names, *outer]), line

    def _read(self, place: str) -> tuple[object, list[str], str]:
        """Returns the traceback of a location without the name of its op, the names of its calls, and the line."""
        found = _FILE_LINE.findall(place)
        rows = tuple((unescape(file), int(line), int(column)) for file, line, column in found if line)
        traceback = self._traceback(rows)
        if traceback is None:
            at = next((row for row in rows if not is_installed(row[0])), rows[-1] if rows else None)
            return None, [], "" if at is None else f"{name_of(at[0])}:{at[1]}"
        frame = frame_of(traceback)
        names = _SCOPE.findall(place) if "\\" in place or _INLINED.search(place) else []
        return traceback, names, "" if frame is None else describe(frame)

    def _traceback(self, rows: tuple[Place, ...]) -> object:
        """Returns the first traceback with a frame of the user's.

        A location joins the frames of an op and of its callers.
        """
        start, first = 0, None
        while start < len(rows):
            ends = (end for end in range(len(rows), start, -1) if rows[start:end] in self._tracebacks)
            end = next(ends, start + 1)
            traceback = self._tracebacks.get(rows[start:end])
            if frame_of(traceback, packages=False) is not None:
                return traceback
            start, first = end, first or traceback
        return first

    def inexpressible(self, op: str, line: str) -> str:
        """Returns the beginning of an error about an op that TTIR cannot express."""
        return f"{op} ({line}) runs as JAX runs it, but has no TTIR or TTNN text"


def _scopes(names: list[str]) -> object:
    """Returns the scopes of an op as JAX keeps them, of the names of the op and of the calls that were inlined."""
    parts: list[str] = []
    for name in reversed(names):
        parts += name.split("/")[:-1]
    return source_info_util.new_name_stack("/".join(parts[1:] if parts[:1] == ["jit(run)"] else parts))


_MOST = 4096
"""The source locations that are kept for further ops of one line."""


class TextSources(Sources):
    """The lines of a text that MLIR parsed, for ops without locations; `offset` counts the lines before its piece."""

    def __init__(self, offset: int) -> None:
        super().__init__(())
        self._offset = offset
        # The ops of a function that is called often have few lines.
        self._made: dict[tuple[str, str, Any], Any] = {}

    @contextlib.contextmanager
    def at(self, location: Any, op: str) -> Generator[str]:
        """Runs its body, about an op; yields the line, which stays with what is made of it, and names it in errors."""
        line = self._line(location)
        if not line:
            yield line
            return
        try:
            with jax.named_scope(f"{line}: {op}"):
                yield line
        except JaxmeshError as error:
            raise error if str(error).startswith("line ") else type(error)(f"{line}: {op}: {error}") from None

    def source(self, location: Any, op: str, outer: Any) -> Any:
        """Returns the source location of an op's equations, inside of the source location `outer`."""
        key = self._line(location), op, outer
        if key not in self._made:
            if len(self._made) >= _MOST:
                self._made.clear()
            stack = outer.name_stack.extend(f"{key[0]}: {op}")
            self._made[key] = outer.replace(name_stack=stack) if key[0] else outer
        return self._made[key]

    def _line(self, location: Any) -> str:
        inner = location
        while isinstance(inner, _ir.NameLoc | _ir.CallSiteLoc):
            inner = inner.child_loc if isinstance(inner, _ir.NameLoc) else inner.callee
        if isinstance(inner, _ir.FileLineColLoc) and inner.filename == "-":
            return f"line {inner.start_line + self._offset}"
        found = user_frames.PARSED.search(str(location))
        return "" if found is None else f"line {int(found[1]) + self._offset}"

    def inexpressible(self, op: str, line: str) -> str:
        """Returns the beginning of an error about an op in a form that TTIR cannot express."""
        return f"{line}: {op} has a form that has no TTIR or TTNN text"


# --- the block of an equation -----------------------------------------------------------------------------------------


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
    return "" if traceback is None else " ".join(f"{file}:{line}:{column}" for file, line, column in places(traceback))


@functools.lru_cache(maxsize=4096)
def _functions(traceback: Any) -> tuple[str, ...]:
    """Returns the names of the user's functions, outermost first; lambdas and comprehensions count as what has them."""
    if traceback is None:
        return ()
    own = [f for f in frames(traceback) if not is_installed(f.file_name)]
    names = [f.function_name.rpartition("<locals>.")[2].removesuffix(".__call__") for f in reversed(own)]
    return tuple(name for name in names if not name.startswith("<"))


# --- locations that a text gives to its ops and arguments -------------------------------------------------------------


_STRING = r'"(?:[^"\\\n]|\\.)*"'
_IN_FILE = re.compile(rf"({_STRING})(?::([0-9]{{1,9}})(?::([0-9]{{1,9}}))?)?")
_NAME = re.compile(rf"({_STRING})(?:\((.*)\))?$", re.DOTALL)


def resolve(location: str, aliases: Mapping[str, str]) -> str:
    """Returns a location as `file:line:column` or as a name; empty if it is unknown.

    Of a composed location it is the first part that names a file of the user's, as in a traceback of JAX.

    >>> resolve("#loc1", {"#loc1": 'callsite("f"("g.py":2:0) at "h.py":4:0)'}), resolve("unknown", {})
    ('g.py:2', '')
    """
    for _ in range(len(aliases)):
        if location not in aliases:
            break
        location = aliases[location]
    files = [f for f in _IN_FILE.finditer(location) if f.group(2)]
    if files:
        file = next((f for f in files if not is_installed(f.group(1)[1:-1])), files[-1])
        line, column = file.group(2), file.group(3)
        return f"{name_of(unescape(file.group(1)[1:-1]))}:{line}" + (f":{column}" if column and int(column) else "")
    name = _NAME.match(location)
    return "" if name is None else unescape(name.group(1)[1:-1])


def of_argument(location: str) -> str:
    """Returns the location of an argument, from MLIR's text; empty if the program does not name it.

    >>> of_argument('loc("x")'), of_argument('loc("-":3:4)')
    ('x', '')
    """
    # The parser adds locations in a file of this name.
    return "" if location.startswith('loc("-":') else resolve(location[len("loc(") : -1], {})
