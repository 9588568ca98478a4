"""Aligns two recordings: finds for each value its partner in the other recording.

Partners have the same source location, path through loops and branches, and op. A transfer of TTNN matches a
`mesh_shard` with the same residency of the result. Values that only one program computes have no partner: transfers
that the pass cancelled, hoisted or inserted.
"""

from __future__ import annotations

import difflib
import pathlib
import zlib
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

from jaxmesh.analysis.record.entry import Entry
from jaxmesh.analysis.record.source_path import ARGUMENT
from jaxmesh.dialects.ttir.mesh_shard import mesh_shard_p
from jaxmesh.dialects.ttnn.transfers import aggregate_tensor_p, distribute_tensor_p
from jaxmesh.jaxprs import primitives
from jaxmesh.jaxprs.source_locations import SourceLocation

TRANSFERS = frozenset(p.name for p in (mesh_shard_p, distribute_tensor_p, aggregate_tensor_p))
PLUMBING = TRANSFERS | primitives.RETYPES | {"reshape"}
"""The ops that the pass inserts and removes."""
_MOVED = frozenset({"reshape", "to devices", "to host"})
Pair = tuple[Entry | None, Entry | None]
Indices = Sequence[int]
Key = Callable[[Entry], Any]


def align(a: Sequence[Entry], b: Sequence[Entry]) -> list[Pair]:
    """Returns the values of both recordings in pairs, in the order of `a`; values only in `b` keep their position in
    `b`."""
    partners = _Partners(a, b)
    alone = partners.without_partner(*partners.all)[1]
    pairs: list[Pair] = []
    next_alone = 0
    for i, entry in enumerate(a):
        j = partners.of.get(i)
        while j is not None and next_alone < len(alone) and alone[next_alone] < j:
            pairs.append((None, b[alone[next_alone]]))
            next_alone += 1
        pairs.append((entry, None if j is None else b[j]))
    return [*pairs, *[(None, b[j]) for j in alone[next_alone:]]]


class _Partners:
    """The index in `b` of each partner, by its index in `a`."""

    def __init__(self, a: Sequence[Entry], b: Sequence[Entry]) -> None:
        self.a, self.b = a, b
        self.all = range(len(a)), range(len(b))
        self.of: dict[int, int] = {}
        self.taken: set[int] = set()
        for left, right in self.groups(*self.all, _where).values():
            self.match_group(left, right)
        self.match_without_line()
        self.match_edited()

    def groups(self, ours: Indices, theirs: Indices, key: Key) -> dict[Any, tuple[list[int], list[int]]]:
        """Groups the indices of both recordings by the key of their entries."""
        groups: dict[object, tuple[list[int], list[int]]] = defaultdict(lambda: ([], []))
        for side, (entries, indices) in enumerate(((self.a, ours), (self.b, theirs))):
            for number in indices:
                groups[key(entries[number])][side].append(number)
        return groups

    def without_partner(self, ours: Indices, theirs: Indices) -> tuple[list[int], list[int]]:
        """Returns the indices without a partner."""
        return [i for i in ours if i not in self.of], [j for j in theirs if j not in self.taken]

    def match_without_line(self) -> None:
        """Matches values by path, op and type if one recording lacks lines, as in calls that the pass inlined."""
        ours, theirs = self.without_partner(*self.all)
        if any(e.place.source == SourceLocation() for e in self.entries(ours, theirs)):
            self.match_common(ours, theirs, _unknown)

    def match_edited(self) -> None:
        """Matches values on lines or columns that an edit of the source moved: by function, path, op and type.

        The passes insert and remove transfers, but move no computation to another line. So this applies only if each
        recording has computed values without a partner: then the sources differ.
        """
        ours, theirs = self.without_partner(*self.all)
        if any(is_computed(self.a[i]) for i in ours) and any(is_computed(self.b[j]) for j in theirs):
            self.match_common(ours, theirs, lambda e: (e.place.source.function, _unknown(e)))

    def entries(self, ours: Indices, theirs: Indices) -> list[Entry]:
        return [*(self.a[i] for i in ours), *(self.b[j] for j in theirs)]

    def match_group(self, left: Indices, right: Indices) -> None:
        """Matches the values of one source location in one iteration."""
        moves = any(e.place.op in TRANSFERS for e in self.entries(left, right))
        rest: tuple[list[int], list[int]] = ([], [])
        for (op, _), (ours, theirs) in self.groups(left, right, _kind).items():
            # The pass may have inserted reshapes beside a transfer.
            if len(ours) == len(theirs) and not (moves and op == "reshape"):
                self.match_in_order(ours, theirs)
                continue
            # The pass removed some of these ops: match equal contents first, then equal types.
            self.match_common(ours, theirs, _contents)
            ours, theirs = self.without_partner(ours, theirs)
            if op not in _MOVED or len(ours) == len(theirs):
                self.match_common(ours, theirs, _type)
            if op not in _MOVED:
                for side, indices in zip(rest, self.without_partner(ours, theirs), strict=True):
                    side.extend(indices)
        # One op replaced by another: match the k-th of each if the counts are equal.
        if len(rest[0]) == len(rest[1]):
            self.match_in_order(sorted(rest[0]), sorted(rest[1]))

    def match_in_order(self, ours: Indices, theirs: Indices) -> None:
        self.of.update(zip(ours, theirs, strict=True))
        self.taken.update(theirs)

    def match_common(self, ours: Indices, theirs: Indices, key: Key) -> None:
        """Matches the longest common subsequences of the keys of values."""
        keys = [key(self.a[i]) for i in ours], [key(self.b[j]) for j in theirs]
        for i, j, size in difflib.SequenceMatcher(None, *keys, autojunk=False).get_matching_blocks():
            self.match_in_order(ours[i : i + size], theirs[j : j + size])


def is_computed(entry: Entry) -> bool:
    """Returns True if the user's program computes the value, rather than a pass or a change of type."""
    return entry.place.op not in PLUMBING and entry.place.op != ARGUMENT


def _unknown(entry: Entry) -> object:
    path = tuple((s.place.op, s.part, s.index) for s in entry.path)
    return path, _kind(entry), entry.shape, entry.dtype.name


def _type(entry: Entry) -> Any:
    return entry.shape, entry.dtype.name


def _contents(entry: Entry) -> object:
    """Returns the contents of the first copy; the shape counts only for reshapes, since the pass may reshape
    transfers."""
    first = entry.data if entry.coordinates is None else entry.data[0]
    shape = first.shape if entry.place.op == "reshape" else first.size
    return shape, entry.dtype.name, zlib.crc32(first.tobytes())


def _where(entry: Entry) -> object:
    if entry.place.op == ARGUMENT:
        # The name of the program may differ.
        return ARGUMENT, entry.place.occurrence
    path = tuple((_source(s.place.source), s.place.op, s.place.occurrence, s.part, s.index) for s in entry.path)
    return _source(entry.place.source), path


def _source(source: SourceLocation) -> object:
    # Without folders: the same program may have been recorded in another folder.
    return pathlib.PurePath(source.file).name, source.line, source.column, source.function


def _kind(entry: Entry) -> tuple[str, int]:
    """Returns the op, or the direction of a transfer: an `aggregate_tensor`'s result may be read on every device."""
    op = entry.place.op
    if op in TRANSFERS:
        to_devices = entry.coordinates is not None if op == "mesh_shard" else op == "distribute_tensor"
        op = "to devices" if to_devices else "to host"
    return op, entry.result
