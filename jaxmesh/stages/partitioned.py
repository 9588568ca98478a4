"""A program that the partitioner made of a plain function with shardings: its signature, and warnings about it."""

from __future__ import annotations

import dataclasses
import math
import os
import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING

import jax
from jax.sharding import AxisType, NamedSharding

from jaxmesh.dialects.signature import Argument, Boundary
from jaxmesh.errors import (
    AllGatherWarning,
    ArgumentTypeError,
    DonationWarning,
    DroppedShardingWarning,
    RedundantReductionWarning,
    ReplicatedProgramWarning,
)
from jaxmesh.frontends.jax.trace import TtirProgram
from jaxmesh.frontends.stablehlo.decisions import Decision
from jaxmesh.frontends.stablehlo.shardings import Sharding, as_spec, axes_of
from jaxmesh.frontends.stablehlo.trace import Asked, is_split, on_mesh, unkept
from jaxmesh.jaxprs.compat import Aval, as_abstract
from jaxmesh.sharding.mesh import AnyMesh, splitting_axes
from jaxmesh.stages.shardings import warn_unkept
from jaxmesh.stages.stages import Traced
from jaxmesh.stages.whole_program import WholeProgram

if TYPE_CHECKING:
    from jaxmesh.frontends.stablehlo.program import ImportedProgram


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
    abstract = as_abstract(boundary.mesh)
    ins, outs = ([on_mesh(s, abstract) for s in row] for row in (asked.arguments, asked.results))
    decided = [NamedSharding(abstract, as_spec(s)) for s in made.results] if asked.keeps else ()
    whole = WholeProgram(program.plain, ins, outs, boundary.name, decided)
    return Traced.of(boundary, program, made.decisions, whole)


def _argument(argument: Argument, sharding: Sharding, presharded: bool, aval: Aval, mesh: AnyMesh) -> Argument:
    if not presharded:
        return argument
    local = jax.ShapeDtypeStruct(aval.shape, aval.dtype, weak_type=argument.aval.weak_type)
    return Argument(local, splitting_axes(mesh, axes_of(sharding)), NamedSharding(mesh, as_spec(sharding)))


# --- warnings ---------------------------------------------------------------------------------------------------------


LIMIT = "JAXMESH_ALL_GATHER_WARNING"
"""The environment variable with the bytes of a gathered value above which a reshard is reported, by default 16 MiB."""
_BYTES = 16 * 2**20


def warn_about(traced: TtirProgram, asked: Asked, boundary: Boundary) -> None:
    """Warns about what a partitioned program does not keep, and what costs more than it may seem.

    Each kind has its own class, which `warnings.filterwarnings` turns off.
    """
    program, plain = traced.partitioned, traced.plain
    if program is None or plain is None:
        return
    for what in unkept(plain):
        warn_unkept(what)
    for d in program.decisions:
        _warn_decision(d)
    splits = [s for s in asked.arguments if s is not None and is_split(s)]
    if splits and not program.splits:
        rows = zip(asked.arguments, plain.in_avals, strict=True)
        is_typed = AxisType.Explicit in boundary.mesh.axis_types
        typed_whole = is_typed and any(s is not None and is_split(s) and not is_split(a.sharding) for s, a in rows)
        _warn(
            f"{boundary.name}: shardings were asked for ({', '.join(str(s.spec) for s in splits[:3])}), but every "
            f"value that is computed is whole on every device, so each device computes everything; "
            f"{_CAUSES[typed_whole]}",
            ReplicatedProgramWarning,
        )
    for i in boundary.donated:
        _check_donated(i, program, boundary, plain.out_avals)


_CAUSES = (
    "look at .trace(...).decisions for the op that gathers.",
    "on Explicit axes, JAX types an argument by the sharding that it comes with, and gathers others at the first op. "
    "Give the argument with its sharding (jax.device_put(x, NamedSharding(mesh, spec)), or "
    "jax.ShapeDtypeStruct(..., sharding=...)), or make a mesh of Auto axes with jaxmesh.make_mesh.",
)


def _limit() -> int:
    text = os.environ.get(LIMIT, str(_BYTES))
    if not text.isdigit():
        raise ArgumentTypeError(f"the environment variable {LIMIT} is a number of bytes, got {text!r}.")
    return int(text)


def _warn_decision(d: Decision) -> None:
    match d.kind:
        case "all_gather" if d.bytes > _limit():
            _warn(
                f"{d}; each device then holds {d.bytes} bytes. Ask for another sharding there, or raise {LIMIT}.",
                AllGatherWarning,
            )
        case "dropped" if d.op.startswith(("argument", "result")):
            _warn(f"{d}.", DroppedShardingWarning)
        case "redundant":
            _warn(f"{d}.", RedundantReductionWarning)
        case _:
            pass


def _check_donated(number: int, program: ImportedProgram, boundary: Boundary, out_avals: Sequence[Aval]) -> None:
    argument, sharding = boundary.arguments[number], program.arguments[number]
    size = (argument.whole, argument.aval.dtype, sharding)
    if all((tuple(a.shape), a.dtype, s) != size for a, s in zip(out_avals, program.results, strict=True)):
        _warn(
            f"argument {boundary.paths[number]} of {boundary.name}, {argument.aval.dtype}{list(argument.whole)} split "
            f"over {math.prod(boundary.sizes[a] for a in axes_of(sharding))} devices, is donated, but no result has "
            "its type and sharding, so its memory cannot be reused.",
            DonationWarning,
        )


def _warn(text: str, kind: type[Warning]) -> None:
    warnings.warn(text, kind, stacklevel=6)
