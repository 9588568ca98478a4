"""Device ids, axes and groups of collectives; device ids are row-major over the mesh."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import jax
import numpy as np

from jaxmesh.dialects.op import Call, Shape
from jaxmesh.dialects.ttir.helpers import jnp, lax
from jaxmesh.sharding.shard_attributes import position_of

Table = np.ndarray[Any, np.dtype[np.int64]]


def axis_name(call: Call, index: int) -> str:
    """Checks the number of a mesh axis, and returns its name."""
    names = list(call.mesh)
    if not 0 <= index < len(names):
        mesh = show_mesh(call)
        raise call.rule_error(f"cluster_axis = {index} is no axis of the mesh {mesh}; allowed: 0 to {len(names) - 1}")
    return names[index]


def show_mesh(call: Call) -> str:
    """Returns the mesh as messages show it."""
    return ", ".join(f"{name}={size}" for name, size in call.mesh.items())


def check_split(call: Call, shape: Shape, dim: int, count: int, over: str) -> None:
    """Checks that a dim divides into `count` equal pieces."""
    rule = f"dim {dim} of size {shape[dim]} does not divide by {count}, {over}"
    call.require(shape[dim] % count == 0, rule)


def row_major_index(axes: Sequence[str], sizes: Sequence[int]) -> jax.Array:
    """Returns this device's position in row-major order over some mesh axes."""
    index = jnp.int32(0)
    for axis, size in zip(axes, sizes, strict=True):
        if size > 1:
            index = index * size + lax.axis_index(axis)
    return index


def read_ids(call: Call, name: str, width: int | None = None) -> list[Shape]:
    """Reads and checks a table of device ids, an attribute that is an array or lists."""
    value = call[name]
    given: Any = value
    if isinstance(value, np.ndarray):
        # MLIR prints equal ids as one number; only a single row of them names no device twice.
        given = [[value.item()] * (width or 1)] if value.ndim == 0 else cast("Table", value).tolist()
    good = isinstance(given, (list, tuple)) and all(isinstance(r, (list, tuple)) for r in _items(given))
    call.require(good, f"{name} is a table of device ids, got {value!r}")
    rows = [tuple(int(i) for i in _items(r)) for r in _items(given)]
    lengths = sorted({len(r) for r in rows})
    call.require(len(lengths) < 2, f"the rows of {name} have different lengths: {lengths}")
    if width is not None and lengths:
        call.require(lengths == [width], f"a row of {name} has {width} entries, got {lengths[0]}")
    count = math.prod(call.mesh.values())
    for i in (i for r in rows for i in r):
        rule = f"{name} names device {i}, but the mesh {show_mesh(call)} has the devices 0 to {count - 1}"
        call.require(0 <= i < count, rule)
    return rows


def _items(value: Any) -> list[Any]:
    return list(value)


def check_unique(call: Call, name: str, ids: Sequence[int]) -> None:
    """Checks that no device is named twice."""
    twice = sorted({i for i in ids if list(ids).count(i) > 1})
    call.require(not twice, f"{name} names device {', '.join(map(str, twice))} twice: {list(ids)}")


@dataclass(frozen=True, slots=True)
class Groups:
    """Groups of devices that communicate among themselves.

    Attributes:
      rows: the device ids of each group.
      names: all mesh axes, and their sizes.
      axes: positions of the mesh axes along which some group extends.
    """

    rows: tuple[Shape, ...]
    names: tuple[str, ...]
    sizes: Shape
    axes: Shape

    @property
    def active_axes(self) -> tuple[str, ...]:
        """The mesh axes along which data moves."""
        return tuple(self.names[a] for a in self.axes)

    @property
    def active_sizes(self) -> Shape:
        """The sizes of the active axes."""
        return tuple(self.sizes[a] for a in self.axes)

    @property
    def count(self) -> int:
        """The number of positions on the active axes."""
        return math.prod(self.active_sizes)

    @property
    def enclosing(self) -> Groups:
        """The same groups with all axes active, unless every other coordinate has equal groups.

        The result on a device depends on its position along these axes alone.
        """
        patterns = Counter(tuple(self.position(d) for d in r) for r in self.rows)
        elsewhere = math.prod(self.sizes) // self.count
        alike = set(patterns.values()) == {elsewhere}
        return self if alike else replace(self, axes=tuple(range(len(self.sizes))))

    def position(self, device: int) -> int:
        """Returns a device's position in row-major order over the active axes."""
        return position_of(self.coordinates(device), self.axes, self.sizes)

    def coordinates(self, device: int) -> Shape:
        """Returns a device's mesh coordinates."""
        return tuple(int(c) for c in np.unravel_index(device, self.sizes))

    @property
    def is_axis(self) -> bool:
        """True if the groups are the rows of one mesh axis, in its order, and cover the mesh."""
        whole = sum(map(len, self.rows)) == math.prod(self.sizes)
        in_order = all([self.position(d) for d in r] == list(range(math.prod(self.active_sizes))) for r in self.rows)
        return len(self.axes) == 1 and whole and in_order


def read_groups(call: Call) -> Groups:
    """Reads and checks the replica groups."""
    name = "replica_groups"
    rows = read_ids(call, name)
    ids = [i for r in rows for i in r]
    call.require(bool(ids), f"{name} is empty: {rows}")
    check_unique(call, name, ids)
    names, sizes = tuple(call.mesh), tuple(call.mesh.values())
    coordinates = [np.array([np.unravel_index(d, sizes) for d in r]) for r in rows]
    axes = tuple(a for a in range(len(sizes)) if any(len(set(c[:, a].tolist())) > 1 for c in coordinates))
    return Groups(tuple(rows), names, sizes, axes)
