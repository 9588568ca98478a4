"""JAX's backend and version: started devices, processes and their messages, forks of a process, tested versions.

`import jaxmesh` reads this module, so it imports nothing that `import jax` has not read.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import os
import warnings
from collections.abc import Sequence
from typing import Any

import jax
from jax._src import distributed, xla_bridge
from jax._src.lib import xla_client

from jaxmesh.errors import MeshError, UntestedJaxWarning

NEWEST_TESTED = (0, 12)
"""The newest release of JAX on which the test suite runs; every patch release of it counts as tested."""

_bridge: Any = xla_bridge
_client: Any = xla_client
_forked = False


def backend_started() -> bool:
    """Returns True if JAX has already counted its devices."""
    return bool(xla_bridge.backends_are_initialized())


def is_multi_process() -> bool:
    """Returns True if this process has joined other processes."""
    state = distributed.global_state
    return state.client is not None and state.num_processes > 1


def bind_collectives(host: str) -> None:
    """Makes the sockets of collectives between processes listen at a host's address, before the backend starts.

    JAX lets gloo listen at the address of the computer's name, which other computers may reach.
    """
    factories = _bridge._backend_factories
    state = distributed.global_state
    made = _client._xla.make_gloo_tcp_collectives(distributed_client=state.client, hostname=host)
    factory = functools.partial(factories["cpu"].factory, collectives=made)
    factories["cpu"] = dataclasses.replace(factories["cpu"], factory=factory)


def watch_forks() -> None:
    """Notes, in every process that is forked later, if its parent had devices; see `has_lost_devices`."""
    os.register_at_fork(after_in_child=_after_fork)


def has_lost_devices() -> bool:
    """Returns True if this process was forked after JAX had started the devices of its parent."""
    return _forked


def _after_fork() -> None:
    global _forked
    _forked = _forked or backend_started()


def warn_if_untested() -> None:
    """Warns of a JAX that is newer than the newest tested one."""
    if jax.__version_info__[:2] > NEWEST_TESTED:
        warnings.warn(
            f"jaxmesh is tested with JAX up to {'.'.join(map(str, NEWEST_TESTED))}, and this is JAX {jax.__version__}; "
            "it uses internals of JAX, so parts of it may fail. Install a tested JAX, or a newer jaxmesh.",
            UntestedJaxWarning,
            stacklevel=3,
        )


# --- messages between processes ---------------------------------------------------------------------------------------

# They go through `jax.distributed`'s key-value store and not through collectives: on the CPU, programs in flight at the
# same time that share a group of devices receive each other's messages, and a program of jaxmesh would interfere with
# programs of the user.

TIMEOUT_SECONDS = 600
"""The time that a process waits for a message, in seconds. JAX detects a process that has died earlier."""
_CHUNK = 1 << 20
_LENGTH = 8
_exchanges: collections.Counter[tuple[int, ...]] = collections.Counter()


def exchange(mine: bytes, me: int, members: Sequence[int]) -> list[bytes]:
    """Sends a message to all members, and waits for theirs; returns one message per member, in their order."""
    state = distributed.global_state
    client: Any = state.client
    key = tuple(members)
    _exchanges[key] += 1
    talk = f"jaxmesh/{'-'.join(map(str, key))}/{_exchanges[key]}"
    # The length comes first, so messages may differ in length.
    message = len(mine).to_bytes(_LENGTH, "little") + mine
    for start in range(0, len(message), _CHUNK):
        client.key_value_set_bytes(f"{talk}/{me}/{start}", message[start : start + _CHUNK])
    timeout_ms = TIMEOUT_SECONDS * 1000
    messages: list[bytes] = []
    for p in members:
        try:
            row: bytes = client.blocking_key_value_get_bytes(f"{talk}/{p}/0", timeout_ms)
            length = int.from_bytes(row[:_LENGTH], "little") + _LENGTH
            more = range(_CHUNK, length, _CHUNK)
            rest: list[bytes] = [client.blocking_key_value_get_bytes(f"{talk}/{p}/{s}", timeout_ms) for s in more]
        except Exception as error:
            raise MeshError(
                f"process {p} has sent no message to process {me} for {TIMEOUT_SECONDS} seconds ({error}); every "
                "process must run the same programs in the same order."
            ) from error
        messages.append(b"".join([row, *rest])[_LENGTH:])
    # A message is deleted after all members have read it.
    client.wait_at_barrier(talk, timeout_ms, list(members))
    client.key_value_delete(f"{talk}/{me}/")
    return messages


def publish_and_read(mine: bytes, topic: str, me: int, members: Sequence[int]) -> dict[int, bytes]:
    """Stores a message under a topic and returns the messages stored so far, by process, without waiting.

    Of two processes that store at the same time, at least one reads the other's message. A process that reads the
    messages of all members deletes the topic.
    """
    state = distributed.global_state
    client: Any = state.client
    folder = f"jaxmesh/{'-'.join(map(str, members))}/{topic}"
    client.key_value_set_bytes(f"{folder}/{me}", mine)
    rows: list[tuple[str, bytes]] = client.key_value_dir_get_bytes(folder)
    messages = {int(key.rpartition("/")[2]): value for key, value in rows}
    if len(messages) == len(members):
        client.key_value_delete(f"{folder}/")
    return messages
