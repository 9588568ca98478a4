"""A Llama-style transformer block: one implementation for all heads and for the heads of one device."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import jax
import jax.numpy as jnp
import numpy as np

Join = Callable[[jax.Array], jax.Array]

NORM_EPSILON = 1e-5
ROTARY_BASE = 10_000.0
NEVER = float(np.finfo(np.float32).min)
"""The score of a future position; finite, so that no gradient computes inf - inf."""


def block(weights: Mapping[str, jax.Array], x: jax.Array, head: int, join: Join) -> jax.Array:
    """Returns attention and MLP with residuals for `x`: `(batch, sequence, width)`.

    `Dims.weight_shapes` names the weights, on all heads or local to one device. `head` is the size of one head,
    and `join` sums the partial results of the output and down projections.
    """
    x = x + join(attention(weights, rms_norm(x, weights["attention_norm"]), head) @ weights["wo"])
    return x + join(swiglu(weights, rms_norm(x, weights["mlp_norm"])) @ weights["w_down"])


def rms_norm(x: jax.Array, scale: jax.Array) -> jax.Array:
    """Returns `x` divided by the root of the mean square over the last dim, and scaled."""
    return x * jax.lax.rsqrt(jnp.mean(x * x, axis=-1, keepdims=True) + NORM_EPSILON) * scale


def attention(weights: Mapping[str, jax.Array], x: jax.Array, head: int) -> jax.Array:
    """Returns causal rotary attention with grouped heads, before the output projection."""
    batch, sequence, _ = x.shape
    rotation = rotary_angles(sequence, head)
    k = rotate((x @ weights["wk"]).reshape(batch, sequence, -1, head), rotation)
    v = (x @ weights["wv"]).reshape(batch, sequence, -1, head)
    q = rotate((x @ weights["wq"]).reshape(batch, sequence, -1, head), rotation)
    q = q.reshape(batch, sequence, k.shape[2], -1, head)
    scores = jnp.einsum("bskgh,btkh->bkgst", q, k) / math.sqrt(head)
    past = jnp.tril(jnp.ones((sequence, sequence), bool))
    shares = jax.nn.softmax(jnp.where(past, scores, NEVER), axis=-1)
    return jnp.einsum("bkgst,btkh->bskgh", shares, v).reshape(batch, sequence, -1)


def rotary_angles(sequence: int, head: int) -> tuple[jax.Array, jax.Array]:
    """Returns cosine and sine of each feature pair's rotation angle, `(sequence, 1, head / 2)`."""
    half = head // 2
    speed = ROTARY_BASE ** (-jnp.arange(half, dtype=jnp.float32) / half)
    angle = (jnp.arange(sequence, dtype=jnp.float32)[:, None] * speed)[:, None, :]
    return jnp.cos(angle), jnp.sin(angle)


def rotate(x: jax.Array, rotation: tuple[jax.Array, jax.Array]) -> jax.Array:
    """Returns the rotary embedding of `(batch, sequence, heads, head)`: rotates each pair of features by its
    position."""
    cos, sin = rotation
    a, b = jnp.split(x, 2, axis=-1)
    return jnp.concatenate([a * cos - b * sin, a * sin + b * cos], axis=-1)


def swiglu(weights: Mapping[str, jax.Array], x: jax.Array) -> jax.Array:
    """Returns the gated MLP, before the down projection."""
    return jax.nn.silu(x @ weights["w_gate"]) * (x @ weights["w_up"])
