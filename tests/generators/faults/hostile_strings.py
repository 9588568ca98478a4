# ruff: noqa: E501
"""Puts strings that close quotes, comments and tags into every position of a text, and judges all that is printed.

`positions(text)` yields where a text of MLIR holds a string, a symbol, the value of an attribute or a location; `Judge`
reads the outputs of a program as their languages do, and says what is not a string in them that should be one.
"""

from __future__ import annotations

import ast
import builtins
import html.parser
import re
import shutil
import subprocess
import tempfile
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import jaxmesh as jm
from jaxmesh.emit.cpp.printer import include_dir
from jaxmesh.frontends.mlir.module import load_text

STRINGS = (
    '"); pwned(); ("', "'); pwned(); ('", '"""\npwned()\n"""', "'''\npwned()\n'''", "*/ pwned(); /*", "\n    pwned()\n",
    "\r\npwned()\r", "\\", '\\"', "\\\n", "// pwned() \\\n pwned();", "??/\n pwned();", "\0", "é\u202epwned", "\u2028pwned()",
    "</script><script>pwned()</script>", '"><img src=x onerror=pwned()>', "<!--", "-->", "]]>", "{pwned()}", "{{pwned()}}",
    "$(pwned)", "`pwned`", "; pwned #", "#-}", "%s%n%d", "%(pwned)s", 'R"(', ")\")", "\x1b]0;pwned\x07", "../../pwned",
    "/pwned", "-pwned", "class", "int", "BFLOAT16); } static int pwned = system(\"id\"); void g() { (0",
)  # fmt: skip
"""Each ends, opens or means something in one of the languages of the outputs."""
EVERYTHING = "".join(STRINGS)
PLAIN = "plain"


def quoted(text: str) -> str:
    """A string in MLIR's syntax, written apart from the package's own."""
    data = text.encode("utf-8", "surrogateescape")
    return '"' + "".join(chr(b) if 32 <= b < 127 and chr(b) not in '"\\' else f"\\{b:02X}" for b in data) + '"'


# --- positions -------------------------------------------------------------------------------------------------------

_COMMENT = re.compile(r'("(?:[^"\\\n]|\\.)*")|//[^\n]*')
_STRING = re.compile(r'(?<!@)"(?:[^"\\\n]|\\.)*"(?!\s*\()')
_SYMBOL = re.compile(r'@(?:[A-Za-z_][\w.$-]*|"[^"\n]*")')
_VALUE = re.compile(
    r"[\w.]+ = (?P<value>#[\w.]+(?:<(?:[^<>]|<(?:[^<>]|<[^<>]*>)*>)*>)?|array<[^<>]*>|dense<[^<>]*>(?: : \w+(?:<[^<>]*>)?)?"
    r"|-?[\d.e+]+(?: : \w+)?|true|false|unit)"
)
_END_OF_OP = re.compile(r"(?m)^\s*(?:%[\w:#]+ = )?\"?(?:ttir|ttnn|stablehlo)\.[^\n{]* : [^\n{]*$")
_ARGUMENT = re.compile(r"%\w+: tensor<[^<>]*>(?=[,)])")


def functions(text: str) -> list[str]:
    """Returns a text of public functions as texts of one of them each, with all private functions."""
    starts = [m.start() for m in re.finditer(r"(?m)^func\.func ", text)]
    parts = [text[a:b] for a, b in zip(starts, [*starts[1:], len(text)], strict=False)]
    private = "".join(p for p in parts if p.startswith("func.func private"))
    public = [p for p in parts if not p.startswith("func.func private")]
    return [text[: starts[0]] + p + private for p in public] if len(public) > 1 else [text]


def positions(text: str) -> Iterator[Callable[[str], str]]:
    """Yields for each position of a text a function that puts a string there."""
    text = _COMMENT.sub(lambda m: m[1] or "", text)

    def replaced(start: int, end: int, write: Callable[[str], str] = quoted) -> Callable[[str], str]:
        return lambda string: text[:start] + write(string) + text[end:]

    for match in _STRING.finditer(text):
        yield replaced(*match.span())
    for symbol in dict.fromkeys(_SYMBOL.findall(text)):
        if symbol != "@mesh" or "sdy" not in text:
            pattern = re.compile(re.escape(symbol) + r"(?![\w.$-])")
            yield lambda string, p=pattern: p.sub(lambda _: f"@{quoted(string)}", text)
    for match in _VALUE.finditer(text):
        yield replaced(*match.span("value"))
    for match in _END_OF_OP.finditer(text):
        yield replaced(match.end(), match.end(), lambda s: f" loc({quoted(s)})")
        yield replaced(match.end(), match.end(), lambda s: f" loc({quoted(s)}({quoted(s)}:1:2))")
        yield replaced(match.end(), match.end(), lambda s: f" loc(callsite({quoted(s)} at {quoted(s)}:1:2))")
    for match in _ARGUMENT.finditer(text):
        yield replaced(match.end(), match.end(), lambda s: f" loc({quoted(s)})")
        yield replaced(match.end(), match.end(), lambda s: f" {{ttir.name = {quoted(s)}}}")
        yield replaced(match.end(), match.end(), lambda s: f" {{{quoted(s)} = 1 : i32}}")


# --- outputs ---------------------------------------------------------------------------------------------------------


def outputs(program: Any) -> Iterator[tuple[str, Callable[[], str]]]:
    """Yields every output of a traced program, with its language."""
    lowered = program.lower()
    for debug_info in (False, True):
        yield "mlir", lambda d=debug_info: program.as_text(debug_info=d)
        yield "mlir", lambda d=debug_info: lowered.as_text("ttnn", debug_info=d)
        yield "python", lambda d=debug_info: lowered.as_text("python", debug_info=d)
        yield "cpp", lambda d=debug_info: lowered.as_text("cpp", debug_info=d)
    yield "html", lambda: program.explain()._repr_html_()
    yield "text", lambda: str(lowered.explain())
    yield "html", lowered._repr_html_
    yield "html", program._repr_html_


@dataclass
class Judge:
    """Reads outputs, and keeps the C++ programs for one compilation of all.

    Attributes:
      cpp: the C++ programs.
    """

    cpp: list[str]

    def outputs_of(self, program: Any) -> tuple[list[Any], list[str]]:
        """Returns what each output holds beside strings, and what is wrong in them; a named error holds nothing."""
        held: list[Any] = []
        wrong: list[str] = []
        for language, write in outputs(program):
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    text = write()
            except jm.JaxmeshError as error:
                held.append(None)
                wrong += language_text(str(error))[1]
                continue
            found, faults = self._cpp(text) if language == "cpp" else LANGUAGES[language](text)
            held.append(found)
            wrong += [f"{language}: {fault}" for fault in faults]
        return held, wrong

    def _cpp(self, text: str) -> tuple[Any, list[str]]:
        self.cpp.append(text)
        code = _CPP_STRINGS.sub(" ", text)
        wrong = _unprintable(text) + ["a trigraph"] * ("??" in text)
        return len(re.findall(r"\w+|[^\w\s]", code)), wrong

    def compile(self, flags: Sequence[str] = ("-std=c++20",)) -> str:
        """Returns what a compiler says about all C++ programs, each in a namespace."""
        programs = list(dict.fromkeys(self.cpp))
        bodies = [p.replace('#include "ttnn-precompiled.hpp"', "") for p in programs]
        assert all("#include" not in _CPP_STRINGS.sub(" ", b) for b in bodies)
        with tempfile.TemporaryDirectory() as folder:
            source = Path(folder) / "all.cpp"
            rows = (f"namespace program_{i} {{\n{_within(b, f'program_{i}')}\n}}\n" for i, b in enumerate(bodies))
            source.write_text(f'#include "{include_dir() / "ttnn-precompiled.hpp"}"\n{"".join(rows)}')
            command = [str(shutil.which("g++")), *flags, "-fsyntax-only", "-fmax-errors=0", str(source)]
            return subprocess.run(command, capture_output=True, text=True).stderr


def _within(body: str, space: str) -> str:
    """Returns a program whose functions are called in a namespace."""
    names = re.findall(r"(?m)^(?!  )[\w:<>]+ (\w+)\(", body)
    return re.sub(rf"(?<![\w>])::({'|'.join(names)})\(", rf"::{space}::\1(", body)


_CPP_STRINGS = re.compile(r'"(?:[^"\\\n]|\\.)*"|//[^\n]*|/\*.*?\*/', re.DOTALL)


def _unprintable(text: str) -> list[str]:
    return [f"the character {c!r}" for c in set(re.findall(r"[^\x09\x0a\x20-\x7e]", text))]


def language_mlir(text: str) -> tuple[Any, list[str]]:
    file = load_text(text)
    return len(re.findall(r"\w+|[^\w\s]", re.sub(r'@?"(?:[^"\\\n]|\\.)*"|@[\w.$-]+', " ", text))), [] if file else [
        "empty"
    ]


def language_python(text: str) -> tuple[Any, list[str]]:
    tree = ast.parse(text)
    compile(tree, "main.py", "exec")
    nodes = list(ast.walk(tree))
    made = {n.name for n in nodes if isinstance(n, ast.FunctionDef)} | {"ttnn", "utils", *dir(builtins)}
    made |= {n.id for n in nodes if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
    made |= {a.arg for n in nodes if isinstance(n, ast.arguments) for a in n.args}
    called = [n.func for n in nodes if isinstance(n, ast.Call)]
    foreign = [ast.unparse(f) for f in called if isinstance(f, ast.Name) and f.id not in made]
    foreign += [n.name for d in nodes if isinstance(d, ast.Import) for n in d.names if n.name not in ("ttnn", "utils")]
    foreign += [ast.unparse(f) for f in called if "pwned" in ast.unparse(f) and isinstance(f, ast.Attribute)]
    dangerous = [f.id for f in called if isinstance(f, ast.Name) and f.id in ("eval", "exec", "open", "__import__")]
    return len(nodes), _unprintable(text) + [f"a call of {name}" for name in (*foreign, *dangerous)]


class _Tags(html.parser.HTMLParser):
    """The tags of a page with the names of their attributes."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.found: list[Any] = []

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.found.append((tag, *(name for name, _ in attrs)))

    def handle_comment(self, data: str) -> None:
        self.found.append(("comment",))


def language_html(text: str) -> tuple[Any, list[str]]:
    parser = _Tags()
    parser.feed(text)
    parser.close()
    for svg in re.findall(r"<svg\b.*?</svg>", text, re.DOTALL):
        ElementTree.fromstring(svg)
    wrong = [t for t in parser.found if t[0] in ("script", "img", "comment") or "onerror" in t]
    return frozenset(parser.found), [f"the tag {t}" for t in wrong]


def language_text(text: str) -> tuple[Any, list[str]]:
    control = set(re.findall(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]", text))
    return None, [f"the character {c!r}" for c in control]


LANGUAGES = {"mlir": language_mlir, "python": language_python, "html": language_html, "text": language_text}
"""Readers of outputs, each of which gives what an output holds beside strings, and what is wrong in it."""
