"""Elementwise ops of TTNN."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jaxmesh.dialects.op import Call, Trait, attr
from jaxmesh.dialects.ttir.helpers import jnp
from jaxmesh.dialects.ttnn.forms import (
    ANY,
    F32,
    FIXED,
    FLOAT,
    FLOATS,
    I32,
    NUMBERS,
    U16,
    WIDE,
    WORDS,
    Forms,
    Gives,
    Occurrence,
    Takes,
    forms,
)
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
_A = operand("input_tensor_a", 0)
_B = operand("input_tensor_b", 1, also=("input_b", "value"))
(_MEMORY,) = positional(MEMORY)
(_DTYPE,) = positional(DTYPE)


# --- one operand -----------------------------------------------------------------------------------------------------

_ONE = {
    **dict.fromkeys(("abs", "relu", "relu6"), forms(NUMBERS, casts=FIXED)),
    "neg": forms(FLOATS | {I32}, casts=FIXED, remedy="Subtract from zero"),
    "bitwise_not": forms(WORDS, casts=FIXED),
    "logical_not": forms(WIDE),
}
"""Functions that take other types than floats."""
for _name in (
    "abs", "neg", "sign", "expm1", "cbrt", "reciprocal", "sin", "cos", "tan", "asin", "acos", "atan", "asinh", "erfc",
    "floor", "ceil", "bitwise_not", "relu", "relu6", "silu", "hardsigmoid", "isfinite", "logical_not",
):  # fmt: skip
    define(OPS, _name, python=[_X, MEMORY], accepts=_ONE.get(_name, FLOAT))
define(OPS, "mish", python=[_X, MEMORY], cpp=[_X, text("fast_and_approximate_mode", "false"), _MEMORY], accepts=FLOAT)
# The library has these, the dialect has not (tt-mlir 19c86fca, include/ttmlir/Dialect/TTNN/IR/TTNNOps.td).
for _name in (
    "exp2", "sinh", "cosh", "acosh", "atanh", "trunc", "round", "hardswish", "softplus", "softsign",
):  # fmt: skip
    define(OPS, _name, python=[_X, MEMORY], traits=[Trait.NOT_UPSTREAM], accepts=FLOAT)

_EXACT = text("fast_and_approximate_mode", "False", keyword=True, default=False)
_CPP_EXACT = text("fast_and_approximate_mode", "false")
for _name in ("exp", "gelu", "sqrt", "rsqrt", "log", "log1p", "erf"):
    define(OPS, _name, python=[_X, _EXACT, MEMORY], cpp=[_X, _CPP_EXACT, _MEMORY], accepts=FLOAT)
define(
    OPS,
    "tanh",
    python=[_X, _EXACT, MEMORY],
    cpp=[_X, _MEMORY, unset("output_tensor", keyword=False), _CPP_EXACT],
    accepts=FLOAT,
)
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
    accepts=FLOAT,
)


def _with_number(name: str, parameter: str, key: str, traits: Sequence[Trait] = (), *, keyword: bool = False) -> None:
    number = attribute(parameter, key, form="float", keyword=keyword)
    define(OPS, name, python=[_X, number, MEMORY], cpp=positional(_X, number, MEMORY), traits=traits, accepts=FLOAT)


define(
    OPS,
    "selu",
    attributes=(),
    meaning=lambda call: ttir_meaning(call, alpha=1.6732632423543772, scale=1.0507009873554805),
    python=[_X, MEMORY],
    traits=[Trait.NOT_UPSTREAM],
    accepts=FLOAT,
)
_with_number("leaky_relu", "negative_slope", "parameter")
_with_number("elu", "alpha", "alpha", [Trait.NOT_UPSTREAM], keyword=True)

define(
    OPS,
    "typecast",
    attributes=(),
    traits=[Trait.ON_HOST, Trait.RETURNS_OPERAND],
    python=[_X, _DTYPE, MEMORY],
    accepts=forms(ANY, "either", gives="asked"),
    work=(0, 0),
)


def _clamped(op: Occurrence) -> Forms:
    """Returns the forms of a clamp; integers between bounds that are written with a point become float32."""
    parts = any(isinstance(op.attributes.get(name), float) for name in ("min", "max"))
    return Forms((Takes(FLOATS | {I32}),), (Gives(by_type={I32: F32} if parts else None),))


define(
    OPS,
    "clamp_scalar",
    callee="ttnn.clamp",
    python=[_X, attribute("min"), attribute("max"), MEMORY],
    accepts=_clamped,
)


TUNED = frozenset({"exp", "gelu", "round", "rsqrt", "sqrt"})
"""Functions whose parameters inside of another op say how to compute; at 0 they are the plain functions."""

# --- two and three operands ------------------------------------------------------------------------------------------

_ACTIVATIONS = [attr("activations", "any", form="text", must_be_empty=True)]
"""Functions to apply to the result, which compilers later than 19c86fca print, though none, on every binary op."""
_ASKED = forms(WIDE, gives="asked", casts=FIXED)
_TWO = {
    **dict.fromkeys(("eq", "ne", "ge", "gt", "le", "lt"), forms(WIDE, gives="asked")),
    **dict.fromkeys(("logical_and", "logical_or", "logical_xor"), forms(WIDE, gives="asked")),
}
for _name in (
    "add", "subtract", "multiply", "eq", "ne", "ge", "gt", "le", "lt",
    "logical_and", "logical_or", "logical_xor",
):  # fmt: skip
    define(OPS, _name, more=_ACTIVATIONS, python=[_A, _B, DTYPE, MEMORY], accepts=_TWO.get(_name, _ASKED))


def _divided(op: Occurrence) -> Forms:
    rounds = op.attributes.get("rounding_mode") is not None
    return forms(frozenset({I32}), casts=FIXED) if rounds else forms(FLOATS, gives="asked")


def _divide(call: Call) -> Any:
    """Computes a quotient; integers are rounded toward zero, and floats with a rounding mode."""
    quotient = ttir_meaning(call, "div")
    rounds = call["rounding_mode"] is not None and jnp.issubdtype(quotient.dtype, jnp.floating)
    return jnp.trunc(quotient) if rounds else quotient


define(
    OPS,
    "divide",
    like="div",
    meaning=_divide,
    attributes=[attr("rounding_mode", "str")],
    more=_ACTIVATIONS,
    python=[_A, _B, DTYPE, attribute("rounding_mode", keyword=True, default=None, if_set=True), MEMORY],
    cpp=positional(_A, _B, DTYPE, MEMORY),
    accepts=_divided,
)
"""tt-mlir's has no attribute: it divides integers as float32, which rounds those beyond 2^24."""

_UNTYPED: list[Param] = [_A, _B, unset("dtype"), MEMORY]
for _name in ("maximum", "minimum", "remainder"):
    define(OPS, _name, more=_ACTIVATIONS, python=_UNTYPED, accepts=forms(NUMBERS))
for _name in ("bitwise_and", "bitwise_or", "bitwise_xor", "logical_left_shift", "logical_right_shift"):
    allowed = WORDS if _name == "logical_right_shift" else WORDS | {U16}
    define(OPS, _name, more=_ACTIVATIONS, python=[_A, _B, MEMORY], accepts=forms(allowed, casts=FIXED))
define(
    OPS,
    "pow_tensor",
    like="pow",
    more=_ACTIVATIONS,
    callee="ttnn.pow",
    python=[operand("input_tensor"), operand("exponent", 1), unset("dtype"), MEMORY],
    accepts=FLOAT,
)

define(OPS, "atan2", more=_ACTIVATIONS, python=[_A, _B, MEMORY], accepts=FLOAT)

_GRADIENTS = (operand("grad_tensor", 0), operand("input_tensor", 1))
define(
    OPS,
    "gelu_bw",
    callee="ttnn.gelu_bw",
    cpp_callee="ttnn.experimental.gelu_bw",
    python=[*_GRADIENTS, attribute("variant", "approximate", form="enum:ttnn.GeluVariant", keyword=True), MEMORY],
    cpp=[*_GRADIENTS, attribute("approximate"), _MEMORY],
    accepts=FLOAT,
)

_CHOSEN = Takes(ANY)
define(
    OPS,
    "where",
    python=[operand("predicate", 0), operand("true_value", 1), operand("false_value", 2), MEMORY],
    accepts=Forms((Takes(ANY, truth=True), _CHOSEN), (Gives(operand=1),)),
)
