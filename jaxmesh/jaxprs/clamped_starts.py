"""Changes of a program before XLA sees it, which then computes what JAX defines: starts of slices, layouts.

XLA (of JAX 0.10.2) replaces a slice of a slice by one slice from the sum of their starts, and clamps the sum alone. It
does so, too, with a gather of one element, which it makes a slice. A scatter of one update reads such a slice before it
drops an update out of range; a barrier separates it from a slice before it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import jax
import numpy as np
from jax._src import layout, pjit
from jax.sharding import AbstractMesh

from jaxmesh.jaxprs import compat, evaluate, walk
from jaxmesh.jaxprs.compat import Atom, Eqn, Jaxpr
from jaxmesh.jaxprs.rewrite import at_every_depth, map_sub_jaxprs
from jaxmesh.jaxprs.typed import typed
from jaxmesh.jaxprs.untyped import lax

_layout: Any = layout
_pjit: Any = pjit


def clamp_starts(eqns: Iterable[Eqn]) -> list[Eqn]:
    """Returns equations with the computed starts of slices and of gathers of one element clamped, at every depth."""
    return _at_every_depth(eqns, _clamped, ("dynamic_slice", "gather", "scatter"))


def keep_rows(eqns: Iterable[Eqn]) -> list[Eqn]:
    """Returns equations whose Fourier transforms keep the elements of a row together, at every depth.

    XLA's CPU client runs no transform in another order, but plans one before it gathers columns from devices.
    """
    return _at_every_depth(eqns, _in_rows, ("fft",))


def _at_every_depth(eqns: Iterable[Eqn], change: Callable[[Eqn], list[Eqn]], primitives: tuple[str, ...]) -> list[Eqn]:
    def change_jaxpr(jaxpr: Jaxpr, inside: Callable[[Jaxpr], Jaxpr]) -> Jaxpr:
        # A body without such primitives stays the same object also if it has custom rules, which are wrapped anew.
        if not any(e.primitive.name.startswith(primitives) for e in walk.all_eqns(jaxpr)):
            return jaxpr
        body = walk.open_jaxpr(jaxpr)
        return walk.with_eqns(jaxpr, change_each(body.eqns, inside), body.outvars)

    def change_each(eqns: Iterable[Eqn], inside: Callable[[Jaxpr], Jaxpr]) -> list[Eqn]:
        return [each for eqn in eqns for each in change(map_sub_jaxprs(eqn, inside))]

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
