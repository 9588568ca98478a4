"""The results of an instrumented program: a pytree of the values in its body, and the entries read from them."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import jax
import numpy as np

from jaxmesh.analysis.record.entry import Coordinate, Entry
from jaxmesh.analysis.record.source_path import Place, Walk


@dataclass(frozen=True, slots=True)
class Buffer:
    """A value in all iterations of the loops around it.

    Attributes:
      array: its dims are one per loop around the value, then one per mesh axis if `on_devices`, then the dims of the
        value.
      on_devices: True if the value lives on the devices.
      rank: the number of dims of the value.
    """

    array: Any
    on_devices: bool
    rank: int


@dataclass(frozen=True, slots=True)
class ValueNode:
    """One result of an equation."""

    buffer: Buffer
    place: Place
    result: int
    key: str


@dataclass(frozen=True, slots=True)
class ScanNode:
    """The values of a scan's body; `order` lists the indices of the slices in execution order."""

    place: Place
    order: range
    body: list[Node]


@dataclass(frozen=True, slots=True)
class WhileNode:
    """The values of a while loop; `iterations` counts its iterations, `capacity` is the length of its buffers."""

    place: Place
    iterations: Buffer
    capacity: int
    cond: list[Node]
    body: list[Node]


@dataclass(frozen=True, slots=True)
class CondNode:
    """The values of the branches of a conditional; `index` is the number of the executed branch."""

    place: Place
    index: Buffer
    branches: list[list[Node]]


Node = ValueNode | ScanNode | WhileNode | CondNode
_CHILDREN: dict[Any, list[str]] = {
    Buffer: ["array"], ValueNode: ["buffer"], ScanNode: ["body"], WhileNode: ["iterations", "cond", "body"],
    CondNode: ["index", "branches"],
}  # fmt: skip
for _node, _children in _CHILDREN.items():
    jax.tree_util.register_dataclass(_node, _children, [f.name for f in fields(_node) if f.name not in _children])
Active = tuple[Coordinate, ...]
Iteration = tuple[int, ...]
"""The index in each loop around a value, outermost first."""


@dataclass(slots=True)
class Reader:
    """Reads entries from buffers, in the recording order of the reference executor.

    Attributes:
      mesh: the sizes of the mesh axes.
      entries: the entries read so far.
      missing: the iterations of each while loop whose buffers were too small; the entries are then incomplete.
    """

    mesh: tuple[int, ...]
    entries: list[Entry] = field(default_factory=list[Entry])
    missing: dict[Place, int] = field(default_factory=dict[Place, int])

    def read(self, nodes: Sequence[Node]) -> None:
        """Reads the entries of a program."""
        self._body(nodes, Walk(), (), tuple(itertools.product(*map(range, self.mesh))))

    def _body(self, nodes: Sequence[Node], walk: Walk, at: Iteration, active: Active) -> None:
        for node in nodes:
            match node:
                case ValueNode():
                    self._value(node, walk, at, active)
                case ScanNode():
                    for index in node.order:
                        self._body(node.body, walk.inside(node.place, "body", index), (*at, index), active)
                case WhileNode():
                    self._while(node, walk, at, active)
                case CondNode():
                    index = self._numbers(node.index, at, active)
                    for number, branch in enumerate(node.branches):
                        group = tuple(c for c in active if min(max(index[c], 0), len(node.branches) - 1) == number)
                        if group:
                            self._body(branch, walk.inside(node.place, "branch", number), at, group)

    def _while(self, node: WhileNode, walk: Walk, at: Iteration, active: Active) -> None:
        counts = self._numbers(node.iterations, at, active)
        last = max(counts.values())
        if last > node.capacity:
            self.missing[node.place] = max(last, self.missing.get(node.place, 0))
            return
        for i in range(last + 1):
            tested = tuple(c for c in active if counts[c] >= i)
            self._body(node.cond, walk.inside(node.place, "cond", i), (*at, i), tested)
            running = tuple(c for c in active if counts[c] > i)
            if running:
                self._body(node.body, walk.inside(node.place, "body", i), (*at, i), running)

    def _numbers(self, buffer: Buffer, at: Iteration, active: Active) -> dict[Coordinate, int]:
        """Returns one integer per device."""
        array = buffer.array[at]
        return {c: int(array[c] if buffer.on_devices else array) for c in active}

    def _value(self, node: ValueNode, walk: Walk, at: Iteration, active: Active) -> None:
        array = node.buffer.array[at]
        coordinates = active if node.buffer.on_devices else None
        if coordinates is None:
            data = np.asarray(array)
        elif len(coordinates) == math.prod(self.mesh):
            data = array.reshape(len(coordinates), *array.shape[len(self.mesh) :])
        else:
            data = np.stack([array[c] for c in coordinates])
        self.entries.append(Entry(node.place, walk.path, node.result, coordinates, data, node.key))
