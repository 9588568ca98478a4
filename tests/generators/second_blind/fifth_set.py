"""Programs of a fifth set, whose author had read neither the diagnosis nor the other sets: models and numerics."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax, shard_map
from jax.sharding import PartitionSpec as P

from tests.generators.second_blind.fourth_set import bf16, f32, get_mesh, i8, i32, prog


def rms_norm(x, g, eps=1e-6):
    return x * lax.rsqrt(jnp.mean(jnp.square(x), -1, keepdims=True) + eps) * g


def layer_norm(x, g, b):
    mu = x.mean(-1, keepdims=True)
    var = ((x - mu) ** 2).mean(-1, keepdims=True)
    return (x - mu) / jnp.sqrt(var + 1e-5) * g + b


def heads(x, n):
    b, t, d = x.shape
    return x.reshape(b, t, n, d // n).transpose(0, 2, 1, 3)


def merge(x):
    b, h, t, d = x.shape
    return x.transpose(0, 2, 1, 3).reshape(b, t, h * d)


@prog(
    (2, 4),
    (P("y"), P(None, "x"), P(None, "x"), P(None, "x"), P("x")),
    lambda r: (r.b(2, 16, 64), r.b(64, 128, s=0.1), r.b(64, 64, s=0.1), r.b(64, 64, s=0.1), r.b(128, 64, s=0.1)),
)
def gqa_attention(x, wq, wk, wv, wo):
    q, k, v = heads(x @ wq, 8), heads(x @ wk, 4), heads(x @ wv, 4)
    k, v = jnp.repeat(k, 2, axis=1), jnp.repeat(v, 2, axis=1)
    s = jnp.einsum("bhqd,bhkd->bhqk", q, k).astype(f32) / 4.0
    keep = jnp.arange(16)[:, None] >= jnp.arange(16)[None, :]
    p = jax.nn.softmax(jnp.where(keep, s, -1e30), axis=-1).astype(bf16)
    return merge(jnp.einsum("bhqk,bhkd->bhqd", p, v)) @ wo


@prog((1, 8), (P(None, "x"),) * 3, lambda r: (r.f(2, 8, 32, 16), r.f(2, 8, 32, 16), r.f(2, 8, 32, 16)))
def sliding_window_attention(q, k, v):
    window = 6
    pos = jnp.arange(q.shape[2])
    dist = pos[:, None] - pos[None, :]
    mask = (dist >= 0) & (dist < window)
    scores = q @ jnp.swapaxes(k, -1, -2) * (q.shape[-1] ** -0.5)
    scores = jnp.where(mask, scores, jnp.finfo(f32).min)
    scores = scores - scores.max(-1, keepdims=True)
    w = jnp.exp(scores) * mask
    return (w @ v) / w.sum(-1, keepdims=True)


@prog((2, 4), (P("y"), P("y"), P("y")), lambda r: (r.f(8, 4, 12, 8), r.f(8, 4, 12, 8), r.f(8, 4, 12, 8)))
def alibi_attention(q, k, v):
    n = q.shape[1]
    slopes = jnp.exp2(-8.0 * (jnp.arange(n, dtype=f32) + 1) / n)
    rel = jnp.arange(12)[None, :] - jnp.arange(12)[:, None]
    bias = slopes[:, None, None] * jnp.minimum(rel, 0).astype(f32)
    logits = jnp.einsum("bhqd,bhkd->bhqk", q, k) / jnp.sqrt(8.0) + bias
    logits = jnp.where(rel <= 0, logits, -1e9)
    return jnp.einsum("bhqk,bhkd->bhqd", jax.nn.softmax(logits, -1), v)


@prog(
    (2, 4),
    (P("y"), P("y"), P("y"), P(None, "x"), P(None, "x"), P(None, "x")),
    lambda r: (
        r.f(4, 6, 32),
        r.f(4, 10, 48),
        r.i(3, 11, 4),
        r.f(32, 32, s=0.2),
        r.f(48, 32, s=0.2),
        r.f(48, 32, s=0.2),
    ),
)
def cross_attention(dec, enc, lengths, wq, wk, wv):
    q, k, v = heads(dec @ wq, 4), heads(enc @ wk, 4), heads(enc @ wv, 4)
    valid = jnp.arange(10)[None, :] < lengths[:, None]
    s = jnp.einsum("bhqd,bhkd->bhqk", q, k) / 8**0.5
    s = s + jnp.where(valid, 0.0, -1e9)[:, None, None, :]
    attn = jax.nn.softmax(s, axis=-1)
    return dec + merge(attn @ v), attn.mean(axis=1)


@prog((2, 2), (P("y", "x"),) * 3, lambda r: (r.f(4, 4, 16, 8), r.f(4, 4, 16, 8), r.f(4, 4, 16, 8)))
def causal_linear_attention(q, k, v):
    q, k = jax.nn.elu(q) + 1.0, jax.nn.elu(k) + 1.0
    kv = jnp.cumsum(k[..., :, None] * v[..., None, :], axis=2)
    z = jnp.cumsum(k, axis=2)
    num = jnp.einsum("bhtd,bhtde->bhte", q, kv)
    den = jnp.einsum("bhtd,bhtd->bht", q, z)
    return num / (den[..., None] + 1e-6)


@prog(
    (8, 1),
    (P("y"), P("y"), P("y"), P("y")),
    lambda r: (r.f(8, 10, 2, 16), r.f(8, 10, 2, 16), r.f(8, 10, 2, 16), r.i(0, 50, 8)),
)
def rope_attention(q, k, v, start):
    half = q.shape[-1] // 2
    freqs = 10000.0 ** (-jnp.arange(half, dtype=f32) / half)
    ang = (start[:, None] + jnp.arange(10)[None, :]).astype(f32)[..., None] * freqs
    cos, sin = jnp.cos(ang)[:, :, None, :], jnp.sin(ang)[:, :, None, :]

    def rotate(t):
        a, b = t[..., :half], t[..., half:]
        return jnp.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1)

    s = jnp.einsum("bqhd,bkhd->bhqk", rotate(q), rotate(k)) * 0.25
    return jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(s, -1), v)


@prog(
    (2, 4),
    (P("y", "x"), P("y", "x"), P("y", "x"), P("y", "x"), P("y", "x"), P()),
    lambda r: (r.b(2, 4, 1, 16), r.b(2, 4, 1, 16), r.b(2, 4, 1, 16), r.b(2, 4, 24, 16), r.b(2, 4, 24, 16), r.i(4, 20)),
)
def kv_cache_decode_step(q, k, v, k_cache, v_cache, pos):
    k_cache = lax.dynamic_update_slice(k_cache, k, (0, 0, pos, 0))
    v_cache = lax.dynamic_update_slice(v_cache, v, (0, 0, pos, 0))
    s = jnp.einsum("bhqd,bhkd->bhqk", q, k_cache, preferred_element_type=f32) * 0.25
    s = jnp.where(jnp.arange(24) <= pos, s, -1e9)
    out = jnp.einsum("bhqk,bhkd->bhqd", jax.nn.softmax(s, -1).astype(bf16), v_cache)
    return out, k_cache, v_cache


@prog((2, 2), (P("y"), P("y"), P("y"), P()), lambda r: (r.f(4, 8, 16), r.f(4, 8, 16), r.f(4, 16), r.i(0, 100)))
def rolling_cache_attention(keys, values, new, step):
    slot = step % 8
    keys = lax.dynamic_update_slice(keys, jnp.tanh(new)[:, None], (0, slot, 0))
    values = lax.dynamic_update_slice_in_dim(values, (new * 0.5)[:, None], slot, axis=1)
    age = (slot - jnp.arange(8)) % 8
    logits = jnp.einsum("bd,bsd->bs", new, keys) / 4.0 - 0.1 * age.astype(f32)
    return jnp.einsum("bs,bsd->bd", jax.nn.softmax(logits), values), keys, values


@prog(
    (1, 8),
    (P(), P(), P(None, "x"), P("x")),
    lambda r: (r.f(2, 32), r.f(2, 6, 32, s=0.0), r.f(32, 64, s=0.2), r.f(64, 32, s=0.2)),
)
def greedy_loop_with_cache(x, cache, w1, w2):
    def body(t, carry):
        x, cache = carry
        cache = lax.dynamic_update_slice(cache, x[:, None, :], (0, t, 0))
        s = jnp.einsum("bd,btd->bt", x, cache) / 32**0.5
        s = jnp.where(jnp.arange(6)[None] <= t, s, -1e9)
        ctx = jnp.einsum("bt,btd->bd", jax.nn.softmax(s), cache)
        return jnp.tanh(ctx + jax.nn.silu(ctx @ w1) @ w2), cache

    return lax.fori_loop(0, 6, body, (x, cache))


@prog(
    (2, 2),
    (P("y", None, "x"), P("y", None, "x"), P("y", None, "x")),
    lambda r: (r.f(4, 8, 2, 16, s=3), r.f(4, 8, 2, 16, s=3), r.f(4, 8, 2, 16)),
)
def softcapped_attention(q, k, v):
    logits = jnp.einsum("bthd,bshd->bhts", q * 16**-0.5, k)
    logits = 20.0 * jnp.tanh(logits / 20.0)
    causal = jnp.tril(jnp.ones((8, 8), dtype=bool))
    logits = jnp.where(causal[None, None], logits, -2.3819763e38)
    out = jnp.einsum("bhts,bshd->bthd", jax.nn.softmax(logits, axis=-1), v)
    return out.reshape(4, 8, 32)


@prog(
    (2, 4),
    (P("y"), P(), P(None, "x"), P(None, "x"), P(None, "x")),
    lambda r: (r.f(4, 8, 64), r.f(64, 16, s=0.12), r.f(64, 64, s=0.12), r.f(16, 64, s=0.25), r.f(16, 64, s=0.25)),
)
def latent_attention(x, w_down, wq, w_up_k, w_up_v):
    c = rms_norm(x @ w_down, 1.0)
    q, k, v = heads(x @ wq, 4), heads(c @ w_up_k, 4), heads(c @ w_up_v, 4)
    p = jax.nn.softmax(q @ k.transpose(0, 1, 3, 2) * 0.25, axis=-1)
    return merge(p @ v), c


@prog(
    (2, 2),
    (P("y"), P("y"), P("y"), P()),
    lambda r: (r.f(2, 4, 12, 16), r.f(2, 4, 12, 16), r.f(2, 2, 12, 16), r.f(2, s=0.3)),
)
def differential_attention(q, k, v, lam):
    s = jnp.einsum("bhqd,bhkd->bhqk", q, k) * 0.25
    a = jax.nn.softmax(s, axis=-1).reshape(2, 2, 2, 12, 12)
    weights = a[:, :, 0] - jax.nn.sigmoid(lam)[None, :, None, None] * a[:, :, 1]
    o = jnp.einsum("bhqk,bhkd->bhqd", weights, v)
    return rms_norm(o, 0.8)


@prog((1, 8), (P(None, "x"),) * 3, lambda r: (r.f(2, 64, 2, 8), r.f(2, 64, 2, 8), r.f(2, 64, 2, 8)))
def block_local_attention(q, k, v):
    def blocks(t):
        return t.reshape(2, 8, 8, 2, 8)

    def with_previous(t):
        t = blocks(t)
        prev = jnp.pad(t, ((0, 0), (1, 0), (0, 0), (0, 0), (0, 0)))[:, :-1]
        return jnp.concatenate([prev, t], axis=2)

    s = jnp.einsum("bnqhd,bnkhd->bnhqk", blocks(q), with_previous(k)) / 8**0.5
    ok = jnp.arange(16)[None, :] <= jnp.arange(8)[:, None] + 8
    o = jnp.einsum("bnhqk,bnkhd->bnqhd", jax.nn.softmax(jnp.where(ok, s, -1e9), -1), with_previous(v))
    return o.reshape(2, 64, 2, 8)


@prog((1, 8), (P(None, "x"),) * 3, lambda r: (r.f(2, 32, 16), r.f(2, 32, 16), r.f(2, 32, 16)))
def ring_attention(q, k, v):
    def local(q, k, v):
        n = lax.axis_size("x")
        perm = [(i, (i + 1) % n) for i in range(n)]
        m = jnp.full(q.shape[:2], -jnp.inf)
        den = jnp.zeros(q.shape[:2])
        acc = jnp.zeros_like(q)
        for _ in range(n):
            s = jnp.einsum("bqd,bkd->bqk", q, k) * 0.25
            new_m = jnp.maximum(m, s.max(-1))
            p, corr = jnp.exp(s - new_m[..., None]), jnp.exp(m - new_m)
            den = den * corr + p.sum(-1)
            acc = acc * corr[..., None] + jnp.einsum("bqk,bkd->bqd", p, v)
            m, k, v = new_m, lax.ppermute(k, "x", perm), lax.ppermute(v, "x", perm)
        return acc / den[..., None]

    s = P(None, "x")
    return shard_map(local, mesh=get_mesh((1, 8)), in_specs=(s, s, s), out_specs=s)(q, k, v)


@prog((2, 4), (P("y"), P("y"), P("y"), P("y")), lambda r: (r.f(4, 12, 8), r.f(4, 12, 8), r.f(4, 12, 8), r.pos(4, 12)))
def gated_retention(q, k, v, gate):
    def step(state, inp):
        qt, kt, vt, gt = inp
        state = jax.nn.sigmoid(gt)[:, None, None] * state + kt[:, :, None] * vt[:, None, :]
        return state, jnp.einsum("bd,bde->be", qt, state)

    xs = jax.tree.map(lambda t: jnp.moveaxis(t, 1, 0), (q, k, v, gate))
    last, out = lax.scan(step, jnp.zeros((4, 8, 8)), xs)
    return jnp.moveaxis(out, 0, 1), last


# Mixtures of experts.


@prog(
    (2, 4),
    (P("y"), P(), P("x"), P("x")),
    lambda r: (r.f(16, 32), r.f(32, 8, s=0.3), r.f(8, 32, 48, s=0.2), r.f(8, 48, 32, s=0.2)),
)
def top2_mixture(x, router, w_in, w_out):
    probs = jax.nn.softmax(x @ router, axis=-1)
    top, idx = lax.top_k(probs, 2)
    top = top / top.sum(-1, keepdims=True)
    combine = (jax.nn.one_hot(idx, 8) * top[..., None]).sum(axis=1)
    h = jax.nn.gelu(jnp.einsum("td,edf->etf", x, w_in))
    y = jnp.einsum("etf,efd->etd", h, w_out)
    out = jnp.einsum("te,etd->td", combine, y)
    load = (combine > 0).astype(f32).mean(0)
    return x + out, 8.0 * jnp.sum(load * probs.mean(0))


@prog((1, 8), (P(), P(), P("x")), lambda r: (r.f(24, 16), r.f(16, 8), r.f(8, 16, 16, s=0.3)))
def switch_with_capacity(tokens, gate, experts):
    capacity = 4
    logits = tokens @ gate
    choice = jnp.argmax(logits, axis=-1)
    prob = jnp.max(jax.nn.softmax(logits), axis=-1)
    onehot = jax.nn.one_hot(choice, 8, dtype=i32)
    position = jnp.cumsum(onehot, axis=0) * onehot - 1
    dispatch = (position[..., None] == jnp.arange(capacity)).astype(f32)
    inputs = jnp.einsum("tec,td->ecd", dispatch, tokens)
    outputs = jax.nn.relu(jnp.einsum("ecd,edf->ecf", inputs, experts))
    return jnp.einsum("tec,ecf->tf", dispatch * prob[:, None, None], outputs), onehot.sum(0)


@prog((1, 8), (P("x"), P("x")), lambda r: (r.f(8, 8, 4, 16), r.f(8, 16, 16, s=0.3)))
def expert_parallel_dispatch(slots, weights):
    # slots: [source device, expert, capacity, features]
    def local(s, w):
        inbox = lax.all_to_all(s[0], "x", split_axis=0, concat_axis=0, tiled=True)
        done = jax.nn.silu(inbox @ w[0])
        return lax.all_to_all(done, "x", split_axis=0, concat_axis=0, tiled=True)[None]

    return shard_map(local, mesh=get_mesh((1, 8)), in_specs=(P("x"), P("x")), out_specs=P("x"))(slots, weights)


@prog(
    (2, 4),
    (P("y"), P(), P("x"), P("x")),
    lambda r: (r.b(4, 12, 32), r.b(32, 4, 2, s=0.3), r.b(4, 32, 32, s=0.2), r.b(4, 32)),
)
def soft_mixture(x, phi, w, b):
    logits = jnp.einsum("btd,des->btes", x, phi).astype(f32)
    dispatch = jax.nn.softmax(logits, axis=1).astype(x.dtype)
    combine = jax.nn.softmax(logits.reshape(4, 12, 8), axis=-1).reshape(4, 12, 4, 2).astype(x.dtype)
    slots = jnp.einsum("btd,btes->besd", x, dispatch)
    ys = jax.nn.relu(jnp.einsum("besd,edf->besf", slots, w) + b[None, :, None])
    return jnp.einsum("besf,btes->btf", ys, combine)


# Losses.


@prog((2, 4), (P("y", None, "x"), P("y")), lambda r: (r.f(4, 10, 32), r.i(-8, 32, 4, 10)))
def smoothed_loss_with_ignored(logits, labels):
    labels = jnp.where(labels < 0, -100, labels)
    mask = labels != -100
    safe = jnp.where(mask, labels, 0)
    logp = jax.nn.log_softmax(logits, -1)
    nll = -jnp.sum(jax.nn.one_hot(safe, 32) * logp, axis=-1)
    smooth = -logp.mean(-1)
    loss = jnp.where(mask, 0.9 * nll + 0.1 * smooth, 0.0)
    return loss.sum() / jnp.maximum(mask.sum(), 1), loss


@prog((8, 1), (P("y"), P("y")), lambda r: (r.f(32, 6), r.i(0, 2, 32, 6)))
def focal_loss_grad(logits, targets):
    def loss(z):
        t = targets.astype(f32)
        p = jax.nn.sigmoid(z)
        ce = jnp.maximum(z, 0) - z * t + jnp.log1p(jnp.exp(-jnp.abs(z)))
        pt = p * t + (1 - p) * (1 - t)
        alpha = 0.25 * t + 0.75 * (1 - t)
        return jnp.mean(alpha * (1 - pt) ** 2 * ce)

    return jax.value_and_grad(loss)(logits)


@prog((1, 8), (P("x"), P("x")), lambda r: (r.f(16, 32), r.f(16, 32)))
def clip_contrastive_loss(image, text):
    def local(a, b):
        a = a / jnp.linalg.norm(a, axis=-1, keepdims=True)
        b = b / jnp.linalg.norm(b, axis=-1, keepdims=True)
        every_a, every_b = lax.all_gather(a, "x", tiled=True), lax.all_gather(b, "x", tiled=True)
        target = lax.axis_index("x") * a.shape[0] + jnp.arange(a.shape[0])
        rows, cols = a @ every_b.T / 0.07, b @ every_a.T / 0.07
        pick = jax.nn.one_hot(target, every_a.shape[0])
        l1 = jax.nn.logsumexp(rows, -1) - (rows * pick).sum(-1)
        l2 = jax.nn.logsumexp(cols, -1) - (cols * pick).sum(-1)
        return lax.pmean(jnp.mean(l1 + l2) / 2, "x")

    return shard_map(local, mesh=get_mesh((1, 8)), in_specs=(P("x"), P("x")), out_specs=P())(image, text)


@prog((8, 1), (P("y"), P("y")), lambda r: (r.f(8, 12, 6), r.i(1, 6, 8, 4)))
def ctc_forward(logits, labels):
    logp = jax.nn.log_softmax(logits, axis=-1)
    ext = jnp.zeros((8, 9), i32).at[:, 1::2].set(labels)
    emit = jnp.einsum("btc,bsc->bts", logp, jax.nn.one_hot(ext, 6))
    skip = jnp.concatenate([jnp.zeros((8, 2), bool), (ext[:, 2:] != ext[:, :-2]) & (ext[:, 2:] != 0)], axis=1)
    neg = -1e9
    alpha = jnp.where(jnp.arange(9) < 2, emit[:, 0], neg)
    for t in range(1, 12):
        one = jnp.pad(alpha, ((0, 0), (1, 0)), constant_values=neg)[:, :-1]
        two = jnp.where(skip, jnp.pad(alpha, ((0, 0), (2, 0)), constant_values=neg)[:, :-2], neg)
        alpha = jnp.logaddexp(jnp.logaddexp(alpha, one), two) + emit[:, t]
    return -jnp.logaddexp(alpha[:, -1], alpha[:, -2])


@prog((2, 4), (P("y"), P(None, "x"), P("y")), lambda r: (r.f(8, 32), r.f(32, 64, s=0.3), r.i(0, 64, 8)))
def vocabulary_parallel_loss(h, w, labels):
    def local(h, w, y):
        logits = h @ w
        m = lax.pmax(lax.stop_gradient(logits.max(-1)), "x")
        z = lax.psum(jnp.exp(logits - m[:, None]).sum(-1), "x")
        off = y - lax.axis_index("x") * w.shape[1]
        inside = (off >= 0) & (off < w.shape[1])
        own = jnp.take_along_axis(logits, jnp.clip(off, 0, w.shape[1] - 1)[:, None], axis=1)[:, 0]
        hit = lax.psum(jnp.where(inside, own, 0.0), "x")
        return jnp.log(z) + m - hit

    specs = (P("y"), P(None, "x"), P("y"))
    return shard_map(local, mesh=get_mesh((2, 4)), in_specs=specs, out_specs=P("y"))(h, w, labels)


@prog((2, 2), (P("y"), P("y"), P("y")), lambda r: (r.f(16, 24), r.f(16, 24), r.f(16, 24)))
def triplet_margin(anchor, positive, negative):
    dp = jnp.sqrt(jnp.sum((anchor - positive) ** 2, -1) + 1e-8)
    dn = jnp.sqrt(jnp.sum((anchor - negative) ** 2, -1) + 1e-8)
    swap = jnp.sqrt(jnp.sum((positive - negative) ** 2, -1) + 1e-8)
    loss = jnp.maximum(dp - jnp.minimum(dn, swap) + 1.0, 0.0)
    return loss.mean(), (loss > 0).sum()


@prog(
    (2, 2),
    (P("y"), P("y"), P("y"), P("y")),
    lambda r: (r.f(8, 10, s=0.5, m=-2), r.f(8, 10, s=0.5, m=-2), r.f(8, 2), r.i(0, 2, 8, 10)),
)
def preference_loss(chosen, rejected, reference, mask):
    m = mask.astype(f32)
    pc, pr = (chosen * m).sum(1), (rejected * m).sum(1)
    margin = 0.1 * ((pc - pr) - (reference[:, 0] - reference[:, 1]))
    loss = -jax.nn.log_sigmoid(margin) * 0.95 - jax.nn.log_sigmoid(-margin) * 0.05
    return loss.mean(), (margin > 0).astype(f32).mean(), margin


@prog((2, 4), (P("y"), P("y"), P(None, "x")), lambda r: (r.f(16, 32), r.f(16, 8), r.f(32, 8, s=0.3)))
def huber_quantile_grad(x, y, w):
    taus = jnp.linspace(0.1, 0.9, 8)

    def loss(w):
        err = y - x @ w
        huber = jnp.where(jnp.abs(err) < 1.0, 0.5 * err**2, jnp.abs(err) - 0.5)
        return jnp.mean(jnp.abs(taus - (err < 0).astype(f32)) * huber)

    value, g = jax.value_and_grad(loss)(w)
    return value, w - 0.5 * g


@prog((8, 1), (P("y"), P("y")), lambda r: (r.f(8, 4, 8, 8), r.i(0, 4, 8, 8, 8)))
def dice_loss(logits, mask):
    p = jax.nn.softmax(logits, axis=1)
    t = jnp.moveaxis(jax.nn.one_hot(mask, 4), -1, 1)
    inter = jnp.sum(p * t, axis=(2, 3))
    total = jnp.sum(p, axis=(2, 3)) + jnp.sum(t, axis=(2, 3))
    dice = (2 * inter + 1.0) / (total + 1.0)
    return 1.0 - dice.mean(axis=1), (jnp.argmax(logits, 1) == mask).astype(f32).mean()


@prog((2, 4), (P("y", None), P("y"), P(None, "x")), lambda r: (r.b(16, 64), r.i(0, 32, 16), r.b(64, 32, s=0.1)))
def z_loss_head(h, y, w):
    logits = (h @ w).astype(f32)
    lse = jax.nn.logsumexp(logits, axis=-1)
    ce = lse - jnp.sum(jnp.where(y[:, None] == jnp.arange(32), logits, 0.0), axis=-1)
    return (ce + 1e-2 * lse**2).mean(), lse.astype(bf16)


# Optimisers and training steps.


@prog(
    (2, 4),
    (P(None, "x"), P("x"), P(None, "x"), P("x"), P(None, "x"), P("x"), P("y"), P("y"), P()),
    lambda r: (
        *(r.f(32, 64, s=0.2), r.f(64, 8, s=0.2), r.f(32, 64, s=0.01), r.f(64, 8, s=0.01)),
        *(r.pos(32, 64), r.pos(64, 8), r.f(16, 32), r.f(16, 8), r.i(1, 20)),
    ),
)
def adamw_with_clipping(w1, w2, m1, m2, v1, v2, x, y, t):
    def loss(w):
        return jnp.mean((jax.nn.gelu(x @ w[0]) @ w[1] - y) ** 2)

    value, grads = jax.value_and_grad(loss)((w1, w2))
    norm = jnp.sqrt(sum(jnp.sum(g * g) for g in grads))
    grads = [g * jnp.minimum(1.0, 0.1 / (norm + 1e-6)) for g in grads]
    t = t.astype(f32)
    out = []
    for w, m, v, g in zip((w1, w2), (m1, m2), (v1, v2), grads, strict=True):
        m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
        mhat, vhat = m / (1 - 0.9**t), v / (1 - 0.999**t)
        out.append((w - 1e-2 * (mhat / (jnp.sqrt(vhat) + 1e-8) + 0.1 * w), m, v))
    return out, value, norm


@prog((1, 8), (P(None, "x"), P(None, "x"), P(None, "x")), lambda r: (r.b(64, 64, s=0.1), r.f(64, 64), r.b(64, 64)))
def lion_update(w, momentum, grad):
    g = grad.astype(f32)
    update = jnp.sign(0.9 * momentum + 0.1 * g)
    new = w.astype(f32) * (1 - 3e-3 * 0.1) - 3e-3 * update
    return new.astype(bf16), 0.99 * momentum + 0.01 * g


@prog((2, 4), (P("y", "x"), P("y", "x"), P("y"), P("x")), lambda r: (r.f(32, 64), r.f(32, 64), r.pos(32), r.pos(64)))
def adafactor_update(w, g, row, col):
    g2 = jnp.square(g) + 1e-30
    row = 0.8 * row + 0.2 * g2.mean(axis=1)
    col = 0.8 * col + 0.2 * g2.mean(axis=0)
    u = g * lax.rsqrt(row / row.mean())[:, None] * lax.rsqrt(col)[None, :]
    u = u / jnp.maximum(1.0, jnp.sqrt(jnp.mean(u * u)))
    scale = jnp.maximum(1e-3, jnp.sqrt(jnp.mean(w * w)))
    return w - 1e-2 * scale * u, row, col


@prog((8, 1), (P("y"), P("y"), P(), P()), lambda r: (r.f(32, 16), r.f(32, 4), r.f(16, 4, s=0.2), r.f(4, s=0.0)))
def momentum_training_loop(x, y, w, b):
    def body(i, c):
        w, b, mw, mb = c
        err = x @ w + b - y
        mw = 0.9 * mw + x.T @ err / 32
        mb = 0.9 * mb + err.mean(0)
        lr = 0.1 / (1.0 + 0.5 * i)
        return w - lr * mw, b - lr * mb, mw, mb

    w, b, _, _ = lax.fori_loop(0, 5, body, (w, b, jnp.zeros_like(w), jnp.zeros_like(b)))
    return w, b, jnp.mean((x @ w + b - y) ** 2)


@prog((1, 8), (P("x"), P("x"), P(), P("x")), lambda r: (r.f(32, 16), r.f(32, 8), r.f(16, 8, s=0.3), r.f(16, 8, s=0.1)))
def zero_optimiser_step(x, y, w, momentum):
    def local(x, y, w, m):
        g = jax.grad(lambda w: jnp.mean((jnp.tanh(x @ w) - y) ** 2))(w)
        g = lax.psum_scatter(g, "x", scatter_dimension=0, tiled=True) / 8
        m = 0.9 * m + g
        rows = lax.dynamic_slice_in_dim(w, lax.axis_index("x") * 2, 2)
        return lax.all_gather(rows - 0.1 * m, "x", axis=0, tiled=True), m

    specs = (P("x"), P("x"), P(), P("x"))
    f = shard_map(local, mesh=get_mesh((1, 8)), in_specs=specs, out_specs=(P(), P("x")), check_vma=False)
    return f(x, y, w, momentum)


@prog(
    (2, 2),
    (P("y"), P("y"), P("y"), P("y")),
    lambda r: (r.f(4, 16, 16, s=0.2), r.f(4, 16, 16), r.f(4, 16, 16), r.pos(4, 16, 16)),
)
def lamb_layers(w, g, m, v):
    m, v = 0.9 * m + 0.1 * g, 0.99 * v + 0.01 * g**2
    step = m / (jnp.sqrt(v) + 1e-6) + 0.01 * w
    wn = jnp.linalg.norm(w.reshape(4, -1), axis=1)
    sn = jnp.linalg.norm(step.reshape(4, -1), axis=1)
    trust = jnp.where((wn > 0) & (sn > 0), wn / sn, 1.0)
    return w - 0.01 * trust[:, None, None] * step, jnp.clip(trust, 0.0, 10.0)


@prog((1, 8), (P("x"), P("x")), lambda r: (r.f(32, 64), r.f(32, 64)))
def muon_orthogonal_update(grad, buf):
    buf = 0.95 * buf + grad
    x = (grad + 0.95 * buf) / (jnp.linalg.norm(grad + 0.95 * buf) + 1e-7)
    for _ in range(4):
        a = x @ x.T
        x = 3.4445 * x + (-4.7750 * a + 2.0315 * a @ a) @ x
    return x * (64 / 32) ** 0.5, buf


@prog(
    (2, 4),
    (P("y"), P("y"), P(None, "x"), P("x")),
    lambda r: (r.f(16, 64), r.i(0, 10, 16), r.f(64, 128, s=0.1), r.f(128, 10, s=0.1)),
)
def classifier_sgd_step(x, y, w1, w2):
    def loss(p):
        h = jax.nn.relu(x @ p["w1"])
        logp = jax.nn.log_softmax(h @ p["w2"])
        return -jnp.mean(jnp.sum(jax.nn.one_hot(y, 10) * logp, -1)) + 1e-3 * sum(jnp.sum(v**2) for v in p.values())

    params = {"w1": w1, "w2": w2}
    value, grads = jax.value_and_grad(loss)(params)
    return jax.tree.map(lambda p, g: p - 0.5 * g, params, grads), value


# Quantisation.


@prog((2, 4), (P("y"), P(None, "x")), lambda r: (r.f(16, 64), r.f(64, 32)))
def int8_absmax_matmul(x, w):
    sx = jnp.max(jnp.abs(x), axis=1, keepdims=True) / 127.0
    sw = jnp.max(jnp.abs(w), axis=0, keepdims=True) / 127.0
    qx = jnp.clip(jnp.round(x / sx), -127, 127).astype(i8)
    qw = jnp.clip(jnp.round(w / sw), -127, 127).astype(i8)
    acc = lax.dot_general(qx, qw, (((1,), (0,)), ((), ())), preferred_element_type=i32)
    return acc.astype(f32) * sx * sw


@prog((1, 8), (P(), P(None, "x"), P("x")), lambda r: (r.b(8, 64), r.i(-127, 128, 64, 64, dt="int8"), r.pos(64)))
def weight_only_dequant(x, w, scale):
    return jax.nn.silu(x @ (w.astype(bf16) * (scale * 0.01).astype(bf16)))


@prog((2, 2), (P("y"), P("x"), P("x")), lambda r: (r.f(8, 32), r.i(-128, 128, 16, 24, dt="int8"), r.pos(4, 24)))
def int4_group_dequant(x, packed, scale):
    p = packed.astype(i32)
    low = ((p & 15) ^ 8) - 8
    high = (p >> 4).astype(i32)
    w = jnp.stack([low, high], axis=1).reshape(32, 24).astype(f32)
    w = (w.reshape(4, 8, 24) * scale[:, None, :]).reshape(32, 24)
    return x @ w


@prog((1, 8), (P(None, "x"), P("x")), lambda r: (r.f(4, 64), r.f(64, 16)))
def row_parallel_integer_matmul(x, w):
    def local(x, w):
        sx = lax.pmax(jnp.abs(x).max(), "x") / 127
        sw = lax.pmax(jnp.abs(w).max(axis=0), "x") / 127
        qx, qw = jnp.rint(x / sx).astype(i32), jnp.rint(w / sw).astype(i32)
        return lax.psum(qx @ qw, "x") * (sx * sw)

    return shard_map(local, mesh=get_mesh((1, 8)), in_specs=(P(None, "x"), P("x")), out_specs=P())(x, w)


@prog((2, 4), (P("y"), P(None, "x"), P()), lambda r: (r.f(16, 32), r.f(32, 16, s=0.2), r.pos(32)))
def straight_through_training(x, w, smooth):
    def fake(t, bits):
        top = 2.0 ** (bits - 1) - 1
        s = lax.stop_gradient(jnp.abs(t).max()) / top
        return t + lax.stop_gradient(jnp.round(t / s) * s - t)

    def loss(w):
        y = fake(x / smooth, 8) @ fake(w * smooth[:, None], 4)
        return jnp.mean(y**2), y

    (value, y), g = jax.value_and_grad(loss, has_aux=True)(w)
    return value, y, w - 0.1 * g


@prog((8, 1), (P("y"),), lambda r: (r.f(8, 64, s=4),))
def block_float_round_trip(x):
    blocks = x.reshape(8, 4, 16)
    lo, hi = blocks.min(-1, keepdims=True), blocks.max(-1, keepdims=True)
    scale = (hi - lo) / 255.0
    q = jnp.clip(jnp.floor((blocks - lo) / scale + 0.5), 0, 255).astype(i32)
    back = q.astype(f32) * scale + lo
    return q.reshape(8, 64), back.reshape(8, 64), jnp.abs(back - blocks).max(axis=(1, 2))


@prog(
    (2, 4),
    (P("y"), P("y"), P("y", "x")),
    lambda r: (r.i(-90, 90, 8, 32, dt="int8"), r.i(0, 90, 8, 32, dt="int8"), r.i(-90, 90, 8, 32, dt="int8")),
)
def int8_residual_requantise(a, b, c):
    wide = a.astype(i32) * 3 + b.astype(i32) * 5 - c.astype(i32)
    rounded = (wide + 2) >> 2
    out = jnp.clip(rounded, -128, 127).astype(i8)
    return out, jnp.sum(rounded != out.astype(i32), axis=1)


# Convolutions.

NHWC = ("NHWC", "HWIO", "NHWC")


@prog(
    (8, 1),
    (P("y"), P(), P(), P()),
    lambda r: (r.f(8, 32, 16), r.f(3, 3, 16, 32, s=0.15), r.f(3, 16, 16, s=0.2), r.f(16, 4)),
)
def wavenet_stack(x, filters, mix, head):
    skip = 0.0
    for i in range(3):
        d = 2**i
        h = lax.conv_general_dilated(
            x, filters[i], (1,), [(2 * d, 0)], rhs_dilation=(d,), dimension_numbers=("NWC", "WIO", "NWC")
        )
        h = jnp.tanh(h[..., :16]) * jax.nn.sigmoid(h[..., 16:])
        x = x + h @ mix[i]
        skip = skip + h
    return jax.nn.relu(skip) @ head


@prog(
    (2, 4),
    (P("y"), P(None, None, None, "x"), P(), P()),
    lambda r: (r.f(2, 12, 12, 16), r.f(3, 3, 16, 16, s=0.1), r.f(3, 3, 16, 16, s=0.1), r.pos(16)),
)
def group_norm_residual_block(x, k1, k2, gamma):
    def gn(t):
        g = t.reshape(2, 12, 12, 4, 4)
        mu, var = g.mean((1, 2, 4), keepdims=True), g.var((1, 2, 4), keepdims=True)
        return ((g - mu) * lax.rsqrt(var + 1e-5)).reshape(t.shape) * gamma

    h = lax.conv_general_dilated(jax.nn.silu(gn(x)), k1, (1, 1), "SAME", dimension_numbers=NHWC)
    h = lax.conv_general_dilated(jax.nn.silu(gn(h)), k2, (1, 1), "SAME", dimension_numbers=NHWC)
    return x + h


@prog(
    (2, 2),
    (P("y"), P(), P(), P(None, "x")),
    lambda r: (r.b(4, 10, 10, 16), r.b(3, 3, 1, 16, s=0.3), r.b(16), r.b(16, 32, s=0.2)),
)
def depthwise_separable(x, dw, scale, pw):
    h = lax.conv_general_dilated(x, dw, (2, 2), "SAME", dimension_numbers=NHWC, feature_group_count=16)
    h = jnp.clip(h * scale, 0, 6)
    return jnp.einsum("bhwc,cd->bhwd", h, pw)


@prog(
    (2, 4), (P("y"), P(), P(), P()), lambda r: (r.f(4, 4, 4, 8), r.f(2, 2, 8, 8, s=0.3), r.f(4, 4, 4, 8, s=0.2), r.f(4))
)
def upsampling_decoder(z, k1, k2, bias):
    h = lax.conv_transpose(z, k1, (2, 2), "VALID", dimension_numbers=NHWC)
    h = jax.nn.leaky_relu(h, 0.2)
    h = lax.conv_general_dilated(
        h, k2.swapaxes(2, 3), (1, 1), [(2, 2), (2, 2)], lhs_dilation=(2, 2), dimension_numbers=NHWC
    )
    return jax.nn.sigmoid(h + bias)


@prog(
    (1, 8),
    (P("x"), P(), P(), P()),
    lambda r: (r.f(8, 12, 12, 3), r.f(3, 3, 3, 8, s=0.3), r.f(3, 3, 8, 16, s=0.15), r.f(144, 10, s=0.1)),
)
def small_vision_classifier(img, k1, k2, w):
    h = jax.nn.relu(lax.conv_general_dilated(img, k1, (1, 1), "SAME", dimension_numbers=NHWC))
    h = lax.reduce_window(h, -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
    h = jax.nn.relu(lax.conv_general_dilated(h, k2, (1, 1), "SAME", dimension_numbers=NHWC))
    h = lax.reduce_window(h, 0.0, lax.add, (1, 2, 2, 1), (1, 2, 2, 1), "VALID") / 4
    return jax.nn.log_softmax(h.reshape(8, -1) @ w)


@prog(
    (2, 4),
    (P("y"), P("x"), P(), P("y")),
    lambda r: (r.f(4, 16, 16, 3), r.f(48, 64, s=0.15), r.f(16, 64), r.f(4, 1, 64)),
)
def patch_embedding(img, w, pos, cls):
    p = img.reshape(4, 4, 4, 4, 4, 3).transpose(0, 1, 3, 2, 4, 5).reshape(4, 16, 48)
    tokens = p @ w + pos
    return layer_norm(jnp.concatenate([cls, tokens], axis=1), 1.0, 0.0)


@prog((2, 2), (P("y"), P(None, "x"), P("x")), lambda r: (r.f(4, 8, 8, 16), r.f(16, 4, s=0.3), r.f(4, 16, s=0.5)))
def squeeze_excite_pyramid(x, down, up):
    s = jax.nn.relu(x.mean((1, 2)) @ down)
    x = x * jax.nn.hard_sigmoid(s @ up)[:, None, None, :]
    levels = [x.reshape(4, n, 8 // n, n, 8 // n, 16).max((2, 4)).reshape(4, -1) for n in (1, 2, 4)]
    return jnp.concatenate(levels, axis=-1)


# Recurrences and scans.


@prog(
    (2, 4),
    (P("y"), P(None, "x"), P(None, "x"), P("x")),
    lambda r: (r.f(4, 6, 16), r.f(16, 128, s=0.2), r.f(32, 128, s=0.2), r.f(128)),
)
def lstm_sequence(x, wx, wh, b):
    def cell(carry, xt):
        h, c = carry
        i, f, g, o = jnp.split(xt @ wx + h @ wh + b, 4, axis=-1)
        c = jax.nn.sigmoid(f + 1.0) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
        h = jax.nn.sigmoid(o) * jnp.tanh(c)
        return (h, c), h

    zero = jnp.zeros((4, 32))
    (h, c), ys = lax.scan(cell, (zero, zero), x.swapaxes(0, 1))
    return ys.swapaxes(0, 1), h, c


@prog(
    (8, 1),
    (P(None, "y"), P("y"), P(), P()),
    lambda r: (r.f(5, 8, 16), r.f(8, 16), r.f(16, 48, s=0.2), r.f(16, 48, s=0.2)),
)
def gru_in_a_loop(xs, h, wi, wh):
    def body(t, h):
        x = lax.dynamic_index_in_dim(xs, t, keepdims=False)
        gi, gh = x @ wi, h @ wh
        z = jax.nn.sigmoid(gi[:, :16] + gh[:, :16])
        reset = jax.nn.sigmoid(gi[:, 16:32] + gh[:, 16:32])
        n = jnp.tanh(gi[:, 32:] + reset * gh[:, 32:])
        return (1 - z) * n + z * h

    return lax.fori_loop(0, 5, body, h)


@prog(
    (2, 2),
    (P("y", None, "x"), P("y", None, "x"), P("x"), P("y"), P("y")),
    lambda r: (r.f(4, 8, 8), r.f(4, 8, 8), r.f(8, 4), r.f(4, 8, 4), r.f(4, 8, 4)),
)
def selective_state_space(x, dt, a_log, b, c):
    delta = jax.nn.softplus(dt)[..., None]
    decay = jnp.exp(-jnp.exp(a_log) * delta)
    inp = delta * b[:, :, None, :] * x[..., None]

    def combine(left, right):
        return left[0] * right[0], right[0] * left[1] + right[1]

    _, states = lax.associative_scan(combine, (decay, inp), axis=1)
    return jnp.einsum("btdn,btn->btd", states, c) + x


@prog(
    (1, 8),
    (P(None, None, "x"), P(None, None, "x"), P("x"), P("x")),
    lambda r: (r.f(2, 10, 16), r.f(2, 10, 16), r.f(16), r.f(16)),
)
def receptance_weighted_scan(k, v, w, u):
    def step(c, kv):
        a, b, m = c
        kt, vt = kv
        top = jnp.maximum(m, u + kt)
        e1, e2 = jnp.exp(m - top), jnp.exp(u + kt - top)
        y = (e1 * a + e2 * vt) / (e1 * b + e2)
        m2 = jnp.maximum(m - jnp.exp(w), kt)
        e1, e2 = jnp.exp(m - jnp.exp(w) - m2), jnp.exp(kt - m2)
        return (e1 * a + e2 * vt, e1 * b + e2, m2), y

    zero = jnp.zeros((2, 16))
    _, y = lax.scan(step, (zero, zero, zero - 1e4), (k.swapaxes(0, 1), v.swapaxes(0, 1)))
    return y.swapaxes(0, 1)


@prog((2, 4), (P("y", None, "x"), P("y", None, "x")), lambda r: (r.f(2, 8, 32), r.f(2, 8, 32)))
def parallel_min_gru(gates, hidden):
    z = jax.nn.sigmoid(gates)
    keep, add = 1 - z, z * jnp.tanh(hidden)
    out = [add[:, 0]]
    for t in range(1, 8):
        out.append(keep[:, t] * out[-1] + add[:, t])
    return jnp.stack(out, axis=1)


@prog((2, 2), (P("y"), P(), P()), lambda r: (r.f(4, 7, 5), r.f(5, 5), r.f(5)))
def viterbi_decode(emissions, trans, start):
    score = emissions[:, 0] + start
    back = []
    for t in range(1, 7):
        cand = score[:, :, None] + trans[None]
        back.append(jnp.argmax(cand, axis=1))
        score = cand.max(axis=1) + emissions[:, t]
    tag = jnp.argmax(score, axis=1)
    path = [tag]
    for bp in reversed(back):
        tag = jnp.sum(jax.nn.one_hot(tag, 5, dtype=i32) * bp, axis=1)
        path.append(tag)
    return jnp.stack(path[::-1], axis=1), score.max(axis=1)


# Collectives by hand.


@prog((1, 8), (P("x"),), lambda r: (r.f(8, 64),))
def ring_all_reduce(grads):
    def local(g):
        n, me = 8, lax.axis_index("x")
        perm = [(i, (i + 1) % n) for i in range(n)]
        chunks = g.reshape(n, 8)
        for s in range(n - 1):
            sent = lax.dynamic_index_in_dim(chunks, (me - s) % n, keepdims=True)
            got = lax.ppermute(sent, "x", perm)
            at = (me - s - 1) % n
            mine = lax.dynamic_index_in_dim(chunks, at, keepdims=True)
            chunks = lax.dynamic_update_slice(chunks, mine + got, (at, 0))
        done = lax.dynamic_index_in_dim(chunks, (me + 1) % n, keepdims=True)
        return lax.all_gather(done / n, "x", tiled=True).reshape(1, 64)

    return shard_map(local, mesh=get_mesh((1, 8)), in_specs=P("x"), out_specs=P("x"))(grads)


@prog((1, 8), (P(), P("x"), P("x")), lambda r: (r.f(4, 4, 16), r.f(8, 16, 16, s=0.25), r.f(8, 16, s=0.1)))
def gpipe_forward(micro, w, b):
    def local(micro, w, b):
        me, stages = lax.axis_index("x"), 8
        state, done = jnp.zeros((4, 16)), jnp.zeros((4, 4, 16))
        for t in range(4 + stages - 1):
            feed = micro[min(t, 3)]
            h = jnp.tanh(jnp.where(me == 0, feed, state) @ w[0] + b[0])
            if t >= stages - 1:
                done = done.at[t - stages + 1].set(jnp.where(me == stages - 1, h, 0.0))
            state = lax.ppermute(h, "x", [(i, i + 1) for i in range(stages - 1)])
        return lax.psum(done, "x")

    specs = (P(), P("x"), P("x"))
    return shard_map(local, mesh=get_mesh((1, 8)), in_specs=specs, out_specs=P(), check_vma=False)(micro, w, b)


@prog(
    (2, 4),
    (P("y"), P(None, "x"), P("x"), P("x"), P()),
    lambda r: (r.b(8, 64), r.b(64, 128, s=0.1), r.b(128), r.b(128, 64, s=0.1), r.b(64)),
)
def megatron_mlp(x, w1, b1, w2, b2):
    def local(x, w1, b1, w2, b2):
        h = jax.nn.gelu(x @ w1 + b1)
        return x + lax.psum(h @ w2, "x") + b2

    specs = (P("y"), P(None, "x"), P("x"), P("x"), P())
    return shard_map(local, mesh=get_mesh((2, 4)), in_specs=specs, out_specs=P("y"))(x, w1, b1, w2, b2)


@prog(
    (2, 4),
    (P("y", "x"), P(), P(None, "x"), P("x")),
    lambda r: (r.f(2, 16, 32), r.pos(32), r.f(32, 64, s=0.2), r.f(64, 32, s=0.2)),
)
def sequence_parallel_block(x, g, w1, w2):
    def local(x, g, w1, w2):
        full = lax.all_gather(rms_norm(x, g), "x", axis=1, tiled=True)
        h = jax.nn.silu(full @ w1)
        return x + lax.psum_scatter(h @ w2, "x", scatter_dimension=1, tiled=True)

    specs = (P("y", "x"), P(), P(None, "x"), P("x"))
    return shard_map(local, mesh=get_mesh((2, 4)), in_specs=specs, out_specs=P("y", "x"))(x, g, w1, w2)


@prog((1, 8), (P(None, "x"),) * 3, lambda r: (r.f(2, 16, 8, 8), r.f(2, 16, 8, 8), r.f(2, 16, 8, 8)))
def ulysses_attention(q, k, v):
    def local(*qkv):
        q, k, v = (lax.all_to_all(t, "x", split_axis=2, concat_axis=1, tiled=True) for t in qkv)
        s = jnp.einsum("bqhd,bkhd->bhqk", q, k) / 8**0.5
        s = jnp.where(jnp.tril(jnp.ones((16, 16), bool)), s, -1e9)
        o = jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(s), v)
        return lax.all_to_all(o, "x", split_axis=1, concat_axis=2, tiled=True)

    s = P(None, "x")
    return shard_map(local, mesh=get_mesh((1, 8)), in_specs=(s, s, s), out_specs=s)(q, k, v)


@prog((2, 4), (P("y", "x"),), lambda r: (r.f(16, 32),))
def heat_with_halos(u):
    def local(u):
        for _ in range(3):
            up = lax.ppermute(u[-1:], "y", [(0, 1)])
            down = lax.ppermute(u[:1], "y", [(1, 0)])
            left = lax.ppermute(u[:, -1:], "x", [(i, i + 1) for i in range(3)])
            right = lax.ppermute(u[:, :1], "x", [(i + 1, i) for i in range(3)])
            v = jnp.concatenate([up, u, down], axis=0)
            h = jnp.concatenate([left, u, right], axis=1)
            u = u + 0.2 * (v[:-2] + v[2:] + h[:, :-2] + h[:, 2:] - 4 * u)
        return u

    return shard_map(local, mesh=get_mesh((2, 4)), in_specs=P("y", "x"), out_specs=P("y", "x"))(u)


@prog((2, 2), (P("y", "x"), P("y", "x")), lambda r: (r.f(16, 32), r.f(32, 24)))
def summa_matmul(a, b):
    def local(a, b):
        rows = lax.all_gather(a, "x", axis=1, tiled=True)
        cols = lax.all_gather(b, "y", axis=0, tiled=True)
        return rows @ cols

    s = P("y", "x")
    return shard_map(local, mesh=get_mesh((2, 2)), in_specs=(s, s), out_specs=s)(a, b)


@prog((2, 4), (P(("y", "x")), P(), P()), lambda r: (r.f(16, 6, 8, m=1.0), r.pos(8), r.f(8)))
def synchronised_batch_norm(x, gamma, beta):
    def local(x, gamma, beta):
        mean = lax.pmean(lax.pmean(x.mean((0, 1)), "x"), "y")
        sq = lax.pmean(lax.pmean((x * x).mean((0, 1)), "x"), "y")
        var = sq - mean**2
        return (x - mean) * lax.rsqrt(var + 1e-5) * gamma + beta, mean, var

    s = P(("y", "x"))
    return shard_map(local, mesh=get_mesh((2, 4)), in_specs=(s, P(), P()), out_specs=(s, P(), P()))(x, gamma, beta)


@prog((1, 8), (P(), P("x")), lambda r: (r.i(0, 64, 4, 6), r.f(64, 16)))
def sharded_embedding_lookup(ids, table):
    def local(ids, table):
        rel = ids - lax.axis_index("x") * table.shape[0]
        ok = (rel >= 0) & (rel < table.shape[0])
        rows = table[jnp.where(ok, rel, 0)]
        return lax.psum(jnp.where(ok[..., None], rows, 0.0), "x") * 4.0

    return shard_map(local, mesh=get_mesh((1, 8)), in_specs=(P(), P("x")), out_specs=P())(ids, table)


@prog((2, 4), (P("y", "x"),), lambda r: (r.i(-1000, 1000, 8, 64),))
def distributed_argmax(x):
    def local(x):
        best = x.max(-1)
        at = jnp.argmax(x, -1).astype(i32) + lax.axis_index("x") * x.shape[1]
        top = lax.pmax(best, "x")
        return top, lax.pmin(jnp.where(best == top, at, 1 << 30), "x")

    f = shard_map(local, mesh=get_mesh((2, 4)), in_specs=P("y", "x"), out_specs=(P("y"), P("y")))
    return f(x)


@prog((1, 8), (P("x"),), lambda r: (r.i(0, 10, 64),))
def exclusive_prefix_sum(counts):
    def local(c):
        totals = lax.all_gather(c.sum(), "x")
        before = jnp.sum(jnp.where(jnp.arange(8) < lax.axis_index("x"), totals, 0))
        return jnp.cumsum(c) - c + before

    return shard_map(local, mesh=get_mesh((1, 8)), in_specs=P("x"), out_specs=P("x"))(counts)


@prog((8, 1), (P("y"),), lambda r: (r.f(8, 16),))
def butterfly_mean(x):
    def local(x):
        for k in (1, 2, 4):
            x = 0.5 * (x + lax.ppermute(x, "y", [(i, i ^ k) for i in range(8)]))
        return x

    return shard_map(local, mesh=get_mesh((8, 1)), in_specs=P("y"), out_specs=P("y"))(x)


@prog((2, 4), (P("y", "x"), P("y", "x")), lambda r: (r.f(8, 16), r.f(8, 16)))
def hierarchical_gradient_mean(g, ema):
    def local(g, e):
        part = lax.psum_scatter(g, "y", scatter_dimension=1, tiled=True)
        full = lax.all_gather(part / 2, "y", axis=1, tiled=True)
        return 0.9 * e + 0.1 * full

    s = P("y", "x")
    return shard_map(local, mesh=get_mesh((2, 4)), in_specs=(s, s), out_specs=s)(g, ema)


@prog((2, 4), (P("y"), P("x")), lambda r: (r.f(8, 3), r.f(16, 3)))
def ring_pair_distances(a, b):
    def local(a, b):
        best = jnp.full(a.shape[0], 1e9)
        for _ in range(4):
            best = jnp.minimum(best, jnp.sum((a[:, None] - b[None]) ** 2, -1).min(1))
            b = lax.ppermute(b, "x", [(i, (i + 1) % 4) for i in range(4)])
        return jnp.sqrt(lax.pmin(best, "x"))

    return shard_map(local, mesh=get_mesh((2, 4)), in_specs=(P("y"), P("x")), out_specs=P("y"))(a, b)


# Sorting, selection and segments.


@prog((8, 1), (P("y"),), lambda r: (r.f(8, 40, s=2.0),))
def nucleus_filter(logits):
    order = jnp.sort(logits, axis=-1)[:, ::-1]
    mass = jnp.cumsum(jax.nn.softmax(order, axis=-1), axis=-1)
    kept = jnp.sum(mass < 0.9, axis=-1, keepdims=True) + 1
    cut = jnp.min(jnp.where(jnp.arange(40) < kept, order, jnp.inf), axis=-1, keepdims=True)
    return jax.nn.softmax(jnp.where(logits >= cut, logits, -1e9), axis=-1), kept[:, 0]


@prog((2, 4), (P("y"), P(None, "x")), lambda r: (r.f(4, 16, 32), r.f(32, 32, s=0.2)))
def top_k_pooling(x, w):
    score = jnp.tanh(x.sum(-1))
    best, idx = lax.top_k(score, 4)
    chosen = jnp.einsum("bkn,bnd->bkd", jax.nn.one_hot(idx, 16), x)
    return (chosen * best[..., None]).mean(1) @ w, idx


@prog((2, 2), (P("y"), P("y")), lambda r: (r.f(32, 16), r.i(0, 6, 32)))
def segment_statistics(x, seg):
    sums = jax.ops.segment_sum(x, seg, 6)
    counts = jax.ops.segment_sum(jnp.ones(32), seg, 6)
    mean = sums / jnp.maximum(counts, 1.0)[:, None]
    sq = jax.ops.segment_sum(x * x, seg, 6) / jnp.maximum(counts, 1.0)[:, None]
    return mean, jnp.sqrt(jnp.maximum(sq - mean**2, 0.0)), counts


@prog((1, 8), (P("x"),), lambda r: (r.i(0, 16, 64),))
def histogram_and_ranks(values):
    bins = jnp.arange(16)
    counts = jnp.sum(values[:, None] == bins, axis=0, dtype=i32)
    cdf = jnp.cumsum(counts)
    rank = jnp.sum(jnp.where(bins[None] < values[:, None], counts, 0), axis=1)
    return counts, cdf, rank


@prog((2, 4), (P("y", "x"),), lambda r: (r.f(4, 32, s=0.05),))
def drawdown(returns):
    wealth = jnp.exp(jnp.cumsum(returns, axis=1))
    peak = lax.cummax(wealth, axis=1)
    trough = lax.cummin(wealth, axis=1, reverse=True)
    return (peak - wealth) / peak, (1 - wealth / peak).max(1), trough / wealth


@prog((2, 2), (P("y"), P("y")), lambda r: (r.f(8, 12), r.f(8, 12)))
def rank_correlation(a, b):
    def ranks(t):
        return jnp.argsort(jnp.argsort(t, axis=1), axis=1).astype(f32)

    d = ranks(a) - ranks(b)
    return 1.0 - 6.0 * jnp.sum(d * d, axis=1) / (12 * (12**2 - 1))


@prog((1, 8), (P("x"), P("x")), lambda r: (r.f(8, 10, 2), r.pos(8, 10, 2)))
def box_suppression(corner, size):
    score = corner.sum(-1)
    lo, hi = corner, corner + size
    wh = jnp.maximum(jnp.minimum(hi[:, :, None], hi[:, None]) - jnp.maximum(lo[:, :, None], lo[:, None]), 0.0)
    inter, area = wh[..., 0] * wh[..., 1], size[..., 0] * size[..., 1]
    iou = inter / (area[:, :, None] + area[:, None] - inter)
    better = score[:, None, :] > score[:, :, None]
    return jnp.where(jnp.max(jnp.where(better, iou, 0.0), -1) < 0.3, score, 0.0), iou.max(-1)


# Signals and images.


@prog((8, 1), (P("y"), P()), lambda r: (r.f(8, 64), r.f(4, 9)))
def fir_filter_bank(x, taps):
    padded = jnp.pad(x, ((0, 0), (8, 0)))
    windows = jnp.stack([padded[:, 8 - i : 72 - i] for i in range(9)], axis=-1)
    bands = jnp.einsum("btk,fk->bft", windows, taps)
    return bands, jnp.sqrt(jnp.mean(bands**2, axis=-1))


@prog((2, 2), (P("y", "x"), P()), lambda r: (r.f(4, 24), r.f(5, s=0.2)))
def biquad_filter(x, c):
    def step(z, xt):
        y = c[0] * xt + z[0]
        return (c[1] * xt - c[3] * y + z[1], c[2] * xt - c[4] * y), y

    zero = jnp.zeros(4)
    _, y = lax.scan(step, (zero, zero), x.T)
    return y.T


@prog((2, 4), (P("y"),), lambda r: (r.f(4, 64),))
def haar_shrinkage(x):
    details, a = [], x
    for _ in range(3):
        pairs = a.reshape(4, -1, 2)
        details.append((pairs[..., 0] - pairs[..., 1]) * 0.5**0.5)
        a = (pairs[..., 0] + pairs[..., 1]) * 0.5**0.5
    for d in reversed(details):
        d = jnp.sign(d) * jnp.maximum(jnp.abs(d) - 0.4, 0.0)
        a = jnp.stack([a + d, a - d], axis=-1).reshape(4, -1) * 0.5**0.5
    return a


@prog((1, 8), (P("x"), P()), lambda r: (r.f(8, 64), r.pos(9, 6)))
def log_mel_cepstrum(audio, mel):
    frames = jnp.stack([audio[:, i * 8 : i * 8 + 16] for i in range(7)], axis=1)
    n = jnp.arange(16, dtype=f32)
    frames = frames * (0.5 - 0.5 * jnp.cos(2 * jnp.pi * n / 16))
    k = 2 * jnp.pi * jnp.arange(9, dtype=f32)[None] * n[:, None] / 16
    power = (frames @ jnp.cos(k)) ** 2 + (frames @ jnp.sin(k)) ** 2
    logmel = jnp.log(power @ mel + 1e-3)
    m = jnp.arange(6, dtype=f32)
    return logmel @ jnp.cos(jnp.pi * (m[:, None] + 0.5) * m[None] / 6)


@prog((2, 4), (P("y", None, None),), lambda r: (r.f(4, 16, 16),))
def sobel_edges(img):
    p = jnp.pad(img, ((0, 0), (1, 1), (1, 1)), mode="edge")
    gx = (p[:, :-2, 2:] + 2 * p[:, 1:-1, 2:] + p[:, 2:, 2:]) - (p[:, :-2, :-2] + 2 * p[:, 1:-1, :-2] + p[:, 2:, :-2])
    gy = (p[:, 2:, :-2] + 2 * p[:, 2:, 1:-1] + p[:, 2:, 2:]) - (p[:, :-2, :-2] + 2 * p[:, :-2, 1:-1] + p[:, :-2, 2:])
    mag = jnp.sqrt(gx**2 + gy**2)
    return mag, (mag > mag.mean((1, 2), keepdims=True)).astype(i32), jnp.arctan2(gy, gx)


@prog((2, 2), (P("y"), P()), lambda r: (r.pos(4, 8, 8, 3), r.f(3, 3, s=0.5)))
def bilinear_resize_and_tone(img, colour):
    def weights(n, m):
        at = (jnp.arange(m, dtype=f32) + 0.5) * n / m - 0.5
        return jnp.maximum(0.0, 1.0 - jnp.abs(jnp.clip(at, 0, n - 1)[:, None] - jnp.arange(n)[None]))

    big = jnp.einsum("ph,bhwc,qw->bpqc", weights(8, 12), img, weights(8, 12))
    x = jnp.maximum(jnp.einsum("bpqc,cd->bpqd", big, colour), 0.0)
    return x * (2.51 * x + 0.03) / (x * (2.43 * x + 0.59) + 0.14)


@prog((8, 1), (P("y"),), lambda r: (r.i(-128, 128, 8, 12, 12, dt="int8"),))
def morphology(img):
    def shifted(t, fill, op):
        p = jnp.pad(t, ((0, 0), (1, 1), (1, 1)), constant_values=fill)
        rows = op(op(p[:, :-2], p[:, 1:-1]), p[:, 2:])
        return op(op(rows[:, :, :-2], rows[:, :, 1:-1]), rows[:, :, 2:])

    wide = img.astype(i32)
    eroded, dilated = shifted(wide, 127, jnp.minimum), shifted(wide, -128, jnp.maximum)
    opened = shifted(eroded, -128, jnp.maximum)
    return (dilated - eroded).astype(i32), opened.astype(i8)


@prog((1, 8), (P(None, "x"),), lambda r: (r.i(0, 256, 3, 32, 16),))
def integer_luma(rgb):
    y = (66 * rgb[0] + 129 * rgb[1] + 25 * rgb[2] + 128) // 256 + 16
    u = (-38 * rgb[0] - 74 * rgb[1] + 112 * rgb[2] + 128) // 256 + 128
    v = (112 * rgb[0] - 94 * rgb[1] - 18 * rgb[2] + 128) // 256 + 128
    half = u.reshape(16, 2, 8, 2).sum((1, 3)) // 4
    return y, half, v.reshape(16, 2, 8, 2).max((1, 3))


# Linear algebra.


@prog((2, 4), (P(), P(None, ("y", "x"))), lambda r: (r.f(8, 8), r.f(8, 16)))
def forward_then_backward_substitution(a, b):
    low = jnp.tril(a, -1) + 3.0 * jnp.eye(8)
    ys = []
    for i in range(8):
        ys.append((b[i] - sum(low[i, j] * ys[j] for j in range(i))) / low[i, i])
    xs = [jnp.zeros_like(b[0])] * 8
    for i in reversed(range(8)):
        xs[i] = (ys[i] - sum(low[j, i] * xs[j] for j in range(i + 1, 8))) / low[i, i]
    return jnp.stack(ys), jnp.stack(xs)


@prog((1, 8), (P("x"), P()), lambda r: (r.f(64, 24), r.pos(24)))
def power_iteration_with_deflation(x, v):
    cov = (x - x.mean(0)).T @ (x - x.mean(0)) / 64
    found = []
    for _ in range(2):
        v = v / jnp.linalg.norm(v)
        for _ in range(4):
            v = cov @ v
            v = v / jnp.sqrt(jnp.sum(v * v))
        lam = v @ cov @ v
        cov = cov - lam * jnp.outer(v, v)
        found.append(lam)
        v = jnp.ones_like(v) - v * v.sum()
    return jnp.stack(found), cov


@prog((2, 2), (P("y", "x"),), lambda r: (r.f(32, 32, s=0.1),))
def newton_schulz_inverse(a):
    a = a @ a.T + jnp.eye(32)
    x = a.T / (jnp.abs(a).sum(0).max() * jnp.abs(a).sum(1).max())
    for _ in range(6):
        x = x @ (2 * jnp.eye(32) - a @ x)
    return x, jnp.trace(x)


@prog((8, 1), (P("y"),), lambda r: (r.f(8, 5, 5),))
def batched_cholesky(a):
    a = jnp.einsum("bij,bkj->bik", a, a) + 2.0 * jnp.eye(5)
    low = jnp.zeros_like(a)
    for j in range(5):
        col = a[:, :, j] - jnp.einsum("bik,bk->bi", low, low[:, j])
        d = jnp.sqrt(col[:, j])
        low = low.at[:, :, j].set(jnp.where(jnp.arange(5) >= j, col / d[:, None], 0.0))
    logdet = 2 * jnp.sum(jnp.log(jnp.diagonal(low, axis1=1, axis2=2)), axis=-1)
    return low, logdet


@prog((2, 4), (P("x"), P("x")), lambda r: (r.f(32, 32, s=0.1), r.f(32)))
def conjugate_gradient(a, b):
    a = a.T @ a + jnp.eye(32)

    def body(_, c):
        x, r, p, rs = c
        ap = a @ p
        alpha = rs / jnp.vdot(p, ap)
        x, r = x + alpha * p, r - alpha * ap
        new = jnp.vdot(r, r)
        return x, r, r + (new / rs) * p, new

    x, r, _, _ = lax.fori_loop(0, 4, body, (jnp.zeros_like(b), b, b, jnp.vdot(b, b)))
    return x, r


@prog((1, 8), (P("x"),), lambda r: (r.f(64, 6),))
def gram_schmidt(a):
    def local(a):
        q = []
        for j in range(6):
            v = a[:, j]
            for u in q:
                v = v - u * lax.psum(jnp.vdot(u, v), "x")
            q.append(v * lax.rsqrt(lax.psum(jnp.vdot(v, v), "x")))
        q = jnp.stack(q, axis=1)
        return q, lax.psum(q.T @ a, "x")

    return shard_map(local, mesh=get_mesh((1, 8)), in_specs=P("x"), out_specs=(P("x"), P()))(a)


# Physics.


@prog((2, 4), (P("y"), P("y"), P()), lambda r: (r.f(4, 16, 12), r.f(4, 16, 12), r.pos(16, 12)))
def wave_equation(u, prev, speed):
    for _ in range(3):
        p = jnp.pad(u, ((0, 0), (1, 1), (1, 1)))
        lap = p[:, :-2, 1:-1] + p[:, 2:, 1:-1] + p[:, 1:-1, :-2] + p[:, 1:-1, 2:] - 4 * u
        u, prev = 1.98 * u - 0.98 * prev + 0.1 * speed**2 * lap, u
    return u, 0.5 * jnp.sum((u - prev) ** 2, (1, 2))


@prog((2, 2), (P("y"),), lambda r: (r.pos(12, 12, 9),))
def lattice_boltzmann_step(f):
    cx = jnp.array([0, 1, 0, -1, 0, 1, -1, -1, 1], f32)
    cy = jnp.array([0, 0, 1, 0, -1, 1, 1, -1, -1], f32)
    w = jnp.array([4 / 9] + [1 / 9] * 4 + [1 / 36] * 4, f32)
    rho = f.sum(-1)
    ux, uy = (f @ cx) / rho, (f @ cy) / rho
    cu = ux[..., None] * cx + uy[..., None] * cy
    feq = rho[..., None] * w * (1 + 3 * cu + 4.5 * cu**2 - 1.5 * (ux**2 + uy**2)[..., None])
    f = f - (f - feq) / 0.8
    shifts = [(0, 0), (1, 0), (0, 1), (-1, 0), (0, -1), (1, 1), (-1, 1), (-1, -1), (1, -1)]
    return jnp.stack([jnp.roll(f[..., i], s, (0, 1)) for i, s in enumerate(shifts)], axis=-1), rho


@prog((8, 1), (P("y"), P("y"), P()), lambda r: (r.f(24, 3), r.f(24, 3, s=0.1), r.pos(24)))
def n_body_leapfrog(x, v, mass):
    def accel(x):
        d = x[None] - x[:, None]
        inv = lax.rsqrt(jnp.sum(d * d, -1) + 0.05)
        return jnp.einsum("ijd,ij,j->id", d, inv**3, mass)

    v = v + 0.005 * accel(x)
    x = x + 0.01 * v
    v = v + 0.005 * accel(x)
    return x, v, 0.5 * jnp.sum(mass * jnp.sum(v * v, -1))


@prog((1, 8), (P("x"),), lambda r: (r.i(0, 2, 8, 16, 12),))
def game_of_life(board):
    for _ in range(2):
        n = sum(jnp.roll(board, (i, j), (1, 2)) for i in (-1, 0, 1) for j in (-1, 0, 1) if i or j)
        board = ((n == 3) | ((n == 2) & (board == 1))).astype(i32)
    return board, board.sum(axis=(1, 2))


@prog((2, 4), (P("y"), P("y")), lambda r: (r.i(0, 2, 4, 16, 16), r.pos(4, 16, 16)))
def ising_checkerboard(spins, noise):
    s = 2 * spins - 1
    parity = (jnp.arange(16)[:, None] + jnp.arange(16)) % 2
    for colour in (0, 1):
        field = jnp.roll(s, 1, 1) + jnp.roll(s, -1, 1) + jnp.roll(s, 1, 2) + jnp.roll(s, -1, 2)
        cost = (2 * s * field).astype(f32)
        flip = (noise < jnp.exp(-0.44 * cost) * 0.77) & (parity == colour)
        s = jnp.where(flip, -s, s)
    return s, jnp.sum(s, axis=(1, 2))


# Graphs, clusters and tables.


@prog(
    (2, 4),
    (P("y"), P(), P(None, "x"), P("x")),
    lambda r: (r.i(0, 2, 32, 32), r.f(32, 16), r.f(16, 32, s=0.3), r.f(32, 8, s=0.3)),
)
def graph_convolution(adj, x, w1, w2):
    a = ((adj + adj.T) > 1).astype(f32) + jnp.eye(32)
    d = lax.rsqrt(a.sum(1))
    norm = a * d[:, None] * d[None, :]
    h = jax.nn.relu(norm @ (x @ w1))
    return jax.nn.log_softmax(norm @ (h @ w2), -1)


@prog((2, 2), (P("y"), P(), P(), P()), lambda r: (r.i(0, 2, 16, 16), r.f(16, 8), r.f(2, 8, 8, s=0.4), r.f(2, 16)))
def graph_attention(adj, x, w, a):
    h = jnp.einsum("nd,kde->kne", x, w)
    left = jnp.einsum("kne,ke->kn", h, a[:, :8])
    right = jnp.einsum("kne,ke->kn", h, a[:, 8:])
    e = jax.nn.leaky_relu(left[:, :, None] + right[:, None, :], 0.2)
    e = jnp.where((adj + jnp.eye(16, dtype=i32)) > 0, e, -1e9)
    out = jax.nn.elu(jax.nn.softmax(e, -1) @ h)
    return out.transpose(1, 0, 2).reshape(16, 16)


@prog((1, 8), (P(None, "x"),), lambda r: (r.i(0, 2, 40, 40),))
def page_rank(links):
    out = links.sum(0)
    m = jnp.where(out > 0, links / jnp.maximum(out, 1), 1.0 / 40)
    return lax.fori_loop(0, 6, lambda _, r: 0.85 * (m @ r) + 0.15 / 40, jnp.full(40, 1.0 / 40))


@prog((8, 1), (P("y"), P()), lambda r: (r.f(64, 4), r.f(5, 4)))
def k_means_steps(points, centres):
    d, n = jnp.zeros((64, 5)), jnp.zeros(5)
    for _ in range(2):
        d = (points**2).sum(1)[:, None] - 2 * points @ centres.T + (centres**2).sum(1)
        own = jax.nn.one_hot(jnp.argmin(d, 1), 5)
        n = own.sum(0)
        centres = jnp.where(n[:, None] > 0, own.T @ points / jnp.maximum(n, 1)[:, None], centres)
    return centres, d.min(1).sum(), n.astype(i32)


@prog((2, 4), (P("y"), P(), P(), P()), lambda r: (r.f(32, 3), r.f(4, 3), r.pos(4, 3), r.f(4)))
def gaussian_mixture_step(x, mu, var, logits):
    diff = x[:, None] - mu
    logp = jax.nn.log_softmax(logits) - 0.5 * jnp.sum(diff**2 / var + jnp.log(2 * jnp.pi * var), -1)
    lse = jax.nn.logsumexp(logp, axis=1, keepdims=True)
    r = jnp.exp(logp - lse)
    n = r.sum(0) + 1e-6
    mu = r.T @ x / n[:, None]
    return mu, r.T @ x**2 / n[:, None] - mu**2 + 1e-3, n / 32, lse.mean()


@prog((2, 2), (P("y"), P("y")), lambda r: (r.i(0, 4, 8, 6), r.i(0, 4, 8, 7)))
def edit_distance(a, b):
    row = jnp.broadcast_to(jnp.arange(8, dtype=i32), (8, 8))
    for i in range(6):
        best = jnp.minimum(row[:, 1:] + 1, row[:, :-1] + (a[:, i : i + 1] != b).astype(i32))
        cells = [jnp.full(8, i + 1, i32)]
        for j in range(7):
            cells.append(jnp.minimum(best[:, j], cells[-1] + 1))
        row = jnp.stack(cells, axis=1)
    return row[:, -1]


@prog((1, 8), (P("x"),), lambda r: (r.i(0, 1 << 30, 64, 4),))
def integer_mixing(x):
    h = jnp.full((64,), 1540483477, i32)
    for i in range(4):
        h = (h ^ x[:, i]) * 16777619
        h = h ^ (h >> 13)
        h = h + (h << 3)
    return h, (h & 1023) % 37


@prog((2, 4), (P("y"), P(), P()), lambda r: (r.i(0, 9, 8), r.i(1, 6, 5), r.i(1, 20, 5)))
def knapsack(extra, weights, values):
    best = jnp.broadcast_to(extra[:, None], (8, 16))
    room = jnp.arange(16)
    for i in range(5):
        pick = (room[:, None] - weights[i]) == room[None, :]
        taken = jnp.sum(jnp.where(pick[None], best[:, None, :], 0), axis=-1) + values[i]
        best = jnp.where(room >= weights[i], jnp.maximum(best, taken), best)
    return best, best.max(1)


# Deep stacks.


def block_params(r, n, d, f, b=False):
    draw = r.b if b else r.f
    return {
        "qkv": draw(n, d, 3 * d, s=d**-0.5),
        "out": draw(n, d, d, s=0.5 * d**-0.5),
        "up": draw(n, d, f, s=d**-0.5),
        "down": draw(n, f, d, s=0.5 * f**-0.5),
        "g": r.pos(2 * n, d) if not b else r.b(2 * n, d),
    }


BLOCK = {
    "qkv": P(None, None, "x"),
    "out": P(None, "x"),
    "up": P(None, None, "x"),
    "down": P(None, "x"),
    "g": P(),
}


def attend(x, qkv, out, n, causal):
    q, k, v = (heads(t, n) for t in jnp.split(x @ qkv, 3, axis=-1))
    s = (q @ k.swapaxes(-1, -2)).astype(f32) * (q.shape[-1] ** -0.5)
    if causal:
        s = jnp.where(jnp.tril(jnp.ones(s.shape[-2:], bool)), s, -1e9)
    return merge(jax.nn.softmax(s, -1).astype(x.dtype) @ v) @ out


def run_blocks(x, p, n, causal=True, act=jax.nn.gelu):
    for i in range(p["qkv"].shape[0]):
        x = x + attend(rms_norm(x, p["g"][2 * i]), p["qkv"][i], p["out"][i], n, causal)
        x = x + act(rms_norm(x, p["g"][2 * i + 1]) @ p["up"][i]) @ p["down"][i]
    return x


@prog(
    (2, 4),
    (P("y"), P(None, "x"), P(), BLOCK),
    lambda r: (r.i(0, 50, 4, 8), r.f(50, 128), r.f(8, 128, s=0.1), block_params(r, 4, 128, 256)),
)
def language_model(ids, table, pos, blocks):
    x = jax.nn.one_hot(ids, 50) @ table + pos
    x = run_blocks(x, blocks, 8)
    return layer_norm(x, 1.0, 0.0) @ table.T / 128**0.5


@prog((1, 8), (P(), BLOCK), lambda r: (r.b(2, 16, 256), block_params(r, 4, 256, 512, b=True)))
def bfloat_decoder(x, blocks):
    return rms_norm(run_blocks(x, blocks, 8, act=jax.nn.silu), 1.0)


@prog(
    (8, 1),
    (P("y"), P(), P(), P()),
    lambda r: (r.i(0, 30, 8, 12), r.f(30, 64), block_params(r, 5, 64, 128), r.f(64, 3, s=0.1)),
)
def sentence_encoder(ids, table, blocks, head):
    mask = ids != 0
    x = run_blocks(layer_norm(table[ids], 1.0, 0.0), blocks, 4, causal=False)
    pooled = jnp.where(mask[..., None], x, 0).sum(1) / jnp.maximum(mask.sum(1, keepdims=True), 1)
    pooled = pooled / jnp.linalg.norm(pooled, axis=-1, keepdims=True)
    return pooled, pooled @ head


@prog((2, 2), (P("y"), BLOCK, P()), lambda r: (r.f(4, 6, 64), block_params(r, 4, 64, 128), r.f(4, 6, 64)))
def fine_tuning_step(x, blocks, target):
    def loss(p):
        return jnp.mean((run_blocks(x, p, 4) - target) ** 2)

    value, grads = jax.value_and_grad(loss)(blocks)
    return value, grads["up"], blocks["g"] - 0.1 * grads["g"]


@prog(
    (1, 8),
    (P(), P(None, None, "x"), P(None, "x"), P()),
    lambda r: (r.f(8, 512), r.f(6, 512, 512, s=0.04), r.f(6, 512, 512, s=0.02), r.pos(6, 512)),
)
def deep_residual_network(x, up, down, g):
    for i in range(6):
        h = layer_norm(x, g[i], 0.0)
        x = x + jax.nn.relu(h @ up[i]) @ down[i]
    return x


@prog(
    (2, 4),
    (P("y"), P(), P(None, None, "x"), P(None, "x")),
    lambda r: (r.f(4, 16, 64), r.f(5, 16, 16, s=0.2), r.f(5, 64, 128, s=0.1), r.f(5, 128, 64, s=0.1)),
)
def mixer_stack(x, token, up, down):
    def layer(x, w):
        t, u, d = w
        y = layer_norm(x, 1.0, 0.0).swapaxes(1, 2) @ t
        x = x + y.swapaxes(1, 2)
        return x + jax.nn.gelu(layer_norm(x, 1.0, 0.0) @ u) @ d, None

    x, _ = lax.scan(layer, x, (token, up, down))
    return x.mean(1)


@prog(
    (2, 4),
    (P("y"), P(), P(None, None, "x"), P(None, "x"), P()),
    lambda r: (
        r.f(2, 8, 8, 64),
        r.f(4, 3, 3, 1, 64, s=0.3),
        r.f(4, 64, 128, s=0.1),
        r.f(4, 128, 64, s=0.1),
        r.f(4, 64, s=0.3),
    ),
)
def convnext_stack(x, dw, up, down, scale):
    for i in range(4):
        h = lax.conv_general_dilated(x, dw[i], (1, 1), "SAME", dimension_numbers=NHWC, feature_group_count=64)
        h = jax.nn.gelu(layer_norm(h, 1.0, 0.0) @ up[i]) @ down[i]
        x = x + scale[i] * h
    return layer_norm(x.mean((1, 2)), 1.0, 0.0)


@prog(
    (2, 4),
    (P("y"), P("y"), P(None, None, "x"), P(None, "x"), P()),
    lambda r: (r.f(2, 6, 64), r.f(2, 9, 64), r.f(4, 64, 192, s=0.1), r.f(4, 64, 64, s=0.1), r.f(8, 4, s=0.5)),
)
def encoder_decoder(tgt, src, qkv, out, table):
    rel = jnp.clip(jnp.arange(9)[None, :] - jnp.arange(6)[:, None], -4, 3) + 4
    bias = jnp.einsum("qkr,rh->hqk", jax.nn.one_hot(rel, 8), table)
    for i in range(2):
        src = src + attend(rms_norm(src, 1.0), qkv[i], out[i], 4, False)
    src = rms_norm(src, 1.0)
    for i in (2, 3):
        tgt = tgt + attend(rms_norm(tgt, 1.0), qkv[i], out[i], 4, True)
        q = heads(rms_norm(tgt, 1.0) @ qkv[i][:, :64], 4)
        k, v = heads(src @ qkv[i][:, 64:128], 4), heads(src @ qkv[i][:, 128:], 4)
        tgt = tgt + merge(jax.nn.softmax(q @ k.swapaxes(-1, -2) * 0.25 + bias, -1) @ v) @ out[i]
    return tgt


@prog(
    (1, 8),
    (P(), P(None, None, "x"), P(None, None, "x"), P(None, "x"), P(None, None, "x"), P()),
    lambda r: (
        r.f(2, 64),
        r.f(4, 64, 64, s=0.1),
        r.f(4, 2, 8, 16, 8),
        r.f(4, 128, 64, s=0.1),
        r.f(4, 64, 128, s=0.1),
        r.i(1, 12),
    ),
)
def cached_decoder_step(x, wq, cache, down, up, pos):
    written = []
    for i in range(4):
        q = (rms_norm(x, 1.0) @ wq[i]).reshape(2, 8, 8)
        kv = lax.dynamic_update_slice(cache[i], jnp.tanh(q)[:, :, None], (0, 0, pos, 0))
        s = jnp.where(jnp.arange(16) <= pos, jnp.einsum("bhd,bhtd->bht", q, kv) * 8**-0.5, -1e9)
        x = x + jnp.einsum("bht,bhtd->bhd", jax.nn.softmax(s), kv).reshape(2, 64)
        x = x + jax.nn.silu(rms_norm(x, 1.0) @ up[i]) @ down[i]
        written.append(kv)
    return x, jnp.stack(written)


@prog(
    (2, 2),
    (P("y"), P(None, None, "x"), P(None, "x"), P()),
    lambda r: (
        r.b(8, 128),
        r.i(-127, 128, 4, 128, 256, dt="int8"),
        r.i(-127, 128, 4, 256, 128, dt="int8"),
        r.pos(4, 2),
    ),
)
def quantised_feed_forward_stack(x, up, down, scale):
    x = x.astype(f32)
    for i in range(4):
        h = rms_norm(x, 1.0)
        s = jnp.abs(h).max(-1, keepdims=True) / 127
        q = jnp.round(h / s).astype(i8)
        acc = jnp.matmul(q.astype(i32), up[i].astype(i32))
        h = jax.nn.relu(acc.astype(f32) * s * scale[i, 0] * 1e-3)
        x = x + (h @ down[i].astype(f32)) * scale[i, 1] * 1e-3
    return x
