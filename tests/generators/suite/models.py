"""Programs of the suite as models have them: perceptrons, attention, a Llama block, experts, heads, sampling."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
from jax import lax
from jax.sharding import PartitionSpec as P

import jaxmesh as jm
from jaxmesh.cli.demo.model import Dims, make_inputs, sharded_model, unsharded_model
from tests.generators.programs import hand_written as programs
from tests.generators.suite.entry import Entry, Make

ROUNDING = 1e-5
MESH = jm.make_mesh((2, 4), ("y", "x"))


def normal(*shapes: tuple[int, ...], scale: float = 0.5, dtype: Any = np.float32) -> Make:
    """Random arguments near 0."""
    return lambda rng: tuple((rng.normal(size=s) * scale).astype(dtype) for s in shapes)


def whole(*shapes: tuple[int, ...]) -> Make:
    """Small whole numbers, whose products and sums are exact."""
    return lambda rng: tuple(rng.integers(-4, 5, s).astype(np.float32) for s in shapes)


def split(args: tuple[Any, ...], specs: tuple[P, ...]) -> list[Any]:
    return [jm.full_to_shard(x, s) for x, s in zip(args, specs, strict=True)]


def sharded(local: Callable[..., Any], specs: tuple[P, ...], out: P) -> Callable[..., Any]:
    """What one device does, between `mesh_shard`s."""
    return lambda *args: jm.shard_to_full(local(*split(args, specs)), out)


# --- perceptrons, tensor parallel and fully sharded ------------------------------------------------------------------


def borrowed(p: programs.Program) -> Entry:
    """One of the programs that other suites use, too."""
    return Entry(p.name, p.jaxmesh, normal(*p.shapes(1)), p.plain, tolerance=ROUNDING)


def perceptron(x: Any, w1: Any, b1: Any, w2: Any, b2: Any, join: Callable[[Any], Any] = lambda v: v) -> Any:
    return join(jax.nn.gelu(x @ w1 + b1, approximate=False) @ w2) + b2


PERCEPTRON = (P("y"), P(None, "x"), P("x"), P("x"), P())


def fsdp_loss(x: Any, w1: Any, w2: Any, target: Any) -> Any:
    return jnp.mean((jax.nn.silu(x @ w1) @ w2 - target) ** 2)


def fsdp_local(x: Any, w1: Any, w2: Any, target: Any) -> Any:
    w1, w2 = (lax.all_gather(w, "x", axis=0, tiled=True) for w in (w1, w2))
    return lax.pmean(fsdp_loss(x, w1, w2, target), ("y", "x"))


FSDP = (P(("y", "x")), P("x"), P("x"), P(("y", "x")))
FSDP_SHAPES = ((8, 8), (8, 16), (16, 8), (8, 8))


def in_bfloat16(x: Any, w1: Any, w2: Any) -> Any:
    """Statistics in float32, products in bfloat16."""
    wide = x.astype(jnp.float32)
    wide = wide * lax.rsqrt(jnp.mean(wide * wide, -1, keepdims=True) + 1e-6)
    return jax.nn.softmax(jax.nn.silu(wide.astype(x.dtype) @ w1) @ w2)


def bfloat16_plain(*args: np.ndarray) -> np.ndarray:
    return np.asarray(in_bfloat16(*map(jnp.asarray, args)))


def update(x: Any, w: Any) -> Any:
    """One step of data-parallel training, written with shard_map."""

    def loss(w: Any, x: Any) -> Any:
        return jnp.mean(jnp.tanh(x @ w) ** 2)

    def local(x: Any, w: Any) -> Any:
        mine = lax.pcast(w, ("y", "x"), to="varying")
        return w - 0.5 * lax.pmean(jax.grad(loss)(mine, x), ("y", "x"))

    return jm.shard_map(local, mesh=MESH, in_specs=(P(("y", "x")), P()), out_specs=P())(x, w)


def update_plain(x: Any, w: Any) -> Any:
    return w - 0.5 * jax.grad(lambda v: jnp.mean(jnp.tanh(x @ v) ** 2))(jnp.asarray(w))


def two_layers(x: Any, w: Any) -> Any:
    """An existing program: a loop over `jax.shard_map`s."""
    layer = jax.shard_map(
        lambda x, w: jnp.tanh(lax.psum(x @ w, "x")), mesh=MESH, in_specs=(P("y", "x"), P("x")), out_specs=P("y")
    )
    return lax.scan(lambda c, w: (layer(c, w), None), x, w)[0]


PERCEPTRONS = [
    *map(borrowed, programs.PROGRAMS),
    Entry(
        "2-D matmul",
        sharded(lambda x, w: lax.psum(x @ w, "x"), (P("y", "x"), P("x")), P("y")),
        whole((4, 8), (8, 6)),
        lambda x, w: x @ w,
    ),
    Entry(
        "mlp with biases",
        sharded(
            functools.partial(perceptron, join=lambda v: lax.psum(v, "x")),
            PERCEPTRON,
            P("y"),
        ),
        normal((4, 8), (8, 16), (16,), (16, 8), (8,)),
        perceptron,
        tolerance=ROUNDING,
    ),
    Entry(
        "fsdp with gradients",
        jax.value_and_grad(sharded(fsdp_local, FSDP, P()), argnums=(1, 2)),
        normal(*FSDP_SHAPES),
        jax.value_and_grad(fsdp_loss, argnums=(1, 2)),
        tolerance=ROUNDING,
    ),
    Entry(
        "mlp in bfloat16",
        sharded(in_bfloat16, (P("y"), P(), P()), P("y")),
        normal((4, 8), (8, 16), (16, 8), dtype=ml_dtypes.bfloat16),
        bfloat16_plain,
        tolerance=2e-2,
    ),
    Entry("data parallel step, shard_map", update, normal((16, 8), (8, 4)), update_plain, tolerance=ROUNDING),
    Entry(
        "existing program in a loop",
        two_layers,
        normal((4, 8), (2, 8, 8)),
        lambda x, w: functools.reduce(lambda c, v: jnp.tanh(c @ v), w, x),
        tolerance=ROUNDING,
    ),
]


# --- attention -------------------------------------------------------------------------------------------------------


def attend(q: Any, k: Any, v: Any, seen: Any) -> Any:
    """Attention of `(batch, sequence, heads, size)` to positions that are seen."""
    scores = jnp.einsum("bshd,bthd->bhst", q, k) * np.float32(q.shape[-1] ** -0.5)
    shares = jax.nn.softmax(jnp.where(seen, scores, np.float32(-1e30)), axis=-1)
    return jnp.einsum("bhst,bthd->bshd", shares, v)


def causal(q: Any, k: Any, v: Any) -> Any:
    return attend(q, k, v, jnp.tril(jnp.ones((q.shape[1], k.shape[1]), bool)))


def cached(q: Any, k: Any, v: Any, keys: Any, values: Any, position: Any) -> Any:
    """One step of decoding: the new key and value enter the caches where the program is told at run time."""
    keys = lax.dynamic_update_slice(keys, k, (0, position, 0, 0))
    values = lax.dynamic_update_slice(values, v, (0, position, 0, 0))
    return attend(q, keys, values, jnp.arange(keys.shape[1]) <= position), keys, values


HEADS = P("y", None, "x")
NEW, CACHE = (2, 1, 4, 2), (2, 6, 4, 2)


def cached_sharded(*args: Any) -> Any:
    made = cached(*split(args, (HEADS,) * 5 + (P(),)))
    return [jm.shard_to_full(v, HEADS) for v in made]


def ring_attention(q: Any, k: Any, v: Any) -> Any:
    """Blocks of keys and values pass by; the softmax is kept up to date."""
    ring = [(i, (i + 1) % 4) for i in range(4)]
    scale = np.float32(q.shape[-1] ** -0.5)

    def scores_of(k: Any) -> Any:
        return jnp.einsum("sd,td->st", q, k) * scale

    first = scores_of(k)
    top = jnp.max(first, -1)
    shares = jnp.exp(first - top[:, None])
    total, mixed = jnp.sum(shares, -1), shares @ v
    for _ in range(3):
        k, v = lax.ppermute(k, "x", ring), lax.ppermute(v, "x", ring)
        scores = scores_of(k)
        higher = jnp.maximum(top, jnp.max(scores, -1))
        keep, shares = jnp.exp(top - higher), jnp.exp(scores - higher[:, None])
        total, mixed = total * keep + jnp.sum(shares, -1), mixed * keep[:, None] + shares @ v
        top = higher
    return mixed / total[:, None]


def ring_attention_plain(q: Any, k: Any, v: Any) -> Any:
    return jax.nn.softmax(q @ k.T * np.float32(q.shape[-1] ** -0.5), axis=-1) @ v


LLAMA = Dims(batch=2, sequence=4, width=8, kv_heads=4, queries_per_kv=2, head=4, hidden=16)
PLAIN_LLAMA, SHARDED_LLAMA = unsharded_model(LLAMA), sharded_model(LLAMA, MESH)


def llama_args(rng: np.random.Generator) -> tuple[Any, ...]:
    return jax.tree.map(np.asarray, make_inputs(LLAMA, int(rng.integers(1000))))


ATTENTIONS = [
    Entry(
        "causal attention",
        sharded(causal, (HEADS,) * 3, HEADS),
        normal(*[(2, 4, 4, 2)] * 3),
        causal,
        tolerance=ROUNDING,
    ),
    Entry(
        "attention with a cache",
        cached_sharded,
        lambda rng: (*normal(*[NEW] * 3, *[CACHE] * 2)(rng), rng.integers(0, 6, dtype=np.int32)),
        cached,
        tolerance=ROUNDING,
    ),
    Entry(
        "ring attention",
        sharded(ring_attention, (P("x"),) * 3, P("x")),
        normal(*[(8, 4)] * 3),
        ring_attention_plain,
        tolerance=ROUNDING,
    ),
    Entry(
        "llama block",
        lambda w, x, t: SHARDED_LLAMA.forward(w, x),
        llama_args,
        lambda w, x, t: PLAIN_LLAMA.forward(w, x),
        tolerance=ROUNDING,
    ),
    Entry(
        "llama block with gradients",
        jax.value_and_grad(SHARDED_LLAMA.loss, argnums=(0, 1)),
        llama_args,
        jax.value_and_grad(PLAIN_LLAMA.loss, argnums=(0, 1)),
        tolerance=2e-5,
    ),
]


# --- experts ---------------------------------------------------------------------------------------------------------

EXPERTS, CAPACITY = 4, 3


def routed(x: Any, gate: Any) -> tuple[Any, Any]:
    """Which place of which expert each token gets, `(tokens, experts, capacity)`, and by how much it counts."""
    shares = jax.nn.softmax(x @ gate, axis=-1)
    mine = jax.nn.one_hot(jnp.argmax(shares, -1), EXPERTS, dtype=x.dtype)
    place = jnp.cumsum(mine, 0) * mine - 1
    slots = jax.nn.one_hot(place.astype(jnp.int32), CAPACITY, dtype=x.dtype) * mine[..., None]
    return slots, jnp.max(shares, -1)


def expert(x: Any, w1: Any, w2: Any) -> Any:
    return jax.nn.relu(x @ w1) @ w2


def experts_local(x: Any, gate: Any, w1: Any, w2: Any) -> Any:
    slots, share = routed(x, gate)
    sent = lax.all_to_all(jnp.einsum("tec,td->ecd", slots, x), "x", 0, 1, tiled=True)
    back = lax.all_to_all(expert(sent[0], w1[0], w2[0])[None], "x", 1, 0, tiled=True)
    return jnp.einsum("tec,ecd->td", slots, back) * share[:, None]


def experts_plain(x: Any, gate: Any, w1: Any, w2: Any) -> Any:
    """The same for each device's tokens: the capacity is per device."""

    def group(tokens: Any) -> Any:
        slots, share = routed(tokens, gate)
        given = jnp.einsum("tec,td->ecd", slots, tokens)
        back = jnp.stack([expert(given[e], w1[e], w2[e]) for e in range(EXPERTS)])
        return jnp.einsum("tec,ecd->td", slots, back) * share[:, None]

    return jnp.concatenate([group(jnp.asarray(t)) for t in np.split(x, 8)])


# --- heads and sampling ----------------------------------------------------------------------------------------------


def pooled(images: Any, w: Any, b: Any) -> Any:
    """The end of a convolutional net: mean over the pixels, linear, softmax."""
    return jax.nn.softmax(jnp.mean(images, (1, 2)) @ w + b, axis=-1)


def layer_normed(x: Any, scale: Any, offset: Any, w: Any, b: Any) -> Any:
    mean = jnp.mean(x, -1, keepdims=True)
    variance = jnp.mean(jnp.square(x - mean), -1, keepdims=True)
    return ((x - mean) * lax.rsqrt(variance + 1e-5) * scale + offset) @ w + b


def logits_of(ids: Any, table: Any, head: Any) -> Any:
    """The table's columns are split, and the head's columns: the whole vocabulary is gathered last."""
    hidden = lax.all_gather(jnp.take(table, ids, axis=0), "x", axis=1, tiled=True)
    return lax.all_gather(hidden @ head, "x", axis=1, tiled=True)


VOCABULARY = (P("y"), P(None, "x"), P(None, "x"))


def greedy(ids: Any, table: Any, head: Any) -> Any:
    best = jnp.argmax(logits_of(*split((ids, table, head), VOCABULARY)), -1)
    # Gathered, it is the same everywhere along x.
    return jm.shard_to_full(lax.pmax(best, "x"), P("y"))


def vocabulary_args(rng: np.random.Generator) -> tuple[Any, ...]:
    return rng.integers(0, 12, 6, dtype=np.int32), *normal((12, 8), (8, 12))(rng)


def vocabulary_parallel(ids: Any, table: Any) -> Any:
    """The table's rows are split: each device has the words of its part."""
    mine, rows = jm.full_to_shard(ids, P("y")), jm.full_to_shard(table, P("x"))
    at = mine - lax.axis_index("x") * rows.shape[0]
    here = (at >= 0) & (at < rows.shape[0])
    found = jnp.where(here[:, None], rows[jnp.clip(at, 0, rows.shape[0] - 1)], 0)
    return jm.shard_to_full(lax.psum(found, "x"), P("y"))


def top_k(logits: Any, noise: Any) -> Any:
    """Draws one of the three best, by Gumbel's noise."""
    best, ids = lax.top_k(logits, 3)
    drawn = jnp.argmax(jax.nn.log_softmax(best) + noise, -1)
    return jnp.take_along_axis(ids, drawn[:, None], 1)[:, 0], jax.nn.softmax(best)


def top_k_sharded(logits: Any, noise: Any) -> Any:
    ids, shares = top_k(*split((logits, noise), (P(("y", "x")),) * 2))
    return jm.shard_to_full(ids, P(("y", "x"))), jm.shard_to_full(shares, P(("y", "x")))


def drawn(logits: Any, seed: Any) -> Any:
    """Draws with JAX's own random numbers."""
    return jax.random.categorical(jax.random.key(seed), logits)


HEADS_AND_SAMPLING = [
    Entry(
        "mixture of experts",
        sharded(experts_local, (P(("y", "x")), P(), P("x"), P("x")), P(("y", "x"))),
        normal((32, 4), (4, EXPERTS), (EXPERTS, 4, 8), (EXPERTS, 8, 4)),
        experts_plain,
        tolerance=ROUNDING,
    ),
    Entry(
        "pooled head",
        sharded(pooled, (P(("y", "x")), P(), P()), P(("y", "x"))),
        normal((8, 2, 3, 4), (4, 5), (5,)),
        pooled,
        tolerance=ROUNDING,
    ),
    Entry(
        "layer_norm and linear on 8",
        sharded(layer_normed, (P("x"), P(), P(), P(), P()), P("x")),
        normal((8, 2, 6), (6,), (6,), (6, 4), (4,)),
        layer_normed,
        (8,),
        ("x",),
        tolerance=ROUNDING,
    ),
    Entry("greedy sampling", greedy, vocabulary_args, lambda i, t, h: np.argmax((t[i] @ h), -1).astype(np.int32)),
    Entry(
        "embedding, rows split",
        vocabulary_parallel,
        lambda rng: vocabulary_args(rng)[:2],
        lambda ids, table: table[ids],
    ),
    Entry("top-k sampling", top_k_sharded, normal((8, 10), (8, 3)), top_k, tolerance=ROUNDING),
    Entry(
        "random sampling",
        lambda logits, seed: jm.shard_to_full(
            drawn(*split((logits, seed), (P("x"), P()))),
            P("x"),
        ),
        lambda rng: (*normal((4, 10))(rng), rng.integers(0, 99, dtype=np.int32)),
        lambda logits, seed: np.concatenate([drawn(row, seed) for row in np.split(logits, 4)]),
    ),
]

PROGRAMS = [*PERCEPTRONS, *ATTENTIONS, *HEADS_AND_SAMPLING]
