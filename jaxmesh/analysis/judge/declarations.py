"""Holds emitted C++ to the real declarations of ttnn's C++ API: a C++ compiler checks each call, and links nothing."""

from __future__ import annotations

import hashlib
import itertools
import os
import re
import shutil
import subprocess
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from jaxmesh.analysis.environments import cache_folder, private_folder
from jaxmesh.analysis.machines import DEFAULT, machine_named
from jaxmesh.analysis.upstream.environment import Plugin, find_plugin
from jaxmesh.analysis.upstream.worker import with_assets
from jaxmesh.dialects.ttnn.forms import STAND_INS
from jaxmesh.emit.cpp.printer import SOURCE
from jaxmesh.errors import UpstreamError
from jaxmesh.jaxprs.source_locations import short_location
from jaxmesh.runtime.progress import progress
from jaxmesh.runtime.scratch import run_in, temporary_folder

COMPILER = "g++"
HEADERS = Path(__file__).parent / "cpp"
"""The header that includes the real declarations of ttnn, and the stand-ins for what they lack."""
_FILE = "main.cpp"
_INCLUDE = '#include "ttnn-precompiled.hpp"'
_ERROR = re.compile(r".+?:\d+:\d+: (?:fatal )?error: (.*?)(?: \[-W[\w=+-]*\])?$")
_PLACE = re.compile(rf"{_FILE}:(\d+):(\d+):(?: {{3}}| (?:fatal )?error:)")
"""A line of the file with an error, or that instantiates a template of a header in which an error follows."""
_DECLARED = re.compile(
    r"(.+?):(\d+):\d+: note: +(?:candidate: |(?:initializing|in passing) argument \d+ of )'(.*?)'(?: \(|$)"
)
_COPY = re.compile(r"([\w:]+)::\w+\((?:const )?\1&{1,2}\)$")
_CALL = re.compile(r"\bttnn::[\w:]+(?=\()")
_CALLEE = re.compile(r"[:\w]+(?:<[^(){};]*?>)?(?=[({])")
_MANY = ", ".join(["p"] * 64)
"""More arguments than any function takes."""
_MOST, _LONGEST = 8, 600
"""The most declarations that are shown with a refusal, and the most characters of a type's."""
_TYPE = re.compile(r"(?:struct|class)\b")
_FLAGS = ["-std=c++20", "-fsyntax-only", "-fmax-errors=0", "-fno-diagnostics-show-caret"]
_CHANGES = [f"-Werror={kind}" for kind in ("narrowing", "overflow", "float-conversion", "sign-conversion")]
"""Conversions of numbers that change the value are errors, but for the rounding of a float literal."""
_ROUNDED = "conversion from 'double' to 'float'"


@dataclass(frozen=True, slots=True)
class CppRefusal:
    """A call that no declaration fits.

    Attributes:
      line: its line in `main.cpp`, from 1.
      text: the line.
      source: the user's line, as `file:line:column`; empty if it is not known.
      reason: what the C++ compiler says.
      declarations: the real declarations of the function; empty if it does not exist.
    """

    line: int
    text: str
    source: str
    reason: str
    declarations: tuple[str, ...]

    def __str__(self) -> str:
        where = f" ({short_location(self.source)})" if self.source else ""
        lines = [f"main.cpp:{self.line}{where}: {self.reason}", f"  {self.text}"]
        return "\n".join([*lines, *(f"  declared: {d}" for d in self.declarations)])


@dataclass(frozen=True, slots=True)
class CppVerdict:
    """The verdict of ttnn's C++ declarations on a program; true if every call fits one.

    Attributes:
      version: the package with the declarations, and the C++ compiler.
      calls: how many calls of ttnn the text has.
      refusals: the calls that do not fit.
      remarks: element types that ttnn lacks, with those that take their places.
    """

    version: str
    calls: int
    refusals: tuple[CppRefusal, ...] = ()
    remarks: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return not self.refusals

    def __str__(self) -> str:
        held = f"{self.calls} calls, held to the C++ declarations of ttnn in {self.version}"
        head = f"refused ({len(self.refusals)}): {held}" if self.refusals else f"accepted: {held}"
        return "\n".join([head, *map(str, self.refusals), *self.remarks])

    def to_dict(self) -> dict[str, Any]:
        """Returns the verdict as data."""
        return {"accepted": bool(self), **asdict(self)}


def check_text(text: str, *, plugin: str | os.PathLike[str] | None = None, timeout: float = 600) -> CppVerdict:
    """Checks the calls of an emitted C++ text.

    Args:
      text: the C++, with the user's lines in comments, as `cpp_text` prints them with `sources`.
      plugin: as of `find_plugin`: the environment of the compiler has the declarations.
      timeout: how many seconds a run of the C++ compiler may take.

    Raises:
      UpstreamError: there are no declarations, or no C++ compiler, or it takes too long or cannot read them.
    """
    found, compiler = find_plugin(plugin), shutil.which(COMPILER)
    if compiler is None:
        raise UpstreamError(f"the check of C++ needs a C++ compiler, and {COMPILER} is not on the path; install it.")
    remarks = list[str]()
    for name, other in sorted(STAND_INS.items()):
        text, count = re.subn(rf"DataType::{name.upper()}\b", f"DataType::{other!s}", text)
        if count:
            remarks.append(f"ttnn lacks an element type of the program: {other} replaces {name}")
    with temporary_folder("jaxmesh-cpp-") as folder, progress("C++ declarations"):
        _write_headers(folder)
        compile_text = _Compiler(compiler, headers_of(found), folder, timeout)
        refusals = tuple(_refusals(text.splitlines(), compile_text))
    number = subprocess.run([compiler, "-dumpfullversion"], capture_output=True, text=True, check=True).stdout.strip()
    return CppVerdict(f"{found}, read by {COMPILER} {number}", len(_CALL.findall(text)), refusals, tuple(remarks))


@dataclass(frozen=True, slots=True)
class _Compiler:
    """The C++ compiler, which reads the headers as a system's: it reports what the text does, and not their style."""

    path: str
    headers: Path
    folder: Path
    timeout: float

    def __call__(self, text: str) -> list[str]:
        """Returns what the compiler says of a text, by line.

        Raises:
          UpstreamError: a header is wrong whatever the text has, or the time is over.
        """
        (self.folder / _FILE).write_text(text, encoding="utf-8")
        folders = [HEADERS, self.folder, *(self.headers / name for name in INCLUDED)]
        command = [
            self.path,
            *_FLAGS,
            *_CHANGES,
            *(part for folder in folders for part in ("-isystem", str(folder))),
            _FILE,
        ]
        try:
            done = run_in(self.folder, command, self.timeout, cwd=self.folder, env=os.environ | {"LC_ALL": "C"})
        except subprocess.TimeoutExpired:
            said = f"{COMPILER} took more than {self.timeout:g} s; in Python, timeout= allows more."
            raise UpstreamError(said) from None
        lines = done.stderr.splitlines()
        first = next((i for i, line in enumerate(lines) if _ERROR.match(line)), None)
        if done.returncode and (first is None or not any(map(_PLACE.match, lines[: first + 1]))):
            said = (lines or ["it printed nothing"])[first or 0]
            raise UpstreamError(f"{COMPILER} cannot read the declarations of ttnn with jaxmesh's stand-ins: {said}")
        return lines


def _write_headers(folder: Path) -> None:
    """Writes what the declarations include from other libraries, as empty files: `standins.hpp` has their names.

    Also writes `operations.hpp`, which includes the declarations of the operations.
    """
    for name in (HEADERS / "empty.txt").read_text().split():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()
    rows = map(str.split, (HEADERS / "operations.txt").read_text().splitlines())
    names = [f"ttnn/operations/{inside}/{name}/{name}.hpp" for inside, *names in rows for name in names]
    (folder / "operations.hpp").write_text("".join(f'#include "{name}"\n' for name in names))


def _refusals(text: Sequence[str], compile_text: _Compiler) -> Iterator[CppRefusal]:
    errors = list(_errors(compile_text("\n".join(text))))
    around = [_callees(text[line - 1], column) for line, column, _ in errors]
    declared = _declarations(dict.fromkeys(itertools.chain(*around)), compile_text) if errors else {}
    for (line, _, reason), callees in zip(errors, around, strict=True):
        begin = max((i for i, x in enumerate(text[:line]) if x.startswith("}")), default=0)
        before = [x.strip().removeprefix(SOURCE) for x in text[begin:line] if x.strip().startswith(SOURCE)]
        found = dict.fromkeys(d for callee in callees for d in declared[callee])
        yield CppRefusal(line, text[line - 1].strip(), before[-1] if before else "", reason, tuple(found)[:_MOST])


def _errors(lines: Sequence[str]) -> Iterator[tuple[int, int, str]]:
    """Yields line, column and text of each error; one in a header has the line of the file that instantiates it."""
    place, last = None, 0
    for said in lines:
        place, error = _PLACE.match(said) or place, _ERROR.match(said)
        if error is None:
            continue
        # An error of a header without a line of the file, or with the same line, explains the one before.
        explains = place is None or (int(place[1]) == last and not said.startswith(_FILE))
        if place is not None and not explains and not error[1].startswith(_ROUNDED):
            last = int(place[1])
            yield last, int(place[2]), error[1]
        place = None


def _callees(line: str, column: int) -> list[str]:
    """Returns the functions and types in whose calls a column of a line is, from the outermost to the innermost."""
    return [c[0] for c in _CALLEE.finditer(line) if c.start() < column <= _closing(line, c.end())]


def _closing(line: str, start: int) -> int:
    depth = 0
    for i in range(start, len(line)):
        depth += (line[i] in "({") - (line[i] in ")}")
        if not depth:
            return i + 1
    return len(line)


def _declarations(callees: Iterable[str], compile_text: _Compiler) -> dict[str, list[str]]:
    """Returns the declarations of functions and types, which the compiler names when it refuses calls of them.

    A type without a constructor has the text of its declaration, to which the assignment leads.
    """
    found = {name: list[str]() for name in callees}
    names = [name for name in found for _ in range(2)]
    probes = [f"(void){n}({_MANY});\n(({n}*)0)->operator=(p);" for n in found]
    number = 0
    for said in compile_text("\n".join([_INCLUDE, "struct P {}; extern P p; void f() {", *probes, "}"])):
        place, note = _PLACE.match(said), _DECLARED.match(said)
        if place is not None:
            number = int(place[1]) - 3
        elif note is not None and note[1].startswith((str(compile_text.headers), str(HEADERS))):
            mine = found[names[number]]
            if number % 2 == 0 and not _COPY.search(note[3]):
                mine.append(note[3])
            elif number % 2 and not mine:
                mine += _type_text(Path(note[1]), int(note[2]))
    return found


def _type_text(header: Path, line: int) -> list[str]:
    """Returns the declaration of the type at a line, without comments; nothing if none begins there."""
    text = "\n".join(header.read_text(encoding="utf-8").splitlines()[line - 1 :])
    text = " ".join(re.sub(r"//.*", "", text).split())
    return [textwrap.shorten(text[: _closing(text, text.find("{"))], _LONGEST)] if _TYPE.match(text) else []


INCLUDED = ("ttnn/api", "ttnn/cpp", "tt_metal/api", "tt_metal", "ttnn/core")
"""The folders to include, in order."""
_SUFFIXES = {".hpp", ".h", ".inl"}


def headers_of(plugin: Plugin) -> Path:
    """Returns the folder with the headers of a plugin; starts the plugin if the cache does not have them.

    Raises:
      UpstreamError: the plugin does not start.
    """
    found = os.stat(plugin.library)
    key = hashlib.sha256(repr((plugin.library, found.st_size, found.st_mtime_ns)).encode()).hexdigest()[:16]
    target = private_folder(cache_folder() / "ttnn-headers") / key
    if not target.is_dir():
        with_assets(plugin, machine_named(DEFAULT), lambda assets: _copy(assets, target))
    return target


def _copy(assets: Path, target: Path) -> None:
    with temporary_folder(".new-", target.parent) as made:
        for top in ("ttnn", "tt_metal"):
            shutil.copytree(assets / top, made / top, ignore=_others)
        if not target.is_dir():
            made.rename(target)


def _others(folder: str, names: list[str]) -> set[str]:
    """Returns the names of files that are not headers."""
    return {n for n in names if Path(n).suffix not in _SUFFIXES and not Path(folder, n).is_dir()}
