"""The verifiers of lowered programs refuse every program that breaks a rule."""

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
from jaxmesh.dialects.residency import HOST
from jaxmesh.errors import UnsupportedError, VerifyError
from jaxmesh.passes.lowering import lower
from jaxmesh.passes.mesh_shard.verify import verify_ttnn
from tests.generators.transfers import (
    SIZES,
    lowered,
    moves,
    there_and_back,
    traced,
)

# --- no TTIR operation is left ---------------------------------------------------------------------------------------


def in_scan(x: Any) -> Any:
    return lax.scan(lambda c, _: (there_and_back(c), None), x, None, length=2)[0]


def in_cond(x: Any) -> Any:
    return lax.cond(x[0, 0] > 0, there_and_back, lambda y: y, x)


@pytest.mark.parametrize("body", [there_and_back, in_scan, in_cond, jax.jit(there_and_back)])
def test_a_mesh_shard_that_is_left_is_found_at_any_depth(body: Any) -> None:
    with pytest.raises(VerifyError, match=r"still holds a mesh_shard \(.*transfers\.py:\d+.*there_and_back"):
        verify_ttnn(traced(body))
    verify_ttnn(lowered(body))


# --- every device takes part in a transfer ---------------------------------------------------------------------------


def branches(decides: Any, body: Any) -> Callable[[Any], Any]:
    return lambda x: lax.cond(decides(x), body, lambda y: y, x)


def loop(decides: Any, body: Any) -> Callable[[Any], Any]:
    return lambda x: lax.while_loop(decides, body, x)


def loop_deciding(decides: Any, body: Any) -> Callable[[Any], Any]:
    """The transfer stands in what decides."""
    return lambda x: lax.while_loop(lambda y: decides(y) & (body(y)[0, 0] > 0), lambda y: y, x)


@pytest.mark.parametrize(("name", "make"), [("cond", branches), ("while", loop), ("while", loop_deciding)])
def test_no_transfer_where_devices_go_different_ways(name: str, make: Any) -> None:
    def apart(_: Any) -> Any:
        return lax.axis_index("x") + lax.axis_index("y") > 0

    def together(x: Any) -> Any:
        return jnp.sum(x) > 0

    words = rf"{name} \(.*test_verify.*decided by \w+\[\].*over mesh axis 'x', 'y'.*every device must take part"
    with pytest.raises(UnsupportedError, match=words):
        verify_ttnn(traced(make(apart, moves)))
    # The second: what decides may differ between devices, where nothing moves.
    for allowed in (make(together, moves), make(apart, jnp.tanh)):
        verify_ttnn(lower(traced(allowed), [HOST], SIZES).program)


def shares(x: Any) -> Any:
    return jm.full_to_shard(x, P("x"))


def chosen(x: Any, w: Any) -> Any:
    s = shares(x)
    return lax.cond(s[0] > 0, lambda: s * jnp.tanh(w).sum(), lambda: s)


def chosen_carry(x: Any, w: Any) -> Any:
    s = shares(x)
    return lax.cond(s[0] > 0, lambda: s * w.sum(), lambda: s - w.sum())


def repeated(x: Any, w: Any) -> Any:
    return lax.while_loop(lambda c: (c.sum() < 100) & (jnp.tanh(w).sum() < 9), lambda c: c + w.sum(), shares(x))


@pytest.mark.parametrize("body", [chosen, chosen_carry, repeated])
def test_a_full_tensor_is_read_where_devices_go_different_ways(body: Any) -> None:
    """It is brought over before the loop or branch, so that nothing moves inside."""
    x, w = np.arange(8, dtype=np.float32) - 3, np.ones(3, np.float32)
    mesh = jm.make_mesh((2, 4), ("y", "x"))
    got = jm.jit(lambda x, w: jm.shard_to_full(body(x, w), P("x")), mesh=mesh)(x, w)
    for at in range(4):
        s = x[2 * at : 2 * at + 2]
        if body is chosen:
            want = s * np.tanh(w).sum() if s[0] > 0 else s
        elif body is chosen_carry:
            want = s * 3 if s[0] > 0 else s - 3
        else:
            want = s
            while want.sum() < 100:
                want = want + 3
        np.testing.assert_allclose(np.asarray(got)[2 * at : 2 * at + 2], want, rtol=1e-6)
