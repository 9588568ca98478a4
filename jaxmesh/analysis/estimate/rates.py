"""The rates of the matrix engine, and the machine that an estimate is for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from jaxmesh.analysis.machines import (
    L1,
    MACHINES,
    Machine,
    Rate,
    machine_named,
    show_mesh,
    show_meshes,
    smallest_machine,
)
from jaxmesh.errors import MeshError

_ENGINE = "tt-metal, tech_reports/matrix_engine/matrix_engine.md"

PRODUCT = Rate(4096, "FLOPs per cycle and core at LoFi", _ENGINE)
"""A product of 8x16 by 16x16 in a cycle; a multiplication and an addition count as two."""
REDUCTION = Rate(256, "elements per cycle and core", _ENGINE)
ELEMENTWISE = Rate(128, "operations per cycle and core", _ENGINE)
PHASES: Mapping[str, int] = {"LoFi": 1, "HiFi2": 2, "HiFi3": 3, "HiFi4": 4}
"""By math fidelity: how often the engine passes over a product, as the source of `PRODUCT` says."""


def sources(machine: Machine) -> list[str]:
    """Returns the rates of a machine as lines of text."""
    rates = {
        "cores": machine.cores, "clock": machine.clock, "products": PRODUCT, "reductions": REDUCTION,
        "elementwise": ELEMENTWISE, "L1": L1, "DRAM": machine.dram, "a wire, in one direction": machine.wire,
    }  # fmt: skip
    return [f"{name}: {rate}" for name, rate in rates.items() if rate]


def machine_for(name: str | None, mesh: Sequence[int]) -> Machine:
    """Returns the machine of a name, in any case; without one, the smallest of Wormholes that has the mesh.

    Raises:
      ArgumentValueError: no machine has this name.
      MeshError: the machine does not have the mesh.

    >>> machine_for("T3000", (2, 4)).name
    't3000'
    """
    machine = smallest_machine(mesh) if name is None else machine_named(name)
    if not machine.has(mesh):
        raise MeshError(
            f"{machine.name} does not have the mesh {show_mesh(mesh)}: there are {show_meshes(MACHINES.values())}, "
            "also transposed or in one line; name a machine that the mesh is a part of, or take another mesh."
        )
    return machine
