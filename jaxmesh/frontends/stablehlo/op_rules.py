"""Sharding rules of ops that Shardy does not know: CHLO's, batch normalisation, calls that stand for ops of TTIR."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from jaxlib.mlir import ir

from jaxmesh.frontends.mlir.attributes import entries
from jaxmesh.frontends.stablehlo.gspmd import target_of
from jaxmesh.frontends.stablehlo.inline import COMPOSITE, walk
from jaxmesh.frontends.stablehlo.shardings import RULE
from jaxmesh.jaxprs.stablehlo import EQUATION

_ir: Any = ir
Dims = list[tuple[int, ...]]
"""Per dim of a tensor its factors, the most significant first."""


@dataclass
class _Rule:
    """A rule that is being made: the sizes of its factors, those that must not be split, those that the op moves."""

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
        """Returns the rule as Shardy writes it."""
        factors = ", ".join(f"{_letter(i)}={n}" for i, n in enumerate(self.sizes))
        rows = {"need_replication": self.whole, "permutation": self.moved}
        kinds = "".join(f" {kind}={{{', '.join(map(_letter, row))}}}" for kind, row in rows.items() if row)
        kinds += ", custom" if custom else ""
        return f"#sdy.op_sharding_rule<({_side(operands)})->({_side(results)}) {{{factors}}}{kinds}>"


def _letter(i: int) -> str:
    return chr(ord("i") + i) if i < 18 else f"z_{i - 17}"


def _side(tensors: Sequence[Dims]) -> str:
    return ", ".join(f"[{', '.join(''.join(map(_letter, dim)) for dim in dims)}]" for dims in tensors)


def add_rules(main: Any) -> None:
    """Gives ops that Shardy does not know their sharding rules."""
    for op in walk(main):
        make = None if RULE in op.attributes else _maker(op)
        if make is None:
            continue
        rule = _Rule()
        made = make(op, rule)
        if made is not None:
            text = rule.text(*made, custom=op.name == "stablehlo.custom_call")
            op.attributes[RULE] = _ir.Attribute.parse(text, op.context)


_Made = tuple[list[Dims], list[Dims]]
"""The dims of the operands, and of the results."""
_Maker = Callable[[Any, _Rule], _Made | None]


def _maker(op: Any) -> _Maker | None:
    if op.name == "stablehlo.custom_call":
        return CALLS.get(target_of(op))
    if op.name.startswith("stablehlo.batch_norm_"):
        return _batch_norm
    if op.name.startswith("chlo."):
        return _top_k if op.name == "chlo.top_k" else _pointwise
    return None


def _shapes(op: Any) -> tuple[list[tuple[int, ...]], list[tuple[int, ...]]]:
    return [tuple(v.type.shape) for v in op.operands], [tuple(v.type.shape) for v in op.results]


def _pointwise(op: Any, rule: _Rule) -> _Made | None:
    operands, results = _shapes(op)
    if len({*operands, *results}) != 1 or not operands[0]:
        return None
    dims = rule.dims(operands[0])
    return [dims] * len(operands), [dims] * len(results)


def _top_k(op: Any, rule: _Rule) -> _Made:
    """The largest along a dim, the last one by default, of which each device may have a part; see `top_k`."""
    (shape,), results = _shapes(op)
    dim = _attribute(op, "dim", -1) % len(shape)
    dims = rule.dims(shape)
    rule.moved.extend(dims[dim])
    made = [*dims]
    made[dim] = (rule.factor(results[0][dim], whole=True),)
    return [dims], [made] * len(results)


def _batch_norm(op: Any, rule: _Rule) -> _Made:
    """All but the features are reduced, unless mean and variance are given."""
    operands, results = _shapes(op)
    feature, rank = op.attributes["feature_index"].value, len(operands[0])
    reduced = [] if op.name.endswith("inference") else [d for d in range(rank) if d != feature]
    dims = rule.dims(operands[0], reduced)

    def side(shapes: list[tuple[int, ...]]) -> list[Dims]:
        return [dims if len(s) == rank else [dims[feature]] for s in shapes]

    return side(operands), side(results)


# --- calls that stand for ops of TTIR --------------------------------------------------------------------------------


def _attribute(op: Any, name: str, default: int) -> int:
    given = {k: v for where in (COMPOSITE, "mhlo.attributes") for k, v in _rows(op, where)}
    return int(given[name].value) if name in given else default


def _rows(op: Any, where: str) -> Iterator[tuple[str, Any]]:
    return iter(entries(op.attributes[where]) if where in op.attributes else ())


def _attention(op: Any, rule: _Rule) -> _Made | None:
    """Attention: batches and heads are split alike; each head of keys and values has as many of queries."""
    (query, key, value, *masks), (made,) = _shapes(op)
    if len(query) != 4 or len(key) != 4 or query[1] % key[1] or key != value or made != query:
        return None
    batch, heads, shared = rule.factor(query[0]), rule.factor(key[1]), query[1] // key[1]
    rows, size, keys = (rule.factor(n, whole=True) for n in (query[2], query[3], key[2]))
    # Shardy has no factor of size 1 beside another one.
    of_heads = (heads, rule.factor(shared)) if shared > 1 else (heads,)
    of_queries: Dims = [(batch,), of_heads, (rows,), (size,)]
    of_keys: Dims = [(batch,), (heads,), (keys,), (size,)]
    of_mask: Dims = [(batch,), of_heads, (rows,), (keys,)]
    whole = query[0], query[1], query[2], key[2]
    if any(len(m) != 4 or any(n not in (1, w) for n, w in zip(m, whole, strict=True)) for m in masks):
        return None
    of_masks: list[Dims] = [
        [d if n == w else (rule.factor(1),) for n, w, d in zip(m, whole, of_mask, strict=True)] for m in masks
    ]
    return [of_queries, of_keys, of_keys, *of_masks], [of_queries]


def _gather(op: Any, rule: _Rule) -> _Made | None:
    """A gather along a dim: each index reads all of that dim."""
    (shape, index), (made,) = _shapes(op)
    dim = _attribute(op, "dim", 0) % len(shape)
    same = [d for d, (n, m) in enumerate(zip(shape, index, strict=True)) if d != dim and n == m]
    dims = rule.dims(shape, [d for d in range(len(shape)) if d not in same])
    of_index: Dims = [dims[d] if d in same else (rule.factor(n, whole=d != dim),) for d, n in enumerate(index)]
    return ([dims, of_index], [of_index]) if made == index else None


def _norm(op: Any, rule: _Rule) -> _Made | None:
    """A normalisation along the last dims, which those of its scale and offset are."""
    (shape, *rest), (made,) = _shapes(op)
    if made != shape or not rest or any(r != shape[len(shape) - len(r) :] for r in rest):
        return None
    last = range(len(shape) - len(rest[0]), len(shape))
    dims = rule.dims(shape, last)
    return [dims, *[[dims[d] for d in last]] * len(rest)], [dims]


def _matrices(op: Any, rule: _Rule) -> _Made | None:
    """Whole matrices, and what is made of each: the dims before those of a matrix are a batch."""
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
"""The rules of custom calls, and of composites that are kept as such."""
