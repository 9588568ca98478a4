"""Two ways to do one thing, timed in turns: what every figure of the table is made of.

The machine is shared and its clock moves, so a time alone says little; the ratio of the medians of rounds that were
run in turns says what one way costs beside the other.
"""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

Work = Callable[[], Any]


@dataclass
class Timed:
    """One way, run `repeat` times a round; a round's result is dropped outside of its time."""

    work: Work
    repeat: int = 1
    clock: Callable[[], float] = time.perf_counter
    seconds: list[float] = field(default_factory=list[float])

    def round(self) -> None:
        work, each = self.work, range(self.repeat)
        # The collector would run in the turns of the peer alone, because pytest-benchmark stops it in ours.
        collects = gc.isenabled()
        gc.disable()
        start = self.clock()
        for _ in each:
            made = work()
        self.seconds.append((self.clock() - start) / self.repeat)
        del made
        if collects:
            gc.enable()

    def median(self) -> float:
        return statistics.median(self.seconds)


def compare(
    benchmark: Any,
    row: str,
    ours: Work,
    peer: Work,
    *,
    target: float | None,
    peer_name: str,
    rounds: int = 15,
    repeat: int = 1,
    setup: Work = lambda: None,
    clock: Callable[[], float] = time.perf_counter,
) -> float:
    """Times two ways in turns, and records the ratio of their medians as a row of the table.

    Args:
      benchmark: the fixture of pytest-benchmark, which times our rounds.
      row: what is measured.
      ours, peer: the two ways; each waits for what it starts.
      target: the ratio to reach at most; None where there is none.
      peer_name: what the peer does.
      rounds, repeat: how often, and how often within a round: work of microseconds needs many.
      setup: run before each turn of either, outside of its time.
      clock: what tells the seconds, by default those that pass.
    """
    if benchmark.disabled:
        rounds = repeat = 1
    first, second = Timed(ours, repeat, clock), Timed(peer, repeat, clock)
    if not benchmark.disabled:
        for way in (second, first):
            setup()
            way.round()
            way.seconds.clear()

    def turn() -> None:
        setup()
        second.round()
        setup()

    benchmark.pedantic(first.round, setup=turn, rounds=rounds)
    ratio = first.median() / second.median()
    benchmark.extra_info.update(
        row=row,
        peer=peer_name,
        ratio=ratio,
        target=target,
        ours_seconds=first.median(),
        peer_seconds=second.median(),
        rounds=rounds,
    )
    return ratio
