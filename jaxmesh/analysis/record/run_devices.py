"""Recording a run on the devices: the lowered program, which also gives every value back, compiled as one program.

XLA compiles it together with what is recorded, so it may fuse and round otherwise than the program that is not. A while
loop keeps places for so many turns; one that takes more is compiled and run again with enough, as are the callbacks in
it. What every device holds is read from that device, also where types say that all hold the same.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from jaxmesh.analysis.record.buffer_layout import Reader, longest
from jaxmesh.analysis.record.entry import Array, Budget
from jaxmesh.analysis.record.filter import Wanted
from jaxmesh.analysis.record.instrument import instrument
from jaxmesh.analysis.record.recording import Recording
from jaxmesh.analysis.record.source_path import Place
from jaxmesh.jaxprs.compat import Jaxpr
from jaxmesh.runtime.distributed.collectives import whole
from jaxmesh.runtime.regions import plan_regions
from jaxmesh.runtime.sharded import execute
from jaxmesh.stages.signature import Boundary
from jaxmesh.ttnn.mesh_tensor import MeshTensor

Run = Callable[..., list[Any]]
"""A function of the flat arguments of a program."""


def record_devices(
    program: Jaxpr, boundary: Boundary, wanted: Wanted, compile_and_call: Callable[[Run], Sequence[Any]]
) -> Recording:
    """Runs a closed, lowered jaxpr on the devices and returns every value that it computes.

    Args:
      program: the jaxpr.
      boundary: its signature, and the mesh to run on.
      wanted: the values to record.
      compile_and_call: compiles a function of the flat arguments, calls it with those of the run, and returns its
        results.

    Raises:
      RecordingSizeError: more bytes than `wanted` allows; raised before anything is compiled.
    """
    mesh = boundary.mesh
    abstract: Any = getattr(mesh, "abstract_mesh", mesh)
    varying = [a.varying or () for a in boundary.arguments]
    turns: dict[Place, int] = {}
    while True:
        made = instrument(program, boundary.places, varying, abstract, wanted, boundary.name, turns)
        Budget(wanted.max_bytes).take(made.nbytes, "all values on all devices")
        plan = plan_regions(made.jaxpr, boundary.places)

        def run(*leaves: Any, plan: Any = plan) -> list[Any]:
            stored = [x.data if isinstance(x, MeshTensor) else x for x in leaves]
            return execute(plan, mesh, stored)

        arrays = [_array(x) for x in compile_and_call(run)]
        more = longest(made.nodes, arrays)
        if not more:
            entries = Reader(arrays, tuple(boundary.sizes.values())).read(made.nodes)
            return Recording(tuple(entries), boundary.sizes, "devices", boundary.name, wanted.partial)
        turns |= {place: 1 << (count - 1).bit_length() for place, count in more.items()}


def _array(x: Any) -> Array:
    array: Any = whole(x) if isinstance(x, jax.Array) and not x.is_fully_addressable else x
    return np.asarray(array)
