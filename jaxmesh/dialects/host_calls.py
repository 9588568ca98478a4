"""Operations that tt-mlir moves to the host's processor: functions on torch tensors of its Python module `ttir_cpu`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from jaxmesh.dialects.definitions import ttnn_definition
from jaxmesh.dialects.program import Op, Program

_ON_OPERANDS = frozenset({
    "abs", "acos", "add", "asin", "asinh", "atan", "atan2", "bitwise_and", "bitwise_not", "bitwise_or", "bitwise_xor",
    "cbrt", "ceil", "cos", "div", "eq", "erf", "erfc", "exp", "expm1", "floor", "ge", "gelu", "gt", "hardsigmoid",
    "isfinite", "le", "log", "log1p", "logical_and", "logical_not", "logical_or", "logical_xor", "lt", "matmul",
    "maximum", "minimum", "mish", "multiply", "ne", "neg", "pow", "reciprocal", "relu", "relu6", "remainder", "rsqrt",
    "sigmoid", "sign", "silu", "sin", "sqrt", "subtract", "tan", "tanh", "where",
})  # fmt: skip
"""Those that take operands alone."""
HOST_FORMS: Mapping[str, str] = {
    **dict.fromkeys(_ON_OPERANDS, ""),
    "reshape": "shape",
    "permute": "permutation",
    "typecast": "dtype",
    "full": "number",
    "zeros": "created",
    "ones": "created",
}
"""By function: what its call has beside operands."""
TORCH_TYPES: Mapping[np.dtype[Any], str] = {
    np.dtype(name): f"torch.{torch}"
    for name, torch in {
        "float32": "float32", "bfloat16": "bfloat16", "int32": "int32", "int16": "int16", "int8": "int8",
        "uint8": "uint8", "bool": "bool",
    }.items()
}  # fmt: skip
"""The element types that torch computes with, by NumPy's."""


def host_function_of(program: Program, op: Op) -> str | None:
    """Returns the function of `ttir_cpu` that does what an operation does; None if `ttir_cpu` lacks it."""
    definition = ttnn_definition(op.name)
    name = "" if definition is None else definition.like or definition.name
    types = [program.types[v] for v in (*op.used, *op.results)]
    if name not in HOST_FORMS or any(t.dtype not in TORCH_TYPES for t in types if t.kind == "tensor"):
        return None
    # Such as an activation behind it, or a transposed operand.
    more = any(v not in (None, False) for k, v in op.attributes.items() if k not in ("dtype", "memory_config"))
    return None if more and not HOST_FORMS[name] else name
