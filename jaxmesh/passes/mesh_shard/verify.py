"""Checks a lowered program: no TTIR operation at any depth, legal configs, operands in the right memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from jaxmesh.dialects.residency import DEVICE, FREE, HOST, ON_HOST, Residency, ResidencyMap, has_transfer
from jaxmesh.dialects.ttir.mesh_shard import mesh_shard_p
from jaxmesh.dialects.ttnn.transfers import PRIMITIVES, aggregate_tensor_p, distribute_tensor_p, resolve_traced_mapper
from jaxmesh.errors import ResidencyError, UnsupportedError, VerifyError
from jaxmesh.jaxprs import compat, source_locations, walk
from jaxmesh.jaxprs.compat import Eqn, Jaxpr
from jaxmesh.jaxprs.control_flow import LOOPS, Cond, Scan, While, control_flow, is_imported_op
from jaxmesh.sharding.distribution import resolve_composer


def verify_ttnn(program: Jaxpr, inputs: Sequence[Residency], mesh: Mapping[str, int]) -> ResidencyMap:
    """Checks a lowered program.

    Returns:
      The residencies of the program.

    Raises:
      VerifyError: a `mesh_shard` is left, or a config breaks a rule of TTNN.
      UnsupportedError: a transfer in a branch or loop that devices take differently.
      ResidencyError: a distribute of a device tensor, an aggregate of a host tensor, or a device operation with a host
        operand that no distribute brought over.
    """
    for eqn in walk.all_eqns(program):
        if eqn.primitive is mesh_shard_p:
            raise VerifyError(
                f"the program still holds a mesh_shard ({source_locations.source_line(eqn)}); a TTNN-level program "
                "holds none at any depth. Lower it with passes/mesh_shard."
            )
        if eqn.primitive in PRIMITIVES:
            _verify_configs(eqn, mesh)
        elif eqn.primitive.name in LOOPS:
            _verify_in_step(eqn)
    residencies = ResidencyMap(program, inputs)
    _ResidencyVerifier().body(residencies, residencies.results, None)
    return residencies


def _verify_configs(eqn: Eqn, mesh: Mapping[str, int]) -> None:
    if eqn.primitive is distribute_tensor_p:
        local = resolve_traced_mapper(eqn.params["mapper_config"], mesh, eqn.invars[0].aval.shape).local
    else:
        config = eqn.params["composer_config"]
        local = resolve_composer(config, tuple(mesh.values()), eqn.invars[0].aval.shape).full
    if local != eqn.outvars[0].aval.shape:
        raise VerifyError(
            f"{eqn.primitive.name}: the config gives shape {list(local)}, the result type has "
            f"{list(eqn.outvars[0].aval.shape)}."
        )


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


class _ResidencyVerifier:
    """Checks that every operand is in the memory that its equation needs, at every depth."""

    def __init__(self) -> None:
        self._verified = walk.Memo[None]()

    def body(self, body: ResidencyMap, needed: Sequence[Residency], caller: Eqn) -> None:
        """Checks a body whose `caller` needs its results in these memories."""
        self._verified.get(body.program, lambda: self._body(body, needed, caller), body.inputs, tuple(needed))

    def _body(self, body: ResidencyMap, needed: Sequence[Residency], caller: Eqn) -> None:
        opened = walk.open_jaxpr(body.program)
        for eqn in opened.eqns:
            self._eqn(body, eqn)
        for number, (found, need) in enumerate(zip(body.results, needed, strict=True)):
            _check(opened.eqns[-1] if opened.eqns else caller, number, found, need)

    def _eqn(self, body: ResidencyMap, eqn: Eqn) -> None:
        values = body.values
        operands = [FREE if isinstance(a, compat.Literal) else values[a] for a in eqn.invars]
        flow = control_flow(eqn)
        if flow is None and eqn.primitive not in PRIMITIVES and eqn.primitive.name not in ON_HOST:
            # The common case. All results of an operation have the same residency.
            if HOST in operands and eqn.outvars and values[eqn.outvars[0]] is DEVICE:
                _check_operands(eqn, operands, [DEVICE] * len(operands))
            return
        outs = [values[v] for v in eqn.outvars]
        if is_imported_op(eqn) and all(r is not HOST for r in outs):
            # One op of TTIR, whatever its meaning rematerialises.
            _check_operands(eqn, operands, [max(outs or operands, default=HOST)] * len(operands))
            return
        bodies = body.bodies(eqn)
        if not bodies:
            moving = [j for j in walk.sub_jaxprs(eqn) if has_transfer(j)]
            bodies = [body.body(j, (HOST,) * len(walk.open_jaxpr(j).invars)) for j in moving]
        if eqn.primitive is aggregate_tensor_p:
            # Only a distribute puts a rematerialised value on the devices for a transfer to read.
            operands = [max(HOST, r) for r in operands]
        _check_operands(eqn, operands, _needed_residencies(eqn, operands, bodies))
        match flow:
            case Scan() as loop:
                carry, _ = loop.split_results(outs)
                self.body(bodies[0], (*carry, *bodies[0].results[len(carry) :]), eqn)
            case While():
                test, step = bodies
                self.body(test, test.results, eqn)
                self.body(step, outs, eqn)
            case Cond():
                for branch in bodies:
                    self.body(branch, outs, eqn)
            case _:
                for inner in bodies:
                    self.body(inner, inner.results, eqn)


def _needed_residencies(eqn: Eqn, operands: Sequence[Residency], bodies: Sequence[ResidencyMap]) -> Sequence[Residency]:
    """Returns the memory that an equation needs each operand in; the present one if either will do."""
    if eqn.primitive is distribute_tensor_p:
        return (HOST,)
    if eqn.primitive is aggregate_tensor_p:
        return (DEVICE,)
    flow = control_flow(eqn)
    match flow:
        case Scan():
            return bodies[0].inputs
        case While() | Cond() if compat.varying_axes(flow.predicate(eqn)):
            return (DEVICE,) * len(operands)
        case While():
            test, step = bodies
            return (*test.inputs[: flow.cond_consts], *step.inputs)
        case _:
            return operands


def _check_operands(eqn: Eqn, operands: Sequence[Residency], needed: Sequence[Residency]) -> None:
    for number, (found, need) in enumerate(zip(operands, needed, strict=True)):
        _check(eqn, number, found, need)


def _check(eqn: Eqn, number: int, found: Residency, need: Residency) -> None:
    if {found, need} == {HOST, DEVICE}:
        raise ResidencyError(
            f"{eqn.primitive.name} ({source_locations.source_line(eqn)}) needs operand {number} on the "
            f"{need.name.lower()}, but it is on the {found.name.lower()}; a distribute_tensor or aggregate_tensor must "
            "stand between."
        )
