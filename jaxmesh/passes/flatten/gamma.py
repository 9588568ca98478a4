"""The logarithm of the gamma function and its derivative, composed of ops that TTIR has."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from jaxmesh.dialects.program import Value
from jaxmesh.jaxprs.compat import Eqn
from jaxmesh.passes.flatten.builder import Builder, Rule, missing
from jaxmesh.passes.flatten.index_arithmetic import combine_broadcast, compare, select
from jaxmesh.passes.rules import Rules

RULES: Rules[Rule] = Rules()

_FLOAT = np.dtype(np.float32)

# C. Lanczos, "A precision approximation of the gamma function", 1964, for g = 7 and nine terms, as XLA has it.
_G = 7.0
_FIRST = 0.99999999999980993
_TERMS = (
    676.5203681218851, -1259.1392167224028, 771.32342877765313, -176.61502916214059, 12.507343278686905,
    -0.13857109526572012, 9.9843695780195716e-6, 1.5056327351493116e-7,
)  # fmt: skip


@dataclass(slots=True)
class _Parts:
    """The terms of both functions.

    Attributes:
      b: the builder.
      x: where the function is taken, in float32.
      reflects: whether x is below a half, where Euler's reflection leads to -x.
      z: x - 1, or -x.
      total: the first term and the quotients of `terms`.
      terms: each factor divided by its own number, and that number.
      t: z + g + 1/2.
      log_t: its logarithm.
    """

    b: Builder
    x: Value
    reflects: Value
    z: Value
    total: Value
    terms: Sequence[tuple[Value, Value]]
    t: Value
    log_t: Value

    def number(self, value: float) -> Value:
        """Returns a number as a scalar."""
        return self.b.full((), value, _FLOAT)


def _parts(b: Builder, eqn: Eqn, given: Value) -> _Parts:
    dtype = b.result(eqn)[1]
    if dtype.itemsize > 4:
        raise missing(eqn, f"it is composed to the precision of float32, not of {dtype}")

    def number(value: float) -> Value:
        return b.full((), value, _FLOAT)

    x = b.cast(given, _FLOAT)
    reflects = compare(b, "lt", x, number(0.5))
    z = select(b, reflects, b.same("neg", [x]), b.same("subtract", [x, number(1)]))
    total, terms = number(_FIRST), list[tuple[Value, Value]]()
    for i, factor in enumerate(_TERMS):
        below = b.same("add", [z, number(i + 1)])
        terms.append((combine_broadcast(b, "div", number(factor), below), below))
        total = combine_broadcast(b, "add", total, terms[-1][0])
    near = b.same("log1p", [b.same("div", [z, number(_G + 0.5)])])
    log_t = b.same("add", [near, number(math.log(_G + 0.5))])
    return _Parts(b, x, reflects, z, total, terms, b.same("add", [z, number(_G + 0.5)]), log_t)


@RULES.add("lgamma")
def _lgamma(b: Builder, eqn: Eqn, xs: Sequence[Value]) -> Value:
    p = _parts(b, eqn, xs[0])
    by = b.same("subtract", [b.with_number("add", p.z, 0.5), b.same("div", [p.t, p.log_t])])
    made = b.with_number("add", b.same("multiply", [by, p.log_t]), math.log(2 * math.pi) / 2)
    made = b.same("add", [made, b.same("log", [p.total])])
    # log |sin(pi x)|, of the part behind the point, mirrored at a half: then it is exact at whole numbers.
    size = b.same("abs", [p.x])
    part = b.same("subtract", [size, b.same("floor", [size])])
    beyond = compare(b, "gt", part, p.number(0.5))
    part = select(b, beyond, combine_broadcast(b, "subtract", p.number(1), part), part)
    sine = b.same("log", [b.same("sin", [b.with_number("multiply", part, math.pi)])])
    mirrored = b.same("subtract", [combine_broadcast(b, "subtract", p.number(math.log(math.pi)), sine), made])
    # At zero and below it the whole numbers are poles: their sine is 0, whatever the rest is.
    mirrored = select(b, compare(b, "eq", part, p.number(0)), p.number(math.inf), mirrored)
    made = select(b, p.reflects, mirrored, made)
    infinite = compare(b, "eq", size, p.number(math.inf))
    return b.cast(select(b, infinite, p.number(math.inf), made), b.result(eqn)[1])


@RULES.add("digamma")
def _digamma(b: Builder, eqn: Eqn, xs: Sequence[Value]) -> Value:
    p = _parts(b, eqn, xs[0])
    slope = b.full((), 0, _FLOAT)
    for term, below in p.terms:
        slope = combine_broadcast(b, "subtract", slope, b.same("div", [term, below]))
    made = b.same("add", [p.log_t, b.same("div", [slope, p.total])])
    made = b.same("subtract", [made, combine_broadcast(b, "div", p.number(_G), p.t)])
    # The cotangent of pi x, whose argument is brought near 0 first.
    whole = b.same("abs", [b.same("floor", [b.with_number("add", p.x, 0.5)])])
    angle = b.with_number("multiply", b.same("add", [p.x, whole]), math.pi)
    cotangent = b.same("div", [b.same("cos", [angle]), b.same("sin", [angle])])
    mirrored = b.same("subtract", [made, b.with_number("multiply", cotangent, math.pi)])
    pole = b.same("logical_and", [
        compare(b, "le", p.x, p.number(0)), compare(b, "eq", p.x, b.same("floor", [p.x])),
    ])  # fmt: skip
    made = select(b, pole, p.number(math.nan), select(b, p.reflects, mirrored, made))
    # At zero older JAX gives no number, as at the other poles.
    zero = compare(b, "eq", p.x, p.number(0))
    return b.cast(select(b, zero, p.number(-math.inf), made), b.result(eqn)[1])
