"""The registry of operations: every definition by its full name, such as `ttnn.add` or `ttcore.load_cached`.

Operations that call functions are defined here: the frontend inlines the functions. Loops and branches of functions,
which upstream has after the version whose definitions are known, are read only.
"""

from __future__ import annotations

from jaxmesh.dialects import textual, ttir, ttnn
from jaxmesh.dialects.attributes import attributes_of
from jaxmesh.dialects.op import OpDef, Trait
from jaxmesh.dialects.ttnn import memory
from jaxmesh.dialects.ttnn.op import TtnnOp

_CALLEES = {
    "ttcore.load_cached": "callee",
    "tt.load_cached": "callee",
    "ttcore.composite": "decomposition",
    "func.call": "callee",
}
"""By full name: the attribute that names the function. A composite calls its decomposition, as in upstream's pipeline
without a model of the operations."""

FUNCTION_OPS: dict[str, OpDef] = {}
"""By full name."""
for _full_name, _callee in _CALLEES.items():
    _dialect, _name = _full_name.split(".")
    _function = attributes_of(f"{_callee}: string")
    _called = OpDef(_dialect, _name, (0, None), _function, None, (0, None), traits=frozenset({Trait.CALL}))
    FUNCTION_OPS[_full_name] = _called

_LATER = frozenset({Trait.CONTROL_FLOW, Trait.NOT_UPSTREAM, Trait.LATER})
_LOOP = attributes_of(
    "body_program: string, state_count: si32, output_indices: i32s, initial?: any, limit?: any, step?: any, "
    "condition_program?: string"
)
FUNCTION_OPS["ttcore.while_loop"] = OpDef("ttcore", "while_loop", (0, None), _LOOP, None, (0, None), traits=_LATER)
FUNCTION_OPS["ttcore.optimization_barrier"] = OpDef(
    "ttcore", "optimization_barrier", (1, None), (), lambda call: list(call.operands), (1, None),
    traits=frozenset({Trait.MOVES, Trait.NOT_UPSTREAM, Trait.LATER}),
)  # fmt: skip
FUNCTION_OPS["ttcore.case"] = OpDef(
    "ttcore", "case", (1, None), attributes_of("branch_programs: any"), None, (0, None), traits=_LATER
)


DEFINITIONS: dict[str, OpDef] = {
    definition.full_name: definition
    for table in (ttir.OPS, ttnn.OPS, memory.OPS, textual.OPS, FUNCTION_OPS)
    for definition in table.values()
}

HOISTED = "ttnn.hoist_generic_via_d2m"
"""The attribute by which a text of TTNN marks an operation for the D2M compiler."""


def definition_of(name: str) -> OpDef | None:
    """Returns the definition of an operation by its full name; None if it is not defined."""
    return DEFINITIONS.get(name)


def ttnn_definition(name: str) -> TtnnOp | None:
    """Returns the definition of an operation of TTNN by its full name; None if it is not defined."""
    definition = DEFINITIONS.get(name)
    return definition if isinstance(definition, TtnnOp) else None


def has_trait(name: str, trait: Trait) -> bool:
    """Returns True if an operation has a trait.

    >>> has_trait("ttir.reshape", Trait.VIEW), has_trait("ttnn.add", Trait.VIEW)
    (True, False)
    """
    definition = DEFINITIONS.get(name)
    return definition is not None and trait in definition.traits
