"""Functions of real numbers that TTIR lacks: hyperbolic, inverse and Bessel functions, gamma and derivatives, zeta.

They are computed by elementary ones, as StableHLO's own pass expands the operations of CHLO.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax.typing import DTypeLike
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo

from jaxmesh.dialects.op import Results
from jaxmesh.dialects.program import Value
from jaxmesh.jaxprs.compat import Eqn
from jaxmesh.jaxprs.guarded_passes import new_context, run_passes
from jaxmesh.jaxprs.special import ITERATED
from jaxmesh.jaxprs.typed import typed
from jaxmesh.jaxprs.untyped import jnp
from jaxmesh.passes.flat_builder import Rules
from jaxmesh.passes.flatten.builder import Builder, Rule, missing
from jaxmesh.passes.flatten.decompositions import Params, decomposed

RULES: Rules[Rule] = Rules()

_op: Any = operator
_ir: Any = ir
_PASS = "func.func(chlo-legalize-to-stablehlo)"


def _same(x: object) -> object:
    return x


_ELEMENTARY: Mapping[str, Callable[..., Any]] = {
    "add": _op.add, "subtract": _op.sub, "multiply": _op.mul, "divide": _op.truediv,
    "power": _op.pow, "negate": _op.neg, "abs": _op.abs, "and": _op.and_, "or": _op.or_,
    "remainder": jnp.fmod, "log": jnp.log, "log_plus_one": jnp.log1p,
    "exponential": jnp.exp, "exponential_minus_one": jnp.expm1, "sqrt": jnp.sqrt, "floor": jnp.floor,
    "sine": jnp.sin, "cosine": jnp.cos, "sign": jnp.sign, "select": jnp.where,
    "is_finite": jnp.isfinite, "broadcast_in_dim": _same,
}  # fmt: skip
"""By the operation of StableHLO; the operands are scalars there, and arrays here."""


def expanded(name: str, *xs: Any) -> Any:
    """Computes the function of float32 or float64 that `jax.lax` has under a name, by elementary functions."""
    values = list(xs)
    for function, operands in _steps(name, len(xs), f"f{8 * xs[0].dtype.itemsize}"):
        values.append(function(*(values[i] for i in operands)))
    return values[-1]


@functools.lru_cache(64)
def _steps(name: str, count: int, element: str) -> list[tuple[Callable[..., Any], Sequence[int]]]:
    """Returns the operations of a function of scalars in order, each with the numbers of the values that it takes."""
    names, kind = [f"%{i}" for i in range(count)], f"tensor<{element}>"
    arguments = ", ".join(f"{x}: {kind}" for x in names)
    call = f"%r = chlo.{name} {', '.join(names)} : {', '.join([kind] * count)} -> {kind}"
    text = f"func.func @main({arguments}) -> {kind} {{\n  {call}\n  return %r : {kind}\n}}"
    if name == "bessel_i0e":
        # CHLO lacks it, and JAX lowers it to elementary functions.
        scalar = jax.ShapeDtypeStruct((), f"float{element[1:]}")
        lowered = typed.jit(jax.lax.bessel_i0e).trace(scalar).lower(lowering_platforms=("cpu",))
        text = lowered.as_text()
    passes = stablehlo
    passes.register_stablehlo_passes()
    with new_context() as context, _ir.Location.unknown():
        module = _ir.Module.parse(text, context).operation
        run_passes(module, [_PASS])
        (block,) = next(f for f in module.regions[0].blocks[0].operations).regions[0].blocks
        numbers = {argument: i for i, argument in enumerate(block.arguments)}
        steps: list[tuple[Callable[..., object], Sequence[int]]] = []
        *operations, returned = block.operations
        for op in operations:
            steps.append((_function(op), [numbers[x] for x in op.operands]))
            numbers[op.results[0]] = len(numbers)
        steps.append((_same, [numbers[returned.operands[0]]]))
    return steps


def _function(op: Any) -> Callable[..., object]:
    name = op.operation.name.removeprefix("stablehlo.")
    if name == "constant":
        number = np.array(op.attributes["value"]).reshape(())[()]
        return lambda: number
    if name == "compare":
        direction = str(op.attributes["comparison_direction"]).split()[-1].rstrip(">").lower()
        return getattr(_op, direction)
    return _ELEMENTARY[name]


def _expanded(name: str, params: Params, *xs: jax.Array) -> Results:
    """Computes in float32 at least, and rounds once."""
    (own,) = {x.dtype for x in xs}
    wide = jnp.promote_types(own, jnp.float32)
    return expanded(name, *(x.astype(wide) for x in xs)).astype(own)


for _name in (
    "sinh", "cosh", "acosh", "atanh", "erf_inv", "bessel_i0e", "bessel_i1e", "lgamma", "digamma", "zeta", "polygamma",
):  # fmt: skip
    decomposed(RULES, _name)(functools.partial(_expanded, _name))


def _iterated(name: str, params: Params, *xs: jax.Array) -> jax.Array:
    return ITERATED[name](*xs)


for _name in ITERATED:
    decomposed(RULES, _name)(functools.partial(_iterated, _name))


# --- the next number -------------------------------------------------------------------------------------------------


@RULES.add("nextafter")
def _nextafter(b: Builder, eqn: Eqn, xs: Sequence[Value]) -> Sequence[Value]:
    """Returns the next number of the element type. Subnormal numbers of float32 are zero, as on the devices."""
    dtype = b.result(eqn)[1]
    if dtype.itemsize > 4:
        raise missing(eqn, f"it is composed for float32, bfloat16 and float16, not for {dtype}")
    return b.composed(_next, xs, {})


def _next(params: Params, x: jax.Array, y: jax.Array) -> jax.Array:
    dtype, info = x.dtype, jnp.finfo(x.dtype)
    wide = x.astype(jnp.float32)
    up = y.astype(jnp.float32) > wide
    # True where the step would be subnormal, or steps between subnormal numbers.
    small = abs(wide) < 2.0**-90
    scaled = jnp.where(small, wide * 2.0**32, wide)
    # A little more than half a step, which rounding makes a whole one (S. Rump et al., "Computing predecessor and
    # successor in rounding to nearest", BIT 49, 2009).
    half = 2.0 ** -(int(info.nmant) + 1)
    step = abs(scaled) * (half * (1 + 2 * half))
    if dtype == jnp.float16:
        step = jnp.maximum(step, 2.0**-24)
    moved = jnp.where(up, scaled + step, scaled - step)
    moved = jnp.where(small, moved * 2.0**-32, moved).astype(dtype)
    # From zero and infinity, between equal numbers, and from or to NaN.
    least, most = float(info.smallest_subnormal), float(info.max)
    moved = jnp.where(x == 0, _either(up, least, -least, dtype), moved)
    moved = jnp.where(abs(x) == np.inf, _either(up, -most, most, dtype), moved)
    moved = jnp.where(x == y, y, moved)
    return jnp.where((x != x) | (y != y), np.nan, moved)


def _either(condition: jax.Array, x: float, y: float, dtype: DTypeLike) -> jax.Array:
    return jnp.where(condition, jnp.asarray(x, dtype), jnp.asarray(y, dtype))
