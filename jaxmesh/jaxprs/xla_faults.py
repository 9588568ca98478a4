"""Changes of a program before XLA sees it, which then computes what JAX defines: starts of slices, layouts.

XLA (of JAX before 0.12) replaces a slice of a slice by one slice from the sum of their starts, and clamps the sum
alone. It does so, too, with a gather of one element, which it makes a slice. A scatter of one update reads such a slice
before it drops an update out of range; a barrier separates it from a slice before it.

XLA's CPU client writes an update in place over values that the update is read from, if only a view of them is written:
`x.at[1:3].set(x[:2]).reshape(8, 4, 1)` is wrong. Barriers keep views away from such an update.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax
import numpy as np
from jax._src import layout, pjit
from jax.sharding import AbstractMesh

from jaxmesh.jaxprs import compat, evaluate, walk
from jaxmesh.jaxprs.compat import Atom, Eqn, Jaxpr, Var
from jaxmesh.jaxprs.control_flow import CALLS
from jaxmesh.jaxprs.rewrite import at_every_depth, map_sub_jaxprs, with_operands
from jaxmesh.jaxprs.typed import typed
from jaxmesh.jaxprs.untyped import lax

_layout: Any = layout
_pjit: Any = pjit


_CLAMPS_SUMS = jax.__version_info__ < (0, 12)
_UPDATES = ("dynamic_update_slice", "scatter")
_VIEWS = {"reshape", "squeeze", "expand_dims", "transpose", "broadcast_in_dim", *CALLS}


def as_defined(eqns: Iterable[Eqn]) -> list[Eqn]:
    """Returns equations that XLA's CPU client computes as JAX defines them."""
    return keep_views_apart(keep_rows(clamp_starts(eqns)))


def clamp_starts(eqns: Iterable[Eqn]) -> list[Eqn]:
    """Returns equations with the computed starts of slices and of gathers of one element clamped, at every depth."""
    # A barrier before a scatter in a loop makes later versions copy the operand in each iteration.
    return _at_every_depth(eqns, _each(_clamped), ("dynamic_slice", "gather", "scatter")) if _CLAMPS_SUMS else [*eqns]


def keep_rows(eqns: Iterable[Eqn]) -> list[Eqn]:
    """Returns equations whose Fourier transforms keep the elements of a row together, at every depth.

    XLA's CPU client runs no transform in another order, but plans one before it gathers columns from devices.
    """
    return _at_every_depth(eqns, _each(_in_rows), ("fft",))


def keep_views_apart(eqns: Iterable[Eqn]) -> list[Eqn]:
    """Returns equations with barriers around the updates of what they are read from, at every depth."""
    return _at_every_depth(eqns, _apart, _UPDATES)


def _each(change: Callable[[Eqn], list[Eqn]]) -> Callable[[Sequence[Eqn]], list[Eqn]]:
    return lambda eqns: [new for eqn in eqns for new in change(eqn)]


def _at_every_depth(
    eqns: Iterable[Eqn], change: Callable[[Sequence[Eqn]], list[Eqn]], primitives: tuple[str, ...]
) -> list[Eqn]:
    def change_jaxpr(jaxpr: Jaxpr, inside: Callable[[Jaxpr], Jaxpr]) -> Jaxpr:
        # A body without such primitives stays the same object also if it has custom rules, which are wrapped anew.
        if not any(e.primitive.name.startswith(primitives) for e in walk.all_eqns(jaxpr)):
            return jaxpr
        body = walk.open_jaxpr(jaxpr)
        return walk.with_eqns(jaxpr, change_each(body.eqns, inside), body.outvars)

    def change_each(eqns: Iterable[Eqn], inside: Callable[[Jaxpr], Jaxpr]) -> list[Eqn]:
        return change([map_sub_jaxprs(eqn, inside) for eqn in eqns])

    return change_each(eqns, at_every_depth(change_jaxpr))


def _in_rows(eqn: Eqn) -> list[Eqn]:
    """Returns an equation, and after a Fourier transform the layout of its result."""
    rank = len(eqn.outvars[0].aval.shape) if eqn.primitive.name == "fft" else 0
    if rank < 2:
        return [eqn]
    transformed = walk.fresh_var(eqn.outvars[0].aval)
    (last,), _ = _traced(
        lambda x: _pjit.with_layout_constraint(x, _layout.Layout(tuple(range(rank)))), transformed, eqn
    )
    return [eqn.replace(outvars=[transformed]), last.replace(outvars=eqn.outvars)]


def _apart(eqns: Sequence[Eqn]) -> list[Eqn]:
    """Returns equations with barriers behind the values of `_seen_in_updates`."""
    made: list[Eqn] = []
    swap: dict[Var, Atom] = {}
    seen = _seen_in_updates(eqns)
    arguments = seen - {v for e in eqns for v in e.outvars}
    for eqn in eqns:
        for x in eqn.invars:
            if isinstance(x, Var) and x in arguments and x not in swap:
                before, swap[x] = _traced(lax.optimization_barrier, x, eqn)
                made += before
        raw = {v: walk.fresh_var(v.aval) for v in eqn.outvars if v in seen}
        read = with_operands(eqn, swap)
        made.append(read.replace(outvars=[raw.get(v, v) for v in eqn.outvars]) if raw else read)
        for var, x in raw.items():
            (*before, last), _ = _traced(lax.optimization_barrier, x, eqn)
            made += [*before, last.replace(outvars=[var])]
    return made


def _seen_in_updates(eqns: Sequence[Eqn]) -> set[Var]:
    """Returns the arguments and views that an update both reads and may be written over, and such updates' results.

    A bit stands for each of the size of an updated value. `read` has the bits of what a value is computed from, `over`
    the bits of what the value may be written over.
    """
    updates = [_updates(eqn) for eqn in eqns]
    sizes = {_size(x) for pairs in updates for x, _ in pairs}
    if not sizes:
        return set()
    bits: dict[Var, int] = {}
    of_size: dict[int, int] = {}
    read: dict[Var, int] = {}
    over: dict[Var, int] = {}
    found, results = 0, set[Var]()

    def number(x: Var) -> int:
        if _size(x) not in sizes:
            return 0
        bit = bits.setdefault(x, 1 << len(bits))
        of_size[_size(x)] = of_size.get(_size(x), 0) | bit
        return bit

    for eqn, pairs in zip(eqns, updates, strict=True):
        operands = [x for x in eqn.invars if isinstance(x, Var)]
        for x in operands:
            if x not in read:
                read[x] = over[x] = number(x)
        for x, update in pairs:
            views = _union(read[y] for y in update) & of_size.get(_size(x), 0)
            if views & over[x]:
                found |= views | over[x]
                results.update(eqn.outvars)
        for v in eqn.outvars:
            own = number(v) if eqn.primitive.name in _VIEWS else 0
            read[v] = own | _union(read[x] for x in operands)
            over[v] = own | _union(over[x] for x in operands if _size(x) == _size(v))
    return {v for v in (*results, *(x for x, bit in bits.items() if bit & found)) if _is_array(v)}


def _updates(eqn: Eqn) -> list[tuple[Var, list[Var]]]:
    """Returns the values that an equation updates, each with the operands of the update."""
    operands = [x for x in eqn.invars if isinstance(x, Var)]
    if eqn.primitive.name.startswith(_UPDATES):
        return [(x, operands[1:]) for x in operands[:1] if x is eqn.invars[0]]
    inner = walk.sub_jaxprs(eqn) if eqn.primitive.name in CALLS else []
    if any(e.primitive.name.startswith(_UPDATES) for j in inner for e in walk.all_eqns(j)):
        return [(x, [y for y in operands if y is not x]) for x in operands]
    return []


def _union(sets: Iterable[int]) -> int:
    found = 0
    for each in sets:
        found |= each
    return found


def _size(var: Var) -> int:
    return math.prod(getattr(var.aval, "shape", ()))


def _is_array(var: Var) -> bool:
    return isinstance(getattr(var.aval, "dtype", None), np.dtype) and not isinstance(var, compat.DropVar)


def _clamped(eqn: Eqn) -> list[Eqn]:
    """Returns an equation, after the equations that clamp its starts, or a barrier."""
    if eqn.primitive.name.startswith("scatter") and _is_single(eqn):
        eqns, operand = _traced(lax.optimization_barrier, eqn.invars[0], eqn)
        return [*eqns, eqn.replace(invars=[operand, *eqn.invars[1:]])]
    limits = _limits(eqn)
    if limits is None:
        return [eqn]
    x, *starts = eqn.invars
    made: list[Eqn] = []
    for at, most in enumerate(limits):
        if not (isinstance(starts[at], compat.Literal) and 0 <= starts[at].val <= most[0]):
            eqns, starts[at] = _clamp(starts[at], most, eqn)
            made += eqns
    return [*made, eqn.replace(invars=[x, *starts])] if made else [eqn]


def _limits(eqn: Eqn) -> list[tuple[int, ...]] | None:
    """Returns for each operand of starts the largest of its elements."""
    if eqn.primitive.name == "dynamic_slice":
        return [(n - k,) for n, k in zip(eqn.invars[0].aval.shape, eqn.params["slice_sizes"], strict=True)]
    if eqn.primitive.name != "gather" or eqn.params["mode"] != lax.GatherScatterMode.CLIP:
        return None
    shape, sizes = eqn.invars[0].aval.shape, eqn.params["slice_sizes"]
    dims = eqn.params["dimension_numbers"].start_index_map
    return [tuple(shape[d] - sizes[d] for d in dims)] if _is_single(eqn) else None


def _is_single(eqn: Eqn) -> bool:
    """Returns True for a gather or a scatter of one element or window at computed indices."""
    indices = eqn.invars[1].aval
    return bool(indices.shape) and 0 < indices.size == indices.shape[-1]


def _clamp(start: Atom, most: tuple[int, ...], eqn: Eqn) -> tuple[list[Eqn], Atom]:
    """Returns equations that clamp a start, or a vector of them along the last dim, and the result."""
    largest = np.iinfo(start.aval.dtype).max
    bounds = [[np.asarray(n, start.aval.dtype) for n in (0, min(m, largest))] for m in most]

    def clamp(x: Any) -> Any:
        last = x.ndim - 1
        parts = [x] if len(bounds) == 1 else [lax.slice_in_dim(x, i, i + 1, axis=last) for i in range(len(bounds))]
        parts = [lax.clamp(low, part, high) for part, (low, high) in zip(parts, bounds, strict=True)]
        return parts[0] if len(parts) == 1 else lax.concatenate(parts, last)

    return _traced(clamp, start, eqn)


def _traced(function: Callable[[Any], Any], operand: Atom, eqn: Eqn) -> tuple[list[Eqn], Atom]:
    """Returns the equations of a function of an operand of an equation, and the result."""
    mesh, axes = eqn.ctx.cur_abstract_mesh, compat.varying_axes(operand.aval)

    def compute(x: jax.Array) -> list[Any]:
        return [function(x)]

    if axes:
        sizes = AbstractMesh(mesh.axis_sizes, mesh.axis_names)
        with compat.without_mesh():
            traced = evaluate.trace_typed(compute, [operand.aval], [sorted(axes)], sizes)
    else:
        with eqn.ctx.manager:
            traced = typed.make_jaxpr(compute)(compat.typed_struct(operand.aval, axes))
    body = walk.open_jaxpr(traced)
    swap = {body.invars[0]: operand}
    eqns = [
        e.replace(invars=walk.substitute(e.invars, swap), source_info=eqn.source_info, ctx=eqn.ctx) for e in body.eqns
    ]
    return eqns, body.outvars[0]
