"""Finds the tests of a file that have more cases with `--every`: they use what depends on it, also by other names."""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator, Mapping
from pathlib import Path

from tests import ROOT

SCALED = {"EVERY", "only_with_every", "count_of", "cases", "some"}
"""The names of `tests.generators.oracles` that depend on `--every`."""


@functools.cache
def scaled_names(path: Path) -> frozenset[str]:
    """Returns the top-level names of a file, imported ones too, whose value or meaning depends on `--every`."""
    if path == ROOT / "tests" / "generators" / "oracles.py":
        return frozenset(SCALED)
    tree = ast.parse(path.read_text())
    mentions = {name: mentioned_names(statement) for statement in tree.body for name in bound_names(statement)}
    scaled = {name for name, source in imports(tree).items() if is_scaled(*source)}
    while found := {name for name, mentioned in mentions.items() if name not in scaled and mentioned & scaled}:
        scaled |= found
    return frozenset(scaled)


def is_scaled(module: str, name: str) -> bool:
    """Returns True if a name of a module of generators depends on `--every`; a module does if one of its names does."""
    path = ROOT.joinpath(*module.split("."))
    if path.is_dir() and (path / f"{name}.py").exists():
        return bool(scaled_names(path / f"{name}.py"))
    source = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    return source.exists() and name in scaled_names(source)


def imports(tree: ast.Module) -> Mapping[str, tuple[str, str]]:
    """Returns the module and the name there of every name that a file imports from the generators of the tests."""
    return {
        alias.asname or alias.name: (statement.module, alias.name)
        for statement in ast.walk(tree)
        if isinstance(statement, ast.ImportFrom) and (statement.module or "").startswith("tests.")
        for alias in statement.names
        if statement.module
    }


def bound_names(statement: ast.stmt) -> Iterator[str]:
    match statement:
        case ast.FunctionDef() | ast.ClassDef():
            yield statement.name
        case ast.Assign() | ast.AnnAssign() | ast.For() | ast.With() | ast.If() | ast.AugAssign():
            yield from (n.id for n in ast.walk(statement) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store))
        case _:
            pass


def mentioned_names(statement: ast.stmt) -> set[str]:
    """Returns the names that a statement reads, and the arguments of a function, which are fixtures of a test."""
    names = {node.id for node in ast.walk(statement) if isinstance(node, ast.Name)}
    arguments = {node.arg for node in ast.walk(statement) if isinstance(node, ast.arg)}
    return names | arguments
