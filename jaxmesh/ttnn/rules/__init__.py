"""Rules of the real functions, measured by calling ttnn 0.81.1 on a mock cluster.

`tests/system/test_real_ttnn_calls.py` compares random calls with the library.
"""

from collections.abc import Mapping, Sequence

from jaxmesh.ttnn.rules import devices, elementwise, lookups, moves, neural, pages, reductions
from jaxmesh.ttnn.rules.given import Given, Result, Rule

_BY_ROWS = frozenset({
    *elementwise.PAIRS, "ttnn.assign", "ttnn.clone", "ttnn.concat", "ttnn.copy", "ttnn.cumprod", "ttnn.cumsum",
    "ttnn.layer_norm", "ttnn.repeat_interleave", "ttnn.sort", "ttnn.stack", "ttnn.to_memory_config", "ttnn.where",
    "ttnn.clamp", "ttnn.clip",
})  # fmt: skip
"""Functions that divide by the size of a row in ROW_MAJOR."""
_BY_ANY_ROWS = frozenset({"ttnn.permute", "ttnn.transpose", "ttnn.typecast", "ttnn.gather"})
"""Functions that do so also with the rows of the result, or refuse rows of no tensor at all."""


_OF_ONE = frozenset({*elementwise.PAIRS, "ttnn.where", "ttnn.clamp", "ttnn.clip"})
"""Those of them that do not if the other operands are numbers."""


def _with_rows(rule: Rule, *, every: bool) -> Rule:
    def checked(given: Given) -> Sequence[Result]:
        results = rule(given)
        tensors = given.tensors()
        for form in tensors if every or len(tensors) > 1 or given.callee not in _OF_ONE else ():
            empty = form.is_empty if every and len(form.shape) < 3 else form.shape[-1:] == (0,)
            given.require(
                form.is_tile or form.host or not empty,
                "takes no rows without elements in ROW_MAJOR; use ttnn.to_layout",
                "the process ends by a division by zero",
            )
        return results

    return checked


_ALL = {
    **devices.RULES, **elementwise.RULES, **lookups.RULES, **moves.RULES, **neural.RULES, **pages.RULES,
    **reductions.RULES,
}  # fmt: skip
RULES: Mapping[str, Rule] = {
    callee: _with_rows(rule, every=callee in _BY_ANY_ROWS) if callee in _BY_ROWS | _BY_ANY_ROWS else rule
    for callee, rule in _ALL.items()
}
"""By the dotted name of the function."""
