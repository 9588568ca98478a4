"""The cotangent of reading a single copy of several, for the transposes of both dialects."""

from __future__ import annotations

from typing import Any

import jax

from jaxmesh.jaxprs import compat

_lax: Any = jax.lax


def first_copy_only(x: Any, varying: compat.Axes) -> Any:
    """Returns `x` at coordinate 0 of the axes that it does not vary over yet, and zeros elsewhere."""
    mesh = jax.sharding.get_abstract_mesh()
    for axis in [a for a in mesh.axis_names if a in varying - compat.varying_axes(jax.typeof(x))]:
        x = compat.vary(x, (axis,))
        if mesh.shape[axis] > 1:
            x = _lax.select(_lax.axis_index(axis) == 0, x, _lax.full_like(x, 0))
    return x
