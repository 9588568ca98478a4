"""Records a run on the devices: the instrumented program, compiled as one program.

XLA compiles the program together with its recording, so it may fuse and round differently from the plain program. The
buffers of a while loop store a fixed number of iterations. If a loop runs longer, the program is compiled and run again
with larger buffers, including its callbacks. Every copy is read from its device, even if types prove them equal.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from jaxmesh.analysis.record.buffer_layout import Reader
from jaxmesh.analysis.record.entry import Array, check_bytes
from jaxmesh.analysis.record.filter import Wanted
from jaxmesh.analysis.record.instrument import instrument
from jaxmesh.analysis.record.metrics import same_bits
from jaxmesh.analysis.record.recording import Recording
from jaxmesh.analysis.record.source_path import Place
from jaxmesh.dialects.residency import ResidencyMap
from jaxmesh.dialects.signature import Boundary
from jaxmesh.runtime.distributed.collectives import fetch_array
from jaxmesh.runtime.progress import progress
from jaxmesh.runtime.regions import Plan, plan_regions
from jaxmesh.runtime.sharded import execute
from jaxmesh.tensor.mesh_tensor import MeshTensor

FlatFunction = Callable[..., list[Any]]
"""A function of a program's flat arguments."""


def record_devices(
    residency: ResidencyMap,
    boundary: Boundary,
    wanted: Wanted,
    compile_and_call: Callable[[FlatFunction], Sequence[Any]],
) -> Recording:
    """Runs a closed, lowered jaxpr on the devices and returns every value that it computes.

    `compile_and_call` compiles a function of the flat arguments, calls it with the run's arguments, and returns its
    results. Raises an error before compilation if the values exceed `wanted.max_bytes`.
    """
    mesh = boundary.mesh
    abstract: Any = getattr(mesh, "abstract_mesh", mesh)
    varying = [a.varying or () for a in boundary.arguments]
    capacities: dict[Place, int] = {}
    while True:
        program, structure = instrument(residency, varying, abstract, wanted, boundary.name, capacities)
        used = sum(a.size * a.dtype.itemsize for a in program.out_avals)
        check_bytes(used, wanted.max_bytes, "all values on all devices")
        plan = plan_regions(ResidencyMap(program, residency.inputs))

        def run(*leaves: Any, plan: Plan = plan) -> list[Any]:
            return execute(plan, mesh, [x.data if isinstance(x, MeshTensor) else x for x in leaves])

        with progress("compiling and running"):
            results: list[Any] = list(compile_and_call(run))
            values: list[Array] = []
            while results:
                # Free each value on its devices before the next is copied.
                values.append(_array(results.pop()))
            values.reverse()
        reader = Reader(tuple(boundary.sizes.values()))
        reader.read(jax.tree.unflatten(structure, values))
        if not reader.missing:
            return Recording(tuple(reader.entries), boundary.sizes, "devices", boundary.name, wanted.partial)
        # The next power of two.
        capacities |= {place: 1 << (count - 1).bit_length() for place, count in reader.missing.items()}


def _array(x: Any) -> Array:
    """Copies a result to the host's memory; equal copies of a value share the memory of one."""
    array: Any = fetch_array(x) if isinstance(x, jax.Array) and not x.is_fully_addressable else x
    if isinstance(array, jax.Array) and not array.is_fully_replicated:
        first, *others = (np.asarray(s.data) for s in array.addressable_shards)
        copies = all(m in (n, 1) for n, m in zip(array.shape, first.shape, strict=True))
        if copies and all(same_bits(first, x) for x in others):
            return np.broadcast_to(first, array.shape)
    return np.asarray(array)
