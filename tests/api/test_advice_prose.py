"""Advice in prose works too: each piece stands in the message, and the call that follows it runs.

Beside the advice that names code (`test_advice_sweep.py`): "leave it out", "name another", "write P(...)".
"""

from __future__ import annotations

import re
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AbstractMesh, NamedSharding, PartitionSpec as P

import jaxmesh as jm
from jaxmesh import ttnn
from jaxmesh.cli.run_folder import run_folder
from jaxmesh.ttnn import helpers
from tests.api import test_advice as known
from tests.api.test_advice import TYPE, Case, X, composer, device, double, mesh, tensor, whole
from tests.generators.diagnosed import exported, write_folder
from tests.generators.plain_programs import CASES as CASES_OF_PLAIN

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


def printed(f: Any, *args: Any, language: Any = "python", **options: Any) -> str:
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


def here() -> Any:
    return ttnn.to_device(tensor(), device())


def own() -> Any:
    return jax.device_put(HALF, NamedSharding(mesh(), P("y")))


def others() -> Any:
    return jm.make_mesh((2, 4), ("y", "x"), devices=jax.devices()[8:16])


def on_others(over: Any) -> Any:
    with jax.set_mesh(others()):
        return double(mesh=over)(X)


def donated(t: Any, give: bool) -> Any:
    jm.jit(lambda t: t + 1, donate_argnums=0 if give else ())(t)
    return t


def partly(axes: tuple[str, ...]) -> Any:
    def inner(x: Any) -> Any:
        return jm.shard_to_full(jm.full_to_shard(x, P("x")), P("x"))

    spec = P(axes) if len(axes) == 1 else P()
    if len(axes) == 1:
        return jax.jit(jax.shard_map(inner, mesh=mesh(), in_specs=spec, out_specs=spec, axis_names=set(axes)))(X)
    return jm.jit(inner, mesh=mesh())(X)


def rows(size: int) -> str:
    big = jax.ShapeDtypeStruct((size, size, 2), jnp.int8)
    index = jax.ShapeDtypeStruct((4,), jnp.int32)
    return jm.jit(lambda x, i: x[i, i], mesh=mesh()).lower(big, index).as_text(strict=False)


def spectrum(x: Any) -> Any:
    return jnp.abs(jnp.fft.fft(x))


def interrupted(again: bool) -> Any:
    double(mesh=mesh()).lower(X).export("m", X)
    manifest = Path("m/manifest.json")
    manifest.write_text(manifest.read_text().replace("{", '{"interrupted": true, ', 1))
    if again:
        double(mesh=mesh()).lower(X).export("m", X)
    return run_folder(Path("m"))


def older(recording: Any) -> str:
    recording.save("old")
    with np.load("old") as file:
        text = {k: v.tobytes() for k, v in file.items() if b'"version": ' in v.tobytes()}
    ((name, header),) = text.items()
    np.savez("older", **{name: np.frombuffer(re.sub(rb'"version": \d+', b'"version": 0', header), np.uint8)})
    return "older.npz"


def by_hand(shape: list[int]) -> Any:
    options: Any = {"shard_type": "devices", "shard_direction": "full_to_shard", "shard_dims": [0, 0]}
    return jm.jit(lambda x: jm.mesh_shard(x, shard_shape=shape, **options), mesh=mesh()).trace(X)


def sliced(size: int) -> str:
    def f(x: Any, i: Any) -> Any:
        return lax.dynamic_slice(x, (i, i), (1, 1))

    big = jax.ShapeDtypeStruct((size // 4, 4), jnp.int8)
    return jm.jit(f, mesh=mesh()).lower(big, jax.ShapeDtypeStruct((), jnp.int32)).as_text(strict=False)


def beyond_ttnn(convert: Any) -> Any:
    with ttnn.beyond.enabled():
        return convert(here(), B16)


def twice(folder: Path) -> Path:
    (one,) = (folder / "irs").glob("ttir*")
    one.with_name("ttir_99999999.mlir").write_text(one.read_text())
    return folder


def texts(*kept: str) -> Path:
    case = CASES_OF_PLAIN[0]
    made = exported(case)
    return write_folder({k: made[k] for k in kept or made}, Path(tempfile.mkdtemp()))


def diagnosed(x: Any) -> Any:
    traced = double(mesh=mesh(), in_shardings=P("y")).trace(X)
    made = {
        "shlo_frontend": jax.jit(lambda x: 2 * x).lower(X).as_text("stablehlo"),
        "ttir": traced.as_text(),
    }
    found = jm.diagnose(made, x)
    if found.verdict == "not comparable":
        raise jm.UnsupportedError(found.cause)
    return found


def of_several(x: Any, **chosen: Any) -> Any:
    def compiler(text: str) -> Any:
        return SimpleNamespace(refusal="", stages={}, ttir=jm.from_mlir(text).as_text(), ttnn="")

    path = Path(tempfile.mkdtemp()) / "several.mlir"
    kind = f"tensor<{'x'.join(map(str, x.shape))}xf32>"
    path.write_text("\n".join(f"func.func @{f}(%x: {kind}) -> {kind} {{\n  return %x : {kind}\n}}" for f in ("f", "g")))
    return jm.diagnose(path, x, compiler=compiler, **chosen)


B16 = ttnn.bfloat16
lax: Any = jax.lax
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
        "make the mapper for the device the tensor goes to": here}),
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
        "read each of ttnn.get_device_tensors":
            lambda: [helpers.to_numpy(t) for t in ttnn.get_device_tensors(tensor())],
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
        "give the arguments to export with": lambda: jm.jit(
            jax.random.key_data, mesh=mesh()).lower(of_machine()).export("m", of_machine())}),
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
    Case("the type of a tensor on the devices", lambda: ttnn.to_dtype(here(), B16), {
        "use ttnn.typecast": lambda: ttnn.typecast(here(), B16)}),
    Case("an argument of another type, on the mesh", lambda: double().lower(own()).compile()(X[:4]), {
        "call it with the same type": lambda: double().lower(own()).compile()(own()),
        "or trace it again": lambda: double(mesh=mesh()).lower(X[:4]).compile()(X[:4])}),
    Case("other devices in the context", lambda: on_others(mesh()), {
        "Leave the context": lambda: double(mesh=mesh())(X),
        "or make the function for its mesh": lambda: on_others(others())}),
    Case("a tensor that was donated", lambda: donated(tensor(), give=True).data, {
        "do not donate it": lambda: donated(tensor(), give=False).data}),
    Case("partly manual", lambda: partly(("y",)), {"Map over all axes": lambda: partly(("y", "x"))}),
    Case("a program of transfers", lambda: jm.jit(lambda x: distribute(S(0), S(1), full=x), mesh=mesh()).trace(
        X).as_text(), {
        "Lower it; .lower().as_text() is its TTNN text": lambda: jm.jit(
            lambda x: distribute(S(0), S(1), full=x), mesh=mesh()).trace(X).lower().as_text()}),
    Case("a long fft", lambda: printed(spectrum, np.ones(2**15, np.float32)), {
        "split it into shorter ones": lambda: printed(
            jax.vmap(spectrum), np.ones((2**7, 2**8), np.float32))}),
    Case("a gather of many rows", lambda: rows(2**17), {"gather from pieces of it": lambda: rows(2**15)}),
    Case("an interrupted export", lambda: interrupted(again=False), {
        "export the program again": lambda: interrupted(again=True)}),
    Case("a recording of another version", lambda: jm.Recording.load(older(record())), {
        "record it again": lambda: (record().save("r"), jm.Recording.load("r"))}),
    Case("an argument that is not emulated", lambda: ttnn.add(here(), here(), output_tensor=here()), {
        "leave it out": lambda: ttnn.add(here(), here())}),
    Case("a diagnosis with other arguments", lambda: diagnosed(X[:4]), {
        "give an array of that type": lambda: diagnosed(X)}),
    Case("a diagnosis without numbers", lambda: diagnosed(X * np.nan), {
        "give arguments that suit the program": lambda: diagnosed(X)}),
    Case("a diagnosis of no folder", lambda: jm.diagnose("none"), {
        "name a folder of export_path": lambda: jm.diagnose(texts())}),
    Case("a diagnosis of one text", lambda: jm.diagnose(texts("ttir", "ttnn")), {
        "irs/shlo_frontend*.mlir, irs/ttir*.mlir and irs/ttnn*.mlir": lambda: jm.diagnose(texts())}),
    Case("a machine for texts that are compiled", lambda: jm.diagnose(texts(), cluster="galaxy"), {
        "leave it out": lambda: jm.diagnose(texts())}),
    Case("arguments for several functions", lambda: of_several(X), {
        "function='f'": lambda: of_several(X, function="f")}),
    Case("pieces unlike dims, in a program", lambda: by_hand([1, 8]), {
        "write shard_shape = [8, 1]": lambda: by_hand([8, 1])}),
    Case("dates as a type", lambda: double(mesh=mesh()).trace(jax.ShapeDtypeStruct((8,), "M8[s]")), {
        "use a numeric dtype": lambda: double(mesh=mesh()).trace(jax.ShapeDtypeStruct((8,), jnp.int32))}),
    Case("a long name of a file", lambda: ttnn.dump_tensor("t" * 300, X), {
        "give another file": lambda: ttnn.dump_tensor("t" * 200, X)}),
    Case("the files of two programs", lambda: jm.diagnose(twice(texts())), {
        "keep the files of one program in a folder": lambda: jm.diagnose(texts())}),
    Case("a slice of many rows", lambda: sliced(2**32), {"gather from pieces of it": lambda: sliced(2**30)}),
    Case("the type of a tensor on the devices, beyond ttnn", lambda: beyond_ttnn(ttnn.to_dtype), {
        "use ttnn.typecast": lambda: beyond_ttnn(ttnn.typecast)}),
]  # fmt: skip


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Paths are of a folder of the test."""
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_advice_is_in_the_message_and_works(case: Case) -> None:
    known.test_advice_is_in_the_message_and_works(case)
