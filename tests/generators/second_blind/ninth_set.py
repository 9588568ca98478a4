"""Programs of a ninth set, whose author had read neither the diagnosis nor its tests: of everyday models and steps."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec as P

from tests.generators.second_blind.fourth_set import bf16, f32, i8, i32, prog
from tests.generators.second_blind.seventh_set import on, ring

IMAGE = ("NHWC", "HWIO", "NHWC")


def rms(x, gain):
    wide = x.astype(f32)
    return (wide * lax.rsqrt(jnp.mean(wide * wide, -1, keepdims=True) + 1e-5)).astype(x.dtype) * gain


def rotary(x, position):
    half = x.shape[-1] // 2
    angle = position[..., None, None].astype(f32) * 1000.0 ** (-jnp.arange(half) / half)
    a, b = x[..., :half].astype(f32), x[..., half:].astype(f32)
    turned = jnp.concatenate([a * jnp.cos(angle) - b * jnp.sin(angle), b * jnp.cos(angle) + a * jnp.sin(angle)], -1)
    return turned.astype(x.dtype)


def group_norm(x, gain, bias, groups):
    parts = x.reshape(*x.shape[:-1], groups, x.shape[-1] // groups)
    axes = (*range(1, x.ndim - 1), x.ndim)
    mean, var = parts.mean(axes, keepdims=True), parts.var(axes, keepdims=True)
    return ((parts - mean) * lax.rsqrt(var + 1e-5)).reshape(x.shape) * gain + bias


def conv(x, w, stride=1):
    return lax.conv_general_dilated(x, w, (stride, stride), "SAME", dimension_numbers=IMAGE)


@prog(
    (2, 4),
    (
        P("y"),
        P(None, "y", None, "x"),
        P(),
        {"norm": P(), "q": P(None, "x"), "kv": P(None, None, "x"), "o": P("x"), "up": P(None, "x"), "down": P("x")},
    ),
    lambda r: (
        r.b(4, 1, 16),
        r.b(2, 4, 10, 4, 4),
        r.i(0, 9, 1),
        {
            "norm": r.b(2, 16, s=0.2),
            "q": r.b(16, 32, s=0.25),
            "kv": r.b(2, 16, 16, s=0.25),
            "o": r.b(32, 16, s=0.2),
            "up": r.b(16, 24, s=0.25),
            "down": r.b(24, 16, s=0.2),
        },
    ),
)
def decoder_layer_step(x, cache, position, w):
    h = rms(x, 1 + w["norm"][0])
    q = rotary((h @ w["q"]).reshape(4, 1, 8, 4), position)
    k, v = ((h @ w["kv"][i]).reshape(4, 1, 4, 4) for i in range(2))
    fresh = jnp.stack([rotary(k, position), v])
    cache = lax.dynamic_update_slice(cache, fresh, (0, 0, position[0], 0, 0))
    keys, values = (jnp.repeat(c, 2, axis=2) for c in cache)
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, keys, preferred_element_type=f32) / 2.0
    scores = jnp.where(jnp.arange(10) <= position[0], scores, jnp.finfo(f32).min)
    probs = jax.nn.softmax(scores, axis=-1).astype(bf16)
    x = x + jnp.einsum("bhqk,bkhd->bqhd", probs, values).reshape(4, 1, 32) @ w["o"]
    return x + jax.nn.gelu(rms(x, 1 + w["norm"][1]) @ w["up"], approximate=True) @ w["down"], cache


@prog(
    (2, 4),
    (P("y"), P(), P("x"), P("x"), P("x")),
    lambda r: (r.f(12, 10), r.f(10, 8), r.f(8, 10, 6, s=0.4), r.f(8, 10, 6, s=0.4), r.f(8, 6, 10, s=0.4)),
)
def top_two_experts_and_balance(x, router, gate, up, down):
    logits = x @ router
    best, chosen = lax.top_k(logits, 2)
    share = jax.nn.softmax(best, axis=-1)
    weight = (jax.nn.one_hot(chosen, 8) * share[..., None]).sum(1)

    def expert(gate, up, down):
        return (jax.nn.silu(x @ gate) * (x @ up)) @ down

    out = jnp.einsum("etd,te->td", jax.vmap(expert)(gate, up, down), weight)
    fraction = jax.nn.one_hot(chosen[:, 0], 8).mean(0)
    balance = 8 * (fraction * jax.nn.softmax(logits).mean(0)).sum()
    return x + out, balance, chosen


@prog(
    (1, 8),
    (P("x"), P("x"), P()),
    lambda r: (
        r.f(8, 8, 8, 4),
        r.i(0, 100, 8),
        {
            "in": r.f(3, 3, 4, 8, s=0.2),
            "time": r.f(6, 8, s=0.4),
            "down": r.f(3, 3, 8, 8, s=0.15),
            "up": r.f(3, 3, 16, 4, s=0.1),
            "gain": r.pos(8),
            "bias": r.f(8, s=0.1),
        },
    ),
)
def u_net_block(image, time, w):
    angle = time[:, None] * jnp.exp(-jnp.log(50.0) * jnp.arange(3) / 3)
    when = jnp.concatenate([jnp.sin(angle), jnp.cos(angle)], axis=-1) @ w["time"]
    h = conv(image, w["in"]) + when[:, None, None]
    skip = jax.nn.swish(group_norm(h, w["gain"], w["bias"], 4))
    low = jax.nn.swish(group_norm(conv(skip, w["down"], 2), w["gain"], w["bias"], 2))
    pixels = low.reshape(8, 16, 8)
    probs = jax.nn.softmax(jnp.einsum("bpc,bqc->bpq", pixels, pixels) / jnp.sqrt(8.0), axis=-1)
    low = low + (probs @ pixels).reshape(low.shape)
    high = jnp.repeat(jnp.repeat(low, 2, axis=1), 2, axis=2)
    return image + conv(jnp.concatenate([high, skip], axis=-1), w["up"])


@prog(
    (2, 4),
    (P("y"), P("y"), [P(None, "x"), P("x"), P("x"), P("x"), P()], [P(None, "x"), P("x"), P("x"), P("x"), P()]),
    lambda r: (
        r.f(8, 6),
        r.i(0, 5, 8),
        [r.f(6, 12, s=0.4), r.pos(12), r.f(12, s=0.1), r.f(12, 5, s=0.3), r.f(5, s=0.1)],
        [r.f(6, 12, s=0.1), r.f(12, s=0.1), r.f(12, s=0.1), r.f(12, 5, s=0.1), r.f(5, s=0.1)],
    ),
)
def layer_norm_step_with_momentum(x, label, params, velocity):
    def loss(params):
        w1, gain, bias, w2, b2 = params
        h = x @ w1
        h = (h - h.mean(-1, keepdims=True)) / jnp.sqrt(h.var(-1, keepdims=True) + 1e-5) * gain + bias
        logits = jax.nn.relu(h) @ w2 + b2
        return -(jax.nn.log_softmax(logits) * jax.nn.one_hot(label, 5)).sum(1).mean()

    value, grads = jax.value_and_grad(loss)(params)
    grads = [g + 1e-2 * p for g, p in zip(grads, params, strict=True)]
    velocity = [0.9 * v + g for v, g in zip(velocity, grads, strict=True)]
    params = [p - 0.1 * (g + 0.9 * v) for p, g, v in zip(params, grads, velocity, strict=True)]
    return value, params, velocity


@prog(
    (1, 8),
    (P("x"), P("x"), P(), P(), P(None, "x")),
    lambda r: (r.f(8, 10), r.f(8, 10), r.f(10, 6, s=0.4), r.f(10, 6, s=0.4), r.f(6, 24)),
)
def contrast_with_queue(anchor, positive, w, slow, queue):
    def unit(x):
        return x * lax.rsqrt((x * x).sum(-1, keepdims=True) + 1e-8)

    slow = 0.99 * slow + 0.01 * w
    key = lax.stop_gradient(unit(positive @ slow))

    def loss(w):
        q = unit(anchor @ w)
        same = jnp.einsum("nc,nc->n", q, key)[:, None]
        logits = jnp.concatenate([same, q @ unit(queue.T).T], axis=1) / 0.2
        return (jax.nn.logsumexp(logits, axis=1) - logits[:, 0]).mean(), logits.argmax(1) == 0

    (value, right), grad = jax.value_and_grad(loss, has_aux=True)(w)
    queue = jnp.concatenate([queue[:, 8:], key.T], axis=1)
    return value, w - 0.5 * grad, slow, queue, right.astype(f32).mean()


@prog(
    (2, 4),
    (P("y"), P(None, "x"), P("x"), P("x"), P("x"), P()),
    lambda r: (
        r.f(8, 12, s=1.5, m=0.4),
        r.i(-127, 128, 12, 16, dt="int8"),
        r.pos(16),
        r.i(-300, 300, 16),
        r.i(-127, 128, 16, 6, dt="int8"),
        r.pos(6),
    ),
)
def two_quantised_linears(x, w1, scale1, bias1, w2, scale2):
    low, high = x.min(), x.max()
    step = (high - low) / 255.0
    zero = jnp.round(-128 - low / step).astype(i32)
    codes = jnp.clip(jnp.round(x / step) + zero, -128, 127).astype(i8)
    summed = lax.dot(codes, w1, preferred_element_type=i32)
    summed = summed - zero * w1.astype(i32).sum(0) + bias1
    hidden = jnp.clip(summed.astype(f32) * (step * scale1 / 100.0), 0.0, 6.0)
    again = jnp.round(hidden * (127.0 / 6.0)).astype(i8)
    out = lax.dot(again, w2, preferred_element_type=i32)
    return out.astype(f32) * (6.0 / 127.0) * scale2 / 100.0, again


@prog(
    (2, 4),
    (P("y"), P("x"), P("x"), P(None, "x"), P("x"), P(None, "x")),
    lambda r: (r.f(4, 12, 6), r.pos(8), r.f(8), r.f(6, 8, s=0.4), r.f(8, 6, s=0.4), r.f(6, 8, s=0.4)),
)
def associative_state_space(u, rate, step, b, c, gate):
    delta = jax.nn.softplus(step)
    decay = jnp.exp(-delta * rate)
    drive = (u @ b) * ((1 - decay) / rate)

    def join(left, right):
        return left[0] * right[0], right[0] * left[1] + right[1]

    _, states = lax.associative_scan(join, (jnp.broadcast_to(decay, drive.shape), drive), axis=1)
    return ((states * jax.nn.silu(u @ gate)) @ c) + u, states[:, -1]


@prog(
    (1, 8),
    (P(None, "x"), P(None, "x"), P(None, "x")),
    lambda r: (r.b(2, 16, 2, 8), r.b(2, 16, 2, 8), r.b(2, 16, 2, 8)),
)
def causal_ring_attention(q, k, v):
    @on((1, 8), (P(None, "x"),) * 3, P(None, "x"), check_vma=False)
    def run(q, k, v):
        here = lax.axis_index("x")
        rows = here * 2 + jnp.arange(2)

        def hop(i, state):
            k, v, top, total, out = state
            columns = (here - i) % 8 * 2 + jnp.arange(2)
            scores = jnp.einsum("bqhd,bkhd->bhqk", q, k).astype(f32) * 8**-0.5
            scores = jnp.where(rows[:, None] >= columns[None, :], scores, -1e9)
            new = jnp.maximum(top, scores.max(-1))
            weight, keep = jnp.exp(scores - new[..., None]), jnp.exp(top - new)
            total = total * keep + weight.sum(-1)
            out = out * keep[..., None] + jnp.einsum("bhqk,bkhd->bhqd", weight, v.astype(f32))
            return lax.ppermute(k, "x", ring(8)), lax.ppermute(v, "x", ring(8)), new, total, out

        start = k, v, jnp.full((2, 2, 2), -1e9), jnp.zeros((2, 2, 2)), jnp.zeros((2, 2, 2, 8))
        *_, total, out = lax.fori_loop(0, 8, hop, start)
        return (out / total[..., None]).swapaxes(1, 2).astype(bf16)

    return run(q, k, v)


@prog((2, 4), (P("x"), P("x"), P(None, "y")), lambda r: (r.f(4, 6, 6, s=0.5), r.f(4, 6, s=0.2), r.f(3, 4, 6)))
def four_stage_pipeline(w, b, batches):
    @on((2, 4), (P("x"), P("x"), P(None, "y")), (P(None, "y"), P()), check_vma=False)
    def run(w, b, batches):
        stage = lax.axis_index("x")

        def tick(state, t):
            fed = lax.dynamic_index_in_dim(batches, jnp.minimum(t, 2), 0, keepdims=False)
            h = jnp.where(stage == 0, fed, state)
            h = h + jax.nn.relu(h @ w[0] + b[0])
            return lax.ppermute(h, "x", ring(4)), h

        _, made = lax.scan(tick, jnp.zeros((2, 6)), jnp.arange(6))
        done = lax.psum(jnp.where(stage == 3, made[3:], 0.0), "x")
        return done, lax.pmean((done**2).mean(), "y")

    return run(w, b, batches)


BLOCK = {"q": P(None, "x"), "kv": P(None, "x"), "o": P("x"), "gate": P(None, "x"), "up": P(None, "x"), "down": P("x")}


@prog(
    (2, 4),
    (P("y"), P("y"), P(None, "x"), P(), [BLOCK] * 4),
    lambda r: (
        r.i(0, 48, 2, 12),
        r.i(0, 4, 2),
        r.b(48, 512),
        r.b(9, 512, s=0.1),
        [
            {
                "q": r.b(512, 512, s=0.04),
                "kv": r.b(512, 512, s=0.04),
                "o": r.b(512, 512, s=0.04),
                "gate": r.b(512, 256, s=0.04),
                "up": r.b(512, 256, s=0.04),
                "down": r.b(256, 512, s=0.06),
            }
            for _ in range(4)
        ],
    ),
)
def left_padded_decoder_of_width_512(tokens, padding, table, gains, layers):
    there = jnp.arange(12) >= padding[:, None]
    position = jnp.maximum(jnp.cumsum(there.astype(i32), axis=1) - 1, 0)
    seen = jnp.tril(jnp.ones((12, 12), bool)) & there[:, None, :]
    x = jnp.take(table, tokens, axis=0)
    for i, w in enumerate(layers):
        h = rms(x, 1 + gains[2 * i])
        q = rotary((h @ w["q"]).reshape(2, 12, 8, 64), position)
        k, v = jnp.split((h @ w["kv"]).reshape(2, 12, 8, 64), 2, axis=2)
        q = q.reshape(2, 12, 4, 2, 64)
        scores = jnp.einsum("bqgrd,bkgd->bgrqk", q, rotary(k, position)).astype(f32) * 0.125
        probs = jax.nn.softmax(jnp.where(seen[:, None, None], scores, -1e9), axis=-1).astype(bf16)
        x = x + jnp.einsum("bgrqk,bkgd->bqgrd", probs, v).reshape(2, 12, 512) @ w["o"]
        h = rms(x, 1 + gains[2 * i + 1])
        x = x + (jax.nn.silu(h @ w["gate"]) * (h @ w["up"])) @ w["down"]
    return rms(x, 1 + gains[8])[:, -1] @ table.T


@prog(
    (2, 4),
    (P("y"), {"qkv": P(None, None, "x"), "o": P(None, "x"), "up": P(None, None, "x"), "down": P(None, "x")}),
    lambda r: (
        r.f(4, 6, 8),
        {
            "qkv": r.f(3, 8, 24, s=0.3),
            "o": r.f(3, 8, 8, s=0.3),
            "up": r.f(3, 8, 16, s=0.3),
            "down": r.f(3, 16, 8, s=0.2),
        },
    ),
)
def layers_in_a_scan(x, stacked):
    def norm(x):
        return (x - x.mean(-1, keepdims=True)) * lax.rsqrt(x.var(-1, keepdims=True) + 1e-5)

    def layer(x, w):
        q, k, v = (norm(x) @ w["qkv"]).reshape(4, 6, 3, 2, 4).transpose(2, 0, 3, 1, 4)
        scores = q @ k.swapaxes(-1, -2) / 2.0
        scores = jnp.where(jnp.arange(6)[:, None] >= jnp.arange(6), scores, -jnp.inf)
        h = (jax.nn.softmax(scores) @ v).swapaxes(1, 2).reshape(4, 6, 8)
        x = x + h @ w["o"]
        x = x + jax.nn.gelu(norm(x) @ w["up"]) @ w["down"]
        return x, jnp.abs(x).max()

    x, peaks = lax.scan(layer, x, stacked)
    return norm(x), peaks


@prog(
    (2, 4),
    (P("y"), P(), P(), P(None, "x"), P("x"), P("y")),
    lambda r: (r.f(8, 6), r.i(0, 8, 20), r.i(0, 8, 20), r.f(6, 8, s=0.4), r.f(8, 3, s=0.4), r.i(0, 3, 8)),
)
def graph_convolution_gradient(nodes, source, target, w1, w2, label):
    degree = jax.ops.segment_sum(jnp.ones(20), target, 8) + 1.0
    scale = lax.rsqrt(degree)

    def spread(h):
        sent = jnp.take(h * scale[:, None], source, axis=0)
        return (jax.ops.segment_sum(sent, target, 8) + h * scale[:, None]) * scale[:, None]

    def loss(w1, w2):
        h = jax.nn.relu(spread(nodes @ w1))
        logits = spread(h @ w2)
        return -(jax.nn.log_softmax(logits) * jax.nn.one_hot(label, 3)).sum(1).mean(), logits

    (value, logits), grads = jax.value_and_grad(loss, argnums=(0, 1), has_aux=True)(w1, w2)
    return value, logits, grads


@prog(
    (2, 4),
    (P("y"), P("y"), P("y"), P("y", None, "x")),
    lambda r: (r.f(4, 3), r.i(0, 12, 4, 3, 5), r.i(0, 2, 4, 3), r.f(4, 3, 12, s=2.0)),
)
def beams_extended_by_one(score, beams, finished, logits):
    logp = jax.nn.log_softmax(logits, axis=-1)
    only_end = jnp.where(jnp.arange(12) == 0, 0.0, -1e7)
    logp = jnp.where(finished[..., None] == 1, only_end, logp)
    total, flat = lax.top_k((score[..., None] + logp).reshape(4, 36), 3)
    parent, token = flat // 12, flat % 12
    mine = jax.nn.one_hot(parent, 3, dtype=i32)
    beams = jnp.einsum("bnp,bpt->bnt", mine, beams)
    finished = (mine * finished[:, None]).sum(-1) | (token == 0).astype(i32)
    beams = jnp.concatenate([beams, token[..., None]], axis=-1)
    return total, beams, finished, total / ((5.0 + beams.shape[-1]) / 6.0) ** 0.6


@prog(
    (2, 4),
    (P("y"), P("y"), P("x"), P(None, "x")),
    lambda r: (r.i(0, 16, 4, 5), r.i(-3, 16, 4, 5), r.f(16, 8, s=0.5), r.f(8, 16, s=0.4)),
)
def embedding_gradient_by_one_hot(tokens, labels, table, head):
    hot = jax.nn.one_hot(tokens, 16)
    counted = labels >= 0

    def loss(table, head):
        logits = jnp.tanh(hot @ table) @ head
        logp = jax.nn.log_softmax(logits, axis=-1)
        nll = -jnp.where(labels[..., None] == jnp.arange(16), logp, 0.0).sum(-1)
        smooth = -logp.mean(-1)
        per = jnp.where(counted, 0.9 * nll + 0.1 * smooth, 0.0)
        return per.sum() / jnp.maximum(counted.sum(), 1)

    value, (dt, dh) = jax.value_and_grad(loss, argnums=(0, 1))(table, head)
    seen = jnp.minimum(hot.sum((0, 1)), 1.0)
    return value, table - 0.3 * dt * seen[:, None], head - 0.3 * dh


@prog(
    (1, 8),
    (P("x"), P(), P(), P()),
    lambda r: (r.b(8, 40, 1), r.b(5, 1, 8, s=0.5), r.b(3, 8, 8, s=0.2), r.b(3, 8, 6, s=0.2)),
)
def strided_conv1d_stack(wave, w1, w2, w3):
    h = wave
    for w, stride in ((w1, 3), (w2, 2), (w3, 1)):
        h = lax.conv_general_dilated(h, w, (stride,), "VALID", dimension_numbers=("NWC", "WIO", "NWC"))
        wide = h.astype(f32)
        wide = (wide - wide.mean(-1, keepdims=True)) * lax.rsqrt(wide.var(-1, keepdims=True) + 1e-5)
        h = jax.nn.gelu(wide).astype(bf16)
    return h, h.astype(f32).max(1)


@prog((1, 8), (P("x"), P(), P("x")), lambda r: (r.f(8, 10), r.pos(2), r.f(8, 2)))
def constant_velocity_filter(seen, noise, start):
    a = jnp.array([[1.0, 0.5], [0.0, 1.0]])
    h = jnp.array([1.0, 0.0])

    def one(seen, start):
        def step(state, z):
            m, p = state
            m, p = a @ m, a @ p @ a.T + 0.1 * noise[0] * jnp.eye(2)
            gap = z - h @ m
            spread = h @ p @ h + noise[1]
            gain = p @ h / spread
            m = m + gain * gap
            p = (jnp.eye(2) - jnp.outer(gain, h)) @ p
            return (m, p), (m, jnp.log(spread) + gap**2 / spread)

        (_, p), (means, surprise) = lax.scan(step, (start, jnp.eye(2)), seen)
        return means, p, -0.5 * surprise.sum()

    return jax.vmap(one)(seen, start)


@prog((2, 4), (P("y", "x"), P(None, "x"), P()), lambda r: (r.f(16, 8), r.f(5, 8), r.i(0, 20, 5)))
def mini_batch_centroids(points, centres, counts):
    far = (points**2).sum(1, keepdims=True) - 2 * points @ centres.T + (centres**2).sum(1)
    mine = jnp.argmin(far, axis=1)
    added = jax.ops.segment_sum(points, mine, num_segments=5)
    n = jax.ops.segment_sum(jnp.ones(16, i32), mine, num_segments=5)
    total = counts + n
    moved = (centres * counts[:, None] + added) / jnp.maximum(total, 1)[:, None]
    centres = jnp.where((n > 0)[:, None], moved, centres)
    return centres, total, mine, jnp.sqrt(jnp.maximum(far.min(1), 0.0)).mean()


@prog(
    (2, 4),
    (P("y", None, "x"), P(None, None, "x"), P(None, None, "x"), P(None, "x")),
    lambda r: (r.f(4, 12, 8), r.f(4, 8, 8, s=0.3), r.f(4, 8, 8, s=0.3), r.f(8, 8, s=0.3)),
)
def spectral_operator_layer(x, real, imaginary, skip):
    angle = 2 * jnp.pi * jnp.outer(jnp.arange(4), jnp.arange(12)) / 12
    cos, sin = jnp.cos(angle), jnp.sin(angle)
    a, b = jnp.einsum("kn,bnc->bkc", cos, x), -jnp.einsum("kn,bnc->bkc", sin, x)
    c = jnp.einsum("bkc,kcd->bkd", a, real) - jnp.einsum("bkc,kcd->bkd", b, imaginary)
    d = jnp.einsum("bkc,kcd->bkd", a, imaginary) + jnp.einsum("bkc,kcd->bkd", b, real)
    weight = jnp.where(jnp.arange(4) == 0, 1.0, 2.0)[:, None] / 12
    back = jnp.einsum("kn,bkd->bnd", cos, c * weight) - jnp.einsum("kn,bkd->bnd", sin, d * weight)
    return jax.nn.gelu(back + x @ skip), jnp.sqrt(c**2 + d**2).mean(0)


@prog(
    (2, 4),
    (P("y"), P("y"), P("y"), P(None, "x"), P("x")),
    lambda r: (r.f(4, 10, 8), r.i(0, 5, 4, 10), r.i(-2, 24, 4, 10), r.f(8, 24, s=0.3), r.f(24, s=0.2)),
)
def packed_documents(x, drawn, labels, head, bias):
    starts = (drawn == 0).at[:, 0].set(True)
    document = jnp.cumsum(starts.astype(i32), axis=1)
    index = jnp.arange(10)
    position = index - lax.cummax(jnp.where(starts, index, 0), axis=1)
    seen = (document[:, :, None] == document[:, None, :]) & (index[:, None] >= index)
    x = x + 0.1 * jnp.sin(position[..., None] * jnp.arange(1, 9))
    probs = jax.nn.softmax(jnp.where(seen, jnp.einsum("bqd,bkd->bqk", x, x) / 8**0.5, -1e30), axis=-1)
    logits = (probs @ x) @ head + bias
    valid = (labels >= 0) & ~jnp.roll(starts, -1, axis=1)
    top = logits.max(-1, keepdims=True)
    log_sum = jnp.log(jnp.exp(logits - top).sum(-1)) + top[..., 0]
    picked = jnp.where(labels[..., None] == jnp.arange(24), logits, 0.0).sum(-1)
    nll = jnp.where(valid, log_sum - picked + 1e-2 * log_sum**2, 0.0)
    hits = ((logits.argmax(-1) == labels) & valid).sum()
    return nll.sum() / jnp.maximum(valid.sum(), 1), position, hits
