"""`jaxmesh opt` and `jaxmesh run`."""

from __future__ import annotations

import io
import subprocess
import sys
import tracemalloc
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxmesh as jm
from jaxmesh.analysis.record import metrics
from jaxmesh.cli import main
from jaxmesh.runtime import npz
from tests.generators.mlir_texts import FILES, join, program, split
from tests.generators.oracles import same_bits

MATMUL, PRESHARDED, SEVERAL = (str(FILES / f"{n}.mlir") for n in ("matmul_2x4", "presharded", "several"))


def fails(arguments: list[str], words: str, capsys: Any) -> None:
    assert main.main(arguments) == main.USAGE
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("jaxmesh: error: ")
    assert err.count("\n") == 1
    assert words in err


def bfloat_program() -> str:
    kind = "tensor<8x8xbf16>"
    return program(
        "2x4",
        f"%x: {kind}",
        kind,
        split("%0", "%x", [0, 1], [2, 4], f"{kind} -> tensor<4x2xbf16>"),
        '%1 = "ttir.neg"(%0) : (tensor<4x2xbf16>) -> tensor<4x2xbf16>',
        join("%2", "%1", [0, 1], [2, 4], f"tensor<4x2xbf16> -> {kind}"),
        f"return %2 : {kind}",
    )


# --- StableHLO -------------------------------------------------------------------------------------------------------

SDY, GSPMD = (str(FILES / f"stablehlo_{n}.mlir") for n in ("sdy", "gspmd"))


@pytest.mark.parametrize("file", [SDY, GSPMD])
def test_opt_partitions_stablehlo(file: str, capsys: Any) -> None:
    printed: list[str] = []
    for options in ([], ["--stablehlo-to-ttir"], ["--mesh", "2x4"]):
        assert main.main(["opt", file, *options]) == 0
        out, err = capsys.readouterr()
        assert err == ""
        printed.append(out)
    assert printed == [printed[0]] * 3
    assert "ttir.mesh_shard" in printed[0]
    assert main.main(["opt", file, "--stablehlo-to-ttir", "--ttir-to-ttnn"]) == 0
    out = capsys.readouterr().out
    assert "ttnn.distribute_tensor" in out
    assert "ttir." not in out


def test_opt_takes_no_other_file_for_stablehlo(capsys: Any) -> None:
    fails(["opt", MATMUL, "--stablehlo-to-ttir"], "does not contain an op of StableHLO", capsys)
    fails(["opt", SDY, "--mesh", "4x2"], "sdy.mesh is 2x4, but the given mesh is 4x2", capsys)


def test_stablehlo_runs_and_is_explained_recorded_and_translated(tmp_path: Path, capsys: Any) -> None:
    rng = np.random.default_rng(3)
    x, w = rng.standard_normal((8, 16), np.float32), rng.standard_normal((16, 32), np.float32)
    given, made = tmp_path / "in.npz", tmp_path / "out.npz"
    np.savez(given, allow_pickle=False, arg0=x, arg1=w)
    assert main.main(["run", SDY, "--inputs", str(given), "--out", str(made), "--check"]) == 0
    np.testing.assert_allclose(np.load(made)["result0"], (x @ w) ** 2, rtol=1e-4, atol=1e-4)
    np.savez(given, allow_pickle=False, arg0=x)
    assert main.main(["run", GSPMD, "--inputs", str(given), "--out", str(made)]) == 0
    np.testing.assert_allclose(np.load(made)["result0"], x.reshape(8, 4, 4).sum(1), rtol=1e-4, atol=1e-4)
    capsys.readouterr()
    assert main.main(["explain", GSPMD]) == 0
    assert "line 6: stablehlo.all_reduce" in capsys.readouterr().out
    assert main.main(["record", GSPMD, "--out", str(tmp_path / "record.npz")]) == 0
    assert main.main(["translate", GSPMD, "--to", "python"]) == 0
    assert "ttnn.all_reduce" in capsys.readouterr().out


# --- opt -------------------------------------------------------------------------------------------------------------


def test_opt_prints_the_program(capsys: Any) -> None:
    assert main.main(["opt", MATMUL]) == 0
    out, err = capsys.readouterr()
    assert "mesh_shard" in out
    assert err == ""


def test_opt_lowers(capsys: Any) -> None:
    assert main.main(["opt", MATMUL, "--ttir-to-ttnn"]) == 0
    out = capsys.readouterr().out
    assert "mesh_shard" not in out
    assert "distribute_tensor" in out
    assert "aggregate_tensor" in out


def test_opt_writes_a_file(tmp_path: Path, capsys: Any) -> None:
    printed: list[str] = []
    for options in ([], ["-o", "-"]):
        assert main.main(["opt", MATMUL, "--ttir-to-ttnn", *options]) == 0
        printed.append(capsys.readouterr().out.removesuffix("\n"))
    out = tmp_path / "out.mlir"
    assert main.main(["opt", MATMUL, "--ttir-to-ttnn", "-o", str(out)]) == 0
    assert capsys.readouterr().out == ""
    assert {*printed} == {out.read_text().removesuffix("\n")}
    assert main.main(["opt", MATMUL, "-o", "/no/such/folder/file.mlir"]) == main.USAGE
    assert "--out takes a file in a folder that exists" in capsys.readouterr().err


def test_opt_takes_every_public_function_or_one(capsys: Any) -> None:
    assert main.main(["opt", SEVERAL]) == 0
    out = capsys.readouterr().out
    assert [line for line in out.splitlines() if line.startswith("//")] == [
        "// @first (line 3)",
        "// -----",
        "// @second (line 16)",
    ]
    assert main.main(["opt", SEVERAL, "--func", "first"]) == 0
    assert "//" not in capsys.readouterr().out


def test_opt_reports_one_line(tmp_path: Path, capsys: Any) -> None:
    bad = tmp_path / "bad.mlir"
    bad.write_text(Path(MATMUL).read_text().replace("ttir.matmul", "ttir.matmull"))
    fails(["opt", str(bad)], "line 12: ttir.matmull has no definition", capsys)
    fails(["opt", str(tmp_path / "none.mlir")], "cannot read", capsys)
    fails(["opt", MATMUL, "--mesh", "4x2"], "2x4, but the given mesh is 4x2", capsys)
    fails(["opt", MATMUL, "--mesh", "4by2"], "--mesh takes", capsys)
    fails(["opt", MATMUL, "--func", "other"], "no function @other", capsys)


def test_opt_warns_or_is_strict(tmp_path: Path, capsys: Any) -> None:
    file = tmp_path / "x.mlir"
    file.write_text(
        Path(MATMUL).read_text().replace("shard_shape = array<i64: 2, 4>", "shard_shape = array<i64: 1, 1>")
    )
    assert main.main(["opt", str(file)]) == 0
    out, err = capsys.readouterr()
    assert err.startswith("jaxmesh: warning: line 9: ttir.mesh_shard: shard_shape [1, 1]")
    assert err.count("\n") == 1
    assert "shard_shape=(2, 4)" in out or "2, 4" in out
    fails(["opt", str(file), "--strict"], "line 9: ttir.mesh_shard: shard_shape [1, 1]", capsys)


def test_standard_input(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    class Stdin:
        buffer = io.BytesIO(Path(MATMUL).read_bytes())

    monkeypatch.setattr(sys, "stdin", Stdin)
    assert main.main(["run", "-"]) == 0
    assert "result0: float32[16, 12]" in capsys.readouterr().out


def test_help_has_examples(capsys: Any) -> None:
    for command in ("opt", "run"):
        with pytest.raises(SystemExit) as left:
            main.main([command, "--help"])
        assert left.value.code == 0
        assert f"jaxmesh {command} model.mlir" in capsys.readouterr().out


# --- run -------------------------------------------------------------------------------------------------------------


def test_run_takes_inputs_and_writes_results(tmp_path: Path, capsys: Any) -> None:
    rng = np.random.default_rng(1)
    x, w = rng.standard_normal((16, 8), np.float32), rng.standard_normal((8, 12), np.float32)
    given, made = tmp_path / "in.npz", tmp_path / "out.npz"
    for names in ({"arg0": x, "arg1": w}, {"0": x, "1": w}, {"arr_0": x, "arr_1": w}):
        np.savez(given, allow_pickle=False, **names)
        assert main.main(["run", MATMUL, "--inputs", str(given), "--out", str(made), "--check"]) == 0
        np.testing.assert_allclose(np.load(made)["result0"], x @ w, rtol=1e-4, atol=1e-4)
    out = capsys.readouterr().out
    assert "result0: float32[16, 12] min=" in out
    assert "check result0: largest difference" in out


def test_run_with_random_inputs_is_the_same_every_time(capsys: Any) -> None:
    seen = []
    for seed in ("0", "0", "1"):
        assert main.main(["run", MATMUL, "--seed", seed]) == 0
        seen.append(capsys.readouterr().out)
    assert seen[0] == seen[1] != seen[2]
    assert main.main(["run", MATMUL]) == 0
    assert capsys.readouterr().out == seen[0]


def test_arrays_of_one_value_are_equal_on_all_devices(tmp_path: Path, capsys: Any) -> None:
    kind = "tensor<2x3xf32>"
    status = "ttcore.shard_status = #ttcore.shard_status<presharded>"
    text = program(
        "2x4", f"%x: {kind} {{jaxmesh.varying = array<i64>, {status}}}", f"({kind} {{{status}}})", f"return %x : {kind}"
    )
    (tmp_path / "one.mlir").write_text(text)
    out, given = str(tmp_path / "out.npz"), str(tmp_path / "in.npz")
    assert main.main(["run", str(tmp_path / "one.mlir"), "--out", out, "--check"]) == 0
    result = np.load(out)["result0"]
    assert result.shape == (8, 2, 3)
    assert (result == result[0]).all()
    capsys.readouterr()
    np.savez(given, arg0=np.arange(48, dtype=np.float32).reshape(8, 2, 3))
    fails(["run", str(tmp_path / "one.mlir"), "--inputs", given], "give these devices equal arrays", capsys)
    np.savez(given, arg0=result)
    assert main.main(["run", str(tmp_path / "one.mlir"), "--inputs", given]) == 0


def test_presharded_arrays_have_a_dim_of_devices(tmp_path: Path, capsys: Any) -> None:
    given, made = tmp_path / "in.npz", tmp_path / "out.npz"
    x, w = np.ones((4, 8), np.float32), np.arange(48, dtype=np.float32).reshape(2, 8, 3)
    np.savez(given, arg0=x, arg1=w)
    arguments = ["run", PRESHARDED, "--inputs", str(given), "--out", str(made), "--per-device", "--check"]
    assert main.main(arguments) == 0
    np.testing.assert_allclose(np.load(made)["result0"], np.stack([x @ w[0], x @ w[1]]))
    out = capsys.readouterr().out
    assert "result0: float32[4, 3] on each of 2 devices" in out
    assert "  device (0, 0): [[" in out
    assert "  device (0, 1): [[" in out


def test_bfloat16_in_files_is_raw_bits(tmp_path: Path) -> None:
    file, given, made = tmp_path / "x.mlir", tmp_path / "in.npz", tmp_path / "out.npz"
    file.write_text(bfloat_program())
    x = np.arange(64).reshape(8, 8).astype(jnp.bfloat16)
    for stored in (x, x.view(np.uint16), npz.raw(x)):
        np.savez(given, arg0=stored)
        assert main.main(["run", str(file), "--inputs", str(given), "--out", str(made), "--check"]) == 0
        assert same_bits(np.load(made)["result0"].view(jnp.bfloat16), -x)
    # What one run writes another reads.
    np.savez(given, arg0=np.load(made)["result0"])
    assert main.main(["run", str(file), "--inputs", str(given), "--out", str(made)]) == 0
    assert same_bits(np.load(made)["result0"].view(jnp.bfloat16), x)


def test_wide_types_need_no_flag(tmp_path: Path, capsys: Any) -> None:
    file = tmp_path / "x.mlir"
    file.write_text(bfloat_program().replace("bf16", "f64"))
    assert main.main(["run", str(file), "--check"]) == 0
    assert "result0: float64[8, 8]" in capsys.readouterr().out
    assert not jax.config.jax_enable_x64


@pytest.mark.parametrize(
    ("arrays", "words"),
    [
        ({}, "lacks arg0, arg1; its arrays are: none"),
        ({"arg0": np.ones((16, 8), np.float32)}, "lacks arg1; its arrays are: arg0"),
        ({"arg0": np.ones((16, 8)), "arg1": np.ones((8, 12), np.float32)}, "arg0 is float64[16, 8], but"),
        ({"arg0": np.ones((8, 8), np.float32), "arg1": np.ones((8, 12), np.float32)}, "takes float32[16, 8]"),
        ({"arg0": np.ones(1), "x": np.ones(1)}, "an array 'x', but the function's arguments are: arg0, arg1"),
        ({"arg0": np.ones(1), "arg7": np.ones(1)}, "an array 'arg7'"),
        ({"arg0": np.array([object()])}, "not an .npz file"),
    ],
)
def test_wrong_inputs(arrays: dict[str, np.ndarray], words: str, tmp_path: Path, capsys: Any) -> None:
    given = tmp_path / "in.npz"
    named: Any = arrays
    np.savez(given, **named)
    fails(["run", MATMUL, "--inputs", str(given)], words, capsys)


def test_files_that_are_no_npz(tmp_path: Path, capsys: Any) -> None:
    given = tmp_path / "in.npz"
    fails(["run", MATMUL, "--inputs", str(given)], "not an .npz file", capsys)
    for data in (b"", b"PK\x03\x04", b"hello", b"\x93NUMPY"):
        given.write_bytes(data)
        fails(["run", MATMUL, "--inputs", str(given)], "not an .npz file", capsys)
    np.save(tmp_path / "one.npy", np.ones(3))
    fails(["run", MATMUL, "--inputs", str(tmp_path / "one.npy")], "not an .npz file", capsys)
    assert main.main(["run", MATMUL, "--out", str(tmp_path / "no" / "folder.npz")]) == main.USAGE
    assert "jaxmesh: error:" in capsys.readouterr().err


def test_too_many_devices(tmp_path: Path, capsys: Any) -> None:
    file = tmp_path / "x.mlir"
    file.write_text(bfloat_program().replace('"mesh" = 2x4', '"mesh" = 2x256'))
    fails(["run", str(file)], "512 devices, but at most 256", capsys)


@pytest.mark.usefixtures("unequal_copies")
def test_what_is_assumed_is_said(tmp_path: Path, capsys: Any) -> None:
    file = tmp_path / "x.mlir"
    status = "{ttcore.shard_status = #ttcore.shard_status<presharded>}"
    kind = "tensor<4x2xf32>"
    file.write_text(
        program(
            "2x4",
            f"%x: {kind} {status}",
            "tensor<8x2xf32>",
            join("%0", "%x", [0, -1], [2, 1], f"{kind} -> tensor<8x2xf32>"),
            "return %0 : tensor<8x2xf32>",
        )
    )
    assert main.main(["run", str(file)]) == 0
    err = capsys.readouterr().err
    assert err.startswith("jaxmesh: warning: line 3: ttir.mesh_shard takes coordinate 0 of mesh axis 'x'")
    assert err.count("\n") == 1
    assert main.main(["run", str(file), "--check"]) == 1
    assert "jaxmesh: check: line 3: ttir.mesh_shard: float32[4,2]{V:(y,x)} is taken" in capsys.readouterr().err


def test_a_difference_is_seen(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    right = jm.Lowered.reference
    monkeypatch.setattr(jm.Lowered, "reference", lambda *args, **how: np.asarray(right(*args, **how)) + np.float32(1))
    assert main.main(["run", MATMUL, "--check"]) == main.FAILED
    assert "largest difference 1, allowed " in capsys.readouterr().out


@pytest.mark.parametrize(
    "arguments", [["run"], ["opt"], ["run", "x", "--seed", "-1"], ["run", "x", "--inputs", "a", "--seed", "1"]]
)
def test_wrong_usage(arguments: list[str], capsys: Any) -> None:
    with pytest.raises(SystemExit) as left:
        main.main(arguments)
    assert left.value.code == main.USAGE
    assert capsys.readouterr().err.count("\n") == 1


def test_a_fresh_process_emulates_its_devices() -> None:
    command = [sys.executable, "-m", "jaxmesh", "run", MATMUL, "--check"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert "passed" in done.stdout


@pytest.mark.slow
def test_a_script_needs_no_mesh() -> None:
    script = (
        f"import jaxmesh as jm, numpy as np; f = jm.from_mlir({SEVERAL!r}, func='second').lower().compile()\n"
        f"print(f(np.ones(4, np.float32))[1][0]); print(jm.from_mlir({MATMUL!r}).mesh.devices.shape)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr, done.stdout.split()) == (0, "", ["4.0", "(2,", "4)"])


# --- arrays ----------------------------------------------------------------------------------------------------------


DTYPES = [
    "bool",
    "int8",
    "uint8",
    "int32",
    "int4",
    "uint2",
    "float32",
    "bfloat16",
    "float8_e4m3fn",
    "float8_e8m0fnu",
    "complex64",
]


@pytest.mark.parametrize("dtype", DTYPES)
def test_random_arrays_of_every_dtype(dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    kind = jax.ShapeDtypeStruct((3, 50), jnp.dtype(dtype))
    array = npz.random_array(np.random.default_rng(0), kind)
    assert (array.shape, array.dtype) == (kind.shape, kind.dtype)
    assert len(np.unique(np.asarray(array.astype(np.complex64)))) > 1
    assert "crc32=" in npz.summary(array)
    assert metrics.largest_difference(array, array) == 0
    # Pieces of whatever size are drawn alike.
    monkeypatch.setattr(npz, "_PIECE", 7)
    assert npz.random_array(np.random.default_rng(0), kind).tobytes() == array.tobytes()


def test_random_arrays_take_little_more_than_their_memory() -> None:
    tracemalloc.start()
    array = npz.random_array(np.random.default_rng(0), jax.ShapeDtypeStruct((32, 1 << 20), jnp.dtype(jnp.bfloat16)))
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 1.2 * array.nbytes


def test_differences() -> None:
    nan, inf = np.float32(np.nan), np.float32(np.inf)
    assert metrics.largest_difference(np.array([nan, inf, 1]), np.array([nan, inf, 1])) == 0
    assert metrics.largest_difference(np.array([nan]), np.array([1.0])) == np.inf
    assert metrics.largest_difference(np.array([inf]), np.array([1.0])) == np.inf
    assert metrics.largest_difference(np.uint8([0]), np.uint8([255])) == 255
    assert metrics.largest_difference(np.array([True]), np.array([False])) == 1
    assert metrics.tolerance(np.int32([3])) == 0
    assert metrics.largest_difference(np.zeros(0, np.float32), np.zeros(0, np.float32)) == 0


def test_what_cannot_be_executed_draws_no_inputs(tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    text = tmp_path / "opaque.mlir"
    text.write_text("""
func.func @main(%x: tensor<2x2x2x2xf32>, %i: tensor<2x2xi32>) -> tensor<2x2x2x2xf32> {
"ttnn.paged_fill_cache"(%x, %x, %i) : (tensor<2x2x2x2xf32>, tensor<2x2x2x2xf32>, tensor<2x2xi32>) -> ()
return %x : tensor<2x2x2x2xf32> }""")
    monkeypatch.setattr(npz, "random_array", lambda *_: pytest.fail("inputs are drawn"))
    assert main.main(["run", str(text), "--mesh", "1x1"]) == 2
    assert "paged_fill_cache cannot be executed" in capsys.readouterr().err
