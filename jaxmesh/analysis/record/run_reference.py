"""Recording a run of the reference executor: it tells what it makes, and this keeps a copy."""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxmesh.analysis.record.filter import Wanted
from jaxmesh.analysis.record.recording import Budget, Coordinate, Entry, Recording, is_recorded, key_kind, words
from jaxmesh.analysis.record.source_path import ARGUMENT, INLINED, Place, Walk
from jaxmesh.dialects.residency import DEVICE, Residency
from jaxmesh.jaxprs.compat import Eqn, Jaxpr
from jaxmesh.jaxprs.control_flow import LOOPS
from jaxmesh.jaxprs.source_locations import Source
from jaxmesh.runtime.reference import Shards, Transfer, Watch, run_reference


def record_reference(
    program: Jaxpr,
    inputs: Sequence[Residency],
    mesh: Mapping[str, int],
    args: Sequence[Any],
    rules: Mapping[str, Transfer],
    wanted: Wanted,
    name: str,
    level: str,
) -> Recording:
    """Runs a closed jaxpr as `run_reference` does, and gives everything it made.

    Raises:
      RecordingSizeError: more bytes than `wanted` allows.
    """
    recorder = _Recorder(wanted)
    for number, (x, place, aval) in enumerate(zip(args, inputs, program.in_avals, strict=True)):
        value: Any = Shards(x) if place is DEVICE else jnp.asarray(x)
        recorder.keep(
            Place(Source(function=name), ARGUMENT, number), 0, value, aval, tuple(value) if place is DEVICE else ()
        )
    run_reference(program, inputs, mesh, args, rules, recorder)
    return Recording(tuple(recorder.entries), dict(mesh), level, name, wanted.partial)


class _Recorder(Watch):
    def __init__(self, wanted: Wanted) -> None:
        self._wanted, self._budget = wanted, Budget(wanted.max_bytes)
        self._walk, self._hidden = Walk(), 0
        self.entries: list[Entry] = []

    def made(self, eqn: Eqn, results: Sequence[Any], active: Sequence[Coordinate]) -> None:
        if self._hidden or eqn.primitive.name in INLINED:
            return
        place = self._walk.place(eqn)
        self._walk.made(place)
        for number, (value, var) in enumerate(zip(results, eqn.outvars, strict=True)):
            self.keep(place, number, value, var.aval, active)

    def keep(self, place: Place, number: int, value: Any, aval: Any, active: Sequence[Coordinate]) -> None:
        """Copies a value that is wanted."""
        if not is_recorded(aval) or not self._wanted(place):
            return
        coordinates = tuple(sorted(set(value) & set(active))) if isinstance(value, Shards) else None
        size = max(1, len(coordinates or ())) * aval.size * _width(aval.dtype)
        self._budget.take(size, f"{place}")
        rows = [value[c] for c in coordinates] if coordinates is not None else [value]
        copies = [np.array(words(x)) for x in rows]
        data = copies[0] if coordinates is None else np.stack(copies)
        self.entries.append(Entry(place, self._walk.path, number, coordinates, data, key_kind(aval.dtype)))

    @contextlib.contextmanager
    def inside(self, eqn: Eqn, part: str, index: int) -> Generator[None]:
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
    """Bytes per element, of random keys those of their words."""
    if not key_kind(dtype):
        return int(dtype.itemsize)
    return jax.eval_shape(jax.random.key_data, jax.ShapeDtypeStruct((), dtype)).size * 4
