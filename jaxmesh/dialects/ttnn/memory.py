"""Operations of TTNN about the mesh device, transfers, layouts and memory.

Frontends and passes perform them by name. The emitters print several statements for `get_device`, `distribute_tensor`
and `aggregate_tensor`, and the calls below for the others.
"""

from __future__ import annotations

from jaxmesh.dialects.op import Trait
from jaxmesh.dialects.ttnn.op import TtnnOps

OPS = TtnnOps()
"""By name, without the dialect."""


_ABOUT = (Trait.MEMORY, Trait.MOVES)
_TRANSFER = (*_ABOUT, Trait.COLLECTIVE, Trait.TRANSFERS)
_STORED = (*_ABOUT, Trait.LAYOUT)
_KEPT = (*_STORED, Trait.RETURNS_OPERAND)

_MESH = "mesh_shape?: mesh_shape, mesh_offset?: mesh_offset"
_MAPPER = "mapper_config: mapper_config, cq_id?: ui32"
_COMPOSER = "composer_config: composer_config"
OPS.define("get_device", operands=0, attributes=_MESH, traits=_ABOUT)
OPS.define("distribute_tensor", operands=1, attributes=_MAPPER, traits=_TRANSFER, handles=(1, 1))
OPS.define("aggregate_tensor", operands=1, attributes=_COMPOSER, traits=_TRANSFER, handles=(1, 1))
OPS.define(
    "to_device", python="(tensor:%0, device=@mesh_device, memory_config=@)", operands=1, traits=_KEPT, handles=(1, 1)
)
OPS.define("from_device", python="(tensor:%0)", operands=1, traits=_STORED)
OPS.define(
    "to_layout",
    python="(tensor:%0, layout:@, dtype:@changed_dtype, memory_config=@)",
    cpp="(%0, @layout, none, @memory_config)",
    operands=1,
    traits=_KEPT,
)
OPS.define("to_memory_config", python="(tensor:%0, memory_config:@)", operands=1, traits=_STORED)
OPS.define("to_tensor_spec", operands=1, traits=_STORED)
OPS.define(
    "deallocate", python="(tensor:%0, force)", operands=1, results=0, attributes="force?: bool = false", traits=_ABOUT
)
