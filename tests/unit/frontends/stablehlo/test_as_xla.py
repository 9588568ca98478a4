"""What XLA does before and after Shardy: the results lie as those of `jax.jit`, and no more bytes are moved."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec as P

import jaxmesh as jm
from tests.generators.hlo_traffic import moved
from tests.generators.oracles import same_bits

pytestmark = pytest.mark.slow(but_one_in=3)

MESH = jm.make_mesh((2, 4), ("y", "x"))
LINE = jm.make_mesh((8,), ("x",))
THIN = jm.make_mesh((1, 2), ("y", "x"))
EXPLICIT = jm.make_mesh((2, 4), ("y", "x"), axis_types=(AxisType.Explicit,) * 2)
X = np.random.default_rng(0).standard_normal((8, 16)).astype(np.float32)


def constrained(x: Any, mesh: Mesh, *spec: Any) -> Any:
    return lax.with_sharding_constraint(x, NamedSharding(mesh, P(*spec)))


def unused_constraint(x: Any) -> Any:
    constrained(x * 3, MESH)
    return x * 2


def unused_in_a_program(x: Any) -> Any:
    return jax.jit(lambda x: (constrained(jnp.sin(x), MESH), x * 2))(x)[1]


def constraint_in_a_loop(x: Any) -> tuple[Any, Any]:
    """The loop only passes the constrained value on."""
    y = jnp.sin(x)
    z, _ = lax.scan(lambda c, _: (c + constrained(y, MESH, "y", "x"), None), jnp.zeros_like(x), None, length=2)
    return y, z


def product_in_a_loop(x: Any) -> Any:
    return lax.scan(lambda c, _: (c, x @ jnp.cos(x).T), None, None, length=2)[1][-1]


CASES: dict[str, tuple[Callable[..., Any], Mesh, Any]] = {
    "an unused constraint": (unused_constraint, MESH, P(("y", "x"))),
    "an unused constraint in a program": (unused_in_a_program, MESH, P(("y", "x"))),
    "a slice at a constant place": (lambda x: lax.dynamic_slice_in_dim(x, jnp.int32(1), 4, 0), MESH, P("y", "x")),
    "a slice at a negative place": (lambda x: lax.dynamic_slice_in_dim(x, -12, 8, 1), MESH, P("y", "x")),
    "a slice beyond the end": (lambda x: lax.dynamic_slice_in_dim(x, jnp.uint8(200), 8, 1), MESH, P("y", "x")),
    "axes of size 1": (lambda x: constrained(x, THIN, None, "y") + jnp.sin(x), THIN, P("y", "x")),
    "a constraint in a loop": (constraint_in_a_loop, MESH, P(None, ("y", "x"))),
    "a product in a loop": (product_in_a_loop, LINE, P("x")),
}


def _both(fun: Callable[..., Any], mesh: Mesh, spec: Any, *args: Any) -> tuple[Any, Any, int, int]:
    """Returns the results of `jax.jit` and `jaxmesh.jit`, and the bytes that each of them sends."""
    placed = [jax.device_put(x, NamedSharding(mesh, s)) for x, s in zip(args, spec, strict=True)]
    explicit = AxisType.Explicit in mesh.axis_types
    with jax.set_mesh(mesh) if explicit else contextlib.nullcontext():
        compiled = [f(fun).lower(*placed).compile() for f in (jax.jit, jm.jit)]
        theirs, ours = (c(*placed) for c in compiled)
    sent = [sum(s for _, s in moved(c.as_text(), dict(mesh.shape)).values()) for c in compiled]
    return theirs, ours, *sent


@pytest.mark.parametrize("name", CASES)
def test_results_lie_as_those_of_jax(name: str) -> None:
    fun, mesh, spec = CASES[name]
    theirs, ours, _, _ = _both(fun, mesh, [spec], X)
    for x, y, z in zip(*map(jax.tree.leaves, (theirs, ours, fun(X))), strict=True):
        assert y.sharding.is_equivalent_to(x.sharding, x.ndim), (y.sharding, x.sharding)
        np.testing.assert_allclose(y, z, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("mesh", [MESH, LINE, THIN, EXPLICIT], ids=["2x4", "8", "1x2", "Explicit 2x4"])
@pytest.mark.parametrize("fun", [jnp.argmax, jnp.argmin])
def test_the_place_of_an_extreme_moves_one_value_per_part(fun: Callable[..., Any], mesh: Mesh) -> None:
    """Equal values, infinities and NaNs, too: the first one is taken."""
    axes = mesh.axis_names
    x = np.random.default_rng(1).integers(0, 4, (8, 64)).astype(np.float32)
    x[1], x[2], x[3, [17, 40]], x[4, 63] = -np.inf, np.inf, np.nan, np.nan
    specs = [P(None, axes[-1])] + ([P(None, axes), P(None, axes[::-1])] if len(axes) > 1 else [])
    for spec in specs:
        for values in (x, np.nan_to_num(np.clip(x, -9, 9)).astype(np.int8)):
            theirs, ours, xla, here = _both(lambda v: fun(v, 1), mesh, [spec], values)
            assert same_bits(np.asarray(ours), np.asarray(fun(values, 1)))
            assert ours.sharding.is_equivalent_to(theirs.sharding, 1)
            assert 0 < here <= xla


def test_a_product_gathers_what_is_small() -> None:
    """A gather of an operand, or a sum of partial results, whichever moves less; XLA moves no less."""
    kinds = set[str]()
    for rows, inner, columns in ((16, 8, 16), (16, 64, 16), (8, 64, 64), (64, 64, 8)):
        a, b = np.ones((rows, inner), np.float32), np.ones((inner, columns), np.float32)
        for spec in ([P(None, "x"), P()], [P(), P("x")], [P(None, ("y", "x")), P()], [P(None, "x"), P("y")]):
            _, ours, xla, here = _both(jnp.matmul, MESH, spec, a, b)
            np.testing.assert_array_equal(ours, a @ b)
            assert here <= xla
            program = jm.jit(jnp.matmul, mesh=MESH, in_shardings=tuple(spec))
            kinds |= {d.kind for d in program.trace(a, b).decisions}
    assert {"all_gather", "all_reduce"} <= kinds


@pytest.mark.parametrize(
    ("config", "spec", "local"),
    [
        ((0, 1, 1), P("x"), True),
        ((1, 0, 1), P("x"), True),
        ((2, 2, 0), P("x"), False),
        ((4, 4, 0), P("x"), False),
        ((2, 0, 2), P(("y", "x")), True),
        ((-1, 5, 0), P("x"), False),
    ],
)
def test_pads_of_split_dims(config: tuple[int, int, int], spec: P, local: bool) -> None:
    """A device pads its own shard, at its own place, where no data of another shard is needed."""
    x = np.arange(16, dtype=np.float32)

    def fun(x: Any) -> Any:
        return lax.pad(x, np.float32(7), [config])

    program = jm.jit(fun, mesh=MESH, in_shardings=spec, out_shardings=spec)
    lowered = program.lower(x)
    assert ("all_gather" not in lowered.as_text()) is local
    for got in (program(x), lowered.reference(x)):
        np.testing.assert_array_equal(got, fun(x))
    np.testing.assert_allclose(
        jax.grad(lambda x: jnp.sum(jnp.sin(program(x))))(x), jax.grad(lambda x: jnp.sum(jnp.sin(fun(x))))(x), rtol=1e-6
    )
