"""What a review of the importer found: each once wrong, slow or silent."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import jaxmesh as jm
from jaxmesh.cli import main

PRESHARDED = "{ttcore.shard_status = #ttcore.shard_status<presharded>}"
UNSHARDED = "{ttcore.shard_status = #ttcore.shard_status<unsharded>}"


def module(mesh: str, signature: str, *lines: str) -> str:
    head = (
        f'module attributes {{ttcore.meshes = #ttcore.meshes<[<"mesh" = {mesh}>]>}} {{\nfunc.func @main{signature} {{\n'
    )
    return head + "\n".join(lines) + "\n}\n}\n"


def shard(result: str, operand: str, way: str, kind: str) -> str:
    return (
        f'{result} = "ttir.mesh_shard"({operand}) <{{shard_dims = array<i64: 0, -1>, '
        f"shard_direction = #ttcore.shard_direction<{way}>, shard_shape = array<i64: 1, 1>, "
        f"shard_type = #ttcore.shard_type<devices>}}> : ({kind}) -> {kind}"
    )


@pytest.mark.parametrize("status", ["", UNSHARDED])
def test_what_joins_nothing_still_brings_a_tensor_back(status: str) -> None:
    kind = "tensor<4x8xf32>"
    text = module(
        "1x2",
        f"(%a: {kind}) -> ({kind} {status})",
        shard("%0", "%a", "full_to_shard", kind),
        '%1 = "ttir.all_reduce"(%0) <{cluster_axis = 1 : ui32, reduce_type = #ttcore.reduce_type<sum>}> : '
        f"({kind}) -> {kind}",
        shard("%2", "%1", "shard_to_full", kind),
        f"return %2 : {kind}",
    )
    x = np.arange(32, dtype=np.float32).reshape(4, 8)
    out = jm.from_mlir(text).lower().compile()(x)
    assert not isinstance(out, jm.MeshTensor)
    np.testing.assert_array_equal(out, 2 * x)


def test_what_splits_nothing_folds() -> None:
    kind = "tensor<4x8xf32>"
    text = module("1x2", f"(%a: {kind}) -> {kind}", shard("%0", "%a", "full_to_shard", kind), f"return %0 : {kind}")
    assert not jm.from_mlir(text).lower().jaxpr.eqns


def test_a_constant_declared_presharded_is_replicated() -> None:
    text = module(
        "1x2",
        f"(%a: tensor<4xf32> {PRESHARDED}) -> (tensor<4xf32> {PRESHARDED}, tensor<2xf32> {PRESHARDED})",
        '%0 = "ttir.ones"() <{shape = array<i32: 2>}> : () -> tensor<2xf32>',
        "return %a, %0 : tensor<4xf32>, tensor<2xf32>",
    )
    lowered = jm.from_mlir(text).lower()
    assert "distribute_tensor" in lowered.as_text()
    assert lowered.out_avals[1].shape == (2,)


@pytest.mark.parametrize("op", ["distributed_rms_norm", "distributed_layer_norm"])
def test_a_collective_without_a_mesh_is_an_error(op: str) -> None:
    kind = "tensor<4x16xf32>"
    text = (
        f'func.func @main(%a: {kind}) -> {kind} {{\n%0 = "ttir.{op}"(%a) <{{cluster_axis = 1 : ui32}}> : '
        f"({kind}) -> {kind}\nreturn %0 : {kind} }}"
    )
    with pytest.raises(jm.MeshError, match="line 2"):
        jm.from_mlir(text)


def test_a_presharded_argument_without_a_mesh_is_an_error() -> None:
    with pytest.raises(jm.MeshError, match="presharded"):
        jm.from_mlir(
            f"func.func @main(%a: tensor<4xf32> {PRESHARDED}) -> tensor<4xf32> {{ return %a : tensor<4xf32> }}"
        )


def test_a_given_mesh_chooses_among_run_lines() -> None:
    text = "// RUN: x --p=mesh-shape=1,2\n// RUN: x --p=mesh-shape=2,4\n"
    text += "func.func @main(%a: tensor<4xf32>) -> tensor<4xf32> { return %a : tensor<4xf32> }"
    assert tuple(jm.from_mlir(text, mesh=jm.make_mesh((2, 4))).mesh.shape.values()) == (2, 4)
    with pytest.raises(jm.MeshError):
        jm.from_mlir(text)
    with pytest.raises(jm.MeshError):
        jm.from_mlir(text, mesh=jm.make_mesh((1, 4)))


def test_a_constant_of_another_type_is_refused() -> None:
    text = '%0 = "ttir.constant"() <{value = dense<[1.5, 2.7]> : tensor<2xf32>}> : () -> tensor<2xi32>'
    with pytest.raises(jm.VerifyError, match=r"line 3: .*float32.*int32"):
        jm.from_mlir(module("1x2", "() -> tensor<2xi32>", text, "return %0 : tensor<2xi32>"))


def test_long_metadata_is_read_to_its_end() -> None:
    # Quadratic, it would take more than an hour.
    text = 'func.func @main() { return }\n{-# external_resources: { m: { p: "builtin.' + "a_" * 500_000 + '" } } #-}'
    assert jm.from_mlir(text).out_avals == []


def test_softmax_does_not_overflow() -> None:
    kind = "tensor<2x4xf32>"
    text = module(
        "1x2",
        f"(%a: {kind}) -> {kind}",
        f'%0 = "ttir.softmax"(%a) <{{dimension = 1 : si32}}> : ({kind}) -> {kind}',
        f"return %0 : {kind}",
    )
    out = jm.from_mlir(text).lower().compile()(np.full((2, 4), 1000, np.float32))
    np.testing.assert_array_equal(out, np.full((2, 4), 0.25, np.float32))


def test_arrays_that_no_machine_holds_end_in_one_line(tmp_path: Path, capsys: Any) -> None:
    file = tmp_path / "x.mlir"
    kind = "tensor<9223372036854775807xf32>"
    file.write_text(module("1x1", f"(%a: {kind}) -> {kind}", f"return %a : {kind}"))
    assert main.main(["run", str(file)]) == main.USAGE
    assert capsys.readouterr().err.count("\n") == 1


def test_two_arrays_for_one_argument(tmp_path: Path, capsys: Any) -> None:
    file, inputs = tmp_path / "x.mlir", tmp_path / "in.npz"
    file.write_text(module("1x1", "(%a: tensor<2xf32>) -> tensor<2xf32>", "return %a : tensor<2xf32>"))
    np.savez(inputs, **{"arg0": np.zeros(2, np.float32), "0": np.ones(2, np.float32)})
    assert main.main(["run", str(file), "--inputs", str(inputs)]) == main.USAGE
    assert "two arrays for one argument" in capsys.readouterr().err


def test_a_wrong_path_for_results_is_known_before_the_run(tmp_path: Path, capsys: Any) -> None:
    file = tmp_path / "x.mlir"
    file.write_text(module("1x1", "(%a: tensor<2xf32>) -> tensor<2xf32>", "return %a : tensor<2xf32>"))
    for out in (tmp_path, tmp_path / "no" / "out.npz"):
        assert main.main(["run", str(file), "--out", str(out)]) == main.USAGE
        captured = capsys.readouterr()
        assert "--out takes a file" in captured.err
        assert captured.out == ""


def test_no_standard_input(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.setattr("sys.stdin", None)
    assert main.main(["run", "-"]) == main.USAGE
    assert "standard input" in capsys.readouterr().err
