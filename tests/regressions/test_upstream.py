"""What went wrong upstream, and what follows from upstream's source, on the JAX side: one test per case.

R: issues of tt-mlir, tt-metal and tt-xla; D: derived from their source. Shapes are smaller than reported.
"""

from __future__ import annotations

import pathlib
import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import AbstractMesh, NamedSharding, PartitionSpec as P

import jaxmesh as jm
from jaxmesh import ttnn
from jaxmesh.cli.run_folder import run_folder
from jaxmesh.jaxprs.walk import all_eqns
from jaxmesh.ttnn import helpers
from tests.generators.oracles import coordinates, oracle_shard, same_bits

S, R = jm.PlacementShard, jm.PlacementReplicate
HERE = pathlib.Path(__file__).parent

ELSEWHERE = {
    "D10": "spellings of #ttnn.placement in files: test_upstream_mlir.py",
}


def ones(*shape: int) -> np.ndarray:
    return np.ones(shape, np.float32)


def counted(*shape: int) -> np.ndarray:
    return np.arange(np.prod(shape), dtype=np.float32).reshape(shape) % 17


def eqns(stage: Any, name: str) -> list[Any]:
    return [e for e in all_eqns(stage.jaxpr) if e.primitive.name == name]


def dims(traced: Any) -> list[tuple[int, ...]]:
    return [e.params["shard_dims"] for e in eqns(traced, "mesh_shard")]


def run(f: Any, mesh: Any, *args: Any) -> Any:
    """Runs a program, and checks the reference executor against that."""
    function = jm.jit(f, mesh=mesh)
    got = function(*args)
    want = function.lower(*args).reference(*args)
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)
    return got


def mapped(body: Any, mesh: Any, in_specs: Any, out_specs: Any, *args: Any) -> Any:
    """Runs `jax.shard_map` raised, lowered, and on the reference; equal to `jm.shard_map` and to JAX."""
    options = {"mesh": mesh, "in_specs": in_specs, "out_specs": out_specs}
    got = run(jax.shard_map(body, **options), mesh, *args)
    for other in (jax.jit(jax.shard_map(body, **options)), jax.jit(jm.shard_map(body, **options))):
        for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(other(*args)), strict=True):
            assert same_bits(a, b)
    return got


# --- scalars and rank 1 ----------------------------------------------------------------------------------------------


def test_R1_scalars() -> None:
    """An unsharded scalar argument is one buffer that is replicated; one on the devices needs no distribute."""
    mesh = jm.make_mesh((1, 2))
    step = jm.shard_map(lambda n, x: x * n, mesh=mesh, in_specs=(P(), P("x")), out_specs=P("x"))
    lowered = jm.jit(step, mesh=mesh).lower(jnp.float32(3), counted(4))
    first = eqns(lowered, "distribute_tensor")[0]
    assert first.params["mapper_config"] == jm.MeshMapperConfig([R(), R()], jm.MeshShape([1, 2]))
    assert same_bits(step(jnp.float32(3), counted(4)), counted(4) * 3)
    t = ttnn.distribute_tensor(np.float32(3), ttnn.replicate_tensor_to_mesh_mapper(mesh))
    presharded = jm.jit(lambda n: n + 1, mesh=mesh)
    assert not eqns(presharded.lower(t), "distribute_tensor")
    assert [float(s) for s in ttnn.get_device_tensors(presharded(t))] == [4.0, 4.0]


def test_R2_replicated_rank_1() -> None:
    """The composer of a replicated value reads device 0: dims [0], override [1], also of rank 1."""
    mesh = jm.make_mesh((1, 2))
    x = jnp.arange(512).astype(jnp.bfloat16)
    f = jax.shard_map(lambda v: v * 2, mesh=mesh, in_specs=P(), out_specs=P())
    (last,) = eqns(jm.jit(f, mesh=mesh).lower(x), "aggregate_tensor")
    assert last.params["composer_config"] == jm.MeshComposerConfig([0], jm.MeshShape([1]))
    assert same_bits(run(f, mesh, x), x * 2)


def test_R3_rank_0_both_ways() -> None:
    """Scalars go in and come out, replicated, beside split arguments."""
    mesh = jm.make_mesh((2,), ("dp",))
    got = mapped(lambda x, w, s: (x @ w * s, s + 1), mesh, (P("dp"), P(), P()), (P("dp"), P()),
                 counted(10, 5), counted(5, 6), jnp.float32(2))  # fmt: skip
    assert same_bits(got[0], counted(10, 5) @ counted(5, 6) * 2)
    assert same_bits(got[1], np.float32(3))


# --- uneven splits ---------------------------------------------------------------------------------------------------


def test_R4_uneven_matmul() -> None:
    """130 over 4 and 129 over 2 are refused by name, with what to pad to."""
    mesh = jm.make_mesh((2, 4))
    for spec, shape, pad in ((P(None, "x"), (8, 130), 132), (P("y"), (129, 8), 130)):
        with pytest.raises(jm.VerifyError, match=rf"size {max(shape)}.*pad the dim to {pad}"):
            jm.jit(lambda x: jm.shard_to_full(jm.full_to_shard(x, spec), spec), mesh=mesh).trace(ones(*shape))  # noqa: B023
        with pytest.raises(ValueError, match=f"{max(shape)}"):
            jm.shard_map(lambda x: x, mesh=mesh, in_specs=spec, out_specs=spec)(ones(*shape))


def test_R5_fewer_chunks() -> None:
    """13 rows over 8 devices: an error, in the program and in the API, never 7 shards."""
    mesh = jm.make_mesh((8,))
    with pytest.raises(jm.VerifyError, match=r"size 13.*8 devices.*16"):
        jm.jit(lambda x: jm.full_to_shard(x, P(None, "x")), mesh=mesh).trace(ones(1, 13, 4, 4))
    with pytest.raises(jm.VerifyError, match="13"):
        ttnn.distribute_tensor(ones(1, 13, 4, 4), ttnn.shard_tensor_to_mesh_mapper(mesh, 1))


# --- collectives -----------------------------------------------------------------------------------------------------


def test_R6_a_device_that_nobody_sends_to() -> None:
    """It holds zeros after a permute with the one pair (0, 1)."""
    got = mapped(lambda x: lax.ppermute(x, "x", [(0, 1)]), jm.make_mesh((1, 2)), P("x"), P("x"),
                 np.arange(1, 9, dtype=np.float32))  # fmt: skip
    assert got.tolist() == [0, 0, 0, 0, 1, 2, 3, 4]


def test_R7_the_order_of_runs() -> None:
    """A permute with the same pairs in another order is the same; what ran before does not matter."""
    mesh = jm.make_mesh((2, 4))
    pairs = [(0, 4), (4, 0), (1, 5), (5, 1), (2, 6), (6, 2), (3, 7), (7, 3)]
    others = [(i, (i + 1) % 8) for i in range(8)]

    def program(row: Any) -> Any:
        f = jm.shard_map(lambda x: lax.ppermute(x, ("y", "x"), row), mesh=mesh, in_specs=P(("y", "x")),
                         out_specs=P(("y", "x")))  # fmt: skip
        return jm.jit(f, mesh=mesh)

    first, second, third = program(pairs), program(pairs[::-1]), program(others)
    x = np.arange(8)
    want = [4, 5, 6, 7, 0, 1, 2, 3]
    for f in (first, third, second, first, second, third, first):
        assert f(x).tolist() == ([7, *range(7)] if f is third else want)


def test_R8_an_all_reduce_is_not_folded_for_its_type() -> None:
    """The psum over 2 devices doubles, also when it has the type of its operand and an axis of size 1 is beside it."""
    mesh = jm.make_mesh((2, 1), ("dp", "something"))

    def body(x: Any) -> Any:
        return lax.psum(x, ("dp", "something"))

    got = mapped(lambda x: body(lax.pcast(x, ("dp", "something"), to="varying")), mesh, P(), P(), counted(8, 8))
    assert same_bits(got, counted(8, 8) * 2)
    again = mapped(lambda x: lax.psum(x, "dp"), mesh, P("dp"), P(), ones(8, 8))
    assert same_bits(again, ones(4, 8) * 2)
    f = jax.shard_map(body, mesh=mesh, in_specs=P("dp", "something"), out_specs=P())
    assert [e.primitive.name for e in all_eqns(jm.jit(f, mesh=mesh).lower(ones(8, 8)).jaxpr)].count("psum_invariant")


def test_R9_mean_of_a_scalar() -> None:
    """A pmean of scalars, and of a product, is exact: the divisor stays 2."""
    mesh = jm.make_mesh((2,), ("dp",))
    x = counted(4, 4)
    for reduce in (jnp.mean, jnp.sum):
        got = mapped(lambda v: lax.pmean(reduce(v), "dp"), mesh, P("dp"), P(), x)  # noqa: B023
        assert float(got) == (float(reduce(x[:2])) + float(reduce(x[2:]))) / 2
    product = mapped(lambda v: lax.pmean(v @ v.T, "dp"), mesh, P(None, "dp"), P(), counted(8, 8))
    assert same_bits(product, counted(8, 8) @ counted(8, 8).T / 2)


def test_R10_no_tiles_are_assumed() -> None:
    """Dims that are no multiple of 32 work: nothing here has tiles."""
    mesh = jm.make_mesh((2,), ("dp",))
    got = mapped(lambda a, b: lax.pmean(a @ b, "dp"), mesh, (P(None, "dp"), P("dp")), P(), counted(4, 4), counted(4, 4))
    assert same_bits(got, counted(4, 4) @ counted(4, 4) / 2)
    assert mapped(lambda a: lax.psum(a, "dp"), mesh, P("dp"), P(), counted(2, 3, 5)).shape == (1, 3, 5)


def test_R11_reduce_scatter_on_every_dim() -> None:
    """A reduce_scatter works on each dim; an all_reduce stays one operation."""
    mesh = jm.make_mesh((1, 2))
    x = counted(4, 4, 4, 4)
    for dim in range(4):
        spec = P(*[None] * dim, "x")

        def body(v: Any, dim: int = dim) -> Any:
            return lax.psum_scatter(lax.pcast(v, "x", to="varying"), "x", scatter_dimension=dim, tiled=True)

        assert same_bits(mapped(body, mesh, P(), spec, x), x * 2)
    f = jax.shard_map(lambda v: lax.psum(v, "x"), mesh=mesh, in_specs=P("x"), out_specs=P())
    names = [e.primitive.name for e in all_eqns(jm.jit(f, mesh=mesh).lower(x).jaxpr)]
    assert names.count("psum_invariant") == 1
    assert not {"reduce_scatter", "all_gather"} & set(names)


def test_R12_the_axis_of_a_gather() -> None:
    """On ('model', 'batch') a gather goes over the axis it names, not always the first."""
    mesh = jm.make_mesh((2, 4), ("model", "batch"))
    x = counted(32, 7)

    def body(v: Any) -> Any:
        # 8 rows a device; each keeps 2 of them, the gather brings the 8 back.
        own = lax.dynamic_slice_in_dim(v, lax.axis_index("batch") * 2, 2)
        return lax.all_gather(own, "batch", tiled=True), lax.psum_scatter(v, "batch", tiled=True)

    whole, scattered = mapped(body, mesh, P("batch"), (P("batch"), P("batch")), x)
    blocks = x.reshape(4, 4, 2, 7)
    assert same_bits(whole.reshape(4, 8, 7)[0], np.concatenate([blocks[i, i] for i in range(4)]))
    assert same_bits(scattered, blocks.sum(0).reshape(8, 7))
    traced = jm.jit(jax.shard_map(body, mesh=mesh, in_specs=P("batch"), out_specs=P("batch")), mesh=mesh).trace(x)
    assert dims(traced)[0] == (-1, 0)


# --- meshes ----------------------------------------------------------------------------------------------------------


def shards_of(spec: P, mesh: Any, x: np.ndarray) -> dict[tuple[int, ...], np.ndarray]:
    tensor = jm.jit(lambda v: jm.full_to_shard(v, spec), mesh=mesh)(x)
    return {tuple(c): np.asarray(s) for c, s in tensor.shards()}


def as_jax_places(spec: P, mesh: Any, x: np.ndarray) -> None:
    placed = {s.device: np.asarray(s.data) for s in jax.device_put(x, NamedSharding(mesh, spec)).addressable_shards}
    for c, got in shards_of(spec, mesh, x).items():
        assert same_bits(got, placed[mesh.devices[c]])


def test_R13_transposed_device_order() -> None:
    """{devices=[4,2]0,4,1,5,2,6,3,7} is P("x", "y") on (y=2, x=4), and that is what each device gets."""
    mesh = jm.make_mesh((2, 4))
    x = np.arange(8).reshape(4, 2)
    order = [0, 4, 1, 5, 2, 6, 3, 7]
    held = shards_of(P("x", "y"), mesh, x)
    assert [int(held[d // 4, d % 4][0, 0]) for d in order] == list(range(8))
    assert dims(jm.jit(lambda v: jm.full_to_shard(v, P("x", "y")), mesh=mesh).trace(x)) == [(1, 0)]


def test_R14_one_mesh_for_all_tensors() -> None:
    """('x', 'y') and ('y', 'x') in one program: shard_dims [0, 1] and [1, 0] of one mesh."""
    mesh = jm.make_mesh((2, 4), ("x", "y"))

    def body(a: Any, b: Any) -> Any:
        a = lax.all_gather(a, "y", axis=1, tiled=True)
        b = lax.all_gather(b, "y", axis=0, tiled=True)
        rows = a @ lax.all_gather(b, "x", axis=1, tiled=True)
        return lax.dynamic_slice_in_dim(rows, lax.axis_index("y") * 2, 2, 1)

    a, b = counted(8, 16), counted(16, 8)
    assert same_bits(mapped(body, mesh, (P("x", "y"), P("y", "x")), P("x", "y"), a, b), a @ b)
    f = jax.shard_map(body, mesh=mesh, in_specs=(P("x", "y"), P("y", "x")), out_specs=P("x", "y"))
    assert dims(jm.jit(f, mesh=mesh).trace(a, b))[:2] == [(0, 1), (1, 0)]


def test_R15_the_mesh_is_not_derived_from_a_tensor() -> None:
    """A result split in 4 on a 2x4 mesh stays on 2x4."""
    mesh = jm.make_mesh((2, 4), ("batch", "model"))
    f = jax.shard_map(lambda x: x * 2, mesh=mesh, in_specs=P(None, "model"), out_specs=P(None, "model"))
    traced = jm.jit(f, mesh=mesh).trace(counted(8, 8))
    assert dict(traced.mesh.shape) == {"batch": 2, "model": 4}
    assert dims(traced) == [(-1, 1), (-1, 1)]
    assert same_bits(run(f, mesh, counted(8, 8)), counted(8, 8) * 2)


def test_R16_shardings_1_2_and_2_1() -> None:
    """[1, 2], [2, 1] and replicated arguments on a 1x2 mesh: the same two devices in each."""
    mesh = jm.make_mesh((1, 2), ("data", "model"))
    x, w, b = counted(4, 8), counted(8, 6), counted(6)
    specs = (P(None, "model"), P("model"), P())
    got = mapped(lambda x, w, b: lax.psum(x @ w, "model") + b, mesh, specs, P(), x, w, b)
    assert same_bits(got, x @ w + b)


def test_R17_shard_dims_has_one_entry_per_mesh_axis() -> None:
    """Not per tensor dim."""
    mesh = AbstractMesh((2, 2, 2), ("z", "y", "x"))

    def f(x: Any) -> Any:
        return jm.mesh_shard(x, shard_type="devices", shard_direction="full_to_shard", shard_shape=[2, 1],
                             shard_dims=[0, -1])  # fmt: skip

    with pytest.raises(jm.VerifyError, match=r"\[0, -1\] has 2 entries.*3 axes"):
        jm.jit(f, mesh=mesh).trace(ones(4, 4))


def test_R18_an_axis_of_size_1_in_a_spec() -> None:
    """It is written -1, on an argument and on a result."""
    mesh = jm.make_mesh((1, 2), ("x", "y"))
    f = jax.shard_map(lambda v: v * 2, mesh=mesh, in_specs=P("x", "y"), out_specs=P("x", "y"))
    assert dims(jm.jit(f, mesh=mesh).trace(ones(8, 8))) == [(-1, 1), (-1, 1)]
    assert same_bits(mapped(lambda v: v * 2, mesh, P("x", "y"), P("x", "y"), counted(8, 8)), counted(8, 8) * 2)


def test_R19_meshes_of_one_and_of_five_axes() -> None:
    """Both run."""
    assert same_bits(mapped(lambda v: v * 2, jm.make_mesh((2,)), P("x"), P("x"), counted(8)), counted(8) * 2)
    five = jm.make_mesh((1,) * 5, ("dp", "fsdp", "ep", "tp", "sp"))
    got = mapped(lambda v: lax.psum(v, ("tp", "sp")), five, P(("dp", "tp"), "sp"), P("dp"), counted(4, 4))
    assert same_bits(got, counted(4, 4))


def test_R20_a_constraint_to_an_axis_of_size_1() -> None:
    """Size 1 is replicated; a constraint between two regions says nothing to the program."""
    mesh = jm.make_mesh((1, 8), ("batch", "model"))
    spec = P("batch", "model")
    double = jax.shard_map(lambda v: v * 2, mesh=mesh, in_specs=spec, out_specs=spec)

    def f(x: Any) -> Any:
        return double(lax.with_sharding_constraint(double(x), NamedSharding(mesh, spec)))

    assert same_bits(run(f, mesh, counted(16, 16)), counted(16, 16) * 4)
    assert set(dims(jm.jit(f, mesh=mesh).trace(counted(16, 16)))) == {(-1, 1)}


def test_R21_a_value_that_is_partly_split() -> None:
    """A shard is not split again behind the types: by name refused; in a body only the missing axis is sliced."""
    mesh = jm.make_mesh((2, 4))
    with pytest.raises(jm.ReplicationError, match="shard already"):
        jm.jit(lambda x: jm.full_to_shard(jm.full_to_shard(x, P("y")), P("y", "x")), mesh=mesh).trace(ones(8, 8))

    def body(v: Any) -> Any:
        return lax.dynamic_slice_in_dim(v, lax.axis_index("x") * 2, 2, 1)

    assert same_bits(mapped(body, mesh, P("y"), P("y", "x"), counted(8, 8)), counted(8, 8))


def test_R22_replicated_to_split_is_a_local_slice() -> None:
    """Of rank 1 too: no collective is made, each device keeps its part."""
    mesh = jm.make_mesh((1, 2), ("batch", "model"))
    x = counted(2048)

    def body(v: Any) -> Any:
        return lax.dynamic_slice_in_dim(v, lax.axis_index("model") * 1024, 1024)

    assert same_bits(mapped(body, mesh, P(), P("model"), x), x)

    def through_the_host(v: Any) -> Any:
        whole = jm.shard_to_full(jm.full_to_shard(v, P()) * 2, P())
        return jm.full_to_shard(whole, P("model"))

    function = jm.jit(through_the_host, mesh=mesh)
    assert [s.shape for s in ttnn.get_device_tensors(function(x))] == [(1024,), (1024,)]
    assert same_bits(np.concatenate([np.asarray(s) for s in ttnn.get_device_tensors(function(x))]), x * 2)
    text = function.lower(x).compile().as_text()
    assert "all-to-all" not in text
    assert "all-gather" not in text


def test_R23_a_strided_slice_of_a_split_dim() -> None:
    """Limits and starts are those of the shard."""
    mesh = jm.make_mesh((2, 4), ("batch", "model"))
    x = counted(2, 3, 32)
    got = mapped(lambda v: lax.slice(v, (0, 0, 1), v.shape, (1, 1, 2)), mesh, P(None, None, "batch"),
                 P(None, None, "batch"), x)  # fmt: skip
    assert same_bits(got, x[:, :, 1::2])


# --- tensors that live on the devices --------------------------------------------------------------------------------


def presharded(x: np.ndarray, mesh: Any, placements: list[Any]) -> Any:
    return ttnn.distribute_tensor(x, ttnn.create_mesh_mapper(mesh, jm.MeshMapperConfig(placements)))


def test_R24_a_presharded_argument_has_its_local_shape() -> None:
    """Inside the program, in its types, and in its text."""
    mesh = jm.make_mesh((1, 2))
    t = presharded(counted(10, 8, 4), mesh, [R(), S(0)])
    seen = []

    def f(v: Any) -> Any:
        seen.append(v.shape)
        return v * 2

    function = jm.jit(f, mesh=mesh)
    assert [tuple(a.shape) for a in function.lower(t).in_avals] == [(5, 8, 4)]
    assert function(t).shape == (5, 8, 4)
    assert set(seen) == {(5, 8, 4)}
    assert "[10,8,4]" not in function.lower(t).as_text()


def test_R25_all_shards_of_a_presharded_result() -> None:
    """In mesh order, none dropped."""
    mesh = jm.make_mesh((1, 2))
    t = jm.jit(lambda x: jm.full_to_shard(x, P(None, "x")) * 2, mesh=mesh)(counted(4, 6))
    assert [tuple(c) for c, _ in t.shards()] == [(0, 0), (0, 1)]
    assert same_bits(np.concatenate([np.asarray(s) for _, s in t.shards()], 1), counted(4, 6) * 2)


def test_R26_saved_weights_come_back() -> None:
    """The shards of a weight, saved and loaded, give each device what it had."""
    mesh = jm.make_mesh((1, 4), ("batch", "model"))
    t = jm.jit(lambda w: jm.full_to_shard(w, P("model")), mesh=mesh)(counted(16, 4))
    saved = [np.asarray(s) for s in ttnn.get_device_tensors(t)]
    assert len({s.tobytes() for s in saved}) > 1
    loaded = ttnn.from_host_shards(saved, [1, 4])
    for (c, a), (d, b) in zip(t.shards(), loaded.shards(), strict=True):
        assert tuple(c) == tuple(d)
        assert same_bits(a, b)


def test_R28_the_type_after_a_gather_and_an_aggregate() -> None:
    """Comes from the composed shape, not from the shard's."""
    mesh = jm.make_mesh((2, 2))
    x = counted(1, 2, 8, 8)

    def f(v: Any) -> Any:
        s = jm.full_to_shard(v, P(None, None, "y", "x"))
        return jm.shard_to_full(lax.all_gather(s, "x", axis=3, tiled=True, to="invarying"), P(None, None, "y"))

    traced = jm.jit(f, mesh=mesh).trace(x)
    assert [tuple(a.shape) for a in traced.out_avals] == [(1, 2, 8, 8)]
    assert dims(traced) == [(2, 3), (2, -1)]
    assert same_bits(run(f, mesh, x), x)


def test_R29_rank_5() -> None:
    """A conv3d whose output channels are split: shard_dims [-1, 1], shard_shape [1, 4, 1, 1, 1]."""
    mesh = jm.make_mesh((1, 4))
    x, w = counted(1, 4, 2, 6, 6), counted(8, 4, 1, 3, 3)

    def conv(x: Any, w: Any) -> Any:
        return lax.conv_general_dilated(x, w, (1, 1, 1), "SAME")

    f = jax.shard_map(conv, mesh=mesh, in_specs=(P(), P("x")), out_specs=P(None, "x"))
    traced = jm.jit(f, mesh=mesh).trace(x, w)
    last = eqns(traced, "mesh_shard")[-1]
    assert last.params["shard_shape"] == (1, 4, 1, 1, 1)
    assert last.params["shard_dims"] == (-1, 1)
    np.testing.assert_allclose(run(f, mesh, x, w), conv(x, w), rtol=1e-6)


# --- mappers and composers -------------------------------------------------------------------------------------------


def test_R30_a_partial_concat() -> None:
    """The first column of shards alone gives the original back."""
    mesh = jm.make_mesh((2, 4))
    x = counted(1, 2, 1, 3)
    t = presharded(x, mesh, [S(1), R()])
    composer = ttnn.create_mesh_composer(mesh, jm.MeshComposerConfig([1, 0], jm.MeshShape([2, 1])))
    assert same_bits(ttnn.aggregate_tensor(t, composer), x)
    negative = ttnn.create_mesh_composer(mesh, jm.MeshComposerConfig([-1, 0], jm.MeshShape([2, 1])))
    assert ttnn.aggregate_tensor(t, negative).shape == (1, 1, 1, 6)


def test_R31_the_wrong_dim_in_a_mapper() -> None:
    """Shard(0) of a dim of size 1 over 4 devices: the dim, its size and the count are named."""
    mesh = jm.make_mesh((1, 4))
    with pytest.raises(jm.VerifyError, match=r"(?s)1 chunk.*4|size 1.*4"):
        presharded(ones(1, 4, 4, 8), mesh, [R(), S(0)])


def test_R32_a_distribution_that_is_not_the_mesh() -> None:
    """Replicas are told apart by distribution coordinates: 2x2 on the corner of 2x4, and 8 in a row on 2x4."""
    mesh = jm.make_mesh((2, 4))
    x = counted(4, 4)
    corner = ttnn.create_mesh_mapper(mesh, jm.MeshMapperConfig([S(0), R()], jm.MeshShape([2, 2])))
    t = ttnn.distribute_tensor(x, corner)
    assert [tuple(c) for c in t.tensor_topology().mesh_coords()] == [(0, 0), (0, 1), (1, 0), (1, 1)]
    join = ttnn.create_mesh_composer(mesh, jm.MeshComposerConfig([0, 1], jm.MeshShape([2, 1])))
    assert same_bits(ttnn.aggregate_tensor(t, join), x)
    row = ttnn.distribute_tensor(counted(8, 2), ttnn.shard_tensor_to_mesh_mapper(mesh, 0))
    assert same_bits(ttnn.aggregate_tensor(row, ttnn.concat_mesh_to_tensor_composer(mesh, 0)), counted(8, 2))


def test_R33_one_placement_per_mesh_axis() -> None:
    """A 1x8 mesh has two axes, and so its mappers have two placements."""
    mesh = jm.make_mesh((1, 8))
    f = jax.shard_map(lambda v: v, mesh=mesh, in_specs=P("x"), out_specs=P("x"))
    lowered = jm.jit(f, mesh=mesh).lower(counted(8))
    (config,) = [e.params["mapper_config"] for e in eqns(lowered, "distribute_tensor")]
    assert config == jm.MeshMapperConfig([R(), S(0)], jm.MeshShape([1, 8]))
    assert presharded(counted(8), mesh, [R(), S(0)]).tensor_topology().placements() == [R(), S(0)]
    with pytest.raises(jm.VerifyError, match="got 1"):
        presharded(counted(8), mesh, [S(0)])


# --- whole programs --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("spec", [P(), P("x", "y")], ids=str)
def test_R34_three_matrices(spec: P) -> None:
    """P(x, None) @ P(None, y) @ (replicated, or split both ways), out P(x, y), against NumPy."""
    mesh = jm.make_mesh((2, 2), ("x", "y"))
    a, b, c = counted(8, 8), counted(8, 8).T, counted(8, 8) % 5

    def body(a: Any, b: Any, c: Any) -> Any:
        ab = lax.all_gather(a @ b, "y", axis=1, tiled=True)
        if spec != P():
            c = lax.all_gather(c, "x", axis=0, tiled=True)
        else:
            c = lax.dynamic_slice_in_dim(c, lax.axis_index("y") * 4, 4, 1)
        return ab @ c

    got = mapped(body, mesh, (P("x"), P(None, "y"), spec), P("x", "y"), a, b, c)
    assert same_bits(got, a @ b @ c)


def test_R35_no_shard_is_garbage() -> None:
    """(batch, None) @ (None, model) of ones on an (n, 1) mesh: the inner size everywhere."""
    mesh = jm.make_mesh((8, 1), ("batch", "model"))
    specs = (P("batch"), P(None, "model"))
    got = mapped(lambda a, b: a @ b, mesh, specs, P("batch", "model"), ones(16, 16), ones(16, 16))
    assert same_bits(got, 16 * ones(16, 16))


def test_R36_other_shard_dims_per_argument() -> None:
    """[0, 1] and [1, 0] in one program, a reduce_scatter over one axis and a gather over the other."""
    mesh = jm.make_mesh((2, 4))
    a, b = counted(8, 16), counted(16, 8)

    def body(a: Any, b: Any) -> Any:
        whole = lax.all_gather(b, "y", axis=1, tiled=True)
        return lax.psum_scatter(a @ whole, "x", scatter_dimension=1, tiled=True)

    f = jax.shard_map(body, mesh=mesh, in_specs=(P("y", "x"), P("x", "y")), out_specs=P("y", "x"))
    assert dims(jm.jit(f, mesh=mesh).trace(a, b)) == [(0, 1), (1, 0), (0, 1)]
    assert same_bits(mapped(body, mesh, (P("y", "x"), P("x", "y")), P("y", "x"), a, b), a @ b)


def test_R37_replicated_and_constants_stay_whole() -> None:
    """A replicated bias is whole on every device; so is a constant."""
    mesh = jm.make_mesh((1, 8), ("batch", "model"))
    table = np.arange(64, dtype=np.float32)
    seen = []

    def body(x: Any, bias: Any) -> Any:
        seen.append((bias.shape, table.shape))
        return x + bias.sum() + jnp.asarray(table).sum()

    x, bias = counted(8, 16), counted(2048).astype(jnp.bfloat16)
    f = jax.shard_map(body, mesh=mesh, in_specs=(P(None, "model"), P()), out_specs=P(None, "model"))
    lowered = jm.jit(f, mesh=mesh).lower(x, bias)
    configs = [e.params["mapper_config"] for e in eqns(lowered, "distribute_tensor")]
    assert sorted(c.placements[1] == R() for c in configs) == [False] + [True] * (len(configs) - 1)
    assert jm.MeshMapperConfig([R(), S(1)], jm.MeshShape([1, 8])) in configs
    assert all(c.placements[0] == R() for c in configs)
    assert set(seen) == {((2048,), (64,))}
    np.testing.assert_array_equal(run(f, mesh, x, bias), jax.jit(f)(x, bias))


# --- derived from the source -----------------------------------------------------------------------------------------


def test_D1_the_order_of_axes_on_one_dim() -> None:
    """P(("x", "y")) and P(("y", "x")) place other data; both as JAX places them."""
    mesh = jm.make_mesh((2, 4), ("x", "y"))
    for spec in (P(("x", "y")), P(("y", "x"))):
        as_jax_places(spec, mesh, np.arange(8))
        assert mapped(lambda v: v, mesh, spec, spec, np.arange(8)).tolist() == list(range(8))
    rows = {i: shards_of(P(order), mesh, np.arange(8)) for i, order in enumerate((("x", "y"), ("y", "x")))}
    table = [[[int(held[i, j][0]) for j in range(4)] for i in range(2)] for held in rows.values()]
    assert table == [[[0, 1, 2, 3], [4, 5, 6, 7]], [[0, 2, 4, 6], [1, 3, 5, 7]]]
    traced = [jm.jit(lambda v, s=s: jm.full_to_shard(v, s), mesh=mesh).trace(np.arange(8)) for s in
              (P(("x", "y")), P(("y", "x")))]  # fmt: skip
    assert dims(traced[0]) == [(0, 0)]
    assert dims(traced[1]) != [(0, 0)]


def test_D2_two_axes_on_one_dim_are_legal_below() -> None:
    """shard_dims [0, 0] becomes one placement over 8, both ways; no dim twice."""
    mesh = jm.make_mesh((2, 4))
    f = jax.shard_map(lambda v: v * 2, mesh=mesh, in_specs=P(("y", "x")), out_specs=P(("y", "x")))
    function = jm.jit(f, mesh=mesh)
    assert dims(function.trace(counted(16))) == [(0, 0), (0, 0)]
    lowered = function.lower(counted(16))
    (down,), (up,) = eqns(lowered, "distribute_tensor"), eqns(lowered, "aggregate_tensor")
    assert down.params["mapper_config"] == jm.MeshMapperConfig([S(0)], jm.MeshShape([8]))
    assert up.params["composer_config"] == jm.MeshComposerConfig([0], jm.MeshShape([8]))
    assert same_bits(run(f, mesh, counted(16)), counted(16) * 2)


def test_D3_a_psum_over_both_axes() -> None:
    """Sums all 8 devices, in either order of the names."""
    mesh = jm.make_mesh((2, 4))
    for axes in (("y", "x"), ("x", "y")):
        got = mapped(lambda v: lax.psum(v, axes), mesh, P("y", "x"), P(), counted(8, 8))  # noqa: B023
        assert same_bits(got, counted(8, 8).reshape(2, 4, 4, 2).sum((0, 2)))


def test_D4_a_psum_on_2x1() -> None:
    """The axis of the groups [[0, 1]] is the first here, and it is summed."""
    mesh = jm.make_mesh((2, 1))
    got = mapped(lambda v: lax.psum(v, "y"), mesh, P("y"), P(), counted(4, 4))
    assert same_bits(got, counted(4, 4)[:2] + counted(4, 4)[2:])
    same = mapped(lambda v: lax.psum(v, "x"), mesh, P("y", "x"), P("y"), counted(4, 4))
    assert same_bits(same, counted(4, 4))


def test_D5_rank_1_with_a_replicated_axis() -> None:
    """shard_dims [-1, 0] of rank 1 is put together through a reshape; the composer's dims are different ones."""
    mesh = jm.make_mesh((2, 4))
    f = jax.shard_map(lambda v: v * 2, mesh=mesh, in_specs=P("x"), out_specs=P("x"))
    function = jm.jit(f, mesh=mesh)
    assert dims(function.trace(counted(8))) == [(-1, 0), (-1, 0)]
    (up,) = eqns(function.lower(counted(8)), "aggregate_tensor")
    assert up.params["composer_config"] == jm.MeshComposerConfig([0, 1], jm.MeshShape([1, 4]))
    assert same_bits(run(f, mesh, counted(8)), counted(8) * 2)


def test_D6_the_oracle_joins_replicated_values_of_rank_0_and_1() -> None:
    """The reference executor takes device 0's."""
    mesh = jm.make_mesh((2, 4))
    for x in (np.float32(3), counted(5)):
        f = jax.shard_map(lambda v: v * 2, mesh=mesh, in_specs=P(), out_specs=P())
        assert same_bits(jm.jit(f, mesh=mesh).lower(x).reference(x), x * 2)


@pytest.mark.parametrize(("size", "count"), [(13, 8), (5, 4)])
def test_D7_chunks_are_no_torch_chunks(size: int, count: int) -> None:
    """Uneven cuts are refused on every level, so no shard is on another device than it should be."""
    mesh = jm.make_mesh((count,))
    spec = P("x")
    with pytest.raises(jm.VerifyError, match=f"size {size}"):
        jm.jit(lambda x: jm.full_to_shard(x, spec), mesh=mesh).trace(ones(size))
    with pytest.raises(jm.VerifyError, match=f"{size}"):
        ttnn.distribute_tensor(ones(size), ttnn.shard_tensor_to_mesh_mapper(mesh, 0))


def test_D8_the_documented_example_contradicts_itself() -> None:
    """shard_shape [2, 1] with shard_dims [1, -1] is no legal mesh_shard on any mesh."""
    for shape in ((2, 4), (2, 1), (1, 2)):

        def f(x: Any) -> Any:
            return jm.mesh_shard(x, shard_type="devices", shard_direction="shard_to_full", shard_shape=[2, 1],
                                 shard_dims=[1, -1])  # fmt: skip

        with pytest.raises(jm.VerifyError, match=r"\[2, 1\] disagrees"):
            jm.jit(f, mesh=AbstractMesh(shape, ("y", "x"))).trace(jax.ShapeDtypeStruct((4096, 16384), jnp.float32))


def test_D9_maximum_and_minimum_over_devices() -> None:
    """They run; TTIR's all_reduce, which sums only, is not what they are written as."""
    mesh = jm.make_mesh((2, 4))
    x = counted(8, 8)
    blocks = x.reshape(2, 4, 4, 2)
    assert same_bits(mapped(lambda v: lax.pmax(v, "x"), mesh, P("y", "x"), P("y"), x), blocks.max(2).reshape(8, 2))
    assert same_bits(mapped(lambda v: lax.pmin(v, ("y", "x")), mesh, P("y", "x"), P(), x), blocks.min((0, 2)))
    f = jax.shard_map(lambda v: lax.pmax(v, "x"), mesh=mesh, in_specs=P("y", "x"), out_specs=P("y"))
    names = {e.primitive.name for e in all_eqns(jm.jit(f, mesh=mesh).lower(x).jaxpr)}
    assert not any("psum" in n or "all_reduce" in n for n in names)


# --- the list --------------------------------------------------------------------------------------------------------


def test_R27_emitted_code_reads_no_mesh_tensor_without_a_composer(tmp_path: pathlib.Path) -> None:
    """Results of an exported program, full and on the devices, are compared without `to_torch` of a mesh tensor."""
    mesh = jm.make_mesh((2, 4))

    def both(x: Any) -> Any:
        shard = jm.full_to_shard(x, P("y", "x"))
        return shard * 2, jm.shard_to_full(shard + 1, P("y", "x"))

    lowered = jm.jit(both, mesh=mesh).lower(ones(4, 8))
    assert "to_torch" not in lowered.as_text("python")
    lowered.export(tmp_path / "model", ones(4, 8))
    assert run_folder(tmp_path / "model", ["--check"]) == 0
    with pytest.raises(jm.JaxmeshError, match="composer"):
        helpers.to_numpy(jm.jit(lambda x: jm.full_to_shard(x, P("y")), mesh=mesh)(ones(4, 8)))


EVERY = [f"R{i}" for i in range(1, 38)] + [f"D{i}" for i in range(1, 11)]


def cases_here() -> list[str]:
    return [m for name in globals() for m in re.findall(r"^test_([RD]\d+)_", name)]


def test_every_case_is_covered_once() -> None:
    found = cases_here() + list(ELSEWHERE)
    assert sorted(found) == sorted(EVERY)


def test_what_the_table_says_is_true() -> None:
    files = {p.name: p.read_text() for p in HERE.glob("*.py")}
    for case, why in ELSEWHERE.items():
        for name in re.findall(r"test_\w*\.py", why):
            assert re.search(rf"def test_(\w+_)?{case.lower()}_", files[name], re.IGNORECASE), (case, name)


@pytest.mark.parametrize("mesh", [(2, 4), (2, 2, 2)])
def test_the_oracle_agrees_with_jax(mesh: tuple[int, ...]) -> None:
    """What `as_jax_places` compares with is what the suites' own oracle says."""
    there = jm.make_mesh(mesh)
    spec = P(tuple(there.axis_names[::-1]))
    held = shards_of(spec, there, np.arange(16))
    rows = [list(range(len(mesh)))[::-1]]
    for c in coordinates(mesh):
        assert same_bits(held[c], oracle_shard(np.arange(16), rows, mesh, c).astype(held[c].dtype))
