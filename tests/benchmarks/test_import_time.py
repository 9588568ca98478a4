"""What `import jaxmesh` adds to `import jax`: `pytest tests/benchmarks/test_import_time.py -n0`.

Both are run in fresh processes, in turns, and the added time is the median of the differences within a turn. Bytecode
is read where an installation would have it: it is written once, before, for both.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests import ROOT

BASE = "import jax"
ROUNDS = 21
WAYS = {
    "import jaxmesh": ("import jax, jaxmesh", 60.0),
    "import jaxmesh, and first name jit, shard_map, MeshTensor": (
        "import jax; from jaxmesh import jit, shard_map, MeshTensor",
        None,
    ),
}


def seconds(code: str, cache: Path) -> float:
    """A fresh process that runs some code."""
    env = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    start = time.perf_counter()
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, env={**env, "PYTHONPYCACHEPREFIX": str(cache)}, check=True)
    return time.perf_counter() - start


@pytest.mark.parametrize("row", list(WAYS))
def test_import_time(row: str, benchmark: Any, tmp_path_factory: pytest.TempPathFactory) -> None:
    code, target = WAYS[row]
    benchmark.group = "import"
    cache = tmp_path_factory.getbasetemp() / "bytecode"
    rounds = 1 if benchmark.disabled else ROUNDS
    pairs: list[tuple[float, float]] = []
    if not benchmark.disabled:
        seconds(code, cache)
    benchmark.pedantic(lambda: pairs.append((seconds(BASE, cache), seconds(code, cache))), rounds=rounds)
    peers, ours = zip(*pairs, strict=True)
    benchmark.extra_info.update(
        row=row,
        peer="import jax",
        value=1e3 * statistics.median(b - a for a, b in pairs),
        unit="ms",
        ratio=None,
        target=target,
        ours_seconds=statistics.median(ours),
        peer_seconds=statistics.median(peers),
        rounds=rounds,
    )
