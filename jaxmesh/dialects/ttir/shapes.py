"""Ops that create tensors from attributes alone, or move elements: shapes, permutations, slices, joins."""

from __future__ import annotations

import math

from jaxmesh.dialects.op import Call, Shape, Trait, describe
from jaxmesh.dialects.ttir.helpers import TtirOps, convert, jax, jnp, lax, vary_together
from jaxmesh.jaxprs.untyped import Array

OPS = TtirOps()


@OPS.define("reshape", traits=[Trait.MOVES, Trait.VIEW])
def _reshape(call: Call) -> jax.Array:
    (x,) = call.operands
    shape = _whole_shape(call["shape"], x.size)
    rule = f"shape = {list(shape)} holds {math.prod(shape)} elements, but {describe(x)} holds {x.size}"
    call.require(min(shape, default=0) >= 0 and math.prod(shape) == x.size, rule)
    return lax.reshape(x, shape)


def _whole_shape(shape: Shape, size: int) -> Shape:
    """Returns a shape with the size of its only dim of -1; unchanged without such a dim, or with several."""
    known = -math.prod(shape)
    if shape.count(-1) != 1 or known <= 0 or size % known:
        return shape
    return tuple(size // known if n == -1 else n for n in shape)


@OPS.define("permute", traits=[Trait.MOVES])
def _permute(call: Call) -> jax.Array:
    # As in upstream's verifier: the numbers 0 to rank - 1, in some order; none counts from the end.
    (x,) = call.operands
    order: Shape = call["permutation"]
    call.check_length("permutation", order, x.ndim, f"one per dim of {describe(x)}")
    wrong = [d for d in order if not 0 <= d < x.ndim]
    named = f"permutation = {list(order)} names dim {', '.join(map(str, wrong))}"
    call.require(not wrong, f"{named} of {describe(x)}; allowed: 0 to {x.ndim - 1}")
    return lax.transpose(x, call.check_dims(order, x.ndim, "permutation"))


@OPS.define("transpose", traits=[Trait.MOVES])
def _transpose(call: Call) -> jax.Array:
    (x,) = call.operands
    first, second = (call.check_dim(call[name], x.ndim, name) for name in ("dim0", "dim1"))
    return jnp.swapaxes(x, first, second)


@OPS.define("squeeze", traits=[Trait.MOVES, Trait.VIEW])
def _squeeze(call: Call) -> jax.Array:
    (x,) = call.operands
    dim = call.check_dim(call["dim"], x.ndim, "dim")
    call.require(x.shape[dim] == 1, f"dim {dim} of {describe(x)} has size {x.shape[dim]}, not 1")
    return lax.squeeze(x, (dim,))


@OPS.define("unsqueeze", traits=[Trait.MOVES, Trait.VIEW])
def _unsqueeze(call: Call) -> jax.Array:
    (x,) = call.operands
    return lax.expand_dims(x, (call.check_dim(call["dim"], x.ndim + 1, "dim"),))


@OPS.define("broadcast", traits=[Trait.MOVES])
def _broadcast(call: Call) -> jax.Array:
    (x,) = call.operands
    counts = _counts(call, x, "broadcast_dimensions")
    for dim, (size, count) in enumerate(zip(x.shape, counts, strict=True)):
        rule = f"dim {dim} has size {size} and cannot be broadcast {count} times (broadcast_dimensions {list(counts)})"
        call.require(size == 1 or count == 1, rule)
    return jnp.broadcast_to(x, tuple(n * c for n, c in zip(x.shape, counts, strict=True)))


@OPS.define("repeat", traits=[Trait.MOVES])
def _repeat(call: Call) -> jax.Array:
    (x,) = call.operands
    return jnp.tile(x, _counts(call, x, "repeat_dimensions"))


def _counts(call: Call, x: jax.Array, name: str) -> Shape:
    counts = call[name]
    call.check_length(name, counts, x.ndim, f"one per dim of {describe(x)}")
    least = int(name == "repeat_dimensions")
    call.require(min(counts, default=1) >= least, f"{name} = {list(counts)} holds a count below {least}")
    return counts


@OPS.define("repeat_interleave", traits=[Trait.MOVES])
def _repeat_interleave(call: Call) -> jax.Array:
    (x,) = call.operands
    call.require(call["repeats"] > 0, f"repeats = {call['repeats']} is below 1")
    return jnp.repeat(x, call["repeats"], axis=call.check_dim(call["dim"], x.ndim, "dim"))


@OPS.define("reverse", traits=[Trait.MOVES])
def _reverse(call: Call) -> jax.Array:
    (x,) = call.operands
    return lax.rev(x, call.check_dims(call["dimensions"], x.ndim, "dimensions"))


@OPS.define("concat", traits=[Trait.MOVES])
def _concat(call: Call) -> jax.Array:
    first = call.operands[0]
    dim = call.check_dim(call["dim"], first.ndim, "dim")
    for i, x in enumerate(call.operands):
        rule = f"operands 0 and {i} differ beside dim {dim}: {describe(first)} and {describe(x)}"
        alike = x.ndim == first.ndim and _without(x.shape, dim) == _without(first.shape, dim)
        call.require(alike and x.dtype == first.dtype, rule)
    return lax.concatenate(vary_together(*call.operands), dim)


def _without(shape: Shape, dim: int) -> Shape:
    return (*shape[:dim], *shape[dim + 1 :])


# --- slices ----------------------------------------------------------------------------------------------------------


def _slice_with_step(call: Call, x: jax.Array, dim: int, begin: int, end: int, step: int) -> jax.Array:
    """Slices one dim. Negative begins and ends count from the end; a step may be negative, too."""
    size = x.shape[dim]
    values = f"begin {begin}, end {end}, step {step} on dim {dim} of size {size}"
    first, last = (n + size if n < 0 else n for n in (begin, end))
    call.require(step != 0, f"a step of 0 ({values})")
    if first == last:
        # As in upstream's verifier, an empty slice may begin anywhere.
        return lax.slice_in_dim(x, 0, 0, 1, dim)
    call.require(0 <= first <= size and 0 <= last <= size, f"out of range: {values}")
    call.require((last - first) * step >= 0, f"the end is before the begin: {values}")
    if step > 0:
        return lax.slice_in_dim(x, first, last, step, dim)
    call.require(first < size, f"out of range: {values}")
    count = -(-(first - last) // -step)
    return lax.rev(lax.slice_in_dim(x, first + (count - 1) * step, first + 1, -step, dim), (dim,))


@OPS.define("slice_static", traits=[Trait.MOVES])
@OPS.define("slice", traits=[Trait.MOVES, Trait.NOT_UPSTREAM])
def _slice_static(call: Call) -> jax.Array:
    (x,) = call.operands
    for name in ("begins", "ends", "step"):
        call.check_length(name, call[name], x.ndim, f"one per dim of {describe(x)}")
    for dim, (begin, end, step) in enumerate(zip(call["begins"], call["ends"], call["step"], strict=True)):
        x = _slice_with_step(call, x, dim, begin, end, step)
    return x


@OPS.define("index", traits=[Trait.MOVES])
def _index(call: Call) -> jax.Array:
    (x,) = call.operands
    dim = call.check_dim(call["dim"], x.ndim, "dim")
    return _slice_with_step(call, x, dim, call["begin"], call["end"], call["step"])


@OPS.define("index_select", traits=[Trait.MOVES])
@OPS.define("select", traits=[Trait.MOVES, Trait.NOT_UPSTREAM])
def _index_select(call: Call) -> jax.Array:
    """Selects the elements `begin` to `begin + length` of every block of `stride`; a stride of 0 is one block."""
    (x,) = call.operands
    dim = call.check_dim(call["dim"], x.ndim, "dim")
    begin, length, size = call["begin"], call["length"], x.shape[dim]
    stride = call["stride"] or size
    values = f"begin {begin}, length {length}, stride {stride} on dim {dim} of size {size}"
    call.require(0 <= begin < size and 0 < length <= stride, f"out of range: {values}")
    starts = range(begin, size, stride)
    call.require(starts[-1] + length <= size, f"the last piece ends at {starts[-1] + length}: {values}")
    return lax.concatenate([lax.slice_in_dim(x, s, s + length, axis=dim) for s in starts], dim)


@OPS.define("slice_dynamic", traits=[Trait.MOVES, Trait.DECOMPOSED_FOR_TTNN])
def _slice_dynamic(call: Call) -> jax.Array:
    # The sizes are the declared ones: `ends` cannot differ. A begin out of range is clamped, as in StableHLO.
    x, begins, _ = call.operands
    shape = call.result.shape
    step = call["step"] or (1,) * x.ndim
    call.check_length("the declared shape", shape, x.ndim, f"one per dim of {describe(x)}")
    call.check_length("step", step, x.ndim, f"one per dim of {describe(x)}")
    call.require(min(step, default=1) > 0, f"step = {list(step)} holds a step below 1")
    for operand, name in zip(call.operands[1:], ("begins", "ends"), strict=True):
        good = operand.shape == (x.ndim,)
        call.require(good, f"{name} has {x.ndim} entries, one per dim of {describe(x)}, got {describe(operand)}")
    span = tuple((n - 1) * s + 1 if n else 0 for n, s in zip(shape, step, strict=True))
    fits = all(a <= b for a, b in zip(span, x.shape, strict=True))
    call.require(fits, f"{list(shape)} elements in steps of {list(step)} span more than {describe(x)}")
    # By default, JAX's own function would count a negative begin from the end.
    x, begins = vary_together(x, begins.astype(jnp.int32))
    piece = lax.dynamic_slice(x, [begins[d] for d in range(x.ndim)], span, allow_negative_indices=False)
    return lax.slice(piece, (0,) * x.ndim, span, step)


@OPS.define("pad", traits=[Trait.MOVES])
def _pad(call: Call) -> jax.Array:
    (x,) = call.operands
    padding = call["padding"]
    call.check_length("padding", padding, 2 * x.ndim, f"a low and a high one per dim of {describe(x)}")
    amounts = [(low, high, 0) for low, high in zip(padding[::2], padding[1::2], strict=True)]
    for dim, (low, high, _) in enumerate(amounts):
        rule = f"padding {low} and {high} leaves dim {dim} of size {x.shape[dim]} less than nothing"
        call.require(x.shape[dim] + low + high >= 0, rule)
    return lax.pad(x, jnp.asarray(call.fit_number("value", call["value"], x.dtype), x.dtype), amounts)


_CREATES = (Trait.MOVES, Trait.CREATES)


def _fill(call: Call, value: object) -> jax.Array:
    # Broadcast inside the trace: no array of that shape is created here.
    dtype = jax.dtypes.canonicalize_dtype(call.result.dtype)
    return lax.full(call.result.shape, value, dtype)


def _check_shape(call: Call) -> None:
    shape, declared = call["shape"], call.result.shape
    rule = f"shape = {list(shape or ())}, but the declared type is {describe(call.result)}"
    call.require(shape is None or shape == declared, rule)


@OPS.define("ones", traits=_CREATES)
@OPS.define("zeros", traits=_CREATES)
def _zeros(call: Call) -> jax.Array:
    _check_shape(call)
    return _fill(call, int(call.name == "ones"))


@OPS.define("full", traits=_CREATES)
def _full(call: Call) -> jax.Array:
    _check_shape(call)
    dtype = jax.dtypes.canonicalize_dtype(call.result.dtype)
    return _fill(call, call.fit_number("fill_value", call["fill_value"], dtype))


@OPS.define("empty", traits=[*_CREATES, Trait.DECOMPOSED])
def _empty(call: Call) -> jax.Array:
    # Never read: it is only a destination of older ops.
    return _fill(call, 0)


@OPS.define("constant", traits=_CREATES)
def _constant(call: Call) -> jax.Array:
    value = _as_declared(call, call["value"])
    if value.size == 1:
        return _fill(call, value.item())
    declared = call.result.shape
    rule = f"value has the shape {list(value.shape)}, but the declared type is {describe(call.result)}"
    call.require(value.shape == declared, rule)
    return jnp.asarray(value)


def _as_declared(call: Call, value: Array) -> Array:
    """Returns the values in the declared element type; raises if one changes without JAX's x64 mode."""
    dtype = jax.dtypes.canonicalize_dtype(call.result.dtype)
    converted = value.astype(dtype, copy=False)
    whole = jnp.issubdtype(value.dtype, jnp.integer) and jnp.issubdtype(dtype, jnp.integer)
    if whole and (converted.astype(value.dtype) != value).any():
        raise call.rule_error(f"value {value[converted.astype(value.dtype) != value].item(0)} does not fit {dtype}")
    return converted


@OPS.define("arange", traits=_CREATES)
def _arange(call: Call) -> jax.Array:
    start, end, step = call["start"], call["end"], call["step"]
    call.require(step != 0, f"a step of 0 from {start} to {end} never ends")
    shape = call.result.shape
    dim = call.check_dim(call["arange_dimension"], len(shape), "arange_dimension")
    count = len(range(start, end, step))
    rule = f"start {start}, end {end}, step {step} give {count} numbers, but dim {dim} of {describe(call.result)} has"
    call.require(count == shape[dim], f"{rule} {shape[dim]}")
    dtype = jax.dtypes.canonicalize_dtype(call.result.dtype)
    if (start, step) == (0, 1) and jnp.issubdtype(dtype, jnp.number):
        return lax.broadcasted_iota(dtype, shape, dim)
    whole = lax.broadcasted_iota(jnp.int32, shape, dim) * step + start
    return convert(whole, dtype)


@OPS.define("rand", traits=[Trait.CREATES])
def _rand(call: Call) -> jax.Array:
    size, declared = call["size"], call.result
    rule = f"size = {list(size or ())}, but the declared type is {describe(declared)}"
    call.require(size is None or size == declared.shape, rule)
    low, high = call["low"], call["high"]
    if not low <= high:
        raise call.rule_error(f"low = {low} is above high = {high}")
    # The numbers are JAX's; a seed of 0, which asks the hardware for any, gives the same ones each time.
    # They go by the position in row-major order, and XLA takes long for a counter of many dims.
    numbers = jax.random.uniform(jax.random.key(call["seed"]), (math.prod(declared.shape),), jnp.float32, low, high)
    return convert(numbers.reshape(declared.shape), declared.dtype)


@OPS.define("get_dimension_size", traits=[*_CREATES, Trait.DECOMPOSED])
def _get_dimension_size(call: Call) -> jax.Array:
    (x,) = call.operands
    dim = call.check_dim(call["dimension"], x.ndim, "dimension")
    one = math.prod(call.result.shape) == 1
    call.require(one, f"the result is one number, but the declared type is {describe(call.result)}")
    return _fill(call, x.shape[dim])
