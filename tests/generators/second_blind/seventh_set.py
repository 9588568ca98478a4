"""Programs of a seventh set, whose author had read neither the diagnosis nor its tests: of other subjects."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
from jax import lax, shard_map
from jax.sharding import PartitionSpec as P

from tests.generators.second_blind.fourth_set import bf16, f32, get_mesh, i8, i32, prog


def on(mesh, inside, outside, **options):
    """Maps a function over the shards of a mesh."""
    return partial(shard_map, mesh=get_mesh(mesh), in_specs=inside, out_specs=outside, **options)


def ring(n, by=1):
    """Returns the pairs of a ring."""
    return [(i, (i + by) % n) for i in range(n)]


@prog(
    (2, 4),
    (P("y", None, "x"), P("y", None, "x"), P("y", None, "x")),
    lambda r: (r.b(2, 16, 4, 8), r.b(2, 16, 4, 8), r.b(2, 16, 4, 8)),
)
def sliding_window_alibi(q, k, v):
    pos = jnp.arange(16)
    gap = pos[:, None] - pos[None, :]
    slopes = 2.0 ** (-2.0 * jnp.arange(1, 5))
    logits = jnp.einsum("bqhd,bkhd->bhqk", q, k).astype(f32) / 8**0.5
    logits = logits - slopes[:, None, None] * gap
    logits = jnp.where((gap >= 0) & (gap < 5), logits, -1e30)
    return jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(logits, axis=-1).astype(q.dtype), v)


@prog(
    (1, 8),
    (P("x"), P(None, None, "x"), P(None, None, "x"), P(), P()),
    lambda r: (r.f(8, 2, 4), r.f(12, 4, 8, 4), r.f(12, 4, 8, 4), r.i(0, 12, 2, 3), r.i(1, 13, 2)),
)
def paged_attention(q, k_pages, v_pages, table, lengths):
    k = k_pages[table].reshape(2, 12, 8, 4)
    v = v_pages[table].reshape(2, 12, 8, 4)
    scores = jnp.einsum("hbd,bshd->hbs", q, k) * 0.5
    live = jnp.arange(12)[None, :] < lengths[:, None]
    scores = jnp.where(live[None], scores, -jnp.inf)
    probs = jnp.exp(scores - scores.max(-1, keepdims=True))
    return jnp.einsum("hbs,bshd->hbd", probs / probs.sum(-1, keepdims=True), v)


@prog((2, 4), (P("y"), P(), P("x"), P("x")), lambda r: (r.f(8, 16), r.f(16, 4), r.f(4, 16, 8, s=0.3), r.f(4, 8, 16)))
def top_two_experts(x, router, w_in, w_out):
    probs = jax.nn.softmax(x @ router)
    weight, index = lax.top_k(probs, 2)
    weight = weight / weight.sum(-1, keepdims=True)
    combine = (jax.nn.one_hot(index, 4) * weight[..., None]).sum(1)
    hidden = jax.nn.silu(jnp.einsum("td,edf->etf", x, w_in))
    out = jnp.einsum("etf,efd,te->td", hidden, w_out, combine)
    load = 4 * (probs.mean(0) * jax.nn.one_hot(index[:, 0], 4).mean(0)).sum()
    return out, load


@prog((2, 4), (P("y", None, "x"), P("y")), lambda r: (r.f(4, 6, 16, s=3.0), r.i(-1, 16, 4, 6)))
def z_loss_with_ignored(logits, targets):
    mask = targets >= 0
    log_z = jax.nn.logsumexp(logits, axis=-1)
    picked = jnp.where(targets[..., None] == jnp.arange(16), logits, 0.0).sum(-1)
    per_token = jnp.where(mask, log_z - picked + 1e-2 * log_z**2, 0.0)
    correct = (logits.argmax(-1) == targets) & mask
    return per_token.sum() / mask.sum(), correct.sum(), per_token


@prog((1, 8), (P("x"), P("x")), lambda r: (r.f(8, 6), r.f(8, 6)))
def shampoo_root(w, g):
    left = g.T @ g + 0.5 * jnp.eye(6)
    scale = 1.0 / jnp.trace(left)
    y, z = left * scale, jnp.eye(6)
    for _ in range(4):
        t = 0.5 * (3.0 * jnp.eye(6) - z @ y)
        y, z = y @ t, t @ z
    return w - 0.1 * g @ (z * jnp.sqrt(scale))


@prog(
    (2, 4),
    (P("y"), P(None, "x"), P(None, "x")),
    lambda r: (r.f(4, 16), r.i(-128, 128, 8, 16, dt="int8"), r.pos(4, 16)),
)
def int4_unpacked_matmul(x, packed, scales):
    wide = packed.astype(i32)
    low, high = (wide & 15) - 8, ((wide >> 4) & 15) - 8
    codes = jnp.stack([low, high], axis=1).reshape(16, 16)
    w = codes.reshape(4, 4, 16).astype(f32) * scales[:, None, :]
    return x @ w.reshape(16, 16)


@prog((8, 1), (P("y"), P(), P(), P()), lambda r: (r.f(8, 12, 6), r.f(3, 2, 6, 12, s=0.3), r.f(3, 6, 6, s=0.3), r.f(6)))
def wavenet_stack(x, gated, mix, bias):
    skip = 0.0
    for layer, dilation in enumerate((1, 2, 4)):
        h = lax.conv_general_dilated(
            x, gated[layer], (1,), [(dilation, 0)], rhs_dilation=(dilation,), dimension_numbers=("NWC", "WIO", "NWC")
        )
        a, b = jnp.split(h, 2, axis=-1)
        h = (jnp.tanh(a) * jax.nn.sigmoid(b)) @ mix[layer]
        x, skip = x + h, skip + h
    return jax.nn.relu(skip + bias)


@prog((8, 1), (P("y"), P(), P()), lambda r: (r.f(8, 4, 4, 6), r.f(3, 3, 6, 4, s=0.3), r.f(2, 2, 4, 3, s=0.3)))
def deconvolution_head(x, up, last):
    x = lax.conv_transpose(x, up, (2, 2), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
    x = jax.nn.leaky_relu(x, 0.2)
    x = lax.conv_transpose(x, last, (2, 2), "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC"))
    return jnp.tanh(x)


@prog((2, 4), (P("y", None, None, "x"),), lambda r: (r.f(4, 8, 8, 8),))
def pooled_pyramid(x):
    peaks = lax.reduce_window(x, -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
    means = lax.reduce_window(x, 0.0, lax.add, (1, 3, 3, 1), (1, 2, 2, 1), "SAME") / 9.0
    both = peaks - means
    squeeze = both.mean((1, 2))
    return both * jax.nn.sigmoid(squeeze)[:, None, None, :], x.max((1, 2))


@prog(
    (1, 8),
    (P(None, None, "x"), P("x"), P("x"), P("x")),
    lambda r: (r.f(2, 7, 8), r.pos(8, 3), r.f(8, 3), r.f(8, 3, 2)),
)
def diagonal_state_space(u, decay, freq, out):
    @on((1, 8), (P(None, None, "x"), P("x"), P("x"), P("x")), P(None, None, "x"), check_vma=False)
    def run(u, decay, freq, out):
        keep = jnp.exp(-decay)
        a_re, a_im = keep * jnp.cos(freq), keep * jnp.sin(freq)

        def step(state, u_t):
            re, im = state
            re, im = a_re * re - a_im * im + u_t[..., None], a_re * im + a_im * re
            return (re, im), 2.0 * (re * out[..., 0] - im * out[..., 1]).sum(-1)

        zero = jnp.zeros((2, 1, 3))
        return lax.scan(step, (zero, zero), u.transpose(1, 0, 2))[1].transpose(1, 0, 2)

    return run(u, decay, freq, out)


@prog((1, 8), (P("x"), P("x")), lambda r: (r.f(16, 8), r.f(16, 8)))
def wave_on_a_torus(now, before):
    @on((1, 8), (P("x"), P("x")), (P("x"), P("x"), P()))
    def run(now, before):
        for _ in range(3):
            up = lax.ppermute(now[-1:], "x", ring(8))
            down = lax.ppermute(now[:1], "x", ring(8, -1))
            tall = jnp.concatenate([up, now, down])
            lap = tall[2:] + tall[:-2] + jnp.roll(now, 1, 1) + jnp.roll(now, -1, 1) - 4.0 * now
            now, before = 2.0 * now - before + 0.1 * lap, now
        return now, before, lax.psum((now**2).sum(), "x")

    return run(now, before)


@prog((8, 1), (P("y"), P("y"), P("y")), lambda r: (r.f(8, 3, 10), r.f(8, 3), r.i(0, 10, 8, 3, 4)))
def beam_search_step(logits, scores, history):
    @on((8, 1), (P("y"),) * 3, P("y"))
    def step(logits, scores, history):
        total = scores[..., None] + jax.nn.log_softmax(logits)
        best, flat = lax.top_k(total.reshape(1, 30), 3)
        parent, token = flat // 10, flat % 10
        kept = jnp.take_along_axis(history, parent[..., None], axis=1)
        return jnp.concatenate([kept[..., 1:], token[..., None]], -1), best, (token == 0).any(-1)

    return step(logits, scores, history)


@prog((8, 1), (P("y"), P()), lambda r: (r.f(8, 12, s=2.0), r.f(1, m=1.0, s=0.1)))
def nucleus_filter(logits, temperature):
    probs = jax.nn.softmax(logits / temperature, -1)
    ranked = -jnp.sort(-probs, -1)
    before = jnp.cumsum(ranked, -1) - ranked
    last = jnp.where(before < 0.8, ranked, 2.0).min(-1, keepdims=True)
    kept = jnp.where(probs >= last, probs, 0.0)
    return kept / kept.sum(-1, keepdims=True), (probs >= last).sum(-1)


@prog(
    (2, 4),
    (P("y"), P("y"), P("y"), P(None, "x"), P(None, "x"), P("x")),
    lambda r: (
        r.b(4, 6, 16),
        r.b(4, 10, 16),
        r.i(3, 11, 4),
        r.b(16, 16, s=0.2),
        r.b(16, 32, s=0.2),
        r.b(16, 16, s=0.2),
    ),
)
def cross_attention_padded(x, memory, lengths, wq, wkv, wo):
    q = (x @ wq).reshape(4, 6, 4, 4)
    kv = (memory @ wkv).reshape(4, 10, 4, 2, 4)
    k, v = kv[..., 0, :], kv[..., 1, :]
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k, preferred_element_type=f32) * 0.5
    pad = jnp.arange(10)[None] >= lengths[:, None]
    probs = jax.nn.softmax(scores + pad[:, None, None] * -1e9, -1).astype(bf16)
    return x + jnp.einsum("bhqk,bkhd->bqhd", probs, v).reshape(4, 6, 16) @ wo


@prog((2, 4), (P("y", "x"),) * 4, lambda r: (r.f(8, 16), r.f(8, 16), r.f(8, 16, s=0.1), r.pos(8, 16)))
def lamb_step(w, g, m, v):
    m = 0.9 * m + 0.1 * g
    v = 0.99 * v + 0.01 * jnp.square(g)
    update = m / (jnp.sqrt(v) + 1e-6) + 0.01 * w
    w_norm, u_norm = jnp.linalg.norm(w), jnp.linalg.norm(update)
    trust = jnp.where((w_norm > 0) & (u_norm > 0), w_norm / u_norm, 1.0)
    return w - 0.05 * jnp.clip(trust, 0.0, 10.0) * update, m, v


@prog(
    (2, 4),
    ({"emb": P("x"), "up": P(None, "x"), "down": P("x")}, P("y"), P("y")),
    lambda r: (
        {"emb": r.f(16, 8), "up": r.f(8, 32, s=0.3), "down": r.f(32, 8, s=0.2)},
        r.i(0, 16, 4, 5),
        r.i(0, 16, 4, 5),
    ),
)
def tied_language_step(params, tokens, targets):
    def loss(p):
        h = jnp.take(p["emb"], tokens, axis=0)
        h = h + jax.nn.gelu(h @ p["up"]) @ p["down"]
        logits = h @ p["emb"].T
        return -(jax.nn.log_softmax(logits) * jax.nn.one_hot(targets, 16)).sum(-1).mean()

    value, grads = jax.value_and_grad(loss)(params)
    return value, jax.tree.map(lambda p, g: p - 0.1 * g, params, grads)


@prog((1, 8), (P("x"), P("x"), P("x")), lambda r: (r.f(64, 4, s=0.4), r.f(16, 8), r.f(16, 4)))
def fully_sharded_step(w, x, y):
    @on((1, 8), (P("x"),) * 3, (P("x"), P()))
    def step(w, x, y):
        def loss(shard):
            full = lax.all_gather(shard, "x", tiled=True).reshape(8, 32)
            out = (jnp.tanh(x @ full) ** 2).reshape(2, 4, 8).sum(-1)
            return ((out - y) ** 2).sum() / 16

        value, grad = jax.value_and_grad(loss)(w)
        return w - 0.1 * grad, lax.psum(value, "x")

    return step(w, x, y)


@prog((1, 8), (P("x"), P()), lambda r: (r.f(16, 8), r.f(8)))
def power_iteration_until(m, v):
    @on((1, 8), (P("x"), P()), (P(), P(), P()), check_vma=False)
    def run(m, v):
        def body(state):
            n, v, _ = state
            new = lax.psum(m.T @ (m @ v), "x")
            top = jnp.sqrt((new**2).sum())
            new = new / top
            return n + 1, new, jnp.abs(new - v).sum()

        n, v, _ = lax.while_loop(lambda s: (s[2] > 0.05) & (s[0] < 20), body, (0, v / jnp.sqrt((v**2).sum()), 9.0))
        return v, n, lax.psum(((m @ v) ** 2).sum(), "x")

    return run(m, v)


@prog((2, 4), (P(("y", "x")), P(), P()), lambda r: (r.f(16, 6), r.f(6), r.f(1, s=100.0)))
def loss_scaled_update(x, w, scale):
    @on((2, 4), (P(("y", "x")), P(), P()), (P(), P(), P()), check_vma=False)
    def run(x, w, scale):
        grad = lax.pmean(lax.pmean(jnp.tanh(x * w).mean(0), "x"), "y") * scale
        norm = jnp.sqrt((grad**2).sum())

        def apply(w):
            return w - 0.1 * grad / scale, scale * 2.0

        def skip(w):
            return w, scale * 0.5

        new, scale_after = lax.cond(norm < 50.0, apply, skip, w)
        return new, scale_after, norm

    return run(x, w, scale)


@prog((1, 8), (P("x"),), lambda r: (r.i(-1000, 1000, 32),))
def odd_even_merge_sort(x):
    @on((1, 8), (P("x"),), P("x"), check_vma=False)
    def run(x):
        here, x = lax.axis_index("x"), jnp.sort(x)
        for phase in range(8):
            lower = here % 2 == phase % 2
            pairs = [(i, i + 1) for i in range(phase % 2, 7, 2)]
            swap = pairs + [(b, a) for a, b in pairs]
            paired = (here >= phase % 2) & (jnp.where(lower, here + 1, here - 1) < 8)
            both = jnp.sort(jnp.concatenate([x, lax.ppermute(x, "x", swap)]))
            x = jnp.where(paired, jnp.where(lower, both[:4], both[4:]), x)
        return x

    return run(x)


@prog((1, 8), (P("x"), P()), lambda r: (r.f(64, 4), r.f(3, 4)))
def nearest_neighbours(base, queries):
    @on((1, 8), (P("x"), P()), (P(), P()), check_vma=False)
    def search(base, queries):
        far = ((queries[:, None] - base[None]) ** 2).sum(-1)
        near, index = lax.top_k(-far, 2)
        index = index + lax.axis_index("x") * 8
        near, index = (lax.all_gather(y, "x", axis=1, tiled=True) for y in (near, index))
        best, place = lax.top_k(near, 3)
        return -best, jnp.take_along_axis(index, place, axis=1)

    return search(base, queries)


@prog(
    (2, 4),
    (P("x"), P("y"), P("y"), P(), P(None, "x")),
    lambda r: (r.f(12, 8), r.i(0, 12, 20), r.i(0, 12, 20), r.f(8, 2), r.f(8, 8, s=0.3)),
)
def edge_softmax(nodes, src, dst, att, w):
    h = nodes @ w
    score = jax.nn.leaky_relu((h @ att)[src, 0] + (h @ att)[dst, 1], 0.2)
    top = jnp.maximum(jax.ops.segment_max(score, dst, num_segments=12), -1e9)
    e = jnp.exp(score - top[dst])
    alpha = e / jax.ops.segment_sum(e, dst, num_segments=12)[dst]
    return jax.ops.segment_sum(alpha[:, None] * h[src], dst, num_segments=12), alpha


@prog((8, 1), (P("y"), P("y")), lambda r: (r.pos(8, 6, 4), r.f(8, 6)))
def greedy_suppression(boxes, scores):
    corner = boxes[..., :2]
    end = corner + boxes[..., 2:]
    low = jnp.maximum(corner[:, :, None], corner[:, None])
    high = jnp.minimum(end[:, :, None], end[:, None])
    inter = jnp.prod(jnp.maximum(high - low, 0.0), -1)
    area = jnp.prod(boxes[..., 2:], -1)
    iou = inter / (area[:, :, None] + area[:, None] - inter)
    keep, left = jnp.zeros((8, 6), bool), scores
    for _ in range(3):
        best = jax.nn.one_hot(jnp.argmax(left, -1), 6)
        overlap = jnp.einsum("bi,bij->bj", best, iou)
        keep = keep | ((best > 0) & (left > -100.0))
        left = jnp.where((overlap > 0.3) | (best > 0), -1000.0, left)
    return keep, iou


@prog((8, 1), (P("y"), P("y")), lambda r: (r.f(8, 5, 5, 4), r.pos(8, 6, 2)))
def bilinear_sample(image, where):
    @on((8, 1), (P("y"), P("y")), P("y"))
    def sample(image, where):
        spot = where * 3.0
        corner = jnp.floor(spot).astype(i32)
        frac = spot - corner
        flat, out = image.reshape(1, 25, 4), 0.0
        for dy in (0, 1):
            for dx in (0, 1):
                index = jnp.clip(corner[..., 0] + dy, 0, 4) * 5 + jnp.clip(corner[..., 1] + dx, 0, 4)
                wy = frac[..., 0] if dy else 1 - frac[..., 0]
                wx = frac[..., 1] if dx else 1 - frac[..., 1]
                out = out + (wy * wx)[..., None] * jnp.take_along_axis(flat, index[..., None], axis=1)
        return out

    return sample(image, where)


def rms_norm(x, gain):
    """Returns rows of a mean square of one, times a gain."""
    wide = x.astype(f32)
    return (wide * lax.rsqrt((wide**2).mean(-1, keepdims=True) + 1e-5)).astype(x.dtype) * gain


@prog(
    (1, 8),
    (
        {"gains": P(), "qkv": P(None, None, "x"), "out": P(None, "x"), "up": P(None, None, "x"), "down": P(None, "x")},
        P(),
    ),
    lambda r: (
        {
            "gains": r.b(4, 2, 512, s=0.1) + 1,
            "qkv": r.b(4, 512, 768, s=0.04),
            "out": r.b(4, 512, 512, s=0.04),
            "up": r.b(4, 512, 1024, s=0.04),
            "down": r.b(4, 1024, 512, s=0.03),
        },
        r.b(1, 8, 512),
    ),
)
def decoder_of_four_layers(params, x):
    causal = jnp.tril(jnp.ones((8, 8), bool))
    for i in range(4):
        h = rms_norm(x, params["gains"][i, 0])
        # Of each device: two query heads, one key head and one value head of 32, in this order.
        qkv = (h @ params["qkv"][i]).reshape(1, 8, 8, 96)
        q, k, v = qkv[..., :64].reshape(1, 8, 8, 2, 32), qkv[..., 64:80], qkv[..., 80:]
        k, v = jnp.concatenate([k, k], -1), jnp.concatenate([v, v], -1)
        s = jnp.einsum("btkgd,bskd->bkgts", q, k).astype(f32) * 32**-0.5
        p = jax.nn.softmax(jnp.where(causal, s, -1e9), -1).astype(bf16)
        x = x + jnp.einsum("bkgts,bskd->btkgd", p, v).reshape(1, 8, 512) @ params["out"][i]
        h = rms_norm(x, params["gains"][i, 1])
        x = x + jax.nn.gelu(h @ params["up"][i]) @ params["down"][i]
    return x


@prog((8, 1), (P("y"), P("y")), lambda r: (r.f(8, 8), r.f(8, 8, s=0.5)))
def micro_batched_pipeline(x, w):
    @on((8, 1), (P(), P("y")), P("y"), check_vma=False)
    def run(x, w):
        stage = lax.axis_index("y")

        def tick(carry, t):
            held, outs = carry
            fed = lax.dynamic_index_in_dim(x, jnp.clip(t, 0, 3), keepdims=False)
            made = jax.nn.gelu(w[0] * jnp.where(stage == 0, fed, held))
            outs = jnp.where((stage == 7) & (jnp.arange(4) == t - 7)[:, None], made, outs)
            return (lax.ppermute(made, "y", ring(8)), outs), None

        (_, outs), _ = lax.scan(tick, (jnp.zeros(8), jnp.zeros((4, 8))), jnp.arange(11))
        return lax.psum(outs, "y")[None]

    return run(x, w).sum(0)


@prog(
    (2, 4), (P("y"), P(None, "x"), P("x"), P()), lambda r: (r.f(4, 9, 6), r.f(6, 32, s=0.4), r.f(8, 8, s=0.4), r.f(32))
)
def peephole_lstm(x, wx, peep, b):
    def cell(carry, x_t):
        h, c = carry
        i, f, g, o = jnp.split(x_t @ wx + b + jnp.tile(h @ peep, (1, 4)), 4, axis=-1)
        c = jax.nn.sigmoid(f + 1.0) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
        h = jax.nn.sigmoid(o) * jnp.tanh(c)
        return (h, c), h

    carry, hs = (jnp.zeros((4, 8)), jnp.zeros((4, 8))), []
    for t in range(3):
        carry, h = cell(carry, x[:, t])
        hs.append(h)
    return jnp.stack(hs, 1), carry[1]


@prog((2, 4), (P("y", None, None, "x"), P("x")), lambda r: (r.f(8, 4, 4, 8), r.f(2, 8, m=1.0).T))
def synchronised_batch_norm(x, affine):
    @on((2, 4), (P("y", None, None, "x"), P("x")), (P("y", None, None, "x"), P("x"), P("x")))
    def run(x, affine):
        mean = lax.pmean(x.mean((0, 1, 2)), "y")
        var = lax.pmean(jnp.square(x).mean((0, 1, 2)), "y") - mean**2
        y = (x - mean) * lax.rsqrt(var + 1e-5) * affine[:, 0] + affine[:, 1]
        return jax.nn.relu(y), 0.9 * affine[:, 0] + 0.1 * mean, var

    return run(x, affine)


@prog((8, 1), (P("y"), P(), P()), lambda r: (r.f(8, 8, 8, 6), r.f(6, 18, s=0.3), r.f(2, 4, 4)))
def shifted_window_attention(x, w, bias):
    x = jnp.roll(x, (-2, -2), axis=(1, 2))
    windows = x.reshape(8, 4, 2, 4, 2, 6).transpose(0, 1, 3, 2, 4, 5).reshape(8, 16, 4, 6)
    q, k, v = jnp.split((windows @ w).reshape(8, 16, 4, 2, 9), 3, axis=-1)
    s = jnp.einsum("bwqhd,bwkhd->bwhqk", q, k) / 3**0.5 + bias
    out = jnp.einsum("bwhqk,bwkhd->bwqhd", jax.nn.softmax(s, -1), v).reshape(8, 4, 4, 2, 2, 6)
    out = out.transpose(0, 1, 3, 2, 4, 5).reshape(8, 8, 8, 6)
    return jnp.roll(out, (2, 2), axis=(1, 2))


@prog((8, 1), (P("y"), P("y")), lambda r: (r.i(0, 4, 8, 5), r.i(0, 4, 8, 6)))
def local_alignment(a, b):
    score = jnp.where(a[:, :, None] == b[:, None, :], 3, -2)
    row, rows = jnp.zeros((8, 7), i32), []
    for i in range(5):
        new = [jnp.zeros(8, i32)]
        for j in range(6):
            best = jnp.maximum(row[:, j] + score[:, i, j], jnp.maximum(row[:, j + 1], new[-1]) - 1)
            new.append(jnp.maximum(best, 0))
        row = jnp.stack(new, 1)
        rows.append(row)
    table = jnp.stack(rows, 1)
    return table, table.max((1, 2))


@prog((2, 4), (P("y", "x"), P("x")), lambda r: (r.i(-(2**30), 2**30, 8, 16), r.i(0, 31, 16)))
def hashed_buckets(keys, salt):
    h = keys ^ (keys >> 15)
    h = (h & 0xFFFFF) * 37 + salt
    h = h ^ (h >> 7) ^ ((h & 0xFFF) << 3)
    bucket = h & 7
    sign = jnp.where((h >> 4) & 1 == 1, 1, -1)
    counts = (jax.nn.one_hot(bucket, 8, dtype=i32) * sign[..., None]).sum(1)
    return bucket, counts, lax.population_count(h).max(-1)


@prog((8, 1), (P("y"), P(), P()), lambda r: (r.f(8, 6, 4), r.f(4, 4), r.f(4)))
def viterbi_decode(emissions, transitions, start):
    @on((8, 1), (P("y"), P(), P()), (P("y"), P("y")), check_vma=False)
    def decode(emissions, transitions, start):
        def forward(alpha, emit):
            ways = alpha[:, :, None] + transitions[None]
            return ways.max(1) + emit, jnp.argmax(ways, 1).astype(i32)

        first = start + emissions[:, 0]
        alpha, back = lax.scan(forward, first, emissions[:, 1:].transpose(1, 0, 2))
        last = jnp.argmax(alpha, -1).astype(i32)

        def follow(state, pointers):
            state = (pointers * (jnp.arange(4)[None] == state[:, None])).sum(-1)
            return state, state

        _, path = lax.scan(follow, last, back, reverse=True)
        return jnp.concatenate([path.T, last[:, None]], 1), alpha.max(-1)

    return decode(emissions, transitions, start)


@prog((8, 1), (P("y"), P("y"), P()), lambda r: (r.f(8, 5, 4), r.i(0, 4, 8, 5), r.f(4, 4)))
def chain_field_loss(emissions, tags, transitions):
    hot = jax.nn.one_hot(tags, 4)
    gold = (emissions * hot).sum((1, 2)) + jnp.einsum("bti,ij,btj->b", hot[:, :-1], transitions, hot[:, 1:])
    alpha = emissions[:, 0]
    for t in range(1, 5):
        alpha = jax.nn.logsumexp(alpha[:, :, None] + transitions, axis=1) + emissions[:, t]
    return jax.nn.logsumexp(alpha, -1) - gold


@prog(
    (2, 4),
    (P(("y", "x")),) * 4,
    lambda r: (r.f(16, 5), r.f(16, 5), r.i(0, 5, 16), r.f(16)),
)
def clipped_policy_loss(logits, old_logits, action, advantage):
    pick = jax.nn.one_hot(action, 5)
    logp = jax.nn.log_softmax(logits)
    ratio = jnp.exp(((logp - jax.nn.log_softmax(old_logits)) * pick).sum(-1))
    a = (advantage - advantage.mean()) / (advantage.std() + 1e-6)
    surrogate = jnp.minimum(ratio * a, jnp.clip(ratio, 0.8, 1.2) * a)
    entropy = -(jnp.exp(logp) * logp).sum(-1)
    clipped = (jnp.abs(ratio - 1) > 0.2).astype(f32).mean()
    return -surrogate.mean() - 0.01 * entropy.mean(), clipped


@prog(
    (2, 4),
    (P("y"), P("y"), P("x"), P()),
    lambda r: (r.f(4, 6, 3), r.pos(4, 6), r.f(18, 16, s=0.3).T, r.f(16, 4, s=0.4)),
)
def volume_rendering(points, steps, w1, w2):
    freq = 2.0 ** jnp.arange(3)
    angle = (points[..., None] * freq).reshape(4, 6, 9)
    enc = jnp.concatenate([jnp.sin(angle), jnp.cos(angle)], -1)
    raw = jax.nn.softplus(enc @ w1.T) @ w2
    alpha = 1.0 - jnp.exp(-jax.nn.relu(raw[..., 3]) * steps)
    clear = jnp.cumprod(1.0 - alpha + 1e-6, axis=-1)
    weight = alpha * jnp.concatenate([jnp.ones((4, 1)), clear[:, :-1]], -1)
    colour = (weight[..., None] * jax.nn.sigmoid(raw[..., :3])).sum(1)
    return colour, (weight * jnp.cumsum(steps, -1)).sum(-1)


@prog((1, 8), (P("x"), P()), lambda r: (r.f(16, 3, s=2.0), r.pos(1)))
def pair_forces(pos, sigma):
    def energy(pos):
        d = pos[:, None] - pos[None]
        r2 = (d**2).sum(-1) + jnp.eye(16)
        s6 = (sigma**2 / (r2 + 0.5)) ** 3
        near = jnp.where((r2 < 6.0) & (jnp.eye(16) == 0), 4.0 * (s6**2 - s6), 0.0)
        return 0.5 * near.sum()

    value, grad = jax.value_and_grad(energy)(pos)
    return value, -grad


@prog((8, 1), (P("y"), P()), lambda r: (r.f(8, 3), r.pos(3)))
def runge_kutta_orbits(state, coefficients):
    sigma, rho, beta = 4.0 * coefficients[0], 6.0 * coefficients[1], coefficients[2]

    def rate(s):
        x, y, z = s[:, 0], s[:, 1], s[:, 2]
        return jnp.stack([sigma * (y - x), x * (rho - z) - y, x * y - beta * z], -1)

    def step(_, s):
        k1 = rate(s)
        k2 = rate(s + 0.01 * k1)
        k3 = rate(s + 0.01 * k2)
        k4 = rate(s + 0.02 * k3)
        return s + 0.02 / 6.0 * (k1 + 2.0 * k2 + 2.0 * k3 + k4)

    return lax.fori_loop(0, 5, step, state)


@prog((1, 8), (P("x"), P("x")), lambda r: (r.f(8, 8), r.f(8, 8)))
def jacobi_until_settled(u, source):
    @on((1, 8), (P("x"), P("x")), (P("x"), P(), P()), check_vma=False)
    def solve(u, source):
        up = [(i, i + 1) for i in range(7)]
        down = [(i + 1, i) for i in range(7)]

        def body(state):
            n, u, _ = state
            above, below = lax.ppermute(u, "x", up), lax.ppermute(u, "x", down)
            side = jnp.pad(u, ((0, 0), (1, 1)))
            new = 0.2 * (above + below + side[:, :-2] + side[:, 2:] + source)
            return n + 1, new, lax.pmax(jnp.abs(new - u).max(), "x")

        n, u, gap = lax.while_loop(lambda s: (s[2] > 0.1) & (s[0] < 12), body, (0, u, 1e3))
        return u, n, gap

    return solve(u, source)


@prog(
    (2, 4),
    (P("y"), P(None, None, "x"), P(None, "x")),
    lambda r: (r.f(8, 6), r.f(2, 3, 16, s=0.4), r.f(2, 16, 6, s=0.4)),
)
def affine_couplings(x, w1, w2):
    log_det = 0.0
    for i in range(2):
        a, b = jnp.split(x, 2, -1)
        log_scale, shift = jnp.split(jnp.tanh(a @ w1[i]) @ w2[i], 2, -1)
        log_scale = 0.5 * jnp.tanh(log_scale)
        b = b * jnp.exp(log_scale) + shift
        log_det = log_det + log_scale.sum(-1)
        x = jnp.concatenate([b, a], -1)
    return -0.5 * (x**2).sum(-1) + log_det, x[:, ::-1]


@prog(
    (2, 4),
    (P(None, "y"), P(None, "x"), P(None, "x"), P()),
    lambda r: (r.b(3, 4, 8), r.b(8, 16, s=0.3), r.b(8, 16, s=0.3), r.i(1, 20, 1)),
)
def accumulated_with_teacher(batches, w, teacher, count):
    def loss(w, x):
        soft = jax.nn.softmax((x @ teacher).astype(f32) / 2.0)
        return -(soft * jax.nn.log_softmax((x @ w).astype(f32))).sum(-1).mean()

    grad = sum(jax.grad(loss)(w, batches[i]).astype(f32) for i in range(3)) / 3.0
    rate = 0.1 * 0.5 * (1.0 + jnp.cos(jnp.pi * count.astype(f32) / 20.0))
    new = (w.astype(f32) - rate * grad).astype(bf16)
    return new, (0.75 * teacher + 0.25 * new).astype(bf16), grad


@prog((8, 1), (P("y"),), lambda r: (r.f(8, 5, 3),))
def householder_triangles(a):
    for j in range(3):
        col = jnp.where(jnp.arange(5) >= j, a[:, :, j], 0.0)
        size = jnp.sqrt((col**2).sum(-1, keepdims=True))
        top = jnp.where(col[:, j : j + 1] >= 0, 1.0, -1.0)
        v = col + top * size * (jnp.arange(5) == j)
        v = v / jnp.sqrt((v**2).sum(-1, keepdims=True))
        a = a - 2.0 * v[:, :, None] * jnp.einsum("bi,bij->bj", v, a)[:, None]
    return a, jnp.abs(jnp.stack([a[:, i, i] for i in range(3)], 1)).prod(1)


@prog(
    (1, 8),
    (P(None, "x"), P(None, "x"), P(None, "x"), P(None, "x"), P(None, "x")),
    lambda r: (
        r.f(2, 8, 4),
        r.i(-127, 128, 2, 8, 12, 4, dt="int8"),
        r.i(-127, 128, 2, 8, 12, 4, dt="int8"),
        r.pos(2, 8, 12),
        r.pos(2, 8, 12),
    ),
)
def quantised_cache_attention(q, k8, v8, k_scale, v_scale):
    k = k8.astype(f32) * (k_scale / 127.0)[..., None]
    v = v8.astype(f32) * (v_scale / 127.0)[..., None]
    p = jax.nn.softmax(jnp.einsum("bhd,bhsd->bhs", q, k) * 0.5, axis=-1)
    out = jnp.einsum("bhs,bhsd->bhd", p, v)
    scale = jnp.abs(out).max(-1, keepdims=True) / 127.0
    return jnp.clip(jnp.round(out / scale), -127, 127).astype(i8), scale


@prog((2, 4), (P("y"), P("x")), lambda r: (r.f(8, 16), r.f(16, 16, s=0.3)))
def asymmetric_dynamic_quantisation(x, w):
    low, high = jnp.minimum(x.min(-1, keepdims=True), 0.0), jnp.maximum(x.max(-1, keepdims=True), 0.0)
    scale = (high - low) / 255.0
    zero = jnp.round(-low / scale) - 128.0
    x8 = jnp.clip(jnp.round(x / scale) + zero, -128, 127).astype(i8)
    w_scale = jnp.abs(w).max(1, keepdims=True) / 127.0
    w8 = jnp.round(w / w_scale).astype(i8)
    acc = jnp.einsum("bk,nk->bn", x8.astype(i32), w8.astype(i32))
    acc = acc - zero.astype(i32) * w8.astype(i32).sum(1)[None]
    return acc.astype(f32) * scale * w_scale[:, 0], x8


@prog((1, 8), (P("x"), P()), lambda r: (r.f(16, 6), r.f(6, 4)))
def expert_choice_routing(x, router):
    @on((1, 8), (P("x"), P()), (P("x"), P()), check_vma=False)
    def run(x, router):
        every = lax.all_gather(x, "x", tiled=True)
        gate = jax.nn.softmax(every @ router, -1)
        weight, token = lax.top_k(gate.T, 5)
        pick = jax.nn.one_hot(token, 16) * weight[..., None]
        taken = jnp.einsum("ekt,td->ekd", pick, every)
        out = jnp.einsum("ekt,ekd->td", pick, jnp.tanh(taken * (1.0 + jnp.arange(4.0))[:, None, None]))
        here = lax.axis_index("x") * 2
        return x + lax.dynamic_slice_in_dim(out, here, 2), lax.pmean(weight.min(1), "x")

    return run(x, router)


@prog((2, 4), (P("y", "x"),), lambda r: (r.f(4, 16),))
def hierarchical_mean(g):
    @on((2, 4), (P("y", "x"),), (P("y", "x"), P("x")), check_vma=False)
    def run(g):
        part = lax.psum_scatter(g, "x", scatter_dimension=1, tiled=True)
        part = lax.psum(part, "y") * 0.125
        whole = lax.all_gather(part, "x", axis=1, tiled=True)
        return g - whole, part.reshape(2) ** 2

    return run(g)


@prog((1, 8), (P("x"), P()), lambda r: (r.f(8, 16), r.f(16, 8, s=0.3)))
def transposed_in_the_mesh(x, w):
    @on((1, 8), (P("x"), P()), P("x"))
    def run(x, w):
        columns = lax.all_to_all(x, "x", split_axis=1, concat_axis=0, tiled=True)
        columns = columns - columns.mean(0)
        rows = lax.all_to_all(columns, "x", split_axis=0, concat_axis=1, tiled=True)
        return jnp.cumsum(rows @ w, axis=1)

    return run(x, w)


@prog((2, 4), (P("y"), P("y"), P("y")), lambda r: (r.f(4, 5, 12, s=2.0), r.f(4, 5, 12, s=2.0), r.i(0, 12, 4, 5)))
def accepted_prefix(target, draft, tokens):
    hot = jax.nn.one_hot(tokens, 12)
    p, q = (jax.nn.softmax(x, -1) for x in (target, draft))
    ok = ((p * hot).sum(-1) >= 0.5 * (q * hot).sum(-1)).astype(i32)
    count = jnp.cumprod(ok, axis=1).sum(1)
    here = (jnp.arange(5) == count[:, None])[..., None]
    left = jnp.where(here, jnp.maximum(p - q, 0.0), 0.0).sum(1)
    bonus = jnp.argmax(left, -1).astype(i32)
    return count, jnp.where(jnp.arange(5) < count[:, None], tokens, bonus[:, None])


@prog(
    (2, 4),
    (P("y"), P("y"), P(None, "x"), P("x")),
    lambda r: (r.f(8, 6), r.f(8, 6), r.f(6, 16, s=0.4), r.f(16, 6, s=0.3)),
)
def guided_heun_step(x, label, w1, w2):
    def denoise(x, sigma, cond):
        skip, out = 1.0 / (1.0 + sigma**2), sigma / (1.0 + sigma**2) ** 0.5
        return skip * x + out * jnp.tanh((x + cond) @ w1) @ w2

    def slope(x, sigma):
        free, told = denoise(x, sigma, 0.0), denoise(x, sigma, label)
        return (x - (free + 2.0 * (told - free))) / sigma

    d = slope(x, 2.0)
    guess = x - 1.2 * d
    return x - 0.6 * (d + slope(guess, 0.8))


@prog((1, 8), (P("x"),), lambda r: (r.i(0, 2, 16, 8),))
def game_of_life(board):
    @on((1, 8), (P("x"),), (P("x"), P()))
    def run(board):
        for _ in range(2):
            above, below = lax.ppermute(board[-1:], "x", ring(8)), lax.ppermute(board[:1], "x", ring(8, -1))
            tall = jnp.concatenate([above, board, below])
            wide = jnp.concatenate([tall[:, -1:], tall, tall[:, :1]], 1)
            near = sum(wide[i : i + 2, j : j + 8] for i in range(3) for j in range(3)) - board
            board = jnp.where((near == 3) | ((board == 1) & (near == 2)), 1, 0)
        return board, lax.psum(board.sum(), "x")

    return run(board)


@prog(
    (2, 4),
    (
        {
            "norm": P(),
            "wq": P(None, None, "x"),
            "wkv": P(None, None, "x"),
            "wo": P(None, "x"),
            "ffn": P(None, None, "x"),
        },
        P("y"),
    ),
    lambda r: (
        {
            "norm": r.f(6, 512, m=1.0, s=0.1),
            "wq": r.f(6, 512, 256, s=0.04),
            "wkv": r.f(6, 512, 256, s=0.04),
            "wo": r.f(6, 256, 512, s=0.04),
            "ffn": r.f(6, 512, 512, s=0.04),
        },
        r.f(2, 8, 512),
    ),
)
def decoder_of_six_layers(params, x):
    @on(
        (2, 4),
        ({k: P(None, "x") if k == "wo" else P(None, None, "x") for k in ("wq", "wkv", "wo", "ffn")}, P(), P("y")),
        P("y"),
        check_vma=False,
    )
    def stack(weights, norms, x):
        angle = jnp.arange(8)[:, None] / 100.0 ** (jnp.arange(16) / 16.0)
        cos, sin = jnp.cos(angle)[:, None], jnp.sin(angle)[:, None]

        def turned(y):
            a, b = y[..., :16], y[..., 16:]
            return jnp.concatenate([a * cos - b * sin, b * cos + a * sin], -1)

        def layer(x, now):
            w, norm = now
            h = rms_norm(x, norm)
            q = turned((h @ w["wq"]).reshape(1, 8, 2, 32))
            k, v = jnp.split((h @ w["wkv"]).reshape(1, 8, 1, 64), 2, axis=-1)
            k = jnp.repeat(turned(k), 2, axis=2)
            s = jnp.einsum("bqhd,bkhd->bhqk", q, k) * 32**-0.5
            s = jnp.where(jnp.tril(jnp.ones((8, 8), bool)), s, -1e9)
            o = jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(s, -1), jnp.repeat(v, 2, axis=2))
            x = x + lax.psum(o.reshape(1, 8, 64) @ w["wo"], "x")
            up = jax.nn.silu(rms_norm(x, norm) @ w["ffn"])
            return x + lax.psum(up @ w["ffn"].T, "x"), None

        return lax.scan(layer, x, (weights, norms))[0]

    return stack({name: w for name, w in params.items() if name != "norm"}, params["norm"], x)


@prog(
    (1, 8),
    (P(None, "x"), P(None, "x"), P(None, "x"), P(None, "x"), P()),
    lambda r: (r.f(2, 8, 4), r.b(2, 8, 6, 4), r.f(2, 8, 4), r.f(2, 8, 4), r.i(0, 20, 1)),
)
def ring_buffer_decode(q, cache, k, v, step):
    @on((1, 8), (P(None, "x"),) * 4 + (P(),), (P(None, "x"), P(None, "x"), P(None, "x")), check_vma=False)
    def decode(q, cache, k, v, step):
        slot = step[0] % 6
        keys = lax.dynamic_update_slice(cache, k[:, :, None].astype(bf16), (0, 0, slot, 0))
        values = lax.dynamic_update_slice(cache[:, :, ::-1], v[:, :, None].astype(bf16), (0, 0, slot, 0))
        s = jnp.einsum("bhd,bhsd->bhs", q, keys.astype(f32)) * 0.5
        age = (slot - jnp.arange(6)) % 6
        s = jnp.where(age <= step[0], s - 0.1 * age, -1e9)
        return jnp.einsum("bhs,bhsd->bhd", jax.nn.softmax(s, -1), values.astype(f32)), keys, values

    return decode(q, cache, k, v, step)


@prog((2, 4), (P(), P("x"), P("x")), lambda r: (r.f(1, 8), r.f(16, 8, s=0.7), r.f(16, 8, s=0.7)))
def greedy_generation(state, table, head):
    @on((2, 4), (P(), P("x"), P("x")), (P(), P()), check_vma=False)
    def run(state, table, head):
        here = lax.axis_index("x") * 4

        def step(state, penalty):
            logits = (state @ head.T)[0] - penalty
            top = logits.max()
            best = lax.pmax(top, "x")
            token = lax.psum(jnp.where(top == best, here + jnp.argmax(logits).astype(i32), 0), "x")
            row = jnp.where(here + jnp.arange(4) == token, 1.0, 0.0)
            return jnp.tanh(0.5 * state + lax.psum(row @ table, "x")), penalty + 5.0 * row, token

        penalty, tokens = jnp.zeros(4), []
        for _ in range(3):
            state, penalty, token = step(state, penalty)
            tokens.append(token)
        return jnp.stack(tokens), state

    return run(state, table, head)


@prog((1, 4), (P("x"), P(), P("x")), lambda r: (r.f(16, 6), r.f(6, 4), r.f(4, 6, 6, s=0.5)))
def exchanged_top_two(x, router, experts):
    @on((1, 4), (P("x"), P(), P("x")), P("x"), check_vma=False)
    def run(x, router, experts):
        weight, chosen = lax.top_k(jax.nn.softmax(x @ router), 2)
        hot = jax.nn.one_hot(chosen, 4, dtype=i32).transpose(1, 0, 2).reshape(8, 4)
        place = jnp.cumsum(hot, axis=0) - 1
        fits = (hot == 1) & (place < 3)
        route = (jax.nn.one_hot(place, 3) * fits[..., None]).reshape(2, 4, 4, 3)
        sent = jnp.einsum("ktes,td->esd", route, x)
        got = lax.all_to_all(sent, "x", split_axis=0, concat_axis=0)
        done = jax.nn.relu(got @ experts[0])
        back = lax.all_to_all(done, "x", split_axis=0, concat_axis=0)
        return jnp.einsum("ktes,tk,esd->td", route, weight, back)

    return run(x, router, experts)


@prog((2, 4), (P("y", "x"), P("y", "x"), P("y")), lambda r: (r.f(8, 16), r.f(8, 16), r.i(0, 2, 8)))
def preference_loss(chosen, rejected, flip):
    policy = jax.nn.log_softmax(chosen).max(-1) - jax.nn.log_softmax(rejected).max(-1)
    margin = 0.5 * jnp.where(flip == 1, -policy, policy)
    loss = -0.9 * jax.nn.log_sigmoid(margin) - 0.1 * jax.nn.log_sigmoid(-margin)
    return loss.mean(), (margin > 0).mean(), jnp.sign(margin)


@prog((8, 1), (P("y"), P("y"), P("y")), lambda r: (r.f(8, 6), r.f(8, 7), r.f(8, 6, s=0.3)))
def off_policy_targets(reward, value, log_ratio):
    rho = jnp.minimum(jnp.exp(log_ratio), 1.0)
    delta = rho * (reward + 0.9 * value[:, 1:] - value[:, :-1])
    gap, out = jnp.zeros(8), []
    for t in reversed(range(6)):
        gap = delta[:, t] + 0.9 * rho[:, t] * gap
        out.append(gap + value[:, t])
    targets = jnp.stack(out[::-1], 1)
    return targets, rho * (reward + 0.9 * jnp.concatenate([targets[:, 1:], value[:, -1:]], 1) - value[:, :-1])


@prog((8, 1), (P("y"), P("y")), lambda r: (r.f(8, 6), r.f(8, 6)))
def list_wise_ranking(scores, relevance):
    order = jnp.argsort(-scores, axis=-1)
    place = jnp.argsort(order, axis=-1)
    gain = jnp.exp2(jax.nn.relu(relevance)) - 1.0
    found = (gain / jnp.log2(2.0 + place)).sum(-1)
    ideal = (-jnp.sort(-gain, -1) / jnp.log2(2.0 + jnp.arange(6))).sum(-1)
    listed = -(jax.nn.softmax(relevance, -1) * jax.nn.log_softmax(scores, -1)).sum(-1)
    return found / jnp.maximum(ideal, 1e-6), listed, place


@prog((1, 8), (P(None, None, "x"), P()), lambda r: (r.f(2, 6, 16, 4), r.f(3, 3, 4, 4, s=0.3)))
def spatially_split_convolution(x, w):
    @on((1, 8), (P(None, None, "x"), P()), P(None, None, "x"))
    def run(x, w):
        left = lax.ppermute(x[:, :, -1:], "x", [(i, i + 1) for i in range(7)])
        right = lax.ppermute(x[:, :, :1], "x", [(i + 1, i) for i in range(7)])
        wide = jnp.concatenate([left, x, right], axis=2)
        y = lax.conv_general_dilated(wide, w, (1, 1), ((1, 1), (0, 0)), dimension_numbers=("NHWC", "HWIO", "NHWC"))
        return jax.nn.relu(y) + x

    return run(x, w)


@prog((8, 1), (P("y"), P(), P()), lambda r: (r.f(8, 8, 8, 4), r.f(3, 3, 4, 4, s=0.3), r.f(12, 3, s=0.4)))
def dilated_pyramid_head(x, w, head):
    names = ("NHWC", "HWIO", "NHWC")
    found = [
        lax.conv_general_dilated(x, w, (2, 2), "SAME", rhs_dilation=(d, d), dimension_numbers=names) for d in (1, 2, 3)
    ]
    h = jax.nn.hard_swish(jnp.concatenate(found, -1)) @ head
    return jax.nn.softmax(h, -1), h.max((1, 2))


@prog((2, 4), (P("y"), P("y"), P(None, "x")), lambda r: (r.f(4, 12, 6), r.f(4, 8, 6), r.f(6, 16, s=0.4)))
def positive_feature_attention(x, memory, features):
    def phi(y):
        y = y @ features
        return jnp.exp(y - (y**2).sum(-1, keepdims=True) / 16.0) + 1e-3

    q, k = phi(x), phi(memory)
    context = jnp.einsum("bsf,bsd->bfd", k, memory)
    return jnp.einsum("btf,bfd->btd", q, context) / jnp.einsum("btf,bf->bt", q, k.sum(1))[..., None]


@prog((2, 4), (P("y"), P("x"), P()), lambda r: (r.f(4, 16), r.f(16, 16, s=0.2), r.f(16)))
def deep_equilibrium(x, w, b):
    def body(state):
        n, z, _ = state
        new = jnp.tanh(z @ w + x + b)
        return n + 1, new, jnp.abs(new - z).mean()

    n, z, gap = lax.while_loop(lambda s: (s[2] > 0.02) & (s[0] < 9), body, (0, jnp.zeros((4, 16)), jnp.float32(1)))
    return z - z.mean(0), n, gap


@prog((1, 8), (P("x"), P("x"), P()), lambda r: (r.f(32, 3), r.i(0, 5, 32), r.f(5, 3)))
def segment_statistics(x, segment, centre):
    @on((1, 8), (P("x"), P("x"), P()), (P(), P(), P("x")), check_vma=False)
    def run(x, segment, centre):
        count = lax.psum(jax.ops.segment_sum(jnp.ones(4), segment, 5), "x")[:, None]
        mean = lax.psum(jax.ops.segment_sum(x, segment, 5), "x") / jnp.maximum(count, 1.0)
        spread = lax.psum(jax.ops.segment_sum((x - mean[segment]) ** 2, segment, 5), "x") / jnp.maximum(count, 1.0)
        near = jnp.argmin(((x[:, None] - centre - mean) ** 2).sum(-1), -1)
        return mean, jnp.sqrt(spread + 1e-6), near

    return run(x, segment, centre)


@prog((2, 4), (P("y"), P(None, "x"), P("x")), lambda r: (r.b(8, 16), r.b(16, 32, s=0.3), r.b(32, 16, s=0.2)))
def squared_relu_with_top_k(x, w1, w2):
    h = jnp.square(jax.nn.relu(x @ w1))
    kept, _ = lax.top_k(h.astype(f32), 8)
    h = jnp.where(h >= kept[:, -1:].astype(bf16), h, 0)
    return x + h @ w2, (h > 0).sum(-1)


@prog((2, 4), (P("y", "x"), P("y", "x"), P()), lambda r: (r.f(8, 8), r.f(8, 8), r.i(1, 30, 1)))
def orthogonal_momentum(w, g, count):
    def times(a, b):
        return jnp.einsum("ij,jk->ik", a, b)

    decay = 1.0 - jnp.power(0.95, count.astype(f32))
    x = g / decay
    x = x / (jnp.abs(x).sum(1).max() + 1e-7)
    for _ in range(3):
        x = 1.875 * x - times(times(1.25 * x, x.T), x) + 0.375 * times(times(times(times(x, x.T), x), x.T), x)
    return w * (1.0 - 0.01) - 0.2 * x, jnp.diagonal(times(x, x.T))


@prog((1, 8), (P("x"), P("x")), lambda r: (r.f(16, 4), r.f(16, 4)))
def sigmoid_contrast_ring(images, texts):
    @on((1, 8), (P("x"), P("x")), P())
    def loss(images, texts):
        here, total = lax.axis_index("x"), 0.0
        for hop in range(8):
            there = (here + hop) % 8
            own = (here * 2 + jnp.arange(2))[:, None] == (there * 2 + jnp.arange(2))[None]
            logits = 2.0 * images @ texts.T - 1.0
            total = total - jax.nn.log_sigmoid(jnp.where(own, logits, -logits)).sum()
            texts = lax.ppermute(texts, "x", ring(8, -1))
        return lax.psum(total, "x") / 16.0

    return loss(images, texts)


@prog((2, 4), (P("y"), P("y"), P(None, "x"), P("x")), lambda r: (r.f(8, 6), r.pos(8, 8), r.f(6, 8, s=0.4), r.f(8, 6)))
def masked_autoencoder_loss(x, noise, enc, dec):
    order = jnp.argsort(noise, axis=-1)
    keep = order < 4
    hidden = jnp.where(keep, jax.nn.elu(x @ enc), 0.0)
    hidden = hidden * (8.0 / jnp.maximum(keep.sum(-1, keepdims=True), 1))
    out = hidden @ dec
    huber = jnp.where(jnp.abs(out - x) < 1.0, 0.5 * (out - x) ** 2, jnp.abs(out - x) - 0.5)
    return huber.mean(-1), jax.grad(lambda d: ((hidden @ d - x) ** 2).mean())(dec)


@prog((1, 8), (P(None, "x"), P()), lambda r: (r.i(-128, 128, 8, 16, dt="int8"), r.i(-8, 8, 8, 8, dt="int8")))
def integer_attention_scores(k, q):
    scores = lax.dot_general(q, k, (((1,), (0,)), ((), ())), preferred_element_type=i32)
    top = scores.max(-1, keepdims=True)
    weight = jnp.right_shift(jnp.int32(1 << 12), jnp.minimum((top - scores) // 64, 12))
    total = weight.sum(-1, keepdims=True)
    return (weight * 127 // total).astype(i8), jnp.argmax(scores, -1)


@prog((2, 4), (P("x"), P()), lambda r: (r.f(4, 16), r.f(4, s=0.5)))
def chebyshev_graph_filter(x, theta):
    degree = 2.0
    before, now = x, x - (jnp.roll(x, 1, 1) + jnp.roll(x, -1, 1)) / degree
    out = theta[0] * before + theta[1] * now
    for k in range(2, 4):
        lap = now - (jnp.roll(now, 1, 1) + jnp.roll(now, -1, 1)) / degree
        before, now = now, 2.0 * lap - before
        out = out + theta[k] * now
    return out, jnp.flip(jnp.sort(out, axis=0), 0)


@prog((1, 8), (P("x"), P()), lambda r: (r.f(8, 4, s=0.5), r.f(4)))
def conditional_line_search(w, x):
    @on((1, 8), (P("x"), P()), (P("x"), P()), check_vma=False)
    def run(w, x):
        def loss(w):
            return lax.psum((jnp.tanh(w @ x) ** 2 + 0.1 * (w**2).sum(-1)).sum(), "x")

        base, slope = loss(w), (2.0 * jnp.tanh(w @ x) * (1 - jnp.tanh(w @ x) ** 2))[:, None] * x + 0.2 * w
        size = lax.psum((slope**2).sum(), "x")

        def shorter(state):
            n, rate = state
            return n + 1, rate * 0.5

        def too_long(state):
            n, rate = state
            return (loss(w - rate * slope) > base - 0.1 * rate * size) & (n < 6)

        n, rate = lax.while_loop(too_long, shorter, (0, jnp.float32(16.0)))
        return lax.cond(n < 6, lambda: w - rate * slope, lambda: w), rate

    return run(w, x)


@prog(
    (2, 4),
    (P("y"), P(None, "x"), P(None, "x"), P(None, "x")),
    lambda r: (r.b(2, 8, 16), r.b(16, 32, s=0.25), r.b(16, 32, s=0.25), r.b(16, 8, s=0.25)),
)
def gated_chunk_recurrence(x, wq, wk, wg):
    q, k = ((x @ w).reshape(2, 8, 4, 8).astype(f32) for w in (wq, wk))
    gate = jax.nn.log_sigmoid((x @ wg).astype(f32)).reshape(2, 8, 4, 2).mean(-1)
    total = jnp.cumsum(gate, axis=1)
    gap = total[:, :, None] - total[:, None]
    decay = jnp.where(jnp.tril(jnp.ones((8, 8), bool))[None, :, :, None], jnp.exp(jnp.minimum(gap, 0.0)), 0.0)
    s = jnp.einsum("bqhd,bkhd->bqkh", q, k) * decay / 8.0
    return jnp.einsum("bqkh,bkhd->bqhd", s, k).reshape(2, 8, 32).astype(bf16)


@prog(
    (2, 4),
    (P("y"), P(), P(None, "x"), P(None, "x"), P("x")),
    lambda r: (r.b(2, 6, 32), r.b(32, 20, s=0.2), r.b(32, 8, 12, s=0.2), r.b(16, 8, 16, s=0.25), r.b(8, 8, 32, s=0.15)),
)
def compressed_key_attention(x, w_down, w_q, w_up, w_o):
    down = x @ w_down
    latent, shared = down[..., :16], down[..., 16:]
    q = jnp.einsum("btd,dhk->bthk", x, w_q)
    kv = jnp.einsum("btc,chk->bthk", latent, w_up)
    k = jnp.concatenate([kv[..., :8], jnp.broadcast_to(shared[:, :, None], (2, 6, 8, 4))], -1)
    s = jnp.einsum("bthk,bshk->bhts", q, k).astype(f32) / 12**0.5
    s = jnp.where(jnp.tri(6, dtype=bool), s, -1e30)
    p = jax.nn.softmax(s, -1).astype(bf16)
    return jnp.einsum("bhts,bshk,hkd->btd", p, kv[..., 8:], w_o)


@prog((8, 1), (P("y"), P("y")), lambda r: (r.f(8, 4, 4), r.f(8, 4)))
def gauss_jordan_solve(a, b):
    a = jnp.einsum("bij,bkj->bik", a, a) + 2.0 * jnp.eye(4)
    work = jnp.concatenate([a, b[..., None]], -1)
    for i in range(4):
        pivot = work[:, i] / work[:, i, i : i + 1]
        rest = work - work[:, :, i : i + 1] * pivot[:, None]
        work = jnp.where((jnp.arange(4) == i)[None, :, None], pivot[:, None], rest)
    x = work[..., -1]
    return x, jnp.abs(jnp.einsum("bij,bj->bi", a, x) - b).max(-1)


@prog((2, 4), (P("y"), P("x")), lambda r: (r.f(8, 12), r.f(16, 12)))
def hopfield_retrieval(state, memory):
    for _ in range(3):
        state = jax.nn.softmax(2.0 * state @ memory.T / 12**0.5, -1) @ memory
    energy = -jax.nn.logsumexp(2.0 * state @ memory.T, -1) + (state**2).sum(-1)
    return state, energy


@prog((1, 8), (P("x"), P("x"), P()), lambda r: (r.f(16, 4), r.i(0, 2, 16), r.f(4, s=0.3)))
def local_steps_then_average(x, y, w):
    @on((1, 8), (P("x"), P("x"), P()), (P(), P("x")), check_vma=False)
    def run(x, y, w):
        sign = 2.0 * y.astype(f32) - 1.0

        def step(i, w):
            margin = sign * (x @ w)
            grad = -(sign * (margin < 1.0))[:, None] * x
            return w - 0.2 / (1.0 + i) * (grad.mean(0) + 0.01 * w)

        w = lax.fori_loop(0, 4, step, w)
        mean = lax.pmean(w, "x")
        return mean, ((w - mean) ** 2).sum()[None]

    return run(x, y, w)


@prog((2, 4), (P("y", "x"),), lambda r: (r.i(-20, 20, 8, 16),))
def run_lengths(x):
    sign = jnp.sign(x)
    same = jnp.concatenate([jnp.zeros((8, 1), bool), sign[:, 1:] == sign[:, :-1]], 1)
    group = jnp.cumsum(1 - same.astype(i32), axis=1)
    length = (group[:, :, None] == group[:, None]).sum(-1)
    return length, group.max(1), jnp.where(length > 2, x * x % 7, -x)


@prog((8, 1), (P("y"), P()), lambda r: (r.i(0, 10, 8, 6), r.i(0, 10, 4)))
def no_repeat_and_stops(tokens, stops):
    seen = (tokens[:, :, None] == jnp.arange(10)).astype(i32).max(1)
    ended = (tokens[:, :, None] == stops).astype(i32).max(-1)
    after = jnp.cumsum(ended, 1) - ended
    pairs = (tokens[:, :-1] * 10 + tokens[:, 1:])[:, :, None] == jnp.arange(100)
    banned = pairs & (tokens[:, -1:, None] == jnp.arange(100) // 10)
    return jnp.where(after > 0, -1, tokens), (after == 0).sum(1), seen, banned.astype(i32).max(1)


@prog(
    (1, 8),
    (P(None, "x"), P("x"), P("x")),
    lambda r: (r.f(4, 16), r.f(16, 8, s=0.3), r.f(8, 16, s=0.3)),
)
def ring_overlapped_matmul(x, w, v):
    @on((1, 8), (P(None, "x"), P("x"), P("x")), (P(), P(None, "x")), check_vma=False)
    def run(x, w, v):
        here = lax.axis_index("x")
        total = lax.psum(x @ w, "x")
        out, part = jnp.zeros((4, 2)), v
        for hop in range(8):
            there = (here - hop) % 8
            row = lax.dynamic_slice_in_dim(total, there, 1, axis=1)
            out = out + row * lax.dynamic_slice_in_dim(part, here * 2, 2, axis=1)
            part = lax.ppermute(part, "x", ring(8))
        return total, out

    return run(x, w, v)


@prog(
    (2, 4),
    (P("y"), P("y"), P(), P(None, "x")),
    lambda r: (r.f(4, 6, 4), r.i(0, 2, 4, 6, 6), r.f(4, 8, s=0.4), r.f(8, 8, s=0.3)),
)
def isomorphism_network(nodes, edges, w1, w2):
    adjacency = ((edges + edges.swapaxes(1, 2)) > 0).astype(f32) * (1 - jnp.eye(6))
    h = jax.nn.relu((1.1 * nodes + adjacency @ nodes) @ w1)
    h = jax.nn.relu((1.1 * h + adjacency @ h) @ w2)
    degree = adjacency.sum(-1)
    readout = jnp.where(degree[..., None] > 0, h, 0.0)
    return readout.sum(1), readout.max(1), jnp.minimum(degree, 3.0).astype(i32)


@prog((1, 8), (P(None, "x"), P(None, "x"), P()), lambda r: (r.pos(3, 16), r.f(3, 16), r.f(3)))
def particle_filter_step(weight, particle, observed):
    likely = weight * jnp.exp(-0.5 * (particle - observed[:, None]) ** 2)
    likely = likely / likely.sum(-1, keepdims=True)
    effective = 1.0 / (likely**2).sum(-1)
    mean = (likely * particle).sum(-1, keepdims=True)
    spread = (likely * (particle - mean) ** 2).sum(-1)
    return jnp.where((effective < 8.0)[:, None], 1 / 16.0, likely), 0.9 * particle + 0.1 * mean, effective, spread


@prog((8, 1), (P("y"), P(), P()), lambda r: (r.b(8, 10, 6), r.b(4, 1, 6, s=0.5), r.b(6, 6, s=0.4)))
def depthwise_separable_sequence(x, depth, point):
    h = lax.conv_general_dilated(
        x, depth, (2,), [(1, 2)], dimension_numbers=("NWC", "WIO", "NWC"), feature_group_count=6
    )
    h = jax.nn.gelu(h) @ point
    wide = h.astype(f32)
    return ((wide - wide.mean(1, keepdims=True)) * lax.rsqrt(wide.var(1, keepdims=True) + 1e-3)).astype(bf16), h.max(1)


@prog((2, 4), (P("y", "x"), P("y", "x")), lambda r: (r.f(8, 16), r.pos(8, 16)))
def stochastic_reconfiguration(score, weight):
    weight = weight / weight.sum()
    mean = (weight * score).sum(0) / weight.sum(0)
    centred = (score - mean) * jnp.sqrt(weight)
    fisher = centred.T @ centred + 0.1 * jnp.eye(16)
    step = (weight * score).sum(0)
    x = step / jnp.diagonal(fisher)
    for _ in range(4):
        x = x + 0.5 * (step - fisher @ x) / jnp.diagonal(fisher)
    return x, jnp.sqrt(x @ fisher @ x)


@prog(
    (2, 4),
    (P("y"), P(None, "x"), P(None, "x"), P()),
    lambda r: (r.f(4, 5, 8), r.f(3, 8, 8, s=0.4), r.f(3, 8, 8, s=0.4), r.f(3, 8)),
)
def minimal_gated_layers(x, w_gate, w_state, b):
    def layer(x, ws):
        gate_w, state_w, bias = ws
        z = jax.nn.sigmoid(x @ gate_w + bias)
        h = jnp.tanh(x @ state_w)
        keep = jnp.cumprod(1.0 - z, axis=1)
        out = keep * jnp.cumsum(z * h / jnp.maximum(keep, 1e-3), axis=1)
        return x + out, out[:, -1]

    for i in range(3):
        x, last = layer(x, (w_gate[i], w_state[i], b[i]))
    return x, last


@prog((1, 8), (P("x"), P("x")), lambda r: (r.f(8, 12), r.i(0, 3, 8)))
def switch_by_shard(x, mode):
    @on((1, 8), (P("x"), P("x")), (P("x"), P()), check_vma=False)
    def run(x, mode):
        def body(i, state):
            x, total = state
            x = lax.cond(mode[0] + i > 2, lambda y: y * 0.5, lambda y: jnp.sin(y) + 0.1, x)
            return x, total + x.sum()

        x, total = lax.fori_loop(0, 3, body, (x, 0.0))
        return x, lax.psum(total, "x")

    return run(x, mode)


@prog(
    (2, 4),
    ({"w": P("x"), "b": P("x")}, P("y"), P("y")),
    lambda r: ({"w": r.f(8, 6, s=0.4), "b": r.f(8)}, r.f(8, 6), r.f(8, 8)),
)
def robust_regression_newton(params, x, y):
    def loss(p):
        gap = x @ p["w"].T + p["b"] - y
        return (jnp.sqrt(1.0 + gap**2) - 1.0).mean() + 1e-2 * jnp.abs(p["w"]).sum()

    value, grads = jax.value_and_grad(loss)(params)
    clipped = jax.tree.map(lambda g: jnp.clip(g, -0.1, 0.1), grads)
    shrunk = jax.tree.map(lambda p, g: jnp.sign(p) * jnp.maximum(jnp.abs(p - 0.5 * g) - 0.01, 0.0), params, clipped)
    return value, shrunk
