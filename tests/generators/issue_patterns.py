"""Small programs in the shapes of sharded models whose compiles users found wrong, or had to bisect.

Each names the issue of tt-xla.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec as P

from tests.generators.plain_programs import BATCH, SQUARE, Case, W, X, normal, on, wsc

WIDE, FUSED, LONG = normal(16, 64), normal(16, 48), normal(32, 16)


def gated(x: Any, both: Any, down: Any) -> Any:
    """Gate and up by one product, in two halves of the columns."""
    gate, up = jnp.split(x @ both, 2, -1)
    return (jax.nn.silu(gate) * up) @ down


def gated_in_pairs(x: Any, both: Any, down: Any) -> Any:
    """Gate and up by one product, in alternate columns."""
    gate, up = jnp.moveaxis((x @ both).reshape(*x.shape[:-1], -1, 2), -1, 0)
    return (jax.nn.silu(gate) * up) @ down


def mixed(q: Any, k: Any, v: Any) -> Any:
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) / 2
    scores = jnp.where(jnp.tril(jnp.ones((q.shape[1],) * 2, bool)), scores, -1e9)
    return jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores, -1), v)


def fused_attention(x: Any, qkv: Any, wo: Any) -> Any:
    """Q, K and V by one product, in three parts of the columns."""
    q, k, v = (part.reshape(*x.shape[:2], 4, -1) for part in jnp.split(x @ qkv, 3, -1))
    return mixed(q, k, v).reshape(x.shape) @ wo


def grouped_attention(x: Any, qkv: Any, wo: Any) -> Any:
    """The same with the parts inside of each head."""
    q, k, v = jnp.split((x @ qkv).reshape(*x.shape[:2], 4, -1), 3, -1)
    return mixed(q, k, v).reshape(x.shape) @ wo


def modulated(x: Any, t: Any, w: Any) -> Any:
    """The six modulations of a diffusion transformer, cut from one product."""
    shift, scale, gate, *_ = jnp.split(jax.nn.silu(t) @ w, 6, -1)
    return x + gate[:, None] * jnp.tanh(x * (1 + scale[:, None]) + shift[:, None])


def rotated(x: Any, angles: Any) -> Any:
    a, b = jnp.split(x, 2, -1)
    return jnp.concatenate([a * jnp.cos(angles) - b * jnp.sin(angles), a * jnp.sin(angles) + b * jnp.cos(angles)], -1)


def normed(x: Any, scale: Any) -> Any:
    return x * lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + 1e-6) * scale


def llama_2d(x: Any, scales: Any, wq: Any, wk: Any, wv: Any, wo: Any, gate: Any, up: Any, down: Any) -> Any:
    y, angles = normed(x, scales[0]), jnp.arange(x.shape[1], dtype=jnp.float32)[:, None, None] / 10
    q, k, v = ((y @ w).reshape(*x.shape[:2], 4, 4) for w in (wq, wk, wv))
    x = x + mixed(rotated(q, angles), rotated(k, angles), v).reshape(x.shape) @ wo
    y = normed(x, scales[1])
    return x + (jax.nn.silu(y @ gate) * (y @ up)) @ down


def resharded(x: Any, w: Any, before: Any, after: Any) -> Any:
    return jnp.tanh(wsc(wsc(x @ w, before) * 2, after)) @ w


def patchified(x: Any, w: Any) -> Any:
    """An image in patches, whose rows are split."""
    b, h, _, c = x.shape
    return x.reshape(b, h // 2, 2, h // 2, 2, c).transpose(0, 1, 3, 2, 4, 5).reshape(b, -1, 4 * c) @ w


TWO_D = (P("y"), P(), *(P("y", "x"),) * 3, P("x", "y"), P("y", "x"), P("y", "x"), P("x", "y"))

PATTERNS = [
    Case("5862: halves of split columns", lambda x: x[:, :8] * x[:, 8:], (X,), P("y", "x")),
    Case("5862: chunk of a product", lambda x, w: jnp.multiply(*jnp.split(x @ w, 2, -1)), (X, W),
         (P("y"), P(None, "x"))),
    Case("5351: six modulations", modulated, (BATCH, normal(4, 16), normal(16, 96)), (P("y"), P("y"), P(None, "x"))),
    Case("5351: chunk of split rows", lambda x: jnp.multiply(*jnp.split(x, 2, 0)), (LONG,), P(("x", "y"))),
    Case("5314: fused Q, K, V", fused_attention, (BATCH, FUSED, SQUARE), (P("y"), P(None, "x"), P("x"))),
    Case("5314: fused Q, K, V by heads", grouped_attention, (BATCH, FUSED, SQUARE), (P("y"), P(None, "x"), P("x"))),
    Case("5314: fused gate and up", gated, (X, WIDE, normal(32, 16)), (P("y"), P(None, "x"), P("x"))),
    Case("5314: fused gate and up in pairs", gated_in_pairs, (X, WIDE, normal(32, 16)), (P("y"), P(None, "x"), P("x"))),
    Case("5653: reshard from y to x", lambda x, w: resharded(x, w, on("y"), on("x")), (LONG, SQUARE), (P("y"), P())),
    Case("5653: reshard of rows to columns", lambda x, w: resharded(x, w, on("y"), on(None, "y")), (LONG, SQUARE),
         (P("y"), P())),
    Case("5653: reshard of two axes to one", lambda x, w: resharded(x, w, on(("x", "y")), on("x")), (LONG, SQUARE),
         (P(("x", "y")), P())),
    Case("5653: reshard of one axis to two", lambda x, w: resharded(x, w, on("x"), on(("x", "y"))), (LONG, SQUARE),
         (P("x"), P())),
    Case("5653: reshard to all devices", lambda x, w: resharded(x, w, on("y", "x"), on()), (LONG, SQUARE),
         (P("y"), P(None, "x"))),
    Case("5490: patches of split rows", patchified, (normal(2, 8, 8, 4), SQUARE), (P(None, "x"), P(None, "y"))),
    Case("5490: lookup of split rows", lambda t, i: t[lax.stop_gradient(i).astype(jnp.int32)] * 2,
         (LONG, jnp.arange(8, dtype=jnp.float32) * 3), (P(("x", "y")), P())),
    Case("2976: 2-D llama block", llama_2d, (BATCH, normal(2, 16), *(SQUARE,) * 4, W, W, normal(32, 16)), TWO_D),
    Case("2976: padded heads", lambda x, w: jnp.pad(x @ w, ((1, 2), (3, 5))) * 2, (X, SQUARE), (P("y"), P(None, "x"))),
    Case("2976: padded sequence", lambda x: jnp.tanh(jnp.pad(x, ((0, 0), (2, 0), (0, 0)))), (BATCH,),
         P("y", None, "x")),
    Case("5096: rows of all devices", lambda x, w: jnp.tanh(x)[3:29] @ w, (LONG, SQUARE), (P(("x", "y")), P())),
    Case("5096: a window of the cache", lambda c, x: jnp.concatenate([c[:, 2:], x], 1) * 2,
         (normal(4, 8, 16), normal(4, 2, 16)), (P("y", None, "x"), P("y", None, "x"))),
]  # fmt: skip
