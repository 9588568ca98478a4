"""The launch lock: compiled programs are launched by one thread at a time.

A program over several devices waits inside its collectives until every device arrives. XLA's CPU client starts the
programs of one thread in order, but not those of two: each may then occupy some of the threads that emulate devices and
wait for the others, a deadlock (XLA ends the process after a minute). So jaxmesh launches under one lock, and a thread
first waits until the programs that other threads launched are done. One thread alone never waits.

Programs that JAX launches itself (`jax.jit` around such a function, a backward pass, operations on results on several
devices) do not take the lock; several threads that launch them can deadlock as in JAX without jaxmesh.
"""

from __future__ import annotations

import collections
import contextlib
import operator
import os
import threading
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any, ParamSpec, TypeVar, cast

import jax
from jax.core import Tracer

from jaxmesh.errors import ForkError
from jaxmesh.jaxprs.backend import has_lost_devices
from jaxmesh.jaxprs.caches import (
    ARRAY,
    is_jit_disabled,
    is_staged,
    is_transforming,
    on_clear_caches,
)
from jaxmesh.jaxprs.dispatch import device_count, dispatched, forget_known, run_new
from jaxmesh.runtime.array_views import check_alive
from jaxmesh.runtime.progress import progress

P = ParamSpec("P")
R = TypeVar("R")
_leaves = jax.tree.leaves


MOST_RUNNING = 24
"""The number of programs that may be running. XLA takes 32 per device; one more blocks the thread that starts it. All
threads may be blocked so, while a running program waits in a collective for its part on a device not yet started."""


class _Thread(threading.local):
    """The identity of a thread: the system reuses its numbers."""

    def __init__(self) -> None:
        self.name = object()


class _Started:
    """The programs that may be running, all launched by one thread; changed under the lock only."""

    __slots__ = ("by", "depth", "lock", "results")

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.by: object = None
        self.results: collections.deque[Any] = collections.deque()
        # The number of nested launches.
        self.depth = 0


_here = _Thread()
_started = _Started()


def launch(run: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    """Returns what `run`, a function that starts compiled programs, returns; other threads launch before or after.

    Raises:
      ForkError: the process was forked from one that had devices.
    """
    # A part of an outer program is not launched. It is traced while JAX holds its own locks: to wait here for a thread
    # that waits for those would be a deadlock.
    if is_staged():
        return run(*args, **kwargs)
    check_process()
    started = _started
    with started.lock:
        if started.by is not _here.name:
            _wait_for_others()
        depth = started.depth
        # After `by`: readers without the lock read them in the other order.
        started.depth = depth + 1
        try:
            out = run(*args, **kwargs)
            _note(out)
            return out
        finally:
            started.depth = depth


def launch_traced(jitted: Any, *args: object, **kwargs: object) -> Any:
    """Launches a function of the user's, which `jax.jit` or `jax.shard_map` made.

    It is traced before, outside of the lock: the user's Python may wait for other threads.
    """
    if is_staged() or is_jit_disabled():
        # With `jax.disable_jit` nothing is compiled: the function runs op by op on values.
        return jitted(*args, **kwargs)
    check_process()
    with progress(f"call of {_name(jitted)}"):
        # A function of `jax.shard_map` is traced as it runs.
        if isinstance(cast("object", jitted), jax.stages.Wrapped):
            jitted.trace(*args, **kwargs)
        return launch(jitted, *args, **kwargs)


def launch_new(jitted: Any, args: Sequence[object], kwargs: Mapping[str, Any], keeps: bool) -> tuple[object, object]:
    """Launches as `launch_traced`; returns the results, and how `Dispatch` runs the program again, if it is kept."""
    if not keeps or is_transforming() or is_jit_disabled():
        return launch_traced(jitted, *args, **kwargs), None
    check_process()
    with progress(f"first call of {_name(jitted)}"):
        jitted.trace(*args, **kwargs)
        return launch_known(jitted, args, kwargs)


def launch_known(run: Any, args: Sequence[object], kwargs: Mapping[str, object]) -> tuple[object, object]:
    """Launches a compiled program, or a function of `jax.jit` that was traced; returns what `run_new` does."""
    known: object = None

    def start() -> object:
        nonlocal known
        out, known = run_new(run, args, kwargs)
        return out

    return launch(start), known


def _name(jitted: object) -> str:
    return getattr(jitted, "__name__", "function")


class Dispatch:
    """A function whose known calls are JAX's alone: types, trees, placements, statics and settings were met before.

    `new(*args, **kwargs)` runs the others, and returns what `launch_new` returns. Only programs over several devices
    are launched under the lock: the others wait for nothing.
    """

    __slots__ = ("_new", "alone", "known")

    def __init__(
        self, new: Callable[..., tuple[Any, Any]], name: str, argnums: Sequence[int] = (), argnames: Sequence[str] = ()
    ) -> None:
        self.alone, self._new = True, new
        self.known = dispatched(self._run_new, name, argnums, argnames)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Calls the function."""
        if self.alone:
            return self.known(*args, **kwargs)
        for x in _leaves((args, kwargs)):
            # On several devices, XLA ends the process.
            if type(x) is ARRAY and x.is_deleted():
                check_alive(x, "an argument")
        return launch(self.known, *args, **kwargs)

    def _run_new(self, *args: object, **kwargs: object) -> tuple[object, object]:
        with _outside_of_launch():
            out, known = self._new(*args, **kwargs)
        if known is not None and device_count(known) > 1:
            self.alone = False
        return out, known


@contextlib.contextmanager
def _outside_of_launch() -> Generator[None]:
    """Leaves the lock inside of its body, if this thread holds it for one launch."""
    started = _started
    if not _is_launching() or started.depth > 1:
        yield
        return
    started.depth = 0
    started.lock.release()
    try:
        yield
    finally:
        started.lock.acquire()
        if started.by is not _here.name:
            _wait_for_others()
        started.depth = 1


def _is_launching() -> bool:
    """Returns True if this thread is launching a function."""
    return _started.depth > 0 and _started.by is _here.name


def check_process() -> None:
    """Checks that this process was not forked from one in which JAX had started its devices."""
    if has_lost_devices():
        raise ForkError(
            f"process {os.getpid()} was forked from one in which JAX had started its devices; the threads that run "
            "them were not forked, so a program would deadlock. Start processes with multiprocessing's method "
            "'spawn', or fork before anything runs on JAX."
        )


def _wait_for_others() -> None:
    while _started.results:
        # An error is raised where the result is read.
        with contextlib.suppress(Exception):
            _started.results[0].block_until_ready()
        _started.results.popleft()
    _started.by = _here.name


def _note(out: Any) -> None:
    """Stores one result, the smallest: it is ready when the program is done on every device.

    The next launch asks whether it is ready, when the devices are idle: asking at once takes longer than it.
    """
    results = _started.results
    while results and _is_done(results[0]):
        results.popleft()
    smallest = out
    if type(out) is not ARRAY:
        arrays = [x for x in _leaves(out) if isinstance(x, jax.Array) and not isinstance(x, Tracer)]
        smallest = min(arrays, key=operator.attrgetter("size"), default=None)
    if smallest is not None:
        results.append(smallest)
    if len(results) > MOST_RUNNING:
        with contextlib.suppress(Exception):
            results.popleft().block_until_ready()


def forget() -> None:
    """Frees the results of programs that are done; otherwise the last one is stored until the next launch."""
    with _started.lock:
        while _started.results and _is_done(_started.results[0]):
            _started.results.popleft()


def _is_done(x: Any) -> bool:
    try:
        return x.is_deleted() or x.is_ready()
    except Exception:
        return True


def _after_fork() -> None:
    """Resets the state in the new process, because another thread may have held the lock."""
    global _started
    _started = _Started()
    forget_known()


os.register_at_fork(after_in_child=_after_fork)
on_clear_caches(forget, "results of programs that may be running")
