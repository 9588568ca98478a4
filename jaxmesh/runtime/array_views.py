"""Arrays that share memory, and arrays that were deleted or donated."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
from jax.core import Tracer

from jaxmesh.errors import DeletedError
from jaxmesh.jaxprs.typed import typed


def is_deleted(x: object) -> bool:
    """Returns True for an array that was donated or deleted."""
    return isinstance(x, jax.Array) and not isinstance(x, Tracer) and x.is_deleted()


def check_alive(x: Any, op: str) -> None:
    """Checks that an array was neither donated nor deleted."""
    if is_deleted(x):
        raise DeletedError(
            f"{op} got an array {x.dtype}{list(x.shape)} that was donated to a program (donate_argnums) or "
            "deleted, so its memory is gone; use the program's results, or do not donate it. "
            "Array has been deleted."
        )


def view(stored: jax.Array) -> Any:
    """Returns a second array that shares the memory; donating or deleting either array leaves the other intact."""
    if jax.dtypes.issubdtype(stored.dtype, jax.dtypes.extended):
        with jax.ensure_compile_time_eval():
            return jax.numpy.copy(stored)
    views = [local_view(s.data, s.data.shape) for s in stored.addressable_shards]
    return jax.make_array_from_single_device_arrays(stored.shape, stored.sharding, views, dtype=stored.dtype)


def local_view(stored: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """Returns one device's stored shard in its local shape: the same memory, without a computation.

    The result is always a new array, because the caller may donate it.
    """
    # A traced program may close over the tensor.
    with jax.ensure_compile_time_eval():
        if jax.dtypes.issubdtype(stored.dtype, jax.dtypes.extended):
            return jax.numpy.copy(stored).reshape(shape)
        (device,) = stored.devices()
        return typed.device_put(np.asarray(stored).reshape(shape), device, may_alias=True)
