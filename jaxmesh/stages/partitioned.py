"""Programs that the partitioner made of a plain function with shardings: their signature, and how they run."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
from jax.sharding import NamedSharding

from jaxmesh.dialects.signature import Argument, Boundary
from jaxmesh.frontends.jax.trace import TtirProgram, program_of
from jaxmesh.frontends.stablehlo.shardings import as_spec, axes_of
from jaxmesh.frontends.stablehlo.trace import Asked
from jaxmesh.jaxprs.compat import Jaxpr
from jaxmesh.jaxprs.differentiable import Program, call, on_devices_of
from jaxmesh.jaxprs.user_trace import FunctionTrace
from jaxmesh.sharding.mesh import AnyMesh
from jaxmesh.stages.checked_calls import Checks
from jaxmesh.stages.stages import Lowered, Traced

_tree: Any = jax.tree


def traced_program(program: TtirProgram, boundary: Boundary, asked: Asked) -> Traced:
    """Returns the traced program, with the arguments that the partitioner leaves on the mesh."""
    made = program.partitioned
    if made is None:
        return Traced.of(boundary, program)
    rows = zip(boundary.arguments, made.arguments, asked.presharded, program.jaxpr.in_avals, strict=True)
    arguments = tuple(_argument(a, s, here, aval, boundary.mesh) for a, s, here, aval in rows)
    kept = made.out_specs if asked.keeps else ()
    return Traced.of(dataclasses.replace(boundary, arguments=arguments, kept=kept), program, made.decisions)


def _argument(argument: Argument, sharding: Any, presharded: bool, aval: Any, mesh: AnyMesh) -> Argument:
    if not presharded:
        return argument
    used = set(axes_of(sharding))
    local = jax.ShapeDtypeStruct(aval.shape, aval.dtype, weak_type=argument.aval.weak_type)
    varying = tuple(a for a in mesh.axis_names if a in used)
    return Argument(local, varying, NamedSharding(mesh, as_spec(sharding)))


def run_partitioned(
    lowered: Lowered, plain: Jaxpr, asked: Asked, leaves: Sequence[Any], mesh: AnyMesh, checks: Checks | None
) -> list[Any]:
    """Runs a partitioned program inside a trace, with the derivatives of the program of full values."""
    made = Program(
        plain, asked.arguments, asked.results, on_devices_of(mesh), _Partition(mesh), _flat_run(lowered, mesh, checks)
    )
    return call(made, leaves)


def _flat_run(lowered: Lowered, mesh: AnyMesh, checks: Checks | None) -> Callable[..., list[Any]]:
    return lambda *args: _tree.leaves(lowered.run(args, mesh, checks))


@dataclass(frozen=True, slots=True)
class _Partition:
    """Partitions the program of a derivative."""

    mesh: AnyMesh

    def __call__(self, plain: Jaxpr, ins: tuple[Any, ...], outs: tuple[Any, ...]) -> Callable[..., list[Any]]:
        tree = _tree.structure((0,) * len(plain.out_avals))
        asked = Asked(ins, (False,) * len(ins), outs, given=True)
        program = program_of(FunctionTrace(plain, tree, ins, outs), asked, self.mesh)
        structs = [jax.ShapeDtypeStruct(a.shape, a.dtype) for a in plain.in_avals]
        in_tree = _tree.structure((tuple(range(len(structs))), {}))
        boundary = Boundary("derivative", self.mesh, in_tree, tuple(Argument(s, None) for s in structs))
        return _flat_run(traced_program(program, boundary, asked).lower(), self.mesh, None)
