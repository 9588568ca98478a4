"""Arrays over several devices from the pieces they hold, in one call.

JAX has no public way to make such an array of host memory without a call per device, which for small tensors is most
of the time; so this file reaches into its internals, as `jaxprs.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax._src import core
from jax._src.lib import xla_client
from jax.sharding import NamedSharding

_core: Any = core
_client: Any = xla_client


def array_type(shape: tuple[int, ...], dtype: np.dtype[Any], sharding: NamedSharding) -> Any:
    """The type of an array over the devices of a sharding."""
    return _core.update_aval_with_sharding(_core.ShapedArray(shape, dtype), sharding)


def on_devices(kind: Any, sharding: NamedSharding, pieces: Sequence[Any], devices: list[Any]) -> jax.Array:
    """An array of a type from the piece of each device, in the order of the devices.

    A piece that lies as XLA wants it is used where it lies: nobody may write to it again.
    """
    return _client.batched_device_put(kind, sharding, pieces, devices, True)
