"""Elementwise ops of TTNN."""

from __future__ import annotations

import jax

from jaxmesh.dialects.op import Call, Trait
from jaxmesh.dialects.ttir.elementwise import LIBRARY_ONLY, TESTS, UNARY, promote
from jaxmesh.dialects.ttir.helpers import jnp, lax
from jaxmesh.dialects.ttnn.forms import (
    ANY,
    EXACT,
    F32,
    FIXED,
    FLOAT,
    FLOATS,
    I32,
    NUMBERS,
    U16,
    U32,
    WIDE,
    WORDS,
    Forms,
    Gives,
    Occurrence,
    Takes,
    forms,
)
from jaxmesh.dialects.ttnn.op import TtnnOps, ttir_meaning

OPS = TtnnOps()


# --- one operand -----------------------------------------------------------------------------------------------------

_ONE = {
    **dict.fromkeys(("abs", "relu", "relu6"), forms(NUMBERS, casts=FIXED)),
    "neg": forms(FLOATS | {I32}, casts=FIXED, remedy="Subtract from zero"),
    "bitwise_not": forms(WORDS, casts=FIXED),
    "logical_not": forms(WIDE),
    "gelu_bw": Forms((Takes(FLOATS),), (Gives(operand=1),)),
}
"""Functions that take other types than floats."""
_NO_OPS = {"exp2", "trunc", "softsign", *LIBRARY_ONLY}
"""The library has these, the dialect has not (tt-mlir 19c86fca, include/ttmlir/Dialect/TTNN/IR/TTNNOps.td)."""
for _name in (*UNARY, *LIBRARY_ONLY, *TESTS, "leaky_relu", "gelu_bw"):
    _traits = [Trait.NOT_UPSTREAM] if _name in _NO_OPS else ()
    OPS.define(_name, traits=_traits, accepts=_ONE.get(_name, FLOAT))

OPS.define("elu", traits=[Trait.NOT_UPSTREAM], accepts=FLOAT)

OPS.define(
    "selu",
    meaning=lambda call: ttir_meaning(call, alpha=1.6732632423543772, scale=1.0507009873554805),
    traits=[Trait.NOT_UPSTREAM],
    accepts=FLOAT,
)
OPS.define(
    "typecast", traits=[Trait.ON_HOST, Trait.RETURNS_OPERAND], accepts=forms(ANY, "either", gives="asked"), work=(0, 0)
)


def _clamped(op: Occurrence) -> Forms:
    """Returns the forms of a clamp; integers between bounds that are written with a point become float32."""
    parts = any(isinstance(op.attributes.get(name), float) for name in ("min", "max"))
    return Forms((Takes(FLOATS | {I32}),), (Gives(by_type={I32: F32} if parts else None),))


OPS.define("clamp_scalar", accepts=_clamped)


TUNED = frozenset({"exp", "gelu", "round", "rsqrt", "sqrt"})
"""Functions whose parameters inside of another op say how to compute; at 0 they are the plain functions."""

# --- two and three operands ------------------------------------------------------------------------------------------

_TWO = {
    **dict.fromkeys(("add", "subtract", "multiply"), forms(WIDE, gives="asked", casts=FIXED)),
    **dict.fromkeys(("eq", "ne", "ge", "gt", "le", "lt"), forms(WIDE, gives="asked")),
    **dict.fromkeys(("logical_and", "logical_or", "logical_xor"), forms(WIDE, gives="asked")),
    **dict.fromkeys(("maximum", "minimum", "remainder"), forms(NUMBERS)),
    **dict.fromkeys(("bitwise_and", "bitwise_or", "bitwise_xor"), forms(WORDS | {U16}, casts=FIXED)),
    "logical_left_shift": forms(WORDS | {U16}, casts=FIXED), "logical_right_shift": forms(WORDS, casts=FIXED),
    "atan2": FLOAT,
}  # fmt: skip


def _remainder(call: Call) -> jax.Array:
    """Computes the remainder with the sign of the divisor; `ttir.remainder` has the sign of the dividend."""
    a, b = promote(call, *call.operands)
    rest = lax.rem(a, b)
    return jnp.where((rest != 0) & ((rest < 0) != (b < 0)), rest + b, rest)


for _name, _accepts in _TWO.items():
    OPS.define(_name, accepts=_accepts, meaning=_remainder if _name == "remainder" else None)


def _powers(op: Occurrence) -> Forms:
    """Returns the forms of a power: as in JAX, an integer exponent of a float is converted to a float."""
    exponents = Takes(FLOATS, casts={**EXACT, I32: (F32,), U32: (F32,)})
    return Forms((Takes(FLOATS), exponents)) if op.stored() in FLOATS else FLOAT


OPS.define("pow_tensor", like="pow", accepts=_powers)


def _divided(op: Occurrence) -> Forms:
    rounds = op.attributes.get("rounding_mode") is not None
    return forms(frozenset({I32}), casts=FIXED) if rounds else forms(FLOATS, gives="asked")


def _divide(call: Call) -> jax.Array:
    """Computes a quotient; integers are rounded toward zero, and floats with a rounding mode."""
    quotient = ttir_meaning(call, "div")
    rounds = call["rounding_mode"] is not None and jnp.issubdtype(quotient.dtype, jnp.floating)
    return jnp.trunc(quotient) if rounds else quotient


OPS.define("divide", like="div", meaning=_divide, accepts=_divided)
"""tt-mlir's has no attribute: it divides integers as float32, which rounds those beyond 2^24."""

OPS.define("where", accepts=Forms((Takes(ANY, truth=True), Takes(ANY)), (Gives(operand=1),)))
