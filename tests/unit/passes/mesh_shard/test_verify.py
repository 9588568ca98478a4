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
from jaxmesh.dialects.residency import DEVICE, HOST
from jaxmesh.dialects.ttnn.transfers import aggregate_tensor_p, distribute_tensor_p
from jaxmesh.errors import ResidencyError, UnsupportedError, VerifyError
from jaxmesh.jaxprs import walk
from jaxmesh.passes.lowering import lower
from jaxmesh.passes.mesh_shard.verify import verify_ttnn
from jaxmesh.sharding.configs import (
    MeshComposerConfig,
    MeshMapperConfig,
    PlacementReplicate,
    PlacementShard,
)
from tests.generators.transfers import (
    COLUMNS,
    COPY,
    SIZES,
    X,
    aggregate,
    distribute,
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
        verify_ttnn(traced(body), [HOST], SIZES)
    verify_ttnn(lowered(body), [HOST], SIZES)


# --- configs and result types agree ----------------------------------------------------------------------------------


def with_params(program: Any, primitive: Any, **params: Any) -> Any:
    eqns = [e.replace(params={**e.params, **params}) if e.primitive is primitive else e for e in program.eqns]
    return walk.with_eqns(program, eqns, walk.open_jaxpr(program).outvars)


TWICE = MeshMapperConfig([PlacementShard(0), PlacementShard(0)], (2, 4))


@pytest.mark.parametrize(
    ("primitive", "params", "words"),
    [
        (distribute_tensor_p, {"mapper_config": COLUMNS}, r"distribute_tensor: .*shape \[16, 4\], .*has \[8, 8\]"),
        (distribute_tensor_p, {"mapper_config": TWICE}, r"axes 0 and 1 both name tensor dim 0"),
        (aggregate_tensor_p, {"composer_config": MeshComposerConfig([1, 0], (2, 1))},
         r"aggregate_tensor: .*shape \[8, 16\], .*has \[16, 8\]"),
        (aggregate_tensor_p, {"composer_config": MeshComposerConfig([0, 0], (2, 1))},
         r"axes 0 and 1 both name tensor dim 0"),
    ],
)  # fmt: skip
def test_a_config_that_does_not_give_the_result_type_is_refused(primitive: Any, params: Any, words: str) -> None:
    with pytest.raises(VerifyError, match=words):
        verify_ttnn(with_params(lowered(there_and_back), primitive, **params), [HOST], SIZES)


def test_a_distribute_in_a_program_fills_the_mesh() -> None:
    """A part of the mesh is legal eagerly only; the message has both counts."""
    part = MeshMapperConfig([PlacementShard(0), PlacementReplicate()], (2, 3))
    with pytest.raises(UnsupportedError, match="places 6 shards on 8 devices"):
        verify_ttnn(with_params(lowered(there_and_back), distribute_tensor_p, mapper_config=part), [HOST], SIZES)


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
        verify_ttnn(traced(make(apart, moves)), [HOST], SIZES)
    # The second: what decides may differ between devices, where nothing moves.
    for allowed in (make(together, moves), make(apart, jnp.tanh)):
        verify_ttnn(lower(traced(allowed), [HOST], SIZES).program, [HOST], SIZES)


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


@pytest.mark.parametrize(
    ("body", "inputs", "words"),
    [
        (moves, [DEVICE, HOST], r"distribute_tensor \(.*needs operand 0 on the host, but it is on the device;"),
        (lambda x, y: aggregate(x), [HOST, HOST], r"aggregate_tensor \(.*operand 0 on the device.*is on the host;"),
        (lambda x, y: y * distribute(x, COPY), [HOST, HOST], r"mul \(.*operand 0 on the device.*is on the host;"),
        (lambda x, y: distribute(x, COPY) * y, [HOST, HOST], r"mul \(.*operand 1 on the device.*is on the host;"),
        (lambda x, y: jax.jit(lambda a: distribute(a, COPY) * y)(x), [HOST, HOST], r"operand \d on the device"),
        (lambda x, y: lax.scan(lambda c, _: (c * y, c), distribute(x, COPY), None, length=2), [HOST, HOST],
         r"operand \d on the device, but it is on the host"),
    ],
)  # fmt: skip
def test_an_operand_on_the_wrong_side_is_refused(body: Any, inputs: Any, words: str) -> None:
    def two(x: Any, y: Any) -> Any:
        return body(x, y) if body is not moves else body(x)

    with pytest.raises(ResidencyError, match=words):
        verify_ttnn(traced(two, X, X), inputs, SIZES)
    # The pass writes the missing transfers out, and then nothing is refused.
    verify_ttnn(lower(traced(two, X, X), inputs, SIZES).program, inputs, SIZES)
