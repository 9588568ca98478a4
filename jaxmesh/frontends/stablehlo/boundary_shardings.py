"""The shardings of arguments and results that a StableHLO text states, with its arguments or in manual computations."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import sdy

from jaxmesh.frontends.mlir.module import choose, load_text
from jaxmesh.frontends.mlir.types import Types
from jaxmesh.frontends.stablehlo.inline import operations
from jaxmesh.frontends.stablehlo.shardings import SHARDING, Sharding, listed, read
from jaxmesh.frontends.stablehlo.shardy import mesh_axes

_ir: Any = ir
_sdy: Any = sdy


@dataclass(frozen=True, slots=True)
class BoundaryShardings:
    """The shardings at the ends of a function; None where the text states none.

    Attributes:
      axes: the sizes of the mesh axes.
      arguments: per argument its global shape, and the mesh axes that split each dim.
      results: the same per result.
      dtypes: per argument its element type.
      shapes: per argument its global shape.
    """

    axes: dict[str, int]
    arguments: tuple[tuple[tuple[int, ...], Sharding] | None, ...]
    results: tuple[tuple[tuple[int, ...], Sharding] | None, ...]
    dtypes: tuple[np.dtype[Any], ...]
    shapes: tuple[tuple[int, ...], ...]


def read_boundary(text: str) -> BoundaryShardings:
    """Returns the shardings at the ends of the function `main` of a StableHLO text.

    A text with global shapes states them with its arguments, a partitioned one in its `sdy.manual_computation`s.
    """
    function = choose(load_text(text), None)
    root = function.operation.parent
    meshes = [mesh_axes(op) for op in operations(root.operation) if op.name == "sdy.mesh"]
    axes = next(filter(None, meshes), dict[str, int]())
    (block,) = function.operation.regions[0].blocks
    known = _stated(function.operation, block)
    returned: list[Any] = []
    for op in block.operations:
        operation = op.operation
        if operation.name == "sdy.manual_computation":
            known.update(zip(operation.operands, map(read, listed(operation, "in_shardings")), strict=True))
            known.update(zip(operation.results, map(read, listed(operation, "out_shardings")), strict=True))
        elif operation.name == "func.return":
            returned = list(operation.operands)
    ends = ([_end(v, known) for v in values] for values in (block.arguments, returned))
    types = Types(lambda _: None, narrows=True)
    arguments, results = map(tuple, ends)
    dtypes = tuple(np.dtype(types(v.type).dtype) for v in block.arguments)
    return BoundaryShardings(axes, arguments, results, dtypes, tuple(map(_shape, block.arguments)))


def _stated(function: Any, block: Any) -> dict[Any, Sharding]:
    rows = map(_ir.DictAttr, function.attributes.get("arg_attrs", ()))
    return {
        v: read(_sdy.TensorShardingAttr(row[SHARDING]))
        for v, row in zip(block.arguments, rows, strict=False)
        if SHARDING in row
    }


def _end(value: Any, known: dict[Any, Sharding]) -> tuple[tuple[int, ...], Sharding] | None:
    shape = _shape(value)
    # Shardings of scalars are empty, and so are short forms for replicated values.
    sharding = known.get(value)
    return None if sharding is None else (shape, sharding or ((),) * len(shape))


def _shape(value: Any) -> tuple[int, ...]:
    return tuple(_ir.RankedTensorType(value.type).shape)
