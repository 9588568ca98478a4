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
    makers = {v: op for op in program.ops for v in op.results}
    ops = [op for op in program.ops for op in _folded(program, makers, op)]
    return without_dead(_with_scalars(program.like(ops, program.results)))


def _is_uniform(op: Op) -> bool:
    """Returns True for an op that creates a tensor of one number."""
    return has_trait(op.name, Trait.CREATES) and "shape" in op.attributes


def _is_elementwise(op: Op) -> bool:
    return op.name in _ELEMENTWISE


def _folded(program: Program, makers: dict[Value, Op], op: Op) -> Iterator[Op]:
    """Yields an op that reads what its operands are broadcast from."""
    if not _is_elementwise(op):
        yield op
        return
    operands = tuple([None if v is None else _source(makers, v) for v in op.operands])
    yield from _with_result(program, op if operands == op.operands else replace_operands(op, operands))


def _source(makers: dict[Value, Op], value: Value) -> Value:
    maker = makers.get(value)
    if maker is None or maker.name != "ttir.broadcast":
        return value
    counts: Shape = maker.attributes["broadcast_dimensions"]
    return value if any(n != 1 for n in counts[:-_MOST_DIMS]) else maker.used[0]


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
        if _is_uniform(op) and op.results[0] not in read_whole:
            (value,) = op.results
            kind = program.types[value]
            if math.prod(kind.shape) != 1:
                shape = (1,) * len(kind.shape)
                program.types[value] = replace(kind, shape=shape)
                op = Op(op.name, op.operands, op.results, {**op.attributes, "shape": shape}, op.line)
                shrunk.add(value)
        if not shrunk.isdisjoint(op.used):
            ops += _with_result(program, op)
        else:
            ops.append(op)
    return program.like(ops, program.results)
