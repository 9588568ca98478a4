"""JAX's modules as values of any type: their functions lack annotations. Names of common types."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

jnp: Any = jax.numpy
lax: Any = jax.lax
nn: Any = jax.nn
numpy: Any = np
Shape = tuple[int, ...]
Array = np.ndarray[Any, Any]
DType = np.dtype[Any]
