"""Operations of TTNN that are marked for the D2M compiler as operations of TTIR, their layouts kept.

Follows `lib/Conversion/TTNNToTTIR/TTNNToTTIRPatterns.cpp` of tt-mlir: operations without the same meaning in TTIR
are refused, and what TTIR cannot say of how an operation is computed is left out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from jaxmesh.dialects.definitions import HOISTED, definition_of
from jaxmesh.dialects.op import OpDef
from jaxmesh.dialects.program import Op, Program
from jaxmesh.errors import MissingRuleError

_RENAMED = {"divide": "div", "pow_tensor": "pow"}
_CONVERTED = frozenset({
    "abs", "add", "argmax", "atan2", "bitwise_and", "bitwise_not", "bitwise_or", "bitwise_xor", "cbrt", "ceil",
    "clamp_tensor", "cos", "cumprod", "cumsum", "divide", "eq", "erf", "erfc", "exp", "expm1", "floor", "full",
    "ge", "gelu", "gt", "hardsigmoid", "isfinite", "le", "log", "log1p", "logical_and", "logical_left_shift",
    "logical_not", "logical_or", "logical_right_shift", "logical_xor", "lt", "matmul", "max", "maximum", "mean",
    "min", "minimum", "mish", "multiply", "ne", "neg", "pow_tensor", "prod", "reciprocal", "relu", "remainder",
    "rsqrt", "sigmoid", "sign", "silu", "sin", "sqrt", "subtract", "sum", "tan", "tanh", "typecast", "where",
})  # fmt: skip
"""The operations that are converted. Upstream converts layouts too, to an op that TTIR writes in a form of its own."""
_DIMS = {"argmax": "dim", "prod": "dim_arg"}
"""Reductions over one dim in TTNN, with the attribute that names it; TTIR lists dims."""


def convert_marked_ops(program: Program) -> Program:
    """Returns a program of TTNN with its marked operations in TTIR.

    Raises:
      MissingRuleError: an operation that is marked has none in TTIR.
    """
    return program.like([_convert(op) if HOISTED in op.attributes else op for op in program.ops], program.results)


def _convert(op: Op) -> Op:
    name = op.name.removeprefix("ttnn.")
    definition = definition_of(f"ttir.{_RENAMED.get(name, name)}") if name in _CONVERTED else None
    if definition is None:
        raise MissingRuleError(
            f"{op.name} ({op.line or 'no line known'}) is marked {HOISTED}, but no op of TTIR does the same; take the "
            "mark away, or add the op to jaxmesh/passes/ttnn_to_ttir.py."
        )
    attributes = _attributes(name, op.attributes, definition)
    # Where an op of TTNN is made on a device, it names it.
    operands = () if definition.operands == (0, 0) else op.operands
    return replace(op, name=f"ttir.{definition.name}", operands=operands, attributes=attributes)


def _attributes(name: str, given: Mapping[str, Any], definition: OpDef) -> Mapping[str, Any]:
    kept = {k: v for k, v in given.items() if k in definition.by_name}
    if name in _DIMS and isinstance(dim := given.get(_DIMS[name]), int):
        kept["dim_arg"] = (dim,)
    return kept
