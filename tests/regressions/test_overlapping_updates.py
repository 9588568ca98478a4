"""Updates of what they are read from: XLA's CPU client writes some of them in place before they are read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import NamedSharding, PartitionSpec as P

import jaxmesh as jm
from jaxmesh.jaxprs.xla_faults import keep_views_apart

MESH = jm.make_mesh((2, 4), ("y", "x"))

# Each writes rows of a stack over rows that may overlap them; `read` and `written` are where they begin.
UPDATES: dict[str, Callable[[Any, int, int], Any]] = {
    "slice": lambda y, read, written: lax.dynamic_update_slice(y, y[read : read + 3], (written, 0)),
    "computed": lambda y, read, written: lax.dynamic_update_slice(y * 2, (y * 2)[read : read + 3], (written, 0)),
    "set": lambda y, read, written: y.at[written : written + 3].set(y[read : read + 3]),
    "add": lambda y, read, written: y.at[written : written + 3].add(y[read : read + 3]),
    "call": lambda y, read, written: jax.jit(lax.dynamic_update_slice)(y, y[read : read + 3], (written, 0)),
    "loop": lambda y, read, written: lax.fori_loop(
        0, 2, lambda _, c: lax.dynamic_update_slice(c, c[read : read + 3], (written, 0)), y
    ),
}


def in_numpy(name: str, y: Any, read: int, written: int) -> Any:
    y = y * 2 if name == "computed" else y
    for _ in range(2 if name == "loop" else 1):
        rows = y[read : read + 3].copy()
        y = y.copy()
        y[written : written + 3] = rows + y[written : written + 3] if name == "add" else rows
    return y


VIEWS: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {
    "none": (lambda x: x, lambda y: y),
    "before": (lambda x: x.reshape(8, 8), lambda y: y),
    "after": (lambda x: x, lambda y: y.reshape(8, 8, 1)),
    "around": (lambda x: x.reshape(4, 16).reshape(8, 8), lambda y: y[None]),
}


@pytest.mark.slow(but_one_in=6)
@pytest.mark.usefixtures("as_for_users")
@pytest.mark.filterwarnings("ignore::jaxmesh.errors.ReplicatedProgramWarning")
@pytest.mark.parametrize("spec", [P(), P(None, "y"), P("x")], ids=str)
@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("name", UPDATES)
def test_an_update_is_read_before_it_is_written(name: str, view: str, spec: P) -> None:
    enter, leave = VIEWS[view]
    y = np.arange(64, dtype=np.float32).reshape(8, 8)
    x = y[..., None] if view in ("before", "around") else y
    spec = spec if x.ndim == 2 or not spec else P(*spec, *[None] * (3 - len(spec)))
    for read, written in [(0, 1), (2, 1), (1, 3), (4, 4)]:

        def f(x: Any, read: int = read, written: int = written) -> Any:
            return leave(UPDATES[name](enter(x), read, written))

        want = np.reshape(in_numpy(name, y, read, written), jax.eval_shape(f, x).shape)
        placed = jax.device_put(x, NamedSharding(MESH, spec))
        jitted = jm.jit(f, mesh=MESH, in_shardings=spec)
        lowered = jm.jit(f).trace(placed).lower()
        for got in (jitted(x), lowered.compile()(placed), lowered.reference(placed)):
            np.testing.assert_array_equal(np.asarray(got), want)


def test_an_update_that_reads_nothing_of_its_stack_has_no_barrier() -> None:
    def barriers(f: Any, *args: Any) -> int:
        eqns = keep_views_apart(jax.make_jaxpr(f)(*args).eqns)
        return [e.primitive.name for e in eqns].count("optimization_barrier")

    def write(cache: Any, x: Any) -> Any:
        return lax.dynamic_update_slice(cache.reshape(8, 8), x * 2, (1, 0)).reshape(4, 16)

    cache, x = jnp.zeros((8, 8, 1)), jnp.ones((2, 8))
    assert barriers(write, cache, x) == 0
    # The argument, its two views, and the result.
    assert barriers(lambda cache: write(cache, cache.reshape(8, 8)[:2]), cache) == 4
