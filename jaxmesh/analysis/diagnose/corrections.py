"""The changes that may put a text right: an operation is changed, added or left out. Each change is performed."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from jaxmesh.analysis.diagnose.cuts import global_shapes, of_shards, placements, touched_dims
from jaxmesh.analysis.diagnose.matching import reductions, split_axes
from jaxmesh.analysis.diagnose.movements import (
    distance_of_forms,
    does_nothing,
    is_collective,
    is_movement,
    joined_dim,
    mesh_axis,
    of_whole,
    repairs,
    short_name,
)
from jaxmesh.analysis.diagnose.proposals import Proposal, Proposals
from jaxmesh.analysis.diagnose.replay import Replay
from jaxmesh.analysis.diagnose.stage import Array, Copies, block_of
from jaxmesh.analysis.diagnose.tracking import Track, Value
from jaxmesh.dialects.definitions import has_trait
from jaxmesh.dialects.op import Trait
from jaxmesh.dialects.program import Op, Type
from jaxmesh.frontends.stablehlo.shardings import Sharding, local_shape

_NEAR = 6
"""The most other operands of one type that are tried."""
_JOINS = ("all_gather", "all_to_all")
LEFT_OUT, OTHER = "one too many: without it the results are right", "it reads another value than it should"
"""The changes of an operation that is one too many, and of one that reads another value."""
UNREAD = f"{OTHER}, which nothing reads"
"""The change of an operation to a value that the text makes for nothing."""
PARTS = "dropped reduction"
"""How the changes of parts that nothing reduces begin."""


@dataclass(frozen=True, slots=True)
class Correction:
    """A change of one operation, and the value that it makes.

    Attributes:
      proposal: the operation, its result, and that value.
      words: what was wrong, in one sentence.
      axes: the mesh axes of the error; those that split the operands, if there are none.
      dims: the dims of the operand that these axes split.
      form: how far its function may be from the program's form of it.
    """

    proposal: Proposal
    words: str
    axes: tuple[str, ...] = ()
    dims: tuple[int, ...] = ()
    form: float = 0.0

    @property
    def is_own(self) -> bool:
        """True if the operation itself is another one; False if there is one more or less, or other operands."""
        return not self.words.startswith(("dropped", LEFT_OUT, OTHER))


Wanted = Callable[[Copies], bool]


@dataclass(frozen=True, slots=True)
class Corrections:
    """The changes of the operations of a stage.

    Attributes:
      track: the values of the stage.
      replay: its run.
      proposals: the places of its operations in the program.
    """

    track: Track
    replay: Replay
    proposals: Proposals

    def of(
        self, number: int, op: Op, *, alone: bool = False, every: bool = False, wanted: Wanted | None = None
    ) -> Iterator[Correction]:
        """Yields the changes of an operation with a `wanted` result; `alone`, none of its neighbours; with `every`,
        unlikely ones, too."""
        found = self._of(number, op, alone, every, wanted)
        return found if wanted is None else (c for c in found if wanted(c.proposal.right))

    def _of(self, number: int, op: Op, alone: bool, every: bool, wanted: Wanted | None) -> Iterator[Correction]:
        yield from map(self.constant, () if self.track.operands(op) else self.proposals.constants(number, op))
        yield from self.left_out(number, op, every)
        for changes in (self._reduced, self._exchanged, self._joined, self._cut, self._placed, self._whole):
            yield from changes(number, op)
        yield from self._repaired(number, op, () if alone else self._others(number, op), wanted)
        yield from self._activated(number, op)
        if not alone:
            yield from self.missing(number, op, every)

    def constant(self, p: Proposal) -> Correction:
        """Returns the change of an operation without operands to other numbers."""
        held, right = (next(iter(x.values())).reshape(-1) for x in (self.replay.copies(p.value), p.right))
        at = int(np.argmax(held != right))
        place = f"at [{at}]" if np.count_nonzero(held == right) else "in its place"
        return Correction(p, f"with {right[at]:g} {place} it is right")

    def _value(self, number: int, op: Op, copies: Copies) -> Proposal:
        return Proposal(number, op, op.results[0], None, copies)

    # --- one operation more or less -----------------------------------------------------------------------------------

    def left_out(self, number: int, op: Op, every: bool) -> Iterator[Correction]:
        """Yields the operand of an operation in place of its result."""
        types, places, read = self.track.stage.text.program.types, self.proposals.places, self.track.operands(op)
        is_open = (every and is_movement(op)) or places.exactly(number, op, 0) is None
        # The program may have as many operations of this kind there, and an operand in common.
        rows = () if is_open else itertools.product(places.of(number, op, 0), read)
        is_counted = len(op.results) != 1 or any(itertools.starmap(self.proposals.reads, rows))
        for value in () if is_counted else read[:1]:
            if len({(types[v].shape, types[v].dtype) for v in (value, *op.results)}) == 1:
                left = self._performed(number, op, op, left_out=True)
                yield from () if left is None else (self._repeated(number, op, left, LEFT_OUT),)
        readers = [row for row in self.proposals.live if {*row[1].used} & {*op.results}]
        if [short_name(o) for o in (op, *(o for _, o in readers))] == ["typecast"] * 2:
            # A cast and the one back.
            (at, back), (value,) = readers[0], op.used
            left = self._performed(at, back, replace(back, operands=(value,)), left_out=True)
            yield from () if left is None else (self._repeated(number, op, left, LEFT_OUT),)

    def missing(self, number: int, op: Op, every: bool = False) -> Iterator[Correction]:
        """Yields what the exchange between devices after an operation makes of its result, if none is there."""
        track, mesh, copies = self.track, self.track.stage.mesh, self.replay.copies(op.results[0])
        if len({id(x) for x in copies.values()}) == 1 or len(op.results) != 1 or not self.proposals.is_last(op):
            return
        after = {mesh_axis(o, mesh) for _, o in self.proposals.reductions_after(op.results[0])}
        # A view without effect may stand in the place of the first of several reductions.
        is_first = every or not after or does_nothing(op, track.stage.text.program.types)
        for axes, kind, found in reductions(copies, mesh) if is_first else ():
            if kind in track.kinds(op) and not after & {*axes}:
                words = f"{PARTS}: each device holds its part of a {kind} over {', '.join(axes)}, and what "
                yield Correction(self._value(number, op, found), f"{words}follows takes it for the whole", axes)
        for at, (axis, size) in enumerate(mesh.items()):
            for by in (1, -1) if size > 2 else (1,) if size > 1 else ():
                moved = {c: copies[*c[:at], (c[at] - by) % size, *c[at + 1 :]] for c in copies}
                words = f"dropped exchange: each device has to hold what the one before it along {axis} holds"
                yield Correction(self._value(number, op, moved), words, (axis,))

    # --- reductions over devices --------------------------------------------------------------------------------------

    def _reduced(self, number: int, op: Op) -> Iterator[Correction]:
        """Yields what a reduction over devices makes over other mesh axes."""
        mesh, axis = self.track.stage.mesh, mesh_axis(op, self.track.stage.mesh)
        if not (has_trait(op.name, Trait.REDUCES) and is_collective(op)) or axis is None:
            return
        for axes, kind, found in reductions(self.replay.copies(self.track.operands(op)[0]), mesh):
            if len(axes) == 1 and axes != (axis,) and found[min(found)].shape == self._shape(op):
                words = f"reduction over the wrong axis: the operand holds parts of a {kind} over {', '.join(axes)}"
                words = f"{words}, and the operation reduces over {axis}"
                yield Correction(self._value(number, op, found), words, tuple(dict.fromkeys([*axes, axis])))

    def _shape(self, op: Op) -> tuple[int, ...]:
        return self.track.stage.text.program.types[op.results[0]].shape

    def _exchanged(self, number: int, op: Op) -> Iterator[Correction]:
        """Yields what an exchange between devices makes of the operand of a local operation."""
        if is_collective(op) or len(op.results) != 1 or len(set(self.track.operands(op))) != 1:
            return
        mesh, copies, made = self.track.stage.mesh, self.replay.copies(self.track.operands(op)[0]), self._shape(op)
        shape = copies[min(copies)].shape
        for (at, (axis, size)), dim in itertools.product(enumerate(mesh.items()), range(len(shape))):
            apart = [(n, m) for d, (n, m) in enumerate(zip(shape, made, strict=False)) if d != dim]
            if size == 1 or len(shape) != len(made) or any(n != m for n, m in apart):
                continue
            rows = {c: [copies[*c[:at], k, *c[at + 1 :]] for k in range(size)] for c in copies}
            if shape[dim] * size == made[dim]:
                found = {c: np.concatenate(row, dim) for c, row in rows.items()}
                words = f"no gather: each device has its part of what is split over {axis}"
                yield Correction(self._value(number, op, found), words, (axis,), (dim,))
        for axes, kind, whole in reductions(copies, mesh):
            for dim in range(len(shape)):
                split = tuple(axes if d == dim else () for d in range(len(shape)))
                if local_shape(shape, split, mesh) == made and len(axes) == 1:
                    found = {c: block_of(x, split, mesh, c) for c, x in whole.items()}
                    words = f"no scatter: each device has a piece of its part of a {kind} over {axes[0]}"
                    yield Correction(self._value(number, op, found), words, axes, (dim,))

    # --- the order of blocks ------------------------------------------------------------------------------------------

    def _joined(self, number: int, op: Op) -> Iterator[Correction]:
        """Yields what exchanges over several mesh axes make in another order."""
        track, mesh = self.track, self.track.stage.mesh
        if short_name(op) not in _JOINS or mesh_axis(op, mesh) is None:
            return
        dim, chain = joined_dim(op), [op]
        while (made := track.producers.get(track.operands(chain[0])[0])) is not None:
            if short_name(made[1]) != short_name(op) or joined_dim(made[1]) != dim:
                break
            chain.insert(0, made[1])
        start = track.operands(chain[0])[0]
        split = track.known[start].placement if start in track.known else ()
        axes = split[dim] if -len(split) <= dim < len(split) else ()
        for order in itertools.permutations(chain) if 1 < len(chain) <= len(mesh) else ():
            found = self._in_order(start, chain, order)
            if order != tuple(chain) and found is not None:
                first, name = mesh_axis(chain[0], mesh), short_name(op)
                verb, name = ("gathers", "gather") if name == "all_gather" else ("joins", name)
                words = f"{name} order: dim {dim} is split over {', '.join(axes)}, the minor axis last,"
                words += f" and the operation {verb} over {first} before {mesh_axis(order[0], mesh)}"
                yield Correction(self._value(number, op, found), f"{words}, which interleaves the blocks", axes, (dim,))

    def _in_order(self, start: Value, chain: Sequence[Op], order: Sequence[Op]) -> Copies | None:
        """Returns what exchanges make in another order of their mesh axes."""
        types, mesh = self.track.stage.text.program.types, self.track.stage.mesh
        copies, dim = self.replay.copies(start), joined_dim(chain[0])
        for other in order:
            attributes: Any = other.attributes
            shape = list(copies[min(copies)].shape)
            size = mesh[str(mesh_axis(other, mesh))]
            shape[dim] *= size
            if "split_dim" in attributes:
                shape[int(attributes["split_dim"])] //= size
            kind = replace(types[other.results[0]], shape=tuple(shape))
            found = self.replay.perform(other, [copies], [kind])
            if found is None:
                return None
            copies = found[0]
        return copies

    def _cut(self, number: int, op: Op) -> Iterator[Correction]:
        """Yields the results with an operand that is cut over mesh axes in the order of another operand."""
        track, read = self.track, self.track.operands(op)
        if is_collective(op) or len(op.results) != 1 or not all(v in track.known for v in read):
            return
        copies = [self.replay.copies(v) for v in read]
        for at, other in itertools.permutations(range(len(read)), 2):
            held, beside = track.known[read[at]], track.known[read[other]]
            rows = itertools.product(range(len(held.placement)), beside.placement) if track.is_cut(read[at]) else ()
            for dim, split in rows:
                if held.placement[dim] == split or sorted(held.placement[dim]) != sorted(split):
                    continue
                placement = (*held.placement[:dim], split, *held.placement[dim + 1 :])
                cut = self._blocks(track.pool.arrays[held.number], placement, read[at])
                made = self.replay.perform(op, [*copies[:at], cut, *copies[at + 1 :]])
                words = f"partition order: an operand is cut over {', '.join(held.placement[dim])}, the major axis"
                if made is not None:
                    words = f"{words} first, and the other is split over {', '.join(split)}"
                    yield Correction(self._value(number, op, made[0]), words, tuple(split))

    def _placed(self, number: int, op: Op) -> Iterator[Correction]:
        """Yields the parts of a whole operand that devices have by other placements."""
        if not has_trait(op.name, Trait.TRANSFERS) or len(op.results) != 1:
            return
        whole, local = next(iter(self.replay.copies(self.track.operands(op)[0]).values())), self._shape(op)
        for placement in placements(local, whole.shape, self.track.stage.mesh) if whole.shape != local else ():
            split = ", ".join(f"dim {d} split over {', '.join(names)}" for d, names in enumerate(placement) if names)
            value = self._value(number, op, self._blocks(whole, placement, op.results[0]))
            yield Correction(value, f"with {split} it is right", tuple(a for names in placement for a in names))

    def _blocks(self, array: Array, placement: Sharding, value: Value) -> Copies:
        """Returns the blocks of a global value in the dtype of a value."""
        dtype, stage = self.track.stage.text.program.types[value].dtype, self.track.stage
        return {c: block_of(array, placement, stage.mesh, c).astype(dtype) for c in stage.coordinates}

    # --- operations of shards -----------------------------------------------------------------------------------------

    def _whole(self, number: int, op: Op) -> Iterator[Correction]:
        """Yields the blocks of what an operation makes of its whole operands."""
        track, read = self.track, self.track.operands(op)
        if is_collective(op) or len(op.results) != 1 or not read or not all(v in track.known for v in read):
            return
        known, types, stage = [track.known[v] for v in read], track.stage.text.program.types, track.stage
        touched = [d for d in touched_dims(op, types[read[0]].shape) if d < len(known[0].placement)]
        dims = tuple(d for d in touched if known[0].placement[d])
        if not of_shards(op, (), dims):
            return
        arrays = [track.pool.arrays[e.number].astype(types[v].dtype) for e, v in zip(known, read, strict=True)]
        local, dtype = self._shape(op), types[op.results[0]].dtype
        # Of a number everywhere the devices may hold a part of any shape.
        wide = [bool((x == x.flat[:1]).all()) and types[v].shape == local for x, v in zip(arrays, read, strict=True)]
        split = split_axes(known[1:] if wide[0] else known)
        free = [a for a in stage.mesh if a not in split] if wide[0] else []
        axes = tuple(dict.fromkeys(a for d in dims for a in known[0].placement[d])) or tuple(free or split)
        beside = [a for a in split if a not in axes] if axes else []
        # Other dims may stay split: then the devices hold parts of a sum.
        for kept in [[], beside][: bool(axes) + bool(beside)]:
            rest = [a for a in (*split, *free) if a not in kept]
            cuts = [tuple(tuple(a for a in names if a in kept) for names in e.placement) for e in known]
            for shape in global_shapes(local, rest, stage.mesh):
                values = [np.full(shape, x.flat[0]) if w else x for x, w in zip(arrays, wide, strict=True)]
                given = [
                    {c: track.pool.block(e.number, cut, c).astype(x.dtype) for c in stage.coordinates}
                    if kept and not w
                    else dict.fromkeys(stage.coordinates, x)
                    for x, e, cut, w in zip(values, known, cuts, wide, strict=True)
                ]
                inner = tuple(tuple(a for a in names if a in rest) for names in known[0].placement)
                whole = of_whole(op, inner, stage.mesh, next(iter(given[0].values())).shape)
                for found in self.replay.perform(whole, given, [Type(shape, dtype)]) or ():
                    for placement in placements(local, shape, stage.mesh):
                        blocks = {c: block_of(x, placement, stage.mesh, c).astype(dtype) for c, x in found.items()}
                        value = self._value(number, op, blocks)
                        yield Correction(value, of_shards(op, axes, dims), axes, () if free else dims)

    # --- other operations ---------------------------------------------------------------------------------------------

    def _repaired(
        self, number: int, op: Op, others: Sequence[tuple[Op, str]], wanted: Wanted | None
    ) -> Iterator[Correction]:
        """Yields the results of an operation with one change; in a loop, of all its iterations."""
        types, mesh = self.track.stage.text.program.types, self.track.stage.mesh
        read = [types[v] for v in self.track.operands(op)]
        own = repairs(op, read, self._shape(op), mesh, self.proposals.numbers(number))
        for repaired, what in sorted((*own, *others), key=lambda row: row[1] != UNREAD):
            found = self._performed(number, op, repaired, wanted)
            if found is not None:
                words = what if what in (OTHER, UNREAD) else f"with {what} it is right"
                begin = "slice of other elements: " if "begins" in what else ""
                yield self._repeated(number, op, found, begin + words, distance_of_forms(repaired))

    def _repeated(
        self, number: int, op: Op, found: Mapping[Value, Copies], words: str, form: float = 0.0
    ) -> Correction:
        """Returns a change of an operation, in a loop of all iterations, that makes some values."""
        value, *more = found
        proposal = Proposal(number, op, value, None, found[value], others={v: found[v] for v in more})
        return Correction(proposal, words, form=form)

    def _activated(self, number: int, op: Op) -> Iterator[Correction]:
        """Yields what two operands make in the other order, where an activation of the operation is of one place."""
        track, types = self.track, self.track.stage.text.program.types
        for at, value in enumerate(op.used) if len(op.used) == 2 and len(op.results) == 1 else ():
            before, function = track.producers.get(value, (-1, op))
            lines, other = track.stage.text.lines, op.used[1 - at]
            if function is op or lines[before] != lines[number] or len(function.used) != 1:
                continue
            kind = replace(types[value], shape=types[other].shape)
            made = self.replay.perform(function, [self.replay.copies(other)], [kind])
            if made is not None:
                read = [made[0], self.replay.copies(function.used[0])]
                found = self.replay.perform(op, read if at == 0 else read[::-1])
                words = "with its operands in another order it is right"
                yield from () if found is None else (Correction(self._value(number, op, found[0]), words),)

    def _performed(
        self, number: int, op: Op, repaired: Op, wanted: Wanted | None = None, *, left_out: bool = False
    ) -> dict[Value, Copies] | None:
        """Returns the results of a repaired operation, or its first operand if it is left out, in a loop of all
        iterations; None if it is impossible, or the first one is not wanted."""
        right, types = dict[Value, Copies](), self.track.stage.text.program.types
        reads = self.proposals.in_iterations(number, repaired)
        run = self.replay.again({v for read in reads for v in self.track.operands(read)})
        for read in reads:
            held = run.before(read)
            found = None if held is None else held[:1] if left_out else self.replay.perform(read, held)
            kinds = [types[v] for v in read.results]
            if found is None or any(
                (x[min(x)].shape, x[min(x)].dtype) != (t.shape, t.dtype) for x, t in zip(found, kinds, strict=True)
            ):
                return None
            if wanted is not None and not right and len(reads) > 1 and not wanted(found[0]):
                return None
            made = dict(zip(read.results, found, strict=True))
            right.update(made)
            run.put(made)
        return right

    def _others(self, number: int, op: Op) -> list[tuple[Op, str]]:
        """Returns an operation of other operands of the same types; what nothing reads comes first, then what the
        program reads."""
        track, found = self.track, list[tuple[Op, str]]()
        program, wanted = track.stage.text.program, self.proposals.wanted(number)
        types = program.types
        before = [v for o in reversed(program.ops[:number]) for v in o.results]
        before += [p.value for p in program.arguments]
        read = {v for _, o in self.proposals.live for v in o.used}

        def rank(value: Value) -> tuple[bool, bool]:
            numbers = (n for e in track.held(value) for n in track.origins(e.number))
            return value in read, not any(track.pool.same[n] in wanted for n in numbers)

        before.sort(key=rank)
        for at, value in enumerate(op.operands):
            if value is None or types[value].kind != "tensor":
                continue
            kind = types[value].shape, types[value].dtype
            alike = [v for v in before if (types[v].shape, types[v].dtype) == kind and v != value]
            for other in alike[:_NEAR]:
                words = OTHER if other in read else UNREAD
                found.append((replace(op, operands=(*op.operands[:at], other, *op.operands[at + 1 :])), words))
        return found
