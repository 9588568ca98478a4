"""The TTIR dialect's one sharding operation, `mesh_shard`: attributes, verifier, result type, transformation rules.

Attribute names and spellings are tt-mlir's (`TTIROps.td`, `TTCoreOpsEnums.td`). The operation cannot be executed:
`passes/mesh_shard/lower_mesh_shard.py` lowers it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Any, NamedTuple, TypeVar

import jax
from jax.interpreters import batching
from jax.sharding import PartitionSpec
from jax.typing import ArrayLike

from jaxmesh.dialects.ttir.helpers import lax
from jaxmesh.dialects.varying import first_copy_only
from jaxmesh.errors import ArgumentTypeError, ReplicationError, UnsupportedShardTypeError, VerifyError
from jaxmesh.jaxprs import compat
from jaxmesh.jaxprs.untyped import Params, Shape
from jaxmesh.sharding.configs import integers
from jaxmesh.sharding.shard_attributes import (
    ShardAttributes,
    attributes_from_spec,
    check_divisible,
    counts_per_dim,
    spec_axes,
)
from jaxmesh.validate import as_array, as_bool, quote


class ShardType(Enum):
    """How a `mesh_shard` splits; `.value` is the dialect's spelling."""

    REPLICATE = "replicate"
    DEVICES = "devices"
    MAXIMAL = "maximal"
    IDENTITY = "identity"


class ShardDirection(Enum):
    """The direction of a `mesh_shard`; `.value` is the dialect's spelling."""

    FULL_TO_SHARD = "full_to_shard"
    SHARD_TO_FULL = "shard_to_full"

    @property
    def opposite(self) -> ShardDirection:
        """The way back, which a transpose goes."""
        splits = self is ShardDirection.FULL_TO_SHARD
        return ShardDirection.SHARD_TO_FULL if splits else ShardDirection.FULL_TO_SHARD


_E = TypeVar("_E", bound=Enum)


def _member(kind: type[_E], value: _E | str) -> _E:
    try:
        return kind(value)
    except (TypeError, ValueError, RuntimeError):
        allowed = ", ".join(repr(m.value) for m in kind)
        raise ArgumentTypeError(f"{quote(value)} is no {kind.__name__}; allowed: {allowed}.") from None


class MeshShardAttributes(NamedTuple):
    """The attributes of one `mesh_shard`."""

    shard_type: ShardType
    shard_direction: ShardDirection
    shard_shape: Shape
    shard_dims: Shape

    def dims_on(self, mesh_rank: int) -> Shape:
        """Returns `shard_dims` per mesh axis, with the replicate form written out."""
        return self.shard_dims if self.shard_type is ShardType.DEVICES else (-1,) * mesh_rank


def verify(attrs: MeshShardAttributes, shape: Shape, mesh: Mapping[str, int]) -> Shape:
    """Checks a `mesh_shard` of a tensor of `shape` over `mesh` (axis name to size) and gives the result shape.

    Stricter than upstream's verifier, which rejects `maximal` alone.

    Raises:
      VerifyError: a rule is broken; the message holds the rule and both offending values.
      UnsupportedShardTypeError: the shard type is `maximal`.

    >>> replicate = MeshShardAttributes(ShardType.REPLICATE, ShardDirection.FULL_TO_SHARD, (1,), (-1,))
    >>> verify(replicate, (16, 4), {"y": 2, "x": 4})
    (16, 4)
    """
    match attrs.shard_type:
        case ShardType.MAXIMAL:
            raise UnsupportedShardTypeError(
                "mesh_shard: shard_type 'maximal' (one device holds all) has no TTNN form; use 'replicate', or "
                f"'devices' with shard_dims that name a tensor dim per mesh axis. Got shard_dims "
                f"{list(attrs.shard_dims)} on the mesh {_show(mesh)}."
            )
        case ShardType.IDENTITY:
            return shape
        case ShardType.REPLICATE:
            _verify_replicate(attrs, len(shape), mesh)
            return shape
        case ShardType.DEVICES:
            _verify_devices(attrs, len(shape), mesh)
    if attrs.shard_direction is ShardDirection.FULL_TO_SHARD:
        return check_divisible(shape, attrs.shard_dims, mesh, "mesh_shard full_to_shard")
    counts = counts_per_dim(attrs.shard_dims, tuple(mesh.values()), len(shape))
    return tuple(n * c for n, c in zip(shape, counts, strict=True))


def _show(mesh: Mapping[str, int]) -> str:
    return ", ".join(f"{name}={size}" for name, size in mesh.items())


def _verify_replicate(attrs: MeshShardAttributes, rank: int, mesh: Mapping[str, int]) -> None:
    shape, dims = attrs.shard_shape, attrs.shard_dims
    if len(shape) not in (1, rank) or any(n != 1 for n in shape):
        raise VerifyError(
            f"mesh_shard: shard_type 'replicate' is written shard_shape = [1] (or {rank} ones for this tensor of rank "
            f"{rank}), got {list(shape)}."
        )
    if len(dims) not in (1, len(mesh)) or any(d != -1 for d in dims):
        raise VerifyError(
            f"mesh_shard: shard_type 'replicate' is written shard_dims = [-1] (or one -1 per axis of the mesh "
            f"{_show(mesh)}), got {list(dims)}."
        )


def _verify_devices(attrs: MeshShardAttributes, rank: int, mesh: Mapping[str, int]) -> None:
    shape, dims = attrs.shard_shape, attrs.shard_dims
    if len(dims) != len(mesh):
        raise VerifyError(
            f"mesh_shard: shard_dims has one entry per mesh axis, but {list(dims)} has {len(dims)} entries and the "
            f"mesh {_show(mesh)} has {len(mesh)} axes; write -1 for an axis that splits nothing."
        )
    if len(shape) != rank:
        raise VerifyError(
            f"mesh_shard: shard_shape has one entry per tensor dim, but {list(shape)} has {len(shape)} entries and the "
            f"tensor has rank {rank}."
        )
    for (name, size), dim in zip(mesh.items(), dims, strict=True):
        if not -1 <= dim < rank:
            raise VerifyError(
                f"mesh_shard: shard_dims {list(dims)} names dim {dim} for mesh axis {name!r} of size {size}, but the "
                f"tensor has rank {rank}; allowed are -1 (no dim) to {rank - 1}."
            )
    wanted = counts_per_dim(dims, tuple(mesh.values()), rank)
    if shape != wanted:
        raise VerifyError(
            f"mesh_shard: shard_shape {list(shape)} disagrees with shard_dims {list(dims)} on the mesh {_show(mesh)}, "
            f"which split the dims into {list(wanted)} pieces; write shard_shape = {list(wanted)}."
        )


# --- the primitive ---------------------------------------------------------------------------------------------------

mesh_shard_p = compat.unlowered_primitive("mesh_shard")


def _abstract_eval(
    x: jax.Array,
    *,
    shard_type: ShardType,
    shard_direction: ShardDirection,
    shard_shape: Shape,
    shard_dims: Shape,
    assume_replicated: bool = False,
) -> Any:
    mesh = compat.program_mesh("mesh_shard")
    attrs = MeshShardAttributes(shard_type, shard_direction, shard_shape, shard_dims)
    shape = verify(attrs, x.shape, mesh)
    if shard_type is ShardType.IDENTITY:
        return x
    varying = {a for a in compat.varying_axes(x) if mesh[a] > 1}
    split = {a for a, d in zip(mesh, attrs.dims_on(len(mesh)), strict=True) if d >= 0 and mesh[a] > 1}
    if shard_direction is ShardDirection.FULL_TO_SHARD:
        if varying:
            raise ReplicationError(
                f"mesh_shard full_to_shard needs a full tensor, one value on all devices, but {compat.describe(x)} "
                f"varies over mesh axis {_axes(varying)}; it is a shard already. Aggregate it first "
                "(shard_to_full, or a psum over that axis)."
            )
        return compat.retype(x, shape, split)
    unproven = varying - split
    if unproven and not assume_replicated:
        raise ReplicationError(
            f"mesh_shard shard_to_full with shard_dims {list(shard_dims)} does not aggregate mesh axis "
            f"{_axes(unproven)}, but {compat.describe(x)} still varies over it, so one device's data would be returned "
            "for all. Was a psum (all_reduce) over that axis forgotten? Reduce or gather over it, name it in the spec, "
            "or pass assume_replicated=True to take coordinate 0."
        )
    return compat.retype(x, shape, ())


def assumed_axes(x: compat.Aval, mesh: Mapping[str, int], params: Params) -> tuple[str, ...]:
    """Returns the mesh axes along which a `mesh_shard` assumes that an operand of this type is equal, without proof."""
    if not params.get("assume_replicated") or params["shard_type"] is ShardType.IDENTITY:
        return ()
    dims = MeshShardAttributes(**{k: v for k, v in params.items() if k != "assume_replicated"}).dims_on(len(mesh))
    varying = compat.varying_axes(x)
    return tuple(a for a, d in zip(mesh, dims, strict=True) if d < 0 and a in varying and mesh[a] > 1)


def _axes(names: set[str]) -> str:
    return ", ".join(repr(n) for n in sorted(names))


def _transpose(
    ct: jax.Array,
    x: jax.Array,
    *,
    shard_direction: ShardDirection,
    assume_replicated: bool = False,
    **attributes: object,
) -> list[Any]:
    out = mesh_shard_p.bind(ct, shard_direction=shard_direction.opposite, **attributes)
    if shard_direction is ShardDirection.FULL_TO_SHARD:
        return [out]
    # The operation reads coordinate 0 of the axes it takes on trust, so only that coordinate has a cotangent.
    return [first_copy_only(out, compat.varying_axes(compat.linear_operand_aval(x)))]


def _batch(args: tuple[object], dims: tuple[int], *, shard_type: ShardType, **params: Any) -> tuple[Any, int]:
    (x,), (at,) = args, dims
    if shard_type is ShardType.DEVICES:
        shape = params["shard_shape"]
        params["shard_shape"] = (*shape[:at], 1, *shape[at:])
        params["shard_dims"] = tuple(d + 1 if d >= at else d for d in params["shard_dims"])
    elif shard_type is ShardType.REPLICATE:
        params["shard_shape"], params["shard_dims"] = (1,), (-1,)
    return mesh_shard_p.bind(x, shard_type=shard_type, **params), at


mesh_shard_p.def_abstract_eval(_abstract_eval)
compat.define_linear(mesh_shard_p, _transpose)
batching.primitive_batchers[mesh_shard_p] = _batch


# --- the public functions --------------------------------------------------------------------------------------------


def _bind(x: ArrayLike, attrs: MeshShardAttributes, assume_replicated: bool) -> jax.Array:
    # Unset optional attributes do not print, here as in MLIR.
    optional = {"assume_replicated": True} if assume_replicated else {}
    return mesh_shard_p.bind(as_array("a tensor", x), **attrs._asdict(), **optional)


def mesh_shard(
    x: ArrayLike,
    *,
    shard_type: ShardType | str,
    shard_direction: ShardDirection | str,
    shard_shape: Sequence[int],
    shard_dims: Sequence[int],
    assume_replicated: bool = False,
) -> jax.Array:
    """Binds the raw TTIR operation, attributes as in `ttir.mesh_shard`; for use inside `jaxmesh.jit`.

    Args:
      x: the full tensor (`full_to_shard`) or this device's shard (`shard_to_full`), any dtype.
      shard_type: `replicate`, `devices`, or the old no-op `identity`.
      shard_direction: `full_to_shard` or `shard_to_full`.
      shard_shape: how many pieces per tensor dim; `[1]` when replicated.
      shard_dims: per mesh axis the tensor dim it splits or -1; `[-1]` when replicated.
      assume_replicated: with `shard_to_full`, take coordinate 0 of axes that are neither aggregated nor proven equal.

    Raises:
      ArgumentTypeError: an attribute has an unknown spelling or type.
      VerifyError: the attributes contradict each other, the mesh or the tensor.
      ReplicationError: `shard_to_full` of a value that still varies over an axis it does not aggregate, or
        `full_to_shard` of a shard.
      UnloweredError: not inside a program traced over a mesh.

    Source of the rules: tt-mlir, `TTIR_MeshShardOp`.

    >>> import jax, jax.numpy as jnp, jaxmesh as jm
    >>> mesh = jax.sharding.AbstractMesh((2, 4), ("y", "x"))
    >>> def f(x):
    ...     return jm.mesh_shard(x, shard_type="devices", shard_direction="full_to_shard",
    ...                          shard_shape=[2, 4], shard_dims=[0, 1])
    >>> jm.jit(f, mesh=mesh).trace(jax.ShapeDtypeStruct((16, 8), jnp.float32)).out_avals[0].shape
    (8, 2)
    """
    attrs = MeshShardAttributes(
        _member(ShardType, shard_type),
        _member(ShardDirection, shard_direction),
        integers("shard_shape", shard_shape),
        integers("shard_dims", shard_dims),
    )
    assume_replicated = as_bool("mesh_shard", "assume_replicated", assume_replicated)
    compat.program_mesh("mesh_shard")
    return _bind(x, attrs, assume_replicated)


def _spec(spec: object) -> PartitionSpec:
    if not isinstance(spec, PartitionSpec):
        raise ArgumentTypeError(f"a sharding is given as jax.sharding.PartitionSpec, got {quote(spec)}; write P(...).")
    return spec


def full_to_shard(x: ArrayLike, spec: PartitionSpec) -> jax.Array:
    """Splits a full tensor over the mesh: each device gets its piece under `spec`; for use inside `jaxmesh.jit`.

    Args:
      x: the full tensor, shape `(n0, n1, ...)`, any dtype.
      spec: mesh axes per tensor dim; tuples of axes in any order; `P()` replicates.

    Returns:
      This device's shard: dim d is `n_d` divided by the sizes of the axes on it.

    Raises:
      SpecError: the spec is too long, names an unknown axis, or one axis twice.
      VerifyError: a split dim does not divide evenly.
      ReplicationError: `x` is a shard already.
      UnloweredError: not inside a program traced over a mesh.

    >>> import jax, jax.numpy as jnp, jaxmesh as jm
    >>> from jax.sharding import PartitionSpec as P
    >>> mesh = jax.sharding.AbstractMesh((2, 4), ("y", "x"))
    >>> traced = jm.jit(lambda x: jm.full_to_shard(x, P("y", "x")), mesh=mesh).trace(jnp.zeros((16, 8)))
    >>> traced.out_avals[0].shape
    (8, 2)
    """
    mesh = compat.program_mesh("full_to_shard")
    x = as_array("a tensor", x)
    derived = attributes_from_spec(_spec(spec), x.ndim, mesh)
    local = check_divisible(x.shape, derived.dims, mesh, f"full_to_shard of shape {list(x.shape)} with {spec}")
    attrs = _attrs(derived, ShardDirection.FULL_TO_SHARD)
    shard: Any
    if any(derived.factors):
        shard = lax.reshape(_bind(jax.lax.reshape(x, derived.factor_shape(x.shape)), attrs, False), local)
    else:
        shard = _bind(x, attrs, False)
    # An axis of size 1 splits nothing, but a psum over it wants a value that varies over it, as on any other mesh.
    single = tuple(a for row in spec_axes(spec, x.ndim, mesh) for a in row if mesh[a] == 1)
    return compat.vary(shard, single) if single else shard


def _attrs(derived: ShardAttributes, direction: ShardDirection) -> MeshShardAttributes:
    if derived.replicated:
        return MeshShardAttributes(ShardType.REPLICATE, direction, (1,), (-1,))
    return MeshShardAttributes(ShardType.DEVICES, direction, derived.shard_shape, derived.shard_dims)


def shard_to_full(x: ArrayLike, spec: PartitionSpec, *, assume_replicated: bool = False) -> jax.Array:
    """Puts shards together to the full tensor; for use inside `jaxmesh.jit`.

    Args:
      x: this device's shard, shape `(n0, n1, ...)`, any dtype.
      spec: mesh axes per tensor dim, as for `full_to_shard`. The shard must be the same along every other axis.
      assume_replicated: take coordinate 0 of axes along which the shard is not proven to be the same.

    Returns:
      The full tensor: dim d is `n_d` times the sizes of the axes on it.

    Raises:
      SpecError: the spec is too long, names an unknown axis, or one axis twice.
      ReplicationError: `x` still varies over an axis that is not in the spec.
      UnloweredError: not inside a program traced over a mesh.

    >>> import jax, jax.numpy as jnp, jaxmesh as jm
    >>> from jax.sharding import PartitionSpec as P
    >>> mesh = jax.sharding.AbstractMesh((2, 4), ("y", "x"))
    >>> def f(x):
    ...     return jm.shard_to_full(2 * jm.full_to_shard(x, P("y", "x")), P("y", "x"))
    >>> jm.jit(f, mesh=mesh).trace(jnp.zeros((16, 8))).out_avals[0].shape
    (16, 8)
    """
    assume_replicated = as_bool("shard_to_full", "assume_replicated", assume_replicated)
    mesh = compat.program_mesh("shard_to_full")
    x = as_array("a tensor", x)
    derived = attributes_from_spec(_spec(spec), x.ndim, mesh)
    attrs = _attrs(derived, ShardDirection.SHARD_TO_FULL)
    if not any(derived.factors):
        return _bind(x, attrs, assume_replicated)
    joined = _bind(lax.reshape(x, derived.factor_local_shape(x.shape)), attrs, assume_replicated)
    counts = counts_per_dim(derived.dims, tuple(mesh.values()), x.ndim)
    return lax.reshape(joined, tuple(n * c for n, c in zip(x.shape, counts, strict=True)))
