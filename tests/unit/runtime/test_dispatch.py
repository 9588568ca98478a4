"""Known calls are JAX's alone; what JAX's dispatch does not look up by makes a call new."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec as P

import jaxmesh as jm
from jaxmesh.runtime import launch
from jaxmesh.stages.jit_function import JitFunction


def new_calls(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """Every call of a function that its dispatch does not know, from here on."""
    found: list[tuple[Any, ...]] = []
    run_new: Callable[..., Any] = JitFunction._run_new

    def noted(self: JitFunction, *args: Any, **kwargs: Any) -> Any:
        found.append(args)
        return run_new(self, *args, **kwargs)

    monkeypatch.setattr(JitFunction, "_run_new", noted)
    return found


def test_a_call_is_new_once_per_types_placement_settings_and_static_values(monkeypatch: pytest.MonkeyPatch) -> None:
    mesh = jm.make_mesh((2, 4))
    calls, f = new_calls(monkeypatch), jm.jit(lambda x, n: x * n, static_argnums=1)
    x = jnp.ones((8, 8))
    placed = jax.device_put(x, NamedSharding(mesh, P("y")))
    for args in ((x, 1), (x, True), (x, 1.0), (x, 0.0), (x, -0.0), (placed, 1), (jnp.int32(1), 1)):
        np.testing.assert_array_equal(f(*args), args[0] * args[1])
    before = len(calls)
    for _ in range(3):
        for args in ((x, 1), (x, True), (x, 1.0), (x, 0.0), (x, -0.0), (placed, 1), (jnp.int32(1), 1)):
            f(*args)
    assert len(calls) == before == 7
    with jm.check_replication(False):
        f(x, 1)
    with jax.default_prng_impl("rbg"):
        f(x, 1)
    with jax.enable_x64(True):
        f(x, 1)
    with jax.set_mesh(mesh):
        f(x, 1)
    # With JAXMESH_CHECK_REPLICATION, the block is another setting.
    assert len(calls) == before + 4
    f.clear_cache()
    f(x, 1)
    jax.clear_caches()
    f(x, 1)
    assert len(calls) == before + 6


def test_a_compiled_program_checks_types_once_and_refuses_others_after_that(monkeypatch: pytest.MonkeyPatch) -> None:
    x = jnp.ones((4,))
    compiled = jm.jit(lambda x: x + 1).lower(x).compile()
    np.testing.assert_array_equal(compiled(x), x + 1)
    monkeypatch.setattr("jaxmesh.stages.compiled.check_call", None)
    np.testing.assert_array_equal(compiled(2 * x), 2 * x + 1)
    monkeypatch.undo()
    for wrong, match in ((jnp.ones((5,)), "called with"), (jnp.ones((4,), int), "called with")):
        with pytest.raises(jm.ArgumentTypeError, match=match):
            compiled(wrong)
    gone = jnp.ones((4,))
    gone.delete()
    for call in (compiled, jm.jit(lambda x: x + 1)):
        with pytest.raises(jm.DeletedError):
            call(gone)


def test_a_later_write_to_an_array_of_numpy_changes_no_result() -> None:
    x = np.ones((64, 64), np.float32)
    f = jm.jit(lambda x: (x @ x).sum() + x)
    f(jnp.asarray(x))
    for _ in range(3):
        x[:] = 1
        result = f(x)
        x[:] = 7
        assert float(result[0, 0]) == 64**3 + 1


def test_a_donated_array_passed_twice_is_named_in_a_known_call() -> None:
    f = jm.jit(lambda x, y: (x + y, y), donate_argnums=0)
    f(jnp.ones(4), jnp.ones(4))
    both = jnp.ones(4)
    with pytest.raises(jm.VerifyError, match="donated"):
        f(both, both)
    assert not both.is_deleted()


def test_a_new_call_of_several_devices_is_traced_outside_of_the_lock() -> None:
    mesh = jm.make_mesh((2, 4))
    started, done = threading.Event(), threading.Event()

    def slow(x: Any) -> Any:
        if x.shape == (16, 8):
            started.set()
            assert done.wait(60)
        return x * 2

    f = jm.jit(slow, mesh=mesh, in_shardings=P("y"), out_shardings=P("y"))
    # The first program is over several devices, so that later calls take the lock.
    f(jnp.ones((8, 8)))
    results: list[Any] = []
    thread = threading.Thread(target=lambda: results.append(f(jnp.ones((16, 8)))))
    thread.start()
    assert started.wait(60)
    np.testing.assert_array_equal(f(jnp.ones((8, 8))), 2 * np.ones((8, 8)))
    assert not launch._is_launching()
    done.set()
    thread.join(60)
    np.testing.assert_array_equal(results[0], 2 * np.ones((16, 8)))
