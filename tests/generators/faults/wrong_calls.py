"""Wrong calls of the public API: what each raises, and what its message says.

A row is a name, the call, the error, the builtin that a Python user expects, and what the message must hold: a regular
expression with the rule, both offending values and the remedy.
"""

# ruff: noqa: E501
from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AbstractMesh, AxisType, Mesh, PartitionSpec as P

import jaxmesh as jm
from jaxmesh import ttnn
from jaxmesh.ttnn import helpers

Row = tuple[str, Callable[[], Any], type[Exception], type[Exception], str]
ABSTRACT = AbstractMesh((2, 4), ("y", "x"))
FULL = np.arange(128, dtype=np.float32).reshape(16, 8)
S, R = ttnn.PlacementShard, ttnn.PlacementReplicate()


@functools.cache
def mesh() -> Mesh:
    return jm.make_mesh((2, 4))


@functools.cache
def device() -> ttnn.MeshDevice:
    return ttnn.open_mesh_device((2, 4))


def spread(*dims: int | None, full: Any = FULL) -> Any:
    config = ttnn.MeshMapperConfig([R if d is None else S(d) for d in dims])
    return ttnn.distribute_tensor(full, ttnn.create_mesh_mapper(device(), config), device())


@functools.cache
def t() -> Any:
    """A tensor on the devices, made before any trace reads it: made in one, it would be a part of that program."""
    return spread(0, 1)


def tiled() -> Any:
    return ttnn.to_layout(t(), ttnn.TILE_LAYOUT)


def traced(body: Callable[[Any], Any]) -> Callable[[], Any]:
    return lambda: jm.jit(body, mesh=ABSTRACT).trace(jax.ShapeDtypeStruct((16, 8), jnp.float32))


def shard(**attributes: Any) -> Callable[[], Any]:
    base = {"shard_type": "devices", "shard_direction": "full_to_shard", "shard_shape": [2, 4], "shard_dims": [0, 1]}
    return traced(lambda x: jm.mesh_shard(x, **{**base, **attributes}))


def join(**attributes: Any) -> Callable[[], Any]:
    return shard(shard_direction="shard_to_full", **attributes)


def double(x: Any) -> Any:
    return jm.shard_to_full(2 * jm.full_to_shard(x, P("y", "x")), P("y", "x"))


def two(x: Any, n: Any) -> Any:
    return double(x) * n


@functools.cache
def lowered() -> Any:
    return jm.jit(double, mesh=mesh()).lower(FULL)


@functools.cache
def compiled() -> Any:
    return lowered().compile()


def gone(make: Callable[[], Any]) -> Any:
    """An array or a tensor after its memory was given back."""
    made = make()
    made.deallocate() if isinstance(made, jm.MeshTensor) else made.delete()
    return made


def endless_list() -> list[Any]:
    rows: list[Any] = []
    rows.append(rows)
    return rows


def closed() -> Any:
    opened = ttnn.open_mesh_device((2, 4))
    ttnn.close_mesh_device(opened)
    return opened


def jit(fun: Callable[..., Any] = two, **options: Any) -> Callable[[], Any]:
    return lambda: jm.jit(fun, mesh=ABSTRACT, **options)


ARG, VALUE, VERIFY = (
    (jm.ArgumentTypeError, TypeError),
    (jm.ArgumentValueError, ValueError),
    (jm.VerifyError, ValueError),
)
SPEC, MESH, HOST = (jm.SpecError, ValueError), (jm.MeshError, ValueError), (jm.ResidencyError, ValueError)
VARIES, OTHER = (jm.ReplicationError, ValueError), (jm.MeshMismatchError, ValueError)
UNSAID, FILE = (jm.UnsupportedError, NotImplementedError), (jm.MissingFileError, FileNotFoundError)

MESHES: list[Row] = [
    ("no shape", lambda: jm.make_mesh(()), *MESH, r"positive integers, got \(\)"),
    ("a number", lambda: jm.make_mesh(8), *ARG, r"row of positive integers.*got 8"),
    ("a size of 0", lambda: jm.make_mesh((2, 0)), *MESH, r"positive integers, got \(2, 0\)"),
    ("a negative size", lambda: jm.make_mesh((-2, 4)), *MESH, r"got \(-2, 4\)"),
    ("a size of 2.0", lambda: jm.make_mesh((2.0, 4)), *MESH, r"got \(2\.0, 4\)"),
    ("a truth value", lambda: jm.make_mesh((True, 4)), *MESH, r"got \(True, 4\)"),
    ("text", lambda: jm.make_mesh("2x4"), *MESH, r"got '2x4'"),
    ("too few names", lambda: jm.make_mesh((2, 4), ("x",)), *MESH, r"\(2, 4\) needs 2 different axis names.*\('x',\)"),
    ("equal names", lambda: jm.make_mesh((2, 4), ("x", "x")), *MESH, r"2 different axis names.*\('x', 'x'\)"),
    ("names that are numbers", lambda: jm.make_mesh((2, 4), (0, 1)), *ARG, r"names.*got \(0, 1\)"),
    ("names no row", lambda: jm.make_mesh((2,), 3), *ARG, r"row of names as axis_names, got 3"),
    ("too many types", lambda: jm.make_mesh((2,), axis_types=(AxisType.Auto,) * 3), *MESH,
     r"\(2,\) needs 1 axis types, got 3"),
    ("types that are text", lambda: jm.make_mesh((2,), axis_types=("auto",)), *ARG, r"AxisType, got \('auto',\)"),
    ("few devices", lambda: jm.make_mesh((2, 4), devices=jax.devices()[:3]), jm.DeviceCountError, ValueError,
     r"\(2, 4\) needs 8 devices, got 3"),
    ("a device twice", lambda: jm.make_mesh((2,), devices=[jax.devices()[1]] * 2), *MESH, r"once, got.*\[1, 1\]"),
    ("devices by number", lambda: jm.make_mesh((2,), devices=[0, 1]), *ARG, r"jax\.Device.*got 0"),
    ("more than exist", lambda: jm.make_mesh((100,)), jm.DeviceCountError, ValueError, r"100.*only 16 .*emulate\(100\)"),
    ("emulate more than XLA counts", lambda: jm.emulate(2049), jm.DeviceCountError, ValueError, r"2049 .*at most 2048"),
    ("a mesh of more", lambda: jm.make_mesh((64, 64)), jm.DeviceCountError, ValueError, r"4096 .*at most 2048"),
    ("emulate none", lambda: jm.emulate(0), *ARG, r"positive integer, got 0"),
    ("emulate half", lambda: jm.emulate(1.5), *ARG, r"positive integer, got 1\.5"),
    ("emulate True", lambda: jm.emulate(True), *ARG, r"positive integer, got True"),
    ("emulate too many", lambda: jm.emulate(17), jm.DeviceCountError, ValueError, r"17 .*only 16 .*XLA_FLAGS=\S+=17"),
    ("jit over a shape", lambda: jm.jit(double, mesh=(2, 4)), *ARG, r"Mesh or AbstractMesh, got \(2, 4\)"),
    ("jit over a mesh device", lambda: jm.jit(double, mesh=device()), *ARG, r"AbstractMesh, got MeshDevice\(\[2, 4\]\)"),
    ("jit over an empty mesh", lambda: jm.jit(double, mesh=Mesh(np.array(jax.devices()[0], object), ())), *MESH,
     r"empty.*make_mesh"),
    ("no mesh at all", lambda: jm.jit(double)(FULL), *MESH, r"no mesh.*make_mesh.*set_mesh"),
    ("without devices", lambda: jm.jit(double, mesh=ABSTRACT)(FULL), *MESH, r"\(y=2, x=4\).*abstract.*make_mesh"),
    ("compile without devices", lambda: jm.jit(double, mesh=ABSTRACT).lower(FULL).compile(), *MESH, r"abstract"),
    ("export without devices", lambda: jm.jit(double, mesh=ABSTRACT).lower(FULL).export("m"), *MESH, r"abstract"),
]  # fmt: skip

CALLS: list[Row] = [
    ("no function", lambda: jm.jit(3), *ARG, r"takes a function, got 3"),
    ("a type for a number", lambda: t() == jnp.bfloat16, *ARG, r"ttnn\.eq takes numeric tensors, got dtype object"),
    ("a text of rank 0 for a number", lambda: ttnn.add(t(), np.array("a")), *ARG, r"ttnn\.add takes.*got dtype <U1"),
    ("a masked array beside a tensor", lambda: np.ma.masked_array([1.0, 2.0], [True, False]) == t(),
     jm.ResidencyError, ValueError, r"\(8, 2\) on 8 devices has no single value.*aggregate_tensor"),
    ("a masked array as long as the mesh", lambda: np.ma.masked_array(np.ones(4), [True] * 4) < t(),
     jm.ResidencyError, ValueError, r"\(8, 2\) on 8 devices has no single value.*aggregate_tensor"),
    ("static position beyond", jit(static_argnums=2), *VALUE, r"position 2.*two takes 2.*-2 to 1"),
    ("static position below", jit(static_argnums=-3), *VALUE, r"position -3.*two takes 2.*-2 to 1"),
    ("donated position beyond", jit(donate_argnums=(0, 7)), *VALUE, r"donate_argnums names position 7.*-2 to 1"),
    ("positions of nothing", jit(lambda: 0, static_argnums=0), *VALUE, r"position 0.*takes 0.*allowed: none"),
    ("static position a float", jit(static_argnums=1.0), *ARG, r"static_argnums.*position.*got 1\.0"),
    ("static positions as text", jit(static_argnums="1"), *ARG, r"static_argnums.*positions, got '1'"),
    ("static name unknown", jit(static_argnames="m"), *VALUE, r"'m', but those of two.*'x', 'n'"),
    ("static name no text", jit(static_argnames=[1]), *ARG, r"static_argnames.*names, got \[1\]"),
    ("static name a number", jit(static_argnames=1), *ARG, r"static_argnames.*names, got 1"),
    ("donated name unknown", jit(donate_argnames=("x", "z")), *VALUE, r"donate_argnames.*'z'.*'x', 'n'"),
    ("static and donated", jit(static_argnums=1, donate_argnums=1), *VALUE, r"1 is static.*donated.*not in both"),
    ("names of a builtin", jit(max, static_argnames="key"), *VALUE, r"\['key'\].*max.*static_argnums"),
    ("a tensor as static", lambda: jm.jit(two, mesh=mesh(), static_argnums=1)(FULL, t()), *ARG, r"static argument is MeshTensor.*dynamic"),
    ("text to a call", lambda: jm.jit(double, mesh=mesh())("text"), *ARG, r"argument x is 'text'.*static_argnums"),
    ("text in a dict to a call", lambda: jm.jit(double, mesh=mesh())({"a": "text"}), *ARG, r"\['a'\] is 'text'"),
    ("text by name", lambda: jm.jit(double, mesh=mesh())(x="text"), *ARG, r"argument x is 'text'"),
    ("an object to a call", lambda: jm.jit(double, mesh=mesh())(object()), *ARG, r"<object object.*no array"),
    ("objects in an array", lambda: jm.jit(double, mesh=mesh())(np.array([None])), *ARG, r"object"),
    ("dates to a call", lambda: jm.jit(double, mesh=mesh())(np.array(["2020"], "M8[Y]")), *ARG, r"M8|datetime64"),
    ("a number too wide", lambda: jm.jit(double, mesh=mesh())(2**40), *VALUE, r"1099511627776.*int32.*wider"),
    ("a number too wide, traced", lambda: jm.jit(double, mesh=mesh()).trace(2**40), *VALUE, r"1099511627776.*int32"),
    ("a type to a compiled program", lambda: compiled()(jax.ShapeDtypeStruct((16, 8), jnp.float32)), *ARG,
     r"of double is ShapeDtypeStruct.*holds no numbers"),
    ("a type to the reference", lambda: lowered().reference(jax.ShapeDtypeStruct((16, 8), jnp.float32)), *ARG,
     r"holds no numbers"),
    ("a type of half a dim", lambda: jm.jit(double, mesh=mesh()).trace(jax.ShapeDtypeStruct((1.5, 8), jnp.float32)), *ARG,
     r"shape \(1\.5, 8\).*integers"),
    ("a type of dates", lambda: jm.jit(double, mesh=mesh()).trace(jax.ShapeDtypeStruct((2,), "M8[s]")), *ARG,
     r"datetime64\[s\]"),
    ("a type of too many bytes", lambda: jm.jit(double, mesh=mesh()).trace(
        jax.ShapeDtypeStruct((2**40, 2**40), jnp.float32)), *VERIFY,
     rf"\[{2**40}, {2**40}\] of float32, {2**82} bytes.*at most {2**63 - 1}"),
    ("a type of too many bytes to a call", lambda: jm.jit(double, mesh=mesh())(
        jax.ShapeDtypeStruct((2**31, 2**31), jnp.float32)), *VERIFY, rf"{2**64} bytes.*at most {2**63 - 1}"),
    ("a deleted array", lambda: jm.jit(double, mesh=mesh())(gone(lambda: jnp.asarray(FULL) + 1)), jm.DeletedError,
     RuntimeError, r"deleted|donated"),
    ("a deallocated tensor", lambda: jm.jit(lambda x: x, mesh=mesh())(gone(lambda: spread(0, 1))), *HOST, r"deallocated"),
    ("a tensor of another mesh", lambda: jm.jit(lambda x: x, mesh=jm.make_mesh((4, 2)))(t()), *OTHER,
     r"y=2, x=4.*y=4, x=2.*one mesh"),
    ("compiled, another shape", lambda: compiled()(FULL[:4]), *ARG, r"float32\[16, 8\], called with float32\[4, 8\]"),
    ("compiled, another dtype", lambda: compiled()(FULL.astype(np.int32)), *ARG, r"float32\[16, 8\].*int32\[16, 8\]"),
    ("compiled, another tree", lambda: compiled()([FULL]), *ARG, r"tree.*called with.*\[\*\]"),
    ("compiled, nothing", lambda: compiled()(), *ARG, r"double was traced for.*tree"),
    ("compiled, text", lambda: compiled()("text"), *ARG, r"'text'"),
    ("compiled for no devices", lambda: lowered().compile(device_assignment=3), *ARG, r"row of jax\.Device.*got 3"),
    ("compiled for names", lambda: lowered().compile(device_assignment="ab"), *ARG, r"Device as device_assignment, got 'a' in it"),
    ("a list that contains itself", lambda: lowered().reference(endless_list()), *ARG, r"contains itself"),
    ("compiled, a list that contains itself", lambda: compiled()(endless_list()), *ARG, r"contains itself"),
    ("minimize a number", lambda: jm.minimize(3), *ARG, r"minimize takes a Diagnosis as diagnosis, got 3"),
    ("a mesh without end", lambda: ttnn.MeshShape(itertools.count()), *ARG, r"MeshShape takes integers, got count"),
    ("names without end", lambda: jm.make_mesh((2,), itertools.count()), *ARG, r"row of names as axis_names, got count"),
    ("compiled, in a trace", lambda: jax.jit(compiled())(FULL), *ARG, r"of double.*value of a trace.*float32\[16,8\].*jaxmesh\.jit"),
    ("reference, in a trace", lambda: jax.jit(lowered().reference)(FULL), *ARG, r"value of a trace"),
    ("reference, another shape", lambda: lowered().reference(FULL[:8]), *ARG, r"\[16, 8\].*\[8, 8\]"),
    ("unknown text", lambda: lowered().as_text("ttir"), *ARG, r"'ttnn', 'python', 'cpp', 'jaxpr', got 'ttir'"),
    ("unknown text of a traced one", lambda: jm.jit(double, mesh=ABSTRACT).trace(FULL).as_text("ttnn"), *ARG,
     r"'ttir', 'jaxpr', got 'ttnn'"),
    ("a text by number", lambda: lowered().as_text(1), *ARG, r"got 1"),
    ("groups no truth", lambda: lowered().as_text(groups=1), *ARG, r"True or False as groups, got 1"),
    ("groups not hashable", lambda: lowered().as_text(groups=[]), *ARG, r"as groups, got \[\]"),
    ("debug_info no truth", lambda: lowered().as_text(debug_info="no"), *ARG, r"as debug_info, got 'no'"),
    ("a negative limit", lambda: lowered().as_text(unroll_limit=-1), *ARG, r"integer from 0 on as unroll_limit, got -1"),
    ("half a limit", lambda: lowered().as_text(unroll_limit=0.5), *ARG, r"unroll_limit, got 0\.5"),
    ("a number of 5,000 digits", lambda: t() + 10**5000, *VERIFY, r"int that cannot be shown.*float32"),
    ("a void", lambda: t() + np.void(b"abc"), *VERIFY, r"np\.void.*float32"),
    ("cores that are numbers", lambda: ttnn.CoreRangeSet([1]), *ARG, r"CoreRangeSet takes a CoreRange as range, got 1"),
    ("no cores", lambda: ttnn.CoreRangeSet(1), *ARG, r"CoreRangeSet takes a list of CoreRange, got 1"),
    ("two meshes", lambda: jm.jit(lambda x: jm.jit(double, mesh=jm.make_mesh((4, 2)))(x), mesh=mesh()).trace(FULL),
     *OTHER, r"y=4, x=2.*y=2, x=4"),
]  # fmt: skip

SHARDS: list[Row] = [
    ("outside of a program", lambda: jm.full_to_shard(FULL, P("y")), jm.UnloweredError, NotImplementedError,
     r"jaxmesh\.jit\(f, mesh=mesh\)"),
    ("shard_to_full outside", lambda: jm.shard_to_full(FULL, P("y")), jm.UnloweredError, NotImplementedError,
     r"jaxmesh\.jit"),
    ("mesh_shard outside", lambda: jm.mesh_shard(
        FULL, shard_type="replicate", shard_direction="full_to_shard", shard_shape=[1], shard_dims=[-1]),
     jm.UnloweredError, NotImplementedError, r"jaxmesh\.jit"),
    ("few shard_dims", shard(shard_dims=[0]), *VERIFY, r"\[0\] has 1 entries.*y=2, x=4 has 2 axes.*-1"),
    ("many shard_dims", join(shard_dims=[0, 1, -1]), *VERIFY, r"\[0, 1, -1\] has 3 entries.*2 axes"),
    ("few pieces", shard(shard_shape=[2]), *VERIFY, r"\[2\] has 1 entries.*rank 2"),
    ("many pieces", shard(shard_shape=[2, 4, 1]), *VERIFY, r"\[2, 4, 1\] has 3 entries.*rank 2"),
    ("a dim too high", shard(shard_dims=[0, 2]), *VERIFY, r"dim 2 for mesh axis 'x' of size 4.*rank 2.*-1.*to 1"),
    ("a dim too low", join(shard_dims=[-2, 0]), *VERIFY, r"dim -2 for mesh axis 'y' of size 2.*rank 2"),
    ("pieces unlike dims", shard(shard_shape=[4, 2]), *VERIFY, r"\[4, 2\] disagrees.*\[0, 1\].*write.*\[2, 4\]"),
    ("maximal", shard(shard_type="maximal"), jm.UnsupportedShardTypeError, NotImplementedError, r"'maximal'.*\[0, 1\]"),
    ("no such type", shard(shard_type="tile"), *ARG, r"'tile' is no ShardType.*'replicate', 'devices'"),
    ("no such direction", shard(shard_direction=1), *ARG, r"1 is no ShardDirection.*'full_to_shard', 'shard_to_full'"),
    ("type not hashable", shard(shard_type=[]), *ARG, r"\[\] is no ShardType"),
    ("a type of the other enum", shard(shard_type=jm.ShardDirection.FULL_TO_SHARD), *ARG, r"FULL_TO_SHARD.*is no ShardType"),
    ("replicate, with dims", shard(shard_type="replicate", shard_shape=[1]), *VERIFY, r"\[-1\].*got \[0, 1\]"),
    ("replicate, with pieces", shard(shard_type="replicate", shard_dims=[-1]), *VERIFY, r"\[1\].*got \[2, 4\]"),
    ("dims as text", shard(shard_dims="01"), *ARG, r"shard_dims takes integers, got '01'"),
    ("dims None", shard(shard_dims=None), *ARG, r"shard_dims takes integers, got None"),
    ("dims of floats", shard(shard_dims=[0.0, 1]), *ARG, r"shard_dims.*\[0\.0, 1\]"),
    ("dims of truth values", shard(shard_dims=[True, 1]), *ARG, r"shard_dims.*\[True, 1\]"),
    ("pieces as a number", shard(shard_shape=8), *ARG, r"shard_shape takes integers, got 8"),
    ("assumed, with 1", join(assume_replicated=1), *ARG, r"True or False as assume_replicated, got 1"),
    ("no tensor", traced(lambda x: jm.full_to_shard("x", P("y"))), *ARG, r"JAX or NumPy array.*got 'x'"),
    ("nothing", traced(lambda x: jm.full_to_shard(None, P("y"))), *ARG, r"got None"),
    ("a number too wide", traced(lambda x: jm.full_to_shard(2**40, P())), *VALUE, r"1099511627776.*int32"),
    ("a MeshTensor", traced(lambda x: jm.full_to_shard(t(), P("y"))), *HOST, r"local shape \(8, 2\).*as an argument"),
    ("an unknown axis", traced(lambda x: jm.full_to_shard(x, P("z"))), *SPEC, r"'z'.*\('y', 'x'\)"),
    ("an axis twice", traced(lambda x: jm.full_to_shard(x, P("x", "x"))), *SPEC, r"'x' 2 times"),
    ("an axis in a tuple twice", traced(lambda x: jm.shard_to_full(x, P(("y", "x", "y")))), *SPEC, r"'y' 2 times"),
    ("a long spec", traced(lambda x: jm.full_to_shard(x, P(None, None, "y"))), *SPEC, r"3 entries.*rank 2"),
    ("an axis by number", traced(lambda x: jm.full_to_shard(x, P(1))), *SPEC, r"axis 1.*\('y', 'x'\)"),
    ("unconstrained", traced(lambda x: jm.full_to_shard(x, P(P.UNCONSTRAINED))), *SPEC, r"UNCONSTRAINED.*None"),
    ("a tuple for a spec", traced(lambda x: jm.shard_to_full(x, ("y",))), *ARG, r"PartitionSpec, got \('y',\); write P"),
    ("a sharding for a spec", traced(lambda x: jm.full_to_shard(x, jax.sharding.NamedSharding(mesh(), P()))), *ARG,
     r"PartitionSpec, got NamedSharding"),
    ("an unreduced axis", traced(lambda x: jm.full_to_shard(x, P("y", unreduced={"x"}))), *SPEC, r"unreduced.*psum"),
    ("uneven", traced(lambda x: jm.full_to_shard(x[:6], P("x"))), *VERIFY, r"dim 0 has size 6.*4 devices.*'x'.*pad.* 8"),
    ("no all_reduce", traced(lambda x: jm.shard_to_full(jm.full_to_shard(x, P("y", "x")), P("y"))), *VARIES,
     r"axis 'x'.*V:.*psum.*assume_replicated"),
    ("a shard, split", traced(lambda x: jm.full_to_shard(jm.full_to_shard(x, P("y")), P("y"))), *VARIES,
     r"varies over mesh axis 'y'.*shard already"),
]  # fmt: skip


def mapper(placements: Any, override: Any = None) -> Any:
    return ttnn.create_mesh_mapper(device(), ttnn.MeshMapperConfig(placements, override))


def composer(dims: Any, override: Any = None) -> Any:
    return ttnn.create_mesh_composer(device(), ttnn.MeshComposerConfig(dims, override))


def cut(placements: Any, override: Any = None, shape: tuple[int, ...] = (16, 8)) -> Callable[[], Any]:
    return lambda: ttnn.distribute_tensor(np.zeros(shape, np.float32), mapper(placements, override))


TRANSFERS: list[Row] = [
    ("no axes", lambda: ttnn.MeshShape(), *VERIFY, r"at least one axis.*\(\)"),
    ("an axis of 0", lambda: ttnn.MeshShape(2, 0), *VERIFY, r"at least 1, got \(2, 0\)"),
    ("an axis of 1.5", lambda: ttnn.MeshShape(1.5), *ARG, r"MeshShape takes integers, got 1\.5"),
    ("an axis of text", lambda: ttnn.MeshShape("24"), *ARG, r"integers, got '24'"),
    ("an axis of True", lambda: ttnn.MeshShape([True]), *ARG, r"integers, got \[True\]"),
    ("a coordinate of None", lambda: ttnn.MeshCoordinate(None), *ARG, r"MeshCoordinate takes integers, got None"),
    ("a shape of a shape", lambda: ttnn.Shape([[2]]), *ARG, r"Shape takes integers, got \[\[2\]\]"),
    ("a placement on a name", lambda: S("x"), *ARG, r"PlacementShard takes integers, got \('x',\)"),
    ("placements by number", lambda: ttnn.MeshMapperConfig([0, 1]), *ARG, r"PlacementShard or PlacementReplicate.*got 0"),
    ("placements no list", lambda: ttnn.MeshMapperConfig(S(0)), *ARG, r"list of PlacementShard.*got PlacementShard\(0\)"),
    ("an override of 0", lambda: ttnn.MeshMapperConfig([R], [0]), *VERIFY, r"at least 1, got \(0,\)"),
    ("an override no shape", lambda: ttnn.MeshMapperConfig([R], 0.5), *ARG, r"MeshShape takes integers, got 0\.5"),
    ("dims no list", lambda: ttnn.MeshComposerConfig(0), *ARG, r"MeshComposerConfig takes integers, got 0"),
    ("dims by name", lambda: ttnn.MeshComposerConfig(["x"]), *ARG, r"integers, got \['x'\]"),
    ("few placements", lambda: mapper([S(0)]), *VERIFY, r"one of placements per axis.*\[2, 4\], got 1 for 2"),
    ("many dims", lambda: composer([0, 1, 2]), *VERIFY, r"one of dims per axis.*\[2, 4\], got 3 for 2"),
    ("an override too large", lambda: mapper([S(0)], [9]), *VERIFY, r"\[9\] has 9 coordinates.*\[2, 4\] has only 8"),
    ("a composer too large", lambda: composer([0, 1], [3, 3]), *VERIFY, r"\[3, 3\] has 9 coordinates.*only 8 devices"),
    ("a dim too high", cut([S(2), R]), *VERIFY, r"PlacementShard\(2\) names dim 2.*rank 2.*-2 to 1"),
    ("a dim too low", cut([S(-3), R]), *VERIFY, r"dim -3.*rank 2.*-2 to 1"),
    ("a dim of a scalar", cut([S(0), R], shape=()), *VERIFY, r"dim 0.*rank 0.*none"),
    ("a dim twice", cut([S(0), S(-2)]), *VERIFY, r"unique.*axes 0 and 1.*dim 0.*mesh_shape_override"),
    ("unequal shards", cut([S(0), R], shape=(3, 8)), *VERIFY, r"one shape.*size 3 over the 2 coordinates.*pad the dim to 4"),
    ("few chunks", cut([R, S(0)], shape=(2, 8)), *VERIFY, r"number of chunks.*2 chunks of 1.*pad the dim to 4"),
    ("a mapper of no device", lambda: ttnn.create_mesh_mapper((2, 4), ttnn.MeshMapperConfig([R])), *ARG,
     r"open_mesh_device.*got tuple"),
    ("a mapper without devices", lambda: ttnn.replicate_tensor_to_mesh_mapper(ABSTRACT), *ARG, r"got AbstractMesh"),
    ("a mapper of a config", lambda: ttnn.create_mesh_mapper(device(), [S(0)]), *ARG, r"MeshMapperConfig, got \[Plac"),
    ("a composer of a mapper", lambda: ttnn.create_mesh_composer(device(), ttnn.MeshMapperConfig([R, R])), *ARG,
     r"MeshComposerConfig, got MeshMapperConfig"),
    ("a mapper by hand", lambda: ttnn.TensorToMesh(mesh(), None), *ARG, r"TensorToMesh.*MeshMapperConfig.*got None"),
    ("a composer by hand", lambda: ttnn.MeshToTensor(mesh(), 0), *ARG, r"MeshToTensor.*MeshComposerConfig.*got 0"),
    ("a mesh by hand", lambda: ttnn.MeshToTensor(None, ttnn.MeshComposerConfig([0])), *ARG, r"got NoneType"),
    ("a shard on half a dim", lambda: ttnn.shard_tensor_to_mesh_mapper(device(), 0.5), *ARG, r"integers, got \(0\.5,\)"),
    ("a join on no dim", lambda: ttnn.concat_mesh_to_tensor_composer(device(), None), *ARG, r"integers, got \[None\]"),
    ("no mapper", lambda: ttnn.distribute_tensor(FULL, None), *ARG, r"mapper.*got None.*create_mesh_mapper"),
    ("a composer for a mapper", lambda: ttnn.distribute_tensor(FULL, composer([0, 1])), *ARG, r"got MeshToTensor"),
    ("text for a tensor", lambda: ttnn.distribute_tensor("x", mapper([R, R])), *ARG, r"NumPy or JAX array, got str"),
    ("dates for a tensor", lambda: ttnn.distribute_tensor(np.array(["2020"], "M8[Y]"), mapper([R, R])), *ARG, r"datetime64"),
    ("keys for a tensor", lambda: ttnn.distribute_tensor(jax.random.key(0), mapper([R, R])), *ARG, r"key_data"),
    ("a tensor twice", lambda: ttnn.distribute_tensor(t(), mapper([R, R])), *HOST, r"host tensor, got MeshTensor.*already"),
    ("a closed device", lambda: ttnn.replicate_tensor_to_mesh_mapper(closed()), *MESH, r"\[2, 4\] was closed.*open"),
    ("to another device", lambda: ttnn.distribute_tensor(FULL, mapper([R, R]), jm.make_mesh((8,))), *OTHER,
     r"'y': 2, 'x': 4.*'x': 8"),
    ("no composer", lambda: ttnn.aggregate_tensor(t(), None), *ARG, r"composer.*got None.*create_mesh_composer"),
    ("an array to join", lambda: ttnn.aggregate_tensor(FULL, composer([0, 1])), *ARG, r"MeshTensor, got ndarray"),
    ("a dim twice to join", lambda: ttnn.aggregate_tensor(t(), composer([1, -1])), *VERIFY, r"unique.*dim 1"),
    ("a dim too high to join", lambda: ttnn.aggregate_tensor(t(), composer([0, 2])), *VERIFY, r"dim 2.*rank 2.*-2 to 1"),
    ("a tensor of another mesh", lambda: ttnn.aggregate_tensor(
        t(), ttnn.concat_mesh_to_tensor_composer(jm.make_mesh((8,)), 0)), *OTHER, r"'x': 8.*'y': 2, 'x': 4"),
    ("a tensor given back", lambda: ttnn.aggregate_tensor(gone(lambda: spread(0, 1)), composer([0, 1])), *HOST,
     r"deallocated"),
    ("few host shards", lambda: ttnn.from_host_shards([FULL], (2, 4)), *VERIFY, r"got 1 for the mesh \[2, 4\] of 8"),
    ("host shards of two shapes", lambda: ttnn.from_host_shards([FULL, FULL[:1]], (2,)), *VERIFY, r"\[16, 8\].*\[1, 8\]"),
    ("host shards no list", lambda: ttnn.from_host_shards(None, (2,)), *ARG, r"list of tensors, got None"),
    ("the shards of an array", lambda: ttnn.get_device_tensors(FULL), *ARG, r"MeshTensor, got ndarray"),
    ("a tensor by hand, no mesh", lambda: jm.MeshTensor(jnp.ones(2), None, ()), *ARG, r"Mesh or AbstractMesh.*got None"),
    ("a tensor by hand, no axis", lambda: jm.MeshTensor(jnp.ones(2), mesh(), ("z",)), *VERIFY, r"'z'.*\('y', 'x'\)"),
    ("a tensor by hand, no array", lambda: jm.MeshTensor(None, mesh(), ()).shape, *ARG, r"JAX array.*None"),
    ("a tensor by hand, few dims", lambda: jm.MeshTensor(jnp.ones(2), mesh(), ("y", "x")).shape, *VERIFY, r"\(2,\)|\[2\]"),
    ("a tensor as an array", lambda: np.asarray(t()), *HOST, r"\(8, 2\) on 8 devices.*aggregate_tensor"),
    ("a shard of no coordinate", lambda: t().shard(None), *ARG, r"coordinate.*got None"),
    ("a shard of half a coordinate", lambda: t().shard((0.5, 1)), *ARG, r"coordinate.*\(0\.5, 1\)"),
    ("a deleted array to the host", lambda: jm.to_host(gone(lambda: jnp.ones(3) + 1)), jm.DeletedError, RuntimeError,
     r"to_host.*float32\[3\]"),
    ("a tensor in jnp", lambda: jnp.sin(t()), *HOST, r"aggregate_tensor"),
    ("the truth of a tensor", lambda: bool(t()), *HOST, r"no truth value.*aggregate_tensor"),
]  # fmt: skip

DEVICES: list[Row] = [
    ("a device of no mesh", lambda: ttnn.MeshDevice(None), *ARG, r"Mesh; got NoneType"),
    ("a device without devices", lambda: ttnn.MeshDevice(ABSTRACT), *ARG, r"got AbstractMesh"),
    ("a shape of 0", lambda: ttnn.open_mesh_device((0,)), *VERIFY, r"at least 1, got \(0,\)"),
    ("more than exist", lambda: ttnn.open_mesh_device((10, 10)), jm.DeviceCountError, ValueError, r"100.*only 16"),
    ("an offset", lambda: ttnn.open_mesh_device((2,), offset=(1,)), *MESH, r"origin, got \[1\]"),
    ("an offset no row", lambda: ttnn.open_mesh_device((2,), offset=1.5), *ARG, r"offset takes integers, got 1\.5"),
    ("an unknown id", lambda: ttnn.open_mesh_device((2,), physical_device_ids=(0, 99)), *MESH, r"\[0, 99\].*2.*\[0, 1,"),
    ("an id twice", lambda: ttnn.open_mesh_device((2,), physical_device_ids=(1, 1)), *MESH, r"\[1, 1\].*2 different"),
    ("few ids", lambda: ttnn.open_mesh_device((2,), physical_device_ids=(1,)), *MESH, r"\[1\] must name 2"),
    ("an id by name", lambda: ttnn.open_device(device_id="a"), *ARG, r"physical_device_ids takes integers, got \['a'\]"),
    ("an unknown device", lambda: ttnn.open_device(device_id=99), *MESH, r"\[99\] must name 1"),
    ("close a mesh", lambda: ttnn.close_device(mesh()), *ARG, r"MeshDevice, got Mesh"),
    ("use a closed one", lambda: closed().shape, *MESH, r"\[2, 4\] was closed"),
    ("a fabric by name", lambda: ttnn.set_fabric_config("FABRIC_1D"), *ARG, r"FabricConfig, got 'FABRIC_1D'"),
    ("draw text", lambda: jm.visualize("x"), *ARG, r"draws a jax\.Array.*got 'x'"),
    ("draw a shape without a spec", lambda: jm.visualize((8, 4)), *ARG, r"no device.*P\(\.\.\.\), mesh=mesh"),
    ("draw a function", lambda: jm.visualize(jm.jit(lambda x: x, mesh=mesh())), *ARG, r"f\.lower\(\*args\)"),
    ("draw a spec by name", lambda: jm.visualize((8, 4), "y", mesh=mesh()), *ARG, r"PartitionSpec as spec, got 'y'"),
    ("draw on an unknown axis", lambda: jm.visualize((8,), P("q"), mesh=mesh()), jm.SpecError, ValueError, r"'q'.*'y', 'x'"),
    ("draw on no mesh", lambda: jm.visualize((8,), P("y")), *MESH, r"no mesh: pass mesh"),
    ("draw a negative size", lambda: jm.visualize((-8,), P("y"), mesh=mesh()), jm.ArgumentValueError, ValueError, r"\[-8\]"),
    ("draw an array and a mesh", lambda: jm.visualize(jnp.ones(8), mesh=mesh()), *ARG, r"and no spec"),
    ("save a picture as png", lambda: jm.visualize(mesh()).save("x.png"), jm.ArgumentValueError, ValueError, r"\.svg.*'\.png'"),
    ("no such layout", lambda: ttnn.to_layout(t(), "TILE"), *ARG, r"Layout as layout, got 'TILE'"),
    ("a layout of text", lambda: ttnn.to_layout("x", ttnn.TILE_LAYOUT), *ARG, r"Tensor as tensor, got 'x'"),
    ("no such memory", lambda: ttnn.to_memory_config(t(), "L1"), *ARG, r"MemoryConfig as memory_config, got 'L1'"),
    ("no memory", lambda: ttnn.to_memory_config(t(), None), *ARG, r"MemoryConfig as memory_config, got None"),
    ("memory on the host", lambda: ttnn.to_memory_config(FULL, ttnn.L1_MEMORY_CONFIG), *HOST, r"host memory.*to_device"),
    ("to no device", lambda: ttnn.to_device(FULL), *ARG, r"needs the argument 'device'"),
    ("text to a device", lambda: ttnn.to_device("x", device()), *ARG, r"takes Tensor as tensor, got 'x'"),
    ("to a device of another shape", lambda: ttnn.to_device(t(), jm.make_mesh((8,))), *OTHER, r"\[2, 4\].*\[8\]"),
    ("text from a device", lambda: ttnn.from_device("x"), *ARG, r"takes Tensor as tensor, got 'x'"),
    ("give back text", lambda: ttnn.deallocate("x"), *ARG, r"takes a tensor, got str"),
    ("a device tensor's dtype", lambda: ttnn.to_dtype(t(), ttnn.bfloat16), *VERIFY, r"host memory.*typecast"),
    ("a dtype by name", lambda: ttnn.to_dtype(ttnn.Tensor([1.0]), "bf16"), *ARG, r"DataType as dtype, got 'bf16'"),
    ("a tensor of text", lambda: ttnn.Tensor(["a"]), *VERIFY, r"list of numbers that float32.*'a'"),
    ("a tensor of another size", lambda: ttnn.Tensor([1.0, 2.0], [3]), *VERIFY, r"shape \[3\] was given 2 numbers"),
    ("a tensor of a shape beyond", lambda: ttnn.Tensor([1.0], [2**70]), *VERIFY, rf"\[{2**70}\] was given 1"),
    ("a tensor of text in an array", lambda: ttnn.Tensor(np.array(["a"])), *ARG, r"<U1"),
    ("a tensor of numbers beyond", lambda: ttnn.Tensor([300], [1], ttnn.uint8), *VERIFY, r"uint8.*300|300.*uint8"),
    ("a tensor in a wrong layout", lambda: ttnn.Tensor([1.0], layout="TILE"), *ARG, r"Layout as layout, got 'TILE'"),
    ("a ragged array", lambda: helpers.from_numpy([[1], [2, 3]]), *ARG, r"array of numbers, got \[\[1\], \[2, 3\]\]"),
    ("an array of a tensor", lambda: helpers.from_numpy(t()), *HOST, r"distributed already"),
    ("no composer to read", lambda: helpers.to_numpy(t()), *HOST, r"8 devices.*mesh_composer"),
    ("a composer for nothing", lambda: helpers.to_numpy(FULL, mesh_composer=composer([0, 1])), *ARG, r"leave it out"),
    ("read text", lambda: helpers.to_numpy("x"), *ARG, r"takes a tensor, got str"),
    ("the dtype of text", lambda: helpers.get_dtype("x"), *ARG, r"takes a tensor, got str"),
    ("the dtype of objects", lambda: helpers.get_dtype(np.array([None])), *ARG, r"DataType.*object"),
    ("dump to nowhere", lambda: ttnn.dump_tensor("/nonexistent/a/b", FULL), *FILE, r"'/nonexistent/a/b'.*folder"),
    ("dump to a folder", lambda: ttnn.dump_tensor("/", FULL), *FILE, r"'/' \(Is a directory\)"),
    ("dump to a number", lambda: ttnn.dump_tensor(3, FULL), *ARG, r"path of a file.*got 3"),
    ("dump text", lambda: ttnn.dump_tensor("x", "text"), *ARG, r"takes a tensor, got str"),
    ("load from nowhere", lambda: ttnn.load_tensor("/nonexistent/x"), *FILE, r"no file '/nonexistent/x'"),
    ("load from a folder", lambda: ttnn.load_tensor("/"), *FILE, r"no file '/'"),
    ("load a null byte", lambda: ttnn.load_tensor("a\0b"), *ARG, r"path of a file"),
    ("load this file", lambda: ttnn.load_tensor(__file__), jm.ParseError, ValueError, r"wrong_calls\.py.*dump_tensor"),
]  # fmt: skip

OPS: list[Row] = [
    ("missing", lambda: ttnn.add(t()), *ARG, r"ttnn\.add needs the argument 'input_tensor_b'"),
    ("unknown", lambda: ttnn.relu(t(), beta=1), *ARG, r"ttnn\.relu has no argument 'beta'.*input_tensor"),
    ("too many", lambda: ttnn.relu(t(), t()), *ARG, r"ttnn\.relu takes 1 arguments by place, got 2"),
    ("twice", lambda: ttnn.add(t(), t(), input_tensor_a=t()), *ARG, r"'input_tensor_a' by place and by name"),
    ("text", lambda: ttnn.add(t(), "x"), *ARG, r"ttnn\.add takes .* as input_tensor_b, got 'x'"),
    ("an array", lambda: ttnn.add(t(), FULL), *HOST, r"operand 1 is in host memory.*float32\[16, 8\]"),
    ("an array, first", lambda: FULL + t(), *HOST, r"operand 0 is in host memory"),
    ("a number that an integer type cannot hold", lambda: spread(0, 1, full=FULL.astype(np.int32)) + 2**40, *VERIFY,
     r"1099511627776.*int32.*typecast"),
    ("a number beyond every type", lambda: spread(0, 1, full=FULL.astype(np.int32)) * 2**70, *VERIFY, rf"{2**70}.*int32"),
    ("a fraction beside integers", lambda: spread(0, 1, full=FULL.astype(np.int32)) + 0.5, *VERIFY, r"0\.5.*int32"),
    ("two meshes", lambda: t() + ttnn.to_device(FULL[:8, :2], jm.make_mesh((8,))), *OTHER, r"'y': 2, 'x': 4.*'x': 8"),
    ("shapes", lambda: ttnn.add(t(), spread(None, None)), *VERIFY, r"ttnn\.add"),
    ("contraction", lambda: ttnn.matmul(tiled(), tiled()), *VERIFY, r"ttnn\.matmul: the contracted dims differ: 2.*8"),
    ("a dim", lambda: ttnn.softmax(t(), 2), *VERIFY, r"ttnn\.softmax has no dim 2"),
    ("a dim by name", lambda: ttnn.softmax(t(), "x"), *ARG, r"int as dim, got 'x'"),
    ("a dim beyond", lambda: ttnn.sum(t(), 2**70), *VERIFY, rf"ttnn\.sum has no dim {2**70}"),
    ("a shape", lambda: ttnn.reshape(t(), (3, 5)), *VERIFY, r"\[3, 5\].*\[8, 2\]|\[8, 2\].*\[3, 5\]"),
    ("a shape beyond", lambda: ttnn.zeros((2**40, 2**40), ttnn.float32, device=device()), *VERIFY,
     rf"\[{2**40}, {2**40}\].*at most {2**63 - 1}"),
    ("a range beyond", lambda: ttnn.arange(0, 2**62), *VERIFY, rf"\[{2**62}\].*at most {2**63 - 1}"),
    ("a range beyond 64 bits", lambda: ttnn.arange(0, 2**70), *VALUE, rf"to {2**63 - 1} as end, got {2**70}"),
    ("a negative shape", lambda: ttnn.zeros((-1, 2), ttnn.float32, device=device()), *VERIFY, r"\[-1, 2\]|-1"),
    ("a shape by name", lambda: ttnn.ones("x"), *ARG, r"Sequence\[int\] as shape, got 'x'"),
    ("an axis", lambda: ttnn.all_reduce(t(), cluster_axis=2), *VERIFY, r"all_reduce: cluster_axis = 2 is no axis of the mesh y=2, x=4"),
    ("an operand left out", lambda: ttnn.linear(t(), None), *ARG, r"ttnn\.linear takes Tensor as input_tensor_b, got None"),
    ("an index beyond", lambda: ttnn.scatter(t(), 0, 2**40, t()), *ARG, rf"scatter takes Tensor as index, got {2**40}"),
    ("a random negative shape", lambda: ttnn.rand((-1,), device()), *VERIFY, r"sizes from 0 on, got \[-1\]"),
    ("no list", lambda: ttnn.concat(t(), 0), *ARG, r"Sequence\[Tensor\] as tensors, got MeshTensor"),
    ("an unknown op", lambda: ttnn.addd, AttributeError, AttributeError, r"ttnn has no 'addd'.*dialects/ttnn/\*\.py"),
    ("bounds", lambda: ttnn.clamp(t()), *VERIFY, r"takes one bound at least"),
    ("bounds of text", lambda: ttnn.clamp("x", 0), *ARG, r"takes Tensor as input_tensor, got 'x'"),
    ("a bound by name", lambda: ttnn.clamp(t(), "x"), *ARG, r"as min, got 'x'"),
    ("dims of a MeshTensor moved", lambda: jax.tree.map(lambda a: jnp.moveaxis(a, 0, -1), t()) + 1, *UNSAID,
     r"mesh dims \(2, 4\) last.*negative axis.*from the front"),
    ("vmap from the end", lambda: jax.vmap(lambda a: a + 1, in_axes=-1)(t()), *UNSAID, r"negative axis.*from the front"),
]  # fmt: skip

TEXT = """module attributes {ttcore.meshes = #ttcore.meshes<[<"mesh" = 2x4>]>} {
  func.func @main(%x: tensor<8x8xf32>) -> tensor<8x8xf32> {
    %0 = "ttir.mesh_shard"(%x) <{shard_dims = array<i64: 0, 1>, shard_direction = #ttcore.shard_direction<full_to_shard>, shard_shape = array<i64: 2, 4>, shard_type = #ttcore.shard_type<devices>}> : (tensor<8x8xf32>) -> tensor<4x2xf32>
    %1 = "ttir.tanh"(%0) : (tensor<4x2xf32>) -> tensor<4x2xf32>
    %2 = "ttir.mesh_shard"(%1) <{shard_dims = array<i64: 0, 1>, shard_direction = #ttcore.shard_direction<shard_to_full>, shard_shape = array<i64: 2, 4>, shard_type = #ttcore.shard_type<devices>}> : (tensor<4x2xf32>) -> tensor<8x8xf32>
    return %2 : tensor<8x8xf32>
  }
}
"""


def read(*changes: tuple[str, str], **options: Any) -> Callable[[], Any]:
    text = TEXT
    for old, new in changes:
        assert old in text
        text = text.replace(old, new, 1)
    return lambda: jm.from_mlir(text, **options)


PARSE = (jm.ParseError, ValueError)
TEXTS: list[Row] = [
    ("no text", lambda: jm.from_mlir(""), *PARSE, r"line 1|empty"),
    ("no file", lambda: jm.from_mlir("nothing.mlir"), *FILE, r"'nothing\.mlir'"),
    ("a path that is none", lambda: jm.from_mlir(Path("/nonexistent/a.mlir")), *FILE, r"/nonexistent/a\.mlir"),
    ("a folder", lambda: jm.from_mlir(Path("/")), *FILE, r"'/'.*directory"),
    ("a number", lambda: jm.from_mlir(3), *ARG, r"got 3|int"),
    ("bytes", lambda: jm.from_mlir(b"module {}"), *ARG, r"bytes"),
    ("a torn text", lambda: jm.from_mlir(TEXT[:400]), *PARSE, r"line \d"),
    ("no return", read(("return %2", "// return %2")), *VERIFY, r"line 2.*@main.*without a func\.return"),
    ("no function of a name", read(func="other"), *PARSE, r"@other.*'?main"),
    ("a function by number", read(func=1), *ARG, r"str as func, got 1"),
    ("strict no truth", read(strict=1), *ARG, r"True or False as strict, got 1"),
    ("another mesh", read(mesh=AbstractMesh((8,), ("x",))), *OTHER, r"2x4.*8"),
    ("a mesh of another kind", read(mesh=(2, 4)), *ARG, r"AbstractMesh, got \(2, 4\)"),
    ("no mesh", read((' attributes {ttcore.meshes = #ttcore.meshes<[<"mesh" = 2x4>]>}', ""),
     *[("i64: 0, 1>", "i64: 0, 0>")] * 2), *MESH, r"line 3.*mesh_shard needs a mesh.*ttcore\.meshes"),
    ("a mesh of 0", read(('"mesh" = 2x4', '"mesh" = 0x4')), *VERIFY, r"0x4"),
    ("a mesh beyond", read(('"mesh" = 2x4', '"mesh" = 9999999999999999999x4')), jm.JaxmeshError, ValueError,
     r"9999999999"),
    ("a dim too high", read(("i64: 0, 1>", "i64: 0, 5>")), *VERIFY, r"line 3.*dim 5.*rank 2"),
    ("maximal", read(("<devices>", "<maximal>")), jm.UnsupportedShardTypeError, NotImplementedError, r"line 3.*maximal"),
    ("no such type", read(("<devices>", "<tiles>")), jm.JaxmeshError, Exception, r"line 3.*tiles"),
    ("no such direction", read(("<full_to_shard>", "<up>")), jm.JaxmeshError, Exception, r"line 3.*up"),
    ("another result type", read(("-> tensor<4x2xf32>\n    %1", "-> tensor<4x4xf32>\n    %1")), jm.JaxmeshError,
     ValueError, r"line [34].*4x[24]|\[4, [24]\]"),
    ("an unknown op", read(("ttir.tanh", "ttir.tango")), jm.MissingRuleError, NotImplementedError, r"line 4.*ttir\.tango"),
    ("too many operands", read(('"ttir.tanh"(%0) : (tensor<4x2xf32>)', '"ttir.tanh"(%0, %0) : (tensor<4x2xf32>, '
                                'tensor<4x2xf32>)')), *VERIFY, r"line 4.*takes 1 operands.*got 2"),
    ("no all_reduce", read(("i64: 0, 1>, shard_direction = #ttcore.shard_direction<shard_to_full>, shard_shape = "
                            "array<i64: 2, 4>", "i64: 0, -1>, shard_direction = #ttcore.shard_direction<shard_to_full>"
                            ", shard_shape = array<i64: 2, 1>"), ("-> tensor<8x8xf32>\n    return %2 : tensor<8x8xf32>",
                            "-> tensor<8x2xf32>\n    return %2 : tensor<8x2xf32>"), ("-> tensor<8x8xf32> {",
                            "-> tensor<8x2xf32> {")), *VARIES, r"line 5.*axis 'x'.*psum"),
    ("a type beyond", lambda: jm.from_mlir(
        "module { func.func @main(%x: tensor<1099511627776x1099511627776xf32>) -> "
        "tensor<1099511627776x1099511627776xf32> { return %x : tensor<1099511627776x1099511627776xf32> } }"),
     *VERIFY, rf"{2**40}.*at most {2**63 - 1}"),
]  # fmt: skip


def export(**options: Any) -> Callable[[], Any]:
    directory = options.pop("directory", "model")
    return lambda: lowered().export(directory, FULL, **options)


def code(f: Any = double, *args: Any, **options: Any) -> Callable[[], Any]:
    return lambda: jm.codegen_py(f, *(args or (FULL,)), **{"mesh": mesh(), **options})


EXPORTS: list[Row] = [
    ("no path", export(directory=3), *ARG, r"path.*got 3"),
    ("an empty path", export(directory=""), *ARG, r"path.*got ''"),
    ("a null byte", export(directory="a\0b"), *ARG, r"path"),
    ("a file", export(directory=__file__), jm.FolderError, FileExistsError, r"wrong_calls\.py"),
    ("a full folder", export(directory=str(Path(__file__).parent)), jm.FolderError, FileExistsError, r"tests"),
    ("a folder in a file", export(directory=f"{__file__}/model"), jm.JaxmeshError, OSError, r"wrong_calls\.py"),
    ("a language", export(languages=("rust",)), *ARG, r"'python' and 'cpp'.*got \('rust',\)"),
    ("a language as text", export(languages="python"), *ARG, r"got 'python'"),
    ("no languages", export(languages=()), *ARG, r"got \(\)"),
    ("a negative seed", export(seed=-1), *ARG, r"integer from 0 on as seed, got -1"),
    ("a seed by name", export(seed="x"), *ARG, r"as seed, got 'x'"),
    ("another shape", lambda: lowered().export("model", FULL[:2]), *ARG, r"\[16, 8\].*\[2, 8\]"),
    ("another type", lambda: lowered().export("model", jax.ShapeDtypeStruct((16, 4), jnp.float32)), *ARG, r"traced as float32\[16, 8\]"),
    ("arrays that are not read", lambda: lowered().export("model", FULL, make_inputs="zeros"), *ARG, r"make_inputs='zeros'.*not read"),
    ("inputs of ones", lambda: lowered().export("model", make_inputs="ones"), *ARG, r"'zeros' or 'random', got 'ones'"),
    ("a limit that is no number", lambda: lowered().as_text(constant_limit="all"), *ARG, r"constant_limit, got 'all'"),
    ("no function", code(None), *ARG, r"codegen_py takes a function, got None"),
    ("an unknown option", code(optimise=1), *ARG, r"codegen_py has no option 'optimise'.*static_argnums"),
    ("another level", code(optimization_level=2), *ARG, r"optimization_level.*got 2; write 0"),
    ("no tensors", code(export_tensors=False), *ARG, r"export_tensors.*got False; write True"),
    ("another mesh", code(jm.jit(double, mesh=AbstractMesh((4, 2), ("y", "x")))), *OTHER, r"y=4, x=2.*one mesh"),
    ("a mesh beside that is none", code(jm.jit(double), mesh=(2, 4)), *ARG, r"mesh.*\(2, 4\)"),
    ("statics twice", code(jm.jit(double), static_argnums=1), *ARG, r"statics already.*leave that out"),
    ("a static position beyond", code(static_argnums=5), *VALUE, r"position 5.*double takes 1.*-1 to 0"),
    ("text", code(double, "text"), *ARG, r"'text'"),
    ("groups no truth", code(groups=None), *ARG, r"as groups, got None"),
    ("for C++ too", lambda: jm.codegen_cpp(double, FULL, mesh=mesh(), nothing=1), *ARG, r"codegen_cpp has no option"),
]  # fmt: skip


def mapped(f: Any = lambda x: x, **options: Any) -> Any:
    return jm.shard_map(f, **{"mesh": mesh(), "in_specs": P("y"), "out_specs": P("y"), **options})


MAPPED: list[Row] = [
    ("check_vma no truth", lambda: mapped(check_vma=np.ones(2)), *ARG, r"True or False as check_vma"),
    ("traced, a tensor", lambda: mapped().trace(t()), *ARG, r"argument 0.*MeshTensor.*full arrays"),
    ("traced, text", lambda: mapped().trace("text"), *ARG, r"'text'"),
    ("a type that holds no numbers", lambda: mapped()(jax.ShapeDtypeStruct((2**40, 2**40), jnp.float32)), *ARG,
     "holds no numbers"),
]  # fmt: skip

DROP_IN: list[tuple[str, Callable[[Any], Any]]] = [
    ("no function", lambda shard_map: shard_map(3, mesh=mesh(), in_specs=P(), out_specs=P())),
    ("no mesh", lambda shard_map: shard_map(double, in_specs=P(), out_specs=P())(FULL)),
    ("a mesh of another kind", lambda shard_map: shard_map(double, mesh=(2, 4), in_specs=P(), out_specs=P())(FULL)),
    ("an unknown axis", lambda shard_map: shard_map(double, mesh=mesh(), in_specs=P("z"), out_specs=P())(FULL)),
    ("a long spec", lambda shard_map: shard_map(
        lambda x: x, mesh=mesh(), in_specs=P(None, None, "y"), out_specs=P())(FULL)),
    ("specs of another tree", lambda shard_map: shard_map(
        lambda x: x, mesh=mesh(), in_specs=(P(), P()), out_specs=P())(FULL)),
    ("uneven", lambda shard_map: shard_map(lambda x: x, mesh=mesh(), in_specs=P("x"), out_specs=P("x"))(FULL[:6])),
    ("not replicated", lambda shard_map: shard_map(lambda x: x, mesh=mesh(), in_specs=P("x"), out_specs=P())(FULL)),
    ("text", lambda shard_map: shard_map(lambda x: x, mesh=mesh(), in_specs=P(), out_specs=P())("text")),
    ("by name", lambda shard_map: shard_map(lambda x: x, mesh=mesh(), in_specs=P(), out_specs=P())(x=FULL)),
    ("an unknown axis name", lambda shard_map: shard_map(
        lambda x: x, mesh=mesh(), in_specs=P(), out_specs=P(), axis_names={"z"})(FULL)),
    ("an argument of its own", lambda shard_map: shard_map(lambda x: x, mesh=mesh(), specs=P())),
    ("a spec that is none", lambda shard_map: shard_map(lambda x: x, mesh=mesh(), in_specs="y", out_specs=P())(FULL)),
    ("too many results", lambda shard_map: shard_map(
        lambda x: (x, x), mesh=mesh(), in_specs=P("y"), out_specs=(P("y"),) * 3)(FULL)),
]  # fmt: skip
"""Calls of `jax.shard_map` and of its stand-in `jm.shard_map`: the rule is JAX's own, so the error is JAX's, word by
word."""

ROWS = {
    "meshes": MESHES, "calls": CALLS, "shards": SHARDS, "transfers": TRANSFERS, "devices": DEVICES, "ops": OPS,
    "texts": TEXTS, "exports": EXPORTS, "mapped": MAPPED,
}  # fmt: skip
