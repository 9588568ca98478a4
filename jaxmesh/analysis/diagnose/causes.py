"""Why an operation is wrong: a cause is named if performing what it says gives the right value."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from jaxmesh.analysis.diagnose.culprit import Culprit
from jaxmesh.analysis.diagnose.matching import HeldValue, split_axes
from jaxmesh.analysis.diagnose.movements import (
    Shapes,
    is_collective,
    joined_dim,
    mesh_axis,
    of_whole,
    performed,
    short_name,
)
from jaxmesh.analysis.diagnose.proof import Prover
from jaxmesh.analysis.diagnose.proposals import Proposal
from jaxmesh.analysis.diagnose.repairs import reductions, repairs
from jaxmesh.analysis.diagnose.rounding import error_of
from jaxmesh.analysis.diagnose.stage import Array, Copies
from jaxmesh.analysis.diagnose.tracking import Track
from jaxmesh.dialects.definitions import has_trait
from jaxmesh.dialects.op import Trait
from jaxmesh.dialects.program import Op
from jaxmesh.frontends.stablehlo.gspmd import walk
from jaxmesh.frontends.stablehlo.shardings import axes_of, show

_WINDOWS = ("conv", "max_pool", "avg_pool", "reduce_window", "pad", "cumsum", "cumprod")
_INDEXED = ("stablehlo.scatter", "stablehlo.gather", "stablehlo.dynamic_update_slice", "stablehlo.dynamic_slice")
_JOINS = ("all_gather", "all_to_all")
_REDUCTIONS = {"sum": "add", "prod": "multiply", "max": "maximum", "min": "minimum"}
_CUTS = ("slice", "index", "concat", "split", "chunk")
_REPAIRS, _SECONDS = 96, 4.0
"""The most repairs that are tried for a cause, and the longest time."""


@dataclass(frozen=True, slots=True)
class Cause:
    """A cause: one sentence, the mesh axes, and the tensor dims of the operand that they split."""

    text: str
    axes: tuple[str, ...]
    dims: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class _Case:
    """A wrong operation, with the runs that prove causes."""

    track: Track
    culprit: Culprit
    prover: Prover
    target: Proposal

    @property
    def op(self) -> Op:
        return self.target.op

    def gives(self, copies: Copies | None) -> bool:
        """Returns True if copies are the right value."""
        return copies is not None and self.prover.is_alike(copies, self.target)

    def performed(self, op: Op, operands: Sequence[Copies]) -> Copies | None:
        """Returns the first result of an operation for other operands."""
        found = self.prover.replay.perform(op, operands)
        return None if found is None else found[op.results.index(self.target.value)]

    def operands(self) -> list[Copies]:
        return [self.prover.replay.copies(v) for v in self.track.operands(self.op)]


def cause_of(track: Track, culprit: Culprit) -> Cause:
    """Returns why an operation is wrong; the text is empty if no cause is proven."""
    axes = split_axes(culprit.operands)
    none = Cause("", tuple(axes), _dims(culprit.operands, axes))
    if culprit.op.name == "func.return":
        return _left_out(track, culprit) or _laid_out(track, culprit) or none
    if culprit.proof is None or culprit.prover is None or culprit.between is not None:
        return none
    case = _Case(track, culprit, culprit.prover, culprit.proof.proposal)
    if case.gives(case.prover.replay.copies(case.target.value)):
        return _other_type(case) or none
    return next((found for rule in _RULES if (found := rule(case)) is not None), none)


def _dims(operands: Sequence[HeldValue], axes: Sequence[str]) -> tuple[int, ...]:
    return tuple(sorted({d for e in operands for d, split in enumerate(e.placement) if set(split) & set(axes)}))


def _named(axes: Sequence[str]) -> str:
    return ", ".join(axes)


# --- reductions over devices -----------------------------------------------------------------------------------------


def _wrong_reduction(case: _Case) -> Cause | None:
    if not has_trait(case.op.name, Trait.REDUCES) or not is_collective(case.op):
        return None
    axis = mesh_axis(case.op, case.track.stage.mesh)
    for axes, kind, found in reductions(case.operands()[0], case.track.stage.mesh):
        if axis is not None and axes != (axis,) and case.gives(found):
            return Cause(
                f"reduction over the wrong axis: the operand holds parts of a {kind} over {_named(axes)}, and the "
                f"operation reduces over {axis}",
                tuple(dict.fromkeys([*axes, axis])),
                _dims(case.culprit.operands, axes_of(case.culprit.operands[0].placement))
                if case.culprit.operands
                else (),
            )
    return None


def _dropped_reduction(case: _Case) -> Cause | None:
    copies = case.prover.replay.copies(case.target.value)
    # Copies on all devices add up to a multiple.
    for axes, kind, found in reductions(copies, case.track.stage.mesh):
        if case.gives(found):
            return _parts(case, axes, kind, "what follows")
    read = case.operands()
    for number, operand in enumerate(read if not is_collective(case.op) else ()):
        held = case.track.held(case.track.operands(case.op)[number])
        for axes, kind, found in reductions(operand, case.track.stage.mesh) if any(e.partial for e in held) else ():
            if case.gives(case.performed(case.op, [*read[:number], found, *read[number + 1 :]])):
                return _parts(case, axes, kind, "the operation")
    return None


def _parts(case: _Case, axes: tuple[str, ...], kind: str, reader: str) -> Cause:
    return Cause(
        f"dropped reduction: each device holds its part of a {kind} over {_named(axes)}, and {reader} takes it for the "
        "whole",
        axes,
        _dims(case.culprit.operands, axes),
    )


# --- the order of blocks ---------------------------------------------------------------------------------------------


def _gather_order(case: _Case) -> Cause | None:
    """Finds shards that are joined over the major of several axes first: the blocks of the right value, by that."""
    op, track = case.op, case.track
    if short_name(op) not in _JOINS:
        return None
    dim, chain = joined_dim(op), [op]
    while True:
        (value, *_) = track.operands(chain[0])
        made = track.producers.get(value)
        if made is None or short_name(made[1]) != short_name(op) or joined_dim(made[1]) != dim:
            break
        chain.insert(0, made[1])
    known = track.known.get(track.operands(chain[0])[0])
    expected, axis = case.target.expected, mesh_axis(chain[0], track.stage.mesh)
    if (
        known is None
        or expected is None
        or track.pool.same[expected] not in map(track.pool.same.__getitem__, track.origins(known.number))
    ):
        return None
    split = known.placement[dim] if -len(known.placement) <= dim < len(known.placement) else ()
    if axis not in split or axis == (minor := list(split)[-1]):
        return None
    name = "gather" if short_name(op) == "all_gather" else short_name(op)
    return Cause(
        f"{name} order: dim {dim} is split over {_named(split)}, the minor axis last, and the operation "
        f"{'gathers' if name == 'gather' else 'joins'} over {axis} before {minor}, which interleaves the blocks",
        split,
        (dim,),
    )


def _partition_order(case: _Case) -> Cause | None:
    """Finds an operand that is cut over axes in another order than another operand is split."""
    track, operands, read = case.track, case.track.operands(case.op), case.operands()
    if is_collective(case.op) or not all(v in track.known for v in operands):
        return None
    for at, other in itertools.permutations(range(len(operands)), 2):
        if not track.is_cut(operands[at]):
            continue
        held, beside = track.known[operands[at]], track.known[operands[other]]
        for dim, split in itertools.product(range(len(held.placement)), beside.placement):
            if held.placement[dim] == split or sorted(held.placement[dim]) != sorted(split):
                continue
            placement = (*held.placement[:dim], split, *held.placement[dim + 1 :])
            kind = track.stage.text.program.types[operands[at]]
            cut = {c: track.pool.block(held.number, placement, c).astype(kind.dtype) for c in read[at]}
            if case.gives(case.performed(case.op, [*read[:at], cut, *read[at + 1 :]])):
                return Cause(
                    f"partition order: an operand is cut over {_named(held.placement[dim])}, the major axis first, and "
                    f"the other is split over {_named(split)}",
                    tuple(split),
                    _dims(case.culprit.operands, split),
                )
    return None


def _permuted(case: _Case) -> Cause | None:
    """Finds devices with the blocks of other devices."""
    value, track = case.culprit.value, case.track
    if value is None or not is_collective(case.op):
        return None
    number = next(iter(track.operands(case.op)), -1)
    axes = tuple(split_axes(case.culprit.operands) or axes_of(value.placement))
    if track.misplaced.intersection(case.op.results) and number < len(track.reference.arguments):
        declared, held = track.reference.arguments[number] or (), track.known[case.target.value].placement
        return Cause(
            f"permuted shards: argument {number} is declared {show(declared)}, and the devices hold it as {show(held)}",
            tuple(dict.fromkeys([*axes_of(declared), *axes_of(held)])),
            tuple(d for d, split in enumerate(held) if split),
        )
    swapped = [c for c in value.devices if any(_is_block(value.found[c], b) for b in value.blocks.values())]
    if not swapped or len(swapped) < len(value.devices):
        return None
    return Cause("permuted shards: the devices hold each other's blocks", axes, _dims(case.culprit.operands, axes))


def _is_block(x: Array, block: Array) -> bool:
    scale = float(np.max(np.abs(block), initial=0.0)) if block.dtype.kind in "fc" else 0.0
    return x.size > 1 and bool(np.allclose(x, block, rtol=0, atol=1e-5 * scale))


# --- operations of shards --------------------------------------------------------------------------------------------


def _across_shards(case: _Case) -> Cause | None:
    """Finds operations that are right on the whole operands, and wrong on the shards of each device."""
    track, op, expected = case.track, case.op, case.target.expected
    operands = track.operands(op)
    if is_collective(op) or expected is None or len(op.results) != 1 or not all(v in track.known for v in operands):
        return None
    known, types = [track.known[v] for v in operands], track.stage.text.program.types
    touched = [d for d in _touched(op, types[operands[0]].shape) if d < len(known[0].placement)] if known else []
    axes = tuple(dict.fromkeys(a for d in touched for a in known[0].placement[d]))
    if not split_axes(known):
        return None

    def perform(arrays: Sequence[Array], shapes: Shapes) -> Iterator[Array | None]:
        return performed(of_whole(op, known[0].placement, track.stage.mesh), types, arrays, shapes)

    wanted = track.pool.arrays[expected]
    limit, scale = track.pool.limit(expected, track.units.get(case.target.value, 0.0), 0.0), track.pool.scale(expected)
    for array, apart in track.on_global(op, known, perform):
        if not apart and array.shape == wanted.shape and error_of(array, wanted, scale) <= limit:
            return _of_shards(case, axes or tuple(split_axes(known)), touched, known)
    return None


def _of_shards(case: _Case, axes: tuple[str, ...], touched: Sequence[int], known: Sequence[HeldValue]) -> Cause | None:
    name, expected = short_name(case.op), case.culprit.expected
    dims = tuple(d for d in touched if known[0].placement[d])
    split = f"dim {', '.join(map(str, dims))} of the operand is split over {_named(axes)}"
    if expected is not None and expected.op in _INDEXED:
        text = (
            f"indices of the whole array: the operand of {expected.op} is split over {_named(axes)}, and each device "
            "applies them to its own shard"
        )
    elif dims and name.startswith(_CUTS):
        text = f"slice across shards: {split}, and each device cuts its own shard as if it were the whole"
    elif dims and name in ("reverse", "flip"):
        text = f"reversal of each shard alone: {split}, and the shards are not exchanged"
    elif dims and name.startswith(_WINDOWS):
        text = f"window without its neighbours: {split}, and no device has the border of the next shard"
    else:
        return None
    return Cause(text, axes, dims)


def _touched(op: Op, shape: Sequence[int]) -> list[int]:
    """Returns the dims of the operand along which an operation reads other positions than its result's."""
    attributes: Any = op.attributes
    name, every = short_name(op), range(len(shape))
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
    # A window spans the dims between the batch and the channels.
    inner = every[1:-1] if name.startswith(_WINDOWS[:3]) else every
    return list(inner) if name.startswith(_WINDOWS) else []


# --- other operations ------------------------------------------------------------------------------------------------


def _other_type(case: _Case) -> Cause | None:
    """Finds integers of another width than in the program, which wrap elsewhere."""
    if case.culprit.expected is None or is_collective(case.op):
        return None
    wanted, held = case.culprit.expected.array.dtype, case.track.stage.text.program.types[case.target.value].dtype
    if {wanted.kind, held.kind} - {"i", "u"} or wanted.itemsize == held.itemsize:
        return None
    copies = case.prover.replay.copies(case.target.value)
    if wanted.itemsize < held.itemsize and not case.gives(
        {c: x.astype(wanted).astype(held) for c, x in copies.items()}
    ):
        return None
    return Cause(f"integers of another width: {wanted} in the program, and {held} in the operation", (), ())


def _repaired(case: _Case) -> Cause | None:
    """Finds the one thing that makes an operation right: an attribute, the order of its operands, another kind."""
    track, op, start = case.track, case.op, time.monotonic()
    read = track.operands(op)
    copies = dict(zip(read, case.operands(), strict=True))
    shapes = [track.stage.text.program.types[v].shape for v in read]
    for repaired, words in itertools.islice(repairs(op, shapes, len(track.stage.mesh)), _REPAIRS):
        if time.monotonic() - start > _SECONDS:
            return None
        if case.gives(case.performed(repaired, [copies[v] for v in track.operands(repaired)])):
            axes = split_axes(case.culprit.operands)
            return Cause(_as_text(case, repaired, words), tuple(axes), _dims(case.culprit.operands, axes))
    return None


def _as_text(case: _Case, repaired: Op, words: str) -> str:
    expected, name = case.culprit.expected, short_name(case.op)
    if expected is not None and expected.op == "stablehlo.reduce" and repaired.name != case.op.name:
        return f"another reduction: the program's is by {_body(expected)}, and the operation is {name}"
    return f"{'slice of other elements: ' if 'begins' in words else ''}with {words} it is right"


def _body(expected: Any) -> str:
    return ", ".join(o.name.partition(".")[2] for o in walk(expected.value.owner) if o.name != "stablehlo.return")


def _other_reduction(case: _Case) -> Cause | None:
    """Finds reductions of truth values or of two operations by one operation of numbers, which is another function."""
    expected, name = case.culprit.expected, short_name(case.op)
    if expected is None or expected.op != "stablehlo.reduce" or name not in _REDUCTIONS:
        return None
    body = _body(expected)
    return (
        None
        if body == _REDUCTIONS[name]
        else Cause(f"another reduction: the program's is by {body}, and the operation is {name}", (), ())
    )


# --- results ---------------------------------------------------------------------------------------------------------


def _left_out(track: Track, culprit: Culprit) -> Cause | None:
    """Finds a result that is an argument, or another value, where the program has an operation of it."""
    expected, (value,) = culprit.expected, culprit.op.used
    held = {track.pool.same[e.number] for e in track.held(value)}
    if expected is None or not held & {track.pool.same[n] for n in expected.operands}:
        return None
    name = "the operand" if value in track.producers else f"argument {value}"
    return Cause(f"left out: the result is {name} itself, without {expected.op}", (), ())


def _laid_out(track: Track, culprit: Culprit) -> Cause | None:
    """Finds a result that the devices hold otherwise than the program asks."""
    (value,) = culprit.op.used
    number = next(i for i, o in enumerate(track.outputs) if o.value == value)
    known, asked = track.known.get(value), track.reference.results[number]
    if known is None or asked is None or culprit.expected is not None or known.partial:
        return None
    axes = tuple(dict.fromkeys([*axes_of(asked), *axes_of(known.placement)]))
    return Cause(
        f"result {number} is asked as {show(asked)} and made as {show(known.placement)}",
        axes,
        tuple(d for d, (a, b) in enumerate(itertools.zip_longest(asked, known.placement, fillvalue=())) if a != b),
    )


_RULES: tuple[Callable[[_Case], Cause | None], ...] = (
    _wrong_reduction,
    _dropped_reduction,
    _gather_order,
    _partition_order,
    _across_shards,
    _permuted,
    _other_type,
    _repaired,
    _other_reduction,
)
