"""The moves of the flat TTNN program for one collective: the pipeline runs on that equation alone."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace

import numpy as np

from jaxmesh.analysis.explain.records import Move
from jaxmesh.analysis.explain.traffic import exchange
from jaxmesh.dialects.definitions import has_trait
from jaxmesh.dialects.op import Trait
from jaxmesh.dialects.program import Op, Program
from jaxmesh.errors import JaxmeshError
from jaxmesh.jaxprs import remarks, walk
from jaxmesh.jaxprs.compat import Eqn, Jaxpr, Literal
from jaxmesh.jaxprs.remarks import Remark
from jaxmesh.passes.flatten.flatten import flatten
from jaxmesh.passes.pipeline import FUSE, run_passes, ttnn_pipeline


def ttnn_moves(eqn: Eqn, body: Jaxpr, mesh: Mapping[str, int]) -> tuple[list[Move], list[Remark]]:
    """Returns the moves of the TTNN ops that one collective in `body` becomes, and the remarks of the passes."""
    operands = list(dict.fromkeys(a for a in eqn.invars if not isinstance(a, Literal)))
    alone = walk.close(walk.rebuild(body, [], operands, [eqn], list(eqn.outvars)), ())
    ins, outs = [(True, "")] * len(operands), [(True, "")] * len(eqn.outvars)
    with remarks.collect() as log:
        try:
            flat = flatten(alone, name="alone", mesh=mesh, level="ttnn", arguments=ins, results=outs)
            program = run_passes(ttnn_pipeline(strict=False), flat, without=(FUSE,))
        except JaxmeshError as error:
            return [], [Remark("no TTNN", str(error), "what has no rule is an error when the text is asked for")]
    return _merge(m for op in program.ops for m in _moves(op, program)), log.general


def _merge(moves: Iterable[Move]) -> list[Move]:
    """Merges equal moves from one device to another."""
    merged: dict[object, Move] = {}
    for number, move in enumerate(moves):
        key = (move.axes, move.bytes) if move.kind == "point_to_point" else number
        old = merged.get(key)
        merged[key] = move if old is None else replace(old, groups=old.groups + 1, sent=old.sent + move.sent)
    return list(merged.values())


def _moves(op: Op, program: Program) -> list[Move]:
    name, mesh = op.name.removeprefix("ttnn."), program.mesh
    names, devices = list(mesh), math.prod(mesh.values())
    if name == "point_to_point":
        pair = zip(names, op.attributes["sender_coord"], op.attributes["receiver_coord"], strict=True)
        axes = tuple(a for a, s, t in pair if s != t)
        sent = _bytes(program, op.used[0])
        return [Move(name, axes, 2, 1, sent, sent)] if sent else []
    if not has_trait(op.name, Trait.SENDS):
        return []
    number: int = op.attributes["cluster_axis"]
    axis = names[number]
    kind = "all_reduce" if name.startswith("all_reduce") else name
    operand, result = _bytes(program, op.used[0]), _bytes(program, op.results[0])
    return exchange(kind, (axis,), mesh[axis], devices // mesh[axis], operand, result)


def _bytes(program: Program, value: int) -> int:
    kind = program.types[value]
    return math.prod(kind.shape) * np.dtype(kind.dtype).itemsize
