"""Why an operation is wrong, where the kind of error is known."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from jaxmesh.analysis.diagnose.culprit import Culprit
from jaxmesh.analysis.diagnose.matching import HeldValue, split_axes
from jaxmesh.analysis.diagnose.movements import is_collective, short_name
from jaxmesh.analysis.diagnose.tracking import Track, Value
from jaxmesh.analysis.diagnose.wrong_values import WrongValue
from jaxmesh.dialects.definitions import has_trait
from jaxmesh.dialects.op import Trait
from jaxmesh.dialects.program import Op, Program
from jaxmesh.frontends.mlir.upgrade import FUNCTIONS
from jaxmesh.frontends.stablehlo.gspmd import walk
from jaxmesh.frontends.stablehlo.shardings import Sharding, axes_of, show

_WINDOWS = ("conv", "max_pool", "avg_pool", "reduce_window", "pad", "cumsum", "cumprod")
_INDEXED = ("stablehlo.scatter", "stablehlo.gather", "stablehlo.dynamic_update_slice", "stablehlo.dynamic_slice")
_JOINS = ("all_gather", "all_to_all")
_REDUCTIONS = {"sum": "add", "prod": "multiply", "max": "maximum", "min": "minimum"}
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
    ops, number = track.stage.text.program.ops, culprit.reader
    is_read = number < len(ops) and number != culprit.number
    values = (*culprit.op.results, *(ops[number].used if is_read else ()))
    held = culprit.operands if culprit.op.name == "func.return" else [e for v in values for e in track.held(v)]
    value = next((e for e in held if e.partial), None)
    if value is None:
        return None
    reader = ops[number].name if is_read else "the result"
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
    axis = _axis(track, culprit.op)
    if axis is None or not operand.partial or operand.partial == (axis,):
        return None
    return Cause(
        f"reduction over the wrong axis: the operand holds parts of a {operand.kind} over {_named(operand.partial)}, "
        f"and the operation reduces over {axis}",
        tuple(dict.fromkeys([*operand.partial, axis])),
        _dims(culprit.operands, axes_of(operand.placement)),
    )


def _axis(track: Track, op: Op) -> str | None:
    """Returns the mesh axis of a collective, which all its groups of devices vary along."""
    attributes: Any = op.attributes
    number, names = attributes.get("cluster_axis"), list(track.stage.mesh)
    if isinstance(number, int) and 0 <= number < len(names):
        return names[number]
    first = np.asarray(attributes.get("replica_groups", ()))[:1].reshape(-1)
    if not first.size:
        return None
    places = np.stack(np.unravel_index(first, tuple(track.stage.mesh.values())))
    moving = [name for name, row in zip(names, places, strict=True) if len(set(row.tolist())) > 1]
    return moving[0] if len(moving) == 1 else None


_DIMS: Mapping[str, tuple[str, ...]] = {
    "all_gather": ("all_gather_dim", "dim"), "all_to_all": ("concat_dim",), "mesh_partition": ("dim",),
}  # fmt: skip
"""By collective, the attributes that may name the dim that it joins or cuts."""


def _dim(op: Op) -> int:
    attributes: Any = op.attributes
    return next((int(attributes[n]) for n in _DIMS[short_name(op)] if n in attributes), 0)


def _chain(track: Track, op: Op) -> list[Op]:
    """Returns the collectives of one kind along one dim that end with an operation, each of the one before."""
    chain = [op]
    while True:
        (value, *_) = track.operands(chain[0])
        made = track.producers.get(value)
        if made is None or short_name(made[1]) != short_name(op) or _dim(made[1]) != _dim(op):
            return chain
        chain.insert(0, made[1])


def _gather_order(track: Track, culprit: Culprit) -> Cause | None:
    op = culprit.op
    if short_name(op) not in _JOINS or not culprit.operands:
        return None
    dim, axis = _dim(op), _axis(track, op)
    found = _joined_wrongly(track, op)
    if found is not None or axis is None:
        return found
    placement: tuple[tuple[str, ...], ...] = culprit.operands[0].placement
    split: tuple[str, ...] = placement[dim] if -len(placement) <= dim < len(placement) else ()
    if axis in split or short_name(op) != "all_gather":
        return None
    return Cause(
        f"gather over the wrong axis: dim {dim} is split over {_named(split) or 'no axis'}, and the operation "
        f"gathers over {axis}",
        tuple(dict.fromkeys([*split, axis])),
        (dim,),
    )


def _joined_wrongly(track: Track, op: Op) -> Cause | None:
    """Returns the cause that shards are joined over the major of several axes first; None if they are not."""
    for first in _chain(track, op):
        (value, *_) = track.operands(first)
        placement: Sharding = track.known[value].placement if value in track.known else ()
        if found := _joined_in_order(track, first, placement):
            return found
    return None


def _joined_in_order(track: Track, op: Op, placement: Sharding) -> Cause | None:
    """Returns the cause that the first collective of a chain joins shards over another axis than the minor one."""
    dim, axis = _dim(op), _axis(track, op)
    split: tuple[str, ...] = placement[dim] if -len(placement) <= dim < len(placement) else ()
    if axis not in split or axis == (minor := list(split)[-1]):
        return None
    name = "gather" if short_name(op) == "all_gather" else short_name(op)
    return Cause(
        f"{name} order: dim {dim} is split over {_named(split)}, the minor axis last, and the operation "
        f"{'gathers' if name == 'gather' else 'joins'} over {axis} before {minor}, which interleaves the blocks",
        split,
        (dim,),
    )


def _order_in_branches(track: Track, culprit: Culprit) -> Cause | None:
    """Finds the functions of a branch or a loop that join shards in a wrong order."""
    attributes: Any = culprit.op.attributes
    for function in attributes.get(FUNCTIONS, ()):
        program: Program = function.program
        read = track.operands(culprit.op)[-len(program.arguments) :]
        known = zip((p.value for p in program.arguments), read, strict=False)
        split: dict[Value, Sharding] = {v: track.known[r].placement for v, r in known if r in track.known}
        for op in program.ops:
            operand = next((v for v in op.used if v in split), None)
            if operand is None or not op.results:
                continue
            if short_name(op) in _JOINS and (found := _joined_in_order(track, op, split[operand])):
                return found
            if program.types[op.results[0]].shape == program.types[operand].shape:
                split[op.results[0]] = split[operand]
    return None


def _earlier_order(track: Track, culprit: Culprit) -> Cause | None:
    """Finds shards that were joined in a wrong order before the operation, where no device holds a value of the
    program."""
    rest, seen = list(track.operands(culprit.op)), set[int]()
    while rest:
        value = rest.pop()
        made = track.producers.get(value)
        if made is None or made[0] in seen:
            continue
        seen.add(made[0])
        if short_name(made[1]) in _JOINS and (found := _joined_wrongly(track, made[1])):
            return found
        known = track.known.get(value)
        if known is None or known.partial or known.number >= len(track.reference.values):
            rest += track.operands(made[1])
    return None


def _partition_order(track: Track, culprit: Culprit) -> Cause | None:
    """Finds an operand that is cut over axes in another order than another operand is split."""
    operands = track.operands(culprit.op)
    if is_collective(culprit.op) or len(culprit.operands) != len(operands):
        return None
    for value, other in itertools.permutations(operands, 2):
        for axes, split in itertools.product(track.known[value].placement, track.known[other].placement):
            if axes != split and sorted(axes) == sorted(split) and _is_cut(track, value, axes):
                return Cause(
                    f"partition order: an operand is cut over {_named(axes)}, the major axis first, and the other is "
                    f"split over {_named(split)}",
                    split,
                    _dims(culprit.operands, split),
                )
    return None


def _is_cut(track: Track, value: Value, axes: Sequence[str]) -> bool:
    """Returns True if a `mesh_partition` made the split of a value over axes."""
    rest, seen = [value], set[Value]()
    while rest:
        made = track.producers.get(rest.pop())
        if made is not None and short_name(made[1]) == "mesh_partition":
            return True
        before = track.operands(made[1]) if made is not None else []
        rest += [v for v in before if v not in seen and v in track.known and axes in track.known[v].placement]
        seen.update(before)
    return False


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
    # A window spans the dims between the batch and the channels.
    inner = every[1:-1] if name.startswith(_WINDOWS[:3]) else every
    return list(inner) if name.startswith(_WINDOWS) else []


def _whole_indices(track: Track, culprit: Culprit) -> Cause | None:
    """Finds lookups and updates by indices of the whole array, in its shards."""
    expected = culprit.expected
    if expected is None or is_collective(culprit.op) or expected.op not in _INDEXED:
        return None
    whole = track.pool.same[expected.operands[0]]
    held = [e for e in track.known.values() if whole in {track.pool.same[n] for n in track.origins(e.number)}]
    split = next((e for e in held if axes_of(e.placement)), None)
    if split is None:
        return None
    axes = axes_of(split.placement)
    return Cause(
        f"indices of the whole array: the operand of {expected.op} is split over {_named(axes)}, and each device "
        "applies them to its own shard",
        tuple(axes),
        tuple(d for d, a in enumerate(split.placement) if a),
    )


def _other_bounds(track: Track, culprit: Culprit) -> Cause | None:
    expected = culprit.expected
    if expected is None or expected.op != "stablehlo.slice" or not short_name(culprit.op).startswith("slice"):
        return None
    axes = split_axes(culprit.operands)
    return Cause("slice of other elements than the unsharded program takes", tuple(axes), _dims(culprit.operands, axes))


def _left_out(track: Track, culprit: Culprit) -> Cause | None:
    """Finds a result that is an argument, or another value, where the program has an operation of it."""
    if culprit.op.name != "func.return" or culprit.expected is None:
        return None
    (value,) = culprit.op.used
    name = "the operand" if value in track.producers else f"argument {value}"
    return Cause(f"left out: the result is {name} itself, without {culprit.expected.op}", (), ())


def _other_reduction(track: Track, culprit: Culprit) -> Cause | None:
    """Finds reductions of another kind than the program's, as a count of what is true for whether any is."""
    expected, name = culprit.expected, short_name(culprit.op)
    if expected is None or expected.op != "stablehlo.reduce" or name not in _REDUCTIONS:
        return None
    body = [o.name.partition(".")[2] for o in walk(expected.value.owner) if o.name != "stablehlo.return"]
    if body == [_REDUCTIONS[name]]:
        return None
    return Cause(f"another reduction: the program's is by {', '.join(body)}, and the operation is {name}", (), ())


def _other_type(track: Track, culprit: Culprit) -> Cause | None:
    """Finds integers of another width than in the program, which wrap elsewhere."""
    if culprit.expected is None or is_collective(culprit.op):
        return None
    wanted = culprit.expected.array.dtype
    held = track.stage.text.program.types[culprit.op.results[0]].dtype
    if {wanted.kind, held.kind} - {"i", "u"} or wanted.itemsize == held.itemsize:
        return None
    return Cause(f"integers of another width: {wanted} in the program, and {held} in the operation", (), ())


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
    _partition_order,
    _across_shards,
    _other_bounds,
    _whole_indices,
    _order_in_branches,
    _earlier_order,
    _left_out,
    _other_reduction,
    _other_type,
    _permuted,
)
