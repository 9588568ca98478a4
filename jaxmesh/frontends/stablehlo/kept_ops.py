"""Ops of TTIR that the import keeps: each is one equation, printed as the op and computed as StableHLO defines."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax

from jaxmesh.dialects.imported_op import imported_op, imported_op_p
from jaxmesh.frontends.jax.retype import join_axes, spread
from jaxmesh.frontends.stablehlo.call import as_list


def keep_op(
    keeps_ops: bool, name: str, operands: Sequence[Any], attributes: Mapping[str, Any], meaning: Callable[..., Any]
) -> list[Any]:
    """Performs the meaning of an op of TTIR on arrays; as one equation if ops are kept."""
    axes = join_axes(operands)
    arrays = [spread(x, axes) for x in operands]

    def results(*values: Any) -> list[Any]:
        return as_list(meaning(*values))

    kept = imported_op("ttir", name, attributes, operands) if keeps_ops else None
    if kept is None:
        return results(*arrays)
    return imported_op_p.bind(*arrays, jaxpr=jax.make_jaxpr(results)(*arrays), op=kept)
