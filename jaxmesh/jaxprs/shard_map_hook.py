"""`jax.shard_map` in a program that is first traced as if it split tensors itself, where all axes are manual.

One without a mesh takes that of the context on its first call, and keeps it for ever: a function that lies outside of
the program would be of no use again, so it is stopped before. One with a mesh refuses the context. The program may
catch either error and go on without the map, so they are also noted.
"""

from __future__ import annotations

import contextlib
import contextvars
import functools
from collections.abc import Callable, Generator
from typing import Any

from jax._src import shard_map

_module: Any = shard_map


class NoMeshYet(Exception):
    """A `shard_map` was called where it must not take the mesh of the context, or does not."""


_watched: contextvars.ContextVar[tuple[bool, list[NoMeshYet]] | None] = contextvars.ContextVar(
    "whether shard_maps without a mesh are stopped, and those that failed", default=None
)


@contextlib.contextmanager
def meshless_stopped(stops: bool = True) -> Generator[list[NoMeshYet]]:
    """Inside, if it `stops`, a `jax.shard_map` that has no mesh yet raises `NoMeshYet` when it is called.

    Gives the list of the calls that failed because of their mesh or specs, of maps that have a mesh too, whether or
    not the program catches what they raise.
    """
    refused: list[NoMeshYet] = []
    token = _watched.set((stops, refused))
    try:
        yield refused
    finally:
        _watched.reset(token)


def _stopping(checks: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(checks)
    def checked(mesh: Any, *args: Any, **kwargs: Any) -> Any:
        watched = _watched.get()
        if watched is None:
            return checks(mesh, *args, **kwargs)
        stops, refused = watched
        try:
            if mesh is None and stops:
                raise NoMeshYet("a shard_map without a mesh")
            return checks(mesh, *args, **kwargs)
        except Exception as error:
            # Another one, without the frames of this: the traced values in them would live as long as the list.
            refused.append(NoMeshYet(str(error)))
            raise

    return checked


# JAX has no public place where a map learns that it has no mesh. Outside of `meshless_stopped` nothing is changed, and
# in a JAX without this function nothing is stopped, nor noted.
if hasattr(_module, "_shmap_checks"):
    _module._shmap_checks = _stopping(_module._shmap_checks)
