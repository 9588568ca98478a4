"""Sharding and communication against a plain loop over mesh coordinates, on emulated devices."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from jax.sharding import PartitionSpec as P

import jaxmesh as jm
from jaxmesh.dialects.perform import evaluate
from jaxmesh.dialects.ttir import OPS

pytestmark = pytest.mark.slow(but_one_in=6)

MESHES = [(2,), (2, 4), (1, 2), (2, 2, 2)]
AXES = [(m, a) for m in MESHES for a in range(len(m))]
TESTED = {
    "mesh_shard", "mesh_partition", "all_gather", "all_reduce", "all_reduce_async", "reduce_scatter", "all_to_all",
    "collective_permute", "collective_broadcast", "distributed_layer_norm", "distributed_rms_norm",
}  # fmt: skip
Devices = dict[tuple[int, ...], Any]


def names(mesh: Sequence[int]) -> dict[str, int]:
    return dict(zip("zyx"[-len(mesh) :], mesh, strict=True))


def devices(mesh: Sequence[int]) -> list[tuple[int, ...]]:
    return list(itertools.product(*map(range, mesh)))


def values(mesh: Sequence[int], shape: tuple[int, ...], dtype: Any = np.float32, seed: int = 0) -> Devices:
    """A tensor of its own for each device."""
    rng = np.random.default_rng(seed)
    whole = rng.integers(-4, 5, (*mesh, *shape))
    return {at: whole[at].astype(dtype) for at in devices(mesh)}


def own(y: Any) -> set[str]:
    return set(jax.typeof(y).manual_axis_type.varying)


def perform(
    mesh: Sequence[int],
    row: str,
    given: Sequence[Devices],
    attributes: dict[str, Any],
    want: Devices,
    *,
    equal: Sequence[int] | None = (),
    **tolerance: float,
) -> None:
    """Runs an op on every device and compares; `equal`: the axes over which the result must not vary (None: any)."""
    axes, spec = names(mesh), P(*names(mesh))
    result = next(iter(want.values()))
    declared = [jax.ShapeDtypeStruct(result.shape, result.dtype)]

    def f(*xs: Any) -> Any:
        locals_ = [jm.full_to_shard(x, spec).reshape(x.shape[len(mesh) :]) for x in xs]
        (y,) = evaluate(OPS[row], locals_, attributes, declared, axes)
        if equal is not None:
            assert own(y) == {a for i, a in enumerate(axes) if i not in equal}
        missing = tuple(a for a in axes if a not in own(y))
        y = jax.lax.pcast(y, missing, to="varying") if missing else y
        return jm.shard_to_full(y.reshape((1,) * len(mesh) + y.shape), spec)

    stacked = [np.stack([d[at] for at in devices(mesh)]).reshape(*mesh, *d[(0,) * len(mesh)].shape) for d in given]
    got = np.asarray(jm.jit(f, mesh=jm.make_mesh(tuple(mesh), tuple(axes)))(*stacked))
    for at in devices(mesh):
        assert got[at].dtype == want[at].dtype
        if tolerance:
            np.testing.assert_allclose(got[at].astype(float), want[at].astype(float), **tolerance)
        else:
            np.testing.assert_array_equal(got[at], want[at])


def along(mesh: Sequence[int], axis: int, at: tuple[int, ...]) -> list[tuple[int, ...]]:
    """The coordinates that differ from one along an axis only."""
    return [(*at[:axis], i, *at[axis + 1 :]) for i in range(mesh[axis])]


REDUCE: dict[str, Callable[..., Any]] = {
    "sum": np.sum, "max": np.max, "min": np.min, "prod": np.prod, "mean": np.mean,
}  # fmt: skip


@pytest.mark.parametrize(("mesh", "axis"), AXES)
@pytest.mark.parametrize("dtype", [np.float32, jnp.int4, np.bool_])
def test_all_gather(mesh: tuple[int, ...], axis: int, dtype: Any) -> None:
    x = values(mesh, (3, 4), dtype)
    for dim in (0, -1) if dtype is np.float32 else (1,):
        want = {at: np.concatenate([x[n] for n in along(mesh, axis, at)], dim) for at in x}
        perform(mesh, "all_gather", [x], {"all_gather_dim": dim, "cluster_axis": axis}, want, equal=[axis])


@pytest.mark.parametrize(("mesh", "axis"), AXES)
@pytest.mark.parametrize("kind", REDUCE)
@pytest.mark.parametrize("row", ["all_reduce", "reduce_scatter"])
def test_reductions(mesh: tuple[int, ...], axis: int, kind: str, row: str) -> None:
    other = jnp.bfloat16 if kind == "mean" else np.int32
    for dtype, dims in ((np.float32, (0, -1)), (other, (1,))) if axis == len(mesh) - 1 else ((np.float32, (1,)),):
        x = values(mesh, (4, 8), dtype, seed=axis)
        whole = {
            at: REDUCE[kind](np.stack([x[n] for n in along(mesh, axis, at)]).astype(float), axis=0).astype(dtype)
            for at in x
        }
        attributes = {"reduce_type": kind, "cluster_axis": axis}
        if row == "all_reduce":
            perform(mesh, row, [x], attributes, whole, equal=[axis])
            continue
        for dim in dims:
            want = {at: np.split(y, mesh[axis], dim)[at[axis]] for at, y in whole.items()}
            perform(mesh, row, [x], attributes | {"scatter_dim": dim}, want)


@pytest.mark.parametrize("kind", ["sum", "max", "min"])
@pytest.mark.parametrize("dtype", [np.bool_, jnp.int2, jnp.uint4, jnp.bfloat16])
@pytest.mark.parametrize("row", ["all_reduce_async", "reduce_scatter"])
def test_reductions_of_narrow_types(kind: str, dtype: Any, row: str) -> None:
    mesh = (2, 2)
    rng = np.random.default_rng(3)
    x = {at: rng.integers(0, 2, (4, 3)).astype(dtype) for at in devices(mesh)}
    plain = {"sum": np.any, "max": np.any, "min": np.all} if dtype is np.bool_ else REDUCE

    def reduced(at: tuple[int, ...]) -> Any:
        rows = np.stack([x[n] for n in along(mesh, 1, at)])
        made = plain[kind](rows if dtype is np.bool_ else rows.astype(int), axis=0)
        if dtype is jnp.int2:
            made = (made + 2) % 4 - 2
        return made.astype(dtype)

    attributes = {"reduce_type": kind, "cluster_axis": 1}
    if row == "reduce_scatter":
        want = {at: np.split(reduced(at), 2)[at[1]] for at in x}
        perform(mesh, row, [x], attributes | {"scatter_dim": 0}, want)
    else:
        perform(mesh, row, [x], attributes, {at: reduced(at) for at in x}, equal=[1])


def test_a_sum_of_equal_values_is_not_folded() -> None:
    """R8: an all_reduce over an axis on which the values are equal multiplies by its size."""

    def f(x: Any) -> Any:
        attributes = {"reduce_type": "sum", "cluster_axis": 0}
        (y,) = evaluate(OPS["all_reduce"], [x], attributes, [jax.typeof(x)], names((2, 1)))
        return jm.shard_to_full(y, P())

    x = np.arange(6, dtype=np.float32)
    np.testing.assert_array_equal(jm.jit(f, mesh=jm.make_mesh((2, 1), ("y", "x")))(x), 2 * x)


@pytest.mark.parametrize(("mesh", "axis"), AXES)
def test_mesh_partition(mesh: tuple[int, ...], axis: int) -> None:
    x = values(mesh, (8, 16))
    for dim in (0, -1):
        want = {at: np.split(x[at], mesh[axis], dim)[at[axis]] for at in x}
        perform(mesh, "mesh_partition", [x], {"dim": dim, "cluster_axis": axis}, want)
    want = {at: np.split(x[at], math.prod(mesh))[i] for i, at in enumerate(x)}
    perform(mesh, "mesh_partition", [x], {"dim": 0}, want)


def test_a_partition_varies() -> None:
    mesh = names((2, 4))

    def f(x: Any) -> Any:
        result = jax.ShapeDtypeStruct((8, 2), np.float32)
        (y,) = evaluate(OPS["mesh_partition"], [x], {"dim": 1, "cluster_axis": 1}, [result], mesh)
        assert own(x) == set()
        assert own(y) == {"x"}
        return jm.shard_to_full(y, P(None, "x"))

    x = np.arange(64, dtype=np.float32).reshape(8, 8)
    np.testing.assert_array_equal(jm.jit(f, mesh=jm.make_mesh((2, 4), ("y", "x")))(x), x)


# --- between devices -------------------------------------------------------------------------------------------------


def permuted(x: Devices, pairs: Sequence[tuple[int, int]]) -> Devices:
    order = list(x)
    want = {at: np.zeros_like(y) for at, y in x.items()}
    for source, target in pairs:
        want[order[target]] = x[order[source]]
    return want


@st.composite
def a_permutation(draw: Any) -> tuple[tuple[int, ...], list[tuple[int, int]]]:
    mesh = draw(st.sampled_from(MESHES))
    count = math.prod(mesh)
    size = draw(st.integers(0, count))
    sources, targets = (draw(st.permutations(range(count)))[:size] for _ in range(2))
    return mesh, list(zip(sources, targets, strict=True))


@given(a_permutation(), st.sampled_from([np.float32, jnp.int4, np.bool_]))
@settings(max_examples=10)
def test_collective_permute(case: tuple[tuple[int, ...], list[tuple[int, int]]], dtype: Any) -> None:
    mesh, pairs = case
    x = values(mesh, (2, 3), dtype)
    table = np.array(pairs, np.int64).reshape(-1, 2)
    perform(mesh, "collective_permute", [x], {"source_target_pairs": table}, permuted(x, pairs))


def test_regressions_of_permutes() -> None:
    """R6: no source, zeros. R7: an exchange of the rows of a 2x4 mesh, in two orders."""
    x = {(0,): np.arange(4.0, dtype=np.float32), (1,): np.ones(4, np.float32)}
    perform((2,), "collective_permute", [x], {"source_target_pairs": ((0, 1),)}, {(0,): 0 * x[0,], (1,): x[0,]})
    pairs = [(0, 4), (4, 0), (1, 5), (5, 1), (2, 6), (6, 2), (3, 7), (7, 3)]
    x = values((2, 4), (3,))
    for order in (pairs, pairs[::-1]):
        perform((2, 4), "collective_permute", [x], {"source_target_pairs": order}, permuted(x, order))


@st.composite
def grouped(draw: Any, cover: bool) -> tuple[tuple[int, ...], list[list[int]]]:
    """Groups of equal size: rows of one axis, or any devices in any order."""
    mesh = draw(st.sampled_from(MESHES))
    count = math.prod(mesh)
    if draw(st.booleans()):
        axis = draw(st.integers(0, len(mesh) - 1))
        rows = np.moveaxis(np.arange(count).reshape(mesh), axis, -1).reshape(-1, mesh[axis]).tolist()
        return mesh, draw(st.permutations(rows))
    size = draw(st.sampled_from([n for n in (1, 2, 4, 8) if count % n == 0]))
    ids = draw(st.permutations(range(count)))
    rows = [ids[i : i + size] for i in range(0, count, size)]
    return mesh, rows if cover else rows[: draw(st.integers(1, len(rows)))]


@given(grouped(cover=False))
@settings(max_examples=10)
def test_collective_broadcast(case: tuple[tuple[int, ...], list[list[int]]]) -> None:
    mesh, rows = case
    x = values(mesh, (2, 3))
    order = list(x)
    want = {at: np.zeros_like(y) for at, y in x.items()}
    for r in rows:
        for device in r:
            want[order[device]] = x[order[r[0]]]
    perform(mesh, "collective_broadcast", [x], {"replica_groups": np.array(rows)}, want, equal=None)


@given(
    grouped(cover=True), st.sampled_from([(0, 1), (1, 0), (1, 1), (-1, -2)]), st.sampled_from([np.float32, jnp.uint2])
)
@settings(max_examples=12)
def test_all_to_all(case: tuple[tuple[int, ...], list[list[int]]], dims: tuple[int, int], dtype: Any) -> None:
    (mesh, rows), (split, concat) = case, dims
    x = {at: np.abs(y).astype(dtype) for at, y in values(mesh, (8, 16), np.int32).items()}
    order = list(x)
    want: Devices = {}
    for r in rows:
        for place, device in enumerate(r):
            pieces = [np.split(x[order[d]], len(r), split)[place] for d in r]
            want[order[device]] = np.concatenate(pieces, concat)
    attributes = {"split_dim": split, "concat_dim": concat, "split_count": len(rows[0]), "replica_groups": rows}
    perform(mesh, "all_to_all", [x], attributes, want, equal=None)


def test_tables_of_one_number() -> None:
    """MLIR writes a table whose entries are equal as one number."""
    x = {(0,): np.arange(3, dtype=np.float32)}
    splat = {"replica_groups": np.array(0)}
    perform((1,), "collective_broadcast", [x], splat, x, equal=None)
    same = {"split_dim": 0, "concat_dim": 0, "split_count": 1}
    perform((1,), "all_to_all", [x], splat | same, x, equal=None)
    both = values((2,), (3,))
    want = permuted(both, [(1, 1)])
    perform((2,), "collective_permute", [both], {"source_target_pairs": np.array(1)}, want)


@pytest.mark.parametrize("row", ["all_gather", "all_reduce", "reduce_scatter", "all_to_all", "collective_permute",
                                 "collective_broadcast"])  # fmt: skip
def test_tensors_without_elements(row: str) -> None:
    attributes = {
        "all_gather": {"all_gather_dim": 0, "cluster_axis": 1},
        "all_reduce": {"reduce_type": "sum", "cluster_axis": 1},
        "reduce_scatter": {"reduce_type": "sum", "scatter_dim": 0, "cluster_axis": 1},
        "all_to_all": {"split_dim": 0, "concat_dim": 0, "split_count": 4,
                       "replica_groups": [[0, 1, 2, 3], [4, 5, 6, 7]]},
        "collective_permute": {"source_target_pairs": [(0, 1)]},
        "collective_broadcast": {"replica_groups": [[0, 1]]},
    }[row]  # fmt: skip
    x = values((2, 4), (8, 0))
    rows = {"all_gather": 32, "reduce_scatter": 2}.get(row, 8)
    perform((2, 4), row, [x], attributes, {at: np.zeros((rows, 0), np.float32) for at in x}, equal=None)


# --- mesh_shard, norms -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mesh", [(2, 4), (1, 2)])
def test_mesh_shard(mesh: tuple[int, int]) -> None:
    x = np.arange(64, dtype=np.float32).reshape(8, 8)
    axes = names(mesh)
    shape = list(mesh)

    def attributes(kind: str, way: str) -> dict[str, Any]:
        cut = kind == "devices"
        dims = [-1 if n == 1 else d for d, n in enumerate(mesh)] if cut else [-1]
        return {"shard_type": kind, "shard_direction": way, "shard_shape": shape if cut else [1], "shard_dims": dims}

    def f(x: Any) -> Any:
        local = jax.ShapeDtypeStruct((8 // mesh[0], 8 // mesh[1]), np.float32)
        same = jax.ShapeDtypeStruct((8, 8), np.float32)
        row = OPS["mesh_shard"]
        (x,) = evaluate(row, [x], attributes("replicate", "full_to_shard"), [same], axes)
        (x,) = evaluate(row, [x], attributes("identity", "full_to_shard"), [same], axes)
        (y,) = evaluate(row, [x], attributes("devices", "full_to_shard"), [local], axes)
        assert own(y) == {a for a, n in axes.items() if n > 1}
        (z,) = evaluate(row, [y], attributes("devices", "shard_to_full"), [same], axes)
        return z, jm.shard_to_full(y * (1 + jax.lax.axis_index("x")), P("y", "x"))

    z, scaled = jm.jit(f, mesh=jm.make_mesh(mesh, tuple(axes)))(x)
    np.testing.assert_array_equal(z, x)
    np.testing.assert_array_equal(scaled, x * np.repeat(1 + np.arange(mesh[1]), 8 // mesh[1]))


@pytest.mark.parametrize("dtype", [np.float32, jnp.bfloat16])
@pytest.mark.parametrize(("mesh", "axis"), [((2,), 0), ((2, 4), 1), ((2, 4), 0), ((1, 2), 0)])
@pytest.mark.parametrize("row", ["distributed_layer_norm", "distributed_rms_norm"])
def test_distributed_norms(mesh: tuple[int, ...], axis: int, dtype: Any, row: str) -> None:
    """A norm over a last dim whose pieces stand along an axis is the norm of the whole."""
    parts = (
        ("input", "weight", "bias", "residual") if row == "distributed_layer_norm" else ("input", "weight", "residual")
    )
    shapes = {"input": (3, 4), "weight": (4,), "bias": (1, 4), "residual": (3, 4)}
    optional = [dict(zip(parts[1:], keep, strict=True)) for keep in itertools.product([1, 0], repeat=len(parts) - 1)]
    chosen = optional[::3] if (mesh, dtype) == ((2,), np.float32) else [optional[0], optional[-2]]
    for i, keep in enumerate(chosen):
        present = ["input", *[p for p in parts[1:] if keep[p]]]
        data = {p: values(mesh, shapes[p], dtype, seed=i) for p in present}
        want = {}
        for at in devices(mesh):
            whole = {p: np.concatenate([data[p][n].astype(float) for n in along(mesh, axis, at)], -1) for p in present}
            x = whole["input"] + whole.get("residual", 0)
            if row == "distributed_layer_norm":
                x = x - x.mean(-1, keepdims=True)
            x = x / np.sqrt((x * x).mean(-1, keepdims=True) + 0.5)
            x = x * whole.get("weight", 1) + whole.get("bias", 0)
            want[at] = np.split(x, mesh[axis], -1)[at[axis]].astype(dtype)
        attributes = {"cluster_axis": axis, "epsilon": 0.5, "operandSegmentSizes": [1, *keep.values()]}
        bound = 2e-5 if dtype is np.float32 else 3e-2
        perform(mesh, row, list(data.values()), attributes, want, rtol=bound, atol=bound)
