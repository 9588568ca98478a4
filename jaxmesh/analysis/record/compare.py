"""Compares two recordings: finds the first equation and the first device that differ."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import jax.numpy as jnp

from jaxmesh.analysis.record.align import TRANSFERS, align
from jaxmesh.analysis.record.comparison import ComparedValue, Comparison, Thresholds, as_number
from jaxmesh.analysis.record.entry import Coordinate, Entry
from jaxmesh.analysis.record.metrics import Apart, Array, apart, rounding_unit
from jaxmesh.analysis.record.recording import Recording
from jaxmesh.analysis.record.source_path import ARGUMENT
from jaxmesh.errors import ArgumentTypeError, ArgumentValueError, RecordingError
from jaxmesh.jaxprs import primitives
from jaxmesh.runtime.progress import progress
from jaxmesh.validate import as_bool, as_instance, quote

PCC = 0.99
"""The default minimum correlation of Tenstorrent's tools (`comp_pcc` of tt-metal, ttrt of tt-mlir)."""

_FINE, _COARSE = 16, 2
"""The difference that counts as equal, in rounding units of the largest value: for float32 and wider, and for narrower
floats."""

_FLOAT32 = 1e-6
_CARRIED = 4
"""The number of rounding units of the narrowest earlier float that a wider float may differ by."""

_EXACT = TRANSFERS | primitives.EXACT | {ARGUMENT}
"""Operations whose results are equal bit for bit if their operands are."""


@progress("compare")
def compare(
    a: Recording,
    b: Recording,
    *,
    pcc: float = PCC,
    rtol: float | None = None,
    atol: float = 0.0,
    exact: bool = False,
) -> Comparison:
    """Finds where two recordings first differ: the equation, in program order, and the device, row-major.

    Values are matched by source location, op, and the path through loops and branches. Values that an edit moved to
    other lines or columns are matched in order, by function, path, op and type. A `mesh_shard` is matched with
    its `distribute_tensor` or `aggregate_tensor`. Values in only one recording are listed, and are not a
    difference: the pass cancels, hoists and inserts transfers. A full value is compared with every device's copy.

    Integers, booleans and random keys have to be equal. So have results of data movement, while all earlier values are
    equal to the bit. Computed floats pass within rounding: 16 units of rounding of the largest value, or 2 units for
    floats of less than 32 bits. Beyond, they pass within `rtol` and with a correlation of at least `pcc`, as in
    tt-metal's `comp_pcc`; the correlation alone would miss a wrong factor.

    Args:
      a: the reference recording.
      b: the recording to compare with it.
      pcc: the minimum correlation; -1 disables the check.
      rtol: the largest difference, relative to the largest magnitude in the value; by default the square root of the
        dtype's unit of rounding (float32: 3.5e-4, bfloat16: 0.088), or 4 units of an earlier, narrower float;
        `math.inf` leaves it to `pcc` alone.
      atol: a difference that is always allowed.
      exact: True if all bits have to be equal.

    Returns:
      A comparison: true if nothing differs; `.first` is the first difference, `.rows` are all values.

    Raises:
      ArgumentTypeError: `a` or `b` is not a recording, or a threshold is not a number.
      ArgumentValueError: a threshold out of range.
      RecordingError: the recordings are of different meshes, or have no value in common.

    >>> import jax.numpy as jnp, jaxmesh as jm
    >>> from jax.sharding import PartitionSpec as P
    >>> @jm.jit(mesh=jm.make_mesh((2, 4)))
    ... def scaled(x, k):
    ...     return jm.shard_to_full(jm.full_to_shard(x, P("y")) * k, P("y"))
    >>> traced = scaled.trace(jnp.ones(4), 2.0)
    >>> first = jm.compare(traced.record(jnp.ones(4), 2.0), traced.record(jnp.ones(4), 3.0)).first
    >>> first.op, first.status, first.value, first.other
    ('argument', 'different', 2.0, 3.0)
    """
    for name, recording in (("a", a), ("b", b)):
        as_instance(Recording, "compare", name, recording)
    thresholds = Thresholds(
        _threshold("pcc", pcc, -1.0, 1.0),
        None if rtol is None else _threshold("rtol", rtol, 0.0, math.inf),
        _threshold("atol", atol, 0.0, math.inf),
        as_bool("compare", "exact", exact),
    )
    if tuple(a.mesh.items()) != tuple(b.mesh.items()):
        raise RecordingError(
            f"compare was given recordings of two meshes, {dict(a.mesh)} and {dict(b.mesh)}; devices have partners "
            "only on the same mesh. Record both on one."
        )
    pairs = align(a.entries, b.entries)
    if not any(x is not None and y is not None and x.place.op != ARGUMENT for x, y in pairs):
        raise RecordingError(
            f"compare found no value that both recordings have, of the {len(a)} of {a.name!r} and the {len(b)} of "
            f"{b.name!r}: values are matched by source location, so record two runs of the same source."
        )
    judge = _Judge(thresholds, clean=not (a.partial or b.partial))
    return Comparison(a.name, a.level, b.level, dict(a.mesh), thresholds, tuple(judge.row(x, y) for x, y in pairs))


def _threshold(name: str, value: float, least: float, most: float) -> float:
    try:
        number = math.nan if isinstance(value, (bool, str)) else float(value)
    except Exception:
        number = math.nan
    if math.isnan(number):
        raise ArgumentTypeError(f"compare takes a number as {name}, got {quote(value)}.")
    if not least <= number <= most:
        raise ArgumentValueError(f"compare takes as {name} a number from {least:g} to {most:g}, got {quote(value)}.")
    return number


@dataclass(slots=True)
class _Judge:
    """Judges values in program order; `clean` is True while all values are equal to the bit."""

    thresholds: Thresholds
    clean: bool
    narrowest: float = 0.0
    """The largest rounding unit of a float so far: XLA may keep more bits of such values, or fewer bits of later
    values."""

    def row(self, a: Entry | None, b: Entry | None) -> ComparedValue:
        if b is None:
            assert a is not None
            return ComparedValue.of(a, a, "only in a")
        if a is None:
            return ComparedValue.of(b, b, "only in b")
        self.narrowest = max(self.narrowest, rounding_unit(a.dtype))
        why = _types_differ(a, b)
        result: ComparedValue = ComparedValue.of(a, b, "different", why=why) if why else self._values(a, b)
        self.clean = self.clean and result.status == "equal"
        return result

    def _values(self, a: Entry, b: Entry) -> ComparedValue:
        a, b = a.read(), b.read()
        common, missing = _coordinates(a, b)
        pairs = [(a.at(c), b.at(c)) for c in common]
        copies = [(x, y.reshape(x.shape)) for x, y in pairs]
        # Copies that share memory are compared once.
        shared = all(e.coordinates is None or not e.data.strides[0] for e in (a, b))
        metrics = [apart(x, y) for x, y in (copies[:1] if shared else copies)]
        metrics = metrics * len(copies) if shared else metrics
        numbers = _worst(metrics)
        exact = a.place.op in _EXACT and b.place.op in _EXACT and self.clean
        for coordinate, (x, y), result in zip(common, copies, metrics, strict=True):
            why, at = self._verdict(result, x, exact)
            if at is not None:
                element = {"index": at, "value": as_number(x[at]), "other": as_number(y[at])}
                return ComparedValue.of(a, b, "different", coordinate=coordinate or None, why=why, **element, **numbers)
        if missing is not None:
            why = "only one of them made it on this device"
            return ComparedValue.of(a, b, "different", coordinate=missing, why=why, **numbers)
        return ComparedValue.of(a, b, "equal" if all(r.same for r in metrics) else "close", **numbers)

    def _verdict(self, metrics: Apart, x: Array, exact: bool) -> tuple[str, tuple[int, ...] | None]:
        """Returns the reason why two arrays differ and the element; the element is None if they agree."""
        limits = self.thresholds
        if metrics.same or (not limits.exact and metrics.largest == 0):
            # 0.0 equals -0.0, and every NaN equals every NaN.
            return "", None
        if limits.exact or exact or not jnp.issubdtype(x.dtype, jnp.inexact):
            rule = "exact=True" if limits.exact else "data only moves" if exact else "no float"
            return f"bits differ ({rule})", metrics.index
        eps = rounding_unit(x.dtype)
        units = _FINE if eps < _FLOAT32 else _COARSE
        if metrics.largest <= limits.atol + units * eps * metrics.scale:
            return "", None
        rtol = max(math.sqrt(eps), _CARRIED * self.narrowest) if limits.rtol is None else limits.rtol
        allowed = math.inf if math.isinf(rtol) else limits.atol + rtol * metrics.scale
        if metrics.largest > allowed or (math.isinf(metrics.largest) and not math.isinf(rtol)):
            return f"largest difference {metrics.largest:.3g} > {allowed:.3g}", metrics.worst
        # The correlation of a constant is undefined, so it counts only if nothing else is checked.
        if (metrics.defined or math.isinf(rtol)) and metrics.pcc < limits.pcc:
            return f"pcc {metrics.pcc:.6g} < {limits.pcc:g}", metrics.worst
        return "", None


def _types_differ(a: Entry, b: Entry) -> str:
    if a.dtype != b.dtype or a.key != b.key:
        return f"dtypes {a.key or a.dtype} and {b.key or b.dtype}"
    moved = a.place.op in TRANSFERS and b.place.op in TRANSFERS and math.prod(a.shape) == math.prod(b.shape)
    # The pass inserts reshapes around a transfer, which keep the order of elements.
    return "" if a.shape == b.shape or (moved and a.place.op != b.place.op) else f"shapes {a.shape} and {b.shape}"


def _coordinates(a: Entry, b: Entry) -> tuple[Sequence[Coordinate], Coordinate | None]:
    """Returns the devices to compare, and the first device that only one entry contains."""
    if a.coordinates is None or b.coordinates is None:
        return a.coordinates or b.coordinates or ((),), None
    apart_at = sorted(set(a.coordinates) ^ set(b.coordinates))
    return sorted(set(a.coordinates) & set(b.coordinates)), apart_at[0] if apart_at else None


def _worst(metrics: Sequence[Apart]) -> dict[str, object]:
    """Returns the smallest correlation and the largest differences of all devices, as fields of a row."""
    return {
        "pcc": min((f.pcc for f in metrics), default=1.0),
        "largest": max((f.largest for f in metrics), default=0.0),
        "relative": max((f.relative for f in metrics), default=0.0),
        "ulps": max((f.ulps for f in metrics), default=0),
    }
