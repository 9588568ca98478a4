"""Prints flat programs in each language."""

from __future__ import annotations

from jaxmesh.dialects.program import Program
from jaxmesh.emit.cpp.printer import cpp_text
from jaxmesh.emit.languages import CONSTANT_LIMIT
from jaxmesh.emit.mlir.printer import mlir_text
from jaxmesh.emit.python.printer import python_text
from jaxmesh.validate import as_bool, as_index


def emit(
    name: str,
    program: Program,
    *,
    debug_info: bool = False,
    layouts: bool = False,
    constant_limit: int = CONSTANT_LIMIT,
) -> str:
    """Returns a flat program as text in a language: `ttir`, `ttnn`, `python` or `cpp`.

    Locations (`debug_info`) are for MLIR only, and types with layouts for TTNN.
    """
    limit = as_index("as_text", "constant_limit", constant_limit)
    layouts = as_bool("as_text", "layouts", layouts)
    locations = as_bool("as_text", "debug_info", debug_info)
    if name == "python":
        return python_text(program, constant_limit=limit)
    if name == "cpp":
        return cpp_text(program, constant_limit=limit)
    assert name in ("ttir", "ttnn"), name
    return mlir_text(program, locations=locations, layouts=layouts and name == "ttnn", constant_limit=limit)
