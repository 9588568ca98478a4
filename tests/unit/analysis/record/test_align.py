"""Two recordings are aligned by source location and op."""

from __future__ import annotations

import numpy as np

from jaxmesh.analysis.record import Entry, Place
from jaxmesh.analysis.record.align import align
from jaxmesh.jaxprs.source_locations import SourceLocation


def test_order_and_values_of_one_alone() -> None:
    def entry(line: int, op: str, value: float = 0.0) -> Entry:
        return Entry(Place(SourceLocation("f.py", line, 1, "f"), op, 0), (), 0, None, np.float32(value))

    a = [entry(1, "add"), entry(2, "mul"), entry(4, "sin"), entry(5, "tanh")]
    b = [entry(1, "add"), entry(3, "cos"), entry(4, "sin"), entry(5, "exp"), entry(6, "neg")]
    names = [tuple(None if e is None else e.place.op for e in row) for row in align(a, b)]
    assert names == [("add", "add"), ("mul", None), (None, "cos"), ("sin", "sin"), ("tanh", "exp"), (None, "neg")]
