"""The `ttnn` that takes shapes without values stands for the real one's functions alone where it says so."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any, cast

from jaxmesh import ttnn
from jaxmesh.analysis.judge.runner.capture import Capture, OwnResult
from jaxmesh.analysis.judge.runner.shapes import Plans, Shapes
from jaxmesh.analysis.judge.runner.watch import Watch


def test_no_method_hides_a_function_of_ttnn() -> None:
    hidden = {name for name in dir(Shapes) if not name.startswith("_")} & set(dir(ttnn))
    taken = "distribute_tensor aggregate_tensor to_device from_device to_layout reshape conv2d deallocate"
    assert hidden == set(taken.split())


class Config:
    """An argument that `repr` names by its address, with a number of its own."""

    _numbers = itertools.count()

    def __init__(self, block: int) -> None:
        self.block, self._number = block, next(self._numbers)


class Watching:
    """A watch of devices on which the call of a function allocates its result alone."""

    is_watching = True

    def __init__(self, *, has_room: bool = True) -> None:
        self.has_room, self.planned, self.repeated = has_room, 0, list[OwnResult]()

    def measure(self, call: Callable[[], Any]) -> tuple[Any, Capture]:
        return call(), Capture(Counter(["Add"]), [(1, "DRAM", 8, 64), (1, "DRAM", 7, 32), (-1, "DRAM", 8, 64)], 0)

    def plan(self, call: Callable[[], Any]) -> int:
        self.planned += 1
        return 16

    def repeat(self, call: OwnResult, make: Callable[[], Any]) -> Any:
        self.repeated.append(call)
        return make() if self.has_room else None


def run(watch: Watching, blocks: Sequence[int]) -> list[int]:
    """The numbers of the calls that were made, of equal calls and others."""
    ttnn = SimpleNamespace(Tensor=Planned, empty=lambda *_, **__: Planned())
    plans, calls = Plans(ttnn, cast(Watch, watch)), list[int]()
    for block in blocks:
        plans.result(max, [Config(block)], {}, lambda config: (calls.append(config.block), Planned())[1])
    return calls


def test_equal_calls_are_made_once() -> None:
    watch = Watching()
    assert run(watch, (1, 1, 2, 1, 2)) == [1, 2]
    assert watch.planned == 2
    assert watch.repeated == [OwnResult(Counter(["Add"]), peak=96, size=32, kernel=16)] * 3


def test_a_call_is_made_again_where_memory_may_not_suffice() -> None:
    watch = Watching(has_room=False)
    assert run(watch, (1, 1, 2, 1, 2)) == [1, 1, 2, 1, 2]
    assert watch.planned == 2


class Planned:
    """A tensor of ttnn, as far as plans read it."""

    spec = SimpleNamespace(shape=(), dtype=None, layout=None, memory_config=None)

    def device(self) -> str:
        return "device"

    def buffer_address(self) -> int:
        return 7

    def tensor_topology(self) -> str:
        return "topology"

    def update_tensor_topology(self, topology: str) -> None:
        assert topology == "topology"
