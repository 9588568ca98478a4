"""MeshTensor: a multi-device tensor.

A tensor is stored as one `jax.Array`: the local shape, then one dim per varying mesh axis, sharded over that axis.
Every device then stores exactly its shard, equal shards need no dim, and `jax.vmap` may add dims in front.
"""

from __future__ import annotations

import itertools
import math
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NoReturn, cast

import jax
import numpy as np
from jax.core import Tracer
from jax.sharding import AbstractMesh, Mesh, NamedSharding

from jaxmesh.errors import ArgumentTypeError, DeletedError, ResidencyError, UnsupportedError, VerifyError
from jaxmesh.jaxprs.caches import ARRAY
from jaxmesh.jaxprs.trees import register_writer
from jaxmesh.jaxprs.typed import typed
from jaxmesh.jaxprs.untyped import Shape
from jaxmesh.runtime.array_views import is_deleted, local_view, view
from jaxmesh.runtime.distributed.collectives import one_shard
from jaxmesh.sharding.configs import MeshCoordinate
from jaxmesh.tensor import types
from jaxmesh.tensor.chains import Deferred, LazyReshape, Run
from jaxmesh.tensor.mesh_device import MeshDevice
from jaxmesh.tensor.serialization import write
from jaxmesh.tensor.tensor_base import TensorBase
from jaxmesh.tensor.types import ON_DEVICE, Layout, MemoryConfig, Storage, StorageType, TensorTopology
from jaxmesh.validate import as_instance, as_tuple, quote

PART = "part"
"""The only axis of the storage mesh of a tensor that exists on some devices only."""
_STORED: Any = (jax.Array, jax.ShapeDtypeStruct, np.ndarray, LazyReshape, Deferred)
_DEALLOCATED = object()


class MeshTensor(TensorBase):
    """A tensor of one shard per device of a mesh; `.shape` is the local shape, as in TTNN.

    Made by `jaxmesh.ttnn.distribute_tensor`, or by a program whose result stays on the devices. It is a pytree, may
    enter and leave functions under `jaxmesh.jit`, and goes back to the host through `jaxmesh.ttnn.aggregate_tensor`.
    Storage and topology are kept and shown; they make no difference to trees, types and caches.

    Attributes:
      varying: the mesh axes over which the shards differ, in mesh order.
      storage: the storage type, the layout and the memory config.
      topology: the result of `tensor_topology`; None for a computed tensor.
      owner: the mesh device that the tensor was put on; None if only its mesh is known.

    >>> import jax.numpy as jnp, jaxmesh as jm
    >>> from jaxmesh import ttnn
    >>> device = ttnn.open_mesh_device(mesh_shape=ttnn.MeshShape(2, 4))
    >>> t = ttnn.distribute_tensor(jnp.arange(16), ttnn.shard_tensor_to_mesh_mapper(device, 0))
    >>> t.shape, len(ttnn.get_device_tensors(t))
    (Shape([2]), 8)
    """

    __slots__ = ("_is_shared", "_mesh", "_proven", "_stored", "owner", "storage", "topology", "varying")

    def __init__(
        self,
        data: Any,
        mesh: Mesh | AbstractMesh,
        varying: Sequence[str],
        topology: TensorTopology | None = None,
        storage: Storage = ON_DEVICE,
    ) -> None:
        if not isinstance(mesh, (Mesh, AbstractMesh)):
            as_instance((Mesh, AbstractMesh), "MeshTensor", "mesh", mesh)
        axes: Any = varying
        if type(varying) is not tuple:
            axes = as_tuple("MeshTensor", varying, "a row of mesh axes as varying")
        for axis in axes:
            if not isinstance(axis, str) or (axis not in mesh.axis_names and axes != (PART,)):
                names = tuple(mesh.axis_names)
                raise VerifyError(f"MeshTensor varies over {quote(axes)}, but the mesh has the axes {names}.")
        self._stored: Any = data
        self._mesh = mesh
        self.varying: tuple[str, ...] = axes
        self.topology = topology
        self.storage = storage
        self.owner: MeshDevice | None = None
        # True if another tensor has the same array, so that donating this one must not take its memory.
        self._is_shared = False
        # A weak reference to the array whose copies are known to be equal.
        self._proven: Any = None

    # --- the stored array ---

    @property
    def data(self) -> Any:
        """The stored array: the local shape, then one dim per axis of `varying`.

        Raises:
          ResidencyError: the tensor was deallocated.
          DeletedError: it was donated to a program.
        """
        if isinstance(stored := self._checked(), LazyReshape | Deferred):
            stored = self._replace(stored.compute())
        if is_deleted(stored):
            raise DeletedError(
                f"{self!r} was donated to a program (donate_argnums), which has taken its memory, or was deleted; use "
                "what the program gave back, or do not donate it."
            )
        return stored

    def _checked(self) -> Any:
        if self._stored is _DEALLOCATED:
            raise ResidencyError(
                "this tensor was deallocated with deallocate and holds nothing any more; use it before, or keep it."
            )
        # A function of `jax.tree` may replace the array by anything.
        if not isinstance(self._stored, _STORED):
            raise ArgumentTypeError(f"a MeshTensor holds a JAX array, this one holds {quote(self._stored)}.")
        if self._stored.ndim < len(self.varying):
            raise VerifyError(
                f"a MeshTensor is stored with one dim per mesh axis of {self.varying} last, but its array has the "
                f"shape {list(self._stored.shape)}."
            )
        return self._stored

    def _replace(self, data: object) -> Any:
        """Stores the same values as another array, and returns it."""
        proven = self.is_proven
        self._stored = data
        if proven:
            self.mark_proven()
        return data

    def unshared_data(self) -> Any:
        """Returns the stored array for a program that may donate it; no other tensor has this array."""
        data = self.data
        if not self._is_shared or not isinstance(data, jax.Array) or isinstance(data, Tracer):
            return self._stored
        self._is_shared = False
        return self._replace(view(data))

    def operand(self) -> tuple[Any, Shape | None]:
        """Returns a stored array for an op, and the local shape that the op must give it first, if any."""
        stored = self._stored
        if type(stored) is Deferred or (type(stored) is ARRAY and not stored.is_deleted()):
            return stored, None
        if type(stored) is LazyReshape and not stored.stored.is_deleted():
            return stored.stored, stored.local
        return self.data, None

    def reshape_lazily(self, local: Shape, storage: Storage, run: Run) -> MeshTensor:
        """Returns the same elements in another local shape; `run` reshapes the array of `operand`."""
        stored, _ = self.operand()
        if type(self._stored) is not LazyReshape:
            self._replace(LazyReshape(stored))
        shape = (*local, *stored.shape[stored.ndim - len(self.varying) :])
        return MeshTensor(LazyReshape(stored, local, shape, run), self.mesh, self.varying, None, storage)

    def overwrite(self, other: MeshTensor) -> None:
        """Stores the values of another tensor of the same shape, as ops do that write into an operand."""
        self._stored, self.varying, self.topology = other.data, other.varying, None
        self._is_shared = other._is_shared = True

    def with_storage(self, storage: Storage) -> MeshTensor:
        """Returns the same tensor with another storage type, layout or memory config."""
        stored = self._stored if type(self._stored) is Deferred else self.data
        tensor = MeshTensor(stored, self._mesh, self.varying, self.topology, storage)
        tensor._is_shared = self._is_shared = True
        tensor._proven = self._proven
        tensor.owner = self.owner if storage.type is StorageType.DEVICE else None
        return tensor

    @property
    def is_proven(self) -> bool:
        """True if a mapper made the equal copies; False if a caller or the types of a program only claim them."""
        return self._proven is not None and self._proven() is self._stored

    def mark_proven(self) -> MeshTensor:
        """Records that the copies are known to be equal, and returns the tensor."""
        self._proven = weakref.ref(self._stored)
        return self

    def is_allocated(self) -> bool:
        """Returns True if the tensor was neither deallocated nor donated."""
        return self._stored is not _DEALLOCATED and not is_deleted(self._stored)

    def deallocate(self, force: bool = False) -> None:
        """Releases the array; using the tensor afterwards is an error. Tensors made from it keep theirs.

        Args:
          force: whether the real `ttnn` also takes the memory from other tensors that share it; no tensor does here.
        """
        self._stored = _DEALLOCATED

    def block_until_ready(self) -> MeshTensor:
        """Waits for the computation of the tensor."""
        self.data.block_until_ready()
        return self

    # --- storage ---

    def storage_type(self) -> StorageType:
        """Returns HOST for one shard per device in host memory, else DEVICE."""
        return self.storage.type

    @property
    def layout(self) -> Layout:
        """The layout in memory."""
        return self.storage.layout

    def memory_config(self) -> MemoryConfig | None:
        """Returns the memory config on each device; None on the host."""
        return self.storage.memory_config

    def device(self) -> MeshDevice | None:
        """Returns the mesh device the tensor is on; None for a tensor in host memory.

        Raises:
          MeshError: the device was closed.
        """
        if self.storage.type is StorageType.HOST:
            return None
        if self.owner is None:
            mesh: Any = self.mesh
            return MeshDevice(mesh)
        return self.owner.check_open()

    # --- type ---

    @property
    def mesh(self) -> Mesh | AbstractMesh:
        """The mesh of the devices."""
        if type(self._mesh) is Mesh:
            return self._mesh
        sharding = getattr(self._checked(), "sharding", None)
        return sharding.mesh if isinstance(sharding, NamedSharding) else self._mesh

    @property
    def shape(self) -> types.Shape:
        """The local (per-device) shape; a tuple.

        Raises:
          UnsupportedError: a transformation has put a dim behind the dims of the mesh.
        """
        stored = tuple(self._checked().shape)
        rank = len(stored) - len(self.varying)
        if not self.is_partial and stored[rank:] != (sizes := tuple(self._mesh.shape[a] for a in self.varying)):
            raise UnsupportedError(
                f"a MeshTensor is stored with its mesh dims {sizes} last, but the stored shape is {stored}: a negative "
                "axis was given to jax.vmap. Count the axes of a MeshTensor from the front."
            )
        return cast("Any", tuple).__new__(types.Shape, stored[:rank])

    @property
    def dtype(self) -> Any:
        """The element type; a `DataType` if it is a block float, whose values are stored as float32."""
        return self.storage.block or self._checked().dtype

    @property
    def stored_dtype(self) -> Any:
        """The element type of the stored array, which of a block float is float32."""
        return self._checked().dtype

    @property
    def ndim(self) -> int:
        """The rank of the local shape."""
        return self._checked().ndim - len(self.varying)

    @property
    def is_partial(self) -> bool:
        """True if some devices of the mesh lack a shard."""
        return self.varying == (PART,)

    def tensor_topology(self) -> TensorTopology:
        """Returns distribution shape, placements and coordinates.

        Raises:
          UnsupportedError: the tensor was computed, so no mapper says which dim an axis cut.
        """
        if self.topology is None:
            raise UnsupportedError(
                f"this tensor was computed by a program: it varies over {self.varying}, but no mapper says which "
                "tensor dim each axis cut. Only tensors made by distribute_tensor or from_host_shards have a topology."
            )
        return self.topology

    def occupied_coordinates(self) -> set[Shape] | None:
        """Returns the mesh coordinates with a shard according to the mapper; None without a mapper."""
        return None if self.topology is None else {tuple(c) for c in self.topology.mesh_coords()}

    # --- shards ---

    def shards(self) -> list[tuple[MeshCoordinate, jax.Array]]:
        """Returns (mesh coordinate, shard) for every device with a shard, row-major over the mesh.

        Of several processes each gets the shards of its local devices.
        """
        shards = {s.device: s.data for s in self.data.addressable_shards}
        devices: Any = self.mesh.devices
        found = [(MeshCoordinate(c), devices[c]) for c in itertools.product(*map(range, devices.shape))]
        return [(c, local_view(shards[d], self.shape)) for c, d in found if d in shards]

    def shard(self, coordinate: Sequence[int]) -> jax.Array:
        """Returns the shard of the device at one mesh coordinate.

        Raises:
          ArgumentTypeError: no row of integers.
          MeshError: the coordinate is not on the mesh.
          NotAddressableError: another process has it; the message names it.
          VerifyError: that device has no shard of the tensor.
        """
        return one_shard(self, coordinate)

    # --- copies and text ---

    def __copy__(self) -> MeshTensor:
        return self.with_storage(self.storage)

    def __deepcopy__(self, memo: dict[int, object]) -> MeshTensor:
        # The array never changes, so a copy may share it.
        return self.__copy__()

    def __reduce__(self) -> NoReturn:
        raise UnsupportedError(
            f"{self!r} cannot be pickled: its devices are this process's own. Write it with "
            "jaxmesh.ttnn.dump_tensor(path, tensor), or pickle what jaxmesh.ttnn.aggregate_tensor gives."
        )

    def __repr__(self) -> str:
        if self._stored is _DEALLOCATED:
            return f"MeshTensor(deallocated, mesh={dict(self._mesh.shape)})"
        mesh = dict(self.mesh.shape)
        over = f", varying={self.varying}"
        if self.is_partial:
            over = f", on {self._stored.shape[-1]} of {math.prod(mesh.values())} devices"
        where = "" if self.storage.type is StorageType.DEVICE else ", host"
        donated = ", donated" if is_deleted(self._stored) else ""
        return f"MeshTensor(shape={tuple(self.shape)}, dtype={self.dtype}, mesh={mesh}{over}{where}{donated})"

    def _repr_html_(self) -> str:
        # Programs that only compute do not load the drawing.
        from jaxmesh.drawing.placements import as_html

        return as_html(self)

    def _repr_svg_(self) -> str | None:
        from jaxmesh.drawing.placements import as_svg

        return as_svg(self)


# --- pytree ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class _Annotations:
    """Properties of a tensor beyond its type; all compare equal, so that they do not matter to trees and caches."""

    topology: TensorTopology | None
    storage: Storage
    proven: Any = None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Annotations)

    def __hash__(self) -> int:
        return 0


_COMPUTED = _Annotations(None, ON_DEVICE)


def _flatten(t: MeshTensor) -> tuple[tuple[Any], tuple[Any, ...]]:
    stored = t._stored  # pyright: ignore[reportPrivateUsage]
    # JAX also flattens trees of types, specs and trees; an error here would leak recursion levels (jaxlib 0.10).
    data = t.unshared_data() if stored is _DEALLOCATED or isinstance(stored, _STORED) else stored
    proven, mesh = t._proven, t._mesh  # pyright: ignore[reportPrivateUsage]
    return (data,), (mesh, t.varying, _Annotations(t.topology, t.storage, proven))


def _unflatten(aux: tuple[Any, ...], children: Sequence[object]) -> MeshTensor:
    mesh, varying, annotations = aux
    # JAX keeps one compiled function for all tensors of a type, so its results must not inherit from the first one.
    known = _COMPUTED if isinstance(children[0], Tracer) else annotations
    tensor = MeshTensor(children[0], mesh, varying, known.topology, known.storage)
    tensor._proven = known.proven  # pyright: ignore[reportPrivateUsage]
    return tensor


typed.tree_util.register_pytree_node(MeshTensor, _flatten, _unflatten)
register_writer(MeshTensor, "jaxmesh.MeshTensor", lambda aux: write(aux[0], aux[1], aux[2].storage))


def is_tensor(x: object) -> bool:
    """Returns True for a `MeshTensor`: one leaf of a tree of arguments, although it is a pytree itself."""
    return isinstance(x, MeshTensor)
