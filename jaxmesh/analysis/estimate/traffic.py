"""What the ops of a flat TTNN program move on one device: bytes to and from DRAM, over wires, and from the host.

Inputs and constants lie in DRAM, and whoever reads them first reads them there. What the program computes stays in L1,
but for the part that is larger than all of it. A tensor is stored as its reader wants it: changes of layout and element
type, and views, cost nothing by themselves.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from jaxmesh.analysis.estimate.arithmetic import size
from jaxmesh.analysis.estimate.rates import Machine
from jaxmesh.analysis.estimate.storage import WIDTHS
from jaxmesh.analysis.explain.ttnn_traffic import op_moves
from jaxmesh.dialects.definitions import has_trait, ttnn_definition
from jaxmesh.dialects.op import Trait
from jaxmesh.dialects.program import Op, Program, Value


@dataclass(slots=True)
class Memory:
    """The memory in which a tensor lies.

    Attributes:
      stored: the name of its element type.
      width: bytes per element.
      unread: the bytes in DRAM that no op has read.
      input: whether it came from outside of the program.
    """

    stored: str
    width: float
    unread: int
    input: bool

    def bytes(self, elements: int) -> int:
        """Returns the bytes of some elements."""
        return math.ceil(elements * self.width)


@dataclass(slots=True)
class Bytes:
    """What an op moves on one device.

    Attributes:
      dram: read and written.
      links: sent to other devices, by mesh axis.
      busiest: what the busiest direction of a neighbour's wires carries, by mesh axis, were it one neighbour.
      host: from and to the host.
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
        self._memories: dict[Value, Memory] = {}

    def memory(self, value: Value) -> Memory:
        """Returns the memory of a value; one that no op has written is an input."""
        if value not in self._memories:
            kind = self.program.types[value]
            name = np.dtype(kind.dtype).name
            if name in WIDTHS:
                path = self._paths.get(value)
                found = () if path is None else (n for p, n in self.stored.items() if re.search(p, path))
                name = next(iter(found), name)
            width = WIDTHS.get(name, float(np.dtype(kind.dtype).itemsize))
            memory = self._memories[value] = Memory(name, width, 0, input=True)
            memory.unread = memory.bytes(size(self.program, value))
        return self._memories[value]

    def move(self, op: Op) -> Bytes:
        """Returns what the next op moves."""
        types, done = self.program.types, Bytes()
        given = [v for v in op.used if types[v].kind == "tensor"]
        to_host = all(types[v].host for v in op.results)
        crossing = (v for v in given if types[v].host != to_host)
        done.host = sum(self.memory(v).bytes(size(self.program, v)) for v in crossing)
        if self._share(op) or to_host:
            return done
        into = _in_place(op)
        for number, value in enumerate(given):
            done.dram += self._read(op, value) if number != into else 0
        self._send(op, done)
        if into is not None and self.memory(given[into]).input:
            # What lies in DRAM is written there.
            memory = self.memory(given[into])
            done.dram += memory.bytes(min(size(self.program, v) for v in given[:2]))
            self._memories.update((v, memory) for v in op.results)
            return done
        for value in op.results:
            done.dram += self._write(op, value)
        return done

    def _share(self, op: Op) -> bool:
        """Gives the results of an op that computes nothing their operand's memory; returns False for any other op."""
        if not op.used or not op.results or not _is_free(op):
            return False
        types, (source, result) = self.program.types, (op.used[0], op.results[0])
        if source in self._paths:
            self._paths[result] = self._paths[source]
        if not has_trait(op.name, Trait.TRANSFERS):
            memory = self.memory(source)
            # A type changes where it is written: an input's by its reader, any other's by who computes it.
            same = memory.input or types[source].dtype == types[result].dtype
            self._memories[result] = memory if same else self._own(result)
        return True

    def _own(self, value: Value) -> Memory:
        kind = np.dtype(self.program.types[value].dtype)
        return Memory(kind.name, float(kind.itemsize), 0, input=False)

    def _read(self, op: Op, value: Value) -> int:
        """Returns the bytes that an op reads from DRAM: those not read yet, else those that L1 cannot keep."""
        memory, elements = self.memory(value), size(self.program, value)
        if has_trait(op.name, Trait.MOVES):
            elements = min(elements, max((size(self.program, v) for v in op.results), default=0))
        wanted = memory.bytes(elements)
        first = min(wanted, memory.unread)
        memory.unread -= first
        return first + max(0, wanted - first - self.machine.l1_bytes)

    def _write(self, op: Op, value: Value) -> int:
        if op.name == "ttnn.constant":
            # It lies in DRAM from the start.
            return 0
        memory = self._memories[value] = self._own(value)
        return max(0, memory.bytes(size(self.program, value)) - self.machine.l1_bytes)

    def _send(self, op: Op, done: Bytes) -> None:
        for move in op_moves(op, self.program):
            axis = move.axes[0]
            itemsize = np.dtype(self.program.types[op.used[0]].dtype).itemsize
            scale = self.memory(op.used[0]).width / itemsize
            sent = math.ceil(move.sent * scale / (move.groups * move.group_size))
            payload = math.ceil(move.bytes * scale)
            if move.kind == "point_to_point":
                sent = payload
            done.links[axis] = done.links.get(axis, 0) + sent
            # On a line, partial sums run one way while finished ones run the other.
            least = payload if move.kind == "all_reduce" and not self.machine.is_ring(self.program.mesh[axis]) else sent
            done.busiest[axis] = done.busiest.get(axis, 0) + least


def _is_free(op: Op) -> bool:
    if has_trait(op.name, Trait.LAYOUT) or op.name == "ttnn.typecast":
        return True
    return has_trait(op.name, Trait.VIEW) or has_trait(op.name, Trait.TRANSFERS)


def _in_place(op: Op) -> int | None:
    """Returns the number of the operand that an op writes to, of which it reads nothing."""
    definition = ttnn_definition(op.name)
    number = None if definition is None else definition.in_place
    return number if number is not None and number < len(op.used) else None
