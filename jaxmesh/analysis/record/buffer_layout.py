"""What a recorded program gives back: which array holds which values, loop by loop, and the entries made of them."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from jaxmesh.analysis.record.entry import Array, Coordinate, Entry
from jaxmesh.analysis.record.source_path import Place, Walk


@dataclass(frozen=True, slots=True)
class Saved:
    """One array that the program gives: a dim per loop around it, one per mesh axis if `devices`, then the value's."""

    number: int
    devices: bool


@dataclass(frozen=True, slots=True)
class Leaf:
    """One value of an equation."""

    saved: Saved
    place: Place
    result: int
    key: str


@dataclass(frozen=True, slots=True)
class ScanNode:
    """The values of a scan's body; `order` are the turns as they are taken, each by the index of the slice it reads."""

    place: Place
    order: tuple[int, ...]
    body: Nodes


@dataclass(frozen=True, slots=True)
class WhileNode:
    """The values of a while loop; `turns` counts how often its body ran, for which `limit` places were kept."""

    place: Place
    turns: Saved
    limit: int
    cond: Nodes
    body: Nodes


@dataclass(frozen=True, slots=True)
class CondNode:
    """The values of the branches, of which `index` says which was taken."""

    place: Place
    index: Saved
    branches: tuple[Nodes, ...]


Node = Leaf | ScanNode | WhileNode | CondNode
Nodes = tuple[Node, ...]


def shifted(node: Node, by: int) -> Node:
    """The node, its arrays behind so many others."""

    def move(saved: Saved) -> Saved:
        return Saved(saved.number + by, saved.devices)

    def each(nodes: Nodes) -> Nodes:
        return tuple(shifted(n, by) for n in nodes)

    match node:
        case Leaf():
            return dataclasses.replace(node, saved=move(node.saved))
        case ScanNode():
            return dataclasses.replace(node, body=each(node.body))
        case WhileNode():
            return dataclasses.replace(node, turns=move(node.turns), cond=each(node.cond), body=each(node.body))
        case CondNode():
            return dataclasses.replace(node, index=move(node.index), branches=tuple(map(each, node.branches)))


def longest(nodes: Sequence[Node], arrays: Sequence[Array]) -> dict[Place, int]:
    """Per while loop that had too few places the turns that it needs."""
    found: dict[Place, int] = {}
    for node in nodes:
        bodies: tuple[Nodes, ...] = ()
        if isinstance(node, WhileNode):
            turns = int(arrays[node.turns.number].max(initial=0))
            if turns > node.limit:
                found[node.place] = max(turns, found.get(node.place, 0))
            bodies = (node.cond, node.body)
        elif isinstance(node, ScanNode):
            bodies = (node.body,)
        elif isinstance(node, CondNode):
            bodies = node.branches
        for body in bodies:
            for place, turns in longest(body, arrays).items():
                found[place] = max(turns, found.get(place, 0))
    return found


Active = tuple[Coordinate, ...]
Turns = tuple[int, ...]


@dataclass(slots=True)
class Reader:
    """Makes entries, in the order in which the reference executor makes them."""

    arrays: Sequence[Array]
    mesh: tuple[int, ...]
    entries: list[Entry] = field(default_factory=list[Entry])

    def read(self, nodes: Nodes) -> list[Entry]:
        """The entries of a program."""
        everywhere: Active = tuple(itertools.product(*map(range, self.mesh)))
        self._body(nodes, Walk(), (), everywhere)
        return self.entries

    def _body(self, nodes: Nodes, walk: Walk, turns: Turns, active: Active) -> None:
        for node in nodes:
            match node:
                case Leaf():
                    self._leaf(node, walk, turns, active)
                case ScanNode():
                    for index in node.order:
                        self._body(node.body, walk.inside(node.place, "body", index), (*turns, index), active)
                case WhileNode():
                    self._while(node, walk, turns, active)
                case CondNode():
                    taken = self._each(node.index, turns, active)
                    for number, branch in enumerate(node.branches):
                        group = tuple(c for c in active if min(max(taken[c], 0), len(node.branches) - 1) == number)
                        if group:
                            self._body(branch, walk.inside(node.place, "branch", number), turns, group)

    def _while(self, node: WhileNode, walk: Walk, turns: Turns, active: Active) -> None:
        counts = self._each(node.turns, turns, active)
        for turn in range(max(counts.values()) + 1):
            asked = tuple(c for c in active if counts[c] >= turn)
            self._body(node.cond, walk.inside(node.place, "cond", turn), (*turns, turn), asked)
            going = tuple(c for c in active if counts[c] > turn)
            if going:
                self._body(node.body, walk.inside(node.place, "body", turn), (*turns, turn), going)

    def _each(self, saved: Saved, turns: Turns, active: Active) -> dict[Coordinate, int]:
        """A number per device."""
        found = self.arrays[saved.number][turns]
        return {c: int(found[c] if saved.devices else found) for c in active}

    def _leaf(self, leaf: Leaf, walk: Walk, turns: Turns, active: Active) -> None:
        found: Any = self.arrays[leaf.saved.number][turns]
        coordinates = active if leaf.saved.devices else None
        data = np.array(found) if coordinates is None else np.stack([found[c] for c in coordinates])
        self.entries.append(Entry(leaf.place, walk.path, leaf.result, coordinates, data, leaf.key))
