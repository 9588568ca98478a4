"""From a StableHLO program with global shapes to a jaxpr of full values, with its sharding constraints."""

from __future__ import annotations

import jax
from jax.sharding import AbstractMesh, NamedSharding, PartitionSpec
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import sdy

from jaxmesh.frontends.stablehlo import gspmd, shardings
from jaxmesh.frontends.stablehlo.decisions import Decisions
from jaxmesh.frontends.stablehlo.importer import Importer
from jaxmesh.frontends.stablehlo.shardings import OWN, SHARDING
from jaxmesh.frontends.stablehlo.text import StablehloText
from jaxmesh.frontends.stablehlo.values import Sharded
from jaxmesh.jaxprs.compat import Jaxpr
from jaxmesh.jaxprs.source_locations import TextSources
from jaxmesh.jaxprs.typed import typed
from jaxmesh.jaxprs.untyped import lax
from jaxmesh.jaxprs.user_frames import PARSED

_CONSTRAINT = "sdy.sharding_constraint"
_OF_DEVICES = frozenset({"sdy.manual_computation", "stablehlo.partition_id", "stablehlo.rng"})
"""Operations that a jaxpr of full values lacks."""


def operation_locations(text: StablehloText) -> dict[int, str]:
    """Returns the locations of operations by the lines on which they are, with the locations of calls around them."""
    module = text.module.clone().operation
    with module.context, ir.Location.unknown(module.context):
        main = gspmd.inline_calls(module, text.function.name)
        places = [str(op.location) for op in gspmd.walk(main)]
    found = [(PARSED.search(place), place) for place in reversed(places)]
    return {int(m[1]) + text.function.piece.offset: place for m, place in found if m is not None}


Ends = list[NamedSharding | None]
"""The shardings of arguments or results; None where the text states none."""


def trace_unsharded(text: StablehloText, mesh: AbstractMesh) -> tuple[Jaxpr, Ends, Ends] | None:
    """Returns a program as a closed jaxpr of full values, with the shardings of its arguments and results.

    The equations have the lines of the text. Returns None if no such jaxpr has its meaning.
    """
    function = text.function
    module = text.module.clone().operation
    with module.context, ir.Location.unknown(module.context):
        gspmd.to_shardy(module, mesh)
        main = gspmd.inline_calls(module, function.name)
        block = main.regions[0].blocks[0]
        stated = [list(map(shardings.of_end, rows)) for _, _, rows in gspmd.ends(main)]
        if any(a is not None and shardings.has_parts(a) for side in stated for a in side):
            return None
        ins, outs = ([None if a is None else _named(a, mesh) for a in side] for side in stated)
        operations = [o.operation for o in block.operations]
        nested = [inner for op in operations for inner in gspmd.walk(op)]
        if any(op.name in _OF_DEVICES for op in (*operations, *nested)) or any(op.name in OWN for op in nested):
            return None
        constrained = {op: _spec(op) for op in operations if op.name in OWN}
        if any(spec is None for spec in constrained.values()):
            return None
        for op in (*operations, *nested):
            if op.name not in OWN and SHARDING in op.attributes:
                del op.attributes[SHARDING]
        importer = Importer({}, Decisions(TextSources(function.piece.offset)))

        def run(*args: jax.Array) -> list[jax.Array]:
            for value, x in zip(block.arguments, args, strict=True):
                importer.env[value] = _whole(x)
            *body, end = operations
            for op in body:
                spec = constrained.get(op)
                if spec is None:
                    importer.perform(op)
                    continue
                with importer.decisions.at(op):
                    x = importer.env[op.operands[0]].array
                    importer.env[op.results[0]] = _whole(lax.with_sharding_constraint(x, NamedSharding(mesh, spec)))
            return [importer.env[v].array for v in end.operands]

        return typed.make_jaxpr(run)(*importer.types_of(block.arguments)), ins, outs


def _named(attribute: sdy.TensorShardingAttr, mesh: AbstractMesh) -> NamedSharding:
    return NamedSharding(mesh, shardings.as_spec(shardings.read(attribute)))


def _whole(x: jax.Array) -> Sharded:
    return Sharded(x, shardings.replicated(x.ndim))


def _spec(op: ir.Operation) -> PartitionSpec | None:
    """Returns the sharding that an operation asks for; None for parts of axes, and for collectives."""
    (attribute,) = shardings.per_value(op) or (None,)
    if op.name != _CONSTRAINT or attribute is None or shardings.has_parts(attribute):
        return None
    dims = [sdy.DimensionShardingAttr(d) for d in attribute.dimension_shardings]
    free = PartitionSpec.UNCONSTRAINED
    rows = [tuple(sdy.AxisRefAttr(a).name for a in d.axes) for d in dims]
    return PartitionSpec(*[r or (None if d.is_closed else free) for d, r in zip(dims, rows, strict=True)])
