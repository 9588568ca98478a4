"""A fault of wolfpine's Blackhole: a copy of uint16.

    ttnn.repeat(x, [2, 1])

The cause: the packer asks for DataFormat.INT16, which the class does not have; it has UINT16.

Found with ttnn 0.81.1, wolfpine 2.2, sfpi 7.87.0. To see it, run this file with a Python
that has ttnn, wolfpine, and in ttnn/runtime/sfpi a compiler of kernels for Blackhole: python a-copy-of-uint16.py
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
    "TT_METAL_CORE_GRID_OVERRIDE_TODEPRECATE": "0,0",
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
x = on_chip(np.arange(32, dtype=np.uint16).reshape(1, 32), ttnn.DataType.UINT16)
right = np.float64(np.tile(np.arange(32), (2, 1)))
print("right:", *(f"{v:g}" for v in right.ravel()[:4]), "...", flush=True)
result = ttnn.repeat(x, [2, 1])
host = ttnn.to_layout(ttnn.from_device(result), ttnn.Layout.ROW_MAJOR)
if host.dtype == ttnn.DataType.BFLOAT16:
    host = ttnn.to_dtype(host, ttnn.DataType.FLOAT32)
found = host.to_numpy().astype(np.float64).reshape(tuple(result.shape))
print("the chip:", *(f"{v:g}" for v in found.ravel()[:4]), "...", flush=True)
ttnn.close_mesh_device(device)
sys.exit(0 if np.array_equal(found, right) else "the chip is wrong")
