"""Primitives that no text can express: what TTIR lacks for each, and what to do instead."""

from __future__ import annotations

from collections.abc import Sequence

from jaxmesh.dialects.program import Value
from jaxmesh.errors import InexpressibleError
from jaxmesh.jaxprs.compat import Eqn
from jaxmesh.jaxprs.primitives import CALLBACKS, CALLS_HOST
from jaxmesh.passes.flatten.builder import Builder, Rule
from jaxmesh.passes.rules import Rules

RULES: Rules[Rule] = Rules()

_ITERATES = (
    "it iterates until the numbers are good enough, which only the devices know, and TTIR has no such loop; compute it "
    "on the host, or write it with a static number of iterations"
)
_REFUSED = {
    **dict.fromkeys(CALLBACKS, CALLS_HOST),
    **dict.fromkeys(
        ("eigh", "eig", "svd", "schur", "igamma", "igammac", "igamma_grad_a", "random_gamma", "random_gamma_grad"),
        _ITERATES,
    ),
    "regularized_incomplete_beta": _ITERATES,
}


@RULES.add(*_REFUSED)
def _refuse(b: Builder, eqn: Eqn, xs: Sequence[Value]) -> Sequence[Value]:
    name = eqn.primitive.name
    raise InexpressibleError(f"no text for primitive {name!r} ({b.line}): {_REFUSED[name]}. The program still runs.")
