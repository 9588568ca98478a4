"""Helpers for NumPy that the real `ttnn` does not have.

There, `ttnn.Tensor(array, dtype)` makes a tensor and `tensor.to_numpy()` reads it; both are emulated.
"""

from jaxmesh.ttnn.convert import from_numpy as from_numpy, get_dtype as get_dtype, to_numpy as to_numpy
