"""The bodies that an equation runs, with their residencies and numbers of iterations."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from jaxmesh.dialects.residency import HOST, ResidencyMap
from jaxmesh.jaxprs import control_flow, walk
from jaxmesh.jaxprs.compat import Eqn, Jaxpr
from jaxmesh.jaxprs.control_flow import Call, Cond, Scan, While


@dataclass(frozen=True, slots=True)
class EquationBody:
    """One body with its label in a path and the residencies of its values.

    Attributes:
      times: the number of its executions per execution of the equation; None if not known statically.
      conditional: True if it may not run at all.
      inline: True if the equation means nothing but this body.
    """

    label: str
    residency: ResidencyMap
    times: int | None = 1
    conditional: bool = False
    inline: bool = False

    @property
    def jaxpr(self) -> Jaxpr:
        """The jaxpr of the body."""
        return self.residency.program


def bodies(eqn: Eqn, residency: ResidencyMap) -> Iterator[EquationBody]:
    """Yields the bodies of an equation of a program with the given residencies."""
    inner = residency.bodies(eqn)
    match control_flow.control_flow(eqn):
        case Call(kind=kind):
            called = eqn.params.get("name")
            label = f"{kind} {called}" if isinstance(called, str) else kind
            yield EquationBody(label, inner[0], inline=kind in control_flow.INLINE)
        case Scan() as scan:
            yield EquationBody(f"scan of {scan.length}", inner[0], int(scan.length))
        case While():
            yield EquationBody("test of while", inner[0], None)
            yield EquationBody("while", inner[1], None)
        case Cond():
            for i, branch in enumerate(inner):
                yield EquationBody(f"branch {i} of {len(inner)}", branch, conditional=True)
        case None:
            for jaxpr in walk.sub_jaxprs(eqn):
                inputs = (HOST,) * len(walk.open_jaxpr(jaxpr).invars)
                yield EquationBody(str(eqn.primitive.name), residency.body(jaxpr, inputs), None)
