"""Losses, optimisers, quantisation and embeddings."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import Mesh, PartitionSpec as P

from tests.generators.second_blind.made import Draw, Parts, program

BF16 = jnp.bfloat16


@program(2, 4)
def cross_entropy_ignored(draw: Draw, mesh: Mesh) -> Parts:
    def loss(w: Any, x: Any, labels: Any) -> Any:
        logits = x @ w
        logs = logits - jax.scipy.special.logsumexp(logits, -1, keepdims=True)
        hot = labels[:, None] == jnp.arange(w.shape[1])[None]
        kept = labels >= 0
        losses = -jnp.where(hot, logs, 0).sum(-1) * kept
        return losses.sum() / jnp.maximum(kept.sum(), 1), (logits.argmax(-1) == labels).sum()

    return loss, (draw.normal(16, 32), draw.normal(8, 16), draw.ids(32, 8, low=-8)), (P(None, "y"), P("x"), P("x"))


@program(1, 4)
def label_smoothing_bf16(draw: Draw, mesh: Mesh) -> Parts:
    def loss(logits: Any, labels: Any) -> Any:
        soft = jax.nn.one_hot(labels, 16, dtype=logits.dtype) * 0.9 + 0.1 / 16
        return -(soft * jax.nn.log_softmax(logits, -1)).sum(-1)

    return loss, (draw.normal(8, 16, dtype=BF16), draw.ids(16, 8)), (P("y"), P("y"))


@program(2, 4)
def contrastive(draw: Draw, mesh: Mesh) -> Parts:
    def unit(x: Any) -> Any:
        return x / (jnp.linalg.norm(x, axis=-1, keepdims=True) + 1e-6)

    def loss(images: Any, texts: Any, scale: Any) -> Any:
        logits = unit(images) @ unit(texts).T * jnp.exp(scale)
        eye = jnp.eye(logits.shape[0])
        rows = -(jax.nn.log_softmax(logits, 1) * eye).sum(1)
        columns = -(jax.nn.log_softmax(logits, 0) * eye).sum(0)
        return (rows.mean() + columns.mean()) / 2, logits

    return loss, (draw.normal(8, 16), draw.normal(8, 16), draw.normal()), (P("x", "y"), P("x", "y"), P())


@program(1, 8)
def ctc_forward(draw: Draw, mesh: Mesh) -> Parts:
    def forward(logits: Any, labels: Any) -> Any:
        logs = jax.nn.log_softmax(logits, -1)
        hot = jax.nn.one_hot(labels, logits.shape[-1])
        emit = jnp.einsum("btv,bsv->bts", logs, hot)
        alpha = jnp.full(labels.shape, -1e5).at[:, 0].set(emit[:, 0, 0])
        for t in range(1, logits.shape[1]):
            moved = jnp.pad(alpha[:, :-1], ((0, 0), (1, 0)), constant_values=-1e5)
            alpha = jnp.logaddexp(alpha, moved) + emit[:, t]
        return alpha[:, -1]

    return forward, (draw.normal(8, 5, 12), draw.ids(12, 8, 4)), (P("y"), P("y"))


@program(2, 2)
def huber_gradient(draw: Draw, mesh: Mesh) -> Parts:
    def loss(w: Any, x: Any, y: Any) -> Any:
        error = jnp.tanh(x @ w["a"]) @ w["b"] - y
        size = jnp.abs(error)
        return jnp.where(size < 0.7, 0.5 * error**2, 0.7 * (size - 0.35)).mean()

    w = {"a": draw.weight(8, 16), "b": draw.weight(16, 4)}
    specs = ({"a": P(None, "y"), "b": P("y", None)}, P("x"), P("x"))
    return jax.value_and_grad(loss), (w, draw.normal(8, 8), draw.normal(8, 4)), specs


@program(2, 4)
def triplet_hardest(draw: Draw, mesh: Mesh) -> Parts:
    def loss(x: Any, labels: Any) -> Any:
        squares = (x * x).sum(-1)
        far = squares[:, None] + squares[None] - 2 * x @ x.T
        same = labels[:, None] == labels[None]
        positive = jnp.max(jnp.where(same, far, -1e9), 1)
        negative = jnp.min(jnp.where(same, 1e9, far), 1)
        return jax.nn.relu(positive - negative + 0.2), positive

    return loss, (draw.normal(8, 12), draw.ids(3, 8)), (P("x", "y"), P())


@program(2, 4)
def adam_step(draw: Draw, mesh: Mesh) -> Parts:
    def update(p: Any, g: Any, m: Any, v: Any, count: Any) -> Any:
        m, v = 0.9 * m + 0.1 * g, 0.99 * v + 0.01 * g * g
        step = m / (1 - 0.9**count) / (jnp.sqrt(v / (1 - 0.99**count)) + 1e-3)
        return p - 0.1 * (step + 0.01 * p), m, v

    def step(params: Any, grads: Any, state: Any) -> Any:
        norm = jnp.sqrt(sum(jnp.sum(g * g) for g in jax.tree.leaves(grads)))
        grads = jax.tree.map(lambda g: g * jnp.minimum(1.0, 1.0 / (norm + 1e-6)), grads)
        new = {k: update(params[k], grads[k], state["m"][k], state["v"][k], state["count"]) for k in params}
        return {k: x[0] for k, x in new.items()}, {k: x[1] for k, x in new.items()}, {k: x[2] for k, x in new.items()}

    def tree(make: Any) -> Any:
        return {"w": make(8, 16), "b": make(16)}

    state = {"m": tree(draw.normal), "v": tree(draw.uniform), "count": jnp.float32(3)}
    tree_spec = {"w": P("x", "y"), "b": P("y")}
    specs = (tree_spec, tree_spec, {"m": tree_spec, "v": tree_spec, "count": P()})
    return step, (tree(draw.normal), tree(draw.normal), state), specs


@program(1, 8)
def lion_step_bf16(draw: Draw, mesh: Mesh) -> Parts:
    def step(p: Any, g: Any, m: Any) -> Any:
        direction = jnp.sign(0.75 * m + 0.25 * g)
        return p - 0.25 * direction - 0.125 * p, 0.5 * m + 0.5 * g

    return step, tuple(draw.normal(16, 8, dtype=BF16) for _ in range(3)), (P("y"),) * 3


@program(2, 4)
def adafactor_step(draw: Draw, mesh: Mesh) -> Parts:
    def step(p: Any, g: Any, rows: Any, columns: Any) -> Any:
        square = g * g + 1e-4
        rows = 0.8 * rows + 0.2 * square.mean(1)
        columns = 0.8 * columns + 0.2 * square.mean(0)
        scale = rows[:, None] * columns[None] / rows.mean()
        update = g * lax.rsqrt(scale)
        update = update / jnp.maximum(1.0, jnp.sqrt(jnp.mean(update**2)))
        return p - 0.1 * update, rows, columns

    args = (draw.normal(8, 16), draw.normal(8, 16), draw.uniform(8), draw.uniform(16))
    return step, args, (P("x", "y"), P("x", "y"), P("x"), P("y"))


@program(2, 2)
def momentum_training(draw: Draw, mesh: Mesh) -> Parts:
    def predict(p: Any, x: Any) -> Any:
        for layer in p[:-1]:
            x = jax.nn.softplus(x @ layer["w"] + layer["b"])
        return x @ p[-1]["w"] + p[-1]["b"]

    def step(p: Any, velocity: Any, x: Any, y: Any) -> Any:
        value, grads = jax.value_and_grad(lambda p: ((predict(p, x) - y) ** 2).mean())(p)
        velocity = jax.tree.map(lambda v, g: 0.9 * v + g, velocity, grads)
        return jax.tree.map(lambda w, v: w - 0.05 * v, p, velocity), velocity, value

    def layers() -> Any:
        return [{"w": draw.weight(8, 8), "b": draw.normal(8)} for _ in range(3)]

    spec = [{"w": P(None, "y"), "b": P("y")}] * 3
    return step, (layers(), layers(), draw.normal(4, 8), draw.normal(4, 8)), (spec, spec, P("x"), P("x"))


@program(2, 4)
def absmax_quantised(draw: Draw, mesh: Mesh) -> Parts:
    def quantise(x: Any) -> Any:
        scale = jnp.max(jnp.abs(x), -1, keepdims=True) / 127.0
        return jnp.clip(jnp.round(x / scale), -127, 127).astype(jnp.int8), scale

    def product(x: Any, w: Any) -> Any:
        xq, xs = quantise(x)
        wq, ws = quantise(w)
        whole = lax.dot_general(xq, wq, (((1,), (1,)), ((), ())), preferred_element_type=jnp.int32)
        return whole.astype(jnp.float32) * xs * ws[:, 0], xq

    return product, (draw.normal(8, 16), draw.normal(12, 16)), (P("x"), P("y"))


@program(1, 4)
def per_channel_zero_point(draw: Draw, mesh: Mesh) -> Parts:
    def restore(q: Any, scale: Any, zero: Any, x: Any) -> Any:
        w = (q.astype(jnp.float32) - zero[None].astype(jnp.float32)) * scale[None]
        return x @ w, w.sum(0)

    args = (draw.bytes(16, 12), draw.uniform(12), draw.ids(10, 12, low=-10), draw.normal(4, 16))
    return restore, args, (P(None, "y"), P("y"), P("y"), P())


@program(2, 2)
def int8_accumulate(draw: Draw, mesh: Mesh) -> Parts:
    def product(a: Any, b: Any, shift: Any) -> Any:
        wide = a.astype(jnp.int32) @ b.astype(jnp.int32)
        return jnp.clip((wide + 64) // 128 + shift, -128, 127).astype(jnp.int8), wide.max()

    return product, (draw.bytes(8, 16), draw.bytes(16, 8), draw.ids(5, 8)), (P("x", "y"), P("y", None), P())


@program(1, 8)
def group_quantised_int4(draw: Draw, mesh: Mesh) -> Parts:
    def unpack(packed: Any, scales: Any, x: Any) -> Any:
        low, high = packed % 16, packed // 16
        w = jnp.stack([low, high], 1).reshape(-1, packed.shape[1])
        grouped = (w - 8).reshape(4, -1, packed.shape[1]).astype(jnp.float32) * scales[:, None]
        return x @ grouped.reshape(-1, packed.shape[1])

    return unpack, (draw.ids(256, 16, 16), draw.uniform(4, 16), draw.normal(4, 32)), (P(None, "y"), P(None, "y"), P())


@program(2, 4)
def embedding_bag(draw: Draw, mesh: Mesh) -> Parts:
    def bag(table: Any, ids: Any, weights: Any) -> Any:
        rows = jnp.take(table, jnp.clip(ids, 0, table.shape[0] - 1), axis=0)
        kept = (ids != 0).astype(table.dtype) * weights
        return jnp.einsum("bsd,bs->bd", rows, kept) / (kept.sum(1, keepdims=True) + 1e-3)

    return bag, (draw.normal(32, 16), draw.ids(32, 4, 6), draw.uniform(4, 6)), (P(None, "y"), P("x"), P("x"))


@program(1, 8)
def sharded_vocabulary(draw: Draw, mesh: Mesh) -> Parts:
    def model(p: Any, ids: Any, kinds: Any) -> Any:
        x = p["token"][ids] + p["kind"][kinds] + p["place"][: ids.shape[1]]
        x = x - x.mean(-1, keepdims=True)
        return x * lax.rsqrt((x * x).mean(-1, keepdims=True) + 1e-3)

    p = {"token": draw.normal(64, 16), "kind": draw.normal(2, 16), "place": draw.normal(16, 16)}
    return model, (p, draw.ids(64, 4, 8), draw.ids(2, 4, 8)), ({"token": P("y"), "kind": P(), "place": P()}, P(), P())


@program(2, 4)
def focal_loss(draw: Draw, mesh: Mesh) -> Parts:
    def loss(logits: Any, targets: Any) -> Any:
        p = jax.nn.sigmoid(logits)
        hit = jnp.where(targets > 0, p, 1 - p)
        alpha = jnp.where(targets > 0, 0.25, 0.75)
        return (-alpha * (1 - hit) ** 2 * jnp.log(hit + 1e-4)).sum(-1), (p > 0.5).sum()

    return loss, (draw.normal(8, 16), draw.ids(2, 8, 16)), (P("x", "y"), P("x", "y"))


@program(2, 2)
def distillation_kl(draw: Draw, mesh: Mesh) -> Parts:
    def loss(student: Any, teacher: Any) -> Any:
        t = jax.nn.softmax(teacher / 2.0, -1)
        return 4.0 * (t * (jnp.log(t + 1e-6) - jax.nn.log_softmax(student / 2.0, -1))).sum(-1).mean()

    return jax.value_and_grad(loss), (draw.normal(4, 8), draw.normal(4, 8)), (P("x", "y"), P("x", "y"))


@program(1, 2)
def policy_gradient(draw: Draw, mesh: Mesh) -> Parts:
    def returns(rewards: Any) -> Any:
        total, out = jnp.zeros(rewards.shape[0]), []
        for t in range(rewards.shape[1] - 1, -1, -1):
            total = rewards[:, t] + 0.9 * total
            out.append(total)
        return jnp.stack(out[::-1], 1)

    def loss(logs: Any, old: Any, rewards: Any) -> Any:
        advantage = returns(rewards)
        advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-3)
        ratio = jnp.exp(logs - old)
        return -jnp.minimum(ratio * advantage, jnp.clip(ratio, 0.8, 1.2) * advantage), advantage

    return loss, (draw.normal(4, 6), draw.normal(4, 6), draw.normal(4, 6)), (P("y"),) * 3
