"""The descriptions of clusters: their wires join the chips to one whole, and the smallest that has a mesh is found."""

from __future__ import annotations

import inspect
import itertools
import math
import re
from collections import Counter
from typing import Any

import pytest

from jaxmesh.analysis.cluster_description import describe_cluster
from jaxmesh.analysis.machines import MACHINES, Machine, machine_for, machine_named
from jaxmesh.errors import MeshError
from jaxmesh.stages.stages import Lowered


@pytest.fixture(params=MACHINES.values(), ids=MACHINES)
def cluster(request: Any) -> Machine:
    return request.param


def test_a_channel_has_one_wire(cluster: Machine) -> None:
    ends = [end for a, p, b, q in cluster.links for end in ((a, p), (b, q))]
    assert len(ends) == len(set(ends))
    assert {chip for chip, _ in ends} == (set(range(cluster.devices)) if cluster.links else set())
    assert all(0 <= channel < 16 for _, channel in ends)


def test_the_wires_are_those_of_its_mesh(cluster: Machine) -> None:
    """The chips can be laid into the mesh so that all neighbours there are wired."""
    wired = {frozenset((a, b)) for a, _, b, _ in cluster.links}
    rows, columns = cluster.shape
    grid = [
        ((r, c), (r + y, c + x))
        for r, c in itertools.product(range(rows), range(columns))
        for y, x in ((0, 1), (1, 0))
        if r + y < rows and c + x < columns
    ]

    def lay(placed: dict[tuple[int, int], int]) -> bool:
        if len(placed) == rows * columns:
            return True
        place = next(p for p in itertools.product(range(rows), range(columns)) if p not in placed)
        near = [
            placed[a if b == place else b] for a, b in grid if place in (a, b) and (a if b == place else b) in placed
        ]
        return any(
            lay(placed | {place: chip})
            for chip in range(rows * columns)
            if chip not in placed.values() and all(frozenset((chip, n)) in wired for n in near)
        )

    assert lay({})


def test_the_description_names_every_chip(cluster: Machine) -> None:
    text = describe_cluster(cluster)
    chips = math.prod(cluster.shape)
    for section in ("arch", "chip_unique_ids", "harvesting", "chip_to_boardtype"):
        lines = re.search(rf"^{section}:\n((?:  .*\n)+)", text, re.M)
        assert lines is not None
        assert [int(n) for n in re.findall(r"^  (\d+):", lines[1], re.M)] == list(range(chips))
    assert text.count("chan:") == 2 * len(cluster.links)
    identifiers = re.findall(r"^  \d+: (\d{6,})$", text, re.M)
    assert len(set(identifiers)) == chips


@pytest.mark.parametrize(
    ("mesh", "name"),
    [((1,), "n150"), ((2,), "n300"), ((1, 1), "n150"), ((2, 1), "n300"), ((1, 4), "t3000"), ((4, 2), "t3000"),
     ((8, 1), "t3000"), ((2, 2, 2), "t3000"), ((3, 3), "galaxy"), ((1, 32), "galaxy"), ((4, 8), "galaxy")],
)  # fmt: skip
def test_the_smallest_machine(mesh: tuple[int, ...], name: str) -> None:
    assert machine_for(None, mesh).name == name


@pytest.mark.parametrize("mesh", [(64,), (2, 16), (8, 5), (1, 33), (4, 4, 4)])
def test_a_mesh_that_no_machine_has(mesh: tuple[int, ...]) -> None:
    with pytest.raises(MeshError, match="n300 1x2, t3000 2x4, galaxy 8x4"):
        machine_for(None, mesh)


@pytest.mark.parametrize("name", ["judge", "estimate", "upstream"])
def test_a_machine_is_given_alike(name: str) -> None:
    """By position and by name: `lowered.judge("t3000")`, `lowered.estimate(cluster="t3000")`."""
    _, first, *_ = inspect.signature(getattr(Lowered, name)).parameters.values()
    assert (first.name, first.kind) == ("cluster", first.POSITIONAL_OR_KEYWORD)


@pytest.mark.parametrize(
    ("name", "shape", "wires"),
    [
        ("p300", (1, 2), 2),
        ("p150x2", (1, 2), 4),
        ("p150x4", (2, 2), 4),
        ("p150x8", (2, 4), 2),
        ("p300x2", (2, 2), 2),
        ("blackhole-galaxy", (8, 4), 2),
    ],
)
def test_blackholes_have_the_meshes_and_channels_of_the_makers_descriptors(
    name: str, shape: tuple[int, int], wires: int
) -> None:
    """As `device_topology` and `channels` of tt-metal's `<name>_mesh_graph_descriptor.textproto` have them."""
    machine = MACHINES[name]
    assert machine.shape == shape
    assert set(Counter((a, b) for a, _, b, _ in machine.links).values()) == {wires}
    assert machine.dram_bytes == pytest.approx(32 * 2**30, rel=0.01)


def test_a_p100_is_described_as_in_the_example() -> None:
    """`tests/cluster_descriptor_examples/blackhole_P100.yaml` of tt-umd."""
    machine = MACHINES["p100"]
    masks = "harvest_mask: 192, dram_harvesting_mask: 8, eth_harvesting_mask: 16383, pcie_harvesting_mask: 2"
    assert f"0: {{noc_translation: true, {masks}}}" in describe_cluster(machine)
    assert machine.dram_bytes == pytest.approx(28 * 2**30, rel=0.01)
    assert machine.architecture.dram_channels + machine.dram_mask.bit_count() == 8


def test_a_machine_has_the_name_under_which_it_is_sold() -> None:
    names = ("Blackhole QuietBox", "QuietBox 2", "Blackhole LoudBox", "blackhole galaxy")
    assert [machine_named(name).name for name in names] == ["p150x4", "p300x2", "p150x8", "blackhole-galaxy"]


def test_the_chips_of_a_tray_have_the_buses_and_places_of_the_example() -> None:
    text = describe_cluster(MACHINES["blackhole-galaxy"])
    assert [text.count(f'"0x{bus:02x}"') for tray in (0, 0x40, 0x80, 0xC0) for bus in (tray + 1, tray + 8)] == [1] * 8
    assert re.findall(r"^  31: (\d)$", text.partition("asic_locations:")[2], re.M) == ["8"]
    around = Counter(chip for a, _, b, _ in MACHINES["blackhole-galaxy"].links for chip in (a, b))
    # Two wires to each of four neighbours: both sides of the mesh close to rings.
    assert set(around.values()) == {8}


def test_the_two_chips_of_a_p300_differ_in_their_place_and_pcie_core() -> None:
    text = describe_cluster(MACHINES["p300"])
    assert "asic_locations:\n  0: 0\n  1: 1\n" in text
    assert re.findall(r"pcie_harvesting_mask: (\d)", text) == ["2", "1"]
