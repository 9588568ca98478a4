"""Types loops, branches and custom rules of a region by the mesh axes along which values vary.

A library writes its loops for one device: the carry starts as zeros and differs between devices after one iteration.
JAX's types of varying axes then differ, and JAX asks for a `pcast` in the library. In a region the loop is typed again,
before a derivative sees it: the transpose of the cast is the sum of the cotangents over the devices. JAX's public API
offers no hook, so this module wraps the binding of these primitives and JAX's checks of their types. Outside of regions
a wrapper calls the wrapped function unchanged.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any, cast

import jax
import numpy as np
from jax._src import core, custom_derivatives, linear_util
from jax._src.lax.control_flow import conditionals, loops

from jaxmesh.jaxprs import compat, walk
from jaxmesh.jaxprs.compat import Aval, Axes, Eqn
from jaxmesh.jaxprs.control_flow import Cond, Scan, While, control_flow
from jaxmesh.jaxprs.tracing_state import REGION, traced_as, tracing
from jaxmesh.jaxprs.untyped import PyTree, lax

_loops: Any = loops
_conditionals: Any = conditionals
_custom: Any = custom_derivatives
_linear: Any = linear_util
Retype = Callable[[Eqn, list[Any]], list[Any] | None]
_VALUES: Any = (jax.Array, np.ndarray, np.generic, bool, int, float, complex)


@functools.lru_cache(maxsize=1)
def install(retype: Retype) -> None:
    """Wraps JAX's primitives and checks; a second call does nothing.

    Args:
      retype: binds a loop or a branch with bodies that are typed by what varies; returns None to leave it as it is.
    """
    for primitive in (_loops.scan_p, _loops.while_p, _conditionals.cond_p):
        primitive.bind = _wrap(primitive.bind, functools.partial(_bind_flow, retype, primitive))
    _loops._promote_weak_typed_input = _wrap(_loops._promote_weak_typed_input, _promote)
    _loops._check_carry_type = _wrap(_loops._check_carry_type, _check_alike)
    _conditionals._check_branch_outputs = _wrap(_conditionals._check_branch_outputs, _check_alike)
    for name in ("_flatten_fun_nokwargs", "_flatten_fwd"):
        setattr(_custom, name, _wrap(getattr(_custom, name), _flatten_rule))
    _custom._flatten_jvp = _wrap(_custom._flatten_jvp, _flatten_jvp)
    _custom._flatten_bwd = _wrap(_custom._flatten_bwd, _flatten_bwd)


def _wrap(original: Callable[..., object], inside: Callable[..., object]) -> Callable[..., object]:
    @functools.wraps(original)
    def call(*args: Any, **kwargs: object) -> PyTree:
        return inside(original, *args, **kwargs) if tracing() == REGION else original(*args, **kwargs)

    return call


def _axes(avals: Iterable[object]) -> list[Axes]:
    return list(map(compat.varying_axes, avals))


def _spread(x: object, axes: Axes) -> Any:
    """Casts an array or a number to a type that varies over at least `axes`; returns any other value."""
    if not isinstance(x, _VALUES) or not (missing := axes - compat.varying_axes(jax.typeof(x))):
        return x
    return compat.vary(x, [a for a in jax.sharding.get_abstract_mesh().axis_names if a in missing])


# --- loops and branches ----------------------------------------------------------------------------------------------


def _bind_flow(retype: Retype, primitive: object, original: Any, *operands: object, **params: Any) -> object:
    """Binds a loop or a branch; types it again if its carry or results vary more than JAX's types of it."""
    eqn = walk.new_jaxpr_eqn([walk.fresh_var(jax.typeof(x)) for x in operands], [], primitive, params, core.no_effects)
    flow: Any = control_flow(eqn)
    if not _varies_more(eqn, flow):
        return original(*operands, **params)
    results = [walk.fresh_var(a) for a in flow.bodies[-1].out_avals]
    retyped = retype(eqn.replace(outvars=results), list(operands))
    return original(*operands, **params) if retyped is None else retyped


def _varies_more(eqn: Eqn, flow: Scan | While | Cond) -> bool:
    made = _axes(flow.bodies[-1].out_avals)
    match flow:
        case Scan():
            _, carry, _ = flow.split(_axes(flow.body.in_avals))
            return any(m - c for m, c in zip(made, carry, strict=False))
        case While():
            predicate = compat.varying_axes(flow.predicate(eqn))
            carry = _axes(flow.body.in_avals)[flow.body_consts :]
            return any((m | predicate) - c for m, c in zip(made, carry, strict=True))
        case Cond():
            index = compat.varying_axes(flow.predicate(eqn))
            return any(_axes(b.out_avals) != made for b in flow.branches) or any(index - m for m in made)


def _check_alike(original: Any, *args: Any) -> Any:
    """Checks two trees of types but for varying axes, which `_bind_flow` joins."""
    *rest, first, second = args
    if len(first) == len(second):
        second = second.update([_like(b, a) for a, b in zip(first, second, strict=True)])
    return original(*rest, first, second)


def _promote(original: Any, value: object, given: Aval, wanted: Aval) -> object:
    """Converts a weakly typed start of a carry if an iteration returns another element type."""
    return original(value, given, _like(wanted, given))


def _like(aval: Aval, other: Any) -> Aval:
    """Returns a type that varies over the axes of another type; a type other than an array's is returned unchanged."""
    if not (compat.is_array_type(aval) and compat.is_array_type(other)):
        return aval
    return compat.retype(aval, aval.shape, compat.varying_axes(other))


# --- custom rules ----------------------------------------------------------------------------------------------------


def _call_rule(rule: Any, *args: object) -> object:
    """Calls a rule in a region: JAX calls it when it derives, maybe after the region was traced."""
    with traced_as(REGION):
        return rule(*args)


def _call_jvp_rule(rule: object, *args: object) -> object:
    """Returns the results of a rule; their tangents vary as they do, also tangents that a rule creates as zeros."""
    pair = _call_rule(rule, *args)
    if not isinstance(pair, (tuple, list)) or len(cast("list[object]", pair)) != 2:
        # JAX reports the structure that it expects.
        return cast("object", pair)
    primals, tangents = cast("list[object]", pair)
    if jax.tree.structure(primals) != jax.tree.structure(tangents):
        return cast("object", pair)
    return primals, jax.tree.map(_as_tangent, tangents, primals)


def _as_tangent(x: object, primal: object) -> object:
    return _spread(x, compat.varying_axes(jax.typeof(primal)))


def _call_backward_rule(rule: object, arguments: Any, *args: Any) -> object:
    """Returns the cotangents of a rule; the cotangent of an argument that devices share is the sum over the devices."""
    cotangents: Any = _call_rule(rule, *args)
    if not isinstance(cotangents, (tuple, list)) or len(cast("list[object]", cotangents)) != len(arguments):
        # JAX reports the structure that it expects.
        return cast("object", cotangents)
    rows = zip(cast("list[object]", cotangents), arguments, strict=True)
    return tuple(
        jax.tree.map(_as_cotangent, ct, kinds) if jax.tree.structure(ct) == jax.tree.structure(kinds) else ct
        for ct, kinds in rows
    )


def _as_cotangent(x: object, kind: object) -> object:
    axes = compat.varying_axes(kind)
    if not isinstance(x, _VALUES):
        return x
    shared = [a for a in jax.sharding.get_abstract_mesh().axis_names if a in compat.varying_axes(jax.typeof(x)) - axes]
    return _spread(lax.psum(x, tuple(shared)) if shared else x, axes)


_in_region: Any = _linear.transformation2(_call_rule)
_jvp: Any = _linear.transformation2(_call_jvp_rule)
_bwd: Any = _linear.transformation2(_call_backward_rule)


def _flatten_rule(original: Any, rule: object, *args: Any) -> object:
    return original(_in_region(rule), *args)


def _flatten_jvp(original: Any, rule: object, *args: Any) -> object:
    return original(_jvp(rule), *args)


def _flatten_bwd(original: Any, rule: object, tree: PyTree, avals: Sequence[Aval], *args: Any) -> object:
    return original(_bwd(rule, jax.tree.unflatten(tree, avals)), tree, avals, *args)
