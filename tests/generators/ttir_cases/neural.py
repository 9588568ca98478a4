"""Cases of the ops with a longer meaning, as loops in NumPy: gathers, caches, norms, windows, attention."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from tests.generators.ttir_cases.basic import soft
from tests.generators.ttir_cases.case import Case, F, H, N, Spec

# --- indexing --------------------------------------------------------------------------------------------------------


def gathered(x: Any, starts: Any, a: dict[str, Any]) -> Any:
    """StableHLO's definition, one result element at a time."""
    vector = a["index_vector_dim"]
    batching = a.get("operand_batching_dims", ()), a.get("start_indices_batching_dims", ())
    kept = [d for d in range(x.ndim) if d not in a["collapsed_slice_dims"] and d not in batching[0]]
    batch_shape = [n for d, n in enumerate(starts.shape) if d != vector]
    rank = len(batch_shape) + len(kept)
    batch_dims = [d for d in range(rank) if d not in a["offset_dims"]]
    sizes = dict(zip(batch_dims, batch_shape, strict=True))
    sizes |= dict(zip(a["offset_dims"], [a["slice_sizes"][d] for d in kept], strict=True))
    out = np.zeros([sizes[d] for d in range(rank)], x.dtype)
    for at in np.ndindex(*out.shape):
        batch = [at[d] for d in batch_dims]
        full = [*batch[:vector], slice(None), *batch[vector:]]
        vectors = starts[tuple(full)] if vector < starts.ndim else starts[tuple(batch)][None]
        begin = [0] * x.ndim
        for value, d in zip(vectors, a["start_index_map"], strict=True):
            begin[d] = min(max(int(value), 0), x.shape[d] - a["slice_sizes"][d])
        for d, i in zip(*batching, strict=True):
            begin[d] = batch[i - (i > vector)]
        for o, d in zip(a["offset_dims"], kept, strict=True):
            begin[d] += at[o]
        out[at] = x[tuple(begin)]
    return out


def picked(x: Any, index: Any, dim: int) -> Any:
    out = np.zeros(index.shape, x.dtype)
    for at in np.ndindex(*index.shape):
        out[at] = x[*at[:dim], min(max(int(index[at]), 0), x.shape[dim] - 1), *at[dim + 1 :]]
    return out


def scattered(x: Any, index: Any, source: Any, dim: int, kind: str) -> Any:
    out = x.copy()
    for at in np.ndindex(*index.shape):
        to = (*at[:dim], int(index[at]), *at[dim + 1 :])
        combine = {"sum": np.add, "prod": np.multiply, "max": np.maximum, "min": np.minimum}
        out[to] = source[at] if kind == "invalid" else combine[kind](out[to], source[at])
    return out


def permuted_rows(count: int) -> Spec:
    """Indices that do not meet: each row of two columns holds one number, so they differ by row only."""
    return Spec((1, count), np.int32, 0, 3)


def indexing() -> Iterator[Case]:
    plain = {
        "offset_dims": (1,), "collapsed_slice_dims": (0,), "start_index_map": (0,), "index_vector_dim": 1,
        "slice_sizes": (1, 4),
    }  # fmt: skip
    forms: list[tuple[Spec, Spec, dict[str, Any]]] = [
        (F(5, 4), N(3, low=-2, high=7), plain),
        (H(5, 4), N(3, 1, low=0, high=4, dtype=np.uint32), plain),
        (
            N(4, 5, 6),
            N(2, 3, low=-1, high=6),
            plain | {"offset_dims": (1, 2), "start_index_map": (2, 0), "index_vector_dim": 0,
                     "slice_sizes": (1, 2, 3)},
        ),
        (
            F(2, 5, 4),
            N(2, 3, 1, low=0, high=4),
            plain | {"offset_dims": (2,), "collapsed_slice_dims": (1,), "operand_batching_dims": (0,),
                     "start_indices_batching_dims": (0,), "start_index_map": (1,), "index_vector_dim": 2,
                     "slice_sizes": (1, 1, 3), "indices_are_sorted": False},
        ),
    ]  # fmt: skip
    for x, starts, a in forms:
        yield Case("gather", (x, starts), lambda x, s, a=a: gathered(x, s, a), a, former=True)
    for make in (F, H, N):
        yield Case("gather", (make(4, 3), N(2, 3, low=-1, high=5)), lambda x, i: picked(x, i, 0), {"dim": 0})
        yield Case("gather", (make(2, 5, 3), N(2, 4, 2, low=0, high=4)), lambda x, i: picked(x, i, 1), {"dim": -2})
    for make in (F, N, H):
        for kind in ("sum", "prod", "max", "min"):
            yield Case("scatter", (make(4, 3), N(2, 3, low=0, high=3), make(2, 3)),
                       lambda x, i, s, k=kind: scattered(x, i, s, 0, k),
                       {"dim": 0, "scatter_reduce_type": kind})  # fmt: skip
    yield Case("scatter", (F(4, 3), permuted_rows(3), F(1, 3)),
               lambda x, i, s: scattered(x, i, s, 0, "invalid"),
               {"dim": 0, "scatter_reduce_type": "invalid"})  # fmt: skip
    yield Case("scatter", (N(2, 4), permuted_rows(1), N(1, 1)),
               lambda x, i, s: scattered(x, i, s, 1, "invalid"),
               {"dim": -1, "scatter_reduce_type": "invalid"})  # fmt: skip
    for ids in (N(2, 3, low=0, high=4), N(2, 3, low=0, high=4, dtype=np.uint32)):
        yield Case("embedding", (ids, F(5, 4)), lambda i, w: w[i])
        yield Case("embedding", (ids, H(1, 1, 5, 4)), lambda i, w: w[0, 0][i])
    ones = H(2, low=2, high=2)
    yield Case("embedding", (ones, H(5, 4)), lambda i, w: w[i.astype(int)])

    def backward(ids: Any, weight: Any, gradient: Any) -> Any:
        out = np.zeros(weight.shape, weight.dtype).reshape(weight.shape[-2:])
        np.add.at(out, ids.reshape(-1), gradient.reshape(-1, out.shape[1]))
        return out.reshape(weight.shape)

    yield Case("embedding_backward", (N(2, 3, low=0, high=4), F(5, 4), F(2, 3, 4)), backward)
    yield Case("embedding_backward", (N(2, 3, low=0, high=4), H(1, 5, 4), H(1, 1, 6, 4)), backward)

    def filled(cache: Any, new: Any, batch: int, at: int) -> Any:
        out = cache.copy()
        out[batch : batch + new.shape[0], :, at : at + new.shape[2]] = new
        return out

    for make in (F, H):
        cache, one = make(3, 2, 6, 4), make(1, 2, 1, 4)
        yield Case("fill_cache", (cache, make(1, 2, 3, 4)), lambda c, n: filled(c, n, 0, 0), {"batch_offset": 0})
        yield Case("fill_cache", (cache, make(2, 2, 3, 4)), lambda c, n: filled(c, n, 1, 0), {"batch_offset": 1})
        for dtype in (np.int32, np.uint32):
            yield Case("update_cache", (cache, one, N(1, low=0, high=5, dtype=dtype)),
                       lambda c, n, i: filled(c, n, 2, int(i[0])), {"batch_offset": 2})  # fmt: skip
        yield Case("update_cache", (cache, make(1, 2, 2, 4), N(1, low=0, high=5)),
                   lambda c, n, i: filled(c, n.swapaxes(0, 2), 1, int(i[0])), {"batch_offset": 1})  # fmt: skip


# --- norms -----------------------------------------------------------------------------------------------------------


def layer(x: Any, dims: tuple[int, ...], epsilon: float) -> Any:
    x = x.astype(np.float64)
    return (x - x.mean(dims, keepdims=True)) / np.sqrt(x.var(dims, keepdims=True) + epsilon)


def rms(x: Any, dims: tuple[int, ...], epsilon: float) -> Any:
    x = x.astype(np.float64)
    return x / np.sqrt((x * x).mean(dims, keepdims=True) + epsilon)


def norms() -> Iterator[Case]:
    for name, fun in (("layer_norm", layer), ("rms_norm", rms)):
        for make in (F, H):
            x, scale = make(2, 3, 4), make(4)
            one = {"normalized_shape": [4]}
            yield Case(name, (x,), lambda x, f=fun: f(x, (2,), 1e-5), one)
            yield Case(name, (x, scale), lambda x, w, f=fun: f(x, (2,), 0.1) * w, one | {"epsilon": 0.1})
            both = one | {"operandSegmentSizes": [1, 1, 1]}
            yield Case(name, (x, scale, scale), lambda x, w, b, f=fun: f(x, (2,), 1e-5) * w + b, both)
            bias_only = one | {"operandSegmentSizes": [1, 0, 1]}
            yield Case(name, (x, scale), lambda x, b, f=fun: f(x, (2,), 1e-5) + b, bias_only)
        yield Case(
            name, (F(2, 3, 4), F(3, 4)), lambda x, w, f=fun: f(x, (1, 2), 1e-5) * w, {"normalized_shape": [3, 4]}
        )

    def batch(x: Any, scale: Any, offset: Any, mean: Any, variance: Any, dim: int) -> Any:
        at = tuple(slice(None) if d == dim else None for d in range(x.ndim))
        return (x - mean[at]) / np.sqrt(variance[at] + 0.5) * scale[at] + offset[at]

    for make, dim in ((F, 1), (H, 3)):
        feature = make(3)
        operands = (make(2, 3, 2, 3), feature, feature, feature, make(3, low=0.5))
        yield Case(
            "batch_norm_inference", operands, lambda *xs, d=dim: batch(*xs, d), {"epsilon": 0.5, "dimension": dim}
        )


# --- windows ---------------------------------------------------------------------------------------------------------


def pairs(value: Any) -> tuple[int, int]:
    return (value, value) if isinstance(value, int) else tuple(value)


def four(value: Any) -> tuple[int, int, int, int]:
    if isinstance(value, int):
        return (value,) * 4
    return tuple(value) if len(value) == 4 else (value[0], value[1], value[0], value[1])


def convolved(x: Any, w: Any, a: dict[str, Any]) -> Any:
    """NHWC by (outputs, inputs of a group, height, width)."""
    (sh, sw), (dh, dw), (top, left, bottom, right) = pairs(a["stride"]), pairs(a["dilation"]), four(a["padding"])
    groups = a.get("groups", 1)
    x = np.pad(x, ((0, 0), (top, bottom), (left, right), (0, 0))).astype(np.float64)
    outs, per_group, kh, kw = w.shape
    height, width = (x.shape[1] - dh * (kh - 1) - 1) // sh + 1, (x.shape[2] - dw * (kw - 1) - 1) // sw + 1
    out = np.zeros((x.shape[0], height, width, outs))
    for n, i, j, o in np.ndindex(*out.shape):
        first = o // (outs // groups) * per_group
        for c, k, m in np.ndindex(per_group, kh, kw):
            out[n, i, j, o] += x[n, i * sh + k * dh, j * sw + m * dw, first + c] * w[o, c, k, m]
    return out


def transposed(x: Any, w: Any, a: dict[str, Any]) -> Any:
    (sh, sw), (dh, dw), (top, left, bottom, right) = pairs(a["stride"]), pairs(a["dilation"]), four(a["padding"])
    (eh, ew), groups = pairs(a.get("output_padding", 0)), a.get("groups", 1)
    channels, outs, kh, kw = w.shape
    height = (x.shape[1] - 1) * sh + dh * (kh - 1) + 1
    width = (x.shape[2] - 1) * sw + dw * (kw - 1) + 1
    full = np.zeros((x.shape[0], height + eh, width + ew, outs * groups))
    for n, i, j, c in np.ndindex(*x.shape):
        group = c // (channels // groups)
        for o, k, m in np.ndindex(outs, kh, kw):
            full[n, i * sh + k * dh, j * sw + m * dw, group * outs + o] += float(x[n, i, j, c]) * w[c, o, k, m]
    return full[:, top : full.shape[1] - bottom, left : full.shape[2] - right]


def pooled(x: Any, a: dict[str, Any], average: bool) -> Any:
    (kh, kw), (sh, sw), (dh, dw) = pairs(a["kernel"]), pairs(a["stride"]), pairs(a.get("dilation", 1))
    top, left, bottom, right = four(a["padding"])

    def count(size: int, low: int, high: int, kernel: int, stride: int, dilation: int) -> int:
        span = size + low + high - dilation * (kernel - 1) - 1
        if not a.get("ceil_mode", False):
            return span // stride + 1
        n = -(-span // stride) + 1
        return n - 1 if (n - 1) * stride >= size + low else n

    rows, columns = count(x.shape[1], top, bottom, kh, sh, dh), count(x.shape[2], left, right, kw, sw, dw)
    out = np.zeros((x.shape[0], rows, columns, x.shape[3]))
    for n, i, j, c in np.ndindex(*out.shape):
        inside, padded = [], 0
        for k, m in itertools.product(range(kh), range(kw)):
            r, s = i * sh + k * dh - top, j * sw + m * dw - left
            padded += r < x.shape[1] + bottom and s < x.shape[2] + right
            if 0 <= r < x.shape[1] and 0 <= s < x.shape[2]:
                inside.append(float(x[n, r, s, c]))
        size = padded if a.get("count_include_pad", True) else len(inside)
        out[n, i, j, c] = sum(inside) / size if average else max(inside)
    return out


def layout(inputs: str, kernel: str, outputs: str) -> dict[str, Any]:
    """As JAX writes them, e.g. NHWC, OIHW, NHWC."""
    made: dict[str, Any] = {}
    for side, text, names in (
        ("input", inputs, {"N": "batch", "C": "feature"}),
        ("kernel", kernel, {"O": "output_feature", "I": "input_feature"}),
        ("output", outputs, {"N": "batch", "C": "feature"}),
    ):
        made |= {f"{side}_{name}": text.index(c) for c, name in names.items()}
        made[f"{side}_spatial_dimensions"] = [text.index(c) for c in "HW"]
    return made


def windows() -> Iterator[Case]:
    plain: dict[str, Any] = {"stride": 1, "padding": 0, "dilation": 1, "groups": 1}
    forms: list[dict[str, Any]] = [
        plain,
        plain | {"stride": [2, 1], "padding": [1, 2], "dilation": [1, 2]},
        plain
        | {"padding": [1, 0, 2, 3], "groups": 2, "batch_dim": 0, "height_dim": 1, "width_dim": 2, "channel_dim": 3},
    ]
    for a in forms:
        x, w = F(2, 5, 6, 4), F(6, 4 // a["groups"], 3, 2)
        yield Case("conv2d", (x, w), lambda x, w, a=a: convolved(x, w, a), a)
        w = F(4, 3, 3, 2)
        more = a | {"output_padding": [1, 0]} if a["stride"] != 1 else a
        yield Case("conv_transpose2d", (x, w), lambda x, w, a=more: transposed(x, w, a), more)
        yield Case("conv_transpose2d", (x, w, F(1, 1, 1, 3 * a["groups"])),
                   lambda x, w, b, a=more: transposed(x, w, a) + b, more)  # fmt: skip
    yield Case(
        "conv2d", (H(1, 4, 4, 2), H(3, 2, 2, 2), H(1, 1, 1, 3)), lambda x, w, b: convolved(x, w, plain) + b, plain
    )
    first = plain | {"batch_dim": 0, "channel_dim": 1, "height_dim": 2, "width_dim": 3}
    yield Case("conv2d", (F(1, 2, 4, 5), F(3, 2, 2, 2)),
               lambda x, w: convolved(x.transpose(0, 2, 3, 1), w, plain).transpose(0, 3, 1, 2), first)  # fmt: skip
    general = {
        "window_strides": [2, 1], "padding": [1, 0, 2, 3], "input_dilation": [1, 1], "weight_dilation": [1, 2],
        "window_reversal": [False, False], "feature_group_count": 2, "batch_group_count": 1,
        "convolution_layout": layout("NCHW", "OIHW", "NCHW"),
    }  # fmt: skip
    text = "#ttir<convolution_layout " + ", ".join(
        f"{k} = {'x'.join(map(str, v)) if isinstance(v, list) else v}"
        for k, v in layout("NCHW", "OIHW", "NCHW").items()
    )
    same = {"stride": [2, 1], "padding": [1, 2, 0, 3], "dilation": [1, 2], "groups": 2}
    yield Case("convolution", (F(2, 4, 5, 6), F(6, 2, 3, 2)),
               lambda x, w: convolved(x.transpose(0, 2, 3, 1), w, same).transpose(0, 3, 1, 2), general)  # fmt: skip
    yield Case("convolution", (F(2, 4, 5, 6), F(6, 2, 3, 2), F(1, 6, 1, 1)),
               lambda x, w, b: convolved(x.transpose(0, 2, 3, 1), w, same).transpose(0, 3, 1, 2) + b,
               general | {"convolution_layout": text + ">"})  # fmt: skip
    turned = general | {"convolution_layout": layout("HNWC", "HWIO", "NHWC"), "window_reversal": [True, False]}
    yield Case("convolution", (F(5, 2, 6, 4), F(3, 2, 2, 6)),
               lambda x, w: convolved(x.transpose(1, 0, 2, 3), w[::-1].transpose(3, 2, 0, 1), same),
               turned)  # fmt: skip
    pools: list[dict[str, Any]] = [
        {"kernel": 2, "stride": 2, "dilation": 1, "padding": 0, "ceil_mode": False},
        {"kernel": [3, 2], "stride": [2, 1], "dilation": [1, 2], "padding": [1, 0], "ceil_mode": True},
        {"kernel": [3, 3], "stride": 2, "padding": [1, 0, 0, 1], "ceil_mode": True},
        {"kernel": 2, "stride": 3, "padding": 1, "ceil_mode": True},
    ]
    for a in pools:
        for spec in (F(2, 6, 7, 2), N(1, 6, 7, 2), H(1, 6, 7, 2)):
            yield Case("max_pool2d", (spec,), lambda x, a=a: pooled(x, a, False), a, spec.dtype)
        yield Case("avg_pool2d", (F(2, 6, 7, 2),), lambda x, a=a: pooled(x, a, True), a)
        area = math.prod(pairs(a["kernel"]))
        if not a.get("ceil_mode", False):
            yield Case("avg_pool2d", (F(2, 6, 7, 2),), lambda x, a=a, n=area: pooled(x, a, True) * (n / 3),
                       a | {"divisor_override": 3, "count_include_pad": True})  # fmt: skip
        inside = a | {"count_include_pad": False}
        yield Case("avg_pool2d", (H(1, 6, 7, 2),), lambda x, a=inside: pooled(x, a, True), inside)
    for make in (F, H):
        yield Case("global_avg_pool2d", (make(2, 3, 4, 2),), lambda x: x.mean((1, 2), keepdims=True))
        yield Case("upsample2d", (make(2, 3, 4, 2),), lambda x: x.repeat(2, 1).repeat(3, 2), {"scale_factor": [2, 3]})
    yield Case("upsample2d", (N(1, 3, 4, 2),), lambda x: x.repeat(2, 1).repeat(2, 2),
               {"scale_factor": 2, "mode": "nearest"})  # fmt: skip


# --- attention -------------------------------------------------------------------------------------------------------


def attention(q: Any, k: Any, v: Any, mask: Any = None, scale: float | None = None, causal: bool = False) -> Any:
    out = np.zeros(q.shape)
    shared = q.shape[1] // k.shape[1]
    for b, h in np.ndindex(*q.shape[:2]):
        scores = q[b, h] @ k[b, h // shared].T * (1 / math.sqrt(q.shape[3]) if scale is None else scale)
        if mask is not None:
            scores = scores + np.broadcast_to(mask, (*q.shape[:3], k.shape[2]))[b, h]
        if causal:
            scores = np.where(np.tri(*scores.shape, dtype=bool), scores, -np.inf)
        out[b, h] = soft(scores, 1) @ v[b, h // shared]
    return out


def heads() -> Iterator[Case]:
    for make in (F, H):
        q, k = make(2, 4, 3, 6), make(2, 2, 5, 6)
        name = "scaled_dot_product_attention"
        yield Case(name, (q, k, k), lambda q, k, v: attention(q, k, v), {"is_causal": False})
        yield Case(name, (q, q, q), lambda q, k, v: attention(q, k, v, causal=True))
        masked = {"is_causal": False, "scale": 0.5, "operandSegmentSizes": [1, 1, 1, 1, 0]}
        yield Case(name, (q, k, k, make(2, 1, 3, 5)), lambda *xs: attention(*xs, scale=0.5), masked)
        split = "split_query_key_value_and_split_heads"

        def parts(x: Any, counts: tuple[int, ...]) -> list[Any]:
            rows = x.reshape(2, 3, sum(counts), 5).transpose(0, 2, 1, 3)
            return np.split(rows, np.cumsum(counts)[:-1], axis=1)

        yield Case(split, (make(2, 3, 30),), lambda x, p=parts: p(x, (2, 2, 2)), {"num_heads": 2})
        yield Case(split, (make(2, 3, 40),), lambda x, p=parts: p(x, (4, 2, 2)), {"num_heads": 4, "num_kv_heads": 2})

        def apart(q: Any, kv: Any, p: Any = parts) -> list[Any]:
            key, value = p(kv, (1, 1))
            return [p(q, (2,))[0], key.swapaxes(2, 3), value]

        two = {"num_heads": 2, "num_kv_heads": 1, "transpose_key": True}
        yield Case(split, (make(2, 3, 10), make(2, 3, 10)), apart, two)

        def rotary(x: Any, cos: Any, sin: Any) -> Any:
            half = x.shape[-1] // 2
            return x * cos + np.concatenate([-x[..., half:], x[..., :half]], -1) * sin

        yield Case("rotary_embedding", (make(2, 3, 4, 6), make(1, 1, 4, 6), make(1, 1, 4, 6)), rotary)


NEURAL = [*indexing(), *norms(), *windows(), *heads()]
