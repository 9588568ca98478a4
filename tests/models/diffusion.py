"""The U-Nets of Stable Diffusion 1.5 and XL in plain JAX."""

from __future__ import annotations

import math
from dataclasses import dataclass
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

TIME = 1280
"""The numbers of a step's vector."""


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


@dataclass(frozen=True)
class UNet:
    """The sizes of a U-Net.

    Attributes:
      channels: of each level.
      depths: the blocks that attend to the text after each convolution of a level; 0 for none.
      text: the numbers of a text's vectors.
      heads: of each level.
      extra: the numbers of what else is known of an image; 0 for none. Products then take a block's rows in and out,
        where else convolutions do.
    """

    channels: tuple[int, ...]
    depths: tuple[int, ...]
    text: int
    heads: tuple[int, ...]
    extra: int = 0

    def _transformer_weights(self, level: int) -> dict[str, Any]:
        width = self.channels[level]
        ends = linear_weights(width, width) if self.extra else convolution_weights(1, width, width)
        block = {
            "norm1": norm_weights(width), "self": attention_weights(width, width, "o"),
            "norm2": norm_weights(width), "cross": attention_weights(width, self.text, "o"),
            "norm3": norm_weights(width), "up": linear_weights(width, 8 * width),
            "down": linear_weights(4 * width, width),
        }  # fmt: skip
        return {"norm": norm_weights(width), "in": ends, "blocks": [block] * self.depths[level], "out": ends}

    def _transformer(self, w: Weights, x: jax.Array, text: jax.Array, level: int) -> jax.Array:
        through = linear if self.extra else convolve
        y = through(w["in"], group_norm(w["norm"], x, epsilon=1e-6))
        y = y.reshape(x.shape[0], -1, x.shape[-1])
        for part in w["blocks"]:
            seen = layer_norm(part["norm1"], y)
            y = y + attention(part["self"], seen, seen, self.heads[level])
            y = y + attention(part["cross"], layer_norm(part["norm2"], y), text, self.heads[level])
            values, gates = jnp.split(linear(part["up"], layer_norm(part["norm3"], y)), 2, -1)
            y = y + linear(part["down"], values * jax.nn.gelu(gates, approximate=False))
        return x + through(w["out"], y.reshape(x.shape))

    def _pair_weights(self, inputs: int, level: int) -> dict[str, Any]:
        parts = {"residual": residual_weights(inputs, self.channels[level])}
        return parts | ({"transformer": self._transformer_weights(level)} if self.depths[level] else {})

    def _pair(self, w: Weights, x: jax.Array, time: jax.Array, text: jax.Array, level: int) -> jax.Array:
        x = residual(w["residual"], x, time)
        return self._transformer(w["transformer"], x, text, level) if "transformer" in w else x

    def weights(self) -> Weights:
        """The types of all weights."""
        skips, down, channels = [self.channels[0]], list[Any](), self.channels[0]
        for level, width in enumerate(self.channels):
            pairs = [self._pair_weights(inputs, level) for inputs in (channels, width)]
            skips, channels, last = [*skips, width, width], width, level == len(self.channels) - 1
            down.append({"pairs": pairs, **({} if last else {"shrink": convolution_weights(3, width, width)})})
            skips = skips if last else [*skips, width]
        up = list[Any]()
        for level, width in reversed(list(enumerate(self.channels))):
            pairs = list[Any]()
            for _ in range(3):
                pairs.append(self._pair_weights(channels + skips.pop(), level))
                channels = width
            up.append({"pairs": pairs, **({"grow": convolution_weights(3, width, width)} if level else {})})
        first, last = self.channels[0], self.channels[-1]
        middle = {"first": residual_weights(last, last), "transformer": self._transformer_weights(self._middle)}
        known = [linear_weights(self.extra, TIME), linear_weights(TIME, TIME)] if self.extra else []
        return {
            "time": [linear_weights(first, TIME), linear_weights(TIME, TIME)], "known": known,
            "in": convolution_weights(3, 4, first),
            "down": down, "middle": {**middle, "last": residual_weights(last, last)}, "up": up,
            "norm": norm_weights(first), "out": convolution_weights(3, first, 4),
        }  # fmt: skip

    @property
    def _middle(self) -> int:
        """The last level that attends, whose width and depth the middle has."""
        return max(level for level, depth in enumerate(self.depths) if depth)

    def unet(
        self, weights: Weights, x: jax.Array, step: jax.Array, text: jax.Array, known: jax.Array | None = None
    ) -> jax.Array:
        """The noise in latent images `x` at `step`, of a text's vectors, and of what else is known."""
        half = self.channels[0] // 2
        angles = step[:, None] * jnp.exp(-math.log(10_000) / half * jnp.arange(half, dtype=jnp.float32))
        time = jnp.concatenate([jnp.cos(angles), jnp.sin(angles)], -1).astype(x.dtype)
        time = linear(weights["time"][1], jax.nn.silu(linear(weights["time"][0], time)))
        if known is not None:
            time = time + linear(weights["known"][1], jax.nn.silu(linear(weights["known"][0], known)))
        x = convolve(weights["in"], x)
        skips = [x]
        for level, w in enumerate(weights["down"]):
            for part in w["pairs"]:
                x = self._pair(part, x, time, text, level)
                skips.append(x)
            if "shrink" in w:
                x = convolve(w["shrink"], x, 2)
                skips.append(x)
        w = weights["middle"]
        x = self._transformer(w["transformer"], residual(w["first"], x, time), text, self._middle)
        x = residual(w["last"], x, time)
        for level, w in zip(reversed(range(len(self.channels))), weights["up"], strict=True):
            for part in w["pairs"]:
                x = self._pair(part, jnp.concatenate([x, skips.pop()], -1), time, text, level)
            if "grow" in w:
                x = convolve(w["grow"], jnp.repeat(jnp.repeat(x, 2, 1), 2, 2))
        return convolve(weights["out"], jax.nn.silu(group_norm(weights["norm"], x)))


SD15 = UNet((320, 640, 1280, 1280), (1, 1, 1, 0), 768, (8, 8, 8, 8))
XL = UNet((320, 640, 1280), (0, 2, 10), 2048, (5, 10, 20), extra=2816)
