"""Which value of one recording is which of another.

Values are the same if they have the same source place, way through loops and branches, and op. The two operations of
TTNN stand for `mesh_shard`, by where their results are. What one program alone has (cancelled, hoisted or written out
by the pass) stays alone.
"""

from __future__ import annotations

import difflib
import pathlib
import zlib
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

from jaxmesh.analysis.record.recording import Entry
from jaxmesh.analysis.record.source_path import ARGUMENT, Path, Place
from jaxmesh.dialects.ttir.mesh_shard import mesh_shard_p
from jaxmesh.dialects.ttnn.transfers import aggregate_tensor_p, distribute_tensor_p
from jaxmesh.jaxprs import primitives
from jaxmesh.jaxprs.source_locations import Source

TRANSFERS = frozenset(p.name for p in (mesh_shard_p, distribute_tensor_p, aggregate_tensor_p))
PLUMBING = TRANSFERS | primitives.RETYPES | {"reshape"}
"""What the pass adds and takes away."""
_MOVED = frozenset({"reshape", "to devices", "to host"})
Pair = tuple[Entry | None, Entry | None]


def aligned(a: Sequence[Entry], b: Sequence[Entry]) -> list[Pair]:
    """Every value of both, in the order of `a`; those of `b` alone stand where `b` made them."""
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
    """Numbers in `b` by those in `a`."""

    def __init__(self) -> None:
        super().__init__()
        self.taken: set[int] = set()

    def match(self, i: int, j: int) -> None:
        self[i] = j
        self.taken.add(j)


def _partners(a: Sequence[Entry], b: Sequence[Entry]) -> _Partners:
    found = _Partners()
    groups: dict[Any, tuple[list[int], list[int]]] = defaultdict(lambda: ([], []))
    for side, entries in enumerate((a, b)):
        for number, entry in enumerate(entries):
            groups[_where(entry)][side].append(number)
    for left, right in groups.values():
        _match_group(found, a, b, left, right)
    _match_unknown(found, a, b)
    _match_edited(found, a, b)
    return found


def _match_unknown(found: _Partners, a: Sequence[Entry], b: Sequence[Entry]) -> None:
    """What has no line in one of them, as calls that the pass has opened, by the way there, op and type."""
    ours = [i for i in range(len(a)) if i not in found]
    theirs = [j for j in range(len(b)) if j not in found.taken]
    if any(e.place.source == Source() for e in (*[a[i] for i in ours], *[b[j] for j in theirs])):
        _match_common(found, a, b, ours, theirs, _unknown)


def _match_edited(found: _Partners, a: Sequence[Entry], b: Sequence[Entry]) -> None:
    """What an edit of the source has moved to other lines or columns: in order, by function, way, op and type.

    The passes take out and add transfers, and what goes with them, but move no computation to another line: only if
    both have some of their own were they made by different texts.
    """
    ours = [i for i in range(len(a)) if i not in found]
    theirs = [j for j in range(len(b)) if j not in found.taken]
    if all(any(computed(r[n]) for n in rows) for r, rows in ((a, ours), (b, theirs))):
        _match_common(found, a, b, ours, theirs, lambda e: (e.place.source.function, _unknown(e)))


def computed(entry: Entry) -> bool:
    """Whether a value is made by what users write, and not by passes and types alone."""
    return entry.place.op not in PLUMBING and entry.place.op != ARGUMENT


def _unknown(entry: Entry) -> Any:
    way = tuple((s.place.op, s.part, s.index) for s in entry.path)
    return way, _kind(entry), entry.shape, entry.dtype.name


def _match_group(found: _Partners, a: Sequence[Entry], b: Sequence[Entry], left: list[int], right: list[int]) -> None:
    """Values made at one place of the source, in one turn."""
    moves = any(e.place.op in TRANSFERS for e in (*[a[i] for i in left], *[b[j] for j in right]))
    kinds: dict[Any, tuple[list[int], list[int]]] = defaultdict(lambda: ([], []))
    for side, (entries, rows) in enumerate(((a, left), (b, right))):
        for number in rows:
            kinds[_kind(entries[number])][side].append(number)
    rest: tuple[list[int], list[int]] = ([], [])
    for (op, _), (ours, theirs) in kinds.items():
        # Reshapes beside a transfer may be the pass's own.
        if len(ours) == len(theirs) and not (moves and op == "reshape"):
            _match_in_order(found, ours, theirs)
            continue
        # Which of them the pass took away is told by what is equal, and then by types.
        _match_common(found, a, b, ours, theirs, _contents)
        ours, theirs = ([n for n in ours if n not in found], [n for n in theirs if n not in found.taken])
        if op in _MOVED and len(ours) == len(theirs):
            _match_common(found, a, b, ours, theirs, _type)
        elif op not in _MOVED:
            _match_common(found, a, b, ours, theirs, _type)
            rest[0].extend(n for n in ours if n not in found)
            rest[1].extend(n for n in theirs if n not in found.taken)
    # Another op in the place of one: the k-th of both, if they are as many.
    if len(rest[0]) == len(rest[1]):
        _match_in_order(found, sorted(rest[0]), sorted(rest[1]))


def _match_in_order(found: _Partners, ours: Sequence[int], theirs: Sequence[int]) -> None:
    for i, j in zip(ours, theirs, strict=True):
        found.match(i, j)


def _match_common(
    found: _Partners,
    a: Sequence[Entry],
    b: Sequence[Entry],
    ours: list[int],
    theirs: list[int],
    look: Callable[[Entry], Any],
) -> None:
    """Matches the longest common row of what values look like."""
    rows = [look(a[i]) for i in ours], [look(b[j]) for j in theirs]
    for block in difflib.SequenceMatcher(None, *rows, autojunk=False).get_matching_blocks():
        for k in range(block.size):
            found.match(ours[block.a + k], theirs[block.b + k])


def _type(entry: Entry) -> Any:
    return entry.shape, entry.dtype.name


def _contents(entry: Entry) -> Any:
    """The bytes of the first copy, and of a transfer, around which the pass may reshape, the number of elements."""
    first = entry.data if entry.coordinates is None else entry.data[0]
    form = first.shape if entry.place.op == "reshape" else first.size
    return form, entry.dtype.name, zlib.crc32(first.tobytes())


def _where(entry: Entry) -> Any:
    if entry.place.op == ARGUMENT:
        # Whatever the program is called.
        return ARGUMENT, entry.place.occurrence
    return _source(entry.place.source), _way(entry.path)


def _way(path: Path) -> Any:
    return tuple((_source(s.place.source), s.place.op, s.place.occurrence, s.part, s.index) for s in path)


def _source(source: Source) -> Any:
    # Without folders: the same program may have been recorded elsewhere.
    return pathlib.PurePath(source.file).name, source.line, source.column, source.function


def _kind(entry: Entry) -> tuple[str, int]:
    return kind(entry.place, entry.coordinates is not None), entry.result


def kind(place: Place, on_devices: bool) -> str:
    """The op, of all transfers the way they go; what TTNN's put together may be read on every device."""
    if place.op not in TRANSFERS:
        return place.op
    to_devices = on_devices if place.op == "mesh_shard" else place.op == "distribute_tensor"
    return "to devices" if to_devices else "to host"
