"""What the sweep found, as a table: by op, what it takes, what it gives, and why the rest is refused.

`python -m tests.generators.real_ttnn.sweep_report answers.jsonl [op ...]`
"""

from __future__ import annotations

import json
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

SHORT = {
    "bfloat16": "bf16",
    "float32": "f32",
    "uint32": "u32",
    "int32": "i32",
    "uint16": "u16",
    "uint8": "u8",
    "int8": "i8",
}


def form(dtype: str, tile: bool) -> str:
    """Returns an element type and a layout: `f32T` for tiles, `f32R` for rows."""
    return SHORT.get(dtype.lower(), dtype) + ("T" if tile else "R")


def given(answer: Mapping[str, Any]) -> str:
    """Returns the forms of a call's operands."""
    return ",".join("-" if o is None else form(o[1], o[2]) for o in answer["operands"])


def made(answer: Mapping[str, Any]) -> str:
    """Returns the forms of a call's results."""
    return ",".join(form(dtype, layout == "TILE") for dtype, layout, *_ in answer["gives"])


def report(answers: Iterable[Mapping[str, Any]]) -> Iterable[str]:
    """Yields the lines of the table."""
    by_call: dict[tuple[str, str], list[Mapping[str, Any]]] = defaultdict(list)
    for answer in answers:
        shapes = " ".join("-" if o is None else str(o[0]) for o in answer["operands"])
        by_call[answer["op"], shapes + _attributes(answer["text"])].append(answer)
    for (op, shapes), found in by_call.items():
        good = [a for a in found if "gives" in a]
        yield f"{op} {shapes}: {len(good)} of {len(found)}"
        results: dict[str, list[str]] = defaultdict(list)
        for a in good:
            asked = f" as {SHORT[a['result']]}" if a.get("result") else ""
            results[f"{made(a)}"].append(given(a) + asked)
        for result, forms in results.items():
            yield f"    {result} <- {' '.join(dict.fromkeys(forms))}"
        reasons: Counter[str] = Counter()
        examples: dict[str, list[str]] = defaultdict(list)
        for a in found:
            if "error" in a:
                reasons[a["error"][:130]] += 1
                examples[a["error"][:130]].append(given(a))
        for why, count in reasons.most_common(6):
            yield f"    refused {count}: {why} ({' '.join(dict.fromkeys(examples[why]))[:90]})"


def _attributes(text: str) -> str:
    inside = text.partition("(")[2]
    kept = [
        p for p in inside.split(", ") if not p.startswith(("a0", "a1", "a2", "a3", "dtype", "memory", "ttnn", "None)"))
    ]
    return " " + ", ".join(kept)[:70]


def main() -> None:
    """Prints the table."""
    lines = Path(sys.argv[1]).read_text().splitlines()
    answers = [json.loads(line) for line in lines]
    wanted = sys.argv[2:]
    for line in report(a for a in answers if not wanted or a["op"] in wanted):
        print(line)


if __name__ == "__main__":
    main()
