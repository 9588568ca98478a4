"""The advice of errors works: each piece stands in the message, and the call that follows it runs."""

from __future__ import annotations

import os
import pickle
import re
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AbstractMesh, AxisType, PartitionSpec as P

import jaxmesh as jm
from jaxmesh import ttnn
from jaxmesh.analysis.machines import MACHINES, one_of
from jaxmesh.cli.main import main
from tests import ROOT

lax: Any = jax.lax
X = np.arange(64, dtype=np.float32).reshape(8, 8)
TYPE = jax.ShapeDtypeStruct((8, 8), jnp.float32)
REDUCED = """func.func @main(%x: tensor<4x2xf32>) -> tensor<4x2xf32> {
  %0 = "ttir.all_reduce"(%x) <{cluster_axis = 1 : ui32, reduce_type = #ttcore.reduce_type<sum>}>
    : (tensor<4x2xf32>) -> tensor<4x2xf32>
  return %0 : tensor<4x2xf32>
}
"""
MESHES = 'module attributes {ttcore.meshes = #ttcore.meshes<[<"mesh" = 2x4>]>}'


def mesh() -> Any:
    return jm.make_mesh((2, 4), ("y", "x"))


def total(end: Callable[[Any], Any]) -> Any:
    """Runs a sum over rows whose parts are on the devices along x."""
    return jm.jit(lambda x: end(jm.full_to_shard(x, P("y", "x")).sum(1)), mesh=mesh())(X)


def gather(part: Any) -> Any:
    """Gathers over x by a sum, whose result JAX knows to be the same on all devices."""
    place = jnp.arange(4) == lax.axis_index("x")
    return lax.psum(jnp.where(place[:, None], part, 0), "x")


def double(**options: Any) -> Any:
    return jm.jit(lambda x: 2 * x, **options)


def split(x: Any) -> Any:
    return jm.jit(lambda x: jm.full_to_shard(x, P("x")), mesh=mesh())(x)


def lowered_over(*sizes: int) -> Any:
    abstract = AbstractMesh(sizes, ("a", "b", "c")[: len(sizes)], axis_types=(AxisType.Auto,) * len(sizes))
    return double(mesh=abstract, in_shardings=P("a")).lower(TYPE)


def device() -> Any:
    return ttnn.open_mesh_device(ttnn.MeshShape(2, 4))


def tensor() -> Any:
    config = ttnn.MeshMapperConfig([ttnn.PlacementShard(0), ttnn.PlacementShard(1)])
    return ttnn.distribute_tensor(jnp.asarray(X), ttnn.create_mesh_mapper(device(), config))


def composer() -> Any:
    return ttnn.create_mesh_composer(device(), ttnn.MeshComposerConfig([0, 1], ttnn.MeshShape(2, 4)))


def whole(found: Any) -> None:
    np.testing.assert_array_equal(np.asarray(found), X)


def with_mesh_set(run: Callable[[], Any]) -> Any:
    with jax.set_mesh(mesh()):
        return run()


def without_checks(run: Callable[[], Any]) -> Any:
    """Runs without comparing the copies of which one is taken."""
    with jm.check_replication(False):
        return run()


def as_advised(error: Exception) -> Any:
    """Returns the mesh of a message that spells how to make it."""
    spelled = re.search(r"jaxmesh\.(make_mesh\(\([^)]*\)(?:, \([^)]*\))?\))", str(error))
    assert spelled is not None
    return eval(f"jm.{spelled[1]}")


@dataclass(frozen=True)
class Case:
    """A wrong call, and the pieces of advice of its message with the calls that follow them."""

    name: str
    wrong: Callable[[], Any]
    advice: Mapping[str, Callable[[], Any]]


CASES = [
    Case("a forgotten sum", lambda: total(lambda y: jm.shard_to_full(y, P("y"))), {
        "Was a psum (all_reduce) over that axis forgotten?": lambda: np.testing.assert_allclose(
            total(lambda y: jm.shard_to_full(lax.psum(y, "x"), P("y"))), X.sum(1)),
        "gather over it": lambda: np.testing.assert_allclose(
            total(lambda y: jm.shard_to_full(gather(y).sum(0), P("y"))), X.sum(1)),
        "name it in the spec": lambda: total(lambda y: jm.shard_to_full(y, P(("y", "x")))),
        "pass assume_replicated=True to take coordinate 0": lambda: without_checks(lambda: np.testing.assert_allclose(
            total(lambda y: jm.shard_to_full(y, P("y"), assume_replicated=True)), X[:, :2].sum(1))),
    }),
    Case("an uneven split", lambda: split(np.ones(6)), {
        "pad the dim to 8": lambda: split(np.pad(np.ones(6), (0, 2))),
    }),
    Case("a picture of a type", lambda: jm.visualize(TYPE), {
        "jaxmesh.visualize(x, P(...), mesh=mesh)": lambda: jm.visualize(TYPE, P("y"), mesh=mesh()),
    }),
    Case("a picture without a spec", lambda: jm.visualize((8, 8), mesh=mesh()), {
        "jaxmesh.visualize(shape, P(...), mesh=mesh)": lambda: jm.visualize((8, 8), P("y"), mesh=mesh()),
    }),
    Case("a picture of a traced value", lambda: jax.jit(lambda x: jm.visualize(x) or x)(X), {
        "jaxmesh.visualize(f.trace(...))": lambda: jm.visualize(double(mesh=mesh()).trace(X)),
        "f.lower(...)": lambda: jm.visualize(double(mesh=mesh()).lower(X)),
    }),
    Case("a mesh of three axes", lambda: lowered_over(2, 2, 2).as_text("python"), {
        "Make a mesh of two axes": lambda: lowered_over(2, 4).as_text("python"),
        "strict=False": lambda: lowered_over(2, 2, 2).as_text("python", strict=False),
    }),
    Case("an abstract mesh", lambda: double(mesh=AbstractMesh((2, 4), ("y", "x")))(X), {
        "Pass mesh=jaxmesh.make_mesh((2, 4), ('y', 'x'))": lambda: whole(double(mesh=mesh())(X / 2)),
        "set a mesh with jax.set_mesh": lambda: with_mesh_set(lambda: whole(double()(X / 2))),
    }),
    Case("a text without a mesh", lambda: jm.from_mlir(REDUCED), {
        "give mesh=jaxmesh.make_mesh((2, 4))": lambda: jm.from_mlir(REDUCED, mesh=mesh()),
        "or an AbstractMesh": lambda: jm.from_mlir(REDUCED, mesh=AbstractMesh((2, 4), ("y", "x"))),
        "set one with jax.set_mesh": lambda: with_mesh_set(lambda: jm.from_mlir(REDUCED)),
        MESHES: lambda: jm.from_mlir(f"{MESHES} {{\n{REDUCED}}}"),
        "a RUN line with mesh-shape=2,4": lambda: jm.from_mlir(f"// RUN: ttmlir-opt mesh-shape=2,4 %s\n{REDUCED}"),
    }),
    Case("a tensor to the host", lambda: jm.to_host(tensor()), {
        "to_host(tensor, composer), with a composer of ttnn.create_mesh_composer(device, config)":
            lambda: whole(jm.to_host(tensor(), composer())),
    }),
    Case("an export of tensors", lambda: jax.export.export(jm.jit(lambda t: 2 * t))(tensor()), {
        "export jax.jit(": lambda: jax.export.export(jax.jit(jm.jit(lambda t: 2 * t)))(tensor()),
    }),
    Case("a pickled tensor", lambda: pickle.dumps(tensor()), {
        "pickle what jaxmesh.ttnn.aggregate_tensor gives":
            lambda: whole(pickle.loads(pickle.dumps(ttnn.aggregate_tensor(tensor(), composer())))),
    }),
    Case("a truth value", lambda: bool(ttnn.to_device(tensor(), device()) == 0), {
        "Read it with jaxmesh.ttnn.aggregate_tensor(tensor, composer) first":
            lambda: whole(ttnn.aggregate_tensor(tensor(), composer())),
        "compare with `is`": lambda: tensor() is None,
    }),
    Case("a machine that is too small", lambda: double(mesh=mesh()).lower(X).estimate("n300"), {
        "name a machine that the mesh is a part of": lambda: double(mesh=mesh()).lower(X).estimate("t3000"),
        "or take another mesh": lambda: double(mesh=jm.make_mesh((1, 2))).lower(X).estimate("n300"),
    }),
    Case("arguments of no name", lambda: double(mesh=mesh()).lower(X).estimate("t3000", resident="weights"), {
        "give a part of a path": lambda: double(mesh=mesh()).lower(X).estimate("t3000", resident="x"),
        "or False to hold none": lambda: double(mesh=mesh()).lower(X).estimate("t3000", resident=False)}),
    Case("a machine of no name", lambda: double(mesh=mesh()).lower(X).estimate("t300"), {
        f"the machines are {one_of(MACHINES)}":
            lambda: double(mesh=mesh()).lower(X).estimate("Galaxy"),
    }),
]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_advice_is_in_the_message_and_works(case: Case) -> None:
    with pytest.raises(jm.JaxmeshError) as caught:
        case.wrong()
    for words, follow in case.advice.items():
        assert words in str(caught.value)
        follow()


def test_the_mesh_that_a_message_spells_is_the_missing_one() -> None:
    abstract = AbstractMesh((4, 2), ("data", "model"))
    program = jm.jit(lambda x: 2 * x, mesh=abstract)
    with pytest.raises(jm.MeshError) as caught:
        program(X)
    made = as_advised(caught.value)
    assert dict(made.shape) == dict(abstract.shape)
    whole(jm.jit(lambda x: 2 * x, mesh=made)(X / 2))


def test_a_file_is_exported_as_the_message_says(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, folder = tmp_path / "f.mlir", tmp_path / "model"
    file.write_text(jm.jit(lambda x: 2 * x).trace(X).as_text())
    assert main(["run", str(file), "--on", "ttnn"]) == 2
    advice = re.search(r"jaxmesh (translate FILE --to python --out DIR)", capsys.readouterr().err)
    assert advice is not None
    words = {"FILE": str(file), "DIR": str(folder)}
    assert main([words.get(word, word) for word in advice[1].split()]) == 0
    assert main(["run", str(folder), "--check"]) == 0


@pytest.mark.slow
@pytest.mark.parametrize("way", ["emulate", "flag"])
def test_missing_devices_are_made_as_the_message_says(way: str) -> None:
    late = "import jax, jaxmesh as jm; jax.numpy.ones(1); "
    ask = "print(jm.make_mesh((2, 4)).size)"
    refused = run_python(late + ask, {})
    assert "8 devices are wanted, but only 1 exist" in refused.stderr
    call = re.search(r"call (jaxmesh\.emulate\(8\)) before", refused.stderr)
    flag = re.search(r"set (XLA_FLAGS)=(\S+) in", refused.stderr)
    assert call is not None
    assert flag is not None
    done = (
        run_python(f"import jaxmesh; {call[1]}; {late}{ask}", {})
        if way == "emulate"
        else run_python(late + ask, {flag[1]: flag[2]})
    )
    assert (done.stdout, done.returncode) == ("8\n", 0), done.stderr


def run_python(code: str, env: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    """Runs code in a new process that has no other devices."""
    kept = {k: v for k, v in os.environ.items() if k not in ("XLA_FLAGS", "JAX_NUM_CPU_DEVICES")}
    kept["PYTHONPATH"] = os.pathsep.join([str(ROOT), kept.get("PYTHONPATH", "")])
    return subprocess.run(
        [sys.executable, "-c", code], env={**kept, **env}, capture_output=True, text=True, timeout=120, check=False
    )
