"""The memory that a run of the unsharded program is expected to take is what its values take."""

from __future__ import annotations

import os
import tracemalloc
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import PartitionSpec as P

import jaxmesh as jm
from jaxmesh.analysis.diagnose import reference
from jaxmesh.analysis.diagnose.reference import run_program

any_lax: Any = lax


def text_of(fun: Callable[..., Any], *args: Any) -> str:
    return jax.jit(fun, keep_unused=True).lower(*args).as_text("stablehlo")


def taken(arrays: list[np.ndarray[Any, Any]]) -> int:
    """Returns the bytes of the memory that arrays lie in, each counted once."""
    bounds = sorted(np.lib.array_utils.byte_bounds(x) for x in arrays if x.size)
    total = end = 0
    for low, high in bounds:
        total += max(0, high - max(low, end))
        end = max(end, high)
    return total


def views(x: Any) -> Any:
    wide = jnp.broadcast_to(x[:, None], (8, 5, 16))
    return wide[2:, ::2].transpose(1, 0, 2), wide.reshape(8, 80), lax.rev(x, (0,)).reshape(128), x[1:3].reshape(32)


def layers(x: Any) -> Any:
    for i in range(4):
        x = jnp.tanh(x @ x.T[:, :16] + i) * jnp.where(x > 0, x, 0)
    return x


def heads(x: Any) -> Any:
    return jnp.repeat(x.reshape(2, 4, 16), 3, 1).sum(-1)


def barrier(x: Any) -> Any:
    return lax.optimization_barrier((x, x + 1))


def loop(x: Any) -> Any:
    def double(_: Any, y: Any) -> Any:
        return y * 2

    return any_lax.fori_loop(0, 3, double, x)


def cumulative(x: Any) -> Any:
    return jnp.concatenate([jnp.cumsum(x, 0), jnp.pad(x, 1)[:8, :16]])


def region(x: Any) -> Any:
    def shifted(y: Any) -> Any:
        total = any_lax.psum(y, "x")
        return y * (any_lax.axis_index("x") + 1).astype(y.dtype) + total

    mesh = jm.make_mesh((4,), ("x",))
    return jax.shard_map(shifted, mesh=mesh, in_specs=P("x"), out_specs=P("x"))(x)


PROGRAMS: dict[str, tuple[Callable[..., Any], tuple[int, ...]]] = {
    "views": (views, (8, 16)),
    "layers": (layers, (16, 16)),
    "heads": (heads, (8, 16)),
    "barrier": (barrier, (8, 16)),
    "region": (region, (8, 16)),
    "loop": (loop, (8, 16)),
    "cumulative": (cumulative, (8, 16)),
}


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16, jnp.int32])
def test_the_expected_memory_is_what_the_values_take(name: str, dtype: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    fun, shape = PROGRAMS[name]
    expected: list[int] = []
    peak = getattr(reference, "_peak")  # noqa: B009

    def noted(*args: Any) -> int:
        expected.append(peak(*args))
        return expected[-1]

    monkeypatch.setattr(reference, "_peak", noted)
    x = np.arange(np.prod(shape)).reshape(shape).astype(dtype)
    run = run_program(text_of(fun, x), "", [x], 0)
    kept = taken([v.array for v in run.values])
    # XLA would read a copy of the ones that are broadcast; a conversion to the same type may be a view.
    copies = x.nbytes if name == "barrier" else 0
    # In the end a value that is equal on the devices of a region is kept once.
    assert 0 <= expected[0] - kept - copies <= (x.nbytes if name == "region" else 4)


def machine_of(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sysconf", {"SC_PHYS_PAGES": size, "SC_PAGE_SIZE": 1}.__getitem__)


def test_a_program_of_views_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    def fun(x: Any) -> Any:
        for _ in range(8):
            x = x + jnp.broadcast_to(x[:, None], (64, 4096, 64))[:, 7]
        return x

    x = np.ones((64, 64), np.float32)
    text = text_of(fun, x)
    machine_of(1 << 20, monkeypatch)
    tracemalloc.start()
    before, _ = tracemalloc.get_traced_memory()
    run = run_program(text, "", [x], 0)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert sum(v.array.nbytes for v in run.values) > 8 << 26
    assert most - before < 8 << 20
    np.testing.assert_array_equal(run.values[run.outputs[0]].array, fun(x))


def wide(x: Any) -> Any:
    return jnp.broadcast_to(x, (1 << 20, 1 << 20))


def multiplied(x: Any) -> Any:
    return x[:, None] @ x[None]


def copied(x: Any) -> Any:
    return wide(x).reshape(-1)


def summed(x: Any) -> Any:
    return wide(x).sum()


@pytest.mark.parametrize("fun", [multiplied, copied, summed])
def test_what_does_not_fit_is_refused_before_it_is_allocated(fun: Callable[..., Any]) -> None:
    text = text_of(fun, jax.ShapeDtypeStruct((1 << 20,), jnp.float32))
    tracemalloc.start()
    with pytest.raises(jm.UnsupportedError, match=r"take 4096\.0 GiB, and this machine has"):
        run_program(text, "", [np.ones(1 << 20, np.float32)], 0)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 64 << 20
