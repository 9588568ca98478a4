"""The exported folder, and running it: with a narrow `ttnn` of the tests, and with the emulated one."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import jax
import ml_dtypes
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import jaxmesh as jm
from jaxmesh import ttnn
from jaxmesh.cli import run_folder as running
from jaxmesh.cli.run_folder import run_folder
from jaxmesh.dialects.program import Op, Program, Type
from jaxmesh.emit import export_folder
from jaxmesh.emit.export_folder import write_folder
from jaxmesh.emit.python.printer import python_text
from jaxmesh.errors import FolderError
from jaxmesh.passes.fusion.driver import fuse
from tests import ROOT
from tests.generators.drafts import to_ttnn
from tests.generators.flat_programs import flat_of, run_flat
from tests.generators.python_programs import Make, mixed, products, shard_1x2
from tests.generators.strict_ttnn import strict_ttnn
from tests.generators.suite.all_programs import BY_NAME

Array = np.ndarray[Any, Any]
BF16 = np.dtype(ml_dtypes.bfloat16)


def blocks(array: Array, rows: int, columns: int) -> Array:
    """The pieces of a matrix over a mesh, stacked row-major."""
    return np.stack([b for r in np.split(array, rows, 0) for b in np.split(r, columns, 1)])


def retyped(program: Program, dtype: Any) -> Program:
    """The program on another element type."""
    program.types = [replace(t, dtype=np.dtype(dtype)) for t in program.types]
    return program


def mixed_case(dtype: Any = np.float32, scale: float = 1.0) -> tuple[Program, list[Array], list[Array]]:
    """`mixed` with its inputs, and its results worked out with NumPy."""
    rng = np.random.default_rng(0)
    x = (rng.integers(-4, 4, (8, 16)) * scale).astype(dtype)
    y = (rng.integers(-4, 4, (8, 4, 4)) * scale).astype(dtype)
    total = (blocks(x, 2, 4) + y).astype(dtype)
    doubled = (total * total).astype(dtype).reshape(2, 4, 4, 4).transpose(0, 2, 1, 3).reshape(8, 16)
    names = ("logical_or", "logical_and") if dtype == np.bool_ else ()
    return retyped(mixed(*names), dtype), [x, y], [doubled, total]


def export(path: Path, case: tuple[Program, list[Array], list[Array]], **options: Any) -> list[Path]:
    program, inputs, expected = case
    return write_folder(
        path, program, **{"texts": {}, "inputs": inputs, "expected": expected, "exact": False} | options
    )


@pytest.fixture
def strict(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The narrow `ttnn` in the place of the emulated one."""
    module = strict_ttnn()
    monkeypatch.setattr(running, "ttnn", module)
    return module


# --- what is written ---


def test_the_files_of_a_folder(tmp_path: Path) -> None:
    case = mixed_case(BF16)
    written = export(tmp_path / "a" / "b", case, texts={"main.cpp": "int\n", "ttir.mlir": "module {\n}\n"})
    names = [str(p.relative_to(tmp_path / "a" / "b")) for p in written]
    tensors = [f"tensors/{n}.npy" for n in ("arg0", "arg1", "expected0", "expected1")]
    assert names == ["locations.json", "main.cpp", "main.py", *tensors, "ttir.mlir", "utils.py"]
    assert all(p.is_file() for p in written)
    assert (tmp_path / "a" / "b" / "ttir.mlir").read_bytes() == b"module {\n}\n"
    bits = np.load(tmp_path / "a" / "b" / "tensors" / "arg1.npy")
    assert bits.dtype == np.uint16
    assert bits.view(BF16).tobytes() == case[1][1].tobytes()
    assert os.stat(tmp_path / "a" / "b").st_mode & 0o777 == os.stat(tmp_path / "a").st_mode & 0o777
    assert [p.name for p in (tmp_path / "a").iterdir()] == ["b"]


@pytest.mark.parametrize(
    "dtype", ["float32", "float16", "bool", "int8", "uint16", "complex64", "float8_e4m3fn", "int4"]
)
@pytest.mark.parametrize("shape", [(), (0, 3), (2, 3)])
def test_arrays_are_stored_bit_for_bit(dtype: str, shape: tuple[int, ...]) -> None:
    kind = np.dtype(getattr(ml_dtypes, dtype, dtype))
    array = np.asarray(np.arange(np.prod(shape, dtype=int)).reshape(shape) % 2).astype(kind)
    stored = export_folder.stored(array.T)
    assert stored.shape == array.T.shape
    assert stored.dtype.isbuiltin == 1
    assert np.ascontiguousarray(array.T).tobytes() == stored.tobytes()
    assert (
        export_folder.stored(array.astype(array.dtype.newbyteorder(">"))).tobytes()
        == export_folder.stored(array).tobytes()
    )


def test_the_same_folder_twice_is_the_same_bytes(tmp_path: Path) -> None:
    first = {p.name: p.read_bytes() for p in export(tmp_path / "a", mixed_case())}
    second = {p.name: p.read_bytes() for p in export(tmp_path / "b", mixed_case())}
    assert first == second


@pytest.mark.parametrize(
    ("mesh", "asked"),
    [
        ((2, 4), [("open", (2, 4))]),
        ((1, 1), [("open", (1, 1))]),
        ((2, 2), [("open", (2, 4)), ("submesh", (2, 2))]),
        ((3, 1), [("open", (2, 4)), ("reshape", (4, 2)), ("submesh", (3, 1))]),
        ((1, 6), [("open", (2, 4)), ("reshape", (1, 8)), ("submesh", (1, 6))]),
    ],
)
def test_fewer_devices_are_a_part_of_the_mesh_of_all(strict: Any, mesh: tuple[int, int], asked: list[Any]) -> None:
    """A fabric runs on all devices or on none, so `open_mesh_device` refuses a part; what was opened is closed."""
    names: dict[str, Any] = {"__file__": "utils.py", "__name__": "utils"}
    before = sys.modules.get("ttnn")
    sys.modules["ttnn"] = strict
    try:
        exec(export_folder.utils_text(), names)
    finally:
        sys.modules.pop("ttnn")
        if before is not None:
            sys.modules["ttnn"] = before
    device = names["DeviceGetter"].get_device(mesh, fabric_config=strict.FabricConfig.FABRIC_1D)
    assert tuple(device.shape) == mesh
    assert strict.log == [("fabric", "FABRIC_1D"), *asked]
    names["DeviceGetter"].close()
    closed = [mesh] if len(asked) == 1 else [mesh, asked[1][1] if asked[1][0] == "reshape" else (2, 4)]
    assert strict.log[1 + len(asked) :] == [("close", shape) for shape in closed]


def change_by_hand(folder: Path) -> None:
    """Lets the files of a folder be changed: without a manifest they are not compared with it."""
    (folder / export_folder.MANIFEST).unlink()


def test_a_folder_of_ours_is_written_anew(tmp_path: Path) -> None:
    export(tmp_path / "a", mixed_case())
    (tmp_path / "a" / "notes.txt").write_text("mine")
    (tmp_path / "a" / "tensors" / "other.npy").write_text("mine")
    (tmp_path / "a" / "__pycache__").mkdir()
    program = shard_1x2()
    program.types = [replace(t, shape=s) for t, s in zip(program.types, [(4, 4), (), (4, 2)], strict=True)]
    x = np.arange(16, dtype=np.float32).reshape(4, 4)
    export(tmp_path / "a", (program, [x], [blocks(x, 1, 2)]))
    names = sorted(str(p.relative_to(tmp_path / "a")) for p in (tmp_path / "a").rglob("*") if p.is_file())
    assert names == [
        "locations.json", "main.py", "manifest.json", "notes.txt",
        "tensors/arg0.npy", "tensors/expected0.npy", "tensors/other.npy",
        "utils.py",
    ]  # fmt: skip
    assert "def forward" in (tmp_path / "a" / "main.py").read_text()
    assert (tmp_path / "a" / "notes.txt").read_text() == "mine"


def test_a_program_in_another_language_stays_while_its_numbers_do(tmp_path: Path) -> None:
    export(tmp_path, mixed_case())
    for scale, kept in ((1.0, True), (2.0, False)):
        export(tmp_path, mixed_case(scale=scale), texts={"main.cpp": "int\n"}, python=False)
        assert (tmp_path / "main.py").exists() is kept
        assert (tmp_path / "main.cpp").exists()


def test_a_folder_of_others_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "main.py").write_text("mine")
    (tmp_path / "utils.py").write_text("mine")
    with pytest.raises(FolderError, match="no export wrote"):
        export(tmp_path, mixed_case())
    assert sorted(p.name for p in tmp_path.iterdir()) == ["main.py", "utils.py"]
    assert (tmp_path / "main.py").read_text() == "mine"


def test_a_file_is_no_folder(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("mine")
    with pytest.raises(FolderError, match="is a file"):
        export(tmp_path / "a", mixed_case())
    assert (tmp_path / "a").read_text() == "mine"


def test_an_empty_folder_and_a_link_to_one_are_taken(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "empty")
    export(tmp_path / "link", mixed_case())
    assert (tmp_path / "empty" / "main.py").is_file()
    assert (tmp_path / "link").is_symlink()


def test_a_failure_leaves_what_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    export(tmp_path / "a", mixed_case())
    before = {p: p.read_bytes() for p in (tmp_path / "a").rglob("*") if p.is_file()}

    def full(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(np, "save", full)
    for name in ("a", "b"):
        with pytest.raises(OSError, match="No space left"):
            export(tmp_path / name, mixed_case(BF16))
    assert {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()} == before
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a"]


def test_arrays_of_another_type_are_refused(tmp_path: Path) -> None:
    program, inputs, expected = mixed_case()
    wrong: list[tuple[list[Array], list[Array], str]] = [
        ([inputs[0], inputs[1][0]], expected, r"argument 1 is float32\[8, 4, 4\] \(the shards of all devices"),
        ([inputs[0].astype(np.int32), inputs[1]], expected, r"argument 0 is float32\[8, 16\], got an array int32"),
        (inputs, expected[::-1], r"result 0 is float32\[8, 16\], got an array float32\[8, 4, 4\]"),
    ]
    for given, wanted, message in wrong:
        with pytest.raises(jm.ArgumentTypeError, match=message):
            export(tmp_path / "a", (program, given, wanted))
    assert not list(tmp_path.iterdir())


# --- running it as on the real ttnn ---


def outcome(path: Path, capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, list[str], str]:
    capsys.readouterr()
    code = run_folder(path, arguments)
    said = capsys.readouterr()
    return code, said.out.splitlines(), said.err


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int32", "uint8", "bool", "float64", "float16", "int64"])
def test_checks_pass_on_a_narrow_ttnn(
    tmp_path: Path, strict: Any, capsys: pytest.CaptureFixture[str], dtype: str
) -> None:
    kind = np.dtype(getattr(ml_dtypes, dtype, dtype))
    export(tmp_path / "a", mixed_case(kind))
    code, lines, _ = outcome(tmp_path / "a", capsys, "--check")
    assert code == 0, lines
    shown = {"float64": "float32", "float16": "float32", "int64": "int32", "bool": "bfloat16"}.get(dtype, dtype)
    assert [line.split(": ok, ")[0] for line in lines] == [
        f"result 0: {shown}[8, 16]",
        f"result 1: {shown}[4, 4] on each device",
    ]
    assert strict.log == [("fabric", "FABRIC_1D"), ("open", (2, 4)), ("close", (2, 4))]


def test_the_text_without_files_runs_too(tmp_path: Path, strict: Any) -> None:
    (tmp_path / "utils.py").write_text(export_folder.utils_text())
    (tmp_path / "main.py").write_text(python_text(mixed()))
    assert run_folder(tmp_path) == 0
    assert strict.log == [("fabric", "FABRIC_1D"), ("open", (2, 4))]


def test_without_check_shapes_are_printed(tmp_path: Path, strict: Any, capsys: pytest.CaptureFixture[str]) -> None:
    export(tmp_path / "a", mixed_case())
    change_by_hand(tmp_path / "a")
    for name in ("expected0.npy", "expected1.npy"):
        (tmp_path / "a" / "tensors" / name).unlink()
    code, lines, _ = outcome(tmp_path / "a", capsys)
    assert (code, lines) == (0, ["result 0: float32[8, 16]", "result 1: float32[4, 4] on each device"])


def tampered(path: Path, name: str, change: Any) -> None:
    array = np.load(path / "tensors" / name)
    change(array)
    np.save(path / "tensors" / name, array)


@pytest.mark.parametrize(
    ("change", "exact", "passes"),
    [
        (lambda a: None, True, True),
        (lambda a: a.__setitem__(0, a[0] * (1 + 1e-6)), False, True),
        (lambda a: a.__setitem__((0, 0, 0), a[0, 0, 0] + 1e-3), True, False),
        (lambda a: a.__setitem__((7, 3, 3), a[7, 3, 3] + 1), False, False),
        (lambda a: a.__setitem__((0, 0, 0), np.nan), False, False),
        (lambda a: a.__setitem__((0, 0, 0), np.inf), False, False),
        (lambda a: a.__setitem__((0, 0, 0), np.nan), True, False),
    ],
)
def test_a_wrong_result_is_found(
    tmp_path: Path, strict: Any, capsys: pytest.CaptureFixture[str], change: Any, exact: bool, passes: bool
) -> None:
    export(tmp_path / "a", mixed_case(), exact=exact)
    change_by_hand(tmp_path / "a")
    tampered(tmp_path / "a", "expected1.npy", change)
    code, lines, _ = outcome(tmp_path / "a", capsys, "--check")
    assert code == (0 if passes else 1)
    assert ": ok" in lines[0]
    assert (": ok, " if passes else ": FAILED, ") in lines[1]


def test_a_shape_and_a_zero_of_the_other_sign_are_differences(
    tmp_path: Path, strict: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    make = Make.on("f", y=1, x=2)
    x = make.argument(4)
    program = make.returns(make.distribute(x, (None, 0), onto=False), presharded=True)
    full = np.array([0.0, 1.0, np.nan, -np.inf], np.float32)
    export(tmp_path / "a", (program, [full], [full.reshape(2, 2)]), exact=True)
    change_by_hand(tmp_path / "a")
    assert outcome(tmp_path / "a", capsys, "--check")[0] == 0
    tampered(tmp_path / "a", "expected0.npy", lambda a: a.__setitem__((0, 0), -0.0))
    assert outcome(tmp_path / "a", capsys, "--check")[:2] == (
        1,
        ["result 0: float32[2] on each device: FAILED, 1 of 4 elements differ"],
    )
    np.save(tmp_path / "a" / "tensors" / "expected0.npy", full)
    code, lines, said = outcome(tmp_path / "a", capsys, "--check")
    assert (code, lines) == (2, [])
    assert said == "tensors/expected0.npy cannot be read: the shape is [4], expected [2, 2]\n"


def test_a_missing_file_and_a_wrong_option_are_errors(
    tmp_path: Path, strict: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    export(tmp_path / "a", mixed_case())
    change_by_hand(tmp_path / "a")
    assert outcome(tmp_path / "a", capsys, "--chekc")[0] == 2
    (tmp_path / "a" / "tensors" / "arg1.npy").unlink()
    code, _, said = outcome(tmp_path / "a", capsys, "--check")
    assert code == 2
    assert "tensors/arg1.npy cannot be read" in said


def headed(shape: str, descr: str = "<f4", fortran: object = False, data: bytes = b"") -> bytes:
    """A file with a header of its own."""
    text = f"{{'descr': {descr!r}, 'fortran_order': {fortran}, 'shape': {shape}, }}\n".encode()
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text + data


def saved(array: Array) -> bytes:
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def resaved(change: Any) -> Any:
    return lambda array: saved(np.asarray(change(array)))


SPOILT: list[tuple[str, Any, str]] = [
    ("nothing", lambda a: b"", "no .npy file: it has 0 bytes"),
    ("magic", lambda a: saved(a)[:7], "no .npy file: it has 7 bytes"),
    ("text", lambda a: b"not an array at all", "begins with b'not an a'"),
    ("version", lambda a: saved(a)[:6] + b"\x09" + saved(a)[7:], "no .npy file"),
    ("in the header", lambda a: saved(a)[:60], "its header alone has 128"),
    ("in the numbers", lambda a: saved(a)[:-3], "bytes of numbers, expected"),
    ("no numbers", lambda a: saved(a)[:128], "it has 0 bytes of numbers, expected"),
    ("more", lambda a: saved(a) + b"x", "bytes of numbers, expected"),
    ("wider", resaved(lambda a: a.astype(np.float64)), "element type is '<f8', but float32 is stored as '<f4'"),
    ("whole", resaved(lambda a: a.astype(np.int32)), "element type is '<i4', but float32 is stored as '<f4'"),
    ("order of bytes", resaved(lambda a: a.astype(">f4")), "element type is '>f4', but float32 is stored as '<f4'"),
    ("order", resaved(np.asfortranarray), "fortran_order is True), expected by rows"),
    ("objects", lambda a: headed("(8, 16)", "|O"), "element type is '|O'"),
    ("structure", lambda a: saved(np.zeros(a.shape, "f4,f4")), "header is not one of an array"),
    ("absurd", lambda a: headed(f"({1 << 70}, 3)"), "cannot be read"),
    ("absurd and empty", lambda a: headed(f"(0, {1 << 70})"), "cannot be read"),
    ("negative", lambda a: headed("(-8, -16)"), "header is not one of an array"),
    ("no number", lambda a: headed("(8.0, True)"), "header is not one of an array"),
    ("no shape", lambda a: headed("8"), "header is not one of an array"),
    ("deep", lambda a: headed("(" * 5000), "header is not one of an array"),
    ("no truth", lambda a: headed("(8, 16)", fortran="print"), "header is not one of an array"),
]


@pytest.mark.parametrize("name", ["arg0", "arg1", "expected0", "expected1"])
@pytest.mark.parametrize(("spoil", "words"), [s[1:] for s in SPOILT], ids=[s[0] for s in SPOILT])
def test_a_spoilt_file_is_an_error_and_no_difference(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, spoil: Any, words: str
) -> None:
    export(tmp_path / "a", mixed_case())
    change_by_hand(tmp_path / "a")
    path = tmp_path / "a" / "tensors" / f"{name}.npy"
    path.write_bytes(spoil(np.load(path)))
    code, _, said = outcome(tmp_path / "a", capsys, "--check")
    assert code == 2
    assert said.startswith(f"tensors/{name}.npy cannot be read: ")
    assert words in said
    assert said.count("\n") == 1


@pytest.mark.slow
def test_a_process_ends_with_the_code_of_an_error(tmp_path: Path) -> None:
    export(tmp_path / "a", products_case())
    change_by_hand(tmp_path / "a")
    (tmp_path / "a" / "tensors" / "expected0.npy").write_bytes(b"")
    code = "import sys; from jaxmesh.cli.run_folder import run_folder; sys.exit(run_folder(sys.argv[1], ['--check']))"
    env = os.environ | {"PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", code, str(tmp_path / "a")]
    done = subprocess.run(command, env=env, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("tensors/expected0.npy cannot be read: it is no .npy file")
    assert done.stderr.count("\n") == 1


@pytest.mark.slow(but_one_in=2)
@pytest.mark.parametrize("name", ["arg0", "expected0"])
@pytest.mark.parametrize(
    ("dtype", "other", "words"),
    [
        ("bfloat16", "float32", "'<f4', but bfloat16 is stored as '<u2'"),
        ("bfloat16", "int16", "'<i2', but bfloat16 is stored as '<u2'"),
        ("float8_e4m3fn", "int8", "'|i1', but float8_e4m3fn is stored as '|u1'"),
        ("int4", "int8", "'|i1', but int4 is stored as '|u1'"),
        ("bool", "uint8", "'|u1', but bool is stored as '|b1'"),
        ("uint8", "bool", "'|b1', but uint8 is stored as '|u1'"),
        ("int32", "int64", "'<i8', but int32 is stored as '<i4'"),
    ],
)
def test_element_types_as_they_are_stored(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, dtype: str, other: str, words: str
) -> None:
    program = retyped(shard_1x2(), np.dtype(getattr(ml_dtypes, dtype, dtype)))
    x, y = (program.types[p[0].value] for p in (program.arguments, program.results))
    given = np.zeros(x.shape, x.dtype)
    wanted = np.zeros((2, *y.shape) if program.results[0].presharded else y.shape, y.dtype)
    export(tmp_path / "a", (program, [given], [wanted]), exact=True)
    change_by_hand(tmp_path / "a")
    assert outcome(tmp_path / "a", capsys, "--check")[0] == 0
    path = tmp_path / "a" / "tensors" / f"{name}.npy"
    np.save(path, np.load(path).astype(other))
    code, _, said = outcome(tmp_path / "a", capsys, "--check")
    assert code == 2
    assert words in said


def test_a_shape_that_was_said_is_wanted(tmp_path: Path) -> None:
    """Whole and in pieces; a file that has not one piece per device is refused in any case."""
    (tmp_path / "utils.py").write_text(export_folder.utils_text())
    np.save(tmp_path / "x.npy", np.zeros((2, 3), np.float32))
    head = (
        "import ttnn, utils\ndevice = ttnn.open_mesh_device(mesh_shape=ttnn.MeshShape(1, 2))\n"
        "said = ('x.npy', ttnn.Layout.TILE, ttnn.DataType.FLOAT32)\n"
    )
    for call, code in (
        ("tensor(*said, None, None, shape=[2, 3])", 0),
        ("tensor(*said, None, None, shape=[3, 2])", 2),
        ("sharded_tensor(*said, device, None, shape=[3])", 0),
        ("sharded_tensor(*said, device, None, shape=[4])", 2),
        ("sharded_tensor(*said, device, None)", 0),
        ("sharded_tensor(*said, ttnn.open_mesh_device(mesh_shape=ttnn.MeshShape(1, 4)), None)", 2),
    ):
        (tmp_path / "main.py").write_text(f"{head}utils.load_{call}\n")
        assert run_folder(tmp_path) == code, call


def test_numbers_too_wide_for_a_stand_in_are_refused(
    tmp_path: Path, strict: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    program, inputs, expected = mixed_case(np.int64)
    inputs[0][0, 0] = 1 << 40
    export(tmp_path / "a", (program, inputs, expected))
    code, _, said = outcome(tmp_path / "a", capsys, "--check")
    assert code == 2
    assert "64 bits" in said


def test_one_device_for_all_who_ask(tmp_path: Path, strict: Any) -> None:
    export(tmp_path / "a", mixed_case())
    (tmp_path / "a" / "main.py").write_text(
        "import ttnn\nimport utils\n"
        "one = utils.DeviceGetter.get_device((2, 4), fabric_config=ttnn.FabricConfig.FABRIC_1D)\n"
        "assert utils.DeviceGetter.get_device([2, 4], fabric_config=ttnn.FabricConfig.FABRIC_1D) is one\n"
        "utils.DeviceGetter.get_device((1, 2), fabric_config=ttnn.FabricConfig.FABRIC_1D)\n"
    )
    with pytest.raises(RuntimeError, match=r"\(2, 4\).*asked for.*\(1, 2\)"):
        run_folder(tmp_path / "a")


# --- running it on the emulated ttnn ---


@pytest.mark.parametrize(
    "dtype",
    # The drafts compute on 8 bits, which the pass that decides layouts would not do.
    [
        *("float32", "bfloat16", "int32", "bool", "float64", "float16", "int64"),
        *(pytest.param(t, marks=pytest.mark.beyond) for t in ("uint8", "int8")),
    ],
)
def test_checks_pass_on_the_emulated_ttnn(tmp_path: Path, capsys: pytest.CaptureFixture[str], dtype: str) -> None:
    kind = np.dtype(getattr(ml_dtypes, dtype, dtype))
    export(tmp_path / "a", mixed_case(kind, 1 if "int" in dtype else 0.75), exact=True)
    code, lines, _ = outcome(tmp_path / "a", capsys, "--check")
    assert (code, lines) == (
        0,
        [f"result 0: {dtype}[8, 16]: ok, equal", f"result 1: {dtype}[4, 4] on each device: ok, equal"],
    )
    assert outcome(tmp_path / "a", capsys)[:2] == (0, [line.split(": ok")[0] for line in lines])


def products_case() -> tuple[Program, list[Array], list[Array]]:
    rng = np.random.default_rng(1)
    x, w = (rng.integers(-4, 4, s).astype(np.float32) for s in ((8, 16), (16, 8)))
    return products(), [x, w], [np.maximum(x @ w, 1)]


def test_a_product_over_the_mesh(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    export(tmp_path / "a", products_case(), exact=True)
    assert outcome(tmp_path / "a", capsys, "--check")[:2] == (0, ["result 0: float32[8, 8]: ok, equal"])


def test_an_argument_on_the_devices_that_is_reshaped_first_is_loaded_from_its_shards(tmp_path: Path) -> None:
    mesh, draws = jm.make_mesh((1, 1)), np.random.default_rng(3)
    place = jax.sharding.NamedSharding(mesh, P())
    shapes = (4, 8), (8, 2, 3), (6,)
    x, w, b = (jax.device_put(draws.standard_normal(s).astype(np.float32), place) for s in shapes)
    jm.jit(lambda x, w, b: jax.nn.relu(x @ w.reshape(8, 6) + b) * b, mesh=mesh).lower(x, w, b).export(tmp_path, x, w, b)
    assert "distribute_tensor" not in (tmp_path / "main.py").read_text()
    assert run_folder(tmp_path) == 0


def test_a_fresh_process_emulates_the_devices(tmp_path: Path) -> None:
    export(tmp_path / "a", products_case(), exact=True)
    code = "import sys; from jaxmesh.cli.run_folder import run_folder; sys.exit(run_folder(sys.argv[1], ['--check']))"
    env = {k: v for k, v in os.environ.items() if k not in ("XLA_FLAGS", "JAX_NUM_CPU_DEVICES")}
    env["PYTHONPATH"] = str(ROOT)
    command = [sys.executable, "-W", "error", "-c", code, str(tmp_path / "a")]
    done = subprocess.run(command, env=env, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "result 0: float32[8, 8]: ok, equal\n"), done.stderr


def test_a_wrong_result_is_found_on_the_emulated_ttnn(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    export(tmp_path / "a", mixed_case())
    change_by_hand(tmp_path / "a")
    tampered(tmp_path / "a", "expected0.npy", lambda a: a.__setitem__((0, 0), a[0, 0] + 1))
    code, lines, _ = outcome(tmp_path / "a", capsys, "--check")
    assert code == 1
    assert ["FAILED" in line for line in lines] == [True, False]


def test_an_element_type_that_changed_is_found(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    export(tmp_path / "a", mixed_case())
    change_by_hand(tmp_path / "a")
    main = tmp_path / "a" / "main.py"
    main.write_text(
        main.read_text().replace('expected0.npy", ttnn.DataType.FLOAT32', 'expected0.npy", ttnn.DataType.INT32')
    )
    code, lines, _ = outcome(tmp_path / "a", capsys, "--check")
    assert code == 1
    assert lines[0].endswith("FAILED, the element type is float32, expected int32")


def test_the_text_without_files_runs_on_the_emulated_ttnn(tmp_path: Path) -> None:
    (tmp_path / "utils.py").write_text(export_folder.utils_text())
    (tmp_path / "main.py").write_text(python_text(mixed()))
    assert run_folder(tmp_path) == 0


# Ops whose calls print something of every kind: (name, operands by number, shape, dtype or that of the first operand).
# Operand -1 is the device; the others are those of `GIVEN`.
OPS: list[tuple[str, tuple[int | None, ...], tuple[int, ...], str, dict[str, Any]]] = [
    ("subtract", (0, 1), (4, 8), "", {}),
    ("divide", (0, 1), (4, 8), "", {}),
    ("gt", (0, 1), (4, 8), "bool", {}),
    ("where", (3, 0, 1), (4, 8), "float32", {}),
    ("logical_not", (3,), (4, 8), "", {}),
    ("exp", (0,), (4, 8), "", {}),
    ("sigmoid", (0,), (4, 8), "", {}),
    ("tanh", (5,), (4, 8), "", {}),
    ("typecast", (5,), (4, 8), "float32", {}),
    ("typecast", (0,), (4, 8), "bfloat16", {}),
    ("clamp_scalar", (0,), (4, 8), "", {"min": -0.5, "max": float("inf")}),
    ("matmul", (0, 2), (4, 4), "", {"transpose_a": False, "transpose_b": False}),
    ("matmul", (0, 1), (4, 4), "", {"transpose_a": False, "transpose_b": True}),
    ("linear", (0, 2, None), (4, 4), "", {"transpose_a": False, "transpose_b": False}),
    ("sum", (0,), (4, 1), "", {"dim_arg": (1,), "keep_dim": True}),
    ("max", (0,), (), "", {"keep_dim": False}),
    ("softmax", (0,), (4, 8), "", {"dimension": 1, "numericStable": True}),
    ("reshape", (0,), (2, 16), "", {"shape": (2, 16)}),
    ("permute", (0,), (8, 4), "", {"permutation": (1, 0)}),
    ("concat", (0, 1, 0), (12, 8), "", {"dim": 0}),
    ("slice_static", (0,), (1, 3), "", {"begins": (1, 1), "ends": (3, 7), "step": (2, 2)}),
    ("repeat", (0,), (8, 8), "", {"repeat_dims": (2, 1)}),
    ("pad", (0,), (5, 10), "", {"padding": (0, 1, 2, 0), "value": -1.5, "use_multicore": True}),
    ("embedding", (4, 0), (3, 8), "float32", {}),
    ("sort", (0,), (4, 8), "", {"dim": 1, "descending": True, "stable": True}),
    ("all_gather", (0,), (4, 32), "", {"all_gather_dim": 1, "cluster_axis": 1}),
    ("all_reduce", (6,), (1, 1, 4, 8), "", {"cluster_axis": 0, "reduce_type": "sum"}),
    ("reduce_scatter", (6,), (1, 1, 4, 2), "", {"cluster_axis": 1, "reduce_type": "sum", "scatter_dim": 3}),
    ("mesh_partition", (0,), (4, 2), "", {"cluster_axis": 1, "dim": 1}),
    ("point_to_point", (0, 1), (4, 8), "", {"sender_coord": (0, 1), "receiver_coord": (1, 3)}),
    ("point_to_point", (0, None), (4, 8), "", {"sender_coord": (1, 1), "receiver_coord": (0, 0)}),
    ("full", (-1,), (2, 3), "float32", {"shape": (2, 3), "fill_value": float("nan")}),
    ("full", (-1,), (2, 3), "int32", {"shape": (2, 3), "fill_value": -7}),
    ("arange", (-1,), (5,), "int32", {"start": 2, "end": 12, "step": 2}),
    ("constant", (-1,), (2, 2), "float32", {"value": np.array([[0.1, -0.0], [np.inf, 1e-45]], np.float32)}),
    ("constant", (-1,), (3,), "bool", {"value": np.array([True, False, True])}),
    ("constant", (-1,), (2,), "bfloat16", {"value": np.array([0.1, 3], BF16)}),
]  # fmt: skip
GIVEN = [("float32", (4, 8)), ("float32", (4, 8)), ("float32", (8, 4)), ("bool", (4, 8)), ("int32", (3,)),
         ("bfloat16", (4, 8)), ("float32", (1, 1, 4, 8))]  # fmt: skip


def many() -> Program:
    """A program with all of `OPS`; each of their results is one of its."""
    make = Make.on("many", y=2, x=4)
    given = [make.argument(*shape, dtype=_dtype(dtype), presharded=True) for dtype, shape in GIVEN]
    results: list[int] = []
    for name, operands, shape, dtype, attributes in OPS:
        kind = Type(shape, _dtype(dtype) if dtype else make.type(given[operands[0] or 0]).dtype, tile=True)
        kinds = [kind, replace(kind, dtype=np.dtype(np.uint32))] if name == "sort" else [kind]
        made = tuple(make.program.new(k) for k in kinds)
        found = tuple(None if o is None else make.open() if o < 0 else given[o] for o in operands)
        make.program.ops.append(Op(f"ttnn.{name}", found, made, attributes))
        results += made
    return make.returns(*results, presharded=True)


def _dtype(name: str) -> np.dtype[Any]:
    return np.dtype(getattr(ml_dtypes, name, name))


@pytest.mark.slow
def test_calls_of_every_kind_give_what_their_ops_mean(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    program = many()
    rng = np.random.default_rng(2)
    inputs = [
        np.asarray(rng.integers(0, 4, (8, *shape)) - (dtype != "int32")).astype(_dtype(dtype)) for dtype, shape in GIVEN
    ]
    mesh = jm.make_mesh((2, 4))
    program.mesh = dict(mesh.shape)
    outs = run_flat(program, mesh, *[ttnn.from_host_shards(list(x), (2, 4)) for x in inputs])
    # What is the same everywhere leaves the program as one array.
    pieces = [ttnn.get_device_tensors(o) if isinstance(o, ttnn.MeshTensor) else [o] * 8 for o in outs]
    expected = [np.stack([np.asarray(x) for x in row]) for row in pieces]
    export(tmp_path / "a", (program, inputs, expected))
    code, lines, _ = outcome(tmp_path / "a", capsys, "--check")
    assert code == 0, [line for line in lines if "FAILED" in line]
    assert len(lines) == len(program.results)


SUITE = [
    "mlp", "attention with a cache", "top-k sampling", "a ring on 8", "distribute on 2x2x2x2",
    "arguments and results on the devices", "psum_scatter, tiled",
]  # fmt: skip


@pytest.mark.parametrize("name", SUITE)
@pytest.mark.slow(but_one_in=4)
def test_programs_give_their_own_results(tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str) -> None:
    entry = BY_NAME[name]
    args = entry.args()
    program = to_ttnn(fuse(flat_of(entry.lowered, "ttnn")))
    given = jax.tree.leaves(args, is_leaf=lambda x: isinstance(x, ttnn.MeshTensor))
    inputs = [
        np.stack([np.asarray(s) for s in ttnn.get_device_tensors(x)]) if p.presharded else np.asarray(x)
        for x, p in zip(given, program.arguments, strict=True)
    ]
    export(tmp_path / "a", (program, inputs, entry.expected()), exact=entry.tolerance == 0)
    code, lines, said = outcome(tmp_path / "a", capsys, "--check")
    assert code == 0, (lines, said)
    assert len(lines) == len(program.results) > 0


# --- the runner ---


def test_a_folder_without_a_program_is_named(tmp_path: Path) -> None:
    with pytest.raises(jm.MissingFileError, match=r"main\.py is missing"):
        run_folder(tmp_path)


def test_what_a_run_changes_is_restored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mine = ModuleType("utils")
    monkeypatch.setitem(sys.modules, "utils", mine)
    monkeypatch.delitem(sys.modules, "ttnn", raising=False)
    (tmp_path / "utils.py").write_text("import helper\nKNOWN = 1\n")
    (tmp_path / "helper.py").write_text("")
    (tmp_path / "main.py").write_text(
        "import os, sys, ttnn, utils\n"
        "assert utils.KNOWN == 1 and ttnn.MeshShape([2]).mesh_size() == 2 and __name__ == '__main__'\n"
        "assert sys.argv == [__file__, 'a', '--b'] and os.getcwd() == os.path.dirname(__file__)\n"
        "raise SystemExit(len(sys.argv))\n"
    )
    before = (list(sys.path), list(sys.argv), os.getcwd(), sys.modules["__main__"])
    assert run_folder(tmp_path, ["a", "--b"]) == 3
    assert (list(sys.path), list(sys.argv), os.getcwd(), sys.modules["__main__"]) == before
    assert sys.modules["utils"] is mine
    assert "ttnn" not in sys.modules
    assert "helper" not in sys.modules
    assert sorted(p.name for p in tmp_path.iterdir()) == ["helper.py", "main.py", "utils.py"]


@pytest.mark.parametrize(
    ("line", "code"), [("", 0), ("raise SystemExit", 0), ("raise SystemExit('so')", 1), ("raise SystemExit(True)", 1)]
)
def test_exit_codes(tmp_path: Path, line: str, code: int) -> None:
    (tmp_path / "main.py").write_text(line + "\n")
    assert run_folder(tmp_path) == code


def test_everything_is_restored_after_an_error(tmp_path: Path) -> None:
    (tmp_path / "main.py").write_text("import ttnn\nraise KeyError('so')\n")
    had = sys.modules.get("ttnn")
    before = (list(sys.path), os.getcwd())
    with pytest.raises(KeyError, match="so"):
        run_folder(tmp_path)
    assert (list(sys.path), os.getcwd()) == before
    assert sys.modules.get("ttnn") is had


def test_wide_types_are_kept(tmp_path: Path) -> None:
    (tmp_path / "main.py").write_text(
        "import jax.numpy as jnp\nassert jnp.ones(2).dtype == 'float64', jnp.ones(2).dtype\n# ttnn.DataType.FLOAT64\n"
    )
    assert run_folder(tmp_path) == 0
    import jax.numpy as jnp

    assert jnp.ones(2).dtype == "float32"


def test_a_program_that_compares_nothing_does_not_pass(tmp_path: Path) -> None:
    (tmp_path / "main.py").write_text("")
    assert run_folder(tmp_path) == 0
    with pytest.raises(jm.JaxmeshError, match=r"main.py' ended without comparing anything, as --check asks"):
        run_folder(tmp_path, ["--check"])


def test_results_that_data_only_moves_to_are_checked_bit_for_bit(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def both(x: Any) -> Any:
        shard = jm.full_to_shard(x, P("y", "x"))
        return jm.shard_to_full(shard, P("y", "x")), jm.shard_to_full(jax.numpy.sin(shard), P("y", "x"))

    x = np.arange(1, 33, dtype=np.float32).reshape(4, 8)
    export_folder = tmp_path / "a"
    jm.jit(both, mesh=jm.make_mesh((2, 4))).lower(x).export(export_folder)
    assert "v1, {true, false});" in (export_folder / "main.cpp").read_text()
    for number, wrong in ((0, 1), (1, 0)):
        file = export_folder / "tensors" / f"expected{number}.npy"
        kept = file.read_bytes()
        np.save(file, np.nextafter(np.load(file), np.float32(np.inf)))
        assert outcome(export_folder, capsys, "--check")[0] == wrong
        file.write_bytes(kept)
    assert outcome(export_folder, capsys, "--check")[0] == 0


@pytest.mark.slow
def test_wide_results_of_narrow_floats_are_within_the_rounding_of_those(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A quantised product whose scale is computed as bfloat16: compiled, it keeps more digits than op by op."""
    numpy: Any = jax.numpy

    def product(x: Any, w: Any, v: Any) -> Any:
        x, w = jm.full_to_shard(x, P("y")), jm.full_to_shard(w, P(None, "x"))
        scale = numpy.max(numpy.abs(x)) / 127.0
        rows = jax.lax.dot(numpy.round(x / scale).astype("int8"), w, preferred_element_type=np.int32)
        v = numpy.sin(jm.full_to_shard(v, P("y")))
        return jm.shard_to_full(rows * scale.astype("float32"), P("y", "x")), jm.shard_to_full(v, P("y"))

    rng = np.random.default_rng(0)
    x = numpy.asarray(rng.normal(size=(4, 64)), "bfloat16")
    args = x, rng.integers(-100, 100, (64, 8)).astype(np.int8), np.ones((4, 8), np.float32)
    export_folder = tmp_path / "a"
    jm.jit(product, mesh=jm.make_mesh((2, 4))).lower(*args).export(export_folder, *args)
    assert "v1, false, {16, 0});" in (export_folder / "main.cpp").read_text()
    assert (export_folder / "main.py").read_text().count("exact=False, bits=16)") == 1
    assert outcome(export_folder, capsys, "--check")[0] == 0
    for number, more, wrong in ((0, 0.01, 0), (0, 0.05, 1), (1, 0.01, 1)):
        file = export_folder / "tensors" / f"expected{number}.npy"
        kept = np.load(file)
        np.save(file, kept + np.float32(more * np.abs(kept).max()))
        assert outcome(export_folder, capsys, "--check")[0] == wrong, (number, more)
        np.save(file, kept)
