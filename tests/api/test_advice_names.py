"""What the errors of the package advise exists: functions, their parameters, options of commands, extras.

`test_advice.py` follows advice by calls; here the names in every sentence of the package are looked up.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import jaxmesh as jm
from tests import ROOT
from tests.generators.command_contract import commands

PACKAGE = ROOT / "jaxmesh"
WORDS = 4
"""A text of as many words is a sentence, and no name of an op."""
ROOTS: Mapping[str, Any] = {
    "jax": jax, "jnp": jax.numpy, "lax": jax.lax, "jm": jm, "jaxmesh": jm,
    "ttnn": importlib.import_module("jaxmesh.ttnn"), "np": np, "numpy": np,
}  # fmt: skip
ATTRIBUTES = {"ttnn.mlir", "jaxmesh.written", "jaxmesh.layout", "jaxmesh.elements", "jaxmesh.varying"}
"""Names of files, and attributes of texts, that look like names of Python."""


@dataclass(frozen=True)
class Sentence:
    """A text of the package, `_` where a value is filled in."""

    place: str
    text: str


@cache
def sentences() -> list[Sentence]:
    """Returns the sentences of the package that are no docstrings."""
    return [s for path in sorted(PACKAGE.rglob("*.py")) for s in sentences_of(path)]


def sentences_of(path: Path) -> Iterator[Sentence]:
    tree = ast.parse(path.read_text())
    documented = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    inner = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
    # The printed calls of an op are no sentences.
    calls = [node.value for node in ast.walk(tree) if isinstance(node, ast.keyword) and node.arg in ("python", "cpp")]
    inner |= {id(part) for call in calls for part in ast.walk(call)}
    for node in ast.walk(tree):
        text = text_of(node)
        if text and id(node) not in documented | inner and text.count(" ") >= WORDS:
            yield Sentence(f"{path.relative_to(ROOT)}:{getattr(node, 'lineno', 0)}", text)


def text_of(node: ast.AST) -> str:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    return "".join(text_of(part) or "_" for part in node.values) if isinstance(node, ast.JoinedStr) else ""


# --- names of Python -------------------------------------------------------------------------------------------------

NAME = re.compile(
    r"(?<![\w./\"-])(jaxmesh|jax|jm|jnp|lax|ttnn|numpy|np)((?:\.[A-Za-z_]\w*)+)(\([^()]*(?:\([^()]*\)[^()]*)*\))?"
)
KEYWORD = re.compile(r"(?<![\w.-])([a-z]\w*)=(?!=)")


def look_up(name: str) -> Any:
    """Returns what a dotted name stands for.

    Raises:
      AttributeError: nothing has the name.
    """
    first, *rest = name.split(".")
    found, path = ROOTS[first], getattr(ROOTS[first], "__name__", "")
    for part in rest:
        path = f"{path}.{part}"
        try:
            found = getattr(found, part)
        except AttributeError:
            try:
                found = importlib.import_module(path)
            except ImportError:
                raise AttributeError(f"{name}: no {part}") from None
    return found


def missing_names(text: str) -> list[str]:
    """Returns the names in a sentence that nothing has, and the keywords that their functions do not take."""
    wrong: list[str] = []
    for root, rest, call in NAME.findall(text):
        name = f"{root}{rest}".rstrip("_")
        if name in ATTRIBUTES or (name.startswith("ttnn.") and not call):
            continue  # An op of TTNN.
        try:
            found = look_up(name)
        except AttributeError:
            wrong.append(name)
            continue
        wrong += [f"{name}({word}=)" for word in KEYWORD.findall(call) if not takes(found, word)]
    return wrong


def takes(function: Callable[..., Any], keyword: str) -> bool:
    """Returns True if a function takes a keyword, or cannot tell."""
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):
        return True
    return keyword in parameters or any(p.kind is p.VAR_KEYWORD for p in parameters.values())


def test_names_exist() -> None:
    named = [s for s in sentences() if NAME.search(s.text)]
    assert len(named) > 80
    assert {s.place: wrong for s in named if (wrong := missing_names(s.text))} == {}


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("call jaxmesh.emulate(8) before it", []),
        ("call jaxmesh.emulated(8) before it", ["jaxmesh.emulated"]),
        ("write jaxmesh.visualize(shape, P(...), mesh=mesh)", []),
        ("write jaxmesh.visualize(shape, P(...), meshes=mesh)", ["jaxmesh.visualize(meshes=)"]),
        ("see jax.sharding.AbstractMesh, jax.sharding.None", ["jax.sharding.None"]),
    ],
)
def test_a_wrong_name_is_found(text: str, wrong: list[str]) -> None:
    assert missing_names(text) == wrong


# --- keywords --------------------------------------------------------------------------------------------------------


@cache
def keywords() -> set[str]:
    """Returns the parameters of the public functions, methods and classes."""
    found = parameters_of(jax.shard_map)
    for module in (jm, ROOTS["ttnn"]):
        for name in dir(module):
            value = getattr(module, name)
            for each in (value, *(vars(value).values() if isinstance(value, type) else ())):
                found |= parameters_of(each)
    return found


def parameters_of(value: Any) -> set[str]:
    try:
        return set(inspect.signature(value).parameters)
    except (TypeError, ValueError):
        return set()


ADVISED = re.compile(r"(?<![\w.%\"'-])([a-z]\w+)=(?:True|False|mesh\b|jaxmesh)")


def test_keywords_exist() -> None:
    advised = {word: s.place for s in sentences() if "\n" not in s.text for word in ADVISED.findall(s.text)}
    assert {"assume_replicated", "check_vma", "strict", "whole", "mesh"} <= set(advised)
    assert {word: place for word, place in advised.items() if word not in keywords()} == {}


# --- commands and extras ---------------------------------------------------------------------------------------------


def options() -> dict[str, set[str]]:
    """Returns the options of each command."""
    return {name: {o for a in sub._actions for o in a.option_strings} for name, sub in commands().items()}


COMMAND = re.compile(r"\bjaxmesh ([a-z]+(?:-[a-z]+)*)((?: (?:--?[a-z][\w-]*|[A-Z_]+|\w+\.mlir|\w+))*)")
OPTION = re.compile(r"(?<![\w-])--[a-z][a-z-]*")


def test_commands_have_the_options() -> None:
    known = options()
    found = [(s.place, name, rest) for s in sentences() for name, rest in COMMAND.findall(s.text) if name in known]
    assert len(found) > 20
    wrong = [(p, name, o) for p, name, rest in found for o in OPTION.findall(rest) if o not in known[name]]
    assert wrong == []


FOREIGN = {"--version", "--mlir-print-op-generic"}
"""Options of pip, and of tt-mlir's tools."""


def test_options_exist() -> None:
    known = set[str]().union(*options().values()) | FOREIGN
    used = {o: s.place for s in sentences() for o in OPTION.findall(s.text) if not s.text.startswith("--xla")}
    # The programs that jaxmesh writes have options of their own.
    wrong = {o: place for o, place in used.items() if o not in known and "emit" not in place}
    assert wrong == {}


def test_extras_exist() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    pages = [(ROOT / "README.md").read_text(), *(p.read_text() for p in (ROOT / ".github").glob("*.md"))]
    texts = [*(s.text for s in sentences()), *pages]
    advised = {name for text in texts for name in re.findall(r"(?:jaxmesh|\.)\[(\w+)\]", text)}
    assert advised
    assert advised <= set(extras)
