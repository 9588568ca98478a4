"""Lists the values of a program with their residencies, for `jaxmesh.visualize`; reads types and transfers."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from jax.sharding import Mesh

from jaxmesh.analysis.account import executed
from jaxmesh.dialects.residency import DEVICE, FREE, Residency, ResidencyMap
from jaxmesh.dialects.signature import Boundary
from jaxmesh.dialects.ttir.mesh_shard import MeshShardAttributes, mesh_shard_p
from jaxmesh.dialects.ttnn.transfers import PRIMITIVES, distribute_tensor_p
from jaxmesh.drawing.placement import Placement, Shard, cut_boxes, make_placement
from jaxmesh.drawing.placements import sharding_placement
from jaxmesh.drawing.program_blocks import Change, ProgramValue
from jaxmesh.drawing.program_drawing import ProgramValues
from jaxmesh.jaxprs import compat, control_flow, primitives, source_locations, walk as walk_
from jaxmesh.jaxprs.compat import Atom, Aval, Eqn, Jaxpr, Var
from jaxmesh.jaxprs.control_flow import Cond, Scan, While
from jaxmesh.jaxprs.source_locations import Surroundings, origin, surroundings
from jaxmesh.jaxprs.trees import path_keys
from jaxmesh.jaxprs.typed import typed
from jaxmesh.sharding.distribution import resolve_mapper, rows_of
from jaxmesh.sharding.mesh import AnyMesh
from jaxmesh.tensor.mesh_tensor import is_tensor

Shape = tuple[int, ...]
Keys = tuple[str, ...]
HOST, REPLICATED, ANYWHERE = "host", "replicated", "anywhere"
_WORDS: Mapping[Any, str] = {DEVICE: REPLICATED, FREE: ANYWHERE}
_ARGUMENTS, _RESULTS, _BACKWARD = "arguments", "results", "backward"
"""The names of blocks that are neither scopes nor functions."""


def stage_values(
    title: str, jaxpr: Jaxpr, boundary: Boundary, residency: ResidencyMap, out_tree: object
) -> ProgramValues:
    """Lists the values of a traced or a lowered program.

    Replaces the `mesh_shard`s of a traced program by transfers to infer its residencies.
    """
    walk = _ValueCollector(boundary.mesh)
    opened, known = walk_.open_jaxpr(jaxpr), residency.values
    walk.residencies = {**known, **_results(opened, walk_.open_jaxpr(residency.program), known)}
    arguments, results = _arguments(boundary), path_keys(out_tree)
    walk.ends(opened, arguments, results)
    for var, keys in zip(opened.invars, arguments, strict=True):
        walk.names[var] = "".join(keys)
        walk.end(walk.names[var], var, _ARGUMENTS, keys)
    walk.body(jaxpr, 0, (), Surroundings())
    for atom, keys in zip(opened.outvars, results, strict=True):
        walk.end(f"return {walk.name(atom)}", atom, _RESULTS, keys)
    return ProgramValues(title, tuple(walk.steps))


def compiled_values(
    title: str, jaxpr: Jaxpr, boundary: Boundary, arguments: Sequence[Any], results: Any
) -> ProgramValues:
    """Lists the arguments and results of a compiled program, with XLA's placements.

    Unread arguments have the sharding None; `results` is the tree of the results' shardings.
    """
    walk = _ValueCollector(boundary.mesh)
    avals = list(jaxpr.in_avals)
    for aval, sharding, path, place in zip(avals, arguments, _arguments(boundary), boundary.residencies, strict=True):
        walk.add_boundary_value(_ARGUMENTS, path, aval, sharding, place is DEVICE and sharding is not None)
    leaves = typed.tree_util.tree_flatten_with_path(results, is_leaf=is_tensor)[0]
    for aval, (path, leaf) in zip(list(jaxpr.out_avals), leaves, strict=True):
        keys = tuple(typed.tree_util.keystr((key,)) for key in path)
        walk.add_boundary_value(_RESULTS, keys, aval, leaf, is_tensor(leaf))
    return ProgramValues(title, tuple(walk.steps), ("what lies between is XLA's: see as_text().",))


def _arguments(boundary: Boundary) -> list[Keys]:
    """Returns the keys of each argument, which begin with the name of a parameter if it is known."""
    if boundary.parameters:
        return path_keys(boundary.in_tree, boundary.parameters)
    # The first key only separates arguments by position from arguments by name.
    return [("argument", *keys[1:]) for keys in path_keys(boundary.in_tree)]


def _results(opened: Jaxpr, lowered: Jaxpr, known: Mapping[Var, Residency]) -> dict[Var, Residency]:
    """Returns the residencies of the results of `mesh_shard`s, which are different variables in the lowered program."""
    common = {v for e in opened.eqns for v in e.outvars}
    rest, residencies = list(lowered.eqns), dict[Var, Residency]()
    replacements: dict[Var, Atom] = {}
    position = 0
    for eqn in opened.eqns:
        if eqn.primitive is not mesh_shard_p:
            position += 1
            continue
        (operand,) = eqn.invars
        last = replacements.get(operand, operand) if isinstance(operand, Var) else operand
        # A mesh_shard becomes a chain of equations, each reading the previous result, or disappears.
        while (
            position < len(rest)
            and rest[position].invars[:1] == [last]
            and not common.intersection(rest[position].outvars)
        ):
            (last,) = rest[position].outvars
            position += 1
        replacements[eqn.outvars[0]] = last
        residencies[eqn.outvars[0]] = known[last] if isinstance(last, Var) else FREE
    return residencies


@dataclass(slots=True)
class _ValueCollector:
    """Collects the values of a program.

    Attributes:
      results: the number of results of equations so far.
      names: the names of variables in the list.
      places: a short description of the residency of variables, and their placements.
      entering: the keys of arguments that only an equation reads which moves them; such an equation shows them.
      leaving: the keys of results, which the equation shows that moves them.
      common: the number of functions around every equation.
      drawn: the placements of shards by shape, element type and axes.
    """

    mesh: AnyMesh
    steps: list[ProgramValue] = field(default_factory=list[ProgramValue])
    results: int = 0
    names: dict[Var, str] = field(default_factory=dict[Var, str])
    residencies: dict[Var, Residency] = field(default_factory=dict[Var, Residency])
    places: dict[Var, tuple[str, Placement | None]] = field(default_factory=dict[Var, "tuple[str, Placement | None]"])
    entering: dict[Var, tuple[str, ...]] = field(default_factory=dict[Var, tuple[str, ...]])
    leaving: dict[Var, tuple[str, ...]] = field(default_factory=dict[Var, tuple[str, ...]])
    common: int = 0
    drawn: dict[Any, Placement] = field(default_factory=dict[Any, Placement])

    def ends(self, opened: Jaxpr, arguments: Sequence[Keys], results: Sequence[Keys]) -> None:
        """Finds the arguments and results that equations at the boundary move, and the functions around everything."""
        reads = Counter(a for e in opened.eqns for a in e.invars if isinstance(a, Var))
        keys = dict(zip(opened.invars, arguments, strict=True))
        returned = {a: k for a, k in zip(opened.outvars, results, strict=True) if isinstance(a, Var)}
        for eqn in opened.eqns:
            if _is_transfer(eqn):
                (operand,), (result,) = eqn.invars, eqn.outvars
                if isinstance(operand, Var) and operand in keys and reads[operand] == 1 and operand not in returned:
                    self.entering[operand] = keys[operand]
                elif result in returned and not reads[result]:
                    self.leaving[result] = returned[result]
        chains = {surroundings(e).functions for e in walk_.all_eqns(opened)} - {()}
        self.common = _common_prefix(chains)

    def name(self, atom: Atom) -> str:
        """Returns the name of a value in the list; for a literal, its value."""
        if isinstance(atom, compat.Literal):
            return str(atom.val) if np.size(atom.val) == 1 else "a constant"
        return self.names.get(atom, "a constant")

    def body(self, jaxpr: Jaxpr, depth: int, blocks: tuple[str, ...], caller: Surroundings) -> None:
        """Adds the equations of a body and of its inner bodies; `blocks` is the path of its equation."""
        for eqn in walk_.open_jaxpr(jaxpr).eqns:
            if eqn.primitive.name in primitives.RETYPES:
                (operand,), (result,) = eqn.invars, eqn.outvars
                self.names[result] = self.name(operand)
                if isinstance(operand, Var) and operand in self.places:
                    self.places[result] = self.places[operand]
                continue
            here = surroundings(eqn, caller)
            path = blocks + self.path(here, caller)
            self.equation(eqn, depth, path)
            for label, inner in _bodies(eqn):
                opened = walk_.open_jaxpr(inner)
                for i, var in enumerate(opened.invars):
                    self.names[var] = f"in{i}"
                    if compat.is_array_type(var.aval):
                        self.places[var] = self.place(var, depth + 1, None)[1:]
                self.body(inner, depth + 1, path + label, here)

    def path(self, here: Surroundings, caller: Surroundings) -> tuple[str, ...]:
        """Returns the blocks of an equation inside the blocks of its caller."""
        back = (_BACKWARD,) if here.backward and not caller.backward else ()
        scopes, functions = here.scopes[len(caller.scopes) :], here.functions[max(self.common, len(caller.functions)) :]
        if not scopes:
            return (*back, *functions)
        last = functions[-1:] if functions[-1:] != scopes[-1:] else ()
        return (*back, *scopes, *last)

    def equation(self, eqn: Eqn, depth: int, path: tuple[str, ...]) -> None:
        """Adds the results of an equation."""
        operands = ", ".join(self.name(a) for a in eqn.invars[:6]) + (", ..." if len(eqn.invars) > 6 else "")
        line, cut = source_locations.source_line(eqn), self.cut(eqn)
        moves = _is_transfer(eqn) or eqn.primitive.name in primitives.COLLECTIVES
        for var in eqn.outvars:
            self.names[var] = f"%{self.results}"
            self.results += 1
            if not compat.is_array_type(var.aval):
                continue
            where, short, placement = self.place(var, depth, cut)
            self.places[var] = short, placement
            change = self.change(eqn, short)
            if change is not None:
                path, change = self.boundary(eqn, var, path, change)
            text = f"{self.names[var]} = {eqn.primitive.name.removesuffix('_invariant')}({operands})"
            self.steps.append(ProgramValue(text, _type(var.aval), where, placement, line, depth, moves, change, path,
                                           origin(eqn)))  # fmt: skip

    def change(self, eqn: Eqn, after: str) -> Change | None:
        """Returns the change of placement that an equation makes; None if it makes none."""
        operand = next((a for a in eqn.invars if isinstance(a, Var)), None)
        before, placement = ("", None) if operand is None else self.places.get(operand, ("", None))
        where = f"{before} → {after}" if before else after
        if _is_transfer(eqn):
            return Change(eqn.primitive.name.removesuffix("_tensor"), where, where, placement)
        moves = executed.collective(eqn, dict(self.mesh.shape))
        if moves:
            name = f"{moves[0].kind} over {', '.join(moves[0].axes)}"
            return Change(name, where, name.replace(" over", ""), placement)
        if eqn.primitive.name == "dynamic_slice" and before != after:
            # A device cuts its part out of what it has.
            return Change("slice", where, f"slice {where}", placement)
        return None

    def boundary(self, eqn: Eqn, var: Var, path: tuple[str, ...], change: Change) -> tuple[tuple[str, ...], Change]:
        """Returns a change with the name of the argument or result that it moves."""
        operand = eqn.invars[0]
        if _is_transfer(eqn) and isinstance(operand, Var) and operand in self.entering:
            block, keys, place = _ARGUMENTS, self.entering[operand], var
        elif var in self.leaving and isinstance(operand, Var):
            block, keys, place = _RESULTS, self.leaving[var], operand
        else:
            return path, change
        kind = self.places[place][0] if place in self.places else change.kind
        return (block, *keys[:-1]), Change(keys[-1] if keys else "result", change.where, kind, change.before)

    def end(self, text: str, atom: Atom, block: str, keys: tuple[str, ...]) -> None:
        """Adds an argument or a result."""
        if not compat.is_array_type(atom.aval):
            return
        where, short, placement = self.place(atom, 0, None)
        shown = isinstance(atom, Var) and atom in (self.entering if block == _ARGUMENTS else self.leaving)
        if isinstance(atom, Var):
            self.places[atom] = short, placement
        change = Change(keys[-1] if keys else "result", where, short)
        path = None if shown else (block, *keys[:-1])
        self.steps.append(ProgramValue(text, _type(atom.aval), where, placement, change=change, path=path))

    def place(self, atom: Atom, depth: int, cut: Placement | None) -> tuple[str, str, Placement | None]:
        """Returns the residency of a value, in short, too, and its placement.

        `cut` is its placement if the equation cut it out of a full tensor.
        """
        varying = [a for a in self.mesh.axis_names if a in compat.varying_axes(atom.aval)]
        if varying:
            axes = ", ".join(varying)
            return f"shards over {axes}", axes, cut or self.shards(atom.aval, varying)
        residency = self.residencies.get(atom) if isinstance(atom, Var) else FREE
        where = (REPLICATED if depth else HOST) if residency is None else _WORDS.get(residency, HOST)
        return where, where, self.shards(atom.aval, varying) if residency is DEVICE else None

    def add_boundary_value(self, block: str, keys: Keys, aval: Aval, sharding: Any, stays: bool) -> None:
        """Adds an argument or a result of a compiled program: a tensor on the devices, or a full array."""
        varying = [a for a in self.mesh.axis_names if a in compat.varying_axes(aval)]
        if varying or stays:
            where = f"shards over {', '.join(varying)}" if varying else REPLICATED
            placement = self.shards(aval, varying)
        elif sharding is None:
            where, placement = "not read", None
        else:
            mesh = self.mesh if isinstance(self.mesh, Mesh) else None
            placement = sharding_placement(tuple(aval.shape), aval.dtype, sharding, mesh)
            over = placement.varying_axes
            where = f"cut over {', '.join(over)}" if over else REPLICATED
        change = Change(keys[-1] if keys else "result", where, where)
        text = "".join(keys if block == _ARGUMENTS else ("result", *keys))
        self.steps.append(ProgramValue(text, _type(aval), where, placement, change=change, path=(block, *keys[:-1])))

    # --- placements ---

    def shards(self, aval: Aval, varying: Sequence[str]) -> Placement:
        """Returns the placement of shards that vary over the given axes; their boxes in the full tensor are unknown."""
        axes, shape = dict(self.mesh.shape), tuple(aval.shape)
        key = shape, aval.dtype, tuple(varying)
        if key in self.drawn:
            return self.drawn[key]
        shards: list[Shard | None] = []
        for coordinate in itertools.product(*map(range, axes.values())):
            named = {n: i for n, i in zip(axes, coordinate, strict=True) if n in varying}
            shards.append(Shard.at(named, shape) if varying else Shard.of_box(tuple((0, n) for n in shape)))
        self.drawn[key] = self.placement(shards, aval, None if varying else shape)
        return self.drawn[key]

    def cut(self, eqn: Eqn) -> Placement | None:
        """Returns the placement of the shards of an equation that splits a full tensor; None for any other equation."""
        if eqn.primitive not in (mesh_shard_p, distribute_tensor_p):
            return None
        full: Any = eqn.invars[0].aval
        axes = dict(self.mesh.shape)
        if eqn.primitive is mesh_shard_p and compat.varying_axes(eqn.outvars[0].aval):
            dims = MeshShardAttributes(**{k: v for k, v in eqn.params.items() if k != "assume_replicated"})
            names = list(axes)
            axes_of_dims = [
                tuple(names[a] for a in dim_axes) for dim_axes in rows_of(dims.dims_on(len(axes)), len(full.shape))
            ]
            boxes = cut_boxes(tuple(full.shape), axes_of_dims, axes)
            shards: list[Shard | None] = [Shard.of_box(b) for b in boxes]
            return self.placement(shards, full, tuple(full.shape), axes_of_dims)
        if eqn.primitive is distribute_tensor_p:
            resolved = resolve_mapper(eqn.params["mapper_config"], tuple(axes.values()), full.shape)
            index = {c: tuple((s.start, s.stop) for s in resolved.index(p)) for c, p in resolved.shard_coordinates()}
            coordinates = itertools.product(*map(range, axes.values()))
            shards = [Shard.of_box(index[c]) if c in index else None for c in coordinates]
            return self.placement(shards, full, tuple(full.shape))
        return None

    def placement(self, shards: Sequence[Shard | None], aval: Aval, shape: Shape | None, over: Any = None) -> Placement:
        """Returns a placement on this mesh."""
        ids = [d.id for d in self.mesh.devices.flat] if isinstance(self.mesh, Mesh) else None
        return make_placement(
            dict(self.mesh.shape), shards, dtype=aval.dtype, itemsize=aval.dtype.itemsize, shape=shape, how="",
            ids=ids, over=over,
        )  # fmt: skip


def _type(aval: Aval) -> str:
    """Returns a type in JAX's short form, without its varying axes."""
    return aval.str_short(short_dtypes=True).partition("{")[0]


def _is_transfer(eqn: Eqn) -> bool:
    return eqn.primitive in (*PRIMITIVES, mesh_shard_p)


def _bodies(eqn: Eqn) -> Iterator[tuple[tuple[str, ...], Jaxpr]]:
    """Yields the bodies of an equation, each with its block unless it always runs once."""
    if eqn.primitive.name in primitives.SCALAR_BODIES:
        return
    match control_flow.control_flow(eqn):
        case Scan() as scan:
            label = f"scan of {scan.length}"
        case While():
            label = "while"
        case Cond():
            label = "cond"
        case _:
            label = ""
    for inner in walk_.sub_jaxprs(eqn):
        yield (label,) if label else (), inner


def _common_prefix(chains: Iterable[tuple[str, ...]]) -> int:
    """Returns the number of first entries that all rows share.

    >>> _common_prefix([("f", "g"), ("f", "h", "g")])
    1
    """
    columns = list(zip(*chains, strict=False))
    return next((i for i, column in enumerate(columns) if len(set(column)) > 1), len(columns))
