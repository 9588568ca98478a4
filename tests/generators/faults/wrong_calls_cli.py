"""Wrong command lines, with the words their one line on standard error must hold; `{}` is a folder of odd files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

import jaxmesh as jm
from tests.generators.faults.wrong_calls import TEXT, double, mesh

FULL = np.arange(64, dtype=np.float32).reshape(8, 8)


def make_files(folder: Path) -> None:
    """Every file that the rows name."""
    (folder / "good.mlir").write_text(TEXT)
    (folder / "torn.mlir").write_text(TEXT[:500])
    (folder / "empty.mlir").write_text("")
    (folder / "none.mlir").write_text("module {}")
    (folder / "binary.mlir").write_bytes(bytes(range(128, 256)) * 9)
    (folder / "bytecode.mlir").write_bytes(b"ML\xefR\x01")
    (folder / "huge.mlir").write_text(TEXT.replace("2x4", "20x40", 1))
    (folder / "uneven.mlir").write_text(TEXT.replace("8x8", "9x8"))
    (folder / "folder").mkdir()
    np.savez(folder / "good.npz", arg0=FULL)
    np.save(folder / "one.npy", FULL)
    whole = (folder / "good.npz").read_bytes()
    (folder / "torn.npz").write_bytes(whole[: len(whole) // 2])
    (folder / "flipped.npz").write_bytes(whole[:80] + bytes(b ^ 0xFF for b in whole[80:160]) + whole[160:])
    (folder / "empty.npz").write_bytes(b"")
    (folder / "text.npz").write_text("no arrays")
    np.savez(folder / "shape.npz", arg0=FULL[:4])
    np.savez(folder / "dtype.npz", arg0=FULL.astype(np.float64))
    np.savez(folder / "name.npz", weights=FULL)
    np.savez(folder / "more.npz", arg0=FULL, arg1=FULL)
    np.savez(folder / "twice.npz", arg0=FULL, arr_0=FULL)
    np.savez(folder / "nothing.npz")
    np.savez(folder / "objects.npz", arg0=np.array([object()]))
    _folders(folder)


def _folders(folder: Path) -> None:
    """Exported programs, edited by hand."""
    jm.codegen_py(double, np.ones((16, 8), np.float32), mesh=mesh(), export_path=folder / "model")
    main = (folder / "model" / "main.py").read_text()
    edits: dict[str, Any] = {
        "no_syntax": lambda f: (f / "main.py").write_text(main + "\ndef (:\n"),
        "no_text": lambda f: (f / "main.py").write_bytes(b"\xff\xfe\x00\x01"),
        "key": lambda f: (f / "main.py").write_text("x = {}\ny = x['nothing']\n"),
        "index": lambda f: (f / "main.py").write_text("[][3]\n"),
        "name": lambda f: (f / "main.py").write_text("nothing_of_this_name\n"),
        "assertion": lambda f: (f / "main.py").write_text("assert not 1\n"),
        "module": lambda f: (f / "main.py").write_text("import no_module_of_this_name\n"),
        "op": lambda f: (f / "main.py").write_text("import ttnn\nttnn.nothing_of_this_name(1)\n"),
        "call": lambda f: (f / "main.py").write_text("import ttnn\nttnn.add(1, 2, 3)\n"),
        "no_input": lambda f: (f / "tensors" / "arg0.npy").unlink(),
        "torn_input": lambda f: (f / "tensors" / "arg0.npy").write_bytes(b"\x93NUMPY\x01\x00"),
        "no_expected": lambda f: (f / "tensors" / "expected0.npy").write_text("no array"),
        "other_shape": lambda f: np.save(f / "tensors" / "arg0.npy", np.ones(3, np.float32)),
        "only_cpp": lambda f: (f / "main.py").rename(f / "main.cpp"),
    }
    for name, edit in edits.items():
        copy = folder / name
        (copy / "tensors").mkdir(parents=True)
        for file in (folder / "model").rglob("*"):
            if file.is_file():
                (copy / file.relative_to(folder / "model")).write_bytes(file.read_bytes())
        edit(copy)


MESHES = [
    "0x4",
    "2x",
    "x2",
    "-1",
    "2x-4",
    "2.5",
    "1e3",
    "2X4",
    "",
    " ",
    "2 x 4",
    "٢x٤",
    "257",
    "9" * 30,
    "0x" * 50 + "1",
]
ROWS: list[tuple[str, str]] = [
    ("", "required: command"),
    ("nothing", "invalid choice: 'nothing'"),
    ("opt", "required: FILE"),
    ("opt {}/good.mlir --nothing", "unrecognized arguments: --nothing"),
    ("opt {}/none", "none' (No such file"),
    ("opt {}/folder", "Is a directory"),
    ("opt {}/good.mlir/x", "Not a directory"),
    ("opt {}/torn.mlir", "line "),
    ("opt {}/empty.mlir", "line 1"),
    ("opt {}/none.mlir", "line 1: the file has no function"),
    ("opt {}/binary.mlir", "line 1: byte 0x80 is not UTF-8"),
    ("opt {}/bytecode.mlir", "MLIR bytecode"),
    ("opt {}/good.npz", "line "),
    ("opt {}/uneven.mlir", "dim 0 has size 9, which 2 devices"),
    ("opt {}/good.mlir --func other", "@other"),
    ("opt {}/good.mlir --mesh 8", "2x4"),
    ("opt {}/good.mlir --strict=1", "ignored explicit argument '1'"),
    ("run", "required: FILE"),
    ("run {}/huge.mlir", "20x40 has 800 devices, but at most 256"),
    ("run {}/none", "No such file"),
    ("run {}/good.mlir --mesh 4x2", "4x2"),
    ("run {}/good.mlir --seed -1", "a seed is a non-negative integer of at most 18 digits, got '-1'"),
    ("run {}/good.mlir --seed 1.5", "got '1.5'"),
    ("run {}/good.mlir --seed 1000000000000000000000", "got '1000000000000000000000'"),
    ("run {}/good.mlir --seed 1 --inputs {}/good.npz", "not allowed with argument --seed"),
    ("run {}/good.mlir --inputs {}/none.npz", "No such file"),
    ("run {}/good.mlir --inputs {}/folder", "Is a directory"),
    ("run {}/good.mlir --inputs {}/one.npy", "is not an .npz file"),
    ("run {}/good.mlir --inputs {}/torn.npz", "is not an .npz file"),
    ("run {}/good.mlir --inputs {}/flipped.npz", "is not an .npz file"),
    ("run {}/good.mlir --inputs {}/empty.npz", "is not an .npz file"),
    ("run {}/good.mlir --inputs {}/text.npz", "is not an .npz file"),
    ("run {}/good.mlir --inputs {}/objects.npz", "is not an .npz file"),
    ("run {}/good.mlir --inputs {}/shape.npz", "arg0 is float32[4, 8], but the function takes float32[8, 8]"),
    ("run {}/good.mlir --inputs {}/dtype.npz", "arg0 is float64[8, 8], but the function takes float32[8, 8]"),
    ("run {}/good.mlir --inputs {}/name.npz", "'weights', but the function's arguments are: arg0"),
    ("run {}/good.mlir --inputs {}/more.npz", "'arg1', but the function's arguments are: arg0"),
    ("run {}/good.mlir --inputs {}/twice.npz", "two arrays for one argument"),
    ("run {}/good.mlir --inputs {}/nothing.npz", "lacks arg0; its arrays are: none"),
    ("run {}/good.mlir --out {}/folder", "--out takes a file"),
    ("run {}/good.mlir --out {}/none/out.npz", "--out takes a file in a folder that exists"),
    ("run {}/folder", "main.py is missing"),
    ("run {}/only_cpp", "it contains a C++ program"),
    ("run {}/model --mesh 2x4", "so --mesh does not apply to it"),
    ("run {}/model --seed 3", "so --seed does not apply to it"),
    ("run {}/model --strict --per-device", "--strict, --per-device"),
    ("run {}/no_syntax", "SyntaxError"),
    ("run {}/no_text", "main.py"),
    ("run {}/key", "line 2: KeyError: 'nothing'"),
    ("run {}/index", "line 1: IndexError"),
    ("run {}/name", "line 1: NameError"),
    ("run {}/assertion", "line 1: AssertionError"),
    ("run {}/module", "line 1: ModuleNotFoundError"),
    ("run {}/op", "ttnn has no 'nothing_of_this_name'"),
    ("run {}/call", "ttnn.add takes 2 arguments by place, got 3"),
    ("run {}/no_input", "arg0"),
    ("run {}/torn_input", "arg0"),
    ("run {}/no_expected --check", "expected0"),
    ("run {}/other_shape", "arg0.npy cannot be read: it is not the file that manifest.json lists"),
    ("translate {}/good.mlir", "required: --to"),
    ("translate {}/good.mlir --to rust", "invalid choice: 'rust'"),
    ("translate {}/good.mlir --to python --inputs {}/good.npz", "give --out DIR"),
    ("translate {}/good.mlir --to cpp --seed 3", "give --out DIR"),
    ("translate {}/good.mlir --to ttnn --out {}/good.npz", "is a file; name another"),
    ("translate {}/good.mlir --to ttnn --out {}/good.npz/x", "good.npz"),
    ("translate {}/good.mlir --to python --out {}/good.npz", "good.npz"),
    ("translate {}/good.mlir --to python --out {}", "has files in it that no export wrote"),
    ("translate {}/torn.mlir --to ttir", "line "),
    ("explain", "required: FILE"),
    ("explain {}/none", "No such file"),
    ("explain {}/torn.mlir", "line "),
    ("explain {}/good.mlir --func other", "@other"),
    ("explain {}/good.mlir --mesh 8", "2x4"),
    ("explain {}/good.mlir --json=1", "ignored explicit argument '1'"),
    ("explain {}/huge.mlir", "dim 0 has size 8, which 20 devices"),
    ("include-dir x", "unrecognized arguments: x"),
    ("demo --mesh 2x4 --out {}/good.npz", "--out takes a folder"),
    ("demo x", "unrecognized arguments: x"),
    ("selftest --seed x", "got 'x'"),
]
"""What is typed after `jaxmesh`, and what the line says."""
