"""What devices do together in random programs: mesh_shards and collectives; how drawn, written, typed, and meant."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from tests.generators.programs.elementwise import MOST, Params
from tests.generators.programs.values import (
    LIMITS,
    Array,
    Axes,
    Coordinate,
    Copies,
    Draw,
    Misfit,
    Rows,
    World,
    axes_text,
    is_float,
    narrow,
    spec_text,
    wide,
)

Meaning = Callable[[World, Copies, Params], Mapping[Coordinate, Array]]


@dataclass(frozen=True)
class Move:
    """One operation of all devices together.

    Attributes:
      arity: how many operands it takes: 1, or 0.
      drawn: what else it says, for the operand (as one device has it) and the axes it varies over; None if it does
        not fit.
      text: the JAX expression.
      typed: the axes the result varies over.
      meaning: what each device has of the result.
      splits: whether it is a mesh_shard, which has no place in a mapped function.
    """

    arity: int
    drawn: Callable[[Draw, World, Array, Axes], Params | None]
    text: Callable[[str, Params, World], str]
    typed: Callable[[World, Axes, Params], Axes]
    meaning: Meaning
    splits: bool = False


MOVES: dict[str, Move] = {}


def drawn_rows(draw: Draw, world: World, shape: tuple[int, ...], needed: Axes = frozenset()) -> Rows | None:
    """A sharding of some rank, in which the needed axes stand somewhere; None if they cannot."""
    rows: list[list[str]] = [[] for _ in shape]
    for axis in _shuffled(draw, world.names):
        if axis in needed and not shape:
            return None
        if axis in needed or (shape and draw.integers(0, 2)):
            rows[draw.integers(0, len(shape) - 1)].append(axis)
    return tuple(tuple(row) for row in rows)


def _shuffled(draw: Draw, names: tuple[str, ...]) -> list[str]:
    rest, found = list(names), list[str]()
    while rest:
        found.append(rest.pop(draw.integers(0, len(rest) - 1)))
    return found


def several(world: World, axes: Axes) -> Axes:
    """The axes that have more than one place."""
    return frozenset(a for a in axes if world.size((a,)) > 1)


# --- mesh_shard ------------------------------------------------------------------------------------------------------


def _raw(draw: Draw, world: World, rows: Rows) -> bool:
    """Whether to write the bare operation, which knows the mesh's order alone."""
    ordered = all(list(row) == sorted(row, key=world.names.index) for row in rows)
    return ordered and draw.integers(0, 3) == 3


def _raw_text(name: str, p: Params, world: World, direction: str) -> str:
    dims = [next((d for d, row in enumerate(p["rows"]) if a in row), -1) for a in world.names]
    kind, counts = "devices", [world.size(row) for row in p["rows"]]
    if all(d < 0 for d in dims):
        kind, counts, dims = "replicate", [1], [-1]
    return (
        f'jm.mesh_shard({name}, shard_type="{kind}", shard_direction="{direction}", shard_shape={counts}, '
        f"shard_dims={dims})"
    )


def _split_drawn(draw: Draw, world: World, x: Array, axes: Axes) -> Params | None:
    if several(world, axes):
        return None
    rows = list(drawn_rows(draw, world, x.shape) or ())
    for d, row in enumerate(rows):
        while x.shape[d] % world.size(rows[d]):
            rows[d] = row = row[:-1]
    return {"rows": tuple(rows), "raw": _raw(draw, world, tuple(rows))}


def _named(p: Params) -> Axes:
    return frozenset(a for row in p["rows"] for a in row)


def _split_typed(world: World, axes: Axes, p: Params) -> Axes:
    if several(world, axes):
        raise Misfit("a shard is split")
    return several(world, _named(p)) if p["raw"] else _named(p)


def _split_text(name: str, p: Params, world: World) -> str:
    if p["raw"]:
        return _raw_text(name, p, world, "full_to_shard")
    return f"jm.full_to_shard({name}, {spec_text(p['rows'])})"


MOVES["distribute"] = Move(
    1, _split_drawn, _split_text, _split_typed, lambda w, x, p: w.split(x, p["rows"]), splits=True
)


def _join_drawn(draw: Draw, world: World, x: Array, axes: Axes) -> Params | None:
    rows = drawn_rows(draw, world, x.shape, several(world, axes))
    if rows is None or x.size * world.size([a for row in rows for a in row]) > MOST:
        return None
    return {"rows": rows, "raw": _raw(draw, world, rows)}


def _join_typed(world: World, axes: Axes, p: Params) -> Axes:
    if not several(world, axes) <= _named(p):
        raise Misfit("a shard is taken for a full value")
    return frozenset()


def _join_text(name: str, p: Params, world: World) -> str:
    if p["raw"]:
        return _raw_text(name, p, world, "shard_to_full")
    return f"jm.shard_to_full({name}, {spec_text(p['rows'])})"


MOVES["aggregate"] = Move(
    1, _join_drawn, _join_text, _join_typed, lambda w, x, p: w.everywhere(w.join(x, p["rows"])), splits=True
)


# --- collectives -----------------------------------------------------------------------------------------------------


def _some(draw: Draw, axes: Axes, world: World) -> tuple[str, ...]:
    """Some of the axes a value varies over, in any order; at least one."""
    order = _shuffled(draw, tuple(a for a in world.names if a in axes))
    return tuple(order[: draw.integers(1, min(len(order), 2))])


def _reduce_drawn(draw: Draw, world: World, x: Array, axes: Axes) -> Params | None:
    return None if x.dtype == np.bool_ or not axes else {"axes": _some(draw, axes, world)}


def _need(axes: Axes, p: Params) -> None:
    if not {*p["axes"]} <= axes:
        raise Misfit("a collective over an axis the operand does not vary over")


def _less(world: World, axes: Axes, p: Params) -> Axes:
    _need(axes, p)
    return axes - {*p["axes"]}


def _same(world: World, axes: Axes, p: Params) -> Axes:
    _need(axes, p)
    return axes


def _together(body: Callable[[list[Array], int, Params], Array]) -> Meaning:
    """What each device gets from those of its group, in order, and its number there."""

    def run(world: World, copies: Copies, p: Params) -> Mapping[Coordinate, Array]:
        groups = world.groups(p["axes"])
        return {c: body([copies[o] for o in group], group.index(c), p) for c, group in groups.items()}

    return run


def _total(parts: list[Array], me: int, p: Params) -> Array:
    rows = [wide(x) for x in parts]
    first = parts[0]
    if is_float(first) and np.max(sum(np.abs(r) for r in rows), initial=0) > LIMITS[first.dtype.name]:
        raise Misfit("a sum that may round")
    return narrow(sum(rows[1:], rows[0]), first.dtype)


_REDUCTIONS: list[tuple[str, Callable[[list[Array], int, Params], Array]]] = [
    ("psum", _total),
    ("pmax", lambda parts, me, p: np.max(parts, 0)),
    ("pmin", lambda parts, me, p: np.min(parts, 0)),
]


def _reduce_text(op: str) -> Callable[[str, Params, World], str]:
    return lambda name, p, world: f"lax.{op}({name}, {axes_text(p['axes'])})"


for _name, _body in _REDUCTIONS:
    MOVES[_name] = Move(
        1,
        _reduce_drawn,
        _reduce_text(_name),
        _less,
        _together(_body),
    )


def _scatter_drawn(draw: Draw, world: World, x: Array, axes: Axes) -> Params | None:
    if x.dtype == np.bool_ or not axes or not x.ndim:
        return None
    over = _some(draw, axes, world)
    return _cut_drawn(draw, world, x, over, "scatter_dimension")


def _cut_drawn(draw: Draw, world: World, x: Array, over: tuple[str, ...], name: str) -> Params | None:
    """A dim that can be cut for a group: in as many pieces, or, untiled, one element for each."""
    count = world.size(over)
    options = [(d, True) for d, n in enumerate(x.shape) if n % count == 0]
    options += [(d, False) for d, n in enumerate(x.shape) if n == count]
    if not options:
        return None
    dim, tiled = draw.choice(options)
    return {"axes": over, name: dim, "tiled": tiled}


def _scattered(parts: list[Array], me: int, p: Params) -> Array:
    piece = np.split(_total(parts, me, p), len(parts), p["scatter_dimension"])[me]
    return piece if p["tiled"] else piece.squeeze(p["scatter_dimension"])


MOVES["psum_scatter"] = Move(
    1,
    _scatter_drawn,
    lambda name, p, w: (
        f"lax.psum_scatter({name}, {axes_text(p['axes'])}, scatter_dimension={p['scatter_dimension']}, "
        f"tiled={p['tiled']})"
    ),
    _same,
    _together(_scattered),
)


def _gather_drawn(draw: Draw, world: World, x: Array, axes: Axes) -> Params | None:
    if not axes:
        return None
    over = _some(draw, axes, world)
    tiled = bool(x.ndim) and draw.boolean()
    if x.size * world.size(over) > MOST or x.ndim > 4:
        return None
    dim = draw.integers(0, x.ndim - 1 if tiled else x.ndim)
    return {"axes": over, "axis": dim, "tiled": tiled, "same": draw.boolean()}


def _gather_text(name: str, p: Params, world: World) -> str:
    to = ', to="invarying"' if p["same"] else ""
    return f"lax.all_gather({name}, {axes_text(p['axes'])}, axis={p['axis']}, tiled={p['tiled']}{to})"


MOVES["all_gather"] = Move(
    1,
    _gather_drawn,
    _gather_text,
    lambda w, axes, p: _less(w, axes, p) if p["same"] else _same(w, axes, p),
    _together(lambda parts, me, p: (np.concatenate if p["tiled"] else np.stack)(parts, p["axis"])),
)


def _exchange_drawn(draw: Draw, world: World, x: Array, axes: Axes) -> Params | None:
    if not axes or not x.ndim:
        return None
    p = _cut_drawn(draw, world, x, _some(draw, axes, world), "split_axis")
    return None if p is None else {**p, "concat_axis": draw.integers(0, x.ndim - 1)}


def _exchanged(parts: list[Array], me: int, p: Params) -> Array:
    pieces = [np.split(x, len(parts), p["split_axis"])[me] for x in parts]
    if p["tiled"]:
        return np.concatenate(pieces, p["concat_axis"])
    return np.stack([x.squeeze(p["split_axis"]) for x in pieces], p["concat_axis"])


MOVES["all_to_all"] = Move(
    1,
    _exchange_drawn,
    lambda name, p, w: (
        f"lax.all_to_all({name}, {axes_text(p['axes'])}, split_axis={p['split_axis']}, "
        f"concat_axis={p['concat_axis']}, tiled={p['tiled']})"
    ),
    _same,
    _together(_exchanged),
)


def _permute_drawn(draw: Draw, world: World, x: Array, axes: Axes) -> Params | None:
    if not axes:
        return None
    over = _some(draw, axes, world)[:1]
    count = world.size(over)
    pairs = [(i, (i + draw.integers(0, 1) * 2 - 1) % count) for i in range(count)] if draw.boolean() else []
    if len({t for _, t in pairs}) < len(pairs) or not pairs:
        shift = draw.integers(1, count)
        pairs = [(i, (i + shift) % count) for i in range(count)]
    return {"axes": over, "perm": tuple(q for q in pairs if draw.integers(0, 4))}


def _sent(parts: list[Array], me: int, p: Params) -> Array:
    pairs: Sequence[tuple[int, int]] = p["perm"]
    found = [parts[start] for start, to in pairs if to == me]
    return found[0] if found else np.zeros_like(parts[me])


MOVES["ppermute"] = Move(
    1,
    _permute_drawn,
    lambda name, p, w: f"lax.ppermute({name}, {axes_text(p['axes'])}, {list(p['perm'])})",
    _same,
    _together(_sent),
)


def _vary_drawn(draw: Draw, world: World, x: Array, axes: Axes) -> Params | None:
    rest = tuple(a for a in world.names if a not in axes)
    return {"axes": _some(draw, frozenset(rest), world)} if rest else None


def _vary_typed(world: World, axes: Axes, p: Params) -> Axes:
    if {*p["axes"]} & axes:
        raise Misfit("it varies already")
    return axes | {*p["axes"]}


MOVES["pcast"] = Move(
    1,
    _vary_drawn,
    lambda name, p, w: f'lax.pcast({name}, {axes_text(p["axes"])}, to="varying")',
    _vary_typed,
    lambda w, x, p: x,
)


def _numbered(world: World, copies: Copies, p: Params) -> Mapping[Coordinate, Array]:
    return {c: np.asarray(world.number(c, p["axes"]), np.int32) for c in world.coordinates}


MOVES["axis_index"] = Move(
    0,
    lambda draw, w, x, axes: {"axes": _some(draw, frozenset(w.names), w)},
    lambda name, p, w: f"lax.axis_index({axes_text(p['axes'])})",
    lambda w, axes, p: frozenset(p["axes"]),
    _numbered,
)
