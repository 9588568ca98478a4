"""Where the integers of a program's arguments have to lie, read from what the program does with them."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

import numpy as np
from jaxlib.mlir.dialects import stablehlo as hlo

from jaxmesh.frontends.stablehlo.call import enum_of
from jaxmesh.frontends.stablehlo.control_flow import find_counter

Span = tuple[int, int]
"""The lowest and the highest of some integers."""
_SAME = ("reshape", "transpose", "broadcast_in_dim", "slice", "convert", "reverse", "optimization_barrier", "copy")
_JOINED = ("concatenate", "select", "maximum", "minimum", "clamp", "dynamic_slice", "gather", "pad")
FEW = 3
"""The most integers of an argument that are its ends in one draw, and others in another one."""
_APART = 2
"""How far apart integers are that are compared with each other."""
_DEVICES = 1 << 15
"""More than the devices of any mesh."""
_OF_INTEGERS = re.compile(r"[x<](?:ui|i)\d+>$")


@dataclass(frozen=True, slots=True)
class ArgumentForm:
    """An integer as a form of an argument: times a scale, plus an offset within a span."""

    argument: int
    scale: Fraction = Fraction(1)
    low: int = 0
    high: int = 0

    def within(self, span: Span, *, anywhere: bool = False) -> Span:
        """Returns where the argument has to lie for the integer to lie within a span, with `anywhere` for an offset."""
        least, most = (self.high, self.low) if anywhere else (self.low, self.high)
        low, high = span[0] - least, span[1] - most
        # A quotient is rounded towards zero.
        more = 0 if self.scale.denominator == 1 else self.scale.denominator - 1
        ends = Fraction(low) / self.scale, (Fraction(high) + Fraction(more, self.scale.denominator)) / self.scale
        return -int(-min(ends) // 1), int(max(ends) // 1)


@dataclass(slots=True)
class Need:
    """Where the integers of one argument have to lie.

    Attributes:
      spans: the spans of valid ones, from the lowest; empty if nothing restricts them.
      special: single values that the program treats apart.
      near: values beside a bound that the program compares with.
      once: True if no integer may occur twice, as the result would depend on the order of writes.
      few: True if integers of arguments are compared with each other, so that some have to be equal.
      indexes: True if an operation indexes with them, so that only integers within the spans are valid.
    """

    spans: list[Span] = field(default_factory=list[Span])
    special: set[int] = field(default_factory=set[int])
    near: set[int] = field(default_factory=set[int])
    once: bool = False
    few: bool = False
    indexes: bool = False

    def restrict(self, spans: Sequence[Span]) -> None:
        """Keeps the part of the spans within other spans, unless that part is empty."""
        pairs = itertools.product(self.spans, spans) if self.spans else ((s, s) for s in spans)
        kept = sorted((max(a[0], b[0]), min(a[1], b[1])) for a, b in pairs)
        joined: list[Span] = []
        for low, high in [s for s in kept if s[0] <= s[1]]:
            if joined and low <= joined[-1][1]:
                low, high = joined[-1][0], max(high, joined.pop()[1])
            joined.append((low, high))
        self.spans = joined or self.spans

    def drawn(
        self, rng: np.random.Generator, shape: tuple[int, ...], info: Any, draw: int, bottom: int, reach: int
    ) -> np.ndarray[Any, Any]:
        """Returns integers where they are needed, else from `bottom` and below `reach`, both ends among them; of few
        integers in the first draw, of one integer in later ones.

        Some elements are special, and some count from the end, where the program takes them.
        """
        # Integers that are compared with others have to equal some.
        bottom = 0 if self.few else bottom if info.min < 0 or bottom > 0 else 0
        given = self.spans or [(bottom if shape else max(bottom, 1), reach - 1)]
        spans: list[Span] = [s for a, b in given if (s := (max(a, int(info.min)), min(b, int(info.max))))[0] <= s[1]]
        low, high = spans[-1] if spans else (0, 0)
        size = math.prod(shape)
        if self.once and high - low + 1 >= size:
            return low + rng.permutation(high - low + 1)[:size].reshape(shape)
        near = {n for n in self.near if not self.indexes or any(a <= n <= b for a, b in spans)}
        special = [n for n in sorted(self.special | near) if info.min <= n <= info.max]
        ends = [low, high, *(e for s in spans[:-1] for e in s), *special]
        if size < 2:
            inner = rng.integers(low + (high - low > 1), high + (high - low < 2), shape)
            return np.full(shape, ends[(draw - 1) % len(ends)]) if draw else inner
        values = rng.integers(low, min(high, low + _APART) + 1 if self.few else high + 1, size)
        if draw == 1 and self.special and not self.spans:
            # Sums of them may have to be as small as what they are compared with.
            values = np.clip(rng.choice(special, size) + rng.integers(-1, 2, size), info.min, info.max)
        for other in spans[:-1] if size > 3 else ():
            part = rng.choice(size, max(1, size // 8), replace=False)
            values[part] = rng.integers(other[0], other[1] + 1, part.size)
        # Each number takes other elements, if the array has enough.
        free = itertools.cycle(rng.permutation(size).tolist())
        often = [(n, max(1, size // 16)) for n in special if size > 3]
        both = [(low, 1), (values[-1] if self.few else high, 1)]
        counts = [*(both if not draw or size > FEW else ()), *often]
        for number, count in counts:
            values[[next(free) for _ in range(count)]] = number
        return values.reshape(shape)


@dataclass(slots=True)
class IntegerUses:
    """The integers of a program, followed from its arguments.

    Attributes:
      needs: of each argument that an operation restricts.
      forms: the forms of each value; each element has one of them.
      spans: the span of each value that does not depend on the arguments.
    """

    needs: dict[int, Need] = field(default_factory=dict[int, Need])
    forms: dict[Any, frozenset[ArgumentForm]] = field(default_factory=dict[Any, frozenset[ArgumentForm]])
    spans: dict[Any, Span] = field(default_factory=dict[Any, Span])

    @classmethod
    def of(cls, block: Any) -> IntegerUses:
        """Follows the arguments of a block."""
        uses = cls()
        for number, value in enumerate(block.arguments):
            if _is_integer(value):
                uses.forms[value] = frozenset({ArgumentForm(number)})
        uses._block(block)
        return uses

    def is_index_guard(self, predicate: Any) -> bool:
        """Returns True if a predicate only asks if integers are valid indices, as all drawn ones are."""
        op = predicate.owner
        name = _name(op)
        if name == "compare":
            x, y = op.operands
            known = self.spans.get(y)
            restricted = all(f.argument in self.needs for f in self.forms.get(x, ()))
            return _is_integer(x) and known is not None and known[0] == known[1] and restricted
        return name in ("and", "or", "not", "reduce", *_SAME) and all(map(self.is_index_guard, list(op.operands)[:1]))

    # --- values -------------------------------------------------------------------------------------------------------

    def _block(self, block: Any) -> None:
        for op in [o.operation for o in block.operations]:
            self._enter(op)
            for region in op.regions:
                for inner in region.blocks:
                    self._block(inner)
            self._use(op)
            if any(map(_is_integer, op.results)):
                self._follow(op)

    def _enter(self, op: Any) -> None:
        """Gives the arguments of regions the forms of their operands."""
        if _name(op) not in ("while", "manual_computation"):
            return
        counter = find_counter(op) if _name(op) == "while" else None
        for number, value in enumerate(op.operands):
            span = self.spans.get(value)
            if counter is not None and span is not None:
                step = self._step(op.regions[1].blocks[0], number)
                span = None if step is None else (span[0], span[1] + step * max(counter.length - 1, 0))
            inner = [r.blocks[0].arguments[number] for r in op.regions]
            for target in [*inner, *list(op.results)[number : number + 1]]:
                self._set(target, self.forms.get(value, frozenset()), span)

    def _step(self, body: Any, number: int) -> int | None:
        """Returns what an iteration adds to a carried value; None if it is not a constant."""
        *_, end = [o.operation for o in body.operations]
        value, carried = end.operands[number], body.arguments[number]
        if value == carried:
            return 0
        op = value.owner
        if _name(op) != "add" or op.operands[0] != carried or _name(op.operands[1].owner) != "constant":
            return None
        attribute = op.operands[1].owner.attributes["value"]
        return int(attribute.get_splat_value().value) if attribute.is_splat else None

    def _set(self, value: Any, forms: frozenset[ArgumentForm], span: Span | None) -> None:
        self.forms[value] = forms
        if span is not None and not forms:
            self.spans[value] = span

    def _follow(self, op: Any) -> None:
        name, result = _name(op), op.results[0]
        if name == "constant":
            numbers = np.asarray(op.attributes["value"])
            if numbers.size:
                self._set(result, frozenset(), (int(numbers.min()), int(numbers.max())))
        elif name == "partition_id":
            self._set(result, frozenset(), (0, _DEVICES))
        elif name == "iota":
            size = result.type.shape[int(op.attributes["iota_dimension"])]
            self._set(result, frozenset(), (0, max(0, size - 1)))
        elif name in (*_SAME, *_JOINED):
            read = list(op.operands)[1:] if name == "select" else op.operands
            if name == "select" and _name(read[1].owner) == "divide":
                # A quotient that is rounded down, by one less where it is negative.
                read = read[1:]
            read = op.operands[:1] if name in (*_SAME, "dynamic_slice", "gather", "pad") else read
            spans = [self.spans[v] for v in read if v in self.spans]
            span = (min(s[0] for s in spans), max(s[1] for s in spans)) if len(spans) == len(read) else None
            self._set(result, frozenset[ArgumentForm]().union(*(self.forms.get(v, ()) for v in read)), span)
        elif len(op.operands) == 2:
            self._compute(name, op.operands[0], op.operands[1], result)

    def _compute(self, name: str, x: Any, y: Any, result: Any) -> None:
        known = self.spans.get(y)
        if name in ("add", "multiply") and x in self.spans and (known is None or known[0] < known[1]):
            x, y, known = y, x, self.spans[x]
        if name == "remainder" and known is not None and self.spans.get(x, (-1, -1))[0] >= 0:
            self._set(result, frozenset(), (0, known[1] - 1))
        if name not in ("add", "subtract") and name not in ("multiply", "divide"):
            return
        if known is None:
            # Two arguments together: each may have half of what is valid.
            both = self.forms.get(x, frozenset()) | self.forms.get(y, frozenset())
            if name == "add" and both:
                self.forms[result] = frozenset(
                    ArgumentForm(f.argument, f.scale * 2, 2 * f.low, 2 * f.high) for f in both
                )
            return
        low, high = known if name != "subtract" else (-known[1], -known[0])
        forms, own = self.forms.get(x, frozenset()), self.spans.get(x)
        if name in ("add", "subtract"):
            forms = frozenset(ArgumentForm(f.argument, f.scale, f.low + low, f.high + high) for f in forms)
            self._set(result, forms, own and (own[0] + low, own[1] + high))
        elif low == high != 0:
            by = Fraction(low) if name == "multiply" else Fraction(1, low)
            scaled = [ArgumentForm(f.argument, f.scale * by, int(f.low * by), int(f.high * by)) for f in forms]
            ends = None if own is None else sorted(int(e * by) for e in own)
            self._set(result, frozenset(scaled), None if ends is None else (ends[0], ends[1]))

    # --- uses ---------------------------------------------------------------------------------------------------------

    def _use(self, op: Any) -> None:
        for value, span in indexed(op):
            self._restrict(value, span)
        match _name(op):
            case "compare":
                self._compare(op)
            case "clamp" | "maximum" | "minimum":
                bounds = [self.spans[v] for v in op.operands if v in self.spans]
                for value in op.operands:
                    for low, high in bounds:
                        self._mark(value, low - 1, high + 1)
            case "remainder" if (known := self.spans.get(op.operands[1])) is not None:
                self._mark(op.operands[0], known[1], 2 * known[1] + 1)
            case "scatter" if len(op.regions[0].blocks[0].operations) == 1:
                for form in self.forms.get(op.operands[len(op.operands) // 2], ()):
                    self.needs.setdefault(form.argument, Need()).once = True
            case _:
                pass

    def _compare(self, op: Any) -> None:
        if enum_of(op, "comparison_direction") in ("EQ", "NE") and all(self.forms.get(v) for v in op.operands):
            for form in frozenset[ArgumentForm]().union(*(self.forms[v] for v in op.operands)):
                self.needs.setdefault(form.argument, Need()).few = True
        for x, y in (op.operands, list(op.operands)[::-1]):
            known = self.spans.get(y)
            if known is not None and known[0] < known[1]:
                self._restrict(x, known, anywhere=True)
            elif known is not None and enum_of(op, "comparison_direction") in ("EQ", "NE"):
                self._mark(x, known[0])
            elif known is not None:
                self._mark(x, known[0] - 1, known[0], known[0] + 1, near=True)

    def _restrict(self, value: Any, span: Span, *, anywhere: bool = False) -> None:
        by_argument: dict[int, list[Span]] = {}
        for form in self.forms.get(value, ()):
            by_argument.setdefault(form.argument, []).append(form.within(span, anywhere=anywhere))
        for argument, spans in by_argument.items():
            if valid := [s for s in spans if s[0] <= s[1]]:
                need = self.needs.setdefault(argument, Need())
                need.restrict(valid)
                need.indexes |= not anywhere

    def _mark(self, value: Any, *numbers: int, near: bool = False) -> None:
        for form in self.forms.get(value, ()):
            need = self.needs.setdefault(form.argument, Need())
            found = {form.within((n, n)) for n in numbers}
            (need.near if near else need.special).update(low for low, high in found if low <= high)


def _name(op: Any) -> str:
    return str(getattr(op, "name", "")).rpartition(".")[2]


def _is_integer(value: Any) -> bool:
    return _OF_INTEGERS.search(str(value.type)) is not None


def indexed(op: Any) -> Iterator[tuple[Any, Span]]:
    """Yields the indices that an operation reads, with the span of the valid ones."""
    name, operands = _name(op), list(op.operands)
    if name in ("dynamic_slice", "dynamic_update_slice"):
        first = 1 if name == "dynamic_slice" else 2
        taken = op.attributes["slice_sizes"] if first == 1 else operands[1].type.shape
        for size, part, index in zip(operands[0].type.shape, taken, operands[first:], strict=True):
            yield index, (0, size - int(part))
    elif name in ("gather", "dynamic_gather"):
        shape, dims = operands[0].type.shape, hlo.GatherDimensionNumbers(op.attributes["dimension_numbers"])
        taken = list(op.attributes["slice_sizes"]) if name == "gather" else [1] * len(shape)
        spans = [(0, shape[d] - int(taken[d])) for d in dims.start_index_map]
        yield from _components(operands[1], spans, dims.index_vector_dim)
    elif name == "scatter":
        count, dims = len(operands) // 2, hlo.ScatterDimensionNumbers(op.attributes["scatter_dimension_numbers"])
        shape, update = operands[0].type.shape, operands[count + 1].type.shape
        inserted = {*dims.inserted_window_dims, *dims.input_batching_dims}
        window = [update[d] for d in dims.update_window_dims]
        sizes = iter(window)
        taken = [1 if d in inserted else next(sizes, 1) for d in range(len(shape))]
        spans = [(0, shape[d] - taken[d]) for d in dims.scattered_dims_to_operand_dims]
        yield from _components(operands[count], spans, dims.index_vector_dim)


def _components(indices: Any, spans: Sequence[Span], dim: int) -> Iterator[tuple[Any, Span]]:
    """Yields the indices of each dim, which may be concatenated; else what suits every dim."""
    op = indices.owner
    if _name(op) == "concatenate" and int(op.attributes["dimension"]) == dim and len(op.operands) == len(spans):
        yield from zip(op.operands, spans, strict=True)
    elif spans:
        yield indices, min(spans, key=lambda s: s[1])
