"""The bodies that an equation runs: where their inputs live, and how often they run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from jaxmesh.dialects.residency import HOST, Residency
from jaxmesh.jaxprs import control_flow, walk
from jaxmesh.jaxprs.compat import Eqn, Jaxpr


@dataclass(frozen=True, slots=True)
class Body:
    """One body.

    Attributes:
      label: what a path calls it.
      jaxpr: it.
      places: where its inputs live.
      times: how often it runs each time the equation does; None if that is not known before.
      conditional: whether it may not run at all.
      inline: whether it means nothing but itself.
    """

    label: str
    jaxpr: Jaxpr
    places: tuple[Residency, ...]
    times: int | None = 1
    conditional: bool = False
    inline: bool = False


_LABELS = {"remat2": "remat", "checkpoint": "remat", "pjit": "jit"}
"""Of primitives whose names tell versions of JAX apart."""


def bodies(eqn: Eqn, operands: Sequence[Residency], results: Sequence[Residency]) -> Iterator[Body]:
    """The bodies of an equation, from where its operands and its results live."""
    name, params = eqn.primitive.name, eqn.params
    if name in control_flow.CALLS:
        said = _LABELS[name] if name in _LABELS else str(name)
        said = f"{said} {params['name']}" if isinstance(params.get("name"), str) else said
        yield Body(said, params[control_flow.CALLS[name]], tuple(operands), inline=name in control_flow.INLINE)
    elif name == "scan":
        consts, carry = control_flow.scan_arity(params)
        # What a loop carries lives where it leaves the loop.
        places = (*operands[:consts], *results[:carry], *operands[consts + carry :])
        yield Body(f"scan of {params['length']}", params["jaxpr"], places, int(params["length"]))
    elif name == "while":
        test, step = params["cond_nconsts"], params["body_nconsts"]
        yield Body("test of while", params["cond_jaxpr"], (*operands[:test], *results), None)
        yield Body("while", params["body_jaxpr"], (*operands[test : test + step], *results), None)
    elif name == "cond":
        for i, branch in enumerate(params["branches"]):
            yield Body(f"branch {i} of {len(params['branches'])}", branch, tuple(operands[1:]), conditional=True)
    else:
        for inner in walk.sub_jaxprs(eqn):
            yield Body(name, inner, (HOST,) * len(walk.open_jaxpr(inner).invars), None)
