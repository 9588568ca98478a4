"""Comparisons of the sharded model with the unsharded one, and of shards with their slices."""

# The demo is written as users write, and JAX annotates a part of its functions.
# pyright: reportUnknownMemberType=false
from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import jaxmesh as jm

TOLERANCE = 1e-5
"""The largest difference allowed, relative to the largest magnitude.

Shards add the same float32 numbers in another order: at these sizes the error stays below 1e-6; a fault exceeds it.
"""


@dataclass(frozen=True, slots=True)
class Check:
    """One comparison: the largest difference relative to the largest magnitude, or the reason why it is undefined."""

    name: str
    error: float
    tolerance: float
    note: str = ""

    @property
    def passed(self) -> bool:
        """Returns True if the difference is within the tolerance; False for not a number."""
        return self.error <= self.tolerance

    @property
    def program(self) -> str:
        """The compared program: the name without the result."""
        return self.name.rpartition(": ")[0]

    @property
    def verdict(self) -> str:
        """PASS or FAIL."""
        return "PASS" if self.passed else "FAIL"


def compare(name: str, got: object, expected: object, tolerance: float = TOLERANCE) -> Check:
    """Compares two arrays; a different shape or dtype, or a value that is not finite, fails.

    >>> compare("loss", np.float32(2.0), np.float32(2.0)).verdict
    'PASS'
    """
    a, b = np.asarray(got), np.asarray(expected)
    if (a.shape, a.dtype) != (b.shape, b.dtype):
        note = f"{a.dtype}{list(a.shape)} where {b.dtype}{list(b.shape)} is expected"
        return Check(name, float("inf"), tolerance, note)
    if not (np.isfinite(a).all() and np.isfinite(b).all()):
        return Check(name, float("nan"), tolerance, "not every value is finite")
    difference = float(np.max(np.abs(a - b), initial=0))
    return Check(name, difference / (float(np.max(np.abs(b), initial=0)) or 1.0), tolerance)


def compare_gradients(what: str, got: tuple[Any, Any], expected: tuple[Any, Any]) -> list[Check]:
    """Compares results of `jax.value_and_grad(loss, argnums=(0, 1))`: the loss and every gradient."""
    (loss, (weights, x)), (loss_0, (weights_0, x_0)) = got, expected
    named: Mapping[str, tuple[Any, Any]] = {f"d {name}": (weights[name], w) for name, w in weights_0.items()}
    pairs = {"loss": (loss, loss_0), "d x": (x, x_0), **named}
    return [compare(f"{what}: {name}", a, b) for name, (a, b) in pairs.items()]


# --- the shards on each device, read from the arrays -----------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Holding:
    """One device's shard of one tensor; `exact` is True if it equals the slice `slices` bit for bit."""

    coordinate: tuple[int, ...]
    tensor: str
    shape: tuple[int, ...]
    slices: tuple[slice, ...]
    nbytes: int
    exact: bool


def list_holdings(tensors: Mapping[str, jax.Array], specs: Mapping[str, PartitionSpec], mesh: Mesh) -> list[Holding]:
    """Distributes full tensors and lists every device's shards, row-major over the mesh."""

    def distribute(full: Mapping[str, jax.Array]) -> dict[str, jax.Array]:
        return {name: jm.full_to_shard(x, specs[name]) for name, x in full.items()}

    holdings: list[Holding] = []
    for name, tensor in jm.jit(distribute, mesh=mesh)(dict(tensors)).items():
        full = np.asarray(tensors[name])
        for coordinate, shard in tensor.shards():
            slices = slices_of(full.shape, specs[name], mesh, tuple(coordinate))
            local, cut = np.asarray(shard), full[slices]
            exact = (local.shape, local.dtype, local.tobytes()) == (cut.shape, cut.dtype, cut.tobytes())
            holdings.append(Holding(tuple(coordinate), name, local.shape, slices, local.nbytes, exact))
    # The sort is stable, so a device's tensors keep their order.
    return sorted(holdings, key=lambda h: h.coordinate)


def slices_of(shape: Sequence[int], spec: PartitionSpec, mesh: Mesh, coordinate: Sequence[int]) -> tuple[slice, ...]:
    """Returns the slice of a full tensor that a spec assigns to the device at a coordinate."""
    return NamedSharding(mesh, spec).devices_indices_map(tuple(shape))[mesh.devices[tuple(coordinate)]]


def show_slices(slices: Sequence[slice]) -> str:
    """Returns a slice in Python's notation.

    >>> show_slices((slice(0, 2), slice(None)))
    '[0:2, :]'
    """
    return "[" + ", ".join(":" if s.stop is None else f"{s.start}:{s.stop}" for s in slices) + "]"
