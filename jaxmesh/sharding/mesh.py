"""Device meshes, and the emulated devices that stand in for Tenstorrent's."""

from __future__ import annotations

import contextlib
import contextvars
import math
import os
import re
import threading
from collections.abc import Collection, Iterable, Sequence
from typing import Any, cast

import jax
import numpy as np
from jax.sharding import AbstractMesh, AxisType, Mesh, PartitionSpec

from jaxmesh.errors import ArgumentTypeError, DeviceCountError, MeshError, MeshMismatchError
from jaxmesh.jaxprs.backend import backend_started
from jaxmesh.jaxprs.compat import context_devices
from jaxmesh.jaxprs.tracing_state import set_within
from jaxmesh.jaxprs.typed import typed, with_axis_types
from jaxmesh.jaxprs.untyped import Device
from jaxmesh.validate import as_devices, as_tuple, quote

AnyMesh = Mesh | AbstractMesh
FLAG = "--xla_force_host_platform_device_count"
_starting = threading.RLock()
"""Guards reading and setting the number of devices, which is fixed once JAX's backend has started."""


def default_axis_names(rank: int) -> tuple[str, ...]:
    """Returns `("x",)`, `("y", "x")`, `("z", "y", "x")`, `("w", "z", "y", "x")`, then with `a4`, `a5`, ... in front.

    >>> default_axis_names(2)
    ('y', 'x')
    """
    letters = ("x", "y", "z", "w", *(f"a{i}" for i in range(4, rank)))
    return letters[:rank][::-1]


def _flag_count() -> int | None:
    counts = re.findall(rf"{FLAG}=(\d+)", os.environ.get("XLA_FLAGS", ""))
    return int(counts[-1]) if counts else None


def _remedy(count: int) -> str:
    processes = _processes()
    each, where = -(-count // processes), "" if processes == 1 else "in every process "
    return (
        f"Two ways out: call jaxmesh.emulate({each}) {where}before anything runs on JAX (in a notebook: restart the "
        f"kernel and call it first), or set XLA_FLAGS={FLAG}={each} in the environment before Python starts."
    )


def _processes() -> int:
    return typed.process_count() if backend_started() else 1


def _cpu_devices() -> list[Any]:
    return typed.local_devices(backend="cpu")


class _Emulated(Sequence[Any]):
    """The first CPU devices of this process; reading a device starts JAX's backend."""

    __slots__ = ("_count",)

    def __init__(self, count: int) -> None:
        self._count = count

    def _read(self) -> list[Any]:
        devices = _cpu_devices()
        if len(devices) < self._count:
            raise _too_few(self._count, len(devices))
        return devices[: self._count]

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: Any) -> Any:
        return self._read()[index]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and self._read() == list(cast("Sequence[object]", other))

    __hash__ = None  # pyright: ignore[reportAssignmentType]

    def __repr__(self) -> str:
        return repr(self._read())


def _too_few(count: int, existing: int) -> DeviceCountError:
    flagged, processes = _flag_count(), _processes()
    if flagged is not None and flagged < count:
        why = f"XLA_FLAGS in the environment asks for {flagged}, and jaxmesh keeps a user's flags"
    else:
        why = "JAX's backend had already started with that many, and cannot be given more"
    where = "exist" if processes == 1 else f"exist in process {typed.process_index()} of {processes}"
    # The count is of this process only.
    remedy = _remedy(count * processes)
    return DeviceCountError(f"{count} devices are wanted, but only {existing} {where}: {why}. {remedy}")


_MOST = 2048
"""The maximum number of devices of one process: XLA's CPU client treats a program over more devices as one of
several processes, and does not run it (`cpu_topology.h`; jaxlib 0.10.2 and 0.12.0)."""


def _check_most(count: int) -> None:
    if count > _MOST:
        raise DeviceCountError(
            f"{count} devices are wanted, but XLA runs programs over at most {_MOST} CPU devices of a process; trace "
            "and lower on a jax.sharding.AbstractMesh, which may have any number, or run several processes "
            "(jaxmesh.run_processes)."
        )


def emulate(count: int) -> Sequence[Any]:
    """Ensures that this process has at least `count` CPU devices, which stand in for the devices of a mesh.

    Works until JAX's backend starts. A device count in the user's XLA_FLAGS is kept. With several processes
    (`jax.distributed`), each has `count` devices; `make_mesh` spans all of them. May be called before they join.

    Args:
      count: the number of devices in this process.

    Returns:
      The first `count` CPU devices of this process. Reading a device starts JAX's backend.

    Raises:
      DeviceCountError: fewer devices exist and the backend has started, or XLA_FLAGS requests fewer; the message has
        their number, the cause and the remedies. Or `count` exceeds the 2,048 devices of one process that XLA supports.
      ArgumentTypeError: `count` is not a positive integer.

    >>> import jaxmesh as jm
    >>> len(jm.emulate(8))
    8
    """
    if isinstance(count, bool) or not isinstance(count, (int, np.integer)) or count < 1:
        raise ArgumentTypeError(f"emulate takes a number of devices, a positive integer, got {quote(count)}.")
    _check_most(int(count))
    with _starting:
        if backend_started():
            existing = len(_cpu_devices())
        else:
            flagged, asked = _flag_count(), typed.config.jax_num_cpu_devices
            if flagged is None and asked < count:
                typed.config.update("jax_num_cpu_devices", int(count))
            existing = count if flagged is None else flagged
    if existing < count:
        raise _too_few(count, existing)
    return _Emulated(int(count))


def make_mesh(
    axis_shapes: Sequence[int],
    axis_names: Sequence[str] | None = None,
    *,
    axis_types: tuple[AxisType, ...] | None = None,
    devices: Sequence[object] | None = None,
) -> Mesh:
    """Returns a `jax.sharding.Mesh`, row-major over the devices; emulates devices on the CPU if the machine has too
    few.

    Args:
      axis_shapes: the size of each axis.
      axis_names: their names; by default `("x",)`, `("y", "x")`, `("z", "y", "x")`, ...
      axis_types: `jax.sharding.AxisType` per axis; by default Auto.
      devices: the devices, by default the default backend's (or emulated devices) of all processes.

    Raises:
      MeshError: the shape or the names are invalid, or a process lacks a device in the mesh.
      DeviceCountError: too few devices, and JAX's backend has started.

    >>> import jaxmesh as jm
    >>> dict(jm.make_mesh((2, 4)).shape)
    {'y': 2, 'x': 4}
    """
    shape = as_tuple("make_mesh", axis_shapes, "a row of positive integers as axis_shapes")
    if not shape or any(isinstance(n, bool) or not isinstance(n, (int, np.integer)) or n < 1 for n in shape):
        raise MeshError(f"a mesh shape is a row of positive integers, got {quote(axis_shapes)}.")
    shape = tuple(map(int, shape))
    names = default_axis_names(len(shape))
    if axis_names is not None:
        names = as_tuple("make_mesh", axis_names, "a row of names as axis_names")
        if not all(isinstance(n, str) for n in names):
            raise ArgumentTypeError(f"make_mesh takes a row of names as axis_names, got {quote(axis_names)}.")
    if len(names) != len(shape) or len(set(names)) != len(names):
        raise MeshError(f"a mesh of shape {shape} needs {len(shape)} different axis names, got {names}.")
    if axis_types is not None:
        axis_types = as_tuple("make_mesh", axis_types, "a row of jax.sharding.AxisType as axis_types")
        if not all(isinstance(t, AxisType) for t in axis_types):
            raise ArgumentTypeError(f"make_mesh takes a row of jax.sharding.AxisType, got {quote(axis_types)}.")
        if len(axis_types) != len(shape):
            raise MeshError(
                f"a mesh of shape {shape} needs {len(shape)} axis types, got {len(axis_types)}: {axis_types}."
            )
    count = math.prod(shape)
    devices = _default_devices(count) if devices is None else _check_devices(devices)
    if len(devices) < count:
        raise DeviceCountError(f"a mesh of shape {shape} needs {count} devices, got {len(devices)}.")
    return Mesh(np.array(devices[:count]).reshape(shape), names, axis_types=axis_types)


def _check_devices(devices: object) -> Sequence[Any]:
    """Checks the devices of a mesh; the devices of `emulate` are read only when the mesh is created."""
    if isinstance(devices, _Emulated):
        return devices
    checked = as_devices("make_mesh", "devices", devices)
    if len(set(checked)) < len(checked):
        raise MeshError(f"a mesh has every device once, got the devices {[d.id for d in checked]}.")
    return checked


def _default_devices(count: int) -> Sequence[Any]:
    # With several processes, the share of this process is not known yet.
    if not jax.distributed.is_initialized():
        _check_most(count)
    with _starting:
        free = not backend_started() and not jax.distributed.is_initialized() and _flag_count() is None
        if free and typed.config.jax_num_cpu_devices < count:
            # Harmless for an accelerator as the default backend: only its CPU side gets more devices.
            typed.config.update("jax_num_cpu_devices", count)
        devices = typed.devices()
    if typed.process_count() > 1:
        return _devices_of_all(count, devices)
    return devices if len(devices) >= count else emulate(count)


def _devices_of_all(count: int, devices: list[Device]) -> Sequence[object]:
    """Returns the devices of several processes; raises an error if a process lacks a device in the mesh."""
    if len(devices) < count:
        devices = typed.devices("cpu")
    if len(devices) < count:
        local = typed.local_device_count()
        raise DeviceCountError(
            f"{count} devices are wanted, but only {len(devices)} exist in all {typed.process_count()} processes "
            f"({local} of them in this one, process {typed.process_index()}), and the number is fixed once JAX's "
            f"backend has started. {_remedy(count)}"
        )
    left = sorted(set(range(typed.process_count())) - {d.process_index for d in devices[:count]})
    if left:
        raise MeshError(
            f"a mesh of the first {count} of {len(devices)} devices lacks a device of process {left[0]}, which could "
            f"not take part in its programs; make it over all {len(devices)}, or pass devices=..., for instance "
            "jax.local_devices() for a mesh of this process alone."
        )
    return devices


# --- the mesh of a program -------------------------------------------------------------------------------------------


def context_mesh() -> Mesh | AbstractMesh | None:
    """Returns the mesh of `jax.set_mesh` (or `use_abstract_mesh`), if any; inside a trace only the abstract mesh."""
    try:
        concrete = jax.sharding.get_mesh()
    except ValueError:
        concrete = None
    if concrete is not None and not concrete.empty:
        return concrete
    abstract = jax.sharding.get_abstract_mesh()
    return None if abstract.empty else abstract


def as_mesh(mesh: Any) -> Mesh | AbstractMesh:
    """Returns the mesh passed to a public function, or the context's mesh.

    Raises:
      MeshError: `mesh` is None, and the context has no mesh.
      ArgumentTypeError: `mesh` is not a mesh.
    """
    if mesh is None:
        mesh = context_mesh()
        if mesh is None:
            raise MeshError(
                "no mesh: pass mesh=jaxmesh.make_mesh((2, 4)) (or an AbstractMesh), or set one with jax.set_mesh."
            )
    if not isinstance(mesh, (Mesh, AbstractMesh)):
        raise ArgumentTypeError(f"mesh is a jax.sharding.Mesh or AbstractMesh, got {quote(mesh)}.")
    if mesh.empty or not mesh.axis_names:
        raise MeshError("the mesh is empty; make one with jaxmesh.make_mesh((2, 4)).")
    check_axis_names(mesh.axis_names)
    return mesh


def check_axis_names(names: Iterable[object]) -> None:
    """Checks the names of axes: XLA ends the process for some (JAX 0.10.2), or loses a sharding (JAX 0.12.0.1)."""
    for name in names:
        if isinstance(name, str) and not (name.isascii() and name.isprintable() and not set(name) & set("\"'\\")):
            raise MeshError(
                f"the name of a mesh axis has printable ASCII characters without quotes and backslashes, got {name!r}; "
                "rename the axis."
            )


def same_mesh(a: AnyMesh, b: AnyMesh) -> bool:
    """Returns True if two meshes have the same axes and, if both have devices, the same devices in the same order."""
    if a.axis_names != b.axis_names or dict(a.shape) != dict(b.shape):
        return False
    return not isinstance(a, Mesh) or not isinstance(b, Mesh) or bool((a.devices == b.devices).all())


def show_mesh(mesh: AnyMesh) -> str:
    """Returns a mesh as text for messages: axes, sizes and device ids."""
    axes = ", ".join(f"{n}={s}" for n, s in mesh.shape.items())
    if isinstance(mesh, AbstractMesh):
        return f"({axes}), which is abstract"
    return f"({axes}) of devices {[d.id for d in mesh.devices.flat]}"


_outer: contextvars.ContextVar[AnyMesh | None] = contextvars.ContextVar("mesh of the program", default=None)


def tracing_over(mesh: AnyMesh) -> contextlib.AbstractContextManager[None]:
    """Marks the block as the trace of a program over a mesh; see `check_surroundings`."""
    return set_within(_outer, mesh)


def check_surroundings(mesh: AnyMesh | None) -> None:
    """Checks that the context has the devices of a program's mesh, which JAX's cache ignores.

    Raises:
      MeshMismatchError: `jax.set_mesh`, or the program that calls this one, has other devices or another order.
    """
    outer = _outer.get()
    if mesh is not None and outer is not None:
        check_inner_mesh(mesh, outer)
    devices = context_devices()
    if devices is not None and isinstance(mesh, Mesh) and devices != tuple(mesh.devices.flat):
        raise MeshMismatchError(
            f"the program's mesh is {show_mesh(mesh)}, but jax.set_mesh has set the devices {[d.id for d in devices]}; "
            "one program has one mesh. Leave the context, or make the function for its mesh."
        )


def check_inner_mesh(inner: AnyMesh, outer: AnyMesh) -> None:
    """Checks that a function called inside a program has the mesh of the program.

    Raises:
      MeshMismatchError: the function has a different mesh.
    """
    if not same_mesh(inner, outer):
        raise MeshMismatchError(
            f"a function for the mesh {show_mesh(inner)} is called inside a program over {show_mesh(outer)}; one "
            "program has one mesh."
        )


def program_mesh(given: AnyMesh | None) -> AnyMesh:
    """Returns the mesh to trace over: `given` or the context's mesh, with the axis types of the context."""
    mesh = as_mesh(given)
    check_surroundings(mesh)
    context = jax.sharding.get_abstract_mesh()
    if context.empty:
        return mesh
    if dict(context.shape) != dict(mesh.shape) or context.axis_names != mesh.axis_names:
        raise MeshMismatchError(
            f"the program's mesh is {show_mesh(mesh)}, but jax.set_mesh has set {show_mesh(context)}; one program "
            "has one mesh. Leave the context, or make the function for its mesh."
        )
    if isinstance(mesh, AbstractMesh):
        return context
    return mesh if mesh.axis_types == context.axis_types else with_axis_types(mesh, context.axis_types)


def with_devices(mesh: AnyMesh) -> AnyMesh:
    """Returns the mesh to run on: a concrete mesh, or the context's mesh of the same shape for an abstract mesh.

    Raises:
      MeshError: the mesh is abstract, and the context lacks a mesh of this shape.
    """
    if isinstance(mesh, Mesh):
        return mesh
    context = jax.sharding.get_abstract_mesh()
    if not context.empty and context.shape == mesh.shape:
        return context
    raise MeshError(
        f"the mesh {show_mesh(mesh)}: a program over it can be traced and lowered, but not run. Pass "
        f"mesh=jaxmesh.make_mesh({tuple(mesh.shape.values())}, {tuple(mesh.axis_names)}), or set a mesh with "
        "jax.set_mesh."
    )


def splitting_axes(mesh: AnyMesh, names: Collection[object]) -> tuple[str, ...]:
    """Returns the named axes that split tensors, in the order of the mesh; an axis of size 1 splits nothing."""
    return tuple(a for a in mesh.axis_names if a in names and mesh.shape[a] > 1)


def storage_spec(rank: int, varying: Sequence[str]) -> PartitionSpec:
    """Returns the spec of a stored tensor: `rank` dims of the local shape, then one dim per varying mesh axis.

    >>> tuple(storage_spec(2, ("y",)))
    (None, None, 'y')
    """
    return PartitionSpec(*[None] * rank, *varying)
