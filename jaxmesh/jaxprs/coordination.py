"""Messages between processes through `jax.distributed`'s key-value store.

Collectives will not do: on the CPU, programs in flight at the same time that share a group of devices take each other's
messages, and a program of jaxmesh between those of a user would be one more of them.
"""

from __future__ import annotations

import collections
from collections.abc import Sequence
from typing import Any

from jax._src import distributed

from jaxmesh.errors import MeshError

TIMEOUT_SECONDS = 600
"""How long a process waits for a message. JAX notices earlier that a process has died."""
_CHUNK = 1 << 20
_LENGTH = 8
_exchanges: collections.Counter[tuple[int, ...]] = collections.Counter()


def exchange(mine: bytes, me: int, members: Sequence[int]) -> list[bytes]:
    """Returns the message of each process, in the order of `members`.

    Raises:
      MeshError: no message of a process has arrived in time.
    """
    state: Any = distributed.global_state
    client: Any = state.client
    key = tuple(members)
    _exchanges[key] += 1
    folder = f"jaxmesh/{'-'.join(map(str, key))}/{_exchanges[key]}"
    # The length comes first: messages may have different lengths.
    message = len(mine).to_bytes(_LENGTH, "little") + mine
    for start in range(0, len(message), _CHUNK):
        client.key_value_set_bytes(f"{folder}/{me}/{start}", message[start : start + _CHUNK])
    timeout = TIMEOUT_SECONDS * 1000
    messages: list[bytes] = []
    for p in members:
        try:
            row: bytes = client.blocking_key_value_get_bytes(f"{folder}/{p}/0", timeout)
            length = int.from_bytes(row[:_LENGTH], "little") + _LENGTH
            more = range(_CHUNK, length, _CHUNK)
            rest: list[bytes] = [client.blocking_key_value_get_bytes(f"{folder}/{p}/{s}", timeout) for s in more]
        except Exception as error:
            raise MeshError(
                f"process {p} has said nothing to process {me} for {TIMEOUT_SECONDS} seconds ({error}); every process "
                "must run the same programs in the same order."
            ) from error
        messages.append(b"".join([row, *rest])[_LENGTH:])
    # No message is deleted before all processes have read it.
    client.wait_at_barrier(folder, timeout, list(members))
    client.key_value_delete(f"{folder}/{me}/")
    return messages


def publish_and_read(mine: bytes, name: str, me: int, members: Sequence[int]) -> dict[int, bytes]:
    """Publishes a message under a key, then returns the messages published so far, by process; does not wait.

    Of two processes that publish at the same time, at least one reads the other's message. The process that reads all
    messages deletes them.
    """
    state: Any = distributed.global_state
    client: Any = state.client
    folder = f"jaxmesh/{'-'.join(map(str, members))}/{name}"
    client.key_value_set_bytes(f"{folder}/{me}", mine)
    rows: list[tuple[str, bytes]] = client.key_value_dir_get_bytes(folder)
    heard = {int(key.rpartition("/")[2]): value for key, value in rows}
    if len(heard) == len(members):
        client.key_value_delete(f"{folder}/")
    return heard
