"""What random nested programs found: barriers beside copies, bodies with constraints, axes of size 1."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AbstractMesh, AxisType, NamedSharding, PartitionSpec as P

import jaxmesh as jm

MESH = AbstractMesh((2, 4), ("y", "x"))
EXPLICIT = AbstractMesh((2, 4), ("y", "x"), axis_types=(AxisType.Explicit,) * 2)


def text_of(fun: Callable[..., Any], mesh: AbstractMesh, *args: tuple[tuple[int, ...], P]) -> str:
    types = [jax.ShapeDtypeStruct(shape, np.float32, sharding=NamedSharding(mesh, spec)) for shape, spec in args]
    with jax.sharding.use_abstract_mesh(mesh):
        return jm.jit(fun, mesh=mesh, full_results=True).trace(*types).as_text()


def test_a_barrier_leaves_copies_copies() -> None:
    """A copy beside a split value in one `optimization_barrier` is returned as it is."""

    def loss(a: Any, b: Any) -> Any:
        u, v = jax.checkpoint(lambda a, b: (jnp.sin(jnp.sin(a)), jnp.sin(jnp.sin(b))))(a, b)
        return jnp.sum(u) + jnp.sum(v)

    text = text_of(jax.grad(loss, (0, 1)), MESH, ((4,), P()), ((8, 16), P(("y", "x"))))
    status = " {ttcore.shard_status = #ttcore.shard_status<unsharded>}"
    assert "-> (tensor<4xf32>, tensor<8x16xf32>)" in text.replace(status, "")
    assert "all_gather" not in text


def test_a_scatter_over_explicit_axes_has_constraints_in_its_body() -> None:
    text = text_of(lambda x: x.at[np.array([0, 2])].add(1.0), EXPLICIT, ((8, 16, 4), P(None, ("y", "x"))))
    assert "scatter" in text
    assert "all_gather" not in text


def test_an_axis_of_size_1_moves_nothing_else() -> None:
    mesh = AbstractMesh((1, 2), ("y", "x"))
    fun = jm.jit(jnp.sin, mesh=mesh, in_shardings=P(("y", "x")), out_shardings=P("x"))
    assert {t.sent for t in fun.lower(np.ones(16, np.float32)).explain().totals() if t.kind == "all_gather"} <= {0}


def test_collectives_of_one_device_are_read() -> None:
    """A table of equal device ids is one number in MLIR."""
    mesh = jm.make_mesh((1, 1), ("y", "x"))

    def body(v: Any) -> list[Any]:
        lax: Any = jax.lax
        return [
            lax.psum(v, "x"), lax.pmax(v, ("y", "x")), lax.all_gather(v, "x", tiled=True),
            lax.ppermute(v, "x", [(0, 0)]),
            lax.psum_scatter(v, "x", tiled=True), lax.all_to_all(v, "x", 1, 0, tiled=True),
        ]  # fmt: skip

    mapped = jax.shard_map(body, mesh=mesh, in_specs=P("x"), out_specs=P("x"), check_vma=False)
    x = np.arange(8, dtype=np.float32).reshape(2, 4)
    traced = jm.jit(lambda x: mapped(x + 1), mesh=mesh, in_shardings=P("y")).trace(x)
    assert traced.inexpressible is None
    for got in traced.lower().compile()(x):
        np.testing.assert_array_equal(got, x + 1)
