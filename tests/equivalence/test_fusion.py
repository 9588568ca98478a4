"""Fused programs give what they gave before: random changes, and whole programs over a mesh."""

from __future__ import annotations

import collections
import dataclasses
import functools
from typing import Any

import hypothesis
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxmesh.dialects.program import Program
from jaxmesh.passes.fusion.driver import fuse
from tests.generators.flat_programs import flat_of, run_flat
from tests.generators.fusion_cases import EPS, POSITIVE, ROOT2, Case, eager, found
from tests.generators.oracles import cases
from tests.generators.suite.all_programs import BY_NAME

pytestmark = pytest.mark.slow(but_one_in=24)


# --- patterns with one thing changed ---------------------------------------------------------------------------------

CASES = [c for table in POSITIVE.values() for c in table.values()]


@functools.cache
def square_program(number: int) -> tuple[Program, Case] | None:
    """The program with all dims alike, so that other dims and operands fit; none where the function minds."""
    case = CASES[number]
    shapes = tuple(tuple(n if n == 1 else 3 for n in shape) for shape in case.shapes)
    case = dataclasses.replace(case, shapes=shapes)
    try:
        return case.program(), case
    except (TypeError, ValueError):
        return None


UNARY = ["exp", "neg", "sqrt", "rsqrt", "reciprocal", "sigmoid", "erf", "erfc", "abs"]
BINARY = ["add", "subtract", "multiply", "div", "maximum", "minimum"]
NUMBERS = [0.0, 1.0, -1.0, 0.5, 2.0, 3.0, 1 / 3, 1e-5, float(ROOT2), -float(np.sqrt(0.5)), np.inf, -np.inf]


def changed(draw: Any, program: Program) -> Program:
    """The program with another operand, number, dim or name somewhere."""
    at = draw(st.integers(0, len(program.ops) - 1))
    op, name = program.ops[at], program.ops[at].name.removeprefix("ttir.")
    before = {r for o in program.ops[:at] for r in o.results} | {a.value for a in program.arguments}
    new = op
    if name == "full":
        value = draw(st.sampled_from(NUMBERS))
        new = dataclasses.replace(op, attributes={**op.attributes, "fill_value": value})
    elif "dim_arg" in op.attributes and draw(st.booleans()):
        shape, count = program.types[op.operands[0]].shape, len(op.attributes["dim_arg"])
        dims = tuple(sorted(draw(st.permutations(range(len(shape))))[:count]))
        left = tuple(1 if d in dims else n for d, n in enumerate(shape) if op.attributes["keep_dim"] or d not in dims)
        fits = left == program.types[op.results[0]].shape
        new = dataclasses.replace(op, attributes={**op.attributes, "dim_arg": dims}) if fits else op
    elif name in UNARY + BINARY and draw(st.booleans()):
        new = dataclasses.replace(op, name="ttir." + draw(st.sampled_from(UNARY if name in UNARY else BINARY)))
    elif op.operands:
        place = draw(st.integers(0, len(op.operands) - 1))
        alike = [v for v in sorted(before) if program.types[v] == program.types[op.operands[place]]]
        operands = list(op.operands)
        operands[place] = draw(st.sampled_from(alike))
        new = dataclasses.replace(op, operands=tuple(operands))
    return program.like([*program.ops[:at], new, *program.ops[at + 1 :]], program.results)


@pytest.mark.slow
@cases(100)
@hypothesis.given(st.data())
def test_one_thing_changed(data: Any) -> None:
    """Whatever it means now, with groups it means the same."""
    made = square_program(data.draw(st.integers(0, len(CASES) - 1)))
    hypothesis.assume(made is not None)
    program, case = made
    for _ in range(data.draw(st.integers(1, 2))):
        program = changed(data.draw, program)
    grouped = fuse(program)
    hypothesis.assume(found(grouped) != found(program))
    args = case.args(data.draw(st.integers(0, 3)))
    with np.errstate(all="ignore"):
        wanted = eager(program, args)
        near = [eager(program, nudged(args, seed)) for seed in range(4)]
        for i, (a, b) in enumerate(zip(eager(grouped, args), wanted, strict=True)):
            same_up_to(a, b, [other[i] for other in near])


def nudged(args: list[Any], seed: int) -> list[Any]:
    """Other numbers by a rounding or two: what a program makes of that is what it makes of rounding."""
    rng = np.random.default_rng(seed)
    return [x if x.dtype.kind in "iub" else (x * (1 + rng.choice([-1, 0, 1], x.shape) *
            float(jnp.finfo(x.dtype).eps))).astype(x.dtype) for x in args]  # fmt: skip


def same_up_to(a: Any, b: Any, near: list[Any]) -> None:
    """Equal within rounding, or within some times of what rounding of the arguments does."""
    a, b, *others = (np.asarray(v).astype(np.float64) for v in (a, b, *near))
    finite = np.isfinite(b)
    steady = finite & np.all([np.isfinite(o) for o in others], axis=0)
    scale = np.abs(b[finite]).max(initial=1)
    noise = np.max([np.abs(o - b)[steady].max(initial=0) for o in others])
    limit = 30 * (EPS[near[0].dtype.name] * scale + noise)
    assert np.all(np.abs(a - b)[steady] <= limit), (a, b, limit)
    # What is not finite is so in both ways, unless a rounding decides on it.
    certain = np.all([np.isfinite(o) == finite for o in others], axis=0)
    np.testing.assert_array_equal(np.isnan(a)[certain], np.isnan(b)[certain])


# --- the suite -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("level", ["ttir", "ttnn"])
@pytest.mark.parametrize(
    ("name", "groups"),
    [
        ("llama block", "rms_norm rms_norm softmax silu"),
        ("mlp with biases", "linear gelu"),
        ("mlp in bfloat16", "rms_norm silu softmax"),
        ("layer_norm and linear on 8", "layer_norm linear"),
        ("pooled head", "mean linear softmax"),
        ("attention with a cache", "softmax"),
        ("mixture of experts", "softmax relu"),
    ],
)
def test_in_programs_over_a_mesh(name: str, groups: str, level: str) -> None:
    entry = BY_NAME[name]
    grouped = fuse(flat_of(entry.traced if level == "ttir" else entry.lowered, level))
    assert found(grouped) == collections.Counter(groups.split())
    entry.check(run_flat(grouped, entry.mesh, *jax.tree.leaves(entry.args())))
