"""Writes out every transfer between host and devices that a program makes.

After `mesh_shard` is lowered, a full host tensor may still stand beside a shard, a device value may be distributed, a
loop may carry a value that starts on the host and goes on on the devices. This pass puts a replicating distribute or an
aggregate there, at every depth, once per value and outside loops and calls where the body only needs it on the devices.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from jaxmesh.dialects.residency import (
    DEVICE,
    FREE,
    HOST,
    ON_HOST,
    Residency,
    ResidencyMap,
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
from jaxmesh.passes.mesh_shard.reshard import own_pieces
from jaxmesh.sharding.shard_attributes import FIRST_DEVICE, replicate_mapper

Places = tuple[Residency, ...]
FILE = "jaxmesh/passes/mesh_shard/insert_transfers.py"


@dataclass(frozen=True, slots=True)
class _Body:
    """A body with its transfers written out.

    `brought` are the inputs that the body itself brings to the devices, `kept` those it needs on the host.
    """

    jaxpr: Jaxpr
    outs: Places
    brought: frozenset[int]
    kept: frozenset[int]

    @property
    def promotable(self) -> frozenset[int]:
        return self.brought - self.kept


def insert_transfers(program: Jaxpr, inputs: Sequence[Residency], mesh: Mapping[str, int]) -> Jaxpr:
    """The program with every transfer explicit; the same object when it was already."""
    return _Writer(tuple(mesh.values())).body(program, tuple(inputs)).jaxpr


@dataclass(slots=True)
class _Scope:
    """One body while it is rewritten."""

    inputs: dict[Var, int]
    env: dict[Var, Residency]
    on_device: dict[Var, Var] = field(default_factory=dict[Var, Var])
    eqns: list[Eqn] = field(default_factory=list[Eqn])
    brought: set[int] = field(default_factory=set[int])
    kept: set[int] = field(default_factory=set[int])

    def place(self, atom: Atom) -> Residency:
        return of_atom(atom, self.env)

    def keep(self, atom: Atom) -> None:
        if isinstance(atom, Var) and atom in self.inputs and self.env[atom] is HOST:
            self.kept.add(self.inputs[atom])


class _Writer:
    def __init__(self, mesh: tuple[int, ...]) -> None:
        self.replicate = {"mapper_config": replicate_mapper(mesh)}
        self.memo = walk.Memo[_Body]()

    def body(self, jaxpr: Jaxpr, places: Places, wanted: Places | None = None, caller: Eqn = None) -> _Body:
        """Rewrites one body; `wanted` may ask its `caller` for results on the devices."""
        return self.memo.get(jaxpr, lambda: self._body(jaxpr, places, wanted, caller), places, wanted)

    def _body(self, jaxpr: Jaxpr, places: Places, wanted: Places | None, caller: Eqn) -> _Body:
        opened = walk.open_jaxpr(jaxpr)
        env = dict(zip(opened.invars, places, strict=True))
        env |= {v: of_constant(c) for v, c in walk.constants(jaxpr).items()}
        scope = _Scope({v: i for i, v in enumerate(opened.invars)}, env)
        for eqn in opened.eqns:
            self._eqn(scope, eqn)
        outvars = list(opened.outvars)
        for i, atom in enumerate(outvars):
            if wanted is not None and wanted[i] is DEVICE and scope.place(atom) is HOST:
                last = opened.eqns[-1] if opened.eqns else caller
                outvars[i] = self._bring(scope, atom, last, f"the {caller.primitive.name} gives")
            else:
                scope.keep(atom)
        outs = tuple(scope.place(a) for a in outvars)
        unchanged = len(scope.eqns) == len(opened.eqns) and all(
            a is b for a, b in zip(scope.eqns, opened.eqns, strict=True)
        )
        new = jaxpr if unchanged else walk.with_eqns(jaxpr, scope.eqns, outvars)
        return _Body(new, outs, frozenset(scope.brought), frozenset(scope.kept))

    # --- moving one value ---

    def _bring(self, scope: _Scope, atom: Atom, like: Eqn, why: str = "") -> Atom:
        """A host value on the devices: one replicating distribute, used by all who need it."""
        if isinstance(atom, Var) and atom in scope.on_device:
            return scope.on_device[atom]
        scope.eqns.append(walk.new_eqn(distribute_tensor_p, [atom], self.replicate, like))
        (out,) = scope.eqns[-1].outvars
        if isinstance(atom, Var):
            scope.on_device[atom] = out
            if atom in scope.inputs:
                scope.brought.add(scope.inputs[atom])
        scope.env[out] = DEVICE
        needed = why or f"{like.primitive.name} needs"
        _note(out, f"the full host tensor that {needed} on the devices is copied to each of them", _NEEDS)
        return out

    def _take_back(self, scope: _Scope, atom: Atom, like: Eqn) -> Atom:
        """A full device value on the host: the copy of device 0."""
        scope.eqns.append(walk.new_eqn(aggregate_tensor_p, [atom], {"composer_config": FIRST_DEVICE}, like))
        (out,) = scope.eqns[-1].outvars
        scope.env[out] = HOST
        _note(out, f"the device tensor that {like.primitive.name} needs on the host is read from device 0", _TAKES)
        return out

    def _split_again(self, scope: _Scope, eqn: Eqn) -> bool:
        """Whether a distribute of what the devices hold whole was replaced by each device's own piece of it."""
        pieces = own_pieces(eqn)
        if not pieces:
            return False
        for made in pieces:
            scope.eqns.append(made)
            scope.env.update(dict.fromkeys(made.outvars, DEVICE))
        text = "each device keeps its own piece of the tensor that it holds whole"
        _note(eqn.outvars[0], text, _SPLITS, "made legal")
        return True

    # --- one equation ---

    def _eqn(self, scope: _Scope, eqn: Eqn) -> None:
        flow = control_flow(eqn)
        match flow:
            case Call() if is_imported_op(eqn) and self._is_whole(scope, eqn, flow):
                self._plain(scope, eqn)
            case Call():
                self._call(scope, eqn, flow)
            case Scan():
                self._scan(scope, eqn, flow)
            case While():
                self._while(scope, eqn, flow)
            case Cond():
                self._cond(scope, eqn, flow)
            case None:
                moves = any(map(has_transfer, walk.sub_jaxprs(eqn)))
                (self._on_host if moves else self._plain)(scope, eqn)

    def _is_whole(self, scope: _Scope, eqn: Eqn, call: Call) -> bool:
        """Returns True if an imported op runs on the devices alone, or makes a tensor from nothing, wherever needed."""
        places = tuple(scope.place(a) for a in eqn.invars)
        return not places or all(p is DEVICE for p in ResidencyMap(call.body, places).results)

    def _plain(self, scope: _Scope, eqn: Eqn) -> None:
        env = scope.env
        places = [env[a] if isinstance(a, Var) else FREE for a in eqn.invars]
        out = of_result(eqn, places)
        if HOST not in places and eqn.primitive not in PRIMITIVES:
            # Nearly every equation: nothing to bring over, and nothing that must stay.
            scope.eqns.append(eqn)
            for var in eqn.outvars:
                env[var] = out
            return
        invars = list(eqn.invars)
        if eqn.primitive is distribute_tensor_p:
            if places[0] is DEVICE:
                if self._split_again(scope, eqn):
                    return
                invars[0] = self._take_back(scope, invars[0], eqn)
            scope.keep(invars[0])
        elif eqn.primitive is aggregate_tensor_p:
            if places[0] is not DEVICE:
                invars[0] = self._bring(scope, invars[0], eqn)
        else:
            for i, (atom, place) in enumerate(zip(eqn.invars, places, strict=True)):
                if out is DEVICE and place is HOST:
                    invars[i] = self._bring(scope, atom, eqn)
                else:
                    scope.keep(atom)
        self._append(scope, eqn, invars, [out] * len(eqn.outvars))

    def _on_host(self, scope: _Scope, eqn: Eqn) -> None:
        """A solver and its like: what goes in and out, also of its bodies, is on the host."""
        outs: list[Residency] = [scope.place(a) for a in eqn.invars]

        def change(jaxpr: Jaxpr) -> Jaxpr:
            body = self.body(jaxpr, (HOST,) * len(walk.open_jaxpr(jaxpr).invars))
            outs.extend(body.outs)
            return body.jaxpr

        changed = map_sub_jaxprs(eqn, change)
        if eqn.primitive.name not in ON_HOST or DEVICE in outs:
            raise source_locations.missing_rule(eqn, "its body moves tensors between host and devices", FILE)
        for atom in eqn.invars:
            scope.keep(atom)
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
        self, scope: _Scope, eqn: Eqn, places: Sequence[Residency], kept: frozenset[int] | set[int]
    ) -> list[Atom]:
        """The operands of a call, those brought over that the analysis wants on the devices."""
        invars = list(eqn.invars)
        for i, (atom, place) in enumerate(zip(eqn.invars, places, strict=True)):
            if place is DEVICE and scope.place(atom) is HOST:
                invars[i] = self._bring(scope, atom, eqn)
                text = f"brought over once, before the {eqn.primitive.name}, not in its body"
                _note(invars[i], text, "a transfer that a body only makes of its input stands outside", "hoisted")
            elif i in kept:
                scope.keep(atom)
        return invars

    def _call(self, scope: _Scope, eqn: Eqn, call: Call) -> None:
        places = [scope.place(a) for a in eqn.invars]
        body = self._settle(call.body, places)
        invars = self._operands(scope, eqn, places, body.kept)
        self._append(scope, eqn, invars, body.outs, [body.jaxpr])

    def _settle(self, jaxpr: Jaxpr, places: list[Residency]) -> _Body:
        """Moves the transfers that a body makes of its own inputs out to the caller; changes `places`."""
        while True:
            body = self.body(jaxpr, tuple(places))
            moved = [i for i in body.promotable if places[i] is HOST]
            if not moved:
                return body
            for i in moved:
                places[i] = DEVICE

    def _scan(self, scope: _Scope, eqn: Eqn, scan: Scan) -> None:
        consts, carry = scan.num_consts, scan.num_carry
        loop = slice(consts, consts + carry)
        places = [scope.place(a) for a in eqn.invars]
        while True:
            rest = (HOST,) * (len(eqn.outvars) - carry)
            body = self.body(scan.body, tuple(places), (*places[loop], *rest), eqn)
            new = list(places)
            new[loop] = [max(a, b) for a, b in zip(places[loop], body.outs[:carry], strict=True)]
            for i in body.promotable:
                if not consts <= i < consts + carry:
                    new[i] = DEVICE
            if new == places:
                break
            places = new
        invars = self._operands(scope, eqn, places, body.kept)
        # What is made anywhere ends where the loop carries it.
        outs = (*places[loop], *body.outs[carry:])
        self._append(scope, eqn, invars, outs, [body.jaxpr])

    def _while(self, scope: _Scope, eqn: Eqn, loop: While) -> None:
        nc, nb = loop.cond_consts, loop.body_consts
        places = _before([scope.place(a) for a in eqn.invars], loop.predicate(eqn))
        while True:
            carry = tuple(places[nc + nb :])
            test = self.body(loop.cond, (*places[:nc], *carry))
            step = self.body(loop.body, (*places[nc : nc + nb], *carry), carry, eqn)
            new = list(places)
            new[nc + nb :] = [max(a, b) for a, b in zip(carry, step.outs, strict=True)]
            for i in [i for i in test.promotable if i < nc] + [nc + i for i in step.promotable if i < nb]:
                new[i] = DEVICE
            if new == places:
                break
            places = new
        kept = {i if i < nc else i + nb for i in test.kept} | {nc + i for i in step.kept}
        invars = self._operands(scope, eqn, places, kept)
        self._append(scope, eqn, invars, carry, [test.jaxpr, step.jaxpr])

    def _cond(self, scope: _Scope, eqn: Eqn, cond: Cond) -> None:
        places = _before([scope.place(a) for a in eqn.invars], cond.predicate(eqn))
        wanted: Places | None = None
        while True:
            bodies = [self.body(b, tuple(places[1:]), wanted, eqn) for b in cond.branches]
            kept = frozenset[int]().union(*(b.kept for b in bodies))
            new = list(places)
            for i in frozenset[int]().union(*(b.brought for b in bodies)) - kept:
                new[i + 1] = DEVICE
            outs = tuple(join(row) for row in zip(*(b.outs for b in bodies), strict=True))
            if new == places and outs == wanted:
                break
            places, wanted = new, outs
        scope.keep(eqn.invars[0])
        invars = self._operands(scope, eqn, places, {i + 1 for i in kept})
        self._append(scope, eqn, invars, outs, [b.jaxpr for b in bodies])


_NEEDS = "what runs on the devices takes device tensors; a full host operand gets a replicating distribute_tensor"
_SPLITS = "distribute_tensor takes a host tensor; what is on every device is split there, which is a mesh_partition"
_TAKES = "distribute_tensor takes a host tensor; only aggregate_tensor brings one back"


def _note(value: Atom, text: str, rule: str, kind: str = "inserted") -> None:
    log = remarks.active()
    if log is not None:
        log.add(value, kind, text, rule)


def _before(places: list[Residency], decides: compat.Aval) -> list[Residency]:
    """The places of the operands of a loop or branch; where devices go different ways, nothing may move inside."""
    apart = compat.varying_axes(decides)
    return [DEVICE if apart and p is HOST else p for p in places]
