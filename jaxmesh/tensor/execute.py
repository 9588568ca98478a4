"""Executes ops on multi-device tensors; each is compiled once for operands of the same types.

No op is special here. The meaning of an op is evaluated inside one `jit(shard_map)` over the mesh of its operands, and
the type of the result has the mesh axes that it varies over.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax.sharding import AbstractMesh, Mesh, NamedSharding, PartitionSpec
from jax.typing import DTypeLike

from jaxmesh.dialects import ttnn
from jaxmesh.dialects.op import OpDef, Trait, describe
from jaxmesh.dialects.perform import compute
from jaxmesh.errors import (
    ArgumentTypeError,
    JaxmeshError,
    MeshMismatchError,
    ResidencyError,
    UnsupportedError,
    VerifyError,
)
from jaxmesh.jaxprs import compat
from jaxmesh.jaxprs.caches import ARRAY, Cache, is_staged, settings
from jaxmesh.jaxprs.tracing_state import require_region
from jaxmesh.jaxprs.typed import typed
from jaxmesh.jaxprs.untyped import DType, Shape, jnp, lax
from jaxmesh.runtime.distributed.collectives import on_every_device
from jaxmesh.runtime.launch import launch
from jaxmesh.sharding.mesh import storage_spec
from jaxmesh.tensor.assemble import owner_of, set_owner
from jaxmesh.tensor.chains import Deferred, LazyReshape, Run, current_chain
from jaxmesh.tensor.mesh_tensor import MeshTensor
from jaxmesh.tensor.transfers import host_array
from jaxmesh.tensor.types import ON_DEVICE, Storage, StorageType
from jaxmesh.validate import check_size, quote

AnyMesh = Mesh | AbstractMesh
NUMBER = (int, float, complex, bool, np.generic)
_ARRAYS = (np.ndarray, jax.Array)
OperandType = tuple[tuple[str, ...], Shape, DType, Shape | None]
"""The mesh axes an operand varies over, its stored shape, its element type, and the local shape to give it first."""


class StaticArguments:
    """The arguments of an op besides its operands.

    Attributes:
      attributes: names and values.
      dtype: the element type of the result; None for the default of the op.
      shape: the shape of the result, of ops without operands.
      on_host: whether the op also takes tensors in host memory.
      key: equal for arguments of the same meaning. Equal values may mean different things (0.0 and -0.0, 1 and True),
        so the key has their text.
    """

    __slots__ = ("attributes", "dtype", "key", "on_host", "shape")

    def __init__(
        self,
        attributes: tuple[tuple[str, object], ...] = (),
        dtype: DType | None = None,
        shape: Shape | None = None,
        on_host: bool = False,
    ) -> None:
        self.attributes, self.dtype, self.shape, self.on_host = attributes, dtype, shape, on_host
        self.key = (dtype, shape, repr(attributes) if attributes else None)


@dataclass(frozen=True, slots=True)
class CompiledOp:
    """An op compiled for operands of some types.

    Attributes:
      run: the `jit(shard_map)`.
      results: the local shape of each result, the mesh axes over which it varies, and its stored shape and type.
      is_view: True if the op only reshapes its operand.
    """

    run: Run
    results: tuple[tuple[Shape, tuple[str, ...], tuple[Shape, DType]], ...]
    is_view: bool


NO_ARGUMENTS = StaticArguments()


def perform(
    definition: OpDef,
    title: str,
    operands: Sequence[object],
    static: StaticArguments,
    mesh: AnyMesh | None = None,
    storage: Storage = ON_DEVICE,
) -> list[Any]:
    """Performs one op on the devices, as a part of the program that is being traced, or on the host.

    Args:
      definition: the op.
      title: its name for messages, such as `ttnn.add`.
      operands: tensors, and numbers, which take the element type of the last tensor; a NumPy array of rank 0 keeps its
        own.
      static: the other arguments.
      mesh: the mesh, of ops without operands; None for a host tensor.
      storage: the storage of results on a mesh; results of host tensors are NumPy arrays.

    Results are on the mesh device of the operands.
    """
    require_region()
    around = jax.sharding.get_abstract_mesh()
    if not (around.empty or around.manual_axes):
        # The mesh of `jax.set_mesh` may be another one than the tensors'.
        with compat.without_mesh():
            return perform(definition, title, operands, static, mesh, storage)
    tensors = [x for x in operands if isinstance(x, MeshTensor)]
    if tensors:
        mesh = _common_mesh(title, tensors)
        for t in tensors:
            if t.storage.type is StorageType.HOST:
                storage = _host_storage(title, operands, static)
                break
        return _perform_on_mesh(definition, title, operands, static, mesh, storage)
    if around.manual_axes:
        sizes = compat.program_mesh(title)
        arrays = [x for x in operands if not isinstance(x, NUMBER)]
        return _compute(definition, title, [_convert_number(title, x, arrays) for x in operands], static, sizes)
    if mesh is not None:
        return _perform_on_mesh(definition, title, operands, static, mesh, storage)
    if operands and not static.on_host:
        raise _not_on_devices(title, operands, 0)
    # Copied in and out: an op that changes nothing would return the caller's own memory.
    arrays = [jnp.array(host_array(x, title)) for x in operands]
    return [np.array(x) for x in _compute(definition, title, arrays, static, {})]


def _common_mesh(title: str, tensors: Sequence[MeshTensor]) -> AnyMesh:
    mesh = tensors[0].mesh
    for t in tensors[1:]:
        other = t.mesh
        if other is not mesh and other != mesh:
            raise MeshMismatchError(
                f"{title}: its operands are on two meshes, {dict(mesh.shape)} and {dict(other.shape)}, or on other "
                "devices; aggregate one and distribute it over the mesh of the other."
            )
    return mesh


def _is_host(x: object) -> bool:
    return isinstance(x, _ARRAYS) or (isinstance(x, MeshTensor) and x.storage.type is StorageType.HOST)


def _host_storage(title: str, operands: Sequence[Any], static: StaticArguments) -> Storage:
    tensors = [x for x in operands if not isinstance(x, NUMBER)]
    if static.on_host and all(isinstance(x, MeshTensor) and _is_host(x) for x in tensors):
        return tensors[0].storage
    raise _not_on_devices(title, operands, next(i for i, x in enumerate(operands) if _is_host(x)))


def _not_on_devices(title: str, operands: Sequence[object], number: int) -> JaxmeshError:
    x = operands[number]
    if _is_host(x) or isinstance(x, MeshTensor):
        how, shown = "ttnn.distribute_tensor or ttnn.to_device", f"{type(x).__name__} {describe(x)}"
        if isinstance(x, MeshTensor):
            how, shown = "ttnn.to_device(x, device)", repr(x)
        return ResidencyError(
            f"{title} runs on the devices, but operand {number} is in host memory: {shown}. Bring it there first, "
            f"with {how}."
        )
    return ArgumentTypeError(f"{title} takes tensors, got {type(x).__name__} as operand {number}.")


# --- numbers ---------------------------------------------------------------------------------------------------------


def _convert_number(title: str, x: Any, tensors: Sequence[Any]) -> Any:
    """Returns a number in the element type of the last tensor; anything else unchanged."""
    if not isinstance(x, NUMBER):
        return x
    if not tensors:
        raise ArgumentTypeError(f"{title} takes tensors, got the number {quote(x)} alone.")
    last = tensors[-1]
    dtype = last.stored_dtype if isinstance(last, MeshTensor) else last.dtype
    number = _cast_exactly(x, dtype)
    if number is None:
        raise VerifyError(
            f"{title}: the number {quote(x)} takes the element type of the tensor beside it, {dtype}, which cannot "
            "hold it; typecast the tensor first."
        )
    return number


def _cast_exactly(x: Any, dtype: DTypeLike) -> object:
    """Returns a number in an element type: rounded as a float, exact as an integer or bool, None if impossible."""
    value = np.asarray(x)
    if value.dtype.kind in "OSUTmM":
        return None
    if value.dtype.kind == "c" and not jnp.issubdtype(dtype, jnp.complexfloating):
        return None
    try:
        with np.errstate(all="ignore"):
            number = value.astype(dtype)
    except (OverflowError, ValueError):
        return None
    rounds = bool(jnp.issubdtype(dtype, jnp.inexact))
    return number if rounds or (np.isfinite(value) and number.astype(value.dtype) == value) else None


_scalars = Cache[jax.Array](4096, "numbers on the devices")


def _copy_to_all(value: Any, mesh: AnyMesh) -> object:
    """Returns a number on every device; each is sent once."""
    if isinstance(mesh, AbstractMesh):
        return value
    key = (value.tobytes(), value.dtype, mesh)
    array = _scalars.get(key)
    if array is None:
        # Also inside a trace: the cached array must not be a value of it.
        with jax.ensure_compile_time_eval():
            # A copy: JAX may use the memory of its argument, and the array is cached.
            array = _scalars.put(key, on_every_device(value.copy(), mesh))
    return array


# --- on the devices --------------------------------------------------------------------------------------------------

_compiled = Cache[CompiledOp](1024, "ops on the devices")
_constants = Cache[list[Any]](64, "small results of ops without operands")
_SMALL = 2**17
"""Bytes on each device up to which results of ops without operands are cached: masks and tables of a model, which it
makes anew in every call."""


def _perform_on_mesh(
    definition: OpDef, title: str, operands: Sequence[object], static: StaticArguments, mesh: AnyMesh, storage: Storage
) -> list[MeshTensor]:
    data: list[object] = []
    types: list[OperandType] = []
    owner = owner_of(operands)
    for i, x in enumerate(operands):
        if isinstance(x, MeshTensor):
            try:
                stored, local = x.operand()
            except ResidencyError as error:
                raise type(error)(f"{title}: operand {i}: {error}") from None
            types.append((x.varying, stored.shape, stored.dtype, local))
        else:
            stored = _number_on_mesh(title, operands, i, mesh)
            types.append(((), stored.shape, stored.dtype, None))
        data.append(stored)
    key = (definition.name, mesh, static.key, *types)
    op = _compiled.get(key)
    if op is None:
        op = _compiled.put(key, _compile(definition, title, static, types, mesh))
    if op.is_view and isinstance(operands[0], MeshTensor) and type(data[0]) is ARRAY and not is_staged():
        return [set_owner(operands[0].reshape_lazily(op.results[0][0], storage, op.run), owner)]
    chain = current_chain()
    if chain is not None and not is_staged():
        outs: list[Any] = chain.add(op.run, data, [kind for _, _, kind in op.results])
    else:
        data = [x.compute() if type(x) is Deferred else x for x in data]
        outs = launch(op.run, *data) if data else _make_constants(op, (settings(), key))
    tensors = [MeshTensor(x, mesh, varying, None, storage) for x, (_, varying, _) in zip(outs, op.results, strict=True)]
    return tensors if owner is None else [set_owner(t, owner) for t in tensors]


def _number_on_mesh(title: str, operands: Sequence[object], i: int, mesh: AnyMesh) -> Any:
    """Returns a number, or a NumPy array of rank 0, on all devices."""
    x = operands[i]
    if isinstance(x, NUMBER):
        return _copy_to_all(_convert_number(title, x, [t for t in operands if isinstance(t, MeshTensor)]), mesh)
    if isinstance(x, np.ndarray) and not x.ndim:
        return _copy_to_all(host_array(x, title), mesh)
    raise _not_on_devices(title, operands, i)


def _make_constants(op: CompiledOp, key: Hashable) -> list[Any]:
    """Returns the results of an op without operands, which never differ; small ones are cached and shared."""
    outs = None if is_staged() else _constants.get(key)
    if outs is None:
        outs = launch(op.run)
        if not all(type(x) is ARRAY and x.nbytes <= _SMALL for x in outs):
            return outs
        outs = _constants.put(key, outs)
    return [LazyReshape(x) for x in outs]


def _compile(
    definition: OpDef, title: str, static: StaticArguments, operands: Sequence[OperandType], mesh: AnyMesh
) -> CompiledOp:
    _check_operand_types(title, operands, mesh)
    sizes = dict(mesh.shape)
    specs = tuple(storage_spec(len(shape) - len(varying), varying) for varying, shape, _, _ in operands)

    def compute_locally(stored: Sequence[jax.Array]) -> list[jax.Array]:
        shards = [
            # Converted even if the type is the same: a weakly typed array would give way to the other operand's type.
            lax.convert_element_type(
                lax.reshape(x, shape[: len(shape) - len(varying)] if local is None else local), dtype
            )
            for x, (varying, shape, dtype, local) in zip(stored, operands, strict=True)
        ]
        return _compute(definition, title, shards, static, sizes)

    results: list[tuple[Shape, tuple[str, ...], tuple[Shape, DType]]] = []

    def infer_types(*stored: jax.Array) -> jax.Array:
        for x in compute_locally(stored):
            found = compat.varying_axes(jax.typeof(x))
            axes = tuple(a for a in mesh.axis_names if a in found)
            results.append((x.shape, axes, ((*x.shape, *(sizes[a] for a in axes)), x.dtype)))
        return jnp.zeros(())

    def run(*stored: jax.Array) -> list[jax.Array]:
        outs = zip(compute_locally(stored), results, strict=True)
        return [lax.reshape(x, (*shape, *[1] * len(axes))) for x, (shape, axes, _) in outs]

    run.__name__ = run.__qualname__ = definition.name
    structs = [
        jax.ShapeDtypeStruct(shape, dtype, sharding=NamedSharding(mesh, spec))
        for spec, (_, shape, dtype, _) in zip(specs, operands, strict=True)
    ]
    typed.eval_shape(compat.shard_map(infer_types, mesh=mesh, in_specs=specs, out_specs=PartitionSpec()), *structs)
    out_specs = [storage_spec(len(shape), axes) for shape, axes, _ in results]
    mapped = compat.shard_map(run, mesh=mesh, in_specs=specs, out_specs=out_specs)
    unchanged = len(operands) == 1 and [axes for _, axes, _ in results] == [operands[0][0]]
    is_view = Trait.VIEW in definition.traits and unchanged
    return CompiledOp(typed.jit(mapped), tuple(results), is_view)


def _check_operand_types(title: str, operands: Sequence[OperandType], mesh: AnyMesh) -> None:
    for i, (varying, shape, dtype, _) in enumerate(operands):
        if any(a not in mesh.axis_names for a in varying):
            raise UnsupportedError(
                f"{title}: some devices hold nothing of operand {i}, {dtype}{list(shape[:-1])} on {shape[-1]} devices, "
                "but every device computes. Aggregate it and distribute it over the whole mesh."
            )
        last, wanted = shape[len(shape) - len(varying) :], tuple(mesh.shape[a] for a in varying)
        if last != wanted:
            raise UnsupportedError(
                f"{title}: a MeshTensor is stored with its mesh dims {wanted} last, but the stored shape is {shape}: a "
                "negative axis was given to jax.vmap. Count the axes of a MeshTensor from the front."
            )


def _compute(
    definition: OpDef, title: str, operands: Sequence[jax.Array], static: StaticArguments, mesh: Mapping[str, int]
) -> list[Any]:
    """Performs an op inside a typed trace; the op infers the types of its results."""
    like: object = static.dtype or (operands[0].dtype if operands else np.dtype(jnp.bfloat16))
    check_size(static.shape or (), like, f"{title}: its result")
    declared = [jax.ShapeDtypeStruct(static.shape or (), like)] * definition.results[0]
    # The caller knows the op by its Python name.
    outs = compute(definition, operands, dict(static.attributes), declared, mesh, title)
    for x in outs:
        check_size(x.shape, x.dtype, f"{title}: its result")
    if static.dtype is not None:
        outs[0] = lax.convert_element_type(outs[0], jax.dtypes.canonicalize_dtype(static.dtype))
    return outs


# --- by name ---------------------------------------------------------------------------------------------------------


def apply_operator(name: str, operands: Sequence[object]) -> object:
    """Returns the result of a Python operator by the op of TTNN of that name; `NotImplemented` for other operands."""
    known = (MeshTensor, *NUMBER, *_ARRAYS)
    # An object that NumPy converts to an array is in host memory.
    values: list[object] = [
        x if isinstance(x, known) or getattr(x, "__array__", None) is None else np.asarray(x) for x in operands
    ]
    return apply_op(name, values) if all(isinstance(x, known) for x in values) else NotImplemented


def apply_op(
    name: str,
    operands: Sequence[object],
    attributes: tuple[tuple[str, object], ...] = (),
    dtype: DType | None = None,
    storage: Storage | None = None,
) -> Any:
    """Returns the only result of an op of TTNN; with a storage, the op also takes tensors in host memory."""
    static = NO_ARGUMENTS if storage is None else StaticArguments(attributes, dtype, None, True)
    (out,) = perform(ttnn.OPS[name], f"ttnn.{name}", operands, static, None, storage or ON_DEVICE)
    return out
