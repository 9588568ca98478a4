"""Ops that make values: constants and iotas, of which each device makes its own shard."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxmesh.errors import UnsupportedError
from jaxmesh.frontends.mlir.attributes import complex_elements
from jaxmesh.frontends.stablehlo.call import Program
from jaxmesh.frontends.stablehlo.kept_ops import keep_op
from jaxmesh.frontends.stablehlo.reshards import perform, plan
from jaxmesh.frontends.stablehlo.shardings import Sharding, local_shape, replicated
from jaxmesh.frontends.stablehlo.values import Sharded, axis_position

_lax: Any = jax.lax
_SMALL = 2**32


def constant(program: Program, op: Any) -> list[Sharded]:
    """A constant: equal everywhere, or this device's slice of one whose elements differ."""
    (kind,), (sharding,) = program.types_of(op.results), program.result_shardings(op)
    is_complex = kind.dtype.kind == "c"
    value: Any = complex_elements(op, kind) if is_complex else program.read(op.attributes["value"])
    array = np.asarray(value)
    if array.dtype != kind.dtype:
        array = array.astype(kind.dtype)
    if array.ndim == 0 or kind.size <= 1:
        number = array.reshape(-1)[0] if array.size else np.zeros((), kind.dtype)

        def fill(target: Sharding) -> Any:
            return _lax.full(local_shape(kind.shape, target, program.sizes), number, kind.dtype)

        return [Sharded(fill(sharding) if kind.shape else np.asarray(number), sharding, make=fill)]
    x = jnp.asarray(array.reshape(kind.shape))

    def cut(target: Sharding) -> Any:
        moves = plan(replicated(x.ndim), target, kind.shape, program.sizes)
        return perform(x, moves, program.sizes)

    return [Sharded(cut(sharding), sharding, make=cut)]


def iota(program: Program, op: Any) -> list[Sharded]:
    """An iota; along a sharded dim it starts at this device's first element."""
    (kind,), (sharding,) = program.types_of(op.results), program.result_shardings(op)
    dim: int = program.read(op.attributes["iota_dimension"])

    def count(target: Sharding) -> Any:
        local = local_shape(kind.shape, target, program.sizes)
        x = _lax.broadcasted_iota(kind.dtype, local, dim)
        if not target[dim]:
            return x
        first = axis_position(target[dim], program.sizes) * np.int32(local[dim])
        return x + _lax.convert_element_type(first, kind.dtype)

    return [Sharded(count(sharding), sharding, make=count)]


def dimension_size(program: Program, op: Any) -> list[Sharded]:
    """The global size of a dim."""
    dim: int = program.read(op.attributes["dimension"])
    return [Sharded(_lax.full((), op.operands[0].type.shape[dim], np.int32), ())]


def partition_id(program: Program, op: Any) -> list[Sharded]:
    """The row-major number of this device."""
    index = axis_position(tuple(program.sizes), program.sizes)
    return [Sharded(_lax.convert_element_type(index, np.uint32), ())]


def random(program: Program, op: Any) -> list[Sharded]:
    """Numbers of no seed, equally likely between two constants: those of TTIR's op of that meaning."""
    (kind,), distribution = program.types_of(op.results), str(op.attributes["rng_distribution"])
    low, high = (_number(program, v) for v in list(op.operands)[:2])
    if "UNIFORM" not in distribution or low is None or high is None:
        raise UnsupportedError(
            f"random numbers of the distribution {distribution[:60]}; read are UNIFORM ones between two constants."
        )
    attributes = {"size": kind.shape, "low": low, "high": high, "seed": 0}

    def meaning() -> Any:
        numbers = jax.random.uniform(jax.random.key(0), kind.shape, np.float32, low, high)
        return _lax.convert_element_type(numbers, kind.dtype)

    return [
        Sharded(y, replicated(len(kind.shape))) for y in keep_op(program.keeps_ops, "rand", [], attributes, meaning)
    ]


_SAME_NUMBER = frozenset({"stablehlo.convert", "stablehlo.reshape", "stablehlo.broadcast_in_dim"})


def _number(program: Program, value: Any) -> float | None:
    """Returns the one number of a constant; None for any other value."""
    op = value.owner
    while getattr(op, "name", "") in _SAME_NUMBER:
        op = op.operands[0].owner
    if getattr(op, "name", "") not in ("stablehlo.constant", "arith.constant"):
        return None
    elements = np.asarray(program.read(op.attributes["value"])).reshape(-1)
    return float(elements[0]) if elements.size == 1 else None


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
