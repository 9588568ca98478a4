"""An index of a flat program: the operation that computes each value, the constants, and how often values are read."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import numpy as np

from jaxmesh.dialects.attributes import is_uniform
from jaxmesh.dialects.program import Op, Program, Shape, Value
from jaxmesh.jaxprs.untyped import DType


@dataclass(slots=True)
class DefUse:
    """The operation behind each value of a program; it grows as operations are entered.

    Attributes:
      program: the operations so far.
      makers: the operation that computes each value.
    """

    program: Program
    makers: dict[Value, Op] = field(default_factory=dict[Value, Op], kw_only=True)

    def shape(self, value: Value) -> Shape:
        """Returns the shape of a value."""
        return self.program.types[value].shape

    def dtype(self, value: Value) -> DType:
        """Returns the element type of a value."""
        return self.program.types[value].dtype

    def enter(self, op: Op) -> None:
        """Records an operation, or its replacement."""
        for value in op.results:
            self.makers[value] = op

    def maker(self, value: Value, *names: str) -> Op | None:
        """Returns the operation that computes a value; None unless its name, without dialect, is among these."""
        op = self.makers.get(value)
        return op if op is not None and op.name.partition(".")[2] in names else None


def use_counts(program: Program) -> Counter[Value]:
    """Returns how often each value is read, or returned."""
    return Counter([*(v for op in program.ops for v in op.used), *(r.value for r in program.results)])


def created_number(op: Op) -> int | float | None:
    """Returns the number that fills the tensor that an operation creates; None unless it creates such a tensor.

    >>> created_number(Op("ttir.ones", (), (0,))), created_number(Op("ttir.add", (0, 1), (2,)))
    (1, None)
    """
    match op.name.partition(".")[2]:
        case "zeros":
            return 0
        case "ones":
            return 1
        case "full":
            return op.attributes["fill_value"]
        case "constant" if np.size(op.attributes["value"]) and is_uniform(np.asarray(op.attributes["value"])):
            return np.asarray(op.attributes["value"]).reshape(-1)[0].item()
        case _:
            return None
