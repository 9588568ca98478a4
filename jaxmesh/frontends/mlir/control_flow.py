"""Loops and branches of functions, `ttcore.while_loop` and `ttcore.case`, as JAX's."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import cast

import jax
import jax.numpy as jnp

from jaxmesh.dialects.attributes import Attributes
from jaxmesh.dialects.program import Op
from jaxmesh.dialects.varying import vary, varying_axes
from jaxmesh.errors import UnsupportedError, VerifyError
from jaxmesh.frontends.jax.retype import widen_carry
from jaxmesh.jaxprs import compat
from jaxmesh.jaxprs.typed import typed
from jaxmesh.jaxprs.untyped import lax

Function = Callable[[Sequence[jax.Array]], list[jax.Array]]
_BOUND = re.compile(r"#ttcore\.loop_bound<(-?[0-9]+)(?:, ([0-9]+) : i32)?>")


def functions_of(attributes: Attributes) -> tuple[str, ...]:
    """Returns the names of the functions that a loop or a branch calls."""
    if "branch_programs" in attributes:
        return tuple(attributes["branch_programs"])
    named = (attributes.get(name) for name in ("body_program", "condition_program"))
    return tuple(name for name in named if name)


def perform_case(op: Op, functions: Sequence[Function], operands: Sequence[jax.Array]) -> list[jax.Array]:
    """Calls the function of a number, the last one for a number out of range, as in StableHLO."""
    index, rest = _scalar(operands[0]).astype(jnp.int32), operands[1:]
    known = [_result_axes(f, rest) for f in functions]
    if len({len(axes) for axes in known}) > 1:
        raise VerifyError(
            f"its functions give {', '.join(str(len(axes)) for axes in known)} results; all give as many."
        )
    joined = [frozenset[str]().union(*row) for row in zip(*known, strict=True)]
    last = len(functions) - 1
    index = jnp.where((index < 0) | (index > last), last, index)
    return list(lax.switch(index, [_varying(f, joined) for f in functions], *rest))


def perform_loop(op: Op, functions: Sequence[Function], operands: Sequence[jax.Array]) -> list[jax.Array]:
    """Repeats a function of the states, and of operands that stay the same, a number of times or under a condition."""
    count = op.attributes["state_count"]
    states, fixed = list(operands[:count]), list(operands[count:])
    body = functions[0]

    def axes_after(axes: list[frozenset[str]]) -> list[frozenset[str]]:
        after = _result_axes(body, [*map(vary, states, axes), *fixed])
        if len(after) != count:
            raise VerifyError(f"its function gives {len(after)} results for {count} states; a loop gives as many.")
        return after

    # A state varies wherever the results of an iteration do.
    axes = widen_carry([varying_axes(x) for x in states], axes_after)
    states, step = [*map(vary, states, axes)], _varying(body, axes)

    def iterate(now: list[jax.Array]) -> list[jax.Array]:
        return step(*now, *fixed)

    def count_one(_: object, now: list[jax.Array]) -> list[jax.Array]:
        return iterate(now)

    def goes_on(now: list[jax.Array]) -> jax.Array:
        return _scalar(functions[1]([*now, *fixed])[0]).astype(bool)

    if len(functions) > 1:
        final = lax.while_loop(goes_on, iterate, states)
    else:
        final = lax.fori_loop(0, _iterations(op, operands), count_one, states)
    return [final[i] for i in op.attributes["output_indices"]]


CONTROL_FLOW: Mapping[str, Callable[[Op, Sequence[Function], Sequence[jax.Array]], list[jax.Array]]] = {
    "ttcore.case": perform_case,
    "ttcore.while_loop": perform_loop,
}


def _iterations(op: Op, operands: Sequence[jax.Array]) -> int | jax.Array:
    first, end, step = (_bound(op, name, operands) for name in ("initial", "limit", "step"))
    if isinstance(step, int) and step < 1:
        raise UnsupportedError(f"counts in steps of {step}; only steps of at least 1 are known.")
    if all(isinstance(n, int) for n in (first, end, step)):
        return max(0, -(-(end - first) // step))
    return jnp.maximum(0, -(-(end - first) // step))


def _bound(op: Op, name: str, operands: Sequence[jax.Array]) -> int | jax.Array:
    """Returns a bound of a counted loop: a number, or the operand whose number it names beside a 0."""
    written = op.attributes.get(name)
    if isinstance(written, tuple):
        return int(cast("tuple[int, ...]", written)[0])
    found = _BOUND.fullmatch(str(written))
    if found is None or (found[2] is not None and found[1] != "0"):
        raise UnsupportedError(f"{name} = {written!s:.60} is not a bound that is known: a number, or 0 and an operand.")
    return int(found[1]) if found[2] is None else _scalar(operands[int(found[2])]).astype(jnp.int32)


def _scalar(x: jax.Array) -> jax.Array:
    if x.size != 1:
        raise VerifyError(f"decides by one number, got {x.dtype}{list(x.shape)}.")
    return x.reshape(())


def _result_axes(function: Function, operands: Sequence[jax.Array]) -> list[frozenset[str]]:
    def flat(*xs: jax.Array) -> list[jax.Array]:
        return function(xs)

    return [compat.varying_axes(a) for a in typed.make_jaxpr(flat)(*operands).out_avals]


def _varying(function: Function, axes: Sequence[frozenset[str]]) -> Callable[..., list[jax.Array]]:
    def run(*xs: jax.Array) -> list[jax.Array]:
        return [vary(y, a) for y, a in zip(function(xs), axes, strict=True)]

    return run
