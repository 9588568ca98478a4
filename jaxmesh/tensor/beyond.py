"""The switch for what goes beyond the real `ttnn`, and helpers that it does not have.

Off, `jaxmesh.ttnn` refuses what the real library refuses: meshes of three and more axes, element types that it lacks
(64-bit, 16-bit and complex ones, truth values), and element types and layouts that a function does not take. On, they
are emulated as far as JAX computes them; `jaxmesh run` turns it on for programs of such types. `jaxmesh.jit` never
needs it.
"""

from __future__ import annotations

import contextlib
import contextvars

from jaxmesh.jaxprs.tracing_state import set_within

REMEDY = "which goes beyond the real ttnn; jaxmesh.ttnn.beyond.enable() emulates it"
"""The end of a sentence that refuses something."""

_enabled: contextvars.ContextVar[bool] = contextvars.ContextVar("beyond_ttnn", default=False)
_process = [False]


def is_enabled() -> bool:
    """Returns True if the emulation goes beyond the real library."""
    return _process[0] or _enabled.get()


def enable(on: bool = True) -> None:
    """Sets the switch on or off, for the whole process."""
    _process[0] = on


def enabled() -> contextlib.AbstractContextManager[None]:
    """Sets the switch on inside of a `with` block.

    >>> from jaxmesh.ttnn import beyond
    >>> with beyond.enabled():
    ...     beyond.is_enabled()
    True
    """
    return set_within(_enabled, True)
