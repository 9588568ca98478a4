"""Arguments that no attribute of an op stands for, and calls that the real functions complete."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import jaxmesh as jm
from jaxmesh import ttnn
from jaxmesh.ttnn import helpers
from tests.generators.oracles import same_bits

X = np.random.default_rng(3).standard_normal((2, 4, 32, 64)).astype(np.float32)


def on(device: ttnn.MeshDevice, x: Any) -> Any:
    return helpers.from_numpy(x, device=device, layout=ttnn.TILE_LAYOUT)


def first(tensor: Any) -> np.ndarray:
    return np.asarray(ttnn.get_device_tensors(tensor)[0])


@pytest.fixture
def device() -> ttnn.MeshDevice:
    return ttnn.open_mesh_device(ttnn.MeshShape(2, 4))


def test_a_residual_is_added_before_a_norm(device: ttnn.MeshDevice) -> None:
    x, y = on(device, X), on(device, X[::-1])
    for norm in (ttnn.rms_norm, ttnn.layer_norm):
        assert same_bits(first(norm(x, residual_input_tensor=y)), first(norm(ttnn.add(x, y))))
    with pytest.raises(jm.VerifyError, match="residual of the same shape"):
        ttnn.rms_norm(x, residual_input_tensor=on(device, X[:1]))


def test_a_token_turns_by_one_row_of_the_caches(device: ttnn.MeshDevice) -> None:
    cos, sin = np.cos(X[:1, :1]), np.sin(X[:1, :1])
    x = X[:1, :, :5]
    got = first(ttnn.experimental.rotary_embedding(on(device, x), on(device, cos), on(device, sin), 7))
    half = np.concatenate([-x[..., 32:], x[..., :32]], -1)
    np.testing.assert_allclose(got[:, :, :5], x * cos[:, :, 7:8] + half * sin[:, :, 7:8], rtol=1e-5, atol=1e-6)
    assert got.shape == (1, 4, 32, 64)
    with pytest.raises(jm.VerifyError, match="no row 32"):
        ttnn.experimental.rotary_embedding(on(device, x), on(device, cos), on(device, sin), 32)


def test_collectives_without_an_axis_run_over_all_devices(device: ttnn.MeshDevice) -> None:
    full = np.random.default_rng(4).integers(-9, 9, (2, 4 * 1, 32, 256)).astype(np.float32)
    mapper = ttnn.create_mesh_mapper(device, ttnn.MeshMapperConfig([ttnn.PlacementShard(0), ttnn.PlacementShard(1)]))
    t = helpers.from_numpy(full, device=device, layout=ttnn.TILE_LAYOUT, mesh_mapper=mapper)
    total = full.sum((0, 1))
    for shard in ttnn.get_device_tensors(ttnn.all_reduce(t)):
        assert same_bits(np.asarray(shard)[0, 0], total)
    parts = [np.asarray(s)[0, 0] for s in ttnn.get_device_tensors(ttnn.reduce_scatter(t, dim=3))]
    assert same_bits(np.concatenate(parts, 1), total)
    same = on(device, total)
    cut = [np.asarray(s) for s in ttnn.get_device_tensors(ttnn.mesh_partition(same, dim=1))]
    assert same_bits(np.concatenate(cut, 1), total)


def test_the_front_is_completed(device: ttnn.MeshDevice) -> None:
    x = on(device, X)
    assert same_bits(first(ttnn.pad(x, [(0, 3)], 1.0)), np.pad(X, [(0, 0)] * 3 + [(0, 3)], constant_values=1))
    assert same_bits(first(ttnn.repeat(x, [2, 1])), np.tile(X, (2, 1)))
    assert same_bits(first(ttnn.max(x, dim=[])), X.max())
    assert same_bits(first(ttnn.repeat_interleave(on(device, X[0, 0, 0]), 2, 5)), X[0, 0, 0].repeat(2))


def test_truth_values_are_integers(device: ttnn.MeshDevice) -> None:
    x = on(device, X)
    assert same_bits(first(ttnn.softmax(x, True)), first(ttnn.softmax(x, 1)))
