"""The patterns of the pass from TTIR to TTNN."""

from collections.abc import Mapping

from jaxmesh.passes.ttir_to_ttnn import (
    collectives,
    elementwise,
    images,
    indexing,
    integers,
    norms,
    reductions,
    shapes,
    textual,
)
from jaxmesh.passes.ttir_to_ttnn.builder import Pattern

PATTERNS: Mapping[str, Pattern] = {
    **collectives.PATTERNS,
    **elementwise.PATTERNS,
    **images.PATTERNS,
    **indexing.PATTERNS,
    **integers.PATTERNS,
    **norms.PATTERNS,
    **reductions.PATTERNS,
    **shapes.PATTERNS,
    **textual.PATTERNS,
}
"""By the name of the TTIR op, without the dialect."""
