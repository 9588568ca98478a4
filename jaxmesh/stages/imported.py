"""The part that a traced program keeps of the MLIR text that it was imported from."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from jaxmesh.dialects.program import Program
from jaxmesh.errors import JaxmeshError
from jaxmesh.jaxprs.compat import Jaxpr
from jaxmesh.passes.verify_program import verify_program


@dataclass(frozen=True, slots=True)
class Imported:
    """The text of an imported program.

    Attributes:
      jaxpr: the traced program with one equation per op of the text; texts of other dialects are made of it.
      read: the flat program that the text is in a dialect, `ttir` or `ttnn`; None if it is of another dialect, or has a
        form that is never printed.
    """

    jaxpr: Jaxpr
    read: Callable[[str], Program | None]

    def program(self, dialect: str) -> Program | None:
        """The flat program that the text is; None if it is none of this dialect, or breaks the rules of the dialect."""
        try:
            program = self.read(dialect)
            if program is not None and dialect == "ttnn":
                verify_program(program)
        except JaxmeshError:
            # Texts of other origin leave out what a flat program needs.
            return None
        return program
