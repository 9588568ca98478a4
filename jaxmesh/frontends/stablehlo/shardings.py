"""Shardings of values by whole mesh axes: reading Shardy's attributes, local shapes, dropping what does not divide."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from jax.sharding import PartitionSpec
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import sdy

Sharding = tuple[tuple[str, ...], ...]
"""Per tensor dim the mesh axes that split it, the most significant first."""

SHARDING = "sdy.sharding"
RULE = "sdy.sharding_rule"
WRITTEN = "jaxmesh.written"
"""Marks an all_reduce of the text, beside those that Shardy inserts."""
COLLECTIVES = tuple(
    f"sdy.{n}" for n in ("all_gather", "all_slice", "all_to_all", "collective_permute", "reduce_scatter", "all_reduce")
)
"""Shardy's own collectives."""
OWN = {"sdy.reshard": "sharding", "sdy.sharding_constraint": "sharding"} | dict.fromkeys(COLLECTIVES, "out_sharding")
"""Shardy's ops whose sharding is an attribute of their own, and its name."""
_sdy: Any = sdy
_ir: Any = ir


def replicated(rank: int) -> Sharding:
    """Returns the sharding of a value that every device holds whole."""
    return ((),) * rank


def axes_of(sharding: Sharding) -> tuple[str, ...]:
    """Returns all axes that split a value."""
    return tuple(a for axes in sharding for a in axes)


def count(axes: Sequence[str], sizes: Mapping[str, int]) -> int:
    """Returns the number of pieces that axes make of a dim."""
    return math.prod(sizes[a] for a in axes)


def local_shape(shape: Sequence[int], sharding: Sharding, sizes: Mapping[str, int]) -> tuple[int, ...]:
    """Returns the shape of a shard."""
    return tuple(n // count(axes, sizes) for n, axes in zip(shape, sharding, strict=True))


def as_spec(sharding: Sharding) -> PartitionSpec:
    """Returns a sharding as JAX writes it.

    >>> tuple(as_spec((("y", "x"), ("z",), ())))
    (('y', 'x'), 'z')
    """
    entries: list[Any] = [axes[0] if len(axes) == 1 else axes or None for axes in sharding]
    while entries and entries[-1] is None:
        entries.pop()
    return PartitionSpec(*entries)


def show(sharding: Sharding) -> str:
    """Returns a sharding as remarks show it."""
    text = ", ".join(repr(a[0]) if len(a) == 1 else repr(a) if a else "None" for a in sharding)
    return f"P({text})" if axes_of(sharding) else "P()"


def divides(shape: Sequence[int], sharding: Sharding, sizes: Mapping[str, int]) -> bool:
    """Returns True if a sharding splits every dim evenly."""
    return all(n % count(a, sizes) == 0 for n, a in zip(shape, sharding, strict=True))


# --- Shardy's attributes ---------------------------------------------------------------------------------------------


def read(attribute: Any, free: Sequence[str] | None = None) -> Sharding:
    """Reads a `#sdy.sharding` without sub-axes; `free` limits it to some mesh axes."""
    rows = [tuple(a.name for a in _axes(d)) for d in attribute.dimension_shardings]
    return tuple(tuple(a for a in row if free is None or a in free) for row in rows)


def _axes(dim: Any) -> list[Any]:
    return [_sdy.AxisRefAttr(a) for a in _sdy.DimensionShardingAttr(dim).axes]


def read_nearest(
    attribute: Any, shape: Sequence[int], sizes: Mapping[str, int], without: Collection[str] = ()
) -> tuple[Sharding, bool]:
    """Reads a sharding, and drops what the program cannot have.

    Of each dim the leading whole axes that divide it are kept; those of `without`, which are manual, count for nothing.

    Returns:
      The sharding, and whether something was dropped.
    """
    rows: list[tuple[str, ...]] = []
    dropped = False
    for size, dim in zip(shape, attribute.dimension_shardings, strict=True):
        kept: list[str] = []
        for axis in [a for a in _axes(dim) if a.name not in without]:
            if axis.sub_axis_info is not None or size % count([*kept, axis.name], sizes):
                dropped = True
                break
            kept.append(axis.name)
        rows.append(tuple(kept))
    return tuple(rows), dropped


def written(attribute: Any, sharding: Sharding) -> Any:
    """Returns a `#sdy.sharding` over the mesh of another one."""
    dims = ", ".join("{" + ", ".join(f'"{a}"' for a in row) + "}" for row in sharding)
    mesh = str(_sdy.TensorShardingAttr(attribute).mesh_or_ref)
    return _ir.Attribute.parse(f"#sdy.sharding<{mesh}, [{dims}]>", attribute.context)


def show_attribute(attribute: Any) -> str:
    """Returns a sharding attribute as remarks show it, sub-axes included."""
    rows = [[str(a.name) + _sub(a) for a in _axes(d)] for d in attribute.dimension_shardings]
    return "P(" + ", ".join(repr(tuple(r)) if len(r) > 1 else repr(r[0]) if r else "None" for r in rows) + ")"


def _sub(axis: Any) -> str:
    info = axis.sub_axis_info
    if info is None:
        return ""
    info = _sdy.SubAxisInfoAttr(info)
    return f":({info.pre_size}){info.size}"


def per_value(op: Any) -> list[Any] | None:
    """Returns the shardings of an operation's results; None if none is written."""
    if op.name in OWN:
        return [_sdy.TensorShardingAttr(op.attributes[OWN[op.name]])]
    if SHARDING not in op.attributes:
        return None
    attribute = op.attributes[SHARDING]
    if _sdy.TensorShardingPerValueAttr.isinstance(attribute):
        return [_sdy.TensorShardingAttr(s) for s in _sdy.TensorShardingPerValueAttr(attribute).shardings]
    return [_sdy.TensorShardingAttr(attribute)]
