"""The meanings of operations: the global values of their results, and what else an operation may have been meant to be.

Movements only move, copy or cast elements.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

import numpy as np

from jaxmesh.analysis.diagnose.rounding import GROWTH
from jaxmesh.analysis.diagnose.stage import Array
from jaxmesh.analysis.record.metrics import rounding_unit
from jaxmesh.dialects.definitions import definition_of, has_trait
from jaxmesh.dialects.op import Trait
from jaxmesh.dialects.program import Op, Type
from jaxmesh.frontends.mlir.upgrade import FUNCTIONS
from jaxmesh.frontends.stablehlo.shardings import Sharding

Shapes = Sequence[tuple[int, ...]]
_COPIES, _TRANSPOSES = ("broadcast", "repeat"), ("permute", "transpose")


def short_name(op: Op) -> str:
    """Returns the name of an operation without its dialect."""
    return op.name.partition(".")[2]


def is_movement(op: Op) -> bool:
    """Returns True if the result has the elements of the operand, in an order that the global value has, too."""
    traits = (Trait.VIEW, Trait.LAYOUT, Trait.TRANSFERS, Trait.COLLECTIVE)
    named = short_name(op) in (*_COPIES, *_TRANSPOSES, "typecast")
    return named or any(has_trait(op.name, t) for t in traits)


def is_transparent(op: Op) -> bool:
    """Returns True for movements that the types of operand and result determine."""
    named = short_name(op) in (*_COPIES, "typecast")
    return named or any(has_trait(op.name, t) for t in (Trait.VIEW, Trait.LAYOUT))


def does_nothing(op: Op, types: Sequence[Type]) -> bool:
    """Returns True for a view, cast or permutation whose result has the type and the order of its operand."""
    permutation = cast("Sequence[int]", op.attributes.get("permutation", (0,)))
    is_view = has_trait(op.name, Trait.VIEW) or short_name(op) in ("typecast", "permute")
    pair = [(types[v].shape, types[v].dtype) for v in (*op.used[:1], *op.results)]
    return is_view and len(pair) == 2 and pair[0] == pair[1] and tuple(permutation) == tuple(range(len(permutation)))


def is_collective(op: Op) -> bool:
    """Returns True if the operation moves elements between devices, or between devices and host."""
    return has_trait(op.name, Trait.TRANSFERS) or has_trait(op.name, Trait.COLLECTIVE)


def moved(op: Op, x: Array, local: Sequence[int], kind: Type, shapes: Shapes) -> Iterator[Array]:
    """Yields the global values that a movement may make of a global value.

    Args:
      op: the operation.
      x: the global value of its operand.
      local: the shape of the operand on a device.
      kind: the local type of its result.
      shapes: the global shapes that the result may have.
    """
    name = short_name(op)
    if has_trait(op.name, Trait.VIEW):
        fitting = [shape for shape in shapes if np.prod(shape, dtype=int) == x.size]
        yield from (x.reshape(shape) for shape in fitting)
        # A dim of one element on each device may also be transposed.
        split = [d for d, (n, m) in enumerate(zip(local, x.shape, strict=False)) if n == 1 < m]
        for dim, to in itertools.product(split, range(x.ndim)):
            yield from (np.moveaxis(x, dim, to).reshape(shape) for shape in fitting if to != dim)
    elif name in _COPIES:
        yield from (np.broadcast_to(x, shape) for shape in shapes if _broadcasts(x.shape, shape))
    elif name in _TRANSPOSES:
        yield np.transpose(x, _permutation(op, x.ndim))
    elif name == "typecast" or has_trait(op.name, Trait.LAYOUT):
        # A rounded number stays the program's, so that its error is known.
        yield x if rounding_unit(kind.dtype) and rounding_unit(x.dtype) else x.astype(kind.dtype)


_FORMULAS = {"gelu": 5e-4}
"""Functions that TTNN has in one form, for another form of the program, and how far apart the forms are, relative to
the largest magnitude. `ttnn.gelu` is the form of the error function; the tanh form differs by 4.8e-4 at most."""


def distance_of_forms(op: Op) -> float:
    """Returns how far the function of an operation, or what a loop makes of one, may be from the program's form of it;
    0 for most."""
    names = (short_name(op), str(op.attributes.get("activation", "")))
    own = [apart for name, apart in _FORMULAS.items() if any(name in n for n in names)]
    functions: Any = op.attributes.get(FUNCTIONS, ())
    return max([*own, *(GROWTH * distance_of_forms(inner) for f in functions for inner in f.program.ops)], default=0.0)


def error_of_forms(op: Op, size: float) -> float:
    """Returns the error of the operands that explains another form of a function: where its results are small, too,
    the forms differ by as much."""
    return distance_of_forms(op) / GROWTH / (min(1.0, size) or 1.0)


NAMES = {
    "dot_general": "matmul linear",
    "transpose": "permute",
    "broadcast_in_dim": "broadcast repeat",
    "iota": "arange",
    "slice": "slice_static slice_dynamic",
    "dynamic_slice": "slice_dynamic",
    "divide": "div",
    "exponential": "exp",
    "maximum": "relu",
    "negate": "neg",
    "logistic": "sigmoid",
    "reduce": "sum max min mean prod reduce_or reduce_and argmax",
    "convolution": "conv2d conv3d conv_transpose2d",
    "reduce_window": "max_pool2d avg_pool2d cumsum cumprod",
    "concatenate": "concat",
    "select": "where",
    "power": "pow",
    "gather": "embedding rows_gather",
    "scatter": "rows_scatter scatter_in_dim",
    "sine": "sin",
    "cosine": "cos",
    "tangent": "tan",
    "is_finite": "isfinite",
    "compare": "eq ne lt le gt ge",
    "and": "bitwise_and logical_and",
    "or": "bitwise_or logical_or",
    "xor": "bitwise_xor logical_xor",
    "not": "bitwise_not logical_not",
    "shift_left": "logical_left_shift",
    "shift_right_logical": "logical_right_shift",
    "exponential_minus_one": "expm1",
    "log_plus_one": "log1p",
    "clamp": "clamp_scalar clamp_tensor",
    "if": "case",
    "while": "while_loop",
}
"""Operations of TTIR and TTNN for those of StableHLO with other names."""


def is_alike(op: Op, reference: str) -> bool:
    """Returns True if an operation of StableHLO becomes an operation of this kind."""
    known = reference.partition(".")[2]
    return short_name(op) in (known, *NAMES.get(known, "").split())


def of_whole(op: Op, placement: Sharding, mesh: Mapping[str, int], shape: Sequence[int]) -> Op:
    """Returns a slice or rows of shards as an operation of the whole value; any other operation unchanged."""
    attributes: Any = op.attributes
    if "sizes" in attributes and len(shape) > 1:
        rows = shape[1 : len(attributes["sizes"]) + 1]
        one = [math.prod(shape[1:])] if attributes.get("column") and len(rows) == 1 else rows
        return replace(op, attributes={**attributes, "sizes": tuple(one)})
    if "begins" not in attributes or len(placement) != len(attributes["begins"]):
        return op
    counts = [math.prod(mesh[a] for a in axes) for axes in placement]
    cut = {k: tuple(n * m for n, m in zip(attributes[k], counts, strict=True)) for k in ("begins", "ends")}
    return replace(op, attributes={**attributes, **cut})


def mesh_axis(op: Op, mesh: Mapping[str, int]) -> str | None:
    """Returns the mesh axis of a collective, which all its groups of devices vary along."""
    attributes: Any = op.attributes
    number, names = attributes.get("cluster_axis"), list(mesh)
    if isinstance(number, int) and 0 <= number < len(names):
        return names[number]
    first = np.asarray(attributes.get("replica_groups", ()))[:1].reshape(-1)
    if not first.size:
        return None
    places = np.stack(np.unravel_index(first, tuple(mesh.values())))
    moving = [name for name, row in zip(names, places, strict=True) if len(set(row.tolist())) > 1]
    return moving[0] if len(moving) == 1 else None


_DIMS: Mapping[str, tuple[str, ...]] = {
    "all_gather": ("all_gather_dim", "dim"), "all_to_all": ("concat_dim",), "mesh_partition": ("dim",),
}  # fmt: skip
"""By collective, the attributes that may name the dim that it joins or cuts."""


def joined_dim(op: Op) -> int:
    """Returns the dim that a collective joins or cuts."""
    attributes: Any = op.attributes
    return next((int(attributes[n]) for n in _DIMS[short_name(op)] if n in attributes), 0)


def is_predicate(op: Op) -> bool:
    """Returns True for operations that yield 0 and 1 alone, which every type holds exactly."""
    return any(is_alike(op, f"stablehlo.{name}") for name in ("compare", "is_finite", "and", "or", "not"))


def _broadcasts(shape: Sequence[int], wanted: Sequence[int]) -> bool:
    return len(shape) == len(wanted) and all(n in (1, m) for n, m in zip(shape, wanted, strict=True))


def _permutation(op: Op, rank: int) -> list[int]:
    if "permutation" in op.attributes:
        return list(op.attributes["permutation"])
    order, (a, b) = list(range(rank)), (int(op.attributes[k]) for k in ("dim0", "dim1"))
    order[a], order[b] = order[b], order[a]
    return order


_KINDS = (
    ("sum", "mean", "max", "min", "prod"),
    ("add", "subtract", "multiply", "div", "divide", "maximum", "minimum", "pow", "pow_tensor", "remainder"),
    ("eq", "ne", "lt", "le", "gt", "ge"),
    ("logical_and", "logical_or", "logical_xor"),
    ("bitwise_and", "bitwise_or", "bitwise_xor"),
    ("exp", "log", "tanh", "sigmoid", "sqrt", "rsqrt", "reciprocal", "neg", "abs", "sin", "cos", "relu", "gelu", "silu",
     "sign", "floor", "ceil", "round", "trunc", "expm1", "log1p", "erf", "erfc", "tan", "atan", "cbrt"),
)  # fmt: skip
"""Operations of one signature."""
_NUMBERS = ("value", "fill_value", "min", "max", "epsilon", "negative_slope", "parameter")
"""Attributes that are a number of the program."""
_AXES = ("cluster_axis", "dim", "all_gather_dim", "scatter_dim", "concat_dim", "split_dim", "dimension", "axis")
_LISTS = (
    "dim_arg",
    "dimensions",
    "contract_dims_lhs",
    "contract_dims_rhs",
    "batch_dims_lhs",
    "batch_dims_rhs",
    "dims",
)
_MOST = 24
"""The most starts of a slice along one dim, and numbers in place of one."""
_RANK = 6
"""The most dims whose permutations are tried."""


def repairs(
    op: Op, types: Sequence[Type], made: Sequence[int], mesh: Mapping[str, int], numbers: Sequence[Any]
) -> Iterator[tuple[Op, str]]:
    """Yields an operation with one thing changed, and what that is, in words.

    Args:
      op: the operation.
      types: the local types of its operands.
      made: the local shape of its result.
      mesh: the sizes of the mesh axes, by name.
      numbers: the numbers of the program, the likeliest first.
    """
    attributes: Any = op.attributes
    first: Sequence[int] = types[0].shape if types else ()
    for name, value in _changes(attributes, first, mesh, numbers):
        yield replace(op, attributes={**attributes, **value}), name
    for order in _orders(op, [t.dtype for t in types]):
        yield replace(op, operands=tuple(op.operands[i] for i in order)), "its operands in another order"
    dialect, name = op.name.partition(".")[0], short_name(op)
    moves = list[tuple[str, dict[str, Any], str]]()
    if name == "remainder":
        yield replace(op, name="ttir.remainder"), "the sign of the dividend"
    if name == "permute":
        moves.append(("reshape", {"shape": tuple(made)}, ""))
    for order in _permutations(first, made) if name == "reshape" and len(first) == len(made) else ():
        # Dims of size 1 are where they are.
        if [d for d in order if first[d] > 1] != [d for d, n in enumerate(first) if n > 1]:
            moves.append(("permute", {"permutation": order}, f" over {list(order)}"))
    for kind, changed, how in moves:
        kind = f"{dialect}.{kind}"
        yield replace(op, name=kind, attributes=changed), f"{kind}{how} in its place"
    for kind in next((k for k in _KINDS if name in k), ()):
        # TTIR has two names of a division; texts have the shorter one.
        is_alias = kind == "divide" and definition_of(f"{dialect}.div") is not None
        if kind != name and not is_alias and definition_of(f"{dialect}.{kind}") is not None:
            yield replace(op, name=f"{dialect}.{kind}"), f"{dialect}.{kind} in its place"


def _orders(op: Op, dtypes: Sequence[Any]) -> Iterator[tuple[int, ...]]:
    """Yields other orders of operands that keep the dtypes; a condition stays the first operand."""
    count = len(op.operands)
    orders = list(itertools.permutations(range(count))) if 2 <= count <= 3 else []
    for a, b in itertools.combinations(range(count), 2) if count > 3 else ():
        orders.append(tuple({a: b, b: a}.get(i, i) for i in range(count)))
    for order in orders if len(dtypes) == count else ():
        is_typed = all(dtypes[i] == dtypes[at] for at, i in enumerate(order))
        if is_typed and order != tuple(range(count)) and not (short_name(op) == "where" and order[0]):
            yield order


def _changes(
    attributes: Mapping[str, Any], shape: Sequence[int], mesh: Mapping[str, int], numbers: Sequence[Any]
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yields other values of attributes: axes, dims, permutations, bounds, numbers, flags, devices."""
    for name, value in attributes.items():
        others = _instead(name, value, shape, len(mesh))
        if name in _NUMBERS and isinstance(value, (int, float)) and not isinstance(value, bool):
            others = (type(value)(n) for n in numbers[:_MOST] if isinstance(value, float) or n % 1 == 0)
        elif name in ("sender_coord", "receiver_coord"):
            if name == "sender_coord":
                yield "its devices exchanged", {name: attributes["receiver_coord"], "receiver_coord": value}
            others = itertools.product(*map(range, mesh.values()))
        elif name == "replica_groups":
            rows = np.asarray(value)
            for groups in (np.sort(rows, 1), *(np.roll(rows, n, 1) for n in range(1, rows.shape[-1]))):
                if not np.array_equal(groups, rows):
                    yield f"{name} = {groups.tolist()}", {name: groups}
            continue
        elif name == "dilation" and isinstance(value, tuple) and isinstance(attributes.get("padding"), tuple):
            yield from _dilations(attributes[name], attributes["padding"])
            continue
        elif name == "split_dim" and "concat_dim" in attributes:
            yield "its dims exchanged", {name: attributes["concat_dim"], "concat_dim": value}
        elif name == "source_target_pairs":
            yield "its pairs of devices the other way round", {name: np.asarray(value)[:, ::-1]}
            continue
        for other in others:
            if other != value:
                shown = list(cast("tuple[int, ...]", other)) if isinstance(other, tuple) else str(other).lower()
                yield f"{name} = {shown}", {name: other}
    if "begins" in attributes and "ends" in attributes:
        yield from _bounds(attributes, shape)
    if "start" in attributes and "end" in attributes:
        size = attributes["end"] - attributes["start"]
        for start in dict.fromkeys((0, attributes["start"] - 1, attributes["start"] + 1)):
            if start != attributes["start"]:
                yield f"start = {start}", {"start": start, "end": start + size}


def _instead(name: str, value: Any, shape: Sequence[int], rank: int) -> Iterator[Any]:
    """Yields values that an attribute may have instead."""
    every = range(len(shape))
    numbers = cast("tuple[int, ...]", value) if isinstance(value, tuple) else ()
    if isinstance(value, bool):
        yield from () if name.startswith(("keep", "ceil", "force")) else (not value,)
    elif name.endswith(("reduce", "reduce_type")):
        yield from ("sum", "max", "min")
    elif name in _AXES and isinstance(value, int):
        yield from range(rank) if name == "cluster_axis" else every
    elif name == "permutation":
        yield from _permutations(shape, [shape[d] for d in numbers])
    elif name in _LISTS:
        yield from itertools.permutations(every, len(numbers))
    elif name == "padding":
        # The sides of windows of TTIR are all starts, then all ends.
        sides = [(at, at + 1) for at in range(0, len(numbers) - 1, 2)] + [(0, 2), (1, 3)] * (len(numbers) == len(shape))
        for (a, b), low in ((side, n) for side in sides for n in range(numbers[side[0]] + numbers[side[1]] + 1)):
            other = list(numbers)
            other[a], other[b] = low, numbers[a] + numbers[b] - low
            yield tuple(other)


def _permutations(shape: Sequence[int], made: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """Yields the orders of dims that make one shape of another.

    >>> list(_permutations((2, 3, 2), (3, 2, 2)))
    [(1, 0, 2), (1, 2, 0)]
    """
    if len(made) > _RANK:
        return
    rows = [[d for d, n in enumerate(shape) if n == size] for size in made]
    yield from (order for order in itertools.product(*rows) if len(set(order)) == len(shape))


def _dilations(dilation: Sequence[int], padding: Sequence[int]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yields other distances of the elements of a window, padded as much more."""
    orders = ((0, 1, 0, 1), (0, 0, 1, 1)) if len(padding) == 4 else ((0, 1),)
    for size, dims, order in itertools.product((1, 2, 4), ((0,), (1,), (0, 1)), orders):
        other = tuple(size if d in dims else n for d, n in enumerate(dilation))
        if len(dilation) == 2 and other != tuple(dilation):
            wide = tuple(n * other[d] // dilation[d] for n, d in zip(padding, order, strict=True))
            yield f"dilation = {list(other)}, padding = {list(wide)}", {"dilation": other, "padding": wide}


def _bounds(attributes: Mapping[str, Any], shape: Sequence[int]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yields slices of one size that start elsewhere along one dim, or take other elements of it."""
    begins, ends = tuple(attributes["begins"]), tuple(attributes["ends"])
    steps = tuple(attributes.get("step") or (1,) * len(begins))
    for dim, (begin, end, step, size) in enumerate(zip(begins, ends, steps, shape, strict=True)):
        count = -(-(end - begin) // step)
        lengths = {n: (count - 1) * n + 1 for n in (step, 1, 2) if count > 1} or {step: end - begin}
        lengths[step] = end - begin
        for each, length in lengths.items():
            starts = sorted(range(size - length + 1), key=lambda s: (s % max(1, length) != 0, abs(s - begin)))
            for start in [s for s in starts if (s, each) != (begin, step)][:_MOST]:
                new = {"begins": start, "ends": start + length, **({"step": each} if each != step else {})}
                was = {"begins": begins, "ends": ends, "step": steps}
                made = {k: (*was[k][:dim], n, *was[k][dim + 1 :]) for k, n in new.items()}
                yield ", ".join(f"{k} = {list(v)}" for k, v in made.items()), made
