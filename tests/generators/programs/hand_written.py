"""Example programs, each in three ways: with jaxmesh, hand-written with `jax.shard_map`, and unsharded.

All run on the mesh (y=2, x=4). What one device does is said once; the two sharded ways differ in who splits and joins.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, PartitionSpec as P

import jaxmesh as jm
from jaxmesh.cli.demo.model import block

MESH = (2, 4)


@dataclass(frozen=True)
class Program:
    """`local` is one device's work on shards, `plain` the same on full arrays; `shapes` the arguments' at scale 1."""

    name: str
    local: Callable[..., Any]
    plain: Callable[..., Any]
    in_specs: tuple[P, ...]
    out_spec: P
    shapes: Callable[[int], tuple[tuple[int, ...], ...]]

    def jaxmesh(self, *args: Any) -> Any:
        """For `jm.jit`: full arrays in, a full array out."""
        shards = [jm.full_to_shard(x, s) for x, s in zip(args, self.in_specs, strict=True)]
        return jm.shard_to_full(self.local(*shards), self.out_spec)

    def mapped(self, mesh: Mesh) -> Callable[..., Any]:
        """The hand-written version."""
        return jax.shard_map(self.local, mesh=mesh, in_specs=self.in_specs, out_specs=self.out_spec)

    def args(self, scale: int = 1) -> tuple[Any, ...]:
        """Random arguments, the same every time, of a size at which results stay near 1."""
        rng = np.random.default_rng(7)
        return tuple(jnp.asarray(rng.normal(size=s) * 0.3, jnp.float32) for s in self.shapes(scale))


# --- a multilayer perceptron, tensor parallel ------------------------------------------------------------------------


def _mlp_plain(x: Any, w1: Any, w2: Any) -> Any:
    return jax.nn.gelu(x @ w1) @ w2


def _mlp_local(x: Any, w1: Any, w2: Any) -> Any:
    return jax.lax.psum(jax.nn.gelu(x @ w1) @ w2, "x")


MLP = Program(
    name="mlp",
    local=_mlp_local,
    plain=_mlp_plain,
    in_specs=(P("y"), P(None, "x"), P("x")),
    out_spec=P("y"),
    shapes=lambda s: ((4 * s, 8 * s), (8 * s, 16 * s), (16 * s, 8 * s)),
)


# --- the same, with the sequence split between the blocks ------------------------------------------------------------


def _sequence_local(x: Any, w1: Any, w2: Any) -> Any:
    whole = jax.lax.all_gather(x, "x", axis=1, tiled=True)
    return jax.lax.psum_scatter(jax.nn.gelu(whole @ w1) @ w2, "x", scatter_dimension=1, tiled=True)


SEQUENCE = Program(
    name="sequence parallel mlp",
    local=_sequence_local,
    plain=_mlp_plain,
    in_specs=(P("y", "x"), P(None, "x"), P("x")),
    out_spec=P("y", "x"),
    shapes=lambda s: ((2, 4 * s, 8 * s), (8 * s, 16 * s), (16 * s, 8 * s)),
)


# --- an attention block: batch over y, heads over x ------------------------------------------------------------------


def _attend(x: Any, wq: Any, wk: Any, wv: Any, wo: Any) -> Any:
    """Attention of the heads at hand, without the residual."""
    q, k, v = (jnp.einsum("bsd,dhk->bhsk", x, w) for w in (wq, wk, wv))
    scores = jnp.einsum("bhsk,bhtk->bhst", q, k) / np.sqrt(q.shape[-1]).astype(np.float32)
    mixed = jnp.einsum("bhst,bhtk->bhsk", jax.nn.softmax(scores), v)
    return jnp.einsum("bhsk,hkd->bsd", mixed, wo)


def _normalize(x: Any) -> Any:
    centered = x - x.mean(-1, keepdims=True)
    return centered * jax.lax.rsqrt((centered * centered).mean(-1, keepdims=True) + 1e-3)


def _attention_plain(x: Any, *weights: Any) -> Any:
    return _normalize(x + _attend(x, *weights))


def _attention_local(x: Any, *weights: Any) -> Any:
    return _normalize(x + jax.lax.psum(_attend(x, *weights), "x"))


ATTENTION = Program(
    name="attention",
    local=_attention_local,
    plain=_attention_plain,
    in_specs=(P("y"), P(None, "x"), P(None, "x"), P(None, "x"), P("x")),
    out_spec=P("y"),
    shapes=lambda s: ((2, 4 * s, 8 * s), *[(8 * s, 4, 2 * s)] * 3, (4, 2 * s, 8 * s)),
)


# --- fully sharded data parallel: the batch over all devices, the weights gathered where they are used ---------------


def _fsdp_local(x: Any, w1: Any, w2: Any) -> Any:
    w1, w2 = (jax.lax.all_gather(w, "x", axis=0, tiled=True) for w in (w1, w2))
    return _mlp_plain(x, w1, w2)


FSDP = Program(
    name="fsdp",
    local=_fsdp_local,
    plain=_mlp_plain,
    in_specs=(P(("y", "x")), P("x"), P("x")),
    out_spec=P(("y", "x")),
    shapes=lambda s: ((8 * s, 8 * s), (8 * s, 16 * s), (16 * s, 8 * s)),
)

# --- a Llama block: batch over y, heads and hidden dim over x --------------------------------------------------------

_WEIGHTS = {
    "attention_norm": P(),
    "wq": P(None, "x"),
    "wk": P(None, "x"),
    "wv": P(None, "x"),
    "wo": P("x"),
    "mlp_norm": P(),
    "w_gate": P(None, "x"),
    "w_up": P(None, "x"),
    "w_down": P("x"),
}


def _llama(x: Any, weights: tuple[Any, ...], join: Callable[[Any], Any]) -> Any:
    return block(dict(zip(_WEIGHTS, weights, strict=True)), x, x.shape[-1] // 4, join)


def _llama_shapes(s: int) -> tuple[tuple[int, ...], ...]:
    """Eight query heads of `2 * s`, two for each key head."""
    width, keys, queries, hidden = 8 * s, 8 * s, 16 * s, 16 * s
    norm, into = (width,), (width, hidden)
    attention = (norm, (width, queries), (width, keys), (width, keys), (queries, width))
    return ((2, 4 * s, width), *attention, norm, into, into, (hidden, width))


LLAMA = Program(
    name="llama block",
    local=lambda x, *weights: _llama(x, weights, lambda part: jax.lax.psum(part, "x")),
    plain=lambda x, *weights: _llama(x, weights, lambda part: part),
    in_specs=(P("y"), *_WEIGHTS.values()),
    out_spec=P("y"),
    shapes=_llama_shapes,
)

PROGRAMS = (MLP, SEQUENCE, ATTENTION, FSDP)
