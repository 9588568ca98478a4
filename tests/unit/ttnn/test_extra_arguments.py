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


def test_images_may_have_all_their_dims() -> None:
    device = ttnn.open_mesh_device(ttnn.MeshShape(1, 2), l1_small_size=65536)
    image, weight = X[:, :, :8, :8].copy(), np.random.default_rng(5).standard_normal((3, 8, 3, 3)).astype(np.float32)
    sizes = {"batch_size": 2, "kernel_size": [3, 3], "stride": [1, 1], "padding": [1, 1]}
    convolved = {"weight_tensor": helpers.from_numpy(weight), "device": device, "in_channels": 8, "out_channels": 3}
    x, y = on(device, image), on(device, image.reshape(1, 1, 64, 8))
    height: dict[str, Any] = {"input_height": 4, "input_width": 8, **sizes, **convolved}
    assert same_bits(first(ttnn.conv2d(input_tensor=x, **height)), first(ttnn.conv2d(input_tensor=y, **height)))
    x, y = ttnn.typecast(x, ttnn.bfloat16), ttnn.typecast(y, ttnn.bfloat16)
    height = {"input_h": 4, "input_w": 8, "channels": 8, **sizes}
    assert same_bits(first(ttnn.avg_pool2d(x, **height)), first(ttnn.avg_pool2d(y, **height)))
    with pytest.raises(jm.VerifyError, match="by half of a window"):
        ttnn.avg_pool2d(x, **{**height, "padding": [2, 2]})
    rows = helpers.from_numpy(X, device=device)
    assert same_bits(first(ttnn.upsample(rows, [2.0, 1.0])), first(ttnn.upsample(rows, [2, 1])))


def test_parameters_of_norms_may_have_more_dims_than_the_rows(device: ttnn.MeshDevice) -> None:
    x, weight = on(device, X[0, 0]), X[0, 1, 0]
    for norm in (ttnn.rms_norm, ttnn.layer_norm):
        want = first(norm(x, weight=on(device, weight)))
        assert same_bits(first(norm(x, weight=on(device, weight[None, None, None]))), want)
        rows = helpers.from_numpy(weight.reshape(1, 1, 2, 32), device=device)
        assert same_bits(first(norm(x, weight=rows)), want)
        short, want = (
            on(device, X[0, 0, :, :40]),
            first(norm(on(device, X[0, 0, :, :40]), weight=on(device, weight[:40]))),
        )
        assert same_bits(first(norm(short, weight=on(device, weight))), want)


def test_caches_may_have_more_rows_than_the_tensor(device: ttnn.MeshDevice) -> None:
    cos, sin = np.cos(X[:1, :1]), np.sin(X[:1, :1])
    x = X[:, :, :5]
    got = first(ttnn.experimental.rotary_embedding(on(device, x), on(device, cos), on(device, sin)))
    half = np.concatenate([-x[..., 32:], x[..., :32]], -1)
    np.testing.assert_allclose(got[:, :, :5], x * cos[:, :, :5] + half * sin[:, :, :5], rtol=1e-5, atol=1e-6)
    assert got.shape == (2, 4, 32, 64)


def test_a_rotation_takes_one_row_of_caches_for_all_rows(device: ttnn.MeshDevice) -> None:
    x, table = X[:1, :, :5], np.random.default_rng(1).standard_normal((1, 1, 70, 64), np.float32)
    got = first(ttnn.experimental.rotary_embedding(on(device, x), on(device, table), on(device, table), 66))
    half = np.concatenate([-x[..., 32:], x[..., :32]], -1)
    np.testing.assert_allclose(got[:, :, :5], (x + half) * table[:, :, 66:67], rtol=1e-5, atol=1e-6)


def test_a_gather_without_an_axis_joins_row_by_row(device: ttnn.MeshDevice) -> None:
    full = np.arange(2 * 4 * 3 * 5, dtype=np.float32).reshape(2 * 3, 4 * 5)
    mapper = ttnn.create_mesh_mapper(device, ttnn.MeshMapperConfig([ttnn.PlacementShard(0), ttnn.PlacementShard(1)]))
    t = helpers.from_numpy(full, device=device, layout=ttnn.TILE_LAYOUT, mesh_mapper=mapper)
    want = np.concatenate([part for row in np.split(full, 2, 0) for part in np.split(row, 4, 1)], 1)
    for shard in ttnn.get_device_tensors(ttnn.all_gather(t, 1)):
        assert same_bits(np.asarray(shard), want)
    with pytest.raises(jm.VerifyError, match="give cluster_axis"):
        ttnn.all_gather(on(device, X), 3)
