"""RUN lines of lit tests: runs the commands that this project implements, and skips all others.

A RUN line is a sequence of commands joined by `|` and `&&`. `jaxmesh opt` replaces `ttmlir-opt`, and the `filecheck`
package replaces `FileCheck`. Every other command, and an option of `ttmlir-opt` that `jaxmesh opt` lacks, is
skipped, with the commands that read its output.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import re
import shlex
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jaxmesh as jm
from jaxmesh.cli.pipelines import FLAGS, PIPELINES, as_written_here

_RUN = re.compile(r"(?m)^[ \t]*(?://|#|;)[ \t]*RUN:[ \t]*(.*)$")
_OUTPUT = re.compile(r"\s*(?:\d?>>?|2>&1)")
_MERGED = "2>&1"
_TAKEN = {*PIPELINES, *FLAGS}

Outcome = tuple[bool | None, str, str]
"""The success of `jaxmesh opt` (None for wrong usage), its output, and its error."""
Opt = Callable[[Sequence[str]], Outcome]
"""A function that runs `jaxmesh opt` with arguments."""


class NotOurs(Exception):
    """A command or an option that this project does not implement; the message names it."""


class Failed(Exception):
    """A failed command or check; `kind` is the verdict on the file."""

    def __init__(self, kind: str, why: str) -> None:
        super().__init__(why)
        self.kind = kind


@dataclass(slots=True)
class LitRun:
    """The state of one lit test.

    Attributes:
      path: the file.
      opt: runs `jaxmesh opt`.
      folder: the folder of the texts that commands write.
      ran: the number of passed commands of ttmlir-opt and FileCheck.
      skipped: skipped commands and options.
    """

    path: Path
    opt: Opt
    folder: Path
    ran: int = 0
    skipped: list[str] = field(default_factory=list[str])
    _texts: dict[str, str] = field(default_factory=dict[str, str])

    def line(self, line: str) -> None:
        """Runs one RUN line; raises `Failed` for a refusal or a difference."""
        for pipeline in line.split("&&"):
            text: str | None = None
            try:
                for command in _commands(pipeline):
                    text = self._command(command, text)
            except NotOurs as error:
                self.skipped.append(str(error))

    def _command(self, command: str, text: str | None) -> str | None:
        words = shlex.split(command)
        words, source, target = _redirected(words)
        piped = text if source is None else self._read(source)
        match words[0] if words else "":
            case "ttmlir-opt":
                output, target = self._opt(words[1:], piped, target)
            case "not" if words[1:2] == ["ttmlir-opt"]:
                output = self._refusal(words[2:], piped)
            case "FileCheck" | "filecheck":
                output = self._check(words[1:], piped)
            case "cat" if len(words) == 2:
                output = self._read(words[1])
            case "ttmlir-translate":
                output = self._translate(words[1:], piped)
            case "rm" | "mkdir":
                return None
            case name:
                raise NotOurs(name or command.strip())
        if target is not None:
            self._texts[target] = output
        return output

    def _read(self, name: str) -> str:
        if name == "%s":
            return self.path.read_text()
        if name not in self._texts:
            raise NotOurs(f"reads {name}")
        return self._texts[name]

    def _opt(self, words: Sequence[str], piped: str | None, target: str | None) -> tuple[str, str | None]:
        arguments: list[str] = []
        rest = iter(as_written_here(words))
        inputs: list[str] = []
        for word in rest:
            if word == "-o" or word.startswith("-o="):
                target = next(rest) if word == "-o" else word[3:]
            elif not word.startswith("-"):
                inputs.append(word)
            elif word.split("=")[0] in _TAKEN:
                arguments.append(word)
            else:
                raise NotOurs(word.split("=")[0])
        names = {word.split("=")[0] for word in arguments}
        if "--stablehlo-pipeline" in names and not any(n.startswith("--stablehlo-to") for n in names):
            raise NotOurs("--stablehlo-pipeline alone, which prints StableHLO")
        file = self.path
        if inputs and inputs[0].startswith("%models/"):
            known = (folder / inputs[0][1:] for folder in reversed(self.path.parents))
            file = next((model for model in known if model.exists()), self.folder / inputs[0][1:])
        elif inputs != ["%s"]:
            file = self.folder / "piped.mlir"
            text = self._read(inputs[0]) if inputs else piped
            if text is None:
                raise NotOurs("reads standard input")
            file.write_text(text)
        passes, printed, error = self.opt([str(file), *arguments])
        if passes is None:
            raise NotOurs(error)
        if not passes:
            raise Failed("refused", error)
        self.ran += 1
        return printed, target

    def _refusal(self, words: Sequence[str], piped: str | None) -> str:
        """Returns the error of a command that is expected to fail."""
        try:
            self._opt([w for w in words if w != _MERGED], piped, None)
        except Failed as failed:
            return str(failed)
        raise Failed("differs", "it is taken, and upstream refuses it")

    def _translate(self, words: Sequence[str], piped: str | None) -> str:
        """Returns the input of `ttmlir-translate`: the pipelines to Python and C++ already print the translated
        text."""
        source, target = (word for word in ("-", "-"))
        rest = iter(words)
        options: list[str] = []
        for word in rest:
            if word == "-o":
                target = next(rest)
            elif word.startswith("-"):
                options.append(f"--{word.lstrip('-')}")
            else:
                source = word
        if not set(options) & {"--mlir-to-python", "--mlir-to-cpp"} or source == "%s":
            raise NotOurs(f"ttmlir-translate {' '.join(options)}")
        text = piped if source == "-" else self._read(source)
        if text is None:
            raise NotOurs("translates nothing")
        if target != "-":
            self._texts[target] = text
        self.ran += 1
        return text

    def _check(self, words: Sequence[str], piped: str | None) -> str:
        options: list[str] = []
        text = piped
        rest = iter(words)
        for word in rest:
            name, _, value = word.lstrip("-").partition("=")
            if name == "input-file":
                text = self._read(value or next(rest))
            elif word == "%s":
                options.append(str(self.path))
            elif not word.startswith("-"):
                raise NotOurs(f"checks of {word}")
            else:
                options.append(word)
        if text is None:
            raise NotOurs("FileCheck of nothing")
        if complaint := filecheck(options, text, self.folder):
            raise Failed("differs", complaint.removeprefix(f"{self.path}:"))
        self.ran += 1
        return ""


def run_lines(text: str) -> Iterator[str]:
    """Yields the RUN lines of a test; joins continued lines.

    >>> list(run_lines("// RUN: a %s \\\\\\n// RUN:   | b\\n// RUN: c"))
    ['a %s | b', 'c']
    """
    line = ""
    for match in _RUN.finditer(text):
        part = match[1].strip()
        if part.endswith("\\"):
            line += part[:-1].rstrip() + " "
        else:
            yield line + part
            line = ""


def _commands(line: str) -> list[str]:
    """Splits at `|` outside of quotes."""
    parts = re.split(r"""((?:"[^"]*"|'[^']*'|[^|"'])*)\|?""", line)
    return [p for p in parts if p.strip()]


def _redirected(words: Sequence[str]) -> tuple[list[str], str | None, str | None]:
    """Returns the words without redirections, the source file, and the target file."""
    left: list[str] = []
    source = target = None
    rest = iter(words)
    for word in rest:
        if word == "<":
            source = next(rest)
        elif word == ">":
            target = next(rest)
        elif word == _MERGED and words[:2] == ["not", "ttmlir-opt"]:
            left.append(word)
        elif word == _MERGED or _OUTPUT.fullmatch(word):
            raise NotOurs("messages of errors")
        else:
            left.append(word)
    return left, source, target


def filecheck(options: Sequence[str], text: str, folder: Path) -> str:
    """Checks a text against the CHECK lines of a file; returns the complaint, empty if it matches.

    Raises:
      JaxmeshError: the `filecheck` package is not installed.
    """
    try:
        matcher: Any = importlib.import_module("filecheck.matcher")
        parse: Any = importlib.import_module("filecheck.options")
    except ImportError:
        raise jm.JaxmeshError("this needs the package filecheck; install it with pip install filecheck.") from None
    file = folder / "output.mlir"
    file.write_text(text)
    complaint, arguments = io.StringIO(), ["filecheck", *options, f"--input-file={file}"]
    try:
        with contextlib.redirect_stdout(complaint), contextlib.redirect_stderr(complaint):
            code = matcher.Matcher.from_opts(parse.parse_argv_options(arguments)).run()
    except RuntimeError as error:
        raise NotOurs(f"FileCheck: {error}") from None
    return (complaint.getvalue() or f"exit code {code}") if code else ""
