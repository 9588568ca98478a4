"""Texts without shardings, which Shardy does not see: inlined calls, repeated reductions, and Python's collector."""

from __future__ import annotations

import gc
import itertools

import numpy as np
import pytest

import jaxmesh as jm
from jaxmesh.jaxprs import source_locations


def test_calls_within_calls_are_inlined() -> None:
    kind = "tensor<4x4xf32>"
    one = f"(%a: {kind}, %b: {kind}) -> {kind}"
    called = f"({kind}, {kind}) -> {kind}"
    text = f"""module {{
  func.func public @main{one} {{
    %0 = call @outer(%a, %b) : {called}
    %1 = call @outer(%0, %a) : {called}
    return %1 : {kind}
  }}
  func.func private @outer{one} {{
    %0 = call @inner(%a, %b) : {called}
    %1 = call @inner(%b, %0) : {called}
    %2 = stablehlo.subtract %0, %1 : {kind}
    return %2 : {kind}
  }}
  func.func private @inner{one} {{
    %0 = stablehlo.dot_general %a, %b, contracting_dims = [1] x [0] : {called}
    return %0 : {kind}
  }}
}}"""

    def outer(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return a @ b - b @ (a @ b)

    a, b = np.random.default_rng(0).integers(-2, 3, (2, 4, 4)).astype(np.float32)
    traced = jm.from_mlir(text)
    np.testing.assert_array_equal(traced.reference(a, b), outer(outer(a, b), a))
    assert [source_locations.line_of(e) for e in traced.jaxpr.eqns if e.primitive.name == "dot_general"] == [
        "line 14: stablehlo.dot_general"
    ] * 4


def test_reductions_that_start_from_different_numbers_differ() -> None:
    kind, row = "tensor<3x4xf32>", "tensor<3xf32>"
    starts = [0.0, 5.0, 0.0, -1.0, 5.0]
    lines = [f"%c{i} = stablehlo.constant dense<{s}> : tensor<f32>" for i, s in enumerate(starts)]
    for i, name in enumerate(["add", "add", "maximum", "maximum", "add"]):
        lines.append(
            f"%r{i} = stablehlo.reduce(%a init: %c{i}) applies stablehlo.{name} across dimensions = [1] : "
            f"({kind}, tensor<f32>) -> {row}"
        )
    results = ", ".join(f"%r{i}" for i in range(5))
    types = ", ".join([row] * 5)
    body = "\n".join(lines)
    text = f"func.func @main(%a: {kind}) -> ({types}) {{\n{body}\nreturn {results} : {types}\n}}"
    a = np.arange(-6, 6, dtype=np.float32).reshape(3, 4)
    total, most = a.sum(1), a.max(1)
    expected = [total, total + 5, np.maximum(most, 0), np.maximum(most, -1), total + 5]
    for y, wanted in zip(jm.from_mlir(text).reference(a), expected, strict=True):
        np.testing.assert_array_equal(y, wanted)


@pytest.mark.parametrize("pairs", list(itertools.permutations(["ab", "aa", "bb", "ba"])))
def test_an_op_that_is_repeated_reads_its_own_operands(pairs: tuple[str, ...]) -> None:
    kind, rows = "tensor<4xf32>", [*pairs, *pairs]
    lines = [f"%{i} = stablehlo.subtract %{x}, %{y} : {kind}" for i, (x, y) in enumerate(rows)]
    results, types = ", ".join(f"%{i}" for i in range(len(rows))), ", ".join([kind] * len(rows))
    body = "\n".join(lines)
    text = f"func.func @main(%a: {kind}, %b: {kind}) -> ({types}) {{\n{body}\nreturn {results} : {types}\n}}"
    values = dict(zip("ab", np.arange(8, dtype=np.float32).reshape(2, 4) ** 2, strict=True))
    found = jm.from_mlir(text).reference(values["a"], values["b"])
    for y, (first, second) in zip(found, rows, strict=True):
        np.testing.assert_array_equal(y, values[first] - values[second])


def test_the_collector_of_cycles_stays_as_it_was() -> None:
    text = "func.func @main(%a: tensor<4xf32>) -> tensor<4xf32> {\nreturn %a : tensor<4xf32>\n}"
    gc.disable()
    try:
        jm.from_mlir(text)
        assert not gc.isenabled()
    finally:
        gc.enable()
    jm.from_mlir(text)
    assert gc.isenabled()


@pytest.mark.parametrize("fills", [True, False])
def test_rows_outside_of_a_gather_that_tenstorrent_marks_are_zeros(fills: bool) -> None:
    table = np.arange(12, dtype=np.float32).reshape(4, 3) + 1
    text = f"""func.func @main(%x: tensor<4x3xf32>, %i: tensor<5x1xi32>) -> tensor<5x3xf32> {{
      %0 = "stablehlo.gather"(%x, %i) <{{dimension_numbers = #stablehlo.gather<offset_dims = [1],
        collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = 1>, slice_sizes = array<i64: 1, 3>}}>
        {"{tt.fill_out_of_bounds}" if fills else ""} : (tensor<4x3xf32>, tensor<5x1xi32>) -> tensor<5x3xf32>
      return %0 : tensor<5x3xf32>
    }}"""
    index = np.array([0, -1, 3, 4, -9], np.int32)
    inside = ((index >= 0) & (index < 4))[:, None]
    wanted = table[np.clip(index, 0, 3)] * (inside if fills else 1)
    lowered = jm.from_mlir(text, jm.make_mesh((1, 1))).lower()
    np.testing.assert_array_equal(lowered.compile()(table, index[:, None]), wanted)
