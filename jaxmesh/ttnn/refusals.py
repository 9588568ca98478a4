"""Applies the rules of the real functions to calls on tensors: refusals, and the types of the results."""

from __future__ import annotations

import contextlib
import contextvars
import enum
from collections.abc import Mapping, Sequence
from typing import Any, cast

import jax
import numpy as np

from jaxmesh.dialects.ttnn.forms import EVERY
from jaxmesh.errors import ArgumentTypeError, JaxmeshError, VerifyError
from jaxmesh.jaxprs.tracing_state import set_within
from jaxmesh.tensor.beyond import REMEDY, is_enabled
from jaxmesh.tensor.mesh_tensor import MeshTensor
from jaxmesh.tensor.tensor_base import TensorBase
from jaxmesh.tensor.types import MemoryConfig, StorageType, as_dtype, data_type, stored_dtype
from jaxmesh.ttnn.rules import RULES
from jaxmesh.ttnn.rules.facts import check
from jaxmesh.ttnn.rules.given import Form, Given, Result
from jaxmesh.validate import quote

_computing: contextvars.ContextVar[bool] = contextvars.ContextVar("computing_by_other_functions", default=False)


def computing() -> contextlib.AbstractContextManager[None]:
    """Skips the rules of the calls inside: a function composed of others has its own rule."""
    return set_within(_computing, True)


def is_computing() -> bool:
    """Returns True where no rules apply."""
    return _computing.get()


def results_of(callee: str, values: Mapping[str, object]) -> Sequence[Result] | None:
    """Returns the types of a call's results; None where no rule is known, or a tensor is beyond the real library.

    Raises:
      VerifyError: the real function refuses the call.
    """
    _check_names(callee, values)
    if _computing.get() or jax.sharding.get_abstract_mesh().manual_axes:
        return None
    given = Given(callee, {name: _convert(value) for name, value in values.items()})
    beyond = is_enabled()
    if any(_is_array(v) for v in values.values()) or (_is_beyond(given, refuse=not beyond)):
        return None
    rule = RULES.get(callee)
    try:
        if rule is None:
            return None
        results = rule(given)
        check(given)
        return results
    except VerifyError:
        if beyond:
            return None
        raise
    except (TypeError, IndexError, KeyError, AttributeError, ValueError) as error:
        if isinstance(error, JaxmeshError):
            raise
        # Rules speak of arguments of the right types; the conversion of the others names them.
        return None


def _check_names(callee: str, values: Mapping[str, object]) -> None:
    """Checks the element type and the memory that a call names; an overload may declare no types."""
    if (dtype := values.get("dtype")) is not None:
        stored_dtype(dtype, callee)
    memory = values.get("memory_config")
    if memory is not None and not isinstance(memory, MemoryConfig):
        raise ArgumentTypeError(f"{callee} takes a ttnn.MemoryConfig as memory_config, got {quote(memory)}.")


def _is_beyond(given: Given, *, refuse: bool) -> bool:
    """Returns True for tensors that the real library cannot have; or refuses them."""
    types = [*(t.dtype for t in given.tensors()), *([given["dtype"]] if isinstance(given["dtype"], str) else [])]
    unknown = next((t for t in types if t not in EVERY), None)
    wide = next((t.mesh for t in given.tensors() if len(t.mesh) > 2), None)
    if refuse and unknown is not None:
        given.refuse(f"takes no {unknown}, {REMEDY}", f"there is no DataType.{unknown}")
    if refuse and wide is not None:
        given.refuse(f"takes no tensors on a mesh of {len(wide)} axes, {REMEDY}", "mesh shapes have one or two axes")
    return unknown is not None or wide is not None


def _is_array(value: object) -> bool:
    rows: Sequence[object] = cast("Any", value) if isinstance(value, (list, tuple)) else [value]
    return any(isinstance(v, (np.ndarray, jax.Array)) for v in rows)


def form_of(tensor: Any) -> Form:
    """Returns the type of a tensor as rules see it."""
    host = tensor.storage_type() is StorageType.HOST
    memory = tensor.memory_config()
    kind = "DRAM" if memory is None else memory.buffer_type.name
    mesh = tuple(tensor.mesh.shape.values()) if isinstance(tensor, MeshTensor) else (1,)
    owner = tensor.owner if isinstance(tensor, MeshTensor) else None
    small = owner is None or owner.has_l1_small
    return Form(tuple(tensor.shape), tensor.get_dtype().name, tensor.layout.name, host, kind, mesh, small)


def _convert(value: Any) -> Any:
    if isinstance(value, TensorBase):
        return form_of(value)
    if isinstance(value, enum.Enum):
        return value.name
    if isinstance(value, MemoryConfig):
        return getattr(value.buffer_type, "name", None)
    # A NumPy dtype, a NumPy type, or JAX's name of a type stands for the `DataType` that equals it.
    if isinstance(value, (np.dtype, type)):
        return data_type(as_dtype(value, "an argument")).name
    if type(value) is list or type(value) is tuple:
        return [_convert(v) for v in cast("Sequence[object]", value)]
    return value
