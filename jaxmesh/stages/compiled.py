"""Compiled: an executable program on the devices of a mesh."""

from __future__ import annotations

import contextlib
import dataclasses
import operator
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import jax

from jaxmesh.dialects.replication import Collector
from jaxmesh.dialects.residency import ResidencyMap
from jaxmesh.dialects.signature import Argument, Boundary
from jaxmesh.jaxprs.backend import is_multi_process
from jaxmesh.jaxprs.caches import is_transforming
from jaxmesh.jaxprs.compat import as_abstract, without_mesh
from jaxmesh.jaxprs.dispatch import call_of
from jaxmesh.jaxprs.typed import typed
from jaxmesh.jaxprs.untyped import PyTree
from jaxmesh.runtime.distributed.agreement import compare_launch_arguments, compare_program, synchronised_launch
from jaxmesh.runtime.distributed.collectives import put
from jaxmesh.runtime.launch import Dispatch, launch, launch_known
from jaxmesh.runtime.progress import progress
from jaxmesh.sharding.mesh import AnyMesh, storage_spec
from jaxmesh.stages.arguments import check_call, check_donated, flatten, prepare_leaf
from jaxmesh.stages.checked_calls import check_arguments, has_argument_claims, raise_differences
from jaxmesh.stages.stage import HasArguments

if TYPE_CHECKING:
    from jaxmesh.analysis.explain import Explanation
    from jaxmesh.analysis.record.filter import Only
    from jaxmesh.analysis.record.recording import Recording
    from jaxmesh.drawing.program_drawing import ProgramValues


def _of_jax(name: str, doc: str) -> property:
    """Returns the property of a name of `jax.stages.Compiled`."""
    return property(lambda self: getattr(self._compiled, name), doc=doc)


class Compiled(HasArguments):
    """An executable program on the devices of a mesh; call it like the function, statics left out."""

    def __init__(
        self,
        boundary: Boundary,
        run: Callable[..., Any],
        mesh: AnyMesh,
        *,
        checked: bool,
        collector: Collector | None,
        residency: ResidencyMap,
        explain: Callable[[str | None], Explanation],
    ) -> None:
        self._boundary, self._residency, self._explain = boundary, residency, explain
        self._jaxpr = residency.program
        self._checked, self._compared = checked, False
        self._checks_arguments = checked and has_argument_claims(boundary)
        # For a program whose claims are checked, which runs one call at a time.
        self._collector, self._lock = collector, threading.RLock()
        run.__name__ = run.__qualname__ = boundary.name
        avals = [_stored_aval(a, mesh) for a in boundary.arguments]
        is_own = jax.sharding.get_abstract_mesh() == as_abstract(mesh)
        with contextlib.nullcontext() if is_own else without_mesh():
            self._compiled = typed.jit(run, donate_argnums=boundary.donated).lower(*avals).compile()
        shardings, _ = self._compiled.input_shardings
        self._shardings: Sequence[Any] = shardings
        self._call = call_of(self._compiled)
        # Calls of known types need no check.
        self._simple = not (boundary.donated or self._checks_arguments or collector)
        self._dispatch = Dispatch(self._run_new, boundary.name)

    def __call__(self, *args: Any, **kwargs: Any) -> PyTree:
        """Runs the program.

        Raises:
          ArgumentTypeError: the tree or the types are not those the program was traced for.
          DeletedError: an argument was donated to a program, or deleted.
          VerifyError: a donated argument is passed twice.
          ReplicationError: the program was compiled with `check_replication`, and copies claimed equal differ.
          ProcessMismatchError: another process starts another program, or passes other arguments to a program
            compiled with `check_replication`.
        """
        try:
            return self._dispatch(*args, **kwargs)
        except (TypeError, ValueError, SystemError):
            # JAX looked at the tree first.
            flatten((args, kwargs))
            raise

    def _run_new(self, *args: object, **kwargs: object) -> tuple[object, object]:
        """Runs a call; returns its results, and how the program is run again, as `launch_known` does."""
        if not is_multi_process():
            return self._start(args, kwargs, self._simple)
        with synchronised_launch(self._boundary.mesh):
            if not self._compared:
                compare_program(self._boundary.name, self._jaxpr, self._boundary.sizes)
                self._compared = True
            if self._checked:
                compare_launch_arguments((args, kwargs), self._boundary.parameters)
            return self._start(args, kwargs, keeps=False)

    def _start(self, args: tuple[object, ...], kwargs: dict[str, object], keeps: bool) -> tuple[object, object]:
        if self._checks_arguments:
            check_arguments((args, kwargs), self._boundary.parameters)
        given = check_call(self._boundary, args, kwargs)
        if self._boundary.donated:
            # The arrays that were passed: two of the same sharding are two tensors in `given`.
            leaves, _, paths = flatten((args, kwargs))
            check_donated(leaves, self._boundary.donated, paths, self._boundary.parameters)
        leaves = [_place(prepare_leaf(x), s) for x, s in zip(given, self._shardings, strict=True)]
        # An array of NumPy is copied, and a tensor that is taken apart is another one: neither is kept.
        if keeps and not is_transforming() and all(map(operator.is_, leaves, jax.tree.leaves((args, kwargs)))):
            return launch_known(self._call, leaves, {})

        def start() -> Any:
            # Also inside a trace: an executable is not a part of the program being traced.
            with jax.ensure_compile_time_eval():
                return self._compiled(*leaves)

        if self._collector is None:
            return launch(start), None
        with self._lock:
            return raise_differences(self._collector, lambda: launch(start)), None

    def as_text(self) -> str:
        """Returns the optimized HLO."""
        return self._compiled.as_text() or ""

    def values(self) -> ProgramValues:
        """Returns the shardings that XLA chose for arguments and results; `jaxmesh.visualize` draws them."""
        from jaxmesh.analysis.program_flow import compiled_values

        arguments, results = self._compiled.input_shardings[0], self._compiled.output_shardings
        return compiled_values(repr(self), self._jaxpr, self._boundary, arguments, results)

    def explain(self, cluster: str | None = None) -> Explanation:
        """Returns residency, transfers and the passes' remarks for every value; see `Lowered.explain`."""
        return self._explain(cluster)

    out_info = _of_jax("out_info", "The types and shardings of the results, in their tree, as of `jax.stages`.")
    out_tree = _of_jax("out_tree", "The tree of the results.")
    output_shardings = _of_jax("output_shardings", "The shardings of the results, in their tree.")
    output_formats = _of_jax("output_formats", "The layouts and shardings of the results, in their tree.")

    def runtime_executable(self) -> Any:
        """Returns XLA's executable, as of `jax.stages.Compiled`."""
        return self._compiled.runtime_executable()

    @property
    def input_shardings(self) -> PyTree:
        """The shardings of the arguments, in their tree: `(args, kwargs)`, as of `jax.stages.Compiled`."""
        return jax.tree.unflatten(self._boundary.in_tree, self._shardings)

    @property
    def input_formats(self) -> PyTree:
        """The layouts and shardings of the arguments, in their tree, as of `jax.stages.Compiled`."""
        formats = self._compiled.input_formats
        return jax.tree.unflatten(self.in_tree, formats[0])

    def cost_analysis(self) -> Any:
        """Returns XLA's cost analysis."""
        return self._compiled.cost_analysis()

    def memory_analysis(self) -> Any:
        """Returns XLA's memory analysis."""
        return self._compiled.memory_analysis()

    @progress("record")
    def record(self, *args: object, only: Only = None, max_bytes: int | None = None, **kwargs: object) -> Recording:
        """Runs the program on the devices of its mesh, and returns every equation's value; see `Lowered.record`."""
        from jaxmesh.analysis.record.filter import Wanted
        from jaxmesh.analysis.record.run_devices import record_devices

        def compile_and_call(run: Callable[..., object]) -> Any:
            boundary = dataclasses.replace(self._boundary, donated=())
            known: Any = {"residency": self._residency, "explain": self._explain}
            return Compiled(boundary, run, boundary.mesh, checked=False, collector=None, **known)(*args, **kwargs)

        check_call(self._boundary, args, kwargs)
        return record_devices(self._residency, self._boundary, Wanted.of(only, max_bytes), compile_and_call)


def _place(x: Any, sharding: Any) -> object:
    """Returns a committed array with the program's sharding, if it is read; JAX places everything else itself."""
    if (
        sharding is None
        or not isinstance(x, jax.Array)
        or not x.committed
        or x.sharding.is_equivalent_to(sharding, x.ndim)
    ):
        return x
    return put(x, sharding)


def _stored_aval(a: Argument, mesh: AnyMesh) -> object:
    if a.varying is None:
        return jax.ShapeDtypeStruct(a.aval.shape, a.aval.dtype, weak_type=a.aval.weak_type, sharding=a.aval.sharding)
    shape = (*a.aval.shape, *[mesh.shape[n] for n in a.varying])
    sharding = jax.sharding.NamedSharding(mesh, storage_spec(len(a.aval.shape), a.varying))
    return jax.ShapeDtypeStruct(shape, a.aval.dtype, sharding=sharding)
