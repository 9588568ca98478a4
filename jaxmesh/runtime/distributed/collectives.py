"""Several processes over one mesh: the owners of devices, and exchanges of host data between all of them.

Data goes through JAX's coordination service as bytes, so no bit changes and no program is disturbed. Every process with
a device of the mesh must take part, in the same order.
"""

from __future__ import annotations

import hashlib
import operator
from collections.abc import Hashable, Mapping, Sequence
from typing import Any, NoReturn, TypeVar, cast

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jaxmesh.errors import ArgumentTypeError, MeshError, NotAddressableError, ProcessMismatchError, VerifyError
from jaxmesh.jaxprs.coordination import exchange as exchange_bytes
from jaxmesh.runtime.array_views import check_alive
from jaxmesh.sharding.configs import integers
from jaxmesh.validate import quote

Array = np.ndarray[Any, Any]
Key = TypeVar("Key", bound=Hashable)

_TEXT_BYTES = 192
_DIGEST = 16


def is_here(device: Any) -> bool:
    """Returns True if a device belongs to this process."""
    return bool(device.process_index == jax.process_index())


def process_at(mesh: Mesh, coordinate: tuple[int, ...]) -> int:
    """Returns the number of the process whose device is at a mesh coordinate."""
    device: Any = mesh.devices[coordinate]
    return device.process_index


def one_shard(tensor: Any, coordinate: Any) -> jax.Array:
    """Returns the shard of `MeshTensor.shard`, and raises its errors."""
    mesh: Mesh = tensor.mesh
    at = integers("a coordinate of a MeshTensor's shard", coordinate)
    if at not in np.ndindex(*mesh.devices.shape):
        raise MeshError(f"there is no coordinate {list(at)} on a mesh of shape {list(mesh.devices.shape)}.")
    if mesh.devices[at] not in tensor.data.sharding.device_set:
        raise VerifyError(f"the device at {list(at)} holds nothing of {tensor!r}.")
    shards = {tuple(c): s for c, s in tensor.shards()}
    if at not in shards:
        raise NotAddressableError(
            f"the shard at {list(at)} of {tensor!r} is held by process {process_at(mesh, at)}, and this is "
            f"process {jax.process_index()}, which has those at {[list(c) for c in shards]}. Read it there, or join "
            "the tensor with jaxmesh.ttnn.aggregate_tensor in every process."
        )
    return shards[at]


def spans_processes(mesh: Mesh) -> bool:
    """Returns True if some device of a mesh belongs to another process."""
    return not all(map(is_here, mesh.devices.flat))


def leaders(devices: Sequence[Any]) -> tuple[Any, ...]:
    """Returns the first device of each process, in the order of the processes."""
    first: dict[int, Any] = {}
    for d in devices:
        first.setdefault(d.process_index, d)
    return tuple(first[p] for p in sorted(first))


def as_process(process: Any, devices: Sequence[Any]) -> int | None:
    """Returns the number of the process, among those with devices, that a result is for, or None for all."""
    known = sorted({d.process_index for d in devices})
    if process is None:
        return None
    if isinstance(process, bool) or not isinstance(process, (int, np.integer)) or process not in known:
        raise ArgumentTypeError(f"process is None, for all, or the number of one of {known}, got {quote(process)}.")
    return int(cast("Any", process))


def exchange(mine: Array, among: Sequence[Any]) -> Array:
    """Returns the bytes of every process: uint8, [number of processes, bytes of each].

    `among` has one device of each participating process, in the order of the processes; see `leaders`.
    """
    members = [d.process_index for d in among]
    if jax.process_index() not in members:
        _refuse(among)
    if len(members) == 1:
        return np.broadcast_to(mine, (len(members), mine.size))
    rows = exchange_bytes(mine.tobytes(), jax.process_index(), members)
    other = next((i for i, row in enumerate(rows) if len(row) != len(rows[0])), None)
    if other is not None:
        raise ProcessMismatchError(
            f"every process must have as much of an array as the others, but the processes {members[0]} and "
            f"{members[other]} have {len(rows[0])} and {len(rows[other])} bytes: they have run other programs, or "
            "the same on arguments of other shapes or dtypes. jaxmesh.check_processes finds where they part."
        )
    return np.stack([np.frombuffer(row, np.uint8) for row in rows])


def gather(
    mine: Mapping[Key, Array],
    owners: Mapping[Key, int],
    shape: tuple[int, ...],
    dtype: Any,
    devices: Sequence[Any],
    process: int | None = None,
) -> dict[Key, Array] | None:
    """Sends pieces of one shape and dtype from their owners to `process`, or to all for None; the others get None.

    `mine` has at least the pieces of this process; `owners`, the process that sends each piece, is equal everywhere.
    """
    dtype = np.dtype(dtype)
    me, among = jax.process_index(), leaders(devices)
    wanted = {d.process_index for d in among} if process is None else {process}
    # Equal in every process: no exchange if one process owns all pieces and is the only one to get them.
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
    """Returns the digest of the bytes of an array."""
    return hashlib.blake2b(np.ascontiguousarray(value).tobytes(), digest_size=_DIGEST).digest()


def agree(what: str, description: str, value: bytes, devices: Sequence[Any]) -> None:
    """Checks that all processes that have some of the devices have the same value, given as bytes or as its digest.

    Raises:
      ProcessMismatchError: the value of a process differs from that of the first; the message names `what`, which is
        equal in every process, and has the descriptions of both.
    """
    among = leaders(devices)
    if len(among) == 1:
        return
    text = description.encode()[:_TEXT_BYTES].ljust(_TEXT_BYTES, b"\0")
    mine = np.frombuffer(hashlib.blake2b(value + description.encode(), digest_size=_DIGEST).digest() + text, np.uint8)
    rows = [row.tobytes() for row in exchange(mine, among)]
    other = next((i for i, row in enumerate(rows) if row != rows[0]), None)
    if other is None:
        return
    first, second = (rows[i][_DIGEST:].rstrip(b"\0").decode(errors="replace") for i in (0, other))
    numbers = [d.process_index for d in among]
    shown = f"{first} and {second}" if first != second else f"{first}, with other values"
    raise ProcessMismatchError(
        f"{what} must be the same in every process, but the processes {numbers[0]} and {numbers[other]} have {shown}; "
        "every process must run the same program on the same arguments. Make it from what all of them know, or give "
        "each its own part with jaxmesh.from_process_shards."
    )


def on_every_device(value: Any, mesh: Mesh) -> jax.Array:
    """Returns a host array that every process has, on all devices of a mesh; it is not compared."""
    return put(value, NamedSharding(mesh, PartitionSpec()))


def put(value: Any, sharding: Any) -> jax.Array:
    """Returns an array with a sharding.

    Over several processes it goes through each host: data that all of them have is not sent. JAX's own `device_put`
    compares that data, and takes only some shardings for an array that spans processes.
    """
    if all(map(is_here, sharding.device_set)) and not _in_another_order(value, sharding):
        return jax.device_put(value, sharding)
    host = fetch_array(value) if isinstance(value, jax.Array) else np.asarray(value)
    assert host is not None
    return jax.make_array_from_callback(host.shape, sharding, lambda index: host[index])


def _in_another_order(value: Any, sharding: Any) -> bool:
    """Returns True if an array may be on the devices of a sharding in another order; JAX takes few such shardings."""
    if not isinstance(value, jax.Array) or jax.dtypes.issubdtype(value.dtype, jax.dtypes.extended):
        return False
    current: Any = value.sharding
    devices: set[Any] = current.device_set
    return len(devices) > 1 and devices == sharding.device_set and not isinstance(sharding, jax.sharding.NamedSharding)


def fetch_array(x: jax.Array, process: int | None = None) -> Array | None:
    """Returns an array that may span processes in host memory: in all of them, or in one; None in the others."""
    if jax.dtypes.issubdtype(x.dtype, jax.dtypes.extended):
        raise ArgumentTypeError(f"NumPy has no dtype {x.dtype}; pass jax.random.key_data(keys).")
    check_alive(x, "to_host")
    sharding: Any = x.sharding
    devices: list[Any] = sorted(sharding.device_set, key=operator.attrgetter("id"))
    me = jax.process_index()
    if x.is_fully_addressable or (x.is_fully_replicated and x.addressable_shards):
        return np.array(x) if process in (None, me) else None
    if not x.addressable_shards:
        _refuse(devices)
    holders: dict[tuple[Any, ...], Any] = {}
    placed: Any = sharding.devices_indices_map(x.shape)
    for device in devices:
        holders.setdefault(_bounds(placed[device], x.shape), device)
    local = {s.device: s.data for s in x.addressable_shards}
    mine = {b: np.asarray(local[d]) for b, d in holders.items() if d in local}
    owners = {b: d.process_index for b, d in holders.items()}
    pieces = gather(mine, owners, x.sharding.shard_shape(x.shape), x.dtype, devices, process)
    if pieces is None:
        return None
    out = np.empty(x.shape, x.dtype)
    for bounds, piece in pieces.items():
        out[tuple(slice(*b) for b in bounds)] = piece
    return out


def _bounds(index: Sequence[slice], shape: Sequence[int]) -> tuple[tuple[int, int], ...]:
    return tuple(s.indices(n)[:2] for s, n in zip(index, shape, strict=True))


def _refuse(devices: Sequence[Any]) -> NoReturn:
    raise MeshError(
        f"process {jax.process_index()} has no device of this mesh, which has those of the processes "
        f"{sorted({d.process_index for d in devices})}; only they can read what is on it."
    )
