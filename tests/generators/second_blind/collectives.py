"""Programs of `shard_map`: rings, pipelines, exchanges and reductions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import Mesh, PartitionSpec as P

from tests.generators.second_blind.made import Draw, Parts, program

BF16 = jnp.bfloat16


def mapped(fun: Callable[..., Any], mesh: Mesh, inputs: Any, outputs: Any) -> Callable[..., Any]:
    return jax.shard_map(fun, mesh=mesh, in_specs=inputs, out_specs=outputs, check_vma=False)


def ring(size: int, by: int = 1) -> list[tuple[int, int]]:
    return [(i, (i + by) % size) for i in range(size)]


@program(2, 4)
def ring_matmul(draw: Draw, mesh: Mesh) -> Parts:
    def local(x: Any, w: Any) -> Any:
        size, me = 4, lax.axis_index("y")
        out = jnp.zeros((x.shape[0] * size, w.shape[1]))
        for i in range(size):
            start = (me - i) % size * x.shape[0]
            out = lax.dynamic_update_slice(out, x @ w, (start, 0))
            x = lax.ppermute(x, "y", ring(size)) if i < size - 1 else x
        return out

    specs = (P("y", None), P(None, "y"))
    return mapped(local, mesh, specs, P(None, "y")), (draw.normal(8, 16), draw.normal(16, 8)), specs


@program(1, 4)
def ring_attention(draw: Draw, mesh: Mesh) -> Parts:
    def local(q: Any, k: Any, v: Any) -> Any:
        top = jnp.full(q.shape[:1], -1e9)
        weight, out = jnp.zeros(q.shape[:1]), jnp.zeros(q.shape)
        for _ in range(4):
            scores = q @ k.T * 0.35
            new = jnp.maximum(top, scores.max(-1))
            p, scale = jnp.exp(scores - new[:, None]), jnp.exp(top - new)
            weight, out, top = weight * scale + p.sum(-1), out * scale[:, None] + p @ v, new
            k, v = lax.ppermute((k, v), "y", ring(4))
        return out / weight[:, None]

    return mapped(local, mesh, P("y"), P("y")), tuple(draw.normal(16, 8) for _ in range(3)), (P("y"),) * 3


@program(1, 4)
def pipeline_stages(draw: Draw, mesh: Mesh) -> Parts:
    def local(w: Any, x: Any) -> Any:
        me, held, out = lax.axis_index("y"), jnp.zeros(x.shape[1:]), []
        for t in range(6):
            fed = jnp.where(me == 0, x[min(t, 2)], held)
            done = jnp.tanh(fed @ w[0])
            out.append(jnp.where(me == 3, done, 0))
            held = lax.ppermute(done, "y", [(i, i + 1) for i in range(3)])
        return lax.psum(jnp.stack(out[3:]), "y")

    return mapped(local, mesh, (P("y"), P()), P()), (draw.weight(4, 8, 8), draw.normal(3, 2, 8)), (P("y"), P())


@program(2, 4)
def tensor_parallel_mlp(draw: Draw, mesh: Mesh) -> Parts:
    def local(x: Any, up: Any, down: Any) -> Any:
        whole = lax.all_gather(x, "y", axis=1, tiled=True)
        part = jax.nn.gelu(whole @ up) @ down
        return lax.psum_scatter(part, "y", scatter_dimension=1, tiled=True)

    specs = (P("x", "y"), P(None, "y"), P("y", None))
    args = (draw.normal(4, 16), draw.weight(16, 32), draw.weight(32, 16))
    return mapped(local, mesh, specs, P("x", "y")), args, specs


@program(1, 8)
def head_exchange(draw: Draw, mesh: Mesh) -> Parts:
    def local(q: Any, k: Any) -> Any:
        q, k = (lax.all_to_all(x, "y", 1, 0, tiled=True) for x in (q, k))
        scores = jax.nn.softmax(jnp.einsum("shd,thd->hst", q, k), -1)
        out = jnp.einsum("hst,thd->shd", scores, k)
        return lax.all_to_all(out, "y", 0, 1, tiled=True)

    return mapped(local, mesh, P("y"), P("y")), (draw.normal(16, 8, 4), draw.normal(16, 8, 4)), (P("y"), P("y"))


@program(2, 2)
def two_axis_reductions(draw: Draw, mesh: Mesh) -> Parts:
    def local(x: Any) -> Any:
        total = lax.psum(x.sum(0), ("x", "y"))
        low, high = lax.pmin(x.min(0), "x"), lax.pmax(x.max(0), "y")
        return total, low, high, x - lax.pmean(x, "y")

    outputs = (P(), P("y"), P("x"), P("x", "y"))
    return mapped(local, mesh, P("x", "y"), outputs), (draw.normal(8, 8),), (P("x", "y"),)


@program(1, 8)
def halo_smoothing(draw: Draw, mesh: Mesh) -> Parts:
    def local(x: Any) -> Any:
        for _ in range(2):
            left = lax.ppermute(x[-1:], "y", ring(8))
            right = lax.ppermute(x[:1], "y", ring(8, -1))
            wide = jnp.concatenate([left, x, right], 0)
            x = 0.25 * wide[:-2] + 0.5 * wide[1:-1] + 0.25 * wide[2:]
        return x

    return mapped(local, mesh, P("y"), P("y")), (draw.normal(16, 4),), (P("y"),)


@program(2, 4)
def data_parallel_gradients(draw: Draw, mesh: Mesh) -> Parts:
    def local(w: Any, x: Any, y: Any) -> Any:
        def loss(w: Any) -> Any:
            return ((jnp.tanh(x @ w["a"]) @ w["b"] - y) ** 2).mean()

        value, grads = jax.value_and_grad(loss)(w)
        grads = jax.tree.map(lambda g: lax.pmean(g, ("x", "y")), grads)
        return lax.pmean(value, ("x", "y")), jax.tree.map(lambda p, g: p - 0.1 * g, w, grads)

    w = {"a": draw.weight(6, 8), "b": draw.weight(8, 2)}
    both = P(("x", "y"))
    fun = mapped(local, mesh, (P(), both, both), P())
    return fun, (w, draw.normal(16, 6), draw.normal(16, 2)), (P(), both, both)


@program(1, 4)
def prefix_offsets(draw: Draw, mesh: Mesh) -> Parts:
    def local(counts: Any) -> Any:
        totals = lax.all_gather(counts.sum(), "y")
        before = jnp.where(jnp.arange(4) < lax.axis_index("y"), totals, 0).sum()
        return jnp.cumsum(counts) - counts + before

    return mapped(local, mesh, P("y"), P("y")), (draw.ids(9, 16),), (P("y"),)


@program(2, 4)
def expert_exchange(draw: Draw, mesh: Mesh) -> Parts:
    def local(x: Any, w: Any) -> Any:
        sent = lax.all_to_all(x, "y", 0, 0, tiled=True)
        done = jax.nn.relu(sent @ w[0])
        return lax.all_to_all(done, "y", 0, 0, tiled=True) + 0.5 * x

    specs = (P(("x", "y")), P("y"))
    return mapped(local, mesh, specs, P(("x", "y"))), (draw.normal(64, 8), draw.weight(4, 8, 8)), specs


@program(1, 2)
def butterfly_bf16(draw: Draw, mesh: Mesh) -> Parts:
    def local(x: Any) -> Any:
        other = lax.ppermute(x, "y", [(0, 1), (1, 0)])
        me = lax.axis_index("y")
        return jnp.where(me == 0, x + other, other - x), lax.psum(x * x, "y")

    return mapped(local, mesh, P("y"), (P("y"), P())), (draw.normal(8, 16, dtype=BF16),), (P("y"),)


@program(2, 2)
def sharded_softmax_loss(draw: Draw, mesh: Mesh) -> Parts:
    def local(logits: Any, labels: Any) -> Any:
        top = lax.pmax(logits.max(-1), "y")
        total = lax.psum(jnp.exp(logits - top[:, None]).sum(-1), "y")
        place = labels - lax.axis_index("y") * logits.shape[1]
        hot = place[:, None] == jnp.arange(logits.shape[1])[None]
        chosen = lax.psum(jnp.where(hot, logits, 0).sum(-1), "y")
        return jnp.log(total) + top - chosen

    specs = (P("x", "y"), P("x"))
    return mapped(local, mesh, specs, P("x")), (draw.normal(4, 16), draw.ids(16, 4)), specs
