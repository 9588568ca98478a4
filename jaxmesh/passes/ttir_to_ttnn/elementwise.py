"""Patterns of elementwise ops that TTNN lacks, or whose integers and truth values the real library refuses.

Those of integers are exact. tt-mlir converts such operands to float32, which holds integers up to 2^24 only
(createReductionOpOperandsWorkarounds, binaryOpDTypeWorkaround and others in
lib/Dialect/TTNN/IR/TTNNWorkaroundsPass.cpp at 19c86fca).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache

import numpy as np

from jaxmesh.dialects.program import Value
from jaxmesh.jaxprs.untyped import DType
from jaxmesh.passes.flat_builder import Rules
from jaxmesh.passes.ttir_to_ttnn.builder import BOOL, INDEX, Ops, Pattern, Site, iinfo, is_integer
from jaxmesh.passes.ttir_to_ttnn.shapes import carry_over

PATTERNS: Rules[Pattern] = Rules()
Extend = Callable[[Ops, Value], Value]
"""Converts a narrow integer to int32."""

_UINT32 = np.dtype(np.uint32)


@lru_cache(256)
def is_narrow(dtype: DType) -> bool:
    """Returns True for integers of less than 32 bits, which the real library hardly computes with."""
    return is_integer(dtype) and int(iinfo(dtype).bits) < np.iinfo(INDEX).bits


def narrow(o: Ops, x: Value, dtype: DType) -> Value:
    """Converts int32 to a narrow type modulo its size, whatever a typecast does with numbers out of range."""
    info = iinfo(dtype)
    low, size = int(info.min), int(info.max) - int(info.min) + 1
    if low:
        x = o.binary("subtract", x, o.full((), low, INDEX))
    x = o.binary("bitwise_and", x, o.full((), size - 1, INDEX))
    if low:
        x = o.binary("add", x, o.full((), low, INDEX))
    return o.cast(x, dtype)


def _zero_extended(o: Ops, x: Value) -> Value:
    """Converts to int32 the bits of a narrow integer."""
    bits = int(iinfo(o.dtype(x)).bits)
    return o.binary("bitwise_and", o.cast(x, INDEX), o.full((), 2**bits - 1, INDEX))


def _in_int32(o: Ops, site: Site, pattern: Pattern, extend: Extend = lambda o, x: o.cast(x, INDEX)) -> Value:
    """Computes an op of narrow integers in int32, and keeps the lower bits."""
    wide = tuple([None if v is None else extend(o, v) for v in site.operands])
    results = tuple(replace(t, dtype=INDEX) for t in site.results)
    made = pattern(o, replace(site, operands=wide, results=results))
    (value,) = (made,) if isinstance(made, int) else made
    return narrow(o, value, site.result.dtype)


def widening(pattern: Pattern, *extend: Extend) -> Pattern:
    """Returns a pattern that computes narrow integers in int32."""

    def wide(o: Ops, site: Site) -> Value | Sequence[Value]:
        return _in_int32(o, site, pattern, *extend) if is_narrow(site.result.dtype) else pattern(o, site)

    return wide


PATTERNS.update({name: widening(carry_over) for name in (
    "add", "subtract", "multiply", "abs", "bitwise_and", "bitwise_or", "bitwise_xor", "bitwise_not", "sum",
    "cumsum", "logical_left_shift",
)})  # fmt: skip
PATTERNS["logical_right_shift"] = widening(carry_over, _zero_extended)


# --- one and two operands --------------------------------------------------------------------------------------------


def _kind(dtype: DType) -> str:
    return dtype.kind if dtype.name in ("int32", "uint32", "int64", "uint64") else ""


@PATTERNS.add("neg")
@widening
def _neg(o: Ops, site: Site) -> Value | Sequence[Value]:
    shape, dtype = site.result.shape, site.result.dtype
    return o.op("subtract", [o.full((), 0, dtype), site.x], shape, dtype) if dtype.kind == "u" else carry_over(o, site)


@PATTERNS.add("sign")
@widening
def _sign(o: Ops, site: Site) -> Value | Sequence[Value]:
    x, result = site.x, site.result
    kind = _kind(result.dtype)
    if not kind:
        return carry_over(o, site)
    zero = o.full((), 0, result.dtype)
    above = o.op("gt", [x, zero], result.shape, result.dtype)
    return above if kind == "u" else o.binary("subtract", above, o.op("lt", [x, zero], result.shape, result.dtype))


@PATTERNS.add("div", "divide")
@widening
def _div(o: Ops, site: Site) -> Value | Sequence[Value]:
    (a, b), result = site.xs, site.result
    if result.dtype == INDEX:
        return _quotient(o, a, b)
    if result.dtype == _UINT32:
        return _unsigned_quotient(o, a, b)
    return o.op("divide", [a, b], result.shape, result.dtype)


@PATTERNS.add("remainder")
def _remainder(o: Ops, site: Site) -> Value | Sequence[Value]:
    """Computes a remainder with the sign of the dividend; `ttnn.remainder` has the sign of the divisor."""
    (a, b), dtype = site.xs, site.result.dtype
    if is_narrow(dtype):
        return _in_int32(o, site, carry_over if dtype.kind == "u" else _remainder)
    if dtype.kind == "u":
        return carry_over(o, site)
    if dtype.kind == "i":
        return o.binary("subtract", a, o.binary("multiply", _quotient(o, a, b), b))
    first, second = (o.op("abs", [x], o.shape(x), dtype) for x in (a, b))
    return o.binary("multiply", o.binary("remainder", first, second), o.op("sign", [a], o.shape(a), dtype))


def _quotient(o: Ops, a: Value, b: Value) -> Value:
    """Returns the quotient of signed numbers, rounding toward zero."""
    shape = np.broadcast_shapes(o.shape(a), o.shape(b))
    return o.op("divide", [a, b], shape, o.dtype(a), rounding_mode="trunc")


def _unsigned_quotient(o: Ops, a: Value, b: Value) -> Value:
    """Computes a quotient from the signed quotient of half the dividend, which is at most one too small once doubled.

    A divisor of 2^31 or more goes into the dividend once or not at all.
    """
    one = o.full((), 1, _UINT32)
    half = o.cast(o.binary("logical_right_shift", a, one), INDEX)
    signed = o.cast(b, INDEX)
    quotient = o.cast(_quotient(o, half, signed), _UINT32)
    doubled = o.binary("logical_left_shift", quotient, one)
    rest = o.binary("subtract", a, o.binary("multiply", doubled, b))
    small = o.binary("add", doubled, o.binary("ge", rest, b, _UINT32))
    negative = o.binary("lt", signed, o.full((), 0, INDEX), BOOL)
    once = o.binary("ge", a, b, _UINT32)
    return o.op("where", [negative, once, small], o.shape(small), _UINT32)


@PATTERNS.add("floor", "ceil", "round")
def _round_divide(o: Ops, site: Site) -> Value | Sequence[Value]:
    return site.x if site.result.dtype.kind in "iub" else carry_over(o, site)


@PATTERNS.add("typecast")
def _typecast(o: Ops, site: Site) -> Value | Sequence[Value]:
    """Stores a truth value as 0 or 1, which a conversion of another number is not."""
    x, result = site.x, site.result
    source = o.dtype(x)
    if result.dtype == BOOL and source != BOOL:
        return o.op("ne", [x, o.full((), 0, source)], result.shape, BOOL)
    if is_narrow(result.dtype) and is_integer(source) and source.itemsize >= result.dtype.itemsize:
        return x if source == result.dtype else narrow(o, o.cast(x, INDEX), result.dtype)
    return carry_over(o, site)


# --- products --------------------------------------------------------------------------------------------------------


_PRODUCTS = 2**22
"""The most products of a matrix product that are held at once."""


def matrix_product(o: Ops, a: Value, b: Value, dtype: DType) -> Value:
    """Returns the product of (batch, m, k) and (batch, k, n) in an element type; of integers and truth values, too."""
    (batch, rows, depth), columns = o.shape(a), o.shape(b)[-1]
    shape = (batch, rows, columns)
    if dtype == BOOL:
        wide = o.op("matmul", [o.cast(a, np.float32), o.cast(b, np.float32)], shape, np.float32)
        return o.op("ne", [wide, o.full((), 0, np.float32)], shape, BOOL)
    if is_narrow(dtype):
        return narrow(o, matrix_product(o, a, b, INDEX), dtype)
    if not _kind(dtype):
        return o.op("matmul", [a, b], shape, dtype)
    if not depth * math.prod(shape):
        return o.zeros(shape, dtype)
    a, b = o.cast(a, dtype), o.cast(b, dtype)
    step = max(_PRODUCTS // math.prod(shape), 1)
    total: Value | None = None
    for begin in range(0, depth, step):
        end = min(begin + step, depth)
        left = o.reshape(o.piece(a, 2, begin, end), (batch, rows, end - begin, 1))
        right = o.reshape(o.piece(b, 1, begin, end), (batch, 1, end - begin, columns))
        part = o.reduce("sum", o.binary("multiply", left, right), [2])
        total = part if total is None else o.binary("add", total, part)
    assert total is not None
    return total


@PATTERNS.add("prod")
@widening
def _prod(o: Ops, site: Site) -> Value:
    x, result = site.x, site.result
    for dim in site.dims(len(o.shape(x))):
        x = product_along(o, x, dim)
    return o.reshape(x, result.shape)


def product_along(o: Ops, x: Value, dim: int) -> Value:
    """Computes the product along a dim, which is kept; integers by halves."""
    shape = o.shape(x)
    size = shape[dim]
    reduced = [1 if d == dim else n for d, n in enumerate(shape)]
    if not math.prod(shape):
        return o.full(reduced, 1, o.dtype(x))
    if not _kind(o.dtype(x)):
        # A vector is reduced as a row.
        row = o.reshape(x, (1, *shape)) if len(shape) == 1 else x
        at = dim + len(o.shape(row)) - len(shape)
        made = [1 if d == at else n for d, n in enumerate(o.shape(row))]
        return o.reshape(o.op("prod", [row], made, o.dtype(x), dim_arg=at, keep_dim=True), reduced)
    while size > 1:
        half = size // 2
        joined = o.binary("multiply", o.piece(x, dim, 0, half), o.piece(x, dim, half, 2 * half))
        x = o.concat([joined, o.piece(x, dim, size - 1, size)], dim) if size % 2 else joined
        size = half + size % 2
    return x


# --- order -----------------------------------------------------------------------------------------------------------


_LONGEST = 2**10
_COMPARED = 2**24
"""The most comparisons by which integers are sorted; the real library sorts floats."""


@PATTERNS.add("sort", "topk")
def _sort(o: Ops, site: Site) -> Sequence[Value]:
    values, order = site.results
    shape = o.shape(site.x)
    dim: int = site["dim"] % max(len(shape), 1)
    wide = o.cast(site.x, INDEX) if values.dtype.name in ("int8", "uint8") else site.x
    short = bool(shape) and shape[dim] <= _LONGEST and math.prod(shape) * shape[dim] <= _COMPARED
    if not _kind(o.dtype(wide)) or not short or not math.prod(shape):
        kinds = [o.tensor_type(values.shape, values.dtype), o.tensor_type(order.shape, INDEX)]
        ordered, indices = o.emit(site.name, [site.x], kinds, site.shared_attributes(site.name))
        return ordered, o.cast(indices, order.dtype)
    descending = site["largest"] if site.name == "topk" else site["descending"]
    ordered, indices = _rank_pairs(o, wide, dim, descending)
    if site.name == "topk":
        ordered, indices = (o.piece(v, dim, 0, site["k"]) for v in (ordered, indices))
    return o.cast(ordered, values.dtype), o.cast(indices, order.dtype)


def _rank_pairs(o: Ops, x: Value, dim: int, descending: bool) -> tuple[Value, Value]:
    """Sorts integers by the number of elements that come before each one; equal ones keep their order."""
    shape = o.shape(x)
    order = [*(d for d in range(len(shape)) if d != dim), dim]
    moved = o.permute(x, order)
    size = shape[dim]
    rows = o.reshape(moved, (math.prod(shape) // size, size))
    count = o.shape(rows)[0]
    here, there = o.reshape(rows, (count, size, 1)), o.reshape(rows, (count, 1, size))
    square = (count, size, size)
    before = o.op("gt" if descending else "lt", [there, here], square, INDEX)
    earlier = o.constant(np.tri(size, size, -1, np.int32).reshape(1, size, size))
    equal = o.binary("multiply", o.op("eq", [there, here], square, INDEX), earlier)
    rank = o.reduce("sum", o.binary("add", before, equal), [2])
    places = o.repeat(o.constant(np.arange(size, dtype=np.int32).reshape(1, size)), (count, 1))
    sorted_rows = [
        o.op("scatter", [o.zeros((count, size), o.dtype(v)), rank, v], (count, size), o.dtype(v), dim=1)
        for v in (rows, places)
    ]
    back = [order.index(d) for d in range(len(shape))]
    values, indices = (o.permute(o.reshape(v, o.shape(moved)), back) for v in sorted_rows)
    return values, indices


@PATTERNS.add("argmax")
def _argmax(o: Ops, site: Site) -> Value:
    x, result, shape = site.x, site.result, o.shape(site.x)
    dims = site.dims(len(shape))
    dim = dims[0] if len(dims) == 1 else None
    if dim is None or dim == len(shape) - 1 or o.dtype(x).kind not in "iu":
        found = o.op("argmax", [x], result.shape, INDEX, dim=dim, keep_dim=site["keep_dim"])
        return o.cast(found, result.dtype)
    # Integers are taken along the last dim only.
    others = [d for d in range(len(shape)) if d != dim]
    moved = o.permute(x, [*others, dim])
    found = o.op("argmax", [moved], [shape[d] for d in others], INDEX, dim=len(others), keep_dim=False)
    return o.cast(o.reshape(found, result.shape), result.dtype)


def _with_number(o: Ops, name: str, x: Value, number: float) -> Value:
    return o.same(name, [x, o.full((), number, o.dtype(x))])


@PATTERNS.add("exp2")
def _exp2(o: Ops, site: Site) -> Value:
    # As JAX computes it.
    return o.same("exp", [_with_number(o, "multiply", site.x, math.log(2))])


@PATTERNS.add("trunc")
def _trunc(o: Ops, site: Site) -> Value:
    x = site.x
    if is_integer(o.dtype(x)):
        return x
    return o.same("multiply", [o.same("floor", [o.same("abs", [x])]), o.same("sign", [x])])


@PATTERNS.add("softsign")
def _softsign(o: Ops, site: Site) -> Value:
    x = site.x
    return o.same("divide", [x, _with_number(o, "add", o.same("abs", [x]), 1)])


@PATTERNS.add("selu")
def _selu(o: Ops, site: Site) -> Value:
    x = site.x
    positive = o.op("gt", [x, o.full((), 0, o.dtype(x))], o.shape(x), BOOL)
    below = _with_number(o, "multiply", o.same("expm1", [x]), site["alpha"])
    chosen = o.op("where", [positive, x, below], o.shape(x), o.dtype(x))
    return _with_number(o, "multiply", chosen, site["scale"])
