"""Claims of replication that no type proves, and the switch that checks them at run time.

A program claims that copies are equal where it reads one device for several although the value's type varies over them:
`assume_replicated`, a composer that drops an axis, a presharded argument declared equal. With the switch on, every such
claim is checked whenever it is used: all copies are compared bit for bit. So NaNs with equal bits are equal, and 0.0
and -0.0 differ.

The switch is the keyword `check_replication`; without it, the innermost block `with check_replication():`; without one,
the environment variable `JAXMESH_CHECK_REPLICATION`, `1` or `0`. This module alone reads it.
"""

from __future__ import annotations

import contextlib
import contextvars
import functools
import logging
import os
import sys
import threading
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np

from jaxmesh.errors import ArgumentTypeError, ReplicationError
from jaxmesh.jaxprs.tracing_state import set_within

VARIABLE = "JAXMESH_CHECK_REPLICATION"
_VALUES = {"": False, "0": False, "1": True}
_log = logging.getLogger("jaxmesh")
_switch: contextvars.ContextVar[bool | None] = contextvars.ContextVar("whether replication is checked", default=None)
innermost_block: Callable[[], bool | None] = _switch.get
"""Returns what the innermost block says; None outside of blocks."""
Coordinate = tuple[int, ...]


def is_enabled(choice: bool | None = None) -> bool:
    """Returns True if claims are checked: the choice, or the current default.

    Raises:
      ArgumentTypeError: the choice is not a bool, or the environment variable has another value than 0 or 1.
    """
    if choice is not None:
        if not isinstance(choice, bool):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ArgumentTypeError(f"check_replication is True, False or None (the default), got {choice!r}.")
        return choice
    return _of_environment() if (inner := _switch.get()) is None else inner


@functools.cache
def _of_environment() -> bool:
    value = os.environ.get(VARIABLE, "")
    if value not in _VALUES:
        raise ArgumentTypeError(f"the environment variable {VARIABLE} is 1 or 0, got {value!r}.")
    return _VALUES[value]


@dataclass(frozen=True, slots=True)
class Difference:
    """Two copies that differ: their coordinates, their values, and the claim that they are equal.

    `coordinate` is the first, row-major over the mesh, whose value differs from the copy that is read, at `other`.
    `index` is the first such element of the tensor, without the dims that vmap added; its position in them is `mapped`.
    Both values have the tensor's dtype; for random keys they are the key's words.
    """

    claim: Claim
    coordinate: Coordinate
    other: Coordinate
    index: tuple[int, ...]
    value: Any
    expected: Any
    mapped: tuple[int, ...] = ()
    tangent: bool = False

    def __str__(self) -> str:
        mesh = ", ".join(f"{a}={n}" for a, n in self.claim.mesh.items())
        axes = ", ".join(map(repr, self.claim.axes))
        what = f"the derivative of {self.claim.what}" if self.tangent else self.claim.what
        mapped = f" (element {list(self.mapped)} of jax.vmap)" if self.mapped else ""
        return (
            f"{self.claim.line}: {what} is taken to be the same along mesh axis {axes}, but its copies differ, first "
            f"at mesh coordinate {list(self.coordinate)} ({mesh}), index {list(self.index)}{mapped}: "
            f"{_show(self.value)} there, {_show(self.expected)} at {list(self.other)}, which is read. Reduce "
            "or gather over the axis (was a psum forgotten?), or aggregate it."
        )


def _show(value: object) -> str:
    """Returns a value as text; for floats with its bits, because different values may print alike."""
    array = np.asarray(value)
    if array.ndim or array.dtype.kind in "biu":
        return str(array.tolist())
    bits = array.tobytes()[::-1] if sys.byteorder == "little" else array.tobytes()
    return f"{array} (bits 0x{bits.hex()})"


@dataclass(frozen=True, slots=True, eq=False)
class Claim:
    """One use of a value that assumes it is equal on several devices.

    `what` names the value and its type, `line` its source location, `axes` the mesh axes along which it is claimed
    equal. `limits` gives for some axes the number of coordinates that are read at all. `shape` is the shape of the
    value if a reshaped form of it is compared.
    """

    number: int
    line: str
    what: str
    mesh: Mapping[str, int]
    axes: tuple[str, ...]
    limits: tuple[tuple[str, int], ...] = ()
    shape: tuple[int, ...] | None = None
    collector: Collector | None = None

    def coordinates(self, number: int) -> tuple[Coordinate, Coordinate]:
        """Returns the coordinates of the device with a row-major number, and of the copy that is read for it."""
        found = tuple(int(i) for i in np.unravel_index(number, tuple(self.mesh.values())))
        return found, tuple(0 if a in self.axes else i for a, i in zip(self.mesh, found, strict=True))

    def index_in_value(self, index: Coordinate, shape: tuple[int, ...]) -> Coordinate:
        """Returns the index in the claim's value of an element of the compared form."""
        if self.shape is None or self.shape == shape:
            return index
        return tuple(int(i) for i in np.unravel_index(int(np.ravel_multi_index(index, shape)), self.shape))

    def __repr__(self) -> str:
        return f"Claim({self.what} over {self.axes})"


def error(differences: Sequence[Difference]) -> ReplicationError:
    """Returns the error for differences; its message describes the first one in full."""
    first = min(differences, key=lambda d: d.claim.number)
    lines = list(dict.fromkeys(d.claim.line for d in differences if d.claim.number != first.claim.number))
    more = f" Copies also differ at: {'; '.join(lines)}." if lines else ""
    found = ReplicationError(f"{first}{more}")
    found.difference = first
    return found


@dataclass(slots=True)
class Collector:
    """Collects the differences of one function's runs; outside of `listening` they become pending.

    Per claim only the first difference is stored: in a loop, the difference of the earliest iteration.
    """

    _found: dict[int, Difference] = field(default_factory=dict[int, Difference])
    _listening: bool = False
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, difference: Difference) -> None:
        """Adds a difference; called from the threads that run the devices."""
        with self._lock:
            if self._listening:
                self._found.setdefault(difference.claim.number, difference)
                return
        pend(difference)

    @contextlib.contextmanager
    def listening(self) -> Generator[list[Difference]]:
        """Collects inside the block, and waits at its end for the devices; then the list is complete."""
        found: list[Difference] = []
        with self._lock:
            self._found.clear()
            self._listening = True
        try:
            yield found
            jax.effects_barrier()
        finally:
            with self._lock:
                self._listening = False
                found.extend(self._found.values())


_pending: dict[tuple[int, int], Difference] = {}
_MOST_PENDING = 1000
"""The number of differences that a block raises; later ones are only logged."""
_pending_lock = threading.Lock()


def pend(difference: Difference) -> None:
    """Stores a difference that no call waits for, and logs it as an error."""
    key = id(difference.claim), difference.claim.number
    with _pending_lock:
        new = key not in _pending
        if new and len(_pending) < _MOST_PENDING:
            _pending[key] = difference
    if new:
        _log.error("%s", difference)


@contextlib.contextmanager
def check_replication(enabled: bool = True) -> Generator[None]:
    """Sets the run-time check of replication claims on or off, in this thread.

    Calls of functions of `jaxmesh.jit` and `jaxmesh.shard_map(check_vma=False)`, compiled programs and the eager
    `jaxmesh.ttnn` raise at once. Programs that run later (inside an outer `jax.jit`, in a backward pass) cannot raise
    from a device: a difference is logged as an error, and raised here when the block ends without another error.
    All processes raise the same error. XLA may round differently in a program with checks. Programs that an outer
    `jax.jit` has traced do not change. Functions that TTIR cannot express, and JAX runs, are not checked inside
    `jaxmesh.jit`.

    Args:
      enabled: whether to check.

    Raises:
      ReplicationError: at the end of the block, if copies differed for which no call has waited.

    >>> import jax, jax.numpy as jnp, jaxmesh as jm
    >>> from jax.sharding import PartitionSpec as P
    >>> @jm.jit(mesh=jm.make_mesh((2, 4)))
    ... def rows(x):
    ...     return jm.shard_to_full(jm.full_to_shard(x, P("y", "x")), P("y"), assume_replicated=True)
    >>> with jm.check_replication():
    ...     rows(jnp.zeros((2, 4))).shape
    (2, 1)
    """
    choice = is_enabled(enabled)
    with set_within(_switch, choice):
        yield
    if choice:
        jax.effects_barrier()
        with _pending_lock:
            found = list(_pending.values())
            _pending.clear()
        if found:
            raise error(found)
