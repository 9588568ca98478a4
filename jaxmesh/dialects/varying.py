"""The mesh axes that values vary over, in JAX's types of a region."""

from __future__ import annotations

from collections.abc import Iterable

import jax

from jaxmesh.jaxprs import compat
from jaxmesh.jaxprs.compat import Axes
from jaxmesh.jaxprs.untyped import jnp, lax


def varying_axes(x: jax.Array) -> Axes:
    """Returns the mesh axes over which a value may differ."""
    return compat.varying_axes(jax.typeof(x))


def join_axes(values: Iterable[jax.Array]) -> Axes:
    """Returns the mesh axes over which any of the values may differ."""
    return frozenset[str]().union(*map(varying_axes, values))


def vary(x: jax.Array, axes: Iterable[str]) -> jax.Array:
    """Types a value as varying over at least the given axes, as far as the mesh of the region has them."""
    missing = {*axes} - varying_axes(x)
    if not missing:
        return x
    in_order = [a for a in jax.sharding.get_abstract_mesh().axis_names if a in missing]
    return compat.vary(x, in_order) if in_order else x


def vary_alike(*values: jax.Array) -> list[jax.Array]:
    """Returns the values with a common type: each varies over the axes of all."""
    axes = join_axes(values)
    return [vary(x, axes) for x in values]


def vary_together(*operands: jax.Array) -> tuple[jax.Array, ...]:
    """Returns the operands as arrays, all typed as varying over every axis over which one of them varies.

    JAX does that itself for most primitives; some insist on equal types, and a few (`sort`) infer a wrong one.
    """
    return tuple(vary_alike(*map(jnp.asarray, operands)))


def first_copy_only(x: jax.Array, varying: compat.Axes) -> jax.Array:
    """Returns `x` at coordinate 0 of the axes that it does not vary over yet, and zeros elsewhere."""
    mesh = jax.sharding.get_abstract_mesh()
    for axis in [a for a in mesh.axis_names if a in varying - compat.varying_axes(jax.typeof(x))]:
        x = compat.vary(x, (axis,))
        if mesh.shape[axis] > 1:
            x = lax.select(lax.axis_index(axis) == 0, x, lax.full_like(x, 0))
    return x
