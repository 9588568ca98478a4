"""Values on devices are explained by placements and partial sums; NumPy loops over mesh coordinates make the values."""

from __future__ import annotations

import itertools
from types import SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from jaxmesh.analysis.diagnose.cuts import placements
from jaxmesh.analysis.diagnose.matching import Globals
from jaxmesh.analysis.diagnose.movements import distance_of_forms
from jaxmesh.analysis.diagnose.rounding import error_of, tolerance
from jaxmesh.dialects.program import Op
from jaxmesh.frontends.mlir.upgrade import FUNCTIONS

MESH = {"y": 2, "x": 4}
COORDINATES = list(itertools.product(range(2), range(4)))
RNG = np.random.default_rng(0)
X = RNG.standard_normal((8, 16)).astype(np.float32)


def blocks(x: Any, *placement: tuple[str, ...]) -> dict[tuple[int, int], Any]:
    """Cuts an array with a loop over devices; the first axis of a dim is the most significant."""
    found: dict[tuple[int, int], Any] = {}
    for y, x_at in COORDINATES:
        part = x
        for dim, axes in enumerate(placement):
            for axis in axes:
                pieces = np.split(part, MESH[axis], dim)
                part = pieces[{"y": y, "x": x_at}[axis]]
        found[y, x_at] = part
    return found


def pool(*arrays: Any) -> Globals:
    known = Globals(MESH)
    for array in arrays:
        known.add(array)
    return known


PLACEMENTS = [
    (a, b) for a, b in itertools.product([(), ("y",), ("x",), ("y", "x"), ("x", "y")], repeat=2) if not set(a) & set(b)
]


@pytest.mark.parametrize("placement", PLACEMENTS, ids=str)
def test_every_placement_is_found(placement: tuple[tuple[str, ...], ...]) -> None:
    found = pool(RNG.standard_normal((8, 16)), X).explain(blocks(X, *placement), 0.0, 0.0)
    assert found is not None
    assert (found.number, found.placement, found.partial, found.error) == (1, placement, (), 0.0)


def test_placements_of_a_shape() -> None:
    assert list(placements((4, 4), (8, 16), MESH)) == [(("y",), ("x",))]
    assert list(placements((1, 16), (8, 16), MESH)) == [(("y", "x"), ()), (("x", "y"), ())]
    assert not list(placements((3, 16), (8, 16), MESH))
    assert not list(placements((8, 16), (8, 16, 1), MESH))


@pytest.mark.parametrize("axes", [("y",), ("x",), ("y", "x")], ids=str)
def test_parts_of_a_sum(axes: tuple[str, ...]) -> None:
    shares = {c: RNG.standard_normal(X.shape).astype(np.float32) for c in COORDINATES}
    places = [list(MESH).index(a) for a in axes]
    group = [c for c in COORDINATES if all(n == 0 for i, n in enumerate(c) if i not in places)]
    shares[group[-1]] = X - sum(shares[c] for c in group[:-1])
    copies = {c: shares[tuple(n if i in places else 0 for i, n in enumerate(c))] for c in COORDINATES}
    found = pool(X).explain(copies, 0.0, 0.0)
    assert found is not None
    assert (found.partial, found.kind, found.placement) == (axes, "sum", ((), ()))


def test_parts_of_a_maximum_need_the_kind() -> None:
    full = RNG.standard_normal((8, 16)).astype(np.float32)
    low = {c: np.minimum(full, RNG.standard_normal(full.shape).astype(np.float32)) for c in range(3)}
    copies = {(y, x): full if x == 3 else low[x] for y, x in COORDINATES}
    assert pool(full).explain(copies, 0.0, 0.0) is None
    found = pool(full).explain(copies, 0.0, 0.0, kinds=("sum", "max"))
    assert found is not None
    assert (found.partial, found.kind) == (("x",), "max")


def test_wrong_values_are_not_explained() -> None:
    copies = blocks(X, ("y",), ())
    assert pool(X).explain({c: copies[(c[0], 3 - c[1])] for c in copies}, 0.0, 0.0) is not None
    assert pool(X).explain({c: copies[(1 - c[0], c[1])] for c in copies}, 0.0, 0.0) is None
    one = {c: x.copy() for c, x in copies.items()}
    one[1, 2][3, 5] += 0.01
    assert pool(X).explain(one, 0.0, 0.0) is None


def test_rounding_is_explained_only_with_a_narrow_type() -> None:
    narrow = X.astype(ml_dtypes.bfloat16)
    unit = float(ml_dtypes.finfo(ml_dtypes.bfloat16).eps)
    assert pool(X).explain(blocks(narrow.astype(np.float32), ("y",), ()), 1.2e-7, 0.0) is None
    found = pool(X).explain(blocks(narrow, ("y",), ()), unit, 0.0)
    assert found is not None
    assert 0 < found.error <= unit


def test_masks_do_not_hide_errors() -> None:
    masked = np.where(RNG.random(X.shape) < 0.4, np.float32(-1e9), X)
    wrong = np.where(masked == -1e9, masked, masked * 1.01)
    assert pool(masked).explain(dict.fromkeys(COORDINATES, wrong), 1.2e-7, 0.0) is None


def test_what_a_mask_is() -> None:
    """A mask is far above any other number; the numbers of gelu become small bit by bit."""
    masked = np.where(RNG.random(X.shape) < 0.4, np.float32(-1e4), X)
    assert 1 < pool(masked).scale(0) < 10
    assert pool(np.geomspace(1e-12, 5, 64, dtype=np.float32)).scale(0) == 5


def test_parts_that_add_up_to_one_number_say_nothing() -> None:
    ones, shares = np.ones((4, 8), np.float32), [RNG.random((4, 8)).astype(np.float32) for _ in range(3)]
    copies = {(y, x): [*shares, ones - sum(shares)][x] for y, x in COORDINATES}
    assert pool(ones).explain(copies, 1.2e-7, 0.0) is None
    found = pool(X[:4, :8]).explain({c: v * X[:4, :8] for c, v in copies.items()}, 1.2e-7, 0.0)
    assert found is not None
    assert found.partial == ("x",)


def test_flattened_blocks_are_reshapes_of_a_value() -> None:
    """Of dims that a product flattens a mesh axis may split any; the shards are no shards of the flattened value."""
    full = RNG.standard_normal((8, 4, 16)).astype(np.float32)
    copies = {c: x.reshape(4, 16) for c, x in blocks(full, ("y",), (), ("x",)).items()}
    known = pool(X, full)
    found = known.explain(copies, 0.0, 0.0)
    assert found is not None
    assert (found.apart, found.placement, known.sources[found.number]) == (("y", "x"), ((), ()), 1)
    assert all(np.array_equal(known.block(found.number, found.placement, c), x) for c, x in copies.items())
    assert pool(X, full).explain({c: x[::-1] for c, x in copies.items()}, 0.0, 0.0) is None


def test_forms_of_a_function_within_a_loop() -> None:
    gelu = Op("ttnn.matmul", (0, 1), (2,), {"activation": "gelu"})
    body: Any = SimpleNamespace(program=SimpleNamespace(ops=[Op("ttnn.add", (0, 1), (2,)), gelu]))
    loop = Op("ttcore.while_loop", (0,), (1,), {FUNCTIONS: (body,)})
    assert distance_of_forms(loop) > distance_of_forms(gelu) > 0 == distance_of_forms(Op("ttnn.tanh", (0,), (1,)))


def test_infinities_and_nans_are_equal_to_themselves() -> None:
    x = np.float32([np.nan, np.inf, -np.inf, 1])
    assert error_of(x, x.copy(), 1.0) == 0
    assert error_of(np.float32([1, np.inf]), np.float32([1, -np.inf]), 1.0) == np.inf
    assert error_of(np.float32([np.nan]), np.float32([1]), 1.0) == np.inf
    assert tolerance(1.2e-7, 0.0) < tolerance(1.2e-7, 1e-5) < tolerance(7.8e-3, 0.0)


def test_a_large_value_is_compared_in_parts() -> None:
    large = RNG.standard_normal((3, 2_000_000)).astype(np.float32)
    other = large.copy()
    other[2, 1_999_999] += 1
    assert error_of(large, large.copy(), 1.0) == 0
    assert 0.1 < error_of(other, large, 1.0) <= 1
