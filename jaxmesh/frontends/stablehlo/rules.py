"""Shardy's sharding rule of an op: groups the dims of operands and results that are split together, as factors.

An op is computed on shards if each factor is split alike in all operands and results. The rule derives that
splitting from the requested shardings of the results. Factors of results and of batch dims are split as the results,
and reduced factors as the operands. Factors that would need data of neighbours are not split.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import sdy

from jaxmesh.frontends.mlir.attributes import nested
from jaxmesh.frontends.stablehlo.gspmd import COMPOSITE, target_of
from jaxmesh.frontends.stablehlo.shardings import RULE, Sharding, count, replicated
from jaxmesh.jaxprs.stablehlo import EQUATION

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


def read_rule(attribute: ir.Attribute) -> Rule:
    """Reads a `#sdy.op_sharding_rule`."""
    rule = sdy.OpShardingRuleAttr(attribute)
    return Rule(
        tuple(rule.factor_sizes),
        _factors_of_dims(rule.operand_mappings),
        _factors_of_dims(rule.result_mappings),
        frozenset(rule.reduction_factors),
        frozenset(rule.permutation_factors) | frozenset(rule.need_replication_factors),
    )


def _factors_of_dims(mappings: Sequence[ir.Attribute]) -> Rows:
    tensors = [sdy.TensorMappingAttr(m).dim_mappings for m in mappings]
    return tuple(tuple(tuple(sdy.DimMappingAttr(d).factor_indices) for d in dims) for dims in tensors)


Shapes = tuple[Sequence[tuple[int, ...]], Sequence[tuple[int, ...]]]
"""The global shapes of an op's operands, and of its results."""
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
    op: ir.Operation,
    shapes: Shapes,
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
    shapes: Shapes,
    operand_shardings: Sequence[Sharding],
    wanted: Sequence[Sharding],
    sizes: Mapping[str, int],
    *,
    reduces: bool,
) -> Splitting:
    """Returns the splitting of an op by its rule, from the global shapes of its operands and of its results.

    `wanted` are the requested shardings of the results. If it `reduces`, partial results can be reduced afterwards.
    """
    factors: Factors = {}
    for dims, sharding, shape in zip(rule.results, wanted, shapes[1], strict=True):
        _assign(rule, dims, sharding, shape, sizes, factors, skip=rule.local | rule.reduced)
    reduced = rule.reduced if reduces else frozenset[int]()
    if reduced:
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
        if not axes:
            continue
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
        if factors.keys().isdisjoint(members):
            continue
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


# --- rules of ops unknown to Shardy -----------------------------------------------------------------------------------

Dims = list[tuple[int, ...]]
"""The factors of each dim of a tensor, the most significant first."""


@dataclass
class _RuleDraft:
    """A rule under construction: the sizes of its factors, the factors that must stay whole, and the factors the op
    moves."""

    sizes: list[int] = field(default_factory=list[int])
    whole: list[int] = field(default_factory=list[int])
    moved: list[int] = field(default_factory=list[int])

    def factor(self, size: int, *, whole: bool = False) -> int:
        """Returns a new factor; `whole` if it must not be split."""
        self.sizes.append(size)
        if whole:
            self.whole.append(len(self.sizes) - 1)
        return len(self.sizes) - 1

    def dims(self, shape: Sequence[int], whole: Sequence[int] = ()) -> Dims:
        """Returns a new factor for each dim."""
        return [(self.factor(n, whole=d in whole),) for d, n in enumerate(shape)]

    def text(self, operands: Sequence[Dims], results: Sequence[Dims], *, custom: bool) -> str:
        """Returns the rule in Shardy's syntax."""
        factors = ", ".join(f"{_letter(i)}={n}" for i, n in enumerate(self.sizes))
        lists = {"need_replication": self.whole, "permutation": self.moved}
        traits = "".join(f" {name}={{{', '.join(map(_letter, fs))}}}" for name, fs in lists.items() if fs)
        traits += ", custom" if custom else ""
        return f"#sdy.op_sharding_rule<({_side(operands)})->({_side(results)}) {{{factors}}}{traits}>"


def _letter(i: int) -> str:
    return chr(ord("i") + i) if i < 18 else f"z_{i - 17}"


def _side(tensors: Sequence[Dims]) -> str:
    return ", ".join(f"[{', '.join(''.join(map(_letter, dim)) for dim in dims)}]" for dims in tensors)


def add_rules(ops: Sequence[ir.Operation]) -> None:
    """Adds sharding rules to ops that Shardy does not know."""
    for op in ops:
        make = _maker(op)
        if make is None or RULE in op.attributes:
            continue
        rule = _RuleDraft()
        dims = make(op, rule)
        if dims is not None:
            text = rule.text(*dims, custom=op.name == "stablehlo.custom_call")
            op.attributes[RULE] = ir.Attribute.parse(text, op.context)


_RuleDims = tuple[list[Dims], list[Dims]]
"""The dims of the operands, and of the results."""
_Maker = Callable[[ir.Operation, _RuleDraft], _RuleDims | None]


def _maker(op: ir.Operation) -> _Maker | None:
    name = op.name
    if name == "stablehlo.custom_call":
        return CALLS.get(target_of(op))
    if name.startswith("stablehlo.batch_norm_"):
        return _batch_norm
    if name.startswith("chlo."):
        return _top_k if name == "chlo.top_k" else _pointwise
    return None


def _shapes(op: ir.Operation) -> tuple[list[tuple[int, ...]], list[tuple[int, ...]]]:
    return [tuple(v.type.shape) for v in op.operands], [tuple(v.type.shape) for v in op.results]


def _pointwise(op: ir.Operation, rule: _RuleDraft) -> _RuleDims | None:
    operands, results = _shapes(op)
    if len({*operands, *results}) != 1 or not operands[0]:
        return None
    dims = rule.dims(operands[0])
    return [dims] * len(operands), [dims] * len(results)


def _top_k(op: ir.Operation, rule: _RuleDraft) -> _RuleDims:
    """Returns the rule of a top-k along a dim, by default the last, which may be sharded; see `split_top_k`."""
    (shape,), results = _shapes(op)
    dim = _attribute(op, "dim", -1) % len(shape)
    dims = rule.dims(shape)
    rule.moved.extend(dims[dim])
    result_dims = [*dims]
    result_dims[dim] = (rule.factor(results[0][dim], whole=True),)
    return [dims], [result_dims] * len(results)


def _batch_norm(op: ir.Operation, rule: _RuleDraft) -> _RuleDims:
    """Returns the rule of a batch normalisation, which reduces all dims but the features unless mean and variance
    are operands."""
    operands, results = _shapes(op)
    feature, rank = op.attributes["feature_index"].value, len(operands[0])
    reduced = [] if op.name.endswith("inference") else [d for d in range(rank) if d != feature]
    dims = rule.dims(operands[0], reduced)

    def side(shapes: list[tuple[int, ...]]) -> list[Dims]:
        return [dims if len(s) == rank else [dims[feature]] for s in shapes]

    return side(operands), side(results)


# --- calls that stand for ops of TTIR --------------------------------------------------------------------------------


def _attribute(op: ir.Operation, name: str, default: int) -> int:
    written = {k: v for where in (COMPOSITE, "mhlo.attributes") for k, v in nested(op, where).items()}
    return int(written[name].value) if name in written else default


def _attention(op: ir.Operation, rule: _RuleDraft) -> _RuleDims | None:
    """Returns the rule of attention: batches and heads are split alike; each key-value head serves equally many
    query heads."""
    (query, key, value, *masks), (result,) = _shapes(op)
    if len(query) != 4 or len(key) != 4 or query[1] % key[1] or key != value or result != query:
        return None
    batch, heads, shared = rule.factor(query[0]), rule.factor(key[1]), query[1] // key[1]
    queries, size, keys = (rule.factor(n, whole=True) for n in (query[2], query[3], key[2]))
    # Shardy does not allow a factor of size 1 beside another factor.
    of_heads = (heads, rule.factor(shared)) if shared > 1 else (heads,)
    of_queries: Dims = [(batch,), of_heads, (queries,), (size,)]
    of_keys: Dims = [(batch,), (heads,), (keys,), (size,)]
    of_mask: Dims = [(batch,), of_heads, (queries,), (keys,)]
    whole = query[0], query[1], query[2], key[2]
    if any(len(m) != 4 or any(n not in (1, w) for n, w in zip(m, whole, strict=True)) for m in masks):
        return None
    of_masks: list[Dims] = [
        [d if n == w else (rule.factor(1),) for n, w, d in zip(m, whole, of_mask, strict=True)] for m in masks
    ]
    return [of_queries, of_keys, of_keys, *of_masks], [of_queries]


def _gather(op: ir.Operation, rule: _RuleDraft) -> _RuleDims | None:
    """Returns the rule of a gather along a dim: each index reads all of that dim."""
    (shape, index), (result,) = _shapes(op)
    dim = _attribute(op, "dim", 0) % len(shape)
    same = [d for d, (n, m) in enumerate(zip(shape, index, strict=True)) if d != dim and n == m]
    dims = rule.dims(shape, [d for d in range(len(shape)) if d not in same])
    of_index: Dims = [dims[d] if d in same else (rule.factor(n, whole=d != dim),) for d, n in enumerate(index)]
    return ([dims, of_index], [of_index]) if result == index else None


def _norm(op: ir.Operation, rule: _RuleDraft) -> _RuleDims | None:
    """Returns the rule of a normalisation along the last dims, which scale and offset share."""
    (shape, *rest), (result,) = _shapes(op)
    if result != shape or not rest or any(r != shape[len(shape) - len(r) :] for r in rest):
        return None
    last = range(len(shape) - len(rest[0]), len(shape))
    dims = rule.dims(shape, last)
    return [dims, *[[dims[d] for d in last]] * len(rest)], [dims]


def _matrices(op: ir.Operation, rule: _RuleDraft) -> _RuleDims | None:
    """Returns the rule of ops on whole matrices: the leading dims are a batch, the last two are not split."""
    operands, results = _shapes(op)
    batch = len(operands[0]) - 2
    if not results or batch < 0:
        return None
    of_batch = rule.dims(operands[0][:batch])

    def side(shapes: list[tuple[int, ...]]) -> list[Dims]:
        return [[*of_batch, *rule.dims(s[batch:], range(len(s) - batch))] for s in shapes]

    return side(operands), side(results)


CALLS: dict[str, _Maker] = {
    EQUATION: _matrices,
    "tt.scaled_dot_product_attention": _attention,
    "tenstorrent.gather_dim": _gather,
    "tenstorrent.rms_norm": _norm,
    "tenstorrent.layer_norm": _norm,
    **dict.fromkeys(("tenstorrent.topk", "tenstorrent.topk_values", "tenstorrent.topk_indices"), _top_k),
    "mhlo.topk": _top_k,
}
"""The rules of custom calls, including composites that are kept as custom calls."""
