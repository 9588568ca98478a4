"""Imports a StableHLO module as a typed TTIR-level program: partitioned, with `mesh_shard`s at its boundary."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import jax
import numpy as np
from jax.sharding import AbstractMesh, PartitionSpec
from jaxlib.mlir import ir

from jaxmesh.dialects.ttir.mesh_shard import full_to_shard, shard_to_full
from jaxmesh.frontends.jax.retype import spread, varying
from jaxmesh.frontends.stablehlo.call import Equation
from jaxmesh.frontends.stablehlo.custom_calls import stands_for_op
from jaxmesh.frontends.stablehlo.decisions import Decision, Decisions
from jaxmesh.frontends.stablehlo.importer import Importer
from jaxmesh.frontends.stablehlo.rules import CALLS
from jaxmesh.frontends.stablehlo.shardings import Sharding, as_spec, axes_of, local_shape, split_only
from jaxmesh.frontends.stablehlo.shardy import end_shardings, partition
from jaxmesh.frontends.stablehlo.values import Sharded
from jaxmesh.jaxprs.compat import Aval, Jaxpr, from_words, off_explicit_axes, words_of
from jaxmesh.jaxprs.evaluate import trace_typed
from jaxmesh.jaxprs.source_locations import Sources


@dataclass(frozen=True, slots=True)
class ImportedProgram:
    """A partitioned program.

    Attributes:
      jaxpr: the typed, closed jaxpr.
      arguments: the shardings of its arguments.
      results: the shardings of its results.
      decisions: the partitioner's decisions, in program order.
      assumptions: replication that is assumed without a proof by types.
      splits: True if a computed value is sharded, or no value is computed.
    """

    jaxpr: Jaxpr
    arguments: tuple[Sharding, ...]
    results: tuple[Sharding, ...]
    decisions: tuple[Decision, ...]
    assumptions: tuple[str, ...]
    splits: bool

    @property
    def out_specs(self) -> tuple[PartitionSpec, ...]:
        """The specs of the results."""
        return tuple(map(as_spec, self.results))


def import_module(
    module: ir.Operation,
    mesh: AbstractMesh,
    sources: Sources,
    *,
    presharded: Sequence[bool],
    kept_results: Sequence[bool],
    consts: Sequence[jax.Array] = (),
    results_asked: Sequence[bool] | None = None,
    avals: tuple[Sequence[Aval], Sequence[Aval]] | None = None,
    name: str = "main",
    guarded: bool = False,
    sharded: bool = True,
    equation: Equation | None = None,
) -> ImportedProgram:
    """Partitions a StableHLO module with Shardy, and imports it.

    Args:
      module: the module's operation, which is changed.
      mesh: the mesh of the program.
      sources: the source locations of the module's ops.
      presharded: True for each argument that already is on the devices: it has its local type, and no `mesh_shard`.
      kept_results: True for each result that stays on the devices.
      consts: values of the first arguments, which the program closes over.
      results_asked: True for each result with a requested sharding.
      avals: the types of arguments and results with random keys as keys; by default the types in the module.
      name: the function of the module.
      guarded: True if the module does not come from JAX; see `partition`.
      sharded: False if the module states no sharding.
      equation: a function that performs, by number, an equation without a StableHLO op; see `keep_equations`.

    Raises:
      InexpressibleError: an op, or a form of it, is not supported.
    """
    sizes: Mapping[str, int] = dict(zip(mesh.axis_names, mesh.axis_sizes, strict=True))
    # On one device, upstream's pipeline inserts no mesh_shard, and its composites are ops of TTIR.
    whole = guarded and mesh.size == 1

    def is_op(composite: ir.Operation) -> bool:
        return (whole or composite.attributes["name"].value in CALLS) and stands_for_op(composite)

    partitioned = partition(module, sizes, name, guarded=guarded, sharded=sharded, kept=is_op)
    # An operation does not keep its module alive.
    module, main = partitioned.module, partitioned.main
    decisions = Decisions(sources)
    importer = Importer(sizes, decisions, keeps_ops=guarded, equation=equation)
    arguments, results = end_shardings(main)
    block = main.regions[0].blocks[0]
    types = importer.types_of(block.arguments)
    result_values = block.operations[-1].operands
    argument_types, result_types = avals or (types[len(consts) :], importer.types_of(result_values))
    on_devices = [*[False] * len(consts), *presharded]
    for i, (sharding, asked) in enumerate(zip(arguments, partitioned.asked, strict=True)):
        if i >= len(consts):
            decisions.value(i - len(consts), sharding, asked, "argument")
    for d in partitioned.dropped:
        with decisions.sources.at(d.location, d.value) as line:
            why = "make the sub-axis an axis of the mesh, to keep it" if ":(" in d.wanted else "it does not divide"
            decisions.log.append(Decision("dropped", line, d.value, f"{d.wanted} became {d.kept}: {why}"))

    closed_over = [off_explicit_axes(c) for c in consts]

    def run(*args: jax.Array) -> list[jax.Array]:
        entries = zip([*closed_over, *args], arguments, on_devices, strict=True)
        values = [
            Sharded(x if here or whole else _enter(importer, x, s), s)
            for x, s, here in ((words_of(x), split_only(s, sizes), here) for x, s, here in entries)
        ]
        outs = importer.block(block, values)
        if whole and not any(kept_results):
            return [importer.settle(y).array for y in outs]
        rows = zip(outs, results, kept_results, strict=True)
        left = [_leave(importer, y, split_only(s, sizes), here) for y, s, here in rows]
        return [from_words(y, a.dtype) for y, a in zip(left, result_types, strict=True)]

    # The words of a random key are an additional dim.
    ends = [s[: len(a.shape)] for a, s in zip(argument_types, arguments[len(consts) :], strict=True)]
    structs = [
        jax.ShapeDtypeStruct(local_shape(a.shape, s, sizes) if here else a.shape, a.dtype)
        for a, s, here in zip(argument_types, ends, presharded, strict=True)
    ]
    varying = [axes_of(split_only(s, sizes)) if here else () for s, here in zip(ends, presharded, strict=True)]
    with module.context:
        jaxpr = trace_typed(run, structs, varying, mesh)
    for i, sharding in enumerate(results):
        decisions.value(i, sharding, bool(results_asked and results_asked[i]), "result")
    return ImportedProgram(
        jaxpr,
        tuple(ends),
        tuple(s[: len(a.shape)] for a, s in zip(result_types, results, strict=True)),
        tuple(decisions.log),
        tuple(decisions.assumptions),
        importer.splits or not importer.computes,
    )


def _enter(importer: Importer, x: jax.Array, sharding: Sharding) -> jax.Array:
    def split(full: jax.Array) -> jax.Array:
        return spread(full_to_shard(full, as_spec(sharding)), axes_of(sharding))

    # Constants would be compared by all their bytes.
    return split(x) if isinstance(x, np.ndarray) else importer.kept(("argument", sharding), split, x)


def _leave(importer: Importer, y: Sharded, sharding: Sharding, stays: bool) -> jax.Array:
    def leave(x: jax.Array) -> jax.Array:
        if stays:
            return spread(x if varying(x) else full_to_shard(x, PartitionSpec()), axes_of(sharding))
        return shard_to_full(x, as_spec(sharding))

    x = importer.reshard(y, sharding, "of a result")
    return leave(x) if isinstance(x, np.ndarray) else importer.kept(("result", sharding, stays), leave, x)
