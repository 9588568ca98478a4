"""The targets: the languages in which a flat program is printed, by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from jaxmesh.dialects.program import Program
from jaxmesh.emit.cpp.printer import cpp_text
from jaxmesh.emit.mlir.printer import mlir_text
from jaxmesh.emit.python.printer import python_text
from jaxmesh.validate import as_bool


@dataclass(frozen=True, slots=True)
class Target:
    """A language in which a flat program is printed.

    Attributes:
      name: the name that `as_text` takes.
      emit: the text of a program; the second argument adds source locations, which MLIR alone has.
    """

    name: str
    emit: Callable[[Program, bool], str]


def _mlir(program: Program, debug_info: bool) -> str:
    return mlir_text(program, locations=debug_info)


TARGETS: Mapping[str, Target] = {
    target.name: target
    for target in (
        Target("ttir", _mlir),
        Target("ttnn", _mlir),
        Target("python", lambda program, _: python_text(program)),
        Target("cpp", lambda program, _: cpp_text(program)),
    )
}
"""By name; programs of the TTIR level have the target `ttir`, those of the TTNN level the others."""


def emit(name: str, program: Program, *, debug_info: bool = False) -> str:
    """Returns a flat program as text."""
    return TARGETS[name].emit(program, as_bool("as_text", "debug_info", debug_info))
