"""Where the simulated chip and the emulation differ by more than rounding on edge cases: what every trusted call makes
of infinities, NaN, denormals, zeros with signs, ties, and integers at their ends.

`python -m tests.generators.chip_edges [LOG]` tries every function on one tile that LOG (by default `edges.jsonl`) does
not have, and writes `docs/tables/chip_edges.md`; `--table` only writes. `--since TABLE` tries, also with the slowest
functions, the calls that an older `trust.txt` does not trust, and adds them to the rows of the page.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import json
import re
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np

import jaxmesh as jm
from jaxmesh.analysis.chip import program, trust
from jaxmesh.analysis.chip.environment import Chip
from jaxmesh.dialects.op import Trait
from jaxmesh.errors import JaxmeshError
from jaxmesh.tensor import beyond
from tests import ROOT
from tests.generators.chip import (
    COLLECTIVES,
    DTYPES,
    FIRST,
    KNOWN,
    LAST,
    OWN,
    SECONDS,
    SHAPES,
    Trusted,
    argument,
    read,
    rows_of,
)
from tests.generators.real_ttnn.functions import BINARY, FUNCTIONS

TABLE = ROOT / "docs" / "tables" / "chip_edges.md"
_jnp: Any = jnp
_TINY, _MAX, _STEP = 2.0**-126, float(np.finfo(np.float32).max), 2.0**-23
FLOATS = (
    np.inf, -np.inf, np.nan, 0.0, -0.0, _TINY, -_TINY, 1e-40, -1e-40, 1e-45, _MAX, -_MAX, 2.0**127, 1 + _STEP,
    1 - _STEP, 1 + 2.0**-8, 1 + 3 * 2.0**-8, 0.5, -0.5, 1.5, -1.5, 2.5, -2.5, 2.0**24 + 2, 2.0**31, -(2.0**31), 2.0**32,
    89.0, -104.0, 1e30, 1e-30, -1.0,
)  # fmt: skip
"""The largest and smallest numbers, numbers between two of bfloat16 and between two integers, and the ends of exp."""
_END = 2**31
INTEGERS = (
    0, 1, -1, 2, 3, -3, 7, 31, 32, 33, 255, 256, 65535, 65536, 65537, 2**23, 2**24 - 1, 2**24 + 1, -(2**24) - 1,
    2**25 + 3, 2**30, -(2**30), _END - 1, _END - 2, -_END, -_END + 1, 0x55555555, -0x55555555, 10**9, -(10**9),
    2**30 + 1, 12345,
)  # fmt: skip
ACROSS = frozenset({"softmax", "layer_norm", "rms_norm", "matmul", "linear", "cumsum", "cumprod", "sort", "gather"})
"""Functions of ttnn whose elements depend on more than the same elements of operands."""
FUNCTIONS_OF_EDGES: Mapping[str, Callable[..., Any]] = {
    **FUNCTIONS,
    **OWN,
    **{n: partial(lambda f, x: f(x, x.T), getattr(_jnp, n)) for n in BINARY},
}
"""The functions of two operands get every pair of edge cases."""


def edges(name: str, dtype: str) -> Any:
    """Returns one tile: a row an edge case for functions of two operands, else random numbers, and one case a row."""
    kind, size = jnp.dtype(dtype), SHAPES["one tile"]
    cases = np.asarray(INTEGERS if "int" in dtype else FLOATS)
    cases = cases % 2**32 if dtype == "uint32" else cases
    if name in BINARY:
        values = np.broadcast_to(cases[:, None], size)
    else:
        values = np.array(argument(name, dtype, "one tile", 0), cases.dtype)
        np.fill_diagonal(values, cases)
    with np.errstate(over="ignore"):  # The largest float32 is an infinity in bfloat16.
        return jnp.asarray(values.astype(kind))


class _Heard(Chip):
    """A chip that keeps the results of its last call."""

    found: Sequence[Any] = ()

    def call(self, source: str, names: Mapping[str, Any]) -> tuple[str, list[Any], float]:
        answer = super().call(source, names)
        self.found = answer[1]
        return answer


def try_edges(chip: _Heard, name: str, dtype: str, trusted: Trusted) -> tuple[int, list[list[Any]]]:
    """Returns the number of trusted calls of a function that ran on the chip, and what differs: the function of ttnn,
    element types, operands, value on the chip, value in the emulation, and the count of such elements."""
    x, calls, rows = edges(name, dtype), 0, list[list[Any]]()

    def hook(line: int, text: str, names: Mapping[str, Any]) -> Any:
        nonlocal calls
        call = program._ChipCall(text, names)
        chip.found, emulated = (), program._stacked(call.result)
        call.compute(chip, trusted)
        calls += bool(chip.found)
        if [a.shape for a in chip.found] == [a.shape[1:] for a in emulated]:
            for number, values in enumerate(chip.found):
                rows.extend(differences(call, number, values[None], emulated[number]))
        return program._compute(text, names)

    mesh = jm.make_mesh((1, 1), ("y", "x"))
    with tempfile.TemporaryDirectory() as folder:
        jm.jit(FUNCTIONS_OF_EDGES[name], mesh=mesh).lower(x).export(folder, x, languages=("python",))
        with beyond.enabled():
            program._execute(Path(folder), hook)
    return calls, rows


def differences(call: program._ChipCall, number: int, values: Any, emulated: Any) -> Iterator[list[Any]]:
    """Yields a row for each kind of difference of one result."""
    exact, formats, moved = call.rounding(number)
    said = trust.outcome(*call.key)
    name = said if said != trust.EXACT else [*formats, trust.EXACT][0]
    found, wanted = values.astype(exact.dtype), emulated.astype(exact.dtype)
    near = trust.are_right(found, exact, name, moved) | (found == wanted) | ((found != found) & (wanted != wanted))
    if formats:
        with np.errstate(invalid="ignore"):
            near |= np.isclose(found, wanted, rtol=4 * trust.UNITS[name if name in trust.UNITS else formats[0]], atol=0)
        near &= (found != 0) | (wanted != 0) | (np.signbit(found) == np.signbit(wanted))
    kinds: dict[tuple[str, ...], list[tuple[int, ...]]] = {}
    for index in np.argwhere(~near):
        place = tuple(index)
        kinds.setdefault((_kind(found[place]), _kind(wanted[place])), []).append(place)
    for places in kinds.values():
        place = places[0]
        across = Trait.MOVES in call._traits or call.key[0].removeprefix("ttnn.") in ACROSS
        operands = [_shown(None if across else _operand(t, place[1:], found.shape[1:])) for t in _in_order(call)]
        yield [call.key[0], call.key[1], operands, _shown(found[place]), _shown(wanted[place]), len(places)]


def _in_order(call: program._ChipCall) -> list[Any]:
    """Returns the operands as the call names them, which may have one of them twice."""
    found = (call._names.get(name) for name in re.findall(r"\w+", call._text))
    return program._on_devices([value for value in found if value is not None])


def _operand(tensor: Any, place: tuple[int, ...], shape: tuple[int, ...]) -> Any:
    array = np.asarray(tensor.data)
    if array.ndim > len(shape) or any(n not in (1, m) for n, m in zip(array.shape[::-1], shape[::-1], strict=False)):
        return None
    return np.broadcast_to(array, shape)[place]


def _kind(value: Any) -> str:
    if np.isfinite(value):
        return ("-" if np.signbit(value) else "") + "0" if value == 0 else "a number"
    return str(value)


def _shown(value: Any) -> str:
    return (
        "..." if value is None else f"{float(value):.9g}" if np.asarray(value).dtype.kind not in "iub" else str(value)
    )


# --- the table -------------------------------------------------------------------------------------------------------


def main(arguments: Sequence[str] | None = None) -> None:
    """Tries what the log does not have, and writes the table."""
    parser = argparse.ArgumentParser(prog="python -m tests.generators.chip_edges")
    parser.add_argument("log", nargs="?", type=Path, default=Path("edges.jsonl"))
    parser.add_argument("--table", action="store_true", help="only write the table")
    parser.add_argument("--since", type=Path, metavar="TABLE", help="try what this older table does not trust")
    given = parser.parse_args(arguments)
    if not given.table:
        known = {tuple(line["cell"]) for line in read([given.log])}
        others = [n for n in FUNCTIONS_OF_EDGES if n not in {*FIRST, *LAST, *COLLECTIVES}]
        groups = (FIRST, others, LAST) if given.since else (FIRST, others)
        trusted = since(given.since.read_text()) if given.since else trust.outcome
        with contextlib.closing(_Heard(seconds=SECONDS)) as chip, given.log.open("a") as file:
            for cell in [(n, d) for group in groups for d in DTYPES for n in group if (n, d) not in known]:
                file.write(json.dumps(line_of(chip, *cell, trusted)) + "\n")
                file.flush()
    TABLE.write_text(table_of(read([given.log]), TABLE.read_text() if given.since else ""))


def since(older: str) -> Trusted:
    """Returns what is trusted of a call that an older table does not trust."""
    rows = rows_of(older)
    kept = {(*key, size) for key, row in rows.items() for size, (said, _) in row.items() if said in trust.RIGHT}
    return lambda *key: KNOWN if key in kept else trust.outcome(*key)


def line_of(chip: _Heard, name: str, dtype: str, trusted: Trusted = trust.outcome) -> dict[str, Any]:
    """Tries a function; returns its line of the log."""
    line: dict[str, Any] = {"cell": [name, dtype], "versions": chip.versions, "date": str(datetime.date.today())}
    try:
        calls, rows = try_edges(chip, name, dtype, trusted)
    except (JaxmeshError, TypeError, ValueError, NotImplementedError) as error:
        return line | {"calls": 0, "rows": [], "none": f"{type(error).__name__}: {error}"[:300]}
    print(name, dtype, calls, rows, flush=True)
    return line | {"calls": calls, "rows": rows}


def table_of(lines: Sequence[Any], page: str = "") -> str:
    """Returns the text of the table: a row for each kind of difference of a function of ttnn, and those of a page."""
    rows: dict[tuple[str, ...], tuple[str, str, str, int]] = {}
    zeros = {callee: set(kinds.split(", ")) for callee, kinds in re.findall(r"`(ttnn\.\w+)` \((.*?)\)", page)}
    stored = [line[2:-2].split(" | ") for line in page.splitlines() if line.startswith("| `")]
    told = [[callee[1:-1], *row, int(count)] for callee, *row, count in stored]
    told += [[c, d, ", ".join(operands), *row] for line in lines for c, d, operands, *row in line["rows"]]
    for callee, dtypes, operands, found, wanted, count in told:
        if {found, wanted} == {"0", "-0"}:
            zeros.setdefault(callee, set()).add(dtypes)
            continue
        key = callee, dtypes, *(_kind(np.float64(v)) for v in (found, wanted) if v not in ("True", "False"))
        first = rows.get(key, (operands, found, wanted, 0))
        rows[key] = (*first[:3], max(first[3], count))
    calls, tried = (sum(f(line) for line in lines) for f in (lambda x: x["calls"], lambda x: x["calls"] > 0))
    versions, dates = (sorted({line[key] for line in lines}) for key in ("versions", "date"))
    what = f"{calls} trusted calls of {tried} functions and element types"
    if page:
        what = f"{page.splitlines()[3].removesuffix('.')}, later {calls} others of {tried}"
    signs = ", ".join(f"`{callee}` ({', '.join(sorted(kinds))})" for callee, kinds in sorted(zeros.items()))
    head = f"""# Edge cases on the simulated chip

Made by `python -m tests.generators.chip_edges` on {dates[-1]} with {", ".join(versions)}:
{what}.
The cases are infinities, NaN, zeros of both signs, denormals, ties, the largest numbers and the ends of integers. A row
is a kind of difference to the emulation that rounding does not explain, with its first operands (`...`: not element by
element) and the most elements of one tile. Such a result is `wrong` in a run, and the emulation's takes its place; but
zeros of both signs are equal.

A zero has the other sign in {signs or "no function"}.

| function | element types | operands | on the chip | in the emulation | elements |
|---|---|---|---|---|---|
"""
    return head + "".join(
        f"| `{key[0]}` | {key[1]} | {' | '.join(shown)} | {count} |\n" for key, (*shown, count) in sorted(rows.items())
    )


if __name__ == "__main__":
    main()
