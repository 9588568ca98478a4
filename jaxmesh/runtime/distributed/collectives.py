"""Several processes over one mesh: the owners of devices, and exchanges of host data between all processes.

JAX's coordination service transfers the data as bytes, so no bit changes and no program is disturbed. Every process
with a device of the mesh must take part, in the same order.
"""

from __future__ import annotations

import hashlib
import operator
from collections.abc import Hashable, Mapping, Sequence
from typing import Any, NoReturn, TypeVar, cast

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jax.typing import DTypeLike

from jaxmesh.errors import ArgumentTypeError, MeshError, NotAddressableError, ProcessMismatchError, VerifyError
from jaxmesh.jaxprs.backend import exchange as exchange_bytes
from jaxmesh.jaxprs.typed import typed
from jaxmesh.jaxprs.untyped import Array, Device
from jaxmesh.runtime.array_views import check_alive
from jaxmesh.sharding.configs import integers
from jaxmesh.validate import quote

Key = TypeVar("Key", bound=Hashable)

_TEXT_BYTES = 192
_DIGEST = 16


def is_here(device: Any) -> bool:
    """Returns True if a device belongs to this process."""
    return bool(device.process_index == typed.process_index())


def process_at(mesh: Mesh, coordinate: tuple[int, ...]) -> int:
    """Returns the number of the process whose device is at a mesh coordinate."""
    device = mesh.devices[coordinate]
    return device.process_index


def one_shard(tensor: Any, coordinate: Any) -> jax.Array:
    """Implements `MeshTensor.shard`: returns one shard, or raises its errors."""
    mesh: Mesh = tensor.mesh
    position = integers("a coordinate of a MeshTensor's shard", coordinate)
    if position not in np.ndindex(*mesh.devices.shape):
        raise MeshError(f"the coordinate {quote(list(position))} is not on a mesh of shape {list(mesh.devices.shape)}.")
    if mesh.devices[position] not in tensor.data.sharding.device_set:
        raise VerifyError(f"the device at {list(position)} stores no shard of {tensor!r}.")
    shards = {tuple(c): s for c, s in tensor.shards()}
    if position not in shards:
        raise NotAddressableError(
            f"the shard at {list(position)} of {tensor!r} belongs to process {process_at(mesh, position)}, and this is "
            f"process {typed.process_index()}, which has the shards at {[list(c) for c in shards]}. Read it there, or "
            "join the tensor with jaxmesh.ttnn.aggregate_tensor in every process."
        )
    return shards[position]


def spans_processes(mesh: Mesh) -> bool:
    """Returns True if a device of the mesh belongs to another process."""
    return not all(map(is_here, mesh.devices.flat))


def leaders(devices: Sequence[Device]) -> tuple[Any, ...]:
    """Returns the first device of each process, in the order of the processes."""
    first: dict[int, Any] = {}
    for d in devices:
        first.setdefault(d.process_index, d)
    return tuple(first[p] for p in sorted(first))


def as_process(process: Any, devices: Sequence[Device]) -> int | None:
    """Returns the number of the process that receives a result, one with devices, or None for all processes."""
    known = sorted({d.process_index for d in devices})
    if process is None:
        return None
    if isinstance(process, bool) or not isinstance(process, (int, np.integer)) or process not in known:
        raise ArgumentTypeError(f"process is None, for all, or one number of {known}, got {quote(process)}.")
    return int(cast("Any", process))


def exchange(mine: Array, among: Sequence[Any]) -> Array:
    """Returns the bytes of every process: uint8, [number of processes, bytes per process].

    `among` lists one device of each participating process, in process order; see `leaders`.
    """
    members = [d.process_index for d in among]
    if typed.process_index() not in members:
        _refuse(among)
    if len(members) == 1:
        return np.broadcast_to(mine, (len(members), mine.size))
    messages = exchange_bytes(mine.tobytes(), typed.process_index(), members)
    other = next((i for i, message in enumerate(messages) if len(message) != len(messages[0])), None)
    if other is not None:
        raise ProcessMismatchError(
            f"every process must pass equally many bytes of an array, but the processes {members[0]} and "
            f"{members[other]} have {len(messages[0])} and {len(messages[other])} bytes: they have run different "
            "programs, or one program on arguments of different shapes or dtypes. jaxmesh.check_processes finds the "
            "first difference."
        )
    return np.stack([np.frombuffer(message, np.uint8) for message in messages])


def gather(
    mine: Mapping[Key, Array],
    owners: Mapping[Key, int],
    shape: tuple[int, ...],
    dtype: DTypeLike,
    devices: Sequence[Device],
    process: int | None = None,
) -> dict[Key, Array] | None:
    """Sends pieces of one shape and dtype from their owners to `process`, or to all for None; returns None
    elsewhere.

    `mine` contains at least the pieces of this process. `owners`, the sender of each piece, is equal in every process.
    """
    dtype = np.dtype(dtype)
    me, among = typed.process_index(), leaders(devices)
    wanted = {d.process_index for d in among} if process is None else {process}
    # The test is equal in every process: skip the exchange if one process owns all pieces and is the only receiver.
    if set(owners.values()) == wanted and len(wanted) == 1:
        return {k: mine[k] for k in owners} if me in wanted else None
    keys = {p: [k for k, owner in owners.items() if owner == p] for p in {*owners.values(), me}}
    each = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    message = np.zeros(max(map(len, keys.values())) * each, np.uint8)
    for i, k in enumerate(keys[me]):
        piece = np.ascontiguousarray(mine[k]).reshape(-1)
        message[i * each : (i + 1) * each] = np.frombuffer(piece.tobytes(), np.uint8)
    messages = dict(zip([d.process_index for d in among], exchange(message, among), strict=True))
    if me not in wanted:
        return None
    received: dict[Key, Array] = {}
    for p, owned in keys.items():
        for i, k in enumerate(owned):
            raw = messages[p][i * each : (i + 1) * each].tobytes()
            received[k] = np.frombuffer(bytearray(raw), dtype).reshape(shape)
    return received


def digest(value: Any) -> bytes:
    """Returns the digest of the bytes of an array."""
    return hashlib.blake2b(np.ascontiguousarray(value).tobytes(), digest_size=_DIGEST).digest()


def agree(what: str, description: str, value: bytes, devices: Sequence[Device]) -> None:
    """Checks that all processes with some of the devices have the same value, passed as bytes or as its digest.

    Raises:
      ProcessMismatchError: the value of a process differs from the first process's; the message has `what`, which is
        equal in every process, and both descriptions.
    """
    among = leaders(devices)
    if len(among) == 1:
        return
    text = description.encode()[:_TEXT_BYTES].ljust(_TEXT_BYTES, b"\0")
    mine = np.frombuffer(hashlib.blake2b(value + description.encode(), digest_size=_DIGEST).digest() + text, np.uint8)
    messages = [message.tobytes() for message in exchange(mine, among)]
    other = next((i for i, message in enumerate(messages) if message != messages[0]), None)
    if other is None:
        return
    first, second = (messages[i][_DIGEST:].rstrip(b"\0").decode(errors="replace") for i in (0, other))
    numbers = [d.process_index for d in among]
    shown = f"{first} and {second}" if first != second else f"{first}, with different values"
    raise ProcessMismatchError(
        f"{what} must be the same in every process, but the processes {numbers[0]} and {numbers[other]} have {shown}; "
        "every process must run the same program on the same arguments. Derive it from values that all know, or "
        "pass each process's part to jaxmesh.from_process_shards."
    )


def on_every_device(value: object, mesh: Mesh) -> jax.Array:
    """Puts a host array that every process has on all devices of a mesh; the copies are not compared."""
    return put(value, NamedSharding(mesh, PartitionSpec()))


def put(value: Any, sharding: Any) -> jax.Array:
    """Returns an array with a sharding.

    Over several processes the array goes through each host: data that all processes have is not sent. JAX's
      `device_put`
    compares such data, and supports only some shardings for an array that spans processes.
    """
    if all(map(is_here, sharding.device_set)) and not _in_another_order(value, sharding):
        return typed.device_put(value, sharding)
    host = fetch_array(value) if isinstance(value, jax.Array) else np.asarray(value)
    assert host is not None
    return jax.make_array_from_callback(host.shape, sharding, lambda index: host[index])


def _in_another_order(value: object, sharding: Any) -> bool:
    """Returns True if the array may have the sharding's devices in a different order, which JAX rarely supports."""
    if not isinstance(value, jax.Array) or jax.dtypes.issubdtype(value.dtype, jax.dtypes.extended):
        return False
    current: Any = value.sharding
    devices: set[object] = current.device_set
    return len(devices) > 1 and devices == sharding.device_set and not isinstance(sharding, jax.sharding.NamedSharding)


def fetch_array(x: jax.Array, process: int | None = None) -> Array | None:
    """Returns an array that may span processes in host memory: in all processes, or in one; None in the others."""
    if jax.dtypes.issubdtype(x.dtype, jax.dtypes.extended):
        raise ArgumentTypeError(f"NumPy does not have the dtype {x.dtype}; pass jax.random.key_data(keys).")
    check_alive(x, "to_host")
    sharding: Any = x.sharding
    devices: list[Device] = sorted(sharding.device_set, key=operator.attrgetter("id"))
    me = typed.process_index()
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


def _refuse(devices: Sequence[Device]) -> NoReturn:
    raise MeshError(
        f"process {typed.process_index()} does not have a device of this mesh, which spans the processes "
        f"{sorted({d.process_index for d in devices})}; only they can read its tensors."
    )
