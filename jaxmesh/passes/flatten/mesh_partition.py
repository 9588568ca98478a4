"""Recognises `mesh_partition`: a slice that is provably this device's own shard of a dim.

In JAX it is a `dynamic_slice` that starts at `axis_index * size`, with the arithmetic for negative starts. The pass
tracks starts as sums of multiples of axis indices, and leaves other slices unchanged.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from jaxmesh.dialects.definitions import has_trait
from jaxmesh.dialects.op import Trait
from jaxmesh.dialects.program import Op, Program, Type, Value, without_dead
from jaxmesh.sharding.configs import MeshMapperConfig, PlacementShard

_MOST = int(np.iinfo(np.int32).max)


@dataclass(frozen=True, slots=True)
class Sum:
    """`constant + sum of factor * index` over mesh axes; truth values are 0 and 1."""

    constant: int = 0
    factors: tuple[tuple[str, int], ...] = ()

    def plus(self, other: Sum, sign: int = 1) -> Sum:
        """Returns the sum of two, or their difference."""
        factors = dict(self.factors)
        for axis, factor in other.factors:
            factors[axis] = factors.get(axis, 0) + sign * factor
        kept = tuple((a, f) for a, f in factors.items() if f)
        return Sum(self.constant + sign * other.constant, kept)

    def times(self, factor: int) -> Sum:
        """Returns a multiple."""
        return Sum(self.constant * factor, tuple((a, f * factor) for a, f in self.factors if factor))

    def bounds(self, mesh: Mapping[str, int]) -> tuple[int, int]:
        """Returns the smallest and the largest possible value."""
        ends = [f * (mesh[a] - 1) for a, f in self.factors]
        return self.constant + sum(e for e in ends if e < 0), self.constant + sum(e for e in ends if e > 0)


@dataclass(slots=True)
class _Starts:
    """The known integers of a program: single numbers, and short rows of numbers."""

    program: Program
    numbers: dict[Value, Sum] = field(default_factory=dict[Value, Sum])
    rows: dict[Value, tuple[Sum, ...]] = field(default_factory=dict[Value, tuple[Sum, ...]])
    counts: set[Value] = field(default_factory=set[Value])
    """Values that hold 0, 1, 2 ... along their only dim."""

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
            rule = _RULES.get(op.name)
            given = [self.numbers.get(v) for v in op.used]
            made = rule(self, op, given) if rule is not None else None
            if made is not None and self._fits(made, kind):
                self.numbers[out] = made

    def row(self, value: Value) -> tuple[Sum, ...] | None:
        """Returns the numbers of a value of rank 1; None unless all are known."""
        number = self.numbers.get(value)
        return self.rows.get(value) if number is None else (number,)

    def _fits(self, made: Sum, kind: Type) -> bool:
        low, high = made.bounds(self.program.mesh)
        least, most = (0, 1) if kind.dtype.kind == "b" else (np.iinfo(kind.dtype).min, np.iinfo(kind.dtype).max)
        return max(int(least), -_MOST) <= low and high <= min(int(most), _MOST)

    def _constant(self, op: Op, out: Value, kind: Type) -> None:
        attributes = op.attributes
        if op.name == "ttir.full":
            if math.prod(kind.shape) == 1:
                self.numbers[out] = Sum(int(attributes["fill_value"]))
            elif len(kind.shape) == 1 and kind.shape[0] <= 16:
                self.rows[out] = (Sum(int(attributes["fill_value"])),) * kind.shape[0]
        elif op.name == "ttir.arange":
            if len(kind.shape) == 1 and (attributes["start"], attributes["step"]) == (0, 1):
                self.counts.add(out)
        elif op.name == "ttir.constant" and len(kind.shape) == 1:
            array = np.asarray(attributes["value"])
            if (array == np.arange(len(array))).all():
                self.counts.add(out)
            if len(array) <= 16:
                self.rows[out] = tuple(Sum(int(n)) for n in array)

    def _split(self, op: Op, out: Value) -> None:
        """Recognises the index of a mesh axis: 0, 1, 2 ... split over it."""
        (x, *_) = op.used
        axis = _only_axis(op, self.program.mesh)
        whole, piece = self.program.types[x].shape, self.program.types[out].shape
        if x in self.counts and axis is not None and whole == (self.program.mesh[axis],) and piece == (1,):
            self.numbers[out] = Sum(0, ((axis, 1),))


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


# --- arithmetic ------------------------------------------------------------------------------------------------------

_Rule = Callable[[_Starts, Op, Sequence["Sum | None"]], "Sum | None"]


def _same(_: _Starts, op: Op, given: Sequence[Sum | None]) -> Sum | None:
    return given[0]


def _add(_: _Starts, op: Op, given: Sequence[Sum | None]) -> Sum | None:
    a, b = given
    return None if a is None or b is None else a.plus(b, -1 if op.name == "ttir.subtract" else 1)


def _multiply(_: _Starts, op: Op, given: Sequence[Sum | None]) -> Sum | None:
    a, b = given
    if a is None or b is None or (a.factors and b.factors):
        return None
    return a.times(b.constant) if not b.factors else b.times(a.constant)


def _compare(starts: _Starts, op: Op, given: Sequence[Sum | None]) -> Sum | None:
    """Folds a comparison with the same result on every device."""
    a, b = given
    if a is None or b is None:
        return None
    low, high = a.plus(b, -1).bounds(starts.program.mesh)
    always, never = {
        "lt": (high < 0, low >= 0),
        "le": (high <= 0, low > 0),
        "gt": (low > 0, high <= 0),
        "ge": (low >= 0, high < 0),
        "eq": (low == high == 0, low > 0 or high < 0),
        "ne": (low > 0 or high < 0, low == high == 0),
    }[op.name.removeprefix("ttir.")]
    return Sum(1) if always else Sum(0) if never else None


def _where(_: _Starts, op: Op, given: Sequence[Sum | None]) -> Sum | None:
    condition, a, b = given
    if condition is None or condition.factors:
        return None
    return a if condition.constant else b


def _extreme(starts: _Starts, op: Op, given: Sequence[Sum | None]) -> Sum | None:
    a, b = given
    if a is None or b is None:
        return None
    low, high = a.plus(b, -1).bounds(starts.program.mesh)
    if op.name == "ttir.minimum":
        a, b = b, a
    return a if low >= 0 else b if high <= 0 else None


def _clamp(starts: _Starts, op: Op, given: Sequence[Sum | None]) -> Sum | None:
    (a,) = given
    if a is None:
        return None
    low, high = a.bounds(starts.program.mesh)
    return a if op.attributes["min"] <= low and high <= op.attributes["max"] else None


_RULES: Mapping[str, _Rule] = {
    "ttir.reshape": _same,
    "ttir.broadcast": _same,
    "ttir.typecast": _same,
    "ttir.add": _add,
    "ttir.subtract": _add,
    "ttir.multiply": _multiply,
    "ttir.where": _where,
    "ttir.maximum": _extreme,
    "ttir.minimum": _extreme,
    "ttir.clamp_scalar": _clamp,
    **{f"ttir.{name}": _compare for name in ("lt", "le", "gt", "ge", "eq", "ne")},
}


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
    if row is None or len(cut) != 1 or any(row[d] != Sum() for d in range(len(whole)) if d not in cut):
        return None
    (dim,) = cut
    if row[dim].constant:
        return None
    factors = sorted(row[dim].factors, key=lambda f: f[1])
    step = piece[dim]
    for axis, factor in factors:
        if factor != step:
            return None
        step *= starts.program.mesh[axis]
    return (dim, [axis for axis, _ in reversed(factors)]) if step == whole[dim] else None
