"""Calls with replication checks: copies that no type proves equal are compared on the devices, and raise here.

A function without such copies is never slowed down: its trace finds none, and it runs as without checks.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

import jax
from jax.sharding import PartitionSpec

from jaxmesh.dialects.check_copies import check_copies
from jaxmesh.dialects.replication import Claim, Collector, error
from jaxmesh.dialects.signature import Boundary
from jaxmesh.jaxprs import compat
from jaxmesh.jaxprs.caches import is_staged, unkeyed_settings
from jaxmesh.jaxprs.compat import Jaxpr
from jaxmesh.jaxprs.trees import parameter_names, show_path
from jaxmesh.jaxprs.typed import typed
from jaxmesh.jaxprs.user_frames import caller_line
from jaxmesh.passes.mesh_shard.replication_checks import add_checks
from jaxmesh.runtime.launch import launch_new, launch_traced
from jaxmesh.sharding.mesh import AnyMesh
from jaxmesh.sharding.shard_attributes import named_axes
from jaxmesh.tensor.mesh_tensor import MeshTensor, is_tensor
from jaxmesh.tensor.transfers import check_tensor

_jax: Any = jax


class _RestartError(Exception):
    """The trace of a function that was taken to claim nothing meets a claim; nothing has run yet."""

    def __init__(self, of: CheckedCalls) -> None:
        super().__init__("a claim of replication")
        self.of = of


class Checks:
    """The checks of one compiled form of a function: what collects differences, and what is notified of claims."""

    def __init__(self, collector: Collector | None, calls: CheckedCalls | None = None, proven: bool = False) -> None:
        # With None, differences stay pending until a `check_replication` block ends.
        self.collector, self._calls, self._proven = collector, calls, proven

    def note_arguments(self, leaves: Sequence[object]) -> None:
        """Notes arguments that are declared equal along some axes, before the function is traced."""
        if self._calls is not None and any(isinstance(x, MeshTensor) and _has_claim(x.varying, x.mesh) for x in leaves):
            self._calls.note_claim(arguments=True)

    def checked(self, program: Jaxpr, boundary: Boundary) -> Jaxpr:
        """Returns the lowered program with its claims checked; the same object when it makes none."""
        checked = add_checks(program, boundary.sizes, self.collector)
        if self._calls is not None and self._proven and checked is not program:
            self._calls.note_claim(program=True)
        return checked


def has_argument_claims(boundary: Boundary) -> bool:
    """Returns True if an argument is declared equal along some mesh axis."""
    return any(a.varying is not None and _has_claim(a.varying, boundary.mesh) for a in boundary.arguments)


def _has_claim(varying: Sequence[str], mesh: AnyMesh) -> bool:
    return any(n > 1 and a not in varying for a, n in mesh.shape.items())


class CheckedCalls:
    """A function `fun`, called with its claims checked.

    `make` builds the function for one way of checking it. If it makes claims, its calls wait until the devices are
    done, one call at a time: so no call reports what another thread's run has found.
    """

    def __init__(
        self, make: Callable[[Checks], Callable[..., Any]], fun: Callable[..., Any], claims: bool = False
    ) -> None:
        self._make, self._fun = make, fun
        self._claims, self._argument_claims = claims, False
        self._collector = Collector()
        self._functions: dict[Hashable, Callable[..., Any]] = {}
        # Of each thread, whether its call checks its arguments.
        self._lock, self._here = threading.RLock(), threading.local()

    def note_claim(self, program: bool = False, arguments: bool = False) -> None:
        """Notes a claim; the first of its kind restarts the call, before anything has run."""
        # Another thread may have noted it first, while this one had begun without the check.
        if program or (arguments and not self._here.checks_arguments):
            self._claims, self._argument_claims = self._claims or program, self._argument_claims or arguments
            raise _RestartError(self)

    def __call__(self, args: Sequence[Any], kwargs: Mapping[str, Any], keeps: bool = False) -> tuple[Any, Any]:
        """Calls the function as `launch_new` does; raises if copies of a value differ that are claimed to be equal."""
        while True:
            self._here.checks_arguments = self._argument_claims
            if self._here.checks_arguments:
                check_arguments((args, kwargs), parameter_names(self._fun, len(args)))
            try:
                return self._call(args, kwargs, keeps)
            except _RestartError as restart:
                if restart.of is not self:
                    raise

    def _call(self, args: Sequence[Any], kwargs: Mapping[str, object], keeps: bool) -> tuple[Any, Any]:
        if not self._claims:
            # Copies of arguments are compared at every call.
            return launch_new(self._compiled_for("proven"), args, kwargs, keeps and not self._here.checks_arguments)
        if is_staged():
            return self._compiled_for("later")(*args, **kwargs), None
        with self._lock:
            run = self._compiled_for("now")
            return raise_differences(self._collector, lambda: launch_traced(run, *args, **kwargs)), None

    def _compiled_for(self, way: str) -> Callable[..., object]:
        key = way, unkeyed_settings()
        if key not in self._functions:
            collector = self._collector if way == "now" else None
            return self._functions.setdefault(key, self._make(Checks(collector, self, proven=way == "proven")))
        return self._functions[key]


def raise_differences(collector: Collector, run: Callable[[], object]) -> object:
    """Returns what `run` returns, after the devices are done; raises if the collector got copies that differ."""
    with collector.listening() as found:
        out = run()
    if found:
        raise error(found)
    return out


def check_arguments(tree: object, parameters: Sequence[str]) -> None:
    """Compares the copies of every tensor that is declared equal along some axes, unless they are known to be."""
    for path, leaf in _jax.tree.flatten_with_path(tree, is_leaf=is_tensor)[0]:
        check_tensor(leaf, show_path(path, parameters))


# --- shard_map with check_vma=False ----------------------------------------------------------------------------------


def check_results(f: Callable[..., object], out_specs: object, collector: Collector | None) -> Callable[..., object]:
    """Returns the function of the shards with its results checked along every axis that their spec leaves out."""

    @functools.wraps(f)
    def checked(*args: object, **kwargs: object) -> Any:
        out = f(*args, **kwargs)
        try:
            specs = jax.tree.broadcast(out_specs, out, is_leaf=_is_spec)
        except ValueError:
            # The specs do not fit the result; JAX reports it.
            return out
        rows, tree = _jax.tree.flatten_with_path(out)
        leaves = _jax.tree.leaves(specs, is_leaf=_is_spec)
        name, line = getattr(f, "__name__", "the function"), caller_line()
        results: list[object] = []
        for number, ((path, leaf), spec) in enumerate(zip(rows, leaves, strict=True)):
            what = f"result{typed.tree_util.keystr(path)} of {name} (out_spec {spec}, check_vma=False)"
            results.append(_check_result(leaf, spec, number, what, line, collector))
        return jax.tree.unflatten(tree, results)

    return checked


def _is_spec(x: object) -> bool:
    return x is None or isinstance(x, PartitionSpec)


def _check_result(leaf: object, spec: object, number: int, what: str, line: str, collector: Collector | None) -> object:
    if not isinstance(leaf, jax.Array) or not isinstance(spec, PartitionSpec):
        return leaf
    mesh = jax.sharding.get_abstract_mesh()
    manual = {a: n for a, n in mesh.shape.items() if a in mesh.manual_axes}
    named = {*named_axes(spec), *spec.unreduced, *spec.reduced}
    axes = tuple(a for a, n in manual.items() if a not in named and n > 1)
    if not axes:
        return leaf
    what = f"{what}, {compat.describe(jax.typeof(leaf))},"
    return check_copies(leaf, Claim(number, line, what, manual, axes, collector=collector))
