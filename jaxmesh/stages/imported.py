"""Traced programs that were read from a text: they are what their ops mean, and are printed as what the ops were."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence, Set as AbstractSet
from typing import Any

from jaxmesh.dialects.imported_op import NAME
from jaxmesh.dialects.program import Program
from jaxmesh.dialects.signature import Boundary
from jaxmesh.errors import JaxmeshError
from jaxmesh.jaxprs.inline import inline_calls
from jaxmesh.stages.stages import Lowered, Traced


class Read(Traced):
    """A traced program whose ops, as the text has them, are one equation each.

    A text of one dialect is the flat program of its stage already: that is printed as it stands, op for op, where it
    keeps the rules of flat programs. What the passes make of the equations is printed of everything else.
    """

    def __init__(
        self,
        boundary: Boundary,
        said: Any,
        out_tree: Any,
        assumptions: Sequence[str],
        levels: AbstractSet[str],
        written: Callable[[str], Program | None],
    ) -> None:
        super().__init__(boundary, said, out_tree, assumptions)
        self._said = said
        self._levels = levels
        self._written = written
        self._kept: dict[str, Program | None] = {}
        del self._jaxpr

    # Who only prints a file again does not pay for it.
    @functools.cached_property
    def _jaxpr(self) -> Any:  # pyright: ignore[reportIncompatibleVariableOverride]
        return inline_calls(self._said, names={NAME})

    def as_written(self, level: str) -> Program | None:
        """The program of the text, of one of its dialects; None if it breaks the rules, or is of another dialect."""
        if level not in self._levels:
            return None
        if level not in self._kept:
            self._kept[level] = self._made(level)
        return self._kept[level]

    def _made(self, level: str) -> Program | None:
        from jaxmesh.passes.verify_program import verify_program

        try:
            made = self._written(level)
            if made is not None and level == "ttnn":
                verify_program(made)
        except JaxmeshError:
            # Texts of other origin leave out what a flat program has to say.
            return None
        return made

    def _flat(self, groups: bool, unroll_limit: int) -> Program:
        kept = self.as_written("ttir") if groups else None
        return super()._flat(groups, unroll_limit) if kept is None else kept

    def lower(self) -> Lowered:
        """As of `Traced`."""
        lowered = super().lower()
        return _Lowered(lowered, self) if "ttnn" in self._levels else lowered


class _Lowered(Lowered):
    """A lowered program that was read from a text of TTNN."""

    def __init__(self, lowered: Lowered, read: Read) -> None:
        super().__init__(lowered._boundary, lowered._jaxpr, lowered._out_tree, read)
        self._read = read

    def _flat(self, groups: bool, unroll_limit: int) -> Program:
        kept = self._read.as_written("ttnn") if groups else None
        return super()._flat(groups, unroll_limit) if kept is None else kept
