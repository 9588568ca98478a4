"""The calls that tell a watch of a program's lines."""

from __future__ import annotations

import ast
import traceback
from typing import Any

import pytest

from jaxmesh.analysis.judge.runner.watch import ENTER, LEAVE, Marks

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
