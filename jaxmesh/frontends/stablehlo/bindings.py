"""MLIR's Python bindings, which publish no types."""

from typing import Any

from jaxlib.mlir import ir as _ir
from jaxlib.mlir.dialects import sdy as _sdy, stablehlo as _stablehlo

ir: Any = _ir
sdy: Any = _sdy
hlo: Any = _stablehlo
