"""What is printed runs on Tenstorrent's own `ttnn`, and every tensor has the form that the program says."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import jaxmesh as jm
from jaxmesh.errors import UnsupportedError
from jaxmesh.passes.verify_program import verify_program
from tests.generators.flat_programs import run_flat
from tests.generators.real_ttnn.functions import AXES, DTYPES, SIZES, argument, lowered_functions
from tests.generators.real_ttnn.process import needs_ttnn
from tests.generators.real_ttnn.run import program_of, run
from tests.generators.suite.all_programs import PROGRAMS, Entry

# JAX converts infinities of 16-bit floats to other types where it sets the start of a maximum.
pytestmark = pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")

TOLERANCES = {4: 1e-5, 2: 2e-2}


def fits(entry: Entry) -> bool:
    """Returns True if a T3000 has the mesh."""
    return len(entry.sizes) <= 2 and math.prod(entry.sizes) <= 8


@pytest.mark.parametrize("entry", PROGRAMS, ids=lambda e: e.name)
def test_the_suite_is_in_forms_that_the_library_takes(entry: Entry) -> None:
    lowered = entry.lowered
    if len(entry.sizes) > 2:
        with pytest.raises(UnsupportedError, match=r"open_mesh_device of the real ttnn opens meshes of two dims, got"):
            lowered.as_text()
        return
    verify_program(lowered._program(True, None, True), strict=True)


@pytest.mark.slow(but_one_in=6)
@pytest.mark.parametrize("dtype", DTYPES)
def test_functions_are_in_forms_that_the_library_takes_and_keep_their_values(dtype: str) -> None:
    names, lowered = lowered_functions(dtype)
    flat = lowered._program(True, None, True)
    verify_program(flat, strict=True)
    wanted = lowered.compile()(argument(dtype))
    got = iter(run_flat(flat, jm.make_mesh(SIZES, AXES), argument(dtype)))
    for name, results in zip(names, wanted, strict=True):
        for want in jax.tree.leaves(results):
            assert_alike(np.asarray(next(got)), np.asarray(want), name)
    assert next(got, None) is None


@pytest.mark.parametrize("outside", ["argument", "result", "sum"])
def test_integers_of_16_bits_stay_inside(outside: str) -> None:
    """The library lacks them; inside of a program they are int32, but a sum over devices would not wrap."""
    mesh, x = jm.make_mesh(SIZES, AXES), argument("int16" if outside == "argument" else "int32")

    def split(x: Any) -> Any:
        local = jm.full_to_shard(x, P("y", "x")).astype(jnp.int16) * jnp.int16(2**13)
        local = jax.lax.psum(local, "x") if outside == "sum" else local
        return jm.shard_to_full(local if outside == "result" else local.astype(jnp.int32), P(AXES))

    lowered = jm.jit(split, mesh=mesh).lower(x)
    with pytest.raises(UnsupportedError, match="has no element type for int16"):
        lowered.as_text()
    lowered.as_text(strict=False)


def test_integers_of_16_bits_wrap() -> None:
    mesh, x = jm.make_mesh(SIZES, AXES), argument("int32")

    def split(x: Any) -> Any:
        local = jm.full_to_shard(x, P("y", "x")).astype(jnp.int16) * jnp.int16(2**13) + jnp.int16(7)
        return jm.shard_to_full((local >> 3).astype(jnp.int32), P("y", "x"))

    lowered = jm.jit(split, mesh=mesh).lower(x)
    flat = lowered._program(True, None, True)
    assert all(t.dtype != np.int16 for t in flat.types)
    (got,) = run_flat(flat, mesh, x)
    want = (np.asarray(x).astype(np.int16) * np.int16(2**13) + np.int16(7)) >> 3
    np.testing.assert_array_equal(np.asarray(got), want)


LONG = {
    "roll": lambda x: jnp.roll(x, 3), "ravel": lambda x: jnp.ravel(x) + 1, "diff": lambda x: jnp.diff(x.ravel()),
    "rows again": lambda x: x.ravel().reshape(-1, 100), "taken": lambda x: x.ravel()[::2], "diagflat": jnp.diagflat,
}  # fmt: skip


def test_long_rows_are_in_forms_that_fit_or_are_named_errors() -> None:
    mesh, x = jm.make_mesh(SIZES, AXES), jnp.arange(160_000, dtype=jnp.float32).reshape(400, 400)
    for name, function in LONG.items():
        arg = x[:1] if name == "diagflat" else x
        lowered = jm.jit(function, mesh=mesh).lower(arg)
        flat = lowered._program(True, None, True)
        verify_program(flat, strict=True)
        (got,) = run_flat(flat, mesh, arg)
        np.testing.assert_array_equal(np.asarray(got), np.asarray(function(arg)))
    for function in (lambda x: jnp.tile(x.ravel(), 2), lambda x: jnp.pad(x.ravel(), 3), lambda x: x.ravel()[::2]):
        with pytest.raises(UnsupportedError, match="does not fit into L1 there; reshape it to several rows"):
            jm.jit(function, mesh=mesh).lower(jnp.ones((600, 600))).as_text()


@needs_ttnn
def test_long_rows_run_on_the_real_library(tmp_path: Path) -> None:
    mesh, x = jm.make_mesh(SIZES, AXES), jnp.ones((400, 400))
    found = run([program_of(jm.jit(f, mesh=mesh).lower(x[:1])) for f in (LONG["roll"], LONG["diagflat"])], tmp_path)
    found += run([program_of(jm.jit(LONG[n], mesh=mesh).lower(x)) for n in LONG if n != "diagflat"], tmp_path)
    assert not any(found), found


@needs_ttnn
def test_constants_in_files_run_on_the_real_library(tmp_path: Path) -> None:
    mesh, x = jm.make_mesh(SIZES, AXES), jnp.arange(33)
    text = program_of(jm.jit(jnp.argsort, mesh=mesh, in_shardings=P()).lower(x))
    assert "load_constant(" in text["text"]
    assert run([text], tmp_path) == [""]


def assert_alike(got: np.ndarray, want: np.ndarray, name: str) -> None:
    assert (got.dtype, got.shape) == (want.dtype, want.shape), name
    if want.dtype.kind in "iub":
        np.testing.assert_array_equal(got, want, name)
        return
    a, b = got.astype(np.float64), want.astype(np.float64)
    largest = np.abs(b[np.isfinite(b)]).max(initial=1)
    np.testing.assert_allclose(a, b, rtol=0, atol=TOLERANCES[want.dtype.itemsize] * largest, err_msg=name)


@pytest.mark.slow
@needs_ttnn
def test_the_suite_runs_on_the_real_library(tmp_path: Path) -> None:
    entries = [e for e in PROGRAMS if fits(e)]
    texts = [program_of(e.lowered) for e in entries]
    refused = {e.name: why for e, why in zip(entries, run(texts, tmp_path), strict=True) if why}
    assert not refused


@pytest.mark.slow
@needs_ttnn
@pytest.mark.parametrize("dtype", DTYPES)
def test_functions_run_on_the_real_library(dtype: str, tmp_path: Path) -> None:
    names, lowered = lowered_functions(dtype)
    assert len(names) > 100
    assert run([program_of(lowered)], tmp_path) == [""]
