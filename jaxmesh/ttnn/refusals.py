"""Applies the rules of the real functions to calls on tensors: refusals, and the types of the results."""

from __future__ import annotations

import contextlib
import contextvars
import enum
from collections.abc import Generator, Mapping, Sequence
from typing import Any, cast

import jax
import numpy as np

from jaxmesh.dialects.ttnn.rules import RULES
from jaxmesh.dialects.ttnn.rules.given import Form, Given, Result
from jaxmesh.ttnn.beyond import is_enabled
from jaxmesh.ttnn.mesh_tensor import MeshTensor
from jaxmesh.ttnn.tensor_base import TensorBase
from jaxmesh.ttnn.types import MemoryConfig, StorageType

_KNOWN = frozenset(
    {"BFLOAT16", "FLOAT32", "UINT32", "BFLOAT8_B", "BFLOAT4_B", "UINT8", "UINT16", "INT32", "INT8"}
)
"""Element types of the real library."""


_computing: contextvars.ContextVar[bool] = contextvars.ContextVar("computing_by_other_functions", default=False)


@contextlib.contextmanager
def computing() -> Generator[None]:
    """Applies no rules to the calls inside: a function composed of others has its own rule."""
    token = _computing.set(True)
    try:
        yield
    finally:
        _computing.reset(token)


def results_of(callee: str, values: Mapping[str, Any]) -> Sequence[Result] | None:
    """Returns the types of a call's results; None where no rule is known, or a tensor is beyond the real library.

    Raises:
      VerifyError: the real function refuses the call.
    """
    rule = RULES.get(callee)
    if rule is None or _computing.get() or jax.sharding.get_abstract_mesh().manual_axes:
        return None
    converted = {name: _convert(value) for name, value in values.items()}
    given = Given(callee, converted)
    tensors = given.tensors()
    if any(_is_array(v) for v in values.values()) or any(t.dtype not in _KNOWN for t in tensors):
        return None
    try:
        return rule(given)
    except ValueError:
        if is_enabled():
            return None
        raise


def _is_array(value: Any) -> bool:
    rows: Sequence[Any] = cast("Any", value) if isinstance(value, (list, tuple)) else [value]
    return any(isinstance(v, (np.ndarray, jax.Array)) for v in rows)


def form_of(tensor: TensorBase) -> Form:
    """Returns the type of a tensor as rules see it."""
    host = tensor.storage_type() is StorageType.HOST
    memory = tensor.memory_config()
    kind = "DRAM" if memory is None else memory.buffer_type.name
    devices = tensor.mesh.size if isinstance(tensor, MeshTensor) else 1
    return Form(tuple(tensor.shape), tensor.get_dtype().name, tensor.layout.name, host, kind, devices)


def _convert(value: Any) -> Any:
    if isinstance(value, TensorBase):
        return form_of(value)
    if isinstance(value, enum.Enum):
        return value.name
    if isinstance(value, MemoryConfig):
        return value.buffer_type.name
    if isinstance(value, np.dtype):
        return value.name.upper()
    if type(value) is list or type(value) is tuple:
        return [_convert(v) for v in cast("Sequence[Any]", value)]
    return value
