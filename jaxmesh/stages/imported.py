"""The MLIR text of an imported program, as a jaxpr and as a flat program."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from jaxmesh.dialects.program import Program
from jaxmesh.errors import JaxmeshError
from jaxmesh.passes.verify_program import verify_program


@dataclass(frozen=True, slots=True)
class Imported:
    """The text of an imported program.

    Attributes:
      read: returns the text as a flat program of a dialect, `ttir` or `ttnn`; None if it is of another, or has a
        form that is never printed.
    """

    read: Callable[[str], Program | None]

    def program(self, dialect: str) -> Program | None:
        """Returns the text as a flat program of a dialect; None if it is of another one, or breaks its rules."""
        try:
            program = self.read(dialect)
            if program is not None and dialect == "ttnn":
                verify_program(program)
        except JaxmeshError:
            # Texts of other origin leave out what a flat program needs.
            return None
        return program
