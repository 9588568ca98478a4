"""Lazy reshapes: no program starts for a reshaped tensor before its array is needed.

Starting a program over several devices costs tens of microseconds, and half of the ops of an emitted program only
reshape. The next op takes the array before the reshape and reshapes it in its own program.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from jaxmesh.jaxprs.caches import is_staged
from jaxmesh.runtime.array_views import check_alive, view
from jaxmesh.runtime.launch import launch

Shape = tuple[int, ...]


def _view(stored: jax.Array) -> list[Any]:
    return [view(stored)]


class LazyReshape:
    """An array to be made from another one when it is first needed.

    Attributes:
      stored: the array to reshape. Other tensors share it; the user never gets it.
      local: the local shape of the result; None to keep the shape.
      shape: the stored shape of the result, mesh dims included.
    """

    __slots__ = ("__weakref__", "_run", "local", "shape", "stored")

    def __init__(
        self, stored: jax.Array, local: Shape | None = None, shape: Shape | None = None, run: Callable[..., Any] = _view
    ) -> None:
        self.stored, self.local, self.shape = stored, local, stored.shape if shape is None else shape
        self._run = run

    @property
    def ndim(self) -> int:
        """The rank of the result, mesh dims included."""
        return len(self.shape)

    @property
    def dtype(self) -> np.dtype[Any]:
        """The element type."""
        return self.stored.dtype

    def compute(self) -> jax.Array:
        """Returns the array."""
        check_alive(self.stored, "reshape")
        if self.local is not None and not is_staged():
            return launch(self._run, self.stored)[0]
        # The tensor keeps the result, so it must not be a value of a trace. This program is free of collectives and may
        # start beside programs of other threads; JAX may hold locks here.
        with jax.ensure_compile_time_eval():
            return self._run(self.stored)[0]
