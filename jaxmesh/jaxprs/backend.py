"""JAX's backend and version: started devices, joined processes, forks of a process with devices, tested versions.

`import jaxmesh` reads this module, so it imports nothing that `import jax` has not read.
"""

from __future__ import annotations

import os
import warnings
from typing import Any

import jax
from jax._src import distributed, xla_bridge

from jaxmesh.errors import UntestedJaxWarning

NEWEST_TESTED = (0, 12)
"""The newest release of JAX on which the test suite runs; every patch release of it counts as tested."""

_forked = False


def backend_started() -> bool:
    """Returns True if JAX has already counted its devices."""
    return bool(xla_bridge.backends_are_initialized())


def is_multi_process() -> bool:
    """Returns True if this process has joined other processes."""
    state: Any = distributed.global_state
    return state.client is not None and state.num_processes > 1


def watch_forks() -> None:
    """Notes, in every process that is forked later, if its parent had devices; see `has_lost_devices`."""
    os.register_at_fork(after_in_child=_after_fork)


def has_lost_devices() -> bool:
    """Returns True if this process was forked after JAX had started the devices of its parent."""
    return _forked


def _after_fork() -> None:
    global _forked
    _forked = _forked or backend_started()


def warn_if_untested() -> None:
    """Warns of a JAX that is newer than the newest tested one."""
    if jax.__version_info__[:2] > NEWEST_TESTED:
        warnings.warn(
            f"jaxmesh is tested with JAX up to {'.'.join(map(str, NEWEST_TESTED))}, and this is JAX {jax.__version__}; "
            "it uses internals of JAX, so parts of it may fail. Install a tested JAX, or a newer jaxmesh.",
            UntestedJaxWarning,
            stacklevel=3,
        )
