"""One program of the suite, and its comparison with the unsharded oracle."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, PartitionSpec as P

import jaxmesh as jm
from tests.generators.oracles import coordinates, oracle_shard, same_bits

Make = Callable[[np.random.Generator], tuple[Any, ...]]


@dataclass(frozen=True)
class Entry:
    """A program, for `jm.jit(entry.function, mesh=entry.mesh)(*entry.args(seed))`.

    Attributes:
      name: unique in the suite.
      function: of full arrays, or of tensors on the devices where `placed` says so.
      make: full arguments, as trees of NumPy arrays.
      oracle: the results as trees of full NumPy arrays, from the full arguments.
      sizes: of the mesh.
      axes: their names.
      moves_only: whether data only moves, so that every way to run it agrees bit for bit.
      tolerance: the largest difference, relative to the larger of 1 and the largest number expected; 0 means equal
        bits, also where there is arithmetic: then on whole numbers, whose sums are the same in any order.
      placed: per argument the spec by which it is on the devices before the program starts; None for a full array.
      kept: per result the spec by which it stays on the devices; None for a full array.
    """

    name: str
    function: Callable[..., Any]
    make: Make
    oracle: Callable[..., Any]
    sizes: tuple[int, ...] = (2, 4)
    axes: tuple[str, ...] = ("y", "x")
    moves_only: bool = False
    tolerance: float = 0.0
    placed: tuple[P | None, ...] | None = None
    kept: tuple[P | None, ...] | None = None

    @property
    def mesh(self) -> Mesh:
        return jm.make_mesh(self.sizes, self.axes)

    @cached_property
    def traced(self) -> jm.Traced:
        """The program, traced once in a process."""
        return jm.jit(self.function, mesh=self.mesh).trace(*self.args())

    @cached_property
    def lowered(self) -> jm.Lowered:
        """The same, lowered."""
        return self.traced.lower()

    def full_args(self, seed: int = 0) -> tuple[Any, ...]:
        """Full arguments; the same for the same seed."""
        return self.make(np.random.default_rng([seed, *self.name.encode()]))

    def args(self, seed: int = 0) -> tuple[Any, ...]:
        """Arguments as the program takes them."""
        given = self.full_args(seed)
        specs = self.placed or (None,) * len(given)
        return tuple(x if s is None else on_devices(x, s, self.mesh) for x, s in zip(given, specs, strict=True))

    def expected(self, seed: int = 0) -> list[np.ndarray]:
        """The results, flat: full arrays, and of what stays on the devices all shards, stacked in row-major order."""
        wanted = [np.asarray(x) for x in jax.tree.leaves(self.oracle(*self.full_args(seed)))]
        specs = self.kept or (None,) * len(wanted)
        return [x if s is None else stacked(x, s, self.mesh) for x, s in zip(wanted, specs, strict=True)]

    def check(self, results: Any, seed: int = 0) -> None:
        """Compares results of the program, MeshTensors or stacked shards among them, with the oracle's."""
        found = [_array(x) for x in jax.tree.leaves(results, is_leaf=_is_tensor)]
        wanted = self.expected(seed)
        assert len(found) == len(wanted), (self.name, len(found), len(wanted))
        for i, (a, b) in enumerate(zip(found, wanted, strict=True)):
            assert (a.shape, a.dtype) == (b.shape, b.dtype), (self.name, i, a.shape, a.dtype, b.shape, b.dtype)
            assert self.agree(a, b), (self.name, i, a, b)

    def agree(self, a: np.ndarray, b: np.ndarray) -> bool:
        """Whether a result is the expected one."""
        if self.tolerance == 0 or a.dtype.kind in "iub":
            return same_bits(a, b)
        a, b = a.astype(np.float64), b.astype(np.float64)
        limit = self.tolerance * max(1.0, float(np.abs(b[np.isfinite(b)]).max(initial=0)))
        return bool(np.isclose(a, b, rtol=0, atol=limit, equal_nan=True).all())


def _is_tensor(x: Any) -> bool:
    return isinstance(x, jm.MeshTensor)


def _array(x: Any) -> np.ndarray:
    return np.stack([np.asarray(shard) for _, shard in x.shards()]) if _is_tensor(x) else np.asarray(x)


# --- shards, by slicing ----------------------------------------------------------------------------------------------


def on_devices(x: Any, spec: P, mesh: Mesh) -> jm.MeshTensor:
    """A full array as a tensor on the devices."""
    made: jm.MeshTensor = jm.jit(lambda v: jm.full_to_shard(v, spec), mesh=mesh)(x)
    return made


def dims_of(spec: P, rank: int, names: Sequence[str]) -> list[list[int]]:
    """Per dim the numbers of the mesh axes on it, most significant first."""
    rows = [() if e is None else (e,) if isinstance(e, str) else e for e in (*spec, *[None] * (rank - len(spec)))]
    return [[names.index(a) for a in row] for row in rows]


def split(x: np.ndarray, spec: P, mesh: Mesh) -> dict[tuple[int, ...], np.ndarray]:
    """The shard of every device, by mesh coordinate."""
    sizes = tuple(mesh.shape.values())
    dims = dims_of(spec, x.ndim, list(mesh.axis_names))
    return {c: oracle_shard(x, dims, sizes, c) for c in coordinates(sizes)}


def stacked(x: np.ndarray, spec: P, mesh: Mesh) -> np.ndarray:
    """The same in row-major order of the devices."""
    return np.stack(list(split(x, spec, mesh).values()))


def join(shards: dict[tuple[int, ...], np.ndarray], spec: P, mesh: Mesh) -> np.ndarray:
    """The full array of which these are the shards; where several devices hold a piece they have to agree."""
    sizes, first = tuple(mesh.shape.values()), next(iter(shards.values()))
    dims = dims_of(spec, first.ndim, list(mesh.axis_names))
    counts = [math.prod(sizes[a] for a in row) for row in dims]
    full = np.zeros([n * c for n, c in zip(first.shape, counts, strict=True)], first.dtype)
    for c, shard in shards.items():
        # The oracle cuts views, so that writing to one writes to the whole.
        np.copyto(oracle_shard(full, dims, sizes, c) if full.ndim else full, shard)
    assert all(same_bits(oracle_shard(full, dims, sizes, c), shard) for c, shard in shards.items())
    return full


def by_device(
    body: Callable[[dict[tuple[int, ...], Any]], dict[tuple[int, ...], Any]], in_spec: P, out_spec: P, mesh: Mesh
) -> Callable[[np.ndarray], np.ndarray]:
    """An oracle from what happens to the shards of one array, all together."""
    return lambda x: join(body(split(x, in_spec, mesh)), out_spec, mesh)
