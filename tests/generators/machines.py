"""The machines as a table: docs/machines.md; `python -m tests.generators.machines` writes it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping

from jaxmesh.analysis.cluster_description import describe_cluster
from jaxmesh.analysis.machines import L1, MACHINES, Machine, machine_for, show_mesh
from jaxmesh.analysis.upstream.descriptors import describe_system
from jaxmesh.errors import JaxmeshError
from tests import ROOT
from tests.generators.readme_tables import write

DOCUMENT = ROOT / "docs" / "machines.md"
NAME = "machines"
TAKES: Mapping[str, Callable[[Machine], object]] = {
    "judge": describe_cluster,
    "estimate": lambda machine: machine_for(machine.name, machine.shape),
    "upstream": describe_system,
}
"""What each call needs of a machine; it raises where there is none."""


def table() -> str:
    """Returns one row per machine."""
    columns = ("machine", "mesh", "chip", "DRAM of a device", "L1 of a device", "links", *TAKES)
    rows = [columns, ("---",) * len(columns), *map(_row, MACHINES.values())]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _row(machine: Machine) -> tuple[str, ...]:
    chip, cores = machine.architecture, int(machine.cores.value)
    dram = chip.dram_channels * chip.dram_channel_bytes / 2**30
    return (
        machine.name,
        show_mesh(machine.shape),
        chip.name,
        f"{dram:.1f} GiB, {machine.dram.value / 1e9:.0f} GB/s",
        f"{machine.l1_bytes / 2**20:.0f} MiB: {cores} cores of {L1.value / 2**20:.1f} MiB",
        _links(machine),
        *("yes" if _is_taken(describe, machine) else "no" for describe in TAKES.values()),
    )


def _links(machine: Machine) -> str:
    if machine.wire is None:
        return "none"
    between = max(Counter((a, b) for a, _, b, _ in machine.links).values())
    sides = "; both sides of the mesh close to rings" if machine.is_torus else ""
    return f"{between} of {machine.wire.value / 1e9:.1f} GB/s each way between neighbours{sides}"


def _is_taken(describe: Callable[[Machine], object], machine: Machine) -> bool:
    try:
        describe(machine)
    except JaxmeshError:
        return False
    return True


if __name__ == "__main__":
    write(NAME, table(), DOCUMENT)
