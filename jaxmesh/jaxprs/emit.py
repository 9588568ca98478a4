"""Adds equations whose types are known to the current trace, without computing their types again."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np
from jax._src import core as core_lib, effects as effects_lib, source_info_util
from jax._src.interpreters import partial_eval

from jaxmesh.jaxprs import evaluate
from jaxmesh.jaxprs.compat import Jaxpr, Literal, is_high, typed_struct, varying_axes
from jaxmesh.jaxprs.walk import constants, open_jaxpr

_partial_eval: Any = partial_eval
_core: Any = core_lib
_effects: Any = effects_lib
_util: Any = source_info_util


@dataclass(frozen=True, slots=True)
class _Step:
    """An equation: its operands are places among all values, the arguments first, or literals."""

    eqn: Any
    operands: tuple[Any, ...]
    avals: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class _Steps:
    """A jaxpr, in the form in which it is added to a trace."""

    consts: tuple[Any, ...]
    steps: tuple[_Step, ...]
    results: tuple[Any, ...]
    expands: bool

    @classmethod
    def of(cls, jaxpr: Jaxpr) -> _Steps | None:
        """Returns the steps of a closed jaxpr; None if it has references."""
        opened = open_jaxpr(jaxpr)
        places = {v: i for i, v in enumerate([*opened.invars, *opened.constvars])}
        steps, count = list[_Step](), len(places)
        for eqn in opened.eqns:
            if any(isinstance(e, _effects.JaxprInputEffect) for e in eqn.effects):
                return None
            operands = tuple(a if isinstance(a, Literal) else places[a] for a in eqn.invars)
            steps.append(_Step(eqn, operands, tuple(v.aval for v in eqn.outvars)))
            places.update(zip(eqn.outvars, itertools.count(count)))
            count += len(eqn.outvars)
        results = tuple(a if isinstance(a, Literal) else places[a] for a in opened.outvars)
        return cls(tuple(constants(jaxpr).values()), tuple(steps), results, is_high(opened))

    def add(self, trace: Any, args: Sequence[Any], source: Any = None) -> list[Any]:
        """Adds the equations to a trace, by default at their own source locations; returns the results."""
        current = source or _util.current()
        tracer = _partial_eval.DynamicJaxprTracer
        values = [trace.to_jaxpr_tracer(x, source_info=current) for x in (*args, *self.consts)]

        def value(at: Any) -> Any:
            return values[at] if type(at) is int else tracer(trace, at.aval, at, current)

        if self.expands:
            # JAX's binding of a primitive notes it in the trace; adding an equation does not.
            trace.frame.is_high = True
        for step in self.steps:
            eqn, operands = step.eqn, [value(at) for at in step.operands]
            where = source or eqn.source_info
            values += trace.emit_eqn(operands, step.avals, eqn.primitive, eqn.params, eqn.effects, where, eqn.ctx)
        return [value(at) for at in self.results]


def _current_trace() -> Any:
    trace = _core.trace_ctx.trace
    return trace if isinstance(trace, _partial_eval.DynamicJaxprTrace) else None


def emit_eqn(
    prim: Any, operands: Sequence[Any], avals: Sequence[Any], params: dict[str, Any], effects: Any
) -> list[Any] | None:
    """Adds an equation with results of known types to a trace; returns None if there is none."""
    trace, current = _current_trace(), _util.current()
    if trace is None:
        return None
    given = [trace.to_jaxpr_tracer(x, source_info=current) for x in operands]
    return trace.emit_eqn(given, list(avals), prim, params, effects, current)


def emit_jaxpr(jaxpr: Jaxpr, args: Sequence[Any]) -> list[Any]:
    """Evaluates a closed jaxpr inside a trace, for arguments of the types of its inputs."""
    trace, steps = _current_trace(), _Steps.of(jaxpr)
    return evaluate.eval_jaxpr(jaxpr, *args) if trace is None or steps is None else steps.add(trace, args)


@dataclass(eq=False)
class Kept:
    """Computations that come again and again, as those of a model's layers do, as the equations that they make."""

    _seen: set[Hashable] = field(default_factory=set[Hashable])
    _steps: dict[Hashable, tuple[_Steps, bool]] = field(default_factory=dict[Hashable, tuple[_Steps, bool]])

    def __call__(self, key: Hashable, fun: Callable[..., Any], *operands: Any) -> Any:
        """Returns what a function makes of operands, an array or a list of arrays.

        Args:
          key: equal for functions that do the same to operands of the same types.
          fun: the function, which does nothing else, and makes no references.
          operands: tracers, or constants as NumPy's arrays.
        """
        trace = _current_trace()
        given = [x for x in operands if not isinstance(x, np.ndarray)]
        if trace is None or not all(getattr(x, "_trace", None) is trace for x in given):
            return fun(*operands)
        key = key, *[_type_of(x) for x in operands]
        found = self._steps.get(key)
        if found is None:
            # What comes for the second time comes many times.
            if key not in self._seen:
                self._seen.add(key)
                return fun(*operands)
            found = self._steps[key] = _trace_steps(fun, operands)
        steps, several = found
        made = steps.add(trace, given, _util.current())
        return made if several else made[0]


def _type_of(operand: Any) -> Hashable:
    number: Any = operand
    return (number.dtype, number.shape, number.tobytes()) if isinstance(operand, np.ndarray) else operand.aval


def _trace_steps(fun: Callable[..., Any], operands: Sequence[Any]) -> tuple[_Steps, bool]:
    several: list[bool] = []

    def run(*args: Any) -> list[Any]:
        rest = iter(args)
        made = fun(*(x if isinstance(x, np.ndarray) else next(rest) for x in operands))
        several.append(isinstance(made, list))
        return made if several[0] else [made]

    structs = [typed_struct(x.aval, varying_axes(x.aval)) for x in operands if not isinstance(x, np.ndarray)]
    steps = _Steps.of(jax.make_jaxpr(run)(*structs))
    assert steps is not None
    return steps, several[0]
