"""Counts what a printed TTNN text moves, by its lines alone: a second opinion on explanations and estimates."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from typing import Any

Moves = dict[tuple[str, tuple[str, ...]], tuple[int, int, int]]
"""By kind and axes (none for transfers of the host): the number of ops, bytes on a device, bytes that all send; of a
point_to_point, without the bytes on a device."""
_OP = re.compile(r'"ttnn\.(\w+)"\([^)]*\) (?:<\{(.*)\}> )?(?:\{.*\} )?: \((.*)\) -> (.*)$', re.MULTILINE)
_TENSOR = re.compile(r"tensor<((?:[0-9]+x)*)([a-z]+)([0-9]+)")
_SYMBOL = r"@(\"[^\"]*\"|[\w.$]+)"
_PLACE = r"{} = array<i64: ([0-9, ]+)>"


def count_moves(text: str, mesh: Mapping[str, int]) -> Moves:
    """Returns the moves of a TTNN text for a mesh."""
    parts = re.split(rf"^ *func\.func .*?{_SYMBOL}", text, flags=re.MULTILINE)
    functions = dict(zip(parts[1::2], parts[2::2], strict=True))
    names, sizes = [f"_{i}" for i in range(2 - len(mesh))] + list(mesh), [1] * (2 - len(mesh)) + list(mesh.values())
    devices, found = math.prod(sizes), dict[tuple[str, tuple[str, ...]], tuple[int, int, int]]()

    def add(runs: int, kind: str, axes: tuple[str, ...], held: int, sent: int) -> None:
        count, before, so_far = found.get((kind, axes), (0, 0, 0))
        found[kind, axes] = count + runs, before + runs * held, so_far + runs * sent

    for times, (name, attributes, operands, result) in _executed(functions, parts[1], 1):
        taken = _bytes(operands) if "tensor<" in operands else 0
        if name == "distribute_tensor":
            add(times, "distribute", (), _bytes(result), devices * _bytes(result))
        elif name == "aggregate_tensor":
            add(times, "aggregate", (), taken, _bytes(result))
        elif name == "point_to_point":
            ends = [re.search(_PLACE.format(end), attributes) for end in ("sender_coord", "receiver_coord")]
            places = [list(map(int, end[1].split(","))) for end in ends if end]
            if taken:
                add(times, name, tuple(n for n, a, b in zip(names, *places, strict=True) if a != b), 0, taken)
        elif name in ("all_gather", "all_reduce", "reduce_scatter", "all_to_all_dispatch", "all_to_all_combine"):
            axis = re.search(r"cluster_axis = ([0-9]+)", attributes)
            assert axis
            size = sizes[int(axis[1])]
            of_a_ring = {
                "all_gather": (_bytes(result), (size - 1) * taken),
                "all_reduce": (taken, 2 * (size - 1) * taken / size),
                "reduce_scatter": (taken, (size - 1) * taken / size),
            }
            if name == "all_to_all_dispatch":
                taken += _bytes(operands.split(", ")[1])
            # At most: all tokens go to all other devices, and come back from other devices.
            of_a_ring |= {
                "all_to_all_dispatch": (taken, (size - 1) * taken),
                "all_to_all_combine": (_bytes(result),) * 2,
            }
            held, sent = of_a_ring[name]
            if size > 1 and held:
                add(times, name, (names[int(axis[1])],), held, round(devices * sent))
    return found


def _executed(functions: Mapping[str, str], name: str, times: int) -> Iterator[tuple[int, tuple[str, ...]]]:
    """Yields the ops of a function and of the loops that it runs, each with the number of its executions."""
    for line in functions[name].splitlines():
        found = _OP.search(line)
        if found:
            yield times, found.groups()
        for called in re.findall(rf"(?:body|condition)_program = {_SYMBOL}", line):
            trips = re.search(r"limit = #ttcore\.loop_bound<([0-9]+)>", line)
            yield from _executed(functions, called, times * (int(trips[1]) if trips else 1))


def _bytes(types: str) -> int:
    found = _TENSOR.search(types)
    assert found, types
    return math.prod(int(n) for n in found[1].split("x") if n) * max(int(found[3]) // 8, 1)


def as_counted(totals: Any) -> Moves:
    """Returns totals of an explanation or an estimate in the form of `count_moves`."""
    found: Moves = {}
    for total in totals:
        on_host = total.kind in ("distribute", "aggregate")
        key = total.kind, () if on_host else total.axes
        held = 0 if total.kind == "point_to_point" else total.bytes
        count, before, sent = found.get(key, (0, 0, 0))
        found[key] = count + total.count, before + held, sent + total.sent
    return found
