"""Registers the programs of the set, and draws their arguments."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import jaxmesh as jm

Parts = tuple[Callable[..., Any], tuple[Any, ...], Any]
"""A function, its arguments, and how they are split."""


@dataclass(frozen=True)
class Made:
    """A program with its mesh, the PartitionSpecs of its arguments, and its arguments."""

    fun: Callable[..., Any]
    args: tuple[Any, ...]
    specs: Any
    mesh: jax.sharding.Mesh


ALL: dict[str, Callable[[int], Made]] = {}
"""By name, what makes a program with the arguments of a number."""


class Draw:
    """Draws the arguments of a program, by its name and a number."""

    def __init__(self, name: str, number: int) -> None:
        self.rng = np.random.default_rng([zlib.crc32(name.encode()), number])

    def normal(self, *shape: int, scale: float = 1.0, dtype: Any = jnp.float32) -> jax.Array:
        return jnp.asarray(self.rng.normal(size=shape) * scale, dtype)

    def weight(self, *shape: int, dtype: Any = jnp.float32) -> jax.Array:
        return self.normal(*shape, scale=float(np.prod(shape[:-1])) ** -0.5, dtype=dtype)

    def uniform(self, *shape: int, low: float = 0.1, high: float = 1.0, dtype: Any = jnp.float32) -> jax.Array:
        return jnp.asarray(self.rng.uniform(low, high, size=shape), dtype)

    def ids(self, high: int, *shape: int, low: int = 0) -> jax.Array:
        return jnp.asarray(self.rng.integers(low, high, shape), jnp.int32)

    def bytes(self, *shape: int) -> jax.Array:
        return jnp.asarray(self.rng.integers(-100, 100, shape), jnp.int8)


def program(*shape: int, names: tuple[str, ...] = ("x", "y")) -> Callable[[Callable[..., Parts]], Callable[..., Parts]]:
    """Registers a program over a mesh of a shape: a function from a `Draw` and the mesh to its parts."""

    def register(make: Callable[..., Parts]) -> Callable[..., Parts]:
        def build(number: int) -> Made:
            mesh = jm.make_mesh(shape, names[-len(shape) :])
            return Made(*make(Draw(make.__name__, number), mesh), mesh)

        assert make.__name__ not in ALL, make.__name__
        build.__module__ = make.__module__
        ALL[make.__name__] = build
        return make

    return register
