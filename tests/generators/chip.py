"""What the simulated chip can be trusted with: every function of ttnn that small programs print, tried and judged, and
calls that only larger programs print (`tests/generators/chip_calls.py`).

`python -m tests.generators.chip [LOG]` runs what LOG (by default `chip.jsonl`) does not have yet, a line a program,
and writes `jaxmesh/analysis/chip/trust.txt`. It needs the environment of `jaxmesh chip-env`. `--table` only writes.
The whole table, from an empty log, in hours; the same line, without `rm`, goes on where a run was ended:

    rm -f chip.jsonl; JAXMESH_CHIP_PYTHON=.../chip/bin/python nice python -m tests.generators.chip chip.jsonl

`--new` tries only the calls that the table lacks, and adds them to it: what a new function prints, in minutes. The
versions of the chip must be those of the table.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import itertools
import json
import re
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

import jaxmesh as jm
from jaxmesh.analysis.chip import program, trust
from jaxmesh.analysis.chip.environment import Chip, find_environment
from jaxmesh.analysis.chip.program import run_on_chip
from jaxmesh.analysis.chip.result import CHIP, TRANSFER
from jaxmesh.analysis.record.metrics import apart
from jaxmesh.errors import JaxmeshError
from jaxmesh.tensor import beyond
from tests.generators import chip_calls
from tests.generators.real_ttnn.functions import FUNCTIONS

SHAPES = {"one tile": (32, 32), "several tiles": (64, 96), "odd": (40, 70)}
DTYPES = ("float32", "bfloat16", "int32", "uint32")
SECONDS = 60.0
DEAD = ("stands still", "ended")
KNOWN = "known"
"""The outcome of a call that is not tried again."""
Cell = tuple[str, str, str]
Trusted = Callable[[str, str, str], str]
Rows = dict[tuple[str, str], dict[str, tuple[str, float]]]
"""By function and element types, and by class of shapes, the outcome and the seconds."""
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
    "divide by a number": lambda x: x / 3,
    "subtract a column": lambda x: x - x[:, :1],
    "remainder of both signs": lambda x: lax.rem(x, jnp.where(x > 1, -3, 2).astype(x.dtype)),
    "remainder of a number": lambda x: lax.rem(x, jnp.asarray(3, x.dtype)),
    "attention": lambda x: _nn.softmax(x @ x.T * 0.125) @ x,
    "slice": lambda x: x[8:24, : x.shape[1] // 2],
    "sum of columns": lambda x: jnp.sum(x, axis=0),
    "max of columns": lambda x: jnp.max(x, axis=0),
    "softmax of columns": lambda x: _nn.softmax(x, axis=0),
    "gelu by tanh": lambda x: _nn.gelu(x, approximate=True),
    "gelu by erf": lambda x: _nn.gelu(x, approximate=False),
    "relu6": _nn.relu6,
    "acosh": lambda x: jnp.arccosh(x + 1),
    "typecast": lambda x: x.astype(jnp.bfloat16 if x.dtype == jnp.float32 else jnp.float32),
}
"""Functions of one array [m, n] for ops that models use."""
FIRST = (
    "matmul", "add", "multiply", "softmax", "silu", "rms_norm", "gelu", "transpose", "reshape", "heads", "subtract",
    "divide", "exp", "max", "sum", "mean", "rsqrt", "tanh", "relu", "sigmoid", "linear", "batched matmul",
    "add a row", "add a column", "add a number", "maximum", "where", "concatenate", "slice", "layer_norm", "typecast",
    "broadcast_to", "negative", "square", "sqrt", "reciprocal", "gelu by tanh", "gelu by erf", "sum of columns",
    "max of columns", "flip", "trunc", "isinf", "logical_or", "expm1", "log1p", "sign", "pad", "log", "leaky_relu",
    "sin", "tan", "arccos", "less_equal", "argmax", "minimum", "min", "remainder", "arctan2", "erf", "logical_xor",
    "cbrt", "cos", "arcsinh", "logical_not", "arctan", "power", "arcsin", "at.add", "prod", "bitwise_or", "bitwise_xor",
    "left_shift", "right_shift", "invert", "divide by a number", "subtract a column",
    "remainder of both signs", "remainder of a number",
    "attention",
)  # fmt: skip
"""The functions of MLPs, attention and norms, and others that together print almost every function of ttnn."""
LAST = (
    "isfinite", "cumsum", "cumprod", "sort", "argsort", "top_k", "signbit", "copysign", "max_pool", "avg_pool",
    "bessel_i0e", "bessel_i1e", "zeta", "polygamma", "segment_max", "fancy index", "diagonal", "dynamic_slice",
    "dynamic row", "round", "sinh", "floor_divide",
)  # fmt: skip
"""The functions that take the simulator half a minute and more."""
COLLECTIVES = frozenset({"psum", "pmax", "all_gather", "psum_scatter", "ppermute", "all_to_all", "axis_index"})
"""The functions of several devices, whose own calls run in the emulation."""
NOT_TRIED = {
    **dict.fromkeys(("all_gather", "all_reduce", "point_to_point", "reduce_scatter"), "one chip is simulated"),
}
"""Functions of ttnn that the texts of the suite print, and that the emulation computes, with the reasons."""
_UNIT = frozenset({
    "arcsin", "arccos", "arctanh", "log", "log1p", "log2", "log10", "sqrt", "cbrt", "rsqrt", "reciprocal", "power",
    "acosh", "divide", "remainder", "floor_divide", "tan",
})  # fmt: skip
"""Functions of numbers between 0.1 and 0.9, and of integers but zero."""


def cells() -> Iterator[Cell]:
    """Returns the cells, first those that cover the most: of each group of functions one tile, then other sizes. A call
    that is tried alone has its operands in place of an element type."""
    others = [n for n in {**FUNCTIONS, **OWN} if n not in {*FIRST, *LAST, *COLLECTIVES}]
    one, *more = SHAPES
    for names in (FIRST, others, LAST):
        yield from ((name, dtype, one) for dtype in DTYPES for name in names)
        for dtypes in (DTYPES[:2], DTYPES[2:]):
            yield from ((name, dtype, size) for size in more for dtype in dtypes for name in names)
    yield from ((*call, chip_calls.ALONE) for call in chip_calls.CALLS)


def argument(name: str, dtype: str, size: str, seed: int) -> Any:
    """Returns the argument of a function: small integers for seed 0, larger ones for 1, of both signs for others."""
    rng, shape = np.random.default_rng(seed), SHAPES[size]
    if "int" in dtype:
        least = 0 if dtype == "uint32" else -9
        low, high = ((least, 10), (1, 2**20), (2**20 * min(0, least), 2**20))[min(seed, 2)]
        values = rng.integers(low, high, shape)
        # A quotient by zero has no value to compare.
        return jnp.asarray(np.where((values == 0) & (name in _UNIT), 1, values), dtype)
    values = rng.uniform(0.1, 0.9, shape) if name in _UNIT else rng.standard_normal(shape) * max(1, seed)
    return jnp.asarray(values.astype(np.float32), dtype)


def try_cell(chip: Chip, cell: Cell, trusted: Trusted, seeds: Sequence[int]) -> list[list[Any]]:
    """Returns the calls of a program: function, element types, class of shapes, outcome, seconds, own error and place.

    The second of two runs, with other values, takes the compiled kernels of the first.
    """
    name, dtype, size = cell
    if size == chip_calls.ALONE:
        return [row for seed in seeds for row in try_call(chip, name, dtype, trusted, seed)]
    function, rows = {**FUNCTIONS, **OWN}[name], []
    mesh = jm.make_mesh((1, 1), ("y", "x"))
    for seed in seeds:
        x = argument(name, dtype, size, seed)
        with tempfile.TemporaryDirectory() as folder:
            jm.jit(function, mesh=mesh).lower(x).export(folder, x, languages=("python",))
            run = run_on_chip(Path(folder), chip, trusted=trusted)
        for value in run.values:
            if value.place not in (TRANSFER, KNOWN):
                outcome = value.outcome if value.place == CHIP else value.place.partition(":")[0]
                rows.append([*value.call, outcome, round(value.seconds, 2), value.loss, value.place])
    return rows


def try_call(chip: Chip, text: str, operands: str, trusted: Trusted, seed: int) -> Iterator[list[Any]]:
    """Yields what `try_cell` does of a call alone."""
    with beyond.enabled():
        call = chip_calls.made(text, operands, seed)
        place = call.compute(chip, trusted)
    for found, exact, outcome in zip(program._stacked(call.result), call.exact, call.outcomes, strict=True):
        if place not in (TRANSFER, KNOWN):
            far = apart(exact.astype(np.float64), found.astype(np.float64))
            said = outcome if place == CHIP else place.partition(":")[0]
            yield [*call.key, said, round(call.seconds, 2), far.largest / (far.scale or 1.0), place]


def read(paths: Iterable[Path]) -> list[Any]:
    """Returns the lines of logs, of each program the last."""
    lines = [json.loads(line) for path in paths if path.exists() for line in path.read_text().splitlines()]
    return list({tuple(line["cell"]): line for line in lines}.values())


def main(arguments: Sequence[str]) -> None:
    """Tries what the logs do not have, into the first of them, and writes the table of all."""
    parser = argparse.ArgumentParser(prog="python -m tests.generators.chip")
    parser.add_argument("logs", nargs="*", type=Path, default=[Path("chip.jsonl")], help="the first is written")
    parser.add_argument("--part", default="0/1", help="n/count: every count-th program, from the n-th")
    parser.add_argument("--again", action="store_true", help="also what was not right, as after a change of the chip")
    parser.add_argument("--check", type=int, help="try trusted calls of what was tried with this seed, 2 and more")
    parser.add_argument("--new", action="store_true", help="try what the table lacks, and keep the rest of it")
    parser.add_argument("--table", action="store_true", help="only write the table")
    given = parser.parse_args(arguments)
    rows = rows_of(trust.TABLE.read_text()) if given.new else {}
    if given.new and (own := find_environment()[2]) != (known := trust.versions()):
        parser.error(f"--new: the table was measured with {known}, and the chip has {own}; measure the whole table.")
    if given.check is not None:
        _check(given.logs, given.check)
    elif not given.table:
        part, count = map(int, given.part.split("/"))
        kept = {(*row, size) for row, sizes in rows.items() for size in sizes}
        _try_rest(given.logs, part, count, given.again, kept)
    trust.TABLE.write_text(table_of(read(given.logs), rows))


def _try_rest(logs: Sequence[Path], part: int, count: int, again: bool, kept: Collection[Cell]) -> None:
    lines = [line for line in read(logs) if not again or all(r[3] in trust.RIGHT for r in line["rows"])]
    known, failures = {tuple(line["cell"]) for line in lines}, Counter[tuple[str, str, str]]()

    def count_failures(line: Any) -> None:
        failures.update(k for k in {tuple(r[:3]) for r in line["rows"] if r[3] in DEAD})

    def trusted(*key: str) -> str:
        """Tries a call, unless it is kept, or cost two processes before."""
        if key in kept:
            return KNOWN
        return "stands still" if failures[key[0], key[1], key[2]] > 1 else trust.EXACT

    for line in lines:
        count_failures(line)
    with contextlib.closing(Chip(seconds=SECONDS)) as chip, logs[0].open("a") as file:
        for cell in itertools.islice(cells(), part, None, count):
            if cell not in known:
                file.write(json.dumps(line := line_of(chip, cell, trusted)) + "\n")
                file.flush()
                count_failures(line)
                if any(row[3] not in trust.RIGHT for row in line["rows"]):
                    chip._end()  # Some calls leave a state behind, in which others are wrong.


def _check(logs: Sequence[Path], seed: int) -> None:
    """Tries the trusted calls of programs with other values, in any order; what is not right goes into the table."""
    lines, counts = read(logs), Counter[str]()
    done = [tuple(line["cell"]) for line in lines]
    cells = [cell for cell in done if len(cell) == 3 and (*cell, seed) not in done]
    with contextlib.closing(Chip(seconds=SECONDS)) as chip, logs[0].open("a") as file:
        for place in np.random.default_rng(seed).permutation(len(cells)):
            line = line_of(chip, cells[place], lambda *key: trust.outcome(*key).partition(":")[0], (seed,))
            # A call that the table does not trust has its outcome as the place, without a reason.
            line["rows"] = [row for row in line["rows"] if row[6] == CHIP or ":" in row[6]]
            file.write(json.dumps(line | {"cell": [*cells[place], seed]}) + "\n")
            file.flush()
            counts.update(row[3] for row in line["rows"])
            print(dict(counts), flush=True)


def line_of(chip: Chip, cell: Cell, trusted: Trusted, seeds: Sequence[int] = (0, 1)) -> dict[str, Any]:
    """Tries a program; returns its line of the log."""
    try:
        found: dict[str, Any] = {"rows": try_cell(chip, cell, trusted, seeds)}
    except (JaxmeshError, TypeError, ValueError, NotImplementedError) as error:
        found = {"rows": [], "none": f"{type(error).__name__}: {error}"[:300]}
    print(cell, [r[3:6] for r in found["rows"]], found.get("none", "")[:100], flush=True)
    return {"cell": cell, "versions": chip.versions, "date": str(datetime.date.today()), **found}


ORDER = (trust.WRONG, "ended", "stands still", "refused", *reversed(trust.RIGHT))
"""Outcomes, the worst first."""
REASONS = {
    r"has no attribute '(\w+)'": r"ttnn has no \1",
    "under 16 bits per datum, which is not modelled": "no packer of 8 bits",
    "must have the same exponent format": "it mixes formats",
}
"""Why the chip cannot hold what a call takes: by a message, what the table says."""


def reason_of(outcome: str, place: str) -> str:
    """Returns an outcome with the reason that `REASONS` have for a message."""
    found = ((re.search(pattern, place), said) for pattern, said in REASONS.items())
    return next((f"{outcome}: {m.expand(said)}" for m, said in found if m), outcome)


def _rank(outcome: str) -> int:
    return ORDER.index(outcome.partition(":")[0])


def rows_of(table: str) -> Rows:
    """Returns the rows of the text of a table."""
    found: Rows = {}
    for callee, dtypes, *cells in (line.split(" | ") for line in table.splitlines() if not line.startswith("#")):
        outcomes = ((size, cell.rpartition(" ")) for size, cell in zip(trust.SIZES, cells, strict=True) if cell != "-")
        found[callee, dtypes] = {size: (outcome, float(seconds)) for size, (outcome, _, seconds) in outcomes}
    return found


def table_of(lines: Sequence[Any], kept: Rows | None = None) -> str:
    """Returns the text of the table: of several calls of a function the worst outcome, and the most seconds.

    Calls behind a wrong one in a program are not counted: they may be wrong by the state that it left.
    """
    rows = {key: dict(row) for key, row in (kept or {}).items()}
    for line in lines:
        right = len(list(itertools.takewhile(lambda row: row[3] in trust.RIGHT, line["rows"])))
        for callee, dtypes, size, outcome, seconds, _, place in line["rows"][: right + 1]:
            row, said = rows.setdefault((callee, dtypes), {}), reason_of(outcome, place)
            before = row.get(size, (said, 0.0))
            row[size] = min(said, before[0], key=_rank), max(seconds, before[1])
    versions, dates = (sorted({line[key] for line in lines}) for key in ("versions", "date"))
    head = [
        f"# Made by `python -m tests.generators.chip` on {dates[-1]} with {', '.join(versions)}, one Blackhole core,",
        f"# of {sum(len(line['cell']) == 3 for line in lines)} of {len(list(cells()))} programs and calls.",
        f"# function | element types of the operands | {' | '.join(trust.SIZES)}; each the worst outcome, and seconds.",
    ]
    text = [
        " | ".join([*key, *(f"{row[s][0]} {row[s][1]:.1f}" if s in row else "-" for s in trust.SIZES)])
        for key, row in sorted(rows.items())
    ]
    return "\n".join([*head, *text]) + "\n"


if __name__ == "__main__":
    main(sys.argv[1:])
