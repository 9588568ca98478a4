"""Candidates of a repair, their compilations, and their costs."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from jaxmesh.analysis.diagnose import Diagnosis
from jaxmesh.analysis.machines import DEFAULT
from jaxmesh.analysis.repair import (
    Candidate,
    CompiledCost,
    LineChange,
    Repair,
    RepairChange,
    Substitute,
    diagnose_further,
    prove,
    search,
    with_open_results,
    with_whole,
)
from jaxmesh.analysis.repair.repair import PARTITION
from jaxmesh.analysis.upstream.comparison import CompiledSide, our_side
from jaxmesh.dialects.program import Program
from jaxmesh.dialects.signature import Boundary
from jaxmesh.frontends.stablehlo.shardings import show
from jaxmesh.jaxprs.compat import as_abstract
from jaxmesh.runtime.progress import progress
from jaxmesh.stages.one_region import OneRegion
from jaxmesh.stages.whole_program import WholeText


class Repairable(Protocol):
    """A lowered program that `jaxmesh.stages.one_region` partitions."""

    @property
    def out_tree(self) -> Any:
        """The tree of the results."""
        ...

    @property
    def boundary(self) -> Boundary:
        """The signature of the program."""
        ...

    def default_program(self) -> Program:
        """Returns the flat program."""
        ...

    def function(self) -> Callable[..., Any]:
        """Returns the program as a function of JAX."""
        ...

    def global_program(self) -> tuple[WholeText | None, Callable[..., Any]]:
        """Returns the program with global shapes, or None, and the class of programs."""
        ...

    def partitioned(self, substitutes: Sequence[Substitute] = ()) -> OneRegion:
        """Returns the program as one region."""
        ...


class _CompilerSteps:
    """The steps of a search; see `jaxmesh.analysis.repair.repair.RepairSteps`."""

    def __init__(
        self, result: Any, lowered: Repairable, compile_text: Callable[[str], Any], args: Sequence[Any], seed: int
    ) -> None:
        self.result, self.lowered, self.compile_text, self.args, self.seed = result, lowered, compile_text, args, seed
        self.written, _ = lowered.global_program()
        self.program = None if self.written is None else self.written.opened()

    def primitives(self, line: str) -> frozenset[str]:
        """Returns the names of JAX's primitives on a source line."""
        return frozenset() if self.program is None else self.program.primitives(line)

    def of_lines(self, changes: Mapping[str, LineChange]) -> Candidate | None:
        """Returns the program with changes at some source lines; None if no operation of the last line changes."""
        lowered, mesh = self.lowered, as_abstract(self.lowered.boundary.mesh)
        made = None if self.program is None else self.program.changed(mesh, changes)
        if made is None or not any(line == list(changes)[-1] for line, _ in made.done):
            return None
        done = tuple(RepairChange(line, what, "") for line, what in made.done)
        return Candidate(self._located(made.text()), made.function(lowered.boundary, lowered.out_tree), done)

    def unchanged(self) -> Candidate:
        """Returns the user's program."""
        lowered = self.lowered
        made = None if self.program is None else self.program.function(lowered.boundary, lowered.out_tree)
        return Candidate(self.result.source, made or lowered.function())

    def partitioned(self, substitutes: Sequence[Substitute]) -> Candidate:
        """Returns the program partitioned by jaxmesh, with substitutes in place of some operations."""
        with progress("partition"):
            made = candidate_of(self.lowered, substitutes)
        return dataclasses.replace(made, text=self._located(made.text))

    def compile(self, text: str) -> Any:
        """Compiles a StableHLO text."""
        with progress("compiling"):
            return self.compile_text(text)

    def _located(self, text: str) -> str:
        return text if self.written is None else self.written.located(text)

    def judge(self, candidate: Candidate, made: Any) -> Diagnosis:
        """Compares a compiled candidate with the user's program."""
        with progress("proof"):
            asked = with_open_results(with_whole(self.result.source, candidate.whole), candidate.elsewhere)
            return prove(made, asked, self.args, self.seed)

    def cost(self, made: Any) -> tuple[float, float]:
        """Returns the bytes that all devices send in a compiled candidate, and its least time in seconds; without one,
        the same of jaxmesh's own partition."""
        if made is not None:
            cost = cost_of(made)
        else:
            side = our_side(self.lowered, self.result.cluster or DEFAULT, judge=False)
            cost = None if side.refusal else _cost_of_side(side)
        return (math.inf, math.inf) if cost is None else (cost.sent, cost.seconds or 0)


def repair_program(
    result: Any, lowered: Repairable, compile_text: Callable[[str], object], inputs: tuple[Sequence[object], int]
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
        before = diagnose_further(result, args, seed)
    found = search(
        before, result, steps := _CompilerSteps(result, lowered, compile_text, args, seed), steps.unchanged()
    )
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
    side = result.side()
    return None if side.refusal else _cost_of_side(side)


def _cost_of_side(side: CompiledSide) -> CompiledCost:
    seconds = None if side.estimate is None else side.estimate.seconds
    return CompiledCost(side.sent, sum(side.operations.values()), seconds)
