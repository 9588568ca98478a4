"""The languages of printed programs, the operands of their calls, and their large constants, which files store."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from jaxmesh.dialects.imported_op import group_operands
from jaxmesh.dialects.op import Trait
from jaxmesh.dialects.program import Op, Program, Value
from jaxmesh.dialects.ttnn.forms import REMEDY, Forms
from jaxmesh.dialects.ttnn.op import TtnnOp
from jaxmesh.errors import MissingRuleError, UnsupportedError
from jaxmesh.jaxprs.untyped import Array
from jaxmesh.jaxprs.walk import Contents

TRACED = ("ttir",)
"""The languages of a traced program, the default first."""

EXPORTED = ("python", "cpp")
"""The languages of exported programs that can run."""

MADE = ("zeros", "random")
"""The ways to create the inputs of an exported program instead of loading them; the default first."""

LOWERED = ("ttnn", *EXPORTED)
"""The languages of a lowered program, the default first."""


def without_call(op: Op, definition: TtnnOp | None, language: str) -> UnsupportedError | MissingRuleError:
    """Returns the error for an op without a call in a language, with what can be done about it."""
    traits = frozenset[Trait]() if definition is None else definition.traits
    what = f"{op.name} ({op.line or 'no line known'}) does not have a call in {language}"
    if Trait.LAYOUT in traits:
        return UnsupportedError(
            f"{what}; write the to_device, to_layout, typecast or to_memory_config that it represents."
        )
    if definition is None or Trait.TEXTUAL not in traits:
        return MissingRuleError(f"{what}; define it in a file jaxmesh/dialects/ttnn/*.py.")
    remedy = definition.accepts.remedy if isinstance(definition.accepts, Forms) else REMEDY
    other = "It is printed as MLIR alone; take that text, or write what it does with other operations"
    return MissingRuleError(f"{what}. {other if remedy == REMEDY else remedy}.")


def device_of(program: Program, op: Op) -> Value | None:
    """Returns the device handle that is the last operand of an op; None for an op without one."""
    last = op.operands[-1] if op.operands else None
    return last if last is not None and program.types[last].kind == "device" else None


def tensors_of(program: Program, op: Op) -> list[Value | None]:
    """Returns the operands of an op, by operand group, without the device handle."""
    operands = list(op.operands if device_of(program, op) is None else op.operands[:-1])
    present = [v for v in operands if v is not None]
    sizes = op.attributes.get("operandSegmentSizes")
    return operands if len(present) < len(operands) else group_operands(sizes, present)


CONSTANT_LIMIT = 1024
"""The default limit of a constant that the text spells, in elements."""
_CONSTANTS = frozenset({"ttir.constant", "ttnn.constant"})


class StoredConstants:
    """The constants of a program with more elements than a limit, in order; equal constants share a name.

    Attributes:
      arrays: the arrays by name: `constant0`, `constant1`, ...
    """

    def __init__(self, program: Program, limit: int = CONSTANT_LIMIT) -> None:
        contents = Contents()
        names: dict[int, str] = {}
        self._names: dict[int, str] = {}
        arrays: dict[str, Array] = {}
        for op in program.ops:
            if op.name not in _CONSTANTS or (array := np.asarray(op.attributes.get("value", 0))).size <= limit:
                continue
            first = contents.first(array)
            name = names.setdefault(id(first), f"constant{len(names)}")
            arrays[name] = first
            self._names[op.results[0]] = name
        self.arrays: Mapping[str, Array] = arrays

    def name(self, op: Op) -> str | None:
        """Returns the name of the stored constant that an op creates; None for any other op."""
        return self._names.get(op.results[0]) if op.results else None

    def file(self, op: Op) -> str | None:
        """Returns the file, in an exported folder, of the stored constant that an op creates; None for any other op."""
        name = self.name(op)
        return None if name is None else f"tensors/{name}.npy"
