"""Cases of elementwise ops, products, reductions, shapes and creation."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from tests.generators.ttir_cases.case import BF16, B, Case, F, H, N, Spec

# --- elementwise -----------------------------------------------------------------------------------------------------


def each(fun: Callable[[float], float]) -> Callable[[np.ndarray], np.ndarray]:
    return np.vectorize(fun, otypes=[np.float64])


def sigmoid(x: Any) -> Any:
    return 1 / (1 + np.exp(-x.astype(np.float64)))


def relu6(x: Any) -> Any:
    return np.clip(x, 0, 6)


SELU = 1.0507009873554805, 1.6732632423543772

UNARY: dict[str, tuple[Callable[[Any], Any], float, float]] = {
    "abs": (np.abs, -3, 3),
    "neg": (np.negative, -3, 3),
    "sign": (np.sign, -3, 3),
    "exp": (np.exp, -3, 3),
    "exp2": (np.exp2, -3, 3),
    "expm1": (np.expm1, -3, 3),
    "log": (np.log, 0.1, 9),
    "log1p": (np.log1p, -0.9, 9),
    "sqrt": (np.sqrt, 0, 9),
    "rsqrt": (lambda x: 1 / np.sqrt(x), 0.1, 9),
    "cbrt": (np.cbrt, -9, 9),
    "reciprocal": (lambda x: 1 / x, 0.2, 3),
    "sin": (np.sin, -3, 3),
    "cos": (np.cos, -3, 3),
    "tan": (np.tan, -1, 1),
    "asin": (np.arcsin, -1, 1),
    "acos": (np.arccos, -1, 1),
    "atan": (np.arctan, -3, 3),
    "sinh": (np.sinh, -2, 2),
    "cosh": (np.cosh, -2, 2),
    "tanh": (np.tanh, -3, 3),
    "asinh": (np.arcsinh, -3, 3),
    "acosh": (np.arccosh, 1.1, 5),
    "atanh": (np.arctanh, -0.9, 0.9),
    "erf": (each(math.erf), -2, 2),
    "erfc": (each(math.erfc), -2, 2),
    "floor": (np.floor, -5, 5),
    "ceil": (np.ceil, -5, 5),
    "trunc": (np.trunc, -5, 5),
    "round": (np.rint, -5, 5),
    "relu": (lambda x: np.maximum(x, 0), -3, 3),
    "relu6": (relu6, -3, 9),
    "gelu": (each(lambda x: x * (1 + math.erf(x / math.sqrt(2))) / 2), -3, 3),
    "silu": (lambda x: x * sigmoid(x), -3, 3),
    "sigmoid": (sigmoid, -3, 3),
    "hardsigmoid": (lambda x: relu6(x + 3) / 6, -5, 5),
    "hardswish": (lambda x: x * relu6(x + 3) / 6, -5, 5),
    "frac": (lambda x: x - np.trunc(x), -5, 5),
    "square": (np.square, -3, 3),
    "mish": (lambda x: x * np.tanh(np.log1p(np.exp(x))), -3, 3),
    "softplus": (lambda x: np.log1p(np.exp(x)), -3, 3),
    "softsign": (lambda x: x / (1 + np.abs(x)), -3, 3),
    "selu": (lambda x: SELU[0] * np.where(x > 0, x, SELU[1] * np.expm1(x)), -3, 3),
}

BINARY: dict[str, Callable[[Any, Any], Any]] = {
    "add": np.add,
    "subtract": np.subtract,
    "multiply": np.multiply,
    "maximum": np.maximum,
    "minimum": np.minimum,
}
NONZERO = {"div": np.divide, "divide": np.divide, "remainder": np.fmod}
COMPARISONS = {"eq": np.equal, "ne": np.not_equal, "ge": np.greater_equal, "gt": np.greater, "le": np.less_equal,
               "lt": np.less, "logical_and": np.logical_and, "logical_or": np.logical_or,
               "logical_xor": np.logical_xor}  # fmt: skip


def truncated(a: Any, b: Any) -> Any:
    return np.trunc(a.astype(np.float64) / b).astype(np.int32)


def gelu_slope(x: float) -> float:
    return (1 + math.erf(x / math.sqrt(2))) / 2 + x * math.exp(-x * x / 2) / math.sqrt(2 * math.pi)


def gelu_tanh_slope(x: float) -> float:
    def tanh_gelu(v: float) -> float:
        return 0.5 * v * (1 + math.tanh(math.sqrt(2 / math.pi) * (v + 0.044715 * v**3)))

    return (tanh_gelu(x + 1e-5) - tanh_gelu(x - 1e-5)) / 2e-5


def elementwise() -> Iterator[Case]:
    for name, (fun, low, high) in UNARY.items():
        yield Case(name, (F(3, 4, low=low, high=high),), fun)
        yield Case(name, (H(5, low=low, high=high),), fun)
    for name in ("abs", "neg", "sign", "relu", "relu6", "floor", "ceil", "trunc", "round"):
        yield Case(name, (N(3, 4),), UNARY[name][0] if name in ("abs", "neg", "sign", "relu", "relu6") else np.copy)
    for dtype in (np.int32, np.uint8):
        yield Case("bitwise_not", (N(7, low=0, dtype=dtype),), np.invert)
        for name, fun in (
            ("bitwise_and", np.bitwise_and),
            ("bitwise_or", np.bitwise_or),
            ("bitwise_xor", np.bitwise_xor),
        ):
            yield Case(name, (N(3, 4, low=0, high=99, dtype=dtype), N(4, low=0, high=99, dtype=dtype)), fun)
    yield Case("bitwise_and", (B(9), B(9)), np.logical_and)
    shifts = N(8, low=0, high=31, dtype=np.uint32), N(8, low=0, high=31, dtype=np.uint32)
    yield Case("logical_left_shift", shifts, np.left_shift)
    yield Case("logical_right_shift", shifts, np.right_shift)
    signed = N(8), N(8, low=0, high=31)
    yield Case("logical_right_shift", signed, lambda a, b: (a.view(np.uint32) >> b.astype(np.uint32)).view(np.int32))
    yield Case("right_shift", signed, np.right_shift)
    yield Case("bitwise_right_shift", signed, np.right_shift)
    yield Case("signbit", (F(3, 4),), np.signbit, out=np.bool_)
    yield Case("frac", (N(3, 4),), np.zeros_like)
    for name, fun in BINARY.items():
        yield Case(name, (F(3, 4), F(3, 4)), fun)
        yield Case(name, (H(3, 1), H(4)), fun)
        yield Case(name, (N(2, 3, 4), N(3, 1)), fun)
        yield Case(name, (F(), F(2, 2)), fun)
    for name, fun in NONZERO.items():
        yield Case(name, (F(3, 4), F(3, 1, low=0.5)), fun)
        yield (
            Case(name, (H(4), H(3, 4, low=0.5)), fun, tag="half")
            if name != "remainder"
            else Case(name, (F(9), F(9, low=-3, high=-1)), fun)
        )
        yield Case(name, (N(3, 9), N(9, low=-4, high=-1)), np.fmod if name == "remainder" else truncated)
    yield Case("remainder", (N(30), N(30, low=1, high=4)), lambda a, b: a - b * truncated(a, b))
    yield Case("pow", (F(3, 4, low=0.2), F(4)), np.power)
    yield Case("pow", (N(3, 4), N(4, low=0, high=4)), np.power)
    yield Case("pow", (H(3, low=0.2), H(3)), np.power)
    yield Case("atan2", (F(3, 4), F(4)), np.arctan2)
    for name, fun in COMPARISONS.items():
        for spec in (F(3, 4), N(3, 4, low=-1, high=1), H(3, 4), B(3, 4)):
            yield Case(name, (spec, Spec((4,), spec.dtype, spec.low, spec.high)), fun, out=spec.dtype)
        yield Case(name, (N(3, 4, low=-1, high=1), N(3, 1, low=-1, high=1)), fun, out=np.bool_)
        yield Case(name, (N(3, 4, low=-1, high=1), N(3, 1, low=-1, high=1)), fun, out=BF16, tag="to bf16")
    yield Case("isfinite", (F(3, 4),), lambda x: np.isfinite(x))
    yield Case("isfinite", (F(3, 4, low=np.inf, high=np.inf),), lambda x: np.zeros((3, 4)), out=np.float32)
    yield Case("logical_not", (N(9, low=-1, high=1),), np.logical_not, out=np.int32)
    yield Case("logical_not", (B(9),), np.logical_not)
    yield Case("where", (B(3, 4), F(3, 4), F(4)), np.where)
    yield Case("where", (H(3, 1, low=0, high=0), H(3, 4), H()), lambda c, a, b: np.where(c != 0, a, b))
    yield Case("where", (N(3, 1, low=-1, high=1), N(3, 4), N(3, 4)), lambda c, a, b: np.where(c != 0, a, b))
    for source in (F(40, low=-4, high=4), H(40, low=-4, high=4)):
        yield Case("typecast", (source,), np.trunc, {"conservative_folding": False}, np.int32)
        yield Case("typecast", (source,), lambda x: x, {}, np.float32, "up")
    yield Case("typecast", (F(9),), lambda x: x != 0)
    yield Case("typecast", (N(9, low=-1, high=1),), lambda x: x != 0, tag="bool")
    yield Case("typecast", (B(9),), lambda x: x, {}, BF16)
    yield Case("typecast", (N(9),), lambda x: x, {}, np.float32)
    yield Case("leaky_relu", (F(9),), lambda x: np.where(x >= 0, x, 0.2 * x), {"parameter": 0.2})
    yield Case("leaky_relu", (H(9),), lambda x: np.where(x >= 0, x, 0.01 * x))
    yield Case("elu", (F(9),), lambda x: np.where(x > 0, x, 0.5 * np.expm1(x)), {"alpha": 0.5})
    yield Case("clamp_scalar", (F(9),), lambda x: np.clip(x, -1, 2), {"min": -1.0, "max": 2.0})
    yield Case("clamp_scalar", (H(9),), lambda x: np.clip(x, 0, 0), {"min": 0, "max": 0})
    yield Case("clamp_scalar", (N(9),), lambda x: np.clip(x, -1, 2), {"min": -1.5, "max": 2.5})
    yield Case("clamp_scalar", (N(9),), lambda x: np.maximum(x, 2), {"min": 2, "max": math.inf})
    unsigned = N(9, low=0, dtype=np.uint8)
    yield Case("clamp_scalar", (unsigned,), lambda x: np.minimum(x, 5), {"min": -4, "max": 5})
    yield Case("clamp_tensor", (F(3, 4), F(4, high=-1), F(3, 1, low=1)), np.clip)
    yield Case("clamp_tensor", (N(3, 4), N(4, high=-1), N(3, 1, low=1)), np.clip)
    yield Case("gelu_backward", (F(3, 4), F(3, 4)), lambda g, x: g * each(gelu_slope)(x))
    yield Case("gelu_backward", (H(9), H(9)), lambda g, x: g * each(gelu_slope)(x), {"approximate": "none"})
    yield Case("gelu_bw", (F(3, 4), F(3, 4)), lambda g, x: g * each(gelu_slope)(x))
    yield Case("gelu_bw", (F(9), F(9)), lambda g, x: g * each(gelu_tanh_slope)(x), {"approximate": "tanh"})
    yield Case("gelu_backward", (F(9), F(9)), lambda g, x: g * each(gelu_tanh_slope)(x), {"approximate": "tanh"})


# --- products, reductions --------------------------------------------------------------------------------------------


def turned(x: Any, turn: bool) -> Any:
    return np.swapaxes(x, -1, -2) if turn else x


def products() -> Iterator[Case]:
    for ta in (False, True):
        for tb in (False, True):
            a, b = (F(2, 4, 3) if ta else F(2, 3, 4)), (F(5, 4) if tb else F(4, 5))

            def oracle(x: Any, y: Any, ta: bool = ta, tb: bool = tb) -> Any:
                return np.matmul(turned(x, ta), turned(y, tb))

            yield Case("matmul", (a, b), oracle, {"transpose_a": ta, "transpose_b": tb})
            yield Case("linear", (a, b, F(5)), lambda x, y, z, f=oracle: f(x, y) + z,
                       {"transpose_a": ta, "transpose_b": tb})  # fmt: skip
    yield Case("matmul", (H(3, 4), H(4, 5)), np.matmul)
    yield Case("matmul", (H(3, 4), H(4, 5)), np.matmul, {}, np.float32, "wide")
    yield Case("matmul", (N(3, 4), N(4, 5)), np.matmul)
    yield Case("matmul", (F(4), F(4)), np.matmul)
    yield Case("matmul", (F(4), F(2, 4, 5)), np.matmul)
    yield Case("matmul", (F(2, 1, 3, 4), F(3, 4, 5)), np.matmul, {"operandSegmentSizes": [2, 1]})
    yield Case("linear", (F(3, 4), F(4, 5)), np.matmul, {"operandSegmentSizes": (1, 1, 0)})
    old = {"operandSegmentSizes": [1, 1, 1, 1]}
    yield Case("linear", (H(3, 4), H(4, 5), H(1, 5)), lambda x, y, z: x @ y + z, old)
    dims = {"batch_dims_lhs": (0,), "contract_dims_lhs": (2,), "batch_dims_rhs": (1,), "contract_dims_rhs": (0,)}
    yield Case("dot_general", (F(2, 3, 4), F(4, 2, 5)), lambda a, b: np.einsum("bik,kbj->bij", a, b), dims)
    dims = {"batch_dims_lhs": (), "contract_dims_lhs": (0, -1), "batch_dims_rhs": (), "contract_dims_rhs": (1, 0)}
    yield Case("dot_general", (N(2, 3, 4), N(4, 2)), lambda a, b: np.einsum("xik,kx->i", a, b), dims)


def soft(x: Any, dim: int) -> Any:
    powers = np.exp(x.astype(np.float64))
    return powers / powers.sum(dim, keepdims=True)


def ordered(x: Any, dim: int, descending: bool, count: int | None = None) -> tuple[Any, Any]:
    order = np.argsort(-x if descending else x, axis=dim, kind="stable")
    order = order if count is None else np.take(order, range(count), axis=dim)
    return np.take_along_axis(x, order, axis=dim), order


def reductions() -> Iterator[Case]:
    plain = {"sum": np.sum, "mean": np.mean, "max": np.max, "min": np.min, "prod": np.prod}
    for name, fun in plain.items():
        for dims, keep in (((1,), False), ((-1, 0), True), (None, False), (None, True)):
            attributes = {"keep_dim": keep} | ({} if dims is None else {"dim_arg": list(dims)})
            for spec in (F(2, 3, 4), H(3, 4), N(2, 3, 2, low=-3, high=3)):
                out = spec.dtype if name == "mean" else None
                yield Case(name, (spec,), lambda x, f=fun, d=dims, k=keep: f(x, axis=d, keepdims=k), attributes, out)
    mean_of_whole = {"dim_arg": (0,), "keep_dim": False}
    yield Case("mean", (N(3, 4),), lambda x: np.mean(x, 0), mean_of_whole, np.float32)
    yield Case("sum", (N(3, 4, low=0, high=99, dtype=np.uint8),), lambda x: np.sum(x, 0, dtype=np.uint8), mean_of_whole)
    for name, test in (("reduce_and", np.all), ("reduce_or", np.any), ("prod", np.all), ("sum", np.any)):
        yield Case(name, (B(3, 4),), lambda x, f=test: f(x, axis=1), {"dim_arg": [1], "keep_dim": False})
    for name, test in (("reduce_and", np.all), ("reduce_or", np.any)):
        spec = H(3, 4, low=0, high=0) if name == "reduce_or" else N(3, 4, low=0, high=2)
        keep = {"dim_arg": [1], "keep_dim": True}
        yield Case(name, (spec,), lambda x, f=test: f(x, axis=1, keepdims=True), keep, spec.dtype)
    for spec in (F(3, 4), N(3, 4, low=0, high=3), H(3, 4)):
        one = {"dim_arg": [-1], "keep_dim": True}
        yield Case("argmax", (spec,), lambda x: np.argmax(x, 1, keepdims=True), one, np.int32)
        yield Case("argmax", (spec,), lambda x: np.argmax(x, 0), {"dim_arg": [0]}, np.uint32)
        yield Case("argmax", (spec,), np.argmax, {"keep_dim": False}, np.int32)
    yield Case("argmax", (F(3, 4),), lambda x: np.argmax(x).reshape(1, 1), {"keep_dim": True}, np.int32)
    for spec in (F(3, 4), N(3, 4), H(3, 4)):
        yield Case("cumsum", (spec,), lambda x: np.cumsum(x, 0), {"dim": 0})
        yield Case("cumsum", (spec,), lambda x: np.cumsum(x, -1), {"dim": -1})
    yield Case("softmax", (F(3, 4),), lambda x: soft(x, 0), {"dimension": 0})
    yield Case("softmax", (F(3, 4),), lambda x: soft(x, 1), {"dimension": -1, "numericStable": True})
    yield Case("softmax", (F(3, 4, low=200, high=201),), lambda x: soft(x - 200, 1),
               {"dimension": 1, "numericStable": True})  # fmt: skip
    yield Case("softmax", (H(3, 4),), lambda x: soft(x, 1), {"dimension": 1, "numericStable": False})
    for spec in (F(3, 5), N(3, 9, low=0, high=3), H(3, 5)):
        for descending in (False, True):
            for dim, index in ((0, np.int32), (-1, np.uint16)):
                yield Case("sort", (spec,), lambda x, d=dim, r=descending: ordered(x, d, r),
                           {"dim": dim, "descending": descending, "stable": True}, (spec.dtype, index))  # fmt: skip
            yield Case("topk", (spec,), lambda x, r=descending: ordered(x, 1, r, 2),
                       {"k": 2, "dim": 1, "largest": descending, "sorted": True}, (spec.dtype, np.int32))  # fmt: skip
    yield Case("sort", (F(9),), lambda x: ordered(x, 0, False))
    yield Case("topk", (F(9),), lambda x: ordered(x, 0, True, 3), {"k": 3})


# --- shapes, creation ------------------------------------------------------------------------------------------------


def shapes() -> Iterator[Case]:
    for make in (F, H, N):
        x = (make(2, 3, 4),)
        yield Case("reshape", x, lambda x: x.reshape(4, 6), {"shape": [4, 6]})
        yield Case("permute", x, lambda x: x.transpose(2, 0, 1), {"permutation": [2, 0, 1]})
        yield Case("transpose", x, lambda x: x.swapaxes(0, 2), {"dim0": 0, "dim1": -1})
        yield Case("reverse", x, lambda x: x[::-1, :, ::-1], {"dimensions": [0, 2]})
        yield Case("repeat", x, lambda x: np.tile(x, (2, 1, 3)), {"repeat_dimensions": [2, 1, 3]})
        yield Case("repeat_interleave", x, lambda x: np.repeat(x, 3, 1), {"repeats": 3, "dim": -2})
        yield Case("unsqueeze", x, lambda x: x[..., None], {"dim": -1})
        yield Case("concat", (make(2, 3), make(2, 1), make(2, 2)), lambda *xs: np.concatenate(xs, 1), {"dim": -1})
        yield Case("squeeze", (make(2, 1, 4),), lambda x: x[:, 0], {"dim": -2})
        counts = {"broadcast_dimensions": [3, 1, 2]}
        yield Case("broadcast", (make(1, 4, 1),), lambda x: np.broadcast_to(x, (3, 4, 2)), counts)
        cut = {"begins": [0, -3, 1], "ends": [2, 3, -1], "step": [1, 2, 1]}
        yield Case("slice_static", x, lambda x: x[0:2, 0:3:2, 1:3], cut)
        yield Case("slice", x, lambda x: x[0:2, 0:3:2, 1:3], cut)
        yield Case("index", x, lambda x: x[:, :, 1:4:2], {"dim": 2, "begin": 1, "end": 4, "step": 2})
        for name in ("index_select", "select"):
            some = {"dim": -1, "begin": 1, "length": 2, "stride": 4}
            yield Case(name, (make(3, 8),), lambda x: x[:, [1, 2, 5, 6]], some)
            yield Case(name, (make(3, 8),), lambda x: x[1:3], {"dim": 0, "begin": 1, "length": 2})
        yield Case("concatenate_heads", (make(2, 3, 4, 5),), lambda x: x.transpose(0, 2, 1, 3).reshape(2, 4, 15))
        pads = {"padding": [1, 0, 2, 3, 0, 0], "value": 2.0 if make is not N else 2}
        yield Case("pad", x, lambda x: np.pad(x, ((1, 0), (2, 3), (0, 0)), constant_values=2), pads)
    yield Case("concat", (F(3),), lambda x: x, {"dim": 0})
    yield Case("reshape", (F(),), lambda x: x.reshape(1, 1), {"shape": (1, 1)})
    yield Case("pad", (F(4),), lambda x: np.append(x[1:], 0), {"padding": [-1, 1], "value": 0})
    yield Case("slice_static", (F(8),), lambda x: x[6:1:-2], {"begins": [6], "ends": [1], "step": [-2]})
    yield Case("slice_static", (F(8),), lambda x: x[3:3], {"begins": [3], "ends": [3], "step": [1]})
    yield Case("slice_static", (F(8),), lambda x: x[3:3], {"begins": [3], "ends": [3], "step": [-1]})

    def dynamic(x: Any, begins: Any, ends: Any) -> Any:
        return x[begins[0] : begins[0] + 2, begins[1] : begins[1] + 3 : 2]

    both = N(2, low=0, high=2), N(2)
    yield Case("slice_dynamic", (F(4, 5), *both), dynamic, {"step": [1, 2]})
    last = N(1, low=9, high=9, dtype=np.uint32)
    yield Case("slice_dynamic", (N(5), last, last), lambda x, b, e: x[3:5], tag="clamped")
    yield Case("slice_dynamic", (N(5), N(1, low=-9, high=-1), last), lambda x, b, e: x[:2], tag="below 0")


def creation() -> Iterator[Case]:
    values = np.random.default_rng(0).normal(size=(3, 4)).astype(np.float32)
    for dtype in (np.float32, BF16, np.int32, np.uint8, np.bool_):
        yield Case("zeros", (), lambda: np.zeros((2, 3)), {"shape": [2, 3]}, dtype)
        yield Case("ones", (), lambda: np.ones((2, 3)), {"shape": [2, 3]}, dtype)
        yield Case("empty", (), lambda: np.zeros(4), {}, dtype)
        yield Case("constant", (), lambda: np.ones((2, 2)), {"value": np.array(1, dtype)}, dtype)
        yield Case("constant", (), lambda: np.ones((2, 2)), {"value": np.ones((1, 1), dtype)}, dtype)
        both = np.array([[0, 1], [1, 0]], dtype)
        yield Case("constant", (), lambda v=both: v, {"value": both}, dtype)
    yield Case("constant", (), lambda: values, {"value": values}, tag="values")
    yield Case("constant", (), lambda: np.float32(np.nan), {"value": np.array(np.nan, np.float32)}, tag="nan")
    for dtype in (np.float32, BF16, np.int32):
        yield Case("full", (), lambda: np.full((2, 3), 7), {"shape": [2, 3], "fill_value": 7}, dtype)
    yield Case("full", (), lambda: np.full((), -np.inf), {"shape": (), "fill_value": -math.inf}, np.float32)
    yield Case("full", (), lambda: np.full(3, 2**32 - 2), {"fill_value": -2}, np.uint32)
    steps = {"start": 3, "end": 12, "step": 4, "arange_dimension": 1}
    for dtype in (np.float32, BF16, np.int32):
        yield Case("arange", (), lambda: np.tile(np.arange(3, 12, 4), (2, 1)), steps, dtype)
    yield Case("arange", (), lambda: np.arange(5, 0, -1), {"start": 5, "end": 0, "step": -1}, np.int32)
    yield Case("get_dimension_size", (F(3, 7),), lambda x: np.array([7]), {"dimension": -1}, np.uint32)


BASIC = [*elementwise(), *products(), *reductions(), *shapes(), *creation()]
