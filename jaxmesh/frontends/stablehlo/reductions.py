"""Reductions, matrix products, sorts, and the largest values."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping, Sequence

import jax
import numpy as np
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo as hlo

from jaxmesh.dialects.varying import vary_alike
from jaxmesh.errors import UnsupportedError
from jaxmesh.frontends.mlir.attributes import Array, Types, complex_elements
from jaxmesh.frontends.mlir.module import producer
from jaxmesh.frontends.stablehlo.call import (
    ImportContext,
    OpFamily,
    ShardedCall,
    Whole,
    as_list,
    enum_of,
    keep_op,
    sums,
)
from jaxmesh.frontends.stablehlo.shardings import axes_of, count
from jaxmesh.frontends.stablehlo.values import COMBINE, COMBINE_DIMS, Sharded, all_gather, axis_position
from jaxmesh.jaxprs.untyped import DType, jnp, lax

OPS = OpFamily()
OfOperands = tuple[tuple[int, ...], tuple[int, ...]]
"""Dims of the left and of the right operand."""
_KINDS = {"add": "sum", "maximum": "max", "minimum": "min", "multiply": "prod", "and": "and", "or": "or"}
"""The kinds of reductions, by the op of their body."""


def body_ops(op: ir.Operation, region: int = 0) -> list[ir.Operation]:
    """Returns the operations of a region of scalars without its return, its constants and Shardy's ops."""
    inner = [o.operation for o in op.regions[region].blocks[0].operations][:-1]
    return [o for o in inner if o.name != "stablehlo.constant" and not o.name.startswith("sdy.")]


def returned(op: ir.Operation, region: int = 0) -> list[ir.Value]:
    """Returns the values that a region returns, looking through Shardy's ops."""
    return _operands(op.regions[region].blocks[0].operations[-1])


def look_through(value: ir.Value) -> ir.Value:
    """Returns the value that Shardy's ops pass on."""
    while (op := producer(value)) is not None and op.name.startswith("sdy.") and op.operands:
        value = op.operands[0]
    return value


def _operands(op: ir.Operation) -> list[ir.Value]:
    return [look_through(v) for v in op.operands]


def kind_of(op: ir.Operation, region: int = 0) -> str | None:
    """Returns the kind of a reduction with a body of one op on its two arguments; None for any other body."""
    block = op.regions[region].blocks[0]
    inner = body_ops(op, region)
    last = inner[-1:]
    if len(inner) == 2 and _is_truth(inner[1], inner[0]):
        inner.pop()
    if len(inner) != 1 or len(block.arguments) != 2 or returned(op, region) != list(last[0].results):
        return None
    kind = _KINDS.get(inner[0].name.removeprefix("stablehlo."))
    same = set(_operands(inner[0])) == set(block.arguments)
    is_bool = str(block.arguments[0].type.element_type) == "i1"
    if not same or kind is None:
        return None
    if kind in ("and", "or"):
        return kind
    return {"sum": "or", "max": "or", "min": "and", "prod": "and"}[kind] if is_bool else kind


def _is_truth(op: ir.Operation, test: ir.Operation) -> bool:
    """Returns True if an op selects True if a test holds, and False otherwise."""
    if op.name != "stablehlo.select" or op.operands[0].owner != test:
        return False
    yes, no = map(constant_of, op.operands[1:])
    return yes is not None and no is not None and (yes.item(), no.item()) == (True, False)


@OPS.add("stablehlo.reduce", lambda op: kind_of(op) if len(op.results) == 1 else None)
def _reduce(call: ShardedCall) -> jax.Array | list[jax.Array]:
    count = len(call.operands) // 2
    xs, starts = call.operands[:count], call.operands[count:]
    dims = tuple(call["dimensions"])
    kind = kind_of(call.op) if count == 1 else None
    if kind is not None:
        # The start is added once, not by every device: it is the identity in all reductions from JAX.
        return _with_start(COMBINE_DIMS[kind](xs[0], dims), starts[0], kind, call)
    if (extreme := extreme_of(call.op)) is not None:
        return _extreme_of_parts(call, extreme, dims[0])
    run = call.program.body(call.op.regions[0])

    def combine(left: jax.Array, right: jax.Array) -> tuple[jax.Array, ...]:
        return tuple(run(*as_list(left), *as_list(right)))

    operands = vary_alike(*call.operands)
    return list(lax.reduce(tuple(operands[:count]), tuple(operands[count:]), combine, dims))


def _with_start(x: jax.Array, start: jax.Array, kind: str, call: ShardedCall) -> jax.Array:
    value = constant_of(call.op.operands[1])
    if value is not None and is_identity(value, kind, x.dtype):
        return x
    dims: Sequence[int] = call["dimensions"]
    axes = [a for d in dims for a in call.shardings[0][d]]
    if kind in _COUNTED and axes:
        # Each device would count the start; all but the first begin at the identity.
        first = lax.eq(axis_position(axes, call.program.sizes), np.int32(0))
        start = lax.select(*vary_alike(first, start, lax.full_like(start, _COUNTED[kind])))
    return COMBINE[kind](*vary_alike(x, lax.broadcast(start, x.shape)))


_COUNTED = {"sum": 0, "prod": 1}
"""The identities of the reductions whose result depends on how often the start is combined."""

_SAME_NUMBER = ("stablehlo.broadcast_in_dim", "stablehlo.reshape", "sdy.reshard")
"""Ops whose result repeats the one number of their operand."""
_CONSTANTS = ("stablehlo.constant", "sdy.constant", "arith.constant")
_COMPLEX = {"tensor<complex<f32>>": np.complex64, "tensor<complex<f64>>": np.complex128}


def constant_of(value: ir.Value) -> Array | None:
    """Returns the number that all elements of a constant equal; None for any other value."""
    op = producer(value)
    if op is not None and op.name in _SAME_NUMBER:
        return constant_of(op.operands[0])
    if op is None or op.name not in _CONSTANTS:
        return None
    if isinstance(value.type.element_type, ir.ComplexType):
        return None if value.type.shape else complex_elements(op, jax.ShapeDtypeStruct((), _COMPLEX[str(value.type)]))
    if not op.attributes["value"].is_splat:
        return None
    return np.asarray(op.attributes["value"].get_splat_value().value)


def is_identity(value: Array, kind: str, dtype: DType) -> bool:
    """Returns True if a number is the identity of a reduction."""
    low, high = _limits(dtype)
    ones = (True,) if dtype == np.bool_ else (-1, high if low == 0 else -1)
    identities = {"sum": (0,), "prod": (1,), "or": (0,), "and": ones, "max": (low,), "min": (high,)}
    return value.item() in identities[kind]


def _limits(dtype: DType) -> tuple[float, float]:
    """Returns the least and the greatest number of a type; some floats of 8 bits lack infinities."""
    if jnp.issubdtype(dtype, jnp.integer):
        return int(jnp.iinfo(dtype).min), int(jnp.iinfo(dtype).max)
    if dtype.kind == "b":
        return False, True
    infinite = dtype.kind == "c" or bool(np.isinf(np.full((), np.inf, dtype).astype(np.float32)))
    return (-np.inf, np.inf) if infinite else (float(jnp.finfo(dtype).min), float(jnp.finfo(dtype).max))


_COMPARES: Mapping[str, Callable[..., Array]] = {
    "stablehlo.select": np.where, "stablehlo.and": np.logical_and, "stablehlo.or": np.logical_or,
    "stablehlo.minimum": np.minimum,
}  # fmt: skip
"""Operations of bodies that compare, beside comparisons, on truth values and small numbers."""
_Extreme = tuple[Callable[..., jax.Array], Callable[..., jax.Array]]
"""A reduction of values with their indices along a dim: the functions of the values, and of the indices."""
_PAIRS = np.array([(a, i, b, 1 - i) for a in (0, 1) for b in (0, 1) for i in (0, 1)]).T
"""All orders of two values with their indices: the values `a` and `b`, and the indices after each."""


def extreme_of(op: ir.Operation) -> _Extreme | None:
    """Recognises `argmax` and `argmin`: a reduction of values with their indices; None for any other operation."""
    if op.name != "stablehlo.reduce" or len(op.operands) != 4 or len(op.attributes["dimensions"]) != 1:
        return None
    dim = op.attributes["dimensions"][0]
    if not _counts(look_through(op.operands[1]), dim) or not op.operands[0].type.shape[dim]:
        return None
    start, first = map(constant_of, op.operands[2:])
    found = _compared(op)
    if start is None or first is None or first.item() < 0 or found is None:
        return None
    a, i, b, j = _PAIRS
    for kind, better in (("max", a > b), ("min", a < b)):
        left = better | ((a == b) & (i < j))
        wanted: list[Array] = [np.where(left, a, b), np.where(left, i, j)]
        if all(map(np.array_equal, found, wanted)):
            dtype: DType = Types(lambda _: None, wide=True)(op.operands[0].type).dtype
            functions = getattr(lax, f"reduce_{kind}"), getattr(lax, f"arg{kind}")
            return functions if is_identity(start, kind, dtype) else None
    return None


def _compared(op: ir.Operation) -> list[Array] | None:
    """Returns the results of a body of comparisons for all orders; None for another body."""
    known: dict[ir.Value, Array] = dict(zip(op.regions[0].blocks[0].arguments, _PAIRS, strict=True))
    for inner in body_ops(op):
        compares = inner.name == "stablehlo.compare"
        compare = getattr(operator, enum_of(inner, "comparison_direction").lower()) if compares else None
        compute = compare or _COMPARES.get(inner.name)
        if compute is None or any(v not in known for v in _operands(inner)):
            return None
        known[inner.results[0]] = compute(*(known[v] for v in _operands(inner)))
    return [known[v] for v in returned(op)]


def _extreme_of_parts(call: ShardedCall, extreme: _Extreme, dim: int) -> list[jax.Array]:
    """Returns the extreme along a dim and its index; of a sharded dim, the extreme among the extremes of all parts."""
    (value_of, place_of), x = extreme, call.operands[0]
    axes, index_type = call.shardings[0][dim], call.results[1].dtype
    best, place = value_of(x, (dim,)), place_of(x, dim, index_type)
    if not axes:
        return [best, place]
    call.program.decisions.collective("all_gather", axes, f"the extreme of each part of dim {dim}, and its place")
    place = place + (axis_position(axes, call.program.sizes) * np.int32(x.shape[dim])).astype(index_type)
    # Parts along the minor axis come first in a group, and the first of equal extremes is kept.
    for axis in reversed(axes):
        values, places = (all_gather(lax.expand_dims(v, (0,)), axis, 0) for v in (best, place))
        first = lax.expand_dims(place_of(values, 0, np.int32), (0,))
        best, place = value_of(values, (0,)), jnp.take_along_axis(places, first, 0)[0]
    return [best, place]


# --- products --------------------------------------------------------------------------------------------------------


def precision_of(call: ShardedCall) -> tuple[jax.lax.Precision, ...] | None:
    """Returns the precisions of a product's operands; None for JAX's default."""
    written = call.op.attributes.get("precision_config") or ()
    precisions = tuple(lax.Precision[str(p).split("<precision ")[-1].rstrip(">")] for p in written)
    return None if len(precisions) != 2 or set(precisions) == {lax.Precision.DEFAULT} else precisions


def dot_dims(op: ir.Operation) -> tuple[OfOperands, OfOperands]:
    """Returns the contracted dims of both operands of a product, and the dims that they have in common."""
    dims = hlo.DotDimensionNumbers(op.attributes["dot_dimension_numbers"])
    contracting = tuple(dims.lhs_contracting_dimensions), tuple(dims.rhs_contracting_dimensions)
    return contracting, (tuple(dims.lhs_batching_dimensions), tuple(dims.rhs_batching_dimensions))


@OPS.add("stablehlo.dot_general", sums)
def _dot_general(call: ShardedCall) -> list[jax.Array]:
    contracting, batch = dot_dims(call.op)
    names = ("contract_dims_lhs", "contract_dims_rhs", "batch_dims_lhs", "batch_dims_rhs")
    attributes: dict[str, object] = dict(zip(names, (*contracting, *batch), strict=True))

    def product(x: jax.Array, y: jax.Array) -> jax.Array:
        dtype, precision = call.results[0].dtype, precision_of(call)
        return lax.dot_general(x, y, (contracting, batch), precision=precision, preferred_element_type=dtype)

    return keep_op(call.program.keeps_ops, "dot_general", call.operands, attributes, product)


@OPS.add("stablehlo.dot", sums)
def _dot(call: ShardedCall) -> jax.Array:
    x, y = vary_alike(*call.operands)
    dims = ((x.ndim - 1,), (0,)), ((), ())
    return lax.dot_general(x, y, dims, precision=precision_of(call), preferred_element_type=call.results[0].dtype)


@OPS.add("stablehlo.einsum")
def _einsum(call: ShardedCall) -> jax.Array:
    return jnp.einsum(call["einsum_config"], *vary_alike(*call.operands))


# --- sorts -----------------------------------------------------------------------------------------------------------


@OPS.add("stablehlo.fft")
def _fft(call: ShardedCall) -> jax.Array:
    x, lengths = call.operands[0], tuple(call["fft_length"])
    # XLA fails for several batch dims on CPUs if a collective beside the transform wants them in another order.
    batch = x.shape[: x.ndim - len(lengths)]
    rows = (math.prod(batch),) if batch else ()
    flat = lax.reshape(x, (*rows, *x.shape[len(batch) :]))
    transformed = lax.fft(flat, enum_of(call.op, "fft_type"), lengths)
    return lax.reshape(transformed, (*batch, *transformed.shape[len(rows) :]))


@OPS.add("stablehlo.sort")
def _sort(call: ShardedCall) -> list[jax.Array]:
    keys, descends = _sort_keys(call)
    dim, stable = call["dimension"], bool(call.get("is_stable", False))

    def ordered(*operands: jax.Array) -> list[jax.Array]:
        if descends:
            # Reversed, sorted and reversed again, so that equal elements keep their order.
            operands = tuple(lax.rev(x, (dim,)) for x in operands)
        outs = lax.sort(operands, dimension=dim, is_stable=stable, num_keys=keys)
        return [lax.rev(y, (dim,)) for y in outs] if descends else list(outs)

    operands = vary_alike(*call.operands)
    is_pair = len(operands) == _PAIR and _counts(call.op.operands[1], dim)
    if not call.program.keeps_ops or not (is_pair or len(operands) == 1):
        return ordered(*operands)

    def pairs(x: jax.Array) -> list[jax.Array]:
        # The second operand is an iota along the dim; sorted, it is the order.
        return ordered(x, lax.broadcasted_iota(np.dtype("int32"), x.shape, dim))

    # A comparison of both operands keeps the order of equal elements.
    attributes = {"dim": dim, "descending": descends, "stable": stable or keys > 1}
    results = keep_op(True, "sort", operands[:1], attributes, pairs)
    return [y if y.dtype == t.dtype else y.astype(t.dtype) for y, t in zip(results, call.results, strict=False)]


_PAIR = 2


def _counts(value: ir.Value, dim: int) -> bool:
    """Returns True for an iota along a dim."""
    if (op := producer(value, "stablehlo.broadcast_in_dim")) is not None:
        is_iota = producer(op.operands[0], "stablehlo.iota") is not None
        return is_iota and list(op.attributes["broadcast_dimensions"]) == [dim]
    op = producer(value, "stablehlo.iota")
    return op is not None and op.attributes["iota_dimension"].value == dim


def _sort_keys(call: ShardedCall) -> tuple[int, bool]:
    """Returns the number of leading operands that a sort compares, and True if it is descending.

    Raises:
      UnsupportedError: the comparison is not supported.
    """
    block = call.op.regions[0].blocks[0]
    inner = body_ops(call.op)
    used = {v for o in inner for v in o.operands}
    keys = [i for i in range(len(call.operands)) if {block.arguments[2 * i], block.arguments[2 * i + 1]} & used]
    directions = {enum_of(o, "comparison_direction") for o in inner if o.name == "stablehlo.compare"}
    descends, known = False, directions <= {"LT", "EQ", "NE"}
    if len(inner) == 1 and directions <= {"LT", "GT"}:
        swapped = list(inner[0].operands) != [block.arguments[2 * i + j] for i in keys for j in (0, 1)]
        descends, known = (directions == {"GT"}) != swapped, len(keys) == 1
    if keys != list(range(len(keys))) or not known or not keys:
        raise UnsupportedError(
            f"a sort compares by {sorted(directions)} of its operands {keys}; supported are sorts by the first."
        )
    return len(keys), descends


# --- the largest values -----------------------------------------------------------------------------------------------


Pick = Callable[[jax.Array, int, int], Sequence[jax.Array]]
"""A function that returns the `k` largest values of an array along a dim, and their indices."""


def split_top_k(
    program: ImportContext, op: ir.Operation, k: int, dim: int, pick: Pick, kept: Sequence[int] = (0, 1)
) -> list[Sharded]:
    """Performs a top-k on shards.

    Equal values keep their order, in a part and among the parts, which are in the order of the dim.
    `kept` selects the results of the op: 0 the values, 1 their indices.
    """
    x, wanted = program.settle(program.env[op.operands[0]]), program.result_shardings(op)
    dim %= len(x.sharding)
    others = [axes for d, axes in enumerate(wanted[0]) if d != dim]
    axes = tuple(a for a in x.sharding[dim] if a not in axes_of(tuple(others)))
    (operand_type,) = program.types_of(op.operands)
    size = operand_type.shape[dim] // count(axes, program.sizes)
    axes = axes if k < size else ()
    split = tuple(axes if d == dim else dim_axes for d, dim_axes in enumerate(wanted[0]))
    whole = tuple(() if d == dim else dim_axes for d, dim_axes in enumerate(wanted[0]))
    why = f"for {op.name}"
    values, places = pick(program.reshard(x, split, why), k, dim)
    if axes:
        program.splits = True
        program.decisions.collective("all_gather", axes, f"the {k} largest of each part of dim {dim}, {why}")
        places = places + (axis_position(axes, program.sizes) * np.int32(size)).astype(places.dtype)
        for axis in reversed(axes):
            values, places = all_gather(values, axis, dim), all_gather(places, axis, dim)
        values, among = pick(values, k, dim)
        places = jnp.take_along_axis(places, among, dim)
    outs = [Sharded((values, places)[i], whole) for i in kept]
    return [Sharded(program.reshard(y, w, f"of {op.name}"), w) for y, w in zip(outs, wanted, strict=True)]


def _top_k(program: ImportContext, op: ir.Operation) -> list[Sharded]:
    def pick(x: jax.Array, k: int, dim: int) -> Sequence[jax.Array]:
        return lax.top_k(x, k)

    return split_top_k(program, op, int(program.read(op.attributes["k"])), -1, pick)


TOP_K: dict[str, Whole] = {"chlo.top_k": _top_k}
