"""Ops imported from a text: one equation each, which holds the op of the text and a jaxpr of its meaning.

The builder of flat programs prints the op; everything else takes the equation for a call of the jaxpr.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax

from jaxmesh.dialects.attributes import Attributes
from jaxmesh.dialects.definitions import DEFINITIONS, definition_of, ttnn_definition
from jaxmesh.dialects.op import OpDef, Trait
from jaxmesh.jaxprs import compat
from jaxmesh.jaxprs.compat import Jaxpr
from jaxmesh.jaxprs.control_flow import IMPORTED_OP
from jaxmesh.jaxprs.rewrite import inline_calls


@dataclass(frozen=True, slots=True, eq=False)
class ImportedOp:
    """An op of a text, or several equal ones.

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
    """Returns the operands by operand group of these sizes, None for an empty group.

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
def _infer_types(*operands: object, jaxpr: Jaxpr, op: ImportedOp) -> list[Any]:
    return list(jaxpr.out_avals)


def decompose(program: Jaxpr) -> Jaxpr:
    """Replaces each imported op by the equations of its meaning; returns the same object if there is none."""
    return inline_calls(program, names={IMPORTED_OP})


def _is_complete(definition: OpDef, attributes: Attributes) -> bool:
    """Returns True if an op has these attributes, and needs no others."""
    needed = {a.name for a in definition.attributes if a.required}
    return needed <= attributes.keys() <= definition.by_name.keys()


def _is_printed(definition: OpDef, attributes: Attributes, operands: Sequence[jax.Array]) -> bool:
    """Returns False for a form of an op that no pass knows, or that only later versions of upstream have."""
    name = definition.name
    if name == "scaled_dot_product_attention":
        return len(operands) < 5 and attributes.get("sliding_window_size") is None
    later = (a for a in definition.attributes if a.later and definition.meaning is not None)
    if any(not a.is_blank(attributes.get(a.name)) for a in later):
        return False
    return name != "argmax" or len(attributes.get("dim_arg") or ()) in (0, 1, operands[0].ndim)


def imported_op(dialect: str, name: str, attributes: Attributes, operands: Sequence[jax.Array]) -> ImportedOp | None:
    """Describes an op of a text, named without its dialect, on tensors; None if only its meaning is kept."""
    if not _is_printed(DEFINITIONS[f"{dialect}.{name}"], attributes, operands):
        return None
    above, given = definition_of(f"ttir.{name}"), dict(attributes)
    own = ttnn_definition(f"ttnn.{name}") if dialect == "ttnn" else None
    segments = attributes.get("operandSegmentSizes")
    if own is not None and Trait.TEXTUAL in own.traits:
        return ImportedOp(None, name, own.kept(given), segments)
    if own is not None:
        above = definition_of(f"ttir.{'arange' if name == 'arange' else own.like}")
        own = None if Trait.NOT_UPSTREAM in own.traits else own
    if above is not None and Trait.NOT_UPSTREAM in above.traits:
        above = None
    if own is not None:
        # An attribute that is left out has TTNN's default.
        given = {a.name: a.default for a in own.attributes if a.default is not None} | given
    known = [d for d in (above, own) if d is not None]
    kept = given
    for definition in known:
        kept = definition.kept(kept)
    # An op that TTIR has too is created, and reshaped, where it is needed.
    creates = own is not None and own.on_device and own.operands == (0, 0)
    lower = None if own is None or creates or Trait.VIEW in own.traits else name
    if above is not None and lower is None:
        kept = {**above.assumptions, **kept}
    upper = None if above is None or not _is_complete(above, kept) else above.name
    if any(Trait.DECOMPOSED in d.traits for d in known) or (upper is None and lower is None):
        return None
    return ImportedOp(upper, lower, kept, segments)
