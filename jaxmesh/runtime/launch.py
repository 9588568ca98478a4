"""Starting compiled programs from several threads.

A program over several devices waits inside its collectives until every device has come there. XLA's CPU client starts
the programs of one thread in order, but not those of two: each may then hold some of the threads that stand for the
devices and wait for the others, for ever (XLA ends the process after a minute). So whatever jaxmesh starts, it starts
under one lock, and a thread first waits until what other threads have started is done. One thread alone never waits.

What JAX starts by itself (`jax.jit` around such a function, a backward pass, operations on results that lie on several
devices) does not come through here, and several threads that do it can hang as in JAX without jaxmesh.
"""

from __future__ import annotations

import collections
import contextlib
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ParamSpec, TypeVar

import jax
from jax.core import Tracer

from jaxmesh.errors import ForkError
from jaxmesh.jaxprs.caches import ARRAY, forget_dispatch, is_staged, on_clear_caches
from jaxmesh.jaxprs.compat import backend_started

P = ParamSpec("P")
R = TypeVar("R")
_leaves: Any = jax.tree.leaves


MOST_RUNNING = 24
"""How many programs may be running. XLA takes 32 for each device; one more blocks the thread that starts it, and the
threads blocked so may be all there are, while a program that runs waits in a collective for its part on another device
to be started."""


class _Untraced(Exception):
    """A function that is to be started has not been traced yet."""


class _Thread(threading.local):
    """The name of a thread: the system uses its numbers again."""

    def __init__(self) -> None:
        self.name = object()


class _Started:
    """What was started and may be running, all of it by one thread; changed under the lock only."""

    __slots__ = ("by", "depth", "forked", "lock", "results", "traces")

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.by: object = None
        self.results: collections.deque[Any] = collections.deque()
        self.forked = False
        # How many functions are being started, one inside the other, and whether the innermost may be traced now.
        self.depth, self.traces = 0, False


_here = _Thread()
_started = _Started()


def launch(run: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    """What `run` gives: a function that starts compiled programs. Other threads start theirs before or after.

    A function made by `jax.jit` is traced outside of the lock: the user's Python may wait for other threads.

    Raises:
      ForkError: the process was forked from one that had devices.
    """
    # A part of an outer program is started by nobody. It is traced while JAX holds locks of its own, under which to
    # wait for a thread that waits for those would be for ever.
    if is_staged():
        return run(*args, **kwargs)
    if _started.forked:
        check_process()
    try:
        return _started_now(run, False, args, kwargs)
    except _Untraced:
        if _holds():
            raise
    function: Any = run
    function.trace(*args, **kwargs)
    forget_dispatch(function)
    return _started_now(run, True, args, kwargs)


def _started_now(run: Callable[..., R], traces: bool, args: Sequence[Any], kwargs: Mapping[str, Any]) -> R:
    started = _started
    with started.lock:
        if started.by is not _here.name:
            _wait_for_others()
        depth, before = started.depth, started.traces
        # After `by`: who reads both, without the lock, reads them the other way round.
        started.depth, started.traces = depth + 1, traces
        try:
            out = run(*args, **kwargs)
            _note(out)
            return out
        finally:
            started.depth, started.traces = depth, before


def _holds() -> bool:
    """Whether this thread is starting a function."""
    return _started.depth > 0 and _started.by is _here.name


def before_tracing() -> None:
    """To be called where a user's function is about to be traced: never under the lock, if it can be avoided."""
    if _holds() and not _started.traces:
        raise _Untraced("a function is traced before it is started")


def check_process() -> None:
    """Checks that this process has devices that work.

    Raises:
      ForkError: it was forked from one in which JAX had started them.
    """
    if _started.forked:
        raise ForkError(
            f"process {os.getpid()} was forked from one in which JAX had started its devices; the threads that run "
            "them were not forked, so a program would wait for ever. Start processes with multiprocessing's method "
            "'spawn', or fork before anything runs on JAX."
        )


def _wait_for_others() -> None:
    while _started.results:
        # An error is told to who reads the result.
        with contextlib.suppress(Exception):
            _started.results[0].block_until_ready()
        _started.results.popleft()
    _started.by = _here.name


def _note(out: Any) -> None:
    """Remembers one result, the smallest: it is there when the program is done on every device.

    Whether that is so already is asked at the next start, when the devices are not busy: to ask them now takes longer
    than all else that is done here.
    """
    results = _started.results
    while results and _is_done(results[0]):
        results.popleft()
    smallest = out if type(out) is ARRAY else _smallest(out)
    if smallest is not None:
        results.append(smallest)
    if len(results) > MOST_RUNNING:
        with contextlib.suppress(Exception):
            results.popleft().block_until_ready()


def _smallest(out: Any) -> Any:
    arrays = [x for x in _leaves(out) if isinstance(x, jax.Array) and not isinstance(x, Tracer)]
    return min(arrays, key=_size, default=None)


def _size(x: Any) -> int:
    return x.size


def forget() -> None:
    """Lets go of the results of programs that are done; without it that of the last one is kept until the next."""
    with _started.lock:
        while _started.results and _is_done(_started.results[0]):
            _started.results.popleft()


def _is_done(x: Any) -> bool:
    try:
        return x.is_deleted() or x.is_ready()
    except Exception:
        return True


def detect_forks() -> None:
    """Registers the check for forks of a process that has devices; `import jaxmesh` calls it once."""
    os.register_at_fork(after_in_child=_after_fork)


def _after_fork() -> None:
    """Resets the state in the new process, because another thread may have held the lock."""
    global _started
    forked = _started.forked or backend_started()
    _started = _Started()
    _started.forked = forked


on_clear_caches(forget, "results of programs that may be running")
