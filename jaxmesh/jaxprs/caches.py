"""Caches that are bounded, safe to share between threads, and emptied by `jax.clear_caches()`.

JAX has no public way to hear of `clear_caches`, nor to name all settings that a trace depends on (x64, precision,
dtype promotion, random numbers, the mesh of `jax.set_mesh`); so this file reaches into its internals, as `jaxprs.py`.
What JAX's own dispatch asks of every call is here too.
"""

from __future__ import annotations

import collections
import functools
import threading
from collections.abc import Callable, Hashable
from typing import Any, Generic, ParamSpec, TypeVar

from jax._src import array, config, core, util

V = TypeVar("V")
R = TypeVar("R")
P = ParamSpec("P")
_config: Any = config
_core: Any = core
_util: Any = util

ARRAY: type[Any] = array.ArrayImpl
"""The class of arrays of numbers that are there: to ask for it is cheaper than for `jax.Array`, which traced values and
random keys are too."""


class Cache(Generic[V]):
    """At most `limit` values by key; the one that was not used for longest goes first.

    >>> held = Cache[int](2, "squares")
    >>> [held.put(n, n * n) for n in (1, 2, 3)], held.get(1), len(held)
    ([1, 4, 9], None, 2)
    """

    def __init__(self, limit: int, what: str) -> None:
        self.limit = limit
        self._held: collections.OrderedDict[Hashable, V] = collections.OrderedDict()
        # What is compared or freed inside may be Python code, which may come back here on the same thread.
        self._lock = threading.RLock()
        _util.register_cache(self, f"jaxmesh: {what}")

    def get(self, key: Hashable) -> V | None:
        """The value of a key, or None."""
        with self._lock:
            found = self._held.get(key)
            if found is not None:
                self._held.move_to_end(key)
            return found

    def put(self, key: Hashable, value: V) -> V:
        """Keeps a value; where another thread was first, its value is kept and given."""
        with self._lock:
            value = self._held.setdefault(key, value)
            self._held.move_to_end(key)
            while len(self._held) > self.limit:
                self._held.popitem(last=False)
            return value

    def __len__(self) -> int:
        return len(self._held)

    def cache_clear(self) -> None:
        """Forgets everything; `jax.clear_caches()` calls it."""
        with self._lock:
            self._held.clear()

    def cache_info(self) -> str:
        """How full it is."""
        return f"{len(self)} of {self.limit}"


def is_staged() -> bool:
    """Whether what is called here runs later, as a part of an outer program; eager transformations run it at once."""
    if _config.eager_constant_folding.value:
        return False
    # Looked up, and not found out by an operation, which would be an equation of the program.
    trace: Any = _core.trace_ctx.trace
    while type(trace).__name__ != "DynamicJaxprTrace":
        if (below := getattr(trace, "parent_trace", None)) is None:
            return not isinstance(trace, _core.EvalTrace)
        trace = below
    return True


def unkeyed() -> Hashable:
    """Those of JAX's settings that a trace depends on and `jax.jit` does not look up by: the kind of random keys."""
    return _config.default_prng_impl.value, _config.enable_custom_prng.value


def settings() -> Hashable:
    """JAX's settings of here and now, as far as what a function gives depends on them."""
    return _config.trace_context(), unkeyed()


def forget_dispatch(function: Any) -> None:
    """Has a function made by `jax.jit` look up its programs again, which stay traced and compiled.

    JAX remembers of a call that raised an error to go through Python ever after, twice as slow as its own dispatch.
    """
    clear = getattr(function, "_clear_cache", None)
    if clear is not None:
        clear()


class _OnClear:
    """Something that looks like a cache to JAX."""

    def __init__(self, clear: Callable[[], None]) -> None:
        self.cache_clear = clear

    def cache_info(self) -> str:
        return "a function"


_hooks: list[_OnClear] = []


def on_clear_caches(clear: Callable[[], None], what: str) -> None:
    """Has `jax.clear_caches()` call a function, as long as the process lives."""
    # JAX holds what is registered weakly.
    _hooks.append(_OnClear(clear))
    _util.register_cache(_hooks[-1], f"jaxmesh: {what}")


def lru_cached(limit: int) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Keeps what a function of hashable arguments gives for the last `limit` of them, told apart by value and type."""

    def wrap(function: Callable[P, R]) -> Callable[P, R]:
        held: Any = functools.lru_cache(limit, typed=True)(function)
        _util.register_cache(held, f"jaxmesh: {function.__name__}")
        return held

    return wrap


def lru_cached_by_config(limit: int) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """As `kept`, for functions that trace: what they give also depends on JAX's settings of here and now."""

    def wrap(function: Callable[P, R]) -> Callable[P, R]:
        @functools.lru_cache(limit, typed=True)
        def held(_: Hashable, *args: Any, **kwargs: Any) -> R:
            return function(*args, **kwargs)

        _util.register_cache(held, f"jaxmesh: {function.__name__}")

        @functools.wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            return held(settings(), *args, **kwargs)

        return call

    return wrap
