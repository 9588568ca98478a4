"""Warnings about the shardings of a program, at the lines of the user's source."""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from jaxmesh.dialects.signature import Boundary
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
from jaxmesh.frontends.stablehlo.shardings import axes_of
from jaxmesh.frontends.stablehlo.trace import Asked, is_split, unkept
from jaxmesh.stages.shardings import warn_unkept

if TYPE_CHECKING:
    from jaxmesh.frontends.stablehlo.program import ImportedProgram

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
        _warn(
            f"{boundary.name}: shardings were asked for ({', '.join(str(s.spec) for s in splits[:3])}), but every "
            "value that is computed is whole on every device, so each device computes everything; look at .trace(...)"
            ".decisions for the op that gathers.",
            ReplicatedProgramWarning,
        )
    for i in boundary.donated:
        _check_donated(i, program, boundary, plain.out_avals)


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


def _check_donated(number: int, program: ImportedProgram, boundary: Boundary, out_avals: Sequence[Any]) -> None:
    argument, sharding = boundary.arguments[number], program.arguments[number]
    size = (argument.whole, argument.aval.dtype, sharding)
    if all((tuple(a.shape), a.dtype, s) != size for a, s in zip(out_avals, program.results, strict=True)):
        _warn(
            f"argument {number} of {boundary.name}, {argument.aval.dtype}{list(argument.whole)} split over "
            f"{math.prod(boundary.sizes[a] for a in axes_of(sharding))} devices, is donated, but no result has its "
            "type and sharding, so its memory cannot be reused.",
            DonationWarning,
        )


def _warn(text: str, kind: type[Warning]) -> None:
    warnings.warn(text, kind, stacklevel=6)
