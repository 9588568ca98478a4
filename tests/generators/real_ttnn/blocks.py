"""Arrays of floats and their values in a block format of the real `ttnn`, by its host conversion."""

from __future__ import annotations

from typing import Any

import numpy as np

JOBS: list[dict[str, Any]] = [
    {"seed": seed, "shape": shape, "spread": spread, "kind": kind}
    for kind in ("BFLOAT8_B", "BFLOAT4_B")
    for seed, (shape, spread) in enumerate(
        [([40, 70], 0), ([3, 5, 33], 4), ([64, 64], 12), ([50], 1), ([32, 32], 120), ([16, 48], -1)]
    )
]
"""A spread of -1 stands for any bits: infinities, NaNs and subnormal numbers too."""


class Meshes:
    """No mesh is opened: the conversion is done in host memory."""

    def __init__(self, ttnn: Any) -> None:
        pass

    def close(self) -> None:
        """Does nothing."""


def array_of(job: dict[str, Any]) -> np.ndarray[Any, Any]:
    """Returns the floats of a job."""
    rng = np.random.default_rng(job["seed"])
    if job["spread"] < 0:
        return rng.integers(0, 2**32, job["shape"], dtype=np.uint64).astype(np.uint32).view(np.float32)
    scale = np.exp2(rng.integers(-job["spread"], job["spread"] + 1, job["shape"]))
    return (rng.standard_normal(job["shape"]) * scale).astype(np.float32)


def outcome_of(ttnn: Any, meshes: Meshes, job: dict[str, Any]) -> dict[str, Any]:
    """Returns the bits of the values after the way to the block format and back."""
    tiles = ttnn.Tensor(array_of(job), ttnn.float32).to(ttnn.TILE_LAYOUT)
    block = ttnn.to_dtype(tiles, getattr(ttnn, job["kind"].lower()))
    back = ttnn.to_dtype(block, ttnn.float32).to(ttnn.ROW_MAJOR_LAYOUT).to_numpy()
    return {"bits": np.ascontiguousarray(back, np.float32).view(np.uint32).ravel().tolist()}
