"""The U-Net of Stable Diffusion 1.5 in plain JAX."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp

from tests.models.layers import (
    Weights,
    attention,
    attention_weights,
    convolution_weights,
    convolve,
    group_norm,
    layer_norm,
    linear,
    linear_weights,
    norm_weights,
)

CHANNELS = (320, 640, 1280, 1280)
ATTENDS = (True, True, True, False)
"""The levels whose blocks attend to the text."""
HEADS, TEXT, TIME = 8, 768, 1280


def residual_weights(inputs: int, outputs: int) -> dict[str, Any]:
    parts = {
        "norm1": norm_weights(inputs), "conv1": convolution_weights(3, inputs, outputs),
        "time": linear_weights(TIME, outputs), "norm2": norm_weights(outputs),
        "conv2": convolution_weights(3, outputs, outputs),
    }  # fmt: skip
    return parts | ({} if inputs == outputs else {"skip": convolution_weights(1, inputs, outputs)})


def residual(w: Weights, x: jax.Array, time: jax.Array) -> jax.Array:
    y = convolve(w["conv1"], jax.nn.silu(group_norm(w["norm1"], x)))
    y = y + linear(w["time"], jax.nn.silu(time))[:, None, None]
    y = convolve(w["conv2"], jax.nn.silu(group_norm(w["norm2"], y)))
    return y + (convolve(w["skip"], x) if "skip" in w else x)


def transformer_weights(width: int) -> dict[str, Any]:
    return {
        "norm": norm_weights(width), "in": convolution_weights(1, width, width),
        "norm1": norm_weights(width), "self": attention_weights(width, width, "o"),
        "norm2": norm_weights(width), "cross": attention_weights(width, TEXT, "o"),
        "norm3": norm_weights(width), "up": linear_weights(width, 8 * width), "down": linear_weights(4 * width, width),
        "out": convolution_weights(1, width, width),
    }  # fmt: skip


def transformer(w: Weights, x: jax.Array, text: jax.Array) -> jax.Array:
    y = convolve(w["in"], group_norm(w["norm"], x, epsilon=1e-6))
    y = y.reshape(x.shape[0], -1, x.shape[-1])
    seen = layer_norm(w["norm1"], y)
    y = y + attention(w["self"], seen, seen, HEADS)
    y = y + attention(w["cross"], layer_norm(w["norm2"], y), text, HEADS)
    values, gates = jnp.split(linear(w["up"], layer_norm(w["norm3"], y)), 2, -1)
    y = y + linear(w["down"], values * jax.nn.gelu(gates, approximate=False))
    return x + convolve(w["out"], y.reshape(x.shape))


def pair_weights(inputs: int, outputs: int, attends: bool) -> dict[str, Any]:
    parts = {"residual": residual_weights(inputs, outputs)}
    return parts | ({"transformer": transformer_weights(outputs)} if attends else {})


def pair(w: Weights, x: jax.Array, time: jax.Array, text: jax.Array) -> jax.Array:
    x = residual(w["residual"], x, time)
    return transformer(w["transformer"], x, text) if "transformer" in w else x


def weights() -> Weights:
    """The types of all weights."""
    skips, down, channels = [CHANNELS[0]], list[Any](), CHANNELS[0]
    for level, (width, attends) in enumerate(zip(CHANNELS, ATTENDS, strict=True)):
        pairs = [pair_weights(inputs, width, attends) for inputs in (channels, width)]
        skips, channels, last = [*skips, width, width], width, level == len(CHANNELS) - 1
        down.append({"pairs": pairs, **({} if last else {"shrink": convolution_weights(3, width, width)})})
        skips = skips if last else [*skips, width]
    up = list[Any]()
    for level, (width, attends) in reversed(list(enumerate(zip(CHANNELS, ATTENDS, strict=True)))):
        pairs = list[Any]()
        for _ in range(3):
            pairs.append(pair_weights(channels + skips.pop(), width, attends))
            channels = width
        up.append({"pairs": pairs, **({"grow": convolution_weights(3, width, width)} if level else {})})
    first, last = CHANNELS[0], CHANNELS[-1]
    middle = {"first": residual_weights(last, last), "transformer": transformer_weights(last)}
    return {
        "time": [linear_weights(first, TIME), linear_weights(TIME, TIME)], "in": convolution_weights(3, 4, first),
        "down": down, "middle": {**middle, "last": residual_weights(last, last)}, "up": up,
        "norm": norm_weights(first), "out": convolution_weights(3, first, 4),
    }  # fmt: skip


def unet(weights: Weights, x: jax.Array, step: jax.Array, text: jax.Array) -> jax.Array:
    """The noise in latent images `x` at `step`, of a text's vectors."""
    half = CHANNELS[0] // 2
    angles = step[:, None] * jnp.exp(-math.log(10_000) / half * jnp.arange(half, dtype=jnp.float32))
    time = jnp.concatenate([jnp.cos(angles), jnp.sin(angles)], -1).astype(x.dtype)
    time = linear(weights["time"][1], jax.nn.silu(linear(weights["time"][0], time)))
    x = convolve(weights["in"], x)
    skips = [x]
    for w in weights["down"]:
        for part in w["pairs"]:
            x = pair(part, x, time, text)
            skips.append(x)
        if "shrink" in w:
            x = convolve(w["shrink"], x, 2)
            skips.append(x)
    w = weights["middle"]
    x = residual(w["last"], transformer(w["transformer"], residual(w["first"], x, time), text), time)
    for w in weights["up"]:
        for part in w["pairs"]:
            x = pair(part, jnp.concatenate([x, skips.pop()], -1), time, text)
        if "grow" in w:
            x = convolve(w["grow"], jnp.repeat(jnp.repeat(x, 2, 1), 2, 2))
    return convolve(weights["out"], jax.nn.silu(group_norm(weights["norm"], x)))
