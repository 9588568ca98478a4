"""Reads a graph capture of ttnn: the operations that ran, and the buffers that they allocated and freed."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

Buffer = tuple[int, str, int, int]
"""An allocation (1) or a release (-1), the memory, the address, and the bytes per bank."""
_CORES = re.compile(r"\[(\d+)-(\d+) - (\d+)-(\d+)\]")


class Capture(NamedTuple):
    """The operations and buffers of some calls of ttnn.

    Attributes:
      operations: how often each device operation ran.
      buffers: the buffers on the devices that were allocated and freed, in order.
      kernel: the largest size of one kernel's buffers in the L1 of one core, in bytes; 0 unless planned only.
    """

    operations: Counter[str]
    buffers: list[Buffer]
    kernel: int


class OwnResult(NamedTuple):
    """A call that allocates its result in DRAM, and frees whatever else it allocates.

    Attributes:
      operations: how often each device operation ran.
      peak: the most bytes per bank that its buffers take together.
      size: the bytes per bank of its result.
      kernel: as of `Capture`.
    """

    operations: Counter[str]
    peak: int
    size: int
    kernel: int


def read_own_result(done: Capture, address: int) -> OwnResult | None:
    """Returns the call that returned a tensor at an address; None if it is of another kind."""
    live, now, peak = dict[int, int](), 0, 0
    for sign, memory, place, size in done.buffers:
        if memory != "DRAM" or (sign < 0 and live.pop(place, None) is None):
            return None
        if sign > 0:
            live[place] = size
        now += sign * size
        peak = max(peak, now)
    return OwnResult(done.operations, peak, now, done.kernel) if list(live) == [address] else None


def read_capture(nodes: Iterable[Mapping[str, Any]]) -> Capture:
    """Returns the record of a captured graph."""
    done, kernel = Capture(Counter(), [], 0), 0
    open_functions: list[str] = []
    executed: set[int] = set()
    cores: list[tuple[int, str]] = []
    for node in nodes:
        node_type, params = node["node_type"], node["params"]
        if node_type == "function_start":
            open_functions.append(params["name"])
            executed.discard(len(open_functions))
        elif node_type == "function_end" and open_functions:
            open_functions.pop()
        elif node_type == "program_execution" and len(open_functions) not in executed:
            executed.add(len(open_functions))
            done.operations[_operation(open_functions)] += 1
        elif node_type in ("buffer_allocate", "buffer_deallocate"):
            sign = 1 if node_type == "buffer_allocate" else -1
            done.buffers.append((sign, params["type"], int(params["address"]), int(params["max_size_per_bank"])))
        elif node_type in ("circular_buffer_allocate", "dataflow_buffer_allocate"):
            cores.append((int(params["size"]), params["core_range_set"]))
        elif node_type == "circular_buffer_deallocate_all":
            kernel, cores = max(kernel, _fullest(cores)), []
    return done._replace(kernel=max(kernel, _fullest(cores)))


def _operation(open_functions: list[str]) -> str:
    """Returns the name of the operation that runs: `Matmul` for MatmulDeviceOperation."""
    name = open_functions[-1] if open_functions else "unknown"
    return name.rpartition("::")[2].removesuffix("DeviceOperation")


def _fullest(buffers: list[tuple[int, str]]) -> int:
    """Returns the bytes of one program's buffers on its fullest core."""
    cores: Counter[tuple[int, int]] = Counter()
    for size, ranges in buffers:
        cores.update(dict.fromkeys(set(_cores(ranges)), size))
    return max(cores.values(), default=0)


def _cores(ranges: str) -> Iterator[tuple[int, int]]:
    for match in _CORES.finditer(ranges):
        left, top, right, bottom = map(int, match.groups())
        yield from ((x, y) for x in range(left, right + 1) for y in range(top, bottom + 1))
