"""Rewrites a program as XLA does around Shardy, whose rules depend on the form of an op.

Before, ops get the form that Shardy splits. After, a matrix product is split in the cheaper of two ways. Where only one
operand is split along a contracted dim, Shardy slices the other one and reduces; XLA gathers the split operand where
that moves less, as in the product of a tall and a wide matrix.
"""

from __future__ import annotations

import functools
import math
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from jaxmesh.frontends.stablehlo import shardings
from jaxmesh.frontends.stablehlo.bindings import hlo, ir
from jaxmesh.frontends.stablehlo.call import enum_of
from jaxmesh.frontends.stablehlo.gspmd import create, replace
from jaxmesh.frontends.stablehlo.reductions import constant_of
from jaxmesh.frontends.stablehlo.shardings import OWN, WRITTEN, Sharding, count, local_shape, requested
from jaxmesh.frontends.stablehlo.values import moved_elements


def simplify(body: Sequence[Any]) -> None:
    """Rewrites ops of a function."""
    for op in body:
        if op.name == "stablehlo.broadcast_in_dim":
            _reshape_broadcast(op)
        elif op.name == "stablehlo.dynamic_slice":
            _slice_at_constants(op)
        elif op.name == "stablehlo.while":
            _capture_invariants(op)


def _reshape_broadcast(op: Any) -> None:
    """Replaces a broadcast that only adds dims of size 1 by a reshape.

    Shardy propagates through reshapes before products, and through broadcasts after products.
    """
    (x,), (y,) = op.operands, op.results
    dims = list(op.attributes["broadcast_dimensions"])
    if dims and dims == sorted(dims) and math.prod(x.type.shape) == math.prod(y.type.shape):
        replace(op, create("stablehlo.reshape", op, [x], {}).results)


def _capture_invariants(loop: Any) -> None:
    """Replaces unchanged values of a loop by the outer values, so that constraints inside apply to the outer values.

    A value with a requested sharding gets an open constraint, since the loop may use it in another sharding.
    """
    cond, body = (r.blocks[0] for r in loop.regions)
    end = [o.operation for o in body.operations][-1]
    for i, value in enumerate(loop.operands):
        if end.operands[i] != body.arguments[i]:
            continue
        read: Any = None
        for use in [u for block in (cond, body) for u in block.arguments[i].uses]:
            if use.owner != end:
                read = _opened(value, loop) if read is None else read
                use.owner.operands[use.operand_number] = read
        loop.results[i].replace_all_uses_with(value)


def _opened(value: Any, before: Any) -> Any:
    """Returns a value with a requested sharding in any sharding; other values unchanged."""
    sharding = requested(value)
    if sharding is None:
        return value
    mesh, rank = str(sharding.mesh_or_ref), len(value.type.shape)
    text = f"#sdy.sharding<{mesh}, [{', '.join(['{?}'] * rank)}]>"
    attributes = {OWN["sdy.sharding_constraint"]: ir.Attribute.parse(text, before.context)}
    return create("sdy.sharding_constraint", before, [value], attributes, [value.type]).results[0]


def _slice_at_constants(op: Any) -> None:
    """Replaces a dynamic_slice with constant start indices by a slice.

    Shardy splits the dims of a slice, but not the dims that a dynamic_slice cuts.
    """
    x, *indices = op.operands
    sizes, indices = list(op.attributes["slice_sizes"]), [_integer(i) for i in indices]
    if any(i is None for i in indices):
        return
    whole = zip(indices, x.type.shape, sizes, strict=True)
    starts = [int(np.clip(i, 0, n - size)) for i, n, size in whole]
    limits = list(map(operator.add, starts, sizes))
    rows = {"start_indices": starts, "limit_indices": limits, "strides": [1] * len(sizes)}
    attributes = {name: ir.DenseI64ArrayAttr.get(row) for name, row in rows.items()}
    replace(op, create("stablehlo.slice", op, [x], attributes).results)


def _clamp(low: Any, x: Any, high: Any) -> Any:
    return np.clip(x, low, high)


_FOLDED: dict[str, Callable[..., Any]] = {
    **{f"stablehlo.{name}": getattr(np, name) for name in ("add", "subtract", "multiply", "minimum", "maximum")},
    "stablehlo.select": np.where,
    "stablehlo.clamp": _clamp,
    "stablehlo.convert": np.asarray,
}


def _integer(value: Any) -> Any:
    """Returns the integer that a scalar is computed to from constants; None for any other value."""
    element = str(value.type.element_type)
    if not re.fullmatch(r"u?i\d+", element):
        return None
    number = constant_of(value)
    number = _folded(value.owner) if number is None else number
    if number is None:
        return None
    return np.asarray(number).astype("bool" if element == "i1" else element.replace("i", "int"))


def _folded(op: Any) -> Any:
    name = getattr(op, "name", "")
    compares = name == "stablehlo.compare"
    fold = getattr(operator, enum_of(op, "comparison_direction").lower()) if compares else _FOLDED.get(name)
    operands = [_integer(v) for v in op.operands] if fold else []
    return fold(*operands) if fold and not any(x is None for x in operands) else None


# --- products ---------------------------------------------------------------------------------------------------------


def gather_cheap_operands(
    body: Sequence[Any], arguments: Sequence[Any], given: Sequence[Sharding], sizes: Mapping[str, int]
) -> None:
    """Replaces the reshards of products' operands that Shardy inserted, where gathering the contracted dims moves less.

    `given` are the shardings of the function's arguments. Its unused reshards stay.
    """
    known: dict[Any, Sharding] = dict(zip(arguments, given, strict=True))
    moved = functools.cache(functools.partial(moved_elements, sizes=sizes))
    for op in body:
        if op.name == "stablehlo.dot_general":
            _choose(op, known, sizes, moved)


def _choose(op: Any, known: dict[Any, Sharding], sizes: Mapping[str, int], moved_of: Callable[..., float]) -> None:
    sources = [_source(v) for v in op.operands]
    if all(s == v for s, v in zip(sources, op.operands, strict=True)):
        return
    numbers = hlo.DotDimensionNumbers(op.attributes["dot_dimension_numbers"])
    left: list[int] = list(numbers.lhs_contracting_dimensions)
    right: list[int] = list(numbers.rhs_contracting_dimensions)
    contracted = left, right
    found = [_sharding(v, known) for v in (*sources, *op.operands, op.results[0])]
    complete = [s for s in found if s is not None]
    if len(complete) < len(found):
        return
    present, targets, result = complete[:2], complete[2:4], complete[4]
    axes: list[str] = [a for d in contracted[0] for a in targets[0][d]]
    alike = [present[0][d] for d in contracted[0]] == [present[1][d] for d in contracted[1]]
    if alike or not axes:
        return
    whole = [
        tuple(() if d in dims else a for d, a in enumerate(t)) for t, dims in zip(targets, contracted, strict=True)
    ]

    def moved(ends: Sequence[Sharding]) -> float:
        rows = zip(sources, present, ends, strict=True)
        return sum(moved_of(s, t, tuple(v.type.shape)) for v, s, t in rows)

    n = count(axes, sizes)
    partial = math.prod(local_shape(op.results[0].type.shape, result, sizes))
    # A reduction that the program scatters moves half.
    reduced = (1 if _is_scattered(op, axes, known) else 2) * (n - 1) / n * partial
    if moved(whole) >= moved(targets) + reduced:
        return
    inserted = next(v.owner for v, s in zip(op.operands, sources, strict=True) if v != s)
    for i, (source, end) in enumerate(zip(sources, whole, strict=True)):
        attributes = {OWN["sdy.reshard"]: shardings.written(inserted.attributes[OWN["sdy.reshard"]], end)}
        op.operands[i] = create("sdy.reshard", op, [source], attributes, [source.type]).results[0]


def _source(value: Any) -> Any:
    """Returns the value that Shardy reshards for an op."""
    op = value.owner
    return op.operands[0] if getattr(op, "name", "") == "sdy.reshard" and WRITTEN not in op.attributes else value


def _sharding(value: Any, known: dict[Any, Sharding]) -> Sharding | None:
    """Returns the sharding of a value; None for an argument of a loop or a branch.

    Adds what it reads to `known`, the shardings of the function's arguments and of attributes.
    """
    if value in known:
        return known[value]
    if not getattr(value.owner, "name", ""):
        return None
    written = shardings.per_value(value.owner)
    if written is None:
        return shardings.replicated(len(value.type.shape))
    attribute = written[value.result_number]
    if attribute not in known:
        known[attribute] = shardings.read(attribute)
    return known[attribute]


def _is_scattered(op: Any, axes: Sequence[str], known: dict[Any, Sharding]) -> bool:
    uses: list[Any] = list(op.results[0].uses)
    while len(uses) == 1 and uses[0].owner.name in ("sdy.all_reduce", "sdy.reshard"):
        following: Any = uses[0].owner
        target = _sharding(following.results[0], known)
        if target is not None and set(axes) & set(shardings.axes_of(target)):
            return True
        uses = list(following.results[0].uses)
    return False
