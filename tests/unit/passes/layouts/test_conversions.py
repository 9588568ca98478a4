"""The ways from one form of a value to another: each step is one that the real library takes, and none is needless."""

from __future__ import annotations

import itertools

import numpy as np

from jaxmesh.dialects.ttnn.forms import TILED, stored_as
from jaxmesh.passes.layouts.conversions import StoredForm, path

F32, I32, U16 = (np.dtype(n) for n in ("float32", "int32", "uint16"))
FORMS = [StoredForm(d, t, h) for d in (F32, I32, U16) for t, h in ((False, True), (False, False), (True, False))]


def test_a_form_that_exists_takes_no_step() -> None:
    for form in FORMS:
        assert path(frozenset(FORMS), form) == (form, ())


def test_every_way_changes_one_thing_at_a_time() -> None:
    for have, want in itertools.permutations(FORMS, 2):
        start, steps = path(frozenset({have}), want)
        assert start == have
        assert steps[-1] == want
        for a, b in itertools.pairwise((have, *steps)):
            assert sum(x != y for x, y in zip(a, b, strict=True)) == 1, (have, want, steps)
            # Tiles are made and typed on the devices.
            assert not (b.tile and b.host)
            assert not b.tile or stored_as(b.dtype) in TILED
        assert len({have, *steps}) == len(steps) + 1


def test_the_way_starts_where_least_is_to_do() -> None:
    host, there = StoredForm(F32, tile=False, host=True), StoredForm(F32, tile=False)
    want = StoredForm(F32, tile=True)
    assert path(frozenset({host, there}), want) == (there, (want,))
    assert path(frozenset({host}), want) == (host, (there, want))
