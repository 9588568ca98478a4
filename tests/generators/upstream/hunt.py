"""Sends the programs through the compiler, one after the other, and keeps what it made of each in a file."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import jax

from tests.generators.outcome import Say
from tests.generators.quick_compilation import quick_compilation
from tests.generators.upstream.judge import Judged, judge
from tests.generators.upstream.programs import candidates

DIAGNOSED = 4
"""Of so many right programs one is diagnosed, too; all others are."""


def hunt(results: Path, count: int | None, part: int, parts: int, say: Say) -> None:
    """Judges the programs of one part that the file does not have, and appends them to it."""
    known = {j.text for j in read(results)} if results.exists() else set[str]()
    makers, started = candidates()[:count], time.perf_counter()
    with results.open("a") as file, quick_compilation():
        for number in range(part, len(makers), parts):
            made = makers[number]()
            if made.text in known:
                continue
            # JSON has no infinity.
            row = {k: v if k != "errors" else {d: min(e, 1e30) for d, e in v.items()} for k, v in asdict(
                judge(made, every=number // parts % DIAGNOSED == 0)).items()}  # fmt: skip
            file.write(json.dumps(row) + "\n")
            file.flush()
            if number // parts % 50 == 49:
                jax.clear_caches()
                say(f"{number + 1} of {len(makers)} programs, {time.perf_counter() - started:.0f} s")


def read(results: Path) -> Iterator[Judged]:
    """Yields what a file has."""
    for line in results.read_text().splitlines():
        yield Judged(**json.loads(line))
