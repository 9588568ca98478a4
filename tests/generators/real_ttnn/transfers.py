"""Random mapper and composer configs, and what `distribute_tensor` and `aggregate_tensor` make of them.

`outcome_of` runs with the real `ttnn` and with the emulated one; this module therefore imports NumPy alone.
"""

from __future__ import annotations

import hashlib
import math
import random
from typing import Any

import numpy as np

SUBMESHES = ((1, 1), (1, 2), (2, 1), (2, 2), (1, 4), (2, 3))
"""Meshes that are blocks of a larger one: a mock cluster opens all of its devices or none."""
MESHES = ((2, 4), (2, 4), (2, 4), (1, 8), (8, 1), (4, 2), (8,), *SUBMESHES)
DTYPES = ("float32", "int32", "uint32", "uint16", "uint8", "bfloat16")
Job = dict[str, Any]


class Meshes:
    """The open mesh device; opening another shape closes it."""

    def __init__(self, ttnn: Any) -> None:
        self._ttnn = ttnn
        self._shape: tuple[int, ...] | None = None
        self._device: Any = None
        self._blocks: dict[tuple[int, ...], Any] = {}

    def open(self, shape: tuple[int, ...]) -> Any:
        """Returns the mesh device of a shape."""
        if shape in SUBMESHES:
            device = self.open((2, 4))
            if shape not in self._blocks:
                self._blocks[shape] = device.create_submesh(self._ttnn.MeshShape(list(shape)))
            return self._blocks[shape]
        if self._shape != shape:
            self.close()
            self._device = self._ttnn.open_mesh_device(self._ttnn.MeshShape(list(shape)))
            self._shape = shape
        return self._device

    def close(self) -> None:
        """Closes the mesh device."""
        if self._device is not None:
            self._ttnn.close_mesh_device(self._device)
        self._shape = self._device = None
        self._blocks.clear()


# --- jobs ------------------------------------------------------------------------------------------------------------


def random_job(rng: random.Random) -> Job:
    """Returns a mesh, a tensor, a mapper and a composer; most are legal, in every mode of both."""
    mesh = rng.choice(MESHES)
    mapped = _distribution(rng, mesh)
    shape = _shape(rng, mapped)
    composed = mapped if rng.random() < 0.5 else _distribution(rng, mesh)
    rank = len(shape)
    return {
        "mesh": list(mesh),
        "shape": shape,
        "dtype": rng.choice(DTYPES),
        "placements": [_dim(rng, rank, 0.45) for _ in range(_count(rng, mapped))],
        "mapper_override": _override(rng, mapped, mesh),
        "dims": _dims(rng, rank, _count(rng, composed)),
        "composer_override": _override(rng, composed, mesh),
    }


def _distribution(rng: random.Random, mesh: tuple[int, ...]) -> tuple[int, ...]:
    kind, size = rng.random(), math.prod(mesh)
    if kind < 0.35:
        return mesh
    if kind < 0.6:
        return (rng.choice([size, size, rng.randint(1, size + 1)]),)
    if kind < 0.8:
        return tuple(rng.randint(1, n) for n in mesh)
    return tuple(rng.choice([1, 2, 2, 4]) for _ in range(rng.randint(1, 3)))


def _shape(rng: random.Random, distribution: tuple[int, ...]) -> list[int]:
    sizes = [*distribution, *(2 * n for n in distribution), 1, 2, 3, 4, 8, 6]
    shape = [rng.choice(sizes) for _ in range(rng.choice([1, 2, 2, 3, 3, 4]))]
    if rng.random() < 0.03:
        shape[rng.randrange(len(shape))] = 0
    return shape


def _count(rng: random.Random, distribution: tuple[int, ...]) -> int:
    return len(distribution) if rng.random() < 0.95 else rng.randint(1, 3)


def _dim(rng: random.Random, rank: int, none: float) -> int | None:
    if rng.random() < none:
        return None
    return rng.randrange(-rank, rank) if rng.random() < 0.96 else rng.choice([rank, -rank - 1])


def _dims(rng: random.Random, rank: int, count: int) -> list[int]:
    if count <= rank and rng.random() < 0.8:
        return [d - rng.choice([0, rank]) for d in rng.sample(range(rank), count)]
    return [d for d in (_dim(rng, rank, 0.0) for _ in range(count)) if d is not None]


def _override(rng: random.Random, distribution: tuple[int, ...], mesh: tuple[int, ...]) -> list[int] | None:
    return None if distribution == mesh and rng.random() < 0.7 else list(distribution)


def array_of(job: Job) -> np.ndarray[Any, Any]:
    """Returns the full tensor of a job: distinct numbers where the element type has enough."""
    kind = np.dtype("float32" if job["dtype"] == "bfloat16" else job["dtype"])
    return (np.arange(math.prod(job["shape"])) % 200).astype(kind).reshape(job["shape"])


# --- outcomes --------------------------------------------------------------------------------------------------------


def outcome_of(ttnn: Any, meshes: Meshes, job: Job) -> dict[str, Any]:
    """Returns the step that refused the job, or None, and the results of the steps before it."""
    out: dict[str, Any] = {"stage": "open"}
    try:
        device = meshes.open(tuple(job["mesh"]))
        out["stage"] = "mapper"
        placements = [ttnn.PlacementReplicate() if d is None else ttnn.PlacementShard(d) for d in job["placements"]]
        override = _mesh_shape(ttnn, job["mapper_override"])
        mapper = ttnn.create_mesh_mapper(device, ttnn.MeshMapperConfig(placements, override))
        tensor = ttnn.Tensor(array_of(job), getattr(ttnn, job["dtype"].replace("bfloat16", "float32")))
        tensor = ttnn.to_dtype(tensor, ttnn.bfloat16) if job["dtype"] == "bfloat16" else tensor
        out["stage"] = "distribute"
        shards = ttnn.distribute_tensor(tensor, mapper)
        out["shards"] = [describe(ttnn, t) for t in ttnn.get_device_tensors(shards)]
        topology = shards.tensor_topology()
        out["topology"] = [
            list(topology.distribution_shape()),
            [str(p) for p in topology.placements()],
            [list(c) for c in topology.mesh_coords()],
        ]
        out["stage"] = "composer"
        config = ttnn.MeshComposerConfig(job["dims"], _mesh_shape(ttnn, job["composer_override"]))
        composer = ttnn.create_mesh_composer(device, config)
        out["stage"] = "aggregate"
        out["joined"] = describe(ttnn, ttnn.aggregate_tensor(shards, composer))
        out["stage"] = None
    except Exception as error:
        out["error"] = f"{type(error).__name__}: {error}"[:600]
    return out


def _mesh_shape(ttnn: Any, shape: list[int] | None) -> Any:
    return None if shape is None else ttnn.MeshShape(shape)


def describe(ttnn: Any, tensor: Any) -> list[Any]:
    """Returns shape, element type, layout and a digest of the elements of a host tensor."""
    kind = str(tensor.dtype).rpartition(".")[2].upper()
    plain = ttnn.to_dtype(tensor, ttnn.float32) if kind == "BFLOAT16" else tensor
    values = np.ascontiguousarray(plain.to_numpy())
    return [list(tensor.shape), kind, str(tensor.layout), hashlib.sha256(values.tobytes()).hexdigest()[:16]]
