"""Calls: their bodies are built in place."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from jaxmesh.dialects.definitions import has_trait
from jaxmesh.dialects.imported_op import NAME, Said
from jaxmesh.dialects.op import Trait
from jaxmesh.dialects.program import Shape, Value
from jaxmesh.errors import UnsupportedError
from jaxmesh.jaxprs import walk
from jaxmesh.jaxprs.compat import Eqn
from jaxmesh.jaxprs.control_flow import CALLS, control_flow
from jaxmesh.passes.flatten.builder import Builder, Rule, missing
from jaxmesh.passes.flatten.storage import storage_type
from jaxmesh.passes.rules import Rules

RULES: Rules[Rule] = Rules()
"""By the name of the primitive."""

_UNREAD = ("composite", "custom_vmap_call")
"""Calls whose bodies no pass before this one looks into."""


@RULES.add(*(name for name in CALLS if name != NAME), *_UNREAD)
def _call(b: Builder, eqn: Eqn, xs: Sequence[Value]) -> Sequence[Value]:
    if eqn.params.get("newly_manual_axes"):
        raise missing(eqn, "it splits tensors over mesh axes, which mesh_shard says here")
    call = control_flow(eqn)
    bodies = walk.sub_jaxprs(eqn) if call is None else call.bodies
    if len(bodies) != 1:
        raise missing(eqn, "its body is kept in a form that is not known here")
    return b.jaxpr(bodies[0], xs)


_FEW = 8
"""The most equations of a body that is searched for known numbers."""


@RULES.add(NAME)
def _said(b: Builder, eqn: Eqn, xs: Sequence[Value]) -> Sequence[Value]:
    """An operation that was read from a text."""
    said, body = eqn.params["said"], eqn.params["jaxpr"]
    assert isinstance(said, Said)
    name = _name(b, said)
    if name is None:
        return b.jaxpr(body, xs)
    types = [storage_type(v.aval) for v in eqn.outvars]
    results = b.kept(name, said.placed(xs), types, _attributes(said, types[0]))
    if len(body.eqns) <= _FEW and all(x in b.known for x in xs):
        # What nothing reads is not printed.
        for result, number in zip(results, b.jaxpr(body, xs), strict=True):
            b.alike(result, number)
    return results


def _name(b: Builder, said: Said) -> str | None:
    """Returns the name of an imported operation; None if it is decomposed."""
    if not b.options.said:
        return None
    if b.level == "ttnn" and said.ttnn is not None:
        return f"ttnn.{said.ttnn}"
    splat = said.name == "constant" and said.attributes["value"].size == 1
    apart = b.level == "ttnn" and (splat or has_trait(f"ttir.{said.name}", Trait.DECOMPOSED_FOR_TTNN))
    return None if said.name is None or apart else f"ttir.{said.name}"


def _attributes(said: Said, kind: tuple[Shape, Any]) -> Mapping[str, Any]:
    """Returns the attributes of an imported operation in the form that other passes expect."""
    shape, dtype = kind
    if said.name == "constant":
        value = said.attributes["value"].astype(dtype, copy=False)
        return said.attributes | {"value": np.broadcast_to(value.reshape(()), shape) if value.size == 1 else value}
    return said.attributes


@RULES.add("platform_index")
def _platform_index(b: Builder, eqn: Eqn, xs: Sequence[Value]) -> Value:
    """Programs are for Tenstorrent: what `platform_dependent` has for the platforms it does not name."""
    platforms = eqn.params["platforms"]
    if None not in platforms:
        named = ", ".join(p for group in platforms for p in group)
        raise UnsupportedError(
            f"platform_dependent ({b.place(eqn)}) has branches for {named} and no default; the program is "
            "printed for another platform. Give it a default."
        )
    shape, dtype = b.result(eqn)
    return b.full(shape, platforms.index(None), dtype)
