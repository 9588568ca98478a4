"""Checks arguments against the types that the real `ttnn` declares, such as `Sequence[int] | None`."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Mapping
from typing import Any, SupportsIndex

import jax
import numpy as np
from jax.sharding import Mesh

from jaxmesh.sharding.configs import MeshCoordinate, MeshShape
from jaxmesh.tensor import types
from jaxmesh.tensor.mesh_device import MeshDevice
from jaxmesh.tensor.tensor_base import TensorBase
from jaxmesh.ttnn import settings
from jaxmesh.ttnn.signatures import NEEDED, Name, Parameter

Test = Callable[[Any], bool]
_ARRAYS: Any = (np.ndarray, jax.Array)
_FLOAT: Any = (float, int, np.floating, np.integer, np.bool_)
_BOOL: Any = (bool, np.bool_)
_ROWS: Any = (list, tuple, MeshShape, MeshCoordinate)


def is_tensor(x: Any) -> bool:
    """Returns True for a tensor, or an array, which stands for one: in a program, and where a host tensor is wanted."""
    return isinstance(x, (TensorBase, *_ARRAYS))


def _is_integer(x: Any) -> bool:
    if type(x) is int:
        return True
    if is_tensor(x) or not isinstance(x, SupportsIndex):
        return False
    try:
        operator.index(x)
    except TypeError:
        return False
    return True


def _is_element_type(x: Any) -> bool:
    # A NumPy dtype stands for the `DataType` that equals it.
    return isinstance(x, (types.DataType, np.dtype, type)) or isinstance(getattr(x, "dtype", None), np.dtype)


def _is_row(x: Any) -> bool:
    return isinstance(x, _ROWS) and all(map(_is_integer, x))


_TESTS: Mapping[str, Test] = {
    "None": lambda x: x is None,
    "NoneType": lambda x: x is None,
    "Tensor": is_tensor,
    "int": _is_integer,
    "float": lambda x: isinstance(x, _FLOAT) and not is_tensor(x),
    "bool": lambda x: isinstance(x, _BOOL),
    "str": lambda x: isinstance(x, str),
    "DataType": _is_element_type,
    "Layout": lambda x: isinstance(x, types.Layout),
    "MemoryConfig": lambda x: isinstance(x, types.MemoryConfig),
    "MeshDevice": lambda x: isinstance(x, (MeshDevice, Mesh)),
    "MeshShape": _is_row,
    "MeshCoordinate": _is_row,
    "Shape": _is_row,
    "Topology": lambda x: isinstance(x, settings.Topology),
    "ReduceType": lambda x: isinstance(x, settings.ReduceType),
    "SigmoidMode": lambda x: isinstance(x, settings.SigmoidMode),
    "GeluVariant": lambda x: isinstance(x, settings.GeluVariant),
    "EmbeddingsType": lambda x: isinstance(x, settings.EmbeddingsType),
}
"""By the name of a type; other types, which the emulation does not have, take anything."""


@functools.cache
def test_of(declared: str) -> Test:
    """Returns a function that checks a value against a declared type."""
    if len(choices := _outer(declared, "|")) > 1:
        tests = [test_of(c) for c in choices]
        return lambda x: any(test(x) for test in tests)
    name, _, inside = declared.partition("[")
    if name == "Union":
        return test_of(" | ".join(_outer(inside[:-1], ",")))
    if name == "Optional":
        return test_of(f"{inside[:-1]} | None")
    if name in ("Sequence", "Tuple", "List"):
        test = test_of(_outer(inside[:-1], ",")[0])
        return lambda x: isinstance(x, _ROWS) and all(map(test, x))
    return _TESTS.get(name, lambda _: True)


def _outer(text: str, separator: str) -> list[str]:
    """Splits a type at the separators outside of brackets."""
    parts, depth, begin = list[str](), 0, 0
    for i, c in enumerate(text):
        depth += (c == "[") - (c == "]")
        if c == separator and depth == 0:
            parts.append(text[begin:i].strip())
            begin = i + 1
    return [*parts, text[begin:].strip()]


_OWNERS: Mapping[str, Any] = {
    "DataType": types.DataType,
    "Layout": types.Layout,
    "Topology": settings.Topology,
    "SigmoidMode": settings.SigmoidMode,
    "MathFidelity": settings.MathFidelity,
    "GeluVariant": settings.GeluVariant,
    "EmbeddingsType": settings.EmbeddingsType,
}


def default_of(parameter: Parameter) -> Any:
    """Returns the default of a parameter; its name if the emulation lacks such an object."""
    value = parameter.default
    if value is NEEDED or not isinstance(value, Name):
        return value
    if value == "DRAM_MEMORY_CONFIG":
        return types.DRAM_MEMORY_CONFIG
    owner, _, member = value.partition(".")
    return getattr(_OWNERS[owner], member) if owner in _OWNERS else value
