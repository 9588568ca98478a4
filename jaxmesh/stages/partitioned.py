"""Programs that the partitioner made of a plain function with shardings: their signature, and how they run."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
from jax.sharding import NamedSharding

from jaxmesh.dialects.signature import Argument, Boundary
from jaxmesh.frontends.jax.trace import TtirProgram, partitioned_program
from jaxmesh.frontends.stablehlo.decisions import Decision
from jaxmesh.frontends.stablehlo.shardings import as_spec, axes_of
from jaxmesh.frontends.stablehlo.trace import Asked, unkept
from jaxmesh.jaxprs.compat import Jaxpr
from jaxmesh.jaxprs.differentiable import Program, call, on_devices_of
from jaxmesh.sharding.mesh import AnyMesh
from jaxmesh.stages.checked_calls import Checks
from jaxmesh.stages.sharding_warnings import warn_about
from jaxmesh.stages.shardings import warn_unkept
from jaxmesh.stages.stages import Lowered, Traced

_tree: Any = jax.tree


@dataclass(frozen=True, slots=True)
class Partitioned:
    """The origin of a partitioned program: the program of full values, and the shardings at its ends."""

    plain: Jaxpr
    asked: Asked


def traced_program(
    program: TtirProgram, boundary: Boundary, asked: Asked, *, warns: bool = False
) -> tuple[Traced, Partitioned]:
    """Returns the traced program and what the partitioner made it of; warns of what is not kept."""
    made, plain = program.partitioned, program.plain
    assert plain is not None
    decisions: Sequence[Decision] = ()
    if made is not None:
        rows = zip(boundary.arguments, made.arguments, asked.presharded, program.jaxpr.in_avals, strict=True)
        arguments = tuple(_argument(a, s, here, aval, boundary.mesh) for a, s, here, aval in rows)
        boundary, decisions = dataclasses.replace(boundary, arguments=arguments), made.decisions
    if warns:
        for what in unkept(plain):
            warn_unkept(what)
        if made is not None:
            warn_about(made, asked, boundary, plain)
    return Traced.of(boundary, program, decisions), Partitioned(plain, asked)


def _argument(argument: Argument, sharding: Any, presharded: bool, aval: Any, mesh: AnyMesh) -> Argument:
    if not presharded:
        return argument
    used = set(axes_of(sharding))
    local = jax.ShapeDtypeStruct(aval.shape, aval.dtype, weak_type=argument.aval.weak_type)
    varying = tuple(a for a in mesh.axis_names if a in used)
    return Argument(local, varying, NamedSharding(mesh, as_spec(sharding)))


def run_partitioned(
    traced: Traced,
    lowered: Lowered,
    program: Partitioned,
    leaves: Sequence[Any],
    mesh: AnyMesh,
    checks: Checks | None,
) -> Any:
    """Runs a partitioned program inside a trace, or eagerly, with the derivatives of the function it was made of."""
    asked = program.asked
    outs = (None,) * len(program.plain.out_avals) if asked.results is None else tuple(asked.results(traced.out_tree))
    made = Program(
        program.plain, asked.arguments, outs, on_devices_of(mesh), _Partition(mesh), _flat_run(lowered, mesh, checks)
    )
    return jax.tree.unflatten(traced.out_tree, call(made, leaves))


def _flat_run(lowered: Lowered, mesh: AnyMesh, checks: Checks | None) -> Callable[..., list[Any]]:
    return lambda *args: _tree.leaves(lowered.run(args, mesh, checks))


@dataclass(frozen=True, slots=True)
class _Partition:
    """Partitions the program of a derivative."""

    mesh: AnyMesh

    def __call__(self, plain: Jaxpr, ins: tuple[Any, ...], outs: tuple[Any, ...]) -> Callable[..., list[Any]]:
        tree = _tree.structure((0,) * len(plain.out_avals))
        asked = Asked(ins, (False,) * len(ins), lambda _: outs, given=True)
        program = partitioned_program(plain, asked, tree, self.mesh)
        structs = [jax.ShapeDtypeStruct(a.shape, a.dtype) for a in plain.in_avals]
        in_tree = _tree.structure((tuple(range(len(structs))), {}))
        boundary = Boundary("derivative", self.mesh, in_tree, tuple(Argument(s, None) for s in structs))
        return _flat_run(traced_program(program, boundary, asked)[0].lower(), self.mesh, None)
