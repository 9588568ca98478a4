"""Shardings of values by whole mesh axes: reads Shardy's attributes, computes local shapes, drops uneven axes."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence

from jax.sharding import PartitionSpec
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import sdy

from jaxmesh.dialects.quoting import mlir_string

Sharding = tuple[tuple[str, ...], ...]
"""The mesh axes that split each tensor dim, the most significant first."""
Attributes = ir.Attribute | dict[str, ir.Attribute]
"""The attributes of an argument or a result, by name."""

SHARDING = "sdy.sharding"
RULE = "sdy.sharding_rule"
WRITTEN = "jaxmesh.written"
"""A mark on an all_reduce or a reshard of the program, to distinguish it from those that Shardy inserts."""
COLLECTIVES = tuple(
    f"sdy.{n}" for n in ("all_gather", "all_slice", "all_to_all", "collective_permute", "reduce_scatter", "all_reduce")
)
"""Shardy's collectives."""
OWN = {"sdy.reshard": "sharding", "sdy.sharding_constraint": "sharding"} | dict.fromkeys(COLLECTIVES, "out_sharding")
"""Shardy's ops with a sharding attribute, and its name."""


def replicated(rank: int) -> Sharding:
    """Returns the sharding of a replicated value."""
    return ((),) * rank


def axes_of(sharding: Sharding) -> tuple[str, ...]:
    """Returns all axes that split a value."""
    return tuple(a for axes in sharding for a in axes)


def split_only(sharding: Sharding, sizes: Mapping[str, int]) -> Sharding:
    """Returns a sharding without the axes of size 1, which split nothing."""
    return tuple(tuple(a for a in axes if sizes[a] > 1) for axes in sharding)


def count(axes: Sequence[str], sizes: Mapping[str, int]) -> int:
    """Returns the number of shards along a dim that is split over axes."""
    return math.prod(sizes[a] for a in axes)


def local_shape(shape: Sequence[int], sharding: Sharding, sizes: Mapping[str, int]) -> tuple[int, ...]:
    """Returns the shape of a shard."""
    return tuple(n // count(axes, sizes) for n, axes in zip(shape, sharding, strict=True))


def as_spec(sharding: Sharding) -> PartitionSpec:
    """Returns a sharding as a `PartitionSpec`.

    >>> tuple(as_spec((("y", "x"), ("z",), ())))
    (('y', 'x'), 'z')
    """
    entries = [axes[0] if len(axes) == 1 else axes or None for axes in sharding]
    while entries and entries[-1] is None:
        entries.pop()
    return PartitionSpec(*entries)


def show(sharding: Sharding) -> str:
    """Returns a sharding as text for remarks."""
    text = ", ".join(repr(a[0]) if len(a) == 1 else repr(a) if a else "None" for a in sharding)
    return f"P({text})" if axes_of(sharding) else "P()"


# --- Shardy's attributes ---------------------------------------------------------------------------------------------


def read(attribute: sdy.TensorShardingAttr) -> Sharding:
    """Reads a `#sdy.sharding` without sub-axes."""
    return tuple(tuple(a.name for a in _axes(d)) for d in attribute.dimension_shardings)


def listed(op: ir.Operation, name: str) -> list[sdy.TensorShardingAttr]:
    """Returns the `#sdy.sharding`s of an attribute that lists one for each value."""
    return [sdy.TensorShardingAttr(s) for s in sdy.TensorShardingPerValueAttr(op.attributes[name]).shardings]


def of_end(attributes: Attributes) -> sdy.TensorShardingAttr | None:
    """Returns the `#sdy.sharding` among the attributes of an argument or a result; None without one."""
    return sdy.TensorShardingAttr(attributes[SHARDING]) if SHARDING in attributes else None


def has_parts(attribute: sdy.TensorShardingAttr) -> bool:
    """Returns True if a sharding has parts of mesh axes."""
    return any(a.sub_axis_info is not None for d in attribute.dimension_shardings for a in _axes(d))


def _axes(dim: ir.Attribute) -> list[sdy.AxisRefAttr]:
    return [sdy.AxisRefAttr(a) for a in sdy.DimensionShardingAttr(dim).axes]


def read_nearest(
    attribute: sdy.TensorShardingAttr, shape: Sequence[int], sizes: Mapping[str, int], without: Collection[str] = ()
) -> tuple[Sharding, bool]:
    """Reads a sharding, without the axes that the program cannot split.

    Keeps the leading whole axes that divide each dim; ignores the axes of `without`, which are manual.

    Returns:
      The sharding, and True if axes were dropped.
    """
    axes_of_dims: list[tuple[str, ...]] = []
    dropped = False
    for size, dim in zip(shape, attribute.dimension_shardings, strict=True):
        kept: list[str] = []
        for axis in [a for a in _axes(dim) if a.name not in without]:
            if axis.sub_axis_info is not None or size % count([*kept, axis.name], sizes):
                dropped = True
                break
            kept.append(axis.name)
        axes_of_dims.append(tuple(kept))
    return tuple(axes_of_dims), dropped


def written(attribute: ir.Attribute, sharding: Sharding) -> ir.Attribute:
    """Returns a `#sdy.sharding` over the mesh of another attribute."""
    return over_mesh(str(sdy.TensorShardingAttr(attribute).mesh_or_ref), sharding, attribute.context)


def over_mesh(mesh: str, sharding: Sharding, context: ir.Context | None = None) -> ir.Attribute:
    """Returns a `#sdy.sharding` over a mesh, such as `@mesh`."""
    dims = ", ".join("{" + ", ".join(map(mlir_string, dim_axes)) + "}" for dim_axes in sharding)
    return ir.Attribute.parse(f"#sdy.sharding<{mesh}, [{dims}]>", context)


def show_attribute(attribute: sdy.TensorShardingAttr) -> str:
    """Returns a sharding attribute as text for remarks, with sub-axes."""
    names = [[a.name + _sub(a) for a in _axes(d)] for d in attribute.dimension_shardings]
    return "P(" + ", ".join(repr(tuple(r)) if len(r) > 1 else repr(r[0]) if r else "None" for r in names) + ")"


def _sub(axis: sdy.AxisRefAttr) -> str:
    if axis.sub_axis_info is None:
        return ""
    info = sdy.SubAxisInfoAttr(axis.sub_axis_info)
    return f":({info.pre_size}){info.size}"


def per_value(op: ir.Operation) -> list[sdy.TensorShardingAttr] | None:
    """Returns the shardings of an operation's results; None if they are not annotated."""
    if op.name in OWN:
        return [sdy.TensorShardingAttr(op.attributes[OWN[op.name]])]
    if SHARDING not in op.attributes:
        return None
    attribute = op.attributes[SHARDING]
    if sdy.TensorShardingPerValueAttr.isinstance(attribute):
        return listed(op, SHARDING)
    return [sdy.TensorShardingAttr(attribute)]


def requested(value: ir.Value) -> sdy.TensorShardingAttr | None:
    """Returns the sharding attribute of a value before propagation; None for a value without one."""
    owner = value.owner
    if not isinstance(owner, ir.Block):
        written = per_value(owner.operation)
        return None if written is None else written[value.result_number]
    function = owner.owner.operation
    if function.name != "func.func" or "arg_attrs" not in function.attributes:
        return None
    return of_end(function.attributes["arg_attrs"][value.arg_number])
