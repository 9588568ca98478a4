"""An operation that is read from a text is the same operation in the texts that are written of it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import test_ops
import test_ops_neural
from flat import run_flat
from helpers import EVERY
from mlir_texts import program as module
from test_mlir_text import cases_program

import jaxmesh as jm
from jaxmesh.emit.mlir import mlir_text
from jaxmesh.ops.table import ROWS
from jaxmesh.passes.to_ttnn import to_ttnn
from jaxmesh.program import Program

CASES: dict[str, list[Any]] = {}
for _case in [*test_ops.CASES, *test_ops_neural.CASES]:
    # TTIR declares some dims without sign.
    if _case.attributes.get("dimension") != -1:
        CASES.setdefault(_case.row, []).append(_case)

OF_A_MESH = {
    "mesh_shard", "all_gather", "all_reduce", "all_reduce_async", "reduce_scatter", "mesh_partition",
    "collective_permute", "collective_broadcast", "all_to_all", "distributed_rms_norm", "distributed_layer_norm",
}  # fmt: skip
"""Rows without a case of one device: the passes make them legal, which has tests of its own."""

UNTRIED = {"get_dimension_size", "rand"}
"""The types say the first one's number; no oracle has the numbers of the second, which is looked at below."""

OTHER_TTIR = {"empty": "memory that nothing has written is a full of zeros"}
OTHER_TTNN = {
    "gather": "TTNN has none; rows of a table are an embedding, which the meaning shows",
    "slice_dynamic": "TTNN has none with a start that is no number",
    "dot_general": "TTNN has matmul, around which the meaning has fewer moves",
    "convolution": "TTNN has conv2d, around which the meaning has fewer moves",
    "empty": OTHER_TTIR["empty"],
}
"""Rows of which no operation is kept, or not always, with the reason."""


def made_of(case: Any) -> Program:
    """One operation on what the devices hold; one that takes nothing gives a full tensor."""
    made, _ = cases_program([case])
    if case.operands and case.row not in OTHER_TTIR:
        made.arguments = [replace(p, presharded=True) for p in made.arguments]
        made.results = [replace(p, presharded=True) for p in made.results]
    return made


def ops_of(text: str) -> list[str]:
    return [line.split('"')[1] for line in text.splitlines() if '= "' in line and "ttcore.meshes" not in line]


MOVES = {"get_device", "distribute_tensor", "aggregate_tensor", "to_device", "from_device", "to_layout", "reshape"}


def computing(ops: Iterable[str]) -> list[str]:
    """The operations that are not made where, and as often as, they are needed."""
    return sorted(o for o in ops if o.split(".")[1] not in MOVES)


def test_every_row_is_looked_at() -> None:
    assert set(ROWS) == set(CASES) | OF_A_MESH | UNTRIED


def chosen(row: str) -> list[Any]:
    found = CASES[row]
    return found if EVERY else found[-1:]


@pytest.mark.parametrize("row", sorted(CASES))
def test_an_op_of_a_text_stays_itself(row: str) -> None:
    kept: set[tuple[bool, bool]] = set()
    for case in CASES[row] if row in OTHER_TTNN else chosen(row):
        made = made_of(case)
        text = mlir_text(made)
        traced = jm.from_mlir(text)
        upper, lower = traced.as_text(), traced.lower().as_text()
        kept.add((ops_of(upper) == [f"ttir.{row}"], ops_of(lower) == ops_of(mlir_text(to_ttnn(made)))))
        if upper != text:
            # Written once, the spelling does not change any more.
            assert jm.from_mlir(upper).as_text() == upper
            assert jm.from_mlir(upper).lower().as_text() == lower
        if row not in OTHER_TTNN:
            assert computing(ops_of(jm.from_mlir(lower).lower().as_text())) == computing(ops_of(lower))
    assert {u for u, _ in kept} == {row not in OTHER_TTIR}
    assert (False in {n for _, n in kept}) == (row in OTHER_TTNN)


@pytest.mark.skipif(not EVERY, reason="every row, compiled twice")
@pytest.mark.parametrize("first", range(0, len(CASES), 40))
def test_what_is_kept_gives_the_same_values(first: int) -> None:
    """The program that is written computes what the program that runs does: by the meaning of each op."""
    cases = [c for row in sorted(CASES)[first : first + 40] for c in chosen(row)]
    made, arguments = cases_program(cases)
    lowered = jm.from_mlir(mlir_text(made)).lower()
    want = lowered.compile()(*arguments)
    got = run_flat(lowered._program(True, 1000), jm.make_mesh((2,), ("x",)), *arguments)
    assert len(got) == len(want)
    for number, (one, other) in enumerate(zip(got, want, strict=True)):
        test_ops.close(f"result {number}", np.asarray(one), np.asarray(other))


def test_without_groups_an_op_is_what_it_means() -> None:
    line = '%0 = "ttir.relu6"(%x) : (tensor<4xf32>) -> tensor<4xf32>'
    traced = jm.from_mlir(module(None, "%x: tensor<4xf32>", "tensor<4xf32>", line, "return %0 : tensor<4xf32>"))
    assert ops_of(traced.as_text()) == ["ttir.relu6"]
    assert "ttnn.relu6" in ops_of(traced.lower().as_text())
    assert "ttnn.relu6(" in traced.lower().as_text("python")
    for stage in (traced, traced.lower()):
        assert not {"ttir.relu6", "ttnn.relu6"} & {*ops_of(stage.as_text(groups=False))}
    assert "ttir_op" not in traced.as_text("jaxpr")


def test_random_numbers_and_dimensions_of_a_text() -> None:
    said = "high = 2.0 : f32, low = 1.0 : f32, seed = 7 : ui32, size = [4 : i32]"
    rand = f'%0 = "ttir.rand"() <{{{said}}}> : () -> tensor<4xf32>'
    traced = jm.from_mlir(module(None, "", "tensor<4xf32>", rand, "return %0 : tensor<4xf32>"))
    assert ops_of(traced.as_text()) == ["ttir.rand"]
    assert "ttnn.rand" in ops_of(traced.lower().as_text())


def test_order_and_constants_are_those_of_the_text() -> None:
    lines = [
        """%0 = "ttir.relu6"(%x) : (tensor<2x2xf32>) -> tensor<2x2xf32>""",
        """%1 = "ttir.constant"() <{value = dense<1.5> : tensor<2x2xf32>}> : () -> tensor<2x2xf32>""",
        """%2 = "ttir.constant"() <{value = dense<1.5> : tensor<2x2xf32>}> : () -> tensor<2x2xf32>""",
        """%3 = "ttir.add"(%0, %1) : (tensor<2x2xf32>, tensor<2x2xf32>) -> tensor<2x2xf32>""",
        """%4 = "ttir.where"(%x, %3, %2) : (tensor<2x2xf32>, tensor<2x2xf32>, tensor<2x2xf32>) -> tensor<2x2xf32>""",
    ]
    text = module(None, "%x: tensor<2x2xf32>", "tensor<2x2xf32>", *lines, "return %4 : tensor<2x2xf32>")
    traced = jm.from_mlir(text)
    assert ops_of(traced.as_text()) == ["ttir.relu6", "ttir.constant", "ttir.constant", "ttir.add", "ttir.where"]
    assert traced.as_text().count("dense<1.500000e+00> : tensor<2x2xf32>") == 2
    x = np.array([[7, -1], [0, 2]], np.float32)
    got = traced.lower().compile()(x)
    np.testing.assert_array_equal(got, np.where(x != 0, np.clip(x, 0, 6) + 1.5, 1.5))
