"""The mesh axes that values vary over, in JAX's types of a region."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import jax

from jaxmesh.jaxprs import compat
from jaxmesh.jaxprs.compat import Axes
from jaxmesh.jaxprs.untyped import jnp, lax


def varying_axes(x: Any) -> Axes:
    """Returns the mesh axes over which a value may differ."""
    return compat.varying_axes(jax.typeof(x))


def join_axes(values: Iterable[Any]) -> Axes:
    """Returns the mesh axes over which any of the values may differ."""
    return frozenset[str]().union(*map(varying_axes, values))


def vary(x: Any, axes: Iterable[str]) -> Any:
    """Types a value as varying over at least the given axes, as far as the mesh of the region has them."""
    missing = {*axes} - varying_axes(x)
    if not missing:
        return x
    in_order = [a for a in jax.sharding.get_abstract_mesh().axis_names if a in missing]
    return compat.vary(x, in_order) if in_order else x


def vary_alike(*values: Any) -> list[Any]:
    """Returns the values with a common type: each varies over the axes of all."""
    axes = join_axes(values)
    return [vary(x, axes) for x in values]


def vary_together(*operands: Any) -> tuple[Any, ...]:
    """Returns the operands as arrays, all typed as varying over every axis over which one of them varies.

    JAX does that itself for most primitives; some insist on equal types, and a few (`sort`) infer a wrong one.
    """
    return tuple(vary_alike(*map(jnp.asarray, operands)))


def first_copy_only(x: Any, varying: compat.Axes) -> Any:
    """Returns `x` at coordinate 0 of the axes that it does not vary over yet, and zeros elsewhere."""
    mesh = jax.sharding.get_abstract_mesh()
    for axis in [a for a in mesh.axis_names if a in varying - compat.varying_axes(jax.typeof(x))]:
        x = compat.vary(x, (axis,))
        if mesh.shape[axis] > 1:
            x = lax.select(lax.axis_index(axis) == 0, x, lax.full_like(x, 0))
    return x
