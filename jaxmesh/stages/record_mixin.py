"""`record` of the stages of a program: every value that a run makes. What it needs is imported when it is asked for."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from jaxmesh.dialects.signature import Boundary
from jaxmesh.stages.signature import check_call

if TYPE_CHECKING:
    from jaxmesh.analysis.record.filter import Only
    from jaxmesh.analysis.record.recording import Recording


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
        from jaxmesh.analysis.record.api import record

        leaves = check_call(self._boundary, args, kwargs)

        def again(run: Callable[..., Any]) -> Any:
            return self._again(run)(*args, **kwargs)

        return record(self._jaxpr, self._boundary, self._level, leaves, again, only=only, max_bytes=max_bytes)

    def _again(self, run: Callable[..., Any]) -> Callable[..., Any]:
        """Another function of the same arguments, compiled for the same devices."""
        raise NotImplementedError
