"""Runs Shardy in process: propagation, explicit reshards, and their guards.

A failed check inside Shardy ends the process. So only the passes named here run, on a module with a function `main`,
inlined calls and shardings that divide.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import sdy

from jaxmesh.dialects.quoting import mlir_string
from jaxmesh.errors import UnsupportedError
from jaxmesh.frontends.stablehlo import shardings
from jaxmesh.frontends.stablehlo.as_xla import exchange_cheap_slices, gather_cheap_operands, hoist_reshards, simplify
from jaxmesh.frontends.stablehlo.gspmd import ENDS, change_ends, ends, inline_calls, operations, walk
from jaxmesh.frontends.stablehlo.rules import add_rules
from jaxmesh.frontends.stablehlo.shardings import OWN, SHARDING, WRITTEN
from jaxmesh.jaxprs.guarded_passes import REFUSALS, guarded_passes, run_passes

_PROPAGATE = (
    "sdy-lift-inlined-meshes",
    "sdy-apply-sharding-constraints",
    "sdy-add-data-flow-edges",
    "sdy-user-priority-propagate",
    "func.func(sdy-sink-data-flow-edges,sdy-sharding-constraint-to-reshard)",
    "sdy-close-shardings",
)
_RESHARD = (
    "func.func(sdy-insert-explicit-reshards{enable-full-version=true})",
    "func.func(sdy-populate-op-sharding-rules{conservative-propagation=true})",
)


@dataclass(frozen=True, slots=True)
class Dropped:
    """A sharding that was changed: the value, its location, and the requested and the kept sharding."""

    value: str
    location: str
    wanted: str
    kept: str


@dataclass(frozen=True, slots=True)
class PartitionedFunction:
    """The function `main` after Shardy, in its module, with flags for the arguments with requested shardings."""

    module: ir.Operation
    main: ir.Operation
    asked: tuple[bool, ...]
    dropped: tuple[Dropped, ...]


def partition(
    module: ir.Operation,
    sizes: Mapping[str, int],
    name: str,
    *,
    guarded: bool,
    sharded: bool,
    kept: Callable[[ir.Operation], bool],
) -> PartitionedFunction:
    """Runs Shardy on a module, which may be changed; calls in the named function are inlined, except those `kept`.

    With `guarded`, for a module that does not come from JAX, another process runs the passes. Shardy changes nothing in
    a module that is not `sharded`, that is, states no sharding.

    Raises:
      UnsupportedError: the module has a different mesh, or breaks a rule of MLIR or of Shardy.
    """
    with module.context, ir.Location.unknown(module.context):
        main = inline_calls(module, name, kept)
        if not sharded:
            return PartitionedFunction(module, main, (False,) * len(main.regions[0].blocks[0].arguments), ())
        # Without a `main`, Shardy ends the process.
        main.attributes["sym_name"] = ir.StringAttr.get("main")
        body = walk(main)
        _check_meshes(module, sizes)
        add_rules(body)
        _mark(body, "sdy.all_reduce")
        if not guarded:
            simplify(body)
        asked = tuple(SHARDING in a for a in next(ends(main))[2])
        restore_single = (lambda: None) if guarded else _leave_out_single(main, sizes)
        module = run(module, _PROPAGATE, guarded=guarded)
        main = _main(module)
        body = walk(main)
        dropped = _drop(main, body, sizes)
        _mark(body, "sdy.reshard")
        module = run(module, _RESHARD, guarded=guarded)
        main = _main(module)
        body = walk(main)
        # Shardy removes the rules after use.
        add_rules(body)
        if not guarded:
            gather_cheap_operands(body, main.regions[0].blocks[0].arguments, end_shardings(main)[0], sizes)
        exchange_cheap_slices(body, sizes)
        hoist_reshards(walk(main))
        restore_single()
    return PartitionedFunction(module, main, asked, dropped)


def run(module: ir.Operation, passes: tuple[str, ...], *, guarded: bool) -> ir.Operation:
    """Runs passes over a module, which is changed; `guarded` runs them in another process. Returns the module.

    Raises:
      UnsupportedError: the passes refuse the module, or would end the process.
    """
    try:
        made = guarded_passes(module, passes) if guarded else run_passes(module, passes, verify=False)
    except REFUSALS as error:
        raise UnsupportedError(f"Shardy refuses the module: {str(error)[:300]}") from error
    if isinstance(made, str):
        raise UnsupportedError(
            f"Shardy would end the process on this module ({made[:300]}); correct its shardings and Shardy's "
            "ops, or split the values by hand in an sdy.manual_computation."
        )
    return made or module


def _main(module: ir.Operation) -> ir.Operation:
    (main,) = [op for op in operations(module) if op.name == "func.func"]
    return main


def _mark(body: list[ir.Operation], name: str) -> None:
    """Marks the ops of a name that the program contains, to distinguish them from the ops that Shardy inserts."""
    for op in body:
        if op.name == name:
            op.attributes[WRITTEN] = ir.UnitAttr.get()


def _check_meshes(module: ir.Operation, sizes: Mapping[str, int]) -> None:
    for op in operations(module):
        if op.name == "sdy.mesh":
            axes = mesh_axes(op)
            if axes and axes != dict(sizes):
                raise UnsupportedError(
                    f"a sharding is over the mesh {axes}, the program over {dict(sizes)}; one program has one mesh."
                )


def mesh_axes(op: ir.Operation) -> dict[str, int]:
    """Returns the sizes of the axes of an `sdy.mesh`, by name."""
    return {a.name: int(a.size) for a in map(sdy.MeshAxisAttr, sdy.MeshAttr(op.attributes["mesh"]).axes)}


def end_shardings(main: ir.Operation) -> list[list[shardings.Sharding]]:
    """Returns the shardings of the arguments of a partitioned function, and of its results."""
    read = functools.cache(shardings.read)

    def of_end(attributes: shardings.Attributes, shape: Sequence[int]) -> shardings.Sharding:
        written = shardings.of_end(attributes)
        return shardings.replicated(len(shape)) if written is None else read(written)

    return [[of_end(a, t.shape) for t, a in zip(types, rows, strict=True)] for _, types, rows in ends(main)]


# --- dropped axes ----------------------------------------------------------------------------------------------------


def _drop(main: ir.Operation, body: list[ir.Operation], sizes: Mapping[str, int]) -> tuple[Dropped, ...]:
    """Drops sub-axes and axes that do not divide a dim, everywhere, to the nearest sharding that divides."""
    dropped: list[Dropped] = []

    known: dict[object, tuple[sdy.TensorShardingAttr, shardings.Sharding, bool]] = {}

    def nearest(attribute: ir.Attribute, value_type: ir.Type, what: str, location: object) -> ir.Attribute:
        entry = known.get((attribute, value_type))
        if entry is None:
            written = sdy.TensorShardingAttr(attribute)
            entry = known[attribute, value_type] = written, *shardings.read_nearest(written, value_type.shape, sizes)
        written, kept, changed = entry
        if not changed:
            return written
        wanted = shardings.show_attribute(written)
        dropped.append(Dropped(what, str(location), wanted, shardings.show(kept)))
        return shardings.written(written, kept)

    def drop(name: str, i: int, value_type: ir.Type, attributes: dict[str, ir.Attribute]) -> None:
        if SHARDING in attributes:
            attributes[SHARDING] = nearest(attributes[SHARDING], value_type, f"{ENDS[name]} {i}", "")

    change_ends(main, drop)
    kept: set[object] = set()
    for op in body:
        op_name = op.name
        if op_name == "sdy.manual_computation":
            # Its free axes, too, may split a dim that they do not divide.
            for name, values in (("in_shardings", op.operands), ("out_shardings", op.results)):
                pairs = zip(sdy.TensorShardingPerValueAttr(op.attributes[name]).shardings, values, strict=True)
                new = [nearest(s, v.type, "shard_map", op.location) for s, v in pairs]
                op.attributes[name] = sdy.TensorShardingPerValueAttr.get(new)
            continue
        name, attributes = OWN.get(op_name, SHARDING), op.attributes
        if name not in attributes:
            continue
        key = attributes[name], *[r.type for r in op.results]
        # JAX annotates an op on one device even without results.
        if key in kept or len(key) == 1:
            continue
        written = shardings.per_value(op)
        assert written is not None
        pairs = zip(written, op.results, strict=True)
        new = [nearest(s, r.type, op_name, op.location) for s, r in pairs]
        if new == written:
            kept.add(key)
        elif op_name in OWN:
            attributes[name] = new[0]
        else:
            attributes[name] = sdy.TensorShardingPerValueAttr.get(new)
    return tuple(dropped)


# --- axes of size 1 --------------------------------------------------------------------------------------------------


def _leave_out_single(main: ir.Operation, sizes: Mapping[str, int]) -> Callable[[], None]:
    """Removes the axes of size 1, which split nothing, from the shardings; XLA, too, does not propagate them.

    Returns:
      A function that restores the requested shardings of arguments and results.
    """
    names = "|".join(re.escape(mlir_string(a)) for a, n in sizes.items() if n == 1)
    if not names:
        return lambda: None
    single = re.compile(rf"(?:{names})(?![=:])(?:, )?")
    asked: dict[tuple[str, int], tuple[ir.Attribute, ir.Attribute]] = {}

    def without(attribute: ir.Attribute) -> ir.Attribute:
        text = re.sub(r", }", "}", single.sub("", str(attribute)))
        return ir.Attribute.parse(re.sub(r", (?:replicated|unreduced)={}", "", text), main.context)

    def leave_out(name: str, i: int, _: ir.Type, attributes: dict[str, ir.Attribute]) -> None:
        if SHARDING in attributes:
            asked[name, i] = attributes[SHARDING], without(attributes[SHARDING])
            attributes[SHARDING] = asked[name, i][1]

    def restore(name: str, i: int, _: ir.Type, attributes: dict[str, ir.Attribute]) -> None:
        written, left = asked.get((name, i), (None, None))
        if written is not None and attributes[SHARDING] == left:
            attributes[SHARDING] = written

    change_ends(main, leave_out)
    for op in walk(main):
        name = OWN.get(op.name, SHARDING)
        if name in op.attributes:
            op.attributes[name] = without(op.attributes[name])

    return functools.partial(change_ends, main, restore)
