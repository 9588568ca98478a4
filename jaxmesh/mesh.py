"""Device meshes, and the host devices that stand in for Tenstorrent's."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterable, Sequence
from typing import Any, cast

import jax
import numpy as np
from jax.sharding import AbstractMesh, AxisType, Mesh

from jaxmesh import jaxprs
from jaxmesh.errors import ArgumentTypeError, DeviceCountError, MeshError

FLAG = "--xla_force_host_platform_device_count"
_config: Any = jax.config


def default_axis_names(rank: int) -> tuple[str, ...]:
    """`("x",)`, `("y", "x")`, `("z", "y", "x")`, `("w", "z", "y", "x")`, then `a4`, `a5`, ... in front.

    >>> default_axis_names(2)
    ('y', 'x')
    """
    letters = ("x", "y", "z", "w", *(f"a{i}" for i in range(4, rank)))
    return letters[:rank][::-1]


def _flag_count() -> int | None:
    found = re.findall(rf"{FLAG}=(\d+)", os.environ.get("XLA_FLAGS", ""))
    return int(found[-1]) if found else None


def _remedy(count: int) -> str:
    return (
        f"Two ways out: call jaxmesh.emulate({count}) before anything runs on JAX (in a notebook: restart the kernel "
        f"and call it first), or set XLA_FLAGS={FLAG}={count} in the environment before Python starts."
    )


def emulate(count: int) -> list[Any]:
    """Makes this process have at least `count` CPU devices, which stand in for the devices of a mesh.

    Works until JAX's backend starts. A device count in the user's own XLA_FLAGS is kept.

    Args:
      count: how many devices are wanted.

    Returns:
      The first `count` CPU devices.

    Raises:
      DeviceCountError: there are fewer and it is too late, or XLA_FLAGS asks for fewer; the message says how many
        exist, why, and the ways out.
      ArgumentTypeError: `count` is no positive integer.

    >>> import jaxmesh as jm
    >>> len(jm.emulate(8))
    8
    """
    if isinstance(count, bool) or not isinstance(count, (int, np.integer)) or count < 1:
        raise ArgumentTypeError(f"emulate takes a number of devices, a positive integer, got {count!r}.")
    flagged = _flag_count()
    if not jaxprs.backend_started():
        asked = _config.jax_num_cpu_devices
        if flagged is None and asked < count:
            _config.update("jax_num_cpu_devices", int(count))
    devices = cast("list[Any]", jax.devices("cpu"))
    if len(devices) >= count:
        return devices[:count]
    if flagged is not None and flagged < count:
        why = f"XLA_FLAGS in the environment asks for {flagged}, and jaxmesh keeps a user's own flags"
    else:
        why = "JAX's backend had already started with that many, and cannot be given more"
    raise DeviceCountError(f"{count} devices are wanted, but only {len(devices)} exist: {why}. {_remedy(count)}")


def make_mesh(
    axis_shapes: Sequence[int],
    axis_names: Sequence[str] | None = None,
    *,
    axis_types: tuple[AxisType, ...] | None = None,
    devices: Sequence[Any] | None = None,
) -> Mesh:
    """A `jax.sharding.Mesh`, row-major over the devices, emulated on the CPU when the machine has too few.

    Args:
      axis_shapes: the size of each axis.
      axis_names: their names; by default `("x",)`, `("y", "x")`, `("z", "y", "x")`, ...
      axis_types: `jax.sharding.AxisType` per axis; by default Auto.
      devices: the devices to use, instead of the default backend's (or emulated ones).

    Raises:
      MeshError: the shape or the names are no mesh.
      DeviceCountError: too few devices, and too late to emulate them.

    >>> import jaxmesh as jm
    >>> dict(jm.make_mesh((2, 4)).shape)
    {'y': 2, 'x': 4}
    """
    shape = tuple(axis_shapes) if isinstance(axis_shapes, Iterable) else ()
    if not shape or any(isinstance(n, bool) or not isinstance(n, (int, np.integer)) or n < 1 for n in shape):
        raise MeshError(f"a mesh shape is a row of positive integers, got {axis_shapes!r}.")
    names = default_axis_names(len(shape)) if axis_names is None else tuple(axis_names)
    if len(names) != len(shape) or len(set(names)) != len(names):
        raise MeshError(f"a mesh of shape {shape} needs {len(shape)} different axis names, got {names}.")
    if axis_types is not None and len(axis_types) != len(shape):
        raise MeshError(f"a mesh of shape {shape} needs {len(shape)} axis types, got {len(axis_types)}: {axis_types}.")
    count = math.prod(shape)
    if devices is None:
        devices = _default_devices(count)
    if len(devices) < count:
        raise DeviceCountError(f"a mesh of shape {shape} needs {count} devices, got {len(devices)}.")
    return Mesh(np.array(devices[:count]).reshape(shape), names, axis_types=axis_types)


def _default_devices(count: int) -> Sequence[Any]:
    if not jaxprs.backend_started() and _flag_count() is None and _config.jax_num_cpu_devices < count:
        # Harmless where the default backend is an accelerator: only its CPU side gets more devices.
        _config.update("jax_num_cpu_devices", count)
    devices = cast("list[Any]", jax.devices())
    return devices if len(devices) >= count else emulate(count)


def context_mesh() -> Mesh | AbstractMesh | None:
    """The mesh of `jax.set_mesh` (or `use_abstract_mesh`), if any; inside a trace only its abstract side is known."""
    try:
        concrete = jax.sharding.get_mesh()
    except ValueError:
        concrete = None
    if concrete is not None and not concrete.empty:
        return concrete
    abstract = jax.sharding.get_abstract_mesh()
    return None if abstract.empty else abstract


def as_mesh(mesh: Any) -> Mesh | AbstractMesh:
    """A mesh given to a public function, or the context's.

    Raises:
      MeshError: none given and none set.
      ArgumentTypeError: something else than a mesh.
    """
    if mesh is None:
        mesh = context_mesh()
        if mesh is None:
            raise MeshError(
                "no mesh: give mesh=jaxmesh.make_mesh((2, 4)) (or an AbstractMesh), or set one with jax.set_mesh."
            )
    if not isinstance(mesh, (Mesh, AbstractMesh)):
        raise ArgumentTypeError(f"mesh is a jax.sharding.Mesh or AbstractMesh, got {mesh!r}.")
    if mesh.empty:
        raise MeshError("the mesh is empty; make one with jaxmesh.make_mesh((2, 4)).")
    return mesh
