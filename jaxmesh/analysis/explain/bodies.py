"""The bodies that an equation runs: where their inputs live, and how often they run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from jaxmesh.dialects.residency import HOST, Residency
from jaxmesh.jaxprs import walk
from jaxmesh.jaxprs.compat import Eqn, Jaxpr
from jaxmesh.jaxprs.control_flow import INLINE, Call, Cond, Scan, While, control_flow


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


def bodies(eqn: Eqn, operands: Sequence[Residency], results: Sequence[Residency]) -> Iterator[Body]:
    """The bodies of an equation, from where its operands and its results live."""
    name = eqn.primitive.name
    match control_flow(eqn):
        case Call() as call:
            function = eqn.params.get("name")
            label = f"{call.kind} {function}" if isinstance(function, str) else call.kind
            yield Body(label, call.body, tuple(operands), inline=name in INLINE)
        case Scan() as loop:
            consts, _, xs = loop.split(operands)
            # What a loop carries lives where it leaves the loop.
            carry, _ = loop.split_results(results)
            yield Body(f"scan of {loop.length}", loop.body, (*consts, *carry, *xs), loop.length)
        case While() as loop:
            test, step, _ = loop.split(operands)
            yield Body("test of while", loop.cond, (*test, *results), None)
            yield Body("while", loop.body, (*step, *results), None)
        case Cond() as choice:
            for i, branch in enumerate(choice.branches):
                yield Body(f"branch {i} of {len(choice.branches)}", branch, tuple(operands[1:]), conditional=True)
        case None:
            for inner in walk.sub_jaxprs(eqn):
                yield Body(name, inner, (HOST,) * len(walk.open_jaxpr(inner).invars), None)
