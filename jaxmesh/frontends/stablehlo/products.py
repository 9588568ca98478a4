"""Chooses the cheaper of two ways to split a matrix product: gather an operand, or reduce partial results.

Where only one operand is split along a contracted dim, Shardy slices the other one and reduces. XLA gathers the split
operand where that moves less, as in the product of a tall and a wide matrix.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo

from jaxmesh.frontends.stablehlo import shardings
from jaxmesh.frontends.stablehlo.reshards import moved_elements
from jaxmesh.frontends.stablehlo.shardings import OWN, WRITTEN, Sharding, count, local_shape

_ir: Any = ir
_hlo: Any = stablehlo


def gather_cheap_operands(
    body: Sequence[Any], arguments: Sequence[Any], given: Sequence[Sharding], sizes: Mapping[str, int]
) -> None:
    """Replaces the reshards of products' operands that Shardy inserted, where gathering the contracted dims moves less.

    Args:
      body: the ops of a function after Shardy's explicit reshards; its unused reshards stay.
      arguments: the function's arguments.
      given: the shardings of the arguments.
      sizes: the axes of the mesh.
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
    numbers = _hlo.DotDimensionNumbers(op.attributes["dot_dimension_numbers"])
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
    location = {"loc": op.location, "ip": _ir.InsertionPoint(op)}
    for i, (source, end) in enumerate(zip(sources, whole, strict=True)):
        attributes = {OWN["sdy.reshard"]: shardings.written(inserted.attributes[OWN["sdy.reshard"]], end)}
        reshard = _ir.Operation.create("sdy.reshard", [source.type], [source], attributes, **location)
        op.operands[i] = reshard.results[0]


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
