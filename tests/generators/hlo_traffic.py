"""What the optimized HLO of a program moves among devices, read from its text; nothing of the package is used."""

from __future__ import annotations

import itertools
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from math import prod

import numpy as np

KINDS = {
    "all-reduce": "all_reduce",
    "all-gather": "all_gather",
    "reduce-scatter": "reduce_scatter",
    "all-to-all": "all_to_all",
    "collective-permute": "collective_permute",
    "collective-broadcast": "collective_broadcast",
}
_WIDTHS = {"pred": 8, "token": 0, "opaque": 0}
_INSTRUCTION = re.compile(r"^\s*(?:ROOT )?%?([\w.-]+) = (\(.*?\)|\S+) ([a-z][\w-]*)\((.*)$")
_COMPUTATION = re.compile(r"^(ENTRY )?%?([\w.-]+) \(.*\{\s*$")
_SHAPE = re.compile(r"([a-z]\w*)\[([\d,]*)\]")
Groups = list[list[int]]
Moved = dict[tuple[str, tuple[str, ...]], tuple[int, int]]
"""By kind and mesh axes: bytes of the payload on one device, and what all devices send, as `explain` defines them."""


@dataclass
class Instruction:
    name: str
    type: str
    op: str
    rest: str

    @property
    def operands(self) -> list[str]:
        depths = itertools.accumulate((c == "(") - (c == ")") for c in self.rest)
        inside = itertools.takewhile(lambda p: p[1] >= 0, zip(self.rest, depths, strict=True))
        return re.findall(r"%([\w.-]+)", "".join(c for c, _ in inside))


@dataclass
class Module:
    entry: str = ""
    computations: dict[str, list[Instruction]] = field(default_factory=lambda: defaultdict(list))


def parse(text: str) -> Module:
    module, current = Module(), ""
    for line in re.sub(r"/\*.*?\*/", "", text).splitlines():
        begins = _COMPUTATION.match(line)
        if begins:
            current = begins[2]
            module.entry = current if begins[1] else module.entry
        elif line.startswith("}"):
            current = ""
        elif current and (found := _INSTRUCTION.match(line)):
            module.computations[current].append(Instruction(*found.groups()))
    return module


def nbytes(type_text: str) -> int:
    total = 0
    for dtype, dims in _SHAPE.findall(type_text):
        bits = _WIDTHS.get(dtype) or int(re.sub(r"^[a-z]+", "", dtype.split("e")[0]))
        total += prod(int(n) for n in dims.split(",") if n) * -(-bits // 8)
    return total


def numbers(text: str) -> list[int]:
    return [int(n) for n in re.findall(r"\d+", text)]


def _iota(shape: str, order: str | None) -> np.ndarray:
    ids = np.arange(prod(numbers(shape))).reshape(numbers(shape))
    return ids.transpose(numbers(order)) if order else ids


def groups_of(rest: str, devices: int) -> Groups:
    """The replica groups, in each of the forms in which XLA writes them."""
    if found := re.search(r"replica_groups=\[([\d,]+)\]<=\[([\d,]+)\](?:T\(([\d,]+)\))?", rest):
        return _iota(found[2], found[3]).reshape(numbers(found[1])).tolist()
    if found := re.search(
        r"replica_groups=mesh\[([^\]]*)\](?:, device_ids=\(\[([\d,]+)\](?:T\(([\d,]+)\))?\))? \{([^}]*)\}", rest
    ):
        axes = dict(re.findall(r"'(\w+)'=(\d+)", found[1]))
        sizes = [int(n) for n in axes.values()]
        ids = (_iota(found[2], found[3]) if found[2] else np.arange(prod(sizes))).reshape(sizes)
        along = [list(axes).index(a) for a in re.findall(r"'(\w+)'", found[4])]
        others = [i for i in range(len(sizes)) if i not in along]
        return ids.transpose([*others, *along]).reshape(-1, prod(sizes[i] for i in along)).tolist()
    found = re.search(r"replica_groups=\{(\{.*?\})?\}", rest)
    assert found, rest
    return [numbers(g) for g in re.findall(r"\{([\d,]+)\}", found[1] or "")] or [list(range(devices))]


def _axes(groups: Groups, sizes: dict[str, int]) -> tuple[str, ...]:
    """The mesh axes along which the members of the groups differ; device ids are row-major."""
    places = [np.stack(np.unravel_index(g, tuple(sizes.values()))) for g in groups]
    return tuple(a for i, a in enumerate(sizes) if any(len(set(p[i])) > 1 for p in places))


def _one(found: Instruction, operand: int, sizes: dict[str, int]) -> Iterator[tuple[str, tuple[str, ...], int, int]]:
    kind = KINDS[found.op.removesuffix("-start")]
    if kind == "collective_permute":
        text = re.search(r"source_target_pairs=\{(.*?)\}\}", found.rest)
        assert text, found.rest
        pairs = [numbers(p) for p in re.findall(r"\{([\d,]+)", text[1])]
        moving = [p for p in pairs if p[0] != p[1]]
        if moving:
            yield kind, _axes(moving, sizes), operand, operand * len(moving)
        return
    groups = groups_of(found.rest, prod(sizes.values()))
    size, count = len(groups[0]), len(groups)
    assert {len(g) for g in groups} == {size}
    if size == 1 or not operand:
        return
    each = {"all_reduce": 2 * (size - 1), "all_gather": size * (size - 1)}.get(kind, size - 1)
    yield kind, _axes(groups, sizes), operand * size if kind == "all_gather" else operand, operand * each * count


def _called(found: Instruction) -> list[tuple[str, int]]:
    """The computations that an instruction runs, and how often; those that work element by element are left out."""
    if found.op == "while":
        trips = re.search(r'known_trip_count":\{"n":"(\d+)', found.rest)
        body = re.search(r"body=%([\w.-]+)", found.rest)
        test = re.search(r"condition=%([\w.-]+)", found.rest)
        assert body
        assert test
        assert trips, found.rest
        return [(body[1], int(trips[1])), (test[1], int(trips[1]) + 1)]
    if found.op == "conditional":
        branches = re.search(r"branch_computations=\{(.*?)\}", found.rest)
        names = re.findall(r"%([\w.-]+)", branches[1]) if branches else []
        return [(n, 1) for n in [*names, *re.findall(r"(?:true|false)_computation=%([\w.-]+)", found.rest)]]
    if found.op in ("call", "fusion", "async-start"):
        return [(n, 1) for n in re.findall(r"(?:to_apply|calls|called_computation)=%([\w.-]+)", found.rest)]
    return []


def moved(text: str, sizes: dict[str, int]) -> Moved:
    """What a program of one mesh moves, over all executions; branches count as taken."""
    module, total = parse(text), Counter[tuple[str, tuple[str, ...], str]]()
    assert module.entry

    def walk(name: str, times: int) -> None:
        types = {i.name: i.type for i in module.computations[name]}
        for found in module.computations[name]:
            if found.op.removesuffix("-start") in KINDS:
                operand = sum(nbytes(types[o]) for o in found.operands)
                for kind, axes, payload, sent in _one(found, operand, sizes):
                    total[kind, axes, "bytes"] += times * payload
                    total[kind, axes, "sent"] += times * sent
            for inner, often in _called(found):
                walk(inner, times * often)

    walk(module.entry, 1)
    keys: Sequence[tuple[str, tuple[str, ...]]] = sorted({(k, a) for k, a, _ in total})
    return {(k, a): (total[k, a, "bytes"], total[k, a, "sent"]) for k, a in keys}
