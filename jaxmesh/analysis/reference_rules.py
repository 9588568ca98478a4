"""Rules and inputs for runs on the reference executor, which depends on neither TTIR nor MeshTensor."""

from __future__ import annotations

from typing import Any

import jax

from jaxmesh.dialects.check_copies import REFERENCE_RULES as TTNN_RULES
from jaxmesh.dialects.ttir.mesh_shard import mesh_shard_p
from jaxmesh.dialects.ttir.mesh_shard_reference import mesh_shard
from jaxmesh.runtime.distributed.collectives import fetch_array
from jaxmesh.tensor.mesh_tensor import MeshTensor
from jaxmesh.tensor.transfers import all_shards

RULES = {"ttir": {**TTNN_RULES, mesh_shard_p.name: mesh_shard}, "ttnn": TTNN_RULES}
"""The rules for a program before (`"ttir"`) and after (`"ttnn"`) the pass, by primitive."""


def reference_input(x: object) -> Any:
    """Converts an argument for the reference executor: a MeshTensor to a dict from coordinate to shard."""
    if isinstance(x, MeshTensor):
        return all_shards(x)
    # Gather an array of several processes: the reference executor of each process needs all of it.
    return fetch_array(x) if isinstance(x, jax.Array) and not x.is_fully_addressable else x
