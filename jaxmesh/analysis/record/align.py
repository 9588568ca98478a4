"""Aligns two recordings: finds for each value of one its partner in the other.

Partners have the same source location, path through loops and branches, and op. The two operations of
TTNN stand for `mesh_shard`, by where their results are. Values that only one program computes (transfers
that the pass cancelled, hoisted or wrote out) have no partner.
"""

from __future__ import annotations

import difflib
import pathlib
import zlib
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

from jaxmesh.analysis.record.entry import Entry
from jaxmesh.analysis.record.source_path import ARGUMENT, Path, Place
from jaxmesh.dialects.ttir.mesh_shard import mesh_shard_p
from jaxmesh.dialects.ttnn.transfers import aggregate_tensor_p, distribute_tensor_p
from jaxmesh.jaxprs import primitives
from jaxmesh.jaxprs.source_locations import SourceLocation

TRANSFERS = frozenset(p.name for p in (mesh_shard_p, distribute_tensor_p, aggregate_tensor_p))
PLUMBING = TRANSFERS | primitives.RETYPES | {"reshape"}
"""The ops that the pass adds and removes."""
_MOVED = frozenset({"reshape", "to devices", "to host"})
Pair = tuple[Entry | None, Entry | None]


def align(a: Sequence[Entry], b: Sequence[Entry]) -> list[Pair]:
    """Returns the values of both in pairs, in the order of `a`; values of `b` alone keep their position in `b`."""
    partner = _partners(a, b)
    alone = [j for j in range(len(b)) if j not in partner.taken]
    pairs: list[Pair] = []
    next_alone = 0
    for i, entry in enumerate(a):
        j = partner.get(i)
        while j is not None and next_alone < len(alone) and alone[next_alone] < j:
            pairs.append((None, b[alone[next_alone]]))
            next_alone += 1
        pairs.append((entry, None if j is None else b[j]))
    return [*pairs, *[(None, b[j]) for j in alone[next_alone:]]]


class _Partners(dict[int, int]):
    """The index in `b` of each partner, by its index in `a`."""

    def __init__(self) -> None:
        super().__init__()
        self.taken: set[int] = set()

    def match(self, i: int, j: int) -> None:
        self[i] = j
        self.taken.add(j)


def _partners(a: Sequence[Entry], b: Sequence[Entry]) -> _Partners:
    partners = _Partners()
    groups: dict[Any, tuple[list[int], list[int]]] = defaultdict(lambda: ([], []))
    for side, entries in enumerate((a, b)):
        for number, entry in enumerate(entries):
            groups[_where(entry)][side].append(number)
    for left, right in groups.values():
        _match_group(partners, a, b, left, right)
    _match_without_line(partners, a, b)
    _match_edited(partners, a, b)
    return partners


def _match_without_line(partners: _Partners, a: Sequence[Entry], b: Sequence[Entry]) -> None:
    """Matches values without a line in one recording (of calls that the pass inlined) by path, op and type."""
    ours = [i for i in range(len(a)) if i not in partners]
    theirs = [j for j in range(len(b)) if j not in partners.taken]
    if any(e.place.source == SourceLocation() for e in (*[a[i] for i in ours], *[b[j] for j in theirs])):
        _match_common(partners, a, b, ours, theirs, _unknown)


def _match_edited(partners: _Partners, a: Sequence[Entry], b: Sequence[Entry]) -> None:
    """Matches values that an edit of the source moved to other lines or columns: by function, path, op and type.

    The passes add and remove transfers, but move no computation to another line. So this applies only if each
    recording has computed values without a partner: then the sources differ.
    """
    ours = [i for i in range(len(a)) if i not in partners]
    theirs = [j for j in range(len(b)) if j not in partners.taken]
    if all(any(is_computed(r[n]) for n in rows) for r, rows in ((a, ours), (b, theirs))):
        _match_common(partners, a, b, ours, theirs, lambda e: (e.place.source.function, _unknown(e)))


def is_computed(entry: Entry) -> bool:
    """Returns True if the user's program computes the value, not a pass or a change of type alone."""
    return entry.place.op not in PLUMBING and entry.place.op != ARGUMENT


def _unknown(entry: Entry) -> Any:
    way = tuple((s.place.op, s.part, s.index) for s in entry.path)
    return way, _kind(entry), entry.shape, entry.dtype.name


def _match_group(
    partners: _Partners, a: Sequence[Entry], b: Sequence[Entry], left: list[int], right: list[int]
) -> None:
    """Matches the values of one source location in one iteration."""
    moves = any(e.place.op in TRANSFERS for e in (*[a[i] for i in left], *[b[j] for j in right]))
    kinds: dict[Any, tuple[list[int], list[int]]] = defaultdict(lambda: ([], []))
    for side, (entries, rows) in enumerate(((a, left), (b, right))):
        for number in rows:
            kinds[_kind(entries[number])][side].append(number)
    rest: tuple[list[int], list[int]] = ([], [])
    for (op, _), (ours, theirs) in kinds.items():
        # The pass may have added reshapes beside a transfer.
        if len(ours) == len(theirs) and not (moves and op == "reshape"):
            _match_in_order(partners, ours, theirs)
            continue
        # The pass removed some of them: match equal contents first, then equal types.
        _match_common(partners, a, b, ours, theirs, _contents)
        ours, theirs = ([n for n in ours if n not in partners], [n for n in theirs if n not in partners.taken])
        if op in _MOVED and len(ours) == len(theirs):
            _match_common(partners, a, b, ours, theirs, _type)
        elif op not in _MOVED:
            _match_common(partners, a, b, ours, theirs, _type)
            rest[0].extend(n for n in ours if n not in partners)
            rest[1].extend(n for n in theirs if n not in partners.taken)
    # One op replaced by another: match the k-th of both if the counts are equal.
    if len(rest[0]) == len(rest[1]):
        _match_in_order(partners, sorted(rest[0]), sorted(rest[1]))


def _match_in_order(partners: _Partners, ours: Sequence[int], theirs: Sequence[int]) -> None:
    for i, j in zip(ours, theirs, strict=True):
        partners.match(i, j)


def _match_common(
    partners: _Partners,
    a: Sequence[Entry],
    b: Sequence[Entry],
    ours: list[int],
    theirs: list[int],
    key: Callable[[Entry], Any],
) -> None:
    """Matches the longest common subsequences of the keys of values."""
    rows = [key(a[i]) for i in ours], [key(b[j]) for j in theirs]
    for block in difflib.SequenceMatcher(None, *rows, autojunk=False).get_matching_blocks():
        for k in range(block.size):
            partners.match(ours[block.a + k], theirs[block.b + k])


def _type(entry: Entry) -> Any:
    return entry.shape, entry.dtype.name


def _contents(entry: Entry) -> Any:
    """The contents of the first copy; the shape counts only for reshapes, since the pass may reshape transfers."""
    first = entry.data if entry.coordinates is None else entry.data[0]
    form = first.shape if entry.place.op == "reshape" else first.size
    return form, entry.dtype.name, zlib.crc32(first.tobytes())


def _where(entry: Entry) -> Any:
    if entry.place.op == ARGUMENT:
        # The name of the program does not count.
        return ARGUMENT, entry.place.occurrence
    return _source(entry.place.source), _way(entry.path)


def _way(path: Path) -> Any:
    return tuple((_source(s.place.source), s.place.op, s.place.occurrence, s.part, s.index) for s in path)


def _source(source: SourceLocation) -> Any:
    # Without folders: the same program may have been recorded elsewhere.
    return pathlib.PurePath(source.file).name, source.line, source.column, source.function


def _kind(entry: Entry) -> tuple[str, int]:
    return kind(entry.place, entry.coordinates is not None), entry.result


def kind(place: Place, on_devices: bool) -> str:
    """The op, or for a transfer its direction; the result of an `aggregate_tensor` may be read on every device."""
    if place.op not in TRANSFERS:
        return place.op
    to_devices = on_devices if place.op == "mesh_shard" else place.op == "distribute_tensor"
    return "to devices" if to_devices else "to host"
