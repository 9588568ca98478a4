"""Advice in prose works too: each piece stands in the message, and the call that follows it runs.

Beside the advice that names code (`test_advice_sweep.py`): "leave it out", "name another", "write P(...)".
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AbstractMesh, NamedSharding, PartitionSpec as P

import jaxmesh as jm
from jaxmesh import ttnn
from jaxmesh.ttnn import helpers
from tests.api import test_advice as known
from tests.api.test_advice import TYPE, Case, X, composer, device, double, mesh, split, tensor, whole, with_mesh_set

lax: Any = jax.lax
ONES = np.ones((16, 8), np.float32)
HALF = X / 2


def of_machine() -> Any:
    return jax.random.key(0, impl="rbg")


def read(body: str, ends: str = "(%x: tensor<4x8xf32>) -> tensor<4x8xf32>", **options: Any) -> Any:
    """Reads a function over the mesh, of which the text has the body."""
    return jm.from_mlir(f"func.func @main{ends} {{\n{body}\n}}", **{"mesh": mesh(), **options})


def mesh_shard(shape: str, dims: str, kind: str = "devices", **options: Any) -> Any:
    return read(
        f'%0 = "ttir.mesh_shard"(%x) <{{shard_dims = array<i64: {dims}>, shard_direction = '
        f"#ttcore.shard_direction<full_to_shard>, shard_shape = array<i64: {shape}>, shard_type = "
        f"#ttcore.shard_type<{kind}>}}> : (tensor<4x8xf32>) -> tensor<2x8xf32>\nreturn %0 : tensor<2x8xf32>",
        "(%x: tensor<4x8xf32>) -> tensor<2x8xf32>",
        **options,
    )


def one(op: str, attributes: str = "") -> Any:
    """Reads a function of one op."""
    given = f" <{{{attributes}}}>" if attributes else ""
    return read(f'%0 = "{op}"(%x){given} : (tensor<4x8xf32>) -> tensor<4x8xf32>\nreturn %0 : tensor<4x8xf32>')


def hlo(body: str, ends: str = "(%x: tensor<4x8xf32>) -> tensor<4x8xf32>", attributes: str = "") -> Any:
    return jm.from_mlir(f"module {{ {attributes}\nfunc.func @main{ends} {{\n{body}\n}} }}", mesh=mesh())


def printed(f: Callable[..., Any], *args: Any, language: Any = "python", **options: Any) -> str:
    return jm.jit(f, mesh=mesh()).lower(*(args or (X,))).as_text(language, **options)


def compiled() -> Any:
    return double(mesh=mesh()).lower(X).compile()


def deleted(made: Any) -> Any:
    made.delete()
    return made


def freed(made: Any) -> Any:
    made.deallocate()
    return made


def closed() -> Any:
    opened = device()
    ttnn.close_mesh_device(opened)
    return opened


def distribute(*placements: Any, full: Any = ONES, onto: Any = None, override: Any = None) -> Any:
    mapper = ttnn.create_mesh_mapper(device(), ttnn.MeshMapperConfig(list(placements), override))
    return ttnn.distribute_tensor(full, mapper, onto or device())


def under(sizes: tuple[int, ...], program: Any) -> Any:
    with jax.set_mesh(jm.make_mesh(sizes, ("y", "x"))):
        return double(mesh=program)(X)


def both(x: Any, n: Any) -> Any:
    return x * n


def record(f: Any = None, sizes: Any = (2, 4), **options: Any) -> Any:
    made = f or (lambda x: jnp.tanh(jm.full_to_shard(x, P("y"))).sum())
    return jm.jit(made, mesh=jm.make_mesh(sizes, ("y", "x"))).trace(X).record(X, **options)


S, R = ttnn.PlacementShard, ttnn.PlacementReplicate()
CASES = [
    Case("dims for fewer axes", lambda: mesh_shard("2, 1", "0"), {
        "write -1 for an axis that splits nothing": lambda: mesh_shard("2, 1", "0, -1")}),
    Case("pieces unlike dims", lambda: mesh_shard("1, 2", "0, -1", strict=True), {
        "write shard_shape = [2, 1]": lambda: mesh_shard("2, 1", "0, -1")}),
    Case("one device holds all", lambda: mesh_shard("2, 1", "0, -1", "maximal"), {
        "'devices' with shard_dims": lambda: mesh_shard("2, 1", "0, -1")}),
    Case("a tuple for a spec", lambda: jm.jit(lambda x: jm.full_to_shard(x, ("y",)), mesh=mesh()).trace(X), {
        "write P(...)": lambda: jm.jit(lambda x: jm.full_to_shard(x, P("y")), mesh=mesh()).trace(X)}),
    Case("a text for a spec", lambda: jm.visualize((8, 8), "y", mesh=mesh()), {
        "write P('y', None)": lambda: jm.visualize((8, 8), P("y", None), mesh=mesh())}),
    Case("a whole picture of a shape", lambda: jm.visualize((8, 8), P("y"), mesh=mesh(), whole=True), {
        "Leave it out": lambda: jm.visualize((8, 8), P("y"), mesh=mesh())}),
    Case("two axes on one dim", lambda: distribute(S(0), S(0)), {
        "merge the two axes with mesh_shape_override": lambda: distribute(S(0), override=ttnn.MeshShape(8)),
        "or reshape the tensor": lambda: distribute(S(0), S(1), full=ONES.reshape(2, 4, 16))}),
    Case("a dim of no elements", lambda: distribute(S(0), R, full=ONES[:0]), {
        "replicate it": lambda: distribute(R, R, full=ONES[:0])}),
    Case("no mapper", lambda: ttnn.distribute_tensor(ONES, 3), {
        "make one with create_mesh_mapper": lambda: distribute(S(0), S(1))}),
    Case("no composer", lambda: ttnn.aggregate_tensor(tensor(), 3), {
        "make one with create_mesh_composer": lambda: whole(ttnn.aggregate_tensor(tensor(), composer()))}),
    Case("a mapper of another device", lambda: distribute(S(0), S(1), onto=ttnn.open_mesh_device((4, 2))), {
        "make the mapper for the device it is used on": lambda: distribute(S(0), S(1), onto=device())}),
    Case("a tensor to another device", lambda: ttnn.to_device(tensor(), ttnn.open_mesh_device((4, 2))), {
        "make the mapper for the device the tensor goes to": lambda: ttnn.to_device(tensor(), device())}),
    Case("a closed device", lambda: ttnn.create_mesh_mapper(closed(), ttnn.MeshMapperConfig([S(0), R])), {
        "open one again": lambda: ttnn.create_mesh_mapper(device(), ttnn.MeshMapperConfig([S(0), R]))}),
    Case("a tensor that is gone", lambda: double(mesh=mesh())(freed(tensor())), {
        "use it before, or keep it": lambda: double(mesh=mesh())(tensor())}),
    Case("a host tensor that is gone", lambda: freed(ttnn.Tensor(X, ttnn.float32)).to_list(), {
        "use it before, or keep it": lambda: ttnn.Tensor(X, ttnn.float32).to_list()}),
    Case("an array that is gone", lambda: double(mesh=mesh())(deleted(jnp.asarray(X) + 1)), {
        "do not donate it": lambda: double(mesh=mesh())(jnp.asarray(X) + 1)}),
    Case("one value of several devices", lambda: helpers.to_numpy(tensor()), {
        "give mesh_composer=ttnn.create_mesh_composer(device, config)":
            lambda: whole(helpers.to_numpy(tensor(), mesh_composer=composer())),
        "read each of ttnn.get_device_tensors": lambda: [helpers.to_numpy(t) for t in ttnn.get_device_tensors(tensor())],
    }),
    Case("no composer to read", lambda: tensor().to_numpy(mesh_composer=3), {
        "make one with create_mesh_composer": lambda: whole(tensor().to_numpy(mesh_composer=composer()))}),
    Case("a tensor of a tensor", lambda: ttnn.Tensor(tensor(), ttnn.float32), {
        "read it with tensor.to_numpy(mesh_composer=...)":
            lambda: ttnn.Tensor(tensor().to_numpy(mesh_composer=composer()), ttnn.float32)}),
    Case("numbers beyond a type", lambda: ttnn.Tensor(np.array([300]), ttnn.uint8), {
        "clip the array first": lambda: ttnn.Tensor(np.array([300]).clip(0, 255), ttnn.uint8),
        "or name a wider type": lambda: ttnn.Tensor(np.array([300]), ttnn.uint16)}),
    Case("a composer for one tensor", lambda: ttnn.Tensor(X, ttnn.float32).to_numpy(mesh_composer=composer()), {
        "leave it out": lambda: whole(ttnn.Tensor(X, ttnn.float32).to_numpy())}),
    Case("a composer for an array", lambda: helpers.to_numpy(X, mesh_composer=composer()), {
        "leave it out": lambda: whole(helpers.to_numpy(X))}),
    Case("dates as a tensor", lambda: distribute(S(0), R, full=np.zeros(8, "M8[s]")), {
        "use a numeric dtype": lambda: distribute(S(0), R, full=np.zeros(8, "M8[s]").astype(np.int32))}),
    Case("dates as an argument", lambda: double(mesh=mesh())(np.zeros(8, "M8[s]")), {
        "use a numeric dtype": lambda: double(mesh=mesh())(np.zeros(8, "M8[s]").astype(np.int32))}),
    Case("the type of a block float", lambda: np.zeros(8, ttnn.bfloat8_b.dtype), {
        "Use DataType.BFLOAT16 for arrays": lambda: np.zeros(8, ttnn.bfloat16.dtype)}),
    Case("a type changed on the devices", lambda: ttnn.to_dtype(ttnn.to_device(tensor(), device()), ttnn.bfloat16), {
        "use ttnn.typecast": lambda: ttnn.typecast(ttnn.to_device(tensor(), device()), ttnn.bfloat16)}),
    Case("another mesh in the context", lambda: under((4, 2), mesh()), {
        "Leave the context": lambda: double(mesh=mesh())(X),
        "or make the function for its mesh": lambda: under((4, 2), jm.make_mesh((4, 2), ("y", "x")))}),
    Case("an axis of spaces", lambda: double(mesh=AbstractMesh((2,), ("a\"b",))).lower(X), {
        "rename the axis": lambda: double(mesh=AbstractMesh((2,), ("ab",))).lower(X)}),
    Case("too many devices", lambda: jm.make_mesh((64, 64)), {
        "trace and lower on a jax.sharding.AbstractMesh":
            lambda: double(mesh=AbstractMesh((64, 64), ("y", "x"))).lower(X)}),
    Case("arguments of another tree", lambda: compiled()([X]), {
        "call it with the same structure": lambda: compiled()(X),
        "or trace it again": lambda: jm.jit(lambda x: 2 * x[0], mesh=mesh()).lower([X]).compile()([X])}),
    Case("an argument of another type", lambda: compiled()(X[:4]), {
        "call it with the same type": lambda: compiled()(X),
        "or trace it again": lambda: double(mesh=mesh()).lower(X[:4]).compile()(X[:4])}),
    Case("a type to a program", lambda: compiled()(TYPE), {
        "give an array": lambda: compiled()(X),
        "or only trace or lower the function": lambda: double(mesh=mesh()).lower(TYPE)}),
    Case("static and donated", lambda: jm.jit(both, mesh=mesh(), static_argnums=1, donate_argnums=1), {
        "name it in static_argnums or in donate_argnums": lambda: (
            jm.jit(both, mesh=mesh(), static_argnums=1), jm.jit(both, mesh=mesh(), donate_argnums=1))}),
    Case("the names of a builtin", lambda: jm.jit(max, mesh=mesh(), static_argnames="key"), {
        "give static_argnums": lambda: jm.jit(max, mesh=mesh(), static_argnums=1)}),
    Case("an export that makes inputs it is given", lambda: double(mesh=mesh()).lower(X).export(
        "m", X, make_inputs="zeros"), {
        "leave out the arguments": lambda: double(mesh=mesh()).lower(X).export("m", make_inputs="zeros"),
        "or make_inputs": lambda: double(mesh=mesh()).lower(X).export("m", X)}),
    Case("an export of types and arrays", lambda: jm.jit(both, mesh=mesh()).lower(X, X).export("m", X, TYPE), {
        "export with arrays alone": lambda: jm.jit(both, mesh=mesh()).lower(X, X).export("m", X, X),
        "or with types alone": lambda: jm.jit(both, mesh=mesh()).lower(X, X).export("m", TYPE, TYPE)}),
    Case("an export to a file", lambda: double(mesh=mesh()).lower(X).export(__file__, X), {
        "name another path": lambda: double(mesh=mesh()).lower(X).export("m", X)}),
    Case("an export to a full folder", lambda: double(mesh=mesh()).lower(X).export(Path(__file__).parent, X), {
        "name an empty or a new folder": lambda: double(mesh=mesh()).lower(X).export("m", X)}),
    Case("an export that cannot be written", lambda: double(mesh=mesh()).lower(X).export("/proc/none", X), {
        "name another folder": lambda: double(mesh=mesh()).lower(X).export("m", X)}),
    Case("keys for an export", lambda: jm.jit(jax.random.key_data, mesh=mesh()).lower(of_machine()).export("m"), {
        "give the arguments to export with": lambda: jm.jit(jax.random.key_data, mesh=mesh()).lower(of_machine()).export(
            "m", of_machine())}),
    Case("statics twice", lambda: jm.codegen_py(
        jm.jit(both, mesh=mesh(), static_argnums=1), X, 2, mesh=mesh(), static_argnums=1), {
        "leave that out": lambda: jm.codegen_py(
            jm.jit(both, mesh=mesh(), static_argnums=1), X, 2, mesh=mesh(), export_path="m"),
        "or give the plain function": lambda: jm.codegen_py(
            both, X, 2, mesh=mesh(), static_argnums=1, export_path="m")}),
    Case("an option of another value", lambda: jm.codegen_py(double(), X, mesh=mesh(), export_tensors=False), {
        "write True": lambda: jm.codegen_py(double(), X, mesh=mesh(), export_tensors=True, export_path="m")}),
    Case("a judge of C++ on a cluster", lambda: double(mesh=mesh()).lower(X).judge(
        language="cpp", cluster="t3000"), {}),
    Case("two recordings of two meshes", lambda: jm.compare(record(), record(sizes=(4, 2))), {
        "Record both on one": lambda: jm.compare(record(), record())}),
    Case("recordings of two functions", lambda: jm.compare(record(), jm.Recording((), {"y": 2, "x": 4}, "ttir", "f")), {
        "record two runs of the same source": lambda: jm.compare(record(), record())}),
    Case("a recording that is large", lambda: record(max_bytes=16), {
        "allow more with max_bytes=...": lambda: record(max_bytes=2**20),
        "record less with only=...": lambda: record(max_bytes=99, only="*sum*")}),
    Case("a recording that is none", lambda: jm.Recording.load(__file__), {
        "record(...).save(path) writes one": lambda: (record().save("r"), jm.Recording.load("r"))}),
    Case("no recording", lambda: jm.Recording.load("none"), {
        "record(...).save(path) writes one": lambda: (record().save("r"), jm.Recording.load("r"))}),
    Case("a recording to nowhere", lambda: record().save("none/r"), {
        "name a file in a folder": lambda: record().save("r")}),
    Case("a dump to nowhere", lambda: ttnn.dump_tensor("none/t", X), {
        "name a file in a folder that exists": lambda: ttnn.dump_tensor("t", X)}),
    Case("a picture of no kind", lambda: jm.visualize((8, 8), P("y"), mesh=mesh()).save("a.xyz"), {
        "choose an ending from this list": lambda: jm.visualize((8, 8), P("y"), mesh=mesh()).save("a.svg")}),
    Case("a picture to nowhere", lambda: jm.visualize((8, 8), P("y"), mesh=mesh()).save("none/a.svg"), {
        "name a file in an existing, writable folder":
            lambda: jm.visualize((8, 8), P("y"), mesh=mesh()).save("a.svg")}),
]  # fmt: skip


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Paths are of a folder of the test."""
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_advice_is_in_the_message_and_works(case: Case) -> None:
    known.test_advice_is_in_the_message_and_works(case)
