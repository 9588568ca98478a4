"""The lowering of a TTIR-level jaxpr to a TTNN-level one, pass by pass.

Passes over flat programs, which are printed, are in `passes/pipeline.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from jaxmesh.dialects.residency import Residency, ResidencyMap, has_transfer
from jaxmesh.jaxprs.compat import Jaxpr
from jaxmesh.jaxprs.rewrite import inline_calls
from jaxmesh.passes.mesh_shard.cancel_transfers import cancel_transfers
from jaxmesh.passes.mesh_shard.insert_transfers import insert_transfers
from jaxmesh.passes.mesh_shard.lower_mesh_shard import lower_mesh_shards
from jaxmesh.passes.mesh_shard.verify import verify_ttnn

Inputs = Sequence[Residency]
Mesh = Mapping[str, int]


@dataclass(frozen=True, slots=True)
class JaxprPass:
    """A pass over closed jaxprs.

    Attributes:
      name: as MLIR's pipelines write it.
      run: gives the changed program, from the program, the residency of each input, and the size of each mesh axis.
    """

    name: str
    run: Callable[[Jaxpr, Inputs, Mesh], Jaxpr]


def _inline_transfers(program: Jaxpr, inputs: Inputs, mesh: Mesh) -> Jaxpr:
    """Inlines calls that hold transfers: what one call puts together the next may take apart."""
    return inline_calls(program, has_transfer)


LOWERING = (
    JaxprPass("lower-mesh-shard", lower_mesh_shards),
    JaxprPass("insert-transfers", insert_transfers),
    JaxprPass("inline-transfers", _inline_transfers),
    JaxprPass("cancel-transfers", cancel_transfers),
)
"""The passes from TTIR to TTNN. After `insert-transfers` every transfer is explicit."""


def lower(program: Jaxpr, inputs: Inputs, mesh: Mesh, passes: Sequence[JaxprPass] = LOWERING) -> ResidencyMap:
    """Lowers a closed TTIR-level jaxpr to a closed TTNN-level jaxpr of the same type.

    Args:
      program: the traced program, typed by varying axes.
      inputs: the residency of each argument.
      mesh: axis names and sizes.
      passes: those of `LOWERING` that have not run on the program.

    Returns:
      The residencies of the lowered program, which is their `.program`.

    Raises:
      MissingRuleError: a transfer inside a primitive without a rule.
      UnsupportedError: a transfer in a branch or loop that devices take differently.
    """
    for each in passes:
        program = each.run(program, inputs, mesh)
    return verify_ttnn(program, inputs, mesh)
