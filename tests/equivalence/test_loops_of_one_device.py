"""Loops and branches as libraries write them for one device: what all devices start with meets what differs.

JAX runs them on shards in a `shard_map` without types of varying axes, and refuses them in a typed one. A program that
splits by hand is typed, and types such a loop by what varies.
"""

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

Array = np.ndarray[Any, Any]
_lax: Any = lax
MESHES = [(1, 2), (2, 4), (8,)]


def recurrent(x: Any) -> Any:
    """A recurrent cell over the rows, whose state starts with zeros inside."""

    def step(state: Any, row: Any) -> tuple[Any, Any]:
        state = jnp.tanh(state * 0.5 + row)
        return state, state * 2

    _, rows = lax.scan(step, jnp.zeros(x.shape[1:], x.dtype), x)
    return rows


def nested(x: Any) -> Any:
    def outer(total: Any, row: Any) -> tuple[Any, Any]:
        inner, _ = lax.scan(lambda c, v: (c + v, None), jnp.float32(0), row)
        return total + inner, jnp.full(row.shape, total)

    return lax.scan(outer, jnp.float32(1), x)[1]


def counted(x: Any) -> Any:
    return lax.fori_loop(0, 3, lambda i, state: state * 2 + x * i, jnp.ones(x.shape, x.dtype))


def decided(x: Any) -> Any:
    """Every device runs as many iterations as its own values ask for."""
    start = (jnp.int32(0), jnp.zeros(x.shape, x.dtype))
    return lax.while_loop(lambda s: (s[1].sum() < 30) & (s[0] < 5), lambda s: (s[0] + 1, s[1] + jnp.abs(x)), start)[1]


def drawn(x: Any) -> Any:
    """The same, with random numbers in the body, of keys that are constants and that are not."""

    def step(state: Any) -> Any:
        count, total = state
        key = jax.random.fold_in(jax.random.key(3), count)
        noise = jax.random.uniform(key, x.shape) + jax.random.uniform(jax.random.key(1), x.shape)
        return count + 1, total + noise

    return lax.while_loop(lambda s: (s[1].sum() < 20) & (s[0] < 9), step, (jnp.int32(0), x))[1]


def branched(x: Any) -> Any:
    return lax.cond(x.sum() > 0, lambda v: v * 3, lambda v: jnp.ones(v.shape, v.dtype), x)


def switched(x: Any) -> Any:
    index = jnp.int32(jnp.abs(x).sum()) % 3
    branches = [lambda v: v, lambda v: jnp.zeros_like(v) + 1.5, lambda v: jax.random.normal(jax.random.key(0), v.shape)]
    return lax.switch(index, branches, x)


def called(x: Any) -> Any:
    return jax.jit(recurrent)(jax.checkpoint(recurrent)(x))


PROGRAMS = [recurrent, nested, counted, decided, drawn, branched, switched, called]


def given(mesh: Any) -> tuple[Array, P]:
    sizes = tuple(mesh.shape.values())
    rng = np.random.default_rng(sizes)
    shape = (3 * sizes[0], 2 * sizes[-1]) if len(sizes) > 1 else (3 * sizes[0], 2)
    return rng.normal(size=shape).astype(np.float32), P(*mesh.axis_names)


def per_shard(f: Callable[[Any], Any], x: Array, mesh: Any) -> Array:
    """What a loop over the mesh's coordinates gives, by the function on one shard."""
    sizes = tuple(mesh.shape.values())
    rows = np.split(x, sizes[0])
    columns = [np.split(row, sizes[1], axis=1) if len(sizes) > 1 else [row] for row in rows]
    return np.concatenate([np.concatenate([np.asarray(f(s)) for s in row], axis=1) for row in columns])


def on_shards(f: Callable[..., Any], mesh: Any, in_specs: Any, out_specs: Any) -> Any:
    return jm.shard_map(f, mesh=mesh, in_specs=in_specs, out_specs=out_specs, check_vma=False)


@pytest.mark.parametrize("sizes", MESHES, ids=str)
@pytest.mark.parametrize("f", PROGRAMS, ids=lambda f: f.__name__)
def test_a_function_of_one_device_runs_on_shards(f: Callable[[Any], Any], sizes: tuple[int, ...]) -> None:
    mesh = jm.make_mesh(sizes)
    x, spec = given(mesh)
    program = jm.jit(on_shards(f, mesh, spec, spec))
    np.testing.assert_allclose(program(x), per_shard(jax.jit(f), x, mesh), rtol=2e-6, atol=2e-6)


@pytest.mark.parametrize("f", [recurrent, nested, counted, called], ids=lambda f: f.__name__)
def test_it_has_a_text_and_a_derivative_from_outside(f: Callable[[Any], Any]) -> None:
    mesh = jm.make_mesh((2, 4))
    x, spec = given(mesh)
    program = jm.jit(on_shards(f, mesh, spec, spec))
    assert '"ttnn.distribute_tensor"' in program.trace(x).lower().as_text()
    found = jax.grad(lambda v: (program(v) ** 2).sum())(x)
    expected = per_shard(jax.grad(lambda v: (f(v) ** 2).sum()), x, mesh)
    np.testing.assert_allclose(found, expected, rtol=2e-5, atol=2e-5)


def split_by_hand(f: Callable[[Any], Any], spec: P) -> Callable[[Any], Any]:
    return lambda v: jm.shard_to_full(f(jm.full_to_shard(v, spec)), spec)


@pytest.mark.parametrize("sizes", MESHES, ids=str)
@pytest.mark.parametrize("f", PROGRAMS, ids=lambda f: f.__name__)
def test_a_function_of_one_device_runs_between_shards_by_hand(f: Callable[[Any], Any], sizes: tuple[int, ...]) -> None:
    mesh = jm.make_mesh(sizes)
    x, spec = given(mesh)
    calls: list[None] = []

    def counting(v: Any) -> Any:
        calls.append(None)
        return f(v)

    program = jm.jit(split_by_hand(counting, spec), mesh=mesh)
    np.testing.assert_allclose(program(x), per_shard(jax.jit(f), x, mesh), rtol=2e-6, atol=2e-6)
    assert len(calls) == 1
    assert '"ttnn.distribute_tensor"' in program.trace(x).lower().as_text() or f in (decided, drawn)


@pytest.mark.parametrize("f", [recurrent, nested, counted, called, branched], ids=lambda f: f.__name__)
def test_a_derivative_by_hand(f: Callable[[Any], Any]) -> None:
    mesh = jm.make_mesh((2, 4))
    x, spec = given(mesh)
    expected = per_shard(jax.grad(lambda v: (f(v) ** 2).sum()), x, mesh)
    outside = jax.grad(lambda v: (jm.jit(split_by_hand(f, spec), mesh=mesh)(v) ** 2).sum())(x)
    inside = jm.jit(split_by_hand(jax.grad(lambda v: (f(v) ** 2).sum()), spec), mesh=mesh)(x)
    np.testing.assert_allclose(outside, expected, rtol=2e-5, atol=2e-5)
    np.testing.assert_allclose(inside, expected, rtol=2e-5, atol=2e-5)


def chained(start: Any, x: Any) -> Any:
    """A carry of which one part varies after one iteration, the next after two, the last never."""

    def step(carry: Any, row: Any) -> tuple[Any, Any]:
        a, b, c, count = carry
        return (jnp.tanh(a + row), b + a, c * 0.5 + b, count + 1), None

    (_, _, c, count), _ = lax.scan(step, (start, start * 2, start, 0), x)
    return c, count


def test_a_learned_start_has_the_sum_of_its_cotangents() -> None:
    mesh = jm.make_mesh((2, 4))
    x, start = np.random.default_rng(0).normal(size=(3, 8)).astype(np.float32), np.float32([0.3, -0.2])
    spec = P(None, "x")

    def whole(start: Any, x: Any) -> Any:
        c, count = chained(jnp.tile(start, 4), x)
        return (c**2).sum(), count

    def by_hand(start: Any, x: Any) -> Any:
        c, count = chained(start, jm.full_to_shard(x, spec))
        # The count varies over no axis, so it is a result as it is.
        return jm.shard_to_full(lax.psum((c**2).sum(), "x"), P()), count

    found, count = jm.jit(by_hand, mesh=mesh)(start, x)
    expected, steps = whole(start, x)
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    assert count == steps == 3
    want = jax.grad(whole, has_aux=True)(start, x)[0]
    np.testing.assert_allclose(jax.grad(jm.jit(by_hand, mesh=mesh), has_aux=True)(start, x)[0], want, rtol=1e-5)

    def descend(start: Any, x: Any) -> Any:
        part = jm.full_to_shard(x, spec)
        slope = jax.grad(lambda s: lax.psum((chained(s, part)[0] ** 2).sum(), "x"))(start)
        return jm.shard_to_full(start - slope, P())

    np.testing.assert_allclose(jm.jit(descend, mesh=mesh)(start, x), start - want, rtol=1e-5)


def test_a_body_is_traced_once_as_jax_traces_it() -> None:
    mesh = jm.make_mesh((2, 4))
    x, spec = given(mesh)
    traces: list[str] = []

    def body(state: Any) -> Any:
        count, total = state
        # A number of Python is weakly typed, and stays so although its sum varies.
        traces.append(str(jax.typeof(count).weak_type))
        return count + jnp.where(total.sum() > 0, 1, 0), total + x_part[0]

    x_part: list[Any] = []

    def f(v: Any) -> Any:
        x_part[:] = [v]
        return lax.while_loop(lambda s: s[1].sum() < 5, body, (0, jnp.zeros(v.shape)))[1]

    jax.jit(f).trace(np.ones((3, 2), np.float32))
    theirs = list(traces)
    jm.jit(split_by_hand(f, spec), mesh=mesh).trace(x)
    assert traces[len(theirs) :] == theirs


def test_devices_that_decide_for_themselves_have_results_that_vary() -> None:
    mesh = jm.make_mesh((2, 4))
    x, spec = given(mesh)

    def trips(part: Any) -> Any:
        return lax.while_loop(lambda n: n * jnp.abs(part).sum() < 20, lambda n: n + 1, jnp.float32(0))

    def choice(part: Any) -> Any:
        return lax.cond(part.sum() > 0, lambda: jnp.float32(1), lambda: jnp.float32(2))

    for f in (trips, choice):
        with pytest.raises(jm.ReplicationError, match="'y'"):
            jm.jit(lambda v, f=f: jm.shard_to_full(f(jm.full_to_shard(v, spec)), P()), mesh=mesh).trace(x)
        joined = jm.jit(lambda v, f=f: jm.shard_to_full(f(jm.full_to_shard(v, spec))[None, None], spec), mesh=mesh)(x)
        expected = per_shard(lambda v, f=f: np.asarray(jax.jit(f)(v))[None, None], x, mesh)
        np.testing.assert_array_equal(joined, expected)
        assert len(np.unique(expected)) > 1


@jax.custom_vjp
def scaled(x: Any, w: Any) -> Any:
    return x * w


scaled.defvjp(lambda x, w: (x * w, (x, w)), lambda kept, ct: (jnp.zeros(kept[0].shape), (ct * kept[0]).sum()))


@jax.custom_jvp
def rounded(x: Any, w: Any) -> Any:
    return jnp.round(x * w)


rounded.defjvp(lambda primals, tangents: (rounded(*primals), jnp.zeros(primals[0].shape) + tangents[1]))


def test_custom_rules_of_one_device() -> None:
    mesh = jm.make_mesh((2, 4))
    x, spec = given(mesh)

    def loss(x: Any, w: Any) -> Any:
        return (scaled(x, w) * rounded(x, w)).sum()

    def by_hand(x: Any, w: Any) -> Any:
        return jm.shard_to_full(lax.psum(loss(jm.full_to_shard(x, spec), w), ("y", "x")), P())

    def inside(x: Any, w: Any) -> Any:
        part = jm.full_to_shard(x, spec)
        return jm.shard_to_full(jax.grad(lambda w: lax.psum(loss(part, w), ("y", "x")))(w), P())

    want = jax.grad(loss, 1)(x, np.float32(3))
    np.testing.assert_allclose(jax.grad(jm.jit(by_hand, mesh=mesh), 1)(x, np.float32(3)), want, rtol=1e-5)
    np.testing.assert_allclose(jm.jit(inside, mesh=mesh)(x, np.float32(3)), want, rtol=1e-5)


@pytest.mark.parametrize("f", [recurrent, nested, counted, branched], ids=lambda f: f.__name__)
def test_a_typed_shard_map_has_the_error_of_jax(f: Callable[[Any], Any]) -> None:
    mesh = jm.make_mesh((2, 4))
    x, spec = given(mesh)
    with pytest.raises(TypeError, match="pcast") as theirs:
        jax.jit(jax.shard_map(f, mesh=mesh, in_specs=spec, out_specs=spec))(x)
    for mapped in (jax.shard_map, jm.shard_map):
        with pytest.raises(TypeError) as ours:
            jm.jit(mapped(f, mesh=mesh, in_specs=spec, out_specs=spec))(x)
        assert str(ours.value) == str(theirs.value)

    def within(v: Any) -> Any:
        # The loops of a program that splits by hand are typed by what varies; those of a shard_map in it are not.
        part = recurrent(jm.full_to_shard(v, spec))
        return jm.shard_map(f, mesh=mesh, in_specs=spec, out_specs=spec)(v), jm.shard_to_full(part, spec)

    with pytest.raises(TypeError, match="pcast"):
        jm.jit(within, mesh=mesh)(x)


def typed(x: Any, like: Any) -> Any:
    """A value that varies over the axes of another, as JAX asks for."""
    missing = tuple(jax.typeof(like).manual_axis_type.varying - jax.typeof(x).manual_axis_type.varying)
    return _lax.pcast(x, missing, to="varying") if missing else x


def accumulated(x: Any) -> Any:
    """A loop that starts with a value of the type of its results."""
    return lax.scan(lambda c, row: (jnp.tanh(c * 0.5 + row), c), typed(jnp.zeros(x.shape[1:], x.dtype), x), x)[1]


def test_the_values_are_typed_as_varying() -> None:
    mesh = jm.make_mesh((2, 4))
    x, spec = given(mesh)
    np.testing.assert_allclose(
        jm.jit(split_by_hand(accumulated, spec), mesh=mesh)(x), per_shard(jax.jit(accumulated), x, mesh), rtol=2e-6
    )
    with pytest.raises(jm.ReplicationError, match="'x'"):
        jm.jit(lambda v: jm.shard_to_full(accumulated(jm.full_to_shard(v, spec)), P("y")), mesh=mesh).trace(x)


def test_a_sum_over_the_mesh_inside_stays_one() -> None:
    mesh = jm.make_mesh((2, 4))
    x, spec = given(mesh)

    def f(shard: Any) -> Any:
        total, _ = lax.scan(lambda c, row: (c + lax.psum(row.sum(), ("y", "x")), None), jnp.float32(0), shard)
        start, _ = lax.scan(lambda c, row: (c + row, None), jnp.zeros(shard.shape[1:]), shard)
        return total, start[None]

    total, start = jm.jit(on_shards(f, mesh, spec, (P(), spec)))(x)
    np.testing.assert_allclose(total, x.sum(), rtol=1e-5)
    np.testing.assert_allclose(start, x.reshape(2, 3, 8).sum(1), rtol=1e-5)


# --- derivatives inside of a program ---------------------------------------------------------------------------------


@pytest.mark.parametrize("sizes", MESHES, ids=str)
@pytest.mark.parametrize("f", [recurrent, nested, counted, called, branched], ids=lambda f: f.__name__)
def test_a_derivative_inside(f: Callable[[Any], Any], sizes: tuple[int, ...]) -> None:
    mesh = jm.make_mesh(sizes)
    x, spec = given(mesh)

    def loss(v: Any) -> Any:
        return (on_shards(f, mesh, spec, spec)(v) ** 2).sum()

    expected = per_shard(jax.jit(jax.grad(lambda v: (f(v) ** 2).sum())), x, mesh)
    np.testing.assert_allclose(jm.jit(jax.grad(loss))(x), expected, rtol=2e-5, atol=2e-5)


def rnn(x: Any, w: Any, u: Any, b: Any, gather: Callable[[Any], Any] = lambda h: h) -> Any:
    """A cell over `[time, batch, features]` whose state starts with zeros; `gather` joins the parts of the state."""

    def step(h: Any, row: Any) -> tuple[Any, Any]:
        h = jnp.tanh(row @ w + gather(h) @ u + b)
        return h, h

    return lax.scan(step, jnp.zeros((x.shape[1], w.shape[1]), x.dtype), x)[1]


def whole_state(*shards: Any) -> Any:
    return rnn(*shards)


def mean_on_the_devices(*shards: Any) -> Any:
    return lax.pmean((rnn(*shards) ** 2).mean(), "y")


def columns(*shards: Any) -> Any:
    return rnn(*shards, gather=lambda h: lax.all_gather(h, "x", axis=1, tiled=True))


def rows(x: Any, w: Any, u: Any, b: Any) -> Any:
    """Partial products are summed in each iteration."""

    def step(h: Any, row: Any) -> tuple[Any, Any]:
        h = jnp.tanh(lax.psum(row @ w, "x") + h @ u + b)
        return h, h

    return lax.scan(step, jnp.zeros((x.shape[1], u.shape[0]), x.dtype), x)[1]


ROWS = P(None, "y")
SPLITS = [
    (mean_on_the_devices, (ROWS, P(), P(), P()), P()),
    (whole_state, (ROWS, P(), P(), P()), ROWS),
    (columns, (ROWS, P(None, "x"), P(None, "x"), P("x")), P(None, "y", "x")),
    (rows, (P(None, "y", "x"), P("x"), P(), P()), ROWS),
]


@pytest.mark.parametrize(("f", "ins", "out"), SPLITS, ids=lambda f: getattr(f, "__name__", ""))
def test_a_derivative_inside_sums_the_parts_of_copies(f: Callable[..., Any], ins: tuple[P, ...], out: P) -> None:
    mesh, rng = jm.make_mesh((2, 4)), np.random.default_rng(0)
    args = [rng.normal(size=s).astype(np.float32) for s in ((5, 4, 8), (8, 8), (8, 8), (8,))]
    value, grads = jax.value_and_grad(lambda *a: (rnn(*a) ** 2).mean(), (0, 1, 2, 3))(*args)

    def loss(*args: Any) -> Any:
        result = on_shards(f, mesh, ins, out)(*args)
        return result if out == P() else (result**2).mean()

    step = jm.jit(jax.value_and_grad(jax.checkpoint(loss), (0, 1, 2, 3)))
    got, found = step(*args)
    np.testing.assert_allclose(got, value, rtol=1e-5)
    for a, b in zip(found, grads, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)
    assert step.trace(*args).lower().as_text("cpp")


def test_copies_that_are_equal_are_not_moved_for_a_derivative() -> None:
    """All values are the same over `x`: no sum goes over it."""
    mesh = jm.make_mesh((2, 4))
    args = [np.ones(s, np.float32) for s in ((5, 4, 8), (8, 8))]

    def loss(x: Any, w: Any) -> Any:
        shard, weight = jm.full_to_shard(x, ROWS), jm.full_to_shard(w, P())
        return (jm.shard_to_full(accumulated(shard @ weight), ROWS) ** 2).mean()

    text = jm.jit(jax.grad(loss, 1), mesh=mesh).trace(*args).as_text()
    moved = [line for line in text.splitlines() if "all_reduce" in line]
    assert len(moved) == 1
    assert "cluster_axis = 0" in moved[0]


def test_a_derivative_through_what_is_equal_by_type() -> None:
    mesh = jm.make_mesh((2, 4))
    x, spec = given(mesh)

    def loss(v: Any) -> Any:
        shard = jm.full_to_shard(v, spec)
        whole = lax.all_gather(shard, "x", axis=1, tiled=True, to="invarying")
        return (jm.shard_to_full(accumulated(whole), P("y")) ** 2).sum()

    expected = jax.grad(lambda v: sum((accumulated(part) ** 2).sum() for part in jnp.split(v, 2)))(x)
    np.testing.assert_allclose(jm.jit(jax.grad(loss), mesh=mesh)(x), expected, rtol=1e-4, atol=1e-6)
