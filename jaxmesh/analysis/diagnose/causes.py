"""Why an operation is wrong, where the kind of error is known."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from jaxmesh.analysis.diagnose.culprit import Culprit
from jaxmesh.analysis.diagnose.matching import HeldValue
from jaxmesh.analysis.diagnose.movements import is_collective, short_name
from jaxmesh.analysis.diagnose.tracking import Track, split_axes
from jaxmesh.analysis.diagnose.wrong_values import WrongValue
from jaxmesh.dialects.definitions import has_trait
from jaxmesh.dialects.op import Trait
from jaxmesh.frontends.stablehlo.shardings import axes_of, show

_WINDOWS = ("conv", "max_pool", "avg_pool", "reduce_window", "pad", "cumsum", "cumprod")
_CUTS = ("slice", "index", "concat", "split", "chunk")


@dataclass(frozen=True, slots=True)
class Cause:
    """A cause: one sentence, the mesh axes, and the tensor dims of the operand that they split."""

    text: str
    axes: tuple[str, ...]
    dims: tuple[int, ...]


def cause_of(track: Track, culprit: Culprit) -> Cause:
    """Returns why an operation is wrong; the text is empty if the kind of error is not known."""
    for rule in _RULES:
        found = rule(track, culprit)
        if found is not None:
            return found
    axes = split_axes(culprit.operands)
    return Cause("", tuple(axes), _dims(culprit.operands, axes))


def _dims(operands: Sequence[HeldValue], axes: Sequence[str]) -> tuple[int, ...]:
    dims = {d for e in operands for d, split in enumerate(e.placement) if set(split) & set(axes)}
    return tuple(sorted(dims))


def _dropped_reduction(track: Track, culprit: Culprit) -> Cause | None:
    value = track.known.get(culprit.op.results[0]) if culprit.op.name != "func.return" else culprit.operands[0]
    if value is None or not value.partial:
        return None
    ops = track.stage.text.program.ops
    reader = ops[culprit.reader].name if culprit.reader < len(ops) else "the result"
    if culprit.reader == culprit.number:
        reader = "the result"
    return Cause(
        f"dropped reduction: each device holds its part of a {value.kind} over {_named(value.partial)}, and {reader} "
        "takes it for the whole",
        value.partial,
        _dims(culprit.operands, value.partial),
    )


def _wrong_reduction(track: Track, culprit: Culprit) -> Cause | None:
    if not has_trait(culprit.op.name, Trait.REDUCES) or not culprit.operands:
        return None
    (operand, *_) = culprit.operands
    axis = _axis(track, culprit)
    if axis is None or not operand.partial or operand.partial == (axis,):
        return None
    return Cause(
        f"reduction over the wrong axis: the operand holds parts of a {operand.kind} over {_named(operand.partial)}, "
        f"and the operation reduces over {axis}",
        tuple(dict.fromkeys([*operand.partial, axis])),
        _dims(culprit.operands, axes_of(operand.placement)),
    )


def _axis(track: Track, culprit: Culprit) -> str | None:
    number: Any = culprit.op.attributes.get("cluster_axis")
    names = list(track.stage.mesh)
    return names[number] if isinstance(number, int) and 0 <= number < len(names) else None


def _gather_order(track: Track, culprit: Culprit) -> Cause | None:
    if short_name(culprit.op) != "all_gather" or not culprit.operands:
        return None
    (operand, *_) = culprit.operands
    attributes: Any = culprit.op.attributes
    dim = int(attributes.get("all_gather_dim", attributes.get("dim", 0)))
    axis = _axis(track, culprit)
    split: tuple[str, ...] = operand.placement[dim] if -len(operand.placement) <= dim else ()
    if axis is None:
        return None
    if axis not in split:
        return Cause(
            f"gather over the wrong axis: dim {dim} is split over {_named(split) or 'no axis'}, and the operation "
            f"gathers over {axis}",
            tuple(dict.fromkeys([*split, axis])),
            (dim,),
        )
    if axis == list(split)[-1]:
        return None
    return Cause(
        f"gather order: dim {dim} is split over {_named(split)}, the minor axis last, and the operation gathers over "
        f"{axis} before {list(split)[-1]}, which interleaves the blocks",
        split,
        (dim,),
    )


def _misplaced(track: Track, culprit: Culprit) -> Cause | None:
    if not culprit.misplaced:
        return None
    placement = track.known[culprit.op.results[0]].placement
    number = track.operands(culprit.op)[0]
    declared = track.reference.arguments[number]
    return Cause(
        f"permuted shards: argument {number} is declared {show(declared or ())}, and the devices hold it as "
        f"{show(placement)}",
        tuple(dict.fromkeys([*axes_of(declared or ()), *axes_of(placement)])),
        tuple(d for d, axes in enumerate(placement) if axes),
    )


def _across_shards(track: Track, culprit: Culprit) -> Cause | None:
    """Slices, windows and reversals along a dim that mesh axes split."""
    name = short_name(culprit.op)
    shapes = [track.stage.text.program.types[v].shape for v in track.operands(culprit.op)]
    if is_collective(culprit.op) or not culprit.operands or not shapes:
        return None
    (operand, *_) = culprit.operands
    touched = [d for d in _touched(name, culprit, shapes[0]) if d < len(operand.placement) and operand.placement[d]]
    axes = tuple(dict.fromkeys(a for d in touched for a in operand.placement[d]))
    if not axes:
        return None
    split = f"dim {', '.join(map(str, touched))} of the operand is split over {_named(axes)}"
    if name.startswith(_CUTS):
        text = f"slice across shards: {split}, and each device cuts its own shard as if it were the whole"
    elif name in ("reverse", "flip"):
        text = f"reversal of each shard alone: {split}, and the shards are not exchanged"
    else:
        text = f"window without its neighbours: {split}, and no device has the border of the next shard"
    return Cause(text, axes, tuple(touched))


def _touched(name: str, culprit: Culprit, shape: Sequence[int]) -> list[int]:
    """Returns the dims of the operand along which an operation reads other positions than its result's."""
    attributes: Any = culprit.op.attributes
    every = range(len(shape))
    if name.startswith(_CUTS) and "begins" in attributes:
        rows = zip(attributes["begins"], attributes["ends"], shape, strict=True)
        return [d for d, (b, e, n) in enumerate(rows) if (b, e) != (0, n)]
    if name.startswith(_CUTS):
        dim = int(attributes.get("dim", -1))
        return [dim % len(shape)] if shape and dim >= 0 else list(every)
    if name in ("reverse", "flip"):
        return [int(d) for d in attributes.get("dimensions", every)]
    if name == "pad":
        padding = attributes.get("padding", ())
        return [d for d in every if any(padding[2 * d : 2 * d + 2])]
    return list(every) if name.startswith(_WINDOWS) else []


def _other_bounds(track: Track, culprit: Culprit) -> Cause | None:
    expected = culprit.expected
    if expected is None or expected.op != "stablehlo.slice" or not short_name(culprit.op).startswith("slice"):
        return None
    axes = split_axes(culprit.operands)
    return Cause("slice of other elements than the unsharded program takes", tuple(axes), _dims(culprit.operands, axes))


def _permuted(track: Track, culprit: Culprit) -> Cause | None:
    """Finds devices with the blocks of other devices."""
    value = culprit.value
    if value is None:
        return None
    swapped = [c for c in value.devices if _is_a_block(value.found[c], value)]
    if not swapped or len(swapped) < len(value.devices):
        return None
    axes = split_axes(culprit.operands) or list(axes_of(value.placement))
    return Cause("permuted shards: the devices hold each other's blocks", tuple(axes), _dims(culprit.operands, axes))


def _is_a_block(x: Any, value: WrongValue) -> bool:
    scale = float(np.max(np.abs(value.wanted))) if value.wanted.dtype.kind in "fc" else 0.0
    return any(np.allclose(x, block, rtol=0, atol=1e-5 * scale) for block in value.blocks.values())


def _named(axes: Sequence[str]) -> str:
    return ", ".join(axes)


_RULES: tuple[Callable[[Track, Culprit], Cause | None], ...] = (
    _wrong_reduction,
    _dropped_reduction,
    _misplaced,
    _gather_order,
    _across_shards,
    _other_bounds,
    _permuted,
)
