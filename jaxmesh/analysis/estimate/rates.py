"""The rates of the matrix engine, and the machine that an estimate is for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from jaxmesh.analysis.machines import L1, MACHINES, Machine, Rate, show_mesh, show_meshes
from jaxmesh.errors import ArgumentValueError, MeshError
from jaxmesh.validate import quote

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

    >>> [machine_for(None, mesh).name for mesh in ((1, 1), (1, 2), (2, 4), (4, 8), (2, 2, 2))]
    ['n150', 'n300', 't3000', 'galaxy', 't3000']
    >>> machine_for("T3000", (2, 4)).name
    't3000'
    """
    if name is not None and (not isinstance(name, str) or name.lower() not in MACHINES):
        raise ArgumentValueError(f"estimate takes a cluster of {', '.join(MACHINES)}, got {quote(name)}.")
    for machine in MACHINES.values() if name is None else [MACHINES[name.lower()]]:
        if machine.has(mesh):
            return machine
    which = "no cluster has" if name is None else f"{name} does not have"
    raise MeshError(
        f"{which} the mesh {show_mesh(mesh)}: there are {show_meshes(MACHINES.values())}, which also turn, and lie in "
        "one line; name a cluster that the mesh is a part of, or take another mesh."
    )
