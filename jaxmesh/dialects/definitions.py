"""Looks up operations of both dialects by full name, such as `ttnn.add`."""

from __future__ import annotations

from collections.abc import Mapping

from jaxmesh.dialects import ttir, ttnn
from jaxmesh.dialects.op import OpDef, Trait
from jaxmesh.dialects.ttnn.memory import MEMORY_OPS

_TRAITS: Mapping[str, frozenset[Trait]] = {
    **{f"ttir.{name}": op.traits for name, op in ttir.OPS.items()},
    **{f"ttnn.{name}": op.definition.traits for name, op in ttnn.OPS.items()},
    **{f"ttnn.{name}": op.traits for name, op in MEMORY_OPS.items()},
}


def definition_of(name: str) -> OpDef | None:
    """Returns the definition of an operation; None if there is none."""
    dialect, _, short = name.partition(".")
    if dialect == "ttir":
        return ttir.OPS.get(short)
    return ttnn.OPS[short].definition if dialect == "ttnn" and short in ttnn.OPS else None


def has_trait(name: str, trait: Trait) -> bool:
    """Returns True if an operation has a trait.

    >>> has_trait("ttir.reshape", Trait.VIEW), has_trait("ttnn.add", Trait.VIEW)
    (True, False)
    """
    return trait in _TRAITS.get(name, ())
