"""MeshTensor: a multi-device tensor.

A tensor is stored as one `jax.Array` of the local shape followed by one dim per mesh axis it varies over, sharded on
those. Every device then holds exactly its shard, equal shards need no axis, and `jax.vmap` may add dims in front.
"""

from __future__ import annotations

import itertools
import math
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import jax
import numpy as np
from jax.core import Tracer
from jax.sharding import AbstractMesh, Mesh, NamedSharding, PartitionSpec

from jaxmesh.errors import ArgumentTypeError, DeletedError, ResidencyError, UnsupportedError, VerifyError
from jaxmesh.jaxprs.export_registry import writable
from jaxmesh.runtime.array_views import is_deleted, local_view, view
from jaxmesh.runtime.distributed.collectives import is_here, one_shard
from jaxmesh.runtime.launch import check_process
from jaxmesh.sharding.configs import MeshCoordinate
from jaxmesh.ttnn.lazy_reshape import Computed, Later
from jaxmesh.ttnn.serialization import write
from jaxmesh.ttnn.tensor_methods import MeshMethods
from jaxmesh.ttnn.types import (
    ON_DEVICE,
    Layout,
    MemoryConfig,
    Place,
    Shape as LocalShape,
    StorageType,
    TensorTopology as TensorTopology,
)
from jaxmesh.validate import as_instance, as_tuple, quote

Shape = tuple[int, ...]

PART = "part"
"""The only axis of the storage mesh of a tensor that some devices hold nothing of."""
_HELD: Any = (jax.Array, jax.ShapeDtypeStruct, np.ndarray, Later)
_GONE = object()
"""What a tensor holds that was deallocated."""


class MeshTensor(MeshMethods, Computed):
    """A tensor of one shard per device of a mesh; `.shape` is the local shape, as in TTNN.

    Made by `jaxmesh.ttnn.distribute_tensor`, or by a program whose result stays on the devices. It is a pytree, may
    enter and leave functions under `jaxmesh.jit`, and goes back to the host through `jaxmesh.ttnn.aggregate_tensor`.
    Whether it is in host memory or on the devices, its layout and its memory are kept and shown; they make no
    difference to trees, types and caches.

    >>> import jax.numpy as jnp, jaxmesh as jm
    >>> from jaxmesh import ttnn
    >>> device = ttnn.open_mesh_device(mesh_shape=ttnn.MeshShape(2, 4))
    >>> t = ttnn.distribute_tensor(jnp.arange(16), ttnn.shard_tensor_to_mesh_mapper(device, 0))
    >>> t.shape, len(ttnn.get_device_tensors(t))
    (Shape([2]), 8)
    """

    __slots__ = ("_mesh", "_place", "_proven", "_shared", "_stored", "_topology", "_varying")

    def __init__(
        self,
        data: Any,
        mesh: Mesh | AbstractMesh,
        varying: Sequence[str],
        topology: TensorTopology | None = None,
        place: Place = ON_DEVICE,
    ) -> None:
        self._stored: Any = data
        self._mesh = as_instance((Mesh, AbstractMesh), "MeshTensor", "mesh", mesh)
        self._varying = _axes(mesh, varying)
        self._topology = topology
        self._place = place
        # Whether another tensor holds the same array, which a program that is given it may take the memory of.
        self._shared = False
        # The array whose copies are known to be equal; True of a value of a program that is being traced.
        self._proven: Any = None

    @property
    def data(self) -> Any:
        """The stored array: the local shape, then one dim per axis of `varying`.

        Raises:
          ResidencyError: the tensor was deallocated.
          DeletedError: it was donated to a program.
        """
        if type(held := self._held()) is Later:
            held = self.finished(held)
        if is_deleted(held):
            raise DeletedError(
                f"{self!r} was donated to a program (donate_argnums), which has taken its memory, or was deleted; use "
                "what the program gave back, or do not donate it."
            )
        return held

    def _held(self) -> Any:
        if self._stored is _GONE:
            raise ResidencyError(
                "this tensor was deallocated with deallocate and holds nothing any more; use it before, or keep it."
            )
        # A transformation may have put anything in the place of the array.
        held: Any = self._stored
        if not isinstance(held, _HELD):
            raise ArgumentTypeError(f"a MeshTensor holds a JAX array, this one holds {quote(held)}.")
        if held.ndim < len(self._varying):
            raise VerifyError(
                f"a MeshTensor is stored with one dim per mesh axis of {self._varying} last, but its array has the "
                f"shape {list(held.shape)}."
            )
        return held

    def handed(self) -> Any:
        """The stored array as a program is given it: one that no other tensor holds, because it may be donated."""
        held = self.data
        array: Any = held
        if self._shared and isinstance(array, jax.Array) and not isinstance(array, Tracer):
            known = self.proven
            held = self._stored = view(held)
            self._shared = False
            if known:
                self.as_proven()
        return held

    @property
    def proven(self) -> bool:
        """Whether equal copies are the work of a mapper, and not a claim: of the caller, or of a program's types."""
        return self._proven is not None and self._proven() is self._stored

    def as_proven(self) -> MeshTensor:
        """The same tensor; whoever made it knows that its copies are equal."""
        self._proven = weakref.ref(self._stored)
        return self

    @property
    def place(self) -> Place:
        """Where it is stored, in which layout and memory."""
        return self._place

    def storage_type(self) -> StorageType:
        """Whether it is in host memory, one shard per device, or on the devices."""
        return self._place.storage

    @property
    def layout(self) -> Layout:
        """How it lies in memory."""
        return self._place.layout

    def memory_config(self) -> MemoryConfig | None:
        """Where it lies on each device; None on the host."""
        return self._place.memory

    @property
    def topology(self) -> TensorTopology | None:
        """What `tensor_topology` gives; None of a tensor that was computed."""
        return self._topology

    def overwrite(self, other: MeshTensor) -> None:
        """Takes over what another tensor of its shape holds, as ops do that write into an operand."""
        self._stored, self._varying, self._topology = other.data, other.varying, None
        self._shared = other._shared = True

    def placed(self, place: Place) -> MeshTensor:
        """The same tensor, stored elsewhere or otherwise."""
        made = MeshTensor(self.data, self._mesh, self._varying, self._topology, place)
        made._shared = self._shared = True
        made._proven = self._proven
        return made

    def is_allocated(self) -> bool:
        """Whether it was neither deallocated nor donated."""
        return self._stored is not _GONE and not is_deleted(self._stored)

    def deallocate(self, force: bool = False) -> None:
        """Gives up what it holds; using it afterwards is an error. Tensors made from it keep what they hold.

        Args:
          force: whether the real `ttnn` also takes the memory from other tensors that share it; no tensor does here.
        """
        self._stored = _GONE

    @property
    def varying(self) -> tuple[str, ...]:
        """The mesh axes over which the shards differ, in mesh order."""
        return self._varying

    @property
    def mesh(self) -> Mesh | AbstractMesh:
        """The mesh whose devices hold the tensor."""
        sharding = getattr(self._held(), "sharding", None) if isinstance(self._mesh, AbstractMesh) else None
        return sharding.mesh if isinstance(sharding, NamedSharding) else self._mesh

    @property
    def shape(self) -> LocalShape:
        """The local (per-device) shape; a tuple.

        Raises:
          UnsupportedError: a transformation has put a dim behind the dims of the mesh.
        """
        rank, stored = self._held().ndim - len(self._varying), tuple(self._held().shape)
        if not self.partial and stored[rank:] != (sizes := tuple(self._mesh.shape[a] for a in self._varying)):
            raise UnsupportedError(
                f"a MeshTensor is stored with its mesh dims {sizes} last, but the stored shape is {stored}: a negative "
                "axis was given to jax.vmap. Count the axes of a MeshTensor from the front."
            )
        return tuple.__new__(LocalShape, stored[:rank])

    @property
    def dtype(self) -> Any:
        """The element type."""
        return self._held().dtype

    @property
    def ndim(self) -> int:
        """The rank."""
        return self._held().ndim - len(self._varying)

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
        """(mesh coordinate, this device's shard) of every device that holds one, row-major over the mesh.

        Of several processes each gets those of its own devices.
        """
        held = {s.device: s.data for s in self.data.addressable_shards}
        devices = self._devices()
        return [(c, local_view(held[d], self.shape)) for c, d in devices if d in held]

    def shard(self, coordinate: Sequence[int]) -> jax.Array:
        """The shard of the device at one coordinate.

        Raises:
          ArgumentTypeError: no row of integers.
          MeshError: the coordinate is not on the mesh.
          NotAddressableError: another process holds it; the message says which.
          VerifyError: that device holds nothing of the tensor.
        """
        return one_shard(self, coordinate)

    def _devices(self) -> list[tuple[MeshCoordinate, Any]]:
        mesh = self.mesh
        assert isinstance(mesh, Mesh)
        return [(MeshCoordinate(c), mesh.devices[c]) for c in itertools.product(*map(range, mesh.devices.shape))]

    def block_until_ready(self) -> MeshTensor:
        """Waits for the computation that makes it."""
        self.data.block_until_ready()
        return self

    def __copy__(self) -> MeshTensor:
        made = self.placed(self._place)
        owner = getattr(self, "_owner", None)
        if owner is not None:
            made._owner = owner
        return made

    def __deepcopy__(self, memo: dict[int, Any]) -> MeshTensor:
        # What it holds never changes: a copy may hold the same.
        return self.__copy__()

    def __reduce__(self) -> NoReturn:
        raise UnsupportedError(
            f"{self!r} cannot be pickled: its devices are this process's own. Write it with "
            "jaxmesh.ttnn.dump_tensor(path, tensor), or pickle what jaxmesh.ttnn.aggregate_tensor gives."
        )

    def held(self) -> set[Shape] | None:
        """The coordinates of the devices that hold a shard, if a mapper has said it."""
        return None if self._topology is None else {tuple(c) for c in self._topology.mesh_coords()}

    def __repr__(self) -> str:
        if self._stored is _GONE:
            return f"MeshTensor(deallocated, mesh={dict(self._mesh.shape)})"
        sizes = dict(self.mesh.shape)
        held = "" if not self.partial else f", on {self._stored.shape[-1]} of {_count(self.mesh)} devices"
        over = "" if self.partial else f", varying={self._varying}"
        where = "" if self._place.storage is StorageType.DEVICE else ", host"
        gone = ", donated" if is_deleted(self._stored) else ""
        return f"MeshTensor(shape={tuple(self.shape)}, dtype={self.dtype}, mesh={sizes}{over}{held}{where}{gone})"

    def _repr_html_(self) -> str:
        # Who only computes does not pay for pictures.
        from jaxmesh.drawing.mesh_tensor import as_html

        return as_html(self)


def _axes(mesh: Mesh | AbstractMesh, varying: Any) -> tuple[str, ...]:
    names = as_tuple("MeshTensor", varying, "a row of mesh axes as varying")
    if not all(isinstance(n, str) and (n in mesh.axis_names or names == (PART,)) for n in names):
        raise VerifyError(f"MeshTensor varies over {quote(names)}, but the mesh has the axes {tuple(mesh.axis_names)}.")
    return names


def _count(mesh: Mesh | AbstractMesh) -> int:
    return math.prod(mesh.shape.values())


@dataclass(frozen=True, slots=True, eq=False)
class _Note:
    """What a tensor knows beyond its type: equal to any other, so that it makes no difference to trees and caches."""

    topology: TensorTopology | None
    place: Place
    proven: Any = None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Note)

    def __hash__(self) -> int:
        return 0


_COMPUTED = _Note(None, ON_DEVICE)


def _flatten(t: MeshTensor) -> tuple[tuple[Any], tuple[Any, ...]]:
    stored: Any = t._stored  # pyright: ignore[reportPrivateUsage]
    # JAX also flattens trees of types, specs and trees; an error here costs recursion levels for ever (jaxlib 0.10).
    data = t.handed() if stored is _GONE or isinstance(stored, _HELD) else stored
    note = _Note(t._topology, t._place, t._proven)  # pyright: ignore[reportPrivateUsage]
    return (data,), (t._mesh, t._varying, note)  # pyright: ignore[reportPrivateUsage]


def _unflatten(aux: tuple[Any, ...], children: Sequence[Any]) -> MeshTensor:
    mesh, varying, note = aux
    # A compiled function is kept for every tensor of the type, so that its results know nothing of the first one.
    known = _COMPUTED if isinstance(children[0], Tracer) else note
    made = MeshTensor(children[0], mesh, varying, known.topology, known.place)
    made._proven = known.proven  # pyright: ignore[reportPrivateUsage]
    return made


jax.tree_util.register_pytree_node(MeshTensor, _flatten, _unflatten)
writable(MeshTensor, "jaxmesh.MeshTensor", lambda aux: write(aux[0], aux[1], aux[2].place))


def is_tensor(x: Any) -> bool:
    """Returns True for a `MeshTensor`: one leaf of a tree of arguments, although it is a pytree itself."""
    return isinstance(x, MeshTensor)


def spec_of(rank: int, varying: Sequence[str]) -> PartitionSpec:
    """The spec of a stored tensor of local rank `rank`."""
    return PartitionSpec(*[None] * rank, *varying)


def assemble(
    shards: dict[Shape, np.ndarray[Any, Any]],
    mesh: Mesh,
    varying: tuple[str, ...] | None,
    topology: TensorTopology | None,
    place: Place = ON_DEVICE,
) -> MeshTensor:
    """A tensor from the shard at each coordinate; `varying` None means that some devices hold nothing.

    Of several processes each has all shards at hand, and puts those on its own devices.
    """
    check_process()
    local = next(iter(shards.values())).shape
    if varying is None:
        devices = [mesh.devices[c] for c in shards]
        storage, varying = Mesh(np.array(devices), (PART,)), (PART,)
    else:
        storage = mesh
    shape = (*local, *[storage.shape[a] for a in varying])
    single = (*local, *[1] * len(varying))
    here = [(a, mesh.devices[c]) for c, a in shards.items() if is_here(mesh.devices[c])]
    arrays = [jax.device_put(a.reshape(single), device, may_alias=True) for a, device in here]
    sharding = NamedSharding(storage, spec_of(len(local), varying))
    dtype = next(iter(shards.values())).dtype
    data = jax.make_array_from_single_device_arrays(shape, sharding, arrays, dtype=dtype)
    return MeshTensor(data, mesh, varying, topology, place)
