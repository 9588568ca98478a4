"""Nothing that can take long is silent: one block of progress spans each command and each long call.

A block shows itself after two seconds (`tests/unit/runtime/test_progress.py`), and again until it ends. So a call is
never silent for longer if one block spans it: the time of the processor outside of the block is counted, and no other
process is waited for there. Two blocks, one after the other, may be silent twice as long, and fail.
"""

from __future__ import annotations

import contextlib
import io
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import jaxmesh as jm
from jaxmesh.analysis.upstream import worker
from jaxmesh.cli import main as cli
from jaxmesh.cli.demo import command as demo_command, model
from jaxmesh.runtime import progress as module

MOST, LEAST = 0.2, 0.2
"""The part of a call's time, and the seconds, that may lie outside of its block."""
LAYERS = 40
"""Enough that most calls take more than `LEAST`, which the parser of a command may take."""
X, W = np.ones((8, 16), np.float32), np.ones((16, 8), np.float32)


class Watch:
    """The outermost blocks of progress of a call, and the processes that are started outside of one."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.blocks: list[tuple[float, float]] = []
        self.shown: list[str] = []
        self.alone: list[object] = []
        self.stream = io.StringIO()
        watch, start = self, subprocess.Popen.__init__

        class Watched(module.Progress):
            def __init__(self, *args: Any, **keywords: Any) -> None:
                self.is_outer = module._outer.get() is None
                self.begin = time.process_time()
                super().__init__(*args, **keywords)

            def end(self) -> None:
                assert self.is_outer
                watch.blocks.append((self.begin, time.process_time()))
                # What it shows when it takes three seconds more.
                self._begin, self._drawn = self._begin - 3, 0.0
                self.draw()
                super().end()

        def started(process: Any, command: Any, *args: Any, **keywords: Any) -> None:
            if module._outer.get() is None:
                watch.alone.append(command)
            start(process, command, *args, **keywords)

        monkeypatch.setenv(module.VARIABLE, "1")
        monkeypatch.setattr(module, "Progress", Watched)
        monkeypatch.setattr(subprocess.Popen, "__init__", started)

    def check(self, call: Callable[[], Any], name: str) -> Any:
        """Runs a call and checks that it is never silent."""
        self.blocks.clear()
        begin = time.process_time()
        with contextlib.redirect_stderr(self.stream):
            result = call()
        end = time.process_time()
        assert self.alone == []
        assert len(self.blocks) == 1
        (first, last), whole = self.blocks[0], end - begin
        assert whole - (last - first) <= MOST * whole + LEAST, f"{first - begin:.2f} s before, {end - last:.2f} s after"
        assert f"jaxmesh: {name}, " in self.stream.getvalue()
        return result


@pytest.fixture
def watch(monkeypatch: pytest.MonkeyPatch) -> Watch:
    return Watch(monkeypatch)


def mlp(x: Any, w: Any) -> Any:
    for _ in range(LAYERS):
        x = jnp.tanh(x @ w) @ jnp.cos(w.T)
    return x


def sharded() -> Any:
    """Returns a new function, of which nothing is cached."""
    mesh = jm.make_mesh((2, 4), ("y", "x"))
    return jm.jit(lambda x, w: mlp(x, w), mesh=mesh, in_shardings=(P("y"), P(None, "x")), out_shardings=P("y"))


# --- calls -----------------------------------------------------------------------------------------------------------

needs_ttnn = pytest.mark.skipif("JAXMESH_TTNN_PYTHON" not in os.environ, reason="no Python with the real ttnn")
needs_upstream = pytest.mark.skipif("JAXMESH_UPSTREAM_PYTHON" not in os.environ, reason="no compiler of upstream")


@pytest.mark.parametrize("name", ["codegen_py", "codegen_cpp"])
def test_an_export_is_not_silent(name: str, watch: Watch, tmp_path: Path) -> None:
    f = sharded()
    watch.check(lambda: getattr(jm, name)(f, X, W, export_path=tmp_path / "model"), name)


@pytest.mark.parametrize("dialect", ["ttnn", "python", "cpp"])
def test_texts_are_not_silent(dialect: str, watch: Watch) -> None:
    lowered = sharded().lower(X, W)
    watch.check(lambda: lowered.as_text(dialect), f"{dialect} text")


def call(name: str, f: Any) -> tuple[Callable[[], Any], str]:
    """Returns a call of the API by its name, ready to run, and what it says."""
    weights = jax.device_put(W, jax.sharding.NamedSharding(jm.make_mesh((2, 4), ("y", "x")), P(None, "x")))
    if name == "shard_map":
        mapped = jm.shard_map(mlp, mesh=jm.make_mesh((2, 4), ("y", "x")), in_specs=(P("y"), P()), out_specs=P("y"))
        return lambda: mapped(X, weights), "shard_map of mlp"
    if name in ("trace", "lower", "eval_shape"):
        return lambda: getattr(f, name)(X, W), name
    if name == "first call":
        return lambda: jax.block_until_ready(f(X, W)), "first call of <lambda>"
    if name == "grad":
        return lambda: jax.jit(jax.grad(lambda x: f(x, W).sum())).lower(X), "call of <lambda>"
    traced, lowered = f.trace(X, W), f.lower(X, W)
    if name == "compare":
        a, b = traced.record(X, W), lowered.record(X, W)
        return lambda: jm.compare(a, b), name
    if name == "from_mlir":
        text = traced.as_text()
        return lambda: jm.from_mlir(text), name
    if name == "compiled record":
        compiled = lowered.compile()
        return lambda: compiled.record(X, W), "record"
    calls: dict[str, tuple[Callable[[], Any], str]] = {
        "compile": (lowered.compile, name),
        "explain": (lowered.explain, name),
        "explain of a traced program": (traced.explain, "explain"),
        "explain with times": (lambda: lowered.explain("t3000"), "explain"),
        "record": (lambda: traced.record(X, W), name),
        "reference": (lambda: traced.reference(X, W), "reference executor"),
        "html": (lowered._repr_html_, "texts"),
        "jaxpr": (lambda: lowered.as_text("jaxpr"), "jaxpr text"),
    }
    return calls[name]


@pytest.mark.parametrize(
    "name",
    [
        *("trace", "lower", "eval_shape", "first call", "grad", "compile", "explain", "explain of a traced program"),
        *("explain with times", "record", "compiled record", "compare", "reference", "from_mlir", "html", "jaxpr"),
        pytest.param("shard_map", marks=pytest.mark.slow),
    ],
)
def test_a_call_is_not_silent(name: str, watch: Watch) -> None:
    watch.check(*call(name, sharded()))


def test_a_picture_is_not_silent(watch: Watch) -> None:
    lowered = sharded().lower(X, W)
    picture = watch.check(lambda: jm.visualize(lowered), "visualize")
    watch.check(lambda: str(picture), "picture")
    watch.check(picture._repr_html_, "picture")


def test_an_explanation_is_not_silent(watch: Watch) -> None:
    explanation = sharded().lower(X, W).explain()
    for show in (explanation.__str__, explanation.table, explanation._repr_html_):
        watch.check(show, "explain")


def test_an_estimate_is_not_silent(watch: Watch) -> None:
    lowered = sharded().lower(X, W)
    watch.check(lambda: lowered.estimate("t3000"), "estimate")


def test_a_diagnosis_is_not_silent(watch: Watch) -> None:
    plain = jax.jit(mlp).lower(X, W).as_text("stablehlo")
    texts = {"shlo_frontend": plain, "ttir": jm.jit(mlp).trace(X, W).as_text()}
    watch.check(lambda: jm.diagnose(texts), "diagnose")


@pytest.mark.slow
@needs_ttnn
@pytest.mark.parametrize("folder", [False, True], ids=["program", "folder"])
def test_a_judgement_is_not_silent(folder: bool, watch: Watch, tmp_path: Path) -> None:
    from jaxmesh.analysis.judge import judge_folder

    lowered = sharded().lower(X, W)
    if folder:
        lowered.export(tmp_path / "model", X, W)
    assert watch.check(lambda: judge_folder(tmp_path / "model") if folder else lowered.judge(), "judge")


@pytest.mark.slow
@needs_upstream
def test_a_compile_is_not_silent(watch: Watch) -> None:
    worker.close_workers()
    lowered = sharded().lower(X, W)
    result = watch.check(lambda: lowered.upstream("t3000"), "upstream")
    watch.check(lambda: result.compare(lowered, judge=False), "compare")
    watch.check(result.diagnose, "diagnose")


# --- commands --------------------------------------------------------------------------------------------------------

ARGUMENTS: dict[str, list[str]] = {
    "demo": ["--mesh", "1x2"],
    "selftest": [],
    "opt": ["FILE", "--ttir-to-ttnn"],
    "run": ["FILE", "--check"],
    "translate": ["FILE", "--to", "python", "--out", "DIR"],
    "include-dir": [],
    "explain": ["FILE"],
    "estimate": ["FILE"],
    "record": ["FILE", "--out", "DIR.npz"],
    "diagnose": ["STABLEHLO"],
    "repair": ["STABLEHLO"],
    "processes": ["1", "script.py"],
    "ttnn-env": ["DIR"],
    "upstream-env": ["DIR"],
    "chip-env": ["DIR"],
    "compare": ["A.npz", "B.npz"],
}
"""The arguments of every command."""
LONG = ("demo", "opt", "run", "translate", "explain", "estimate", "record")
"""The commands that are run here."""


@pytest.fixture
def files(tmp_path: Path) -> Callable[[str], list[str]]:
    file = tmp_path / "model.mlir"
    file.write_text(sharded().trace(X, W).as_text())
    places = {"FILE": str(file), "DIR": str(tmp_path / "out"), "DIR.npz": str(tmp_path / "out.npz")}
    return lambda command: [command, *(places.get(word, word) for word in ARGUMENTS[command])]


@pytest.mark.slow
@pytest.mark.parametrize("command", LONG)
def test_a_command_is_not_silent(
    command: str, files: Callable[[str], list[str]], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tiny = model.Dims(batch=1, sequence=4, width=8, kv_heads=1, queries_per_kv=2, head=4, hidden=4)
    monkeypatch.setattr(demo_command, "dims_for", lambda mesh: model.dims_for(mesh, tiny))
    arguments = files(command)
    watch = Watch(monkeypatch)
    assert watch.check(lambda: cli.main(arguments), command) == 0, capsys.readouterr().err


@pytest.mark.parametrize("command", cli.COMMANDS)
def test_a_block_spans_each_command(command: str, watch: Watch, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also those that install something, and `processes`, whose processes may print nothing."""
    inside = list[str]()

    def run(_: Any) -> None:
        outer = module._outer.get()
        inside.append("" if outer is None else outer.what)

    monkeypatch.setitem(cli.COMMANDS, command, run)
    assert cli.main([command, *ARGUMENTS[command]]) == 0
    assert inside == [command]


def test_a_silent_call_is_found(watch: Watch) -> None:
    """Of a call with work before its block, with two blocks, and with a process outside of one."""

    def work() -> None:
        end = time.process_time() + 0.4
        while time.process_time() < end:
            pass

    def late() -> None:
        work()
        with module.progress("late"):
            work()

    with pytest.raises(AssertionError, match=r"0\.\d\d s before"):
        watch.check(late, "late")

    def twice() -> None:
        for _ in range(2):
            with module.progress("twice"):
                work()

    with pytest.raises(AssertionError, match="== 1"):
        watch.check(twice, "twice")
    with pytest.raises(AssertionError, match=r"== \[\]"):
        watch.check(lambda: subprocess.run([sys.executable, "-c", ""], check=True), "alone")
