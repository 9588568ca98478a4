"""Groups of operations that are one operation of TTIR: softmax, rms_norm, layer_norm, gelu, silu, linear and others.

They are found by the flow of the data alone, each from its last operation, in one walk; a group may hold one found
before (rms_norm a mean, silu a sigmoid). No value changes beyond rounding: what would overflow, cancel or meet NaN in
another way than the operation is left as it is.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Set as AbstractSet

from jaxmesh.dialects.program import Op, Program, Type, Value, without_dead
from jaxmesh.passes.fusion import activations as pointwise, norms as norms
from jaxmesh.passes.fusion.dataflow import Flow, Node, Operand
from jaxmesh.passes.fusion.linear import linear
from jaxmesh.passes.fusion.pattern import Group, Pattern

_DIVISION: tuple[Pattern, ...] = (
    norms.softmax, norms.mean, norms.norm, pointwise.sigmoid, pointwise.silu, pointwise.gelu,
)  # fmt: skip
PATTERNS: Mapping[str, tuple[Pattern, ...]] = {
    "ttir.div": _DIVISION,
    "ttir.divide": _DIVISION,
    "ttir.multiply": (
        norms.softmax, norms.mean, norms.norm, norms.weighted, pointwise.silu, pointwise.gelu,
    ),
    "ttir.reciprocal": (pointwise.sigmoid,),
    "ttir.add": (linear, norms.shifted),
    "ttir.maximum": (pointwise.relu,),
    "ttir.typecast": (norms.narrow,),
}  # fmt: skip
"""By the name of a group's last operation: what it may be, tried in this order."""

_STATISTICS = frozenset({"ttir.sum", "ttir.mean"})
_NEEDED: Mapping[Pattern, frozenset[str]] = {
    norms.softmax: frozenset({"ttir.exp"}),
    norms.mean: _STATISTICS,
    norms.norm: _STATISTICS,
    norms.weighted: _STATISTICS | {"ttir.rms_norm", "ttir.layer_norm"},
    norms.shifted: _STATISTICS | {"ttir.rms_norm", "ttir.layer_norm"},
    norms.narrow: _STATISTICS | {"ttir.exp", "ttir.rms_norm", "ttir.layer_norm", "ttir.softmax"},
    pointwise.sigmoid: frozenset({"ttir.exp"}),
    pointwise.silu: frozenset({"ttir.exp", "ttir.sigmoid"}),
    pointwise.gelu: frozenset({"ttir.erf", "ttir.erfc"}),
    pointwise.relu: frozenset({"ttir.maximum"}),
    linear: frozenset({"ttir.matmul"}),
}
"""Operations of which a group holds at least one, so that most programs need not be looked through for it."""


def recognise(program: Program) -> Program:
    """A flat program, of either level, with its groups as single operations.

    An intermediate value that is used elsewhere, too, stays, unless it is a sum or a product, which would be computed
    twice: then there is no group. What nothing reads any more is dropped.
    """
    made = Program(program.name, program.mesh, list(program.types), program.arguments, [], program.results)
    patterns = _possible({op.name for op in program.ops})
    if not patterns:
        return made.like(program.ops, made.results)
    flow = Flow(made, _uses(program))
    for op in program.ops:
        flow.enter(op)
        found = _found(flow, op, patterns.get(op.name))
        if found is None:
            made.ops.append(op)
            continue
        for new in _written(flow, found, op):
            flow.enter(new)
            made.ops.append(new)
    return without_dead(made)


def _possible(names: AbstractSet[str]) -> dict[str, tuple[Pattern, ...]]:
    """The patterns of which a program with operations of these names may have one, by last operation."""
    able = {p for p, needed in _NEEDED.items() if not needed.isdisjoint(names)}
    rows = {name: tuple(p for p in row if p in able) for name, row in PATTERNS.items() if name in names}
    return {name: row for name, row in rows.items() if row}


def _uses(program: Program) -> Counter[Value]:
    uses = Counter(v for op in program.ops for v in op.used)
    uses.update(r.value for r in program.results)
    return uses


def _found(flow: Flow, op: Op, patterns: tuple[Pattern, ...] | None) -> Group | None:
    if patterns is None or op.results[0] in flow.moved or op.results[0] in flow.numbers:
        return None
    root = Node.at(flow, op)
    return next((g for pattern in patterns if (g := pattern(root))), None)


def _written(flow: Flow, group: Group, root: Op) -> list[Op]:
    """The operations of a group: reshapes of operands, itself, a reshape of its result."""
    ops: list[Op] = []
    operands = [None if o is None else _shaped(flow, o, root, ops) for o in group.operands]
    (result,) = root.results
    kind = flow.program.types[result]
    reshaped = group.shape is not None and group.shape != kind.shape
    inner = flow.program.new(Type(group.shape or (), kind.dtype)) if reshaped else result
    ops.append(Op(f"ttir.{group.name}", tuple(operands), (inner,), group.attributes, root.line))
    if reshaped:
        ops.append(Op("ttir.reshape", (inner,), (result,), {"shape": kind.shape}, root.line))
    return ops


def _shaped(flow: Flow, operand: Operand, root: Op, ops: list[Op]) -> Value:
    value, shape = operand
    if flow.shape(value) == shape:
        return value
    made = flow.program.new(Type(shape, flow.dtype(value)))
    ops.append(Op("ttir.reshape", (value,), (made,), {"shape": shape}, root.line))
    return made
