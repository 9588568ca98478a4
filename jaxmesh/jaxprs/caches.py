"""Caches that are bounded, thread-safe, and emptied by `jax.clear_caches()`.

JAX's public API lacks a hook for `clear_caches`, and a list of all settings that a trace depends on: x64, precision,
dtype promotion, random numbers, the mesh of `jax.set_mesh`. So this file uses JAX's internals.
"""

from __future__ import annotations

import collections
import functools
import operator
import threading
from collections.abc import Callable, Hashable
from typing import Any, Generic, ParamSpec, TypeVar

from jax._src import array, config, core, util
from jax._src.random import prng

V = TypeVar("V")
R = TypeVar("R")
P = ParamSpec("P")
_config: Any = config
_core: Any = core
_util: Any = util

ARRAY: type[Any] = array.ArrayImpl
"""The class of concrete arrays of numbers. An `isinstance` test of it is cheaper than of `jax.Array`, which includes
traced values and random keys."""
_placement: Callable[[Any], tuple[bool, Any]] = operator.attrgetter("_committed", "_sharding")
_KEYS: type[Any] = prng.PRNGKeyArray
_PRNG, _CUSTOM = _config.default_prng_impl, _config.enable_custom_prng


KEPT = 64
"""The entries of a dict of programs that is filled by `keep`: those of one function for different settings."""


def keep(programs: dict[Any, V], key: Hashable, make: Callable[[], V]) -> V:
    """Returns what a dict has under a key; makes it the first time, and a full dict is emptied before."""
    if (found := programs.get(key)) is not None:
        return found
    if len(programs) >= KEPT:
        programs.clear()
    return programs.setdefault(key, make())


def placement_of(x: Any) -> tuple[bool, object] | None:
    """Returns whether a concrete array is committed, and its sharding; None for anything else.

    It takes one step for an array of numbers, and none of Python's properties.
    """
    if type(x) is ARRAY:
        return _placement(x)
    return (x.committed, x.sharding) if type(x) is _KEYS else None


class Cache(Generic[V]):
    """A cache of at most `limit` values by key, which evicts the least recently used.

    >>> cache = Cache[int](2, "squares")
    >>> [cache.put(n, n * n) for n in (1, 2, 3)], cache.get(1), len(cache)
    ([1, 4, 9], None, 2)
    """

    def __init__(self, limit: int, what: str) -> None:
        self.limit = limit
        self._values: collections.OrderedDict[Hashable, V] = collections.OrderedDict()
        # Comparing keys or freeing values may run Python code that uses this cache on the same thread.
        self._lock = threading.RLock()
        _util.register_cache(self, f"jaxmesh: {what}")

    def get(self, key: Hashable) -> V | None:
        """Returns the value of a key, or None."""
        with self._lock:
            value = self._values.get(key)
            if value is not None:
                self._values.move_to_end(key)
            return value

    def put(self, key: Hashable, value: V) -> V:
        """Stores a value and returns it; if another thread has stored one before, returns that one."""
        with self._lock:
            value = self._values.setdefault(key, value)
            self._values.move_to_end(key)
            while len(self._values) > self.limit:
                self._values.popitem(last=False)
            return value

    def __len__(self) -> int:
        return len(self._values)

    def cache_clear(self) -> None:
        """Removes all values; `jax.clear_caches()` calls it."""
        with self._lock:
            self._values.clear()

    def cache_info(self) -> str:
        """Returns how many values are stored."""
        return f"{len(self)} of {self.limit}"


def is_staged() -> bool:
    """Returns True if operations are staged into an outer program; eager transformations run them at once."""
    if _config.eager_constant_folding.value:
        return False
    # Testing with an operation would add an equation to the program.
    trace = _core.trace_ctx.trace
    while type(trace).__name__ != "DynamicJaxprTrace":
        if (below := getattr(trace, "parent_trace", None)) is None:
            return not isinstance(trace, _core.EvalTrace)
        trace = below
    return True


def is_transforming() -> bool:
    """Returns True while JAX traces a function, or inside of a transformation that runs eagerly."""
    return not _core.trace_state_clean()


def is_jit_disabled() -> bool:
    """Returns True inside of `jax.disable_jit`, where functions run op by op on the values of their arguments."""
    return _config.disable_jit.value


def unkeyed_settings() -> tuple[object, bool]:
    """Returns the settings that a trace depends on and that `jax.jit`'s cache key lacks: the kind of random keys."""
    return _PRNG.value, _CUSTOM.value


def settings() -> Hashable:
    """Returns the current settings of JAX that the results of a function may depend on."""
    return _config.trace_context(), unkeyed_settings()


class _OnClear:
    """A function in the form of a cache that JAX can clear."""

    def __init__(self, clear: Callable[[], None]) -> None:
        self.cache_clear = clear

    def cache_info(self) -> str:
        return "a function"


_hooks: list[_OnClear] = []


def on_clear_caches(clear: Callable[[], None], what: str) -> None:
    """Registers a function that `jax.clear_caches()` calls, for the lifetime of the process."""
    # JAX keeps only a weak reference.
    _hooks.append(_OnClear(clear))
    _util.register_cache(_hooks[-1], f"jaxmesh: {what}")


def lru_cached(limit: int) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Caches the results of a function for its last `limit` hashable arguments, compared by value and type."""

    def wrap(function: Callable[P, R]) -> Callable[P, R]:
        cached: Any = functools.lru_cache(limit, typed=True)(function)
        _util.register_cache(cached, f"jaxmesh: {function.__name__}")
        return cached

    return wrap


def lru_cached_by_config(limit: int) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Caches as `lru_cached` does, for functions that trace, whose results also depend on JAX's settings."""

    def wrap(function: Callable[P, R]) -> Callable[P, R]:
        @functools.lru_cache(limit, typed=True)
        def cached(_: Hashable, *args: Any, **kwargs: Any) -> R:
            return function(*args, **kwargs)

        _util.register_cache(cached, f"jaxmesh: {function.__name__}")

        @functools.wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            return cached(settings(), *args, **kwargs)

        return call

    return wrap
