"""A program folded into blocks: by named scope or source function, and equal blocks as one."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from jaxmesh.drawing.placement import Placement

BOUNDARY = ("arguments", "results")
"""The blocks of the values outside of a program's body, which open after all others."""


@dataclass(frozen=True, slots=True)
class Change:
    """A value that the folded picture shows: an argument, a result, or a value whose placement changes.

    Attributes:
      name: the change, such as `all_reduce over x`, or the name of an argument.
      where: its residency before and after.
      kind: the name by which a block counts it.
      before: its placement before, if it was on the devices.
    """

    name: str
    where: str
    kind: str
    before: Placement | None = None


@dataclass(frozen=True, slots=True)
class ProgramValue:
    """One value of a program.

    Attributes:
      text: its definition, such as `%3 = tanh(%2)`.
      type_text: its type; the local type of a shard.
      where: a description of its residency.
      placement: its placement, if it is on the devices.
      depth: the number of loops and calls around it.
      moves: True for a transfer or a collective.
      change: what the folded picture shows of it; None for a plain value.
      path: the names of the blocks around it, outermost first; None if another value shows it.
      origin: the key of its cost; empty if it has none.
    """

    text: str
    type_text: str
    where: str
    placement: Placement | None = None
    line: str = ""
    depth: int = 0
    moves: bool = False
    change: Change | None = None
    path: tuple[str, ...] | None = ()
    origin: str = ""

    @property
    def is_lit(self) -> bool:
        """True for a row to highlight: a move inside the program; in a whole listing every move."""
        return self.moves and (self.change is None or not self.path or self.path[0] not in BOUNDARY)


@dataclass(frozen=True, slots=True)
class Cost:
    """The least time of ops on one device, in seconds.

    Attributes:
      busy: by part of the device, the time that it works.
      bound: by part, the time of the ops that it bounds; their sum is the time of ops that run one after the other.
    """

    busy: Mapping[str, float] = field(default_factory=dict[str, float])
    bound: Mapping[str, float] = field(default_factory=dict[str, float])

    @property
    def seconds(self) -> float:
        """The time of the ops one after the other."""
        return sum(self.bound.values())


@dataclass(slots=True)
class BlockRow:
    """A value of a block, and the number of equal values that it stands for."""

    value: ProgramValue
    cost: Cost
    times: int = 1


@dataclass(slots=True)
class BlockRest:
    """The values of a block whose placement stays: those in the first of equal blocks; the number and cost of all."""

    values: list[ProgramValue]
    cost: Cost
    times: int = 1

    @property
    def text(self) -> str:
        """Their number."""
        return equations_text(self.times, "further ") or "ops of no equation"


@dataclass(slots=True)
class ProgramBlock:
    """A named scope, a function, or a part of a tree of arguments.

    Attributes:
      name: its name; of equal blocks the first and the last.
      items: its inner blocks and its values, in the order in which they first occur.
      times: the number of equal blocks that it stands for.
    """

    name: str
    items: list[Item] = field(default_factory=list["Item"])
    times: int = 1

    @property
    def cost(self) -> Cost:
        """The cost of all its values."""
        return total(item.cost for item in self.items)

    @property
    def blocks(self) -> list[ProgramBlock]:
        """Its inner blocks."""
        return [item for item in self.items if isinstance(item, ProgramBlock)]

    def leaves(self) -> Iterator[BlockRow | BlockRest]:
        """Yields its values at every depth."""
        for item in self.items:
            if isinstance(item, ProgramBlock):
                yield from item.leaves()
            else:
                yield item

    @property
    def equations(self) -> int:
        """The number of its values whose placement stays."""
        return sum(leaf.times for leaf in self.leaves() if isinstance(leaf, BlockRest))

    def changes(self) -> Counter[str]:
        """Counts the values that it shows by their kinds."""
        counts = Counter[str]()
        for leaf in self.leaves():
            if isinstance(leaf, BlockRow) and leaf.value.change is not None:
                counts[leaf.value.change.kind] += leaf.times
        return counts

    @property
    def summary(self) -> str:
        """The number of its equations and of the changes of placement in it."""
        equations, changes = equations_text(self.equations), self.changes().most_common()
        return ", ".join([*([equations] if equations else []), *(f"{count} {kind}" for kind, count in changes)])


def equations_text(count: int, word: str = "") -> str:
    """Returns a number of equations as text; nothing for none."""
    return f"{count:,} {word}equation{'s' if count > 1 else ''}" if count else ""


Item = ProgramBlock | BlockRow | BlockRest


def count_text(count: int, around: int = 1) -> str:
    """Returns the number of equal values or blocks as text; nothing for one, and for the number of blocks around."""
    return "" if count in (1, around) else f" \N{MULTIPLICATION SIGN}{count}"


def list_values(values: Sequence[ProgramValue], costs: Mapping[str, Cost]) -> ProgramBlock:
    """Returns a block that shows every value."""
    rest = dict(costs)
    rows: list[Item] = [BlockRow(replace(v, change=None), _cost(v, rest)) for v in values]
    return ProgramBlock("", [*rows, *_without_value(rest)])


def fold(values: Iterable[ProgramValue], costs: Mapping[str, Cost]) -> ProgramBlock:
    """Folds values into the blocks of their paths; equal blocks and equal rows become one.

    A cost belongs to the first value with its key.
    """
    root, rest = ProgramBlock(""), dict(costs)
    blocks: dict[tuple[str, ...], ProgramBlock] = {(): root}
    for value in values:
        path = value.path
        if path is None:
            continue
        for depth, name in enumerate(path):
            if path[: depth + 1] not in blocks:
                block = blocks[path[: depth + 1]] = ProgramBlock(name)
                blocks[path[:depth]].items.append(block)
        cost, flat = _cost(value, rest), replace(value, depth=0)
        blocks[path].items.append(BlockRest([flat], cost) if flat.change is None else BlockRow(flat, cost))
    root.items += _without_value(rest)
    simple = _simplify(root)
    assert isinstance(simple, ProgramBlock)
    return simple


def _cost(value: ProgramValue, costs: dict[str, Cost]) -> Cost:
    """Takes the cost of a value out of the costs."""
    return costs.pop(value.origin, Cost()) if value.origin else Cost()


def _without_value(costs: Mapping[str, Cost]) -> list[Item]:
    """Returns the cost of ops without a value of the program, such as conversions that passes add."""
    return [BlockRest([], total(costs.values()), 0)] if costs else []


def total(costs: Iterable[Cost]) -> Cost:
    """Returns the sum of costs."""
    busy, bound = dict[str, float](), dict[str, float]()
    for cost in costs:
        for sums, part in ((busy, cost.busy), (bound, cost.bound)):
            for name, seconds in part.items():
                sums[name] = sums.get(name, 0.0) + seconds
    return Cost(busy, bound)


def _simplify(block: ProgramBlock) -> Item:
    """Joins equal items at every depth, and a block with its only inner block or value."""
    items = _merge([_simplify(item) if isinstance(item, ProgramBlock) else item for item in block.items])
    if block.name and len(items) == 1:
        inner = items[0]
        if isinstance(inner, ProgramBlock):
            joint = "" if inner.name.startswith(_KEYS) else "/"
            return replace(inner, name=f"{block.name}{joint}{inner.name}")
        change = inner.value.change if isinstance(inner, BlockRow) else None
        if isinstance(inner, BlockRow) and change is not None and change.name.startswith(_KEYS):
            change = replace(change, name=f"{block.name}{change.name}")
            return replace(inner, value=replace(inner.value, change=change))
    return replace(block, items=items)


_KEYS = ("[", ".")
"""The beginnings of the names of keys in a tree."""
_NUMBER = re.compile(r"\d+")


def _merge(items: Iterable[Item]) -> list[Item]:
    """Joins items of one form, whose names may differ in numbers."""
    groups: dict[object, list[Item]] = {}
    for item in items:
        groups.setdefault(_form(item), []).append(item)
    return [_joined(group) for group in groups.values()]


def _form(item: Item) -> object:
    match item:
        case ProgramBlock():
            # Blocks may differ in the values whose placement stays.
            return _NUMBER.sub("*", item.name), tuple(_form(i) for i in item.items if not isinstance(i, BlockRest))
        case BlockRow():
            change, line = item.value.change, item.value.line
            return change and (_NUMBER.sub("*", change.name), change.where), item.value.type_text, line
        case BlockRest():
            return None


def _joined(group: Sequence[Item]) -> Item:
    first, last, times = group[0], group[-1], sum(item.times for item in group)
    if len(group) == 1:
        return first
    cost = total(item.cost for item in group)
    if isinstance(first, BlockRow) and isinstance(last, BlockRow):
        return BlockRow(_named(first.value, last.value), cost, times)
    if isinstance(first, ProgramBlock):
        blocks = [item for item in group if isinstance(item, ProgramBlock)]
        items = _merge(item for block in blocks for item in block.items)
        return ProgramBlock(_span(first.name, blocks[-1].name), items, times)
    rests = [item for item in group if isinstance(item, BlockRest)]
    return BlockRest([v for r in rests for v in r.values], cost, times)


def _named(value: ProgramValue, last: ProgramValue) -> ProgramValue:
    if value.change is None or last.change is None:
        return value
    return replace(value, change=replace(value.change, name=_span(value.change.name, last.change.name)))


def _span(first: str, last: str) -> str:
    """Returns one name for two, which differ in numbers.

    >>> _span("layer_0", "layer_11"), _span("norm", "norm")
    ('layer_0 ... layer_11', 'norm')
    """
    return first if first == last else f"{first} ... {last}"


def choose_open(root: ProgramBlock, most: int, last: Container[str] = ()) -> set[int]:
    """Returns the identities of the blocks to open so that at most `most` items show.

    Outer blocks come first, then those with a longer time; blocks of a name in `last`, and their inner blocks, come
    after all others.
    """
    opened: set[int] = set()
    room = most - len(root.items)
    for late in (False, True):
        room = _open([b for b in root.blocks if (b.name.split("[")[0] in last) == late], room, opened)
    return opened


def _open(blocks: Sequence[ProgramBlock], room: int, opened: set[int]) -> int:
    """Opens blocks, then their inner blocks, that have at most `room` items; returns the room that is left."""
    inner: list[ProgramBlock] = []
    for block in sorted(blocks, key=lambda b: b.cost.seconds, reverse=True):
        if any(not isinstance(item, BlockRest) for item in block.items) and len(block.items) <= room:
            opened.add(id(block))
            room -= len(block.items)
            inner += block.blocks
    return _open(inner, room, opened) if inner else room
