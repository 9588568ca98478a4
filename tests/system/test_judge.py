"""The real ttnn judges programs: what it accepts, what it refuses and at which source line, and what programs take."""

from __future__ import annotations

import inspect
import math
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AbstractMesh, PartitionSpec as P

import jaxmesh as jm
from jaxmesh.analysis.environments import clean_environment
from jaxmesh.analysis.judge import Verdict, judge_folder
from jaxmesh.analysis.judge.environment import TTNN, Environment, find_environment
from jaxmesh.analysis.judge.judge import judge_program
from jaxmesh.analysis.judge.runner.shapes import REAL_BYTES
from jaxmesh.analysis.machines import MACHINES, machine_for
from jaxmesh.emit.export_folder import utils_text
from jaxmesh.errors import ArgumentValueError, MissingFileError, TtnnError
from tests.generators.second_blind.programs import ALL

PAGE = 4096
"""The bytes of a tile of float32."""


@pytest.fixture(scope="module", autouse=True)
def environment() -> Environment:
    """The Python that has ttnn; one that is named must have it."""
    if not os.environ.get(TTNN.variable) and not TTNN.folder.exists():
        pytest.skip(f"no ttnn here: {TTNN.variable} is not set, and jaxmesh ttnn-env has made no {TTNN.folder}")
    return find_environment()


def program(x: Any, w: Any) -> Any:
    x = jm.full_to_shard(x, P("y"))
    w = jm.full_to_shard(w, P(None, "x"))
    e = jnp.exp(x)
    return jm.shard_to_full(e @ w, P("y", "x"))


def line_of(text: str, function: Callable[..., Any] = program) -> str:
    """The location of a line of a function, as far as the column."""
    lines, first = inspect.getsourcelines(function)
    return f"{__file__}:{first + next(i for i, line in enumerate(lines) if text in line)}:"


EXP, MATMUL = line_of("jnp.exp"), line_of("e @ w")


def lowered(rows: int = 64, inner: int = 40, columns: int = 128, mesh: tuple[int, ...] = (1, 2)) -> Any:
    kinds = [jax.ShapeDtypeStruct(s, jnp.float32) for s in ((rows, inner), (inner, columns))]
    return jm.jit(program, mesh=jm.make_mesh(mesh)).lower(*kinds)


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("exported") / "model"
    lowered().export(folder)
    return folder


def planted(exported: Path, folder: Path, pattern: str, new: str) -> Path:
    """A copy of the folder, with a text of `main.py` replaced once."""
    folder.mkdir()
    for path in exported.rglob("*.*"):
        (folder / path.relative_to(exported)).parent.mkdir(exist_ok=True)
        (folder / path.relative_to(exported)).write_bytes(path.read_bytes())
    text, count = re.subn(pattern, new, (exported / "main.py").read_text())
    assert count == 1
    (folder / "main.py").write_text(text)
    return folder


def fields(verdict: Verdict) -> Any:
    """What a verdict says of a program, without the paths of its folder."""
    return verdict.outcome, verdict.mesh, verdict.memories, verdict.leaks, verdict.operations


# --- accepted --------------------------------------------------------------------------------------------------------


def test_an_accepted_program(exported: Path) -> None:
    verdict = judge_folder(exported)
    assert verdict, str(verdict)
    assert (verdict.target, verdict.mesh, verdict.leaks, verdict.exit_code) == ("n300", (1, 2), (), 0)
    kinds = {kind: verdict.places[line].source for line, found in verdict.operations.items() for kind in found}
    assert kinds["Matmul"].startswith(MATMUL)
    assert kinds["Unary"].startswith(EXP)
    assert verdict.counts["Matmul"] == 1
    assert verdict.layout_changes == sum(n for k, n in verdict.counts.items() if "ilize" in k) >= 2
    assert "accepted to its end by ttnn" in str(verdict)
    assert "<table" in verdict._repr_html_()
    kernel = verdict.memory("L1")
    assert kernel is not None
    assert kernel.kernel is not None
    assert 0 < kernel.kernel < kernel.bank_bytes


def test_inputs_with_values_and_with_shapes_alone_are_judged_alike(exported: Path) -> None:
    assert (
        fields(judge_folder(exported))
        == fields(judge_folder(exported, shapes=True))
        == fields(lowered().judge(resident=False))
    )


def test_a_folder_holds_the_arguments_that_the_verdict_holds(tmp_path: Path) -> None:
    made = jm.jit(lambda x, w, v: (x @ w) @ v, mesh=jm.make_mesh((1, 2)), in_shardings=(P(), P(None, "x"), P("x")))
    program = made.lower(*(jax.ShapeDtypeStruct(s, jnp.float32) for s in ((64, 128), (128, 256), (256, 128))))
    program.export(tmp_path / "model")
    verdict = program.judge()
    assert fields(verdict) == fields(judge_folder(tmp_path / "model", shapes=True))
    # Values are tilized when they are loaded, which takes no more memory than the program.
    assert verdict.memories == judge_folder(tmp_path / "model").memories
    assert verdict.held is not None
    assert verdict.held.arguments == program.estimate().memory.arguments == 4 * (64 * 128 + 128 * 128 + 128 * 128)
    dram = verdict.memory("DRAM")
    assert dram is not None
    assert dram.end >= verdict.held.arguments // dram.banks


def test_equal_layers_are_planned_once_and_judged_alike(tmp_path: Path) -> None:
    @jm.jit(mesh=jm.make_mesh((1, 2)))
    def layers(x: Any, w: Any) -> Any:
        x, w = jm.full_to_shard(x, P()), jm.full_to_shard(w, P())
        for _ in range(3):
            x = jax.nn.softmax(jnp.tanh(x @ w))
        return jm.shard_to_full(x @ w, P())

    program = layers.lower(*(jax.ShapeDtypeStruct(s, jnp.float32) for s in ((64, 128), (128, 128))))
    program.export(tmp_path / "layers")
    # The exported program distributes its arguments itself.
    verdict = program.judge(resident=False)
    # With values every call is planned.
    assert fields(verdict) == fields(judge_folder(tmp_path / "layers"))
    assert (verdict.counts["Matmul"], verdict.counts["Softmax"]) == (4, 3)


def test_weights_of_convolutions_are_judged_as_those_that_are_read_from_the_devices(tmp_path: Path) -> None:
    @jm.jit(mesh=jm.make_mesh((1, 2)))
    def convolve(x: Any, w: Any) -> Any:
        x, w = jm.full_to_shard(x, P("x")), jm.full_to_shard(w, P())
        for _ in range(2):
            x = jax.lax.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
        return jm.shard_to_full(x, P("x"))

    program = convolve.lower(*(jax.ShapeDtypeStruct(s, jnp.bfloat16) for s in ((2, 16, 16, 32), (3, 3, 32, 32))))
    program.export(tmp_path / "convolve")
    text = (tmp_path / "convolve" / "main.py").read_text()
    assert re.search(r"weight_tensor=(ttnn_permute_\d+)", text)
    assert "ttnn.to_device" in text
    verdict = program.judge(resident=False)
    assert verdict, str(verdict)
    assert fields(verdict) == fields(judge_folder(tmp_path / "convolve"))


def test_large_host_inputs_are_judged_as_those_that_are_made(tmp_path: Path) -> None:
    big = lowered(4096, 2048, 2048, (2, 4))
    assert REAL_BYTES < 4096 * 2048 * 4
    big.export(tmp_path / "big")
    assert fields(big.judge(resident=False)) == fields(judge_folder(tmp_path / "big"))
    assert big.judge()


def test_the_memory_is_that_of_the_tensors() -> None:
    """Of a program whose argument and result stay on the devices: two tensors, page by page over the banks."""
    mesh = jm.make_mesh((1, 2))
    shape = jax.ShapeDtypeStruct((2048, 1024, 2), jnp.float32)
    tensor: Any = jm.MeshTensor(shape, mesh, ("x",))
    verdict = jm.jit(jnp.exp, mesh=mesh).lower(tensor).judge()
    assert verdict, str(verdict)
    dram = verdict.memory("DRAM")
    assert dram is not None
    each = math.ceil(2048 * 1024 * 4 / PAGE / dram.banks) * PAGE
    assert each <= dram.end <= 2 * each  # the argument is deallocated or not, as the program says
    assert dram.peak == 2 * each
    assert dram.device_bytes == dram.banks * dram.bank_bytes > 12 * 10**9


def rolled(x: Any) -> Any:
    return jax.lax.cummax(jnp.roll(x, 5, 1), 1)


def summed(x: Any) -> Any:
    return jax.lax.psum(jax.lax.all_gather(x[:1000, :2040], "x", axis=0, tiled=True), "x")


STEPS: dict[str, tuple[Callable[..., Any], tuple[tuple[int, ...], ...]]] = {
    # Functions whose operations take several steps inside, and the shapes of floats and of indices that they take.
    "sums so far in a branch": (lambda x: jax.lax.cond(x[0, 0] > 0, lambda y: jnp.cumsum(y, 1), jnp.sin, x), ()),
    "rows that are taken": (lambda x, i: x[i], ((512,),)),
    "rows that are added to": (lambda x, i: x.at[i].add(x[:512]), ((512,),)),
    "sorted rows": (lambda x: jnp.sort(x, 0), ()),
    "the largest of each column": (lambda x: jax.lax.top_k(x.T, 40), ()),
    "a product": (lambda x: x.prod(0), ()),
    "the sum of an outer dim": (lambda x: x.reshape(8, 128, 2048).sum(0), ()),
    "rolled": (rolled, ()),
    "a slice within tiles": (lambda x: jnp.exp(x[5:900, 3:2000]), ()),
    "an update": (lambda x: jax.lax.dynamic_update_slice(x, x[:64] * 2, (jnp.argmax(x[0]), 0)), ()),
    "sums of unaligned shards": (jax.shard_map(
        summed, mesh=AbstractMesh((1, 8), ("y", "x")), in_specs=P("x"), out_specs=P(), check_vma=False), ()),
}  # fmt: skip


@pytest.mark.parametrize("name", STEPS)
def test_the_estimate_counts_what_operations_take_inside(name: str) -> None:
    function, indices = STEPS[name]
    rows = 8192 if name == "sums of unaligned shards" else 1024
    args = [jax.ShapeDtypeStruct((rows, 2048), jnp.float32), *(jax.ShapeDtypeStruct(s, jnp.int32) for s in indices)]
    program = jm.jit(function, mesh=AbstractMesh((1, 8), ("y", "x"))).lower(*args)
    verdict = program.judge(cluster="t3000")
    assert verdict, str(verdict)
    dram = verdict.memory("DRAM")
    assert dram is not None
    assert verdict.held is not None
    assert verdict.held.peak == program.estimate("t3000").memory.peak
    assert verdict.held.peak == pytest.approx(dram.device_peak, rel=0.05)


def test_a_model_of_any_size_needs_no_memory_here() -> None:
    """Eight devices hold 256 GiB of weights: they do not fit, and ttnn refuses the input that does not any more."""
    mesh = jm.make_mesh((2, 4))
    weights: Any = [
        jm.MeshTensor(jax.ShapeDtypeStruct((65536, 16384, 4), jnp.float32), mesh, ("x",)) for _ in range(16)
    ]
    program = jm.jit(lambda ws: [jnp.exp(w) for w in ws], mesh=mesh).lower(weights)
    assert program.judge().outcome == "does not fit"
    verdict = judge_program(program.default_program())
    assert verdict.refusal is not None
    assert verdict.refusal.kind == "DRAM"
    assert verdict.refusal.place.text.startswith("utils_load_sharded_tensor_2 =")
    assert verdict.refusal.place.source == "argument 2: args[0][2]"
    dram = verdict.memory("DRAM")
    assert dram is not None
    assert dram.device_peak >= 2 * 65536 * 16384 * 4


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float32])
@pytest.mark.parametrize("trained", [False, True], ids=["alone", "gradient"])
@pytest.mark.parametrize("causal", [False, True])
def test_attention_takes_no_more_memory_than_by_hand(causal: bool, trained: bool, dtype: Any) -> None:
    def of_jax(q: Any, k: Any, v: Any) -> Any:
        return jax.nn.dot_product_attention(q, k, v, is_causal=causal)

    def by_hand(q: Any, k: Any, v: Any) -> Any:
        scores = jnp.einsum("blhd,bmhd->bhlm", q, k, preferred_element_type=jnp.float32) / 8
        scores = jnp.where(jnp.tril(jnp.ones(scores.shape[-2:], bool)), scores, -1e30) if causal else scores
        return jnp.einsum("bhlm,bmhd->blhd", jax.nn.softmax(scores, -1).astype(v.dtype), v)

    mesh, split = jm.make_mesh((1, 8)), P(None, None, "y", None)
    peaks: list[int] = []
    for attend in (of_jax, by_hand):

        def loss(*x: Any, attend: Callable[..., Any] = attend) -> Any:
            return attend(*x).astype(jnp.float32).sum()

        program: Any = jax.grad(loss, (0, 1, 2)) if trained else attend
        x = jax.ShapeDtypeStruct((1, 512, 40, 64), dtype)
        lowered = jm.jit(program, mesh=mesh, in_shardings=split, out_shardings=split).lower(x, x, x)
        verdict = lowered.judge("t3000")
        dram = verdict.memory("DRAM")
        assert verdict
        assert dram is not None
        peaks.append(dram.peak)
        fused = "scaled_dot_product_attention" in lowered.as_text("python")
        assert fused == (dtype == jnp.bfloat16 and not trained)
    assert peaks[0] <= 1.2 * peaks[1]


EMPTY = {"of an argument": (0, 8), "cut": (8, 0), "created": (8, 8)}


@pytest.mark.parametrize("shape", EMPTY.values(), ids=EMPTY)
def test_tensors_without_elements(shape: tuple[int, int]) -> None:
    """Nothing is distributed or computed of them; the others are created as zeros, which `ttnn.zeros` makes."""

    def split(x: Any) -> Any:
        x = jm.full_to_shard(x, P("y", "x"))
        none = jnp.exp(x)[:, :0] * 2 + 1
        count = none.sum() + jax.ops.segment_sum(jnp.ones(4), jnp.array([0, 1, 1, 0]), 2)
        return [jm.shard_to_full(v, P(("y", "x"))) for v in (none.reshape(-1, 3), count, x * 2 + 1)]

    kind = jax.ShapeDtypeStruct(shape, jnp.float32)
    assert jm.jit(split, mesh=jm.make_mesh((1, 2))).lower(kind).judge().outcome == "accepted"


@pytest.mark.parametrize("mesh", [(1, 1), (2, 1), (2, 2), (4, 1), (1, 6), (4, 2), (8, 1), (4, 4), (2, 8)])
def test_a_mesh_is_a_part_of_a_cluster(mesh: tuple[int, ...]) -> None:
    verdict = lowered(128, 32, 384, mesh).judge()
    assert verdict.outcome == "accepted", str(verdict)
    assert verdict.mesh == mesh
    assert verdict.target == machine_for(None, mesh).name


@pytest.mark.parametrize("name", MACHINES)
def test_every_machine_is_described(name: str) -> None:
    machine = MACHINES[name]
    mesh = jax.sharding.AbstractMesh(machine.shape, ("y", "x"))
    spec = P("y", "x")
    double = jm.jit(lambda x: 2 * x @ x.T, mesh=mesh, in_shardings=spec, out_shardings=spec)
    verdict = double.lower(jax.ShapeDtypeStruct((512, 512), jnp.float32)).judge(cluster=name.upper())
    assert verdict.outcome == "accepted", str(verdict)
    assert (verdict.target, verdict.mesh) == (name, machine.shape)
    dram, l1 = verdict.memory("DRAM"), verdict.memory("L1")
    assert dram is not None
    assert dram.banks == machine.architecture.dram_channels
    assert dram.bank_bytes == pytest.approx(machine.architecture.dram_channel_bytes, rel=0.01)
    assert l1 is not None
    assert 0.8 * machine.cores.value < l1.banks <= machine.cores.value


@pytest.mark.parametrize("folder", [False, True], ids=["program", "folder"])
def test_every_replaced_element_type_is_named(folder: bool, tmp_path: Path) -> None:
    """Of 64-bit arguments, of a float16 between them, and of a truth value."""

    def mixed(x: Any, i: Any) -> Any:
        return jnp.tanh(x.astype(jnp.float16)), i + 1, x > 0

    with jax.enable_x64(True):
        args = np.ones((32, 32)), np.ones((32, 32), np.int64)
        jm.codegen_py(mixed, *args, export_path=tmp_path / "model")
        verdict = judge_folder(tmp_path / "model") if folder else jm.jit(mixed).lower(*args).judge()
        plain = jm.jit(jnp.tanh).lower(args[0].astype(np.float32)).judge()
    types = "BFLOAT16 replaces bool, FLOAT32 replaces float16, FLOAT32 replaces float64, INT32 replaces int64"
    assert f"ttnn lacks element types of the program: {types}" in verdict.remarks
    assert types in str(verdict)
    assert not any("replaces" in remark for remark in plain.remarks)


# --- refused ---------------------------------------------------------------------------------------------------------

EMPTY = (
    "ttnn.empty(ttnn.Shape([{}]), dtype=ttnn.DataType.FLOAT32, layout=ttnn.Layout.TILE, "
    "device=utils_DeviceGetter_get_device_0{})"
)
PLANTED = {
    "element type": ("matmul", r"ttnn.typecast(\1, ttnn.DataType.INT32)", MATMUL, "rule", "data format.*INT32"),
    "layout": ("matmul", r"ttnn.to_layout(\1, ttnn.Layout.ROW_MAJOR)", MATMUL, "rule", "must be tilized"),
    "alignment": (
        "matmul", r"ttnn.tilize(ttnn.to_layout(\1, ttnn.Layout.ROW_MAJOR))", MATMUL, "rule", "divisible by tile",
    ),
    "keyword": ("exp", r"\1, bogus=1", EXP, "arguments", "ttnn.exp has no argument 'bogus'; it has .*memory_config"),
    "type of an argument": ("exp", "'text'", EXP, "arguments", r"incompatible.*Called with exp\(str, .*memory_config="),
    "function": ("exp", r"ttnn.no_such_op(\1)", EXP, "other", "AttributeError: .*no_such_op"),
    "DRAM": ("exp", EMPTY.format("65536, 65536", ""), EXP, "DRAM", "Out of Memory.*17179869184 B DRAM"),
    "L1": (
        "exp", EMPTY.format("65536, 1024", ", memory_config=ttnn.L1_MEMORY_CONFIG"), EXP, "L1",
        "Out of Memory.*268435456 B L1",
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", PLANTED)
def test_a_refusal_is_reported_at_its_source_line(kind: str, exported: Path, tmp_path: Path) -> None:
    op, new, source, wanted, reason = PLANTED[kind]
    verdict = judge_folder(planted(exported, tmp_path / "planted", rf"(?<=ttnn\.{op}\()(\w+)", new))
    assert not verdict
    assert verdict.refusal is not None
    assert verdict.refusal.place.source.startswith(source), str(verdict)
    assert f"ttnn.{op}(" in verdict.refusal.place.text
    assert verdict.refusal.kind == wanted
    assert re.search(reason, verdict.refusal.reason), verdict.refusal.reason
    assert "backtrace" not in verdict.refusal.text
    assert source in str(verdict)


def test_a_kernel_that_needs_more_of_l1_than_is_left(exported: Path, tmp_path: Path) -> None:
    wide = EMPTY.format("32, 1048576", "")
    full = EMPTY.format("16384, 1024", ", memory_config=ttnn.L1_MEMORY_CONFIG")
    new = rf"[{full}, ttnn.softmax({wide}, dim=-1)][1]"
    verdict = judge_folder(planted(exported, tmp_path / "planted", r"(?<=ttnn\.exp\()(\w+)", new))
    assert verdict.refusal is not None
    assert (verdict.refusal.kind, verdict.refusal.place.source.startswith(EXP)) == ("L1", True)
    l1 = verdict.memory("L1")
    assert l1 is not None
    assert l1.peak == 16384 * 1024 * 4 // l1.banks


def test_a_program_that_is_too_large_by_itself() -> None:
    found = lowered(65536, 64, 131072).judge()
    assert (found.outcome, found.largest(1)[0].role) == ("does not fit", "result")
    assert found.largest(1)[0].line.startswith(MATMUL)
    verdict = judge_program(lowered(65536, 64, 131072).default_program())
    assert verdict.refusal is not None
    assert verdict.refusal.kind == "DRAM"
    assert verdict.refusal.place.source.startswith(MATMUL)


def test_a_buffer_that_is_freed_through_a_view_is_no_leak() -> None:
    def heads(x: Any) -> Any:
        return x.reshape(64, 4, 64).transpose(1, 0, 2)

    def attend(x: Any) -> Any:
        return jax.nn.softmax(heads(x) @ heads(x + 1).transpose(0, 2, 1)) @ heads(x * 2)

    x = jax.ShapeDtypeStruct((64, 256), jnp.bfloat16)
    lowered = jm.jit(attend, mesh=jm.make_mesh((1, 1))).lower(x)
    # The fused attention reads views of the heads.
    assert ", True)" in lowered.as_text("python")
    assert not lowered.judge("n150").leaks


def test_a_leak_is_reported_at_its_source_line(exported: Path, tmp_path: Path) -> None:
    verdict = judge_folder(planted(exported, tmp_path / "planted", r"  ttnn.deallocate\(ttnn_exp_0, False\)\n", ""))
    (leak,) = verdict.leaks
    assert verdict.outcome == "accepted"
    assert (leak.name, leak.shape, leak.bytes) == ("ttnn_exp_0", (64, 40), 4 * PAGE)
    assert leak.place.source.startswith(EXP)
    dram = verdict.memory("DRAM")
    assert dram is not None
    assert dram.end == PAGE


def test_a_process_that_dies_is_reported_at_its_source_line(exported: Path, tmp_path: Path) -> None:
    new = r"ttnn.point_to_point(\1, ttnn.MeshCoordinate([1]), ttnn.MeshCoordinate([0]))"
    verdict = judge_folder(planted(exported, tmp_path / "planted", r"(?<=ttnn\.exp\()(\w+)", new))
    assert verdict.outcome == "died"
    assert verdict.refusal is not None
    assert verdict.refusal.place.source.startswith(EXP)
    assert "SIGABRT: Coordinate dimensions do not match: 1 != 2" in verdict.refusal.reason


def test_a_mesh_of_three_axes_is_refused_where_it_is_opened() -> None:
    mesh = jm.make_mesh((2, 2, 2))

    def double(x: Any) -> Any:
        spec = P(mesh.axis_names[0])
        return jm.shard_to_full(2 * jm.full_to_shard(x, spec), spec)

    verdict = jm.jit(double, mesh=mesh).lower(jnp.ones((64, 32))).judge()
    assert verdict.refusal is not None
    assert "MeshShape([2, 2, 2]) != MeshShape([2, 4])" in verdict.refusal.reason
    assert ".get_device(" in verdict.refusal.place.text


# --- the command, and mistakes ---------------------------------------------------------------------------------------


def command(*arguments: object) -> subprocess.CompletedProcess[str]:
    words = [sys.executable, "-m", "jaxmesh", "run", *map(str, arguments)]
    return subprocess.run(words, capture_output=True, text=True, check=False)


def test_the_command(exported: Path, tmp_path: Path) -> None:
    done = command(exported, "--on", "ttnn")
    assert (done.returncode, done.stderr) == (0, "")
    assert "accepted to its end by ttnn" in done.stdout
    refused = command(planted(exported, tmp_path / "planted", r"(?<=ttnn\.exp\()(\w+)", r"\1, bogus=1"), "--on", "ttnn")
    assert (refused.returncode, refused.stderr) == (1, "")
    assert re.search(rf"where +{re.escape(EXP)}", refused.stdout)
    larger = command(exported, "--on", "ttnn", "--cluster", "galaxy")
    assert "of a described galaxy" in larger.stdout


def test_a_described_cluster_compares_nothing(exported: Path) -> None:
    with pytest.raises(ArgumentValueError, match="n300 is only described"):
        judge_folder(exported, check=True, cluster="n300")


def test_a_torn_input_is_no_refusal(exported: Path, tmp_path: Path) -> None:
    folder = planted(exported, tmp_path / "planted", "import utils", "import utils")
    (folder / "tensors" / "arg0.npy").write_bytes(b"torn")
    with pytest.raises(MissingFileError, match=r"tensors/arg0.npy cannot be read"):
        judge_folder(folder)
    assert judge_folder(folder, shapes=True)


def test_a_program_that_stops_on_its_way_is_not_accepted(exported: Path, tmp_path: Path) -> None:
    new = r"__import__('sys').exit(0) or \1"
    verdict = judge_folder(planted(exported, tmp_path / "planted", r"(?<=ttnn\.exp\()(\w+)", new))
    assert verdict.refusal is not None
    assert verdict.refusal.place.source.startswith(EXP)
    assert verdict.refusal.reason == "SystemExit: 0"


@pytest.mark.parametrize(("pattern", "new", "why"), [
    ("import ttnn", "import ttnn (", "SyntaxError: "),
    ("import utils", "import no_utils", "ModuleNotFoundError: No module named 'no_utils'"),
])  # fmt: skip
def test_a_folder_without_a_program_that_loads(
    pattern: str, new: str, why: str, exported: Path, tmp_path: Path
) -> None:
    with pytest.raises(
        MissingFileError, match=rf"does not contain a program that Python can load: {why}.*; export it again"
    ):
        judge_folder(planted(exported, tmp_path / "planted", rf"(?m)^{pattern}$", new))


def test_a_program_that_does_not_end(exported: Path, tmp_path: Path) -> None:
    new = r"[None for i in iter(int, 1)] or \1"
    folder = planted(exported, tmp_path / "planted", r"(?<=ttnn\.exp\()(\w+)", new)
    with pytest.raises(TtnnError, match=r"ran for 8 s on ttnn .* and was at line \d\d of main.py"):
        judge_folder(folder, timeout=8)


# --- the exported utils.py -------------------------------------------------------------------------------------------

ROUND_TRIP = """
import sys
import numpy as np
import ttnn
import utils
first = utils.STOOD_FOR
del sys.modules["utils"]
import utils
assert utils.STOOD_FOR == first == {"bfloat16": ["bool"], "float32": ["float16", "float64"], "int32": ["int64"]}
assert not utils.EVERY_TYPE
for name in ("float32", "bfloat16", "int32", "uint32", "uint16", "uint8", "bool", "float16", "int64"):
    for file in (f"{name}_{rank}.npy" for rank in range(3)):
        dtype = getattr(ttnn.DataType, name.upper())
        tensor = utils.load_tensor(file, ttnn.Layout.ROW_MAJOR, dtype, None, None)
        want = utils.read(file, dtype)
        np.testing.assert_array_equal(utils.to_numpy(tensor).astype(want.dtype), want)
assert "torch" not in sys.modules
"""


def test_an_exported_folder_needs_no_torch(environment: Environment, tmp_path: Path) -> None:
    """Every element type goes from a file to ttnn and back, after `utils.py` was imported twice."""
    (tmp_path / "utils.py").write_text(utils_text())
    for name in ("float32", "bfloat16", "int32", "uint32", "uint16", "uint8", "bool", "float16", "int64"):
        for rank, shape in enumerate([(), (3,), (2, 5)]):
            array = np.arange(math.prod(shape)).reshape(shape) % 2
            bits = np.asarray(jnp.asarray(array, name)).view(np.uint16) if name == "bfloat16" else array.astype(name)
            np.save(tmp_path / f"{name}_{rank}.npy", bits)
    done = subprocess.run(
        [environment.python, "-c", ROUND_TRIP], cwd=tmp_path, env=clean_environment(), capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


def test_a_convolution_along_one_dim() -> None:
    kinds = "tensor<2x32x64xbf16>, tensor<32x64x3xbf16>, tensor<1x1x32xbf16>"
    window = "stride = 1 : i32, padding = array<i32: 2, 0>, dilation = 1 : i32, groups = 1 : i32"
    arguments = ", ".join(f"%{name}: {kind}" for name, kind in zip("abc", kinds.split(", "), strict=True))
    text = f"""func.func @f({arguments}) -> tensor<2x32x32xbf16> {{
  %r = "ttir.conv1d"(%a, %b, %c) <{{{window}}}> : ({kinds}) -> tensor<2x32x32xbf16>
  return %r : tensor<2x32x32xbf16>
}}
"""
    verdict = jm.from_mlir(text, jm.make_mesh((1, 2))).lower().judge()
    assert verdict, str(verdict)


def test_a_loop_is_judged_once_for_all_its_iterations() -> None:
    def loops(x: Any, w: Any) -> Any:
        def outer(c: Any, _: Any) -> Any:
            c = jax.lax.fori_loop(0, 5, lambda i, d: jnp.tanh(d @ w) + d.sum(0, keepdims=True), c)
            return c - c.mean(), None

        return jax.lax.scan(outer, x, None, length=4)[0]

    x = jax.ShapeDtypeStruct((64, 64), jnp.float32)
    fun = jm.jit(loops, mesh=jm.make_mesh((1, 2)), in_shardings=(P("x"), P()))
    kept, unrolled = (fun.lower(x, x).judge(unroll_limit=n) for n in (0, 10_000))
    assert kept
    assert not kept.leaks
    # The counters: one addition and one number in each iteration.
    assert kept.counts.pop("BinaryNg") == unrolled.counts.pop("BinaryNg") + 4 * 5 + 4
    assert kept.counts.pop("FillPad", 0) >= unrolled.counts.pop("FillPad", 0)
    assert kept.counts == unrolled.counts
    assert all(m.device_peak > 0 for m in kept.memories if m.name == "DRAM")


def test_stacked_weights_are_held_once_in_a_loop_over_layers() -> None:
    def layers(x: Any, stacks: Any) -> Any:
        return jax.lax.scan(lambda c, w: (c + jnp.tanh(c @ w["up"]) @ w["down"], None), x, stacks)[0]

    size, depth = 512, 48
    w = jax.ShapeDtypeStruct((depth, size, size), jnp.bfloat16)
    specs = P(), {"up": P(None, None, "x"), "down": P(None, "x")}
    fun = jm.jit(layers, mesh=AbstractMesh((1, 2), ("y", "x")), in_shardings=specs)
    program = fun.lower(jax.ShapeDtypeStruct((32, size), jnp.bfloat16), {"up": w, "down": w})
    verdict = program.judge(unroll_limit=0)
    plain = depth * size * size * 2
    assert verdict, str(verdict)
    assert verdict.held.peak == pytest.approx(plain, rel=0.05)
    assert all(m.device_peak == pytest.approx(plain, rel=0.05) for m in verdict.memories if m.name == "DRAM")


def test_a_loop_whose_end_only_devices_know_is_judged_for_one_iteration() -> None:
    def until(x: Any) -> Any:
        return jax.lax.while_loop(lambda c: c.sum() > 1, jnp.cos, x)

    x = jax.ShapeDtypeStruct((64, 64), jnp.float32)
    verdict = jm.jit(until, mesh=jm.make_mesh((1, 2)), in_shardings=P()).lower(x).judge()
    assert verdict
    assert verdict.counts["Unary"] == 1
    assert "a loop whose end only the devices know counts as one iteration" in verdict.remarks


@pytest.mark.parametrize("dialect", ["ttir", "ttnn"])
def test_groups_of_channels_are_accepted(dialect: str) -> None:
    image, rows, dim = (
        ("1x64x3x5", "64", "channel_dim = 1 : i64, ") if dialect == "ttir" else ("1x1x15x64", "1x1x2x32", "")
    )
    x, w = f"tensor<{image}xbf16>", f"tensor<{rows}xbf16>"
    text = f"""func.func @main(%x: {x}, %w: {w}, %b: {w}) -> {x} {{
%0 = "{dialect}.group_norm"(%x, %w, %b) <{{{dim}num_groups = 2 : i64, operandSegmentSizes = array<i32: 1, 0, 1, 1>}}>
    : ({x}, {w}, {w}) -> {x}
return %0 : {x} }}"""
    assert jm.from_mlir(text, AbstractMesh((1, 1), ("y", "x"))).lower().judge().outcome == "accepted"


EXPERTS = """
func.func @main(%s: tensor<1x1x64x8xbf16>, %m: tensor<1x1x8x1xui16>, %n: tensor<1x1x64x4xui16>,
    %a: tensor<2x1x32x64xbf16>, %b: tensor<1x8x64x64xbf16>) -> (tensor<1x1x64x8xbf16>, tensor<2x1x1x8x32x64xbf16>) {
%0:2 = "ttnn.moe_expert_token_remap"(%s, %m, %n) <{reduction_size = 32 : i64}> : (tensor<1x1x64x8xbf16>,
    tensor<1x1x8x1xui16>, tensor<1x1x64x4xui16>) -> (tensor<1x1x64x8xbf16>, tensor<1x1x2x8xui16>)
%1 = "ttnn.typecast"(%0#1) : (tensor<1x1x2x8xui16>) -> tensor<1x1x2x8xbf16>
%2 = "ttnn.reshape"(%1) <{shape = [2 : i32, 1 : i32, 1 : i32, 8 : i32]}>
    : (tensor<1x1x2x8xbf16>) -> tensor<2x1x1x8xbf16>
%3 = "ttnn.sparse_matmul"(%a, %b, %2) <{nnz = 2 : i64, program_config =
    #ttnn.matmul_multi_core_reuse_multi_cast_1d_program_config<compute_with_storage_grid_size = #ttnn.core_coord<2, 8>,
    in0_block_w = 1, out_subblock_h = 1, out_subblock_w = 1, out_block_h = 1, out_block_w = 1, per_core_m = 1,
    per_core_n = 1, fuse_batch = false, mcast_in0 = true, hop_cores = #ttnn.core_range_set<>>}>
    : (tensor<2x1x32x64xbf16>, tensor<1x8x64x64xbf16>, tensor<2x1x1x8xbf16>) -> tensor<2x1x1x8x32x64xbf16>
return %0#0, %3 : tensor<1x1x64x8xbf16>, tensor<2x1x1x8x32x64xbf16> }"""


def test_experts_take_numbers_in_rows_and_a_grid() -> None:
    found = jm.from_mlir(EXPERTS, AbstractMesh((1, 1), ("y", "x"))).lower()
    text = found.as_text("python")
    assert "compute_with_storage_grid_size=ttnn.CoreCoord(2, 8), in0_block_w=1, " in text
    assert "per_core_M=1, per_core_N=1, fuse_batch=False, mcast_in0=True), nnz=2" in text
    assert text.count("ttnn.Layout.TILE") == 2  # the matrices
    assert found.judge().outcome == "accepted", str(found.judge())


def test_a_cache_that_is_written_at_a_computed_position_is_accepted() -> None:
    made = ALL["fifth_kv_cache_decode_step"](0)
    assert jm.jit(made.fun, mesh=made.mesh, in_shardings=made.specs).lower(*made.args).judge()
