"""Attention as programs write it, and programs that only look like it: over 2 batches, 8 heads, and whole tiles."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

Inputs = Mapping[str, Any]
Attention = Callable[[Inputs], Any]
BATCH, ROWS, KEYS, HEADS, SHARED, WIDTH = 2, 64, 96, 8, 4, 32
_jnn: Any = jax.nn


def inputs(dtype: Any = jnp.bfloat16) -> dict[str, Any]:
    """Queries; keys and values of as many heads, of shared heads (`g`), of as many rows (`s`); biases and masks."""
    draws = np.random.default_rng(7)

    def drawn(*shape: int) -> Any:
        return jnp.asarray(draws.standard_normal(shape), dtype)

    shapes = {"": (KEYS, HEADS), "g": (KEYS, SHARED), "s": (ROWS, HEADS), "gs": (ROWS, SHARED)}
    made = {"q": drawn(BATCH, ROWS, HEADS, WIDTH)}
    for end, (rows, heads) in shapes.items():
        made |= {f"{name}{end}": drawn(BATCH, rows, heads, WIDTH) for name in "kv"}
    for end, lead in {"": (BATCH, HEADS), "_heads": (1, HEADS), "_batch": (BATCH, 1)}.items():
        made[f"bias{end}"] = drawn(*lead, ROWS, KEYS)
        made[f"mask{end}"] = jnp.asarray(draws.random((*lead, ROWS, KEYS)) < 0.7)
    ends = jnp.asarray([50, KEYS])[:, None, None, None]
    return made | {"mask_ends": jnp.arange(KEYS)[None, None, None, :] < ends}


def _of_jax(end: str = "", **options: Any) -> Attention:
    def attend(x: Inputs) -> Any:
        named = {n: x[v] if isinstance(v, str) else v for n, v in options.items()}
        return _jnn.dot_product_attention(x["q"], x[f"k{end}"], x[f"v{end}"], **named)

    return attend


def _by_hand(
    end: str = "", change: Callable[[Any], Any] = lambda s: s, after: Callable[[Any], Any] = lambda w: w
) -> Attention:
    def attend(x: Inputs) -> Any:
        scores = jnp.einsum("bqhd,bkhd->bhqk", x["q"], x[f"k{end}"], preferred_element_type=jnp.float32)
        weights = jax.nn.softmax(change(scores * 0.125), -1)
        return jnp.einsum("bhqk,bkhd->bqhd", after(weights).astype(x["q"].dtype), x[f"v{end}"])

    return attend


def _seen(scores: Any) -> Any:
    return jnp.tril(jnp.ones(scores.shape[-2:], bool))


def _by_iota(scores: Any) -> Any:
    rows, columns = (jax.lax.broadcasted_iota(jnp.int32, scores.shape, d) for d in (2, 3))
    return jnp.where(columns <= rows, scores, -jnp.inf)


def _in_bfloat16(x: Inputs) -> Any:
    q, k, v = (x[n].transpose(0, 2, 1, 3) for n in "qkv")
    weights = jax.nn.softmax(q @ k.transpose(0, 1, 3, 2) / jnp.asarray(6, q.dtype), -1)
    return (weights @ v).transpose(0, 2, 1, 3)


def _low_in_bfloat16(x: Inputs) -> Any:
    scores = jnp.einsum("bqhd,bkhd->bhqk", x["q"], x["ks"]) / 8
    return jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(jnp.where(_seen(scores), scores, -1e9)), x["vs"])


def _hidden_by_two(x: Inputs) -> Any:
    scores = jnp.einsum("bqhd,bkhd->bhqk", x["q"], x["k"], preferred_element_type=jnp.float32)
    hidden = ~x["mask_batch"] | ~x["mask_ends"]
    weights = jax.nn.softmax(jnp.where(hidden, -1e9, scores)).astype(x["v"].dtype)
    return jnp.einsum("bhqk,bkhd->bqhd", weights, x["v"])


def _per_head(x: Inputs) -> Any:
    def attend(q: Any, k: Any, v: Any) -> Any:
        return jax.nn.softmax((q @ k.T).astype(jnp.float32) / 8, -1).astype(q.dtype) @ v

    return jax.vmap(jax.vmap(attend, in_axes=1, out_axes=1))(x["q"], x["k"], x["v"])


def _keys_first(x: Inputs) -> Any:
    scores = jnp.einsum("bkhd,bqhd->bhkq", x["k"], x["q"], preferred_element_type=jnp.float32)
    return jnp.einsum("bhkq,bkhd->bqhd", jax.nn.softmax(scores, 2).astype(x["v"].dtype), x["v"])


def _grouped(x: Inputs) -> Any:
    q = x["q"].reshape(BATCH, ROWS, SHARED, -1, WIDTH)
    scores = jnp.einsum("btkgd,bskd->bkgts", q, x["kgs"], preferred_element_type=jnp.float32)
    scores = jnp.where(_seen(scores), scores, -1e30)
    return jnp.einsum("bkgts,bskd->btkgd", jax.nn.softmax(scores).astype(q.dtype), x["vgs"]).reshape(x["q"].shape)


FOUND: Mapping[str, tuple[Attention, bool]] = {
    "of jax": (_of_jax(), False),
    "shared heads": (_of_jax("g"), False),
    "causal": (_of_jax("s", is_causal=True), True),
    "causal, shared heads": (_of_jax("gs", is_causal=True), True),
    "causal, more keys": (_of_jax("g", is_causal=True), False),
    "mask": (_of_jax("g", mask="mask_batch"), False),
    "mask of ends": (_of_jax("g", mask="mask_ends"), False),
    "mask of heads": (_of_jax(mask="mask_heads"), False),
    "bias": (_of_jax("g", bias="bias"), False),
    "bias of heads": (_of_jax(bias="bias_heads"), False),
    "bias, mask, causal, scale": (
        _of_jax("g", bias="bias_batch", mask="mask_batch", is_causal=True, scale=0.3), False,
    ),
    "window": (_of_jax("s", local_window_size=(16, 0)), False),
    "by hand": (_by_hand(), False),
    "low number": (_by_hand("s", lambda s: jnp.where(_seen(s), s, -1e9)), True),
    "iota": (_by_hand("s", _by_iota), True),
    "added mask": (_by_hand(change=lambda s: s + jnp.where(_seen(s), 0, -jnp.inf).astype(jnp.bfloat16)), False),
    "added triangle of float32": (
        _by_hand("s", lambda s: s + jnp.triu(jnp.full(s.shape[-2:], -1e30, s.dtype), 1)), True,
    ),
    "hidden": (_by_hand("s", lambda s: jnp.where(jnp.triu(jnp.ones_like(s, bool), 1), -jnp.inf, s)), True),
    "hidden by two": (_hidden_by_two, False),
    "in bfloat16": (_in_bfloat16, False),
    "low number in bfloat16": (_low_in_bfloat16, True),
    "vmap": (_per_head, False),
    "keys first": (_keys_first, False),
    "groups by hand": (_grouped, True),
}  # fmt: skip
"""By name: a program, and whether the operation is causal."""


def _read_twice(x: Inputs) -> Any:
    scores = jnp.einsum("bqhd,bkhd->bhqk", x["q"], x["k"], preferred_element_type=jnp.float32)
    weights = jax.nn.softmax(scores, -1)
    return jnp.einsum("bhqk,bkhd->bqhd", weights.astype(x["q"].dtype), x["v"]), weights


LEFT: Mapping[str, Attention] = {
    "weights read twice": _read_twice,
    "gradient": lambda x: jax.grad(lambda q: _of_jax()({**x, "q": q}).astype(jnp.float32).sum())(x["q"]),
    "scaled weights": _by_hand(after=lambda w: w * 1.25),
    "scale of the sum": _by_hand(change=lambda s: (s + jnp.where(_seen(s), 0, -3).astype(jnp.bfloat16)) * 2),
    "bias of float32": _by_hand(change=lambda s: s + jnp.arange(KEYS) / 7),
    "mask by a small number": _by_hand(change=lambda s: jnp.where(_seen(s), s, -5.0)),
    "mask of the others": _by_hand(change=lambda s: jnp.where(_seen(s), -jnp.inf, s).at[..., -1].set(0)),
    "softmax over queries": lambda x: jnp.einsum(
        "bhqk,bkhd->bqhd", jax.nn.softmax(jnp.einsum("bqhd,bkhd->bhqk", x["q"], x["k"]), 2), x["v"]
    ),
    "no whole tiles": lambda x: _of_jax()({n: v[:, :50] for n, v in x.items() if n in "qkv"}),
    "capped": _by_hand(change=lambda s: 5 * jnp.tanh(s / 5)),
}
"""Programs that are no attention of the operation."""
