"""Types programs that JAX traced without varying-axes types: whole programs, and bodies with `check_vma=False`.

The jaxpr is interpreted inside a typed trace. Operands are spread to the axes that any of them varies over. Collectives
get their typed forms. Loops, branches and calls are traced again, loops until the types of their carries are stable.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding

from jaxmesh.dialects.ttir.mesh_shard import mesh_shard_p
from jaxmesh.dialects.ttnn.transfers import PRIMITIVES
from jaxmesh.dialects.varying import join_axes as join_axes, vary as spread, varying_axes as varying
from jaxmesh.errors import InexpressibleError, JaxmeshError
from jaxmesh.jaxprs import compat, source_locations, walk
from jaxmesh.jaxprs.compat import Axes, Eqn, Jaxpr, Var
from jaxmesh.jaxprs.control_flow import CUSTOM, INLINE, REMAT, Call, Cond, Scan, While, control_flow
from jaxmesh.jaxprs.evaluate import at_source_of, bind, expand, interpret
from jaxmesh.jaxprs.rewrite import map_sub_jaxprs
from jaxmesh.jaxprs.strip_mesh import splice
from jaxmesh.jaxprs.typed import typed
from jaxmesh.jaxprs.untyped import lax
from jaxmesh.sharding.groups import axes_of_groups, of_no_axes

Rule = Callable[[Eqn, list[jax.Array]], list[jax.Array]]
_HINTS = frozenset({"sharding_constraint", "reshard", "mesh_cast"})
"""Primitives that constrain the sharding of a full value in JAX; the IR has `mesh_shard`s instead."""


_TRANSFERS = frozenset({mesh_shard_p, *PRIMITIVES})
_STRETCH = compat.unlowered_primitive("jaxmesh_stretch")
"""Calls equations that follow one another and can be spliced."""


class Retyper:
    """An interpreter of untyped jaxprs inside a typed trace.

    Args:
      rules: adds rules of primitives, by name.
      splices: whether equations of full values join the trace as they are; see `splice`.
    """

    def __init__(self, rules: Mapping[str, Rule], *, splices: bool = False) -> None:
        self._splices = splices
        self._accepted: set[object] = set()
        self._rules: dict[str, Rule] = {
            "psum": _reduce(lax.psum, _sum),
            "pmax": _reduce(lax.pmax, jnp.max),
            "pmin": _reduce(lax.pmin, jnp.min),
            "all_gather": _all_gather,
            "pvary": lambda eqn, operands: [spread(x, eqn.params["axes"]) for x in operands],
            **dict.fromkeys(_HINTS, lambda _, operands: operands),
            **rules,
        }

    def evaluate(self, jaxpr: Jaxpr, args: Sequence[jax.Array]) -> list[jax.Array]:
        """Returns the results of a jaxpr, closed or without constants, for typed arguments."""
        if not self._splices or compat.is_high(walk.open_jaxpr(jaxpr)):
            return interpret(jaxpr, args, self._typed)
        return interpret(jaxpr, args, self._typed, eqns=self._grouped(walk.open_jaxpr(jaxpr)))

    def _grouped(self, body: Jaxpr) -> list[Eqn]:
        """Returns the equations of an open jaxpr; groups neighbours that can be spliced into calls."""
        stretches: list[tuple[bool, list[Eqn]]] = []
        for eqn in body.eqns:
            copies = self._is_copied(eqn)
            if not (stretches and copies and stretches[-1][0]):
                stretches.append((copies, []))
            stretches[-1][1].append(eqn)
        used = {a for a in body.outvars if isinstance(a, Var)}
        grouped: list[Eqn] = []
        for copies, eqns in reversed(stretches):
            read = dict.fromkeys(a for e in eqns for a in e.invars if isinstance(a, Var))
            if copies and len(eqns) > 1:
                made = dict.fromkeys(v for e in eqns for v in e.outvars)
                inputs = [v for v in read if v not in made]
                called = walk.rebuild(body, [], inputs, eqns, [v for v in made if v in used])
                grouped.append(
                    eqns[0].replace(primitive=_STRETCH, invars=inputs, outvars=called.outvars, params={"jaxpr": called})
                )
            else:
                grouped += reversed(eqns)
            used |= read.keys()
        return grouped[::-1]

    def _is_copied(self, eqn: Eqn) -> bool:
        """Returns True if an equation of full values is copied unchanged.

        Returns False for the first equation of each primitive: JAX infers its type, or refuses it in a typed trace.
        """
        accepted = eqn.primitive in self._accepted
        self._accepted.add(eqn.primitive)
        return (
            accepted
            and not eqn.effects
            and eqn.primitive.name not in self._rules
            and not any(isinstance(v, NamedSharding) for v in eqn.params.values())
            and all(compat.is_array_type(v.aval) for v in eqn.outvars)
            and not walk.sub_jaxprs(eqn)
        )

    def _stretch(self, eqn: Eqn, operands: list[jax.Array]) -> list[jax.Array]:
        body = eqn.params["jaxpr"]
        spliced = None if join_axes(operands) else splice(body, operands)
        return interpret(body, operands, self._typed) if spliced is None else spliced

    def _typed(self, eqn: Eqn, operands: list[jax.Array]) -> list[jax.Array]:
        if eqn.primitive is _STRETCH:
            return self._stretch(eqn, operands)
        with at_source_of(eqn), _translate_errors(eqn):
            rule, eqn = self._rules.get(eqn.primitive.name), _along_axes(eqn)
            return self._equation(eqn, operands) if rule is None else rule(eqn, operands)

    @staticmethod
    def bind_flow(eqn: Eqn, operands: list[jax.Array]) -> list[jax.Array] | None:
        """Binds a loop or a branch of a typed trace with a carry and results that vary as its bodies make them.

        Returns None where devices decide for themselves about a transfer, which lowering refuses.
        """
        flow: Any = control_flow(eqn)
        decided = not isinstance(flow, Scan) and compat.varying_axes(flow.predicate(eqn))
        if decided and any(e.primitive in _TRANSFERS for body in flow.bodies for e in walk.all_eqns(body)):
            return None
        return Retyper({})._equation(eqn, operands)

    def _equation(self, eqn: Eqn, operands: list[jax.Array]) -> list[jax.Array]:
        match control_flow(eqn):
            case Call() as call if eqn.primitive.name in CUSTOM:
                return self._custom(eqn, call, operands)
            case Call() as call if eqn.primitive.name in INLINE | REMAT:
                return self._call(eqn, call, operands)
            case Scan() as loop:
                return self._scan(eqn, loop, operands)
            case While() as loop:
                return self._while(eqn, loop, operands)
            case Cond() as choice:
                return self._cond(eqn, choice, operands)
            case Call() | None:
                return self._plain(eqn, operands)

    def _plain(self, eqn: Eqn, operands: list[jax.Array]) -> list[jax.Array]:
        eqn = _without_shardings(eqn)
        axes = join_axes(operands) | _collective_axes(eqn)
        if walk.sub_jaxprs(eqn):
            return self._uniform(eqn, operands, axes)
        return bind(eqn, [spread(x, axes) for x in operands] if axes else operands)

    def retrace(self, jaxpr: Jaxpr, inputs: Sequence[Axes], outputs: Sequence[Axes] | None = None) -> Jaxpr:
        """Returns a jaxpr typed for inputs that vary over the given axes; spreads results over at least `outputs`."""

        def run(*args: jax.Array) -> list[jax.Array]:
            outs = self.evaluate(jaxpr, args)
            return outs if outputs is None else _spread_all(outs, outputs)

        avals = [v.aval for v in walk.open_jaxpr(jaxpr).invars]
        strange = [a for a in avals if not compat.is_array_type(a)]
        if strange:
            raise InexpressibleError(
                f"a loop, branch or call takes a value of type {strange[0]}, which is not a tensor; it runs as JAX "
                "runs it, without a TTIR or TTNN text."
            )
        structs = [compat.typed_struct(v, a) for v, a in zip(avals, inputs, strict=True)]
        return expand(typed.make_jaxpr(run)(*structs))

    # --- calls, loops, branches -------------------------------------------------------------------------------------

    def _call(self, eqn: Eqn, call: Call, operands: list[jax.Array]) -> list[jax.Array]:
        typed = self.retrace(call.body, [varying(x) for x in operands])
        return bind(call.with_bodies(eqn, [walk.in_form_of(call.body, typed)]), operands)

    def _uniform(self, eqn: Eqn, operands: list[jax.Array], axes: Axes) -> list[jax.Array]:
        """Binds any other equation with bodies; all their inputs and outputs vary over the same axes."""

        def change(jaxpr: Jaxpr) -> Jaxpr:
            body = walk.open_jaxpr(jaxpr)
            typed = self.retrace(jaxpr, [axes] * len(body.invars), [axes] * len(body.outvars))
            return walk.in_form_of(jaxpr, typed)

        return bind(map_sub_jaxprs(eqn, change), [spread(x, axes) for x in operands])

    def _custom(self, eqn: Eqn, call: Call, operands: list[jax.Array]) -> list[jax.Array]:
        axes = join_axes(operands)
        # The rules of full values stay plain JAX, which runs outside of mapped regions.
        return self._uniform(eqn, operands, axes) if axes else self._call(eqn, call, operands)

    def _scan(self, eqn: Eqn, loop: Scan, operands: list[jax.Array]) -> list[jax.Array]:
        consts, carry, xs = loop.split([varying(x) for x in operands])
        stacked = [frozenset[str]()] * (len(eqn.outvars) - len(carry))

        def step(carry: Sequence[Axes]) -> Jaxpr:
            return self.retrace(loop.body, [*consts, *carry, *xs], [*carry, *stacked])

        carry = widen_carry(carry, lambda axes: _results(step(axes))[: len(axes)])
        typed = walk.in_form_of(loop.body, step(carry))
        return bind(loop.with_bodies(eqn, [typed]), _spread_all(operands, [*consts, *carry, *xs]))

    def _while(self, eqn: Eqn, loop: While, operands: list[jax.Array]) -> list[jax.Array]:
        cond_consts, body_consts, carry = loop.split([varying(x) for x in operands])

        def step(carry: Sequence[Axes]) -> list[Axes]:
            (predicate,) = _results(self.retrace(loop.cond, [*cond_consts, *carry]))
            # Devices may run different numbers of iterations, so their carries differ too.
            return _results(self.retrace(loop.body, [*body_consts, *carry], [a | predicate for a in carry]))

        carry = widen_carry(carry, step)
        cond = self.retrace(loop.cond, [*cond_consts, *carry])
        body = self.retrace(loop.body, [*body_consts, *carry], carry)
        return bind(loop.with_bodies(eqn, [cond, body]), _spread_all(operands, [*cond_consts, *body_consts, *carry]))

    def _cond(self, eqn: Eqn, choice: Cond, operands: list[jax.Array]) -> list[jax.Array]:
        index, rest = choice.split(operands)
        # Devices may take different branches. Spreading a value sums its cotangents over devices, which takes all of
        # them, so the inputs are spread before the branch.
        rest = [spread(x, varying(index)) for x in rest]
        kinds = [varying(x) for x in rest]
        results = [_results(self.retrace(b, kinds)) for b in choice.branches]
        outputs = [varying(index).union(*row) for row in zip(*results, strict=True)]
        typed = [self.retrace(b, kinds, outputs) for b in choice.branches]
        return bind(choice.with_bodies(eqn, typed), [index, *rest])


@contextlib.contextmanager
def _translate_errors(eqn: Eqn) -> Generator[None]:
    """Turns JAX's typing errors into `InexpressibleError`."""
    try:
        yield
    except NotImplementedError as error:
        if isinstance(error, JaxmeshError):
            raise
        groups = eqn.params.get("axis_index_groups")
        if groups is not None:
            raise InexpressibleError(
                f"{eqn.primitive.name} ({source_locations.source_line(eqn)}) runs as JAX runs it, but lacks a text: it "
                f"is {of_no_axes(groups, _numbered(eqn))}."
            ) from error
        reason = f" ({error})" if str(error) else ""
        raise InexpressibleError(
            f"{eqn.primitive.name} ({source_locations.source_line(eqn)}) runs as JAX runs it, but has no TTIR or TTNN "
            f"text: JAX has no form of it that is typed by varying axes{reason}."
        ) from error


def widen_carry(carry: list[Axes], step: Callable[[list[Axes]], Sequence[Axes]]) -> list[Axes]:
    """Widens the axes of a loop's carry until an iteration returns the axes that it takes; a mesh has finitely many."""
    while (wider := [a | b for a, b in zip(carry, step(carry), strict=True)]) != carry:
        carry = wider
    return carry


def _spread_all(operands: Sequence[jax.Array], axes: Sequence[Axes]) -> list[jax.Array]:
    return [spread(x, a) for x, a in zip(operands, axes, strict=True)]


def _results(jaxpr: Jaxpr) -> list[Axes]:
    return [compat.varying_axes(a) for a in jaxpr.out_avals]


def _without_shardings(eqn: Eqn) -> Eqn:
    """Removes shardings over the current mesh from an equation's parameters; they mean nothing for a full value."""
    if not any(isinstance(v, NamedSharding) for v in eqn.params.values()):
        return eqn
    return eqn.replace(params={k: None if isinstance(v, NamedSharding) else v for k, v in eqn.params.items()})


def _collective_axes(eqn: Eqn) -> Axes:
    """Returns the mesh axes that a collective names."""
    names: Any = eqn.params.get("axis_name", eqn.params.get("axes", ()))
    row: Sequence[Any] = (names,) if isinstance(names, str) else names
    mesh = jax.sharding.get_abstract_mesh()
    return frozenset(a for a in row if isinstance(a, str) and a in mesh.axis_names)


def _numbered(eqn: Eqn) -> dict[str, int]:
    """Returns the mesh axes that the groups of a collective number devices over, with their sizes."""
    names: Any = eqn.params.get("axis_name", eqn.params.get("axes", ()))
    sizes = jax.sharding.get_abstract_mesh().shape
    return {a: sizes[a] for a in ((names,) if isinstance(names, str) else names) if a in sizes}


def _along_axes(eqn: Eqn) -> Eqn:
    """Returns a collective among groups of devices along axes as one over these axes; any other equation unchanged."""
    groups, name = eqn.params.get("axis_index_groups"), "axes" if "axes" in eqn.params else "axis_name"
    axes, order = (None if groups is None else axes_of_groups(groups, _numbered(eqn))) or (None, None)
    # The order of devices does not change a sum or an extreme, which alone have the parameter `axes`.
    if axes is None or (name != "axes" and order != ()):
        return eqn
    return eqn.replace(params={**eqn.params, name: axes, "axis_index_groups": None})


def _sum(x: jax.Array, axis: tuple[int, ...]) -> jax.Array:
    # jnp.sum widens small integers; a collective does not.
    return jnp.sum(x, axis=axis, dtype=x.dtype)


def _reduce(across: Callable[..., jax.Array], along: Callable[..., jax.Array]) -> Rule:
    """Returns the rule of a reduction over mesh axes; JAX has replaced named axes of an outer vmap by positions."""

    def rule(eqn: Eqn, operands: list[jax.Array]) -> list[jax.Array]:
        names = tuple(a for a in eqn.params["axes"] if not isinstance(a, int))
        dims = tuple(a for a in eqn.params["axes"] if isinstance(a, int))
        values = [along(x, axis=dims) if dims else x for x in operands]
        if not names:
            return values
        groups = eqn.params["axis_index_groups"]
        return list(across([spread(x, _collective_axes(eqn)) for x in values], names, axis_index_groups=groups))

    return rule


def _all_gather(eqn: Eqn, operands: list[jax.Array]) -> list[jax.Array]:
    params, groups = eqn.params, eqn.params["axis_index_groups"]
    (x,), names, at = operands, params["axis_name"], params["all_gather_dimension"]
    names, order = (names, ()) if groups is None else axes_of_groups(groups, _numbered(eqn)) or (names, None)
    if order is None:
        return bind(eqn, [spread(x, _collective_axes(eqn))])
    axes = frozenset((names,) if isinstance(names, str) else names)
    # The result is the same on every device; this form of the collective types it so.
    made = lax.all_gather(spread(x, axes), names, axis=at, tiled=params["tiled"], to="invarying")
    return [in_order(made, order, at)]


def in_order(gathered: jax.Array, order: Sequence[int], dim: int) -> jax.Array:
    """Returns what was gathered along axes with its parts in an order, as of `axes_of_groups`."""
    parts = jnp.split(gathered, len(order), dim) if order else []
    return jnp.concatenate([parts[i] for i in order], dim) if order else gathered
