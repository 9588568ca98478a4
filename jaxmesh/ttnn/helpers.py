"""Helpers for NumPy that the real `ttnn` does not have; there, use `ttnn.Tensor(array, dtype)` and `tensor.to_numpy()`."""

from jaxmesh.ttnn.convert import from_numpy as from_numpy, get_dtype as get_dtype, to_numpy as to_numpy
