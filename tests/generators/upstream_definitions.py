"""Upstream's definitions of TTIR's and TTNN's operations as a table: which operands, attributes and results each has.

`python -m tests.generators.upstream_definitions CHECKOUT > tests/data/upstream_definitions.json` reads the TableGen
files of a checkout of tt-mlir and writes the table, with the commit, one line per operation.

In the table a name ends in `?` if MLIR lets it out (an optional operand; an attribute that is optional or has a
default), and in `*` if any number of values may stand there. An attribute's constraint is TableGen's name of it;
alternatives are joined by `|`.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

FILES = {
    "ttir": "include/ttmlir/Dialect/TTIR/IR/TTIROps.td",
    "ttnn": "include/ttmlir/Dialect/TTNN/IR/TTNNOps.td",
}
ABSENT = {"OptionalAttr", "DefaultValuedAttr", "DefaultValuedStrAttr", "DefaultValuedOptionalAttr"}
"""Wrappers of attributes that need not be written."""
WRAPPERS = ABSENT | {"Arg", "Optional", "Variadic"}
CODE = re.compile(r"\[\{.*?\}\]|//[^\n]*|/\*.*?\*/", re.DOTALL)
HEAD = re.compile(r"\b(class|def)\s+(\w+)\s*(?:<[^{};]*?>)?\s*:\s*([^{;]*?)\s*([{;])", re.DOTALL)
LET = re.compile(r"(?:let|dag)\s+(\w+)\s*=\s*([^;]*);", re.DOTALL)
TABLE = Path(__file__).resolve().parents[1] / "data" / "upstream_definitions.json"


@dataclass
class Record:
    """A class or an operation: what it is made of, and the values that it sets."""

    name: str
    is_def: bool
    bases: str
    values: dict[str, str] = field(default_factory=dict[str, str])


def records(text: str) -> Iterator[Record]:
    """The records of a TableGen file, in order."""
    code = CODE.sub(" ", text)
    for head in HEAD.finditer(code):
        record = Record(head[2], head[1] == "def", head[3])
        if head[4] == "{":
            record.values = {m[1]: m[2].strip() for m in LET.finditer(_body(code, head.end()))}
        yield record


def _body(code: str, start: int) -> str:
    depth, at = 1, start
    while depth:
        depth += {"{": 1, "}": -1}.get(code[at], 0)
        at += 1
    return code[start : at - 1]


def split(text: str) -> list[str]:
    """The parts of a list between commas that stand in no bracket or string."""
    parts, depth, quoted = [""], 0, False
    for c in text:
        quoted ^= c == '"'
        depth += 0 if quoted else (c in "<[({") - (c in ">])}")
        if c == "," and not depth and not quoted:
            parts.append("")
        else:
            parts[-1] += c
    return [p.strip() for p in parts if p.strip()]


def table(texts: Mapping[str, str]) -> dict[str, Any]:
    """The operations that TableGen files define, by name; the files by dialect."""
    made: dict[str, Any] = {}
    for dialect, text in texts.items():
        known = {r.name: r for r in records(text)}
        for record in known.values():
            mnemonic = re.search(r'<[^"<]*"(\w+)"', record.bases)
            if record.is_def and mnemonic:
                made[f"{dialect}.{mnemonic[1]}"] = _operation(record, known)
    return dict(sorted(made.items()))


def _operation(record: Record, known: Mapping[str, Record]) -> dict[str, Any]:
    operands, attributes = list[str](), dict[str, str]()
    for constraint, name in _entries(_value(record, "arguments", known) or ""):
        kind, wrapped = _unwrapped(constraint)
        if "Attr" in constraint or kind in ("TTNN_DeviceComputeKernelConfig",):
            attributes[name + ("?" if wrapped & ABSENT else "")] = kind
        else:
            operands.append(name + ("?" if "Optional" in wrapped else "*" if "Variadic" in wrapped else ""))
    results = [
        name + ("?" if "Optional" in wrapped else "*" if "Variadic" in wrapped else "")
        for constraint, name in _entries(_value(record, "results", known) or "")
        for _, wrapped in [_unwrapped(constraint)]
    ]
    traits = " ".join(r.bases for r in (record, *_bases(record, known)))
    sized = {"segments": True} if "AttrSizedOperandSegments" in traits else {}
    return {"operands": operands, "attributes": dict(sorted(attributes.items())), "results": results} | sized


def _bases(record: Record, known: Mapping[str, Record]) -> Iterator[Record]:
    for base in split(record.bases):
        found = known.get(re.match(r"\w*", base)[0])  # type: ignore[index]
        if found is not None:
            yield found
            yield from _bases(found, known)


def _value(record: Record, name: str, known: Mapping[str, Record]) -> str | None:
    """A value as it is set last, with the names of other values in it replaced by these."""
    text = next((r.values[name] for r in (record, *_bases(record, known)) if name in r.values), None)
    return text and re.sub(r"\bcommonArgs\b", lambda _: _value(record, "commonArgs", known) or "", text)


def _entries(text: str) -> Iterator[tuple[str, str]]:
    """Constraints and names of `(ins A:$a, B:$b)`, also of several joined by `!con`."""
    for part in re.findall(r"\(\s*(?:ins|outs)\b((?:[^()]|\([^()]*\))*)\)", text):
        for entry in split(part):
            constraint, _, name = entry.rpartition("$")
            yield constraint.rstrip(": "), name.strip()


def _unwrapped(constraint: str) -> tuple[str, set[str]]:
    """What stands inside of `Optional<...>` and the like, and the wrappers."""
    wrapped: set[str] = set()
    while (found := re.fullmatch(r"(\w+)<(.*)>", constraint, re.DOTALL)) and found[1] in WRAPPERS:
        wrapped.add(found[1])
        constraint = split(found[2])[0]
    kind = re.sub(r"^ConfinedAttr<(.*?),.*$", r"\1", constraint, flags=re.DOTALL)
    alternatives = re.fullmatch(r"AnyAttrOf<\[(.*?)\].*>", kind, re.DOTALL)
    if alternatives:
        kind = "|".join(split(alternatives[1]))
    return re.sub(r"^Typed\w+<.*>$", "", kind) or constraint, wrapped


def written(operations: Mapping[str, Any], commit: str) -> str:
    """The table as JSON, one line per operation."""
    lines = [f"  {json.dumps(name)}: {json.dumps(row)}" for name, row in operations.items()]
    return f'{{\n  "commit": "tt-mlir {commit}",\n' + ",\n".join(lines) + "\n}\n"


def read_table() -> dict[str, Any]:
    """The table of this repository, without the commit."""
    found = json.loads(TABLE.read_text())
    del found["commit"]
    return found


# --- texts -----------------------------------------------------------------------------------------------------------

_OP = re.compile(r'^\s*(?:(%[\w:, %]+?) = )?"((?:ttir|ttnn)\.\w+)"\(([^)]*)\)(?: <\{(.*?)\}>)?[ {:]', re.MULTILINE)
_WRITTEN = {
    "SI8Attr": r"-?\d+ : si8", "SI32Attr": r"-?\d+ : si32", "SI64Attr": r"-?\d+ : si64", "UI32Attr": r"\d+ : ui32",
    "I32Attr": r"-?\d+ : i32", "I64Attr": r"-?\d+ : i64", "F32Attr": r"\S+ : f32", "BoolAttr": "true|false",
    "StrAttr": '".*"', "DenseI32ArrayAttr": "array<i32.*>", "DenseI64ArrayAttr": "array<i64.*>",
    "I32ArrayAttr": r"\[(-?\d+ : i32(, )?)*\]", "ElementsAttr": "dense<.*", "I64ElementsAttr": "dense<.*xi64>",
    "TTNN_ShapeAttr": "#ttnn.shape<.*>", "TTCore_ReduceTypeAttr": "#ttcore.reduce_type<.*>",
    "TTCore_MeshShardDirectionAttr": "#ttcore.shard_direction<.*>",
    "TTCore_MeshShardTypeAttr": "#ttcore.shard_type<.*>", "TTNN_MeshShapeAttr": "#ttnn<mesh_shape .*>",
    "TTNN_MeshOffsetAttr": "#ttnn<mesh_offset .*>", "TTNN_MeshMapperConfigAttr": "#ttnn.mesh_mapper_config<.*>",
    "TTNN_MeshComposerConfigAttr": "#ttnn.mesh_composer_config<.*>",
}  # fmt: skip
"""By TableGen's name of a constraint: how such an attribute is written."""


def bare(names: Sequence[str], *marks: str) -> list[str]:
    """The names, without their marks; with marks those only that have one of them."""
    return [n.rstrip("?*") for n in names if not marks or n[-1] in marks]


def check_text(text: str, known: Mapping[str, Any]) -> tuple[int, list[str]]:
    """Holds every op of a text against upstream's definitions; gives how many there are, and what deviates."""
    count, wrong = 0, list[str]()
    for results, name, operands, properties in _OP.findall(text):
        count += 1
        if name not in known:
            wrong.append(f"{name}: no such op")
            continue
        made = 0 if not results else int(results.split(":")[1]) if ":" in results else len(split(results))
        wrong += [f"{name}: {w}" for w in _check_op(known[name], len(split(operands)), made, properties)]
    return count, wrong


def _check_op(row: Mapping[str, Any], operands: int, results: int, properties: str) -> Iterator[str]:
    given = dict(part.split(" = ", 1) for part in split(properties))
    kinds = {n.rstrip("?"): kind for n, kind in row["attributes"].items()}
    for name, value in given.items():
        if name == "operandSegmentSizes" and "segments" in row:
            continue
        if name not in kinds:
            yield f"no attribute {name}"
        elif not any(re.fullmatch(_WRITTEN[kind], value, re.DOTALL) for kind in kinds[name].split("|")):
            yield f"attribute {name} is a {kinds[name]}, not {value[:60]}"
    for name in row["attributes"]:
        if not name.endswith("?") and name not in given:
            yield f"attribute {name} is missing"
    if "segments" in row and "operandSegmentSizes" not in given:
        yield "operandSegmentSizes is missing"
    for what, count, names in (("operands", operands, row["operands"]), ("results", results, row["results"])):
        free = bare(names, "?", "*")
        any_number = any(n.endswith("*") for n in names)
        if count < len(names) - len(free) or (count > len(names) and not any_number):
            yield f"{count} {what}, of {names}"


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.generators.upstream_definitions", description=__doc__)
    parser.add_argument("checkout", type=Path, help="a checkout of tt-mlir")
    folder = parser.parse_args(arguments).checkout
    head = subprocess.run(["git", "-C", folder, "rev-parse", "HEAD"], capture_output=True, text=True, check=True)
    texts = {dialect: (folder / file).read_text() for dialect, file in FILES.items()}
    sys.stdout.write(written(table(texts), head.stdout.strip()[:10]))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
