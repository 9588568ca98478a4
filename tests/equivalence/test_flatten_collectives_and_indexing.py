"""Rules of collectives, indexing, orders and random numbers: the flat program gives what the jit-compiled one gives."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import PartitionSpec as P

import jaxmesh as jm
from jaxmesh.errors import InexpressibleError, MissingRuleError
from jaxmesh.passes.flatten.builder import Builder
from jaxmesh.passes.flatten.flatten import _RULES as RULES
from jaxmesh.passes.flatten.mesh_partition import recognise_mesh_partitions
from tests.generators.flat_programs import flat_of, run_flat

pytestmark = pytest.mark.slow(but_one_in=48)

ONE = (1,)
R: Any = jax.random
_lax: Any = lax


def names(mesh: Sequence[int]) -> tuple[str, ...]:
    return tuple("wzyx"[-len(mesh) :])


def held(x: Any) -> Any:
    """A full array, or what every device holds."""
    return np.stack([np.asarray(s) for _, s in x.shards()]) if isinstance(x, jm.MeshTensor) else np.asarray(x)


def same(got: Any, want: Any, tolerance: float) -> None:
    got, want = held(got), held(want)
    assert (got.shape, got.dtype) == (want.shape, want.dtype)
    if got.dtype.kind == "V":
        got, want = got.astype(np.float32), want.astype(np.float32)
    if tolerance:
        np.testing.assert_allclose(got, want, rtol=tolerance, atol=tolerance)
    else:
        np.testing.assert_array_equal(got, want)


def check(
    f: Callable[..., Any], *args: Any, mesh: Sequence[int] = ONE, tolerance: float = 0.0, levels: str = ""
) -> list[str]:
    """Runs a program compiled, and as flat programs; the names of the flat TTIR program's ops.

    By default at both levels if it is sharded; else they are the same.
    """
    levels = levels or ("ttir" if mesh == ONE else "ttir ttnn")
    sizes = jm.make_mesh(tuple(mesh), names(mesh))
    program = jm.jit(f, mesh=sizes)
    want = jax.tree.leaves(program(*args), is_leaf=lambda x: isinstance(x, jm.MeshTensor))
    traced = program.trace(*args)
    flat = {"ttir": flat_of(traced, "ttir")}
    if "ttnn" in levels:
        flat["ttnn"] = flat_of(traced.lower(), "ttnn")
    for made in flat.values():
        for got, expected in zip(run_flat(made, sizes, *jax.tree.leaves(args)), want, strict=True):
            same(got, expected, tolerance)
    return [op.name.removeprefix("ttir.") for op in flat["ttir"].ops]


# --- collectives -----------------------------------------------------------------------------------------------------


def everywhere(y: Any, axes: tuple[str, ...]) -> Any:
    """What every device holds, one mesh axis per leading dim."""
    missing = tuple(a for a in axes if a not in jax.typeof(y).manual_axis_type.varying)
    y = _lax.pcast(y, missing, to="varying") if missing else y
    return jm.shard_to_full(y.reshape((1,) * len(axes) + y.shape), P(*axes))


COLLECTIVES: dict[str, Callable[[Any, Any], Any]] = {
    "psum": lax.psum,
    "pmax": lax.pmax,
    "pmin": lambda s, a: lax.pmin(s.astype(jnp.int32), a),
    "pmean": lax.pmean,
    "all_gather": lambda s, a: lax.all_gather(s, a, axis=1),
    "all_gather tiled": lambda s, a: lax.all_gather(s, a, axis=1, tiled=True),
    "all_gather invarying": lambda s, a: _lax.all_gather(s, a, tiled=True, to="invarying"),
    "psum_scatter": lambda s, a: lax.psum_scatter(s[: lax.axis_size(a)], a, scatter_dimension=0),
    "psum_scatter tiled": lambda s, a: lax.psum_scatter(s, a, scatter_dimension=0, tiled=True),
    "all_to_all": lambda s, a: lax.all_to_all(s[: lax.axis_size(a)], a, 0, 1),
    "all_to_all tiled": lambda s, a: lax.all_to_all(s, a, 0, 1, tiled=True),
    "ppermute": lambda s, a: lax.ppermute(s, a, [(i, (i + 1) % lax.axis_size(a)) for i in range(lax.axis_size(a))]),
    "ppermute of one": lambda s, a: lax.ppermute(s, a, [(0, lax.axis_size(a) - 1)]),
    "ppermute of none": lambda s, a: lax.ppermute(s, a, []),
    "axis_index": lambda s, a: s + lax.axis_index(a).astype(s.dtype) * lax.axis_size(a),
    "pvary": lambda s, a: s + lax.psum(_lax.pcast(jnp.float32(3), a, to="varying"), a),
}
MESHES = [(4,), (1,), (2, 4), (2, 1, 3), (2, 2, 2, 2)]
IN_ORDER = ("ppermute", "ppermute of one", "ppermute of none")
"""Of these newer JAX takes several axes in the order of the mesh only; older numbers them in that order anyway."""


def subsets(mesh: Sequence[int], kind: str) -> list[Any]:
    """Every set of axes, in mesh order and backwards; one axis by its name alone."""
    rows: list[Any] = []
    for count in range(1, len(mesh) + 1):
        for row in itertools.combinations(names(mesh), count):
            if count == 1 or kind in IN_ORDER:
                rows.append(row[0] if count == 1 else row)
            else:
                rows += [row, row[::-1]] if len(mesh) < 4 else [row[::-1]]
    return rows


@pytest.mark.parametrize("kind", COLLECTIVES)
def test_every_collective_over_every_set_of_axes(kind: str) -> None:
    for mesh in MESHES if kind != "psum_scatter" else MESHES[:4]:
        axes = names(mesh)
        rows = 12 if 3 in mesh else 16

        def f(x: Any, axes: tuple[str, ...] = axes, mesh: Sequence[int] = mesh) -> list[Any]:
            local = jm.full_to_shard(x, P(*axes)).reshape(x.shape[len(mesh) :])
            return [COLLECTIVES[kind](local, row) for row in subsets(mesh, kind)]

        x = np.random.default_rng(0).integers(-8, 8, (*mesh, rows, 2)).astype(np.float32)
        check(f, x, mesh=mesh, levels="ttir ttnn" if len(mesh) == 2 else "ttir")


def test_one_op_per_axis_and_its_place() -> None:
    def f(x: Any) -> Any:
        return jm.shard_to_full(lax.psum(jm.full_to_shard(x, P("y", "x")), ("x", "y")), P())

    mesh = jm.make_mesh((2, 4), ("y", "x"))
    flat = flat_of(jm.jit(f, mesh=mesh).trace(jnp.zeros((4, 8))), "ttir")
    assert [(o.name, o.attributes.get("cluster_axis")) for o in flat.ops] == [
        ("ttir.mesh_shard", None), ("ttir.all_reduce", 1), ("ttir.all_reduce", 0), ("ttir.mesh_shard", None),
    ]  # fmt: skip
    assert flat.ops[0].attributes == {
        "shard_type": "devices", "shard_direction": "full_to_shard", "shard_shape": (2, 4), "shard_dims": (0, 1),
    }  # fmt: skip
    assert flat.ops[-1].attributes["shard_direction"] == "shard_to_full"


def test_moves_vary_only_over_the_axes_they_move_along() -> None:
    """What a row gives must still be full over the other axes, or the way back does not type."""

    def f(x: Any) -> Any:
        s = jm.full_to_shard(x, P("x"))
        ring = lax.ppermute(s, "x", [(i, (i + 1) % 4) for i in range(4)])
        return [jm.shard_to_full(v, P("x")) for v in (ring, lax.all_to_all(s, "x", 0, 0, tiled=True))]

    x = np.arange(32, dtype=np.float32).reshape(16, 2)
    assert check(f, x, mesh=(2, 4)).count("collective_permute") == 1

    def g(x: Any) -> Any:
        s = jm.full_to_shard(x, P(("z", "x")))
        return jm.shard_to_full(lax.all_to_all(s, ("x", "z"), 0, 0, tiled=True), P(("z", "x")))

    check(g, np.arange(32, dtype=np.float32).reshape(16, 2), mesh=(2, 2, 2))


def test_permutes_count_places_in_mesh_order() -> None:
    def pairs(axes: tuple[str, ...]) -> list[list[int]]:
        def f(x: Any) -> Any:
            return lax.ppermute(jm.full_to_shard(x, P("y", "x")), axes, [(0, 3), (2, 5)])

        mesh = jm.make_mesh((2, 4), ("y", "x"))
        flat = flat_of(jm.jit(f, mesh=mesh).trace(jnp.zeros((4, 8))), "ttir")
        (op,) = [o for o in flat.ops if o.name == "ttir.collective_permute"]
        return op.attributes["source_target_pairs"].tolist()

    assert pairs(("y", "x")) == pairs(("x", "y")) == [[0, 3], [2, 5]]


def test_groups_and_dims_are_named_errors() -> None:
    mesh = jm.make_mesh((2,), ("x",))
    traced = jm.jit(lambda x: lax.psum(jm.full_to_shard(x, P("x")), "x"), mesh=mesh).trace(jnp.zeros(4))
    (eqn,) = [e for e in traced.jaxpr.eqns if e.primitive.name.startswith("psum")]
    flat = flat_of(traced, "ttir")
    builder = Builder(flat, "ttir", RULES)
    for params, words in (
        (
            {"axes": ("x",), "axis_index_groups": [[0], [1]]},
            r"axis_index_groups = \[\[0\], \[1\]\].*an axis of their own",
        ),
        ({"axes": (0,)}, "0 is no mesh axis name"),
    ):
        with pytest.raises(MissingRuleError, match=words):
            builder.eqn(eqn.replace(params=params), [0])


SPECS = [
    P(), P("y"), P("x"), P("y", "x"), P("x", "y"), P(None, "x"), P(("y", "x")), P(("x", "y")), P(None, ("x", "y")),
]  # fmt: skip


@pytest.mark.slow
def test_every_distribution() -> None:
    """Round trips of every spec on 2-D meshes and of adjacent, split and reversed axes on 3-D ones."""
    x = np.arange(24 * 24, dtype=np.float32).reshape(24, 24)

    def f(x: Any, specs: Sequence[P]) -> Any:
        shards = [jm.full_to_shard(x, s) for s in specs]
        return [jm.shard_to_full(s * 2, spec) for s, spec in zip(shards, specs, strict=True)]

    for mesh in ((2, 4), (1, 3), (3, 1)):
        check(lambda x: f(x, SPECS), x, mesh=mesh)
    more = [P(("z", "x"), "y"), P(("x", "z")), P("y", ("z", "x")), P(("z", "y", "x")), P(None, ("y", "z"))]
    check(lambda x: f(x, more), x, mesh=(2, 2, 2))


@pytest.mark.usefixtures("unequal_copies")
def test_assumptions_are_written() -> None:
    def f(x: Any) -> Any:
        return jm.shard_to_full(jm.full_to_shard(x, P("y", "x")), P("y"), assume_replicated=True)

    mesh = jm.make_mesh((2, 4), ("y", "x"))
    flat = flat_of(jm.jit(f, mesh=mesh).trace(jnp.zeros((4, 8))), "ttir")
    assert [o.attributes.get("assume_replicated") for o in flat.ops] == [None, True]
    check(f, np.arange(32, dtype=np.float32).reshape(4, 8), mesh=(2, 4))


def test_gradients_through_collectives() -> None:
    def loss(w: Any, x: Any) -> Any:
        w, x = jm.full_to_shard(w, P("x")), jm.full_to_shard(x, P("y", "x"))
        whole = lax.all_gather(w, "x", axis=0, tiled=True)
        y = lax.psum(x @ w, "x") + lax.psum_scatter(x.T @ x, "x", scatter_dimension=0, tiled=True).sum()
        return jm.shard_to_full(lax.psum(lax.pmean((y * y).sum() + whole.sum(), "x"), "y"), P())

    rng = np.random.default_rng(0)
    w, x = (jnp.asarray(rng.integers(-2, 3, s), jnp.float32) for s in ((8, 3), (4, 8)))
    check(jax.value_and_grad(loss, argnums=(0, 1)), w, x, mesh=(2, 2), tolerance=1e-5)


# --- mesh_partition --------------------------------------------------------------------------------------------------


def cut(x: Any, axes: Any, size: int, dim: int) -> Any:
    """A device's own piece of a value that all devices hold."""
    whole = lax.psum(jm.full_to_shard(x, P("y")), "y")
    return lax.dynamic_slice_in_dim(whole, lax.axis_index(axes) * size, size, dim)


def own_columns(x: Any, start: Callable[[Any], Any]) -> Any:
    return lax.dynamic_slice_in_dim(jm.full_to_shard(x, P()), start(lax.axis_index("x")), 2, 1)


PIECES: list[tuple[Callable[[Any], Any], list[tuple[int, int]]]] = [
    (lambda x: jm.shard_to_full(cut(x, "x", 2, 0), P("x")), [(0, 1)]),
    (lambda x: jm.shard_to_full(cut(x, "y", 4, 1), P(None, "y")), [(1, 0)]),
    (lambda x: jm.shard_to_full(cut(x, ("x", "y"), 1, 1), P(None, ("x", "y"))), [(1, 1), (1, 0)]),
    (lambda x: jm.shard_to_full(cut(x, ("y", "x"), 1, 1), P(None, ("y", "x"))), [(1, 0), (1, 1)]),
    # Not all of the dim, overlapping, beside it, or another axis than the name says: no partition.
    (lambda x: jm.shard_to_full(cut(x, "x", 1, 0), P("x")), []),
    (lambda x: jm.shard_to_full(cut(x, "y", 2, 1), P(None, "y")), []),
    (lambda x: everywhere(own_columns(x, lambda i: i * 2 + 1), ("y", "x")), []),
    (lambda x: everywhere(own_columns(x, lambda i: 3 - i), ("y", "x")), []),
]


@pytest.mark.parametrize("case", range(len(PIECES)))
def test_own_pieces_are_partitions(case: int) -> None:
    f, wanted = PIECES[case]
    mesh = jm.make_mesh((2, 4), ("y", "x"))
    x = np.arange(16 * 8, dtype=np.float32).reshape(16, 8)
    program = jm.jit(f, mesh=mesh)
    traced = program.trace(x)
    for stage, level in ((traced, "ttir"), (traced.lower(), "ttnn")):
        flat = recognise_mesh_partitions(flat_of(stage, level))
        made = [o.attributes for o in flat.ops if o.name == "ttir.mesh_partition"]
        assert [(m["dim"], m["cluster_axis"]) for m in made] == wanted
        assert any(o.name == "ttir.slice_dynamic" for o in flat.ops) == (not wanted)
        same(run_flat(flat, mesh, x)[0], program(x), 0)


# --- indexing --------------------------------------------------------------------------------------------------------

rng = np.random.default_rng(0)
X = rng.normal(size=(5, 6)).astype(np.float32)
T = rng.normal(size=(3, 5, 4)).astype(np.float32)
Z = rng.integers(-9, 9, (5, 6)).astype(np.int32)
IDS = np.array([1, 4, -2], np.int32)
FAR = np.array([[7, -9], [0, 3]], np.int32)
KV = rng.normal(size=(2, 3, 8, 4)).astype(np.float32)
ONE_NEW = rng.normal(size=(2, 3, 1, 4)).astype(np.float32)
FOUR_NEW = rng.normal(size=(1, 3, 4, 4)).astype(np.float32)

INDEXING: dict[str, tuple[Any, ...]] = {
    "rows": (lambda x, i: x[i], X, IDS),
    "columns": (lambda x, i: x[:, i], X, IDS),
    "integers": (lambda x, i: x[:, i], Z, IDS),
    "fill": (lambda x, i: jnp.take(x, i, axis=1), X, FAR),
    "clip": (lambda x, i: jnp.take(x, i, axis=1, mode="clip"), X, FAR),
    "wrap": (lambda x, i: jnp.take(x, i, axis=0, mode="wrap"), X, FAR),
    "fill integers": (lambda x, i: jnp.take(x, i, axis=0), Z, FAR),
    "fill unsigned": (lambda x, i: jnp.take(x, i, axis=0), Z.astype(np.uint8), FAR),
    "fill truth": (lambda x, i: jnp.take(x, i, axis=0), Z > 0, FAR),
    "fill value": (lambda x, i: x.at[i].get(mode="fill", fill_value=3.0), X, FAR),
    "fill bfloat16": (lambda x, i: jnp.take(x, i, axis=0), jnp.asarray(X, jnp.bfloat16), FAR),
    "uint8 index": (lambda x, i: jnp.take(x, i, axis=0), X, np.array([3, 200], np.uint8)),
    "uint32 clip": (lambda x, i: jnp.take(x, i, axis=0, mode="clip"), X, np.array([3, 2**32 - 1], np.uint32)),
    "uint32 fill": (lambda x, i: jnp.take(x, i, axis=0, mode="fill"), X, np.array([3, 2**32 - 1], np.uint32)),
    "elements": (lambda x, i: x[i, i], X, IDS),
    "apart": (lambda x, i: x[i % 3, :, i % 4], T, IDS),
    "beside a slice": (lambda x, i: x[:, i, 1:3], T, IDS),
    "new dims": (lambda x, i: x[None, i % 3, ..., None], T, IDS),
    "along": (lambda x, i: jnp.take_along_axis(x, i, 1), X, rng.integers(0, 6, (5, 3))),
    "along far": (lambda x, i: jnp.take_along_axis(x, i, 0), X, rng.integers(-5, 9, (3, 6))),
    "vmapped": (lambda x, i: jax.vmap(lambda a, b: a[b])(x, i), X, rng.integers(0, 6, (5, 2))),
    "vmapped slice": (
        lambda x, i: jax.vmap(lambda a, b: lax.dynamic_slice(a, (b,), (2,)))(x, i), X, rng.integers(-3, 9, (5,)),
    ),
    "one row": (lambda x, j: x[j], X, 3),
    "one element": (lambda x, j: x[j, j + 1], X, 3),
    "of a vector": (lambda x, j: x[j], X[0], 3),
    "none": (lambda x, i: x[i[:0]], X, IDS),
    "known rows": (lambda x: (x[np.array([0, 1, 3])], x[:, np.array([5, 5, -1, 2])], x[np.array([7, 0])]), X),
    "known elements": (lambda x: x[np.array([0, 1]), np.array([2, 3])], X),
    "slice": (lambda x, j: [lax.dynamic_slice(x, (j + k, j - k), (2, 3)) for k in (0, 7, -20)], X, 2),
    "slice uint32": (lambda x, j: lax.dynamic_slice(x, (j, j), (2, 3)), X, np.uint32(2**32 - 1)),
    "slice at known": (lambda x: (lax.dynamic_slice_in_dim(x, 3, 2, 1), lax.dynamic_slice(x, (9, -1), (2, 3))), X),
    "update": (
        lambda x, j: [lax.dynamic_update_slice(x, x[:2, :3] * 2, (j + k, j - k)) for k in (0, 7, -11, -20)], X, 2,
    ),
    "update at known": (lambda x: lax.dynamic_update_slice(x, x[:2, :3], (1, 9)), X),
    "update half known": (lambda x, j: lax.dynamic_update_slice(x, x[:2, :3], (1, j)), X, 2),
    "update a row": (lambda x, j: lax.dynamic_update_slice(x, x[:1], (j, 0)), Z, 2),
    "cache fill": (lambda c, n: lax.dynamic_update_slice(c, n, (1, 0, 0, 0)), KV, FOUR_NEW),
    "cache middle": (lambda c, n, p: lax.dynamic_update_slice(c, n, (1, 0, p, 0)), KV, FOUR_NEW, 3),
    "cache vmapped": (
        lambda c, n, p: jax.vmap(lambda c, n, p: lax.dynamic_update_slice(c, n, (0, p, 0)))(c, n, p),
        KV, ONE_NEW, np.array([1, 7]),
    ),
    "set": (lambda x, i: x.at[i].set(1.5), X, IDS),
    "set rows": (lambda x, i: x.at[i].set(x[:3] * 2), X, IDS),
    "set far": (lambda x, i: x.at[i].set(9.0), X, FAR),
    "set clip": (lambda x, i: x.at[i].set(9.0, mode="clip"), X, FAR),
    "set promised": (lambda x, i: x.at[i].set(9.0, mode="promise_in_bounds"), X, IDS % 5),
    "add far": (lambda x, i: x.at[i].add(9.0), X, FAR),
    "multiply": (lambda x, i: x.at[:, i].multiply(x[:, :3]), X, IDS),
    "min": (lambda x, i: x.at[i].min(0.0), X, IDS),
    "max": (lambda x, i: x.at[i, i].max(0.0), X, IDS),
    "subtract": (lambda x, i: x.at[i].subtract(2.0), X, IDS),
    "set one": (lambda x, j: (x.at[j].set(1.0), x.at[j + 30].set(1.0), x.at[:, -1 - j].add(x[:, 0])), X, 3),
    "set element": (lambda x, j: x.at[j, j + 1].set(1.0), X, 2),
    "set slice": (lambda x: (x.at[1:3].set(1.0), x.at[1:3, 2:].add(1.0), x.at[::2].set(1.0)), X),
    "set known": (lambda x: (x.at[np.array([1, 3])].set(1.0), x.at[np.array([1, 1, 3])].add(1.0)), X),
    "set grid": (lambda x, i: x.at[i[:, None], i[None]].set(2.0), X, IDS),
    "set truth": (lambda x, i: x.at[i].set(True), Z > 0, IDS),
    "vmapped add": (lambda x, i: jax.vmap(lambda a, b: a.at[b].add(1.0))(x, i), X, rng.integers(0, 6, (5, 2))),
    "vmapped set": (lambda x, i: jax.vmap(lambda a, b: a.at[b].set(1.0))(x, i), T, rng.integers(-9, 9, (3, 2))),
    "gradient of rows": (jax.grad(lambda x, i: (x[i] ** 2).sum()), X, IDS),
    "gradient along": (jax.grad(lambda x, i: (jnp.take_along_axis(x, i, 1) * 3).sum()), X, rng.integers(0, 6, (5, 3))),
    "gradient of a slice": (jax.grad(lambda x, j: (lax.dynamic_slice(x, (j, j), (2, 3)) * 3).sum()), X, 1),
    "roll": (lambda x, j: (jnp.roll(x, 2, 1), jnp.roll(x, j, 0)), X, 3),
    "one hot": (lambda i: jax.nn.one_hot(i, 7), IDS),
}  # fmt: skip


@pytest.mark.parametrize("case", INDEXING)
def test_indexing(case: str) -> None:
    f, *args = INDEXING[case]
    check(f, *args)


def an_index(rng: Any, shape: Sequence[int]) -> tuple[Any, ...]:
    """A random mixture of slices, numbers, arrays that broadcast, new dims and an ellipsis."""
    batch = tuple(rng.integers(1, 4, rng.integers(0, 3)))
    entries: list[Any] = []
    for size in shape:
        match rng.integers(0, 4):
            case 0:
                entries.append(slice(None))
            case 1:
                first, last = np.sort(rng.integers(0, size + 1, 2))
                entries.append(slice(int(first), int(last) + 1, int(rng.integers(1, 3))))
            case 2:
                entries.append(rng.integers(-size - 1, size + 1, tuple(n if rng.random() < 0.7 else 1 for n in batch)))
            case _:
                entries.append(int(rng.integers(-size, size)))
    if rng.random() < 0.3:
        entries.insert(rng.integers(0, len(entries) + 1), None)
    return tuple(entries)


@pytest.mark.parametrize("seed", range(5))
def test_random_indexing(seed: int) -> None:
    """Five times six index expressions, each read, set and added to; arrays computed, so that nothing is known."""
    rng = np.random.default_rng(seed)
    x = rng.integers(-9, 9, tuple(rng.integers(2, 5, rng.integers(1, 4)))).astype(np.float32)
    entries = [an_index(rng, x.shape) for _ in range(6)]

    def f(x: Any, zero: Any) -> Any:
        outs: list[Any] = []
        for row in entries:
            at = tuple(e + zero if isinstance(e, np.ndarray) else e for e in row)
            got = x[at]
            outs += [got, x.at[at].set(2.0), x.at[at].add(got * 2), x.at[at].get(mode="fill")]
        return outs

    check(f, x, np.int32(0))


def test_rows_of_a_matrix_are_an_embedding() -> None:
    ids = np.array([[0, 4], [2, 2]], np.int32)
    assert check(lambda w, i: jnp.take(w, i, axis=0, mode="clip"), X, ids) == ["embedding"]
    assert "embedding" in check(lambda w, i: w[i], X, ids)


@pytest.mark.parametrize("at", [5, 0, 50, -50])
def test_a_cache_is_updated_by_its_own_op(at: int) -> None:
    def f(cache: Any, new: Any, at: Any) -> Any:
        return lax.dynamic_update_slice(cache, new, (0, 0, at, 0))

    assert check(f, KV, ONE_NEW, at)[-1] == "update_cache"
    assert check(INDEXING["cache fill"][0], KV, FOUR_NEW) == ["fill_cache"]


@pytest.mark.parametrize("seed", range(6))
def test_a_cache_is_written_at_a_computed_position_as_the_real_ttnn_can(seed: int) -> None:
    def f(cache: Any, new: Any, at: Any) -> Any:
        return lax.dynamic_update_slice(cache, new, (batch, 0, at, 0))

    draw = np.random.default_rng(seed)
    batch, heads, length, width, at = (int(draw.integers(*r)) for r in ((0, 3), (1, 4), (2, 40), (1, 9), (-50, 50)))
    cache, new = (draw.normal(size=s).astype(np.float32) for s in ((3, heads, length, width), (1, heads, 1, width)))
    expected = cache.copy()
    expected[batch, :, np.clip(at + length * (at < 0), 0, length - 1)] = new[0, :, 0]
    traced = jm.jit(f, mesh=jm.make_mesh((2, 4)), in_shardings=P()).trace(cache, new, at)
    assert "ttir.update_cache" in traced.as_text()
    for text in (traced.as_text(), traced.lower().as_text(strict=True)):
        assert "ttnn.update_cache" not in text
        (found,) = jax.tree.leaves(jm.from_mlir(text, traced.mesh).lower().compile()(cache, new, np.int32(at)))
        np.testing.assert_array_equal(found, expected)


def test_in_place_functions_are_a_named_error() -> None:
    with pytest.raises(MissingRuleError, match=r"scatter.*applies a function in place"):
        check(lambda x, i: x.at[i].apply(jnp.exp), X, IDS)


# --- orders ----------------------------------------------------------------------------------------------------------

ODD = X.copy()
ODD[0, 2] = ODD[1, 0] = ODD[1, 1] = np.nan
ODD[2, 1], ODD[3, 3] = -np.inf, np.inf
ODD[4] = 0.0
ARRAYS = {
    "float32": X, "odd": ODD, "bfloat16": jnp.asarray(ODD, jnp.bfloat16), "int32": Z, "uint8": Z.astype(np.uint8),
    "bool": Z > 0, "ends": np.array([[5, -(2**31), 7], [2**31 - 1, 0, -(2**31)]], np.int32),
}  # fmt: skip


@pytest.mark.parametrize("kind", ARRAYS)
def test_orders(kind: str) -> None:
    def f(x: Any) -> Any:
        outs: list[Any] = []
        for dim in (0, 1):
            outs += [jnp.sort(x, dim), jnp.argsort(x, dim), jnp.argmax(x, dim), jnp.argmin(x, dim)]
            outs += [jnp.argsort(x, dim, descending=True)]
        outs += [*lax.top_k(x, 2), *lax.top_k(x.T, 1), jnp.argmax(x), jnp.argmin(x)]
        outs += [jnp.lexsort((x, x[::-1], x > x[0])), *lax.sort((x > x[0], x, x[::-1], Z[: x.shape[0], : x.shape[1]]),
                 num_keys=2, dimension=0)]  # fmt: skip
        return outs

    check(f, ARRAYS[kind])


def test_top_k_tells_zeros_apart() -> None:
    """0 is above -0, and a NaN with its sign below all, also in a text that is read."""
    rows = [[-0.0, 0.0, 1.0, np.nan], [0.0, -0.0, -1.0, -0.0], [-np.nan, 2.0, 0.0, -0.0], [-0.0, -0.0, 0.0, 0.0]]
    x = np.array(rows, np.float32)
    program = jm.jit(lambda x: lax.top_k(x, 4), mesh=jm.make_mesh(ONE, names(ONE)))
    order = [[3, 2, 1, 0], [0, 1, 3, 2], [1, 2, 3, 0], [2, 3, 0, 1]]
    for run in (program, jm.from_mlir(program.trace(x).as_text()).lower().compile()):
        values, found = map(np.asarray, run(x))
        assert found.tolist() == order
        assert values.tobytes() == np.take_along_axis(x, found, 1).tobytes()


@pytest.mark.parametrize("kind", ["float32", "odd", "bfloat16", "int32", "uint8"])
def test_running_reductions(kind: str) -> None:
    x = ARRAYS[kind]

    def exact(x: Any) -> Any:
        return [
            fun(x, dim, reverse=reverse)
            for fun in (lax.cummax, lax.cummin) for dim in (0, 1) for reverse in (False, True)
        ]  # fmt: skip

    def rounded(x: Any) -> Any:
        funs = [lax.cumsum, lax.cumprod, *([lax.cumlogsumexp] if x.dtype == np.float32 else [])]
        return [fun(x, 1, reverse=reverse) for fun in funs for reverse in (False, True)]

    check(exact, x)
    check(rounded, x, tolerance=3e-2 if kind == "bfloat16" else 1e-5 if kind in ("float32", "odd") else 0.0)


def test_orders_of_nothing_and_of_one() -> None:
    def f(x: Any, y: Any) -> Any:
        return jnp.sort(x), jnp.argsort(x), *lax.top_k(y, 0), jnp.sort(y, 0), jnp.cumsum(x), lax.cummax(y, 0)

    check(f, np.zeros((0,), np.float32), X[:1])


def test_positions_are_not_looked_up() -> None:
    """What argsort sorts along with the keys is the order itself."""
    assert check(lambda x: jnp.argsort(x, 1), X) == ["sort"]


@pytest.mark.parametrize("method", ["scan", "scan_unrolled", "sort", "compare_all"])
def test_searches(method: str) -> None:
    def f(x: Any, y: Any, z: Any) -> Any:
        sides = [jnp.searchsorted(jnp.sort(x), y, side=side, method=method) for side in ("left", "right")]
        return *sides, jnp.searchsorted(jnp.sort(z), z, method=method), jnp.digitize(y, jnp.sort(x), method=method)

    odd = np.array([np.nan, -0.0, 0.0, 1.0, -np.inf, np.inf, -1.0], np.float32)
    check(f, odd, odd[::-1].copy(), Z[0])


def test_the_total_order() -> None:
    odd = np.array([np.nan, -0.0, 0.0, 1.0, -np.inf, np.inf, -1.0], np.float32)

    def f(x: Any, y: Any) -> Any:
        return [p.bind(x, y) for p in (jax.lax.lt_to_p, jax.lax.le_to_p, jax.lax.eq_to_p)]

    pairs = np.array(list(itertools.product(odd, odd)))
    check(f, pairs[:, 0], pairs[:, 1])


def test_gradients_of_orders() -> None:
    def f(x: Any) -> Any:
        tops = (lax.top_k(x, 2)[0] * jnp.arange(2.0)).sum()
        return (jnp.sort(x, 1) * jnp.arange(6.0)).sum() + tops + (jnp.cumsum(x, 1) ** 2).sum()

    check(jax.grad(f), X, tolerance=1e-5)


# --- random numbers --------------------------------------------------------------------------------------------------

KEY = np.array([3, 77], np.uint32)
K: Any = R.wrap_key_data
CONSTANT_KEY = R.key(5)

RANDOM: dict[str, tuple[Any, ...]] = {
    "bits": (lambda k: [R.bits(K(k), shape, f"uint{w}") for w in (8, 16, 32) for shape in ((), (7,), (3, 5))], KEY),
    "seed": (lambda i: (R.key_data(R.key(i)), R.bits(R.key(i), (4,))), np.int32(-5)),
    "old key": (lambda i: R.bits(R.PRNGKey(i), (4,)), np.uint32(2**32 - 1)),
    "split": (lambda k: (R.key_data(R.split(K(k), 3)), [R.bits(q, (3,)) for q in R.split(K(k))]), KEY),
    "fold in": (lambda k, i: R.bits(R.fold_in(K(k), i), (2,)), KEY, 7),
    "vmapped fold in": (lambda k, i: R.key_data(jax.vmap(R.fold_in, (None, 0))(K(k), i)), KEY, np.arange(3)),
    "fold in of a table": (
        lambda k, i: R.key_data(jax.vmap(lambda i: jax.vmap(R.fold_in, (0, None))(R.split(K(k), 2), i))(i)),
        KEY, np.arange(3),
    ),
    "vmapped bits": (lambda k: jax.vmap(lambda q: R.bits(q, (3,)))(R.split(K(k), 4)), KEY),
    "rows of keys": (lambda k, i: (R.bits(R.split(K(k), 4)[i], (3,)), R.key_data(R.split(K(k), 4)[IDS % 4])), KEY, 2),
    "shapes of keys": (lambda k: R.key_data(R.split(K(k), 4).reshape(2, 2).T[:, ::-1]), KEY),
    "stacked keys": (lambda k: R.key_data(jnp.stack([K(k), R.key(3), CONSTANT_KEY])), KEY),
    "looped keys": (
        lambda k: lax.fori_loop(0, 3, lambda i, c: (R.fold_in(c[0], i), c[1] + R.bits(c[0], (2,))), (K(k), KEY))[1],
        KEY,
    ),
    "chosen keys": (
        lambda k, t: R.key_data(jnp.where(t, R.split(K(k), 3), K(k))), KEY, np.array([True, False, True]),
    ),
    "closed over": (lambda x: x + R.bits(CONSTANT_KEY, (3,)), np.zeros(3, np.uint32)),
    "randint": (lambda k: R.randint(K(k), (4,), 0, 100), KEY),
    "permutation": (lambda k: R.permutation(K(k), 7), KEY),
    "uniform": (
        lambda k: [R.uniform(K(k), (40,), dt) for dt in (jnp.float32, jnp.bfloat16, jnp.float16)]
        + [R.uniform(K(k), (9,), minval=-2, maxval=2)],
        KEY,
    ),
    "bernoulli": (lambda k: R.bernoulli(K(k), 0.3, (40,)), KEY),
    "categorical": (lambda k, x: R.categorical(K(k), x), KEY, rng.normal(size=(5, 9)).astype(np.float32)),
    "gumbel": (lambda k: R.gumbel(K(k), (40,)), KEY),
    "normal": (lambda k: R.normal(K(k), (40,)), KEY),
    "exponential": (lambda k: R.exponential(K(k), (40,)), KEY),
}  # fmt: skip
ROUNDED = {"gumbel": 2e-6, "normal": 2e-6, "exponential": 2e-6}


@pytest.mark.parametrize("case", RANDOM)
def test_random_numbers(case: str) -> None:
    f, *args = RANDOM[case]
    made = check(f, *args, tolerance=ROUNDED.get(case, 0.0))
    assert not {"rand", "dropout"}.intersection(made)


def test_keys_split_over_devices() -> None:
    """Each device draws with a key of its own, folded from its place or taken from a table."""

    def f(k: Any) -> Any:
        own = R.bits(R.fold_in(K(k), lax.axis_index("x")), (1, 3))
        table = jm.full_to_shard(R.key_data(R.split(K(k), 8)), P(("y", "x")))
        drawn = R.bits(K(table[0]), (1, 3))
        return jm.shard_to_full(own, P("x")), jm.shard_to_full(drawn, P(("y", "x")))

    check(f, KEY, mesh=(2, 4))


@pytest.mark.slow
def test_the_other_counting_order() -> None:
    with jax.threefry_partitionable(False):
        check(RANDOM["bits"][0], KEY)
        check(RANDOM["split"][0], KEY)


def test_other_generators_are_a_named_error() -> None:
    with pytest.raises(InexpressibleError, match=r"rng_bit_generator.*impl='threefry2x32'"):
        check(lambda i: R.bits(R.key(i, impl="rbg"), (3,)), np.int32(1))


@pytest.mark.parametrize(
    ("kind", "to"),
    [("int8", "int4"), ("uint32", "int4"), ("int4", "int8"), ("uint8", "int32"), ("int16", "uint8"), ("int4", "uint4")],
)
def test_integers_packed_in_others(kind: str, to: str) -> None:
    """As quantised weights are: the last dim is that of the pieces, lowest bits first."""
    x = jnp.asarray(rng.integers(-(2**31), 2**31, (3, 4)), jnp.int32).astype(kind)
    check(lambda x: lax.bitcast_convert_type(x if to != "int8" else x.reshape(6, 2), to), x)


def test_leading_zeros_of_half_bytes() -> None:
    check(lax.clz, jnp.arange(-8, 8).astype("int4"))


@pytest.mark.parametrize("kind", [np.float32, np.float16, jnp.bfloat16])
def test_floats_from_bits(kind: Any) -> None:
    """Every bit pattern of 16 bits, and many of 32, but for those too small to be held normally."""
    width = 8 * np.dtype(kind).itemsize
    bits = np.arange(2**16, dtype=np.uint16) if width == 16 else rng.integers(0, 2**32, 4096).astype(np.uint32)
    held = bits.view(kind).astype(np.float32)
    small = (np.abs(held) < float(jnp.finfo(kind).smallest_normal)) & (held != 0)
    check(lambda x: lax.bitcast_convert_type(x, kind), bits[~small])
    signed = bits[~small].view(f"int{width}")
    check(lambda x: lax.bitcast_convert_type(x, kind), signed[:100])


# --- code of models --------------------------------------------------------------------------------------------------


def rotated(x: Any, positions: Any) -> Any:
    """Rotary positions on the last dim."""
    half = x.shape[-1] // 2
    angle = positions[..., None] * 10000.0 ** (-jnp.arange(half) / half)
    a, b = x[..., :half], x[..., half:]
    return jnp.concatenate([a * jnp.cos(angle) - b * jnp.sin(angle), b * jnp.cos(angle) + a * jnp.sin(angle)], -1)


def test_decoding_with_a_cache() -> None:
    """One step: embedding, rotary positions, cache update, attention over what is filled; heads over x."""

    def step(table: Any, wq: Any, wk: Any, cache: Any, ids: Any, at: Any) -> Any:
        x = jm.full_to_shard(table[ids], P())
        cache = jm.full_to_shard(cache, P(None, "x"))
        q, k = (jnp.einsum("bsd,dhk->bhsk", x, jm.full_to_shard(w, P(None, "x"))) for w in (wq, wk))
        q, k = (rotated(v, jnp.full((v.shape[2],), at)) for v in (q, k))
        cache = lax.dynamic_update_slice(cache, k, (0, 0, at, 0))
        scores = jnp.einsum("bhsk,bhtk->bhst", q, cache)
        scores = jnp.where(jnp.arange(cache.shape[2]) <= at, scores, -jnp.inf)
        mixed = jnp.einsum("bhst,bhtk->bhsk", jax.nn.softmax(scores), cache)
        out = lax.psum(mixed.sum((1, 2)), "x")
        return jm.shard_to_full(out, P()), jm.shard_to_full(cache, P(None, "x"))

    rng = np.random.default_rng(1)
    shapes = (11, 8), (8, 4, 4), (8, 4, 4), (2, 4, 6, 4)
    args = [rng.normal(size=s).astype(np.float32) for s in shapes]
    made = check(step, *args, np.array([[3], [10]], np.int32), 2, mesh=(1, 2), tolerance=1e-5)
    assert {"embedding", "update_cache", "all_reduce"} <= set(made)


def test_sampling() -> None:
    """Top-k and top-p sampling with a temperature, and greedy: the same tokens."""

    def sample(key: Any, logits: Any) -> Any:
        top, index = lax.top_k(logits / 0.7, 5)
        first = jnp.take_along_axis(index, R.categorical(K(key), top)[:, None], 1)[:, 0]
        order = jnp.argsort(logits, -1, descending=True)
        probabilities = jax.nn.softmax(jnp.take_along_axis(logits, order, -1))
        kept = jnp.cumsum(probabilities, -1) - probabilities < 0.8
        ranked = jnp.where(kept, jnp.take_along_axis(logits, order, -1), -jnp.inf)
        masked = jnp.take_along_axis(ranked, jnp.argsort(order, -1), -1)
        return first, R.categorical(R.fold_in(K(key), 1), masked), jnp.argmax(logits, -1)

    logits = np.random.default_rng(2).normal(size=(4, 16)).astype(np.float32) * 3
    check(sample, KEY, logits)


def test_a_vocabulary_split_over_devices() -> None:
    """A look-up in the piece of a table that a device holds, masked and summed."""

    def f(table: Any, ids: Any) -> Any:
        table = jm.full_to_shard(table, P("x"))
        local = ids - lax.axis_index("x") * table.shape[0]
        mine = (local >= 0) & (local < table.shape[0])
        rows = jnp.where(mine[..., None], jnp.take(table, local, axis=0, mode="clip"), 0)
        return jm.shard_to_full(lax.psum(rows, "x"), P())

    table = np.random.default_rng(3).integers(-9, 9, (12, 3)).astype(np.float32)
    made = check(f, table, np.array([[0, 11], [5, 6]], np.int32), mesh=(2, 4))
    assert {"embedding", "all_reduce"} <= set(made)
