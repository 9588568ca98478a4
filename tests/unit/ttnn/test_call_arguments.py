"""The keys by which a function knows the arguments of an earlier call."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from jaxmesh import ttnn
from jaxmesh.ttnn.call_arguments import argument_key


def key(value: Any) -> Any:
    return argument_key([value], [0])


def test_equal_arguments_that_mean_other_things_have_other_keys() -> None:
    values: list[Any] = [
        *(1, True, 1.0, "1", 0, False, 0.0, -0.0, None, [1], (1,), ttnn.Shape([1]), [1, 1]),
        *(ttnn.float32, ttnn.int32, ttnn.TILE_LAYOUT, ttnn.ROW_MAJOR_LAYOUT),
        *(ttnn.DRAM_MEMORY_CONFIG, ttnn.L1_MEMORY_CONFIG),
    ]
    keys = [tuple(key(v)) for v in values]
    assert len(set(keys)) == len(values)
    assert [tuple(key(v)) for v in values] == keys


@pytest.mark.parametrize(
    "value",
    [[True], [1.0], [np.int64(1)], [[1, 2]], np.zeros(2), np.float32(1), object(), ttnn.MemoryConfig(shard_spec=1)],
    ids=lambda v: type(v).__name__,
)
def test_what_has_no_exact_key_is_looked_at_each_time(value: Any) -> None:
    assert key(value) is None
