"""Recognises `mesh_partition`: a slice that is provably this device's own shard of a dim.

In JAX it is a `dynamic_slice` that starts at `axis_index * size`, with the arithmetic for negative starts. The pass
computes the starts of all devices, as sums of multiples of axis indices, and leaves other slices unchanged.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from jaxmesh.dialects.definitions import has_trait
from jaxmesh.dialects.op import Trait
from jaxmesh.dialects.program import Op, Program, Type, Value, without_dead
from jaxmesh.jaxprs.untyped import Array, numpy as _np
from jaxmesh.sharding.configs import MeshMapperConfig, PlacementShard

_MOST = int(np.iinfo(np.int32).max)
Numbers = Array
"""The integer of each device, of any size, in the shape of the mesh; truth values are 0 and 1."""

_FUNCTIONS: Mapping[str, Any] = {
    "ttir.add": _np.add, "ttir.subtract": _np.subtract, "ttir.multiply": _np.multiply, "ttir.maximum": _np.maximum,
    "ttir.minimum": _np.minimum, "ttir.lt": _np.less, "ttir.le": _np.less_equal, "ttir.gt": _np.greater,
    "ttir.ge": _np.greater_equal, "ttir.eq": _np.equal, "ttir.ne": _np.not_equal,
    **dict.fromkeys(("ttir.reshape", "ttir.broadcast", "ttir.typecast"), _np.positive),
}  # fmt: skip


@dataclass(slots=True)
class _Starts:
    """The known integers of a program: single numbers, and short rows of numbers."""

    program: Program
    numbers: dict[Value, Numbers] = field(default_factory=dict[Value, Numbers])
    rows: dict[Value, tuple[Numbers, ...]] = field(default_factory=dict[Value, "tuple[Numbers, ...]"])
    counts: set[Value] = field(default_factory=set[Value])
    """Values that hold 0, 1, 2 ... along their only dim."""

    @property
    def mesh(self) -> tuple[int, ...]:
        """The sizes of the mesh axes."""
        return tuple(self.program.mesh.values())

    def see(self, op: Op) -> None:
        """Follows one operation."""
        if len(op.results) != 1:
            return
        (out,) = op.results
        kind = self.program.types[out]
        if kind.dtype.kind not in "iub":
            return
        if not op.operands and has_trait(op.name, Trait.CREATES):
            self._constant(op, out, kind)
        elif op.name in ("ttir.mesh_shard", "ttnn.distribute_tensor"):
            self._split(op, out)
        elif op.name == "ttir.concat":
            parts = [self.row(v) for v in op.used]
            known = [p for p in parts if p is not None]
            if len(kind.shape) == 1 and len(known) == len(parts):
                self.rows[out] = tuple(n for p in known for n in p)
        elif math.prod(kind.shape) == 1:
            made = _computed(op, [self.numbers.get(v) for v in op.used])
            least, most = (0, 1) if kind.dtype.kind == "b" else (np.iinfo(kind.dtype).min, np.iinfo(kind.dtype).max)
            if made is not None and max(int(least), -_MOST) <= made.min() and made.max() <= min(int(most), _MOST):
                self.numbers[out] = made

    def row(self, value: Value) -> tuple[Numbers, ...] | None:
        """Returns the numbers of a value of rank 1; None unless all are known."""
        number = self.numbers.get(value)
        return self.rows.get(value) if number is None else (number,)

    def _alike(self, number: int | np.generic) -> Numbers:
        """Returns a number that all devices have."""
        return np.full(self.mesh, int(number), object)

    def _constant(self, op: Op, out: Value, kind: Type) -> None:
        attributes = op.attributes
        if op.name == "ttir.full":
            if math.prod(kind.shape) == 1:
                self.numbers[out] = self._alike(attributes["fill_value"])
            elif len(kind.shape) == 1 and kind.shape[0] <= 16:
                self.rows[out] = (self._alike(attributes["fill_value"]),) * kind.shape[0]
        elif op.name == "ttir.arange":
            if len(kind.shape) == 1 and (attributes["start"], attributes["step"]) == (0, 1):
                self.counts.add(out)
        elif op.name == "ttir.constant" and len(kind.shape) == 1:
            array = np.asarray(attributes["value"])
            if (array == np.arange(len(array))).all():
                self.counts.add(out)
            if len(array) <= 16:
                self.rows[out] = tuple(map(self._alike, array))

    def _split(self, op: Op, out: Value) -> None:
        """Recognises the index of a mesh axis: 0, 1, 2 ... split over it."""
        (x, *_) = op.used
        axis = _only_axis(op, self.program.mesh)
        whole, piece = self.program.types[x].shape, self.program.types[out].shape
        if x in self.counts and axis is not None and whole == (self.program.mesh[axis],) and piece == (1,):
            self.numbers[out] = np.indices(self.mesh)[list(self.program.mesh).index(axis)].astype(object)


def _only_axis(op: Op, mesh: Mapping[str, int]) -> str | None:
    """Returns the one mesh axis of dim 0 in the attributes of a distribution, or None."""
    attributes = op.attributes
    if op.name == "ttir.mesh_shard":
        if attributes["shard_type"] != "devices":
            return None
        dims: Sequence[int] = attributes["shard_dims"]
    else:
        config: MeshMapperConfig = attributes["mapper_config"]
        if config.mesh_shape_override is not None and tuple(config.mesh_shape_override) != tuple(mesh.values()):
            return None
        dims = [p.dim if isinstance(p, PlacementShard) else -1 for p in config.placements]
    axes = [a for a, d in zip(mesh, dims, strict=True) if d == 0]
    return axes[0] if len(axes) == 1 else None


def _computed(op: Op, given: Sequence[Numbers | None]) -> Numbers | None:
    """Returns the result of arithmetic on integers of devices; None if it is unknown, or no sum of multiples."""
    if op.name == "ttir.where":
        condition, x, y = given
        return None if condition is None or _varies(condition) else x if condition.all() else y
    known = [x for x in given if x is not None]
    if len(known) < len(given):
        return None
    function = _FUNCTIONS.get(op.name)
    if op.name == "ttir.clamp_scalar":
        made = np.asarray(np.clip(known[0], op.attributes["min"], op.attributes["max"]))
    elif function is None or (function is _np.multiply and all(map(_varies, known))):
        return None
    else:
        # NumPy returns numbers, and no arrays, for a program without a mesh.
        made = np.asarray(function(*known))
    if function in (_np.add, _np.subtract, _np.multiply):
        return made
    # Comparisons must have one result, and bounds change no number.
    same = not _varies(made) if made.dtype == np.bool_ else any((made == x).all() for x in known)
    return made.astype(object) if same else None


def _varies(x: Numbers) -> bool:
    return bool((x != x.flat[0]).any())


# --- the pass --------------------------------------------------------------------------------------------------------


def recognise_mesh_partitions(program: Program) -> Program:
    """Returns the program with each slice of a device's own shard as `mesh_partition`s, one per axis."""
    starts = _Starts(program)
    ops: list[Op] = []
    for op in program.ops:
        starts.see(op)
        if op.name == "ttir.slice_dynamic":
            ops += _partition(starts, op)
        else:
            ops.append(op)
    return without_dead(program.like(ops, program.results))


def _partition(starts: _Starts, op: Op) -> list[Op]:
    x, begins, _ = op.used
    (out,) = op.results
    found = _own_shard(starts, x, begins, out)
    if found is None or set(op.attributes.get("step", (1,))) != {1}:
        return [op]
    dim, axes = found
    mesh, kind = list(starts.program.mesh), starts.program.types[x]
    made: list[Op] = []
    for i, axis in enumerate(axes):
        shape = list(kind.shape)
        shape[dim] //= starts.program.mesh[axis]
        kind = replace(kind, shape=tuple(shape))
        result = out if i == len(axes) - 1 else starts.program.new(kind)
        attributes = {"dim": dim, "cluster_axis": mesh.index(axis)}
        made.append(Op("ttir.mesh_partition", (x,), (result,), attributes, op.line))
        x = result
    return made


def _own_shard(starts: _Starts, x: Value, begins: Value, out: Value) -> tuple[int, list[str]] | None:
    """Returns the dim that is split, and the axes that split it, most significant first; None of another slice."""
    row, types = starts.row(begins), starts.program.types
    whole, piece = types[x].shape, types[out].shape
    cut = [d for d, (n, k) in enumerate(zip(whole, piece, strict=True)) if n != k]
    if row is None or len(cut) != 1 or any(row[d].any() for d in range(len(whole)) if d not in cut):
        return None
    (dim,) = cut
    starts_at, step = row[dim], piece[dim]
    if starts_at.flat[0]:
        return None
    # By mesh axis, the difference of neighbours along it.
    mesh = starts.program.mesh
    unit = np.eye(len(mesh), dtype=int)
    steps = {a: starts_at[tuple(unit[i])] for i, (a, n) in enumerate(mesh.items()) if n > 1}
    axes = sorted((a for a, n in steps.items() if n), key=steps.__getitem__)
    for axis in axes:
        if steps[axis] != step:
            return None
        step *= mesh[axis]
    return (dim, axes[::-1]) if step == whole[dim] else None
