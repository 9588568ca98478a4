"""The dims of a permuted and reshaped view, in terms of the dims of the value behind it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import cast

from jax.typing import DTypeLike

from jaxmesh.dialects.definitions import has_trait
from jaxmesh.dialects.op import Trait
from jaxmesh.dialects.program import Op, Program, Shape, Value
from jaxmesh.passes.flat_builder import FlatBuilder
from jaxmesh.passes.fusion.dataflow import Flow

Atom = tuple[int, int, int]
"""A part of a dim: the dim, the stride in it, the size."""
Axis = tuple[Atom, ...]
"""What runs along a dim, the slowest part first."""
Axes = tuple[Axis, ...]


def moves(op: Op) -> bool:
    """Returns True if an operation only moves elements, each to one place."""
    return op.name == "ttir.permute" or (has_trait(op.name, Trait.VIEW) and len(op.used) == 1)


def own(shape: Shape) -> Axes:
    """Returns the axes of a value in terms of itself."""
    return tuple([((d, 1, n),) if n != 1 else () for d, n in enumerate(shape)])


def moved(axes: Axes, op: Op, shape: Shape) -> Axes | None:
    """Returns the axes behind an operation that moves elements; None if it splits dims elsewhere than at parts."""
    if op.name.endswith("permute"):
        return tuple([axes[d] for d in cast("Shape", op.attributes["permutation"])])
    return grouped([a for axis in axes for a in axis], shape)


def grouped(atoms: Sequence[Atom], shape: Sequence[int]) -> Axes | None:
    """Splits parts of dims into groups of these sizes."""
    rest, groups = list(atoms), list[Axis]()
    for n in shape:
        taken: list[Atom] = []
        while n > 1:
            d, stride, size = rest.pop(0)
            if n % size and size % n:
                return None
            inner = max(size // n, 1)
            taken.append((d, stride * inner, size // inner))
            if inner > 1:
                rest.insert(0, (d, stride, inner))
            n //= size // inner
        groups.append(joined(taken))
    return tuple(groups)


def joined(atoms: Iterable[Atom]) -> Axis:
    """Joins neighbours that are parts of one dim in order."""
    done: list[Atom] = []
    for d, stride, size in atoms:
        if done and done[-1][0] == d and done[-1][1] == stride * size:
            done[-1] = (d, stride, done[-1][2] * size)
        elif size > 1:
            done.append((d, stride, size))
    return tuple(done)


def count(atoms: Iterable[Atom]) -> int:
    """Returns the number of elements along parts of dims."""
    return math.prod(n for _, _, n in atoms)


@dataclass(slots=True)
class Cuts:
    """The strides at which parts of dims begin, by dim."""

    at: dict[int, set[int]] = field(default_factory=dict[int, set[int]])

    def add(self, atoms: Iterable[Atom]) -> None:
        """Adds the ends of parts."""
        for d, stride, size in atoms:
            self.at.setdefault(d, set()).update((stride, stride * size))

    def parts(self, atoms: Iterable[Atom]) -> Axis | None:
        """Cuts parts of dims at all these strides; None where one does not divide the next."""
        done: list[Atom] = []
        for d, stride, size in atoms:
            inside = {c for c in self.at.get(d, ()) if stride < c < stride * size}
            points = sorted({stride, stride * size, *inside}, reverse=True)
            if any(high % low for high, low in pairwise(points)):
                return None
            done.extend((d, low, high // low) for high, low in pairwise(points))
        return tuple(done)


def renamed(atoms: Iterable[Atom], names: Mapping[Atom, Axis]) -> Axis:
    """Replaces each part by what it is in terms of another value."""
    return joined(b for a in atoms for b in names[a])


def behind(flow: Flow, value: Value) -> tuple[Value, Axes]:
    """Returns what a value is a permuted and reshaped view of, and its axes in terms of that."""
    steps: list[Op] = []
    while (op := flow.makers.get(value)) is not None and moves(op):
        steps.append(op)
        (value,) = op.used
    axes = own(flow.shape(value))
    for op in reversed(steps):
        (result,) = op.results
        found = moved(axes, op, flow.shape(result))
        value, axes = (value, found) if found is not None else (result, own(flow.shape(result)))
    return value, axes


@dataclass(slots=True)
class Rearranger(FlatBuilder):
    """Appends the operations that replace a group, in a program of their own."""

    @staticmethod
    def beside(flow: Flow, line: str) -> Rearranger:
        """Returns a builder of operations on the values of a program."""
        program: Program = replace(flow.program, ops=[])
        return Rearranger(program, line=line)

    def op(
        self, name: str, operands: Sequence[Value | None], shape: Sequence[int], dtype: DTypeLike, /, **attrs: object
    ) -> Value:
        """Appends an operation of TTIR."""
        made = self.program.new(self.tensor_type(tuple(shape), dtype))
        self.append(Op(f"ttir.{name}", tuple(operands), (made,), attrs, self.line))
        return made

    def arrange(self, x: Value, axes: Axes) -> Value:
        """Returns a value whose dims are these parts of the dims of another one: with one permutation at most."""
        shape, wanted = tuple(map(count, axes)), [a for axis in axes for a in axis]
        if self._along(x, axes):
            units = iter([d for d, n in enumerate(self.shape(x)) if n == 1])
            return self.permute(x, [axis[0][0] if axis else next(units) for axis in axes])
        inner = sorted(wanted, key=lambda a: (a[0], -a[1]))
        if inner != wanted:
            x = self.reshape(x, [n for _, _, n in inner])
            x = self.permute(x, [inner.index(a) for a in wanted])
        return self.reshape(x, shape)

    def _along(self, x: Value, axes: Axes) -> bool:
        """Returns True if each dim is a whole dim of `x`."""
        if len(axes) != len(self.shape(x)) or any(len(axis) > 1 for axis in axes):
            return False
        return sum(len(axis) for axis in axes) == sum(n != 1 for n in self.shape(x))

    def finish(self, x: Value, result: Value) -> list[Op]:
        """Returns the operations, with `result` in place of `x`, the result of the last one."""
        *ops, last = self.program.ops
        assert last.results == (x,)
        return [*ops, replace(last, results=(result,))]
