"""Llama 3, tensor parallel over all devices of a mesh, in plain JAX: RMSNorm, rotary embedding, grouped heads, SwiGLU.

The tables of the model (cosines, sines, the causal mask) are computed in the program, or held by it: then each layer
holds arrays of its own, as in libraries whose layers make their tables when they are built.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import PartitionSpec as P

import jaxmesh as jm

EPSILON = 1e-5
AXES = ("y", "x")
ROWS, COLUMNS = P(AXES), P(None, AXES)


@dataclasses.dataclass(frozen=True, slots=True)
class Llama:
    """The sizes of a model; those of Llama 3 8B unless others are given."""

    layers: int = 32
    width: int = 4096
    heads: int = 32
    kv_heads: int = 8
    head: int = 128
    hidden: int = 14336
    vocabulary: int = 128256
    base: float = 500_000.0
    batch: int = 1
    sequence: int = 2048
    held_tables: bool = False

    def weights(self) -> dict[str, Any]:
        """The shapes of the weights."""
        query, key = self.heads * self.head, self.kv_heads * self.head
        layer = {
            "attention_norm": (self.width,), "wq": (self.width, query), "wk": (self.width, key),
            "wv": (self.width, key), "wo": (query, self.width), "mlp_norm": (self.width,),
            "gate": (self.width, self.hidden), "up": (self.width, self.hidden), "down": (self.hidden, self.width),
        }  # fmt: skip
        return {
            "embedding": (self.vocabulary, self.width),
            "layers": [dict(layer) for _ in range(self.layers)],
            "norm": (self.width,),
            "head": (self.width, self.vocabulary),
        }

    def arguments(self) -> tuple[Any, jax.ShapeDtypeStruct]:
        """The types of the weights and of the tokens."""
        weights = jax.tree.map(
            lambda s: jax.ShapeDtypeStruct(s, jnp.bfloat16), self.weights(), is_leaf=lambda x: isinstance(x, tuple)
        )
        return weights, jax.ShapeDtypeStruct((self.batch, self.sequence), np.int32)


LAYER_SPECS = {
    "attention_norm": P(), "wq": COLUMNS, "wk": COLUMNS, "wv": COLUMNS, "wo": ROWS, "mlp_norm": P(),
    "gate": COLUMNS, "up": COLUMNS, "down": ROWS,
}  # fmt: skip


def specs(sizes: Llama) -> dict[str, Any]:
    """How the weights are split."""
    layers = [LAYER_SPECS] * sizes.layers
    return {"embedding": COLUMNS, "layers": layers, "norm": P(), "head": COLUMNS}


def program(sizes: Llama, mesh: Any, way: str = "shard_map") -> Any:
    """Returns the function of the weights and the tokens that gives the logits: by `shard_map`, or by `mesh_shard`."""
    local = functools.partial(forward, sizes, join=lambda x: lax.psum(x, AXES), tables=held(sizes))
    spec = P(None, None, AXES)
    if way == "shard_map":
        return jm.shard_map(local, mesh=mesh, in_specs=(specs(sizes), P()), out_specs=spec)

    def by_hand(weights: Any, tokens: Any) -> Any:
        split = jax.tree.map(jm.full_to_shard, weights, specs(sizes))
        return jm.shard_to_full(local(split, jm.full_to_shard(tokens, P())), spec)

    return jm.jit(by_hand, mesh=mesh)


def plain(sizes: Llama) -> Callable[..., Any]:
    """Returns the unsharded function."""
    return functools.partial(forward, sizes, join=None, tables=held(sizes))


Tables = tuple[Any, Any, Any]


def tables_of(sizes: Llama, xp: Any) -> Tables:
    """Cosines and sines of the rotary embedding, and the causal mask, by NumPy or in the program."""
    half = sizes.head // 2
    speeds = sizes.base ** (-xp.arange(half, dtype=np.float32) / half)
    angles = xp.arange(sizes.sequence, dtype=np.float32)[:, None, None] * speeds
    return xp.cos(angles), xp.sin(angles), xp.tril(xp.ones((sizes.sequence, sizes.sequence), bool))


def held(sizes: Llama) -> list[Tables] | None:
    """The tables of each layer, in memory of its own; None if the program computes them."""
    return [tables_of(sizes, np) for _ in range(sizes.layers)] if sizes.held_tables else None


def forward(sizes: Llama, weights: Any, tokens: Any, *, join: Any, tables: list[Tables] | None) -> jax.Array:
    """The logits, on all weights or on one device's, which `join` sums."""
    x = weights["embedding"][tokens]
    if join is not None:
        x = lax.all_gather(x, AXES, axis=2, tiled=True)
    join = join or (lambda y: y)
    for i, w in enumerate(weights["layers"]):
        turn = tables_of(sizes, jnp) if tables is None else tables[i]
        x = x + join(attention(w, norm(x, w["attention_norm"]), sizes, turn) @ w["wo"])
        x = x + join(swiglu(w, norm(x, w["mlp_norm"])))
    return norm(x, weights["norm"]) @ weights["head"]


def norm(x: jax.Array, scale: jax.Array) -> jax.Array:
    """RMSNorm with float32 statistics."""
    wide = x.astype(jnp.float32)
    return (wide * lax.rsqrt(jnp.mean(wide * wide, -1, keepdims=True) + EPSILON)).astype(x.dtype) * scale


def rotate(x: jax.Array, cos: Any, sin: Any) -> jax.Array:
    """The rotary embedding of `(batch, sequence, heads, head)`, in float32."""
    a, b = jnp.split(x.astype(jnp.float32), 2, axis=-1)
    return jnp.concatenate([a * cos - b * sin, a * sin + b * cos], -1).astype(x.dtype)


def attention(w: Mapping[str, jax.Array], x: jax.Array, sizes: Llama, tables: Tables) -> jax.Array:
    """Causal attention with grouped heads, before the output projection."""
    cos, sin, past = tables
    batch, sequence, _ = x.shape
    q, k, v = ((x @ w[name]).reshape(batch, sequence, -1, sizes.head) for name in ("wq", "wk", "wv"))
    q, k = rotate(q, cos, sin), rotate(k, cos, sin)
    q = q.reshape(batch, sequence, k.shape[2], -1, sizes.head)
    scores = jnp.einsum("bskgh,btkh->bkgst", q, k).astype(jnp.float32) / math.sqrt(sizes.head)
    shares = jax.nn.softmax(jnp.where(past, scores, -jnp.inf), -1).astype(x.dtype)
    return jnp.einsum("bkgst,btkh->bskgh", shares, v).reshape(batch, sequence, -1)


def swiglu(w: Mapping[str, jax.Array], x: jax.Array) -> jax.Array:
    """The gated MLP."""
    return (jax.nn.silu(x @ w["gate"]) * (x @ w["up"])) @ w["down"]
