"""Programs of a fourth set, whose author had read neither the diagnosis nor the other sets: small programs."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
from jax import lax, shard_map
from jax.sharding import PartitionSpec as P

import jaxmesh as jm
from tests.generators.second_blind.made import ALL, Made

bf16, f32, i32, i8 = jnp.bfloat16, jnp.float32, jnp.int32, jnp.int8
Program = Callable[..., Any]


class R:
    """Draws arguments."""

    def __init__(self, seed: int) -> None:
        self.g = np.random.default_rng(seed)

    def f(self, *shape: int, s: float = 1.0, dt: Any = np.float32, m: float = 0.0) -> Any:
        return (self.g.standard_normal(shape) * s + m).astype(np.float32).astype(dt)

    def b(self, *shape: int, s: float = 1.0) -> Any:
        return self.f(*shape, s=s, dt=ml_dtypes.bfloat16)

    def pos(self, *shape: int) -> Any:
        return (self.g.random(shape) + 0.25).astype(np.float32)

    def i(self, lo: int, hi: int, *shape: int, dt: Any = np.int32) -> Any:
        return self.g.integers(lo, hi, shape).astype(dt)


def get_mesh(shape: tuple[int, ...]) -> jax.sharding.Mesh:
    return jm.make_mesh(shape, ("y", "x"))


def prog(mesh: tuple[int, ...], specs: Any, args: Callable[[R], Any]) -> Callable[[Program], Program]:
    """Registers a program of the set of its module, over a mesh of a shape; the compiler splits the results."""

    def register(fun: Program) -> Program:
        name = f"{fun.__module__.rpartition('.')[2].removesuffix('_set')}_{fun.__name__}"

        def build(number: int) -> Made:
            own, given = get_mesh(mesh), args(R(zlib.crc32(name.encode()) + number))
            return Made(fun, jax.tree.map(jnp.asarray, given), specs, own)

        build.__module__ = fun.__module__
        assert name not in ALL, name
        ALL[name] = build
        return fun

    return register


@prog((2, 4), (P("y", None, "x"),) * 3, lambda r: (r.f(4, 8, 8, 8), r.f(4, 8, 8, 8), r.f(4, 8, 8, 8)))
def causal_attention(q, k, v):
    s = jnp.einsum("bqhd,bkhd->bhqk", q, k) * 0.35
    m = jnp.tril(jnp.ones((8, 8), bool))
    s = jnp.where(m, s, -1e9)
    return jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(s, -1), v)


@prog(
    (2, 2),
    (P("y"), P(None, "x"), P(None, "x"), P("x")),
    lambda r: (r.f(4, 16, 16), r.f(16, 16, s=0.3), r.f(16, 16, s=0.3), r.f(16, 16, s=0.3)),
)
def gqa_alibi(x, wq, wkv, wo):
    q = (x @ wq).reshape(4, 16, 4, 4)
    kv = (x @ wkv).reshape(4, 16, 4, 4)
    k, v = kv[:, :, :2], kv[:, :, 2:]
    k = jnp.repeat(k, 2, axis=2)
    v = jnp.repeat(v, 2, axis=2)
    slope = 0.5 ** (jnp.arange(4, dtype=f32) + 1)
    dist = jnp.arange(16)[None, :] - jnp.arange(16)[:, None]
    s = jnp.einsum("bqhd,bkhd->bhqk", q, k) / 2.0 + slope[None, :, None, None] * dist[None, None].astype(f32)
    s = jnp.where(dist[None, None] > 0, -jnp.inf, s)
    p = jax.nn.softmax(s, axis=-1)
    return jnp.einsum("bhqk,bkhd->bqhd", p, v).reshape(4, 16, 16) @ wo


@prog(
    (2, 4),
    (P("y", None, "x"), P("y", None, "x"), P("y"), P()),
    lambda r: (r.f(4, 16, 8, 4), r.f(4, 1, 8, 4), r.f(4, 1, 8, 4), np.int32(r.i(0, 16))),
)
def kv_cache_step(cache, k, q, pos):
    cache = lax.dynamic_update_slice(cache, k, (0, pos, 0, 0))
    s = jnp.einsum("bqhd,bkhd->bhqk", q, cache)
    s = jnp.where(jnp.arange(16)[None, None, None, :] <= pos, s, -1e30)
    return cache, jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(s, -1), cache)


@prog(
    (2, 4), (P("y"), P(), P("x"), P("x")), lambda r: (r.f(16, 8), r.f(8, 8), r.f(8, 8, 16, s=0.4), r.f(8, 16, 8, s=0.4))
)
def moe_dense(x, wg, w1, w2):
    logits = x @ wg
    v, i = lax.top_k(logits, 2)
    g = jax.nn.softmax(v, -1)
    mask = jnp.sum(jax.nn.one_hot(i, 8) * g[..., None], axis=1)
    h = jax.nn.silu(jnp.einsum("td,edf->etf", x, w1))
    y = jnp.einsum("etf,efd->etd", h, w2)
    return jnp.einsum("te,etd->td", mask, y)


@prog(
    (2, 4),
    (
        P(
            "y",
        ),
        P(None, "x"),
        P(
            "y",
        ),
    ),
    lambda r: (r.f(16, 8), r.f(8, 32), r.i(-1, 32, 16)),
)
def ce_ignore(h, w, labels):
    logits = h @ w
    lse = jax.nn.logsumexp(logits, axis=-1)
    oh = jnp.arange(32)[None, :] == labels[:, None]
    gold = jnp.sum(jnp.where(oh, logits, 0.0), axis=-1)
    keep = labels >= 0
    loss = jnp.where(keep, lse - gold, 0.0)
    return loss.sum() / jnp.maximum(keep.sum(), 1).astype(f32), loss


@prog(
    (1, 2),
    (P(None, "x"),) * 4 + (P(),),
    lambda r: (r.f(16, 16), r.f(16, 16), r.f(16, 16, s=0.1), r.pos(16, 16), np.int32(7)),
)
def adamw(p, g, m, v, t):
    m = 0.9 * m + 0.1 * g
    v = 0.95 * v + 0.05 * g * g
    tf = t.astype(f32)
    mh = m / (1 - 0.9**tf)
    vh = v / (1 - 0.95**tf)
    p = p - 0.01 * (mh / (jnp.sqrt(vh) + 1e-6) + 0.1 * p)
    return p, m, v


@prog((2, 2), (P("y", "x"),) * 3, lambda r: (r.f(16, 16), r.f(16, 16), r.f(16, 16, s=0.3)))
def lion(p, g, m):
    n = jnp.sqrt(jnp.sum(g * g))
    g = g * jnp.minimum(1.0, 2.0 / n)
    u = jnp.sign(0.9 * m + 0.1 * g)
    return p - 0.03 * (u + 0.01 * p), 0.99 * m + 0.01 * g


@prog(
    (2, 2),
    (P("y", "x"), P("y", "x"), P("y"), P("x")),
    lambda r: (r.f(16, 16), r.f(16, 16, s=3.0), r.pos(16), r.pos(16)),
)
def adafactor(p, g, vr, vc):
    g2 = g * g + 1e-8
    vr = 0.8 * vr + 0.2 * g2.mean(1)
    vc = 0.8 * vc + 0.2 * g2.mean(0)
    r = vr / vr.mean()
    u = g / (jnp.sqrt(r)[:, None] * jnp.sqrt(vc)[None, :])
    u = u / jnp.maximum(1.0, jnp.sqrt(jnp.mean(u * u)) / 0.5)
    return p - 0.1 * u, vr, vc


@prog((2, 4), (P("y"), P(None, "x")), lambda r: (r.f(16, 32), r.f(32, 32)))
def int8_linear(x, w):
    sx = jnp.max(jnp.abs(x), axis=1, keepdims=True) / 127.0
    sw = jnp.max(jnp.abs(w), axis=0, keepdims=True) / 127.0
    qx = jnp.clip(jnp.round(x / sx), -127, 127)
    qw = jnp.clip(jnp.round(w / sw), -127, 127)
    return (qx @ qw) * sx * sw


@prog((2, 2), (P("y"), P(None, None, None, "x")), lambda r: (r.f(4, 8, 8, 4), r.f(3, 3, 4, 8, s=0.3)))
def conv_pool(x, w):
    y = lax.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
    y = jax.nn.relu(y)
    return lax.reduce_window(y, -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")


@prog((2, 4), (P("y", "x"), P("x"), P("x")), lambda r: (r.f(16, 32), r.f(32), r.f(32)))
def layer_norm(x, g, b):
    mu = x.mean(-1, keepdims=True)
    var = jnp.mean((x - mu) ** 2, -1, keepdims=True)
    return (x - mu) * lax.rsqrt(var + 0.1) * g + b


@prog((2, 2), (P("y", None, None, "x"), P("x"), P("x")), lambda r: (r.f(4, 4, 4, 16), r.f(16), r.f(16)))
def group_norm_swish(x, g, b):
    z = x.reshape(4, 4, 4, 4, 4)
    mu = z.mean((1, 2, 4), keepdims=True)
    v = z.var((1, 2, 4), keepdims=True)
    z = ((z - mu) / jnp.sqrt(v + 0.05)).reshape(x.shape) * g + b
    return z * jax.nn.sigmoid(z)


@prog((2, 4), (P("x"), P("y")), lambda r: (r.f(32, 8), r.i(-1, 32, 8, 8)))
def embed_ignore(table, ids):
    e = jnp.take(table, jnp.where(ids < 0, 0, ids), axis=0)
    e = jnp.where((ids < 0)[..., None], 0.0, e)
    return e.sum(1) / jnp.maximum((ids >= 0).sum(1, keepdims=True), 1)


@prog((2, 4), (P("y"),), lambda r: (r.f(8, 16),))
def nucleus(logits):
    p = jax.nn.softmax(logits / 0.7, axis=-1)
    s = -jnp.sort(-p, axis=-1)
    c = jnp.cumsum(s, axis=-1)
    k = jnp.sum(c < 0.9, axis=-1)
    thr = jnp.take_along_axis(s, k[:, None], axis=-1)
    q = jnp.where(p >= thr, p, 0.0)
    return q / q.sum(-1, keepdims=True), k


@prog((2, 4), (P("y"),), lambda r: (r.i(0, 8, 16),))
def histogram(x):
    oh = (x[:, None] == jnp.arange(8)[None, :]).astype(i32)
    h = oh.sum(0)
    off = jnp.cumsum(h) - h
    rank = jnp.cumsum(oh, axis=0)
    pos = jnp.sum(oh * (rank - 1 + off[None, :]), axis=1)
    return h, off, pos


@prog(
    (2, 2),
    (P("y"), P(None, "x"), P("x"), P()),
    lambda r: (r.f(16, 16), r.f(16, 16, s=0.3), r.f(16, 16, s=0.3), r.f(16, 16)),
)
def grad_mlp(x, w1, w2, y):
    def loss(ws):
        h = jnp.tanh(x @ ws[0])
        o = h @ ws[1]
        return jnp.mean((o - y) ** 2)

    value, g = jax.value_and_grad(loss)((w1, w2))
    return value, w1 - 0.1 * g[0], w2 - 0.1 * g[1]


@prog((1, 2), (P("x"), P()), lambda r: (r.f(8, 8), r.f(8, 8)))
def ring_matmul(x, w):
    mesh = get_mesh((1, 2))

    def body(x, w):
        i = lax.axis_index("x")
        acc = jnp.zeros((4, 8), f32)
        for s in range(2):
            j = (i + s) % 2
            acc = acc + x * (1.0 + s) @ lax.dynamic_slice_in_dim(w, 0, 8, 0) * (j + 1).astype(f32)
            x = lax.ppermute(x, "x", [(k, (k - 1) % 2) for k in range(2)])
        return jnp.tanh(acc) + x

    return shard_map(body, mesh=mesh, in_specs=(P("x"), P()), out_specs=P("x"), check_vma=False)(x, w)


@prog((2, 4), (P(None, "x"), P("y", "x")), lambda r: (r.f(8, 16), r.f(8, 16)))
def ring_attention(q, k):
    mesh = get_mesh((2, 4))

    def body(q, k):
        num = jnp.zeros((4, 4), f32)
        den = jnp.zeros((4, 1), f32)
        for _ in range(4):
            e = jnp.exp(0.3 * q @ k.T)
            num = num + e @ k
            den = den + e.sum(1, keepdims=True)
            k = lax.ppermute(k, "x", [(i, (i + 1) % 4) for i in range(4)])
        return num / den

    return shard_map(body, mesh=mesh, in_specs=(P("y", "x"), P("y", "x")), out_specs=P("y", "x"), check_vma=False)(q, k)


@prog((2, 4), (P("x"), P("y")), lambda r: (r.f(4, 8, 8, s=0.4), r.f(8, 8)))
def pipeline(ws, x):
    mesh = get_mesh((2, 4))

    def body(w, x):
        h = x
        for _ in range(4):
            h2 = jnp.tanh(h @ w[0]) + 0.5 * h
            h = lax.ppermute(h2, "x", [(k, (k + 1) % 4) for k in range(4)])
        return h[None]

    return shard_map(body, mesh=mesh, in_specs=(P("x"), P("y")), out_specs=P("x", "y"), check_vma=False)(ws, x)


@prog((2, 2), (P("y", "x"), P(None, "y")), lambda r: (r.f(8, 8), r.f(8, 8)))
def psum_scatter_map(x, w):
    mesh = get_mesh((2, 2))

    def body(x, w):
        g = lax.all_gather(x, "x", axis=1, tiled=True)
        z = g @ w
        z = lax.psum_scatter(z, "x", scatter_dimension=0, tiled=True)
        m = lax.pmax(jnp.abs(z).max(), ("x", "y"))
        return z / m + lax.pmean(x[:2, :4], "y")

    return shard_map(
        body, mesh=mesh, in_specs=(P("y", "x"), P(None, "y")), out_specs=P(("y", "x"), None), check_vma=False
    )(x, w)


@prog((2, 2), (P("y"), P("x")), lambda r: (r.f(8, 8, 4), r.f(8, 4)))
def all_to_all_map(x, g):
    mesh = get_mesh((2, 2))

    def body(x, g):
        y = lax.all_to_all(x, "y", split_axis=1, concat_axis=0, tiled=True)
        y = y * 2.0 + lax.axis_index("y").astype(f32)
        y = jnp.cumsum(y, 0)
        return lax.all_to_all(y, "y", split_axis=0, concat_axis=1, tiled=True) * lax.psum(g, "x")[None, :, :].sum(
            1, keepdims=True
        )

    return shard_map(body, mesh=mesh, in_specs=(P("y"), P("x")), out_specs=P("y"), check_vma=False)(x, g)


@prog((2, 4), (P("y"), P(None, "x"), P("x")), lambda r: (r.f(6, 8, 16), r.f(16, 16, s=0.3), r.f(16)))
def scan_rnn(x, w, b):
    def step(h, t):
        h = jnp.tanh(t @ w + 0.5 * h + b)
        return h, h * h

    h, ys = lax.scan(step, jnp.zeros((8, 16), f32), x)
    return h, ys.sum(0)


@prog((2, 2), (P("y", "x"), P("x")), lambda r: (r.f(8, 8), r.f(8)))
def newton_fori(a, b):
    m = a @ a.T + 8 * jnp.eye(8)

    def body(i, x):
        return x - 0.05 * (m @ x - b) * (1.0 / (1 + i).astype(f32))

    return lax.fori_loop(0, 5, body, jnp.zeros(8, f32))


@prog((2, 4), (P("y"), P("x"), P()), lambda r: (r.b(16, 32), r.b(32, 64, s=0.2), r.b(64, 16, s=0.2)))
def bf16_mlp(x, w1, w2):
    h = jax.nn.gelu((x @ w1.astype(bf16)).astype(f32))
    y = (h.astype(bf16) @ w2).astype(f32)
    return (y * lax.rsqrt(jnp.mean(y * y, -1, keepdims=True) + 1e-3)).astype(bf16)


@prog((2, 4), (P("y"), P("x")), lambda r: (r.b(8, 16, s=2.0), r.f(16)))
def bf16_rmsnorm(x, g):
    y = x.astype(f32)
    y = y / jnp.sqrt(jnp.mean(y**2, -1, keepdims=True) + 0.01)
    return (y * (1 + g)).astype(bf16), jnp.max(y, axis=0)


@prog(
    (2, 4),
    (P("y"), P(None, "x"), P(None, "x"), P("x")),
    lambda r: (r.f(16, 512), r.f(512, 512, s=0.05), r.f(512, 512, s=0.05), r.f(512, 512, s=0.05)),
)
def swiglu_512(x, wg, wu, wd):
    return x + (jax.nn.silu(x @ wg) * (x @ wu)) @ wd


@prog((2, 2), (P("y"), P("y")), lambda r: (r.i(-50, 50, 16, 8), r.i(0, 8, 16)))
def segment_sums(x, s):
    oh = (s[None, :] == jnp.arange(8)[:, None]).astype(i32)
    t = oh @ x
    c = oh.sum(1, keepdims=True)
    return t, t // jnp.maximum(c, 1), jnp.where(c > 0, t % 7, -1)


@prog((2, 2), (P("y", "x"),), lambda r: (r.i(0, 1000000, 16, 16),))
def int_hash(x):
    h = x ^ (x >> 7)
    h = h * 668265263 + 374761393
    h = h ^ (h << 3)
    return (h & 1023), (h & 255).sum(0), jnp.where((h & 1) == 1, x, -x)


@prog((2, 2), (P("y"), P(None, "x")), lambda r: (r.f(8, 16, 8), r.f(3, 8, 8, s=0.3)))
def conv1d_causal(x, w):
    y = lax.conv_general_dilated(x, w, (1,), [(2, 0)], dimension_numbers=("NWC", "WIO", "NWC"))
    return jax.nn.silu(y) + x


@prog((2, 2), (P("y"), P(None, None, None, "x")), lambda r: (r.f(4, 8, 8, 4), r.f(3, 3, 4, 4, s=0.3)))
def conv_grad(x, w):
    def loss(w):
        y = lax.conv_general_dilated(x, w, (1, 1), [(1, 1), (1, 1)], dimension_numbers=("NHWC", "HWIO", "NHWC"))
        return jnp.mean(jnp.tanh(y) ** 2)

    return jax.value_and_grad(loss)(w)


@prog((2, 2), (P("y"), P()), lambda r: (r.f(4, 8, 8, 4), r.f(4)))
def avg_pool_bn(x, g):
    y = lax.reduce_window(x, 0.0, lax.add, (1, 3, 3, 1), (1, 1, 1, 1), [(0, 0), (1, 1), (1, 1), (0, 0)]) / 9.0
    mu = y.mean((0, 1, 2))
    v = ((y - mu) ** 2).mean((0, 1, 2))
    return (y - mu) / jnp.sqrt(v + 0.01) * g


@prog((2, 2), (P("y"),), lambda r: (r.f(8, 16),))
def signal(x):
    p = jnp.pad(x, ((0, 0), (2, 2)))
    lp = 0.25 * p[:, 0:16] + 0.5 * p[:, 2:18] + 0.25 * p[:, 4:20]
    hp = x - lp
    dec = lp[:, ::2]
    up = jnp.repeat(dec, 2, axis=1)
    n = jnp.arange(16, dtype=f32)
    win = 0.5 - 0.5 * jnp.cos(2 * jnp.pi * n / 16)
    dct = jnp.cos(jnp.pi / 16 * (n[:, None] + 0.5) * n[None, :])
    return up * win, hp @ dct


@prog((2, 4), (P(), P("x"), P("y")), lambda r: (r.f(32, 8), r.f(8, 16), r.i(0, 32, 8)))
def embed_grad(t, w, ids):
    def loss(t):
        e = jax.nn.one_hot(ids, 32) @ t
        z = e @ w
        return jnp.sum(jax.nn.softplus(z) * 0.1)

    value, g = jax.value_and_grad(loss)(t)
    return value, t - 0.3 * g


@prog(
    (1, 2),
    (
        P(
            "x",
        ),
        P(),
        P(),
    ),
    lambda r: (r.i(-8, 8, 8, 8, dt=np.int8), r.i(-8, 8, 8, 8, dt=np.int8), r.f(8)),
)
def int8_dot(a, b, s):
    y = lax.dot_general(a.astype(i32), b.astype(i32), (((1,), (0,)), ((), ())))
    return y.astype(f32) * s * 0.05, jnp.max(y, axis=1)


@prog(
    (2, 4),
    (P("y", None, "x"),) * 3 + (P(),),
    lambda r: (r.f(2, 16, 4, 8), r.f(2, 16, 4, 8), r.f(2, 16, 4, 8), r.i(6, 17, 2)),
)
def sliding_window(q, k, v, lens):
    i = jnp.arange(16)
    d = i[:, None] - i[None, :]
    m = (d >= 0) & (d < 5)
    m = m[None, None] & (i[None, :] < lens[:, None])[:, None, None, :]
    s = jnp.einsum("bqhd,bkhd->bhqk", q, k) * 0.3
    s = 20.0 * jnp.tanh(s / 20.0)
    s = jnp.where(m, s, -1e9)
    p = jnp.exp(s - s.max(-1, keepdims=True))
    p = p / (p.sum(-1, keepdims=True) + 0.2)
    return jnp.einsum("bhqk,bkhd->bqhd", p, v)


@prog(
    (2, 2),
    (P("y", None, "x"), P("y", None, "x"), P("y")),
    lambda r: (r.f(2, 8, 4, 8), r.f(2, 8, 4, 8), r.i(0, 20, 2, 8)),
)
def rope(q, k, pos):
    inv = 1.0 / (100.0 ** (jnp.arange(0, 8, 2, dtype=f32) / 8))
    a = pos[..., None].astype(f32) * inv
    c, s = jnp.cos(a)[:, :, None], jnp.sin(a)[:, :, None]

    def rot(x):
        u, v = x[..., :4], x[..., 4:]
        return jnp.concatenate([u * c - v * s, v * c + u * s], -1)

    return jnp.einsum("bqhd,bkhd->bhqk", rot(q), rot(k))


@prog(
    (2, 2),
    (P("y"), P("x"), P("x"), P()),
    lambda r: (r.f(2, 8, 16), r.f(16, 8, s=0.4), r.f(16, 8, s=0.4), r.f(8, 16, s=0.4)),
)
def mla(x, wd, wk, wu):
    c = x @ wd
    k = x @ wk
    s = jnp.einsum("bqd,bkd->bqk", c, k) / jnp.sqrt(8.0)
    p = jax.nn.softmax(jnp.where(jnp.tril(jnp.ones((8, 8))) > 0, s, -1e4), -1)
    return (p @ c) @ wu, c


@prog(
    (2, 4), (P("y", "x"), P("y", "x"), P("y"), P("y")), lambda r: (r.f(4, 8, 8), r.f(4, 8, 8), r.f(4, 8), r.i(0, 8, 4))
)
def ring_buffer_cache(k, v, q, pos):
    oh = jnp.arange(8)[None, :] == (pos % 8)[:, None]
    k = jnp.where(oh[..., None], q[:, None, :], k)
    v = jnp.where(oh[..., None], 2.0 * q[:, None, :], v)
    s = jnp.einsum("bd,btd->bt", q, k)
    age = (pos[:, None] - jnp.arange(8)[None, :]) % 8
    s = s - 0.2 * age.astype(f32)
    return k, jnp.einsum("bt,btd->bd", jax.nn.softmax(s, -1), v), age


@prog((2, 4), (P(None, "x"), P("x"), P("x")), lambda r: (r.f(16, 8), r.f(8, 8, 8, s=0.3), r.f(8, 4)))
def switch_route(x, w, wg):
    p = jax.nn.softmax(x @ wg[:8, :4], -1)
    e = jnp.argmax(p, -1)
    oh = jax.nn.one_hot(e, 4, dtype=f32)
    rank = jnp.cumsum(oh, 0) * oh
    keep = ((rank <= 3) & (oh > 0)).astype(f32)
    y = jnp.einsum("te,td,edf->tf", keep * p, x, w[:4])
    aux = 4.0 * jnp.sum(oh.mean(0) * p.mean(0))
    return y, aux, e


@prog((2, 2), (P("y"), P("y"), P(None, "x")), lambda r: (r.f(16, 8), r.i(0, 8, 16), r.f(8, 8, s=0.4)))
def label_smooth(x, y, w):
    def loss(w):
        lp = jax.nn.log_softmax(x @ w, -1)
        t = jax.nn.one_hot(y, 8) * 0.9 + 0.1 / 8
        return -(t * lp).sum(-1).mean() + 0.01 * jnp.sum(w * w)

    return jax.value_and_grad(loss)(w)


@prog((2, 4), (P("y"), P("y"), P("x")), lambda r: (r.f(16, 16), r.f(16, 16), r.f(16, 16, s=0.3)))
def clip_loss(a, b, w):
    a = a @ w
    a = a / jnp.sqrt((a * a).sum(-1, keepdims=True) + 1e-2)
    b = b / jnp.linalg.norm(b, axis=-1, keepdims=True)
    s = 4.0 * a @ b.T
    l1 = jax.nn.logsumexp(s, 1) - jnp.diag(s)
    l2 = jax.nn.logsumexp(s, 0) - jnp.diag(s)
    return (l1 + l2).mean() / 2, s


@prog((2, 2), (P("y"), P("y"), P("x")), lambda r: (r.f(16, 8), r.pos(16, 8), r.f(8)))
def huber_kl(x, t, s):
    d = x - t
    h = jnp.where(jnp.abs(d) < 0.8, 0.5 * d * d, 0.8 * (jnp.abs(d) - 0.4))
    q = t / t.sum(-1, keepdims=True)
    kl = jnp.sum(q * (jnp.log(q) - jax.nn.log_softmax(x * s, -1)), -1)
    return h.mean(0), kl, jnp.sum(kl)


@prog((2, 4), (P("y"), P("x"), P("y")), lambda r: (r.f(16, 64), r.f(64, 32, s=0.3), r.f(16, 32)))
def grad_norm_clip(x, w, y):
    g = jax.grad(lambda w: jnp.mean(jnp.square(jax.nn.relu(x @ w) - y)))(w)
    n = jnp.sqrt(jnp.sum(g * g))
    g = jnp.where(n > 0.1, g * (0.1 / n), g)
    return w - g, n


@prog(
    (2, 2),
    (P("y"),) + (P(None, "x"), P("x")) * 2,
    lambda r: (r.f(16, 16), r.f(16, 16, s=0.3), r.f(16, 16, s=0.3), r.f(16, 16, s=0.3), r.f(16, 16, s=0.3)),
)
def grad_4layer(x, a, b, c, d):
    def loss(ws):
        h = x
        for u, v in ((ws[0], ws[1]), (ws[2], ws[3])):
            h = h + jax.nn.silu(h @ u) @ v
            h = h * lax.rsqrt(jnp.mean(h * h, -1, keepdims=True) + 0.05)
        return jnp.mean(h**3)

    return jax.value_and_grad(loss)((a, b, c, d))


@prog((2, 4), (P("y"), P()), lambda r: (r.f(16, 64, s=2.0), r.pos(64)))
def block_absmax(x, g):
    b = x.reshape(16, 8, 8)
    s = jnp.max(jnp.abs(b), -1, keepdims=True)
    q = jnp.clip(jnp.floor(b / s * 7 + 0.5), -8, 7)
    return (q * (s / 7)).reshape(16, 64) * g, s[..., 0]


@prog((1, 2), (P(None, "x"), P(None, "x")), lambda r: (r.i(-100, 100, 16, 16, dt=np.int8), r.pos(1, 16)))
def dequant_int8(q, s):
    w = q.astype(f32) * s / 64.0
    hi = q.astype(i32) >> 4
    lo = q.astype(i32) & 15
    return w @ w.T, hi - lo, jnp.sum(lo * 3, axis=0)


@prog(
    (2, 4),
    (
        P(
            "y",
        ),
        P(
            "x",
        ),
    ),
    lambda r: (r.f(8, 32), r.f(32)),
)
def topk_sample(x, b):
    z = x + b
    v, i = lax.top_k(z, 4)
    g = jax.nn.softmax(v / 0.8, -1)
    pick = jnp.argmax(v - jnp.log(-jnp.log(jnp.linspace(0.1, 0.9, 4))), -1)
    tok = jnp.take_along_axis(i, pick[:, None], 1)[:, 0]
    return g, i, tok


@prog((2, 4), (P("x"),), lambda r: (r.f(8, 16),))
def sort_median(x):
    s = jnp.sort(x, axis=0)
    m = 0.5 * (s[3] + s[4])
    mad = jnp.sort(jnp.abs(x - m), axis=0)[4]
    return m, (x - m) / (mad + 0.1), jnp.cumsum(x, axis=1)


@prog((2, 2), (P("y"), P("x")), lambda r: (r.i(0, 20, 16), r.i(0, 20, 16)))
def overlap_ids(a, b):
    eq = (a[:, None] == b[None, :]).astype(i32)
    first = jnp.where(eq.any(1) if False else eq.sum(1) > 0, jnp.argmax(eq, axis=1), -1)
    run = jnp.cumsum((a > 9).astype(i32))
    return first, run * 2 - a, jnp.maximum(a, b) - jnp.minimum(a, b)


@prog((2, 2), (P("y", None, None, "x"), P()), lambda r: (r.f(4, 8, 8, 8), r.f(3, 3, 1, 8)))
def depthwise(x, w):
    y = lax.conv_general_dilated(
        x, w, (1, 1), [(1, 1), (1, 1)], dimension_numbers=("NHWC", "HWIO", "NHWC"), feature_group_count=8
    )
    return jax.nn.relu(y - 0.1) + x


@prog((2, 4), (P("y"), P("x"), P("x")), lambda r: (r.f(16, 32), r.f(32), r.f(32)))
def batch_norm(x, m, v):
    mu = x.mean(0)
    var = x.var(0)
    y = (x - mu) / jnp.sqrt(var + 0.1)
    m = 0.9 * m + 0.1 * mu
    v = 0.9 * v + 0.1 * var * 16 / 15
    return jnp.where(y > 0, y, 0.2 * y), m, v


@prog((2, 4), (P(("y", "x")),), lambda r: (r.f(64, 8),))
def global_stats(x):
    n = x / jnp.max(jnp.abs(x), axis=0)
    return n - n.mean(0), jnp.argmin(n, axis=1), (n > 0.2).sum(), n.min(0)


@prog((2, 2), (P("y", "x"), P("x", "y")), lambda r: (r.f(16, 16), r.f(16, 16)))
def reshards(a, b):
    c = a.T + b
    d = lax.with_sharding_constraint(c * 0.5, jax.sharding.NamedSharding(get_mesh((2, 2)), P("y", "x")))
    e = jnp.tanh(d) - a
    return e @ b, e[:, 8:] * e[:, :8]


@prog(
    (2, 4),
    (P("y"), P(None, "x"), P(None, "x"), P("x")),
    lambda r: (r.f(2, 16, 32), r.f(32, 96, s=0.2), r.f(32, 64, s=0.2), r.f(64, 32, s=0.2)),
)
def fused_qkv_block(x, wqkv, w1, w2):
    q, k, v = jnp.split(x @ wqkv, 3, axis=-1)

    def h(t):
        return t.reshape(2, 16, 4, 8).transpose(0, 2, 1, 3)

    s = h(q) @ h(k).swapaxes(-1, -2) * 8**-0.5
    o = (jax.nn.softmax(s, -1) @ h(v)).transpose(0, 2, 1, 3).reshape(2, 16, 32)
    x = x + o
    return x + jax.nn.gelu(x @ w1) @ w2


@prog((2, 2), (P("y"), P("x"), P("y")), lambda r: (r.f(4, 8, 8), r.f(8, 8), r.f(4, 8)))
def linear_attention(x, w, g):
    phi = jax.nn.elu(x @ w) + 1.0

    def step(s, t):
        kt, vt, gt = t
        s = s * jax.nn.sigmoid(gt)[:, None, None] + kt[:, :, None] * vt[:, None, :]
        return s, jnp.einsum("bd,bde->be", kt, s)

    s, ys = lax.scan(step, jnp.zeros((4, 8, 8), f32), (phi.swapaxes(0, 1), x.swapaxes(0, 1), g.T))
    return ys, s


@prog((2, 4), (P("y", "x"),) * 2, lambda r: (r.f(16, 32), r.f(16, 32)))
def muon_ns(g, m):
    m = 0.9 * m + g
    x = m / (jnp.sqrt(jnp.sum(m * m)) + 1e-3)
    for _ in range(2):
        a = x @ x.T
        x = 3.4445 * x + (-4.775 * a + 2.0315 * a @ a) @ x
    return x * 0.5, m


@prog((1, 2), (P("x"), P("x"), P("x")), lambda r: (r.f(32, 16), r.f(32, 16), r.f(32, 16, s=0.3)))
def nesterov_ema(p, g, m):
    m2 = 0.8 * m + g
    step = g + 0.8 * m2
    tr = jnp.maximum(jnp.sqrt(jnp.sum(p * p, 1, keepdims=True)), 0.5) / (
        jnp.sqrt(jnp.sum(step * step, 1, keepdims=True)) + 0.1
    )
    p2 = p - 0.1 * tr * step
    return p2, m2, 0.99 * p + 0.01 * p2


@prog((2, 2), (P("y"), P(None, "x"), P("y")), lambda r: (r.b(16, 16), r.b(16, 32, s=0.3), r.i(0, 32, 16)))
def bf16_ce_grad(x, w, y):
    def loss(w):
        z = (x @ w).astype(f32)
        return jnp.mean(jax.nn.logsumexp(z, -1) - jnp.sum(jax.nn.one_hot(y, 32) * z, -1))

    return jax.value_and_grad(loss)(w)


@prog((2, 2), (P("y"), P("x"), P("x")), lambda r: (r.b(2, 8, 16), r.b(16, 16, s=0.3), r.b(16)))
def bf16_attn_gate(x, w, b):
    q = x @ w + b
    s = jnp.einsum("bqd,bkd->bqk", q, x).astype(f32) * 0.25
    p = jax.nn.softmax(s, -1).astype(bf16)
    return jnp.einsum("bqk,bkd->bqd", p, x) * jax.nn.sigmoid(q)


@prog((2, 4), (P("y"), P("x")), lambda r: (r.f(8, 16, 16), r.f(16, 16)))
def gru_fori(x, w):
    def body(i, h):
        t = lax.dynamic_index_in_dim(x, i, 1, keepdims=False)
        z = jax.nn.sigmoid(t + h @ w)
        return (1 - z) * h + z * jnp.tanh(t)

    return lax.fori_loop(0, 4, body, jnp.ones((8, 16), f32) * 0.1)


@prog((2, 2), (P("y"), P()), lambda r: (r.f(4, 8, 8, 2), r.f(2, 2, 2, 4)))
def patch_embed(x, w):
    y = lax.conv_general_dilated(x, w, (2, 2), "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC"))
    t = y.reshape(4, 16, 4)
    up = jnp.repeat(jnp.repeat(y, 2, 1), 2, 2)
    return t - t.mean(1, keepdims=True), up.sum(-1)


@prog((2, 2), (P("y"),), lambda r: (r.f(4, 8, 8, 4),))
def pixel_shuffle_pool(x):
    y = x.reshape(4, 8, 8, 2, 2).transpose(0, 1, 3, 2, 4).reshape(4, 16, 16)
    m = lax.reduce_window(y, -jnp.inf, lax.max, (1, 4, 4), (1, 4, 4), "VALID")
    a = y.reshape(4, 4, 4, 4, 4).mean((2, 4))
    return m - a, y[:, ::2, 1::2]


@prog((2, 4), (P("y", "x"), P("x")), lambda r: (r.f(8, 16, 8), r.i(0, 16, 4)))
def gather_rows(x, idx):
    a = jnp.take(x, idx, axis=1)
    b = x.at[:, idx].add(1.0)
    return a * 2.0, b.sum(1)


@prog((2, 2), (P("y"), P("y"), P()), lambda r: (r.f(8, 16), r.i(0, 16, 8), r.f(16)))
def scatter_update(x, i, v):
    y = x.at[jnp.arange(8), i].set(5.0)
    z = lax.dynamic_update_slice(y, v[None, :4] * 2, (3, 2))
    return z, lax.dynamic_slice(z, (2, i[0] % 8), (4, 8))


@prog((2, 4), (P("y"), P("x"), P()), lambda r: (r.f(8, 32), r.f(32, 16, s=0.3), r.i(0, 4, 8)))
def lora_multi(x, w, task):
    n = jnp.arange(4)
    a = jnp.sin(jnp.arange(4 * 32 * 2, dtype=f32)).reshape(4, 32, 2)
    b = jnp.cos(jnp.arange(4 * 2 * 16, dtype=f32)).reshape(4, 2, 16)
    sel = (task[:, None] == n[None, :]).astype(f32)
    xa = jnp.einsum("bd,tdr,bt->br", x, a, sel)
    return x @ w + 0.5 * jnp.einsum("br,tro,bt->bo", xa, b, sel)


@prog((2, 2), (P("y", "x"), P("x", "y")), lambda r: (r.f(16, 16), r.f(16, 16)))
def cross_layout(a, b):
    s = jax.nn.softmax(a, axis=0) - jax.nn.softmax(b, axis=1)
    m = s @ a.T
    return m, jnp.concatenate([s, m], 0), s.max(0) - m.min(1)


@prog((2, 4), (P("y"), P(), P()), lambda r: (r.i(0, 100, 32), np.int32(r.i(1, 9)), np.int32(r.i(3, 20))))
def int_books(x, k, m):
    y = (x * k + 7) % m
    z = jnp.where(y > m // 2, y - m, y)
    b = jnp.cumsum(jnp.where(z < 0, 1, 0))
    e = (y << 2) | (x & 3)
    return z, b, e, jnp.sum(jnp.where(e > 20, e, 0)), jnp.max(z) - jnp.min(z)


@prog((2, 4), (P("y"), P("x"), P("x")), lambda r: (r.f(16, 256), r.f(256, 512, s=0.06), r.f(512, 256, s=0.06)))
def deq_512(x, w1, w2):
    h = jax.nn.relu(x @ w1) ** 2
    y = h @ w2
    s = jnp.max(jnp.abs(y), -1, keepdims=True)
    return y / (s + 0.5), s


@prog((2, 2), (P("y"), P("x")), lambda r: (r.f(8, 8), r.f(8, 8)))
def while_power(a, v):
    def cond(c):
        return c[0] < 4

    def body(c):
        i, x = c
        x = jnp.tanh(a @ x) + 0.1 * i.astype(f32)
        return i + 1, x

    return lax.while_loop(cond, body, (jnp.int32(0), v))[1]
