"""Elementwise ops of TTNN."""

from __future__ import annotations

from jaxmesh.dialects.op import Attribute
from jaxmesh.dialects.ttir import elementwise as _elementwise
from jaxmesh.dialects.ttnn.op import DTYPE, MEMORY, Param, attribute, none, operand, placed, text, ttnn

_ = _elementwise
"""The rows these are like must be there first."""

_FAST = frozenset({"exp", "gelu", "sqrt", "rsqrt", "log", "log1p", "erf"})
_X = operand("input_tensor")
_A, _B = operand("input_tensor_a", 0), operand("input_tensor_b", 1)


# --- one operand -----------------------------------------------------------------------------------------------------


def _unary(name: str) -> None:
    python: list[Param] = [_X, MEMORY]
    cpp: list[Param] = [_X, placed(MEMORY)]
    if name in _FAST or name == "tanh":
        python.insert(1, text("fast_and_approximate_mode", "False", keyword=True, default=False))
    if name in _FAST:
        cpp.insert(1, text("fast_and_approximate_mode", "false"))
    if name == "tanh":
        cpp += [none("output_tensor", keyword=False), text("fast_and_approximate_mode", "false")]
    ttnn(name, python=python, cpp=cpp)


for _name in (
    "abs", "neg", "sign", "exp", "exp2", "expm1", "log", "log1p", "sqrt", "rsqrt", "cbrt", "reciprocal", "sin", "cos",
    "tan", "asin", "acos", "atan", "sinh", "cosh", "tanh", "asinh", "acosh", "atanh", "erf", "erfc", "floor", "ceil",
    "trunc", "round", "bitwise_not", "relu", "relu6", "gelu", "silu", "hardsigmoid", "hardswish", "mish", "softplus",
    "softsign", "selu", "isfinite", "logical_not",
):  # fmt: skip
    _unary(_name)

ttnn(
    "sigmoid",
    python=[
        _X,
        text("vector_mode", "4", keyword=True, default=4),
        text("mode", "ttnn.SigmoidMode.Accurate", keyword=True),
        MEMORY,
    ],
    cpp=[
        _X,
        text("vector_mode", "4"),
        text("mode", "::ttnn::operations::unary::SigmoidMode::ACCURATE"),
        placed(MEMORY),
    ],
)


def _with_number(name: str, parameter: str, key: str) -> None:
    number = attribute(parameter, key, form="float")
    ttnn(name, python=[_X, number, MEMORY], cpp=[_X, number, placed(MEMORY)])


_with_number("leaky_relu", "negative_slope", "parameter")
_with_number("elu", "alpha", "alpha")

ttnn("typecast", attributes=(), python=[_X, placed(DTYPE), MEMORY], cpp=[_X, placed(DTYPE), placed(MEMORY)])

_BOUNDS = (attribute("min"), attribute("max"))
ttnn("clamp_scalar", callee="ttnn.clamp", python=[_X, *_BOUNDS, MEMORY], cpp=[_X, *_BOUNDS, placed(MEMORY)])


# --- two and three operands ------------------------------------------------------------------------------------------


def _binary(name: str, like: str | None = None) -> None:
    ttnn(name, like=like, python=[_A, _B, DTYPE, MEMORY], cpp=[_A, _B, placed(DTYPE), placed(MEMORY)])


for _name in (
    "add", "subtract", "multiply", "divide", "eq", "ne", "ge", "gt", "le", "lt",
    "logical_and", "logical_or", "logical_xor",
):  # fmt: skip
    _binary(_name)


def _untyped(name: str, like: str | None = None, callee: str | None = None) -> None:
    unset = none("dtype", keyword=False)
    ttnn(name, like=like, callee=callee, python=[_A, _B, none("dtype"), MEMORY], cpp=[_A, _B, unset, placed(MEMORY)])


for _name in (
    "maximum", "minimum", "remainder", "bitwise_and", "bitwise_or", "bitwise_xor",
    "logical_left_shift", "logical_right_shift",
):  # fmt: skip
    _untyped(_name)
_untyped("pow_tensor", like="pow", callee="ttnn.pow")

ttnn("atan2", python=[_A, _B, MEMORY], cpp=[_A, _B, placed(MEMORY)])

_GRADIENT = operand("grad_tensor", 0)
_AT = operand("input_tensor", 1)
ttnn(
    "gelu_bw",
    like="gelu_backward",
    attributes=[Attribute("approximate", "str", default="none")],
    callee="ttnn.experimental.gelu_bw",
    python=[_GRADIENT, _AT, attribute("approximate", keyword=True, default="none"), MEMORY],
    cpp=[_GRADIENT, _AT, attribute("approximate"), placed(MEMORY)],
)

_PICKED = (operand("predicate", 0), operand("value_true", 1), operand("value_false", 2))
ttnn("where", python=[*_PICKED, MEMORY], cpp=[*_PICKED, placed(MEMORY)])
