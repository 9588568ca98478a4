"""The table of trusted calls, and the bounds of rounding against NumPy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from jaxmesh.analysis.chip import trust
from jaxmesh.analysis.chip.trust import Change, explain, outcome

RANDOM = np.random.default_rng(1)
X, Y = RANDOM.standard_normal((48, 48)), RANDOM.standard_normal((48, 48))
FORMATS, VECTORS = ("float32", "tf32"), ("float32", "polynomial")


def tf32(x: Any) -> Any:
    """Cuts a float32 to 10 bits, as matrix units do."""
    return (np.float32(x).view(np.uint32) & 0xFFFFE000).view(np.float32).astype(np.float64)


def bfloat16(x: Any) -> Any:
    return np.asarray(x).astype(ml_dtypes.bfloat16).astype(np.float64)


def of(function: Any, *operands: Any) -> Any:
    return lambda change: function(*map(change, operands))


@pytest.mark.parametrize(
    ("rounded", "wanted"),
    [
        (lambda f, x, y: f(x, y), "exact"),
        (lambda f, x, y: f(np.float32(x), np.float32(y)).astype(np.float64), "float32"),
        (lambda f, x, y: np.float64(np.float32(f(tf32(x), tf32(y)))), "tf32"),
        (lambda f, x, y: f(x, y) * 1.02, "wrong"),
        (lambda f, x, y: np.where(np.eye(48), 0.0, f(x, y)), "wrong"),
    ],
)
@pytest.mark.parametrize("function", [np.matmul, lambda x, y: np.exp(x) * y])
def test_the_rounding_of_a_format(function: Any, rounded: Any, wanted: str) -> None:
    exact = function(X, Y)
    assert explain(rounded(function, X, Y), exact, FORMATS, of(function, X, Y)) == wanted


def test_a_sum_of_float32_is_not_rounded_to_bfloat16() -> None:
    """The bound of TF32 has room for it: the bits tell, and the vector unit has a narrower bound."""
    exact, moved = np.float32(X + Y).astype(np.float64), of(np.add, X, Y)
    assert trust.are_right(bfloat16(exact), exact, "tf32", moved).all()
    for formats in (FORMATS, VECTORS):
        assert explain(bfloat16(exact), exact, formats, moved) == "wrong"
        assert explain(np.float32(exact), exact, formats, moved) == "exact"
    assert explain(exact + 2.0**-19 * np.abs(exact), exact, VECTORS, moved) == "polynomial"
    assert explain(tf32(exact), exact, VECTORS, moved) == "wrong"


def test_a_product_is_not_rounded_to_bfloat16() -> None:
    exact, moved = X @ Y, of(np.matmul, X, Y)
    found = np.float32(tf32(X) @ tf32(Y)).astype(np.float64)
    assert trust.are_right(bfloat16(found), exact, "tf32", moved).all()
    assert explain(found, exact, FORMATS, moved) == "tf32"
    assert explain(bfloat16(found), exact, FORMATS, moved) == "wrong"


def test_numbers_of_bfloat16_are_no_sign_of_rounding() -> None:
    """Whole numbers are right, and so are probabilities of which all but one are flushed to zero."""
    x = np.round(8 * X)
    assert explain(np.float32(x @ x.T), x @ x.T, FORMATS, of(np.matmul, x, x.T)) == "exact"
    large = np.full(16, 1e300)
    assert explain(np.full(16, np.inf, np.float32), large, FORMATS, lambda change: change(large)) == "wrong"
    few, found = np.full(64, 1e-40), np.zeros(64)
    few[0] = found[0] = 1.0
    assert explain(found, few, FORMATS, lambda change: change(few)) != "wrong"
    assert explain(bfloat16(X[0, :7]), X[0, :7], FORMATS, lambda change: change(X[0, :7])) == "tf32"


def test_float32_does_not_explain_bfloat16() -> None:
    exact = np.exp(X) * Y
    found = bfloat16(np.exp(bfloat16(X)) * bfloat16(Y))
    assert explain(found, exact, FORMATS, of(lambda x, y: np.exp(x) * y, X, Y)) == "wrong"


def test_bfloat16_explains_bfloat16() -> None:
    x, y = bfloat16(X), bfloat16(Y)
    exact = x @ y
    assert explain(bfloat16(exact), exact, ("bfloat16",), of(np.matmul, x, y)) == "bfloat16"
    assert explain(bfloat16(exact) * 1.1, exact, ("bfloat16",), of(np.matmul, x, y)) == "wrong"


def test_infinities_and_nans_are_not_rounded() -> None:
    exact = np.array([np.inf, -np.inf, np.nan, 1.0])

    def moved(change: Change) -> Any:
        return np.concatenate([exact[:3], change(exact[3:])])

    assert explain(exact, exact, FORMATS, moved) == "exact"
    near = exact.copy()
    near[3] += 1e-8
    assert explain(near, exact, FORMATS, moved) == "float32"
    for index, value in ((0, 1e38), (1, np.inf), (2, 0.0), (3, np.nan), (3, np.inf)):
        other = exact.copy()
        other[index] = value
        assert explain(other, exact, FORMATS, moved) == "wrong"


def test_integers_are_exact_or_wrong() -> None:
    exact = np.arange(6)
    assert explain(exact.copy(), exact, (), of(np.negative, exact)) == "exact"
    assert explain(exact + 1, exact, (), of(np.negative, exact)) == "wrong"


def test_the_stored_table() -> None:
    """Every cell is an outcome; what was measured wrong, or not tried, is not trusted."""
    kinds = {*trust.RIGHT, trust.WRONG, "ended", "stands still", "refused"}
    assert {said.partition(":")[0] for said in trust._table().values()} <= kinds
    assert outcome("ttnn.full", "int16", "several tiles") == "refused: ttnn has no INT16"
    assert outcome("ttnn.to_layout", "int8", "odd") == "ended: no packer of 8 bits"
    assert outcome("ttnn.matmul", "float32", "several tiles") == "tf32"
    assert outcome("ttnn.sum", "uint32", "vectors") == "wrong"
    assert outcome("ttnn.sort", "float32", "one tile") == "wrong"
    assert outcome("ttnn.all_reduce", "float32", "one tile") == "not tried"
    assert trust.versions() == "ttnn 0.81.1, wolfpine 2.2, sfpi 7.87.0"
    tf32s = {callee for (callee, *_), cell in trust._table().items() if cell == "tf32"}
    assert {callee.removeprefix("ttnn.") for callee in tf32s} <= trust.MATRIX
    head = [line for line in trust.TABLE.read_text().splitlines() if line.startswith("#")]
    assert "`python -m tests.generators.chip`" in head[0]
    assert len(head) == 3
    assert all(size in head[-1] for size in trust.SIZES)


def test_a_wrong_row_and_a_missing_one_are_not_trusted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "table").write_text("# head\nttnn.exp | float32 | float32 1.0 | wrong 2.0 | - | stands still 60.0\n")
    monkeypatch.setattr(trust, "TABLE", tmp_path / "table")
    monkeypatch.setattr(trust, "_table", trust._table.__wrapped__)
    found = {size: outcome("ttnn.exp", "float32", size) for size in trust.SIZES}
    assert found == {"one tile": "float32", "several tiles": "wrong", "vectors": "not tried", "odd": "stands still"}
    assert outcome("ttnn.exp", "bfloat16", "one tile") == outcome("ttnn.log", "float32", "one tile") == "not tried"
    (tmp_path / "table").write_text("ttnn.exp | float32 | float32 1.0\n")
    with pytest.raises(ValueError, match="shorter"):
        outcome("ttnn.exp", "float32", "one tile")
