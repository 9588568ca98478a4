"""A transformer of Flax NNX and its training step, as its users write them: the model alone names no mesh axis."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import optax  # pyright: ignore[reportMissingImports]
from flax import nnx  # pyright: ignore[reportMissingImports]
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P

LAYERS, WIDTH, HEADS, VOCABULARY = 12, 32, 4, 64


class Block(nnx.Module):
    """Attention and a perceptron, each after a norm."""

    def __init__(self, rngs: Any) -> None:
        self.norm1, self.norm2 = (nnx.LayerNorm(WIDTH, rngs=rngs) for _ in range(2))
        self.attention = nnx.MultiHeadAttention(HEADS, WIDTH, decode=False, rngs=rngs)
        self.up = nnx.Linear(WIDTH, 4 * WIDTH, rngs=rngs)
        self.down = nnx.Linear(4 * WIDTH, WIDTH, rngs=rngs)

    def __call__(self, x: Any) -> Any:
        with jax.named_scope("attention"):
            x = x + self.attention(self.norm1(x))
        with jax.named_scope("mlp"):
            return x + self.down(nnx.gelu(self.up(self.norm2(x))))


class Transformer(nnx.Module):
    """A language model."""

    def __init__(self, rngs: Any) -> None:
        self.embed = nnx.Embed(VOCABULARY, WIDTH, rngs=rngs)
        self.blocks = nnx.List([Block(rngs) for _ in range(LAYERS)])
        self.norm = nnx.LayerNorm(WIDTH, rngs=rngs)
        self.head = nnx.Linear(WIDTH, VOCABULARY, rngs=rngs)

    def __call__(self, tokens: Any) -> Any:
        x = self.embed(tokens)
        for number, block in enumerate(self.blocks):
            with jax.named_scope(f"block_{number}"):
                x = block(x)
        return self.head(self.norm(x))


GRAPH, PARAMS = nnx.split(Transformer(nnx.Rngs(0)), nnx.Param)
OPTIMIZER = optax.adamw(1e-3)


def step(params: Any, state: Any, tokens: Any, labels: Any) -> Any:
    """Trains the model by one batch; returns the parameters, the optimizer's state and the loss."""

    def loss(params: Any) -> Any:
        logits = nnx.merge(GRAPH, params)(tokens)
        return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()

    value, gradients = jax.value_and_grad(loss)(params)
    updates, state = OPTIMIZER.update(gradients, state, params)
    return optax.apply_updates(params, updates), state, value


SPLIT = {"query": P(None, "model"), "out": P("model"), "up": P(None, "model"), "down": P("model")}
"""The kernels that are split, by the names of their layers."""


def shardings(tree: Any, mesh: Mesh) -> Any:
    """Returns the shardings of parameters: of perceptrons and attention along `model`."""

    def sharding(path: Any, _: Any) -> NamedSharding:
        name = jax.tree_util.keystr(path)
        spec = next((s for layer, s in SPLIT.items() if f"'{layer}'" in name and "kernel" in name), P())
        return NamedSharding(mesh, spec)

    return jax.tree_util.tree_map_with_path(sharding, tree)


def arguments(mesh: Mesh) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """Returns the arguments of a step and their shardings."""
    state, batch = OPTIMIZER.init(PARAMS), jax.ShapeDtypeStruct((8, 16), jnp.int32)
    rows = NamedSharding(mesh, P("data"))
    return (PARAMS, state, batch, batch), (shardings(PARAMS, mesh), shardings(state, mesh), rows, rows)
