"""What a pattern finds: one operation in the place of several."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from jaxmesh.dialects.program import Shape
from jaxmesh.passes.fusion.dataflow import Node, Operand


@dataclass(frozen=True, slots=True)
class Group:
    """One operation of TTIR.

    Attributes:
      name: without the dialect.
      operands: with the shapes in which it takes them; None for one that is left out.
      attributes: of the operation.
      shape: of its result, where it is reshaped after; None where it is the shape of what it stands for.
    """

    name: str
    operands: tuple[Operand | None, ...]
    attributes: Mapping[str, Any] = field(default_factory=dict[str, Any])
    shape: Shape | None = None


Pattern = Callable[[Node], Group | None]
"""Looks from the last operation of what may be a group."""
