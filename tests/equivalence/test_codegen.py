"""Every program of the suite, printed in every language, gives the program's own result when it is read or run."""

from __future__ import annotations

import contextlib
import io
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import jax
import pytest
from jax.interpreters import mlir
from jaxlib.mlir import ir

import jaxmesh as jm
from jaxmesh.cli.run_folder import run_folder
from jaxmesh.emit.cpp.printer import include_dir
from tests.generators.oracles import EVERY
from tests.generators.suite.all_programs import PROGRAMS, Entry
from tests.generators.upstream_definitions import check_text, read_table

GXX = shutil.which("g++")
UPSTREAM = read_table()
COMPILED = PROGRAMS if EVERY else PROGRAMS[::6]
RUN = PROGRAMS if EVERY else PROGRAMS[1::3]


def traced(entry: Entry) -> jm.Traced:
    return jm.jit(entry.function, mesh=entry.mesh).trace(*entry.args())


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
    upper = traced(entry)
    lower = upper.lower()
    for text in (upper.as_text(), lower.as_text(strict=strict(entry))):
        assert parsed_and_printed(text) == text
        count, wrong = check_text(text, UPSTREAM)
        assert count == len(re.findall(r'"tt(?:ir|nn)\.', text))
        assert not wrong
    assert "ttir." not in text


@pytest.mark.parametrize("entry", RUN, ids=lambda e: e.name)
def test_texts_are_the_same_program_and_python_runs_and_agrees(entry: Entry, tmp_path: Path) -> None:
    upper = traced(entry)
    lower = upper.lower()
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


@pytest.mark.parametrize("entry", COMPILED, ids=lambda e: e.name)
def test_cpp_compiles_runs_and_agrees(entry: Entry, tmp_path: Path, headers: Path) -> None:
    assert GXX is not None
    folder = tmp_path / "model"
    traced(entry).lower().export(folder, *entry.args(), languages=("cpp",), strict=strict(entry))
    program = folder / "main"
    subprocess.run([GXX, "-std=c++20", "-I", headers, folder / "main.cpp", "-o", program], check=True)
    done = subprocess.run([program, "--check"], cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count(": ok") == len(entry.expected())
