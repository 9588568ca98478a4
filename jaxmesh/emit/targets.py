"""The targets: the languages of printed programs, by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from jaxmesh.dialects.program import Program
from jaxmesh.emit.constants import CONSTANT_LIMIT
from jaxmesh.emit.cpp.printer import cpp_module, cpp_text
from jaxmesh.emit.mlir.printer import mlir_text
from jaxmesh.emit.python.printer import python_module, python_text
from jaxmesh.validate import as_bool, as_index


def _ttir(program: Program, limit: int, debug_info: bool, layouts: bool) -> str:
    return mlir_text(program, locations=debug_info, named_results=layouts, constant_limit=limit)


def _ttnn(program: Program, limit: int, debug_info: bool, layouts: bool) -> str:
    return mlir_text(program, locations=debug_info, layouts=layouts, named_results=layouts, constant_limit=limit)


def _python(program: Program, limit: int, debug_info: bool, layouts: bool) -> str:
    return python_text(program, constant_limit=limit)


def _cpp(program: Program, limit: int, debug_info: bool, layouts: bool) -> str:
    return cpp_text(program, constant_limit=limit)


def emit_module(
    name: str, programs: Sequence[Program], *, target_module: bool = False, split_files: bool = False, load: str = ""
) -> str:
    """Returns several flat TTNN programs as one text of Python or C++; see `python_module`."""
    if name == "cpp":
        return cpp_module(programs)
    return python_module(programs, target_module=target_module, split_files=split_files, load=load)


TARGETS: Mapping[str, Callable[[Program, int, bool, bool], str]] = {
    "ttir": _ttir,
    "ttnn": _ttnn,
    "python": _python,
    "cpp": _cpp,
}
"""The printers, by their names in `as_text`. The second argument is the limit of elements of a spelled constant. The
others apply to MLIR only: locations, and upstream's form with layouts and result names."""


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
