"""What the stages of a program show in a notebook; imported by them, and imports what draws when it is asked to."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from jaxmesh.dialects.program import UNROLL_LIMIT, Program
from jaxmesh.dialects.signature import Boundary
from jaxmesh.jaxprs import walk

if TYPE_CHECKING:
    from jaxmesh.drawing.program_drawing import ProgramValues


class Pictured:
    """A stage that draws itself."""

    _boundary: Boundary
    _jaxpr: Any
    _traced: Any = None
    """Of a lowered program what it was lowered from."""

    @property
    def jaxpr(self) -> Any:
        """The closed jaxpr."""
        raise NotImplementedError

    def _program(self, groups: bool, unroll_limit: int) -> Program:
        raise NotImplementedError

    def values(self) -> ProgramValues:
        """Every value and where it lives; `jaxmesh.visualize` draws them.

        Raises:
          InexpressibleError: there are no words for the program.
        """
        from jaxmesh.analysis.program_flow import stage_values

        return stage_values(repr(self), self.jaxpr, self._boundary)

    def _repr_html_(self) -> str:
        """TTIR with its `mesh_shard`s lit; of a lowered program TTIR and TTNN side by side, what has changed lit.

        A program that cannot be printed in them is shown as its jaxpr, with the reason.
        """
        from jaxmesh.analysis import side_by_side

        def mine() -> Program:
            # Of a program without words reading it is the error that says what is missing.
            _ = self.jaxpr
            return self._program(True, UNROLL_LIMIT)

        def jaxpr() -> str:
            return walk.text(self._jaxpr)

        above = self._traced
        if above is None:
            return side_by_side.single_column(repr(self), mine, jaxpr)
        return side_by_side.two_columns(repr(self), lambda: above._program(True, UNROLL_LIMIT), mine, jaxpr)
