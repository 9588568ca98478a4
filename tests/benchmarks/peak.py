"""A process of its own that distributes one tensor, and prints what it and the tensor took at the most."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import jax.numpy as jnp

import jaxmesh as jm


def resident(what: str) -> int:
    """Bytes of memory: `VmRSS` now, or `VmHWM` at the most."""
    found = re.search(rf"^{what}:\s+(\d+) kB$", Path("/proc/self/status").read_text(), re.MULTILINE)
    assert found
    return int(found[1]) * 1024


def main(way: str, rows: int) -> None:
    """Distributes a tensor of so many rows of 8,192 numbers, after everything was warmed up by a small one."""
    jm.emulate(16)
    from tests.benchmarks.test_transfers import distributed

    def once(size: tuple[int, int]) -> int:
        x = jnp.full(size, 1, jnp.float32).block_until_ready()
        made = distributed(x, way)()
        return made.data.nbytes + x.nbytes

    once((64, 64))
    before = resident("VmRSS")
    once((rows, 8192))
    print(json.dumps({"peak": resident("VmHWM") - before, "bytes": rows * 8192 * 4}))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
