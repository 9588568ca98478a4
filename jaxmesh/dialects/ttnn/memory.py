"""Ops of TTNN without a table entry: the mesh device, the two sharding operations, layouts, memory.

Every emitter, the importer and the emulated API know these by name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from jaxmesh.dialects.op import Trait


@dataclass(frozen=True, slots=True)
class MemoryOp:
    """An op about devices and memory: the forms of its attributes, by name, facts, and whether it reads the device."""

    attributes: Mapping[str, str] = field(default_factory=dict[str, str])
    traits: frozenset[Trait] = frozenset({Trait.MOVES})
    takes_device: bool = False


_TRANSFER = frozenset({Trait.MOVES, Trait.COLLECTIVE, Trait.TRANSFERS})
_RETURNS_OPERAND = frozenset({Trait.MOVES, Trait.RETURNS_OPERAND})

MEMORY_OPS: Mapping[str, MemoryOp] = {
    "get_device": MemoryOp({"mesh_shape": "mesh_shape", "mesh_offset": "mesh_offset"}),
    "distribute_tensor": MemoryOp({"mapper_config": "mapper_config", "cq_id": "ui32"}, _TRANSFER, takes_device=True),
    "aggregate_tensor": MemoryOp({"composer_config": "composer_config"}, _TRANSFER, takes_device=True),
    "to_device": MemoryOp(traits=_RETURNS_OPERAND, takes_device=True),
    "from_device": MemoryOp(),
    "to_layout": MemoryOp(traits=_RETURNS_OPERAND),
    "to_memory_config": MemoryOp(),
    "to_tensor_spec": MemoryOp(),
    "deallocate": MemoryOp({"force": "bool"}),
}
"""By name, without the dialect."""

LAYOUT_ONLY = frozenset(
    {"ttnn.to_device", "ttnn.from_device", "ttnn.to_layout", "ttnn.to_memory_config", "ttnn.to_tensor_spec"}
)
"""Ops that change only where or how a tensor is stored; no pass makes the last two, which texts have."""
