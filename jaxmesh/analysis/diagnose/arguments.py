"""Arguments that exercise a program: of order one everywhere, valid as indices, and on both sides of every choice."""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxmesh.analysis.diagnose.integer_uses import FEW, IntegerUses, Need, indexed
from jaxmesh.analysis.diagnose.reference_value import ReferenceValue, is_entered
from jaxmesh.analysis.diagnose.stage import Array
from jaxmesh.analysis.record.metrics import rounding_unit
from jaxmesh.frontends.stablehlo.call import enum_of
from jaxmesh.frontends.stablehlo.reductions import dot_dims
from jaxmesh.frontends.stablehlo.windows import convolution_dims

Choice = tuple[int, str]
"""A choice of the program: the number of the value that it gives, and which way it goes."""
MOST_DRAWS = 4
"""The most draws of one program."""
MOST_RUNS = 5
"""The most runs of one draw, each with other magnitudes."""
_LARGE, _SMALL = 16.0, 1 / 64
"""A value is of order one if the root of its mean square lies between."""
_AT_POLES = (1 / 4, 4.0, 16.0, 1 / 16)
"""The magnitudes that positive arguments get, one after the other, while they make a value NaN."""
_FURTHEST = 2.0**10
"""The most by which a magnitude is changed."""
_INTEGERS = 64
"""Integers that nothing restricts are below this bound; those of smaller arguments are below its half, so that the
largest argument has numbers on both sides of theirs."""
_ONCE = ("a tie", "a sum that its constant changes")
"""The ways that one more draw is for."""
_OF_NUMBERS = ("a true value", "a false value")
"""The ways of a comparison with a number, for which no third draw is taken: in no run may they be equal."""
_HIDDEN = 64
"""The rounding units of a sum that hide a constant."""
_ZEROS, _EQUAL = 0.25, 0.25
"""The share of zeros among floats, where floats are to be equal, and the share of integers that have to be."""
_TURNED = 1 / 16
"""The share of the signs of a sum that the smaller part has to decide."""
_MOVED = ("reshape", "transpose", "broadcast_in_dim", "slice", "convert", "reverse", "concatenate", "pad", "reduce")
_LINEAR = (*_MOVED, "dot_general", "convolution", "multiply", "divide", "add", "subtract", "negate", "gather", "select")
_POLES = (".divide", ".log", ".rsqrt", ".power", ".log_plus_one")


class Draws:
    """The draws of the arguments of one program, which learn from its runs."""

    def __init__(self, block: Any, types: Sequence[jax.ShapeDtypeStruct], seed: int) -> None:
        self._types, self._seed = types, seed
        self._uses = IntegerUses.of(block)
        self._scales = _scales(block, types)
        self._positive: set[int] = set()
        self._fixed: set[int] = set()
        self._overflowing: set[int] = set()
        self._best: tuple[float, dict[int, float]] = (math.inf, {})
        self._is_settled = False
        self._powers: dict[int, float] = {}
        self._blamed: dict[int, tuple[float, frozenset[int]]] = {}
        self._steps: dict[int, int] = {}
        self._inside = False
        self._more: dict[int, float] = {}
        self._hints: dict[Choice, tuple[int, float]] = {}
        self.missing: dict[Choice, ReferenceValue] = {}
        self._taken: set[Choice] = set()
        self._equal: dict[int, Array] = {}
        self._has_ties = False
        self._drawn = 0
        self._finite = frozenset[int]()
        whole = (i for i, t in enumerate(types) if jnp.issubdtype(t.dtype, jnp.integer))
        self._largest = max(whole, key=lambda i: math.prod(types[i].shape), default=0)
        needs = self._uses.needs
        # Few integers that index are both ends in one draw, and one integer in two.
        sizes = [math.prod(types[i].shape) for i, n in needs.items() if n.spans]
        self._draws = max((3 if size < 2 else 2 for size in sizes if size <= FEW), default=1)

    # --- numbers ------------------------------------------------------------------------------------------------------

    def arrays(self, draw: int) -> Iterator[Array]:
        """Yields the arguments of a draw, by number; their floats are distinct, so that equal values mean equal
        positions."""
        # Some integers are to equal a value of the last draw, whose other arguments stay.
        self._drawn = self._drawn if self._equal else draw
        rng = np.random.default_rng((self._seed, self._drawn) if self._drawn else self._seed)
        for number, kind in enumerate(self._types):
            dtype: np.dtype[Any] = np.dtype(kind.dtype)
            array = self._array(rng, number, kind, self._drawn)
            if self._has_ties and _is_float(array) and array.ndim and number not in self._positive:
                array[rng.random(array.shape) < _ZEROS] = 0
            if (other := self._equal.get(number)) is not None:
                array.flat[::2] = other.flat[::2]
            yield array.astype(dtype, copy=False)

    def _array(self, rng: np.random.Generator, number: int, kind: jax.ShapeDtypeStruct, draw: int) -> Array:
        shape: tuple[int, ...] = kind.shape
        dtype: np.dtype[Any] = np.dtype(kind.dtype)
        if dtype == np.bool_:
            return rng.integers(0, 2, shape)
        if jnp.issubdtype(dtype, jnp.integer):
            need = self._uses.needs.get(number, Need())
            # In every other draw, the largest one lies within the others.
            reach = _INTEGERS // (1 if (number == self._largest) == (draw % 2 == 0) else 2)
            bottom = 1 if number in self._positive else -reach
            return need.drawn(rng, shape, jnp.iinfo(dtype), draw, bottom, reach)
        real = np.float32 if dtype.itemsize <= 4 else np.float64
        scale = real(self._scales.get(number, 1.0) * self._more.get(number, 1.0))
        if len(shape) < 2 or dtype.name == "float8_e8m0fnu":
            # As variances and gains are.
            return np.asarray(rng.random(shape, real) + real(0.5)) * scale
        values: Array = rng.standard_normal(shape, real)
        values = np.abs(values) + real(0.1) if number in self._positive else values
        if jnp.issubdtype(dtype, jnp.complexfloating):
            values = values + 1j * rng.standard_normal(shape)
        return values * scale

    def needs_draw(self, draw: int) -> bool:
        """Returns True if another draw is to be taken: a choice went one way only, or an index was at no end."""
        is_open = any(draw < 2 or way not in (*_ONCE, *_OF_NUMBERS) for _, way in self.missing)
        return draw < MOST_DRAWS and (draw == 0 or is_open or draw < self._draws)

    # --- what a run says ----------------------------------------------------------------------------------------------

    def rescale(self, values: Sequence[ReferenceValue], inside: bool) -> bool:
        """Changes the magnitudes of arguments that make a value too large or too small, or not a number.

        Returns True if one changed: the program is to be run again. `inside` says that values of loops are known.
        """
        if inside and not self._inside:
            self._inside, self._best = True, (math.inf, {})
            self._blamed.clear()
        if self._is_settled:
            return False
        before = dict(self._scales), set(self._positive)
        sizes = [_size(v.array) for v in values]
        count = sum(not _is_fine(size) for size in sizes)
        if count > self._best[0]:
            # Other magnitudes have made more values too large or too small: the last ones stay.
            self._scales, self._is_settled = self._best[1], True
            return True
        self._best = count, before[0]
        for number, (size, blamed) in self._blamed.items():
            grown = math.log2(sizes[number] / size) if sizes[number] and math.isfinite(sizes[number]) else 0.0
            self._powers[number] = -grown / math.log2(size)
            # A value that does not follow its arguments is not changed again.
            if self._powers[number] < 1 / 4:
                self._fixed.update(blamed)
        self._blamed.clear()
        changed, follows, at_poles = set[int](), set[int](), set[int]()
        for number, value in enumerate(values):
            size, read = sizes[number], value.operands
            if follows.intersection(read) or (value.operation is None and value.array.dtype.kind not in "iub"):
                follows.add(number)
            if number in self._fixed or value.operation is None or not all(math.isfinite(sizes[n]) for n in read):
                continue
            if math.isinf(size) and not value.op.endswith(_POLES):
                for argument in _nearest(values, sizes, number, linear=False):
                    self._scales[argument] = _bounded(self._scales.get(argument, 1.0) / 8)
                    self._overflowing.add(argument)
            elif not math.isfinite(size):
                at_poles |= _nearest(values, (), number, linear=False, integers=True)
            elif not all(_is_fine(sizes[n]) for n in read):
                # A large or small constant is meant so.
                continue
            elif number in follows and not _is_fine(size) and not value.op.endswith(".reduce"):
                blamed = _nearest(values, sizes, number, linear=size < 1) - self._fixed - changed
                blamed -= self._overflowing if size < 1 else set()
                for argument in blamed:
                    self._scales[argument] = _bounded(
                        self._scales.get(argument, 1.0) * size ** (-1 / self._powers.get(number, 1.0))
                    )
                changed |= blamed
                self._blamed[number] = size, frozenset(blamed | {number})
        self._move_from_poles(at_poles)
        return (self._scales, self._positive) != before

    def _move_from_poles(self, arguments: set[int]) -> None:
        """Makes arguments positive that lead to NaN; scales arguments that are positive already."""
        for number in arguments:
            kind = self._types[number]
            if number in self._positive or (len(kind.shape) < 2 and jnp.issubdtype(kind.dtype, jnp.floating)):
                step = self._steps[number] = self._steps.get(number, -1) + 1
                self._scales[number] = _AT_POLES[step % len(_AT_POLES)]
        self._positive |= arguments

    def note(self, values: Sequence[ReferenceValue], draw: int) -> bool:
        """Notes which ways the choices of a run went; returns True if that or an index is new with this draw."""
        sizes = [_size(v.array) for v in values]
        finite = frozenset(number for number, size in enumerate(sizes) if math.isfinite(size))
        if draw and not self._finite <= finite:
            return False
        rng, known = np.random.default_rng(draw), len(self._taken)
        self._finite = finite
        self.missing.clear()
        self._more.clear()
        self._equal.clear()
        self._has_ties = False
        varies: set[int] = set()
        for number, value in enumerate(values):
            if value.operation is None or varies.intersection(value.operands):
                varies.add(number)
            choosing = value.operands[: 1 if value.op.endswith((".select", ".case", ".if")) else None]
            is_loop = value.op.endswith(".while")
            if varies.intersection(choosing) and (is_loop or not value.manual):
                entered = [("an iteration", is_entered(values, number), 0.0)] if is_loop else ()
                for way, went, ratio in entered or self._ways(value, values, varies):
                    if went:
                        self._taken.add((number, way))
                        continue
                    arguments = _nearest(values, sizes, number, linear=False) if ratio else set[int]()
                    if (number, way) in self._taken or (ratio and way in _ONCE and not arguments):
                        continue
                    self.missing[number, way] = value
                    self._has_ties |= way == "a tie" and not draw
                    if way == "equal":
                        self._equate(values, sizes, value.operands)
                    for argument in arguments:
                        self._hints.setdefault((number, way), (argument, ratio))
        hints = [self._hints[choice] for choice in self.missing if choice in self._hints]
        if draw < 2 and hints:
            # A quotient grows as its divisor shrinks.
            self._more = {i: math.copysign(_bounded(abs(f) ** (1 - 2 * draw)), f) for i, f in hints}
        elif self.missing:
            self._more = {i: 2.0 ** int(rng.integers(-3, 4)) for i in range(len(self._types))}
        return draw == 0 or len(self._taken) > known or draw < self._draws

    def _ways(
        self, value: ReferenceValue, values: Sequence[ReferenceValue], varies: set[int]
    ) -> Iterator[tuple[str, bool, float]]:
        """Yields the ways of a choice: its name, whether it went there, and by what a float would get there."""
        name = value.op.rpartition(".")[2]
        read = [values[n].array for n in value.operands]
        if name == "select" and not self._uses.is_index_guard(value.operation.operands[0]):
            ratio, predicate = 0.0, values[value.operands[0]]
            while predicate.op.endswith(_MOVED) and predicate.operands:
                predicate = values[predicate.operands[0]]
            if predicate.op.endswith(".is_finite"):
                return
            if predicate.op.endswith(".compare"):
                ratio = _factor(values, varies, *predicate.operands)
            yield "true", bool(read[0].any()), ratio
            yield "false", not read[0].all(), ratio
        elif name in ("maximum", "minimum") and read[0].dtype.kind not in "iub":
            factor = _factor(values, varies, *value.operands)
            for side, (x, y) in zip(("first", "second"), (read, read[::-1]), strict=True):
                if np.isfinite(x).any():
                    yield f"the {side} operand", bool((x > y if name == "maximum" else x < y).any()), factor
        elif name == "compare" and _is_float(read[0]):
            yield "a tie", bool((read[0] == read[1]).any()), 0.0
        elif name == "add" and _is_float(read[0]) and (ratio := _negligible(values, varies, *value.operands)):
            yield "a sum that its constant changes", ratio > _HIDDEN * rounding_unit(read[0].dtype), ratio
        elif name == "sign" and (parts := [values[n] for n in values[value.operands[0]].operands])[1:]:
            large, small = sorted((p.array for p in parts[:2]), key=_size, reverse=True)
            is_sum = values[value.operands[0]].op.endswith((".add", ".subtract")) and _is_float(large)
            if is_sum and varies.issuperset(values[value.operands[0]].operands) and _size(small):
                turned = (np.abs(small.astype(np.float64)) > np.abs(large.astype(np.float64))).mean()
                ratio = _size(small) / _size(large)
                yield "the sign of the smaller part of a sum", bool(turned >= _TURNED), ratio
        elif name == "compare" and read[0].dtype.kind in "iu":
            is_equal = enum_of(value.value.owner, "comparison_direction") in ("EQ", "NE")
            if is_equal and varies.issuperset(value.operands):
                yield "equal", bool((read[0] == read[1]).mean() >= _EQUAL), 0.0
            elif is_equal:
                yield _OF_NUMBERS[0], bool(value.array.any()), 0.0
                yield _OF_NUMBERS[1], not value.array.all(), 0.0
        elif name == "remainder":
            is_above = bool((np.abs(read[0]) >= np.abs(read[1])).any())
            yield "a quotient of one or more", is_above, _factor(values, varies, *value.operands)
        elif name == "clamp":
            low, x, high = read
            yield "the lowest value", bool((x < low).any()), _factor(values, varies, *value.operands[:2])
            yield "the highest value", bool((x > high).any()), _factor(values, varies, *value.operands[1:])
        elif name in ("gather", "scatter", "dynamic_slice", "dynamic_update_slice"):
            numbers = dict(zip(value.operation.operands, value.operands, strict=True))
            for index, (low, high) in indexed(value.operation):
                if numbers.get(index) in varies:
                    array = values[numbers[index]].array
                    yield "the first index", bool((array <= low).any()), 0.0
                    yield "the last index", bool((array >= high).any()), 0.0
        elif name in ("case", "if"):
            count = len(value.operation.regions)
            chosen = int(read[0]) if name == "case" else 1 - int(read[0])
            for branch in range(count):
                yield f"branch {branch}", branch == (chosen if 0 <= chosen < count else count - 1), -1.0

    def _equate(self, values: Sequence[ReferenceValue], sizes: Sequence[float], read: Sequence[int]) -> None:
        """Takes the other side of a comparison for the integers of an argument, in the next draw."""
        for own, other in (read, read[::-1]):
            for argument in _nearest(values, sizes, own, linear=False, integers=True):
                array, wanted = values[argument].array, values[other].array
                if array.dtype.kind in "iu" and array.size == wanted.size > 1:
                    self._equal[argument] = wanted

    def unexercised(self) -> list[str]:
        """Returns what no draw has exercised, with the user's lines."""
        rows = [(way, v) for (_, way), v in self.missing.items() if way not in _ONCE]
        return list(dict.fromkeys(f"{v.op} never gave {way} ({v.place})" for way, v in rows))


def _factor(values: Sequence[ReferenceValue], varies: set[int], first: int, second: int) -> float:
    """Returns a factor of what varies of two values that takes it to the other side of the other one; 0 for none."""
    x, y = (first, second) if first in varies else (second, first)
    own, other = _size(values[x].array), _size(values[y].array)
    if values[x].array.dtype.kind in "iub" or not math.isfinite(own) or not math.isfinite(other):
        return 0.0
    return -1.0 if not own or not other else other / own * (2 if other > own else 0.5)


def _negligible(values: Sequence[ReferenceValue], varies: set[int], first: int, second: int) -> float:
    """Returns how large the constant of a sum is beside the other part; 0 without a constant, or if it is larger."""
    x, y = (first, second) if first in varies else (second, first)
    own, other = _size(values[x].array), float(np.abs(values[y].array).max(initial=0))
    return other / own if x in varies and y not in varies and math.isfinite(own) and 0 < other < own else 0.0


def _is_float(x: Array) -> bool:
    return bool(jnp.issubdtype(x.dtype, jnp.floating))


def _bounded(scale: float) -> float:
    return min(max(scale, 1 / _FURTHEST), _FURTHEST)


def _size(x: Array) -> float:
    """Returns the root of the mean square of some elements of floats; 1 for other arrays and for none."""
    if x.dtype.kind in "iubO" or not x.size:
        return 1.0
    few = np.asarray(x[tuple(slice(None, None, max(1, n // 8)) for n in x.shape)])
    with np.errstate(all="ignore"):
        return float(np.sqrt(np.mean(np.square(np.abs(few).astype(np.float64)))))


def is_finite(value: ReferenceValue) -> bool:
    """Returns True if some elements of a value are numbers, and finite."""
    return math.isfinite(_size(value.array))


def _is_fine(size: float) -> bool:
    return size == 0 or _SMALL <= size <= _LARGE


def _nearest(
    values: Sequence[ReferenceValue], sizes: Sequence[float], number: int, *, linear: bool, integers: bool = False
) -> set[int]:
    """Returns the argument to blame for a value, by the fewest operations in between; empty without an argument.

    The larger operand of a sum counts. `linear` passes through operations that scale with their operands alone.
    """
    front, seen = [(0, number)], {number}
    while front:
        steps, at = heapq.heappop(front)
        value = values[at]
        if value.operation is None:
            if integers or value.array.dtype.kind not in "iub":
                return {at}
            continue
        name = value.op.rpartition(".")[2]
        if linear and name not in _LINEAR:
            continue
        read = value.operands[1:] if name in ("select", "clamp") else value.operands
        if name in ("add", "subtract") and sizes:
            read = (max(read, key=lambda n: (values[n].array.dtype.kind not in "iub", sizes[n])),)
        for operand in read:
            if operand not in seen:
                seen.add(operand)
                heapq.heappush(front, (steps + (name not in _MOVED), operand))
    return set()


def _scales(block: Any, types: Sequence[jax.ShapeDtypeStruct]) -> dict[int, float]:
    """Returns by argument the scale that keeps products of order one: the second operand has the weights."""
    roots: dict[Any, int] = {v: i for i, v in enumerate(block.arguments)}
    summed: dict[int, int] = {}
    for op in [o.operation for o in block.operations]:
        name, operands = op.name.partition(".")[2], list(op.operands)
        if name in _MOVED and operands and operands[0] in roots:
            roots.update(dict.fromkeys(op.results, roots[operands[0]]))
        if name == "dot_general":
            side = 1 if operands[1] in roots else 0
            shape, (contracted, _) = operands[side].type.shape, dot_dims(op)
            count = math.prod(shape[d] for d in contracted[side])
        elif name == "convolution":
            side, shape = 1, operands[1].type.shape
            count = math.prod(shape[d] for d in convolution_dims(op).rhs_spec[1:])
        else:
            continue
        if (argument := roots.get(operands[side])) is not None and len(types[argument].shape) > 1:
            summed[argument] = max(count, summed.get(argument, 1))
    return {argument: 1 / math.sqrt(count) for argument, count in summed.items()}
