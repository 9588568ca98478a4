"""Tenstorrent's own compiler, where it is installed: every machine, the plain programs, programs by hand.

It skips without `JAXMESH_UPSTREAM_PYTHON`, unless `jaxmesh upstream-env` has made an environment.
"""

from __future__ import annotations

import math
import os
import re
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
from jaxmesh.analysis.machines import MACHINES
from jaxmesh.analysis.upstream.environment import UPSTREAM
from jaxmesh.analysis.upstream.worker import close_workers
from jaxmesh.stages.upstream import UpstreamResult
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
OTHER_FUNCTION = dict.fromkeys(("train step", "train step, fully sharded"), "ttnn.gelu")
"""The programs whose TTNN computes another function: gelu by tanh is fused into `ttnn.gelu`, by erf; 5e-4 apart."""
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
WITHOUT_TEXT = {"while_loop"}
"""The programs that run here and have no TTNN text, and that the compiler compiles: loops of unknown trip count."""
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
        assert (found.verdict == "wrong") == (case.name in WRONG.keys() | OTHER_FUNCTION.keys()), str(found)
        assert case.name not in OTHER_FUNCTION or found.op == OTHER_FUNCTION[case.name]
        assert found.verdict in ("wrong", "right", "less precise"), str(found)


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
    assert bool(found.ours.refusal) == (name in WITHOUT_TEXT)
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
