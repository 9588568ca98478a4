"""Plants errors of the second set, and measures what diagnoses name.

Truth is what the texts yield on given arguments, beside the unsharded program. Diagnoses see drawn arguments.
"""

from __future__ import annotations

import dataclasses
import json
import re
import sys
import tempfile
import time
import warnings
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import jaxmesh as jm
from jaxmesh.errors import JaxmeshError
from jaxmesh.frontends.stablehlo.text import read_boundary
from tests.generators.blind.errors import Planted
from tests.generators.blind.measure import LIMITS, STAGES, Compiled
from tests.generators.blind.texts import parsed
from tests.generators.second_blind.kinds import KINDS, Kind
from tests.generators.second_blind.moves import CASTS, MOVES
from tests.generators.second_blind.programs import ALL, FOURTH, THIRD

DRAWS = (1, 2, 3)
"""The numbers of the further arguments on which a right program must not be called wrong."""
FREQUENT = ("other_operand", "other_arithmetic", "applied_twice", "left_out", "truncated", "other_constant")
"""The kinds that suit most lines: they are drawn less often."""


def compiled(name: str) -> Compiled | str:
    """Compiles a program and runs both texts; returns the reason if the compiler refuses it or a text is not read."""
    made = ALL[name](0)
    result = jm.jit(made.fun, mesh=made.mesh, in_shardings=made.specs).lower(*made.args).upstream("t3000")
    if result.refusal is not None:
        return f"refused: {result.refusal}"
    leaves = jax.tree.leaves(made.args)
    limit = LIMITS["rounded" if any(x.dtype == jnp.bfloat16 for x in leaves) else "exact"]
    ends = read_boundary(result.text("shlo_compiler"))
    found = Compiled(name, result, leaves, unsharded(made), ends, limit)
    try:
        found.errors.update((stage, found.run(stage)) for stage in STAGES)
    except JaxmeshError as error:
        return f"unread: {type(error).__name__}: {error}"
    return found


def unsharded(made: Any) -> list[Any]:
    return [np.asarray(x) for x in jax.tree.leaves(jax.jit(made.fun)(*made.args))]


def redrawn(program: Compiled, draw: int) -> Compiled:
    """Returns a program with other arguments."""
    made = ALL[program.name](draw)
    other = dataclasses.replace(program, leaves=jax.tree.leaves(made.args), wanted=unsharded(made), errors={})
    other.errors.update((stage, other.run(stage)) for stage in STAGES)
    return other


def planted(text: str, rng: np.random.Generator, kinds: Mapping[str, Kind]) -> Planted:
    """Returns a text with one error of a drawn kind in a drawn operation."""
    read = parsed(text)
    ways = {name: [(op, edit) for op in read.ops for edit in kind(read, op)] for name, kind in kinds.items()}
    names = [name for name, found in ways.items() if found]
    weights = np.array([0.3 if name in FREQUENT else 1.0 for name in names])
    name = names[int(rng.choice(len(names), p=weights / weights.sum()))]
    # Operations are drawn alike, then the ways in which one is made wrong.
    ops = list(dict.fromkeys(op.at for op, _ in ways[name]))
    at = ops[int(rng.integers(len(ops)))]
    choices = [(op, edit) for op, edit in ways[name] if op.at == at]
    op, edit = choices[int(rng.integers(len(choices)))]
    whole = "\n".join(edit.lines)
    after = parsed(whole)
    now = next(x for x in after.ops if x.at == edit.at)
    sets = {"readers": frozenset(after.readers(now)), "later": frozenset(after.later(now))}
    return Planted(name, op.name, edit.at + 1, whole, frozenset(x + 1 for x in edit.wrong), **sets)


def errors(program: Compiled, stage: str, seed: int, count: int, tries: int = 16) -> Iterator[tuple[Planted, float]]:
    """Plants errors until `count` of them change a result; yields those."""
    rng = np.random.default_rng([seed, zlib.crc32(program.name.encode()), STAGES.index(stage)])
    seen, found = set[tuple[str, str]](), 0
    for _ in range(tries):
        if found == count:
            return
        kinds = CASTS if program.name in FOURTH else MOVES if program.name in THIRD else KINDS
        error = planted(program.result.text(stage), rng, kinds)
        if error.text in {text for _, text in seen}:
            continue
        seen.add((error.kind, error.text))
        try:
            gap = program.run(stage, error.text)
        except (JaxmeshError, TypeError, ValueError):
            continue  # It breaks the types, or frees what is read.
        if program.changes(stage, gap):
            found += 1
            yield error, gap


def named(found: Any, stage: str, error: Planted) -> str:
    """Returns how near a diagnosis is to an error, or the verdict that misses it."""
    if found.verdict != "wrong":
        return f"missed: {found.verdict}"
    if found.stage == stage:
        for name, lines in (("exact", error.exact), ("reader", error.readers), ("later", error.later)):
            if found.line in lines:
                return name
    interval = re.search(r"between lines? (\d+) and (?:line )?(\d+)", str(found))
    return "interval" if interval and int(interval[1]) <= error.line <= int(interval[2]) else "innocent"


def measure(program: Compiled, stage: str, seed: int, count: int) -> Iterator[dict[str, Any]]:
    """Yields for each planted error what the diagnosis with drawn arguments names."""
    for error, gap in errors(program, stage, seed, count):
        row: dict[str, Any] = {"program": program.name, "stage": stage, "seed": seed, "gap": gap}
        row |= {x: getattr(error, x) for x in ("kind", "op", "line")}
        row |= {x: sorted(getattr(error, x)) for x in ("exact", "readers", "later")}
        row["planted"] = error.text.splitlines()[error.line - 1].strip()
        with tempfile.TemporaryDirectory() as folder:
            program.replaced(stage, error.text).save(folder)
            start = time.perf_counter()
            try:
                found = jm.diagnose(folder)
            except Exception as raised:  # Whatever is raised is a crash, and is counted.
                yield row | {"class": "crash", "said": f"{type(raised).__name__}: {raised}"}
                continue
        row |= {"class": named(found, stage, error), "at": [found.stage, found.op, found.line]}
        yield row | {"said": str(found), "seconds": round(time.perf_counter() - start, 1)}


def verdicts(program: Compiled) -> dict[str, Any]:
    """Returns the verdicts on a program with drawn arguments, and with further ones of its own, beside the truth."""
    with tempfile.TemporaryDirectory() as folder:
        program.result.save(folder)
        found = {"drawn": jm.diagnose(folder)}
        others = {draw: redrawn(program, draw) for draw in DRAWS}
        found |= {f"own {draw}": jm.diagnose(folder, *x.leaves) for draw, x in others.items()}
    truths = {"own 0": program.truth} | {f"own {draw}": x.truth for draw, x in others.items()}
    row: dict[str, Any] = {"program": program.name, "truths": truths}
    wrong = {k: str(x) for k, x in found.items() if x.verdict == "wrong" and truths.get(k) != "wrong"}
    return row | {"verdicts": {k: x.verdict for k, x in found.items()}, "wrongly": wrong}


def main(path: str, seed: str = "0", count: str = "2", part: str = "0", parts: str = "1", first: str = "0") -> None:
    """Appends the verdicts and the planted errors to a file, one a line."""
    warnings.simplefilter("ignore")
    for name in list(ALL)[int(first) + int(part) :: int(parts)]:
        program = compiled(name)
        if isinstance(program, str):
            rows: Iterator[dict[str, Any]] = iter([{"program": name, "not measured": program}])
        else:
            right = program.truth != "wrong"
            both = (row for stage in STAGES for row in measure(program, stage, int(seed), int(count)) if right)
            rows = (row for rows in ((verdicts(x) for x in [program] if seed == "0"), both) for row in rows)
        for row in rows:
            with Path(path).open("ab", buffering=0) as file:
                file.write(f"{json.dumps(row)}\n".encode())


if __name__ == "__main__":
    main(*sys.argv[1:])
