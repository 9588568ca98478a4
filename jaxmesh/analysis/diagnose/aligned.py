"""Aligns operations with the unsharded program: by source line, kind and order."""

from __future__ import annotations

from collections.abc import Sequence

from jaxmesh.analysis.diagnose.movements import is_alike, is_movement, short_name
from jaxmesh.analysis.diagnose.reference import REGION, ReferenceValue
from jaxmesh.analysis.diagnose.source_lines import line
from jaxmesh.analysis.diagnose.tracking import Track, Value
from jaxmesh.analysis.diagnose.wrong_values import compare_with
from jaxmesh.dialects.program import Op

Numbered = tuple[int, Op]
_LOOP = "stablehlo.while"
_ORDERED = (_LOOP, "stablehlo.concatenate", "stablehlo.subtract", "stablehlo.divide", "stablehlo.power")
"""Operations whose operands have the order of the program in every text."""
_CLEAR = 2.0**-7
"""The rounding unit of bfloat16: what differs by more is another value."""
_MOVES = ("reshape", "broadcast_in_dim", "transpose", "convert", "constant", "iota")
MOVES = frozenset({REGION, *(f"stablehlo.{name}" for name in _MOVES)})


def _is_move(values: Sequence[ReferenceValue], number: int) -> bool:
    """Returns True for movements, and for the concatenation of one value with empty ones."""
    op, operands = values[number].op, values[number].operands
    return op in MOVES or (op == "stablehlo.concatenate" and sum(values[n].array.size > 0 for n in operands) == 1)


def content(values: Sequence[ReferenceValue], number: int) -> list[int]:
    """Returns the values that a value is computed from, through movements."""
    found, rest = list[int](), list(values[number].operands)
    while rest:
        operand = rest.pop()
        moves = _is_move(values, operand)
        rest += values[operand].operands if moves else ()
        found += () if moves or not values[operand].array.size else (operand,)
    return found


def all_content(track: Track, operands: Sequence[int]) -> set[int]:
    """Returns operands of a value, and through movements the values before them."""
    values, found, rest = track.reference.values, set[int](), list(operands)
    while rest:
        number = rest.pop()
        found.add(number)
        rest += values[number].operands if _is_move(values, number) else ()
    return found


def _in_loop_order(value: ReferenceValue) -> Sequence[int]:
    """Returns the operands of a loop as upstream's loop has them: what an iteration only passes on comes last."""
    body = value.value.owner.regions[1].blocks[0]
    *_, end = body.operations
    count = len(body.arguments)
    passed = [a == b for a, b in zip(body.arguments, end.operands, strict=True)]
    return [value.operands[i] for i in sorted(range(count), key=passed.__getitem__)]


def origins(track: Track, number: int) -> list[int]:
    """Returns the global values that a global value is a movement of, itself first, each by the first equal one."""
    return [track.pool.same[n] for n in track.origins(number)]


def find_other_value(track: Track, reader: Op, expected: int | None) -> tuple[int, Op, int] | None:
    """Returns the operation before a reader that made another value than the one in its place in the program, and the
    number of that one."""
    missing = [] if expected is None else [expected, *content(track.reference.values, expected)]
    before = {v for read in track.operands(reader) for v in moved_from(track, read)}
    for wanted in missing:
        found = aligned(track, wanted)
        if found is None or found[1] is reader:
            continue
        is_missing = track.pool.same[wanted] not in track.reproduced
        if before.intersection(found[1].results) or (is_missing and _passes_on(track, found[1], wanted)):
            return *found, wanted
    return _first_other(track, reader)


def _first_other(track: Track, reader: Op) -> tuple[int, Op, int] | None:
    """Returns the first operation that a reader depends on whose operands devices hold, and that made another value."""
    values, same = track.reference.values, track.pool.same
    missing = [i for i in track.used if same[i] not in track.reproduced and values[i].op not in MOVES]
    ready = [i for i in missing if all(same[o] in track.reproduced for o in content(values, i))]
    before, rest = set[Value](), track.operands(reader)
    while rest:
        value = rest.pop()
        rest += track.operands(track.producers[value][1]) if value in track.producers and value not in before else ()
        before.add(value)
    found = [(*row, i) for i in ready if (row := aligned(track, i)) is not None and before.intersection(row[1].results)]
    return min(found, key=lambda row: row[0], default=None)


def _passes_on(track: Track, op: Op, wanted: int) -> bool:
    """Returns True if the result of an operation is what the value in its place is computed from."""
    known = track.known.get(op.results[0])
    held = [] if known is None else origins(track, known.number)
    return any(track.pool.same[n] in held for n in content(track.reference.values, wanted))


def aligned(track: Track, expected: int) -> tuple[int, Op] | None:
    """Returns the operation in the place of a value of the unsharded run, if devices hold another value there, of the
    program or of none.

    The operations of one kind on one source line come in the order of the unsharded program.
    """
    values = track.reference.values
    ops, wanted = in_one_place(track, expected)
    if expected not in wanted:
        return None
    same = track.pool.same
    # Operations that compute one value may be one operation in the text.
    once = [i for n, i in enumerate(wanted) if same[i] not in {same[k] for k in wanted[:n]}]
    if len(ops) == len(once) < len(wanted):
        expected, wanted = next(i for i in once if same[i] == same[expected]), once
    elif len(ops) != len(wanted):
        ops, wanted = [row for row in ops if _reads_operands_of(track, row[1], expected, wanted)], [expected]
    if len(ops) != len(wanted):
        return None
    number, op = ops[wanted.index(expected)]
    known = track.known.get(op.results[0])
    is_fused = len(track.operands(op)) > len(values[expected].operands) or any("activation" in k for k in op.attributes)
    is_fused = is_fused or short_name(op) == "mean"
    is_later = known is not None and is_fused and _is_computed_from(track, expected, known.number)
    if is_later or op.results[0] in track.joined:
        return None
    # A value without an explanation may differ by more than rounding where numbers are nearly zero.
    unit = _CLEAR if known is None else track.units.get(op.results[0], 0.0)
    held = compare_with(track.pool, track.copies(op.results[0]), expected, unit)
    if held is not None and not held.devices:
        return None
    if known is None:
        fits = any(True for _ in track.pool.placements(expected, track.stage.text.program.types[op.results[0]].shape))
        return (number, op) if fits and not is_fused and all(v in track.known for v in track.operands(op)) else None
    held = [n for n in origins(track, known.number) if n < len(values)]
    return None if track.pool.same[expected] in {track.pool.same[n] for n in all_content(track, held)} else (number, op)


def _is_computed_from(track: Track, expected: int, held: int) -> bool:
    """Returns True if a global value is computed from a value of the unsharded run."""
    values, same = track.reference.values, track.pool.same
    rest, seen = origins(track, held), set[int]()
    while rest:
        number = rest.pop()
        if number == same[expected]:
            return True
        if number not in seen and number < len(values):
            seen.add(number)
            rest += [same[n] for n in values[number].operands]
    return False


def _reads_operands_of(track: Track, op: Op, expected: int, others: Sequence[int]) -> bool:
    """Returns True if an operation reads what a value is computed from, and makes none of the values beside it."""
    needed = {track.pool.same[n] for n in content(track.reference.values, expected)}
    held, *read = (
        set(origins(track, track.known[v].number)) if v in track.known else set[int]()
        for v in (op.results[0], *track.operands(op))
    )
    return not held & {track.pool.same[n] for n in others} and any(needed & r for r in read)


def moved_from(track: Track, value: Value) -> list[Value]:
    """Returns the values that a value is a movement of, itself first."""
    found = [value]
    while found[-1] in track.producers and is_movement(op := track.producers[found[-1]][1]) and track.operands(op):
        found.append(track.operands(op)[0])
    return found


def in_one_place(track: Track, expected: int) -> tuple[list[Numbered], list[int]]:
    """Returns the operations and the values of the kind and the source line of a value."""
    values = track.reference.values
    source, kind = values[expected].source, values[expected].op
    ops = [(i, op) for i, op in enumerate(track.stage.text.program.ops) if is_alike(op, kind) and op.results]
    alike = [i for i in track.used if values[i].op == kind and not (kind not in MOVES and _is_move(values, i))]
    types, pool = track.stage.text.program.types, track.pool
    found, wanted = ops, alike
    # Compare lines with columns, then these and shapes, then lines: some texts lack columns.
    for place, any_shape in ((str, True), (str, False), (line, True)) if source else ():
        found = [row for row in ops if place(track.stage.source(row[0])) == place(source)]
        wanted = [i for i in alike if place(values[i].source) == place(source)]
        if not any_shape:
            found = [r for r in found if any(True for _ in pool.placements(expected, types[r[1].results[0]].shape))]
            wanted = [i for i in wanted if pool.shape(i) == pool.shape(expected)]
        if len(found) == len(wanted):
            break
    return found, wanted


def _in_place_of(track: Track, number: int, op: Op) -> int | None:
    """Returns the value of the unsharded run in the place of an operation."""
    source = line(track.stage.source(number))
    for i, value in enumerate(track.reference.values):
        if is_alike(op, value.op) and line(value.source) == source:
            ops, wanted = in_one_place(track, i)
            if len(ops) == len(wanted) and (number, op) in ops:
                return wanted[ops.index((number, op))]
    return None


def find_exchanged(track: Track) -> tuple[int, Op, int] | None:
    """Returns the first of two gathers that are each read in the place of the other, and the value that its reader
    should read, by number."""
    misfits = list[tuple[int, Op, list[int], list[int]]]()
    for number, op in enumerate(track.stage.text.program.ops):
        read = track.operands(op)
        gathers = [
            (index, made)
            for index, operand in enumerate(read if not is_movement(op) else ())
            for made in (track.producers.get(v) for v in moved_from(track, operand))
            if made is not None and short_name(made[1]) == "all_gather" and made[1].results[0] in track.known
        ]
        place = _in_place_of(track, number, op) if gathers else None
        value = None if place is None else track.reference.values[place]
        needed = () if value is None else value.operands
        in_order = value is not None and value.op in _ORDERED and (len(needed) == len(read) or value.op == _LOOP)
        needed = _in_loop_order(value) if value is not None and value.op == _LOOP else needed
        for index, made in gathers:
            wanted = [track.pool.same[i] for i in all_content(track, needed[index : index + 1] if in_order else needed)]
            held = origins(track, track.known[made[1].results[0]].number)
            if wanted and not set(held) & set(wanted):
                misfits.append((*made, held, wanted))
    for number, op, held, wanted in sorted(misfits, key=lambda row: row[0]):
        for other, _, other_held, other_wanted in misfits:
            if other != number and set(held) & set(other_wanted) and (found := set(other_held) & set(wanted)):
                return number, op, min(found)
    return None
