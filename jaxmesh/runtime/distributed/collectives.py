"""Several processes over one mesh: which of them holds what, and how all of them learn something.

What is said here goes through JAX's coordination service as bytes, so that no bit is changed on the way and no program
is disturbed. Every process that has a device of the mesh must take part, in the same order.
"""

from __future__ import annotations

import hashlib
from collections.abc import Hashable, Mapping, Sequence
from typing import Any, NoReturn, TypeVar, cast

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jaxmesh.errors import ArgumentTypeError, MeshError, NotAddressableError, ProcessMismatchError, VerifyError
from jaxmesh.jaxprs.coordination import exchange as say_and_hear
from jaxmesh.runtime.array_views import check_alive
from jaxmesh.sharding.configs import integers
from jaxmesh.validate import quote

Array = np.ndarray[Any, Any]
Key = TypeVar("Key", bound=Hashable)

_WORDS = 192
_DIGEST = 16


def is_here(device: Any) -> bool:
    """Whether a device is one of this process."""
    return bool(device.process_index == jax.process_index())


def process_at(mesh: Mesh, place: tuple[int, ...]) -> int:
    """The process whose device is at a coordinate."""
    device: Any = mesh.devices[place]
    return device.process_index


def one_shard(tensor: Any, coordinate: Any) -> jax.Array:
    """What `MeshTensor.shard` gives, and its errors."""
    mesh: Mesh = tensor.mesh
    place = integers("a coordinate of a MeshTensor's shard", coordinate)
    if place not in np.ndindex(*mesh.devices.shape):
        raise MeshError(f"there is no coordinate {list(place)} on a mesh of shape {list(mesh.devices.shape)}.")
    if mesh.devices[place] not in tensor.data.sharding.device_set:
        raise VerifyError(f"the device at {list(place)} holds nothing of {tensor!r}.")
    held = {tuple(c): s for c, s in tensor.shards()}
    if place not in held:
        raise NotAddressableError(
            f"the shard at {list(place)} of {tensor!r} is held by process {process_at(mesh, place)}, and this is "
            f"process {jax.process_index()}, which has those at {[list(c) for c in held]}. Read it there, or join the "
            "tensor with jaxmesh.ttnn.aggregate_tensor in every process."
        )
    return held[place]


def spans_processes(mesh: Mesh) -> bool:
    """Whether some device of a mesh is another process's."""
    return not all(map(is_here, mesh.devices.flat))


def leaders(devices: Sequence[Any]) -> tuple[Any, ...]:
    """The first device of each process, by the number of the process."""
    first: dict[int, Any] = {}
    for d in devices:
        first.setdefault(d.process_index, d)
    return tuple(first[p] for p in sorted(first))


def checked_process(process: Any, devices: Sequence[Any]) -> int | None:
    """The process that a result is for: a number, or None for all.

    Raises:
      ArgumentTypeError: no number of a process that has some of the devices.
    """
    known = sorted({d.process_index for d in devices})
    if process is None:
        return None
    if isinstance(process, bool) or not isinstance(process, (int, np.integer)) or process not in known:
        raise ArgumentTypeError(f"process is None, for all, or the number of one of {known}, got {quote(process)}.")
    return int(cast("Any", process))


def exchange(mine: Array, among: Sequence[Any]) -> Array:
    """What every process says, in rows: as many bytes of each.

    Args:
      mine: uint8, what this process says.
      among: the device of each process that speaks for it, by the number of the process; see `leaders`.

    Raises:
      MeshError: this process is none of them.
      ProcessMismatchError: a process says less or more.
    """
    members = [d.process_index for d in among]
    if jax.process_index() not in members:
        _refuse(among)
    if len(members) == 1:
        return np.broadcast_to(mine, (len(members), mine.size))
    heard = say_and_hear(mine.tobytes(), jax.process_index(), members)
    other = next((i for i, row in enumerate(heard) if len(row) != len(heard[0])), None)
    if other is not None:
        raise ProcessMismatchError(
            f"every process must have as much of an array as the others, but the processes {members[0]} and "
            f"{members[other]} have {len(heard[0])} and {len(heard[other])} bytes: they have run other programs, or "
            "the same on arguments of other shapes or dtypes. jaxmesh.check_processes finds where they part."
        )
    return np.stack([np.frombuffer(row, np.uint8) for row in heard])


def gather(
    mine: Mapping[Key, Array],
    owners: Mapping[Key, int],
    shape: tuple[int, ...],
    dtype: Any,
    devices: Sequence[Any],
    process: int | None = None,
) -> dict[Key, Array] | None:
    """Pieces of one shape and dtype, from the processes that hold them to all, or to one.

    Args:
      mine: those of this process, and maybe more.
      owners: for each piece the process that gives it; the same in every process.
      shape: of one piece.
      dtype: of one piece.
      devices: those of the mesh.
      process: who gets them; None for all. The others get None.

    Raises:
      MeshError: this process has no device of the mesh.
    """
    dtype = np.dtype(dtype)
    me, among = jax.process_index(), leaders(devices)
    wanted = {d.process_index for d in among} if process is None else {process}
    # The same in every process: whether anybody needs what he does not hold himself.
    if set(owners.values()) == wanted and len(wanted) == 1:
        return {k: mine[k] for k in owners} if me in wanted else None
    keys = {p: [k for k, owner in owners.items() if owner == p] for p in {*owners.values(), me}}
    each = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    row = np.zeros(max(map(len, keys.values())) * each, np.uint8)
    for i, k in enumerate(keys[me]):
        piece = np.ascontiguousarray(mine[k]).reshape(-1)
        row[i * each : (i + 1) * each] = np.frombuffer(piece.tobytes(), np.uint8)
    rows = dict(zip([d.process_index for d in among], exchange(row, among), strict=True))
    if me not in wanted:
        return None
    found: dict[Key, Array] = {}
    for p, owned in keys.items():
        for i, k in enumerate(owned):
            raw = rows[p][i * each : (i + 1) * each].tobytes()
            found[k] = np.frombuffer(bytearray(raw), dtype).reshape(shape)
    return found


def digest(value: Any) -> bytes:
    """Bytes that stand for the bytes of an array."""
    return hashlib.blake2b(np.ascontiguousarray(value).tobytes(), digest_size=_DIGEST).digest()


def agree(what: str, said: str, value: bytes, devices: Sequence[Any]) -> None:
    """All processes that have some of the devices must say the same.

    Args:
      what: what is compared, for the message; the same in every process.
      said: it, in words.
      value: bytes that stand for it.
      devices: those of the mesh.

    Raises:
      ProcessMismatchError: a process says something else than the first one; the message names both.
    """
    among = leaders(devices)
    if len(among) == 1:
        return
    words = said.encode()[:_WORDS].ljust(_WORDS, b"\0")
    mine = np.frombuffer(hashlib.blake2b(value + said.encode(), digest_size=_DIGEST).digest() + words, np.uint8)
    rows = [row.tobytes() for row in exchange(mine, among)]
    other = next((i for i, row in enumerate(rows) if row != rows[0]), None)
    if other is None:
        return
    first, second = (rows[i][_DIGEST:].rstrip(b"\0").decode(errors="replace") for i in (0, other))
    numbers = [d.process_index for d in among]
    told = f"{first} and {second}" if first != second else f"{first}, with other values"
    raise ProcessMismatchError(
        f"{what} must be the same in every process, but the processes {numbers[0]} and {numbers[other]} have {told}; "
        "every process must run the same program on the same arguments. Make it from what all of them know, or give "
        "each its own part with jaxmesh.from_process_shards."
    )


def on_every_device(value: Any, mesh: Mesh) -> jax.Array:
    """A host array that every process has, on all devices of a mesh; nothing is compared."""
    return put(value, NamedSharding(mesh, PartitionSpec()))


def put(value: Any, sharding: Any) -> jax.Array:
    """An array where a sharding wants it.

    Over several processes by way of each one's host: of what all of them have, nothing is sent. JAX's own `device_put`
    compares what they have, and takes only some shardings for what lies in several.
    """
    if all(map(is_here, sharding.device_set)) and not _in_another_order(value, sharding):
        return jax.device_put(value, sharding)
    host = whole(value) if isinstance(value, jax.Array) else np.asarray(value)
    assert host is not None
    return jax.make_array_from_callback(host.shape, sharding, lambda index: host[index])


def _in_another_order(value: Any, sharding: Any) -> bool:
    """Whether it may lie on the devices of a sharding in another order, of which JAX takes only some shardings."""
    if not isinstance(value, jax.Array) or jax.dtypes.issubdtype(value.dtype, jax.dtypes.extended):
        return False
    lies: Any = value.sharding
    devices: set[Any] = lies.device_set
    return len(devices) > 1 and devices == sharding.device_set and not isinstance(sharding, jax.sharding.NamedSharding)


def whole(x: jax.Array, process: int | None = None) -> Array | None:
    """An array whose parts may lie in several processes, on the host: in all of them, or in one; None in the others.

    Raises:
      ArgumentTypeError: its elements are no numbers (random keys).
      DeletedError: it was donated to a program, or deleted.
      MeshError: this process holds nothing of it, and is no part of its mesh.
    """
    if jax.dtypes.issubdtype(x.dtype, jax.dtypes.extended):
        raise ArgumentTypeError(f"NumPy has no dtype {x.dtype}; pass jax.random.key_data(keys).")
    check_alive(x, "to_host")
    sharding: Any = x.sharding
    devices: list[Any] = sorted(sharding.device_set, key=_id)
    me = jax.process_index()
    if x.is_fully_addressable or (x.is_fully_replicated and x.addressable_shards):
        return np.array(x) if process in (None, me) else None
    if not x.addressable_shards:
        _refuse(devices)
    holders: dict[tuple[Any, ...], Any] = {}
    placed: Any = sharding.devices_indices_map(x.shape)
    for device in devices:
        holders.setdefault(_bounds(placed[device], x.shape), device)
    held = {s.device: s.data for s in x.addressable_shards}
    mine = {b: np.asarray(held[d]) for b, d in holders.items() if d in held}
    owners = {b: d.process_index for b, d in holders.items()}
    pieces = gather(mine, owners, x.sharding.shard_shape(x.shape), x.dtype, devices, process)
    if pieces is None:
        return None
    out = np.empty(x.shape, x.dtype)
    for bounds, piece in pieces.items():
        out[tuple(slice(*b) for b in bounds)] = piece
    return out


def _id(device: Any) -> int:
    return device.id


def _bounds(index: Sequence[slice], shape: Sequence[int]) -> tuple[tuple[int, int], ...]:
    return tuple(s.indices(n)[:2] for s, n in zip(index, shape, strict=True))


def _refuse(devices: Sequence[Any]) -> NoReturn:
    raise MeshError(
        f"process {jax.process_index()} has no device of this mesh, which has those of the processes "
        f"{sorted({d.process_index for d in devices})}; only they can read what is on it."
    )
