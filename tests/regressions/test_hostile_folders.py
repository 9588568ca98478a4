"""Folders and files: whole, or refused by name; none unpacks to more than it says, and nothing is unpickled."""

from __future__ import annotations

import io
import json
import os
import pickle
import re
import resource
import subprocess
import sys
import tracemalloc
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import jaxmesh as jm
from jaxmesh import ttnn
from jaxmesh.analysis.record.entry import Entry
from jaxmesh.analysis.record.source_path import Place
from jaxmesh.cli.main import USAGE, main
from jaxmesh.cli.run_folder import run_folder
from jaxmesh.jaxprs.source_locations import SourceLocation
from jaxmesh.runtime import npz as npz_module
from jaxmesh.runtime.npz import read_inputs
from jaxmesh.validate import whole_file, write_whole
from tests import ROOT

X = np.arange(32, dtype=np.float32).reshape(8, 4)


def lowered(factor: float) -> Any:
    def scale(x: Any) -> Any:
        return jm.shard_to_full(factor * jm.full_to_shard(x, P("y", "x")), P("y", "x"))

    return jm.jit(scale, mesh=jm.make_mesh((2, 4))).trace(X).lower()


class KilledError(BaseException):
    """Ends an export at a step, as a signal would."""


def after(count: int, function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, which ends everything in place of its call number `count`."""
    left = [count]

    def call(*args: Any, **kwargs: Any) -> Any:
        left[0] -= 1
        if left[0] < 0:
            raise KilledError
        return function(*args, **kwargs)

    return call


KILLED = """
import os, signal, sys, traceback, numpy as np
from pathlib import Path
import jaxmesh as jm
from jaxmesh.analysis.diagnose.texts import texts_of
from jaxmesh.analysis.upstream.result import UpstreamProgram
from jaxmesh.emit.export_folder import check_folder, write_folder
from tests.generators.python_programs import F32, mixed

EVENTS = ("open", "os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.chmod", "os.scandir", "shutil.rmtree")

def killed(write, count):
    def end(event, _):
        nonlocal count
        count -= event in EVENTS
        if event in EVENTS and count == 0:
            os.kill(os.getpid(), signal.SIGKILL)
    child = os.fork()
    if child == 0:
        try:
            sys.addaudithook(end)
            write()
            os._exit(0)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
    status = os.waitpid(child, 0)[1]
    assert status in (0, signal.SIGKILL), status
    return status

def files(folder):
    kept = {p.relative_to(folder): p.read_bytes() for p in folder.rglob("*") if p.is_file()}
    return {n: data for n, data in kept.items() if not n.parts[0].startswith(".jaxmesh-")}

def unlisted(folder):
    return {n: data for n, data in folder.items() if n.name != "manifest.json"}

def exported(scale, **options):
    inputs, results = ([np.full(s, scale, F32) for s in ((8, 16), (8, 4, 4))] for _ in range(2))
    options = {"texts": {}, "exact": False, **options}
    return lambda folder: write_folder(folder, mixed(), inputs=inputs, expected=results, **options)

def saved(text, *stages):
    return UpstreamProgram({s: text for s in ("vhlo", "shlo", "shlo_frontend", *stages)}, text.encode()).save

def read(folder):
    check_folder(folder)
    for program in texts_of(folder) if (folder / "irs").is_dir() else ():
        assert len({program.frontend, *program.stages.values()}) == 1

CPP = {"texts": {"main.cpp": "x", "ttnn.mlir": "y"}, "python": False}
CASES = {
    "python": (exported(1.0), exported(2.0)),
    "another language": (exported(1.0), exported(2.0, **CPP)),
    "C++": (exported(1.0, **CPP), exported(2.0)),
    "a new folder": (lambda folder: None, exported(2.0, **CPP)),
    "an empty folder": (Path.mkdir, exported(2.0, **CPP)),
    "fewer texts": (saved("old", "shlo_compiler", "ttir", "ttnn"), saved("new", "ttir")),
    "more texts": (saved("old", "ttir"), saved("new", "ttir", "ttnn")),
}

root = Path(sys.argv[1])
for name, (old, new) in CASES.items():
    new(root / name)
    whole = files(root / name)
    for count in range(1, 500, 3):
        folder = root / f"{name} {count}"
        old(folder)
        before = files(folder) if folder.exists() else {}
        if not killed(lambda: new(folder), count):
            break
        after = files(folder) if folder.exists() else {}
        if any(n.stem == "main" for n in after):
            assert unlisted(after) in (unlisted(before), unlisted(whole)), (name, count)
        try:
            read(folder)
            assert after in (before, whole) or (folder / "irs").is_dir(), (name, count)
        except jm.JaxmeshError:
            assert not before or after != before, (name, count)
        new(folder)
        assert files(folder) == whole, (name, count)
        assert not [p for p in folder.iterdir() if p.is_dir() and p.name.startswith(".")], (name, count)
    print(name, count)
"""


@pytest.mark.slow
def test_what_was_killed_at_any_step_is_whole_or_refused(tmp_path: Path) -> None:
    command, variables = [sys.executable, "-c", KILLED, str(tmp_path)], {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=variables)
    assert done.returncode == 0, done.stderr
    counts = {name: int(count) for name, _, count in (line.rpartition(" ") for line in done.stdout.splitlines())}
    assert len(counts) == 7
    assert min(counts.values()) > 15
    assert max(counts.values()) < 400


EXPORT = """
import sys, numpy as np
from tests.regressions.test_hostile_folders import X, lowered
made = lowered(float(sys.argv[2]))
for _ in range(5):
    made.export(sys.argv[1], X)
"""


@pytest.mark.slow
def test_two_writers_at_once_leave_one_program(tmp_path: Path) -> None:
    command = [sys.executable, "-c", EXPORT, str(tmp_path / "folder")]
    variables = {**os.environ, "XLA_FLAGS": "--xla_force_host_platform_device_count=8", "PYTHONPATH": str(ROOT)}
    writers = [subprocess.Popen([*command, n], env=variables) for n in ("2", "3")]
    assert [w.wait() for w in writers] == [0, 0]
    assert run_folder(tmp_path / "folder", ["--check"]) == 0


def test_a_changed_file_is_named(tmp_path: Path) -> None:
    lowered(2.0).export(tmp_path / "f", X)
    manifest = tmp_path / "f" / "manifest.json"
    whole = json.loads(manifest.read_text())
    tensors = [name for name in whole["files"] if name.startswith("tensors/arg")]
    assert tensors
    for name in tensors:
        path = tmp_path / "f" / name
        data = path.read_bytes()
        path.write_bytes(data + b" ")
        with pytest.raises(jm.errors.MissingFileError, match=re.escape(f"{path} cannot be read: it is not the file")):
            run_folder(tmp_path / "f")
        path.unlink()
        with pytest.raises(jm.errors.MissingFileError, match=r"which manifest\.json lists, is missing"):
            run_folder(tmp_path / "f")
        assert run_folder(tmp_path / "f", ["--make-inputs", "zeros"]) == 0
        path.write_bytes(data)
    # A program may be changed by hand.
    main = tmp_path / "f" / "main.py"
    main.write_text(main.read_text() + "\n")
    assert run_folder(tmp_path / "f", ["--check"]) == 0
    for wrong in (
        "{",
        "[]",
        '{"version": 2, "files": {}}',
        "[" * 100_000,
        json.dumps({**whole, "files": {"../x": [1, ""]}}),
        json.dumps({**whole, "files": {"": 0, "tensors": "x"}}),
    ):
        manifest.write_text(wrong)
        with pytest.raises(jm.errors.MissingFileError, match=r"manifest\.json"):
            run_folder(tmp_path / "f")
    manifest.unlink()
    assert run_folder(tmp_path / "f", ["--check"]) == 0


def test_a_file_is_replaced_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    write_whole(path, "old")
    path.chmod(0o640)
    with pytest.raises(KilledError), whole_file(path) as file:  # noqa: PT012
        file.write(b"new")
        raise KilledError
    monkeypatch.setattr(os, "fsync", after(0, os.fsync))
    with pytest.raises(KilledError):
        write_whole(path, "new")
    monkeypatch.undo()
    assert (path.read_text(), os.listdir(tmp_path)) == ("old", ["file"])
    (tmp_path / "link").symlink_to(path)
    write_whole(tmp_path / "link", "new")
    assert (path.read_text(), path.stat().st_mode & 0o777) == ("new", 0o640)
    assert (tmp_path / "link").is_symlink()


def npz(path: Path, compression: int = zipfile.ZIP_STORED, **arrays: bytes) -> Path:
    with zipfile.ZipFile(path, "w", compression) as archive:
        for name, data in arrays.items():
            archive.writestr(f"{name}.npy", data)
    return path


def npy(array: Any, **options: Any) -> bytes:
    file = io.BytesIO()
    np.save(file, array, **options)
    return file.getvalue()


def header(shape: str, dtype: str = "<f4") -> bytes:
    text = f"{{'descr': '{dtype}', 'fortran_order': False, 'shape': {shape}, }}".encode().ljust(117) + b"\n"
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text


class Harm:
    """Is unpickled as a call."""

    def __reduce__(self) -> Any:
        return os.system, ("touch pwned",)


HARMFUL = {
    "a bomb": (zipfile.ZIP_DEFLATED, npy(np.zeros(1 << 22, np.float32))),
    "more elements than bytes": (zipfile.ZIP_STORED, header("(1099511627776,)")),
    "negative dims": (zipfile.ZIP_STORED, header("(-1, -4)")),
    "a pickle": (zipfile.ZIP_STORED, npy(np.array([Harm()], object), allow_pickle=True)),
    "only a pickle": (zipfile.ZIP_STORED, pickle.dumps(Harm())),
    "a structure": (zipfile.ZIP_STORED, npy(np.zeros(3, [("a", np.int32)]))),
    "dates": (zipfile.ZIP_STORED, npy(np.zeros(3, "datetime64[s]"))),
    "long doubles": (zipfile.ZIP_STORED, npy(np.zeros(3, np.longdouble))),
    "nothing": (zipfile.ZIP_STORED, b""),
}


@pytest.mark.parametrize("name", list(HARMFUL))
def test_no_file_of_arrays_does_harm(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    compression, data = HARMFUL[name]
    struct: Any = jnp.zeros(3)
    with pytest.raises(jm.errors.MissingFileError, match=r"is not an \.npz file"):
        read_inputs(npz(tmp_path / "a.npz", compression, arg0=data), [struct])
    with pytest.raises(jm.errors.RecordingError, match="is not a recording"):
        jm.Recording.load(npz(tmp_path / "b.npz", compression, recording=data))
    with pytest.raises(jm.errors.ParseError, match="holds no tensor"):
        ttnn.load_tensor(npz(tmp_path / "c", compression, about=npy(np.array("{}")), data=data))
    assert not (tmp_path / "pwned").exists()


def test_a_folder_that_cannot_be_read_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "irs").mkdir()
    # Tests may run as root, who reads all folders.
    monkeypatch.setattr(os, "access", lambda *_: False)
    with pytest.raises(jm.MissingFileError, match="irs' cannot be read; change its permissions"):
        jm.diagnose(tmp_path)


def test_nothing_is_unpickled() -> None:
    for path in sorted((ROOT / "jaxmesh").rglob("*.py*")):
        text = path.read_text(errors="replace")
        assert not re.search(r"\bimport (pickle|marshal|shelve|dill)\b|allow_pickle=True|torch\.load\(", text), path


# --- full disks and folders that cannot be written -----------------------------------------------------------------


@pytest.fixture
def writers(tmp_path: Path) -> dict[str, Callable[[Path], Any]]:
    """Everything that writes a file or a folder, by the path that it is given."""
    big = np.zeros((256, 256), np.float32)
    stage = jm.jit(lambda x: x * 2, mesh=jm.make_mesh((2, 4)), in_shardings=P("y", "x")).lower(big)
    recording = stage.record(big)
    tensor = ttnn.Tensor(big.reshape(-1).tolist(), [256, 256], ttnn.float32)
    text = tmp_path / "text.mlir"
    text.write_text(stage.as_text())
    return {
        "export": lambda path: stage.export(path, big),
        "codegen": lambda path: jm.codegen_py(lambda x: x * 2, big, export_path=path),
        "recording": lambda path: recording.save(path),
        "tensor": lambda path: ttnn.dump_tensor(path, tensor),
        "run --out": lambda path: main(["run", str(text), "--out", str(path)]),
        "record --out": lambda path: main(["record", str(text), "--out", str(path)]),
    }


NAMES = ("export", "codegen", "recording", "tensor", "run --out", "record --out")


def refused(write: Callable[[Path], Any], path: Path, capsys: pytest.CaptureFixture[str]) -> str:
    """Returns the named error of a writer, or the one line of a command."""
    try:
        code = write(path)
    except jm.JaxmeshError as error:
        return str(error)
    assert code == USAGE
    (line,) = capsys.readouterr().err.splitlines()
    return line


@pytest.mark.parametrize("name", NAMES)
def test_a_full_disk_leaves_what_was_there(
    name: str, writers: dict[str, Callable[[Path], Any]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target, before = tmp_path / "out" / "it.npz", resource.getrlimit(resource.RLIMIT_FSIZE)
    target.parent.mkdir()
    for there in (False, True):
        if there:
            writers[name](target)
        files = {p: p.read_bytes() for p in target.parent.rglob("*") if p.is_file()}
        # The system refuses a longer file, as it refuses one on a full disk.
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, before[1]))
        try:
            capsys.readouterr()
            message = refused(writers[name], target, capsys)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
        assert str(target) in message
        assert re.search(r"File too large|requested and [0-9]+ written", message), message
        assert {p: p.read_bytes() for p in target.parent.rglob("*") if p.is_file()} == files


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.skipif(not os.path.isdir("/proc/self/fdinfo"), reason="a folder in which nobody can make a file")
def test_a_folder_that_cannot_be_written_is_named(
    name: str, writers: dict[str, Callable[[Path], Any]], capsys: pytest.CaptureFixture[str]
) -> None:
    target = Path("/proc/self/fdinfo/it.npz")
    assert str(target) in refused(writers[name], target, capsys)


def test_recordings_are_compared_in_pieces(tmp_path: Path) -> None:
    place = Place(SourceLocation("f.py", 1, 1, "f"), "add", 0)
    values = [Entry(replace(place, occurrence=n), (), 0, None, np.full(1 << 18, float(n))) for n in range(24)]
    for name in ("a", "b"):
        jm.Recording(tuple(values), {"x": 1}, "ttir", "f").save(tmp_path / name)
    largest = values[0].data.nbytes
    del values
    tracemalloc.start()
    try:
        a, b = (jm.Recording.load(tmp_path / name) for name in ("a", "b"))
        assert a.nbytes == 24 * largest
        loaded = tracemalloc.get_traced_memory()[1]
        assert jm.compare(a, b)
        a.save(tmp_path / "c")
        most = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert (tmp_path / "c").read_bytes() == (tmp_path / "a").read_bytes()
    assert loaded < 2 * largest
    assert most < 10 * largest
    # What was loaded stays what it was, whatever happens to the file.
    (tmp_path / "a").unlink()
    assert (a.entries[7].data == 7).all()


RECORD = """
import resource, jax.numpy as jnp, numpy as np, jaxmesh as jm
from jax.sharding import PartitionSpec as P
from jaxmesh.runtime import npz
jm.emulate(8)
npz._HELD = 1 << 20
def program(x):
    y = jm.full_to_shard(x, P("y", "x"))
    for _ in range(40):
        y = jnp.sin(y) + 1
    return jm.shard_to_full(y, P("y", "x"))
used = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
x = np.ones((1024, 1024), np.float32)
traced = jm.jit(program, mesh=jm.make_mesh((2, 4))).trace(x)
traced.reference(x)
before = used()
recording = traced.record(x)
recording.save("recording.npz")
print(recording.nbytes >> 20, (used() - before) >> 10)
"""


@pytest.mark.slow
def test_a_recording_takes_the_memory_of_a_few_values(tmp_path: Path) -> None:
    command, variables = [sys.executable, "-c", RECORD], {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=tmp_path, env=variables)
    recorded, grown = map(int, done.stdout.split())
    assert recorded > 300
    assert grown < 60


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int4", "bool"])
def test_values_in_a_file_are_those_in_memory(dtype: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    x = (np.arange(32) % 2).astype(jnp.dtype(dtype)).reshape(8, 4)

    def program(x: Any) -> Any:
        y = jm.full_to_shard(x, P("y"))
        return jm.shard_to_full(jnp.concatenate([y, y, y[:0]]), P("y"))

    stage = jm.jit(program, mesh=jm.make_mesh((2, 4))).trace(x)
    stage.record(x).save(tmp_path / "memory")
    monkeypatch.setattr(npz_module, "_HELD", 0)
    recording = stage.record(x)
    assert any(isinstance(e.stored, npz_module.StoredArray) for e in recording.entries)
    recording.save(tmp_path / "file")
    assert (tmp_path / "file").read_bytes() == (tmp_path / "memory").read_bytes()


def test_a_recording_on_a_full_disk_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(npz_module, "_HELD", 0)
    with Path("/dev/full").open("r+b", buffering=0) as full:
        monkeypatch.setattr(npz_module.tempfile, "TemporaryFile", lambda: full)
        with pytest.raises(jm.errors.RecordingError, match=r"No space left on device.*TMPDIR"):
            lowered(2.0).record(X)


# --- what is no file -------------------------------------------------------------------------------------------------


def not_files(folder: Path) -> Iterator[Path]:
    os.mkfifo(folder / "pipe")
    (folder / "zero").symlink_to("/dev/zero")
    yield from (folder / "pipe", folder / "zero")


def test_devices_and_pipes_are_refused_before_they_are_read(tmp_path: Path) -> None:
    """Reading one would take all memory, or never end."""
    text = "func.func @main(%a: tensor<2xf32>) -> tensor<2xf32> { return %a : tensor<2xf32> }"
    traced = jm.from_mlir(text)
    for path in not_files(tmp_path):
        folder = tmp_path / f"of-{path.name}"
        folder.mkdir()
        (folder / "shlo_frontend.mlir").write_text(text)
        (folder / "ttir.mlir").symlink_to(path)
        readers: list[Callable[[], Any]] = [
            lambda folder=folder: jm.diagnose(folder),
            lambda path=path: jm.from_mlir(path),
            lambda path=path: jm.from_mlir(str(path)),
            lambda path=path: jm.Recording.load(path),
            lambda path=path: ttnn.load_tensor(str(path)),
        ]
        for read in readers:
            with pytest.raises(jm.JaxmeshError):
                read()
        assert main(["run", str(tmp_path / "of-pipe" / "shlo_frontend.mlir"), "--inputs", str(path)]) == 2
    assert traced.lower()
