"""Calls: their bodies are built in place."""

from __future__ import annotations

from collections.abc import Sequence

from jaxmesh import jaxprs
from jaxmesh.errors import UnsupportedError
from jaxmesh.jaxprs import Eqn
from jaxmesh.ops.build import Builder, missing, rule
from jaxmesh.program import Value

_BODIES = ("jaxpr", "call_jaxpr", "call", "fun_jaxpr")
CALLS = (
    *jaxprs.CALLS,
    "composite",
    "custom_vjp_call_jaxpr",
    "custom_vmap_call",
)


@rule(*CALLS)
def _call(b: Builder, eqn: Eqn, xs: Sequence[Value]) -> Sequence[Value]:
    if eqn.params.get("newly_manual_axes"):
        raise missing(eqn, "it splits tensors over mesh axes, which mesh_shard says here")
    name = jaxprs.CALLS.get(eqn.primitive.name)
    names = _BODIES if name is None else (name,)
    body = next((eqn.params[n] for n in names if jaxprs.is_jaxpr(eqn.params.get(n))), None)
    if body is None:
        raise missing(eqn, "its body is kept in a form that is not known here")
    return b.jaxpr(body, xs)


@rule("platform_index")
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
