"""States of a loop that each iteration writes one row of, at its own number: they are stacked results of the loop.

`c.at[i].set(y)` and `dynamic_update_slice(c, y, (i, 0))`, where `i` counts the iterations and nothing else reads `c`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from jaxmesh.dialects.program import Value
from jaxmesh.jaxprs import compat, walk
from jaxmesh.jaxprs.compat import Atom, Eqn, Jaxpr, Var
from jaxmesh.jaxprs.control_flow import Call, Scan, T, control_flow
from jaxmesh.jaxprs.untyped import Array, lax
from jaxmesh.passes.flatten.builder import Builder
from jaxmesh.passes.flatten.constant_folding import ELEMENTWISE, FOLDS
from jaxmesh.passes.flatten.index_arithmetic import known

_SAME = ("broadcast_in_dim", "reshape", "squeeze", "pvary", "copy", "stop_gradient")
"""Primitives that leave a single number as it is."""
_FOLDED = frozenset((*ELEMENTWISE, "convert_element_type", "select_n"))


@dataclass(frozen=True, slots=True)
class CountedWrite:
    """A state whose rows are written one by one.

    Attributes:
      number: of the state, among the carried values.
      dim: along which its rows lie.
      first: the lowest row that is written.
      backwards: whether the last iteration writes the lowest row.
      row: what an iteration writes.
      writer: the equation that does.
    """

    number: int
    dim: int
    first: int
    backwards: bool
    row: Atom
    writer: Eqn

    def put_back(self, b: Builder, x: Value, stack: Value) -> Value:
        """Returns the state after the loop, of the state before it and its rows [iterations, ...]."""
        rows = (b.shape(stack)[0], *(n for d, n in enumerate(b.shape(x)) if d != self.dim))
        order = [*range(1, self.dim + 1), 0, *range(self.dim + 1, len(rows))]
        piece = b.permute(b.reshape(stack, rows), order)
        if b.shape(piece) == b.shape(x):
            return piece
        put = partial(lax.dynamic_update_slice_in_dim, start_index=self.first, axis=self.dim)
        return b.composed(put, [x, piece])[0]


def counted_writes(b: Builder, loop: Scan, xs: Sequence[Value]) -> list[CountedWrite]:
    """Returns the states of a loop that are written once in an iteration, at rows that count the iterations."""
    body, found = walk.open_jaxpr(loop.body), list[CountedWrite]()
    before, after = loop.split(body.invars)[1], loop.split_results(body.outvars)[0]
    made = {v: eqn for eqn in body.eqns for v in eqn.outvars}
    numbers = None
    for number, (old, new) in enumerate(zip(before, after, strict=True)):
        eqn = made.get(new) if isinstance(new, Var) else None
        place = None if eqn is None or eqn.invars[0] is not old or 0 in old.aval.shape else _place(eqn)
        if eqn is None or place is None or _uses(body, old) != 1 or _uses(body, new) != 1:
            continue
        numbers = numbers_of(b, loop, xs) if numbers is None else numbers
        dim, at = place
        rows = number_of(numbers, at, loop.length)
        if rows is None or rows.min() < 0 or rows.max() >= old.aval.shape[dim]:
            continue
        steps = {int(n) for n in np.diff(rows.astype(np.int64))}
        if steps <= {1} or steps == {-1}:
            row = eqn.invars[1 if eqn.primitive.name == "dynamic_update_slice" else 2]
            found.append(CountedWrite(number, dim, int(rows.min()), steps == {-1}, row, eqn))
    return found


def with_rows(loop: Scan, writes: Sequence[CountedWrite]) -> Scan:
    """Returns the loop with the written rows as its last stacked results, in place of the states."""
    body, gone = walk.open_jaxpr(loop.body), {w.number for w in writes}
    consts, carry, rows = loop.split(body.invars)
    after, stacked = loop.split_results(body.outvars)
    writers = [w.writer for w in writes]
    made = walk.rebuild(
        body,
        body.constvars,
        [*consts, *without(carry, gone), *rows],
        [e for e in body.eqns if not any(e is w for w in writers)],
        [*without(after, gone), *stacked, *(w.row for w in writes)],
    )
    return replace(loop, body=walk.close_like(loop.body, made), num_carry=loop.num_carry - len(gone))


def without(values: Sequence[T], numbers: Iterable[int]) -> list[T]:
    """Returns the values of other numbers."""
    return [x for i, x in enumerate(values) if i not in set(numbers)]


def _uses(body: Jaxpr, var: Atom) -> int:
    return sum(a is var for atoms in (*(e.invars for e in body.eqns), body.outvars) for a in atoms)


def _place(eqn: Eqn) -> tuple[int, Atom] | None:
    """Returns the dim along which an equation writes one row of its first operand, and the number of the row."""
    if eqn.primitive.name == "dynamic_update_slice":
        x, y, *starts = eqn.invars
        dims = [d for d, (n, k) in enumerate(zip(x.aval.shape, y.aval.shape, strict=True)) if n != k]
        return (dims[0], starts[dims[0]]) if len(dims) == 1 and y.aval.shape[dims[0]] == 1 else None
    if eqn.primitive.name != "scatter":
        return None
    x, index, y = eqn.invars
    numbers, shape = eqn.params["dimension_numbers"], x.aval.shape
    dims = tuple(numbers.scatter_dims_to_operand_dims)
    row = tuple(n for d, n in enumerate(shape) if d not in dims)
    one = len(dims) == 1 and index.aval.shape == (1,) and tuple(numbers.inserted_window_dims) == dims
    return (dims[0], index) if one and y.aval.shape == row else None


# --- numbers of iterations -------------------------------------------------------------------------------------------


def numbers_of(b: Builder, loop: Scan, xs: Sequence[Value]) -> dict[Var, Array]:
    """Returns the single numbers of a body that are known before it runs, in the order of the iterations."""
    body, count = walk.open_jaxpr(loop.body), loop.length
    consts, carry, rows = map(dict, map(zip, loop.split(body.invars), loop.split(xs)))
    found, tables = dict[Var, Array](), dict[Var, Array]()
    for var, x in consts.items():
        _note(found, var, known(b, x), count)
        elements = _elements(b, x)
        if elements is not None:
            tables[var] = elements
    states = zip(carry.items(), loop.split_results(body.outvars)[0], strict=True)
    # A state that stays the same may be the step of a counter.
    for (var, x), after in sorted(states, key=lambda row: row[1] is not row[0][0]):
        start, step = known(b, x), 0 if after is var else _step(body, found, var, after, count)
        if start is not None and start.size == 1 and step is not None:
            _note(found, var, (start.reshape(-1) + step * np.arange(count)).astype(start.dtype), count)
    for var, x in rows.items():
        elements = _elements(b, x)
        _note(found, var, elements[::-1] if elements is not None and loop.reverse else elements, count)
    return _follow(body, found, tables, count)


def _elements(b: Builder, x: Value) -> Array | None:
    """Returns the numbers of a vector of integers that is known, of any length."""
    made, counted = b.maker(x, "constant"), b.maker(x, "arange")
    if len(b.shape(x)) != 1 or b.dtype(x).kind not in "iu":
        return None
    if made is not None:
        return np.asarray(made.attributes["value"])
    if counted is not None:
        start, end, step = (int(counted.attributes[name]) for name in ("start", "end", "step"))
        return np.arange(start, end, step).astype(b.dtype(x))
    return known(b, x)


def _note(found: dict[Var, Array], var: Any, numbers: Array | None, count: int) -> None:
    if numbers is not None and numbers.size in (1, count) and math.prod(var.aval.shape) == 1:
        found[var] = np.broadcast_to(numbers.reshape(-1), (count,))


def _step(body: Jaxpr, found: dict[Var, Array], var: Var, after: Atom, count: int) -> int | None:
    """Returns by how much a state grows in each iteration, if it is always the same."""
    eqn = next((e for e in body.eqns if e.outvars[0] is after and e.primitive.name in ("add", "sub")), None)
    if eqn is None or var not in eqn.invars or (eqn.primitive.name == "sub" and eqn.invars[0] is not var):
        return None
    others = [a for a in eqn.invars if a is not var]
    step = number_of(found, others[0], count) if others else None
    if step is None or (step != step[0]).any():
        return None
    return int(step[0]) * (1 if eqn.primitive.name == "add" else -1)


def number_of(found: Mapping[Var, Array], atom: Any, count: int) -> Array | None:
    """Returns a number of a body that is known, once for each iteration."""
    if not isinstance(atom, compat.Literal):
        return found.get(atom)
    literal: Any = atom
    number = np.asarray(literal.val, literal.aval.dtype)
    return np.broadcast_to(number, (count,)) if number.size == 1 and number.dtype.kind in "iub" else None


def _follow(body: Jaxpr, found: dict[Var, Array], tables: Mapping[Var, Array], count: int) -> dict[Var, Array]:
    """Adds the numbers that equations compute of known ones, or look up in known vectors."""
    for eqn in body.eqns:
        name, aval, flow = eqn.primitive.name, eqn.outvars[0].aval, control_flow(eqn)
        table = tables.get(eqn.invars[0]) if name == "dynamic_slice" and isinstance(eqn.invars[0], Var) else None
        given = [number_of(found, a, count) for a in (eqn.invars if table is None else eqn.invars[1:])]
        numbers = [x for x in given if x is not None]
        if len(numbers) < len(given) or not numbers or aval.dtype.kind not in "iub" or math.prod(aval.shape) != 1:
            continue
        if table is not None:
            found[eqn.outvars[0]] = table[np.clip(numbers[0], 0, len(table) - 1)]
        elif name in _SAME:
            found[eqn.outvars[0]] = numbers[0]
        elif name in _FOLDED:
            with np.errstate(all="ignore"):
                found[eqn.outvars[0]] = np.asarray(FOLDS[name](eqn, numbers))
        elif isinstance(flow, Call):
            inner = walk.open_jaxpr(flow.body)
            of_call = _follow(inner, dict(zip(inner.invars, numbers, strict=True)), {}, count)
            made = ((v, number_of(of_call, a, count)) for v, a in zip(eqn.outvars, inner.outvars, strict=True))
            found.update((v, n) for v, n in made if n is not None)
    return found
