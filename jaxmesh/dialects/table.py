"""The table of operations, `operations.txt`: operands, attributes and results, and calls in Python and C++."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from jaxmesh.dialects.attributes import attributes_of
from jaxmesh.dialects.op import Arity, OpDef, Write

TABLE = Path(__file__).with_name("operations.txt")
_LINE = re.compile(r"(\w+\.\w+(?: \w+\.\w+)*)\(([^)]*)\)(?: \{([^}]*)\})?(?: -> (.*?))?( by element type)?")
_OPERAND = re.compile(r"(?:(\w+) )?(\w+[?*+]?)")
_HANDLE = re.compile(r"(?:mesh_)?device\??$|.*semaphore")
_OPTION = "option "
_WRITES: Mapping[str, Write] = {
    "result": Write.AS_RESULT,
    "holding": Write.HOLDS_RESULT,
    "changed": Write.BESIDE_RESULTS,
}


@dataclass(frozen=True, slots=True)
class TableRow:
    """A row of the table.

    Attributes:
      definition: the operation, without a meaning.
      marks: by operand the word before it, or an empty text.
      results: the names of the results, with such words.
      by_element_type: True if the meaning depends on element types that JAX lacks.
      calls: the calls by language, in the notation of `read_call` in `ttnn/op.py`.
    """

    definition: OpDef
    marks: tuple[str, ...]
    results: tuple[str, ...]
    by_element_type: bool
    calls: Mapping[str, str] = field(default_factory=dict[str, str])


def _names(text: str | None) -> list[str]:
    return [name.strip() for name in text.split(",")] if text else []


def _arity(names: Sequence[str]) -> Arity:
    least = sum(name[-1] not in "?*" for name in names)
    return least, None if any(name[-1] in "*+" for name in names) else len(names)


def read_row(line: str) -> dict[str, TableRow]:
    """Returns the operations that a line of the table describes, by full name."""
    found = _LINE.fullmatch(line)
    assert found is not None, line
    results, declared = _names(found[4]), _names(found[3])
    operands = [(m[1] or "", m[2]) for text in _names(found[2]) if (m := _OPERAND.fullmatch(text))]
    marks, names = tuple(mark for mark, _ in operands), tuple(name for _, name in operands)
    writes = {i: _WRITES[mark] for i, mark in enumerate(marks) if mark in _WRITES}
    handles = [name for name in names if _HANDLE.match(name)]
    about = OpDef(
        "",
        "",
        _arity([name for name in names if name not in handles]),
        attributes_of(", ".join(text for text in declared if not text.startswith(_OPTION))),
        None,
        (1, 1) if Write.AS_RESULT in writes.values() else _arity(results),
        options=frozenset(text.removeprefix(_OPTION) for text in declared if text.startswith(_OPTION)),
        writes=writes,
        handles=_arity(handles),
        operand_names=names,
    )
    rows: dict[str, TableRow] = {}
    for full_name in found[1].split():
        dialect, _, name = full_name.partition(".")
        definition = replace(about, dialect=dialect, name=name)
        rows[full_name] = TableRow(definition, marks, tuple(results), found[5] is not None)
    return rows


def _read_table() -> dict[str, TableRow]:
    rows: dict[str, TableRow] = {}
    last: dict[str, TableRow] = {}
    for line in TABLE.read_text().splitlines():
        if line.startswith("  "):
            language, _, call = line.strip().partition(" ")
            last = {name: replace(row, calls={**row.calls, language: call}) for name, row in last.items()}
        elif not line.startswith("#"):
            last = read_row(line)
        rows |= last
    return rows


ROWS: Mapping[str, TableRow] = _read_table()
"""By full name."""
