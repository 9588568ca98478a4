"""The shardings of arguments and results that a text states."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from jaxlib.mlir.dialects import sdy

from jaxmesh.frontends.mlir.attributes import entries
from jaxmesh.frontends.stablehlo import shardings
from jaxmesh.frontends.stablehlo.shardings import SHARDING, Sharding

_sdy: Any = sdy


def over_several(sharding: Sharding, sizes: Mapping[str, int]) -> Sharding:
    """Returns a sharding without the axes of one device."""
    return tuple(tuple(a for a in axes if sizes.get(a, 1) > 1) for axes in sharding)


def stated_ends(main: Any, name: str, count: int) -> list[Any]:
    """Returns the sharding attribute of each argument or result; None without one."""
    if name not in main.attributes:
        return [None] * count
    rows = [dict(entries(a)) for a in main.attributes[name]]
    return [_sdy.TensorShardingAttr(row[SHARDING]) if SHARDING in row else None for row in rows]


def read_whole(attribute: Any) -> Sharding | None:
    """Returns a sharding; None without one, and for parts of axes."""
    dims = [_sdy.DimensionShardingAttr(d) for d in attribute.dimension_shardings] if attribute is not None else []
    if attribute is None or any(_sdy.AxisRefAttr(a).sub_axis_info is not None for d in dims for a in d.axes):
        return None
    return shardings.read(attribute)


def is_closed(attribute: Any) -> bool:
    """Returns True if Shardy may split no dim further."""
    return all(_sdy.DimensionShardingAttr(d).is_closed for d in attribute.dimension_shardings)
