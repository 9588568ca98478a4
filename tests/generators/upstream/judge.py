"""What Tenstorrent's compiler makes of a program: its texts, run on emulated devices, beside the program unsharded."""

from __future__ import annotations

import re
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np

import jaxmesh as jm
from jaxmesh.errors import JaxmeshError, UpstreamError
from jaxmesh.frontends.stablehlo.text import BoundaryShardings, read_boundary
from tests.generators.upstream.program import Candidate

Array = np.ndarray[Any, Any]
RIGHT, LESS_PRECISE, WRONG, REFUSED = "right", "less precise", "wrong", "refused"
NOT_COMPARABLE, NOT_LOWERED = "not comparable", "not lowered"
EXACT, ROUNDED = 1e-4, {"ttir": 1e-3, "ttnn": 2e-2}
"""Largest differences, as parts of the largest number: of right values, and of values that are rounded otherwise."""
SECONDS = 120.0
"""The time limit of a program."""
_wanted: dict[str, list[Array]] = {}


@dataclass(frozen=True)
class Judged:
    """What the compiler makes of a program.

    Attributes:
      family: of the program.
      text: the program.
      verdict: by the values alone.
      op: the operation that the diagnosis names, or that the compiler refuses.
      cause: the cause of the diagnosis, or the reason of the refusal.
      errors: by text the largest difference from the unsharded program, as a part of its largest number.
      unread: by text why jaxmesh does not run it.
      diagnosis: the verdict of `diagnose`.
    """

    family: str
    text: str
    verdict: str
    op: str = ""
    cause: str = ""
    errors: dict[str, float] = field(default_factory=dict[str, float])
    unread: dict[str, str] = field(default_factory=dict[str, str])
    diagnosis: str = ""

    @property
    def key(self) -> tuple[str, str, str]:
        """What programs of one cause have in common."""
        return self.verdict, self.op, normalised(self.cause)


def normalised(text: str) -> str:
    """Returns a message without what differs between programs of one cause.

    >>> normalised("dim 1 of %3 is split over y, x: tensor<8x16xf32>")
    'dim # of %# is split over y, x: tensor<..>'
    """
    text = re.sub(r"tensor<[^>]*>", "tensor<..>", text)
    return re.sub(r"-?\b\d+(\.\d+)?\b", "#", re.sub(r"\b\d+(x\d+)+\b", "#", text))


def judge(candidate: Candidate, *, every: bool = True) -> Judged:
    """Compiles a program, runs what was printed, and compares; diagnoses the right ones too, if `every`."""
    with warnings.catch_warnings(), jax.enable_x64(candidate.wide):
        warnings.simplefilter("ignore")
        about = candidate.family, candidate.text
        try:
            lowered = jm.jit(candidate.fun, **candidate.options).lower(*candidate.args)
        except JaxmeshError as error:
            return Judged(*about, NOT_LOWERED, "", f"{type(error).__name__}: {error}")
        try:
            result = lowered.upstream(timeout=SECONDS)
        except UpstreamError as error:
            if "cannot compile" in str(error):
                raise  # It did not start, which says nothing of the program.
            return Judged(*about, REFUSED, "the compiler", str(error))
        if result.refusal is not None:
            return Judged(*about, REFUSED, operation_of(result.refusal.name), result.refusal.message, {}, {}, REFUSED)
        return _compared(candidate, result, every)


def operation_of(name: str) -> str:
    """Returns the operation of a name of JAX.

    >>> operation_of("jit(f)/jvp(g)/reduce_prod")
    'reduce_prod'
    """
    return name.rpartition("/")[2]


def _compared(candidate: Candidate, result: Any, every: bool) -> Judged:
    wanted, arguments = unsharded(candidate), jax.tree.leaves(candidate.args)
    ends = read_boundary(result.text("shlo_compiler"))
    errors, unread = dict[str, float](), dict[str, str]()
    is_narrow = any(x.dtype.itemsize < 4 and x.dtype.kind not in "iub" for x in wanted)
    limits = dict.fromkeys(ROUNDED, max(ROUNDED.values())) if is_narrow else ROUNDED
    for dialect in limits:
        try:
            found = result.program(dialect).lower().compile()(*arguments)
        except JaxmeshError as error:
            unread[dialect] = f"{type(error).__name__}: {error}"
            continue
        errors[dialect] = difference(jax.tree.leaves(found, is_leaf=is_mesh_tensor), wanted, ends)
        if errors[dialect] > limits[dialect]:
            break
    verdict, about = _verdict(errors, unread, limits), (candidate.family, candidate.text)
    if verdict == RIGHT and not every:
        return Judged(*about, verdict, errors=errors)
    try:
        made = result.diagnose(*arguments)
    except JaxmeshError as error:
        unread["diagnose"] = f"{type(error).__name__}: {error}"
        return Judged(*about, verdict, "", "", errors, unread)
    named = made.op
    if made.between is not None and made.culprit is not None:
        # Several operations may be the wrong one.
        named = f"up to {made.culprit.op.name}"
    cause = made.cause if made.cause or not named else f"instead of {made.expected.partition(' ')[0]}"
    return Judged(*about, verdict, named, cause, errors, unread, made.verdict)


def unsharded(candidate: Candidate) -> list[Array]:
    """Returns what the program yields without shardings."""
    if candidate.key not in _wanted:
        _wanted[candidate.key] = [np.asarray(x) for x in jax.tree.leaves(jax.jit(candidate.plain)(*candidate.args))]
    return _wanted[candidate.key]


def _verdict(errors: Mapping[str, float], unread: Mapping[str, str], limits: Mapping[str, float]) -> str:
    if any(error > limits[dialect] for dialect, error in errors.items()):
        return WRONG
    if unread:
        return NOT_COMPARABLE
    return RIGHT if max(errors.values()) <= EXACT else LESS_PRECISE


def is_mesh_tensor(value: Any) -> bool:
    """Returns True for a leaf of results that stays on the devices."""
    return isinstance(value, jm.MeshTensor)


def difference(found: Sequence[Any], wanted: Sequence[Array], ends: BoundaryShardings) -> float:
    """Returns the largest difference of any element on any device, as a part of the largest number; NaN equals NaN.

    A result of which the devices hold parts is compared part by part, as the compiler says that it is split.
    """
    worst = 0.0 if len(found) == len(wanted) else np.inf
    for value, want, end in zip(found, wanted, ends.results, strict=False):
        if not is_mesh_tensor(value):
            worst = max(worst, _distance(np.asarray(value), want, _largest(want)))
            continue
        for coordinate, held in value.shards():
            index = slices(want.shape, ((),) * want.ndim if end is None else end[1], ends.axes, coordinate)
            worst = max(worst, _distance(np.asarray(held), want[index], _largest(want)))
    return worst


def slices(
    shape: Sequence[int], split: Sequence[Sequence[str]], sizes: Mapping[str, int], coordinate: Sequence[int]
) -> tuple[slice, ...]:
    """Returns the part of an array that a device holds, the major axis of each dim first.

    >>> slices((8, 4), (("y", "x"), ()), {"y": 2, "x": 4}, (1, 2))
    (slice(6, 7, None), slice(0, 4, None))
    """
    at, found = dict(zip(sizes, coordinate, strict=False)), list[slice]()
    for size, axes in zip(shape, split, strict=True):
        position = 0
        for axis in axes:
            size, position = size // sizes[axis], position * sizes[axis] + at[axis]
        found.append(slice(position * size, (position + 1) * size))
    return tuple(found)


def _distance(found: Array, wanted: Array, scale: float) -> float:
    if found.shape != wanted.shape:
        return np.inf
    x, y = found.astype(np.float64), wanted.astype(np.float64)
    same = (x == y) | (np.isnan(x) & np.isnan(y))
    gap = np.where(same, 0.0, np.abs(np.where(same, 0.0, x) - np.where(same, 0.0, y)))
    return float(np.nan_to_num(gap, nan=np.inf).max(initial=0.0)) / scale


def _largest(wanted: Array) -> float:
    numbers = np.abs(wanted.astype(np.float64))
    return max(float(numbers[np.isfinite(numbers)].max(initial=0.0)), 1e-30)
