"""Operations that were read from a text: one equation each, which holds what the text says beside what it means.

Printed again they are the operations that they were. Everything else takes such an equation for a call of its body.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from jaxmesh.dialects import ttir, ttnn
from jaxmesh.dialects.op import Trait
from jaxmesh.jaxprs import compat
from jaxmesh.jaxprs.compat import Jaxpr

NAME = "ttir_op"
_SEGMENTS = ("operandSegmentSizes", "resultSegmentSizes")


@dataclass(frozen=True, slots=True, eq=False)
class Said:
    """What a text says of one operation, or of several alike.

    Attributes:
      name: of the row of TTIR; None where TTIR has none that means the same.
      ttnn: of the row of TTNN, of an operation of TTNN.
      attributes: as they were written, as Python values.
      segments: how many operands stand in each of its places, where the text says so.
    """

    name: str | None
    ttnn: str | None
    attributes: dict[str, Any]
    segments: Sequence[int] | None = None

    def placed(self, operands: Sequence[int]) -> list[int | None]:
        """The operands by place, None for one that is left out."""
        return placed(self.segments, operands)


def placed(sizes: Sequence[int] | None, operands: Sequence[int]) -> list[int | None]:
    """Operands by place, None for one that is left out.

    Args:
      sizes: how many operands stand in each place, where the text says so.
      operands: those that are there.

    >>> placed((1, 0, 1), [7, 8])
    [7, None, 8]
    """
    # They may still count the destination of the older style.
    if sizes is not None and sum(sizes) == len(operands) + 1:
        sizes = sizes[:-1]
    if sizes is None or sum(sizes) != len(operands) or max(sizes, default=0) > 1:
        return list(operands)
    rest = iter(operands)
    return [next(rest) if n else None for n in sizes]


said_p = compat.unlowered_primitive(NAME)
said_p.multiple_results = True


@said_p.def_abstract_eval
def _typed(*operands: Any, jaxpr: Jaxpr, said: Said) -> list[Any]:
    return list(jaxpr.out_avals)


def said_of(dialect: str, name: str, attributes: Mapping[str, Any]) -> Said | None:
    """What a text says of an op; None where nothing but its meaning is kept.

    Args:
      dialect: `ttir` or `ttnn`.
      name: of the op, without the dialect.
      attributes: its own, as Python values.
    """
    row, given = ttir.OPS.get(name), dict(attributes)
    own = ttnn.OPS.get(name) if dialect == "ttnn" else None
    if own is not None:
        row = ttir.OPS.get("arange" if name == "arange" else own.like or "")
        # What is left unsaid is what TTNN takes for it.
        given = {a.name: a.default for a in own.definition.attributes if a.default is not None} | given
    kept = {k: v for k, v in given.items() if k not in _SEGMENTS and "." not in k}
    upper = None if row is None or not {a.name for a in row.attributes}.issuperset(kept) else row.name
    # What TTIR can say is made, and put into another shape, where it is needed.
    creates = own is not None and own.on_device and own.definition.operands == (0, 0)
    lower = None if own is None or creates or Trait.VIEW in own.definition.traits else name
    known = [d for d in (row, own.definition if own else None) if d is not None]
    if any(Trait.DECOMPOSED in d.traits for d in known) or (upper is None and lower is None):
        return None
    return Said(upper, lower, kept, attributes.get("operandSegmentSizes"))
