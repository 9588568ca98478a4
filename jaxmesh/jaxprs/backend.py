"""Whether JAX has started its devices, which it has no public way to say."""

from __future__ import annotations

from jax._src import xla_bridge


def backend_started() -> bool:
    """Whether JAX has already counted its devices."""
    return bool(xla_bridge.backends_are_initialized())
