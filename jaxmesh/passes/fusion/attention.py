"""The pattern of attention: `softmax(query @ key^T * scale + mask) @ value` of bfloat16, in whole tiles.

Dims may be permuted, split and joined anywhere in between: grouped heads are. A choice of scores by truth values is a
mask, too, if a very low number stands for the scores that are left out.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from jaxmesh.dialects.program import Op, Value
from jaxmesh.passes.fusion import axes as of
from jaxmesh.passes.fusion.axes import Atom, Axes, Axis, Cuts, Rearranger
from jaxmesh.passes.fusion.dataflow import BF16, F32, Flow, Node
from jaxmesh.passes.fusion.masks import LOW, Mask, Roles, added, added_condition, causal_mask, conditions, decide

_TILE = 32


@dataclass(slots=True)
class Path:
    """The way of the scores from the product of queries and keys to the product with the values.

    Attributes:
      product: the product of queries and keys.
      steps: the operations behind it, in order.
      axes: the dims of the weights, in terms of that product.
      keys: the dim of the product along which the softmax runs.
    """

    product: Op
    steps: list[tuple[Op, Value]]
    axes: Axes = ()
    keys: int = -1
    scale: float = 1.0
    masks: list[Mask] = field(default_factory=list[Mask])


def attention(root: Node) -> Sequence[Op] | None:
    """Matches the product of weights, a softmax of masked and scaled scores, and values."""
    flow, op = root.flow, root.flow.makers[root.view.value]
    if root.dtype != BF16:
        return None
    for place, weights in enumerate(op.used):
        path = _follow(flow, weights)
        if path is not None:
            return _fused(flow, op, place, path)
    return None


# --- from the weights to the product of queries and keys -------------------------------------------------------------


def _follow(flow: Flow, weights: Value) -> Path | None:
    steps = _steps(flow, weights, seen=False)
    if steps is None:
        return None
    path = Path(steps[0][0], steps[1:])
    (product,) = path.product.results
    path.axes = of.own(flow.shape(product))
    return path if all(_takes(flow, path, op, source) for op, source in path.steps) else None


def _steps(flow: Flow, value: Value, seen: bool) -> list[tuple[Op, Value]] | None:
    """Returns the operations from a product to a value, each with the operand that leads to the product."""
    op = flow.makers.get(value)
    if op is None or flow.uses.get(value, 1) > 1 or flow.dtype(value) not in (BF16, F32):
        return None
    name = op.name.removeprefix("ttir.")
    if name == "matmul" and seen:
        return [(op, value)]
    match name:
        case _ if of.moves(op):
            sources = op.used
        case "softmax" | "typecast" | "div" | "divide":
            sources = op.used[:1]
        case "multiply" | "add":
            sources = [v for v in op.used if v not in flow.numbers]
        case "where":
            sources = [v for v in op.used[1:] if v not in flow.numbers]
        case _:
            return None
    seen = seen or name == "softmax"
    found = [(s, before) for s in sources if (before := _steps(flow, s, seen)) is not None]
    return [*found[0][1], (op, found[0][0])] if len(found) == 1 else None


def _takes(flow: Flow, path: Path, op: Op, source: Value) -> bool:
    """Enters a step into the path; returns False if attention lacks such a step."""
    (result,) = op.results
    name, shape = op.name.removeprefix("ttir."), flow.shape(result)
    others = [v for v in op.used if v != source]
    if of.moves(op):
        axes = of.moved(path.axes, op, shape)
        path.axes = axes or ()
        return axes is not None
    if flow.shape(source) != shape or (path.keys >= 0 and name != "typecast"):
        return False
    match name:
        case "typecast":
            return True
        case "softmax":
            dimension: int = op.attributes["dimension"]
            axis = path.axes[dimension]
            rank = len(flow.shape(path.product.results[0]))
            path.keys = axis[0][0] if len(axis) == 1 else -1
            return (
                path.keys in (rank - 1, rank - 2) and of.count(axis) == flow.shape(path.product.results[0])[path.keys]
            )
        case "multiply" | "div" | "divide":
            number = flow.numbers.get(others[0]) if len(others) == 1 else None
            if number is None or not number or path.masks:
                return False
            path.scale = path.scale * float(number) if name == "multiply" else path.scale / float(number)
            return math.isfinite(path.scale)
        case "add":
            if not others:
                return False
            view = flow.follow(flow.align(others[0], shape), flow.exact)
            masks = added_condition(flow, view, path.axes)
            path.masks += [Mask(view, path.axes)] if masks is None else masks
            return masks is not None or flow.dtype(view.value) == BF16
        case _:
            hides = source == op.used[2]
            fill = flow.numbers.get(op.used[1 if hides else 2])
            if fill is None or not fill <= LOW:
                return False
            path.masks += conditions(flow, flow.align(op.used[0], shape), path.axes, float(fill), hides)
            return True


# --- the fused operation ---------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Factor:
    """An operand of a product: the value behind it, and the dims of that value along its own.

    `batch` is the batch as one dim, `free` the queries or keys, and `inner` the head.
    """

    value: Value
    batch: Axis
    free: Axis
    inner: Axis


def _side(flow: Flow, op: Op, place: int, free_first: bool) -> Factor | None:
    """Returns an operand of a product, if it has the type and the batch of that; its first dim is free by default."""
    x, shape = op.used[place], flow.shape(op.results[0])
    if flow.dtype(x) != BF16 or flow.shape(x)[:-2] != shape[:-2]:
        return None
    value, (*batch, first, second) = of.behind(flow, x)
    turned = op.attributes.get(("transpose_a", "transpose_b")[place], False)
    free, inner = (first, second) if free_first != turned else (second, first)
    return Factor(value, tuple(a for axis in batch for a in axis), free, inner)


def _dims(roles: Roles, side: Factor, is_query: bool) -> Axes | None:
    """Returns the dims of an operand in terms of what it is a view of."""
    batch = of.grouped(side.batch, [n for _, _, n in roles.batch + roles.heads])
    if not is_query:
        free: Axes | None = ((), side.free)
    else:
        free = _by_parts(side.free, roles.shared, roles.rows)
    if batch is None or free is None:
        return None
    count = len(roles.batch)
    dims = [x for axis in batch[:count] for x in axis], [x for axis in (*batch[count:], free[0]) for x in axis]
    return of.joined(dims[0]), of.joined(dims[1]), free[1], side.inner


def _by_parts(axis: Axis, *groups: Axis) -> Axes | None:
    """Returns what runs along groups of parts of one dim, in terms of another dim of the same size."""
    parts = sorted((p for group in groups for p in group), key=lambda p: -p[1])
    found = of.grouped(axis, [n for _, _, n in parts])
    if found is None:
        return None
    names = dict(zip(parts, found, strict=True))
    return tuple(of.renamed(group, names) for group in groups)


def _fused(flow: Flow, root: Op, place: int, path: Path) -> Sequence[Op] | None:
    shape = flow.shape(path.product.results[0])
    rank, turned = len(shape), root.attributes.get(("transpose_a", "transpose_b")[place], False)
    *batch, first, second = path.axes
    rows, contracted = (first, second) if turned == (place == 1) else (second, first)
    whole = of.own(shape)
    kept = of.joined(a for x in batch for a in x) == of.joined(a for x in whole[:-2] for a in x)
    of_rows, of_keys = int(path.keys == rank - 2), int(path.keys == rank - 1)
    query = _side(flow, path.product, of_rows, free_first=of_rows == 0)
    key = _side(flow, path.product, of_keys, free_first=of_keys == 0)
    value = _side(flow, root, 1 - place, free_first=place == 1)
    if contracted != whole[path.keys] or not kept or query is None or key is None or value is None:
        return None
    # The free dim of the values is the head.
    value = Factor(value.value, value.batch, value.inner, value.free)
    width = of.count(query.inner)
    cuts, seen = Cuts(), causal_mask(flow, path.masks, path.keys, shape)
    causal = seen is not None
    path.masks = path.masks if seen is None else [seen]
    for atoms in (rows, *batch, *(m.parts() for m in path.masks), _batch_cuts(key, whole)):
        cuts.add(atoms)
    roles = decide(path.masks, whole, cuts, path.keys)
    if (
        roles is None
        or of.count(value.inner) != width
        or any(n % _TILE for n in (width, of.count(roles.rows), of.count(roles.keys)))
    ):
        return None
    sides = [(s.value, _dims(roles, s, s is query)) for s in (query, key, value)]
    b = Rearranger.beside(flow, root.line)
    mask = added(flow, b, path.masks, roles, cuts) if path.masks and not causal else None
    if any(axes is None for _, axes in sides) or (path.masks and mask is None and not causal):
        return None
    operands = [b.arrange(v, axes) for v, axes in sides if axes is not None]
    made = (*map(of.count, roles.groups[:3]), width)
    attributes = {"is_causal": causal, "scale": float(np.float32(path.scale))}
    out = b.op("scaled_dot_product_attention", [*operands, mask, None], made, BF16, **attributes)
    result = _result(roles, cuts, batch, rows)
    if result is None:
        return None
    head: Axis = ((3, 1, width),)
    dims = (*result[:-1], *((result[-1], head) if place == 0 else (head, result[-1])))
    return b.finish(b.arrange(out, dims), root.results[0])


def _batch_cuts(key: Factor, whole: Axes) -> list[Atom]:
    """Returns parts of the batch where the keys have several dims for it."""
    if len(whole) != 3 or not whole[0]:
        return []
    inner = [math.prod(n for _, _, n in key.batch[i + 1 :]) for i in range(len(key.batch))]
    return [(0, stride, n) for stride, (_, _, n) in zip(inner, key.batch, strict=True)]


def _result(roles: Roles, cuts: Cuts, batch: Sequence[Axis], rows: Axis) -> Axes | None:
    """Returns the dims of the second product in terms of the dims of the fused operation."""
    names: dict[Atom, Axis] = {}
    for d, group in enumerate(roles.groups[:3]):
        for i, part in enumerate(group):
            names[part] = ((d, of.count(group[i + 1 :]), part[2]),)
    found = [cuts.parts(axis) for axis in (*batch, rows)]
    if any(parts is None for parts in found):
        return None
    return tuple(of.renamed(parts, names) for parts in found if parts is not None)


# --- what is done with the result ------------------------------------------------------------------------------------


def rearranged(root: Node) -> Sequence[Op] | None:
    """Matches a move of the moved result of attention, which becomes a move of the result itself."""
    flow, result = root.flow, root.view.value
    value, axes = of.behind(flow, result)
    op = flow.makers[result]
    if flow.maker(value, "scaled_dot_product_attention") is None or value in op.used:
        return None
    b = Rearranger.beside(flow, op.line)
    made = b.arrange(value, axes)
    return b.finish(made, result) if b.program.ops else None
