"""The value classes of TTNN's distribution API: shapes, placements, mapper and composer configs.

They are frozen and hashable, so the same objects serve as parameters of traced equations and as arguments of eager
calls. Names, argument order and defaults equal `ttnn`'s (tt-metal, `ttnn/core/distributed`).
"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, SupportsIndex, overload

from jaxmesh.errors import ArgumentTypeError, VerifyError
from jaxmesh.validate import as_tuple, entries, quote


def integers(what: str, values: Iterable[Any]) -> tuple[int, ...]:
    """Returns values as plain integers; `what` names their owner in the message.

    Raises:
      ArgumentTypeError: a value is not an integer, or is a bool.
    """
    if isinstance(values, (str, bytes)):
        raise ArgumentTypeError(f"{what} takes integers, got {quote(values)}.")
    # User code may run here, and fail: for a deleted array, or for a value of a finished trace.
    try:
        items = entries(values)
        if any(isinstance(v, bool) for v in items):
            raise TypeError
        return tuple(operator.index(v) for v in items)
    except Exception:
        raise ArgumentTypeError(f"{what} takes integers, got {quote(values)}.") from None


class _IntegerTuple(Sequence[int]):
    """A hashable sequence of integers that accepts `X(2, 4)` and `X([2, 4])`."""

    __slots__ = ("_values",)

    def __init__(self, *values: SupportsIndex | Iterable[SupportsIndex]) -> None:
        name = type(self).__name__
        first = values[0] if len(values) == 1 else values
        if isinstance(first, SupportsIndex):
            first = (first,)
        self._values = integers(name, first)

    @overload
    def __getitem__(self, index: int) -> int: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[int, ...]: ...
    def __getitem__(self, index: int | slice) -> int | tuple[int, ...]:
        return self._values[index]

    def __len__(self) -> int:
        return len(self._values)

    def __iter__(self) -> Iterator[int]:
        return iter(self._values)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, _IntegerTuple):
            return type(self) is type(other) and self._values == other._values
        return self._values == other if isinstance(other, tuple) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._values)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({list(self._values)})"

    def dims(self) -> int:
        """Returns the number of axes."""
        return len(self._values)


class MeshShape(_IntegerTuple):
    """The shape of a device mesh, row-major: `MeshShape(2, 4)` or `MeshShape([2, 4])`.

    Raises:
      ArgumentTypeError: an entry is not an integer.
      VerifyError: no entries, or an entry below 1.

    >>> MeshShape(2, 4).mesh_size(), list(MeshShape([2, 4]))
    (8, [2, 4])
    """

    __slots__ = ()

    def __init__(self, *values: SupportsIndex | Iterable[SupportsIndex]) -> None:
        super().__init__(*values)
        if not self._values or min(self._values) < 1:
            raise VerifyError(f"MeshShape needs at least one axis and every axis at least 1, got {self._values}.")

    def mesh_size(self) -> int:
        """Returns the number of devices."""
        return math.prod(self._values)


class MeshCoordinate(_IntegerTuple):
    """The mesh coordinate of one device: `MeshCoordinate(0, 3)` or `MeshCoordinate((0, 3))`.

    >>> MeshCoordinate(1, 2)[1]
    2
    """

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class PlacementShard:
    """A placement that shards tensor dim `dim` along its mesh axis; a negative dim counts from the end."""

    dim: int

    def __post_init__(self) -> None:
        (value,) = integers("PlacementShard", (self.dim,))
        object.__setattr__(self, "dim", value)

    def __repr__(self) -> str:
        return f"PlacementShard({self.dim})"


@dataclass(frozen=True, slots=True)
class PlacementReplicate:
    """A placement that replicates the tensor along its mesh axis."""

    def __repr__(self) -> str:
        return "PlacementReplicate()"


Placement = PlacementShard | PlacementReplicate


def _shape(value: MeshShape | Sequence[int] | None) -> MeshShape | None:
    return value if value is None or isinstance(value, MeshShape) else MeshShape(value)


@dataclass(frozen=True, slots=True, init=False)
class MeshMapperConfig:
    """The distribution of a host tensor by `distribute_tensor`: one placement per axis of the distribution shape.

    The distribution shape is `mesh_shape_override`, else the shape of the mesh.

    Raises:
      ArgumentTypeError: a placement is neither `PlacementShard` nor `PlacementReplicate`.

    >>> MeshMapperConfig([PlacementShard(0), PlacementReplicate()], MeshShape(2, 4))
    MeshMapperConfig([PlacementShard(0), PlacementReplicate()], MeshShape([2, 4]))
    """

    placements: tuple[Placement, ...]
    mesh_shape_override: MeshShape | None

    def __init__(
        self, placements: Iterable[Placement], mesh_shape_override: MeshShape | Sequence[int] | None = None
    ) -> None:
        entries = as_tuple(
            "MeshMapperConfig", placements, "a list of PlacementShard and PlacementReplicate as placements"
        )
        for p in entries:
            if not isinstance(p, (PlacementShard, PlacementReplicate)):
                raise ArgumentTypeError(
                    f"MeshMapperConfig takes PlacementShard or PlacementReplicate as placements, got {quote(p)}."
                )
        object.__setattr__(self, "placements", entries)
        object.__setattr__(self, "mesh_shape_override", _shape(mesh_shape_override))

    def __repr__(self) -> str:
        tail = "" if self.mesh_shape_override is None else f", {self.mesh_shape_override!r}"
        return f"MeshMapperConfig({list(self.placements)}{tail})"


@dataclass(frozen=True, slots=True, init=False)
class MeshComposerConfig:
    """The aggregation of shards by `aggregate_tensor`: one tensor dim per axis of the distribution shape.

    Raises:
      ArgumentTypeError: a dim is not an integer.

    >>> MeshComposerConfig([0, 1], MeshShape(2, 1))
    MeshComposerConfig([0, 1], MeshShape([2, 1]))
    """

    dims: tuple[int, ...]
    mesh_shape_override: MeshShape | None

    def __init__(self, dims: Iterable[int], mesh_shape_override: MeshShape | Sequence[int] | None = None) -> None:
        object.__setattr__(self, "dims", integers("MeshComposerConfig", dims))
        object.__setattr__(self, "mesh_shape_override", _shape(mesh_shape_override))

    def __repr__(self) -> str:
        tail = "" if self.mesh_shape_override is None else f", {self.mesh_shape_override!r}"
        return f"MeshComposerConfig({list(self.dims)}{tail})"
