"""Holds emitted C++ to the real declarations of ttnn's C++ API: a C++ compiler checks each call, and links nothing."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jaxmesh.analysis.upstream.environment import find_plugin
from jaxmesh.analysis.upstream.headers import INCLUDED, headers_of
from jaxmesh.dialects.program import Program
from jaxmesh.dialects.ttnn.forms import STAND_INS
from jaxmesh.emit.cpp.printer import SOURCE, cpp_text
from jaxmesh.errors import UpstreamError
from jaxmesh.jaxprs.source_locations import short_location
from jaxmesh.runtime.progress import progress

COMPILERS = ("g++", "c++")
HEADERS = Path(__file__).parent / "cpp"
"""The header that includes the real declarations of ttnn, and the stand-ins for what they lack."""
_FILE = "main.cpp"
_ERROR = re.compile(r"(\S+?):(\d+):\d+: (?:fatal )?error: (.*)")
_DECLARED = re.compile(
    r"note: +(?:candidate(?: \d+)?: '(.*?)'(?: \(.*\))?$|(?:initializing|in passing) argument \d+ of '(.*)')"
)
_CALL = re.compile(r"\bttnn::[\w:]+(?=\()")
_MOST = 3
"""The most declarations that are shown with a refusal."""


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
      version: the package with the declarations.
      compiler: the C++ compiler.
      calls: how many calls of ttnn the text has.
      refusals: the calls that do not fit.
      remarks: element types that ttnn lacks, with those that take their places.
    """

    version: str
    compiler: str
    calls: int
    refusals: tuple[CppRefusal, ...] = ()
    remarks: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return not self.refusals

    def __str__(self) -> str:
        held = f"{self.calls} calls, held to the C++ declarations of ttnn in {self.version}"
        head = f"refused: {len(self.refusals)} of {held}" if self.refusals else f"accepted: {held}"
        return "\n".join([head, *map(str, self.refusals), *self.remarks])

    def to_dict(self) -> dict[str, Any]:
        """Returns the verdict as data."""
        names = CppRefusal.__slots__
        rows = [{n: getattr(r, n) for n in names} | {"declarations": list(r.declarations)} for r in self.refusals]
        return {"accepted": bool(self), "version": self.version, "calls": self.calls, "refusals": rows}


def judge_cpp(program: Program, *, plugin: str | os.PathLike[str] | None = None, timeout: float = 600) -> CppVerdict:
    """Prints a flat program of TTNN operations as C++, and checks each call.

    Args:
      program: the program.
      plugin: as of `find_plugin`: the environment of the compiler has the declarations.
      timeout: how many seconds the check may take.

    Raises:
      UpstreamError: there are no declarations, or no C++ compiler, or it takes too long or cannot read them.
    """
    return check_text(cpp_text(program, sources=True), plugin=plugin, timeout=timeout)


def check_text(text: str, *, plugin: str | os.PathLike[str] | None = None, timeout: float = 600) -> CppVerdict:
    """Checks the calls of an emitted C++ text; arguments and errors are those of `judge_cpp`."""
    found = find_plugin(plugin)
    compiler = next(filter(None, map(shutil.which, COMPILERS)), None)
    if compiler is None:
        raise UpstreamError(
            f"the check of C++ needs a C++ compiler, and {' and '.join(COMPILERS)} are not on the path; install g++."
        )
    headers = headers_of(found)
    remarks = list[str]()
    for name, other in sorted(STAND_INS.items()):
        kind = f"DataType::{name.upper()}"
        if re.search(rf"{kind}\b", text):
            text = re.sub(rf"{kind}\b", f"DataType::{other!s}", text)
            remarks.append(f"ttnn lacks an element type of the program: {other} replaces {name}")
    with tempfile.TemporaryDirectory(prefix="jaxmesh-cpp-") as folder, progress("C++ declarations"):
        refusals = tuple(_refusals(text.splitlines(), _errors(compiler, headers, Path(folder), text, timeout)))
    return CppVerdict(str(found), Path(compiler).name, len(_CALL.findall(text)), refusals, tuple(remarks))


def _errors(compiler: str, headers: Path, folder: Path, text: str, timeout: float) -> list[str]:
    """Returns what the C++ compiler says, by line.

    Headers that the declarations include from other libraries are empty files here: `standins.hpp` has their names.
    """
    own, empty = HEADERS, folder / "empty"
    for name in (own / "empty.txt").read_text().split():
        (empty / name).parent.mkdir(parents=True, exist_ok=True)
        (empty / name).touch()
    (folder / _FILE).write_text(text, encoding="utf-8")
    includes = [own, empty, *(headers / name for name in INCLUDED)]
    flags = ["-std=c++20", "-fsyntax-only", "-w", "-fmax-errors=0", *(f"-I{p}" for p in includes)]
    environment = os.environ | {"LC_ALL": "C"}
    try:
        done = subprocess.run(
            [compiler, *flags, _FILE], cwd=folder, env=environment, capture_output=True, text=True, timeout=timeout
        )
    except subprocess.TimeoutExpired:
        raise UpstreamError(f"{compiler} took more than {timeout:g} s; allow more with timeout=.") from None
    lines = done.stderr.splitlines()
    elsewhere = [x for x in lines if (error := _ERROR.match(x)) is not None and error[1] != _FILE]
    if elsewhere or (done.returncode and not any(map(_ERROR.match, lines))):
        last = (elsewhere or lines or ["it printed nothing"])[0]
        raise UpstreamError(f"{compiler} cannot read the declarations of ttnn with the stand-ins of jaxmesh: {last}")
    return lines


def _refusals(text: Sequence[str], lines: Sequence[str]) -> Iterator[CppRefusal]:
    starts = [i for i, line in enumerate(lines) if _ERROR.match(line)]
    for start, end in zip(starts, [*starts[1:], len(lines)], strict=False):
        error = _ERROR.match(lines[start])
        assert error is not None
        number = int(error[2])
        before = [x.strip().removeprefix(SOURCE) for x in text[:number] if x.strip().startswith(SOURCE)]
        notes = [m[1] or m[2] for x in lines[start:end] if (m := _DECLARED.search(x)) is not None]
        declared = tuple(dict.fromkeys(notes))[:_MOST]
        yield CppRefusal(number, text[number - 1].strip(), before[-1] if before else "", error[3], declared)
