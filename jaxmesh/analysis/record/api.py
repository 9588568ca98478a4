"""Records a run of a program, on the reference executor or on the devices of its mesh."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from jaxmesh.analysis.record.filter import Only, Wanted
from jaxmesh.analysis.record.recording import Recording
from jaxmesh.analysis.record.run_devices import Run, record_devices
from jaxmesh.analysis.record.run_reference import record_reference
from jaxmesh.dialects.residency import ResidencyMap
from jaxmesh.dialects.signature import Boundary
from jaxmesh.jaxprs.compat import Jaxpr


def record(
    program: Jaxpr,
    boundary: Boundary,
    level: str,
    leaves: Sequence[Any],
    compile_and_call: Callable[[Run], Sequence[Any]] | None = None,
    *,
    residency: ResidencyMap | None = None,
    only: Only = None,
    max_bytes: int | None = None,
) -> Recording:
    """Runs a closed jaxpr and returns every value that it computes.

    Args:
      program: the jaxpr.
      boundary: its signature and its mesh.
      level: one of `LEVELS`: the reference executor before (`"ttir"`) or after (`"ttnn"`) the pass, or `"devices"`.
      leaves: the flat arguments of the run, already checked.
      compile_and_call: for `"devices"`: compiles a function of the flat arguments, calls it with those of the run, and
        returns its results.
      residency: for `"devices"`: the residencies of the program.
      only: the values to record, as of `Compiled.record`.
      max_bytes: the largest size of a recording.

    Raises:
      ArgumentTypeError: `only` or `max_bytes` is of another type.
      RecordingSizeError: the recording would be larger than `max_bytes`.
    """
    wanted = Wanted.of(only, max_bytes)
    if level == "devices":
        assert compile_and_call is not None
        assert residency is not None
        return record_devices(residency, boundary, wanted, compile_and_call)
    return record_reference(program, boundary, leaves, wanted, level)
