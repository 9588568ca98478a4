"""Elementwise ops of TTNN."""

from __future__ import annotations

from collections.abc import Sequence

from jaxmesh.dialects.op import Trait
from jaxmesh.dialects.ttnn.op import (
    DTYPE,
    MEMORY,
    Param,
    TtnnOp,
    attribute,
    define,
    operand,
    positional,
    text,
    ttir_meaning,
    unset,
)

OPS: dict[str, TtnnOp] = {}
_X = operand("input_tensor")
_A, _B = operand("input_tensor_a", 0), operand("input_tensor_b", 1)
(_MEMORY,) = positional(MEMORY)
(_DTYPE,) = positional(DTYPE)


# --- one operand -----------------------------------------------------------------------------------------------------

for _name in (
    "abs", "neg", "sign", "expm1", "cbrt", "reciprocal", "sin", "cos", "tan", "asin", "acos", "atan", "asinh", "erfc",
    "floor", "ceil", "bitwise_not", "relu", "relu6", "silu", "hardsigmoid", "isfinite", "logical_not",
):  # fmt: skip
    define(OPS, _name, python=[_X, MEMORY])
define(OPS, "mish", python=[_X, MEMORY], cpp=[_X, text("fast_and_approximate_mode", "false"), _MEMORY])
# The library has these, the dialect has not (tt-mlir 19c86fca, include/ttmlir/Dialect/TTNN/IR/TTNNOps.td).
for _name in (
    "exp2", "sinh", "cosh", "acosh", "atanh", "trunc", "round", "hardswish", "softplus", "softsign",
):  # fmt: skip
    define(OPS, _name, python=[_X, MEMORY], traits=[Trait.NOT_UPSTREAM])

_EXACT = text("fast_and_approximate_mode", "False", keyword=True, default=False)
_CPP_EXACT = text("fast_and_approximate_mode", "false")
for _name in ("exp", "gelu", "sqrt", "rsqrt", "log", "log1p", "erf"):
    define(OPS, _name, python=[_X, _EXACT, MEMORY], cpp=[_X, _CPP_EXACT, _MEMORY])
define(OPS, "tanh", python=[_X, _EXACT, MEMORY], cpp=[_X, _MEMORY, unset("output_tensor", keyword=False), _CPP_EXACT])
define(
    OPS,
    "sigmoid",
    python=[
        _X,
        text("vector_mode", "4", keyword=True, default=4),
        text("mode", "ttnn.SigmoidMode.Accurate", keyword=True),
        MEMORY,
    ],
    cpp=[_X, text("vector_mode", "4"), text("mode", "::ttnn::operations::unary::SigmoidMode::ACCURATE"), _MEMORY],
)


def _with_number(name: str, parameter: str, key: str, traits: Sequence[Trait] = ()) -> None:
    define(OPS, name, python=[_X, attribute(parameter, key, form="float"), MEMORY], traits=traits)


define(
    OPS,
    "selu",
    attributes=(),
    meaning=lambda call: ttir_meaning(call, alpha=1.6732632423543772, scale=1.0507009873554805),
    python=[_X, MEMORY],
    traits=[Trait.NOT_UPSTREAM],
)
_with_number("leaky_relu", "negative_slope", "parameter")
_with_number("elu", "alpha", "alpha", [Trait.NOT_UPSTREAM])

define(OPS, "typecast", attributes=(), traits=[Trait.ON_HOST, Trait.RETURNS_OPERAND], python=[_X, _DTYPE, MEMORY])
define(OPS, "clamp_scalar", callee="ttnn.clamp", python=[_X, attribute("min"), attribute("max"), MEMORY])


# --- two and three operands ------------------------------------------------------------------------------------------

for _name in (
    "add", "subtract", "multiply", "divide", "eq", "ne", "ge", "gt", "le", "lt",
    "logical_and", "logical_or", "logical_xor",
):  # fmt: skip
    define(OPS, _name, like="div" if _name == "divide" else None, python=[_A, _B, DTYPE, MEMORY])

_UNTYPED: list[Param] = [_A, _B, unset("dtype"), MEMORY]
for _name in (
    "maximum", "minimum", "remainder", "logical_right_shift",
):  # fmt: skip
    define(OPS, _name, python=_UNTYPED)
for _name in ("bitwise_and", "bitwise_or", "bitwise_xor", "logical_left_shift"):
    define(OPS, _name, python=_UNTYPED, cpp=[_A, _B, _MEMORY])
define(OPS, "pow_tensor", like="pow", callee="ttnn.pow", python=_UNTYPED)

define(OPS, "atan2", python=[_A, _B, MEMORY])

_GRADIENTS = (operand("grad_tensor", 0), operand("input_tensor", 1))
define(
    OPS,
    "gelu_bw",
    callee="ttnn.experimental.gelu_bw",
    python=[*_GRADIENTS, attribute("approximate", keyword=True, default="none"), MEMORY],
    cpp=[*_GRADIENTS, attribute("approximate"), _MEMORY],
)

define(OPS, "where", python=[operand("predicate", 0), operand("value_true", 1), operand("value_false", 2), MEMORY])
