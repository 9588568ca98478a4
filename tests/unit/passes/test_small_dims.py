"""Small dims leave the last two dims of large tensors, and every number stays."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import jaxmesh as jm
from jaxmesh.passes import small_dims
from tests.generators.attention_cases import FOUND, inputs

MESH = jm.make_mesh((1, 2), ("x", "y"))
ROWS = 4096


def statistics(x: Any) -> Any:
    wide = jnp.sin(x).reshape(4, ROWS, 1, 8) * 2
    lowest, total = wide.min(-1), wide.sum(3, keepdims=True)
    turned = jnp.where(wide > 0, wide, total).transpose(2, 3, 1, 0)
    return jax.nn.softmax(wide, -1), lowest, turned, jnp.cumsum(wide, 1), wide[1:3, :5]


def largest(text: str) -> int:
    """The most elements, in tiles, of a tensor in a text."""
    found = [tuple(map(int, kind.split("x")[:-1])) for kind in text.replace("tensor<", "\0").split("\0")[1:]
             for kind in [kind.partition(">")[0]]]  # fmt: skip
    return max(int(np.prod([*s[:-2], -(-s[-2] // 32) * 32, -(-s[-1] // 32) * 32])) for s in found if len(s) > 1)


def grouped(q: Any, k: Any, v: Any) -> Any:
    return (jax.nn.dot_product_attention(q, k, v, is_causal=True) ** 2).sum()


def heads(number: int) -> tuple[Any, ...]:
    rng = np.random.default_rng(number)
    return tuple(rng.normal(size=(2, 64, n, 32)).astype(np.float32) for n in (8, number, number))


def program(name: str, dtype: Any = jnp.float32) -> tuple[Any, tuple[Any, ...]]:
    if name == "statistics":
        return statistics, (np.arange(ROWS * 32, dtype=np.float32).reshape(4, ROWS, 8),)
    if name.startswith("grouped"):
        return jax.grad(grouped, (0, 1, 2)), heads(int(name.removeprefix("grouped ")))
    arrays, attend = inputs(dtype), FOUND[name][0]

    def loss(q: Any, k: Any, v: Any) -> Any:
        return (attend({"q": q, "k": k, "v": v}) ** 2).sum()

    return jax.grad(loss, (0, 1, 2)), tuple(arrays[n] for n in "qkv")


@pytest.mark.parametrize("name", ["statistics", "of jax", "grouped 1", "grouped 2", "grouped 4"])
@pytest.mark.slow(but_one_in=5)
def test_numbers_stay(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(small_dims, "LARGE", 0)
    function, arrays = program(name)
    lowered = jm.jit(function, mesh=MESH, in_shardings=P()).lower(*arrays)
    text = lowered.as_text()
    wanted = jax.tree.leaves(jax.jit(function)(*arrays))
    got = jax.tree.leaves(jm.from_mlir(text, MESH).lower().compile()(*arrays))
    for a, b in zip(got, wanted, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4)
    monkeypatch.setattr(small_dims, "LARGE", 1 << 60)
    as_it_was = jm.jit(lambda *xs: function(*xs), mesh=MESH, in_shardings=P()).lower(*arrays).as_text()
    # The results of the other program are as wide as its values.
    assert text != as_it_was
    assert name != "of jax" or 4 * largest(text) <= largest(as_it_was)


@pytest.mark.parametrize("number", [1, 2, 4])
def test_scores_of_grouped_heads_have_no_small_dim(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    shapes = [jax.ShapeDtypeStruct((2, 256, n, 32), np.float32) for n in (8, number, number)]
    sizes: list[int] = []
    for large in (0, 1 << 60):
        monkeypatch.setattr(small_dims, "LARGE", large)
        sizes.append(largest(jm.jit(lambda *xs: grouped(*xs), mesh=MESH, in_shardings=P()).lower(*shapes).as_text()))
    scores = 2 * 8 * 256 * 256
    # Without the pass, a tile pads the heads of a group to 32.
    assert (sizes[0] <= 2 * scores, sizes[1]) == (True, 32 * scores * number // 8)


def test_what_is_small_stays() -> None:
    x = np.zeros((4, 8), np.float32)
    text = jm.jit(lambda x: jnp.sin(x.reshape(4, 1, 8)), mesh=MESH, in_shardings=P()).lower(x).as_text()
    assert '"ttnn.sin"' in text
    assert "-> tensor<4x1x8xf32>" in text


def drawn(rng: np.random.Generator) -> Any:
    """Returns a function of moves, elementwise operations, reductions and products on tensors with small dims."""
    steps = rng.integers(0, 7, 9)
    orders = [rng.permutation(4) for _ in steps]
    dims = rng.integers(0, 4, len(steps))

    def function(x: Any) -> Any:
        y, kept = x, [x]
        for step, order, dim in zip(steps, orders, dims, strict=True):
            if step == 0:
                y = y.transpose(order)
            elif step == 1:
                y = jnp.tanh(y) + 0.5
            elif step == 2:
                y = y - y.max(dim, keepdims=True)
            elif step == 3:
                y = jax.nn.softmax(y, dim)
            elif step == 4:
                y = jnp.where(y > 0, y, y.mean(dim, keepdims=True)).reshape(tuple(np.array(y.shape)[order]))
            elif step == 5 and y.shape != x.shape:
                y = y[:, :, :2]
            else:
                y = jnp.einsum("...ij,...kj->...ik", y, y * 0.1)
            kept.append(y)
        return kept[-1], kept[4].sum(1)

    return function


@pytest.mark.slow(but_one_in=3)
@pytest.mark.parametrize("seed", range(12))
def test_numbers_stay_in_drawn_programs(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(small_dims, "LARGE", 0)
    rng = np.random.default_rng(seed)
    function, x = drawn(rng), rng.normal(size=tuple(rng.permutation([1, 3, 40, 40]))).astype(np.float32)
    text = jm.jit(function, mesh=MESH, in_shardings=P()).lower(x).as_text()
    got = jm.from_mlir(text, MESH).lower().compile()(x)
    for a, b in zip(got, jax.tree.leaves(jax.jit(function)(x)), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_the_gradient_of_grouped_heads_takes_no_more_than_by_hand(dtype: Any, causal: bool) -> None:
    def by_hand(q: Any, k: Any, v: Any) -> Any:
        q = q.reshape(2, 256, 4, 4, 64)
        scores = jnp.einsum("btkgd,bskd->bkgts", q, k) / 8
        if causal:
            scores = jnp.where(jnp.tril(jnp.ones((256, 256), bool)), scores, -1e30)
        parts = jax.nn.softmax(scores.astype(jnp.float32), -1).astype(dtype)
        return jnp.einsum("bkgts,bskd->btkgd", parts, v)

    def of_jax(q: Any, k: Any, v: Any) -> Any:
        return jax.nn.dot_product_attention(q, k, v, is_causal=causal)

    def peak(attend: Any) -> int:
        gradient = jax.grad(lambda *x: (attend(*x).astype(jnp.float32) ** 2).sum(), (0, 1, 2))
        args = [jax.ShapeDtypeStruct((2, 256, n, 64), dtype) for n in (16, 4, 4)]
        return jm.jit(gradient, mesh=MESH).lower(*args).estimate("t3000").memory.peak

    assert peak(of_jax) <= 1.2 * peak(by_hand)


@pytest.mark.parametrize(
    "dims", [((1, 2), (2, 1)), ((2, 1), (0, 2)), ((0, 1), (1, 0)), ((1, 2, 3), (0, 1, 3))], ids=str
)
def test_numbers_stay_where_several_dims_are_contracted(dims: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(small_dims, "LARGE", 0)
    rng, (first, second) = np.random.default_rng(len(dims[0])), dims
    x = rng.normal(size=(6, 40, 3, 2)).astype(np.float32)
    shape = [5, 6, 7, 8]
    for a, b in zip(first, second, strict=True):
        shape[b] = x.shape[a]
    y = rng.normal(size=shape).astype(np.float32)

    def function(x: Any, y: Any) -> Any:
        return jax.lax.dot_general(x, y, (dims, ((), ()))) * 2

    text = jm.jit(function, mesh=MESH, in_shardings=P()).lower(x, y).as_text()
    found = jm.from_mlir(text, MESH).lower().compile()(x, y)
    np.testing.assert_allclose(found, jax.jit(function)(x, y), rtol=1e-4, atol=1e-4)
