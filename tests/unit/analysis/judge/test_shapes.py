"""The `ttnn` that takes shapes without values stands for the real one's functions alone where it says so."""

from __future__ import annotations

import itertools
from types import SimpleNamespace

from jaxmesh import ttnn
from jaxmesh.analysis.judge.runner.shapes import Plans, Shapes


def test_no_method_hides_a_function_of_ttnn() -> None:
    hidden = {name for name in dir(Shapes) if not name.startswith("_")} & set(dir(ttnn))
    taken = "distribute_tensor aggregate_tensor to_device from_device to_layout reshape conv2d deallocate"
    assert hidden == set(taken.split())


class Config:
    """An argument that `repr` names by its address, with a number of its own."""

    _numbers = itertools.count()

    def __init__(self, block: int) -> None:
        self.block, self._number = block, next(self._numbers)


def test_equal_arguments_are_planned_once() -> None:
    plans, calls = Plans(SimpleNamespace(Tensor=Planned, empty=lambda *_, **__: Planned())), list[int]()
    for block in (1, 1, 2, 1, 2):
        plans.result(max, [Config(block)], {}, lambda config: (calls.append(config.block), Planned())[1])
    assert calls == [1, 2]


class Planned:
    """A tensor of ttnn, as far as plans read it."""

    spec = SimpleNamespace(shape=(), dtype=None, layout=None, memory_config=None)

    def device(self) -> str:
        return "device"

    def tensor_topology(self) -> str:
        return "topology"

    def update_tensor_topology(self, topology: str) -> None:
        assert topology == "topology"
