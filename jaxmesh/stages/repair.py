"""Candidates of a repair, their compilations, and their costs."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from jaxmesh.analysis.diagnose import diagnose
from jaxmesh.analysis.repair import (
    Candidate,
    CompiledCost,
    Repair,
    RepairChange,
    Substitute,
    prove,
    search,
    with_open_results,
    with_whole,
)
from jaxmesh.analysis.repair.repair import PARTITION
from jaxmesh.analysis.upstream.comparison import their_side
from jaxmesh.errors import JaxmeshError
from jaxmesh.frontends.stablehlo.shardings import show
from jaxmesh.frontends.stablehlo.text import read_boundary
from jaxmesh.runtime.progress import progress
from jaxmesh.stages.one_region import OneRegion


class Repairable(Protocol):
    """A lowered program that `jaxmesh.stages.one_region` partitions."""

    @property
    def out_tree(self) -> Any:
        """The tree of the results."""
        ...

    def compile(self) -> Callable[..., Any]:
        """Compiles the program for the devices of its mesh."""
        ...

    def partitioned(self, substitutes: Sequence[Substitute] = ()) -> OneRegion:
        """Returns the program as one region."""
        ...


def repair_program(
    result: Any, lowered: Repairable, compile_text: Callable[[str], Any], inputs: tuple[Sequence[Any], int]
) -> Repair:
    """Returns the repair of a compiled program; see `UpstreamResult.repair`.

    Args:
      result: the `UpstreamResult` of the program.
      lowered: the program.
      compile_text: compiles the StableHLO text of another form of the program.
      inputs: the flat arguments, and the seed of random ones.
    """
    args, seed = inputs
    with progress("diagnosis"):
        before = diagnose(result, *args, seed=seed)

    def make(substitutes: Sequence[Substitute]) -> Candidate:
        with progress("partition"):
            return candidate_of(lowered, substitutes)

    def compiled(text: str) -> Any:
        with progress("compiling"):
            return compile_text(text)

    def judge(candidate: Candidate, made: Any) -> Any:
        with progress("proof"):
            asked = with_open_results(with_whole(result.source, candidate.whole), candidate.elsewhere)
            return prove(made, asked, args, seed)

    original = Candidate(result.source, lowered.compile() if before.verdict == "right" else None)
    found = search(before, result, make, compiled, judge, original)
    sides = {"before": result} if found.upstream is result else {"before": result, "after": found.upstream}
    costs = {when: cost for when, side in sides.items() if (cost := cost_of(side)) is not None}
    return dataclasses.replace(found, costs=costs)


def candidate_of(lowered: Repairable, substitutes: Sequence[Substitute] = ()) -> Candidate:
    """Returns a program as one region over all mesh axes.

    Raises:
      JaxmeshError: jaxmesh does not partition the program.
    """
    region, tree = lowered.partitioned(substitutes), lowered.out_tree
    changes = [RepairChange("", PARTITION, "")]
    changes += [RepairChange(line, f"{c.row}: {c.by}", "") for line, c in region.replaced]
    changes += [
        RepairChange("", f"result {i} is split by {show(region.out_rows[i])}, not {show(rows)}",
               "the compiler names the axes of a result in the order of the mesh alone")
        for i, rows in region.asked.items()
    ]  # fmt: skip
    changes += [
        RepairChange("", f"argument {i} is passed whole", "the compiler takes an argument that nothing reads whole")
        for i in region.whole
    ]
    return Candidate(region.text(tree), region.function(tree), tuple(changes), region.whole, tuple(region.asked))


def cost_of(result: Any) -> CompiledCost | None:
    """Returns the cost of a compiled program; None if it was refused, or its text is not read."""
    if result.refusal is not None:
        return None
    made: list[Any] = []

    def lower() -> Any:
        made[:] = made or [result.program("ttnn").lower()]
        return made[0]

    try:
        axes = read_boundary(result.text("shlo_compiler")).axes
        side = their_side(result.plugin, result.text("ttnn"), axes, lower, result.cluster, False)
    except JaxmeshError:
        return None
    if side.refusal:
        return None
    seconds = None if side.estimate is None else side.estimate.seconds
    return CompiledCost(side.sent, sum(side.operations.values()), seconds)
