"""The values of a right text, for the diagnosis of the next text that the compiler made of it."""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from jaxmesh.analysis.diagnose.movements import NAMES, does_nothing, is_collective, is_movement
from jaxmesh.analysis.diagnose.proposals import Proposal, informative
from jaxmesh.analysis.diagnose.reference_value import Reference, ReferenceValue
from jaxmesh.analysis.diagnose.replay import Replay
from jaxmesh.analysis.diagnose.rounding import EXACT, error_of, tolerance
from jaxmesh.analysis.diagnose.stage import Array, Copies
from jaxmesh.analysis.diagnose.tracking import Track
from jaxmesh.analysis.record.metrics import rounding_unit
from jaxmesh.dialects.program import Op, Type
from jaxmesh.frontends.stablehlo.call import enum_of

_SAMPLE, _MOST = 16, 24
"""How many elements of a device are compared before all, and how many movements, and other operations, may be the wrong
one."""
_MASK, _SMALL = 1e4, 1e-3
"""From which magnitude numbers may be those of a mask, and how much smaller the others are."""
_NEAR = 0.05
"""How far elements of a sample may differ, relative to the largest."""
_LUMPED = ("compare", "reduce", "maximum")
_KINDS = {name: key for key, names in NAMES.items() if key not in _LUMPED for name in names.split()}
"""The name of StableHLO for the names of TTIR and TTNN; not where several operations have one name there."""
_COMMUTES = frozenset({"and", "or", "xor", "add", "multiply", "eq", "ne", "maximum", "minimum"})
"""The operations that may read their operands in the other order."""
_TURNED = {"gt": "lt", "ge": "le"}
"""The comparisons of operands in the other order."""


@dataclass(frozen=True, slots=True)
class HeldBefore:
    """A value of devices, whether it depends on no argument, and where it is made: in a loop, in each iteration."""

    copies: Copies
    is_number: bool = False
    origin: Hashable = None


class EarlierText:
    """The values that devices hold in a right text."""

    def __init__(self, values: Iterable[HeldBefore], calls: Sequence[_Performed] = ()) -> None:
        self._calls = calls
        self._by_size = defaultdict[int, list[tuple[Array, HeldBefore]]](list)
        for held in values:
            self._by_size[held.copies[min(held.copies)].size].append((_sample(held.copies), held))

    @classmethod
    def of_stage(cls, track: Track) -> EarlierText:
        """Returns the values of a right stage."""
        replay = Replay.of(track.stage, track.placed)
        return cls(_tensors(track, replay), list(calls(enumerate(track.stage.text.program.ops), replay).values()))

    @classmethod
    def of_partitioned(cls, reference: Reference, mesh: Mapping[str, int]) -> EarlierText:
        """Returns the values of a run of the partitioned StableHLO program, whose region devices perform."""
        names, coordinates = list(mesh), list(itertools.product(*map(range, mesh.values())))
        found = list[HeldBefore]()
        for value in reference.values:
            at = [names.index(axis) for axis in value.apart]
            blocks = {key: value.array[key] for key in {tuple(c[i] for i in at) for c in coordinates}}
            is_number = value.operation is not None and all(found[n].is_number for n in value.operands)
            copies = {c: blocks[tuple(c[i] for i in at)] for c in coordinates}
            found.append(HeldBefore(copies, is_number, (value.source, value.op)))
        rows = zip(reference.values, found, strict=True)
        return cls(found, [_Performed(_name(v), [found[n].copies for n in v.operands], x.copies) for v, x in rows])

    def also(self, values: Iterable[Copies]) -> EarlierText:
        """Returns these values and others, which depend on arguments."""
        return EarlierText([*self._values(), *map(HeldBefore, values)], self._calls)

    def performs(self, rows: Iterable[tuple[int, Op]], replay: Replay) -> frozenset[int]:
        """Returns which operations with results of few numbers this text has, too: of the same kind, with the same
        operands and results, and as often."""
        groups = defaultdict[tuple[int, ...], list[int]](list)
        for number, call in calls(rows, replay).items():
            alike = tuple(i for i, known in enumerate(self._calls) if known.is_alike(call))
            groups[alike].append(number)
        return frozenset(n for alike, numbers in groups.items() if len(numbers) <= len(alike) for n in numbers)

    def _values(self) -> Iterator[HeldBefore]:
        return (held for rows in self._by_size.values() for _, held in rows)

    def has(self, copies: Copies, shape: tuple[int, ...] | None = None) -> bool:
        """Returns True if the devices hold a value up to rounding, in any shape with its order, or in one shape."""
        rows, sample = self._by_size.get(copies[min(copies)].size, ()), _sample(copies)
        scale = np.max(np.abs(sample), initial=0.0, where=np.isfinite(sample))
        with np.errstate(invalid="ignore"):
            near = [other.copies for known, other in rows if not (np.abs(known - sample) > _NEAR * scale).any()]
        return any(_are_alike(copies, other) for other in near if shape in (None, _squeezed(other)))

    def lacks(self, rows: Iterable[tuple[int, Op]], replay: Replay) -> dict[int, Op]:
        """Returns the first operations of the next text whose results the devices do not hold here in that shape."""
        found = dict[int, Op]()
        for number, op in rows:
            held = [replay.copies(v) for v in op.results]
            if not all(self.has(x) and self.has(x, _squeezed(x)) for x in held):
                found[number] = op
        # An exchange that is written out in many steps does not hide what computes.
        kinds = [[row for row in found.items() if is_movement(row[1]) == moves] for moves in (True, False)]
        return dict(sorted(itertools.chain(*(rows[:_MOST] for rows in kinds)), key=lambda row: row[0]))

    def without(self, track: Track, replay: Replay) -> EarlierText:
        """Returns the values that the devices do not hold in the next text."""
        later = EarlierText(_tensors(track, replay))
        return EarlierText(row for row in self._values() if not later.has(row.copies))

    def in_place(self, number: int, op: Op, kinds: Sequence[Type]) -> Iterator[Proposal]:
        """Yields the values in the place of an operation of the next text; of a number, what depends on no argument."""
        return itertools.chain(*self.by_origin(number, op, kinds).values())

    def by_origin(self, number: int, op: Op, kinds: Sequence[Type]) -> dict[Hashable, list[Proposal]]:
        """Returns the same by where the values are made."""
        (value, *more) = op.results
        shape, dtype, found = kinds[value].shape, kinds[value].dtype, defaultdict[Hashable, list[Proposal]](list)
        is_made = not any(kinds[v].kind == "tensor" for v in op.used)
        for _, held in () if more else self._by_size.get(math.prod(shape), ()):
            if is_made and not held.is_number:
                continue
            with np.errstate(invalid="ignore"):
                right = {id(x): x.reshape(shape).astype(dtype) for x in held.copies.values()}
            copies = {c: right[id(x)] for c, x in held.copies.items()}
            found[held.origin].append(Proposal(number, op, value, None, copies))
        return found


@dataclass(frozen=True, slots=True)
class _Performed:
    """An operation on devices: its name, its operands, and its result."""

    name: str
    operands: Sequence[Copies]
    result: Copies

    def is_alike(self, other: _Performed) -> bool:
        """Returns True if an operation is of the same kind, reads the same values, and makes the same one."""
        (kind, orders), (known, (read, *_)) = (_in_one_order(c.name, c.operands) for c in (self, other))
        if kind != known or len(orders[0]) != len(read):
            return False
        pairs = ([(self.result, other.result), *zip(order, read, strict=True)] for order in orders)
        return any(all(x[min(x)].size == y[min(y)].size and _are_alike(x, y) for x, y in row) for row in pairs)


def _in_one_order(name: str, operands: Sequence[Copies]) -> tuple[str, list[list[Copies]]]:
    """Returns the kind of an operation of any dialect, and the orders of operands that mean the same."""
    short = name.rpartition(".")[2]
    kind, read = _KINDS.get(short, short), list(operands)
    orders = [read[::-1]] if kind in _TURNED else [read, read[::-1]] if kind in _COMMUTES else [read]
    return _TURNED.get(kind, kind), orders


def calls(rows: Iterable[tuple[int, Op]], replay: Replay) -> dict[int, _Performed]:
    """Returns the operations that make few numbers of tensors, by number."""
    types, found = replay.stage.text.program.types, dict[int, _Performed]()
    for number, op in rows:
        tensors = [v for v in op.used if types[v].kind == "tensor"]
        if tensors and not is_movement(op) and [types[v].kind for v in op.results] == ["tensor"]:
            (made,) = (replay.copies(v) for v in op.results)
            if not informative(made[min(made)]):
                found[number] = _Performed(op.name, [replay.copies(v) for v in tensors], made)
    return found


def _name(value: ReferenceValue) -> str:
    """Returns the name of an operation of StableHLO, of a comparison its direction."""
    is_comparison = value.op.endswith(".compare")
    return enum_of(value.value.owner, "comparison_direction").lower() if is_comparison else value.op


def _tensors(track: Track, replay: Replay) -> Iterator[HeldBefore]:
    program, lines = track.stage.text.program, track.stage.text.lines
    read = {p.value for p in program.arguments}
    for number, op in enumerate(program.ops):
        read.update(op.results if read.intersection(op.used) else ())
        tensors = (v for v in op.results if program.types[v].kind == "tensor")
        yield from (HeldBefore(replay.copies(v), v not in read, (lines[number], op.name)) for v in tensors)


def _squeezed(copies: Copies) -> tuple[int, ...]:
    return tuple(n for n in copies[min(copies)].shape if n != 1)


def passes_on(op: Op, replay: Replay) -> bool:
    """Returns True for an operation whose result equals an operand, unless it moves elements: it may be another one."""
    types, held = replay.stage.text.program.types, [replay.copies(v) for v in op.results]
    read = [replay.copies(v) for v in op.used if types[v].kind == "tensor"]
    is_step = not is_movement(op) or is_collective(op) or does_nothing(op, types)
    pairs = ((x, y) for x in held for y in read if x[min(x)].size == y[min(y)].size)
    return is_step and any(_are_alike(x, y) for x, y in pairs)


def _sample(copies: Copies) -> Array:
    first = copies[min(copies)].reshape(-1)
    return first[:: max(1, first.size // _SAMPLE)].astype(np.float64)


def _are_alike(copies: Copies, other: Copies) -> bool:
    """Returns True if two values are equal up to the rounding of the narrower type, on every device."""
    return copies.keys() == other.keys() and all(_is_near(x, other[c]) for c, x in copies.items())


def _is_near(x: Array, y: Array) -> bool:
    unit = max([EXACT, *(rounding_unit(z.dtype) for z in (x, y))])
    found, wanted = (z.reshape(-1).astype(np.float64) for z in (x, y))
    sizes = np.abs(wanted)
    most = float(np.max(sizes, initial=0.0))
    if most > _MASK and not (found == wanted).all():
        # The numbers of a mask say nothing of the others.
        others = sizes < most * _SMALL
        scale = float(np.max(sizes, initial=0.0, where=others))
        if error_of(found[others], wanted[others], scale) > tolerance(unit, unit):
            return False
    return error_of(found, wanted, most) <= tolerance(unit, unit)
