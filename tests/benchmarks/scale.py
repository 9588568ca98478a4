"""The demo's block on more and more devices, each in a process of its own: `python -m tests.benchmarks.scale`.

The block is the same for every number of devices (batch 64, 8 heads), tensor parallel over 8 and data parallel over the
rest. On the largest meshes nothing runs: an `AbstractMesh` traces, lowers and prints (batch 8,192 on all of them).
Times are in seconds, the memory is the most that the process held, less what it held before, in MiB.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax.sharding import AbstractMesh

import jaxmesh as jm
from jaxmesh.cli.demo import model
from tests.benchmarks.peak import resident

RUN = (8, 64, 256, 512)
LOWERED = (8, 4_096, 65_536)
COLUMNS = ["devices", "trace", "lower", "text", "compile", "call", "peer's compile", "peer's call", "MiB"]


def timed(work: Callable[[], Any]) -> tuple[float, Any]:
    """The seconds of one run, and what it gave."""
    start = time.perf_counter()
    made = jax.block_until_ready(work())
    return time.perf_counter() - start, made


def dims_of(mesh: Any) -> model.Dims:
    """The same sizes for every mesh that divides them."""
    low = model.Dims(batch=64, sequence=32, width=64, kv_heads=8, queries_per_kv=2, head=16, hidden=128)
    return model.dims_for(mesh, low)


def stages(mesh: Any, dims: model.Dims) -> tuple[dict[str, float], jm.Lowered]:
    """The seconds of what needs no devices."""
    f = jm.jit(model.sharded_model(dims, mesh).forward, mesh=mesh)
    shapes = {name: jax.ShapeDtypeStruct(s, np.float32) for name, s in dims.weight_shapes().items()}
    found: dict[str, float] = {}
    found["trace"], traced = timed(lambda: f.trace(shapes, jax.ShapeDtypeStruct(dims.input_shape, np.float32)))
    found["lower"], lowered = timed(traced.lower)
    found["text"], _ = timed(lowered.as_text)
    return found, lowered


def abstract(count: int) -> dict[str, float]:
    """What is known without devices; the sizes are the same for all, so that only the mesh differs."""
    sides = (1, 8) if count == 8 else (count // 8, 8)
    dims = dims_of(AbstractMesh((1, 8), ("y", "x")))
    sizes = model.Dims(**{**{n: getattr(dims, n) for n in model.Dims.__slots__}, "batch": max(LOWERED) // 8})
    # Another mesh first: it pays for what every process does once.
    stages(AbstractMesh((2, 4), ("y", "x")), sizes)
    before = resident("VmRSS")
    found, _ = stages(AbstractMesh(sides, ("y", "x")), sizes)
    return {**found, "MiB": (resident("VmHWM") - before) / 2**20}


def real(count: int) -> dict[str, float]:
    """The block on so many devices, compared with the unsharded one, and the hand-written program beside it."""
    jm.emulate(count)
    mesh = jm.make_mesh((count // 8, 8))
    dims = dims_of(mesh)
    weights, x, _ = model.make_inputs(dims)
    expected = np.asarray(jax.jit(model.unsharded_model(dims).forward)(weights, x))
    before = resident("VmRSS")
    found, lowered = stages(mesh, dims)
    found["compile"], compiled = timed(lowered.compile)
    found["call"], out = call(lambda: compiled(weights, x))
    found["MiB"] = (resident("VmHWM") - before) / 2**20
    np.testing.assert_allclose(np.asarray(out), expected, rtol=2e-4, atol=2e-4)
    specs = (model.weight_specs(mesh), model.input_spec(mesh))

    def local(weights: Any, x: Any) -> Any:
        return model.block(weights, x, dims.head, lambda part: model.all_reduce(part, mesh, [model.model_axis(mesh)]))

    peer = jax.jit(jax.shard_map(local, mesh=mesh, in_specs=specs, out_specs=model.input_spec(mesh)))
    traced = peer.lower(weights, x)
    found["peer's compile"], compiled_peer = timed(traced.compile)
    found["peer's call"], _ = call(lambda: compiled_peer(weights, x))
    return found


def call(work: Callable[[], Any]) -> tuple[float, Any]:
    """The median of a few calls after the first."""
    _, out = timed(work)
    return statistics.median(timed(work)[0] for _ in range(5)), out


def table(counts: list[tuple[str, int]]) -> str:
    """One row per number of devices."""
    lines = ["| " + " | ".join(COLUMNS) + " |", "|" + "---|" * len(COLUMNS)]
    for way, count in counts:
        command = [sys.executable, "-m", "tests.benchmarks.scale", way, str(count)]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        found = {**json.loads(done.stdout), "devices": f"{count:,}" + (" (abstract)" if way == "abstract" else "")}
        cells = [found.get(c, "") for c in COLUMNS]
        lines.append("| " + " | ".join(f"{c:.3g}" if isinstance(c, float) else str(c) for c in cells) + " |")
    return "\n".join(lines)


if __name__ == "__main__":
    if len(sys.argv) == 3:
        print(json.dumps({"real": real, "abstract": abstract}[sys.argv[1]](int(sys.argv[2]))))
    else:
        print(table([*[("real", n) for n in RUN], *[("abstract", n) for n in LOWERED]]))
