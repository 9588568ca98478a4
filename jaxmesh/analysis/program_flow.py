"""Lists the values of a program with their residencies, for `jaxmesh.visualize`; reads types and transfers."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import jax
import numpy as np
from jax.sharding import Mesh

from jaxmesh.dialects.residency import DEVICE, FREE, Residency, ResidencyMap
from jaxmesh.dialects.signature import Boundary
from jaxmesh.dialects.ttir.mesh_shard import MeshShardAttributes, mesh_shard_p
from jaxmesh.dialects.ttnn.transfers import PRIMITIVES, distribute_tensor_p
from jaxmesh.drawing.placement import Box, Placement, Shard, cut_boxes, make_placement, varying_axes
from jaxmesh.drawing.placements import sharding_placement
from jaxmesh.drawing.program_drawing import MAX_VALUES, ProgramValue, ProgramValues
from jaxmesh.jaxprs import compat, primitives, source_locations, walk as walk_
from jaxmesh.jaxprs.compat import Atom, Eqn, Jaxpr, Var
from jaxmesh.jaxprs.trees import leaf_paths
from jaxmesh.sharding.distribution import resolve_mapper, rows_of
from jaxmesh.sharding.mesh import AnyMesh
from jaxmesh.tensor.mesh_tensor import is_tensor

Shape = tuple[int, ...]
_WORDS: Mapping[Any, str] = {DEVICE: "the same on every device", FREE: "made where it is needed"}


def stage_values(title: str, jaxpr: Jaxpr, boundary: Boundary, residency: ResidencyMap) -> ProgramValues:
    """Lists the values of a traced or a lowered program.

    Replaces the `mesh_shard`s of a traced program by transfers to infer its residencies.
    """
    walk = _ValueCollector(boundary.mesh)
    opened, known = walk_.open_jaxpr(jaxpr), residency.values
    walk.residencies = {**known, **_results(opened, walk_.open_jaxpr(residency.program), known)}
    for var, path in zip(opened.invars, _paths(boundary.in_tree), strict=True):
        walk.names[var] = f"argument{path}"
        walk.step(walk.names[var], var)
    walk.body(jaxpr, 0)
    for atom in opened.outvars:
        walk.step(f"return {walk.name(atom)}", atom)
    return walk.values(title)


def compiled_values(
    title: str, jaxpr: Jaxpr, boundary: Boundary, arguments: Sequence[Any], results: Any
) -> ProgramValues:
    """Lists the arguments and results of a compiled program, with XLA's placements.

    Unread arguments have the sharding None; `results` is the tree of the results' shardings.
    """
    walk = _ValueCollector(boundary.mesh)
    avals = list(jaxpr.in_avals)
    for aval, sharding, path, place in zip(
        avals, arguments, _paths(boundary.in_tree), boundary.residencies, strict=True
    ):
        walk.add_boundary_value(f"argument{path}", aval, sharding, place is DEVICE and sharding is not None)
    leaves = cast("list[tuple[Any, Any]]", jax.tree_util.tree_flatten_with_path(results, is_leaf=is_tensor)[0])
    for aval, (path, leaf) in zip(list(jaxpr.out_avals), leaves, strict=True):
        walk.add_boundary_value(f"result{jax.tree_util.keystr(path)}", aval, leaf, is_tensor(leaf))
    return walk.values(title, "what lies between is XLA's: see as_text().")


def _paths(tree: Any) -> list[str]:
    # The first entry only separates arguments by position from arguments by name.
    return [jax.tree_util.keystr(path[1:] if len(path) > 1 else path) for path in leaf_paths(tree)]


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
    """Collects the values of a program."""

    mesh: AnyMesh
    steps: list[ProgramValue] = field(default_factory=list[ProgramValue])
    count: int = 0
    results: int = 0
    names: dict[Var, str] = field(default_factory=dict[Var, str])
    residencies: dict[Var, Residency] = field(default_factory=dict[Var, Residency])

    def name(self, atom: Atom) -> str:
        """Returns the name of a value in the list; for a literal, its value."""
        if isinstance(atom, compat.Literal):
            return str(atom.val) if np.size(atom.val) == 1 else "a constant"
        return self.names.get(atom, "a constant")

    def body(self, jaxpr: Jaxpr, depth: int) -> None:
        """Adds the equations of a body and of its inner bodies."""
        for eqn in walk_.open_jaxpr(jaxpr).eqns:
            if eqn.primitive.name in primitives.RETYPES:
                self.names[eqn.outvars[0]] = self.name(eqn.invars[0])
                continue
            self.equation(eqn, depth)
            if self.count > 20 * MAX_VALUES:
                return
            for inner in walk_.sub_jaxprs(eqn):
                if eqn.primitive.name not in primitives.SCALAR_BODIES:
                    opened = walk_.open_jaxpr(inner)
                    self.names.update((v, f"in{i}") for i, v in enumerate(opened.invars))
                    self.body(inner, depth + 1)

    def equation(self, eqn: Eqn, depth: int) -> None:
        """Adds the results of an equation."""
        operands = ", ".join(self.name(a) for a in eqn.invars[:6]) + (", ..." if len(eqn.invars) > 6 else "")
        line, cut = source_locations.source_line(eqn), self.cut(eqn)
        moves = eqn.primitive in (*PRIMITIVES, mesh_shard_p) or eqn.primitive.name in primitives.COLLECTIVES
        for var in eqn.outvars:
            self.names[var] = f"%{self.results}"
            self.results += 1
            self.step(f"{self.names[var]} = {eqn.primitive.name}({operands})", var, line, depth, moves, cut)

    def step(
        self, text: str, atom: Atom, line: str = "", depth: int = 0, moves: bool = False, cut: Placement | None = None
    ) -> None:
        """Adds one value; `cut` is its placement if the equation cut it out of a full tensor."""
        self.count += 1
        if self.count > MAX_VALUES or not compat.is_array_type(atom.aval):
            return
        varying = [a for a in self.mesh.axis_names if a in compat.varying_axes(atom.aval)]
        residency = self.residencies.get(atom) if isinstance(atom, Var) else FREE
        if varying:
            where, placement = f"shards over {', '.join(varying)}", cut or self.shards(atom.aval, varying)
        else:
            where = "on the host, full" if residency is None else _WORDS.get(residency, "on the host, full")
            if residency is None and depth:
                where = "the same everywhere"
            placement = self.shards(atom.aval, varying) if residency is DEVICE else None
        self.steps.append(ProgramValue(text, _type(atom.aval), where, placement, line, depth, moves))

    def add_boundary_value(self, text: str, aval: Any, sharding: Any, stays: bool) -> None:
        """Adds an argument or a result of a compiled program: a tensor on the devices, or a full array."""
        self.count += 1
        varying = [a for a in self.mesh.axis_names if a in compat.varying_axes(aval)]
        if varying or stays:
            where = f"shards over {', '.join(varying)}" if varying else _WORDS[DEVICE]
            placement = self.shards(aval, varying)
        elif sharding is None:
            where, placement = "not read", None
        else:
            mesh = self.mesh if isinstance(self.mesh, Mesh) else None
            placement = sharding_placement(tuple(aval.shape), aval.dtype, sharding, mesh)
            over = varying_axes(placement)
            where = f"cut over {', '.join(over)}" if over else _WORDS[DEVICE]
        self.steps.append(ProgramValue(text, _type(aval), where, placement))

    def values(self, title: str, *notes: str) -> ProgramValues:
        """Returns the first `MAX_VALUES` values, with a count of the rest."""
        return ProgramValues(title, tuple(self.steps[:MAX_VALUES]), max(0, self.count - MAX_VALUES), notes)

    # --- placements ---

    def shards(self, aval: Any, varying: Sequence[str]) -> Placement:
        """Returns the placement of shards that vary over the given axes; their boxes in the full tensor are unknown."""
        axes = dict(self.mesh.shape)
        shards: list[Shard | None] = []
        shape = tuple(aval.shape)
        for coordinate in itertools.product(*map(range, axes.values())):
            named = [(n, i) for n, i in zip(axes, coordinate, strict=True) if n in varying]
            box: Box | None = None if varying else tuple((0, n) for n in shape)
            shards.append(Shard(box, ", ".join(f"{n}={i}" for n, i in named), shape, tuple(i for _, i in named)))
        return self.placement(shards, aval, None if varying else shape)

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

    def placement(self, shards: Sequence[Shard | None], aval: Any, shape: Shape | None, over: Any = None) -> Placement:
        """Returns a placement on this mesh."""
        ids = [d.id for d in self.mesh.devices.flat] if isinstance(self.mesh, Mesh) else None
        return make_placement(
            dict(self.mesh.shape), shards, dtype=aval.dtype, itemsize=aval.dtype.itemsize, shape=shape, how="",
            ids=ids, over=over,
        )  # fmt: skip


def _type(aval: Any) -> str:
    return f"{aval.dtype}{list(aval.shape)}"
