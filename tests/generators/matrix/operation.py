"""One row of the transformation matrix: an operation as a small program.

A program is `join(around(local(around(split(x)))))`, `around` being elementwise, so that what an operation means is a
function of whole arrays. Values are small integers, and divisions are by powers of two: sums are exact in any order,
and results can be compared number for number.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from jax.sharding import Mesh, PartitionSpec as P

Fun = Callable[[Any], Any]


def same(x: Any) -> Any:
    """No operation."""
    return x


def square(x: Any) -> Any:
    """Makes derivatives depend on values."""
    return x * x


def triple(x: Any) -> Any:
    """Linear, for `linear_transpose`."""
    return 3 * x


@dataclass(frozen=True)
class Operation:
    """One row: `split`, `local` and `join` over `mesh`, and `plain`, which means all three.

    `specs` are those of the two ends where these are shards; without them the operation is in `split` or `join`.
    `differentiable` is false where JAX has no derivative of the operation.
    """

    name: str
    mesh: Mesh
    split: Fun
    local: Fun
    join: Fun
    plain: Fun
    specs: tuple[P, P] | None = None
    differentiable: bool = True

    def piece(self, around: Fun) -> Fun:
        """What happens to a shard, with `around` before and after the operation."""
        return lambda s: around(self.local(around(s)))

    def sharded(self, around: Fun) -> Fun:
        """The whole program, for use inside `jaxmesh.jit`."""
        return lambda x: self.join(self.piece(around)(self.split(x)))

    def unsharded(self, around: Fun) -> Fun:
        """What it means, without jaxmesh and without a mesh."""
        return lambda x: around(self.plain(around(x)))

    def argument(self, dtype: Any = np.float32) -> np.ndarray:
        """Integers from -2 to 2 (from 0 where there are no negative ones)."""
        rows, columns = shape_on(self.mesh)
        low = 0 if np.issubdtype(dtype, np.unsignedinteger) or dtype == np.bool_ else -2
        values = np.random.default_rng(7).integers(low, 3, (rows, columns))
        return values.astype(dtype)


def shape_on(mesh: Mesh) -> tuple[int, int]:
    """The shape of the argument: every collective splits both of its dims once more."""
    last = list(mesh.shape.values())[-1]
    return mesh.size, 2 * last
