"""JAX's modules without types, because many of their functions have no annotations; and names of common types."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

jnp: Any = jax.numpy
lax: Any = jax.lax
nn: Any = jax.nn
Shape = tuple[int, ...]
Array = np.ndarray[Any, Any]
DType = np.dtype[Any]
