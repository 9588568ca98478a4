"""Types, meshes and primitives whose interface differs between JAX 0.10.2 and 0.12, or is internal to JAX.

`ClosedJaxpr` and `Jaxpr` are one class from 0.12 on.
"""

from __future__ import annotations

import contextlib
import pathlib
from collections.abc import Callable, Generator, Iterable, Sequence
from typing import Any

import jax
import jaxlib
import numpy as np
from jax._src import core as core_lib, mesh as mesh_lib, sharding_impls, source_info_util, traceback_util
from jax._src.lax import lax as lax_internal
from jax._src.lib import xla_client
from jax._src.state.types import AbstractRef
from jax.core import ShapedArray, Tracer
from jax.interpreters import ad, mlir
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding, PartitionSpec

from jaxmesh.errors import UnloweredError, UnsupportedError
from jaxmesh.jaxprs.tracing_state import require_region
from jaxmesh.jaxprs.typed import typed
from jaxmesh.jaxprs.untyped import Device, DType, lax

# jax.extend imports Pallas.
_ad: Any = ad
ClosedJaxpr: Any = getattr(core_lib, "ClosedJaxpr", core_lib.Jaxpr)
Primitive = core_lib.Primitive
Var = core_lib.Var
Literal = core_lib.Literal
DropVar = core_lib.DropVar
Atom = Any
Aval = Any
Eqn = Any
Jaxpr = Any
"""A jaxpr, open or closed."""
Axes = frozenset[str]
shard_map: Any = jax.shard_map  # Taken once, so that a program may put jaxmesh.shard_map in its place.

# The programs of the demo, in `cli/`, are user code.
for _room in sorted(pathlib.Path(__file__).parents[1].iterdir()):
    if _room.name not in ("cli", "__pycache__"):
        source_info_util.register_exclusion(str(_room))
        traceback_util.register_exclusion(str(_room))


# --- types -----------------------------------------------------------------------------------------------------------


def varying_axes(aval: Aval) -> Axes:
    """Returns the varying axes of a value: along them devices may differ; empty for a full value."""
    kind = getattr(aval, "manual_axis_type", None)
    return frozenset() if kind is None else frozenset(kind.varying)


def unreduced_axes(aval: Aval) -> Axes:
    """Returns the unreduced and the reduced mesh axes of a value, in the terms of JAX's types."""
    kind = getattr(aval, "manual_axis_type", None)
    return frozenset() if kind is None else frozenset({*kind.unreduced, *kind.reduced})


def is_array_type(aval: Aval) -> bool:
    """Returns True if values of the type are arrays, not references or tokens."""
    return isinstance(aval, ShapedArray)


def is_token(aval: Aval) -> bool:
    """Returns True if values of the type are tokens, which order effects and hold nothing."""
    return aval is core_lib.abstract_token


def is_partial(aval: Aval) -> bool:
    """Returns True if values of the type have unreduced or reduced axes of an Explicit mesh."""
    spec = getattr(getattr(aval, "sharding", None), "spec", None)
    return spec is not None and bool(spec.unreduced or spec.reduced)


def is_reference(aval: Aval) -> bool:
    """Returns True if values of the type are mutable arrays, as `jax.new_ref` returns them."""
    return isinstance(aval, AbstractRef)


def retype(aval: Aval, shape: Sequence[int], varying: Iterable[str]) -> Aval:
    """Returns `aval` with another shape, varying over exactly the given axes."""
    kind = aval.manual_axis_type.update(varying=frozenset(varying))
    sharding: Any = aval.sharding
    if sharding.mesh.empty:
        # The type of a constant from outside the program names no mesh yet.
        sharding = NamedSharding(jax.sharding.get_abstract_mesh(), PartitionSpec())
    sharding = sharding.update(spec=PartitionSpec(*[None] * len(shape)))
    return aval.update(shape=tuple(shape), sharding=sharding, manual_axis_type=kind)


def typed_struct(aval: Aval, varying: Iterable[str]) -> object:
    """Returns an argument for `jax.make_jaxpr` of the type `aval`, typed over the current mesh."""
    mesh = jax.sharding.get_abstract_mesh()
    kind = jax.typeof(np.zeros(())).manual_axis_type.update(varying=frozenset(varying))
    return jax.ShapeDtypeStruct(
        aval.shape,
        aval.dtype,
        weak_type=bool(getattr(aval, "weak_type", False)),
        sharding=NamedSharding(mesh, PartitionSpec(*[None] * len(aval.shape))),
        manual_axis_type=kind,
    )


def describe(aval: Aval) -> str:
    """Returns a type as messages show it, e.g. `float32[8,4]{V:x}`."""
    return str(aval.str_short())


def is_high(jaxpr: Jaxpr) -> bool:
    """Returns True if JAX expands some of the equations before it lowers them, as `searchsorted` in JAX 0.12."""
    return bool(getattr(jaxpr, "is_high", False))


_lax_internal: Any = lax_internal


def vary(x: object, axes: Iterable[str]) -> Any:
    """Casts a value to a type that varies over further axes; works in a mapped region alone."""
    require_region()
    return lax.pcast(x, tuple(axes), to="varying")


def weakly_typed(x: jax.Array) -> Any:
    """Returns an array with a weak type, as JAX gives to what it computes from Python's numbers alone."""
    return _lax_internal._convert_element_type(x, x.dtype, weak_type=True)


def in_device_memory(x: object) -> object:
    """Returns a traced value in the devices' memory, into which it is moved from the host's."""
    kind = getattr(x, "aval", None)
    on_host = getattr(kind, "memory_space", None) is jax.memory.Space.Host
    return typed.device_put(x, jax.memory.Space.Device) if on_host else x


# --- meshes ----------------------------------------------------------------------------------------------------------


_impls: Any = sharding_impls
_jaxlib: Any = jaxlib


def program_mesh(op: str) -> dict[str, int]:
    """Returns axis names and sizes of the mesh whose program is being traced.

    Raises:
      UnloweredError: no program is being traced.
      UnsupportedError: only some axes of the context mesh are manual.
    """
    mesh = jax.sharding.get_abstract_mesh()
    manual = set(mesh.manual_axes)
    if mesh.empty or not manual:
        require_region()
        raise UnloweredError(unlowered_message(op))
    if manual != set(mesh.axis_names):
        raise UnsupportedError(
            f"{op} needs all axes of the mesh {tuple(mesh.axis_names)} to be manual, but only {tuple(sorted(manual))} "
            "are; TTIR cannot express partly manual regions. Map over all axes."
        )
    return dict(zip(mesh.axis_names, mesh.axis_sizes, strict=True))


def unlowered_message(op: str) -> str:
    """Returns the message for an operation that runs outside a program."""
    return (
        f"{op} has no execution rule: it is meant for a program that is traced over a mesh and lowered. "
        "Call it inside a function given to jaxmesh.jit(f, mesh=mesh), which traces, lowers and runs it. "
        "If a backward rule calls it and the function itself does not, derive inside: "
        "jaxmesh.jit(jax.grad(f), mesh=mesh)."
    )


def as_abstract(mesh: Mesh | AbstractMesh) -> AbstractMesh:
    """Returns a mesh without its devices."""
    return mesh.abstract_mesh if isinstance(mesh, Mesh) else mesh


def reshape_mesh(mesh: Mesh | AbstractMesh, sizes: Sequence[int], names: Sequence[str]) -> Mesh | AbstractMesh:
    """Returns a mesh of the same devices in the same order, with other axes."""
    if isinstance(mesh, Mesh):
        return Mesh(mesh.devices.reshape(tuple(sizes)), tuple(names))
    return AbstractMesh(tuple(sizes), tuple(names))


def context_devices() -> tuple[Any, ...] | None:
    """Returns the devices of the mesh that `jax.set_mesh` has set, also inside a trace; None if it has set none."""
    mesh = mesh_lib.get_concrete_mesh()
    return None if mesh.empty else tuple(mesh.devices.flat)


@contextlib.contextmanager
def without_mesh() -> Generator[None]:
    """Runs its body outside of the mesh of `jax.set_mesh`."""
    devices = _impls._internal_use_concrete_mesh(mesh_lib.empty_concrete_mesh)
    with devices, jax.sharding.use_abstract_mesh(AbstractMesh((), ())):
        yield


@contextlib.contextmanager
def undisturbed() -> Generator[None]:
    """Runs its body outside of the mesh of `jax.set_mesh`, a guard of transfers, and a search for NaN."""
    with without_mesh(), jax.transfer_guard("allow"), jax.debug_nans(False), jax.debug_infs(False):
        yield


def parse_hlo_sharding(text: str, mesh: AbstractMesh) -> PartitionSpec | None:
    """Returns the spec of a sharding as XLA writes it; None if it does not split over whole axes of the mesh."""
    try:
        (spec,) = _impls.parse_flatten_op_sharding(_jaxlib._hlo.HloSharding.from_string(text), mesh)
    except (ValueError, RuntimeError, AssertionError, StopIteration, NotImplementedError):
        return None
    return spec


# --- primitives ------------------------------------------------------------------------------------------------------


def unlowered_primitive(name: str) -> Any:
    """Returns a primitive that can be traced and transformed, but neither evaluated nor compiled."""

    def refuse(*_: object, **__: object) -> Any:
        raise UnloweredError(unlowered_message(name))

    prim: Any = Primitive(name)
    prim.def_impl(refuse)
    mlir.register_lowering(prim, refuse)
    return prim


def implementation(eqn: Eqn) -> Callable[..., object] | None:
    """Returns a library's implementation of its primitive; None for JAX's primitives, or if JAX cannot trace it."""
    impl: Any = eqn.primitive.impl
    bound: object = getattr(impl, "func", impl)
    if getattr(bound, "__module__", "").startswith(("jax._src", "jaxmesh")):
        return None

    def run(*args: Any) -> Any:
        return impl(*args, **eqn.params)

    # It may compute on the host, with NumPy say, and fail as it likes.
    try:
        typed.eval_shape(run, *(jax.ShapeDtypeStruct(a.aval.shape, a.aval.dtype) for a in eqn.invars))
    except Exception:
        return None
    return run


def lower_as(prim: Primitive, fun: Callable[..., object]) -> None:
    """Lowers a primitive of one result as a function that JAX traces."""
    rules: Any = mlir
    mlir.register_lowering(prim, rules.lower_fun(fun, multiple_results=False))


def define_linear(prim: Primitive, transpose: Callable[..., object]) -> None:
    """Defines JVP and transpose of a linear, unary primitive; `transpose(ct, operand, **params)` is the cotangent."""
    _ad.deflinear2(prim, transpose)


def linear_operand_aval(operand: jax.Array) -> Aval:
    """Returns the type of an operand inside a transpose rule, where it may be an undefined primal."""
    return operand.aval if _ad.is_undefined_primal(operand) else jax.typeof(operand)


# --- devices ---------------------------------------------------------------------------------------------------------

_core: Any = core_lib
_client: Any = xla_client


def array_type(shape: tuple[int, ...], dtype: DType, sharding: NamedSharding) -> Aval:
    """Returns the type of an array over the devices of a sharding."""
    return _core.update_aval_with_sharding(_core.ShapedArray(shape, dtype), sharding)


def on_devices(kind: Aval, sharding: NamedSharding, shards: Sequence[object], devices: list[Device]) -> jax.Array:
    """Returns an array of a type from one shard per device, in the order of the devices, in one call.

    JAX's public functions make a call per device, which takes most of the time for small tensors. XLA aliases host
    memory that is suitably aligned, so no caller may write to a shard afterwards.
    """
    return _client.batched_device_put(kind, sharding, shards, devices, True)


# --- random keys ------------------------------------------------------------------------------------------------------


_random: Any = jax.random


def is_key(dtype: DType) -> bool:
    """Returns True for an element type of random keys."""
    return not isinstance(dtype, np.dtype) and bool(jax.dtypes.issubdtype(dtype, jax.dtypes.prng_key))


def words_of(x: object) -> Any:
    """Returns the words of random keys, which are a further dim; returns any other array unchanged."""
    dtype = getattr(x, "dtype", None)
    return _random.key_data(x) if dtype is not None and is_key(dtype) else x


def from_words(x: Any, dtype: Any) -> Any:
    """Returns values of an element type that StableHLO lacks: random keys from their words, and `float0`.

    Returns an array unchanged for any other type.
    """
    if dtype == jax.dtypes.float0:
        return lax.broadcast(np.zeros((), dtype), x.shape)
    if not is_key(dtype):
        return x
    generators: list[object] = []

    def note(key: Any) -> None:
        generators.append(_random.key_impl(key))

    typed.eval_shape(note, jax.ShapeDtypeStruct((), dtype))
    return _random.wrap_key_data(x, impl=generators[0])


def off_explicit_axes(constant: Any) -> Any:
    """Returns a constant whose type names no Explicit axes, as a mapped region can close over it."""
    traced = constant
    if isinstance(traced, Tracer):
        return constant
    sharding = getattr(jax.typeof(constant), "sharding", None)
    if sharding is None or AxisType.Explicit not in sharding.mesh.axis_types:
        return constant
    with jax.ensure_compile_time_eval(), without_mesh():
        return from_words(np.asarray(words_of(constant)), constant.dtype)
