"""A Llama-style transformer block and its loss twice: in plain JAX, and over a mesh.

Both models call the same `block`. The sharded model splits weights and input, calls the block on local shards, and
adds the all_reduces of the partial sums.
"""

# The demo is written as users write, and JAX annotates a part of its functions.
# pyright: reportUnknownMemberType=false
from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import cast

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
from jax.sharding import AbstractMesh, Mesh, PartitionSpec as P

import jaxmesh as jm

Join = Callable[[jax.Array], jax.Array]

NORM_EPSILON = 1e-5
ROTARY_BASE = 10_000.0
NEVER = float(np.finfo(np.float32).min)
"""The score of a future position; finite, so that no gradient computes inf - inf."""


def block(weights: Mapping[str, jax.Array], x: jax.Array, head: int, join: Join) -> jax.Array:
    """Returns attention and MLP with residuals for `x`: `(batch, sequence, width)`.

    `Dims.weight_shapes` names the weights, on all heads or local to one device. `head` is the size of one head,
    and `join` sums the partial results of the output and down projections.
    """
    x = x + join(attention(weights, rms_norm(x, weights["attention_norm"]), head) @ weights["wo"])
    return x + join(swiglu(weights, rms_norm(x, weights["mlp_norm"])) @ weights["w_down"])


def rms_norm(x: jax.Array, scale: jax.Array) -> jax.Array:
    """Returns `x` divided by the root of the mean square over the last dim, and scaled."""
    return x * jax.lax.rsqrt(jnp.mean(x * x, axis=-1, keepdims=True) + NORM_EPSILON) * scale


def attention(weights: Mapping[str, jax.Array], x: jax.Array, head: int) -> jax.Array:
    """Returns causal rotary attention with grouped heads, before the output projection."""
    batch, sequence, _ = x.shape
    rotation = rotary_angles(sequence, head)
    k = rotate((x @ weights["wk"]).reshape(batch, sequence, -1, head), rotation)
    v = (x @ weights["wv"]).reshape(batch, sequence, -1, head)
    q = rotate((x @ weights["wq"]).reshape(batch, sequence, -1, head), rotation)
    q = q.reshape(batch, sequence, k.shape[2], -1, head)
    scores = jnp.einsum("bskgh,btkh->bkgst", q, k) / math.sqrt(head)
    past = jnp.tril(jnp.ones((sequence, sequence), bool))
    shares = jax.nn.softmax(jnp.where(past, scores, NEVER), axis=-1)
    return jnp.einsum("bkgst,btkh->bskgh", shares, v).reshape(batch, sequence, -1)


def rotary_angles(sequence: int, head: int) -> tuple[jax.Array, jax.Array]:
    """Returns cosine and sine of each feature pair's rotation angle, `(sequence, 1, head / 2)`."""
    half = head // 2
    speed = ROTARY_BASE ** (-jnp.arange(half, dtype=jnp.float32) / half)
    angle = (jnp.arange(sequence, dtype=jnp.float32)[:, None] * speed)[:, None, :]
    return jnp.cos(angle), jnp.sin(angle)


def rotate(x: jax.Array, rotation: tuple[jax.Array, jax.Array]) -> jax.Array:
    """Returns the rotary embedding of `(batch, sequence, heads, head)`: rotates each pair of features by its
    position."""
    cos, sin = rotation
    a, b = jnp.split(x, 2, axis=-1)
    return jnp.concatenate([a * cos - b * sin, a * sin + b * cos], axis=-1)


def swiglu(weights: Mapping[str, jax.Array], x: jax.Array) -> jax.Array:
    """Returns the gated MLP, before the down projection."""
    return jax.nn.silu(x @ weights["w_gate"]) * (x @ weights["w_up"])


# --- the models ------------------------------------------------------------------------------------------------------

Weights = dict[str, jax.Array]
WEIGHTS: Mapping[str, tuple[str, ...]] = {
    "attention_norm": ("width",), "wq": ("width", "queries"), "wk": ("width", "keys"), "wv": ("width", "keys"),
    "wo": ("queries", "width"), "mlp_norm": ("width",), "w_gate": ("width", "hidden"), "w_up": ("width", "hidden"),
    "w_down": ("hidden", "width"),
}  # fmt: skip
"""The dims of each weight; those of matrices are split over the devices, except for the width."""


@dataclass(frozen=True, slots=True)
class Dims:
    """The sizes of the block."""

    batch: int
    sequence: int
    width: int
    kv_heads: int
    queries_per_kv: int
    head: int
    hidden: int

    @property
    def input_shape(self) -> tuple[int, int, int]:
        """The shape of the block's input and output."""
        return self.batch, self.sequence, self.width

    def weight_shapes(self) -> dict[str, tuple[int, ...]]:
        """Returns the full shape of every weight."""
        keys = self.kv_heads * self.head
        sizes = {"width": self.width, "queries": keys * self.queries_per_kv, "keys": keys, "hidden": self.hidden}
        return {name: tuple(sizes[dim] for dim in dims) for name, dims in WEIGHTS.items()}


def data_axes(mesh: Mesh | AbstractMesh) -> tuple[str, ...]:
    """Returns the axes that split the batch: all but the last."""
    return tuple(mesh.axis_names[:-1])


def model_axis(mesh: Mesh | AbstractMesh) -> str:
    """Returns the axis that splits heads and the MLP's hidden dim: the last."""
    return mesh.axis_names[-1]


def dims_for(mesh: Mesh | AbstractMesh, at_least: Dims | None = None) -> Dims:
    """Returns the smallest sizes, from `at_least` up, whose batch, heads and hidden dim divide by the mesh.

    >>> dims_for(AbstractMesh((2, 3), ("y", "x"))).kv_heads
    6
    """
    low = at_least or Dims(batch=4, sequence=32, width=64, kv_heads=4, queries_per_kv=2, head=16, hidden=128)
    split_model = mesh.shape[model_axis(mesh)]
    split_data = math.prod(mesh.shape[a] for a in data_axes(mesh))
    heads, hidden = _round_up(low.kv_heads, split_model), _round_up(low.hidden, split_model)
    return replace(low, batch=_round_up(low.batch, split_data), kv_heads=heads, hidden=hidden)


def _round_up(n: int, multiple: int) -> int:
    return -(-n // multiple) * multiple


def make_inputs(dims: Dims, seed: int = 0) -> tuple[Weights, jax.Array, jax.Array]:
    """Returns random float32 weights, input and target."""
    random = np.random.default_rng(seed)

    def normal(shape: tuple[int, ...]) -> npt.NDArray[np.float32]:
        return random.standard_normal(shape, np.float32)

    def weight(shape: tuple[int, ...]) -> jax.Array:
        # Norm weights are random too: equal entries would hide a wrong slice.
        values = normal(shape)
        return jnp.asarray(1 + values / 10 if len(shape) == 1 else values / np.sqrt(np.float32(shape[0])))

    weights = {name: weight(shape) for name, shape in dims.weight_shapes().items()}
    return weights, jnp.asarray(normal(dims.input_shape)), jnp.asarray(normal(dims.input_shape))


@dataclass(frozen=True, slots=True)
class Model:
    """A block and its loss as functions of full arrays."""

    forward: Callable[[Weights, jax.Array], jax.Array]
    loss: Callable[[Weights, jax.Array, jax.Array], jax.Array]


def unsharded_model(dims: Dims) -> Model:
    """Returns the model in plain JAX; the loss is the mean squared error."""

    def forward(weights: Weights, x: jax.Array) -> jax.Array:
        return block(weights, x, dims.head, lambda part: part)

    def loss(weights: Weights, x: jax.Array, target: jax.Array) -> jax.Array:
        return jnp.mean((forward(weights, x) - target) ** 2)

    return Model(forward, loss)


def weight_specs(mesh: Mesh | AbstractMesh) -> dict[str, P]:
    """Returns the spec of each weight: columns into the sharded dim, rows out of it, norms on every device."""
    axis = model_axis(mesh)
    matrices = {name: P(*(None if dim == "width" else axis for dim in dims)) for name, dims in WEIGHTS.items()}
    return {name: spec if len(spec) > 1 else P() for name, spec in matrices.items()}


def input_spec(mesh: Mesh | AbstractMesh) -> P:
    """Returns the spec of input, target and output: the batch over all data axes."""
    axes = data_axes(mesh)
    return P(axes) if axes else P()


def all_reduce(x: jax.Array, mesh: Mesh | AbstractMesh, axes: Sequence[str]) -> jax.Array:
    """Returns the sum of a shard over mesh axes."""
    # An axis of size 1 splits nothing, so shards are replicated over it; psum rejects a mix of varying and replicated
    # axes.
    split = tuple(a for a in axes if mesh.shape[a] > 1)
    return cast(jax.Array, jax.lax.psum(x, split)) if split else x


def sharded_model(dims: Dims, mesh: Mesh | AbstractMesh) -> Model:
    """Returns the model over a mesh for `jaxmesh.jit`: tensor parallel over its last axis, data parallel over the
    others."""
    specs, batch = weight_specs(mesh), input_spec(mesh)

    def on_devices(weights: Weights, x: jax.Array) -> jax.Array:
        # Norm weights are split too, with P(): a full array used beside a shard would get a per-device gradient.
        local = {name: jm.full_to_shard(w, specs[name]) for name, w in weights.items()}
        return block(
            local, jm.full_to_shard(x, batch), dims.head, lambda part: all_reduce(part, mesh, [model_axis(mesh)])
        )

    def forward(weights: Weights, x: jax.Array) -> jax.Array:
        return jm.shard_to_full(on_devices(weights, x), batch)

    def loss(weights: Weights, x: jax.Array, target: jax.Array) -> jax.Array:
        error = on_devices(weights, x) - jm.full_to_shard(target, batch)
        total = all_reduce(jnp.sum(error**2), mesh, data_axes(mesh))
        return jm.shard_to_full(total / math.prod(dims.input_shape), P())

    return Model(forward, loss)
