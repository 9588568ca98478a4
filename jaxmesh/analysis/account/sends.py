"""The moves of the ops of a flat TTNN program, in order."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace

import numpy as np

from jaxmesh.analysis.account.moves import SEND, Move, aggregate, distribute, exchange
from jaxmesh.dialects.definitions import has_trait
from jaxmesh.dialects.op import Trait
from jaxmesh.dialects.program import LOOP, Op, Program, bodies
from jaxmesh.frontends.mlir.upgrade import FUNCTIONS

_NEUTRAL = (Trait.MOVES, Trait.CREATES, Trait.LAYOUT, Trait.MEMORY, Trait.TRANSFERS, Trait.VIEW)
Coordinate = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class OpMoves:
    """An op of a flat program with its moves.

    Attributes:
      program: the function that it is in.
      op: the op.
      times: the number of its executions; a loop of unknown length counts as one iteration.
      exact: False in a loop of unknown length.
      moves: its moves; at most one.
      carried: the bytes that it adds to the busiest link between neighbours on a line, and on a ring; of a send alone.
    """

    program: Program
    op: Op
    times: int = 1
    exact: bool = True
    moves: tuple[Move, ...] = ()
    carried: tuple[int, int] = (0, 0)


def entries(program: Program, times: int = 1, exact: bool = True, nested: bool = True) -> Iterator[OpMoves]:
    """Yields the ops of a program that runs `times` times; if `nested`, also of its loops and functions."""
    sends = _Sends(program)
    for op in program.ops:
        trips = op.attributes.get("trips", 1)
        inner = [*bodies(op), *(replace(f.program, mesh=program.mesh) for f in op.attributes.get(FUNCTIONS, ()))]
        for body in inner if nested else ():
            yield from entries(body, times * trips, exact and not is_endless(op))
        if op.name == f"ttnn.{SEND}":
            yield sends.add(op, times, exact)
            continue
        computes = op.name != "ttnn.typecast" and not any(has_trait(op.name, trait) for trait in _NEUTRAL)
        if computes or has_trait(op.name, Trait.SENDS):
            sends = _Sends(program)
        moves = tuple([replace(m, count=times, exact=exact) for m in _moves(op, program)])
        yield OpMoves(program, op, times, exact, moves)


def is_endless(op: Op) -> bool:
    """Returns True for a loop of unknown length: only the devices know when it ends."""
    return op.name == LOOP and "condition" in op.attributes


def bytes_of(program: Program, value: int) -> int:
    """Returns the bytes of a value as its type has them."""
    tensor_type = program.types[value]
    return math.prod(tensor_type.shape) * np.dtype(tensor_type.dtype).itemsize


def _moves(op: Op, program: Program) -> tuple[Move, ...]:
    mesh, attributes = program.mesh, op.attributes
    for name, move in (("mapper_config", distribute), ("composer_config", aggregate)):
        if name in attributes:
            tensor_type = program.types[op.used[0]]
            return (move(attributes[name], mesh, tensor_type.shape, np.dtype(tensor_type.dtype).itemsize),)
    if not has_trait(op.name, Trait.SENDS):
        return ()
    number: int = attributes["cluster_axis"]
    axis = list(mesh)[number]
    # A dispatch sends tokens and the numbers of their experts.
    sent = op.used[:2] if op.name == "ttnn.all_to_all_dispatch" else op.used[:1]
    operand, result = sum(bytes_of(program, x) for x in sent), bytes_of(program, op.results[0])
    kind, groups = op.name.removeprefix("ttnn.").removesuffix("_async"), math.prod(mesh.values()) // mesh[axis]
    return tuple(exchange(kind, (axis,), mesh[axis], groups, operand, result))


@dataclass(slots=True)
class _Loads:
    """The bytes of each device or link by axis, and the bytes of the busiest one."""

    loads: Counter[tuple[int, object]] = field(default_factory=Counter["tuple[int, object]"])
    busiest: Counter[int] = field(default_factory=Counter[int])

    def add(self, axis: int, parts: Iterable[object], size: int) -> int:
        """Adds bytes to some parts; returns the bytes that the busiest part has more."""
        before = self.busiest[axis]
        for part in parts:
            self.loads[axis, part] += size
            self.busiest[axis] = max(self.busiest[axis], self.loads[axis, part])
        return self.busiest[axis] - before


class _Sends:
    """Sends that follow each other without arithmetic between them: a permute is a send for each pair of devices."""

    def __init__(self, program: Program) -> None:
        self.program, self.senders, self.line, self.ring = program, _Loads(), _Loads(), _Loads()

    def add(self, op: Op, times: int, exact: bool) -> OpMoves:
        """Returns the entry of a send, with the bytes that it adds to the busiest device and to the busiest link."""
        sender, receiver = (tuple(op.attributes[end]) for end in ("sender_coord", "receiver_coord"))
        size, names = bytes_of(self.program, op.used[0]), list(self.program.mesh)
        axes = [i for i, (a, b) in enumerate(zip(sender, receiver, strict=True)) if a != b]
        if not axes or not size:
            return OpMoves(self.program, op, times, exact)
        added = self.senders.add(axes[0], [sender], size)
        on_line = self.line.add(axes[0], self._route(sender, receiver, ring=False), size)
        on_ring = self.ring.add(axes[0], self._route(sender, receiver, ring=True), size)
        move = Move(SEND, tuple(names[i] for i in axes), 2, 1, added, size, None, times, exact)
        return OpMoves(self.program, op, times, exact, (move,), (on_line, on_ring))

    def _route(self, sender: Coordinate, receiver: Coordinate, ring: bool) -> Iterator[tuple[Coordinate, Coordinate]]:
        """Yields the links between two devices, along one axis after the other, the shorter way round a ring."""
        here = sender
        for axis, count in enumerate(self.program.mesh.values()):
            distance = receiver[axis] - here[axis]
            if ring and abs(distance) > count / 2:
                distance -= int(math.copysign(count, distance))
            for _ in range(abs(distance)):
                there = (*here[:axis], (here[axis] + (1 if distance > 0 else -1)) % count, *here[axis + 1 :])
                yield here, there
                here = there
