"""For every row of TTNN occurrences of its op: operands for each device, attributes, declared results."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import ml_dtypes
import numpy as np

from jaxmesh.dialects.ttnn import OPS
from tests.generators.ttir_cases import basic as ttir_unary

F32, BF16, F16, I32, BOOL = (np.dtype(t) for t in (np.float32, ml_dtypes.bfloat16, np.float16, np.int32, np.bool_))
RNG = np.random.default_rng


@dataclass(frozen=True)
class Case:
    """One occurrence.

    Attributes:
      op: the row's name.
      operands: local arrays of all devices, stacked; None for one that is left out.
      attributes: as in a flat program.
      results: shapes and element types; without them, that of the first operand.
    """

    op: str
    operands: tuple[Any, ...] = ()
    attributes: dict[str, Any] = field(default_factory=dict)
    results: tuple[tuple[tuple[int, ...], Any], ...] = ()

    @property
    def types(self) -> tuple[tuple[tuple[int, ...], np.dtype], ...]:
        if self.results:
            return tuple((tuple(s), np.dtype(t)) for s, t in self.results)
        first = self.operands[0]
        return ((first.shape[1:], first.dtype),)


@dataclass(frozen=True)
class Maker:
    """Makes operands for a number of devices."""

    devices: int

    def real(self, *shape: int, dtype: Any = F32, low: float = -3, high: float = 3, seed: int = 0) -> np.ndarray:
        return RNG(seed + len(shape)).uniform(low, high, (self.devices, *shape)).astype(dtype)

    def whole(self, *shape: int, dtype: Any = I32, low: int = -9, high: int = 10, seed: int = 0) -> np.ndarray:
        return RNG(seed + len(shape)).integers(low, high, (self.devices, *shape)).astype(dtype)

    def odd(self, dtype: Any = F32) -> np.ndarray:
        """Zeros of both signs, infinities, NaN, and numbers at both ends."""
        info = ml_dtypes.finfo(dtype)
        row = [0.0, -0.0, np.inf, -np.inf, np.nan, 1.0, -1.0, 2.5, -2.5, 0.5, float(info.max), float(-info.max)]
        return np.stack([np.roll(np.array(row, dtype), i) for i in range(self.devices)])


# Whatever TTIR has a case of.
UNARY = {name: case for name, case in ttir_unary.UNARY.items() if name in OPS}
ON_INTEGERS = ("abs", "neg", "sign", "floor", "ceil", "trunc", "round", "relu", "relu6")


def elementwise(m: Maker) -> Iterator[Case]:
    for name, (_, low, high) in UNARY.items():
        for dtype in (F32, BF16):
            yield Case(name, (m.real(3, 5, dtype=dtype, low=low, high=high),))
        yield Case(name, (m.odd(),))
        if name in ON_INTEGERS:
            yield Case(name, (m.whole(3, 5),))
    x, y = m.real(3, 5, seed=1), m.real(3, 5, seed=2)
    for name in ("isfinite", "logical_not"):
        yield Case(name, (m.odd(),), results=(((12,), BOOL),))
    yield Case("bitwise_not", (m.whole(4),))
    yield Case("bitwise_not", (m.whole(4, low=0, high=2, dtype=BOOL),))
    yield Case("bitwise_not", (m.whole(4, low=0, high=99, dtype=np.uint8),))
    for name in ("exp", "tanh", "silu", "rsqrt"):
        yield Case(name, (m.real(9, dtype=F16, low=0.1),))
    yield Case("leaky_relu", (x,), {"parameter": 0.1})
    yield Case("elu", (x,), {"alpha": 0.7})
    for to in (BF16, I32, np.uint8, np.int8, BOOL, F16):
        yield Case("typecast", (m.real(3, 40, low=-300, high=300),), results=(((3, 40), to),))
        yield Case("typecast", (m.odd(),), results=(((12,), to),))
        yield Case("typecast", (m.whole(30, low=-(2**31), high=2**31 - 1),), results=(((30,), to),))
    yield Case("typecast", (m.whole(7, low=0, high=2, dtype=BOOL),), results=(((7,), F32),))
    for fp8 in (ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2, ml_dtypes.float8_e4m3fnuz):
        yield Case("typecast", (m.real(60, low=-50, high=50),), results=(((60,), fp8),))
        yield Case("typecast", (m.real(60).astype(fp8),), results=(((60,), F32),))
    yield Case("clamp_scalar", (x,), {"min": -1.0, "max": 0.5})
    yield Case("clamp_scalar", (m.whole(9),), {"min": -2.5, "max": 3.7})
    yield Case("clamp_scalar", (m.whole(9),), {"min": -(2**31), "max": 4})
    for name in ("add", "subtract", "multiply", "divide", "remainder", "maximum", "minimum"):
        yield Case(name, (x, y))
        yield Case(name, (m.odd(), m.odd()[:, ::-1].copy()))
        yield Case(name, (m.real(2, 1, 4, dtype=BF16), m.real(3, 1, dtype=BF16)), results=(((2, 3, 4), BF16),))
        yield Case(name, (m.whole(40), m.whole(40, low=1, seed=3)))
        yield Case(
            name, (m.whole(40, dtype=np.uint8, low=0, high=255), m.whole(40, dtype=np.uint8, low=1, high=255, seed=3))
        )
    for name in ("multiply", "add"):
        big = m.whole(6, low=-(2**31), high=2**31 - 1)
        yield Case(name, (big, big[:, ::-1].copy()))
    yield Case("divide", (m.whole(6), m.whole(6, low=-1, high=1)))
    yield Case("remainder", (m.whole(6), m.whole(6, low=-1, high=1)))
    yield Case("pow_tensor", (m.real(9, low=0.1), y[:, 0, :1]), results=(((9,), F32),))
    yield Case("pow_tensor", (m.whole(9), m.whole(9, low=0, high=7)))
    yield Case("atan2", (x, y))
    for name in ("eq", "ne", "ge", "gt", "le", "lt", "logical_and", "logical_or", "logical_xor"):
        yield Case(name, (m.whole(3, 7, low=-2, high=3), m.whole(7, low=-2, high=3)), results=(((3, 7), BOOL),))
        yield Case(name, (m.odd(), m.odd()[:, ::-1].copy()), results=(((12,), F32),))
    for name in ("bitwise_and", "bitwise_or", "bitwise_xor"):
        yield Case(name, (m.whole(40), m.whole(40, seed=5)))
        yield Case(name, (m.whole(9, low=0, high=2, dtype=BOOL), m.whole(9, low=0, high=2, dtype=BOOL, seed=5)))
    for name in ("logical_left_shift", "logical_right_shift"):
        yield Case(name, (m.whole(40), m.whole(40, low=-2, high=35)))
        yield Case(name, (m.whole(40, dtype=np.int8), m.whole(40, dtype=np.int8, low=0, high=9)))
        yield Case(name, (m.whole(40, dtype=np.uint32, low=0), m.whole(40, dtype=np.uint32, low=0, high=33)))
    for kind in ("none", "tanh"):
        yield Case("gelu_bw", (x, y), {"approximate": kind})
        yield Case("gelu_bw", (x.astype(BF16), y.astype(BF16)), {"approximate": kind})
    yield Case("where", (m.whole(3, 1, low=0, high=2, dtype=BOOL), x, y), results=(((3, 5), F32),))
    yield Case("where", (m.real(5), x, m.real(1, 1)), results=(((3, 5), F32),))
    yield Case("assign", (x,))


def creation(m: Maker) -> Iterator[Case]:
    for name in ("zeros", "ones", "empty"):
        yield Case(name, (), {"shape": (2, 3)}, (((2, 3), F32),))
        yield Case(name, (), {"shape": ()}, (((), I32),))
    for value, dtype in ((1.5, F32), (0.1, BF16), (-7, I32), (0.1, F16), (float("inf"), F32), (float("-inf"), F32),
                         (float("nan"), F32), (1, BOOL), (2**31 - 1, I32), (-(2**31), I32),
                         (2**32 - 1, np.uint32)):  # fmt: skip
        yield Case("full", (), {"shape": (2, 2), "fill_value": value}, (((2, 2), dtype),))
    for array in (
        RNG(0).normal(size=(3, 2)).astype(F32), RNG(0).normal(size=(5, 9)).astype(BF16),
        np.array([1.0, np.nan, -np.inf], F32),
        RNG(0).integers(-9, 9, (2, 50)).astype(I32), np.array([True, False]), np.array([3e-45, 3.4e38, 1e-7], F32),
        np.array([], F32), np.array(2.5, F32), np.array([[-(2**31), 2**31 - 1]], I32), np.array([1.1, -2], F16),
    ):  # fmt: skip
        yield Case("constant", (), {"value": array}, ((array.shape, array.dtype),))
    for start, end, step, dtype in ((0, 6, 1, I32), (5, -4, -2, F32), (3, 3, 1, I32), (-5, 9, 3, BF16)):
        attributes = {"start": start, "end": end, "step": step}
        yield Case("arange", (), attributes, (((len(range(start, end, step)),), dtype),))
    yield Case("rand", (), {"size": (3, 4), "low": -1.0, "high": 2.0, "seed": 7}, (((3, 4), F32),))
    yield Case("rand", (), {"size": (5,)}, (((5,), BF16),))


def shapes(m: Maker) -> Iterator[Case]:
    x, whole = m.real(2, 3, 4), m.whole(2, 3, 4)
    yield Case("reshape", (x,), {"shape": (4, 6)}, (((4, 6), F32),))
    yield Case("reshape", (m.real(1, 1, dtype=BF16),), {"shape": ()}, (((), BF16),))
    yield Case("permute", (x,), {"permutation": (2, 0, 1)}, (((4, 2, 3), F32),))
    yield Case("transpose", (whole,), {"dim0": -1, "dim1": 0}, (((4, 3, 2), I32),))
    yield Case("repeat", (x,), {"repeat_dims": (1, 2, 3)}, (((2, 6, 12), F32),))
    yield Case("repeat_interleave", (x,), {"repeats": 3, "dim": 1}, (((2, 9, 4), F32),))
    yield Case("concat", (x, m.real(2, 1, 4)), {"dim": -2}, (((2, 4, 4), F32),))
    yield Case("concat", (m.whole(3), m.whole(2), m.whole(1)), {"dim": 0}, (((6,), I32),))
    yield Case("slice_static", (x,), {"begins": (0, 1, 1), "ends": (2, 3, 4), "step": (1, 1, 2)}, (((2, 2, 2), F32),))
    yield Case("slice_static", (m.whole(7),), {"begins": (-1,), "ends": (0,), "step": (-2,)}, (((3,), I32),))
    yield Case("pad", (x,), {"padding": (1, 0, 0, 2, -1, 3), "value": 1.5}, (((3, 5, 6), F32),))
    yield Case("pad", (m.whole(3),), {"padding": (-4, 2), "value": 7}, (((1,), I32),))


def reductions(m: Maker) -> Iterator[Case]:
    for name in ("sum", "mean", "max", "min"):
        for dtype in (F32, BF16):
            x = m.real(3, 4, 5, dtype=dtype)
            yield Case(name, (x,), {"dim_arg": (0, -1), "keep_dim": True}, (((1, 4, 1), dtype),))
            yield Case(name, (x,), {"dim_arg": (1,), "keep_dim": False}, (((3, 5), dtype),))
            yield Case(name, (x,), {"keep_dim": False}, (((), dtype),))
        yield Case(name, (m.odd(),), {"dim_arg": (0,), "keep_dim": True}, (((1,), F32),))
    for name in ("sum", "max", "min"):
        yield Case(name, (m.whole(3, 4),), {"dim_arg": (0,), "keep_dim": False}, (((4,), I32),))
        yield Case(
            name, (m.whole(3, 4, low=0, high=2, dtype=BOOL),), {"dim_arg": (0,), "keep_dim": False}, (((4,), BOOL),)
        )
    yield Case("max", (np.full((m.devices, 3), -np.inf, F32),), {"keep_dim": False}, (((), F32),))
    for dim, shape in ((1, (3, 1)), (None, (1, 1))):
        attributes = {"keep_dim": True} if dim is None else {"dim_arg": dim, "keep_dim": True}
        yield Case("prod", (m.real(3, 4),), attributes, ((shape, F32),))
        attributes = {"keep_dim": True} if dim is None else {"dim": dim, "keep_dim": True}
        yield Case("argmax", (m.whole(3, 4, low=-2, high=2).astype(F32),), attributes, ((shape, I32),))
    yield Case("argmax", (m.odd(),), {"dim": 0}, (((), I32),))
    yield Case("cumsum", (m.real(3, 4, 2),), {"dim": 1})
    yield Case("cumsum", (m.whole(5),), {"dim": -1})
    for dtype in (F32, BF16):
        yield Case("softmax", (m.real(3, 4, 2, dtype=dtype),), {"dimension": 1, "numericStable": True})
    keys = m.whole(3, 9, 2, low=-3, high=4).astype(F32)
    keys[:, 0, 3] = np.nan
    for descending in (False, True):
        types = (((3, 9, 2), F32), ((3, 9, 2), I32))
        yield Case("sort", (keys,), {"dim": 1, "descending": descending, "stable": True}, types)
        types = (((3, 4, 2), F32), ((3, 4, 2), I32))
        yield Case("topk", (keys,), {"k": 4, "dim": 1, "largest": descending, "sorted": True}, types)
    types = (((9,), F32), ((9,), I32))
    yield Case("topk", (m.odd(),), {"k": 9, "dim": 0, "largest": True, "sorted": True}, types)


def products(m: Maker) -> Iterator[Case]:
    def out(*shape: int, dtype: Any = F32) -> tuple[Any, ...]:
        return ((shape, dtype),)

    for dtype in (F32, BF16, F16):
        yield Case("matmul", (m.real(3, 8, dtype=dtype), m.real(8, 5, dtype=dtype)), {}, out(3, 5, dtype=dtype))
    yield Case("matmul", (m.real(8, 3), m.real(5, 8)), {"transpose_a": True, "transpose_b": True}, out(3, 5))
    yield Case("matmul", (m.real(2, 1, 3, 4), m.real(5, 4, 2)), {}, out(2, 5, 3, 2))
    yield Case("matmul", (m.real(4), m.real(5, 4, 2)), {}, out(5, 2))
    yield Case("matmul", (m.real(4, seed=1), m.real(4)), {}, out())
    yield Case("matmul", (m.real(3, 0), m.real(0, 2)), {}, out(3, 2))
    yield Case("matmul", (m.real(3, 8, dtype=BF16), m.real(8, 2, dtype=BF16)), {}, out(3, 2))
    yield Case("matmul", (m.whole(3, 8), m.whole(8, 2)), {}, out(3, 2, dtype=I32))
    yield Case("matmul", (m.whole(3, 8, dtype=np.int8), m.whole(8, 2, dtype=np.int8)), {}, out(3, 2, dtype=I32))
    yield Case("linear", (m.real(3, 8), m.real(8, 2), m.real(2)), {}, out(3, 2))
    yield Case("linear", (m.real(3, 8), m.real(2, 8), None), {"transpose_b": True}, out(3, 2))


def indexing(m: Maker) -> Iterator[Case]:
    ids = m.whole(2, 3, low=-1, high=8, dtype=np.int32)
    for dtype in (F32, BF16):
        yield Case("embedding", (ids, m.real(6, 4, dtype=dtype)), {}, (((2, 3, 4), dtype),))
        gradient = m.real(2, 3, 4, dtype=dtype)
        yield Case("embedding_bw", (ids, m.real(6, 4, dtype=dtype), gradient), {}, (((6, 4), dtype),))
        row, gradient = m.whole(1, 32, low=0, high=6, dtype=np.int32), m.real(1, 1, 32, 4, dtype=dtype)
        yield Case("embedding_bw", (row, m.real(6, 4, dtype=dtype), gradient), {}, (((6, 4), dtype),))
    yield Case("embedding", (ids.astype(np.uint32), m.real(1, 6, 4)), {}, (((2, 3, 4), F32),))
    for dim in (0, 1):
        index = m.whole(3, 4, low=0, high=3, dtype=np.uint32)
        yield Case("gather", (m.real(3, 5), index), {"dim": dim}, (((3, 4), F32),))
        yield Case("gather", (m.whole(3, 5), index), {"dim": dim}, (((3, 4), I32),))
    index = m.whole(6, 5, low=0, high=3, dtype=np.uint32)
    yield Case("gather", (m.real(3, 5, dtype=BF16), index), {"dim": -2}, (((6, 5), BF16),))
    for kind in ("invalid", "sum", "prod", "max", "min"):
        attributes = {"dim": 1, "scatter_reduce_type": kind}
        # Each place at most once where a value is put: which of several wins is nobody's promise.
        index = np.stack([[RNG(i).permutation(7)[:4] - 2 for _ in range(2)] for i in range(m.devices)]).astype(I32)
        yield Case("scatter", (m.real(3, 5), index, m.real(2, 4, seed=3)), attributes)
        yield Case("scatter", (m.whole(3, 5), index, m.whole(2, 4, seed=3)), attributes)
    cache, position = m.real(3, 2, 6, 4, dtype=BF16), m.whole(1, low=-2, high=9)
    yield Case("fill_cache", (cache, m.real(1, 2, 5, 4, dtype=BF16)), {"batch_offset": 2})
    yield Case("update_cache", (cache, m.real(1, 2, 3, 4, dtype=BF16), position), {"batch_offset": 0})


def neural(m: Maker) -> Iterator[Case]:
    for dtype in (F32, BF16):
        x, scale, shift = m.real(3, 4, 8, dtype=dtype), m.real(8, dtype=dtype), m.real(8, dtype=dtype, seed=1)
        for name in ("layer_norm", "rms_norm"):
            yield Case(name, (x, scale, shift), {"epsilon": 1e-3})
            yield Case(name, (x, None, shift), {})
            yield Case(name, (x, scale, None), {})
            yield Case(name, (x, None, None), {"epsilon": 1e-6})
        rows = (m.real(1, 3, 1, 1, dtype=dtype, low=0.5, seed=i) for i in range(4))
        yield Case("batch_norm_inference", (m.real(2, 3, 4, 2, dtype=dtype), *rows), {"epsilon": 1e-3})
        query, key, value = (
            m.real(2, 4, 5, 8, dtype=dtype),
            m.real(2, 2, 6, 8, dtype=dtype),
            m.real(2, 2, 6, 8, dtype=dtype, seed=1),
        )
        yield Case("scaled_dot_product_attention", (query, key, value, None), {"is_causal": True})
        yield Case("scaled_dot_product_attention", (query, key, value, None), {"is_causal": False, "scale": 0.2})
        mask = m.real(1, 1, 5, 6)
        yield Case("scaled_dot_product_attention", (query, key, value, mask), {"is_causal": False})
        tables = (m.real(1, 1, 5, 8, dtype=dtype), m.real(1, 1, 5, 8, dtype=dtype, seed=2))
        yield Case("rotary_embedding", (query, *tables), {}, (((2, 4, 32, 8), dtype),))
    yield Case("concatenate_heads", (m.real(2, 4, 5, 3),), {}, (((2, 5, 12), F32),))
    for turned in (False, True):
        heads = {"num_heads": 4, "num_kv_heads": 2, "transpose_key": turned}
        types = tuple(((2, *s), F32) for s in ((4, 5, 3), (2, 3, 5) if turned else (2, 5, 3), (2, 5, 3)))
        yield Case("split_query_key_value_and_split_heads", (m.real(2, 5, 24), None), heads, types)
        yield Case("split_query_key_value_and_split_heads", (m.real(2, 5, 12), m.real(2, 5, 12, seed=1)), heads, types)


def images(m: Maker) -> Iterator[Case]:
    size = {"batch_size": 2, "input_height": 7, "input_width": 6}
    x = m.real(1, 1, 84, 4)
    for dtype, groups, bias in ((F32, 2, True), (F32, 1, False), (BF16, 1, True)):
        weight = m.real(6, 4 // groups, 3, 2, dtype=dtype)
        attributes = {**size, "in_channels": 4, "out_channels": 6, "kernel_size": (3, 2), "stride": (2, 1),
                      "groups": groups,
                      "padding": (1, 2, 0, 1), "dilation": (1, 2)}  # fmt: skip
        operands = (x.astype(dtype), weight, m.real(1, 1, 1, 6, dtype=dtype) if bias else None)
        yield Case("conv2d", operands, attributes, (((1, 1, 2 * 4 * 5, 6), dtype),))
        weight = m.real(4, 6 // groups, 3, 2, dtype=dtype)
        attributes = {**attributes, "padding": (1, 0), "output_padding": (1, 0)}
        rows, columns = 6 * 2 - 2 + 2 + 1 + 1, 5 + 2 + 1
        yield Case(
            "conv_transpose2d",
            (operands[0], weight, operands[2]),
            attributes,
            (((1, 1, 2 * rows * columns, 6), dtype),),
        )
    for ceil in (False, True):
        window = {**size, "channels": 4, "kernel_size": (3, 2), "stride": (2, 2), "padding": (1, 0), "ceil_mode": ceil}
        out = ((1, 1, 2 * 4 * 3, 4), F32)
        yield Case("max_pool2d", (x,), {**window, "dilation": (1, 1)}, (out,))
        for counted in (False, True):
            yield Case("avg_pool2d", (x,), {**window, "count_include_pad": counted}, (out,))
    window = {**size, "channels": 4, "kernel_size": (2, 2), "stride": (2, 4), "padding": (0, 0), "ceil_mode": True}
    for name in ("max_pool2d", "avg_pool2d"):
        extra = {"dilation": (1, 1)} if name == "max_pool2d" else {"count_include_pad": True}
        yield Case(name, (x,), {**window, **extra}, (((1, 1, 2 * 4 * 2, 4), F32),))
    yield Case("max_pool2d", (m.whole(1, 1, 84, 4),), {**window, "dilation": (1, 1)}, (((1, 1, 16, 4), I32),))
    yield Case("global_avg_pool2d", (m.real(2, 3, 4, 5),), {}, (((2, 1, 1, 5), F32),))
    yield Case("upsample", (m.real(2, 3, 4, 5),), {"scale_factor": (2, 3), "mode": "nearest"}, (((2, 6, 12, 5), F32),))


def collectives(m: Maker, mesh: Sequence[int]) -> Iterator[Case]:
    """On whole numbers: their sums are the same in any order."""
    for axis, n in enumerate(mesh):
        for dtype in (F32, BF16, I32, BOOL):
            x = m.whole(2, 4, low=0 if dtype == BOOL else -4, high=2 if dtype == BOOL else 5).astype(dtype)
            yield Case("all_gather", (x,), {"all_gather_dim": -1, "cluster_axis": axis}, (((2, 4 * n), dtype),))
            for name in ("all_reduce", "all_reduce_async"):
                yield Case(name, (x,), {"reduce_type": "sum", "cluster_axis": axis})
            attributes = {"reduce_type": "sum", "scatter_dim": 1, "cluster_axis": axis}
            yield Case("reduce_scatter", (x,), attributes, (((2, 4 // n), dtype),))
            yield Case("mesh_partition", (x,), {"dim": -1, "cluster_axis": axis}, (((2, 4 // n), dtype),))
        chosen, held = (
            m.whole(*s, dtype=np.uint16, low=0, high=h) for s, h in (((2, 1, 4, 2), 8), ((1, 1, 8, m.devices), 2))
        )
        group, moved = {"cluster_axis": axis, "num_devices": n}, (1, 2 * n, 4)
        results = ((*moved, 3), BF16), ((*moved, 2), np.uint16)
        yield Case("all_to_all_dispatch", (m.real(2, 1, 4, 3, dtype=BF16), chosen, held), group, results)
        numbers = m.whole(*moved, 2, dtype=np.uint16, low=0, high=9)
        for dim in (1, 2):
            local = (2, 2, 4, 3) if dim == 1 else (2, 2 * n, 4 // n, 3)
            given = {**group, "num_experts_per_tok": 2, "output_shard_dim": dim}
            rows = m.real(8 // m.devices, *moved[1:], 3, dtype=BF16)
            yield Case("all_to_all_combine", (rows, numbers, held), given, ((local, BF16),))
    yield Case("mesh_partition", (m.real(2 * m.devices),), {"dim": 0}, (((2,), F32),))
    first, last = (0,) * len(mesh), tuple(n - 1 for n in mesh)
    for x, out in ((m.real(3), None), (m.whole(3), m.whole(3, seed=9))):
        coordinates = {"sender_coord": first, "receiver_coord": last}
        yield Case("point_to_point", (x, out), coordinates)
        yield Case("point_to_point", (x, out), {"sender_coord": last, "receiver_coord": first})


def cases(mesh: Sequence[int]) -> list[Case]:
    """All of them, for the devices of a mesh."""
    m = Maker(int(np.prod(mesh)))
    groups = (elementwise, creation, shapes, reductions, products, indexing, neural, images)
    return [case for group in groups for case in group(m)] + list(collectives(m, mesh))
