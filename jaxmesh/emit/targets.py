"""The targets: the languages in which a flat program is printed, by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from jaxmesh.dialects.program import Program
from jaxmesh.emit.cpp.printer import cpp_text
from jaxmesh.emit.mlir.printer import mlir_text
from jaxmesh.emit.python.printer import python_text
from jaxmesh.validate import as_bool


def _mlir(program: Program, debug_info: bool, layouts: bool) -> str:
    return mlir_text(program, locations=debug_info, layouts=layouts)


def _python(program: Program, debug_info: bool, layouts: bool) -> str:
    return python_text(program)


def _cpp(program: Program, debug_info: bool, layouts: bool) -> str:
    return cpp_text(program)


TARGETS: Mapping[str, Callable[[Program, bool, bool], str]] = {
    "ttir": _mlir,
    "ttnn": _mlir,
    "python": _python,
    "cpp": _cpp,
}
"""The printers, by the name that `as_text` takes; further arguments add locations and layouts, which MLIR alone has."""


def emit(name: str, program: Program, *, debug_info: bool = False, layouts: bool = False) -> str:
    """Returns a flat program as text."""
    layouts = as_bool("as_text", "layouts", layouts) and name == "ttnn"
    return TARGETS[name](program, as_bool("as_text", "debug_info", debug_info), layouts)
