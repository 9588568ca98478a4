"""Every partition spec: upstream's attributes where its rule says them, and JAX's placement of the data always."""

from __future__ import annotations

import itertools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AbstractMesh, AxisType, NamedSharding, PartitionSpec as P

import jaxmesh as jm
from jaxmesh.jaxprs.walk import all_eqns
from jaxmesh.sharding.shard_attributes import attributes_from_spec
from tests.generators.oracles import same_bits

MESHES = [(1, 2), (2, 4), (8, 4), (1, 8), (2, 2, 2)]
NAMES = ("z", "y", "x")
each_mesh = pytest.mark.parametrize("mesh", MESHES, ids=lambda m: "x".join(map(str, m)))


def every_row(mesh: tuple[int, ...], rank: int) -> list[list[list[str]]]:
    """Per tensor dim its mesh axes, in mesh order: each axis is on one of the dims, or on none."""
    axes = NAMES[-len(mesh) :]
    choices = itertools.product(range(-1, rank), repeat=len(mesh))
    return [[[a for a, d in zip(axes, row, strict=True) if d == dim] for dim in range(rank)] for row in choices]


def spec_of(rows: list[list[str]], style: int = 0) -> P:
    """One spelling of a spec: single axes bare or in tuples, trailing Nones written or left out."""
    entries: list[Any] = [None if not r else r[0] if len(r) == 1 and style % 2 == 0 else tuple(r) for r in rows]
    while style >= 2 and entries and entries[-1] is None:
        entries.pop()
    return P(*entries)


def upstream(rows: list[list[str]], sizes: dict[str, int]) -> tuple[str, tuple[int, ...], tuple[int, ...]]:
    """Type, shard_shape and shard_dims by upstream's rule."""
    shape = tuple(math.prod(sizes[a] for a in row) for row in rows)
    dims = {a: d for d, row in enumerate(rows) for a in row if sizes[a] > 1}
    if math.prod(shape) == 1:
        return "replicate", (1,), (-1,)
    return "devices", shape, tuple(dims.get(a, -1) for a in sizes)


def said(eqn: Any) -> tuple[str, tuple[int, ...], tuple[int, ...]]:
    return eqn.params["shard_type"].value, tuple(eqn.params["shard_shape"]), tuple(eqn.params["shard_dims"])


def mesh_shards(traced: Any) -> list[Any]:
    return [e for e in all_eqns(traced.jaxpr) if e.primitive.name == "mesh_shard"]


@each_mesh
@pytest.mark.parametrize("rank", range(5))
def test_every_spec_in_mesh_order_has_upstreams_attributes(mesh: tuple[int, ...], rank: int) -> None:
    sizes = dict(zip(NAMES[-len(mesh) :], mesh, strict=True))
    for rows in every_row(mesh, rank):
        want = upstream(rows, sizes)
        for style in range(4):
            got = attributes_from_spec(spec_of(rows, style), rank, sizes)
            kind = ("replicate", (1,), (-1,)) if got.replicated else ("devices", got.shard_shape, got.shard_dims)
            assert kind == want, (rows, style)
            assert not any(got.factors)


@each_mesh
@pytest.mark.parametrize("rank", range(5))
def test_a_traced_shard_map_has_them_in_both_directions(mesh: tuple[int, ...], rank: int) -> None:
    """All specs of one rank are arguments of one function; also of meshes that have no devices here."""
    names = NAMES[-len(mesh) :]
    sizes = dict(zip(names, mesh, strict=True))
    rows = every_row(mesh, rank)[:: 1 if rank < 3 else 7]
    specs = tuple(spec_of(r, i % 4) for i, r in enumerate(rows))
    args = [jax.ShapeDtypeStruct((math.prod(mesh) * 2,) * rank, jnp.float32)] * len(rows)
    abstract = AbstractMesh(mesh, names, axis_types=(AxisType.Auto,) * len(mesh))
    f = jax.shard_map(lambda *xs: tuple(x * 2 for x in xs), mesh=abstract, in_specs=specs, out_specs=specs)
    found = mesh_shards(jm.jit(f, mesh=abstract).trace(*args))
    want = [upstream(r, sizes) for r in rows]
    for direction in ("full_to_shard", "shard_to_full"):
        these = [e for e in found if e.params["shard_direction"].value == direction]
        assert [said(e) for e in these] == want
        for e, (kind, pieces, _) in zip(these, want, strict=True):
            shards = e.outvars if direction == "full_to_shard" else e.invars
            counts = pieces if kind == "devices" else (1,) * rank
            assert shards[0].aval.shape == tuple(math.prod(mesh) * 2 // n for n in counts)


def orders(mesh: tuple[int, ...], rank: int) -> list[list[list[str]]]:
    """Every spec with two or more axes on a dim in an order that is not the mesh's."""
    axes = NAMES[-len(mesh) :]
    out = []
    for rows in every_row(mesh, rank):
        for turned in itertools.product(*[itertools.permutations(r) for r in rows]):
            if any(list(r) != sorted(r, key=axes.index) for r in turned):
                out.append([list(r) for r in turned])
    return out


@pytest.mark.slow(but_one_in=3)
@pytest.mark.parametrize("mesh", [(2, 4), (1, 8), (2, 2, 2)], ids=lambda m: "x".join(map(str, m)))
@pytest.mark.parametrize("rank", [1, 2])
def test_data_are_where_jax_places_them(mesh: tuple[int, ...], rank: int) -> None:
    """In mesh order and in every other order, there and back."""
    there = jm.make_mesh(mesh, NAMES[-len(mesh) :])
    rows = every_row(mesh, rank) + orders(mesh, rank)
    specs = [spec_of(r) for r in rows]
    x = np.arange((math.prod(mesh) * 2) ** rank, dtype=np.int32).reshape((math.prod(mesh) * 2,) * rank)

    def program(v: Any) -> Any:
        shards = [jm.full_to_shard(v, s) for s in specs]
        return shards, [jm.shard_to_full(y + 0 * y, s) for y, s in zip(shards, specs, strict=True)]

    shards, fulls = jm.jit(program, mesh=there)(x)
    for spec, shard, full in zip(specs, shards, fulls, strict=True):
        assert same_bits(full, x), spec
        if isinstance(shard, jax.Array):
            # Nothing is cut: the fold leaves the array itself.
            assert same_bits(shard, x)
            continue
        placed = {
            s.device: np.asarray(s.data)
            for s in jax.device_put(x, NamedSharding(there, spec)).addressable_shards
        }  # fmt: skip
        for c, held in shard.shards():
            assert same_bits(held, placed[there.devices[tuple(c)]]), (spec, c)


@pytest.mark.parametrize("mesh", [(2, 4), (2, 2, 2)], ids=lambda m: "x".join(map(str, m)))
def test_other_orders_in_a_shard_map(mesh: tuple[int, ...]) -> None:
    """What each device sees in `jm.shard_map` is what it sees in JAX's, and its raised program on the reference."""
    there = jm.make_mesh(mesh, NAMES[-len(mesh) :])
    axes = there.axis_names
    specs = tuple(spec_of(r) for r in orders(mesh, 2)[::5])
    x = np.arange((math.prod(mesh) * 2) ** 2, dtype=np.int32).reshape((math.prod(mesh) * 2,) * 2)

    def body(*xs: Any) -> Any:
        # Which device it is becomes a part of the data.
        kept = [tuple(a for a in axes if a in names(s)) for s in specs]
        return tuple(v * 100 + jax.lax.axis_index(row) for v, row in zip(xs, kept, strict=True))

    options = {"mesh": there, "in_specs": specs, "out_specs": specs}
    args = [x] * len(specs)
    want = jax.jit(jax.shard_map(body, **options))(*args)
    lowered = jm.jit(jax.shard_map(body, **options), mesh=there).lower(*args)
    for got in (jax.jit(jm.shard_map(body, **options))(*args), lowered.compile()(*args), lowered.reference(*args)):
        for a, b in zip(got, want, strict=True):
            assert same_bits(a, b)


def names(spec: P) -> set[str]:
    return {a for e in spec if e is not None for a in (e if isinstance(e, tuple) else (e,))}


def test_axes_that_are_not_neighbours_on_one_dim() -> None:
    mesh = jm.make_mesh((2, 2, 2), NAMES)
    f = jax.shard_map(lambda v: v * 2, mesh=mesh, in_specs=P(("z", "x"), "y"), out_specs=P(("z", "x"), "y"))
    found = mesh_shards(jm.jit(f, mesh=mesh).trace(jnp.zeros((8, 8))))
    assert [said(e) for e in found] == [("devices", (4, 2), (0, 1, 0))] * 2
