"""JAX's dispatch of known calls, which is in C++: it looks programs up by all that `jax.jit` looks them up by.

JAX publishes no way to put a check in front of it, so this file uses its internals.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from jax._src import lib, tree_util
from jax._src.interpreters import pxla

from jaxmesh.jaxprs.caches import on_clear_caches

_lib: Any = lib
_rows: Any = pxla
_trees: Any = tree_util
_programs: Any = _lib._jax.PjitFunctionCache(8192)
forget_known: Callable[[], None] = _programs.clear
"""Makes the next call of every function a new one."""
on_clear_caches(forget_known, "programs of known calls")


def dispatched(
    new: Callable[..., Any], name: str, argnums: Sequence[int] = (), argnames: Sequence[str] = ()
) -> Callable[..., object]:
    """Returns a function that runs the programs of known calls at once.

    `new(*args, **kwargs)` is called if types, trees, placements, static arguments or settings are new. It returns the
    call's results, and what `run_new` returned for the same arguments, or None: then it is called again the next time.
    """

    def miss(*args: object, **kwargs: Any) -> tuple[object, object, bool]:
        return *new(*args, **kwargs), False

    def without_jit(*args: Any, **kwargs: Any) -> object:
        return new(*args, **kwargs)[0]

    about = tuple(argnums), tuple(argnames), (), _trees.dispatch_registry, _rows.cc_shard_arg, _programs
    return _lib._jax.pjit(name, without_jit, miss, *about)


def run_new(jitted: Any, args: Sequence[object], kwargs: Mapping[str, object]) -> tuple[object, object]:
    """Runs a function of `jax.jit`, or a compiled one; returns its results, and how its program is run again.

    The second is None if a program has effects, which JAX's dispatch does not take.
    """
    if (miss := getattr(jitted, "_cache_miss", None)) is None:
        return jitted(*args, **kwargs), None
    out, known, is_rebuilt = miss(*args, **kwargs)
    return out, None if is_rebuilt else known


def call_of(compiled: Any) -> Callable[..., object]:
    """Returns the function that runs a `jax.stages.Compiled`."""
    return compiled._executable.create_cpp_call(compiled._params) or compiled


def device_count(known: Any) -> int:
    """Returns the number of devices of a program that `run_new` returned."""
    return len(known.xla_executable.local_devices())
