"""Ops as texts of earlier versions write them: under other names, and with attributes that they do not define."""

from __future__ import annotations

from typing import Any

from jaxmesh.dialects.definitions import definition_of
from jaxmesh.dialects.op import OpDef
from jaxmesh.frontends.mlir.attributes import entries
from jaxmesh.frontends.mlir.preprocess import PROPERTIES

FORMER_OPTIONS = frozenset({"memory_config", "layout", "dtype", "cq_id", "use_multicore"})
"""Attributes of earlier versions for where and how a result is stored, which its type says, and how it is computed."""

_OFTEN = frozenset({"operandSegmentSizes", "resultSegmentSizes", *FORMER_OPTIONS})
"""Attributes of any op."""


def current_name(op: str) -> str:
    """Returns the name of an op in TTIR if TTNN has it in texts of earlier versions alone; else its own name.

    >>> current_name("ttnn.floor_div"), current_name("ttnn.add")
    ('ttir.floor_div', 'ttnn.add')
    """
    if definition_of(op) is None and op.startswith("ttnn."):
        return op.replace("ttnn.", "ttir.", 1)
    return op


def dropped_attributes(definition: OpDef | None, attributes: Any) -> list[str]:
    """Returns the attributes beside an op's own that it does not define, which upstream carries along and never reads.

    Where a text has them all in one dictionary, as earlier ones have, an unknown one may be a misspelled one.
    """
    if not len(attributes) or definition is None or (PROPERTIES not in attributes and definition.by_name):
        return []
    former = definition.former.by_name.keys() if definition.former else frozenset[str]()
    known = _OFTEN | definition.by_name.keys() | definition.options | former
    names = [name for name, _ in entries(attributes)]
    return [name for name in names if name != PROPERTIES and "." not in name and name not in known]
