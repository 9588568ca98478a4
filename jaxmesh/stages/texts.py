"""The texts of a program: hands its jaxpr to the builder, to the passes on flat programs, and to a printer.

Nothing is decided here. What stands in a text is what the passes said.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

import jax

from jaxmesh.dialects import (
    ttir as ttir_ops,  # noqa: F401
    ttnn as ttnn_ops,  # noqa: F401
)
from jaxmesh.dialects.program import Program
from jaxmesh.dialects.residency import DEVICE, Analysis
from jaxmesh.dialects.ttnn.transfers import PRIMITIVES
from jaxmesh.emit.cpp.printer import cpp_text
from jaxmesh.emit.mlir.printer import mlir_text
from jaxmesh.emit.python.printer import python_text
from jaxmesh.errors import ArgumentTypeError, InexpressibleError
from jaxmesh.jaxprs.compat import Jaxpr
from jaxmesh.jaxprs.walk import all_eqns
from jaxmesh.passes import flatten as flatten_rules  # noqa: F401
from jaxmesh.passes.flatten import collectives as collectives
from jaxmesh.passes.flatten.builder import Options, build
from jaxmesh.passes.flatten.mesh_partition import partitions
from jaxmesh.passes.flatten.place_results import placed_results
from jaxmesh.passes.fusion.driver import recognise
from jaxmesh.passes.mesh_shard.lower_mesh_shard import lower_mesh_shards
from jaxmesh.passes.ttir_to_ttnn.driver import to_ttnn
from jaxmesh.passes.verify_program import verify_flat
from jaxmesh.stages.signature import Boundary
from jaxmesh.validate import as_bool, quote


def ttir_program(jaxpr: Jaxpr, boundary: Boundary, out_tree: Any, groups: bool, unroll_limit: int) -> Program:
    """A traced program as a flat one.

    Raises:
      MissingRuleError: a primitive that TTIR has no row for.
      UnsupportedError: a loop or a branch that is not static.
    """
    lowered = lower_mesh_shards(jaxpr, tuple(boundary.sizes.values()), boundary.places)
    places = Analysis().body(lowered, boundary.places)
    if any(e.primitive in PRIMITIVES for e in all_eqns(jaxpr)):
        raise InexpressibleError(
            f"{boundary.name} has no TTIR text: it was made with distribute_tensor and aggregate_tensor, which TTIR "
            "does not have. Lower it; .lower().as_text() is its TTNN text."
        )
    return _flat(jaxpr, boundary, out_tree, "ttir", [p is DEVICE for p in places], groups, unroll_limit)


def ttnn_program(jaxpr: Jaxpr, boundary: Boundary, out_tree: Any, groups: bool, unroll_limit: int) -> Program:
    """A lowered program as a flat one of TTNN ops alone.

    Raises:
      MissingRuleError: a primitive that TTIR has no row for, or an op that TTNN has none for.
      UnsupportedError: a loop or a branch that is not static.
    """
    places = Analysis().body(jaxpr, boundary.places)
    flat = _flat(jaxpr, boundary, out_tree, "ttnn", [p is DEVICE for p in places], groups, unroll_limit)
    program = to_ttnn(flat)
    verify_flat(program)
    return program


def _flat(
    jaxpr: Jaxpr, boundary: Boundary, out_tree: Any, level: str, presharded: Sequence[bool], groups: bool, limit: int
) -> Program:
    program = build(
        jaxpr,
        name=boundary.name,
        mesh=boundary.sizes,
        level=level,
        arguments=[
            (a.varying is not None, p) for a, p in zip(boundary.arguments, paths(boundary.in_tree), strict=True)
        ],
        results=list(zip(presharded, paths(out_tree), strict=True)),
        options=Options(unroll_limit=limit, keep_imported_ops=groups),
    )
    program.arguments = [
        replace(port, varying=_axes(a.varying, boundary.sizes))
        for port, a in zip(program.arguments, boundary.arguments, strict=True)
    ]
    program = placed_results(partitions(program), level)
    return recognise(program) if groups else program


def _axes(varying: Sequence[str] | None, sizes: Mapping[str, int]) -> tuple[int, ...] | None:
    """The numbers of the axes over which an argument varies; None where that is all that can be."""
    if varying is None or all(a in varying for a, n in sizes.items() if n > 1):
        return None
    return tuple(i for i, (a, n) in enumerate(sizes.items()) if a in varying and n > 1)


def paths(tree: Any) -> list[str]:
    """The path to each leaf of a tree, as `jax.tree_util.keystr` writes it."""
    numbered = jax.tree.unflatten(tree, range(tree.num_leaves))
    rows = cast("list[tuple[Any, Any]]", jax.tree_util.tree_flatten_with_path(numbered)[0])
    return [jax.tree_util.keystr(path) for path, _ in rows]


# --- by name ---------------------------------------------------------------------------------------------------------

TTIR_TEXTS = ("ttir", "jaxpr")
TTNN_TEXTS = ("ttnn", "python", "cpp", "jaxpr")
"""The texts that a traced and a lowered program have; the first is the one meant when none is named."""


def checked_name(dialect: str | None, known: Sequence[str], stage: str) -> str:
    """The name of a text.

    Raises:
      ArgumentTypeError: there is none of that name.
    """
    if dialect is None:
        return known[0]
    if not isinstance(dialect, str) or dialect not in known:
        said = ", ".join(map(repr, known))
        raise ArgumentTypeError(f"a {stage} program has the texts {said}, got {quote(dialect)}.")
    return str(dialect)


_PRINTERS: Mapping[str, Callable[[Program], str]] = {"python": python_text, "cpp": cpp_text}


def printed(name: str, program: Program, *, debug_info: bool = False) -> str:
    """A flat program as text: `ttir` or `ttnn` (MLIR), `python`, `cpp`."""
    debug_info = as_bool("as_text", "debug_info", debug_info)
    return _PRINTERS[name](program) if name in _PRINTERS else mlir_text(program, locations=debug_info)


def files(program: Program, traced: Any, **options: Any) -> dict[str, str]:
    """The texts of a lowered program's folder, by file name; none of TTIR where that cannot say the program."""
    found: dict[str, str] = {}
    if traced is not None:
        with contextlib.suppress(InexpressibleError):
            found["ttir.mlir"] = traced.as_text(**options)
    return {**found, "ttnn.mlir": printed("ttnn", program)}
