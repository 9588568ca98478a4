"""The methods of `ttnn.Tensor`, and pieces of tensors; scripts as written by hand."""

from __future__ import annotations

import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxmesh as jm
from jaxmesh import ttnn
from jaxmesh.ttnn import helpers
from tests.generators.oracles import same_bits

S, R = ttnn.PlacementShard, ttnn.PlacementReplicate
X = np.arange(64, dtype=np.float32).reshape(8, 8)


def blocks(device: ttnn.MeshDevice, x: Any = X) -> Any:
    mapper = ttnn.create_mesh_mapper(device, ttnn.MeshMapperConfig([S(0), S(1)]))
    return helpers.from_numpy(x, device=device, layout=ttnn.TILE_LAYOUT, mesh_mapper=mapper)


def whole(tensor: Any, device: ttnn.MeshDevice) -> Any:
    return helpers.to_numpy(tensor, mesh_composer=ttnn.create_mesh_composer(device, ttnn.MeshComposerConfig([0, 1])))


# --- pieces ---


def test_pieces_are_tensors_of_one_device(device: ttnn.MeshDevice) -> None:
    on = blocks(device)
    for tensor in (on, on.cpu()):
        pieces = ttnn.get_device_tensors(tensor)
        for (y, x), piece in zip(itertools.product(range(2), range(4)), pieces, strict=True):
            want = X[y * 4 : y * 4 + 4, x * 2 : x * 2 + 2]
            assert isinstance(piece, ttnn.Tensor)
            assert (piece.shape, piece.dtype, piece.layout) == ([4, 2], ttnn.float32, ttnn.TILE_LAYOUT)
            assert piece.storage_type() is tensor.storage_type()
            assert same_bits(np.asarray(piece), want)
            assert same_bits(helpers.to_numpy(piece), want)
            assert same_bits(ttnn.from_device(piece).to_numpy(), want)
            assert piece.to_list() == want.tolist()
    assert [p.device() for p in ttnn.get_device_tensors(on)] == [device] * 8
    assert [p.device() for p in ttnn.get_device_tensors(on.cpu())] == [None] * 8


def test_ops_take_pieces_of_one_device(device: ttnn.MeshDevice) -> None:
    a, b = ttnn.get_device_tensors(blocks(device))[:2]
    assert same_bits((a * 2 + a).to_numpy(), X[:4, :2] * 3)
    assert float(a[2, 1]) == X[2, 1]
    assert same_bits(ttnn.matmul(a, ttnn.transpose(a, 0, 1)).to_numpy(), X[:4, :2] @ X[:4, :2].T)
    assert same_bits(jnp.sum(a, 0), X[:4, :2].sum(0))
    assert same_bits(jax.jit(lambda t: t * 2)(a).to_numpy(), X[:4, :2] * 2)
    with pytest.raises(jm.MeshMismatchError, match="on other devices"):
        ttnn.add(a, b)
    with pytest.raises(jm.ResidencyError, match="needs a host tensor"):
        ttnn.distribute_tensor(a, ttnn.replicate_tensor_to_mesh_mapper(device))


def test_pieces_in_host_memory_are_combined(device: ttnn.MeshDevice) -> None:
    back = ttnn.from_host_shards(ttnn.get_device_tensors(blocks(device).cpu()), device.shape)
    assert same_bits(whole(ttnn.to_device(back, device), device), X)


# --- methods ---


def test_where_a_tensor_is_and_in_what_form(device: ttnn.MeshDevice) -> None:
    t = blocks(device)
    assert t.device() is device
    assert t.shape == (4, 2)
    assert t.shape.rank == 2
    assert (t.padded_shape, t.to(ttnn.ROW_MAJOR_LAYOUT).padded_shape) == ([32, 32], [4, 2])
    assert helpers.from_numpy(X[0], layout=ttnn.TILE_LAYOUT).padded_shape == [32, 32]
    assert (t.element_size(), t.get_dtype()) == (4, ttnn.float32)
    host = t.cpu()
    assert (host.storage_type(), host.device(), host.memory_config()) == (ttnn.StorageType.HOST, None, None)
    assert same_bits(whole(host.to(device), device), X)
    moved = host.to(device, mem_config=ttnn.L1_MEMORY_CONFIG)
    assert moved.memory_config() == ttnn.L1_MEMORY_CONFIG
    assert moved.device() is device
    for made in (t.to(ttnn.bfloat16), host.to(dtype=ttnn.bfloat16), t.to(np.dtype(jnp.bfloat16))):
        assert made.dtype == ttnn.bfloat16
    assert host.to(ttnn.bfloat16).storage_type() is ttnn.StorageType.HOST
    alone = helpers.from_numpy(X).to(ttnn.TILE_LAYOUT).to(ttnn.int32)
    assert (alone.layout, alone.dtype, alone.device()) == (ttnn.TILE_LAYOUT, ttnn.int32, None)
    assert same_bits(ttnn.get_device_tensors(alone.to(device))[7].to_numpy(), X.astype(np.int32))
    assert same_bits(t.to_numpy(mesh_composer=ttnn.create_mesh_composer(device, ttnn.MeshComposerConfig([0, 1]))), X)
    assert helpers.from_numpy(X[:1, :1]).item() == 0


def test_parts_and_shapes(device: ttnn.MeshDevice) -> None:
    x = np.arange(2 * 3 * 4, dtype=np.int32).reshape(2, 3, 4)
    on = helpers.from_numpy(x, device=ttnn.open_device(device_id=0))
    keys: list[Any] = [0, -1, slice(1, None), slice(None, None, 2), (..., 1), (slice(None), 2), (1, ..., slice(0, 3)),
                       (slice(-2, None), slice(5, 9)), (), ..., (0, 1, 2), (slice(None), slice(2, 1))]  # fmt: skip
    for tensor in (helpers.from_numpy(x), on):
        for key in keys:
            if x[key].size:
                assert same_bits(tensor[key].to_numpy(), x[key]), key
        assert same_bits(tensor.reshape(4, -1).to_numpy(), x.reshape(4, -1))
        assert same_bits(tensor.reshape([24]).to_numpy(), x.reshape(24))
        wrong: list[tuple[Any, type[Exception]]] = [
            (5, jm.VerifyError), ((0, 0, 0, 0), jm.VerifyError), ((..., ...), jm.VerifyError),
            (None, jm.UnsupportedError), (True, jm.UnsupportedError), (slice(None, None, -1), jm.UnsupportedError),
            (slice("a", 2), jm.errors.ArgumentTypeError), (np.array([0, 1]), jm.UnsupportedError),
        ]  # fmt: skip
        for key, kind in wrong:
            with pytest.raises(kind):
                tensor[key]
        for shape, kind in [((5,), jm.VerifyError), ((-1, -1), jm.VerifyError), (("a",), jm.errors.ArgumentTypeError)]:
            with pytest.raises(kind):
                tensor.reshape(*shape)


@pytest.mark.parametrize(
    ("call", "kind", "match"),
    [
        (lambda t, d: t.to(3), jm.errors.ArgumentTypeError, "mesh device"),
        (lambda t, d: t.to(), jm.errors.ArgumentTypeError, "got None"),
        (lambda t, d: t.to(d, 5), jm.errors.ArgumentTypeError, "mem_config"),
        (lambda t, d: t.to(d, None, mem_config=None), jm.errors.ArgumentTypeError, "is called as"),
        (lambda t, d: t.to(ttnn.bfloat16, d), jm.errors.ArgumentTypeError, "is called as"),
        (lambda t, d: t.to(ttnn.TILE_LAYOUT, memory_config=None), jm.errors.ArgumentTypeError, "is called as"),
        (lambda t, d: t.to(ttnn.bfloat8_b), jm.UnsupportedError, "block float"),
        (lambda t, d: t.cpu().to(ttnn.open_mesh_device((1, 8))), jm.MeshMismatchError, "of shape"),
        (lambda t, d: t.item(), jm.ResidencyError, "no single value"),
        (lambda t, d: float(t), jm.ResidencyError, "no single value"),
        (lambda t, d: t.to_list(), jm.ResidencyError, "no single value"),
        (lambda t, d: np.asarray(t), jm.ResidencyError, "no single value"),
        (lambda t, d: jnp.sin(t), jm.ResidencyError, "used as an array"),
        (lambda t, d: t.to_numpy(mesh_composer=3), jm.errors.ArgumentTypeError, "composer"),
        (lambda t, d: helpers.from_numpy(X).item(), jm.VerifyError, "only element"),
        (lambda t, d: helpers.from_numpy(X) + 1, jm.ResidencyError, "in host memory"),
        (lambda t, d: helpers.from_numpy(X) == helpers.from_numpy(X), jm.ResidencyError, "in host memory"),
        (lambda t, d: t + helpers.from_numpy(X), jm.ResidencyError, "in host memory"),
        (lambda t, d: ttnn.add(t, t, output_tensor=t), jm.UnsupportedError, "output_tensor is not emulated"),
        (lambda t, d: d.create_submesh((3, 1)), jm.MeshError, "does not lie"),
    ],
)  # fmt: skip
@pytest.mark.beyond
def test_what_is_wrong_is_a_named_error(call: Any, kind: type[Exception], match: str, device: Any) -> None:
    with pytest.raises(kind, match=match):
        call(blocks(device), device)


# --- functions ---


def test_collectives_find_the_only_axis_of_several_devices() -> None:
    row = ttnn.open_mesh_device((1, 8))
    x = np.arange(64, dtype=np.float32).reshape(8, 8)
    t = helpers.from_numpy(x, device=row, mesh_mapper=ttnn.shard_tensor_to_mesh_mapper(row, 0))
    for piece in ttnn.get_device_tensors(ttnn.all_reduce(t, num_links=1, topology=ttnn.Topology.Linear)):
        assert same_bits(piece.to_numpy(), x.sum(0, keepdims=True))
    scattered = ttnn.reduce_scatter(t, dim=1)
    assert same_bits(
        helpers.to_numpy(scattered, mesh_composer=ttnn.concat_mesh_to_tensor_composer(row, 1)), x.sum(0, keepdims=True)
    )


def test_parts_of_a_mesh(device: ttnn.MeshDevice) -> None:
    rows = [device.create_submesh(ttnn.MeshShape(1, 4), (y, 0)) for y in range(2)]
    assert [r.get_device_ids() for r in rows] == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert device.create_submesh((2, 2), (0, 1)).get_device_ids() == [1, 2, 5, 6]
    t = helpers.from_numpy(X, device=rows[1], mesh_mapper=ttnn.shard_tensor_to_mesh_mapper(rows[1], 1))
    assert same_bits(helpers.to_numpy(t * 2, mesh_composer=ttnn.concat_mesh_to_tensor_composer(rows[1], 1)), X * 2)


def test_torch_by_method(device: ttnn.MeshDevice) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    x = torch.arange(64, dtype=torch.bfloat16).reshape(8, 8)
    assert torch.equal(ttnn.Tensor(x).to_torch(), x)
    assert ttnn.Tensor(x, ttnn.float32).to(ttnn.TILE_LAYOUT).to(device).dtype == ttnn.float32
    t = ttnn.from_torch(x, device=device, mesh_mapper=ttnn.shard_tensor_to_mesh_mapper(device, 0))
    assert torch.equal(t.to_torch(mesh_composer=ttnn.concat_mesh_to_tensor_composer(device, 0)), x)
    assert torch.equal(ttnn.get_device_tensors(t)[3].cpu().to_torch(torch.float32), x[3:4].float())
