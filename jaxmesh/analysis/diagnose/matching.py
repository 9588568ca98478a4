"""Explains values on devices: finds the global value and the placement, or the partial sums, that they hold."""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax.numpy as jnp
import numpy as np

from jaxmesh.analysis.diagnose.cuts import global_shapes, placements, placements_of_size
from jaxmesh.analysis.diagnose.reference_value import Reference
from jaxmesh.analysis.diagnose.rounding import PART, as_numbers, error_of, tolerance
from jaxmesh.analysis.diagnose.stage import Array, Coordinate, Copies, as_pairs, block_of
from jaxmesh.analysis.record.metrics import rounding_unit
from jaxmesh.frontends.stablehlo.shardings import Sharding, axes_of
from jaxmesh.jaxprs.walk import same_bits, sample

_FLIPPED = 0.02
"""The share of integers or booleans that carried rounding may change."""
_OUTLIER, _OUTLIER_OF_FEW = 1e3, 1e5
"""The factor between the largest ordinary element and an outlier; the second one beside fewer than `_FEW` elements."""
_FEW, _SAMPLE = 16, 4096
"""The number of elements that are few, and the number that are sampled."""
_REDUCTIONS: Mapping[str, Any] = {"sum": np.add, "max": np.maximum, "min": np.minimum}
"""By kind, the reductions over devices of which parts may be left."""
_TRIED = 64
"""The global values that are compared in full with one value."""


@dataclass(frozen=True, slots=True)
class HeldValue:
    """The meaning of a value on the devices.

    Attributes:
      number: the number of the global value.
      placement: per dim the mesh axes that split it.
      partial: the mesh axes over which the devices hold parts of a reduction.
      kind: the reduction: `sum`, `max` or `min`; empty for whole values.
      error: the largest difference, relative to the largest magnitude; of integers the share that differs.
      apart: the mesh axes along which each device has a value of its own, the first dims of the global value.
    """

    number: int
    placement: Sharding
    partial: tuple[str, ...] = ()
    kind: str = ""
    error: float = 0.0
    apart: tuple[str, ...] = ()


def split_axes(explanations: Sequence[HeldValue]) -> list[str]:
    """Returns the mesh axes that split values, in order."""
    return list(dict.fromkeys(a for e in explanations for a in (*e.apart, *axes_of(e.placement))))


def grouped(copies: Copies, axes: Sequence[str], mesh: Mapping[str, int]) -> dict[Coordinate, list[Array]]:
    """Returns the copies that differ in the coordinates along some axes only, by their first coordinate."""
    groups = dict[Coordinate, list[Array]]()
    for c in sorted(copies):
        groups.setdefault(_first(c, axes, mesh), []).append(copies[c])
    return groups


def _first(c: Coordinate, axes: Sequence[str], mesh: Mapping[str, int]) -> Coordinate:
    return tuple(0 if a in axes else n for a, n in zip(mesh, c, strict=True))


def reduced(groups: Mapping[Coordinate, list[Array]], kind: str) -> Copies:
    """Returns the reductions of groups, by their first coordinates."""
    with np.errstate(all="ignore"):
        return {c: _REDUCTIONS[kind].reduce([as_numbers(x) for x in g]) for c, g in groups.items()}


def reductions(copies: Copies, mesh: Mapping[str, int]) -> Iterator[tuple[tuple[str, ...], str, Copies]]:
    """Yields the reductions of a value over mesh axes: the axes, the kind, and the result on every device."""
    names, dtype = [a for a, n in mesh.items() if n > 1], copies[min(copies)].dtype
    for size, kind in itertools.product(range(1, len(names) + 1), _REDUCTIONS):
        for axes in itertools.combinations(names, size):
            found = {c: x.astype(dtype) for c, x in reduced(grouped(copies, axes, mesh), kind).items()}
            yield axes, kind, {c: found[_first(c, axes, mesh)] for c in copies}


@dataclass(slots=True)
class Globals:
    """The global values: the values of the reference, and movements of these values.

    Attributes:
      mesh: the sizes of the mesh axes, by name.
      arrays: the values.
      same: by number, the first value with equal contents and shape.
      sources: of a value that a movement makes, the value that it is made of.
      apart: of a value within a region, the mesh axes along which each device has its own; its first dims.
    """

    mesh: Mapping[str, int]
    arrays: list[Array] = field(default_factory=list[Array])
    same: list[int] = field(default_factory=list[int])
    sources: dict[int, int] = field(default_factory=dict[int, int])
    apart: dict[int, tuple[str, ...]] = field(default_factory=dict[int, tuple[str, ...]])
    _known: Array = field(default_factory=lambda: np.zeros((256, 5)))
    """Of every value the first and the last element, the magnitude, the rounding unit and the number of elements."""
    _alike: dict[Any, list[int]] = field(default_factory=dict[Any, list[int]])
    """By the sample of a value the first values of their contents."""

    @classmethod
    def of(cls, reference: Reference) -> Globals:
        """Returns the values of the unsharded run, which all stages start from."""
        pool = cls({})
        for value in reference.values:
            pool.add(value.array, value.apart)
        for number, value in enumerate(reference.values):
            if value.array.dtype == np.uint64:
                # The compiler has numbers of 64 bits as pairs of 32 bits.
                pairs = as_pairs(value.array)
                for part in (pairs, *np.moveaxis(pairs, -1, 0)):
                    pool.sources.setdefault(pool.add(part, value.apart), number)
        return pool

    def on(self, mesh: Mapping[str, int]) -> Globals:
        """Returns a copy of the values for another mesh."""
        alike = {key: list(numbers) for key, numbers in self._alike.items()}
        lists = list(self.arrays), list(self.same), dict(self.sources), dict(self.apart)
        return Globals(mesh, *lists, self._known.copy(), alike)

    def add(self, array: Array, apart: tuple[str, ...] = ()) -> int:
        """Adds a value; returns the number of the first equal one."""
        number = len(self.arrays)
        alike = self._alike.setdefault((apart, sample(array)), [])
        first = next((n for n in alike if same_bits(self.arrays[n], array)), number)
        alike += [number] if first == number else []
        self.arrays.append(array)
        self.same.append(first)
        if apart:
            self.apart[number] = apart
        if number >= len(self._known):
            self._known = np.concatenate([self._known] * 2)
        facts = self._known[first] if first != number else (*_ends(array, array), _magnitude(array), 0.0, 0.0)
        self._known[number] = *facts[:3], rounding_unit(array.dtype), array.size
        return first

    def remove_last(self) -> None:
        """Removes the value that was added last."""
        array, number = self.arrays.pop(), len(self.arrays)
        apart = self.apart.pop(number, ())
        if self.same.pop() == number:
            self._alike[apart, sample(array)].pop()

    def shape(self, number: int) -> tuple[int, ...]:
        """Returns the shape of a value, without the axes along which it is apart."""
        return self.arrays[number].shape[len(self.apart.get(number, ())) :]

    def placements(self, number: int, local: Sequence[int], *, any_shape: bool = False) -> Iterator[Sharding]:
        """Yields every placement that cuts a value into a local shape, or into any shape of its size."""
        apart, cuts = self.apart.get(number, ()), placements_of_size if any_shape else placements
        if set(apart) <= self.mesh.keys():
            yield from cuts(local, self.shape(number), {a: n for a, n in self.mesh.items() if a not in apart})

    def block(self, number: int, placement: Sharding, at: Coordinate, view: Array | None = None) -> Array:
        """Returns what a device holds of a value."""
        place = dict(zip(self.mesh, at, strict=True))
        array = self.arrays[number] if view is None else view
        return block_of(array[(*(place[a] for a in self.apart.get(number, ())), ...)], placement, self.mesh, at)

    def within(self, held: HeldValue, axes: Collection[str]) -> list[Array]:
        """Returns a held value as a region over some axes sees it: a value for each device along these axes."""
        own = tuple(tuple(a for a in split if a in axes) for split in held.placement)
        devices = itertools.product(*(range(n) if a in axes else (0,) for a, n in self.mesh.items()))
        return [self.block(held.number, own, at) for at in devices]

    def scale(self, number: int) -> float:
        """Returns the largest finite magnitude of a value."""
        return float(self._known[number, 2])

    def unit(self, number: int) -> float:
        """Returns the rounding unit of a value's type."""
        return float(self._known[number, 3])

    def explain(
        self,
        copies: Copies,
        rounding: float,
        carried: float,
        *,
        kinds: Sequence[str] = ("sum",),
        only: int | None = None,
    ) -> HeldValue | None:
        """Returns what a value on the devices holds: a placement of a global value, or parts of a reduction of one.

        Args:
          copies: the value of each device.
          rounding: the largest rounding unit among its types.
          carried: the largest error of its operands.
          kinds: the reductions to try.
          only: the number of the only global value to try.
        """
        split = [a for a, n in self.mesh.items() if n > 1]
        parts = [axes for n in range(1, len(split) + 1) for axes in itertools.combinations(split, n)]
        ways = [((), ""), *((axes, kind) for kind in kinds for axes in parts)]
        for reshaped in (False, True) if only is None else (False,):
            for axes, kind in ways:
                found = self._search(copies, axes, kind, rounding, carried, only, reshaped)
                if found is not None:
                    return found
        return None

    def _search(
        self,
        copies: Copies,
        axes: tuple[str, ...],
        kind: str,
        rounding: float,
        carried: float,
        only: int | None,
        reshaped: bool,
    ) -> HeldValue | None:
        groups, first = grouped(copies, axes, self.mesh), copies[min(copies)]
        if axes and (first.dtype == np.bool_ or all(x is g[0] for g in groups.values() for x in g)):
            # The parts of a reduction differ.
            return None
        if axes and first.size == 1 and not _is_float(first):
            # The places 0 and 1 of two devices add up to any 1 of the program.
            return None
        ends = [_ends(x, y) for x, y in zip(groups[min(groups)], groups[max(groups)], strict=True)]
        with np.errstate(all="ignore"):
            both = ends[0] if not axes else tuple(float(_REDUCTIONS[kind].reduce(e)) for e in zip(*ends, strict=True))
        candidates = self._candidates((both[0], both[1]), first, rounding, carried) if only is None else [only]
        if not candidates:
            return None
        if axes:
            copies = reduced(groups, kind)
        mesh = {a: n for a, n in self.mesh.items() if a not in axes}
        # Beside the numbers of a mask any number is small.
        largest = max(map(_magnitude, {id(x): x for x in copies.values()}.values()))
        best: HeldValue | None = None
        for number in candidates:
            limit = self.limit(number, rounding, carried)
            apart = self.apart.get(number, ())
            if not set(apart) <= mesh.keys() or (axes and self._is_uniform(number)):
                continue
            rest = {a: n for a, n in mesh.items() if a not in apart}
            for array in self._views(number, first.shape, rest) if reshaped else [self.arrays[number]]:
                for placement in placements(first.shape, array.shape[len(apart) :], rest):
                    least = limit if best is None else min(limit, best.error)
                    error = self.error(copies, number, placement, least, array, largest)
                    if error <= least and (best is None or error < best.error):
                        best = HeldValue(self._added(number, array, apart), placement, axes, kind, error, apart)
                    if best is not None and not best.error:
                        return best
            if reshaped and best is None and not axes:
                best = self._in_blocks(copies, number, limit)
        return best

    def _in_blocks(self, copies: Copies, number: int, limit: float) -> HeldValue | None:
        """Explains a value whose part on each device is a reshape of the device's block of a global value, as products
        of flattened dims are that are split."""
        first = copies[min(copies)]
        for placement in self.placements(number, first.shape, any_shape=True) if number not in self.sources else ():
            axes = {*self.apart.get(number, ()), *axes_of(placement)}
            apart = tuple(a for a in self.mesh if a in axes)
            blocks = self.within(HeldValue(number, placement), apart)
            if axes_of(placement) and blocks[0].size == first.size:
                once = {id(x): x.reshape(blocks[0].shape) for x in copies.values()}
                error = self.error({c: once[id(x)] for c, x in copies.items()}, number, placement, limit)
                if error <= limit:
                    array = np.stack(blocks).reshape((*(self.mesh[a] for a in apart), *first.shape))
                    return HeldValue(self._added(number, array, apart), ((),) * first.ndim, error=error, apart=apart)
        return None

    def _views(self, number: int, local: tuple[int, ...], mesh: Mapping[str, int]) -> Iterator[Array]:
        """Yields the reshapes of a value that have pieces of a local shape, as products of flattened batches have."""
        array, full = self.arrays[number], self.shape(number)
        if number not in self.sources:
            shapes = global_shapes(local, list(mesh), mesh)
            first = array.shape[: array.ndim - len(full)]
            yield from (array.reshape((*first, *s)) for s in shapes if s != full and math.prod(s) == math.prod(full))

    def _added(self, number: int, array: Array, apart: tuple[str, ...]) -> int:
        """Returns the number of a view of a value, which is added if it is new."""
        if array is self.arrays[number]:
            return number
        added = self.add(array, apart)
        if added == len(self.arrays) - 1:
            self.sources[added] = number
        else:
            self.remove_last()
        return added

    def _is_uniform(self, number: int) -> bool:
        """Returns True for one number everywhere, which parts of many values add up to."""
        array = self.arrays[number]
        return (
            array.size > 1 and self._known[number, 0] == self._known[number, 1] and bool((array == array.flat[0]).all())
        )

    def limit(self, number: int, rounding: float, carried: float) -> float:
        """Returns the error that rounding explains."""
        if not _is_float(self.arrays[number]):
            return _FLIPPED if carried else 0.0
        return tolerance(max(rounding, self.unit(number)), carried)

    def _candidates(self, ends: tuple[float, float], first: Array, rounding: float, carried: float) -> list[int]:
        """Returns the numbers of the global values that have the first and the last element of the devices."""
        count = len(self.arrays)
        rows, is_float = self._known[:count], _is_float(first)
        sizes = rows[:, 4]
        fits = (sizes % max(first.size, 1) == 0) & (np.array(self.same) == np.arange(count))
        if is_float:
            units = np.maximum(rows[:, 3], rounding)
            limits = np.array([tolerance(u, carried) for u in np.unique(units)])[
                np.unique(units, return_inverse=True)[1]
            ]
            with np.errstate(invalid="ignore"):
                for end, column in zip(ends, (rows[:, 0], rows[:, 1]), strict=True):
                    near = np.abs(column - end) <= limits * np.maximum(rows[:, 2], np.abs(column))
                    fits &= near | (column == end) | (np.isnan(column) & np.isnan(end))
        elif not carried:
            fits &= (rows[:, 0] == ends[0]) & (rows[:, 1] == ends[1])
        return [int(i) for i in np.flatnonzero(fits)[:_TRIED]]

    def error(
        self,
        copies: Copies,
        number: int,
        placement: Sharding,
        limit: float = math.inf,
        view: Array | None = None,
        largest: float = math.inf,
    ) -> float:
        """Returns the largest error of all devices, relative to the magnitude of the value or of the devices, if that
        is smaller; stops at the first device above the limit."""
        scale, most = min(self.scale(number), largest), 0.0
        done: set[tuple[int, int]] = set()
        for c, x in copies.items():
            block = self.block(number, placement, c, view)
            key = id(x), int(block.__array_interface__["data"][0])
            if key not in done:
                done.add(key)
                if x.size > _SAMPLE and _sampled_error(x, block, scale) > limit:
                    return math.inf
                most = max(most, error_of(x, block, scale))
                if most > limit:
                    break
        return most


def _sampled_error(found: Array, wanted: Array, scale: float) -> float:
    """Returns the largest difference of a few elements, as `error_of`; of integers nothing."""
    if not _is_float(wanted):
        return 0.0
    few = tuple(slice(None, None, max(1, n // 4)) for n in found.shape)
    return error_of(found[few], wanted[few], scale)


def _ends(first: Array, last: Array) -> tuple[float, float]:
    """Returns the first element of one array, and the last element of another."""
    if not first.size:
        return 0.0, 0.0
    return _real(first[(0,) * first.ndim]), _real(last[(-1,) * last.ndim])


def _real(x: Any) -> float:
    return float(np.real(as_numbers(np.asarray(x))))


def _magnitude(array: Array) -> float:
    """Returns the largest magnitude that is not far above all others, as the numbers that mask a softmax are."""
    if not array.size or not _is_float(array):
        return 1.0
    flat = array.reshape(-1)
    few = np.abs(as_numbers(flat[:: max(1, flat.size // _SAMPLE)]))
    few = few[np.isfinite(few) & (few > 0)]
    if not few.size:
        few = np.abs(as_numbers(flat[flat != 0]))
        few = few[np.isfinite(few)]
    few = np.sort(few).astype(np.float64)
    below = np.arange(1, max(few.size, 1))
    far = few[1:] > few[:-1] * np.where(below < _FEW, _OUTLIER_OF_FEW, _OUTLIER)
    gaps = np.flatnonzero(far & (below * 20 >= few.size))
    limit = few[gaps[0]] * math.sqrt(_OUTLIER) if gaps.size else math.inf
    parts = (np.abs(as_numbers(flat[i : i + PART])) for i in range(0, flat.size, PART))
    return max((float(np.max(p, where=np.isfinite(p) & (p <= limit), initial=0.0)) for p in parts), default=0.0)


def _is_float(array: Array) -> bool:
    return bool(jnp.issubdtype(array.dtype, jnp.inexact))
