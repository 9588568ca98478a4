"""Repairs of programs that Tenstorrent's compiler compiles wrongly or refuses."""

from jaxmesh.analysis.repair.repair import (
    Candidate as Candidate,
    CompiledCost as CompiledCost,
    LineChange as LineChange,
    Repair as Repair,
    RepairChange as RepairChange,
    diagnose_further as diagnose_further,
    prove as prove,
    search as search,
    with_open_results as with_open_results,
    with_whole as with_whole,
)
from jaxmesh.analysis.repair.substitutes import SUBSTITUTES as SUBSTITUTES, Substitute as Substitute
