"""How the surrounding program is traced: as JAX traces it, or as one mapped region."""

from __future__ import annotations

import contextlib
from collections.abc import Generator
from contextvars import ContextVar
from typing import TypeVar

import jax

from jaxmesh.jaxprs.typed import typed

T = TypeVar("T")
PLAIN, REGION = "plain", "region"
"""The two ways: full values as in JAX; or shards, in a program that splits tensors by hand."""

# A context of JAX, so that JAX does not use what it traced in one way where another is wanted.
_tracing = typed.make_user_context(default_value=None)


def tracing() -> str | None:
    """Returns how the surrounding program is traced, `PLAIN` or `REGION`; None outside of programs."""
    return _tracing.value


def traced_as(how: str | None) -> contextlib.AbstractContextManager[None]:
    """Runs its body as a part of a program that is traced in a way, or of no program."""
    return _tracing(how)


@contextlib.contextmanager
def set_within(variable: ContextVar[T], value: T) -> Generator[None]:
    """Sets a context variable inside of a `with` block."""
    token = variable.set(value)
    try:
        yield
    finally:
        variable.reset(token)


class RegionRequired(BaseException):
    """Ends a plain trace at the first operation that splits tensors by hand.

    It is not an error, so the `except Exception` of a program does not catch it.
    """


class RulesSplit(RegionRequired):
    """Ends the derivation of a function at its first rule of derivatives that splits tensors by hand."""


def require_region() -> None:
    """Ends a plain trace outside of mapped regions, at an operation that works in a region alone.

    Raises:
      RegionRequired: the program is traced anew, in one region.
    """
    if _tracing.value == PLAIN and not jax.sharding.get_abstract_mesh().manual_axes:
        raise RegionRequired
