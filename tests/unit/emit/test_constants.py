"""Large constants: found by content, named in order, and read back from each kind of text."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxmesh as jm
from jaxmesh.cli.run_folder import run_folder
from jaxmesh.dialects.program import Op, Port, Program, Type
from jaxmesh.emit.cpp.printer import cpp_text
from jaxmesh.emit.export_folder import write_folder
from jaxmesh.emit.languages import CONSTANT_LIMIT, StoredConstants
from jaxmesh.emit.mlir.printer import mlir_text
from jaxmesh.emit.python.printer import python_text
from jaxmesh.jaxprs.walk import Contents
from tests.generators.mlir_programs import printed

TYPES = [np.dtype(t) for t in ("float32", "float16", "bool", "int32", "uint32", "int8", "uint8", "uint16")] + [
    jnp.dtype(t) for t in ("bfloat16", "float8_e4m3fn", "float8_e5m2", "int4")
]


def elements(dtype: np.dtype[Any], shape: tuple[int, ...] = (5, 7)) -> Any:
    rng = np.random.default_rng(1)
    if dtype.kind == "b":
        return rng.integers(0, 2, shape).astype(bool)
    return rng.integers(0 if dtype.name[0] == "u" else -7, 8, shape).astype(dtype)


def constants(*arrays: Any, dialect: str = "ttir") -> Program:
    """A program that returns constants, made on the host."""
    program = Program("constants", {"x": 1})
    for array in arrays:
        value = program.new(Type(array.shape, array.dtype, host=True))
        program.ops.append(Op(f"{dialect}.constant", (), (value,), {"value": array}))
        program.results.append(Port(value, False))
    return program


# --- equal arrays are one ---

ZEROS = np.zeros(4, np.float32)
EQUAL = {
    "bytes": (np.arange(9.0), np.arange(9.0), True),
    "views": (np.arange(12).reshape(3, 4), np.arange(12).reshape(4, 3).copy().reshape(3, 4), True),
    "columns": (np.arange(12).reshape(3, 4), np.asfortranarray(np.arange(12).reshape(3, 4)), True),
    "NaN": (np.full(3, np.nan), np.full(3, np.nan), True),
    "one element in memory": (np.broadcast_to(np.float32(2), (1 << 20, 1 << 20)),) * 2 + (True,),
    "shapes": (np.arange(12), np.arange(12).reshape(3, 4), False),
    "types": (np.zeros(4, np.int32), ZEROS, False),
    "signs of zero": (ZEROS, -ZEROS, False),
    "beyond the sample": (np.zeros(100_000), np.eye(1, 100_000, 99_998)[0], False),
    "one element and another": (*(np.broadcast_to(np.float32(x), (2, 2)) for x in (2, 3)), False),
}


@pytest.mark.parametrize(("one", "other", "same"), EQUAL.values(), ids=EQUAL)
def test_arrays_are_one_by_their_bytes(one: Any, other: Any, same: bool) -> None:
    contents = Contents()
    assert contents.first(one) is one
    assert (contents.first(other) is one) == same


def test_constants_have_names_in_order_and_equal_ones_have_one() -> None:
    a, b = np.arange(8.0), np.arange(8.0)[::-1]
    program = constants(a, np.arange(3), b, a.copy())
    stored = StoredConstants(program, 4)
    assert [stored.name(op) for op in program.ops] == ["constant0", None, "constant1", "constant0"]
    assert [stored.file(op) for op in program.ops[:2]] == ["tensors/constant0.npy", None]
    assert list(stored.arrays) == ["constant0", "constant1"]
    assert stored.arrays["constant0"] is a


@pytest.mark.parametrize(("count", "is_stored"), [(CONSTANT_LIMIT, False), (CONSTANT_LIMIT + 1, True)])
def test_the_limit_is_the_most_elements_that_are_spelled(count: int, is_stored: bool) -> None:
    program = constants(np.arange(count, dtype=np.int32), dialect="ttnn")
    for text in (mlir_text(program), python_text(program), cpp_text(program)):
        assert ("dense_resource" in text or "tensors/constant0.npy" in text) == is_stored


# --- what is stored is what is read ---


@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_mlir_reads_resources_as_they_are(dtype: np.dtype[Any]) -> None:
    array = elements(dtype)
    text = mlir_text(constants(array, array[::-1].copy(), array.copy()), constant_limit=2)
    assert text.count('"0x') == 2
    assert printed(text) == text
    traced = jm.from_mlir(text)
    assert traced.as_text(constant_limit=2) == text
    for found, want in zip(traced.lower().compile()(), (array, array[::-1], array), strict=True):
        assert found.dtype == dtype
        np.testing.assert_array_equal(np.asarray(found), want)


def test_uniform_constants_are_no_resources() -> None:
    text = mlir_text(constants(np.full((64, 64), 2, np.float32)))
    assert "dense<2.000000e+00>" in text
    assert "resource" not in text
    assert printed(text) == text


@pytest.mark.parametrize("limit", [0, 10**6])
def test_an_exported_program_loads_what_it_does_not_spell(limit: int, tmp_path: Path) -> None:
    arrays = [elements(t) for t in TYPES]
    program = constants(*arrays, arrays[0].copy(), dialect="ttnn")
    files = write_folder(
        tmp_path / "a", program, texts={}, inputs=[], expected=[*arrays, arrays[0]], exact=True, constant_limit=limit
    )
    stored = [f.name for f in files if f.name.startswith("constant")]
    assert len(stored) == (0 if limit else len(TYPES))
    assert run_folder(tmp_path / "a", ["--check"]) == 0


def test_files_of_an_earlier_program_are_removed(tmp_path: Path) -> None:
    for array in (np.arange(9), np.arange(3)):
        write_folder(
            tmp_path / "a", constants(array, dialect="ttnn"), texts={}, inputs=[], expected=[array], exact=True,
            constant_limit=4,
        )  # fmt: skip
    assert [p.name for p in (tmp_path / "a" / "tensors").iterdir()] == ["expected0.npy"]


# --- tracing ---


def test_a_traced_program_holds_equal_constants_once_and_as_they_were() -> None:
    tables = [np.arange(4096, dtype=np.float32).reshape(64, 64) for _ in range(3)]
    device = [jnp.asarray(tables[0] + 1) for _ in range(2)]

    def f(x: Any) -> Any:
        for table in (*tables, *device):
            x = jnp.tanh(x + table)
        return x

    traced = jm.jit(f, mesh=jm.make_mesh((1, 1))).trace(jax.ShapeDtypeStruct((64, 64), np.float32))
    tables[0][:] = 7
    held = [c for c in traced.jaxpr.consts if isinstance(c, np.ndarray)]
    assert len({id(c) for c in held}) == 1
    assert traced.as_text().count("ttir.constant") == 2
    assert traced.lower().as_text("python").count("load_constant(") == 2
    np.testing.assert_array_equal(held[0], tables[1])
