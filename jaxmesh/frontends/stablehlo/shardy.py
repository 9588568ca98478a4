"""Shardy, called in process: propagation, explicit reshards, and the guards around them.

A failed check inside Shardy ends the process. So nothing runs but the passes named here, on a module whose function is
`main`, with calls inlined and shardings that divide.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import sdy

from jaxmesh.errors import UnsupportedError
from jaxmesh.frontends.stablehlo import shardings
from jaxmesh.frontends.stablehlo.inline import inline_calls, operations, reshape_broadcasts, walk
from jaxmesh.frontends.stablehlo.op_rules import add_rules
from jaxmesh.frontends.stablehlo.shardings import OWN, SHARDING, WRITTEN
from jaxmesh.jaxprs.guarded_passes import REFUSALS, fatal_error, run_passes

_ir: Any = ir
_sdy: Any = sdy

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
    """A sharding that was not kept: of which value, at which location, as it was and as it is."""

    value: str
    location: str
    wanted: str
    kept: str


@dataclass(frozen=True, slots=True)
class Partitioned:
    """The function `main` after Shardy, with the shardings of its arguments as they were asked for."""

    main: Any
    asked: tuple[bool, ...]
    dropped: tuple[Dropped, ...]


def partition(
    module: Any,
    sizes: Mapping[str, int],
    name: str = "main",
    *,
    guarded: bool = False,
    kept: Callable[[Any], bool] = lambda _: False,
) -> Partitioned:
    """Runs Shardy on a module.

    Args:
      module: the module's operation, which is changed.
      sizes: the axes of the program's mesh.
      name: the function; the others are inlined in it.
      guarded: whether to try the passes in another process first, as JAX did not make the module.
      kept: says of a composite that it is not inlined.

    Raises:
      UnsupportedError: the module is over another mesh, or breaks a rule of MLIR or of Shardy.
    """
    with module.context, _ir.Location.unknown(module.context):
        main = inline_calls(module, name, kept)
        _check_meshes(module, sizes)
        if not guarded:
            reshape_broadcasts(main)
        add_rules(main)
        for op in walk(main):
            if op.name == "sdy.all_reduce":
                op.attributes[WRITTEN] = _ir.UnitAttr.get()
        asked = tuple(SHARDING in a for a in _argument_attributes(main))
        run(module, _PROPAGATE, guarded=guarded)
        dropped = _drop(main, sizes)
        run(module, _RESHARD, guarded=guarded)
        # Shardy removes the rules that it has used.
        add_rules(main)
    return Partitioned(main, asked, dropped)


def run(module: Any, passes: tuple[str, ...], *, guarded: bool) -> None:
    """Runs passes over a module; `guarded` tries them in another process first, and has each result verified.

    Raises:
      UnsupportedError: they refuse the module, or would end the process.
    """
    words = fatal_error(module, passes) if guarded else None
    if words is not None:
        raise UnsupportedError(
            f"Shardy would end the process on this module ({words[:300]}); correct its shardings and Shardy's ops, or "
            "split the values by hand in an sdy.manual_computation."
        )
    try:
        run_passes(module, passes, verify=guarded)
    except REFUSALS as error:
        raise UnsupportedError(f"Shardy refuses the module: {str(error)[:300]}") from error


def _check_meshes(module: Any, sizes: Mapping[str, int]) -> None:
    for op in operations(module):
        if op.name == "sdy.mesh":
            axes = mesh_axes(op)
            if axes and axes != dict(sizes):
                raise UnsupportedError(
                    f"a sharding is over the mesh {axes}, the program over {dict(sizes)}; one program has one mesh."
                )


def mesh_axes(op: Any) -> dict[str, int]:
    """Returns the sizes of the axes of an `sdy.mesh`, by name."""
    return {a.name: int(a.size) for a in map(_sdy.MeshAxisAttr, _sdy.MeshAttr(op.attributes["mesh"]).axes)}


def argument_shardings(main: Any) -> list[shardings.Sharding]:
    """Returns the sharding of each argument of a partitioned function."""
    rows = zip(main.regions[0].blocks[0].arguments, _argument_attributes(main), strict=True)
    return [_of(a, v.type.shape) for v, a in rows]


def result_shardings(main: Any) -> list[shardings.Sharding]:
    """Returns the sharding of each result of a partitioned function."""
    return [_of(a, t.shape) for t, a in zip(_result_types(main), _result_attributes(main), strict=True)]


def _of(attributes: Any, shape: Any) -> shardings.Sharding:
    if SHARDING not in attributes:
        return shardings.replicated(len(shape))
    return shardings.read(_sdy.TensorShardingAttr(attributes[SHARDING]))


def _attributes(main: Any, name: str, number: int) -> list[Any]:
    if name not in main.attributes:
        return [{} for _ in range(number)]
    return list(main.attributes[name])


def _argument_attributes(main: Any) -> list[Any]:
    return _attributes(main, "arg_attrs", len(main.regions[0].blocks[0].arguments))


def _result_types(main: Any) -> list[Any]:
    return list(_ir.FunctionType(main.attributes["function_type"].value).results)


def _result_attributes(main: Any) -> list[Any]:
    return _attributes(main, "res_attrs", len(_result_types(main)))


# --- shardings that are not kept -------------------------------------------------------------------------------------


def _drop(main: Any, sizes: Mapping[str, int]) -> tuple[Dropped, ...]:
    """Drops sub-axes and axes that do not divide a dim, everywhere, to the nearest sharding that does."""
    dropped: list[Dropped] = []

    known: dict[Any, tuple[Any, shardings.Sharding, bool]] = {}

    def nearest(attribute: Any, kind: Any, what: str, location: Any) -> Any:
        found = known.get((attribute, kind))
        if found is None:
            given = _sdy.TensorShardingAttr(attribute)
            found = known[attribute, kind] = given, *shardings.read_nearest(given, kind.shape, sizes)
        given, kept, changed = found
        if not changed:
            return given
        wanted = shardings.show_attribute(given)
        dropped.append(Dropped(what, str(location), wanted, shardings.show(kept)))
        return shardings.written(given, kept)

    block = main.regions[0].blocks[0]
    _drop_of_function(main, "arg_attrs", [v.type for v in block.arguments], nearest, "argument")
    _drop_of_function(main, "res_attrs", _result_types(main), nearest, "result")
    kept: set[Any] = set()
    for op in walk(main):
        place = OWN.get(op.name, SHARDING)
        # An op that JAX wants on one device has a sharding also without results.
        if place not in op.attributes or not op.results:
            continue
        key = op.attributes[place], *[r.type for r in op.results]
        if key in kept:
            continue
        given = shardings.per_value(op)
        assert given is not None
        rows = zip(given, op.results, strict=True)
        new = [nearest(s, r.type, op.name, op.location) for s, r in rows]
        if new == given:
            kept.add(key)
        elif op.name in OWN:
            op.attributes[place] = new[0]
        else:
            op.attributes[place] = _sdy.TensorShardingPerValueAttr.get(new)
    return tuple(dropped)


def _drop_of_function(main: Any, name: str, types: list[Any], nearest: Any, what: str) -> None:
    if name not in main.attributes:
        return
    rows: list[Any] = []
    for i, (attributes, kind) in enumerate(zip(main.attributes[name], types, strict=True)):
        entries = {k if isinstance(k, str) else k.name: None for k in attributes}
        values = {k: attributes[k] for k in entries}
        if SHARDING in values:
            values[SHARDING] = nearest(values[SHARDING], kind, f"{what} {i}", "")
        rows.append(_ir.DictAttr.get(values))
    main.attributes[name] = _ir.ArrayAttr.get(rows)
