"""One value of the program with global shapes."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from jaxmesh.analysis.diagnose.stage import Array

_PARSED = re.compile(r'"-":(\d+):(\d+)')


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
        found = self.operation is not None and _PARSED.search(str(self.value.owner.location))
        return self.source or (f"-:{found[1]}:{found[2]}" if found else "")
