"""Ops as texts write them: in forms of earlier versions, and with attributes that are none of their own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from jaxmesh.dialects.definitions import definition_of
from jaxmesh.dialects.op import OpDef, Trait
from jaxmesh.errors import UnsupportedError
from jaxmesh.frontends.mlir.attributes import entries
from jaxmesh.frontends.mlir.preprocess import PROPERTIES

FORMER_OPTIONS = frozenset({"memory_config", "layout", "dtype", "cq_id", "use_multicore"})
"""Attributes of earlier versions for where and how a result is stored, which its type says, and how it is computed."""

_OFTEN = frozenset({"operandSegmentSizes", "resultSegmentSizes", *FORMER_OPTIONS})
"""Attributes of any op."""
_BY_NAME = {Trait.MEMORY, Trait.CALL}


def definition_in_any_dialect(op: str) -> OpDef | None:
    """Returns the definition of an op; in older files TTNN has ops that only TTIR has now."""
    return definition_of(op) or definition_of(in_ttir(op))


def in_ttir(op: str) -> str:
    """Returns the name that an op of TTNN has in TTIR, in files where they have one."""
    return op.replace("ttnn.", "ttir.", 1) if op.startswith("ttnn.") else op


def activation_of(op: str, attributes: Mapping[str, Any]) -> str:
    """Returns the op that a product of TTNN applies to its result, empty for none."""
    name = attributes.get("activation") if op in ("ttnn.matmul", "ttnn.linear") else None
    if name is None:
        return ""
    definition = definition_of(f"ttnn.{name}")
    unary = definition is not None and definition.operands == (1, 1) and Trait.MEMORY not in definition.traits
    if definition is None or not unary or any(a.required for a in definition.attributes):
        raise UnsupportedError(f"activation = {name!r:.60} is not a function of one tensor; write it as an op.")
    return f"ttnn.{name}"


def dropped_attributes(definition: OpDef | None, attributes: Any) -> list[str]:
    """Returns the attributes beside an op's own that it does not define, which upstream carries along and never reads.

    Where a text has them all in one dictionary, as earlier ones have, an unknown one may be a misspelled one.
    """
    if not len(attributes) or definition is None or not definition.traits.isdisjoint(_BY_NAME):
        return []
    if PROPERTIES not in attributes and definition.has_attributes:
        return []
    former = definition.former.by_name.keys() if definition.former else frozenset[str]()
    known = _OFTEN | definition.by_name.keys() | definition.options | former
    names = [name for name, _ in entries(attributes)]
    return [name for name in names if name != PROPERTIES and "." not in name and name not in known]
