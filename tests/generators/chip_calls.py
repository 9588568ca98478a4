"""Calls of ttnn that no program of one function prints, but programs of several, models and texts do: each is tried
alone on the simulated chip. `python -m tests.generators.chip_printed` finds them."""

from __future__ import annotations

import re
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec as P

import jaxmesh as jm
from jaxmesh import ttnn
from jaxmesh.analysis.chip import program

ALONE = "alone"
"""In place of the class of shapes of a cell: it is a call, and not a program."""
_CONFIG = (
    "ttnn.WormholeComputeKernelConfig(math_fidelity=ttnn.MathFidelity.HiFi4, "
    "math_approx_mode=False, fp32_dest_acc_en=True)"
)
_CONV = (
    "ttnn.conv2d(input_tensor=x, weight_tensor=w, device=device, in_channels=8, out_channels=8, batch_size=1, "
    "input_height=8, input_width=8, kernel_size=[3, 3], stride=[1, 1], padding=[1, 1], dilation=[1, 1], groups=1, "
    f"bias_tensor=None, dtype=ttnn.DataType.{{}}, conv_config=None, compute_config={_CONFIG})"
)
_MADE = "layout=ttnn.Layout.TILE, device=device"
_DRAM = "memory_config=ttnn.MemoryConfig(ttnn.TensorMemoryLayout.INTERLEAVED, ttnn.BufferType.DRAM, None)"
_UNARY = (
    "ttnn.cos(x)", "ttnn.exp(x, fast_and_approximate_mode=False)", "ttnn.neg(x)", "ttnn.reciprocal(x)",
    "ttnn.log1p(x, fast_and_approximate_mode=False)", "ttnn.relu(x)", "ttnn.sigmoid(x)", "ttnn.silu(x)", "ttnn.sin(x)",
    "ttnn.sqrt(x, fast_and_approximate_mode=False)", "ttnn.tanh(x, fast_and_approximate_mode=False)",
)  # fmt: skip
_FLOATS = ("float32", "bfloat16")
CALLS: tuple[tuple[str, str], ...] = (
    *((call, f"x {dtype}[1,64]") for dtype in _FLOATS for call in _UNARY),
    *(("ttnn.pow(x, y, dtype=None)", f"x {dtype}[1,64], y {dtype}[1,64]") for dtype in _FLOATS),
    *(("ttnn.repeat(x, ttnn.Shape([64, 32]))", f"x {dtype}[1,1]") for dtype in _FLOATS),
    *((f"ttnn.assign(x, dtype=ttnn.DataType.{d.upper()}, {_DRAM})", f"x {d}[4,16]")
      for d in (*_FLOATS, "int32", "uint32")),
    *((_CONV.format(d.upper()), f"x {d}[1,1,64,8], w {d}[8,8,3,3] rows, device") for d in _FLOATS),
    *((f"ttnn.zeros(shape=ttnn.Shape([4, 4]), dtype=ttnn.DataType.{d.upper()}, {_MADE})", "device") for d in _FLOATS),
    *((f"ttnn.arange(0, {n}, 1, dtype=ttnn.DataType.{d}, {_MADE})", "device")
      for n in (10, 128) for d in ("FLOAT32", "UINT32")),
    *((f"ttnn.layer_norm(x, epsilon=1e-05, weight=w, bias=b, compute_kernel_config={_CONFIG})", operands)
      for operands in ("x bfloat16[1,64,96], w bfloat16[96], b bfloat16[96]",
                       "x float32[1,64], w float32[64], b float32[64]")),
    ("ttnn.Tensor([True, True, False, False, True, False], [1, 6], ttnn.DataType.BOOL, ttnn.Layout.TILE, device)",
     "device"),
    ("ttnn.Tensor([0, 0, 1, 1, 2, 2], [2, 3], ttnn.DataType.UINT32, ttnn.Layout.TILE, device)", "device"),
    ("ttnn.Tensor([0.5, 1.5, 2.5, 3.5, 4.5, 5.5], [2, 3], ttnn.DataType.BFLOAT16, ttnn.Layout.TILE, device)", "device"),
    ("ttnn.bitwise_xor(x, y)", "x uint32[], y uint32[]"),
    ("ttnn.clamp(x, 0, 5)", "x int32[]"),
    ("ttnn.clamp(x, 0, 5)", "x int32[40,3]"),
    ("ttnn.concat([x, y], 1)", "x bool[1,2], y bool[1,7]"),
    ("ttnn.concat([x, y], 1)", "x uint8[1,1] rows, y uint8[1,1] rows"),
    ("ttnn.cumsum(x, 0, dtype=ttnn.DataType.INT32)", "x int32[32]"),
    (f"ttnn.full(shape=ttnn.Shape([4, 3]), fill_value=0, dtype=ttnn.DataType.BOOL, {_MADE})", "device"),
    ("ttnn.logical_or(x, y, dtype=ttnn.DataType.BOOL)", "x bool[], y bool[]"),
    ("ttnn.repeat(x, ttnn.Shape([1, 8]))", "x bool[3,1]"),
    ("ttnn.slice(x, [0, 2, 0], [2, 3, 2], [1, 1, 1])", "x bool[2,3,2] rows"),
    ("ttnn.slice(x, [0, 3], [1, 4], [1, 1])", "x uint8[1,4] rows"),
    ("ttnn.typecast(x, ttnn.DataType.INT32)", "x bool[]"),
    ("ttnn.typecast(x, ttnn.DataType.INT32)", "x int8[4,8]"),
    ("ttnn.typecast(x, ttnn.DataType.INT32)", "x int8[32,128]"),
    *(("ttnn.to_layout(x, ttnn.Layout.ROW_MAJOR, None)", f"x int8[{shape}]") for shape in ("4,8", "32,128")),
    ("ttnn.slice(x, [0, 2, 0], [2, 3, 2], [1, 1, 1])", "x int8[2,3,2] rows"),
    ("ttnn.permute(x, [1, 0], pad_value=0.0)", "x int8[3,16]"),
    ("ttnn.where(c, x, y)", "c bool[2,6,6], x int8[2,6,6], y int8[2,6,6]"),
    (f"ttnn.full(shape=ttnn.Shape([2, 6, 6]), fill_value=0, dtype=ttnn.DataType.INT8, {_MADE})", "device"),
    (f"ttnn.full(shape=ttnn.Shape([64, 32]), fill_value=1, dtype=ttnn.DataType.INT16, {_MADE})", "device"),
    ("ttnn.typecast(x, ttnn.DataType.INT32)", "x int16[64,32]"),
    ("ttnn.gather(x, 0, y, sparse_grad=False)", "x float32[32,64], y uint32[64,64]"),
    (f"ttnn.full(shape=ttnn.Shape([32, 32]), fill_value=1, dtype=ttnn.DataType.BOOL, {_MADE})", "device"),
    (f"ttnn.Tensor({list(range(32))}, [1, 32], ttnn.DataType.UINT32, ttnn.Layout.TILE, device)", "device"),
)  # fmt: skip
"""Calls, and their operands: names, element types and shapes, in rows or else in tiles, or the device."""


def operand(text: str, seed: int) -> Any:
    """Returns the operand that a text describes: numbers between 0.1 and 0.9, or small integers."""
    mesh, rng = jm.make_mesh((1, 1), ("y", "x")), np.random.default_rng(seed)
    found = re.fullmatch(r"\w+ (\w+)\[([\d,]*)\]( rows)?", text)
    if found is None:
        return ttnn.open_mesh_device(ttnn.MeshShape([1, 1]))
    dtype, shape, rows = jnp.dtype(found[1]), [int(n) for n in re.findall(r"\d+", found[2])], found[3]
    if dtype.kind == "b":
        values = rng.random(shape) < 0.5
    else:
        least = 0 if dtype.kind == "u" else -9
        values = rng.uniform(0.1, 0.9, shape) if jnp.issubdtype(dtype, jnp.floating) else rng.integers(least, 9, shape)
    tensor = jm.jit(lambda x: jm.full_to_shard(x, P()), mesh=mesh)(jnp.asarray(values, dtype))
    return ttnn.to_layout(tensor, ttnn.Layout.ROW_MAJOR) if rows else tensor


def made(call: str, operands: str, seed: int) -> program._ChipCall:
    """Returns a call with its operands; `beyond.enabled()` has to be in force."""
    return program._ChipCall(call, {text.partition(" ")[0]: operand(text, seed) for text in operands.split(", ")})
