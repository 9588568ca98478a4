"""The examples in docstrings run, and show what they say."""

from __future__ import annotations

import ast
import doctest
import importlib
from pathlib import Path

import pytest

import jaxmesh

PACKAGE = Path(jaxmesh.__file__).parent
FILES = [path for path in sorted(PACKAGE.rglob("*.py")) if ">>>" in path.read_text()]
FLAGS = doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS
DOCUMENTED = ast.Module | ast.ClassDef | ast.FunctionDef


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_examples_run(path: Path) -> None:
    """Docstrings are read in the file: `doctest` finds none of functions that are public in another module."""
    name = ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__")
    names, runner = vars(importlib.import_module(name)), doctest.DocTestRunner(optionflags=FLAGS)
    for node in ast.walk(ast.parse(path.read_text())):
        text = ast.get_docstring(node) if isinstance(node, DOCUMENTED) else None
        if text is not None and ">>>" in text:
            where = getattr(node, "name", name)
            runner.run(doctest.DocTestParser().get_doctest(text, dict(names), where, str(path), None))
    assert runner.tries
    assert not runner.failures


def test_public_functions_have_examples() -> None:
    public = [getattr(jaxmesh, n) for n in dir(jaxmesh) if not n.startswith("_")]
    functions = [f for f in public if callable(f) and not isinstance(f, type)]
    assert functions
    assert not [f.__name__ for f in functions if ">>>" not in (f.__doc__ or "")]
