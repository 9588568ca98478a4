"""Attention is found as code writes it, with the numbers of JAX, and left alone where it would be another function."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import jaxmesh as jm
from tests.generators.attention_cases import FOUND, LEFT, inputs

FUSED = '"ttir.scaled_dot_product_attention"'
MESH = jm.make_mesh((1, 2), ("x", "y"))


def traced(program: Any, arrays: dict[str, Any]) -> Any:
    """The program on heads that are split over two devices."""
    split = {n: P(None, None, "y") if n[0] in "qkv" else P() for n in arrays}
    return jm.jit(lambda x: program(x), mesh=MESH, in_shardings=(split,)).trace(arrays)


def used(program: Any, arrays: dict[str, Any]) -> dict[str, Any]:
    """The inputs that a program reads."""
    jaxpr = jax.make_jaxpr(program)(arrays).jaxpr
    read = {v for eqn in jaxpr.eqns for v in eqn.invars if not hasattr(v, "val")}
    return {n: arrays[n] for n, v in zip(sorted(arrays), jaxpr.invars, strict=True) if v in read}


@pytest.mark.slow(but_one_in=6)
@pytest.mark.parametrize("name", FOUND)
def test_found(name: str) -> None:
    program, causal = FOUND[name]
    arrays = used(program, inputs())
    stage = traced(program, arrays)
    text = stage.as_text()
    assert (text.count(FUSED), text.count("ttir.matmul"), "is_causal = true" in text) == (1, 0, causal)
    got = np.asarray(jm.from_mlir(text, MESH).lower().compile()(*jax.tree.leaves(arrays)), np.float32)
    wanted = np.asarray(jax.jit(program)(arrays), np.float32)
    exact = np.asarray(program({n: v.astype(jnp.float32) if v.dtype != bool else v for n, v in arrays.items()}))
    # As near as the program itself is to the same in float32.
    assert np.abs(got - exact).max() <= 1.05 * np.abs(wanted - exact).max()
    for target in ("python", "cpp"):
        assert "scaled_dot_product_attention" in stage.lower().as_text(target)


@pytest.mark.slow(but_one_in=3)
@pytest.mark.parametrize("name", LEFT)
def test_left(name: str) -> None:
    assert FUSED not in traced(LEFT[name], used(LEFT[name], inputs())).as_text()


def test_left_in_float32() -> None:
    program, _ = FOUND["of jax"]
    assert FUSED not in traced(program, used(program, inputs(jnp.float32))).as_text()


def test_moves_around_it_are_single() -> None:
    program, _ = FOUND["causal, shared heads"]
    text = traced(program, used(program, inputs())).as_text()
    assert (text.count("ttir.permute"), text.count("ttir.reshape")) == (4, 0)
