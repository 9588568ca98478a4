"""Converts the arguments of a call to attributes of the op, and operands and results to the types of the rules."""

from __future__ import annotations

import enum
import operator
from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from jaxmesh.dialects.attributes import Attribute
from jaxmesh.dialects.ttnn.op import SPELLINGS, Param
from jaxmesh.errors import ArgumentTypeError, ArgumentValueError
from jaxmesh.jaxprs.typed import typed
from jaxmesh.jaxprs.untyped import DType, jnp
from jaxmesh.sharding.mesh import AnyMesh
from jaxmesh.tensor.assemble import set_owner
from jaxmesh.tensor.execute import NUMBER, apply_op
from jaxmesh.tensor.host_tensor import Tensor, copy_to_devices, is_host_tensor, round_to_blocks
from jaxmesh.tensor.mesh_tensor import MeshTensor
from jaxmesh.tensor.transfers import to_mesh
from jaxmesh.tensor.types import DRAM_MEMORY_CONFIG, DataType, Layout, Storage, StorageType, is_block, stored_dtype
from jaxmesh.ttnn.rules.given import Result
from jaxmesh.validate import quote

_SCALAR: Any = np.generic


def convert_argument(callee: str, param: Param, attribute: Attribute, value: Any) -> Any:
    """Returns the value of an argument, of a type that the function declares, as the attribute it stands for."""
    name = param.name
    if param.form == "pairs":
        rows = [integers(callee, name, v) for v in value]
        if any(len(r) != 2 for r in rows):
            raise ArgumentTypeError(f"{callee} takes a list of pairs of integers as {name}, got {quote(value)}.")
        return tuple(n for row in rows for n in row)
    match attribute.kind:
        case "enum" | "str":
            return _spelling(param, value)
        case "int":
            return _integer(callee, name, value)
        case "ints":
            return integers(callee, name, value)
        case "any":
            row = [int(n) if isinstance(n, float) and n.is_integer() else n for n in np.atleast_1d(value).tolist()]
            return integers(callee, name, row) if isinstance(value, (list, tuple)) else _integer(callee, name, row[0])
        case "float" | "number":
            number = value.item() if isinstance(value, _SCALAR) else value
            if attribute.kind == "float":
                return float(number)
            # True is the number 1, as the real library takes it.
            return int(number) if isinstance(number, bool) else number
        case "bool":
            return bool(value)
        case _:
            return value


def integers(callee: str, name: str, value: Any) -> tuple[int, ...]:
    """Returns integers, or a single integer, as a tuple."""
    try:
        row: list[Any] = [value] if np.ndim(value) == 0 else list(value)
        numbers = tuple(map(operator.index, row))
    except Exception:
        raise ArgumentTypeError(f"{callee} takes integers as {name}, got {quote(value)}.") from None
    for number in numbers:
        _check_int64(callee, name, number)
    return numbers


def _check_int64(callee: str, name: str, number: int) -> None:
    """Checks that an integer has at most 64 bits, as attributes have."""
    if not -(2**63) <= number < 2**63:
        raise ArgumentValueError(f"{callee} takes integers from {-(2**63)} to {2**63 - 1} as {name}, got {number}.")


def _integer(callee: str, name: str, value: Any) -> int:
    try:
        number = operator.index(value)
    except TypeError:
        raise ArgumentTypeError(f"{callee} takes an integer as {name}, got {quote(value)}.") from None
    _check_int64(callee, name, number)
    return number


def _spelling(param: Param, value: Any) -> str:
    """Returns the dialect's spelling of a string or of an enum member of the API."""
    name = value.name if isinstance(value, enum.Enum) else value
    kind = param.form.partition(":")[2].rsplit(".", 1)[-1]
    if kind == "GeluVariant" and name == "FastLut":
        name = "Accurate"
    spellings = {there: here for here, there in SPELLINGS.get(kind, {}).items()}
    return spellings.get(name, name)


def convert_operands(operands: Sequence[object], computed: str | None) -> list[Any]:
    """Returns operands in the element type to compute in; numbers are rounded to it."""
    if computed is None:
        return list(operands)
    dtype = stored_dtype(DataType[computed], "an operand")
    return [_convert(x, dtype) for x in operands]


def _convert(x: Any, dtype: DType) -> Any:
    if isinstance(x, MeshTensor):
        return x if x.stored_dtype == dtype else apply_op("typecast", [x], (), dtype, x.storage)
    if isinstance(x, Tensor):
        return x if x.array.dtype == dtype else Tensor.wrap(x.array.astype(dtype), x.layout)
    if isinstance(x, NUMBER) and not isinstance(x, bool):
        return _stored_number(x, dtype)
    return x


def _stored_number(x: Any, dtype: DType) -> Any:
    """Returns a number as the real library stores it: a whole type takes its whole part, modulo its range."""
    if not jnp.issubdtype(dtype, np.integer):
        return np.asarray(x, dtype)
    with np.errstate(all="ignore"):
        return np.asarray(int(x) % 2**64, np.uint64).astype(dtype)


def finish(outs: Sequence[object], results: Sequence[Result]) -> list[Any]:
    """Returns results in the element types and layouts of a rule."""
    return [finish_one(x, r) for x, r in zip(outs, results, strict=True)]


def finish_one(x: Any, result: Result) -> Any:
    """Returns one result in the element type and layout of a rule."""
    kind, layout = DataType[result.dtype], Layout[result.layout]
    dtype = stored_dtype(kind, "a result")
    if result.shape is not None and tuple(x.shape) != result.shape and prod(x.shape) == prod(result.shape):
        x = x.reshape(result.shape)
    block = kind if is_block(kind) else None
    if isinstance(x, MeshTensor):
        if x.stored_dtype != dtype:
            x = apply_op("typecast", [x], (), dtype, x.storage)
        old = x.storage
        if block is not None:
            x = _rounded(x, block, old)
        if old.layout is layout and old.block is block:
            return x
        return x.with_storage(Storage(old.type, layout, old.memory_config, block))
    array = x.array if isinstance(x, Tensor) else np.asarray(x)
    array = array.astype(dtype)
    return Tensor.wrap(array if block is None else round_to_blocks(array, block), layout, block)


def _rounded(x: MeshTensor, block: DataType, storage: Storage) -> MeshTensor:
    data = _round(x.data, len(x.shape), block)
    return set_owner(MeshTensor(data, x.mesh, x.varying, x.topology, storage), x.owner)


def _round_stored(data: Any, rank: int, block: DataType) -> Any:
    """Returns a stored array, whose local shape stands first, rounded along the last local dim."""
    if rank == 0:
        return round_to_blocks(data[..., None], block, jnp)[..., 0]
    moved = jnp.moveaxis(data, rank - 1, -1)
    return jnp.moveaxis(round_to_blocks(moved, block, jnp), -1, rank - 1)


_round = typed.jit(_round_stored, static_argnums=(1, 2))


def bring_operands(operands: Sequence[MeshTensor], mesh: AnyMesh | None = None) -> list[Any] | None:
    """Returns operands with those in host memory brought to the devices, as the function itself does it.

    None if none is in host memory, or all are and no mesh is given.
    """
    here = [is_host_tensor(x) or (isinstance(x, MeshTensor) and x.storage.type is StorageType.HOST) for x in operands]
    there = [x for x, is_here in zip(operands, here, strict=True) if isinstance(x, MeshTensor) and not is_here]
    target: Any = there[0].mesh if there else mesh
    if target is None or not any(here):
        return None

    def bring(x: Any) -> object:
        if is_host_tensor(x):
            return copy_to_devices(x.array, target, x.layout, None)
        return to_mesh(x, target, DRAM_MEMORY_CONFIG)

    return [bring(x) if is_here else x for x, is_here in zip(operands, here, strict=True)]


def differ_in_storage(before: Sequence[MeshTensor], after: Sequence[MeshTensor]) -> bool:
    """Returns True for results of one storage whose arrays stayed as they were."""
    first = after[0].storage if isinstance(after[0], MeshTensor) else None
    return first is not None and all(
        y.storage == first
        and (x is y or (first.block is None and (x.shape, x.stored_dtype) == (y.shape, y.stored_dtype)))
        for x, y in zip(before, after, strict=True)
    )


def are_scalars(operands: Sequence[object]) -> bool:
    """Returns True for tensors on the devices without dims."""
    return bool(operands) and all(isinstance(x, MeshTensor) and not x.shape for x in operands)
