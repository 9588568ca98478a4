"""Programs of the suite that distribute, communicate and loop: exact, most of them without arithmetic."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
from jax import lax
from jax.sharding import PartitionSpec as P

import jaxmesh as jm
from tests.generators.suite.entry import Entry, Make, by_device, join, split

Shards = dict[tuple[int, ...], np.ndarray]
NAMES = {1: ("x",), 2: ("y", "x"), 3: ("z", "y", "x"), 4: ("w", "z", "y", "x")}


def whole(*shape: int, dtype: Any = np.float32) -> Make:
    """One argument of whole numbers."""

    def make(rng: np.random.Generator) -> tuple[Any, ...]:
        raw = rng.integers(0 if np.dtype(dtype).kind in "ub" else -20, 20, shape)
        return (raw > 10 if dtype == np.bool_ else raw.astype(dtype),)

    return make


# --- every way to distribute -----------------------------------------------------------------------------------------


def turned(x: Any) -> Any:
    """A shard's elements in reverse: from a wrong slice it would give another result."""
    return jnp.flip(x) if isinstance(x, jax.Array) else np.flip(x)


def distributed(
    name: str, sizes: tuple[int, ...], spec: P, shape: tuple[int, ...], dtype: Any = np.float32, out: P | None = None
) -> Entry:
    """Splits an array, turns each shard round, and joins them."""
    axes = NAMES[len(sizes)]
    back = spec if out is None else out

    def function(x: Any) -> Any:
        return jm.shard_to_full(turned(jm.full_to_shard(x, spec)), back)

    mesh = jm.make_mesh(sizes, axes)
    oracle = by_device(lambda s: {c: turned(v) for c, v in s.items()}, spec, back, mesh)
    return Entry(f"distribute {name}", function, whole(*shape, dtype=dtype), oracle, sizes, axes, moves_only=True)


DISTRIBUTIONS = [
    distributed("replicated", (2, 4), P(), (4, 6)),
    distributed("rows", (2, 4), P("y"), (4, 6)),
    distributed("columns", (2, 4), P(None, "x"), (3, 8), np.int32),
    distributed("both dims", (2, 4), P("y", "x"), (4, 8), ml_dtypes.bfloat16),
    distributed("both dims, crossed", (2, 4), P("x", "y"), (4, 8), np.uint8),
    distributed("the middle dim", (2, 4), P(None, "x"), (2, 8, 3)),
    distributed("the last dim", (2, 4), P(None, None, "y"), (2, 3, 4), np.bool_),
    distributed("two axes on one dim", (2, 4), P(("y", "x")), (16, 3)),
    distributed("two axes on one dim, minor first", (2, 4), P(("x", "y")), (16, 3)),
    distributed("two axes on the last dim", (2, 4), P(None, ("y", "x")), (3, 16), np.int32),
    distributed("a scalar", (2, 4), P(), ()),
    distributed("a vector", (2, 4), P("x"), (8,)),
    distributed("a vector over two axes", (2, 4), P(("x", "y")), (16,)),
    distributed("rank 5", (2, 4), P(None, "x", None, "y", None), (2, 4, 3, 4, 2)),
    distributed("on 8", (8,), P("x"), (16, 2)),
    distributed("on 1x2", (1, 2), P("y", "x"), (3, 4)),
    distributed("on 2x1", (2, 1), P(("y", "x")), (4, 3)),
    distributed("on 2x2x2", (2, 2, 2), P("x", ("z", "y")), (4, 8)),
    distributed("on 2x2x2, three axes on one dim", (2, 2, 2), P(("y", "x", "z")), (8, 3)),
    distributed("on 2x2x2x2", (2, 2, 2, 2), P("y", ("w", "x"), "z"), (4, 8, 2)),
]


def moved_back(x: Any, w: Any) -> Any:
    """Rows in, columns of another tensor: both are on the devices before and after, a full result beside them."""
    y = turned(x)
    return y, jm.shard_to_full(turned(w), P(None, "x")), jnp.concatenate([w, w], 0)


PLACED = [
    Entry(
        "arguments and results on the devices",
        moved_back,
        lambda rng: (*whole(4, 6)(rng), *whole(3, 8)(rng)),
        lambda x, w: (
            join({c: np.flip(v) for c, v in split(x, P("y"), MESH).items()}, P("y"), MESH),
            by_device(lambda s: {c: np.flip(v) for c, v in s.items()}, P(None, "x"), P(None, "x"), MESH)(w),
            np.concatenate([w, w], 0),
        ),
        moves_only=True,
        placed=(P("y"), P(None, "x")),
        kept=(P("y"), None, P(None, "x")),
    ),
    Entry(
        "a result that stays on the devices",
        lambda x: jm.full_to_shard(x, P(("x", "y"))),
        whole(16, 3),
        lambda x: x,
        moves_only=True,
        kept=(P(("x", "y")),),
    ),
    Entry(
        "an argument on the devices",
        lambda x, w: jm.shard_to_full(x * jm.full_to_shard(w, P()), P("y", "x")),
        lambda rng: (*whole(4, 8)(rng), *whole(2, 2)(rng)),
        lambda x, w: x * np.tile(w, (2, 4)),
        placed=(P("y", "x"), None),
    ),
]


# --- every collective ------------------------------------------------------------------------------------------------

MESH = jm.make_mesh((2, 4), ("y", "x"))
CUBE = jm.make_mesh((2, 2, 2), ("z", "y", "x"))


def along(shards: Shards, axes: tuple[str, ...], mesh: Any) -> dict[tuple[int, ...], list[tuple[int, ...]]]:
    """The coordinates with which each device communicates, in the order of their index."""
    numbers = [mesh.axis_names.index(a) for a in axes]
    return {
        c: sorted(
            (o for o in shards if all(i in numbers or o[i] == c[i] for i in range(len(c)))),
            key=lambda o: [o[n] for n in numbers],
        )
        for c in shards
    }


def grouped(axes: tuple[str, ...], body: Callable[[list[np.ndarray], int], np.ndarray], mesh: Any = MESH) -> Any:
    """What each device gets from the shards of its group and its index there."""

    def on_all(shards: Shards) -> Shards:
        groups = along(shards, axes, mesh)
        return {c: body([shards[o] for o in group], group.index(c)) for c, group in groups.items()}

    return on_all


def collective(
    name: str,
    local: Callable[[Any], Any],
    body: Any,
    in_spec: P,
    out_spec: P,
    *,
    mesh: Any = MESH,
    shape: tuple[int, ...] = (8, 16),
    moves: bool = False,
    dtype: Any = np.float32,
) -> Entry:
    """A collective between two `mesh_shard`s."""

    def function(x: Any) -> Any:
        return jm.shard_to_full(local(jm.full_to_shard(x, in_spec)), out_spec)

    sizes = tuple(mesh.shape.values())
    oracle = by_device(body, in_spec, out_spec, mesh)
    return Entry(name, function, whole(*shape, dtype=dtype), oracle, sizes, tuple(mesh.axis_names), moves_only=moves)


def exchanged(parts: list[np.ndarray], me: int, split_dim: int, concat_dim: int) -> np.ndarray:
    return np.concatenate([np.split(p, len(parts), split_dim)[me] for p in parts], concat_dim)


def sent(pairs: list[tuple[int, int]]) -> Callable[[list[np.ndarray], int], np.ndarray]:
    """A device to which nothing is sent gets zeros."""
    source = {to: start for start, to in pairs}
    return lambda parts, me: parts[source[me]] if me in source else np.zeros_like(parts[me])


RING = [(i, (i + 1) % 4) for i in range(4)]
HOLES = [(0, 3), (3, 1)]
ALL = [(i, (i + 3) % 8) for i in range(8)]
X, Y, YX = ("x",), ("y",), ("y", "x")
BOTH = P("y", "x")

COLLECTIVES = [
    collective("psum over one axis", lambda v: lax.psum(v, "x"), grouped(X, lambda p, _: sum(p)), BOTH, P("y")),
    collective("psum over two axes", lambda v: lax.psum(v, YX), grouped(YX, lambda p, _: sum(p)), BOTH, P()),
    collective(
        "psum over two of three axes", lambda v: lax.psum(v, ("z", "x")),
        grouped(("z", "x"), lambda p, _: sum(p), CUBE), P(("z", "y"), "x"), P("y"), mesh=CUBE,
    ),
    collective("psum of integers", lambda v: lax.psum(v, "y"), grouped(Y, lambda p, _: sum(p)), BOTH, P(None, "x"),
               dtype=np.int32),
    collective("pmax", lambda v: lax.pmax(v, "x"), grouped(X, lambda p, _: np.max(p, 0)), BOTH, P("y")),
    collective("pmax over two axes", lambda v: lax.pmax(v, YX), grouped(YX, lambda p, _: np.max(p, 0)), BOTH, P()),
    collective("pmin", lambda v: lax.pmin(v, "y"), grouped(Y, lambda p, _: np.min(p, 0)), BOTH, P(None, "x"),
               dtype=np.int32),
    collective("pmean", lambda v: lax.pmean(v, "x"), grouped(X, lambda p, _: np.float32(0.25) * sum(p)), BOTH, P("y")),
    collective("all_gather, tiled", lambda v: lax.all_gather(v, "x", axis=1, tiled=True) * lax.axis_index("x"),
               grouped(X, lambda p, me: np.concatenate(p, 1) * np.int32(me).astype(np.float32)), BOTH, BOTH),
    collective("all_gather, untiled", lambda v: lax.all_gather(v, "x", axis=1),
               grouped(X, lambda p, _: np.stack(p, 1)), BOTH, P("y", None, "x"), moves=True),
    collective("all_gather over two axes", lambda v: lax.all_gather(v, YX, tiled=True),
               grouped(YX, lambda p, _: np.concatenate(p)), P(YX), P(None, YX), moves=True),
    collective("psum_scatter, tiled", lambda v: lax.psum_scatter(v, "x", scatter_dimension=1, tiled=True),
               grouped(X, lambda p, me: np.split(sum(p), 4, 1)[me]), BOTH, BOTH),
    collective("psum_scatter, untiled", lambda v: lax.psum_scatter(v, "x", scatter_dimension=0),
               grouped(X, lambda p, me: sum(p)[me]), BOTH, P(YX), moves=False),
    collective("all_to_all, tiled", lambda v: lax.all_to_all(v, "x", 1, 0, tiled=True),
               grouped(X, lambda p, me: exchanged(p, me, 1, 0)), BOTH, BOTH, moves=True),
    collective("all_to_all, untiled", lambda v: lax.all_to_all(v, "x", 0, 1),
               grouped(X, lambda p, me: np.stack([q[me] for q in p], 1)), BOTH, BOTH, moves=True),
    collective("ppermute in a ring", lambda v: lax.ppermute(v, "x", RING), grouped(X, sent(RING)), BOTH, BOTH,
               moves=True),
    collective("ppermute with holes", lambda v: lax.ppermute(v, "x", HOLES), grouped(X, sent(HOLES)), BOTH, BOTH,
               moves=True),
    collective("ppermute over two axes", lambda v: lax.ppermute(v, YX, ALL), grouped(YX, sent(ALL)), BOTH, BOTH,
               moves=True),
    collective("axis_index", lambda v: v + (10 * lax.axis_index("y") + lax.axis_index("x")),
               lambda s: {c: v + np.int32(10 * c[0] + c[1]) for c, v in s.items()}, BOTH, BOTH, dtype=np.int32),
    collective("a ring on 8", lambda v: lax.ppermute(v, "x", ALL), grouped(X, sent(ALL), jm.make_mesh((8,), ("x",))),
               P("x"), P("x"), mesh=jm.make_mesh((8,), ("x",)), moves=True),
]  # fmt: skip


# --- loops and branches ----------------------------------------------------------------------------------------------


def scanned_ring(x: Any) -> Any:
    """Every device adds up what passes by, and keeps what it had at each step."""

    def step(carry: Any, k: Any) -> Any:
        here, total = carry
        here = lax.ppermute(here, "x", RING)
        return (here, total + k * here), here[:1]

    v = jm.full_to_shard(x, BOTH)
    (_, total), seen = lax.scan(step, (v, jnp.zeros_like(v)), jnp.arange(1.0, 4.0))
    return jm.shard_to_full(total, BOTH), jm.shard_to_full(seen, P(None, "y", "x"))


def scanned_ring_plain(x: np.ndarray) -> Any:
    def rolled(k: int) -> np.ndarray:
        return np.roll(x.reshape(8, 4, 4), k, 1).reshape(8, 16)

    first = np.stack([rolled(k)[[0, 4]] for k in (1, 2, 3)])
    return sum(np.float32(k) * rolled(k) for k in (1, 2, 3)), first


def counted(x: Any) -> Any:
    v = jm.full_to_shard(x, P("y"))
    return jm.shard_to_full(lax.fori_loop(2, 5, lambda i, a: lax.psum(a, "y") * 0.5 + i * v, v), P("y"))


def counted_plain(x: np.ndarray) -> np.ndarray:
    v = a = x.astype(np.float32)
    for i in range(2, 5):
        a = np.tile(a[:4] + a[4:], (2, 1)) * np.float32(0.5) + np.float32(i) * v
    return a


def branched(x: Any) -> Any:
    v = jm.full_to_shard(x, P("x"))
    wide = lax.cond(x.shape[1] > 4, lambda a: a * 2, lambda a: a - 1, v)
    chosen = lax.switch(2, [lambda a: a, lambda a: -a, lambda a: lax.rev(a, (1,))], wide)
    return jm.shard_to_full(chosen, P("x"))


def reversed_scan(x: Any) -> Any:
    v = jm.full_to_shard(x, P(None, "x"))
    _, sums = lax.scan(lambda c, row: (c + row, c), jnp.zeros_like(v[0]), v, reverse=True)
    return jm.shard_to_full(sums, P(None, "x"))


def reversed_scan_plain(x: np.ndarray) -> np.ndarray:
    return np.concatenate([np.cumsum(x[:0:-1], 0)[::-1], np.zeros_like(x[:1])]).astype(x.dtype)


LOOPS = [
    Entry("scan around a ring", scanned_ring, whole(8, 16), scanned_ring_plain),
    Entry("fori_loop with psum", counted, whole(8, 3), counted_plain),
    Entry("cond and switch, known", branched, whole(8, 6), lambda x: np.flip(x * np.float32(2), 1)),
    Entry("scan in reverse", reversed_scan, whole(5, 8, dtype=np.int32), reversed_scan_plain),
    Entry(
        "while with a known count",
        lambda x: jm.shard_to_full(
            lax.while_loop(lambda s: s[0] < 6, lambda s: (s[0] + 2, s[1] + s[0]), (0, jm.full_to_shard(x, P("x"))))[1],
            P("x"),
        ),
        whole(8, dtype=np.int32),
        lambda x: x + np.int32(6),
    ),
]


# --- moves inside ----------------------------------------------------------------------------------------------------


def shuffled(x: Any) -> Any:
    """Slices, joins, pads, transposes, picks."""
    v = jm.full_to_shard(x, P("y", None, "x"))
    a = jnp.concatenate([v[:, ::2], jnp.flip(v[:, 1::2], 1)], 1).transpose(0, 2, 1)
    b = jnp.pad(a, ((0, 0), (0, 0), (1, 2)), constant_values=7)[:, :, 1:-1]
    picked = jnp.take(b, jnp.array([3, 0, 0]), axis=2)
    return jm.shard_to_full(jnp.where(picked > 0, picked, -picked.astype(x.dtype)), P("y", "x"))


def shuffled_plain(x: np.ndarray) -> np.ndarray:
    a = np.concatenate([x[:, ::2], np.flip(x[:, 1::2], 1)], 1).transpose(0, 2, 1)
    b = np.pad(a, ((0, 0), (0, 0), (1, 2)), constant_values=7)[:, :, 1:-1]
    return np.abs(np.take(b, [3, 0, 0], axis=2))


def resharded(x: Any) -> Any:
    """Rows to columns through the host, and through an all_to_all."""
    rows = jm.full_to_shard(x, P("x"))
    host = jm.full_to_shard(jm.shard_to_full(rows, P("x")), P(None, "x"))
    there = lax.all_to_all(rows, "x", 1, 0, tiled=True)
    return jm.shard_to_full(host, P(None, "x")), jm.shard_to_full(there, P(None, "x"))


MOVES = [
    Entry("slices, joins, pads, picks", shuffled, whole(4, 6, 8, dtype=np.int32), shuffled_plain),
    Entry("rows to columns, two ways", resharded, whole(8, 12), lambda x: (x, x), moves_only=True),
]

PROGRAMS = [*DISTRIBUTIONS, *PLACED, *COLLECTIVES, *LOOPS, *MOVES]
