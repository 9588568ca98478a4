"""The bytes that operations take inside, beside those that ttnn 0.81.1 reported for each call on a described t3000."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from jaxmesh.analysis.account.inside import bytes_inside, row_bytes, tiled_bytes
from jaxmesh.dialects.program import Op, Program, Type

MIB = 2**20
F, S, U = (np.dtype(name) for name in ("float32", "int32", "uint32"))
B, H = np.dtype(ml_dtypes.bfloat16), np.dtype("uint16")
WIDE = (1024, 2048)


def axis(number: int = 1, **attributes: Any) -> dict[str, Any]:
    return {"cluster_axis": number, "reduce_type": "sum", **attributes}


def cut(begins: tuple[int, ...], ends: tuple[int, ...], *step: int) -> dict[str, Any]:
    return {"begins": begins, "ends": ends, "step": step or (1,) * len(begins)}


def over(*dims: int, keep: bool = True) -> dict[str, Any]:
    return {"dim_arg": dims, "keep_dim": keep}


MEASURED: list[tuple[str, dict[str, Any], list[Any], list[Any], float]] = [
    # Op; attributes; operands; results, as shape and element type; MiB above operands and results.
    ("cumsum", {"dim": 0}, [(WIDE, F)], [(WIDE, F)], 504),
    ("cumsum", {"dim": 1}, [(WIDE, S)], [(WIDE, S)], 504),
    ("cumsum", {"dim": 1}, [(WIDE, B)], [(WIDE, B)], 0),
    ("cumsum", {"dim": 0}, [((16, 512, 256), F)], [((16, 512, 256), F)], 8),
    ("cumsum", {"dim": 3}, [((4, 8, 256, 512), F)], [((4, 8, 256, 512), F)], 240),
    ("cumsum", {"dim": 1}, [((2, 3, 4, 64, 64), F)], [((2, 3, 4, 64, 64), F)], 0),
    ("cumsum", {"dim": 3}, [((2, 3, 4, 64, 64), F)], [((2, 3, 4, 64, 64), F)], 11.625),
    ("sort", {"dim": 1}, [(WIDE, F)], [(WIDE, F), (WIDE, U)], 0),
    ("sort", {"dim": 0}, [(WIDE, F)], [(WIDE, F), (WIDE, U)], 16),
    ("sort", {"dim": 0}, [((16, 512, 256), F)], [((16, 512, 256), F), ((16, 512, 256), U)], 96),
    ("sort", {"dim": 1}, [((4, 8, 256, 512), F)], [((4, 8, 256, 512), F), ((4, 8, 256, 512), U)], 416),
    ("topk", {"dim": 1, "k": 32}, [(WIDE, F)], [((1024, 32), F), ((1024, 32), U)], 0),
    ("topk", {"dim": 1, "k": 100}, [(WIDE, F)], [((1024, 100), F), ((1024, 100), U)], 0.516),
    ("topk", {"dim": 0, "k": 32}, [(WIDE, F)], [((32, 2048), F), ((32, 2048), U)], 8.297),
    ("gather", {"dim": 1}, [(WIDE, F), ((1024, 512), U)], [((1024, 512), F)], 0),
    ("gather", {"dim": 0}, [(WIDE, F), ((512, 2048), U)], [((512, 2048), F)], 16.078),
    ("gather", {"dim": 0}, [(WIDE, F), ((512, 1024), U)], [((512, 1024), F)], 12.047),
    ("gather", {"dim": 1}, [(WIDE, F), ((512, 1024), U)], [((512, 1024), F)], 4.031),
    ("gather", {"dim": 1}, [(WIDE, F), ((1000, 500), U)], [((1000, 500), F)], 0),
    ("gather", {"dim": 1}, [((1000, 2040), F), ((1000, 500), U)], [((1000, 500), F)], 8.016),
    ("gather", {"dim": 0}, [((1000, 2040), F), ((500, 2040), U)], [((500, 2040), F)], 16.078),
    ("gather", {"dim": 0}, [((16, 512, 256), F), ((5, 512, 256), U)], [((5, 512, 256), F)], 48.094),
    ("gather", {"dim": 0}, [(WIDE, B), ((512, 2048), U)], [((512, 2048), B)], 10.055),
    ("slice_static", cut((0, 0), (500, 1000)), [(WIDE, F)], [((500, 1000), F)], 0),
    ("slice_static", cut((5, 3), (500, 1000)), [(WIDE, F)], [((495, 997), F)], 9.985),
    ("slice_static", cut((0, 0), WIDE, 2, 2), [(WIDE, F)], [((512, 1024), F)], 10.078),
    ("slice_static", cut((125, 0), (250, 2040)), [((1000, 2040), F)], [((125, 2040), F)], 8.871),
    ("slice_static", cut((0,), (2_000_000,)), [((2097152,), F)], [((2_000_000,), F)], 187.553),
    ("concat", {"dim": 0}, [(WIDE, F), ((512, 2048), F)], [((1536, 2048), F)], 0),
    ("concat", {"dim": 0}, [(WIDE, F), ((33, 2048), F)], [((1057, 2048), F)], 16.688),
    ("concat", {"dim": 1}, [((1024, 1000), F)] * 2, [((1024, 2000), F)], 15.747),
    ("concat", {"dim": 1}, [((1024, 1000), B)] * 2, [((1024, 2000), B)], 0),
    ("concat", {"dim": 1}, [((1024, 1001), F)] * 2, [((1024, 2002), F)], 23.608),
    ("concat", {"dim": 1}, [((1024, 5), F), ((1024, 1787), F)], [((1024, 1792), F)], 0),
    ("concat", {"dim": 1}, [((1024, 999), S), ((1024, 8), S)], [((1024, 1007), S)], 11.890),
    ("concat", {"dim": 2}, [((3, 1024, 5), F), ((3, 1024, 2043), F)], [((3, 1024, 2048), F)], 72.047),
    ("repeat", {"repeat_dims": (1, 2048)}, [((1024, 1), F)], [(WIDE, F)], 8.062),
    ("repeat", {"repeat_dims": (1, 3, 1)}, [((1024, 1, 2048), F)], [((1024, 3, 2048), F)], 24),
    ("repeat", {"repeat_dims": (2, 2, 2)}, [((16, 64, 64), F)], [((32, 128, 128), F)], 1.031),
    ("repeat", {"repeat_dims": (2, 1, 1)}, [((16, 60, 64), F)], [((32, 60, 64), F)], 0),
    ("sum", over(0), [((8, 1024, 256), F)], [((1, 1024, 256), F)], 63),
    ("sum", over(0), [((8, 1024, 256), B)], [((1, 1024, 256), B)], 0),
    ("sum", over(0, 2), [((8, 1024, 256), F)], [((1, 1024, 1), F)], 7.922),
    ("sum", over(0, 1), [((4, 8, 256, 512), F)], [((1, 1, 256, 512), F)], 127.547),
    ("sum", over(0, 1), [((4, 8, 256, 512), B)], [((1, 1, 256, 512), B)], 2.016),
    ("sum", over(2, keep=False), [((8, 1024, 256), F)], [((8, 1024), F)], 1.031),
    ("max", over(0), [((8, 1024, 256), B)], [((1, 1024, 256), B)], 31.5),
    ("min", over(1), [((4, 8, 256, 512), S)], [((4, 1, 256, 512), S)], 126.047),
    ("prod", {"dim_arg": 0, "keep_dim": True}, [((1000, 2040), F)], [((1, 2040), F)], 250.312),
    ("prod", {"dim_arg": 3, "keep_dim": True}, [((4, 8, 256, 512), B)], [((4, 8, 256, 1), B)], 32.602),
    ("all_reduce", axis(), [((1, 1, *WIDE), F)], [((1, 1, *WIDE), F)], 9.047),
    ("all_reduce", axis(), [((1, 1, 1000, 2048), B)], [((1, 1, 1000, 2048), B)], 4.523),
    ("all_reduce", axis(), [((1, 1, 1000, 2040), F)], [((1, 1, 1000, 2040), F)], 620.109),
    ("all_reduce", axis(), [((1, 8, 500, 500), B)], [((1, 8, 500, 500), B)], 60.07),
    ("all_gather", axis(all_gather_dim=0), [(WIDE, F)], [((8192, 2048), F)], 0),
    ("all_gather", axis(all_gather_dim=0), [((1000, 2040), F)], [((8000, 2040), F)], 189.166),
    ("all_gather", axis(all_gather_dim=2), [((8, 500, 500), F)], [((8, 500, 4000), F)], 248.46),
    ("reduce_scatter", axis(scatter_dim=2), [((1, 1, *WIDE), F)], [((1, 1, 128, 2048), F)], 16.031),
    ("reduce_scatter", axis(scatter_dim=3), [((1, 1, 1024, 2040), B)], [((1, 1, 1024, 255), B)], 16.148),
    ("point_to_point", {}, [(WIDE, F), (WIDE, F)], [(WIDE, F)], 16.031),
    ("add", {}, [(WIDE, F), (WIDE, F)], [(WIDE, F)], 0),
]  # fmt: skip


def inside(name: str, attributes: Any, operands: Any, results: Any, tile: bool = True, host: bool = False) -> float:
    types = [Type(shape, dtype, tile=tile, host=host) for shape, dtype in (*operands, *results)]
    numbers = tuple(range(len(types)))
    op = Op(f"ttnn.{name}", numbers[: len(operands)], numbers[len(operands) :], attributes)
    return bytes_inside(Program("f", {"y": 1, "x": 8}, types), op) / MIB


@pytest.mark.parametrize(("name", "attributes", "operands", "results", "measured"), MEASURED, ids=str)
def test_bytes_as_ttnn_reported_them(
    name: str, attributes: dict[str, Any], operands: Any, results: Any, measured: float
) -> None:
    whole = sum(tiled_bytes(shape, dtype.itemsize) for shape, dtype in (*operands, *results)) / MIB
    found = inside(name, attributes, operands, results)
    assert found == pytest.approx(measured, abs=0.01 * (whole + measured))
    # Most rules take something of one kind of call and nothing of another.
    assert bool(found) == bool(measured)


ROWS = [
    ((1024, 2048), (512, 2048), 0, 24.047),
    ((1024, 2048), (1024, 512), 1, 0),
    ((16, 512, 256), (5, 512, 256), 0, 24.001),
    ((16, 512, 256), (16, 100, 256), 1, 19.288),
]


@pytest.mark.parametrize(("shape", "index", "dim", "measured"), ROWS)
def test_a_scatter_of_rows(shape: Any, index: Any, dim: int, measured: float) -> None:
    found = inside("scatter", {"dim": dim}, [(shape, F), (index, S), (index, F)], [(shape, F)], tile=False)
    assert found == pytest.approx(measured, rel=0.01)


def test_rows_fill_banks_in_turn() -> None:
    # A vector is one row, in one bank; of the others as much is taken.
    assert row_bytes((2097152,), 4) == 12 * 2097152 * 4
    assert row_bytes((1024, 1), 4) == pytest.approx(1024 * 32, rel=0.01)


def test_a_call_on_the_host_takes_nothing_on_the_devices() -> None:
    assert inside("concat", {"dim": 0}, [((5,), F)] * 2, [((10,), F)], host=True) == 0
