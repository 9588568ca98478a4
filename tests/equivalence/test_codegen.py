"""Every program of the suite, printed in every language, gives the program's own result when it is read or run."""

from __future__ import annotations

import contextlib
import io
import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import pytest
from jax.interpreters import mlir
from jax.sharding import PartitionSpec as P
from jaxlib.mlir import ir

import jaxmesh as jm
from jaxmesh.cli.run_folder import run_folder
from jaxmesh.emit.cpp.printer import include_dir
from tests.generators.attention_cases import FOUND, inputs
from tests.generators.suite.all_programs import PROGRAMS, Entry
from tests.generators.upstream_definitions import check_text, read_table

GXX = shutil.which("g++")
UPSTREAM = read_table()
TOGETHER = 8
"""How many C++ programs are compiled as one."""


def strict(entry: Entry) -> bool:
    """Whether the real library has such a mesh."""
    return len(entry.sizes) <= 2


def read_back(text: str, entry: Entry, two_dims: bool = False) -> Any:
    """The results of a text that is read again, for flat arguments, on the same mesh or on one of two dims."""
    mesh = jm.make_mesh((1, *entry.sizes), ("_", *entry.axes)) if two_dims and len(entry.sizes) < 2 else entry.mesh
    again = jm.from_mlir(text, mesh)
    leaves = jax.tree.leaves(entry.args(), is_leaf=lambda x: isinstance(x, jm.MeshTensor))
    return again.lower().compile()(*leaves)


def parsed_and_printed(text: str) -> str:
    context = mlir.make_ir_context()
    context.allow_unregistered_dialects = True
    return str(ir.Module.parse(text, context))


@pytest.mark.parametrize("entry", PROGRAMS, ids=lambda e: e.name)
def test_texts_are_what_jaxlib_prints_and_as_upstream_defines_their_ops(entry: Entry) -> None:
    upper, lower = entry.traced, entry.lowered
    for text in (upper.as_text(), lower.as_text(strict=strict(entry))):
        assert parsed_and_printed(text) == text
        count, wrong = check_text(text, UPSTREAM)
        assert count == len(re.findall(r'"tt(?:ir|nn)\.', text))
        assert not wrong
    assert "ttir." not in text


# Where XLA optimizes little, copies of a product can differ in their last bit.
@pytest.mark.usefixtures("as_for_users")
@pytest.mark.parametrize("entry", PROGRAMS, ids=lambda e: e.name)
def test_texts_are_the_same_program_and_python_runs_and_agrees(entry: Entry, tmp_path: Path) -> None:
    upper, lower = entry.traced, entry.lowered
    entry.check(read_back(upper.as_text(), entry))
    entry.check(read_back(lower.as_text(strict=strict(entry)), entry, two_dims=True))
    lower.export(tmp_path / "model", *entry.args(), languages=("python",), strict=strict(entry))
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        code = run_folder(tmp_path / "model", ["--check"])
    assert code == 0, out.getvalue()
    assert out.getvalue().count(": ok") == len(entry.expected())


@pytest.fixture(scope="session")
def headers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The header, compiled once: a folder with `ttnn-precompiled.hpp.gch`."""
    if GXX is None:
        pytest.skip("g++ is not installed")
    folder = tmp_path_factory.mktemp("include")
    shutil.copytree(include_dir(), folder, dirs_exist_ok=True)
    source = folder / "ttnn-precompiled.hpp"
    subprocess.run([GXX, "-std=c++20", "-x", "c++-header", source, "-o", f"{source}.gch"], check=True)
    return folder


@pytest.mark.parametrize("first", range(0, len(PROGRAMS), TOGETHER))
def test_cpp_compiles_runs_and_agrees(first: int, tmp_path: Path, headers: Path) -> None:
    """The exported files, each as it is, are included in one file: the compiler needs most of its time to start."""
    assert GXX is not None
    entries = PROGRAMS[first : first + TOGETHER]
    for i, entry in enumerate(entries):
        lowered = entry.lowered
        lowered.export(tmp_path / str(i), *entry.args(), languages=("cpp",), strict=strict(entry))
    program = tmp_path / "main"
    program.with_suffix(".cpp").write_text(
        program_of_all([tmp_path / str(i) / "main.cpp" for i in range(len(entries))])
    )
    subprocess.run([GXX, "-std=c++20", "-I", headers, f"{program}.cpp", "-o", program], check=True)
    for i, entry in enumerate(entries):
        command = [program, str(i), "--check"]
        done = subprocess.run(command, cwd=tmp_path / str(i), capture_output=True, text=True, check=False)
        assert done.returncode == 0, (entry.name, done.stdout + done.stderr)
        assert done.stdout.count(": ok") == len(entry.expected()), entry.name


def test_fused_attention_runs_in_python_and_cpp(tmp_path: Path, headers: Path) -> None:
    """The spellings of attention that become one operation: each device's values, within the rounding of bfloat16."""
    assert GXX is not None
    mesh, folders = jm.make_mesh((1, 2), ("x", "y")), [tmp_path / str(i) for i in range(len(FOUND))]
    for folder, (program, _) in zip(folders, FOUND.values(), strict=True):
        arrays = inputs()
        split = {n: P(None, None, "y") if n[0] in "qkv" else P() for n in arrays}
        lowered = jm.jit(lambda x, f=program: f(x), mesh=mesh, in_shardings=(split,)).lower(arrays)
        lowered.export(folder, arrays, languages=("python", "cpp"))
        assert "scaled_dot_product_attention" in (folder / "main.cpp").read_text()
        with contextlib.redirect_stdout(io.StringIO()) as out:
            assert run_folder(folder, ["--check"]) == 0, out.getvalue()
    program = tmp_path / "main"
    program.with_suffix(".cpp").write_text(program_of_all([folder / "main.cpp" for folder in folders]))
    subprocess.run([GXX, "-std=c++20", "-I", headers, f"{program}.cpp", "-o", program], check=True)
    for i, folder in enumerate(folders):
        done = subprocess.run([program, str(i), "--check"], cwd=folder, capture_output=True, text=True, check=False)
        assert (done.returncode, done.stdout.count(": ok")) == (0, 1), done.stdout + done.stderr


def program_of_all(files: Sequence[Path]) -> str:
    """Returns a file that includes the others under names of their own; its first argument says which one it runs."""
    lines = ['#include "ttnn-precompiled.hpp"']
    for i, file in enumerate(files):
        names = sorted({"main", *re.findall(r"^\S+ (\w+)\(", file.read_text(), re.MULTILINE)})
        lines += [f"#define {name} {name}_{i}" for name in names]
        lines += [f'#include "{file}"', *(f"#undef {name}" for name in names)]
    programs = ", ".join(f"main_{i}" for i in range(len(files)))
    lines.append(f"static int32_t (*const programs[])(int32_t, char**) = {{{programs}}};")
    lines.append("int main(int argc, char** argv) { return programs[std::stoi(argv[1])](argc - 1, argv + 1); }")
    return "\n".join(lines) + "\n"
