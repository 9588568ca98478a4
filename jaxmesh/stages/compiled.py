"""Compiled: an executable program on the devices of a mesh."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import jax

from jaxmesh.dialects.replication import Collector
from jaxmesh.dialects.signature import Argument, Boundary
from jaxmesh.jaxprs.caches import ARRAY, is_staged
from jaxmesh.jaxprs.coordination import is_multi_process
from jaxmesh.runtime.distributed.agreement import compare_program, compared_arguments, synchronised_launch
from jaxmesh.runtime.distributed.collectives import put
from jaxmesh.runtime.launch import launch
from jaxmesh.sharding.mesh import AnyMesh
from jaxmesh.stages.arguments import check_donated, handed
from jaxmesh.stages.checked_calls import check_arguments, claims_of_arguments, listened
from jaxmesh.stages.record_mixin import Recorded
from jaxmesh.stages.signature import check_call
from jaxmesh.ttnn.mesh_tensor import MeshTensor, is_tensor, spec_of

if TYPE_CHECKING:
    from jaxmesh.analysis.explain import Explanation
    from jaxmesh.drawing.program_drawing import ProgramValues

_tree: Any = jax.tree


class Compiled(Recorded):
    """An executable program on the devices of a mesh; call it like the function, statics left out."""

    _level = "devices"

    def __init__(
        self,
        boundary: Boundary,
        run: Callable[..., Any],
        mesh: AnyMesh,
        *,
        checked: bool,
        collector: Collector | None,
        jaxpr: Any,
        explain: Callable[[], Explanation],
    ) -> None:
        self._boundary, self._jaxpr, self._explain = boundary, jaxpr, explain
        self._checked, self._told = checked, False
        self._checks_arguments = checked and claims_of_arguments(boundary)
        # Of a program whose claims are checked; runs are told apart by running one after the other.
        self._collector, self._lock = collector, threading.RLock()
        run.__name__ = run.__qualname__ = boundary.name
        avals = [_stored_aval(a, mesh) for a in boundary.arguments]
        self._compiled = jax.jit(run, donate_argnums=boundary.donated).lower(*avals).compile()
        wanted, _ = self._compiled.input_shardings
        rows = zip(avals, wanted, boundary.arguments, strict=True)
        self._wanted = [_Wanted(x.shape, x.dtype, s, a.varying, boundary.mesh) for x, s, a in rows]
        self._leaf = is_tensor if any(w.varying is not None for w in self._wanted) else None
        # How many arguments there are if each is a leaf; such a call is flat as it is.
        count = len(self._wanted)
        self._row = count if boundary.in_tree == _tree.structure(((0,) * count, {})) else -1
        # Of such calls nothing is left to look at but types.
        self._simple = not (boundary.donated or self._checks_arguments or collector)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Runs the program.

        Raises:
          ArgumentTypeError: another tree or other types than the program was traced for.
          DeletedError: an argument was donated to a program, or deleted.
          VerifyError: an argument that is donated is given twice.
          ReplicationError: compiled with `check_replication`, and copies differ that are claimed to be equal.
          ProcessMismatchError: another process starts another program, or compiled with `check_replication` gives
            other arguments.
        """
        if not is_multi_process():
            return self._start(args, kwargs)
        with synchronised_launch(self._boundary.mesh):
            if not self._told:
                compare_program(self._boundary.name, self._jaxpr, self._boundary.sizes)
                self._told = True
            if self._checked:
                compared_arguments((args, kwargs))
            return self._start(args, kwargs)

    def _start(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        ready = self._ready(args, kwargs) if self._simple and not is_staged() else None
        if ready is not None:
            return launch(self._compiled, *ready)
        if self._checks_arguments:
            check_arguments((args, kwargs))
        given = check_call(self._boundary, args, kwargs)
        check_donated(given, self._boundary.donated)
        leaves = [handed(x) for x in given]

        def start() -> Any:
            # Also while a program is traced: an executable is no part of it.
            with jax.ensure_compile_time_eval():
                return self._compiled(*[_placed(x, w.sharding) for x, w in zip(leaves, self._wanted, strict=True)])

        if self._collector is None:
            return launch(start)
        with self._lock:
            return listened(self._collector, lambda: launch(start))

    def _ready(self, args: Sequence[Any], kwargs: dict[str, Any]) -> Sequence[Any] | None:
        """The leaves of a call if they are arrays of the right types and places, as nearly always; else None."""
        leaves: Sequence[Any] = args
        if kwargs or len(args) != self._row:
            try:
                leaves, tree = _tree.flatten((args, kwargs), self._leaf)
            except Exception:
                # What is wrong with the tree is said by who looks at it in full.
                return None
            if tree != self._boundary.in_tree:
                return None
        if self._leaf is not None:
            leaves = [_data(x, w) for x, w in zip(leaves, self._wanted, strict=True)]
        for x, w in zip(leaves, self._wanted, strict=True):
            if type(x) is not ARRAY or x.is_deleted() or x.shape != w.shape:
                return None
            if x.dtype is not w.dtype and x.dtype != w.dtype:
                return None
            if x.sharding is not w.known and x.committed and not w.lies_well(x):
                return None
        return leaves

    def as_text(self) -> str:
        """The optimized HLO."""
        return self._compiled.as_text() or ""

    def values(self) -> ProgramValues:
        """Where XLA puts the arguments and the results; `jaxmesh.visualize` draws them."""
        from jaxmesh.analysis.program_flow import compiled_values

        arguments, results = self._compiled.input_shardings[0], self._compiled.output_shardings
        return compiled_values(repr(self), self._jaxpr, self._boundary, arguments, results)

    def explain(self) -> Explanation:
        """Where every value lives, what every equation moves, what the passes did and why; see `Lowered.explain`."""
        return self._explain()

    def cost_analysis(self) -> Any:
        """XLA's cost analysis."""
        return self._compiled.cost_analysis()

    def memory_analysis(self) -> Any:
        """XLA's memory analysis."""
        return self._compiled.memory_analysis()

    def _again(self, run: Callable[..., Any]) -> Callable[..., Any]:
        boundary = dataclasses.replace(self._boundary, donated=())
        explain = self._explain
        return Compiled(boundary, run, boundary.mesh, checked=False, collector=None, jaxpr=self._jaxpr, explain=explain)

    def __repr__(self) -> str:
        return f"Compiled({self._boundary.name}, mesh={self._boundary.sizes})"


class _Wanted:
    """What a compiled program takes as one argument; and a sharding that was found to be equivalent."""

    __slots__ = ("dtype", "known", "mesh", "shape", "sharding", "varying")

    def __init__(
        self, shape: tuple[int, ...], dtype: Any, sharding: Any, varying: tuple[str, ...] | None, mesh: AnyMesh
    ) -> None:
        self.shape, self.dtype, self.sharding, self.varying, self.mesh = shape, dtype, sharding, varying, mesh
        self.known: Any = None

    def lies_well(self, x: Any) -> bool:
        """Whether a committed array is where the program wants it (nowhere, if it is not read)."""
        lies = x.sharding
        if self.sharding is None or lies.is_equivalent_to(self.sharding, x.ndim):
            self.known = lies
            return True
        return False


def _data(leaf: Any, wanted: _Wanted) -> Any:
    """What a leaf holds if it is a tensor just where one is wanted, or an array where none is; else None."""
    if not isinstance(leaf, MeshTensor):
        return leaf if wanted.varying is None else None
    if not leaf.is_allocated() or leaf.varying != wanted.varying or leaf.mesh is not wanted.mesh:
        return None
    return leaf.handed()


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
