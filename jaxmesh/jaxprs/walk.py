"""Functions that take jaxprs apart and build them; equal arrays among their constants are one."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Generic, TypeVar

import jax
import numpy as np
from jax._src import core, pretty_printer
from jax._src.lax import lax
from jax.sharding import AbstractMesh

from jaxmesh.errors import UnsupportedError
from jaxmesh.jaxprs.compat import Atom, Aval, ClosedJaxpr, Eqn, Jaxpr, Primitive, Var, retype, varying_axes
from jaxmesh.jaxprs.untyped import Array, Params

_core: Any = core
new_jaxpr_eqn: Callable[..., Eqn] = _core.new_jaxpr_eqn

R = TypeVar("R")
_ROW: Any = (tuple, list)
_class: Callable[[object], type[object]] = type
_bare: set[type[object]] = set()  # Classes of parameters known to contain no jaxprs.
_fresh = core.gensym()


def open_jaxpr(jaxpr: Jaxpr) -> Jaxpr:
    """Returns the jaxpr without the values of its constants."""
    return jaxpr.jaxpr if isinstance(jaxpr, ClosedJaxpr) else jaxpr


def close(jaxpr: Jaxpr, consts: Sequence[jax.Array]) -> Jaxpr:
    """Returns the jaxpr with values for its constants."""
    return ClosedJaxpr(jaxpr, list(consts))


def is_jaxpr(value: object) -> bool:
    """Returns True for an open and for a closed jaxpr."""
    return isinstance(value, (core.Jaxpr, ClosedJaxpr))


def constants(jaxpr: Jaxpr) -> dict[Any, Any]:
    """Returns the values of a jaxpr's constants, by variable; none for an open jaxpr."""
    if not isinstance(jaxpr, ClosedJaxpr):
        return {}
    return dict(zip(jaxpr.jaxpr.constvars, jaxpr.consts, strict=True))


class Memo(Generic[R]):
    """Results that are computed once per jaxpr, by its identity, and per further key.

    JAX's own caches go by the identity of jaxprs, so a body that several equations share must stay shared when it is
    rewritten.

    >>> memo, jaxpr = Memo[int](), jax.make_jaxpr(lambda x: x + 1)(1)
    >>> memo.get(jaxpr, lambda: len(jaxpr.eqns)), memo.get(jaxpr, lambda: 0), memo.get(jaxpr, lambda: 0, "key")
    (1, 1, 0)
    """

    def __init__(self) -> None:
        self._known: dict[tuple[Hashable, ...], tuple[Jaxpr, R]] = {}

    def get(self, jaxpr: Jaxpr, compute: Callable[[], R], *key: Hashable) -> R:
        """Returns the result for a jaxpr and a key; computes it on the first call."""
        at = (id(jaxpr), *key)
        known = self._known.get(at)
        if known is None:
            # The jaxpr is kept beside its result, so that its id is not used again.
            known = self._known[at] = (jaxpr, compute())
        return known[1]


def rebuild(
    jaxpr: Jaxpr, constvars: Sequence[Var], invars: Sequence[Var], eqns: Sequence[Eqn], outvars: Sequence[Atom]
) -> Jaxpr:
    """Returns an open jaxpr with other contents; debug info keeps its names where the counts agree."""
    body = open_jaxpr(jaxpr)
    info = body.debug_info
    if len(body.invars) != len(invars) or len(body.outvars) != len(outvars):
        info = info.with_unknown_names()
    return body.replace(
        constvars=list(constvars), invars=list(invars), eqns=list(eqns), outvars=list(outvars), debug_info=info
    )


def with_eqns(jaxpr: Jaxpr, eqns: Sequence[Eqn], outvars: Sequence[Atom]) -> Jaxpr:
    """Returns the jaxpr, open or closed as before, with other equations; the same object if nothing is another."""
    body = open_jaxpr(jaxpr)
    if _is_same(eqns, body.eqns) and _is_same(outvars, body.outvars):
        return jaxpr
    return close_like(jaxpr, rebuild(body, body.constvars, body.invars, eqns, outvars))


def _is_same(new: Sequence[Atom | Eqn], old: Sequence[Atom | Eqn]) -> bool:
    return len(new) == len(old) and all(a is b for a, b in zip(new, old, strict=True))


def alone(eqn: Eqn, body: Jaxpr) -> Jaxpr:
    """Returns a closed jaxpr of one equation of a body, from its operands to its results."""
    operands = list(dict.fromkeys(a for a in eqn.invars if isinstance(a, Var)))
    return close(rebuild(body, [], operands, [eqn], list(eqn.outvars)), ())


def close_like(jaxpr: Jaxpr, body: Jaxpr) -> Jaxpr:
    """Closes `body` with the constants of `jaxpr`, if `jaxpr` is closed."""
    return close(body, jaxpr.consts) if isinstance(jaxpr, ClosedJaxpr) else body


def as_closed(jaxpr: Jaxpr) -> Jaxpr:
    """Returns a closed jaxpr unchanged, and an open one without constants."""
    return jaxpr if isinstance(jaxpr, ClosedJaxpr) else close(jaxpr, ())


def in_form_of(jaxpr: Jaxpr, typed: Jaxpr) -> Jaxpr:
    """Returns the closed jaxpr `typed` in the form, open or closed, of `jaxpr`; an open jaxpr cannot hold constants."""
    if isinstance(jaxpr, ClosedJaxpr):
        return typed
    if len(typed.consts):
        raise UnsupportedError(f"a body without a place for constants was given {len(typed.consts)} when traced again.")
    return open_jaxpr(typed)


def substitute(atoms: Sequence[Atom], swap: Mapping[Var, Atom]) -> list[Atom]:
    """Returns the atoms, with the variables in `swap` replaced."""
    return [swap.get(a, a) if isinstance(a, Var) else a for a in atoms]


def fresh_var(aval: Aval) -> Var:
    """Returns a new variable."""
    return _fresh(aval)


def new_eqn(prim: Any, invars: Sequence[Atom], params: Params, like: Eqn) -> Eqn:
    """Returns a single-result equation, typed by the primitive's rule, with source location and context of `like`."""
    with like.ctx.manager:
        aval, effects = prim.abstract_eval(*[v.aval for v in invars], **params)
    return new_jaxpr_eqn(list(invars), [fresh_var(aval)], prim, dict(params), effects, like.source_info, like.ctx)


def context_on(eqn: Eqn, mesh: AbstractMesh) -> object:
    """Returns the tracing context of an equation, with another mesh."""
    with eqn.ctx.manager, jax.sharding.use_abstract_mesh(mesh):
        return new_jaxpr_eqn([], [], eqn.primitive, {}, core.no_effects).ctx


def mesh_of(eqn: Eqn) -> AbstractMesh:
    """Returns the abstract mesh that was set when an equation was traced."""
    with eqn.ctx.manager:
        return jax.sharding.get_abstract_mesh()


def copy_eqn(eqn: Eqn) -> Eqn:
    """Replaces an equation that changes only types by a copy of its operand."""
    return eqn.replace(primitive=lax.copy_p, params={})


def reshape_eqn(operand: Atom, shape: Sequence[int], like: Eqn) -> Eqn:
    """Returns a `reshape` equation, typed here, because JAX's rule reads a tracing context that has ended."""
    out = fresh_var(retype(operand.aval, shape, varying_axes(operand.aval)))
    params = {"new_sizes": tuple(shape), "dimensions": None, "sharding": None}
    prim = lax.reshape_p
    return new_jaxpr_eqn([operand], [out], prim, params, core.no_effects, like.source_info, like.ctx)


def sub_jaxprs(eqn: Eqn) -> list[Jaxpr]:
    """Returns every jaxpr among an equation's parameters, also inside tuples, such as the branches of `cond`."""
    values = eqn.params.values()
    return [] if _bare.issuperset(map(type, values)) else jaxprs_in(values)


def jaxprs_in(values: Iterable[Any]) -> list[Jaxpr]:
    """Returns every jaxpr among values, also inside tuples and lists."""
    jaxprs: list[Jaxpr] = []
    for value in values:
        kind = _class(value)
        if kind in _bare or (kind is tuple and _bare.issuperset(map(_class, value))):
            continue
        if is_jaxpr(value):
            jaxprs.append(value)
        elif isinstance(value, _ROW):
            jaxprs += jaxprs_in(value)
        else:
            _bare.add(kind)
    return jaxprs


def all_eqns(jaxpr: Jaxpr) -> Iterator[Eqn]:
    """Yields every equation at every depth; each shared sub-jaxpr is visited once."""
    seen: set[int] = set()
    stack = [jaxpr]
    while stack:
        current = stack.pop()
        if id(current) not in seen:
            seen.add(id(current))
            for eqn in current.eqns:
                yield eqn
                stack.extend(sub_jaxprs(eqn))


def is_ordered(eqn: Eqn) -> bool:
    """Returns True if an equation must keep its order: it has effects other than naming a mesh axis."""
    return bool(eqn.effects) and any(type(e).__name__ != "NamedAxisEffect" for e in eqn.effects)


def text(jaxpr: Jaxpr) -> str:
    """Returns the jaxpr as text, without colours."""
    return jaxpr.pretty_print(use_color=False)


# --- equal constants -------------------------------------------------------------------------------------------------

_PART = 1 << 20
"""The elements that are compared at once."""


def sample(x: Array) -> tuple[Hashable, ...]:
    """Returns the type and a few elements of an array, which differ for most arrays that are not equal."""
    few = tuple(slice(None, None, max(1, n // 4)) for n in x.shape)
    return x.shape, x.dtype, x[few].tobytes()


def same_bits(x: Array, y: Array) -> bool:
    """Returns True if all bits of two arrays of one shape and dtype are equal; stops at the first parts that differ."""
    if x is y:
        return True
    if x.size > _PART and x.ndim:
        axis = next(d for d, n in enumerate(x.shape) if n > 1)
        split: Any = np.array_split
        parts = (split(v, min(x.shape[axis], -(-x.size // _PART)), axis) for v in (x, y))
        return all(map(same_bits, *parts))
    a, b = (np.ascontiguousarray(v).reshape(-1).view(np.uint8) for v in (x, y))
    words = a.size // 8 * 8
    return bool((a[:words].view(np.uint64) == b[:words].view(np.uint64)).all() and (a[words:] == b[words:]).all())


class Contents:
    """Arrays by shape, element type and bytes: zeros of two signs differ, and a NaN equals itself.

    >>> contents = Contents()
    >>> first = contents.first(np.arange(3))
    >>> contents.first(np.arange(3)) is first, contents.first(np.arange(4)) is first
    (True, False)
    """

    def __init__(self) -> None:
        self._alike: dict[Any, list[Array]] = {}

    def first(self, array: Array) -> Array:
        """Returns the first array that was given with this content: the given one, if it is the first."""
        # One element in memory, which may stand for more than memory holds.
        is_one = not any(array.strides)
        few = array[(slice(1),) * array.ndim] if is_one else array
        alike = self._alike.setdefault((array.shape, is_one, *sample(few)), [])
        found = next((a for a in alike if is_one or same_bits(a, array)), None)
        if found is None:
            alike.append(found := array)
        return found


# --- names ------------------------------------------------------------------------------------------------------------


_row_p = Primitive("jaxmesh_row")


def variable_names(jaxpr: Jaxpr) -> Mapping[Var, str]:
    """Returns the name that each variable has in the text of a jaxpr.

    >>> import jax, jax.numpy as jnp
    >>> sorted(variable_names(jax.make_jaxpr(jnp.sin)(1.0)).values())
    ['a', 'b']
    """
    # JAX keeps the names in the context of one printing. The text of a long program takes more memory than the program.
    contexts, body = list[Any](), open_jaxpr(jaxpr)
    end = new_jaxpr_eqn([], [], _row_p, {"eqn": None, "contexts": contexts}, core.no_effects)
    rows = [e if sub_jaxprs(e) else e.replace(primitive=_row_p, params={**end.params, "eqn": e}) for e in body.eqns]
    text(rebuild(body, body.constvars, body.invars, [*rows, end], body.outvars))
    return dict(contexts[0].var_names)


def _print_row(eqn: Eqn, context: object, settings: object) -> object:
    eqn.params["contexts"][:] = [context]
    if (row := eqn.params["eqn"]) is not None and row.primitive in _core.pp_eqn_rules:
        _core.pp_eqn(row, context, settings)
    elif row is not None:
        # JAX's own order, without the text of the parameters.
        for atom in (*row.outvars, *row.invars):
            _core.pp_var(atom, context)
    return pretty_printer.nil()


_core.pp_eqn_rules[_row_p] = _print_row
