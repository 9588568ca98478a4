"""Mesh shapes, placements and configs: values that compare, hash and refuse what they cannot hold."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
from jax.sharding import PartitionSpec as P

import jaxmesh as jm
from jaxmesh.errors import VerifyError
from jaxmesh.sharding.configs import (
    MeshComposerConfig,
    MeshCoordinate,
    MeshMapperConfig,
    MeshShape,
    PlacementReplicate,
    PlacementShard,
)
from jaxmesh.sharding.distribution import land, resolve_composer, resolve_mapper
from jaxmesh.sharding.shard_attributes import attributes_from_spec
from tests.generators.transfers import JOIN, ROWS, SIZES


def test_shapes_compare_by_kind_and_values() -> None:
    assert MeshShape(2, 4) == MeshShape([2, 4]) == (2, 4)
    assert MeshShape(2, 4) != (2, 5)
    assert MeshShape(2, 4) != (2, 3)
    assert MeshShape(2, 4) != MeshCoordinate(2, 4)
    assert MeshShape(2, 4) != MeshShape(4, 2)
    assert len({MeshShape(2, 4), MeshShape([2, 4]), (2, 4), MeshShape(4, 2)}) == 2
    assert hash(MeshShape(2, 4)) == hash((2, 4)) != hash(MeshShape(4, 2))
    assert PlacementReplicate() == PlacementReplicate()
    assert PlacementShard(1) == PlacementShard(1) != PlacementShard(2)


@pytest.mark.parametrize("values", [(), ((),), (0,), (2, -1), ([2, 0],)])
def test_a_mesh_has_axes_of_at_least_one_device(values: Any) -> None:
    with pytest.raises(VerifyError, match=r"every axis at least 1, got \("):
        MeshShape(*values)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: MeshShape("24"), r"MeshShape takes integers, got '24'"),
        (lambda: MeshShape(2, True), r"MeshShape takes integers, got \(2, True\)"),
        (lambda: MeshCoordinate(1.5, 2), r"MeshCoordinate takes integers, got \(1\.5, 2\)"),
        (lambda: PlacementShard(False), r"PlacementShard takes integers, got \(False,\)"),
        (lambda: MeshComposerConfig([0, 0.5]), r"MeshComposerConfig takes integers, got \[0, 0\.5\]"),
        (lambda: MeshMapperConfig([PlacementReplicate(), 3]), r"MeshMapperConfig takes .* as placements, got 3"),
        (lambda: MeshMapperConfig([], b"12"), r"MeshShape takes integers, got b'12'"),
    ],
)
def test_what_is_no_integer_is_shown_with_its_owner(make: Callable[[], Any], words: str) -> None:
    with pytest.raises(jm.ArgumentTypeError, match=words):
        make()


@pytest.mark.parametrize(
    ("value", "field"),
    [(PlacementShard(1), "dim"), (ROWS, "placements"), (ROWS, "mesh_shape_override"), (JOIN, "dims"),
     (JOIN, "mesh_shape_override"), (attributes_from_spec(P("y"), 1, SIZES), "shard_dims"),
     (resolve_mapper(ROWS, (2, 4), (16, 8)), "dims"), (resolve_composer(JOIN, (2, 4), (8, 8)), "dims"),
     (land((2, 4), (2, 4)), "mesh")],
)  # fmt: skip
def test_values_do_not_change_and_are_keys(value: Any, field: str) -> None:
    assert len({value, copy.copy(value)}) == 1
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(value, field, None)
