"""Proposes which operation may be wrong, and what its result should be; a run decides (see `proof`).

`places` aligns operations with the unsharded program.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from jaxmesh.analysis.diagnose.matching import split_axes
from jaxmesh.analysis.diagnose.movements import (
    does_nothing,
    is_alike,
    is_collective,
    is_movement,
    short_name,
)
from jaxmesh.analysis.diagnose.places import Places
from jaxmesh.analysis.diagnose.region import REGION
from jaxmesh.analysis.diagnose.rounding import error_of, tolerance
from jaxmesh.analysis.diagnose.source_lines import line
from jaxmesh.analysis.diagnose.stage import Array, Copies
from jaxmesh.analysis.diagnose.tracking import Track
from jaxmesh.dialects.definitions import has_trait
from jaxmesh.dialects.op import Trait
from jaxmesh.dialects.program import Op, Value
from jaxmesh.frontends.stablehlo.shardings import Sharding, axes_of

_PLACEMENTS, _ANY = 6, 12
"""The most placements of a value, and values of any place, that are proposed for one result."""
_MOVES = ("reshape", "broadcast_in_dim", "transpose", "convert", "constant", "iota")
MOVES = frozenset({REGION, *(f"stablehlo.{name}" for name in _MOVES)})


@dataclass(frozen=True, slots=True)
class Proposal:
    """A result of an operation, and the value that it may have to be.

    Attributes:
      number: the number of the operation in the text.
      op: the operation.
      value: its result.
      expected: the number of the value of the unsharded run; None if it has none.
      right: that value on every device.
      others: the same of the operation in other iterations of a loop, by result.
    """

    number: int
    op: Op
    value: Value
    expected: int | None
    right: Copies
    others: Mapping[Value, Copies] = field(default_factory=dict[Value, Copies])

    @property
    def replaced(self) -> dict[Value, Copies]:
        """The replaced values on every device."""
        return {self.value: self.right, **self.others}


@dataclass
class Proposals:
    """The proposals for a stage with wrong results."""

    track: Track

    @cached_property
    def places(self) -> Places:
        """The places of the operations."""
        return Places(self.track)

    @cached_property
    def live(self) -> list[tuple[int, Op]]:
        """The operations that the results are computed from, in order."""
        return self.track.before(o.value for o in self.track.outputs)

    def wanted(self, number: int) -> set[int]:
        """Returns the values that the program reads for values on the line of an operation that no device holds."""
        missing = itertools.islice(self.places.of_any_kind(number), _ANY)
        return {self.track.pool.same[o] for n in missing for o in self.unmoved(n)}

    def unmoved(self, number: int) -> Iterator[int]:
        """Yields the values of the program that a value is computed from, and before movements."""
        values, rest = self.track.reference.values, list(self.track.reference.values[number].operands)
        while rest:
            yield (n := rest.pop())
            rest += values[n].operands if values[n].op in MOVES else ()

    def reads(self, expected: int, value: Value) -> bool:
        """Returns False if a value of the program is not computed from what devices hold."""
        read, track = {self.track.pool.same[n] for n in self.unmoved(expected)}, self.track
        return all(read & {track.pool.same[o] for o in track.origins(e.number)} for e in track.held(value))

    def in_place(self, number: int, op: Op) -> Iterator[Proposal]:
        """Yields the values in the place of an operation; of a collective, the values of its operand.

        In a loop that is written out, each proposal is for all iterations.
        """
        stage = self.track.stage
        if not self.is_last(op):
            return
        if number not in stage.iterations:
            yield from self._in_place(number, op)
        elif not any(stage.iterations[number]):
            ops = stage.text.program.ops
            yield from self._together(self._in_place(n, ops[n], held=True) for n in self.alike(number))

    def is_last(self, op: Op) -> bool:
        """Returns False for transfers between two devices whose result another one goes on with: they are one step."""
        ops = self.track.stage.text.program.ops if short_name(op) == "point_to_point" else ()
        return not any(o.name == op.name and o.used[-1] in op.results for o in ops if o is not op)

    def alike(self, number: int) -> list[int]:
        """Returns the numbers of an operation in all iterations of its loop."""
        stage = self.track.stage
        ops, lines = stage.text.program.ops, stage.text.lines
        if number not in stage.iterations:
            return [number]
        return [n for n in stage.iterations if lines[n] == lines[number] and ops[n].name == ops[number].name]

    def in_iterations(self, number: int, repaired: Op) -> list[Op]:
        """Returns a repaired operation, of a loop in each iteration, with the operands and the results of that one."""
        ops, every = self.track.stage.text.program.ops, self.alike(number)
        used, found = ops[number].operands, list[Op]()
        for at, n in enumerate(every):
            rows = ((v, used.index(v) if v in used else -1) for v in repaired.operands)
            operands = [ops[n].operands[i] if i >= 0 else self._in_iteration(v, at, len(every)) for v, i in rows]
            found.append(replace(repaired, operands=tuple(operands), results=ops[n].results))
        return found

    def _in_iteration(self, value: Value | None, at: int, count: int) -> Value | None:
        """Returns the value in the place of another one, in an iteration of a loop that goes round so often."""
        made = None if value is None else self.track.producers.get(value)
        every = [] if made is None else self.alike(made[0])
        if value is None or made is None or len(every) != count:
            return value
        return self.track.stage.text.program.ops[every[at]].results[made[1].results.index(value)]

    def _together(self, iterations: Iterable[Iterator[Proposal]]) -> Iterator[Proposal]:
        """Yields the proposals for all iterations as one, named by the first iteration that differs."""
        for row in zip(*iterations, strict=False):
            first = next((p for p in row if self._differs(p)), None)
            if first is not None:
                yield replace(first, others={p.value: p.right for p in row if p is not first})

    def _differs(self, proposal: Proposal) -> bool:
        """Returns True if devices hold another value than the proposed one, not only rounded otherwise."""
        pool, expected = self.track.pool, proposal.expected
        scale, unit = (1.0, 0.0) if expected is None else (pool.scale(expected), pool.unit(expected))
        held = self.track.copies(proposal.value)
        return any(error_of(x, proposal.right[c], scale) > tolerance(unit, 0.0) for c, x in held.items())

    def _in_place(self, number: int, op: Op, *, held: bool = False) -> Iterator[Proposal]:
        """Yields the values in the place of one operation; with `held` also values on its devices."""
        for index, value in enumerate(op.results):
            expected = list(self._expected(number, op, index))
            known = [] if held else [n for n in expected if self.holds(value, n)]
            if expected and not held and self.is_equal(value, expected[0]):
                continue
            # It may hold another value of the program than the one in its place, which no device holds.
            if not known or self.places.misses(expected[0]):
                for n in expected:
                    if n not in known:
                        yield from self.placed(number, op, value, n)

    def constants(self, number: int, op: Op) -> Iterator[Proposal]:
        """Yields the numbers of the program in the place of another number."""
        (value, *more) = op.results
        copies = self.track.copies(value)
        array = next(iter(copies.values()))
        dtype, devices = self.track.stage.text.program.types[value].dtype, tuple(self.track.stage.mesh.values())
        if more or not array.size:
            return
        whole = math.prod(devices)
        if array.dtype.kind in "iu" and array.size == whole > 1:
            # The numbers of the devices.
            rights: list[Array] = [np.arange(whole).reshape(array.shape)]
        elif (array == array.flat[0]).all():
            rights = [np.full(array.shape, n) for n in self.numbers(number)]
        else:
            rights = list(itertools.islice(_between(array), _ANY)) if array.dtype.kind in "iu" else []
        for found in rights:
            with np.errstate(all="ignore"):
                right = found.astype(dtype)
            if not np.array_equal(array, right):
                yield self.everywhere(Proposal(number, op, value, None, dict.fromkeys(copies, right)))

    def everywhere(self, made: Proposal) -> Proposal:
        """Returns a value in the place of a number, in a loop of all its iterations."""
        ops, index = self.track.stage.text.program.ops, made.op.results.index(made.value)
        others = {ops[n].results[index]: made.right for n in self.alike(made.number) if n != made.number}
        return replace(made, others=others)

    def numbers(self, number: int) -> list[Any]:
        """Returns the numbers of the program, those on the line of an operation first."""
        near = self.near(number)
        return sorted(self._numbers, key=lambda x: (x not in near, str(x)))

    @cached_property
    def _numbers(self) -> set[Any]:
        """The numbers of the program that are everywhere in a value, and the numbers of truth values."""
        arrays = [v.array for v in self.track.reference.values if v.op == "stablehlo.constant" and v.array.size]
        return {0, 1, *(x.flat[0].item() for x in arrays if bool((x == x.flat[0]).all()))}

    def near(self, number: int) -> set[Any]:
        """Returns the numbers on the line of an operation."""
        source, values = line(self.track.stage.source(number)), self.track.reference.values
        near = [v.array for v in values if v.op == "stablehlo.constant" and v.array.size and line(v.source) == source]
        return {x.flat[0].item() for x in near}

    def anywhere(self, number: int, op: Op) -> Iterator[Proposal]:
        """Yields values of the program that no device holds; for a movement that does nothing all on its line, too."""
        beside = self.places.beside(number) if does_nothing(op, self.track.stage.text.program.types) else ()
        for value, rows in itertools.product(op.results, (self.places.of_any_kind(number), beside)):
            fitting = (n for n in rows if self._fits(value, n))
            for expected in itertools.islice(fitting, _ANY if self.is_last(op) else 0):
                yield from self._in_all(number, op, value, expected)

    def _in_all(self, number: int, op: Op, value: Value, expected: int) -> Iterator[Proposal]:
        """Yields a value of the program for an operation, in a loop for each iteration."""
        stage, values = self.track.stage, self.track.reference.values
        if number not in stage.iterations:
            yield from self.placed(number, op, value, expected)
            return
        ops, every, index = stage.text.program.ops, self.alike(number), op.results.index(value)
        alike = [i for i, v in enumerate(values) if v.value == values[expected].value]
        if len(every) == len(alike) and number == every[0]:
            rows = zip(every, alike, strict=True)
            yield from self._together(self.placed(n, ops[n], ops[n].results[index], i) for n, i in rows)

    def _expected(self, number: int, op: Op, index: int) -> Iterator[int]:
        yield from self.places.of(number, op, index)
        if is_collective(op):
            for value in self.track.operands(op)[:1]:
                yield from self._sums(value)

    def _sums(self, value: Value) -> list[int]:
        """Returns the value of the program that devices hold, or the sum of the parts that they hold."""
        track, count = self.track, len(self.track.reference.values)
        numbers = [next((n for n in track.origins(e.number) if n < count), None) for e in track.held(value)]
        return list(dict.fromkeys(track.parts[n][0] if n in track.parts else n for n in numbers if n is not None))

    def holds(self, value: Value, expected: int) -> bool:
        """Returns True if devices hold a value of the program whole."""
        known, same = self.track.known.get(value), self.track.pool.same
        if known is None or known.partial:
            return False
        return same[expected] in {same[n] for n in self.track.origins(known.number)}

    def is_equal(self, value: Value, expected: int) -> bool:
        """Returns True if the devices hold exactly a value of the program, which may equal another one, too."""
        kind, wanted = self.track.stage.text.program.types[value], self.track.pool.arrays[expected]
        if kind.dtype.kind in "iu" and wanted.dtype.kind in "iu" and (wanted != wanted.astype(kind.dtype)).any():
            # They hold the last bits alone.
            return False
        rows = self.track.pool.placements(expected, kind.shape)
        return any(not self._block_all(value, expected, p)[0] for p in rows)

    def _fits(self, value: Value, expected: int) -> bool:
        shape = self.track.stage.text.program.types[value].shape
        return next(self.track.pool.placements(expected, shape), None) is not None

    def placed(self, number: int, op: Op, value: Value, expected: int) -> Iterator[Proposal]:
        """Yields a value of the program on the devices, by the placements that its shape allows."""
        rows = list(self._placements(op, value, expected))
        for right in itertools.islice(rows, _PLACEMENTS):
            yield Proposal(number, op, value, expected, right)

    def _placements(self, op: Op, value: Value, expected: int) -> Iterator[Copies]:
        track, pool = self.track, self.track.pool
        kind = track.stage.text.program.types[value]
        if kind.dtype.kind in "biu" and pool.arrays[expected].dtype.kind not in "biu":
            return
        alike = list(pool.placements(expected, kind.shape))
        other = [] if alike else list(pool.placements(expected, kind.shape, any_shape=True))
        axes = set(split_axes([e for v in track.operands(op) for e in track.held(v)]))
        found = sorted((self._block_all(value, expected, p) for p in alike or other), key=lambda row: row[0])
        if found and not found[0][0] and not is_collective(op):
            # Only an exchange puts the right blocks on other devices.
            found = found[:1]
        near = sorted(found, key=lambda row: (row[0] > 0.9, len(axes ^ row[1]), row[0]))
        seen: list[Copies] = []
        for _, _, right in near:
            if not any(
                all(np.array_equal(right[c], s[c], equal_nan=kind.dtype.kind in "f") for c in right) for s in seen
            ):
                seen.append(right)
                yield right

    def _block_all(self, value: Value, expected: int, placement: Sharding) -> tuple[float, set[str], Copies]:
        """Returns the share of wrong elements, the axes that split the value, and the value on each device."""
        track, pool = self.track, self.track.pool
        kind, copies = track.stage.text.program.types[value], track.copies(value)
        once: dict[tuple[int, ...], Array] = {}
        right: Copies = {}
        for c in copies:
            block = pool.block(expected, placement, c)
            key = int(block.__array_interface__["data"][0]), *block.strides
            if key not in once:
                once[key] = np.asarray(block).astype(kind.dtype).reshape(kind.shape)
            right[c] = once[key]
        with np.errstate(all="ignore"):
            wrong = np.mean([np.mean(np.asarray(copies[c] != right[c])) for c in copies])
        return float(wrong), {*axes_of(placement), *pool.apart.get(expected, ())}, right

    def reductions_after(self, value: Value) -> list[tuple[int, Op]]:
        """Returns the reductions over devices that a value goes through, with sums and movements, up to a result."""
        rest, found = {value}, list[tuple[int, Op]]()
        start = self.track.producers[value][0] if value in self.track.producers else math.inf
        for number, op in self.live:
            if number > start and rest & set(op.used):
                is_reduction = has_trait(op.name, Trait.REDUCES)
                found += [(number, op)] if is_reduction and is_collective(op) else []
                if is_reduction or is_movement(op) or is_alike(op, "stablehlo.reduce"):
                    rest.update(op.results)
        return found


def _between(array: Array) -> Iterator[Array]:
    """Yields a list of numbers with the mean of two neighbours between them, where another number is, and with ends
    that go on as their neighbours do.

    >>> [x.tolist() for x in _between(np.array([0, 1, 3, 3, 4]))]
    [[0, 1, 2, 3, 4], [-1, 1, 3, 3, 4], [0, 1, 3, 3, 3]]
    """
    flat = array.reshape(-1).astype(np.int64)
    sums = flat[:-2] + flat[2:]
    for k in 1 + np.flatnonzero((sums % 2 == 0) & (sums != 2 * flat[1:-1])):
        changed = flat.copy()
        changed[k] = sums[k - 1] // 2
        yield changed.reshape(array.shape)
    for k, step in ((0, 1), (-1, -1)) if flat.size > 2 else ():
        changed = flat.copy()
        changed[k] = 2 * flat[k + step] - flat[k + 2 * step]
        if changed[k] != flat[k]:
            yield changed.reshape(array.shape)


def informative(array: Array) -> bool:
    """Returns True for a value that hardly equals another one by chance."""
    flat = array.reshape(-1)
    few = flat[:: max(1, flat.size // 256)]
    return len(np.unique(few.view(np.uint16) if few.dtype.itemsize == 2 and few.dtype.kind == "V" else few)) >= 8
