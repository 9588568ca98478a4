"""What the real functions accept and give, found by calling ttnn 0.81.1 on a mock cluster.

`tests/system/test_real_ttnn_calls.py` compares random calls with the library.
"""

from collections.abc import Mapping

from jaxmesh.dialects.ttnn.rules import devices, elementwise, moves, neural, reductions
from jaxmesh.dialects.ttnn.rules.given import Rule

RULES: Mapping[str, Rule] = {
    **devices.RULES, **elementwise.RULES, **moves.RULES, **neural.RULES, **reductions.RULES,
}  # fmt: skip
"""By the dotted name of the function."""
