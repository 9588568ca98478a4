"""The bytes that the ops of a flat TTNN program move in DRAM and over links, on one device.

Inputs and constants lie in DRAM; the first op that reads one reads it there. Values that the program computes stay in
L1, except for the part that exceeds its size. A tensor is stored in the layout and element type of its reader, so
changes of layout and element type, and views, cost nothing.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import cast

import numpy as np

from jaxmesh.analysis.account.memory import WIDTHS
from jaxmesh.analysis.account.moves import SEND
from jaxmesh.analysis.account.sends import OpMoves
from jaxmesh.analysis.account.work import size
from jaxmesh.analysis.machines import Machine
from jaxmesh.dialects.definitions import has_trait, ttnn_definition
from jaxmesh.dialects.op import Trait
from jaxmesh.dialects.program import Op, Program, Value, bodies
from jaxmesh.errors import ArgumentTypeError, ArgumentValueError
from jaxmesh.validate import is_hashable, quote


def check_stored(stored: object) -> Mapping[str, str]:
    """Returns element types by a pattern of the arguments' paths.

    Raises:
      ArgumentTypeError: neither an element type nor a dict of them.
      ArgumentValueError: an unknown element type, or an invalid regular expression.
    """
    requested = {} if stored is None else {"": stored} if isinstance(stored, str) else stored
    if not isinstance(requested, Mapping) or not all(
        isinstance(pattern, str) for pattern in cast("Mapping[object, object]", requested)
    ):
        raise ArgumentTypeError(
            f"estimate takes as stored an element type, or a dict of them by regular expressions, got {quote(stored)}."
        )
    by_path = cast("Mapping[str, str]", requested)
    for pattern, name in by_path.items():
        if not is_hashable(name) or name not in WIDTHS:
            raise ArgumentValueError(f"estimate takes as stored {', '.join(WIDTHS)}, got {quote(name)}.")
        try:
            re.compile(pattern)
        except re.error as error:
            raise ArgumentValueError(
                f"estimate takes as stored regular expressions for paths of arguments, got {quote(pattern)}: {error}; "
                "escape brackets and dots."
            ) from None
    return by_path


@dataclass(slots=True)
class TensorStorage:
    """The storage of a tensor.

    Attributes:
      stored: the name of the element type.
      width: bytes per element.
      unread: the bytes in DRAM that no op has read.
      input: True for an argument or a constant of the program.
    """

    stored: str
    width: float
    unread: int
    input: bool

    def bytes(self, elements: int) -> int:
        """Returns the bytes of a number of elements."""
        return math.ceil(elements * self.width)


@dataclass(slots=True)
class Bytes:
    """The bytes that an op moves on one device.

    Attributes:
      dram: the bytes read from and written to DRAM.
      links: the bytes sent to other devices, by mesh axis.
      busiest: by mesh axis, the bytes over the links to one neighbour, in the busier direction.
      host: the bytes from and to the host.
    """

    dram: int = 0
    links: dict[str, int] = field(default_factory=dict[str, int])
    busiest: dict[str, int] = field(default_factory=dict[str, int])
    host: int = 0


class Traffic:
    """Follows the tensors of a program through its ops, in order."""

    def __init__(self, program: Program, machine: Machine, stored: Mapping[str, str]) -> None:
        self.program, self.machine, self.stored = program, machine, stored
        self._paths: dict[Value, str] = {port.value: port.path for port in program.arguments}
        self._memories: dict[Value, TensorStorage] = {}

    def memory(self, value: Value) -> TensorStorage:
        """Returns the storage of a value; a value that no earlier op wrote is an input."""
        if value not in self._memories:
            tensor_type = self.program.types[value]
            name = np.dtype(tensor_type.dtype).name
            if name in WIDTHS:
                path = self._paths.get(value)
                overrides = () if path is None else (n for p, n in self.stored.items() if re.search(p, path))
                name = next(iter(overrides), name)
            width = WIDTHS.get(name, float(np.dtype(tensor_type.dtype).itemsize))
            memory = self._memories[value] = TensorStorage(name, width, 0, input=True)
            memory.unread = memory.bytes(size(self.program, value))
        return self._memories[value]

    def iterations(self, loop: Op) -> Iterator[tuple[Traffic, int]]:
        """Yields the tensors of an iteration, and how many are like it: of the condition, the first, all others.

        The first iteration reads inputs from DRAM. The others read them as the second does.
        """
        body, *conditions = bodies(loop)
        trips, given = loop.attributes.get("trips", 1), [*map(self.memory, loop.used)]
        paths = [self._paths.get(v) for v in loop.used]
        for program, part in [*((c, 1) for c in conditions), (body, min(trips, 1)), (body, trips - 1)]:
            if part < 1:
                continue
            inside = Traffic(program, self.machine, self.stored)
            before = {id(memory): (memory, memory.unread) for memory in given}
            values = [port.value for port in program.arguments]
            inside._memories.update(zip(values, given, strict=True))
            inside._paths = {v: path for v, path in zip(values, paths, strict=True) if path is not None}
            yield inside, part
            for memory, unread in before.values():
                memory.unread = max(0, unread - part * (unread - memory.unread))
            if program is body:
                given[: len(body.results)] = [inside.memory(port.value) for port in body.results]
        self._memories.update(zip(loop.results, given, strict=False))

    def move(self, entry: OpMoves) -> Bytes:
        """Returns the bytes that the next op moves."""
        op, types, moved = entry.op, self.program.types, Bytes()
        operands = [v for v in op.used if types[v].kind == "tensor"]
        to_host = all(types[v].host for v in op.results)
        crossing = (v for v in operands if types[v].host != to_host)
        moved.host = sum(self.memory(v).bytes(size(self.program, v)) for v in crossing)
        if self._share(op) or to_host:
            return moved
        written = _in_place(op)
        for number, value in enumerate(operands):
            moved.dram += self._read(op, value) if number != written else 0
        self._send(entry, moved)
        if written is not None and self.memory(operands[written]).input:
            # An input lies in DRAM and is updated there.
            memory = self.memory(operands[written])
            moved.dram += memory.bytes(min(size(self.program, v) for v in operands[:2]))
            self._memories.update((v, memory) for v in op.results)
            return moved
        for value in op.results:
            moved.dram += self._write(op, value)
        return moved

    def _share(self, op: Op) -> bool:
        """Gives the results of an op that computes nothing their operand's memory; returns False for any other op."""
        if not op.used or not op.results or not _is_free(op):
            return False
        types, (source, result) = self.program.types, (op.used[0], op.results[0])
        if source in self._paths:
            self._paths[result] = self._paths[source]
        if not has_trait(op.name, Trait.TRANSFERS):
            memory = self.memory(source)
            # An element type changes where it is written: an input's in its reader, a computed value's in its producer.
            same = memory.input or types[source].dtype == types[result].dtype
            self._memories[result] = memory if same else self._own(result)
        return True

    def _own(self, value: Value) -> TensorStorage:
        dtype = np.dtype(self.program.types[value].dtype)
        return TensorStorage(dtype.name, float(dtype.itemsize), 0, input=False)

    def _read(self, op: Op, value: Value) -> int:
        """Returns the bytes that an op reads from DRAM: the unread bytes, and the bytes that exceed L1."""
        memory, elements = self.memory(value), size(self.program, value)
        if has_trait(op.name, Trait.MOVES):
            elements = min(elements, max((size(self.program, v) for v in op.results), default=0))
        wanted = memory.bytes(elements)
        first = min(wanted, memory.unread)
        memory.unread -= first
        return first + max(0, wanted - first - self.machine.l1_bytes)

    def _write(self, op: Op, value: Value) -> int:
        if op.name == "ttnn.constant":
            # Constants lie in DRAM from the start.
            return 0
        memory = self._memories[value] = self._own(value)
        return max(0, memory.bytes(size(self.program, value)) - self.machine.l1_bytes)

    def _send(self, entry: OpMoves, moved: Bytes) -> None:
        for move in entry.moves:
            op, axis = entry.op, move.axes[0]
            count = self.program.mesh[axis]
            ring = self.machine.is_ring(count)
            itemsize = np.dtype(self.program.types[op.used[0]].dtype).itemsize
            scale = min(1, self.memory(op.used[0]).width / itemsize)
            if move.kind == SEND:
                sent, least = move.bytes, entry.carried[ring]
            else:
                sent = move.sent / (move.groups * move.group_size)
                # On a ring, half of it goes either way. On a line, partial sums run one way while finished ones run
                # the other.
                least = sent / 2 if ring else sent
                sizes = {size(self.program, v) for v in (op.used[0], op.results[0])}
                if has_trait(op.name, Trait.REDUCES) and len(sizes) == 1 and not ring:
                    least = move.bytes
            moved.links[axis] = math.ceil(sent * scale)
            moved.busiest[axis] = math.ceil(least * scale)


def _is_free(op: Op) -> bool:
    traits = Trait.LAYOUT, Trait.VIEW, Trait.TRANSFERS
    return op.name == "ttnn.typecast" or any(has_trait(op.name, trait) for trait in traits)


def _in_place(op: Op) -> int | None:
    """Returns the index of the operand that an op overwrites without reading it, or None."""
    definition = ttnn_definition(op.name)
    number = definition and definition.in_place
    return number if number is not None and number < len(op.used) else None
