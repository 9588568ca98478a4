"""The `ttnn` that takes shapes without values stands for the real one's functions alone where it says so."""

from __future__ import annotations

from jaxmesh import ttnn
from jaxmesh.analysis.judge.runner.shapes import _ON_PROMISES, Shapes


def test_no_method_hides_a_function_of_ttnn() -> None:
    hidden = {name for name in dir(Shapes) if not name.startswith("_")} & set(dir(ttnn))
    assert hidden <= _ON_PROMISES.keys()
    assert "distribute_tensor" in hidden
