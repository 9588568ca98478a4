"""From a jaxpr and the shardings asked for to a partitioned program; when the partitioner is used at all."""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import jax
from jax.sharding import AbstractMesh, NamedSharding

from jaxmesh.dialects.ttir.mesh_shard import full_to_shard, shard_to_full
from jaxmesh.dialects.varying import vary_alike
from jaxmesh.errors import InexpressibleError, MeshMismatchError
from jaxmesh.frontends.jax.retype import varying
from jaxmesh.frontends.jax.shard_map import check_mesh, is_partly_manual, is_region
from jaxmesh.frontends.stablehlo.shardings import as_spec
from jaxmesh.jaxprs import compat, evaluate, source_locations, walk
from jaxmesh.jaxprs.compat import Aval, Eqn, Jaxpr, as_abstract
from jaxmesh.jaxprs.primitives import CALLBACKS, CALLS_HOST
from jaxmesh.jaxprs.rewrite import copy_constants
from jaxmesh.jaxprs.source_locations import Sources
from jaxmesh.jaxprs.stablehlo import keep_equations, lower_to_stablehlo, struct
from jaxmesh.jaxprs.typed import typed
from jaxmesh.jaxprs.user_trace import FunctionTrace
from jaxmesh.sharding.mesh import AnyMesh, show_mesh
from jaxmesh.sharding.shard_attributes import named_axes

if TYPE_CHECKING:
    from jaxmesh.frontends.stablehlo.program import ImportedProgram

_CONSTRAINTS = ("sharding_constraint", "reshard", "mesh_cast", "device_put", "jit")
"""JAX's primitives that ask for a sharding inside of a program."""
_USERS = ("sharding_constraint", "device_put", "jit")
"""Those that only a user's call makes."""


@dataclass(frozen=True, slots=True)
class Asked:
    """The shardings that are asked for at the ends of a program.

    Attributes:
      arguments: per leaf of the arguments the sharding that is asked for, or that an array carries; None for none.
      presharded: which arguments are arrays on the mesh already.
      results: per leaf of the results the sharding that is asked for, or None.
      given: whether shardings were given to `jaxmesh.jit`.
      keeps: whether results stay on the mesh, as `ttcore.shard_status<presharded>`; else they are aggregated.
    """

    arguments: tuple[NamedSharding | None, ...]
    presharded: tuple[bool, ...]
    results: tuple[NamedSharding | None, ...] = ()
    given: bool = False
    keeps: bool = False

    def splits(self) -> bool:
        """Returns True if an argument is split over more than one device."""
        return self.given or any(s is not None and is_split(s) for s in self.arguments)

    def check_kinds(self) -> None:
        """Checks that TTIR can express every sharding.

        Raises:
          InexpressibleError: it is not a NamedSharding, or has reduced or unreduced axes.
        """
        for sharding in (*self.arguments, *self.results):
            if sharding is None:
                continue
            if not isinstance(sharding, NamedSharding):
                raise InexpressibleError(
                    f"the sharding {sharding} has no form in TTIR, which has NamedShardings over the program's mesh "
                    "alone; the program runs as JAX runs it."
                )
            if sharding.spec.unreduced or sharding.spec.reduced:
                raise InexpressibleError(
                    f"the sharding {sharding.spec} has unreduced or reduced axes, which TTIR has no attribute for; the "
                    "program runs as JAX runs it. Reduce inside of the program to get its text."
                )


def is_split(sharding: object) -> bool:
    """Returns True if a sharding splits a value over more than one device of a mesh."""
    return isinstance(sharding, NamedSharding) and any(sharding.mesh.shape[a] > 1 for a in named_axes(sharding.spec))


def constraints(jaxpr: Jaxpr) -> list[Eqn]:
    """Returns the equations that ask for a sharding over several devices.

    A user also asks for copies on all devices. JAX reshards scalars of derivatives to copies by itself.
    """
    named = (e for e in walk.all_eqns(jaxpr) if e.primitive.name in _CONSTRAINTS)
    return [
        e for e in named if any(is_split(s) or (s.mesh.size > 1 and e.primitive.name in _USERS) for s in wanted_by(e))
    ]


def _parameters(eqn: Eqn) -> list[object]:
    rows: list[Sequence[object]] = [v if isinstance(v, tuple | list) else [v] for v in eqn.params.values()]
    return [value for row in rows for value in row]


def wanted_by(eqn: Eqn) -> list[NamedSharding]:
    """Returns the shardings that an equation names."""
    return [s for s in _parameters(eqn) if isinstance(s, NamedSharding) and not s.mesh.empty]


DEVICE_MEMORY = (None, "device", "unpinned_host")
"""The kinds of memory that the devices have by default."""


def unkept(plain: Jaxpr) -> list[str]:
    """Returns the memories, layouts and work on the host that a program asks for; TTIR lacks attributes for them."""
    found: dict[str, None] = {}
    for eqn in walk.all_eqns(plain):
        asks: list[str] = []
        for value in _parameters(eqn) if eqn.primitive.name in _CONSTRAINTS else ():
            kind = "host" if value is jax.memory.Space.Host else getattr(value, "memory_kind", None)
            asks += [f"the memory {kind!r}"] if kind not in DEVICE_MEMORY else []
        layout = eqn.params.get("layout") if eqn.primitive.name in (*_CONSTRAINTS, "layout_constraint") else None
        asks += [f"the layout {layout}"] if layout is not None else []
        place = getattr(eqn.ctx, "compute_type", None)
        asks += [f"work on {place!r}"] if place is not None else []
        for ask in asks:
            found[f"{eqn.primitive.name} ({source_locations.source_line(eqn)}) asks for {ask}"] = None
    return list(found)


def place(x: jax.Array, sharding: NamedSharding | None) -> jax.Array:
    """Splits a full value of a program by hand into the given sharding and joins it again; a shard stays unchanged.

    The program splits it again; the pass removes such pairs.
    """
    if sharding is None or varying(x):
        return x
    return shard_to_full(full_to_shard(x, sharding.spec), sharding.spec)


def is_automatic(plain: Jaxpr, asked: Asked) -> bool:
    """Returns True if the partitioner decides on a program: shardings are asked for somewhere, or a `shard_map` leaves
    axes to it."""
    if asked.splits() or any(map(is_partly_manual, walk.all_eqns(plain))):
        return True
    made = (v for e in walk.all_eqns(plain) for v in e.outvars)
    explicit = any(_typed_split(v.aval) for v in itertools.chain(walk.open_jaxpr(plain).invars, made))
    return explicit or bool(constraints(plain))


def _typed_split(aval: Aval) -> bool:
    sharding = getattr(aval, "sharding", None)
    return sharding is not None and not sharding.mesh.empty and is_split(sharding)


_NO_LOWERING = re.compile(r"rule for primitive '(\w+)' not found for platform (\w+)")


def partition_program(plain: Jaxpr, asked: Asked, mesh: AnyMesh) -> ImportedProgram:
    """Partitions a program that JAX traced, a closed jaxpr of full values.

    Raises:
      MeshMismatchError: a constraint over another mesh.
      InexpressibleError: an op that has no meaning here.
    """
    # Most programs are not partitioned, and load none of the rules of StableHLO's ops.
    from jaxmesh.frontends.stablehlo.program import import_module

    abstract = as_abstract(mesh)
    _check_equations(plain, abstract)
    ends = [on_mesh(s, abstract) for s in asked.arguments], [on_mesh(s, abstract) for s in asked.results]
    kept: list[Eqn] = []
    try:
        module = lower_to_stablehlo(keep_equations(plain, kept), *ends)
    except (ValueError, NotImplementedError, AssertionError) as error:
        unknown = _NO_LOWERING.search(str(error))
        if unknown:
            raise InexpressibleError(
                f"{unknown[1]} of a program with shardings neither runs nor has a text: JAX does not lower it for the "
                f"{unknown[2]} ({str(error)[:200]}); for the text, leave the shardings out of jit, and let "
                "jax.shard_map split the arguments"
            ) from error
        raise InexpressibleError(
            f"the program runs as JAX runs it, but has no TTIR or TTNN text: JAX lowers it for real devices alone "
            f"({str(error)[:200]})"
        ) from error
    return import_module(
        module,
        abstract,
        Sources(walk.all_eqns(plain)),
        presharded=asked.presharded,
        consts=list(walk.constants(plain).values()),
        results_asked=[r is not None for r in asked.results],
        kept_results=[asked.keeps] * len(asked.results),
        avals=(plain.in_avals, plain.out_avals),
        equation=lambda i, x: _kept_equation(kept[i], x, mesh),
    )


def _kept_equation(eqn: Eqn, operands: Sequence[Any], mesh: AnyMesh) -> list[Any]:
    """Performs an equation without an op of StableHLO, on shards; an equation without results reads its operand."""
    if eqn.primitive.name == "inspect_sharding":
        eqn.params["callback"](NamedSharding(mesh, as_spec(operands[0].sharding)))
        return []
    return evaluate.bind(eqn, vary_alike(*operands))


def on_mesh(sharding: NamedSharding | None, mesh: AnyMesh) -> NamedSharding | None:
    """Returns a sharding over another mesh with the same axes."""
    return None if sharding is None else NamedSharding(mesh, sharding.spec)


def _check_equations(plain: Jaxpr, mesh: AbstractMesh) -> None:
    for eqn in walk.all_eqns(plain):
        name = eqn.primitive.name
        if name in CALLBACKS:
            line = source_locations.source_line(eqn)
            raise InexpressibleError(f"no text for primitive {name!r} ({line}): {CALLS_HOST}.")
        if is_region(eqn):
            check_mesh(eqn, mesh)
        if name not in _CONSTRAINTS:
            continue
        for sharding in wanted_by(eqn):
            if dict(sharding.mesh.shape) != dict(mesh.shape):
                if isinstance(sharding.mesh, AbstractMesh) and sharding.mesh.size == mesh.size:
                    raise InexpressibleError(
                        f"{name} ({source_locations.source_line(eqn)}) is over other axes of the devices, "
                        f"{show_mesh(sharding.mesh)}, and a TTIR program has one mesh; it runs as JAX runs it."
                    )
                raise MeshMismatchError(
                    f"{name} ({source_locations.source_line(eqn)}) is over the mesh "
                    f"{show_mesh(sharding.mesh)}, the program over {show_mesh(mesh)}; one program has one mesh."
                )


def plain_call(plain: FunctionTrace) -> Jaxpr:
    """Returns a program as one call of `jax.jit` with the shardings that were given, as JAX runs it."""
    jaxpr = copy_constants(plain.jaxpr)
    body = walk.open_jaxpr(jaxpr)
    if not all(compat.is_array_type(v.aval) for v in (*body.constvars, *body.invars)):
        return jaxpr

    def run(*args: jax.Array) -> tuple[jax.Array, ...]:
        return tuple(evaluate.eval_jaxpr(jaxpr, *args))

    jitted = typed.jit(run, in_shardings=plain.in_shardings, out_shardings=plain.out_shardings)
    return typed.make_jaxpr(jitted)(*map(struct, jaxpr.in_avals))
