"""Elementwise ops of a flat TTIR program broadcast their operands themselves; created ones become a single element.

The passes TTIRImplicitBroadcastFold and TTIRFoldFullToScalar of tt-mlir 19c86fca
(lib/Dialect/TTIR/Transforms/Broadcast.cpp). Where the operands that are left have a smaller shape than the result, the
op computes that one, and the broadcast follows it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from jaxmesh.dialects.definitions import has_trait
from jaxmesh.dialects.op import Trait
from jaxmesh.dialects.program import Op, Program, Shape, Value, without_dead
from jaxmesh.dialects.ttir.elementwise import OPS as ELEMENTWISE

_ELEMENTWISE = frozenset(f"ttir.{name}" for name in ELEMENTWISE)
_MOST_DIMS = 6
"""TTNN broadcasts the last dims alone."""


def fold_broadcasts(program: Program) -> Program:
    """Returns the program with implicit broadcasts in place of explicit ones where elementwise ops read them."""
    program = replace(program, types=list(program.types))
    sources = {op.results[0]: op.used[0] for op in program.ops if op.name == "ttir.broadcast" and _is_folded(op)}
    if sources:
        ops = [new for op in program.ops for new in _folded(program, sources, op)]
        program = program.like(ops, program.results)
    return without_dead(_with_scalars(program))


def _is_uniform(op: Op) -> bool:
    """Returns True for an op that creates a tensor of one number."""
    return has_trait(op.name, Trait.CREATES) and "shape" in op.attributes


def _is_elementwise(op: Op) -> bool:
    return op.name in _ELEMENTWISE


def _folded(program: Program, sources: dict[Value, Value], op: Op) -> Iterator[Op]:
    """Yields an op that reads what its operands are broadcast from."""
    if sources.keys().isdisjoint(op.operands) or not _is_elementwise(op):
        yield op
        return
    operands = tuple([None if v is None else sources.get(v, v) for v in op.operands])
    yield from _with_result(program, replace_operands(op, operands))


def _is_folded(broadcast: Op) -> bool:
    counts: Shape = broadcast.attributes["broadcast_dimensions"]
    return all(n == 1 for n in counts[:-_MOST_DIMS])


def replace_operands(op: Op, operands: tuple[Value | None, ...]) -> Op:
    """Returns an op with other operands."""
    return Op(op.name, operands, op.results, op.attributes, op.line)


def _with_result(program: Program, op: Op) -> Iterator[Op]:
    """Yields an op, and a broadcast of its result where its operands make a smaller one."""
    (result,) = op.results
    kind = program.types[result]
    shapes = [program.types[v].shape for v in op.used]
    if all(shape == kind.shape for shape in shapes):
        yield op
        return
    shape = np.broadcast_shapes(*shapes)
    if shape == kind.shape or len(shape) != len(kind.shape):
        yield op
        return
    small = program.new(replace(kind, shape=shape))
    yield Op(op.name, op.operands, (small,), op.attributes, op.line)
    counts = tuple(n // m if m else 1 for n, m in zip(kind.shape, shape, strict=True))
    yield Op("ttir.broadcast", (small,), (result,), {"broadcast_dimensions": counts}, op.line)


def _with_scalars(program: Program) -> Program:
    """Makes one element of the created tensors that elementwise ops alone read."""
    read_whole = {r.value for r in program.results}
    read_whole |= {v for op in program.ops if not _is_elementwise(op) for v in op.used}
    shrunk: set[Value] = set()
    ops: list[Op] = []
    for op in program.ops:
        if not op.operands and _is_uniform(op) and op.results[0] not in read_whole:
            (value,) = op.results
            kind = program.types[value]
            if math.prod(kind.shape) != 1:
                shape = (1,) * len(kind.shape)
                program.types[value] = replace(kind, shape=shape)
                op = Op(op.name, op.operands, op.results, {**op.attributes, "shape": shape}, op.line)
                shrunk.add(value)
        if not shrunk.isdisjoint(op.operands):
            ops += _with_result(program, op)
        else:
            ops.append(op)
    return program.like(ops, program.results)
