"""Looks up operations of both dialects by full name, such as `ttnn.add`."""

from __future__ import annotations

from collections.abc import Mapping

from jaxmesh.dialects import textual, ttir, ttnn
from jaxmesh.dialects.op import OpDef, Trait
from jaxmesh.dialects.ttnn.memory import MEMORY_OPS

_TRAITS: Mapping[str, frozenset[Trait]] = {
    **{f"ttir.{name}": op.traits for name, op in ttir.OPS.items()},
    **{f"ttnn.{name}": op.definition.traits for name, op in ttnn.OPS.items()},
    **{f"ttnn.{name}": op.traits for name, op in MEMORY_OPS.items()},
    **{name: op.traits for name, op in textual.OPS.items()},
}

HOISTED = "ttnn.hoist_generic_via_d2m"
"""The attribute by which a text of TTNN marks an operation for the D2M compiler."""


def definition_of(name: str) -> OpDef | None:
    """Returns the definition of an operation; None if there is none."""
    if name in textual.OPS:
        return textual.OPS[name]
    dialect, _, short = name.partition(".")
    if dialect == "ttir":
        return ttir.OPS.get(short)
    return ttnn.OPS[short].definition if dialect == "ttnn" and short in ttnn.OPS else None


def takes_device(name: str) -> tuple[int, int | None]:
    """Returns the least and the most operands that are no tensors: the mesh device, semaphores; None for any number.

    >>> takes_device("ttnn.full"), takes_device("ttnn.rand"), takes_device("ttir.full")
    ((0, 1), (1, 1), (0, 0))
    """
    if name in textual.OPS:
        return textual.HANDLES.get(name, (0, 0))
    dialect, _, short = name.partition(".")
    if dialect != "ttnn":
        return 0, 0
    if short in MEMORY_OPS:
        count = int(MEMORY_OPS[short].takes_device)
        return count, count
    row = ttnn.OPS.get(short)
    if row is None or not row.on_device:
        return 0, 0
    return int(Trait.NEEDS_DEVICE in row.definition.traits), 1


def group_count(name: str) -> int | None:
    """Returns how many operand groups `operandSegmentSizes` counts; None if upstream's op does not have it.

    >>> group_count("ttnn.rms_norm"), group_count("ttnn.add"), group_count("ttnn.distributed_layer_norm")
    (3, None, 5)
    """
    row = definition_of(name)
    if row is None or name in textual.OPS:
        return textual.GROUPS.get(name)
    least, most = row.operands
    return most if most is not None and most - least >= 2 else None


def has_trait(name: str, trait: Trait) -> bool:
    """Returns True if an operation has a trait.

    >>> has_trait("ttir.reshape", Trait.VIEW), has_trait("ttnn.add", Trait.VIEW)
    (True, False)
    """
    return trait in _TRAITS.get(name, ())
