"""Patterns of elementwise ops that TTNN lacks.

Upstream's TTNN lacks them, too (tt-mlir 19c86fca, include/ttmlir/Dialect/TTNN/IR/TTNNOps.td), and does not
lower them.
"""

from __future__ import annotations

import math
from typing import Any

from jaxmesh.dialects.program import Value
from jaxmesh.passes.rules import Rules
from jaxmesh.passes.ttir_to_ttnn.builder import BOOL, Ops, Pattern, Site, is_integer

PATTERNS: Rules[Pattern] = Rules()


def _with_number(o: Ops, name: str, x: Value, number: Any) -> Value:
    return o.same(name, [x, o.full((), number, o.dtype(x))])


@PATTERNS.add("exp2")
def _exp2(o: Ops, site: Site) -> Value:
    # As JAX computes it.
    return o.same("exp", [_with_number(o, "multiply", site.x, math.log(2))])


@PATTERNS.add("trunc")
def _trunc(o: Ops, site: Site) -> Value:
    x = site.x
    if is_integer(o.dtype(x)):
        return x
    return o.same("multiply", [o.same("floor", [o.same("abs", [x])]), o.same("sign", [x])])


@PATTERNS.add("softsign")
def _softsign(o: Ops, site: Site) -> Value:
    x = site.x
    return o.same("divide", [x, _with_number(o, "add", o.same("abs", [x]), 1)])


@PATTERNS.add("selu")
def _selu(o: Ops, site: Site) -> Value:
    x = site.x
    positive = o.op("gt", [x, o.full((), 0, o.dtype(x))], o.shape(x), BOOL)
    below = _with_number(o, "multiply", o.same("expm1", [x]), site["alpha"])
    chosen = o.op("where", [positive, x, below], o.shape(x), o.dtype(x))
    return _with_number(o, "multiply", chosen, site["scale"])
