"""A Python with the packages of the simulated chip, whose `ttnn` computes in NumPy: in float64, rounded at the end."""

from __future__ import annotations

import sys
from pathlib import Path

TTNN = """
import enum, os, time
import numpy as np

class _Anything:
    def __getattr__(self, name): return self
    def __call__(self, *args, **kwargs): return self

def __getattr__(name):
    if name.startswith("__"): raise AttributeError(name)
    return _Anything()

DataType = enum.Enum("DataType", "BFLOAT16 FLOAT32 UINT32 INT32")
Layout = enum.Enum("Layout", "ROW_MAJOR TILE")
Shape = list

class Tensor:
    def __init__(self, array, dtype, layout=Layout.ROW_MAJOR):
        self.array, self.dtype, self.layout, self.shape = np.asarray(array), dtype, layout, np.shape(array)
    def to_numpy(self):
        assert self.layout is Layout.ROW_MAJOR and self.dtype is not DataType.BFLOAT16
        return self.array

def to_layout(tensor, layout, *_, **__): return Tensor(tensor.array, tensor.dtype, layout)
def to_dtype(tensor, dtype): return Tensor(tensor.array, dtype, tensor.layout)
def from_device(tensor): return tensor
def to_device(tensor, device): return tensor

def _op(name, compute):
    def function(*args, dtype=None, transpose_a=False, transpose_b=False, **kwargs):
        with open(os.environ["CALLS"], "a") as file: print(name, file=file)
        fault = os.environ.get("FAULT_" + name)
        if fault: exec(fault)
        tensors = [a for a in (*args, *kwargs.values()) if isinstance(a, Tensor)]
        plain = [a for a in args if not isinstance(a, Tensor)]
        arrays = [t.array.astype(np.float64) for t in tensors]
        if transpose_a: arrays[0] = arrays[0].T
        if transpose_b: arrays[1] = arrays[1].T
        found = compute(*arrays, *plain)
        found = found * float(os.environ.get("SCALE_" + name, 1))
        kind = dtype or tensors[0].dtype
        stored = found.astype({DataType.INT32: np.int32, DataType.UINT32: np.uint32}.get(kind, np.float32))
        if kind is DataType.BFLOAT16 or "ROUND_" + name in os.environ:
            bits = stored.view(np.uint32)
            stored = ((bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000).astype(np.uint32).view(np.float32)
        return Tensor(stored, kind, Layout.TILE)
    return function

def _softmax(x, axis=-1):
    e = np.exp(x - x.max(axis, keepdims=True))
    return e / e.sum(axis, keepdims=True)

def full(shape, fill_value, dtype, layout, device, memory_config=None):
    return Tensor(np.full(shape, fill_value, np.float32), dtype, layout)

for _name, _function in {
    "matmul": np.matmul, "add": np.add, "subtract": np.subtract, "multiply": np.multiply, "divide": np.divide,
    "lt": np.less, "exp": np.exp, "tanh": np.tanh, "neg": np.negative, "rsqrt": lambda x: x**-0.5,
    "silu": lambda x: x / (1 + np.exp(-x)), "softmax": _softmax, "permute": np.transpose, "reshape": np.reshape,
    "rms_norm": lambda x, w, *_: x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-6) * w,
}.items():
    globals()[_name] = _op(_name, _function)
"""


def python_with(folder: Path, *, without: str = "") -> Path:
    """A Python with ttnn, its compiler of kernels, and the simulator, but for one of them."""
    site = folder / "site"
    compiler = site / "ttnn" / "runtime" / "sfpi" / "compiler" / "bin"
    compiler.mkdir(parents=True)
    (site / "framework").mkdir()
    (compiler / "riscv-tt-elf-g++").write_text("#!/bin/sh\necho 'g++ (tenstorrent/sfpi:7.87.0[1023]) 15.1.0'\n")
    (compiler / "riscv-tt-elf-g++").chmod(0o755)
    if without != "library":
        (compiler.parent / "riscv-tt-elf" / "lib" / "bh-ilp32").mkdir(parents=True)
    if without == "compiler":
        (compiler / "stand_in.elf").touch()
    (site / "ttnn" / "__init__.py").write_text(TTNN)
    (site / "framework" / "__init__.py").touch()
    if without != "sim":
        (site / "framework" / "sim" / "blackhole").mkdir(parents=True)
        (site / "framework" / "sim" / "blackhole" / "cluster_descriptor.yaml").touch()
    for name, version in (("ttnn", "0.81.1"), ("wolfpine", "2.2")):
        if name != without:
            about = site / f"{name}-{version}.dist-info"
            about.mkdir()
            (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    python = folder / "bin" / "python"
    python.parent.mkdir()
    python.write_text(f'#!/bin/sh\nPYTHONPATH="{site}" exec "{sys.executable}" "$@"\n')
    python.chmod(0o755)
    return python
