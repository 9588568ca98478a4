"""Programs as users write them, with arguments of usual sizes: what the diagnosis is measured on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax, shard_map
from jax.sharding import PartitionSpec as P

import jaxmesh as jm

BF16 = jnp.bfloat16
ALL: dict[str, Callable[[], Program]] = {}
"""The programs by name."""


@dataclass(frozen=True)
class Program:
    """A function over a mesh.

    Attributes:
      fun: the function.
      plain: the same without shard_map, for the values.
      mesh: the mesh.
      specs: the shardings of the arguments.
      args: the arguments.
    """

    fun: Callable[..., Any]
    plain: Callable[..., Any]
    mesh: Any
    specs: tuple[Any, ...]
    args: tuple[Any, ...]


class Draw:
    """Draws arguments from a seed."""

    def __init__(self) -> None:
        self.rng = np.random.default_rng(7)

    def __call__(self, *shape: int, scale: float = 1.0, dtype: Any = np.float32) -> Any:
        return jnp.asarray(self.rng.normal(size=shape) * scale, dtype)

    def weight(self, *shape: int, fan: int = 0, dtype: Any = np.float32) -> Any:
        return self(*shape, scale=(fan or shape[0]) ** -0.5, dtype=dtype)

    def ints(self, low: int, high: int, *shape: int, dtype: Any = np.int32) -> Any:
        return jnp.asarray(self.rng.integers(low, high, shape), dtype)


def program(*shape: int) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Registers a function that makes, of a mesh and of a `Draw`, a function, its shardings, arguments, plain form."""

    def register(make: Callable[..., Any]) -> Callable[..., Any]:
        def build() -> Program:
            mesh = jm.make_mesh(shape, ("y", "x"))
            fun, specs, args, *plain = make(mesh, Draw())
            return Program(fun, (*plain, fun)[0], mesh, tuple(specs), tuple(args))

        ALL[make.__name__] = build
        return make

    return register


def rms(x: Any, g: Any) -> Any:
    return x * lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + 1e-6) * g


def layer_norm(x: Any, g: Any, b: Any) -> Any:
    mean = x.mean(-1, keepdims=True)
    return (x - mean) / jnp.sqrt(((x - mean) ** 2).mean(-1, keepdims=True) + 1e-5) * g + b


def rotate(x: Any, base: float = 10000.0) -> Any:
    half = x.shape[-1] // 2
    angle = jnp.arange(x.shape[1])[:, None] / base ** (jnp.arange(half) / half)
    sin, cos = jnp.sin(angle)[None, :, None], jnp.cos(angle)[None, :, None]
    a, b = x[..., :half], x[..., half:]
    return jnp.concatenate([a * cos - b * sin, b * cos + a * sin], -1)


def attend(q: Any, k: Any, v: Any, mask: Any = None) -> Any:
    s = jnp.einsum("bqhd,bkhd->bhqk", q, k) / np.sqrt(q.shape[-1])
    if mask is not None:
        s = jnp.where(mask, s, -1e9)
    return jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(s, -1), v)


# Attention.


@program(2, 4)
def gqa(mesh: Any, d: Draw) -> Any:
    def f(x: Any, wq: Any, wk: Any, wv: Any, wo: Any) -> Any:
        q = jnp.einsum("btd,dgnh->btgnh", x, wq)
        k, v = jnp.einsum("btd,dgh->btgh", x, wk), jnp.einsum("btd,dgh->btgh", x, wv)
        s = jnp.einsum("btgnh,bsgh->bgnts", q, k) * 16**-0.5
        t = x.shape[1]
        p = jax.nn.softmax(jnp.where(jnp.tril(jnp.ones((t, t), bool)), s, -1e9), -1)
        return jnp.einsum("bgnts,bsgh,gnhd->btd", p, v, wo)

    w = d.weight
    args = d(4, 32, 128), w(128, 2, 4, 16), w(128, 2, 16), w(128, 2, 16), w(2, 4, 16, 128, fan=128)
    return f, (P("x"), P(None, "y"), P(None, "y"), P(None, "y"), P("y")), args


@program(1, 8)
def rotary_attention(mesh: Any, d: Draw) -> Any:
    def f(q: Any, k: Any, v: Any) -> Any:
        return attend(rotate(q), rotate(k), v, jnp.arange(32)[:, None] >= jnp.arange(32))

    return f, (P(None, None, "x"),) * 3, [d(2, 32, 8, 16) for _ in range(3)]


@program(2, 4)
def sliding_window(mesh: Any, d: Draw) -> Any:
    def f(q: Any, k: Any, v: Any) -> Any:
        i, j = jnp.arange(64)[:, None], jnp.arange(64)[None]
        return attend(q, k, v, (i >= j) & (i - j < 16))

    return f, (P("y", None, "x"),) * 3, [d(2, 64, 4, 32, dtype=BF16) for _ in range(3)]


@program(1, 2)
def cross_attention(mesh: Any, d: Draw) -> Any:
    def f(x: Any, memory: Any, lengths: Any, wq: Any, wkv: Any, wo: Any) -> Any:
        q = jnp.einsum("btd,dnh->btnh", x, wq)
        k, v = jnp.moveaxis(jnp.einsum("bsd,dcnh->bscnh", memory, wkv), 2, 0)
        mask = (jnp.arange(48) < lengths[:, None])[:, None, None]
        return x + jnp.einsum("btnh,nhd->btd", attend(q, k, v, mask), wo)

    args = d(2, 16, 128), d(2, 48, 128), d.ints(20, 40, 2), d.weight(128, 4, 32), d.weight(128, 2, 4, 32)
    specs = P(), P(), P(), P(None, "x"), P(None, None, "x"), P("x")
    return f, specs, (*args, d.weight(4, 32, 128, fan=128))


@program(1, 8)
def alibi_attention(mesh: Any, d: Draw) -> Any:
    def f(q: Any, k: Any, v: Any) -> Any:
        slopes = 2.0 ** -(jnp.arange(8) + 1.0)
        bias = -slopes[:, None, None] * jnp.abs(jnp.arange(32)[:, None] - jnp.arange(32))
        s = jnp.einsum("bqhd,bkhd->bhqk", q, k) * 0.25 + bias
        s = s - s.max(-1, keepdims=True)
        p = jnp.exp(s)
        return jnp.einsum("bhqk,bkhd->bqhd", p / p.sum(-1, keepdims=True), v)

    return f, (P(None, None, "x"),) * 3, [d(2, 32, 8, 16) for _ in range(3)]


@program(2, 4)
def capped_attention(mesh: Any, d: Draw) -> Any:
    def f(q: Any, k: Any, v: Any) -> Any:
        s = 5.0 * jnp.tanh(jnp.einsum("bqhd,bkhd->bhqk", q, k) / 5.0)
        return jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(s, -1), v)

    return f, (P("y", "x"), P("y"), P("y")), [d(4, 32, 2, 32, scale=0.7) for _ in range(3)]


@program(2, 4)
def linear_attention(mesh: Any, d: Draw) -> Any:
    def f(q: Any, k: Any, v: Any) -> Any:
        q, k = jax.nn.elu(q) + 1, jax.nn.elu(k) + 1
        kv, z = jnp.einsum("bthd,bthe->bhde", k, v), k.sum(1)
        return jnp.einsum("bthd,bhde->bthe", q, kv) / jnp.einsum("bthd,bhd->bth", q, z)[..., None]

    return f, (P("y", "x"),) * 3, [d(2, 64, 4, 16) for _ in range(3)]


# Caches.


@program(2, 4)
def decode_step(mesh: Any, d: Draw) -> Any:
    def f(x: Any, keys: Any, values: Any, pos: Any, wq: Any, wk: Any, wv: Any) -> Any:
        q, k, v = (jnp.einsum("bd,dnh->bnh", x, w) for w in (wq, wk, wv))
        keys = lax.dynamic_update_slice(keys, k[:, None], (0, pos, 0, 0))
        values = lax.dynamic_update_slice(values, v[:, None], (0, pos, 0, 0))
        s = jnp.einsum("bnh,btnh->bnt", q, keys) / 4
        s = jnp.where(jnp.arange(32) <= pos, s, -jnp.inf)
        return jnp.einsum("bnt,btnh->bnh", jax.nn.softmax(s, -1), values), keys, values

    cache = P("y", None, "x")
    args = d(2, 128), d(2, 32, 4, 16), d(2, 32, 4, 16), jnp.int32(11), *(d.weight(128, 4, 16) for _ in range(3))
    return f, (P("y"), cache, cache, P(), *[P(None, "x")] * 3), args


@program(1, 8)
def cache_of_rows(mesh: Any, d: Draw) -> Any:
    def f(cache: Any, new: Any, pos: Any) -> Any:
        hit = jax.nn.one_hot(pos, 16, dtype=jnp.float32)[:, :, None, None]
        cache = cache * (1 - hit) + new[:, None] * hit
        valid = jnp.arange(16) <= pos[:, None]
        return cache, (cache * valid[:, :, None, None]).sum(1) / (pos[:, None, None] + 1)

    return f, (P(None, None, "x"), P(None, "x"), P()), (d(4, 16, 8, 32), d(4, 8, 32), d.ints(0, 16, 4))


@program(1, 2)
def int8_cache(mesh: Any, d: Draw) -> Any:
    def f(q: Any, keys: Any, scales: Any, start: Any) -> Any:
        window = lax.dynamic_slice(keys, (0, start, 0, 0), (2, 32, 4, 32)).astype(jnp.float32)
        factor = lax.dynamic_slice(scales, (0, start, 0), (2, 32, 4))
        return jax.nn.softmax(jnp.einsum("bnh,btnh->bnt", q, window * factor[..., None]) * 0.2, -1)

    args = d(2, 4, 32), d.ints(-127, 128, 2, 64, 4, 32, dtype=np.int8), abs(d(2, 64, 4, scale=0.01)), jnp.int32(9)
    return f, (P(None, "x"), P(None, None, "x"), P(None, None, "x"), P()), args


# Routing.


@program(2, 4)
def top_2_experts(mesh: Any, d: Draw) -> Any:
    def f(x: Any, router: Any, w1: Any, w2: Any) -> Any:
        gate, chosen = lax.top_k(jax.nn.softmax(x @ router, -1), 2)
        gate = gate / gate.sum(-1, keepdims=True)
        weights = (jax.nn.one_hot(chosen, 4) * gate[..., None]).sum(1)
        h = jax.nn.silu(jnp.einsum("td,edf->tef", x, w1))
        return jnp.einsum("tef,efd,te->td", h, w2, weights)

    args = d(32, 128), d.weight(128, 4), d.weight(4, 128, 64, fan=128), d.weight(4, 64, 128, fan=64)
    return f, (P("y"), P(), P("x"), P("x")), args


@program(1, 8)
def load_balance(mesh: Any, d: Draw) -> Any:
    def f(x: Any, router: Any) -> Any:
        p = jax.nn.softmax(x @ router, -1)
        share = jax.nn.one_hot(p.argmax(-1), 8).mean(0)
        z = jax.nn.logsumexp(x @ router, -1)
        return 8 * (share * p.mean(0)).sum() + 1e-3 * (z**2).mean(), p

    return f, (P("x"), P()), (d(64, 128), d.weight(128, 8))


@program(2, 4)
def capacity_dispatch(mesh: Any, d: Draw) -> Any:
    def f(x: Any, logits: Any, w: Any) -> Any:
        chosen = jax.nn.one_hot(logits.argmax(-1), 4, dtype=jnp.int32)
        place = (jnp.cumsum(chosen, 0) - 1) * chosen
        keep = (chosen * (place < 12)).astype(jnp.float32)
        mask = keep[:, :, None] * jax.nn.one_hot(place, 12)
        y = jnp.einsum("ecd,edf->ecf", jnp.einsum("tec,td->ecd", mask, x), w)
        return jnp.einsum("tec,ecf->tf", mask, y)

    return f, (P(None, "y"), P(), P("x")), (d(32, 64), d(32, 4), d.weight(4, 64, 64, fan=64))


@program(1, 2)
def segment_mean(mesh: Any, d: Draw) -> Any:
    def f(x: Any, segment: Any) -> Any:
        total = jnp.zeros((8, 128)).at[segment].add(x)
        count = jnp.zeros((8,)).at[segment].add(1.0)
        return total / jnp.maximum(count, 1)[:, None]

    return f, (P(None, "x"), P()), (d(48, 128), d.ints(0, 8, 48))


# Norms and losses.


@program(2, 4)
def rms_norm_bf16(mesh: Any, d: Draw) -> Any:
    def f(x: Any, g: Any, w: Any) -> Any:
        y = x.astype(jnp.float32)
        y = (y * lax.rsqrt((y * y).mean(-1, keepdims=True) + 1e-6)).astype(BF16) * (1 + g)
        return y @ w

    args = d(16, 128, dtype=BF16), d(128, scale=0.2, dtype=BF16), d.weight(128, 128, dtype=BF16)
    return f, (P("y"), P(), P(None, "x")), args


@program(1, 8)
def layer_norm_gradient(mesh: Any, d: Draw) -> Any:
    def f(x: Any, g: Any, b: Any) -> Any:
        return jax.grad(lambda x, g, b: (jnp.sin(layer_norm(x, g, b))).sum(), (0, 1, 2))(x, g, b)

    return f, (P("x"), P(), P()), (d(32, 64), 1 + d(64, scale=0.1), d(64, scale=0.1))


@program(1, 2)
def group_norm(mesh: Any, d: Draw) -> Any:
    def f(x: Any, g: Any, b: Any) -> Any:
        y = x.reshape(2, 8, 8, 4, 16)
        y = (y - y.mean((1, 2, 4), keepdims=True)) * lax.rsqrt(y.var((1, 2, 4), keepdims=True) + 1e-5)
        return jax.nn.silu(y.reshape(x.shape) * g + b)

    return f, (P("x"), P(), P()), (d(2, 8, 8, 64), 1 + d(64, scale=0.1), d(64, scale=0.1))


@program(2, 4)
def batch_norm(mesh: Any, d: Draw) -> Any:
    def f(x: Any, running: Any) -> Any:
        mean, var = x.mean(0), x.var(0)
        return jax.nn.relu((x - mean) / jnp.sqrt(var + 1e-3)), 0.9 * running + 0.1 * mean

    return f, (P("x", "y"), P("y")), (d(64, 128) + 0.5, d(128))


@program(2, 4)
def cross_entropy(mesh: Any, d: Draw) -> Any:
    def f(x: Any, w: Any, labels: Any) -> Any:
        logits = x @ w
        top = logits.max(-1, keepdims=True)
        lse = jnp.log(jnp.exp(logits - top).sum(-1)) + top[:, 0]
        hit = jnp.arange(256) == labels[:, None]
        picked = jnp.where(hit, logits, 0).sum(-1)
        valid = labels >= 0
        return jnp.where(valid, lse - picked, 0).sum() / valid.sum()

    labels = jnp.where(jnp.arange(32) % 5 == 2, -100, d.ints(0, 256, 32))
    return f, (P("y"), P(None, "x"), P("y")), (d(32, 128), d.weight(128, 256), labels)


@program(1, 8)
def label_smoothing(mesh: Any, d: Draw) -> Any:
    def f(logits: Any, labels: Any) -> Any:
        def loss(logits: Any) -> Any:
            target = jax.nn.one_hot(labels, 64) * 0.9 + 0.1 / 64
            return -(target * jax.nn.log_softmax(logits)).sum(-1).mean()

        return jax.value_and_grad(loss)(logits)

    return f, (P("x"), P("x")), (d(64, 64), d.ints(0, 64, 64))


@program(1, 2)
def huber(mesh: Any, d: Draw) -> Any:
    def f(pred: Any, target: Any, weight: Any) -> Any:
        e = pred - target
        loss = jnp.where(jnp.abs(e) < 1.0, 0.5 * e * e, jnp.abs(e) - 0.5)
        return (loss * weight[:, None]).sum() / weight.sum(), jnp.minimum(loss, 2.0)

    return f, (P("x"), P("x"), P("x")), (d(16, 32), d(16, 32), abs(d(16)) + 0.1)


@program(2, 4)
def contrastive(mesh: Any, d: Draw) -> Any:
    def f(a: Any, b: Any, t: Any) -> Any:
        a, b = (x / jnp.linalg.norm(x, axis=-1, keepdims=True) for x in (a, b))
        s = a @ b.T * jnp.exp(t)
        rows, cols = jax.nn.log_softmax(s, 1), jax.nn.log_softmax(s, 0)
        return -(jnp.diagonal(rows).mean() + jnp.diagonal(cols).mean()) / 2

    return f, (P("y", "x"), P("y", "x"), P()), (d(32, 64), d(32, 64), jnp.float32(1.5))


# Optimisers.


@program(2, 4)
def adamw(mesh: Any, d: Draw) -> Any:
    def f(p: Any, g: Any, m: Any, v: Any, step: Any) -> Any:
        m, v = 0.9 * m + 0.1 * g, 0.95 * v + 0.05 * g * g
        t = step.astype(jnp.float32) + 1
        u = (m / (1 - 0.9**t)) / (jnp.sqrt(v / (1 - 0.95**t)) + 1e-8)
        return p - 1e-2 * (u + 0.1 * p), m, v

    args = d(64, 128), d(64, 128, scale=0.1), d(64, 128, scale=0.1), abs(d(64, 128, scale=0.01)) + 1e-3, jnp.int32(3)
    return f, (*[P("y", "x")] * 4, P()), args


@program(2, 4)
def adafactor(mesh: Any, d: Draw) -> Any:
    def f(p: Any, g: Any, rows: Any, cols: Any) -> Any:
        g2 = g * g + 1e-30
        rows, cols = 0.8 * rows + 0.2 * g2.mean(1), 0.8 * cols + 0.2 * g2.mean(0)
        u = g * lax.rsqrt(rows / rows.mean())[:, None] * lax.rsqrt(cols)[None]
        u = u / jnp.maximum(1.0, jnp.sqrt((u * u).mean()) / 0.5)
        return p - 0.1 * u, rows, cols

    args = d(64, 128), d(64, 128, scale=0.3), abs(d(64)) * 0.05 + 0.02, abs(d(128)) * 0.05 + 0.02
    return f, (P("y", "x"), P("y", "x"), P("y"), P("x")), args


@program(1, 8)
def clipped_momentum(mesh: Any, d: Draw) -> Any:
    def f(ps: Any, gs: Any, ms: Any) -> Any:
        norm = jnp.sqrt(sum((g * g).sum() for g in gs))
        scale = jnp.minimum(1.0, 1.0 / (norm + 1e-6))
        ms = [0.9 * m + g * scale for m, g in zip(ms, gs, strict=True)]
        return [p - 0.05 * (0.9 * m + g) for p, m, g in zip(ps, ms, gs, strict=True)], ms

    def both() -> Any:
        return [d(64, 32), d(32)]

    return f, ([P("x"), P()],) * 3, (both(), both(), both())


@program(1, 2)
def lion(mesh: Any, d: Draw) -> Any:
    def f(p: Any, g: Any, m: Any) -> Any:
        return p - 0.03 * (jnp.sign(0.9 * m + 0.1 * g) + 0.1 * p), 0.99 * m + 0.01 * g

    return f, (P("x"),) * 3, [d(32, 64) for _ in range(3)]


# Quantisation and integers.


@program(2, 4)
def int8_matmul(mesh: Any, d: Draw) -> Any:
    def f(x: Any, w: Any, sx: Any, sw: Any) -> Any:
        y = lax.dot_general(x, w, (((1,), (0,)), ((), ())), preferred_element_type=jnp.int32)
        return y.astype(jnp.float32) * sx[:, None] * sw

    i8 = np.int8
    args = d.ints(-100, 100, 32, 64, dtype=i8), d.ints(-100, 100, 64, 128, dtype=i8)
    return f, (P("y"), P(None, "x"), P("y"), P("x")), (*args, abs(d(32)) * 0.01 + 0.01, abs(d(128)) * 0.01 + 0.01)


@program(1, 8)
def fake_quant(mesh: Any, d: Draw) -> Any:
    def f(x: Any, w: Any, scale: Any) -> Any:
        q = jnp.clip(jnp.floor(x * scale + 0.5), -8, 7)
        return (q / scale) @ w, q.astype(jnp.int8)

    return f, (P("x"), P(), P()), (d(64, 64), d.weight(64, 64), jnp.float32(4.0))


@program(1, 8)
def token_statistics(mesh: Any, d: Draw) -> Any:
    def f(tokens: Any, salt: Any) -> Any:
        h = (tokens * 31 + salt) % 64
        counts = (h[:, :, None] == jnp.arange(64)).astype(jnp.int32).sum(1)
        return counts, jnp.minimum(h, 40) - jnp.maximum(tokens // 4, 3), jnp.cumsum(h > 32, 1)

    return f, (P("x"), P()), (d.ints(0, 100, 16, 32), jnp.int32(5))


@program(1, 2)
def beam_scores(mesh: Any, d: Draw) -> Any:
    def f(logits: Any, scores: Any) -> Any:
        total = jax.nn.log_softmax(logits, -1) + scores[..., None]
        best, flat = lax.top_k(total.reshape(4, -1), 4)
        return best, flat // 32, flat % 32

    return f, (P("x"), P("x")), (d(4, 4, 32), d(4, 4))


# Convolutions.


@program(2, 4)
def conv_relu(mesh: Any, d: Draw) -> Any:
    def f(x: Any, w: Any, b: Any) -> Any:
        y = lax.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
        return jax.nn.relu(y + b)

    return f, (P("y"), P(None, None, None, "x"), P("x")), (d(2, 8, 8, 16), d.weight(3, 3, 16, 32, fan=144), d(32))


@program(1, 8)
def depthwise_stride(mesh: Any, d: Draw) -> Any:
    def f(x: Any, w: Any) -> Any:
        return jax.nn.gelu(
            lax.conv_general_dilated(
                x, w, (2, 2), ((1, 1), (1, 1)), dimension_numbers=("NHWC", "HWIO", "NHWC"), feature_group_count=16
            )
        )

    return f, (P("x"), P()), (d(8, 16, 16, 16), d.weight(3, 3, 1, 16, fan=9))


@program(1, 2)
def causal_conv(mesh: Any, d: Draw) -> Any:
    def f(x: Any, w: Any, gate: Any) -> Any:
        padded = jnp.pad(x, ((0, 0), (3, 0), (0, 0)))
        y = sum(padded[:, i : i + 32] * w[i] for i in range(4))
        return jax.nn.silu(y) * gate

    return f, (P(None, None, "x"), P(None, "x"), P(None, None, "x")), (d(2, 32, 64), d(4, 64), d(2, 32, 64))


@program(2, 4)
def pooled(mesh: Any, d: Draw) -> Any:
    def f(x: Any) -> Any:
        top = lax.reduce_window(x, -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
        return top, top.mean((1, 2)), jnp.pad(top, ((0, 0), (1, 2), (0, 0), (0, 0)), constant_values=0.5)

    return f, (P("y", None, None, "x"),), (d(2, 8, 8, 32),)


# Scans.


@program(2, 4)
def gru(mesh: Any, d: Draw) -> Any:
    def f(xs: Any, h: Any, w: Any, u: Any) -> Any:
        def step(h: Any, x: Any) -> Any:
            a, b = x @ w, h @ u
            z, r = jax.nn.sigmoid(a[:, :64] + b[:, :64]), jax.nn.sigmoid(a[:, 64:128] + b[:, 64:128])
            h = (1 - z) * h + z * jnp.tanh(a[:, 128:] + r * b[:, 128:])
            return h, h

        return lax.scan(step, h, xs)

    return f, (P(None, "y"), P("y"), P(), P()), (d(6, 8, 64), d(8, 64), d.weight(64, 192), d.weight(64, 192))


@program(1, 8)
def scanned_layers(mesh: Any, d: Draw) -> Any:
    def f(x: Any, ws: Any, gs: Any) -> Any:
        return lax.scan(lambda x, wg: (x + jnp.tanh(rms(x, wg[1]) @ wg[0]), None), x, (ws, gs))[0]

    return f, (P("x"), P(), P()), (d(16, 128), d.weight(3, 128, 128, fan=128), 1 + d(3, 128, scale=0.1))


@program(1, 2)
def decayed_sum(mesh: Any, d: Draw) -> Any:
    def f(x: Any, decay: Any) -> Any:
        a = jax.nn.sigmoid(decay)
        t = jnp.arange(16)
        lag = t[:, None] - t
        kernel = jnp.where(lag >= 0, a[:, None, None] ** jnp.maximum(lag, 0), 0.0)
        return jnp.einsum("dts,bsd->btd", kernel, x), jnp.cumsum(x, 1)

    return f, (P(None, None, "x"), P("x")), (d(2, 16, 32), d(32))


# Manual programs.


@program(1, 8)
def ring_matmul(mesh: Any, d: Draw) -> Any:
    def local(x: Any, w: Any) -> Any:
        me, out = lax.axis_index("x"), jnp.zeros((x.shape[0], w.shape[1]))
        for i in range(8):
            block = lax.dynamic_slice(w, (((me - i) % 8) * 16, 0), (16, w.shape[1]))
            out = out + x @ block
            x = lax.ppermute(x, "x", [(j, (j + 1) % 8) for j in range(8)])
        return out

    f = shard_map(local, mesh=mesh, in_specs=(P(None, "x"), P()), out_specs=P(), check_vma=False)
    return f, (P(None, "x"), P()), (d(16, 128), d.weight(128, 32)), lambda x, w: x @ w


@program(2, 4)
def ring_attention(mesh: Any, d: Draw) -> Any:
    def local(q: Any, k: Any, v: Any) -> Any:
        top = jnp.full(q.shape[:2], -jnp.inf)
        total, out = jnp.zeros(q.shape[:2]), jnp.zeros(q.shape)
        for i in range(4):
            s = jnp.einsum("hqd,hkd->hqk", q, k) * 0.25
            new = jnp.maximum(top, s.max(-1))
            p, fix = jnp.exp(s - new[..., None]), jnp.exp(top - new)
            total = total * fix + p.sum(-1)
            out = out * fix[..., None] + jnp.einsum("hqk,hkd->hqd", p, v)
            top = new
            if i < 3:
                k, v = (lax.ppermute(z, "x", [(j, (j + 1) % 4) for j in range(4)]) for z in (k, v))
        return out / total[..., None]

    def plain(q: Any, k: Any, v: Any) -> Any:
        return jnp.einsum("hqk,hkd->hqd", jax.nn.softmax(jnp.einsum("hqd,hkd->hqk", q, k) * 0.25, -1), v)

    spec = P("y", "x")
    f = shard_map(local, mesh=mesh, in_specs=(spec,) * 3, out_specs=spec)
    return f, (spec,) * 3, [d(4, 32, 16) for _ in range(3)], plain


@program(2, 4)
def pipeline(mesh: Any, d: Draw) -> Any:
    def local(x: Any, w: Any) -> Any:
        stage, state, outs = lax.axis_index("x"), jnp.zeros(x.shape[1:]), []
        for i in range(6):
            state = jnp.where(stage == 0, x[min(i, 2)], state)
            state = jnp.tanh(state @ w[0])
            if i >= 3:
                outs.append(jnp.where(stage == 3, state, 0.0))
            state = lax.ppermute(state, "x", [(j, (j + 1) % 4) for j in range(4)])
        return lax.psum(jnp.stack(outs), "x")

    def plain(x: Any, w: Any) -> Any:
        for i in range(4):
            x = jnp.tanh(x @ w[i])
        return x

    f = shard_map(local, mesh=mesh, in_specs=(P(None, "y"), P("x")), out_specs=P(None, "y"), check_vma=False)
    return f, (P(None, "y"), P("x")), (d(3, 8, 64), d.weight(4, 64, 64, fan=64)), plain


@program(2, 4)
def sequence_parallel_mlp(mesh: Any, d: Draw) -> Any:
    def local(x: Any, w1: Any, w2: Any) -> Any:
        h = jax.nn.gelu(lax.all_gather(x, "x", axis=0, tiled=True) @ w1)
        return x + lax.psum_scatter(h @ w2, "x", scatter_dimension=0, tiled=True)

    f = shard_map(local, mesh=mesh, in_specs=(P("x"), P(None, "x"), P("x")), out_specs=P("x"))
    args = d(32, 128), d.weight(128, 256), d.weight(256, 128)
    return f, (P("x"), P(None, "x"), P("x")), args, lambda x, w1, w2: x + jax.nn.gelu(x @ w1) @ w2


@program(1, 8)
def ulysses(mesh: Any, d: Draw) -> Any:
    def local(q: Any, k: Any, v: Any) -> Any:
        q, k, v = (lax.all_to_all(z, "x", 1, 0, tiled=True) for z in (q, k, v))
        s = jnp.einsum("tnh,snh->nts", q, k) * 0.25
        y = jnp.einsum("nts,snh->tnh", jax.nn.softmax(s, -1), v)
        return lax.all_to_all(y, "x", 0, 1, tiled=True)

    def plain(q: Any, k: Any, v: Any) -> Any:
        return jnp.einsum("nts,snh->tnh", jax.nn.softmax(jnp.einsum("tnh,snh->nts", q, k) * 0.25, -1), v)

    f = shard_map(local, mesh=mesh, in_specs=(P("x"),) * 3, out_specs=P("x"))
    return f, (P("x"),) * 3, [d(32, 8, 16) for _ in range(3)], plain


@program(1, 8)
def halo(mesh: Any, d: Draw) -> Any:
    def local(u: Any) -> Any:
        left = lax.ppermute(u[-1:], "x", [(j, (j + 1) % 8) for j in range(8)])
        right = lax.ppermute(u[:1], "x", [(j, (j - 1) % 8) for j in range(8)])
        whole = jnp.concatenate([left, u, right])
        new = u + 0.2 * (whole[:-2] - 2 * u + whole[2:])
        return new, lax.pmax(jnp.abs(new - u).max(), "x")

    def plain(u: Any) -> Any:
        new = u + 0.2 * (jnp.roll(u, 1, 0) - 2 * u + jnp.roll(u, -1, 0))
        return new, jnp.abs(new - u).max()

    f = shard_map(local, mesh=mesh, in_specs=P("x"), out_specs=(P("x"), P()))
    return f, (P("x"),), (d(64, 16),), plain


# Models.


def block(x: Any, p: Any, heads: int) -> Any:
    b, t, width = x.shape
    y = rms(x, p["n1"])
    q, k, v = ((y @ p[w]).reshape(b, t, heads, -1) for w in ("wq", "wk", "wv"))
    mask = jnp.arange(t)[:, None] >= jnp.arange(t)
    x = x + attend(rotate(q), rotate(k), v, mask).reshape(b, t, width) @ p["wo"]
    y = rms(x, p["n2"])
    return x + (jax.nn.silu(y @ p["up"]) * (y @ p["gate"])) @ p["down"]


def layers(d: Draw, n: int, width: int, dtype: Any = np.float32) -> Any:
    def one() -> Any:
        square = {w: d.weight(width, width, dtype=dtype) for w in ("wq", "wk", "wv", "wo")}
        wide = {w: d.weight(width, 2 * width, dtype=dtype) for w in ("up", "gate")}
        norms = {w: jnp.asarray(1 + d(width, scale=0.1), dtype) for w in ("n1", "n2")}
        return square | wide | norms | {"down": d.weight(2 * width, width, dtype=dtype)}

    return [one() for _ in range(n)]


def tensor_parallel(n: int) -> Any:
    split = {w: P(None, "x") for w in ("wq", "wk", "wv", "up", "gate")}
    return [split | {"wo": P("x"), "down": P("x"), "n1": P(), "n2": P()} for _ in range(n)]


@program(2, 4)
def decoder_2_layers(mesh: Any, d: Draw) -> Any:
    def f(tokens: Any, table: Any, ps: Any) -> Any:
        x = table[tokens]
        for p in ps:
            x = block(x, p, 8)
        return x @ table.T

    args = d.ints(0, 256, 2, 16), d(256, 128, scale=0.5), layers(d, 2, 128)
    return f, (P("y"), P(), tensor_parallel(2)), args


@program(1, 8)
def decoder_4_layers_bf16(mesh: Any, d: Draw) -> Any:
    def f(x: Any, ps: Any) -> Any:
        for p in ps:
            x = block(x, p, 8)
        return x

    return f, (P(), tensor_parallel(4)), (d(1, 32, 256, dtype=BF16), layers(d, 4, 256, BF16))


@program(2, 4)
def mlp_train_step(mesh: Any, d: Draw) -> Any:
    def f(ps: Any, x: Any, y: Any) -> Any:
        def loss(ps: Any) -> Any:
            h = x
            for w, b in ps[:-1]:
                h = jax.nn.relu(h @ w + b)
            return ((h @ ps[-1][0] + ps[-1][1] - y) ** 2).mean()

        value, grads = jax.value_and_grad(loss)(ps)
        return value, jax.tree.map(lambda p, g: p - 0.5 * g, ps, grads)

    ps = [(d.weight(a, b), d(b, scale=0.1)) for a, b in ((128, 512), (512, 512), (512, 16))]
    split = [(P(None, "x"), P("x")), (P("x", None), P()), (P(), P())]
    return f, (split, P("y"), P("y")), (ps, d(32, 128), d(32, 16))


@program(1, 2)
def vision(mesh: Any, d: Draw) -> Any:
    def f(image: Any, patch: Any, place: Any, w: Any, b: Any, head: Any) -> Any:
        x = image.reshape(2, 4, 4, 4, 4, 3).transpose(0, 1, 3, 2, 4, 5).reshape(2, 16, 48) @ patch + place
        x = x + jax.nn.gelu(layer_norm(x, 1.0, 0.0) @ w + b)
        return jax.nn.softmax(x.mean(1) @ head)

    args = d(2, 16, 16, 3), d.weight(48, 128), d(16, 128, scale=0.1), d.weight(128, 128), d(128), d.weight(128, 10)
    return f, (P("x"), P(), P(), P(), P(), P()), args


@program(2, 4)
def swiglu_bf16(mesh: Any, d: Draw) -> Any:
    def f(x: Any, w1: Any, w2: Any, w3: Any) -> Any:
        return (jax.nn.silu(x @ w1) * (x @ w3)) @ w2

    w = d.weight
    args = d(32, 128, dtype=BF16), w(128, 256, dtype=BF16), w(256, 128, dtype=BF16), w(128, 256, dtype=BF16)
    return f, (P("y"), P(None, "x"), P("x"), P(None, "x")), args


@program(1, 8)
def token_shift(mesh: Any, d: Draw) -> Any:
    def f(x: Any, mix: Any, w: Any) -> Any:
        before = jnp.concatenate([jnp.zeros_like(x[:, :1]), x[:, :-1]], 1)
        y = (x * mix + before * (1 - mix)) @ w
        return jnp.square(jax.nn.relu(y)) + y[:, ::-1]

    return f, (P(None, None, "x"), P("x"), P(None, "x")), (d(2, 16, 64), abs(d(64)) * 0.4, d.weight(64, 64))


@program(2, 4)
def embedded_logits(mesh: Any, d: Draw) -> Any:
    def f(tokens: Any, table: Any, place: Any) -> Any:
        x = jnp.take(table, tokens, 0) * 8.0 + place[None]
        x = x / jnp.sqrt((x * x).sum(-1, keepdims=True))
        return jax.nn.log_softmax(x @ table.T, -1)

    return f, (P("y"), P(None, "x"), P(None, "x")), (d.ints(0, 128, 4, 16), d(128, 64, scale=0.3), d(16, 64))


@program(1, 2)
def dual_step(mesh: Any, d: Draw) -> Any:
    def f(a: Any, b: Any, c: Any) -> Any:
        s = a @ b - b @ a
        return jnp.where(s > c, s / (1 + jnp.abs(c)), jnp.exp(-jnp.abs(s))) ** 2, s.T @ c

    return f, (P("x"), P(None, "x"), P()), [d(64, 64, scale=0.3) for _ in range(3)]
