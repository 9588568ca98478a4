"""The targets: the languages of printed programs, by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from jaxmesh.dialects.program import Program
from jaxmesh.emit.constants import CONSTANT_LIMIT
from jaxmesh.emit.cpp.printer import cpp_text
from jaxmesh.emit.mlir.printer import mlir_text
from jaxmesh.emit.python.printer import python_text
from jaxmesh.validate import as_bool, as_index


def _ttir(program: Program, limit: int, debug_info: bool, layouts: bool) -> str:
    return mlir_text(program, locations=debug_info, constant_limit=limit)


def _ttnn(program: Program, limit: int, debug_info: bool, layouts: bool) -> str:
    return mlir_text(program, locations=debug_info, layouts=layouts, constant_limit=limit)


def _python(program: Program, limit: int, debug_info: bool, layouts: bool) -> str:
    return python_text(program, constant_limit=limit)


def _cpp(program: Program, limit: int, debug_info: bool, layouts: bool) -> str:
    return cpp_text(program, constant_limit=limit)


TARGETS: Mapping[str, Callable[[Program, int, bool, bool], str]] = {
    "ttir": _ttir,
    "ttnn": _ttnn,
    "python": _python,
    "cpp": _cpp,
}
"""The printers, by their names in `as_text`. The second argument is the limit of elements of a spelled constant. The
others apply to MLIR only: locations, and types with layouts."""


def emit(
    name: str,
    program: Program,
    *,
    debug_info: bool = False,
    layouts: bool = False,
    constant_limit: int = CONSTANT_LIMIT,
) -> str:
    """Returns a flat program as text."""
    limit = as_index("as_text", "constant_limit", constant_limit)
    layouts = as_bool("as_text", "layouts", layouts)
    return TARGETS[name](program, limit, as_bool("as_text", "debug_info", debug_info), layouts)
