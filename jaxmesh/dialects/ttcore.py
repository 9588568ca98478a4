"""Operations that call functions, which the frontend inlines.

Loops and branches of functions, which upstream has after the version whose definitions are known, are read only.
"""

from __future__ import annotations

from jaxmesh.dialects.op import OpDef, Trait, attr, need

_CALLEES = {
    "ttcore.load_cached": "callee",
    "tt.load_cached": "callee",
    "ttcore.composite": "decomposition",
    "func.call": "callee",
}
"""By full name: the attribute that names the function. A composite calls its decomposition, as in upstream's pipeline
without a model of the operations."""

OPS: dict[str, OpDef] = {}
"""By full name."""
for _full_name, _callee in _CALLEES.items():
    _dialect, _name = _full_name.split(".")
    _function = (need(_callee, "str"),)
    OPS[_full_name] = OpDef(_dialect, _name, (0, None), _function, None, (0, None), traits=frozenset({Trait.CALL}))

_LATER = frozenset({Trait.CONTROL_FLOW, Trait.NOT_UPSTREAM, Trait.LATER})
_BOUNDS = (attr("initial", "any"), attr("limit", "any"), attr("step", "any"), attr("condition_program", "str"))
_LOOP = (need("body_program", "str"), need("state_count", "int"), need("output_indices", "ints"), *_BOUNDS)
OPS["ttcore.while_loop"] = OpDef("ttcore", "while_loop", (0, None), _LOOP, None, (0, None), traits=_LATER)
OPS["ttcore.optimization_barrier"] = OpDef(
    "ttcore", "optimization_barrier", (1, None), (), lambda call: list(call.operands), (1, None),
    traits=frozenset({Trait.MOVES, Trait.NOT_UPSTREAM, Trait.LATER}),
)  # fmt: skip
OPS["ttcore.case"] = OpDef(
    "ttcore", "case", (1, None), (need("branch_programs", "any"),), None, (0, None), traits=_LATER
)
