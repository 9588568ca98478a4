"""Programs of real size, by their types alone: Llama 3 8B as text, and programs that are exported without weights."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AbstractMesh, AxisType, NamedSharding, PartitionSpec as P

import jaxmesh as jm
from jaxmesh.cli.main import main
from jaxmesh.emit.cpp.printer import include_dir
from tests.generators.llama import Llama, plain, program

MESH = AbstractMesh((2, 4), ("y", "x"), (AxisType.Auto,) * 2)
MIB = 2**20
SMALL = Llama(
    layers=1, width=64, heads=8, kv_heads=8, head=16, hidden=128, vocabulary=64, sequence=64, held_tables=True
)
"""With a causal mask that is larger than what texts spell, and rotary tables that are smaller."""


def values(sizes: Llama) -> Any:
    rng = np.random.default_rng(0)

    def draw(kind: Any) -> Any:
        if kind.dtype == np.int32:
            return rng.integers(0, sizes.vocabulary, kind.shape, np.int32)
        return (rng.standard_normal(kind.shape) * 0.2).astype(kind.dtype)

    return jax.tree.map(draw, sizes.arguments())


# --- Llama 3 8B ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def llama() -> jm.Traced:
    return program(Llama(), MESH).trace(*Llama().arguments())


def test_llama_8b_is_32_layers_of_eight_billion_weights() -> None:
    weights, _ = Llama().arguments()
    assert len(weights["layers"]) == 32
    assert sum(w.size for w in jax.tree.leaves(weights)) == 8_030_261_248


@pytest.mark.slow(but_one_in=4)
@pytest.mark.parametrize("name", ["ttir", "ttnn", "python", "cpp"])
def test_texts_of_llama_8b_are_small_and_compute_its_tables(llama: jm.Traced, name: str) -> None:
    text = (llama if name == "ttir" else llama.lower()).as_text(name)
    assert len(text) < 4 * MIB
    assert max(map(len, text.splitlines())) < 64 * 1024
    # The positions and the mask of each layer, from nothing but their lengths.
    assert text.count("arange") >= 32
    assert ".constant" not in text
    assert "tensors/constant" not in text


@pytest.mark.slow
def test_llama_8b_by_hand_is_the_same_program(llama: jm.Traced) -> None:
    by_hand = program(Llama(), MESH, "mesh_shard").trace(*Llama().arguments())
    for one, other in ((by_hand, llama), (by_hand.lower(), llama.lower())):
        assert one.as_text().count("\n") == other.as_text().count("\n")


@pytest.mark.slow
def test_llama_8b_is_explained_and_drawn(llama: jm.Traced) -> None:
    lowered = llama.lower()
    moved = {t.kind: t for t in lowered.explain().totals()}
    # The sums after attention and after the MLP, over both axes; the embedding is gathered.
    assert {"all_reduce", "all_gather", "distribute"} <= set(moved)
    assert "all_reduce" in str(lowered.explain())
    for stage in (llama, lowered):
        assert "embedding" in str(jm.visualize(stage))
        assert "embedding" in stage._repr_html_()


def test_llama_8b_is_exported_without_weights(llama: jm.Traced, tmp_path: Path) -> None:
    files = llama.lower().export(tmp_path / "a", *Llama().arguments())
    assert {f.name for f in files} == {"main.py", "main.cpp", "utils.py", "locations.json", "ttir.mlir", "ttnn.mlir"}
    assert sum(f.stat().st_size for f in files) < 8 * MIB


@pytest.mark.slow
def test_tables_that_every_layer_holds_are_in_a_text_once() -> None:
    sizes = Llama(sequence=256, held_tables=True)
    traced = program(sizes, MESH).trace(*sizes.arguments())
    distinct = 3
    held = [c for c in traced.jaxpr.consts if np.size(c) > 1]
    assert len(held) == distinct * sizes.layers
    assert len({id(c) for c in held}) == distinct
    table = 256 * 64 * 4
    bytes_of_tables = 2 * table + 256 * 256
    for stage in (traced, traced.lower()):
        text = stage.as_text()
        assert text.count("= dense_resource<") == distinct
        assert 2 * bytes_of_tables < len(text) < 2 * bytes_of_tables + 2 * MIB
    for name in ("python", "cpp"):
        text = traced.lower().as_text(name)
        assert text.count("tensors/constant") == distinct
        assert len(text) < 2 * MIB


# --- texts with resources are read back, and run ---


@pytest.mark.slow
def test_a_program_with_large_constants_is_the_same_in_every_form(tmp_path: Path) -> None:
    mesh, args = jm.make_mesh((2, 4)), values(SMALL)
    traced = program(SMALL, mesh).trace(*args)
    want = np.asarray(traced.lower().compile()(*args), np.float32)
    np.testing.assert_allclose(want, np.asarray(jax.jit(plain(SMALL))(*args), np.float32), atol=0.05)
    for stage in (traced, traced.lower()):
        text = stage.as_text()
        assert text.count("= dense_resource<") == 1
        again = jm.from_mlir(text, mesh)
        assert (again if stage is traced else again.lower()).as_text() == text
        got = again.lower().compile()(*jax.tree.leaves(args))
        np.testing.assert_allclose(np.asarray(got, np.float32), want, atol=0.05)
    files = traced.lower().export(tmp_path / "a", *args)
    assert [f.name for f in files if f.name.startswith("constant")] == ["constant0.npy"]
    assert main(["run", str(tmp_path / "a"), "--check"]) == 0
    # The files of the folder are read, too.
    assert main(["run", str(tmp_path / "a" / "ttir.mlir"), "--make-inputs", "zeros", "--check"]) == 0


def masked(x: Any) -> Any:
    table = np.arange(64 * 64, dtype=np.float32).reshape(64, 64)
    return jm.shard_to_full(jm.full_to_shard(x, P("y")) @ jm.full_to_shard(table, P()), P("y"))


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="g++ is not installed")
def test_cpp_loads_constants_and_makes_inputs(tmp_path: Path) -> None:
    mesh, x = jm.make_mesh((2, 4)), np.eye(64, dtype=np.float32)
    jm.codegen_cpp(masked, x, mesh=mesh, export_path=tmp_path / "a")
    assert (tmp_path / "a" / "tensors" / "constant0.npy").is_file()
    folder = tmp_path / "a"
    subprocess.run(["g++", "-std=c++20", "-I", include_dir(), folder / "main.cpp", "-o", folder / "main"], check=True)

    def run(*options: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([folder / "main", *options], cwd=folder, capture_output=True, text=True, check=False)

    assert "ok" in run("--check").stdout
    for how in ("zeros", "random"):
        assert run("--make-inputs", how).returncode == 0
        both = run("--make-inputs", how, "--check")
        assert (both.returncode, "nothing to compare" in both.stderr) == (2, True)
    assert run("--make-inputs", "ones").returncode == 2
    (folder / "tensors" / "arg0.npy").unlink()
    assert run().returncode == 2
    assert run("--make-inputs", "zeros").returncode == 0
    (folder / "tensors" / "constant0.npy").unlink()
    assert run("--make-inputs", "zeros").returncode == 2


# --- programs without weights ---

KINDS = {
    name: jax.ShapeDtypeStruct((8, 16), dtype)
    for name, dtype in {
        "a": np.float32, "b": jnp.bfloat16, "c": np.int32, "d": np.bool_, "e": np.uint8, "f": np.uint32,
    }.items()
}  # fmt: skip


def every_type(**x: Any) -> Any:
    spec = P("y", "x")
    return jax.tree.map(lambda v: jm.shard_to_full(jm.full_to_shard(v, spec) + 1, spec), {k: x[k] for k in "abcef"}), x[
        "d"
    ]


@pytest.mark.parametrize("how", [None, "zeros", "random"])
def test_inputs_are_made_by_the_program(how: str | None, tmp_path: Path, capfd: Any) -> None:
    lowered = jm.jit(every_type, mesh=MESH).lower(**KINDS)
    options = {} if how is None else {"make_inputs": how}
    files = lowered.export(tmp_path / "a", languages=("python",), **options, **KINDS)
    assert not [f for f in files if f.parent.name == "tensors"]
    folder = str(tmp_path / "a")
    for asked in (
        [],
        ["--make-inputs", "zeros"],
        ["--make-inputs", "random"],
        ["--make-inputs", "random", "--seed", "3"],
    ):
        assert main(["run", folder, *asked]) == 0, asked
    assert "result 0: float32[8, 16]" in capfd.readouterr().out
    assert main(["run", folder, "--check"]) == 2
    assert "inputs are made" in capfd.readouterr().err


def test_a_folder_with_tensors_can_make_its_inputs(tmp_path: Path) -> None:
    mesh = jm.make_mesh((2, 4))
    jm.codegen_py(masked, np.ones((64, 64), np.float32), mesh=mesh, export_path=tmp_path / "a")
    (tmp_path / "a" / "tensors" / "arg0.npy").unlink()
    folder = str(tmp_path / "a")
    assert main(["run", folder]) == 2
    assert main(["run", folder, "--make-inputs", "zeros"]) == 0
    # Constants are part of the program.
    (tmp_path / "a" / "tensors" / "constant0.npy").unlink()
    assert main(["run", folder, "--make-inputs", "zeros"]) == 2


def test_made_inputs_suit_their_types(tmp_path: Path) -> None:
    jm.jit(every_type, mesh=MESH).lower(**KINDS).export(tmp_path / "a", languages=("python",), **KINDS)
    show = (
        "import sys; sys.path.insert(0, '.'); sys.argv = ['main.py', '--make-inputs', 'random', '--seed', '5']\n"
        "from jaxmesh import ttnn; sys.modules['ttnn'] = ttnn; ttnn.beyond.enable()\n"
        "import main, utils, numpy as np; utils.arguments()\n"
        "for x in main.load_inputs_for_every_type():\n"
        "  a = np.asarray(x); print(a.dtype, float(a.min()), float(a.max()), len(np.unique(a)))\n"
    )
    done = subprocess.run([sys.executable, "-c", show], cwd=tmp_path / "a", capture_output=True, text=True, check=True)
    rows = [line.split() for line in done.stdout.splitlines()]
    assert [r[0] for r in rows] == ["float32", "bfloat16", "int32", "bool", "uint8", "uint32"]
    for kind, low, high, count in rows:
        floating = "float" in kind
        least, most = (-6, 6) if floating else (0, 1) if kind == "bool" else (0, 9)
        assert least <= float(low) < float(high) <= most
        assert int(count) > (60 if floating else most)


def test_shardings_of_types_are_of_the_program(tmp_path: Path) -> None:
    kind = jax.ShapeDtypeStruct((8, 16), np.float32, sharding=NamedSharding(MESH, P("y", "x")))
    f = jm.jit(lambda x: jnp.tanh(x).sum(0), mesh=MESH, in_shardings=(P("y", "x"),), out_shardings=P("x"))
    files = f.lower(kind).export(tmp_path / "a", kind, languages=("python",))
    assert "load_sharded_tensor" in next(f for f in files if f.name == "main.py").read_text()
    assert main(["run", str(tmp_path / "a"), "--make-inputs", "random"]) == 0


X, KIND = np.ones((64, 64), np.float32), jax.ShapeDtypeStruct((64, 64), np.float32)


@pytest.mark.parametrize(
    ("args", "options", "words"),
    [
        ((KIND, X), {}, r"argument 0 of an export is .*holds no numbers, and argument 1 is an array"),
        ((X, X), {"make_inputs": "zeros"}, r"given argument 0, and make_inputs='zeros'"),
        ((KIND, KIND), {"make_inputs": "ones"}, r"'zeros' or 'random', got 'ones'"),
        ((KIND, jax.ShapeDtypeStruct((64, 32), np.float32)), {}, r"was traced as float32\[64,\s?64\], called with"),
        ((KIND,), {}, r"traced for arguments of the tree"),
        ((KIND, KIND), {"constant_limit": -1}, r"an integer from 0 on as constant_limit, got -1"),
    ],
)
def test_wrong_exports_of_types(args: Any, options: Any, words: str, tmp_path: Path) -> None:
    lowered = jm.jit(lambda x, y: masked(x) + y, mesh=MESH).lower(KIND, KIND)
    with pytest.raises(jm.ArgumentTypeError, match=words):
        lowered.export(tmp_path / "a", *args, **options)
    assert not (tmp_path / "a").exists()


def test_types_are_enough_for_codegen_and_the_command_line(tmp_path: Path, capfd: Any) -> None:
    jm.codegen_py(masked, KIND, mesh=MESH, export_path=tmp_path / "a", make_inputs="random")
    assert 'utils.arguments(make_inputs="random")' in (tmp_path / "a" / "main.py").read_text()
    text = str(tmp_path / "a" / "ttir.mlir")
    command = ["translate", text, "--to", "python", "--out", str(tmp_path / "b"), "--make-inputs", "zeros"]
    assert main([*command, "--constant-limit", "9999"]) == 0
    assert "load_constant" not in (tmp_path / "b" / "main.py").read_text()
    assert main(["run", str(tmp_path / "b")]) == 0
    for how in ("zeros", "random"):
        assert main(["run", text, "--make-inputs", how, "--check"]) == 0
    assert main(["explain", text]) == 0
    capfd.readouterr()
    assert main(["translate", text, "--to", "python", "--make-inputs", "zeros"]) == 2
    assert "--make-inputs are of the program that --out writes" in capfd.readouterr().err
