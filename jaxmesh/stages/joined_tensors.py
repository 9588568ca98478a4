"""Programs with arrays in place of `MeshTensor`s, as Tenstorrent's compiler takes them."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import PartitionSpec

from jaxmesh.dialects.residency import DEVICE, Residency, ResidencyMap
from jaxmesh.dialects.signature import Boundary
from jaxmesh.dialects.ttir.mesh_shard import full_to_shard, shard_to_full
from jaxmesh.errors import UnsupportedError
from jaxmesh.jaxprs import compat
from jaxmesh.jaxprs.compat import Aval, Jaxpr, as_abstract
from jaxmesh.jaxprs.evaluate import bind_at_source, interpret, trace_typed
from jaxmesh.sharding.shard_attributes import global_shape
from jaxmesh.tensor.mesh_tensor import MeshTensor, is_tensor


def tensor_arguments(boundary: Boundary) -> frozenset[int]:
    """Returns the numbers of the arguments that are `MeshTensor`s."""
    return frozenset(i for i, a in enumerate(boundary.arguments) if a.varying is not None and a.sharding is None)


def tensor_results(boundary: Boundary, residencies: Sequence[Residency]) -> frozenset[int]:
    """Returns the numbers of the results that are `MeshTensor`s."""
    kept = boundary.kept or (None,) * len(residencies)
    return frozenset(i for i, (r, s) in enumerate(zip(residencies, kept, strict=True)) if r is DEVICE and s is None)


def with_joined_tensors(boundary: Boundary, residency: ResidencyMap) -> tuple[Boundary, Jaxpr]:
    """Returns the program with arrays in place of `MeshTensor`s.

    The shards of a tensor are the pieces of the array's first dim, in the order of the mesh.

    Raises:
      UnsupportedError: an argument or a result is a scalar that differs between devices, which has no dim.
    """
    program, mesh = residency.program, boundary.mesh
    arguments, results = tensor_arguments(boundary), tensor_results(boundary, residency.results)
    rows = enumerate(zip(boundary.arguments, boundary.paths, strict=True))
    specs = {i: _spec(a.aval, a.varying or (), f"argument {path}") for i, (a, path) in rows if i in arguments}
    outs = {
        i: _spec(aval, [a for a in mesh.axis_names if a in compat.varying_axes(aval)], f"result {i}")
        for i, aval in enumerate(program.out_avals)
        if i in results
    }

    def flat(*xs: Any) -> list[Any]:
        shards = [full_to_shard(x, specs[i]) if i in specs else x for i, x in enumerate(xs)]
        values = interpret(program, shards, bind_at_source)
        return [shard_to_full(y, outs[i]) if i in outs else y for i, y in enumerate(values)]

    made = [
        dataclasses.replace(
            a, aval=jax.ShapeDtypeStruct(global_shape(a.aval.shape, specs[i], mesh.shape), a.aval.dtype), varying=None
        )
        if i in specs
        else a
        for i, a in enumerate(boundary.arguments)
    ]
    jaxpr = trace_typed(flat, [a.aval for a in made], [a.varying or () for a in made], as_abstract(mesh))
    return dataclasses.replace(boundary, arguments=tuple(made)), jaxpr


def join_tensors(tree: object) -> object:
    """Returns a tree of arguments with the arrays that `with_joined_tensors` takes in place of `MeshTensor`s."""
    return jax.tree.map(_joined, tree, is_leaf=is_tensor)


def _joined(tensor: object) -> Any:
    if not isinstance(tensor, MeshTensor):
        return tensor
    stored, rank = np.asarray(tensor.data), len(tensor.shape)
    if not tensor.varying:
        return stored
    axes = stored.ndim - rank
    first = np.moveaxis(stored, range(rank, stored.ndim), range(axes))
    return first.reshape(-1, *stored.shape[1:rank])


def _spec(aval: Aval, varying: Sequence[str], what: str) -> PartitionSpec:
    if varying and not aval.shape:
        raise UnsupportedError(
            f"{what} is a MeshTensor of scalars that differ along {', '.join(varying)}; Tenstorrent's "
            "compiler splits tensors along dims; make its shards of the shape [1]."
        )
    return PartitionSpec(tuple(varying)) if varying else PartitionSpec()
