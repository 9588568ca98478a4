"""Calls of the emulated `ttnn` with the verdict that the real library gave: what hangs on several tensors or sizes.

`tests/system/test_real_ttnn_calls.py` draws such calls at random and asks the library itself.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from jaxmesh import ttnn
from jaxmesh.errors import VerifyError
from jaxmesh.ttnn import helpers
from tests.generators.quick_compilation import quick_compilation
from tests.generators.real_ttnn.calls import Meshes, outcome_of


def t(dtype: str, *shape: int, rows: bool = False) -> Any:
    return {"tensor": [list(shape), dtype, "ROW_MAJOR" if rows else "TILE", "device"]}


def to(*place: int) -> Any:
    return {"call": ["ttnn.MeshCoordinate", list(place)]}


B, B8, F, I8, I32 = "bfloat16", "bfloat8_b", "float32", "int8", "int32"

TAKEN: list[tuple[str, list[Any], dict[str, Any]]] = [
    ("layer_norm", [t(F, 2, 32, rows=True)], {"weight": t(F, 1, 32, rows=True)}),
    ("rms_norm", [t("uint16", 0)], {}),
    ("reduce_scatter", [t(I8, 1, 1, 32, 256)], {"dim": 3, "cluster_axis": 1}),
    ("all_reduce", [t("uint16", 2, 3, 5)], {"cluster_axis": 0}),
    ("divide", [t(I32, 3, 5), t(I32, 3, 5)], {"dtype": {"name": "ttnn.int32"}, "rounding_mode": "trunc"}),
    ("point_to_point", [t(B, 3), to(0, 1), to(0, 2)], {}),
]
REFUSED: list[tuple[str, list[Any], dict[str, Any]]] = [
    ("layer_norm", [t(F, 2, 5, rows=True)], {}),
    ("layer_norm", [t(B, 2, 64)], {"weight": t(B, 64, rows=True)}),
    ("layer_norm", [t(B8, 64)], {"weight": t(I32, 1, 64, rows=True)}),
    ("softmax", [t(I32, 2, 2), 0], {}),
    ("batch_norm", [t(B, 2, 3, 8, 8)], {"running_mean": t(B, 1, 3, 1, 1), "running_var": t(F, 1, 3, 1, 1)}),
    ("reduce_scatter", [t(I8, 1, 1, 32, 128)], {"dim": 2, "cluster_axis": 0}),
    ("all_reduce", [t("uint16", 3, 5)], {"cluster_axis": 0}),
    ("point_to_point", [t(B8, 3), to(0, 1), to(0, 2)], {}),
    ("fill_cache", [t(B8, 2, 2, 64, 32), t(B, 1, 2, 32, 32), 0], {}),
    ("gelu_bw", [t(F, 64, 64, rows=True), t(F, 64, 64)], {}),
    ("transpose", [t(F, 8), -1, -1], {}),
    ("repeat", [t(F), []], {}),
    ("repeat_interleave", [t("uint16", 33), 3, 0], {}),
]


def outcome(callee: str, args: list[Any], kwargs: dict[str, Any]) -> dict[str, Any]:
    with quick_compilation():
        return outcome_of(ttnn, Meshes(ttnn), {"callee": f"ttnn.{callee}", "args": args, "kwargs": kwargs})


@pytest.mark.parametrize(("callee", "args", "kwargs"), TAKEN)
def test_a_call_is_taken(callee: str, args: list[Any], kwargs: dict[str, Any]) -> None:
    found = outcome(callee, args, kwargs)
    assert found["stage"] is None, found


@pytest.mark.parametrize(("callee", "args", "kwargs"), REFUSED)
def test_a_call_is_refused(callee: str, args: list[Any], kwargs: dict[str, Any]) -> None:
    found = outcome(callee, args, kwargs)
    assert found.get("error", "").startswith("VerifyError"), found


def test_a_refusal_names_a_remedy_that_works() -> None:
    device = ttnn.open_mesh_device((1, 2))
    integers = helpers.from_numpy(np.arange(64, dtype=np.int32).reshape(1, 64), layout=ttnn.TILE_LAYOUT)
    with pytest.raises(VerifyError, match=r"takes tensors on the devices; use ttnn.to_device; got INT32"):
        ttnn.exp(integers)
    integers = ttnn.to_device(integers, device)
    with pytest.raises(VerifyError, match=r"takes .*FLOAT32.* as its operand; use ttnn.typecast; got INT32"):
        ttnn.exp(integers)
    assert ttnn.exp(ttnn.typecast(integers, ttnn.float32)).dtype == ttnn.float32


def test_a_gradient_has_the_type_of_the_operand() -> None:
    found = outcome("gelu_bw", [t(B, 3, 32), t(B8, 3, 32)], {})
    assert found["results"] == [[[3, 32], "BFLOAT8_B", "TILE", "DEVICE"]]
