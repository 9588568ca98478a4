"""The signature of a program that the partitioner made of a plain function with shardings."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import jax
from jax.sharding import Mesh, NamedSharding

from jaxmesh.dialects.signature import Argument, Boundary
from jaxmesh.frontends.jax.trace import TtirProgram
from jaxmesh.frontends.stablehlo.shardings import as_spec, axes_of
from jaxmesh.frontends.stablehlo.trace import Asked, on_mesh
from jaxmesh.jaxprs.stablehlo import stablehlo_text
from jaxmesh.sharding.mesh import AnyMesh
from jaxmesh.stages.stages import Traced


def traced_program(program: TtirProgram, boundary: Boundary, asked: Asked) -> Traced:
    """Returns the traced program, with the arguments that the partitioner leaves on the mesh."""
    made = program.partitioned
    if made is None:
        return Traced.of(boundary, program)
    rows = zip(boundary.arguments, made.arguments, asked.presharded, program.jaxpr.in_avals, strict=True)
    arguments = tuple(_argument(a, s, here, aval, boundary.mesh) for a, s, here, aval in rows)
    assert program.plain is not None
    kept = made.out_specs if asked.keeps else ()
    weak = tuple(i for i, a in enumerate(program.plain.out_avals) if a.weak_type)
    boundary = dataclasses.replace(boundary, arguments=arguments, kept=kept, weak=weak)
    abstract = boundary.mesh.abstract_mesh if isinstance(boundary.mesh, Mesh) else boundary.mesh
    ends = [[on_mesh(s, abstract) for s in row] for row in (asked.arguments, asked.results)]
    source = functools.partial(stablehlo_text, program.plain, *ends, boundary.name)
    return Traced.of(boundary, program, made.decisions, source)


def _argument(argument: Argument, sharding: Any, presharded: bool, aval: Any, mesh: AnyMesh) -> Argument:
    if not presharded:
        return argument
    used = set(axes_of(sharding))
    local = jax.ShapeDtypeStruct(aval.shape, aval.dtype, weak_type=argument.aval.weak_type)
    varying = tuple(a for a in mesh.axis_names if a in used)
    return Argument(local, varying, NamedSharding(mesh, as_spec(sharding)))
