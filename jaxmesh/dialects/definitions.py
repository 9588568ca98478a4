"""The registry of operations: every definition by its full name, such as `ttnn.add` or `ttcore.load_cached`."""

from __future__ import annotations

from jaxmesh.dialects import textual, ttcore, ttir, ttnn
from jaxmesh.dialects.op import OpDef, Trait
from jaxmesh.dialects.ttnn import memory
from jaxmesh.dialects.ttnn.op import TtnnOp

DEFINITIONS: dict[str, OpDef] = {
    definition.full_name: definition
    for table in (ttir.OPS, ttnn.OPS, memory.OPS, textual.OPS, ttcore.OPS)
    for definition in table.values()
}

HOISTED = "ttnn.hoist_generic_via_d2m"
"""The attribute by which a text of TTNN marks an operation for the D2M compiler."""


def definition_of(name: str) -> OpDef | None:
    """Returns the definition of an operation by its full name; None if it is not defined."""
    return DEFINITIONS.get(name)


def ttnn_definition(name: str) -> TtnnOp | None:
    """Returns the definition of an operation of TTNN by its full name; None if it is not defined."""
    definition = DEFINITIONS.get(name)
    return definition if isinstance(definition, TtnnOp) else None


def has_trait(name: str, trait: Trait) -> bool:
    """Returns True if an operation has a trait.

    >>> has_trait("ttir.reshape", Trait.VIEW), has_trait("ttnn.add", Trait.VIEW)
    (True, False)
    """
    definition = DEFINITIONS.get(name)
    return definition is not None and trait in definition.traits
