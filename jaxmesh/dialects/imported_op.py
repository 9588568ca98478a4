"""Ops imported from a text: one equation each, which holds the op of the text and a jaxpr of its meaning.

The builder of flat programs prints the op; everything else takes the equation for a call of the jaxpr.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from jaxmesh.dialects.op import ROWS
from jaxmesh.dialects.ttnn.op import TTNN
from jaxmesh.jaxprs import compat
from jaxmesh.jaxprs.compat import Jaxpr
from jaxmesh.jaxprs.control_flow import IMPORTED_OP

_SEGMENTS = ("operandSegmentSizes", "resultSegmentSizes")
_MEANING_ONLY = frozenset({
    "mesh_shard", "all_gather", "all_reduce", "all_reduce_async", "reduce_scatter", "mesh_partition",
    "collective_permute", "all_to_all", "distributed_rms_norm", "distributed_layer_norm",
    "point_to_point", "assign", "empty", "get_dimension_size",
})  # fmt: skip
"""Ops of which only the meaning is kept: a pass reads or writes their equations, or the types give their result."""

_IMAGES = frozenset({"conv2d", "conv_transpose2d"})
"""Ops of TTNN that take the device as an operand beside tensors."""


@dataclass(frozen=True, slots=True, eq=False)
class ImportedOp:
    """What a text contains of one op, or of several equal ones.

    Attributes:
      name: the op of TTIR; None if TTIR has none of the same meaning.
      ttnn: the op of TTNN, if the text has one of TTNN.
      attributes: as Python values.
      segments: how many operands each operand group has, if the text has them.
    """

    name: str | None
    ttnn: str | None
    attributes: dict[str, Any]
    segments: Sequence[int] | None = None


def group_operands(sizes: Sequence[int] | None, operands: Sequence[int]) -> list[int | None]:
    """Operands by operand group, None for a group without one.

    Args:
      sizes: how many operands each group has, if the text has them.
      operands: those that are there.

    >>> group_operands((1, 0, 1), [7, 8])
    [7, None, 8]
    """
    # The sizes may still count the destination of the older style.
    if sizes is not None and sum(sizes) == len(operands) + 1:
        sizes = sizes[:-1]
    if sizes is None or sum(sizes) != len(operands) or max(sizes, default=0) > 1:
        return list(operands)
    rest = iter(operands)
    return [next(rest) if n else None for n in sizes]


imported_op_p = compat.unlowered_primitive(IMPORTED_OP)
imported_op_p.multiple_results = True


@imported_op_p.def_abstract_eval
def _infer_types(*operands: Any, jaxpr: Jaxpr, op: ImportedOp) -> list[Any]:
    return list(jaxpr.out_avals)


def imported_op(dialect: str, name: str, attributes: Mapping[str, Any]) -> ImportedOp | None:
    """Describes an op of a text; None if only its meaning is kept.

    Args:
      dialect: `ttir` or `ttnn`.
      name: of the op, without the dialect.
      attributes: as Python values.
    """
    row, given = ROWS.get(name), dict(attributes)
    own = TTNN.get(name) if dialect == "ttnn" else None
    if own is not None:
        row = ROWS[name] if name == "arange" else next((r for r in ROWS.values() if r.meaning is own.row.meaning), None)
        # An attribute that is left out has TTNN's default.
        given = {a.name: a.default for a in own.row.attributes if a.default is not None} | given
    kept = {k: v for k, v in given.items() if k not in _SEGMENTS and "." not in k}
    upper = None if row is None or not {a.name for a in row.attributes}.issuperset(kept) else row.name
    # An op that TTIR has too is made, and reshaped, where it is needed.
    lower = None if own is None or (own.on_device and name not in _IMAGES) or name == "reshape" else name
    if not _MEANING_ONLY.isdisjoint((name, upper)) or (upper is None and lower is None):
        return None
    return ImportedOp(upper, lower, kept, attributes.get("operandSegmentSizes"))
