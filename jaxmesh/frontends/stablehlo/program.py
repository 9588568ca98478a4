"""From a StableHLO module to a typed TTIR-level program: partitioned, imported, with `mesh_shard`s at its ends."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
from jax.sharding import AbstractMesh, PartitionSpec

from jaxmesh.dialects.ttir.mesh_shard import full_to_shard, shard_to_full
from jaxmesh.frontends.jax.retype import spread, varying
from jaxmesh.frontends.stablehlo.custom_calls import stands_for_op
from jaxmesh.frontends.stablehlo.decisions import Decision, Decisions
from jaxmesh.frontends.stablehlo.importer import Importer
from jaxmesh.frontends.stablehlo.op_rules import CALLS
from jaxmesh.frontends.stablehlo.shardings import Sharding, as_spec, axes_of, local_shape
from jaxmesh.frontends.stablehlo.shardy import argument_shardings, partition, result_shardings
from jaxmesh.frontends.stablehlo.values import Sharded
from jaxmesh.jaxprs.compat import Jaxpr
from jaxmesh.jaxprs.evaluate import trace_typed
from jaxmesh.jaxprs.keys import from_words, words_of
from jaxmesh.jaxprs.source_locations import Sources


@dataclass(frozen=True, slots=True)
class ImportedProgram:
    """A partitioned program.

    Attributes:
      jaxpr: the typed, closed jaxpr.
      arguments: the shardings of its arguments.
      results: the shardings of its results.
      decisions: what the partitioner decided, in the order of the program.
      assumptions: where replication is assumed that no type proves.
      splits: whether any value that is computed is split over devices, or none is computed.
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
    module: Any,
    mesh: AbstractMesh,
    *,
    presharded: Sequence[bool] | None = None,
    consts: Sequence[Any] = (),
    sources: Sources | None = None,
    results_asked: Sequence[bool] | None = None,
    avals: tuple[Sequence[Any], Sequence[Any]] | None = None,
    name: str = "main",
    guarded: bool = False,
    kept_results: Sequence[bool] | None = None,
    equation: Callable[[int, list[Any]], list[Any]] | None = None,
) -> ImportedProgram:
    """Partitions a StableHLO module with Shardy, and imports it.

    Args:
      module: the module's operation, which is changed.
      mesh: the mesh of the program.
      presharded: which arguments live on the devices already: those get no `mesh_shard`, and their local type.
      consts: values of the first arguments, which the program closes over.
      sources: where the ops of the module come from in the user's source.
      results_asked: which results have shardings that were asked for.
      avals: the types of the arguments and of the results where random keys are not their words; by default those of
        the module.
      name: the function of the module.
      guarded: whether others than JAX made the module; see `partition`.
      kept_results: which results stay on the devices.
      equation: performs an equation that StableHLO has no op for, by its number; see `keep_equations`.

    Raises:
      InexpressibleError: an op, or a form of it, that has no meaning here.
    """
    sizes: Mapping[str, int] = dict(zip(mesh.axis_names, mesh.axis_sizes, strict=True))
    # On one device upstream's pipeline writes no mesh_shard, and its composites are ops of TTIR.
    whole = guarded and mesh.size == 1

    def is_op(composite: Any) -> bool:
        return (whole or composite.attributes["name"].value in CALLS) and stands_for_op(composite)

    partitioned = partition(module, sizes, name, guarded=guarded, kept=is_op)
    main = partitioned.main
    decisions = Decisions(sources or Sources(()))
    importer = Importer(sizes, decisions, keeps_ops=guarded, equation=equation)
    arguments, results = argument_shardings(main), result_shardings(main)
    block = main.regions[0].blocks[0]
    types = importer.types_of(block.arguments)
    given, made = (types[len(consts) :], importer.types_of(block.operations[-1].operands)) if avals is None else avals
    kept = presharded or [False] * len(given)
    on_devices = [*[False] * len(consts), *kept]
    for i, (sharding, asked) in enumerate(zip(arguments, partitioned.asked, strict=True)):
        if i >= len(consts):
            decisions.value(i - len(consts), sharding, asked, "argument")
    for d in partitioned.dropped:
        with decisions.sources.at(d.location, d.value) as line:
            decisions.made.append(Decision("dropped", line, d.value, f"{d.wanted} became {d.kept}: it does not divide"))

    stays = kept_results or [False] * len(results)

    def run(*args: Any) -> list[Any]:
        entries = zip([*consts, *args], arguments, on_devices, strict=True)
        values = [
            Sharded(x if here or whole else spread(full_to_shard(x, as_spec(s)), axes_of(s)), s)
            for x, s, here in ((words_of(x), s, here) for x, s, here in entries)
        ]
        outs = importer.block(block, values)
        if whole and not any(stays):
            return [importer.settle(y).array for y in outs]
        left = [_leave(importer, y, s, here) for y, s, here in zip(outs, results, stays, strict=True)]
        return [from_words(y, a.dtype) for y, a in zip(left, made, strict=True)]

    # The words of a random key are a further dim.
    ends = [s[: len(a.shape)] for a, s in zip(given, arguments[len(consts) :], strict=True)]
    structs = [
        jax.ShapeDtypeStruct(local_shape(a.shape, s, sizes) if here else a.shape, a.dtype)
        for a, s, here in zip(given, ends, kept, strict=True)
    ]
    varying = [axes_of(s) if here else () for s, here in zip(ends, kept, strict=True)]
    with module.context:
        jaxpr = trace_typed(run, structs, varying, mesh)
    for i, sharding in enumerate(results):
        asked = bool(results_asked and results_asked[i])
        decisions.value(i, sharding, asked, "result")
    return ImportedProgram(
        jaxpr,
        tuple(ends),
        tuple(s[: len(a.shape)] for a, s in zip(made, results, strict=True)),
        tuple(decisions.made),
        tuple(decisions.assumptions),
        importer.splits or not importer.computes,
    )


def _leave(importer: Importer, y: Sharded, sharding: Sharding, stays: bool) -> Any:
    x = importer.reshard(y, sharding, "of a result")
    if stays:
        return spread(x if varying(x) else full_to_shard(x, PartitionSpec()), axes_of(sharding))
    return shard_to_full(x, as_spec(sharding))
