"""Values in Python syntax: numbers, shapes, element types, layouts, memory configs, attributes of calls."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any, cast

import numpy as np

from jaxmesh.dialects.program import Type
from jaxmesh.dialects.quoting import python_string
from jaxmesh.dialects.ttnn.layouts import buffer_type, spread
from jaxmesh.dialects.ttnn.op import inside_folder, parse_config, parse_memory, spell
from jaxmesh.errors import VerifyError
from jaxmesh.jaxprs.untyped import Array, DType

DEVICE_MEMORY = "ttnn.MemoryConfig(ttnn.TensorMemoryLayout.{}, ttnn.BufferType.{}, {})"
COMPUTE_CONFIG = (
    "ttnn.WormholeComputeKernelConfig(math_fidelity=ttnn.MathFidelity.HiFi4, math_approx_mode=False, "
    "fp32_dest_acc_en=True)"
)


def data_type(dtype: DType) -> str:
    """Returns an element type, by its NumPy name: `ttnn.DataType.BFLOAT16`.

    `ttnn` lacks BOOL, FLOAT64, FLOAT16 and INT64. These names are printed nevertheless, so that the emulated
    ttnn, which has them, computes exactly the program; the exported `utils.py` replaces them by the nearest type of
    the real ttnn.
    """
    return f"ttnn.DataType.{dtype.name.upper()}"


def layout(tensor_type: Type) -> str:
    """Returns the page layout of a tensor."""
    return "ttnn.Layout.TILE" if tensor_type.tile else "ttnn.Layout.ROW_MAJOR"


def memory_config(tensor_type: Type) -> str:
    """Returns the memory config of a tensor; `None` for a host tensor."""
    if tensor_type.host:
        return "None"
    cores = spread(tensor_type)
    if cores is None:
        return DEVICE_MEMORY.format("INTERLEAVED", buffer_type(tensor_type), None)
    ranges = ", ".join(f"ttnn.CoreRange(ttnn.CoreCoord{a}, ttnn.CoreCoord{b})" for a, b in cores.cores)
    shard_spec = f"ttnn.CoreRangeSet([{ranges}]), {listed(cores.shape)}, ttnn.ShardOrientation.ROW_MAJOR"
    return DEVICE_MEMORY.format(cores.layout, buffer_type(tensor_type), f"ttnn.ShardSpec({shard_spec})")


def shape(sizes: Iterable[int]) -> str:
    """Returns a tensor's shape: `ttnn.Shape([2, 1])`."""
    return f"ttnn.Shape({listed(sizes)})"


def listed(numbers: Iterable[int]) -> str:
    """Returns integers: `[2, 1]`."""
    return f"[{', '.join(map(plain, numbers))}]"


def floating(number: float) -> str:
    """Returns a float that reads back as the same number: `0.1`, `1e-05`, `float('inf')`.

    >>> floating(1.0), floating(float("-inf"))
    ('1.0', "float('-inf')")
    """
    return repr(number) if math.isfinite(number) else f"float('{number}')"


def array(values: Array) -> str:
    """Returns the elements of a constant, row-major."""
    flat = values.reshape(-1)
    if flat.dtype.kind in "biu":
        return f"[{', '.join(map(str, flat.tolist()))}]"
    if flat.dtype.kind == "c":
        pairs: list[complex] = flat.astype(np.complex128).tolist()
        return f"[{', '.join(f'complex({floating(z.real)}, {floating(z.imag)})' for z in pairs)}]"
    # All floats, including the narrow types that NumPy does not know, are exact in 64 bits.
    numbers: list[float] = flat.astype(np.float64).tolist()
    return f"[{', '.join(map(floating, numbers))}]"


def attribute(value: Any, form: str) -> str:
    """Returns an attribute in the form `Param.form`."""
    if value is None:
        return "None"
    if form in _FORMS:
        return _FORMS[form](value)
    prefix, _, enum = form.partition(":")
    if prefix == "config":
        return f"{enum}({', '.join(f'{k}={_configured(v)}' for k, v in parse_config(str(value)).items())})"
    if prefix == "string":
        return python_string(name) if (name := spell(enum, str(value))) else "None"
    return f"{enum}.{spell(enum, str(value))}" if prefix == "enum" else plain(value)


_FORMS: Mapping[str, Callable[[Any], str]] = {
    "shape": shape,
    "coordinate": lambda value: f"ttnn.MeshCoordinate(({plain(value)[1:-1]}))",
    "float": lambda value: floating(float(value)),
    "path": lambda value: python_string(inside_folder(str(value))),
    "array": lambda value: array(np.asarray(value)),
    "one": lambda value: plain([value]),
    "memory": lambda value: DEVICE_MEMORY.format("INTERLEAVED", parse_memory(str(value)), None),
    "pairs": lambda value: plain(list(zip(value[::2], value[1::2], strict=True))),
}


def _configured(value: int | bool | str | tuple[int, ...]) -> str:
    if isinstance(value, tuple):
        return f"ttnn.CoreCoord{value}"
    return f"ttnn.DataType.{value}" if isinstance(value, str) else str(value)


def plain(value: Any) -> str:
    """Returns a number, truth value, string, None, or a list of them."""
    if isinstance(value, np.ndarray):
        return array(cast("Array", value))
    if isinstance(value, np.generic):
        return array(np.asarray(cast("object", value)))[1:-1]
    if value is None or isinstance(value, (bool, int)):
        return repr(value)
    if isinstance(value, float):
        return floating(value)
    if isinstance(value, str):
        return python_string(value)
    if isinstance(value, (tuple, list)):
        return f"[{', '.join(map(plain, cast('tuple[object, ...]', value)))}]"
    raise VerifyError(
        f"emitted Python writes numbers, truth values, strings and lists of them, got {type(value).__name__} {value!r}."
    )
