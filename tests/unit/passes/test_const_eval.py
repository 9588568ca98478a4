"""Functions that run once: which operations they hold, and that texts with them mean what the program does."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import ml_dtypes
import numpy as np
import pytest

import jaxmesh as jm
from jaxmesh import ttnn
from jaxmesh.cli.main import main
from jaxmesh.ttnn import helpers
from tests.generators.programs.execution_paths import Utilities

TEXT = """\
func.func @f(%x: tensor<32x32xf32> {ttcore.argument_type = #ttcore.argument_type<input>},
             %w: tensor<32x64xf32> {ttcore.argument_type = #ttcore.argument_type<parameter>},
             %b: tensor<32x64xf32> {ttcore.argument_type = #ttcore.argument_type<constant>})
    -> (tensor<32x64xf32>, tensor<32x64xf32>, tensor<64x32xf32>) {
  %0 = "ttir.matmul"(%x, %w) : (tensor<32x32xf32>, tensor<32x64xf32>) -> tensor<32x64xf32>
  %1 = "ttir.subtract"(%w, %b) : (tensor<32x64xf32>, tensor<32x64xf32>) -> tensor<32x64xf32>
  %2 = "ttir.abs"(%1) : (tensor<32x64xf32>) -> tensor<32x64xf32>
  %3 = "ttir.multiply"(%0, %2) : (tensor<32x64xf32>, tensor<32x64xf32>) -> tensor<32x64xf32>
  %4 = "ttir.permute"(%b) <{permutation = array<i64: 1, 0>}> : (tensor<32x64xf32>) -> tensor<64x32xf32>
  return %3, %1, %4 : tensor<32x64xf32>, tensor<32x64xf32>, tensor<64x32xf32>
}
"""


ON_MESH = """\
func.func @f(%x: tensor<64x64xf32> {ttcore.argument_type = #ttcore.argument_type<input>},
             %w: tensor<64x64xf32> {ttcore.argument_type = #ttcore.argument_type<parameter>})
    -> (tensor<64x64xf32>, tensor<64x64xf32>) {
  %0 = "ttir.mesh_shard"(%x) <{SHARD}> : (tensor<64x64xf32>) -> tensor<32x64xf32>
  %1 = "ttir.mesh_shard"(%w) <{SHARD}> : (tensor<64x64xf32>) -> tensor<32x64xf32>
  %2 = "ttir.abs"(%1) : (tensor<32x64xf32>) -> tensor<32x64xf32>
  %3 = "ttir.add"(%0, %2) : (tensor<32x64xf32>, tensor<32x64xf32>) -> tensor<32x64xf32>
  %4 = "ttir.mesh_shard"(%3) <{FULL}> : (tensor<32x64xf32>) -> tensor<64x64xf32>
  %5 = "ttir.mesh_shard"(%2) <{FULL}> : (tensor<32x64xf32>) -> tensor<64x64xf32>
  return %4, %5 : tensor<64x64xf32>, tensor<64x64xf32>
}
"""
for word, direction in (("SHARD", "full_to_shard"), ("FULL", "shard_to_full")):
    split = (
        f"shard_dims = array<i64: -1, 0>, shard_direction = #ttcore.shard_direction<{direction}>, shard_shape = "
        "array<i64: 2, 1>, shard_type = #ttcore.shard_type<devices>"
    )
    ON_MESH = ON_MESH.replace(word, split)


def printed(folder: Path, text: str, *options: str) -> str:
    (folder / "f.mlir").write_text(text)
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        assert main(["opt", str(folder / "f.mlir"), *options]) == 0
    return out.getvalue()


def arrays(seed: int) -> list[Any]:
    rng = np.random.default_rng(seed)
    return [rng.integers(-4, 5, shape).astype(np.float32) for shape in ((32, 32), (32, 64), (32, 64))]


def expected(x: Any, w: Any, b: Any) -> list[Any]:
    return [(x @ w) * np.abs(w - b), w - b, b.T]


def run(space: dict[str, Any], given: Sequence[Any]) -> list[Any]:
    """Calls the emitted `f` with arguments where its inputs are made."""
    made = space["create_activations_for_f"](), space["create_weights_for_f"]()
    device = Utilities.DeviceGetter.get_device((1, 1))

    def like(tensor: Any, array: Any) -> Any:
        host = helpers.from_numpy(array)
        if tensor.device() is None:
            return host
        return ttnn.to_layout(ttnn.to_device(host, device=device), tensor.layout)

    (x,), weights = made
    found = space["f"](
        [like(x, given[0])], {k: like(t, a) for (k, t), a in zip(weights.items(), given[1:], strict=True)}
    )
    return [helpers.to_numpy(r) for r in found]


def test_a_text_with_such_functions_reads_back_as_the_program(tmp_path: Path) -> None:
    text = printed(tmp_path, TEXT, "--ttir-to-ttnn-backend-pipeline")
    assert text.count("func.func private @f_const_eval_") == text.count("ttcore.load_cached(@f_const_eval_") == 2
    given = arrays(0)
    traced = jm.from_mlir(text)
    there = jax.sharding.NamedSharding(traced.mesh, jax.sharding.PartitionSpec())
    tensors = [jm.MeshTensor(jax.device_put(a, there), traced.mesh, ()) for a in given]
    results = traced.lower().reference(*tensors)
    for result, wanted in zip(results, expected(*given), strict=True):
        for shard in result.values() if isinstance(result, dict) else [result]:
            np.testing.assert_array_equal(shard, wanted)


def test_a_function_of_which_nothing_is_read_is_called_too(tmp_path: Path) -> None:
    alone = TEXT.replace("return %3, %1, %4 : tensor<32x64xf32>, tensor<32x64xf32>, ", "return %4 : ").replace(
        "(tensor<32x64xf32>, tensor<32x64xf32>, tensor<64x32xf32>) {", "tensor<64x32xf32> {"
    )
    text = printed(tmp_path, alone.replace("(%0, %2)", "(%0, %0)"), "--const-eval-hoist-transform")
    assert "    ttcore.load_cached(@f_const_eval_0, [%arg1, %arg2]) : " in text
    x, w, b = arrays(6)
    np.testing.assert_array_equal(jm.from_mlir(text).lower().reference(x, w, b), b.T)


def test_transfers_of_parameters_are_done_once(tmp_path: Path) -> None:
    text = printed(tmp_path, ON_MESH, "--ttir-to-ttnn-backend-pipeline=mesh-shape=1,2")
    inside, entry = text.split("  func.func @f(")
    assert inside.count("ttnn.distribute_tensor") == entry.count("ttnn.distribute_tensor") == 1
    assert inside.count("ttnn.aggregate_tensor") == entry.count("ttnn.aggregate_tensor") == 1
    x, w = (np.random.default_rng(seed).integers(-4, 5, (64, 64)).astype(np.float32) for seed in (4, 5))
    results = jm.from_mlir(text, mesh=jm.make_mesh((1, 2))).lower().reference(x, w)
    np.testing.assert_array_equal(results[0], x + np.abs(w))
    np.testing.assert_array_equal(results[1], np.abs(w))


def test_python_calls_them_once(tmp_path: Path) -> None:
    options = "split-files=false enable-cpu-hoisted-const-eval=false"
    text = printed(tmp_path, TEXT, f"--ttir-to-emitpy-pipeline={options}")
    space: dict[str, Any] = {"__name__": "emitted", "ttnn": ttnn, "utils": Utilities}
    exec(compile(text.replace("import ttnn\nimport utils\n", "", 1), "<emitted>", "exec"), space)
    first, second = arrays(1), arrays(2)
    for result, wanted in zip(run(space, first), expected(*first), strict=True):
        np.testing.assert_array_equal(result, wanted)
    # What depends on weights alone is of the first call.
    found = run(space, second)
    np.testing.assert_array_equal(found[0], (second[0] @ second[1]) * np.abs(first[1] - first[2]))
    np.testing.assert_array_equal(found[1], first[1] - first[2])


@pytest.mark.parametrize("language", ["emitc", "emitpy"])
def test_two_steps_give_the_text_of_one(language: str, tmp_path: Path) -> None:
    options = "=enable-cpu-hoisted-const-eval=false" if language == "emitpy" else ""
    one = printed(tmp_path, TEXT, f"--ttir-to-{language}-pipeline{options}")
    assert "f_const_eval_1" in one
    between = printed(tmp_path, TEXT, "--ttir-to-ttnn-common-pipeline")
    assert printed(tmp_path, between, f"--ttnn-common-to-{language}-pipeline") == one


def test_functions_on_the_host_compute_with_torch(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    text = printed(tmp_path, TEXT.replace("f32", "bf16"), "--ttir-to-emitpy-pipeline=split-files=false")
    calls: list[str] = []

    class Host:
        """The functions of `ttir_cpu` that the program needs."""

        def __getattr__(self, name: str) -> Any:
            calls.append(name)
            return (lambda x, dtype: x.to(dtype)) if name == "typecast" else getattr(torch, name)

    class Torch(Utilities):
        @staticmethod
        def execute_cpu_hoisted_function(inputs: Sequence[Any], function: Any) -> Any:
            made = function(*map(ttnn.to_torch, inputs))
            return tuple(map(ttnn.from_torch, made)) if isinstance(made, tuple) else ttnn.from_torch(made)

    space: dict[str, Any] = {"__name__": "emitted", "ttnn": ttnn, "utils": Torch, "torch": torch, "ttir_cpu": Host()}
    head = "import ttnn\nimport utils\nimport torch\nimport ttir_cpu\n"
    assert text.startswith(head)
    exec(compile(text.removeprefix(head), "<emitted>", "exec"), space)
    results = run(space, [a.astype(ml_dtypes.bfloat16) for a in arrays(3)])
    assert {"subtract", "abs", "permute", "typecast"} <= {*calls}
    # The function of %b alone, whose argument stays on the host, and one whose argument is on the devices.
    alone = TEXT.replace('"ttir.permute"(%b)', '"ttir.permute"(%w)').replace(
        '"ttir.subtract"(%w, %b)', '"ttir.neg"(%b)'
    )
    text = printed(
        tmp_path,
        alone.replace(
            "(tensor<32x64xf32>, tensor<32x64xf32>) -> tensor<32x64xf32>\n  %2",
            "(tensor<32x64xf32>) -> tensor<32x64xf32>\n  %2",
        ),
        "--ttir-to-emitpy-pipeline=split-files=false",
    )
    assert text.count("def cpu_hoisted_const_eval_") == 4
    np.testing.assert_array_equal(results[1].astype(np.float32), arrays(3)[1] - arrays(3)[2])
