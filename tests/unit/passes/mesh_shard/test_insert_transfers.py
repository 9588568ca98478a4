"""Where the pass inserts transfers."""

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
from jaxmesh.errors import MissingRuleError
from jaxmesh.jaxprs import compat, walk
from jaxmesh.passes.lowering import lower
from jaxmesh.sharding.configs import (
    MeshComposerConfig,
    MeshMapperConfig,
    PlacementShard,
)
from tests.generators.transfers import (
    COLUMNS,
    COPY,
    CROSSED,
    MESH,
    SIZES,
    X,
    aggregate,
    distribute,
    lowered,
    names_of,
    there_and_back,
    traced,
)


def test_a_branch_that_does_nothing_brings_its_input() -> None:
    """Its other branch gives a device value; this one has no equation of its own to speak for it."""

    def body(x: Any, w: Any) -> Any:
        return jm.shard_to_full(lax.cond(w[0, 0] > 0, lambda: jm.full_to_shard(x, P()), lambda: x), P())

    program = jm.jit(body, mesh=MESH).trace(X, X).lower()
    (turn,) = [e for e in walk.all_eqns(program.jaxpr) if e.primitive.name == "cond"]
    assert [names_of(b) for b in turn.params["branches"]] == [["distribute_tensor"]] * 2
    notes = [str(n) for row in program.explain() for n in row.notes]
    assert any("the full host tensor that the cond gives on the devices is copied to each" in n for n in notes), notes


def test_what_a_loop_computes_of_its_counter_stays_on_the_devices() -> None:
    def step(state: Any) -> Any:
        i, x = state
        return i + 1, jnp.tanh(x) + 0.1 * i.astype(x.dtype)

    def body(x: Any) -> Any:
        return lax.while_loop(lambda state: state[0] < 3, step, (0, x))[1]

    program = jm.jit(body, mesh=MESH, in_shardings=P("x")).lower(X)
    assert [t.moves for t in program.explain().totals()] == ["1 distribute over x", "1 aggregate over x"]


def twice(s: Any, b: Any) -> Any:
    return (s + b) * b


READS = {
    "straight": twice,
    "call": jax.jit(twice),
    "scan": lambda s, b: lax.scan(lambda c, _: (twice(c, b), None), s, None, length=3)[0],
    "scan over it": lambda s, b: lax.scan(lambda c, b: (twice(c, b), None), s, jnp.stack([b, b]))[0],
    "while": lambda s, b: lax.fori_loop(0, 3, lambda _, c: twice(c, b), s),
    "cond": lambda s, b: lax.cond(b[0, 0] > 0, lambda: twice(s, b), lambda: s - b),
    "cond with others": lambda s, b: lax.cond(b[0, 0] > 0, lambda o, s, b: s - b, lambda o, s, b: s + o, 1.0, s, b),
}


@pytest.mark.parametrize("name", READS)
def test_a_full_tensor_is_brought_once_and_outside(name: str) -> None:
    """Read twice on the devices, in a body or not: one replicating distribute, before the body."""

    def body(x: Any, b: Any) -> Any:
        return jm.shard_to_full(READS[name](jm.full_to_shard(x, P("y")), b), P("y"))

    program = jm.jit(body, mesh=MESH).trace(X, jax.ShapeDtypeStruct((8, 8), jnp.float32)).lower().jaxpr
    assert [e.primitive.name for e in program.eqns].count("distribute_tensor") == 2
    assert names_of(program).count("distribute_tensor") == 2
    assert [e.params.get("mapper_config") for e in program.eqns].count(COPY) == 1


def test_what_a_branch_needs_on_the_host_stays_there() -> None:
    """Also where its surroundings read it on the devices: it is brought for those, and distributed in the branch."""

    def inner(x: Any, w: Any) -> Any:
        turned = lax.cond(w[0, 0] > 0, lambda: there_and_back(x), lambda: x)
        return turned, x * jm.full_to_shard(w, P())

    def body(x: Any, w: Any) -> Any:
        turned, product = jax.jit(inner)(x, w)
        return turned, jm.shard_to_full(product, P())

    names = names_of(jm.jit(body, mesh=MESH).trace(X, X).lower().jaxpr)
    assert names.count("distribute_tensor") == 3
    assert names.count("aggregate_tensor") == 2
    assert not {"dynamic_slice", "axis_index"} & set(names)


def test_what_a_loop_reads_on_the_host_stays_there() -> None:
    """What decides, and where a carry starts that its body does not read; both are read on the devices elsewhere."""

    def deciding(x: Any, w: Any, k: Any) -> Any:
        return lax.while_loop(lambda c: c.sum() < w.sum(), lambda c: c + k, k)

    def starting(x: Any, w: Any, k: Any) -> Any:
        return lax.while_loop(lambda c: c.sum() < 9, lambda c: k + 1, w)

    for loops in (deciding, starting):

        def inner(x: Any, w: Any, k: Any, loops: Any = loops) -> Any:
            return loops(x, w, k), w * jm.full_to_shard(x, P())

        def body(x: Any, w: Any, k: Any, inner: Any = inner) -> Any:
            looped, product = jax.jit(inner)(x, w, k)
            return looped, jm.shard_to_full(product, P())

        program = jm.jit(body, mesh=MESH).trace(X, X, X).lower().jaxpr
        (loop,) = [e for e in program.eqns if e.primitive.name == "while"]
        assert walk.open_jaxpr(program).invars[1] in loop.invars
        assert names_of(program).count("aggregate_tensor") == 1


def test_a_solver_is_lowered_with_its_bodies() -> None:
    def solved(x: Any, give: Callable[[Any], Any] = lambda v: v) -> Any:
        def scaled(by: float) -> Callable[..., Any]:
            return lambda *v: give(jm.shard_to_full(by * jm.full_to_shard(v[-1], P("y")), P("y")))

        return lax.custom_linear_solve(scaled(2.0), x, scaled(0.5))

    names = names_of(lowered(solved))
    assert names[0] == "custom_linear_solve"
    assert names.count("distribute_tensor") == names.count("aggregate_tensor") == 2
    x = np.arange(32, dtype=np.float32).reshape(8, 4)
    np.testing.assert_array_equal(np.asarray(jm.jit(solved, mesh=jm.make_mesh((2, 4), ("y", "x")))(x)), x / 2)
    words = r"custom_linear_solve.*its body moves tensors between host and devices"
    with pytest.raises(MissingRuleError, match=words):
        lowered(lambda x: solved(x, lambda v: jm.full_to_shard(v, P())))


def test_a_device_value_is_split_where_it_is() -> None:
    """One local slice per mesh axis that cuts; what mesh axes do not cut apart goes through the host."""

    def whole(x: Any) -> Any:
        return lax.psum(jm.full_to_shard(x, P("y")), "y")

    def split(config: MeshMapperConfig) -> Any:
        return lower(traced(lambda x: distribute(whole(x), config)), [HOST], SIZES).program

    def cut(config: MeshMapperConfig) -> list[str]:
        names = names_of(split(config))
        return [n for n in names if n in ("dynamic_slice", "axis_index", "aggregate_tensor", "distribute_tensor")]

    columns = split(COLUMNS)
    assert cut(COLUMNS) == ["distribute_tensor", "axis_index", "dynamic_slice"]
    both = MeshMapperConfig([PlacementShard(0), PlacementShard(1)], (2, 4))
    assert cut(both) == ["distribute_tensor"] + ["axis_index", "dynamic_slice"] * 2
    assert cut(CROSSED) == ["distribute_tensor", "aggregate_tensor", "distribute_tensor"]
    assert cut(COPY) == ["distribute_tensor"]
    # Its own piece starts at the device's coordinate times 4 in the dim that is cut, and at 0 in the other.
    numbers = [a.val for e in columns.eqns for a in e.invars if isinstance(a, compat.Literal)]
    assert sorted(int(n) for n in numbers) == [0, 4]
    assert {e.outvars[0].aval.shape for e in columns.eqns if e.primitive.name == "dynamic_slice"} == {(8, 4)}
    x = np.arange(128, dtype=np.float32).reshape(16, 8)
    joined = MeshComposerConfig([1, 0], (2, 1))
    f = jm.jit(lambda x: aggregate(distribute(whole(x), COLUMNS), joined), mesh=jm.make_mesh((2, 4), ("y", "x")))
    np.testing.assert_array_equal(np.asarray(f(x)), x[:8] + x[8:])
