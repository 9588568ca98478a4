"""`record` of the stages of a program: every value that a run makes. What it needs is imported when it is asked for."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import jax

from jaxmesh.dialects.ttir.mesh_shard import mesh_shard_p
from jaxmesh.dialects.ttir.mesh_shard_reference import mesh_shard as mesh_shard_reference
from jaxmesh.runtime.compare_copies import REFERENCE_RULES
from jaxmesh.runtime.distributed.collectives import whole
from jaxmesh.stages.signature import Boundary, check_call
from jaxmesh.ttnn.mesh_tensor import MeshTensor
from jaxmesh.ttnn.transfers import all_shards

if TYPE_CHECKING:
    from jaxmesh.analysis.record.filter import Only
    from jaxmesh.analysis.record.recording import Recording

TTIR_RULES = {**REFERENCE_RULES, mesh_shard_p.name: mesh_shard_reference}
"""What the reference executor is told of a program before the pass."""


class Recorded:
    """A stage of a program whose values can be recorded."""

    _boundary: Boundary
    _jaxpr: Any
    _level: str

    def record(self, *args: Any, only: Only = None, max_bytes: int | None = None, **kwargs: Any) -> Recording:
        """Runs the program, and gives every equation's value on every device, keyed by source location.

        A traced program runs on the reference executor before any pass, a lowered one after the pass, a compiled one on
        the devices of its mesh. `jaxmesh.compare` says where two recordings first differ. In loops and branches every
        turn is recorded, and only the branch that was taken; calls, `jax.checkpoint` and custom functions count as
        their bodies. On the devices the program is compiled once more together with what it records, which XLA may
        round otherwise; a while loop that takes many turns, and callbacks in it, may be run twice. Claims of
        replication are not checked: a recording shows what differs.

        Args:
          args: the arguments, as of a call; nothing is donated.
          only: what to record: a pattern such as `"dot_general"`, `"model.py:1*"` or `"attention"` (an op, a file and
            line, a function), a row of patterns of which one fits, or a function from a `jaxmesh.analysis.record.Place`
            to a bool.
          max_bytes: how many bytes a recording may hold, by default 1 GiB.
          kwargs: further arguments, as of a call.

        Raises:
          ArgumentTypeError: other arguments than the program was traced for.
          RecordingSizeError: the recording would hold more than `max_bytes` bytes.

        >>> import jax.numpy as jnp, jaxmesh as jm
        >>> from jax.sharding import PartitionSpec as P
        >>> @jm.jit(mesh=jm.make_mesh((2, 4)))
        ... def double(x):
        ...     return jm.shard_to_full(jm.full_to_shard(x, P("y")) * 2, P("y"))
        >>> lowered = double.lower(jnp.arange(4.0))
        >>> bool(jm.compare(lowered.record(jnp.arange(4.0)), lowered.compile().record(jnp.arange(4.0))))
        True
        """
        from jaxmesh.analysis.record.filter import Wanted

        wanted, boundary = Wanted.of(only, max_bytes), self._boundary
        leaves = check_call(boundary, args, kwargs)
        if self._level == "devices":
            from jaxmesh.analysis.record.run_devices import record_devices

            return record_devices(
                self._jaxpr, boundary, boundary.mesh, wanted, lambda run: self._again(run)(*args, **kwargs)
            )
        from jaxmesh.analysis.record.run_reference import record_reference

        rules = TTIR_RULES if self._level == "ttir" else REFERENCE_RULES
        shards = [reference_input(x) for x in leaves]
        return record_reference(
            self._jaxpr, boundary.places, boundary.sizes, shards, rules, wanted, boundary.name, self._level
        )

    def _again(self, run: Callable[..., Any]) -> Callable[..., Any]:
        """Another function of the same arguments, compiled for the same devices."""
        raise NotImplementedError


def reference_input(x: Any) -> Any:
    """An argument as the reference executor takes it."""
    if isinstance(x, MeshTensor):
        return all_shards(x)
    # An array that lies in several processes is put together; all of them are here.
    return whole(x) if isinstance(x, jax.Array) and not x.is_fully_addressable else x
