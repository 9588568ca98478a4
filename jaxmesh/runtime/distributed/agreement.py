"""Several processes: checks that all launch the same programs, in the same order, on the same arguments.

Different programs would deadlock in their collectives, or send each process wrong data. At the first launch of a
program, each process publishes its digest and reads the digests that are already published. No process waits for
others: the last process finds the difference, and its error ends the others, too.
"""

from __future__ import annotations

import contextlib
import contextvars
import dataclasses
import enum
import functools
import hashlib
import threading
from collections import Counter
from collections.abc import Generator, Mapping, Sequence
from typing import Any, cast

import jax
import numpy as np
from jax.core import Tracer
from jax.sharding import Mesh

from jaxmesh.dialects.ttnn.transfers import PRIMITIVES
from jaxmesh.errors import ProcessMismatchError
from jaxmesh.jaxprs import compat, source_locations, walk
from jaxmesh.jaxprs.backend import is_multi_process, publish_and_read
from jaxmesh.jaxprs.caches import is_staged
from jaxmesh.jaxprs.compat import Atom, Eqn, Jaxpr
from jaxmesh.jaxprs.primitives import COLLECTIVES
from jaxmesh.jaxprs.tracing_state import set_within
from jaxmesh.jaxprs.trees import show_path
from jaxmesh.jaxprs.typed import typed
from jaxmesh.jaxprs.untyped import Device
from jaxmesh.runtime.distributed.collectives import agree, digest

_MOVES = COLLECTIVES.keys() | {p.name for p in PRIMITIVES}
_SUMMARY_BYTES = 1 << 13
_AT = ", at "
_DIGEST = 16
_COMPARED_BYTES = 1 << 24
"""The limit of bytes that are compared of a constant; larger constants are compared in evenly spaced elements."""


@dataclasses.dataclass
class _Launch:
    """A launch: its devices, the participating processes, and its sequence number among their launches."""

    devices: tuple[Device, ...]
    members: tuple[int, ...]
    number: int
    published: bool = False


_starts: Counter[tuple[int, ...]] = Counter()
_start: contextvars.ContextVar[_Launch | None] = contextvars.ContextVar("the program being launched", default=None)


@contextlib.contextmanager
def synchronised_launch(mesh: object) -> Generator[bool]:
    """Counts the block as one launch; yields True if its devices belong to several processes.

    Skips parts of an outer program, which run later, and launches of any thread but the main thread,
    whose order is undefined. The mesh defaults to the mesh of `jax.set_mesh`.
    """
    start = _starting(mesh) if is_multi_process() else None
    if start is None:
        yield False
        return
    # Other failures do not count, so an error that only one process catches does not shift sequence numbers.
    try:
        with set_within(_start, start):
            yield True
        _starts[start.members] += 1
    except ProcessMismatchError:
        _starts[start.members] += 1
        raise


def _starting(mesh: object) -> _Launch | None:
    devices = compat.context_devices() if mesh is None else None
    if isinstance(mesh, Mesh):
        every = mesh.devices.flat
        devices = tuple(every)
    if not devices or is_staged() or threading.current_thread() is not threading.main_thread():
        return None
    members = _members(devices)
    if len(members) == 1 or typed.process_index() not in members:
        return None
    return _Launch(devices, members, _starts[members])


@functools.lru_cache(maxsize=64)
def _members(devices: tuple[Device, ...]) -> tuple[int, ...]:
    return tuple(sorted({d.process_index for d in devices}))


def compare_program(name: str, program: Jaxpr, sizes: Mapping[str, int]) -> None:
    """Compares a lowered program at its launch with the programs that the other processes launch.

    Raises:
      ProcessMismatchError: a process has launched a different program; the message has the first move that differs.
    """
    start = _start.get()
    if start is None or start.published:
        return
    start.published = True
    whole = repr((list(sizes.items()), [d.id for d in start.devices])).encode() + _Digester().jaxpr(program)
    moves = [_move(e) for e in walk.all_eqns(program) if e.primitive.name in _MOVES]
    types = ", ".join(map(compat.describe, program.in_avals))
    summary = "\n".join([f"{name}({types})", *moves]).encode()[:_SUMMARY_BYTES]
    me = typed.process_index()
    message = hashlib.blake2b(whole, digest_size=_DIGEST).digest() + summary
    messages = publish_and_read(message, f"program {start.number}", me, start.members)
    other = next((p for p in sorted(messages) if messages[p][:_DIGEST] != message[:_DIGEST]), None)
    if other is None:
        return
    theirs = messages[other][_DIGEST:].decode(errors="replace").split("\n")
    difference = _describe_difference(me, summary.decode(errors="replace").split("\n"), other, theirs)
    raise ProcessMismatchError(
        f"program {start.number} of the processes {list(start.members)} must be the same in each, but {difference}; "
        "every process must run the same programs, with the same constants, in the same order. Derive constants "
        "from values that all processes know, and pass data as arguments."
    )


def _describe_difference(me: int, mine: Sequence[str], other: int, theirs: Sequence[str]) -> str:
    """Describes the first difference of two programs."""
    if mine[0] != theirs[0]:
        return f"process {me} starts {mine[0]}, and process {other} {theirs[0]}"
    for a, b in zip([*mine[1:], "no more movements"], [*theirs[1:], "no more movements"], strict=False):
        if a.partition(_AT)[0] != b.partition(_AT)[0]:
            return f"in {mine[0]} process {me} has {a}, where process {other} has {b}"
    return f"{mine[0]} differs in equations or constants between process {me} and process {other}"


def _move(eqn: Eqn) -> str:
    axes = eqn.params.get("axes", eqn.params.get("axis_name"))
    over = "" if axes is None else f" over {axes}"
    operand, result = compat.describe(eqn.invars[0].aval), compat.describe(eqn.outvars[0].aval)
    return f"{eqn.primitive.name}{over} of {operand} to {result}{_AT}{source_locations.source_line(eqn)}"


def compare_launch_arguments(tree: object, parameters: Sequence[str]) -> None:
    """Compares the host arrays of a launch among its processes; every process must call this function.

    Arrays that span processes are not compared: each process stores a part.
    """
    if (start := _start.get()) is None:
        return
    leaves = typed.tree_util.tree_flatten_with_path(tree)[0]
    local = [(show_path(path, parameters), leaf) for path, leaf in leaves if _is_here(leaf)]
    described = [(name, _type(leaf), _bytes(leaf)) for name, leaf in local]
    combined = hashlib.blake2b(repr(described).encode(), digest_size=_DIGEST).digest()
    # One exchange if all agree; otherwise one per array, to find the first array that differs.
    try:
        agree("a call's arguments", f"{len(described)} host arrays", combined, start.devices)
    except ProcessMismatchError:
        agree("the number of host arrays in a call", str(len(described)), b"", start.devices)
        for name, type_text, value in described:
            agree(f"the {name}", type_text, value, start.devices)
        raise


def _is_here(leaf: object) -> bool:
    if isinstance(leaf, Tracer):
        return False
    return not isinstance(leaf, jax.Array) or (leaf.is_fully_addressable and not leaf.is_deleted())


def _type(leaf: Any) -> str:
    array = leaf
    return f"{array.dtype}{list(array.shape)}" if isinstance(leaf, (jax.Array, np.ndarray)) else type(leaf).__name__


def _bytes(leaf: Any) -> bytes:
    if isinstance(leaf, jax.Array) and jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.extended):
        leaf = jax.random.key_data(leaf)
    return digest(leaf) if isinstance(leaf, (jax.Array, np.ndarray, np.generic)) else repr(_plain(leaf)).encode()


# --- digests ---------------------------------------------------------------------------------------------------------


class _Digester:
    """Computes digests of jaxprs that are equal in every process, independent of names and addresses."""

    def __init__(self) -> None:
        self.memo = walk.Memo[bytes]()

    def jaxpr(self, jaxpr: Jaxpr) -> bytes:
        return self.memo.get(jaxpr, lambda: self._jaxpr(jaxpr))

    def _jaxpr(self, jaxpr: Jaxpr) -> bytes:
        hasher = hashlib.blake2b(digest_size=_DIGEST)
        opened = walk.open_jaxpr(jaxpr)
        numbers = {v: i for i, v in enumerate([*opened.constvars, *opened.invars])}

        def atom(x: jax.Array) -> Atom:
            return ["literal", _plain(x.val), compat.describe(x.aval)] if isinstance(x, compat.Literal) else numbers[x]

        hasher.update(repr([compat.describe(v.aval) for v in numbers]).encode())
        hasher.update(repr([_plain(c) for c in walk.constants(jaxpr).values()]).encode())
        for eqn in opened.eqns:
            for v in eqn.outvars:
                numbers[v] = len(numbers)
            params = sorted((k, self.plain(v)) for k, v in eqn.params.items())
            results = [compat.describe(v.aval) for v in eqn.outvars]
            hasher.update(repr((eqn.primitive.name, [atom(x) for x in eqn.invars], params, results)).encode())
        hasher.update(repr([atom(x) for x in opened.outvars]).encode())
        return hasher.digest()

    def plain(self, value: Any) -> str:
        if walk.is_jaxpr(value):
            return self.jaxpr(value).hex()
        if isinstance(value, (tuple, list)):
            return f"({', '.join(map(self.plain, cast('Sequence[Any]', value)))})"
        return str(_plain(value))


def _plain(value: object) -> Any:
    """Returns text that is equal in every process for equal values; for unknown objects, only their type."""
    if isinstance(value, Tracer):
        return "traced"
    if isinstance(value, (jax.Array, np.ndarray)):
        return _array(cast("object", value))
    if isinstance(value, np.generic):
        return f"{type(cast('object', value)).__name__}:{value.item()!r}"
    if isinstance(value, enum.Enum):
        return str(value)
    if value is None or isinstance(value, (bool, int, float, complex, str, bytes, np.dtype)):
        return repr(cast("object", value))
    if isinstance(value, (tuple, list)):
        return [_plain(v) for v in cast("Sequence[object]", value)]
    if isinstance(value, (set, frozenset)):
        return sorted(str(_plain(v)) for v in cast("set[object]", value))
    if isinstance(value, dict):
        return sorted((str(_plain(k)), str(_plain(v))) for k, v in cast("dict[object, object]", value).items())
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return [type(value).__name__, *[str(_plain(getattr(value, f.name))) for f in dataclasses.fields(value)]]
    return type(value).__name__


def _array(array: Any) -> str:
    type_text = f"{array.dtype}{list(array.shape)}"
    if isinstance(array, jax.Array):
        if not array.is_fully_addressable or array.is_deleted():
            return type_text
        if jax.dtypes.issubdtype(array.dtype, jax.dtypes.extended):
            array = jax.random.key_data(array)
    host = np.asarray(array)
    if host.nbytes > _COMPARED_BYTES:
        host = host.reshape(-1)[:: max(host.nbytes // _COMPARED_BYTES, 1)]
    return f"{type_text} {digest(host).hex()}"
