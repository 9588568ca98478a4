"""The forms of a value, and the cheapest conversion from the forms that exist to the needed form."""

from __future__ import annotations

import functools
import heapq
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from jaxmesh.dialects.ttnn.forms import EXACT, TILED, as_dtype, stored_as


class StoredForm(NamedTuple):
    """Element type, layout and memory of a value."""

    dtype: np.dtype[Any]
    tile: bool
    host: bool = False


_STEP = 10
"""The cost of a conversion; where there is a choice, types are converted in tiles."""


@functools.lru_cache(1024)
def path(have: frozenset[StoredForm], want: StoredForm) -> tuple[StoredForm, tuple[StoredForm, ...]]:
    """Returns the form to start from, and the forms on the way to the wanted form.

    >>> f32, i32 = np.dtype("float32"), np.dtype("int32")
    >>> start, steps = path(frozenset({StoredForm(f32, tile=False, host=True)}), StoredForm(i32, tile=True))
    >>> [(form.dtype.name, form.tile) for form in steps]
    [('float32', False), ('float32', True), ('int32', True)]
    """
    queue: list[tuple[int, int, StoredForm, tuple[StoredForm, ...]]] = [
        (0, number, form, (form,)) for number, form in enumerate(sorted(have, key=_order))
    ]
    seen: set[StoredForm] = set()
    number = len(queue)
    while queue:
        cost, _, form, way = heapq.heappop(queue)
        if form == want:
            return way[0], way[1:]
        if form in seen:
            continue
        seen.add(form)
        for step, after in _steps(form, want.dtype):
            number += 1
            heapq.heappush(queue, (cost + step, number, after, (*way, after)))
    raise AssertionError(f"no way from {have} to {want}")


def _order(form: StoredForm) -> tuple[str, bool, bool]:
    return form.dtype.name, form.tile, form.host


def _steps(form: StoredForm, wanted: np.dtype[Any]) -> Iterator[tuple[int, StoredForm]]:
    """Yields what one op makes of a form, and its cost."""
    stored = stored_as(form.dtype)
    if form.tile:
        yield _STEP, form._replace(tile=False)
    elif not form.host and stored in TILED:
        yield _STEP, form._replace(tile=True)
    if not form.tile:
        yield _STEP, form._replace(host=not form.host)
    cost = _STEP + 2 * form.host + (not form.tile)
    between = EXACT.get(stored, ())[:1] if stored is not None else ()
    for dtype in (wanted, *map(as_dtype, between)):
        if dtype != form.dtype:
            yield cost, form._replace(dtype=dtype)
    if stored is None:
        # Only for the emulation: a type that the real library lacks.
        yield _STEP, form._replace(tile=not form.host)
