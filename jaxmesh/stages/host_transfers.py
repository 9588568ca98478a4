"""Several processes over one mesh: process-local shards in, full arrays out, and the check that all values agree.

Every process that has devices of the mesh calls these functions, in the same order, as it does with programs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

import jax
import numpy as np
from jax.core import Tracer
from jax.sharding import Mesh

from jaxmesh.errors import (
    ArgumentTypeError,
    MeshError,
    NotAddressableError,
    ProcessMismatchError,
    ReplicationError,
    ResidencyError,
    SpecError,
    VerifyError,
)
from jaxmesh.jaxprs.typed import typed
from jaxmesh.jaxprs.untyped import Array
from jaxmesh.runtime.distributed.collectives import agree, as_process, digest, fetch_array, gather, is_here, process_at
from jaxmesh.sharding.configs import MeshCoordinate, MeshShape, PlacementShard, integers
from jaxmesh.sharding.mesh import as_mesh, splitting_axes
from jaxmesh.stages.arguments import flatten
from jaxmesh.tensor.assemble import assemble
from jaxmesh.tensor.distributed import MeshToTensor, check_alike
from jaxmesh.tensor.mesh_tensor import MeshTensor, is_tensor
from jaxmesh.tensor.transfers import aggregate, host_array
from jaxmesh.tensor.types import TensorTopology
from jaxmesh.validate import as_instance, as_tuple, quote

Shape = tuple[int, ...]


def to_host(x: object, composer: MeshToTensor | None = None, *, process: int | None = None) -> Any:
    """Returns a program's results in host memory, in every process or in one.

    A full result of a program over several processes is on the devices of all of them, and `np.asarray` needs the whole
    of it in one process. This gathers it, bit for bit; with one process it is `np.asarray`.

    Args:
      x: an array, or a tree of them; or a `MeshTensor`, with a composer.
      composer: how the shards of a `MeshTensor` are joined, as for `jaxmesh.ttnn.aggregate_tensor`.
      process: the number of the process that gets the value; None for all. All of them must call this.

    Returns:
      NumPy arrays in the same tree; None in the other processes.

    Raises:
      ArgumentTypeError: a leaf is not an array, an array has a composer, or the process is not a valid number.
      ResidencyError: a `MeshTensor` without a composer.
      DeletedError: an array was donated to a program, or deleted.
      MeshError: this process has no device of the mesh.

    >>> import jax.numpy as jnp, jaxmesh as jm
    >>> from jax.sharding import PartitionSpec as P
    >>> @jm.jit(mesh=jm.make_mesh((2, 4)))
    ... def double(x):
    ...     return jm.shard_to_full(2 * jm.full_to_shard(x, P("y")), P("y"))
    >>> jm.to_host(double(jnp.arange(4)))
    array([0, 2, 4, 6], dtype=int32)
    """
    if isinstance(x, MeshTensor) and composer is not None:
        if not isinstance(cast("object", composer), MeshToTensor):
            raise ArgumentTypeError(
                f"to_host takes a composer, made by ttnn.create_mesh_composer, got {quote(composer)}."
            )
        return aggregate(x, composer.config, composer.mesh, as_process(process, list(composer.mesh.devices.flat)))
    leaves, tree = cast("tuple[list[Any], Any]", jax.tree.flatten(x, is_leaf=is_tensor))
    if composer is not None:
        raise ArgumentTypeError(f"to_host takes a composer with one MeshTensor, got {type(x).__name__}; leave it out.")
    if not leaves:
        as_process(process, typed.devices())
    values = [_value(leaf, process) for leaf in leaves]
    return None if process is not None and process != typed.process_index() else jax.tree.unflatten(tree, values)


def _value(x: Any, process: int | None) -> Array | None:
    if isinstance(x, MeshTensor):
        raise ResidencyError(
            f"{x!r} is on the devices, and joining its shards needs a composer: to_host(tensor, composer), "
            "with a composer of ttnn.create_mesh_composer(device, config)."
        )
    if not isinstance(x, jax.Array):
        as_process(process, typed.devices())
        return host_array(x, "to_host")
    if isinstance(x, Tracer):
        raise ArgumentTypeError(f"to_host takes values, got {x!r}, which is being traced; call it outside of jit.")
    # An array of this process alone is an array of every process.
    devices = typed.devices() if x.is_fully_addressable else cast("Any", x.sharding).device_set
    return fetch_array(x, as_process(process, list(devices)))


def from_process_shards(
    shards: Mapping[object, object], mesh: Mesh | None = None, *, varying: Sequence[str] | None = None
) -> MeshTensor:
    """Returns a tensor on the devices from the shards of this process: exactly one for each of its devices.

    Args:
      shards: by mesh coordinate an array, one for each device of this process; all of one shape and dtype.
      mesh: by default that of `jax.set_mesh`.
      varying: the mesh axes over which shards differ; by default all. Along the others they must be equal.

    Raises:
      NotAddressableError: a shard belongs to another process; the message names it.
      VerifyError: a shard is missing, or has another shape or dtype than the rest.
      ProcessMismatchError: another process passes another shape, dtype or `varying`.
      ReplicationError: shards differ along an axis that is not in `varying`.
      MeshError: a coordinate is not on the mesh, or this process has no device of the mesh.
      ArgumentTypeError: not a dict from coordinates to arrays, or `varying` is not a sequence of names.
      SpecError: `varying` names an unknown axis, or one twice.

    >>> import numpy as np, jaxmesh as jm
    >>> jm.from_process_shards({(0, 0): np.zeros(3), (0, 1): np.ones(3)}, jm.make_mesh((1, 2)))
    MeshTensor(shape=(3,), dtype=float32, mesh={'y': 1, 'x': 2}, varying=('x',))
    """
    over = as_mesh(mesh)
    if not isinstance(over, Mesh):
        raise MeshError(f"from_process_shards puts shards on devices, but the mesh {dict(over.shape)} is abstract.")
    names = _varying_axes(varying, over)
    received = _check(shards, over)
    first = next(iter(received.values()))
    kind = f"{first.dtype}{list(first.shape)}, varying over {names}"
    agree("from_process_shards: the type of the shards", kind, b"", list(over.devices.flat))
    _check_copies(received, names, over)
    every = list(np.ndindex(*over.devices.shape))
    # Every device has its own tensor, and no dim was split: a row-major distribution of whole tensors.
    topology = TensorTopology(MeshShape(len(every)), (PlacementShard(0),), tuple(MeshCoordinate(c) for c in every))
    return assemble({c: received.get(c, first) for c in every}, over, names, topology)


def _varying_axes(given: object, mesh: Mesh) -> tuple[str, ...]:
    names = tuple(mesh.axis_names) if given is None else (given,)
    if given is not None and not isinstance(given, str):
        names = as_tuple("from_process_shards", given, "a row of mesh axes as varying")
    if not all(isinstance(n, str) for n in names):
        raise ArgumentTypeError(f"from_process_shards takes a row of mesh axes as varying, got {quote(given)}.")
    if len(set(names)) != len(names) or not set(names) <= set(mesh.axis_names):
        raise SpecError(f"varying names axes of the mesh {tuple(mesh.axis_names)}, each once, got {names}.")
    return splitting_axes(mesh, names)


def _check(shards: object, mesh: Mesh) -> dict[Shape, Array]:
    if not isinstance(shards, Mapping):
        raise ArgumentTypeError(f"from_process_shards takes a dict from coordinate to array, got {quote(shards)}.")
    received: dict[Shape, Array] = {}
    mine = [c for c in np.ndindex(*mesh.devices.shape) if is_here(mesh.devices[c])]
    if not mine:
        raise MeshError(f"the mesh {dict(mesh.shape)} contains no device of process {typed.process_index()}.")
    for key, value in cast("Mapping[object, object]", shards).items():
        several = isinstance(key, (tuple, list, MeshCoordinate))
        coordinate = integers("a coordinate of from_process_shards", cast("Any", key if several else (key,)))
        if coordinate not in np.ndindex(*mesh.devices.shape):
            raise MeshError(f"coordinate {list(coordinate)} is not on the mesh of shape {list(mesh.devices.shape)}.")
        if coordinate not in mine:
            raise NotAddressableError(
                f"the device at {list(coordinate)} belongs to process {process_at(mesh, coordinate)}; process "
                f"{typed.process_index()} gives the shards at {[list(c) for c in mine]}."
            )
        received[coordinate] = host_array(value, "from_process_shards").copy()
    missing = [list(c) for c in mine if c not in received]
    if missing:
        raise VerifyError(
            f"from_process_shards needs a shard for each device of process {typed.process_index()}, "
            f"{[list(c) for c in mine]}; {missing} are missing."
        )
    check_alike("from_process_shards", list(received.values()))
    return received


def _check_copies(received: Mapping[Shape, Array], varying: tuple[str, ...], mesh: Mesh) -> None:
    """Checks that shards are equal along the axes that are not in `varying`, also across processes."""
    if set(varying) == {a for a, n in mesh.shape.items() if n > 1}:
        return
    mine = {c: np.frombuffer(digest(x), np.uint8) for c, x in received.items()}
    owners = {c: process_at(mesh, c) for c in np.ndindex(*mesh.devices.shape)}
    digests = gather(mine, owners, next(iter(mine.values())).shape, np.uint8, list(mesh.devices.flat))
    assert digests is not None
    first: dict[Shape, Shape] = {}
    for c in np.ndindex(*mesh.devices.shape):
        key = tuple(x for x, a in zip(c, mesh.axis_names, strict=True) if a in varying)
        other = first.setdefault(key, c)
        if not np.array_equal(digests[c], digests[other]):
            raise ReplicationError(
                f"from_process_shards: varying={varying} declares that the shards at {list(other)} and {list(c)} are "
                f"equal, but they differ (processes {owners[other]} and {owners[c]}); name the axis in varying, or "
                "give equal shards."
            )


def check_processes(tree: object, what: str = "the value") -> None:
    """Checks that every process has the same arrays, numbers and texts: arguments, weights, a program's text.

    All processes must call it. A program over several processes is correct only if each passes the same full arrays.

    Args:
      tree: a tree of host arrays, numbers and texts.
      what: its name in the message.

    Raises:
      ProcessMismatchError: a process has another value; the message names the process, the leaf and both types.
      ArgumentTypeError: a leaf is something else, or spans processes.

    >>> import numpy as np, jaxmesh as jm
    >>> jm.check_processes({"weights": np.ones((2, 2)), "program": "text"})
    """
    as_instance(str, "check_processes", "what", what)
    leaves, _, paths = flatten(tree)
    rows = [(f"{what}{typed.tree_util.keystr(p)}", *_describe(leaf)) for leaf, p in zip(leaves, paths, strict=True)]
    devices = typed.devices()
    # One exchange if all leaves agree; otherwise one exchange per leaf, to find the leaf that differs.
    names = f"{len(rows)} leaves: " + ", ".join(f"{n[len(what) :]} {s}" for n, s, _ in rows)
    kinds = [n + s for n, s, _ in rows]
    agree(what, names if len(names) < 150 else f"{len(rows)} leaves", repr(kinds).encode(), devices)
    try:
        agree(what, "", b"".join(digest(np.frombuffer(v, np.uint8)) for _, _, v in rows), devices)
    except ProcessMismatchError:
        for name, kind, value in rows:
            agree(name, kind, value, devices)
        raise


def _describe(leaf: Any) -> tuple[str, bytes]:
    if isinstance(leaf, str):
        return "text", leaf.encode("utf-8", "surrogatepass")
    if isinstance(leaf, jax.Array) and not isinstance(leaf, Tracer) and not leaf.is_fully_addressable:
        raise ArgumentTypeError(
            f"check_processes compares what each process has whole, got {leaf.dtype}{list(leaf.shape)} that lies in "
            "several; read it with jaxmesh.to_host."
        )
    array = host_array(leaf, "check_processes")
    return f"{array.dtype}{list(array.shape)}", np.ascontiguousarray(array).tobytes()
