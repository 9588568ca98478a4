"""Statistics, sorting, masks and integers."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import Mesh, PartitionSpec as P

from tests.generators.second_blind.made import Draw, Parts, program

BF16 = jnp.bfloat16


@program(2, 4)
def covariance(draw: Draw, mesh: Mesh) -> Parts:
    def run(x: Any) -> Any:
        centred = x - x.mean(0)
        cov = centred.T @ centred / (x.shape[0] - 1)
        spread = jnp.sqrt(jnp.diagonal(cov) + 1e-6)
        return cov, cov / (spread[:, None] * spread[None])

    return run, (draw.normal(16, 8),), (P("x", "y"),)


@program(1, 8)
def moments(draw: Draw, mesh: Mesh) -> Parts:
    def run(x: Any, w: Any) -> Any:
        w = w / w.sum(0)
        mean = (w * x).sum(0)
        d = x - mean
        var = (w * d**2).sum(0)
        return {
            "mean": mean,
            "skew": (w * d**3).sum(0) / (var + 0.1) ** 1.5,
            "kurt": (w * d**4).sum(0) / (var + 0.1) ** 2,
        }

    return run, (draw.normal(8, 16), draw.uniform(8, 16)), (P(None, "y"), P(None, "y"))


@program(2, 4)
def ranking_metrics(draw: Draw, mesh: Mesh) -> Parts:
    def run(scores: Any, relevance: Any) -> Any:
        order = jnp.argsort(-scores, axis=-1)
        gains = jnp.take_along_axis(relevance, order, axis=-1)
        discount = 1 / jnp.log2(jnp.arange(scores.shape[1]) + 2.0)
        best = -jnp.sort(-relevance, axis=-1)
        return (gains * discount).sum(-1) / ((best * discount).sum(-1) + 1e-3)

    return run, (draw.normal(8, 10), draw.uniform(8, 10)), (P(("x", "y")), P(("x", "y")))


@program(1, 4)
def nucleus_sampling(draw: Draw, mesh: Mesh) -> Parts:
    def run(logits: Any, temperature: Any) -> Any:
        p = jax.nn.softmax(logits / temperature[:, None], -1)
        ordered = jnp.sort(p, axis=-1)[:, ::-1]
        total = jnp.cumsum(ordered, -1)
        cut = jnp.min(jnp.where(total - ordered < 0.8, ordered, 1.0), -1, keepdims=True)
        kept = jnp.where(p >= cut, p, 0.0)
        return kept / kept.sum(-1, keepdims=True)

    return run, (draw.normal(8, 12), draw.uniform(8)), (P("y"), P("y"))


@program(2, 2)
def beam_selection(draw: Draw, mesh: Mesh) -> Parts:
    def run(scores: Any, logs: Any, alive: Any) -> Any:
        total = jnp.where(alive[..., None] > 0, scores[..., None] + logs, -1e4)
        best, index = lax.top_k(total.reshape(total.shape[0], -1), 3)
        return best, index // logs.shape[-1], index % logs.shape[-1]

    return run, (draw.normal(4, 3), draw.normal(4, 3, 8), draw.ids(2, 4, 3)), (P("x"), P("x"), P("x"))


@program(2, 4)
def packed_sequence_mask(draw: Draw, mesh: Mesh) -> Parts:
    def run(segments: Any, scores: Any) -> Any:
        same = segments[:, :, None] == segments[:, None, :]
        i = jnp.arange(segments.shape[1])
        kept = same & (i[:, None] >= i[None]) & (segments != 0)[:, None, :]
        return jnp.where(kept, scores, -1e4), kept.sum(-1)

    return run, (draw.ids(3, 4, 8), draw.normal(4, 8, 8)), (P("x"), P("x", "y"))


@program(1, 2)
def histogram(draw: Draw, mesh: Mesh) -> Parts:
    def run(x: Any) -> Any:
        bins = jnp.clip(jnp.floor((x + 2) / 0.5), 0, 7).astype(jnp.int32)
        hot = (bins[..., None] == jnp.arange(8)).astype(jnp.int32)
        return hot.sum(0), jnp.cumsum(hot.sum((0, 1)))

    return run, (draw.normal(16, 4),), (P("y"),)


@program(2, 4)
def integer_hash(draw: Draw, mesh: Mesh) -> Parts:
    def mix(x: Any, salt: int) -> Any:
        return (x * 31 + salt) % 97

    def run(ids: Any) -> Any:
        a, b = mix(ids, 7), mix(ids, 13)
        return jnp.where(a > b, a - b, b - a), jnp.maximum(a, b).max(-1), (a & 7) + (b // 8)

    return run, (draw.ids(1000, 8, 8),), (P("x", "y"),)


@program(1, 8)
def segment_means(draw: Draw, mesh: Mesh) -> Parts:
    def run(x: Any, segments: Any) -> Any:
        hot = jax.nn.one_hot(segments, 4)
        totals = hot.T @ x
        means = totals / jnp.maximum(hot.sum(0), 1)[:, None]
        return means, x - hot @ means

    return run, (draw.normal(16, 6), draw.ids(4, 16)), (P("y"), P("y"))


@program(2, 2)
def kmeans_step(draw: Draw, mesh: Mesh) -> Parts:
    def run(x: Any, centres: Any) -> Any:
        far = ((x[:, None] - centres[None]) ** 2).sum(-1)
        nearest = far.argmin(-1)
        hot = jax.nn.one_hot(nearest, centres.shape[0])
        return (hot.T @ x) / (hot.sum(0)[:, None] + 1e-3), nearest, far.min(-1).mean()

    return run, (draw.normal(16, 4), draw.normal(4, 4)), (P("x"), P())


@program(2, 4)
def power_iteration(draw: Draw, mesh: Mesh) -> Parts:
    def run(a: Any, v: Any) -> Any:
        for _ in range(3):
            v = a @ v
            v = v / jnp.sqrt((v * v).sum() + 1e-6)
        return v, v @ (a @ v)

    return run, (draw.uniform(8, 8), draw.uniform(8)), (P("x", "y"), P("y"))


@program(2, 2)
def gram_schmidt(draw: Draw, mesh: Mesh) -> Parts:
    def run(x: Any) -> Any:
        out: list[Any] = []
        for i in range(3):
            v = x[i]
            for u in out:
                v = v - (u * v).sum() * u
            out.append(v / jnp.sqrt((v * v).sum() + 1e-3))
        return jnp.stack(out)

    return run, (draw.normal(3, 16),), (P(None, ("x", "y")),)


@program(1, 4)
def calibration_bf16(draw: Draw, mesh: Mesh) -> Parts:
    def run(logits: Any, scale: Any, bias: Any) -> Any:
        p = jax.nn.sigmoid(logits * scale + bias)
        even = jnp.concatenate([p[:, 1::2], p[:, ::2]], 1)
        return even, jnp.where(p > 0.5, p, -p), jnp.flip(p, 1)

    args = (draw.normal(8, 16, dtype=BF16), draw.uniform(16, dtype=BF16), draw.normal(16, dtype=BF16))
    return run, args, (P("y"), P(), P())


@program(2, 4)
def ragged_gather(draw: Draw, mesh: Mesh) -> Parts:
    def run(x: Any, lengths: Any) -> Any:
        kept = jnp.arange(x.shape[1])[None] < lengths[:, None]
        last = jnp.take_along_axis(x, jnp.maximum(lengths - 1, 0)[:, None, None], axis=1)[:, 0]
        mean = jnp.where(kept[..., None], x, 0).sum(1) / jnp.maximum(lengths, 1)[:, None]
        return jnp.concatenate([last, mean], -1)

    return run, (draw.normal(4, 6, 8), draw.ids(7, 4)), (P("x"), P("x"))


@program(1, 2)
def board_features_int8(draw: Draw, mesh: Mesh) -> Parts:
    def run(board: Any, bonus: Any) -> Any:
        wide = board.astype(jnp.int32)
        turned = jnp.rot90(wide, axes=(1, 2))
        return jnp.stack([wide, turned, wide.transpose(0, 2, 1)], 1) * bonus, jnp.where(board > 0, board, 0)

    return run, (draw.bytes(4, 6, 6), jnp.int32(3)), (P("y"), P())
