"""Operations that call a function: frontends inline functions of a text, passes insert the calls that are printed."""

from __future__ import annotations

from jaxmesh.dialects.op import OpDef, Trait, need
from jaxmesh.dialects.program import HOST_CALL, LOAD_CACHED

_CALLEES = {LOAD_CACHED: "callee", "tt.load_cached": "callee", "ttcore.composite": "decomposition", HOST_CALL: "callee"}
"""By full name: the attribute that names the function. A composite calls its decomposition, as in upstream's pipeline
without a model of the operations."""

OPS: dict[str, OpDef] = {}
"""By full name."""
for _full_name, _callee in _CALLEES.items():
    _dialect, _name = _full_name.split(".")
    _function = (need(_callee, "str"),)
    OPS[_full_name] = OpDef(_dialect, _name, (0, None), _function, None, (0, None), traits=frozenset({Trait.CALL}))
