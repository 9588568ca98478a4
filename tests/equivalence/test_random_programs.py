"""Random whole programs: every way to run one gives what a loop over the devices gives."""

from __future__ import annotations

import collections
import contextlib
import io
import os
from collections.abc import Sequence
from typing import Any

import hypothesis
import hypothesis.strategies as st
import jax
import pytest

import jaxmesh as jm
from jaxmesh import ttnn
from jaxmesh.passes.mesh_shard import lower_mesh_shard
from jaxmesh.runtime import reference_collectives
from tests.generators.oracles import count_of
from tests.generators.programs import run as random_programs
from tests.generators.programs.collectives import MOVES
from tests.generators.programs.draw import Argument
from tests.generators.programs.elementwise import TABLE
from tests.generators.programs.execution_paths import FORMS, check
from tests.generators.programs.program import Program, draw_program
from tests.generators.programs.values import Seeded, Statement, World

PARTS = 5
PROGRAMS = count_of(160, 120)
ALWAYS = ("TTIR-level reference run", "TTNN-level reference run", "compiled program")
TEXTS = ("TTIR text read back", "TTNN text read back")
REST = tuple(f for f in FORMS if f not in (*ALWAYS, *TEXTS))
CONTROL = ("call", "scan", "fori", "loop", "cond", "region")


class Drawn:
    """Choices from hypothesis, which makes a failing program smaller."""

    def __init__(self, data: Any) -> None:
        self._data = data

    def integers(self, low: int, high: int) -> int:
        return int(self._data.draw(st.integers(low, high)))

    def choice(self, options: Sequence[Any]) -> Any:
        return options[self.integers(0, len(options) - 1)]

    def boolean(self) -> bool:
        return bool(self._data.draw(st.booleans()))


def settings(count: int, **more: Any) -> Any:
    derandomize = "JAXMESH_CASES" not in os.environ
    return hypothesis.settings(
        max_examples=count, deadline=None, derandomize=derandomize, database=None,
        suppress_health_check=list(hypothesis.HealthCheck), **more,
    )  # fmt: skip


def run_programs(part: int, count: int, **more: Any) -> collections.Counter[str]:
    """Draws programs, runs each, and fails with the smallest that is wrong; gives how often each way was taken."""
    ran: collections.Counter[str] = collections.Counter()

    @hypothesis.seed(part)
    @settings(count, **more)
    @hypothesis.given(st.data())
    def run(data: Any) -> None:
        draw = Drawn(data)
        # A third of the programs go through the texts, a third through what is left, a third through all of it.
        forms = (*ALWAYS, *draw.choice([(*TEXTS, *REST), TEXTS, REST]))
        program = draw_program(draw)
        report = check(program, forms)
        ran.update([*report.ran, "programs"])
        if ran["programs"] % 200 == 0:
            # Long forms compile more programs than memory holds.
            jax.clear_caches()
        assert not report.failures, "\n".join(["", program.shown(), *report.failures])

    run()
    return ran


@pytest.mark.parametrize("part", range(PARTS))
def test_every_way_to_run_a_program_agrees(part: int) -> None:
    count = -(-PROGRAMS // PARTS)
    ran = run_programs(part, count)
    assert ran["programs"] >= count
    # Two thirds are expected; the fewer programs, the further off it may be.
    least = ran["programs"] // (3 if count >= 60 else 5)
    short = {form: ran[form] for form in FORMS if ran[form] < least}
    assert not short, ran


def test_every_operation_is_drawn() -> None:
    seen: collections.Counter[str] = collections.Counter()
    styles: collections.Counter[Any] = collections.Counter()

    def count(statements: Sequence[Statement]) -> None:
        for s in statements:
            seen[s.op] += 1
            for body in s.bodies:
                count(body.statements)

    for seed in range(1500):
        program = draw_program(Seeded(seed))
        count(program.statements)
        styles[program.style] += 1
        styles.update(["presharded"] * any(a.placed is not None for a in program.arguments))
        styles.update(["dynamic"] * program.dynamic)
        styles.update(["twice"] * (len({*program.results}) < len(program.results)))
        styles.update(["input returned"] * bool({*program.results} & {a.name for a in program.arguments}))
        styles.update(a.dtype for a in program.arguments)
    assert {*seen} == {*TABLE, *MOVES, *CONTROL}
    for what in ("shards", "mapped", "drop-in", "presharded", "dynamic", "twice", "input returned", "bfloat16", "bool"):
        assert styles[what] >= 10, (what, styles)


def test_a_seed_gives_one_program() -> None:
    a, b = (draw_program(Seeded(7)) for _ in range(2))
    assert a.shown() == b.shown()
    assert len({draw_program(Seeded(s)).source() for s in range(50)}) == 50


def test_a_program_is_shown_as_a_file_that_runs() -> None:
    program = halves("a", "b")
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        exec(compile(program.shown(), "<shown>", "exec"), {"__name__": "__main__"})
    (got,) = program.function()(*program.given())
    assert out.getvalue() == f"({got!r},)\n"


# --- the test can fail -----------------------------------------------------------------------------------------------


def halves(*axes: str) -> Program:
    """A square split both ways, summed over one axis of the mesh, and put together."""
    world = World(("a", "b"), (2, 2))
    rows = (axes[:1], axes[1:])
    statements = (
        Statement(("v1",), "distribute", ("x0",), {"rows": rows, "raw": False}),
        Statement(("v2",), "sub", ("v1", "v1"), {}),
        Statement(("v3",), "next", ("v1",), {}),
        Statement(("v4",), "sub", ("v3", "v2"), {}),
        Statement(("v5",), "psum", ("v4",), {"axes": ("b",)}),
        Statement(("v6",), "aggregate", ("v5",), {"rows": (("a",), ()), "raw": False}),
    )
    argument = Argument("x0", (4, 4), "float32", 3, None)
    sure = frozenset(f"v{i}" for i in range(1, 7))
    return Program(world, "shards", (argument,), statements, ("v6",), (True,), sure)


def failing(program: Program) -> dict[str, list[str]]:
    """Failures by the way to run."""
    found: dict[str, list[str]] = {}
    for line in check(program).failures:
        found.setdefault(line.split(":")[0], []).append(line)
    return found


def test_without_a_fault_there_is_no_failure() -> None:
    assert not failing(halves("a", "b"))


def test_a_wrong_mapper_dim_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    right = lower_mesh_shard._plan_distribute
    monkeypatch.setattr(lower_mesh_shard, "_plan_distribute", lambda shape, dims, mesh: right(shape, dims[::-1], mesh))
    found = failing(halves("a", "b"))
    # What does not go through the pass is right.
    assert set(found) == set(FORMS) - {"TTIR-level reference run"}
    assert "expected" in found["compiled program"][0]


def test_a_dropped_psum_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    rules: Any = reference_collectives.COLLECTIVE_RULES
    monkeypatch.setitem(rules, "psum_invariant", lambda rows, params: rows)
    found = failing(halves("a", "b"))
    assert {"TTIR-level reference run", "TTNN-level reference run"} <= set(found)
    assert not {"compiled program", "call", "emitted Python"} & set(found)


def test_swapped_axes_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    right = jm.full_to_shard
    monkeypatch.setattr(jm, "full_to_shard", lambda x, spec: right(x, jax.sharding.PartitionSpec(*reversed(spec))))
    assert set(failing(halves("a", "b"))) == set(FORMS)


def test_a_wrong_call_of_the_emulation_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ttnn, "subtract", ttnn.add)
    assert set(failing(halves("a", "b"))) == {"emitted Python"}


def test_a_failure_shows_the_smallest_program_and_both_values(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ttnn, "subtract", ttnn.add)
    program = halves("a", "b")
    text = random_programs.described(program, 3, lambda p: check(p).failures)
    assert "    v2 = v1 - v1\n    return (v2,)\n" in text
    assert "v3" not in text
    assert "emitted Python: v2 at (0, 0): got " in text
    assert ", expected [[0.,0.], [0.,0.]]" in text


def test_random_programs_find_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    right = lower_mesh_shard._plan_distribute

    def wrong(shape: Any, dims: Any, mesh: Any) -> Any:
        return right(shape, dims[::-1], mesh)

    monkeypatch.setattr(lower_mesh_shard, "_plan_distribute", wrong)
    with pytest.raises(AssertionError, match=r"def program\("):
        run_programs(0, 30, phases=[hypothesis.Phase.generate])
    jax.clear_caches()


# --- as a part of the self-test --------------------------------------------------------------------------------------


def test_the_self_test_runs_programs() -> None:
    lines: list[str] = []
    outcome = random_programs.run(10, 0, lines.append)
    assert outcome.passed, "\n".join(outcome.failures)
    assert outcome.checks >= 10 * (len(FORMS) - len(TEXTS) - 1)
    assert lines == ["random programs: 10 of 10"]


def test_the_self_test_reports_failures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(random_programs, "draw_program", lambda draw: halves("a", "b"))
    monkeypatch.setattr(ttnn, "subtract", ttnn.add)
    outcome = random_programs.run(1, 5, lambda line: None)
    assert not outcome.passed
    assert outcome.failures[0].startswith("random program of seed 5:\nimport jax\n")
