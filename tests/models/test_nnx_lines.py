"""A training step of twelve layers of Flax NNX is explained on one screen, by lines of the model alone."""

from __future__ import annotations

import inspect
import re
from typing import Any

import pytest

pytest.importorskip("flax", reason="needs flax and optax")
pytest.importorskip("optax", reason="needs flax and optax")

import jaxmesh as jm
from jaxmesh.analysis.explain import Explanation
from jaxmesh.analysis.explain.records import ENDS
from tests.models import nnx_transformer as model

FILE = "nnx_transformer.py"


@pytest.fixture(scope="module")
def lowered() -> Any:
    mesh = jm.make_mesh((2, 4), ("data", "model"))
    args, shardings = model.arguments(mesh)
    return jm.jit(model.step, mesh=mesh, in_shardings=shardings).lower(*args)


@pytest.fixture(scope="module")
def explanation(lowered: Any) -> Explanation:
    return lowered.explain()


def test_the_answer_fits_a_screen(explanation: Explanation, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    lines = str(explanation).splitlines()
    assert len(lines) <= 60
    assert max(map(len, lines)) <= 120


def test_lines_are_of_the_model_alone(explanation: Explanation) -> None:
    files = {re.split(r"[:/]", line.line.split(":")[0])[-1] for line in explanation.lines if line.line not in ENDS}
    assert files == {FILE}
    assert "site-packages" not in explanation.table()
    assert set(re.findall(r"\w+\.py", str(explanation))) == {FILE}


def test_the_collectives_stand_at_the_lines_that_call_for_them(explanation: Explanation) -> None:
    """Each block sums after attention and after its perceptron, and so do the derivatives before them."""
    code, first = inspect.getsourcelines(model.Block.__call__)
    for word, scope in (("attention(", "attention"), ("down(", "mlp")):
        number = first + next(i for i, line in enumerate(code) if word in line)
        at = explanation.at(f"{FILE}:{number}")
        sums = [row for row in at for move in row.moves if move.kind == "all_reduce" and move.axes == ("model",)]
        assert {row.scope for row in sums} == {(f"block_{i}", scope) for i in range(model.LAYERS)}
        assert len(sums) >= 2 * model.LAYERS


def test_arguments_have_paths_and_fold_by_number(explanation: Explanation) -> None:
    assert explanation[0].operands[0].startswith("params['blocks'][0]['attention']")
    text = str(explanation)
    assert "params['blocks'][*]['down']['kernel']" in text
    assert "block_*/attention" in text


def test_estimates_name_the_model(lowered: Any) -> None:
    lines = [line.line for line in lowered.estimate("t3000").lines if line.seconds]
    assert lines
    assert all(f"/{FILE}:" in line for line in lines)
    assert len(lines) == len(set(lines)) < 15
