"""`ttnn.from_torch` and `to_torch` with the real torch, where it is installed; `.ci/run` installs it for this file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxmesh as jm
from jaxmesh import ttnn
from jaxmesh.errors import ArgumentTypeError, ResidencyError, VerifyError
from tests.generators.oracles import same_bits

torch: Any = pytest.importorskip("torch")

NAMES = ("uint8", "uint16", "uint32", "int8", "int32", "bfloat16", "float32")
BEYOND = ("bool", "int16", "float16", "float8_e4m3fn", "float8_e5m2")
"""Element types of torch that the real ttnn does not have."""


def bits(tensor: Any) -> np.ndarray:
    """The bytes of a torch tensor, row by row."""
    plain = tensor.detach().contiguous()
    return plain.reshape(-1).view(torch.uint8).numpy() if plain.numel() else np.zeros(0, np.uint8)


def numbers(name: str, shape: tuple[int, ...]) -> Any:
    """Numbers of any bits that are no NaN; a NaN's own bits are nobody's promise."""
    count = int(np.prod(shape))
    drawn = np.random.default_rng(len(name)).integers(0, 100, count).reshape(shape)
    return torch.from_numpy(drawn).to(getattr(torch, name))


@pytest.mark.parametrize("name", [*NAMES, *(pytest.param(name, marks=pytest.mark.beyond) for name in BEYOND)])
@pytest.mark.parametrize("shape", [(), (0, 4), (8, 12)])
def test_every_element_type_goes_there_and_back(name: str, shape: tuple[int, ...]) -> None:
    given = numbers(name, shape)
    back = ttnn.to_torch(ttnn.from_torch(given))
    assert (back.dtype, tuple(back.shape)) == (given.dtype, shape)
    assert (bits(back) == bits(given)).all()


@pytest.mark.parametrize(
    ("name", "stored"), [("bool", "uint8"), ("int16", "uint16"), ("int64", "uint32"), ("float16", "bfloat16")]
)
def test_types_that_ttnn_lacks_are_stored_as_the_real_from_torch_does(name: str, stored: str) -> None:
    given = numbers(name, (8, 12))
    tensor = ttnn.from_torch(given)
    assert tensor.dtype == getattr(ttnn, stored)
    assert torch.equal(ttnn.to_torch(tensor), given.to(getattr(torch, stored)))


def test_a_number_that_the_stored_type_cannot_hold_is_a_named_error() -> None:
    with pytest.raises(VerifyError, match="uint32 holds numbers from 0 to 4294967295, got -3"):
        ttnn.from_torch(torch.tensor([2, -3]))


@pytest.mark.parametrize("name", ["float64", "float8_e4m3fn", "float8_e5m2"])
def test_types_that_ttnn_has_nothing_for_go_behind_the_switch(name: str) -> None:
    with pytest.raises(VerifyError, match=rf"beyond\.enable\(\).*no DataType\.{name.upper()}"):
        ttnn.from_torch(numbers(name, (8, 12)))


def test_what_is_not_in_rows_is_read_as_it_looks() -> None:
    base = torch.arange(24.0).reshape(4, 6)
    views = [base.T, base[:, ::2], base.flip(0), base[1:, 1:], base.expand(2, 4, 6), base.requires_grad_(True)[2]]
    for view in views:
        got = ttnn.from_torch(view).to_numpy()
        assert same_bits(got, view.detach().numpy().copy())


def test_later_writes_change_nothing() -> None:
    given = torch.ones(4, 4)
    held = ttnn.from_torch(given)
    given.zero_()
    assert (held.to_numpy() == 1).all()
    back = ttnn.to_torch(held)
    back.zero_()
    assert (held.to_numpy() == 1).all()


def test_over_a_mesh_and_back() -> None:
    device = ttnn.open_mesh_device(mesh_shape=ttnn.MeshShape(2, 4))
    given = torch.arange(8 * 12, dtype=torch.bfloat16).reshape(8, 12)
    config = ttnn.MeshMapperConfig([ttnn.PlacementShard(0), ttnn.PlacementShard(1)])
    mapper = ttnn.create_mesh_mapper(device, config)
    held = ttnn.from_torch(given, device=device, mesh_mapper=mapper, layout=ttnn.TILE_LAYOUT)
    composer = ttnn.create_mesh_composer(device, ttnn.MeshComposerConfig([0, 1]))
    assert torch.equal(ttnn.to_torch(held, mesh_composer=composer), given)
    assert ttnn.to_torch(held, dtype=torch.float32, mesh_composer=composer).dtype == torch.float32
    with pytest.raises(ResidencyError, match="8 devices"):
        ttnn.to_torch(held)
    for k, piece in enumerate(ttnn.get_device_tensors(held)):
        y, x = divmod(k, 4)
        assert torch.equal(ttnn.to_torch(piece), given[y * 4 : y * 4 + 4, x * 3 : x * 3 + 3])


@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor:UserWarning")
@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.ones(3, dtype=torch.complex64),
        lambda: torch.eye(3).to_sparse(),
        lambda: torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8),
        lambda: torch.ones(3, device="meta"),
        lambda: [1.0, 2.0],
        lambda: np.ones(3),
    ],
    ids=["complex", "sparse", "quantized", "meta", "list", "numpy"],
)
def test_what_ttnn_has_not_is_a_named_error(make: Any) -> None:
    with pytest.raises(jm.errors.JaxmeshError, match="from_torch"):
        ttnn.from_torch(make())


@pytest.mark.parametrize(
    "options", [{"dtype": "float32"}, {"dtype": ttnn.float32}, {"torch_rank": "1"}], ids=["text", "ttnn", "rank"]
)
def test_options_of_another_kind_are_named_errors(options: dict[str, Any]) -> None:
    (given,) = options.values()
    with pytest.raises(ArgumentTypeError, match=repr(given).split(".")[0].strip("<")):
        ttnn.to_torch(ttnn.from_torch(torch.ones(2, 3)), **options)


def test_an_export_runs_with_torch_installed(tmp_path: Path) -> None:
    from jaxmesh.cli.main import main

    mesh = jm.make_mesh((2, 4), ("y", "x"))

    @jm.jit(mesh=mesh)
    def layer(x: Any, w: Any) -> Any:
        spec = jax.sharding.PartitionSpec
        product = jm.full_to_shard(x, spec("y", "x")) @ jm.full_to_shard(w, spec("x"))
        return jm.shard_to_full(jax.lax.psum(product, "x"), spec("y"))

    x, w = jnp.arange(32.0, dtype=jnp.bfloat16).reshape(4, 8), jnp.ones((8, 16), jnp.bfloat16)
    layer.lower(x, w).export(str(tmp_path / "model"))
    assert main(["run", str(tmp_path / "model"), "--check"]) == 0
