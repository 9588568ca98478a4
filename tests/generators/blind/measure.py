"""Measures diagnoses on the blind set: whether verdicts agree with the values, and what is named of planted errors."""

from __future__ import annotations

import dataclasses
import json
import re
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import jaxmesh as jm
from jaxmesh.errors import JaxmeshError
from jaxmesh.frontends.stablehlo.text import BoundaryShardings, read_boundary
from tests.generators.blind.errors import Planted, distance, plant
from tests.generators.blind.programs import ALL
from tests.generators.upstream.judge import difference

STAGES = ("ttir", "ttnn")
LIMITS = {"exact": 1e-3, "rounded": 3e-2}
"""The largest difference of rounding, as a part of the largest number: of float32 and integers, and of bfloat16."""


@dataclass
class Compiled:
    """A program of the blind set as Tenstorrent's compiler compiled it.

    Attributes:
      name: of the program.
      result: what the compiler made.
      leaves: the arguments.
      wanted: the results of the program without shardings.
      ends: how the results are split.
      limit: the largest difference of rounding.
      errors: by text the difference from the results wanted.
    """

    name: str
    result: Any
    leaves: list[Any]
    wanted: list[Any]
    ends: BoundaryShardings
    limit: float
    errors: dict[str, float] = field(default_factory=dict[str, float])

    @property
    def truth(self) -> str:
        error = max(self.errors.values())
        return "right" if error <= self.limit else "less precise" if error <= LIMITS["rounded"] else "wrong"

    def changes(self, stage: str, gap: float) -> bool:
        """Returns True if a difference is more than rounding, and more than that of the text without an error."""
        return gap > max(self.limit, 5 * self.errors[stage])

    def run(self, stage: str, text: str | None = None) -> float:
        """Returns how far the results of a text are from those wanted; `text` takes the place of the compiler's."""
        made = self.result if text is None else self.replaced(stage, text)
        found = made.program(stage).lower().compile()(*self.leaves)
        return difference(
            jax.tree.leaves(found, is_leaf=lambda x: isinstance(x, jm.MeshTensor)), self.wanted, self.ends
        )

    def replaced(self, stage: str, text: str) -> Any:
        return dataclasses.replace(self.result, stages={**self.result.stages, stage: text})


def compiled(name: str) -> Compiled | str:
    """Compiles a program and runs both texts; returns the reason if the compiler refuses the program."""
    made = ALL[name]()
    result = jm.jit(made.fun, mesh=made.mesh, in_shardings=made.specs).lower(*made.args).upstream("t3000")
    if result.refusal is not None:
        return str(result.refusal)
    leaves = jax.tree.leaves(made.args)
    wanted = [np.asarray(x) for x in jax.tree.leaves(jax.jit(made.plain)(*made.args))]
    is_narrow = any(x.dtype == jnp.bfloat16 for x in leaves)
    limit = LIMITS["rounded" if is_narrow else "exact"]
    found = Compiled(name, result, leaves, wanted, read_boundary(result.text("shlo_compiler")), limit)
    found.errors.update((stage, found.run(stage)) for stage in STAGES)
    return found


def named(found: Any, stage: str, planted: Planted) -> str:
    """Returns how near a diagnosis is to the error: the name of the set of lines, or what takes its place.

    An `interval` of lines holds the error, an `innocent` operation is none of these; the verdict misses it otherwise.
    """
    if found.verdict != "wrong":
        return found.verdict
    interval = re.search(r"between lines? (\d+) and (?:line )?(\d+)", str(found))
    if found.stage == stage:
        for name in ("exact", "readers", "later"):
            if found.line in getattr(planted, name):
                return name
    return "interval" if interval and int(interval[1]) <= planted.line <= int(interval[2]) else "innocent"


def errors(program: Compiled, stage: str, seed: int, count: int, tries: int = 8) -> Iterator[tuple[Planted, float]]:
    """Plants errors until `count` of them change a result; yields each that keeps the types, with the difference."""
    rng = np.random.default_rng([seed, list(ALL).index(program.name), STAGES.index(stage)])
    seen, changed = set[str](), 0
    for _ in range(tries):
        planted = plant(program.result.text(stage), rng)
        if changed == count or planted.text in seen:
            continue
        seen.add(planted.text)
        try:
            gap = program.run(stage, planted.text)
        except (JaxmeshError, TypeError, ValueError):
            continue  # It breaks the types.
        changed += program.changes(stage, gap)
        yield planted, gap


def measure(program: Compiled, stage: str, seed: int, count: int) -> Iterator[dict[str, Any]]:
    """Yields for each planted error what the diagnosis with drawn arguments names."""
    for planted, gap in errors(program, stage, seed, count):
        with tempfile.TemporaryDirectory() as folder:
            program.replaced(stage, planted.text).save(folder)
            start = time.perf_counter()
            row: dict[str, Any] = {"program": program.name, "stage": stage, "gap": gap}
            row["changes"] = program.changes(stage, gap)
            row |= {x: getattr(planted, x) for x in ("kind", "op", "line")}
            row |= {x: sorted(getattr(planted, x)) for x in ("exact", "readers", "later")}
            try:
                found = jm.diagnose(folder)
            except Exception as error:  # Whatever is raised is a crash, and is counted.
                yield row | {"named": "crash", "said": f"{type(error).__name__}: {error}"}
                continue
            row |= {"named": named(found, stage, planted), "behind": distance(planted, found.line)}
            row |= {"at": [found.stage, found.op, found.line, found.source]}
            yield row | {"cause": found.cause, "said": str(found), "seconds": time.perf_counter() - start}


def verdicts(program: Compiled) -> Mapping[str, Any]:
    """Returns the verdicts on a program, with drawn arguments and with its own."""
    with tempfile.TemporaryDirectory() as folder:
        program.result.save(folder)
        drawn, own = jm.diagnose(folder), jm.diagnose(folder, *program.leaves)
    about = {"program": program.name, "truth": program.truth, "errors": program.errors}
    return about | {"drawn": drawn.verdict, "own": own.verdict, "said": [str(drawn), str(own)]}


def main(path: str, seed: str = "0", count: str = "2", part: str = "0", parts: str = "1") -> None:
    """Writes the verdicts and the planted errors to a file, one a line."""
    warnings.simplefilter("ignore")
    with Path(path).open("w") as file:
        for name in list(ALL)[int(part) :: int(parts)]:
            program = compiled(name)
            if isinstance(program, str):
                rows: list[Any] = [{"program": name, "truth": "refused", "said": program}]
            else:
                rows = [verdicts(program)]
            for row in rows:
                print(json.dumps(row), file=file, flush=True)
            if isinstance(program, Compiled) and program.truth != "wrong":
                for stage in STAGES:
                    for row in measure(program, stage, int(seed), int(count)):
                        print(json.dumps(row), file=file, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
