"""What a program compiles to: the collectives and copies of the hand-written one, and full-shape work outside."""

from __future__ import annotations

import functools
import re
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P

import jaxmesh as jm
from tests.generators.oracles import same_bits
from tests.generators.programs.hand_written import ATTENTION, FSDP, LLAMA, MESH, MLP, PROGRAMS, SEQUENCE, Program

pytestmark = [pytest.mark.slow(but_one_in=32), pytest.mark.usefixtures("as_for_users")]

COLLECTIVES = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute")
each_program = pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.name)


@pytest.fixture(scope="module")
def mesh() -> Mesh:
    return jm.make_mesh(MESH)


def ops(hlo: str, names: tuple[str, ...]) -> Counter[str]:
    """How often each op stands in an HLO text, an asynchronous pair once."""
    found = re.findall(rf"(?<= )({'|'.join(names)})(?:-start)?\(", hlo)
    return Counter(found)


def assert_same_hlo(ours: str, theirs: str) -> None:
    assert ops(ours, COLLECTIVES) == ops(theirs, COLLECTIVES)
    assert ops(ours, ("copy",))["copy"] <= ops(theirs, ("copy",))["copy"]


def close(a: Any, b: Any) -> None:
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        np.testing.assert_allclose(x, y, rtol=2e-5, atol=2e-6)


def all_same_bits(a: Any, b: Any) -> bool:
    return all(same_bits(x, y) for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True))


# --- against the hand-written program --------------------------------------------------------------------------------


def test_the_counter_counts() -> None:
    text = "%a = f32[2] all-reduce(%b), %c = f32[2] all-gather-start(%a) all-gather-done(%c) %copy.1 = f32[2] copy(%a)"
    assert ops(text, COLLECTIVES) == {"all-reduce": 1, "all-gather": 1}
    assert ops(text, ("copy",)) == {"copy": 1}


def test_the_programs_have_the_collectives_they_are_written_for(mesh: Mesh) -> None:
    def counted(p: Program) -> Counter[str]:
        return ops(jax.jit(p.mapped(mesh)).lower(*p.args()).compile().as_text(), COLLECTIVES)

    assert set(counted(MLP)) == {"all-reduce"}
    assert set(counted(ATTENTION)) == {"all-reduce"}
    assert set(counted(FSDP)) == {"all-gather"}
    assert set(counted(SEQUENCE)) == {"all-gather", "reduce-scatter"}


@pytest.mark.parametrize("program", [*PROGRAMS, LLAMA], ids=lambda p: p.name)
def test_forward(program: Program, mesh: Mesh) -> None:
    args = program.args()
    ours = jm.jit(program.jaxmesh, mesh=mesh).lower(*args).compile()
    theirs = jax.jit(program.mapped(mesh)).lower(*args).compile()
    assert_same_hlo(ours.as_text(), theirs.as_text())
    assert same_bits(ours(*args), theirs(*args))
    close(ours(*args), program.plain(*args))


@pytest.mark.parametrize("shape", [(1, 8), (8, 1), (1, 1)], ids=str)
def test_axes_of_one_device_cost_nothing(shape: tuple[int, int]) -> None:
    """A shard varies over them, and nothing says that it does not; but there is one copy to read."""
    mesh, args = jm.make_mesh(shape), MLP.args(2)
    local = local_loss(MLP)

    def loss(*full: Any) -> Any:
        shards = [jm.full_to_shard(x, s) for x, s in zip(full, MLP.in_specs, strict=True)]
        return jm.shard_to_full(local(*shards), P())

    by_hand = jax.shard_map(local, mesh=mesh, in_specs=MLP.in_specs, out_specs=P())
    for ours, peer in ((MLP.jaxmesh, MLP.mapped(mesh)), (loss, by_hand)):
        mine, theirs = jm.jit(ours, mesh=mesh).lower(*args).compile(), jax.jit(peer).lower(*args).compile()
        assert_same_hlo(mine.as_text(), theirs.as_text())
        close(mine(*args), theirs(*args))


@each_program
def test_forward_of_arguments_that_are_sharded_already(program: Program, mesh: Mesh) -> None:
    args = [jax.device_put(a, NamedSharding(mesh, s)) for a, s in zip(program.args(), program.in_specs, strict=True)]
    ours = jax.jit(jm.jit(program.jaxmesh, mesh=mesh)).lower(*args).compile()
    theirs = jax.jit(program.mapped(mesh)).lower(*args).compile()
    assert_same_hlo(ours.as_text(), theirs.as_text())
    assert same_bits(ours(*args), theirs(*args))
    assert ours(*args).sharding.is_equivalent_to(theirs(*args).sharding, ours(*args).ndim)


def loss_of(f: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *args: jnp.sum(jnp.sin(f(*args)) ** 2)


def every_argument(program: Program) -> tuple[int, ...]:
    return tuple(range(len(program.in_specs)))


@functools.cache
def plain_gradients(program: Program) -> Any:
    return jax.jit(jax.grad(loss_of(program.plain), every_argument(program)))(*program.args())


@pytest.mark.parametrize("program", [*PROGRAMS, LLAMA], ids=lambda p: p.name)
def test_gradient_from_outside(program: Program, mesh: Mesh) -> None:
    args, nums = program.args(), every_argument(program)
    ours = jax.jit(jax.grad(loss_of(jm.jit(program.jaxmesh, mesh=mesh)), nums)).lower(*args).compile()
    theirs = jax.jit(jax.grad(loss_of(program.mapped(mesh)), nums)).lower(*args).compile()
    assert sum(ops(theirs.as_text(), COLLECTIVES).values()) > 1
    assert_same_hlo(ours.as_text(), theirs.as_text())
    assert all_same_bits(ours(*args), theirs(*args))
    close(ours(*args), plain_gradients(program))


@each_program
def test_gradient_inside(program: Program, mesh: Mesh) -> None:
    args, nums = program.args(), every_argument(program)
    ours = jm.jit(jax.grad(loss_of(program.jaxmesh), nums), mesh=mesh).lower(*args).compile()
    theirs = jax.jit(jax.grad(loss_of(program.mapped(mesh)), nums)).lower(*args).compile()
    assert_same_hlo(ours.as_text(), theirs.as_text())
    close(ours(*args), theirs(*args))
    close(ours(*args), plain_gradients(program))


def local_loss(program: Program) -> Callable[..., Any]:
    """The loss is computed on the devices too; only a number leaves."""
    axes = [a for entry in program.out_spec if entry for a in (entry if isinstance(entry, tuple) else (entry,))]

    def run(*shards: Any) -> Any:
        return jax.lax.psum(jnp.sum(jnp.sin(program.local(*shards)) ** 2), tuple(axes))

    return run


@pytest.mark.parametrize(
    ("program", "where"),
    [(p, "inside") for p in PROGRAMS] + [(MLP, "outside"), (FSDP, "outside")],
    ids=lambda v: getattr(v, "name", v),
)
def test_gradient_of_a_loss_on_the_devices(program: Program, where: str, mesh: Mesh) -> None:
    args, nums = program.args(), every_argument(program)
    local = local_loss(program)

    def loss(*full: Any) -> Any:
        shards = [jm.full_to_shard(x, s) for x, s in zip(full, program.in_specs, strict=True)]
        return jm.shard_to_full(local(*shards), P())

    by_hand = jax.shard_map(local, mesh=mesh, in_specs=program.in_specs, out_specs=P())
    theirs = jax.jit(jax.grad(by_hand, nums)).lower(*args).compile()
    if where == "inside":
        ours: Any = jm.jit(jax.grad(loss, nums), mesh=mesh).lower(*args).compile()
    else:
        ours = jax.jit(jax.grad(jm.jit(loss, mesh=mesh), nums)).lower(*args).compile()
    assert_same_hlo(ours.as_text(), theirs.as_text())
    close(ours(*args), theirs(*args))
    close(ours(*args), plain_gradients(program))


def test_a_training_step_that_scatters_its_gradients(mesh: Mesh) -> None:
    """FSDP written out: gather, differentiate locally, psum_scatter the gradients, update the shards."""

    def local_step(x: Any, w: Any) -> Any:
        full = jax.lax.all_gather(w, "x", axis=0, tiled=True)
        grad = jax.grad(lambda v: jnp.sum(jnp.sin(x @ v)))(full)
        # JAX has summed over y already: the gathered weights are equal there.
        return w - 0.1 * jax.lax.psum_scatter(grad, "x", scatter_dimension=0, tiled=True)

    specs = (P(("y", "x")), P("x"))

    def step(x: Any, w: Any) -> Any:
        shards = [jm.full_to_shard(a, s) for a, s in zip((x, w), specs, strict=True)]
        return jm.shard_to_full(local_step(*shards), P("x"))

    x, w, _ = FSDP.args()
    ours = jm.jit(step, mesh=mesh).lower(x, w).compile()
    theirs = jax.jit(jax.shard_map(local_step, mesh=mesh, in_specs=specs, out_specs=P("x"))).lower(x, w).compile()
    assert ops(theirs.as_text(), COLLECTIVES)["reduce-scatter"] == 1
    assert_same_hlo(ours.as_text(), theirs.as_text())
    assert same_bits(ours(x, w), theirs(x, w))
    close(ours(x, w), w - 0.1 * jax.grad(lambda v: jnp.sum(jnp.sin(x @ v)))(w))


@pytest.mark.parametrize(
    "spec",
    [P("y", "x"), P("x", "y"), P(("y", "x")), P(None, ("y", "x")), P("x"), P(None, "y"), P(), P(None, ("x", "y"))],
    ids=str,
)
def test_splitting_and_joining_at_the_boundary_costs_nothing(spec: P, mesh: Mesh) -> None:
    def f(x: Any) -> Any:
        return jm.shard_to_full(jnp.tanh(jm.full_to_shard(x, spec)), spec)

    x = jnp.arange(128, dtype=jnp.float32).reshape(16, 8) / 64
    ours = jm.jit(f, mesh=mesh).lower(x).compile()
    theirs = jax.jit(jax.shard_map(jnp.tanh, mesh=mesh, in_specs=spec, out_specs=spec)).lower(x).compile()
    assert not ops(ours.as_text(), COLLECTIVES)
    assert_same_hlo(ours.as_text(), theirs.as_text())
    assert same_bits(ours(x), theirs(x))


# --- full-shape work stands outside ----------------------------------------------------------------------------------


def inner_jaxprs(value: Any) -> Iterator[Any]:
    if isinstance(value, (tuple, list)):
        for item in value:
            yield from inner_jaxprs(item)
    elif hasattr(value, "eqns"):
        yield value
    elif hasattr(value, "jaxpr"):
        yield from inner_jaxprs(value.jaxpr)


def placed(jaxpr: Any, mapped: int | None = None, found: list[Any] | None = None) -> list[tuple[Any, int | None]]:
    """Every equation at every depth, with the number of the shard_map that it stands in, or None."""
    found = [] if found is None else found
    for eqn in jaxpr.eqns:
        found.append((eqn, mapped))
        inside = mapped
        if eqn.primitive.name == "shard_map":
            inside = sum(e.primitive.name == "shard_map" for e, _ in found) - 1
        for value in eqn.params.values():
            for inner in inner_jaxprs(value):
                placed(inner, inside, found)
    return found


def where(f: Callable[..., Any], *args: Any) -> dict[str, set[int | None]]:
    """For each primitive the regions it stands in."""
    table: dict[str, set[int | None]] = {}
    for eqn, mapped in placed(jax.make_jaxpr(f)(*args)):
        table.setdefault(eqn.primitive.name, set()).add(mapped)
    return table


TRANSFERS = {"distribute_tensor", "aggregate_tensor", "mesh_shard"}
LOCAL_TRANSFERS = {"dynamic_slice", "all_gather", "all_gather_invariant"}
X = jnp.arange(32, dtype=jnp.float32).reshape(4, 8) / 16


def test_full_shape_work_before_and_after_and_between(mesh: Mesh) -> None:
    spec = P("y", "x")

    def f(x: Any) -> Any:
        a = jm.shard_to_full(jnp.exp(jm.full_to_shard(jnp.sin(x), spec)), spec)
        b = jm.shard_to_full(jnp.tanh(jm.full_to_shard(jnp.cos(a), spec)), spec)
        return jnp.sinh(b)

    found = where(jm.jit(f, mesh=mesh), X)
    assert found["sin"] == found["cos"] == found["sinh"] == {None}
    assert found["exp"] == {0}
    assert found["tanh"] == {1}
    assert found["shard_map"] == {None}
    assert not TRANSFERS & set(found)
    assert not LOCAL_TRANSFERS & set(found)
    close(jm.jit(f, mesh=mesh)(X), jnp.sinh(jnp.tanh(jnp.cos(jnp.exp(jnp.sin(X))))))


def test_independent_work_shares_a_region(mesh: Mesh) -> None:
    def f(x: Any) -> Any:
        a = jm.shard_to_full(jnp.exp(jm.full_to_shard(x, P("y"))), P("y"))
        b = jm.shard_to_full(jnp.tanh(jm.full_to_shard(x, P(None, "x"))), P(None, "x"))
        return a, b

    found = where(jm.jit(f, mesh=mesh), X)
    assert found["exp"] == found["tanh"] == {0}
    close(jm.jit(f, mesh=mesh)(X), (jnp.exp(X), jnp.tanh(X)))


def test_each_round_of_distribute_work_aggregate_is_a_region(mesh: Mesh) -> None:
    def f(x: Any) -> Any:
        for spec in (P("y", "x"), P(("y", "x")), P("y"), P(None, "x"), P(None, ("x", "y"))):
            x = jm.shard_to_full(jnp.tanh(jm.full_to_shard(jnp.sin(x).T.reshape(8, 8), spec)), spec)
        return x

    def plain(x: Any) -> Any:
        for _ in range(5):
            x = jnp.tanh(jnp.sin(x).T.reshape(8, 8))
        return x

    x = jnp.arange(64, dtype=jnp.float32).reshape(8, 8) / 16
    found = where(jm.jit(f, mesh=mesh), x)
    assert found["tanh"] == {0, 1, 2, 3, 4}
    assert found["sin"] == found["transpose"] == {None}
    assert not TRANSFERS & set(found)
    close(jm.jit(f, mesh=mesh)(x), plain(x))


def test_a_value_that_stays_on_the_devices_between_two_regions(mesh: Mesh) -> None:
    """The shard `s` is made in the first region and read in the second, past full-shape work."""

    def f(x: Any) -> Any:
        s = jnp.exp(jm.full_to_shard(x, P("y", "x")))
        host = jnp.cos(jm.shard_to_full(s, P("y", "x")))
        return jm.shard_to_full(jnp.tanh(s) * jm.full_to_shard(host, P("y", "x")), P("y", "x"))

    compiled = jm.jit(f, mesh=mesh).lower(X).compile()
    assert not ops(compiled.as_text(), COLLECTIVES)
    found = where(jm.jit(f, mesh=mesh), X)
    assert found["cos"] == {None}
    assert len(found["exp"]) == len(found["tanh"]) == 1
    close(compiled(X), jnp.tanh(jnp.exp(X)) * jnp.cos(jnp.exp(X)))


def test_full_shape_work_has_its_full_shape(mesh: Mesh) -> None:
    def f(x: Any) -> Any:
        s = jm.full_to_shard(jnp.sin(x), P("y", "x"))
        return jnp.cos(jm.shard_to_full(jnp.exp(s), P("y", "x")))

    shapes = {
        e.primitive.name: e.outvars[0].aval.shape
        for e, _ in placed(jax.make_jaxpr(jm.jit(f, mesh=mesh))(X))
        if e.outvars
    }
    assert shapes["sin"] == shapes["cos"] == (4, 8)
    assert shapes["exp"] == (2, 2)


def test_transfers_inside_nested_jits_are_hoisted(mesh: Mesh) -> None:
    @jax.jit
    def split(x: Any) -> Any:
        return jm.full_to_shard(jnp.sin(x), P("y", "x"))

    @jax.jit
    def join(s: Any) -> Any:
        return jnp.cos(jm.shard_to_full(jax.jit(jnp.exp)(s), P("y", "x")))

    def f(x: Any) -> Any:
        return jax.jit(lambda v: join(split(v)))(x)

    found = where(jm.jit(f, mesh=mesh), X)
    assert found["sin"] == found["cos"] == {None}
    assert found["exp"] == {0}
    assert not (TRANSFERS | LOCAL_TRANSFERS) & set(found)
    compiled = jm.jit(f, mesh=mesh).lower(X).compile()
    assert not ops(compiled.as_text(), COLLECTIVES)
    close(compiled(X), jnp.cos(jnp.exp(jnp.sin(X))))


@each_program
def test_boundary_transfers_are_no_part_of_the_mapped_body(program: Program, mesh: Mesh) -> None:
    args, nums = program.args(), every_argument(program)
    by_hand = where(program.mapped(mesh), *args)
    ours = where(jm.jit(program.jaxmesh, mesh=mesh), *args)
    assert not TRANSFERS & set(ours)
    assert LOCAL_TRANSFERS & set(ours) == LOCAL_TRANSFERS & set(by_hand)
    inside = where(jm.jit(jax.grad(loss_of(program.jaxmesh), nums), mesh=mesh), *args)
    by_hand = where(jax.grad(loss_of(program.mapped(mesh)), nums), *args)
    assert not TRANSFERS & set(inside)
    assert LOCAL_TRANSFERS & set(inside) == LOCAL_TRANSFERS & set(by_hand)


def test_a_loop_of_full_values_has_the_region_inside(mesh: Mesh) -> None:
    """What splits and joins in each turn cannot be hoisted out of the loop, but it is no part of the mapped body."""

    def f(x: Any) -> Any:
        def step(c: Any, _: None) -> tuple[Any, None]:
            return jm.shard_to_full(jnp.tanh(jm.full_to_shard(c, P("y", "x"))), P("y", "x")), None

        return jnp.cos(jax.lax.scan(step, jnp.sin(x), None, length=3)[0])

    found = where(jm.jit(f, mesh=mesh), X)
    assert found["sin"] == found["cos"] == found["scan"] == {None}
    assert found["tanh"] == {0}
    assert not TRANSFERS & set(found)
    close(jm.jit(f, mesh=mesh)(X), jnp.cos(jnp.tanh(jnp.tanh(jnp.tanh(jnp.sin(X))))))


# --- host callbacks --------------------------------------------------------------------------------------------------


def host_call(calls: list[tuple[int, ...]], x: Any) -> Any:
    def run(v: Any) -> Any:
        calls.append(v.shape)
        return np.sin(np.asarray(v))

    return jax.pure_callback(run, jax.ShapeDtypeStruct(x.shape, x.dtype), x)


@pytest.mark.parametrize("place", ["before", "after", "between"])
@pytest.mark.parametrize("call", ["jit", "compiled", "grad"])
def test_a_callback_in_full_shape_work_runs_once(place: str, call: str, mesh: Mesh) -> None:
    calls: list[tuple[int, ...]] = []
    spec = P("y", "x")

    def work(x: Any) -> Any:
        return jm.shard_to_full(jnp.tanh(jm.full_to_shard(x, spec)), spec)

    def f(x: Any) -> Any:
        if place == "before":
            return work(host_call(calls, jax.lax.stop_gradient(x)) + x)
        if place == "after":
            y = work(x)
            return host_call(calls, jax.lax.stop_gradient(y)) + y
        y = work(x)
        return work(host_call(calls, jax.lax.stop_gradient(y)) + y)

    def plain(x: Any) -> Any:
        if place == "before":
            return jnp.tanh(jnp.sin(jax.lax.stop_gradient(x)) + x)
        y = jnp.tanh(x)
        z = jnp.sin(jax.lax.stop_gradient(y)) + y
        return z if place == "after" else jnp.tanh(z)

    if call == "jit":
        out, want = jm.jit(f, mesh=mesh)(X), plain(X)
    elif call == "compiled":
        out, want = jm.jit(f, mesh=mesh).lower(X).compile()(X), plain(X)
    else:
        out = jax.jit(jax.grad(lambda x: jm.jit(f, mesh=mesh)(x).sum()))(X)
        want = jax.grad(lambda x: plain(x).sum())(X)
    jax.block_until_ready(out)
    assert calls == [(4, 8)] if call != "grad" or place != "after" else len(calls) <= 1
    close(out, want)


def test_a_callback_on_shards_runs_per_device(mesh: Mesh) -> None:
    """The counterpart: the callback sees eight shards."""
    calls: list[tuple[int, ...]] = []

    def f(x: Any) -> Any:
        return jm.shard_to_full(host_call(calls, jm.full_to_shard(x, P("y", "x"))), P("y", "x"))

    close(jm.jit(f, mesh=mesh)(X), jnp.sin(X))
    assert calls == [(2, 2)] * 8
