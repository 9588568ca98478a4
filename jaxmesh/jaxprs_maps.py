"""`jax.shard_map` without a mesh: on its first call it takes that of the context, and keeps it for ever.

A program is first traced as if it split tensors itself, in a context where all axes are manual. A function that lies
outside of the program would take that context for its mesh, and be of no use again; so it is stopped before.
"""

from __future__ import annotations

import contextlib
import contextvars
import functools
from collections.abc import Callable, Generator
from typing import Any

from jax._src import shard_map

_module: Any = shard_map
_stops: contextvars.ContextVar[bool] = contextvars.ContextVar("shard_maps without a mesh are stopped", default=False)


class NoMeshYet(Exception):
    """A `shard_map` without a mesh was called where it must not take that of the context."""


@contextlib.contextmanager
def meshless_stopped(stops: bool = True) -> Generator[None]:
    """Inside, a `jax.shard_map` that has no mesh yet raises `NoMeshYet` when it is called."""
    token = _stops.set(stops)
    try:
        yield
    finally:
        _stops.reset(token)


def _stopping(checks: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(checks)
    def checked(mesh: Any, *args: Any, **kwargs: Any) -> Any:
        if mesh is None and _stops.get():
            raise NoMeshYet("a shard_map without a mesh")
        return checks(mesh, *args, **kwargs)

    return checked


# JAX has no public place where a map learns that it has no mesh. Outside of `meshless_stopped` nothing is changed, and
# in a JAX without this function nothing is stopped.
if hasattr(_module, "_shmap_checks"):
    _module._shmap_checks = _stopping(_module._shmap_checks)
