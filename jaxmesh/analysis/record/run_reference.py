"""Records a run of the reference executor: an observer copies every value."""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxmesh.analysis.record.entry import Array, Coordinate, Entry, check_bytes, is_recorded, key_kind
from jaxmesh.analysis.record.filter import Wanted
from jaxmesh.analysis.record.recording import Recording
from jaxmesh.analysis.record.source_path import ARGUMENT, INLINED, Place, Walk
from jaxmesh.analysis.reference_rules import RULES, reference_input
from jaxmesh.dialects.residency import DEVICE
from jaxmesh.dialects.signature import Boundary
from jaxmesh.jaxprs.compat import Aval, Eqn, Jaxpr, words_of
from jaxmesh.jaxprs.control_flow import LOOPS
from jaxmesh.jaxprs.source_locations import SourceLocation
from jaxmesh.jaxprs.typed import typed
from jaxmesh.runtime.npz import Spool
from jaxmesh.runtime.progress import progress
from jaxmesh.runtime.reference import Observer, Shards, run_reference


def record_reference(
    program: Jaxpr, boundary: Boundary, leaves: Sequence[Any], wanted: Wanted, level: str
) -> Recording:
    """Runs a closed jaxpr of the dialect `level` on the reference executor and returns every value that it computes."""
    recorder, args = _Recorder(wanted), [reference_input(x) for x in leaves]
    for number, (x, residency, aval) in enumerate(zip(args, boundary.residencies, program.in_avals, strict=True)):
        place = Place(SourceLocation(function=boundary.name), ARGUMENT, number)
        value: object = Shards(x) if residency is DEVICE else jnp.asarray(x)
        recorder.keep(place, 0, value, aval, tuple(value) if residency is DEVICE else ())
    with progress("values", count=lambda: len(recorder.entries)):
        run_reference(program, boundary.residencies, boundary.sizes, args, RULES[level], recorder)
    return Recording(tuple(recorder.entries), dict(boundary.sizes), level, boundary.name, wanted.partial)


class _Recorder(Observer):
    def __init__(self, wanted: Wanted) -> None:
        self._wanted, self._used = wanted, 0
        self._walk, self._hidden = Walk(), 0
        self._copies: dict[int, tuple[Any, Array]] = {}
        self.entries: list[Entry] = []
        self._spool = Spool()

    def observe(self, eqn: Eqn, results: Sequence[Any], active: Sequence[Coordinate]) -> None:
        if self._hidden or eqn.primitive.name in INLINED:
            return
        place = self._walk.place(eqn)
        self._walk.advance(place)
        for number, (value, var) in enumerate(zip(results, eqn.outvars, strict=True)):
            self.keep(place, number, value, var.aval, active)

    def keep(self, place: Place, number: int, value: Any, aval: Aval, active: Sequence[Coordinate]) -> None:
        """Appends a copy of a value if it is wanted."""
        if not is_recorded(aval) or not self._wanted(place):
            return
        coordinates = tuple(sorted(set(value) & set(active))) if isinstance(value, Shards) else None
        self._used += max(1, len(coordinates or ())) * aval.size * _width(aval.dtype)
        check_bytes(self._used, self._wanted.max_bytes, place)
        data = self._copied(value) if coordinates is None else self._stacked([value[c] for c in coordinates])
        stored = self._spool.add(data)
        self.entries.append(Entry(place, self._walk.path, number, coordinates, stored, key_kind(aval.dtype)))

    def _copied(self, value: object) -> Array:
        """Returns a value in immutable memory, as JAX's arrays are; a value that ops only pass on is copied once."""
        words: object = words_of(value)
        if isinstance(words, jax.Array):
            return np.asarray(words)
        if id(value) not in self._copies:
            # The value is kept beside its copy, so that its id is not reused.
            self._copies[id(value)] = value, np.array(words)
        return self._copies[id(value)][1]

    def _stacked(self, copies: Sequence[Any]) -> Array:
        """Stacks the copies of a value; a value that all devices share takes the memory of one copy."""
        if all(x is copies[0] for x in copies[1:]):
            first = self._copied(copies[0])
            return np.broadcast_to(first, (len(copies), *first.shape))
        return np.stack([np.asarray(words_of(x)) for x in copies])

    @contextlib.contextmanager
    def enter_body(self, eqn: Eqn, part: str, index: int) -> Generator[None]:
        name, outer = eqn.primitive.name, self._walk
        hidden = name not in LOOPS and name not in INLINED
        if name in LOOPS:
            self._walk = outer.inside(outer.place(eqn), part, index)
        self._hidden += hidden
        try:
            with self._walk.call(eqn) if name in INLINED else contextlib.nullcontext():
                yield
        finally:
            self._walk = outer
            self._hidden -= hidden


def _width(dtype: Any) -> int:
    """Returns the bytes per element; for random keys, the bytes of their words."""
    if not key_kind(dtype):
        return int(dtype.itemsize)
    return typed.eval_shape(jax.random.key_data, jax.ShapeDtypeStruct((), dtype)).size * 4
