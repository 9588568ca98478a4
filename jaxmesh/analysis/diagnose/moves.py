"""Movements of elements in NumPy: most are views, and none has to be compiled, for each of its shapes, by XLA."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from jaxmesh.jaxprs import evaluate
from jaxmesh.jaxprs.compat import Eqn

Array = np.ndarray[Any, Any]


def broadcast(x: Array, shape: Sequence[int], dims: Sequence[int]) -> Array:
    """Returns an array with its dims at some dims of a shape, and repeated along the others.

    >>> broadcast(np.arange(2), (3, 2), (1,)).tolist()
    [[0, 1], [0, 1], [0, 1]]
    """
    sizes = dict(zip(dims, x.shape, strict=True))
    return np.broadcast_to(x.reshape([sizes.get(d, 1) for d in range(len(shape))]), shape)


def cut(x: Array, starts: Sequence[int], limits: Sequence[int], strides: Sequence[int] | None) -> Array:
    """Returns a slice of every dim."""
    return x[tuple(map(slice, starts, limits, strides or [1] * x.ndim))]


_RULES: Mapping[str, Callable[[Array, Mapping[str, Any]], Array]] = {
    "broadcast_in_dim": lambda x, p: broadcast(x, p["shape"], p["broadcast_dimensions"]),
    "reshape": lambda x, p: x.reshape(p["new_sizes"]),
    "slice": lambda x, p: cut(x, p["start_indices"], p["limit_indices"], p["strides"]),
    "squeeze": lambda x, p: np.squeeze(x, p["dimensions"]),
    "transpose": lambda x, p: np.transpose(x, p["permutation"]),
}
"""By primitive."""


def bind_movement(eqn: Eqn, operands: Sequence[Any]) -> list[Any]:
    """Evaluates an equation as `evaluate.bind` does, and a movement in NumPy."""
    rule = _RULES.get(eqn.primitive.name)
    if rule is None or len(operands) != 1 or jax.dtypes.issubdtype(operands[0].dtype, jax.dtypes.extended):
        return evaluate.bind(eqn, operands)
    return [rule(np.asarray(operands[0]), eqn.params)]
