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

OPS.define("get_device", traits=_ABOUT)
OPS.define("distribute_tensor", traits=_TRANSFER)
OPS.define("aggregate_tensor", traits=_TRANSFER)
OPS.define("to_device", traits=_KEPT)
OPS.define("from_device", traits=_STORED)
OPS.define("to_layout", traits=_KEPT)
OPS.define("to_memory_config", traits=_STORED)
OPS.define("to_tensor_spec", traits=_STORED)
OPS.define("deallocate", traits=_ABOUT)
