"""Reads TTIR and TTNN texts line by line: the operations, and the lines that read their results."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

OP = re.compile(
    r"^ *(?P<results>%\w[\w, %:]*) = \"(?P<dialect>\w+)\.(?P<name>\w+)\"\((?P<operands>[^)]*)\)"
    r"(?: <\{(?P<attributes>.*)\}>)? : \((?P<types>.*)\) -> (?P<made>.*?)(?: loc\(.*\))?$"
)
VALUE = re.compile(r"%\w+(?:#\d+)?")
TYPE = re.compile(r"tensor<[^>]*>|!ttnn\.device")
MOVES = ("reshape", "broadcast", "repeat", "permute", "to_layout", "typecast", "from_device")
"""The operations that only move values."""


@dataclass(frozen=True)
class Op:
    """An operation of one line.

    Attributes:
      at: the index of its line.
      line: the line.
      name: its name without the dialect.
      dialect: `ttir` or `ttnn`.
      results: the values that it makes.
      operands: the values that it reads.
      attributes: the text of its attributes.
      types: the types of its operands.
      made: the type of its result.
      function: the index of the line at which its function starts.
    """

    at: int
    line: str
    name: str
    dialect: str
    results: tuple[str, ...]
    operands: tuple[str, ...]
    attributes: str
    types: tuple[str, ...]
    made: str
    function: int

    def edited(self, old: str, new: str) -> str:
        """Returns the line with another text in its attributes."""
        return self.line.replace(f"<{{{self.attributes}}}>", f"<{{{self.attributes.replace(old, new, 1)}}}>", 1)

    def called(self, operands: Sequence[str]) -> str:
        """Returns the line with other operands."""
        return self.line.replace(f"({', '.join(self.operands)})", f"({', '.join(operands)})", 1)


@dataclass(frozen=True)
class Text:
    """A text by lines, and its operations of one line."""

    lines: tuple[str, ...]
    ops: tuple[Op, ...] = field(repr=False)

    def readers(self, op: Op) -> set[int]:
        """Returns the numbers of the lines that read a result of an operation; that of a cached function is read."""
        found = self._reads(op.function, op.results)
        end = next((i for i in found if self.lines[i - 1].lstrip().startswith("return")), None)
        name = re.search(r"@(\w+)", self.lines[op.function])
        if end is None or "const_eval" not in self.lines[op.function] or name is None:
            return found
        place = VALUE.findall(self.lines[end - 1].split(" : ")[0]).index(op.results[0])
        for at, line in enumerate(self.lines):
            if f"load_cached(@{name[1]}," in line:
                result = re.match(r" *(%\w+)", line)
                assert result is not None
                start = max(i for i in range(at) if "func.func" in self.lines[i])
                found |= {at + 1} | self._reads(start, (result[1], f"{result[1]}#{place}"))
        return found

    def later(self, op: Op) -> set[int]:
        """Returns the numbers of the lines that read a result, directly or through operations that only move it."""
        found, by_line, todo = set[int](), {x.at + 1: x for x in self.ops}, [op]
        while todo:
            for line in self.readers(todo.pop()) - found:
                found.add(line)
                if (reader := by_line.get(line)) and reader.name in MOVES:
                    todo.append(reader)
        return found

    def makers(self, op: Op) -> set[int]:
        """Returns the number of the line that makes the last operand, and those before it whose value it only moves."""
        found, value = set[int](), op.operands[-1]
        for x in reversed(self.ops[: self.ops.index(op)]):
            if x.function == op.function and value in x.results:
                found.add(x.at + 1)
                if x.name not in MOVES:
                    break
                value = x.operands[0]
        return found

    def _reads(self, start: int, values: Sequence[str]) -> set[int]:
        found = set[int]()
        for at in range(start + 1, len(self.lines)):
            line = self.lines[at]
            if "func.func" in line:
                break
            read = line.split(" = ", 1)[-1] if " = " in line.split("(")[0] else line
            if "ttnn.deallocate" not in line and set(values) & set(VALUE.findall(read.split(" loc(")[0])):
                found.add(at + 1)
        return found


def parsed(text: str) -> Text:
    """Returns a text by lines, with its operations of one line."""
    lines, ops, function = tuple(text.splitlines()), list[Op](), 0
    for at, line in enumerate(lines):
        function = at if "func.func" in line else function
        if (found := OP.match(line)) and "deallocate" not in line and found["name"] != "get_device":
            values = tuple(VALUE.findall(found["results"])), tuple(VALUE.findall(found["operands"]))
            about = found["attributes"] or "", tuple(TYPE.findall(found["types"])), found["made"]
            ops.append(Op(at, line, found["name"], found["dialect"], *values, *about, function))
    return Text(lines, tuple(ops))
