"""Writes out every transfer between host and devices that a program makes.

After `mesh_shard` is lowered, a full host tensor may still stand beside a shard, a device value may be distributed, a
loop may carry a value that starts on the host and goes on on the devices. This pass puts a replicating distribute or an
aggregate there, at every depth, once per value and outside loops and calls where the body only needs it on the devices.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from jaxmesh.dialects.residency import (
    DEVICE,
    FREE,
    HOST,
    ON_HOST,
    Analysis,
    Residency,
    has_transfer,
    join,
    of_atom,
    of_constant,
    of_result,
)
from jaxmesh.dialects.ttnn.transfers import PRIMITIVES, aggregate_tensor_p, distribute_tensor_p
from jaxmesh.jaxprs import compat, control_flow, remarks, source_locations, walk
from jaxmesh.jaxprs.compat import Atom, Eqn, Jaxpr, Var
from jaxmesh.jaxprs.rewrite import map_sub_jaxprs
from jaxmesh.passes.mesh_shard.reshard import own_pieces
from jaxmesh.sharding.shard_attributes import FIRST_DEVICE, replicate_mapper

Places = tuple[Residency, ...]
FILE = "jaxmesh/passes/mesh_shard/insert_transfers.py"


@dataclass(frozen=True, slots=True)
class Misplaced:
    """An operand that was not where its equation needs it."""

    eqn: Eqn
    operand: int
    found: Residency
    needed: Residency


@dataclass(frozen=True, slots=True)
class _Body:
    """A body with its transfers written out.

    `brought` are the inputs that the body itself brings to the devices, `kept` those it needs on the host.
    """

    jaxpr: Jaxpr
    outs: Places
    brought: frozenset[int]
    kept: frozenset[int]
    found: tuple[Misplaced, ...]

    @property
    def promotable(self) -> frozenset[int]:
        return self.brought - self.kept


def write_transfers(program: Jaxpr, inputs: Sequence[Residency], mesh: tuple[int, ...]) -> Jaxpr:
    """The program with every transfer explicit; the same object when it was already."""
    return _Writer(mesh).body(program, tuple(inputs)).jaxpr


def misplaced_operands(program: Jaxpr, inputs: Sequence[Residency], mesh: tuple[int, ...]) -> tuple[Misplaced, ...]:
    """What `write_transfers` would still have to mend; empty for a program that says every transfer."""
    return _Writer(mesh).body(program, tuple(inputs)).found


@dataclass(slots=True)
class _Frame:
    """One body while it is rewritten."""

    inputs: dict[Var, int]
    env: dict[Var, Residency]
    on_device: dict[Var, Var] = field(default_factory=dict[Var, Var])
    eqns: list[Eqn] = field(default_factory=list[Eqn])
    brought: set[int] = field(default_factory=set[int])
    kept: set[int] = field(default_factory=set[int])
    found: list[Misplaced] = field(default_factory=list[Misplaced])

    def place(self, atom: Atom) -> Residency:
        return of_atom(atom, self.env)

    def keep(self, atom: Atom) -> None:
        if isinstance(atom, Var) and atom in self.inputs and self.env[atom] is HOST:
            self.kept.add(self.inputs[atom])


class _Writer:
    def __init__(self, mesh: tuple[int, ...]) -> None:
        self.replicate = {"mapper_config": replicate_mapper(mesh)}
        self.memo: dict[tuple[int, Places, Places | None], tuple[Jaxpr, _Body]] = {}

    def body(self, jaxpr: Jaxpr, places: Places, wanted: Places | None = None, caller: Eqn = None) -> _Body:
        """Rewrites one body; `wanted` may ask its `caller` for results on the devices."""
        key = (id(jaxpr), places, wanted)
        if key not in self.memo:
            # The jaxpr is kept beside the result, so that its id is not used again.
            self.memo[key] = (jaxpr, self._body(jaxpr, places, wanted, caller))
        return self.memo[key][1]

    def _body(self, jaxpr: Jaxpr, places: Places, wanted: Places | None, caller: Eqn) -> _Body:
        opened = walk.open_jaxpr(jaxpr)
        env = dict(zip(opened.invars, places, strict=True))
        env |= {v: of_constant(c) for v, c in zip(opened.constvars, getattr(jaxpr, "consts", ()), strict=False)}
        frame = _Frame({v: i for i, v in enumerate(opened.invars)}, env)
        for eqn in opened.eqns:
            self._eqn(frame, eqn)
        outvars = list(opened.outvars)
        for i, atom in enumerate(outvars):
            if wanted is not None and wanted[i] is DEVICE and frame.place(atom) is HOST:
                last = opened.eqns[-1] if opened.eqns else caller
                outvars[i] = self._bring(frame, atom, last, i, f"the {caller.primitive.name} gives")
            else:
                frame.keep(atom)
        outs = tuple(frame.place(a) for a in outvars)
        unchanged = len(frame.eqns) == len(opened.eqns) and all(
            a is b for a, b in zip(frame.eqns, opened.eqns, strict=True)
        )
        new = jaxpr if unchanged else walk.with_eqns(jaxpr, frame.eqns, outvars)
        return _Body(new, outs, frozenset(frame.brought), frozenset(frame.kept), tuple(frame.found))

    # --- moving one value ---

    def _bring(self, frame: _Frame, atom: Atom, like: Eqn, position: int, why: str = "") -> Atom:
        """A host value on the devices: one replicating distribute, used by all who need it."""
        if isinstance(atom, Var) and atom in frame.on_device:
            return frame.on_device[atom]
        frame.found.append(Misplaced(like, position, frame.place(atom), DEVICE))
        frame.eqns.append(walk.new_eqn(distribute_tensor_p, [atom], self.replicate, like))
        (out,) = frame.eqns[-1].outvars
        if isinstance(atom, Var):
            frame.on_device[atom] = out
            if atom in frame.inputs:
                frame.brought.add(frame.inputs[atom])
        frame.env[out] = DEVICE
        needed = why or f"{like.primitive.name} needs"
        _note(out, f"the full host tensor that {needed} on the devices is copied to each of them", _NEEDS)
        return out

    def _take_back(self, frame: _Frame, atom: Atom, like: Eqn) -> Atom:
        """A full device value on the host: the copy of device 0."""
        frame.found.append(Misplaced(like, 0, DEVICE, HOST))
        frame.eqns.append(walk.new_eqn(aggregate_tensor_p, [atom], {"composer_config": FIRST_DEVICE}, like))
        (out,) = frame.eqns[-1].outvars
        frame.env[out] = HOST
        _note(out, f"the device tensor that {like.primitive.name} needs on the host is read from device 0", _TAKES)
        return out

    def _split_again(self, frame: _Frame, eqn: Eqn) -> bool:
        """Whether a distribute of what the devices hold whole was replaced by each device's own piece of it."""
        pieces = own_pieces(eqn)
        if not pieces:
            return False
        frame.found.append(Misplaced(eqn, 0, DEVICE, HOST))
        for made in pieces:
            frame.eqns.append(made)
            frame.env.update(dict.fromkeys(made.outvars, DEVICE))
        text = "each device keeps its own piece of the tensor that it holds whole"
        _note(eqn.outvars[0], text, _SPLITS, "made legal")
        return True

    # --- one equation ---

    def _eqn(self, frame: _Frame, eqn: Eqn) -> None:
        name = eqn.primitive.name
        if control_flow.is_imported_op(eqn) and self._is_whole(frame, eqn):
            self._plain(frame, eqn)
        elif name in control_flow.CALLS:
            self._call(frame, eqn, control_flow.CALLS[name])
        elif name == "scan":
            self._scan(frame, eqn)
        elif name == "while":
            self._while(frame, eqn)
        elif name == "cond":
            self._cond(frame, eqn)
        elif (bodies := walk.sub_jaxprs(eqn)) and any(map(has_transfer, bodies)):
            self._on_host(frame, eqn)
        else:
            self._plain(frame, eqn)

    def _is_whole(self, frame: _Frame, eqn: Eqn) -> bool:
        """Returns True if an imported op runs on the devices alone, or makes a tensor from nothing, wherever needed."""
        places = tuple(frame.place(a) for a in eqn.invars)
        return not places or all(p is DEVICE for p in Analysis().body(eqn.params["jaxpr"], places))

    def _plain(self, frame: _Frame, eqn: Eqn) -> None:
        env = frame.env
        places = [env[a] if isinstance(a, Var) else FREE for a in eqn.invars]
        out = of_result(eqn, places)
        if HOST not in places and eqn.primitive not in PRIMITIVES:
            # Nearly every equation: nothing to bring over, and nothing that must stay.
            frame.eqns.append(eqn)
            for var in eqn.outvars:
                env[var] = out
            return
        invars = list(eqn.invars)
        if eqn.primitive is distribute_tensor_p:
            if places[0] is DEVICE:
                if self._split_again(frame, eqn):
                    return
                invars[0] = self._take_back(frame, invars[0], eqn)
            frame.keep(invars[0])
        elif eqn.primitive is aggregate_tensor_p:
            if places[0] is not DEVICE:
                invars[0] = self._bring(frame, invars[0], eqn, 0)
        else:
            for i, (atom, place) in enumerate(zip(eqn.invars, places, strict=True)):
                if out is DEVICE and place is HOST:
                    invars[i] = self._bring(frame, atom, eqn, i)
                else:
                    frame.keep(atom)
        self._append(frame, eqn, invars, {}, [out] * len(eqn.outvars))

    def _on_host(self, frame: _Frame, eqn: Eqn) -> None:
        """A solver and its like: what goes in and out, also of its bodies, is on the host."""
        outs: list[Residency] = [frame.place(a) for a in eqn.invars]

        def change(jaxpr: Jaxpr) -> Jaxpr:
            body = self.body(jaxpr, (HOST,) * len(walk.open_jaxpr(jaxpr).invars))
            frame.found.extend(body.found)
            outs.extend(body.outs)
            return body.jaxpr

        changed = map_sub_jaxprs(eqn, change)
        if eqn.primitive.name not in ON_HOST or DEVICE in outs:
            raise source_locations.missing_rule(eqn, "its body moves tensors between host and devices", FILE)
        for atom in eqn.invars:
            frame.keep(atom)
        self._append(frame, changed, list(changed.invars), {}, [HOST] * len(eqn.outvars))

    def _append(
        self, frame: _Frame, eqn: Eqn, invars: list[Atom], params: dict[str, object], outs: Sequence[Residency]
    ) -> None:
        changed = {k: v for k, v in params.items() if v is not eqn.params[k]}
        if changed or any(a is not b for a, b in zip(invars, eqn.invars, strict=True)):
            eqn = eqn.replace(invars=invars, params={**eqn.params, **changed})
        frame.eqns.append(eqn)
        frame.env.update(zip(eqn.outvars, outs, strict=True))

    def _operands(
        self, frame: _Frame, eqn: Eqn, places: Sequence[Residency], kept: frozenset[int] | set[int]
    ) -> list[Atom]:
        """The operands of a call, those brought over that the analysis wants on the devices."""
        invars = list(eqn.invars)
        for i, (atom, place) in enumerate(zip(eqn.invars, places, strict=True)):
            if place is DEVICE and frame.place(atom) is HOST:
                invars[i] = self._bring(frame, atom, eqn, i)
                text = f"brought over once, before the {eqn.primitive.name}, not in its body"
                _note(invars[i], text, "a transfer that a body only makes of its input stands outside", "hoisted")
            elif i in kept:
                frame.keep(atom)
        return invars

    def _call(self, frame: _Frame, eqn: Eqn, key: str) -> None:
        places = [frame.place(a) for a in eqn.invars]
        body = self._settle(eqn.params[key], places)
        invars = self._operands(frame, eqn, places, body.kept)
        frame.found += body.found
        self._append(frame, eqn, invars, {key: body.jaxpr}, body.outs)

    def _settle(self, jaxpr: Jaxpr, places: list[Residency]) -> _Body:
        """Moves the transfers that a body makes of its own inputs out to the caller; changes `places`."""
        while True:
            body = self.body(jaxpr, tuple(places))
            moved = [i for i in body.promotable if places[i] is HOST]
            if not moved:
                return body
            for i in moved:
                places[i] = DEVICE

    def _scan(self, frame: _Frame, eqn: Eqn) -> None:
        consts, carry = control_flow.scan_arity(eqn.params)
        loop = slice(consts, consts + carry)
        places = [frame.place(a) for a in eqn.invars]
        jaxpr = eqn.params["jaxpr"]
        while True:
            rest = (HOST,) * (len(eqn.outvars) - carry)
            body = self.body(jaxpr, tuple(places), (*places[loop], *rest), eqn)
            new = list(places)
            new[loop] = [max(a, b) for a, b in zip(places[loop], body.outs[:carry], strict=True)]
            for i in body.promotable:
                if not consts <= i < consts + carry:
                    new[i] = DEVICE
            if new == places:
                break
            places = new
        invars = self._operands(frame, eqn, places, body.kept)
        frame.found += body.found
        # What is made anywhere ends where the loop carries it.
        outs = (*places[loop], *body.outs[carry:])
        self._append(frame, eqn, invars, {"jaxpr": body.jaxpr}, outs)

    def _while(self, frame: _Frame, eqn: Eqn) -> None:
        nc, nb = eqn.params["cond_nconsts"], eqn.params["body_nconsts"]
        places = _before([frame.place(a) for a in eqn.invars], eqn.params["cond_jaxpr"].out_avals[0])
        while True:
            carry = tuple(places[nc + nb :])
            test = self.body(eqn.params["cond_jaxpr"], (*places[:nc], *carry))
            step = self.body(eqn.params["body_jaxpr"], (*places[nc : nc + nb], *carry), carry, eqn)
            new = list(places)
            new[nc + nb :] = [max(a, b) for a, b in zip(carry, step.outs, strict=True)]
            for i in [i for i in test.promotable if i < nc] + [nc + i for i in step.promotable if i < nb]:
                new[i] = DEVICE
            if new == places:
                break
            places = new
        kept = {i if i < nc else i + nb for i in test.kept} | {nc + i for i in step.kept}
        invars = self._operands(frame, eqn, places, kept)
        frame.found += [*test.found, *step.found]
        self._append(frame, eqn, invars, {"cond_jaxpr": test.jaxpr, "body_jaxpr": step.jaxpr}, carry)

    def _cond(self, frame: _Frame, eqn: Eqn) -> None:
        branches = eqn.params["branches"]
        places = _before([frame.place(a) for a in eqn.invars], eqn.invars[0].aval)
        wanted: Places | None = None
        while True:
            bodies = [self.body(b, tuple(places[1:]), wanted, eqn) for b in branches]
            kept = frozenset[int]().union(*(b.kept for b in bodies))
            new = list(places)
            for i in frozenset[int]().union(*(b.brought for b in bodies)) - kept:
                new[i + 1] = DEVICE
            outs = tuple(join(row) for row in zip(*(b.outs for b in bodies), strict=True))
            if new == places and outs == wanted:
                break
            places, wanted = new, outs
        frame.keep(eqn.invars[0])
        invars = self._operands(frame, eqn, places, {i + 1 for i in kept})
        for b in bodies:
            frame.found += b.found
        new_branches = tuple(b.jaxpr for b in bodies)
        same = all(a is b for a, b in zip(new_branches, branches, strict=True))
        self._append(frame, eqn, invars, {"branches": branches if same else new_branches}, outs)


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
