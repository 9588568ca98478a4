"""Tensors in another shape: nothing is computed for one before somebody needs the array itself.

A program over several devices costs tens of microseconds to start, and half of the ops of an emitted program only give
a tensor another shape. What computes next takes the array as it lies, and gives it the shape itself.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Self

import jax
import numpy as np

from jaxmesh.jaxprs.caches import ARRAY, is_staged
from jaxmesh.runtime.array_views import check_alive, view
from jaxmesh.runtime.launch import launch

Shape = tuple[int, ...]


class Later:
    """What a tensor holds that is to have an array of its own, once somebody asks for it.

    Attributes:
      stored: the array to make it from, which other tensors hold too, and which nobody outside is given.
      local: the local shape that it is to have; None for the one it has.
      shape: the shape of the array that it is to be, with its mesh dims.
    """

    __slots__ = ("__weakref__", "_run", "local", "shape", "stored")

    def __init__(self, stored: jax.Array, local: Shape | None, shape: Shape, run: Callable[..., Any]) -> None:
        self.stored, self.local, self.shape = stored, local, shape
        self._run = run

    @property
    def ndim(self) -> int:
        """The rank of the array that it is to be."""
        return len(self.shape)

    @property
    def dtype(self) -> np.dtype[Any]:
        """The element type."""
        return self.stored.dtype

    def done(self) -> jax.Array:
        """The array.

        Raises:
          DeletedError: the one it is made from was deleted, by somebody who was given it before.
        """
        check_alive(self.stored, "reshape")
        if self.local is not None and not is_staged():
            return launch(self._run, self.stored)[0]
        # What is kept must be no value of a trace. No device waits for another in this program, so that it may be
        # started beside those of other threads; JAX may hold locks of its own here.
        with jax.ensure_compile_time_eval():
            return self._run(self.stored)[0]


def _own(stored: jax.Array) -> list[Any]:
    return [view(stored)]


class Computed:
    """What ops ask of a `MeshTensor`, and how they make one."""

    __slots__ = ()

    @classmethod
    def computed(cls, data: Any, mesh: Any, varying: tuple[str, ...], place: Any) -> Self:
        """A tensor of what an op gave, which needs no check."""
        made: Any = cls.__new__(cls)
        made._stored, made._mesh, made._varying, made._place = data, mesh, varying, place
        made._topology = made._proven = None
        made._shared = False
        return made

    @classmethod
    def kept(cls, stored: jax.Array, mesh: Any, varying: tuple[str, ...], place: Any) -> Self:
        """A tensor of an array that others hold, too."""
        return cls.computed(Later(stored, None, stored.shape, _own), mesh, varying, place)

    def taken(self) -> tuple[Any, Shape | None]:
        """A stored array for an op to compute with, and the local shape to give it first, if it has another."""
        tensor: Any = self
        held = tensor._stored
        if type(held) is ARRAY and not held.is_deleted():
            return held, None
        if type(held) is Later and not held.stored.is_deleted():
            return held.stored, held.local
        return tensor.data, None

    def viewed(self, local: Shape, place: Any, run: Callable[..., Any]) -> Self:
        """The same elements in another local shape, which `run` gives the array of `taken`."""
        tensor: Any = self
        stored, _ = self.taken()
        if type(tensor._stored) is not Later:
            self._hold(Later(stored, None, stored.shape, _own))
        whole = (*local, *stored.shape[stored.ndim - len(tensor.varying) :])
        return self.computed(Later(stored, local, whole, run), tensor.mesh, tensor.varying, place)

    def finished(self, held: Later) -> Any:
        """The array that the tensor is to have, which it holds from now on."""
        return self._hold(held.done())

    def _hold(self, data: Any) -> Any:
        """Holds the same values otherwise."""
        tensor: Any = self
        known = tensor.proven
        tensor._stored = data
        if known:
            tensor.as_proven()
        return data
