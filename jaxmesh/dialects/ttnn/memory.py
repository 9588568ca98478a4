"""Operations of TTNN about the mesh device, transfers, layouts and memory.

Frontends and passes perform them by name. The emitters print several statements for `get_device`, `distribute_tensor`
and `aggregate_tensor`, and the calls below for the others.
"""

from __future__ import annotations

from collections.abc import Sequence

from jaxmesh.dialects.op import Arity, Attribute, Trait, attr, need
from jaxmesh.dialects.ttnn.op import (
    LAYOUT,
    MEMORY,
    NO_CALL,
    Param,
    Signature,
    TtnnOp,
    attribute,
    operand,
    positional,
    unset,
)

OPS: dict[str, TtnnOp] = {}
"""By name, without the dialect."""


def _define(
    name: str,
    *attributes: Attribute,
    python: Sequence[Param] = (),
    cpp: Sequence[Param] = (),
    operands: int = 1,
    results: int = 1,
    traits: Sequence[Trait] = (),
    handles: Arity = (0, 0),
) -> None:
    OPS[name] = TtnnOp(
        "ttnn",
        name,
        (operands, operands),
        attributes,
        None,
        (results, results),
        traits=frozenset({Trait.MEMORY, Trait.MOVES, *traits}),
        handles=handles,
        python=Signature(f"ttnn.{name}", tuple(python)) if python else NO_CALL,
        cpp=Signature(f"ttnn::{name}", positional(*(cpp or python))) if python else NO_CALL,
    )


_X = operand("tensor")
_TRANSFER = (Trait.COLLECTIVE, Trait.TRANSFERS)
_KEPT = (Trait.LAYOUT, Trait.RETURNS_OPERAND)

_define("get_device", attr("mesh_shape", "any", form="mesh_shape"), attr("mesh_offset", "any", form="mesh_offset"),
        operands=0, traits=[Trait.IMPURE])  # fmt: skip
_define("distribute_tensor", need("mapper_config", "any", "mapper_config"), attr("cq_id", "int", form="ui32"),
        traits=_TRANSFER, handles=(1, 1))  # fmt: skip
_define("aggregate_tensor", need("composer_config", "any", "composer_config"), traits=_TRANSFER, handles=(1, 1))
_define("to_device", traits=_KEPT, handles=(1, 1), python=[_X, Param("device", "mesh_device", keyword=True), MEMORY])
_define("from_device", traits=[Trait.LAYOUT], python=[_X])
_define(
    "to_layout",
    traits=_KEPT,
    python=[_X, *positional(LAYOUT), Param("dtype", "changed_dtype"), MEMORY],
    cpp=[_X, LAYOUT, unset("dtype"), MEMORY],
)
_define("to_memory_config", traits=[Trait.LAYOUT], python=[_X, *positional(MEMORY)])
_define("to_tensor_spec", traits=[Trait.LAYOUT])
_define("deallocate", attr("force", "bool", False), results=0, traits=[Trait.IMPURE], python=[_X, attribute("force")])
