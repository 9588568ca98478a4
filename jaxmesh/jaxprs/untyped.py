"""JAX's modules as values of any type: their functions lack annotations. Names of common types."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

if TYPE_CHECKING:
    from jaxlib._jax import Device as Device
else:
    Device = jax.Device

jnp: Any = jax.numpy
lax: Any = jax.lax
nn: Any = jax.nn
numpy: Any = np
Shape = tuple[int, ...]
Array = np.ndarray[Any, Any]
DType = np.dtype[Any]
PyTree = Any
"""Containers and leaves of any types, as JAX flattens them."""
Params = Mapping[str, Any]
"""The parameters of an equation."""
