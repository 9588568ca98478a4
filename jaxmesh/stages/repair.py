"""Repairs a program: makes its candidates, compiles them, and compares each with the program unsharded."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from jaxmesh.analysis.diagnose import diagnose
from jaxmesh.analysis.repair import Candidate, Change, Composition, Cost, Repair, prove, search, with_whole
from jaxmesh.analysis.repair.repair import PARTITION
from jaxmesh.analysis.upstream.comparison import their_side
from jaxmesh.errors import JaxmeshError
from jaxmesh.frontends.stablehlo.shardings import show
from jaxmesh.frontends.stablehlo.text import read_boundary
from jaxmesh.runtime.progress import progress
from jaxmesh.stages.jax_lowered import JaxLowered
from jaxmesh.stages.upstream import PARTITIONED, UpstreamResult, ask_upstream

NO_TENSORS = frozenset[int](), frozenset[int]()


def repair_program(result: UpstreamResult[Any], lowered: JaxLowered, args: Sequence[Any], seed: int) -> Repair:
    """Repairs a compiled program for flat arguments; see `UpstreamResult.repair`."""
    with progress("diagnosis"):
        before = diagnose(result, *args, seed=seed)

    def make(compositions: Sequence[Composition]) -> Candidate:
        with progress("partition"):
            return candidate_of(lowered, compositions)

    def compiled(text: str) -> UpstreamResult[Any]:
        with progress("compiling"):
            return ask_upstream(text, result.make, NO_TENSORS, lowered, **result.asked)

    def judge(candidate: Candidate, made: UpstreamResult[Any]) -> Any:
        with progress("proof"):
            return prove(made, with_whole(result.source, candidate.whole), args, seed)

    original = Candidate(result.source, lowered.compile() if before.verdict == "right" else None)
    found = search(before, result, make, compiled, judge, original)
    sides = {"before": result} if found.upstream is result else {"before": result, "after": found.upstream}
    costs = {when: cost for when, side in sides.items() if (cost := cost_of(side)) is not None}
    return dataclasses.replace(found, costs=costs)


def candidate_of(lowered: JaxLowered, compositions: Sequence[Composition] = ()) -> Candidate:
    """Returns a program as one region over all mesh axes.

    Raises:
      JaxmeshError: jaxmesh does not partition the program.
    """
    region, tree = lowered.partitioned(compositions), lowered.out_tree
    changes = [Change("", PARTITION, "")]
    changes += [Change(line, f"{c.row}: {c.by}", "") for line, c in region.replaced]
    changes += [
        Change("", f"result {i} is split by {show(region.out_rows[i])}, not {show(rows)}",
               "the compiler names the axes of a result in the order of the mesh alone")
        for i, rows in region.asked.items()
    ]  # fmt: skip
    changes += [
        Change("", f"argument {i} is passed whole", "the compiler takes an argument that nothing reads whole")
        for i in region.whole
    ]
    return Candidate(region.text(tree), region.function(tree), tuple(changes), region.whole)


def cost_of(result: UpstreamResult[Any]) -> Cost | None:
    """Returns the cost of a compiled program; None if it was refused, or its text is not read."""
    if result.refusal is not None:
        return None
    made: list[Any] = []

    def lower() -> Any:
        made[:] = made or [result.program("ttnn").lower()]
        return made[0]

    try:
        axes = read_boundary(result.text(PARTITIONED)).axes
        side = their_side(result.plugin, result.text("ttnn"), axes, lower, result.cluster, False)
    except JaxmeshError:
        return None
    if side.refusal:
        return None
    seconds = None if side.estimate is None else side.estimate.seconds
    return Cost(side.sent, sum(side.operations.values()), seconds)
