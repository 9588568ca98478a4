"""The primitive `check_copies`: an identity that compares the copies of a value on the devices.

Only the copy that is read travels, once along the axes of the claim, as bits; each device compares its own with it. The
first device that differs reports to the host; if all copies are equal, no device does. All processes get the same
report: all raise, or none does.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax.interpreters import ad, batching
from jax.typing import DTypeLike

from jaxmesh.dialects.replication import Claim, Coordinate, Difference, error, pend
from jaxmesh.jaxprs import compat
from jaxmesh.jaxprs.typed import typed
from jaxmesh.jaxprs.untyped import Array, Params, jnp, lax

Shard = jax.Array | Array
_ad: Any = ad
_callback: Any = jax.debug.callback
EFFECTS: frozenset[Any] = frozenset(typed.make_jaxpr(lambda: _callback(lambda: None))().effects)
"""The effects of a host callback in a program's type: JAX waits for it in `jax.effects_barrier`."""

check_copies_p: Any = compat.unlowered_primitive("check_copies")


@check_copies_p.def_effectful_abstract_eval
def _abstract_eval(x: compat.Aval, *, claim: Claim, mapped: tuple[int, ...], tangent: bool) -> tuple[Any, Any]:
    return x, EFFECTS


def check_copies(x: jax.Array, claim: Claim) -> jax.Array:
    """Returns the value; wherever it is used, its copies are compared along the claim's axes."""
    return check_copies_p.bind(x, claim=claim, mapped=(), tangent=False)


# --- on the devices --------------------------------------------------------------------------------------------------


def _check(x: jax.Array, *, claim: Claim, mapped: tuple[int, ...], tangent: bool) -> jax.Array:
    if math.prod(x.shape) == 0:
        return x
    bits = _bits(x)
    parts = bits.shape[len(x.shape) :]
    rows = bits.reshape(math.prod(x.shape), math.prod(parts))
    # A sum with zeros moves one copy, and integers add exactly.
    first = functools.reduce(jnp.logical_and, [lax.axis_index(a) == 0 for a in claim.axes])
    read = lax.psum(jnp.where(first, rows, jnp.zeros_like(rows)), claim.axes)
    apart = (rows != read).any(1)
    for axis, count in claim.limits:
        apart &= lax.axis_index(axis) < count
    at = jnp.argmax(apart)
    row = jnp.stack([_here(claim).astype(jnp.uint32), at.astype(jnp.uint32), *_words(rows[at]), *_words(read[at])])
    reports, row = _first(apart.any(), row, claim)

    def report(message: jax.Array) -> None:
        _callback(functools.partial(_report, claim, tuple(x.shape), x.dtype, mapped, tangent), message)

    def nothing(message: jax.Array) -> None:
        pass

    lax.cond(reports, report, nothing, row)
    return x


def _bits(x: jax.Array) -> jax.Array:
    """Returns the bits of each element as unsigned integers; the parts of one element are along further dims."""
    dtype = x.dtype
    if jax.dtypes.issubdtype(dtype, jax.dtypes.extended):
        return jax.random.key_data(x)
    if dtype == jnp.bool_:
        return x.astype(jnp.uint8)
    if jnp.issubdtype(dtype, jnp.complexfloating):
        return jnp.stack([_bits(lax.real(x)), _bits(lax.imag(x))], x.ndim)
    if jnp.issubdtype(dtype, jnp.integer):
        narrow = jnp.iinfo(dtype).bits < 8
        x = x.astype(jnp.int8) if narrow else x
        return lax.bitcast_convert_type(x, jnp.uint32 if x.dtype.itemsize > 4 else _unsigned_type(x.dtype.itemsize))
    if jnp.finfo(dtype).bits < 8:
        return lax.bitcast_convert_type(x, jnp.uint4).astype(jnp.uint8)
    # Eight bytes become two words along a new dim.
    return lax.bitcast_convert_type(x, jnp.uint32 if dtype.itemsize > 4 else _unsigned_type(dtype.itemsize))


def _unsigned_type(size: int) -> type[np.generic]:
    return {1: np.uint8, 2: np.uint16, 4: np.uint32}[size]


def _here(claim: Claim) -> jax.Array:
    # Of axes of one device, too: what a psum sums has to vary over its axes.
    number = jnp.int32(0)
    for axis, size in claim.mesh.items():
        number = number * size + lax.axis_index(axis)
    return number


def _words(row: jax.Array) -> list[jax.Array]:
    return [row[i].astype(jnp.uint32) for i in range(row.shape[0])]


def _first(differs: jax.Array, row: jax.Array, claim: Claim) -> tuple[jax.Array, jax.Array]:
    """Returns whether this device reports to its host, and the row of the first device that differs."""
    mine = jnp.arange(math.prod(claim.mesh.values())) == _here(claim)
    hits = lax.psum(jnp.where(mine & differs, jnp.int32(1), jnp.int32(0)), tuple(claim.mesh))
    first = differs & (jnp.argmax(hits) == _here(claim))
    if typed.process_count() == 1:
        return first, row
    # The process of each device is unknown here: all devices report, and the host stores one report per claim.
    return hits.any(), lax.psum(jnp.where(first, row, jnp.zeros_like(row)), tuple(claim.mesh))


compat.lower_as(check_copies_p, _check)


# --- on the host -----------------------------------------------------------------------------------------------------


def _report(
    claim: Claim, shape: tuple[int, ...], dtype: DTypeLike, mapped: tuple[int, ...], tangent: bool, message: object
) -> None:
    """Stores the report of a device: its number, the element's number, and the words of both values."""
    row = np.asarray(message)
    count = (len(row) - 2) // 2
    coordinate, other = claim.coordinates(int(row[0]))
    place = [int(i) for i in np.unravel_index(int(row[1]), shape)]
    index = claim.index_in_value(
        tuple(i for d, i in enumerate(place) if d not in mapped),
        tuple(n for d, n in enumerate(shape) if d not in mapped),
    )
    value, expected = _value(row[2 : 2 + count], dtype), _value(row[2 + count :], dtype)
    found = Difference(
        claim, coordinate, other, index, value, expected, tuple(place[d] for d in sorted(mapped)), tangent
    )
    pend(found) if claim.collector is None else claim.collector.add(found)


def _value(words: Array, dtype: DTypeLike) -> Any:
    """Returns an element from its words."""
    if jax.dtypes.issubdtype(dtype, jax.dtypes.extended):
        return words
    kind = np.dtype(dtype)
    if jnp.issubdtype(kind, jnp.integer) and jnp.iinfo(kind).bits < 8:
        return words.astype(np.uint8).view(np.int8).astype(kind)[0]
    part = kind.itemsize // len(words)
    return words.astype(_unsigned_type(part)).view(kind)[0]


# --- transformations -------------------------------------------------------------------------------------------------


def _jvp(primals: Sequence[object], tangents: Sequence[object], **params: object) -> tuple[object, object]:
    (x,), (t,) = primals, tangents
    out = check_copies_p.bind(x, **params)
    # Equal copies have equal derivatives.
    return out, t if type(t) is _ad.Zero else check_copies_p.bind(t, **{**params, "tangent": True})


def _batch(
    args: Sequence[object], dims: Sequence[int], *, mapped: tuple[int, ...], **params: object
) -> tuple[object, int]:
    (x,), (at,) = args, dims
    added = (at, *[d + (d >= at) for d in mapped])
    return check_copies_p.bind(x, mapped=added, **params), at


def _transpose(ct: jax.Array, x: jax.Array, **params: object) -> list[jax.Array]:
    return [ct]


_ad.primitive_jvps[check_copies_p] = _jvp
_ad.primitive_transposes[check_copies_p] = _transpose
batching.primitive_batchers[check_copies_p] = _batch


# --- copies in host memory, also those of the reference executor -----------------------------------------------------


def first_difference(shards: Mapping[Coordinate, Shard], claim: Claim) -> Difference | None:
    """Returns the first shard, row-major over the mesh, that differs from the copy it is claimed to equal, or None.

    Skips coordinates that are missing from `shards`.
    """
    axes = list(claim.mesh)
    limits = {axes.index(a): n for a, n in claim.limits}
    for coordinate in sorted(shards):
        other = tuple(0 if a in claim.axes else i for a, i in zip(axes, coordinate, strict=True))
        if coordinate == other or other not in shards or any(coordinate[a] >= n for a, n in limits.items()):
            continue
        difference = _compare(shards[coordinate], shards[other])
        if difference is not None:
            return Difference(claim, coordinate, other, *difference)
    return None


def _compare(x: Shard, y: Shard) -> tuple[tuple[int, ...], object, object] | None:
    """Returns the first index at which two shards differ, and both elements."""
    if not np.size(x):
        return None
    a, b = host_bits(x), host_bits(y)
    differs = (_bytes(a) != _bytes(b)).reshape(*np.shape(x), -1).any(-1)
    if not differs.any():
        return None
    index = tuple(int(i) for i in np.argwhere(differs)[0])
    return index, a[index], b[index]


def host_bits(x: Shard) -> Array:
    """Returns an array, or the key data of random keys, as NumPy array."""
    if isinstance(x, jax.Array) and jax.dtypes.issubdtype(x.dtype, jax.dtypes.extended):
        x = jax.random.key_data(x)
    return np.asarray(x)


def _bytes(array: Array) -> Array:
    """Returns the bytes of each element along a last dim; elements narrower than a byte become whole bytes."""
    if jnp.issubdtype(array.dtype, jnp.integer) and jnp.iinfo(array.dtype).bits < 8:
        array = array.astype(np.int8)
    flat = np.ascontiguousarray(array).reshape(-1)
    return flat.view(np.uint8).reshape(flat.size, array.dtype.itemsize)


def reference_rule(
    shards: Mapping[Coordinate, Shard], mesh: Mapping[str, int], params: Params
) -> dict[Coordinate, Shard]:
    """Checks copies in the reference executor; returns the shards unchanged."""
    difference = first_difference(shards, params["claim"])
    if difference is not None:
        raise error([difference])
    return dict(shards)


REFERENCE_RULES = {"check_copies": reference_rule}
