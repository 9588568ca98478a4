"""Emits the bodies of calls in place."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from jaxmesh.dialects.imported_op import NAME, Said
from jaxmesh.dialects.program import Shape, Value
from jaxmesh.errors import UnsupportedError
from jaxmesh.jaxprs import walk
from jaxmesh.jaxprs.compat import Eqn
from jaxmesh.jaxprs.control_flow import CALLS, control_flow
from jaxmesh.passes.flatten.builder import Builder, missing, rule
from jaxmesh.passes.flatten.storage import storage_type

_UNREAD = ("composite", "custom_vmap_call")
"""Calls whose bodies no pass before this one looks into."""


@rule(*(name for name in CALLS if name != NAME), *_UNREAD)
def _call(b: Builder, eqn: Eqn, xs: Sequence[Value]) -> Sequence[Value]:
    if eqn.params.get("newly_manual_axes"):
        raise missing(eqn, "it splits tensors over mesh axes, which mesh_shard says here")
    call = control_flow(eqn)
    bodies = walk.sub_jaxprs(eqn) if call is None else call.bodies
    if len(bodies) != 1:
        raise missing(eqn, "its body is kept in a form that is not known here")
    return b.jaxpr(bodies[0], xs)


_FEW = 8
"""The largest number of equations of a body that is searched for compile-time values."""
_DECOMPOSED = frozenset({"gather", "dot_general", "convolution", "slice_dynamic"})
"""Ops without a counterpart in TTNN; their decomposition is shorter than any rewrite of them."""


@rule(NAME)
def _said(b: Builder, eqn: Eqn, xs: Sequence[Value]) -> Sequence[Value]:
    """Emits an imported operation."""
    said, body = eqn.params["said"], eqn.params["jaxpr"]
    assert isinstance(said, Said)
    name = _name(b, said)
    if name is None:
        return b.jaxpr(body, xs)
    types = [storage_type(v.aval) for v in eqn.outvars]
    results = b.kept(name, said.placed(xs), types, _attributes(said, types[0]))
    if len(body.eqns) <= _FEW and all(x in b.known for x in xs):
        # Operations without readers are removed later.
        for result, number in zip(results, b.jaxpr(body, xs), strict=True):
            b.alike(result, number)
    return results


def _name(b: Builder, said: Said) -> str | None:
    """Returns the name of the operation to print; None if it is decomposed."""
    if not b.options.said:
        return None
    if b.level == "ttnn" and said.ttnn is not None:
        return f"ttnn.{said.ttnn}"
    splat = said.name == "constant" and said.attributes["value"].size == 1
    apart = b.level == "ttnn" and (splat or said.name in _DECOMPOSED)
    return None if said.name is None or apart else f"ttir.{said.name}"


def _attributes(said: Said, kind: tuple[Shape, Any]) -> Mapping[str, Any]:
    """Returns the attributes of an imported operation, in the one form that later passes read."""
    shape, dtype = kind
    if said.name == "constant":
        value = said.attributes["value"].astype(dtype, copy=False)
        return said.attributes | {"value": np.broadcast_to(value.reshape(()), shape) if value.size == 1 else value}
    return said.attributes


@rule("platform_index")
def _platform_index(b: Builder, eqn: Eqn, xs: Sequence[Value]) -> Value:
    """Selects the default of `platform_dependent`, because no platform that it names is Tenstorrent."""
    platforms = eqn.params["platforms"]
    if None not in platforms:
        named = ", ".join(p for group in platforms for p in group)
        raise UnsupportedError(
            f"platform_dependent ({b.place(eqn)}) has branches for {named} and no default; the program is "
            "printed for another platform. Give it a default."
        )
    shape, dtype = b.result(eqn)
    return b.full(shape, platforms.index(None), dtype)
