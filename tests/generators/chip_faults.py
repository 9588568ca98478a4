"""Faults of the simulator: `python -m tests.generators.chip_faults` writes a file of each to `docs/chip-faults`, which
the environment of `jaxmesh chip-env` runs without jaxmesh; runs the files, and the same calls with our start script's
mends; and writes `docs/tables/chip_faults.md`. `--files` only writes the files.
"""

from __future__ import annotations

import contextlib
import re
import shutil
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from string import Template
from typing import Any

import numpy as np

from jaxmesh.analysis.chip.environment import Chip, find_environment
from jaxmesh.analysis.environments import clean_environment
from tests import ROOT

TABLE, FILES = ROOT / "docs" / "tables" / "chip_faults.md", ROOT / "docs" / "chip-faults"
Array = np.ndarray[Any, Any]
_ROWS = "ttnn.to_layout(x, ttnn.Layout.ROW_MAJOR)"
_DIVISION = "the division"


@dataclass(frozen=True)
class Case:
    """A call that the simulator computes wrongly.

    Attributes:
      call: the text.
      operands: in tiles; an element type, and the values as Python of `count` and `random` (see `VALUES`).
      right: the right result, as Python of the same and of the operands.
      cause: where it is known; then it is mended.
    """

    call: str
    operands: Mapping[str, tuple[str, str]]
    right: str
    cause: str = ""


VALUES = """\
count = np.arange(1024).reshape(32, 32) - 500
random = np.random.default_rng(0).standard_normal((40, 70)).astype(np.float32)
random = (random.view(np.uint32) & 0xFFFF0000).view(np.float32)  # Numbers of bfloat16.
"""

CASES: Mapping[str, Case] = {
    "a sum of float32": Case(
        "ttnn.sum(x, 1)",
        {"x": ("FLOAT32", "np.zeros((32, 32), np.float32)")},
        "np.zeros(32)",
        "`VectorUnit.handle_add` puts 1.0 in place of the first operand of `SFPADD`, which is `VA * VB + VC`",
    ),
    "a minimum": Case(
        "ttnn.min(x, 1)",
        {"x": ("FLOAT32", "count.astype(np.float32)")},
        "count.min(1)",
        "`VectorUnit.handle_sfpswap` does not read `EXCHANGE_SRCB_SRCC` of the lane config, by which kernels take the "
        "minimum for the maximum",
    ),
    "a product of int32": Case(
        "ttnn.multiply(x, y)",
        {"x": ("INT32", "count.astype(np.int32)"), "y": ("INT32", "np.full((32, 32), 3, np.int32)")},
        "3 * count",
        "`VectorUnit.handle_sfpmul24` gives the lower 23 bits also where `instr_mod1` asks for the upper ones",
    ),
    "a choice in bfloat16": Case(
        "ttnn.where(ttnn.gt(x, 0.0), x, y)",
        {"x": ("BFLOAT16", "random[:32, :32].copy()"), "y": ("BFLOAT16", "-random[:32, :32]")},
        "np.abs(random[:32, :32])",
        "`VectorUnit.handle_sfpload` does not set `rd` for `MOD0_FMT_UINT16`, `MOD0_FMT_LO16` and `MOD0_FMT_HI16`",
    ),
    "a copy of uint16": Case(
        "ttnn.repeat(x, [2, 1])",
        {"x": ("UINT16", "np.arange(32, dtype=np.uint16).reshape(1, 32)")},
        "np.tile(np.arange(32), (2, 1))",
        "the packer asks for `DataFormat.INT16`, which the class does not have; it has `UINT16`",
    ),
    "a maximum of uint32": Case(
        "ttnn.max(x, 1)", {"x": ("UINT32", "(count + 500).astype(np.uint32)")}, "(count + 500).max(1)"
    ),
    "a sum of uint32": Case(
        "ttnn.sum(x, 1)", {"x": ("UINT32", "(count + 500).astype(np.uint32)")}, "(count + 500).sum(1)"
    ),
    "the order of rows": Case(
        "ttnn.sort(x, 1)[1]", {"x": ("FLOAT32", "-count.astype(np.float32)")}, "np.arange(32)[::-1] + 0 * count"
    ),
    "rows out of tiles after a maximum of columns, in bfloat16": Case(
        f"({_ROWS}, ttnn.max(x, 0), {_ROWS})[2]", {"x": ("BFLOAT16", "random")}, "random"
    ),
}
"""By name."""

_OF_DIVISION = (
    "RV_M_ISA divides through a float, raises at a divisor of 0, and takes the sign of a remainder from the divisor. "
    "By the standard the quotient is then -1, and the remainder the dividend. With all cores no program starts."
)
_TEMPLATE = Template('''\
"""A fault of wolfpine's Blackhole: $what.

    $call

$cause

Found with $versions. To see it, run this file with a Python
that has ttnn, wolfpine, and in ttnn/runtime/sfpi a compiler of kernels for Blackhole: python $name
"""

import importlib.util
import os
import sys
import tempfile

import numpy as np

framework = importlib.util.find_spec("framework").submodule_search_locations[0]
simulator = os.path.join(framework, "sim", "blackhole")
cache = tempfile.TemporaryDirectory()
os.environ |= {
    "WOLFPINE_PYTHON": sys.executable,
    "TT_METAL_SIMULATOR": simulator,
    "TT_METAL_MOCK_CLUSTER_DESC_PATH": os.path.join(simulator, "cluster_descriptor.yaml"),
    "TT_METAL_SLOW_DISPATCH_MODE": "1",
    "TT_METAL_DISABLE_SFPLOADMACRO": "1",
$cores    "TT_METAL_CACHE": cache.name,
    "TT_LOGGER_LEVEL": "off",
}

import ttnn  # It reads the environment.

device = ttnn.open_mesh_device(ttnn.MeshShape([1, 1]), l1_small_size=65536)


def on_chip(array, dtype):
    return ttnn.to_device(ttnn.to_layout(ttnn.Tensor(array, dtype), ttnn.Layout.TILE), device)


$values
right = np.float64($right)
print("right:", *(f"{v:g}" for v in right.ravel()[:4]), "...", flush=True)
result = $call
host = ttnn.to_layout(ttnn.from_device(result), ttnn.Layout.ROW_MAJOR)
if host.dtype == ttnn.DataType.BFLOAT16:
    host = ttnn.to_dtype(host, ttnn.DataType.FLOAT32)
found = host.to_numpy().astype(np.float64).reshape(tuple(result.shape))
print("the chip:", *(f"{v:g}" for v in found.ravel()[:4]), "...", flush=True)
ttnn.close_mesh_device(device)
sys.exit(0 if np.array_equal(found, right) else "the chip is wrong")
''')
_ONE_CORE = '    "TT_METAL_CORE_GRID_OVERRIDE_TODEPRECATE": "0,0",\n'


def text_of(name: str, versions: str) -> str:
    """Returns the file of a fault; that of the division has all cores."""
    plain, case = name == _DIVISION, CASES.get(name, CASES["a product of int32"])
    operands = [f"{n} = on_chip({v}, ttnn.DataType.{d})" for n, (d, v) in case.operands.items()]
    cause = f"The cause: {case.cause}." if case.cause else "Its cause is not found."
    return _TEMPLATE.substitute(
        what=name, versions=versions, name=file_of(name).name, call=case.call, right=case.right,
        cause=textwrap.fill((_OF_DIVISION if plain else cause).replace("`", ""), 110),
        cores="" if plain else _ONE_CORE, values="\n".join([*VALUES.splitlines(), *operands]),
    )  # fmt: skip


def file_of(name: str) -> Path:
    """Returns where a fault is stored."""
    return FILES / f"{re.sub('[^a-z0-9]+', '-', name)}.py"


def write_files(versions: str) -> None:
    """Writes the file of each fault, and no other."""
    shutil.rmtree(FILES, ignore_errors=True)
    FILES.mkdir()
    for name in (_DIVISION, *CASES):
        file_of(name).write_text(text_of(name, versions))


def ran(name: str, python: Path) -> tuple[str, str]:
    """Runs the file of a fault; returns what the chip gave, or how it ended, and the right numbers."""
    with tempfile.TemporaryDirectory() as folder:  # ttnn writes into the working folder.
        done = subprocess.run(
            [python, file_of(name)], cwd=folder, env=clean_environment(), capture_output=True, text=True, check=False
        )
    said = dict(line.split(": ", 1) for line in done.stdout.splitlines() if line.startswith(("the chip: ", "right: ")))
    errors = re.findall(r"^.*?(\w+Error: .*)$", done.stdout + done.stderr, re.M)
    return said.get("the chip", f"ended: {errors[-1] if errors else done.returncode}"), said.get("right", "")


def mended(names: Iterable[str] = CASES) -> dict[str, str]:
    """Returns what the calls give with our start script: `right`, how they failed, or the first numbers."""
    found: dict[str, str] = {}
    with contextlib.closing(Chip(seconds=120.0)) as chip:
        for name in names:
            case, scope = CASES[name], dict[str, Any](np=np)
            exec(VALUES, scope)
            operands = {n: sent(eval(text, scope), dtype) for n, (dtype, text) in case.operands.items()}
            failed, arrays, _ = chip.call(case.call, operands)
            found[name] = shown(failed, arrays[0] if arrays else None, eval(case.right, scope))
    return found


def sent(array: Array, dtype: str) -> tuple[Any, ...]:
    """Returns an operand as the runner takes it."""
    return array.tobytes(), array.dtype.name, array.shape, dtype, "TILE"


def shown(failed: str, found: Any, wanted: Array) -> str:
    """Returns what a call gave."""
    if failed:
        return re.sub(r".*\((\w+Error: [^)]*)\).*", r"ended: \1", failed)
    if np.shape(found) == wanted.shape and np.array_equal(np.float64(found), np.float64(wanted)):
        return "right"
    return " ".join(f"{v:g}" for v in np.ravel(found)[:4].astype(np.float64)) + " ..."


def table_of(plain: Mapping[str, tuple[str, str]], after: Mapping[str, str], versions: str) -> str:
    """Returns the text of the page."""
    head = f"""# Faults of the simulator

Calls of ttnn that the simulator computes wrongly, or that end it, found with {versions} by
`python -m tests.generators.chip_faults`. Each has a file, which runs in 20 s with the environment of `jaxmesh chip-env`
alone, without jaxmesh, or with another Python that has the same: `python a-minimum.py` prints what is right, and what
the chip gives. Besides, `RV_M_ISA` divides through a float, raises at a divisor of 0, and takes the sign of a remainder
from the divisor: with all 130 cores [no program starts]({_link(_DIVISION)}). The other files have one core, as our
start script has. What has a cause here, the start script mends.

| what | call | first numbers | right | mended | cause |
|---|---|---|---|---|---|
"""
    rows = [
        ["", f"[{n}]({_link(n)})", f"`{case.call}`", *plain[n], after[n], case.cause or "not found", ""]
        for n, case in CASES.items()
    ]
    return head + "".join(f"{' | '.join(row).strip()}\n" for row in rows)


def _link(name: str) -> str:
    return f"../{FILES.name}/{file_of(name).name}"


def main(arguments: Sequence[str]) -> None:
    """Writes the files, and the table of what they give."""
    python, _, versions = find_environment()
    write_files(versions)
    if "--files" not in arguments:
        plain = {name: ran(name, python) for name in CASES}
        TABLE.write_text(table_of(plain, mended(), versions))


if __name__ == "__main__":
    main(sys.argv[1:])
