"""Ops that create values: constants and iotas; each device creates its shard."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxmesh.errors import UnsupportedError
from jaxmesh.frontends.mlir.attributes import complex_elements
from jaxmesh.frontends.stablehlo.call import ImportContext, keep_op
from jaxmesh.frontends.stablehlo.reshards import perform, plan
from jaxmesh.frontends.stablehlo.shardings import Sharding, local_shape, replicated
from jaxmesh.frontends.stablehlo.values import Sharded, axis_position

_lax: Any = jax.lax
_SMALL = 2**32


def constant(program: ImportContext, op: Any) -> list[Sharded]:
    """Imports a constant: equal on every device, or this device's slice of the elements."""
    (value_type,), (sharding,) = program.types_of(op.results), program.result_shardings(op)
    is_complex = value_type.dtype.kind == "c"
    value: Any = complex_elements(op, value_type) if is_complex else program.read(op.attributes["value"])
    array = np.asarray(value)
    if array.dtype != value_type.dtype:
        array = array.astype(value_type.dtype)
    if array.ndim == 0 or value_type.size <= 1:
        number = array.reshape(-1)[0] if array.size else np.zeros((), value_type.dtype)

        def fill(target: Sharding) -> Any:
            return _lax.full(local_shape(value_type.shape, target, program.sizes), number, value_type.dtype)

        return [Sharded(fill(sharding) if value_type.shape else np.asarray(number), sharding, make=fill)]
    x = jnp.asarray(array.reshape(value_type.shape))

    def cut(target: Sharding) -> Any:
        moves = plan(replicated(x.ndim), target, value_type.shape, program.sizes)
        return perform(x, moves, program.sizes)

    return [Sharded(cut(sharding), sharding, make=cut)]


def iota(program: ImportContext, op: Any) -> list[Sharded]:
    """Imports an iota; along a sharded dim it starts at this device's first element."""
    (value_type,), (sharding,) = program.types_of(op.results), program.result_shardings(op)
    dim: int = program.read(op.attributes["iota_dimension"])

    def count(target: Sharding) -> Any:
        local = local_shape(value_type.shape, target, program.sizes)
        x = _lax.broadcasted_iota(value_type.dtype, local, dim)
        if not target[dim]:
            return x
        first = axis_position(target[dim], program.sizes) * np.int32(local[dim])
        return x + _lax.convert_element_type(first, value_type.dtype)

    return [Sharded(count(sharding), sharding, make=count)]


def dimension_size(program: ImportContext, op: Any) -> list[Sharded]:
    """Imports the global size of a dim."""
    dim: int = program.read(op.attributes["dimension"])
    return [Sharded(_lax.full((), op.operands[0].type.shape[dim], np.int32), ())]


def partition_id(program: ImportContext, op: Any) -> list[Sharded]:
    """Imports the row-major number of this device."""
    index = axis_position(tuple(program.sizes), program.sizes)
    return [Sharded(_lax.convert_element_type(index, np.uint32), ())]


def random(program: ImportContext, op: Any) -> list[Sharded]:
    """Imports unseeded random numbers, uniform between two constants, as TTIR's op `rand`."""
    (value_type,), distribution = program.types_of(op.results), str(op.attributes["rng_distribution"])
    low, high = (_number(program, v) for v in list(op.operands)[:2])
    if "UNIFORM" not in distribution or low is None or high is None:
        raise UnsupportedError(
            f"random numbers of the distribution {distribution[:60]}; supported are UNIFORM numbers between constants."
        )
    attributes = {"size": value_type.shape, "low": low, "high": high, "seed": 0}

    def meaning() -> Any:
        numbers = jax.random.uniform(jax.random.key(0), value_type.shape, np.float32, low, high)
        return _lax.convert_element_type(numbers, value_type.dtype)

    results = keep_op(program.keeps_ops, "rand", [], attributes, meaning)
    return [Sharded(y, replicated(len(value_type.shape))) for y in results]


_SAME_NUMBER = frozenset({"stablehlo.convert", "stablehlo.reshape", "stablehlo.broadcast_in_dim"})


def _number(program: ImportContext, value: Any) -> float | None:
    """Returns the single number of a constant; None for any other value."""
    op = value.owner
    while getattr(op, "name", "") in _SAME_NUMBER:
        op = op.operands[0].owner
    if getattr(op, "name", "") not in ("stablehlo.constant", "arith.constant"):
        return None
    elements = np.asarray(program.read(op.attributes["value"])).reshape(-1)
    return float(elements[0]) if elements.size == 1 else None


def check_wide(shape: tuple[int, ...]) -> None:
    """Checks that the element count of an array fits into 32 bits, for 64-bit counts.

    Raises:
      UnsupportedError: the count does not fit.
    """
    if math.prod(shape) >= _SMALL:
        raise UnsupportedError(
            f"an array {list(shape)} of 64-bit numbers, which JAX supports only in its x64 mode; enable it with "
            'jax.config.update("jax_enable_x64", True).'
        )
