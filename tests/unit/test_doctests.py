"""The examples in docstrings run, and show what they say."""

from __future__ import annotations

import doctest
import importlib
import pkgutil

import pytest

import jaxmesh

MODULES = [m.name for m in pkgutil.walk_packages(jaxmesh.__path__, "jaxmesh.") if not m.name.endswith("__main__")]
FLAGS = doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS


@pytest.mark.parametrize("name", MODULES)
def test_examples_run(name: str) -> None:
    failed, _ = doctest.testmod(importlib.import_module(name), optionflags=FLAGS)
    assert not failed


def test_public_functions_have_examples() -> None:
    public = [getattr(jaxmesh, n) for n in dir(jaxmesh) if not n.startswith("_")]
    functions = [f for f in public if callable(f) and not isinstance(f, type)]
    assert functions
    assert not [f.__name__ for f in functions if ">>>" not in (f.__doc__ or "")]
