"""The calls that tell a watch of a program's lines."""

from __future__ import annotations

import ast
import traceback
from collections.abc import Iterator
from typing import Any

import pytest

from jaxmesh.analysis.judge.runner.watch import ENTER, LEAVE, TRIPS, Marks, Watch

SCRIPT = '''\
def program(arg):
    """Doubles."""
    x = arg * 2
    if x > 2:
        y = (
            x + 1
        )
    else:
        y = x
    return [y]


def main():
    for i in (1, 2):
        out = program(i)
    return out
'''


def run(script: str) -> tuple[list[int], list[tuple[Any, dict[str, Any]]], Any]:
    """The lines that a marked script tells, what its first function leaves, and what `main` returns."""
    lines: list[int] = []
    left: list[tuple[Any, dict[str, Any]]] = []

    def leave(results: Any, names: dict[str, Any]) -> Any:
        left.append((results, dict(names)))
        return results

    names: dict[str, Any] = {ENTER: lines.append, LEAVE: leave}
    exec(compile(Marks("program").visit(ast.parse(script)), "marked.py", "exec"), names)
    return lines, left, names["main"]()


def test_each_line_of_each_function_is_told_before_it_runs() -> None:
    lines, _, made = run(SCRIPT)
    assert lines == [14, 15, 2, 3, 4, 9, 10, 15, 2, 3, 4, 5, 10, 16]
    assert made == [5]


def test_the_end_of_the_program_is_told_with_its_names() -> None:
    _, left, _ = run(SCRIPT)
    assert left == [([2], {"arg": 1, "x": 2, "y": 2}), ([5], {"arg": 2, "x": 4, "y": 5})]


def test_errors_have_the_lines_of_the_script() -> None:
    with pytest.raises(ZeroDivisionError) as error:
        run(SCRIPT.replace("x + 1", "x // 0"))
    assert [f.lineno for f in traceback.extract_tb(error.tb) if f.filename == "marked.py"] == [15, 6]


LOOPS = """\
def program(arg):
    for _ in range(5):
        arg = body(arg)
    while utils.is_true(body(arg)):
        arg = body(arg)
    return [arg]


def body(arg):
    for _ in range(4):
        arg = arg + 1
    return arg


def main():
    return program(0)
"""


def test_a_loop_on_described_devices_runs_twice_and_counts_as_all_iterations() -> None:
    lines: list[int] = []
    weights: list[tuple[int, int]] = []

    def trips(count: int) -> Iterator[None]:
        for times in (1, count - 1):
            if times:
                weights.append((lines[-1], times))
                yield

    names: dict[str, Any] = {ENTER: lines.append, LEAVE: lambda results, names: results, TRIPS: trips}
    exec(compile(Marks("program", described=True).visit(ast.parse(LOOPS)), "marked.py", "exec"), names)
    # Two iterations of five, each with two of four, then one, whose condition changes nothing.
    assert names["main"]() == [6]
    assert [w for w in weights if w[0] < 9] == [(2, 1), (4, 1)]
    assert weights.count((11, 3)) == 4


def test_iterations_multiply() -> None:
    watch = object.__new__(Watch)
    watch._times, watch._late, watch._repeated, watch.line, counted = 1, True, set(), 0, list[int]()
    watch._finish_line = lambda: None  # type: ignore[method-assign]
    for _ in watch.trips(5):
        watch.line = 2
        for _ in watch.trips(4):
            counted.append(watch._times)
    # Both are in their second iteration at last.
    assert counted == [1, 3, 4, 12]
    assert watch._times == 1
    watch._repeated, counted = set(), list[int]()
    watch.line = 1
    for _ in watch.trips(5):
        watch.line = 2
        for _ in watch.trips(4):
            watch.line = 3
            for _ in watch.trips(3):
                counted.append(watch._times)
    assert counted == [1, 2, 9, 12, 12, 24]
    watch.line = 4
    assert list(watch.trips(0)) == []
    watch.line = 5
    assert len(list(watch.trips(1))) == 1
