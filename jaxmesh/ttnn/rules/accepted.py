"""The facts about elementwise functions that their definitions state."""

from __future__ import annotations

from collections.abc import Iterator

from jaxmesh.dialects.ttnn.data_types import BLOCKS, FLOATS
from jaxmesh.dialects.ttnn.elementwise import OPS
from jaxmesh.dialects.ttnn.forms import Forms


def accepted(name: str) -> frozenset[str]:
    """Returns the element types that the function of a definition accepts: also block floats, where it takes floats."""
    accepts = OPS[name].accepts
    assert isinstance(accepts, Forms), name
    types = accepts.takes[0].types
    return types | BLOCKS if types >= FLOATS else types


def by_definition(operands: int) -> Iterator[str]:
    """Yields the ops of so many operands whose result has the element type of the first, whatever the attributes."""
    for name, op in OPS.items():
        same = isinstance(op.accepts, Forms) and op.accepts.gives[0].type == "operand"
        if same and op.operands == (operands, operands) and op.python.callee == f"ttnn.{name}":
            yield name
