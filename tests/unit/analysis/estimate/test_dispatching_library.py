"""A library that calls every operation from one line: an estimate tells its rows apart by the user's line, or scope."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import jaxmesh as jm

LIBRARY = '''\
"""A library of layers, whose operations are all called from one line."""

import jax
import jax.numpy as jnp

TABLE = {"dot": jnp.dot, "tanh": jnp.tanh, "relu": jax.nn.relu, "exp": jnp.exp}


def op(name, *a):
    return TABLE[name](*a)


class Model:
    def __init__(self, layers):
        self.layers = layers

    def __call__(self, x):
        for i, w in enumerate(self.layers):
            with jax.named_scope(f"dense_{i}"):
                x = op("relu", op("dot", x, w))
        return x
'''
PROGRAM = """\
from tests_dispatching import Model, op


def lines(x, w):
    x = op("dot", x, w)
    x = op("tanh", x)
    return op("exp", x)


def layers(x, w):
    return Model([w, w, w])(x)


def mostly(x, w):
    x = op("tanh", x)
    return Model([w, w])(x)
"""
MESH = jax.sharding.AbstractMesh((2, 4), ("y", "x"))
ONES = np.ones((64, 64), np.float32)


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    packages, own = (tmp_path_factory.mktemp(name) / name for name in ("site-packages", "project"))
    for folder, name, text in (packages, "tests_dispatching", LIBRARY), (own, "tests_program", PROGRAM):
        (folder / name).mkdir(parents=True)
        (folder / name / "__init__.py").write_text(text)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(packages))
        patch.syspath_prepend(str(own))
        importlib.invalidate_caches()
        yield importlib.import_module("tests_program")
    for name in ("tests_program", "tests_dispatching"):
        del sys.modules[name]


def lowered(function: Any, **options: Any) -> Any:
    return jm.jit(function, mesh=MESH, **options).lower(ONES, ONES)


def rows(estimate: Any) -> list[str]:
    """Returns the lines of the table whose costs take time."""
    return [cells[0].removeprefix("__init__.py:") for cells in estimate.table()[1:]]


@pytest.mark.parametrize("options", [{}, {"in_shardings": P("y")}], ids=["replicated", "partitioned"])
def test_rows_are_of_the_users_lines_and_of_scopes(program: Any, options: Any) -> None:
    assert rows(lowered(program.lines, **options).estimate("t3000")) == ["5 (lines)", "6 (lines)", "7 (lines)"]
    estimate = lowered(program.layers, **options).estimate("t3000")
    assert rows(estimate) == [f"11 (layers) in dense_{i}" for i in range(3)]
    assert sum(line.seconds for line in estimate.lines) == pytest.approx(estimate.seconds)
    # Half of the flops of a product of the second layer and its maximum with 0, of which the call is another trace.
    second, third = (line for line in estimate.lines if line.scope in ("dense_1", "dense_2"))
    assert (second.flops, second.seconds) == (third.flops, third.seconds)
    assert rows(lowered(program.mostly, **options).estimate("t3000"))[1:] == [
        f"16 (mostly) in dense_{i}" for i in range(2)
    ]


def test_an_explanation_says_the_scopes_and_adds_their_times(program: Any) -> None:
    low = lowered(program.layers, in_shardings=P("y"))
    explanation = low.explain("t3000")
    assert {row.scope for row in explanation.rows if row.op == "dot_general"} == {(f"dense_{i}",) for i in range(3)}
    assert sum(row.seconds or 0 for row in explanation.rows) == pytest.approx(low.estimate("t3000").seconds)


def test_a_program_is_printed_without_scopes(program: Any) -> None:
    assert " in dense_0" not in lowered(program.layers).as_text(debug_info=True)


def test_a_line_beside_others_is_whole() -> None:
    def f(x: Any, w: Any) -> Any:
        for i in range(2):
            with jax.named_scope(f"part_{i}"):
                x = jax.numpy.tanh(x)
        return x @ w @ w

    assert [line.scope for line in lowered(f).estimate("t3000").lines] == [""] * len(lowered(f).estimate("t3000").lines)
