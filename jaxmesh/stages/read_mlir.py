"""Imports a TTIR, TTNN or StableHLO text as a traced program, which the caller's class makes."""

from __future__ import annotations

import contextlib
import functools
import math
import os
import warnings
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

import jax
from jax.sharding import AbstractMesh

from jaxmesh.dialects.program import Port
from jaxmesh.dialects.residency import DEVICE, ResidencyMap
from jaxmesh.dialects.signature import Argument, Boundary
from jaxmesh.errors import (
    AssumptionWarning,
    BlockFloatWarning,
    DeviationWarning,
    DeviceCountError,
    DroppedShardingWarning,
    JaxmeshError,
    MeshError,
    MeshMismatchError,
    RedundantReductionWarning,
    ReplicationError,
    ShardShapeWarning,
    UnsupportedError,
    VerifyError,
)
from jaxmesh.frontends.mlir.decode import decode
from jaxmesh.frontends.mlir.module import DeclaredMesh, Function, Source, declared_mesh
from jaxmesh.frontends.mlir.source import RunLine
from jaxmesh.frontends.mlir.text import PrintedText, Text, fitting_mesh, with_layouts_obeyed
from jaxmesh.frontends.mlir.trace import Outcome, trace_program
from jaxmesh.frontends.stablehlo.shardings import axes_of
from jaxmesh.frontends.stablehlo.text import StablehloText, import_text, is_stablehlo, read_function
from jaxmesh.jaxprs.backend import backend_started
from jaxmesh.jaxprs.compat import as_abstract, reshape_mesh
from jaxmesh.jaxprs.trees import show_paths
from jaxmesh.jaxprs.typed import typed
from jaxmesh.passes.lowering import LOWERING
from jaxmesh.sharding.mesh import FLAG, AnyMesh, as_mesh, context_mesh, default_axis_names, make_mesh, program_mesh
from jaxmesh.stages.whole_program import WrittenText
from jaxmesh.validate import check_size

T = TypeVar("T")


def decode_function(file: Source, function: Function) -> Text | StablehloText:
    """Reads the signature and the body of a function, of TTIR, TTNN or StableHLO."""
    return read_function(function) if is_stablehlo(function) else decode(function, file.named)


def import_program(
    file: Source, text: Text | StablehloText, mesh: AnyMesh | None, make: Callable[..., T], *, strict: bool = False
) -> T:
    """Returns a decoded function as what `make` makes, `jaxmesh.stages.stages.Traced`; see `jaxmesh.from_mlir`."""
    if isinstance(text, StablehloText):
        over = program_mesh(_mesh(file, text, mesh))
        made = functools.partial(
            make, as_written=WrittenText(file.text, f"{text.function.name}@{text.function.line}", over)
        )
        return _import_stablehlo(text, over, made, strict)
    if strict and text.notes:
        raise UnsupportedError(f"{text.notes[0]}; that is an error when strict.")
    if strict and text.deviations:
        raise VerifyError(f"{text.deviations[0].rstrip('.')}; that is an error when strict.")
    over = program_mesh(_mesh(file, text, mesh))
    text = with_layouts_obeyed(text)
    boundary = _boundary(text, over)
    outcome, residency = _trace(text, boundary, strict)
    on_devices = [r is DEVICE for r in residency.results]
    _check_results(text, boundary, on_devices)
    if strict and outcome.casts:
        raise VerifyError(f"{outcome.casts[0]}; that is an error when strict.")
    _warn(
        (AssumptionWarning, outcome.assumptions),
        (ShardShapeWarning, outcome.shard_shapes),
        (DeviationWarning, (*text.deviations, *outcome.casts)),
        (BlockFloatWarning, text.notes),
    )
    return make(
        boundary,
        outcome.jaxpr,
        _out_tree(len(text.results)),
        outcome.assumptions,
        imported=_printed(text, outcome, boundary, on_devices),
        residency=residency,
    )


def _printed(text: Text, outcome: Outcome, boundary: Boundary, on_devices: Sequence[bool]) -> PrintedText | None:
    """Returns the text for printing; None for an earlier version, or if something is assumed."""
    # No text contains what is assumed or corrected.
    changed = outcome.assumptions or outcome.shard_shapes or outcome.casts or text.notes or text.deviations
    if changed or not text.is_current:
        return None
    rows = zip(text.arguments, text.presharded, show_paths(boundary.in_tree), strict=True)
    arguments = [Port(0, p, path, a.varying if p else None, a.role) for a, p, path in rows]
    declared = zip(text.results, on_devices, strict=True)
    results = [d if r.status is None else r.status == "presharded" for r, d in declared]
    lines = [f"line {line}: {name}" for line, name in zip(text.lines, text.names, strict=True)]
    return PrintedText(text.program, boundary.sizes, arguments, results, boundary.public, lines)


# --- the mesh --------------------------------------------------------------------------------------------------------


def mesh_sizes(file: Source, text: Text | StablehloText) -> tuple[int, ...] | None:
    """Returns the mesh shape that a file declares for a function, else the shape that its ops fix, or None."""
    declared = _declared_mesh(text, file.run_lines)
    if declared is not None:
        return declared.sizes
    if isinstance(text, Text) and text.device_mesh is None and text.needs is not None:
        return fitting_mesh(text)
    return text.device_mesh


def _declared_mesh(text: Text | StablehloText, runs: Sequence[RunLine]) -> DeclaredMesh | None:
    if isinstance(text, StablehloText) and text.axes is not None:
        return DeclaredMesh(tuple(text.axes.values()), text.where)
    return declared_mesh(text.function, runs)


def _mesh(file: Source, text: Text | StablehloText, given: AnyMesh | None) -> AnyMesh:
    """Returns the given mesh, checked against the file's; else the file's; else the context's; else one device."""
    found = as_mesh(given) if given is not None else context_mesh()
    runs = file.run_lines
    if found is not None:
        # Of several RUN lines the one with the given mesh is meant.
        runs = [r for r in runs if r.sizes == tuple(found.shape.values())] or runs
    declared = _declared_mesh(text, runs)
    if found is not None:
        sizes = tuple(found.shape.values())
        if declared is not None and declared.sizes == (1, *sizes):
            return reshape_mesh(found, declared.sizes, ("_0", *found.axis_names))
        if declared is not None and sizes == (1, *declared.sizes):
            return reshape_mesh(found, declared.sizes, found.axis_names[1:])
        if declared is not None and sizes != declared.sizes:
            whose = "the given mesh is" if given is not None else "jax.set_mesh has set the mesh"
            raise MeshMismatchError(
                f"{declared.where} is {_by(declared.sizes)}, but {whose} {_by(sizes)}; one program has one mesh. Give "
                "a mesh of the file's shape, or none."
            )
        return found
    sizes = mesh_sizes(file, text)
    if sizes is not None:
        return _make(sizes)
    if text.needs is None and any(text.presharded):
        raise MeshError(
            "a presharded argument needs a mesh, but the file names none; give mesh=jaxmesh.make_mesh((2, 4)) (or an "
            "AbstractMesh), or set one with jax.set_mesh."
        )
    if text.needs is not None:
        raise MeshError(
            f"{text.needs} needs a mesh, but the file names none, and its ops do not fix one; give "
            "mesh=jaxmesh.make_mesh((2, 4)) (or an AbstractMesh; on the command line --mesh 2x4), set one with "
            'jax.set_mesh, or write `module attributes {ttcore.meshes = #ttcore.meshes<[<"mesh" = 2x4>]>}`, or a RUN '
            "line with mesh-shape=2,4."
        )
    return _make((1, 1))


def _by(sizes: Sequence[int]) -> str:
    return "x".join(map(str, sizes))


EMULATED, MOST = 8, 64
"""Devices emulated at least, so that a later file finds them too, and at most, as they share this machine's cores."""


def _make(sizes: tuple[int, ...]) -> AnyMesh:
    """Returns a mesh of a file's shape: of devices that exist, or can still be emulated; else abstract."""
    count = math.prod(sizes)
    if count <= MOST:
        if not backend_started() and FLAG not in os.environ.get("XLA_FLAGS", ""):
            typed.config.update("jax_num_cpu_devices", max(typed.config.jax_num_cpu_devices, count, EMULATED))
        with contextlib.suppress(DeviceCountError):
            return make_mesh(sizes)
    return AbstractMesh(sizes, default_axis_names(len(sizes)))


# --- tracing ---------------------------------------------------------------------------------------------------------


def _trace(text: Text, boundary: Boundary, strict: bool) -> tuple[Outcome, ResidencyMap]:
    """Traces the function; returns also the residencies of its values, with transfers in place of `mesh_shard`s."""
    mesh = as_abstract(boundary.mesh)
    # Presharded arguments differ everywhere; what only their equality proves is assumed.
    outcome = trace_program(text, mesh, strict=strict)
    if outcome.unproven is not None:
        _check_assumed(text, mesh, strict, outcome.unproven)
    if outcome.error is not None:
        raise outcome.error
    inputs = boundary.residencies
    return outcome, ResidencyMap(LOWERING[0].run(outcome.jaxpr, inputs, boundary.sizes), inputs)


def _out_tree(count: int) -> Any:
    return jax.tree.structure(0 if count == 1 else (0,) * count)


def _check_assumed(text: Text, mesh: AbstractMesh, strict: bool, unproven: ReplicationError) -> None:
    if not any(text.presharded):
        raise unproven
    equal = trace_program(text, mesh, strict=strict, presharded_vary=False)
    if equal.unproven is not None:
        raise equal.unproven
    if equal.error is not None and not isinstance(equal.error, VerifyError):
        raise equal.error
    if equal.error is not None or strict:
        raise unproven


def _boundary(text: Text, mesh: AnyMesh) -> Boundary:
    every = tuple(a for a in mesh.axis_names if mesh.shape[a] > 1)
    name, avals = text.function.name, text.avals
    for number, a in enumerate(avals):
        check_size(a.shape, a.dtype, f"line {text.function.line}: argument {number} of @{name}")
    rows = zip(avals, text.varying(mesh.axis_names), text.arguments, strict=True)
    arguments = tuple(
        Argument(a, None if v is None else tuple(n for n in every if n in v), role=own.role) for a, v, own in rows
    )
    return _positional(text.function, mesh, arguments)


def _positional(function: Function, mesh: AnyMesh, arguments: tuple[Argument, ...]) -> Boundary:
    """Returns the signature of a function whose arguments are all given by position."""
    in_tree = jax.tree.structure((tuple(range(len(arguments))), {}))
    names = tuple(function.argument_names())
    return Boundary(function.name, mesh, in_tree, arguments, public=function.says_public, names=names)


def _check_results(text: Text, boundary: Boundary, on_devices: Sequence[bool]) -> None:
    """Checks that results are full or sharded as the file declares; one device is both."""
    statuses = [r.status for r in text.results]
    if not any(statuses) or math.prod(boundary.sizes.values()) == 1:
        return
    for number, (status, on_device) in enumerate(zip(statuses, on_devices, strict=True)):
        found = "presharded" if on_device else "unsharded"
        if status is not None and status != found:
            raise VerifyError(
                f"line {text.end}: func.return: result {number} of @{text.function.name} is declared {status} "
                f"(line {text.function.line}), but it is {found}: it "
                + (
                    "stays on the devices; aggregate it with a mesh_shard."
                    if on_device
                    else "is a full tensor; split it with a mesh_shard, or declare it unsharded."
                )
            )


def _warn(*groups: tuple[type[Warning], Iterable[str]], stacklevel: int = 4) -> None:
    for kind, sentences in groups:
        for sentence in sentences:
            warnings.warn(sentence, kind, stacklevel=stacklevel)


# --- StableHLO --------------------------------------------------------------------------------------------------------


def _import_stablehlo(text: StablehloText, mesh: AnyMesh, make: Callable[..., T], strict: bool) -> T:
    """Returns a function of a StableHLO module as `make` makes a traced program of it."""
    function = text.function
    if text.axes is not None and mesh.axis_names != tuple(text.axes):
        mesh = reshape_mesh(mesh, tuple(mesh.shape.values()), tuple(text.axes))
    try:
        program = import_text(text, as_abstract(mesh))
    except JaxmeshError as error:
        if str(error).startswith("line "):
            raise
        raise type(error)(f"line {function.line}: @{function.name}: {error}") from error
    dropped = [f"{d.line or d.op}: {d.text}" for d in program.decisions if d.kind == "dropped"]
    if strict and dropped:
        raise UnsupportedError(f"{dropped[0]}; that is an error when strict.")
    redundant = (str(d) for d in program.decisions if d.kind == "redundant")
    groups = (DroppedShardingWarning, dropped), (RedundantReductionWarning, redundant)
    _warn(*groups, (AssumptionWarning, program.assumptions), stacklevel=5)
    rows = zip(program.jaxpr.in_avals, program.arguments, text.presharded, strict=True)
    arguments = tuple(
        Argument(
            jax.ShapeDtypeStruct(a.shape, a.dtype),
            tuple(n for n in mesh.axis_names if n in axes_of(s) and mesh.shape[n] > 1) if here else None,
        )
        for a, s, here in rows
    )
    boundary = _positional(function, mesh, arguments)
    return make(
        boundary, program.jaxpr, _out_tree(len(program.results)), program.assumptions, decisions=program.decisions
    )
