"""Inserts the transfers that a program leaves implicit, at every depth.

After `mesh_shard` is lowered, an operation may still read a host tensor and a shard, a device tensor may be
distributed, and a loop may carry a value that starts on the host and continues on the devices. This pass inserts a
replicating distribute or an aggregate there: once per value, and outside of loops and calls whose body reads an input
on the devices alone. Every transfer is explicit afterwards.

The host computes on full tensors when a program runs. TTNN computes on the devices alone, so a program that is printed
is given a `Printed`, and gets the transfers of that work, too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from jaxmesh.dialects.residency import (
    DEVICE,
    FREE,
    HOST,
    ON_HOST,
    Residency,
    ResidencyMap,
    creation_residency,
    has_transfer,
    join,
    of_atom,
    of_constant,
    of_result,
)
from jaxmesh.dialects.ttnn.transfers import PRIMITIVES, aggregate_tensor_p, distribute_tensor_p
from jaxmesh.jaxprs import compat, remarks, source_locations, walk
from jaxmesh.jaxprs.compat import Atom, Eqn, Jaxpr, Var
from jaxmesh.jaxprs.control_flow import Call, Cond, Scan, While, control_flow, is_imported_op
from jaxmesh.jaxprs.rewrite import map_sub_jaxprs
from jaxmesh.passes.mesh_shard.lower_mesh_shard import reshard_locally
from jaxmesh.sharding.configs import MeshMapperConfig
from jaxmesh.sharding.shard_attributes import FIRST_DEVICE, replicate_mapper

Residencies = tuple[Residency, ...]
FILE = "jaxmesh/passes/mesh_shard/insert_transfers.py"


@dataclass(frozen=True, slots=True)
class _Body:
    """A body whose transfers are explicit.

    `distributed` are the inputs that the body itself distributes, `host_inputs` the inputs that it reads on the host.
    """

    jaxpr: Jaxpr
    outs: Residencies
    distributed: frozenset[int]
    host_inputs: frozenset[int]

    @property
    def hoistable(self) -> frozenset[int]:
        return self.distributed - self.host_inputs


@dataclass(frozen=True, slots=True)
class Printed:
    """The rules of a program that is printed for TTNN.

    Attributes:
      runs_on_host: returns True for an equation that runs on the host if its operands are there.
      results: the residency that each result must have.
    """

    runs_on_host: Callable[[Eqn], bool]
    results: Residencies


def insert_transfers(
    program: Jaxpr, inputs: Sequence[Residency], mesh: Mapping[str, int], printed: Printed | None = None
) -> Jaxpr:
    """Returns the program with explicit transfers; the same object if they are explicit already.

    Args:
      program: a jaxpr without `mesh_shard`.
      inputs: the residency of each argument.
      mesh: axis names and sizes.
      printed: the rules of a program that is printed; None of one that runs, whose host computes.

    Raises:
      MissingRuleError: a transfer inside a primitive without a rule.
    """
    needed = None if printed is None else printed.results
    return _Writer(tuple(mesh.values()), printed).body(program, tuple(inputs), needed).jaxpr


@dataclass(slots=True)
class _Scope:
    """One body while it is rewritten."""

    inputs: dict[Var, int]
    env: dict[Var, Residency]
    created: Residency
    on_device: dict[Var, Var] = field(default_factory=dict[Var, Var])
    on_host: dict[Atom, Var] = field(default_factory=dict[Atom, Var])
    eqns: list[Eqn] = field(default_factory=list[Eqn])
    distributed: set[int] = field(default_factory=set[int])
    host_inputs: set[int] = field(default_factory=set[int])

    def residency(self, atom: Atom) -> Residency:
        return of_atom(atom, self.env)

    def read_on_host(self, atom: Atom) -> None:
        if isinstance(atom, Var) and atom in self.inputs and self.env[atom] is HOST:
            self.host_inputs.add(self.inputs[atom])


class _Writer:
    def __init__(self, mesh: tuple[int, ...], printed: Printed | None) -> None:
        self.printed = printed
        self.replicate = {"mapper_config": copies(mesh)}
        self.memo = walk.Memo[_Body]()

    def body(
        self,
        jaxpr: Jaxpr,
        residencies: Residencies,
        needed: Residencies | None = None,
        caller: Eqn = None,
        created: Residency = HOST,
    ) -> _Body:
        """Rewrites one body; `needed` are the residencies in which its `caller` needs the results, FREE for any.

        A value created from no tensor has the residency `created`.
        """
        found = residencies, needed, created
        return self.memo.get(jaxpr, lambda: self._body(jaxpr, residencies, needed, caller, created), *found)

    def _body(
        self, jaxpr: Jaxpr, residencies: Residencies, needed: Residencies | None, caller: Eqn, created: Residency
    ) -> _Body:
        opened = walk.open_jaxpr(jaxpr)
        env = dict(zip(opened.invars, residencies, strict=True))
        # TTNN makes a constant where it is needed.
        env |= {v: of_constant(c, created) if self.printed is None else FREE for v, c in walk.constants(jaxpr).items()}
        scope = _Scope({v: i for i, v in enumerate(opened.invars)}, env, created)
        for eqn in opened.eqns:
            self._eqn(scope, eqn)
        outvars = list(opened.outvars)
        for i, atom in enumerate(outvars):
            need, last = FREE if needed is None else needed[i], opened.eqns[-1] if opened.eqns else caller
            if need is DEVICE and scope.residency(atom) is HOST:
                outvars[i] = self._distribute(scope, atom, last, f"the {caller.primitive.name} gives")
            elif need is HOST and scope.residency(atom) is DEVICE:
                outvars[i] = self._aggregate(scope, atom, last)
            else:
                scope.read_on_host(atom)
        outs = tuple(scope.residency(a) for a in outvars)
        new = walk.with_eqns(jaxpr, scope.eqns, outvars)
        return _Body(new, outs, frozenset(scope.distributed), frozenset(scope.host_inputs))

    # --- one transfer ---

    def _distribute(self, scope: _Scope, atom: Atom, like: Eqn, why: str = "") -> Atom:
        """Returns the device copy of a host value; inserts one replicating distribute, which all readers share."""
        if isinstance(atom, Var) and atom in scope.on_device:
            return scope.on_device[atom]
        scope.eqns.append(walk.new_eqn(distribute_tensor_p, [atom], self.replicate, like))
        (out,) = scope.eqns[-1].outvars
        if isinstance(atom, Var):
            scope.on_device[atom] = out
            if atom in scope.inputs and scope.env[atom] is HOST:
                scope.distributed.add(scope.inputs[atom])
        scope.env[out] = DEVICE
        needed = why or f"{like.primitive.name} needs"
        _note(out, f"the full host tensor that {needed} on the devices is copied to each of them", _DISTRIBUTED)
        return out

    def _aggregate(self, scope: _Scope, atom: Atom, like: Eqn) -> Atom:
        """Returns the host copy of a full device value, the copy of device 0; all readers share it."""
        if atom in scope.on_host:
            return scope.on_host[atom]
        scope.eqns.append(walk.new_eqn(aggregate_tensor_p, [atom], {"composer_config": FIRST_DEVICE}, like))
        (out,) = scope.eqns[-1].outvars
        scope.env[out], scope.on_host[atom] = HOST, out
        _note(out, f"the device tensor that {like.primitive.name} needs on the host is read from device 0", _AGGREGATED)
        return out

    def _reshard(self, scope: _Scope, eqn: Eqn) -> bool:
        """Replaces a distribute of a replicated device tensor by local slices; returns False if it cannot."""
        pieces = reshard_locally(eqn)
        # A slice starts at the coordinates of a device, and a program that is printed lacks them.
        if not pieces or (self.printed is not None and len(pieces) > 1):
            return False
        for made in pieces:
            scope.eqns.append(made)
            scope.env.update(dict.fromkeys(made.outvars, DEVICE))
        text = "each device keeps its own piece of the tensor that it holds whole"
        _note(eqn.outvars[0], text, _RESHARDED, "legalised")
        return True

    # --- one equation ---

    def _eqn(self, scope: _Scope, eqn: Eqn) -> None:
        flow = control_flow(eqn)
        match flow:
            case Call() if is_imported_op(eqn) and (self.printed or self._runs_in_one_memory(scope, eqn, flow)):
                self._operation(scope, eqn)
            case Call():
                self._call(scope, eqn, flow)
            case Scan():
                self._scan(scope, eqn, flow)
            case While():
                self._while(scope, eqn, flow)
            case Cond():
                self._cond(scope, eqn, flow)
            case None:
                moves = self.printed is None and any(map(has_transfer, walk.sub_jaxprs(eqn)))
                (self._on_host if moves else self._operation)(scope, eqn)

    def _runs_in_one_memory(self, scope: _Scope, eqn: Eqn, call: Call) -> bool:
        """Returns True if an imported op runs on the devices alone, or makes a tensor from nothing, wherever needed."""
        residencies = tuple(scope.residency(a) for a in eqn.invars)
        return not residencies or all(p is DEVICE for p in ResidencyMap(call.body, residencies).results)

    def _result(self, eqn: Eqn, residencies: Sequence[Residency], created: Residency) -> Residency:
        out = of_result(eqn, residencies, created)
        if self.printed is None or out is DEVICE or eqn.primitive in PRIMITIVES:
            return out
        return join(residencies) if self.printed.runs_on_host(eqn) else DEVICE

    def _operation(self, scope: _Scope, eqn: Eqn) -> None:
        env = scope.env
        residencies = [env[a] if isinstance(a, Var) else FREE for a in eqn.invars]
        out = self._result(eqn, residencies, scope.created)
        if HOST not in residencies and eqn.primitive not in PRIMITIVES:
            # The common case: no host operand.
            scope.eqns.append(eqn)
            for var in eqn.outvars:
                env[var] = out
            return
        invars = list(eqn.invars)
        if eqn.primitive is distribute_tensor_p:
            if residencies[0] is DEVICE:
                if self._reshard(scope, eqn):
                    return
                invars[0] = self._aggregate(scope, invars[0], eqn)
            scope.read_on_host(invars[0])
        elif eqn.primitive is aggregate_tensor_p:
            if residencies[0] is not DEVICE:
                invars[0] = self._distribute(scope, invars[0], eqn)
        else:
            for i, (atom, residency) in enumerate(zip(eqn.invars, residencies, strict=True)):
                if out is DEVICE and residency is HOST:
                    invars[i] = self._distribute(scope, atom, eqn)
                else:
                    scope.read_on_host(atom)
        self._append(scope, eqn, invars, [out] * len(eqn.outvars))

    def _on_host(self, scope: _Scope, eqn: Eqn) -> None:
        """Places an operation that holds bodies, such as a solver: its operands and results are on the host."""
        outs: list[Residency] = [scope.residency(a) for a in eqn.invars]

        def change(jaxpr: Jaxpr) -> Jaxpr:
            body = self.body(jaxpr, (HOST,) * len(walk.open_jaxpr(jaxpr).invars))
            outs.extend(body.outs)
            return body.jaxpr

        changed = map_sub_jaxprs(eqn, change)
        if eqn.primitive.name not in ON_HOST or DEVICE in outs:
            raise source_locations.missing_rule(eqn, "its body moves tensors between host and devices", FILE)
        for atom in eqn.invars:
            scope.read_on_host(atom)
        self._append(scope, changed, list(changed.invars), [HOST] * len(eqn.outvars))

    def _append(
        self, scope: _Scope, eqn: Eqn, invars: list[Atom], outs: Sequence[Residency], bodies: Sequence[Jaxpr] = ()
    ) -> None:
        flow = control_flow(eqn) if bodies else None
        if flow is not None and any(a is not b for a, b in zip(bodies, flow.bodies, strict=True)):
            eqn = flow.with_bodies(eqn, bodies)
        if any(a is not b for a, b in zip(invars, eqn.invars, strict=True)):
            eqn = eqn.replace(invars=invars)
        scope.eqns.append(eqn)
        scope.env.update(zip(eqn.outvars, outs, strict=True))

    def _operands(
        self, scope: _Scope, eqn: Eqn, residencies: Sequence[Residency], host_inputs: frozenset[int] | set[int]
    ) -> list[Atom]:
        """Returns the operands of a call; distributes operands that the body reads on the devices alone."""
        invars = list(eqn.invars)
        for i, (atom, residency) in enumerate(zip(eqn.invars, residencies, strict=True)):
            if residency is DEVICE and scope.residency(atom) is HOST:
                invars[i] = self._distribute(scope, atom, eqn)
                text = f"brought over once, before the {eqn.primitive.name}, not in its body"
                _note(invars[i], text, "a transfer that a body only makes of its input stands outside", "hoisted")
            elif i in host_inputs:
                scope.read_on_host(atom)
        return invars

    def _call(self, scope: _Scope, eqn: Eqn, call: Call) -> None:
        residencies = [scope.residency(a) for a in eqn.invars]
        body = self.body(call.body, tuple(residencies), created=scope.created)
        while moved := [i for i in body.hoistable if residencies[i] is HOST]:
            for i in moved:
                residencies[i] = DEVICE
            body = self.body(call.body, tuple(residencies), created=scope.created)
        invars = self._operands(scope, eqn, residencies, body.host_inputs)
        self._append(scope, eqn, invars, body.outs, [body.jaxpr])

    def _chosen(self, rows: Iterable[Residencies], flow: Scan | While | Cond) -> list[Residency]:
        """Returns where a loop or a choice has its results: in TTNN on the devices, if no body moves tensors."""
        moves = self.printed is not None and any(map(has_transfer, flow.bodies))
        return [r if self.printed is None or (moves and r is HOST) else DEVICE for r in map(join, rows)]

    def _scan(self, scope: _Scope, eqn: Eqn, scan: Scan) -> None:
        consts, carry = scan.num_consts, scan.num_carry
        loop = slice(consts, consts + carry)
        residencies = [scope.residency(a) for a in eqn.invars]
        # An unrolled loop slices its stacked inputs, and concatenates its stacked outputs.
        rows = FREE if self.printed is None else DEVICE
        residencies[loop.stop :] = [max(rows, r) for r in residencies[loop.stop :]]
        rest = (rows,) * (len(eqn.outvars) - carry)
        while True:
            wanted = (*_on_devices(residencies[loop]), *rest)
            body = self.body(scan.body, tuple(residencies), wanted, eqn, scope.created)
            new = list(residencies)
            new[loop] = self._chosen(zip(residencies[loop], body.outs[:carry], strict=True), scan)
            for i in body.hoistable:
                if not consts <= i < consts + carry:
                    new[i] = DEVICE
            if new == residencies:
                break
            residencies = new
        invars = self._operands(scope, eqn, residencies, body.host_inputs)
        # A rematerialised value ends in the memory of the loop's carry.
        outs = (*residencies[loop], *(max(rows, r) for r in body.outs[carry:]))
        self._append(scope, eqn, invars, outs, [body.jaxpr])

    def _while(self, scope: _Scope, eqn: Eqn, loop: While) -> None:
        nc, nb = loop.cond_consts, loop.body_consts
        created = creation_residency(loop, eqn, scope.created)
        residencies = _distribute_if_divergent([scope.residency(a) for a in eqn.invars], loop.predicate(eqn))
        while True:
            carry = tuple(residencies[nc + nb :])
            test = self.body(loop.cond, (*residencies[:nc], *carry), created=created)
            step = self.body(loop.body, (*residencies[nc : nc + nb], *carry), _on_devices(carry), eqn, created)
            new = list(residencies)
            new[nc + nb :] = self._chosen(zip(carry, step.outs, strict=True), loop)
            for i in [i for i in test.hoistable if i < nc] + [nc + i for i in step.hoistable if i < nb]:
                new[i] = DEVICE
            if new == residencies:
                break
            residencies = new
        host_inputs = {i if i < nc else i + nb for i in test.host_inputs} | {nc + i for i in step.host_inputs}
        invars = self._operands(scope, eqn, residencies, host_inputs)
        self._append(scope, eqn, invars, carry, [test.jaxpr, step.jaxpr])

    def _cond(self, scope: _Scope, eqn: Eqn, cond: Cond) -> None:
        residencies = _distribute_if_divergent([scope.residency(a) for a in eqn.invars], cond.predicate(eqn))
        created = creation_residency(cond, eqn, scope.created)
        needed: Residencies | None = None
        while True:
            wanted = None if needed is None else _on_devices(needed)
            bodies = [self.body(b, tuple(residencies[1:]), wanted, eqn, created) for b in cond.branches]
            host_inputs = frozenset[int]().union(*(b.host_inputs for b in bodies))
            new = list(residencies)
            for i in frozenset[int]().union(*(b.distributed for b in bodies)) - host_inputs:
                new[i + 1] = DEVICE
            outs = tuple(self._chosen(zip(*(b.outs for b in bodies), strict=True), cond))
            if new == residencies and outs == needed:
                break
            residencies, needed = new, outs
        scope.read_on_host(eqn.invars[0])
        invars = self._operands(scope, eqn, residencies, {i + 1 for i in host_inputs})
        self._append(scope, eqn, invars, outs, [b.jaxpr for b in bodies])


def copies(mesh: Iterable[int]) -> MeshMapperConfig:
    """Returns the config of the distribute that copies a host tensor to all devices."""
    return replicate_mapper(tuple(mesh))


_DISTRIBUTED = "what runs on the devices takes device tensors; a full host operand gets a replicating distribute_tensor"
_RESHARDED = "distribute_tensor takes a host tensor; what is on every device is split there, which is a mesh_partition"
_AGGREGATED = "distribute_tensor takes a host tensor; only aggregate_tensor brings one back"


def _note(value: Atom, text: str, rule: str, kind: str = "inserted") -> None:
    log = remarks.COLLECTED.get()
    if log is not None:
        log.add(value, kind, text, rule)


def _on_devices(residencies: Sequence[Residency]) -> Residencies:
    """Returns the residencies that a loop or branch needs of its bodies' results: the devices, or any."""
    return tuple([DEVICE if r is DEVICE else FREE for r in residencies])


def _distribute_if_divergent(residencies: list[Residency], decides: compat.Aval) -> list[Residency]:
    """Returns the residencies of the operands of a loop or branch: all on the devices if its predicate varies."""
    varying = compat.varying_axes(decides)
    return [DEVICE if varying and p is HOST else p for p in residencies]
