"""Programs that are printed as MLIR and imported again give the same results."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
import pytest

import jaxmesh as jm
from jaxmesh.dialects.program import Port, Program
from jaxmesh.dialects.residency import DEVICE
from jaxmesh.sharding.configs import MeshComposerConfig, MeshMapperConfig, PlacementShard
from tests.generators.drafts import replicated, to_ttnn
from tests.generators.flat_programs import flat_of, run_flat
from tests.generators.mlir_programs import (
    HANDLE,
    add,
    is_stable,
    program,
    read,
    tensor,
    ttnn_program,
)
from tests.generators.mlir_texts import on_devices, shards_of
from tests.generators.oracles import same_bits
from tests.generators.suite import all_programs as suite_programs
from tests.generators.ttir_cases import CASES as TTIR_CASES
from tests.generators.ttir_cases.program import cases_program

# --- results ---------------------------------------------------------------------------------------------------------


pytestmark = pytest.mark.slow(but_one_in=24)


def few(chosen: Sequence[Any]) -> list[Any]:
    """The first and the last case of each row, but none with a negative dim where TTIR declares an unsigned one."""
    rows: dict[str, list[Any]] = {}
    for case in chosen:
        if case.attributes.get("dimension") != -1:
            rows.setdefault(case.row, []).append(case)
    return [c for found in rows.values() for c in (found if len(found) == 1 else [found[0], found[-1]])]


EACH = few([c for c in TTIR_CASES if c.is_printed])
IN_TTNN = [c for c in EACH if c.is_printed_in_ttnn]
CHUNK = 60


@pytest.mark.parametrize("first", range(0, len(EACH), CHUNK))
def test_programs_read_back_give_the_same_results(first: int) -> None:
    """Every row, by the meanings of its ops on one side, through text and importer on the other: bit for bit."""
    made, arguments = cases_program(EACH[first : first + CHUNK])
    traced = jm.from_mlir(is_stable(made))
    assert [(a.shape, a.dtype) for a in traced.out_avals] == [
        (made.types[r.value].shape, made.types[r.value].dtype) for r in made.results
    ]
    got = traced.lower().compile()(*arguments)
    want = run_flat(made, jm.make_mesh((2,), ("x",)), *arguments)
    for one, other in zip(got if isinstance(got, tuple) else [got], want, strict=True):
        assert same_bits(one, other)


@pytest.mark.parametrize("first", range(0, len(IN_TTNN), CHUNK))
def test_ttnn_programs_read_back_give_the_same_results(first: int) -> None:
    """The same ops on all devices, as the pass writes them."""
    upper, arguments = cases_program(IN_TTNN[first : first + CHUNK])
    made = to_ttnn(replicated(upper))
    text = is_stable(made)
    assert "ttir." not in text
    got = jm.from_mlir(text).lower().compile()(*arguments)
    want = run_flat(made, jm.make_mesh((2,), ("x",)), *arguments)
    for one, other in zip(got if isinstance(got, tuple) else [got], want, strict=True):
        assert same_bits(one, other)


@pytest.mark.parametrize(
    ("shape", "mesh", "dims"),
    [
        ((8, 8), {"y": 2, "x": 4}, (0, 1)),
        ((8, 8), {"y": 2, "x": 4}, (-1, 0)),
        ((8, 8), {"x": 4}, (1,)),
        ((4, 4, 4), {"z": 2, "y": 2, "x": 2}, (2, 0, 1)),
        ((4, 4, 4), {"z": 2, "y": 2, "x": 2}, (-1, 1, -1)),
    ],
)
def test_ttnn_reads_back(shape: tuple[int, ...], mesh: dict[str, int], dims: tuple[int, ...]) -> None:
    made = ttnn_program(shape, mesh, dims)
    text = is_stable(made)
    traced = jm.from_mlir(text)
    x = np.arange(math.prod(shape), dtype=np.float32).reshape(shape)
    full, shards = traced.lower().compile()(x)
    np.testing.assert_array_equal(full, -2 * x)
    assert isinstance(shards, jm.MeshTensor)
    want, others = run_flat(made, jm.make_mesh(tuple(mesh.values()), tuple(mesh)), x)
    np.testing.assert_array_equal(want, full)
    for (_, piece), (_, other) in zip(shards.shards(), others.shards(), strict=True):
        np.testing.assert_array_equal(piece, other)
    decoded = read(text).program.ops
    configs = [op.attributes for op in decoded if op.attributes.keys() & {"mapper_config", "composer_config"}]
    assert configs[0]["mapper_config"] == made.ops[1].attributes["mapper_config"]
    assert configs[1]["composer_config"] == made.ops[-1].attributes["composer_config"]


@pytest.mark.usefixtures("unequal_copies")
def test_one_device_is_read_where_copies_are_not_proven_equal() -> None:
    """TTNN's composer takes coordinate 0 of an axis it does not join, and asks nobody."""
    made = program(tensor(8, 8))
    device = add(made, "ttnn.get_device", [], HANDLE, mesh_shape=(2, 4))
    config = MeshMapperConfig([PlacementShard(0), PlacementShard(1)], (2, 4))
    x = add(made, "ttnn.distribute_tensor", [0, device], tensor(4, 2), mapper_config=config)
    made.results = [
        Port(add(made, "ttnn.aggregate_tensor", [x, device], kind, composer_config=c), False)
        for kind, c in (
            (tensor(8, 2), MeshComposerConfig([0, 1], [2, 1])),
            (tensor(4, 2), MeshComposerConfig([0], [1])),
        )
    ]
    x = np.arange(64, dtype=np.float32).reshape(8, 8)
    first, second = jm.from_mlir(is_stable(made)).lower().compile()(x)
    np.testing.assert_array_equal(first, x[:, :2])
    np.testing.assert_array_equal(second, x[:4, :2])


def test_presharded_arguments_and_replicated_results() -> None:
    made = program(tensor(2, 2))
    made.arguments = [Port(0, True)]
    device = add(made, "ttnn.get_device", [], HANDLE, mesh_shape=(2, 4))
    ones = add(made, "ttnn.full", [device], tensor(2, 2), shape=(2, 2), fill_value=1.0)
    made.results = [Port(add(made, "ttnn.add", [0, ones], tensor(2, 2)), True), Port(ones, True), Port(0, True)]
    traced = jm.from_mlir(is_stable(made))
    mesh = jm.make_mesh((2, 4))
    shards = {(i, j): np.full((2, 2), 4 * i + j, np.float32) for i in range(2) for j in range(4)}
    out, one, same = traced.lower().compile()(on_devices(mesh, shards))
    for at, piece in shards.items():
        np.testing.assert_array_equal(shards_of(out)[at], piece + 1)
        np.testing.assert_array_equal(shards_of(same)[at], piece)
        np.testing.assert_array_equal(shards_of(one)[at], np.ones((2, 2)))


def ttir_of(traced: Any) -> Program:
    """The flat program of a traced one; results that stay on the devices are declared so."""
    made = flat_of(traced, "ttir")
    rows = zip(made.results, traced.lower().plan.residency.results, strict=True)
    made.results = [Port(r.value, place is DEVICE, r.path) for r, place in rows]
    return made


def mesh_shards(of: Program) -> list[Any]:
    """The attributes and types of every mesh_shard, in order."""
    return [
        ({k: str(v) for k, v in op.attributes.items()}, [of.types[v] for v in (*op.used, *op.results)])
        for op in of.ops
        if op.name == "ttir.mesh_shard"
    ]


SAMPLE = [e for e in suite_programs.PROGRAMS if e.placed is None][::8]


@pytest.mark.parametrize("entry", SAMPLE, ids=lambda e: e.name)
@pytest.mark.parametrize("level", ["ttir", "ttnn"])
def test_programs_of_the_suite_read_back(entry: Any, level: str) -> None:
    arguments = entry.args()
    traced = entry.traced
    made = ttir_of(traced) if level == "ttir" else to_ttnn(flat_of(traced.lower(), "ttnn"))
    again = jm.from_mlir(is_stable(made))
    leaves = jax.tree.leaves(arguments, is_leaf=lambda x: isinstance(x, jm.MeshTensor))
    entry.check(again.lower().compile()(*leaves))
    assert tuple(again._boundary.sizes.values()) == tuple(made.mesh.values())
    assert again._boundary.name == made.name
    if level == "ttir":
        assert [(a.shape, a.dtype) for a in again.out_avals] == [(a.shape, a.dtype) for a in traced.out_avals]
        assert mesh_shards(ttir_of(again)) == mesh_shards(made)
