"""From `shard_map` equations to `mesh_shard`s with the body between them."""

from __future__ import annotations

from collections.abc import Sequence

import jax
import numpy as np
from jax.sharding import PartitionSpec

from jaxmesh.dialects.ttir.mesh_shard import full_to_shard, shard_to_full
from jaxmesh.errors import InexpressibleError, MeshMismatchError
from jaxmesh.frontends.jax.retype import Retyper, spread, varying
from jaxmesh.jaxprs import compat, evaluate, source_locations, walk
from jaxmesh.jaxprs.compat import Axes, Eqn, Jaxpr
from jaxmesh.jaxprs.strip_mesh import move_to_mesh, splice
from jaxmesh.sharding.mesh import AnyMesh, same_mesh, show_mesh
from jaxmesh.sharding.shard_attributes import spec_axes


def raise_shard_maps(
    program: Jaxpr, args: Sequence[jax.Array], mesh: AnyMesh, assumptions: dict[str, None]
) -> list[jax.Array]:
    """Evaluates a closed jaxpr of full values inside a typed trace over `mesh`, and raises every `shard_map`.

    `assumptions` gets, as keys, the source locations where replication is assumed and not proven.

    Raises:
      MeshMismatchError: a `shard_map` over another mesh.
      InexpressibleError: a `shard_map` that TTIR cannot express.
    """

    def rule(eqn: Eqn, operands: list[jax.Array]) -> list[jax.Array]:
        return raise_one(eqn, operands, mesh, assumptions, splices=True)

    return Retyper({"shard_map": rule}, splices=True).evaluate(program, args)


def is_region(eqn: Eqn) -> bool:
    """Returns True for a `shard_map` that makes axes manual."""
    return eqn.primitive.name == "shard_map" and bool(eqn.params["newly_manual_axes"])


def is_partly_manual(eqn: Eqn) -> bool:
    """Returns True for a `shard_map` that leaves axes of its mesh to the partitioner."""
    return is_region(eqn) and not set(eqn.params["mesh"].axis_names) <= set(eqn.params["newly_manual_axes"])


def has_claims(program: Jaxpr) -> bool:
    """Returns True if a program has `shard_map`s with `check_vma=False`: their specs claim that copies are equal."""
    return any(is_region(e) and not e.params["check_vma"] for e in walk.all_eqns(program))


def raise_one(
    eqn: Eqn, operands: Sequence[jax.Array], mesh: AnyMesh, assumptions: dict[str, None], *, splices: bool = False
) -> list[jax.Array]:
    """Raises one `shard_map` of full operands, in the current typed trace; see `raise_shard_maps` and `splice`."""
    check_mesh(eqn, mesh)
    if (missing := _obstacle(eqn)) is not None:
        raise InexpressibleError(f"{_where(eqn)} runs as JAX runs it, but has no TTIR or TTNN text: {missing}.")
    params = eqn.params
    inner = params["jaxpr"]
    entries = zip(operands, params["in_specs"], inner.invars, strict=True)
    typed: bool = params["check_vma"]
    shards = [_enter(x, s, compat.varying_axes(v.aval) if typed else frozenset()) for x, s, v in entries]
    spliced = splice(inner, shards) if typed and splices and not compat.is_high(inner) else None
    if spliced is not None:
        outs = spliced
    elif typed:
        # The meshes of the context and of the body's types may differ from the program's in their devices.
        body = move_to_mesh(walk.close(inner, ()), jax.sharding.get_abstract_mesh())
        outs = evaluate.eval_jaxpr(body, *shards)
    else:
        outs = Retyper({}).evaluate(inner, shards)
    results = zip(outs, params["out_specs"], strict=True)
    return [_leave(y, s, i, eqn, assumptions) for i, (y, s) in enumerate(results)]


def _enter(x: jax.Array, spec: PartitionSpec, wanted: Axes) -> jax.Array:
    if varying(x):
        # A shard that the body closes over, in a program that also splits by hand, is on the devices already.
        return spread(x, wanted)
    return spread(full_to_shard(x, spec), wanted)


def _leave(y: jax.Array, spec: PartitionSpec, index: int, eqn: Eqn, assumptions: dict[str, None]) -> jax.Array:
    sizes = dict(jax.sharding.get_abstract_mesh().shape)
    named = {a for row in spec_axes(spec, np.ndim(y), sizes) for a in row}
    unproven = sorted(a for a in varying(y) - named if sizes[a] > 1)
    if unproven and not eqn.params["check_vma"]:
        axes = ", ".join(map(repr, unproven))
        place = f"{_where(eqn)}, check_vma=False: result {index}, out_spec {spec}"
        assumptions[f"{place}, is taken to be the same over mesh axis {axes}"] = None
    return shard_to_full(y, spec, assume_replicated=bool(unproven) and not eqn.params["check_vma"])


# --- shard_maps that cannot be raised --------------------------------------------------------------------------------


def check_mesh(eqn: Eqn, mesh: AnyMesh) -> None:
    """Checks that a `shard_map` has the mesh of its program.

    Raises:
      MeshMismatchError: the equation is over another mesh.
    """
    own: AnyMesh = eqn.params["mesh"]
    if not same_mesh(own, mesh):
        raise MeshMismatchError(
            f"{_where(eqn)} is over the mesh {show_mesh(own)}, the program over {show_mesh(mesh)}; one "
            "program has one mesh. Give jaxmesh.jit the shard_map's mesh, or the shard_map the program's."
        )


def _where(eqn: Eqn) -> str:
    line = source_locations.source_line(eqn)
    return f"shard_map ({line})" if line else "shard_map"


def check_values(program: Jaxpr) -> None:
    """Checks that a program takes, and closes over, tensors alone, and that none of its values is partial.

    Raises:
      InexpressibleError: it takes something else, such as a reference, or has a reduced or unreduced value.
    """
    body = walk.open_jaxpr(program)
    for var in (*body.constvars, *body.invars):
        if compat.is_partial(var.aval) or not compat.is_array_type(var.aval):
            raise InexpressibleError(
                f"the program takes, or closes over, a value of type {var.aval}, which is not a tensor of TTIR; it "
                "runs as JAX runs it, without a TTIR or TTNN text."
            )
    for eqn in walk.all_eqns(program):
        for var in filter(lambda v: compat.is_partial(v.aval), eqn.outvars):
            raise InexpressibleError(
                f"{eqn.primitive.name} ({source_locations.source_line(eqn)}) gives {compat.describe(var.aval)}, with "
                "unreduced or reduced axes, which TTIR cannot express; it runs as JAX runs it, without a TTIR or "
                "TTNN text."
            )


def _obstacle(eqn: Eqn) -> str | None:
    """Returns what TTIR cannot express of a `shard_map`, or None."""
    params = eqn.params
    mesh: AnyMesh = params["mesh"]
    left = set(mesh.axis_names) - set(params["newly_manual_axes"])
    if left:
        return (
            f"it is manual over the axes {sorted(params['newly_manual_axes'])} alone, and mesh_shard speaks of all "
            f"axes of the mesh; {sorted(left)} would need a partly manual region"
        )
    specs = [*params["in_specs"], *params["out_specs"]]
    for spec in specs:
        if not isinstance(spec, PartitionSpec):
            return f"{spec!r} is no PartitionSpec"
        waiting = {*spec.unreduced, *spec.reduced}
        if waiting:
            axes = sorted(waiting)
            return f"the spec {spec} has unreduced or reduced axes {axes}, which mesh_shard has no attribute for"
    effects = sorted(str(e) for e in eqn.effects)
    if effects:
        return f"its body has effects ({', '.join(effects)}), and a TTIR function has none"
    return _body_obstacle(params["jaxpr"])


def _body_obstacle(body: Jaxpr) -> str | None:
    for eqn in walk.all_eqns(body):
        if eqn.primitive.name == "shard_map" and any(
            any(s) for s in (*eqn.params["in_specs"], *eqn.params["out_specs"])
        ):
            return "its body maps again over axes that are manual already"
    for var in [*body.invars, *body.outvars, *[v for e in walk.all_eqns(body) for v in e.outvars]]:
        if not compat.is_array_type(var.aval):
            return f"it holds a value of type {var.aval}, which is not a tensor"
        waiting = compat.unreduced_axes(var.aval)
        if waiting:
            return f"it holds {compat.describe(var.aval)}, unreduced over {sorted(waiting)}, which TTIR cannot express"
    return None
