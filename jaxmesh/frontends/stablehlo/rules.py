"""Shardy's sharding rule of an op: groups the dims of operands and results that are split together, as factors.

An op is computed on shards if each factor is split alike in all operands and results. The rule derives that
splitting from the requested shardings of the results. Factors of results and of batch dims are split as the results,
and reduced factors as the operands. Factors that would need data of neighbours are not split.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from jaxlib.mlir.dialects import sdy

from jaxmesh.frontends.stablehlo.shardings import RULE, Sharding, count, replicated

_sdy: Any = sdy
Rows = tuple[tuple[tuple[int, ...], ...], ...]
"""Per tensor and dim, the factors of the dim, the most significant first."""


@dataclass(frozen=True, slots=True)
class Rule:
    """A sharding rule.

    Attributes:
      sizes: the size of each factor.
      operands: the factors of every operand's dims.
      results: the factors of every result's dims.
      reduced: the factors that the op reduces; splitting them yields partial results.
      local: the factors that cannot be split without communication inside the op.
    """

    sizes: tuple[int, ...]
    operands: Rows
    results: Rows
    reduced: frozenset[int]
    local: frozenset[int]

    def new(self) -> frozenset[int]:
        """Returns the factors of results that no operand has."""
        results, operands = (
            {f for dims in side for factors in dims for f in factors} for side in (self.results, self.operands)
        )
        return frozenset(results - operands)


def read_rule(attribute: Any) -> Rule:
    """Reads a `#sdy.op_sharding_rule`."""
    rule = _sdy.OpShardingRuleAttr(attribute)
    return Rule(
        tuple(rule.factor_sizes),
        _factors_of_dims(rule.operand_mappings),
        _factors_of_dims(rule.result_mappings),
        frozenset(rule.reduction_factors),
        frozenset(rule.permutation_factors) | frozenset(rule.need_replication_factors),
    )


def _factors_of_dims(mappings: Any) -> Rows:
    tensors = [_sdy.TensorMappingAttr(m).dim_mappings for m in mappings]
    return tuple(tuple(tuple(_sdy.DimMappingAttr(d).factor_indices) for d in dims) for dims in tensors)


Factors = dict[int, tuple[str, ...]]
"""The mesh axes that split each factor."""


@dataclass(frozen=True, slots=True)
class Splitting:
    """The shardings of an op on shards: of its operands, and of its results; `partial` lists the axes still to be
    reduced."""

    operands: tuple[Sharding, ...]
    results: tuple[Sharding, ...]
    partial: tuple[str, ...]


def split_op(
    op: Any,
    shapes: tuple[Sequence[tuple[int, ...]], Sequence[tuple[int, ...]]],
    operand_shardings: Sequence[Sharding],
    wanted: Sequence[Sharding],
    sizes: Mapping[str, int],
) -> Splitting:
    """Returns the splitting of an op by its rule; without a rule, its operands and results are whole."""
    if RULE in op.attributes:
        return split(read_rule(op.attributes[RULE]), shapes, operand_shardings, wanted, sizes, reduces=False)
    operands, results = (tuple(replicated(len(s)) for s in side) for side in shapes)
    return Splitting(operands, results, ())


def split(
    rule: Rule,
    shapes: tuple[Sequence[tuple[int, ...]], Sequence[tuple[int, ...]]],
    operand_shardings: Sequence[Sharding],
    wanted: Sequence[Sharding],
    sizes: Mapping[str, int],
    *,
    reduces: bool,
) -> Splitting:
    """Returns the splitting of an op.

    Args:
      rule: the rule of the op.
      shapes: the global shapes of its operands and of its results.
      operand_shardings: the present shardings of the operands.
      wanted: the requested shardings of the results.
      sizes: the axes of the mesh.
      reduces: True if partial results of the op can be reduced afterwards.
    """
    factors: Factors = {}
    for dims, sharding, shape in zip(rule.results, wanted, shapes[1], strict=True):
        _assign(rule, dims, sharding, shape, sizes, factors, skip=rule.local | rule.reduced)
    reduced = rule.reduced if reduces else frozenset[int]()
    inner: Factors = {}
    for dims, sharding, shape in zip(rule.operands, operand_shardings, shapes[0], strict=True):
        _assign(rule, dims, sharding, shape, sizes, inner, skip=frozenset(range(len(rule.sizes))) - reduced)
    taken = {a for axes in factors.values() for a in axes}
    factors.update({f: tuple(a for a in axes if a not in taken) for f, axes in inner.items()})
    every = [*zip(rule.operands, shapes[0], strict=True), *zip(rule.results, shapes[1], strict=True)]
    while any(_trim(rule, dims, shape, factors, sizes) for dims, shape in every):
        pass
    operands = tuple(_sharding(dims, factors) for dims in rule.operands)
    results = tuple(_sharding(dims, factors) for dims in rule.results)
    partial = dict.fromkeys(a for f in sorted(reduced) for a in factors.get(f, ()))
    return Splitting(operands, results, tuple(partial))


def _assign(
    rule: Rule,
    dims: Sequence[tuple[int, ...]],
    sharding: Sharding,
    shape: Sequence[int],
    sizes: Mapping[str, int],
    factors: Factors,
    skip: frozenset[int],
) -> None:
    """Assigns the axes of a tensor's dims to their factors, the first factor of a dim first; the first tensor
    decides."""
    for members, axes, size in zip(dims, sharding, shape, strict=True):
        rest = list(axes)
        product = math.prod(rule.sizes[factor] for factor in members)
        if not product or size % product:
            continue
        for factor in members:
            taken: list[str] = []
            while rest and rule.sizes[factor] % count([*taken, rest[0]], sizes) == 0:
                taken.append(rest.pop(0))
            if taken and factor not in skip and factor not in factors:
                factors[factor] = tuple(taken)
            if count(taken, sizes) != rule.sizes[factor]:
                break


def _trim(
    rule: Rule, dims: Sequence[tuple[int, ...]], shape: Sequence[int], factors: Factors, sizes: Mapping[str, int]
) -> bool:
    """Removes the axes of a factor that a tensor cannot split: after a partly split factor, or with a repeated axis."""
    seen: set[str] = set()
    for members, size in zip(dims, shape, strict=True):
        # A dim of adjacent windows is a multiple of their number.
        product = math.prod(rule.sizes[factor] for factor in members)
        whole = product > 0 and size % product == 0
        for factor in members:
            axes = factors.get(factor, ())
            if axes and (not whole or seen & set(axes)):
                del factors[factor]
                return True
            seen |= set(axes)
            whole = whole and count(axes, sizes) == rule.sizes[factor]
    return False


def _sharding(dims: Sequence[tuple[int, ...]], factors: Factors) -> Sharding:
    return tuple(tuple(a for factor in members for a in factors.get(factor, ())) for members in dims)
