"""Recording a run on the devices: the lowered program, which also gives every value back, compiled as one program.

XLA compiles it together with what is recorded, so it may fuse and round otherwise than the program that is not. A while
loop keeps places for so many turns; one that takes more is compiled and run again with enough, as are the callbacks in
it. What every device holds is read from that device, also where types say that all hold the same.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from jaxmesh.analysis.record.buffer_layout import Reader, longest
from jaxmesh.analysis.record.filter import Wanted
from jaxmesh.analysis.record.instrument import instrument
from jaxmesh.analysis.record.recording import Array, Budget, Recording
from jaxmesh.analysis.record.source_path import Place
from jaxmesh.dialects.signature import Boundary
from jaxmesh.jaxprs.compat import Jaxpr
from jaxmesh.runtime.distributed.collectives import whole
from jaxmesh.runtime.regions import plan_regions
from jaxmesh.runtime.sharded import execute
from jaxmesh.sharding.mesh import AnyMesh
from jaxmesh.ttnn.mesh_tensor import MeshTensor

Call = Callable[[Callable[..., Any]], Any]


def record_devices(program: Jaxpr, boundary: Boundary, mesh: AnyMesh, wanted: Wanted, call: Call) -> Recording:
    """Runs a closed, lowered jaxpr on the devices, and gives everything it made.

    Args:
      program: the program.
      boundary: its arguments.
      mesh: the mesh to run on.
      wanted: what is recorded.
      call: compiles a function of the flat arguments and gives what it gives for those of the run.

    Raises:
      RecordingSizeError: more bytes than `wanted` allows; found before anything is compiled.
    """
    abstract: Any = getattr(mesh, "abstract_mesh", mesh)
    varying = [a.varying or () for a in boundary.arguments]
    turns: dict[Place, int] = {}
    while True:
        made = instrument(program, boundary.residencies, varying, abstract, wanted, boundary.name, turns)
        Budget(wanted.max_bytes).take(made.nbytes, "all values on all devices")
        plan = plan_regions(made.jaxpr, boundary.residencies)

        def run(*leaves: Any, plan: Any = plan) -> list[Any]:
            stored = [x.data if isinstance(x, MeshTensor) else x for x in leaves]
            return execute(plan, mesh, stored)

        arrays = [_array(x) for x in call(run)]
        more = longest(made.nodes, arrays)
        if not more:
            entries = Reader(arrays, tuple(boundary.sizes.values())).read(made.nodes)
            return Recording(tuple(entries), boundary.sizes, "devices", boundary.name, wanted.partial)
        turns |= {place: 1 << (count - 1).bit_length() for place, count in more.items()}


def _array(x: Any) -> Array:
    array: Any = whole(x) if isinstance(x, jax.Array) and not x.is_fully_addressable else x
    return np.asarray(array)
