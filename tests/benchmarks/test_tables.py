"""The commands that print the tables of the README still print them."""

from __future__ import annotations

import subprocess
import sys

from tests import ROOT
from tests.benchmarks import scale


def test_the_table_of_devices() -> None:
    head, _, *rows = scale.table([("real", 8), ("abstract", 65_536)]).splitlines()
    assert head == "| " + " | ".join(scale.COLUMNS) + " |"
    cells = [[c.strip() for c in row.strip("|").split("|")] for row in rows]
    assert [c[0] for c in cells] == ["8", "65,536 (abstract)"]
    assert all(float(c) > 0 for c in cells[0][1:])
    # What needs devices is not there without them.
    assert [bool(c) for c in cells[1][1:]] == [True] * 3 + [False] * 4 + [True]


def test_the_table_of_ratios() -> None:
    command = [sys.executable, "-m", "tests.benchmarks", f"{ROOT}/tests/benchmarks/test_transfers.py", "-k"]
    done = subprocess.run([*command, "small and two and Array"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    head, _, row, *_ = done.stdout.splitlines()
    assert head == "| what | peer | ratio | at most |"
    what, peer, ratio, most = [c.strip() for c in row.strip("|").split("|")]
    assert (what, peer, most) == ("distribute, on two dims, jax.Array, 32x32", "device_put", "1.2")
    assert float(ratio) > 0
