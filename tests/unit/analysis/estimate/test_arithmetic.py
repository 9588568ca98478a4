"""The arithmetic of every op that has a rule, beside a count by hand or by loops."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from jaxmesh.analysis.account import work as traffic
from jaxmesh.analysis.account.work import Work, work
from jaxmesh.dialects.program import Op, Program, Type

Shape = tuple[int, ...]


def counted(name: str, operands: list[Shape], results: list[Shape], **attributes: Any) -> Work:
    """The work of one op on a mesh of 2x4."""
    program = Program("f", {"y": 2, "x": 4})
    ins, outs = ([program.new(Type(s, np.dtype("float32"))) for s in shapes] for shapes in (operands, results))
    return work(Op(f"ttnn.{name}", tuple(ins), tuple(outs), attributes), program)


def conv_pairs(height: int, kernel: int, stride: int) -> int:
    """Places of a window along one dim, with a border of one on each side, and the pairs of places and weights."""
    return sum(kernel for _ in range(0, height + 2 - kernel + 1, stride))


CASES: list[tuple[str, list[Shape], list[Shape], dict[str, Any], Work]] = [
    ("dump_tensor", [(4, 8)], [], {}, Work()),
    ("matmul", [(3, 5, 7), (7, 4)], [(3, 5, 4)], {}, Work(products=2 * 3 * 5 * 7 * 4)),
    ("matmul", [(7, 5), (4, 7)], [(5, 4)], {"transpose_a": True, "transpose_b": True}, Work(products=2 * 5 * 7 * 4)),
    ("matmul", [(7,), (7, 4)], [(4,)], {"transpose_a": True}, Work(products=2 * 7 * 4)),
    ("linear", [(5, 7), (7, 4), (4,)], [(5, 4)], {}, Work(2 * 5 * 7 * 4, 0, 20)),
    ("linear", [(5, 7), (7, 4)], [(5, 4)], {}, Work(2 * 5 * 7 * 4)),
    (
        "conv2d", [(1, 1, 2 * 9 * 9, 6), (8, 3, 3, 3), (1, 1, 1, 8)], [(1, 1, 2 * 5 * 5, 8)],
        {"in_channels": 6, "out_channels": 8, "groups": 2, "kernel_size": (3, 3)},
        Work(2 * 2 * 8 * 3 * conv_pairs(9, 3, 2) ** 2, 0, 2 * 25 * 8),
    ),
    (
        "conv_transpose2d", [(1, 1, 2 * 5 * 5, 6), (6, 8, 3, 3)], [(1, 1, 2 * 11 * 11, 8)],
        {"in_channels": 6, "out_channels": 8, "groups": 1, "kernel_size": (3, 3)},
        Work(2 * 2 * 25 * 6 * 8 * 9),
    ),
    ("layer_norm", [(4, 8), (8,), (8,)], [(4, 8)], {}, Work(0, 64, 32 * 5)),
    ("layer_norm", [(4, 8)], [(4, 8)], {}, Work(0, 64, 32 * 3)),
    ("rms_norm", [(4, 8), (8,)], [(4, 8)], {}, Work(0, 32, 32 * 3)),
    ("batch_norm_inference", [(2, 3, 4, 4), *[(1, 3, 1, 1)] * 4], [(2, 3, 4, 4)], {}, Work(0, 0, 2 * 96)),
    ("softmax", [(4, 8)], [(4, 8)], {"dimension": 1}, Work(0, 64, 96)),
    ("rotary_embedding", [(4, 8), (1, 8), (1, 8)], [(4, 8)], {}, Work(0, 0, 96)),
    *((name, [(4, 8)], [(4,)], {}, Work(0, 32)) for name in ("sum", "mean", "max", "min", "prod", "argmax")),
    ("global_avg_pool2d", [(2, 4, 4, 3)], [(2, 1, 1, 3)], {}, Work(0, 96)),
    *(
        (name, [(1, 1, 32, 3)], [(1, 1, 8, 3)], {"kernel_size": (2, 2)}, Work(0, 96))
        for name in ("max_pool2d", "avg_pool2d")
    ),
    *((name, [(4, 8)], [(4, 8)], {}, Work(0, 0, 32)) for name in ("cumsum", "sort", "topk")),
    *(
        (name, [(4, 8)], [(4, 8)], {"cluster_axis": 1}, Work(0, 0, 3 * 32 // 4))
        for name in ("all_reduce", "all_reduce_async", "reduce_scatter")
    ),
    ("scatter", [(8, 4), (2, 4), (2, 4)], [(8, 4)], {"scatter_reduce_type": "sum"}, Work(0, 0, 8)),
    ("scatter", [(8, 4), (2, 4), (2, 4)], [(8, 4)], {"scatter_reduce_type": "invalid"}, Work()),
    ("embedding_bw", [(2,), (16, 4), (2, 4)], [(16, 4)], {}, Work(0, 0, 8)),
    *(
        (name, [(4, 8)], [(4, 8)], {}, Work())
        for name in ("typecast", "upsample", "fill_cache", "update_cache", "concatenate_heads")
    ),
    ("split_query_key_value_and_split_heads", [(1, 4, 24)], [(1, 2, 4, 4)] * 3, {}, Work()),
    # No rule: what only moves or creates data, and one operation for each element.
    ("permute", [(4, 8)], [(8, 4)], {}, Work()),
    ("full", [], [(4, 8)], {}, Work()),
    ("all_gather", [(4, 8)], [(16, 8)], {"cluster_axis": 1}, Work()),
    ("multiply", [(4, 8), (1, 8)], [(4, 8)], {}, Work(0, 0, 32)),
    ("exp", [(4, 8)], [(4, 8)], {}, Work(0, 0, 32)),
]  # fmt: skip


@pytest.mark.parametrize(("name", "operands", "results", "attributes", "expected"), CASES)
def test_an_op_counts(
    name: str, operands: list[Shape], results: list[Shape], attributes: dict[str, Any], expected: Work
) -> None:
    found = counted(name, operands, results, **attributes)
    assert found == expected
    assert found.flops == expected.products + expected.reduced + expected.elementwise


@pytest.mark.parametrize(("rows", "columns", "causal"), [(5, 5, True), (1, 9, False), (4, 6, False), (3, 7, True)])
def test_attention_counts_the_pairs_that_see_each_other(rows: int, columns: int, causal: bool) -> None:
    pairs = sum(not causal or key <= query for query, key in itertools.product(range(rows), range(columns)))
    shapes = [(2, 6, rows, 16), (2, 3, columns, 16), (2, 3, columns, 16)]
    found = counted("scaled_dot_product_attention", shapes, [(2, 6, rows, 16)], is_causal=causal)
    assert found == Work(2 * 2 * 12 * pairs * 16, 2 * 12 * pairs, 3 * 12 * pairs)


def test_every_rule_is_tested() -> None:
    tested = {name for name, *_ in CASES} | {"scaled_dot_product_attention"}
    assert traffic._RULES.keys() <= tested
