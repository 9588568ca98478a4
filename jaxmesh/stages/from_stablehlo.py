"""StableHLO text as a traced program."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any, TypeVar

import jax
from jax.sharding import AbstractMesh, Mesh

from jaxmesh.dialects.signature import Argument, Boundary
from jaxmesh.errors import (
    AssumptionWarning,
    DroppedShardingWarning,
    JaxmeshError,
    RedundantReductionWarning,
    UnsupportedError,
)
from jaxmesh.frontends.stablehlo.shardings import axes_of
from jaxmesh.frontends.stablehlo.text import StablehloText, import_text
from jaxmesh.sharding.mesh import AnyMesh

T = TypeVar("T")
_tree: Any = jax.tree


def import_stablehlo(
    text: StablehloText,
    mesh: AnyMesh,
    make: Callable[..., T],
    *,
    strict: bool = False,
) -> T:
    """Returns a function of a StableHLO module as `make` makes a traced program of it; see `jaxmesh.from_mlir`."""
    function = text.function
    if text.axes is not None:
        mesh = _rename_axes(mesh, tuple(text.axes))
    try:
        program = import_text(text, mesh.abstract_mesh if isinstance(mesh, Mesh) else mesh)
    except JaxmeshError as error:
        if str(error).startswith("line "):
            raise
        raise type(error)(f"line {function.line}: @{function.name}: {error}") from error
    dropped = [f"{d.line or d.op}: {d.text}" for d in program.decisions if d.kind == "dropped"]
    if strict and dropped:
        raise UnsupportedError(f"{dropped[0]}; that is an error when strict.")
    for text_of in dropped:
        warnings.warn(text_of, DroppedShardingWarning, stacklevel=4)
    for decision in program.decisions:
        if decision.kind == "redundant":
            warnings.warn(str(decision), RedundantReductionWarning, stacklevel=4)
    for text_of in program.assumptions:
        warnings.warn(text_of, AssumptionWarning, stacklevel=4)
    rows = zip(program.jaxpr.in_avals, program.arguments, text.presharded, strict=True)
    arguments = tuple(
        Argument(
            jax.ShapeDtypeStruct(a.shape, a.dtype),
            tuple(n for n in mesh.axis_names if n in axes_of(s) and mesh.shape[n] > 1) if here else None,
        )
        for a, s, here in rows
    )
    in_tree = _tree.structure((tuple(range(len(arguments))), {}))
    count = len(program.results)
    out_tree = _tree.structure(0 if count == 1 else (0,) * count)
    boundary = Boundary(function.name, mesh, in_tree, arguments, public=function.says_public)
    return make(boundary, program.jaxpr, out_tree, program.assumptions, decisions=program.decisions)


def _rename_axes(mesh: AnyMesh, names: tuple[str, ...]) -> AnyMesh:
    """Returns a mesh with the axis names of the text."""
    if mesh.axis_names == names:
        return mesh
    if isinstance(mesh, Mesh):
        return Mesh(mesh.devices, names)
    return AbstractMesh(mesh.axis_sizes, names)
