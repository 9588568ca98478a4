"""Models of published sizes in plain JAX, by their types alone, on 2x4 devices: data and tensor parallel."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import AbstractMesh, AxisType, PartitionSpec as P

import jaxmesh as jm
from tests.generators import llama
from tests.models.diffusion import SD15
from tests.models.layers import (
    Weights,
    block,
    block_weights,
    convolution_weights,
    convolve,
    layer_norm,
    linear,
    linear_weights,
    norm_weights,
    of,
)

MESH = AbstractMesh((2, 4), ("y", "x"), (AxisType.Auto,) * 2)
BATCH = 8
"""As many images or texts as there are devices."""


@dataclass(frozen=True)
class Published:
    """A model.

    Attributes:
      name: as its authors call it.
      parameters: how many numbers the published weights have.
      function: the weights and the inputs to the results, over `MESH`.
      arguments: the types of these; the weights come first.
    """

    name: str
    parameters: int
    function: Any
    arguments: tuple[Any, ...]


# --- GPT-2 -----------------------------------------------------------------------------------------------------------


def gpt2_weights(layers: int = 48, width: int = 1600, vocabulary: int = 50257, positions: int = 1024) -> Weights:
    blocks = [block_weights(width, 4 * width) for _ in range(layers)]
    return {
        "tokens": of(vocabulary, width),
        "places": of(positions, width),
        "blocks": blocks,
        "norm": norm_weights(width),
    }


def gpt2(weights: Weights, tokens: jax.Array, heads: int = 25) -> jax.Array:
    """The scores of the next token at each place."""
    x = weights["tokens"][tokens] + weights["places"][: tokens.shape[1]]
    for w in weights["blocks"]:
        x = block(w, x, heads, causal=True, tanh=True)
    return layer_norm(weights["norm"], x) @ weights["tokens"].T


# --- Whisper ---------------------------------------------------------------------------------------------------------


def whisper_weights(layers: int = 32, width: int = 1280, vocabulary: int = 51865, mels: int = 80) -> Weights:
    def stack(cross: bool) -> list[Any]:
        return [block_weights(width, 4 * width, cross=cross, biases="qvo") for _ in range(layers)]

    return {
        "ears": [{"w": of(3, inputs, width), "b": of(width)} for inputs in (mels, width)],
        "times": of(1500, width), "encoder": stack(cross=False), "heard": norm_weights(width),
        "tokens": of(vocabulary, width), "places": of(448, width), "decoder": stack(cross=True),
        "norm": norm_weights(width),
    }  # fmt: skip


def whisper(weights: Weights, sound: jax.Array, tokens: jax.Array, heads: int = 20) -> jax.Array:
    """The scores of the next token at each place, of a log-mel spectrogram and a text."""
    x = sound
    for w, stride in zip(weights["ears"], (1, 2), strict=True):
        layout = ("NWC", "WIO", "NWC")
        x = jax.nn.gelu(lax.conv_general_dilated(x, w["w"], (stride,), [(1, 1)], dimension_numbers=layout) + w["b"])
    x = x + weights["times"]
    for w in weights["encoder"]:
        x = block(w, x, heads)
    heard, x = layer_norm(weights["heard"], x), weights["tokens"][tokens] + weights["places"]
    for w in weights["decoder"]:
        x = block(w, x, heads, heard, causal=True)
    return layer_norm(weights["norm"], x) @ weights["tokens"].T


# --- images ----------------------------------------------------------------------------------------------------------


def vit_weights(layers: int = 24, width: int = 1024, patch: int = 16, classes: int = 1000) -> Weights:
    return {
        "patches": convolution_weights(patch, 3, width), "class": of(1, 1, width), "places": of(1, 197, width),
        "blocks": [block_weights(width, 4 * width) for _ in range(layers)], "norm": norm_weights(width),
        "head": linear_weights(width, classes),
    }  # fmt: skip


def vit(weights: Weights, images: jax.Array, heads: int = 16) -> jax.Array:
    """The scores of the classes."""
    w = weights["patches"]
    layout = ("NHWC", "HWIO", "NHWC")
    x = lax.conv_general_dilated(images, w["w"], w["w"].shape[:2], "VALID", dimension_numbers=layout) + w["b"]
    x = x.reshape(x.shape[0], -1, x.shape[-1])
    first = jnp.broadcast_to(weights["class"], (x.shape[0], 1, x.shape[-1]))
    x = jnp.concatenate([first, x], 1) + weights["places"]
    for w in weights["blocks"]:
        x = block(w, x, heads)
    return linear(weights["head"], layer_norm(weights["norm"], x)[:, 0])


RESNET152 = (3, 8, 36, 3)


def resnet_weights(blocks: tuple[int, ...] = RESNET152) -> Weights:
    def unit(size: int, inputs: int, outputs: int) -> Weights:
        moments = {"mean": of(outputs), "variance": of(outputs)}
        return {**convolution_weights(size, inputs, outputs, bias=False), **norm_weights(outputs), "seen": moments}

    stages, channels = list[Any](), 64
    for stage, count in enumerate(blocks):
        inner, stages = 64 * 2**stage, [*stages, []]
        for number in range(count):
            parts = {"in": unit(1, channels, inner), "mid": unit(3, inner, inner), "out": unit(1, inner, 4 * inner)}
            stages[-1].append({**parts, **({} if number else {"skip": unit(1, channels, 4 * inner)})})
            channels = 4 * inner
    return {"stem": unit(7, 3, 64), "stages": stages, "head": linear_weights(channels, 1000)}


def resnet(weights: Weights, images: jax.Array) -> jax.Array:
    """The scores of the classes; normalisations take the moments that training has seen."""

    def unit(w: Weights, x: jax.Array, stride: int = 1) -> jax.Array:
        scale = w["scale"] * lax.rsqrt(w["seen"]["variance"] + jnp.asarray(1e-5, x.dtype))
        return convolve(w, x, stride) * scale + (w["bias"] - w["seen"]["mean"] * scale)

    x = jax.nn.relu(unit(weights["stem"], images, 2))
    pad = ((0, 0), (1, 1), (1, 1), (0, 0))
    x = lax.reduce_window(x, jnp.asarray(-jnp.inf, x.dtype), lax.max, (1, 3, 3, 1), (1, 2, 2, 1), pad)
    for stage, blocks in enumerate(weights["stages"]):
        for number, w in enumerate(blocks):
            stride = 2 if stage and not number else 1
            skip = unit(w["skip"], x, stride) if "skip" in w else x
            inner = jax.nn.relu(unit(w["mid"], jax.nn.relu(unit(w["in"], x)), stride))
            x = jax.nn.relu(unit(w["out"], inner) + skip)
    return linear(weights["head"], jnp.mean(x, (1, 2)))


# --- the list --------------------------------------------------------------------------------------------------------


def split_heads(path: tuple[Any, ...], leaf: jax.ShapeDtypeStruct) -> P:
    """How a transformer's weight is split over `x`: the heads, and the hidden numbers of the MLP."""
    *_, name, part = (str(getattr(key, "key", key)) for key in (None, None, *path))
    if name in ("q", "k", "v", "up"):
        return P(*(None,) * (len(leaf.shape) - 1), "x")
    return P("x") if name in ("o", "down") and part == "w" else P()


def whole(path: tuple[Any, ...], leaf: jax.ShapeDtypeStruct) -> P:
    """No weight is split."""
    return P()


def model(
    name: str, parameters: int, fun: Callable[..., Any], weights: Weights, inputs: tuple[Any, ...], split: Any = None
) -> Published:
    """A model as plain `jit` with shardings: the batch over `y` and the heads over `x`, or the batch over both."""
    specs = jax.tree_util.tree_map_with_path(split or whole, weights)
    batch = P("y") if split else P(("y", "x"))
    shardings = specs, *(batch for _ in inputs)
    return Published(name, parameters, jm.jit(fun, mesh=MESH, in_shardings=shardings), (weights, *inputs))


def llama3_8b() -> Published:
    sizes = llama.Llama()
    return Published("Llama 3 8B", 8_030_261_248, llama.program(sizes, MESH), sizes.arguments())


def gpt2_xl() -> Published:
    # 25 heads are no multiple of 4.
    return model("GPT-2 XL", 1_557_611_200, gpt2, gpt2_weights(), (of(BATCH, 1024, dtype=np.int32),))


def whisper_large() -> Published:
    inputs = of(BATCH, 3000, 80), of(BATCH, 448, dtype=np.int32)
    return model("Whisper large", 1_543_304_960, whisper, whisper_weights(), inputs, split_heads)


def vit_large() -> Published:
    return model("ViT large", 304_326_632, vit, vit_weights(), (of(BATCH, 224, 224, 3),), split_heads)


def resnet_152() -> Published:
    return model("ResNet-152", 60_192_808, resnet, resnet_weights(), (of(BATCH, 224, 224, 3),))


def stable_diffusion() -> Published:
    inputs = of(BATCH, 64, 64, 4), of(BATCH, dtype=np.int32), of(BATCH, 77, 768)
    return model("Stable Diffusion 1.5's U-Net", 859_520_964, SD15.unet, SD15.weights(), inputs)


PUBLISHED: dict[str, Callable[[], Published]] = {
    f.__name__: f for f in (llama3_8b, gpt2_xl, whisper_large, vit_large, stable_diffusion, resnet_152)
}
