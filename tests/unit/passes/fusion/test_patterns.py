"""Fusion: patterns are found as code writes them, and left alone where the operation means something else."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest

from jaxmesh.dialects import ttir
from jaxmesh.dialects.program import Port, Program, Type
from jaxmesh.passes.flatten.builder import Builder
from jaxmesh.passes.flatten.flatten import RULES
from jaxmesh.passes.fusion.driver import FUSIONS, OF_GROUPS, fuse
from tests.generators.fusion_cases import (
    F32,
    NEGATIVE,
    NORMS,
    POINTWISE,
    POSITIVE,
    SOFTMAX,
    XW,
    XWB,
    Case,
    X,
    assert_case,
    eager,
    found,
    listed,
    rms,
)
from tests.generators.oracles import calls_made

pytestmark = pytest.mark.slow(but_one_in=2)


@pytest.mark.slow(but_one_in=4)
@pytest.mark.parametrize("case", listed(POSITIVE))
def test_found(case: Case) -> None:
    assert_case(case)


@pytest.mark.slow(but_one_in=4)
@pytest.mark.parametrize("case", listed(NEGATIVE))
def test_not_found(case: Case) -> None:
    assert_case(case)


# --- what holds in general -------------------------------------------------------------------------------------------


def test_every_pattern_is_named_by_an_operation_that_ends_it() -> None:
    assert all(fusion.roots and ttir.OPS.keys() >= {*fusion.roots, *fusion.needs} for fusion in (*FUSIONS, *OF_GROUPS))


def test_a_program_is_not_changed_but_copied() -> None:
    program = two_layers()
    before = (list(program.ops), list(program.types), list(program.results))
    grouped = fuse(program)
    assert before == (program.ops, program.types, program.results)
    assert [op.name for op in grouped.ops] == ["ttir.linear", "ttir.relu", "ttir.linear"]
    assert fuse(grouped).ops == grouped.ops


def two_layers() -> Program:
    return Case(
        lambda x, w, b, v, c: jax.nn.relu(x @ w + b) @ v + c, "", ((3, 4), (4, 5), (5,), (5, 2), (2,))
    ).program()


def test_lines_stay() -> None:
    program = Case(jax.nn.silu, "silu", X).program()
    (op,) = fuse(program).ops
    assert op.line == program.ops[-1].line


def test_left_out_operands_are_none() -> None:
    def operands(function: Any, shapes: Any) -> Any:
        (op,) = fuse(Case(function, "", shapes).program()).ops
        return op.operands, dict(op.attributes)

    attributes = {"normalized_shape": (4,), "epsilon": float(F32(1e-5))}
    assert operands(rms, X) == ((0, None, None), attributes)
    assert operands(lambda x, w: rms(x) * w, XW) == ((0, 1, None), attributes)
    assert operands(lambda x, b: rms(x) + b, XW) == ((0, None, 1), attributes)
    assert operands(lambda x, w, b: rms(x) * w + b, XWB) == ((0, 1, 2), attributes)


def test_operands_are_reshaped_where_they_have_to_be() -> None:
    grouped = fuse(NORMS["rms, weight of another rank"].program())
    reshape, norm = grouped.ops
    assert (reshape.name, reshape.attributes["shape"]) == ("ttir.reshape", (4,))
    assert norm.operands[1] == reshape.results[0]


def test_infinities_and_what_is_not_a_number() -> None:
    """In the same places, group or not."""
    odd = np.array([[np.nan, 1, -np.inf, 0], [np.inf, -1, 2, 3], [-np.inf] * 4, [-0.0, 1e38, -1e38, 100]], F32)
    for table in (SOFTMAX, POINTWISE):
        for case in table.values():
            if case.shapes == X and case.dtype is F32:
                program = case.program()
                full = np.broadcast_to(odd[:3], (2, 3, 4)).copy()
                full[1] = odd[1:]
                for a, b in zip(eager(fuse(program), [full]), eager(program, [full]), strict=True):
                    np.testing.assert_array_equal(np.isnan(a), np.isnan(b))
                    np.testing.assert_array_equal(np.isinf(a), np.isinf(b))


def long_program(layers: int) -> Program:
    """A chain with something to look through between and something to find in each link."""
    program = Program("chain", {"x": 1}, [Type((4, 4), np.dtype(F32))], [Port(0, False)])
    b, x = Builder(program, "ttir", RULES), 0
    for i in range(layers):
        x = b.reshape(b.reshape(x, (1, 4, 4)), (4, 4))
        x = b.same("multiply", [x, b.same("sigmoid", [x])])
        x = b.same("add", [b.same("matmul", [x, x]), b.full((4,), float(i), F32)])
        x = b.same("maximum", [x, b.full((), -np.inf, F32)])
    program.results = [Port(x, False)]
    return program


def test_the_work_is_linear() -> None:
    def calls(layers: int) -> int:
        program = long_program(layers)
        assert found(fuse(program))["silu"] == layers
        return calls_made(lambda: fuse(program))

    assert calls(1_000) < 8 * 1.1 * calls(125)
