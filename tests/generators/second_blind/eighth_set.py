"""Programs of an eighth set, whose author had read neither the diagnosis nor its tests: of other subjects."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec as P

from tests.generators.second_blind.fourth_set import bf16, f32, i8, i32, prog
from tests.generators.second_blind.seventh_set import on, ring


@prog(
    (2, 4),
    (P("y", None, "x"), P("y", None, "x"), P("y", None, "x"), P("x")),
    lambda r: (r.f(2, 12, 8, 4), r.f(2, 12, 4, 4), r.f(2, 12, 4, 4), r.f(8)),
)
def grouped_query_with_sinks(q, k, v, sink):
    q = q.reshape(2, 12, 4, 2, 4)
    logits = jnp.einsum("bqgrd,bkgd->bgrqk", q, k) * 0.5
    gap = jnp.arange(12)[:, None] - jnp.arange(12)[None, :]
    logits = jnp.where((gap >= 0) & (gap < 6), logits, -jnp.inf)
    sink = sink.reshape(1, 4, 2, 1, 1)
    top = jnp.maximum(logits.max(-1, keepdims=True), sink)
    probs = jnp.exp(logits - top)
    probs = probs / (probs.sum(-1, keepdims=True) + jnp.exp(sink - top))
    return jnp.einsum("bgrqk,bkgd->bqgrd", probs, v).reshape(2, 12, 32)


@prog(
    (2, 4),
    (P("y"), P(None, "x"), P(None, "x"), P(), P("y")),
    lambda r: (r.b(4, 8, 16), r.b(16, 32, s=0.25), r.b(16, 32, s=0.25), r.b(8), r.i(0, 40, 4, 8)),
)
def partial_rotary_normed_scores(x, wq, wk, gain, position):
    def heads(w):
        h = (x @ w).reshape(4, 8, 4, 8)
        wide = h.astype(f32)
        return (wide * lax.rsqrt((wide**2).mean(-1, keepdims=True) + 1e-6)).astype(bf16) * gain

    angle = position[..., None].astype(f32) / 20000.0 ** (jnp.arange(2) / 2)
    cos, sin = jnp.cos(angle)[:, :, None], jnp.sin(angle)[:, :, None]

    def rotate(h):
        turned, rest = h[..., :4].astype(f32), h[..., 4:]
        a, b = turned[..., ::2], turned[..., 1::2]
        both = jnp.stack([a * cos - b * sin, b * cos + a * sin], axis=-1).reshape(4, 8, 4, 4)
        return jnp.concatenate([both.astype(bf16), rest], axis=-1)

    return jnp.einsum("bqhd,bkhd->bhqk", rotate(heads(wq)), rotate(heads(wk)))


@prog(
    (2, 4),
    (P("y", "x"), P("y", "x"), P("y", "x"), P(), P()),
    lambda r: (r.f(2, 4, 8, 6), r.f(2, 4, 8, 6), r.f(2, 4, 8, 6), r.f(4, 4), r.f(4, 4)),
)
def talking_heads(q, k, v, before, after):
    scores = jnp.einsum("bhqd,bhkd->bhqk", q, k) / jnp.sqrt(6.0)
    scores = jnp.einsum("bhqk,hg->bgqk", scores, before)
    causal = jnp.tril(jnp.ones((8, 8), bool))
    probs = jax.nn.softmax(jnp.where(causal, scores, jnp.finfo(f32).min), axis=-1)
    probs = jnp.einsum("bgqk,gh->bhqk", probs, after)
    return jnp.einsum("bhqk,bhkd->bqhd", probs, v).reshape(2, 8, 24)


@prog(
    (2, 4),
    (P(), P("y"), P(None, "x"), P(None, "x"), P("x")),
    lambda r: (r.f(5, 12), r.f(4, 10, 6), r.f(12, 8, s=0.4), r.f(6, 16, s=0.4), r.f(8, 12, s=0.4)),
)
def latent_array_reads_inputs(latents, inputs, wq, wkv, wo):
    state = jnp.broadcast_to(latents, (4, 5, 12))
    for _ in range(2):
        q = (state @ wq).reshape(4, 5, 2, 4).swapaxes(1, 2)
        k, v = jnp.split((inputs @ wkv).reshape(4, 10, 4, 4).swapaxes(1, 2), 2, axis=1)
        probs = jax.nn.softmax(q @ k.swapaxes(-1, -2) * 0.5, axis=-1)
        state = state + (probs @ v).swapaxes(1, 2).reshape(4, 5, 8) @ wo
        state = (state - state.mean(-1, keepdims=True)) / (state.std(-1, keepdims=True) + 1e-3)
    return state, state.mean(1).argmax(-1)


@prog(
    (2, 4),
    (P("y", None, "x"), P("y", None, "x"), P("y", None, "x")),
    lambda r: (r.f(2, 16, 4, 3, s=0.6), r.f(2, 16, 4, 3, s=0.6), r.f(2, 16, 4, 5)),
)
def taylor_feature_chunks(q, k, v):
    def features(x):
        square = (x[..., :, None] * x[..., None, :]).reshape(*x.shape[:-1], 9) / jnp.sqrt(2.0)
        return jnp.concatenate([jnp.ones_like(x[..., :1]), x, square], axis=-1)

    def chunked(x):
        return x.reshape(2, 4, 4, 4, -1).transpose(1, 0, 3, 2, 4)

    q, k, v = chunked(features(q)), chunked(features(k)), chunked(v)
    mask = jnp.tril(jnp.ones((4, 4)))

    def step(carry, qkv):
        state, norm = carry
        q, k, v = qkv
        local = (q @ k.swapaxes(-1, -2)) * mask
        out = local @ v + q @ state
        total = local.sum(-1, keepdims=True) + q @ norm
        return (state + k.swapaxes(-1, -2) @ v, norm + k.sum(-2)[..., None]), out / (total + 1e-4)

    start = jnp.zeros((2, 4, 13, 5)), jnp.zeros((2, 4, 13, 1))
    (state, _), out = lax.scan(step, start, (q, k, v))
    return out, state


@prog(
    (1, 8),
    (P("x"), P("x"), P("x"), P("x"), P("x"), P("x")),
    lambda r: (r.f(8, 4), r.f(8, 6, 4), r.f(8, 6, 4), r.pos(8, 6), r.f(8, 4), r.f(8, 4)),
)
def heavy_hitter_cache(q, keys, values, used, new_key, new_value):
    slot = used.argmin(-1)
    there = jnp.arange(6)[None, :] == slot[:, None]
    keys = jnp.where(there[..., None], new_key[:, None], keys)
    values = jnp.where(there[..., None], new_value[:, None], values)
    probs = jax.nn.softmax(jnp.einsum("hd,hsd->hs", q, keys) / 2.0, axis=-1)
    used = jnp.where(there, 0.0, used * 0.9) + probs
    return jnp.einsum("hs,hsd->hd", probs, values), keys, values, used


@prog(
    (2, 4),
    (P("y"), P(None, "x"), P("x"), P("x"), P("y"), P("y"), P("y")),
    lambda r: (
        r.b(2, 16),
        r.b(16, 4, 10, s=0.25),
        r.b(4, 6, 8, s=0.3),
        r.b(4, 8, 6, s=0.3),
        r.b(2, 12, 8),
        r.b(2, 12, 4),
        r.i(2, 12, 2),
    ),
)
def absorbed_latent_decode(x, wq, up_key, up_value, latent, rope_key, length):
    q = jnp.einsum("bd,dhe->bhe", x, wq)
    q_plain, q_rope = q[..., :6], q[..., 6:]
    q_latent = jnp.einsum("bhe,hec->bhc", q_plain, up_key)
    scores = jnp.einsum("bhc,bsc->bhs", q_latent, latent) + jnp.einsum("bhr,bsr->bhs", q_rope, rope_key)
    live = jnp.arange(12) <= length[:, None, None]
    probs = jax.nn.softmax(jnp.where(live, scores.astype(f32) * 10**-0.5, -1e9), axis=-1).astype(bf16)
    return jnp.einsum("bhs,bsc,hcv->bhv", probs, latent, up_value)


@prog(
    (2, 4),
    (P("y"), P(), P(), P("x"), P("x")),
    lambda r: (r.f(8, 6), r.f(6, 8), r.f(8, s=0.2), r.f(8, 6, 10, s=0.4), r.f(8, 10, 6, s=0.4)),
)
def group_limited_sigmoid_router(x, router, bias, w_in, w_out):
    gates = jax.nn.sigmoid(x @ router)
    biased = gates + bias
    groups = biased.reshape(8, 4, 2).sum(-1)
    floor = lax.top_k(groups, 2)[0][:, -1:]
    open_groups = jnp.repeat(groups >= floor, 2, axis=-1)
    masked = jnp.where(open_groups, biased, -jnp.inf)
    chosen = masked >= lax.top_k(masked, 3)[0][:, -1:]
    weight = jnp.where(chosen, gates, 0.0)
    weight = 2.5 * weight / weight.sum(-1, keepdims=True)
    hidden = jnp.einsum("td,edf->tef", x, w_in)
    out = jnp.einsum("tef,efd->ted", jax.nn.silu(hidden), w_out)
    load = chosen.astype(f32).mean(0)
    return (out * weight[..., None]).sum(1), bias - 0.01 * jnp.sign(load - load.mean())


@prog(
    (2, 4),
    (P("x"), P("x"), P("x"), P("x"), P("y")),
    lambda r: (r.f(8, 6), r.f(8, 6), r.f(8, 6, s=0.1), r.pos(8, 6), r.f(4, 8)),
)
def lookahead_with_belief(fast, slow, momentum, variance, x):
    def loss(w):
        return jnp.logaddexp(0.0, x @ w).mean() + 0.01 * (w**2).sum()

    for step in range(3):
        g = jax.grad(loss)(fast)
        momentum = 0.9 * momentum + 0.1 * g
        variance = 0.99 * variance + 0.01 * (g - momentum) ** 2 + 1e-8
        rate = 0.1 * min(1.0, (step + 1) / 2)
        fast = fast - rate * (momentum / (1 - 0.9 ** (step + 1))) / (jnp.sqrt(variance) + 1e-6)
    slow = slow + 0.5 * (fast - slow)
    return slow, fast - slow, momentum, variance


@prog(
    (2, 4),
    (P("y", "x"), P("y", "x")),
    lambda r: (r.f(4, 8, 8, 3), r.i(0, 3, 4, 8, 8)),
)
def overlap_and_edge_loss(logits, labels):
    probs = jax.nn.softmax(logits, axis=-1)
    truth = jax.nn.one_hot(labels, 3)
    hit = (probs * truth).sum((1, 2))
    extra, lost = (probs * (1 - truth)).sum((1, 2)), ((1 - probs) * truth).sum((1, 2))
    overlap = (hit + 1.0) / (hit + 0.3 * extra + 0.7 * lost + 1.0)
    down, right = jnp.abs(probs[:, 1:] - probs[:, :-1]), jnp.abs(probs[:, :, 1:] - probs[:, :, :-1])
    return (1 - overlap).mean() ** 0.75, down.mean() + right.mean(), overlap


@prog((8, 1), (P("y"), P(), P()), lambda r: (r.f(8, 6, 6, 4), r.f(4, 18, s=0.4), r.f(4, s=0.3)))
def position_specific_filter(x, make, bias):
    kernel = jax.nn.tanh(x @ make).reshape(8, 6, 6, 9, 2)
    padded = jnp.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)), mode="edge")
    patches = [padded[:, i : i + 6, j : j + 6] for i in range(3) for j in range(3)]
    grouped = jnp.stack(patches, axis=3).reshape(8, 6, 6, 9, 2, 2)
    return (grouped * kernel[..., None]).sum(3).reshape(8, 6, 6, 4) + bias


@prog((1, 8), (P("x"),), lambda r: (r.f(8, 64),))
def ring_sum_of_bytes(x):
    @on((1, 8), P("x"), (P("x"), P("x")), check_vma=False)
    def run(x):
        here, parts = lax.axis_index("x"), x.reshape(8, 8)
        carry = lax.dynamic_index_in_dim(parts, (here + 7) % 8, 0)
        for hop in range(7):
            scale = jnp.maximum(jnp.abs(carry).max(), 1e-6) / 127.0
            sent = lax.ppermute(jnp.round(carry / scale).astype(i8), "x", ring(8))
            scale = lax.ppermute(scale, "x", ring(8))
            carry = sent.astype(f32) * scale + lax.dynamic_index_in_dim(parts, (here - hop + 6) % 8, 0)
        return carry, lax.psum_scatter(x[0], "x", tiled=True)[None]

    return run(x)


@prog((1, 8), (P("x"), P("x"), P()), lambda r: (r.f(8, 4, 4, s=0.6), r.f(8, 4, s=0.2), r.f(3, 4)))
def pipeline_with_last_stage_loss(w, b, batches):
    @on((1, 8), (P("x"), P("x"), P()), (P(), P("x")), check_vma=False)
    def run(w, b, batches):
        here = lax.axis_index("x")
        state, outs = jnp.zeros(4), []
        for tick in range(10):
            fed = batches[min(tick, 2)]
            state = jnp.tanh(jnp.where(here == 0, fed, state) @ w[0] + b[0])
            if tick >= 7:
                outs.append(state)
            state = lax.ppermute(state, "x", ring(8))
        done = jnp.where(here == 7, jnp.stack(outs), 0.0)
        return lax.psum(done, "x"), jnp.square(done).sum(keepdims=True)[0]

    return run(w, b, batches)


@prog(
    (2, 4),
    (P("y"), P(), P(), P()),
    lambda r: (r.i(0, 6, 4, 7), r.f(5, 5), r.f(5, 6), r.f(5)),
)
def hidden_state_posteriors(seen, transition, emission, prior):
    a = jax.nn.log_softmax(transition, axis=-1)
    e = jax.nn.log_softmax(emission, axis=-1)
    emitted = jnp.einsum("bto,so->tbs", jax.nn.one_hot(seen, 6), e)

    def forward(alpha, now):
        alpha = jax.nn.logsumexp(alpha[:, :, None] + a, axis=1) + now
        return alpha, alpha

    def backward(beta, now):
        beta = jax.nn.logsumexp(a + (now + beta)[:, None, :], axis=-1)
        return beta, beta

    first = jax.nn.log_softmax(prior) + emitted[0]
    _, alphas = lax.scan(forward, first, emitted[1:])
    _, betas = lax.scan(backward, jnp.zeros((4, 5)), emitted[1:], reverse=True)
    alphas = jnp.concatenate([first[None], alphas])
    betas = jnp.concatenate([betas, jnp.zeros((1, 4, 5))])
    return jax.nn.softmax(alphas + betas, axis=-1).swapaxes(0, 1), jax.nn.logsumexp(alphas[-1], axis=-1)


@prog((2, 4), (P("y", "x"), P("y", "x")), lambda r: (r.i(-50, 50, 4, 16), r.i(1, 90, 4, 16)))
def whole_number_ledger(amount, kind):
    credit = jnp.where(amount > 0, amount, 0)
    balance = jnp.cumsum(amount, axis=1)
    lowest = lax.cummin(balance, axis=1)
    fee = jnp.where((kind % 3 == 0) & (balance < 0), (-balance) // 7 + 1, 0)
    owed = jnp.bitwise_and(fee, 15) + jnp.left_shift(kind, 2)
    return balance - fee, lowest, credit.sum(0), jnp.maximum(owed, kind * kind).max(1)


@prog((2, 4), (P("y"), P("y"), P(None, "x"), P("x")), lambda r: (r.f(4, 6), r.f(4), r.f(6, 8, s=0.4), r.f(8, s=0.4)))
def gauss_newton_products(x, y, w1, w2):
    def residual(w1, w2):
        return jnp.tanh(x @ w1) @ w2 - y

    gap, back = jax.vjp(residual, w1, w2)
    grads = back(gap)
    direction, dots = jax.tree.map(jnp.negative, grads), []
    for _ in range(2):
        moved = jax.jvp(residual, (w1, w2), direction)[1]
        curved = jax.tree.map(lambda a, d: a + 0.1 * d, back(moved), direction)
        total = sum((a * d).sum() for a, d in zip(curved, direction, strict=True))
        dots.append(total)
        direction = jax.tree.map(lambda d, g, t=total: d - 0.1 * g / (1 + t), direction, grads)
    return direction, jnp.stack(dots)


@jax.custom_vjp
def reversed_gradient(x):
    return x


reversed_gradient.defvjp(lambda x: (x, None), lambda _, g: (-0.3 * g,))


@prog(
    (2, 4),
    (P("y"), P("y"), P(None, "x"), P("x"), P("x")),
    lambda r: (r.f(8, 5), r.i(0, 2, 8), r.f(5, 8, s=0.4), r.f(8, 3, s=0.4), r.f(8, s=0.4)),
)
def adversarial_domain_step(x, domain, encoder, head, critic):
    def loss(params):
        encoder, head, critic = params
        h = jax.nn.elu(x @ encoder)
        task = -jax.nn.log_softmax(h @ head)[:, 0].mean()
        guess = reversed_gradient(h) @ critic
        return task + (jax.nn.softplus(guess) - guess * domain).mean()

    value, grads = jax.value_and_grad(loss)((encoder, head, critic))
    return value, [p - 0.1 * g for p, g in zip((encoder, head, critic), grads, strict=True)]


@prog(
    (2, 4),
    (P("y"), P("y"), P(None, "x"), P("x"), P()),
    lambda r: (r.f(8, 6), r.i(0, 4, 8), r.f(6, 8, s=0.4), r.f(8, 4, s=0.4), r.f(6, 8)),
)
def private_gradient_step(x, labels, w1, w2, noise):
    def loss(w, x, label):
        return -jax.nn.log_softmax(jax.nn.relu(x @ w[0]) @ w[1])[label]

    grads = jax.vmap(jax.grad(loss), (None, 0, 0))((w1, w2), x, labels)
    norms = jnp.sqrt(sum((g**2).sum((1, 2)) for g in grads))
    factor = jnp.minimum(1.0, 0.5 / norms)
    clipped = [jnp.einsum("b,bij->ij", factor, g) / 8 for g in grads]
    return w1 - 0.2 * (clipped[0] + 0.01 * noise), w2 - 0.2 * clipped[1], norms


@prog(
    (4, 2),
    (P("y"), P("y"), P("y"), P("y"), {"w": P(None, "x"), "v": P("x")}),
    lambda r: (r.f(4, 5, 3), r.f(4, 5), r.f(4, 5, 3), r.f(4, 5), {"w": r.f(3, 6, s=0.5), "v": r.f(6, s=0.5)}),
)
def adapted_in_one_step(support_x, support_y, query_x, query_y, params):
    def loss(p, x, y):
        return ((jax.nn.softplus(x @ p["w"]) @ p["v"] - y) ** 2).mean()

    def task(p, sx, sy, qx, qy):
        inner = jax.grad(loss)(p, sx, sy)
        return loss(jax.tree.map(lambda a, g: a - 0.1 * g, p, inner), qx, qy)

    def total(p):
        return jax.vmap(task, (None, 0, 0, 0, 0))(p, support_x, support_y, query_x, query_y).mean()

    return jax.value_and_grad(total)(params)


class Dense:
    def __init__(self, name):
        self.name = name

    def __call__(self, params, x):
        return x @ params[self.name]["kernel"] + params[self.name]["bias"]


@prog(
    (2, 4),
    (
        {
            "up": {"kernel": P(None, "x"), "bias": P("x")},
            "down": {"kernel": P("x"), "bias": P()},
            "norm": {"scale": P(), "bias": P()},
        },
        P("y"),
        P("y"),
    ),
    lambda r: (
        {
            "up": {"kernel": r.b(8, 16, s=0.3), "bias": r.b(16, s=0.1)},
            "down": {"kernel": r.b(16, 8, s=0.3), "bias": r.b(8, s=0.1)},
            "norm": {"scale": r.b(8), "bias": r.b(8, s=0.1)},
        },
        r.b(4, 6, 8),
        r.i(0, 10, 4, 6, 1),
    ),
)
def module_tree_with_dropout(params, x, drawn):
    up, down = Dense("up"), Dense("down")
    wide = x.astype(f32)
    centred = wide - wide.mean(-1, keepdims=True)
    normed = centred * lax.rsqrt((centred**2).mean(-1, keepdims=True) + 1e-5)
    h = normed.astype(bf16) * params["norm"]["scale"] + params["norm"]["bias"]
    h = down(params, jax.nn.hard_swish(up(params, h)))
    return x + jnp.where(drawn < 8, h / 0.8, 0).astype(bf16)


@jax.custom_vjp
def settled(a, b):
    z = jnp.zeros_like(b)
    for _ in range(4):
        z = jnp.tanh(z @ a + b)
    return z


def _settled_forward(a, b):
    z = settled(a, b)
    return z, (a, z)


def _settled_backward(kept, g):
    a, z = kept
    slope = 1 - z**2
    u = g
    for _ in range(4):
        u = g + (u * slope) @ a.T
    u = u * slope
    return z.T @ u, u


settled.defvjp(_settled_forward, _settled_backward)


@prog((2, 4), (P(None, "x"), P("y", "x")), lambda r: (r.f(8, 8, s=0.15), r.f(4, 8)))
def implicit_layer_gradient(a, b):
    return jax.value_and_grad(lambda a, b: (settled(a, b) ** 2).sum(), argnums=(0, 1))(a, b)


@prog((1, 8), (P("x"), P()), lambda r: (r.f(8, 48), r.pos(5)))
def tone_detector(x, tone):
    x = x * (0.54 - 0.46 * jnp.cos(2 * jnp.pi * jnp.arange(48) / 47))
    twice = 2 * jnp.cos(tone)[None, :]

    def step(i, state):
        before, last = state
        now = lax.dynamic_index_in_dim(x, i, 1) + twice * last - before
        return last, now

    zero = jnp.zeros((8, 5))
    before, last = lax.fori_loop(0, 48, step, (zero, zero))
    power = before**2 + last**2 - twice * before * last
    return 10 * jnp.log10(power + 1e-6), power.argmax(1)


@prog((8, 1), (P("y"),), lambda r: (r.f(8, 24),))
def reflection_coefficients(x):
    lags = jnp.stack([(x[:, lag:] * x[:, : 24 - lag]).sum(1) for lag in range(5)], axis=1)
    lags = lags.at[:, 0].multiply(1.05)
    error, filt, mirrors = lags[:, 0], jnp.zeros((8, 5)).at[:, 0].set(1.0), []
    for order in range(1, 5):
        mirror = -(filt[:, :order] * lags[:, order:0:-1]).sum(1) / error
        turned = jnp.pad(filt[:, :order][:, ::-1], ((0, 0), (1, 4 - order)))
        filt = filt + mirror[:, None] * turned
        error = error * (1 - mirror**2)
        mirrors.append(mirror)
    return filt, jnp.stack(mirrors, axis=-1), error


@prog((8, 1), (P("y"), P()), lambda r: (r.f(8, 18), r.f(12, s=0.4)))
def rational_resampler(x, taps):
    phases = taps.reshape(4, 3).T
    padded = jnp.pad(x, ((0, 0), (3, 0)))
    windows = jnp.stack([padded[:, 3 - k : 21 - k] for k in range(4)], axis=-1)
    up = jnp.einsum("bnk,pk->bnp", windows, phases).reshape(8, 54)
    return up[:, ::2], jnp.abs(up).reshape(8, 18, 3).max(-1)


@prog((2, 4), (P("y", "x"), P(None, "y", "x"), P()), lambda r: (r.f(4, 8), r.pos(3, 4, 8), r.f(3, 4, 8)))
def metropolis_walk(start, uniform, jump):
    def energy(x):
        return 0.25 * x**4 - x**2

    x, accepted = start, 0
    for step in range(3):
        trial = x + 0.7 * jump[step]
        take = jnp.log(uniform[step]) < energy(x) - energy(trial)
        x = jnp.where(take, trial, x)
        accepted = accepted + take.astype(jnp.int32)
    return x, accepted, accepted.sum(0)


@prog((2, 4), (P("y", "x"), P("y"), P("y", "x")), lambda r: (r.f(4, 32, s=2.0), r.pos(4), r.pos(4, 32)))
def minimum_probability_sample(logits, heat, uniform):
    probs = jax.nn.softmax(logits / heat[:, None], axis=-1)
    kept = probs >= 0.1 * probs.max(-1, keepdims=True)
    entropy = -(probs * jnp.log(probs + 1e-9)).sum(-1)
    noise = -jnp.log(-jnp.log(uniform / 1.3))
    scored = jnp.where(kept, jnp.log(probs) + noise, -jnp.inf)
    return scored.argmax(-1), kept.sum(-1), entropy


@prog((1, 8), (P("x"), P("x")), lambda r: (r.pos(16, 8), r.f(16, 8, s=0.3)))
def upwind_burgers(u, force):
    def flux(left, right):
        speed = 0.5 * (left + right)
        carried = jnp.where(speed > 0, left, right)
        return 0.5 * carried**2

    for _ in range(2):
        f = flux(u, jnp.roll(u, -1, axis=0))
        u = u - 0.2 * (f - jnp.roll(f, 1, axis=0)) + 0.05 * force
        u = u.at[:, 0].set(u[:, 1]).at[:, -1].set(u[:, -2])
    return u, jnp.abs(u).max(0)


@prog((2, 4), (P("y", "x"), P("y", "x"), P("y", "x")), lambda r: (r.f(8, 8), r.f(8, 8), r.f(8, 8)))
def staggered_maxwell(ez, hx, hy):
    @on((2, 4), (P("y", "x"),) * 3, (P("y", "x"),) * 3, check_vma=False)
    def run(ez, hx, hy):
        def from_next(edge, axis, n):
            return lax.ppermute(edge, axis, ring(n, -1))

        for _ in range(2):
            below = jnp.concatenate([ez[1:], from_next(ez[:1], "y", 2)], axis=0)
            right = jnp.concatenate([ez[:, 1:], from_next(ez[:, :1], "x", 4)], axis=1)
            hx, hy = hx - 0.4 * (below - ez), hy + 0.4 * (right - ez)
            above = jnp.concatenate([lax.ppermute(hx[-1:], "y", ring(2)), hx[:-1]], axis=0)
            left = jnp.concatenate([lax.ppermute(hy[:, -1:], "x", ring(4)), hy[:, :-1]], axis=1)
            ez = 0.98 * ez + 0.4 * ((hy - left) - (hx - above))
        return ez, hx, hy

    return run(ez, hx, hy)


@prog((2, 4), (P("y", "x"),), lambda r: (r.pos(8, 8),))
def all_pairs_shortest(weights):
    dist = jnp.where(jnp.eye(8) > 0, 0.0, jnp.where(weights > 0.9, 100.0, weights))
    for _ in range(3):
        dist = jnp.minimum(dist, (dist[:, :, None] + dist[None]).min(1))
    reached = dist < 50.0
    far = jnp.where(reached, dist, 0.0).max(1)
    return dist, far, jnp.where(reached, 1.0 / (dist + 1.0), 0.0).sum(0)


@prog((1, 8), (P("x"),), lambda r: (r.i(0, 256, 8, 12),))
def radix_pass(keys):
    for shift in (0, 4):
        digit = (keys >> shift) & 15
        hot = (digit[..., None] == jnp.arange(16)).astype(jnp.int32)
        counts = hot.sum(1)
        before = jnp.cumsum(counts, axis=1) - counts
        rank = (jnp.cumsum(hot, axis=1) - hot) + before[:, None]
        place = (rank * hot).sum(-1)
        keys = (jnp.where(place[..., None] == jnp.arange(12), keys[..., None], 0)).sum(1)
    return keys, counts


@prog((2, 4), (P("y", "x"), P("x"), P("x")), lambda r: (r.f(4, 16), r.f(16, 8, s=0.2), r.f(8, 16)))
def rotated_four_bit_linear(x, w, signs):
    def hadamard(x):
        for width in (1, 2, 4, 8):
            pairs = x.reshape(*x.shape[:-1], 16 // (2 * width), 2, width)
            a, b = pairs[..., 0, :], pairs[..., 1, :]
            x = jnp.stack([a + b, a - b], axis=-2).reshape(x.shape)
        return x / 4.0

    turned, weight = hadamard(x), hadamard(w.T).T
    scale = jnp.abs(turned).max(-1, keepdims=True) / 7.0
    codes = jnp.clip(jnp.round(turned / scale), -8, 7).astype(i8)
    per_column = jnp.abs(weight).max(0) / 127.0
    w8 = jnp.round(weight / per_column).astype(i8)
    summed = lax.dot_general(codes, w8, (((1,), (0,)), ((), ())), preferred_element_type=i32)
    return summed.astype(f32) * scale * per_column @ jnp.sign(signs)


@prog((2, 4), (P("y"), P(None, "x")), lambda r: (r.b(8, 16), r.f(16, 16, s=0.3)))
def ternary_weights(x, w):
    scale = jnp.abs(w).mean()
    codes = jnp.clip(jnp.round(w / (scale + 1e-5)), -1, 1)
    wide = x.astype(f32)
    step = 127.0 / jnp.maximum(jnp.abs(wide).max(-1, keepdims=True), 1e-5)
    levels = jnp.clip(jnp.round(wide * step), -128, 127)
    out = (levels @ codes) * scale / step
    return out.astype(bf16), codes.astype(i8), (codes == 0).astype(f32).mean(0)


@prog((2, 4), (P("y"), P("x"), P(), P()), lambda r: (r.f(4, 16), r.i(0, 8, 8, 8, 2), r.f(2, 8, 2, s=0.5), r.pos(8)))
def additive_codebook_linear(x, codes, books, gain):
    picked = jnp.take(books[0], codes[..., 0], axis=0) + jnp.take(books[1], codes[..., 1], axis=0)
    w = picked.reshape(8, 16) * gain[:, None]
    return x @ w.T, jnp.square(w).sum(1)


@prog((2, 4), (P("y", "x"),), lambda r: (r.f(8, 16, s=3.0),))
def eight_bit_float_rounding(x):
    size = jnp.clip(jnp.abs(x), 2.0**-6, 240.0)
    exponent = jnp.floor(jnp.log2(size))
    unit = jnp.exp2(exponent - 3.0)
    rounded = jnp.sign(x) * jnp.round(size / unit) * unit
    rounded = jnp.where(jnp.abs(x) < 2.0**-7, 0.0, rounded)
    return rounded, jnp.square(rounded - x).mean(0), exponent.max(1)


@prog(
    (2, 4),
    (P("y"), P("x"), P("y")),
    lambda r: (r.f(8, 6), r.f(12, 6), r.i(0, 12, 8)),
)
def angular_margin_loss(x, centres, labels):
    def loss(centres):
        a = x / jnp.linalg.norm(x, axis=-1, keepdims=True)
        c = centres / jnp.linalg.norm(centres, axis=-1, keepdims=True)
        cosine = jnp.clip(a @ c.T, -0.99, 0.99)
        with_margin = cosine * jnp.cos(0.3) - jnp.sqrt(1 - cosine**2) * jnp.sin(0.3)
        mine = jax.nn.one_hot(labels, 12, dtype=bool)
        logits = 8.0 * jnp.where(mine & (cosine > -0.95), with_margin, cosine)
        return -jnp.where(mine, jax.nn.log_softmax(logits), 0.0).sum(-1).mean()

    return jax.value_and_grad(loss)(centres)


@prog((8, 1), (P("y"), P("y"), P("y")), lambda r: (r.f(16), r.pos(16), r.i(0, 2, 16)))
def proportional_hazards(score, time, event):
    at_risk = time[None, :] >= time[:, None]
    shifted = score - score.max()
    log_risk = jnp.log((jnp.exp(shifted)[None, :] * at_risk).sum(1))
    partial = jnp.where(event == 1, shifted - log_risk, 0.0)
    agree = ((time[:, None] < time[None, :]) & (score[:, None] > score[None, :]) & (event[:, None] == 1)).sum()
    return -partial.sum() / jnp.maximum(event.sum(), 1), agree, log_risk


@prog((2, 4), (P("y", "x"), P("y")), lambda r: (r.f(4, 8), r.f(4)))
def ranked_probability_score(ensemble, observed):
    gap = jnp.abs(ensemble - observed[:, None]).mean(-1)
    pairs = jnp.abs(ensemble[:, :, None] - ensemble[:, None, :]).mean((1, 2))
    ordered = jnp.sort(ensemble, axis=-1)
    quantile = ordered[:, 1] + 0.75 * (ordered[:, 2] - ordered[:, 1])
    pinball = jnp.maximum(0.25 * (observed - quantile), -0.75 * (observed - quantile))
    return gap - 0.5 * pairs, pinball, (ensemble < observed[:, None]).sum(-1)


@prog((2, 4), (P("y"), P("y")), lambda r: (r.f(8, 6), r.f(8, 6)))
def variance_invariance_loss(a, b):
    def loss(a, b):
        same = ((a - b) ** 2).mean()
        spread, cross = 0.0, 0.0
        for z in (a, b):
            z = z - z.mean(0)
            spread += jax.nn.relu(1.0 - jnp.sqrt(z.var(0) + 1e-4)).mean()
            c = z.T @ z / 7
            cross += ((c * (1 - jnp.eye(6))) ** 2).sum() / 6
        return 25.0 * same + 25.0 * spread + cross

    return jax.value_and_grad(loss, argnums=(0, 1))(a, b)


@prog(
    (2, 4),
    (P("x"), P("y"), P("y")),
    lambda r: (r.f(8, s=0.5), r.f(8, 8), r.i(0, 2, 8)),
)
def sharpness_aware_step(w, x, y):
    def loss(w):
        z = x @ w
        return (jax.nn.softplus(z) - z * y).mean()

    g = jax.grad(loss)(w)
    climbed = w + 0.05 * g / (jnp.linalg.norm(g) + 1e-12)
    sharp, g2 = jax.value_and_grad(loss)(climbed)
    return w - 0.3 * jnp.sign(g2) * jnp.minimum(jnp.abs(g2), 0.2), sharp - loss(w)


@prog(
    (1, 8),
    (P("x"), P("x"), P("x"), P("x")),
    lambda r: (r.f(8, 6), r.f(8, 6), r.pos(8, 6), r.f(8, 6)),
)
def sign_agreement_and_proximal(w, g, rate, before):
    agree = jnp.sign(g * before)
    rate = jnp.clip(rate * jnp.where(agree > 0, 1.2, jnp.where(agree < 0, 0.5, 1.0)), 0.1, 0.9)
    used = jnp.where(agree < 0, 0.0, g)
    z = w - jnp.sign(used) * rate
    sparse = jnp.where(jnp.abs(z) > 0.3, z - 0.3 * jnp.sign(z), 0.0)
    trust = jnp.linalg.norm(w, axis=-1) / (jnp.linalg.norm(g, axis=-1) + 1e-6)
    return sparse, rate, used, jnp.clip(trust, 0.0, 10.0)


@prog(
    (8, 1),
    (P("y"), P(), P(), P(), P()),
    lambda r: (
        r.b(8, 8, 8, 4),
        r.b(1, 1, 4, 12, s=0.5),
        r.b(3, 3, 1, 12, s=0.3),
        r.b(12, 12, s=0.3),
        r.b(12, 4, s=0.3),
    ),
)
def inverted_residual(x, expand, depth, squeeze, project):
    numbers = ("NHWC", "HWIO", "NHWC")
    h = jnp.minimum(jax.nn.relu(lax.conv_general_dilated(x, expand, (1, 1), "SAME", dimension_numbers=numbers)), 6.0)
    h = lax.conv_general_dilated(h, depth, (1, 1), "SAME", dimension_numbers=numbers, feature_group_count=12)
    gate = jax.nn.hard_sigmoid(h.mean((1, 2)) @ squeeze)
    return x + (jax.nn.hard_swish(h) * gate[:, None, None, :]) @ project


@prog((2, 4), (P("y", None, "x"), P(), P()), lambda r: (r.f(2, 6, 8, 4, 4), r.f(3, 3, 3, 4, 4, s=0.2), r.f(8, 4)))
def video_shift_and_volume_filter(x, kernel, mix):
    shifted = jnp.concatenate(
        [
            jnp.pad(x[:, 1:, ..., :1], ((0, 0), (0, 1), (0, 0), (0, 0), (0, 0))),
            jnp.pad(x[:, :-1, ..., 1:2], ((0, 0), (1, 0), (0, 0), (0, 0), (0, 0))),
            x[..., 2:],
        ],
        axis=-1,
    )
    moved = lax.conv_general_dilated(shifted, kernel, (1, 1, 1), "SAME", dimension_numbers=("NDHWC", "DHWIO", "NDHWC"))
    return jnp.concatenate([x, jax.nn.relu(moved)], axis=-1) @ mix


@prog(
    (2, 4),
    (P("y"), P(None, "x"), P(None, "x"), P("x")),
    lambda r: (r.f(4, 8, 6), r.f(6, 8, s=0.4), r.f(6, 8, s=0.4), r.pos(8)),
)
def gated_linear_recurrence(x, w_in, w_gate, decay):
    gate = jax.nn.sigmoid(x @ w_gate)
    a = jnp.exp(-8.0 * jax.nn.softplus(decay) * gate)
    u = jnp.sqrt(jnp.maximum(1 - a**2, 1e-6)) * (x @ w_in)
    for shift in (1, 2, 4):
        before_a = jnp.pad(a[:, :-shift], ((0, 0), (shift, 0), (0, 0)), constant_values=1.0)
        before_u = jnp.pad(u[:, :-shift], ((0, 0), (shift, 0), (0, 0)))
        a, u = a * before_a, u + a * before_u
    return u, a[:, -1]


@prog(
    (2, 4),
    (P("y"), P("y"), P("y"), P("y"), P("y")),
    lambda r: (r.f(4, 6, 4), r.f(4, 6, 4), r.f(4, 6, 4), r.f(4, 6), r.f(4, 6, m=2.0)),
)
def matrix_memory_cell(q, k, v, i_gate, f_gate):
    def step(carry, now):
        memory, norm, top = carry
        q, k, v, i, f = now
        f = jax.nn.log_sigmoid(f)
        new = jnp.maximum(f + top, i)
        keep, add = jnp.exp(f + top - new)[:, None], jnp.exp(i - new)[:, None]
        memory = keep[..., None] * memory + add[..., None] * v[:, :, None] * k[:, None, :]
        norm = keep * norm + add * k
        read = jnp.einsum("bvk,bk->bv", memory, q)
        scale = jnp.maximum(jnp.abs((norm * q).sum(-1, keepdims=True)), 1.0)
        return (memory, norm, new), read / scale

    zero = jnp.zeros((4, 4, 4)), jnp.zeros((4, 4)), jnp.full((4,), -10.0)
    inputs = [jnp.moveaxis(x, 1, 0) for x in (q, k * 0.5, v, i_gate, f_gate)]
    (memory, _, top), out = lax.scan(step, zero, inputs)
    return out.swapaxes(0, 1), memory, top


@prog((2, 4), (P("y", None, "x"), P("x"), P(None, "x")), lambda r: (r.f(4, 12, 8), r.f(8, 3), r.f(12, 8)))
def long_implicit_filter(x, frequency, window):
    t = jnp.linspace(0, 1, 12)
    basis = jnp.sin(2 * jnp.pi * t[:, None, None] * frequency).sum(-1) * jnp.exp(-2 * t)[:, None] + 0.1 * window
    index = jnp.arange(12)[:, None] - jnp.arange(12)[None, :]
    banded = jnp.where((index >= 0)[..., None], basis[jnp.clip(index, 0)], 0.0)
    return jnp.einsum("tsd,bsd->btd", banded, x) * jax.nn.silu(x)


@prog(
    (2, 4),
    (P("y"), P("y"), P("x"), P("x")),
    lambda r: (r.f(16, 6), r.i(0, 1000, 16), r.f(8, 6, 8, s=0.4), r.f(8, 8, 6, s=0.4)),
)
def hash_routed_experts(x, token, w_in, w_out):
    mixed = (token * 40503) ^ (token >> 3)
    first, second = mixed % 8, ((mixed >> 5) + 3) % 8
    where = jax.nn.one_hot(first, 8) * 0.7 + jax.nn.one_hot(second, 8) * 0.3
    h = jax.nn.gelu(jnp.einsum("td,edf->tef", x, w_in), approximate=False)
    return jnp.einsum("tef,efd,te->td", h, w_out, where), where.sum(0), first


@prog(
    (1, 8),
    (P("x"), P("x"), P("x"), P()),
    lambda r: (r.f(16, 4), r.f(8, 4, 6, s=0.5), r.f(8, 6, 4, s=0.5), r.f(4, 8)),
)
def exchanged_experts_with_capacity(x, w_in, w_out, router):
    @on((1, 8), (P("x"), P("x"), P("x"), P()), (P("x"), P()), check_vma=False)
    def run(x, w_in, w_out, router):
        probs = jax.nn.softmax(x @ router)
        hot = jax.nn.one_hot(probs.argmax(-1), 8)
        place = (jnp.cumsum(hot, axis=0) - 1) * hot
        fits = hot * (place < 1)
        sent = jnp.einsum("te,td->ed", fits, x)[:, None]
        got = lax.all_to_all(sent, "x", 0, 0, tiled=True)
        done = jax.nn.relu(got[:, 0] @ w_in[0]) @ w_out[0]
        back = lax.all_to_all(done[:, None], "x", 0, 0, tiled=True)[:, 0]
        out = jnp.einsum("te,ed->td", fits * probs, back)
        return out, lax.psum(fits.sum(0), "x")

    return run(x, w_in, w_out, router)


@prog((8, 1), (P("y"),), lambda r: (r.f(8, 16),))
def ring_token_scan(x):
    @on((8, 1), P("y"), (P("y"), P()), check_vma=False)
    def run(x):
        here = lax.axis_index("y")
        local = jnp.cumsum(x, axis=1)
        carry, part = jnp.zeros(()), local[0, -1]
        for hop in range(1, 8):
            part = lax.ppermute(part, "y", ring(8))
            carry = carry + jnp.where(here >= hop, part, 0.0)
        whole = local + carry
        return whole, lax.pmax(whole.max(), "y") - lax.pmin(whole.min(), "y")

    return run(x)


@prog((2, 4), (P("y", "x"), P("x", "y")), lambda r: (r.b(8, 16), r.b(16, 8)))
def split_contraction_by_hand(a, b):
    @on((2, 4), (P("y", "x"), P("x", "y")), (P("y", "x"), P("y")), check_vma=False)
    def run(a, b):
        columns = lax.all_gather(b, "y", axis=1, tiled=True)
        part = jnp.dot(a, columns, preferred_element_type=f32)
        scattered = lax.psum_scatter(part, "x", scatter_dimension=1, tiled=True)
        top = lax.pmax(jnp.abs(part).max(1), "x")
        return scattered.astype(bf16), top

    return run(a, b)


@prog(
    (2, 4),
    (P("y"), P(), P("y"), P()),
    lambda r: (r.f(8, 5), r.i(0, 8, 20), r.i(0, 8, 20), r.f(5, 6, s=0.4)),
)
def directed_mean_and_max(nodes, source, target, w):
    messages = nodes[source] @ w
    hot = (target[None, :] == jnp.arange(8)[:, None]).astype(f32)
    degree = hot.sum(1, keepdims=True)
    mean = hot @ messages / jnp.maximum(degree, 1.0)
    top = jnp.where(hot[..., None] > 0, messages[None], -1e9).max(1)
    top = jnp.where(degree > 0, top, 0.0)
    h = jax.nn.selu(jnp.concatenate([mean, top], axis=-1))
    return h / jnp.maximum(jnp.linalg.norm(h, axis=-1, keepdims=True), 1e-6), degree[:, 0]


@prog((2, 4), (P("y", "x"), P()), lambda r: (r.i(-4, 2, 8, 8), r.i(0, 4, 8)))
def spreading_labels(edges, label):
    edges = jnp.maximum(edges, 0)
    adjacent = jnp.minimum(edges + edges.T + jnp.eye(8, dtype=i32), 1)
    for _ in range(2):
        votes = adjacent @ (label[:, None] == jnp.arange(4)).astype(i32)
        label = jnp.argmax(votes * 4 + (3 - jnp.arange(4)), axis=-1).astype(i32)
    triangles = ((edges @ edges) * edges).sum(1)
    return label, triangles, adjacent.sum(0)


@prog((1, 8), (P("x"), P("x")), lambda r: (r.i(0, 100, 8, 16), r.f(8, 16)))
def sorted_runs_and_unique(keys, values):
    order = jnp.argsort(keys, axis=1)
    ranked = jnp.take_along_axis(keys, order, axis=1)
    carried = jnp.take_along_axis(values, order, axis=1)
    fresh = jnp.concatenate([jnp.ones((8, 1), bool), ranked[:, 1:] // 10 != ranked[:, :-1] // 10], axis=1)
    group = jnp.cumsum(fresh.astype(i32), axis=1) - 1
    hot = group[..., None] == jnp.arange(10)
    return jnp.where(hot, carried[..., None], 0.0).sum(1), fresh.sum(1), ranked


@prog((2, 4), (P("y", "x"), P("y", "x")), lambda r: (r.f(8, 12), r.f(8, 12)))
def split_step_packet(re, im):
    n = jnp.arange(12)
    angle = 2 * jnp.pi * n[:, None] * n[None, :] / 12
    c, s = jnp.cos(angle), jnp.sin(angle)
    k = jnp.minimum(n, 12 - n) * 0.3
    for _ in range(2):
        phase = 0.1 * (re**2 + im**2)
        re, im = re * jnp.cos(phase) - im * jnp.sin(phase), re * jnp.sin(phase) + im * jnp.cos(phase)
        fr, fi = re @ c + im @ s, im @ c - re @ s
        turn = -0.5 * k**2
        fr, fi = fr * jnp.cos(turn) - fi * jnp.sin(turn), fr * jnp.sin(turn) + fi * jnp.cos(turn)
        re, im = (fr @ c - fi @ s) / 12, (fi @ c + fr @ s) / 12
    return re, im, (re**2 + im**2).sum(1)


@prog((8, 1), (P("y"), P("y"), P()), lambda r: (r.f(8, 2, s=2.0), r.f(8, 2), r.pos(8)))
def smoothed_particles(position, velocity, mass):
    def lennard(p):
        gap = p[:, None] - p[None, :]
        square = (gap**2).sum(-1) + jnp.eye(8) + 0.5
        inverse = 1.0 / square**3
        return 0.5 * ((inverse**2 - inverse) * (1 - jnp.eye(8))).sum()

    force = -jax.grad(lennard)(position)
    for _ in range(2):
        half = velocity + 0.05 * force / mass[:, None]
        position = position + 0.1 * half
        force = -jax.grad(lennard)(position)
        velocity = half + 0.05 * force / mass[:, None]
    density = (mass[None, :] * jnp.exp(-((position[:, None] - position[None]) ** 2).sum(-1))).sum(1)
    return position, velocity, density


@prog(
    (2, 4),
    (P("y", None, None, "x"),),
    lambda r: (r.i(0, 256, 4, 8, 8, 4),),
)
def dithered_thumbnails(image):
    x = image.astype(f32) / 255.0
    small = x.reshape(4, 4, 2, 4, 2, 4).mean((2, 4))
    bayer = jnp.array([[0.0, 0.5], [0.75, 0.25]])
    threshold = jnp.tile(bayer, (2, 2))[..., None]
    dots = (small > threshold).astype(i8)
    equal = (image[:, ::2, ::2] + image[:, 1::2, 1::2]) // 2
    return dots, equal.astype(i32) - 128, x.std((1, 2))


@prog(
    (2, 4),
    (P("y"), P(), P(None, "x"), P(None, "x")),
    lambda r: (r.i(0, 24, 4, 6), r.f(24, 8), r.f(6, 8), r.f(8, 24, s=0.3)),
)
def mixed_up_examples(tokens, table, places, head):
    lam = 0.3
    h = table[tokens] + places
    h = lam * h + (1 - lam) * h[::-1]
    logits = h.mean(1) @ head
    logp = jax.nn.log_softmax(logits)
    a, b = tokens[:, 0], tokens[::-1, 0]
    nll = -(lam * jnp.take_along_axis(logp, a[:, None], 1) + (1 - lam) * jnp.take_along_axis(logp, b[:, None], 1))
    return nll.mean(), logits


@prog((2, 4), (P("y", "x"), P("y", "x")), lambda r: (r.pos(8, 8), r.pos(8, 8)))
def bisection_in_each_element(target, slope):
    def one(target, slope):
        def body(state):
            low, high, step = state
            middle = 0.5 * (low + high)
            above = slope * middle + jnp.sinh(middle) > target
            return jnp.where(above, low, middle), jnp.where(above, middle, high), step + 1

        low, high, _ = lax.while_loop(lambda state: state[2] < 6, body, (0.0, 2.0, 0))
        return 0.5 * (low + high)

    root = jax.vmap(jax.vmap(one))(target, slope)
    return root, slope * root + jnp.sinh(root) - target


def decoder_weights(r, layers, width, heads, hidden, draw, s):
    return [
        {
            "qkv": draw(width, 3 * width, s=s),
            "out": draw(width, width, s=s),
            "up": draw(width, hidden, s=s),
            "down": draw(hidden, width, s=s),
        }
        for _ in range(layers)
    ]


LAYER = {"qkv": P(None, "x"), "out": P("x"), "up": P(None, "x"), "down": P("x")}


def attend(x, layer, heads):
    b, t, d = x.shape
    q, k, v = jnp.split((x @ layer["qkv"]).reshape(b, t, heads, 3 * d // heads), 3, axis=-1)
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k).astype(f32) * (d // heads) ** -0.5
    probs = jax.nn.softmax(jnp.where(jnp.tril(jnp.ones((t, t), bool)), scores, -1e9), axis=-1).astype(x.dtype)
    return jnp.einsum("bhqk,bkhd->bqhd", probs, v).reshape(b, t, d) @ layer["out"]


def scaled(x):
    wide = x.astype(f32)
    return (wide * lax.rsqrt((wide**2).mean(-1, keepdims=True) + 1e-6)).astype(x.dtype)


@prog((2, 4), (P("y"), [LAYER] * 8), lambda r: (r.f(2, 8, 32), decoder_weights(r, 8, 32, 4, 64, r.f, 0.15)))
def parallel_decoder_of_eight_layers(x, layers):
    for layer in layers:
        h = scaled(x)
        x = x + attend(h, layer, 4) + jax.nn.gelu(h @ layer["up"]) @ layer["down"]
    return scaled(x)


@prog(
    (2, 4),
    (P("y"), P(), [LAYER] * 4),
    lambda r: (r.i(0, 64, 2, 16), r.b(64, 512, s=0.3), decoder_weights(r, 4, 512, 8, 512, r.b, 0.04)),
)
def wide_decoder_of_four_layers(tokens, table, layers):
    x = table[tokens]
    for layer in layers:
        x = x + attend(scaled(x), layer, 8)
        x = x + jnp.square(jax.nn.relu(scaled(x) @ layer["up"])) @ layer["down"]
    return scaled(x) @ table.T


@prog((2, 4), (P("y"), [LAYER] * 12), lambda r: (r.f(2, 4, 16), decoder_weights(r, 12, 16, 4, 32, r.f, 0.2)))
def sandwich_decoder_of_twelve_layers(x, layers):
    for layer in layers:
        x = x + scaled(attend(scaled(x), layer, 4))
        x = x + scaled(jax.nn.silu(scaled(x) @ layer["up"]) @ layer["down"])
    return x.mean(1), x[:, -1]


@prog(
    (2, 4),
    (P("y", None, "x"), P("y", None, "x"), P("y", None, "x"), P("y")),
    lambda r: (r.b(2, 8, 4, 8), r.b(2, 24, 4, 8), r.b(2, 24, 4, 8), r.i(8, 25, 2)),
)
def chunked_prefill(q, k, v, length):
    position = length[:, None] - 8 + jnp.arange(8)
    top = jnp.full((2, 4, 8, 1), -1e30)
    total, out = jnp.zeros((2, 4, 8, 1)), jnp.zeros((2, 4, 8, 8))
    for block in range(3):
        here = slice(8 * block, 8 * block + 8)
        scores = jnp.einsum("bqhd,bkhd->bhqk", q, k[:, here], preferred_element_type=f32) * 8**-0.5
        seen = (8 * block + jnp.arange(8))[None, None, :] <= position[:, :, None]
        scores = jnp.where(seen[:, None], 20.0 * jnp.tanh(scores / 20.0), -1e30)
        new = jnp.maximum(top, scores.max(-1, keepdims=True))
        weights, keep = jnp.exp(scores - new), jnp.exp(top - new)
        total = total * keep + weights.sum(-1, keepdims=True)
        out = out * keep + jnp.einsum("bhqk,bkhd->bhqd", weights.astype(bf16), v[:, here]).astype(f32)
        top = new
    return (out / total).astype(bf16).swapaxes(1, 2)


@prog(
    (1, 8),
    (P(None, None, "x"), P(None, None, "x"), P("x"), P()),
    lambda r: (r.i(-127, 128, 2, 8, 8, 4, dt="int8"), r.f(2, 1, 8, 4), r.pos(8), r.i(0, 8, 2)),
)
def byte_cache_insert(cache, fresh, scale, place):
    codes = jnp.clip(jnp.round(fresh / scale[:, None] * 40.0), -127, 127).astype(i8)

    def put(row, new, at):
        return lax.dynamic_update_slice(row, new, (at, 0, 0))

    cache = jax.vmap(put)(cache, codes, place)
    wide = cache.astype(f32) * (scale[:, None] / 40.0)
    live = jnp.arange(8)[None, :, None, None] <= place[:, None, None, None]
    return cache, jnp.where(live, wide, 0.0).sum(1)


@prog(
    (2, 4),
    (P("y"), P(None, "x"), P(None, "x"), P()),
    lambda r: (r.f(4, 8, 8), r.f(8, 16, s=0.4), r.f(8, 8, s=0.4), r.f(7, 4)),
)
def convolved_queries(x, wq, wkv, filters):
    q = (x @ wq).reshape(4, 8, 4, 4)
    k, v = jnp.split((x @ wkv).reshape(4, 8, 1, 8), 2, axis=-1)
    q = sum(jnp.pad(q, ((0, 0), (lag, 0), (0, 0), (0, 0)))[:, :8] * filters[lag] for lag in range(3))
    scores = jnp.einsum("bqhd,bkgd->bhqk", q, k)
    order = jnp.arange(8)[:, None] >= jnp.arange(8)
    stick = jnp.where(order, jax.nn.log_sigmoid(-scores), 0.0)
    after = jnp.cumsum(stick[..., ::-1], axis=-1)[..., ::-1] - stick
    weights = jnp.where(order, jax.nn.sigmoid(scores) * jnp.exp(after), 0.0)
    return jnp.einsum("bhqk,bkgd->bqhd", weights, v), weights.sum(-1)


@prog((2, 4), (P("y", "x"), P("y", "x")), lambda r: (r.f(8, 16), r.pos(8, 16)))
def wiener_gain(signal, noise):
    n = jnp.arange(16)
    basis = jnp.cos(jnp.pi / 16 * (n[:, None] + 0.5) * n)
    spectrum = signal @ basis
    power = spectrum**2
    gain = jnp.maximum(power - noise, 0.05 * power) / (power + 1e-6)
    smooth = 0.5 * gain + 0.25 * jnp.roll(gain, 1, axis=0) + 0.25 * jnp.roll(gain, -1, axis=0)
    inverse = basis.T.at[0].multiply(0.5) / 8
    return (smooth * spectrum) @ inverse, smooth.min(1), jnp.round(10 * smooth).astype(i32)


@prog((8, 1), (P("y"), P("y"), P()), lambda r: (r.f(8, 10), r.f(8, 10), r.f(4, s=0.1)))
def adaptive_echo_canceller(far, near, start):
    def one(far, near):
        def step(state, now):
            w, line = state
            x, d = now
            line = jnp.concatenate([x[None], line[:-1]])
            e = d - w @ line
            w = w + 0.5 * e * line / (line @ line + 0.1)
            return (w, line), e

        (w, _), errors = lax.scan(step, (start, jnp.zeros(4)), (far, near))
        return w, errors

    return jax.vmap(one)(far, near)


@prog((2, 4), (P("y", "x"), P("x"), P()), lambda r: (r.f(8, 8), r.f(8, 5), r.f(3, 5)))
def random_feature_regression(x, w, targets):
    z = jnp.concatenate([jnp.cos(x @ w), jnp.sin(x @ w)], axis=-1) / jnp.sqrt(5.0)
    kernel = z @ z.T + 0.3 * jnp.eye(8)
    y = jnp.tanh(z[:, :5] @ targets.T)
    a = y / 2.0
    for _ in range(3):
        a = a + 0.4 * (y - kernel @ a)
    return kernel @ a - 0.3 * a, kernel.min(1), (a**2).sum(0)


@prog((1, 8), (P("x"), P("x"), P("x")), lambda r: (r.f(8, 12), r.f(8, 12, s=0.5), r.i(0, 2, 8, 12)))
def traces_and_returns(reward, value, done):
    def step(carry, now):
        total, trace = carry
        r, v, d = now
        live = 1.0 - d
        trace = 0.9 * live * trace + v
        total = r + 0.95 * live * total
        return (total, trace), (total - v, trace)

    zero = jnp.zeros(8)
    inputs = (reward.T, value.T, done.T.astype(f32))
    _, (advantage, trace) = lax.scan(step, (zero, zero), inputs, reverse=True)
    advantage = advantage.T
    return (advantage - advantage.mean()) / (advantage.std() + 1e-5), trace.T


@prog((2, 4), (P("y"), P("y"), P(None, "x")), lambda r: (r.f(4, 5, 2), r.f(4, 6, 2), r.f(2, 4)))
def set_distance_and_pooling(a, b, w):
    gaps = ((a[:, :, None] - b[:, None]) ** 2).sum(-1)
    chamfer = gaps.min(2).mean(1) + gaps.min(1).mean(1)
    nearest = gaps.argmin(2)
    plan = jnp.exp(-gaps / 0.5)
    for _ in range(2):
        plan = plan / plan.sum(2, keepdims=True)
        plan = plan / plan.sum(1, keepdims=True)
    pooled = jnp.sort(a @ w, axis=1)
    return chamfer, nearest, plan, pooled


@prog(
    (2, 4),
    (P("y"), P("y"), P("x"), P("x")),
    lambda r: (r.i(0, 16, 8), r.i(0, 16, 8, 3), r.f(16, 6, s=0.5), r.f(16, 6, s=0.5)),
)
def negative_sampling_step(centre, drawn, inner, outer):
    def loss(tables):
        a, b = tables
        c, n = jnp.take(a, centre, axis=0), jnp.take(b, drawn, axis=0)
        score = jnp.einsum("bd,bkd->bk", c, n)
        sign = jnp.where(jnp.arange(3) == 0, 1.0, -1.0)
        return -jax.nn.log_sigmoid(sign * score).sum(-1).mean()

    value, (da, db) = jax.value_and_grad(loss)((inner, outer))
    return value, inner - 0.5 * da, outer - 0.5 * db


@prog((2, 4), (P("y", None, None, "x"), P("x"), P("x")), lambda r: (r.b(4, 6, 6, 8), r.b(8), r.b(8)))
def response_norm_and_blur_pool(x, gain, bias):
    wide = x.astype(f32)
    nearby = sum(jnp.pad(wide**2, ((0, 0), (0, 0), (0, 0), (2, 2)))[..., i : i + 8] for i in range(5))
    x = (wide / (1.0 + 0.2 * nearby) ** 0.75).astype(bf16) * gain + bias
    blur = jnp.array([0.25, 0.5, 0.25], bf16)
    padded = jnp.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)), mode="reflect")
    rows = sum(blur[i] * padded[:, i : i + 6] for i in range(3))
    both = sum(blur[i] * rows[:, :, i : i + 6] for i in range(3))
    return jax.nn.mish(both[:, ::2, ::2])


@prog((2, 4), (P("y"), P(None, "x"), P("x")), lambda r: (r.f(8, 8), r.f(8, 16, s=0.4), r.f(16, 8, s=0.4)))
def checkpointed_blocks_gradient(x, w1, w2):
    @jax.checkpoint
    def block(x, w1, w2):
        h = jax.nn.glu(x @ w1, axis=-1)
        return x + jnp.concatenate([h, -h], axis=-1) @ w2

    def loss(w1, w2):
        y = x
        for _ in range(2):
            y = block(y, w1, w2)
        return jnp.log(jnp.cosh(y)).mean()

    return jax.grad(loss, argnums=(0, 1))(w1, w2)


@prog((2, 4), (P("y", "x"),), lambda r: (r.i(0, 2, 8, 32),))
def parity_and_packed_bits(bits):
    words = (bits.reshape(8, 4, 8) << jnp.arange(8)).sum(-1)
    grey = words ^ (words >> 1)
    weight = bits.reshape(8, 4, 8).sum(-1)
    check = jnp.zeros((8, 4), i32)
    for row in range(4):
        check = check | ((((words >> row) ^ (words >> (row + 2))) & 1) << row)
    return words - 128, grey, weight % 2, check


@prog((2, 4), (P("y"), P("y", "x")), lambda r: (r.f(8), r.f(8, 16)))
def isotonic_and_running_median(start, x):
    sums = jnp.concatenate([jnp.zeros((8, 1)), jnp.cumsum(x[:, :6], axis=1)], axis=1)
    width = jnp.arange(7)[None, :] - jnp.arange(7)[:, None]
    means = (sums[:, None, :] - sums[:, :, None]) / jnp.maximum(width, 1)
    means = jnp.where(width > 0, means, jnp.inf)[:, :6, 1:]
    fitted = jnp.stack([means[:, : i + 1, i:].min(2).max(1) for i in range(6)], axis=1)
    a, b, c = x[:, :-2], x[:, 1:-1], x[:, 2:]
    middle = jnp.maximum(jnp.minimum(a, b), jnp.minimum(jnp.maximum(a, b), c))
    return fitted + 0.1 * start[:, None], middle
