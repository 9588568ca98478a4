"""The unsharded run of the program with global shapes, and its values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from jaxmesh.analysis.diagnose.source_lines import line
from jaxmesh.analysis.diagnose.stage import Array
from jaxmesh.frontends.stablehlo.shardings import Sharding
from jaxmesh.jaxprs.user_frames import PARSED


@dataclass(frozen=True, slots=True)
class ReferenceValue:
    """One value of the program.

    Attributes:
      op: the operation of StableHLO, or `argument`.
      source: the user's source line.
      operands: the numbers of the values that the operation reads.
      array: the global value.
      value: the value in the module.
      operation: the operation of the function there, which may be the region of it; None for an argument.
      manual: the mesh axes whose devices the region computes for.
      apart: those of them along which each device has a value of its own; they are the first dims of `array`.
    """

    op: str
    source: str
    operands: tuple[int, ...]
    array: Array
    value: Any
    operation: Any = None
    manual: tuple[str, ...] = ()
    apart: tuple[str, ...] = ()

    @property
    def place(self) -> str:
        """The user's source line; without one, the line of the text, as `-:line:column`."""
        found = self.operation is not None and PARSED.search(str(self.value.owner.location))
        return self.source or (f"-:{found[1]}:{found[2]}" if found else "")


@dataclass(slots=True)
class Rounds:
    """How often a loop goes round, None if it stays one operation; if asked, the numbers of the values that say before
    each iteration, and at last, if it goes on."""

    count: int | None = None
    tests: list[int] = field(default_factory=list[int])


@dataclass(slots=True)
class Reference:
    """The unsharded run of a program.

    Attributes:
      name: the name of its function.
      axes: the sizes of its mesh axes, by name; None if it has no mesh.
      arguments: the declared sharding of each argument; None where nothing is declared.
      results: the declared shardings of its results.
      outputs: the numbers of the values that it returns.
      values: the arguments, then the results of its operations in order.
      module: the module, in MLIR.
      block: the block of its operations.
      asked: the shardings of arguments and of results that the program fixes; None where it leaves a dim open.
      otherwise: one sentence for each argument and result that the partitioned program lays out in another way.
      rounds: by depth within other loops and branches, how often each loop goes round, if the values of loops are
        kept.
      longest: the most iterations of a loop, if they are known.
      unexercised: what no drawn arguments have exercised, as text.
    """

    name: str
    axes: Mapping[str, int] | None
    arguments: list[Sharding | None]
    results: list[Sharding | None]
    outputs: list[int] = field(default_factory=list[int])
    values: list[ReferenceValue] = field(default_factory=list[ReferenceValue])
    module: Any = None
    block: Any = None
    asked: Sequence[Sequence[Sharding | None]] = ((), ())
    otherwise: list[str] = field(default_factory=list[str])
    rounds: list[list[Rounds]] = field(default_factory=list[list[Rounds]])
    longest: int = 0
    unexercised: list[str] = field(default_factory=list[str])

    @property
    def inputs(self) -> list[Array]:
        """The arrays of its arguments."""
        return [v.array for v in self.values[: len(self.arguments)]]

    def manual_axes(self, source: str) -> tuple[str, ...]:
        """Returns the mesh axes of a region on a source line, along which each device computes on its own."""
        return next((v.manual for v in self.values if v.manual and line(v.source) == line(source)), ())


def is_entered(values: Sequence[ReferenceValue], number: int) -> bool:
    """Returns True if the loop that makes a value changes something that it carries, so that it goes round."""
    value = values[number].value
    results = list(value.owner.results)
    first = number - results.index(value)
    # The parts of devices are compared with what is split over them.
    pairs = zip(values[first : first + len(results)], values[number].operands, strict=False)
    sides = ([np.sort(v.array, axis=None) for v in (made, values[n])] for made, n in pairs)
    return not all(np.array_equal(a, b) for a, b in sides)
