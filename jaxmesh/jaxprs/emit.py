"""Adds equations whose types are known to the current trace, without computing their types again."""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, cast

import jax
import numpy as np
from jax._src import core as core_lib, effects as effects_lib, source_info_util
from jax._src.interpreters import partial_eval

from jaxmesh.jaxprs import evaluate
from jaxmesh.jaxprs.caches import Cache, settings
from jaxmesh.jaxprs.compat import Atom, Aval, Eqn, Jaxpr, Literal, Var, is_high
from jaxmesh.jaxprs.untyped import Array, Params, PyTree
from jaxmesh.jaxprs.walk import constants, jaxprs_in, open_jaxpr

_partial_eval: Any = partial_eval
_core: Any = core_lib
_effects: Any = effects_lib
_util: Any = source_info_util


class _Step(NamedTuple):
    """An equation: its operands are places among all values, the arguments first, or literals."""

    operands: tuple[Any, ...]
    avals: tuple[Aval, ...]
    primitive: Any
    params: Params
    effects: Any
    ctx: Any
    source: Any


_Row = tuple[Eqn, Sequence[Atom]]
"""An equation, and its operands."""


@dataclass(frozen=True, slots=True)
class Steps:
    """A jaxpr as the steps that add it to a trace."""

    consts: tuple[Any, ...]
    steps: tuple[_Step, ...]
    results: tuple[Any, ...]
    expands: bool

    @classmethod
    def of(
        cls,
        eqns: Sequence[_Row],
        inputs: Sequence[Var],
        outputs: Sequence[Atom],
        known: Mapping[Var, Any],
        expands: bool,
        placed: bool,
    ) -> Steps | None:
        """Returns the steps of equations; None if they have references, or read more than inputs and `known` values.

        They have source locations if they are `placed`.
        """
        if any(isinstance(e, _effects.JaxprInputEffect) for eqn, _ in eqns for e in eqn.effects):
            return None
        given = {*inputs, *(v for eqn, _ in eqns for v in eqn.outvars)}
        read = (a for atoms in (*(atoms for _, atoms in eqns), outputs) for a in atoms if not isinstance(a, Literal))
        consts = [v for v in dict.fromkeys(read) if v not in given]
        if any(v not in known for v in consts):
            return None
        places = {v: i for i, v in enumerate([*inputs, *consts])}
        steps, count = list[_Step](), len(inputs) + len(consts)
        for eqn, atoms in eqns:
            operands = tuple(a if isinstance(a, Literal) else places[a] for a in atoms)
            of_eqn = eqn.primitive, eqn.params, eqn.effects, eqn.ctx, eqn.source_info if placed else None
            steps.append(_Step(operands, tuple(v.aval for v in eqn.outvars), *of_eqn))
            places.update(zip(eqn.outvars, itertools.count(count)))
            count += len(eqn.outvars)
        results = tuple(a if isinstance(a, Literal) else places[a] for a in outputs)
        return cls(tuple(known[v] for v in consts), tuple(steps), results, expands)

    @classmethod
    def of_jaxpr(cls, jaxpr: Jaxpr) -> Steps | None:
        """Returns the steps of a closed jaxpr; None if it has references."""
        body = open_jaxpr(jaxpr)
        rows = [(e, e.invars) for e in body.eqns]
        return cls.of(rows, body.invars, body.outvars, constants(jaxpr), is_high(body), placed=True)

    def add(self, trace: Any, args: Sequence[jax.Array], source: Any = None) -> list[Any]:
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
            operands, where = [value(at) for at in step.operands], source or step.source
            values += trace.emit_eqn(operands, step.avals, step.primitive, step.params, step.effects, where, step.ctx)
        return [value(at) for at in self.results]

    @property
    def repeats(self) -> bool:
        """True if `repeat` adds them: they read no constants, and give no literals."""
        return not self.consts and all(type(at) is int for at in self.results)

    @property
    def is_shared(self) -> bool:
        """True if other programs may add them, too: bodies would have the source locations of this one."""
        bodies = (jaxprs_in(step.params.values()) for step in self.steps)
        return self.repeats and not self.expands and not any(bodies)

    def repeat(self, trace: Any, operands: Sequence[Array | Atom], source: Any) -> list[Var]:
        """Adds equations to a trace, for variables or constants; returns the results' variables; see `repeats`."""
        frame, values = trace.frame, [x for x in operands if type(x) is not np.ndarray]
        frame.is_high = frame.is_high or self.expands
        for places, avals, *of_eqn, _ in self.steps:
            # As JAX adds equations of a jaxpr to a trace: without tracers.
            results = [frame.gensym(a) for a in avals]
            invars = [values[at] if type(at) is int else at for at in places]
            primitive, params, effects, ctx = of_eqn
            frame.tracing_eqns.append(_core.JaxprEqn(invars, results, primitive, params, effects, source, ctx))
            values += results
        return [values[at] for at in self.results]


def as_tracer(trace: object, x: object) -> Any:
    """Returns a tracer of a variable; another value unchanged."""
    return _partial_eval.DynamicJaxprTracer(trace, x.aval, x) if isinstance(x, Var) else x


def as_variable(x: object) -> object:
    """Returns the variable of a tracer that stands for any value of its type; another value unchanged."""
    return x if type_in_trace(x) is None else getattr(x, "val", x)


def current_trace() -> Any:
    """Returns the trace to a jaxpr that runs now, or None."""
    trace = _core.trace_ctx.trace
    return trace if isinstance(trace, _partial_eval.DynamicJaxprTrace) else None


def emit_eqn(
    prim: object, operands: Sequence[object], avals: Sequence[Aval], params: Mapping[str, object], effects: object
) -> list[Any] | None:
    """Adds an equation with results of known types to the current trace; returns None without a trace."""
    trace, current = current_trace(), _util.current()
    if trace is None:
        return None
    given = [trace.to_jaxpr_tracer(x, source_info=current) for x in operands]
    return trace.emit_eqn(given, list(avals), prim, params, effects, current)


def emit_jaxpr(jaxpr: Jaxpr, args: Sequence[jax.Array]) -> list[Any]:
    """Evaluates a closed jaxpr inside a trace, for arguments of the types of its inputs."""
    trace, steps = current_trace(), Steps.of_jaxpr(jaxpr)
    return evaluate.eval_jaxpr(jaxpr, *args) if trace is None or steps is None else steps.add(trace, args)


def call_jaxpr(jaxpr: Jaxpr, args: Sequence[jax.Array]) -> list[jax.Array]:
    """Adds one call of a closed jaxpr without constants to the current trace, for arguments of its types."""
    body = open_jaxpr(jaxpr)
    called = emit_eqn(_core.closed_call_p, args, [a.aval for a in body.outvars], {"call_jaxpr": jaxpr}, body.effects)
    assert called is not None
    return called


_Known = tuple[Steps | None, bool]
"""The steps of a function, and True if it gives a list of arrays."""
_shared = Cache[_Known](2048, "equations of ops on shards")


@dataclass(eq=False)
class Kept:
    """A cache of repeated computations, such as a model's layers: the equations that each adds to a trace."""

    _steps: dict[Hashable, _Known] = field(default_factory=dict[Hashable, _Known])

    def __call__(self, key: Hashable, fun: Callable[..., Any], *operands: Any) -> PyTree:
        """Returns what a function makes of operands, an array or a list of arrays.

        Args:
          key: equal for functions that do the same to operands of the same types.
          fun: the function, which does nothing else, and makes no references.
          operands: tracers, or constants as NumPy's arrays.
        """
        return self._made(key, fun, operands, shares=False)[0]

    def made(self, key: Hashable, fun: Callable[..., Any], *operands: Any) -> tuple[PyTree, Steps | None]:
        """Returns also the steps of a call with one computed result, if they read its operands alone; else None.

        The key is equal in other programs, too, if the function does the same there.
        """
        return self._made(key, fun, operands, shares=True)

    def _made(
        self, key: Hashable, fun: Callable[..., Any], operands: Sequence[Any], *, shares: bool
    ) -> tuple[PyTree, Steps | None]:
        trace, types = current_trace(), [type_in_trace(x) for x in operands]
        if trace is None or None in types:
            return fun(*operands), None
        key, given = (key, *types, alike(operands)), [x for x in operands if not isinstance(x, np.ndarray)]
        known = self._steps.get(key)
        anywhere = (settings(), key) if known is None and shares else None
        if anywhere is not None:
            known = _shared.get(anywhere)
        if known is None:
            start = len(trace.frame.tracing_eqns)
            made = fun(*operands)
            steps = _added_since(trace, start, given, made)
            self._steps[key] = steps, isinstance(made, list)
            if anywhere is not None and steps is not None and steps.is_shared:
                _shared.put(anywhere, self._steps[key])
        else:
            self._steps[key] = steps, several = known
            results = fun(*operands) if steps is None else steps.add(trace, given, _util.current())
            made = results if several or steps is None else results[0]
        return made, steps if steps and steps.repeats and len(steps.results) == 1 else None


def alike(operands: Sequence[object]) -> Hashable:
    """Returns which operands are the same tracer or variable: equations do not say which of them they read.

    >>> x, y = object(), object()
    >>> alike([x, y, y])
    (0, 1, 1)
    """
    numbers = [id(getattr(x, "val", x)) for x in operands]
    return tuple(map(numbers.index, numbers)) if len(numbers) > 1 else ()


def type_in_trace(operand: Any) -> Hashable:
    """Returns the key of a constant, or of a tracer of the current trace that stands for any value of its type.

    Returns None for other operands: JAX may compute with a known value.
    """
    number: Any = operand
    if isinstance(operand, np.ndarray):
        return number.dtype, number.shape, number.tobytes()
    trace = current_trace()
    if trace is None or getattr(operand, "_trace", None) is not trace or isinstance(operand.val, Literal):
        return None
    return None if operand.val in trace.frame.constvar_to_val else operand.aval


def current_source() -> object:
    """Returns the source location of the equations that are added now."""
    return _util.current()


def named(source: Any, scope: str) -> Any:
    """Returns a source location inside of a further `jax.named_scope`."""
    return source.replace(name_stack=source.name_stack.extend(scope))


def _added_since(trace: Any, start: int, given: Sequence[Any], made: Any) -> Steps | None:
    """Returns the steps that a computation has added to a trace; None if it made, or read, other values."""
    results = cast("list[Any]", made) if isinstance(made, list) else [made]
    if not all(getattr(y, "_trace", None) is trace for y in results):
        return None
    # A trace has weak references to equations that nothing may read.
    rows: list[Any] = [e() if isinstance(e, weakref.ref) else e for e in trace.frame.tracing_eqns[start:]]
    eqns = [(e, [x.val for x in e.in_tracers]) for e in rows if e is not None]
    inputs: list[Var] = [x.val for x in given]
    outputs: list[Atom] = [y.val for y in results]
    return Steps.of(eqns, inputs, outputs, trace.frame.constvar_to_val, bool(trace.frame.is_high), placed=False)
