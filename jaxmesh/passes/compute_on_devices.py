"""Moves the work of the host to the devices, in a lowered program that is printed.

The host computes on full tensors when a program runs; TTNN computes on the devices alone. So every full operand of such
work is distributed and what leaves the devices is aggregated, before the program is flattened: the flat program has the
transfers of the jaxpr and no others. The host makes and reshapes tensors.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from jaxmesh.dialects.definitions import has_trait
from jaxmesh.dialects.op import Trait
from jaxmesh.dialects.program import Op, Program
from jaxmesh.dialects.residency import DEVICE, HOST, Residency
from jaxmesh.errors import JaxmeshError
from jaxmesh.jaxprs import walk
from jaxmesh.jaxprs.compat import Eqn, Jaxpr
from jaxmesh.passes.flatten.flatten import flatten_on_devices
from jaxmesh.passes.mesh_shard.insert_transfers import Printed, insert_transfers
from jaxmesh.passes.ttir_to_ttnn.builder import Site
from jaxmesh.passes.ttir_to_ttnn.shapes import has_host_form, is_created


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
