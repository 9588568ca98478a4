"""Faults of the simulator, each with a call that shows it: `python -m tests.generators.chip_faults` runs them with the
simulator as it is and with our start script's mends, and writes `docs/tables/chip_faults.md`."""

from __future__ import annotations

import contextlib
import re
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any
from unittest import mock

import ml_dtypes
import numpy as np

from jaxmesh.analysis.chip import environment
from jaxmesh.analysis.chip.environment import Chip
from tests import ROOT

TABLE = ROOT / "docs" / "tables" / "chip_faults.md"
Array = np.ndarray[Any, Any]
_COUNT = np.arange(1024).reshape(32, 32) - 500
_ROWS = "ttnn.to_layout(x, ttnn.Layout.ROW_MAJOR)"
_WIDE = np.random.default_rng(0).standard_normal((40, 70)).astype(ml_dtypes.bfloat16)
_NORMAL = np.random.default_rng(0).standard_normal((32, 32)).astype(ml_dtypes.bfloat16)

CASES: Mapping[str, tuple[str, Mapping[str, Array], Array, str]] = {
    "a sum of float32": (
        "ttnn.sum(x, 1)",
        {"x": np.zeros((32, 32), np.float32)},
        np.zeros(32),
        "`VectorUnit.handle_add` puts 1.0 in place of the first operand of `SFPADD`, which is `VA * VB + VC`",
    ),
    "a minimum": (
        "ttnn.min(x, 1)",
        {"x": _COUNT.astype(np.float32)},
        _COUNT.min(1),
        "`VectorUnit.handle_sfpswap` does not read `EXCHANGE_SRCB_SRCC` of the lane config, by which kernels take the "
        "minimum for the maximum",
    ),
    "a product of int32": (
        "ttnn.multiply(x, y)",
        {"x": _COUNT.astype(np.int32), "y": np.full((32, 32), 3, np.int32)},
        3 * _COUNT,
        "`VectorUnit.handle_sfpmul24` gives the lower 23 bits also where `instr_mod1` asks for the upper ones",
    ),
    "a choice in bfloat16": (
        "ttnn.where(ttnn.gt(x, 0.0), x, y)",
        {"x": _NORMAL, "y": -_NORMAL},
        np.abs(_NORMAL),
        "`VectorUnit.handle_sfpload` does not set `rd` for `MOD0_FMT_UINT16`, `MOD0_FMT_LO16` and `MOD0_FMT_HI16`",
    ),
    "a copy of uint16": (
        "ttnn.repeat(x, [2, 1])",
        {"x": np.arange(32, dtype=np.uint16).reshape(1, 32)},
        np.tile(np.arange(32), (2, 1)),
        "the packer asks for `DataFormat.INT16`, which the class does not have; it has `UINT16`",
    ),
    "a maximum of uint32": ("ttnn.max(x, 1)", {"x": (_COUNT + 500).astype(np.uint32)}, _COUNT.max(1) + 500, ""),
    "a sum of uint32": ("ttnn.sum(x, 1)", {"x": (_COUNT + 500).astype(np.uint32)}, (_COUNT + 500).sum(1), ""),
    "the order of rows": (
        "ttnn.sort(x, 1)[1]",
        {"x": -_COUNT.astype(np.float32)},
        np.arange(32)[::-1] + 0 * _COUNT,
        "",
    ),
    "rows out of tiles after a maximum of columns, in bfloat16": (
        f"({_ROWS}, ttnn.max(x, 0), {_ROWS})[2]",
        {"x": _WIDE},
        _WIDE,
        "",
    ),
}
"""By name: a call, its operands in tiles, the right result, and the cause where it is known; then it is mended."""


def sent(array: Array) -> tuple[Any, ...]:
    """Returns an operand as the runner takes it."""
    stored = array.astype(np.float32) if array.dtype == ml_dtypes.bfloat16 else array
    return stored.tobytes(), stored.dtype.name, array.shape, array.dtype.name.upper(), "TILE"


def shown(failed: str, found: Any, wanted: Array) -> str:
    """Returns what a call gave: `right`, how it failed, or the first numbers."""
    if failed:
        return re.sub(r".*\((\w+Error: [^)]*)\).*", r"ended: \1", failed)
    if np.shape(found) == wanted.shape and np.array_equal(np.float64(found), np.float64(wanted)):
        return "right"
    return " ".join(f"{v:g}" for v in np.ravel(found)[:4].astype(np.float64)) + " ..."


def results(names: Iterable[str] = CASES) -> dict[str, str]:
    """Returns what the calls give on the simulated chip."""
    found: dict[str, str] = {}
    with contextlib.closing(Chip(seconds=120.0)) as chip:
        for name in names:
            call, operands, wanted, _ = CASES[name]
            failed, arrays, _ = chip.call(call, {k: sent(v) for k, v in operands.items()})
            found[name] = shown(failed, arrays[0] if arrays else None, wanted)
    return found


@contextlib.contextmanager
def as_it_is() -> Iterator[None]:
    """Takes the mends of vectors out of the start script; without a right division no kernel starts."""
    with tempfile.TemporaryDirectory() as folder, mock.patch.object(environment, "_RUNNER", Path(folder)):
        text = (ROOT / "jaxmesh" / "analysis" / "chip" / "runner.py").read_text()
        head, found, rest = text.partition("    swap, multiply, load =")
        assert found
        (Path(folder) / "__main__.py").write_text(f"{head}    return\n{found}{rest}")
        yield


def table_of(plain: Mapping[str, str], mended: Mapping[str, str], versions: str) -> str:
    """Returns the text of the page."""
    head = f"""# Faults of the simulator

Calls of ttnn that the simulator computes wrongly, or that end it, found with {versions} by
`python -m tests.generators.chip_faults`. Operands are tensors of 32 x 32 in TILE: `x` counts from -500, or from 0 if
its type has no sign; zeros in the sum of float32; random numbers in bfloat16. Before all, `RV_M_ISA` divides through a
float, raises at a divisor of 0, and takes the sign of a remainder from the divisor: no program starts. What has a cause
here, our start script mends.

| what | call | first numbers | right | mended | cause |
|---|---|---|---|---|---|
"""
    rows = [
        " | ".join(
            [f"| {n}", f"`{call}`", plain[n], shown("", wanted, wanted[:0]), mended[n], f"{cause or 'not found'} |"]
        )
        for n, (call, _, wanted, cause) in CASES.items()
    ]
    return head + "\n".join(rows) + "\n"


if __name__ == "__main__":
    with as_it_is():
        before = results()
    with contextlib.closing(Chip()) as chip:
        TABLE.write_text(table_of(before, results(), chip.versions))
