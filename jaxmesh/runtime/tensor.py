"""MeshTensor: a multi-device tensor, and moving it between the host and the devices.

A tensor is stored as one `jax.Array` of the local shape followed by one dim per mesh axis it varies over, sharded on
those. Every device then holds exactly its shard, equal shards need no axis, and `jax.vmap` may add dims in front.
"""

from __future__ import annotations

import functools
import html
import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import jax
import numpy as np
from jax.sharding import AbstractMesh, Mesh, NamedSharding, PartitionSpec

from jaxmesh.configs import MeshComposerConfig, MeshCoordinate, MeshMapperConfig, MeshShape, Placement
from jaxmesh.distribution import Distribution, resolve_composer, resolve_mapper
from jaxmesh.errors import ArgumentTypeError, MeshMismatchError, ResidencyError, UnsupportedError, VerifyError

Shape = tuple[int, ...]
PART = "part"
"""The only axis of the storage mesh of a tensor that some devices hold nothing of."""


@dataclass(frozen=True, slots=True)
class TensorTopology:
    """Where the shards of a tensor lie, as in `ttnn.TensorTopology`."""

    _distribution_shape: MeshShape
    _placements: tuple[Placement, ...]
    _mesh_coords: tuple[MeshCoordinate, ...]

    def distribution_shape(self) -> MeshShape:
        """The shape of the distribution."""
        return self._distribution_shape

    def placements(self) -> list[Placement]:
        """One placement per axis of the distribution."""
        return list(self._placements)

    def mesh_coords(self) -> list[MeshCoordinate]:
        """The mesh coordinates that hold a shard, in row-major order of the distribution."""
        return list(self._mesh_coords)


class MeshTensor:
    """A tensor on the devices of a mesh; `.shape` is the local shape, as in TTNN.

    Made by `jaxmesh.ttnn.distribute_tensor`, or by a program whose result stays on the devices. It is a pytree, may
    enter and leave functions under `jaxmesh.jit`, and goes back to the host through `jaxmesh.ttnn.aggregate_tensor`.

    >>> import jax.numpy as jnp, jaxmesh as jm
    >>> from jaxmesh import ttnn
    >>> device = ttnn.open_mesh_device(mesh_shape=ttnn.MeshShape(2, 4))
    >>> t = ttnn.distribute_tensor(jnp.arange(16), ttnn.shard_tensor_to_mesh_mapper(device, 0))
    >>> t.shape, len(ttnn.get_device_tensors(t))
    ((2,), 8)
    """

    __slots__ = ("_data", "_mesh", "_topology", "_varying")

    def __init__(
        self, data: Any, mesh: Mesh | AbstractMesh, varying: Sequence[str], topology: TensorTopology | None = None
    ) -> None:
        self._data = data
        self._mesh = mesh
        self._varying = tuple(varying)
        self._topology = topology

    @property
    def data(self) -> Any:
        """The stored array: the local shape, then one dim per axis of `varying`."""
        return self._data

    @property
    def varying(self) -> tuple[str, ...]:
        """The mesh axes over which the shards differ, in mesh order."""
        return self._varying

    @property
    def mesh(self) -> Mesh | AbstractMesh:
        """The mesh whose devices hold the tensor."""
        sharding = getattr(self._data, "sharding", None) if isinstance(self._mesh, AbstractMesh) else None
        return sharding.mesh if isinstance(sharding, NamedSharding) else self._mesh

    @property
    def shape(self) -> Shape:
        """The local (per-device) shape.

        Raises:
          UnsupportedError: a transformation has put a dim behind the dims of the mesh.
        """
        rank = self._data.ndim - len(self._varying)
        stored = tuple(self._data.shape)
        if not self.partial and stored[rank:] != (sizes := tuple(self._mesh.shape[a] for a in self._varying)):
            raise UnsupportedError(
                f"a MeshTensor is stored with its mesh dims {sizes} last, but the stored shape is {stored}: a negative "
                "axis was given to jax.vmap. Count the axes of a MeshTensor from the front."
            )
        return stored[:rank]

    @property
    def dtype(self) -> Any:
        """The element type."""
        return self._data.dtype

    @property
    def ndim(self) -> int:
        """The rank."""
        return self._data.ndim - len(self._varying)

    @property
    def partial(self) -> bool:
        """Whether some devices of the mesh hold nothing."""
        return self._varying == (PART,)

    def tensor_topology(self) -> TensorTopology:
        """Distribution shape, placements and coordinates.

        Raises:
          UnsupportedError: the tensor was computed, so no mapper says which dim an axis cut.
        """
        if self._topology is None:
            raise UnsupportedError(
                f"this tensor was computed by a program: it varies over {self._varying}, but no mapper says which "
                "tensor dim each axis cut. Only tensors made by distribute_tensor or from_host_shards have a topology."
            )
        return self._topology

    def shards(self) -> list[tuple[MeshCoordinate, jax.Array]]:
        """(mesh coordinate, this device's shard) of every device that holds one, row-major over the mesh."""
        held = {s.device: s.data for s in self._data.addressable_shards}
        devices = self._devices()
        return [(c, _local_view(held[d], self.shape)) for c, d in devices if d in held]

    def _devices(self) -> list[tuple[MeshCoordinate, Any]]:
        mesh = self.mesh
        assert isinstance(mesh, Mesh)
        every = ((MeshCoordinate(c), mesh.devices[c]) for c in itertools.product(*map(range, mesh.devices.shape)))
        return list(every)

    def block_until_ready(self) -> MeshTensor:
        """Waits for the computation that makes it."""
        self._data.block_until_ready()
        return self

    def __array__(self, *_: Any, **__: Any) -> NoReturn:
        raise ResidencyError(
            f"a MeshTensor of local shape {self.shape} on {_count(self.mesh)} devices has no single value on the host; "
            "read it with jaxmesh.ttnn.aggregate_tensor(tensor, composer), or per device with get_device_tensors."
        )

    def __jax_array__(self) -> NoReturn:
        raise ResidencyError(
            f"a MeshTensor of local shape {self.shape} is used as an array. Inside a program give it to the function "
            "as an argument, which is then this device's shard; outside, read it with jaxmesh.ttnn.aggregate_tensor."
        )

    def __repr__(self) -> str:
        sizes = dict(self.mesh.shape)
        held = "" if not self.partial else f", on {self._data.shape[-1]} of {_count(self.mesh)} devices"
        over = "" if self.partial else f", varying={self._varying}"
        return f"MeshTensor(shape={self.shape}, dtype={self.dtype}, mesh={sizes}{over}{held})"

    def _repr_html_(self) -> str:
        return _html(self)


def _local_view(stored: Any, shape: Shape) -> Any:
    """One device's stored shard without its dims of size 1: the same memory, and no computation to compile."""
    if stored.shape == shape:
        return stored
    if jax.dtypes.issubdtype(stored.dtype, jax.dtypes.extended):
        return stored.reshape(shape)
    (device,) = stored.devices()
    view: Any = jax.device_put(np.asarray(stored).reshape(shape), device, may_alias=True)
    return view


def _count(mesh: Mesh | AbstractMesh) -> int:
    return math.prod(mesh.shape.values())


@dataclass(frozen=True, slots=True, eq=False)
class _Note:
    """What a tensor knows beyond its type: equal to any other, so that it makes no difference to trees and caches."""

    topology: TensorTopology | None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Note)

    def __hash__(self) -> int:
        return 0


def _flatten(t: MeshTensor) -> tuple[tuple[Any], tuple[Any, ...]]:
    return (t._data,), (t._mesh, t._varying, _Note(t._topology))  # pyright: ignore[reportPrivateUsage]


def _unflatten(aux: tuple[Any, ...], children: Sequence[Any]) -> MeshTensor:
    mesh, varying, note = aux
    return MeshTensor(children[0], mesh, varying, note.topology)


jax.tree_util.register_pytree_node(MeshTensor, _flatten, _unflatten)


def spec_of(rank: int, varying: Sequence[str]) -> PartitionSpec:
    """The spec of a stored tensor of local rank `rank`."""
    return PartitionSpec(*[None] * rank, *varying)


# --- host to devices -------------------------------------------------------------------------------------------------


def host_array(tensor: Any, op: str) -> np.ndarray[Any, Any]:
    """A host tensor as NumPy, in the dtype JAX gives it.

    Raises:
      ResidencyError: the tensor is on the devices already.
      ArgumentTypeError: no tensor.
    """
    if isinstance(tensor, MeshTensor):
        raise ResidencyError(
            f"{op} needs a host tensor, got {tensor!r}, which is on the devices; aggregate_tensor brings it to the "
            "host."
        )
    if isinstance(tensor, jax.Array) and jax.dtypes.issubdtype(tensor.dtype, jax.dtypes.extended):
        raise ArgumentTypeError(
            f"{op} takes numeric tensors, got dtype {tensor.dtype}; pass jax.random.key_data(keys)."
        )
    if not isinstance(tensor, (jax.Array, np.ndarray, np.generic, int, float, complex, bool)):
        raise ArgumentTypeError(f"{op} takes a NumPy or JAX array, got {type(tensor).__name__}.")
    array = np.asarray(tensor)
    if array.dtype.kind in "OSUmM" or array.dtype.names is not None:
        raise ArgumentTypeError(f"{op} takes numeric tensors, got dtype {array.dtype}.")
    return array.astype(jax.dtypes.canonicalize_dtype(array.dtype), copy=False)


def distribute(tensor: Any, config: MeshMapperConfig, mesh: Mesh) -> MeshTensor:
    """`distribute_tensor`, eagerly: a host tensor onto the devices of a mesh.

    Raises:
      VerifyError: a rule of section 2 is broken.
    """
    host = host_array(tensor, "distribute_tensor")
    resolved = resolve_mapper(config, mesh.devices.shape, host.shape)

    @functools.cache
    def piece(place: Shape) -> np.ndarray[Any, Any]:
        # A private copy, so that neither a later write to the caller's array nor a shared buffer can be seen.
        return np.array(host[resolved.index(place)], order="C", copy=True)

    def cut_only(place: Shape) -> Shape:
        return tuple(p if d is not None else 0 for p, d in zip(place, resolved.dims, strict=True))

    shards = {c: piece(cut_only(p)) for c, p in resolved.placed()}
    varying = None if len(shards) < mesh.devices.size else _varying_names(resolved, mesh, cut_only)
    return assemble(shards, mesh, varying, _topology(config, resolved))


def _varying_names(resolved: Distribution, mesh: Mesh, cut_only: Callable[[Shape], Shape]) -> tuple[str, ...]:
    """The axes along which neighbouring devices hold different pieces."""
    held = {c: cut_only(p) for c, p in resolved.placed()}

    def differs(axis: int) -> bool:
        return any(held[c] != held[(*c[:axis], 0, *c[axis + 1 :])] for c in held)

    return tuple(n for axis, n in enumerate(mesh.axis_names) if differs(axis))


def _topology(config: MeshMapperConfig, resolved: Distribution) -> TensorTopology:
    shape = MeshShape(resolved.landing.shape)
    return TensorTopology(shape, config.placements, tuple(MeshCoordinate(c) for c in resolved.holders))


def assemble(
    shards: dict[Shape, np.ndarray[Any, Any]],
    mesh: Mesh,
    varying: tuple[str, ...] | None,
    topology: TensorTopology | None,
) -> MeshTensor:
    """A tensor from the shard at each coordinate; `varying` None means that some devices hold nothing."""
    local = next(iter(shards.values())).shape
    if varying is None:
        devices = [mesh.devices[c] for c in shards]
        storage, varying = Mesh(np.array(devices), (PART,)), (PART,)
    else:
        storage = mesh
    shape = (*local, *[storage.shape[a] for a in varying])
    single = (*local, *[1] * len(varying))
    arrays = [jax.device_put(a.reshape(single), mesh.devices[c], may_alias=True) for c, a in shards.items()]
    sharding = NamedSharding(storage, spec_of(len(local), varying))
    data = jax.make_array_from_single_device_arrays(shape, sharding, arrays)
    return MeshTensor(data, mesh, varying, topology)


# --- devices to host -------------------------------------------------------------------------------------------------


def aggregate(tensor: MeshTensor, config: MeshComposerConfig, mesh: Mesh) -> np.ndarray[Any, Any]:
    """`aggregate_tensor`, eagerly: the shards at the composer's coordinates, joined, on the host.

    Raises:
      VerifyError: a rule of section 2 is broken, or a coordinate holds nothing.
      MeshMismatchError: the tensor is on another mesh.
    """
    if tensor.mesh != mesh:
        wanted, got = dict(mesh.shape), dict(tensor.mesh.shape)
        how = "the same shape, other devices or names" if wanted == got else "another shape"
        raise MeshMismatchError(
            f"aggregate_tensor: the composer is for the mesh {wanted}, the tensor is on {got} ({how})."
        )
    resolved = resolve_composer(config, mesh.devices.shape, tensor.shape)
    held = {s.device: s.data for s in tensor.data.addressable_shards}
    out = np.empty(resolved.full, tensor.dtype)
    places = itertools.product(*map(range, resolved.landing.shape))
    for coordinate, place in zip(resolved.landing.coordinates(), places, strict=True):
        device = mesh.devices[coordinate]
        if device not in held:
            raise VerifyError(
                f"aggregate_tensor reads the shard at {list(coordinate)}, but that device holds nothing of this "
                f"tensor; it is on {len(held)} of {mesh.devices.size} devices. Override the mesh shape to those "
                "that do."
            )
        index = [slice(None)] * len(resolved.local)
        for dim, at in zip(resolved.dims, place, strict=True):
            if dim is not None:
                index[dim] = slice(at * resolved.local[dim], (at + 1) * resolved.local[dim])
        out[tuple(index)] = np.asarray(held[device]).reshape(resolved.local)
    return out


# --- a picture -------------------------------------------------------------------------------------------------------


def _html(t: MeshTensor) -> str:
    """A table of the mesh: each cell a device, with the slice it holds or what it varies over."""
    mesh = t.mesh
    names, sizes = list(mesh.shape), tuple(mesh.shape.values())
    held = None if t._topology is None else {tuple(c) for c in t._topology.mesh_coords()}  # pyright: ignore[reportPrivateUsage]
    columns = sizes[-1]
    rows: list[str] = []
    for start in itertools.product(*map(range, sizes[:-1])):
        cells: list[str] = []
        for last in range(columns):
            coordinate = (*start, last)
            empty = held is not None and coordinate not in held
            which = [f"{n}={c}" for n, c in zip(names, coordinate, strict=True) if n in t.varying or t.partial]
            text = "empty" if empty else f"{list(t.shape)} " + (", ".join(which) if which else "copy")
            cells.append(f"<td title='{coordinate}'>{html.escape(text)}</td>")
        rows.append("<tr>" + "".join(cells) + "</tr>")
    return f"<p>{html.escape(repr(t))}</p><table>{''.join(rows)}</table>"
