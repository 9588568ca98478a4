"""Element types between torch and NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from jaxmesh import ttnn
from jaxmesh.tensor.torch_interop import _narrow
from jaxmesh.ttnn import convert


def test_types_that_numpy_does_not_know_go_through_bits() -> None:
    known = ("float32", "float16", "int64", "uint8", "complex64", "bool")
    assert not any(map(_narrow, known))
    assert all(map(_narrow, ("bfloat16", "float8_e5m2", "float8_e4m3fn", "float8_e8m0fnu")))


def test_a_tensor_from_torch_has_the_layout_and_the_memory_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(convert, "array_from_torch", lambda array: array)
    device: Any = ttnn.open_device(device_id=0)
    options: dict[str, Any] = {"layout": ttnn.TILE_LAYOUT, "memory_config": ttnn.L1_MEMORY_CONFIG}
    made = ttnn.from_torch(np.ones((2, 3), np.float32), device=device, **options)
    assert (made.layout, made.memory_config(), made.device()) == (*options.values(), device)
