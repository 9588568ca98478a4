"""Checks a lowered program: no TTIR operation at any depth, no transfer that some devices leave out."""

from __future__ import annotations

from jaxmesh.dialects.residency import has_transfer
from jaxmesh.dialects.ttir.mesh_shard import mesh_shard_p
from jaxmesh.errors import UnsupportedError, VerifyError
from jaxmesh.jaxprs import compat, source_locations, walk
from jaxmesh.jaxprs.compat import Eqn, Jaxpr
from jaxmesh.jaxprs.control_flow import Cond, While, control_flow


def verify_ttnn(program: Jaxpr) -> None:
    """Checks a lowered program.

    Raises:
      VerifyError: a `mesh_shard` is left.
      UnsupportedError: a transfer in a branch or loop that devices take differently.
    """
    for eqn in walk.all_eqns(program):
        if eqn.primitive is mesh_shard_p:
            raise VerifyError(
                f"the program still holds a mesh_shard ({source_locations.source_line(eqn)}); a TTNN-level program "
                "holds none at any depth. Lower it with passes/mesh_shard."
            )
        _verify_in_step(eqn)


def _verify_in_step(eqn: Eqn) -> None:
    """Checks that no transfer, which needs every device, is in a loop or branch that devices take differently."""
    flow = control_flow(eqn)
    if not isinstance(flow, While | Cond):
        return
    decides = flow.predicate(eqn)
    varying = compat.varying_axes(decides)
    if varying and any(has_transfer(b) for b in flow.bodies):
        raise UnsupportedError(
            f"{eqn.primitive.name} ({source_locations.source_line(eqn)}) is decided by "
            f"{compat.describe(decides)}, which varies over mesh axis {', '.join(map(repr, sorted(varying)))}, but a "
            "body distributes or aggregates a tensor; every device must take part in a transfer. Reduce the predicate "
            "over the axis, or move the transfer out."
        )
