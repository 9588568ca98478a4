"""Drawn arguments keep values of order one, are valid indices, and take every way of a program."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import jaxmesh as jm
from jaxmesh.analysis.diagnose.integer_uses import Need
from jaxmesh.analysis.diagnose.reference import Reference, run_draws

X, V = jnp.ones((8, 16)), jnp.ones(16)
TABLE, IDS = jnp.ones((32, 4)), jnp.zeros(16, jnp.int32)


def draws(fun: Callable[..., Any], *args: Any, seed: int = 0) -> list[Reference]:
    """Returns the runs of a program with drawn arguments."""
    return list(run_draws(jax.jit(fun).lower(*args).as_text("stablehlo"), "", None, seed))


def integers(fun: Callable[..., Any], *args: Any, of: int) -> np.ndarray[Any, Any]:
    """Returns the integers that all draws of some seeds give to an argument."""
    found = [r.values[of].array.reshape(-1) for seed in range(4) for r in draws(fun, *args, seed=seed)]
    return np.concatenate(found)


@pytest.mark.parametrize(
    ("fun", "shapes"),
    [
        (lambda x, w: jnp.einsum("bd,dhk->bhk", x, w), [(4, 512), (512, 8, 64)]),
        (lambda x, w, v: jax.nn.relu(x @ w) @ v, [(4, 256), (256, 1024), (1024, 64)]),
        (lambda x, k: lax.conv_general_dilated(x, k, (1, 1), "SAME"), [(1, 64, 8, 8), (32, 64, 3, 3)]),
        (lambda x, w: (x @ w @ w @ w @ w) ** 2, [(4, 64), (64, 64)]),
        (lambda x, w: jnp.exp(jnp.square(x @ w) * 30), [(8, 16), (16, 16)]),
        (lambda x: x * 0.1 * 0.1 * 0.1, [(8, 16)]),
    ],
)
def test_values_are_of_order_one(fun: Any, shapes: Any) -> None:
    (*_, last) = draws(fun, *map(jnp.ones, shapes))[0].values
    size = float(np.sqrt(np.mean(np.square(last.array.astype(np.float64)))))
    assert 1 / 64 <= size <= 16


@pytest.mark.parametrize(
    ("fun", "args", "of", "valid"),
    [
        (lambda t, i: t[i], (TABLE, IDS), 1, [(-32, -1), (0, 31)]),
        (lambda t, i: t[i % 4, i // 8], (TABLE, IDS), 1, [(-32, -1), (0, 31)]),
        (lambda t, i: jnp.take(t, i + 2, axis=0, mode="clip"), (TABLE, IDS), 1, [(-2, 29)]),
        (lambda t, i: t.at[i.astype(jnp.int8)].add(1.0), (TABLE, IDS), 1, [(-32, -1), (0, 31)]),
        (lambda t, u, p: lax.dynamic_update_slice(t, u, (p, 0)), (TABLE, jnp.ones((4, 4)), IDS[0]), 2,
         [(-32, -4), (0, 28)]),
        (lambda t, p: lax.dynamic_slice(t, (p[0], p[1]), (8, 2)), (TABLE, IDS), 1, [(0, 2)]),
        (lambda i: jax.nn.one_hot(i, 7), (IDS,), 0, [(0, 6)]),
        (lambda t, n: jnp.where(jnp.arange(32) < n, t[:, 0], 0), (TABLE, IDS[0]), 1, [(0, 31)]),
        (lambda t, i: lax.fori_loop(0, 3, lambda k, c: c.at[i[0] + k].add(1.0), t), (TABLE, IDS), 1,
         [(-32, -3), (0, 29)]),
        (lambda t, i: jnp.where(i != -100, t[jnp.where(i != -100, i, 0), 0], 0), (TABLE, IDS), 1,
         [(-100, -100), (-32, -1), (0, 31)]),
    ],
)  # fmt: skip
def test_integers_lie_where_all_their_uses_need_them(fun: Any, args: Any, of: int, valid: list[Any]) -> None:
    found = integers(fun, *args, of=of)
    inside = [(found >= low) & (found <= high) for low, high in valid]
    assert np.any(inside, 0).all(), sorted(set(found.tolist()))
    # Both ends occur.
    assert {valid[-1][0], valid[-1][1]} <= set(found.tolist())
    # A single integer counts from the end only where other ways are missing.
    assert all(rows.any() for rows in inside) or not args[of].ndim


def test_rows_that_are_written_are_different_ones() -> None:
    (run, *_) = draws(lambda t, i: t.at[i].set(2.0), TABLE, IDS)
    assert len(set(run.values[1].array.tolist())) == 16


@pytest.mark.parametrize(
    "fun",
    [
        lambda x: lax.cond(x.sum() > 0, lambda x: x * 2, lambda x: x - 1, x),
        lambda x: jnp.clip(x @ x.T, -50.0, 50.0),
        lambda x: x * jnp.minimum(1.0, 1 / jnp.linalg.norm(x)),
        lambda x: x / jnp.maximum(1.0, jnp.sqrt(jnp.mean(jnp.square(x * 0.1)))),
        lambda x: jnp.where(x > 100.0, 1.0, x),
    ],
)
def test_every_way_is_taken(fun: Any) -> None:
    found = draws(fun, X)
    assert 1 < len(found) <= 4
    assert found[-1].unexercised == []


def test_a_way_that_no_draw_takes_is_said() -> None:
    texts = {
        "shlo_frontend": jax.jit(lambda x: jnp.maximum(x, -1e30)).lower(X).as_text("stablehlo"),
        "ttir": jm.jit(lambda x: jnp.maximum(x, -1e30)).trace(X).as_text(),
    }
    found = jm.diagnose(texts)
    assert found.verdict == "right"
    assert "not exercised: stablehlo.maximum never gave the second operand" in str(found)


@pytest.mark.parametrize("fun", [lambda i: TABLE[i], lambda x: jax.nn.softmax(x), lambda x: jax.nn.logsumexp(x, 0)])
def test_guards_of_indices_and_of_infinities_are_no_choices(fun: Any) -> None:
    (run,) = draws(fun, IDS if fun.__code__.co_varnames[:1] == ("i",) else X)
    assert run.unexercised == []


def planted(fun: Any, old: str, new: str, *args: Any) -> str:
    """Returns the verdict on a text with an error."""
    ttir = jm.jit(fun).trace(*args).as_text()
    assert ttir.replace(old, new) != ttir
    frontend = jax.jit(fun).lower(*args).as_text("stablehlo")
    assert jm.diagnose({"shlo_frontend": frontend, "ttir": ttir}).verdict == "right"
    return jm.diagnose({"shlo_frontend": frontend, "ttir": ttir.replace(old, new)}).verdict


B = jnp.ones((8, 16), jnp.bfloat16)


@pytest.mark.parametrize(
    ("fun", "old", "new", "args"),
    [
        (lambda x, y: jnp.where(x * y > 0, 1.0, 2.0), "ttir.gt", "ttir.ge", (X, X)),
        (lambda x: jnp.where(jax.nn.sigmoid(x) > 0.5, x + 1, -x), "ttir.gt", "ttir.ge", (B,)),
        (lambda x: x * lax.rsqrt(x * x + 2**-6), "1.562500e-02", "1.562500e-01", (B,)),
        (lambda x: x / jnp.sqrt((x * x).sum() + 1e-3), "e-03", "e-01", (X,)),
        (lambda x, n: jnp.where(n > 3, x, 0), "ttir.gt", "ttir.ge", (X, jnp.zeros((8, 16), jnp.int32))),
        (lambda x, e, t: t[(x[:, None] >= e).sum(1)], "ttir.lt", "ttir.le", (IDS, jnp.zeros(8, jnp.int32), TABLE[:9])),
        (lambda x, t: t[x.argmax(1)], "ttir.lt", "ttir.le", (jnp.ones((16, 16)), TABLE[:16])),
        (
            lambda x, n: x[:8] * (jnp.arange(16) <= n) * (1 + n % 16),
            "<{fill_value = 16 :",
            "<{fill_value = 99 :",
            (X, IDS),
        ),
    ],
    ids=[
        *("tie", "tie of a sigmoid", "small constant of few bits", "small constant", "bound of integers"),
        *("integers below all of a list", "the first index", "a quotient of one"),
    ],
)
def test_an_error_that_few_arguments_show_is_seen(fun: Any, old: str, new: str, args: Any) -> None:
    assert planted(fun, old, new, *args) == "wrong"


def test_a_sum_that_is_small_by_chance_does_not_change_magnitudes() -> None:
    """The second row's part along the first one is small; larger arguments would hide the constant."""

    def orthogonal(x: Any) -> Any:
        u = x[0] / jnp.sqrt((x[0] * x[0]).sum() + 1e-3)
        return x[1] - (u * x[1]).sum() * u

    for seed in range(4):
        assert np.abs(draws(orthogonal, jnp.ones((2, 16)), seed=seed)[0].values[0].array).max() < 16


def test_integers_beside_the_number_of_a_device_lie_in_all_shards() -> None:
    mesh = jm.make_mesh((2,), ("x",))

    def local(logits: Any, labels: Any) -> Any:
        hot = (labels - lax.axis_index("x") * 8)[:, None] == jnp.arange(8)
        return lax.psum(jnp.where(hot, logits, 0).sum(-1), "x")

    split = jax.shard_map(local, mesh=mesh, in_specs=(jax.P(None, "x"), jax.P()), out_specs=jax.P())
    found = integers(split, jnp.ones((16, 16)), IDS, of=1)
    assert {0, 15} <= set(found.tolist()) <= set(range(16))


def test_roots_get_positive_numbers() -> None:
    def adam(p: Any, m: Any, v: Any, t: Any) -> Any:
        return p - 0.01 * (m / (1 - 0.9**t)) / (jnp.sqrt(v / (1 - 0.999**t)) + 1e-8)

    (run, *_) = draws(adam, X, X, X, jnp.int32(1))
    assert all(np.isfinite(v.array).all() for v in run.values)


@pytest.mark.parametrize("is_loop", [False, True])
@pytest.mark.parametrize(
    ("fun", "shape"),
    [
        # The roots of a schedule that lies between 0 and 1, and of numbers above a bound.
        (lambda x, a: jnp.sqrt(a) * x + jnp.sqrt(1 - a) * jnp.tanh(x), (16,)),
        (lambda x, a: x * jnp.sqrt(1 - a), (8, 16)),
        (lambda x, a: x * jnp.log(a - 4), (16,)),
    ],
)
def test_roots_and_logarithms_beside_a_number_get_numbers(fun: Any, shape: tuple[int, ...], is_loop: bool) -> None:
    def program(x: Any, a: Any) -> Any:
        return lax.fori_loop(0, 3, lambda _, y: fun(y, a), x) if is_loop else fun(x, a)

    for run in draws(program, X, jnp.ones(shape)):
        assert np.isfinite(run.values[run.outputs[0]].array).mean() > 0.5


@pytest.mark.slow(but_one_in=3)
@pytest.mark.parametrize("seed", range(6))
def test_a_shifted_position_is_wrong_for_every_seed(seed: int) -> None:
    def update(cache: Any, new: Any, at: Any) -> Any:
        return lax.dynamic_update_slice(cache, new, (at, 0))

    args = TABLE, jnp.ones((4, 4)), jnp.int32(0)
    ttir = jm.jit(update).trace(*args).as_text()
    head, opened, body = ttir.partition(")}) {\n" if ")}) {\n" in ttir else ") {\n")
    one = """
    %one = "ttir.constant"() <{value = dense<1> : tensor<i32>}> : () -> tensor<i32>
    %next = "ttir.add"(%arg2, %one) : (tensor<i32>, tensor<i32>) -> tensor<i32>
"""
    changed = head + opened + one + body.replace("%arg2", "%next")
    frontend = {"shlo_frontend": jax.jit(update).lower(*args).as_text("stablehlo")}
    assert jm.diagnose({**frontend, "ttir": ttir}, seed=seed).verdict == "right"
    assert jm.diagnose({**frontend, "ttir": changed}, seed=seed).verdict == "wrong"


@pytest.mark.parametrize(
    "fun",
    [
        lambda i, x: i[:, None] == i[None, :],
        lambda i, x: x.argmax(-1) == i,
    ],
)
def test_compared_integers_are_equal_in_some_elements(fun: Any) -> None:
    """Beside the diagonal, where an integer is compared with itself."""
    found = [r.values[-1].array for r in draws(fun, IDS, jnp.ones((16, 64)))]
    equal = [x & ~np.eye(16, dtype=bool) if x.ndim == 2 else x for x in found]
    assert any(x.any() for x in equal)
    assert any((~x).any() for x in equal)


def test_compared_integers_of_two_arguments_are_equal_in_some_elements() -> None:
    found = [r.values[-1].array for r in draws(lambda i, k: i[:, None] == k[None, :], IDS, IDS)]
    assert any(x.any() for x in found)
    assert any((~x).any() for x in found)


def test_labels_that_no_operation_indexes_with_are_also_beside_the_bound() -> None:
    """A label below 0 is ignored; it is no index that counts from the end."""

    def loss(logits: Any, labels: Any) -> Any:
        hot = labels[:, None] == jnp.arange(16)
        return jnp.where(labels >= 0, (logits * hot).sum(-1), 0)

    assert -1 in integers(loss, jnp.ones((16, 16)), IDS, of=1).tolist()


def test_sums_of_integers_equal_the_numbers_that_they_are_compared_with() -> None:
    def next_generation(cells: Any) -> Any:
        near = sum(jnp.roll(cells, (i, j), (0, 1)) for i in (-1, 0, 1) for j in (-1, 0, 1) if i or j)
        return ((near == 3) | ((near == 2) & (cells == 1))).astype(jnp.int32)

    runs = draws(lambda cells: next_generation(next_generation(cells)).sum(), jnp.zeros((16, 16), jnp.int32))
    assert any(r.values[r.outputs[0]].array > 0 for r in runs)
    assert not runs[-1].unexercised
    runs = draws(lambda cells: (cells * 0 + 1 == 2).sum(), jnp.zeros((4, 4), jnp.int32))
    assert [line.split(" (")[0] for line in runs[-1].unexercised] == ["stablehlo.compare never gave a true value"]


def test_few_integers_are_the_ends_in_one_draw_and_others_in_another() -> None:
    """A length of 0 makes a row NaN, so that the other length alone says something."""

    def drawn(size: int, draw: int) -> set[int]:
        made = Need(spans=[(0, 11)]).drawn(np.random.default_rng(draw), (size,), jnp.iinfo(np.int32), draw, 0, 12)
        return set(made.tolist())

    assert drawn(2, 0) == {0, 11}
    assert drawn(2, 1) != {0, 11}
    assert all({0, 11} <= drawn(9, draw) for draw in range(3))


def _generation(cells: Any) -> Any:
    near = sum(jnp.roll(cells, (i, j), (0, 1)) for i in (-1, 0, 1) for j in (-1, 0, 1)) - cells
    return ((near == 3) | ((near == 2) & (cells == 1))).astype(jnp.int32)


def _masked(x: Any, step: Any) -> Any:
    age = step % 6 - jnp.arange(6)
    return jnp.where(jnp.where(age < 0, age + 6, age) <= step, x, 0)


@pytest.mark.parametrize(
    ("local", "old", "new", "args"),
    [
        (lambda cells: _generation(_generation(cells)), "ttir.subtract", "ttir.add", (jnp.zeros((16, 8), jnp.int32),)),
        (_masked, "ttir.subtract", "ttir.add", (jnp.ones((8, 6)), jnp.int32(0))),
        (lambda x: jnp.exp(-jnp.abs(x * 0.2 - 1)) + (x * 0.2 > 1), "ttir.abs", "ttir.neg", (X,)),
    ],
    ids=["sums of few integers", "a mask of some elements", "another sign"],
)
@pytest.mark.slow(but_one_in=3)
def test_a_value_that_no_result_shows_is_looked_at_with_other_arguments(
    local: Any, old: str, new: str, args: Any
) -> None:
    mesh = jm.make_mesh((2,), ("x",))
    specs = tuple(jax.P("x") if a.ndim else jax.P() for a in args)
    assert planted(jax.shard_map(local, mesh=mesh, in_specs=specs, out_specs=jax.P("x")), old, new, *args) == "wrong"
