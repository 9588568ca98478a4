"""Compiled: an executable program on the devices of a mesh."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import jax

from jaxmesh.boundary import AnyMesh, Argument, Boundary, check_call
from jaxmesh.checked import check_arguments, claims_of_arguments, listened
from jaxmesh.handover import check_donated, handed
from jaxmesh.launches import launched
from jaxmesh.replication import Collector
from jaxmesh.runtime.processes import put
from jaxmesh.runtime.tensor import spec_of


class Compiled:
    """An executable program on the devices of a mesh; call it like the function, statics left out."""

    def __init__(
        self, boundary: Boundary, run: Callable[..., Any], mesh: AnyMesh, *, checked: bool, collector: Collector | None
    ) -> None:
        self._boundary = boundary
        self._checks_arguments = checked and claims_of_arguments(boundary)
        # Of a program whose claims are checked; runs are told apart by running one after the other.
        self._collector, self._lock = collector, threading.RLock()
        run.__name__ = run.__qualname__ = boundary.name
        avals = [_stored_aval(a, mesh) for a in boundary.arguments]
        self._compiled = jax.jit(run, donate_argnums=boundary.donated).lower(*avals).compile()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Runs the program.

        Raises:
          ArgumentTypeError: another tree or other types than the program was traced for.
          DeletedError: an argument was donated to a program, or deleted.
          VerifyError: an argument that is donated is given twice.
          ReplicationError: compiled with `check_replication`, and copies differ that are claimed to be equal.
        """
        if self._checks_arguments:
            check_arguments((args, kwargs))
        given = check_call(self._boundary, args, kwargs)
        check_donated(given, self._boundary.donated)
        leaves = [handed(x) for x in given]
        wanted, _ = self._compiled.input_shardings

        def start() -> Any:
            return self._compiled(*[_placed(x, s) for x, s in zip(leaves, wanted, strict=True)])

        if self._collector is None:
            return launched(start)
        with self._lock:
            return listened(self._collector, lambda: launched(start))

    def as_text(self) -> str:
        """The optimized HLO."""
        return self._compiled.as_text() or ""

    def cost_analysis(self) -> Any:
        """XLA's cost analysis."""
        return self._compiled.cost_analysis()

    def memory_analysis(self) -> Any:
        """XLA's memory analysis."""
        return self._compiled.memory_analysis()

    def __repr__(self) -> str:
        return f"Compiled({self._boundary.name}, mesh={self._boundary.sizes})"


def _placed(x: Any, sharding: Any) -> Any:
    """A committed array where the program wants it (nowhere, if it is not read); anything else JAX places itself."""
    if (
        sharding is None
        or not isinstance(x, jax.Array)
        or not x.committed
        or x.sharding.is_equivalent_to(sharding, x.ndim)
    ):
        return x
    return put(x, sharding)


def _stored_aval(a: Argument, mesh: AnyMesh) -> Any:
    if a.varying is None:
        return jax.ShapeDtypeStruct(a.aval.shape, a.aval.dtype, weak_type=a.aval.weak_type)
    shape = (*a.aval.shape, *[mesh.shape[n] for n in a.varying])
    sharding = jax.sharding.NamedSharding(mesh, spec_of(len(a.aval.shape), a.varying))
    return jax.ShapeDtypeStruct(shape, a.aval.dtype, sharding=sharding)
