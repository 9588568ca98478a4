"""`jaxmesh.from_mlir`: a TTIR or TTNN file as a traced program. Hands what the frontend reads to the stages."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
import os
import warnings
from collections.abc import Sequence
from typing import Any

import jax
from jax.sharding import AbstractMesh, Mesh

from jaxmesh.dialects import program as flat
from jaxmesh.dialects.residency import DEVICE, FREE, Residency, ResidencyMap
from jaxmesh.dialects.signature import Argument, Boundary
from jaxmesh.errors import (
    AssumptionWarning,
    BlockFloatWarning,
    DeviceCountError,
    MeshError,
    MeshMismatchError,
    ReplicationError,
    ShardShapeWarning,
    UnsupportedError,
    VerifyError,
)
from jaxmesh.frontends.mlir.decode import Program, decode, located
from jaxmesh.frontends.mlir.module import Function, Source, choose, load, said_mesh
from jaxmesh.frontends.mlir.to_program import detached, flat_program, levels_of
from jaxmesh.frontends.mlir.trace import Outcome, Settings, trace_program
from jaxmesh.jaxprs import compat, walk
from jaxmesh.jaxprs.backend import backend_started
from jaxmesh.passes.mesh_shard.lower_mesh_shard import lower_mesh_shards
from jaxmesh.sharding.mesh import FLAG, AnyMesh, as_mesh, context_mesh, default_axis_names, make_mesh, program_mesh
from jaxmesh.stages.imported import Read
from jaxmesh.stages.stages import Traced
from jaxmesh.validate import as_bool, as_instance, check_size

_tree: Any = jax.tree
"""For what JAX leaves without annotations."""


def from_mlir(
    source: str | os.PathLike[str], mesh: AnyMesh | None = None, *, func: str | None = None, strict: bool = False
) -> Traced:
    """Reads TTIR or TTNN text as a traced program, which lowers, compiles and runs like any other.

    Arguments are positional: full arrays, or `MeshTensor`s where the file says `presharded`, whose declared type is the
    local shape. The result is one value, or a tuple; a presharded result is a `MeshTensor`.

    Every mistake is an error that names the line. TTIR does not say over which mesh axes presharded arguments differ:
    where a program is right only if they are equal along some, it takes coordinate 0, and `.assumptions` of the result
    lists the place.

    Args:
      source: the text, or the path of a file; both may hold several modules between lines `// -----`.
      mesh: the mesh; by default the one the module names (`ttcore.meshes`), or a RUN line (`mesh-shape=2,4`), or the
        context's. For a mesh of the file devices are taken, or emulated (up to 64); where that is too late the mesh is
        abstract, and the program can be traced and lowered only.
      func: the name of the function; by default the only public one, or `main`, or `forward`.
      strict: makes errors of warnings: a `shard_shape` that disagrees with `shard_dims`, block floats.

    Raises:
      ParseError: the text is no MLIR, or holds no such function.
      MissingFileError: there is no such file.
      VerifyError: an op breaks a rule.
      MissingRuleError: an op is not known here; the message says where it belongs.
      UnsupportedError: types that JAX does not hold; 64-bit types need `jax.config.update("jax_enable_x64", True)`.
      ReplicationError: a shard is used as a full value although its copies may differ.
      MeshMismatchError: the given mesh and the file's have different shapes.
      MeshError: no mesh is given or named, and the program needs one.

    >>> import jax.numpy as jnp, jaxmesh as jm
    >>> traced = jm.from_mlir('''
    ... module attributes {ttcore.meshes = #ttcore.meshes<[<"mesh" = 2x4>]>} {
    ...   func.func @main(%arg0: tensor<16x8xf32>) -> tensor<8x2xf32> {
    ...     %0 = "ttir.mesh_shard"(%arg0) <{shard_dims = array<i64: 0, 1>, shard_shape = array<i64: 2, 4>,
    ...          shard_direction = #ttcore.shard_direction<full_to_shard>, shard_type = #ttcore.shard_type<devices>}>
    ...          : (tensor<16x8xf32>) -> tensor<8x2xf32>
    ...     return %0 : tensor<8x2xf32>
    ...   }
    ... }''')
    >>> traced.out_avals[0].shape
    (8, 2)
    """
    strict = as_bool("from_mlir", "strict", strict)
    if func is not None:
        as_instance(str, "from_mlir", "func", func)
    file = load(source)
    return import_function(file, choose(file, func), mesh, strict=strict)


def import_function(file: Source, function: Function, mesh: AnyMesh | None, *, strict: bool = False) -> Traced:
    """One function of a file as a traced program; see `from_mlir`."""
    return import_program(file, decode(function, file.functions), mesh, strict=strict)


def import_program(file: Source, program: Program, mesh: AnyMesh | None, *, strict: bool = False) -> Traced:
    """A decoded function as a traced program; see `from_mlir`."""
    if strict and program.notes:
        raise UnsupportedError(f"{program.notes[0]}; that is an error when strict.")
    used = program_mesh(_mesh(file, program, mesh))
    boundary = _boundary(program, used)
    outcome, places = _trace_results(program, boundary, strict)
    _check_results(program, boundary, places)
    _warn(program, outcome)
    count = len(program.results)
    out_tree = _tree.structure(0 if count == 1 else (0,) * count)
    # What is assumed, or set right, stands in no text.
    changed = outcome.assumptions or outcome.shard_shapes or program.notes
    levels = frozenset[str]() if changed else levels_of(program)
    written = functools.partial(_written, detached(program), boundary, [p is DEVICE for p in places])
    return Read(boundary, outcome.jaxpr, out_tree, outcome.assumptions, levels, written)


def _written(program: Program, boundary: Boundary, kept: Sequence[bool], level: str) -> flat.Program | None:
    from jaxmesh.jaxprs.trees import show_paths

    return flat_program(program, level, boundary.sizes, show_paths(boundary.in_tree), kept)


# --- the mesh --------------------------------------------------------------------------------------------------------


def mesh_sizes(file: Source, program: Program) -> tuple[int, ...] | None:
    """The mesh shape a file says for a function, if any."""
    said = said_mesh(program.body.function, file.run_lines)
    return program.device_mesh if said is None else said.sizes


def _mesh(file: Source, program: Program, given: AnyMesh | None) -> AnyMesh:
    """The given mesh, checked against the file's; else the file's; else the context's; else one device.

    Raises:
      MeshMismatchError: the given (or the context's) mesh and the file's have different shapes.
      MeshError: there is none, and the program needs one.
    """
    found = as_mesh(given) if given is not None else context_mesh()
    runs = file.run_lines
    if found is not None:
        # Of several RUN lines the one with the given mesh is meant.
        runs = [r for r in runs if r.sizes == tuple(found.shape.values())] or runs
    said = said_mesh(program.body.function, runs)
    if found is not None:
        sizes = tuple(found.shape.values())
        if said is not None and sizes != said.sizes:
            whose = "the given mesh is" if given is not None else "jax.set_mesh has set the mesh"
            raise MeshMismatchError(
                f"{said.where} is {_by(said.sizes)}, but {whose} {_by(sizes)}; one program has one mesh. Give a mesh "
                "of the file's shape, or none."
            )
        return found
    sizes = mesh_sizes(file, program)
    if sizes is not None:
        return _made(sizes)
    if program.needs is None and any(program.presharded):
        raise MeshError(
            "a presharded argument needs a mesh, but the file names none; give mesh=jaxmesh.make_mesh((2, 4)) (or an "
            "AbstractMesh), or set one with jax.set_mesh."
        )
    if program.needs is not None:
        raise MeshError(
            f"line {program.needs.line}: {program.needs.op} needs a mesh, but the file names none; give "
            "mesh=jaxmesh.make_mesh((2, 4)) (or an AbstractMesh), set one with jax.set_mesh, or write "
            '`module attributes {ttcore.meshes = #ttcore.meshes<[<"mesh" = 2x4>]>}`.'
        )
    return _made((1, 1))


def _by(sizes: Sequence[int]) -> str:
    return "x".join(map(str, sizes))


EMULATED, MOST = 8, 64
"""Devices emulated at least, so that a later file finds them too, and at most, as they share this machine's cores."""


def _made(sizes: tuple[int, ...]) -> AnyMesh:
    """A mesh of a file's shape: of devices that exist, or can still be emulated; else abstract."""
    count = math.prod(sizes)
    if count <= MOST:
        config: Any = jax.config
        if not backend_started() and FLAG not in os.environ.get("XLA_FLAGS", ""):
            config.update("jax_num_cpu_devices", max(config.jax_num_cpu_devices, count, EMULATED))
        with contextlib.suppress(DeviceCountError):
            return make_mesh(sizes)
    return AbstractMesh(sizes, default_axis_names(len(sizes)))


# --- tracing ---------------------------------------------------------------------------------------------------------


def _trace(program: Program, settings: Settings) -> Outcome:
    """Traces with presharded arguments that differ everywhere; what only their equality proves is listed as assumed."""
    try:
        return _traced(program, settings)
    except ReplicationError as error:
        if not any(program.presharded):
            raise
        try:
            _traced(program, dataclasses.replace(settings, presharded_vary=False))
        except ReplicationError:
            raise
        except VerifyError:
            raise error from None
        if settings.strict:
            raise error from None
        return _traced(program, dataclasses.replace(settings, assume=True))


def _traced(program: Program, settings: Settings) -> Outcome:
    function = program.body.function
    try:
        return trace_program(program, settings)
    except Exception as error:
        # Errors of ops have their line already.
        raise error if str(error).startswith("line ") else located(function.line, f"@{function.name}", error) from None


def _boundary(program: Program, mesh: AnyMesh) -> Boundary:
    every = tuple(a for a in mesh.axis_names if mesh.shape[a] > 1)
    function = program.body.function
    for number, a in enumerate(program.body.arguments):
        check_size(a.shape, a.dtype, f"line {function.line}: argument {number} of @{function.name}")
    rows = zip(program.body.arguments, program.varying(mesh.axis_names), strict=True)
    arguments = tuple(Argument(a, None if v is None else tuple(n for n in every if n in v)) for a, v in rows)
    in_tree = _tree.structure((tuple(range(len(arguments))), {}))
    return Boundary(program.body.function.name, mesh, in_tree, arguments)


def _trace_results(program: Program, boundary: Boundary, strict: bool) -> tuple[Outcome, Sequence[Residency]]:
    """The traced function and where its results live; presharded ones that hold no argument are replicated."""
    abstract = boundary.mesh.abstract_mesh if isinstance(boundary.mesh, Mesh) else boundary.mesh
    outcome = _trace(program, Settings(abstract, strict=strict))
    places = _places(boundary, outcome)
    made = [p is FREE or (p is not DEVICE and c) for p, c in zip(places, _constant(outcome.jaxpr), strict=True)]
    free = frozenset(i for i, r in enumerate(program.results) if r.status == "presharded" and made[i])
    if free:
        outcome = _trace(program, Settings(abstract, strict=strict, replicated=free))
        places = _places(boundary, outcome)
    return outcome, places


def _constant(jaxpr: compat.Jaxpr) -> list[bool]:
    """Per result whether no argument is in it."""
    body = walk.open_jaxpr(jaxpr)
    given: set[Any] = {*body.invars}
    for eqn in body.eqns:
        if any(isinstance(a, compat.Var) and a in given for a in eqn.invars):
            given.update(eqn.outvars)
    return [not (isinstance(a, compat.Var) and a in given) for a in body.outvars]


def _places(boundary: Boundary, outcome: Outcome) -> Sequence[Residency]:
    lowered = lower_mesh_shards(outcome.jaxpr, boundary.residencies, boundary.sizes)
    return ResidencyMap(lowered, boundary.residencies).results


def _check_results(program: Program, boundary: Boundary, places: Sequence[Residency]) -> None:
    """Checks that results live where the file says; one device is both places at once.

    Raises:
      VerifyError: a result declared full stays on the devices, or one declared presharded is full.
    """
    statuses = [r.status for r in program.results]
    if not any(statuses) or math.prod(boundary.sizes.values()) == 1:
        return
    function = program.body.function
    for number, (status, place) in enumerate(zip(statuses, places, strict=True)):
        found = "presharded" if place is DEVICE else "unsharded"
        if status is not None and status != found:
            raise VerifyError(
                f"line {program.body.end}: func.return: result {number} of @{function.name} is declared {status} "
                f"(line {function.line}), but it is {found}: it "
                + (
                    "stays on the devices; aggregate it with a mesh_shard."
                    if place is DEVICE
                    else "is a full tensor; split it with a mesh_shard, or declare it unsharded."
                )
            )


def _warn(program: Program, outcome: Outcome) -> None:
    for text in outcome.assumptions:
        warnings.warn(text, AssumptionWarning, stacklevel=5)
    for text in outcome.shard_shapes:
        warnings.warn(text, ShardShapeWarning, stacklevel=5)
    for text in program.notes:
        warnings.warn(text, BlockFloatWarning, stacklevel=5)
