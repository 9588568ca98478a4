"""Rates, machines, errors, texts and pictures of estimates."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AbstractMesh, PartitionSpec as P

import jaxmesh as jm
from jaxmesh import errors
from jaxmesh.analysis.estimate import MACHINES, Estimate, estimate_program
from jaxmesh.analysis.estimate.cost import PARTS, PHASES, PRODUCT, sources
from jaxmesh.analysis.machines import machine_for
from jaxmesh.dialects.program import Op, Port, Program, Type
from jaxmesh.drawing.text_layout import duration
from jaxmesh.jaxprs.source_locations import line_key, short_location

PUBLISHED = [
    ("n150", "HiFi4", 74), ("n150", "HiFi2", 148), ("n300", "HiFi4", 65.5), ("n300", "HiFi2", 131),
    ("p150", "LoFi", 774),
]  # fmt: skip
"""TFLOPS of one chip, as the data sheets have them: FP16, BLOCKFP8, and of the p150 BLOCKFP8 with all its cores."""


def block(mesh: tuple[int, int] = (2, 4)) -> Any:
    def fun(x: Any, up: Any, down: Any) -> Any:
        x, up, down = jm.full_to_shard(x, P("y")), jm.full_to_shard(up, P(None, "x")), jm.full_to_shard(down, P("x"))
        return jm.shard_to_full(jax.lax.psum(jax.nn.relu(x @ up) @ down, "x"), P("y"))

    shapes = [(64, 512), (512, 2048), (2048, 512)]
    types = [jax.ShapeDtypeStruct(shape, jnp.bfloat16) for shape in shapes]
    return jm.jit(fun, mesh=AbstractMesh(mesh, ("y", "x"))).lower(*types)


@pytest.mark.parametrize(("name", "fidelity", "tflops"), PUBLISHED)
def test_peaks_are_those_of_the_data_sheets(name: str, fidelity: str, tflops: float) -> None:
    found = MACHINES[name].per_second(PRODUCT) / PHASES[fidelity] / 1e12
    assert found == pytest.approx(tflops, rel=0.005)


def test_a_fidelity_is_a_number_of_passes() -> None:
    """As the report on products has the cycles of a tile: 16, 32, 48, 64."""
    assert [16 * passes for passes in PHASES.values()] == [16, 32, 48, 64]
    assert list(PHASES) == ["LoFi", "HiFi2", "HiFi3", "HiFi4"]


@pytest.mark.parametrize("name", MACHINES)
def test_every_rate_has_a_source(name: str) -> None:
    lines = sources(MACHINES[name])
    assert len(lines) == (8 if MACHINES[name].wire else 7)
    assert all(
        re.search(r"\((docs\.tenstorrent\.com|tt-metal, tech_reports|tt-umd, tests)/\S+\.(html|md|yaml)\)$", line)
        for line in lines
    )


def test_the_dispatch_is_bounded_by_the_operations_that_take_time() -> None:
    """A product, a sum of it, and a view: two programs, of 2.58 µs on a Wormhole and 1.85 µs on a Blackhole."""
    kinds = [jax.ShapeDtypeStruct((64, 64), jnp.float32)] * 2
    lowered = jm.jit(lambda x, w: (x @ w + w).reshape(1, 64, 64), mesh=AbstractMesh((1, 1), ("y", "x"))).lower(*kinds)
    for name, microseconds in (("n150", 2.58), ("p150", 1.85)):
        found = lowered.estimate(name)
        assert found.programs == 2 < len(found.ops)
        assert found.dispatch_seconds == pytest.approx(2 * microseconds * 1e-6)
        assert f"of the 2 that compute or move, at least {2 * microseconds:.3g} µs" in str(found)
        assert found.to_dict()["dispatch_seconds"] == found.dispatch_seconds


# --- machines and errors ---------------------------------------------------------------------------------------------


def test_a_machine_is_named_or_the_smallest() -> None:
    assert block().estimate().machine.name == "t3000"
    assert block((1, 2)).estimate().machine.name == "n300"
    assert block((1, 1)).estimate().machine.name == "n150"
    assert block((4, 8)).estimate("galaxy").machine.name == "galaxy"
    assert machine_for("t3000", (2, 2, 2)).name == "t3000"


@pytest.mark.parametrize(
    ("mesh", "options", "error", "words"),
    [
        (
            (1, 1),
            {"cluster": "n600"},
            errors.ArgumentValueError,
            "the machines are n150, .*, p300, p300x2 or blackhole-galaxy, got 'n600'",
        ),
        ((1, 1), {"cluster": ["n150"]}, errors.ArgumentValueError, r"got \['n150'\]"),
        ((2, 4), {"cluster": "n300"}, errors.MeshError, "n300 does not have the mesh 2x4: .* name a machine"),
        ((1, 2), {"cluster": "p150"}, errors.MeshError, "p150 does not have the mesh 1x2"),
        ((2, 2), {"cluster": "n150"}, errors.MeshError, "n150 does not have the mesh 2x2"),
        ((8, 8), {}, errors.MeshError, "no machine has the mesh 8x8"),
        (
            (1, 1),
            {"fidelity": "HiFi5"},
            errors.ArgumentValueError,
            "fidelity of LoFi, HiFi2, HiFi3, HiFi4, got 'HiFi5'",
        ),
        ((1, 1), {"fidelity": 2}, errors.ArgumentValueError, "got 2"),
        ((1, 1), {"stored": "int4"}, errors.ArgumentValueError, "float32, bfloat16, bfloat8_b, bfloat4_b, got 'int4'"),
        ((1, 1), {"stored": {"w": ["bfloat16"]}}, errors.ArgumentValueError, r"got \['bfloat16'\]"),
        ((1, 1), {"stored": {"[": "bfloat16"}}, errors.ArgumentValueError, r"got '\[': .*escape brackets"),
        ((1, 1), {"stored": 8}, errors.ArgumentTypeError, "an element type, or a dict of them .* got 8"),
        ((1, 1), {"stored": {1: "bfloat16"}}, errors.ArgumentTypeError, "got {1: 'bfloat16'}"),
    ],
)
def test_wrong_arguments_are_named(mesh: Any, options: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        block(mesh).estimate(**options)


def test_an_op_without_a_definition_is_named_with_its_line() -> None:
    program = Program("f", {"y": 1, "x": 1})
    x, y = (program.new(Type((4, 4), np.dtype("float32"))) for _ in range(2))
    program.arguments, program.results = [Port(x, True)], [Port(y, True)]
    program.ops = [Op("ttnn.generic_op", (x,), (y,), {}, "model.py:7 (f)")]
    with pytest.raises(
        errors.MissingRuleError,
        match=r"got 'ttnn\.generic_op' at model\.py:7 \(f\); neither its arithmetic nor its bytes are known",
    ):
        estimate_program(program, "n150")
    program.ops = [Op("ttir.add", (x, x), (y,))]
    with pytest.raises(errors.MissingRuleError, match=r"got 'ttir\.add'; neither its"):
        estimate_program(program, "n150")


def test_a_callback_has_no_ttnn_and_no_estimate() -> None:
    def fun(x: Any) -> Any:
        return jax.pure_callback(np.sin, x, x)

    lowered = jm.jit(fun, mesh=AbstractMesh((1, 1), ("y", "x"))).lower(jnp.zeros((4,)))
    with pytest.raises(errors.InexpressibleError, match="pure_callback"):
        lowered.estimate("n150")


# --- the numbers of a program ----------------------------------------------------------------------------------------


def test_times_and_shares_are_those_of_the_ops() -> None:
    found = block().estimate("t3000")
    assert found.seconds == pytest.approx(sum(max(op.times.values()) for op in found.ops))
    by_part = {part: sum(op.times[part] for op in found.ops) for part in found.shares}
    assert found.overlapped_seconds == max(by_part.values())
    links = sum(op.seconds for op in found.ops if op.link_bytes)
    assert found.shares["links"] == pytest.approx(links / found.seconds)
    assert 0 < found.shares["links"] < 1
    assert sum(line.seconds for line in found.lines) == pytest.approx(found.seconds)
    assert sum(line.flops for line in found.lines) == sum(op.flops for op in found.ops)


def test_a_loop_counts_its_turns() -> None:
    def fun(x: Any, w: Any) -> Any:
        return jax.lax.fori_loop(0, 7, lambda _, y: y @ w, x)

    types = [jax.ShapeDtypeStruct(shape, jnp.bfloat16) for shape in ((32, 64), (64, 64))]
    found = jm.jit(fun, mesh=AbstractMesh((1, 1), ("y", "x"))).lower(*types).estimate()
    assert sum(op.flops for op in found.ops if op.op == "matmul") == 7 * 2 * 32 * 64 * 64


def test_each_part_of_the_engine_has_its_rate() -> None:
    def compute(fun: Any) -> float:
        types = jax.ShapeDtypeStruct((512, 1024), jnp.bfloat16)
        ops = jm.jit(fun, mesh=AbstractMesh((1, 1), ("y", "x"))).lower(types).estimate("n150").ops
        return sum(op.times["compute"] for op in ops)

    n, cycles = 512 * 1024, 72e9
    assert compute(jnp.exp) == pytest.approx(n / (128 * cycles))
    assert compute(lambda x: jnp.max(x, 1)) == pytest.approx(n / (256 * cycles))
    # They work at the same time: three operations each, and two reductions.
    assert compute(lambda x: jax.nn.softmax(x, -1)) == pytest.approx(3 * n / (128 * cycles))


def test_a_loop_of_unknown_length_counts_as_one_iteration() -> None:
    def fun(x: Any) -> Any:
        return jax.lax.while_loop(lambda y: y[0] < 3, lambda y: jnp.sin(y), x)

    found = jm.jit(fun, mesh=AbstractMesh((1, 1), ("y", "x"))).lower(jnp.zeros((4,))).estimate()
    assert [(op.op, op.count, op.exact) for op in found.ops if op.op in ("sin", "lt")] == [
        ("lt", 1, False),
        ("sin", 1, False),
    ]
    assert "a loop whose end only the devices know counts as one iteration" in str(found)


def test_a_loop_reads_its_inputs_once_and_its_rows_each_time() -> None:
    def fun(x: Any, w: Any, rows: Any) -> Any:
        return jax.lax.scan(lambda c, row: (c @ w + row, None), x, rows)[0]

    shapes = [jax.ShapeDtypeStruct(s, jnp.float32) for s in ((64, 64), (64, 64), (32, 64, 64))]
    lowered = jm.jit(fun, mesh=AbstractMesh((1, 1), ("y", "x"))).lower(*shapes)
    kept, unrolled = (lowered.estimate(unroll_limit=n) for n in (0, 1000))
    products = [(op.count, op.dram_bytes) for op in kept.ops if op.op == "matmul"]
    assert products == [(1, 2 * 64 * 64 * 4), (31, 0)]
    assert sum(op.dram_bytes for op in kept.ops) >= sum(op.dram_bytes for op in unrolled.ops) == 34 * 64 * 64 * 4
    assert sum(op.dram_bytes for op in kept.ops) < 35 * 64 * 64 * 4


def test_a_program_that_computes_nothing_takes_no_time() -> None:
    found = jm.jit(lambda x: x, mesh=AbstractMesh((1, 1), ("y", "x"))).lower(jnp.zeros((4,))).estimate()
    assert (found.seconds, found.overlapped_seconds) == (0, 0)
    assert set(found.shares.values()) == {0.0}
    assert "at least 0 ns" in str(found)
    assert bars_of(found) == []


# --- as text and as a picture ----------------------------------------------------------------------------------------


def test_the_text_says_that_it_is_a_bound() -> None:
    found = block().estimate("t3000")
    lines = str(found).splitlines()
    assert lines[0] == f"fun on the mesh 2x4 of t3000: at least {duration(found.seconds)}"
    assert lines[1].split() == ["line", "ops", "flops", "DRAM", "bytes", "link", "bytes", "at", "least", "bound", "by"]
    assert "a bound from published rates, and not a measurement: no real time is shorter" in lines
    assert any(line.startswith("sent by each device: x 49.2 kB") for line in lines)
    assert any("test_estimate.py" in line and "DRAM" in line for line in lines)
    assert repr(found) == f"Estimate({lines[0]})"


def test_data_can_be_written_as_json() -> None:
    found = block().estimate("t3000")
    data = json.loads(json.dumps(found.to_dict()))
    assert (data["cluster"], data["mesh"], data["seconds"]) == ("t3000", {"y": 2, "x": 4}, found.seconds)
    assert [op["op"] for op in data["ops"]] == [op.op for op in found.ops]


def bars_of(found: Estimate) -> list[tuple[int, float, float]]:
    """The part, the place and the length of each bar, as fractions of the time."""
    page = found._repr_html_()
    ElementTree.fromstring(f"<x>{page}</x>")
    bars = re.findall(r'<i class="p(\d)" style="left:([\d.]+)%;width:max\(([\d.]+)%', page)
    return [(int(part), float(left) / 100, float(wide) / 100) for part, left, wide in bars]


def test_bars_are_as_long_as_the_lines_take() -> None:
    found = block().estimate("t3000")
    bars = bars_of(found)
    for number, part in enumerate(PARTS):
        drawn = sum(wide for at, _, wide in bars if at == number)
        assert drawn == pytest.approx(sum(op.times[part] for op in found.ops) / found.seconds, abs=1e-4 * len(bars))
    starts, now = list[float](), 0.0
    for line in found.lines:
        starts += [now / found.seconds] * sum(1 for seconds in line.busy.values() if line.seconds and seconds)
        now += line.seconds
    assert [left for _, left, _ in bars] == pytest.approx(starts, abs=1e-4)
    page = found._repr_html_()
    assert all(f"</i>{part}</span>" in page for part in PARTS)
    assert "on each of 8 devices" in page
    assert "on the device</div>" in block((1, 1)).estimate()._repr_html_()


def test_a_long_program_has_few_bars() -> None:
    def fun(x: Any) -> Any:
        return jax.lax.fori_loop(0, 3000, lambda _, y: y + x, x)

    found = jm.jit(fun, mesh=AbstractMesh((1, 1), ("y", "x"))).lower(jnp.zeros((64, 64))).estimate(unroll_limit=10_000)
    assert len(found.ops) > 2999
    assert 0 < len(bars_of(found)) < 10
    assert re.search(r"3,0\d\d operations", found._repr_html_())


def test_a_picture_is_saved(tmp_path: Path) -> None:
    found = block().estimate("t3000")
    assert 'class="time"' in found.save(tmp_path / "time.html").read_text(encoding="utf-8")
    assert found.save(tmp_path / "time.txt").read_text(encoding="utf-8") == f"{found}\n"
    with pytest.raises(errors.ArgumentValueError, match=r"\.html, \.txt"):
        found.save(tmp_path / "time.png")


def test_rich_shows_the_table(capsys: pytest.CaptureFixture[str]) -> None:
    block().estimate("t3000").show(color=True)
    assert "a bound from published rates" in capsys.readouterr().out


def test_explain_has_a_column_of_the_least_times(capsys: pytest.CaptureFixture[str]) -> None:
    lowered = block()
    found, estimate = lowered.explain("t3000"), lowered.estimate("t3000")
    timed = [row for row in found if row.seconds is not None]
    by_line = {line.line: line.seconds for line in estimate.lines if line.seconds}
    assert {line_key(row.line): row.seconds for row in timed} == by_line
    assert len(timed) == len(by_line)
    text = str(found)
    assert f"{estimate.heading}, a bound from published rates, and not a measurement"[:118] in text
    rows = text[text.index("where most time passes") :].splitlines()[1:]
    slowest = max(by_line, key=lambda line: by_line[line])
    assert rows[0].split("  ")[0] == short_location(slowest)
    assert duration(by_line[slowest]) in rows[0]
    assert '<th class="number">at least</th>' in found._repr_html_()
    assert found.moving.least == found.least
    assert "at least" not in str(lowered.explain())
    from rich import print as show

    show(found)
    assert "at least" in capsys.readouterr().out


def test_times_of_no_line_of_the_table_are_told() -> None:
    found = block().explain().timed([("elsewhere.py:1", 0.001), ("elsewhere.py:1", 0.001)], "f takes long")
    assert found.least == "f takes long; 2 ms of it at no line of this program"
    assert all(row.seconds is None for row in found)
