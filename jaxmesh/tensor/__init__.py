"""Tensors on a mesh: their types, storage, operators and transfers, and the execution of ops on them.

`jaxmesh.ttnn` gives them the functions of the real library; compiled programs take and return them without it.
"""

from jaxmesh.tensor.tensor_methods import install_methods as _install_methods

# Python runs this file before any other module of the package, so every tensor has its methods.
_install_methods()
