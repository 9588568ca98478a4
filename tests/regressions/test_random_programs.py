"""Faults that random programs found, each with its smallest program."""

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
from jaxmesh.jaxprs import compat
from tests.generators.programs.execution_paths import FORMS, Stages, flat

MESH = jm.make_mesh((4,), ("a",))
X = np.arange(8.0, dtype=np.float32)
EVERYWHERE = {(c,): X for c in range(4)}


def runs(function: Callable[..., Any], *args: Any, mesh: Any = MESH) -> dict[str, list[Any]]:
    """The results of every way to run a function, flat."""
    jitted = jm.jit(function, mesh=mesh)
    traced = jitted.trace(*args)
    program: Any = type("Mesh", (), {"world": type("Sizes", (), {"sizes": tuple(mesh.shape.values())})})
    stages = Stages(program, jitted, list(args), args, traced, traced.lower())
    return {name: flat(form.run(stages)) for name, form in FORMS.items()}


def same(found: Any, wanted: Any) -> None:
    """One result: a full array, or one per coordinate."""
    assert type(found) is type(wanted)
    if isinstance(wanted, dict):
        assert set(found) == set(wanted)
        assert all(np.array_equal(found[c], x) and found[c].dtype == x.dtype for c, x in wanted.items())
    else:
        assert found.dtype == wanted.dtype
        assert np.array_equal(found, wanted)


def test_a_compiled_program_takes_a_tensor_that_it_does_not_read() -> None:
    held = jm.jit(lambda x: jm.full_to_shard(x, P("a")), mesh=MESH)(X)
    lowered = jm.jit(lambda x, unread: jm.full_to_shard(x, P()), mesh=MESH).lower(X, held)
    (got,) = flat(lowered.compile()(X, held))
    same(got, EVERYWHERE)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: compat.vary(x, "a"),
        lambda x: lax.fori_loop(0, 0, lambda i, c: jm.full_to_shard(x, P()), x),
        lambda x: lax.cond(True, lambda: x, lambda: jm.full_to_shard(x, P())),
    ],
    ids=["typed as varying", "a loop without steps", "a branch not taken"],
)
def test_the_text_of_a_result_that_only_types_put_on_the_devices(function: Callable[..., Any]) -> None:
    for name, (got,) in runs(function, X).items():
        assert name in FORMS
        same(got, EVERYWHERE)


def test_the_texts_of_a_result_that_is_a_constant_on_the_devices() -> None:
    """Nothing is sent, so zeros are looked up: no argument is in the result, which is on the devices all the same."""
    mesh = jm.make_mesh((1, 4), ("b", "a"))
    held = jm.jit(lambda x: jm.full_to_shard(x, P(("a", "b"))), mesh=mesh)(X[:4])
    traced = jm.jit(lambda x: lax.ppermute(x, "b", [])[np.array([0, 2]) % x.shape[0]], mesh=mesh).trace(held)
    for text in (traced.as_text(), traced.lower().as_text(strict=False)):
        (got,) = flat(jm.from_mlir(text, mesh).lower().reference(held))
        same(got, {(0, c): np.zeros(2, np.float32) for c in range(4)})


def test_the_text_of_a_collective_of_what_only_types_put_on_the_devices() -> None:
    def scattered(x: Any) -> Any:
        return lax.psum_scatter(compat.vary(x, "a"), "a", tiled=True)

    for name, (got,) in runs(scattered, X).items():
        assert name in FORMS
        same(got, {(c,): 4 * X[2 * c : 2 * c + 2] for c in range(4)})


@pytest.mark.parametrize("steps", [0, 2])
@pytest.mark.parametrize("loop", ["scan", "while"])
def test_a_loop_on_the_devices_that_ends_a_step_with_a_number_made_anywhere(loop: str, steps: int) -> None:
    """The carry starts on the devices, a step hands on its own number: the result is on the devices all the same."""

    def numbered(x: Any) -> Any:
        begin = jm.full_to_shard(x, P())
        if loop == "scan":
            end = lax.fori_loop(0, steps, lambda i, c: i, begin)
        else:
            end = lax.while_loop(lambda c: c[0] < steps, lambda c: (c[0] + 1, c[0]), (jnp.int32(0), begin))[1]
        return jm.shard_to_full(end, P())

    for name, (got,) in runs(numbered, np.int32(7)).items():
        assert name in FORMS
        same(got, np.asarray(7 if steps == 0 else 1, np.int32))


def unread_index(x: Any) -> None:
    lax.axis_index("a")


def unread_sum(x: Any) -> None:
    lax.psum(compat.vary(x, "a"), "a")


@pytest.mark.parametrize("unread", [unread_index, unread_sum])
@pytest.mark.parametrize(
    "around",
    [
        lambda f: lambda x: lax.while_loop(lambda c: c[0] < 3, lambda c: (c[0] + 1, f(c[1])), (0, x))[1],
        lambda f: lambda x: lax.scan(lambda c, _: (f(c), None), x, length=3)[0],
        lambda f: lambda x: lax.cond(x.sum() > 0, f, lambda y: y, x),
    ],
    ids=["while", "scan", "cond"],
)
def test_a_loop_on_the_host_with_an_unread_value_of_the_devices(around: Any, unread: Callable[[Any], None]) -> None:
    """Nothing it gives is on the devices, so it ran outside of the mapped region, where there are no axes."""

    def step(x: Any) -> Any:
        unread(x)
        return x + 1

    function, wanted = jm.jit(around(step), mesh=MESH), np.asarray(around(lambda x: x + 1)(jnp.asarray(X)))
    for got in (
        function(X),
        function.lower(X).compile()(X),
        function.lower(X).reference(X),
        function.trace(X).reference(X),
    ):
        same(np.asarray(got), wanted)


@pytest.mark.parametrize("pairs", [[(1, 1)], [(0, 0), (1, 1)], [(0, 1)]], ids=str)
def test_the_text_of_a_permute_along_one_axis_says_nothing_of_others(pairs: list[tuple[int, int]]) -> None:
    # Data that moves from a device to itself was read as moving along every axis.
    mesh = jm.make_mesh((2, 2, 1), ("a", "b", "c"))
    mapped = jm.shard_map(lambda x: lax.ppermute(-x, "b", pairs), mesh=mesh, in_specs=P("b"), out_specs=P("b"))
    wanted = np.zeros(4, np.float32)
    for source, target in pairs:
        wanted[2 * target : 2 * target + 2] = -X[2 * source : 2 * source + 2]
    texts = [mapped.trace(X[:4]).as_text(), mapped.lower(X[:4]).as_text(strict=False)]
    for text in texts:
        read = jm.from_mlir(text, mesh)
        same(np.asarray(read.lower().reference(X[:4])), wanted)
        same(np.asarray(read.lower().compile()(X[:4])), wanted)
    same(np.asarray(mapped(X[:4])), wanted)


@pytest.mark.parametrize("dims", [[-1, -1], [0, -1]], ids=str)
def test_the_text_of_a_split_into_one_piece_that_only_types_put_on_the_devices(dims: list[int]) -> None:
    # The mesh_shard is its input, by the fold of TTIR, but was taken for one that puts it on the devices.
    mesh = jm.make_mesh((1, 2), ("b", "a"))

    def never(x: Any) -> Any:
        one = jm.mesh_shard(x, shard_type="devices", shard_direction="full_to_shard", shard_shape=[1], shard_dims=dims)
        begin = (jnp.int32(0), lax.pcast(one, "a", to="varying"))
        return lax.while_loop(lambda c: c[0] < 0, lambda c: (c[0] + 1, c[1]), begin)[1]

    wanted = dict.fromkeys(np.ndindex(*mesh.shape.values()), X)
    for name, (got,) in runs(never, X, mesh=mesh).items():
        assert name in FORMS
        same(got, wanted)


@pytest.mark.parametrize("first", ["host", "devices"])
def test_a_scan_stacks_values_of_the_host_and_of_the_devices(first: str) -> None:
    # One carry is on the devices and one is not, and each step exchanges them.
    def exchanging(x: Any, y: Any) -> Any:
        shard = jm.full_to_shard(y, P())
        begin = (x, shard) if first == "host" else (shard, x)
        return lax.scan(lambda c, _: (c[::-1], c[0]), begin, length=3)[1]

    x, y = np.asarray([7, 8, 9, 10], np.int32), np.asarray([1, 2, 3, 4], np.int32)
    rows = [x, y, x] if first == "host" else [y, x, y]
    for name, (got,) in runs(exchanging, x, y).items():
        assert name in FORMS
        same(got, {(c,): np.stack(rows) for c in range(4)})


@pytest.mark.slow(but_one_in=4)
@pytest.mark.parametrize("dtype", ["int4", "int32", "bool", "bfloat16"])
@pytest.mark.parametrize("spec", [P("b"), P(("a", "b")), P(("b", "a"))], ids=str)
def test_a_second_split_of_what_varies_over_an_axis_of_one_device(spec: P, dtype: str) -> None:
    # Types say that it varies, though it is whole on every device; the cut was typed as if they did not.
    mesh = jm.make_mesh((1, 2), ("a", "b"))
    x = np.asarray([0, 1, 1, 0]).astype(jnp.dtype(dtype))

    def twice(x: Any) -> Any:
        return jm.full_to_shard(jm.full_to_shard(x, P("a")), spec)

    for name, (got,) in runs(twice, x, mesh=mesh).items():
        assert name in FORMS
        same(got, {(0, 0): x[:2], (0, 1): x[2:]})


def _first(start: int, length: int, size: int, *, wraps: bool = True) -> int:
    """Where a slice begins: JAX counts a negative start of a slice, not of a gather, from the end."""
    return min(max(start + length * (wraps and start < 0), 0), length - size)


def _slice_of_slice(x: Any, i: Any, j: Any) -> Any:
    return lax.dynamic_slice(lax.dynamic_slice(x, (i,), (8,)), (j,), (4,))


def _taken_of_slice(x: Any, i: Any, j: Any) -> Any:
    return jnp.take(lax.dynamic_slice(x, (i,), (8,)), j, mode="clip")


def _gathered_of_slice(x: Any, i: Any, j: Any) -> Any:
    numbers = lax.GatherDimensionNumbers((0,), (0,), (0, 1))
    windows = lax.dynamic_slice(x.reshape(8, 4), (i, jnp.int32(0)), (4, 4))
    at = jnp.stack([j, jnp.int32(1)])
    return lax.gather(windows, at, numbers, (1, 3), mode="clip")


def _scattered_into_slice(x: Any, i: Any, j: Any) -> Any:
    numbers = lax.ScatterDimensionNumbers((), (0,), (0,))
    return lax.scatter_add(lax.dynamic_slice(x, (i,), (8,)), j[None], x[0] + 100, numbers, mode="drop")


def _sliced_in_a_loop(x: Any, i: Any, j: Any) -> Any:
    return lax.fori_loop(0, 2, lambda _, s: s + _slice_of_slice(x, i, j), _slice_of_slice(x, i, j) * 0) / 2


def _sliced_in_a_branch(x: Any, i: Any, j: Any) -> Any:
    return lax.cond(x[0] < 1, jax.checkpoint(_slice_of_slice), lambda *a: 0 * _slice_of_slice(*a), x, i, j)


def _in_numpy(name: str, x: Any, i: int, j: int) -> Any:
    if name == "_gathered_of_slice":
        return x.reshape(8, 4)[_first(i, 8, 4) :][_first(j, 4, 1, wraps=False)][1:4]
    first = x[_first(i, 32, 8) :][:8]
    if name == "_scattered_into_slice":
        return first + (x[0] + 100) * (np.arange(8) == j)
    if name == "_taken_of_slice":
        return first[_first(j, 8, 1, wraps=False)]
    return first[_first(j, 8, 4) :][:4]


SLICES = (
    _slice_of_slice,
    _taken_of_slice,
    _gathered_of_slice,
    _scattered_into_slice,
    _sliced_in_a_loop,
    _sliced_in_a_branch,
)
STARTS = ((30, 2), (3, 7), (-50, 2), (20, -3), (100, 100), (5, 1))


@pytest.mark.slow(but_one_in=6)
@pytest.mark.usefixtures("as_for_users")
@pytest.mark.parametrize("how", ["by hand", "on shards", "by shard_map", "plain"])
@pytest.mark.parametrize("function", SLICES)
def test_slices_of_slices_clamp_each_start(function: Callable[..., Any], how: str) -> None:
    """XLA adds the two starts, and clamps the sum alone."""
    x, fun = np.arange(32, dtype=np.float32), function
    if how == "by hand":

        def fun(x: Any, i: Any, j: Any) -> Any:
            return function(jm.full_to_shard(x, P()), i, j)
    elif how == "on shards":
        # Each device has its own x and its own starts.
        def fun(x: Any, i: Any, j: Any) -> Any:
            i, j = (jm.full_to_shard(s[None], P())[0] + 0 * lax.axis_index("a") for s in (i, j))
            return function(jm.full_to_shard(x, P("a")), i, j)

        x = np.tile(x, 4)
    elif how == "by shard_map":
        fun = jm.shard_map(function, mesh=MESH, in_specs=P(), out_specs=P())
    jitted = jm.jit(fun, mesh=MESH)
    for i, j in STARTS:
        args = x, np.int32(i), np.int32(j)
        # Other starts take the other ways through the same program.
        found = runs(fun, *args) if (i, j) == STARTS[0] else {"call": flat(jitted(*args))}
        for name, (got,) in found.items():
            for each in got.values() if isinstance(got, dict) else [got]:
                assert np.array_equal(np.squeeze(each), _in_numpy(function.__name__, x[:32], i, j)), (name, i, j)
