"""The result of a pattern: one operation that replaces several."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from jaxmesh.dialects.attributes import Attributes
from jaxmesh.dialects.program import Op, Shape
from jaxmesh.passes.fusion.dataflow import Node, Operand


@dataclass(frozen=True, slots=True)
class Group:
    """One operation of TTIR.

    Attributes:
      name: without the dialect.
      operands: with the shapes in which it takes them; None for an absent one.
      attributes: of the operation.
      shape: of its result, if it is reshaped afterwards; None for the shape of the last operation.
    """

    name: str
    operands: tuple[Operand | None, ...]
    attributes: Attributes = field(default_factory=dict[str, object])
    shape: Shape | None = None


Pattern = Callable[[Node], Group | Sequence[Op] | None]
"""Matches a group from its last operation; returns what replaces that."""
