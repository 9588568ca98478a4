"""Traced programs that were read from a text: they are what their ops mean, and are printed as what the ops were."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

from jaxmesh.boundary import Boundary
from jaxmesh.inline import inline_calls
from jaxmesh.ops.said import NAME
from jaxmesh.stages import Traced


class Read(Traced):
    """A traced program whose ops, as the text has them, are one equation each."""

    def __init__(self, boundary: Boundary, said: Any, out_tree: Any, assumptions: Sequence[str]) -> None:
        super().__init__(boundary, said, out_tree, assumptions)
        self._said = said
        del self._jaxpr

    # Who only prints a file again does not pay for it.
    @functools.cached_property
    def _jaxpr(self) -> Any:  # pyright: ignore[reportIncompatibleVariableOverride]
        return inline_calls(self._said, names={NAME})
