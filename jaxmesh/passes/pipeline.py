"""The pass pipelines of flat programs, and the way from a jaxpr through them.

`TTIR_PIPELINE` makes the program that a traced stage prints, `ttnn_pipeline` what a lowered stage prints and
exports. No pass to TTNN adds a transfer: transfers for the text alone are added to the jaxpr before. Of TTIR's passes
`place-results` adds a `mesh_shard`, for a result that an unrolled loop or branch leaves on the host.

The host computes on full tensors when a program runs; TTNN computes on the devices alone. So in a lowered program that
is printed, `compute_on_devices` distributes every full operand of such work and aggregates what leaves the devices,
before the program is flattened. The host makes and reshapes tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from jaxmesh.dialects.definitions import has_trait
from jaxmesh.dialects.op import Trait
from jaxmesh.dialects.program import Op, Program
from jaxmesh.dialects.residency import DEVICE, HOST, Residency, ResidencyMap
from jaxmesh.dialects.signature import Boundary
from jaxmesh.dialects.ttnn.transfers import PRIMITIVES
from jaxmesh.errors import InexpressibleError, JaxmeshError
from jaxmesh.jaxprs import walk
from jaxmesh.jaxprs.compat import Eqn, Jaxpr
from jaxmesh.jaxprs.trees import show_paths
from jaxmesh.jaxprs.walk import all_eqns
from jaxmesh.passes.flatten.builder import Options
from jaxmesh.passes.flatten.flatten import flatten, flatten_on_devices
from jaxmesh.passes.flatten.mesh_partition import recognise_mesh_partitions
from jaxmesh.passes.fusion.driver import fuse as fuse_ops
from jaxmesh.passes.hold_arguments import hold_arguments, keep_arguments
from jaxmesh.passes.layouts.decide_layouts import decide_layouts
from jaxmesh.passes.layouts.mesh_rank import OFFER, offer_of, set_mesh_rank
from jaxmesh.passes.memory import manage_memory, reads_overwritten
from jaxmesh.passes.mesh_shard.insert_transfers import Printed, insert_transfers
from jaxmesh.passes.mesh_shard.lower_mesh_shard import distribute_axis_indices, split_axis_indices
from jaxmesh.passes.mesh_shard.place_results import place_results
from jaxmesh.passes.small_dims import move_small_dims
from jaxmesh.passes.ttir_to_ttnn.builder import Site
from jaxmesh.passes.ttir_to_ttnn.driver import to_ttnn
from jaxmesh.passes.ttir_to_ttnn.shapes import has_host_form, is_created
from jaxmesh.passes.verify_program import verify_program


def compute_on_devices(
    program: Jaxpr, inputs: Sequence[Residency], results: Sequence[Residency], mesh: Mapping[str, int]
) -> Jaxpr:
    """Returns a lowered program whose host computes nothing; the same object if it computes nothing already.

    Args:
      program: a lowered jaxpr.
      inputs: the residency of each argument.
      results: the residency of each result, which stays the same.
      mesh: axis names and sizes.
    """

    def runs_on_host(eqn: Eqn) -> bool:
        """Returns True if the ops that an equation becomes make or reshape tensors."""
        try:
            alone = flatten_on_devices(walk.alone(eqn, program), mesh)
        except JaxmeshError:
            # It lacks a text, and the error is raised where the program is flattened.
            return False
        return all(_makes_or_reshapes(op, alone) for op in alone.ops)

    needed = tuple([DEVICE if r is DEVICE else HOST for r in results])
    return insert_transfers(program, inputs, mesh, Printed(runs_on_host, needed))


def _makes_or_reshapes(op: Op, program: Program) -> bool:
    site = Site(op, (), tuple([program.types[v] for v in op.results]))
    return has_trait(op.name, Trait.VIEW) or (is_created(site) and has_host_form(site))


@dataclass(frozen=True, slots=True)
class Pass:
    """A pass over flat programs.

    Attributes:
      name: as MLIR's pipelines write it.
      run: gives the changed program.
    """

    name: str
    run: Callable[[Program], Program]


MESH_PARTITION = Pass("recognise-mesh-partition", recognise_mesh_partitions)
PLACE_RESULTS = Pass("place-results", place_results)
FUSE = Pass("fuse", fuse_ops)
SMALL_DIMS = Pass("move-small-dims", move_small_dims)
TTIR_TO_TTNN = Pass("convert-ttir-to-ttnn", to_ttnn)
MANAGE_MEMORY = Pass("manage-memory", manage_memory)

TTIR_PIPELINE = (MESH_PARTITION, PLACE_RESULTS, FUSE)


def ttnn_pipeline(strict: bool, offer: str = OFFER) -> Sequence[Pass]:
    """Returns the passes to TTNN; if `strict`, what the real library does not take is an error, which ends with the
    offer of `offer_of`; else it stays."""
    set_rank = Pass("set-mesh-rank", partial(set_mesh_rank, strict=strict, offer=offer))
    decide = Pass("decide-layouts", partial(decide_layouts, strict=strict, offer=offer))
    return (MESH_PARTITION, FUSE, SMALL_DIMS, TTIR_TO_TTNN, set_rank, decide, MANAGE_MEMORY)


def run_passes(pipeline: Sequence[Pass], program: Program, without: Sequence[Pass] = ()) -> Program:
    """Runs the passes of a pipeline in order, leaving some out."""
    for each in pipeline:
        if each not in without:
            program = _run(each, program)
    return program


def _run(each: Pass, program: Program) -> Program:
    """Runs a pass on a program and the bodies of its loops, which free none of their arguments."""

    def inside(body: Program) -> Program:
        made = _run(each, body)
        return keep_arguments(made, ()) if each is MANAGE_MEMORY else made

    return each.run(program.with_bodies(inside))


def ttir_program(
    jaxpr: Jaxpr,
    boundary: Boundary,
    out_tree: object,
    results: Sequence[Residency],
    fuse: bool,
    unroll_limit: int | None = None,
) -> Program:
    """Returns the flat TTIR program of a traced one.

    Args:
      jaxpr: of the traced program.
      boundary: its signature.
      out_tree: the tree of its results.
      results: the residency of each result.
      fuse: whether groups of operations become one, where TTIR has one.
      unroll_limit: as of `Options.limited`.

    Raises:
      MissingRuleError: a primitive that TTIR has no row for.
      UnsupportedError: a loop that is not static.
      InexpressibleError: the program holds transfers of TTNN.
    """
    if any(e.primitive in PRIMITIVES for e in all_eqns(jaxpr)):
        raise InexpressibleError(
            f"{boundary.name} has no TTIR text: it was made with distribute_tensor and aggregate_tensor, which TTIR "
            "does not have. Lower it; .lower().as_text() is its TTNN text."
        )
    jaxpr = split_axis_indices(jaxpr, boundary.sizes)
    options = Options.limited(unroll_limit, fuse)
    program = _flatten(jaxpr, boundary, out_tree, "ttir", results, options)
    if reads_overwritten(program):
        program = _flatten(jaxpr, boundary, out_tree, "ttir", results, replace(options, in_place=False))
    return run_passes(TTIR_PIPELINE, program, () if fuse else (FUSE,))


def ttnn_program(
    lowered: ResidencyMap,
    boundary: Boundary,
    out_tree: object,
    fuse: bool,
    unroll_limit: int | None,
    strict: bool,
    mark: Callable[[Eqn], str] | None = None,
    held: Collection[int] = (),
    scopes: bool = False,
) -> Program:
    """Returns the flat TTNN program of a lowered one.

    Args:
      lowered: the residencies of the lowered program.
      boundary, out_tree, fuse, unroll_limit: as in `ttir_program`.
      strict: whether what the real library does not take is an error.
      mark, scopes: of `Options`.
      held: the numbers of arguments that are on the devices before the program starts.

    Raises:
      MissingRuleError: a primitive that TTIR has no row for, or an op that TTNN has none for.
      UnsupportedError: a loop that is not static, or what the real library does not take.
    """
    jaxpr, options = (
        printed_jaxpr(lowered, boundary.sizes),
        Options.limited(unroll_limit, fuse, mark=mark, scopes=scopes),
    )
    program = _flatten(jaxpr, boundary, out_tree, "ttnn", lowered.results, options)
    program = run_passes(
        ttnn_pipeline(strict, offer_of(program)), hold_arguments(program, held), () if fuse else (FUSE,)
    )
    verify_program(program, strict=strict)
    return program


def printed_jaxpr(lowered: ResidencyMap, mesh: Mapping[str, int]) -> Jaxpr:
    """Returns the jaxpr that a flat TTNN program renders, with all transfers of what TTNN does otherwise than JAX."""
    program = distribute_axis_indices(lowered.program, lowered.inputs, mesh)
    return compute_on_devices(program, lowered.inputs, lowered.results, mesh)


def _flatten(
    jaxpr: Jaxpr,
    boundary: Boundary,
    out_tree: object,
    level: str,
    results: Sequence[Residency],
    options: Options,
) -> Program:
    program = flatten(
        jaxpr,
        name=boundary.name,
        mesh=boundary.sizes,
        level=level,
        arguments=list(zip([r is DEVICE for r in boundary.residencies], show_paths(boundary.in_tree), strict=True)),
        results=list(zip([r is DEVICE for r in results], show_paths(out_tree), strict=True)),
        options=options,
    )
    program.arguments = [
        replace(port, varying=_axis_numbers(a.varying, boundary.sizes), role=a.role)
        for port, a in zip(program.arguments, boundary.arguments, strict=True)
    ]
    program.public = boundary.public
    return program


def _axis_numbers(varying: Sequence[str] | None, sizes: Mapping[str, int]) -> tuple[int, ...] | None:
    """Returns the numbers of the axes that an argument varies over; None for a full tensor and for all axes."""
    if varying is None or all(a in varying for a, n in sizes.items() if n > 1):
        return None
    return tuple(i for i, (a, n) in enumerate(sizes.items()) if a in varying and n > 1)
