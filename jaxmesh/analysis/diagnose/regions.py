"""Runs a region that the user wrote for one device, a `shard_map`, on global values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import AbstractMesh, PartitionSpec

from jaxmesh.analysis.reference_rules import RULES
from jaxmesh.dialects.residency import HOST
from jaxmesh.dialects.ttir.mesh_shard import full_to_shard, shard_to_full
from jaxmesh.frontends.stablehlo.decisions import Decisions
from jaxmesh.frontends.stablehlo.importer import Importer
from jaxmesh.frontends.stablehlo.shardings import as_spec, replicated
from jaxmesh.frontends.stablehlo.values import Sharded
from jaxmesh.jaxprs.evaluate import trace_typed
from jaxmesh.jaxprs.source_locations import Sources
from jaxmesh.runtime.reference import run_reference

REGION = "sdy.manual_computation"


def run_region(op: Any, arrays: Sequence[Any], sizes: Mapping[str, int]) -> list[Any]:
    """Returns the global results of a region for global operands: its devices run one after the other."""
    importer = Importer(sizes, Decisions(Sources(())))

    def run(*args: Any) -> list[Any]:
        shards = [Sharded(full_to_shard(x, PartitionSpec()), replicated(x.ndim)) for x in args]
        importer.env.update(zip(op.operands, shards, strict=True))
        importer.perform(op)
        outs = [importer.settle(importer.env[v]) for v in op.results]
        return [shard_to_full(y.array, as_spec(y.sharding)) for y in outs]

    structs = [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in arrays]
    mesh = AbstractMesh(tuple(sizes.values()), tuple(sizes))
    program = trace_typed(run, structs, [()] * len(arrays), mesh)
    results = run_reference(program, [HOST] * len(arrays), sizes, list(arrays), RULES["ttir"])
    return [np.asarray(y) for y in results]
