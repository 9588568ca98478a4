"""Helpers of the definitions: the table of operations, tests and conversions of element types."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import jax
from jax.typing import DTypeLike

from jaxmesh.dialects.op import Meaning, OpDef, Trait
from jaxmesh.dialects.table import ROWS
from jaxmesh.dialects.varying import vary as vary, vary_together as vary_together, varying_axes as varying_axes
from jaxmesh.jaxprs.untyped import jnp as jnp, lax as lax, nn as nn


def is_integer(x: jax.Array) -> bool:
    """Returns True if an array holds integers, which truth values are not."""
    return bool(jnp.issubdtype(x.dtype, jnp.integer))


def is_bool(x: jax.Array) -> bool:
    """Returns True if an array holds truth values."""
    return bool(x.dtype == jnp.bool_)


def convert(x: jax.Array, dtype: DTypeLike) -> jax.Array:
    """Converts an array to another element type, as far as JAX's x64 mode has it."""
    return lax.convert_element_type(x, jax.dtypes.canonicalize_dtype(dtype))


def as_bool(x: jax.Array) -> jax.Array:
    """Converts numbers to truth values: all but zero are true."""
    return x if is_bool(x) else x != 0


class TtirOps(dict[str, OpDef]):
    """Operations of TTIR by name, without the dialect."""

    def define(
        self, name: str, *, casts: bool = False, traits: Sequence[Trait] = (), former: OpDef | None = None
    ) -> Callable[[Meaning], Meaning]:
        """Adds an operation of the table, with the decorated function as its meaning; see `OpDef`."""

        def enter(meaning: Meaning) -> Meaning:
            assert name not in self, name
            known, facts = ROWS[f"ttir.{name}"].definition, frozenset(traits)
            self[name] = replace(known, meaning=meaning, casts=casts, traits=facts, former=former, operand_names=())
            return meaning

        return enter
