"""How the surrounding program is traced: as JAX traces it, or as one mapped region."""

from __future__ import annotations

import contextlib
from collections.abc import Generator
from typing import Any

import jax

PLAIN, REGION = "plain", "region"
"""The two ways: full values as in JAX; or shards, in a program that splits tensors by hand."""

# A context of JAX, so that JAX does not use what it traced in one way where another is wanted.
_tracing: Any = jax.make_user_context(default_value=None)


def tracing() -> str | None:
    """Returns how the surrounding program is traced, `PLAIN` or `REGION`; None outside of programs."""
    return _tracing.value


@contextlib.contextmanager
def traced_as(how: str | None) -> Generator[None]:
    """Runs its body as a part of a program that is traced in a way, or of no program."""
    with _tracing(how):
        yield


class RegionRequired(BaseException):
    """Ends a plain trace at the first operation that splits tensors by hand.

    It is not an error, so the `except Exception` of a program does not catch it.
    """


def require_region() -> None:
    """Ends a plain trace outside of mapped regions, at an operation that works in a region alone.

    Raises:
      RegionRequired: the program is traced anew, in one region.
    """
    if _tracing.value == PLAIN and not jax.sharding.get_abstract_mesh().manual_axes:
        raise RegionRequired
