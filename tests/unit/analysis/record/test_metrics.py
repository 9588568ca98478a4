"""Correlation and difference of two arrays, against NumPy and by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from jaxmesh.analysis.record.metrics import apart, pcc, tolerance


def test_pcc_is_that_of_comp_pcc() -> None:
    nan, inf = np.float32(np.nan), np.float32(np.inf)
    rows: list[tuple[Any, Any, float, bool]] = [
        ([nan, nan], [nan, nan], 1.0, True),
        ([nan, nan], [1, 2], 0.0, True),
        ([0, 0], [0, 1], 0.0, True),
        ([0, 0], [0, 0], 1.0, True),
        ([1, nan, 3], [1, nan, 3], 1.0, True),
        ([1, inf, 3], [1, 0, 3], 1.0, True),
        ([2], [3], 0.0, False),
        ([2, 2], [2, 3], 0.0, False),
        ([1, 2, 3], [-1, -2, -3], -1.0, True),
        ([], [], 1.0, True),
    ]
    for a, b, wanted, defined in rows:
        found = pcc(np.float32(a), np.float32(b))
        assert found == (pytest.approx(wanted, abs=1e-15), defined), (a, b)
    rng = np.random.default_rng(1)
    a, b = rng.normal(size=(2, 50))
    assert pcc(a, b)[0] == pytest.approx(np.corrcoef(a, b)[0, 1], abs=1e-14)
    assert pcc(a * 1e300, b * 1e-300)[0] == pytest.approx(np.corrcoef(a, b)[0, 1], abs=1e-14)
    assert pcc(a + 1j * b, a + 1j * b) == (1.0, True)


def test_differences_are_counted() -> None:
    one = np.float32(1)
    after = np.nextafter(one, np.float32(2), dtype=np.float32)
    found = apart(np.float32([one, 0, -1]), np.float32([after, 0, -1]))
    assert (found.index, found.ulps, found.largest, found.same) == ((0,), 1, float(after - one), False)
    assert apart(np.float32([0.0]), np.float32([-0.0])).ulps == 1
    tiny = np.array([1], np.uint32).view(np.float32)
    assert apart(tiny, -tiny).ulps == 3
    wide = apart(np.int64([-(2**63)]), np.int64([2**63 - 1]))
    assert (wide.largest, wide.relative) == (float(2**64 - 1), (2**64 - 1) / 2**63)
    assert apart(np.array([True, False]), np.array([True, True])).index == (1,)
    assert apart(np.float32([np.inf, 1]), np.float32([1, 1])).largest == np.inf
    assert apart(np.zeros((0, 2)), np.zeros((0, 2))).same


def test_a_tolerance_is_of_the_largest_finite_value() -> None:
    values = np.float32([-3, np.inf, 2, -np.inf, np.nan])
    assert tolerance(values) == 64 * 2.0**-23 * 3
    assert tolerance(values[3:]) == 64 * 2.0**-23
