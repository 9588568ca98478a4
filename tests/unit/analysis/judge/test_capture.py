"""What is read of a graph capture of ttnn: operations, buffers, and the buffers of kernels."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from jaxmesh.analysis.judge.runner.capture import Buffer, Capture, OwnResult, read_capture, read_own_result


def node(kind: str, **params: Any) -> dict[str, Any]:
    return {"node_type": kind, "params": params}


def buffer(kind: str, address: int, size: int, memory: str = "DRAM") -> dict[str, Any]:
    return node(f"buffer_{kind}", type=memory, address=address, max_size_per_bank=size)


def test_a_capture_has_operations_buffers_and_the_fullest_core() -> None:
    nodes = [
        node("function_start", name="ttnn::AddDeviceOperation"),
        buffer("allocate", 64, 32),
        node("circular_buffer_allocate", size="100", core_range_set="{[0-0 - 1-0]}"),
        node("circular_buffer_allocate", size="50", core_range_set="{[1-0 - 1-1]}"),
        node("circular_buffer_deallocate_all"),
        # Each device of a mesh executes the one operation.
        node("program_execution"),
        node("program_execution"),
        node("function_end"),
        buffer("deallocate", 64, 32),
        node("function_start", name="MatmulDeviceOperation"),
        node("dataflow_buffer_allocate", size="120", core_range_set="{[0-0 - 0-0]}"),
        node("program_execution"),
        node("function_end"),
    ]
    buffers = [(1, "DRAM", 64, 32), (-1, "DRAM", 64, 32)]
    assert read_capture(nodes) == Capture(Counter(["Add", "Matmul"]), buffers, 150)


ALLOCATED, INSIDE, FREED = (1, "DRAM", 7, 32), (1, "DRAM", 8, 64), (-1, "DRAM", 8, 64)


@pytest.mark.parametrize(
    ("buffers", "call"),
    [
        ([INSIDE, ALLOCATED, FREED], OwnResult(Counter(), peak=96, size=32, kernel=5)),
        # A view, a result beside another one, one that stays in another memory, an argument that is freed.
        ([], None),
        ([INSIDE, ALLOCATED], None),
        ([ALLOCATED, (1, "L1", 9, 16), (-1, "L1", 9, 16)], None),
        ([ALLOCATED, FREED], None),
        ([INSIDE], None),
    ],
)
def test_a_call_that_allocates_its_result_alone(buffers: list[Buffer], call: OwnResult | None) -> None:
    assert read_own_result(Capture(Counter(), buffers, 5), 7) == call
