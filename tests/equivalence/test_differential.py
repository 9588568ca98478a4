"""Random differential test: sharded executor = reference executor = eager API = NumPy slicing, bit for bit."""

from __future__ import annotations

import dataclasses
import itertools
import math
from typing import Any

import hypothesis
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import jaxmesh as jm
from jaxmesh import ttnn
from jaxmesh.jaxprs.walk import all_eqns
from tests.generators.oracles import cases, coordinates, oracle_shard, same_bits

FLOAT8 = [n for n in dir(ml_dtypes) if n.startswith("float8_")]
NARROW = ["int2", "uint2", "int4", "uint4", "float4_e2m1fn", *FLOAT8]
COMMON = ["bool", "int8", "uint8", "int16", "uint16", "int32", "uint32", "float16", "bfloat16", "float32", "complex64"]
WIDE = ["int64", "uint64", "float64", "complex128"]
DTYPES = [*COMMON, *NARROW, *WIDE]

MESHES = [m for r in range(1, 5) for m in itertools.product(range(1, 17), repeat=r) if math.prod(m) <= 16]


@dataclasses.dataclass(frozen=True)
class Case:
    """One tensor on a mesh: `axes[d]` lists the mesh axes on dim d, most significant first."""

    shape: tuple[int, ...]
    axes: tuple[tuple[int, ...], ...]
    dtype: str

    @property
    def spec(self) -> P:
        return P(*[tuple(f"m{a}" for a in row) for row in self.axes])

    def array(self, seed: int) -> np.ndarray:
        raw = np.random.default_rng(seed).integers(0, 256, (*self.shape, 16), dtype=np.uint8)
        dtype = jnp.dtype(self.dtype)
        if dtype == np.dtype(bool):
            return raw[..., 0] > 127
        if self.dtype in ("int2", "uint2", "int4", "uint4", "float4_e2m1fn"):
            return (raw[..., 0].astype(np.int32) % 4 - (2 if self.dtype.startswith("int") else 0)).astype(dtype)
        # Any bit pattern but NaN, whose payload a conversion may change.
        values = raw[..., : dtype.itemsize].copy().view(dtype)[..., 0]
        with np.errstate(invalid="ignore"):
            return np.where(values == values, values, np.ones_like(values))


@st.composite
def drawn_cases(draw: Any, mesh: tuple[int, ...]) -> Case:
    rank = draw(st.integers(0, 5))
    rows: list[list[int]] = [[] for _ in range(rank)]
    for axis in draw(st.permutations(range(len(mesh)))):
        where = draw(st.integers(-1, rank - 1))
        if where >= 0:
            rows[where].append(axis)
    chunk = draw(st.lists(st.sampled_from([0, 1, 1, 2, 3]), min_size=rank, max_size=rank))
    shape = tuple(n * math.prod(mesh[a] for a in row) for n, row in zip(chunk, rows, strict=True))
    return Case(shape, tuple(map(tuple, rows)), draw(st.sampled_from(DTYPES)))


TOGETHER = 5
"""Cases per program: compiling is what takes the time."""


@st.composite
def drawn_programs(draw: Any) -> tuple[tuple[int, ...], list[Case]]:
    mesh = draw(st.sampled_from(MESHES))
    return mesh, draw(st.lists(drawn_cases(mesh), min_size=TOGETHER, max_size=TOGETHER))


def check(sizes: tuple[int, ...], rows: list[Case], inner: bool) -> None:
    """Both directions through every executor; `inner` hides the transfers from hoisting."""
    mesh = jm.make_mesh(sizes, [f"m{i}" for i in range(len(sizes))])
    wrap = jax.checkpoint if inner else lambda f: f

    def one(x: Any, spec: P) -> Any:
        shard = wrap(lambda v: jm.full_to_shard(v, spec))(x)
        return shard, wrap(lambda v: jm.shard_to_full(v, spec))(shard)

    def program(*xs: Any) -> Any:
        return [one(x, case.spec) for x, case in zip(xs, rows, strict=True)]

    xs = [case.array(i) for i, case in enumerate(rows)]
    function = jm.jit(program, mesh=mesh)
    outs = zip(rows, xs, function(*xs), function.lower(*xs).reference(*xs), strict=True)
    for case, x, (shard, full), (ref_shard, ref_full) in outs:
        expected = {c: oracle_shard(x, case.axes, sizes, c) for c in coordinates(sizes)}
        held = {tuple(c): np.asarray(s) for c, s in shard.shards()}
        assert set(held) == set(expected) == set(ref_shard)
        for c, piece in expected.items():
            assert same_bits(held[c], piece), (case, c)
            assert same_bits(ref_shard[c], piece), (case, c)
        assert same_bits(full, x), case
        assert same_bits(ref_full, x), case
        if not inner:
            check_eager(jm.jit(lambda v, spec=case.spec: one(v, spec), mesh=mesh).lower(x), mesh, x, expected)


def check_eager(lowered: Any, mesh: Any, x: np.ndarray, expected: dict[tuple[int, ...], np.ndarray]) -> None:
    """The configs of the lowered program, given to the eager API."""
    eqns = [e for e in all_eqns(lowered.jaxpr) if "tensor" in e.primitive.name]
    down = next(e for e in eqns if e.primitive.name == "distribute_tensor")
    up = next(e for e in eqns if e.primitive.name == "aggregate_tensor")
    mapper = ttnn.create_mesh_mapper(mesh, down.params["mapper_config"])
    tensor = ttnn.distribute_tensor(x.reshape(down.invars[0].aval.shape), mapper)
    pieces = [np.asarray(t).reshape(next(iter(expected.values())).shape) for t in ttnn.get_device_tensors(tensor)]
    assert all(same_bits(a, b) for a, b in zip(pieces, expected.values(), strict=True))
    composer = ttnn.create_mesh_composer(mesh, up.params["composer_config"])
    local = up.invars[0].aval.shape
    rows = [np.asarray(t).reshape(local) for t in ttnn.get_device_tensors(tensor)]
    back = ttnn.aggregate_tensor(ttnn.from_host_shards(rows, mesh.devices.shape), _for_default(composer, mesh))
    assert same_bits(back.reshape(x.shape), x)


def _for_default(composer: Any, mesh: Any) -> Any:
    """The composer for the mesh that `from_host_shards` makes."""
    return ttnn.create_mesh_composer(jm.make_mesh(mesh.devices.shape), composer.config)


@pytest.mark.beyond
@pytest.mark.parametrize("part", range(4))
@pytest.mark.parametrize("inner", [False, True], ids=["boundary", "inside"])
def test_every_way_moves_the_same_bits(part: int, inner: bool) -> None:
    """8 times 26 programs of 5 tensors."""

    @hypothesis.seed(part)
    @cases(26)
    @hypothesis.given(drawn_programs())
    def run(program: tuple[tuple[int, ...], list[Case]]) -> None:
        sizes, rows = program
        with jax.enable_x64(any(case.dtype in WIDE for case in rows)):
            check(sizes, rows, inner)

    run()


@pytest.mark.parametrize("inner", [False, True], ids=["boundary", "inside"])
def test_every_dtype(inner: bool) -> None:
    with jax.enable_x64(True):
        check((2, 4), [Case((8, 12), ((0,), (1,)), dtype) for dtype in DTYPES], inner)
        check((2, 4), [Case((8, 3), ((1, 0), ()), dtype) for dtype in DTYPES], inner)
