"""Models of tt-metal's model table as plain JAX programs on types alone: a step of decoding, or a batch of images."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import AbstractMesh, AxisType, PartitionSpec as P

import jaxmesh as jm

Params = dict[str, Any]
BF16 = jnp.bfloat16
ROWS = 128
"""The rows that the cache holds when the table's token is generated."""
SOURCE = "https://github.com/tenstorrent/tt-metal/blob/main/models/README.md"


def of(*shape: int, dtype: Any = BF16) -> jax.ShapeDtypeStruct:
    """Returns a type."""
    return jax.ShapeDtypeStruct(shape, dtype)


@dataclass(frozen=True)
class Model:
    """One row of the table.

    Attributes:
      name: as the table has it.
      cluster: whose devices run it.
      mesh: the sizes of the axes `y` and `x`.
      fun: one step.
      args: their types.
      specs: how they lie on the mesh.
      stored: the element types of weights and cache in DRAM.
      rate: what the table has, per second: tokens of a user, or images.
      per_step: how many of these a step gives.
    """

    name: str
    cluster: str
    mesh: tuple[int, int]
    fun: Callable[..., Any]
    args: tuple[Any, ...]
    specs: Any
    stored: Mapping[str, str]
    rate: float
    unit: str
    per_step: int = 1

    @property
    def published(self) -> float:
        """The seconds of a step that the table tells."""
        return self.per_step / self.rate

    def lower(self) -> Any:
        """Returns the lowered step."""
        mesh = AbstractMesh(self.mesh, ("y", "x"), axis_types=(AxisType.Auto,) * 2)
        return jm.jit(self.fun, mesh=mesh, in_shardings=self.specs).lower(*self.args)


# --- language models -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Decoder:
    """The sizes of a language model; one with `parallel` has attention beside its products, and no gate."""

    layers: int
    width: int
    heads: int
    kv_heads: int
    head: int
    hidden: int
    vocabulary: int
    parallel: bool = False

    def layer(self) -> dict[str, jax.ShapeDtypeStruct]:
        """The weights of a layer."""
        q, kv = self.heads * self.head, self.kv_heads * self.head
        sizes = {"q": (self.width, q), "k": (self.width, kv), "v": (self.width, kv), "o": (q, self.width)}
        sizes |= {"up": (self.width, self.hidden), "down": (self.hidden, self.width), "norm": (self.width,)}
        sizes |= {} if self.parallel else {"gate": (self.width, self.hidden), "second_norm": (self.width,)}
        return {name: of(*size) for name, size in sizes.items()}

    def args(self, users: int) -> tuple[Any, ...]:
        """The weights, the cache of each layer, a token of each user, and the angles of its place."""
        weights = {
            "embedding": of(self.vocabulary, self.width), "norm": of(self.width),
            "output": of(self.width, self.vocabulary), "layers": [self.layer() for _ in range(self.layers)],
        }  # fmt: skip
        cache = [[of(users, self.kv_heads, ROWS, self.head)] * 2 for _ in range(self.layers)]
        return weights, cache, of(users, dtype=jnp.int32), of(self.head), of(self.head)

    def specs(self, axes: Any, shared: Any) -> tuple[Any, ...]:
        """Splits the heads and the hidden layers over `axes`, and the keys and values over `shared`."""
        split = {name: P(None, axes) for name in ("q", "gate", "up")} | {name: P(axes) for name in ("o", "down")}
        split |= {name: P(None, shared) for name in ("k", "v")}
        layer = {name: split.get(name, P()) for name in self.layer()}
        weights = {"embedding": P(), "norm": P(), "output": P(None, axes), "layers": [layer] * self.layers}
        return weights, [[P(None, shared)] * 2] * self.layers, P(), P(), P()

    def data_parallel(self) -> tuple[Any, ...]:
        """Splits the users over all devices."""
        return P(), P(("y", "x")), P(("y", "x")), P(), P()

    def step(self, weights: Params, caches: Any, tokens: Any, cos: Any, sin: Any) -> Any:
        """Returns the scores of each user's next token, and the rows to be cached."""
        x, rows = weights["embedding"][tokens], list[Any]()
        for layer, (keys, values) in zip(weights["layers"], caches, strict=True):
            seen = normalise(x, layer["norm"])
            out, new = self.attention(layer, seen, keys, values, cos, sin)
            rows.append(new)
            if self.parallel:
                x = x + out + jax.nn.gelu(seen @ layer["up"]) @ layer["down"]
            else:
                x = x + out
                seen = normalise(x, layer["second_norm"])
                x = x + (jax.nn.silu(seen @ layer["gate"]) * (seen @ layer["up"])) @ layer["down"]
        return normalise(x, weights["norm"]) @ weights["output"], rows

    def attention(self, layer: Params, x: Any, keys: Any, values: Any, cos: Any, sin: Any) -> tuple[Any, Any]:
        """Attends to the cached rows and to the new one."""
        users, shared = x.shape[0], self.heads // self.kv_heads
        q = turned((x @ layer["q"]).reshape(users, self.kv_heads, shared, self.head), cos, sin)
        k = turned((x @ layer["k"]).reshape(users, self.kv_heads, 1, self.head), cos, sin)
        v = (x @ layer["v"]).reshape(users, self.kv_heads, 1, self.head)
        scores = jnp.einsum("ukqd,uksd->ukqs", q, jnp.concatenate([keys, k], 2)) * self.head**-0.5
        mixed = jnp.einsum("ukqs,uksd->ukqd", jax.nn.softmax(scores, -1), jnp.concatenate([values, v], 2))
        return mixed.reshape(users, self.heads * self.head) @ layer["o"], (k, v)


def turned(x: Any, cos: Any, sin: Any) -> Any:
    """Returns heads with their rotary embedding."""
    first, second = jnp.split(x, 2, -1)
    return x * cos + jnp.concatenate([-second, first], -1) * sin


def normalise(x: Any, weight: Any) -> Any:
    """Returns rows divided by their root mean square."""
    return x * lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + BF16(1e-5)) * weight


# --- images and texts ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Encoder:
    """The sizes of an encoder of rows: patches of an image, or a text."""

    layers: int
    width: int
    heads: int
    rows: int
    inputs: int

    def args(self, batch: int) -> tuple[Any, ...]:
        """The weights, and the rows: pixels of the patches, or vectors of the tokens."""
        w = self.width
        sizes = {"qkv": (w, 3 * w), "o": (w, w), "up": (w, 4 * w), "down": (4 * w, w)}
        layer = {name: of(*size) for name, size in sizes.items()}
        return {"patches": of(self.inputs, w), "layers": [layer] * self.layers}, of(batch, self.rows, self.inputs)

    def step(self, weights: Params, x: Any) -> Any:
        """Returns the rows after all layers."""
        x = x @ weights["patches"]
        for layer in weights["layers"]:
            parts = jnp.split(standardise(x) @ layer["qkv"], 3, -1)
            q, k, v = (p.reshape(*x.shape[:2], self.heads, -1).swapaxes(1, 2) for p in parts)
            scores = jnp.einsum("bhqd,bhkd->bhqk", q, k) * (self.width // self.heads) ** -0.5
            mixed = jnp.einsum("bhqk,bhkd->bhqd", jax.nn.softmax(scores, -1), v)
            x = x + mixed.swapaxes(1, 2).reshape(x.shape) @ layer["o"]
            x = x + jax.nn.gelu(standardise(x) @ layer["up"]) @ layer["down"]
        return x


def standardise(x: Any) -> Any:
    """Returns rows of mean 0 and variance 1."""
    centred = x - jnp.mean(x, -1, keepdims=True)
    return centred * lax.rsqrt(jnp.mean(centred * centred, -1, keepdims=True) + BF16(1e-5))


STAGES = ((3, 64, 1), (4, 128, 2), (6, 256, 2), (3, 512, 2))
"""Of ResNet-50: blocks, inner channels, and the stride of the first block."""


def resnet_args(batch: int) -> tuple[Any, ...]:
    """The weights of ResNet-50, its normalisations folded into them, and images."""
    blocks, channels = list[Params](), 64
    for count, inner, _ in STAGES:
        for number in range(count):
            sizes = {"in": (1, 1, channels, inner), "mid": (3, 3, inner, inner), "out": (1, 1, inner, 4 * inner)}
            sizes |= {} if number else {"skip": (1, 1, channels, 4 * inner)}
            blocks.append({name: (of(*size), of(size[-1])) for name, size in sizes.items()})
            channels = 4 * inner
    weights = {"stem": (of(7, 7, 3, 64), of(64)), "blocks": blocks, "classes": of(channels, 1000)}
    return weights, of(batch, 224, 224, 3)


def resnet(weights: Params, x: Any) -> Any:
    """Returns the scores of the classes."""

    def convolve(x: Any, kernel: tuple[Any, Any], stride: int = 1) -> Any:
        weight, bias = kernel
        layout = ("NHWC", "HWIO", "NHWC")
        return lax.conv_general_dilated(x, weight, (stride,) * 2, "SAME", dimension_numbers=layout) + bias

    x = jax.nn.relu(convolve(x, weights["stem"], 2))
    x = lax.reduce_window(x, BF16(-jnp.inf), lax.max, (1, 3, 3, 1), (1, 2, 2, 1), "SAME")
    strides = [stride if not number else 1 for count, _, stride in STAGES for number in range(count)]
    for block, stride in zip(weights["blocks"], strides, strict=True):
        skip = convolve(x, block["skip"], stride) if "skip" in block else x
        inner = jax.nn.relu(convolve(x, block["in"]))
        inner = jax.nn.relu(convolve(inner, block["mid"], stride))
        x = jax.nn.relu(convolve(inner, block["out"]) + skip)
    return jnp.mean(x, (1, 2)) @ weights["classes"]


# --- the table -------------------------------------------------------------------------------------------------------

EIGHT = {"": "bfloat8_b"}
"""The weights of all other demos."""
MLP4 = {"gate|up|down": "bfloat4_b", **EIGHT}
"""The weights of models/tt_transformers, as its PERF.md says: bfp4 for the MLP, bfp8 for attention."""
LAST8 = {r"\[31\].*(gate|up|down)": "bfloat8_b", **MLP4}
"""Of Llama 3.1 8B, by the same text: bfp8 for the MLP of the last layer."""
QWEN = {r"\['[qkvo]'\]": "bfloat16", **EIGHT}
"""Of Qwen 2.5 7B, by the same text."""
IMAGES = (P(), P(("y", "x")))

LLAMA_1B = Decoder(16, 2048, 32, 8, 64, 8192, 128256)
LLAMA_3B = Decoder(28, 3072, 24, 8, 128, 8192, 128256)
LLAMA_8B = Decoder(32, 4096, 32, 8, 128, 14336, 128256)
LLAMA_70B = Decoder(80, 8192, 64, 8, 128, 28672, 128256)
MISTRAL_7B = Decoder(32, 4096, 32, 8, 128, 14336, 32768)
QWEN_7B = Decoder(28, 3584, 28, 4, 128, 18944, 152064)
FALCON_7B = Decoder(32, 4544, 71, 1, 64, 4 * 4544, 65024, parallel=True)
VIT, BERT = Encoder(12, 768, 12, 197, 768), Encoder(24, 1024, 16, 384, 1024)


def decoding(
    name: str,
    cluster: str,
    mesh: tuple[int, int],
    sizes: Decoder,
    specs: Any,
    stored: Any,
    rate: float,
    users: int = 32,
) -> Model:
    """Returns the model of a language model that answers `users`."""
    return Model(name, cluster, mesh, sizes.step, sizes.args(users), specs, stored, rate, "tokens of a user")


def seeing(
    name: str, cluster: str, mesh: tuple[int, int], fun: Any, args: Any, rate: float, count: int, unit: str = "images"
) -> Model:
    """Returns the model of a network that takes batches."""
    return Model(name, cluster, mesh, fun, args, IMAGES, EIGHT, rate, unit, count)


MODELS = (
    decoding("Llama 3.2 1B", "n150", (1, 1), LLAMA_1B, LLAMA_1B.data_parallel(), MLP4, 80.5),
    decoding("Llama 3.2 3B", "n150", (1, 1), LLAMA_3B, LLAMA_3B.data_parallel(), MLP4, 46.6),
    decoding("Llama 3.1 8B", "n150", (1, 1), LLAMA_8B, LLAMA_8B.data_parallel(), LAST8, 26.0),
    decoding("Llama 3.1 8B", "p150", (1, 1), LLAMA_8B, LLAMA_8B.data_parallel(), LAST8, 33.1),
    decoding("Mistral 7B", "n150", (1, 1), MISTRAL_7B, MISTRAL_7B.data_parallel(), MLP4, 28.7),
    decoding("Qwen 2.5 7B (TP=2)", "n300", (1, 2), QWEN_7B, QWEN_7B.specs("x", "x"), QWEN, 22.1),
    decoding("Falcon 7B", "n150", (1, 1), FALCON_7B, FALCON_7B.data_parallel(), EIGHT, 18.5),
    decoding("Falcon 7B (DP=8)", "t3000", (2, 4), FALCON_7B, FALCON_7B.data_parallel(), EIGHT, 15.9, 256),
    decoding("Llama 3.1 70B (TP=8)", "t3000", (1, 8), LLAMA_70B, LLAMA_70B.specs("x", "x"), MLP4, 15.9),
    decoding("Llama 3.1 70B (TP=32)", "galaxy", (8, 4), LLAMA_70B, LLAMA_70B.specs(("y", "x"), "y"), MLP4, 72.5),
    seeing("ResNet-50 (224x224)", "n150", (1, 1), resnet, resnet_args(16), 4_700, 16),
    seeing("ResNet-50 (224x224) (DP=2)", "n300", (1, 2), resnet, resnet_args(32), 9_200, 32),
    seeing("ResNet-50 (224x224)", "p150", (1, 1), resnet, resnet_args(16), 12_600, 16),
    seeing("ViT-base (224x224)", "n150", (1, 1), VIT.step, VIT.args(8), 1_370, 8),
    seeing("BERT-Large", "n150", (1, 1), BERT.step, BERT.args(8), 270, 8, "sentences"),
)
