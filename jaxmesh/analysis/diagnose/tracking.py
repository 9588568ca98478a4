"""Follows a stage value by value, and explains each by the unsharded run."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from jaxmesh.analysis.diagnose.cuts import global_shapes
from jaxmesh.analysis.diagnose.matching import Globals, HeldValue, split_axes
from jaxmesh.analysis.diagnose.movements import (
    Shapes,
    distance_of_forms,
    error_of_forms,
    is_collective,
    is_movement,
    is_predicate,
    moved,
    short_name,
)
from jaxmesh.analysis.diagnose.reference import Reference
from jaxmesh.analysis.diagnose.rounding import EXACT, as_numbers, is_exact
from jaxmesh.analysis.diagnose.stage import Array, Copies, StageProgram, as_pairs, producers, run_stage, without_equal
from jaxmesh.analysis.diagnose.wrong_values import compare_with
from jaxmesh.analysis.record.metrics import rounding_unit
from jaxmesh.dialects.definitions import has_trait
from jaxmesh.dialects.op import Trait
from jaxmesh.dialects.program import Op, Value
from jaxmesh.frontends.stablehlo.reductions import kind_of
from jaxmesh.frontends.stablehlo.shardings import Sharding


@dataclass(slots=True)
class Output:
    """One result of a stage: its value, its error relative to the largest magnitude, the error that rounding explains,
    and what other roundings of the program make of it."""

    value: Value
    error: float
    limit: float
    exact: float
    spread: float = math.inf

    @property
    def is_right(self) -> bool:
        """Returns True if rounding explains the error."""
        return self.error <= self.limit


@dataclass
class Track:
    """The values of a stage, with their meanings in the unsharded run.

    Attributes:
      stage: the stage.
      reference: the unsharded run.
      pool: the global values.
      placed: the arguments of the stage.
      known: the explanation of each explained value.
      unexplained: the copies of each other value.
      reproduced: the numbers of the values of the reference that devices hold.
      units: the largest rounding unit in the history of each value.
      errors: the error of each explained value; of another value the largest error of its operands.
      outputs: the results.
      results: the copies of results, and of parts of reductions.
      rounded: by number, the values of the reference that the devices hold rounded, as they do.
      unread: the lines and names of operations that are not read, and stand for numbers.
      given: the operations of the program whose values stand in their place.
      decided: the `Culprit` at which rounding alone decides, if it does.
    """

    stage: StageProgram
    reference: Reference
    pool: Globals
    placed: Sequence[Any] = ()
    known: dict[Value, HeldValue] = field(default_factory=dict[Value, HeldValue])
    unexplained: dict[Value, Copies] = field(default_factory=dict[Value, Copies])
    reproduced: set[int] = field(default_factory=set[int])
    units: dict[Value, float] = field(default_factory=dict[Value, float])
    errors: dict[Value, float] = field(default_factory=dict[Value, float])
    outputs: list[Output] = field(default_factory=list[Output])
    results: dict[Value, Copies] = field(default_factory=dict[Value, Copies])
    rounded: dict[int, Array] = field(default_factory=dict[int, Array])
    decided: Any = None
    unread: tuple[tuple[int, str], ...] = ()
    given: tuple[str, ...] = ()

    @cached_property
    def producers(self) -> dict[Value, tuple[int, Op]]:
        """The number and the operation that make each value."""
        return producers(self.stage.text)

    @cached_property
    def used(self) -> list[int]:
        """The values of the reference that its results need; a compiler leaves out others and empty ones."""
        values, found, rest = self.reference.values, set[int](), list(self.reference.outputs)
        while rest:
            number = rest.pop()
            if number not in found and values[number].array.size:
                found.add(number)
                rest += values[number].operands
        return sorted(found)

    @cached_property
    def parts(self) -> dict[int, tuple[int, tuple[str, ...], str]]:
        """The values within a region that are parts of a reduction alone, with its number, kind, and the axes along
        which they differ."""
        values, same = self.reference.values, self.pool.same
        readers = Counter(n for value in values for n in value.operands)
        found: dict[int, tuple[int, tuple[str, ...], str]] = {}
        for number, value in enumerate(values):
            (operand, *more) = value.operands or (0, 0)
            axes = tuple(a for a in values[operand].apart if a not in value.apart)
            if value.op == "stablehlo.all_reduce" and not more and readers[operand] == 1:
                found[same[operand]] = number, axes, kind_of(value.value.owner) or ""
        return found

    def on_global(
        self, op: Op, known: Sequence[HeldValue], perform: Callable[[Sequence[Array], Shapes], Iterator[Array | None]]
    ) -> Iterator[tuple[Array, tuple[str, ...]]]:
        """Yields the results of an operation on global values, and within a region on the values of each device."""
        mesh, number = self.stage.mesh, self.producers[op.results[0]][0]
        local = self.stage.text.program.types[op.results[0]].shape
        apart = frozenset(a for e in known for a in e.apart)
        manual = apart.union(self.reference.manual_axes(self.stage.source(number)))
        # A reshape of blocks may mix their dims.
        split = manual.union(split_axes(known) if has_trait(op.name, Trait.VIEW) else ())
        for axes in dict.fromkeys((apart, manual, split)):
            names = [a for a in mesh if a in axes]
            sizes = [mesh[a] for a in names]
            shapes = list(global_shapes(local, [a for a in split_axes(known) if a not in axes], mesh))
            devices = zip(*(self.pool.within(e, axes) for e in known), strict=True)
            for parts in zip(*(perform(arrays, shapes) for arrays in devices), strict=True):
                made = [x for x in parts if x is not None]
                if len(made) == len(parts):
                    yield without_equal(np.stack(made).reshape((*sizes, *made[0].shape)), names)

    def operands(self, op: Op) -> list[Value]:
        """Returns the tensors that an operation reads."""
        return self.stage.operands(op)

    def moved_operands(self, op: Op) -> list[Value]:
        """Returns the tensors that a movement moves; none of another operation."""
        return self.operands(op) if is_movement(op) else []

    def before(
        self, values: Iterable[Value], reads: Callable[[Op], Iterable[Value]] | None = None
    ) -> list[tuple[int, Op]]:
        """Returns the operations that values are computed from, in order; `reads` gives the operands to go on from."""
        found, rest = dict[int, Op](), list(values)
        while rest:
            made = self.producers.get(rest.pop())
            if made is not None and made[0] not in found:
                found[made[0]] = made[1]
                rest += (reads or self.operands)(made[1])
        return sorted(found.items())

    @property
    def is_right(self) -> bool:
        """Returns True if every result is right."""
        return all(o.is_right for o in self.outputs)

    @property
    def not_explained(self) -> tuple[str, ...]:
        """The operations with unexplained results, with their lines."""
        made = sorted({self.producers[v][0] for v in self.unexplained})
        return tuple(f"{self.stage.written_name(n)} (line {self.stage.text.lines[n]})" for n in made)

    @cached_property
    def pcc(self) -> float:
        """The least correlation of a result with the unsharded run."""
        found: list[float] = []
        for output, number in zip(self.outputs, self.reference.outputs, strict=True):
            copies = self.results[output.value]
            value = compare_with(self.pool, copies, self._as_held(number, copies), 0.0)
            # The correlation of one number is not defined.
            is_defined = not output.is_right or self.pool.arrays[number].size > 1
            found += [value.pcc] if value is not None and is_defined else []
        return min(found, default=1.0)

    # --- values -------------------------------------------------------------------------------------------------------

    def follow(self, run: Iterator[tuple[Value, Copies]]) -> None:
        """Explains every value of a run, and checks its results."""
        wanted = {port.value for port in self.stage.text.program.results}
        for value, copies in run:
            found = self._explain(value, copies)
            if found is None:
                self.unexplained[value] = copies
            else:
                self.known[value] = found
                self.reproduced.update(self.pool.same[n] for n in self.origins(found.number))
                self._keep_rounded(found, copies)
            if value in wanted or any(e.partial for e in self.held(value)):
                self.results[value] = copies
        ports = self.stage.text.program.results
        self.outputs = [self.output(i, p.value, self.results[p.value]) for i, p in enumerate(ports)]

    def _keep_rounded(self, found: HeldValue, copies: Copies) -> None:
        is_whole = found.number < len(self.reference.values) and not (found.partial or found.apart)
        if is_whole and not is_exact(found.error) and found.number not in self.rounded:
            array = self.rounded[found.number] = np.empty_like(self.pool.arrays[found.number])
            for c, x in copies.items():
                self.pool.block(found.number, found.placement, c, array)[...] = as_numbers(x)

    def _explain(self, value: Value, copies: Copies) -> HeldValue | None:
        made = self.producers.get(value)
        unit = rounding_unit(next(iter(copies.values())).dtype)
        if made is None:
            declared = self.reference.arguments[value] if self.stage.text.presharded[value] else None
            self.units[value] = min(unit, EXACT)
            number = self._as_held(value, copies)
            placement = (*(declared or ()), *((),) * self.pool.arrays[number].ndim)[: self.pool.arrays[number].ndim]
            return HeldValue(self.pool.same[number], placement)
        _, op = made
        types = self.stage.text.program.types
        # Movements have the roundings of their operands; every type holds truth values.
        is_step = is_movement(op) and not has_trait(op.name, Trait.REDUCES)
        keeps = is_step and types[op.used[0]].dtype in (types[value].dtype, np.bool_)
        unit = min(unit, EXACT) if keeps or is_predicate(op) else unit
        rounding, carried = self.carried(value, unit)
        self.units[value] = rounding
        # Parts of a reduction, moved, stay parts, whatever whole value is equal to them.
        found = self._moved(op, value, copies, rounding, carried) if self.partial_operands(op) else None
        if found is None:
            # Rounding does not change the integers of unexplained values of float32.
            is_open = any(v in self.unexplained for v in self.operands(op)) and not unit and rounding <= EXACT
            found = self.pool.explain(copies, rounding, 0.0 if is_open else carried, kinds=self.kinds(op))
        if found is None:
            found = self._moved(op, value, copies, rounding, carried)
        if found is None:
            found = self._in_other_form(op, copies, rounding, carried)
        if found is not None and not found.partial:
            parts = [
                self.parts[n] for n in map(self.pool.same.__getitem__, self.origins(found.number)) if n in self.parts
            ]
            found = replace(found, partial=parts[0][1], kind=parts[0][2]) if parts else found
        self.errors[value] = max(carried, distance_of_forms(op)) if found is None else found.error
        if found is not None and is_exact(found.error):
            # Nothing was lost by what is narrow in its history.
            self.units[value] = min(rounding, EXACT)
        return found

    def _in_other_form(self, op: Op, copies: Copies, rounding: float, carried: float) -> HeldValue | None:
        """Explains the result of a function that TTNN has in another form than the program."""
        if not distance_of_forms(op):
            return None
        size = max(float(np.max(np.abs(as_numbers(x)), initial=0.0)) for x in copies.values())
        return self.pool.explain(copies, rounding, max(carried, error_of_forms(op, size)), kinds=())

    def carried(self, value: Value, unit: float) -> tuple[float, float]:
        """Returns the largest rounding unit in the history of a value, and the largest error of the operands."""
        made = self.producers.get(value)
        operands = self.operands(made[1]) if made else []
        rounding = max([unit, *(self.units.get(v, 0.0) for v in operands)])
        return rounding, max((self.errors.get(v, 0.0) for v in operands), default=0.0)

    def origins(self, number: int) -> list[int]:
        """Returns the global values that a global value is a movement of, itself first."""
        found = [number]
        while found[-1] in self.pool.sources and self.pool.sources[found[-1]] not in found:
            found.append(self.pool.sources[found[-1]])
        return found

    def kinds(self, op: Op) -> list[str]:
        """Returns the reductions whose parts an operation may leave on the devices."""
        written = {op.name, str(op.attributes.get("reduce_type", ""))}
        written |= {e.kind for v in self.operands(op) for e in self.held(v)}
        return ["sum", *[k for k in ("max", "min") if any(k in w for w in written)]]

    def _moved(self, op: Op, value: Value, copies: Copies, rounding: float, carried: float) -> HeldValue | None:
        """Explains a new constant, or the result of a movement of an explained value."""
        operands = self.operands(op)
        first = next(iter(copies.values()))
        if not operands and all(x is first for x in copies.values()):
            return HeldValue(self.pool.add(first), ((),) * first.ndim)
        if not is_movement(op) or is_collective(op) or operands[0] not in self.known:
            return None
        operand = self.known[operands[0]]
        for candidate in self.on_global(op, [operand], lambda arrays, shapes: self.moved(op, arrays[0], shapes)):
            found = self.try_value(candidate, copies, rounding, carried, self.kinds(op))
            if found is not None:
                self.pool.sources.setdefault(found.number, operand.number)
                return found
        return None

    def moved(self, op: Op, x: Array, shapes: Shapes) -> Iterator[Array]:
        """Yields what a movement may make of a value."""
        types = self.stage.text.program.types
        return moved(op, x, types[self.operands(op)[0]].shape, types[op.results[0]], shapes)

    def held(self, value: Value) -> tuple[HeldValue, ...]:
        """Returns the explanation of a value, if there is one."""
        return (self.known[value],) if value in self.known else ()

    def try_value(
        self,
        candidate: tuple[Array, tuple[str, ...]],
        copies: Copies,
        rounding: float,
        carried: float,
        kinds: Sequence[str],
    ) -> HeldValue | None:
        """Explains a value by a new global value, which is kept if it does."""
        number = self.pool.add(*candidate)
        found = self.pool.explain(copies, rounding, carried, kinds=kinds, only=number)
        if found is None or number != len(self.pool.arrays) - 1:
            self.pool.remove_last()
        return found

    def _as_held(self, number: int, copies: Copies) -> int:
        """Returns the number of a value of the program as the devices hold it: numbers of 64 bits may be pairs."""
        array = self.pool.arrays[number]
        is_pairs = array.dtype == np.uint64 and copies[min(copies)].ndim > array.ndim
        return self.pool.add(as_pairs(array)) if is_pairs else number

    def _error(self, copies: Copies, number: int, sharding: Sharding) -> float:
        """Returns the error of copies as the blocks of a global value; infinite for other shapes."""
        fits = self._fits(next(iter(copies.values())).shape, number, sharding)
        return self.pool.error(copies, number, sharding) if fits else math.inf

    def _fits(self, local: Sequence[int], number: int, sharding: Sharding) -> bool:
        """Returns True if a sharding cuts a global value into shards of a local shape."""
        full = self.pool.shape(number)
        by_dim = (*sharding, *((),) * (len(full) - len(sharding)))
        cut = [math.prod(self.stage.mesh.get(axis, 1) for axis in axes) for axes in by_dim]
        alike = len(local) == len(full) == len(cut)
        return alike and all(n * k == m for n, k, m in zip(local, cut, full, strict=True))

    # --- results ------------------------------------------------------------------------------------------------------

    def output(self, number: int, value: Value, copies: Copies) -> Output:
        """Checks one result against the declared sharding; without one, any placement is right."""
        wanted = self.pool.same[self._as_held(self.reference.outputs[number], copies)]
        known, declared = self.known.get(value), self.reference.results[number]
        on_devices = self.stage.text.results[number].status == "presharded"
        rounding, carried = self.units.get(value, 0.0), self.carried(value, 0.0)[1]
        if known is not None and self.pool.same[known.number] == wanted:
            carried = max(carried, known.error)
        elif value in self.producers:
            carried = max(carried, error_of_forms(self.producers[value][1], self.pool.scale(wanted)))
        limit = self.pool.limit(wanted, rounding, carried)
        exact = self.pool.limit(wanted, self.pool.unit(wanted), 0.0)
        if on_devices and declared is None:
            found = self.pool.explain(copies, rounding, carried, kinds=(), only=wanted)
            return Output(value, math.inf if found is None else found.error, limit, exact)
        misplaced = self.is_misplaced(number, value)
        error = math.inf if misplaced else self._error(copies, wanted, self._asked(number, wanted))
        return Output(value, error, limit, exact)

    def is_misplaced(self, number: int, value: Value) -> bool:
        """Returns True if the devices hold a result that is asked in shards, and the text marks it as whole."""
        ops = [op for _, op in self.before([value], self.moved_operands)]
        return self.stage.marks_whole(number, self.reference.results[number] or (), ops)

    def _asked(self, number: int, wanted: int) -> Sharding:
        """Returns the sharding of a result; of a result on the host none."""
        declared, full = self.reference.results[number], self.pool.arrays[wanted].ndim
        on_devices = self.stage.text.results[number].status == "presharded"
        return (*(declared if on_devices and declared else ()), *((),) * full)[:full]

    def right_output(self, number: int, value: Value) -> Copies | None:
        """Returns what each device should hold of a result; None if that has another shape."""
        kind = self.stage.text.program.types[value]
        wanted = self._as_held(self.reference.outputs[number], self.results[value])
        asked = self._asked(number, wanted)
        if self.is_misplaced(number, value) or not self._fits(kind.shape, wanted, asked):
            return None
        return {c: self.pool.block(wanted, asked, c).astype(kind.dtype) for c in self.stage.coordinates}

    # --- the text -----------------------------------------------------------------------------------------------------

    def copies(self, value: Value) -> Copies:
        """Returns the value of each device."""
        found = self.unexplained.get(value) or self.results.get(value)
        if found is not None:
            return found
        known = self.known[value]
        return {c: self.pool.block(known.number, known.placement, c) for c in self.stage.coordinates}

    def is_cut(self, value: Value) -> bool:
        """Returns True if a `mesh_partition` made the split of a value."""
        return any(short_name(op) == "mesh_partition" for _, op in self.before([value], self.moved_operands))

    def partial_operands(self, op: Op) -> list[Value]:
        """Returns the operands that the devices hold as parts of a reduction."""
        return [v for v in self.operands(op) if any(e.partial for e in self.held(v))]


def track(stage: StageProgram, reference: Reference, pool: Globals, placed: Sequence[Any]) -> Track:
    """Follows a run of a stage for arguments that are placed."""
    followed = Track(stage, reference, pool.on(stage.mesh), placed)
    followed.follow(run_stage(stage, placed))
    return followed
