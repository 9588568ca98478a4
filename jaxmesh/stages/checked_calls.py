"""Calls whose claims of replication are checked: what no type proves is compared on the devices, and raised here.

A function that claims nothing is never touched: it is found out when it is traced, and runs as it would unchecked.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax.core import Tracer

from jaxmesh.dialects.replication import Collector, error
from jaxmesh.jaxprs.caches import unkeyed
from jaxmesh.jaxprs.compat import Jaxpr
from jaxmesh.passes.mesh_shard.replication_checks import add_checks
from jaxmesh.runtime.launch import launch
from jaxmesh.stages.signature import AnyMesh, Boundary, is_tensor
from jaxmesh.ttnn.check_copies import check_tensor
from jaxmesh.ttnn.mesh_tensor import MeshTensor

_jax: Any = jax


class _Claims(Exception):
    """A function that was taken to claim nothing turns out to, while it is traced; nothing has run yet."""

    def __init__(self, of: CheckedCalls) -> None:
        super().__init__("a claim of replication")
        self.of = of


class Checks:
    """How one way of calling a function checks it: who takes what is found, and who wants to know of claims."""

    def __init__(self, collector: Collector | None, calls: CheckedCalls | None = None, proven: bool = False) -> None:
        self._collector, self._calls, self._proven = collector, calls, proven

    def look_at(self, leaves: Sequence[Any]) -> None:
        """Takes note of arguments that are declared equal along some axes, before the function is traced."""
        if self._calls is not None and any(isinstance(x, MeshTensor) and _claims(x.varying, x.mesh) for x in leaves):
            self._calls.meet(arguments=True)

    @property
    def collector(self) -> Collector | None:
        """Takes what is found; None leaves it pending for all."""
        return self._collector

    def checked(self, program: Jaxpr, boundary: Boundary) -> Jaxpr:
        """The lowered program with its claims checked; the same object when it makes none."""
        made = add_checks(program, boundary.sizes, self._collector)
        if self._calls is not None and self._proven and made is not program:
            self._calls.meet(program=True)
        return made


def claims_of_arguments(boundary: Boundary) -> bool:
    """Whether an argument is declared to be the same along some mesh axis."""
    return any(a.varying is not None and _claims(a.varying, boundary.mesh) for a in boundary.arguments)


def _claims(varying: Sequence[str], mesh: AnyMesh) -> bool:
    return any(n > 1 and a not in varying for a, n in mesh.shape.items())


class _Call(threading.local):
    """What is known of a call, in its thread."""

    checks_arguments = False


class CheckedCalls:
    """A function, called with its claims checked.

    `make` gives the function for one way of checking it. Where it claims something, its calls wait until the devices
    are done, one call at a time: so nobody is told of what another thread's run has found.
    """

    def __init__(self, make: Callable[[Checks], Callable[..., Any]], claims: bool = False) -> None:
        self._make = make
        self._claims, self._argument_claims = claims, False
        self._collector = Collector()
        self._ways: dict[Hashable, Callable[..., Any]] = {}
        self._lock, self._here = threading.RLock(), _Call()

    def meet(self, program: bool = False, arguments: bool = False) -> None:
        """Takes note of a claim; the first of its kind starts the call again, before anything has run."""
        # Another thread may have met it first, while this one had begun without the check.
        if program or (arguments and not self._here.checks_arguments):
            self._claims, self._argument_claims = self._claims or program, self._argument_claims or arguments
            raise _Claims(self)

    def __call__(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Calls the function.

        Raises:
          ReplicationError: copies of a value differ that are claimed to be equal.
        """
        while True:
            self._here.checks_arguments = self._argument_claims
            if self._here.checks_arguments:
                check_arguments((args, kwargs))
            try:
                return self._call(args, kwargs)
            except _Claims as claims:
                if claims.of is not self:
                    raise

    def _call(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        if not self._claims:
            return launch(self._way("proven"), *args, **kwargs)
        if _staged():
            return launch(self._way("later"), *args, **kwargs)
        with self._lock:
            return listened(self._collector, lambda: launch(self._way("now"), *args, **kwargs))

    def _way(self, name: str) -> Callable[..., Any]:
        key = name, unkeyed()
        if key not in self._ways:
            collector = self._collector if name == "now" else None
            return self._ways.setdefault(key, self._make(Checks(collector, self, proven=name == "proven")))
        return self._ways[key]


def listened(collector: Collector, run: Callable[[], Any]) -> Any:
    """What `run` gives, when the devices are done.

    Raises:
      ReplicationError: the collector was told of copies that differ.
    """
    with collector.listening() as found:
        out = run()
    if found:
        raise error(found)
    return out


def check_arguments(tree: Any) -> None:
    """Compares the copies of every tensor that is declared equal along some axes, and not known to be.

    Raises:
      ReplicationError: they differ.
    """
    for path, leaf in _jax.tree.flatten_with_path(tree, is_leaf=is_tensor)[0]:
        check_tensor(leaf, f"argument{jax.tree_util.keystr(path)}")


def _staged() -> bool:
    """Whether what is called here runs later, as a part of an outer program; eager transformations run it at once."""
    zero = np.float32(0)
    return isinstance(jax.lax.add(zero, zero), Tracer)
