"""Ops that make values: constants and iotas, of which each device makes its own shard."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxmesh.errors import UnsupportedError
from jaxmesh.frontends.stablehlo.call import Program
from jaxmesh.frontends.stablehlo.reshards import perform, plan
from jaxmesh.frontends.stablehlo.shardings import local_shape, replicated
from jaxmesh.frontends.stablehlo.values import Sharded, axis_position

_lax: Any = jax.lax
_SMALL = 2**32


def constant(program: Program, op: Any) -> list[Sharded]:
    """A constant: equal everywhere, or this device's slice of one whose elements differ."""
    (kind,), (sharding,) = program.types_of(op.results), program.result_shardings(op)
    value: Any = program.read(op.attributes["value"])
    array = np.asarray(value)
    if array.dtype != kind.dtype:
        array = array.astype(kind.dtype)
    if array.ndim == 0 or kind.size <= 1:
        local = local_shape(kind.shape, sharding, program.sizes)
        return [Sharded(_lax.full(local, array.reshape(-1)[0] if array.size else 0, kind.dtype), sharding)]
    x = jnp.asarray(array.reshape(kind.shape))
    moves = plan(replicated(x.ndim), sharding, kind.shape, program.sizes)
    return [Sharded(perform(x, moves, program.sizes), sharding)]


def iota(program: Program, op: Any) -> list[Sharded]:
    """An iota; along a sharded dim it starts at this device's first element."""
    (kind,), (sharding,) = program.types_of(op.results), program.result_shardings(op)
    dim = program.read(op.attributes["iota_dimension"])
    local = local_shape(kind.shape, sharding, program.sizes)
    x = _lax.broadcasted_iota(kind.dtype, local, dim)
    if sharding[dim]:
        first = axis_position(sharding[dim], program.sizes) * np.int32(local[dim])
        x = x + _lax.convert_element_type(first, kind.dtype)
    return [Sharded(x, sharding)]


def partition_id(program: Program, op: Any) -> list[Sharded]:
    """The row-major number of this device."""
    index = axis_position(tuple(program.sizes), program.sizes)
    return [Sharded(_lax.convert_element_type(index, np.uint32), ())]


def check_wide(shape: tuple[int, ...]) -> None:
    """Checks that unsigned numbers below 2**64 that count elements fit into 32 bits.

    Raises:
      UnsupportedError: they do not.
    """
    if math.prod(shape) >= _SMALL:
        raise UnsupportedError(
            f"an array {list(shape)} of 64-bit numbers, which JAX holds only in its x64 mode; switch it on with "
            'jax.config.update("jax_enable_x64", True).'
        )
