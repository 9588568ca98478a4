"""Programs that were added later: scans, optimizers, exchanges by hand, losses, caches, integers."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import Mesh, PartitionSpec as P

from tests.generators.second_blind.made import Draw, Parts, program

BF16 = jnp.bfloat16


@program(2, 4)
def mamba_scan(draw: Draw, mesh: Mesh) -> Parts:
    def run(x: Any, dt: Any, A: Any, B: Any, C: Any) -> Any:
        dA = jnp.exp(-dt[..., None] * jax.nn.softplus(A))
        dBx = dt[..., None] * B[:, :, None, :] * x[..., None]

        def f(a: Any, b: Any) -> Any:
            return a[0] * b[0], b[0] * a[1] + b[1]

        _, h = lax.associative_scan(f, (dA, dBx), axis=1)
        return jnp.einsum("btdn,btn->btd", h, C)

    return (
        run,
        (draw.normal(4, 8, 16), draw.uniform(4, 8, 16), draw.normal(16, 4), draw.normal(4, 8, 4), draw.normal(4, 8, 4)),
        (P("x", None, "y"), P("x", None, "y"), P("y"), P("x"), P("x")),
    )


@program(2, 4)
def mla_attention(draw: Draw, mesh: Mesh) -> Parts:
    def run(x: Any, dq: Any, uq: Any, dkv: Any, uk: Any, uv: Any, kr: Any, o: Any) -> Any:
        q = jnp.einsum("bsd,dr,rhk->bhsk", x, dq, uq)
        c = x @ dkv
        k = jnp.einsum("bsr,rhk->bhsk", c, uk)
        v = jnp.einsum("bsr,rhk->bhsk", c, uv)
        rope = x @ kr
        pos = jnp.arange(x.shape[1])
        ang = pos[:, None] / 100.0 ** (jnp.arange(4) / 4)
        r = jnp.concatenate(
            [
                rope[..., :4] * jnp.cos(ang) - rope[..., 4:] * jnp.sin(ang),
                rope[..., :4] * jnp.sin(ang) + rope[..., 4:] * jnp.cos(ang),
            ],
            -1,
        )
        s = jnp.einsum("bhsk,bhtk->bhst", q, k) + jnp.einsum("bhsk,btk->bhst", q[..., :8], r)
        s = jnp.where(pos[:, None] >= pos[None], s / 4, -jnp.inf)
        return jnp.einsum("bhst,bhtk,hkd->bsd", jax.nn.softmax(s, -1), v, o)

    return (
        run,
        (
            draw.normal(2, 16, 32),
            draw.weight(32, 8),
            draw.weight(8, 4, 8),
            draw.weight(32, 8),
            draw.weight(8, 4, 8),
            draw.weight(8, 4, 8),
            draw.weight(32, 8),
            draw.normal(4, 8, 32, scale=0.2),
        ),
        (P("x"), P(), P(None, "y"), P(), P(None, "y"), P(None, "y"), P(), P("y")),
    )


@program(2, 4)
def lstm_layers(draw: Draw, mesh: Mesh) -> Parts:
    def run(x: Any, wx: Any, wh: Any, b: Any) -> Any:
        def cell(c: Any, xt: Any) -> Any:
            h, m = c
            g = xt @ wx + h @ wh + b
            i, f, o, u = jnp.split(g, 4, -1)
            m = jax.nn.sigmoid(f + 1) * m + jax.nn.sigmoid(i) * jnp.tanh(u)
            h = jax.nn.sigmoid(o) * jnp.tanh(m)
            return (h, m), h

        z = jnp.zeros((x.shape[1], 8))
        return lax.scan(cell, (z, z), x)

    return (
        run,
        (draw.normal(6, 4, 8), draw.weight(8, 32), draw.weight(8, 32), draw.normal(32, scale=0.1)),
        (P(None, "x"), P(None, "y"), P(None, "y"), P("y")),
    )


@program(2, 4)
def shampoo_like(draw: Draw, mesh: Mesh) -> Parts:
    def run(w: Any, g: Any, L: Any, R: Any, step: Any) -> Any:
        L = 0.9 * L + g @ g.T
        R = 0.9 * R + g.T @ g

        def inv(m: Any) -> Any:
            y = m / jnp.trace(m)
            z = jnp.eye(m.shape[0])
            for _ in range(3):
                t = 0.5 * (3 * jnp.eye(m.shape[0]) - z @ y)
                y = y @ t
                z = t @ z
            return z

        u = inv(L) @ g @ inv(R)
        return w - 0.1 * u / (1e-3 + jnp.linalg.norm(u)) / jnp.sqrt(step), L, R

    return (
        run,
        (draw.normal(8, 8), draw.normal(8, 8), jnp.eye(8), jnp.eye(8), jnp.float32(4)),
        (P("x", "y"), P("x", "y"), P("x"), P("y"), P()),
    )


@program(1, 8)
def vocab_parallel_embedding(draw: Draw, mesh: Mesh) -> Parts:
    def run(t: Any, ids: Any, types: Any, tt: Any, pos: Any) -> Any:
        x = t[ids] * jnp.sqrt(16.0) + tt[types] + pos[None]
        m = x.mean(-1, keepdims=True)
        v = ((x - m) ** 2).mean(-1, keepdims=True)
        return (x - m) * lax.rsqrt(v + 1e-6)

    return (
        run,
        (draw.normal(64, 16), draw.ids(64, 4, 6), draw.ids(2, 4, 6), draw.normal(2, 16), draw.normal(6, 16)),
        (P("y"), P(), P(), P(), P()),
    )


@program(2, 4)
def focal_counts(draw: Draw, mesh: Mesh) -> Parts:
    def run(logits: Any, labels: Any, alpha: Any) -> Any:
        lp = jax.nn.log_softmax(logits)
        pt = jnp.take_along_axis(lp, jnp.maximum(labels, 0)[:, None], 1)[:, 0]
        w = alpha[jnp.maximum(labels, 0)] * (1 - jnp.exp(pt)) ** 2
        ok = labels >= 0
        return -(w * pt * ok).sum() / jnp.maximum(ok.sum(), 1), (jnp.argmax(logits, -1) == labels).mean()

    return run, (draw.normal(16, 8), draw.ids(8, 16, low=-1), draw.uniform(8)), (P("x", "y"), P("x"), P("y"))


@program(2, 4)
def resnet_block(draw: Draw, mesh: Mesh) -> Parts:
    def run(x: Any, w1: Any, w2: Any, ws: Any, g: Any, b: Any) -> Any:
        dn = ("NHWC", "HWIO", "NHWC")
        h = lax.conv_general_dilated(x, w1, (2, 2), "SAME", dimension_numbers=dn)
        h = h * g + b
        h = jax.nn.relu(h)
        h = lax.conv_general_dilated(h, w2, (1, 1), "SAME", dimension_numbers=dn)
        s = lax.conv_general_dilated(x, ws, (2, 2), "VALID", dimension_numbers=dn)
        y = jax.nn.relu(h + s)
        return y.mean((1, 2)), lax.reduce_window(y, -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")

    return (
        run,
        (
            draw.normal(8, 8, 8, 4),
            draw.weight(3, 3, 4, 8),
            draw.weight(3, 3, 8, 8),
            draw.weight(1, 1, 4, 8),
            draw.uniform(8),
            draw.normal(8),
        ),
        (P(("x", "y")), P(), P(), P(), P(), P()),
    )


@program(2, 4)
def moe_sorted(draw: Draw, mesh: Mesh) -> Parts:
    def run(x: Any, router: Any, w1: Any, w2: Any) -> Any:
        p = jax.nn.softmax(x @ router)
        v, i = lax.top_k(p, 2)
        v = v / v.sum(-1, keepdims=True)
        gate = (jax.nn.one_hot(i, 4) * v[..., None]).sum(1)
        h = jax.nn.silu(jnp.einsum("td,edf->tef", x, w1))
        y = jnp.einsum("tef,efd->ted", h, w2)
        load = jnp.bincount(i.reshape(-1), length=4)
        return jnp.einsum("te,ted->td", gate, y), load

    return (
        run,
        (draw.normal(16, 8), draw.weight(8, 4), draw.normal(4, 8, 16, scale=0.3), draw.normal(4, 16, 8, scale=0.3)),
        (P("x"), P(), P("y"), P("y")),
    )


@program(1, 4)
def beam_search(draw: Draw, mesh: Mesh) -> Parts:
    def run(scores: Any, logits: Any, seqs: Any, at: Any) -> Any:
        lp = jax.nn.log_softmax(logits, -1)
        tot = (scores[..., None] + lp).reshape(scores.shape[0], -1)
        v, i = lax.top_k(tot, 4)
        beam = i // lp.shape[-1]
        tok = i % lp.shape[-1]
        s = jnp.take_along_axis(seqs, beam[..., None], 1)
        s = lax.dynamic_update_slice(s, tok[..., None], (0, 0, at))
        return v, s

    return (
        run,
        (draw.normal(4, 4), draw.normal(4, 4, 12), draw.ids(12, 4, 4, 6), jnp.int32(3)),
        (P("y"), P("y"), P("y"), P()),
    )


@program(2, 4)
def int8_linear(draw: Draw, mesh: Mesh) -> Parts:
    def run(x: Any, wq: Any, scale: Any, zero: Any) -> Any:
        s = jnp.max(jnp.abs(x), -1, keepdims=True) / 127
        xq = jnp.clip(jnp.round(x / s), -127, 127).astype(jnp.int8)
        acc = lax.dot_general(xq, wq, (((1,), (0,)), ((), ())), preferred_element_type=jnp.int32)
        return acc.astype(jnp.float32) * s * scale - zero

    return (
        run,
        (draw.normal(8, 16), draw.bytes(16, 8), draw.uniform(8), draw.normal(8)),
        (P("x"), P(None, "y"), P("y"), P("y")),
    )


@program(2, 4)
def bf16_decoder(draw: Draw, mesh: Mesh) -> Parts:
    def run(x: Any, wq: Any, wk: Any, wv: Any, wo: Any, w1: Any, w2: Any, g: Any) -> Any:
        def rms(x: Any) -> Any:
            return (x * lax.rsqrt((x.astype(jnp.float32) ** 2).mean(-1, keepdims=True) + 1e-5).astype(BF16)) * g

        h = rms(x)

        def sp(t: Any) -> Any:
            return t.reshape(*t.shape[:-1], 4, 8).swapaxes(1, 2)

        q, k, v = sp(h @ wq), sp(h @ wk), sp(h @ wv)
        s = (q @ k.swapaxes(-1, -2)).astype(jnp.float32) / 8**0.5
        s = jnp.where(jnp.tril(jnp.ones((8, 8), bool)), s, -1e9)
        a = jax.nn.softmax(s, -1).astype(BF16) @ v
        x = x + a.swapaxes(1, 2).reshape(x.shape) @ wo
        h = rms(x)
        return x + jax.nn.gelu(h @ w1) @ w2

    def w(*s: Any) -> Any:
        return draw.weight(*s, dtype=BF16)

    return (
        run,
        (
            draw.normal(2, 8, 32, dtype=BF16),
            w(32, 32),
            w(32, 32),
            w(32, 32),
            w(32, 32),
            w(32, 64),
            w(64, 32),
            draw.uniform(32, dtype=BF16),
        ),
        (P("x"), P(None, "y"), P(None, "y"), P(None, "y"), P("y"), P(None, "y"), P("y"), P()),
    )


@program(2, 4)
def lamb_step(draw: Draw, mesh: Mesh) -> Parts:
    def run(p: Any, m: Any, v: Any, x: Any, y: Any, t: Any) -> Any:
        def loss(p: Any) -> Any:
            return jnp.mean((jnp.tanh(x @ p["a"]) @ p["b"] - y) ** 2)

        g = jax.grad(loss)(p)

        def up(p: Any, g: Any, m: Any, v: Any) -> Any:
            m = 0.9 * m + 0.1 * g
            v = 0.99 * v + 0.01 * g * g
            u = m / (1 - 0.9**t) / (jnp.sqrt(v / (1 - 0.99**t)) + 1e-6) + 0.01 * p
            r = jnp.linalg.norm(p) / jnp.maximum(jnp.linalg.norm(u), 1e-6)
            return p - 0.01 * jnp.clip(r, 0.1, 10) * u, m, v

        return {k: up(p[k], g[k], m[k], v[k]) for k in p}

    z = {"a": draw.normal(8, 16, scale=0.1), "b": draw.normal(16, 8, scale=0.1)}
    s = {"a": P(None, "y"), "b": P("y")}
    return (
        run,
        (
            {"a": draw.weight(8, 16), "b": draw.weight(16, 8)},
            z,
            jax.tree.map(lambda a: a * a + 0.1, z),
            draw.normal(8, 8),
            draw.normal(8, 8),
            jnp.float32(3),
        ),
        (s, s, s, P("x"), P("x"), P()),
    )


@program(2, 4)
def paged_cache(draw: Draw, mesh: Mesh) -> Parts:
    def run(pages: Any, table: Any, lens: Any, q: Any) -> Any:
        k = pages[table]
        k = k.reshape(k.shape[0], -1, k.shape[-1])
        s = jnp.einsum("bd,btd->bt", q, k) / 4
        s = jnp.where(jnp.arange(k.shape[1])[None] < lens[:, None], s, -1e30)
        return jnp.einsum("bt,btd->bd", jax.nn.softmax(s, -1), k)

    return (
        run,
        (draw.normal(16, 4, 16), draw.ids(16, 4, 3), draw.ids(12, 4, low=1), draw.normal(4, 16)),
        (P(None, None, "y"), P("x"), P("x"), P("x", "y")),
    )


@program(1, 8)
def ring_allgather_matmul(draw: Draw, mesh: Mesh) -> Parts:
    def local(x: Any, w: Any) -> Any:
        n = 8
        i = lax.axis_index("y")
        out = jnp.zeros((x.shape[0] * n, w.shape[1]))
        for s in range(n):
            out = lax.dynamic_update_slice(out, x @ w, (((i - s) % n) * x.shape[0], 0))
            if s < n - 1:
                x = lax.ppermute(x, "y", [(j, (j + 1) % n) for j in range(n)])
        return out

    f = jax.shard_map(local, mesh=mesh, in_specs=(P("y"), P(None, "y")), out_specs=P(None, "y"))
    return f, (draw.normal(16, 8), draw.weight(8, 16)), (P("y"), P(None, "y"))


@program(2, 4)
def zero_reduce_scatter(draw: Draw, mesh: Mesh) -> Parts:
    def local(w: Any, x: Any, y: Any) -> Any:
        full = lax.all_gather(w, "x", axis=0, tiled=True)
        full = lax.all_gather(full, "y", axis=1, tiled=True)
        e = x @ full - y
        g = x.T @ e
        g = lax.psum_scatter(g, "x", scatter_dimension=0, tiled=True)
        g = lax.psum_scatter(g, "y", scatter_dimension=1, tiled=True)
        return w - 0.01 * g, lax.pmean((e**2).mean(), ("x", "y"))

    f = jax.shard_map(
        local, mesh=mesh, in_specs=(P("x", "y"), P(("x", "y")), P(("x", "y"))), out_specs=(P("x", "y"), P())
    )
    return f, (draw.weight(8, 16), draw.normal(16, 8), draw.normal(16, 16)), (P("x", "y"), P(("x", "y")), P(("x", "y")))


@program(2, 4)
def moe_all_to_all(draw: Draw, mesh: Mesh) -> Parts:
    def local(x: Any, w: Any) -> Any:
        b = x.reshape(4, 2, 8)
        b = lax.all_to_all(b, "y", 0, 0)
        h = jnp.tanh(b @ w[0])
        b = lax.all_to_all(h, "y", 0, 0)
        return b.reshape(8, 8)

    f = jax.shard_map(local, mesh=mesh, in_specs=(P(("x", "y")), P("y")), out_specs=P(("x", "y")))
    return f, (draw.normal(64, 8), draw.normal(4, 8, 8, scale=0.3)), (P(("x", "y")), P("y"))


@program(2, 4)
def dropout_hash(draw: Draw, mesh: Mesh) -> Parts:
    def run(x: Any, seed: Any) -> Any:
        i = jnp.arange(x.size, dtype=jnp.int32).reshape(x.shape)
        h = i * 1103515 + seed
        h = h ^ (h >> 13)
        h = h * 12345
        keep = (h & 255) > 64
        return jnp.where(keep, x / 0.75, 0.0)

    return run, (draw.normal(8, 16), jnp.int32(77)), (P("x", "y"), P())


@program(1, 8)
def segment_stats(draw: Draw, mesh: Mesh) -> Parts:
    def run(x: Any, seg: Any) -> Any:
        s = jax.ops.segment_sum(x, seg, 4)
        n = jax.ops.segment_sum(jnp.ones(x.shape[0]), seg, 4)
        m = jax.ops.segment_max(x, seg, 4)
        return s / jnp.maximum(n, 1)[:, None], jnp.where(n[:, None] > 0, m, 0)

    return run, (draw.normal(16, 8), draw.ids(4, 16)), (P(None, "y"), P())


@program(2, 4)
def gcn(draw: Draw, mesh: Mesh) -> Parts:
    def run(adj: Any, x: Any, w1: Any, w2: Any) -> Any:
        a = adj + jnp.eye(adj.shape[0])
        dg = lax.rsqrt(a.sum(1))
        a = a * dg[:, None] * dg[None]
        return jax.nn.log_softmax(a @ jax.nn.relu(a @ x @ w1) @ w2)

    return (
        run,
        (draw.uniform(16, 16), draw.normal(16, 8), draw.weight(8, 16), draw.weight(16, 4)),
        (P("x"), P(None, "y"), P("y"), P()),
    )


@program(2, 4)
def kalman(draw: Draw, mesh: Mesh) -> Parts:
    def run(zs: Any, F: Any, q: Any, r: Any) -> Any:
        def step(c: Any, z: Any) -> Any:
            m, p = c
            m = m * F
            p = F * p * F + q
            k = p / (p + r)
            m = m + k * (z - m)
            p = (1 - k) * p
            return (m, p), (m, k)

        n = zs.shape[1]
        return lax.scan(step, (jnp.zeros(n), jnp.ones(n)), zs)

    return (
        run,
        (draw.normal(5, 16), draw.uniform(16), draw.uniform(16), draw.uniform(16)),
        (P(None, ("x", "y")), P(("x", "y")), P(("x", "y")), P(("x", "y"))),
    )


@program(2, 4)
def vae(draw: Draw, mesh: Mesh) -> Parts:
    def run(x: Any, e1: Any, em: Any, es: Any, d1: Any, eps: Any) -> Any:
        h = jax.nn.elu(x @ e1)
        mu, ls = h @ em, h @ es
        z = mu + jnp.exp(0.5 * ls) * eps
        y = jax.nn.sigmoid(z @ d1)
        rec = -(x * jnp.log(y + 1e-6) + (1 - x) * jnp.log(1 - y + 1e-6)).sum(-1)
        kl = -0.5 * (1 + ls - mu**2 - jnp.exp(ls)).sum(-1)
        return (rec + kl).mean(), y

    return (
        run,
        (
            draw.uniform(8, 16),
            draw.weight(16, 16),
            draw.weight(16, 4),
            draw.weight(16, 4),
            draw.weight(4, 16),
            draw.normal(8, 4),
        ),
        (P("x"), P(None, "y"), P("y"), P("y"), P(None, "y"), P("x")),
    )


@program(2, 4)
def contrastive_clip(draw: Draw, mesh: Mesh) -> Parts:
    def run(a: Any, b: Any, t: Any) -> Any:
        def n(x: Any) -> Any:
            return x / jnp.linalg.norm(x, axis=-1, keepdims=True)

        logits = n(a) @ n(b).T * jnp.exp(t)
        i = jnp.arange(logits.shape[0])
        return -(jax.nn.log_softmax(logits, 1)[i, i] + jax.nn.log_softmax(logits, 0)[i, i]).mean() / 2

    return run, (draw.normal(8, 16), draw.normal(8, 16), jnp.float32(0.5)), (P("x", "y"), P("x", "y"), P())


@program(2, 4)
def nms_masks(draw: Draw, mesh: Mesh) -> Parts:
    def run(boxes: Any, scores: Any) -> Any:
        o = jnp.argsort(-scores)
        b = boxes[o]
        lo = jnp.maximum(b[:, None, :2], b[None, :, :2])
        hi = jnp.minimum(b[:, None, 2:], b[None, :, 2:])
        inter = jnp.prod(jnp.maximum(hi - lo, 0), -1)
        ar = jnp.prod(b[:, 2:] - b[:, :2], -1)
        iou = inter / (ar[:, None] + ar[None] - inter)
        return iou, ((iou > 0.3) & (jnp.arange(8)[:, None] > jnp.arange(8)[None])).any(1)

    c = draw.uniform(8, 2)
    return run, (jnp.concatenate([c, c + draw.uniform(8, 2)], 1), draw.normal(8)), (P(("x", "y")), P(("x", "y")))


@program(2, 4)
def denoising_step(draw: Draw, mesh: Mesh) -> Parts:
    def run(x: Any, t: Any, w: Any, temb: Any, noise: Any) -> Any:
        half = 4
        f = jnp.exp(-jnp.log(1e4) * jnp.arange(half) / half)
        a = t[:, None] * f
        e = jnp.concatenate([jnp.sin(a), jnp.cos(a)], -1) @ temb
        h = jax.nn.silu(x + e[:, None])
        h = h.reshape(*h.shape[:2], 4, -1)
        h = (h - h.mean((1, 3), keepdims=True)) / jnp.sqrt(h.var((1, 3), keepdims=True) + 1e-5)
        eps = h.reshape(x.shape) @ w
        ab = jnp.cos(t / 10)[:, None, None] ** 2
        x0 = (x - jnp.sqrt(1 - ab) * eps) / jnp.sqrt(ab + 0.1)
        return jnp.clip(x0, -2, 2) * jnp.sqrt(ab) + 0.1 * noise

    return (
        run,
        (
            draw.normal(4, 8, 16),
            draw.uniform(4, low=1, high=9),
            draw.weight(16, 16),
            draw.weight(8, 16),
            draw.normal(4, 8, 16),
        ),
        (P("x"), P("x"), P(None, "y"), P(None, "y"), P("x")),
    )


@program(2, 4)
def sinkhorn(draw: Draw, mesh: Mesh) -> Parts:
    def run(c: Any) -> Any:
        def body(_: Any, uv: Any) -> Any:
            u, v = uv
            u = -jax.nn.logsumexp(-c + v[None], 1)
            v = -jax.nn.logsumexp(-c + u[:, None], 0)
            return u, v

        u, v = lax.fori_loop(0, 4, body, (jnp.zeros(c.shape[0]), jnp.zeros(c.shape[1])))
        return jnp.exp(u[:, None] + v[None] - c)

    return run, (draw.uniform(8, 16),), (P("x", "y"),)


@program(1, 8)
def windowed_stats(draw: Draw, mesh: Mesh) -> Parts:
    def run(x: Any) -> Any:
        w = jnp.stack([x[..., i : i + 12] for i in range(5)])
        m = w.mean(0)
        s = w.std(0)
        c = jnp.cumsum(x, -1)
        mx = lax.cummax(x, axis=1)
        med = jnp.sort(w, 0)[2]
        return m, s, c, mx, med

    return run, (draw.normal(8, 16),), (P("y"),)


@program(2, 4)
def rwkv(draw: Draw, mesh: Mesh) -> Parts:
    def run(k: Any, v: Any, r: Any, w: Any, u: Any) -> Any:
        def step(c: Any, kv: Any) -> Any:
            a, b = c
            k, v = kv
            e = jnp.exp(u + k)
            o = (a + e * v) / (b + e)
            ek = jnp.exp(k)
            dw = jnp.exp(-jnp.exp(w))
            return (a * dw + ek * v, b * dw + ek), o

        z = jnp.zeros(k.shape[1:])
        _, o = lax.scan(step, (z, z), (k, v))
        return jax.nn.sigmoid(r) * o

    return (
        run,
        (draw.normal(6, 4, 8), draw.normal(6, 4, 8), draw.normal(6, 4, 8), draw.normal(8), draw.normal(8)),
        (P(None, "x", "y"), P(None, "x", "y"), P(None, "x", "y"), P("y"), P("y")),
    )


@program(2, 4)
def ppo(draw: Draw, mesh: Mesh) -> Parts:
    def run(lp: Any, old: Any, adv: Any, val: Any, ret: Any, rew: Any, done: Any) -> Any:
        def back(c: Any, x: Any) -> Any:
            r, dn, v, nv = x
            dl = r + 0.99 * nv * (1 - dn) - v
            c = dl + 0.9 * (1 - dn) * c
            return c, c

        nv = jnp.concatenate([val[1:], val[-1:]])
        _, g = lax.scan(back, jnp.zeros(val.shape[1]), (rew, done, val, nv), reverse=True)
        a = (g - g.mean()) / (g.std() + 1e-5)
        ra = jnp.exp(lp - old)
        return -jnp.minimum(ra * a, jnp.clip(ra, 0.8, 1.2) * a).mean() + 0.5 * jnp.mean((val - ret) ** 2), g

    b = (draw.uniform(6, 8) > 0.7).astype(jnp.float32)
    s = P(None, ("x", "y"))
    return (
        run,
        (
            draw.normal(6, 8, scale=0.3),
            draw.normal(6, 8, scale=0.3),
            draw.normal(6, 8),
            draw.normal(6, 8),
            draw.normal(6, 8),
            draw.normal(6, 8),
            b,
        ),
        (s,) * 7,
    )


@program(2, 4)
def unet_like(draw: Draw, mesh: Mesh) -> Parts:
    def run(x: Any, wd: Any, wu: Any, wo: Any) -> Any:
        dn = ("NHWC", "HWIO", "NHWC")
        h = jax.nn.relu(lax.conv_general_dilated(x, wd, (2, 2), ((1, 1), (1, 1)), dimension_numbers=dn))
        u = jnp.repeat(jnp.repeat(h, 2, 1), 2, 2)
        u = jax.nn.relu(lax.conv_general_dilated(u, wu, (1, 1), "SAME", dimension_numbers=dn))
        return lax.conv_general_dilated(jnp.concatenate([u, x], -1), wo, (1, 1), "SAME", dimension_numbers=dn)

    return (
        run,
        (draw.normal(8, 8, 8, 4), draw.weight(3, 3, 4, 8), draw.weight(3, 3, 8, 4), draw.weight(1, 1, 8, 4)),
        (P("x"), P(None, None, None, "y"), P(None, None, "y"), P()),
    )


@program(2, 4)
def token_packing(draw: Draw, mesh: Mesh) -> Parts:
    def run(ids: Any, seg: Any) -> Any:
        same = seg[:, :, None] == seg[:, None]
        causal = jnp.tril(jnp.ones((8, 8), jnp.int32)) == 1
        m = same & causal & (seg > 0)[:, :, None]
        pos = m.sum(-1) - 1
        nxt = jnp.where(jnp.roll(seg, -1, 1) == seg, jnp.roll(ids, -1, 1), -100)
        return m.astype(jnp.int32), pos, nxt

    return run, (draw.ids(50, 8, 8), draw.ids(3, 8, 8)), (P(("x", "y")), P(("x", "y")))


@program(2, 4)
def bilinear_bf16_moe(draw: Draw, mesh: Mesh) -> Parts:
    def run(x: Any, a: Any, b: Any, c: Any) -> Any:
        h = (x @ a) * jax.nn.sigmoid(x @ b)
        h = h / jnp.maximum(jnp.abs(h).max(-1, keepdims=True), 1e-3).astype(BF16)
        return (h @ c).astype(jnp.float32).sum(1), h

    def w(*s: Any) -> Any:
        return draw.weight(*s, dtype=BF16)

    return (
        run,
        (draw.normal(4, 8, 16, dtype=BF16), w(16, 32), w(16, 32), w(32, 16)),
        (P("x"), P(None, "y"), P(None, "y"), P("y")),
    )


@program(2, 4)
def decoder_six_layers(draw: Draw, mesh: Mesh) -> Parts:
    def run(layers: Any, x: Any) -> Any:
        for p in layers:
            h = x * lax.rsqrt((x * x).mean(-1, keepdims=True) + 1e-5) * p["g"]
            q, k, v = (jnp.einsum("bsd,dhk->bhsk", h, p[n]) for n in "qkv")
            s = jnp.einsum("bhsk,bhtk->bhst", q, k) / 8**0.5
            s = jnp.where(jnp.tril(jnp.ones((8, 8), bool)), s, -1e9)
            x = x + jnp.einsum("bhst,bhtk,hkd->bsd", jax.nn.softmax(s), v, p["o"])
            x = x + (jax.nn.silu(x @ p["u"]) * (x @ p["w"])) @ p["d"]
        return x

    L = [
        {
            "g": draw.uniform(32),
            **{n: draw.normal(32, 4, 8, scale=0.15) for n in "qkv"},
            "o": draw.normal(4, 8, 32, scale=0.15),
            "u": draw.weight(32, 64),
            "w": draw.weight(32, 64),
            "d": draw.weight(64, 32),
        }
        for _ in range(6)
    ]
    s = {
        "g": P(),
        "q": P(None, "y"),
        "k": P(None, "y"),
        "v": P(None, "y"),
        "o": P("y"),
        "u": P(None, "y"),
        "w": P(None, "y"),
        "d": P("y"),
    }
    return run, (L, draw.normal(2, 8, 32)), ([s] * 6, P("x"))
