"""MLIR's Python bindings, which publish no types."""

from typing import Any

from jaxlib.mlir import ir as _ir
from jaxlib.mlir._mlir_libs import _jax_mlir_ext
from jaxlib.mlir.dialects import sdy as _sdy, stablehlo as _stablehlo

_extension: Any = _jax_mlir_ext
ir: Any = _ir
sdy: Any = _sdy
hlo: Any = _stablehlo
inlined_call = _extension.inlined_func_call
