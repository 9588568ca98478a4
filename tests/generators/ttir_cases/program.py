"""Many cases as one flat program."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from jaxmesh.dialects.program import Op, Port, Program, Type
from tests.generators.mlir_programs import (
    program,
)
from tests.generators.ttir_cases.case import expected


def cases_program(chosen: Sequence[Any]) -> tuple[Program, list[np.ndarray]]:
    """One program of many ops, one of each case, on arguments of their own."""
    rng = np.random.default_rng(3)
    operands = [[s.make(rng) for s in c.operands] for c in chosen]
    made = program(*[Type(x.shape, x.dtype) for row in operands for x in row], mesh={"x": 2})
    made.results, at = [], 0
    for case, row in zip(chosen, operands, strict=True):
        kinds = [Type(y.shape, y.dtype) for y in expected(case, row)]
        outs = tuple(made.new(k) for k in kinds)
        made.ops.append(Op(f"ttir.{case.row}", tuple(range(at, at + len(row))), outs, case.attributes))
        made.results += [Port(v, False) for v in outs]
        at += len(row)
    return made, [x for row in operands for x in row]
