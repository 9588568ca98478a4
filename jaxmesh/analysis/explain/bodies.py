"""The bodies that an equation runs: the residencies of their inputs, and how often they run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from jaxmesh.dialects.residency import HOST, Residency
from jaxmesh.jaxprs import control_flow, walk
from jaxmesh.jaxprs.compat import Eqn, Jaxpr
from jaxmesh.jaxprs.control_flow import Call, Cond, Scan, While


@dataclass(frozen=True, slots=True)
class Body:
    """One body, by its name in a path, with the residencies of its inputs.

    Attributes:
      times: how often it runs each time the equation does; None if that is not known statically.
      conditional: True if it may not run at all.
      inline: True if the equation means nothing but this body.
    """

    label: str
    jaxpr: Jaxpr
    inputs: tuple[Residency, ...]
    times: int | None = 1
    conditional: bool = False
    inline: bool = False


_LABELS = {**dict.fromkeys(control_flow.REMAT, "remat"), "pjit": "jit"}
"""The labels of primitives whose names differ between versions of JAX."""


def bodies(eqn: Eqn, operands: Sequence[Residency], results: Sequence[Residency]) -> Iterator[Body]:
    """Yields the bodies of an equation, from the residencies of its operands and its results."""
    name = str(eqn.primitive.name)
    match control_flow.control_flow(eqn):
        case Call(body):
            label, called = _LABELS.get(name, name), eqn.params.get("name")
            label = f"{label} {called}" if isinstance(called, str) else label
            yield Body(label, body, tuple(operands), inline=name in control_flow.INLINE)
        case Scan() as scan:
            consts, _, xs = scan.split(operands)
            # The carry lives where it leaves the loop.
            inputs = (*consts, *scan.split_results(results)[0], *xs)
            yield Body(f"scan of {scan.length}", scan.body, inputs, int(scan.length))
        case While() as loop:
            cond_consts, body_consts, _ = loop.split(operands)
            yield Body("test of while", loop.cond, (*cond_consts, *results), None)
            yield Body("while", loop.body, (*body_consts, *results), None)
        case Cond(branches):
            for i, branch in enumerate(branches):
                yield Body(f"branch {i} of {len(branches)}", branch, tuple(operands[1:]), conditional=True)
        case None:
            for inner in walk.sub_jaxprs(eqn):
                yield Body(name, inner, (HOST,) * len(walk.open_jaxpr(inner).invars), None)
