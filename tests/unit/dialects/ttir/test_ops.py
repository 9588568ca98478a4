"""Every op of TTIR against NumPy: both devices of a mesh, operands shared between them or of their own."""

from __future__ import annotations

import math
from typing import Any

import jax
import numpy as np
import pytest
from jax.sharding import AbstractMesh, PartitionSpec as P

import jaxmesh as jm
from jaxmesh.dialects import ttir as ttir_dialect
from jaxmesh.dialects.perform import evaluate
from tests.generators.ttir_cases import CASES
from tests.generators.ttir_cases.case import (
    BF16,
    MESH,
    Case,
    assert_cases,
    assert_varies_as_operands,
    of_each_form,
    wide,
)

pytestmark = pytest.mark.slow(but_one_in=4)


@pytest.mark.parametrize("row", sorted({c.row for c in CASES}))
def test_row_against_numpy(row: str) -> None:
    assert_cases([c for c in CASES if c.row == row])


@pytest.mark.parametrize("case", of_each_form(CASES), ids=lambda c: c.name)
def test_results_vary_as_operands_do(case: Case) -> None:
    assert_varies_as_operands(case)


@pytest.mark.parametrize("dtype", [np.float32, BF16])
def test_rand(dtype: Any) -> None:
    attributes = {"size": [50, 40], "low": -2.0, "high": 6.0, "seed": 3}

    def f() -> Any:
        return evaluate(ttir_dialect.OPS["rand"], [], attributes, [jax.ShapeDtypeStruct((50, 40), dtype)], MESH)[0]

    first, second = (wide(np.asarray(jm.jit(f, mesh=jm.make_mesh((2,), ("x",)))())) for _ in range(2))
    assert first.min() >= -2
    assert first.max() <= 6
    assert abs(first.mean() - 2) < 0.3
    assert abs(first.std() - 8 / math.sqrt(12)) < 0.2
    np.testing.assert_array_equal(first, second)


def test_a_splat_is_no_array() -> None:
    shape = (1 << 20, 1 << 20)
    mesh = AbstractMesh((2,), ("x",))
    for name, attributes in (
        ("constant", {"value": np.array(1.5, np.float32)}),
        ("zeros", {}),
        ("full", {"fill_value": 2}),
    ):
        row, result = ttir_dialect.OPS[name], jax.ShapeDtypeStruct(shape, np.float32)

        def f(row: Any = row, attributes: Any = attributes, result: Any = result) -> Any:
            return evaluate(row, [], attributes, [result], MESH)[0][:2, :2]

        jaxpr = jax.make_jaxpr(jax.shard_map(f, mesh=mesh, in_specs=(), out_specs=P()))()
        assert not jaxpr.consts


def test_every_row_is_tested() -> None:
    from tests.unit.dialects.ttir.test_collectives import TESTED

    experts = {"all_to_all_dispatch", "all_to_all_combine"}  # in tests/equivalence/test_experts.py
    tested = {c.row for c in CASES} | TESTED | experts | {"rand"}
    assert tested == set(ttir_dialect.OPS)
