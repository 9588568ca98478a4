"""Emits the bodies of calls in place."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from jaxmesh.dialects.definitions import definition_of, has_trait
from jaxmesh.dialects.imported_op import ImportedOp, group_operands
from jaxmesh.dialects.op import Trait
from jaxmesh.dialects.program import Shape, Value
from jaxmesh.errors import UnsupportedError
from jaxmesh.jaxprs import walk
from jaxmesh.jaxprs.compat import Eqn
from jaxmesh.jaxprs.control_flow import CALLS, IMPORTED_OP, control_flow
from jaxmesh.passes.flatten.builder import Builder, Rule, missing
from jaxmesh.passes.flatten.storage import storage_type
from jaxmesh.passes.rules import Rules

RULES: Rules[Rule] = Rules()

_UNREAD = ("composite", "custom_vmap_call")
"""Calls whose bodies no pass before this one looks into."""


@RULES.add(*(name for name in CALLS if name != IMPORTED_OP), *_UNREAD)
def _call(b: Builder, eqn: Eqn, xs: Sequence[Value]) -> Sequence[Value]:
    if eqn.params.get("newly_manual_axes"):
        raise missing(eqn, "it splits tensors over mesh axes; write that with mesh_shard")
    call = control_flow(eqn)
    bodies = walk.sub_jaxprs(eqn) if call is None else call.bodies
    if len(bodies) != 1:
        raise missing(eqn, "its body is kept in a form that is not known here")
    return b.jaxpr(bodies[0], xs)


_FEW = 8
"""The largest body that is evaluated for known numbers, in equations."""


@RULES.add(IMPORTED_OP)
def _imported_op(b: Builder, eqn: Eqn, xs: Sequence[Value]) -> Sequence[Value]:
    op, body = eqn.params["op"], eqn.params["jaxpr"]
    assert isinstance(op, ImportedOp)
    name = _name(b, op)
    if name is None:
        return b.jaxpr(body, xs)
    types = [storage_type(v.aval) for v in eqn.outvars]
    results = b.append_verbatim(name, group_operands(op.segments, xs), types, _attributes(op, types[0]))
    if len(body.eqns) <= _FEW and all(x in b.known for x in xs):
        # Operations without readers are removed later.
        for result, number in zip(results, b.jaxpr(body, xs), strict=True):
            b.copy_known(result, number)
    return results


def _name(b: Builder, op: ImportedOp) -> str | None:
    """Returns the name of an imported operation; None if it is decomposed."""
    definition = None if op.name is None else definition_of(f"ttir.{op.name}")
    overwrites = definition is not None and definition.overwritten is not None
    if not b.options.keep_imported_ops or (overwrites and not b.options.in_place):
        return None
    if b.level == "ttnn" and op.ttnn is not None:
        return f"ttnn.{op.ttnn}"
    splat = op.name == "constant" and op.attributes["value"].size == 1
    decomposed = b.level == "ttnn" and (splat or has_trait(f"ttir.{op.name}", Trait.DECOMPOSED_FOR_TTNN))
    return None if op.name is None or decomposed else f"ttir.{op.name}"


def _attributes(op: ImportedOp, kind: tuple[Shape, Any]) -> Mapping[str, Any]:
    """Returns the attributes of an imported operation, the elements of a constant in the shape of its result."""
    shape, dtype = kind
    if op.name == "constant":
        value = op.attributes["value"].astype(dtype, copy=False)
        return op.attributes | {"value": np.broadcast_to(value.reshape(()), shape) if value.size == 1 else value}
    return op.attributes


@RULES.add("platform_index")
def _platform_index(b: Builder, eqn: Eqn, xs: Sequence[Value]) -> Value:
    """Selects the default of `platform_dependent`, because no platform that it names is Tenstorrent."""
    platforms = eqn.params["platforms"]
    if None not in platforms:
        named = ", ".join(p for group in platforms for p in group)
        raise UnsupportedError(
            f"platform_dependent ({b.user_line(eqn)}) has branches for {named} and no default; the program is "
            "printed for another platform. Give it a default."
        )
    shape, dtype = b.result(eqn)
    return b.full(shape, platforms.index(None), dtype)
