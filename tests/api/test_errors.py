"""Bad input: each mistake has its named exception, the builtin a Python user expects, the rule and both values."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import AbstractMesh, PartitionSpec as P

import jaxmesh as jm
from jaxmesh import ttnn

MESH = AbstractMesh((2, 4), ("y", "x"))


def traced(body: Callable[[Any], Any], shape: tuple[int, ...] = (16, 8)) -> Callable[[], Any]:
    return lambda: jm.jit(body, mesh=MESH).trace(jax.ShapeDtypeStruct(shape, jnp.float32))


def shard(**attributes: Any) -> Callable[[], Any]:
    base = {"shard_type": "devices", "shard_direction": "full_to_shard", "shard_shape": [2, 4], "shard_dims": [0, 1]}
    return traced(lambda x: jm.mesh_shard(x, **{**base, **attributes}))


def split(spec: Any, shape: tuple[int, ...] = (16, 8)) -> Callable[[], Any]:
    return traced(lambda x: jm.full_to_shard(x, spec), shape)


def forgotten_psum(x: Any) -> Any:
    y = jm.full_to_shard(x, P("y", "x"))
    return jm.shard_to_full(y @ y.T, P("y"))


TTIR = [
    ("rank of shard_dims", shard(shard_dims=[0]), jm.VerifyError, ValueError, r"\[0\] has 1 entries.*has 2 axes"),
    ("rank of shard_shape", shard(shard_shape=[2]), jm.VerifyError, ValueError, r"\[2\] has 1 entries.*rank 2"),
    ("dim out of range", shard(shard_dims=[0, 2]), jm.VerifyError, ValueError, r"dim 2 .*'x'.*rank 2; allowed.*to 1"),
    ("dim below -1", shard(shard_dims=[0, -2]), jm.VerifyError, ValueError, r"dim -2 .*rank 2"),
    ("shard_shape against mesh", shard(shard_shape=[4, 2]), jm.VerifyError, ValueError,
     r"\[4, 2\] disagrees.*\[0, 1\].*y=2, x=4.*\[2, 4\]"),
    ("upstream's documented example", traced(
        lambda x: jm.mesh_shard(x, shard_type="devices", shard_direction="shard_to_full", shard_shape=[2, 1],
                                shard_dims=[1, -1])), jm.VerifyError, ValueError, r"\[2, 1\] disagrees.*\[1, 2\]"),
    ("uneven split", split(P("x"), (6, 3)), jm.VerifyError, ValueError, r"dim 0 has size 6.*4 devices.*'x'.*pad.* 8"),
    ("uneven split of a raw op", traced(lambda x: jm.mesh_shard(
        x, shard_type="devices", shard_direction="full_to_shard", shard_shape=[8], shard_dims=[0, 0]), (12,)),
     jm.VerifyError, ValueError, r"dim 0 has size 12, which 8 devices.*'y'.*'x'.*pad the dim to 16"),
    ("uneven split in another axis order", split(P(("x", "y")), (12,)), jm.VerifyError, ValueError,
     r"dim 0 has size 12, which 8 devices"),
    ("maximal", shard(shard_type="maximal"), jm.UnsupportedShardTypeError, NotImplementedError, r"maximal.*y=2, x=4"),
    ("maximal is a verifier's matter too", shard(shard_type="maximal"), jm.VerifyError, ValueError, "maximal"),
    ("replicate with dims", shard(shard_type="replicate", shard_shape=[1]), jm.VerifyError, ValueError,
     r"replicate.*\[-1\].*got \[0, 1\]"),
    ("replicate with shape", shard(shard_type="replicate", shard_dims=[-1]), jm.VerifyError, ValueError,
     r"replicate.*\[1\].*got \[2, 4\]"),
    ("unknown type", shard(shard_type="tiled"), jm.ArgumentTypeError, TypeError, r"'tiled'.*'devices'"),
    ("unknown direction", shard(shard_direction="up"), jm.ArgumentTypeError, TypeError, r"'up'.*'full_to_shard'"),
    ("dims no integers", shard(shard_dims=[0.5, 1]), jm.ArgumentTypeError, TypeError, r"shard_dims.*0\.5"),
    ("dims no list", shard(shard_dims="01"), jm.ArgumentTypeError, TypeError, r"shard_dims.*'01'"),
    ("unknown axis", split(P("z")), jm.SpecError, ValueError, r"'z'.*\('y', 'x'\)"),
    ("axis twice", split(P("x", "x")), jm.SpecError, ValueError, r"'x' 2 times"),
    ("axis twice in a tuple", split(P(("x", "y", "x"))), jm.SpecError, ValueError, r"'x' 2 times"),
    ("spec too long", split(P("y", None, "x")), jm.SpecError, ValueError, r"3 entries.*rank 2"),
    ("spec of another kind", split(("y", "x")), jm.ArgumentTypeError, TypeError, r"PartitionSpec.*\('y', 'x'\)"),
    ("unconstrained", split(P(P.UNCONSTRAINED)), jm.SpecError, ValueError, "UNCONSTRAINED"),
    ("forgotten all_reduce", traced(forgotten_psum, (8, 8)), jm.ReplicationError, ValueError,
     r"mesh axis 'x'.*V:.*psum.*assume_replicated"),
    ("replicate of a shard", traced(lambda x: jm.shard_to_full(jm.full_to_shard(x, P("x")), P())),
     jm.ReplicationError, ValueError, r"'x'"),
    ("split a shard", traced(lambda x: jm.full_to_shard(jm.full_to_shard(x, P("y")), P(None, "x"))),
     jm.ReplicationError, ValueError, r"'y'.*shard already"),
]  # fmt: skip


@pytest.mark.parametrize(("make", "error", "builtin", "message"), [c[1:] for c in TTIR], ids=[c[0] for c in TTIR])
def test_ttir(make: Callable[[], Any], error: type, builtin: type, message: str) -> None:
    check(make, error, builtin, message)


def check(make: Callable[[], Any], error: type, builtin: type, message: str) -> None:
    with pytest.raises(error) as caught:
        make()
    assert isinstance(caught.value, jm.JaxmeshError)
    assert isinstance(caught.value, builtin)
    assert re.search(message, str(caught.value), re.DOTALL), str(caught.value)


S, R = jm.PlacementShard, jm.PlacementReplicate()


def spread(placements: list[Any], override: Any = None, shape: tuple[int, ...] = (16, 8)) -> Callable[[], Any]:
    def eager() -> Any:
        mapper = ttnn.create_mesh_mapper(jm.make_mesh((2, 4)), jm.MeshMapperConfig(placements, override))
        return ttnn.distribute_tensor(np.zeros(shape, np.float32), mapper)

    return eager


def joined(dims: list[int], override: Any = None, shape: tuple[int, ...] = (16, 8)) -> Callable[[], Any]:
    def eager() -> Any:
        mesh = jm.make_mesh((2, 4))
        t = ttnn.distribute_tensor(np.zeros(shape, np.float32), ttnn.replicate_tensor_to_mesh_mapper(mesh))
        return ttnn.aggregate_tensor(t, ttnn.create_mesh_composer(mesh, jm.MeshComposerConfig(dims, override)))

    return eager


def on_device() -> Any:
    return spread([S(0), S(1)])()


def partial_tensor() -> Any:
    return spread([S(0)], [4])()


def other_mesh() -> Any:
    return jm.make_mesh((4, 2))


TTNN = [
    ("duplicate dims", spread([S(0), S(0)]), jm.VerifyError, ValueError, r"unique.*axes 0 and 1.*dim 0"),
    ("duplicate through a negative", spread([S(1), S(-1)]), jm.VerifyError, ValueError, r"unique.*dim 1"),
    ("dim out of range", spread([S(2), R]), jm.VerifyError, ValueError, r"dim 2.*rank 2.*-2 to 1"),
    ("dim of a scalar", spread([S(0), R], shape=()), jm.VerifyError, ValueError, r"dim 0.*rank 0"),
    ("number of placements", spread([S(0)]), jm.VerifyError, ValueError, r"\[2, 4\].*got 1.*2 axes"),
    ("override larger than the mesh", spread([S(0)], [16]), jm.VerifyError, ValueError, r"16 coordinates.*8\s+devices"),
    ("uneven shards", spread([S(0), R], shape=(3, 8)), jm.VerifyError, ValueError,
     r"size 3.*one shape|one shape.*size 3"),
    ("too few chunks", spread([R, S(0)], shape=(2, 8)), jm.VerifyError, ValueError, r"number of chunks.*2 chunks"),
    ("13 over 8", spread([S(0)], [8], (13, 1)), jm.VerifyError, ValueError,
     r"size 13.*6 shards of 2 and a last shard of 1.*16"),
    ("placement by mistake", spread([0, 1]), jm.ArgumentTypeError, TypeError, r"PlacementShard.*0"),
    ("mesh shape 0", spread([S(0)], [0]), jm.VerifyError, ValueError, r"at least 1.*\(0,\)"),
    ("composer duplicate", joined([0, 0]), jm.VerifyError, ValueError, r"unique.*dim 0"),
    ("composer duplicate negative", joined([-1, 1]), jm.VerifyError, ValueError, r"unique.*dim 1"),
    ("composer range", joined([0, 5]), jm.VerifyError, ValueError, r"dim 5.*rank 2"),
    ("composer count", joined([0]), jm.VerifyError, ValueError, r"\[2, 4\].*got 1"),
    ("composer override", joined([0, 1], [4, 4]), jm.VerifyError, ValueError, r"16 coordinates.*8\s+devices"),
    ("distribute a device tensor", lambda: ttnn.distribute_tensor(
        on_device(), ttnn.replicate_tensor_to_mesh_mapper(jm.make_mesh((2, 4)))), jm.ResidencyError, ValueError,
     "host"),
    ("aggregate a host tensor", lambda: ttnn.aggregate_tensor(
        np.zeros(3), ttnn.concat_mesh_to_tensor_composer(jm.make_mesh((2, 4)), 0)), jm.ArgumentTypeError, TypeError,
     r"MeshTensor.*ndarray"),
    ("another mesh", lambda: ttnn.aggregate_tensor(
        on_device(), ttnn.concat_mesh_to_tensor_composer(other_mesh(), 0)), jm.MeshMismatchError, ValueError,
     "another"),
    ("mapper of another device", lambda: ttnn.distribute_tensor(
        np.zeros(8), ttnn.shard_tensor_to_mesh_mapper(jm.make_mesh((2, 4)), 0), other_mesh()), jm.MeshMismatchError,
     ValueError, r"mapper is for"),
    ("no mapper", lambda: ttnn.distribute_tensor(np.zeros(8), None), jm.ArgumentTypeError, TypeError,
     "create_mesh_mapper"),
    ("no tensor", lambda: ttnn.distribute_tensor(
        "text", ttnn.shard_tensor_to_mesh_mapper(jm.make_mesh((2, 4)), 0)), jm.ArgumentTypeError, TypeError, "str"),
    ("object array", lambda: ttnn.distribute_tensor(
        np.array([None]), ttnn.shard_tensor_to_mesh_mapper(jm.make_mesh((2, 4)), 0)), jm.ArgumentTypeError, TypeError,
     "object"),
    ("read a mesh tensor", lambda: np.asarray(on_device()), jm.ResidencyError, ValueError, r"aggregate_tensor"),
    ("host shards of two shapes", lambda: ttnn.from_host_shards([np.zeros(2), np.zeros(3)], [2]), jm.VerifyError,
     ValueError, r"\[2\].*\[3\]"),
    ("too few host shards", lambda: ttnn.from_host_shards([np.zeros(2)], [2]), jm.VerifyError, ValueError, "got 1"),
    ("closed device", lambda: _closed(), jm.MeshError, ValueError, "closed"),
    ("partial tensor into a program", lambda: jm.jit(lambda t: t, mesh=jm.make_mesh((2, 4)))(partial_tensor()),
     jm.UnsupportedError, NotImplementedError, "hold nothing"),
    ("tensor of another mesh", lambda: jm.jit(lambda t: t, mesh=other_mesh())(on_device()), jm.MeshMismatchError,
     ValueError, r"y=2, x=4.*y=4, x=2"),
    ("computed tensor's topology", lambda: jm.jit(
        lambda x: jm.full_to_shard(x, P("y")), mesh=jm.make_mesh((2, 4)))(np.zeros(8)).tensor_topology(),
     jm.UnsupportedError, NotImplementedError, "no mapper"),
]  # fmt: skip


def _closed() -> Any:
    device = ttnn.open_mesh_device(mesh_shape=[2, 4])
    ttnn.close_mesh_device(device)
    return ttnn.replicate_tensor_to_mesh_mapper(device)


@pytest.mark.parametrize(("make", "error", "builtin", "message"), [c[1:] for c in TTNN], ids=[c[0] for c in TTNN])
def test_ttnn(make: Callable[[], Any], error: type, builtin: type, message: str) -> None:
    check(make, error, builtin, message)


def in_program(body: Callable[[Any, Any], Any]) -> Callable[[], Any]:
    mesh = jm.make_mesh((2, 4))
    return lambda: jm.jit(lambda x: body(x, mesh), mesh=mesh).trace(np.zeros((16, 8), np.float32))


TRACED = [
    ("duplicate dims, traced", in_program(lambda x, m: ttnn.distribute_tensor(
        x, ttnn.create_mesh_mapper(m, jm.MeshMapperConfig([S(0), S(0)])))), jm.VerifyError, ValueError, "unique"),
    ("partial, traced", in_program(lambda x, m: ttnn.distribute_tensor(
        x, ttnn.create_mesh_mapper(m, jm.MeshMapperConfig([S(0)], [4])))), jm.UnsupportedError, NotImplementedError,
     r"4 shards on 8"),
    ("distribute a shard, traced", in_program(lambda x, m: ttnn.distribute_tensor(
        jm.full_to_shard(x, P("x")), ttnn.replicate_tensor_to_mesh_mapper(m))), jm.ResidencyError, ValueError, "host"),
    ("other mesh, traced", in_program(lambda x, m: ttnn.distribute_tensor(
        x, ttnn.replicate_tensor_to_mesh_mapper(other_mesh()))), jm.MeshMismatchError, ValueError, "one program"),
]  # fmt: skip


@pytest.mark.parametrize(("make", "error", "builtin", "message"), [c[1:] for c in TRACED], ids=[c[0] for c in TRACED])
def test_ttnn_inside_a_program(make: Callable[[], Any], error: type, builtin: type, message: str) -> None:
    check(make, error, builtin, message)


RAW = {"shard_type": "devices", "shard_direction": "full_to_shard", "shard_shape": [2, 4], "shard_dims": [0, 1]}
X = np.zeros((16, 8), np.float32)
RUNS = [
    ("eager", lambda: jm.mesh_shard(X, **RAW)),
    ("eager spec", lambda: jm.full_to_shard(X, P("y"))),
    ("under jax.jit", lambda: jax.jit(lambda x: jm.shard_to_full(x, P("y")))(X)),
    ("in shard_map", lambda: jax.jit(jax.shard_map(
        lambda x: jm.mesh_shard(x, **RAW), mesh=jm.make_mesh((2, 4)), in_specs=P(), out_specs=P("y", "x")))(X)),
    ("traced primitive, evaluated", lambda: jax.core.eval_jaxpr(
        (j := jm.jit(lambda x: jm.mesh_shard(x, **RAW), mesh=MESH).trace(X).jaxpr).jaxpr, j.consts, X)),
]  # fmt: skip


@pytest.mark.parametrize("run", [r[1] for r in RUNS], ids=[r[0] for r in RUNS])
def test_unlowered_execution_says_what_to_call(run: Callable[[], Any]) -> None:
    check(run, jm.UnloweredError, NotImplementedError, r"jaxmesh\.jit\(f, mesh=mesh\)")


MESHES = [
    ("not a shape", lambda: jm.make_mesh((2, 0)), jm.MeshError, ValueError, r"\(2, 0\)"),
    ("names", lambda: jm.make_mesh((2, 4), ("x",)), jm.MeshError, ValueError, r"2 different axis names.*\('x',\)"),
    ("same names", lambda: jm.make_mesh((2, 4), ("x", "x")), jm.MeshError, ValueError, r"\('x', 'x'\)"),
    ("too late", lambda: jm.make_mesh((32, 64)), jm.DeviceCountError, ValueError,
     r"2048.*only 16 exist.*started.*emulate\(2048\).*XLA_FLAGS=\S+=2048"),
    ("too late, emulate", lambda: jm.emulate(99), jm.DeviceCountError, ValueError, r"99.*only 16"),
    ("emulate nothing", lambda: jm.emulate(0), jm.ArgumentTypeError, TypeError, "0"),
    ("no mesh", lambda: jm.jit(lambda x: jm.full_to_shard(x, P()))(X), jm.MeshError, ValueError,
     r"make_mesh.*set_mesh"),
    ("mesh of another kind", lambda: jm.jit(lambda x: x, mesh=(2, 4)), jm.ArgumentTypeError, TypeError, r"\(2, 4\)"),
    ("abstract, run", lambda: jm.jit(lambda x: x, mesh=MESH)(X), jm.MeshError, ValueError, "abstract"),
    ("abstract, compile", lambda: jm.jit(lambda x: x, mesh=MESH).lower(X).compile(), jm.MeshError, ValueError,
     "abstract"),
    ("not callable", lambda: jm.jit(3), jm.ArgumentTypeError, TypeError, "3"),
    ("argument no array", lambda: jm.jit(lambda x: x, mesh=MESH).trace("text"), jm.ArgumentTypeError, TypeError,
     "text"),
    ("compiled, other type", lambda: jm.jit(lambda x: x, mesh=jm.make_mesh((2, 4))).lower(X).compile()(X[:2]),
     jm.ArgumentTypeError, TypeError, r"\[16, 8\].*\[2, 8\]"),
    ("compiled, other tree", lambda: jm.jit(lambda x: x, mesh=jm.make_mesh((2, 4))).lower(X).compile()(X, X),
     jm.ArgumentTypeError, TypeError, "tree"),
]  # fmt: skip


@pytest.mark.parametrize(("make", "error", "builtin", "message"), [c[1:] for c in MESHES], ids=[c[0] for c in MESHES])
def test_meshes_and_calls(make: Callable[[], Any], error: type, builtin: type, message: str) -> None:
    check(make, error, builtin, message)


def test_a_context_mesh_that_is_not_the_programs() -> None:
    with jax.set_mesh(other_mesh()):
        check(lambda: jm.jit(lambda x: x, mesh=jm.make_mesh((2, 4)))(X), jm.MeshMismatchError, ValueError, "one mesh")


def python(code: str, **env: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False,
        env={k: v for k, v in {**__import__("os").environ, "JAX_PLATFORMS": "cpu", **env}.items() if v},
    )  # fmt: skip
    return done.stdout + done.stderr


def test_too_few_devices_after_the_backend_started() -> None:
    out = python("import jax; jax.devices(); import jaxmesh as jm; jm.make_mesh((2, 4))", XLA_FLAGS="")
    assert "DeviceCountError: 8 devices are wanted, but only 1 exist: JAX's backend had already started" in out
    assert "jaxmesh.emulate(8)" in out


def test_too_few_devices_in_the_users_own_flags() -> None:
    flags = "--xla_force_host_platform_device_count=3"
    out = python("import jaxmesh as jm; jm.make_mesh((2, 4))", XLA_FLAGS=flags)
    assert "only 3 exist: XLA_FLAGS in the environment asks for 3" in out


@pytest.mark.slow
def test_the_users_own_flags_are_kept() -> None:
    code = "import os, jaxmesh as jm, jax; jm.make_mesh((2, 4)); print(len(jax.devices()), os.environ['XLA_FLAGS'])"
    flags = "--xla_force_host_platform_device_count=12 --xla_cpu_enable_fast_math=false"
    assert python(code, XLA_FLAGS=flags).split("\n")[0] == f"12 {flags}"


def test_devices_are_emulated_on_demand() -> None:
    code = "import jaxmesh as jm; print(jm.make_mesh((2, 2, 2)).shape); print(len(jm.emulate(4)))"
    out = python(code, XLA_FLAGS="")
    assert "'z'" in out
    assert out.strip().endswith("4")


# --- collectives along the axis of a vmap ----------------------------------------------------------------------------

ALONG_A_BATCH: dict[str, Callable[[Any], Any]] = {
    "psum": lambda v: lax.psum(v, "batch"),
    "pmax": lambda v: lax.pmax(v, "batch"),
    "all_gather": lambda v: lax.all_gather(v, "batch"),
    "ppermute": lambda v: lax.ppermute(v, "batch", [(0, 1), (1, 0)]),
}


@pytest.mark.parametrize("name", ALONG_A_BATCH)
def test_a_collective_along_the_axis_of_a_vmap_is_jaxs_error(name: str) -> None:
    mesh, x = jm.make_mesh((2, 2), ("a", "b")), np.ones((2, 4, 4), np.float32)
    along = jax.vmap(ALONG_A_BATCH[name], axis_name="batch")
    spec = P(None, "a", "b")
    with pytest.raises(AssertionError) as theirs:
        jax.jit(jax.shard_map(along, mesh=mesh, in_specs=spec, out_specs=spec))(x)
    with pytest.raises(AssertionError) as mine:
        jm.jit(lambda v: along(jm.full_to_shard(v, spec)), mesh=mesh)(x)
    assert str(mine.value) == str(theirs.value)
    # What JAX does without the check.
    plain = jm.shard_map(along, mesh=mesh, in_specs=spec, out_specs=P(None, "a", "b"), check_vma=False)
    if name in ("psum", "pmax"):
        assert np.array_equal(plain(x), np.asarray(jax.vmap(ALONG_A_BATCH[name], axis_name="batch")(x)))


def test_an_assertion_of_a_users_own_function_is_the_users() -> None:
    def wrong(x: Any) -> Any:
        if x.ndim != 3:
            raise AssertionError
        return x

    with pytest.raises(AssertionError) as raised:
        jm.jit(wrong, mesh=jm.make_mesh((2,)))(np.ones(2))
    assert not isinstance(raised.value, jm.JaxmeshError)
