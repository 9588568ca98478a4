"""Special functions by elementary ones, as StableHLO's own pass expands the operations of CHLO."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo

from jaxmesh.jaxprs.guarded_passes import new_context, run_passes

_jnp: Any = jax.numpy
_op: Any = operator
_ir: Any = ir
_PASS = "func.func(chlo-legalize-to-stablehlo)"


def _same(x: object) -> object:
    return x


_ELEMENTARY: Mapping[str, Callable[..., Any]] = {
    "add": _op.add, "subtract": _op.sub, "multiply": _op.mul, "divide": _op.truediv,
    "power": _op.pow, "negate": _op.neg, "abs": _op.abs, "and": _op.and_, "or": _op.or_,
    "remainder": _jnp.fmod, "log": _jnp.log, "log_plus_one": _jnp.log1p,
    "exponential": _jnp.exp, "exponential_minus_one": _jnp.expm1, "sqrt": _jnp.sqrt, "floor": _jnp.floor,
    "sine": _jnp.sin, "cosine": _jnp.cos, "sign": _jnp.sign, "select": _jnp.where,
    "is_finite": _jnp.isfinite, "broadcast_in_dim": _same,
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
        lowered = jax.jit(jax.lax.bessel_i0e).trace(scalar).lower(lowering_platforms=("cpu",))
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
