"""Tenstorrent's own compiler, where it is installed: every machine, the plain programs, programs by hand.

It skips without `JAXMESH_UPSTREAM_PYTHON`, unless `jaxmesh upstream-env` has made an environment.
"""

from __future__ import annotations

import math
import os
import re
import subprocess
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AbstractMesh, PartitionSpec as P

import jaxmesh as jm
from jaxmesh.analysis.judge.environment import TTNN
from jaxmesh.analysis.machines import MACHINES
from jaxmesh.analysis.upstream import compile_text
from jaxmesh.analysis.upstream.descriptors import describe_system
from jaxmesh.analysis.upstream.environment import UPSTREAM, find_plugin
from jaxmesh.analysis.upstream.worker import close_workers
from jaxmesh.stages.upstream import UpstreamResult
from tests.generators.diagnosed import outcomes
from tests.generators.issue_patterns import PATTERNS
from tests.generators.plain_programs import CASES, Case
from tests.generators.suite import models as suite_models
from tests.generators.suite.all_programs import PROGRAMS
from tests.generators.suite.entry import Entry

WRONG = {
    "convolution, split window dims": "each device pads its own shard: the rows of the neighbours are missing",
    "reverse": "each shard is reversed alone",
    "odd rows over 8": "the minor of two axes on one dim is gathered last",
    "scatter": "indices of the whole array are applied to each shard",
    "cache update": "the start of the whole array is clamped into each shard",
}
"""The programs that jax-tt-plugin 0.1.3 compiles wrongly, and what its TTIR says."""
OTHER_FORM = dict.fromkeys(("train step", "train step, fully sharded"), "ttnn.gelu")
"""The programs whose TTNN is less precise: gelu by tanh is fused into `ttnn.gelu`, by erf; 5e-4 apart."""
PATTERNS_WRONG = {"5351: chunk of split rows", "5096: rows of all devices"}
"""The patterns of issues that it compiles wrongly: the minor of two axes on one dim is gathered last."""
PATTERNS_REFUSED = {"5653: reshard from y to x", "5653: reshard of one axis to two"}
REFUSED = {
    "Pass expects a 0D, 1D, or 2D mesh": 3,
    "CollectivePermuteOp is not implemented": 7,
    "Invalid reduction type for all reduce": 2,
    "expect operands to be compatible with condition block": 1,
    "Could not apply propagated tensor shardings": 1,
}
"""The reasons of its refusals of the 67 plain programs, and how often each occurs."""
COLLECTIVE = re.compile(
    r'"ttnn\.(all_reduce|all_gather|reduce_scatter|point_to_point)"\([^)]*\) <\{(.*?)\}> : '
    r"\(tensor<((?:[0-9]+x)*)[a-z]+([0-9]+)"
)
"""A collective of a TTNN text: its name, its attributes, the shape and the bits of its first operand."""
MAXIMUM = "a maximum over devices is gathered here; the compiler reduces it, as its own TTNN can"
MOVES_LESS = {
    "mixture of experts, plain": MAXIMUM,
    "softmax over a split dim": MAXIMUM,
    "logsumexp over two axes": MAXIMUM,
    "pmax": MAXIMUM,
    "greedy sampling": MAXIMUM,
    "uneven result": "joined along a split dim: an all_to_all to another dim and a gather here, one gather there",
    "reverse": "it is compiled wrongly, see `WRONG`",
}
"""The programs whose devices send less as the compiler compiles them, and why."""
MESH = jm.make_mesh((2, 4), ("y", "x"))
BY_HAND = [e for e in PROGRAMS if e.name in MOVES_LESS or e in suite_models.PROGRAMS]


@pytest.fixture(scope="module", autouse=True)
def _plugin() -> Iterator[None]:
    if not os.environ.get(UPSTREAM.variable) and not UPSTREAM.folder.exists():
        pytest.skip(f"no compiler: {UPSTREAM.variable} is not set, and upstream-env has made no {UPSTREAM.folder}")
    yield
    close_workers()


@pytest.fixture(scope="module")
def made() -> dict[str, UpstreamResult[Any]]:
    """What the compiler makes of each plain program."""
    return {c.name: lowered(c).upstream() for c in CASES}


def lowered(case: Case) -> jm.Lowered:
    with warnings.catch_warnings():
        # What jaxmesh's own partitioner changes is not what the compiler gets.
        warnings.simplefilter("ignore", jm.errors.DroppedShardingWarning)
        return jm.jit(case.fun, mesh=case.mesh, **case.options()).lower(*case.args)


def values(tree: Any) -> list[np.ndarray]:
    leaves = jax.tree.leaves(tree, is_leaf=lambda x: isinstance(x, jm.MeshTensor))
    return [np.asarray(next(iter(x.shards()))[1] if isinstance(x, jm.MeshTensor) else x) for x in leaves]


def is_right(program: Any, case: Case, rtol: float) -> bool:
    got = values(program.lower().compile()(*jax.tree.leaves(case.args)))
    want = values(jax.jit(case.fun)(*case.args))
    return all(
        g.shape == w.shape and np.allclose(g.astype(np.float64), w.astype(np.float64), rtol=rtol, atol=rtol)
        for g, w in zip(got, want, strict=True)
    )


@pytest.mark.parametrize("dialect", ["ttir", "ttnn"])
@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_each_text_is_read_and_runs_and_the_wrong_ones_are_known(
    case: Case, dialect: str, made: dict[str, UpstreamResult[Any]]
) -> None:
    result = made[case.name]
    if result.refusal is not None:
        assert sum(reason in result.refusal.message for reason in REFUSED) == 1
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", jm.AssumptionWarning)
        program = result.program(dialect)
    assert is_right(program, case, 1e-3 if dialect == "ttir" else 2e-2) == (case.name not in WRONG)


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_the_diagnosis_flags_the_wrong_ones_alone(made: dict[str, UpstreamResult[Any]], case: Case) -> None:
    found = made[case.name].diagnose(*case.args)
    if made[case.name].refusal is not None:
        assert found.verdict == "refused"
    else:
        assert (found.verdict == "wrong") == (case.name in WRONG), str(found)
        form = (found.verdict, found.op) if case.name in OTHER_FORM else ("less precise", OTHER_FORM.get(case.name))
        assert form == ("less precise", OTHER_FORM.get(case.name)), str(found)
        assert found.verdict in ("wrong", "right", "less precise"), str(found)


@pytest.mark.filterwarnings("ignore::jaxmesh.errors.ShardingWarning")
@pytest.mark.parametrize("case", PATTERNS, ids=lambda c: c.name)
def test_the_patterns_of_issues(case: Case) -> None:
    found = jm.jit(case.fun, mesh=case.mesh, **case.options()).lower(*case.args).upstream().diagnose(*case.args)
    wanted = "wrong" if case.name in PATTERNS_WRONG else "refused" if case.name in PATTERNS_REFUSED else "right"
    assert found.verdict == wanted, str(found)
    assert wanted != "wrong" or found.op == "ttir.all_gather"


@pytest.mark.parametrize("stage", ["ttir", "ttnn"])
@pytest.mark.parametrize("name", ["5314: fused Q, K, V", "2976: padded sequence", "5490: lookup of split rows"])
def test_errors_planted_in_its_texts_are_named(name: str, stage: str) -> None:
    case = next(c for c in PATTERNS if c.name == name)
    made = jm.jit(case.fun, mesh=case.mesh, **case.options()).lower(*case.args).upstream()
    found = [o for o in outcomes(dict(made.stages), stage, 1) if o.changes]
    named = [o.is_named for o in found]
    assert sum(named) >= 0.95 * len(named), "\n".join(o.text for o in found if not o.is_named)
    assert all(o.is_honest for o in found), "\n".join(o.text for o in found if not o.is_honest)


def test_the_gradient_of_labels_in_a_split_vocabulary_is_blamed_on_its_scatter() -> None:
    """The zeros that it writes into are in any placement, and what the loss is cut off by is not its cause."""

    def step(embedding: Any, out: Any, tokens: Any, labels: Any) -> Any:
        def loss(embedding: Any, out: Any) -> Any:
            scores = jax.nn.log_softmax(embedding[tokens] @ out)
            return -jnp.mean(jnp.take_along_axis(scores, labels[..., None], -1))

        return jax.grad(loss, (0, 1))(embedding, out)

    mesh = jm.make_mesh((2, 2), ("y", "x"))
    options = {"in_shardings": (P(), P(None, "x"), P("y"), P("y")), "out_shardings": (P(), P(None, "x"))}
    ids = jnp.zeros((4, 8), jnp.int32)
    lowered = jm.jit(step, mesh=mesh, **options).lower(jnp.ones((64, 32)), jnp.ones((32, 64)), ids, ids)
    found = jm.diagnose(lowered.upstream())
    assert (found.verdict, found.op) == ("wrong", "ttir.rows_scatter")
    assert found.cause.startswith("indices of the whole array: the operand of ttir.rows_scatter is split over x")


def test_joined_weights_are_not_blamed() -> None:
    """TTNN joins the weights of two products of one value, on each device: no global value of the program."""

    def gated(x: Any, gate: Any, up: Any) -> Any:
        return jnp.tanh(x @ gate) * (x @ up)

    x, gate, up = (np.random.default_rng(n).standard_normal((16, 16)).astype(np.float32) for n in range(3))
    made = jm.jit(gated, mesh=MESH, in_shardings=(P("y"), P(None, "x"), P(None, "x"))).lower(x, gate, up).upstream()
    assert '"ttnn.concat"' in made.text("ttnn")
    kinds = ("permuted weight", "shifted slice")
    found = [o for o in outcomes(dict(made.stages), "ttnn") if o.changes and o.planted.kind in kinds]
    assert {o.planted.kind for o in found} == set(kinds)
    assert all(o.is_named for o in found), "\n".join(o.text for o in found if not o.is_named)


def recurrent(x: Any, wx: Any, wh: Any) -> Any:
    def step(h: Any, row: Any) -> Any:
        return jnp.tanh(row @ wx + h @ wh), None

    return jax.lax.scan(step, jnp.zeros((8, 16)), x)[0]


def region(x: Any, up: Any, down: Any) -> Any:
    def mlp(x: Any, up: Any, down: Any) -> Any:
        rows = jax.lax.all_gather(x, "y", tiled=True)[1:5]
        return x + jax.lax.psum(jnp.tanh(rows @ up) @ down, "x")

    specs = (P("y"), P(None, "x"), P("x"))
    return jax.shard_map(mlp, mesh=MESH, in_specs=specs, out_specs=P("y"))(x, up, down)


@pytest.mark.parametrize("fun", [recurrent, region])
def test_errors_planted_in_loops_and_regions_are_named(fun: Any) -> None:
    """The gathered weights of a loop are exchanged; what a region computes is a value of each device."""
    x, *weights = (np.random.default_rng(n).standard_normal((16, 16)).astype(np.float32) for n in range(3))
    rows = x[:8] if fun is region else x.reshape(2, 8, 16)
    shardings = (P("y"), P(None, "x"), P("x")) if fun is region else (P(None, "y"), P(None, "x"), P(None, "x"))
    made = jm.jit(fun, mesh=MESH, in_shardings=shardings).lower(rows, *weights).upstream()
    found = [o for stage in ("ttir", "ttnn") for o in outcomes(dict(made.stages), stage, 1) if o.changes]
    kinds = {"dropped all_reduce", "wrong cluster_axis", "shifted slice"} if fun is region else {"exchanged gathers"}
    assert {o.planted.kind for o in found} >= kinds
    # Of two gathers that a loop reads, neither alone puts the results right, so no operation is named.
    assert {o.planted.kind for o in found if not o.is_named} <= ({"exchanged gathers"} if fun is recurrent else set())
    assert all(o.is_honest for o in found), "\n".join(o.text for o in found if not o.is_honest)


@pytest.mark.parametrize("name", ["reverse", "odd rows over 8"])
def test_a_reproduction_as_jax_fails_in_the_same_way(name: str, tmp_path: Path) -> None:
    """The printed JAX program, run as it stands in a new process with the plugin, exports wrong texts again."""
    case = next(c for c in CASES if c.name == name)
    found = jm.jit(case.fun, mesh=case.mesh, **case.options()).lower(*case.args).upstream().diagnose()
    small = jm.minimize(found, compiler=compile_text)
    assert small is not None
    assert small.jax is not None
    description = tmp_path / "t3000.ttsys"
    description.write_bytes(describe_system(MACHINES["t3000"]))
    python = find_plugin(None).python
    variables = {**os.environ, "TMPDIR": str(tmp_path), "TT_COMPILE_ONLY_SYSTEM_DESC": str(description)}
    variables = {k: v for k, v in variables.items() if k not in ("PYTHONPATH", "JAX_PLATFORMS", "XLA_FLAGS")}
    command = [str(python), "-c", small.jax]
    done = subprocess.run(command, cwd=tmp_path, env=variables, capture_output=True, text=True, check=False)
    assert (tmp_path / "export").is_dir(), done.stderr
    again = jm.diagnose(tmp_path / "export")
    assert (again.verdict, again.op) == (found.verdict, found.op)


def test_an_operation_has_the_name_that_its_text_has() -> None:
    case = next(c for c in CASES if c.name == "reverse")
    texts = lowered(case).upstream().stages
    found = jm.diagnose({stage: texts[stage] for stage in ("shlo_frontend", "shlo_compiler", "ttnn")})
    assert found.verdict == "wrong"
    assert found.op
    assert f'"{found.op}"' in texts["ttnn"].splitlines()[found.line - 1]


def test_a_wrong_step_of_a_decomposition_is_minimised() -> None:
    """A start that is clamped into each shard is a step of an update, and part of no smaller program."""
    x, u, start = np.zeros((16, 8), np.float32), np.ones((2, 8), np.float32), np.int32(9)

    def f(x: Any, u: Any, start: Any) -> Any:
        return jax.lax.dynamic_update_slice(x, u, (start, 0)) + 1

    made = jm.jit(f, mesh=MESH, in_shardings=(P("x"), P(), P())).lower(x, u, start).upstream()
    found = made.diagnose()
    # No value of the program tells the clamp from the update that reads it.
    assert found.verdict == "wrong"
    assert found.culprit is not None
    assert found.culprit.between is not None
    first, last = found.culprit.between
    ops = found.culprit.track.stage.text.program.ops
    assert {"ttir.clamp_scalar", "ttir.rows_scatter"} <= {op.name for op in ops[first : last + 1]}
    small = jm.minimize(found, compiler=compile_text)
    assert small is not None
    assert "dynamic_update_slice" in small.stablehlo


def sent_by(text: str) -> int | None:
    """The bytes that all devices send in a TTNN text, by a search for its collectives; None with loops."""
    if "ttcore.while_loop" in text or "ttcore.case" in text:
        return None
    mesh = re.search(r'<"mesh" = ([0-9x]+)>', text)
    assert mesh is not None
    sizes = [int(n) for n in mesh[1].split("x")]
    devices, total = math.prod(sizes), 0
    for name, attributes, shape, bits in COLLECTIVE.findall(text):
        operand = math.prod(map(int, filter(None, shape.split("x")))) * int(bits) // 8
        axis = re.search(r"cluster_axis = ([0-9]+)", attributes)
        size = sizes[int(axis[1])] if axis else 2
        each = {"all_reduce": 2 * (size - 1), "all_gather": size * (size - 1), "reduce_scatter": size - 1}
        total += operand if name == "point_to_point" else devices // size * each[name] * operand
    return total


def check_comparison(result: UpstreamResult[Any], program: jm.Lowered, name: str) -> None:
    found = result.compare(program, judge=False)
    assert max(map(len, str(found).splitlines())) <= 100
    assert not found.ours.refusal
    if result.refusal is not None:
        assert found.theirs.refusal == str(result.refusal)
        return
    assert not found.theirs.refusal
    assert result.ttnn is not None
    assert sent_by(result.ttnn) in (found.theirs.sent, None)
    if not found.ours.refusal:
        assert sum(t - o for _, o, t in found.differences) == found.theirs.sent - found.ours.sent
    assert (found.moves_less == "theirs") == (name in MOVES_LESS), str(found)


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_ours_moves_no_more_than_theirs(made: dict[str, UpstreamResult[Any]], case: Case) -> None:
    plain = f"{case.name}, plain"
    check_comparison(made[case.name], lowered(case), plain if plain in MOVES_LESS else case.name)


NOT_OF_TTNN = {
    "ttir.rows_gather": {"embedding, vocabulary split", "embedding, vocabulary split over 8", "reverse"},
    "ttir.rows_scatter": {"scatter", "segment_sum", "cache update"},
    "ttcore.while_loop": {"scan", "fori_loop", "while_loop"},
    "ttcore.case": {"cond", "switch"},
}
"""The operations of the compiler's texts that are no functions of ttnn, with the programs that have them."""
REFUSED_BY_TTNN = {"convolution, split window dims": "Reader indices buffer page size"}


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_the_real_ttnn_judges_the_compilers_text(made: dict[str, UpstreamResult[Any]], case: Case) -> None:
    result = made[case.name]
    if not (os.environ.get(TTNN.variable) or TTNN.folder.exists()):
        pytest.skip("no ttnn")
    if result.refusal is not None:
        with pytest.raises(jm.errors.UpstreamError, match="the compiler refused the program"):
            result.judge()
        return
    others = {op for op, names in NOT_OF_TTNN.items() if case.name in names}
    verdict = result.judge()
    assert {r.partition(" ")[0] for r in verdict.remarks if "is no function of ttnn" in r} == others
    assert verdict.target == "t3000"
    if case.name in REFUSED_BY_TTNN:
        assert verdict.refusal is not None
        assert REFUSED_BY_TTNN[case.name] in verdict.refusal.reason
        return
    assert verdict, str(verdict)
    dram, held = verdict.memory("DRAM"), verdict.held
    assert held is not None
    assert dram is not None
    assert held.arguments <= held.peak <= dram.device_peak
    assert result.estimate().memory == held


@pytest.mark.parametrize("entry", BY_HAND, ids=lambda e: e.name)
def test_a_program_by_hand_moves_no_more_than_theirs(entry: Entry) -> None:
    check_comparison(entry.lowered.upstream(), entry.lowered, entry.name)


def test_refusals_are_the_known_ones(made: dict[str, UpstreamResult[Any]]) -> None:
    refusals = [r.refusal for r in made.values() if r.refusal is not None]
    assert {reason: sum(reason in r.message for r in refusals) for reason in REFUSED} == REFUSED
    lines = [r for r in refusals if "plain_programs.py:" in r.source]
    # The others concern the mesh or an argument, not an operation.
    assert len(lines) == 10


@pytest.mark.parametrize("name", MACHINES)
def test_every_machine_is_described(name: str) -> None:
    machine = MACHINES[name]
    mesh = AbstractMesh(machine.shape, ("y", "x"))
    lowered = jm.jit(lambda x: jnp.tanh(x) * 2, mesh=mesh, in_shardings=(P("y", "x"),)).lower(
        jax.ShapeDtypeStruct((64, 64), jnp.float32)
    )
    result = lowered.upstream(name)
    assert result
    assert result.ttnn is not None
    assert f"arch = <{machine.architecture.name}>" in result.ttnn
    assert result.ttnn.partition("-> ")[0].count("arch = <") == machine.devices


def test_a_program_by_hand_is_compiled_as_it_is_mapped(tmp_path: Path) -> None:
    @jm.jit(mesh=MESH)
    def matmul(x: Any, w: Any) -> Any:
        x, w = jm.full_to_shard(x, P("y", "x")), jm.full_to_shard(w, P("x"))
        return jm.shard_to_full(jax.lax.psum(x @ w, "x"), P("y"))

    x, w = np.random.default_rng(0).standard_normal((2, 8, 8)).astype(np.float32)
    result = matmul.lower(x, w).upstream()
    for dialect in ("ttir", "ttnn"):
        np.testing.assert_allclose(result.program(dialect).lower().compile()(x, w), x @ w, rtol=1e-5, atol=1e-5)
    # Arguments may be trees, as those of the function are.
    assert result.diagnose({"x": x, "y": w}).verdict in ("right", "less precise")
    assert {p.name for p in result.save(tmp_path)} >= {"ttir.mlir", "ttnn.mlir", "shlo_frontend.mlir", "fb.ttnn"}
    # What it saves is read without the compiler.
    assert jm.from_mlir(tmp_path / "irs" / "ttnn.mlir", MESH).out_avals[0].shape == (4, 8)


@pytest.mark.parametrize("name", ["arguments and results on the devices", "an argument on the devices"])
def test_tensors_on_the_devices_are_taken_and_given(name: str) -> None:
    entry = next(e for e in PROGRAMS if e.name == name)
    result = entry.lowered.upstream()
    for dialect in ("ttir", "ttnn"):
        entry.check(result.program(dialect).lower().compile()(*entry.args()))
    assert result.diagnose(*entry.args()).verdict in ("right", "less precise")


def test_an_imported_text_is_sent_as_it_stands() -> None:
    source = jax.jit(lambda x: jnp.sin(x) + 1).lower(jax.ShapeDtypeStruct((4, 8), jnp.float32)).as_text(debug_info=True)
    result = jm.from_mlir(source).lower().upstream("n150")
    x = np.linspace(-3, 3, 32, dtype=np.float32).reshape(4, 8)
    np.testing.assert_allclose(result.program("ttir").lower().compile()(x), np.sin(x) + 1, rtol=1e-6)


def test_a_refusal_names_the_line_of_the_user() -> None:
    def product(x: Any) -> Any:
        return jnp.prod(x, 0)

    result = jm.jit(product, mesh=MESH, in_shardings=(P("x"),)).lower(np.ones((8, 4), np.float32)).upstream()
    assert not result
    assert result.refusal is not None
    assert result.refusal.source.startswith(f"{__file__}:{product.__code__.co_firstlineno + 1}:")


def test_an_argument_that_nothing_uses_is_whole() -> None:
    x, n = np.arange(64, dtype=np.float32).reshape(8, 8), np.int32(3)
    result = jm.jit(lambda x, n: x * 2, mesh=MESH, in_shardings=(P("y", "x"), P())).lower(x, n).upstream()
    for dialect in ("ttir", "ttnn"):
        np.testing.assert_array_equal(result.program(dialect).lower().compile()(x, n), x * 2)
    assert result.diagnose(x, n).verdict == "right"


def test_a_convolution_with_its_activation_and_a_pool_with_uneven_edges_are_right() -> None:
    def block(x: Any, w: Any) -> Any:
        y = jax.nn.relu(jax.lax.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")))
        return jax.lax.reduce_window(y, -np.inf, jax.lax.max, (1, 3, 3, 1), (1, 2, 2, 1), "SAME")

    rng = np.random.default_rng(0)
    x, w = rng.standard_normal((2, 8, 8, 3), np.float32), rng.standard_normal((3, 3, 3, 8), np.float32)
    result = jm.jit(block, mesh=MESH, in_shardings=(P("y"), P())).lower(x, w).upstream()
    assert result.ttnn is not None
    assert "activation = <op_type = relu>" in result.ttnn
    assert "padding = array<i32: 0, 0, 1, 1>" in result.ttnn
    assert result.diagnose(x, w).verdict in ("right", "less precise")


def test_what_a_result_offers_under_set_mesh_is_what_it_offers_outside() -> None:
    mesh = jm.make_mesh((2, 4))
    x = np.arange(64, dtype=np.float32).reshape(8, 8) / 7
    lowered = jm.jit(lambda v: jnp.tanh(v).sum(0), mesh=mesh, in_shardings=P("y", "x")).lower(x)

    def offered(result: Any) -> list[Any]:
        programs = [result.program(dialect) for dialect in ("ttir", "ttnn")]
        values = [np.asarray(p.lower().compile()(x)) for p in programs]
        return [*map(str, programs), values, str(result.compare(lowered, judge=False)), str(result.diagnose(x))]

    result = lowered.upstream("t3000")
    expected = offered(result)
    for other in (mesh, jm.make_mesh((8,), ("q",))):
        with jax.set_mesh(other):
            for found in (offered(result), offered(lowered.upstream("t3000"))):
                np.testing.assert_equal(found, expected)
