"""Derivatives of a partitioned program: the program of its derivative, partitioned in turn.

StableHLO has no custom rules and no `stop_gradient`, so the operations that were imported would have other derivatives
than the function. The function's own derivative is taken before it is partitioned.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from jaxmesh.jaxprs import evaluate, walk
from jaxmesh.jaxprs.compat import Jaxpr
from jaxmesh.jaxprs.stablehlo import struct

Shardings = tuple[Any, ...]
Partition = Callable[[Jaxpr, Shardings, Shardings], Callable[..., Sequence[Any]]]
"""Partitions a program, given the shardings at its ends; returns it as a function of flat arguments."""

_BACKWARD_ONLY = ("custom_vjp_call", "reduce_window_max", "reduce_window_min")
"""Primitives whose tangents StableHLO has no linear form of: JAX packs a value and its tangent into one integer."""
_jax: Any = jax


def with_derivatives(
    run: Callable[..., Sequence[Any]], plain: Jaxpr, ins: Shardings, outs: Shardings, partition: Partition
) -> Callable[..., list[Any]]:
    """Returns a partitioned program whose derivatives are those of the function that it was made of.

    Args:
      run: the partitioned program, of flat arguments.
      plain: the closed jaxpr of full values that it was made of.
      ins: the shardings of its arguments.
      outs: the shardings of its results.
      partition: partitions the program of a derivative.
    """
    if any(e.primitive.name.startswith(_BACKWARD_ONLY) for e in walk.all_eqns(plain)):
        return _with_backward(run, plain, ins, outs, partition)
    return _with_tangents(run, plain, ins, outs, partition)


def _is_real(aval: Any) -> bool:
    return jax.dtypes.issubdtype(aval.dtype, np.inexact)


def _real_arguments(plain: Jaxpr) -> list[int]:
    return [i for i, a in enumerate(plain.in_avals) if _is_real(a)]


def _split(plain: Jaxpr) -> Callable[[Sequence[Any]], Callable[..., Any]]:
    """Returns a function that fixes all arguments but the real ones, and gives its real results."""
    real = _real_arguments(plain)

    def fixed(args: Sequence[Any]) -> Callable[..., Any]:
        def of_real(*given: Any) -> list[Any]:
            full = list(args)
            for i, x in zip(real, given, strict=True):
                full[i] = x
            outs = evaluate.eval_jaxpr(plain, *full)
            return [y for y, a in zip(outs, plain.out_avals, strict=True) if _is_real(a)]

        return of_real

    return fixed


def _structs(avals: Sequence[Any]) -> list[Any]:
    return list(map(struct, avals))


def _with_tangents(
    run: Callable[..., Sequence[Any]], plain: Jaxpr, ins: Shardings, outs: Shardings, partition: Partition
) -> Callable[..., list[Any]]:
    real, fixed, count = _real_arguments(plain), _split(plain), len(plain.in_avals)

    @_jax.custom_jvp
    def call(*args: Any) -> tuple[Any, ...]:
        return tuple(run(*args))

    @call.defjvp
    def _(primals: Sequence[Any], tangents: Sequence[Any]) -> Any:
        def tangent(*args: Any) -> list[Any]:
            given = args[:count]
            _, made = jax.jvp(fixed(given), tuple(given[i] for i in real), tuple(args[count:]))
            return list(made)

        avals = [*plain.in_avals, *[plain.in_avals[i] for i in real]]
        program = jax.make_jaxpr(tangent)(*_structs(avals))
        real_outs = [i for i, a in enumerate(plain.out_avals) if _is_real(a)]
        derivative = partition(program, (*ins, *[ins[i] for i in real]), tuple(outs[i] for i in real_outs))
        made = dict(zip(real_outs, derivative(*primals, *[tangents[i] for i in real]), strict=True))
        # Not a result of the derivative: in reverse mode the values must not wait for tangents.
        values = call(*primals)
        zeros = [np.zeros(np.shape(y), jax.dtypes.float0) for y in values]
        return values, tuple(made.get(i, z) for i, z in enumerate(zeros))

    return lambda *args: list(call(*args))


def _with_backward(
    run: Callable[..., Sequence[Any]], plain: Jaxpr, ins: Shardings, outs: Shardings, partition: Partition
) -> Callable[..., list[Any]]:
    real, fixed, count = _real_arguments(plain), _split(plain), len(plain.in_avals)
    real_outs = [i for i, a in enumerate(plain.out_avals) if _is_real(a)]

    @_jax.custom_vjp
    def call(*args: Any) -> tuple[Any, ...]:
        return tuple(run(*args))

    def forward(*args: Any) -> Any:
        return call(*args), args

    def backward(args: Sequence[Any], cotangents: Sequence[Any]) -> tuple[Any, ...]:
        def pull(*given: Any) -> list[Any]:
            first = given[:count]
            pulled: Any = _jax.vjp(fixed(first), *[first[i] for i in real])
            back: Any = pulled[1]
            return list(back(list(given[count:])))

        avals = [*plain.in_avals, *[plain.out_avals[i] for i in real_outs]]
        program = jax.make_jaxpr(pull)(*_structs(avals))
        shardings = (*ins, *[outs[i] for i in real_outs])
        derivative = partition(program, shardings, tuple(ins[i] for i in real))
        made = dict(zip(real, derivative(*args, *[cotangents[i] for i in real_outs]), strict=True))
        zeros = [np.zeros(np.shape(x), jax.dtypes.float0) for x in args]
        return tuple(made.get(i, z) for i, z in enumerate(zeros))

    call.defvjp(forward, backward)
    return lambda *args: list(call(*args))
