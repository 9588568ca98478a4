"""Every public callable with hostile values in every argument: what a call may raise, and where an error comes from.

`TARGETS` are calls whose arguments are right; `POOL` are values that are wrong, or odd, almost everywhere. `strike`
puts one value in the place of one argument and gives what is wrong with the error, or None: nothing was raised (the
value is good there), or a named error of jaxmesh was.
"""

from __future__ import annotations

import functools
import re
import tempfile
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AbstractMesh, Mesh, NamedSharding, PartitionSpec as P

import jaxmesh as jm
from jaxmesh import ttnn
from jaxmesh.dialects import ttnn as ttnn_dialect
from jaxmesh.ttnn import beyond, helpers
from tests.generators.ttnn_calls import arguments, cases_of, function_of, random_tensor

ABSTRACT = AbstractMesh((2, 4), ("y", "x"))
KIND = jax.ShapeDtypeStruct((16, 8), jnp.float32)
FULL = np.arange(128, dtype=np.float32).reshape(16, 8)


@functools.cache
def mesh() -> Mesh:
    return jm.make_mesh((2, 4))


@functools.cache
def device() -> ttnn.MeshDevice:
    return ttnn.open_mesh_device((2, 4))


def spread(full: Any, *dims: int | None, on: Any = None) -> Any:
    """A tensor on the devices, cut along a dim per mesh axis."""
    where = on or device()
    rows = [ttnn.PlacementReplicate() if d is None else ttnn.PlacementShard(d) for d in dims]
    mapper = ttnn.create_mesh_mapper(where, ttnn.MeshMapperConfig(rows))
    return ttnn.distribute_tensor(full, mapper, where)


@functools.cache
def tensor() -> Any:
    return spread(FULL, 0, 1)


# --- values ----------------------------------------------------------------------------------------------------------


class Text(str):
    """A string of another class."""

    __slots__ = ()


class Words:
    """What looks like a number and is none."""

    def __index__(self) -> int:
        raise TypeError("no index")


def _closed() -> Any:
    opened = ttnn.open_mesh_device((2, 4))
    opened.close()
    return opened


def _deleted() -> Any:
    array = jnp.arange(8.0) + 1
    array.delete()
    return array


def _deallocated() -> Any:
    made = spread(FULL, 0, 1)
    made.deallocate()
    return made


def _of_deleted() -> Any:
    made = spread(FULL, 0, 1)
    made.data.delete()
    return made


@functools.cache
def _leaked() -> Any:
    found: list[Any] = []

    def body(x: Any) -> Any:
        found.append(x)
        return x

    jax.make_jaxpr(body)(FULL)
    return found[0]


def _partial() -> Any:
    config = ttnn.MeshMapperConfig([ttnn.PlacementShard(0)], [4])
    return ttnn.distribute_tensor(FULL, ttnn.create_mesh_mapper(device(), config), device())


def _vmapped_from_the_end() -> Any:
    return jax.tree.map(lambda a: jnp.moveaxis(a, 0, -1), tensor())


class Array(np.ndarray[Any, Any]):
    """An array of another class."""


POOL: dict[str, Callable[[], Any]] = {
    "None": lambda: None,
    "True": lambda: True,
    "0": lambda: 0,
    "-1": lambda: -1,
    "3": lambda: 3,
    "-3": lambda: -3,
    "2**40": lambda: 2**40,
    "2**70": lambda: 2**70,
    "-2**70": lambda: -(2**70),
    "1.5": lambda: 1.5,
    "nan": lambda: float("nan"),
    "inf": lambda: float("inf"),
    "1e300": lambda: 1e300,
    "1j": lambda: 1j,
    "empty text": lambda: "",
    "text": lambda: "x",
    "odd text": lambda: "\0\ud800",
    "text of a class": lambda: Text("y"),
    "digits": lambda: "2",
    "bytes": lambda: b"\xff\x00",
    "path": lambda: Path("/nonexistent/folder/file"),
    "root": lambda: Path("/"),
    "[]": list,
    "{}": dict,
    "set": lambda: {1, 2},
    "()": lambda: (),
    "[None]": lambda: [None],
    "[-1]": lambda: [-1],
    "[0, 0]": lambda: [0, 0],
    "[2**40, 2**40]": lambda: [2**40, 2**40],
    "[2**70]": lambda: [2**70],
    "[0.5, 1]": lambda: [0.5, 1],
    "['x', 1]": lambda: ["x", 1],
    "[[0], [1]]": lambda: [[0], [1]],
    "ragged": lambda: [[0], [1, 2]],
    "dict of odd keys": lambda: {"a": 1, 2: 3},
    "generator": lambda: (i for i in (0, 1)),
    "object": object,
    "lambda": lambda: lambda *_, **__: None,
    "class": lambda: int,
    "module": lambda: np,
    "Words": Words,
    "object array": lambda: np.array([object(), None]),
    "text array": lambda: np.array(["a", "b"]),
    "date array": lambda: np.array(["2020-01-01"], "datetime64[D]"),
    "structured array": lambda: np.zeros(3, [("a", np.int32), ("b", np.float32)]),
    "empty array": lambda: np.zeros((0, 3), np.float32),
    "array of rank 0": lambda: np.array(2),
    "array of rank 9": lambda: np.zeros((1,) * 9, np.float32),
    "bool array": lambda: np.array([True, False]),
    "longdouble": lambda: np.zeros(4, np.longdouble),
    "masked": lambda: np.ma.masked_array([1.0, 2.0], [True, False]),
    "strange shape": lambda: np.zeros((3, 5), np.float32),
    "np.int64": lambda: np.int64(1),
    "np.uint8": lambda: np.uint8(255),
    "np.float16": lambda: np.float16(0.5),
    "np.bool": lambda: np.bool_(True),
    "np.str": lambda: np.str_("x"),
    "np.datetime": lambda: np.datetime64("2020-01-01"),
    "jax array": lambda: jnp.arange(3.0),
    "keys": lambda: jax.random.key(0),
    "leaked tracer": _leaked,
    "deleted array": _deleted,
    "huge type": lambda: jax.ShapeDtypeStruct((2**40, 2**40), jnp.float32),
    "type": lambda: jax.ShapeDtypeStruct((3,), jnp.int32),
    "dtype": lambda: np.dtype("float32"),
    "object dtype": lambda: np.dtype(object),
    "jax dtype": lambda: jnp.bfloat16,
    "closed device": _closed,
    "device": device,
    "tensor": tensor,
    "tensor on another mesh": lambda: spread(FULL, 0, 1, on=ttnn.open_mesh_device((4, 2))),
    "tensor on some devices": _partial,
    "host tensor of all": lambda: ttnn.from_device(tensor()),
    "deallocated tensor": _deallocated,
    "tensor of a deleted array": _of_deleted,
    "tensor with its dims moved": _vmapped_from_the_end,
    "host tensor": lambda: ttnn.Tensor([1.0, 2.0]),
    "abstract mesh": lambda: ABSTRACT,
    "empty mesh": lambda: Mesh(np.array(jax.devices()[0], object), ()),
    "mesh of one": lambda: jm.make_mesh((1,)),
    "spec": lambda: P("y", "x"),
    "long spec": lambda: P("y", None, "x", None, None),
    "spec twice": lambda: P("y", "y"),
    "spec unknown": lambda: P("nothing"),
    "spec unconstrained": lambda: P(P.UNCONSTRAINED),
    "spec of numbers": lambda: P(0, 1),
    "sharding": lambda: NamedSharding(mesh(), P()),
    "long tuple": lambda: (0,) * 10_000,
    "long text": lambda: "x" * 1_000_000,
    "array of a class": lambda: np.arange(4.0).view(Array),
    "complex array": lambda: np.ones((2, 3), np.complex64),
    "float16 array": lambda: np.ones((3, 5), np.float16),
    "int4 array": lambda: np.ones((3, 5), jnp.int4),
    "mesh without devices": lambda: Mesh(np.zeros((0,), object), ("x",)),
    "abstract mesh of none": lambda: AbstractMesh((0,), ("x",)),
    "wrong enum": lambda: ttnn.BufferType.DRAM,
    "layout": lambda: ttnn.Layout.TILE,
    "block float": lambda: ttnn.bfloat8_b,
    "placement": lambda: ttnn.PlacementShard(7),
    "mapper": lambda: ttnn.replicate_tensor_to_mesh_mapper(device()),
    "composer": lambda: ttnn.concat_mesh_to_tensor_composer(device(), 0),
}


# --- calls -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Target:
    """A public callable and right arguments for it.

    Attributes:
      call: takes the arguments by name.
      right: how to make each of them.
      without: values that mean something else there, with the reason.
      foreign: the same call of JAX, of a stand-in for it: an error of the same type and in the same words is right.
    """

    call: Callable[..., Any]
    right: Mapping[str, Callable[[], Any]]
    without: Mapping[str, str] = field(default_factory=dict)
    foreign: Callable[..., Any] | None = None


def traced(body: Callable[..., Any]) -> Callable[..., Any]:
    """The call inside a program over a mesh without devices, which its array argument `x` enters as it is."""

    def call(**arguments: Any) -> Any:
        return jm.jit(lambda full: body(full, **arguments), mesh=ABSTRACT).trace(KIND)

    return call


def double(x: Any) -> Any:
    return jm.shard_to_full(2 * jm.full_to_shard(x, P("y", "x")), P("y", "x"))


@functools.cache
def doubled() -> Any:
    return jm.jit(double, mesh=mesh())


@functools.cache
def stages() -> dict[str, Any]:
    made = doubled().trace(FULL)
    lowered = made.lower()
    return {"traced": made, "lowered": lowered, "compiled": lowered.compile()}


def just(value: Any) -> Callable[[], Any]:
    return lambda: value


MODEL = object()


def _exported(directory: Any, **arguments: Any) -> Any:
    with tempfile.TemporaryDirectory() as folder:
        where = f"{folder}/model" if directory is MODEL else directory
        return stages()["lowered"].export(where, arguments.pop("x"), **arguments)


def _jitted(x: Any, **options: Any) -> Any:
    return jm.jit(**options).trace(x, 2.0)


def _jitted_by_jax(x: Any, mesh: Any = None, **options: Any) -> Any:
    return jax.jit(options.pop("fun"), **options).trace(x, 2.0)


def _codegen(f: Any, x: Any, export_path: Any, mesh: Any, **options: Any) -> Any:
    with tempfile.TemporaryDirectory() as folder:
        where = f"{folder}/model" if export_path is MODEL else export_path
        return jm.codegen_py(f, x, mesh=mesh, export_path=where, **options)


def _dumped(file_name: Any, tensor: Any) -> Any:
    with tempfile.TemporaryDirectory() as folder:
        return ttnn.dump_tensor(f"{folder}/t" if file_name is MODEL else file_name, tensor)


@functools.cache
def _stored() -> str:
    folder = tempfile.mkdtemp()
    ttnn.dump_tensor(f"{folder}/t", tensor())
    return f"{folder}/t"


TEXT = """module attributes {ttcore.meshes = #ttcore.meshes<[<"mesh" = 2x4>]>} {
  func.func @main(%x: tensor<4x8xf32>) -> tensor<4x8xf32> { return %x : tensor<4x8xf32> }
}"""
RAW = {"shard_type": "devices", "shard_direction": "full_to_shard", "shard_shape": [2, 4], "shard_dims": [0, 1]}
S, R = ttnn.PlacementShard(0), ttnn.PlacementReplicate()


def _mapped(f: Any, x: Any, **options: Any) -> Any:
    return jm.shard_map(f, **options)(x)


def _mapped_by_jax(f: Any, x: Any, **options: Any) -> Any:
    return jax.shard_map(f, **options)(x)


def _add(a: Any, b: Any) -> Any:
    return double(a) + b


PLAIN: dict[str, Target] = {
    "make_mesh": Target(jm.make_mesh, {
        "axis_shapes": just((2, 4)), "axis_names": just(("y", "x")), "axis_types": just(None), "devices": just(None)}),
    "emulate": Target(jm.emulate, {"count": just(8)}),
    "jit": Target(_jitted, {
        "fun": just(_add), "mesh": just(ABSTRACT), "static_argnums": just(None), "static_argnames": just(None),
        "donate_argnums": just(None), "donate_argnames": just(None), "x": just(FULL)}, without={
            "None": "leaves the function out: a decorator is made", "class": "runs, and raises what int raises",
            "jax dtype": "the same"}, foreign=_jitted_by_jax),
    "jit, called": Target(lambda x: doubled()(x), {"x": just(FULL)}),
    "jit, called by name": Target(lambda x: doubled()(x=x), {"x": just(FULL)}),
    "jit, a static argument": Target(
        lambda n: jm.jit(lambda x, n: x, mesh=mesh(), static_argnums=1)(FULL, n), {"n": just(3)},
        foreign=lambda n: jax.jit(lambda x, n: x, static_argnums=1)(FULL, n)),
    "trace": Target(lambda x: doubled().trace(x), {"x": just(FULL)}),
    "lower": Target(lambda x: doubled().lower(x), {"x": just(FULL)}),
    "dynamic": Target(lambda x: doubled().dynamic(x), {"x": just(FULL)}),
    "compiled": Target(lambda x: stages()["compiled"](x), {"x": just(FULL)}),
    "reference": Target(lambda x: stages()["lowered"].reference(x), {"x": just(FULL)}),
    "Traced.as_text": Target(lambda **k: stages()["traced"].as_text(**k), {
        "dialect": just("ttir"), "debug_info": just(False), "groups": just(True), "unroll_limit": just(1000)}),
    "Lowered.as_text": Target(lambda **k: stages()["lowered"].as_text(**k), {
        "dialect": just("ttnn"), "debug_info": just(False), "groups": just(True), "unroll_limit": just(1000)}),
    "export": Target(_exported, {
        "directory": just(MODEL), "x": just(FULL), "languages": just(("python",)), "seed": just(0),
        "groups": just(True), "unroll_limit": just(1000)}, without={"root": "writes nothing: it holds other files"}),
    "mesh_shard": Target(traced(lambda full, **k: jm.mesh_shard(k.pop("x", full), **k)), {
        "x": just(FULL), **{k: just(v) for k, v in RAW.items()}, "assume_replicated": just(False)}),
    "full_to_shard": Target(traced(lambda full, x, spec: jm.full_to_shard(x, spec)), {
        "x": just(FULL), "spec": just(P("y"))}),
    "shard_to_full": Target(traced(lambda full, x, spec, assume: jm.shard_to_full(x, spec, assume_replicated=assume)), {
        "x": just(FULL), "spec": just(P("y")), "assume": just(True)}),
    "visualize": Target(jm.visualize, {
        "x": just((8, 4)), "spec": just(P("y")), "mesh": mesh, "dtype": just(np.float32)}),
    "from_mlir": Target(jm.from_mlir, {
        "source": just(TEXT), "mesh": just(None), "func": just("main"), "strict": just(False)}),
    "shard_map": Target(_mapped, {
        "f": just(lambda x: x), "mesh": mesh, "in_specs": just(P("y")), "out_specs": just(P("y")),
        "axis_names": just(frozenset()), "check_vma": just(True), "x": just(FULL)}, foreign=_mapped_by_jax),
    "shard_map, traced": Target(
        lambda x: jm.shard_map(lambda x: x, mesh=mesh(), in_specs=P("y"), out_specs=P("y")).trace(x),
        {"x": just(FULL)},
        foreign=lambda x: jax.shard_map(lambda x: x, mesh=mesh(), in_specs=P("y"), out_specs=P("y"))(x)),
    "codegen_py": Target(_codegen, {
        "f": just(double), "x": just(FULL), "mesh": mesh, "export_path": just(MODEL), "static_argnums": just(()),
        "static_argnames": just(()), "groups": just(True), "unroll_limit": just(1000), "export_tensors": just(True),
        "optimization_level": just(0)}, without={"class": "runs, and raises what int raises"},
        foreign=lambda f, x, static_argnums, static_argnames, **_: jax.jit(
            f, static_argnums=static_argnums, static_argnames=static_argnames).trace(x)),
    "MeshTensor": Target(lambda **k: repr(jm.MeshTensor(**k)), {
        "data": lambda: tensor().data, "mesh": mesh, "varying": just(("y", "x"))}),
    "MeshTensor.deallocate": Target(lambda force: spread(FULL, 0, 1).deallocate(force), {"force": just(True)}),
    "MeshShape": Target(lambda values: jm.MeshShape(values), {"values": just([2, 4])}),
    "MeshShape, rows": Target(lambda a, b: jm.MeshShape(a, b), {"a": just(2), "b": just(4)}),
    "MeshCoordinate": Target(lambda values: jm.MeshCoordinate(values), {"values": just([0, 1])}),
    "PlacementShard": Target(lambda dim: jm.PlacementShard(dim), {"dim": just(0)}),
    "MeshMapperConfig": Target(jm.MeshMapperConfig, {
        "placements": just([S, R]), "mesh_shape_override": just([2, 4])}),
    "MeshComposerConfig": Target(jm.MeshComposerConfig, {"dims": just([0, 1]), "mesh_shape_override": just([2, 4])}),
    "ttnn.Shape": Target(lambda values: ttnn.Shape(values), {"values": just([2, 4])}),
    "ttnn.Tensor": Target(ttnn.Tensor, {
        "data": just([1.0, 2.0]), "shape": just([2]), "dtype": just(ttnn.float32), "layout": just(ttnn.Layout.TILE),
        "device": device, "memory_config": just(ttnn.DRAM_MEMORY_CONFIG)}),
    "ttnn.MemoryConfig": Target(lambda **k: ttnn.to_memory_config(tensor(), ttnn.MemoryConfig(**k)), {
        "memory_layout": just(ttnn.TensorMemoryLayout.INTERLEAVED), "buffer_type": just(ttnn.BufferType.L1),
        "shard_spec": just(None)}),
    "ttnn.MeshDevice": Target(lambda mesh: ttnn.MeshDevice(mesh).shape, {"mesh": mesh}),
    "ttnn.TensorToMesh": Target(lambda **k: ttnn.distribute_tensor(FULL, ttnn.TensorToMesh(**k)), {
        "mesh": mesh, "config": just(ttnn.MeshMapperConfig([S, R]))}),
    "ttnn.MeshToTensor": Target(lambda **k: ttnn.aggregate_tensor(tensor(), ttnn.MeshToTensor(**k)), {
        "mesh": mesh, "config": just(ttnn.MeshComposerConfig([0, 1]))}),
    "ttnn.aggregate_tensor": Target(ttnn.aggregate_tensor, {
        "tensor": tensor, "composer": lambda: ttnn.create_mesh_composer(device(), ttnn.MeshComposerConfig([0, 1]))}),
    "ttnn.close_device": Target(ttnn.close_device, {"device": lambda: ttnn.open_mesh_device((2, 4))},
        without={"device": "would close the device of the other calls"}),
    "ttnn.close_mesh_device": Target(ttnn.close_mesh_device, {
        "mesh_device": lambda: ttnn.open_mesh_device((2, 4))},
        without={"device": "would close the device of the other calls"}),
    "ttnn.concat_mesh_to_tensor_composer": Target(ttnn.concat_mesh_to_tensor_composer, {
        "mesh_device": device, "dim": just(0)}),
    "ttnn.create_mesh_composer": Target(ttnn.create_mesh_composer, {
        "mesh_device": device, "config": just(ttnn.MeshComposerConfig([0, 1]))}),
    "ttnn.create_mesh_mapper": Target(ttnn.create_mesh_mapper, {
        "mesh_device": device, "config": just(ttnn.MeshMapperConfig([S, R]))}),
    "ttnn.deallocate": Target(ttnn.deallocate, {"tensor": lambda: spread(FULL, 0, 1), "force": just(True)},
        without={"tensor": "would give back the tensor of the other calls"}),
    "ttnn.distribute_tensor": Target(ttnn.distribute_tensor, {
        "tensor": just(FULL), "mapper": lambda: ttnn.shard_tensor_to_mesh_mapper(device(), 0),
        "mesh_device": device}),
    "ttnn.distribute_tensor, traced": Target(traced(lambda full, x, mapper: ttnn.distribute_tensor(x, mapper)), {
        "x": just(FULL), "mapper": lambda: ttnn.shard_tensor_to_mesh_mapper(mesh(), 0)}),
    "ttnn.aggregate_tensor, traced": Target(
        traced(lambda full, x, composer: ttnn.aggregate_tensor(jm.full_to_shard(full, P("y")) if x is FULL else x,
                                                               composer)), {
            "x": just(FULL), "composer": lambda: ttnn.concat_mesh_to_tensor_composer(mesh(), 0)},
        without=dict.fromkeys(
            ("tensor", "tensor on some devices", "host tensor of all"),
            "is aggregated before the program runs; JAX refuses a host tensor as the result of a program")),
    "ttnn.dump_tensor": Target(_dumped, {"file_name": just(MODEL), "tensor": tensor}),
    "ttnn.load_tensor": Target(ttnn.load_tensor, {"file_name": _stored, "device": device}),
    "ttnn.from_device": Target(ttnn.from_device, {"tensor": tensor, "blocking": just(True), "cq_id": just(None)}),
    "ttnn.from_host_shards": Target(ttnn.from_host_shards, {
        "tensors": just([FULL] * 8), "mesh_shape": just((2, 4))}),
    "helpers.from_numpy": Target(helpers.from_numpy, {
        "array": just(FULL), "dtype": just(ttnn.float32), "layout": just(ttnn.Layout.TILE), "device": device,
        "memory_config": just(None), "mesh_mapper": lambda: ttnn.shard_tensor_to_mesh_mapper(device(), 0)}),
    "ttnn.from_torch": Target(ttnn.from_torch, {"tensor": just(None)}),
    "ttnn.get_device_tensors": Target(ttnn.get_device_tensors, {"tensor": tensor}),
    "helpers.get_dtype": Target(helpers.get_dtype, {"tensor": tensor}),
    "ttnn.open_device": Target(ttnn.open_device, {"device_id": just(0), "l1_small_size": just(0)}),
    "ttnn.open_mesh_device": Target(ttnn.open_mesh_device, {
        "mesh_shape": just((2, 4)), "l1_small_size": just(0), "trace_region_size": just(0),
        "num_command_queues": just(1), "dispatch_core_config": just(None), "offset": just(None),
        "physical_device_ids": just((0, 1, 2, 3, 4, 5, 6, 7)), "worker_l1_size": just(0)}),
    "ttnn.replicate_tensor_to_mesh_mapper": Target(ttnn.replicate_tensor_to_mesh_mapper, {"mesh_device": device}),
    "ttnn.set_fabric_config": Target(ttnn.set_fabric_config, {"config": just(ttnn.FabricConfig.DISABLED)}),
    "ttnn.shard_tensor_to_mesh_mapper": Target(ttnn.shard_tensor_to_mesh_mapper, {
        "mesh_device": device, "dim": just(0)}),
    "ttnn.to_device": Target(ttnn.to_device, {
        "tensor": just(FULL), "device": device, "memory_config": just(None), "cq_id": just(None)}),
    "ttnn.to_dtype": Target(ttnn.to_dtype, {"tensor": lambda: ttnn.Tensor([1.0]), "dtype": just(ttnn.bfloat16)}),
    "ttnn.to_layout": Target(ttnn.to_layout, {
        "tensor": tensor, "layout": just(ttnn.Layout.TILE), "dtype": just(None), "memory_config": just(None)}),
    "ttnn.to_memory_config": Target(ttnn.to_memory_config, {
        "tensor": tensor, "memory_config": just(ttnn.L1_MEMORY_CONFIG), "dtype": just(None)}),
    "helpers.to_numpy": Target(helpers.to_numpy, {
        "tensor": tensor, "mesh_composer": lambda: ttnn.concat_mesh_to_tensor_composer(device(), 0)}),
    "ttnn.to_torch": Target(ttnn.to_torch, {
        "tensor": tensor, "mesh_composer": lambda: ttnn.concat_mesh_to_tensor_composer(device(), 0),
        "torch_rank": just(None)}),
}  # fmt: skip


def _of_table() -> Iterator[tuple[str, Target]]:
    """The calls that are made from rows, with the arguments that their own test gives them."""

    for name, entry in ttnn_dialect.OPS.items():
        if name == "constant" or not cases_of(name):
            continue
        operands, attributes = cases_of(name)[0]
        kinds = [
            None if o is None else o if len(o) == 2 and isinstance(o[0], tuple) else (o, np.float32) for o in operands
        ]
        # Truth values go beyond the real library, which refuses them.
        with beyond.enabled():
            tensors = [None if k is None else random_tensor(device(), *k, seed=i) for i, k in enumerate(kinds)]
        args, named = arguments(entry, tensors, attributes, np.dtype("float32"), device())
        by_place = [p.name for p in entry.python.params if not p.keyword]
        right = {**dict(zip(by_place, args, strict=True)), **named}
        yield (
            f"{entry.python.callee} ({name})",
            Target(function_of(entry), {k: just(v) for k, v in right.items()}, without=_WRITTEN.get(name, {})),
        )


_WRITTEN: dict[str, dict[str, str]] = {}


_SPECS = {name: "a PartitionSpec's own operator raises NotImplementedError" for name in POOL if "spec" in name}


def operators() -> Iterator[tuple[str, Target]]:
    import operator as o

    for f in (o.add, o.sub, o.mul, o.truediv, o.matmul, o.pow, o.eq, o.ne, o.lt, o.le, o.gt, o.ge):
        yield (
            f"tensor {f.__name__} other",
            Target(lambda other, f=f: f(tensor(), other), {"other": tensor}, without=_SPECS),
        )
        yield (
            f"other {f.__name__} tensor",
            Target(lambda other, f=f: f(other, tensor()), {"other": tensor}, without=_SPECS),
        )


@functools.cache
def targets() -> dict[str, Target]:
    return {**PLAIN, **dict(operators()), **dict(_of_table())}


# --- judgement -------------------------------------------------------------------------------------------------------


_OPERATORS = r"unsupported operand type|'\S+' not supported between|can('t| only) (concat|multiply sequence)"
"""Python's own words for an operator between types that have none; of sequences it speaks otherwise."""


def strike(target: Target, argument: str, value: str) -> str | None:
    """What is wrong with the error of a call with a pool value in the place of one argument; None if nothing is."""
    if value in target.without:
        return None

    def arguments() -> dict[str, Any]:
        return {k: POOL[value]() if k == argument else make() for k, make in target.right.items()}

    error = raised(lambda: target.call(**arguments()))
    if error is None or isinstance(error, jax.errors.UnexpectedTracerError):
        # A value of a trace that is over: JAX alone knows, and says where it was made and how to find the leak.
        return None
    if isinstance(error, jm.JaxmeshError):
        return None if str(error).strip() else f"{type(error).__name__} without a word"
    if isinstance(error, TypeError) and re.match(_OPERATORS, str(error)):
        return None
    if target.foreign is not None:
        theirs = raised(lambda: target.foreign(**arguments()))
        if theirs is not None and type(theirs) is type(error) and _words(theirs) == _words(error):
            return None
    frames = traceback.extract_tb(error.__traceback__)
    mine = [f for f in frames if "/jaxmesh/" in f.filename] or frames
    where = f"{frames[-1].filename.split('site-packages/')[-1]}:{frames[-1].lineno}"
    who = f"{Path(mine[-1].filename).name}:{mine[-1].lineno} {mine[-1].line}"
    return f"{type(error).__name__}: {str(error)[:160]!r} at {where} by {who}"


def raised(call: Callable[[], Any]) -> BaseException | None:
    """What a call raises; warnings are no matter here."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            call()
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:
        return error
    return None


def _words(error: BaseException) -> str:
    """A message without addresses, and without the traceback that JAX prints in some."""
    return re.sub(r"0x[0-9a-f]+", "0x", str(error).partition("Traceback")[0])
