"""The signature of a program: the types of its arguments, its trees, its mesh."""

from __future__ import annotations

from dataclasses import dataclass

import jax
from jax.sharding import NamedSharding, PartitionSpec
from jax.tree_util import PyTreeDef

from jaxmesh.dialects.residency import DEVICE, HOST, Residency
from jaxmesh.jaxprs.trees import show_paths
from jaxmesh.sharding.mesh import AnyMesh
from jaxmesh.sharding.shard_attributes import global_shape


@dataclass(frozen=True, slots=True)
class Argument:
    """The type of one argument of a program.

    Attributes:
      aval: its type; the local shape of a tensor on the devices.
      varying: of a tensor on the devices the mesh axes over which its shards may differ; None of a full host tensor.
      sharding: of an array on the mesh that is passed whole, its sharding; `aval` is its local type.
      role: as in `jaxmesh.dialects.program.Port`.
    """

    aval: jax.ShapeDtypeStruct
    varying: tuple[str, ...] | None
    sharding: NamedSharding | None = None
    role: str = ""

    @property
    def whole(self) -> tuple[int, ...]:
        """The shape of the array that a caller passes."""
        if self.sharding is None:
            return self.aval.shape
        return global_shape(self.aval.shape, self.sharding.spec, self.sharding.mesh.shape)


@dataclass(frozen=True, slots=True)
class Boundary:
    """The signature of a program.

    Attributes:
      name: of the function.
      mesh: the mesh of the program, with or without devices.
      in_tree: the tree of the arguments: `(args, kwargs)`.
      arguments: the types of its leaves.
      donated: the numbers of the arguments whose buffers a run may reuse.
      out_specs: on Explicit axes the specs in the types of full results.
      kept: the specs of results that stay on the mesh and that a caller gets as whole arrays; None for other results.
      weak: the numbers of the results that have weak types.
      public: whether the text that it was imported from says that it is public.
      placed: the numbers of the arguments that were given with a sharding, which stay on the devices between calls.
      parameters: the names of the positional arguments; empty if they are unknown.
      names: of a file, the names of its arguments.
    """

    name: str
    mesh: AnyMesh
    in_tree: PyTreeDef
    arguments: tuple[Argument, ...]
    donated: tuple[int, ...] = ()
    out_specs: tuple[PartitionSpec, ...] | None = None
    kept: tuple[PartitionSpec | None, ...] = ()
    weak: tuple[int, ...] = ()
    public: bool = False
    parameters: tuple[str, ...] = ()
    placed: frozenset[int] = frozenset()
    names: tuple[str, ...] = ()

    @property
    def paths(self) -> list[str]:
        """The path of each argument, such as `params['layer']['kernel']`; of a file its name there."""
        return [*self.names] or show_paths(self.in_tree, self.parameters)

    @property
    def residencies(self) -> tuple[Residency, ...]:
        """The residency of each argument."""
        return tuple(HOST if a.varying is None else DEVICE for a in self.arguments)

    @property
    def sizes(self) -> dict[str, int]:
        """The size of each mesh axis."""
        return dict(self.mesh.shape)
