"""XLA without most of its optimizations."""

from __future__ import annotations

import contextlib
from collections.abc import Generator
from typing import Any

import jax

_config: Any = jax.config


@contextlib.contextmanager
def quick_compilation() -> Generator[None]:
    """Compiles quickly, for many programs whose optimization by XLA is not what is checked."""
    name = "jax_disable_most_optimizations"
    before = _config.read(name)
    _config.update(name, True)
    try:
        yield
    finally:
        _config.update(name, before)
