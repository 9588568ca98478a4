"""The `ttnn` that takes shapes without values stands for the real one's functions alone where it says so."""

from __future__ import annotations

from jaxmesh import ttnn
from jaxmesh.analysis.judge.runner.shapes import Shapes


def test_no_method_hides_a_function_of_ttnn() -> None:
    hidden = {name for name in dir(Shapes) if not name.startswith("_")} & set(dir(ttnn))
    taken = "distribute_tensor aggregate_tensor to_device from_device to_layout reshape conv2d deallocate"
    assert hidden == set(taken.split())
