"""The process of the compiler: found, missing, refusing, broken or slow; a program in its place plays each part."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import jax
import numpy as np
import pytest

import jaxmesh as jm
from jaxmesh.analysis.upstream import compile_text, environment, worker
from jaxmesh.analysis.upstream.environment import UPSTREAM, find_plugin
from jaxmesh.cli.main import main
from jaxmesh.errors import ArgumentTypeError, ArgumentValueError, MeshError, MissingFileError, ParseError, UpstreamError
from jaxmesh.stages.stages import Traced
from jaxmesh.stages.upstream import UpstreamResult

GET = r"make one with `jaxmesh upstream-env`.*with JAXMESH_UPSTREAM_PYTHON"
PROGRAM = 'module { sdy.mesh @mesh = <["y"=2, "x"=4]> }'

Play = Callable[..., Path]
PLAYED = """
import json, os, pathlib, shutil, sys, time
out = os.fdopen(int(sys.argv[3]), "w")
def answer(value): print(json.dumps(value), file=out, flush=True)
START
answer({"devices": 8, "logged": os.fstat(2).st_size})
for line in sys.stdin:
    job = json.loads(line)
    folder = pathlib.Path(job["folder"])
    (folder / "irs").mkdir()
    for i, stage in enumerate(("shlo_frontend", "ttir", "ttnn")):
        (folder / "irs" / f"{stage}_{1795531235137 + i}.mlir").write_text(f"{stage} of {job['count']} {job['options']}")
    (folder / "program.ttnn").write_bytes(os.environ["TMPDIR"].encode())
    JOB
    answer({})
shutil.rmtree(os.environ["TMPDIR"], ignore_errors=True)
"""


@pytest.fixture
def play(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Play]:
    """Puts a program with these parts in the place of the one that loads the compiler; returns the library's path."""
    monkeypatch.setattr(environment.platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(environment.sys, "platform", "linux")

    def parts(start: str = "", job: str = "") -> Path:
        (tmp_path / "runner.py").write_text(PLAYED.replace("START", start).replace("JOB", job))
        monkeypatch.setattr(worker, "RUNNER", tmp_path / "runner.py")
        library = tmp_path / "plugin.so"
        library.touch()
        return library

    yield parts
    worker.close_workers()


def test_flags_of_this_processes_xla_stay_here(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XLA_FLAGS", "--unheard_of=1")
    assert compile_text(PROGRAM, plugin=play(start='assert not os.environ["XLA_FLAGS"]'))


# --- found or not ----------------------------------------------------------------------------------------------------


def test_nothing_is_there(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.delenv(UPSTREAM.variable, raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.raises(UpstreamError, match=rf"'{tmp_path}/jaxmesh/upstream/bin/python' does not exist; {GET}"):
        find_plugin()
    with pytest.raises(UpstreamError, match=rf"\(it was given\), but Tenstorrent's compiler is not installed.*{GET}"):
        find_plugin(sys.executable)
    with pytest.raises(MissingFileError, match=r"the plugin '.*none\.so' does not exist"):
        find_plugin(tmp_path / "none.so")
    monkeypatch.setenv(UPSTREAM.variable, str(tmp_path / "none.so"))
    with pytest.raises(MissingFileError, match="does not exist"):
        find_plugin()
    assert main(["upstream-env", "--plugin", str(tmp_path / "none")]) == 2
    assert "cannot be started" in capsys.readouterr().err


def test_another_platform_reads_texts_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment.sys, "platform", "darwin")
    with pytest.raises(UpstreamError, match=r"for x86-64 Linux alone.*jaxmesh\.from_mlir reads here"):
        compile_text(PROGRAM)


def test_the_command_makes_an_environment(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str], play: Play
) -> None:
    asked: list[object] = []

    def make(folder: Path, version: str, python: str | None) -> environment.Plugin:
        asked.append((folder, version, python))
        return environment.Plugin(Path(sys.executable), play(), "jax-tt-plugin 9")

    monkeypatch.setattr(environment, "make_environment", make)
    monkeypatch.setattr("jaxmesh.analysis.upstream.check_plugin", lambda python: python)
    assert main(["upstream-env", str(tmp_path / "x"), "--python", "p"]) == 0
    assert asked == [(tmp_path / "x", UPSTREAM.tested, "p")]
    assert f"export {UPSTREAM.variable}={sys.executable}" in capsys.readouterr().out


# --- what it answers -------------------------------------------------------------------------------------------------


def test_texts_and_flatbuffer_come_back(play: Play, tmp_path: Path) -> None:
    plugin = play()
    made = compile_text(PROGRAM, plugin=plugin, options={"a": "1"})
    assert made
    assert list(made.stages) == ["shlo_frontend", "ttir", "ttnn"]
    assert (made.ttir, made.refusal) == ("ttir of 8 {'a': '1'}", None)
    # One process serves all programs, in a temporary folder that is gone with it.
    again = compile_text(PROGRAM, plugin=plugin)
    assert made.flatbuffer == again.flatbuffer
    assert made.flatbuffer is not None
    scratch = Path(made.flatbuffer.decode())
    assert scratch.exists()
    other = compile_text(PROGRAM, plugin=plugin, cluster="galaxy")
    assert other.flatbuffer != made.flatbuffer
    worker.close_workers()
    assert not scratch.exists()
    names = [str(p.relative_to(tmp_path / "saved")) for p in made.save(tmp_path / "saved")]
    assert names == ["irs/shlo_frontend.mlir", "irs/ttir.mlir", "irs/ttnn.mlir", "fb.ttnn"]
    assert "compiled by plugin.so for a described t3000" in str(made)
    assert "<table" in made._repr_html_()


def test_a_refusal_has_the_line_of_the_user(play: Play) -> None:
    wrote = """loc("jit(f)/reduce"("model.py":3:4)): error: 'ttir.all_reduce' op Invalid"""
    job = f"""print({wrote!r}, file=sys.stderr, flush=True)
    (folder / "irs" / "ttnn_1795531235139.mlir").unlink()
    answer({{"refused": "INTERNAL: x"}})
    continue"""
    made = compile_text(PROGRAM, plugin=play(job=job))
    assert not made
    assert made.refusal is not None
    assert (made.refusal.source, made.refusal.name) == ("model.py:3:4", "jit(f)/reduce")
    assert str(made.refusal) == "model.py:3:4: 'ttir.all_reduce' op Invalid"
    assert (made.ttnn, made.flatbuffer) == (None, None)
    with pytest.raises(
        UpstreamError, match=r"'ttnn' is missing, since the compiler refused the program: model\.py:3:4"
    ):
        made.text("ttnn")


def test_a_refusal_without_a_diagnostic_is_jaxs_message(play: Play) -> None:
    made = compile_text(PROGRAM, plugin=play(job='answer({"refused": "INTERNAL: no such pass"}); continue'))
    assert str(made.refusal) == "no such pass"


def test_an_error_of_the_parser_has_the_line_alone(play: Play) -> None:
    said = "UNKNOWN: -:6:10: error: custom op 'x.y' is unknown\\n<unknown>:0: error: Failed to parse using StableHLO v1"
    with pytest.raises(
        ParseError, match=r"^line 6: custom op 'x.y' is unknown; the compiler cannot parse this as Stab"
    ):
        compile_text(
            PROGRAM, plugin=play(job=f'shutil.rmtree(folder / "irs"); answer({{"refused": "{said}"}}); continue')
        )


def test_this_process_works_while_the_compiler_does(play: Play, tmp_path: Path) -> None:
    """The program waits for a file that the other function writes: one after the other they would never end."""
    there = tmp_path / "there"
    plugin = play(job=f"while not pathlib.Path({str(there)!r}).exists(): time.sleep(0.01)")
    for _ in range(2):  # A process that starts, and one that has started.
        assert compile_text(PROGRAM, plugin=plugin, timeout=60, meanwhile=there.touch)
        there.unlink()


def test_an_interrupt_of_the_work_meanwhile_ends_the_compiler(play: Play) -> None:
    def interrupted() -> None:
        raise KeyboardInterrupt

    plugin = play()
    before = compile_text(PROGRAM, plugin=plugin).flatbuffer
    with pytest.raises(KeyboardInterrupt):
        compile_text(PROGRAM, plugin=plugin, meanwhile=interrupted)
    assert before is not None
    assert not Path(before.decode()).exists()
    assert compile_text(PROGRAM, plugin=plugin).flatbuffer != before


def test_what_a_start_logs_is_no_diagnostic_of_the_program(play: Play) -> None:
    start = """print('loc("a.py":1:2): error: of the start', file=sys.stderr, flush=True)"""
    made = compile_text(PROGRAM, plugin=play(start=start, job='answer({"refused": "INTERNAL: of the job"}); continue'))
    assert str(made.refusal) == "of the job"


@pytest.mark.parametrize(
    ("parts", "reason"),
    [
        ({"start": "print('no glibc', file=sys.stderr, flush=True); os.abort()"},
         rf"ended with signal SIGABRT at its start: no glibc; {GET}"),
        ({"start": "sys.exit(3)"}, rf"ended with exit code 3 at its start: it printed nothing; {GET}"),
        ({"start": 'answer({"unusable": "it takes no description"}); sys.exit()'},
         rf"cannot compile: it takes no description; jaxmesh is tested with jax-tt-plugin 0.1.3: {GET}"),
        ({"job": "os.kill(os.getpid(), 11)"}, r"ended with signal SIGSEGV at the program: .*; report it"),
        ({"job": "time.sleep(60)"}, r"took more than 0.5 s for the program; in Python, timeout= allows more"),
    ],
)  # fmt: skip
def test_a_broken_compiler_is_one_line(play, parts: dict[str, str], reason: str) -> None:
    plugin = play(**parts)
    for _ in range(2):  # The next program starts another process.
        with pytest.raises(UpstreamError, match=rf"^plugin\.so .*{reason}") as found:
            compile_text(PROGRAM, plugin=plugin, timeout=0.5)
        assert "\n" not in str(found.value)


PROCESS = """
import os
from pathlib import Path
from jaxmesh.analysis.upstream import compile_text, worker
worker.RUNNER = Path({runner!r})
def folder(): return compile_text({program!r}, plugin={library!r}, timeout=60).flatbuffer.decode()
"""


def in_processes(library: Path, code: str, count: int = 1) -> list[str]:
    """Returns what processes print that run a code at once."""
    start = PROCESS.format(runner=str(library.with_name("runner.py")), program=PROGRAM, library=str(library))
    command = [sys.executable, "-W", "ignore", "-c", start + code]
    processes = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(count)]
    return [p.communicate(timeout=120)[0] for p in processes]


@pytest.mark.slow
def test_processes_start_at_once(play: Play, tmp_path: Path) -> None:
    """Each waits in its start until all have begun theirs."""
    waits = f"""
folder = pathlib.Path({str(tmp_path)!r}, "started")
folder.mkdir(exist_ok=True)
(folder / str(os.getpid())).touch()
while len(list(folder.iterdir())) < 3: time.sleep(0.01)
"""
    folders = in_processes(play(start=waits), "print(folder())", 3)
    assert len({Path(f.strip()) for f in folders}) == 3
    assert all(folders)
    assert not any(Path(f.strip()).exists() for f in folders)


@pytest.mark.parametrize("ends", ["os._exit(0)", "raise SystemExit"])
@pytest.mark.slow(but_one_in=2)
def test_a_forked_process_has_a_compiler_of_its_own(play: Play, ends: str) -> None:
    forks = f"""
first = folder()
if os.fork() == 0:
    print(folder(), flush=True)
    {ends}
os.wait()
print(first, Path(first).exists(), folder() == first)
"""
    other, first, exists, same = in_processes(play(), forks)[0].split()
    assert other != first
    assert (exists, same) == ("True", "True")
    assert not Path(first).exists()


@pytest.mark.parametrize("what", ["folder", "log"])
def test_a_cleaned_folder_means_another_compiler(play: Play, what: str) -> None:
    library = play()
    folder = Path((compile_text(PROGRAM, plugin=library).flatbuffer or b"").decode())
    shutil.rmtree(folder) if what == "folder" else (folder / "log").unlink()
    other = Path((compile_text(PROGRAM, plugin=library).flatbuffer or b"").decode())
    assert other.exists()
    assert other != folder
    assert not folder.exists()


def test_nothing_stays_when_a_process_is_killed_while_the_compiler_works(play: Play, tmp_path: Path) -> None:
    library = play(job=f"pathlib.Path({str(tmp_path)!r}, 'works').touch(); time.sleep(600)")
    (temporary := tmp_path / "temporary").mkdir()
    code = PROCESS.format(runner=str(tmp_path / "runner.py"), program=PROGRAM, library=str(library)) + "folder()"
    owner = subprocess.Popen([sys.executable, "-W", "ignore", "-c", code], env={**os.environ, "TMPDIR": str(temporary)})
    wait_until((tmp_path / "works").exists)
    assert len(list(temporary.iterdir())) == 1
    owner.kill()
    owner.wait()
    wait_until(lambda: not list(temporary.iterdir()))


def wait_until(holds: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_mistakes_of_the_caller(play: Play) -> None:
    plugin = play()
    with pytest.raises(
        ArgumentValueError,
        match=r"the machines are n150, n300, t3000, galaxy, .* or blackhole-galaxy, got 'x'",
    ):
        compile_text(PROGRAM, plugin=plugin, cluster="x")
    with pytest.raises(MeshError, match="for 8 devices, and n300 has 2"):
        compile_text(PROGRAM, plugin=plugin, cluster="N300")
    with pytest.raises(ArgumentTypeError, match="takes StableHLO text, got int"):
        compile_text(3, plugin=plugin)  # type: ignore[arg-type]


# --- its texts are programs ------------------------------------------------------------------------------------------

PARTITIONED = """module {
  sdy.mesh @mesh = <["a"=2, "b"=4]>
  func.func public @main(%x: tensor<4x8xf32>, %w: tensor<8x3xf32>, %flag: tensor<i1>) -> tensor<4x3xf32> {
    %0 = sdy.manual_computation(%w, %x, %flag) in_shardings=[<@mesh, [{"b"}, {}]>, <@mesh, [{"a"}, {"b"}]>, <@mesh, []>]
        out_shardings=[<@mesh, [{"a"}, {}]>] manual_axes={"a", "b"}
        (%a: tensor<2x3xf32>, %b: tensor<2x2xf32>, %c: tensor<i1>) {
      %1 = stablehlo.dot_general %b, %a, contracting_dims = [1] x [0]
          : (tensor<2x2xf32>, tensor<2x3xf32>) -> tensor<2x3xf32>
      sdy.return %1 : tensor<2x3xf32>
    } : (tensor<8x3xf32>, tensor<4x8xf32>, tensor<i1>) -> tensor<4x3xf32>
    return %0 : tensor<4x3xf32>
  }
}"""
THERE = "{ttcore.shard_status = #ttcore.shard_status<presharded>}"
TTIR = f"""module {{
  ttcore.device_module {{
    builtin.module attributes {{ttcore.meshes = #ttcore.meshes<[<"mesh" = 2x4>]>}} {{
      func.func public @main(%x: tensor<2x2xf32> {THERE}, %w: tensor<2x3xf32> {THERE}, %flag: tensor<bf16> {THERE})
          -> (tensor<2x3xf32> {THERE}) {{
        %0 = "ttir.matmul"(%x, %w) <{{transpose_a = false, transpose_b = false}}>
            : (tensor<2x2xf32>, tensor<2x3xf32>) -> tensor<2x3xf32>
        %1 = "ttir.all_reduce"(%0) <{{cluster_axis = 1 : ui32, reduce_type = #ttcore.reduce_type<sum>}}>
            : (tensor<2x3xf32>) -> tensor<2x3xf32>
        %2 = "ttir.typecast"(%flag) : (tensor<bf16>) -> tensor<f32>
        %3 = "ttir.reshape"(%2) <{{shape = [1 : i32, 1 : i32]}}> : (tensor<f32>) -> tensor<1x1xf32>
        %4 = "ttir.multiply"(%1, %3) : (tensor<2x3xf32>, tensor<1x1xf32>) -> tensor<2x3xf32>
        return %4 : tensor<2x3xf32>
      }}
    }}
  }}
}}"""
FIRST, SECOND = np.arange(32, dtype=np.float32).reshape(4, 8), np.arange(24, dtype=np.float32).reshape(8, 3)


def result(ttir: str) -> UpstreamResult[Traced]:
    return UpstreamResult({"shlo_compiler": PARTITIONED, "ttir": ttir}, b"", make=Traced)


def test_a_program_takes_and_returns_whole_arrays() -> None:
    program = result(TTIR).program("ttir")
    assert [a.whole for a in program._boundary.arguments] == [(4, 8), (8, 3), ()]
    for flag in (True, False):
        got = program.lower().compile()(FIRST, SECOND, flag)
        assert isinstance(got, jax.Array)
        assert got.sharding.shard_shape(got.shape) == (2, 3)
        np.testing.assert_array_equal(got, FIRST @ SECOND * flag)


def test_an_argument_that_nothing_reads_is_a_whole_array() -> None:
    # The partitioned text does not state how it is split, the program does.
    unread = "%u: tensor<4x16xf32>"
    whole = PARTITIONED.replace("%flag: tensor<i1>)", f"%flag: tensor<i1>, {unread})")
    declared = whole.replace(unread, unread + ' {sdy.sharding = #sdy.sharding<@mesh, [{"b"}, {"a"}]>}')
    ttir = TTIR.replace("%flag: tensor<bf16> " + THERE, f"%flag: tensor<bf16> {THERE}, %u: tensor<1x8xf32> {THERE}")
    stages = {"shlo_frontend": declared, "shlo_compiler": whole, "ttir": ttir}
    program = UpstreamResult(stages, b"", make=Traced).program("ttir")
    assert [a.whole for a in program._boundary.arguments] == [(4, 8), (8, 3), (), (4, 16)]
    got = program.lower().compile()(FIRST, SECOND, True, np.zeros((4, 16), np.float32))
    np.testing.assert_array_equal(got, FIRST @ SECOND)


def test_a_result_that_is_not_as_stated_is_a_tensor_of_shards() -> None:
    dropped = TTIR.replace('"ttir.all_reduce"(%0)', '"ttir.neg"(%0)').replace(
        " <{cluster_axis = 1 : ui32, reduce_type = #ttcore.reduce_type<sum>}>", ""
    )
    got = result(dropped).program("ttir").lower().compile()(FIRST, SECOND, True)
    assert isinstance(got, jm.MeshTensor)
    for (y, x), shard in got.shards():
        part = FIRST[2 * y : 2 * y + 2, 2 * x : 2 * x + 2] @ SECOND[2 * x : 2 * x + 2]
        np.testing.assert_array_equal(np.asarray(shard), -part)


def test_other_texts_are_not_programs() -> None:
    with pytest.raises(ArgumentValueError, match="program takes 'ttnn' or 'ttir', got 'shlo'"):
        result(TTIR).program("shlo")
    with pytest.raises(UpstreamError, match="the text 'ttnn' is missing; the texts are shlo_compiler, ttir"):
        result(TTIR).program()
