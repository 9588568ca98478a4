"""Dims of size 1 leave the last two dims of large tensors, and every number stays."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import jaxmesh as jm
from jaxmesh.passes import unit_dims
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


def program(name: str, dtype: Any = jnp.float32) -> tuple[Any, tuple[Any, ...]]:
    if name == "statistics":
        return statistics, (np.arange(ROWS * 32, dtype=np.float32).reshape(4, ROWS, 8),)
    arrays, attend = inputs(dtype), FOUND[name][0]

    def loss(q: Any, k: Any, v: Any) -> Any:
        return (attend({"q": q, "k": k, "v": v}) ** 2).sum()

    return jax.grad(loss, (0, 1, 2)), tuple(arrays[n] for n in "qkv")


@pytest.mark.parametrize("name", ["statistics", "of jax"])
def test_numbers_stay(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unit_dims, "LARGE", 0)
    function, arrays = program(name)
    lowered = jm.jit(function, mesh=MESH, in_shardings=P()).lower(*arrays)
    text = lowered.as_text()
    wanted = jax.tree.leaves(jax.jit(function)(*arrays))
    got = jax.tree.leaves(jm.from_mlir(text, MESH).lower().compile()(*arrays))
    for a, b in zip(got, wanted, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)
    monkeypatch.setattr(unit_dims, "LARGE", 1 << 60)
    as_it_was = jm.jit(lambda *xs: function(*xs), mesh=MESH, in_shardings=P()).lower(*arrays).as_text()
    # The results of the other program are as wide as its values.
    assert text != as_it_was
    assert name == "statistics" or 4 * largest(text) <= largest(as_it_was)


def test_what_is_small_stays() -> None:
    x = np.zeros((4, 8), np.float32)
    text = jm.jit(lambda x: jnp.sin(x.reshape(4, 1, 8)), mesh=MESH, in_shardings=P()).lower(x).as_text()
    assert '"ttnn.sin"' in text
    assert "-> tensor<4x1x8xf32>" in text
