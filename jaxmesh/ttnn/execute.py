"""Compute ops on multi-device tensors: the meaning of a row of the table, on every device, compiled once per types.

Nothing is known here of any op: what a row means is evaluated inside one `jit(shard_map)` over the mesh of its
operands, and the result varies over the axes that its own type says.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import jax
import numpy as np
from jax.sharding import AbstractMesh, Mesh, NamedSharding, PartitionSpec

from jaxmesh.dialects.op import Call, OpDef, Trait, evaluate
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
from jaxmesh.runtime.distributed.collectives import on_every_device
from jaxmesh.runtime.launch import launch
from jaxmesh.ttnn.mesh_tensor import MeshTensor, spec_of
from jaxmesh.ttnn.transfers import host_array
from jaxmesh.ttnn.types import ON_DEVICE, Place, StorageType
from jaxmesh.validate import check_size

_lax: Any = jax.lax
_jnp: Any = jax.numpy
Shape = tuple[int, ...]
AnyMesh = Mesh | AbstractMesh
NUMBER = (int, float, complex, bool, np.generic)
_ARRAYS = (np.ndarray, jax.Array)
Kind = tuple[tuple[str, ...], Shape, np.dtype[Any], Shape | None]
"""An operand as compiled for: the axes it varies over, its stored shape, its element type, and the local shape that it
is to have where that is another."""


class Said:
    """What a call says besides its operands.

    Attributes:
      attributes: names and values.
      dtype: the element type of the result; None for what the row gives.
      shape: the shape of the result, of rows that make one of nothing.
      hosted: whether host tensors are taken too.
      key: what tells two of them apart. Equal values may mean different things (0.0 and -0.0, 1 and True), unlike what
        is written for them.
    """

    __slots__ = ("attributes", "dtype", "hosted", "key", "shape")

    def __init__(
        self,
        attributes: tuple[tuple[str, Any], ...] = (),
        dtype: np.dtype[Any] | None = None,
        shape: Shape | None = None,
        hosted: bool = False,
    ) -> None:
        self.attributes, self.dtype, self.shape, self.hosted = attributes, dtype, shape, hosted
        self.key = (dtype, shape, repr(attributes) if attributes else None)


@dataclass(frozen=True, slots=True)
class Compiled:
    """An op for operands of some kinds: what runs it, and of each result the local shape and the axes it varies over.

    Attributes:
      views: whether all it does is to give its operand another shape.
    """

    run: Callable[..., Any]
    results: tuple[tuple[Shape, tuple[str, ...]], ...]
    views: bool


NOTHING = Said()


def perform(
    row: OpDef, title: str, operands: Sequence[Any], said: Said, mesh: AnyMesh | None = None, place: Place = ON_DEVICE
) -> list[Any]:
    """Performs one op, on the devices, as a part of the program that is being traced, or on the host.

    Args:
      row: the op.
      title: its name for messages, such as `ttnn.add`.
      operands: tensors, and numbers, which take the element type of the last tensor; a NumPy array of rank 0 keeps its
        own.
      said: what the call says besides.
      mesh: the mesh, of ops that make a tensor of nothing; None for a host tensor.
      place: where results on a mesh are stored; those of host tensors stay on the host.

    Returns:
      `MeshTensor`s; inside a program traced shards; NumPy arrays of host tensors.

    Raises:
      ResidencyError: an operand is in host memory, or deallocated.
      MeshMismatchError: the operands are on different meshes.
      VerifyError: the op does not take these.
    """
    tensors = [x for x in operands if isinstance(x, MeshTensor)]
    if tensors:
        mesh = _mesh_of(title, tensors)
        if any(t.place.storage is StorageType.HOST for t in tensors):
            place = _host_place(title, operands, said)
        return _on_mesh(row, title, operands, said, mesh, place)
    if jax.sharding.get_abstract_mesh().manual_axes:
        sizes = compat.program_mesh(title)
        arrays = [x for x in operands if not isinstance(x, NUMBER)]
        return _meant(row, title, [_number(title, x, arrays) for x in operands], said, sizes)
    if mesh is not None:
        return _on_mesh(row, title, operands, said, mesh, place)
    if operands and not said.hosted:
        raise _not_on_devices(title, operands, 0)
    # Copies on the way in and out: what changes nothing would give back the caller's own memory.
    held = [_jnp.array(host_array(x, title)) for x in operands]
    return [np.array(x) for x in _meant(row, title, held, said, {})]


def _mesh_of(title: str, tensors: Sequence[MeshTensor]) -> AnyMesh:
    mesh = tensors[0].mesh
    for t in tensors[1:]:
        other = t.mesh
        if other is not mesh and other != mesh:
            raise MeshMismatchError(
                f"{title}: its operands are on two meshes, {dict(mesh.shape)} and {dict(other.shape)}, or on other "
                "devices; aggregate one and distribute it over the mesh of the other."
            )
    return mesh


def _is_host(x: Any) -> bool:
    return isinstance(x, _ARRAYS) or (isinstance(x, MeshTensor) and x.place.storage is StorageType.HOST)


def _host_place(title: str, operands: Sequence[Any], said: Said) -> Place:
    held = [x for x in operands if not isinstance(x, NUMBER)]
    if said.hosted and all(isinstance(x, MeshTensor) and _is_host(x) for x in held):
        return held[0].place
    raise _not_on_devices(title, operands, next(i for i, x in enumerate(operands) if _is_host(x)))


def _not_on_devices(title: str, operands: Sequence[Any], number: int) -> JaxmeshError:
    x = operands[number]
    if isinstance(x, (MeshTensor, *_ARRAYS)):
        how = "ttnn.to_device(x, device)" if isinstance(x, MeshTensor) else "ttnn.distribute_tensor or ttnn.to_device"
        return ResidencyError(
            f"{title} runs on the devices, but operand {number} is in host memory: {_show(x)}. Bring it there first, "
            f"with {how}."
        )
    return ArgumentTypeError(f"{title} takes tensors, got {type(x).__name__} as operand {number}.")


def _show(x: Any) -> str:
    return repr(x) if isinstance(x, MeshTensor) else f"{type(x).__name__} {x.dtype}{list(x.shape)}"


# --- numbers ---------------------------------------------------------------------------------------------------------


def _number(title: str, x: Any, tensors: Sequence[Any]) -> Any:
    """A number in the element type of the last tensor; anything else as it is.

    Raises:
      VerifyError: the type cannot hold it.
    """
    if not isinstance(x, NUMBER):
        return x
    if not tensors:
        raise ArgumentTypeError(f"{title} takes tensors, got the number {x!r} alone.")
    dtype = tensors[-1].dtype
    held = _held(x, dtype)
    if held is None:
        raise VerifyError(
            f"{title}: the number {x!r} takes the element type of the tensor beside it, {dtype}, which cannot hold it; "
            "typecast the tensor first."
        )
    return held


def _held(x: Any, dtype: Any) -> Any:
    """A number in an element type. Floats round; integers and truth values hold a number, or do not."""
    value: Any = np.asarray(x)
    if value.dtype.kind in "OSUTmM":
        return None
    if value.dtype.kind == "c" and not _jnp.issubdtype(dtype, _jnp.complexfloating):
        return None
    try:
        with np.errstate(all="ignore"):
            held = value.astype(dtype)
    except OverflowError:
        return None
    rounds = bool(_jnp.issubdtype(dtype, _jnp.inexact))
    return held if rounds or (np.isfinite(value) and held.astype(value.dtype) == value) else None


_scalars = Cache[jax.Array](4096, "numbers on the devices")


def _on_all(value: Any, mesh: AnyMesh) -> Any:
    """A number on every device; the same one is sent once."""
    if isinstance(mesh, AbstractMesh):
        return value
    key = (value.tobytes(), value.dtype, mesh)
    found = _scalars.get(key)
    if found is None:
        # Also inside a trace: what is kept must be no value of it.
        with jax.ensure_compile_time_eval():
            # A copy: JAX may hold on to the memory of what it is given, and this one is kept.
            found = _scalars.put(key, on_every_device(value.copy(), mesh))
    return found


# --- on the devices --------------------------------------------------------------------------------------------------

_compiled = Cache[Compiled](2048, "ops on the devices")
_made = Cache[list[Any]](64, "small tensors that ops make of nothing")
_SMALL = 2**17
"""Bytes on each device up to which what is made of nothing is kept: the masks and tables of a model, made anew in every
call."""


def _on_mesh(
    row: OpDef, title: str, operands: Sequence[Any], said: Said, mesh: AnyMesh, place: Place
) -> list[MeshTensor]:
    data: list[Any] = []
    kinds: list[Kind] = []
    for i, x in enumerate(operands):
        if isinstance(x, MeshTensor):
            try:
                stored, local = x.taken()
            except ResidencyError as error:
                raise type(error)(f"{title}: operand {i}: {error}") from None
            kinds.append((x.varying, stored.shape, stored.dtype, local))
        else:
            stored = _number_on(title, operands, i, mesh)
            kinds.append(((), stored.shape, stored.dtype, None))
        data.append(stored)
    key = (row.name, mesh, said.key, *kinds)
    found = _compiled.get(key)
    if found is None:
        found = _compiled.put(key, _build(row, title, said, kinds, mesh))
    if found.views and isinstance(operands[0], MeshTensor) and type(data[0]) is ARRAY and not is_staged():
        return [operands[0].viewed(found.results[0][0], place, found.run)]
    if not data:
        return _of_nothing(found, (settings(), key), mesh, place)
    outs = launch(found.run, *data)
    return [MeshTensor.computed(x, mesh, v, place) for x, (_, v) in zip(outs, found.results, strict=True)]


def _number_on(title: str, operands: Sequence[Any], i: int, mesh: AnyMesh) -> Any:
    """An operand that is no tensor, on all devices."""
    x = operands[i]
    if isinstance(x, NUMBER):
        return _on_all(_number(title, x, [t for t in operands if isinstance(t, MeshTensor)]), mesh)
    if isinstance(x, np.ndarray) and not x.ndim:
        return _on_all(host_array(x, title), mesh)
    raise _not_on_devices(title, operands, i)


def _of_nothing(op: Compiled, key: Hashable, mesh: AnyMesh, place: Place) -> list[MeshTensor]:
    """What an op without operands gives, which is the same every time."""
    outs = None if is_staged() else _made.get(key)
    if outs is None:
        outs = launch(op.run)
        if not all(type(x) is ARRAY and x.nbytes <= _SMALL for x in outs):
            return [MeshTensor.computed(x, mesh, v, place) for x, (_, v) in zip(outs, op.results, strict=True)]
        outs = _made.put(key, outs)
    return [MeshTensor.kept(x, mesh, v, place) for x, (_, v) in zip(outs, op.results, strict=True)]


def _build(row: OpDef, title: str, said: Said, kinds: Sequence[Kind], mesh: AnyMesh) -> Compiled:
    """The compiled op for operands of these kinds."""
    for i, (varying, shape, dtype, _) in enumerate(kinds):
        if any(a not in mesh.axis_names for a in varying):
            raise UnsupportedError(
                f"{title}: some devices hold nothing of operand {i}, {dtype}{list(shape[:-1])} on {shape[-1]} devices, "
                "but every device computes. Aggregate it and distribute it over the whole mesh."
            )
    sizes = dict(mesh.shape)
    for varying, shape, _, _ in kinds:
        last, wanted = shape[len(shape) - len(varying) :], tuple(sizes[a] for a in varying)
        if last != wanted:
            raise UnsupportedError(
                f"{title}: a MeshTensor is stored with its mesh dims {wanted} last, but the stored shape is {shape}: a "
                "negative axis was given to jax.vmap. Count the axes of a MeshTensor from the front."
            )
    specs = tuple(spec_of(len(shape) - len(varying), varying) for varying, shape, _, _ in kinds)

    def local(stored: Sequence[Any]) -> list[Any]:
        shards = [
            # An array that remembers to be a Python number would give way to the other operand's type.
            _lax.convert_element_type(
                _lax.reshape(x, shape[: len(shape) - len(varying)] if own is None else own), dtype
            )
            for x, (varying, shape, dtype, own) in zip(stored, kinds, strict=True)
        ]
        return _meant(row, title, shards, said, sizes)

    found: list[tuple[Shape, tuple[str, ...]]] = []

    def types(*stored: Any) -> Any:
        for x in local(stored):
            axes = compat.varying_axes(jax.typeof(x))
            found.append((x.shape, tuple(a for a in mesh.axis_names if a in axes)))
        return _jnp.zeros(())

    def run(*stored: Any) -> list[Any]:
        outs = zip(local(stored), found, strict=True)
        return [_lax.reshape(x, (*shape, *[1] * len(axes))) for x, (shape, axes) in outs]

    run.__name__ = run.__qualname__ = row.name
    structs = [
        jax.ShapeDtypeStruct(shape, dtype, sharding=NamedSharding(mesh, spec))
        for spec, (_, shape, dtype, _) in zip(specs, kinds, strict=True)
    ]
    jax.eval_shape(compat.shard_map(types, mesh=mesh, in_specs=specs, out_specs=PartitionSpec()), *structs)
    out_specs = [spec_of(len(shape), axes) for shape, axes in found]
    mapped = compat.shard_map(run, mesh=mesh, in_specs=specs, out_specs=out_specs)
    views = Trait.VIEW in row.traits and len(kinds) == 1 and [axes for _, axes in found] == [kinds[0][0]]
    return Compiled(jax.jit(mapped), tuple(found), views)


def _meant(row: OpDef, title: str, operands: Sequence[Any], said: Said, mesh: Mapping[str, int]) -> list[Any]:
    """What an op means for operands inside a typed trace; the types of its results follow from it."""
    like: Any = said.dtype or (operands[0].dtype if operands else np.dtype(_jnp.bfloat16))
    check_size(said.shape or (), like, f"{title}: its result")
    declared = [jax.ShapeDtypeStruct(said.shape or (), like)] * row.results[0]

    def meaning(call: Call) -> Any:
        made = row.meaning(call)
        outs = list(cast("Sequence[Any]", made)) if isinstance(made, (list, tuple)) else [made]
        for x in outs:
            check_size(x.shape, x.dtype, f"{title}: its result")
        declared[:] = [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in outs]
        return outs

    try:
        outs = evaluate(dataclasses.replace(row, meaning=meaning), operands, dict(said.attributes), declared, mesh)
    except VerifyError as error:
        text = str(error)
        raise type(error)(text.replace(f"ttir.{row.name}", title, 1)) from error
    if said.dtype is not None:
        outs[0] = _lax.convert_element_type(outs[0], jax.dtypes.canonicalize_dtype(said.dtype))
    return outs


def operator(name: str, operands: Sequence[Any]) -> Any:
    """A Python operator on tensors, by the row of TTNN of that name; `NotImplemented` for other operands."""
    known: Any = (MeshTensor, *NUMBER, *_ARRAYS)
    # What NumPy makes an array of is in host memory, whatever it is.
    held: list[Any] = [x if isinstance(x, known) or not hasattr(x, "__array__") else np.asarray(x) for x in operands]
    if not all(isinstance(x, known) for x in held):
        return NotImplemented
    return by_row(name, held)


def by_row(
    name: str,
    operands: Sequence[Any],
    attributes: tuple[tuple[str, Any], ...] = (),
    dtype: np.dtype[Any] | None = None,
    place: Place | None = None,
) -> Any:
    """One op by its name, of one result; with a place, tensors in host memory are taken, too."""
    from jaxmesh.dialects import ttnn

    _ = ttnn
    said = NOTHING if place is None else Said(attributes, dtype, None, True)
    (out,) = perform(ttnn.OPS[name].definition, f"ttnn.{name}", operands, said, None, place or ON_DEVICE)
    return out
