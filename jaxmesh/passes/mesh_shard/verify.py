"""What a lowered program promises: no TTIR operation at any depth, legal TTNN, operands on the right side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from jaxmesh.dialects.residency import Residency, has_transfer
from jaxmesh.dialects.ttir.mesh_shard import mesh_shard_p
from jaxmesh.dialects.ttnn.transfers import PRIMITIVES, distribute_tensor_p, resolve_traced_mapper
from jaxmesh.errors import ResidencyError, UnsupportedError, VerifyError
from jaxmesh.jaxprs import compat, source_locations, walk
from jaxmesh.jaxprs.compat import Eqn, Jaxpr
from jaxmesh.jaxprs.control_flow import Cond, While, control_flow
from jaxmesh.passes.mesh_shard.insert_transfers import Misplaced, misplaced_operands
from jaxmesh.sharding.distribution import resolve_composer


def verify_no_ttir(program: Jaxpr) -> None:
    """Raises a VerifyError when a `mesh_shard` is left at any depth."""
    for eqn in walk.all_eqns(program):
        if eqn.primitive is mesh_shard_p:
            raise VerifyError(
                f"the program still holds a mesh_shard ({source_locations.source_line(eqn)}); a TTNN-level program "
                "holds none at any depth. Lower it with passes/mesh_shard."
            )


def verify_ttnn(program: Jaxpr, inputs: Sequence[Residency], mesh: Mapping[str, int]) -> None:
    """Proves a lowered program.

    Raises:
      VerifyError: a `mesh_shard` is left, or a config breaks a rule of TTNN.
      UnsupportedError: a transfer in a branch or loop that devices take differently.
      ResidencyError: a distribute of a device tensor, an aggregate of a host tensor, or a device operation with a host
        operand that no distribute brought over.
    """
    verify_no_ttir(program)
    for eqn in walk.all_eqns(program):
        if eqn.primitive in PRIMITIVES:
            _verify_configs(eqn, mesh)
        else:
            _verify_in_step(eqn)
    for wrong in misplaced_operands(program, inputs, tuple(mesh.values())):
        raise ResidencyError(_message(wrong))


def _verify_configs(eqn: Eqn, mesh: Mapping[str, int]) -> None:
    if eqn.primitive is distribute_tensor_p:
        local = resolve_traced_mapper(eqn.params["mapper_config"], mesh, eqn.invars[0].aval.shape).local
    else:
        config = eqn.params["composer_config"]
        local = resolve_composer(config, tuple(mesh.values()), eqn.invars[0].aval.shape).full
    if local != eqn.outvars[0].aval.shape:
        raise VerifyError(
            f"{eqn.primitive.name}: the config gives shape {list(local)}, the result type says "
            f"{list(eqn.outvars[0].aval.shape)}."
        )


def _verify_in_step(eqn: Eqn) -> None:
    """A transfer needs every device, so none may stand where devices go different ways."""
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


def _message(wrong: Misplaced) -> str:
    return (
        f"{wrong.eqn.primitive.name} ({source_locations.source_line(wrong.eqn)}) needs operand {wrong.operand} on the "
        f"{wrong.needed.name.lower()}, but it is on the {wrong.found.name.lower()}; a distribute_tensor or "
        "aggregate_tensor must stand between."
    )
