"""What the simulated chip can be trusted with: every function of ttnn that small programs print, tried and judged.

`python -m tests.generators.chip [LOG]` runs what LOG (by default `chip.jsonl`) does not have yet, a line a program,
and writes `jaxmesh/analysis/chip/trust.txt`. It needs the environment of `jaxmesh chip-env`. `--table` only writes.
The whole table, from an empty log, in hours; the same line, without `rm`, goes on where a run was ended:

    rm -f chip.jsonl; JAXMESH_CHIP_PYTHON=.../chip/bin/python nice python -m tests.generators.chip chip.jsonl
"""

from __future__ import annotations

import contextlib
import datetime
import json
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

import jaxmesh as jm
from jaxmesh.analysis.chip import trust
from jaxmesh.analysis.chip.environment import Chip
from jaxmesh.analysis.chip.program import run_on_chip
from jaxmesh.analysis.chip.result import CHIP, TRANSFER
from jaxmesh.errors import JaxmeshError
from tests.generators.real_ttnn.functions import FUNCTIONS

SHAPES = {"one tile": (32, 32), "several tiles": (64, 96), "odd": (40, 70)}
DTYPES = ("float32", "bfloat16", "int32", "uint32")
SECONDS = 60.0
_nn: Any = jax.nn

OWN: dict[str, Callable[..., Any]] = {
    "matmul": lambda x: x @ x.T,
    "rms_norm": lambda x: x * lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + 1e-6) * x[0],
    "layer_norm": lambda x: (x - x.mean(-1, keepdims=True)) * lax.rsqrt(x.var(-1, keepdims=True) + 1e-5),
    "linear": lambda x: x @ x.T + x[:, 0],
    "batched matmul": lambda x: jnp.stack([x, x + x]) @ jnp.stack([x.T, x.T]),
    "reshape": lambda x: x.reshape(x.shape[0] // 2, 2 * x.shape[1]),
    "heads": lambda x: x.reshape(x.shape[0], 2, -1).transpose(1, 0, 2),
    "broadcast_to": lambda x: jnp.broadcast_to(x[:, None], (x.shape[0], 2, x.shape[1])),
    "add a row": lambda x: x + x[:1],
    "add a column": lambda x: x * x[:, :1],
    "add a number": lambda x: x * 3 + 1,
    "slice": lambda x: x[8:24, : x.shape[1] // 2],
    "sum of columns": lambda x: jnp.sum(x, axis=0),
    "max of columns": lambda x: jnp.max(x, axis=0),
    "softmax of columns": lambda x: _nn.softmax(x, axis=0),
    "gelu by tanh": lambda x: _nn.gelu(x, approximate=True),
    "relu6": _nn.relu6,
    "acosh": lambda x: jnp.arccosh(x + 1),
    "typecast": lambda x: x.astype(jnp.bfloat16 if x.dtype == jnp.float32 else jnp.float32),
}
"""Functions of one array [m, n] for ops that models use."""
FIRST = (
    "matmul", "add", "multiply", "softmax", "silu", "rms_norm", "gelu", "transpose", "reshape", "heads", "subtract",
    "divide", "exp", "max", "sum", "mean", "rsqrt", "tanh", "relu", "sigmoid", "linear", "batched matmul",
    "add a row", "add a column", "add a number", "maximum", "where", "concatenate", "slice", "layer_norm", "typecast",
    "broadcast_to", "negative", "square", "sqrt", "reciprocal", "gelu by tanh", "sum of columns", "max of columns",
)  # fmt: skip
"""The functions of MLPs, attention and norms, which are tried first."""
_UNIT = frozenset({
    "arcsin", "arccos", "arctanh", "log", "log1p", "log2", "log10", "sqrt", "cbrt", "rsqrt", "reciprocal", "power",
    "acosh", "divide", "remainder", "floor_divide", "tan",
})  # fmt: skip
"""Functions of numbers between 0.1 and 0.9."""


def cells() -> Iterator[tuple[str, str, str]]:
    """Returns the cells in the order of their importance."""
    known = {**FUNCTIONS, **OWN}
    names = [*FIRST, *(n for n in known if n not in FIRST)]
    for group in (names[: len(FIRST)], names[len(FIRST) :]):
        for dtypes in (DTYPES[:2], DTYPES[2:]):
            yield from ((name, dtype, size) for size in SHAPES for name in group for dtype in dtypes)


def argument(name: str, dtype: str, size: str, seed: int) -> Any:
    """Returns the argument of a function: other values for another seed."""
    rng, shape = np.random.default_rng(seed), SHAPES[size]
    if "int" in dtype:
        low, high = (0 if dtype == "uint32" else -9, 10) if seed == 0 else (1, 2**20)
        return jnp.asarray(rng.integers(low, high, shape), dtype)
    values = rng.uniform(0.1, 0.9, shape) if name in _UNIT else rng.standard_normal(shape)
    return jnp.asarray(values.astype(np.float32), dtype)


def try_cell(chip: Chip, cell: tuple[str, str, str]) -> list[list[Any]]:
    """Returns the calls of a program: function, element types, class of shapes, outcome, seconds, own error and place.

    The second of two runs, with other values, takes the compiled kernels of the first.
    """
    name, dtype, size = cell
    function, rows = {**FUNCTIONS, **OWN}[name], []
    mesh = jm.make_mesh((1, 1), ("y", "x"))
    for seed in (0, 1):
        x = argument(name, dtype, size, seed)
        with tempfile.TemporaryDirectory() as folder:
            jm.jit(function, mesh=mesh).lower(x).export(folder, x, languages=("python",))
            run = run_on_chip(Path(folder), chip, trusted=lambda *_: trust.EXACT)
        for value in run.values:
            if value.place != TRANSFER:
                outcome = value.outcome if value.place == CHIP else value.place.partition(":")[0]
                rows.append([*value.call, outcome, round(value.seconds, 2), value.loss, value.place])
    return rows


def main(arguments: Sequence[str]) -> None:
    """Tries what the log does not have, and writes the table."""
    paths = [a for a in arguments if not a.startswith("-")]
    log = Path(paths[0] if paths else "chip.jsonl")
    known = {tuple(json.loads(line)["cell"]) for line in log.read_text().splitlines()} if log.exists() else set()
    if "--table" not in arguments:
        with contextlib.closing(Chip(seconds=SECONDS)) as chip, log.open("a") as file:
            for cell in cells():
                if cell not in known:
                    file.write(json.dumps(line_of(chip, cell)) + "\n")
                    file.flush()
    trust.TABLE.write_text(table_of([json.loads(line) for line in log.read_text().splitlines()]))


def line_of(chip: Chip, cell: tuple[str, str, str]) -> dict[str, Any]:
    """Tries a program; returns its line of the log."""
    try:
        found: dict[str, Any] = {"rows": try_cell(chip, cell)}
    except (JaxmeshError, TypeError, ValueError, NotImplementedError) as error:
        found = {"rows": [], "none": f"{type(error).__name__}: {error}"[:300]}
    print(cell, [r[3:6] for r in found["rows"]], found.get("none", "")[:100], flush=True)
    return {"cell": cell, "versions": chip.versions, "date": str(datetime.date.today()), **found}


ORDER = (trust.WRONG, "ended", "stands still", "refused", *reversed(trust.RIGHT))
"""Outcomes, the worst first."""


def table_of(lines: Sequence[Any]) -> str:
    """Returns the text of the table: of several calls of a function the worst outcome, and the most seconds."""
    rows: dict[tuple[str, str], dict[str, tuple[str, float]]] = {}
    for line in lines:
        for callee, dtypes, size, outcome, seconds, *_ in line["rows"]:
            row = rows.setdefault((callee, dtypes), {})
            before = row.get(size, (outcome, 0.0))
            row[size] = min(outcome, before[0], key=ORDER.index), max(seconds, before[1])
    versions, dates = (sorted({line[key] for line in lines}) for key in ("versions", "date"))
    head = [
        f"# Made by `python -m tests.generators.chip` on {dates[-1]} with {', '.join(versions)}, one Blackhole core,",
        f"# of {len(lines)} of {len(list(cells()))} programs.",
        f"# function | element types of the operands | {' | '.join(trust.SIZES)}; each the worst outcome, and seconds.",
    ]
    text = [
        " | ".join([*key, *(f"{row[s][0]} {row[s][1]:.1f}" if s in row else "-" for s in trust.SIZES)])
        for key, row in sorted(rows.items())
    ]
    return "\n".join([*head, *text]) + "\n"


if __name__ == "__main__":
    main(sys.argv[1:])
