"""Helpers of the definitions: joint types of operands, checks of dims and shapes, optional operands."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import jax

from jaxmesh.dialects.op import Call, Shape, describe
from jaxmesh.dialects.varying import vary as vary, vary_together as vary_together, varying_axes as varying_axes
from jaxmesh.errors import VerifyError

jnp: Any = jax.numpy
lax: Any = jax.lax
nn: Any = jax.nn
"""JAX leaves many of their functions without annotations."""


def rule_error(call: Call, rule: str) -> VerifyError:
    """Returns the error for a broken rule of an op."""
    return VerifyError(f"{call.title}: {rule}.")


def require(call: Call, holds: bool, rule: str) -> None:
    """Raises a VerifyError that cites the rule, unless it holds."""
    if not holds:
        raise rule_error(call, rule)


# --- types -----------------------------------------------------------------------------------------------------------


def is_integer(x: Any) -> bool:
    """Returns True if an array holds integers, which truth values are not."""
    return bool(jnp.issubdtype(x.dtype, jnp.integer))


def is_bool(x: Any) -> bool:
    """Returns True if an array holds truth values."""
    return bool(x.dtype == jnp.bool_)


def convert(x: Any, dtype: Any) -> Any:
    """Converts an array to another element type, as far as JAX's x64 mode has it."""
    return lax.convert_element_type(x, jax.dtypes.canonicalize_dtype(dtype))


def as_bool(x: Any) -> Any:
    """Converts numbers to truth values: all but zero are true."""
    return x if is_bool(x) else x != 0


# --- checks ----------------------------------------------------------------------------------------------------------


def check_dim(call: Call, dim: int, rank: int, name: str) -> int:
    """Checks that a dim is in range, and returns it counted from the front."""
    if not -rank <= dim < rank:
        allowed = f"{-rank} to {rank - 1}" if rank else "none, a scalar has no dims"
        raise rule_error(call, f"{name} = {dim} is out of range for rank {rank}; allowed: {allowed}")
    return dim % rank


def check_dims(call: Call, dims: Sequence[int], rank: int, name: str) -> Shape:
    """Checks that dims are in range and different, and returns them counted from the front."""
    made = tuple(check_dim(call, d, rank, name) for d in dims)
    require(call, len(set(made)) == len(made), f"{name} = {list(dims)} names a dim twice (rank {rank})")
    return made


def check_length(call: Call, name: str, values: Sequence[Any], count: int, what: str) -> None:
    """Checks the length of a sequence."""
    rule = f"{name} has {count} entries, {what}, but {list(values)} has {len(values)}"
    require(call, len(values) == count, rule)


def check_rank(call: Call, x: Any, rank: int, name: str) -> None:
    """Checks the rank of an operand."""
    require(call, x.ndim == rank, f"{name} has rank {rank}, but {describe(x)} has rank {x.ndim}")


def check_shape(call: Call, x: Any, shape: Sequence[int], name: str) -> None:
    """Checks the shape of an operand."""
    require(call, x.shape == tuple(shape), f"{name} has the shape {list(shape)}, but got {describe(x)}")


def broadcast_shape(call: Call, *shapes: Shape) -> Shape:
    """Checks that shapes broadcast by NumPy's rules, and returns the joint shape."""
    rank = max(map(len, shapes))
    padded = [(1,) * (rank - len(s)) + tuple(s) for s in shapes]
    out: list[int] = []
    for sizes in zip(*padded, strict=True):
        wide = {n for n in sizes if n != 1}
        if len(wide) > 1:
            raise rule_error(call, f"the shapes {' and '.join(str(list(s)) for s in shapes)} do not broadcast")
        out.append(wide.pop() if wide else 1)
    return tuple(out)


def check_single(call: Call, x: Any, name: str) -> Any:
    """Checks that an operand has one element, and returns it as a scalar."""
    require(call, x.size == 1, f"{name} is one number, but got {describe(x)}")
    return lax.reshape(x, ())


def fit_number(call: Call, name: str, value: float, dtype: Any) -> float:
    """Checks that a number fits an element type, and returns it; for integers truncated towards zero."""
    if not jnp.issubdtype(dtype, jnp.integer):
        return value
    info = jnp.iinfo(dtype)
    least, most = int(info.min), int(info.max)
    # MLIR writes the upper half of an unsigned type as negative numbers.
    lowest = -(most // 2) - 1 if least == 0 else least
    fits = math.isfinite(value) and lowest <= int(value) <= most
    require(call, fits, f"{name} = {value} does not fit {dtype}, which holds {least} to {most}")
    return int(value) % (most + 1) if least == 0 else int(value)


def optional_operands(call: Call, names: Sequence[str]) -> list[Any]:
    """Returns the operands by position, None where `operandSegmentSizes` marks one as absent; by default in order."""
    sizes = call["operandSegmentSizes"]
    if sizes is None:
        return [*call.operands, *[None] * (len(names) - len(call.operands))]
    # A text of an earlier version may lack groups that came later, or count a destination.
    mine = (*sizes, *[0] * (len(names) - len(sizes)))[: len(names)]
    good = (
        call.definition.operands[0] <= len(sizes) <= len(names) + 1
        and set(mine) <= {0, 1}
        and sum(mine) == len(call.operands)
    )
    wanted = f"0 or 1 for each of {', '.join(names)}, {len(call.operands)} in all"
    require(call, good, f"operandSegmentSizes say {wanted}, got {list(sizes)}")
    rest = iter(call.operands)
    return [next(rest) if n else None for n in mine]


def size_of(shape: Sequence[int]) -> int:
    """Returns the number of elements of a shape."""
    return math.prod(shape)
