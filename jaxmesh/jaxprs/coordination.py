"""Words between processes, through the service by which `jax.distributed` has them meet; the JAX internals for it.

Not through collectives: on the CPU, programs that are in flight at the same time and share a group of devices take each
other's messages, and a program of jaxmesh's own, between those of a user, would be one more of them.
"""

from __future__ import annotations

import collections
from collections.abc import Sequence
from typing import Any

from jax._src import distributed

from jaxmesh.errors import MeshError

TIMEOUT_SECONDS = 600
"""How long a process waits for the others to say something. One that has died is noticed earlier, by JAX."""
_CHUNK = 1 << 20
_LENGTH = 8
_said: collections.Counter[tuple[int, ...]] = collections.Counter()


def exchange(mine: bytes, me: int, members: Sequence[int]) -> list[bytes]:
    """What each process says, in the order of their numbers.

    Raises:
      MeshError: a process has said nothing for too long.
    """
    state: Any = distributed.global_state
    client: Any = state.client
    key = tuple(members)
    _said[key] += 1
    talk = f"jaxmesh/{'-'.join(map(str, key))}/{_said[key]}"
    # The length comes first: who says less or more is heard, and not waited for.
    words = len(mine).to_bytes(_LENGTH, "little") + mine
    for start in range(0, len(words), _CHUNK):
        client.key_value_set_bytes(f"{talk}/{me}/{start}", words[start : start + _CHUNK])
    patience = TIMEOUT_SECONDS * 1000
    heard: list[bytes] = []
    for p in members:
        try:
            row: bytes = client.blocking_key_value_get_bytes(f"{talk}/{p}/0", patience)
            length = int.from_bytes(row[:_LENGTH], "little") + _LENGTH
            more = range(_CHUNK, length, _CHUNK)
            rest: list[bytes] = [client.blocking_key_value_get_bytes(f"{talk}/{p}/{s}", patience) for s in more]
        except Exception as error:
            raise MeshError(
                f"process {p} has said nothing to process {me} for {TIMEOUT_SECONDS} seconds ({error}); every process "
                "must run the same programs in the same order."
            ) from error
        heard.append(b"".join([row, *rest])[_LENGTH:])
    # Nothing is forgotten before all have heard it.
    client.wait_at_barrier(talk, patience, list(members))
    client.key_value_delete(f"{talk}/{me}/")
    return heard


def publish_and_read(mine: bytes, place: str, me: int, members: Sequence[int]) -> dict[int, bytes]:
    """What the processes have said so far in a place of their own, this one first of all; waits for nobody.

    Of two that speak at the same time at least one hears the other. Who hears all of them wipes the place.
    """
    state: Any = distributed.global_state
    client: Any = state.client
    folder = f"jaxmesh/{'-'.join(map(str, members))}/{place}"
    client.key_value_set_bytes(f"{folder}/{me}", mine)
    rows: list[tuple[str, bytes]] = client.key_value_dir_get_bytes(folder)
    heard = {int(key.rpartition("/")[2]): value for key, value in rows}
    if len(heard) == len(members):
        client.key_value_delete(f"{folder}/")
    return heard
