"""A step of molecular dynamics of jax-md at a constant temperature, its particles spread over an axis of the mesh."""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np
from jax.sharding import PartitionSpec as P

import jaxmesh as jm

MESH = (2, 4)
SYSTEMS: Mapping[int, tuple[int, str]] = {
    64: (2, "soft_sphere_pair"),
    256: (3, "lennard_jones_pair"),
    500: (3, "lennard_jones_pair"),
}
"""By number of particles the dimensions of space, and the energy of two particles."""


def nvt_step(particles: int) -> tuple[Callable[[Any], Any], Any]:
    """A step of Nosé and Hoover's thermostat, and a state that it takes.

    Raises ImportError without jax-md, or a library that it imports.
    """
    importlib.import_module("jax_md")
    energy, simulate, space = (importlib.import_module(f"jax_md.{name}") for name in ("energy", "simulate", "space"))
    dims, pair = SYSTEMS[particles]
    side, row = (particles / 0.8) ** (1 / dims), math.ceil(round(particles ** (1 / dims), 6))
    displacement, shift = space.periodic(side)
    start, step = simulate.nvt_nose_hoover(getattr(energy, pair)(displacement), shift, 1e-3, kT=1.0)
    # Near a grid, since particles that touch repel each other without bound.
    grid = np.indices((row,) * dims).reshape(dims, -1).T[:particles] + 0.5
    positions = (grid + np.random.default_rng(0).uniform(-0.1, 0.1, grid.shape)) * side / row
    return step, start(jax.random.key(0), positions.astype(np.float32))


def sharded(step: Callable[[Any], Any], state: Any, particles: int) -> Any:
    """The step with the particles of its state over `x`."""
    split = jax.tree.map(lambda leaf: P("x") if leaf.shape[:1] == (particles,) else P(), state)
    return jm.jit(step, mesh=jm.make_mesh(MESH), in_shardings=(split,))
