"""The eager distribution API against a slow oracle, in every mode."""

from __future__ import annotations

import itertools
import math
from typing import Any

import hypothesis
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import jaxmesh as jm
from jaxmesh import ttnn
from tests.generators.oracles import cases, coordinates, same_bits

S, R = jm.PlacementShard, jm.PlacementReplicate()


def landing(d: tuple[int, ...], m: tuple[int, ...]) -> list[tuple[int, ...]]:
    """Mesh coordinates of a distribution, row-major."""
    mesh = coordinates(m)
    if d == m:
        return mesh
    if len(d) != len(m) or any(a > b for a, b in zip(d, m, strict=True)):
        return mesh[: math.prod(d)]
    return [c for c in mesh if all(i < n for i, n in zip(c, d, strict=True))]


def slow_distribute(x: np.ndarray, placements: list[Any], d: tuple[int, ...], m: tuple[int, ...]) -> dict[Any, Any]:
    """Coordinate to shard; ValueError where a rule is broken."""
    if math.prod(d) > math.prod(m) or len(placements) != len(d):
        raise ValueError
    dims = [p.dim if isinstance(p, S) else None for p in placements]
    if any(p is not None and not -x.ndim <= p < x.ndim for p in dims):
        raise ValueError
    dims = [None if p is None else p % x.ndim for p in dims]
    cut = [p for p in dims if p is not None]
    if len(set(cut)) != len(cut) or any(x.shape[p] == 0 for p in cut):
        raise ValueError
    pieces: dict[tuple[int, ...], np.ndarray] = {(): x}
    for n, dim in zip(d, dims, strict=True):
        new = {}
        for place, piece in pieces.items():
            if dim is None:
                rows = [piece] * n
            else:
                size = -(-x.shape[dim] // n)
                rows = [piece.take(range(i, min(i + size, x.shape[dim])), dim) for i in range(0, x.shape[dim], size)]
                if len(d) > 1 and len(rows) != n:
                    raise ValueError
            new.update({(*place, i): r for i, r in enumerate(rows)})
        pieces = new
    if len({p.shape for p in pieces.values()}) != 1:
        raise ValueError
    where = dict(zip(itertools.product(*map(range, d)), landing(d, m), strict=True))
    return {where[place]: piece for place, piece in pieces.items()}


def slow_aggregate(
    shards: dict[Any, np.ndarray], dims: list[int], d: tuple[int, ...], m: tuple[int, ...]
) -> np.ndarray:
    rank = next(iter(shards.values())).ndim
    if math.prod(d) > math.prod(m) or len(dims) != len(d):
        raise ValueError
    where = dict(zip(itertools.product(*map(range, d)), landing(d, m), strict=True))
    found = [shards[c] for c in where.values() if c in shards]
    if len(found) == 1:
        return found[0]
    if any(not -rank <= i < rank for i in dims) or len({i % rank for i in dims}) != len(dims):
        raise ValueError

    if len(d) == 1:
        return np.concatenate(found, dims[0])

    def join(prefix: tuple[int, ...]) -> np.ndarray:
        if len(prefix) == len(d):
            return shards[where[prefix]]
        return np.concatenate([join((*prefix, i)) for i in range(d[len(prefix)])], dims[len(prefix)])

    if any(c not in shards for c in where.values()):
        raise ValueError
    return join(())


MESHES = [(1,), (4,), (8,), (1, 2), (2, 4), (4, 2), (2, 2, 2), (2, 1, 4), (2, 2, 2, 2)]


@st.composite
def shapes_on(draw: Any, mesh: tuple[int, ...]) -> tuple[int, ...]:
    """The mesh itself, a corner of it, or any other shape, larger ones now and then."""
    how = draw(st.integers(0, 3))
    if how == 0:
        return mesh
    if how == 1:
        return tuple(draw(st.integers(1, n)) for n in mesh)
    return tuple(draw(st.lists(st.sampled_from([1, 2, 3, 4, 8]), min_size=1, max_size=3)))


@st.composite
def movements(draw: Any) -> Any:
    mesh = draw(st.sampled_from(MESHES))
    d = draw(shapes_on(mesh))
    rank = draw(st.integers(0, 4))
    dims = st.integers(-rank - draw(st.booleans()), max(rank - 1, 0))
    placements = draw(st.lists(st.one_of(st.just(R), dims.map(S)), min_size=len(d), max_size=len(d)))
    shape = tuple(draw(st.lists(st.sampled_from([0, 1, 2, 4, 4, 8, 8, 12, 13]), min_size=rank, max_size=rank)))
    e = draw(shapes_on(mesh))
    back = draw(st.permutations(range(rank)).map(lambda p: list(p)[: len(e)]))
    back += [draw(st.integers(-rank, rank)) for _ in range(len(e) - len(back))]
    return mesh, d, placements, shape, e, back


@pytest.mark.slow(but_one_in=2)
@pytest.mark.parametrize("part", range(2))
@pytest.mark.usefixtures("unequal_copies")
def test_every_mode_against_the_slow_oracle(part: int) -> None:
    seen = {"refused": 0, "partial": 0, "joined": 0}

    @hypothesis.seed(part)
    @cases(400)
    @hypothesis.given(movements())
    def run(movement: Any) -> None:
        mesh, d, placements, shape, e, back = movement
        x = np.arange(math.prod(shape), dtype=np.int32).reshape(shape)
        device = jm.make_mesh(mesh)
        override = None if d == mesh else d
        try:
            want = slow_distribute(x, placements, d, mesh)
        except ValueError:
            seen["refused"] += 1
            with pytest.raises(jm.VerifyError):
                ttnn.distribute_tensor(x, ttnn.create_mesh_mapper(device, jm.MeshMapperConfig(placements, override)))
            return
        t = ttnn.distribute_tensor(x, ttnn.create_mesh_mapper(device, jm.MeshMapperConfig(placements, override)))
        order = sorted(want)
        assert [tuple(c) for c, _ in t.shards()] == order
        got = ttnn.get_device_tensors(t)
        assert all(same_bits(g, want[c]) for g, c in zip(got, order, strict=True))
        assert [g.device for _, g in t.shards()] == [device.devices[c] for c in order]
        topology = t.tensor_topology()
        assert sorted(map(tuple, topology.mesh_coords())) == order
        assert tuple(topology.distribution_shape()) == (d if len(d) > 1 or placements == [R] else (len(order),))
        assert topology.placements() == placements
        seen["partial"] += len(order) < math.prod(mesh)
        config = jm.MeshComposerConfig(back, None if e == mesh else e)
        try:
            full = slow_aggregate(want, back, e, mesh)
        except ValueError:
            with pytest.raises(jm.VerifyError):
                ttnn.aggregate_tensor(t, ttnn.create_mesh_composer(device, config))
            return
        seen["joined"] += 1
        assert same_bits(ttnn.aggregate_tensor(t, ttnn.create_mesh_composer(device, config)), full)

    run()
    assert all(seen.values()), seen


def test_upstreams_partial_concat_example() -> None:
    """tt-metal 17343: [Shard 1, Replicate] on 2x4, then the first column only."""
    device = ttnn.open_mesh_device(mesh_shape=ttnn.MeshShape(2, 4))
    x = np.arange(6, dtype=np.float32).reshape(1, 2, 1, 3)
    t = ttnn.distribute_tensor(x, ttnn.create_mesh_mapper(device, jm.MeshMapperConfig([S(1), R])))
    composer = ttnn.create_mesh_composer(device, jm.MeshComposerConfig([1, 0], ttnn.MeshShape(2, 1)))
    assert same_bits(ttnn.aggregate_tensor(t, composer), x)


def test_helpers_are_the_documented_configs() -> None:
    device = ttnn.open_mesh_device(mesh_shape=ttnn.MeshShape(2, 4))
    assert ttnn.shard_tensor_to_mesh_mapper(device, -1).config == jm.MeshMapperConfig([S(-1)], [8])
    assert ttnn.replicate_tensor_to_mesh_mapper(device).config == jm.MeshMapperConfig([R], [8])
    assert ttnn.concat_mesh_to_tensor_composer(device, 2).config == jm.MeshComposerConfig([2], [8])
    assert device.get_num_devices() == 8
    assert device.get_device_ids() == [d.id for d in device.mesh.devices.flat]


def test_empty_devices_hold_nothing() -> None:
    device = ttnn.open_mesh_device(mesh_shape=ttnn.MeshShape(2, 4))
    five = ttnn.distribute_tensor(np.arange(5), ttnn.shard_tensor_to_mesh_mapper(device, 0))
    assert [s.tolist() for s in ttnn.get_device_tensors(five)] == [[0], [1], [2], [3], [4]]
    assert five.is_partial
    assert "5 of 8 devices" in repr(five)
    assert five._repr_html_().count("holds nothing") == 3
    composer = ttnn.create_mesh_composer(device, jm.MeshComposerConfig([0], [5]))
    assert ttnn.aggregate_tensor(five, composer).tolist() == [0, 1, 2, 3, 4]


def test_a_tensor_enters_and_leaves_a_program() -> None:
    device = ttnn.open_mesh_device(mesh_shape=ttnn.MeshShape(2, 4))
    x = np.random.default_rng(0).normal(size=(8, 4)).astype(np.float32)
    for placements, spec in [
        ([S(0), S(1)], P("y", "x")),
        ([R, S(0)], P("x")),
        ([S(1), R], P(None, "y")),
        ([R, R], P()),
    ]:
        t = ttnn.distribute_tensor(x, ttnn.create_mesh_mapper(device, jm.MeshMapperConfig(placements)))

        def double(v: Any, spec: P = spec) -> Any:
            return 2 * v, jm.shard_to_full(2 * v, spec)

        function = jm.jit(double, mesh=device.mesh)
        shard, full = function(t)
        assert same_bits(full, 2 * x)
        assert shard.shape == t.shape
        assert shard.varying == t.varying
        assert all(same_bits(a, 2 * b) for (_, a), (_, b) in zip(shard.shards(), t.shards(), strict=True))
        ref_shard, ref_full = function.lower(t).reference(t)
        assert same_bits(ref_full, full)
        assert all(same_bits(ref_shard[tuple(c)], a) for c, a in shard.shards())
        assert same_bits(function.lower(t).compile()(t)[1], full)


def test_a_row_major_tensor_enters_a_program() -> None:
    device = ttnn.open_mesh_device(mesh_shape=ttnn.MeshShape(2, 4))
    x = np.arange(16, dtype=np.float32)
    t = ttnn.distribute_tensor(x, ttnn.shard_tensor_to_mesh_mapper(device, 0))
    assert t.varying == ("y", "x")
    out = jm.jit(lambda v: jm.shard_to_full(v + 1, P(("y", "x"))), mesh=device.mesh)(t)
    assert same_bits(out, x + 1)
    crossing = jm.MeshMapperConfig([S(0), R], [4, 2])
    u = ttnn.distribute_tensor(x, ttnn.create_mesh_mapper(device, crossing))
    want = {c: x[4 * (k // 2) : 4 * (k // 2) + 4] for k, c in enumerate(coordinates((2, 4)))}
    assert all(same_bits(s, want[tuple(c)]) for c, s in u.shards())
    back = ttnn.aggregate_tensor(
        jm.jit(lambda v: 2 * v, mesh=device.mesh)(u),
        ttnn.create_mesh_composer(device, jm.MeshComposerConfig([0], [8])),
    )
    assert same_bits(back, 2 * np.concatenate(list(want.values())))


@pytest.mark.parametrize(
    ("placements", "override"),
    [([S(0), S(1)], None), ([S(0)], [8]), ([R], [8]), ([S(0), R], [4, 2]), ([R, S(1)], [4, 2]), ([S(1), S(0)], [4, 2])],
)
def test_traced_is_eager(placements: list[Any], override: Any) -> None:
    """The same mapper inside a program, at its boundary and inside a loop."""
    device = ttnn.open_mesh_device(mesh_shape=ttnn.MeshShape(2, 4))
    mapper = ttnn.create_mesh_mapper(device, jm.MeshMapperConfig(placements, override))
    x = np.arange(16 * 8, dtype=np.float32).reshape(16, 8)
    eager = {tuple(c): np.asarray(s) for c, s in ttnn.distribute_tensor(x, mapper).shards()}
    for wrap in (lambda f: f, jax.checkpoint):
        traced = jm.jit(wrap(lambda v: ttnn.distribute_tensor(v, mapper)), mesh=device.mesh)
        out = traced(x)
        assert {tuple(c) for c, _ in out.shards()} == set(eager)
        assert all(same_bits(s, eager[tuple(c)]) for c, s in out.shards())
        assert all(same_bits(s, eager[c]) for c, s in traced.lower(x).reference(x).items())


@pytest.mark.parametrize(
    ("dims", "override"), [([0, 1], None), ([0], [8]), ([1, 0], [2, 2]), ([0, 1], [4, 2]), ([0], [3])]
)
def test_traced_aggregate_is_eager(dims: list[int], override: Any) -> None:
    device = ttnn.open_mesh_device(mesh_shape=ttnn.MeshShape(2, 4))
    composer = ttnn.create_mesh_composer(device, jm.MeshComposerConfig(dims, override))
    x = np.arange(16 * 8, dtype=np.float32).reshape(16, 8)
    t = ttnn.distribute_tensor(x, ttnn.create_mesh_mapper(device, jm.MeshMapperConfig([S(0), S(1)])))
    eager = ttnn.aggregate_tensor(t, composer)
    for wrap in (lambda f: f, jax.checkpoint):
        traced = jm.jit(wrap(lambda v: ttnn.aggregate_tensor(v, composer)), mesh=device.mesh)
        assert same_bits(traced(t), eager)
        assert same_bits(traced.lower(t).reference(t), eager)


def test_later_writes_to_the_host_array_are_not_seen() -> None:
    device = ttnn.open_mesh_device(mesh_shape=ttnn.MeshShape(2, 4))
    for mapper in (ttnn.replicate_tensor_to_mesh_mapper(device), ttnn.shard_tensor_to_mesh_mapper(device, 0)):
        x = np.ones((1024, 64), np.float32)
        t = ttnn.distribute_tensor(x, mapper)
        x[:] = 7
        assert all((np.asarray(s) == 1).all() for s in ttnn.get_device_tensors(t))


@pytest.mark.parametrize("order", ["C", "F", "reversed", "strided", "readonly", "jax"])
def test_any_layout_of_the_host_array(order: str) -> None:
    x = np.arange(16 * 8, dtype=np.float32).reshape(16, 8)
    host: Any = {
        "C": x, "F": np.asfortranarray(x), "reversed": x[::-1].copy()[::-1], "strided": np.repeat(x, 2, 1)[:, ::2],
        "readonly": x.copy(), "jax": jnp.asarray(x),
    }[order]  # fmt: skip
    if order == "readonly":
        host.flags.writeable = False
    device = ttnn.open_mesh_device(mesh_shape=ttnn.MeshShape(2, 4))
    mapper = ttnn.create_mesh_mapper(device, jm.MeshMapperConfig([S(0), S(1)]))
    composer = ttnn.create_mesh_composer(device, jm.MeshComposerConfig([0, 1]))
    assert same_bits(ttnn.aggregate_tensor(ttnn.distribute_tensor(host, mapper), composer), x)


def test_mesh_tensor_is_a_pytree() -> None:
    device = ttnn.open_mesh_device(mesh_shape=ttnn.MeshShape(2, 4))
    t = ttnn.distribute_tensor(np.arange(16.0), ttnn.shard_tensor_to_mesh_mapper(device, 0))
    again = jax.tree.map(lambda a: a + 1, t)
    assert isinstance(again, jm.MeshTensor)
    composer = ttnn.concat_mesh_to_tensor_composer(device, 0)
    assert ttnn.aggregate_tensor(again, composer).tolist() == (np.arange(16.0) + 1).tolist()


@pytest.mark.parametrize("dims", [[0, 1], [1, 0]])
def test_shards_are_joined_in_a_program_by_another_shape_than_the_mesh(dims: list[int]) -> None:
    device, shape = ttnn.open_mesh_device((2, 4)), ttnn.MeshShape([4, 2])
    mapper = ttnn.create_mesh_mapper(device, ttnn.MeshMapperConfig([S(0), S(1)], shape))
    composer = ttnn.create_mesh_composer(device, ttnn.MeshComposerConfig(dims, shape))
    x = np.arange(64, dtype=np.float32).reshape(8, 8)
    got = jm.jit(lambda x: ttnn.aggregate_tensor(ttnn.distribute_tensor(x, mapper), composer) * 2, mesh=device.mesh)(x)
    blocks = [[x[2 * i : 2 * i + 2, 4 * j : 4 * j + 4] for j in range(2)] for i in range(4)]
    wanted = np.block(blocks if dims == [0, 1] else [list(row) for row in zip(*blocks, strict=True)])
    np.testing.assert_array_equal(got, wanted * 2)
