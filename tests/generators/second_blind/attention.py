"""Attention, caches, routing and transformers."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P

from tests.generators.second_blind.made import Draw, Parts, program

BF16 = jnp.bfloat16


def rms_norm(x: Any, scale: Any, eps: float = 1e-5) -> Any:
    wide = x.astype(jnp.float32)
    return (wide * lax.rsqrt(jnp.mean(wide * wide, -1, keepdims=True) + eps)).astype(x.dtype) * scale


def layer_norm(x: Any, scale: Any, bias: Any) -> Any:
    centred = x - x.mean(-1, keepdims=True)
    return centred / jnp.sqrt(jnp.var(x, -1, keepdims=True) + 1e-5) * scale + bias


def split_heads(x: Any, heads: int) -> Any:
    return x.reshape(*x.shape[:-1], heads, x.shape[-1] // heads).swapaxes(-3, -2)


def merge_heads(x: Any) -> Any:
    x = x.swapaxes(-3, -2)
    return x.reshape(*x.shape[:-2], -1)


def attend(q: Any, k: Any, v: Any, mask: Any = None, bias: Any = 0.0) -> Any:
    scores = jnp.einsum("bhqd,bhkd->bhqk", q, k) * (q.shape[-1] ** -0.5) + bias
    if mask is not None:
        scores = jnp.where(mask, scores, -1e9)
    return jnp.einsum("bhqk,bhkd->bhqd", jax.nn.softmax(scores, axis=-1), v)


def qkv(draw: Draw, width: int, dtype: Any = jnp.float32) -> dict[str, jax.Array]:
    return {name: draw.weight(width, width, dtype=dtype) for name in ("wq", "wk", "wv", "wo")}


HEADS = {"wq": P(None, "y"), "wk": P(None, "y"), "wv": P(None, "y"), "wo": P("y", None)}


@program(2, 4)
def encoder_attention(draw: Draw, mesh: Mesh) -> Parts:
    def block(p: Any, x: Any, valid: Any) -> Any:
        h = layer_norm(x, p["ln"]["scale"], p["ln"]["bias"])
        q, k, v = (split_heads(h @ p["attn"][n], 8) for n in ("wq", "wk", "wv"))
        return x + merge_heads(attend(q, k, v, valid[:, None, None, :] > 0)) @ p["attn"]["wo"]

    ln = {"scale": draw.uniform(64), "bias": draw.normal(64)}
    args = ({"ln": ln, "attn": qkv(draw, 64)}, draw.normal(4, 10, 64), draw.ids(2, 4, 10))
    return block, args, ({"ln": P(), "attn": HEADS}, P("x"), P("x"))


@program(1, 8)
def alibi_attention(draw: Draw, mesh: Mesh) -> Parts:
    def slopes(heads: int) -> Any:
        return 2.0 ** (-8.0 * (jnp.arange(heads) + 1) / heads)

    def block(p: Any, x: Any) -> Any:
        length = x.shape[1]
        q, k, v = (split_heads(x @ p[n], 8) for n in ("wq", "wk", "wv"))
        distance = jnp.arange(length)[None, :] - jnp.arange(length)[:, None]
        bias = slopes(8)[:, None, None] * distance
        out = attend(q, k, v, distance <= 0, bias)
        return merge_heads(out) @ p["wo"], bias.sum()

    return block, (qkv(draw, 64), draw.normal(2, 12, 64)), (HEADS, P())


@program(2, 2)
def grouped_rotary(draw: Draw, mesh: Mesh) -> Parts:
    def rotate(x: Any, positions: Any) -> Any:
        half = x.shape[-1] // 2
        angles = positions[:, None] / 10000.0 ** (jnp.arange(half) / half)
        a, b = x[..., :half], x[..., half:]
        sin, cos = jnp.sin(angles), jnp.cos(angles)
        return jnp.concatenate([a * cos - b * sin, a * sin + b * cos], -1)

    def block(p: Any, x: Any) -> Any:
        positions = jnp.arange(x.shape[1], dtype=jnp.float32)
        q = rotate(split_heads(x @ p["wq"], 8), positions)
        k = rotate(split_heads(x @ p["wk"], 2), positions)
        v = split_heads(x @ p["wv"], 2)
        k, v = jnp.repeat(k, 4, axis=1), jnp.repeat(v, 4, axis=1)
        mask = jnp.tril(jnp.ones((x.shape[1], x.shape[1]), bool))
        return merge_heads(attend(q, k, v, mask)) @ p["wo"]

    p = {"wq": draw.weight(64, 64), "wk": draw.weight(64, 16), "wv": draw.weight(64, 16), "wo": draw.weight(64, 64)}
    return block, (p, draw.normal(2, 8, 64)), (HEADS, P("x"))


@program(1, 4)
def sliding_window_bf16(draw: Draw, mesh: Mesh) -> Parts:
    def block(p: Any, x: Any) -> Any:
        q, k, v = (split_heads(x @ p[n], 4) for n in ("wq", "wk", "wv"))
        i = jnp.arange(x.shape[1])
        near = (i[:, None] >= i[None]) & (i[:, None] - i[None] < 4)
        return x + merge_heads(attend(q, k, v, near)) @ p["wo"]

    return block, (qkv(draw, 32, BF16), draw.normal(2, 16, 32, dtype=BF16)), (HEADS, P())


@program(2, 4)
def cross_attention(draw: Draw, mesh: Mesh) -> Parts:
    def block(p: Any, x: Any, memory: Any) -> Any:
        q = split_heads(x @ p["wq"], 4)
        k, v = split_heads(memory @ p["wk"], 4), split_heads(memory @ p["wv"], 4)
        scores = jnp.einsum("bhqd,bhkd->bhqk", q, k) / jnp.sqrt(8.0)
        weights = jax.nn.softmax(scores, -1)
        entropy = -(weights * jnp.log(weights + 1e-6)).sum(-1).mean((0, 2))
        return {"out": merge_heads(weights @ v) @ p["wo"], "entropy": entropy}

    return block, (qkv(draw, 32), draw.normal(2, 6, 32), draw.normal(2, 9, 32)), (HEADS, P("x"), P("x"))


@program(2, 4)
def multi_query_decode(draw: Draw, mesh: Mesh) -> Parts:
    def step(p: Any, cache: Any, x: Any, at: Any) -> Any:
        k, v = x @ p["wk"], x @ p["wv"]
        keys = lax.dynamic_update_slice_in_dim(cache["k"], k[:, None], at, axis=1)
        values = lax.dynamic_update_slice_in_dim(cache["v"], v[:, None], at, axis=1)
        q = (x @ p["wq"]).reshape(x.shape[0], 8, -1)
        scores = jnp.einsum("bhd,btd->bht", q, keys) / 8**0.5
        scores = jnp.where(jnp.arange(keys.shape[1]) <= at, scores, -jnp.inf)
        out = jnp.einsum("bht,btd->bhd", jax.nn.softmax(scores, -1), values)
        return out.reshape(x.shape[0], -1) @ p["wo"], {"k": keys, "v": values}

    p = {"wq": draw.weight(32, 64), "wk": draw.weight(32, 8), "wv": draw.weight(32, 8), "wo": draw.weight(64, 32)}
    cache = {"k": draw.normal(4, 16, 8), "v": draw.normal(4, 16, 8)}
    specs = ({"wq": P(None, "y"), "wk": P(), "wv": P(), "wo": P("y", None)}, P("x"), P("x"), P())
    return step, (p, cache, draw.normal(4, 32), jnp.int32(5)), specs


@program(1, 2)
def ring_cache_bf16(draw: Draw, mesh: Mesh) -> Parts:
    def step(cache: Any, keys: Any, lengths: Any) -> Any:
        slot = lengths % cache.shape[1]
        hot = jax.nn.one_hot(slot, cache.shape[1], dtype=cache.dtype)
        cache = cache * (1 - hot)[:, :, None] + hot[:, :, None] * keys[:, None]
        age = jnp.where(jnp.arange(cache.shape[1])[None] <= lengths[:, None], 1, 0)
        return cache, age, (cache * age[:, :, None].astype(cache.dtype)).sum(1)

    args = (draw.normal(4, 8, 16, dtype=BF16), draw.normal(4, 16, dtype=BF16), draw.ids(20, 4))
    return step, args, (P(None, None, "y"), P(None, "y"), P())


@program(2, 4)
def top2_experts(draw: Draw, mesh: Mesh) -> Parts:
    def layer(p: Any, x: Any) -> Any:
        gates = jax.nn.softmax(x @ p["router"], -1)
        top, index = lax.top_k(gates, 2)
        top = top / top.sum(-1, keepdims=True)
        combine = (jax.nn.one_hot(index, 8) * top[..., None]).sum(1)
        hidden = jax.nn.silu(jnp.einsum("td,edf->tef", x, p["up"]))
        out = jnp.einsum("tef,efd->ted", hidden, p["down"])
        load = combine.mean(0)
        balance = 8 * jnp.sum(load * gates.mean(0))
        return jnp.einsum("ted,te->td", out, combine), balance

    p = {"router": draw.normal(16, 8), "up": draw.weight(8, 16, 32), "down": draw.weight(8, 32, 16)}
    return layer, (p, draw.normal(8, 16)), ({"router": P(), "up": P("y"), "down": P("y")}, P("x"))


@program(1, 8)
def capacity_router(draw: Draw, mesh: Mesh) -> Parts:
    def route(x: Any, router: Any, experts: Any) -> Any:
        choice = jnp.argmax(x @ router, -1)
        hot = jax.nn.one_hot(choice, 8, dtype=jnp.int32)
        place = jnp.cumsum(hot, 0) * hot - 1
        kept = (place < 3) & (place >= 0)
        slots = jax.nn.one_hot(jnp.where(kept, place, 3), 3) * kept[..., None]
        dispatched = jnp.einsum("tec,td->ecd", slots, x)
        out = jax.nn.relu(jnp.einsum("ecd,edf->ecf", dispatched, experts))
        return jnp.einsum("tec,ecf->tf", slots, out), kept.sum(0)

    return route, (draw.normal(16, 8), draw.normal(8, 8), draw.weight(8, 8, 12)), (P(), P(), P("y"))


@program(2, 2)
def linear_attention(draw: Draw, mesh: Mesh) -> Parts:
    def feature(x: Any) -> Any:
        return jax.nn.elu(x) + 1

    def block(q: Any, k: Any, v: Any) -> Any:
        q, k = feature(q), feature(k)
        state = jnp.cumsum(k[..., :, None] * v[..., None, :], axis=1)
        norm = jnp.cumsum(k, axis=1)
        top = jnp.einsum("bshd,bshde->bshe", q, state)
        return top / (jnp.einsum("bshd,bshd->bsh", q, norm)[..., None] + 1e-6)

    args = tuple(draw.normal(2, 8, 4, 8) for _ in range(3))
    return block, args, (P("x", None, "y"),) * 3


@program(2, 4)
def llama_four_layers(draw: Draw, mesh: Mesh) -> Parts:
    def layer(p: Any, x: Any, mask: Any) -> Any:
        h = rms_norm(x, p["n1"])
        q, k, v = (split_heads(h @ p[n], 8) for n in ("wq", "wk", "wv"))
        x = x + merge_heads(attend(q, k, v, mask)) @ p["wo"]
        h = rms_norm(x, p["n2"])
        return x + (jax.nn.silu(h @ p["gate"]) * (h @ p["up"])) @ p["down"]

    def model(params: Any, ids: Any) -> Any:
        x = params["embed"][ids]
        mask = jnp.tril(jnp.ones((ids.shape[1], ids.shape[1]), bool))
        for p in params["layers"]:
            x = layer(p, x, mask)
        return rms_norm(x, params["norm"]) @ params["embed"].T

    width = 128

    def block() -> Any:
        norms = {"n1": draw.uniform(width), "n2": draw.uniform(width)}
        mlp = {"gate": draw.weight(width, 256), "up": draw.weight(width, 256), "down": draw.weight(256, width)}
        return qkv(draw, width) | norms | mlp

    params = {"embed": draw.normal(64, width), "layers": [block() for _ in range(4)], "norm": draw.uniform(width)}
    one = HEADS | {"n1": P(), "n2": P(), "gate": P(None, "y"), "up": P(None, "y"), "down": P("y", None)}
    return model, (params, draw.ids(64, 2, 8)), ({"embed": P(), "layers": [one] * 4, "norm": P()}, P("x"))


@program(1, 8)
def wide_mlp_twelve_layers_bf16(draw: Draw, mesh: Mesh) -> Parts:
    def model(layers: Any, x: Any) -> Any:
        for p in layers:
            x = x + jax.nn.gelu(rms_norm(x, p["scale"]) @ p["up"]) @ p["down"]
        return x

    layers = [
        {"scale": draw.uniform(128, dtype=BF16), "up": draw.weight(128, 512, dtype=BF16)}
        | {"down": draw.weight(512, 128, dtype=BF16)}
        for _ in range(12)
    ]
    one = {"scale": P(), "up": P(None, "y"), "down": P("y", None)}
    return model, (layers, draw.normal(2, 128, dtype=BF16)), ([one] * 12, P())


@program(2, 2)
def gpt_block_constraints(draw: Draw, mesh: Mesh) -> Parts:
    def keep(x: Any, *spec: Any) -> Any:
        return lax.with_sharding_constraint(x, NamedSharding(mesh, P(*spec)))

    def block(p: Any, x: Any) -> Any:
        h = keep(layer_norm(x, p["s"], p["b"]), "x", None, None)
        fused = jnp.split(h @ p["qkv"], 3, axis=-1)
        q, k, v = (split_heads(part, 4) for part in fused)
        mask = jnp.tril(jnp.ones((x.shape[1], x.shape[1]), bool))
        x = keep(x + merge_heads(attend(q, k, v, mask)) @ p["wo"], "x", "y", None)
        return x + jax.nn.relu(x @ p["up"]) ** 2 @ p["down"]

    p = {"s": draw.uniform(32), "b": draw.normal(32), "qkv": draw.weight(32, 96), "wo": draw.weight(32, 32)}
    p |= {"up": draw.weight(32, 64), "down": draw.weight(64, 32)}
    specs = {"s": P(), "b": P(), "qkv": P(), "wo": P(), "up": P(None, "y"), "down": P("y", None)}
    return block, (p, draw.normal(2, 8, 32)), (specs, P("x"))


@program(2, 4)
def relative_bias_attention(draw: Draw, mesh: Mesh) -> Parts:
    def bucket(distance: Any) -> Any:
        big = 4 + (jnp.log(jnp.maximum(distance, 1) / 4.0) / jnp.log(4.0) * 4).astype(jnp.int32)
        return jnp.where(distance < 4, distance, jnp.minimum(big, 7))

    def block(q: Any, k: Any, v: Any, table: Any) -> Any:
        i = jnp.arange(q.shape[2])
        bias = table[bucket(jnp.abs(i[:, None] - i[None]))].transpose(2, 0, 1)
        return attend(q, k, v, None, bias), bias

    args = (*(draw.normal(2, 4, 12, 8) for _ in range(3)), draw.normal(8, 4))
    return block, args, (*(P("x", "y"),) * 3, P(None, "y"))


@program(1, 4)
def vision_patches(draw: Draw, mesh: Mesh) -> Parts:
    def model(p: Any, images: Any) -> Any:
        b, h, w, c = images.shape
        patches = images.reshape(b, h // 4, 4, w // 4, 4, c).transpose(0, 1, 3, 2, 4, 5).reshape(b, -1, 16 * c)
        x = patches @ p["embed"]
        x = jnp.concatenate([jnp.broadcast_to(p["cls"], (b, 1, x.shape[-1])), x], 1) + p["pos"]
        q, k, v = (split_heads(x @ p["attn"][n], 4) for n in ("wq", "wk", "wv"))
        x = x + merge_heads(attend(q, k, v)) @ p["attn"]["wo"]
        return layer_norm(x[:, 0], 1.0, 0.0) @ p["head"]

    p = {"embed": draw.weight(48, 32), "cls": draw.normal(1, 1, 32), "pos": draw.normal(5, 32)}
    p |= {"attn": qkv(draw, 32), "head": draw.weight(32, 10)}
    specs = {"embed": P(), "cls": P(), "pos": P(), "attn": HEADS, "head": P()}
    return model, (p, draw.normal(2, 8, 8, 3)), (specs, P())
