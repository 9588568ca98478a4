"""Sorts of TTNN against NumPy: the values, and indices of the declared type."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest

from jaxmesh.dialects import ttnn
from jaxmesh.dialects.op import Call

X = np.random.default_rng(7).permuted(np.arange(24, dtype=np.float32).reshape(4, 6), axis=1)


def performed(name: str, attributes: dict[str, Any], width: int, index: Any) -> list[np.ndarray]:
    row = ttnn.OPS[name]
    assert row.meaning is not None
    results = tuple(jax.ShapeDtypeStruct((4, width), dtype) for dtype in (X.dtype, np.dtype(index)))
    made: Any = jax.jit(lambda x: row.meaning(Call(row, (x,), attributes, results, {"x": 1}, f"ttnn.{name}")))(X)
    return [np.asarray(y) for y in made]


@pytest.mark.parametrize(("declared", "given"), [("u2", "u2"), ("u4", "u4"), ("i4", "i4"), ("f4", "i4")])
@pytest.mark.parametrize("down", [False, True])
def test_sorts_against_numpy(declared: str, given: str, down: bool) -> None:
    order = np.argsort(-X if down else X, axis=1, kind="stable")
    sort = {"dim": 1, "descending": down, "stable": True}
    topk = {"dim": 1, "k": 4, "largest": down, "sorted": True}
    for name, attributes, width in (("sort", sort, 6), ("topk", topk, 4)):
        values, indices = performed(name, attributes, width, declared)
        assert indices.dtype == np.dtype(given), name
        np.testing.assert_array_equal(indices, order[:, :width])
        np.testing.assert_array_equal(values, np.take_along_axis(X, order[:, :width], 1))
