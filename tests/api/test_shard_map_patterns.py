"""How `shard_map` is used: collective matmuls, data, tensor, fully sharded and pipeline parallelism.

Each is equal to `jax.shard_map`, value and gradients, bit for bit, by `jm.shard_map` and by `jm.jit`; and close to the
same model without any mesh.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import PartitionSpec as P

import jaxmesh as jm
from jaxmesh.jaxprs.walk import all_eqns
from tests.generators.oracles import same_bits

pytestmark = pytest.mark.slow(but_one_in=4)

RNG = np.random.default_rng(5)


def normal(*shape: int) -> np.ndarray:
    return RNG.normal(size=shape).astype(np.float32) * 0.5


@dataclass(frozen=True)
class Pattern:
    """`make(way)` is the function by that shard_map; `plain` the model without a mesh; `args` trees of arrays."""

    make: Callable[[Any], Callable[..., Any]]
    plain: Callable[..., Any]
    args: tuple[Any, ...]
    mesh: Any
    collectives: frozenset[str]


# --- collective matmuls: the left operand's rows over i, and both operands' inner dims in some way -------------------

RING = jm.make_mesh((4,), ("i",))
A, B = normal(8, 8), normal(8, 8)


def turn(x: Any, by: int = 1) -> Any:
    return lax.ppermute(x, "i", [(j, (j + by) % 4) for j in range(4)])


def gather_first(a: Any, b: Any) -> Any:
    return lax.all_gather(a, "i", tiled=True) @ b


def block_row(a: Any, source: Any, b: Any, out: Any) -> Any:
    return lax.dynamic_update_slice(out, a @ b, (source * a.shape[0], 0))


def gather_in_a_ring(a: Any, b: Any) -> Any:
    """While a block is multiplied, the next one is on its way."""
    me = lax.axis_index("i")
    out = lax.pcast(jnp.zeros((a.shape[0] * 4, b.shape[1]), a.dtype), "i", to="varying")
    for step in range(4):
        coming = turn(a) if step < 3 else a
        out = block_row(a, (me - step) % 4, b, out)
        a = coming
    return out


def gather_in_a_scanned_ring(a: Any, b: Any) -> Any:
    me = lax.axis_index("i")

    def step(carry: Any, i: Any) -> Any:
        a, out = carry
        return (turn(a), block_row(a, (me - i) % 4, b, out)), None

    out = lax.pcast(jnp.zeros((a.shape[0] * 4, b.shape[1]), a.dtype), "i", to="varying")
    return lax.scan(step, (a, out), jnp.arange(4))[0][1]


def gather_both_ways(a: Any, b: Any) -> Any:
    """Half of each block goes round one way, half the other."""
    me, half = lax.axis_index("i"), a.shape[0] // 2
    up, down = a[:half], a[half:]
    out = lax.pcast(jnp.zeros((4, 2, half, b.shape[1]), a.dtype), "i", to="varying")
    for step in range(4):
        for part, block in ((0, up), (1, down)):
            source = (me - step if part == 0 else me + step) % 4
            out = lax.dynamic_update_slice(out, (block @ b)[None, None], (source, part, 0, 0))
        up, down = turn(up), turn(down, -1)
    return out.reshape(-1, b.shape[1])


def scatter_after(a: Any, b: Any) -> Any:
    return lax.psum_scatter(a @ b, "i", tiled=True)


def scatter_in_a_ring(a: Any, b: Any) -> Any:
    """Partial sums travel, each device adding its own on the way."""
    me, rows = lax.axis_index("i"), a.shape[0] // 4

    def part(step: int) -> Any:
        return lax.dynamic_slice_in_dim(a, ((me - step - 1) % 4) * rows, rows) @ b

    total = part(0)
    for step in range(1, 4):
        total = turn(total) + part(step)
    return total


def scatter_both_ways(a: Any, b: Any) -> Any:
    me, rows = lax.axis_index("i"), a.shape[0] // 4

    def part(step: int, way: int) -> Any:
        block = lax.dynamic_slice_in_dim(a, ((me - way * (step + 1)) % 4) * rows, rows)
        return (block[: rows // 2] if way == 1 else block[rows // 2 :]) @ b

    up, down = part(0, 1), part(0, -1)
    for step in range(1, 4):
        up, down = turn(up) + part(step, 1), turn(down, -1) + part(step, -1)
    return jnp.concatenate([up, down])


def collective_matmul(body: Any, in_specs: Any, out_specs: Any, *collectives: str) -> Pattern:
    def make(way: Any) -> Any:
        return way(body, mesh=RING, in_specs=in_specs, out_specs=out_specs)

    return Pattern(make, lambda a, b: a @ b, (A, B), RING, frozenset(collectives))


GATHER: Any = ((P("i"), P(None, "i")), P(None, "i"))
SCATTER: Any = ((P(None, "i"), P("i")), P("i"))

# --- a multilayer perceptron -----------------------------------------------------------------------------------------

SIZES = [8, 16, 16, 8]
LAYERS = [{"w": normal(m, n), "b": normal(n)} for m, n in itertools.pairwise(SIZES)]
INPUTS, TARGETS = normal(16, 8), normal(16, 8)


def layer(p: Any, x: Any) -> Any:
    return jnp.tanh(x @ p["w"] + p["b"])


def predict(params: Any, x: Any) -> Any:
    for p in params:
        x = layer(p, x)
    return x


def error(y: Any, target: Any) -> Any:
    return jnp.mean(jnp.sum((y - target) ** 2, -1))


def plain_loss(params: Any, x: Any, target: Any) -> Any:
    return error(predict(params, x), target)


EIGHT = jm.make_mesh((8,), ("batch",))
BATCH = P("batch")


def data_parallel(way: Any) -> Any:
    def body(params: Any, x: Any, target: Any) -> Any:
        return lax.pmean(plain_loss(params, x, target), "batch")

    return way(body, mesh=EIGHT, in_specs=(P(), BATCH, BATCH), out_specs=P())


def gathered(p: Any) -> Any:
    return jax.tree.map(lambda w: lax.all_gather(w, "batch", tiled=True), p)


def fully_sharded(way: Any) -> Any:
    """Weights are split over the batch's axis and gathered where they are used."""

    def body(params: Any, x: Any, target: Any) -> Any:
        for p in params:
            x = layer(gathered(p), x)
        return lax.pmean(error(x, target), "batch")

    return way(body, mesh=EIGHT, in_specs=(BATCH, BATCH, BATCH), out_specs=P())


def fully_sharded_again(way: Any) -> Any:
    """And gathered again in the backward pass."""

    def fetched(p: Any, x: Any) -> Any:
        return layer(gathered(p), x)

    saved = jax.checkpoint(fetched, policy=jax.checkpoint_policies.nothing_saveable)

    def body(params: Any, x: Any, target: Any) -> Any:
        for p in params:
            x = saved(p, x)
        return lax.pmean(error(x, target), "batch")

    return way(body, mesh=EIGHT, in_specs=(BATCH, BATCH, BATCH), out_specs=P())


FEATURES = jm.make_mesh((4,), ("feats",))
F = P("feats")


def split_layer(p: Any, x: Any) -> Any:
    """Rows of the weight over the features: partial products, summed and scattered."""
    return jnp.tanh(lax.psum_scatter(x @ p["w"], "feats", scatter_dimension=1, tiled=True) + p["b"])


def tensor_parallel(way: Any) -> Any:
    def body(params: Any, x: Any, target: Any) -> Any:
        for p in params:
            x = split_layer(p, x)
        return jnp.mean(lax.psum(jnp.sum((x - target) ** 2, -1), "feats"))

    columns = P(None, "feats")
    return way(body, mesh=FEATURES, in_specs=(F, columns, columns), out_specs=P())


GRID = jm.make_mesh((2, 4), ("batch", "feats"))


def both_parallel(way: Any) -> Any:
    """Weights split over both axes, gathered over one, multiplied in parts over the other."""

    @jax.checkpoint
    def fetched(p: Any, x: Any) -> Any:
        return split_layer({k: lax.all_gather(w, "batch", tiled=True) for k, w in p.items()}, x)

    def body(params: Any, x: Any, target: Any) -> Any:
        for p in params:
            x = fetched(p, x)
        return lax.pmean(jnp.mean(lax.psum(jnp.sum((x - target) ** 2, -1), "feats")), "batch")

    weights, data = P(("feats", "batch")), P("batch", "feats")
    return way(body, mesh=GRID, in_specs=(weights, data, data), out_specs=P())


# --- a pipeline: one layer a device, microbatches pass through -------------------------------------------------------

STAGES = jm.make_mesh((4,), ("stages",))
DEEP = {"w": normal(4, 8, 8), "b": normal(4, 8)}
MICRO = normal(8, 4, 8)


def deep_loss(params: Any, x: Any, target: Any) -> Any:
    for i in range(4):
        x = layer(jax.tree.map(lambda w: w[i], params), x)  # noqa: B023
    return jnp.mean(jnp.sum((x - target) ** 2, -1))


def pipelined(way: Any) -> Any:
    def body(params: Any, x: Any, target: Any) -> Any:
        stage = lax.axis_index("stages")
        own = jax.tree.map(lambda w: w[0], params)
        count = x.shape[0]

        def step(carry: Any, i: Any) -> Any:
            state, outs = carry
            fresh = lax.dynamic_index_in_dim(x, jnp.minimum(i, count - 1), keepdims=False)
            state = layer(own, jnp.where(stage == 0, fresh, state))
            at = jnp.maximum(i - 3, 0)
            outs = lax.dynamic_update_index_in_dim(outs, state, at, 0)
            return (lax.ppermute(state, "stages", [(j, (j + 1) % 4) for j in range(4)]), outs), None

        start = lax.pcast((jnp.zeros(x.shape[1:]), jnp.zeros(x.shape)), "stages", to="varying")
        (_, outs), _ = lax.scan(step, start, jnp.arange(count + 3))
        loss = jnp.mean(jnp.sum((outs - target) ** 2, -1))
        return lax.psum(jnp.where(stage == 3, loss, 0.0), "stages")

    return way(body, mesh=STAGES, in_specs=(P("stages"), P(), P()), out_specs=P())


PATTERNS: dict[str, Pattern] = {
    "gather, then multiply": collective_matmul(gather_first, *GATHER, "all_gather"),
    "gather in a ring": collective_matmul(gather_in_a_ring, *GATHER, "ppermute"),
    "gather in a scanned ring": collective_matmul(gather_in_a_scanned_ring, *GATHER, "ppermute"),
    "gather both ways": collective_matmul(gather_both_ways, *GATHER, "ppermute"),
    "multiply, then scatter": collective_matmul(scatter_after, *SCATTER, "reduce_scatter"),
    "scatter in a ring": collective_matmul(scatter_in_a_ring, *SCATTER, "ppermute"),
    "scatter both ways": collective_matmul(scatter_both_ways, *SCATTER, "ppermute"),
    "data parallel": Pattern(data_parallel, plain_loss, (LAYERS, INPUTS, TARGETS), EIGHT, frozenset({"psum"})),
    "fully sharded": Pattern(fully_sharded, plain_loss, (LAYERS, INPUTS, TARGETS), EIGHT,
                             frozenset({"all_gather", "psum"})),
    "fully sharded, gathered again": Pattern(fully_sharded_again, plain_loss, (LAYERS, INPUTS, TARGETS), EIGHT,
                                             frozenset({"all_gather", "psum"})),
    "tensor parallel": Pattern(tensor_parallel, plain_loss, (LAYERS, INPUTS, TARGETS), FEATURES,
                               frozenset({"reduce_scatter", "psum"})),
    "fully sharded and tensor parallel": Pattern(both_parallel, plain_loss, (LAYERS, INPUTS, TARGETS), GRID,
                                                 frozenset({"all_gather", "reduce_scatter", "psum"})),
    "pipeline": Pattern(pipelined, deep_loss, (DEEP, MICRO, MICRO[::-1].copy()), STAGES,
                        frozenset({"ppermute", "psum"})),
}  # fmt: skip
each = pytest.mark.parametrize("pattern", list(PATTERNS.values()), ids=list(PATTERNS))


def value_and_grad(f: Any) -> Any:
    """Of a scalar by all arguments, of anything else weighed with something."""

    def loss(*args: Any) -> Any:
        y = f(*args)
        return (y * jnp.cos(y)).sum(), y

    return jax.value_and_grad(loss, (0, 1), has_aux=True)


def all_same(got: Any, want: Any) -> None:
    assert jax.tree.structure(got) == jax.tree.structure(want)
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        assert jax.typeof(a) == jax.typeof(b)
        assert a.sharding == b.sharding
        assert same_bits(a, b)


@each
@pytest.mark.slow(but_one_in=8)
def test_value_and_gradients(pattern: Pattern) -> None:
    want = jax.jit(value_and_grad(pattern.make(jax.shard_map)))(*pattern.args)
    all_same(jax.jit(value_and_grad(pattern.make(jm.shard_map)))(*pattern.args), want)
    inside = jm.jit(value_and_grad(pattern.make(jax.shard_map)), mesh=pattern.mesh)
    all_same(inside(*pattern.args), want)
    plain = value_and_grad(pattern.plain)(*pattern.args)
    for a, b in zip(jax.tree.leaves(want), jax.tree.leaves(plain), strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-5, atol=2e-5)


@pytest.mark.slow(but_one_in=16)
@each
def test_the_program(pattern: Pattern) -> None:
    """What it is made of on both levels, and what the reference executor makes of it."""
    function = jm.jit(pattern.make(jax.shard_map), mesh=pattern.mesh)
    traced = function.trace(*pattern.args)
    lowered = traced.lower()
    above, below = ({e.primitive.name for e in all_eqns(s.jaxpr)} for s in (traced, lowered))
    assert "mesh_shard" in above - below
    assert {"distribute_tensor", "aggregate_tensor"} <= below - above
    assert "shard_map" not in above | below
    for name in pattern.collectives:
        assert any(p.startswith(name) for p in below), name
    np.testing.assert_allclose(
        lowered.reference(*pattern.args), pattern.plain(*pattern.args), rtol=1e-4, atol=1e-4
    )  # fmt: skip


def test_gradients_of_the_program_from_outside() -> None:
    pattern = PATTERNS["fully sharded and tensor parallel"]
    function = jm.jit(pattern.make(jm.shard_map), mesh=pattern.mesh)
    got = jax.jit(value_and_grad(function))(*pattern.args)
    want = jax.jit(value_and_grad(pattern.make(jax.shard_map)))(*pattern.args)
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


def test_fully_sharded_gradients_are_scattered() -> None:
    """The transpose of the gather in the forward pass."""
    f = jm.jit(value_and_grad(fully_sharded(jax.shard_map)), mesh=EIGHT)
    names = [e.primitive.name for e in all_eqns(f.lower(LAYERS, INPUTS, TARGETS).jaxpr)]
    assert names.count("reduce_scatter") == 2 * len(LAYERS)


@pytest.mark.slow
def test_a_step_of_training() -> None:
    """Loss, gradients and update in one program, again and again; the loss falls as the plain model's."""

    def train(loss: Any) -> Any:
        def step(params: Any, x: Any, target: Any) -> Any:
            value, grads = jax.value_and_grad(loss)(params, x, target)
            return jax.tree.map(lambda p, g: p - 0.05 * g, params, grads), value

        return step

    step = jm.jit(train(both_parallel(jax.shard_map)), mesh=GRID)
    theirs, plain = jax.jit(train(both_parallel(jax.shard_map))), jax.jit(train(plain_loss))
    mine, other, single = (jax.tree.map(jnp.asarray, LAYERS) for _ in range(3))
    losses = []
    for _ in range(3):
        (mine, a), (other, b), (single, c) = (
            f(p, INPUTS, TARGETS) for f, p in ((step, mine), (theirs, other), (plain, single))
        )
        assert same_bits(a, b)
        np.testing.assert_allclose(a, c, rtol=1e-4)
        losses.append(float(a))
    assert losses[2] < losses[1] < losses[0]
