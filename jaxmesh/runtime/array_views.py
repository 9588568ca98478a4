"""Arrays that share memory with others, and those that hold nothing any more."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
from jax.core import Tracer

from jaxmesh.errors import DeletedError


def is_deleted(x: Any) -> bool:
    """Whether it is an array that was donated or deleted."""
    return isinstance(x, jax.Array) and not isinstance(x, Tracer) and x.is_deleted()


def check_alive(x: Any, op: str) -> None:
    """Checks that an array still holds something.

    Raises:
      DeletedError: it was donated to a program, or deleted.
    """
    if is_deleted(x):
        raise DeletedError(
            f"{op} got an array {x.dtype}{list(x.shape)} that was donated to a program (donate_argnums), which has "
            "taken its memory, or was deleted; use what the program gave back, or do not donate it."
        )


def view(stored: Any) -> Any:
    """Another array of the same memory. Donating or deleting one leaves the other as it is: XLA sees it is in use."""
    if jax.dtypes.issubdtype(stored.dtype, jax.dtypes.extended):
        with jax.ensure_compile_time_eval():
            return jax.numpy.copy(stored)
    views = [local_view(s.data, s.data.shape) for s in stored.addressable_shards]
    return jax.make_array_from_single_device_arrays(stored.shape, stored.sharding, views, dtype=stored.dtype)


def local_view(stored: Any, shape: tuple[int, ...]) -> Any:
    """One device's stored shard without its dims of size 1: the same memory, and no computation to compile.

    An array of its own also where no dim is in the way: who is given it may donate it.
    """
    # Also while a program is traced, which is closed over the tensor.
    with jax.ensure_compile_time_eval():
        if jax.dtypes.issubdtype(stored.dtype, jax.dtypes.extended):
            return jax.numpy.copy(stored).reshape(shape)
        (device,) = stored.devices()
        made: Any = jax.device_put(np.asarray(stored).reshape(shape), device, may_alias=True)
    return made
