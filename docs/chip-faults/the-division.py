"""A fault of wolfpine's Blackhole: the division.

    ttnn.multiply(x, y)

RV_M_ISA divides through a float, raises at a divisor of 0, and takes the sign of a remainder from the
divisor. By the standard the quotient is then -1, and the remainder the dividend. With all cores no program
starts.

Found with ttnn 0.81.1, wolfpine 2.2, sfpi 7.87.0. To see it, run this file with a Python
that has ttnn, wolfpine, and in ttnn/runtime/sfpi a compiler of kernels for Blackhole: python the-division.py
"""

import importlib.util
import os
import sys
import tempfile

import numpy as np

framework = importlib.util.find_spec("framework").submodule_search_locations[0]
simulator = os.path.join(framework, "sim", "blackhole")
cache = tempfile.TemporaryDirectory()
os.environ |= {
    "WOLFPINE_PYTHON": sys.executable,
    "TT_METAL_SIMULATOR": simulator,
    "TT_METAL_MOCK_CLUSTER_DESC_PATH": os.path.join(simulator, "cluster_descriptor.yaml"),
    "TT_METAL_SLOW_DISPATCH_MODE": "1",
    "TT_METAL_DISABLE_SFPLOADMACRO": "1",
    "TT_METAL_CACHE": cache.name,
    "TT_LOGGER_LEVEL": "off",
}

import ttnn  # It reads the environment.

device = ttnn.open_mesh_device(ttnn.MeshShape([1, 1]), l1_small_size=65536)


def on_chip(array, dtype):
    return ttnn.to_device(ttnn.to_layout(ttnn.Tensor(array, dtype), ttnn.Layout.TILE), device)


count = np.arange(1024).reshape(32, 32) - 500
random = np.random.default_rng(0).standard_normal((40, 70)).astype(np.float32)
random = (random.view(np.uint32) & 0xFFFF0000).view(np.float32)  # Numbers of bfloat16.
x = on_chip(count.astype(np.int32), ttnn.DataType.INT32)
y = on_chip(np.full((32, 32), 3, np.int32), ttnn.DataType.INT32)
right = np.float64(3 * count)
print("right:", *(f"{v:g}" for v in right.ravel()[:4]), "...", flush=True)
result = ttnn.multiply(x, y)
host = ttnn.to_layout(ttnn.from_device(result), ttnn.Layout.ROW_MAJOR)
if host.dtype == ttnn.DataType.BFLOAT16:
    host = ttnn.to_dtype(host, ttnn.DataType.FLOAT32)
found = host.to_numpy().astype(np.float64).reshape(tuple(result.shape))
print("the chip:", *(f"{v:g}" for v in found.ravel()[:4]), "...", flush=True)
ttnn.close_mesh_device(device)
sys.exit(0 if np.array_equal(found, right) else "the chip is wrong")
