"""Rules of the real functions, measured by calling ttnn 0.81.1 on a mock cluster.

The definition of an op states the element types of its function once (`definitions.py`); a table that the library's
answers make states what elementwise functions take (`elementwise.txt`). The other rules are facts about calls: tensors
in rows, and arguments that leave a result undefined. `tests/system/test_real_ttnn_calls.py` compares random calls with
the library.
"""

from collections.abc import Mapping

from jaxmesh.dialects.ttnn.forms import CREATED
from jaxmesh.ttnn.rules import devices, elementwise, moves, reductions
from jaxmesh.ttnn.rules.definitions import DEFINITIONS, defined
from jaxmesh.ttnn.rules.given import Rule

RULES: Mapping[str, Rule] = {
    **{callee: defined for callee, op in DEFINITIONS.items() if op.accepts is not CREATED},
    **devices.RULES, **elementwise.RULES, **moves.RULES, **reductions.RULES,
}  # fmt: skip
"""By the dotted name of the function."""
