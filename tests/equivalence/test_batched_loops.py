"""Loops of which each element of a batch goes on as long as its own condition holds, as texts, against JAX.

`jax.vmap` of a `while_loop` makes them, and JAX's own series of the gamma and beta functions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import PartitionSpec as P

import jaxmesh as jm
from jaxmesh.cli.run_folder import run_folder

_jax: Any = jax
R, S, vmap = _jax.random, _jax.scipy.special, _jax.vmap
Function = Callable[[Any], Any]
X = np.linspace(0.1, 3, 8, dtype=np.float32)


def each(start: Function, goes_on: Function, step: Function) -> Function:
    return vmap(lambda x: lax.while_loop(goes_on, step, start(x)))


LOOPS: Mapping[str, Function] = {
    "numbers": each(lambda x: x, lambda c: c < 10, lambda c: c * 1.5 + 0.1),
    "rows": lambda x: each(lambda x: x, lambda c: c.sum() < 10, lambda c: c * 1.5 + 0.1)(jnp.stack([x, x * 2], 1)),
    "batches of batches": lambda x: vmap(
        each(lambda x: (x, 0), lambda c: c[0] < 10, lambda c: (c[0] * 1.5 + 0.1, c[1] + 1))
    )(jnp.stack([x, x * 2], 1)),
    "with a limit": each(
        lambda x: (0, x), lambda c: (c[0] < 6) & (c[1] < 10), lambda c: (c[0] + 1, c[1] * 1.5 + 0.1)
    ),
    "known": lambda x: x + each(lambda n: n, lambda c: c < 10, lambda c: c * 2 + 1)(jnp.arange(8)),
    "limits of data": lambda x: vmap(
        lambda n: lax.while_loop(lambda c: c[0] < n, lambda c: (c[0] + 1, c[1] * 1.5 + 0.1), (0, 1.0))
    )(jnp.int32(x * 4)),
    "draws": vmap(
        lambda x: lax.while_loop(
            lambda c: R.uniform(c[0]) < x / 4, lambda c: (R.split(c[0])[0], c[1] + 1), (R.key(0), 0)
        )[1]
    ),
}  # fmt: skip
ITERATED: Mapping[str, Function] = {
    "igamma": lambda x: S.gammainc(2.0, x),
    "igammac": lambda x: S.gammaincc(x, 2.0),
    "igamma of bfloat16": lambda x: S.gammainc(jnp.bfloat16(2), x.astype(jnp.bfloat16)),
    "its derivative": _jax.grad(lambda x: S.gammainc(x, 2.0).sum()),
    "betainc": lambda x: S.betainc(2.0, 3.0, x / 4),
    "gamma": lambda x: R.gamma(R.key(0), x),
    "gamma of given keys": lambda x: vmap(R.gamma)(R.split(R.key(5), 8), x),
    "loggamma": lambda x: R.loggamma(R.key(3), x),
    "beta": lambda x: R.beta(R.key(3), x, 2.0),
    "dirichlet": lambda x: R.dirichlet(R.key(3), x),
    "poisson": lambda x: R.poisson(R.key(3), x),
}


def check(function: Function, **options: Any) -> None:
    wanted = jax.tree.leaves(_jax.jit(function)(X))
    program: Any = jm.jit(function, **options)
    lowered = program.lower(X)
    got = jax.tree.leaves(jm.from_mlir(lowered.as_text(), options.get("mesh")).lower().compile()(X))
    for a, b in zip(got, wanted, strict=True):
        assert a.dtype == b.dtype
        np.testing.assert_allclose(np.float64(a), np.float64(b), rtol=2e-6)


@pytest.mark.parametrize("name", LOOPS)
def test_loops_of_a_batch(name: str) -> None:
    check(LOOPS[name])
    check(LOOPS[name], mesh=jm.make_mesh((8,), ("x",)), in_shardings=P("x"))


@pytest.mark.parametrize("name", ITERATED)
def test_functions_that_jax_computes_by_loops(name: str) -> None:
    check(ITERATED[name])


def test_python_runs_a_loop_of_a_batch(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    function = LOOPS["with a limit"]
    program: Any = jm.jit(function)
    program.lower(X).export(tmp_path / "loop", X, languages=("python",))
    assert run_folder(tmp_path / "loop", ["--check"]) == 0, capsys.readouterr().out
