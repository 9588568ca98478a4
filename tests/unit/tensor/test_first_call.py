"""A compiled program takes and returns tensors without the emulated library, which loads when its name is used."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]

CODE = """
import sys

import jax
import numpy as np
from jax.sharding import PartitionSpec as P

jax.config.update("jax_num_cpu_devices", 8)
import jaxmesh as jm


def loaded(*rooms):
    return sorted(m for m in sys.modules if m.startswith(tuple(f"jaxmesh.{room}" for room in rooms)))


mesh = jm.make_mesh((2, 4), ("x", "y"))
x = np.arange(32, dtype=np.float32).reshape(8, 4)
assert (jm.jit(lambda x: x + 1, mesh=mesh)(x) == x + 1).all()
assert not loaded("ttnn", "drawing", "frontends.stablehlo.importer", "passes.layouts.decide"), loaded("ttnn")

t = jm.jit(lambda x: jm.full_to_shard(x, P("x", "y")), mesh=mesh)(x)
assert type(t).__name__ == "MeshTensor"
u = (2 - t) * t.reshape(-1).reshape([4, 1])[:, 0:1]
assert np.array_equal(u.shard((1, 2)), (2 - x[4:, 2:3]) * x[4:, 2:3])
assert not loaded("ttnn"), loaded("ttnn")
assert jm.ttnn.add(t, t).shape == (4, 1)
"""


def test_a_program_and_its_results_load_no_emulated_function() -> None:
    done = subprocess.run([sys.executable, "-c", CODE], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
