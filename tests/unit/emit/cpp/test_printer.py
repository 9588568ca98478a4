"""The text of emitted C++; `tests/equivalence/test_emitted_cpp.py` compiles and runs it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

import jaxmesh as jm
from jaxmesh.dialects import (
    ttnn as ttnn_dialect,
    ttnn as ttnn_ops,  # noqa: F401
)
from jaxmesh.dialects.program import Op, Port, Program, Type
from jaxmesh.emit.cpp import values
from jaxmesh.emit.cpp.printer import cpp_text, include_dir
from jaxmesh.errors import MissingRuleError, UnsupportedError
from tests import GOLDEN
from tests.generators.cpp_programs import MESH, Made, constants, perceptron
from tests.generators.oracles import calls_made
from tests.generators.ttnn_cases import cases


def test_no_row_is_left_out() -> None:
    assert {c.op for c in cases(MESH)} == set(ttnn_dialect.OPS)


@pytest.mark.parametrize("value", [0, -1, 2**31 - 1, 2**31, -(2**31), 2**63 - 1, 2**63, 2**64 - 1, -(2**63)])
def test_integers_are_literals_of_cpp(value: int) -> None:
    """A C++ compiler refuses a decimal literal without `u` above 2**63 - 1; it has no negative ones."""
    text = values.integer(value)
    numbers = re.findall(r"[0-9]+u?", text)
    assert eval(text.replace("u", "")) == value
    assert all((int(n.rstrip("u")) >= 2**63) == n.endswith("u") for n in numbers)


def test_types_that_no_header_holds() -> None:
    for dtype in (np.complex64, ml_dtypes.float4_e2m1fn):
        program = Program("f", {"x": 1})
        program.arguments.append(Port(program.new(Type((2,), np.dtype(dtype), host=True)), False))
        with pytest.raises(UnsupportedError, match=f"do not support tensors of {np.dtype(dtype).name}"):
            cpp_text(program)


# --- texts -----------------------------------------------------------------------------------------------------------

TEXTS = {"perceptron": (perceptron, False), "perceptron_exported": (perceptron, True), "constants": (constants, False)}


@pytest.mark.parametrize("name", TEXTS)
def test_golden(name: str) -> None:
    make, load = TEXTS[name]
    text = cpp_text(make(), load=load)
    path = GOLDEN / f"{name}.cpp.txt"
    if os.environ.get("JAXMESH_WRITE_GOLDEN"):
        path.write_text(text)
    assert text == path.read_text()


@pytest.mark.slow
def test_the_same_bytes_in_every_process() -> None:
    script = (
        "from tests.unit.emit.cpp.test_printer import *; "
        "print(cpp_text(perceptron(), load=True) + cpp_text(constants()), end='')"
    )
    folders = str(Path(jm.__file__).parents[1])
    texts = {
        subprocess.run(
            [sys.executable, "-c", script],
            env={**os.environ, "PYTHONPATH": folders, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert texts == {cpp_text(perceptron(), load=True) + cpp_text(constants())}


def test_long_programs_take_linear_time() -> None:
    def calls(count: int) -> int:
        m = Made("long", x=2)
        x = m.split(m.argument(8), 0)
        for _ in range(count):
            x = m.op("ttir.add", [x, x], 4)
        program = m.ttnn((x, True))
        assert cpp_text(program).count("ttnn::add(") == count
        return calls_made(lambda: cpp_text(program))

    assert calls(4_000) < 8 * 1.1 * calls(500)


def test_ops_without_a_call() -> None:
    program = Program("f", {"x": 1})
    value = program.new(Type((1,), np.dtype(np.float32)))
    program.arguments = [Port(value, True)]
    for name in ("ttnn.unheard_of", "ttir.add"):
        program.ops = [Op(name, (value,), (program.new(Type((1,), np.dtype(np.float32))),), {}, "model.py:7 (f)")]
        with pytest.raises(MissingRuleError, match=rf"{re.escape(name)}.*model\.py:7"):
            cpp_text(program)


def test_the_headers_are_package_files() -> None:
    folder = include_dir()
    assert (folder / "ttnn-precompiled.hpp").is_file()
    included = {n for f in folder.glob("*.hpp") for n in re.findall(r'#include "(.+)"', f.read_text())}
    assert included | {"ttnn-precompiled.hpp"} == {f.name for f in folder.iterdir()}
