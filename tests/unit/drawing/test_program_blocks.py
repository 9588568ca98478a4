"""Folding values into blocks, on values that are written by hand."""

from __future__ import annotations

import pytest

from jaxmesh.drawing.program_blocks import (
    BlockRest,
    BlockRow,
    Change,
    Cost,
    ProgramBlock,
    ProgramValue,
    choose_open,
    fold,
    list_values,
)


def value(*path: str, change: str = "", origin: str = "", kind: str = "move") -> ProgramValue:
    made = Change(change, "x", kind) if change else None
    return ProgramValue("%0 = f()", "f32[2]", "x", moves=bool(change), change=made, path=path, origin=origin)


def cost(seconds: float) -> Cost:
    return Cost({"links": seconds}, {"links": seconds})


def shape(block: ProgramBlock) -> list[object]:
    """The names and the numbers of a block, as nested lists."""
    rows: list[object] = []
    for item in block.items:
        match item:
            case ProgramBlock():
                rows.append((item.name, item.times, shape(item)))
            case BlockRow():
                assert item.value.change is not None
                rows.append((item.value.change.name, item.times))
            case BlockRest():
                rows.append(item.times)
    return rows


def test_blocks_that_differ_in_numbers_alone_are_one() -> None:
    values = [v for i in range(3) for v in (value(f"layer_{i}"), value(f"layer_{i}", change="all_reduce"))]
    values += [value("layer_3"), value("head", change="all_gather"), value("layer_0")]
    assert shape(fold(values, {})) == [
        ("layer_0 ... layer_2", 3, [4, ("all_reduce", 3)]),
        ("layer_3", 1, [1]),
        ("head", 1, [("all_gather", 1)]),
    ]


def test_a_block_with_one_inner_block_joins_it() -> None:
    assert shape(fold([value("a", "b", "[0]", change="c")], {})) == [("a/b[0]", 1, [("c", 1)])]


def test_a_value_that_another_shows_has_no_row() -> None:
    hidden = ProgramValue("x", "f32[2]", "host", path=None)
    assert shape(fold([hidden, value()], {})) == [1]


def test_costs_belong_to_the_first_value_and_are_never_lost() -> None:
    costs = {"a": cost(1.0), "b": cost(2.0), "unknown": cost(4.0)}
    values = [value("f", origin="a"), value("f", origin="a"), value("g", change="c", origin="b")]
    root = fold(values, costs)
    assert {b.name: b.cost.seconds for b in root.blocks} == {"f": 1.0, "g": 2.0}
    assert root.cost == list_values(values, costs).cost == cost(7.0)
    assert [leaf.times for leaf in root.items if isinstance(leaf, BlockRest)] == [0]


@pytest.mark.parametrize(("most", "opened"), [(2, []), (4, ["slow"]), (6, ["slow", "fast"]), (7, ["slow", "fast"])])
def test_the_slowest_blocks_open_first(most: int, opened: list[str]) -> None:
    names = ("fast", "slow")
    values = [value(n, change=c, origin=n) for n in names for c in ("one", "two")]
    root = fold(values, {"fast": cost(1.0), "slow": cost(2.0)})
    found = choose_open(root, most)
    assert {b.name for b in root.blocks if id(b) in found} == set(opened)
    # A block of a name that comes last opens after all others, whatever its time.
    late = choose_open(root, most, ("slow",))
    assert {b.name for b in root.blocks if id(b) in late} == set(["fast", "slow"][: len(opened)])
