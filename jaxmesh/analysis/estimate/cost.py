"""The cost of every op of a flat TTNN program on one device, and a lower bound of its time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from jaxmesh.analysis.account import Move, OpMoves, entries
from jaxmesh.analysis.account.sends import is_endless
from jaxmesh.analysis.account.work import Work, work
from jaxmesh.analysis.estimate.storage import Bytes, Traffic
from jaxmesh.analysis.machines import L1, Machine, Rate
from jaxmesh.dialects.definitions import ttnn_definition
from jaxmesh.dialects.program import LOOP, Program
from jaxmesh.errors import MissingRuleError
from jaxmesh.jaxprs.source_locations import split_scope
from jaxmesh.validate import quote

_ENGINE = "tt-metal, tech_reports/matrix_engine/matrix_engine.md"

PRODUCT = Rate(4096, "FLOPs per cycle and core at LoFi", _ENGINE)
"""A product of 8x16 by 16x16 in a cycle; a multiplication and an addition count as two."""
REDUCTION = Rate(256, "elements per cycle and core", _ENGINE)
ELEMENTWISE = Rate(128, "operations per cycle and core", _ENGINE)
_DISPATCH = "tt-metal, tests/tt_metal/tt_metal/perf_microbenchmark/dispatch"
DISPATCH: Mapping[str, Rate] = {
    "wormhole_b0": Rate(2.58, "µs per program", f"{_DISPATCH}/pgm_dispatch_golden.json"),
    "blackhole": Rate(1.85, "µs per program", f"{_DISPATCH}/pgm_dispatch_blackhole_golden.json"),
}
"""By architecture: the time from one empty program of a trace to the next."""
PHASES: Mapping[str, int] = {"LoFi": 1, "HiFi2": 2, "HiFi3": 3, "HiFi4": 4}
"""By math fidelity: how often the engine passes over a product, as the source of `PRODUCT` says."""


def sources(machine: Machine) -> list[str]:
    """Returns the rates of a machine as lines of text."""
    rates = {
        "cores": machine.cores, "clock": machine.clock, "products": PRODUCT, "reductions": REDUCTION,
        "elementwise": ELEMENTWISE, "L1": L1, "DRAM": machine.dram, "a wire, in one direction": machine.wire,
    }  # fmt: skip
    return [f"{name}: {rate}" for name, rate in rates.items() if rate]


COMPUTE, DRAM, LINKS = "compute", "DRAM", "links"
PARTS: Sequence[str] = (COMPUTE, DRAM, LINKS)
"""The parts of a device that bound an op."""


@dataclass(frozen=True, slots=True)
class OpCost:
    """The cost of one op on one device, all executions together, and the lower bound of its time.

    An op of a loop has a cost for the first iteration, and one for all others, which find what the first has read.

    Attributes:
      op: the name of the op, without the dialect.
      line: the source location; empty if unknown.
      flops: the arithmetic operations; a multiplication and an addition are two.
      dram_bytes: the bytes read from and written to DRAM.
      link_bytes: the bytes sent to other devices, by mesh axis; of sends, which run on different devices, those that
        each adds to the busiest device.
      busiest_bytes: the bytes over the links to one neighbour, in the busier direction, by mesh axis.
      moves: its moves, as `explain` has them.
      host_bytes: the bytes from and to the host, which take no time in the estimate.
      fidelity: the math fidelity of a matrix product; empty for other ops.
      times: the lower bounds in seconds of `"compute"`, `"DRAM"` and `"links"`.
      count: the number of executions.
      scope: the `jax.named_scope` blocks around it, such as `block/dense_1`.
      exact: False in a loop whose end only the devices know, which counts as one iteration.
    """

    op: str
    line: str
    flops: int
    dram_bytes: int
    link_bytes: Mapping[str, int]
    busiest_bytes: Mapping[str, int]
    moves: tuple[Move, ...]
    host_bytes: int
    fidelity: str
    times: Mapping[str, float]
    count: int = 1
    exact: bool = True
    scope: str = ""

    @property
    def seconds(self) -> float:
        """The lower bound: the time of the slowest part, while the other parts work at the same time."""
        return max(self.times.values())

    @property
    def bound_by(self) -> str:
        """The part that bounds it: `"compute"`, `"DRAM"` or `"links"`; empty for an op that takes 0 seconds."""
        return max(self.times, key=lambda part: self.times[part]) if self.seconds else ""


def costs(program: Program, machine: Machine, stored: Mapping[str, str], fidelity: str | None) -> Iterator[OpCost]:
    """Yields the costs of the ops that compute or move anything.

    Raises:
      MissingRuleError: an op that has no definition.
    """
    yield from _costs(Traffic(program, machine, stored), fidelity, 1, True)


def _costs(traffic: Traffic, fidelity: str | None, times: int, exact: bool) -> Iterator[OpCost]:
    program, machine = traffic.program, traffic.machine
    for entry in entries(program, times, exact, nested=False):
        op = entry.op
        if not op.results or op.name == "ttnn.get_device":
            continue
        if op.name == LOOP:
            for inside, trips in traffic.iterations(op):
                yield from _costs(inside, fidelity, times * trips, exact and not is_endless(op))
            continue
        if ttnn_definition(op.name) is None:
            where = f" at {op.line}" if op.line else ""
            raise MissingRuleError(
                f"estimate knows the ops of jaxmesh/dialects/ttnn, got {quote(op.name)}{where}; neither its "
                "arithmetic nor its bytes are known. Define it there, or leave it out of the program."
            )
        used = [traffic.memory(v).stored for v in op.used[:2] if program.types[v].kind == "tensor"]
        moved, arithmetic = traffic.move(entry), Work()
        if not all(program.types[v].host for v in op.results):
            arithmetic = work(op, program)
        passes = fidelity or default_fidelity(used) if arithmetic.products else ""
        yield _cost(entry, arithmetic, moved, passes, machine)


def default_fidelity(stored: list[str]) -> str:
    """Returns ttnn's default math fidelity for products of these element types.

    >>> default_fidelity(["bfloat16", "bfloat8_b"]), default_fidelity(["bfloat8_b", "bfloat4_b"])
    ('HiFi2', 'LoFi')
    """
    if all(name.endswith("_b") for name in stored):
        return "LoFi"
    return "HiFi4" if all(name == "float32" for name in stored) else "HiFi2"


def _cost(entry: OpMoves, arithmetic: Work, moved: Bytes, fidelity: str, machine: Machine) -> OpCost:
    # The units of the engine may work at the same time.
    compute = max(
        arithmetic.products * PHASES.get(fidelity, 1) / machine.per_second(PRODUCT),
        arithmetic.reduced / machine.per_second(REDUCTION),
        arithmetic.elementwise / machine.per_second(ELEMENTWISE),
    )
    links = 0.0
    for count in moved.busiest.values():
        assert machine.wire
        links += count / (machine.wires * machine.wire.value)
    n, times = entry.times, {COMPUTE: compute, DRAM: moved.dram / machine.dram.value, LINKS: links}
    sent, busiest = ({axis: n * size for axis, size in x.items()} for x in (moved.links, moved.busiest))
    bound = n * arithmetic.flops, n * moved.dram, sent, busiest, entry.moves, n * moved.host, fidelity
    line, scope = split_scope(entry.op.line)
    bounds = {part: n * seconds for part, seconds in times.items()}
    return OpCost(entry.op.name.removeprefix("ttnn."), line, *bound, bounds, n, entry.exact, scope)
