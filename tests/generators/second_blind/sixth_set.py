"""Programs of a sixth set, whose author had read neither the diagnosis nor the other sets: as users write them."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax, shard_map
from jax.sharding import PartitionSpec as P

from tests.generators.second_blind.fourth_set import bf16, f32, get_mesh, i8, i32, prog


def over(mesh, inside, outside, **options):
    """Maps a function over the shards of a mesh."""
    return lambda fun: shard_map(fun, mesh=get_mesh(mesh), in_specs=inside, out_specs=outside, **options)


@prog(
    (2, 4),
    (P("y", "x"), P("y", "x"), P("y", "x"), P("y"), P("y", "x"), P("y", "x")),
    lambda r: (
        r.f(4, 4, 1, 8),
        r.f(4, 4, 16, 8),
        r.f(4, 4, 16, 8),
        r.i(3, 14, 4),
        r.f(4, 4, 1, 8),
        r.f(4, 4, 1, 8),
    ),
)
def cached_decode(q, cache_k, cache_v, length, k, v):
    here = jnp.arange(16)[None, :] == length[:, None]
    cache_k = jnp.where(here[:, None, :, None], k, cache_k)
    cache_v = jnp.where(here[:, None, :, None], v, cache_v)
    s = jnp.einsum("bhqd,bhkd->bhqk", q, cache_k) / jnp.sqrt(8.0)
    seen = jnp.arange(16)[None, :] <= length[:, None]
    s = jnp.where(seen[:, None, None, :], s, -1e9)
    return jax.nn.softmax(s, -1) @ cache_v, cache_k, cache_v, length + 1


@prog(
    (1, 8),
    (P(None, None, "x"), P(None, None, "x"), P(None, None, "x"), P()),
    lambda r: (r.b(2, 12, 8, 16), r.b(2, 12, 8, 16), r.b(2, 12, 8, 16), r.i(2, 7, 2)),
)
def prefix_lm_attention(q, k, v, prefix):
    i, j = jnp.arange(12)[:, None], jnp.arange(12)[None, :]
    mask = (j <= i)[None] | (j[None] < prefix[:, None, None])
    s = jnp.einsum("bqhd,bkhd->bhqk", q, k, preferred_element_type=f32) * 0.25
    s = jnp.where(mask[:, None], s, jnp.finfo(f32).min)
    return jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(s, -1).astype(bf16), v)


@prog(
    (2, 4),
    (P("y"), P(), P(None, "x"), P(None, "x"), P(None, "x"), P("x")),
    lambda r: (
        r.f(2, 8, 32),
        r.f(32, 16, s=0.2),
        r.f(32, 4, 12, s=0.2),
        r.f(12, 4, 8, s=0.3),
        r.f(12, 4, 8, s=0.3),
        r.f(4, 8, 32, s=0.2),
    ),
)
def latent_attention(x, w_down, w_q, w_uk, w_uv, w_o):
    latent, rope = jnp.split(x @ w_down, [12], axis=-1)
    q = jnp.einsum("btd,dhk->bthk", x, w_q)
    q_nope, q_rope = q[..., :8], q[..., 8:]
    latent = latent * lax.rsqrt((latent**2).mean(-1, keepdims=True) + 1e-6)
    absorbed = jnp.einsum("bthk,lhk->bthl", q_nope, w_uk)
    angle = jnp.arange(8)[:, None] * (10000.0 ** (-jnp.arange(2) / 2))
    cos, sin = jnp.cos(angle), jnp.sin(angle)

    def rotate(y, c, s):
        a, b = y[..., :2], y[..., 2:]
        return jnp.concatenate([a * c - b * s, a * s + b * c], -1)

    q_rope = rotate(q_rope, cos[:, None], sin[:, None])
    rope = rotate(rope, cos, sin)
    s = jnp.einsum("bthl,bsl->bhts", absorbed, latent) + jnp.einsum("bthr,bsr->bhts", q_rope, rope)
    s = jnp.where(jnp.tril(jnp.ones((8, 8), bool)), s / jnp.sqrt(12.0), -jnp.inf)
    mixed = jnp.einsum("bhts,bsl->bthl", jax.nn.softmax(s, -1), latent)
    return jnp.einsum("bthl,lhv,hvd->btd", mixed, w_uv, w_o)


@prog(
    (1, 8),
    (P(None, None, "x"), P("x"), P(), P(), P("x")),
    lambda r: (r.f(2, 6, 16), r.f(16, 4, s=0.3), r.f(2, 6, 4), r.f(2, 6, 4), r.f(16)),
)
def mamba_scan(x, a_log, b, c, d):
    @over((1, 8), (P(None, None, "x"), P("x"), P(), P()), P(None, None, "x"), check_vma=False)
    def scan(x, a_log, b, c):
        delta = jax.nn.softplus(x * 0.5)

        def step(h, now):
            x, dt, b, c = now
            h = jnp.exp(-dt[..., None] * jnp.exp(a_log)) * h + (dt * x)[..., None] * b[:, None]
            return h, jnp.einsum("bdn,bn->bd", h, c)

        by_time = [y.swapaxes(0, 1) for y in (x, delta, b, c)]
        return lax.scan(step, jnp.zeros((2, 2, 4)), tuple(by_time))[1].swapaxes(0, 1)

    return scan(x, a_log, b, c) + x * d


@prog(
    (2, 4),
    (P("y", None, "x"), P("y", None, "x"), P("y", None, "x"), P("x"), P("x")),
    lambda r: (r.f(2, 5, 8), r.f(2, 5, 8), r.f(2, 5, 8), r.f(8), r.f(8)),
)
def rwkv_wkv(gate, k, v, w, u):
    decay = -jnp.exp(w)
    num, den, top, outs = jnp.zeros((2, 8)), jnp.zeros((2, 8)), jnp.full((2, 8), -1e30), []
    for t in range(5):
        peak = jnp.maximum(top, u + k[:, t])
        old, new = jnp.exp(top - peak), jnp.exp(u + k[:, t] - peak)
        outs.append((old * num + new * v[:, t]) / (old * den + new))
        peak = jnp.maximum(top + decay, k[:, t])
        old, new = jnp.exp(top + decay - peak), jnp.exp(k[:, t] - peak)
        num, den, top = old * num + new * v[:, t], old * den + new, peak
    return jax.nn.sigmoid(gate) * jnp.stack(outs, 1)


@prog(
    (8, 1),
    (P("y"), P(), P(), P(), P()),
    lambda r: (r.f(8, 8, 8, 4), r.f(3, 3, 4, 8, s=0.2), r.f(8, m=1.0), r.f(8), r.f(3, 3, 8, 4, s=0.2)),
)
def group_norm_resnet_block(x, w1, scale, bias, w2):
    def conv(y, w):
        return lax.conv_general_dilated(y, w, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))

    h = conv(x, w1)
    g = h.reshape(8, 8, 8, 2, 4)
    g = g - g.mean((1, 2, 4), keepdims=True)
    g = g * lax.rsqrt((g**2).mean((1, 2, 4), keepdims=True) + 1e-5)
    h = jax.nn.silu(g.reshape(h.shape) * scale + bias)
    return x + conv(h, w2)


@prog(
    (2, 4),
    (P("y"), P("y"), P()),
    lambda r: (r.f(8, 6), r.f(8, 6), jnp.linspace(0.05, 0.95, 5)),
)
def ddim_sampler(x, cond, alphas):
    def body(i, x):
        now, to = alphas[i], alphas[i + 1]
        eps = jnp.tanh(x + cond * (1 - now))
        clean = (x - jnp.sqrt(1 - now) * eps) / jnp.sqrt(now)
        clean = jnp.clip(clean, -3.0, 3.0)
        return jnp.sqrt(to) * clean + jnp.sqrt(1 - to) * eps

    return lax.fori_loop(0, 4, body, x)


@prog((2, 4), (P("y", "x"), P("y", "x"), P("y")), lambda r: (r.f(4, 16, s=2.0), r.f(4, 16, s=2.0), r.i(0, 16, 4)))
def speculative_accept(draft_logits, target_logits, token):
    p, q = jax.nn.softmax(target_logits, -1), jax.nn.softmax(draft_logits, -1)
    pick = jax.nn.one_hot(token, 16)
    ratio = (p * pick).sum(-1) / (q * pick).sum(-1)
    accepted = ratio >= 0.7
    left = jnp.maximum(p - q, 0.0)
    left = left / jnp.maximum(left.sum(-1, keepdims=True), 1e-6)
    fallback = jnp.argmax(left, -1).astype(i32)
    return jnp.where(accepted, token, fallback), jnp.minimum(ratio, 1.0), left


@prog(
    (2, 4),
    (P("y"), P(None, "x"), P(), P(None, "x"), P("x")),
    lambda r: (r.b(8, 16), r.i(-120, 120, 16, 32, dt="int8"), r.b(16, 4, s=0.2), r.b(4, 32, s=0.2), r.pos(32)),
)
def lora_on_int8(x, w8, a, b, scale):
    base = x.astype(f32) @ (w8.astype(f32) * (scale * 0.01))
    return (base + 2.0 * ((x @ a) @ b).astype(f32)).astype(bf16)


@prog(
    (1, 8),
    (P("x"), P(), P("x")),
    lambda r: (r.i(0, 16, 16, 8), r.f(16), r.pos(16, 2)),
)
def nf4_dequantise(codes, table, absmax):
    values = table[codes].reshape(16, 2, 4) * absmax[..., None]
    w = values.reshape(16, 8)
    return w @ w.T, w


@prog((8, 1), (P("y"), P()), lambda r: (r.f(32, 4), r.f(5, 4)))
def kmeans_steps(x, centres):
    def step(c, _):
        far = (x**2).sum(-1, keepdims=True) - 2 * x @ c.T + (c**2).sum(-1)
        near = jax.nn.one_hot(far.argmin(-1), 5)
        count = near.sum(0)
        mean = near.T @ x / jnp.maximum(count, 1.0)[:, None]
        return jnp.where(count[:, None] > 0, mean, c), (near * far).sum()

    return lax.scan(step, centres, None, length=3)


@prog((2, 4), (P("x"), P()), lambda r: (r.f(32, 12), r.f(12, 3)))
def subspace_iteration(x, start):
    x = x - x.mean(0)
    cov = x.T @ x / 31.0

    def body(_, v):
        v = cov @ v
        a = v[:, 0] / jnp.linalg.norm(v[:, 0])
        b = v[:, 1] - (a @ v[:, 1]) * a
        b = b / jnp.linalg.norm(b)
        c = v[:, 2] - (a @ v[:, 2]) * a - (b @ v[:, 2]) * b
        return jnp.stack([a, b, c / jnp.linalg.norm(c)], 1)

    v = lax.fori_loop(0, 3, body, start)
    return x @ v, jnp.diag(v.T @ cov @ v)


@prog((1, 8), (P("x"), P()), lambda r: (r.f(8, 40), r.f(5)))
def fir_and_decimate(signal, taps):
    padded = jnp.pad(signal, ((0, 0), (2, 2)), mode="edge")
    out = sum(taps[i] * padded[:, i : i + 40] for i in range(5))
    low = out[:, ::4]
    energy = jnp.sqrt((low**2).mean(-1))
    return low - low.mean(-1, keepdims=True), jnp.where(energy > 1.0, jnp.log(energy), 0.0)


@prog(
    (2, 4),
    (P("x"), P("y"), P("y"), P(), P()),
    lambda r: (r.f(12, 8), r.i(0, 12, 24), r.i(0, 12, 24), r.f(8, 8, s=0.3), r.f(8, 8, s=0.3)),
)
def message_passing(nodes, src, dst, w_msg, w_self):
    sent = jax.nn.relu(nodes[src] @ w_msg)
    total = jax.ops.segment_sum(sent, dst, num_segments=12)
    degree = jax.ops.segment_sum(jnp.ones_like(dst, f32), dst, num_segments=12)
    h = nodes @ w_self + total / jnp.maximum(degree, 1.0)[:, None]
    return h / (jnp.linalg.norm(h, axis=-1, keepdims=True) + 1e-6)


@prog((2, 4), (P("y"), P("y"), P()), lambda r: (r.f(4, 10, 5), r.i(1, 5, 4, 3), r.i(0, 1, 1)))
def ctc_forward(logits, labels, blank):
    logp = jax.nn.log_softmax(logits, -1)
    blanks = jnp.zeros((4, 7), i32).at[:, 1::2].set(labels) + blank
    skip = jnp.concatenate([jnp.zeros((4, 2), bool), blanks[:, 2:] != blanks[:, :-2]], 1) & (blanks != 0)
    emit = jnp.einsum("btv,bsv->tbs", logp, jax.nn.one_hot(blanks, 5))
    first = jnp.where(jnp.arange(7) < 2, emit[0], -1e5)

    def step(alpha, now):
        one = jnp.concatenate([jnp.full((4, 1), -1e5), alpha[:, :-1]], 1)
        two = jnp.where(skip, jnp.concatenate([jnp.full((4, 2), -1e5), alpha[:, :-2]], 1), -1e5)
        peak = jnp.maximum(jnp.maximum(alpha, one), two)
        total = jnp.exp(alpha - peak) + jnp.exp(one - peak) + jnp.exp(two - peak)
        return jnp.log(total) + peak + now, None

    alpha, _ = lax.scan(step, first, emit[1:])
    return -jnp.logaddexp(alpha[:, -1], alpha[:, -2])


@prog((1, 8), (P("x"), P("x"), P()), lambda r: (r.f(16, 8), r.f(16, 8), r.f(1, m=1.0, s=0.1)))
def contrastive_over_mesh(a, b, temperature):
    @over((1, 8), (P("x"), P("x"), P()), P())
    def loss(a, b, t):
        a = a / jnp.linalg.norm(a, axis=-1, keepdims=True)
        b = b / jnp.linalg.norm(b, axis=-1, keepdims=True)
        every = lax.all_gather(b, "x", axis=0, tiled=True)
        s = a @ every.T / t
        own = lax.axis_index("x") * 2 + jnp.arange(2)
        hit = jnp.where(jnp.arange(16) == own[:, None], s, 0.0).sum(-1)
        return lax.pmean((jax.nn.logsumexp(s, -1) - hit).mean(), "x")

    return loss(a, b, temperature)


@prog((2, 4), (P("y", "x"), P("y")), lambda r: (r.f(8, 16, s=2.0), r.i(0, 16, 8)))
def smoothed_focal_loss(logits, labels):
    soft = jax.nn.one_hot(labels, 16) * 0.9 + 0.1 / 16
    logp = jax.nn.log_softmax(logits)
    p = jnp.exp(logp)
    focal = -(soft * (1 - p) ** 2.0 * logp).sum(-1)
    weight = jnp.where(labels % 2 == 0, 1.0, 0.25)
    return (focal * weight).sum() / weight.sum(), jax.grad(lambda z: (jax.nn.log_softmax(z) * soft).sum())(logits)


@prog(
    (1, 8),
    (P("x"), P("x"), P("x"), P("x"), P()),
    lambda r: (r.f(16, 8), r.f(16, 8), r.f(16, 8, s=0.1), r.pos(16, 8), r.i(1, 9)),
)
def adamw_step(w, g, m, v, count):
    norm = jnp.sqrt((g**2).sum())
    g = g * jnp.minimum(1.0, 1.0 / (norm + 1e-6))
    m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g**2
    t = count.astype(f32)
    m_hat, v_hat = m / (1 - 0.9**t), v / (1 - 0.999**t)
    rate = 0.1 * jnp.minimum(t / 4.0, 1.0) * 0.5 * (1 + jnp.cos(jnp.pi * t / 20.0))
    return w - rate * (m_hat / (jnp.sqrt(v_hat) + 1e-8) + 0.01 * w), m, v


@prog((2, 4), (P("y", "x"), P("y", "x"), P("y"), P("x")), lambda r: (r.f(8, 12), r.f(8, 12), r.pos(8), r.pos(12)))
def adafactor_step(w, g, row, col):
    sq = g**2 + 1e-30
    row, col = 0.8 * row + 0.2 * sq.mean(1), 0.8 * col + 0.2 * sq.mean(0)
    update = g * lax.rsqrt(row / row.mean())[:, None] * lax.rsqrt(col)[None]
    rms = jnp.sqrt((update**2).mean())
    update = update / jnp.maximum(1.0, rms)
    scale = jnp.maximum(1e-3, jnp.sqrt((w**2).mean()))
    return w - 0.1 * scale * update, row, col


@prog((2, 4), (P("y", "x"), P("y", "x"), P("y", "x")), lambda r: (r.b(8, 16), r.b(8, 16), r.b(8, 16)))
def lion_step(w, g, m):
    update = jnp.sign(0.9 * m + 0.1 * g)
    return (w - 0.125 * (update + 0.5 * w)).astype(bf16), (0.99 * m + 0.01 * g).astype(bf16)


@prog((2, 4), (P("y", "x"), P("y", "x")), lambda r: (r.f(8, 12), r.f(8, 12)))
def muon_newton_schulz(w, g):
    x = g / (jnp.linalg.norm(g) + 1e-7)
    for a, b, c in ((3.44, -4.78, 2.03), (3.44, -4.78, 2.03), (1.5, -0.5, 0.0)):
        xx = x @ x.T
        x = a * x + (b * xx + c * xx @ xx) @ x
    return w - 0.2 * jnp.sqrt(12 / 8) * x


@prog((1, 8), (P("x"),), lambda r: (r.f(16, 10),))
def heat_halo(u):
    @over((1, 8), (P("x"),), P("x"))
    def step(u):
        down = [(i, i + 1) for i in range(7)]
        up = [(i + 1, i) for i in range(7)]
        for _ in range(2):
            above, below = lax.ppermute(u[-1:], "x", down), lax.ppermute(u[:1], "x", up)
            wide = jnp.concatenate([above, u, below], 0)
            side = jnp.pad(u, ((0, 0), (1, 1)))
            lap = wide[:-2] + wide[2:] + side[:, :-2] + side[:, 2:] - 4 * u
            u = u + 0.2 * lap
        return u

    return step(u)


@prog((1, 8), (P("x"), P("x")), lambda r: (r.f(16, 3), r.pos(16)))
def n_body_ring(pos, mass):
    @over((1, 8), (P("x"), P("x")), P("x"))
    def force(pos, mass):
        ring = [(i, (i + 1) % 8) for i in range(8)]

        def body(_, state):
            there, heavy, acc = state
            d = there[None] - pos[:, None]
            r2 = (d**2).sum(-1) + 0.1
            acc = acc + (heavy[None, :, None] * d * lax.rsqrt(r2**3)[..., None]).sum(1)
            return lax.ppermute(there, "x", ring), lax.ppermute(heavy, "x", ring), acc

        return lax.fori_loop(0, 8, body, (pos, mass, pos * 0))[2]

    return force(pos, mass)


@prog((2, 4), (P("y", "x"), P("x", None)), lambda r: (r.f(8, 16), r.f(16, 8, s=0.3)))
def psum_scatter_matmul(x, w):
    @over((2, 4), (P("y", "x"), P("x", None)), P("y", "x"))
    def dot(x, w):
        return lax.psum_scatter(x @ w, "x", scatter_dimension=1, tiled=True)

    y = dot(x, w)
    return jax.nn.gelu(y - y.max(-1, keepdims=True))


@prog((1, 8), (P(None, "x"), P("x")), lambda r: (r.f(2, 16, 8, 4), r.f(8, 4, s=0.3)))
def ulysses_exchange(x, w):
    @over((1, 8), (P(None, "x"), P("x")), P(None, "x"))
    def attend(x, w):
        h = lax.all_to_all(x, "x", split_axis=2, concat_axis=1, tiled=True)
        s = jax.nn.softmax(jnp.einsum("bqhd,bkhd->bhqk", h * w, h), -1)
        out = jnp.einsum("bhqk,bkhd->bqhd", s, h)
        return lax.all_to_all(out, "x", split_axis=1, concat_axis=2, tiled=True)

    return attend(x, w)


@prog((8, 1), (P("y"), P()), lambda r: (r.f(8, 6, 6, s=0.5), r.f(4, 6)))
def pipeline_stages(weights, batches):
    @over((8, 1), (P("y"), P()), P())
    def run(w, batches):
        here = lax.axis_index("y")
        state, outs = jnp.zeros((6,)), jnp.zeros((4, 6))
        for t in range(11):
            state = jnp.where(here == 0, batches[min(t, 3)], state)
            state = jnp.tanh(state @ w[0])
            if t >= 7:
                outs = outs.at[t - 7].set(jnp.where(here == 7, state, 0.0))
            state = lax.ppermute(state, "y", [(i, (i + 1) % 8) for i in range(8)])
        return lax.psum(outs, "y")

    return run(weights, batches)


@prog(
    (1, 8), (P(None, "x"), P(None, "x"), P(None, "x")), lambda r: (r.f(2, 16, 8, 4), r.f(2, 16, 8, 4), r.f(2, 16, 8, 4))
)
def linear_attention_prefix(q, k, v):
    @over((1, 8), (P(None, "x"),) * 3, P(None, "x"))
    def attend(q, k, v):
        q, k = jax.nn.elu(q) + 1, jax.nn.elu(k) + 1
        state, norm = jnp.einsum("bthd,bthe->bhde", k, v), k.sum(1)
        states, norms = lax.all_gather(state, "x"), lax.all_gather(norm, "x")
        before = (jnp.arange(8) < lax.axis_index("x")).astype(f32)
        state, norm = jnp.einsum("s,sbhde->bhde", before, states), jnp.einsum("s,sbhd->bhd", before, norms)
        a = jnp.einsum("bthd,bshd->bhts", q, k) * jnp.tril(jnp.ones((2, 2)))
        num = jnp.einsum("bhts,bshe->bthe", a, v) + jnp.einsum("bthd,bhde->bthe", q, state)
        den = a.sum(-1).swapaxes(1, 2) + jnp.einsum("bthd,bhd->bth", q, norm)
        return num / den[..., None]

    return attend(q, k, v)


@prog(
    (2, 4),
    (P("y", None, "x"),) * 2 + (P("y", None, "x"), P("y", None, "x")),
    lambda r: (r.f(2, 4, 4, 6), r.f(2, 4, 4, 6), r.f(2, 4, 4, 6), r.f(2, 4, 4)),
)
def gated_delta_rule(q, k, v, beta):
    k = k * lax.rsqrt((k**2).sum(-1, keepdims=True) + 1e-6)
    beta, state, outs = jax.nn.sigmoid(beta), jnp.zeros((2, 4, 6, 6)), []
    for t in range(4):
        old = jnp.einsum("bhd,bhde->bhe", k[:, t], state)
        change = beta[:, t, :, None] * (v[:, t] - old)
        state = 0.9 * state + jnp.einsum("bhd,bhe->bhde", k[:, t], change)
        outs.append(jnp.einsum("bhd,bhde->bhe", q[:, t], state))
    return jnp.stack(outs, 1)


@prog((1, 8), (P(None, "x"),) * 3, lambda r: (r.f(2, 16, 2, 4), r.f(2, 16, 2, 4), r.f(2, 16, 2, 4)))
def ring_flash_attention(q, k, v):
    @over((1, 8), (P(None, "x"),) * 3, P(None, "x"))
    def attend(q, k, v):
        here = lax.axis_index("x")
        top = q[..., :1] * 0 - 1e30
        total, acc = q[..., :1] * 0, q * 0
        for hop in range(8):
            there = (here - hop) % 8
            s = jnp.einsum("bqhd,bkhd->bqhk", q, k) * 0.5
            rows, cols = here * 2 + jnp.arange(2), there * 2 + jnp.arange(2)
            s = jnp.where((rows[:, None] >= cols[None])[None, :, None], s, -1e30)
            new = jnp.maximum(top, s.max(-1, keepdims=True))
            p, fix = jnp.exp(s - new), jnp.exp(top - new)
            total, acc, top = (
                total * fix + p.sum(-1, keepdims=True),
                acc * fix + jnp.einsum("bqhk,bkhd->bqhd", p, v),
                new,
            )
            if hop < 7:
                k, v = (lax.ppermute(y, "x", [(i, (i + 1) % 8) for i in range(8)]) for y in (k, v))
        return acc / total

    return attend(q, k, v)


@prog(
    (2, 4),
    (P("y"), P(), P(), P(), P()),
    lambda r: (r.f(4, 8, 8, 4), r.f(3, 3, 4, 8, s=0.2), r.f(3, 3, 8, 8, s=0.2), r.f(3, 3, 12, 4, s=0.2), r.f(4, 8)),
)
def unet_step(x, w_down, w_mid, w_up, time):
    def conv(y, w, stride=1):
        return lax.conv_general_dilated(y, w, (stride, stride), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))

    h = jax.nn.silu(conv(x, w_down, 2))
    h = h + jnp.concatenate([jnp.sin(time[:, :4]), jnp.cos(time[:, 4:])], -1)[:, None, None]
    h = jax.nn.silu(conv(h, w_mid)) + h
    up = jnp.repeat(jnp.repeat(h, 2, 1), 2, 2)
    return x - 0.1 * conv(jnp.concatenate([up, x], -1), w_up)


@prog(
    (8, 1),
    (P("y"), P(), P(), P(), P()),
    lambda r: (r.f(8, 6, 6, 8), r.f(5, 5, 1, 8, s=0.3), r.f(8, 16, s=0.3), r.f(16, 8, s=0.3), r.f(8)),
)
def convnext_block(x, depth, w1, w2, gamma):
    h = lax.conv_general_dilated(
        x, depth, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"), feature_group_count=8
    )
    h = h - h.mean(-1, keepdims=True)
    h = h / jnp.sqrt(h.var(-1, keepdims=True) + 1e-6)
    return x + gamma * (jax.nn.gelu(h @ w1) @ w2)


@prog((2, 4), (P("y"), P("x")), lambda r: (r.f(8, 6), r.f(16, 6)))
def vq_straight_through(z, book):
    far = (z**2).sum(-1)[:, None] - 2 * z @ book.T + (book**2).sum(-1)[None]
    code = jnp.argmin(far, -1)
    q = jax.nn.one_hot(code, 16) @ book
    commit = ((lax.stop_gradient(q) - z) ** 2).mean()
    use = jax.nn.one_hot(code, 16).mean(0)
    return z + lax.stop_gradient(q - z), commit, jnp.exp(-(use * jnp.log(use + 1e-10)).sum())


@prog((2, 4), (P("x"), P("y"), P("y")), lambda r: (r.f(16, 8), r.i(0, 16, 4, 6), r.i(0, 16, 4, 6)))
def vocab_parallel_lm(table, tokens, targets):
    @over((2, 4), (P("x"), P("y"), P("y")), P())
    def loss(table, tokens, targets):
        first = lax.axis_index("x") * 4
        own = (tokens >= first) & (tokens < first + 4)
        x = jnp.where(own[..., None], table[jnp.clip(tokens - first, 0, 3)], 0.0)
        x = lax.psum(x, "x")
        logits = x @ table.T
        top = lax.pmax(lax.stop_gradient(logits.max(-1)), "x")
        z = lax.psum(jnp.exp(logits - top[..., None]).sum(-1), "x")
        here = targets[..., None] == first + jnp.arange(4)
        hit = lax.psum(jnp.where(here, logits, 0.0).sum(-1), "x")
        return lax.pmean((jnp.log(z) + top - hit).mean(), "y")

    return loss(table, tokens, targets)


@prog(
    (2, 4),
    (P("y"), P(None, None, "x"), P(None, "x"), P()),
    lambda r: (r.f(4, 8), r.f(4, 8, 16, s=0.3), r.f(4, 16, 8, s=0.3), r.f(4, 8, m=1.0, s=0.1)),
)
def four_layer_tensor_parallel(x, w1, w2, gains):
    @over((2, 4), (P("y"), P(None, None, "x"), P(None, "x"), P()), P("y"), check_vma=False)
    def stack(x, w1, w2, gains):
        def layer(h, ws):
            a, b, g = ws
            n = h * lax.rsqrt((h**2).mean(-1, keepdims=True) + 1e-6) * g
            return h + lax.psum(jax.nn.silu(n @ a) @ b, "x"), jnp.abs(h).mean()

        return lax.scan(layer, x, (w1, w2, gains))[0]

    return stack(x, w1, w2, gains)


@prog((1, 8), (P("x"), P("x")), lambda r: (r.f(16, 16), r.f(16)))
def conjugate_gradient(m, b):
    @over((1, 8), (P("x"), P("x")), (P("x"), P()), check_vma=False)
    def solve(m, b):
        def times(v):
            return lax.psum_scatter(m.T @ (m @ lax.all_gather(v, "x", tiled=True)), "x", tiled=True) / 16 + 2.0 * v

        def dot(u, v):
            return lax.psum((u * v).sum(), "x")

        def body(state):
            n, x, r, p, rr = state
            q = times(p)
            a = rr / dot(p, q)
            x, r = x + a * p, r - a * q
            new = dot(r, r)
            return n + 1, x, r, r + new / rr * p, new

        start = (jnp.int32(0), b * 0, b, b, dot(b, b))
        _, x, *_, rr = lax.while_loop(lambda s: (s[0] < 4) & (s[4] > 1e-9), body, start)
        return x, rr

    return solve(m, b)


@prog(
    (2, 4),
    (P("y"), P(None, "x"), P("y"), P("x"), P("x")),
    lambda r: (
        r.i(-100, 100, 8, 16, dt="int8"),
        r.i(-100, 100, 16, 16, dt="int8"),
        r.pos(8),
        r.pos(16),
        r.i(-500, 500, 16),
    ),
)
def int8_linear_requantised(x, w, sx, sw, bias):
    acc = lax.dot_general(x, w, (((1,), (0,)), ((), ())), preferred_element_type=i32) + bias
    y = acc.astype(f32) * (sx[:, None] * sw[None] * 1e-3)
    y = jax.nn.relu(y)
    top = jnp.abs(y).max(-1, keepdims=True)
    scale = jnp.where(top > 0, top / 127.0, 1.0)
    return jnp.clip(jnp.round(y / scale), -128, 127).astype(i8), scale


@prog((1, 8), (P("x"),), lambda r: (r.f(8, 16),))
def ring_all_reduce(x):
    @over((1, 8), (P("x"),), P("x"))
    def reduce(x):
        here, x = lax.axis_index("x"), x.reshape(8, 2)
        ring = [(i, (i + 1) % 8) for i in range(8)]
        part = lax.dynamic_slice(x, (here, 0), (1, 2))
        for hop in range(1, 8):
            part = lax.ppermute(part, "x", ring) + lax.dynamic_slice(x, ((here - hop) % 8, 0), (1, 2))
        return part

    return reduce(x)


@prog((2, 2), (P("y", "x"), P("x")), lambda r: (r.pos(4, 6), r.pos(6)))
def sinkhorn(cost, target):
    k = jnp.exp(-cost / 0.5)
    b = target / target.sum()
    u, v = jnp.full((4,), 0.25), b
    for _ in range(3):
        u = 0.25 / (k @ v)
        v = b / (k.T @ u)
    plan = u[:, None] * k * v[None]
    return plan, (plan * cost).sum()


@prog((1, 2), (P("x"), P(), P(), P()), lambda r: (r.f(4, 6, 3), r.f(3, 12, s=0.4), r.f(4, 12, s=0.4), r.f(12)))
def gru_unrolled(x, wx, wh, b):
    h = jnp.zeros((4, 4))
    for t in range(6):
        zr, zh = x[:, t] @ wx + b, h @ wh
        r = jax.nn.sigmoid(zr[:, :4] + zh[:, :4])
        z = jax.nn.sigmoid(zr[:, 4:8] + zh[:, 4:8])
        h = (1 - z) * jnp.tanh(zr[:, 8:] + r * zh[:, 8:]) + z * h
    return h


@prog((8, 1), (P("y"), P("y"), P("y")), lambda r: (r.f(8, 6), r.f(8, 7), r.i(0, 2, 8, 6)))
def gae_advantages(reward, value, done):
    @over((8, 1), (P("y"),) * 3, P("y"), check_vma=False)
    def run(reward, value, done):
        alive = 1.0 - done.astype(f32)
        delta = reward + 0.99 * value[:, 1:] * alive - value[:, :-1]

        def step(a, now):
            d, go = now
            a = d + 0.95 * 0.99 * go * a
            return a, a

        return lax.scan(step, jnp.zeros((1,)), (delta.T, alive.T), reverse=True)[1].T

    a = run(reward, value, done)
    return (a - a.mean()) / (a.std() + 1e-8)


@prog((1, 8), (P("x"),), lambda r: (r.f(8, 6),))
def switched_by_rank(x):
    @over((1, 8), (P("x"),), P("x"), check_vma=False)
    def run(x):
        rank = lax.axis_index("x")
        y = lax.switch(rank % 3, [jnp.sin, lambda z: z * 2.0, lambda z: jnp.exp(-z)], x)
        return lax.cond(rank < 4, lambda z: z + lax.rev(z, (1,)), lambda z: z - 1.0, y)

    return run(x)


@prog(
    (2, 4),
    (P(), P("y"), P("y"), P(None, "x"), P(None, "x")),
    lambda r: (r.f(12, 8), r.i(0, 12, 24), r.i(0, 12, 24), r.f(8, 8, s=0.3), r.f(8, 8, s=0.3)),
)
def graph_attention_sum(nodes, src, dst, w, w_self):
    h = nodes @ w
    weight = jnp.exp(jnp.tanh((h[src] * h[dst]).sum(-1)))
    total = jax.ops.segment_sum(h[src] * weight[:, None], dst, num_segments=12)
    norm = jax.ops.segment_sum(weight, dst, num_segments=12)
    return jax.nn.elu(total / (norm[:, None] + 1e-6) + nodes @ w_self)


@prog((1, 8), (P("x"), P(), P()), lambda r: (r.f(16, 6), r.f(6, 6, s=0.3), r.f(3, 6)))
def kalman_filter(obs, a, h):
    @over((1, 8), (P("x"), P(), P()), P("x"), check_vma=False)
    def run(obs, a, h):
        mean, cov = jnp.zeros((2, 6)), jnp.eye(6)
        for t in range(2):
            mean, cov = mean @ a.T, a @ cov @ a.T + 0.1 * jnp.eye(6)
            s = h @ cov @ h.T + jnp.eye(3)
            d = jnp.diag(1.0 / jnp.sum(jnp.abs(s), -1))
            for _ in range(3):
                d = d @ (2 * jnp.eye(3) - s @ d)
            gain = cov @ h.T @ d
            mean = mean + (obs[:, 3 * t : 3 * t + 3] - mean @ h.T) @ gain.T
            cov = (jnp.eye(6) - gain @ h) @ cov
        return mean

    return run(obs, a, h)


@prog((1, 8), (P("x"),), lambda r: (r.f(8, 16),))
def short_time_spectrum(x):
    frames = jnp.stack([x[:, i : i + 8] for i in range(0, 9, 4)], 1)
    n = jnp.arange(8)
    window = 0.5 - 0.5 * jnp.cos(2 * jnp.pi * n / 8)
    angle = 2 * jnp.pi * n[:, None] * jnp.arange(5)[None] / 8
    re, im = (frames * window) @ jnp.cos(angle), (frames * window) @ -jnp.sin(angle)
    power = re**2 + im**2
    return jnp.log10(jnp.maximum(power, 1e-5)), jnp.arctan2(im, re)


@prog((2, 4), (P("y", "x"),), lambda r: (r.i(-50, 50, 8, 16),))
def integer_histogram(x):
    bins = jnp.clip((x + 50) // 10, 0, 9)
    counts = (bins[..., None] == jnp.arange(10)).astype(i32).sum((0, 1))
    cdf = jnp.cumsum(counts)
    level = (cdf[bins] * 255) // 128
    return level, counts, (x & 7) ^ (x >> 1)


@prog((1, 8), (P("x"), P(), P("x")), lambda r: (r.f(16, 4), r.f(4, 8), r.i(0, 8, 16)))
def moe_all_to_all(x, router, bias):
    @over((1, 8), (P("x"), P()), P("x"), check_vma=False)
    def run(x, router):
        gate = jax.nn.softmax(x @ router, -1)
        best = jnp.argmax(gate, -1)
        chosen = jax.nn.one_hot(best, 8)
        place = (jnp.tril(jnp.ones((2, 2)), -1) @ chosen * chosen).sum(-1)
        slots = chosen[..., None] * (place[:, None, None] == jnp.arange(2))
        sent = jnp.einsum("tes,td->esd", slots, x)
        got = lax.all_to_all(sent, "x", 0, 0, tiled=True)
        scale = 1.0 + lax.axis_index("x").astype(f32)
        back = lax.all_to_all(jnp.tanh(got * scale), "x", 0, 0, tiled=True)
        return jnp.einsum("tes,esd->td", slots, back) * gate.max(-1, keepdims=True)

    return run(x, router) + bias[:, None].astype(f32)


@prog((2, 4), (P("y", "x"), P("x", "y")), lambda r: (r.f(8, 8), r.f(8, 8)))
def cannon_like_matmul(a, b):
    @over((2, 4), (P("y", "x"), P("x", "y")), P("y"), check_vma=False)
    def dot(a, b):
        total = jnp.zeros((4, 8))
        for hop in range(2):
            part = lax.psum(a @ b, "x")
            column = (lax.axis_index("y") + hop) % 2
            total = lax.dynamic_update_slice(total, part, (0, column * 4))
            b = lax.ppermute(b, "y", [(0, 1), (1, 0)])
        return total

    return dot(a, b)


@prog((2, 4), (P("x"), P("y"), P("y")), lambda r: (r.f(16, 8, s=0.5), r.i(0, 16, 4, 5), r.f(4, 5)))
def bag_of_words_ranking(table, ids, score):
    x = jax.nn.one_hot(ids, 16) @ table
    weight = jax.nn.softmax(jnp.where(ids > 0, score, -1e4), -1)
    pooled = (weight[..., None] * x).sum(1)
    order = jnp.argsort(-(pooled @ table.T), -1)
    gain = 1.0 / jnp.log2(2.0 + jnp.arange(16))
    return order[:, :4], (gain[None] * (order == ids[:, :1])).sum(-1)


@prog((1, 8), (P("x"), P("x"), P()), lambda r: (r.f(16, 6), r.f(16), r.f(6)))
def newton_logistic(x, y, w):
    label = (y > 0).astype(f32)

    @over((1, 8), (P("x"), P("x"), P()), P(), check_vma=False)
    def fit(x, label, w):
        def step(_, w):
            p = jax.nn.sigmoid(x @ w)
            grad = lax.psum(x.T @ (p - label), "x") + 0.1 * w
            curve = lax.psum((x**2 * (p * (1 - p))[:, None]).sum(0), "x") + 0.1
            return w - 0.5 * grad / curve

        return lax.fori_loop(0, 3, step, w)

    return fit(x, label, w)


@prog(
    (2, 4),
    (P("y", None, "x"), P("y", None, "x"), P("y")),
    lambda r: (r.b(2, 6, 8, 8), r.b(2, 6, 4, 8), r.i(0, 40, 2, 6)),
)
def rope_soft_capped(q, k, position):
    angle = position[..., None].astype(f32) * (1000.0 ** (-jnp.arange(4) / 4.0))
    cos, sin = (jnp.concatenate([y, y], -1)[:, :, None] for y in (jnp.cos(angle), jnp.sin(angle)))

    def turn(y):
        a, b = jnp.split(y.astype(f32), 2, axis=-1)
        return y.astype(f32) * cos + jnp.concatenate([-b, a], -1) * sin

    q, k = turn(q).reshape(2, 6, 4, 2, 8), turn(k)
    s = jnp.einsum("btkgd,bskd->bkgts", q, k)
    s = 20.0 * jnp.tanh(s / 20.0)
    return jnp.where(position[:, None, None, :, None] >= position[:, None, None, None], s, -1e9).astype(bf16)


@prog((8, 1), (P("y"), P("y")), lambda r: (r.f(8, 5), r.f(8, 5)))
def soft_dtw(a, b):
    cost = (a[:, :, None] - b[:, None, :]) ** 2
    rows = [[jnp.full((8,), 1e6)] * 6 for _ in range(6)]
    rows[0][0] = jnp.zeros((8,))
    for i in range(1, 4):
        for j in range(1, 4):
            near = jnp.stack([rows[i - 1][j - 1], rows[i - 1][j], rows[i][j - 1]])
            rows[i][j] = cost[:, i - 1, j - 1] - 0.5 * jax.nn.logsumexp(-near / 0.5, 0)
    return rows[3][3]


@prog(
    (2, 2), (P("y"), P(None, "x"), P("x"), P()), lambda r: (r.f(4, 12), r.f(12, 8, s=0.3), r.f(8, 12, s=0.3), r.f(4, 6))
)
def vae_elbo(x, enc, dec, noise):
    mu, log_var = jnp.split(x @ enc, 2, -1)
    z = mu + jnp.exp(0.5 * log_var) * noise[:, :4]
    logits = jnp.concatenate([z, jnp.ones_like(z)], -1) @ dec
    fit = (jnp.maximum(logits, 0) - logits * jax.nn.sigmoid(x) + jnp.log1p(jnp.exp(-jnp.abs(logits)))).sum(-1)
    kl = -0.5 * (1 + log_var - mu**2 - jnp.exp(log_var)).sum(-1)
    return (fit + kl).mean(), z


@prog((1, 8), (P(None, "x"), P()), lambda r: (r.f(3, 16, 6), r.f(3, 6, 6, s=0.3)))
def associative_gated_scan(x, w):
    gate = jax.nn.sigmoid(jnp.einsum("bnd,bde->bne", x, w))
    a, b = gate, (1 - gate) * x
    step = 1
    for _ in range(2):
        a_before = jnp.pad(a, ((0, 0), (0, 0), (step, 0)), constant_values=1.0)[..., :6]
        b_before = jnp.pad(b, ((0, 0), (0, 0), (step, 0)))[..., :6]
        a, b = a * a_before, b + a * b_before
        step *= 2
    return b


@prog((2, 4), (P("y"), P(None, "x"), P("x")), lambda r: (r.b(8, 16), r.b(16, 32, s=0.25), r.b(32, 4, s=0.25)))
def mlp_mse_step(x, w1, w2):
    def loss(ws):
        h = jax.nn.relu(x @ ws[0])
        return (((h @ ws[1]).astype(f32) - 1.0) ** 2).mean()

    value, grads = jax.value_and_grad(loss)((w1, w2))
    return value, *[(w - 0.5 * g).astype(bf16) for w, g in zip((w1, w2), grads, strict=True)]


@prog(
    (2, 4),
    (P("y"), P(), P(), P(), P()),
    lambda r: (r.f(4, 6, 8), r.f(4, 8, 8, s=0.3), r.f(4, 8, 16, s=0.3), r.f(4, 16, 8, s=0.3), r.f(4, 8, m=1.0, s=0.1)),
)
def four_layer_scan(x, w_mix, w_in, w_out, gain):
    def layer(h, ws):
        mix, a, b, g = ws
        n = h * lax.rsqrt((h**2).mean(-1, keepdims=True) + 1e-6) * g
        s = jax.nn.softmax(jnp.einsum("btd,de,bse->bts", n, mix, n) / 3.0, -1)
        h = h + s @ n
        return h + jax.nn.relu(h @ a) @ b, None

    return lax.scan(layer, x, (w_mix, w_in, w_out, gain))[0]


@prog((1, 8), (P(None, "x"), P()), lambda r: (r.f(6, 16), r.pos(6)))
def exponential_averages(x, w):
    def step(carry, now):
        mean, sq = carry
        value, weight = now
        mean = 0.8 * mean + 0.2 * value * weight
        sq = 0.9 * sq + 0.1 * (value - mean) ** 2
        return (mean, sq), (value - mean) / jnp.sqrt(sq + 0.1)

    state, outs = (jnp.zeros(16), jnp.ones(16)), []
    for t in range(6):
        state, out = step(state, (x[t], w[t]))
        outs.append(out)
    return jnp.stack(outs), state[1]


@prog((8, 1), (P("y"), P()), lambda r: (r.f(8, 6), r.f(6, 6, s=0.4)))
def fixed_point_while(x, w):
    w = 0.5 * (w + w.T) / 3.0

    def body(state):
        n, z, _ = state
        new = jnp.tanh(x @ w + z @ w)
        return n + 1, new, jnp.abs(new - z).max()

    n, z, gap = lax.while_loop(
        lambda s: (s[0] < 6) & (s[2] > 1e-7), body, (jnp.int32(0), jnp.zeros((8, 6)), jnp.float32(1))
    )
    return z, n, gap


@prog((2, 4), (P("y", "x"), P("y", "x")), lambda r: (r.f(8, 16), r.f(8, 16)))
def loop_of_stencils(u, force):
    def body(i, u):
        pad = jnp.pad(u, 1)
        lap = pad[:-2, 1:-1] + pad[2:, 1:-1] + pad[1:-1, :-2] + pad[1:-1, 2:] - 4 * u
        return u + 0.1 * lap + jnp.where(i < 2, 0.05, 0.0) * force

    for i in range(3):
        u = body(i, u)
    return u, (u**2).mean()


@prog((1, 8), (P("x"), P("x"), P("x")), lambda r: (r.f(16, 4), r.f(16, 4), r.i(0, 4, 16)))
def barlow_and_supcon(a, b, label):
    a, b = ((y - y.mean(0)) / jnp.sqrt(y.var(0) + 1e-4) for y in (a, b))
    c = a.T @ b / 16
    off = 1 - jnp.eye(4)
    barlow = ((jnp.diagonal(c) - 1) ** 2).sum() + 0.01 * (c**2 * off).sum()
    same = (label[:, None] == label[None]).astype(f32) * (1 - jnp.eye(16))
    s = a @ b.T / 2.0
    logp = s - jax.nn.logsumexp(jnp.where(jnp.eye(16) > 0, -1e9, s), -1, keepdims=True)
    return barlow, -(same * logp).sum(-1) / jnp.maximum(same.sum(-1), 1)


@prog((2, 4), (P("y", "x"), P("x")), lambda r: (r.i(-127, 128, 8, 16, dt="int8"), r.i(-127, 128, 16, 8, dt="int8")))
def int8_blocks_of_scale(x, w):
    blocks = x.reshape(8, 4, 4).astype(f32)
    top = jnp.abs(blocks).max(-1, keepdims=True)
    exponent = jnp.exp2(jnp.floor(jnp.log2(jnp.maximum(top, 1.0))) - 2.0)
    q = jnp.clip(jnp.round(blocks / exponent), -7, 7) * exponent
    return q.reshape(8, 16) @ w.astype(f32), exponent[..., 0]


@prog(
    (2, 2), (P("y", None, "x"), P("y", None, "x"), P("y")), lambda r: (r.f(2, 6, 4, 8), r.f(2, 6, 4, 8), r.f(2, 6, 6))
)
def retention_decay(q, k, bias):
    gamma = 1.0 - 2.0 ** (-2.0 - jnp.arange(4.0))
    gap = jnp.arange(6)[:, None] - jnp.arange(6)[None]
    decay = jnp.where(gap >= 0, gamma[:, None, None] ** gap.astype(f32), 0.0)
    s = jnp.einsum("bqhd,bkhd->bhqk", q, k) * decay + bias[:, None]
    return s / jnp.maximum(jnp.abs(s.sum(-1, keepdims=True)), 1.0)


@prog((1, 8), (P("x"), P("x")), lambda r: (r.f(32, 3), r.f(32, 3)))
def procrustes_power(a, b):
    a, b = a - a.mean(0), b - b.mean(0)
    h = a.T @ b
    x = h / jnp.sqrt((h**2).sum())
    for _ in range(4):
        x = 1.5 * x - 0.5 * x @ x.T @ x
    return ((a @ x - b) ** 2).sum(-1), x


@prog((2, 4), (P("y"), P("y"), P("x")), lambda r: (r.f(8, 8), r.i(0, 5, 8), r.f(8, 12, s=0.3)))
def dropout_and_clip(x, seed, w):
    mask = ((seed[:, None] * 7 + jnp.arange(8)[None] * 3) % 5) != 0
    h = jnp.where(mask, x / 0.8, 0.0) @ w
    norm = jnp.sqrt((h**2).sum(-1, keepdims=True))
    h = h * jnp.minimum(1.0, 2.0 / jnp.maximum(norm, 1e-6))
    return h, (norm > 2.0).sum()


@prog((2, 4), (P("y"), P(None, "x"), P("x", None)), lambda r: (r.f(4, 8), r.f(8, 8, s=0.4), r.f(8, 8, s=0.4)))
def megatron_shard_map_grad(x, w1, w2):
    @over((2, 4), (P("y"), P(None, "x"), P("x", None)), P("y"))
    def forward(x, w1, w2):
        return lax.psum(jnp.tanh(x @ w1) @ w2, "x")

    return jax.grad(lambda ws: (forward(x, *ws) ** 2).mean())((w1, w2))


@prog((2, 4), (P(("y", "x")),), lambda r: (r.f(16, 6),))
def reduce_scatter_then_gather(g):
    @over((2, 4), (P(("y", "x")),), (P(("y", "x")), P()), check_vma=False)
    def run(g):
        flat = g.reshape(12)
        part = lax.psum_scatter(jnp.pad(flat, (0, 4)), "x", scatter_dimension=0, tiled=True)
        part = lax.psum(part, "y") / 8.0
        norm = lax.psum((part**2).sum(), "x")
        part = part * lax.rsqrt(norm + 1e-6)
        whole = lax.all_gather(part, "x", tiled=True)[:12].reshape(2, 6)
        return g - 0.1 * whole, norm

    return run(g)


@prog((1, 8), (P("x"),), lambda r: (r.f(16, 4),))
def exclusive_prefix_over_devices(x):
    @over((1, 8), (P("x"),), (P("x"), P("x")))
    def run(x):
        here = lax.axis_index("x")
        total = x.sum(0)
        for hop in (1, 2, 4):
            moved = lax.ppermute(total, "x", [(i, i + hop) for i in range(8 - hop)])
            total = jnp.where(here >= hop, total + moved, total)
        before = total - x.sum(0)
        return jnp.cumsum(x, 0) + before, jnp.where(here % 2 == 0, x, -x)

    return run(x)


@prog((2, 4), (P("y", "x"), P()), lambda r: (r.f(8, 8), r.f(8)))
def gram_cholesky_steps(x, b):
    a = x.T @ x + 8 * jnp.eye(8)
    rows = []
    for i in range(3):
        col = a[:, i] / jnp.sqrt(a[i, i])
        a = a - col[:, None] * col[None]
        rows.append(col)
    low = jnp.stack(rows, 1)
    return low.T @ b, low


@prog((2, 4), (P("y", None, "x"), P("x"), P()), lambda r: (r.b(2, 8, 16), r.b(16, 16, s=0.25), r.b(4, 16)))
def causal_conv_gate(x, w, taps):
    past = jnp.pad(x, ((0, 0), (3, 0), (0, 0)))
    mixed = sum(past[:, i : i + 8] * taps[i] for i in range(4))
    return (jax.nn.silu(mixed) * jax.nn.sigmoid(x)) @ w


@prog((1, 8), (P("x"), P()), lambda r: (r.f(8, 12), r.i(0, 12, 5)))
def embedding_bag_mean(table, ids):
    rows = table.T[ids]
    return rows.max(0) - rows.min(0), jnp.sort(rows, 0)[2]
