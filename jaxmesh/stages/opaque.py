"""The stages of a program that TTIR and TTNN have no words for: it runs as JAX runs it, and has no text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax

from jaxmesh.dialects.program import UNROLL_LIMIT
from jaxmesh.dialects.signature import Boundary
from jaxmesh.errors import InexpressibleError
from jaxmesh.jaxprs import evaluate
from jaxmesh.runtime.distributed.agreement import compare_program
from jaxmesh.sharding.mesh import AnyMesh
from jaxmesh.stages.checked_calls import Checks
from jaxmesh.stages.stages import Lowered, Stage, Traced


class _Unsaid(Stage):
    """What both stages have no answer to."""

    def __init__(self, boundary: Boundary, jaxpr: Any, out_tree: Any, missing: InexpressibleError) -> None:
        super().__init__(boundary, jaxpr, out_tree)
        self._missing = missing

    @property
    def jaxpr(self) -> Any:
        """There is none.

        Raises:
          InexpressibleError: what there are no words for.
        """
        raise self._missing

    def as_text(
        self,
        dialect: str | None = None,
        *,
        debug_info: bool = False,
        groups: bool = True,
        unroll_limit: int = UNROLL_LIMIT,
    ) -> str:
        """There is none.

        Raises:
          InexpressibleError: what there are no words for.
        """
        raise self._missing


class UnsaidTraced(_Unsaid, Traced):
    """A traced program without TTIR."""

    def reference(self, *args: Any, **kwargs: Any) -> Any:
        """There is none: the reference executor runs TTIR and TTNN.

        Raises:
          InexpressibleError: what there are no words for.
        """
        raise self._missing

    def lower(self) -> Lowered:
        """A stage that compiles and runs, and has no text either."""
        return UnsaidLowered(self._boundary, self._jaxpr, self._out_tree, self._missing)


class UnsaidLowered(_Unsaid, Lowered):
    """A lowered program without TTNN."""

    def export(self, directory: Any, *args: Any, **kwargs: Any) -> Any:
        """There is nothing to export.

        Raises:
          InexpressibleError: what there are no words for.
        """
        raise self._missing

    @property
    def plan(self) -> Any:  # pyright: ignore[reportIncompatibleVariableOverride]
        """There is none.

        Raises:
          InexpressibleError: what there are no words for.
        """
        raise self._missing

    def reference(self, *args: Any, **kwargs: Any) -> Any:
        """There is none: the reference executor runs TTNN.

        Raises:
          InexpressibleError: what there are no words for.
        """
        raise self._missing

    def run(self, args: Sequence[Any], mesh: AnyMesh, checks: Checks | None = None) -> Any:
        """Runs on flat arguments inside a trace, or eagerly, as JAX does."""
        compare_program(self._boundary.name, self._jaxpr, self._boundary.sizes)
        return jax.tree.unflatten(self._out_tree, evaluate.eval_jaxpr(self._jaxpr, *args))
