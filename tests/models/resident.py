"""Language models and a U-Net of published sizes with the shardings of their types: what each device holds of them.

Each model is one step: the next token of every user, whose keys and values are in a cache, or the noise in an image.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import AbstractMesh, AxisType, NamedSharding, PartitionSpec as P

import jaxmesh as jm
from tests.models import diffusion
from tests.models.layers import BF16, Weights, of

USERS, ROWS = 32, 1024
"""Of a cache."""
TILE = 32


@dataclass(frozen=True)
class Decoder:
    """The sizes of a language model.

    Attributes:
      experts: of a layer; 0 for a plain MLP.
      chosen: the experts of a token.
      hidden: the hidden numbers of the MLP, or of each expert.
      biases: the products of attention that have one.
      normed: True if queries and keys are normalised.
      tied: True if the scores are products with the embedding.
      norms: of a layer.
      sinks: True if each head has a score for attending to nothing, and the experts have biases, as in GPT-OSS.
    """

    layers: int
    width: int
    heads: int
    kv_heads: int
    head: int
    hidden: int
    vocabulary: int
    experts: int = 0
    chosen: int = 0
    biases: str = ""
    normed: bool = False
    tied: bool = False
    norms: int = 2
    sinks: bool = False

    def weights(self) -> Weights:
        """The types of all weights."""
        ends = {"embedding": of(self.vocabulary, self.width), "norm": of(self.width)}
        ends |= {} if self.tied else {"output": of(self.width, self.vocabulary)}
        return {**ends, "layers": [self._layer() for _ in range(self.layers)]}

    def _layer(self) -> dict[str, jax.ShapeDtypeStruct]:
        w, q, kv, e = self.width, self.heads * self.head, self.kv_heads * self.head, self.experts
        found = {"q": of(w, q), "k": of(w, kv), "v": of(w, kv), "o": of(q, w)}
        found |= {f"{name}_bias": of(found[name].shape[1]) for name in self.biases}
        found |= {f"norm{i}": of(w) for i in range(self.norms)}
        found |= {"q_norm": of(self.head), "k_norm": of(self.head)} if self.normed else {}
        lead = (e,) if e else ()
        found |= {name: of(*lead, w, self.hidden) for name in ("gate", "up")} | {"down": of(*lead, self.hidden, w)}
        found |= {"router": of(w, e)} if e else {}
        if self.sinks:
            found |= {"sinks": of(self.heads), "router_bias": of(e), "down_bias": of(e, w)}
            found |= {f"{name}_bias": of(e, self.hidden) for name in ("gate", "up")}
        return found

    def arguments(self) -> tuple[Any, ...]:
        """The types of the weights, the cache of each layer, a token of each user, and the angles of its place."""
        cache = [[of(USERS, self.kv_heads, ROWS, self.head)] * 2 for _ in range(self.layers)]
        return self.weights(), cache, of(USERS, dtype=jnp.int32), of(self.head), of(self.head)

    def step(self, weights: Weights, caches: Any, tokens: Any, cos: Any, sin: Any) -> Any:
        """Returns the scores of each user's next token, and the rows to be cached."""
        x, rows = weights["embedding"][tokens], list[Any]()
        for w, (keys, values) in zip(weights["layers"], caches, strict=True):
            out, new = self._attend(w, normalise(x, w["norm0"]), keys, values, cos, sin)
            rows.append(new)
            x = x + (normalise(out, w["norm2"]) if self.norms > 2 else out)
            out = (self._experts if self.experts else self._mlp)(w, normalise(x, w["norm1"]))
            x = x + (normalise(out, w["norm3"]) if self.norms > 2 else out)
        output = weights["embedding"].T if self.tied else weights["output"]
        return normalise(x, weights["norm"]) @ output, rows

    def _attend(self, w: Any, x: Any, keys: Any, values: Any, cos: Any, sin: Any) -> tuple[Any, Any]:
        users, shared = x.shape[0], self.heads // self.kv_heads
        parts = {name: x @ w[name] + w.get(f"{name}_bias", BF16(0)) for name in "qkv"}
        q = parts["q"].reshape(users, self.kv_heads, shared, self.head)
        k, v = (parts[name].reshape(users, self.kv_heads, 1, self.head) for name in "kv")
        if self.normed:
            q, k = normalise(q, w["q_norm"]), normalise(k, w["k_norm"])
        q, k = turned(q, cos, sin), turned(k, cos, sin)
        scores = jnp.einsum("ukqd,uksd->ukqs", q, jnp.concatenate([keys, k], 2)) * self.head**-0.5
        if self.sinks:
            sinks = jnp.broadcast_to(w["sinks"].reshape(1, self.kv_heads, shared, 1), (*scores.shape[:3], 1))
            scores = jnp.concatenate([scores, sinks], -1)
        shares = jax.nn.softmax(scores, -1)[..., : ROWS + 1]
        mixed = jnp.einsum("ukqs,uksd->ukqd", shares, jnp.concatenate([values, v], 2))
        return mixed.reshape(users, -1) @ w["o"] + w.get("o_bias", BF16(0)), (k, v)

    def _mlp(self, w: Any, x: Any) -> Any:
        return (jax.nn.silu(x @ w["gate"]) * (x @ w["up"])) @ w["down"]

    def _experts(self, w: Any, x: Any) -> Any:
        """Asks all experts, and takes the chosen ones' answers by their shares."""
        best, which = lax.top_k(x @ w["router"] + w.get("router_bias", BF16(0)), self.chosen)
        chosen = jax.nn.one_hot(which, self.experts, dtype=x.dtype)
        shares = jnp.einsum("ut,ute->ue", jax.nn.softmax(best, -1), chosen)
        gate, up = (
            jnp.einsum("uw,ewh->euh", x, w[name]) + w.get(f"{name}_bias", jnp.zeros((1, 1), x.dtype))[:, None]
            for name in ("gate", "up")
        )
        hidden = jnp.einsum("euh,ehw->euw", jax.nn.silu(gate) * up, w["down"])
        hidden = hidden + w.get("down_bias", jnp.zeros((1, 1), x.dtype))[:, None]
        return jnp.einsum("euw,ue->uw", hidden, shares)


def turned(x: Any, cos: Any, sin: Any) -> Any:
    """Returns heads with their rotary embedding."""
    first, second = jnp.split(x, 2, -1)
    return x * cos + jnp.concatenate([-second, first], -1) * sin


def normalise(x: Any, weight: Any) -> Any:
    """Returns rows divided by their root mean square."""
    return x * lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + BF16(1e-5)) * weight


# --- placements ------------------------------------------------------------------------------------------------------

Placer = Callable[[str, int], P]
"""The placement of an argument by its path and its rank."""


def tensor_parallel(path: str, rank: int) -> P:
    """Splits heads, hidden numbers and the vocabulary over `x`; experts, as a whole, over `x`, too."""
    name = path.rpartition("['")[2].removesuffix("']")
    if path.startswith("[1]"):
        return P(None, "x")
    if name in ("gate", "up", "down") and rank == 3:
        return P("x")
    if name in ("gate_bias", "up_bias", "down_bias"):
        return P("x")
    if name in ("q", "k", "v", "gate", "up", "output"):
        return P(None, "x")
    return P("x") if name in ("o", "down", "q_bias", "k_bias", "v_bias", "sinks") else P()


def over_both(path: str, rank: int) -> P:
    """Splits the keys and values over `x`, and what has more parts over both axes."""
    name = path.rpartition("['")[2].removesuffix("']")
    spec = tensor_parallel(path, rank)
    shared = path.startswith("[1]") or name in ("k", "v", "k_bias", "v_bias", "q", "q_bias", "o", "sinks")
    return spec if shared else P(*(("y", "x") if entry == "x" else entry for entry in spec))


def data_parallel(path: str, rank: int) -> P:
    """Splits users, or images, over both axes."""
    return P() if path.startswith("[0]") or rank < 2 else P(("y", "x"))


@dataclass(frozen=True)
class Held:
    """A model on a machine.

    Attributes:
      name: as its authors call it.
      parameters: how many numbers the published weights have.
      machine: the machine; `mesh` the sizes of its axes `y` and `x`.
      place: where its arguments lie.
      fun: the step.
      types: of its arguments; the weights come first.
      fits: True if the machine has the memory.
    """

    name: str
    parameters: int
    machine: str
    mesh: tuple[int, int]
    place: Placer
    fun: Callable[..., Any]
    types: Callable[[], tuple[Any, ...]]
    fits: bool = True

    def __str__(self) -> str:
        return f"{self.name} on {self.machine}"

    def arguments(self) -> tuple[Any, ...]:
        """The types of the arguments, each with its sharding."""
        mesh = AbstractMesh(self.mesh, ("y", "x"), axis_types=(AxisType.Auto,) * 2)

        def placed(path: Any, leaf: Any) -> Any:
            spec = self.place(jax.tree_util.keystr(path), len(leaf.shape))
            return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=NamedSharding(mesh, spec))

        return jax.tree_util.tree_map_with_path(placed, self.types())

    def lower(self) -> Any:
        """Returns the lowered step."""
        arguments = self.arguments()
        return jm.jit(self.fun, mesh=jax.tree.leaves(arguments)[0].sharding.mesh).lower(*arguments)

    def plain_bytes(self, tile: int) -> dict[str, int]:
        """Returns the bytes of each argument on one device by path, each dim's share rounded up.

        The last two dims are whole tiles of `tile` rows and columns.
        """
        sizes, found = dict(zip("yx", self.mesh, strict=True)), dict[str, int]()
        names = list(inspect.signature(self.fun).parameters)
        for path, leaf in jax.tree_util.tree_leaves_with_path(self.arguments()):
            shape = list(leaf.shape)
            for dim, entry in enumerate(leaf.sharding.spec):
                for axis in () if entry is None else (entry,) if isinstance(entry, str) else entry:
                    shape[dim] = math.ceil(shape[dim] / sizes[axis])
            shape = [1] * max(0, 2 - len(shape)) + shape
            shape[-2:] = [math.ceil(n / tile) * tile for n in shape[-2:]]
            found[names[path[0].idx] + jax.tree_util.keystr(path[1:])] = math.prod(shape) * leaf.dtype.itemsize
        return found


# --- the list --------------------------------------------------------------------------------------------------------

LLAMA_1B = Decoder(16, 2048, 32, 8, 64, 8192, 128256, tied=True)
LLAMA_3B = Decoder(28, 3072, 24, 8, 128, 8192, 128256, tied=True)
LLAMA_8B = Decoder(32, 4096, 32, 8, 128, 14336, 128256)
LLAMA_70B = Decoder(80, 8192, 64, 8, 128, 28672, 128256)
MISTRAL = Decoder(32, 4096, 32, 8, 128, 14336, 32768)
MIXTRAL = Decoder(32, 4096, 32, 8, 128, 14336, 32000, experts=8, chosen=2)
PHI = Decoder(32, 3072, 32, 32, 96, 8192, 32064)
GEMMA_9B = Decoder(42, 3584, 16, 8, 256, 14336, 256000, tied=True, norms=4)
QWEN2_7B = Decoder(28, 3584, 28, 4, 128, 18944, 152064, biases="qkv")
QWEN2_72B = Decoder(80, 8192, 64, 8, 128, 29568, 152064, biases="qkv")
QWEN3_8B = Decoder(36, 4096, 32, 8, 128, 12288, 151936, normed=True)
QWEN3_32B = Decoder(64, 5120, 64, 8, 128, 25600, 151936, normed=True)
QWEN3_30B = Decoder(48, 2048, 32, 4, 128, 768, 151936, experts=128, chosen=8, normed=True)
GPT_OSS_20B = Decoder(24, 2880, 64, 8, 64, 2880, 201088, experts=32, chosen=4, biases="qkvo", sinks=True)
GPT_OSS_120B = Decoder(36, 2880, 64, 8, 64, 2880, 201088, experts=128, chosen=4, biases="qkvo", sinks=True)


def decoding(
    name: str, parameters: int, sizes: Decoder, machine: str, mesh: tuple[int, int], place: Placer, fits: bool = True
) -> Held:
    return Held(name, parameters, machine, mesh, place, sizes.step, sizes.arguments, fits)


def sdxl_arguments(images: int) -> tuple[Any, ...]:
    """The weights, latent images of 1024x1024, their steps, the vectors of their texts, and what else is known."""
    made = of(images, 128, 128, 4), of(images, dtype=jnp.int32), of(images, 77, 2048), of(images, 2816)
    return diffusion.XL.weights(), *made


def sdxl(machine: str, mesh: tuple[int, int]) -> Held:
    types = partial(sdxl_arguments, math.prod(mesh))
    return Held("SDXL's U-Net", 2_567_463_684, machine, mesh, data_parallel, diffusion.XL.unet, types)


MODELS = (
    decoding("Llama 3.2 1B", 1_235_814_400, LLAMA_1B, "n150", (1, 1), data_parallel),
    decoding("Llama 3.2 3B", 3_212_749_824, LLAMA_3B, "n150", (1, 1), data_parallel),
    decoding("Llama 3.1 8B", 8_030_261_248, LLAMA_8B, "n150", (1, 1), data_parallel, fits=False),
    decoding("Llama 3.1 8B", 8_030_261_248, LLAMA_8B, "p150", (1, 1), data_parallel),
    decoding("Llama 3.1 8B", 8_030_261_248, LLAMA_8B, "t3000", (1, 8), tensor_parallel),
    decoding("Llama 3.1 70B", 70_553_706_496, LLAMA_70B, "t3000", (1, 8), tensor_parallel, fits=False),
    decoding("Llama 3.1 70B", 70_553_706_496, LLAMA_70B, "galaxy", (4, 8), over_both),
    decoding("Mistral 7B", 7_248_023_552, MISTRAL, "n150", (1, 1), data_parallel, fits=False),
    decoding("Mistral 7B", 7_248_023_552, MISTRAL, "n300", (1, 2), tensor_parallel),
    decoding("Mixtral 8x7B", 46_702_792_704, MIXTRAL, "p150x2", (1, 2), tensor_parallel, fits=False),
    decoding("Mixtral 8x7B", 46_702_792_704, MIXTRAL, "p150x4", (1, 4), tensor_parallel),
    decoding("Phi 3 mini", 3_821_079_552, PHI, "n300", (1, 2), tensor_parallel),
    decoding("Gemma 2 9B", 9_241_705_984, GEMMA_9B, "t3000", (1, 8), tensor_parallel),
    decoding("Qwen 2.5 7B", 7_615_616_512, QWEN2_7B, "t3000", (1, 4), tensor_parallel),
    decoding("Qwen 2.5 72B", 72_706_203_648, QWEN2_72B, "t3000", (1, 8), tensor_parallel, fits=False),
    decoding("Qwen3 8B", 8_190_735_360, QWEN3_8B, "n300", (1, 2), tensor_parallel),
    decoding("Qwen3 32B", 32_762_123_264, QWEN3_32B, "t3000", (1, 8), tensor_parallel),
    decoding("Qwen3 30B of experts", 30_532_122_624, QWEN3_30B, "p150", (1, 1), data_parallel, fits=False),
    decoding("Qwen3 30B of experts", 30_532_122_624, QWEN3_30B, "t3000", (1, 4), tensor_parallel, fits=False),
    decoding("Qwen3 30B of experts", 30_532_122_624, QWEN3_30B, "p150x4", (1, 4), tensor_parallel),
    decoding("GPT-OSS 20B", 20_914_757_184, GPT_OSS_20B, "p150", (1, 1), data_parallel, fits=False),
    decoding("GPT-OSS 20B", 20_914_757_184, GPT_OSS_20B, "t3000", (1, 8), tensor_parallel),
    decoding("GPT-OSS 120B", 116_829_156_672, GPT_OSS_120B, "t3000", (1, 8), tensor_parallel, fits=False),
    decoding("GPT-OSS 120B", 116_829_156_672, GPT_OSS_120B, "galaxy", (4, 8), over_both),
    sdxl("n150", (1, 1)),
    sdxl("t3000", (2, 4)),
)
