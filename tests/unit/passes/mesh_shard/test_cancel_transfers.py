"""Which transfers cancel each other, and which do not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import PartitionSpec as P

import jaxmesh as jm
from jaxmesh.jaxprs import compat, walk
from tests.generators.transfers import MESH, X, by_place, lowered, names_of, there_and_back


def there_and_there(spec: P) -> Callable[[Any], Any]:
    def body(x: Any) -> Any:
        s = jm.full_to_shard(jm.shard_to_full(jnp.sin(jm.full_to_shard(x, spec)), spec), spec)
        return jm.shard_to_full(jnp.cos(s), spec)

    return body


@pytest.mark.parametrize(
    ("spec", "shape", "names"),
    [
        (P("y", "x"), (16, 8), ["distribute_tensor", "sin", "cos", "aggregate_tensor"]),
        # One dim and two mesh axes: the composer needs a dim of 1 before, which goes with the transfers.
        (P("x"), (8,), ["distribute_tensor", "sin", "cos", "reshape", "aggregate_tensor", "reshape"]),
        # An order of axes that only reshapes say: those between the transfers go with them.
        (P(("x", "y")), (16, 8), ["reshape", "distribute_tensor", "reshape", "sin", "cos", "reshape",
                                  "aggregate_tensor", "reshape"]),
    ],
)  # fmt: skip
def test_inverse_transfers_leave_nothing(spec: P, shape: tuple[int, ...], names: list[str]) -> None:
    x = jax.ShapeDtypeStruct(shape, jnp.float32)
    assert names_of(jm.jit(there_and_there(spec), mesh=MESH).trace(x).lower().jaxpr) == names


def test_an_inverse_in_another_shape_is_one_reshape() -> None:
    """The full tensor is reshaped between, rows with the split dim; so the shards are, and nothing moves."""

    def body(x: Any) -> Any:
        full = jm.shard_to_full(jnp.sin(jm.full_to_shard(x, P("x"))), P("x"))
        return jm.shard_to_full(jnp.cos(jm.full_to_shard(full.reshape(8, 4, 4), P("x"))), P("x"))

    program = lowered(body)
    assert names_of(program) == ["distribute_tensor", "sin", "reshape", "cos", "aggregate_tensor"]
    assert [e.outvars[0].aval.shape for e in program.eqns][1:4] == [(4, 8), (2, 4, 4), (2, 4, 4)]


def test_only_a_reshape_back_is_taken_away() -> None:
    """The others are the user's, each with its line."""
    assert names_of(lowered(lambda x: there_and_back(x.reshape(8, 16).reshape(4, 32)))).count("reshape") == 2
    assert names_of(lowered(lambda x: there_and_back(x.reshape(8, 16).reshape(16, 8)))).count("reshape") == 0


def test_a_reshape_that_cuts_other_pieces_is_no_inverse() -> None:
    """The same axis on a dim in the same place, but other elements on each device."""
    x = np.arange(128, dtype=np.float32).reshape(16, 8)

    def body(x: Any) -> Any:
        full = jm.shard_to_full(2 * jm.full_to_shard(x, P(None, "x")), P(None, "x")).reshape(32, 4)
        return jm.shard_to_full(by_place(jm.full_to_shard(full, P(None, "x")), "x"), P(None, "x"))

    assert names_of(lowered(body)).count("distribute_tensor") == 2
    weights = 1 + 10 * np.arange(4, dtype=np.float32)
    got = jm.jit(body, mesh=jm.make_mesh((2, 4), ("y", "x")))(x)
    np.testing.assert_array_equal(np.asarray(got), (2 * x).reshape(32, 4) * weights)


def test_an_axis_of_size_1_over_which_a_value_varies_keeps_its_transfers() -> None:
    """The shard varies over it and the distribute's result does not, so one cannot stand for the other."""
    mesh, spec = jm.make_mesh((1, 4), ("y", "x")), P("x", "y")

    def body(x: Any) -> Any:
        s = jm.full_to_shard(jm.shard_to_full(2 * jm.full_to_shard(x, spec), spec), spec)
        return jm.shard_to_full(lax.psum(3 * s, "y"), spec)

    x = np.arange(32, dtype=np.float32).reshape(8, 4)
    program = jm.jit(body, mesh=mesh)
    np.testing.assert_array_equal(np.asarray(program(x)), 6 * x)
    for eqn in walk.all_eqns(program.trace(x).lower().jaxpr):
        if eqn.primitive.name == "pvary":
            assert not compat.varying_axes(getattr(eqn.invars[0], "aval", X)) & set(eqn.params["axes"])
