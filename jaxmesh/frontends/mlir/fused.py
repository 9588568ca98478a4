"""Functions that an op of TTNN applies to its operands or its result, which are read as ops beside it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from jaxmesh.dialects.definitions import definition_of
from jaxmesh.dialects.op import Trait
from jaxmesh.dialects.ttnn.elementwise import TUNED
from jaxmesh.errors import UnsupportedError

FUSED = ("input_tensor_a_activations", "input_tensor_b_activations")
"""The attributes of an op of two tensors that name functions of its operands."""
AFTER = "activations"
"""The attribute that names functions of its result."""
_PRODUCTS = ("ttnn.matmul", "ttnn.linear")
_CONVOLUTIONS = ("ttnn.conv2d", "ttnn.conv_transpose2d")
_CONFIGS: Mapping[str, Sequence[str]] = {
    **dict.fromkeys(_PRODUCTS, ("matmul_program_config",)), **dict.fromkeys(_CONVOLUTIONS, ("conv2d_config",)),
}  # fmt: skip
"""The attributes that say how an op computes, and may name a function of its result."""
_FUNCTION = re.compile(r'\b(?:fused_)?activation = (<op_type = [^>]*>|"\w+")')
_OTHER_NAMES = {
    "recip": "reciprocal", "is_inf": "isinf", "is_nan": "isnan", "is_finite": "isfinite", "soft_plus": "softplus",
    "logical_not_unary": "logical_not",
}  # fmt: skip
"""The ops whose name is another one in `#ttnn.unary_with_param`."""
_UNARY = re.compile(r"#ttnn\.unary_with_param<op_type = (\w+)(?:, params = \[([^\]]*)\])?>")


def activation_of(name: str, attributes: Mapping[str, Any]) -> str:
    """Returns the op that a product or a convolution of TTNN applies to its result; empty for none.

    A product names the function itself, or in its program config; a convolution in its config.
    """
    named = attributes.get("activation") if name in _PRODUCTS else None
    found = {_unary(str(named))} if named else set[str]()
    for config in _CONFIGS.get(name, ()):
        found |= {
            _unary(f"#ttnn.unary_with_param{f}" if f[0] == "<" else f[1:-1])
            for f in _FUNCTION.findall(str(attributes.get(config, "")))
        }
    if len(found) > 1:
        raise UnsupportedError(f"applies {' and '.join(sorted(found))}, but one function of the result is known.")
    return found.pop() if found else ""


def _unary_op(name: str) -> str:
    name = _OTHER_NAMES.get(name, name)
    definition = definition_of(f"ttnn.{name}")
    is_unary = definition is not None and definition.operands == (1, 1) and Trait.MEMORY not in definition.traits
    if definition is None or not is_unary or any(a.required for a in definition.attributes):
        raise UnsupportedError(
            f"activation = {name!r:.60} is not a function of one tensor; write the activation as a separate op."
        )
    return f"ttnn.{name}"


def fused_functions(attributes: Mapping[str, Any]) -> Mapping[str, Sequence[str]]:
    """Returns the ops that an op of two tensors applies to its operands and its result, by attribute; mostly none."""
    named = [name for name in (*FUSED, AFTER) if attributes.get(name)]
    return {name: [_unary(str(f)) for f in attributes[name]] for name in named}


def _unary(function: str) -> str:
    """Returns the op of a function.

    >>> _unary("#ttnn.unary_with_param<op_type = exp>")
    'ttnn.exp'
    """
    found = _UNARY.fullmatch(function)
    name, parameters = found.groups() if found else (function, None)
    plain = name in TUNED and all(float(p.partition(":")[0]) == 0 for p in (parameters or "0").split(","))
    if parameters and not plain:
        raise UnsupportedError(f"applies {function:.80}, whose parameters are not known; write it as a separate op.")
    return _unary_op(name)
