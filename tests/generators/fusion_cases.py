"""Functions that a fusion pattern matches, and those that look alike and mean something else."""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from jax import lax

import jaxmesh as jm
from jaxmesh.dialects.program import Program
from jaxmesh.passes.fusion.driver import fuse
from tests.generators.flat_programs import _perform, flat_of

MESH = jm.make_mesh((1,), ("x",))
GROUPS = {"softmax", "mean", "rms_norm", "layer_norm", "sigmoid", "silu", "relu", "gelu", "linear"}
BF16, F16, F32 = ml_dtypes.bfloat16, np.float16, np.float32
EPS = {"float32": 3e-6, "bfloat16": 4e-2, "float16": 4e-3, "float64": 1e-12}


@dataclasses.dataclass(frozen=True)
class Case:
    """A function of arrays of some shapes and of one type, and the groups in it: their names, space between."""

    function: Callable[..., Any]
    groups: str
    shapes: tuple[tuple[int, ...], ...]
    dtype: Any = F32

    def args(self, seed: int = 0) -> list[Any]:
        rng = np.random.default_rng(seed)
        return [(rng.normal(size=s) * 2).astype(self.dtype) for s in self.shapes]

    def program(self) -> Program:
        return flat_of(jm.jit(self.function, mesh=MESH).trace(*self.args()), "ttir")


def found(program: Program) -> collections.Counter[str]:
    names = [op.name.removeprefix("ttir.") for op in program.ops]
    return collections.Counter(n for n in names if n in GROUPS)


def agree(a: Any, b: Any) -> None:
    """Within rounding, and not a number, or infinite, in the same places."""
    a, b = np.asarray(a), np.asarray(b)
    assert (a.shape, a.dtype) == (b.shape, b.dtype)
    eps = EPS.get(a.dtype.name, 0)
    a, b = (x.astype(np.float64) for x in (a, b))
    scale = np.abs(b[np.isfinite(b)]).max(initial=1)
    np.testing.assert_allclose(a, b, rtol=eps, atol=eps * scale, equal_nan=True)


def eager(program: Program, args: list[Any]) -> list[Any]:
    """The results by the meaning of each row, one after the other."""
    env = dict(zip((a.value for a in program.arguments), map(jnp.asarray, args), strict=True))
    for op in program.ops:
        results = _perform(program, op, [None if v is None else env[v] for v in op.operands])
        env.update(zip(op.results, results, strict=True))
    return [env[r.value] for r in program.results]


def assert_case(case: Case) -> None:
    program = case.program()
    grouped = fuse(program)
    before, after = found(program), found(grouped)
    assert after == collections.Counter(case.groups.split()), (before, after, [op.name for op in grouped.ops])
    for seed in (0, 1):
        args = case.args(seed)
        for a, b in zip(eager(grouped, args), eager(program, args), strict=True):
            agree(a, b)


X, XW, XWB = ((2, 3, 4),), ((2, 3, 4), (4,)), ((2, 3, 4), (4,), (4,))
ROOT2 = np.float32(np.sqrt(2))


# --- softmax ---------------------------------------------------------------------------------------------------------


def by_hand(x: Any, axis: int = -1) -> Any:
    e = jnp.exp(x - jnp.max(x, axis, keepdims=True))
    return e / jnp.sum(e, axis, keepdims=True)


def without_keepdims(x: Any) -> Any:
    e = jnp.exp(x - x.max(1)[:, None, :])
    return e / e.sum(1)[:, None]


def times_inverse(x: Any) -> Any:
    e = jnp.exp(x - lax.stop_gradient(jnp.max(x, -1, keepdims=True)))
    return e * (1 / jnp.sum(e, -1, keepdims=True))


def times_reciprocal(x: Any) -> Any:
    e = jnp.exp(x - jnp.max(x, -1, keepdims=True))
    return jnp.reciprocal(jnp.sum(e, -1, keepdims=True)) * e


def masked(x: Any) -> Any:
    return jax.nn.softmax(jnp.where(x > 0.5, -jnp.inf, x))


def fully_masked(x: Any) -> Any:
    """A row of nothing but -inf is not a number, in both ways."""
    return jax.nn.softmax(jnp.where(jnp.arange(3)[:, None] == 1, -jnp.inf, x))


def with_its_sum(x: Any) -> Any:
    e = jnp.exp(x - jnp.max(x, -1, keepdims=True))
    total = jnp.sum(e, -1, keepdims=True)
    return e / total, total, e


def lying_names(x: Any) -> Any:
    """A call that is named softmax and is none, and one that is one."""

    @jax.jit
    def softmax(x: Any) -> Any:
        return jnp.exp(x) / jnp.sum(x)

    @jax.jit
    def something(x: Any) -> Any:
        return by_hand(x)

    return softmax(x) + something(x)


SOFTMAX = {
    "jax.nn": Case(jax.nn.softmax, "softmax", X),
    "jax.nn, first axis": Case(lambda x: jax.nn.softmax(x, axis=0), "softmax", X),
    "jax.nn, middle axis": Case(lambda x: jax.nn.softmax(x, axis=1), "softmax", X),
    "jax.nn, a vector": Case(jax.nn.softmax, "softmax", ((5,),)),
    "jax.nn, rank 5": Case(lambda x: jax.nn.softmax(x, axis=2), "softmax", ((1, 2, 3, 1, 2),)),
    "jax.nn, bfloat16": Case(jax.nn.softmax, "softmax", X, BF16),
    "jax.nn, float16": Case(jax.nn.softmax, "softmax", X, F16),
    "jax.nn, in float32": Case(lambda x: jax.nn.softmax(x.astype(F32)).astype(BF16), "softmax", X, BF16),
    "by hand": Case(by_hand, "softmax", X),
    "by hand, first axis": Case(lambda x: by_hand(x, 0), "softmax", X),
    "by hand, bfloat16": Case(by_hand, "softmax", X, BF16),
    "without keepdims": Case(without_keepdims, "softmax", X),
    "times 1 / sum": Case(times_inverse, "softmax", X),
    "times reciprocal": Case(times_reciprocal, "softmax", X),
    "masked": Case(masked, "softmax", X),
    "fully masked": Case(fully_masked, "softmax", X),
    "vmap": Case(jax.vmap(jax.nn.softmax), "softmax", X),
    "twice": Case(lambda x: jax.nn.softmax(jax.nn.softmax(x, axis=0)), "softmax softmax", X),
    "by its value, not by its name": Case(lying_names, "softmax", X),
}
NO_SOFTMAX = {
    "sum used again": Case(with_its_sum, "", X),
    "sum used again, in a gradient": Case(jax.grad(lambda x: (jax.nn.softmax(x) ** 2).sum()), "", X),
    "without the maximum": Case(lambda x: jnp.exp(x) / jnp.sum(jnp.exp(x), -1, keepdims=True), "", X),
    "sum over another axis": Case(lambda x: (e := jnp.exp(x - x.max(0))) / e.sum(1, keepdims=True), "", ((4, 4),)),
    "both over another axis": Case(
        lambda x: (e := jnp.exp(x - x.max(0, keepdims=True))) / e.sum(1)[None], "", ((4, 4),)
    ),
    "maximum over another axis": Case(
        lambda x: (e := jnp.exp(x - x.max(0, keepdims=True))) / e.sum(1, keepdims=True), "", ((4, 4),)
    ),
    "turned statistics": Case(lambda x: (e := jnp.exp(x - x.max(1))) / e.sum(1), "", ((4, 4),)),
    "maximum over all": Case(lambda x: (e := jnp.exp(x - x.max())) / e.sum(-1, keepdims=True), "", X),
    "over two axes": Case(lambda x: jax.nn.softmax(x, axis=(0, 2)), "", X),
    "maximum of another": Case(
        lambda x, y: (e := jnp.exp(x - y.max(-1, keepdims=True))) / e.sum(-1, keepdims=True), "", X * 2
    ),
    "sum of another": Case(
        lambda x, y: jnp.exp(x - x.max(-1, keepdims=True)) / jnp.exp(y).sum(-1, keepdims=True), "", X * 2
    ),
    "minimum": Case(lambda x: (e := jnp.exp(x - x.min(-1, keepdims=True))) / e.sum(-1, keepdims=True), "", X),
    "maximum first": Case(lambda x: (e := jnp.exp(x.max(-1, keepdims=True) - x)) / e.sum(-1, keepdims=True), "", X),
    "sum and a little": Case(
        lambda x: (e := jnp.exp(x - x.max(-1, keepdims=True))) / (e.sum(-1, keepdims=True) + 1), "", X
    ),
    "exp2": Case(lambda x: (e := jnp.exp2(x - x.max(-1, keepdims=True))) / e.sum(-1, keepdims=True), "", X),
    "log_softmax": Case(jax.nn.log_softmax, "", X),
    "logsumexp": Case(jax.nn.logsumexp, "", X),
    "masked after": Case(lambda x: jax.nn.softmax(x, where=x > 0), "", X),
    "in float16, whose sum overflows": Case(
        lambda x: (e := jnp.exp(x - x.max(-1, keepdims=True))) / lax.reduce_sum(e, [2])[..., None], "", X, F16
    ),
    "maximum in bfloat16": Case(
        lambda x: (
            e := jnp.exp(x - x.astype(BF16).max(-1, keepdims=True).astype(F32))
        ) / e.sum(-1, keepdims=True), "", X,
    ),
}  # fmt: skip


# --- pointwise -------------------------------------------------------------------------------------------------------


def exact_gelu(x: Any) -> Any:
    return jax.nn.gelu(x, approximate=False)


POINTWISE = {
    "gelu": Case(exact_gelu, "gelu", X),
    "gelu, bfloat16": Case(exact_gelu, "gelu", X, BF16),
    "gelu, float16": Case(exact_gelu, "gelu", X, F16),
    "gelu by erf": Case(lambda x: 0.5 * x * (1 + lax.erf(x / ROOT2)), "gelu", X),
    "gelu by erf, halved last": Case(lambda x: x * (1 + lax.erf(x * np.float32(np.sqrt(0.5)))) / 2, "gelu", X),
    "gelu by erf, half inside": Case(lambda x: x * (0.5 + 0.5 * lax.erf(x / jnp.sqrt(2.0))), "gelu", X),
    "gelu by erf, half of the sum": Case(lambda x: x * (0.5 * (lax.erf(x / ROOT2) + 1)), "gelu", X),
    "gelu by erfc": Case(lambda x: lax.erfc(x / -ROOT2) * (x / 2), "gelu", X),
    "gelu of a multiple": Case(lambda x: exact_gelu(3 * x), "gelu", X),
    "gelu of a product": Case(lambda x, y: exact_gelu(x * y), "gelu", X * 2),
    "silu": Case(jax.nn.silu, "silu", X),
    "silu, bfloat16": Case(jax.nn.silu, "silu", X, BF16),
    "silu by hand": Case(lambda x: x * (1 / (1 + jnp.exp(-x))), "silu", X),
    "silu as a quotient": Case(lambda x: x / (1 + jnp.exp(-x)), "silu", X),
    "swiglu": Case(lambda x, y: jax.nn.silu(x) * y, "silu", X * 2),
    "silu, the gate used again": Case(lambda x: (jax.nn.sigmoid(x) * x, jax.nn.sigmoid(x)), "silu sigmoid", X),
    "sigmoid": Case(jax.nn.sigmoid, "sigmoid", X),
    "sigmoid by hand": Case(lambda x: 1 / (1 + jnp.exp(-x)), "sigmoid", X),
    "sigmoid by reciprocal": Case(lambda x: jnp.reciprocal(jnp.exp(-1.0 * x) + 1), "sigmoid", X),
    "sigmoid of a multiple": Case(lambda x: 1 / (1 + jnp.exp(-(2 * x))), "sigmoid", X),
    "relu": Case(jax.nn.relu, "relu", X),
    "relu, bfloat16": Case(jax.nn.relu, "relu", X, BF16),
    "relu, the number first": Case(lambda x: jnp.maximum(0, x), "relu", X),
}
NOT_POINTWISE = {
    "gelu with tanh": Case(jax.nn.gelu, "", X),
    "quick gelu": Case(lambda x: x * jax.nn.sigmoid(1.702 * x), "sigmoid", X),
    "erf of x": Case(lambda x: 0.5 * x * (1 + lax.erf(x)), "", X),
    "erf of another": Case(lambda x, y: 0.5 * x * (1 + lax.erf(y / ROOT2)), "", X * 2),
    "erf, 0.7": Case(lambda x: 0.5 * x * (1 + lax.erf(x * 0.7)), "", X),
    "erf, the whole": Case(lambda x: x * (1 + lax.erf(x / ROOT2)), "", X),
    "erf, 1 - ": Case(lambda x: 0.5 * x * (1 - lax.erf(x / ROOT2)), "", X),
    "erf, 2 + ": Case(lambda x: 0.5 * x * (2 + lax.erf(x / ROOT2)), "", X),
    "erfc of x": Case(lambda x: 0.5 * x * lax.erfc(x / ROOT2), "", X),
    "1 + erfc": Case(lambda x: 0.5 * x * (1 + lax.erfc(x / ROOT2)), "", X),
    "halves of another": Case(lambda x, y: 0.5 * y * lax.erfc(-x / ROOT2), "", X * 2),
    "gate of another": Case(lambda x, y: x * jax.nn.sigmoid(y), "sigmoid", X * 2),
    "gate of the double": Case(lambda x: x * jax.nn.sigmoid(x + x), "sigmoid", X),
    "gate turned": Case(lambda x: x * jax.nn.sigmoid(x.T), "sigmoid", ((4, 4),)),
    "gate in bfloat16": Case(lambda x: x * jax.nn.sigmoid(x.astype(BF16)).astype(F32), "sigmoid", X),
    "gate of the rounded": Case(lambda x: x * jax.nn.sigmoid(x.astype(BF16).astype(F32)), "sigmoid", X),
    "erf of the rounded": Case(lambda x: 0.5 * x * (1 + lax.erf(x.astype(BF16).astype(F32) / ROOT2)), "", X),
    "exp(x) / (1 + exp(x))": Case(lambda x: jnp.exp(x) / (1 + jnp.exp(x)), "", X),
    "1 / (1 + exp(-2 x))": Case(lambda x: 1 / (1 + jnp.exp(-2 * x)), "", X),
    "1 / (1 + exp(x))": Case(lambda x: 1 / (1 + jnp.exp(x)), "", X),
    "1 / (2 + exp(-x))": Case(lambda x: 1 / (2 + jnp.exp(-x)), "", X),
    "2 / (1 + exp(-x))": Case(lambda x: 2 / (1 + jnp.exp(-x)), "", X),
    "y / (1 + exp(-x))": Case(lambda x, y: y / (1 + jnp.exp(-x)), "", X * 2),
    "sigmoid by hand, float16": Case(lambda x: 1 / (1 + jnp.exp(-x)), "", X, F16),
    "max(x, 1)": Case(lambda x: jnp.maximum(x, 1), "", X),
    "max(x, y)": Case(jnp.maximum, "", X * 2),
    "min(x, 0)": Case(lambda x: jnp.minimum(x, 0), "", X),
    "max of integers": Case(lambda x: jnp.maximum(x, 0), "", X, np.int32),
    "where(x > 0)": Case(lambda x: jnp.where(x > 0, x, 0), "", X),
}


# --- normalisations --------------------------------------------------------------------------------------------------


def rms(x: Any, eps: float = 1e-5) -> Any:
    return x * lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + eps)


def rms_in_float32(x: Any, w: Any) -> Any:
    """As Llama's code in bfloat16 has it."""
    y = x.astype(jnp.float32)
    y = y * lax.rsqrt(jnp.mean(jnp.square(y), axis=-1, keepdims=True) + 1e-6)
    return y.astype(x.dtype) * w


def rms_scale_in_float32(x: Any, w: Any) -> Any:
    y = x.astype(jnp.float32)
    scale = lax.rsqrt(jnp.mean(y * y, axis=-1, keepdims=True) + 1e-6)
    return x * scale.astype(x.dtype) * w


def rms_over_two(x: Any, w: Any) -> Any:
    return x / jnp.sqrt((x**2).sum((1, 2), keepdims=True) / 12 + 1e-5) * w


def two_pass(x: Any, w: Any, b: Any) -> Any:
    """As flax has it without its fast variance: the weight goes into the factor first."""
    mean = x.mean(-1, keepdims=True)
    variance = jnp.mean(lax.square(x - mean), -1, keepdims=True)
    return (x - mean) * (lax.rsqrt(variance + 1e-6) * w) + b


def by_var(x: Any, w: Any, b: Any) -> Any:
    return w * ((x - x.mean(-1, keepdims=True)) / jnp.sqrt(jnp.var(x, -1, keepdims=True) + 1e-5)) + b


def by_vmap(x: Any, w: Any, b: Any) -> Any:
    def one(v: Any) -> Any:
        centred = v - jnp.mean(v)
        return centred * lax.rsqrt(jnp.mean(centred**2) + 1e-5) * w + b

    return jax.vmap(jax.vmap(one))(x)


def fast_variance(x: Any) -> Any:
    """As flax has it by default: it cancels."""
    mean = x.mean(-1, keepdims=True)
    variance = jnp.maximum(0.0, jnp.mean(x * x, -1, keepdims=True) - mean * mean)
    return (x - mean) * lax.rsqrt(variance + 1e-5)


def centre(x: Any, axis: int = -1) -> Any:
    return x - x.mean(axis, keepdims=True)


def over_root(a: Any, c: Any, axis: int = -1, eps: Any = 1e-5) -> Any:
    return a * lax.rsqrt(jnp.mean(c * c, axis, keepdims=True) + eps)


def layer_norm_in_float32(x: Any, w: Any, b: Any) -> Any:
    y = two_pass(x.astype(F32), w.astype(F32), b.astype(F32))
    return y.astype(x.dtype)


NORMS = {
    "rms": Case(rms, "rms_norm", X),
    "rms, a vector": Case(rms, "rms_norm", ((6,),)),
    "rms, bfloat16": Case(rms, "rms_norm", X, BF16),
    "rms, no epsilon": Case(lambda x: x / jnp.sqrt(jnp.mean(x**2, -1, keepdims=True)), "rms_norm", X),
    "rms and weight": Case(lambda x, w: rms(x) * w, "rms_norm", XW),
    "rms, weight and bias": Case(lambda x, w, b: rms(x) * w + b, "rms_norm", XWB),
    "rms and bias": Case(lambda x, w: rms(x) + w, "rms_norm", XW),
    "rms, weight first": Case(lambda x, w: w * rms(x), "rms_norm", XW),
    "rms, weight in the factor": Case(
        lambda x, w: x * (w * lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + 1e-5)), "rms_norm", XW
    ),
    "rms, weight of another rank": Case(lambda x, w: rms(x) * w, "rms_norm", ((2, 3, 4), (1, 1, 4))),
    "rms, float32 inside": Case(rms_in_float32, "rms_norm", XW, BF16),
    "rms, float32 inside, float16": Case(rms_in_float32, "rms_norm", XW, F16),
    "rms, factor in float32": Case(rms_scale_in_float32, "rms_norm", XW, BF16),
    "rms over two dims": Case(rms_over_two, "rms_norm", ((2, 3, 4), (3, 4))),
    "rms, inverse of a root": Case(
        lambda x: (1 / jnp.sqrt(1e-5 + jnp.mean(x * x, -1, keepdims=True))) * x, "rms_norm", X
    ),
    "rms, a power": Case(lambda x: x * (jnp.mean(x * x, -1, keepdims=True) + 1e-5) ** -0.5, "rms_norm", X),
    "rms of one row": Case(lambda x, w: rms(x) * w, "rms_norm", ((1, 1, 4), (4,))),
    "rms, no keepdims": Case(lambda x: x * lax.rsqrt((x * x).mean(-1) + 1e-5)[..., None], "rms_norm", X),
    "rms of the centred": Case(lambda x: rms(centre(x)), "layer_norm", X),
    "layer_norm": Case(lambda x: over_root(centre(x), centre(x)), "layer_norm", X),
    "layer_norm, two passes": Case(two_pass, "layer_norm", XWB),
    "layer_norm, var": Case(by_var, "layer_norm", XWB),
    "layer_norm, vmap": Case(by_vmap, "layer_norm", XWB),
    "layer_norm, float32 inside": Case(layer_norm_in_float32, "layer_norm", XWB, BF16),
    "mean": Case(lambda x: x.mean(1), "mean", X),
    "mean, keepdims": Case(lambda x: x.mean((0, 2), keepdims=True), "mean", X),
    "mean of all": Case(lambda x: x.mean(), "mean", X),
    "mean, bfloat16": Case(lambda x: x.mean(-1), "mean", X, BF16),
    "mean, float16": Case(lambda x: x.mean(-1), "mean", X, F16),
    "mean by hand": Case(lambda x: x.sum(1) / x.shape[1], "mean", X),
    "mean by a factor": Case(lambda x: (1 / 12) * x.sum((1, 2)), "mean", X),
    "mean, dims of 1 after": Case(lambda x: x.sum(1)[:, None] / 3, "mean", X),
}
NO_NORMS = {
    "factor used again": Case(
        lambda x: (x * (r := lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + 1e-5)), r), "mean", X
    ),
    "variance used again": Case(
        lambda x: (x * lax.rsqrt((v := jnp.mean(x * x, -1, keepdims=True)) + 1e-5), v[..., 0]), "mean", X
    ),
    "factor used again, in a gradient": Case(jax.grad(lambda x: (rms(centre(x)) ** 3).sum()), "mean mean mean", X),
    "weighted and not": Case(lambda x, w: ((n := rms(x)) * w, n), "rms_norm", XW),
    "sum used again": Case(lambda x: ((t := x.sum(1)) / 3, t), "", X),
    "sum of squares": Case(lambda x: x * lax.rsqrt(jnp.sum(x * x, -1, keepdims=True) + 1e-5), "", X),
    "another axis": Case(lambda x: over_root(x, x, 1), "mean", X),
    "turned": Case(lambda x: x * lax.rsqrt(jnp.mean(x * x, -1) + 1e-5), "mean", ((4, 4),)),
    "epsilon outside": Case(lambda x: x / (jnp.sqrt(jnp.mean(x * x, -1, keepdims=True)) + 1e-5), "mean", X),
    "epsilon for each": Case(lambda x, e: over_root(x, x, eps=e * e), "mean", XW),
    "epsilon below 0": Case(lambda x: over_root(x, x, eps=-1e-5), "mean", X),
    "epsilon times": Case(lambda x: x * lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) * 1.5), "mean", X),
    "another's squares": Case(lambda x, y: over_root(y, x), "mean", X * 2),
    "a product of two": Case(lambda x, y: x * lax.rsqrt(jnp.mean(x * y, -1, keepdims=True) + 9), "mean", X * 2),
    "cubes": Case(lambda x: x * lax.rsqrt(jnp.mean(x * x * x, -1, keepdims=True) + 99), "mean", X),
    "root of the root": Case(
        lambda x: x * lax.rsqrt(jnp.sqrt(jnp.mean(x * x, -1, keepdims=True)) + 1e-5), "mean", X
    ),
    "not the last dims": Case(lambda x: x * lax.rsqrt(jnp.mean(x * x, (0, 1), keepdims=True)), "mean", X),
    "dims apart": Case(lambda x: x * lax.rsqrt(jnp.mean(x * x, (0, 2), keepdims=True)), "mean", X),
    "all in float16": Case(lambda x: x * lax.rsqrt(lax.reduce_sum(x * x, [2])[..., None] / 4), "", X, F16),
    "squares in float16": Case(rms, "mean", X, F16),
    "weight for rows": Case(lambda x, w: rms(x) * w, "rms_norm", ((2, 3, 4), (3, 1))),
    "weight for all": Case(lambda x, w: rms(x) * w, "rms_norm", X * 2),
    "weight of one number": Case(lambda x, w: rms(x) * w, "rms_norm", ((2, 3, 4), (1,))),
    "a number": Case(lambda x: rms(x) * 2, "rms_norm", X),
    "bias before the weight": Case(lambda x, w, b: (rms(x) + b) * w, "rms_norm", XWB),
    "two weights": Case(lambda x, w, b: rms(x) * w * b, "rms_norm", XWB),
    "weight of a wider type": Case(
        lambda x, w: (rms(x.astype(F32)).astype(BF16).astype(F32) * w.astype(F32)).astype(BF16), "rms_norm", XW, BF16
    ),
    "fast variance": Case(fast_variance, "mean mean relu", X),
    "jax.nn.standardize": Case(jax.nn.standardize, "mean mean relu", X),
    "one degree less": Case(
        lambda x: centre(x) / jnp.sqrt(jnp.var(x, -1, keepdims=True, ddof=1) + 1e-5), "mean mean", X
    ),
    "another's variance": Case(lambda x, y: over_root(centre(y), centre(x)), "mean mean mean", X * 2),
    "centred over another axis": Case(lambda x: over_root(centre(x), centre(x, 1)), "mean mean mean", X),
    "not centred": Case(lambda x: over_root(x, centre(x)), "mean mean", X),
    "layer_norm in bfloat16": Case(
        lambda x: over_root(centre(x), centre(x)), "mean mean mean", X, BF16
    ),
    "mean, one more": Case(lambda x: x.sum(1) / 4, "", X),
    "mean, size of another dim": Case(lambda x: x.sum(1) / x.shape[2], "", X),
    "mean, inverted": Case(lambda x: 3 / x.sum(1), "", X),
    "mean of integers": Case(lambda x: x.sum(1) // 3, "", X, np.int32),
    "mean, turned": Case(lambda x: x.sum(1).T / 3, "", ((4, 3, 4),)),
    "a sum in float16": Case(lambda x: lax.reduce_sum(x, [1]) / 3, "", X, F16),
}  # fmt: skip


# --- linear ----------------------------------------------------------------------------------------------------------

WIDE = ((2, 3, 4), (4, 5), (5,))
LINEAR = {
    "rows": Case(lambda x, w, b: x @ w + b, "linear", ((3, 4), (4, 5), (5,))),
    "rows, bias first": Case(lambda x, w, b: b + x @ w, "linear", ((3, 4), (4, 5), (5,))),
    "three dims": Case(lambda x, w, b: x @ w + b, "linear", WIDE),
    "einsum": Case(lambda x, w, b: jnp.einsum("bsd,df->bsf", x, w) + b, "linear", WIDE),
    "turned weight": Case(lambda x, w, b: x @ w.T + b, "linear", ((3, 4), (5, 4), (5,))),
    "bias of another rank": Case(lambda x, w, b: x @ w + b, "linear", ((3, 4), (4, 5), (1, 5))),
    "a vector": Case(lambda x, w, b: x @ w + b, "linear", ((4,), (4, 5), (5,))),
    "batched": Case(lambda x, w, b: x @ w + b, "linear", ((2, 3, 4), (2, 4, 5), (5,))),
    "bfloat16": Case(lambda x, w, b: x @ w + b, "linear", WIDE, BF16),
    "two layers": Case(
        lambda x, w, b, v, c: jax.nn.relu(x @ w + b) @ v + c, "linear relu linear", (*WIDE, (5, 3), (3,))
    ),
}
NOT_LINEAR = {
    "product used again": Case(lambda x, w, b: ((y := x @ w) + b, y), "", WIDE),
    "product as its own bias": Case(lambda x, w: (y := x @ w) + y * y, "", ((1, 4), (4, 5))),
    "another product": Case(lambda x, w, b: x @ w + b, "", ((3, 4), (4, 5), (3, 5))),
    "one number for each row": Case(lambda x, w, b: x @ w + b, "", ((5, 4), (4, 5), (5, 1))),
    "one number": Case(lambda x, w, b: x @ w + b, "", ((3, 4), (4, 5), (1,))),
    "a constant": Case(lambda x, w: x @ w + 1, "", ((3, 4), (4, 5))),
    "a constant, one column": Case(lambda x, w: x @ w + 1, "", ((3, 4), (4, 1))),
    "minus": Case(lambda x, w, b: x @ w - b, "", ((3, 4), (4, 5), (5,))),
    "integers": Case(lambda x, w, b: x @ w + b, "", ((3, 4), (4, 5), (5,)), np.int32),
    "turned after": Case(lambda x, w, b: (x @ w).T + b, "", ((5, 4), (4, 5), (5,))),
    "reshaped after": Case(lambda x, w, b: (x @ w).reshape(5, 4) + b, "", ((4, 4), (4, 5), (4,))),
    "scaled between": Case(lambda x, w, b: 2 * (x @ w) + b, "", ((3, 4), (4, 5), (5,))),
    "bias in a wider type": Case(lambda x, w, b: (x @ w).astype(F32) + b.astype(F32), "", ((3, 4), (4, 5), (5,)), BF16),
    "a bias that makes more rows": Case(lambda x, w, b: x @ w + b, "", ((1, 4), (4, 5), (3, 5))),
}

POSITIVE = {"softmax": SOFTMAX, "pointwise": POINTWISE, "norms": NORMS, "linear": LINEAR}
NEGATIVE = {"softmax": NO_SOFTMAX, "pointwise": NOT_POINTWISE, "norms": NO_NORMS, "linear": NOT_LINEAR}


def listed(tables: dict[str, dict[str, Case]]) -> list[Any]:
    return [pytest.param(c, id=f"{t}: {n}") for t, table in tables.items() for n, c in table.items()]
