"""Ops of TTNN without a table entry: the mesh device, the two sharding operations, layouts, memory.

Every emitter, the importer and the emulated API know these by name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from jaxmesh.dialects.op import Trait


@dataclass(frozen=True, slots=True)
class MemoryOp:
    """An op about devices and memory: the forms of its attributes in MLIR, by name, and facts about it."""

    attributes: Mapping[str, str] = field(default_factory=dict[str, str])
    traits: frozenset[Trait] = frozenset({Trait.MOVES})


_TRANSFER = frozenset({Trait.MOVES, Trait.COLLECTIVE, Trait.TRANSFERS})
_RETURNS_OPERAND = frozenset({Trait.MOVES, Trait.RETURNS_OPERAND})

MEMORY_OPS: Mapping[str, MemoryOp] = {
    "get_device": MemoryOp({"mesh_shape": "mesh_shape", "mesh_offset": "mesh_offset"}),
    "distribute_tensor": MemoryOp({"mapper_config": "mapper_config", "cq_id": "ui32"}, _TRANSFER),
    "aggregate_tensor": MemoryOp({"composer_config": "composer_config", "cq_id": "ui32"}, _TRANSFER),
    "to_device": MemoryOp(traits=_RETURNS_OPERAND),
    "from_device": MemoryOp(),
    "to_layout": MemoryOp({"layout": "#ttnn.layout"}, _RETURNS_OPERAND),
    "deallocate": MemoryOp({"force": "bool"}),
}
"""By name, without the dialect."""

LAYOUT_ONLY = frozenset({"ttnn.to_device", "ttnn.from_device", "ttnn.to_layout", "ttnn.to_memory_config"})
"""Ops that change only where or how a tensor is stored; `to_memory_config` is read from texts and never printed."""
