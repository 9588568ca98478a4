"""Names the first wrong operation of a stage.

The search starts at the wrong results, and goes back through values that the unsharded run does not explain. Of the
operations found there, some are steps of a decomposition, which lack a counterpart in the program with global shapes.
So each is also performed on global values: a step of a decomposition gives what the devices hold.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from jaxmesh.analysis.diagnose.aligned import (
    MOVES,
    content,
    find_exchanged,
    find_other_value,
    in_one_place,
    moved_from,
    origins,
)
from jaxmesh.analysis.diagnose.matching import HeldValue
from jaxmesh.analysis.diagnose.movements import Shapes, is_alike, is_collective, is_movement, performed, short_name
from jaxmesh.analysis.diagnose.reference import ReferenceValue
from jaxmesh.analysis.diagnose.source_lines import line
from jaxmesh.analysis.diagnose.stage import Array
from jaxmesh.analysis.diagnose.tracking import Track, Value
from jaxmesh.analysis.diagnose.wrong_values import WrongValue, compare_with
from jaxmesh.dialects.definitions import has_trait
from jaxmesh.dialects.op import Trait
from jaxmesh.dialects.program import Op


@dataclass(frozen=True, slots=True)
class Culprit:
    """The first wrong operation of a stage.

    Attributes:
      number: the number of the operation in the text.
      op: the operation.
      reader: the number of the operation that reads parts of a reduction as whole values; else `number`.
      operands: the explanations of its operands.
      expected: the value of the unsharded run that it should compute; None if it is not known.
      value: the wrong elements; None where the shapes cannot be compared.
      misplaced: True if it splits an argument in another way than the program declares.
    """

    number: int
    op: Op
    reader: int
    operands: tuple[HeldValue, ...]
    expected: ReferenceValue | None
    value: WrongValue | None
    misplaced: bool = False


def find_culprit(track: Track) -> Culprit:
    """Returns the first wrong operation of a stage with a wrong result."""
    start = next(o.value for o in track.outputs if not o.is_right)
    _separate(track)
    region = unexplained_before(track, start)
    if not region:
        # The result is explained, but by another value or placement than the program's.
        return _of_explained(track, start)
    number, op = _first_wrong(track, region)
    expected = _expected(track, number, op)
    known = [track.known[v] for v in track.operands(op) if v in track.known]
    complete = len(known) == len(track.operands(op))
    if not is_collective(op) and not (complete and _as_step(track, op, known) is False):
        # It may compute what it should from its operands, which are others than in the program.
        exchanged = find_exchanged(track)
        if exchanged is not None:
            return _culprit(track, *exchanged)
    return _blamed_operand(track, op, expected) or _culprit(track, number, op, expected)


def _separate(track: Track) -> None:
    """Takes joined values as unexplained where the program has a value, which no device holds."""
    same = track.pool.same
    parts = {same[n] for j in track.joined.values() for e in j.parts for n in track.origins(e.number)}
    for value in list(track.joined):
        number, op = track.producers[value]
        is_read = any(v in track.unexplained for v in track.operands(op))
        if is_read or any(same[i] not in parts for i in counterparts(track, number, op, alike=True)):
            track.unexplained[value] = track.copies(value)
            del track.joined[value]


def _culprit(track: Track, number: int, op: Op, expected: int | None, reader: int | None = None) -> Culprit:
    known = tuple(track.known[v] for v in track.operands(op) if v in track.known)
    reference = None if expected is None else track.reference.values[expected]
    result = op.results[0]
    value = (
        None
        if expected is None
        else compare_with(track.pool, track.copies(result), expected, track.units.get(result, 0.0))
    )
    misplaced = bool(track.misplaced.intersection(op.results))
    return Culprit(number, op, number if reader is None else reader, known, reference, value, misplaced)


def unexplained_before(track: Track, start: Value) -> list[tuple[int, Op]]:
    """Returns the operations of unexplained values that a value is computed from, in order."""
    found: dict[int, Op] = {}
    rest = [start]
    while rest:
        value = rest.pop()
        if value in track.unexplained and track.producers[value][0] not in found:
            number, op = track.producers[value]
            found[number] = op
            rest += track.operands(op)
    return sorted(found.items())


def _of_explained(track: Track, value: Value) -> Culprit:
    """Returns the culprit of a wrong result that is explained: parts of a reduction, or another value or placement."""
    index = next(i for i, o in enumerate(track.outputs) if o.value == value)
    wanted, known, made = track.reference.outputs[index], track.known[value], track.producers.get(value)
    values, same = track.reference.values, track.pool.same
    last = values[wanted]
    while last.op == "sdy.sharding_constraint":
        last = values[last.operands[0]]
    is_operand = same[known.number] in {same[n] for n in last.operands} and same[known.number] != same[wanted]
    before = [track.producers[v][1] for v in moved_from(track, value) if v in track.producers]
    # The compiler may leave out the last operation.
    if made is None or (is_operand and not known.kind and not any(is_alike(op, last.op) for op in before)):
        end = len(track.stage.text.program.ops)
        missing = last if same[known.number] != same[wanted] else None
        return Culprit(end, Op("func.return", (value,), (value,)), end, (known,), missing, None)
    number, op = made
    if known.kind:
        return _forgotten(track, value, number)
    blamed = _blamed_operand(track, op, wanted)
    return blamed or _culprit(track, number, op, wanted)


# --- steps of decompositions -----------------------------------------------------------------------------------------


def _first_wrong(track: Track, region: Sequence[tuple[int, Op]]) -> tuple[int, Op]:
    """Returns the first operation that is wrong for sure, else the first that may be.

    The operands of a wrong operation are explained. It has a counterpart in the unsharded program that no device
    reproduces; or its results differ from the operation on global values.
    """
    steps: dict[Value, HeldValue] = {}
    right: set[Value] = set()
    cuts: list[tuple[int, Op]] = []
    for number, op in region:
        operands = track.operands(op)
        if any(v in track.joined for v in operands) and not any(v in track.unexplained for v in operands):
            # Each part would be a value of the program.
            return number, op
        known = [e for v in operands if (e := steps.get(v) or track.known.get(v)) is not None]
        if len(known) < len(operands) or len(op.results) != 1:
            continue
        weak = (steps.keys() - right) & set(operands)
        step = _as_step(track, op, known)
        alike = counterparts(track, number, op, alike=True) if operands and not weak else []
        shape = track.stage.text.program.types[op.results[0]].shape
        if step is False and short_name(op).startswith("slice") and not (weak or _has_alike(track, number, op)):
            # A step of a decomposition may cut shards.
            cuts.append((number, op))
            continue
        if step is False and (is_collective(op) or not is_movement(op)) and not (weak and _moves(op)):
            return number, op
        if step is True and not is_movement(op) and track.partial_operands(op):
            # It reads parts of a reduction as whole values.
            return number, op
        if isinstance(step, HeldValue):
            steps[op.results[0]] = step
            if _are_constants(track, known):
                right.add(op.results[0])
            elif any(True for i in alike for _ in track.pool.placements(i, shape)) or (
                not weak and _is_added(track, op, region)
            ):
                return number, op
    # A value with a right slice is right; a reshape or a transposition on each device is seldom the error.
    cut = [o for o in track.stage.text.program.ops if short_name(o).startswith("slice") and o.results[0] in track.known]
    right.update(v for o in cut for v in o.used)
    rest = [row for row in region if not right.issuperset(row[1].results)]
    moving = [row for row in rest if is_collective(row[1]) or not is_movement(row[1])]
    return (cuts or moving or rest or region)[0]


def _has_alike(track: Track, number: int, op: Op) -> bool:
    """Returns True if the program has an operation of the kind of an operation on its source line."""
    values, source = track.reference.values, line(track.stage.source(number))
    return any(is_alike(op, values[i].op) and line(values[i].source) == source for i in track.used)


def _are_constants(track: Track, known: Sequence[HeldValue]) -> bool:
    """Returns True if values are computed from no argument."""
    values = track.reference.values
    numbers = [n for e in known for n in track.origins(e.number) if n < len(values)]
    return bool(numbers) and all(values[n].op in MOVES and not content(values, n) for n in numbers)


def _is_added(track: Track, op: Op, region: Sequence[tuple[int, Op]]) -> bool:
    """Returns True if an operation reads its result where the program reads an operand of it."""
    values, same = track.reference.values, track.pool.same
    held = {n for v in track.operands(op) if v in track.known for n in origins(track, track.known[v].number)}
    for number, reader in region:
        if is_movement(reader) or not any(op.results[0] in moved_from(track, v) for v in track.operands(reader)):
            continue
        source = line(track.stage.source(number))
        missing = [i for i in track.used if same[i] not in track.reproduced and is_alike(reader, values[i].op)]
        near = [i for i in missing if line(values[i].source) == source]
        if any(held & {same[n] for n in content(values, i)} for i in near):
            return True
    return False


def _moves(op: Op) -> bool:
    """Returns True for movements, and for cuts, which are right on shards of whole heads and wrong on global values."""
    return is_movement(op) or short_name(op).startswith(("slice", "concat"))


def _as_step(track: Track, op: Op, known: Sequence[HeldValue]) -> HeldValue | bool:
    """Returns what the devices hold, if it is the operation on global values; False if not; True if that is unknown."""
    value = next(v for v in op.results if v in track.unexplained)
    copies, rounding = track.unexplained[value], track.units.get(value, 0.0)
    carried, kinds = max((e.error for e in known), default=0.0), track.kinds(op)
    if is_collective(op):
        found = track.pool.explain(copies, rounding, carried, kinds=kinds, only=known[0].number)
        return found or False
    types, done = track.stage.text.program.types, False

    def perform(arrays: Sequence[Array], shapes: Shapes) -> Iterator[Array | None]:
        return track.moved(op, arrays[0], shapes) if is_movement(op) else performed(op, types, arrays, shapes)

    for candidate in track.on_global(op, known, perform):
        done = True
        found = track.try_value(candidate, copies, rounding, carried, kinds)
        if found is not None:
            return found
    return not done


# --- the counterpart in the unsharded run ----------------------------------------------------------------------------


def _expected(track: Track, number: int, op: Op) -> int | None:
    """Returns the value of the unsharded run that an operation should have computed.

    Devices hold its operands, and no device holds the value itself. Values on the line of the operation come first.
    """
    if is_collective(op) and track.operands(op)[0] in track.known:
        # The elements of the operand, on other devices.
        return _of_reference(track, track.known[track.operands(op)[0]].number)
    return next(iter(counterparts(track, number, op)), None)


def counterparts(track: Track, number: int, op: Op, *, alike: bool = False) -> list[int]:
    """Returns the values of the unsharded run that an operation may have to compute, the likeliest first.

    No device holds them; devices hold their operands. With `alike`, they are on the line of the operation, and of its
    kind; the shape may be another.
    """
    values, same = track.reference.values, track.pool.same
    missing = [i for i in track.used if same[i] not in track.reproduced and values[i].op not in MOVES]
    ready = [i for i in missing if all(same[o] in track.reproduced for o in content(values, i))]
    source = track.stage.source(number)
    shape = track.stage.text.program.types[op.results[0]].shape if op.results else ()
    fits = {i for i in missing if next(track.pool.placements(i, shape), None) is not None}
    exact = {i for i in missing if values[i].source == source}
    near = {i for i in missing if line(values[i].source) == line(source)} if source else set[int]()
    kind = {i for i in missing if is_alike(op, values[i].op)}
    if alike:
        return [i for i in ready if i in kind & near]
    order = sorted(ready, key=lambda i: (i not in exact, i not in near, i not in kind, i not in fits, i))
    return [*order, *[i for i in missing if i in fits and i not in order]]


def _blamed_operand(track: Track, op: Op, expected: int | None) -> Culprit | None:
    """Returns the culprit among the operations before an operation with explained operands.

    The culprit made parts of a reduction that were not reduced, the value of another operation, or a split of an
    argument that differs from the declared split.
    """
    partial = [] if has_trait(op.name, Trait.REDUCES) else [v for v in track.operands(op) if v in track.producers]
    partial = [v for v in partial if any(e.kind for e in track.held(v)) and not _is_reduced(track, v)]
    known = [track.known[v] for v in track.operands(op) if v in track.known]
    unknown = op.results[0] in track.unexplained and len(known) == len(track.operands(op))
    # An operation that is linear leaves parts of another reduction; within a region the program says what is read.
    local = any(e.apart or not e.partial for v in partial for e in track.held(v))
    linear = bool(partial) and not local and unknown and isinstance(_as_step(track, op, known), HeldValue)
    for value in partial if not linear else ():
        return _forgotten(track, value, track.producers[op.results[0]][0])
    for value in track.operands(op) if not is_collective(op) else ():
        at = _first_of(track, value)
        if at in track.misplaced:
            number, other = track.producers[at]
            return _culprit(track, number, other, track.known[at].number)
    other = find_other_value(track, op, expected)
    return None if other is None else _before(track, other[1]) or _culprit(track, *other)


def _before(track: Track, op: Op) -> Culprit | None:
    """Returns the culprit among the operations that make the unexplained operands of an operation."""
    region = sorted((row for v in track.operands(op) for row in unexplained_before(track, v)), key=lambda row: row[0])
    first = _first_wrong(track, region) if region else None
    return None if first is None else _blamed_operand(track, first[1], _expected(track, *first))


def _first_of(track: Track, value: Value) -> Value:
    """Returns the first value, through movements and collectives, with the elements of a value."""
    while value in track.producers and value not in track.misplaced:
        _, op = track.producers[value]
        operands = track.operands(op)
        if not operands or not is_movement(op) or operands[0] not in track.known:
            break
        before, now = track.known[operands[0]], track.known.get(value)
        if now is None or not set(origins(track, now.number)) & set(origins(track, before.number)):
            break
        if operands[0] not in track.producers:
            break
        value = operands[0]
    return value


def _is_reduced(track: Track, value: Value) -> bool:
    """Returns True for parts within a region, which has each reduction in the program, if the text has them all."""
    values, ops, (held, *_) = track.reference.values, track.stage.text.program.ops, track.held(value)
    reductions = [track.parts[n][0] for n in origins(track, held.number) if n in track.parts][:1]
    manual = track.reference.manual_axes(track.stage.source(track.producers[value][0]))
    if not reductions and set(held.partial) <= set(manual) and not any(_leaves_parts(track, op) for op in ops):
        reductions = [i for i in track.used if values[i].op == "stablehlo.all_reduce"]
    places = [in_one_place(track, i) for i in reductions]
    return bool(places) and all(len(ops) >= len(wanted) for ops, wanted in places)


def _leaves_parts(track: Track, op: Op) -> bool:
    """Returns True for a reduction that leaves parts unreduced, or yields no value of the program."""
    parts = [e for v in track.partial_operands(op) for e in track.held(v)]
    if not parts or not has_trait(op.name, Trait.REDUCES):
        return False
    held = track.known.get(op.results[0])
    same = held is not None and set(origins(track, held.number)) & set(origins(track, parts[0].number))
    return held is None or (held.partial == parts[0].partial and bool(same))


def _forgotten(track: Track, value: Value, reader: int) -> Culprit:
    """Returns the operation that makes the parts of a reduction that an operation reads as whole values, or the first
    reduction of these parts that is over other axes."""
    wrong: Culprit | None = None
    while row := _parts_before(track, value):
        number, op, value = row
        if _leaves_parts(track, op):
            wrong = _culprit(track, number, op, _of_reference(track, track.known[value].number))
    expected = _of_reference(track, track.held(value)[0].number)
    number, op = track.producers[value]
    while is_movement(op) and not is_collective(op) and track.operands(op)[0] in track.producers:
        number, op = track.producers[track.operands(op)[0]]
    return wrong or _culprit(track, number, op, expected, reader)


def _parts_before(track: Track, value: Value) -> tuple[int, Op, Value] | None:
    """Returns the operation that reads the same parts of a reduction before a value, and the parts that it reads."""
    (parts, *_) = track.held(value)
    number, op = track.producers[value]
    for at, reader in [
        (number, op),
        *reversed([row for v in track.operands(op) for row in unexplained_before(track, v)]),
    ]:
        for read in track.operands(reader):
            held = track.known.get(read)
            if held and read in track.producers and (held.partial, held.kind) == (parts.partial, parts.kind):
                return at, reader, read
    return None


def _of_reference(track: Track, number: int) -> int | None:
    """Returns the value of the unsharded run that is a global value, or that it is a movement of."""
    count = len(track.reference.values)
    found = next((n for n in origins(track, number) if n < count), None)
    return found if found is None or found not in track.parts else track.parts[found][0]
