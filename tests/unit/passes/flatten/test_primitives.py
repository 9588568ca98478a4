"""The rules for JAX's core primitives: a flat program gives what the jit-compiled function gives."""

from __future__ import annotations

import functools
import math
import os
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from jax import lax
from jax.ad_checkpoint import checkpoint_name

import jaxmesh as jm
from jaxmesh.dialects.program import Program
from jaxmesh.errors import InexpressibleError, MissingRuleError, UnrolledLoopWarning, UnsupportedError
from jaxmesh.passes.flatten import control_flow
from jaxmesh.passes.flatten.builder import Options
from jaxmesh.passes.flatten.flatten import flatten
from tests.generators.flat_programs import flat_of, run_flat

pytestmark = pytest.mark.slow(but_one_in=2)

P = jax.sharding.PartitionSpec
Function = Callable[..., Any]
HAS_EMITTERS = "use_fusion_emitters=false" not in os.environ.get("XLA_FLAGS", "")
"""Without its emitters of fusions, XLA makes NaN infinite where no bit of the mantissa stays."""
RNG = np.random.RandomState(7)


@functools.cache
def mesh(*sizes: int) -> Any:
    return jm.make_mesh(sizes or (2, 4))


def floats(*shape: int, dtype: Any = np.float32) -> Any:
    return np.asarray(RNG.randn(*shape), dtype)


def ints(*shape: int, low: int = -9, high: int = 9, dtype: Any = np.int32) -> Any:
    return RNG.randint(low, high, shape).astype(dtype)


def bools(*shape: int) -> Any:
    return RNG.rand(*shape) > 0.5


def wide(x: Any) -> Any:
    """As NumPy compares it: bfloat16 is none of its own types."""
    x = np.asarray(x)
    return x.astype(np.float64) if x.dtype.kind in "fV" else x


def same(got: Any, want: Any, exact: bool, name: str) -> None:
    got, want = np.asarray(got), np.asarray(want)
    assert (got.shape, got.dtype) == (want.shape, want.dtype), name
    if exact or got.dtype.kind in "iub":
        np.testing.assert_array_equal(wide(got), wide(want), name)
        return
    bits = 7 if got.dtype == jnp.bfloat16 else 10 if got.dtype == np.float16 else 17
    scale = np.max(np.abs(np.where(np.isfinite(wide(want)), wide(want), 0)), initial=1)
    np.testing.assert_allclose(
        wide(got), wide(want), rtol=3 * 2.0**-bits, atol=scale * 2.0 ** -(bits + 2), err_msg=name
    )


def check(
    function: Function, *args: Any, exact: bool = False, oracle: Function | None = None, on: Any = None
) -> Program:
    """A function's flat program against the compiled function; the program."""
    program = flat_of(jm.jit(function, mesh=on or mesh()).trace(*args), "ttir")
    got = run_flat(program, on or mesh(), *args)
    want = jax.tree.leaves(jax.jit(oracle or function)(*args))
    for i, (g, w) in enumerate(zip(got, want, strict=True)):
        same(g, w, exact, f"result {i}")
    return program


def names(program: Program) -> list[str]:
    return [op.name.removeprefix("ttir.") for op in program.ops]


# --- tables of cases -------------------------------------------------------------------------------------------------

Case = tuple[str, Function, tuple[Any, ...]]
SPECIAL = np.array(
    [0.0, -0.0, 0.5, -0.5, 1.5, 2.5, -2.5, 1.0, -1.0, np.inf, -np.inf, np.nan, 0.3, 4.7, -8.1], np.float32
)
FLOAT = {"f32": np.float32, "bf16": jnp.bfloat16}
WHOLE = {"i32": np.int32, "u8": np.uint8, "i8": np.int8, "u32": np.uint32}


def _bits_and_back(x: Any, width: int) -> list[Any]:
    """The bits, those of the next float, the float without its last bits and without its sign."""
    kind = jnp.dtype(f"uint{width}")
    held = lax.bitcast_convert_type(x, kind)
    high = held & kind.type(2**width - (4096 if width == 32 else 4))
    back = [lax.bitcast_convert_type(v, x.dtype) for v in (held + kind.type(1), high, held << kind.type(1))]
    return [held, lax.bitcast_convert_type(x, f"int{width}"), *map(jnp.nan_to_num, back), jnp.signbit(x)]


def _unary() -> list[Case]:
    functions = [
        "abs", "neg", "sign", "exp", "exp2", "expm1", "log", "log1p", "sqrt", "rsqrt", "cbrt", "sin", "cos", "tan",
        "asin", "acos", "atan", "sinh", "cosh", "tanh", "asinh", "acosh", "atanh", "erf", "erfc", "erf_inv", "floor",
        "ceil", "logistic", "is_finite", "square", "stop_gradient", "lgamma",
    ]  # fmt: skip
    made: list[Case] = [
        (f"{n}-{t}", getattr(lax, n), (SPECIAL.astype(d),)) for n in functions for t, d in FLOAT.items()
    ]
    for power in (0, 1, 2, 3, 7, -1, -2):
        made += [
            (f"pow{power}-{t}", lambda x, p=power: lax.integer_pow(x, p), (floats(5, dtype=d),))
            for t, d in FLOAT.items()
        ]
    for method in lax.RoundingMethod:
        made += [
            (f"{method.name}-{t}", lambda x, m=method: lax.round(x, m), (SPECIAL.astype(d),)) for t, d in FLOAT.items()
        ]
    made.append(("away from zero", lambda x: lax.round(x, lax.RoundingMethod.AWAY_FROM_ZERO), (
        np.array([0.49999997, -0.49999997, 8388609.0, 3.5, -1e30], np.float32),
    )))  # fmt: skip
    for bits in ((8, 7), (8, 23), (5, 10), (11, 52), (5, 2), (4, 3), (8, 0), (2, 1), (5, 23), (6, 9)):
        made += [
            (f"reduce_precision{bits}-{t}", lambda x, n=bits: lax.reduce_precision(x, *n), (v.astype(d),))
            for t, d in FLOAT.items()
            # XLA without its emitters of fusions makes NaN infinite where no bit of the mantissa stays.
            for nan in [
                [np.nan] if bits[1] or "use_fusion_emitters=false" not in os.environ.get("XLA_FLAGS", "") else []
            ]
            for v in [
                np.concatenate([floats(40) * np.logspace(-6, 6, 40), [448, 464, 1.5, 3, 65520, -0.0, np.inf, *nan]])
            ]
        ]
    wide = np.concatenate([np.linspace(-40, 40, 161), [1e-5, 1e30, np.inf, np.nan]])
    made += [
        (f"{n}-{t}", getattr(lax, n), (wide.astype(d),)) for n in ("bessel_i0e", "bessel_i1e") for t, d in FLOAT.items()
    ]
    orders, places = np.meshgrid([0, 1, 1.5, 2, 3, 4, 7, 11], [-2.5, -1, 0, 0.1, 0.5, 1, 2, 5, 100])
    made.append(("zeta", lax.zeta, (orders.astype(np.float32), places.astype(np.float32))))
    made.append(("polygamma", lax.polygamma, (orders.astype(np.float32)[3:], places.astype(np.float32)[3:])))
    made.append(("nextafter", lax.nextafter, (SPECIAL, SPECIAL[::-1].copy())))
    made.append(("nextafter-bf16", lax.nextafter, (floats(9, dtype=jnp.bfloat16), floats(9, dtype=jnp.bfloat16))))
    made += [(f"digamma-{t}", lax.digamma, (SPECIAL[2:].astype(d),)) for t, d in FLOAT.items()]
    made.append(("log2", jnp.log2, (np.abs(floats(9)),)))
    normal = np.concatenate([SPECIAL[:11], SPECIAL[12:], 2.0 ** np.arange(-14, 16), floats(20) * 9, [-60000.0, 6e-5]])
    for d, w in ((np.float32, 32), (jnp.bfloat16, 16), (np.float16, 16)):
        made.append((f"bits of {d.__name__}", lambda x, w=w: _bits_and_back(x, w), (normal.astype(d),)))
    far = np.array([1e-37, 2.0**-126, 3e38, np.inf, 2.0**127, 0.0, -1.7e38, 1e20], np.float32)
    made.append(("bits of far", lambda x: _bits_and_back(x, 32), (far,)))
    made.append(("erf_inv ends", lax.erf_inv, (np.array([-1, 1, 0.999999, -0.9999, 2, 1e-20], np.float32),)))
    return made


def _whole() -> list[Case]:
    made: list[Case] = []
    for t, d in WHOLE.items():
        x, y = ints(9, low=0, high=99, dtype=d), ints(9, low=1, high=20, dtype=d)
        if np.dtype(d).kind == "i":
            x, y = x - d(50), np.where(ints(9) > 0, y, -y).astype(d)
        both = ["add", "sub", "mul", "div", "rem", "max", "min", "bitwise_and", "bitwise_or", "bitwise_xor",
                "eq", "ne", "lt", "le", "gt", "ge", "mulhi"]  # fmt: skip
        made += [(f"{n}-{t}", getattr(lax, n), (x, y)) for n in both if hasattr(lax, n)]
        by = np.array([0, 1, 3, 7, 2, 100, 5, 4, 6], d)
        made += [
            (f"{n}-{t}", getattr(lax, n), (x, by))
            for n in ("shift_left", "shift_right_logical", "shift_right_arithmetic")
        ]
        made += [(f"{n}-{t}", getattr(lax, n), (x,)) for n in ("bitwise_not", "population_count", "clz", "sign")]
        made.append((f"pow3-{t}", lambda x: lax.integer_pow(x, 3), (x,)))
        made.append((f"clamp-{t}", lambda x, d=d: lax.clamp(d(3), x, d(30)), (x,)))
        made += [
            (f"to {k}-{t}", lambda x, e=e: x.astype(e), (x,)) for k, e in {**FLOAT, **WHOLE, "bool": np.bool_}.items()
        ]
    flags = bools(9), bools(9)
    made += [
        (f"{n}-bool", getattr(lax, n), flags)
        for n in ("bitwise_and", "bitwise_or", "bitwise_xor", "eq", "ne", "max", "min")
    ]
    made.append(("not-bool", lax.bitwise_not, flags[:1]))
    made += [(f"bool to {k}", lambda x, e=e: x.astype(e), flags[:1]) for k, e in {**FLOAT, **WHOLE}.items()]
    big = np.array([0, 1, -1, 2**31 - 1, -(2**31), 65536], np.int32)
    made += [(f"{n}-edges", getattr(lax, n), (big,)) for n in ("population_count", "clz", "abs", "neg", "sign")]
    made.append(("mulhi-edges", lax.mulhi, (big, big[::-1].copy())) if hasattr(lax, "mulhi") else made[0])
    made.append(("float to int", lambda x: x.astype(np.int32), (np.array([1.9, -1.9, 0.0, 7.0], np.float32),)))
    made += [
        (
            f"constant of {a} to {b}",
            lambda x, a=a, b=b, n=n: x + jnp.full(2, n, a).astype(b).astype(np.float32),
            (floats(2),),
        )
        for a, b, n in (("int4", "uint4", -3), ("uint4", "int4", 12), ("float8_e4m3fn", "float8_e5m2", 1.5))
    ]
    return made


def _binary() -> list[Case]:
    made: list[Case] = []
    for t, d in FLOAT.items():
        x, y = floats(3, 4, dtype=d), floats(3, 4, dtype=d)
        both = ("add", "sub", "mul", "div", "rem", "max", "min", "atan2", "eq", "ne", "lt", "le", "gt", "ge")
        made += [(f"{n}-{t}", getattr(lax, n), (x, y)) for n in both]
        made.append((f"pow-{t}", lax.pow, (abs(x), y)))
        made.append((f"pow by int-{t}", lax.pow, (x, ints(3, 4, low=0, high=4))))
        made.append((f"clamp-{t}", lambda x, d=d: lax.clamp(d(-0.5), x, d(0.5)), (x,)))
        made.append((f"clamp by tensors-{t}", lambda x, y: lax.clamp(-abs(y), x, abs(y)), (x, y)))
        made.append((f"select-{t}", lambda p, x, y: lax.select_n(p, x, y), (bools(3, 4), x, y)))
        made.append((f"select scalar-{t}", lambda p, x, y: lax.select_n(p, x, y), (np.bool_(True), x, y)))
        made.append(
            (f"select four-{t}", lambda p, *xs: lax.select_n(p, *xs), (ints(3, 4, low=0, high=4), x, y, x * 2, y * 3))
        )
    x, y = floats(3, 4), floats(3, 4)
    made += [
        ("nan", jnp.maximum, (SPECIAL, SPECIAL[::-1].copy())),
        ("clamp nan", lambda x: jnp.clip(x, -1, 1), (SPECIAL,)),
        ("where", lambda x, y: jnp.where(x > y, x, 0), (x, y)),
        ("barrier", lambda x, y: lax.optimization_barrier((x, y)), (x, y)),
        ("mod", jnp.mod, (x, y)),
        ("floor_divide", jnp.floor_divide, (x, y)),
        ("divmod", lambda x, y: jnp.divmod(x, y), (ints(5), ints(5, low=1))),
        ("int power", lambda x, y: x**y, (ints(5), ints(5, low=0, high=5))),
        ("hypot", jnp.hypot, (x, y)),
        ("logaddexp", jnp.logaddexp, (x, y)),
        ("nan_to_num", jnp.nan_to_num, (SPECIAL,)),
        ("sinc", jnp.sinc, (x,)),
        ("outer", jnp.outer, (x[0], y[1])),
        ("heaviside", jnp.heaviside, (x, y)),
        ("isnan", lambda x: (jnp.isnan(x), jnp.isinf(x), jnp.isposinf(x)), (SPECIAL,)),
        ("polyval", lambda c, x: jnp.polyval(c, x), (floats(4), x)),
        ("device_put", lambda x: jax.device_put(x), (x,)),
    ]
    return made


def _shapes() -> list[Case]:
    x = floats(4, 6)
    t = floats(2, 3, 4)
    made: list[Case] = [
        ("reshape", lambda x: x.reshape(3, 8), (x,)),
        ("reshape order", lambda x: lax.reshape(x, (8, 3), (1, 0)), (x,)),
        ("ravel scalar", lambda x: x.reshape(()), (floats(1, 1),)),
        ("transpose", lambda t: t.transpose(2, 0, 1), (t,)),
        ("swapaxes", lambda t: jnp.swapaxes(t, 0, 2), (t,)),
        ("squeeze", lambda x: jnp.squeeze(x[:1]), (x,)),
        ("expand_dims", lambda x: jnp.expand_dims(x, (0, 2)), (x,)),
        ("broadcast", lambda x: jnp.broadcast_to(x, (3, 4, 6)), (x,)),
        ("broadcast scalar", lambda x: jnp.broadcast_to(x[0, 0], (3, 2)), (x,)),
        ("broadcast_in_dim", lambda x: lax.broadcast_in_dim(x, (4, 2, 6, 3), (0, 2)), (x,)),
        ("concatenate", lambda x, y: jnp.concatenate([x, y, x], 1), (x, x + 1)),
        ("concatenate empty", lambda x: jnp.concatenate([x[:0], x, x[2:2]]), (x,)),
        ("stack", lambda x: jnp.stack([x, x + 1], 1), (x,)),
        ("unstack", lambda x: jnp.unstack(x, axis=1), (x,)),
        ("tile", lambda x: jnp.tile(x, (2, 1, 3)), (x,)),
        ("repeat", lambda x: jnp.repeat(x, 3, axis=0), (x,)),
        ("rev", lambda x: x[::-1, ::-1], (x,)),
        ("rev twice", lambda x: lax.rev(lax.rev(x, (0,)), (0,)), (x,)),
        ("slice", lambda x: x[1:4:2, ::3], (x,)),
        ("slice empty", lambda x: x[2:2], (x,)),
        ("split", lambda x: jnp.split(x, (1, 4), axis=1), (x,)),
        ("iota", lambda x: lax.broadcasted_iota(np.int32, (3, 5), 0) + lax.broadcasted_iota(np.int32, (3, 5), 1), (x,)),
        ("arange float", lambda x: jnp.arange(6.0) * x, (x,)),
        ("arange", lambda x: jnp.arange(3, 15, 2) + x[0], (x,)),
        ("zeros", lambda x: jnp.zeros((2, 3), np.int32), (x,)),
        ("empty", lambda x: jnp.ones((0, 3)) + x[0, 0], (x,)),
        ("eye", lambda x: jnp.eye(4, 6) * x, (x,)),
        ("tril", lambda x: jnp.tril(x) + jnp.triu(x, 1), (x,)),
        ("roll", lambda x: jnp.roll(x, 2, 1), (x,)),
        ("pad", lambda x: jnp.pad(x, ((1, 2), (0, 3)), constant_values=7), (x,)),
        ("pad reflect", lambda x: jnp.pad(x, 2, mode="reflect"), (x,)),
        ("constant", lambda x: x + np.arange(24, dtype=np.float32).reshape(4, 6), (x,)),
        ("argument back", lambda x: (x, x, x + 1), (x,)),
        ("meshgrid", lambda x, y: jnp.meshgrid(x, y), (floats(3), floats(2))),
        ("moveaxis", lambda t: jnp.moveaxis(t, 0, -1), (t,)),
        ("rot90", lambda x: jnp.rot90(x), (x,)),
        ("kron", lambda x: jnp.kron(x, jnp.ones((2, 2))), (x,)),
        ("diag", lambda x: jnp.diag(x), (floats(4),)),
        ("copy", lambda x: jnp.copy(x), (x,)),
        ("name", lambda x: checkpoint_name(x, "here"), (x,)),
    ]
    kinds = {"bf16": jnp.bfloat16, "i32": np.int32, "bool": np.bool_}
    for k, d in kinds.items():
        y = (x * 4).astype(d)
        made.append(
            (
                f"moves-{k}",
                lambda x: (
                    x.T,
                    x[::-1, 1:],
                    jnp.concatenate([x, x]),
                    x.reshape(-1),
                    x[None] | x[None] if x.dtype == bool else x[None],
                ),
                (y,),
            )
        )
        made.append((f"pad-{k}", lambda x, d=d: lax.pad(x, d(1), [(1, -1, 2), (-2, 3, 0)]), (y,)))
    return made


def _reductions() -> list[Case]:
    made: list[Case] = []
    x = floats(3, 4, 5)
    for t, d in FLOAT.items():
        for n in ("sum", "max", "min", "prod"):
            made += [
                (f"{n}{axis}-{t}", lambda x, n=n, a=axis: getattr(jnp, n)(x, a), (x.astype(d),))
                for axis in (None, 1, (0, 2))
            ]
    for t, d in WHOLE.items():
        y = ints(3, 4, 5, low=0, high=9, dtype=d)
        made += [(f"{n}-{t}", lambda x, n=n: getattr(lax, n)(x, (0, 1)), (y,)) for n in
                 ("reduce_sum", "reduce_max", "reduce_min", "reduce_and", "reduce_or", "reduce_xor")]  # fmt: skip
    flags = bools(3, 4, 5)
    made += [(f"{n}-bool", lambda x, n=n: getattr(lax, n)(x, (1,)), (flags,)) for n in
             ("reduce_and", "reduce_or", "reduce_xor", "reduce_max", "reduce_min")]  # fmt: skip
    made += [
        ("mean", lambda x: jnp.mean(x, -1, keepdims=True), (x,)),
        ("var", lambda x: jnp.var(x, 1), (x,)),
        ("std", lambda x: jnp.std(x), (x,)),
        ("ptp", lambda x: jnp.ptp(x, 0), (x,)),
        ("all", lambda x: (jnp.all(x > 0), jnp.any(x > 0, 1)), (x,)),
        ("count", lambda x: jnp.count_nonzero(x > 0, 1), (x,)),
        ("norm", lambda x: jnp.linalg.norm(x, axis=-1), (x,)),
        ("empty", lambda x: (x[:0].sum(0), lax.reduce_max(x[:0], (0,)), lax.reduce_min(x[:, :0] > 0, (1,))), (x,)),
        ("reduce body", lambda x: lax.reduce(x, np.float32(2), lax.mul, (0,)), (x,)),
        ("reduce or", lambda x: lax.reduce(x, np.int32(6), lax.bitwise_or, (0,)), (ints(4, 3),)),
        ("average", lambda x, w: jnp.average(x, axis=1, weights=w), (x, np.abs(floats(4)))),
        ("trace", lambda x: jnp.trace(x), (floats(4, 4),)),
        (
            "integers of 4 bits",
            lambda x: (lax.reduce_min(x, (0,)), lax.argmin(x[:0], 1, np.int32)),
            (ints(4, 3, low=-8, high=8, dtype=jnp.int4),),
        ),
    ]
    return made


NN = {
    "relu": {}, "relu6": {}, "sigmoid": {}, "softplus": {}, "sparse_plus": {}, "sparse_sigmoid": {}, "soft_sign": {},
    "silu": {}, "log_sigmoid": {}, "leaky_relu": {}, "hard_sigmoid": {}, "hard_silu": {}, "hard_tanh": {}, "elu": {},
    "celu": {}, "selu": {}, "gelu": {}, "glu": {}, "squareplus": {}, "mish": {}, "softmax": {}, "log_softmax": {},
    "logsumexp": {}, "standardize": {}, "identity": {}, "normalize": {},
}  # fmt: skip


def _neural() -> list[Case]:
    made: list[Case] = []
    x = floats(3, 6)
    for n in NN:
        if not hasattr(jax.nn, n):
            continue
        f: Any = getattr(jax.nn, n)
        made.append((n, f, (x,)))
        made.append((f"{n}-bf16", f, (x.astype(jnp.bfloat16),)))
        made.append((f"grad {n}", jax.grad(lambda x, f=f: (f(x) ** 2).sum()), (x,)))
        made.append((f"jvp {n}", lambda x, f=f: jax.jvp(f, (x,), (2 * x,)), (x,)))
    made += [
        ("gelu erf", lambda x: jax.nn.gelu(x, approximate=False), (x,)),
        ("grad gelu erf", jax.grad(lambda x: jax.nn.gelu(x, approximate=False).sum()), (x,)),
        ("one_hot", lambda i: jax.nn.one_hot(i, 7), (ints(5, low=-1, high=8),)),
        (
            "attention",
            lambda q, k, v: jax.nn.dot_product_attention(q, k, v, is_causal=True),
            (floats(2, 5, 2, 4), floats(2, 5, 2, 4), floats(2, 5, 2, 4)),
        ),
        (
            "cross entropy",
            jax.grad(lambda x, i: -(jax.nn.log_softmax(x) * jax.nn.one_hot(i, 6)).sum()),
            (x, ints(3, low=0, high=6)),
        ),
        ("masked softmax", lambda x, m: jax.nn.softmax(x, where=m), (x, bools(3, 6) | True)),
        ("vmap grad", jax.vmap(jax.grad(lambda r: jnp.tanh(r @ r))), (x,)),
        ("hessian", jax.hessian(lambda r: (jnp.sin(r) * r).sum()), (x[0],)),
    ]
    for n in (
        "sin",
        "cos",
        "tan",
        "tanh",
        "sinh",
        "cosh",
        "exp",
        "exp2",
        "expm1",
        "log1p",
        "atan",
        "asinh",
        "cbrt",
        "erf",
        "erfc",
        "logistic",
        "square",
        "abs",
    ):
        made.append((f"grad {n}", jax.grad(lambda x, n=n: getattr(lax, n)(x).sum()), (x,)))
    inside = np.clip(floats(3, 6), -0.9, 0.9)
    for n in ("asin", "acos", "atanh", "erf_inv"):
        made.append((f"grad {n}", jax.grad(lambda x, n=n: getattr(lax, n)(x).sum()), (inside,)))
    for n in ("sqrt", "rsqrt", "log"):
        made.append((f"grad {n}", jax.grad(lambda x, n=n: getattr(lax, n)(x).sum()), (np.abs(x) + 0.5,)))
    for n in ("mul", "div", "max", "min", "atan2", "sub", "rem"):
        made.append(
            (
                f"grad {n}",
                jax.grad(lambda x, y, n=n: getattr(lax, n)(x, y).sum(), (0, 1)),
                (x, np.abs(floats(3, 6)) + 0.5),
            )
        )
    made.append(("grad pow", jax.grad(lambda x, y: lax.pow(x, y).sum(), (0, 1)), (np.abs(x) + 0.5, floats(3, 6))))
    for n in ("max", "min", "prod", "mean", "var"):
        made.append((f"grad reduce {n}", jax.grad(lambda x, n=n: (getattr(jnp, n)(x, 1) ** 2).sum()), (x,)))
    return made


def _products() -> list[Case]:
    a, m, v, t = floats(3, 4), floats(4, 5), floats(4), floats(2, 3, 4)
    made: list[Case] = [
        ("matmul", jnp.matmul, (a, m)),
        ("vector", jnp.matmul, (a, v)),
        ("by vector", jnp.matmul, (v, m)),
        ("dot", jnp.dot, (v, v)),
        ("batched", jnp.matmul, (t, floats(2, 4, 5))),
        ("broadcast", jnp.matmul, (t, m)),
        ("tensordot", lambda x, y: jnp.tensordot(x, y, 2), (t, floats(3, 4, 5))),
        ("outer", lambda x, y: jnp.tensordot(x, y, 0), (a, v)),
        ("scalars", lambda x, y: lax.dot_general(x, y, (((), ()), ((), ()))), (np.float32(3), np.float32(4))),
        ("scalar by matrix", lambda x, y: lax.dot_general(x, y, (((), ()), ((), ()))), (np.float32(3), a)),
        ("all batch", lambda x, y: jnp.einsum("ij,ij->ij", x, y), (a, a)),
        ("diagonal", lambda x, y: jnp.einsum("ij,ij->i", x, y), (a, a)),
        ("heads", lambda q, k: jnp.einsum("bqhd,bkhd->bhqk", q, k), (floats(2, 3, 4, 5), floats(2, 6, 4, 5))),
        ("values", lambda p, v: jnp.einsum("bhqk,bkhd->bqhd", p, v), (floats(2, 4, 3, 6), floats(2, 6, 4, 5))),
        ("grouped", lambda q, k: jnp.einsum("bqgrd,bkgd->bgrqk", q, k), (floats(1, 3, 2, 2, 4), floats(1, 5, 2, 4))),
        ("experts", lambda x, w: jnp.einsum("ecd,edf->ecf", x, w), (floats(3, 2, 4), floats(3, 4, 5))),
        ("grad", jax.grad(lambda x, w: ((x @ w) ** 2).sum(), (0, 1)), (a, m)),
        ("grad batched", jax.grad(lambda x, w: ((x @ w) ** 2).sum(), (0, 1)), (t, floats(2, 4, 5))),
        ("empty sum", lambda x, y: x[:, :0] @ y[:0], (a, m)),
        ("empty", lambda x, y: x[:0] @ y, (a, m)),
        ("ints", jnp.matmul, (ints(3, 4), ints(4, 5))),
        (
            "bytes",
            lambda x, y: lax.dot_general(x, y, (((1,), (0,)), ((), ())), preferred_element_type=np.int32),
            (ints(3, 4, dtype=np.int8), ints(4, 5, dtype=np.int8)),
        ),
        ("bfloat16", jnp.matmul, (a.astype(jnp.bfloat16), m.astype(jnp.bfloat16))),
        (
            "bfloat16 to float32",
            lambda x, y: lax.dot_general(x, y, (((1,), (0,)), ((), ())), preferred_element_type=np.float32),
            (a.astype(jnp.bfloat16), m.astype(jnp.bfloat16)),
        ),
        (
            "floats of 8 bits",
            lambda x, y: lax.dot_general(x, y, (((1,), (0,)), ((), ())), preferred_element_type=jnp.bfloat16),
            (ints(3, 4).astype(jnp.float8_e4m3fn), ints(4, 5).astype(jnp.float8_e5m2)),
        ),
        ("bools", lambda x, y: lax.dot_general(x, y, (((1,), (0,)), ((), ()))), (bools(3, 4), bools(4, 5))),
        ("chain", lambda x, y: jnp.linalg.multi_dot([x, y, y.T]), (a, m)),
    ]
    return made


RAGGED = {
    "rows": (((1,), (1,)), ((), ()), (0,), (0,), (6, 4), (3, 4, 5), (3,)),
    "rows of batches": (((2,), (2,)), ((0,), (0,)), (1,), (1,), (2, 6, 4), (2, 3, 4, 5), (2, 3)),
    "one row of sizes": (((2,), (2,)), ((0,), (0,)), (1,), (1,), (2, 6, 4), (2, 3, 4, 5), (3,)),
    "behind a free dim": (((2,), (0,)), ((), ()), (1,), (2,), (3, 6, 4), (4, 5, 3), (3, 3)),
    "batches in another order": (((2,), (0,)), ((3, 0), (1, 2)), (1,), (4,), (2, 6, 4, 3), (4, 3, 2, 5, 2), (3, 2, 2)),
    "sums": (((0,), (0,)), ((), ()), (0,), (), (6, 4), (6, 5), (3,)),
    "sums of batches": (((1,), (1,)), ((0,), (0,)), (1,), (), (2, 6, 4), (2, 6, 5), (2, 3)),
    "behind another sum": (((0, 2), (2, 0)), ((), ()), (2,), (), (3, 4, 6), (6, 5, 3), (3, 2)),
    "batch": (((2,), (1,)), ((0,), (0,)), (0,), (), (6, 2, 4), (6, 4, 5), (3,)),
    "no groups": (((1,), (1,)), ((), ()), (0,), (0,), (6, 4), (0, 4, 5), (0,)),
    "no rows": (((0,), (0,)), ((), ()), (0,), (), (0, 4), (0, 5), (3,)),
}
"""Contracted dims, batch dims, the ragged dim, the dim of the groups, and the shapes of the three operands."""


def _ragged() -> list[Case]:
    made: list[Case] = []
    for name, (contract, batch, ragged, group, *shapes) in RAGGED.items():
        numbers = lax.RaggedDotDimensionNumbers((contract, batch), ragged, group)
        x, y, sizes = ints(*shapes[0]), ints(*shapes[1]), ints(*shapes[2], low=0, high=4)
        product = functools.partial(lax.ragged_dot_general, ragged_dot_dimension_numbers=numbers)
        floating = x.astype(np.float32), y.astype(np.float32), sizes
        made.append((name, product, floating))
        if group and math.prod(shapes[1]):
            slope = jax.grad(lambda x, y, n, f=product: (f(x, y, n) ** 2).sum(), (0, 1))
            made.append((f"grad {name}", slope, floating))
    made.append(("experts", lax.ragged_dot, (ints(6, 4), ints(3, 4, 5), np.array([2, 9, 1], np.uint8))))
    half = ints(6, 4).astype(jnp.bfloat16), ints(3, 4, 5).astype(jnp.bfloat16), np.array([2, 0, 3], np.int32)
    made.append(("wide sums", functools.partial(lax.ragged_dot, preferred_element_type=np.float32), half))
    return made


def _first_places() -> list[Case]:
    """What is indexed by no numbers at all; and the largest of a dim, of which no two are alike."""
    x, y = floats(3, 4), floats(3, 4)
    apart = RNG.permutation(600).reshape(2, 300).astype(np.float32)
    made: list[Case] = [
        (f"at all, {n}{m}", lambda x, y, n=n, m=m: getattr(x.at[:], n)(y, mode=m), (x, y))
        for n in ("set", "add", "max") for m in (None, "clip", "drop")
    ]  # fmt: skip
    made += [
        ("at all of a number", lambda x, y: x[0, 0].at[...].add(y[0, 0]), (x, y)),
        ("a row at all", lambda x, y: x.at[:].multiply(y[0]), (x, y)),
        ("polyadd", jnp.polyadd, (floats(4), floats(4))),
        ("windows at all", lambda x, y: [
            op(x, np.zeros((2, 0), np.int32), jnp.stack([y[:2, :3]] * 2),
               lax.ScatterDimensionNumbers((1, 2), (), ()), mode="fill") for op in (lax.scatter_add, lax.scatter_max)
        ], (x, y)),
        ("gathered at all", lambda x: [
            lax.gather(x, np.zeros((*n, 0), np.int32), lax.GatherDimensionNumbers((0, 1 + len(n)), (), ()), (2, 3),
                       mode=mode) for n in ((), (2,)) for mode in ("clip", "fill")
        ], (x,)),
    ]  # fmt: skip
    for n in ("approx_max_k", "approx_min_k"):
        pick = getattr(lax, n)
        made += [
            (n, lambda x, f=pick: f(x, 3), (apart,)),
            (f"{n} of rows", lambda x, f=pick: f(x, 1, reduction_dimension=0, recall_target=0.5), (apart,)),
            (f"{n} candidates", lambda x, f=pick: f(x, 2, aggregate_to_topk=False), (apart,)),
            (f"grad {n}", jax.grad(lambda x, f=pick: (f(x, 3)[0] ** 2).sum()), (apart,)),
        ]
    return made


def _conv(**params: Any) -> Function:
    def function(x: Any, w: Any) -> Any:
        return lax.conv_general_dilated(x, w, **{"window_strides": (1,) * (w.ndim - 2), "padding": "SAME", **params})

    return function


def _images() -> list[Case]:
    nhwc = ("NHWC", "HWIO", "NHWC")
    x, w = floats(2, 7, 6, 4), floats(3, 2, 4, 6)
    g = floats(3, 2, 2, 6)
    last = {"dimension_numbers": nhwc}
    convs: list[tuple[str, Function, Any, Any]] = [
        ("conv", _conv(**last), x, w),
        ("conv strided", _conv(window_strides=(2, 1), **last), x, w),
        ("conv valid", _conv(padding="VALID", rhs_dilation=(2, 1), **last), x, w),
        ("conv groups", _conv(feature_group_count=2, **last), x, g),
        ("conv first", _conv(), floats(2, 4, 7, 6), floats(6, 4, 3, 2)),
        ("conv transposed", _conv(lhs_dilation=(2, 3), padding=((1, 1), (0, 0)), **last), x, w),
        ("conv transposed longer", _conv(lhs_dilation=(2, 3), padding=((1, 3), (1, 2)), **last), x, w),
        ("conv transposed padded", _conv(lhs_dilation=(2, 1), padding=((3, 0), (2, 5)), **last), x, w),
        (
            "conv transposed groups",
            _conv(lhs_dilation=(2, 2), padding=((1, 1), (0, 0)), feature_group_count=2, **last),
            x,
            g,
        ),
        ("conv spread", _conv(lhs_dilation=(2, 2), window_strides=(3, 1), padding=((1, 2), (2, 1)), **last), x, w),
        ("conv batches", _conv(batch_group_count=2, **last), x, w),
        ("conv line", _conv(), floats(2, 3, 8), floats(5, 3, 3)),
        ("conv point", lambda x, w: _conv(padding=())(x, w), floats(2, 3), floats(5, 3)),
        ("conv volume", _conv(window_strides=(2, 1, 1)), floats(1, 2, 5, 4, 4), floats(3, 2, 3, 2, 2)),
        (
            "conv bfloat16",
            _conv(preferred_element_type=np.float32, **last),
            x.astype(jnp.bfloat16),
            w.astype(jnp.bfloat16),
        ),
    ]
    made: list[Case] = [(n, f, (x, w)) for n, f, x, w in convs]
    for n, f, a, k in [*convs[:4], convs[5], convs[8], convs[11], convs[13]]:
        made.append((f"grad {n}", jax.grad(lambda x, w, f=f: (f(x, w) ** 2).sum(), (0, 1)), (a, k)))
    pools: list[tuple[str, Any, Function, tuple[Any, ...]]] = [
        ("max", -np.inf, lax.max, ((1, 3, 2, 1), (1, 2, 2, 1), "SAME")),
        ("max far", -np.inf, lax.max, ((1, 3, 2, 1), (1, 1, 2, 1), ((0, 0), (2, 2), (1, 1), (0, 0)))),
        ("max all", -np.inf, lax.max, ((1, 7, 6, 1), (1, 1, 1, 1), "VALID")),
        ("max channels", -np.inf, lax.max, ((1, 1, 1, 2), (1, 1, 1, 2), "VALID")),
        ("sum", 0.0, lax.add, ((1, 2, 2, 1), (1, 2, 2, 1), "VALID")),
        ("sum three", 0.0, lax.add, ((2, 2, 3, 1), (1, 2, 1, 1), "SAME")),
        ("sum line", 0.0, lax.add, ((1, 5, 1, 1), (1, 1, 1, 1), ((0, 0), (4, 0), (0, 0), (0, 0)))),
        ("min", np.inf, lax.min, ((1, 3, 2, 1), (1, 1, 2, 1), "SAME")),
    ]
    for n, start, body, window in pools:
        f = functools.partial(lambda x, s, b, w: lax.reduce_window(x, s, b, *w), s=start, b=body, w=window)
        made.append((f"pool {n}", f, (x,)))
        made.append((f"grad pool {n}", jax.grad(lambda x, f=f: (f(x) ** 2).sum()), (x,)))
        made.append((f"jvp pool {n}", lambda x, y, f=f: jax.jvp(f, (x,), (y,)), (x, floats(*x.shape))))
    made += [
        (
            "pool dilated",
            lambda x: lax.reduce_window(
                x, -np.inf, lax.max, (1, 3, 2, 1), (1, 1, 2, 1), "SAME", (1, 2, 1, 1), (1, 2, 2, 1)
            ),
            (x,),
        ),
        ("pool ints", lambda x: lax.reduce_window(x, 0, lax.add, (3, 5), (2, 1), "SAME"), (ints(6, 9),)),
        (
            "pool max ints",
            lambda x: lax.reduce_window(x, np.int32(-(2**31)), lax.max, (3, 5), (2, 1), "SAME"),
            (ints(6, 9),),
        ),
        (
            "pool product",
            lambda x: lax.reduce_window(x, np.float32(1), lax.mul, (3, 2), (1, 2), "SAME"),
            (floats(6, 9),),
        ),
        ("pool bools", lambda x: lax.reduce_window(x, False, lax.bitwise_or, (3,), (1,), "SAME"), (bools(9),)),
        (
            "pool ties",
            jax.grad(lambda x: lax.reduce_window(x, -np.inf, lax.max, (3, 2), (1, 1), "SAME").sum()),
            (np.float32(ints(6, 6, low=0, high=2)),),
        ),
        (
            "pool infinite",
            jax.grad(lambda x: lax.reduce_window(x, -np.inf, lax.max, (3, 2), (1, 1), "SAME").sum()),
            (np.full((4, 4), -np.inf, np.float32),),
        ),
    ]
    return made


@jax.custom_vjp
def doubled(x: Any) -> Any:
    return x * 2


doubled.defvjp(lambda x: (x * 2, None), lambda _, t: (t * 3,))


@jax.custom_jvp
def tripled(x: Any) -> Any:
    return x * 3


tripled.defjvp(lambda p, t: (p[0] * 3, t[0] * 5))


def _branched(x: Any) -> Any:
    key, y = lax.cond(
        x.sum() > x[0, 0], lambda x: (jax.random.key(1), x * x), lambda x: (jax.random.key(2), x[::-1]), x
    )
    return (y * jax.random.normal(key, y.shape)).sum()


def _switched(index: Any, x: Any) -> Any:
    return lax.switch(index, [lambda x: (x, 1), lambda x: (-x, 2), lambda x: (x * x, 3)], x)


def _halved(least: Any, x: Any) -> Any:
    """A loop whose end depends on `least`, but that ends after seven iterations."""

    def body(state: Any) -> Any:
        i, x, _ = state
        return i + 1, x / 2, jnp.abs(x).max() < least

    return lax.while_loop(lambda s: ~((s[0] == 7) | s[2]), body, (0, x, False))


def _calls() -> list[Case]:
    x = floats(4, 6)

    def step(c: Any, r: Any) -> Any:
        return c * 0.5 + r, (c.sum(), r * c)

    def static_while(x: Any) -> Any:
        def body(state: Any) -> Any:
            i, stop, x = state
            return i + 2, (i > 5) | stop, x * 1.5

        return lax.while_loop(lambda s: ~s[1] & (s[0] < 100), body, (jnp.int32(0), False, x))

    made: list[Case] = [
        ("jit", jax.jit(lambda x: x + 1), (x,)),
        ("remat", jax.checkpoint(lambda x: jnp.sin(jnp.sin(x))), (x,)),
        ("grad remat", jax.grad(lambda x: jax.checkpoint(lambda x: jnp.sin(jnp.sin(x)))(x).sum()), (x,)),
        ("custom_vjp", doubled, (x,)),
        ("grad custom_vjp", jax.grad(lambda x: doubled(x).sum()), (x,)),
        ("custom_jvp", tripled, (x,)),
        ("jvp custom_jvp", lambda x: jax.jvp(tripled, (x,), (x,)), (x,)),
        ("composite", lambda x: lax.composite(lambda x: x * 2, "a.b")(x), (x,)),
        ("platform", lambda x: lax.platform_dependent(x, tpu=lambda x: x * 0, default=lambda x: x + 1), (x,)),
        ("scan", lambda x: lax.scan(step, x[0], x), (x,)),
        ("scan reverse", lambda x: lax.scan(step, x[0], x, reverse=True), (x,)),
        ("scan length", lambda x: lax.scan(lambda c, _: (c * 2, c), x, None, length=3), (x,)),
        ("scan none", lambda x: lax.scan(step, x[0], x[:0]), (x,)),
        ("scan nested", lambda x: lax.scan(lambda c, r: lax.scan(lambda d, s: (d + s, d), c, x), x[0], x[:2]), (x,)),
        ("grad scan", jax.grad(lambda x: lax.scan(step, x[0], x)[0].sum()), (x,)),
        ("fori", lambda x: lax.fori_loop(0, 4, lambda i, c: c * x + i, x), (x,)),
        ("fori from", lambda x: lax.fori_loop(2, 9, lambda i, c: jnp.where(i % 2 == 0, c + x, c * 0.5), x), (x,)),
        ("while", lambda x: lax.while_loop(lambda s: s[0] < 5, lambda s: (s[0] + 2, s[1] * x), (1, x)), (x,)),
        ("while static", static_while, (x,)),
        ("while never", lambda x: lax.while_loop(lambda s: s[0] < 0, lambda s: (s[0] + 1, s[1] * x), (1, x)), (x,)),
        (
            "while nested",
            lambda x: lax.fori_loop(0, 3, lambda i, c: lax.fori_loop(0, i, lambda j, d: d + j * x, c), x),
            (x,),
        ),
        ("switch", lambda x: lax.switch(1, [lambda x: x, lambda x: x + 1, lambda x: x * 2], x), (x,)),
        ("switch out", lambda x: lax.switch(jnp.int32(9), [lambda x: x, lambda x: x + 1], x), (x,)),
        (
            "cond in loop",
            lambda x: lax.fori_loop(0, 4, lambda i, c: lax.cond(i % 2 == 0, lambda c: c + x, lambda c: c * x, c), x),
            (x,),
        ),
        (
            "cond by loop's index",
            lambda x: lax.scan(lambda c, i: (lax.cond(i > 1, lambda c: c, lambda c: c + 1, c), i), x, jnp.arange(4)),
            (x,),
        ),
        ("cond of devices", jax.value_and_grad(_branched), (x,)),
        ("cond of devices, the other", jax.value_and_grad(_branched), (-abs(x),)),
        ("switch of devices", _switched, (np.int32(2), x)),
        ("switch of devices, out", _switched, (np.int32(-7), x)),
        ("while with a limit", _halved, (np.float32(0), x)),
        ("while to its limit", _halved, (np.float32(-1), x)),
        ("while with a limit, never", _halved, (np.float32(99), x)),
        ("associative", lambda x: lax.associative_scan(jnp.add, x), (x,)),
        ("map", lambda x: lax.map(lambda r: jnp.tanh(r) @ r, x), (x,)),
        (
            "vmapped switch",
            jax.vmap(lambda i, r: lax.switch(i, [lambda r: r, lambda r: r + 1, lambda r: -r], r)),
            (ints(4, low=0, high=3), x),
        ),
    ]
    return made


GROUPS: Mapping[str, list[Case]] = {
    "unary": _unary(),
    "whole": _whole(),
    "binary": _binary(),
    "shapes": _shapes(),
    "reductions": _reductions(),
    "neural": _neural(),
    "products": _products(),
    "images": _images(),
    "calls": _calls(),
    "ragged": _ragged(),
    "first places": _first_places(),
}
EXACT = frozenset({"shapes", "whole", "ragged", "first places"})


def fast(function: Function) -> Function:
    """Compiled in little time, for many small programs that run once."""
    quick = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}
    return jax.jit(function, compiler_options=quick)


def is_quick(number: int) -> bool:
    """One case in eight of a group; an even number, which `part` leaves in for most groups."""
    return number % 8 == 0


@functools.cache
def results(group: str, quick: bool) -> dict[str, tuple[list[Any], list[Any]]]:
    """Results of the flat program and of the compiled function, for all quick or all slow cases of a group together."""
    cases = [case for i, case in enumerate(GROUPS[group]) if is_quick(i) == quick]
    counts = [len(args) for _, _, args in cases]

    def split(row: Sequence[Any], sizes: Sequence[int]) -> list[list[Any]]:
        ends = np.cumsum(sizes)
        return [list(row[e - n : e]) for e, n in zip(ends, sizes, strict=True)]

    def whole(*args: Any) -> list[Any]:
        return [jax.tree.leaves(f(*mine)) for (_, f, _), mine in zip(cases, split(args, counts), strict=True)]

    args = [a for _, _, row in cases for a in row]
    want = fast(whole)(*args)
    program = flat_of(jm.jit(whole, mesh=mesh(1)).trace(*args), "ttir")
    got = fast(functools.partial(run_flat, program, mesh(1)))(*args)
    return dict(
        zip([name for name, _, _ in cases], zip(split(got, [len(w) for w in want]), want, strict=True), strict=True)
    )


NUMBERED = [
    pytest.param(group, i, id=f"{group}: {cases[i][0]}", marks=() if is_quick(i) else pytest.mark.slow)
    for group, cases in GROUPS.items()
    for i in range(len(cases))
]


@pytest.mark.parametrize(("group", "number"), NUMBERED)
def test_case(group: str, number: int) -> None:
    got, want = results(group, is_quick(number))[GROUPS[group][number][0]]
    for i, (g, w) in enumerate(zip(got, want, strict=True)):
        same(g, w, group in EXACT, f"{GROUPS[group][number][0]}: result {i}")


# --- sharded programs ------------------------------------------------------------------------------------------------


def _pointwise() -> list[Case]:
    """Cases of which each element depends on those of the operands at its place alone."""
    x, y = floats(4, 8), floats(4, 8)
    made: list[Case] = [
        ("arithmetic", lambda x, y: (x * 2 + y) / (1 + y * y), (x, y)),
        ("gelu", lambda x: jax.nn.gelu(x, approximate=False), (x,)),
        ("where", lambda x, y: jnp.where(x > y, x, jnp.tanh(y)), (x, y)),
        ("grad silu", jax.grad(lambda x: jax.nn.silu(x).sum()), (x,)),
        ("loop", lambda x, y: lax.fori_loop(0, 3, lambda i, c: c * y + i, x), (x, y)),
        ("bits", lambda i: (i >> 2) ^ lax.population_count(i), (ints(4, 8),)),
        ("erf_inv", lambda x: lax.erf_inv(jnp.clip(x, -0.9, 0.9)), (x,)),
        ("step", lambda x, y: lax.nextafter(x, y), (x, y)),
        ("bfloat16", lambda x: (x.astype(jnp.bfloat16) * 2).astype(jnp.float32), (x,)),
        ("reverse and back", lambda x: lax.rev(lax.rev(x, (0,)) + 1, (0,)), (x,)),
        ("pad and slice", lambda x: lax.pad(x, np.float32(0), [(1, 2, 1), (0, 0, 0)])[1 : 2 * x.shape[0] : 2], (x,)),
    ]
    return made


def _shardwise(function: Function, spec: Any) -> Function:
    def program(*args: Any) -> Any:
        out = function(*(jm.full_to_shard(a, spec) for a in args))
        return jax.tree.map(lambda v: jm.shard_to_full(v, spec), out)

    return program


@pytest.mark.parametrize("spec", [P("y", "x"), P(None, "x"), P("x", "y")], ids=str)
def test_shards(spec: Any) -> None:
    cases = _pointwise()
    on = jm.make_mesh((2, 4), ("y", "x"))

    def sharded(rows: list[tuple[Any, ...]]) -> Any:
        return [_shardwise(f, spec)(*row) for (_, f, _), row in zip(cases, rows, strict=True)]

    def unsharded(rows: list[tuple[Any, ...]]) -> Any:
        return [f(*row) for (_, f, _), row in zip(cases, rows, strict=True)]

    rows = [row for _, _, row in cases]
    traced = jm.jit(sharded, mesh=on).trace(rows)
    want = jax.tree.leaves(fast(unsharded)(rows))
    args = jax.tree.leaves(rows)
    for stage, level in ((traced, "ttir"), (traced.lower(), "ttnn")):
        program = flat_of(stage, level)
        assert {op.name for op in program.ops} & {"ttir.mesh_shard", "ttnn.distribute_tensor"}, level
        for i, (g, w) in enumerate(zip(fast(functools.partial(run_flat, program, on))(*args), want, strict=True)):
            same(g, w, False, f"{level}: result {i}")


def test_sharded_gradient() -> None:
    """A layer split by batch and by features, its loss, and what it gives the weights."""
    on = jm.make_mesh((2, 4), ("y", "x"))

    def loss(x: Any, w: Any, v: Any) -> Any:
        xs, ws, vs = (jm.full_to_shard(a, s) for a, s in ((x, P("y")), (w, P(None, "x")), (v, P("x"))))
        out = jax.nn.relu(xs @ ws) @ vs
        return lax.pmean((lax.psum(out, "x") ** 2).mean(), "y")

    x, w, v = (np.round(floats(*s) * 3) for s in ((4, 6), (6, 8), (8, 5)))
    traced = jm.jit(jax.grad(loss, (1, 2)), mesh=on).trace(x, w, v)
    want = jax.jit(jax.grad(lambda x, w, v: ((jax.nn.relu(x @ w) @ v) ** 2).mean(), (1, 2)))(x, w, v)
    for stage, level in ((traced, "ttir"), (traced.lower(), "ttnn")):
        for g, expected in zip(run_flat(flat_of(stage, level), on, x, w, v), want, strict=True):
            same(g, expected, False, level)


# --- random shapes ---------------------------------------------------------------------------------------------------


@st.composite
def products(draw: st.DrawFn) -> tuple[Any, Any, Any]:
    """Two tensors of small whole numbers and which of their dims are batch, contracted and free."""
    kinds = draw(st.lists(st.sampled_from("bcxy"), max_size=5))
    sizes = [draw(st.integers(1, 3)) for _ in kinds]
    left = draw(st.permutations([i for i, k in enumerate(kinds) if k != "y"]))
    right = draw(st.permutations([i for i, k in enumerate(kinds) if k != "x"]))
    numbers: list[Any] = []
    for wanted in "cb":
        dims = draw(st.permutations([i for i, k in enumerate(kinds) if k == wanted]))
        numbers.append((tuple(left.index(d) for d in dims), tuple(right.index(d) for d in dims)))
    dtype = draw(st.sampled_from([np.float32, np.int32]))
    seed = np.random.RandomState(draw(st.integers(0, 99)))
    a, b = (seed.randint(-3, 4, [sizes[d] for d in dims]).astype(dtype) for dims in (left, right))
    return a, b, tuple(numbers)


def in_numpy(a: Any, b: Any, numbers: Any) -> Any:
    """The product by einsum, which knows nothing of matrices."""
    (left, right), (batch_left, batch_right) = numbers
    first, second = list(range(a.ndim)), list(range(10, 10 + b.ndim))
    for x, y in [*zip(left, right, strict=True), *zip(batch_left, batch_right, strict=True)]:
        second[y] = first[x]
    batch = [first[d] for d in batch_left]
    free = [n for d, n in enumerate(first) if d not in (*left, *batch_left)]
    rest = [n for d, n in enumerate(second) if d not in (*right, *batch_right)]
    return np.einsum(a, first, b, second, [*batch, *free, *rest])


@pytest.mark.slow
@settings(max_examples=40)
@given(products())
def test_any_product(case: Any) -> None:
    a, b, numbers = case

    def function(a: Any, b: Any) -> Any:
        return lax.dot_general(a, b, numbers)

    program = flat_of(jm.jit(function, mesh=mesh(1)).trace(a, b), "ttir")
    (got,) = run_flat(program, mesh(1), a, b)
    same(got, in_numpy(a, b, numbers), True, str(numbers))
    made = names(program)
    assert made.count("matmul") == (1 if numbers[0][0] else 0)
    assert made.count("permute") <= 2
    assert made.count("reshape") <= 3


@st.composite
def moves(draw: st.DrawFn) -> tuple[Any, Function]:
    """A tensor, and a few moves of its elements one after the other."""
    shape = draw(st.lists(st.integers(1, 4), min_size=1, max_size=3))
    steps: list[Function] = []
    current = list(shape)
    for kind in draw(st.lists(st.sampled_from(["pad", "slice", "transpose", "rev", "concat", "flat"]), max_size=4)):
        rank = len(current)
        if kind == "pad":
            config = [draw(st.tuples(st.integers(-2, 3), st.integers(-2, 3), st.integers(0, 2))) for _ in current]
            sizes = [n + max(n - 1, 0) * i + lo + hi for n, (lo, hi, i) in zip(current, config, strict=True)]
            if min(sizes) < 0:
                continue
            current = sizes
            steps.append(lambda x, c=config: lax.pad(x, np.float32(9), c))
        elif kind == "slice":
            begins = [draw(st.integers(0, n)) for n in current]
            ends = [draw(st.integers(lo, n)) for lo, n in zip(begins, current, strict=True)]
            by = [draw(st.integers(1, 3)) for _ in current]
            current = [-(-(e - b) // s) for b, e, s in zip(begins, ends, by, strict=True)]
            steps.append(lambda x, c=(begins, ends, by): lax.slice(x, *c))
        elif kind == "transpose":
            order = draw(st.permutations(range(rank)))
            current = [current[d] for d in order]
            steps.append(lambda x, c=order: lax.transpose(x, c))
        elif kind == "rev":
            dims = draw(st.lists(st.integers(0, rank - 1), unique=True))
            steps.append(lambda x, c=dims: lax.rev(x, c))
        elif kind == "concat":
            dim = draw(st.integers(0, rank - 1))
            current[dim] *= 2
            steps.append(lambda x, c=dim: lax.concatenate([x, x + 1], c))
        else:
            current = [math.prod(current)]
            steps.append(lambda x: lax.reshape(x, (x.size,)))
    return np.arange(math.prod(shape), dtype=np.float32).reshape(shape), lambda x: functools.reduce(
        lambda v, f: f(v), steps, x
    )


@pytest.mark.slow
@settings(max_examples=40)
@given(moves())
def test_any_moves(case: tuple[Any, Function]) -> None:
    x, function = case
    program = flat_of(jm.jit(function, mesh=mesh(1)).trace(x), "ttir")
    (got,) = fast(functools.partial(run_flat, program, mesh(1)))(x)
    same(got, fast(function)(x), True, "moved")


_OPERATORS: Sequence[Any] = (
    lax.add, lax.sub, lax.mul, lax.div, lax.rem, lax.max, lax.min, lax.bitwise_and, lax.bitwise_or, lax.bitwise_xor,
    lax.shift_left, lax.shift_right_logical, lax.shift_right_arithmetic, lax.eq, lax.lt, lax.ge,
)  # fmt: skip


@pytest.mark.parametrize("dtype", [np.int32, np.uint32, np.int8, np.uint8], ids=lambda d: d.__name__)
def test_known_numbers_are_computed_as_jax_does(dtype: Any) -> None:
    info = np.iinfo(dtype)
    edges = [0, 1, int(info.max), int(info.min), 7, 31, 33, *RNG.randint(info.min, int(info.max) + 1, 5, np.int64)]
    x, y = (np.array(v).astype(dtype).reshape(-1)[:144] for v in np.meshgrid(edges, edges))
    pieces = [slice(i, i + 48) for i in (0, 48, 96)]

    def function(known: bool, *rows: Any) -> list[Any]:
        rows = tuple(map(jnp.asarray, rows)) if known else rows
        return [[op(x, y) for op in _OPERATORS] + _more(x, y, dtype) for x, y in zip(rows[:3], rows[3:], strict=True)]

    rows = [v[piece] for v in (x, y) for piece in pieces]
    program = flat_of(jm.jit(lambda _: function(True, *rows), mesh=mesh(1)).trace(np.float32(0)), "ttir")
    assert set(names(program)) <= {"full", "constant"}
    got = fast(functools.partial(run_flat, program, mesh(1)))(np.float32(0))
    want = jax.tree.leaves(fast(functools.partial(function, False))(*rows))
    for i, (g, w) in enumerate(zip(got, want, strict=True)):
        same(g, w, True, f"result {i}")


def _more(x: Any, y: Any, dtype: Any) -> list[Any]:
    return [
        -x if np.iinfo(dtype).min else x, lax.clamp(dtype(3), x, dtype(50)), x.astype(np.int16), x.sum(dtype=dtype),
        lax.reduce_max(x, (0,)), lax.reduce_xor(x, (0,)), jnp.where(x > y, x, y), lax.integer_pow(x, 3), ~x,
        x.reshape(6, 8).T[::-1, 1:3], jnp.broadcast_to(x[:4], (3, 4)), x[2], jnp.arange(100)[::9] * 2,
    ]  # fmt: skip


# --- how many operations ---------------------------------------------------------------------------------------------


def _struct(*shape: int, dtype: Any = np.float32) -> Any:
    return jax.ShapeDtypeStruct(shape, dtype)


def _einsum(text: str) -> Function:
    return lambda x, y: jnp.einsum(text, x, y)


@pytest.mark.parametrize(
    ("function", "args", "made", "turned"),
    [
        (jnp.matmul, [(3, 4), (4, 5)], ["matmul"], (False, False)),
        (lambda x, w: x @ w.T, [(3, 4), (5, 4)], ["matmul"], (False, True)),
        (lambda x, w: x.T @ w, [(4, 3), (4, 5)], ["matmul"], (True, False)),
        (jnp.matmul, [(2, 3, 4), (4, 5)], ["matmul"], (False, False)),
        (jnp.matmul, [(2, 3, 4), (2, 4, 5)], ["matmul"], (False, False)),
        (_einsum("bhqd,bhkd->bhqk"), [(2, 3, 4, 5), (2, 3, 6, 5)], ["matmul"], (False, True)),
        (jnp.dot, [(4,), (4,)], ["matmul"], (False, False)),
        (jnp.matmul, [(3, 4), (4,)], ["matmul"], (False, False)),
        (_einsum("bqhd,bkhd->bhqk"), [(2, 3, 4, 5), (2, 6, 4, 5)], ["permute", "permute", "matmul"], (False, False)),
        (_einsum("abc,bcd->ad"), [(2, 3, 4), (3, 4, 5)], ["reshape", "reshape", "matmul"], (False, False)),
        (_einsum("ij,ij->ij"), [(3, 4), (3, 4)], ["multiply"], None),
        (lambda x, b: x + b, [(3, 4), (4,)], ["reshape", "add"], None),
        (lambda x, y: jnp.maximum(x, 0) * 2 + y, [(3, 4), (3, 4)],
         ["full", "maximum", "full", "multiply", "add"], None),
        (lambda x, y: jnp.zeros((3, 4)) + x, [(3, 4), (1,)], ["full", "add"], None),
        (lambda x, y: lax.rev(lax.rev(x, (0,)), (0,)) + y, [(3, 4), (3, 4)], ["add"], None),
        (lambda x, y: jnp.clip(x, 0, 1), [(3, 4), (1,)], ["full", "maximum", "full", "minimum"], None),
        (lambda x, y: lax.clamp(0.0, x, 1.0), [(3, 4), (1,)], ["clamp_scalar"], None),
        (lambda x, y: lax.reduce_window(x, 0.0, lax.add, (1, 2, 2, 1), (1, 2, 2, 1), "VALID") / 4,
         [(1, 4, 4, 2), (1,)], ["avg_pool2d"], None),
    ],
)  # fmt: skip
def test_no_useless_operations(function: Function, args: Any, made: list[str], turned: Any) -> None:
    program = flat_of(jm.jit(function, mesh=mesh(1)).trace(*(_struct(*s) for s in args)), "ttir")
    assert sorted(names(program)) == sorted(made)
    for op in program.ops:
        if op.name == "ttir.matmul":
            assert (op.attributes["transpose_a"], op.attributes["transpose_b"]) == turned


def test_constants_are_made_once_and_lines_are_the_users() -> None:
    held = np.arange(6, dtype=np.float32)
    program = check(lambda x: (x + 2.5) * 2.5 + held + (x - held), floats(6))
    assert names(program).count("full") == names(program).count("constant") == 1
    assert all("test_primitives.py" in op.line for op in program.ops if op.name != "ttir.constant")


def test_types_are_those_of_the_equations() -> None:
    traced = jm.jit(lambda x: [f(x) for _, f, _ in GROUPS["neural"][:8]], mesh=mesh(1)).trace(_struct(2, 6))
    program = flat_of(traced, "ttir")
    held = [(program.types[r.value].shape, program.types[r.value].dtype) for r in program.results]
    assert held == [(a.shape, a.dtype) for a in traced.out_avals]


def test_of_a_branch_that_only_the_devices_know_all_are_computed() -> None:
    def choose(x: Any) -> Any:
        return lax.cond(x[0] > 0, lambda x: (jnp.sin(x), x), lambda x: (jnp.cos(x), x), x)

    made = names(built(choose, _struct(4)))
    # The second result is the same in both; the truth value is read as it is.
    assert [made.count(n) for n in ("sin", "cos", "where", "lt", "typecast")] == [1, 1, 1, 0, 0]


# --- limits and errors -----------------------------------------------------------------------------------------------


def built(function: Function, *args: Any, options: Options | None = None) -> Program:
    jaxpr = jax.make_jaxpr(function)(*args)
    ports = [(False, "")] * 9
    inside, outside = ports[: len(jaxpr.in_avals)], ports[: len(jaxpr.out_avals)]
    return flatten(jaxpr, name="f", mesh={"x": 1}, level="ttir", arguments=inside, results=outside, options=options)


def test_a_loop_of_many_operations_warns_of_their_number(monkeypatch: pytest.MonkeyPatch) -> None:
    def looped(x: Any) -> Any:
        inner = lambda c: lax.fori_loop(0, 5, lambda i, c: jnp.sin(c) * 2, c)  # noqa: E731
        return lax.fori_loop(0, 10, lambda i, c: inner(c), x)

    monkeypatch.setattr(control_flow, "MANY", 99)
    with pytest.warns(UnrolledLoopWarning) as found:
        program = built(lambda x: looped(jnp.cos(x)), _struct(4))
    # One warning of the outermost loop, which counts the inner ones; operations that nothing uses go later, such as the
    # ten additions that count the iterations of the outer one.
    kept = len(program.ops) - names(program).index("cos") - 1
    (warning,) = found
    pattern = r"scan \(.*test_primitives\.py.*\) is unrolled to as many as (\d+) operations; make it shorter"
    match = re.match(pattern, str(warning.message))
    assert match is not None
    assert int(match[1]) == kept + 10
    monkeypatch.setattr(control_flow, "MANY", kept + 10)
    built(looped, _struct(4))


def test_unrolling_has_a_limit() -> None:
    def looped(x: Any) -> Any:
        return lax.fori_loop(0, 50, lambda i, c: jnp.sin(c) * 2, x)

    assert names(built(looped, _struct(4), options=Options(unroll_limit=160))).count("sin") == 50
    with pytest.raises(UnsupportedError, match=r"scan .*test_primitives.* of 50 iterations.*unroll_limit is 60"):
        built(looped, _struct(4), options=Options(unroll_limit=60))
    twice = lambda x: looped(looped(x))  # noqa: E731
    with pytest.raises(UnsupportedError, match="unroll_limit is 160"):
        built(twice, _struct(4), options=Options(unroll_limit=160))
    with pytest.raises(UnsupportedError, match=r"while .*an unknown number of iterations.*unroll_limit is 99"):
        built(
            lambda x: lax.while_loop(lambda s: s[0] < 5, lambda s: (s[0] * 1, s[1]), (1, x)),
            _struct(),
            options=Options(99),
        )


@pytest.mark.parametrize(
    ("function", "error", "text"),
    [
        (lambda x: lax.while_loop(lambda c: c.sum() < 9, lambda c: c * 2, x), UnsupportedError,
         r"while loop \(.*test_primitives.*after 0 iterations depends on values that only the devices know"),
        (lambda x: lax.while_loop(lambda s: (s[0] < 10**6) & (s[1].sum() < 9), lambda s: (s[0] + 1, s[1] * 2), (0, x)),
         UnsupportedError, r"while \(.*test_primitives.*of more than \d+ iterations .*after 1 of them"),
        (lambda x: lax.platform_dependent(x, cpu=lambda x: x, tpu=lambda x: x + 1), UnsupportedError,
         "branches for cpu, tpu and no default"),
        (lambda x: x + 1j, InexpressibleError, r"complex64\[4\].*real numbers only"),
        (lambda x: jnp.real(jnp.sqrt(x + 1j)), MissingRuleError, r"'sqrt' \(.*test_primitives"),
        (lambda x: jnp.fft.rfft(x, 1025).real, UnsupportedError,
         r"fft \(.*test_primitives.*1025 points.*the limit is 1024 points"),
        (lambda x: jnp.linalg.eigh(x * x[:, None]), InexpressibleError, r"'eigh' \(.*test_primitives.*a library"),
        (lambda x: jax.random.normal(jax.random.key(0, impl="rbg"), x.shape), InexpressibleError,
         r"'rng_bit_generator' \(.*test_primitives.*threefry2x32"),
        (lambda x: jax.scipy.linalg.qr(x * x[:, None], pivoting=True), InexpressibleError, "pivoting"),
        (lambda x: jax.pure_callback(np.sin, _struct(4), x), InexpressibleError, "'pure_callback'.*calls Python"),
        (lambda x: (jax.debug.print("{}", x), x)[1], InexpressibleError, "'debug_print'.*calls Python"),
        (lambda x: lax.linalg.eig(x * x[:, None]), MissingRuleError,
         r"'eig' \(.*test_primitives.*add a rule in jaxmesh/passes/flatten/"),
        (lambda x: lax.reduce(x, np.float32(0), lambda a, b: a + b * 2, (0,)), MissingRuleError,
         "combines by more than"),
    ],
)  # fmt: skip
def test_what_cannot_be_said_is_named(function: Function, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        built(function, _struct(4))


def test_what_nothing_reads_needs_no_rule() -> None:
    def function(x: Any) -> Any:
        lax.bessel_i0e(x)
        return x + 1

    assert names(built(function, _struct(4))) == ["full", "add"]


def test_keys_are_held_as_their_numbers() -> None:
    program = built(lambda k, x: (k, x), jax.random.key(0), _struct(2))
    assert [(program.types[a.value].shape, program.types[a.value].dtype) for a in program.arguments] == [
        ((2,), np.uint32), ((2,), np.float32)
    ]  # fmt: skip


@pytest.mark.parametrize("count", [1000, 2000])
def test_size_is_linear(count: int) -> None:
    def function(x: Any) -> Any:
        for _ in range(count):
            x = jnp.sin(x) * 2
        return x

    assert len(built(function, _struct(3)).ops) == 2 * count + 1


def test_negative_padding_of_convolutions() -> None:
    """The oracle cuts the image itself: some versions of XLA read beyond it."""
    x, w = floats(2, 9, 8, 3), floats(3, 2, 3, 4)
    numbers = ("NHWC", "HWIO", "NHWC")

    def cut(x: Any, w: Any) -> Any:
        image = lax.pad(x, np.float32(0), [(0, 0, 0), (-1, 2, 0), (0, -1, 0), (0, 0, 0)])
        return lax.conv_general_dilated(image, w, (2, 2), "VALID", dimension_numbers=numbers)

    check(
        lambda x, w: lax.conv_general_dilated(x, w, (2, 2), ((-1, 2), (0, -1)), dimension_numbers=numbers),
        x,
        w,
        oracle=cut,
    )


def test_a_reshape_to_another_number_of_elements_is_an_error() -> None:
    program = jm.jit(lambda x: lax.reshape(x, (3, 5)), mesh=jm.make_mesh((1, 1)))
    # Some versions of JAX say it themselves when they trace.
    with pytest.raises((jm.VerifyError, TypeError), match=r"\[4, 6\] has 24 elements.*\[3, 5\] has 15|total size"):
        program.lower(floats(4, 6)).as_text()
