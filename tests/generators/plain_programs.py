"""Plain JAX programs with shardings: the arguments, the shardings and the mesh of each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import NamedSharding, PartitionSpec as P

import jaxmesh as jm

MESH = jm.make_mesh((2, 4), ("y", "x"))
SMALL = jm.make_mesh((1, 2), ("y", "x"))
LINE = jm.make_mesh((8,), ("x",))
CUBE = jm.make_mesh((2, 2, 2), ("z", "y", "x"))
wsc: Any = lax.with_sharding_constraint


def on(*spec: Any, mesh: Any = MESH) -> NamedSharding:
    return NamedSharding(mesh, P(*spec))


def normal(*shape: int) -> Any:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32)


@dataclass(frozen=True)
class Case:
    """A program, its arguments, its shardings.

    `text` is whether TTIR has a form of it. `like_jax` is whether its results have JAX's shardings.
    """

    name: str
    fun: Callable[..., Any]
    args: tuple[Any, ...]
    in_shardings: Any = None
    out_shardings: Any = None
    mesh: Any = field(default=MESH)
    text: bool = True
    gradients: bool = True

    def options(self) -> dict[str, Any]:
        return {"in_shardings": self.in_shardings, "out_shardings": self.out_shardings}

    def jax_options(self) -> dict[str, Any]:
        def named(s: Any) -> Any:
            return NamedSharding(self.mesh, s) if isinstance(s, P) else s

        return {
            k: jax.tree.map(named, v, is_leaf=lambda s: s is None or isinstance(s, P))
            for k, v in self.options().items()
        }


# --- the programs ----------------------------------------------------------------------------------------------------


def mlp(x: Any, w1: Any, w2: Any) -> Any:
    return jax.nn.relu(x @ w1) @ w2


def attention(x: Any, wq: Any, wk: Any, wv: Any, wo: Any) -> Any:
    q, k, v = ((x @ w).reshape(*x.shape[:2], 4, 4) for w in (wq, wk, wv))
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) / 2
    scores = jnp.where(jnp.tril(jnp.ones((x.shape[1],) * 2, bool)), scores, -1e9)
    mixed = jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores, -1), v)
    return mixed.reshape(x.shape) @ wo


def llama_block(x: Any, wq: Any, wk: Any, wv: Any, wo: Any, gate: Any, up: Any, down: Any) -> Any:
    def norm(x: Any) -> Any:
        return x * lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + 1e-6)

    x = x + attention(norm(x), wq, wk, wv, wo)
    y = norm(x)
    return x + (jax.nn.silu(y @ gate) * (y @ up)) @ down


def train_step(x: Any, w1: Any, w2: Any) -> Any:
    def loss(weights: Any) -> Any:
        return jnp.mean((jax.nn.gelu(x @ weights[0]) @ weights[1]) ** 2)

    value, grads = jax.value_and_grad(loss)((w1, w2))
    return value, [w - 0.1 * g for w, g in zip((w1, w2), grads, strict=True)]


def moe(x: Any, router: Any, experts: Any) -> Any:
    return jnp.einsum("te,teo->to", jax.nn.softmax(x @ router), jnp.einsum("td,edo->teo", x, experts))


def layer_norm(x: Any, g: Any) -> Any:
    mean = x.mean(-1, keepdims=True)
    return (x - mean) * lax.rsqrt(((x - mean) ** 2).mean(-1, keepdims=True) + 1e-5) * g


def scanned(x: Any, ws: Any) -> Any:
    return lax.scan(lambda c, w: (jnp.tanh(c @ w), c.sum()), x, ws)


def convolution(x: Any, k: Any) -> Any:
    return lax.conv_general_dilated(x, k, (1, 1), "SAME")


def pooled(x: Any) -> Any:
    return lax.reduce_window(x, -np.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")


def embedded(table: Any, ids: Any) -> Any:
    return table[lax.stop_gradient(ids).astype(jnp.int32)]


def cross_entropy(logits: Any) -> Any:
    return -jnp.take_along_axis(jax.nn.log_softmax(logits), jnp.arange(8)[:, None] % 4, 1).mean()


@jax.custom_vjp
def straight_through(x: Any) -> Any:
    return jnp.round(x)


straight_through.defvjp(lambda x: (straight_through(x), None), lambda _, g: (g * 3,))


def with_shard_map(x: Any) -> Any:
    body = jax.shard_map(lambda a: lax.psum(a, "x") * 2, mesh=MESH, in_specs=P("y", "x"), out_specs=P("y"))
    return wsc(body(x * 2) + 1, on("x"))


def partly_manual(x: Any) -> Any:
    body = jax.shard_map(
        lambda a: lax.psum(a, "x") * 2, mesh=MESH, in_specs=P(None, "x"), out_specs=P(), axis_names={"x"}
    )
    return body(x * 2) + 1


def by_hand(x: Any, w: Any) -> Any:
    product = lax.psum(jm.full_to_shard(x, P("y", "x")) @ jm.full_to_shard(w, P("x")), "x")
    return jm.shard_to_full(product, P("y"))


def nested(x: Any) -> Any:
    return jm.jit(lambda y: y * 2, mesh=MESH, in_shardings=P("x"))(x) + 1


X, W, V = normal(8, 16), normal(16, 32), normal(32, 16)
SQUARE, BATCH, IMAGES = normal(16, 16), normal(4, 8, 16), normal(4, 8, 8, 8)
FOUR = (SQUARE,) * 4
HEADS = (P(None, "x"),) * 3

CASES = [
    Case("tensor and data parallel mlp", mlp, (X, W, V), (P("y"), P(None, "x"), P("x"))),
    Case("weights split over both axes", mlp, (X, W, V), (P("y"), P("y", "x"), P("x", "y"))),
    Case("mlp on 1x2", mlp, (X, W, V), (P("y"), P(None, "x"), P("x")), mesh=SMALL),
    Case("mlp on 8", mlp, (X, W, V), (P("x"), P(), P()), mesh=LINE),
    Case("mlp on 2x2x2", mlp, (X, W, V), (P("z"), P("y", "x"), P("x", "y")), mesh=CUBE),
    Case("two axes on a dim of 2x2x2", mlp, (X, W, V), (P(("x", "z")), P(None, "y"), P("y")), mesh=CUBE),
    Case("attention, heads split", attention, (BATCH, *FOUR), (P("y"), *HEADS, P("x"))),
    Case("attention, sequence split", attention, (BATCH, *FOUR), (P("y", "x"), *(P(),) * 4)),
    Case("attention on 8", attention, (BATCH, *FOUR), (P(None, "x"), *(P(),) * 4), mesh=LINE),
    Case("llama block", llama_block, (BATCH, *FOUR, SQUARE, SQUARE, SQUARE),
         (P("y"), *HEADS, P("x"), P(None, "x"), P(None, "x"), P("x"))),
    Case("llama block on 2x2x2", llama_block, (BATCH, *FOUR, SQUARE, SQUARE, SQUARE),
         (P("z", "y"), *HEADS, P("x"), P(None, "x"), P(None, "x"), P("x")), mesh=CUBE),
    Case("train step", train_step, (X, W, V), (P("y"), P(None, "x"), P("x")), gradients=False),
    Case("train step, fully sharded", train_step, (X, W, V), (P(("y", "x")), P("x"), P("x")), gradients=False),
    Case("mixture of experts", moe, (X, normal(16, 8), normal(8, 16, 16)), (P("y"), P(), P("x"))),
    Case("layer norm over a split dim", layer_norm, (X, normal(16)), (P("y", "x"), P("x"))),
    Case("softmax over a split dim", jax.nn.softmax, (X,), P("y", "x")),
    Case("logsumexp over two axes", lambda x: jax.nn.logsumexp(x, 0), (X,), P(("y", "x"))),
    Case("cross entropy, vocabulary split", cross_entropy, (X,), P("y", "x")),
    Case("embedding, vocabulary split", embedded, (normal(16, 8), np.float32([1, 3, 5, 15])), (P("x"), P("y"))),
    Case("embedding, vocabulary split over 8", embedded, (normal(16, 8), np.float32([1, 3, 5, 15])), (P("x"), P()),
         mesh=LINE),
    Case("scan", scanned, (X, normal(3, 16, 16)), (P("y"), P(None, None, "x"))),
    Case("fori_loop", lambda x: lax.fori_loop(0, 3, lambda i, c: jnp.sin(c) + i, x), (X,), P("y", "x")),
    Case("while_loop", lambda x: lax.while_loop(lambda c: c.sum() < 100, lambda c: c * 2 + 1, jnp.abs(x)), (X,),
         P("y"), text=False, gradients=False),
    Case("cond", lambda x: lax.cond(x.sum() > 0, lambda x: x * 2, lambda x: x - 1, x), (X,), P("y")),
    Case("switch", lambda x: lax.switch(1, [jnp.sin, jnp.cos], x), (X,), P("y")),
    Case("remat", lambda x, w: jax.checkpoint(lambda x: jnp.sin(x @ w) @ w)(x), (X, SQUARE), (P("y"), P(None, "x"))),
    Case("custom_vjp", lambda x: straight_through(x) * x, (X,), P("y", "x")),
    Case("stop_gradient", lambda x: lax.stop_gradient(x) * x, (X,), P("y", "x")),
    Case("relu at ties", lambda x: jax.nn.relu(x * 0), (X,), P("y")),
    Case("maximum over a split dim", lambda x: x.max(0), (X,), P("y", "x")),
    Case("product over a split dim", lambda x: x.prod(0), (X,), P(("y", "x"))),
    Case("and, or over a split dim", lambda x: ((x > 0).any(0), (x > -9).all(0)), (X,), P("y", "x"), gradients=False),
    Case("argmax over a split dim", lambda x: jnp.argmax(x, 0), (X,), P("y", "x"), gradients=False),
    Case("convolution, batch and features", convolution, (IMAGES, normal(8, 8, 3, 3)), (P("y"), P("x"))),
    Case("convolution, split window dims", convolution, (IMAGES, normal(8, 8, 3, 3)), (P(None, None, "y", "x"), P())),
    Case("max-pooling, split window dims", pooled, (IMAGES,), P(None, "y", "x")),
    Case("roll", lambda x: jnp.roll(x, 3, 0), (X,), P("y", "x")),
    Case("reverse", lambda x: x[::-1], (X,), P("y", "x")),
    Case("pad", lambda x: jnp.pad(x, ((1, 3), (0, 0))), (X,), P("y", "x")),
    Case("concatenate", lambda x: jnp.concatenate([x, x * 2]), (X,), P("y", "x")),
    Case("a slice that cuts", lambda x: x[1:7, ::2], (X,), P("y", "x")),
    Case("odd rows over 8", lambda x: x[1:16:2, 1:5], (SQUARE,), P(("y", "x"))),
    Case("a slice that crosses shards", lambda x: x[:12, 2:10], (SQUARE,), P("y", "x"), P("y", "x")),
    Case("every ninth row over 8", lambda x: x[::9] * 2, (normal(64, 16),), P("x"), mesh=LINE),
    Case("uneven result", lambda x: jnp.concatenate([x, x[:1]]) * 2, (X,), P("y")),
    Case("uneven reshape", lambda x: x.reshape(4, 32)[:3] * 2, (X,), P("x")),
    Case("sort", lambda x: jnp.sort(x, 0), (X,), P("y", "x")),
    Case("top_k", lambda x: lax.top_k(x, 3)[0], (X,), P("y", "x")),
    Case("cumsum", lambda x: jnp.cumsum(x, 0), (X,), P("y", "x")),
    Case("scatter", lambda x: x.at[np.array([1, 3, 6])].add(1.0), (X,), P("y", "x")),
    Case("segment_sum", lambda x: jax.ops.segment_sum(x, np.array([0, 1, 1, 2, 3, 3, 3, 0]), 4), (X,), P("x", "y")),
    Case("cache update", lambda c, x: lax.dynamic_update_slice_in_dim(c, x, 3, 0), (X, normal(2, 16)),
         (P("y", "x"), P(None, "x"))),
    Case("random", lambda x: x + jax.random.normal(jax.random.key(0), x.shape), (X,), P("y", "x")),
    Case("constraints in between", lambda x, w: wsc(wsc(x @ w, on("y", "x")) * 2, on("x")), (X, SQUARE)),
    Case("reduce_scatter", lambda x, w: wsc(x @ w, on("y", "x")), (X, SQUARE), (P("y", "x"), P("x"))),
    Case("device_put", lambda x: jax.device_put(x * 2, on("y", "x")) + 1, (X,)),
    Case("out_shardings alone", lambda x: x * 2, (X,), None, P("x", "y")),
    Case("reshard at the end", lambda x: x.T, (X,), P("y"), P(None, ("x", "y"))),
    Case("trees and None", lambda d, e: {"a": d["a"] * 2, "b": (d["b"][0] @ e,)}, ({"a": X, "b": (X,)}, SQUARE),
         ({"a": P("y", "x"), "b": (None,)}, P("x")), {"a": P("x"), "b": None}),
    Case("a prefix", lambda d, e: jax.tree.map(jnp.sin, (d, e)), ({"a": X, "b": X}, X), P("y", "x"), P("x")),
    Case("shard_map inside", with_shard_map, (X,), P("y", "x")),
    Case("shard_map over one axis", partly_manual, (X,), P("y", "x")),
    Case("jax.jit inside", lambda x: jax.jit(jnp.sin, in_shardings=on("x"))(x) + 1, (X,), P("y")),
    Case("jax.jit with shardings inside jm.jit", jax.jit(mlp, in_shardings=(on("y"), on(None, "x"), on("x")),
         out_shardings=on("y")), (X, W, V)),
    Case("jm.jit inside", nested, (X,), P("y")),
    Case("an array closed over", lambda x: x @ jnp.asarray(SQUARE), (X,), P("y", "x")),
    Case("bfloat16", lambda x, w: (x.astype(jnp.bfloat16) @ w.astype(jnp.bfloat16)).sum(0), (X, SQUARE),
         (P("y"), P(None, "x")), gradients=False),
]  # fmt: skip


def jitted(case: Case) -> Any:
    return jm.jit(case.fun, mesh=case.mesh, **case.options())
