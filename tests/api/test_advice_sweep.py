"""Every error that advises code, or what to pass, is raised by a program, and its advice works.

The errors are found by a sweep of the package: a `raise` whose text has code in backticks, a call of JAX, NumPy or
jaxmesh, or "pass ...". A case of this file or of `test_advice.py` raises it; its advice is followed.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AbstractMesh, NamedSharding, PartitionSpec as P

import jaxmesh as jm
from jaxmesh import ttnn
from tests.api import test_advice as known
from tests.api.test_advice import Case, X, composer, double, mesh, tensor, whole, with_mesh_set
from tests.api.test_advice_names import PACKAGE, text_of

lax: Any = jax.lax
HALF = X / 2
ADVISES = re.compile(
    r"`[^`]*[(=][^`]*`|\b[Pp]ass (?!equally)(?!data as)|\b(?:jaxmesh|jax|numpy|np|x)\.[a-z_.]+\("
    r"|with jax\.|over jaxmesh\.|with jaxmesh\.|under jaxmesh\."
)
"""A piece of advice that can be followed as it stands."""
ELSEWHERE = {
    "cli/run_folder.py": "of a main.py that was changed by hand: tests/api/test_export_folder.py",
    "dialects/ttnn/transfers.py": "of a text whose mapper leaves devices out: tests/api/test_ttnn_distribution.py",
    "passes a tensor twice to a function": "of a text of two functions: tests/unit/frontends/mlir/test_dumps.py",
    "emit/mlir/attributes.py": "of an attribute that no tracing makes",
    "runtime/distributed/collectives.py": "of several processes: tests/system/test_processes.py",
    "stages/host_transfers.py": "of several processes: tests/system/test_processes.py",
    "stages/stages.py": "of several processes: tests/system/test_processes.py",
    "stages/upstream.py": "of texts that the compiler made: tests/api/test_repair_command.py",
    "passes/ttir_to_ttnn/driver.py": "of an op without a row, which a developer adds",
    "is no mesh axis name": "of dims beside mesh axes in one reduction, which the tested versions of JAX refuse",
    "which is not an array; pass arrays": "of types of other packages (hijax), which are no arrays",
    "lacks a device of process": "of several processes: tests/system/test_processes.py",
}
"""Files and words of errors whose advice needs more than a program, and where it is followed."""
WIDE = "func.func @main(%x: tensor<4xf64>) -> tensor<4xf64> { return %x : tensor<4xf64> }"
WIDE_HLO = """func.func @main(%x: tensor<4xi64>) -> tensor<4xi64> {
  %0 = "stablehlo.add"(%x, %x) : (tensor<4xi64>, tensor<4xi64>) -> tensor<4xi64>
  return %0 : tensor<4xi64>
}"""
MANY_WORDS = """func.func @main() -> tensor<ui64> {
  %0 = stablehlo.iota dim = 0 : tensor<4294967296xui64>
  %1 = stablehlo.slice %0 [0:1] : (tensor<4294967296xui64>) -> tensor<1xui64>
  %2 = stablehlo.reshape %1 : (tensor<1xui64>) -> tensor<ui64>
  return %2 : tensor<ui64>
}"""
WIDE_CONSTANT = """func.func @main() -> tensor<2xi64> {
  %0 = stablehlo.constant dense<[1, 2]> : tensor<2xi64>
  return %0 : tensor<2xi64>
}"""
THERE = """func.func @main(
    %x: tensor<4xf32> {ttcore.shard_status = #ttcore.shard_status<presharded>}) -> tensor<4xf32> {
  %0 = "ttir.neg"(%x) : (tensor<4xf32>) -> tensor<4xf32>
  return %0 : tensor<4xf32>
}"""


def own(axis: str | None = "y", shape: tuple[int, ...] = (2, 4)) -> Any:
    return jax.device_put(HALF, NamedSharding(jm.make_mesh(shape, ("y", "x")), P(axis)))


def with_wide(run: Any) -> Any:
    with jax.enable_x64(True):
        return run()


def kept(axis: str = "y") -> Any:
    """Returns a program that takes a whole array, split over the mesh."""
    return jm.jit(lambda x: 2 * x).lower(own(axis)).compile()


def by_hand(x: Any) -> Any:
    return jm.jit(lambda x: jm.shard_to_full(jm.full_to_shard(x, P("y")), P("y")), mesh=mesh())(x)


def mapped(over: Any, program: Any) -> Any:
    inner = jm.shard_map(lambda x: 2 * x, mesh=over, in_specs=P("y"), out_specs=P("y"))
    return jm.jit(lambda x: inner(jm.shard_to_full(jm.full_to_shard(x, P("y")), P("y"))), mesh=program).lower(X)


def summed(f: Any) -> str:
    return jm.jit(f, mesh=mesh()).lower(X).as_text()


def abstractly(over: Any) -> Any:
    kind = jax.ShapeDtypeStruct((8, 8), jnp.float32, sharding=NamedSharding(over, P("y")))
    return jm.jit(lambda x: 2 * x, mesh=over).lower(kind)


def distributed(x: Any) -> Any:
    mapper = ttnn.create_mesh_mapper(
        known.device(), ttnn.MeshMapperConfig([ttnn.PlacementShard(0), ttnn.PlacementReplicate()])
    )
    return ttnn.distribute_tensor(x, mapper)


def donated(copy: bool) -> Any:
    x = jnp.asarray(X)
    made = jm.jit(lambda x, y: x + y, mesh=mesh(), donate_argnums=0)
    return made(jnp.copy(x) if copy else x, x)


def nested() -> list[Any]:
    tree: list[Any] = []
    tree.append(tree)
    return tree


CASES = [
    Case("a large number", lambda: double(mesh=mesh())(2**40), {
        "pass an array of a wider type": lambda: double(mesh=mesh())(np.float32(2**40))}),
    Case("a text as an argument", lambda: double(mesh=mesh())("a"), {
        "pass arrays": lambda: whole(double(mesh=mesh())(HALF)),
        "mark everything else with static_argnums": lambda: whole(jm.jit(
            lambda name, x: 2 * x if name else x, mesh=mesh(), static_argnums=0)("a", HALF))}),
    Case("64 bits in a text", lambda: jm.from_mlir(WIDE), {
        'jax.config.update("jax_enable_x64", True)': lambda: with_wide(lambda: jm.from_mlir(WIDE)),
        "cast to 32 bits": lambda: jm.from_mlir(WIDE.replace("f64", "f32"))}),
    Case("64 bits in StableHLO", lambda: jm.from_mlir(WIDE_HLO), {
        'jax.config.update("jax_enable_x64", True)': lambda: with_wide(lambda: jm.from_mlir(WIDE_HLO))}),
    Case("a function applied in place",
         lambda: jm.jit(lambda x: x.at[0].apply(jnp.sin), mesh=mesh()).lower(X).as_text(), {
        "write x.at[i].set(f(x[i]))":
            lambda: jm.jit(lambda x: x.at[0].set(jnp.sin(x[0])), mesh=mesh()).lower(X).as_text()}),
    Case("an empty mesh", lambda: double(mesh=AbstractMesh((), ()))(X), {
        "make one with jaxmesh.make_mesh((2, 4))": lambda: double(mesh=jm.make_mesh((2, 4)))(X)}),
    Case("no mesh", lambda: jm.visualize((8, 8), P("y")), {
        "pass mesh=jaxmesh.make_mesh((2, 4))": lambda: jm.visualize((8, 8), P("y"), mesh=jm.make_mesh((2, 4))),
        "or set one with jax.set_mesh": lambda: with_mesh_set(lambda: jm.visualize((8, 8), P("y")))}),
    Case("an unreduced spec", lambda: jm.jit(
        lambda x: jm.full_to_shard(x, P(unreduced={"x"})), mesh=mesh()).lower(X), {
        "reduce with jax.lax.psum": lambda: jm.jit(
            lambda x: lax.psum(jm.full_to_shard(x, P(None, "x")), "x"), mesh=mesh()).lower(X)}),
    Case("an array elsewhere on the mesh", lambda: kept()(own("x")), {
        "put it there with jax.device_put": lambda: whole(kept()(own())),
        "or trace the program again": lambda: whole(kept("x")(own("x")))}),
    Case("an array on other devices", lambda: by_hand(jnp.from_dlpack(HALF)), {
        "pass numpy.asarray(x)": lambda: by_hand(np.asarray(jnp.from_dlpack(HALF))),
        "or put it on that mesh": lambda: by_hand(own(None))}),
    Case("a masked array", lambda: double(mesh=mesh())(np.ma.MaskedArray(HALF)), {
        "pass array.filled(value)": lambda: whole(double(mesh=mesh())(np.ma.MaskedArray(HALF).filled(0)))}),
    Case("a list in itself", lambda: double(mesh=mesh())(nested()), {}),
    Case("a compiled program in a trace",
         lambda: jax.jit(lambda x: double(mesh=mesh()).lower(X).compile()(x))(HALF), {
        "call the function that jaxmesh.jit made": lambda: whole(jax.jit(double(mesh=mesh()))(HALF))}),
    Case("an array twice, donated", lambda: donated(copy=False), {
        "pass jax.numpy.copy(x)": lambda: whole(donated(copy=True) / 2)}),
    Case("shardings, and a tensor", lambda: double(mesh=mesh(), in_shardings=P("y"))(tensor()), {
        "pass arrays": lambda: whole(double(mesh=mesh(), in_shardings=P("y"))(HALF)),
        "leave in_shardings and out_shardings out": lambda: double(mesh=mesh())(tensor())}),
    Case("a presharded argument without a mesh", lambda: jm.from_mlir(THERE), {
        "give mesh=jaxmesh.make_mesh((2, 4))": lambda: jm.from_mlir(THERE, mesh=mesh()),
        "set one with jax.set_mesh": lambda: with_mesh_set(lambda: jm.from_mlir(THERE))}),
    Case("a tensor for shard_map", lambda: jm.shard_map(
        lambda x: 2 * x, mesh=mesh(), in_specs=P("y"), out_specs=P("y")).trace(tensor()), {
        "give the full array": lambda: whole(jm.shard_map(
            lambda x: 2 * x, mesh=mesh(), in_specs=P("y"), out_specs=P("y"))(HALF)),
        "call the function's body under jaxmesh.jit": lambda: double(mesh=mesh())(tensor())}),
    Case("an array on the mesh in another way", lambda: double(mesh=mesh(), in_shardings=P("x")).lower(own()), {
        "put it there with jax.device_put": lambda: double(mesh=mesh(), in_shardings=P("x")).lower(own("x")),
        "or leave its sharding out": lambda: double(mesh=mesh()).lower(own())}),
    Case("an array on a mesh of other devices", lambda: double(mesh=mesh()).lower(own("y", (2, 2))), {
        "pass numpy.asarray(x)": lambda: double(mesh=mesh()).lower(np.asarray(HALF)),
        "with jax.device_put": lambda: double(mesh=mesh()).lower(own())}),
    Case("a region over another mesh", lambda: mapped(jm.make_mesh((4, 2), ("y", "x")), mesh()), {
        "Give jaxmesh.jit the shard_map's mesh": lambda: mapped(mesh(), mesh())}),
    Case("a tensor that is static", lambda: double(mesh=mesh(), static_argnums=0)(tensor()), {
        "pass it as a dynamic one": lambda: double(mesh=mesh())(tensor())}),
    Case("a tensor as an array", lambda: np.asarray(tensor()), {
        "read it with jaxmesh.ttnn.aggregate_tensor(tensor, composer)":
            lambda: whole(ttnn.aggregate_tensor(tensor(), composer()))}),
    Case("a tensor in a function of JAX", lambda: jnp.sin(tensor()), {
        "outside, read it with jaxmesh.ttnn.aggregate_tensor":
            lambda: whole(ttnn.aggregate_tensor(tensor(), composer())),
        "Inside a program give it to the function as an argument":
            lambda: jm.jit(jnp.sin, mesh=mesh())(tensor())}),
    Case("keys as a tensor", lambda: distributed(jax.random.split(jax.random.key(0), 8)), {
        "pass jax.random.key_data(keys)": lambda: distributed(
            jax.random.key_data(jax.random.split(jax.random.key(0), 8)))}),
    Case("a masked array as a tensor", lambda: distributed(np.ma.MaskedArray(HALF)), {
        "pass array.filled(value)": lambda: distributed(np.ma.MaskedArray(HALF).filled(0))}),
    Case("another byte order", lambda: distributed(HALF.astype(">f4")), {
        "pass array.astype(array.dtype.newbyteorder('='))": lambda: distributed(
            HALF.astype(">f4").astype(np.dtype(">f4").newbyteorder("=")))}),
    Case("arrays on two meshes", lambda: jm.jit(jnp.add)(own(), own("y", (2, 2))), {
        "Move either to the other's mesh with jax.device_put": lambda: whole(jm.jit(jnp.add)(own(), own())),
        "or give jaxmesh.jit the mesh": lambda: whole(jm.jit(jnp.add, mesh=mesh())(own(), own()))}),
    Case("a large number as a tensor", lambda: summed(lambda x: jm.full_to_shard(2**70, P())), {
        "pass an array of a wider type": lambda: summed(lambda x: jm.full_to_shard(np.float32(2.0**70), P()))}),
    Case("64 bits in a constant", lambda: jm.from_mlir(WIDE_CONSTANT), {
        'jax.config.update("jax_enable_x64", True)': lambda: with_wide(lambda: jm.from_mlir(WIDE_CONSTANT))}),
    Case("many words of 64 bits", lambda: jm.from_mlir(MANY_WORDS), {
        'jax.config.update("jax_enable_x64", True)': lambda: with_wide(lambda: jm.from_mlir(MANY_WORDS))}),
    Case("values for an abstract mesh", lambda: abstractly(AbstractMesh((2, 4), ("y", "x"))).reference(HALF), {
        "trace it over jaxmesh.make_mesh": lambda: whole(abstractly(mesh()).reference(HALF))}),
    Case("a negative size", lambda: jm.visualize((-1, 8), P("y"), mesh=mesh()), {
        "pass sizes of 0 or more": lambda: jm.visualize((0, 8), P("y"), mesh=mesh())}),
]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_advice_is_in_the_message_and_works(case: Case) -> None:
    known.test_advice_is_in_the_message_and_works(case)


def advising() -> Iterator[tuple[str, str]]:
    """Yields file and text of each `raise` with advice that can be followed; `_` stands for a value."""
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
                text = " ".join(map(text_of, node.exc.args))
                if ADVISES.search(text):
                    yield str(path.relative_to(PACKAGE)), text


def message(case: Case) -> str:
    with pytest.raises(jm.JaxmeshError) as caught:
        case.wrong()
    return str(caught.value)


def test_every_advice_is_followed() -> None:
    found, messages = list(advising()), list(map(message, (*known.CASES, *CASES)))
    assert len(found) > 40
    # Where a value is filled in, anything stands.
    forms = {(file, text): re.compile(".*".join(map(re.escape, text.split("_"))), re.S) for file, text in found}
    left = [key for key, form in forms.items() if not any(map(form.search, messages))]
    assert {": ".join(key) for key in left if not any(e in ": ".join(key) for e in ELSEWHERE)} == set()
    # What is followed elsewhere is not followed here.
    assert [e for e in ELSEWHERE if not any(e in ": ".join(key) for key in left)] == []
