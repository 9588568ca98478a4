"""Ops of TTNN without a table entry: the mesh device, the two sharding operations, layouts, memory.

Every emitter, the importer and the emulated API know these by name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from jaxmesh.dialects.op import Trait


@dataclass(frozen=True, slots=True)
class MemoryOp:
    """An op about devices and memory: the names of its attributes, and facts about it."""

    attributes: frozenset[str] = frozenset()
    traits: frozenset[Trait] = frozenset({Trait.MOVES})


_TRANSFER = frozenset({Trait.MOVES, Trait.COLLECTIVE, Trait.TRANSFERS})
_RETURNS_OPERAND = frozenset({Trait.MOVES, Trait.RETURNS_OPERAND})

MEMORY_OPS: Mapping[str, MemoryOp] = {
    "get_device": MemoryOp(frozenset({"mesh_shape", "mesh_offset"})),
    "distribute_tensor": MemoryOp(frozenset({"mapper_config", "cq_id"}), _TRANSFER),
    "aggregate_tensor": MemoryOp(frozenset({"composer_config", "cq_id"}), _TRANSFER),
    "to_device": MemoryOp(traits=_RETURNS_OPERAND),
    "from_device": MemoryOp(),
    "to_layout": MemoryOp(frozenset({"layout"}), _RETURNS_OPERAND),
    "deallocate": MemoryOp(frozenset({"force"})),
}
"""By name, without the dialect."""

LAYOUT_ONLY = frozenset({"ttnn.to_device", "ttnn.from_device", "ttnn.to_layout", "ttnn.to_memory_config"})
"""Ops that change only where or how a tensor is stored; `to_memory_config` is read from texts and never printed."""
