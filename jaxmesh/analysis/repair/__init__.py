"""Programs that Tenstorrent's compiler compiles right, from those that it does not."""

from jaxmesh.analysis.repair.compositions import COMPOSITIONS as COMPOSITIONS, Composition as Composition
from jaxmesh.analysis.repair.repair import (
    Candidate as Candidate,
    Change as Change,
    Cost as Cost,
    Repair as Repair,
    prove as prove,
    search as search,
    with_whole as with_whole,
)
