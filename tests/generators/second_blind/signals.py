"""Convolutions, scans, norms and interpolation."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import Mesh, PartitionSpec as P

from tests.generators.second_blind.made import Draw, Parts, program

BF16 = jnp.bfloat16
NHWC = ("NHWC", "HWIO", "NHWC")


@program(2, 4)
def residual_block(draw: Draw, mesh: Mesh) -> Parts:
    def conv(x: Any, k: Any, stride: int = 1) -> Any:
        return lax.conv_general_dilated(x, k, (stride, stride), "SAME", dimension_numbers=NHWC)

    def norm(x: Any, s: Any) -> Any:
        mean = x.mean((1, 2), keepdims=True)
        return (x - mean) * lax.rsqrt(x.var((1, 2), keepdims=True) + 1e-3) * s

    def block(p: Any, x: Any) -> Any:
        h = jax.nn.relu(norm(conv(x, p["k1"], 2), p["s1"]))
        return jax.nn.relu(norm(conv(h, p["k2"]), p["s2"]) + conv(x, p["skip"], 2))

    p = {"k1": draw.weight(3, 3, 4, 8), "s1": draw.uniform(8), "k2": draw.weight(3, 3, 8, 8), "s2": draw.uniform(8)}
    p |= {"skip": draw.weight(1, 1, 4, 8)}
    return block, (p, draw.normal(4, 8, 8, 4)), (P(), P("x"))


@program(1, 4)
def depthwise_separable(draw: Draw, mesh: Mesh) -> Parts:
    def block(x: Any, depth: Any, point: Any) -> Any:
        h = lax.conv_general_dilated(x, depth, (1, 1), "SAME", dimension_numbers=NHWC, feature_group_count=8)
        h = jnp.clip(h, 0, 6)
        return lax.conv_general_dilated(h, point, (1, 1), "VALID", dimension_numbers=NHWC)

    return block, (draw.normal(4, 6, 6, 8), draw.weight(3, 3, 1, 8), draw.weight(1, 1, 8, 12)), (P("y"), P(), P())


@program(2, 2)
def dilated_conv1d_bf16(draw: Draw, mesh: Mesh) -> Parts:
    def causal(x: Any, k: Any, dilation: int) -> Any:
        pads = [((k.shape[0] - 1) * dilation, 0)]
        numbers = ("NWC", "WIO", "NWC")
        return lax.conv_general_dilated(x, k, (1,), pads, rhs_dilation=(dilation,), dimension_numbers=numbers)

    def stack(x: Any, kernels: Any) -> Any:
        for i, k in enumerate(kernels):
            x = x + jnp.tanh(causal(x, k, 2**i))
        return x

    kernels = [draw.weight(3, 8, 8, dtype=BF16) for _ in range(3)]
    return stack, (draw.normal(4, 16, 8, dtype=BF16), kernels), (P("x"), P())


@program(2, 4)
def pooled_pyramid(draw: Draw, mesh: Mesh) -> Parts:
    def half(x: Any) -> Any:
        return lax.reduce_window(x, 0.0, lax.add, (1, 2, 2, 1), (1, 2, 2, 1), "VALID") / 4

    def pyramid(x: Any) -> Any:
        a = half(x)
        b = half(a)
        back = jnp.repeat(jnp.repeat(b, 2, axis=1), 2, axis=2)
        return {"detail": a - back, "coarse": b, "peak": b.max((1, 2))}

    return pyramid, (draw.normal(2, 8, 8, 8),), (P("x", None, None, "y"),)


@program(1, 8)
def max_pool_head(draw: Draw, mesh: Mesh) -> Parts:
    def head(x: Any, w: Any) -> Any:
        pooled = lax.reduce_window(x, -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
        flat = pooled.reshape(x.shape[0], -1)
        return jax.nn.log_softmax(flat @ w, -1)

    return head, (draw.normal(4, 4, 4, 8), draw.weight(32, 16)), (P(), P("y", None))


@program(2, 4)
def gru_unrolled(draw: Draw, mesh: Mesh) -> Parts:
    def cell(p: Any, h: Any, x: Any) -> Any:
        z, r = jnp.split(jax.nn.sigmoid(x @ p["x"] + h @ p["h"]), 2, axis=-1)
        candidate = jnp.tanh(x @ p["xc"] + (r * h) @ p["hc"])
        return (1 - z) * h + z * candidate

    def run(p: Any, x: Any) -> Any:
        h, out = jnp.zeros((x.shape[0], 16)), []
        for t in range(x.shape[1]):
            h = cell(p, h, x[:, t])
            out.append(h)
        return jnp.stack(out, 1), h

    p = {"x": draw.weight(8, 32), "h": draw.weight(16, 32), "xc": draw.weight(8, 16), "hc": draw.weight(16, 16)}
    return run, (p, draw.normal(4, 5, 8)), ({"x": P(), "h": P(), "xc": P(None, "y"), "hc": P(None, "y")}, P("x"))


@program(1, 2)
def lstm_cell(draw: Draw, mesh: Mesh) -> Parts:
    def step(p: Any, carry: Any, x: Any) -> Any:
        h, c = carry
        gates = jnp.concatenate([x, h], -1) @ p["w"] + p["b"]
        i, f, g, o = jnp.split(gates, 4, axis=-1)
        c = jax.nn.sigmoid(f + 1.0) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
        return jax.nn.sigmoid(o) * jnp.tanh(c), c

    carry = (draw.normal(4, 8), draw.normal(4, 8))
    return step, ({"w": draw.weight(20, 32), "b": draw.normal(32)}, carry, draw.normal(4, 12)), (P(), P("y"), P("y"))


@program(2, 2)
def state_space_scan(draw: Draw, mesh: Mesh) -> Parts:
    def run(a: Any, b: Any, c: Any, x: Any) -> Any:
        decay = jnp.exp(-jax.nn.softplus(a))
        state, out = jnp.zeros((x.shape[0], x.shape[2], a.shape[1])), []
        for t in range(x.shape[1]):
            state = state * decay + x[:, t, :, None] * b[:, t, None, :]
            out.append((state * c[:, t, None, :]).sum(-1))
        return jnp.stack(out, 1) + 0.5 * x

    args = (draw.normal(8, 4), draw.normal(2, 6, 4), draw.normal(2, 6, 4), draw.normal(2, 6, 8))
    return run, args, (P("y"), P("x"), P("x"), P("x", None, "y"))


@program(1, 4)
def associative_decay(draw: Draw, mesh: Mesh) -> Parts:
    def join(left: Any, right: Any) -> Any:
        return left[0] * right[0], right[0] * left[1] + right[1]

    def run(a: Any, x: Any) -> Any:
        return lax.associative_scan(join, (jax.nn.sigmoid(a), x), axis=1)[1]

    return run, (draw.normal(4, 8, 8), draw.normal(4, 8, 8)), (P(None, None, "y"),) * 2


@program(2, 4)
def cumulative_statistics(draw: Draw, mesh: Mesh) -> Parts:
    def run(x: Any) -> Any:
        count = jnp.arange(1, x.shape[1] + 1, dtype=x.dtype)
        mean = jnp.cumsum(x, 1) / count
        spread = jnp.cumsum(x * x, 1) / count - mean**2
        return mean, jnp.sqrt(jnp.maximum(spread, 0) + 1e-4), x - jnp.roll(mean, 1, axis=1)

    return run, (draw.normal(8, 12),), (P(("x", "y")),)


@program(2, 2)
def group_norm(draw: Draw, mesh: Mesh) -> Parts:
    def norm(x: Any, scale: Any, bias: Any) -> Any:
        b, s, c = x.shape
        g = x.reshape(b, s, 4, c // 4)
        mean, var = g.mean((1, 3), keepdims=True), g.var((1, 3), keepdims=True)
        return ((g - mean) / jnp.sqrt(var + 1e-2)).reshape(b, s, c) * scale + bias

    return norm, (draw.normal(4, 6, 16), draw.uniform(16), draw.normal(16)), (P("x", None, "y"), P("y"), P("y"))


@program(2, 4)
def batch_norm_training(draw: Draw, mesh: Mesh) -> Parts:
    def norm(state: Any, x: Any) -> Any:
        mean = x.mean((0, 1))
        var = ((x - mean) ** 2).mean((0, 1))
        new = {"mean": 0.9 * state["mean"] + 0.1 * mean, "var": 0.9 * state["var"] + 0.1 * var}
        return (x - mean) * lax.rsqrt(var + 1e-3), new

    state = {"mean": draw.normal(8), "var": draw.uniform(8)}
    return norm, (state, draw.normal(4, 6, 8)), ({"mean": P("y"), "var": P("y")}, P("x", None, "y"))


@program(1, 8)
def bilinear_upsample(draw: Draw, mesh: Mesh) -> Parts:
    def weights(size: int, to: int) -> Any:
        at = jnp.clip((jnp.arange(to) + 0.5) * size / to - 0.5, 0, size - 1)
        return jnp.maximum(0, 1 - jnp.abs(at[:, None] - jnp.arange(size)[None]))

    def up(x: Any) -> Any:
        return jnp.einsum("ih,jw,bhwc->bijc", weights(4, 8), weights(4, 8), x)

    return up, (draw.normal(2, 4, 4, 16),), (P(None, None, None, "y"),)


@program(2, 2)
def linear_interpolation(draw: Draw, mesh: Mesh) -> Parts:
    def lookup(table: Any, at: Any) -> Any:
        low = jnp.clip(jnp.floor(at).astype(jnp.int32), 0, table.shape[0] - 2)
        part = at - low
        return table[low] * (1 - part)[:, None] + table[low + 1] * part[:, None]

    return lookup, (draw.normal(16, 8), draw.uniform(8, low=0, high=15)), (P(None, "y"), P("x"))


@program(2, 4)
def spectral_features(draw: Draw, mesh: Mesh) -> Parts:
    def features(x: Any) -> Any:
        frames = jnp.stack([x[:, i : i + 8] for i in range(0, 20, 4)], 1)
        n = jnp.arange(8)
        window = 0.5 - 0.5 * jnp.cos(2 * jnp.pi * n / 8)
        angles = 2 * jnp.pi * n[:, None] * jnp.arange(5)[None] / 8
        real, imaginary = frames * window @ jnp.cos(angles), frames * window @ jnp.sin(angles)
        return jnp.log1p(real**2 + imaginary**2)

    return features, (draw.normal(8, 32),), (P(("x", "y")),)


@program(1, 4)
def unet_skip(draw: Draw, mesh: Mesh) -> Parts:
    def conv(x: Any, k: Any) -> Any:
        return lax.conv_general_dilated(x, k, (1, 1), ((1, 1), (1, 1)), dimension_numbers=NHWC)

    def net(p: Any, x: Any) -> Any:
        a = jax.nn.leaky_relu(conv(x, p["in"]), 0.1)
        b = lax.conv_general_dilated(a, p["down"], (2, 2), ((0, 0), (0, 0)), dimension_numbers=NHWC)
        c = jnp.repeat(jnp.repeat(jax.nn.silu(b), 2, 1), 2, 2)
        return conv(jnp.concatenate([a, c], -1), p["out"])

    p = {"in": draw.weight(3, 3, 4, 8), "down": draw.weight(2, 2, 8, 8), "out": draw.weight(3, 3, 16, 4)}
    return net, (p, draw.normal(4, 6, 6, 4)), (P(), P("y"))


@program(2, 4)
def diffusion_step(draw: Draw, mesh: Mesh) -> Parts:
    def step(x: Any, noise: Any, t: Any, betas: Any) -> Any:
        kept = jnp.cumprod(1 - betas)
        now = jnp.einsum("bt,t->b", jax.nn.one_hot(t, betas.shape[0]), kept)[:, None]
        mixed = jnp.sqrt(now) * x + jnp.sqrt(1 - now) * noise
        frequencies = jnp.exp(-jnp.log(1e3) * jnp.arange(4) / 4)
        angles = t[:, None] * frequencies[None]
        return mixed, jnp.concatenate([jnp.sin(angles), jnp.cos(angles)], -1)

    args = (draw.normal(4, 8), draw.normal(4, 8), draw.ids(10, 4), draw.uniform(10, low=0.01, high=0.2))
    return step, args, (P("x", "y"), P("x", "y"), P("x"), P())
