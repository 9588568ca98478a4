"""Calls of every function of the emulated `ttnn` that stands for an op: operands, attributes, arguments."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from jaxmesh import ttnn
from jaxmesh.dialects import (
    ttnn as ttnn_dialect,
    ttnn as ttnn_ops,  # noqa: F401
)
from jaxmesh.dialects.ttnn.op import Param, TtnnOp, spell

MC = ttnn.MemoryConfig(ttnn.TensorMemoryLayout.INTERLEAVED, ttnn.BufferType.DRAM, None)
F32, BF16, I32, U16, BOOL = map(np.dtype, ("float32", jnp.bfloat16, "int32", "uint16", "bool"))


def on_devices(device: ttnn.MeshDevice, shards: Sequence[Any]) -> Any:
    """A tensor on the devices with a shard of its own on each."""
    return ttnn.to_device(ttnn.from_host_shards(shards, device.shape), device)


def randoms(rng: np.random.Generator, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    kind = np.dtype(dtype)
    if kind == BOOL:
        return rng.integers(0, 2, shape).astype(bool)
    if kind.kind in "iu":
        return rng.integers(0, 5, shape).astype(kind)
    return rng.uniform(0.2, 0.9, shape).astype(kind)


def random_tensor(device: ttnn.MeshDevice, shape: tuple[int, ...], dtype: Any = F32, seed: int = 0) -> Any:
    rng = np.random.default_rng([seed, *shape])
    return on_devices(device, [randoms(rng, shape, dtype) for _ in range(device.get_num_devices())])


# --- every op of the table -------------------------------------------------------------------------------------------

X, Y, W = (4, 6), (4, 6), (6, 3)
IMAGE = (1, 1, 2 * 4 * 4, 2)
PIXELS = {"batch_size": 2, "input_height": 4, "input_width": 4}
WINDOW = {"kernel_size": (2, 2), "stride": (2, 2), "padding": (0, 0)}
CONV = {"in_channels": 2, "out_channels": 3, "dilation": (1, 1), "groups": 1, **PIXELS, **WINDOW}
HEADS = (2, 2, 4, 8)
WHOLE = ("bitwise_not", "bitwise_and", "bitwise_or", "bitwise_xor", "logical_left_shift", "logical_right_shift")

CASES: dict[str, list[tuple[list[Any], dict[str, Any]]]] = {
    "all_gather": [([X], {"all_gather_dim": 1, "cluster_axis": 1}), ([X], {"all_gather_dim": 0, "cluster_axis": 0})],
    "all_to_all_combine": [
        (
            [((1, 8, 4, 8), BF16), ((1, 8, 4, 2), U16), ((1, 1, 8, 8), U16)],
            {"cluster_axis": 1, "num_devices": 4, "num_experts_per_tok": 2, "output_shard_dim": 1},
        )
    ],
    "all_to_all_dispatch": [
        ([((2, 1, 4, 8), BF16), ((2, 1, 4, 2), U16), ((1, 1, 8, 8), U16)], {"cluster_axis": 0, "num_devices": 2})
    ],
    "all_reduce": [([X], {"cluster_axis": c, "reduce_type": "sum"}) for c in (0, 1)],
    "all_reduce_async": [([X], {"cluster_axis": c, "reduce_type": "sum"}) for c in (0, 1)],
    "arange": [([], {"start": 3, "end": 17, "step": 4})],
    "argmax": [([X], {"dim": 1, "keep_dim": True}), ([X], {})],
    "avg_pool2d": [
        ([(IMAGE, BF16)], {"channels": 2, "ceil_mode": False, "count_include_pad": True, **PIXELS, **WINDOW})
    ],
    "batch_norm_inference": [([(2, 3, 4, 4), *[(1, 3, 1, 1)] * 4], {"epsilon": 1e-3})],
    "clamp_scalar": [([X], {"min": 0.3, "max": 0.6}), ([(X, I32)], {"min": 1, "max": 3})],
    "concat": [([X, (2, 6), (3, 6)], {"dim": 0}), ([X], {"dim": 1})],
    "concatenate_heads": [([HEADS], {})],
    "conv2d": [([IMAGE, (3, 2, 2, 2)], CONV), ([IMAGE, (3, 2, 2, 2), (1, 1, 1, 3)], CONV)],
    "conv_transpose2d": [([IMAGE, (2, 3, 2, 2)], {**CONV, "output_padding": (0, 0)})],
    "cumsum": [([X], {"dim": 1}), ([(X, I32)], {"dim": 0})],
    "elu": [([X], {"alpha": 0.5})],
    "embedding": [([((3, 5), I32), (5, 4)], {})],
    "embedding_bw": [([((3, 5), I32), (5, 4), (3, 5, 4)], {})],
    "empty": [([], {"shape": (2, 3)})],
    "fill_cache": [([(2, 2, 4, 8), (1, 2, 3, 8)], {"batch_offset": 1})],
    "full": [([], {"shape": (2, 3), "fill_value": 2.5}), ([], {"shape": (), "fill_value": 7})],
    "gather": [([X, ((4, 2), I32)], {"dim": 1})],
    "gelu_bw": [([X, Y], {"approximate": "none"})],
    "global_avg_pool2d": [([(2, 4, 4, 3)], {})],
    "layer_norm": [([X], {"epsilon": 1e-3}), ([X, (6,), (6,)], {"epsilon": 1e-3}), ([X, None, (6,)], {"epsilon": 0.1})],
    "leaky_relu": [([X], {"parameter": 0.2})],
    "linear": [([X, W, (3,)], {}), ([X, (3, 6)], {"transpose_b": True})],
    "matmul": [([X, W], {}), ([(6, 4), (3, 6)], {"transpose_a": True, "transpose_b": True})],
    "max_pool2d": [([(IMAGE, BF16)], {"channels": 2, "dilation": (1, 1), "ceil_mode": False, **PIXELS, **WINDOW})],
    "mesh_partition": [([X], {"dim": 0, "cluster_axis": 0})],
    "ones": [([], {"shape": (2, 3)})],
    "pad": [([X], {"padding": (1, 0, 2, 3), "value": -1.5})],
    "permute": [([(2, 3, 4)], {"permutation": (2, 0, 1)}), ([(2, 3, 4)], {"permutation": (2, -3, -2)})],
    "point_to_point": [
        ([X], {"sender_coord": (0, 1), "receiver_coord": (1, 2)}),
        ([X, Y], {"sender_coord": (0, 0), "receiver_coord": (0, 3)}),
    ],
    "prod": [([X], {"dim_arg": 1, "keep_dim": True})],
    "rand": [([], {"size": (2, 3), "low": 1.0, "high": 2.0, "seed": 3})],
    "reduce_scatter": [([(4, 8)], {"scatter_dim": 1, "cluster_axis": 1, "reduce_type": "sum"})],
    "repeat": [([X], {"repeat_dims": (2, 3)})],
    "repeat_interleave": [([X], {"repeats": 2, "dim": 1})],
    "reshape": [([X], {"shape": (2, 12)})],
    "rms_norm": [([X], {"epsilon": 1e-3}), ([X, (6,)], {"epsilon": 1e-3})],
    "rotary_embedding": [([(2, 2, 32, 8), (1, 1, 32, 8), (1, 1, 32, 8)], {})],
    "scaled_dot_product_attention": [
        ([HEADS, HEADS, HEADS], {"is_causal": True}),
        ([HEADS, HEADS, HEADS, (2, 1, 4, 4)], {"is_causal": False, "scale": 0.5}),
    ],
    "scatter": [
        ([X, ((4, 2), I32), (4, 2)], {"dim": 1}),
        ([X, ((4, 2), I32), (4, 2)], {"dim": 1, "scatter_reduce_type": "sum"}),
    ],
    "slice_static": [([X], {"begins": (1, 0), "ends": (4, 6), "step": (2, 1)})],
    "softmax": [([X], {"dimension": 1, "numericStable": True})],
    "sort": [([X], {"dim": 1, "descending": True, "stable": False})],
    "split_query_key_value_and_split_heads": [([(2, 4, 24)], {"num_heads": 2, "transpose_key": True})],
    "topk": [([X], {"k": 2, "dim": 1, "largest": True, "sorted": True})],
    "transpose": [([X], {"dim0": 0, "dim1": 1})],
    "typecast": [([X], {"dtype": BF16}), ([X], {"dtype": I32}), ([(X, I32)], {"dtype": BOOL})],
    # The real function takes the position as a number, the op as a tensor.
    "update_cache": [],
    "upsample": [([(1, 3, 3, 2)], {"scale_factor": (2, 2), "mode": "nearest"})],
    "where": [([(X, BOOL), Y, Y], {}), ([X, (Y, I32), (Y, I32)], {})],
    "zeros": [([], {"shape": (2, 3)})],
    **{name: [([X], {"dim_arg": (1,), "keep_dim": True}), ([X], {"keep_dim": False})] for name in ("sum", "mean")},
    **{name: [([(X, I32)], {"dim_arg": (0, 1), "keep_dim": False})] for name in ("max", "min")},
}
"""Operand shapes (with element types other than float32) and attributes; what is not here is elementwise."""


def cases_of(name: str) -> list[tuple[list[Any], dict[str, Any]]]:
    if name in CASES:
        return CASES[name]
    most = ttnn_dialect.OPS[name].operands[1] or 1
    first = (X, I32) if name in WHOLE else X
    second = (6,) if name not in WHOLE else ((6,), I32)
    return [([first] if most == 1 else [first, second], {})]


def said_for(entry: TtnnOp, param: Param, attributes: dict[str, Any]) -> Any:
    """An attribute as a caller of the real API writes it."""
    value = attributes.get(str(param.key), entry.by_name[str(param.key)].default)
    form, _, enum = param.form.partition(":")
    if value is None:
        return None
    if form == "enum":
        return getattr(getattr(ttnn, enum.rpartition(".")[2]), spell(enum, value))
    if form == "string":
        return spell(enum, value)
    if form == "shape":
        return ttnn.Shape(value)
    if form == "coordinate":
        return ttnn.MeshCoordinate(value)
    if form == "pairs":
        return [list(value[i : i + 2]) for i in range(0, len(value), 2)]
    return list(value) if isinstance(value, tuple) else value


def arguments(
    entry: TtnnOp, tensors: Sequence[Any], attributes: dict[str, Any], dtype: Any, device: Any
) -> tuple[list[Any], dict[str, Any]]:
    """A call as the Python emitter prints it: what is printed by place and what by name."""
    sources: dict[str, Any] = {
        "memory_config": MC,
        "dtype": ttnn.DataType[dtype.name.upper()],
        "layout": ttnn.Layout.TILE,
        "shape": ttnn.Shape(attributes.get("shape", ())),
        "device": device,
        "compute_config": ttnn.WormholeComputeKernelConfig(ttnn.MathFidelity.HiFi4, fp32_dest_acc_en=True),
        "operand_device": device,
        "operands": list(tensors),
        "none": None,
    }
    args: list[Any] = []
    named: dict[str, Any] = {}
    for param in entry.python.params:
        if param.source == "operand":
            value = tensors[int(param.key)] if int(param.key) < len(tensors) else None
        elif param.source == "attribute":
            value = said_for(entry, param, attributes)
        else:
            if param.source in ("text", "none"):
                continue
            value = sources[param.source]
        if param.keyword:
            named[param.name] = value
        else:
            args.append(value)
    return args, named


def function_of(entry: TtnnOp) -> Any:
    found: Any = ttnn
    for part in entry.python.callee.split(".")[1:]:
        found = getattr(found, part)
    return found
