"""`codegen_py`, `codegen_cpp`, `Lowered.export`, `jaxmesh translate`: right and wrong use."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import PartitionSpec as P

import jaxmesh as jm
from jaxmesh.cli.main import main
from jaxmesh.cli.run_folder import run_folder
from jaxmesh.emit.cpp.printer import include_dir

GXX = shutil.which("g++")
MESH = jm.make_mesh((2, 4))
X = np.arange(32, dtype=np.float32).reshape(4, 8)
MLIR = """
module attributes {ttcore.meshes = #ttcore.meshes<[<"mesh" = 2x4>]>} {
  func.func @main(%x: tensor<4x8xf32>) -> tensor<4x8xf32> {
    %0 = "ttir.mesh_shard"(%x) <{shard_dims = array<i64: 0, 1>,
      shard_direction = #ttcore.shard_direction<full_to_shard>,
      shard_shape = array<i64: 2, 4>, shard_type = #ttcore.shard_type<devices>}>
      : (tensor<4x8xf32>) -> tensor<2x2xf32>
    %1 = "ttir.neg"(%0) : (tensor<2x2xf32>) -> tensor<2x2xf32>
    %2 = "ttir.mesh_shard"(%1) <{shard_dims = array<i64: 0, 1>,
      shard_direction = #ttcore.shard_direction<shard_to_full>,
      shard_shape = array<i64: 2, 4>, shard_type = #ttcore.shard_type<devices>}> : (tensor<2x2xf32>) -> tensor<4x8xf32>
    return %2 : tensor<4x8xf32>
  }
}
"""


def negated(x: Any) -> Any:
    return jm.shard_to_full(-jm.full_to_shard(x, P("y", "x")), P("y", "x"))


def compiled_and_run(folder: Path) -> subprocess.CompletedProcess[str]:
    if GXX is None:
        pytest.skip("g++ is not installed")
    subprocess.run([GXX, "-std=c++20", "-I", include_dir(), folder / "main.cpp", "-o", folder / "main"], check=True)
    return subprocess.run([folder / "main", "--check"], cwd=folder, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: (x, 3, 0.5, True),
        lambda x: jnp.full((2,), 1.5),
        lambda x: jnp.exp(jnp.full((2, 8), 1.5)) + x[:2],
        lambda x: jm.shard_to_full(jm.full_to_shard(x, P("y")) @ jnp.full((8, 8), 1.5), P("y")),
        lambda x: jm.shard_to_full(jm.full_to_shard(x, P("y")) + lax.psum(jnp.full((2, 8), 2), "x"), P("y")),
    ],
)
def test_python_numbers_have_the_types_that_jax_gives_them(function: Callable[..., Any], tmp_path: Path) -> None:
    stage = jm.jit(function, mesh=MESH).trace(X)
    for text in (stage.as_text(), stage.lower().as_text()):
        assert "f64>" not in text
        assert "i64>" not in text.replace("array<i64>", "")
        jm.from_mlir(text, MESH)
    stage.lower().export(tmp_path / "model", X, languages=("python",))
    assert run_folder(tmp_path / "model", ["--check"]) == 0


@pytest.mark.slow
def test_a_function_named_like_one_of_the_c_library(tmp_path: Path) -> None:
    jm.codegen_cpp(jnp.tanh, X, mesh=MESH, export_path=tmp_path / "model")
    done = compiled_and_run(tmp_path / "model")
    assert done.returncode == 0, done.stderr


def test_both_languages_share_a_folder_as_long_as_the_program_is_one(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    jm.codegen_py(negated, X, mesh=MESH, export_path=folder)
    (folder / "tensors" / "argmax_notes.npy").write_text("mine")
    jm.codegen_cpp(negated, X, mesh=MESH, export_path=folder)
    assert {p.name for p in folder.iterdir()} == {
        "main.py", "utils.py", "locations.json", "main.cpp", "ttir.mlir", "ttnn.mlir", "tensors", "manifest.json",
    }  # fmt: skip
    jm.codegen_cpp(negated, X + 1, mesh=MESH, export_path=folder)
    assert not (folder / "main.py").exists()
    assert (folder / "tensors" / "argmax_notes.npy").read_text() == "mine"


def test_inputs_and_results_are_full_arrays_in_files(tmp_path: Path) -> None:
    files = jm.codegen_py(negated, X, mesh=MESH, export_path=tmp_path / "model")
    assert all(f.is_file() for f in files)
    np.testing.assert_array_equal(np.load(tmp_path / "model" / "tensors" / "arg0.npy"), X)
    np.testing.assert_array_equal(np.load(tmp_path / "model" / "tensors" / "expected0.npy"), -X)


@pytest.mark.slow
def test_a_changed_expectation_is_found(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    jm.jit(negated, mesh=MESH).lower(X).export(tmp_path / "model", X)
    wrong = -X
    wrong[1, 2] += 1
    np.save(tmp_path / "model" / "tensors" / "expected0.npy", wrong)
    assert run_folder(tmp_path / "model", ["--check"]) == 1
    assert "FAILED" in capsys.readouterr().out
    assert compiled_and_run(tmp_path / "model").returncode == 1


@pytest.mark.slow
def test_random_arguments_static_arguments_trees_and_keys(tmp_path: Path) -> None:
    def f(tree: Any, times: int, key: Any) -> Any:
        return {"out": tree["a"] * times + tree["b"], "bits": jax.random.bits(key, (4,))}

    tree = {"a": X, "b": 2.0}
    jm.codegen_py(f, tree, 3, jax.random.key(1), mesh=MESH, export_path=tmp_path / "a", static_argnums=1)
    assert run_folder(tmp_path / "a", ["--check"]) == 0
    jm.jit(f, mesh=MESH, static_argnums=1).lower(tree, 3, jax.random.key(1)).export(tmp_path / "b", seed=3)
    assert run_folder(tmp_path / "b", ["--check"]) == 0


def test_functions_that_are_made_already(tmp_path: Path) -> None:
    rows = jm.shard_map(lambda b: lax.psum(b, "x"), mesh=MESH, in_specs=P("y", "x"), out_specs=P("y"))
    jm.codegen_py(rows, X, export_path=tmp_path / "a")
    jm.codegen_py(jm.jit(negated, mesh=MESH), X, export_path=tmp_path / "b")
    assert run_folder(tmp_path / "a", ["--check"]) == run_folder(tmp_path / "b", ["--check"]) == 0
    # The mesh may be said again, or be said here first; another one or other statics are refused.
    for i, made in enumerate((rows, jm.jit(negated, mesh=MESH), jm.jit(negated))):
        jm.codegen_py(made, X, mesh=MESH, export_path=tmp_path / f"c{i}")
        assert run_folder(tmp_path / f"c{i}", ["--check"]) == 0
    for made in (rows, jm.jit(negated, mesh=MESH)):
        with pytest.raises(jm.MeshMismatchError, match="one program"):
            jm.codegen_py(made, X, mesh=jm.make_mesh((4, 2)), export_path=tmp_path / "d")
    with pytest.raises(jm.ArgumentTypeError, match="static_argnums= beside it"):
        jm.codegen_py(jm.jit(negated, mesh=MESH), X, static_argnums=0, export_path=tmp_path / "d")
    assert not (tmp_path / "d").exists()


def test_an_export_leaves_donated_arguments_to_their_owner(tmp_path: Path) -> None:
    x = jm.jit(lambda x: jm.full_to_shard(x, P("y", "x")), mesh=MESH)(X)
    jm.jit(lambda x: 2 * x, mesh=MESH, donate_argnums=0).lower(x).export(tmp_path / "a", x, languages=("python",))
    assert run_folder(tmp_path / "a", ["--check"]) == 0
    np.testing.assert_array_equal(x.shard((1, 2)), X[2:, 4:6])


def hessenberg(x: Any) -> Any:
    return lax.linalg.hessenberg(x @ x.T)[0]


@pytest.mark.parametrize(
    ("wrong", "kind", "says"),
    [
        (lambda d: jm.codegen_py(negated, X, mesh=MESH, export_path=d, speed=3), jm.ArgumentTypeError, "no option"),
        (lambda d: jm.codegen_py(negated, X, mesh=MESH, export_path=d, export_tensors=0), jm.ArgumentTypeError, "True"),
        (lambda d: jm.codegen_py(negated, X, mesh=MESH, export_path=3), jm.ArgumentTypeError, "path"),
        (lambda d: jm.codegen_py(negated, X, mesh=MESH, export_path="a\0b"), jm.ArgumentTypeError, "path"),
        (lambda d: jm.codegen_py(negated, X, mesh=MESH, export_path=d / ("a" * 300)), jm.ArgumentTypeError, "another"),
        (lambda d: jm.codegen_py(jnp.add, X, jax.ShapeDtypeStruct((4, 8), X.dtype), mesh=MESH, export_path=d),
         jm.ArgumentTypeError, "no numbers"),
        (lambda d: jm.codegen_py(negated, "x", mesh=MESH, export_path=d), jm.ArgumentTypeError, "no array"),
        (lambda d: jm.jit(negated, mesh=MESH).lower(X).export(d, X, languages=("rust",)), jm.ArgumentTypeError, "rust"),
        (lambda d: jm.jit(negated, mesh=MESH).lower(X).export(d, X[:2]), jm.ArgumentTypeError, "traced as"),
        (lambda d: jm.jit(negated, mesh=MESH.abstract_mesh).lower(X).export(d), jm.MeshError, "abstract"),
        (lambda d: jm.codegen_py(hessenberg, X, mesh=MESH, export_path=d), jm.MissingRuleError, "passes/flatten"),
        (lambda d: jm.jit(negated, mesh=MESH).lower(X).as_text("rust"), jm.ArgumentTypeError, "'cpp'"),
        (lambda d: jm.jit(negated, mesh=MESH).trace(X).as_text("ttnn"), jm.ArgumentTypeError, "'ttir'"),
    ],
)  # fmt: skip
def test_wrong_use_is_a_named_error(wrong: Callable[[Path], Any], kind: type, says: str, tmp_path: Path) -> None:
    with pytest.raises(kind, match=says) as caught:
        wrong(tmp_path / "model")
    assert isinstance(caught.value, jm.JaxmeshError)
    assert not [p for p in tmp_path.rglob("*") if p.is_file()]


def test_what_has_no_row_still_runs() -> None:
    function = jm.jit(lambda x: lax.linalg.hessenberg(x)[0], mesh=MESH)
    np.testing.assert_array_equal(function(np.eye(3, dtype=np.float32)), np.eye(3))
    for stage in (function.trace(np.eye(3, dtype=np.float32)), function.lower(np.eye(3, dtype=np.float32))):
        with pytest.raises(jm.MissingRuleError, match=r"'hessenberg' \(.*test_codegen.py:\d+.*jaxmesh/passes/flatten/"):
            stage.as_text()


def test_loops_have_a_limit() -> None:
    lowered = jm.jit(lambda x: lax.fori_loop(0, 1000, lambda i, v: jnp.sin(v), x), mesh=MESH).lower(X)
    assert lowered.as_text().count("ttnn.sin") == 1000
    assert lowered.as_text(unroll_limit=100).count("ttnn.sin") == 1
    long = jm.jit(lambda x: lax.fori_loop(0, 5000, lambda i, v: jnp.sin(v), x), mesh=MESH).lower(X)
    assert [long.as_text(unroll_limit=n).count("ttnn.sin") for n in (None, 20_000)] == [1, 5000]


def test_the_limit_counts_all_loops_and_keeps_the_larger_ones() -> None:
    def turned(times: int, function: Any) -> Any:
        return lambda x: lax.fori_loop(0, times, lambda i, v: function(v), x)

    def ops(program: Any, limit: int | None = None) -> list[int]:
        text = jm.jit(program, mesh=MESH).lower(X).as_text(unroll_limit=limit)
        return [text.count(f"ttnn.{op}") for op in ("sin", "cos", "tanh")]

    sine, cosine, both = turned(450, jnp.sin), turned(450, jnp.cos), turned(3, jnp.tanh)
    # Each has 900 operations, with its counter; two fit, three do not, and those of one size are treated alike.
    assert ops(lambda x: both(cosine(sine(x)))) == [450, 450, 3]
    assert ops(lambda x: both(sine(cosine(sine(x))))) == [2, 1, 3]
    assert ops(lambda x: both(jax.jit(sine)(turned(400, jnp.cos)(jax.jit(sine)(x)))), 1000) == [2, 400, 3]
    assert ops(turned(5000, turned(20, jnp.sin))) == [20, 0, 0]
    assert ops(turned(5000, lambda x: turned(40, jnp.cos)(turned(40, jnp.sin)(x)))) == [1, 1, 0]


def test_a_program_read_from_ttnn_has_no_ttir() -> None:
    again = jm.from_mlir(jm.jit(negated, mesh=MESH).lower(X).as_text(), MESH)
    with pytest.raises(jm.InexpressibleError, match="no TTIR text"):
        again.as_text()
    np.testing.assert_array_equal(again.lower().compile()(X), -X)


# --- the command line ------------------------------------------------------------------------------------------------


def test_translate_prints_and_writes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "neg.mlir"
    file.write_text(MLIR)
    for language, says in {"ttir": "ttir.neg", "ttnn": "ttnn.neg", "python": "ttnn.neg(", "cpp": "ttnn::neg("}.items():
        assert main(["translate", str(file), "--to", language]) == 0
        assert says in capsys.readouterr().out
    folder = tmp_path / "model"
    assert main(["translate", str(file), "--to", "python", "--out", str(folder), "--seed", "4"]) == 0
    assert main(["run", str(folder), "--check"]) == 0
    assert "ok" in capsys.readouterr().out
    assert main(["translate", str(file), "--to", "ttnn", "--out", str(tmp_path / "text")]) == 0
    assert "ttnn.neg" in (tmp_path / "text" / "ttnn.mlir").read_text()
    assert main(["include-dir"]) == 0
    assert (Path(capsys.readouterr().out.split()[-1]) / "ttnn-precompiled.hpp").is_file()


@pytest.mark.parametrize(
    "arguments",
    [
        ["translate", "missing.mlir", "--to", "ttnn"],
        ["translate", "neg.mlir", "--to", "python", "--seed", "3"],
        ["translate", "neg.mlir", "--to", "python", "--out", "neg.mlir"],
        ["translate", "neg.mlir", "--to", "cpp", "--out", "."],
        ["run", "empty", "--check"],
        ["run", "empty", "--seed", "3"],
    ],
)
def test_wrong_commands_say_one_line(
    arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "neg.mlir").write_text(MLIR)
    (tmp_path / "empty").mkdir()
    assert main(arguments) == 2
    said = capsys.readouterr().err
    assert said.startswith("jaxmesh: error: ")
    assert said.count("\n") == 1


def test_a_line_is_named_for_what_a_library_made() -> None:
    lowered = jm.jit(lambda x: jnp.linalg.svd(x)[1], mesh=MESH).lower(X)
    with pytest.raises(jm.InexpressibleError, match=r"'svd' \(.*test_codegen.py:\d+"):
        lowered.as_text()


@pytest.mark.filterwarnings("ignore::jaxmesh.errors.DonationWarning")
@pytest.mark.parametrize(("donated", "columns"), [((), "x"), ((1,), "x"), ((), ("x", "y")), ((1,), ("x", "y"))])
def test_arguments_with_a_sharding_stay_on_the_devices(tmp_path: Path, donated: tuple[int, ...], columns: Any) -> None:
    """They are loaded as shards, no call distributes or frees them, and the results are the same twice."""
    mesh = jm.make_mesh((2, 4), ("y", "x"))
    shardings = P("y"), P(None, columns), P()
    made = jm.jit(lambda x, w, b: x @ w + b, mesh=mesh, in_shardings=shardings, donate_argnums=donated)
    rng = np.random.default_rng(5)
    x, w, b = (rng.standard_normal(shape).astype(np.float32) for shape in ((64, 32), (32, 128), (128,)))
    lowered = made.lower(x, w, b)
    lowered.export(tmp_path / "model", x, w, b, languages=("python",))
    for i, whole, spec in ((0, x, shardings[0]), (1, w, shardings[1]), (2, b, shardings[2])):
        stored = np.load(tmp_path / "model" / "tensors" / f"arg{i}.npy")
        placed = jax.device_put(whole, jax.NamedSharding(mesh, spec)).addressable_shards
        shards = {s.device: np.asarray(s.data) for s in placed}
        np.testing.assert_array_equal(stored, [shards[d] for d in mesh.devices.flat])
    main = (tmp_path / "model" / "main.py").read_text()
    function = main.partition("def load_inputs")[0]
    assert "distribute_tensor" not in main
    assert main.count("utils.load_sharded_tensor(") == 3
    for i in range(3):
        assert (f"ttnn.deallocate(arg[{i}]" in function or f"ttnn.deallocate(arg_{i}," in function) == (i in donated)
    assert run_folder(tmp_path / "model", ["--check"]) == 0


@pytest.mark.filterwarnings("ignore::jaxmesh.errors.DonationWarning")
@pytest.mark.parametrize("donated", [(), (1,)])
def test_no_text_frees_an_argument_on_the_devices(tmp_path: Path, donated: tuple[int, ...]) -> None:
    """Texts and the exported program are one program, which frees what is donated alone; so is a text that is read."""
    mesh = jm.make_mesh((2, 4), ("y", "x"))
    x, w = (jax.device_put(np.ones((64, 64), np.float32), jax.NamedSharding(mesh, spec)) for spec in (P("y"), P("x")))
    split = jm.jit(lambda x: jm.full_to_shard(x, P("y")), mesh=mesh)
    for args in ((x, w), (split(np.asarray(x)), split(np.asarray(w)))):
        lowered = jm.jit(lambda x, w: jnp.tanh(x) @ w[:32].T, mesh=mesh, donate_argnums=donated).lower(*args)
        lowered.export(tmp_path / "model", *args)
        assert (tmp_path / "model" / "ttnn.mlir").read_text() == lowered.as_text()
        for i in range(2):
            for language, read in (
                ("ttnn", rf"(%arg{i})\b"),
                ("python", rf"(arg_{i}) = "),
                ("cpp", rf"(\w+) = v1\[{i}\]"),
            ):
                text = lowered.as_text(language)
                name = re.search(read, text)
                freed = name is not None and re.search(rf'deallocate"?\({name[1]}\b', text) is not None
                assert freed == (i in donated), (language, i)
        again = jm.from_mlir(lowered.as_text(), mesh).lower()
        assert (again.as_text() == lowered.as_text()) == (not donated)
        assert '"ttnn.deallocate"(%arg' not in again.as_text()


def test_an_argument_that_nothing_reads_is_where_the_caller_has_it(tmp_path: Path) -> None:
    """On the devices it takes memory; of a full one nothing is sent, as in JAX, whatever its sharding would be."""
    mesh = jm.make_mesh((2, 4), ("y", "x"))
    x, unread = np.ones((64, 32), np.float32), np.ones((100, 20), np.float32)
    rows, dims = jax.NamedSharding(mesh, P("y")), jax.NamedSharding(mesh, P("x"))
    placed = jax.device_put(x, rows), jax.device_put(unread, dims)
    made = jm.jit(lambda x, unread: x + 1, mesh=mesh)
    here = jm.jit(lambda x, unread: x + 1, mesh=mesh, in_shardings=(rows, dims))
    for lowered, args, held in ((made.lower(*placed), placed, 32 * 32 * 4), (here.lower(x, unread), (x, unread), 0)):
        memory = lowered.estimate("t3000").memory
        assert memory.arguments == 32 * 32 * 4 + held
        assert [(t.shape, t.axes) for t in memory.tensors if t.name == "unread"] == [((25, 20), ("x",))] * bool(held)
        lowered.export(tmp_path / "model", *args)
        loaded = (tmp_path / "model" / "main.py").read_text()
        assert loaded.count("utils.load_sharded_tensor(") == 1 + bool(held)
