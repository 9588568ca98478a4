"""Fuses groups of operations into one operation of TTIR: softmax, rms_norm, layer_norm, gelu, linear, attention.

Patterns match by dataflow alone, each from the last operation of a group, in one walk. A group may contain one fused
before (rms_norm a mean, silu a sigmoid). No value changes beyond rounding: a group that would overflow, cancel or treat
NaN differently is not fused. Attention is the exception: scores that are left out are lowered by a number, so a NaN
among them stays.
"""

from __future__ import annotations

from collections.abc import Sequence, Set as AbstractSet
from dataclasses import dataclass, replace

from jaxmesh.dialects.program import Op, Program, Type, Value, without_dead
from jaxmesh.passes.def_use import use_counts
from jaxmesh.passes.fusion import activations, attention, norms
from jaxmesh.passes.fusion.activations import linear
from jaxmesh.passes.fusion.axes import moves
from jaxmesh.passes.fusion.dataflow import Flow, Node, Operand
from jaxmesh.passes.fusion.pattern import Group, Pattern


@dataclass(frozen=True)
class Fusion:
    """A pattern, and when to try it.

    Attributes:
      pattern: matches a group from its last operation.
      roots: names of the last operation of a group.
      needs: names of operations of which a group holds at least one, so that most programs are never searched for it.
    """

    pattern: Pattern
    roots: tuple[str, ...]
    needs: tuple[str, ...]


_DIVISION = ("div", "divide")
_SCALING = (*_DIVISION, "multiply")
_STATISTICS = ("sum", "mean")
_NORMS = (*_STATISTICS, "rms_norm", "layer_norm")
FUSIONS = (
    Fusion(norms.softmax, _SCALING, ("exp",)),
    Fusion(norms.mean, _SCALING, _STATISTICS),
    Fusion(norms.norm, _SCALING, _STATISTICS),
    Fusion(norms.weighted_norm, ("multiply",), _NORMS),
    Fusion(activations.sigmoid, (*_DIVISION, "reciprocal"), ("exp",)),
    Fusion(activations.silu, _SCALING, ("exp", "sigmoid")),
    Fusion(activations.gelu, _SCALING, ("erf", "erfc")),
    Fusion(linear, ("add",), ("matmul",)),
    Fusion(norms.shifted_norm, ("add",), _NORMS),
    Fusion(activations.relu, ("maximum",), ("maximum",)),
    Fusion(norms.narrow, ("typecast",), _NORMS),
)
"""Tried in this order."""

OF_GROUPS = (
    Fusion(attention.attention, ("matmul",), ("softmax",)),
    Fusion(attention.rearranged, ("permute", "reshape", "squeeze", "unsqueeze"), ("softmax",)),
)
"""Patterns of groups that are made of groups."""


def fuse(program: Program) -> Program:
    """Fuses the groups of a flat program of either level.

    An intermediate value with other uses remains, unless it is a sum or a product, which would be computed twice: then
    the group is not fused. Operations without uses are dropped.
    """
    return _fuse(_fuse(program, FUSIONS), OF_GROUPS)


def _fuse(program: Program, fusions: Sequence[Fusion]) -> Program:
    made = replace(program, types=list(program.types), ops=[])
    patterns = _possible({op.name for op in program.ops}, fusions)
    if not patterns:
        return made.like(program.ops, made.results)
    flow = Flow(made, use_counts(program))
    for op in program.ops:
        flow.enter(op)
        found = _match(flow, op, patterns.get(op.name))
        if found is None:
            made.ops.append(op)
            continue
        for new in _operations(flow, found, op) if isinstance(found, Group) else found:
            flow.enter(new)
            made.ops.append(new)
    return without_dead(made)


def _possible(names: AbstractSet[str], fusions: Sequence[Fusion]) -> dict[str, tuple[Pattern, ...]]:
    """Returns the patterns that may match in a program with operations of these names, by last operation."""
    patterns: dict[str, tuple[Pattern, ...]] = {}
    for fusion in fusions:
        if any(f"ttir.{n}" in names for n in fusion.needs):
            for root in (f"ttir.{r}" for r in fusion.roots if f"ttir.{r}" in names):
                patterns[root] = (*patterns.get(root, ()), fusion.pattern)
    return patterns


def _match(flow: Flow, op: Op, patterns: tuple[Pattern, ...] | None) -> Group | Sequence[Op] | None:
    if patterns is None or op.results[0] in flow.numbers:
        return None
    if op.results[0] in flow.moved and not moves(op):
        return None
    root = Node.at(flow, op)
    return next((g for pattern in patterns if (g := pattern(root))), None)


def _operations(flow: Flow, group: Group, root: Op) -> list[Op]:
    """Returns the operations of a fused group: reshapes of operands, the operation, a reshape of its result."""
    ops: list[Op] = []
    operands = [None if o is None else _reshape(flow, o, root, ops) for o in group.operands]
    (result,) = root.results
    kind = flow.program.types[result]
    reshaped = group.shape is not None and group.shape != kind.shape
    inner = flow.program.new(Type(group.shape or (), kind.dtype)) if reshaped else result
    ops.append(Op(f"ttir.{group.name}", tuple(operands), (inner,), group.attributes, root.line))
    if reshaped:
        ops.append(Op("ttir.reshape", (inner,), (result,), {"shape": kind.shape}, root.line))
    return ops


def _reshape(flow: Flow, operand: Operand, root: Op, ops: list[Op]) -> Value:
    value, shape = operand
    if flow.shape(value) == shape:
        return value
    made = flow.program.new(Type(shape, flow.dtype(value)))
    ops.append(Op("ttir.reshape", (value,), (made,), {"shape": shape}, root.line))
    return made
