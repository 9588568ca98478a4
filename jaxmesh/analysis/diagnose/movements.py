"""The global values of the results of operations; movements only move, copy or cast elements."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from jaxmesh.analysis.diagnose.rounding import GROWTH, rounding_unit
from jaxmesh.analysis.diagnose.stage import Array
from jaxmesh.dialects.definitions import has_trait
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
    """Returns True for a view or cast whose result has the type of its operand."""
    is_view = has_trait(op.name, Trait.VIEW) or short_name(op) == "typecast"
    pair = [(types[v].shape, types[v].dtype) for v in (*op.used[:1], *op.results)]
    return is_view and len(pair) == 2 and pair[0] == pair[1]


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


_ALIKE = {
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
    return short_name(op) in (known, *_ALIKE.get(known, "").split())


def of_whole(op: Op, placement: Sharding, mesh: Mapping[str, int]) -> Op:
    """Returns a slice of shards as the slice of the whole value; any other operation unchanged."""
    attributes: Any = op.attributes
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
