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
_SPELLED_OUT = {"is_finite": "isfinite", "logical_not_unary": "logical_not"}
"""Functions whose ops have other names."""
_UNARY = re.compile(r"#ttnn\.unary_with_param<op_type = (\w+)(?:, params = \[([^\]]*)\])?>")


def activation_of(name: str, attributes: Mapping[str, Any]) -> str:
    """Returns the op that a product of TTNN applies to its result; empty for a plain product."""
    activation = attributes.get("activation") if name in ("ttnn.matmul", "ttnn.linear") else None
    if activation is None:
        return ""
    definition = definition_of(f"ttnn.{activation}")
    is_unary = definition is not None and definition.operands == (1, 1) and Trait.MEMORY not in definition.traits
    if definition is None or not is_unary or any(a.required for a in definition.attributes):
        raise UnsupportedError(
            f"activation = {activation!r:.60} is not a function of one tensor; write the activation as a separate op."
        )
    return f"ttnn.{activation}"


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
    return activation_of("ttnn.matmul", {"activation": _SPELLED_OUT.get(name, name)})
