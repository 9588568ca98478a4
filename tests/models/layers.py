"""Layers of the models of published sizes, as functions of their weights, and the types of these weights."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

BF16 = jnp.bfloat16
Weights = Mapping[str, Any]


def of(*shape: int, dtype: Any = BF16) -> jax.ShapeDtypeStruct:
    """Returns a type."""
    return jax.ShapeDtypeStruct(shape, dtype)


def linear_weights(inputs: int, outputs: int, *, bias: bool = True) -> dict[str, Any]:
    return {"w": of(inputs, outputs), **({"b": of(outputs)} if bias else {})}


def linear(w: Weights, x: jax.Array) -> jax.Array:
    y = x @ w["w"]
    return y + w["b"] if "b" in w else y


def norm_weights(width: int) -> dict[str, Any]:
    return {"scale": of(width), "bias": of(width)}


def layer_norm(w: Weights, x: jax.Array, epsilon: float = 1e-5) -> jax.Array:
    """Normalises the last dim, with float32 statistics."""
    return _standardise(x, (-1,), epsilon) * w["scale"] + w["bias"]


def group_norm(w: Weights, x: jax.Array, groups: int = 32, epsilon: float = 1e-5) -> jax.Array:
    """Normalises groups of channels of `(batch, height, width, channels)`."""
    split = x.reshape(*x.shape[:-1], groups, -1)
    return _standardise(split, (1, 2, 4), epsilon).reshape(x.shape) * w["scale"] + w["bias"]


def _standardise(x: jax.Array, dims: tuple[int, ...], epsilon: float) -> jax.Array:
    wide = x.astype(jnp.float32)
    centred = wide - jnp.mean(wide, dims, keepdims=True)
    return (centred * lax.rsqrt(jnp.mean(centred * centred, dims, keepdims=True) + epsilon)).astype(x.dtype)


def attention_weights(width: int, memory: int, biases: str = "qkvo") -> dict[str, Any]:
    """The weights of attention to rows of `memory` numbers; `biases` names the products that have one."""
    sizes = {"q": width, "k": memory, "v": memory, "o": width}
    return {name: linear_weights(size, width, bias=name in biases) for name, size in sizes.items()}


def attention(w: Weights, x: jax.Array, memory: jax.Array, heads: int, *, causal: bool = False) -> jax.Array:
    """Multi-head attention of `(batch, rows, width)` to the rows of `memory`."""
    q, k, v = (
        linear(w[n], rows).reshape(*rows.shape[:2], heads, -1).swapaxes(1, 2)
        for n, rows in (("q", x), ("k", memory), ("v", memory))
    )
    scores = jnp.einsum("bhqd,bhkd->bhqk", q, k).astype(jnp.float32) / math.sqrt(q.shape[-1])
    if causal:
        scores = jnp.where(jnp.tril(jnp.ones(scores.shape[-2:], bool)), scores, -jnp.inf)
    mixed = jnp.einsum("bhqk,bhkd->bhqd", jax.nn.softmax(scores, -1).astype(x.dtype), v)
    return linear(w["o"], mixed.swapaxes(1, 2).reshape(x.shape))


def mlp_weights(width: int, hidden: int) -> dict[str, Any]:
    return {"up": linear_weights(width, hidden), "down": linear_weights(hidden, width)}


def mlp(w: Weights, x: jax.Array, *, approximate: bool = False) -> jax.Array:
    return linear(w["down"], jax.nn.gelu(linear(w["up"], x), approximate=approximate))


def block_weights(width: int, hidden: int, *, cross: bool = False, biases: str = "qkvo") -> dict[str, Any]:
    """The weights of a transformer's block, whose `cross` attention is to other rows of the same width."""
    parts = {"self": attention_weights(width, width, biases), "mlp": mlp_weights(width, hidden)}
    parts |= {"cross": attention_weights(width, width, biases)} if cross else {}
    return {name: {"norm": norm_weights(width), **part} for name, part in parts.items()}


def block(
    w: Weights, x: jax.Array, heads: int, memory: jax.Array | None = None, *, causal: bool = False, tanh: bool = False
) -> jax.Array:
    """A block with its normalisations before attention and before the MLP."""
    seen = layer_norm(w["self"]["norm"], x)
    x = x + attention(w["self"], seen, seen, heads, causal=causal)
    if memory is not None:
        x = x + attention(w["cross"], layer_norm(w["cross"]["norm"], x), memory, heads)
    return x + mlp(w["mlp"], layer_norm(w["mlp"]["norm"], x), approximate=tanh)


def convolution_weights(size: int, inputs: int, outputs: int, *, bias: bool = True) -> dict[str, Any]:
    return {"w": of(size, size, inputs, outputs), **({"b": of(outputs)} if bias else {})}


def convolve(w: Weights, x: jax.Array, stride: int = 1) -> jax.Array:
    """A convolution of `(batch, height, width, channels)`, padded by half of the window."""
    pad = [(w["w"].shape[0] // 2,) * 2] * 2
    y = lax.conv_general_dilated(x, w["w"], (stride,) * 2, pad, dimension_numbers=("NHWC", "HWIO", "NHWC"))
    return y + w["b"] if "b" in w else y
