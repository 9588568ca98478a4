"""JAX's own loops for functions that XLA lacks: JAX's rules for lowering them, as functions of arrays."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

from jax._src.lax import special

_ITERATED = ("igamma", "igammac", "igamma_grad_a", "regularized_incomplete_beta")
_functions: Any = special
ITERATED: Mapping[str, Callable[..., Any]] = {
    name: _functions._up_and_broadcast(getattr(special, f"{name}_impl")) for name in _ITERATED
}
"""By the primitive of `jax.lax`: a function of its operands, with a `while_loop` that ends when the numbers do."""


@functools.cache
def _gamma() -> Callable[..., Any]:
    # JAX imports its random numbers when they are first used.
    from jax._src.random import core

    functions: Any = core
    return functions._gamma_impl


def random_gamma(keys: Any, a: Any, *, log_space: bool) -> Any:
    """Draws from the gamma distribution, with one typed key for each leading element of `a`."""
    return _gamma()(keys, a, log_space=log_space, use_vmap=True)
